//! Files directly over NVMe/TCP: an agent that knows the device's address and its host's key alone, processes of users that come to the
//! device by tickets, and what becomes of both when either dies. Skipped, with a line that says why, as the stage says.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use willow_auth::{Credentials, Entropy, HostKey, Secret};
use willow_host::agent::message::Attachment;
use willow_host::direct_io::{AgentClient, File, Queue, Request, Session, SessionOptions, endpoint};
use willow_host::{Controller, NvmeError, Options, RpcCall};
use willow_tests::midst::killed_with_commands_under_way;
use willow_tests::stage::{By, Stage, WAIT_MAX, contents, is_frozen, or_skip, tool, within_seconds};

const ALICE: u32 = 54_501;
const BOB: u32 = 54_502;

fn stage(test: &str) -> Option<Stage> {
    stage_by(test, By::Network)
}

fn stage_by(test: &str, by: By) -> Option<Stage> {
    or_skip(test, Stage::ext4_by(by))
}

fn session(stage: &Stage) -> Arc<Session> {
    Session::open(SessionOptions::by_agent(stage.path("agent"))).expect("a session")
}

/// `willow direct` as a user, who knows of the agent alone.
fn direct(stage: &Stage, user: u32, verb: &str, file: &Path) -> Command {
    let mut command = Command::new(stage.willow());
    command.args(["direct", verb, &file.display().to_string(), "--agent", &stage.path("agent")]);
    command.uid(user).gid(user).current_dir("/");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn agent_of(stage: &Stage) -> Arc<AgentClient> {
    AgentClient::connect(Path::new(&stage.path("agent"))).expect("the agent")
}

fn run<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(work)
}

/// A figure of the device about protection.
fn protection(stage: &Stage, name: &str) -> u64 {
    let address = stage.address.clone().expect("an address");
    let program = stage.willow().display().to_string();
    let text = tool(&program, &["stat", "--json", "--target", &address, "--key", &stage.path("key")]).expect("figures");
    let (_, rest) = text.split_once("\"protection\":").expect("protection");
    let (_, rest) = rest.split_once(&format!("\"{name}\":")).expect("the figure");
    rest.trim_start().chars().take_while(char::is_ascii_digit).collect::<String>().parse().expect("a number")
}

/// That nothing of any process is left: not on the device, not on the file system.
fn settles(stage: &Stage, files: &[&Path]) {
    within_seconds("the device forgets the processes", || protection(stage, "processes") == 0);
    within_seconds("it permits nothing", || protection(stage, "permissions") == 0);
    files.iter().for_each(|file| within_seconds(&format!("{} thaws", file.display()), || !is_frozen(file)));
}

#[test]
fn users_reach_their_own_files_over_the_network_and_no_others() {
    own_files_and_no_others("users_reach_their_own_files_over_the_network_and_no_others", By::Network);
}

#[test]
fn users_reach_their_own_files_over_the_network_and_no_others_by_tls() {
    own_files_and_no_others("users_reach_their_own_files_over_the_network_and_no_others_by_tls", By::Tls);
}

fn own_files_and_no_others(test: &str, by: By) {
    let Some(stage) = stage_by(test, by) else { return };
    let alices = stage.owned("alices", ALICE, &contents(700_001, 1));
    let bobs = stage.owned("bobs", BOB, &contents(300_000, 2));
    let read = direct(&stage, ALICE, "read", &alices).output().expect("it runs");
    assert!(read.status.success() && read.stdout == contents(700_001, 1), "{}", said(&read));
    // Written by the device, seen by the file system.
    let mut write = direct(&stage, ALICE, "write", &alices).args(["--offset", "123457"]).spawn().expect("it runs");
    std::io::Write::write_all(&mut write.stdin.take().expect("input"), &contents(99_999, 3)).expect("taken");
    let wrote = write.wait_with_output().expect("an end");
    assert!(wrote.status.success(), "{}", said(&wrote));
    let mut model = contents(700_001, 1);
    model[123_457..][..99_999].copy_from_slice(&contents(99_999, 3));
    assert!(fs::read(&alices).expect("read") == model);
    // Bob's file: the file system refuses to open it, and the agent one that everybody may open.
    let refused = direct(&stage, ALICE, "read", &bobs).output().expect("it runs");
    assert!(!refused.status.success());
    tool("chmod", &["666", &bobs.display().to_string()]).expect("its mode");
    for verb in ["read", "write"] {
        let mut tries = direct(&stage, ALICE, verb, &bobs).spawn().expect("it runs");
        // It may have been refused before it reads this.
        let _ = std::io::Write::write_all(&mut tries.stdin.take().expect("input"), &[0; 5000]);
        let refused = tries.wait_with_output().expect("an end");
        assert!(!refused.status.success() && refused.stdout.is_empty(), "{verb}: Alice has Bob's file");
        assert!(said(&refused).contains("belongs to another user"), "{verb}: {}", said(&refused));
    }
    assert!(fs::read(&bobs).expect("read") == contents(300_000, 2));
    // What was opened for reading is not written: by the device.
    let mut tries = direct(&stage, ALICE, "write", &alices).arg("--read-only").spawn().expect("it runs");
    std::io::Write::write_all(&mut tries.stdin.take().expect("input"), &[0; 5000]).expect("taken");
    let refused = tries.wait_with_output().expect("an end");
    assert!(!refused.status.success() && said(&refused).contains("no such permission"), "{}", said(&refused));
    assert!(fs::read(&alices).expect("read") == model);
    settles(&stage, &[&alices, &bobs]);
}

