//! XSSD, section 4.2: saxpy, A = alpha * B + C, of vectors of 16 GB each (2^31 numbers of 8 bytes), in its versions.
//!
//! - **IO**: threads of the host read B and C by Direct-IO's way, [`READ_BYTES`] at a time, multiply and add, and write A.
//! - **RPC**: the SSD App `compute` (apps/compute), called by a user's process: two pairs of buffers of 4 kB, of which one is read by DMA while the
//!   multiply-add accelerator works on the other beside the processor, and its result is written. So they fit the prototype's 32 kB of data memory.
//! - **HW**: the same steps by a state machine instead of the SPU's processor ([`Laboratory::in_hardware`]).
//!
//! What always holds: each number of A that a run leaves is compared with what is computed here, else the experiment fails. Nothing is fitted: what the
//! thesis does not print is a constant below, marked "ours", and was set before the first run.

use super::{Drawing, Experiment, ExperimentError, Findings, Laboratory, Plot, Series};
use crate::host::Path;
use crate::report::Report;
use crate::simulation::{Simulation, SimulationOptions};
use crate::thread::{BlockTarget, HostThread};
use compute_host::wire::{self, Piece, Place, Saxpy, handler};
use compute_host::{Number, multiply_add};
use std::sync::Arc;
use willow_device::clock::Accelerator;
use willow_host::hre::{Hre, RpcCall};
use willow_host::{AppClient, HreError};

/// See the module.
pub const EXPERIMENT: Experiment = Experiment {
    id: "xssd-saxpy",
    title: "A = alpha * B + C of vectors of 16 GB by the host, by SPUs, and by hardware",
    source: "XSSD 4.2",
    preset: "bee3",
    run,
};

/// A gigabyte of a vector: 2^30 bytes, as in `xssd-fgrep`.
const GIGABYTE: f64 = (1u64 << 30) as f64;
/// Of each vector, as the thesis has them.
const VECTOR_GB: f64 = 16.0;
const NUMBER: Number = Number::Double;
const ALPHA: f64 = 2.5;
/// Bytes of a read or write of the host version. Ours, as in `xssd-fgrep`.
const READ_BYTES: u32 = 128 << 10;
/// Rate at which a processor of the host multiplies and adds, bytes of the result a second: three streams through its memory. Ours; eight processors
/// do ten times the link.
const COMPUTE_BYTES_PER_S: u64 = 3_000_000_000;
/// Bytes of a buffer of the SPU: four of them. Ours.
const CHUNK_BYTES: u32 = 4096;
/// Bytes of the result that one request is for. Ours.
const REQUEST_BYTES: u64 = 4 << 20;
/// Threads, as the thesis has them at most.
const THREADS: u64 = 16;
/// Vectors that are worked on in full: two sizes, whose difference is the time of what comes after.
const VECTORS_BYTES: [u64; 2] = [8 << 20, 16 << 20];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Version {
    Io,
    Rpc,
    Hardware,
}

const VERSIONS: [(&str, Version); 3] =
    [("Saxpy-IO", Version::Io), ("Saxpy-RPC", Version::Rpc), ("Saxpy-HW", Version::Hardware)];

/// What a run took.
#[derive(Clone, Copy)]
struct Cost {
    seconds: f64,
    joules: f64,
}

/// A part of B or C.
fn numbers(which: u64, begin: u64, bytes: u32) -> Vec<u8> {
    let number = |place: u64| {
        let state =
            (place | which << 60).wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 20) as f64 / 1e6
    };
    (begin / 8..(begin + u64::from(bytes)) / 8).flat_map(|place| number(place).to_le_bytes()).collect()
}

/// B, C and A lie one behind the other; B and C are filled.
async fn fill(thread: HostThread, bytes: u64) -> Result<(), HreError> {
    for which in 0..2 {
        for begin in (0..bytes).step_by(READ_BYTES as usize) {
            thread.write(Path::Bare, which * bytes + begin, numbers(which, begin, READ_BYTES)).await?;
        }
    }
    Ok(())
}

/// Compares A with what it is to be.
async fn check(thread: HostThread, bytes: u64) -> Result<(), HreError> {
    for begin in (0..bytes).step_by(READ_BYTES as usize) {
        let found = thread.read(Path::Bare, 2 * bytes + begin, READ_BYTES).await?;
        let mut wanted = numbers(1, begin, READ_BYTES);
        multiply_add(NUMBER, ALPHA, &numbers(0, begin, READ_BYTES), &mut wanted);
        if found != wanted {
            return Err(HreError::Answer("the result is not alpha * B + C".to_owned()));
        }
    }
    Ok(())
}

