//! XSSD, section 4.3: the two-dimensional FFT of a matrix of N = 32768 rows and columns of complex numbers (single precision: 8 GB), out of core: rows, a
//! transposition in blocks, rows again.
//!
//! - **IO**: threads of the host read a row by Direct-IO's way, transform it, and write it; then they transpose blocks.
//! - **RPC**: rows by the SSD App `compute` (apps/compute) and the FFT accelerator, two rows on their way on each SPU; the host transposes.
//! - **RPC, transposed in the drive**: the same, and the SPUs transpose blocks of 64 by 64, most of which lie in other banks.
//! - **HW**: as RPC, by a state machine instead of the SPU's processor ([`Laboratory::in_hardware`]); the host transposes.
//!
//! What always holds: rows and blocks are the real ones, of the real length: a part of them is worked on, and the matrix is taken to go on at their rate. Each row is
//! compared with what the host makes of it, each block of a transposition with its source, else the experiment fails. Nothing is fitted: what the thesis does
//! not print is a constant below, marked "ours", and was set before the first run.

use super::{Drawing, Experiment, ExperimentError, Findings, Laboratory, Plot};
use crate::host::Path;
use crate::report::Report;
use crate::simulation::{Simulation, SimulationOptions};
use crate::thread::{BlockTarget, HostThread};
use compute_host::Number;
use compute_host::transform::{Transformer, transpose};
use compute_host::wire::{self, Batch, Place, Rows, Segment, Work, handler};
use std::sync::Arc;
use willow_device::clock::Accelerator;
use willow_host::hre::{Hre, RpcCall};
use willow_host::{AppClient, HreError};

/// See the module.
pub const EXPERIMENT: Experiment = Experiment {
    id: "xssd-fft",
    title: "2-D FFT of a matrix of 32768 by 32768 by the host, by SPUs, and by hardware",
    source: "XSSD 4.3",
    preset: "bee3",
    run,
};

/// Rows and columns of the matrix.
const SIZE: u64 = 32_768;
/// Bytes of a complex number, of single precision. Ours: the thesis does not say.
const ELEMENT_BYTES: u64 = 8;
const ROW_BYTES: u64 = SIZE * ELEMENT_BYTES;
/// Bytes of one read or write of the host: a row is read by two. Ours, as in `xssd-fgrep`.
const READ_BYTES: u32 = 128 << 10;
/// Operations a second of a processor of the host in a transform of that length, which takes 5 N log2 N of them. Ours: of a good library in single
/// precision; eight processors do several times the link.
const OPERATIONS_PER_S: u64 = 8_000_000_000;
/// Bytes a second that a processor of the host transposes in its memory. Ours.
const TRANSPOSE_BYTES_PER_S: u64 = 1_000_000_000;
/// Rows and columns of a block that a thread of the host transposes: eight MiB. Ours; a row of it is one stripe.
const BLOCK: u64 = 1024;
/// Rows and columns of a block that an SPU transposes, which fits its data memory twice but for SPU-OS' part. Ours.
const TILE: u64 = 32;
/// Threads, as the thesis has them at most.
const THREADS: u64 = 16;
/// Rows that are worked on in full, of which the second is so much larger; blocks of the host, and tiles in one request of the SPUs.
const ROWS: [u64; 2] = [32, 64];
const BLOCKS: [u64; 2] = [16, 32];
const TILES: [u64; 2] = [512, 1024];
/// Tiles of one request.
const TILES_AT_ONCE: u64 = 4;

/// A step of the transform.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    RowsByHost,
    RowsBySpus,
    TransposeByHost,
    TransposeBySpus,
}

/// What a step, or all of them, takes.
#[derive(Clone, Copy, Default)]
struct Cost {
    seconds: f64,
    joules: f64,
}

impl Cost {
    fn and(self, other: Cost, times: f64) -> Cost {
        Cost { seconds: self.seconds + other.seconds * times, joules: self.joules + other.joules * times }
    }
}

/// Numbers of the matrix, from one on.
fn numbers(first: u64, count: u64) -> Vec<u8> {
    let part = |place: u64| {
        let state = place.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 40) as f32 / 16_777_216.0 - 0.5).to_le_bytes()
    };
    (2 * first..2 * (first + count)).flat_map(part).collect()
}

/// Where a byte of what SPU `spu` has lies in the namespace, so that it has all of a row: `at` counts the bytes of its bank.
fn namespace_offset(block: &BlockTarget, spu: u64, at: u64) -> u64 {
    let (stripe, spus) = (u64::from(block.geometry.stripe_bytes), u64::from(block.geometry.spus));
    (at / stripe * spus + spu) * stripe + at % stripe
}

