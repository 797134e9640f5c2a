//! `willow btree` against a real device: what it prints, and how it fails; trees survive a kill of the device.

mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::{Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use support::{Folder, Public, Served};
use willow_host::btree::{BtreeClient, key};
use willow_host::{Controller, NvmeHre, Options};

fn lines(count: u32) -> String {
    (0..count).map(|number| format!("key {number:06}\tvalue of {number}\n")).collect()
}

#[test]
fn trees_are_made_loaded_and_searched() {
    let folder = Folder::new();
    let device = Served::start(&["--ram", "--size", "64M", "--kv-size", "0"]);
    assert!(device.fails(&["btree", "get", "orders", "a"]).contains("willow btree create"));
    let text = lines(3000);
    let file = folder.file("pairs", text.as_bytes());
    for (name, layout) in [("orders", &[][..]), ("in turn", &["--striped"][..])] {
        assert_eq!(device.ok(&[&["btree", "create", name, "--size", "32M"], layout].concat()), "");
        assert!(device.fails(&["btree", "create", name]).contains("already"));
        assert_eq!(device.ok(&["btree", "load", name, &file]), "3000 pairs\n");
        assert_eq!(device.ok(&["btree", "get", name, "key 000007"]), "value of 7");
        assert_eq!(device.ok(&["btree", "range", name]), text);
        let some = device.ok(&["btree", "range", name, "key 000100", "--to", "key 000200", "--limit", "150"]);
        assert_eq!(some.lines().collect::<Vec<_>>(), text.lines().skip(100).take(100).collect::<Vec<_>>());
        assert_eq!(
            device.ok(&["btree", "range", name, "key 0029", "--keys", "--limit", "2"]),
            "key 002900\nkey 002901\n"
        );
        assert!(device.run_with(&["btree", "put", name, "key 000007", "-"], b"other\n").status.success());
        assert_eq!(device.ok(&["btree", "get", name, "key 000007"]), "other\n");
        assert_eq!(device.ok(&["btree", "delete", name, "key 000008"]), "");
        for command in ["get", "delete"] {
            assert!(device.fails(&["btree", command, name, "key 000008"]).contains("there is no key key 000008"));
        }
        let stat: serde_json::Value = serde_json::from_str(&device.ok(&["btree", "stat", name, "--json"])).unwrap();
        assert_eq!((&stat["pairs"], &stat["height"]), (&2999.into(), &2.into()));
    }
    // What is printed as digits is read as digits.
    let digits = device.ok(&["btree", "range", "orders", "--hex"]);
    assert_eq!(device.ok(&["btree", "create", "copy"]), "");
    assert!(device.run_with(&["btree", "load", "copy", "-", "--hex"], digits.as_bytes()).status.success());
    assert_eq!(device.ok(&["btree", "range", "copy"]), device.ok(&["btree", "range", "orders"]));
    // One that is removed is gone, and is made again.
    for round in 0..2 {
        assert_eq!(device.ok(&["btree", "create", "large", "--size", "64M"]), "", "{round}");
        assert!(device.run_with(&["btree", "put", "large", "a", "-"], b"1").status.success());
        assert_eq!(device.ok(&["btree", "remove", "large"]), "");
        assert!(device.fails(&["btree", "get", "large", "a"]).contains("there is no tree large"));
    }
    assert!(device.fails(&["btree", "remove", "large"]).contains("there is no tree large"));
    assert_eq!(device.ok(&["btree", "range", "orders", "--limit", "1"]), "key 000000\tvalue of 0\n");
    let bad = folder.file("bad", b"a\tb\nno tab\n");
    let said = device.fails(&["btree", "load", "copy", &bad]);
    assert!(said.contains("line 2") && said.contains("no tab"), "{said}");
    assert!(device.fails(&["btree", "get", "nothing", "a"]).contains("there is no tree nothing"));
    assert!(device.fails(&["btree", "get", "copy", "12345678901234567"]).contains("1 to 16"));
    assert!(device.fails(&["btree", "create", "large", "--size", "100T"]).contains("1 GiB"));
    assert!(device.fails(&["btree", "create", "small", "--size", "4k"]).contains("256 KiB"));
    device.end();
}

#[test]
fn trees_survive_a_kill_and_are_reached_by_shared_memory() {
    let folder = Folder::new();
    let (media, socket) = (folder.path("media"), folder.path("willow.sock"));
    let serve = ["--media", &media, "--size", "64M", "--kv-size", "0", "--socket", &socket];
    let mut device = Served::start(&serve);
    assert_eq!(device.ok(&["btree", "create", "orders"]), "");
    let loaded = device.run_with(&["btree", "load", "orders", "-"], lines(500).as_bytes());
    assert_eq!(String::from_utf8_lossy(&loaded.stdout), "500 pairs\n");
    device.signal("-KILL");
    let _ = device.child.wait();
    let device = Served::start(&serve);
    let by_memory = support::willow().args(["btree", "range", "orders", "--target", &socket]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&by_memory.stdout), lines(500));
    assert!(device.run_with(&["btree", "put", "orders", "another", "-"], b"one").status.success());
    assert_eq!(device.ok(&["btree", "get", "orders", "another"]), "one");
    device.end();
}

