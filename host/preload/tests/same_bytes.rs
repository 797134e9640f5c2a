//! The same program with and without the library gives the same: what each call returns, where positions are, what the files hold. The
//! programs are sequences of calls that a seed generates (`same/program.rs`). Skipped, with a line that says why, as the stage says.

use std::fs;
use std::io::Read;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use willow_tests::stage::{By, PRELOAD, Stage, contents, is_frozen, library, or_skip, within_seconds};

/// Steps of a program.
const STEPS: u64 = 60;
/// Programs that are run on each file system; `WILLOW_SAME_PROGRAMS` says otherwise.
const PROGRAMS: u64 = 40;
/// A program that takes longer hangs.
const PROGRAM_MAX: Duration = Duration::from_secs(300);
/// Runs that are spent on making a program shorter that shows a difference.
const SHRINKING_MAX: u32 = 60;

/// A program: a seed, how far it goes, and what is left out of it.
#[derive(Clone)]
struct Program {
    seed: u64,
    last: u64,
    left_out: Vec<u64>,
    how: How,
}

/// How programs are run.
#[derive(Clone, Copy)]
struct How {
    user: u32,
    /// Files are taken again as soon as they have been given back.
    is_eager: bool,
}

const EAGER: How = How { user: 0, is_eager: true };
/// An ordinary user.
const ALICE: u32 = 54_951;

/// What became of a program: what it said, and what its files hold.
#[derive(PartialEq)]
struct Outcome {
    said: Vec<String>,
    files: Vec<(String, Option<Vec<u8>>)>,
    is_whole: bool,
}

/// The files that a program begins with, in a folder of their own.
fn prepare(folder: &Path, how: How) {
    let _ = fs::remove_dir_all(folder);
    fs::create_dir(folder).expect("a folder");
    let own = |path: &Path| chown(path, Some(how.user), Some(how.user)).expect("its owner");
    own(folder);
    for (name, bytes) in [("f0", 200_000), ("f1", 200_000), ("f2", 50_000)] {
        fs::write(folder.join(name), contents(bytes, 7)).expect("written");
        own(&folder.join(name));
    }
    // Of this file system alone: those of other tests may wait for a device that was killed.
    rustix::fs::syncfs(fs::File::open(folder).expect("open")).expect("synced");
}

