//! `willow atomic` against a served device: what it prints, how it fails, and what kills leave.

mod support;

use serde_json::Value;
use support::{Folder, Served};

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// No transaction is open, and all chunks are free or wait to be forgotten.
fn is_idle(device: &Served) -> bool {
    let statistics = json(&device.ok(&["atomic", "stat", "--json"]));
    let spus = statistics["spus"].as_array().expect("a list").clone();
    assert_eq!(spus.len(), 8);
    spus.iter().all(|spu| spu["open"] == 0)
}

#[test]
fn several_files_are_written_as_one() {
    let folder = Folder::new();
    let device = Served::start(&["--ram", "--size", "64M", "--kv-size", "64M"]);
    // Over all processors, and beside it two bytes that lie on two of them.
    let large: Vec<u8> = (0..100_000_u32).map(|byte| (byte % 251) as u8).collect();
    let (large_file, small_file) = (folder.file("large", &large), folder.file("small", b"xy"));
    let (first, second) = (format!("12345={large_file}"), format!("1048575={small_file}"));
    assert_eq!(device.ok(&["atomic", "write", &first, &second]), "");
    assert_eq!(device.run(&["atomic", "read", "12345", "100000"]).stdout, large);
    assert_eq!(device.run(&["atomic", "read", "1048574", "4"]).stdout, [0, b'x', b'y', 0]);
    assert!(is_idle(&device));
    // What is given up is not there.
    let (first, second) = (format!("0={small_file}"), format!("32M={small_file}"));
    assert_eq!(device.ok(&["atomic", "write", &first, &second, "--abort"]), "");
    assert_eq!(device.run(&["atomic", "read", "0", "2"]).stdout, [0, 0]);
    assert!(is_idle(&device));
    let table = device.ok(&["atomic", "stat"]);
    assert_eq!(table.lines().count(), 9, "{table}");
    for (arguments, why) in [
        (&["atomic", "write", "0"][..], "OFFSET=FILE"),
        (&["atomic", "write", "64M=/dev/null"], "empty"),
        (&["atomic", "write", &format!("67108863={small_file}")], "past the end"),
        (&["atomic", "write", &first, "--nsid", "2"], "no block namespace"),
        (&["atomic", "read", "64M", "1"], "past the end"),
    ] {
        let said = device.fails(arguments);
        assert!(said.contains(why), "{arguments:?}: {said}");
    }
    // A namespace has stripes of its own: what is written as one is where block reads find it, and nothing else changes.
    let made = json(&device.ok(&["ns", "create", "--csi", "nvm", "--size", "16M", "--stripe", "64K", "--json"]));
    let nsid = made["nsid"].to_string();
    let on_other =
        |command: &str, rest: &[&str]| device.run(&[&["atomic", command, "--nsid", &nsid], rest].concat()).stdout;
    assert_eq!(on_other("write", &[&format!("12345={large_file}")]), b"");
    assert_eq!(on_other("read", &["12345", "100000"]), large);
    let all = on_other("read", &["0", "16777216"]);
    assert!(all[..12345].iter().chain(&all[112_345..]).all(|byte| *byte == 0), "bytes elsewhere changed");
    device.end();
}

#[test]
fn namespaces_are_made_whose_writes_are_whole() {
    let folder = Folder::new();
    let device = Served::start(&["--ram", "--size", "64M", "--kv-size", "64M"]);
    let create = ["ns", "create", "--csi", "nvm", "--size", "16M"];
    let made = json(&device.ok(&[&create[..], &["--atomic", "64K", "--json"]].concat()));
    let listed = json(&device.ok(&["ns", "list", "--json"]));
    let all = listed["namespaces"].as_array().expect("a list");
    let found = all.iter().find(|namespace| namespace["nsid"] == made["nsid"]).expect("it is listed");
    assert_eq!((&found["app"], &found["stripe_bytes"]), (&"atomic-io".into(), &65536.into()));
    // Files are not written there past its log.
    let file = folder.file("file", b"xy");
    let said = device.fails(&["atomic", "write", &format!("0={file}"), "--nsid", &made["nsid"].to_string()]);
    assert!(said.contains("atomic-io"), "{said}");
    for (more, why) in [
        (&["--atomic", "128K"][..], "4K to 64K"),
        (&["--atomic", "3000"], "4K to 64K"),
        (&["--atomic", "64K", "--stripe", "64K"], "cannot be used with"),
    ] {
        let said = device.fails(&[&create[..], more].concat());
        assert!(said.contains(why), "{more:?}: {said}");
    }
    assert!(device.fails(&["ns", "create", "--csi", "kv", "--size", "16M", "--atomic", "64K"]).contains("no blocks"));
    device.end();
}