#[test]
fn a_process_that_knows_where_anothers_bytes_lie_gets_none_of_them() {
    let Some(stage) = stage("a_process_that_knows_where_anothers_bytes_lie_gets_none_of_them") else { return };
    let path = stage.owned("bobs", BOB, &contents(100_000, 2));
    run(async {
        let (bob, alice) = (agent_of(&stage), agent_of(&stage));
        let (bobs, alices) = (endpoint(&bob).await.expect("an endpoint"), endpoint(&alice).await.expect("another"));
        let mapped = bob.open(fs::File::open(&path).expect("open")).expect("directly");
        let geometry = mapped.geometry();
        let mut tried = 0;
        let mut calls = Vec::new();
        direct_io_host::pieces(&geometry, mapped.extents(), (0, 100_000), 0, |piece| {
            let direct_io_host::Piece::Rpc { spu, arguments, .. } = piece else { panic!("a hole") };
            let call = |handler, reply_bytes_max, payload| RpcCall {
                app: mapped.app(),
                handler,
                spu: Some(spu),
                arguments: arguments.encode().to_vec(),
                reply_bytes_max,
                payload,
            };
            calls.push((
                call(direct_io_host::wire::handler::READ, arguments.bytes, Vec::new()),
                call(direct_io_host::wire::handler::WRITE, 0, vec![0; arguments.bytes as usize]),
            ));
        });
        for (read, write) in calls {
            assert_eq!(bobs.rpc(read.clone()).await.expect("an answer").status, 0);
            for denied in [alices.rpc(read).await, alices.rpc(write.clone()).await, bobs.rpc(write).await] {
                let status = denied.expect("an answer").status;
                assert_eq!(status, direct_io_host::wire::STATUS_PERMISSION);
            }
            tried += 1;
        }
        assert!(tried >= 12);
        mapped.close().expect("closed");
    });
    assert!(fs::read(&path).expect("read") == contents(100_000, 2));
    settles(&stage, &[&path]);
}

#[test]
fn tickets_are_for_one_process_and_end_with_it() {
    tickets_of_one_process("tickets_are_for_one_process_and_end_with_it", By::Network);
}

#[test]
fn tickets_are_for_one_process_and_end_with_it_by_tls() {
    tickets_of_one_process("tickets_are_for_one_process_and_end_with_it_by_tls", By::Tls);
}

