//! Processes of users that append all the time: what the device permits them meanwhile, and what becomes of their records when the agent or the device is
//! killed under them. Skipped, with a line that says why, as the stage says.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use willow_host::direct_io::AgentClient;
use willow_tests::appended::{FIRST, hold_against};
use willow_tests::judge::{Block, Judge};
use willow_tests::stage::{By, Stage, contents, is_frozen, or_skip, within_seconds};

const ALICE: u32 = 54_891;
const BOB: u32 = 54_892;
/// More than is appended while a test runs.
const COUNT: &str = "100000000";
/// With which the process ends where nobody knows whether its last record was appended.
const UNKNOWN: i32 = 3;
/// To write, and nothing else.
const WRITE: u32 = 2;

/// A user's process that appends to a file of the user's without an end, and all that it was told.
struct Busy {
    file: PathBuf,
    process: Child,
    count: Arc<AtomicUsize>,
    told: Option<JoinHandle<Vec<u64>>>,
}

impl Busy {
    fn start(stage: &Stage, name: &str, user: u32) -> Busy {
        Busy::with_pauses(stage, name, user, 0)
    }

    /// The same, with a pause behind each record: on a machine that is quick in one thing and slow in another the file system would be full.
    fn with_pauses(stage: &Stage, name: &str, user: u32, pause_ms: u32) -> Busy {
        let program = stage.public(Path::new(env!("CARGO_BIN_EXE_willow-appender")));
        let file = stage.owned(name, user, &contents(FIRST, 1));
        let device = if stage.address.is_some() { "-".to_owned() } else { stage.path("device") };
        let mut command = Command::new(program);
        command.args([&device, &stage.path("agent"), &file.display().to_string(), "1", COUNT, &pause_ms.to_string()]);
        command.uid(user).gid(user).stdout(Stdio::piped());
        let mut process = command.spawn().expect("it runs");
        let output = BufReader::new(process.stdout.take().expect("its output"));
        let count = Arc::new(AtomicUsize::new(0));
        let counter = count.clone();
        let told = std::thread::spawn(move || {
            let whole = |line: &String| line.ends_with('\n');
            let mut lines = output;
            let next = || {
                let mut line = String::new();
                lines.read_line(&mut line).expect("text");
                // The last one may be cut off where the process was killed.
                Some(line).filter(whole)
            };
            let at = |line: String| line.trim_end().split_once(' ').and_then(|(_, at)| at.parse().ok());
            let counted = |_: &u64| _ = counter.fetch_add(1, Ordering::SeqCst);
            std::iter::from_fn(next).map(|line| at(line).expect("an offset")).inspect(counted).collect()
        });
        let busy = Busy { file, process, count, told: Some(told) };
        within_seconds("the device appends", || is_frozen(&busy.file) && busy.count() > 0);
        busy
    }

    fn count(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }

    /// Waits until it was told some more.
    fn goes_on(&self) {
        let before = self.count();
        within_seconds("it goes on", || self.count() > before + 3);
    }

