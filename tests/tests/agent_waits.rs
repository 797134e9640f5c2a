//! Who sends the agent a descriptor whose close waits, or takes no answer, holds up nobody else, and the agent ends when it is told to.
//! Skipped, with a line that says why, as the stage says.

use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use willow_host::agent::CONNECTIONS_MAX;
use willow_host::agent::freeze::is_immutable;
use willow_host::agent::message::{Request, Response, VERSION};
use willow_host::direct_io::{File, Session, SessionOptions};
use willow_host::{ShmHre, ShmOptions};
use willow_shm::message::{Kind, decode, encode};
use willow_shm::socket::Channel;
use willow_shm::testing::Lingering;
use willow_tests::stage::{Stage, contents, is_frozen, or_skip, tool, within_seconds};

/// Longest wait for what does not wait for a hostile peer.
const PATIENCE: Duration = Duration::from_secs(120);
const MALLORY: u32 = 54_951;
/// Connections that send such a descriptor at a time.
const HOSTILE: usize = 30;
/// Connections that wait to be accepted at most.
const BACKLOG: usize = 128;
/// Pieces of a file whose answer no queue holds.
const PIECES: usize = 8000;

/// Reads a file directly, by a connection of its own.
fn others_are_served(stage: &Stage, path: &Path) {
    let options = SessionOptions::new(stage.path("device"), stage.path("agent"));
    let (path, (done, end)) = (path.to_owned(), mpsc::channel());
    std::thread::spawn(move || {
        let session = Session::open(options).expect("a session");
        let file = File::new(&session, fs::File::open(path).expect("open")).expect("a file");
        file.take().expect("directly");
        let mut got = [0; 100];
        assert_eq!(file.pread(&mut got, 5).expect("read"), 100);
        assert!(got == contents(105, 1)[5..]);
        let _ = done.send(());
    });
    end.recv_timeout(PATIENCE).expect("others are served");
}

fn signal(process: &Child, what: Signal) {
    let pid = Pid::from_raw(process.id() as i32).expect("its number");
    kill_process(pid, what).expect("it lives");
}

fn agent_ends(stage: &mut Stage) -> ExitStatus {
    let begun = Instant::now();
    loop {
        let agent = stage.agent.as_mut().expect("an agent");
        if let Some(status) = agent.try_wait().expect("its state") {
            return status;
        }
        assert!(begun.elapsed() < PATIENCE, "the agent does not end");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn written(stage: &Stage) -> PathBuf {
    let path = stage.on_it("file");
    fs::write(&path, contents(20_000, 1)).expect("written");
    path
}

fn connected(stage: &Stage) -> Channel {
    Channel::connect(Path::new(&stage.path("agent"))).expect("the agent")
}

/// Asks for a file directly, by a descriptor that only reads.
fn ask_for(channel: &Channel, path: &Path) {
    let file = fs::File::open(path).expect("open");
    let asked = encode(&Request::Open { version: VERSION, again: false, ready: true });
    channel.send(&asked, &[file.as_fd()]).expect("asked");
}

/// Has a thread of this process connect as another user.
fn as_mallory<T: Send>(what: impl FnOnce() -> T + Send) -> T {
    let as_user = move || {
        // SAFETY: a call without memory. By its number it changes this thread alone, and nothing else of the process relies on it.
        assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, -1, MALLORY, -1) }, 0);
        what()
    };
    std::thread::scope(|scope| scope.spawn(as_user).join().expect("it does not panic"))
}

/// Connects with messages that bring a socket each whose close waits; with what makes it wait. The agent is stopped meanwhile: whatever it
/// does with them, it has the last descriptors, and it finds all of them at once.
fn send_lingering(stage: &Stage, messages: &[&[u8]]) -> Vec<(Channel, Lingering)> {
    // Nobody else waits to be accepted.
    assert!(messages.len() <= BACKLOG);
    signal(stage.agent.as_ref().expect("an agent"), Signal::STOP);
    let send = |message: &&[u8]| {
        let (channel, mut lingering) = (connected(stage), Lingering::new().expect("a socket"));
        channel.send(message, &[lingering.descriptor()]).expect("the agent is stopped");
        lingering.give_up().join().expect("it does not panic");
        (channel, lingering)
    };
    let sent = messages.iter().map(send).collect();
    signal(stage.agent.as_ref().expect("an agent"), Signal::CONT);
    sent
}

#[test]
fn descriptors_whose_close_waits_hold_up_neither_others_nor_the_agents_end() {
    let test = "descriptors_whose_close_waits_hold_up_neither_others_nor_the_agents_end";
    let Some(mut stage) = or_skip(test, Stage::ext4()) else { return };
    let path = written(&stage);
    // With requests that take them, with what is no request, and with one that wants another kind.
    let (forget, release) = (encode(&Request::Forget), encode(&Request::Release));
    let served: Vec<&[u8]> = [&forget[..], b"x", b"", &release].into_iter().cycle().take(HOSTILE).collect();
    let mut kept = send_lingering(&stage, &served);
    others_are_served(&stage, &path);
    // All the places that a user gets: one more has been told so, and is over.
    let mut crowd = Vec::new();
    while !crowd.iter().any(|channel: &Channel| channel.receive().is_ok()) {
        assert!(crowd.len() < CONNECTIONS_MAX, "a user gets all the places");
        crowd.extend(as_mallory(|| std::array::from_fn::<_, 16, _>(|_| connected(&stage))));
    }
    assert!(crowd.len() > HOSTILE, "{} connections", crowd.len());
    // Those of them that still wait are accepted before who comes later.
    others_are_served(&stage, &path);
    for _ in 0..3 {
        kept.extend(as_mallory(|| send_lingering(&stage, &[&b"x"[..]; HOSTILE])));
        others_are_served(&stage, &path);
    }
    // And those that come when it is told to end.
    kept.extend(send_lingering(&stage, &[&forget]));
    signal(stage.agent.as_ref().expect("an agent"), Signal::TERM);
    assert!(agent_ends(&mut stage).success());
    assert!(!is_frozen(&path));
    drop((kept, crowd));
}