fn tickets_of_one_process(test: &str, by: By) {
    let Some(stage) = stage_by(test, by) else { return };
    let ticket = |agent: &AgentClient| match agent.attach(2, false).expect("a ticket") {
        Attachment::Network { address, subsystem_nqn, host_nqn, secret, psk, endpoints, process } => {
            assert!(endpoints == 2 && process > 0);
            assert_eq!(psk.is_some(), by == By::Tls);
            let secret = secret.parse().expect("a secret");
            let psk = psk.map(|psk| psk.parse().expect("a key"));
            let credentials = Some(Credentials { host_nqn: host_nqn.clone(), secret, controller_secret: None });
            let options = Options::new(address, subsystem_nqn).with_host_key(HostKey {
                host_nqn,
                credentials,
                psk,
                secure_channel: false,
            });
            Options { reconnect_for: Duration::ZERO, queues: 8, ..options }
        }
        Attachment::Memory { .. } => panic!("it is on a network"),
    };
    let status =
        |error: NvmeError| error.status().map(|status| status.to_string()).unwrap_or_else(|| error.to_string());
    let with = |options: &Options, credentials: Credentials| options.clone().with_credentials(Arc::new(credentials));
    run(async {
        let (one, other) = (agent_of(&stage), agent_of(&stage));
        let (first, second) = (ticket(&one), ticket(&other));
        let of = |options: &Options| Credentials::clone(options.credentials.as_ref().expect("credentials"));
        // Forged, and one's name with another's secret.
        let forged =
            Credentials { secret: Secret::generate(None, &Entropy::system()).expect("a secret"), ..of(&first) };
        let mixed = Credentials { secret: of(&second).secret, ..of(&first) };
        for wrong in [forged, mixed] {
            let error = Controller::connect(with(&first, wrong)).await.expect_err("refused");
            assert!(matches!(error, NvmeError::Authentication { .. }), "{error}");
        }
        let named = Credentials { host_nqn: format!("{}0", of(&first).host_nqn), ..of(&first) };
        let unknown = if by == By::Tls { "TLS" } else { "Invalid Host" };
        let error = status(Controller::connect(with(&first, named)).await.expect_err("refused"));
        assert!(error.contains(unknown), "{error}");
        if by == By::Tls {
            let keys = [None, second.psk.clone()];
            for psk in keys {
                let error = Controller::connect(Options { psk, ..first.clone() }).await.expect_err("refused");
                assert!(error.is_connection() || matches!(error, NvmeError::Secure { .. }), "{error}");
            }
        }
        // Its own, once, and no more endpoints than were handed out.
        let user = Controller::connect(first.clone()).await.expect("let in");
        assert_eq!(user.queues().await.expect("queues"), 2);
        let error = status(Controller::connect(first.clone()).await.expect_err("used"));
        assert!(error.contains("Invalid Host"), "{error}");
        // With the agent's connection goes what came by it, and what was not used; the other's stays.
        drop(one);
        let mut left = 0;
        while user.namespaces().await.is_ok() {
            tokio::time::sleep(Duration::from_millis(10)).await;
            left += 1;
            assert!(left < 12_000, "it is still there");
        }
        Controller::connect(second).await.expect("the other's is good").shut_down().await.expect("gone");
    });
    settles(&stage, &[]);
}

#[test]
fn a_process_that_dies_with_commands_under_way_leaves_nothing() {
    deaths_with_commands_under_way("a_process_that_dies_with_commands_under_way_leaves_nothing", By::Network);
}

#[test]
fn a_process_that_dies_with_commands_under_way_leaves_nothing_by_tls() {
    deaths_with_commands_under_way("a_process_that_dies_with_commands_under_way_leaves_nothing_by_tls", By::Tls);
}

fn deaths_with_commands_under_way(test: &str, by: By) {
    let Some(stage) = stage_by(test, by) else { return };
    let data = contents(6_000_000, 1);
    let alices = stage.owned("alices", ALICE, &data);
    for _ in 0..4 {
        let clients = (0..2).map(|_| direct(&stage, ALICE, "read", &alices).spawn().expect("it runs")).collect();
        killed_with_commands_under_way(stage.device_pid(), clients, data.len());
    }
    // And at other moments: connecting, opening, reading.
    for round in 0..8u64 {
        let mut client = direct(&stage, ALICE, "read", &alices).spawn().expect("it runs");
        std::thread::sleep(Duration::from_millis(round * 25));
        client.kill().expect("killed");
        client.wait().expect("an end");
    }
    settles(&stage, &[&alices]);
    let output = direct(&stage, ALICE, "read", &alices).output().expect("it runs");
    assert!(output.status.success() && output.stdout == data, "{}", said(&output));
    settles(&stage, &[&alices]);
    tool("truncate", &["-s", "0", &alices.display().to_string()]).expect("the file system's own again");
}

