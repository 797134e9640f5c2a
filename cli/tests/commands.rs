//! The commands against a real device over NVMe/TCP: what they print, and how they fail.

mod support;

use serde_json::Value;
use support::{Folder, Served, fails};

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn pairs_go_in_and_out() {
    let folder = Folder::new();
    let device = Served::start(&["--ram", "--size", "64M", "--kv-size", "64M"]);
    let value: Vec<u8> = (0..3_000_000_u32).map(|byte| (byte % 251) as u8).collect();
    let file = folder.file("value", &value);
    for (key, file) in [("large", file.as_str()), ("other", file.as_str())] {
        assert_eq!(device.ok(&["kv", "put", key, file]), "");
    }
    assert!(device.run_with(&["kv", "put", "empty", "-"], b"").status.success());
    assert_eq!(device.run(&["kv", "get", "large"]).stdout, value);
    assert_eq!(device.run(&["kv", "get", "empty"]).stdout, b"");
    assert_eq!(device.ok(&["kv", "exists", "empty"]), "yes\n");
    let all = device.ok(&["kv", "list"]);
    let mut keys: Vec<&str> = all.lines().collect();
    assert_eq!(device.ok(&["kv", "list", "--after", keys[0]]).lines().collect::<Vec<_>>(), keys[1..]);
    assert_eq!(json(&device.ok(&["kv", "list", "--json", "--limit", "2"]))["keys"], serde_json::json!(keys[..2]));
    keys.sort();
    assert_eq!(keys, ["empty", "large", "other"]);
    assert_eq!(device.ok(&["kv", "delete", "large"]), "");
    for command in ["get", "delete", "exists"] {
        assert!(device.fails(&["kv", command, "large"]).contains("there is no key large"));
    }
    assert!(device.run_with(&["kv", "put", "00ff", "-", "--hex"], b"x").status.success());
    assert!(device.ok(&["kv", "list"]).contains("\\x00\\xff"));
    assert!(device.fails(&["kv", "put", "12345678901234567", &file]).contains("1 to 16"));
    assert!(device.fails(&["kv", "put", "k", &folder.path("missing")]).contains("cannot read"));
    device.end();
}

#[test]
fn namespaces_come_and_go() {
    let device = Served::start(&["--ram", "--size", "64M", "--kv-size", "64M"]);
    assert_eq!(device.ok(&["ns", "create", "--csi", "kv", "--size", "64M"]), "nsid 3\n");
    let made = json(&device.ok(&["ns", "create", "--csi", "nvm", "--size", "64M", "--block-bytes", "512", "--json"]));
    assert_eq!(made["nsid"], 4);
    let listed = json(&device.ok(&["ns", "list", "--json"]));
    let namespaces = listed["namespaces"].as_array().unwrap();
    assert_eq!(namespaces.len(), 4);
    assert_eq!((&namespaces[3]["csi"], &namespaces[3]["block_bytes"]), (&"nvm".into(), &512.into()));
    assert!(device.fails(&["kv", "list"]).contains("--nsid"));
    assert_eq!(device.ok(&["kv", "list", "--nsid", "3"]), "");
    assert!(device.fails(&["kv", "list", "--nsid", "1"]).contains("no key-value namespace"));
    assert_eq!(device.ok(&["ns", "delete", "3"]), "");
    assert!(device.fails(&["ns", "delete", "3"]).contains("3"));
    assert!(device.fails(&["ns", "create", "--csi", "zns", "--size", "1G"]).contains("nvm"));
    assert!(device.fails(&["ns", "create", "--csi", "kv", "--size", "100T"]).contains("fit"));
    assert!(device.fails(&["ns", "create", "--csi", "kv", "--size", "0"]).contains("0"));
    device.end();
}