/// Another mount of the device, whose process can be stopped.
struct Mount {
    folder: String,
    process: Child,
    /// A file there. To close it waits for the process, in a child of this one as well: it is closed when that has ended.
    served: Option<fs::File>,
}

impl Mount {
    fn start(stage: &Stage) -> Mount {
        let folder = stage.path("other");
        fs::create_dir(&folder).expect("a folder");
        let mut command = Command::new(stage.willow());
        command.args(["mount", &folder, "--target", &stage.path("device")]).stdout(Stdio::piped());
        let mut process = command.spawn().expect("it runs");
        let output = process.stdout.take().expect("its output");
        let mut mount = Mount { folder, process, served: None };
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line).expect("a line");
        assert!(!line.is_empty(), "it is not mounted");
        mount.served = Some(fs::File::open(Path::new(&mount.folder).join("disk")).expect("open"));
        mount
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Whoever waits for it then gets an error.
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = tool("umount", &["-l", &self.folder]);
    }
}

/// Nothing ends the wait for a process that serves a file, if it does not answer.
#[test]
fn what_a_process_has_is_taken_back_at_the_agents_end_though_its_thread_waits_for_ever() {
    let test = "what_a_process_has_is_taken_back_at_the_agents_end_though_its_thread_waits_for_ever";
    let Some(mut stage) = or_skip(test, Stage::ext4()) else { return };
    let path = written(&stage);
    let mount = Mount::start(&stage);
    // By this the device knows the process.
    let options = ShmOptions { kind: Kind::User, ..ShmOptions::default() };
    let endpoint = ShmHre::open(Path::new(&stage.path("device")), options).expect("an endpoint");
    let channel = connected(&stage);
    ask_for(&channel, &path);
    loop {
        let answer = channel.receive_within(PATIENCE).expect("an answer");
        match decode(&answer.bytes).expect("an answer") {
            Response::Opened { .. } | Response::Extents { more: true, .. } => {}
            Response::Extents { more: false, .. } => break,
            other => panic!("{other:?}"),
        }
    }
    // Without a child, which would wait for that process.
    let immutable = fs::File::open(&path).expect("open");
    let is_frozen = || is_immutable(immutable.as_fd());
    assert!(is_frozen());
    signal(&mount.process, Signal::STOP);
    channel.send(&encode(&Request::Forget), &[mount.served.as_ref().expect("open").as_fd()]).expect("sent");
    others_are_served(&stage, &path);
    assert!(is_frozen(), "it is open still");
    signal(stage.agent.as_ref().expect("an agent"), Signal::TERM);
    within_seconds("it is taken back", || !is_frozen());
    // The kernel keeps the process until then.
    signal(&mount.process, Signal::CONT);
    agent_ends(&mut stage);
    drop(endpoint);
}

fn answers(channel: &Channel) -> Vec<Response> {
    let messages = std::iter::from_fn(|| channel.receive().ok());
    messages.map(|message| decode(&message.bytes).expect("an answer")).collect()
}

fn is_cut_off(answers: &[Response]) -> bool {
    matches!(answers, [Response::Opened { .. }, extents @ ..]
        if extents.iter().all(|it| matches!(it, Response::Extents { more: true, .. })))
}

#[test]
fn who_takes_no_answer_is_disconnected_and_holds_up_neither_others_nor_the_agents_end() {
    let test = "who_takes_no_answer_is_disconnected_and_holds_up_neither_others_nor_the_agents_end";
    let Some(mut stage) = or_skip(test, Stage::ext4()) else { return };
    let (path, pieces) = (written(&stage), stage.on_it("pieces"));
    drop(stage.in_pieces("pieces", PIECES));
    let options = ShmOptions { kind: Kind::User, ..ShmOptions::default() };
    let endpoint = ShmHre::open(Path::new(&stage.path("device")), options).expect("an endpoint");
    let asked = || {
        let channel = connected(&stage);
        ask_for(&channel, &pieces);
        assert!(channel.wait(PATIENCE), "no answer");
        channel
    };
    let first = asked();
    assert!(is_frozen(&pieces));
    others_are_served(&stage, &path);
    within_seconds("it is closed", || !is_frozen(&pieces));
    let answers_first = answers(&first);
    assert!(is_cut_off(&answers_first), "{} messages", answers_first.len());
    let second = asked();
    signal(stage.agent.as_ref().expect("an agent"), Signal::TERM);
    assert!(agent_ends(&mut stage).success());
    assert!(!is_frozen(&pieces));
    assert!(is_cut_off(&answers(&second)));
    drop(endpoint);
}
