//! `willow bench simulation`: simulated requests a second of machine time, 4 KiB random reads at queue depth 16 on one core.

use crate::failure::{Failure, Outcome, fail};
use crate::output;
use crate::table::{Table, grouped};
use willow_sim::{Path, Preset, speed};

/// Flags of `willow bench simulation`.
#[derive(Clone, Debug, clap::Args)]
pub struct SimulationBenchOptions {
    /// Hardware and host
    #[arg(long, default_value = "modern-nvme")]
    pub preset: String,
    /// Requests of each measurement
    #[arg(long, default_value_t = 1_000_000)]
    pub requests: u64,
    /// Measurements of each kind, by turns; the best counts
    #[arg(long, default_value_t = 3)]
    pub turns: u32,
    /// Seed of the random numbers
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Runs it and shows what it found.
pub fn run(options: &SimulationBenchOptions) -> Outcome<()> {
    if options.turns == 0 || options.turns > 100 || options.requests == 0 {
        fail!("--turns is {}, must be 1 to 100; --requests at least 1", options.turns);
    }
    let preset = Preset::load(&options.preset).map_err(Failure::new)?;
    let kinds =
        [("native", true, Path::Bare), ("sandboxed", false, Path::Bare), ("native, with host", true, Path::Raw)];
    let mut best = kinds.map(|_| (0.0_f64, 0.0_f64));
    for _ in 0..options.turns {
        for (place, (_, native, path)) in kinds.iter().enumerate() {
            let measured =
                speed::measure(&preset, *native, *path, options.requests, options.seed).map_err(Failure::new)?;
            let iops = measured.report.only().map_or(0.0, |row| row.iops);
            best[place] = (best[place].0.max(measured.requests_per_second()), iops);
        }
    }
    let names = kinds.map(|(name, ..)| name);
    if options.json {
        let rows: Vec<_> = (names.iter().zip(best))
            .map(|(name, (rate, iops))| serde_json::json!({ "base_io": name, "requests_per_second": rate, "simulated_iops": iops }))
            .collect();
        return output::json(&serde_json::json!({
            "bench": "simulation", "preset": preset.name, "requests": options.requests, "rows": rows,
        }));
    }
    let mut table = Table::new(&["Base-IO", "simulated requests/s of machine time", "simulated IOPS"]);
    for (name, (rate, iops)) in names.iter().zip(best) {
        table.row([(*name).to_owned(), grouped(rate as u64), grouped(iops as u64)]);
    }
    output::text(&table.render())
}
