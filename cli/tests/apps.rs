//! Looking into apps by the real command: what they print, resetting one, and the core of one that trapped.

mod support;

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use support::{Folder, Served, willow};

/// Handler 1 prints `hi`; 2 counts in memory and answers with the count; 3 is never answered; 4 traps two calls below, with a word in memory and one in a
/// global; 5 computes in `spinner`, called by `turn`; 6 sleeps for 300 ms.
const APP: &str = r#"(module
    (import "willow" "respond" (func $respond (param i32 i32 i32)))
    (import "willow" "print" (func $print (param i32 i32)))
    (import "willow" "sleep" (func $sleep (param i64 i32) (result i32)))
    (memory (export "memory") 2)
    (global $kept (mut i32) (i32.const 1))
    (data (i32.const 16) "hi\n")
    (func $inner (param i32) (i32.store (i32.const 100000) (i32.const 0x600dc0de)) (drop (i32.div_u (i32.const 1) (local.get 0))))
    (func $middle (param i32) (global.set $kept (i32.const 77)) (call $inner (local.get 0)))
    (func $spinner (param i32) (result i32) (local i32)
        (loop $again
            (local.set 1 (i32.xor (i32.mul (local.get 1) (i32.const 31)) (local.get 0)))
            (br_if $again (local.tee 0 (i32.sub (local.get 0) (i32.const 1)))))
        (local.get 1))
    (func $turn (i32.store (i32.const 8) (call $spinner (i32.const 2000000))))
    (func $start (export "start") (param i32 i32) (result i32)
        (if (i32.eq (local.get 1) (i32.const 1)) (then (call $print (i32.const 16) (i32.const 3))))
        (if (i32.eq (local.get 1) (i32.const 2)) (then (i32.store (i32.const 0) (i32.add (i32.load (i32.const 0)) (i32.const 1)))))
        (if (i32.eq (local.get 1) (i32.const 3)) (then (return (i32.const 0))))
        (if (i32.eq (local.get 1) (i32.const 4)) (then (call $middle (i32.const 0))))
        (if (i32.eq (local.get 1) (i32.const 5)) (then (call $turn)))
        (if (i32.eq (local.get 1) (i32.const 6)) (then (drop (call $sleep (i64.const 300000000) (local.get 0))) (return (i32.const 0))))
        (call $respond (local.get 0) (i32.const 0) (i32.load (i32.const 0))) (i32.const 0))
    (func (export "complete") (param i32 i64) (call $respond (local.get 0) (i32.const 0) (i32.const 9)))
    (@custom "willow.app" "abi=2\nname=ant\nversion=1\nhandler=1:say\nhandler=2:count\nhandler=3:hang\nhandler=4:trap\nhandler=5:spin\nhandler=6:nap\n"))"#;

fn device_with_app(folder: &Folder) -> Served {
    let device = Served::start(&["--ram", "--size", "16M", "--kv-size", "16M", "--spus", "2"]);
    let module = folder.file("ant.wasm", &wat::parse_str(APP).unwrap());
    device.ok(&["app", "install", &module]);
    device
}

