//! `willow simulate`: a workload, or a recorded trace, on modelled hardware in simulated time.

use crate::failure::{Context, Failure, Outcome, fail};
use crate::modules;
use crate::output;
use crate::size::Size;
use crate::table::{Table, grouped};
use std::fs::File;
use std::io::{BufReader, BufWriter, Write};
use std::path::PathBuf;
use willow_sim::replay::{Format, Records, Replay, ReplayOptions};
use willow_sim::report::{FlashReport, ResourceReport};
use willow_sim::snapshot::{Snapshot, SnapshotHead};
use willow_sim::{
    BlockWorkload, Cut, GeneratorOptions, KvWorkload, Path, Preset, Report, Simulation, SimulationOptions, Trace,
};

/// The preset where none is asked for.
const PRESET_DEFAULT: &str = "bee3";
/// Bytes that block operations are spread over where no other number is given.
const RANGE_DEFAULT: u64 = 256 << 20;

/// Workloads that need no file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Workload {
    /// Reads and writes of the block namespace
    Block,
    /// Gets and puts of pairs, loaded first
    Kv,
}

/// Where contents of flash are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Contents {
    /// In memory
    Memory,
    /// Nowhere but for what the FTL needs
    None,
}

/// What is written before a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Precondition {
    /// Nothing
    None,
    /// The range, in order
    Fill,
    /// The range in order, then at random until the write amplification stays
    Steady,
}

