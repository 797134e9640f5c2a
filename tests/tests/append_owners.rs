//! What a user does with a file that the device appends to for him keeps nobody else from theirs. Skipped, with a line that says why, as the stage says.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;
use willow_host::direct_io::AgentClient;
use willow_tests::appended::FIRST;
use willow_tests::attacker::{Talking, attacker};
use willow_tests::stage::{Stage, contents, is_frozen, or_skip, tool, within_seconds};

const ALICE: u32 = 54_881;
const MALLORY: u32 = 54_882;
/// More than is appended while a test runs.
const COUNT: &str = "100000000";
/// How long an answer may take: what it waits for otherwise ends with the test alone.
const PATIENCE: Duration = Duration::from_secs(120);

/// A user's process that appends to a file of the user's without an end.
struct Appending {
    file: PathBuf,
    process: Child,
}

impl Appending {
    fn start(stage: &Stage, name: &str, user: u32) -> Appending {
        let program = stage.public(Path::new(env!("CARGO_BIN_EXE_willow-appender")));
        let file = stage.owned(name, user, &contents(FIRST, 1));
        let mut command = Command::new(program);
        command.args([&stage.path("device"), &stage.path("agent"), &file.display().to_string()]);
        command.args(["1", COUNT]).uid(user).gid(user).stdout(Stdio::piped());
        let mut process = command.spawn().expect("it runs");
        let mut output = BufReader::new(process.stdout.take().expect("its output"));
        output.read_line(&mut String::new()).expect("a line");
        // Somebody reads on, or it waits.
        std::thread::spawn(move || std::io::copy(&mut output, &mut std::io::sink()));
        within_seconds("the device appends", || is_frozen(&file));
        Appending { file, process }
    }
}

impl Drop for Appending {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// True where a thread of a process waits for what no signal ends.
fn waits(process: u32) -> bool {
    let threads = fs::read_dir(format!("/proc/{process}/task")).expect("its threads");
    let state = |thread: fs::DirEntry| fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
    threads.flatten().any(|thread| state(thread).rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('D')))
}

#[test]
fn a_file_that_the_device_appends_to_is_given_back_whatever_another_user_does_with_his() {
    let test = "a_file_that_the_device_appends_to_is_given_back_whatever_another_user_does_with_his";
    let Some(mut stage) = or_skip(test, Stage::ext4()) else { return };
    let mallory = Appending::start(&stage, "mallorys", MALLORY);
    stage.kill_agent();
    let mut locks = Talking::new(&mut attacker(&stage, 0, &mallory.file, "locks"));
    let said = locks.line();
    assert!(said.starts_with("locked"), "{said}");
    stage.start_agent();
    let agent_process = stage.agent.as_ref().expect("an agent").id();
    within_seconds("the agent waits for Mallory's", || waits(agent_process));
    let alice = Appending::start(&stage, "alices", ALICE);
    // Somebody renames it while it is appended to.
    let agent = AgentClient::connect(Path::new(&stage.path("agent"))).expect("an agent");
    let named = rustix::fs::open(&alice.file, rustix::fs::OFlags::PATH, rustix::fs::Mode::empty()).expect("a path");
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        let released = agent.release(named.as_fd());
        let _ = tell.send((agent, released));
    });
    let (agent, released) = told.recv_timeout(PATIENCE).expect("the agent waits for another user's file");
    released.expect("released");
    fs::rename(&alice.file, stage.on_it("renamed")).expect("it is the file system's own");
    fs::rename(stage.on_it("renamed"), &alice.file).expect("renamed");
    agent.resume().expect("resumed");
    within_seconds("the device appends again", || is_frozen(&alice.file));
    // An agent that ends gives it back as well, though it cannot give back Mallory's.
    tool("kill", &["-TERM", &agent_process.to_string()]).expect("it is there");
    within_seconds("Alice's is given back", || !is_frozen(&alice.file));
    assert!(is_frozen(&mallory.file), "nothing keeps Mallory's");
    locks.go_on();
    assert!(locks.has_succeeded());
    stage.agent.take().expect("an agent").wait().expect("an end");
    drop((mallory, alice));
}
