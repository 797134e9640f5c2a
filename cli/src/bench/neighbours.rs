//! `willow bench neighbours`: what a host's 4 KiB reads at depth 1 take over NVMe/TCP, alone and beside another host that does its worst
//! in each of several ways; and the same beside one that is only busy. By turns in one run, so that ratios compare.
//!
//! Invariant: the flood is a host of its own, on connections and threads of its own; the victim knows nothing of it.

mod flood;

use super::TurnOptions;
use super::engine::{Driver, LATENCY_NS_MAX, Operation, Plan, Random};
use super::report::{Report, Row};
use super::tcp::Tcp;
use crate::child::DeviceProcess;
use crate::cpu;
use crate::failure::{Context, Outcome, fail};
use crate::target::TargetOption;
use flood::{Flood, Kind};
use hdrhistogram::Histogram;
use std::time::{Duration, Instant};

/// The block namespace that every fresh device has.
const NSID: u32 = 1;
/// Bytes of a read.
const READ_BYTES: u32 = 4096;
/// Time that a flood has to get under way before the victim is looked at.
const BUILD_UP: Duration = Duration::from_millis(500);

/// Flags of `willow bench neighbours`.
#[derive(Clone, Debug, clap::Args)]
pub struct NeighboursOptions {
    #[command(flatten)]
    pub turns: TurnOptions,
}

/// What the victim saw beside one kind of neighbour, over all turns.
struct Seen {
    kind: Option<Kind>,
    histogram: Histogram<u64>,
    elapsed: Duration,
    client: Duration,
    target: Option<Duration>,
    /// Of each turn: median and 99th of a hundred, nanoseconds.
    turns: Vec<(u64, u64)>,
    /// What the neighbour got done meanwhile.
    beside: u64,
}

/// Runs it. The device is its own.
pub fn run(options: &NeighboursOptions) -> Outcome<Report> {
    options.turns.check()?;
    if options.turns.range.0 < 4 << 20 {
        fail!("--range is {}, must be at least 4M", options.turns.range);
    }
    let size = options.turns.range.0.to_string();
    let arguments = ["--ram", "--size", &size, "--kv-size", "0", "--listen", "127.0.0.1:0", "--log", "off"];
    let device = DeviceProcess::start(&arguments)?;
    let target = TargetOption { target: device.ready.listen.clone(), key: None };
    let mut victim = Tcp::existing(&target, NSID, 1, READ_BYTES as usize)?;
    let kinds = [None].into_iter().chain(Kind::ALL.map(Some));
    let mut seen: Vec<Seen> = kinds.map(Seen::new).collect::<Outcome<_>>()?;
    let mut random = Random(1);
    for _ in 0..options.turns.turns {
        for one in &mut seen {
            one.turn(options, &mut victim, &device, &mut random)?;
        }
    }
    victim.finish()?;
    device.end()?;
    Ok(report(options, &seen))
}

impl Seen {
    fn new(kind: Option<Kind>) -> Outcome<Self> {
        Ok(Seen {
            kind,
            histogram: Histogram::new_with_max(LATENCY_NS_MAX, 3).context(|| "cannot make a histogram".to_owned())?,
            elapsed: Duration::ZERO,
            client: Duration::ZERO,
            target: None,
            turns: Vec::new(),
            beside: 0,
        })
    }

    fn name(&self) -> String {
        let beside = self.kind.map_or("alone".to_owned(), |kind| format!("beside {}", kind.description()));
        format!("read 4 KiB, {beside}")
    }

    fn turn(
        &mut self,
        options: &NeighboursOptions,
        victim: &mut Tcp,
        device: &DeviceProcess,
        random: &mut Random,
    ) -> Outcome<()> {
        let flood = self.kind.map(|kind| Flood::begin(kind, &device.ready, options.turns.range.0)).transpose()?;
        if flood.is_some() {
            std::thread::sleep(BUILD_UP);
        }
        let duration = Duration::from_secs_f64(options.turns.seconds);
        let mut of_turn = Histogram::<u64>::new_with_max(LATENCY_NS_MAX, 3).context(|| "a histogram".to_owned())?;
        let (begun, client, target) = (Instant::now(), cpu::of_self(), cpu::of_process(device.pid()));
        let done = flood.as_ref().map_or(0, Flood::done);
        let mut ended = Vec::new();
        while begun.elapsed() < duration {
            let offset = random.below(options.turns.range.0 / u64::from(READ_BYTES)) * u64::from(READ_BYTES);
            let asked = Instant::now();
            victim.begin(0, Operation::Read { offset, bytes: READ_BYTES })?;
            while ended.is_empty() {
                victim.poll(&mut ended)?;
            }
            ended.clear();
            of_turn.saturating_record(asked.elapsed().as_nanos().min(u128::from(LATENCY_NS_MAX)) as u64);
        }
        self.elapsed += begun.elapsed();
        self.client += cpu::of_self() - client;
        let target = target.and_then(|before| Some(cpu::of_process(device.pid())? - before));
        self.target = target.map(|target| self.target.unwrap_or_default() + target);
        self.turns.push((of_turn.value_at_quantile(0.5), of_turn.value_at_quantile(0.99)));
        self.histogram.add(&of_turn).context(|| "a histogram".to_owned())?;
        if let Some(flood) = flood {
            self.beside += flood.done() - done;
            flood.end()?;
        }
        Ok(())
    }

    fn row(&self) -> Row {
        let plan = Plan {
            name: self.name(),
            transport: "tcp",
            queue_depth: 1,
            warm_up: Duration::ZERO,
            duration: self.elapsed,
            target_pid: None,
        };
        let operations = self.histogram.len();
        let bytes = operations * u64::from(READ_BYTES);
        Row::new(&plan, self.elapsed, operations, bytes, &self.histogram, self.client, self.target)
    }
}

fn median(mut of: Vec<f64>) -> serde_json::Value {
    of.sort_by(f64::total_cmp);
    ((of[of.len() / 2] * 1000.0).round() / 1000.0).into()
}

fn report(options: &NeighboursOptions, seen: &[Seen]) -> Report {
    let mut figures = serde_json::Map::new();
    let alone = &seen[0].turns;
    for of in &seen[1..] {
        let Some(kind) = of.kind else { continue };
        let ratios = |of_turn: fn(&(u64, u64)) -> u64| {
            let pairs = of.turns.iter().zip(alone);
            median(pairs.map(|(beside, alone)| of_turn(beside) as f64 / of_turn(alone).max(1) as f64).collect())
        };
        figures.insert(format!("{}_to_alone_p50", kind.name()), ratios(|turn| turn.0));
        figures.insert(format!("{}_to_alone_p99", kind.name()), ratios(|turn| turn.1));
        figures.insert(format!("{}_operations", kind.name()), of.beside.into());
    }
    Report {
        bench: "neighbours",
        settings: serde_json::json!({
            "turns": options.turns.turns, "seconds": options.turns.seconds, "range": options.turns.range.0,
        }),
        rows: seen.iter().map(Seen::row).collect(),
        figures,
    }
}
