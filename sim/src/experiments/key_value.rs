//! Willow, section 4.5, and XSSD, section 4.4: MemcacheDB with the Key-Value app in the device against MemcacheDB on BerkeleyDB, 16-byte
//! keys, 1024-byte values.
//!
//! In the device: the real Key-Value app, called by RPC from user space. On the host: BerkeleyDB is modelled by the pattern of
//! I/O that XSSD describes: the index is cached, a get reads an element of a chain (key, value and header: three sectors), a put reads
//! one and writes one, by Base-IO's way or by Direct-IO's. MemcacheDB's own work for a request (client, protocol, server) is processor time of the host, the same in all versions,
//! fitted to the published gets of the host version; BerkeleyDB's work for a put is fitted to its puts.

#[path = "key_value/chains.rs"]
pub(super) mod chains;

use super::{Drawing, Experiment, ExperimentError, Findings, Laboratory, Plot, Series};
use crate::host::Path;
use crate::operation::key_of;
use crate::random::Random;
use crate::report::Report;
use crate::simulation::{Simulation, SimulationOptions};
use crate::thread::HostThread;
use crate::workload::KvWorkload;
use std::sync::Arc;
use willow_host::hre::Hre;
use willow_host::{HreError, KvClient, StoreCondition};

/// See the module.
pub const EXPERIMENT: Experiment = Experiment {
    id: "key-value",
    title: "gets and puts of a key-value store in the device and on the host",
    source: "Willow 4.5, XSSD 4.4",
    preset: "bee3",
    run,
};

const KEYS: u64 = 2000;
const VALUE_BYTES: u32 = 1024;
/// An element: key, value and header, in whole sectors.
const ELEMENT_BYTES: u32 = 1536;
/// Operations of each thread.
const OPERATIONS: u64 = 60;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Version {
    /// The app in the device.
    Device,
    /// BerkeleyDB, by that way; a get reads a chain of so many.
    Host(Path, u64),
}

#[derive(Clone, Copy)]
pub(super) struct Costs {
    request_ns: u64,
    put_ns: u64,
}

/// What a run gave.
#[derive(Clone, Copy)]
pub(super) struct Measured {
    /// Operations a second.
    pub rate: f64,
    /// How long an operation keeps an SPU's processor, microseconds.
    pub spu_us: f64,
    /// Energy of an operation, joules.
    pub joules: f64,
}

impl Measured {
    fn of(report: &Report, operations: u64) -> Measured {
        let busy: f64 = (report.resources.iter())
            .filter(|resource| resource.name.starts_with("SPU") && resource.name.ends_with("processor"))
            .map(|resource| resource.utilization)
            .sum();
        let (operations, elapsed_us) = (operations as f64, report.elapsed_ns as f64 / 1000.0);
        Measured {
            rate: operations / elapsed_us * 1e6,
            spu_us: busy * elapsed_us / operations,
            joules: report.joules() / operations,
        }
    }
}

impl Costs {
    pub fn of(laboratory: &Laboratory) -> Result<Self, ExperimentError> {
        let nanoseconds = |name| Ok::<u64, ExperimentError>(laboratory.workload(name)?.round().max(0.0) as u64);
        Ok(Costs { request_ns: nanoseconds("memcachedb_ns")?, put_ns: nanoseconds("berkeleydb_put_ns")? })
    }
}

async fn client(
    thread: HostThread,
    version: Version,
    puts_percent: u64,
    costs: Costs,
    mut random: Random,
) -> Result<(), HreError> {
    let kv = match version {
        Version::Device => {
            let hre: Arc<dyn Hre> = thread.endpoint().clone();
            Some(KvClient::open_only(hre).await?)
        }
        Version::Host(..) => None,
    };
    let elements = thread.block_bytes() / u64::from(ELEMENT_BYTES);
    for _ in 0..OPERATIONS {
        let put = match puts_percent {
            0 => false,
            100 => true,
            percent => random.below(100) < percent,
        };
        thread.compute(costs.request_ns, "MemcacheDB").await;
        let key = key_of(random.below(KEYS));
        match (version, &kv) {
            (Version::Device, Some(kv)) if put => {
                let store = kv.store(key.as_bytes(), vec![7; VALUE_BYTES as usize], StoreCondition::Always);
                thread.rpc(VALUE_BYTES.into(), 0, store).await?;
            }
            (Version::Device, Some(kv)) => {
                thread.rpc(0, VALUE_BYTES.into(), kv.retrieve(key.as_bytes())).await?;
            }
            (Version::Host(path, chain), _) => {
                for _ in 0..chain {
                    thread.read(path, random.below(elements) * u64::from(ELEMENT_BYTES), ELEMENT_BYTES).await?;
                }
                if put {
                    thread.compute(costs.put_ns, "BerkeleyDB").await;
                    let element = vec![7; ELEMENT_BYTES as usize];
                    thread.write(path, random.below(elements) * u64::from(ELEMENT_BYTES), element).await?;
                }
            }
            (Version::Device, None) => {}
        }
    }
    Ok(())
}