#[test]
fn a_log_is_followed_while_the_app_prints() {
    let folder = Folder::new();
    let device = device_with_app(&folder);
    device.ok(&["rpc", "ant", "say", "--spu", "1"]);
    assert_eq!(device.ok(&["app", "log", "ant"]), "1: hi\n");
    let mut follower =
        willow().args(["app", "log", "-f", "ant", "--target", &device.address]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(follower.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "1: hi");
    for _ in 0..3 {
        device.ok(&["rpc", "ant", "say", "--spu", "0"]);
        assert_eq!(lines.next().unwrap().unwrap(), "0: hi");
    }
    // With its app the follower ends, and says why.
    device.ok(&["app", "remove", "ant"]);
    assert_eq!(follower.wait().unwrap().code(), Some(1));
    assert!(lines.next().is_none());
    assert!(device.fails(&["app", "log", "-f", "ant"]).contains("ant"));
    device.end();
}

#[test]
fn a_reset_starts_one_app_anew_and_keeps_data() {
    let folder = Folder::new();
    let device = device_with_app(&folder);
    for count in 1..=2 {
        assert_eq!(device.ok(&["rpc", "ant", "count", "--spu", "0"]), format!("result {count}\n"));
    }
    let hanging = willow()
        .args(["rpc", "ant", "hang", "--spu", "0", "--target", &device.address])
        .stderr(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // It has arrived when the device says that it has counted one more request.
    let requests = || {
        let document: serde_json::Value = serde_json::from_str(&device.ok(&["stat", "--json"])).unwrap();
        let apps = document["apps"].as_array().unwrap().clone();
        apps.iter().find(|app| app["name"] == "ant").unwrap()["requests"].as_u64().unwrap()
    };
    while requests() < 3 {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert_eq!(device.ok(&["app", "reset", "ant"]), "");
    let ended = hanging.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&ended.stderr).contains("ended"), "{ended:?}");
    assert_eq!(device.ok(&["rpc", "ant", "count", "--spu", "0"]), "result 1\n", "its memory is fresh");
    // One with data in NV memory, with a log of its own, and one that has ended.
    assert!(device.run_with(&["kv", "put", "kept", "-"], b"value").status.success());
    for app in ["key-value", "atomic-write", "base-io"] {
        assert_eq!(device.ok(&["app", "reset", app]), "");
    }
    assert_eq!(device.ok(&["kv", "get", "kept"]), "value");
    assert!(device.fails(&["rpc", "ant", "trap"]).contains("ended"));
    assert!(device.ok(&["app", "list"]).contains("ended: it trapped"));
    assert_eq!(device.ok(&["app", "reset", "ant"]), "");
    assert_eq!(device.ok(&["rpc", "ant", "count", "--spu", "0"]), "result 1\n");
    assert!(device.fails(&["app", "reset", "nobody"]).contains("nobody"));
    device.end();
}

/// What the file says of the stack: (instance, function, offset) of each frame.
fn stack_of(file: &[u8]) -> Vec<(u32, u32, u32)> {
    let mut frames = Vec::new();
    for payload in wasmparser::Parser::new(0).parse_all(file) {
        let wasmparser::Payload::CustomSection(section) = payload.unwrap() else { continue };
        if let wasmparser::KnownCustom::CoreDumpStack(stack) = section.as_known() {
            frames.extend(stack.frames.iter().map(|frame| (frame.instanceidx, frame.funcidx, frame.codeoffset)));
        }
    }
    frames
}

/// The bytes of the file's data segments from an address on.
fn memory_of(file: &[u8], address: usize, bytes: usize) -> Vec<u8> {
    let mut memory = vec![0; 2 * 65536];
    for payload in wasmparser::Parser::new(0).parse_all(file) {
        let wasmparser::Payload::DataSection(section) = payload.unwrap() else { continue };
        for data in section {
            let data = data.unwrap();
            let wasmparser::DataKind::Active { offset_expr, .. } = data.kind else { panic!("{data:?}") };
            let wasmparser::Operator::I32Const { value } = offset_expr.get_operators_reader().read().unwrap() else {
                panic!("{offset_expr:?}")
            };
            memory[value as usize..][..data.data.len()].copy_from_slice(data.data);
        }
    }
    memory[address..address + bytes].to_vec()
}

#[test]
fn a_core_of_an_app_that_trapped_is_a_file_that_tools_read() {
    let folder = Folder::new();
    let device = device_with_app(&folder);
    let out = folder.path("core");
    assert!(device.fails(&["app", "core", "ant", "--out", &out]).contains("has not trapped"));
    assert!(device.fails(&["rpc", "ant", "trap", "--spu", "1"]).contains("ended"));
    let text = device.ok(&["app", "core", "ant", "--out", &out]);
    assert!(text.starts_with("app ant 1 ended on SPU 1: it trapped: "), "{text}");
    assert!(
        text.contains("divide by zero") && text.contains(", in inner, called by middle, called by start"),
        "{text}"
    );
    assert!(text.contains("#0 inner +") && text.contains("#2 start +"), "{text}");
    assert!(device.ok(&["app", "list"]).contains("in inner, called by middle"));
    let file = std::fs::read(&out).unwrap();
    wasmparser::validate(&file).unwrap();
    let stack = stack_of(&file);
    // Imports are functions 0 to 2.
    assert_eq!(
        stack.iter().map(|(instance, function, _)| (*instance, *function)).collect::<Vec<_>>(),
        [(0, 3), (0, 4), (0, 7)]
    );
    // The frame's offset leads to the instruction in the app's own module that trapped.
    let json: serde_json::Value = serde_json::from_str(&device.ok(&["app", "core", "ant", "--json"])).unwrap();
    let at = json["frames"][0]["module_offset"].as_u64().unwrap() as usize;
    let module = wat::parse_str(APP).unwrap();
    assert_eq!(module[at], 0x6e, "i32.div_u");
    assert_eq!(u64::from(stack[0].2), json["frames"][0]["function_offset"].as_u64().unwrap());
    assert_eq!(memory_of(&file, 100_000, 4), 0x600d_c0deu32.to_le_bytes());
    assert_eq!(memory_of(&file, 16, 3), b"hi\n");
    assert_eq!(json["globals"][0]["bits"], "4d");
    assert!(device.fails(&["app", "core", "nobody"]).contains("nobody"));
    assert!(device.fails(&["app", "core", "ant", "--out", "/does/not/exist"]).contains("/does/not/exist"));
    device.end();
}

/// What a program says of a file; `None` where there is no such program.
fn said_of(program: &str, arguments: &[&str]) -> Option<String> {
    let output = std::process::Command::new(program).args(arguments).output().ok()?;
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn binaryen_and_llvm_read_a_core() {
    let folder = Folder::new();
    let device = device_with_app(&folder);
    assert!(device.fails(&["rpc", "ant", "trap", "--spu", "1"]).contains("ended"));
    let out = folder.path("core");
    device.ok(&["app", "core", "ant", "--out", &out]);
    let sections = ["core", "coremodules", "coreinstances", "corestack"];
    // As text: its global, its memory, and the sections that say what it is a core of.
    match said_of("wasm-opt", &["-S", &out, "-o", "-"]) {
        None => willow_skip::skip("binaryen_and_llvm_read_a_core", "wasm-opt is not there (scripts/bootstrap)"),
        Some(text) => {
            assert!(text.contains("(mut i32) (i32.const 77)") && text.contains("(memory $0 2)"), "{text}");
            assert!(text.contains(r#"(data (i32.const 16) "hi\n")"#), "{text}");
            assert!(text.contains(r#"(data (i32.const 100000) "\de\c0\0d`")"#), "{text}");
            assert!(sections.iter().all(|name| text.contains(&format!("custom section \"{name}\""))), "{text}");
        }
    }
    // LLVM's reader comes with few installations of clang: Binaryen's is always there for the tests.
    if let Some(text) = said_of("llvm-readobj", &["--sections", &out]) {
        assert!(sections.iter().all(|name| text.contains(&format!("Name: {name}\n"))), "{text}");
    }
    device.end();
}

/// Calls handlers of the app until a profile that runs beside has ended; the profile's output, and how often each was called.
fn profile_while(device: &Served, arguments: &[&str], handlers: &[&str]) -> (std::process::Output, Vec<u64>) {
    let mut profiling = willow()
        .args(["profile", "ant", "--target", &device.address])
        .args(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut calls = vec![0; handlers.len()];
    while profiling.try_wait().unwrap().is_none() {
        for (handler, calls) in handlers.iter().zip(&mut calls) {
            device.ok(&["rpc", "ant", handler, "--spu", "1"]);
            *calls += 1;
        }
    }
    (profiling.wait_with_output().unwrap(), calls)
}

#[test]
fn a_profile_says_which_functions_ran_on_which_spu_and_what_was_waited_for() {
    let folder = Folder::new();
    let device = device_with_app(&folder);
    let (svg, json) = (folder.path("profile.svg"), folder.path("profile.json"));
    let arguments = ["--seconds", "2", "--out", &svg, "--out", &json, "--json"];
    // On a machine that is slow just then, neither handler may have come to its end in that time.
    let (profile, calls) = (0..20)
        .find_map(|_| {
            for file in [&svg, &json] {
                let _ = std::fs::remove_file(file);
            }
            let (output, calls) = profile_while(&device, &arguments, &["spin", "nap"]);
            assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
            let profile: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
            let has_run = |handler: &str| {
                let mut runs = profile["runs"].as_array().unwrap().iter();
                runs.any(|run| run["handler"] == handler && run["runs"].as_u64() > Some(0))
            };
            (has_run("spin") && has_run("nap")).then_some((profile, calls))
        })
        .expect("both come to their ends");
    assert_eq!(profile["sampled"], true);
    let functions = profile["functions"].as_array().unwrap();
    let of = |name: &str, field: &str| {
        let function = functions.iter().find(|function| function["function"] == name);
        function.unwrap_or_else(|| panic!("no {name} in {profile}"))[field].as_u64().unwrap()
    };
    // All that it computes is in one function, below two others that do nothing themselves.
    let busiest = functions.iter().max_by_key(|function| function["self_ns"].as_u64()).unwrap();
    assert_eq!(busiest["function"], "spinner");
    assert!(of("start", "total_ns") >= of("turn", "total_ns") && of("turn", "total_ns") >= of("spinner", "self_ns"));
    // Runs and their instructions are exact.
    let runs = profile["runs"].as_array().unwrap();
    let of_spin = runs.iter().find(|run| run["handler"] == "spin").unwrap();
    let count = of_spin["runs"].as_u64().unwrap();
    assert!((1..=calls[0]).contains(&count) && of_spin["spu"] == 1, "{calls:?}: {profile}");
    let instructions = of_spin["instructions"].as_u64().unwrap();
    assert_eq!(instructions % count, 0, "all runs are alike");
    assert!((10_000_000..50_000_000).contains(&(instructions / count)), "{}", instructions / count);
    let waits = profile["waits"].as_array().unwrap();
    assert!(waits.iter().any(|wait| wait["reason"] == "sleep" && wait["spu"] == 1 && wait["ns"].as_u64() > Some(0)));
    let svg = std::fs::read_to_string(svg).unwrap();
    assert!(svg.contains("<title>spinner (") && svg.contains("<title>sleep (") && svg.contains("SPU 1"), "{svg}");
    let scope: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    let names: Vec<&str> =
        scope["profiles"].as_array().unwrap().iter().map(|profile| profile["name"].as_str().unwrap()).collect();
    assert!(names.contains(&"SPU 1: running") && names.contains(&"SPU 1: waiting"), "{names:?}");
    assert!(!names.contains(&"SPU 0: running"), "{names:?}");
    device.end();
}

#[test]
fn one_profile_is_under_way_at_most_and_ends_with_its_app_and_its_client() {
    let folder = Folder::new();
    let device = device_with_app(&folder);
    let is_refused = || {
        let output = device.run(&["profile", "key-value", "--seconds", "0.01"]);
        (!output.status.success()).then(|| String::from_utf8(output.stderr).unwrap())
    };
    let begin = || {
        let mut command = willow();
        command.args(["profile", "ant", "--seconds", "60", "--target", &device.address]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // Until the device says that it is under way.
        loop {
            std::thread::sleep(std::time::Duration::from_millis(100));
            if child.try_wait().unwrap().is_some() {
                // The question came before it.
                child = command.spawn().unwrap();
            } else if let Some(refusal) = is_refused() {
                return (child, refusal);
            }
        }
    };
    // A killed client leaves nothing: the next profile begins.
    let (mut killed, refusal) = begin();
    assert!(refusal.contains("one at a time"), "{refusal}");
    killed.kill().unwrap();
    killed.wait().unwrap();
    let mut tries = 0;
    while is_refused().is_some() {
        tries += 1;
        assert!(tries < 2400, "the profile of a killed client goes on");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    // With its app's version it ends, and says so; what it had is printed.
    let (first, _) = begin();
    device.ok(&["app", "reset", "ant"]);
    let ended = first.wait_with_output().unwrap();
    assert!(String::from_utf8_lossy(&ended.stderr).contains("has ended"), "{ended:?}");
    assert!(ended.status.success() && String::from_utf8_lossy(&ended.stdout).contains("app ant"), "{ended:?}");
    assert_eq!(device.ok(&["rpc", "ant", "count"]), "result 1\n");
    for (arguments, wanted) in [
        (vec!["profile", "nobody"], "nobody"),
        (vec!["profile", "ant", "--seconds", "0"], "--seconds"),
        (vec!["profile", "ant", "--seconds", "nan"], "--seconds"),
        (vec!["profile", "ant", "--out", "profile.txt"], "profile.txt"),
    ] {
        assert!(device.fails(&arguments).contains(wanted), "{arguments:?}");
    }
    device.end();
}