/// Reads and writes of a file by several threads and a queue, until they are told to stop; what they see is checked against what they
/// wrote.
fn work(session: &Arc<Session>, path: &Path, stop: &AtomicBool, done: &AtomicU64) {
    const PART: usize = 65_536;
    let open = || fs::OpenOptions::new().read(true).write(true).open(path).expect("open");
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..3usize)
            .map(|thread| {
                scope.spawn(move || {
                    let file = File::new(session, open()).expect("a file");
                    let base = (thread * PART) as u64;
                    let mut rounds = 0u32;
                    while !stop.load(Ordering::Relaxed) {
                        rounds += 1;
                        let new = contents(20_000, rounds);
                        // What an agent that is gone has left frozen is waited for: the one that comes thaws it.
                        assert_eq!(file.pwrite(&new, base + 1000).expect("written"), 20_000);
                        let mut got = vec![0; 20_000];
                        assert_eq!(file.pread(&mut got, base + 1000).expect("read"), 20_000);
                        assert!(got == new, "thread {thread}, round {rounds}");
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        let queue = scope.spawn(move || {
            let file = Arc::new(File::new(session, open()).expect("a file"));
            let mut queue = Queue::new(session, 8).expect("a queue");
            let (mut rounds, mut ends) = (0u64, Vec::new());
            while !stop.load(Ordering::Relaxed) {
                let offset = (3 * PART) as u64 + rounds % 8 * 4096;
                let request = Request::Read { offset, buffer: vec![0; 4096] };
                queue.submit(&file, offset, request).expect("taken");
                while queue.under_way() > 4 {
                    queue.wait(&mut ends, 1, WAIT_MAX);
                }
                for ended in ends.drain(..) {
                    assert_eq!(ended.result.expect("read"), 4096);
                    assert!(ended.buffer == contents(4 * PART, 0)[ended.tag as usize..][..4096]);
                }
                rounds += 1;
            }
            queue.wait(&mut ends, usize::MAX, WAIT_MAX);
        });
        threads.into_iter().chain([queue]).for_each(|thread| thread.join().expect("its end"));
    });
}

#[test]
fn programs_go_on_when_the_agent_is_killed_and_started_again() {
    let Some(mut stage) = stage("programs_go_on_when_the_agent_is_killed_and_started_again") else { return };
    let path = stage.on_it("file");
    fs::write(&path, contents(4 * 65_536, 0)).expect("written");
    let session = session(&stage);
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let working = scope.spawn(|| work(&session, &path, &stop, &done));
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(400));
            let before = session.counts().direct_reads;
            within_seconds("it goes directly", || session.counts().direct_reads > before + 10);
            stage.kill_agent();
            // Nothing of a dead agent's stays on the device.
            within_seconds("the device forgets the process", || protection(&stage, "processes") == 0);
            stage.start_agent();
        }
        let before = session.counts().direct_writes;
        within_seconds("it goes directly again", || session.counts().direct_writes > before + 10);
        within_seconds("it is worked", || done.load(Ordering::Relaxed) > 20 || working.is_finished());
        stop.store(true, Ordering::Relaxed);
        working.join().expect("its end");
    });
    drop(session);
    settles(&stage, &[&path]);
}

#[test]
fn agent_and_programs_go_on_when_the_device_was_killed_and_started_again() {
    device_killed_and_started_again(
        "agent_and_programs_go_on_when_the_device_was_killed_and_started_again",
        By::Network,
    );
}

#[test]
fn agent_and_programs_go_on_when_the_device_was_killed_and_started_again_by_tls() {
    device_killed_and_started_again(
        "agent_and_programs_go_on_when_the_device_was_killed_and_started_again_by_tls",
        By::Tls,
    );
}

fn device_killed_and_started_again(test: &str, by: By) {
    let Some(mut stage) = or_skip(test, Stage::remote(&["--media", "MEDIA", "--size", "128M"], by)) else { return };
    let path = stage.on_it("file");
    fs::write(&path, contents(300_000, 4)).expect("written");
    let session = session(&stage);
    let open = fs::OpenOptions::new().read(true).write(true).open(&path).expect("open");
    let file = File::new(&session, open).expect("a file");
    file.take().expect("directly");
    assert_eq!(file.pwrite(&[9; 5000], 10).expect("written"), 5000);
    file.sync(true).expect("durable");
    stage.restart_device();
    // The agent is there again when it has thawed what it froze.
    within_seconds("the agent begins anew", || !is_frozen(&path) || file.is_direct());
    let mut got = vec![0; 5000];
    within_seconds("it is read again", || file.pread(&mut got.clone(), 10).is_ok());
    assert_eq!(file.pread(&mut got, 10).expect("read"), 5000);
    assert!(got == [9; 5000]);
    within_seconds("it is direct again", || file.take().is_ok());
    assert_eq!(file.pwrite(&[8; 100], 0).expect("written"), 100);
    assert!(file.is_direct());
    file.close();
    drop(session);
    settles(&stage, &[&path]);
    let all = fs::read(&path).expect("read");
    assert!(all[..100] == [8; 100] && all[100..5010] == [9; 4910] && all[5010..] == contents(300_000, 4)[5010..]);
}