/// Flags of `willow simulate`.
#[derive(Debug, clap::Args)]
pub struct SimulateOptions {
    /// Hardware and host: the name of a preset (bee3, ...) or the path of a preset file [default: bee3, or the one that the snapshot names]
    #[arg(long)]
    pub preset: Option<String>,
    /// Begin with the drive that `willow snapshot save` has saved, in each simulation
    #[arg(long, value_name = "FILE", conflicts_with_all = ["ftl", "contents", "size"])]
    pub snapshot: Option<PathBuf>,
    /// The FTL of a preset with flash [default: page]
    #[arg(long, value_name = "NAME")]
    pub ftl: Option<String>,
    /// Contents of flash: memory, or none: they read as zeroes, and a mapping unit takes at most 24 bytes of memory [default: none for block, memory for kv]
    #[arg(long, value_enum, value_name = "memory|none")]
    pub contents: Option<Contents>,
    /// What is written before the measurement, on flash: nothing; the range, in order (fill); or that, and then at random until as much is
    /// collected as will be from then on (steady) [default: fill on flash; nothing on a snapshot]
    #[arg(long, value_enum)]
    pub precondition: Option<Precondition>,
    /// What is done
    #[arg(long, value_enum, default_value = "block", conflicts_with = "replay")]
    pub workload: Workload,
    /// Way through the host's software: file, raw, user, rpc or bare [default: file for block, rpc for kv]
    #[arg(long)]
    pub path: Option<Path>,
    /// Bytes of an operation: a multiple of 512, at most 16M
    #[arg(long, default_value = "4K")]
    pub bs: Size,
    /// Operations that each thread has under way, one simulation each
    #[arg(long, value_delimiter = ',', default_value = "1,16", value_name = "N,...")]
    pub depths: Vec<usize>,
    /// Host threads
    #[arg(long, default_value_t = 1)]
    pub threads: usize,
    /// Parts of reads (gets) in a hundred, one simulation each
    #[arg(long, value_delimiter = ',', default_value = "100,0", value_name = "PERCENT,...")]
    pub mix: Vec<u8>,
    /// Bytes that block operations are spread over [default: 256M, or what was written of the snapshot]
    #[arg(long)]
    pub range: Option<Size>,
    /// Go through the range in order instead of at random
    #[arg(long)]
    pub sequential: bool,
    /// Size of the block namespace [default: the range]
    #[arg(long)]
    pub size: Option<Size>,
    /// Pairs that are loaded first
    #[arg(long, default_value_t = 10_000)]
    pub pairs: u64,
    /// Bytes of a value, at most 1M
    #[arg(long, default_value = "1K")]
    pub value: Size,
    /// Operations of each simulation, all threads together
    #[arg(long, default_value_t = 20_000)]
    pub operations: u64,
    /// End after this simulated time instead (block)
    #[arg(long)]
    pub seconds: Option<f64>,
    /// Simulated time that is not counted at first, seconds
    #[arg(long, default_value_t = 0.0)]
    pub warm_up: f64,
    /// Cut the power so many simulated seconds after the measurement began, on flash; how long the drive then takes to be ready is told
    #[arg(long, value_name = "SECONDS")]
    pub cut_power_at: Option<f64>,
    /// Seed of the random numbers
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Run the apps as native code: simulates faster, at a constant processor time for each handler
    #[arg(long)]
    pub native: bool,
    /// Replay a trace
    #[arg(long, value_name = "FILE", requires = "format")]
    pub replay: Option<PathBuf>,
    /// Format of the trace: fio (iolog 2 and 3), blktrace (blkparse's text) or msr (MSR Cambridge CSV)
    #[arg(long)]
    pub format: Option<Format>,
    /// Replay at the trace's times instead of as fast as the queue takes it
    #[arg(long, requires = "replay")]
    pub timed: bool,
    /// Let addresses past the end go on from the beginning, and make ranges whole blocks
    #[arg(long, requires = "replay")]
    pub wrap: bool,
    /// Write a trace for Perfetto or chrome://tracing (one simulation only)
    #[arg(long, value_name = "FILE.json")]
    pub trace: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

impl SimulateOptions {
    fn check(&self) -> Outcome<()> {
        if self.bs.0 == 0 || self.bs.0 > 16 << 20 || !self.bs.0.is_multiple_of(512) {
            fail!("--bs is {}, must be a multiple of 512 up to 16M", self.bs);
        }
        if self.depths.is_empty() || self.mix.is_empty() || self.mix.iter().any(|percent| *percent > 100) {
            fail!("--depths takes numbers from 1, --mix numbers from 0 to 100");
        }
        if self.value.0 > 1 << 20 || self.pairs == 0 || self.pairs > 100_000_000 {
            fail!("--value is {} and --pairs {}, must be at most 1M and 1 to 100,000,000", self.value, self.pairs);
        }
        if self.operations == 0 {
            fail!("--operations is 0, must be at least 1");
        }
        let cut = self.cut_power_at.unwrap_or(0.0);
        for (name, seconds) in
            [("seconds", self.seconds.unwrap_or(1.0)), ("warm-up", self.warm_up), ("cut-power-at", cut)]
        {
            if !(0.0..=1e6).contains(&seconds) {
                fail!("--{name} is {seconds}, must be 0 to 1000000");
            }
        }
        if self.snapshot.is_some() && self.workload == Workload::Kv {
            fail!("--snapshot is of a block namespace: leave --workload kv out");
        }
        if self.trace.is_some() && self.replay.is_none() && self.depths.len() * self.mix.len() != 1 {
            fail!("--trace is of one simulation: give one number to each of --depths and --mix");
        }
        Ok(())
    }

    /// Bytes that block operations are spread over.
    fn range(&self, snapshot: Option<&SnapshotHead>) -> u64 {
        self.range.map_or(snapshot.map_or(RANGE_DEFAULT, |head| head.range_bytes), |range| range.0)
    }

    fn snapshot(&self) -> Outcome<Option<Snapshot>> {
        self.snapshot.as_deref().map(Snapshot::open).transpose().map_err(Failure::new)
    }

    fn simulation(&self, preset: &Preset, trace: Option<&Trace>) -> Outcome<Simulation> {
        let kv = self.workload == Workload::Kv && self.replay.is_none();
        if let Some(snapshot) = self.snapshot()? {
            let options = SimulationOptions {
                native: self.native,
                ftl: Some(snapshot.head.ftl.clone()),
                trace: trace.cloned(),
                kept_modules: modules::by_default(),
                ..SimulationOptions::new(preset.clone())
            };
            return Simulation::restore(&options, snapshot).map_err(Failure::new);
        }
        Simulation::new(&SimulationOptions {
            namespace_bytes: if kv { 0 } else { self.size.map_or(self.range(None), |size| size.0) },
            kv_namespace_bytes: if kv { (self.pairs * (self.value.0 + 512) * 2).max(64 << 20) } else { 0 },
            native: self.native,
            ftl: self.ftl.clone(),
            contents: self.contents.map_or(kv, |contents| contents == Contents::Memory),
            trace: trace.cloned(),
            seed: self.seed,
            kept_modules: modules::by_default(),
            ..SimulationOptions::new(preset.clone())
        })
        .map_err(Failure::new)
    }