#[test]
fn apps_are_listed_replaced_and_called() {
    let folder = Folder::new();
    let device = Served::start(&["--ram", "--size", "64M", "--kv-size", "64M"]);
    let before = json(&device.ok(&["app", "list", "--json"]));
    let names: Vec<&Value> = before["apps"].as_array().unwrap().iter().map(|app| &app["name"]).collect();
    assert_eq!(
        names,
        [
            "base-io",
            "key-value",
            "direct-io",
            "atomic-write",
            "search",
            "atomic-io",
            "append",
            "caching",
            "columns",
            "compute"
        ]
    );
    assert!(device.run_with(&["kv", "put", "kept", "-"], b"value").status.success());
    let module = folder.file("key-value.wasm", willow_apps::KEY_VALUE_WASM);
    assert!(device.ok(&["app", "install", &module]).contains("key-value"));
    assert_eq!(device.ok(&["kv", "get", "kept"]), "value", "a replaced app finds its data");
    assert!(device.ok(&["app", "list"]).contains("running"));
    assert_eq!(device.ok(&["app", "log", "key-value"]), "");
    assert!(device.fails(&["app", "log", "nobody"]).contains("nobody"));
    assert!(device.fails(&["app", "remove", "nobody"]).contains("nobody"));
    assert!(device.fails(&["app", "remove", "base-io"]).contains("base-io"));
    let bad = folder.file("bad.wasm", b"\0asm\x01\0\0\0");
    assert!(device.fails(&["app", "install", &bad]).contains("not installed"));
    let text = folder.file("text.wasm", b"hello");
    assert!(device.fails(&["app", "install", &text]).contains("no WebAssembly module"));

    // Base-IO's flush takes its 32 bytes of arguments in the data.
    let arguments = folder.file("arguments", &[0; 32]);
    assert_eq!(device.ok(&["rpc", "base-io", "flush", "--spu", "3", "--data", &arguments]), "result 0\n");
    let answer = json(&device.ok(&["rpc", "base-io", "3", "--spu", "3", "--data", &arguments, "--json"]));
    assert_eq!((&answer["status"], &answer["result"]), (&0.into(), &0.into()));
    assert!(device.fails(&["rpc", "base-io", "fly"]).contains("3:flush"));
    assert!(device.fails(&["rpc", "nobody", "fly"]).contains("key-value"));
    assert!(device.fails(&["rpc", "base-io", "flush", "--spu", "99", "--data", &arguments]).contains("SPU"));
    device.end();
}

#[test]
fn a_new_app_is_made_built_installed_and_called() {
    let folder = Folder::new();
    let here = |arguments: &[&str], place: &str| {
        let mut command = support::willow();
        // A tree of its own, as a user's app has.
        command.env_remove("CARGO_TARGET_DIR").current_dir(folder.path(place)).args(arguments);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(here(&["app", "new", "ant", "--lang", "rust"], ".").contains("ant"));
    let module = here(&["app", "build"], "ant");
    let module = module.lines().last().unwrap();
    assert!(module.ends_with("ant.wasm"), "{module}");
    let device = Served::start(&["--ram", "--size", "16M", "--kv-size", "16M"]);
    assert!(device.ok(&["app", "install", module]).contains("installed ant"));
    let arguments = folder.file("arguments", &[1, 0, 0, 0, 0]);
    assert_eq!(device.ok(&["rpc", "ant", "count", "--data", &arguments]), format!("result {}\n", 16 << 20));
    let whole = device.run(&["rpc", "ant", "count", "--data", &arguments, "--reply", "8"]).stdout;
    assert_eq!(whole, (16u64 << 20).to_le_bytes());
    assert_eq!(device.ok(&["app", "remove", "ant"]), "");
    assert!(device.fails(&["rpc", "ant", "count"]).contains("not installed"));
    device.end();
    assert!(fails(&["app", "new", "Ant!", "--lang", "rust"]).contains("Ant!"));
    assert!(fails(&["app", "new", "ant", "--lang", "cobol"]).contains("--lang c"));
}

#[test]
fn statistics_name_the_process_and_count() {
    let device = Served::start(&["--ram", "--size", "64M", "--kv-size", "64M", "--spus", "3"]);
    assert!(device.run_with(&["kv", "put", "a", "-"], b"value").status.success());
    let document = json(&device.ok(&["stat", "--json"]));
    assert_eq!(document["transport"]["pid"], device.child.id());
    assert_eq!(document["spus"].as_array().unwrap().len(), 3);
    let namespaces = document["transport"]["namespaces"].as_array().unwrap();
    assert_eq!(namespaces[1]["write_commands"], 1);
    assert_eq!(namespaces[1]["write_bytes"], 5);
    let text = device.ok(&["stat"]);
    assert!(text.contains("base-io") && text.contains("controllers"), "{text}");
    device.end();
}

#[test]
fn a_device_that_is_not_there_is_one_clear_line() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    for command in [&["app", "list"][..], &["ns", "list"], &["kv", "list"], &["stat"], &["bench", "io"]] {
        let error = fails(&[command, &["--target", &nobody]].concat());
        assert!(error.contains("no device answers") && error.contains("willow serve"), "{error}");
    }
    assert!(fails(&["stat", "--target", "/nowhere/willow.sock"]).contains("no device answers at /nowhere"));
}