#[test]
fn an_agent_whose_calls_wait_for_a_file_system_begins_anew_when_they_end() {
    let test = "an_agent_whose_calls_wait_for_a_file_system_begins_anew_when_they_end";
    let Some(mut stage) = or_skip(test, Stage::remote(&["--media", "MEDIA", "--size", "128M"], By::Network)) else {
        return;
    };
    let path = stage.on_it("file");
    fs::write(&path, contents(300_000, 4)).expect("written");
    let session = session(&stage);
    let open = fs::OpenOptions::new().read(true).write(true).open(&path).expect("open");
    let file = File::new(&session, open).expect("a file");
    file.take().expect("directly");
    let second = stage.on_it("second");
    fs::write(&second, contents(300_000, 5)).expect("written");
    let stopped = Stopped::new(stage.mount_pid());
    // The agent has it durable first, which waits for who is stopped.
    let opens = std::thread::spawn({
        let session = session.clone();
        let open = fs::OpenOptions::new().read(true).write(true).open(&second).expect("open");
        move || File::new(&session, open).expect("a file").take().is_ok()
    });
    let agent = stage.agent.as_ref().expect("the agent").id();
    within_seconds("a thread of the agent waits", || waits_for_a_disk(agent));
    stage.kill_device();
    // Longer than the agent waits for its threads: until it is over, that one cannot end.
    std::thread::sleep(Duration::from_secs(5));
    stage.start_device();
    drop(stopped);
    let _ = opens.join().expect("no panic");
    within_seconds("it is direct again", || file.take().is_ok());
    assert_eq!(file.pwrite(&[8; 100], 0).expect("written"), 100);
    assert!(file.is_direct());
    file.close();
    drop(session);
    settles(&stage, &[&path]);
    assert!(fs::read(&path).expect("read")[..100] == [8; 100]);
}

/// A process that is stopped, and goes on when this is dropped.
struct Stopped(String);

impl Stopped {
    fn new(process: u32) -> Stopped {
        tool("kill", &["-STOP", &process.to_string()]).expect("stopped");
        Stopped(process.to_string())
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = tool("kill", &["-CONT", &self.0]);
    }
}

/// True where a thread of a process waits in a call that nothing interrupts.
fn waits_for_a_disk(process: u32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{process}/task")) else { return false };
    let state = |thread: fs::DirEntry| fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
    threads.flatten().any(|thread| state(thread).rsplit_once(')').is_some_and(|(_, rest)| rest.starts_with(" D")))
}

#[test]
fn an_agent_that_is_silent_is_gone_for_the_device_and_finds_that_out() {
    let Some(mut stage) = stage("an_agent_that_is_silent_is_gone_for_the_device_and_finds_that_out") else { return };
    let path = stage.on_it("file");
    fs::write(&path, contents(100_000, 5)).expect("written");
    let session = session(&stage);
    let file = File::new(&session, fs::File::open(&path).expect("open")).expect("a file");
    file.take().expect("directly");
    let agent = stage.agent.as_ref().expect("the agent").id().to_string();
    tool("kill", &["-STOP", &agent]).expect("stopped");
    // The device lost patience: its keep alive time is over, and nothing that the agent let in is left.
    within_seconds("the device forgets the process", || protection(&stage, "processes") == 0);
    assert!(is_frozen(&path), "nobody changes it while the agent may think it granted");
    tool("kill", &["-CONT", &agent]).expect("goes on");
    within_seconds("the agent begins anew", || !is_frozen(&path));
    let mut got = vec![0; 100_000];
    assert_eq!(file.pread(&mut got, 0).expect("read"), 100_000);
    assert!(got == contents(100_000, 5));
    within_seconds("it is direct again", || file.take().is_ok());
    file.close();
    drop(session);
    settles(&stage, &[&path]);
    let agent: &mut Child = stage.agent.as_mut().expect("the agent");
    assert!(agent.try_wait().expect("its state").is_none(), "the same agent");
}

