//! `willow bench flash`: what flash and its FTL cost the machine. The drive is small (preset `slc` with a map of 4 KiB and few blocks), in use,
//! and in its steady state; requests are 4 KiB at random. All figures are processor time of one thread, taken by turns: other work on
//! the machine matters less than to elapsed time.

use crate::failure::{Failure, Outcome, fail};
use crate::output;
use crate::table::{Table, grouped};
use willow_sim::speed::{Drive, measure_drive};

/// Flags of `willow bench flash`.
#[derive(Clone, Debug, clap::Args)]
pub struct FlashBenchOptions {
    /// Requests of each measurement
    #[arg(long, default_value_t = 300_000)]
    pub requests: u64,
    /// Measurements of each kind, by turns; the medians count
    #[arg(long, default_value_t = 3)]
    pub turns: u32,
    /// Seed of the random numbers
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// What is measured: clock, requests, FTL, and how.
const KINDS: [(&str, &str, &str, Drive, u8); 9] = [
    ("simulated", "read", "sandbox", Drive { flash: true, free: false, native: false }, 100),
    ("simulated", "read", "native", Drive { flash: true, free: false, native: true }, 100),
    ("simulated", "write", "sandbox", Drive { flash: true, free: false, native: false }, 0),
    ("simulated", "write", "native", Drive { flash: true, free: false, native: true }, 0),
    ("free", "read", "sandbox", Drive { flash: true, free: true, native: false }, 100),
    ("free", "read", "native", Drive { flash: true, free: true, native: true }, 100),
    ("free", "write", "sandbox", Drive { flash: true, free: true, native: false }, 0),
    ("free", "write", "native", Drive { flash: true, free: true, native: true }, 0),
    ("free", "read", "none: memory", Drive { flash: false, free: true, native: false }, 100),
];
/// Places in [`KINDS`] of the FTL in the sandbox; the same natively follows each.
const SANDBOXED: [usize; 4] = [0, 2, 4, 6];
/// Places of reads of flash and of memory under the free clock.
const READS: (usize, usize) = (4, 8);

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of.get(of.len() / 2).copied().unwrap_or(0.0)
}

/// Runs it and shows what it found.
pub fn run(options: &FlashBenchOptions) -> Outcome<()> {
    if options.turns == 0 || options.turns > 100 || options.requests == 0 {
        fail!("--turns is {}, must be 1 to 100; --requests at least 1", options.turns);
    }
    let mut rates = KINDS.map(|_| Vec::new());
    for _ in 0..options.turns {
        for ((.., drive, read_percent), rates) in KINDS.iter().zip(&mut rates) {
            let measured =
                measure_drive(*drive, *read_percent, options.requests, options.seed).map_err(Failure::new)?;
            rates.push(measured.requests_per_second());
        }
    }
    // By turns: what the machine did meanwhile, it did to both.
    let pairs = |of: usize, to: usize| rates[of].iter().zip(&rates[to]);
    let ratio = |of: usize| median(pairs(of, of + 1).map(|(sandbox, native)| sandbox / native).collect());
    let extra_ns = median(pairs(READS.0, READS.1).map(|(flash, memory)| 1e9 / flash - 1e9 / memory).collect());
    let all = || KINDS.iter().zip(&rates).map(|(kind, rates)| (kind, median(rates.clone())));
    if options.json {
        let rows: Vec<_> = all()
            .map(|((clock, request, ftl, ..), rate)| {
                serde_json::json!({ "clock": clock, "request": request, "ftl": ftl, "requests_per_second": rate })
            })
            .collect();
        let ratios: Vec<_> = SANDBOXED
            .map(|of| serde_json::json!({ "clock": KINDS[of].0, "request": KINDS[of].1, "sandbox_over_native": ratio(of) }))
            .to_vec();
        return output::json(&serde_json::json!({
            "bench": "flash", "requests": options.requests, "rows": rows, "ratios": ratios,
            "flash_read_extra_ns": extra_ns,
        }));
    }
    let mut table = Table::new(&["clock", "4 KiB", "FTL", "requests/s of processor time", "of native"]);
    for (place, ((clock, request, ftl, ..), rate)) in all().enumerate() {
        let of_native = if SANDBOXED.contains(&place) { format!("{:.2}", ratio(place)) } else { String::new() };
        table.row([(*clock).to_owned(), (*request).to_owned(), (*ftl).to_owned(), grouped(rate as u64), of_native]);
    }
    output::text(&format!(
        "{}A read of flash in memory takes {extra_ns:.0} ns of processor time more than one of memory, under the free clock.\n",
        table.render()
    ))
}