    fn path(&self) -> Path {
        let kv = self.workload == Workload::Kv && self.replay.is_none();
        self.path.unwrap_or(if kv { Path::Rpc } else { Path::File })
    }

    fn block(&self, range_bytes: u64, depth: usize, read_percent: u8) -> BlockWorkload {
        let nanoseconds = |seconds: f64| (seconds * 1e9) as u64;
        let order = if self.sequential { "sequential" } else { "random" };
        BlockWorkload {
            name: format!("{order} {} QD{depth}, {read_percent} % reads", self.bs),
            path: self.path(),
            threads: self.threads,
            queue_depth: depth,
            bytes: self.bs.0 as u32,
            read_percent,
            range_bytes,
            sequential: self.sequential,
            once: false,
            operations: self.seconds.is_none().then_some(self.operations),
            duration_ns: self.seconds.map(nanoseconds),
            warm_up_ns: nanoseconds(self.warm_up),
            file_a_thread: false,
            seed: self.seed,
        }
    }

    fn kv(&self, depth: usize, get_percent: u8) -> KvWorkload {
        KvWorkload {
            name: format!("{} QD{depth}, {get_percent} % gets", self.value),
            path: self.path(),
            threads: self.threads,
            queue_depth: depth,
            keys: self.pairs,
            value_bytes: self.value.0 as u32,
            get_percent,
            load: false,
            operations: self.operations,
            seed: self.seed,
        }
    }

    fn one(&self, preset: &Preset, trace: Option<&Trace>, depth: usize, percent: u8) -> Outcome<Report> {
        let mut simulation = self.simulation(preset, trace)?;
        let (generator, source) = match self.workload {
            Workload::Block => {
                let range = self.range(self.snapshot()?.as_ref().map(|snapshot| &snapshot.head));
                self.precondition(preset, &mut simulation, range)?;
                self.block(range, depth, percent).generator().map_err(Failure::new)?
            }
            Workload::Kv => {
                let load = KvWorkload { name: "load".to_owned(), load: true, ..self.kv(16, 0) };
                let (generator, source) = load.generator().map_err(Failure::new)?;
                simulation.generator(generator, source).map_err(Failure::new)?;
                simulation.run().map_err(Failure::new)?;
                self.kv(depth, percent).generator().map_err(Failure::new)?
            }
        };
        simulation.generator(generator, source).map_err(Failure::new)?;
        self.measure(simulation)
    }

    /// Runs what is to be measured, up to a cut of the power where one is asked for.
    fn measure(&self, mut simulation: Simulation) -> Outcome<Report> {
        let Some(seconds) = self.cut_power_at else { return simulation.run().map_err(Failure::new) };
        let mut report = simulation.run_for((seconds * 1e9) as u64).map_err(Failure::new)?;
        let (_, cut) = simulation.cut_power(Cut::Random(self.seed)).map_err(Failure::new)?;
        report.power_cut = Some(cut);
        Ok(report)
    }

    /// Writes what is to be there before the measurement.
    fn precondition(&self, preset: &Preset, simulation: &mut Simulation, range: u64) -> Outcome<()> {
        let default = match preset.has_flash() && self.snapshot.is_none() {
            true => Precondition::Fill,
            false => Precondition::None,
        };
        precondition(simulation, self.precondition.unwrap_or(default), range, self.bs.0 as u32, self.seed)
    }

