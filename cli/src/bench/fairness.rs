//! `willow bench fairness`: what a process' 4 KiB reads take alone, and beside another process' flood of reads, loops of an app, large
//! transfers, and an app that is hostile in each of several ways; and how two floods of different weight share the device. By turns in one
//! run, so that ratios compare.

use super::TurnOptions;
use super::engine::{LATENCY_NS_MAX, Plan};
use super::party::{Party, READ_BYTES, Stage, Work};
use super::report::{Report, Row};
use crate::cpu;
use crate::failure::{Context, Outcome, fail};
use crate::size::Size;
use hdrhistogram::Histogram;
use std::time::{Duration, Instant};

/// Instructions of a loop's turn in [`LOOPER`].
const LOOP_INSTRUCTIONS: u64 = 5;
/// Small reads that the flooder keeps under way.
const FLOOD_DEPTH: u16 = 512;
/// Loops, and large transfers, that are kept under way.
const LOOPS_DEPTH: u16 = 32;
const TRANSFERS_DEPTH: u16 = 8;
/// The app that loops: handler 1 counts down from its argument.
const LOOPER: &str = r#"(module
    (import "willow" "receive_bytes" (func $receive_bytes (param i32 i32 i32) (result i32)))
    (import "willow" "respond" (func $respond (param i32 i32 i32)))
    (memory (export "memory") 1)
    (func (export "start") (param i32 i32) (result i32) (local $left i32)
        (if (local.get 1) (then
            (drop (call $receive_bytes (local.get 0) (i32.const 0) (i32.const 4)))
            (local.set $left (i32.load (i32.const 0)))
            (loop $again
                (br_if $again (local.tee $left (i32.sub (local.get $left) (i32.const 1)))))))
        (call $respond (local.get 0) (i32.const 0) (i32.const 0))
        (i32.const 0))
    (func (export "complete") (param i32 i64))
    (@custom "willow.app" "abi=2\nname=looper\nversion=1\nhandler=1:loop\n"))"#;

/// What a hostile app does in each of its handlers, and how often in a run: as much as the budget of a user's app covers, since what is past
/// that ends the app.
const HOSTILE: &[(&str, &str, u32)] = &[
    (
        "strided",
        "(drop (call $dma_strided (local.get 0) (i32.const 3) (i64.const 0) (i64.const 1) (i32.const 0) (i64.const 64) (i64.const 1) (i32.const 1) (i32.const 2000) (i32.const 0)))",
        1,
    ),
    (
        "empty_segments",
        "(drop (call $dma_strided (local.get 0) (i32.const 3) (i64.const 0) (i64.const 1) (i32.const 0) (i64.const 64) (i64.const 1) (i32.const 0) (i32.const -1) (i32.const 0)))",
        1500,
    ),
    ("receive", "(drop (call $receive_bytes_at (local.get 0) (i32.const 0) (i32.const 64) (i32.const 4)))", 5000),
    ("print", "(call $print (i32.const 64) (i32.const 4096))", 30),
    (
        "upcalls",
        "(drop (call $rpc_finish (call $rpc_start (local.get 0) (i32.const -1) (i32.const -1) (i32.const 9) (i32.const 0) (i32.const 0) (i32.const 0)) (i32.const 1)))",
        300,
    ),
    ("tables", "(drop (table.grow $table (ref.null func) (i32.const 100)))", 600),
    ("growing", "(drop (memory.grow (i32.const 0)))", 1500),
    ("divisions", "(global.set $x (i64.div_u (i64.const -1) (i64.or (global.get $x) (i64.const 1))))", 20_000),
    ("roots", "(global.set $f (f64.sqrt (f64.sqrt (f64.sqrt (f64.add (global.get $f) (f64.const 3))))))", 4500),
    // Loads from all over its memory, each from where the one before says.
    (
        "scattered",
        "(global.set $p (i32.add (i32.load (i32.and (i32.shr_u (global.get $p) (i32.const 8)) (i32.const 0xdffc0)))
            (i32.add (i32.mul (global.get $p) (i32.const 1103515245)) (i32.const 12345))))",
        22_000,
    ),
    (
        "dmas_unawaited",
        "(drop (call $dma (local.get 0) (i32.const 3) (i64.const 0) (i32.const 0) (i64.const 64) (i32.const 64) (i32.const 1)))",
        1500,
    ),
    (
        "checksums",
        "(drop (call $checksum (local.get 0) (i32.const 0) (i64.const 0) (i32.const 16384) (i32.const 0) (i32.const 1)))",
        150,
    ),
    (
        "searches",
        "(if (i32.eqz (global.get $set)) (then (i32.store8 (i32.const 16) (i32.const 1)) (i32.store8 (i32.const 20) (i32.const 120))
            (global.set $set (call $literals_load (i32.const 16) (i32.const 5) (i32.const 0)))))
        (drop (call $literals_find (local.get 0) (global.get $set) (i32.const 0) (i64.const 1024) (i32.const 32768) (i32.const 0)
            (i32.const 64) (i32.const 4) (i32.const 1)))",
        30,
    ),
    ("sleeps", "(drop (call $sleep (i64.const 1000) (i32.const 1)))", 500),
    ("background", "(drop (call $background (i32.const 1) (i64.const 0)))", 500),
    (
        "messages",
        "(drop (call $rpc_finish (call $rpc_start (local.get 0) (i32.const 1) (i32.const -1) (i32.const 1) (i32.const 0) (i32.const 0) (i32.const 0)) (i32.const 1)))",
        250,
    ),
    ("flushes", "(drop (call $flush (i32.const 1)))", 15),
];

