//! `willow profile`: where an app's time goes, as a table, a flame graph (SVG) and a file for speedscope.
//!
//! What always holds: times of functions are samples of the processor's time, which the output says; counts of requests, runs and instructions are exact.
//! Whatever happens, the profile of the device ends with this command.

mod speedscope;
mod svg;

use crate::client::Client;
use crate::failure::{Context, Outcome, fail};
use crate::output;
use crate::table::Table;
use crate::target::TargetOption;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use willow_wire::control::ProfileReport;

/// How often the device is asked for what came.
const READ_EVERY: Duration = Duration::from_millis(250);
/// How much longer than asked for the device would go on by itself.
const MARGIN_MS: u32 = 10_000;
/// Longest profile.
const SECONDS_MAX: f64 = 580.0;
/// Longest wait for it, and how often the device is asked meanwhile, which forgets who does not ask for a while.
const WAIT_SECONDS_MAX: f64 = 3600.0;
const ASK_EVERY: Duration = Duration::from_millis(500);
/// What stands for SPU-OS in a stack.
const SPU_OS: &str = "[SPU-OS]";
/// Lines of the table of functions.
const FUNCTIONS_SHOWN: usize = 30;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Profile {
    /// The app
    app: String,
    /// For how long
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0)]
    seconds: f64,
    /// How long to wait at most while another user's app is being profiled
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0)]
    wait: f64,
    /// File for the profile: FILE.svg is a flame graph, FILE.json is for speedscope; may be repeated
    #[arg(short, long, value_name = "FILE")]
    out: Vec<PathBuf>,
    #[command(flatten)]
    target: TargetOption,
    /// Print one JSON object instead of tables
    #[arg(long)]
    json: bool,
}

/// All that a profile has, put together from its reports.
#[derive(Debug, Default)]
pub struct Whole {
    /// The app.
    pub app: String,
    elapsed_ns: u64,
    is_sampled: bool,
    lost: u64,
    functions: BTreeMap<u32, String>,
    /// Handlers of the app.
    handlers: BTreeMap<u8, String>,
    /// By SPU and stack, the outermost function first: nanoseconds.
    running: BTreeMap<(u16, Vec<u32>), u64>,
    /// By SPU, handler and reason: nanoseconds.
    waiting: BTreeMap<(u16, u8, String), u64>,
    /// By SPU and handler (none: what goes on): runs and instructions.
    runs: BTreeMap<(u16, Option<u8>), (u64, u64)>,
}

impl Whole {
    fn add(&mut self, report: ProfileReport) {
        (self.elapsed_ns, self.is_sampled) = (report.elapsed_ns, report.is_sampled);
        self.lost += report.lost;
        for function in report.functions {
            let name = function.name.unwrap_or_else(|| format!("function {}", function.index));
            self.functions.insert(function.index, name);
        }
        for stack in report.stacks {
            *self.running.entry((stack.spu, stack.functions)).or_default() += stack.count * report.sample_ns;
        }
        for waits in report.waits {
            *self.waiting.entry((waits.spu, waits.handler, waits.reason)).or_default() += waits.count * report.look_ns;
        }
        for runs in report.runs {
            let all = self.runs.entry((runs.spu, runs.handler)).or_default();
            (all.0, all.1) = (all.0 + runs.count, all.1 + runs.instructions);
        }
    }

    fn handler(&self, number: u8) -> String {
        match self.handlers.get(&number) {
            Some(name) => name.clone(),
            None if number == 0 => "[no request known]".to_owned(),
            None => format!("handler {number}"),
        }
    }

    fn run_name(&self, handler: Option<u8>) -> String {
        handler.map_or_else(|| "[goes on after a wait]".to_owned(), |number| self.handler(number))
    }

    /// Stacks with their time, the outermost frame first, by SPU.
    pub fn running_stacks(&self) -> impl Iterator<Item = (u16, Vec<String>, u64)> {
        self.running.iter().map(|((spu, functions), time_ns)| {
            let name = |index: &u32| self.functions.get(index).cloned().unwrap_or_else(|| format!("function {index}"));
            let mut names: Vec<String> = functions.iter().map(name).collect();
            if names.is_empty() {
                names.push(SPU_OS.to_owned());
            }
            (*spu, names, *time_ns)
        })
    }

    /// What was waited for, by SPU: the handler and the reason.
    pub fn waiting_stacks(&self) -> impl Iterator<Item = (u16, Vec<String>, u64)> {
        let waits = self.waiting.iter();
        waits.map(|((spu, handler, reason), time_ns)| (*spu, vec![self.handler(*handler), reason.clone()], *time_ns))
    }

