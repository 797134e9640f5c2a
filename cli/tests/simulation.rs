//! `willow simulate` and `willow reproduce` as users and scripts see them.

use std::path::PathBuf;
use std::process::{Command, Output};

fn willow(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_willow")).args(arguments).output().expect("the command runs")
}

fn json(arguments: &[&str]) -> serde_json::Value {
    let output = willow(arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one JSON value")
}

fn fails(arguments: &[&str]) -> String {
    let output = willow(arguments);
    assert_eq!(output.status.code(), Some(1), "{arguments:?}");
    let text = String::from_utf8(output.stderr).expect("text");
    assert!(text.lines().count() == 1 && text.starts_with("willow: "), "{text}");
    text
}

fn scratch(name: &str, contents: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("willow-cli-{}-{name}", std::process::id()));
    std::fs::write(&path, contents).expect("a scratch file");
    path
}

const SMALL: [&str; 8] = ["--native", "--operations", "100", "--depths", "2", "--range", "1M", "--mix"];

#[test]
fn a_workload_is_simulated_and_traced() {
    let trace = scratch("trace.json", "");
    let path = trace.to_str().expect("a path");
    let arguments = [&["simulate", "--json", "--trace", path][..], &SMALL, &["50"]].concat();
    let report = json(&arguments);
    assert_eq!(report, json(&arguments), "the same again");
    let rows = report["simulations"][0]["workloads"].as_array().expect("workloads");
    assert_eq!(rows.iter().map(|row| row["operations"].as_u64().expect("a count")).sum::<u64>(), 100);
    let spans: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&trace).expect("the trace")).expect("a JSON object");
    let events = spans["traceEvents"].as_array().expect("events");
    let lanes: Vec<&str> = (events.iter())
        .filter(|event| event["name"] == "thread_name")
        .filter_map(|event| event["args"]["name"].as_str())
        .collect();
    assert!(
        lanes.contains(&"ring") && lanes.contains(&"SPU 3 processor") && lanes.iter().any(|name| name.contains("link"))
    );
    assert!(events.iter().filter(|event| event["ph"] == "X").count() > 500);
    std::fs::remove_file(trace).expect("it was there");
    let text = willow(&[&["simulate"][..], &SMALL, &["100"]].concat());
    assert!(String::from_utf8_lossy(&text.stdout).contains("SPU 0 processor"));
}

#[test]
fn traces_are_replayed_and_broken_ones_told() {
    let good = scratch("good.csv", "1,h,0,Write,0,4096,1\n101,h,0,Read,0,4096,1\n");
    let bad = scratch("bad.csv", "1,h,0,Write,0,4096,1\n101,h,0,Read,1048576,4096,1\n");
    let (good_path, bad_path) = (good.to_str().expect("a path"), bad.to_str().expect("a path"));
    let replay = |path, more: &[&'static str]| {
        [&["simulate", "--native", "--range", "1M", "--format", "msr", "--replay", path][..], more].concat()
    };
    let report = json(&replay(good_path, &["--timed", "--json"]));
    assert!(report["simulations"][0]["elapsed_ns"].as_u64().expect("a time") > 10_000);
    let error = fails(&replay(bad_path, &[]));
    assert!(error.contains("line 2, offset") && error.contains("the 1048576 bytes of the namespace"), "{error}");
    assert!(willow(&replay(bad_path, &["--wrap"])).status.success());
    for file in [good, bad] {
        std::fs::remove_file(file).expect("it was there");
    }
}

