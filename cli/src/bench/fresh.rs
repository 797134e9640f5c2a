//! `willow bench fresh`: small writes at depth 1 to a device in memory that nothing was written to yet, and to the same places once they
//! were written, over NVMe/TCP. Each turn starts a device of its own.
//!
//! Invariant: both halves of a turn write to the same places in the same order, so that only the memory differs.

use super::TURNS_MAX;
use super::engine::{self, Operation, Plan, Random};
use super::report::{Report, Row};
use super::tcp::Tcp;
use crate::child::DeviceProcess;
use crate::failure::{Outcome, fail};
use crate::size::Size;
use crate::target::TargetOption;
use std::path::PathBuf;
use std::time::Duration;

/// The block namespace that every fresh device has.
const NSID: u32 = 1;

/// Flags of `willow bench fresh`.
#[derive(Clone, Debug, clap::Args)]
pub struct FreshOptions {
    /// Turns, each with a device of its own
    #[arg(long, default_value_t = 5)]
    pub turns: u32,
    /// Seconds counted for each measurement, from the first write on
    #[arg(long, default_value_t = 2.0)]
    pub seconds: f64,
    /// Bytes of a write: a multiple of 4096, at most 1M
    #[arg(long, default_value = "4K")]
    pub bs: Size,
    /// Bytes that the writes are spread over, and size of the device
    #[arg(long, default_value = "4G")]
    pub range: Size,
    /// Go through the range in order instead of at random
    #[arg(long)]
    pub sequential: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Append the result to a kept history
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "docs/benchmark-history.jsonl")]
    pub record: Option<PathBuf>,
}

/// Runs it.
pub fn run(options: &FreshOptions) -> Outcome<Report> {
    if options.turns == 0 || options.turns > TURNS_MAX {
        fail!("--turns is {}, must be 1 to {TURNS_MAX}", options.turns);
    }
    if !(0.01..=3600.0).contains(&options.seconds) {
        fail!("--seconds is {}, must be 0.01 to 3600", options.seconds);
    }
    if options.bs.0 == 0 || options.bs.0 > 1 << 20 || !options.bs.0.is_multiple_of(4096) {
        fail!("--bs is {}, must be a multiple of 4096 up to 1M", options.bs);
    }
    if options.range.0 < 1 << 20 {
        fail!("--range is {}, must be at least 1M", options.range);
    }
    let mut turns = Vec::new();
    for turn in 0..options.turns {
        turns.push(one_turn(options, u64::from(turn) + 1)?);
    }
    let ratio = |of: fn(&Row) -> f64| median(turns.iter().map(|(fresh, written)| of(fresh) / of(written)).collect());
    let mut figures = serde_json::Map::new();
    figures.insert("fresh_to_written_rate".to_owned(), ratio(|row| row.iops));
    figures.insert("fresh_to_written_p99".to_owned(), ratio(|row| row.latency.p99_ns as f64));
    // The turn whose fresh rate is the median.
    turns.sort_by(|one, other| one.0.iops.total_cmp(&other.0.iops));
    let (fresh, written) = turns.swap_remove(turns.len() / 2);
    Ok(Report {
        bench: "fresh",
        settings: serde_json::json!({
            "turns": options.turns, "seconds": options.seconds, "bs": options.bs.0, "range": options.range.0,
            "sequential": options.sequential,
        }),
        rows: vec![fresh, written],
        figures,
    })
}

fn median(mut of: Vec<f64>) -> serde_json::Value {
    of.sort_by(f64::total_cmp);
    ((of[of.len() / 2] * 1000.0).round() / 1000.0).into()
}

fn one_turn(options: &FreshOptions, seed: u64) -> Outcome<(Row, Row)> {
    let size = options.range.0.to_string();
    let device = DeviceProcess::start(&["--ram", "--size", &size, "--listen", "127.0.0.1:0", "--log", "error"])?;
    let target = TargetOption { target: device.ready.listen.clone(), key: None };
    let mut driver = Tcp::existing(&target, NSID, 1, options.bs.0 as usize)?;
    let fresh = half(options, &mut driver, seed, "never written", device.pid(), None)?;
    let written = half(options, &mut driver, seed, "written before", device.pid(), Some(fresh.operations))?;
    driver.finish()?;
    device.end()?;
    Ok((fresh, written))
}

/// Writes from the first place of a seed on; again from there after so many.
fn half(
    options: &FreshOptions,
    driver: &mut Tcp,
    seed: u64,
    memory: &str,
    pid: u32,
    places_max: Option<u64>,
) -> Outcome<Row> {
    let order = if options.sequential { "sequential" } else { "random" };
    let plan = Plan {
        name: format!("{order} write {}, memory {memory}", options.bs),
        transport: "tcp",
        queue_depth: 1,
        warm_up: Duration::ZERO,
        duration: Duration::from_secs_f64(options.seconds),
        target_pid: Some(pid),
    };
    let bytes = options.bs.0 as u32;
    let places = options.range.0 / options.bs.0;
    let (mut random, mut number) = (Random(seed), 0);
    engine::run(&plan, driver, || {
        if places_max.is_some_and(|most| number >= most) {
            (random, number) = (Random(seed), 0);
        }
        let place = if options.sequential { number % places } else { random.below(places) };
        number += 1;
        Operation::Write { offset: place * u64::from(bytes), bytes }
    })
}