    /// Kills it, unless it has ended since nobody knows of its last record; all that it was told.
    fn end(mut self) -> Vec<u64> {
        let _ = self.process.kill();
        let status = self.process.wait().expect("an end");
        assert!(status.signal() == Some(libc::SIGKILL) || status.code() == Some(UNKNOWN), "{status}");
        self.told.take().expect("it is told once").join().expect("no panic")
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Two users append while something happens to the stage; then both are killed, and their files held against what they were told.
fn holds_under(stage: &mut Stage, what: &str, happens: impl FnOnce(&mut Stage)) {
    let both =
        [("alices", ALICE), ("bobs", BOB)].map(|(name, user)| Busy::start(stage, &format!("{name}-{what}"), user));
    both.iter().for_each(Busy::goes_on);
    happens(stage);
    // Some go on, others end since nobody knows of a record.
    std::thread::sleep(Duration::from_millis(400));
    for busy in both {
        let file = busy.file.clone();
        let told = busy.end();
        within_seconds(&format!("{what}: it is given back"), || !is_frozen(&file));
        let held = hold_against(&file, &BTreeMap::from([(1, told.clone())]));
        held.unwrap_or_else(|why| panic!("{what}, {}: {why}", file.display()));
        println!("{what}: {} records", told.len());
    }
}

fn records_of_busy_users(test: &str, by: By) {
    let Some(mut stage) = or_skip(test, Stage::remote(&["--media", "MEDIA", "--size", "192M"], by)) else { return };
    for round in 0..3u64 {
        holds_under(&mut stage, &format!("agent-{round}"), |stage| {
            std::thread::sleep(Duration::from_millis(round * 370));
            stage.kill_agent();
            stage.start_agent();
        });
    }
    if by == By::Memory {
        // Its agent ends with the device.
        return;
    }
    for round in 0..2u64 {
        holds_under(&mut stage, &format!("device-{round}"), |stage| {
            std::thread::sleep(Duration::from_millis(round * 530));
            stage.restart_device();
        });
    }
}

#[test]
fn agents_are_killed_under_users_that_append_and_lose_no_record() {
    records_of_busy_users("agents_are_killed_under_users_that_append_and_lose_no_record", By::Memory);
}

#[test]
fn agents_and_devices_are_killed_under_users_that_append_over_tls_and_lose_no_record() {
    let test = "agents_and_devices_are_killed_under_users_that_append_over_tls_and_lose_no_record";
    records_of_busy_users(test, By::Tls);
}

/// The blocks that the device permits to a user, all of them to be written alone.
fn written_alone(judge: &Judge, user: u32) -> BTreeSet<Block> {
    let permitted = judge.permitted(Some(user));
    let others: Vec<_> = permitted.iter().filter(|(_, rights)| **rights != WRITE).collect();
    assert!(others.is_empty(), "user {user} may do more than write: {others:?}");
    permitted.into_keys().collect()
}

fn permitted_in_spools(test: &str, by: By) {
    let Some(stage) = or_skip(test, Stage::ext4_by(by)) else { return };
    let judge = Judge::new(&stage);
    let spool = |number: u32| {
        let file = fs::File::open(stage.on_it(&format!(".willow-append/{number}"))).expect("a spool");
        judge.blocks_of(&file)
    };
    let alice = Busy::with_pauses(&stage, "alices", ALICE, 3);
    let first = spool(0);
    let hers = written_alone(&judge, ALICE);
    assert!(!hers.is_empty() && hers.is_subset(&first), "{} blocks", hers.len());
    assert!(written_alone(&judge, BOB).is_empty());
    // Somebody changes her file through the file system: she goes on by the kernel, and has nothing in the spool any more.
    let agent = AgentClient::connect(Path::new(&stage.path("agent"))).expect("an agent");
    let named = rustix::fs::open(&alice.file, rustix::fs::OFlags::PATH, rustix::fs::Mode::empty()).expect("a path");
    agent.release(named.as_fd()).expect("released");
    alice.goes_on();
    assert!(written_alone(&judge, ALICE).is_empty(), "Alice writes a spool that may be another's");
    // It is Bob's, for as long as he appends, over several times that his file gets its length.
    let bob = Busy::with_pauses(&stage, "bobs", BOB, 3);
    for _ in 0..25 {
        let his = written_alone(&judge, BOB);
        assert!(!his.is_empty() && his.is_subset(&first), "{} blocks", his.len());
        assert!(written_alone(&judge, ALICE).is_empty(), "Alice writes Bob's spool");
        bob.goes_on();
        std::thread::sleep(Duration::from_millis(100));
    }
    // Hers is another one by then.
    agent.resume().expect("resumed");
    within_seconds("the device appends for her again", || is_frozen(&alice.file));
    within_seconds("she writes a spool", || !written_alone(&judge, ALICE).is_empty());
    let hers = written_alone(&judge, ALICE);
    assert!(hers.is_subset(&spool(1)) && hers.is_disjoint(&first), "{} blocks", hers.len());
    assert!(written_alone(&judge, BOB).is_subset(&first));
    for busy in [alice, bob] {
        let file = busy.file.clone();
        let told = busy.end();
        within_seconds("it is given back", || !is_frozen(&file));
        hold_against(&file, &BTreeMap::from([(1, told)])).expect("all that was told");
    }
    assert!(judge.permitted(None).is_empty(), "something is left");
}

#[test]
fn users_write_the_spool_of_their_file_alone_and_read_none() {
    permitted_in_spools("users_write_the_spool_of_their_file_alone_and_read_none", By::Memory);
}

#[test]
fn users_write_the_spool_of_their_file_alone_and_read_none_over_the_network() {
    let test = "users_write_the_spool_of_their_file_alone_and_read_none_over_the_network";
    permitted_in_spools(test, By::Network);
}
