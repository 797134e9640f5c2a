//! `willow bench kv`: puts and gets of key-value pairs, in a namespace made for it and deleted afterwards, or in one that is there and stays.

use super::CommonOptions;
use super::engine::{self, Driver, Operation, Plan, Random};
use super::in_process::InProcess;
use super::report::{Latency, Report, Row};
use super::shm::Shm;
use super::tcp::Tcp;
use crate::cpu;
use crate::failure::{Context, Outcome, fail};
use crate::size::Size;
use crate::target::Target;
use hdrhistogram::Histogram;
use std::time::Instant;
use willow_device::{BuiltInApp, DeviceConfig};

/// Bytes that a pair takes beside its value, at most, for the size of the namespace.
const PAIR_OVERHEAD_BYTES: u64 = 512;

/// Flags of `willow bench kv`.
#[derive(Clone, Debug, clap::Args)]
pub struct KvOptions {
    #[command(flatten)]
    pub common: CommonOptions,
    /// Pairs to load before anything is measured
    #[arg(long, default_value_t = 100_000)]
    pub pairs: u64,
    /// The namespace to use, whose pairs stay [default: one of its own, which is deleted afterwards]
    #[arg(long, conflicts_with = "in_process")]
    pub nsid: Option<u32>,
    /// The pairs are in that namespace already: an earlier run has loaded them
    #[arg(long, requires = "nsid")]
    pub loaded: bool,
    /// Bytes of a value, at most 1M
    #[arg(long, default_value = "1K")]
    pub value: Size,
    /// Parts of gets in a hundred, one measurement each: 100 gets only, 0 puts only
    #[arg(long, value_delimiter = ',', default_value = "100,0", value_name = "PERCENT,...")]
    pub mix: Vec<u8>,
}

impl KvOptions {
    fn check(&self) -> Outcome<()> {
        self.common.check()?;
        if self.pairs == 0 || self.pairs > 1_000_000_000 {
            fail!("--pairs is {}, must be 1 to 1,000,000,000", self.pairs);
        }
        if self.value.0 > 1 << 20 {
            fail!("--value is {}, must be at most 1M", self.value);
        }
        if self.mix.is_empty() || self.mix.iter().any(|percent| *percent > 100) {
            fail!("--mix takes numbers from 0 to 100");
        }
        Ok(())
    }

    /// Room for all pairs, twice over.
    fn namespace_bytes(&self) -> u64 {
        (self.pairs * (self.value.0 + PAIR_OVERHEAD_BYTES) * 2).max(64 << 20)
    }

    fn slots(&self) -> usize {
        self.common.depth_max().max(LOAD_DEPTH)
    }
}

/// Puts under way while loading.
const LOAD_DEPTH: usize = 64;

/// Runs it.
pub fn run(options: &KvOptions) -> Outcome<Report> {
    options.check()?;
    let buffer_bytes = (options.value.0 as usize).max(1);
    let rows = if options.common.in_process {
        let config = DeviceConfig {
            namespace_bytes: 0,
            kv_namespace_bytes: options.namespace_bytes(),
            ..DeviceConfig::default()
        };
        let store = crate::serve::ram_store(&config, None)?;
        let apps = vec![BuiltInApp::Wasm(willow_apps::BASE_IO_WASM), BuiltInApp::Wasm(willow_apps::KEY_VALUE_WASM)];
        let mut driver = InProcess::new(config, store, apps, options.slots(), buffer_bytes)?;
        measure(options, &mut driver, "in-process", None)?
    } else if let Target::Socket(path) = options.common.target.resolve()? {
        let bytes = options.namespace_bytes();
        let mut driver = Shm::key_value(&options.common, &path, options.nsid, bytes, options.slots(), buffer_bytes)?;
        let pid = driver.target_pid();
        let rows = measure(options, &mut driver, "shared memory", pid);
        driver.finish()?;
        rows?
    } else {
        let bytes = options.namespace_bytes();
        let mut driver = Tcp::key_value(&options.common, options.nsid, bytes, options.slots(), buffer_bytes)?;
        let pid = driver.target_pid();
        let rows = measure(options, &mut driver, "tcp", pid);
        driver.finish()?;
        rows?
    };
    Ok(Report {
        bench: "kv",
        settings: serde_json::json!({
            "pairs": options.pairs, "value": options.value.0, "seed": options.common.seed,
        }),
        rows,
        figures: serde_json::Map::new(),
    })
}

fn measure(
    options: &KvOptions,
    driver: &mut impl Driver,
    transport: &'static str,
    target_pid: Option<u32>,
) -> Outcome<Vec<Row>> {
    let bytes = options.value.0 as u32;
    let mut rows = Vec::new();
    if !options.loaded {
        rows.push(load(options, driver, transport, target_pid)?);
    }
    for get_percent in &options.mix {
        for depth in &options.common.depths {
            let name = match get_percent {
                100 => format!("get {}", options.value),
                0 => format!("put {}", options.value),
                percent => format!("{percent} % get {}", options.value),
            };
            let plan = Plan {
                name,
                transport,
                queue_depth: *depth,
                warm_up: options.common.warm_up(),
                duration: options.common.duration(),
                target_pid,
            };
            let mut random = Random(options.common.seed);
            rows.push(engine::run(&plan, driver, || {
                let key = random.below(options.pairs);
                let get = *get_percent == 100 || (*get_percent > 0 && random.below(100) < u64::from(*get_percent));
                if get { Operation::Get { key, bytes } } else { Operation::Put { key, bytes } }
            })?);
        }
    }
    Ok(rows)
}

/// Loads all pairs; a row of its own, without latencies.
fn load(options: &KvOptions, driver: &mut impl Driver, transport: &'static str, pid: Option<u32>) -> Outcome<Row> {
    let bytes = options.value.0 as u32;
    let bar = crate::progress::bar(options.pairs, "loading", options.common.json);
    let (client, target, start) = (cpu::of_self(), pid.and_then(cpu::of_process), Instant::now());
    let puts = (0..options.pairs).map(|key| Operation::Put { key, bytes });
    engine::run_all(driver, LOAD_DEPTH, puts, |ended| bar.inc(ended)).context(|| "loading pairs".to_owned())?;
    bar.finish_and_clear();
    let seconds = start.elapsed().as_secs_f64().max(1e-9);
    let million = 1e6 / options.pairs as f64;
    let histogram = Histogram::<u64>::new(3).context(|| "cannot make a histogram".to_owned())?;
    Ok(Row {
        name: format!("load {}", options.value),
        transport,
        queue_depth: LOAD_DEPTH,
        seconds,
        operations: options.pairs,
        iops: options.pairs as f64 / seconds,
        bytes_per_second: options.pairs as f64 * f64::from(bytes) / seconds,
        latency: Latency::of(&histogram),
        client_cpu_seconds_per_million: (cpu::of_self() - client).as_secs_f64() * million,
        target_cpu_seconds_per_million: target
            .and_then(|before| Some((cpu::of_process(pid?)? - before).as_secs_f64() * million)),
    })
}