/// Runs it to its end, or for as long as it may take.
fn bounded(mut command: Command) -> Output {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
    let begun = Instant::now();
    // What it prints fits into its pipes only in part.
    let (out, error) = (child.stdout.take().expect("a pipe"), child.stderr.take().expect("a pipe"));
    let read = |mut pipe: Box<dyn Read + Send>| {
        std::thread::spawn(move || {
            let mut all = Vec::new();
            let _ = pipe.read_to_end(&mut all);
            all
        })
    };
    let (out, error) = (read(Box::new(out)), read(Box::new(error)));
    while child.try_wait().expect("a state").is_none() {
        if begun.elapsed() > PROGRAM_MAX {
            let _ = child.kill();
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let status = child.wait().expect("an end");
    Output { status, stdout: out.join().expect("read"), stderr: error.join().expect("read") }
}

fn without_library(stage: &Stage, program: &Program, folder: &Path) -> Command {
    let mut command = Command::new(stage.public(Path::new(env!("CARGO_BIN_EXE_willow-same"))));
    command.uid(program.how.user).gid(program.how.user).current_dir("/");
    let left_out: Vec<String> = program.left_out.iter().map(u64::to_string).collect();
    command.arg(folder).args([program.seed.to_string(), "0".into(), program.last.to_string(), left_out.join(",")]);
    command.env("RUST_BACKTRACE", "0");
    command
}

fn with_library(stage: &Stage, program: &Program, folder: &Path, planted: &str) -> Command {
    let mut command = without_library(stage, program, folder);
    if stage.address.is_none() {
        command.env("WILLOW_DEVICE", stage.path("device"));
    }
    if program.how.is_eager {
        command.env("WILLOW_PRELOAD_EAGER", "1");
    }
    command
        .env("LD_PRELOAD", stage.public(&library(PRELOAD)))
        .env("WILLOW_AGENT", stage.path("agent"))
        .env("WILLOW_DIRECT", folder)
        .env("WILLOW_DIRECT_REPORT", stage.path("report"))
        .env("WILLOW_PRELOAD_PLANTED", planted);
    command
}

fn run(stage: &Stage, program: &Program, planted: Option<&str>) -> Outcome {
    let folder = stage.on_it("same");
    prepare(&folder, program.how);
    let output = bounded(match planted {
        Some(planted) => with_library(stage, program, &folder, planted),
        None => without_library(stage, program, &folder),
    });
    let mut said: Vec<String> = String::from_utf8_lossy(&output.stdout).lines().map(ToOwned::to_owned).collect();
    let error = String::from_utf8_lossy(&output.stderr);
    said.extend(error.lines().map(|line| format!("error: {line}")));
    said.push(format!("ended with {}", output.status));
    let held = |name: &str| fs::read(folder.join(name)).ok();
    let files: Vec<_> = ["f0", "f1", "f2", "f3", "f4"].iter().map(|name| ((*name).to_owned(), held(name))).collect();
    for (name, held) in &files {
        within_seconds(&format!("{name} thaws"), || held.is_none() || !is_frozen(&folder.join(name)));
    }
    Outcome { said, files, is_whole: output.status.success() }
}

/// Where the outcomes of a program differ: the step's number, and both lines.
fn difference(stage: &Stage, program: &Program, planted: &str) -> Option<(u64, String)> {
    let (with, without) = (run(stage, program, Some(planted)), run(stage, program, None));
    assert!(without.is_whole, "the program itself fails: {:?}", without.said.last());
    if with == without {
        return None;
    }
    let lines = with.said.iter().zip(&without.said);
    if let Some((ours, theirs)) = lines.clone().find(|(ours, theirs)| ours != theirs) {
        let step = theirs.split(' ').next().and_then(|it| it.parse().ok()).unwrap_or(program.last);
        return Some((step, format!("with the library: {ours}\nwithout it: {theirs}")));
    }
    let differ = with.files.iter().zip(&without.files).filter(|(ours, theirs)| ours != theirs);
    let names: Vec<&str> = differ.map(|((name, _), _)| name.as_str()).collect();
    Some((program.last, format!("files {names:?} hold something else")))
}

/// A shorter program that shows a difference too.
fn shrunk(stage: &Stage, program: Program, found: (u64, String), planted: &str) -> (Program, String) {
    let (mut best, mut why, mut runs) = (program, found.1, 0);
    let shorter = Program { last: best.last.min(found.0 + 1), ..best.clone() };
    if let Some((_, reason)) = difference(stage, &shorter, planted) {
        (best, why) = (shorter, reason);
    }
    let mut part = best.last.div_ceil(2).max(1);
    loop {
        let mut from = 0;
        while from < best.last && runs < SHRINKING_MAX {
            let mut fewer = best.clone();
            fewer.left_out.extend(from..(from + part).min(best.last));
            runs += 1;
            if let Some((_, reason)) = difference(stage, &fewer, planted) {
                (best, why) = (fewer, reason);
            }
            from += part;
        }
        if part == 1 || runs >= SHRINKING_MAX {
            return (best, why);
        }
        part = part.div_ceil(2);
    }
}

/// One figure of what the programs since the last look have done.
fn counted(stage: &Stage, name: &str) -> u64 {
    let text = fs::read_to_string(stage.path("report")).unwrap_or_default();
    let one = |line: &str| {
        let (_, rest) = line.split_once(&format!("\"{name}\":")).expect("the figure");
        rest.chars().take_while(char::is_ascii_digit).collect::<String>().parse::<u64>().expect("a number")
    };
    text.lines().map(one).sum()
}

fn programs() -> impl Iterator<Item = Program> {
    let number = |name: &str| std::env::var(name).ok().and_then(|it| it.parse::<u64>().ok());
    let (first, count) = (number("WILLOW_SAME_FIRST").unwrap_or(1), number("WILLOW_SAME_PROGRAMS").unwrap_or(PROGRAMS));
    (first..first + count).map(|seed| Program { seed, last: STEPS, left_out: Vec::new(), how: EAGER })
}

fn compare_all(stage: &Stage, programs: impl Iterator<Item = Program>) {
    for program in programs {
        if let Some(found) = difference(stage, &program, "") {
            let (Program { seed, last, left_out, .. }, why) = shrunk(stage, program, found, "");
            let steps: Vec<u64> = (0..last).filter(|step| !left_out.contains(step)).collect();
            panic!("seed {seed}, steps {steps:?}:\n{why}");
        }
    }
}

fn compare(stage: &Stage) {
    compare_all(stage, programs());
    // Most of it was direct, and files went to and fro.
    let counts: Vec<u64> =
        ["direct_reads", "direct_writes", "direct_syncs", "given_back"].map(|name| counted(stage, name)).to_vec();
    eprintln!("direct reads, writes, syncs, and files given back: {counts:?}");
    assert!(counts[0] >= 300 && counts[1] >= 500 && counts[2] > 0 && counts[3] >= 50, "{counts:?}");
}

#[test]
fn programs_give_the_same_on_ext4() {
    let Some(stage) = or_skip("programs_give_the_same_on_ext4", Stage::ext4()) else { return };
    compare(&stage);
}

/// Where files are taken again only some operations later, less is direct, and the ways change at other places.
fn compare_as(stage: &Stage, hows: &[How]) {
    for how in hows {
        compare_all(stage, programs().skip(5).take(15).map(|program| Program { how: *how, ..program }));
        let counts = ["direct_reads", "direct_writes", "refused"].map(|name| counted(stage, name));
        eprintln!("user {}, eager {}: direct reads, writes, and refusals: {counts:?}", how.user, how.is_eager);
        assert!(counts[0] > 0 && counts[1] > 0, "{counts:?}");
        let _ = fs::remove_file(stage.path("report"));
    }
}

#[test]
fn programs_of_an_ordinary_user_give_the_same() {
    let Some(stage) = or_skip("programs_of_an_ordinary_user_give_the_same", Stage::ext4()) else { return };
    let report = fs::File::create(stage.path("report")).expect("the report");
    report.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666)).expect("its mode");
    compare_as(&stage, &[How { user: ALICE, is_eager: true }]);
    let report = fs::File::create(stage.path("report")).expect("the report");
    report.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666)).expect("its mode");
    compare_as(&stage, &[How { user: ALICE, is_eager: false }]);
}