/// Runs a version.
pub(super) fn measure(
    laboratory: &Laboratory,
    version: Version,
    puts_percent: u64,
    threads: u64,
) -> Result<Measured, ExperimentError> {
    let costs = Costs::of(laboratory)?;
    let device = version == Version::Device;
    let mut simulation = Simulation::new(&SimulationOptions {
        namespace_bytes: if device { 0 } else { 64 << 20 },
        kv_namespace_bytes: if device { 64 << 20 } else { 0 },
        ..laboratory.options()
    })?;
    if device {
        let load = KvWorkload {
            keys: KEYS,
            value_bytes: VALUE_BYTES,
            load: true,
            queue_depth: 16,
            path: Path::Bare,
            ..KvWorkload::default()
        };
        let (generator, source) = load.generator().map_err(ExperimentError::Other)?;
        simulation.generator(generator, source)?;
        simulation.run()?;
    }
    let random = Random(laboratory.seed);
    let mut outputs = Vec::new();
    for number in 0..threads {
        let random = random.part(number);
        let body = move |thread| client(thread, version, puts_percent, costs, random);
        outputs.push(simulation.host_thread(&format!("client {number}"), body)?);
    }
    let report = simulation.run()?;
    for output in outputs {
        let ended = output.take().unwrap_or(Ok(()));
        ended.map_err(|error| ExperimentError::Other(format!("a client failed: {error}")))?;
    }
    Ok(Measured::of(&report, threads * OPERATIONS))
}

fn rate(laboratory: &Laboratory, version: Version, puts_percent: u64, threads: u64) -> Result<f64, ExperimentError> {
    Ok(measure(laboratory, version, puts_percent, threads)?.rate)
}

