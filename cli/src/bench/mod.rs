//! `willow bench`: what the device costs and how fast it is. Never part of a test.

mod appending;
pub mod caching;
pub mod columns;
pub mod direct;
pub mod engine;
pub mod fairness;
pub mod flash;
pub mod fresh;
pub mod gate;
pub mod in_process;
pub mod instructions;
pub mod io;
pub mod kv;
pub mod mount;
pub mod neighbours;
mod opening;
pub mod party;
pub mod permission;
pub mod report;
pub mod sandbox;
pub mod shm;
pub mod simulation;
pub mod tcp;
pub mod uring;
mod wal;

use crate::failure::{Outcome, fail};
use crate::size::Size;
use crate::target::TargetOption;
use report::Report;
use std::path::PathBuf;
use std::time::Duration;

/// The benchmarks.
#[derive(Debug, clap::Subcommand)]
pub enum Bench {
    /// A file that is cached in the drive, by cache size: hits, misses and what other policies would have missed, beside reads by Direct-IO
    Cache(caching::CacheBenchOptions),
    /// A filter and sum over a Parquet file at 1 % selectivity in the drive against pyarrow through the mounted file system; root
    Columns(columns::ColumnsBenchOptions),
    /// What a process' reads take beside others' floods, loops and large transfers, and how two weights share
    Fairness(fairness::FairnessOptions),
    /// The FTL in the sandbox against the same natively, and reads of flash against reads of memory, in processor time
    Flash(flash::FlashBenchOptions),
    /// Small writes to memory that was never written beside writes to the same places once they were, by turns
    Fresh(fresh::FreshOptions),
    /// This build against an earlier one, by turns: every figure as a ratio, and failure where one is worse
    Gate(gate::GateOptions),
    /// What each kind of WebAssembly instruction takes this machine for each unit that it is charged
    Instructions(instructions::InstructionOptions),
    /// What a host's reads over NVMe/TCP take beside another host that floods the device in each of several ways
    Neighbours(neighbours::NeighboursOptions),
    /// What a look-up of a permission takes, and reads that are checked
    Permission(permission::PermissionOptions),
    /// A process of a benchmark: connects, hands its connection over and waits
    #[command(hide = true)]
    Process {
        /// The device's socket
        socket: PathBuf,
    },
    /// Random block reads and writes over NVMe/TCP, over shared memory, or in this process without network
    Io(io::IoOptions),
    /// Puts and gets of key-value pairs over NVMe/TCP, over shared memory, or in this process without network
    Kv(kv::KvOptions),
    /// A file that is read and written directly against the same file through its file system, by request size; root
    Direct(direct::DirectBenchOptions),
    /// The file of a mounted namespace against a plain file, by turns
    Mount(mount::MountOptions),
    /// Base-IO in the sandbox against the same handlers built natively, by turns
    Sandbox(sandbox::SandboxOptions),
    /// How fast simulated time passes: simulated requests a second of machine time
    Simulation(simulation::SimulationBenchOptions),
}

/// What all benchmarks take.
#[derive(Clone, Debug, clap::Args)]
pub struct CommonOptions {
    #[command(flatten)]
    pub target: TargetOption,
    /// Measure a device in memory in this process, without network
    #[arg(long, conflicts_with = "target")]
    pub in_process: bool,
    /// Numbers of operations under way, one measurement each
    #[arg(long, value_delimiter = ',', default_value = "1,32,128", value_name = "N,...")]
    pub depths: Vec<usize>,
    /// Seconds counted for each measurement
    #[arg(long, default_value_t = 3.0)]
    pub seconds: f64,
    /// Seconds before counting begins
    #[arg(long, default_value_t = 0.5)]
    pub warm_up: f64,
    /// Seed of the random numbers
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Append the result to a kept history
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "docs/benchmark-history.jsonl")]
    pub record: Option<PathBuf>,
}