/// Instructions of the run of an app that may run longer than others (`long=1`).
const LONG_INSTRUCTIONS: u64 = 20_000_000;

/// The hostile app: handler N does the Nth of [`HOSTILE`], so often as its argument says.
fn hostile_module() -> Outcome<Vec<u8>> {
    let (mut cases, mut handlers) = (String::new(), String::new());
    for ((name, body, _), number) in HOSTILE.iter().zip(1..) {
        cases += &format!(
            "(if (i32.eq (local.get 1) (i32.const {number})) (then (loop $again {body}
                (br_if $again (local.tee $left (i32.sub (local.get $left) (i32.const 1)))))))\n"
        );
        handlers += &format!("handler={number}:{}\\n", name.replace('_', "-"));
    }
    let text = format!(
        r#"(module
        (import "willow" "receive_bytes_at" (func $receive_bytes_at (param i32 i32 i32 i32) (result i32)))
        (import "willow" "respond" (func $respond (param i32 i32 i32)))
        (import "willow" "dma" (func $dma (param i32 i32 i64 i32 i64 i32 i32) (result i32)))
        (import "willow" "dma_strided" (func $dma_strided (param i32 i32 i64 i64 i32 i64 i64 i32 i32 i32) (result i32)))
        (import "willow" "rpc_start" (func $rpc_start (param i32 i32 i32 i32 i32 i32 i32) (result i32)))
        (import "willow" "rpc_finish" (func $rpc_finish (param i32 i32) (result i32)))
        (import "willow" "print" (func $print (param i32 i32)))
        (import "willow" "checksum" (func $checksum (param i32 i32 i64 i32 i32 i32) (result i32)))
        (import "willow" "literals_load" (func $literals_load (param i32 i32 i32) (result i32)))
        (import "willow" "literals_find" (func $literals_find (param i32 i32 i32 i64 i32 i32 i32 i32 i32) (result i32)))
        (import "willow" "sleep" (func $sleep (param i64 i32) (result i32)))
        (import "willow" "background" (func $background (param i32 i64) (result i32)))
        (import "willow" "flush" (func $flush (param i32) (result i32)))
        (memory (export "memory") 15) (table $table 1 funcref) (global $set (mut i32) (i32.const 0))
        (global $x (mut i64) (i64.const 3)) (global $f (mut f64) (f64.const 3)) (global $p (mut i32) (i32.const 1))
        (func (export "start") (param i32 i32) (result i32) (local $left i32)
            (i32.store (i32.const 0) (i32.const 0))
            (drop (call $receive_bytes_at (local.get 0) (i32.const 0) (i32.const 0) (i32.const 4)))
            (local.set $left (i32.load (i32.const 0)))
            ;; Events, and what the app has asked itself for.
            (if (i32.eqz (local.get $left)) (then
                (call $respond (local.get 0) (i32.const 0) (i32.const 0))
                (return (i32.const 0))))
            {cases}
            (call $respond (local.get 0) (i32.const 0) (i32.const 0))
            (i32.const 0))
        (func (export "complete") (param i32 i64))
        (@custom "willow.app" "abi=2\nname=hostile\nversion=1\n{handlers}"))"#
    );
    wat::parse_str(text).context(|| "the hostile app".to_owned())
}

/// Flags of `willow bench fairness`.
#[derive(Clone, Debug, clap::Args)]
pub struct FairnessOptions {
    #[command(flatten)]
    pub turns: TurnOptions,
    /// Instructions of a loop: less than the budget of users' apps, which ends them
    #[arg(long, default_value_t = 380_000)]
    pub loop_instructions: u64,
    /// Bytes of a large transfer
    #[arg(long, default_value = "1M")]
    pub transfer: Size,
    /// Weights of two floods beside each other
    #[arg(long, value_delimiter = ',', num_args = 2, default_values_t = [3, 1], value_name = "N,N")]
    pub weights: Vec<u16>,
}