    /// Instructions, by SPU and what they were executed for.
    pub fn instructions(&self) -> impl Iterator<Item = (u16, Vec<String>, u64)> {
        let runs = self.runs.iter();
        runs.map(|((spu, handler), (_, instructions))| (*spu, vec![self.run_name(*handler)], *instructions))
    }

    /// By function: its own time, and that with what it called.
    fn by_function(&self) -> Vec<(String, u64, u64)> {
        let mut all = BTreeMap::<String, (u64, u64)>::new();
        for (_, names, time_ns) in self.running_stacks() {
            if let Some(innermost) = names.last() {
                all.entry(innermost.clone()).or_default().0 += time_ns;
            }
            // A function that calls itself counts once.
            let distinct: std::collections::BTreeSet<String> = names.into_iter().collect();
            for name in distinct {
                all.entry(name).or_default().1 += time_ns;
            }
        }
        let mut all: Vec<(String, u64, u64)> = all.into_iter().map(|(name, (own, whole))| (name, own, whole)).collect();
        all.sort_by(|a, b| b.1.cmp(&a.1).then(b.2.cmp(&a.2)).then(a.0.cmp(&b.0)));
        all
    }

    fn by_handler(&self) -> BTreeMap<Option<u8>, (u64, u64)> {
        let mut all = BTreeMap::<Option<u8>, (u64, u64)>::new();
        for ((_, handler), (count, instructions)) in &self.runs {
            let of = all.entry(*handler).or_default();
            (of.0, of.1) = (of.0 + count, of.1 + instructions);
        }
        all
    }

    fn by_wait(&self) -> BTreeMap<(String, String), u64> {
        let mut all = BTreeMap::<(String, String), u64>::new();
        for (_, names, time_ns) in self.waiting_stacks() {
            let [handler, reason] = [names[0].clone(), names[1].clone()];
            *all.entry((handler, reason)).or_default() += time_ns;
        }
        all
    }

    fn json(&self) -> serde_json::Value {
        let functions = self
            .by_function()
            .into_iter()
            .map(|(name, own, whole)| serde_json::json!({ "function": name, "self_ns": own, "total_ns": whole }));
        let runs = self.runs.iter().map(|((spu, handler), (count, instructions))| {
            let name = self.run_name(*handler);
            serde_json::json!({ "spu": spu, "handler": name, "runs": count, "instructions": instructions })
        });
        let waits = self.waiting_stacks().map(
            |(spu, names, time_ns)| serde_json::json!({ "spu": spu, "handler": names[0], "reason": names[1], "ns": time_ns }),
        );
        serde_json::json!({
            "app": self.app,
            "elapsed_ns": self.elapsed_ns,
            "sampled": self.is_sampled,
            "lost": self.lost,
            "functions": functions.collect::<Vec<_>>(),
            "runs": runs.collect::<Vec<_>>(),
            "waits": waits.collect::<Vec<_>>(),
        })
    }

    fn text(&self) -> String {
        let milliseconds = |time_ns: u64| format!("{:.1}", time_ns as f64 / 1e6);
        let mut text = format!("app {}, {:.2} s\n", self.app, self.elapsed_ns as f64 / 1e9);
        let whole: u64 = self.running.values().sum();
        let share = |time_ns: u64| format!("{:.1}", time_ns as f64 * 100.0 / whole.max(1) as f64);
        let mut table = Table::new(&["function", "self ms", "self %", "with calls ms", "with calls %"]);
        for (name, own, total) in self.by_function().into_iter().take(FUNCTIONS_SHOWN) {
            table.row([name, milliseconds(own), share(own), milliseconds(total), share(total)]);
        }
        text += &table.render();
        if !self.is_sampled {
            text += "(this device samples no processor: there are no times of functions)\n";
        }
        let mut table = Table::new(&["runs of", "count", "instructions", "instructions a run"]);
        for (handler, (count, instructions)) in self.by_handler() {
            let mean = format!("{:.0}", instructions as f64 / count.max(1) as f64);
            table.row([self.run_name(handler), count.to_string(), instructions.to_string(), mean]);
        }
        text += &table.render();
        let mut table = Table::new(&["handler", "waits for", "ms", "waiting on average"]);
        for ((handler, reason), time_ns) in self.by_wait() {
            let mean = format!("{:.2}", time_ns as f64 / self.elapsed_ns.max(1) as f64);
            table.row([handler, reason, milliseconds(time_ns), mean]);
        }
        text += &table.render();
        if self.lost > 0 {
            text += &format!("{} samples found no room and are not counted\n", self.lost);
        }
        text
    }
}

/// What a file's name asks for.
#[derive(Clone, Copy)]
enum Form {
    Svg,
    Speedscope,
}

