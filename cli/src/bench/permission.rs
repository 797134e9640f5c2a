//! `willow bench permission`: what a look-up in an SPU's permission table takes, by the table's size, and 4 KiB reads over shared memory
//! whose every DMA is looked up, with as many extents in the tables.

use super::TurnOptions;
use super::engine::{LATENCY_NS_MAX, Plan, Random};
use super::party::{Party, READ_BYTES, Stage, Work};
use super::report::{Report, Row};
use crate::cpu;
use crate::failure::{Context, Outcome, fail};
use crate::size::Size;
use hdrhistogram::Histogram;
use std::hint::black_box;
use std::time::{Duration, Instant};
use willow_device::spu::permission::{Extent, PermissionTable, Rights};
use willow_host::control::PermissionInfo;

/// Look-ups of a measurement.
const LOOK_UPS: u32 = 1 << 20;
/// Bytes of an extent, and as many between two.
const EXTENT_BYTES: u64 = 4096;
/// Permissions in one message.
const GRANTS_A_MESSAGE: usize = 2048;
/// A process' number as tables have it.
const PROCESS: u32 = 1 << 19 | 7;

/// Flags of `willow bench permission`.
#[derive(Clone, Debug, clap::Args)]
pub struct PermissionOptions {
    #[command(flatten)]
    pub turns: TurnOptions,
    /// Extents in a table, one measurement each
    #[arg(long, value_delimiter = ',', default_value = "768,65536", value_name = "N,...")]
    pub entries: Vec<usize>,
    /// Reads under way over shared memory, one measurement each
    #[arg(long, value_delimiter = ',', default_value = "1,32", value_name = "N,...")]
    pub depths: Vec<u16>,
}

/// Runs it. The device is its own.
pub fn run(options: &PermissionOptions) -> Outcome<Report> {
    options.turns.check()?;
    if options.entries.iter().any(|entries| !(16..=1 << 20).contains(entries)) {
        fail!("--entries takes numbers from 16 to 1048576");
    }
    if options.depths.iter().any(|depth| !(1..=1024).contains(depth)) {
        fail!("--depths takes numbers from 1 to 1024");
    }
    let mut figures = serde_json::Map::new();
    for entries in &options.entries {
        for (name, nanoseconds) in look_ups(*entries, options.turns.turns) {
            figures.insert(format!("{name}_ns_at_{entries}"), ((nanoseconds * 10.0).round() / 10.0).into());
        }
    }
    let mut rows = Vec::new();
    let stage = Stage::new(options.turns.range, &[])?;
    for depth in &options.depths {
        let mut party = stage.party_without_rights(Work::Reads, *depth, 1)?;
        grant_in_pieces(&stage, &party, options.turns.range)?;
        let mut best: Option<Row> = None;
        for _ in 0..options.turns.turns {
            let row = measure(&mut party, *depth, Duration::from_secs_f64(options.turns.seconds), stage.pid())?;
            if best.as_ref().is_none_or(|best| row.iops > best.iops) {
                best = Some(row);
            }
        }
        rows.extend(best);
    }
    stage.finish()?;
    Ok(Report {
        bench: "permission",
        settings: serde_json::json!({
            "entries": options.entries, "turns": options.turns.turns, "seconds": options.turns.seconds, "range": options.turns.range.0,
        }),
        rows,
        figures,
    })
}

/// Nanoseconds of a look-up in a full table, least of all turns: of extents that were used just before, of any, of none that is there.
fn look_ups(entries: usize, turns: u32) -> Vec<(&'static str, f64)> {
    let mut table = PermissionTable::new(entries);
    let place = |index: u64| index * 2 * EXTENT_BYTES;
    for index in 0..entries as u64 {
        let start = place(index);
        table.grant(PROCESS, Extent { start, end: start + EXTENT_BYTES, rights: Rights::READ });
    }
    let mut random = Random(1);
    let recent: Vec<u64> = (0..4).map(|_| random.below(entries as u64)).collect();
    let any: Vec<u64> = (0..1 << 16).map(|_| random.below(entries as u64)).collect();
    let mut measure = |addresses: &[u64], offset: u64, expected: bool| {
        let mut least = f64::INFINITY;
        for _ in 0..turns {
            let begun = Instant::now();
            let mut permitted = 0;
            for index in 0..LOOK_UPS as usize {
                let address = place(addresses[index & (addresses.len() - 1)]) + offset;
                permitted += u32::from(table.permits(PROCESS, black_box(address), 512, Rights::READ));
            }
            let nanoseconds = begun.elapsed().as_nanos() as f64 / f64::from(LOOK_UPS);
            assert_eq!(black_box(permitted), if expected { LOOK_UPS } else { 0 });
            least = least.min(nanoseconds);
        }
        least
    };
    vec![
        ("recent", measure(&recent, 0, true)),
        ("random", measure(&any, 0, true)),
        ("miss", measure(&any, EXTENT_BYTES, false)),
    ]
}

/// Grants all of the namespace as extents that the tables cannot join, reading and writing by turns: 8 KiB each, as many as fit.
fn grant_in_pieces(stage: &Stage, party: &Party, range: Size) -> Outcome<()> {
    let geometry = stage.geometry();
    let stripe = u64::from(geometry.stripe_bytes);
    let stripes = range.0.div_ceil(stripe * u64::from(geometry.spus));
    let mut permissions = Vec::new();
    for number in 0..stripes {
        for spu in 0..geometry.spus {
            let start = geometry.base + number * stripe;
            permissions.push(PermissionInfo { spu, start, bytes: stripe, rights: 1 + 2 * (number as u32 % 2) });
        }
    }
    for some in permissions.chunks(GRANTS_A_MESSAGE) {
        stage.control(async |control| control.grant(party.process, some).await)?;
    }
    Ok(())
}

fn measure(party: &mut Party, depth: u16, duration: Duration, pid: u32) -> Outcome<Row> {
    let mut histogram =
        Histogram::<u64>::new_with_max(LATENCY_NS_MAX, 3).context(|| "cannot make a histogram".to_owned())?;
    let mut operations = 0;
    let (mut begun, mut client, mut target) = (Instant::now(), cpu::of_self(), None);
    for (counted, duration) in [(false, duration / 4), (true, duration)] {
        (begun, client, target) = (Instant::now(), cpu::of_self(), cpu::of_process(pid));
        let before = party.ended;
        histogram.clear();
        while begun.elapsed() < duration {
            if depth == 1 {
                let took = party.one(|| Ok(()))?;
                histogram.saturating_record(took.as_nanos().min(u128::from(LATENCY_NS_MAX)) as u64);
            } else {
                party.step()?;
            }
        }
        if counted {
            operations = party.ended - before;
        }
    }
    let elapsed = begun.elapsed();
    let client = cpu::of_self() - client;
    let target = target.and_then(|before| Some(cpu::of_process(pid)? - before));
    party.drain()?;
    let plan = Plan {
        name: "random read 4K, checked".to_owned(),
        transport: "shared memory",
        queue_depth: depth.into(),
        warm_up: Duration::ZERO,
        duration,
        target_pid: None,
    };
    Ok(Row::new(&plan, elapsed, operations, operations * u64::from(READ_BYTES), &histogram, client, target))
}