impl CommonOptions {
    fn check(&self) -> Outcome<()> {
        for depth in &self.depths {
            if *depth == 0 || *depth > engine::QUEUE_DEPTH_MAX {
                fail!("--depths has {depth}, each must be 1 to {}", engine::QUEUE_DEPTH_MAX);
            }
        }
        if self.depths.is_empty() {
            fail!("--depths is empty, give at least one number");
        }
        for (name, seconds) in [("seconds", self.seconds), ("warm-up", self.warm_up)] {
            if !(0.0..=3600.0).contains(&seconds) {
                fail!("--{name} is {seconds}, must be 0 to 3600");
            }
        }
        Ok(())
    }

    fn duration(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }

    fn warm_up(&self) -> Duration {
        Duration::from_secs_f64(self.warm_up)
    }

    fn depth_max(&self) -> usize {
        self.depths.iter().copied().max().unwrap_or(1)
    }
}

/// Most turns of a benchmark in turns.
const TURNS_MAX: u32 = 100;

/// What benchmarks take that make a device of their own and read it in turns.
#[derive(Clone, Debug, clap::Args)]
pub struct TurnOptions {
    /// Turns of each measurement
    #[arg(long, default_value_t = 5)]
    pub turns: u32,
    /// Seconds counted for each measurement
    #[arg(long, default_value_t = 1.0)]
    pub seconds: f64,
    /// Bytes that the reads are spread over
    #[arg(long, default_value = "256M")]
    pub range: Size,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Append the result to a kept history
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "docs/benchmark-history.jsonl")]
    pub record: Option<PathBuf>,
}

impl TurnOptions {
    fn check(&self) -> Outcome<()> {
        if self.turns == 0 || self.turns > TURNS_MAX {
            fail!("--turns is {}, must be 1 to {TURNS_MAX}", self.turns);
        }
        if !(0.01..=3600.0).contains(&self.seconds) {
            fail!("--seconds is {}, must be 0.01 to 3600", self.seconds);
        }
        Ok(())
    }
}

/// Runs one, shows and records what it found.
pub fn run(bench: Bench) -> Outcome<()> {
    let (report, json, record) = match bench {
        Bench::Cache(options) => (caching::run(&options)?, options.json, options.record),
        Bench::Columns(options) => (columns::run(&options)?, options.json, options.record),
        Bench::Fairness(options) => (fairness::run(&options)?, options.turns.json, options.turns.record),
        Bench::Fresh(options) => (fresh::run(&options)?, options.json, options.record),
        Bench::Gate(options) => return gate::run(&options),
        Bench::Instructions(options) => return instructions::run(&options),
        Bench::Neighbours(options) => (neighbours::run(&options)?, options.turns.json, options.turns.record),
        Bench::Permission(options) => (permission::run(&options)?, options.turns.json, options.turns.record),
        Bench::Process { socket } => return party::be_a_child(&socket),
        Bench::Io(options) => (io::run(&options)?, options.common.json, options.common.record),
        Bench::Kv(options) => (kv::run(&options)?, options.common.json, options.common.record),
        Bench::Direct(options) => (direct::run(&options)?, options.json, options.record),
        Bench::Mount(options) => (mount::run(&options)?, options.json, options.record),
        Bench::Sandbox(options) => (sandbox::run(&options)?, options.common.json, options.common.record),
        Bench::Flash(options) => return flash::run(&options),
        Bench::Simulation(options) => return simulation::run(&options),
    };
    show(&report, json)?;
    if let Some(path) = &record {
        report.record(path)?;
    }
    Ok(())
}

fn show(report: &Report, json: bool) -> Outcome<()> {
    if json {
        return crate::output::json(report);
    }
    crate::output::text(&report::rows_table(&report.rows))?;
    for (name, value) in &report.figures {
        crate::output::text(&format!("{}: {value}\n", name.replace('_', " ")))?;
    }
    Ok(())
}
