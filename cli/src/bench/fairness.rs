//! `willow bench fairness`: what a process' 4 KiB reads take alone, and beside another process' flood of reads, loops of an app, large
//! transfers, and an app that is hostile in each of several ways; and how two floods of different weight share the device. By turns in one
//! run, so that ratios compare.

mod hostile;

use super::TurnOptions;
use super::engine::{LATENCY_NS_MAX, Plan};
use super::party::{Party, READ_BYTES, Stage, Work};
use super::report::{Report, Row};
use crate::cpu;
use crate::failure::{Context, Outcome, fail};
use crate::size::Size;
use hdrhistogram::Histogram;
pub use hostile::CHASERS;
use hostile::{HOSTILE, LOOPER, chaser_module, hostile_module};
use std::time::{Duration, Instant};

/// Instructions of a loop's turn in [`LOOPER`].
const LOOP_INSTRUCTIONS: u64 = 7;
/// Small reads that the flooder keeps under way.
const FLOOD_DEPTH: u16 = 512;
/// Loops, and large transfers, that are kept under way.
const LOOPS_DEPTH: u16 = 32;
const TRANSFERS_DEPTH: u16 = 8;
/// Instructions of the run of an app that may run longer than others (`long=1`).
const LONG_INSTRUCTIONS: u64 = 20_000_000;

/// So much of the budget of a run hostile apps use: what is past it would end them.
const BUDGET_PART: f64 = 0.88;

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
        let work = Work::Calls { app: hostile, handler: number, argument: rounds.unwrap_or(1) };
        let mut party = stage.party(work, LOOPS_DEPTH, 10 + u64::from(number))?;
        if rounds.is_none() {
            fill_budget(&stage, &mut party, "hostile").context(|| format!("an app that is hostile by {name}"))?;
        }
        others.push((format!("beside an app that is hostile by {name}"), Some(party)));
    }
    let mut chasers = [0; CHASERS];
    for (number, chaser) in chasers.iter_mut().enumerate() {
        *chaser = stage.install(chaser_module(number)?)?;
    }
    let mut chase = stage.party(Work::Calls { app: chasers[0], handler: 1, argument: 1 }, LOOPS_DEPTH, 8)?;
    // The first run makes its memory ready.
    chase.one(|| Ok(()))?;
    let rounds = fill_budget(&stage, &mut chase, "chaser-0")?;
    others.push(("beside an app that chases pointers through its memory".to_owned(), Some(chase)));
    let all = stage.party(Work::Spread { apps: chasers, handler: 1, argument: rounds }, LOOPS_DEPTH, 9)?;
    others.push((format!("beside {CHASERS} apps that chase pointers through the memories of all SPUs"), Some(all)));
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

/// Has a party's calls do as much as the budget of a run covers, nearly: rounds of each.
fn fill_budget(stage: &Stage, party: &mut Party, app: &str) -> Outcome<u32> {
    let done = || -> Outcome<u64> {
        let statistics = stage.control(async |control| control.statistics().await)?;
        let mut apps = statistics["apps"].as_array().into_iter().flatten();
        let of = apps.find(|of| of["name"].as_str().is_some_and(|name| name.ends_with(&format!("-{app}"))));
        let count = |name: &str| of.and_then(|of| of[name].as_u64()).unwrap_or(0);
        Ok(count("instructions") + count("host_work"))
    };
    let aim = BUDGET_PART * willow_device::DeviceConfig::default().user_instruction_budget as f64;
    // Rounds and what a run of so many has had, of this look and the one before: what a round costs may change on the way.
    let (mut rounds, mut before) = (1_u32, (0.0, 0.0));
    loop {
        party.set_argument(rounds);
        let began = done()?;
        party.one(|| Ok(()))?;
        let had = (done()? - began) as f64;
        let round = ((had - before.1) / (f64::from(rounds) - before.0)).max(had / f64::from(rounds)).max(1.0);
        // In small steps: past the first MiB a byte costs three times as much, and an app that goes past its budget ends.
        let more = ((aim - had) / round).min((f64::from(rounds) / 4.0).max(1.0));
        if more < 1.0 || more < f64::from(rounds) / 64.0 {
            return Ok(rounds);
        }
        before = (f64::from(rounds), had);
        rounds += more as u32;
    }
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
    let names = ["flood", "loops", "transfers"]
        .into_iter()
        .chain(HOSTILE.iter().map(|(name, ..)| *name))
        .chain(["chase", "chases", "long"]);
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