/// Where row `row` lies: on an SPU as a whole, and its first byte there.
fn row_place(block: &BlockTarget, row: u64) -> (u64, u64) {
    let spus = u64::from(block.geometry.spus);
    (row % spus, row / spus * ROW_BYTES)
}

async fn send(thread: &HostThread, app: u16, spu: u64, payload: Vec<u8>) -> Result<(), HreError> {
    let out = payload.len() as u64;
    let call = RpcCall { app, handler: handler::ROWS, spu: Some(spu as u16), payload, ..RpcCall::default() };
    let endpoint = thread.direct.clone();
    match thread.rpc(out, 0, endpoint.rpc(call)).await?.status {
        0 => Ok(()),
        status => Err(HreError::Answer(format!("the app answered with status {status}"))),
    }
}

async fn app_of(thread: &HostThread) -> Result<u16, HreError> {
    let hre: Arc<dyn Hre> = thread.endpoint().clone();
    Ok(AppClient::find(hre, wire::APP_NAME).await?.number())
}

/// Rows by this thread: of the SPUs' version each lies in one bank.
async fn rows(
    thread: HostThread,
    block: BlockTarget,
    (step, number, threads): (Step, u64, u64),
    count: u64,
) -> Result<(), HreError> {
    let mut transformer = Transformer::default();
    let app = app_of(&thread).await?;
    for row in number * count / threads..(number + 1) * count / threads {
        if step == Step::RowsByHost {
            let mut numbers = Vec::with_capacity(ROW_BYTES as usize);
            for at in (0..ROW_BYTES).step_by(READ_BYTES as usize) {
                numbers.extend(thread.read(Path::User, row * ROW_BYTES + at, READ_BYTES).await?);
            }
            let operations = 5 * SIZE * u64::from(SIZE.ilog2());
            thread.compute(operations * 1_000_000_000 / OPERATIONS_PER_S, "transform").await;
            transformer.run(Number::Single, (SIZE as usize, false), &mut numbers);
            for (place, part) in numbers.chunks(READ_BYTES as usize).enumerate() {
                let at = row * ROW_BYTES + place as u64 * u64::from(READ_BYTES);
                thread.write(Path::User, at, part.to_vec()).await?;
            }
        }
    }
    if step == Step::RowsBySpus {
        // Each thread has half of a bank's rows: a request has several, so that one is read while the one before is transformed.
        let spus = u64::from(block.geometry.spus);
        let (spu, part, parts) = (number % spus, number / spus, threads / spus);
        let own = count / spus;
        let own: Vec<u64> = (part * own / parts..(part + 1) * own / parts).collect();
        let head = Rows {
            work: Work::Forward,
            real: false,
            number_bytes: 4,
            count: SIZE as u32,
            batch_bytes: ROW_BYTES as u32,
            batches: own.len() as u32,
        };
        let mut payload = head.encode().to_vec();
        for place in own {
            let address = block.geometry.base + place * ROW_BYTES;
            let segment = Segment { at: Place { spu: spu as u32, address }, bytes: ROW_BYTES as u32 };
            payload.extend(Batch { rows: 1, sources: 1, destinations: 1 }.encode());
            payload.extend([segment.encode(), segment.encode()].concat());
        }
        send(&thread, app, spu, payload).await?;
    }
    Ok(())
}

/// Blocks by this thread: of a part of the matrix that is one block high. A block's row is one stripe; its transposed one lies behind all of them.
async fn blocks(thread: HostThread, (number, threads): (u64, u64), count: u64) -> Result<(), HreError> {
    let row_bytes = BLOCK * ELEMENT_BYTES;
    let bytes = BLOCK * row_bytes;
    for block in number * count / threads..(number + 1) * count / threads {
        let mut from = Vec::with_capacity(bytes as usize);
        for row in 0..BLOCK {
            from.extend(thread.read(Path::User, block * bytes + row * row_bytes, row_bytes as u32).await?);
        }
        thread.compute(bytes * 1_000_000_000 / TRANSPOSE_BYTES_PER_S, "transpose").await;
        let mut to = vec![0; bytes as usize];
        transpose(&from, &mut to, ELEMENT_BYTES as usize, (BLOCK as usize, BLOCK as usize));
        for (row, part) in to.chunks(row_bytes as usize).enumerate() {
            let at = (count + block) * bytes + row as u64 * row_bytes;
            thread.write(Path::User, at, part.to_vec()).await?;
        }
    }
    Ok(())
}