/// What the victim saw beside one other, over all turns.
struct Seen {
    name: String,
    histogram: Histogram<u64>,
    elapsed: Duration,
    client: Duration,
    target: Option<Duration>,
    /// Of each turn: median and 99th of a hundred, nanoseconds.
    turns: Vec<(u64, u64)>,
    /// What the other did meanwhile.
    beside: u64,
}

/// Runs it. The device is its own.
pub fn run(options: &FairnessOptions) -> Outcome<Report> {
    options.turns.check()?;
    if options.transfer.0 == 0 || options.transfer.0 > 4 << 20 || !options.transfer.0.is_multiple_of(4096) {
        fail!("--transfer is {}, must be a multiple of 4096 up to 4M", options.transfer);
    }
    if options.loop_instructions < LOOP_INSTRUCTIONS || options.loop_instructions > u64::from(u32::MAX) {
        fail!("--loop-instructions is {}, must be {LOOP_INSTRUCTIONS} to {}", options.loop_instructions, u32::MAX);
    }
    let &[one, other] = &options.weights[..] else { fail!("--weights takes two numbers, such as 3,1") };
    if one == 0 || other == 0 {
        fail!("--weights has 0, each must be 1 to 1000");
    }
    let stage = Stage::new(options.turns.range, &[])?;
    let module = wat::parse_str(LOOPER).context(|| "the app that loops".to_owned())?;
    let app = stage.install(module)?;
    let loops = Work::Calls { app, handler: 1, argument: (options.loop_instructions / LOOP_INSTRUCTIONS) as u32 };
    let transfers = Work::Transfers { bytes: options.transfer.0 as u32 };
    let mut victim = stage.party(Work::Reads, 1, 1)?;
    let hostile = stage.install(hostile_module()?)?;
    let mut others = vec![
        ("alone".to_owned(), None),
        (format!("beside a flood of {FLOOD_DEPTH} reads"), Some(stage.party(Work::Reads, FLOOD_DEPTH, 2)?)),
        (
            format!("beside {LOOPS_DEPTH} loops of {} instructions", options.loop_instructions),
            Some(stage.party(loops, LOOPS_DEPTH, 3)?),
        ),
        (
            format!("beside {TRANSFERS_DEPTH} transfers of {}", options.transfer),
            Some(stage.party(transfers, TRANSFERS_DEPTH, 4)?),
        ),
    ];
    for ((name, _, rounds), number) in HOSTILE.iter().zip(1..) {
        let work = Work::Calls { app: hostile, handler: number, argument: *rounds };
        let party = stage.party(work, LOOPS_DEPTH, 10 + u64::from(number))?;
        others.push((format!("beside an app that is hostile by {name}"), Some(party)));
    }
    let module = LOOPER.replace("name=looper", "name=long").replace("handler=1:loop", "long=1\\nhandler=1:loop");
    let app = stage.install(wat::parse_str(module).context(|| "the app that runs long".to_owned())?)?;
    let work = Work::Calls { app, handler: 1, argument: (LONG_INSTRUCTIONS / LOOP_INSTRUCTIONS) as u32 };
    others.push((
        format!("beside {LOOPS_DEPTH} runs of {LONG_INSTRUCTIONS} instructions that make way"),
        Some(stage.party(work, LOOPS_DEPTH, 7)?),
    ));
    let mut seen = Vec::new();
    for (name, _) in &others {
        seen.push(Seen::new(name)?);
    }
    let duration = Duration::from_secs_f64(options.turns.seconds);
    let mut shares = Vec::new();
    let mut floods = [stage.party(Work::Reads, FLOOD_DEPTH, 5)?, stage.party(Work::Reads, FLOOD_DEPTH, 6)?];
    for (flood, weight) in floods.iter().zip([one, other]) {
        stage.control(async |control| control.set_weight(0, Some(flood.process), weight).await)?;
    }
    for _ in 0..options.turns.turns {
        for ((_, other), seen) in others.iter_mut().zip(&mut seen) {
            seen.turn(&mut victim, other.as_mut(), duration, stage.pid())?;
        }
        shares.push(share(&mut floods, duration)?);
    }
    drop((victim, others, floods));
    // An app that has ended was no neighbour: its rows would say nothing.
    let statistics = stage.control(async |control| control.statistics().await)?;
    let apps = statistics["apps"].as_array().into_iter().flatten();
    let mut ended = apps.filter_map(|app| app["ended"].as_str().map(|why| format!("{}: {why}", app["name"])));
    if let Some(why) = ended.next() {
        fail!("an app ended meanwhile, {why}");
    }
    stage.finish()?;
    Ok(report(options, &seen, shares))
}

