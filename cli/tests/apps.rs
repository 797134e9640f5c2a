//! Looking into apps by the real command: what they print, resetting one, and the core of one that trapped.

mod support;

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use support::{Folder, Served, willow};

/// Handler 1 prints `hi`; 2 counts in memory and answers with the count; 3 is never answered; 4 traps two calls below, with a word in memory and one in a
/// global.
const APP: &str = r#"(module
    (import "willow" "respond" (func $respond (param i32 i32 i32)))
    (import "willow" "print" (func $print (param i32 i32)))
    (memory (export "memory") 2)
    (global $kept (mut i32) (i32.const 1))
    (data (i32.const 16) "hi\n")
    (func $inner (param i32) (i32.store (i32.const 100000) (i32.const 0x600dc0de)) (drop (i32.div_u (i32.const 1) (local.get 0))))
    (func $middle (param i32) (global.set $kept (i32.const 77)) (call $inner (local.get 0)))
    (func $start (export "start") (param i32 i32) (result i32)
        (if (i32.eq (local.get 1) (i32.const 1)) (then (call $print (i32.const 16) (i32.const 3))))
        (if (i32.eq (local.get 1) (i32.const 2)) (then (i32.store (i32.const 0) (i32.add (i32.load (i32.const 0)) (i32.const 1)))))
        (if (i32.eq (local.get 1) (i32.const 3)) (then (return (i32.const 0))))
        (if (i32.eq (local.get 1) (i32.const 4)) (then (call $middle (i32.const 0))))
        (call $respond (local.get 0) (i32.const 0) (i32.load (i32.const 0))) (i32.const 0))
    (func (export "complete") (param i32 i64))
    (@custom "willow.app" "abi=2\nname=ant\nversion=1\nhandler=1:say\nhandler=2:count\nhandler=3:hang\nhandler=4:trap\n"))"#;

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
    // Imports are functions 0 and 1.
    assert_eq!(
        stack.iter().map(|(instance, function, _)| (*instance, *function)).collect::<Vec<_>>(),
        [(0, 2), (0, 3), (0, 4)]
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
