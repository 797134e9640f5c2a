//! Caches of files of several users, each by processes of their own, through one agent. Skipped with a line that says why where this is not root.

mod support;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;
use support::{Folder, Public, Served, willow};
use willow_host::cache::{Backing, CacheOptions, Manager};
use willow_host::{CachingClient, Hre, ShmHre, ShmOptions};
use willow_skip::skip;

const ALICE: u32 = 54_891;
const BOB: u32 = 54_892;

/// An agent, ended at the end whatever happens.
struct Agent(Child);

impl Agent {
    fn start(device: &str, socket: &str) -> Agent {
        let mut command = willow();
        command.args(["agent", "--target", device, "--socket", socket, "--caches-only"]).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it runs");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("its output")).read_line(&mut line).expect("a line");
        assert!(line.starts_with("ready "), "{line:?}");
        Agent(child)
    }

    fn end(mut self) {
        let signalled = Command::new("kill").args(["-TERM", &self.0.id().to_string()]).status().expect("kill");
        assert!(signalled.success() && self.0.wait().expect("an end").success());
    }

    fn kill(mut self) {
        self.0.kill().expect("killed");
        self.0.wait().expect("an end");
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs the command as a user, with that on standard input.
fn run_as(public: &Public, user: u32, arguments: &[&str], input: &[u8]) -> Output {
    let mut command = public.willow();
    command.args(arguments).uid(user).gid(user).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it runs");
    // One that refuses at once reads nothing.
    let _ = child.stdin.take().expect("its input").write_all(input);
    child.wait_with_output().expect("an end")
}

fn owned(public: &Public, name: &str, user: u32, mode: u32, bytes: &[u8]) -> String {
    let path = public.path(name);
    std::fs::write(&path, bytes).expect("written");
    std::os::unix::fs::chown(&path, Some(user), Some(user)).expect("given");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).expect("set");
    path
}

#[test]
fn users_reach_their_own_files_in_the_cache_and_no_others() {
    let test = "users_reach_their_own_files_in_the_cache_and_no_others";
    if !rustix::process::geteuid().is_root() {
        return skip(test, "processes of other users are root's to start");
    }
    let public = Public::new();
    let (socket, agent_socket) = (public.path("device.sock"), public.path("agent.sock"));
    let device = Served::start(&["--ram", "--socket", &socket]);
    let agent = Agent::start(&socket, &agent_socket);
    let secret = owned(&public, "secret", ALICE, 0o600, &[b'a'; 20_000]);
    let shown = owned(&public, "shown", ALICE, 0o644, &[b's'; 20_000]);
    let ok = |user: u32, arguments: &[&str], input: &[u8]| {
        let output = run_as(&public, user, &[arguments, &["--agent", &agent_socket]].concat(), input);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{user} {arguments:?}: {error}");
        output.stdout
    };
    let refused = |user: u32, arguments: &[&str], why: &str| {
        let output = run_as(&public, user, &[arguments, &["--agent", &agent_socket]].concat(), b"mallory");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains(why), "{user} {arguments:?}: {error}");
    };
    // Written back, or through, as its user says.
    ok(ALICE, &["cache", "write", &secret, "--mode", "write-back", "--offset", "5000"], &[b'b'; 6000]);
    ok(ALICE, &["cache", "write", &shown, "--mode", "write-through", "--offset", "100"], b"hello");
    let expected = [vec![b'a'; 5000], vec![b'b'; 6000], vec![b'a'; 9000]].concat();
    assert!(ok(ALICE, &["cache", "read", &secret], b"") == expected);
    assert_eq!(ok(BOB, &["cache", "read", &shown, "--offset", "98", "--bytes", "9"], b""), b"sshelloss");
    assert_eq!(std::fs::read(&shown).expect("reads")[98..107], *b"sshelloss", "it is in the file");
    // Another has the rights that his descriptors have, and no others.
    refused(BOB, &["cache", "read", &secret], "cannot open");
    refused(BOB, &["cache", "write", &shown], "cannot open");
    refused(BOB, &["cache", "write", &shown, "--read-only"], "Bad file descriptor");
    let own = owned(&public, "bobs", BOB, 0o600, &[b'c'; 8192]);
    ok(BOB, &["cache", "write", &own, "--mode", "write-back"], b"dirty");
    refused(BOB, &["cache", "write", &own, "--read-only"], "Bad file descriptor");
    assert!(ok(ALICE, &["cache", "read", &secret], b"") == expected);
    // An agent that ends writes all back; one that is killed leaves it to the next.
    agent.end();
    assert!(std::fs::read(&secret).expect("reads") == expected);
    let agent = Agent::start(&socket, &agent_socket);
    ok(ALICE, &["cache", "write", &secret, "--mode", "write-back", "--offset", "1"], b"killed");
    agent.kill();
    let _ = std::fs::remove_file(&agent_socket);
    let agent = Agent::start(&socket, &agent_socket);
    let expected = [b"akilled".to_vec(), expected[7..].to_vec()].concat();
    let begun = std::time::Instant::now();
    while std::fs::read(&secret).expect("reads") != expected {
        assert!(begun.elapsed() < std::time::Duration::from_secs(180), "the next agent writes it back");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert!(ok(ALICE, &["cache", "read", &secret], b"") == expected);
    agent.end();
    device.end();
}

/// A manager that ends without giving its cache up: until the device takes it for gone, who opens that waits.
fn leave_a_manager(device: &str, file: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let opened = ShmHre::open(std::path::Path::new(device), ShmOptions::default()).expect("an endpoint");
        let hre: Arc<dyn Hre> = Arc::new(opened);
        let client = CachingClient::find(hre).await.expect("the app");
        let file = std::fs::File::options().read(true).write(true).open(file).expect("it is there");
        let backing = Backing::of(file).expect("it can be cached");
        drop(Manager::open(&client, backing, &CacheOptions::default()).await.expect("a cache"));
    });
}

#[test]
fn who_waits_for_a_manager_that_was_killed_keeps_nobody_from_other_caches() {
    let test = "who_waits_for_a_manager_that_was_killed_keeps_nobody_from_other_caches";
    if !rustix::process::geteuid().is_root() {
        return skip(test, "the agent of caches is root's to start");
    }
    let folder = Folder::new();
    let (socket, agent_socket) = (folder.path("device.sock"), folder.path("agent.sock"));
    let device = Served::start(&["--ram", "--socket", &socket]);
    let agent = Agent::start(&socket, &agent_socket);
    let (first, second) = (folder.file("first", &[b'1'; 10_000]), folder.file("second", &[b'2'; 10_000]));
    let read = |file: &str| {
        let mut command = willow();
        command.args(["cache", "read", file, "--agent", &agent_socket]).stdout(Stdio::piped());
        command.spawn().expect("it runs")
    };
    // On a machine that is busy the other may take as long as the wait.
    let is_kept_from_nothing = |_| {
        leave_a_manager(&socket, &first);
        let mut waiting = read(&first);
        std::thread::sleep(Duration::from_millis(500));
        let other = read(&second).wait_with_output().expect("an end");
        let is_first = waiting.try_wait().expect("its state").is_none();
        assert!(other.status.success() && other.stdout == [b'2'; 10_000]);
        let waited = waiting.wait_with_output().expect("an end");
        assert!(waited.status.success() && waited.stdout == [b'1'; 10_000], "it has the cache in the end");
        is_first
    };
    assert!((0..10).any(is_kept_from_nothing), "another cache waits as well");
    agent.end();
    device.end();
}