/// The host version: a share of the vectors by each thread.
async fn by_host(thread: HostThread, (number, threads): (u64, u64), bytes: u64) -> Result<(), HreError> {
    let pieces = bytes / u64::from(READ_BYTES);
    for piece in number * pieces / threads..(number + 1) * pieces / threads {
        let at = piece * u64::from(READ_BYTES);
        let b = thread.read(Path::User, at, READ_BYTES).await?;
        let mut c = thread.read(Path::User, bytes + at, READ_BYTES).await?;
        thread.compute(u64::from(READ_BYTES) * 1_000_000_000 / COMPUTE_BYTES_PER_S, "multiply and add").await;
        multiply_add(NUMBER, ALPHA, &b, &mut c);
        thread.write(Path::User, 2 * bytes + at, c).await?;
    }
    Ok(())
}

/// The versions in the drive: each thread has its share of the banks worked on.
async fn by_spus(
    thread: HostThread,
    block: BlockTarget,
    (number, threads): (u64, u64),
    bytes: u64,
) -> Result<(), HreError> {
    let hre: Arc<dyn Hre> = thread.endpoint().clone();
    let app = AppClient::find(hre, wire::APP_NAME).await?.number();
    let spus = u64::from(block.geometry.spus);
    let bank_bytes = bytes / spus;
    // Of two threads on a bank each has half of it; one alone has several banks, one after the other.
    let shares = threads.max(spus);
    for share in (number..shares).step_by(threads as usize) {
        let (spu, part, parts) = (share % spus, share / spus, shares / spus);
        let mut at = part * bank_bytes / parts;
        let end = (part + 1) * bank_bytes / parts;
        while at < end {
            let now = (end - at).min(REQUEST_BYTES);
            let place = |which: u64| block.geometry.base + which * bank_bytes + at;
            let of = |which| Place { spu: spu as u32, address: place(which) };
            let piece = Piece { to: place(2), x: of(0), y: of(1), bytes: now as u32 };
            let head = Saxpy { alpha: ALPHA, number_bytes: NUMBER.bytes(), chunk_bytes: CHUNK_BYTES, pieces: 1 };
            let payload = [&head.encode()[..], &piece.encode()].concat();
            let out = payload.len() as u64;
            let call = RpcCall { app, handler: handler::SAXPY, spu: Some(spu as u16), payload, ..RpcCall::default() };
            let endpoint = thread.direct.clone();
            let reply = thread.rpc(out, 0, endpoint.rpc(call)).await?;
            if reply.status != 0 {
                return Err(HreError::Answer(format!("the app answered with status {}", reply.status)));
            }
            at += now;
        }
    }
    Ok(())
}

fn ended(done: Option<Result<(), HreError>>) -> Result<(), ExperimentError> {
    let done = done.ok_or_else(|| ExperimentError::Other("a thread did not end".to_owned()))?;
    done.map_err(|error| ExperimentError::Other(format!("a thread failed: {error}")))
}

/// What vectors of so many bytes take.
fn measure(laboratory: &Laboratory, version: Version, threads: u64, bytes: u64) -> Result<Cost, ExperimentError> {
    let hardware = match version {
        Version::Hardware => Some(laboratory.in_hardware_of(Accelerator::MultiplyAdd)?),
        _ => None,
    };
    let laboratory = hardware.as_ref().unwrap_or(laboratory);
    let mut simulation = Simulation::new(&SimulationOptions { namespace_bytes: 3 * bytes, ..laboratory.options() })?;
    let Some(block) = simulation.block else { return Err(ExperimentError::Other("no block namespace".to_owned())) };
    let filled = simulation.host_thread("fill", move |thread| fill(thread, bytes))?;
    simulation.run()?;
    ended(filled.take())?;
    let mut outputs = Vec::new();
    for number in 0..threads {
        let body = move |thread: HostThread| async move {
            match version {
                Version::Io => by_host(thread, (number, threads), bytes).await,
                Version::Rpc | Version::Hardware => by_spus(thread, block, (number, threads), bytes).await,
            }
        };
        outputs.push(simulation.host_thread(&format!("saxpy {number}"), body)?);
    }
    let report: Report = simulation.run()?;
    outputs.into_iter().try_for_each(|output| ended(output.take()))?;
    let cost = Cost { seconds: report.elapsed_ns as f64 / 1e9, joules: report.joules() };
    let checked = simulation.host_thread("check", move |thread| check(thread, bytes))?;
    simulation.run()?;
    ended(checked.take())?;
    Ok(cost)
}

