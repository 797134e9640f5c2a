//! `willow bench gate --against PATH`: this build and an earlier one run the same benchmarks by turns in one run, since machines drift;
//! each figure is the median of the turns' ratios of new to old.
//!
//! What always holds: both builds get the same arguments, and serve for themselves what they measure; a figure that one of them does not
//! have is shown without a ratio and fails nothing; a turn begins with the other build than the one before.

use super::TURNS_MAX;
use crate::failure::{Context, Failure, Outcome, fail};
use crate::output;
use crate::table::Table;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Flags of `willow bench gate`.
#[derive(Clone, Debug, clap::Args)]
pub struct GateOptions {
    /// The earlier `willow`
    #[arg(long, value_name = "PATH")]
    pub against: PathBuf,
    /// What to run
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Suite::InProcess, Suite::Tcp, Suite::Memory, Suite::Pairs, Suite::Simulation])]
    pub suites: Vec<Suite>,
    /// Turns of each suite
    #[arg(long, default_value_t = 5)]
    pub turns: u32,
    /// Seconds counted for each measurement
    #[arg(long, default_value_t = 1.0)]
    pub seconds: f64,
    /// How much worse a figure may be, in a hundred, before the gate fails
    #[arg(long, default_value_t = 3.0)]
    pub worse: f64,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// A benchmark that both builds run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Suite {
    /// `bench io --in-process`
    InProcess,
    /// `bench io` over NVMe/TCP
    Tcp,
    /// `bench io` over shared memory
    Memory,
    /// `bench kv --in-process`
    Pairs,
    /// `bench simulation`
    Simulation,
}

/// A figure's name and whether more of it is better.
type Figures = BTreeMap<(String, bool), f64>;

/// What both builds had, turn by turn, and the median of the ratios.
struct Compared {
    name: String,
    more_is_better: bool,
    old: f64,
    new: f64,
    /// New to old; `None` where one of them lacks it.
    ratio: Option<f64>,
}

impl Compared {
    /// True where it is worse by more than so many in a hundred.
    fn is_worse_by(&self, percent: f64) -> bool {
        let Some(ratio) = self.ratio else { return false };
        if self.more_is_better { ratio < 1.0 - percent / 100.0 } else { ratio > 1.0 + percent / 100.0 }
    }
}

/// Runs it; an error where a figure is worse.
pub fn run(options: &GateOptions) -> Outcome<()> {
    if options.turns == 0 || options.turns > TURNS_MAX {
        fail!("--turns is {}, must be 1 to {TURNS_MAX}", options.turns);
    }
    if !(0.01..=3600.0).contains(&options.seconds) {
        fail!("--seconds is {}, must be 0.01 to 3600", options.seconds);
    }
    if !(0.0..=100.0).contains(&options.worse) {
        fail!("--worse is {}, must be 0 to 100", options.worse);
    }
    let this = std::env::current_exe().context(|| "cannot find this program".to_owned())?;
    let mut compared = Vec::new();
    for suite in &options.suites {
        let mut turns = Vec::new();
        for turn in 0..options.turns {
            let old = || measure(&options.against, *suite, options.seconds);
            let new = || measure(&this, *suite, options.seconds);
            turns.push(if turn % 2 == 0 {
                let old = old()?;
                (old, new()?)
            } else {
                let new = new()?;
                (old()?, new)
            });
        }
        compared.extend(compare(&turns));
    }
    show(options, &compared)?;
    let worse = compared.iter().filter(|one| one.is_worse_by(options.worse)).count();
    if worse > 0 {
        fail!("{worse} figures are more than {} % worse than those of {}", options.worse, options.against.display());
    }
    Ok(())
}

