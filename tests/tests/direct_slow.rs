//! Direct access on a medium that is slow: what a user has under way there ends nobody else's. Skipped, with a line that says why, as the stage says.

use std::path::PathBuf;
use std::time::{Duration, Instant};
use willow_tests::attacker::{Talking, attacker};
use willow_tests::stage::{By, Stage, is_frozen, or_skip};

const ALICE: u32 = 54_891;
const MALLORY: u32 = 54_892;

/// A preset of this repository, and its table of flash.
const PRESET: &str = include_str!("../../presets/jasmine.toml");
const FLASH: &str = include_str!("../../presets/flash/jasmine.toml");
/// The line of that table that says how long a page is read, and one that makes that slow. Writes are answered when they are in the device's buffer.
const READ: &str = "read = { lower_ns = 197_000, middle_ns = 0, upper_ns = 197_000 }";
const SLOW_READ: &str = "read = { lower_ns = 300_000_000, middle_ns = 0, upper_ns = 300_000_000 }";
/// Processes of one user: the device works on 32 requests of each at a time.
const PROCESSES: usize = 6;
/// Longest time that the device may take for what is under way: a test that waits longer has failed.
const UNDER_WAY_MAX: Duration = Duration::from_secs(300);

/// A preset whose flash is slow, in a folder that goes with it.
struct Slow(PathBuf);

impl Slow {
    fn new() -> Slow {
        let folder = std::env::temp_dir().join(format!("willow-slow-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        assert!(FLASH.contains(READ) && PRESET.contains("table = \"jasmine\""), "the preset has changed");
        std::fs::write(folder.join("flash.toml"), FLASH.replace(READ, SLOW_READ)).expect("written");
        std::fs::write(folder.join("slow.toml"), PRESET.replace("table = \"jasmine\"", "table = \"flash.toml\""))
            .expect("written");
        Slow(folder)
    }

    fn stage(&self) -> Result<Stage, String> {
        let preset = self.0.join("slow.toml").display().to_string();
        let flags = ["--ram", "--size", "128M", "--kv-size", "0", "--clock", "real", "--preset", &preset];
        Stage::remote(&flags, By::Memory)
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Somebody who has a file of his own directly, and is about to read it.
fn prepared(stage: &Stage, user: u32, name: &str, what: &str) -> (Talking, PathBuf) {
    let folder = stage.on_it(&format!("of-{user}"));
    std::fs::create_dir_all(&folder).expect("a folder");
    std::os::unix::fs::chown(&folder, Some(user), Some(user)).expect("its owner");
    let file = folder.join(name);
    let mut talking = Talking::new(&mut attacker(stage, user, &file, what));
    let said = talking.line();
    assert!(said.starts_with("ready"), "{said}");
    (talking, file)
}

/// He begins.
fn begin(talking: &mut Talking) {
    talking.tell();
    let said = talking.line();
    assert!(said.starts_with("flooding"), "{said}");
}

/// How long it takes until none of these is immutable.
fn thaws(paths: &[PathBuf]) -> Duration {
    let begun = Instant::now();
    while paths.iter().any(|path| is_frozen(path)) {
        assert!(begun.elapsed() < UNDER_WAY_MAX, "it does not thaw");
        std::thread::sleep(Duration::from_millis(100));
    }
    begun.elapsed()
}

#[test]
fn what_one_user_has_under_way_on_a_slow_medium_ends_nobody_elses_direct_access() {
    let test = "what_one_user_has_under_way_on_a_slow_medium_ends_nobody_elses_direct_access";
    let slow = Slow::new();
    let Some(mut stage) = or_skip(test, slow.stage()) else { return };
    // Files are made before anybody is in the way: an FTL that needs 10 s for a flush is taken for one that has failed.
    let (mut alice, alices) = prepared(&stage, ALICE, "file", "goes along");
    let mut mallorys: Vec<(Talking, PathBuf)> =
        (0..PROCESSES).map(|number| prepared(&stage, MALLORY, &number.to_string(), "floods")).collect();
    begin(&mut alice);
    mallorys.iter_mut().for_each(|(mallory, _)| begin(mallory));
    // They are killed.
    let (processes, hers): (Vec<Talking>, Vec<PathBuf>) = mallorys.into_iter().unzip();
    drop(processes);
    assert!(hers.iter().any(|path| is_frozen(path)), "they thaw with what was asked for under way");
    let took = thaws(&hers);
    eprintln!("they thawed after {took:?}");
    let agent = stage.agent.as_mut().expect("an agent");
    assert!(agent.try_wait().expect("its state").is_none(), "the agent has ended, and with it what all have directly");
    assert!(is_frozen(&alices), "Alice's file was taken from her");
    drop(alice);
}
