//! `willow torture`: what must not be lost, tried until something is. A number repeats what was found.
//!
//! What always holds: each case follows from its number alone, whatever ran before or beside it; cases share nothing.

use crate::failure::{Failure, Outcome, fail};
use crate::output;
use crate::progress;
use crate::table::grouped;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use willow_flash::Planted;
use willow_flash::testing::power_cut::Case;

/// Findings after which nothing more is looked for.
const FINDINGS_MAX: usize = 16;
/// Cases, where neither their number nor a seed is asked for.
const CASES_DEFAULT: u64 = 1000;
/// Jobs that may be asked for.
const JOBS_MAX: u16 = 1024;

/// What is tortured.
#[derive(Debug, clap::Subcommand)]
pub enum Torture {
    /// The power goes again and again while an FTL's lane works, on flash of several kinds with media failures at the same time; nothing durable
    /// may be lost, and nothing old may come back
    PowerCut(PowerCutOptions),
}

/// Flags of `willow torture power-cut`.
#[derive(Debug, clap::Args)]
pub struct PowerCutOptions {
    /// Cases, each of several cuts [default: 1000, or 1 with --seed]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Number of the first case: that of a finding repeats it [default: 0]
    #[arg(long)]
    pub seed: Option<u64>,
    /// Cases at the same time [default: as many as there are processors]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=i64::from(JOBS_MAX)))]
    pub jobs: Option<u16>,
    /// Plant a bug in the FTL, which must be found: see `--plant list`
    #[arg(long, value_name = "BUG")]
    pub plant: Option<String>,
    /// Show no progress bar
    #[arg(long)]
    pub quiet: bool,
    /// Print one JSON object: cases, cuts, findings (seed, found)
    #[arg(long)]
    pub json: bool,
}

/// Something that must not be.
#[derive(Clone, Debug, serde::Serialize)]
struct Finding {
    seed: u64,
    found: String,
}

/// Runs the command.
pub fn run(torture: Torture) -> Outcome<()> {
    let Torture::PowerCut(options) = torture;
    let names = || Planted::ALL.map(|(name, _)| name).join(", ");
    let planted = match options.plant.as_deref() {
        None => None,
        Some("list") => return output::text(&format!("{}\n", Planted::ALL.map(|(name, _)| name).join("\n"))),
        Some(asked) => match Planted::ALL.iter().find(|(name, _)| *name == asked) {
            Some((_, planted)) => Some(*planted),
            None => fail!("--plant {asked}: there is no such bug: use one of {}", names()),
        },
    };
    let first = options.seed.unwrap_or(0);
    let count = options.count.unwrap_or(if options.seed.is_some() { 1 } else { CASES_DEFAULT });
    let Some(end) = first.checked_add(count) else {
        fail!("--seed {first} --count {count}: there are no cases past {}: use a smaller count", u64::MAX);
    };
    let processors = std::thread::available_parallelism().map_or(1, |count| count.get().min(usize::from(JOBS_MAX)));
    let jobs = options.jobs.map_or(processors, usize::from);
    let bar = progress::bar(count, "power cuts", options.quiet || options.json);
    let (next, cases, cuts) = (AtomicU64::new(first), AtomicU64::new(0), AtomicU64::new(0));
    let findings = Mutex::new(Vec::new());
    let found = |finding: Finding| {
        let mut findings = findings.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        findings.push(finding);
        if findings.len() >= FINDINGS_MAX {
            next.store(end, Ordering::Relaxed);
        }
    };
    let work = || {
        // Another worker that has found enough sets the number to the end; past it nobody takes one.
        while let Ok(seed) =
            next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |seed| (seed < end).then(|| seed + 1))
        {
            match catch_unwind(AssertUnwindSafe(|| Case::of(seed).run(planted))) {
                Ok(Ok(made)) => {
                    cuts.fetch_add(made, Ordering::Relaxed);
                }
                Ok(Err(text)) => found(Finding { seed, found: text }),
                Err(panic) => {
                    let text = panic.downcast_ref::<String>().cloned();
                    let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
                    found(Finding { seed, found: format!("the lane's own assertion: {}", text.unwrap_or_default()) });
                }
            }
            cases.fetch_add(1, Ordering::Relaxed);
            bar.inc(1);
        }
    };
    // An assertion that fails is a finding, told with the others.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let missing = std::thread::scope(|scope| {
        // This thread is one of them, so that there is always one.
        let mut others = (1..jobs).map(|job| (job, std::thread::Builder::new().spawn_scoped(scope, work)));
        let missing = others.find_map(|(job, spawned)| Some((job, spawned.err()?)));
        work();
        missing
    });
    std::panic::set_hook(hook);
    bar.finish_and_clear();
    if let Some((had, error)) = missing {
        eprintln!(
            "willow: {had} of {jobs} jobs did all of it, since there are no more threads for this process: {error}"
        );
    }
    let mut findings = findings.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    findings.sort_by_key(|finding: &Finding| finding.seed);
    let (cases, cuts) = (cases.into_inner(), cuts.into_inner());
    if options.json {
        output::json(&serde_json::json!({ "cases": cases, "cuts": cuts, "findings": findings }))?;
    } else {
        let told = findings.iter().map(|finding| format!("seed {}: {}\n", finding.seed, finding.found));
        let sum = format!("{} cases from seed {first} on, {} cuts\n", grouped(cases), grouped(cuts));
        output::text(&format!("{}{sum}", told.collect::<String>()))?;
    }
    match findings.first() {
        None => Ok(()),
        Some(Finding { seed, .. }) => Err(Failure::new(format_args!(
            "{} cases found what must not be: repeat the first by willow torture power-cut --seed {seed}",
            findings.len()
        ))),
    }
}