/// Users of the machine.
const USERS: [u32; 2] = [54_101, 54_102];

#[test]
fn users_have_trees_of_their_own_of_the_same_name() {
    if !willow_skip::is_root() {
        return willow_skip::skip("users_have_trees_of_their_own_of_the_same_name", "not root");
    }
    let program = Public::new();
    let socket = program.path("btree-socket");
    let device = Served::start(&["--ram", "--size", "16M", "--kv-size", "0", "--socket", &socket]);
    let run = |user: u32, arguments: &[&str], input: &str| -> Output {
        let mut command = program.willow();
        command.args(arguments).args(["--target", &socket]).uid(user).gid(user).current_dir("/");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), input.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    };
    let ok = |user: u32, arguments: &[&str], input: &str| {
        let output = run(user, arguments, input);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    for user in USERS {
        assert!(!run(user, &["btree", "get", "mine", "k"], "").status.success(), "she has none yet");
        ok(user, &["btree", "create", "mine"], "");
        ok(user, &["btree", "put", "mine", "k", "-"], &format!("of {user}"));
    }
    // A load of many pairs stays within what a user's app may do in one run.
    assert_eq!(ok(USERS[0], &["btree", "load", "mine", "-"], &lines(2000)), "2000 pairs\n");
    for user in USERS {
        assert_eq!(ok(user, &["btree", "get", "mine", "k"], ""), format!("of {user}"));
    }
    assert_eq!(ok(USERS[0], &["btree", "range", "mine", "--limit", "2001"], "").lines().count(), 2001);
    assert_eq!(ok(USERS[1], &["btree", "range", "mine"], "").lines().count(), 1);
    device.end();
}

/// Bytes that go one way after bytes that went the other: how often the host spoke after the device did.
#[derive(Default)]
struct Turns {
    /// The device spoke last: 1.
    last: AtomicU64,
    turns: AtomicU64,
}

/// Carries the bytes of connections to a device, and counts in whose turn they are.
fn relay(to: SocketAddr, turns: &Arc<Turns>) -> SocketAddr {
    fn carry(mut from: TcpStream, mut to: TcpStream, turns: Arc<Turns>, is_device: bool) {
        let mut bytes = vec![0; 64 << 10];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            let was_device = turns.last.swap(is_device.into(), Ordering::SeqCst) == 1;
            turns.turns.fetch_add(u64::from(was_device && !is_device), Ordering::SeqCst);
            if to.write_all(&bytes[..count]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(std::net::Shutdown::Write);
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let turns = turns.clone();
    std::thread::spawn(move || {
        for host in listener.incoming().map_while(Result::ok) {
            let Ok(device) = TcpStream::connect(to) else { break };
            for stream in [&host, &device] {
                stream.set_nodelay(true).unwrap();
            }
            let ways = [(host.try_clone(), device.try_clone(), false), (Ok(device), Ok(host), true)];
            for (from, to, is_device) in ways {
                let (from, to, turns) = (from.unwrap(), to.unwrap(), turns.clone());
                std::thread::spawn(move || carry(from, to, turns, is_device));
            }
        }
    });
    address
}

#[test]
fn a_search_over_nvme_tcp_is_one_round_trip_whatever_the_height() {
    let folder = Folder::new();
    let device = Served::start(&["--ram", "--size", "64M", "--kv-size", "0", "--spus", "2"]);
    // Falling keys leave half a node behind each time: 15,000 pairs have three levels.
    let falling = |count: u32| -> String { (0..count).rev().map(|at| format!("{at:06}\tvalue of {at}\n")).collect() };
    for (name, count) in [("one", 1), ("two", 300), ("three", 15_000)] {
        device.ok(&["btree", "create", name, "--striped", "--size", "200M"]);
        device.ok(&["btree", "load", name, &folder.file(name, falling(count).as_bytes())]);
    }
    let turns = Arc::new(Turns::default());
    let subsystem = device.ready.split_whitespace().find_map(|word| word.strip_prefix("nqn=")).unwrap();
    let mut options = Options::new(relay(device.address.parse().unwrap(), &turns), subsystem);
    options.keep_alive = Duration::ZERO;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let controller = Controller::connect(options).await.unwrap();
        let client = BtreeClient::find(Arc::new(NvmeHre::new(controller, 1).await.unwrap())).await.unwrap();
        for (name, height) in [("one", 1), ("two", 2), ("three", 3)] {
            let tree = client.open(name).await.unwrap();
            assert_eq!(tree.statistics().await.unwrap().height, height);
            let before = turns.turns.load(Ordering::SeqCst);
            for _ in 0..20 {
                assert_eq!(tree.get(&key(b"000000").unwrap()).await.unwrap().as_deref(), Some(&b"value of 0"[..]));
                assert_eq!(tree.get(&key(b"nothing").unwrap()).await.unwrap(), None);
            }
            assert_eq!(turns.turns.load(Ordering::SeqCst) - before, 40, "{height} levels");
        }
    });
    device.end();
}