    fn replayed(&self, preset: &Preset, trace: Option<&Trace>, file: &std::path::Path) -> Outcome<Report> {
        let name = file.display();
        let Some(format) = self.format else { fail!("--replay needs --format: fio, blktrace or msr") };
        let input = BufReader::new(File::open(file).context(|| format!("cannot read trace {name}"))?);
        let mut simulation = self.simulation(preset, trace)?;
        let range = self.range(self.snapshot()?.as_ref().map(|snapshot| &snapshot.head));
        self.precondition(preset, &mut simulation, range)?;
        let options = ReplayOptions {
            namespace_bytes: simulation.block_namespace_bytes(),
            block_bytes: 512,
            wrap: self.wrap,
            timed: self.timed,
        };
        let generator = GeneratorOptions {
            name: name.to_string(),
            path: self.path(),
            threads: self.threads,
            queue_depth: self.depths.iter().copied().max().unwrap_or(1),
            warm_up_ns: (self.warm_up * 1e9) as u64,
            duration_ns: self.seconds.map(|seconds| (seconds * 1e9) as u64),
            file_a_thread: false,
        };
        let replay = Replay::new(Records::new(input, format), options);
        simulation.generator(generator, Box::new(replay)).map_err(Failure::new)?;
        self.measure(simulation)
    }
}

/// Writes to a drive what is to be there before a measurement.
pub fn precondition(
    simulation: &mut Simulation,
    wanted: Precondition,
    range: u64,
    bytes: u32,
    seed: u64,
) -> Outcome<()> {
    if wanted == Precondition::None {
        return Ok(());
    }
    simulation.fill(range).map_err(Failure::new)?;
    if wanted == Precondition::Steady {
        simulation.settle_flash(range, bytes, seed).map_err(Failure::new)?;
    }
    Ok(())
}

/// Runs it.
pub fn run(options: &SimulateOptions) -> Outcome<()> {
    options.check()?;
    let saved = options.snapshot()?.map(|snapshot| snapshot.head.preset);
    let preset = options.preset.clone().or(saved).unwrap_or_else(|| PRESET_DEFAULT.to_owned());
    let preset = Preset::load(&preset).map_err(Failure::new)?;
    let trace = options.trace.as_ref().map(|_| Trace::new());
    let mut reports = Vec::new();
    match &options.replay {
        Some(file) => reports.push(options.replayed(&preset, trace.as_ref(), file)?),
        None => {
            let total = (options.mix.len() * options.depths.len()) as u64;
            let bar = crate::progress::bar(total, "simulating", options.json);
            for percent in &options.mix {
                for depth in &options.depths {
                    reports.push(options.one(&preset, trace.as_ref(), *depth, *percent)?);
                    bar.inc(1);
                }
            }
            bar.finish_and_clear();
        }
    }
    if let (Some(trace), Some(path)) = (&trace, &options.trace) {
        let circumstance = || format!("cannot write trace {}", path.display());
        let mut file = BufWriter::new(File::create(path).context(circumstance)?);
        trace.write(&mut file).and_then(|()| file.flush()).context(circumstance)?;
        let (_, dropped) = trace.events();
        if dropped > 0 {
            eprintln!("willow: the trace has its first {} spans; {dropped} more were left out", trace.events().0);
        }
    }
    if options.json {
        return output::json(&serde_json::json!({ "simulations": reports }));
    }
    output::text(&tables(&reports))
}

/// Most dies of an SPU that have a line each.
const DIES_TOLD_MAX: usize = 8;

/// The resources, but many dies of an SPU as the least and the most used and all together.
fn grouped_dies(resources: &[ResourceReport]) -> Vec<ResourceReport> {
    let dies_of = |resource: &ResourceReport| resource.name.split_once(" die ").map(|(of, _)| of.to_owned());
    let mut told = Vec::new();
    let mut rest = resources;
    while let Some(first) = rest.first() {
        let of = dies_of(first);
        let count = match &of {
            Some(_) => rest.iter().take_while(|resource| dies_of(resource) == of).count(),
            None => 1,
        };
        let (these, after) = rest.split_at(count);
        rest = after;
        let Some(of) = of.filter(|_| count > DIES_TOLD_MAX) else {
            told.extend_from_slice(these);
            continue;
        };
        let by_use = |a: &&ResourceReport, b: &&ResourceReport| a.utilization.total_cmp(&b.utilization);
        let line = |name: String, of: &[&ResourceReport]| ResourceReport {
            name,
            utilization: of.iter().map(|die| die.utilization).sum::<f64>() / of.len() as f64,
            operations: of.iter().map(|die| die.operations).sum(),
            bytes: 0,
            waited_ns: of.iter().map(|die| die.waited_ns).sum(),
        };
        let (least, most) = (these.iter().min_by(by_use), these.iter().max_by(by_use));
        told.push(line(format!("{of} dies, all {count}"), &these.iter().collect::<Vec<_>>()));
        told.extend(least.map(|die| line(format!("{}, least used", die.name), &[die])));
        told.extend(most.map(|die| line(format!("{}, most used", die.name), &[die])));
    }
    told
}

fn flash_text(flash: &FlashReport) -> String {
    format!(
        "write amplification: {:.3} (merging {:.3}, collection {:.3}, leveling {:.3}, metadata {:.3}, fillers {:.3}) for {} bytes written\n\
         flash: {} pages read, {} programmed, {} of them by copyback, {} blocks erased, {} suspensions for reads, {} reads corrected, {} read retries, \
         {} reads that failed, {} programs and erases that did\n\
         erases of a block since the device was made: {:.2} on average, {} to {}, standard deviation {:.2}\n",
        flash.write_amplification,
        flash.by_merging,
        flash.by_collection,
        flash.by_leveling,
        flash.by_metadata,
        flash.by_fillers,
        grouped(flash.host_bytes),
        grouped(flash.reads),
        grouped(flash.programs),
        grouped(flash.copybacks),
        grouped(flash.erases),
        grouped(flash.suspensions),
        grouped(flash.corrected_reads),
        grouped(flash.retries),
        grouped(flash.uncorrectable_reads),
        grouped(flash.failures),
        flash.erases_mean,
        flash.erases_min,
        flash.erases_max,
        flash.erases_deviation,
    )
}

fn tables(reports: &[Report]) -> String {
    let us = |ns: f64| format!("{:.2}", ns / 1000.0);
    let mut rows = Table::new(&[
        "workload",
        "operation",
        "threads",
        "count",
        "IOPS",
        "MB/s",
        "mean us",
        "p50",
        "p99",
        "p99.9",
        "max",
    ]);
    for row in reports.iter().flat_map(|report| &report.workloads) {
        rows.row([
            row.name.clone(),
            row.kind.to_owned(),
            row.threads.to_string(),
            grouped(row.operations),
            grouped(row.iops as u64),
            format!("{:.1}", row.bytes_per_second / 1e6),
            us(row.latency.mean_ns),
            us(row.latency.p50_ns as f64),
            us(row.latency.p99_ns as f64),
            us(row.latency.p999_ns as f64),
            us(row.latency.max_ns as f64),
        ]);
    }
    let mut text = rows.render();
    for report in reports {
        let name = report.workloads.first().map_or("", |row| row.name.as_str());
        text.push_str(&format!(
            "\n{name}: {:.6} s simulated, {:.4} J, preset {}\n",
            report.elapsed_ns as f64 / 1e9,
            report.joules(),
            report.preset
        ));
        let mut used = Table::new(&["resource", "used %", "count", "waited us, mean"]);
        for resource in grouped_dies(&report.resources).iter().filter(|resource| resource.utilization > 0.0) {
            used.row([
                resource.name.clone(),
                format!("{:.1}", resource.utilization * 100.0),
                grouped(resource.operations),
                us(resource.waited_ns as f64 / resource.operations.max(1) as f64),
            ]);
        }
        text.push_str(&used.render());
        if let Some(flash) = &report.flash {
            text.push_str(&flash_text(flash));
        }
        if let Some(cut) = &report.power_cut {
            text.push_str(&format!(
                "power cut after {:.6} s: {} pages were being programmed and {} blocks erased; ready again {:.6} s after the power was back\n",
                cut.at_ns as f64 / 1e9,
                grouped(cut.programming_pages),
                grouped(cut.erasing_blocks),
                cut.ready_ns as f64 / 1e9,
            ));
        }
        if report.wear.line_writes > 0 {
            text.push_str(&format!(
                "wear: {} line writes on {} lines, at most {} on one ({:.2e} of its endurance), {} moves of the gap\n",
                report.wear.line_writes,
                report.wear.lines_written,
                report.wear.line_writes_max,
                report.wear.worn,
                report.wear.gap_moves
            ));
        }
    }
    text
}