fn run(laboratory: &Laboratory) -> Result<Findings, ExperimentError> {
    let mut findings = Findings::default();
    if laboratory.only.is_some() {
        for (metric, puts_percent) in [("io_get", 0), ("io_put", 100)] {
            if laboratory.wants("xssd-kvs", metric) {
                findings.find(
                    "xssd-kvs",
                    metric,
                    rate(laboratory, Version::Host(Path::User, 1), puts_percent, 16)? / 1000.0,
                );
            }
        }
        return Ok(findings);
    }
    let versions = [
        ("Key-Value in the device", Version::Device),
        ("BerkeleyDB, Direct-IO", Version::Host(Path::User, 1)),
        ("BerkeleyDB, Base-IO", Version::Host(Path::File, 1)),
    ];
    for (put, puts_percent) in [(false, 0), (true, 100)] {
        let mut series = Vec::new();
        let mut at_16 = Vec::new();
        for (name, version) in versions {
            let mut points = Vec::new();
            for threads in [1, 2, 4, 8, 16] {
                let rate = rate(laboratory, version, puts_percent, threads)?;
                points.push((threads as f64, rate / 1000.0));
                if threads == 16 {
                    at_16.push(rate);
                }
            }
            series.push(Series { name: name.to_owned(), points, published: false });
        }
        let Measured { spu_us, .. } = measure(laboratory, Version::Device, puts_percent, 16)?;
        let (spus, rate) = (f64::from(laboratory.preset.device.spus), if put { 512e3 } else { 436e3 });
        findings.notes.push(format!(
            "A {} keeps an SPU's processor for {spu_us:.1} us, {:.0} cycles, where the published rate leaves at most {:.1} us, if the SPUs \
             are all busy all the time.",
            if put { "put" } else { "get" },
            spu_us * laboratory.preset.parameter("spu.clock_hz").unwrap_or_default() / 1e6,
            spus * 1e6 / rate
        ));
        let &[device, direct, base] = at_16.as_slice() else { continue };
        let (io, rpc) = if put { ("io_put", "rpc_put") } else { ("io_get", "rpc_get") };
        findings.find("xssd-kvs", io, direct / 1000.0);
        findings.find("xssd-kvs", rpc, device / 1000.0);
        findings.find("willow-kv", if put { "put_over_direct" } else { "get_over_direct" }, device / direct);
        findings.find("willow-kv", if put { "put_over_base" } else { "get_over_base" }, device / base);
        let published = if put { [256.0, 512.0] } else { [403.0, 436.0] };
        for (name, value) in ["host version, published", "in the device, published"].into_iter().zip(published) {
            series.push(Series { name: name.to_owned(), points: vec![(16.0, value)], published: true });
        }
        findings.plots.push(Plot {
            file: if put { "key-value-puts" } else { "key-value-gets" },
            title: format!("{} by threads", if put { "puts" } else { "gets" }),
            x: "threads".to_owned(),
            y: "thousand a second".to_owned(),
            drawing: Drawing::Lines { series, log_x: true, log_y: false },
        });
    }
    // Willow's update-heavy workload has 50 puts in a hundred, its read-heavy one 5.
    let mut mixes = Vec::new();
    for (name, version) in versions {
        let mut points = Vec::new();
        for puts_percent in [0, 5, 50, 100] {
            points.push((puts_percent as f64, rate(laboratory, version, puts_percent, 16)? / 1000.0));
        }
        mixes.push(Series { name: name.to_owned(), points, published: false });
    }
    let rates = |percent: f64| {
        let rate = |series: &Series| series.points.iter().find(|point| point.0 == percent).map_or(0.0, |point| point.1);
        mixes.iter().map(rate).collect::<Vec<_>>()
    };
    for (name, percent) in [("Read-heavy, 5", 5.0), ("Update-heavy, 50", 50.0)] {
        if let [device, direct, base] = rates(percent)[..] {
            findings.notes.push(format!(
                "{name} puts in a hundred: {device:.0} thousand a second in the device, {:.2} times Direct-IO's {direct:.0} and {:.2} times \
                 Base-IO's {base:.0}.",
                device / direct,
                device / base
            ));
        }
    }
    findings.plots.push(Plot {
        file: "key-value-mixes",
        title: "gets and puts mixed, 16 threads".to_owned(),
        x: "puts in a hundred".to_owned(),
        y: "thousand a second".to_owned(),
        drawing: Drawing::Lines { series: mixes, log_x: false, log_y: false },
    });
    // By chain length: what each step of a chain costs the host version, which reads every element, and the app, which reads its header.
    let mut chains = versions.map(|(name, _)| Series { name: name.to_owned(), points: Vec::new(), published: false });
    for length in [1, 2, 4, 8] {
        for (series, (_, version)) in chains.iter_mut().zip(versions) {
            let rate = match version {
                Version::Device => chains::measure(laboratory, (true, chains::Operation::Get), length, 16)?.rate,
                Version::Host(path, _) => rate(laboratory, Version::Host(path, length), 0, 16)?,
            };
            series.points.push((length as f64, rate / 1000.0));
        }
    }
    let ratio = |to: usize| {
        let ratios = chains[0].points.iter().zip(&chains[to].points);
        ratios.map(|(device, host)| format!("{:.2}", device.1 / host.1)).collect::<Vec<_>>().join(", ")
    };
    findings.notes.push(format!(
        "Where each get goes through a chain of 1, 2, 4, 8 pairs, the app in the device does {} times the gets of the version on Direct-IO, and \
         {} times those of the one on Base-IO. The papers do not print their chains' length; the figures above are for about one pair a chain.",
        ratio(1),
        ratio(2)
    ));
    findings.plots.push(Plot {
        file: "key-value-chain",
        title: "gets by chain length".to_owned(),
        x: "pairs of a chain up to the one that is wanted".to_owned(),
        y: "thousand a second".to_owned(),
        drawing: Drawing::Lines { series: chains.to_vec(), log_x: true, log_y: false },
    });
    let request_ns = laboratory.workload("memcachedb_ns")?;
    let processors = laboratory.preset.parameter("host.processors").unwrap_or_default();
    findings.notes.push(format!(
        "The host bounds every version: {processors:.0} processors at {request_ns:.0} ns of MemcacheDB a request do {:.0} thousand a second, which \
         is less than the published 436 thousand gets and 512 thousand puts by the app in the device. One published figure, the host \
         version's gets, cannot tell MemcacheDB's time from that of BerkeleyDB's look-up and locks, which the version in the device \
         does not have; all of it is MemcacheDB's here, and rates of the version in the device are too low by that, whatever its SPUs do: \
         puts would miss even if the SPUs took no time. A request then waits for its SPU while others have the same one: 16 threads \
         on 8 SPUs, chosen by hash.",
        processors * 1e6 / request_ns
    ));
    findings.notes.push(
        "BerkeleyDB and MemcacheDB are modelled by their I/O and by processor time that is fitted to the host version's published rates; \
         the app in the device is the real one, which keeps pairs whole over power cuts and runs in a sandbox. BerkeleyDB's locks are not modelled: where it waits for them, the paper's host version \
         loses more on Base-IO, which holds them longer, than this model says. Nor are the several dependent accesses that Willow 4.5 speaks of: how \
         many a get of the host version makes was not printed, it is one here, and each more costs Base-IO most. Nothing is bent to the ratios."
            .to_owned(),
    );
    Ok(findings)
}