#[test]
fn programs_give_the_same_where_files_are_taken_again_later() {
    let test = "programs_give_the_same_where_files_are_taken_again_later";
    let Some(stage) = or_skip(test, Stage::ext4()) else { return };
    compare_as(&stage, &[How { is_eager: false, ..EAGER }]);
}

#[test]
fn programs_give_the_same_over_the_network() {
    let made = Stage::ext4_by(By::Network);
    let Some(stage) = or_skip("programs_give_the_same_over_the_network", made) else { return };
    compare_as(&stage, &[EAGER, How { is_eager: false, ..EAGER }]);
}

#[test]
fn programs_give_the_same_on_xfs() {
    let made = Stage::new(&["mkfs.xfs", "-q", "-f", "-m", "reflink=0"], "400M");
    let Some(stage) = or_skip("programs_give_the_same_on_xfs", made) else { return };
    compare(&stage);
}

#[test]
fn programs_give_the_same_where_the_agent_refuses_to_have_files_written() {
    let test = "programs_give_the_same_where_the_agent_refuses_to_have_files_written";
    let made = Stage::new(&["mkfs.xfs", "-q", "-f", "-m", "reflink=1"], "400M");
    let Some(stage) = or_skip(test, made) else { return };
    for program in programs().take(10) {
        assert_eq!(difference(&stage, &program, "").map(|(_, why)| why), None, "seed {}", program.seed);
    }
    assert_eq!(counted(&stage, "direct_writes"), 0);
    assert!(counted(&stage, "refused") > 0);
}

/// The library waits for an agent that comes back soon: a program sees nothing of it.
#[test]
fn programs_give_the_same_while_the_agent_is_killed_and_started_again() {
    let test = "programs_give_the_same_while_the_agent_is_killed_and_started_again";
    let Some(mut stage) = or_skip(test, Stage::ext4()) else { return };
    let mut met = 0;
    for (number, program) in programs().enumerate() {
        // Some of them have to be met, however fast the machine is.
        if number >= 20 && met > 5 {
            break;
        }
        let folder = stage.on_it("same");
        let begun = Instant::now();
        let without = run(&stage, &program, None);
        let took = begun.elapsed();
        prepare(&folder, program.how);
        let mut command = with_library(&stage, &program, &folder, "");
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it runs");
        let mut out = child.stdout.take().expect("a pipe");
        let reader = std::thread::spawn(move || {
            let mut all = String::new();
            let _ = out.read_to_string(&mut all);
            all
        });
        // Later with each program, so that some of them are amid direct input and output, which takes longer with the library.
        std::thread::sleep(took * (1 + (number as u32 * 3) % 17) / 17);
        met += u32::from(child.try_wait().expect("a state").is_none());
        stage.kill_agent();
        stage.start_agent();
        let begun = Instant::now();
        while child.try_wait().expect("a state").is_none() && begun.elapsed() < PROGRAM_MAX {
            std::thread::sleep(Duration::from_millis(2));
        }
        let _ = child.kill();
        let status = child.wait().expect("an end");
        let said = reader.join().expect("read");
        let mut said: Vec<String> = said.lines().map(ToOwned::to_owned).collect();
        said.push(format!("ended with {status}"));
        for (name, held) in &without.files {
            let path = folder.join(name);
            within_seconds("it is thawed", || !path.exists() || !is_frozen(&path));
            assert!(fs::read(&path).ok() == *held, "seed {}: {name} holds something else", program.seed);
        }
        // What the library itself says of an agent that is gone is not the program's.
        let wanted: Vec<&String> = without.said.iter().filter(|line| !line.starts_with("error: ")).collect();
        let differs = said.iter().zip(&wanted).find(|(ours, theirs)| ours != *theirs);
        assert_eq!((differs, said.len()), (None, wanted.len()), "seed {}", program.seed);
    }
    eprintln!("the agent was killed under {met} programs");
    assert!(met > 5, "{met}");
}

#[test]
fn planted_errors_are_found() {
    let Some(stage) = or_skip("planted_errors_are_found", Stage::ext4()) else { return };
    for planted in ["offset", "limit", "short", "identity", "print", "path"] {
        let found = programs().find_map(|program| Some(program.seed).zip(difference(&stage, &program, planted)));
        let (seed, (step, why)) = found.unwrap_or_else(|| panic!("nobody sees the planted error {planted}"));
        eprintln!("{planted} is seen by seed {seed} at step {step}: {why}");
    }
}