impl Seen {
    fn new(name: &str) -> Outcome<Self> {
        Ok(Seen {
            name: format!("read 4 KiB, {name}"),
            histogram: Histogram::new_with_max(LATENCY_NS_MAX, 3).context(|| "cannot make a histogram".to_owned())?,
            elapsed: Duration::ZERO,
            client: Duration::ZERO,
            target: None,
            turns: Vec::new(),
            beside: 0,
        })
    }

    fn turn(&mut self, victim: &mut Party, mut other: Option<&mut Party>, duration: Duration, pid: u32) -> Outcome<()> {
        let mut of_turn = Histogram::<u64>::new_with_max(LATENCY_NS_MAX, 3).context(|| "a histogram".to_owned())?;
        let mut step = || other.as_mut().map_or(Ok(()), |other| other.step());
        // A quarter of the time first, so that all is under way.
        let begun = Instant::now();
        while begun.elapsed() < duration / 4 {
            victim.one(&mut step)?;
        }
        let (begun, client, target) = (Instant::now(), cpu::of_self(), cpu::of_process(pid));
        while begun.elapsed() < duration {
            let took = victim.one(&mut step)?;
            of_turn.saturating_record(took.as_nanos().min(u128::from(LATENCY_NS_MAX)) as u64);
        }
        self.elapsed += begun.elapsed();
        self.client += cpu::of_self() - client;
        let target = target.and_then(|before| Some(cpu::of_process(pid)? - before));
        self.target = target.map(|target| self.target.unwrap_or_default() + target);
        self.turns.push((of_turn.value_at_quantile(0.5), of_turn.value_at_quantile(0.99)));
        self.histogram.add(&of_turn).context(|| "a histogram".to_owned())?;
        if let Some(other) = other {
            other.drain()?;
            self.beside = other.ended;
        }
        Ok(())
    }

    fn row(&self) -> Row {
        let plan = Plan {
            name: self.name.clone(),
            transport: "shared memory",
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

/// The first one's part of what two floods have had.
fn share(floods: &mut [Party; 2], duration: Duration) -> Outcome<f64> {
    let mut counts = [0; 2];
    for counted in [false, true] {
        let begun = Instant::now();
        let before = floods.each_ref().map(|flood| flood.ended);
        while begun.elapsed() < if counted { duration } else { duration / 4 } {
            for flood in floods.iter_mut() {
                flood.step()?;
            }
        }
        counts = [floods[0].ended - before[0], floods[1].ended - before[1]];
    }
    for flood in floods {
        flood.drain()?;
    }
    Ok(counts[0] as f64 / (counts[0] + counts[1]).max(1) as f64)
}

fn median(mut of: Vec<f64>) -> serde_json::Value {
    of.sort_by(f64::total_cmp);
    ((of[of.len() / 2] * 1000.0).round() / 1000.0).into()
}

fn report(options: &FairnessOptions, seen: &[Seen], shares: Vec<f64>) -> Report {
    let mut figures = serde_json::Map::new();
    let alone = &seen[0].turns;
    let names =
        ["flood", "loops", "transfers"].into_iter().chain(HOSTILE.iter().map(|(name, ..)| *name)).chain(["long"]);
    for (of, name) in seen[1..].iter().zip(names) {
        let ratios = |of_turn: fn(&(u64, u64)) -> u64| {
            let pairs = of.turns.iter().zip(alone);
            median(pairs.map(|(beside, alone)| of_turn(beside) as f64 / of_turn(alone).max(1) as f64).collect())
        };
        figures.insert(format!("{name}_to_alone_p50"), ratios(|turn| turn.0));
        figures.insert(format!("{name}_to_alone_p99"), ratios(|turn| turn.1));
        figures.insert(format!("{name}_operations"), of.beside.into());
    }
    figures.insert(format!("share_of_weight_{}_beside_{}", options.weights[0], options.weights[1]), median(shares));
    Report {
        bench: "fairness",
        settings: serde_json::json!({
            "turns": options.turns.turns, "seconds": options.turns.seconds, "range": options.turns.range.0,
            "loop_instructions": options.loop_instructions, "transfer": options.transfer.0, "weights": options.weights,
        }),
        rows: seen.iter().map(Seen::row).collect(),
        figures,
    }
}
