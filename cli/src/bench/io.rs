//! `willow bench io`: random block reads and writes.
//!
//! It works on a namespace of its own, made for it and deleted afterwards, unless one is named: then that one's contents
//! are overwritten. All of it is written once before anything is measured.

use super::engine::{self, Operation, Plan, Random, run_all};
use super::in_process::InProcess;
use super::report::{Report, Row};
use super::shm::Shm;
use super::tcp::Tcp;
use super::{CommonOptions, engine::Driver};
use crate::failure::{Context, Outcome, fail};
use crate::size::Size;
use crate::target::Target;
use willow_apps::BASE_IO_WASM;
use willow_device::{BuiltInApp, DeviceConfig};

/// Blocks of the writes that fill the range at first.
const FILL_BYTES: u32 = 128 << 10;
/// Operations under way while filling.
const FILL_DEPTH: usize = 8;

/// Flags of `willow bench io`.
#[derive(Clone, Debug, clap::Args)]
pub struct IoOptions {
    #[command(flatten)]
    pub common: CommonOptions,
    /// Bytes of an operation: a multiple of the block size, at most 1M
    #[arg(long, default_value = "4K")]
    pub bs: Size,
    /// Parts of reads in a hundred, one measurement each: 100 reads only, 0 writes only
    #[arg(long, value_delimiter = ',', default_value = "100,0", value_name = "PERCENT,...")]
    pub mix: Vec<u8>,
    /// Bytes that the operations are spread over
    #[arg(long, default_value = "256M")]
    pub range: Size,
    /// Block namespace to use; its contents are OVERWRITTEN [default: one made for this and deleted afterwards]
    #[arg(long, conflicts_with = "in_process")]
    pub nsid: Option<u32>,
    /// Go through the range in order instead of at random
    #[arg(long)]
    pub sequential: bool,
    /// In-process: run Base-IO as native code instead of in the sandbox
    #[arg(long, requires = "in_process")]
    pub native: bool,
}

impl IoOptions {
    fn check(&self) -> Outcome<()> {
        self.common.check()?;
        if self.bs.0 == 0 || self.bs.0 > 1 << 20 || !self.bs.0.is_multiple_of(512) {
            fail!("--bs is {}, must be a multiple of 512 up to 1M", self.bs);
        }
        if self.range.0 < self.bs.0 || self.range.0 < u64::from(FILL_BYTES) {
            fail!("--range is {}, must be at least 128K and one operation", self.range);
        }
        if self.mix.is_empty() || self.mix.iter().any(|percent| *percent > 100) {
            fail!("--mix takes numbers from 0 to 100");
        }
        Ok(())
    }

    /// The range, cut to whole operations and whole blocks of the filling.
    fn range_bytes(&self) -> u64 {
        self.range.0 / u64::from(FILL_BYTES) * u64::from(FILL_BYTES)
    }
}

/// Runs it.
pub fn run(options: &IoOptions) -> Outcome<Report> {
    options.check()?;
    let rows = if options.common.in_process {
        let mut driver = in_process(options, options.native)?;
        measure(options, &mut driver, "in-process", None)?
    } else {
        let slots = options.common.depth_max().max(FILL_DEPTH);
        let lengths = (options.bs.0, buffer_bytes(options));
        if let Target::Socket(path) = options.common.target.resolve()? {
            let common = &options.common;
            let mut driver = Shm::block(common, &path, options.nsid, options.range_bytes(), slots, lengths)?;
            let pid = driver.target_pid();
            let rows = measure(options, &mut driver, "shared memory", pid);
            driver.finish()?;
            return Ok(report(options, rows?));
        }
        let mut driver = Tcp::block(&options.common, options.nsid, options.range_bytes(), slots, lengths)?;
        let pid = driver.target_pid();
        let rows = measure(options, &mut driver, "tcp", pid);
        driver.finish()?;
        rows?
    };
    Ok(report(options, rows))
}

fn report(options: &IoOptions, rows: Vec<Row>) -> Report {
    Report {
        bench: "io",
        settings: serde_json::json!({
            "bs": options.bs.0, "range": options.range_bytes(), "sequential": options.sequential, "seed": options.common.seed,
            "native": options.native,
        }),
        rows,
        figures: serde_json::Map::new(),
    }
}

fn buffer_bytes(options: &IoOptions) -> usize {
    (options.bs.0 as usize).max(FILL_BYTES as usize)
}

/// A device in this process with a namespace for the range.
pub fn in_process(options: &IoOptions, native: bool) -> Outcome<InProcess> {
    let config = DeviceConfig {
        namespace_bytes: options.range_bytes(),
        kv_namespace_bytes: 64 << 20,
        ..DeviceConfig::default()
    };
    let store = crate::serve::ram_store(&config, None)?;
    let base_io =
        if native { crate::serve::native_app(base_io_host::APP_NAME)? } else { BuiltInApp::Wasm(BASE_IO_WASM) };
    let apps = vec![base_io, BuiltInApp::Wasm(willow_apps::KEY_VALUE_WASM)];
    InProcess::new(config, store, apps, options.common.depth_max().max(FILL_DEPTH), buffer_bytes(options))
}

/// Fills the range, then measures each mix at each depth.
pub fn measure(
    options: &IoOptions,
    driver: &mut impl Driver,
    transport: &'static str,
    target_pid: Option<u32>,
) -> Outcome<Vec<Row>> {
    fill(options, driver)?;
    let mut rows = Vec::new();
    for read_percent in &options.mix {
        for depth in &options.common.depths {
            rows.push(measure_one(options, driver, transport, target_pid, *read_percent, *depth)?);
        }
    }
    Ok(rows)
}

/// Writes the whole range once.
pub fn fill(options: &IoOptions, driver: &mut impl Driver) -> Outcome<()> {
    let count = options.range_bytes() / u64::from(FILL_BYTES);
    let bar = crate::progress::bar(count, "filling", options.common.json);
    let writes = (0..count).map(|index| Operation::Write { offset: index * u64::from(FILL_BYTES), bytes: FILL_BYTES });
    run_all(driver, FILL_DEPTH, writes, |ended| bar.inc(ended)).context(|| "filling the range".to_owned())?;
    bar.finish_and_clear();
    Ok(())
}

/// One measurement.
pub fn measure_one(
    options: &IoOptions,
    driver: &mut impl Driver,
    transport: &'static str,
    target_pid: Option<u32>,
    read_percent: u8,
    depth: usize,
) -> Outcome<Row> {
    let order = if options.sequential { "sequential" } else { "random" };
    let name = match read_percent {
        100 => format!("{order} read {}", options.bs),
        0 => format!("{order} write {}", options.bs),
        percent => format!("{order} {percent} % read {}", options.bs),
    };
    let plan = Plan {
        name,
        transport,
        queue_depth: depth,
        warm_up: options.common.warm_up(),
        duration: options.common.duration(),
        target_pid,
    };
    let bytes = options.bs.0 as u32;
    let operations = options.range_bytes() / options.bs.0;
    let mut random = Random(options.common.seed);
    let mut place = 0;
    engine::run(&plan, driver, || {
        let index = if options.sequential { place } else { random.below(operations) };
        place = (place + 1) % operations;
        let offset = index * u64::from(bytes);
        let read = read_percent == 100 || (read_percent > 0 && random.below(100) < u64::from(read_percent));
        if read { Operation::Read { offset, bytes } } else { Operation::Write { offset, bytes } }
    })
}