/// A tile's row, or column: where it lies. Rows of the matrix are spread over the banks, and so are those of the transposed one.
fn tile_segment(block: &BlockTarget, tile: u64, line: u64, begin: u64) -> Segment {
    let spus = u64::from(block.geometry.spus);
    let line_bytes = TILE * ELEMENT_BYTES;
    let address = block.geometry.base + begin + (tile * TILE + line) / spus * line_bytes;
    Segment { at: Place { spu: ((tile + line) % spus) as u32, address }, bytes: line_bytes as u32 }
}

/// Where that lies in the namespace.
fn tile_offset(block: &BlockTarget, tile: u64, line: u64, begin: u64) -> u64 {
    let Segment { at, .. } = tile_segment(block, tile, line, begin);
    namespace_offset(block, at.spu.into(), at.address - block.geometry.base)
}

/// Tiles by the SPUs, as this thread asks for them.
async fn tiles(
    thread: HostThread,
    block: BlockTarget,
    (number, threads): (u64, u64),
    count: u64,
) -> Result<(), HreError> {
    let app = app_of(&thread).await?;
    let spus = u64::from(block.geometry.spus);
    let begin = count * TILE / spus * TILE * ELEMENT_BYTES;
    let own: Vec<u64> = (number * count / threads..(number + 1) * count / threads).collect();
    for some in own.chunks(TILES_AT_ONCE as usize) {
        let head = Rows {
            work: Work::Transpose,
            real: false,
            number_bytes: 4,
            count: TILE as u32,
            batch_bytes: (TILE * TILE * ELEMENT_BYTES) as u32,
            batches: some.len() as u32,
        };
        let mut payload = head.encode().to_vec();
        for tile in some {
            let (sources, destinations) = (TILE as u16, TILE as u16);
            payload.extend(Batch { rows: TILE as u32, sources, destinations }.encode());
            for begin in [0, begin] {
                payload.extend((0..TILE).flat_map(|line| tile_segment(&block, *tile, line, begin).encode()));
            }
        }
        send(&thread, app, number % spus, payload).await?;
    }
    Ok(())
}

/// Fills what a step reads.
async fn fill(thread: HostThread, block: BlockTarget, step: Step, count: u64) -> Result<(), HreError> {
    match step {
        Step::RowsByHost => {
            for row in 0..count {
                thread.write(Path::Bare, row * ROW_BYTES, numbers(row * SIZE, SIZE)).await?;
            }
        }
        Step::RowsBySpus => {
            for row in 0..count {
                let (spu, begin) = row_place(&block, row);
                let stripe = u64::from(block.geometry.stripe_bytes);
                for (place, part) in numbers(row * SIZE, SIZE).chunks(stripe as usize).enumerate() {
                    let at = namespace_offset(&block, spu, begin + place as u64 * stripe);
                    thread.write(Path::Bare, at, part.to_vec()).await?;
                }
            }
        }
        Step::TransposeByHost => {
            for at in 0..count * BLOCK {
                let line = numbers(at * BLOCK, BLOCK);
                thread.write(Path::Bare, at * BLOCK * ELEMENT_BYTES, line).await?;
            }
        }
        Step::TransposeBySpus => {
            // Lines are shorter than a block: all of them at once.
            let mut image = vec![0; (count * TILE * TILE * ELEMENT_BYTES) as usize];
            for tile in 0..count {
                for line in 0..TILE {
                    let at = tile_offset(&block, tile, line, 0) as usize;
                    let numbers = numbers((tile * TILE + line) * TILE, TILE);
                    image[at..at + numbers.len()].copy_from_slice(&numbers);
                }
            }
            for (place, part) in image.chunks(READ_BYTES as usize).enumerate() {
                thread.write(Path::Bare, place as u64 * u64::from(READ_BYTES), part.to_vec()).await?;
            }
        }
    }
    Ok(())
}