#[test]
fn what_a_small_table_loses_the_agent_installs_again_over_the_network() {
    let test = "what_a_small_table_loses_the_agent_installs_again_over_the_network";
    let flags = ["--preset", "bee3", "--clock", "free", "--ram", "--size", "128M"];
    let Some(stage) = or_skip(test, Stage::remote(&flags, By::Network)) else { return };
    let path = stage.on_it("pieces");
    let (file, model) = stage.in_pieces("pieces", 8000);
    let session = session(&stage);
    let file = File::new(&session, file).expect("a file");
    file.take().expect("directly");
    let mut got = vec![1; 1 << 20];
    for (number, part) in model.chunks(1 << 20).enumerate() {
        assert_eq!(file.pread(&mut got[..part.len()], (number << 20) as u64).expect("read"), part.len());
        assert!(got[..part.len()] == *part, "MiB {number}");
    }
    assert!(file.is_direct() && session.counts().kernel_reads == 0, "{:?}", session.counts());
    assert!(protection(&stage, "evictions") > 0 && protection(&stage, "upcalls") > 0);
    file.close();
    drop(session);
    settles(&stage, &[&path]);
}

#[test]
fn endpoints_are_bounded_and_their_want_is_told() {
    let Some(mut stage) = stage("endpoints_are_bounded_and_their_want_is_told") else { return };
    stage.kill_agent();
    stage.agent_flags = ["--endpoints", "6", "--endpoints-per-user", "3"].map(ToOwned::to_owned).to_vec();
    stage.start_agent();
    let path = stage.on_it("file");
    fs::write(&path, contents(400_000, 6)).expect("written");
    let alices = stage.owned("alices", ALICE, &contents(1000, 7));
    // A session does with what it gets, however many threads it has.
    let session = session(&stage);
    let held: Vec<_> = (0..2).map(|_| agent_of(&stage)).collect();
    assert!(held[0].attach(5, false).is_ok());
    let refused = held[1].attach(1, false).expect_err("all are taken");
    assert!(refused.to_string().contains("all of the agent's 6 endpoints"), "{refused}");
    let output = direct(&stage, ALICE, "read", &alices).output().expect("it runs");
    assert!(!output.status.success() && said(&output).contains("endpoints are in use"), "{}", said(&output));
    std::thread::scope(|scope| {
        for thread in 0..12u64 {
            let (session, path) = (&session, &path);
            scope.spawn(move || {
                let file = File::new(session, fs::File::open(path).expect("open")).expect("a file");
                file.take().expect("directly");
                let mut got = vec![0; 30_000];
                assert_eq!(file.pread(&mut got, thread * 30_000).expect("read"), 30_000);
                assert!(got == contents(400_000, 6)[(thread * 30_000) as usize..][..30_000]);
            });
        }
    });
    drop((held, session));
    settles(&stage, &[&path]);
    // What was given back is there for others.
    let output = direct(&stage, ALICE, "read", &alices).output().expect("it runs");
    assert!(output.status.success() && output.stdout == contents(1000, 7), "{}", said(&output));
}

#[test]
fn an_agent_for_a_device_that_knows_no_hosts_is_refused() {
    let test = "an_agent_for_a_device_that_knows_no_hosts_is_refused";
    let daemon = willow_tests::daemon::Daemon::start(&["--size", "64M"]);
    let folder = willow_tests::scratch::Scratch::new(test).expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let willow = willow_tests::daemon::binary().display().to_string();
    tool(&willow, &["key", "new", &path("key")]).expect("a key");
    let target = daemon.address().to_string();
    let agent = ["agent", "--target", &target, "--socket", &path("agent"), "--block", "/dev/null=1"];
    let refused = tool(&willow, &agent).expect_err("without a key");
    assert!(refused.contains("needs a key"), "{refused}");
    let refused = tool(&willow, &[&agent[..], &["--key", &path("key")]].concat()).expect_err("nobody is asked there");
    assert!(refused.contains("lets any host in"), "{refused}");
}
