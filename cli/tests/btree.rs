//! `willow btree` against a real device: what it prints, and how it fails; trees survive a kill of the device.

mod support;

use std::os::unix::process::CommandExt;
use std::process::{Output, Stdio};
use support::{Folder, Public, Served};

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