/// Compares what a step has left with what it is to be.
async fn check(thread: HostThread, block: BlockTarget, step: Step, count: u64) -> Result<(), HreError> {
    let wrong = || HreError::Answer("a step of the transform left something else".to_owned());
    let mut transformer = Transformer::default();
    let stripe = u64::from(block.geometry.stripe_bytes);
    match step {
        Step::RowsByHost | Step::RowsBySpus => {
            for row in 0..count {
                let mut wanted = numbers(row * SIZE, SIZE);
                transformer.run(Number::Single, (SIZE as usize, false), &mut wanted);
                let (spu, begin) = row_place(&block, row);
                for (place, part) in wanted.chunks(stripe as usize).enumerate() {
                    let at = place as u64 * stripe;
                    let at = match step {
                        Step::RowsByHost => row * ROW_BYTES + at,
                        _ => namespace_offset(&block, spu, begin + at),
                    };
                    if thread.read(Path::Bare, at, stripe as u32).await? != part {
                        return Err(wrong());
                    }
                }
            }
        }
        Step::TransposeByHost | Step::TransposeBySpus => {
            let (side, begin) = match step {
                Step::TransposeByHost => (BLOCK, count * BLOCK * BLOCK * ELEMENT_BYTES),
                _ => (TILE, count * TILE * TILE * ELEMENT_BYTES),
            };
            let mut image = Vec::new();
            for at in (0..begin).step_by(READ_BYTES as usize) {
                image.extend(thread.read(Path::Bare, begin + at, READ_BYTES).await?);
            }
            for one in 0..count {
                let from = numbers(one * side * side, side * side);
                let mut wanted = vec![0; from.len()];
                transpose(&from, &mut wanted, ELEMENT_BYTES as usize, (side as usize, side as usize));
                let line_bytes = (side * ELEMENT_BYTES) as usize;
                for (line, part) in (0..side).zip(wanted.chunks(line_bytes)) {
                    let at = match step {
                        Step::TransposeByHost => (one * side + line) as usize * line_bytes,
                        _ => tile_offset(&block, one, line, 0) as usize,
                    };
                    if image[at..at + line_bytes] != *part {
                        return Err(wrong());
                    }
                }
            }
        }
    }
    Ok(())
}

fn ended(done: Option<Result<(), HreError>>) -> Result<(), ExperimentError> {
    let done = done.ok_or_else(|| ExperimentError::Other("a thread did not end".to_owned()))?;
    done.map_err(|error| ExperimentError::Other(format!("a thread failed: {error}")))
}

/// What a step takes for so many rows, blocks or tiles.
fn measure(laboratory: &Laboratory, step: Step, count: u64) -> Result<Cost, ExperimentError> {
    let bytes = match step {
        Step::RowsByHost | Step::RowsBySpus => count * ROW_BYTES,
        Step::TransposeByHost => 2 * count * BLOCK * BLOCK * ELEMENT_BYTES,
        Step::TransposeBySpus => 2 * count * TILE * TILE * ELEMENT_BYTES,
    };
    let namespace_bytes = bytes.next_multiple_of(1 << 20) + (1 << 20);
    let mut simulation = Simulation::new(&SimulationOptions { namespace_bytes, ..laboratory.options() })?;
    let Some(block) = simulation.block else { return Err(ExperimentError::Other("no block namespace".to_owned())) };
    let filled = simulation.host_thread("fill", move |thread| fill(thread, block, step, count))?;
    simulation.run()?;
    ended(filled.take())?;
    let mut outputs = Vec::new();
    for number in 0..THREADS {
        let body = move |thread: HostThread| async move {
            match step {
                Step::RowsByHost | Step::RowsBySpus => rows(thread, block, (step, number, THREADS), count).await,
                Step::TransposeByHost => blocks(thread, (number, THREADS), count).await,
                Step::TransposeBySpus => tiles(thread, block, (number, THREADS), count).await,
            }
        };
        outputs.push(simulation.host_thread(&format!("fft {number}"), body)?);
    }
    let report: Report = simulation.run()?;
    outputs.into_iter().try_for_each(|output| ended(output.take()))?;
    let cost = Cost { seconds: report.elapsed_ns as f64 / 1e9, joules: report.joules() };
    let checked = simulation.host_thread("check", move |thread| check(thread, block, step, count))?;
    simulation.run()?;
    ended(checked.take())?;
    Ok(cost)
}

/// What a step takes for the whole matrix, at the rate between two counts.
fn whole(laboratory: &Laboratory, step: Step) -> Result<Cost, ExperimentError> {
    let (counts, all) = match step {
        Step::RowsByHost | Step::RowsBySpus => (ROWS, SIZE),
        Step::TransposeByHost => (BLOCKS, (SIZE / BLOCK).pow(2)),
        Step::TransposeBySpus => (TILES, (SIZE / TILE).pow(2)),
    };
    let [small, large] = counts;
    let (first, second) = (measure(laboratory, step, small)?, measure(laboratory, step, large)?);
    let share = (all - small) as f64 / (large - small) as f64;
    let line = |from: f64, to: f64| from + (to - from) * share;
    Ok(Cost { seconds: line(first.seconds, second.seconds), joules: line(first.joules, second.joules) })
}