fn show(options: &GateOptions, compared: &[Compared]) -> Outcome<()> {
    if options.json {
        let rows: Vec<_> = compared
            .iter()
            .map(|one| {
                serde_json::json!({
                    "name": one.name, "old": one.old, "new": one.new, "ratio": one.ratio, "more_is_better": one.more_is_better,
                    "worse": one.is_worse_by(options.worse),
                })
            })
            .collect();
        return output::json(&serde_json::json!({ "bench": "gate", "against": options.against, "rows": rows }));
    }
    let mut table = Table::new(&["figure", "old", "new", "new to old", "verdict"]);
    for one in compared {
        let verdict = match one.ratio {
            None => "not in both",
            Some(_) if one.is_worse_by(options.worse) => "WORSE",
            Some(_) => "ok",
        };
        table.row([
            one.name.clone(),
            format!("{:.1}", one.old),
            format!("{:.1}", one.new),
            one.ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.3}")),
            verdict.to_owned(),
        ]);
    }
    output::text(&table.render())
}

/// A `willow serve` of one of the builds; it does not outlive the value.
struct Served(Child);

impl Drop for Served {
    fn drop(&mut self) {
        // Ended already is fine.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a device of a build: its process, its address and its socket.
fn serve(willow: &Path, folder: &Path) -> Outcome<(Served, String)> {
    let socket = folder.join("socket");
    let child = Command::new(willow)
        .args(["serve", "--ram", "--log", "error", "--listen", "127.0.0.1:0", "--socket"])
        .arg(&socket)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context(|| format!("cannot start {} serve", willow.display()))?;
    let mut served = Served(child);
    let Some(output) = served.0.stdout.take() else { fail!("the device has no output") };
    let mut line = String::new();
    // A device that does not start ends, and with it the line.
    BufReader::new(output).read_line(&mut line).context(|| "no line from the device".to_owned())?;
    let address = line.split_whitespace().find_map(|word| word.strip_prefix("listen="));
    match address {
        Some(address) => Ok((served, address.to_owned())),
        None => fail!("{} serve said {:?} instead of being ready", willow.display(), line.trim()),
    }
}

/// What one build has in one turn of a suite.
fn measure(willow: &Path, suite: Suite, seconds: f64) -> Outcome<Figures> {
    let seconds = seconds.to_string();
    let timed = ["--seconds", &seconds, "--warm-up", "0.25", "--json"];
    let folder = std::env::temp_dir().join(format!("willow-gate-{}", std::process::id()));
    std::fs::create_dir_all(&folder).context(|| format!("cannot make {}", folder.display()))?;
    let socket = folder.join("socket").display().to_string();
    let mut served = None;
    let mut target = |by_socket: bool| -> Outcome<String> {
        let (device, address) = serve(willow, &folder)?;
        served = Some(device);
        Ok(if by_socket { socket.clone() } else { address })
    };
    let found = match suite {
        Suite::InProcess => bench(willow, &[&["io", "--in-process"], &timed[..]].concat()),
        Suite::Pairs => bench(willow, &[&["kv", "--in-process"], &timed[..]].concat()),
        Suite::Tcp => target(false).and_then(|it| bench(willow, &[&["io", "--target", &it], &timed[..]].concat())),
        Suite::Memory => target(true).and_then(|it| bench(willow, &[&["io", "--target", &it], &timed[..]].concat())),
        Suite::Simulation => bench(willow, &["simulation", "--turns", "1", "--requests", "500000", "--json"]),
    };
    drop(served);
    let _ = std::fs::remove_dir_all(&folder);
    found.map(|report| figures(suite, &report))
}

fn bench(willow: &Path, arguments: &[&str]) -> Outcome<Value> {
    let output = Command::new(willow)
        .arg("bench")
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .context(|| format!("cannot run {}", willow.display()))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(Failure::new(format!("{} bench {}: {said}", willow.display(), arguments.join(" "))));
    }
    serde_json::from_slice(&output.stdout).context(|| format!("{} bench {}", willow.display(), arguments.join(" ")))
}

/// The figures of a report: of each row its rate and its median latency, and the processor time of whoever has the device in it.
fn figures(suite: Suite, report: &Value) -> Figures {
    let mut found = Figures::new();
    let rows = report["rows"].as_array().map_or(&[][..], Vec::as_slice);
    for row in rows {
        let text = |key: &str| row[key].as_str().unwrap_or_default();
        if suite == Suite::Simulation {
            let name = format!("simulation, {}: requests a second", text("base_io"));
            found.extend(row["requests_per_second"].as_f64().map(|value| ((name, true), value)));
            continue;
        }
        let of = format!("{}, {}, QD{}", text("transport"), text("name"), row["queue_depth"]);
        let in_process = suite == Suite::InProcess || suite == Suite::Pairs;
        let cpu = if in_process { "client_cpu_seconds_per_million" } else { "target_cpu_seconds_per_million" };
        let figures =
            [("IOPS", true, &row["iops"]), ("p50 ns", false, &row["latency"]["p50_ns"]), ("CPU s/M", false, &row[cpu])];
        for (name, more_is_better, value) in figures {
            found.extend(value.as_f64().map(|value| ((format!("{of}: {name}"), more_is_better), value)));
        }
    }
    found
}

/// Medians over turns, and of each turn's ratio.
fn compare(turns: &[(Figures, Figures)]) -> Vec<Compared> {
    let names: std::collections::BTreeSet<_> =
        turns.iter().flat_map(|(old, new)| old.keys().chain(new.keys())).collect();
    let all = |side: fn(&(Figures, Figures)) -> &Figures, key| {
        median(turns.iter().filter_map(|turn| side(turn).get(key).copied()).collect())
    };
    names
        .into_iter()
        .map(|key| {
            let ratio = |(old, new): &(Figures, Figures)| Some(new.get(key)? / old.get(key).filter(|old| **old > 0.0)?);
            let ratios: Vec<f64> = turns.iter().filter_map(ratio).collect();
            Compared {
                name: key.0.clone(),
                more_is_better: key.1,
                old: all(|turn| &turn.0, key).unwrap_or(0.0),
                new: all(|turn| &turn.1, key).unwrap_or(0.0),
                ratio: median(ratios),
            }
        })
        .collect()
}

fn median(mut of: Vec<f64>) -> Option<f64> {
    of.sort_by(f64::total_cmp);
    of.get(of.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(iops: f64, p50_ns: u64) -> Figures {
        let row = serde_json::json!({
            "name": "random read 4K", "transport": "in-process", "queue_depth": 1, "iops": iops, "latency": { "p50_ns": p50_ns },
            "client_cpu_seconds_per_million": 0.4, "target_cpu_seconds_per_million": null,
        });
        figures(Suite::InProcess, &serde_json::json!({ "rows": [row] }))
    }

    #[test]
    fn the_median_of_the_turns_ratios_decides_and_drift_does_not() {
        // The machine is three times slower in the second turn, and somebody disturbed the third.
        let turns = [
            (report(900.0, 1000), report(909.0, 960)),
            (report(300.0, 3000), report(303.0, 2880)),
            (report(900.0, 1000), report(100.0, 9000)),
        ];
        let compared = compare(&turns);
        assert_eq!(compared.len(), 3);
        let of = |name: &str| compared.iter().find(|one| one.name.ends_with(name)).unwrap();
        assert!((of("IOPS").ratio.unwrap() - 1.01).abs() < 1e-9);
        assert!((of("p50 ns").ratio.unwrap() - 0.96).abs() < 1e-9);
        assert!(compared.iter().all(|one| !one.is_worse_by(3.0)));
    }

    #[test]
    fn what_is_worse_is_told_in_either_direction() {
        let slower = compare(&[(report(1000.0, 1000), report(960.0, 1000))]);
        assert_eq!(slower.iter().filter(|one| one.is_worse_by(3.0)).count(), 1);
        assert_eq!(slower.iter().filter(|one| one.is_worse_by(5.0)).count(), 0);
        let later = compare(&[(report(1000.0, 1000), report(1000.0, 1040))]);
        assert_eq!(later.iter().filter(|one| one.is_worse_by(3.0)).count(), 1);
        let better = compare(&[(report(1000.0, 1000), report(2000.0, 500))]);
        assert!(better.iter().all(|one| !one.is_worse_by(3.0)));
    }

    #[test]
    fn a_figure_that_one_lacks_has_no_ratio() {
        let compared = compare(&[(Figures::new(), report(1000.0, 1000))]);
        assert_eq!(compared.len(), 3);
        assert!(compared.iter().all(|one| one.ratio.is_none() && !one.is_worse_by(0.0)));
    }
}