#[test]
fn flash_is_simulated_with_its_dies_and_its_amplification() {
    let trace = scratch("flash-trace.json", "");
    let path = trace.to_str().expect("a path");
    let arguments = [
        "simulate",
        "--json",
        "--preset",
        "slc",
        "--ftl",
        "page",
        "--range",
        "16M",
        "--mix",
        "70",
        "--depths",
        "16",
        "--operations",
        "2000",
        "--trace",
        path,
    ];
    let report = json(&arguments);
    let first = std::fs::read(&trace).expect("the trace");
    assert_eq!(report, json(&arguments), "the same again");
    assert!(std::fs::read(&trace).expect("the trace") == first, "byte for byte");
    let simulation = &report["simulations"][0];
    let flash = &simulation["flash"];
    // Every part of 4 KiB is programmed with the rest of its mapping unit of 16 KiB.
    let amplification = flash["write_amplification"].as_f64().expect("a number");
    assert!(amplification >= 4.0 && flash["by_merging"].as_f64() == Some(3.0), "{flash}");
    let rows = simulation["workloads"].as_array().expect("workloads");
    let median = |kind: &str| {
        let row = rows.iter().find(|row| row["kind"] == kind).expect("a row of it");
        row["latency"]["p50_ns"].as_u64().expect("a time")
    };
    // What the flash alone takes: 25 us and 4 KiB at 40.96 MB/s; for a write as much for the rest, 16 KiB on the bus, and 200 us.
    assert!(median("read") > 125_000 && median("write") > 600_000, "{rows:?}");
    let names: Vec<&str> =
        simulation["resources"].as_array().expect("resources").iter().filter_map(|row| row["name"].as_str()).collect();
    assert!(names.contains(&"SPU 7 flash die 1") && names.contains(&"SPU 0 flash channel 0"), "{names:?}");
    let spans: serde_json::Value = serde_json::from_slice(&first).expect("a JSON object");
    let events = spans["traceEvents"].as_array().expect("events");
    let lane = |name: &str| events.iter().any(|event| event["name"] == "thread_name" && event["args"]["name"] == name);
    assert!(lane("SPU 3 flash die 0") && lane("SPU 3 flash channel 0") && lane("SPU 3 processor"));
    std::fs::remove_file(trace).expect("it was there");
    let text = willow(&[
        "simulate",
        "--preset",
        "tlc",
        "--range",
        "16M",
        "--mix",
        "0",
        "--depths",
        "4",
        "--operations",
        "200",
    ]);
    let text = String::from_utf8_lossy(&text.stdout);
    for part in ["write amplification: 16.", "flash dies, all 16", "most used", "erases of a block"] {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
}

/// `--cut-power-at` ends the measurement in the middle of its writes, and tells how long the drive then takes to be ready.
#[test]
fn the_power_is_cut_in_simulated_time() {
    let of = |more: &[&'static str]| {
        let arguments =
            ["simulate", "--preset", "slc", "--range", "8M", "--mix", "0", "--depths", "64", "--operations", "1000000"];
        [&arguments[..], &["--cut-power-at", "0.0123"], more].concat()
    };
    let report = json(&of(&["--json"]));
    assert_eq!(report, json(&of(&["--json"])), "the same again");
    let cut = &report["simulations"][0]["power_cut"];
    let number = |name: &str| cut[name].as_u64().unwrap_or_else(|| panic!("{name} is a number: {cut}"));
    assert_eq!(number("at_ns"), 12_300_000);
    assert!(number("programming_pages") > 0 && number("ready_ns") > 100_000, "{cut}");
    let written = &report["simulations"][0]["workloads"][0];
    assert!(written["operations"].as_u64().is_some_and(|count| (1..1_000_000).contains(&count)), "{written}");
    let text = willow(&of(&[]));
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(text.contains("power cut after 0.012300 s") && text.contains("after the power was back"), "{text}");
    let refused = fails(&["simulate", "--preset", "bee3", "--operations", "10", "--cut-power-at", "0.001"]);
    assert!(refused.contains("choose a preset with flash"), "{refused}");
    assert!(fails(&["simulate", "--preset", "slc", "--cut-power-at", "2e6"]).contains("--cut-power-at"), "too late");
}

#[test]
fn mistakes_are_told() {
    for (arguments, expected) in [
        (&["simulate", "--preset", "slow"][..], "use one of fast, bee3"),
        (&["simulate", "--bs", "100"], "multiple of 512"),
        (&["simulate", "--preset", "bee3", "--ftl", "page"], "has no flash"),
        (&["simulate", "--preset", "slc", "--ftl", "leaf"], "there is no FTL leaf"),
        (&["simulate", "--path", "moon"], "file, raw, user, rpc or bare"),
        (&["simulate", "--threads", "0"], "give at least 1"),
        (&["simulate", "--replay", "x"], "--format"),
        (&["simulate", "--replay", "/nowhere/x", "--format", "fio"], "cannot read trace /nowhere/x"),
        (&["simulate", "--trace", "x.json"], "one simulation"),
        (&["reproduce", "nothing"], "there is no experiment \"nothing\""),
        (&["calibrate", "--preset", "fast"], "has no table [calibrate]"),
        (&["bench", "simulation", "--turns", "0"], "--turns is 0"),
    ] {
        let error = fails(arguments);
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn experiments_are_listed_and_reproduced() {
    let list = json(&["reproduce", "list", "--json"]);
    assert!(list.as_array().expect("a list").len() >= 6);
    let rows = json(&["reproduce", "lightnvm-table1", "--json"]);
    for row in rows.as_array().expect("an array") {
        for key in ["id", "metric", "published", "modelled", "error", "use"] {
            assert!(!row[key].is_null(), "{row} has no {key}");
        }
    }
}