fn run(laboratory: &Laboratory) -> Result<Findings, ExperimentError> {
    let hardware = laboratory.in_hardware_of(Accelerator::Fft)?;
    let rows_io = whole(laboratory, Step::RowsByHost)?;
    let rows_rpc = whole(laboratory, Step::RowsBySpus)?;
    let rows_hw = whole(&hardware, Step::RowsBySpus)?;
    let by_host = whole(laboratory, Step::TransposeByHost)?;
    let by_spus = whole(laboratory, Step::TransposeBySpus)?;
    let versions = [
        ("2D-FFT-IO", rows_io, by_host),
        ("2D-FFT-RPC", rows_rpc, by_host),
        ("2D-FFT-RPC, transposed in the drive", rows_rpc, by_spus),
        ("2D-FFT-HW", rows_hw, by_host),
    ];
    let mut findings = Findings::default();
    let io = rows_io.and(rows_io, 1.0).and(by_host, 1.0);
    let mut bars = Vec::new();
    for (name, rows, transposition) in versions {
        let all = rows.and(rows, 1.0).and(transposition, 1.0);
        findings.notes.push(format!(
            "{name}, N = {SIZE}: {:.1} s (rows {:.1} s twice, transposition {:.1} s), {:.0} J, {:.0} W on average, {:.0} Js (energy times delay): {:.2} times as fast as \
             the host version (rows alone {:.2} times), {:.2} times less energy.",
            all.seconds,
            rows.seconds,
            transposition.seconds,
            all.joules,
            all.joules / all.seconds,
            all.joules * all.seconds,
            io.seconds / all.seconds,
            rows_io.seconds / rows.seconds,
            io.joules / all.joules
        ));
        bars.push((name.to_owned(), vec![2.0 * rows.seconds, transposition.seconds]));
    }
    findings.plots.push(Plot {
        file: "xssd-fft",
        title: format!("2-D FFT, N = {SIZE}, {THREADS} threads"),
        x: "version".to_owned(),
        y: "s".to_owned(),
        drawing: Drawing::Bars { parts: vec!["rows, twice".to_owned(), "transposition".to_owned()], bars },
    });
    findings.notes.push(format!(
        "{} and {} rows of full length are transformed and compared, {} and {} blocks of {BLOCK} by {BLOCK} transposed by the host, {} and {} tiles of {TILE} by {TILE} by the \
         SPUs; the matrix is taken to go on at the rate between the two. Of the SPUs' versions each row lies in one bank, as the thesis splits them; of tiles the lines lie \
         in all banks in turn.",
        ROWS[0], ROWS[1], BLOCKS[0], BLOCKS[1], TILES[0], TILES[1]
    ));
    findings.notes.push(
        "A row of 256 KiB does not fit the prototype's data memory of 32 kB: it is taken to lie in a memory of the accelerator (two rows of it), as XSSD 3.3 has a \"memory block \
         local to the SPU\" beside fgrep's kernel. The accelerator is a pipeline that one number enters each cycle of 250 MHz."
            .to_owned(),
    );
    findings.notes.push(
        "Blind: the parameters were set from the thesis' description before the first run, and none was changed after it; no published figure of the FFT is at hand here. Single \
         precision is ours. The host's energy is one processor's and four memory modules', as in xssd-fgrep."
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
    fn each_step_leaves_what_it_is_to_and_rows_are_faster_on_the_spus_and_faster_in_hardware() {
        let laboratory = Laboratory::new(Preset::load("bee3").unwrap(), 1);
        let hardware = laboratory.in_hardware_of(Accelerator::Fft).unwrap();
        let io = measure(&laboratory, Step::RowsByHost, 16).unwrap();
        let rpc = measure(&laboratory, Step::RowsBySpus, 16).unwrap();
        let in_hardware = measure(&hardware, Step::RowsBySpus, 16).unwrap();
        let of = [io, rpc, in_hardware];
        assert!(of.is_sorted_by(|one, next| one.seconds > next.seconds && one.joules > next.joules));
        for (step, count) in [(Step::TransposeByHost, 1), (Step::TransposeBySpus, 32)] {
            assert!(measure(&laboratory, step, count).unwrap().seconds > 0.0);
        }
    }
}