/// What vectors of 16 GB take: by the rate between the two sizes that were worked on.
fn extended(laboratory: &Laboratory, version: Version, threads: u64) -> Result<Cost, ExperimentError> {
    let [small, large] = VECTORS_BYTES;
    let first = measure(laboratory, version, threads, small)?;
    let second = measure(laboratory, version, threads, large)?;
    let share = (VECTOR_GB * GIGABYTE - small as f64) / (large - small) as f64;
    let line = |from: f64, to: f64| from + (to - from) * share;
    Ok(Cost { seconds: line(first.seconds, second.seconds), joules: line(first.joules, second.joules) })
}

fn run(laboratory: &Laboratory) -> Result<Findings, ExperimentError> {
    let mut findings = Findings::default();
    let (mut series, mut energies, mut io) = (Vec::new(), Vec::new(), None);
    for (name, version) in VERSIONS {
        let mut costs = Vec::new();
        for threads in [1, 2, 4, 8, THREADS] {
            costs.push((threads as f64, extended(laboratory, version, threads)?));
        }
        let Some((_, full)) = costs.last().copied() else { continue };
        let against = *io.get_or_insert(full);
        findings.notes.push(format!(
            "{name}, vectors of 16 GB, {THREADS} threads: {:.2} s, {:.0} J, {:.0} W on average, {:.0} Js (energy times delay): {:.2} times as fast as the host \
             version, {:.2} times less energy, {:.1} times less energy times delay. {:.2} J for a million numbers.",
            full.seconds,
            full.joules,
            full.joules / full.seconds,
            full.seconds * full.joules,
            against.seconds / full.seconds,
            against.joules / full.joules,
            against.joules * against.seconds / (full.joules * full.seconds),
            full.joules * 1e6 / (VECTOR_GB * GIGABYTE / 8.0)
        ));
        let points = |of: fn(&Cost) -> f64| costs.iter().map(|(threads, cost)| (*threads, of(cost))).collect();
        series.push(Series { name: name.to_owned(), points: points(|cost| cost.seconds), published: false });
        energies.push(Series { name: name.to_owned(), points: points(|cost| cost.joules), published: false });
    }
    for (file, title, y, series) in [
        ("xssd-saxpy-threads", "saxpy, vectors of 16 GB, by threads of the host", "s", series),
        ("xssd-saxpy-energy", "saxpy, vectors of 16 GB: energy by threads of the host", "J", energies),
    ] {
        findings.plots.push(Plot {
            file,
            title: title.to_owned(),
            x: "threads; of 8 SPUs each has one, or half of one".to_owned(),
            y: y.to_owned(),
            drawing: Drawing::Lines { series, log_x: true, log_y: true },
        });
    }
    findings.notes.push(
        "Vectors of 8 and 16 MiB are worked on number by number, and each number of the result is compared with what it is to be; larger ones are taken to go on at the \
         rate between the two. The three vectors begin at the same SPU, so that what belongs together lies in one bank, as the thesis has it. A gigabyte is 2^30 bytes, and \
         2^31 numbers of 16 GB are of 8 bytes."
            .to_owned(),
    );
    findings.notes.push(
        "Blind: the parameters (buffers of 4 kB, the accelerator's 16 bytes a cycle, the host's rate) were set from the thesis' description before the first run, and none was \
         changed after it; no published figure of saxpy is at hand here. The host's energy is one processor's and four memory modules', as in xssd-fgrep."
            .to_owned(),
    );
    findings.notes.push(super::HARDWARE_NOTE.to_owned());
    Ok(findings)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::preset::Preset;

    #[test]
    fn all_versions_add_what_is_there_and_each_is_faster_than_the_one_before() {
        let laboratory = Laboratory::new(Preset::load("bee3").unwrap(), 1);
        let costs = VERSIONS.map(|(_, version)| measure(&laboratory, version, 8, 1 << 20).unwrap());
        assert!(costs.is_sorted_by(|one, next| one.seconds > next.seconds && one.joules > next.joules));
        let again = measure(&laboratory, Version::Rpc, 8, 1 << 20).unwrap();
        assert_eq!((again.seconds, again.joules), (costs[1].seconds, costs[1].joules));
    }
}