fn form(out: &Path) -> Outcome<Form> {
    match out.extension().and_then(|extension| extension.to_str()) {
        Some("svg") => Ok(Form::Svg),
        Some("json") => Ok(Form::Speedscope),
        _ => fail!("{} is neither FILE.svg, a flame graph, nor FILE.json, for speedscope", out.display()),
    }
}

/// Profiles.
pub fn run(arguments: &Profile) -> Outcome<()> {
    let Profile { app, seconds, wait, out, target, json } = arguments;
    if !(*seconds > 0.0 && *seconds <= SECONDS_MAX) {
        fail!("--seconds is more than 0, and at most {SECONDS_MAX}");
    }
    if !(0.0..=WAIT_SECONDS_MAX).contains(wait) {
        fail!("--wait is 0 to {WAIT_SECONDS_MAX}");
    }
    let forms = out.iter().map(|path| form(path)).collect::<Outcome<Vec<Form>>>()?;
    let mut client = Client::connect(target)?;
    let mut whole = Whole { app: app.clone(), ..Whole::default() };
    let waits_until = Instant::now() + Duration::from_secs_f64(*wait);
    while let Err(busy) = client.begin_profile(app, (seconds * 1000.0).ceil() as u32 + MARGIN_MS)? {
        if Instant::now() >= waits_until {
            return Err(busy);
        }
        std::thread::sleep(ASK_EVERY);
    }
    let number = client.find_app(app)?;
    let handlers = client.apps()?.into_iter().find(|info| info.number == number).map(|info| info.handlers);
    whole.handlers = handlers.unwrap_or_default().into_iter().collect();
    let end = Instant::now() + Duration::from_secs_f64(*seconds);
    let (mut is_over, mut has_read) = (false, false);
    loop {
        match client.read_profile() {
            Ok(report) => whole.add(report),
            // It has ended with its app: what there was of it is still worth something.
            Err(failure) if has_read => {
                eprintln!("willow: {failure}");
                is_over = true;
            }
            Err(failure) => return Err(failure),
        }
        has_read = true;
        if is_over {
            break;
        }
        let left = end.saturating_duration_since(Instant::now());
        std::thread::sleep(left.min(READ_EVERY));
        is_over = left <= READ_EVERY;
    }
    // Where it has ended by itself there is nothing to end.
    let _ = client.end_profile();
    for (path, form) in out.iter().zip(forms) {
        let file = match form {
            Form::Svg => svg::flame_graph(&whole),
            Form::Speedscope => speedscope::file(&whole),
        };
        std::fs::write(path, file).context(|| format!("cannot write {}", path.display()))?;
    }
    if *json { output::json(&whole.json()) } else { output::text(&whole.text()) }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use willow_wire::control::{ProfiledFunction, ProfiledRuns, ProfiledStack, ProfiledWaits};

    /// Two reports: `start` calls `work`, which calls itself; SPU-OS; a wait.
    pub fn whole() -> Whole {
        let function = |index, name: Option<&str>| ProfiledFunction { index, name: name.map(str::to_owned) };
        let stack = |spu, functions: &[u32], count| ProfiledStack { spu, functions: functions.to_vec(), count };
        let report = ProfileReport {
            app: "ant".into(),
            elapsed_ns: 500_000_000,
            is_sampled: true,
            sample_ns: 1_000_000,
            look_ns: 5_000_000,
            lost: 0,
            functions: vec![function(4, Some("start")), function(5, Some("work<&T>")), function(6, None)],
            stacks: vec![stack(0, &[4, 5, 5], 3), stack(0, &[4, 6], 1), stack(1, &[], 2)],
            runs: vec![
                ProfiledRuns { spu: 0, handler: Some(1), count: 10, instructions: 1000 },
                ProfiledRuns { spu: 1, handler: None, count: 5, instructions: 50 },
            ],
            waits: vec![ProfiledWaits { spu: 1, handler: 1, reason: "sleep".into(), count: 4 }],
        };
        let mut whole = Whole { app: "ant".into(), ..Whole::default() };
        whole.handlers.insert(1, "find".to_owned());
        whole.add(report.clone());
        whole.add(report);
        whole
    }

    #[test]
    fn functions_have_their_own_time_and_that_of_what_they_call_once() {
        let whole = whole();
        let of = |name: &str| whole.by_function().into_iter().find(|(function, ..)| function == name).unwrap();
        assert_eq!(of("work<&T>"), ("work<&T>".into(), 6_000_000, 6_000_000));
        assert_eq!(of("start"), ("start".into(), 0, 8_000_000));
        assert_eq!(of(SPU_OS).1, 4_000_000);
        let text = whole.text();
        for wanted in ["function 6", "find", "[goes on after a wait]", "sleep", "2000"] {
            assert!(text.contains(wanted), "{wanted}: {text}");
        }
    }
}