#[test]
fn benchmarks_print_one_object() {
    let device = Served::start(&["--ram", "--size", "64M", "--kv-size", "64M"]);
    let short = ["--seconds", "0.2", "--warm-up", "0", "--depths", "1,4", "--json"];
    let io = json(&device.ok(&[&["bench", "io", "--range", "1M", "--bs", "16K"][..], &short].concat()));
    let rows = io["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 4);
    assert!(rows.iter().all(|row| row["iops"].as_f64().unwrap() > 0.0 && row["transport"] == "tcp"));
    assert!(rows.iter().all(|row| row["target_cpu_seconds_per_million"].is_number()));
    let kv = json(&device.ok(&[&["bench", "kv", "--pairs", "100", "--mix", "50"][..], &short].concat()));
    assert_eq!(kv["rows"].as_array().unwrap().len(), 3, "the loading, then one mix at two depths");
    let listed = json(&device.ok(&["ns", "list", "--json"]));
    assert_eq!(listed["namespaces"].as_array().unwrap().len(), 2, "the namespaces of benchmarks are gone");
    // In a namespace that is there pairs stay, for a later run.
    let there = &[&["bench", "kv", "--nsid", "2", "--pairs", "100", "--mix", "100"][..], &short].concat();
    assert_eq!(json(&device.ok(there))["rows"].as_array().unwrap().len(), 3);
    assert_eq!(device.ok(&["kv", "list"]).lines().count(), 100);
    let later = json(&device.ok(&[there, &["--loaded"][..]].concat()));
    assert_eq!(later["rows"].as_array().unwrap().len(), 2, "nothing is loaded");
    assert!(device.fails(&["bench", "kv", "--nsid", "1"]).contains("no key-value namespace"));
    assert!(device.fails(&["bench", "kv", "--nsid", "2", "--loaded", "--pairs", "100000"]).contains("no such key"));
    assert!(device.fails(&["bench", "io", "--bs", "1000"]).contains("--bs"));
    assert!(device.fails(&["bench", "io", "--depths", "0"]).contains("--depths"));
    device.end();

    let folder = Folder::new();
    let history = folder.path("history.jsonl");
    let arguments = ["bench", "io", "--in-process", "--range", "1M", "--record", &history];
    let output = support::willow().args(arguments).args(short).output().unwrap();
    assert!(output.status.success());
    assert_eq!(json(&String::from_utf8(output.stdout).unwrap())["rows"][0]["transport"], "in-process");
    let line = std::fs::read_to_string(&history).unwrap();
    assert_eq!(line.lines().count(), 1);
    assert_eq!(json(&line)["report"]["bench"], "io");
}

#[test]
fn weights_last_over_restarts() {
    let folder = Folder::new();
    let media = folder.path("media");
    let start = |more: &[&str]| {
        let flags = ["--media", &media, "--size", "16M", "--kv-size", "0", "--spus", "2"];
        Served::start(&[&flags[..], more].concat())
    };
    let listed = |device: &Served| json(&device.ok(&["weight", "list", "--json"]))["weights"].clone();
    let device = start(&[]);
    assert_eq!(listed(&device), serde_json::json!([]));
    for (user, weight) in [("1000", "5"), ("1001", "7"), ("1002", "9")] {
        assert_eq!(device.ok(&["weight", "set", user, weight]), "");
    }
    assert_eq!(device.ok(&["weight", "remove", "1001"]), "");
    assert!(device.fails(&["weight", "set", "1000", "0"]).contains("willow weight remove"));
    assert!(device.fails(&["weight", "set", "1000", "1001"]).contains("to 1000"));
    device.end();
    // What it is started with stands before that, for as long as it runs.
    let device = start(&["--weight", "1000=2"]);
    let both = |one: u32| serde_json::json!([{"user": 1000, "weight": one}, {"user": 1002, "weight": 9}]);
    assert_eq!(listed(&device), both(2));
    device.end();
    let device = start(&[]);
    assert_eq!(listed(&device), both(5));
    assert!(device.ok(&["weight", "list"]).contains("1002"));
    device.end();
}

#[test]
fn a_device_without_namespaces_is_managed_by_the_network_too() {
    let device = Served::start(&["--ram", "--size", "0", "--kv-size", "0", "--capacity", "512M"]);
    let listed = |device: &Served| {
        let listed: serde_json::Value = serde_json::from_str(&device.ok(&["ns", "list", "--json"])).unwrap();
        listed["namespaces"].as_array().unwrap().len()
    };
    assert_eq!(listed(&device), 0);
    for _ in 0..2 {
        assert_eq!(device.ok(&["ns", "create", "--csi", "nvm", "--size", "16M"]), "nsid 1\n");
        device.ok(&["ns", "delete", "1"]);
        assert_eq!(listed(&device), 0);
    }
    device.ok(&["weight", "set", "1000", "3"]);
    assert!(device.ok(&["app", "list"]).contains("base-io") && device.ok(&["stat"]).contains("base-io"));
    // One of pairs alone, and one that other hosts have.
    assert_eq!(device.ok(&["ns", "create", "--csi", "kv", "--size", "16M"]), "nsid 1\n");
    assert!(device.run_with(&["kv", "put", "alone", "-"], b"value").status.success());
    assert_eq!(device.ok(&["kv", "get", "alone"]), "value");
    let host = "nqn.2025-01.org.example:other";
    assert_eq!(device.ok(&["ns", "create", "--csi", "nvm", "--size", "16M", "--host", host]), "nsid 2\n");
    device.ok(&["ns", "delete", "1"]);
    assert_eq!(listed(&device), 1);
    device.end();
}

#[test]
fn power_cuts_are_repeated_by_their_seed_and_find_what_is_planted() {
    let torture = |arguments: &[&str]| {
        let output = support::willow().args(["torture", "power-cut", "--json"]).args(arguments).output().unwrap();
        let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        (output.status.success(), told)
    };
    let (held, told) = torture(&["--count", "45", "--jobs", "2"]);
    assert!(held && told["cases"] == 45 && told["cuts"].as_u64() >= Some(200), "{told}");
    for bug in ["header-unchecked", "root-before-data", "erase-before-durable", "wrong-sequence"] {
        let (held, told) = torture(&["--count", "900", "--plant", bug]);
        let finding = &told["findings"][0];
        assert!(!held && finding["found"].as_str().is_some_and(|text| !text.is_empty()), "{bug}: {told}");
        let seed = finding["seed"].to_string();
        let (held, again) = torture(&["--seed", &seed, "--plant", bug]);
        assert!(!held && again["findings"][0] == *finding, "{bug}: {finding}, and again: {again}");
        let (held, without) = torture(&["--seed", &seed]);
        assert!(held && without["cases"] == 1, "{without}");
    }
    assert!(fails(&["torture", "power-cut", "--plant", "nothing"]).contains("header-unchecked"));
    assert!(
        fails(&["torture", "power-cut", "--seed", "18446744073709551615", "--count", "2"]).contains("smaller count")
    );
}

#[test]
fn torture_goes_on_where_there_are_no_more_threads() {
    use std::os::unix::process::CommandExt;
    if !willow_skip::is_root() {
        return willow_skip::skip(
            "torture_goes_on_where_there_are_no_more_threads",
            "only root becomes a user without processes",
        );
    }
    let program = support::Public::new();
    // The limit counts all threads of a user: of one whom nobody else is. The log has one, the command the other.
    let nobody = 60_000_000 + std::process::id();
    let mut command = std::process::Command::new("prlimit");
    command.arg("--nproc=2").arg(program.path("willow")).current_dir("/").uid(nobody).gid(nobody);
    command.args(["torture", "power-cut", "--json", "--count", "20", "--jobs", "64"]);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{:?}: {said}", output.status);
    assert_eq!(json(&String::from_utf8_lossy(&output.stdout))["cases"], 20);
    assert!(said.contains("willow: 1 of 64 jobs"), "{said}");
}
