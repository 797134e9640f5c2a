//! Apps that misbehave: each ends itself at most, never another app or the device.

mod common;
use common::slow::Valve;
use common::*;
use willow_device::clock::{Agenda, DmaStep, Message, Timing, Transfer, Work};
use willow_device::{RpcOutcome, control};

/// Installs a good neighbour and the app, calls the app's handler 2 on SPU 1, and checks that the neighbour still answers.
fn misbehave(rest: &str) -> (RpcOutcome, u32, String) {
    misbehaving_module(&well_behaved("bad", rest))
}

fn misbehaving_module(module: &[u8]) -> (RpcOutcome, u32, String) {
    let mut rig = Rig::new(2);
    let good = rig.install(&well_behaved("good", "")).unwrap();
    let bad = rig.install(module).unwrap();
    let done = rig.call(bad, 2, 1, &[1, 2, 3, 4], &[5; 100], 0);
    let (outcome, result) = (done.outcome, done.result);
    let neighbour = rig.call(good, 1, 1, &[], &[], 0);
    assert_eq!((neighbour.outcome, neighbour.result), (RpcOutcome::Answered { status: 0 }, 42));
    if outcome == RpcOutcome::AppEnded {
        // It has ended on every SPU, and a new installation brings it back.
        assert_eq!(rig.call(bad, 1, 0, &[], &[], 0).outcome, RpcOutcome::AppEnded);
        let again = rig.install(&well_behaved("bad", "")).unwrap();
        assert_eq!(again, bad);
        assert_eq!(rig.call(bad, 1, 0, &[], &[], 0).result, 42);
    }
    (outcome, result, rig.log("bad"))
}

fn ends(rest: &str, reason: &str) {
    let (outcome, _, log) = misbehave(rest);
    assert_eq!(outcome, RpcOutcome::AppEnded, "{rest}");
    assert!(log.contains(reason), "{rest}: {log}");
}

#[test]
fn loops_overruns_and_traps_end_the_app_alone() {
    ends("(loop $l (br $l))", "instruction_budget");
    ends("(unreachable)", "unreachable");
    ends("(drop (i32.load (i32.const -4)))", "out of bounds");
    ends("(memory.fill (i32.const 65000) (i32.const 1) (i32.const 70000))", "out of bounds");
    ends("(drop (i32.div_u (i32.const 1) (i32.sub (local.get 1) (i32.const 2))))", "divide by zero");
    ends("(return (i32.const 77))", "returned 77");
}

#[test]
fn stack_overflow_ends_the_app_alone() {
    let bad = module(
        "bad",
        r#"(func $deep (param i64 i64) (result i64)
              (i64.add (call $deep (local.get 1) (local.get 0)) (call $deep (local.get 0) (i64.const 1))))
           (func $start (param i32 i32) (result i32)
              (if (i32.eq (local.get 1) (i32.const 2)) (then (drop (call $deep (i64.const 0) (i64.const 0)))))
              (call $respond (local.get 0) (i32.const 0) (i32.const 0)) (i32.const 0))"#,
    );
    let (outcome, _, log) = misbehaving_module(&bad);
    assert_eq!(outcome, RpcOutcome::AppEnded);
    assert!(log.contains("stack") || log.contains("instruction_budget"), "{log}");
}

#[test]
fn wild_pointers_to_every_import_end_the_app_alone() {
    for call in [
        "(call $request_info (local.get 0) (i32.const -8))",
        "(drop (call $receive_bytes (local.get 0) (i32.const 65534) (i32.const 4)))",
        "(drop (call $receive_bytes (local.get 0) (i32.const -1) (i32.const 104)))",
        "(drop (call $receive_bytes_at (local.get 0) (i32.const 0) (i32.const -1) (i32.const 104)))",
        "(drop (call $dma (local.get 0) (i32.const 2) (i64.const 0) (i32.const 0) (i64.const 65530) (i32.const 100) (i32.const 0)))",
        "(drop (call $dma (local.get 0) (i32.const 2) (i64.const 0) (i32.const 0) (i64.const -1) (i32.const 1) (i32.const 0)))",
        "(drop (call $dma (local.get 0) (i32.const 3) (i64.const 0) (i32.const 0) (i64.const 0x7fffffffffffffff) (i32.const 1) (i32.const 0)))",
        "(drop (call $dma (local.get 0) (i32.const 0) (i64.const 65536) (i32.const 0) (i64.const 0) (i32.const 1) (i32.const 0)))",
        "(drop (call $dma_strided (local.get 0) (i32.const 3) (i64.const 0) (i64.const 0) (i32.const 0) (i64.const 0) (i64.const 30000) (i32.const 8) (i32.const 9) (i32.const 0)))",
        "(drop (call $checksum (local.get 0) (i32.const 0) (i64.const 65530) (i32.const 100) (i32.const 0) (i32.const 0)))",
        "(drop (call $rpc_start (local.get 0) (i32.const 0) (i32.const -1) (i32.const 1) (i32.const 0) (i32.const 65000) (i32.const 4096)))",
        "(drop (call $rpc_append (call $rpc_start (local.get 0) (i32.const 0) (i32.const -1) (i32.const 1) (i32.const 8) (i32.const 0) (i32.const 0)) (i32.const 0) (i64.const 65530) (i32.const 8)))",
        "(drop (call $app_number (i32.const 65530) (i32.const 100)))",
        "(drop (call $namespace (i32.const 1) (i32.const -4)) ) (drop (i32.load (i32.const -4)))",
        "(call $print (i32.const 65530) (i32.const 100))",
    ] {
        ends(call, "");
    }
}

#[test]
fn absurd_arguments_are_errors_and_nothing_moves() {
    // Each leaves an error number in local 2, which becomes the answer's result.
    let answer = |call: &str| {
        let rest = format!(
            "(local.set 2 {call}) (call $respond (local.get 0) (i32.const 0) (local.get 2)) (return (i32.const 0))"
        );
        let (outcome, result, _) = misbehave(&rest);
        assert_eq!(outcome, RpcOutcome::Answered { status: 0 }, "{call}");
        result as i32
    };
    let dma = |ports: &str| answer(&format!("(call $dma {ports} (i32.const 0))"));
    // A stranger's token, ports that do not exist or cannot be destinations, ranges past the body and the reply.
    assert_eq!(dma("(i32.const 0x12340001) (i32.const 2) (i64.const 0) (i32.const 0) (i64.const 0) (i32.const 1)"), -2);
    assert_eq!(dma("(local.get 0) (i32.const 9) (i64.const 0) (i32.const 0) (i64.const 0) (i32.const 1)"), -2);
    assert_eq!(dma("(local.get 0) (i32.const 0) (i64.const 0) (i32.const 3) (i64.const 0) (i32.const 1)"), -2);
    assert_eq!(dma("(local.get 0) (i32.const 2) (i64.const 100) (i32.const 0) (i64.const 0) (i32.const 5)"), -3);
    assert_eq!(dma("(local.get 0) (i32.const 2) (i64.const -1) (i32.const 0) (i64.const 0) (i32.const 5)"), -3);
    assert_eq!(dma("(local.get 0) (i32.const 0) (i64.const 0) (i32.const 2) (i64.const 0) (i32.const 1)"), -3);
    assert_eq!(dma("(local.get 0) (i32.const 2) (i64.const 0) (i32.const 0) (i64.const 0) (i32.const -1)"), -2);
    // NV memory that is no region of the app's, nor a namespace's.
    for address in ["0", "4096", "0x3fffffff", "0x40000000", "-1", "-4096"] {
        assert_eq!(
            dma(&format!(
                "(local.get 0) (i32.const 2) (i64.const 0) (i32.const 1) (i64.const {address}) (i32.const 4)"
            )),
            -4
        );
        assert_eq!(
            dma(&format!(
                "(local.get 0) (i32.const 1) (i64.const {address}) (i32.const 0) (i64.const 0) (i32.const 4)"
            )),
            -4
        );
        assert_eq!(
            dma(&format!(
                "(local.get 0) (i32.const 3) (i64.const 0) (i32.const 1) (i64.const {address}) (i32.const 4)"
            )),
            -4
        );
    }
    let strided = "(call $dma_strided (local.get 0) (i32.const 3) (i64.const 0) (i64.const 0) (i32.const 0) (i64.const 0) (i64.const 0) (i32.const -1) (i32.const -1) (i32.const 0))";
    assert_eq!(answer(strided), -2);
    assert_eq!(answer("(call $compare (local.get 0) (i64.const 0) (i64.const 0) (i32.const 4) (i32.const 0))"), -4);
    assert_eq!(answer("(call $rpc_append (i32.const 5) (i32.const 0) (i64.const 0) (i32.const 1))"), -2);
    assert_eq!(answer("(call $rpc_finish (i32.const -5) (i32.const 1))"), -2);
    assert_eq!(
        answer(
            "(call $rpc_start (local.get 0) (i32.const 99) (i32.const -1) (i32.const 1) (i32.const 0) (i32.const 0) (i32.const 0))"
        ),
        -7
    );
    assert_eq!(
        answer(
            "(call $rpc_start (local.get 0) (i32.const 0) (i32.const -1) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0))"
        ),
        -2
    );
    assert_eq!(
        answer(
            "(call $rpc_start (local.get 0) (i32.const 0) (i32.const -1) (i32.const 1) (i32.const -1) (i32.const 0) (i32.const 0))"
        ),
        -2
    );
    assert_eq!(answer("(i32.wrap_i64 (call $region (i32.const 1) (i64.const 0) (i32.const 0)))"), -9);
    assert_eq!(answer("(i32.wrap_i64 (call $region_bytes (i32.const 1)))"), -9);
    assert_eq!(answer("(call $region_free (i32.const 1) (i32.const 0))"), -9);
    assert_eq!(answer("(call $namespace (i32.const 1) (i32.const 0))"), -9);
    assert_eq!(answer("(call $app_number (i32.const 0) (i32.const 4))"), -9);
}

#[test]
fn a_request_is_answered_once_whatever_the_app_does() {
    let (outcome, result, _) = misbehave(
        "(call $respond (local.get 0) (i32.const 5) (i32.const 6)) (call $respond (local.get 0) (i32.const 0) (i32.const 1))
         (call $respond (i32.const 0x10001) (i32.const 0) (i32.const 1)) (call $respond (i32.const -1) (i32.const 0) (i32.const 1))
         (return (i32.const 0))",
    );
    assert_eq!((outcome, result), (RpcOutcome::Answered { status: 5 }, 6));
}

#[test]
fn a_request_that_is_never_answered_ends_with_its_app() {
    let mut rig = Rig::new(2);
    let bad = rig.install(&well_behaved("bad", "(return (i32.const 0))")).unwrap();
    let rpc = willow_device::Rpc { app: bad, handler: 2, spu: 0, arguments: willow_device::Arguments::EMPTY };
    let request = rig.request(rpc, &[], 0);
    let tag = request.tag;
    rig.device.submit(rig.hre, request).unwrap();
    rig.settle();
    assert!(rig.device.completion().is_none());
    assert!(!rig.device.abort(rig.hre, tag), "it has begun: too late");
    let remove = willow_device::Rpc {
        app: 0,
        handler: control::REMOVE,
        spu: 0,
        arguments: willow_device::Arguments::new(b"bad").unwrap(),
    };
    let request = rig.request(remove, &[], 0);
    rig.device.submit(rig.hre, request).unwrap();
    rig.settle();
    let first = rig.device.completion().unwrap();
    assert_eq!((first.tag, first.outcome), (tag, RpcOutcome::AppEnded));
    assert_eq!(rig.device.completion().unwrap().outcome, RpcOutcome::Answered { status: 0 });
    assert_eq!(rig.call(bad, 1, 0, &[], &[], 0).outcome, RpcOutcome::NoApp);
}

#[test]
fn no_free_thread_means_waiting_and_abort_takes_it_back() {
    let mut rig = Rig::new(1);
    let lazy = rig.install(&well_behaved("lazy", "(return (i32.const 1))")).unwrap();
    let rpc = willow_device::Rpc { app: lazy, handler: 2, spu: 0, arguments: willow_device::Arguments::EMPTY };
    let request = rig.request(rpc, &[], 0);
    let tag = request.tag;
    rig.device.submit(rig.hre, request).unwrap();
    rig.settle();
    assert!(rig.device.completion().is_none());
    assert!(rig.device.abort(rig.hre, tag));
    assert_eq!(rig.device.completion().unwrap().outcome, RpcOutcome::Aborted);
    assert!(!rig.device.abort(rig.hre, tag));
}

#[test]
fn floods_of_rpcs_are_refused_not_suffered() {
    // Handler 2 sends RPCs to handler 3 of SPU 0 without end until one is refused; handler 3 never answers.
    let flood = r#"
        (func $start (param i32 i32) (result i32) (local i32)
            (if (i32.lt_u (local.get 1) (i32.const 2))
                (then (call $respond (local.get 0) (i32.const 0) (i32.const 42)) (return (i32.const 0))))
            (if (i32.eq (local.get 1) (i32.const 3)) (then (return (i32.const 0))))
            (loop $more
                (local.set 2 (call $rpc_start (local.get 0) (i32.const 0) (i32.const -1) (i32.const 3) (i32.const 0) (i32.const 0) (i32.const 0)))
                (if (i32.gt_s (local.get 2) (i32.const 0))
                    (then (drop (call $rpc_finish (local.get 2) (i32.const 1)))
                          (i32.store (i32.const 8) (i32.add (i32.load (i32.const 8)) (i32.const 1)))
                          (br_if $more (i32.lt_u (i32.load (i32.const 8)) (i32.const 1000))))))
            (i32.store (i32.const 16) (local.get 0))
            (i32.const 0))
        (func $complete (param i32 i64)
            (if (i64.eq (local.get 1) (i64.const -7))
                (then (call $respond (i32.load (i32.const 16)) (i32.const 0) (i32.load (i32.const 8))))))"#;
    let (outcome, result, _) = misbehaving_module(&module("bad", flood));
    assert_eq!(outcome, RpcOutcome::Answered { status: 0 });
    assert_eq!(result, 1000, "all were sent, what did not fit was refused");
}

#[test]
fn modules_are_refused_with_the_reason() {
    let mut rig = Rig::new(1);
    let mut refuse = |text: &str, reason: &str| {
        let module = wat::parse_str(text).unwrap();
        let why = rig.install(&module).unwrap_err();
        assert!(why.contains(reason), "{text}: {why}");
    };
    let manifest = r#"(@custom "willow.app" "abi=2\nname=x\nhandler=1:a\n")"#;
    let good = r#"(memory (export "memory") 1) (func (export "start") (param i32 i32) (result i32) (i32.const 0)) (func (export "complete") (param i32 i64))"#;
    refuse(&format!("(module {good})"), "no section willow.app");
    refuse(
        &format!(r#"(module (import "env" "puts" (func (param i32))) {good} {manifest})"#),
        "env.puts, which SPU-OS does not offer",
    );
    refuse(&format!(r#"(module (import "willow" "puts" (func)) {good} {manifest})"#), "willow.puts");
    refuse(
        &format!(r#"(module (import "willow" "respond" (func (param i32))) {good} {manifest})"#),
        "its signature is (iii)->()",
    );
    refuse(&format!(r#"(module (import "willow" "x" (global i32)) {good} {manifest})"#), "no function");
    refuse(&format!("(module {good} (func $s) (start $s) {manifest})"), "start function");
    refuse(
        &format!(
            r#"(module (func (export "start") (param i32 i32) (result i32) (i32.const 0)) (func (export "complete") (param i32 i64)) {manifest})"#
        ),
        "memory",
    );
    refuse(
        &format!(
            r#"(module (memory (export "memory") 17) (func (export "start") (param i32 i32) (result i32) (i32.const 0)) (func (export "complete") (param i32 i64)) {manifest})"#
        ),
        "app_data_bytes_max",
    );
    refuse(
        &format!(r#"(module (memory (export "memory") 1) (func (export "complete") (param i32 i64)) {manifest})"#),
        "named start",
    );
    refuse(
        &format!(
            r#"(module (memory (export "memory") 1) (func (export "start")) (func (export "complete") (param i32 i64)) {manifest})"#
        ),
        "it must be (ii)->(i)",
    );
    for (bad, reason) in [
        ("abi=1\\nname=x\\nhandler=1:a", "ABI version 1, this device has 2: build it anew with this version's SDK"),
        ("abi=3\\nname=x\\nhandler=1:a", "ABI version 3, this device has 2: this device is older than the app"),
        ("name=x\\nhandler=1:a", "abi="),
        ("abi=2\\nname=X\\nhandler=1:a", "of the form"),
        ("abi=2\\nname=x", "no handler"),
        ("abi=2\\nname=x\\nhandler=0:a", "line 3"),
        ("abi=2\\nname=x\\nhandler=1:a\\nhandler=1:b", "line 4"),
        ("abi=2\\nname=x\\ncolour=red", "line 3"),
        ("abi=2\\nnonsense", "line 2"),
    ] {
        refuse(&format!(r#"(module {good} (@custom "willow.app" "{bad}"))"#), reason);
    }
    assert!(rig.install(b"not wasm").unwrap_err().contains("not a WebAssembly module"));
    assert!(rig.install(&[]).is_err());
    let wide = "(nop)".repeat(10) + &"(drop (i64.mul (i64.const 12345678) (i64.const 98765432)))".repeat(150_000);
    let large = wat::parse_str(format!("(module {good} (func {wide}) {manifest})")).unwrap();
    assert!(rig.install(&large).unwrap_err().contains("app_code_bytes_max"));
}

#[test]
fn memory_grows_to_the_limit_and_no_further() {
    let grow =
        "(local.set 2 (memory.grow (i32.const 15))) (if (i32.eq (local.get 2) (i32.const -1)) (then (unreachable)))
        (call $respond (local.get 0) (i32.const 0) (memory.grow (i32.const 1))) (return (i32.const 0))";
    let (outcome, result, _) = misbehave(grow);
    assert_eq!((outcome, result as i32), (RpcOutcome::Answered { status: 0 }, -1));
}

/// A module whose record is wherever `global` says.
fn recorded(global: &str, start: &str) -> Vec<u8> {
    module(
        "bad",
        &format!(
            r#"(global $record {global}) (export "request_record" (global $record))
               (func $start (param i32 i32) (result i32) {start})"#
        ),
    )
}

#[test]
fn a_request_record_tells_of_the_request_and_brings_the_answer() {
    let mut rig = Rig::new(2);
    // Adds up what the record says and leaves it as the answer: body and reply bytes, handler, argument bytes, an argument.
    let sum = "(i32.store (i32.const 88) (i32.const 5))
        (i32.store (i32.const 92) (i32.add (i32.add (i32.load (i32.const 72)) (i32.load (i32.const 76)))
            (i32.add (i32.add (i32.load (i32.const 80)) (i32.load (i32.const 84)))
                (i32.add (i32.load (i32.const 68)) (i32.load8_u (i32.const 97))))))
        (if (i32.eqz (local.get 1)) (then (i64.store (i32.const 88) (i64.const 0))))
        (i32.const 2)";
    let app = rig.install(&recorded("i32 (i32.const 64)", sum)).unwrap();
    let done = rig.call(app, 2, 1, &[1, 20, 3], &[5; 100], 0);
    // Source FFFFFFFFh: the host, which is -1 in the sum.
    assert_eq!((done.outcome, done.result), (RpcOutcome::Answered { status: 5 }, 103 + 2 + 3 - 1 + 20));
    let done = rig.call(app, 3, 0, &[0, 9], &[], 4096);
    assert_eq!((done.outcome, done.result), (RpcOutcome::Answered { status: 5 }, 2 + 4096 + 3 + 2 - 1 + 9));
}

/// An app whose handler 2 waits for a region, with the token in its record at 64; `complete` does `then`.
fn answering_later(record: &str, then: &str) -> Vec<u8> {
    module(
        "bad",
        &format!(
            r#"{record} (global $token (mut i32) (i32.const 0))
               (func $start (param i32 i32) (result i32)
                   (if (i32.ne (local.get 1) (i32.const 2))
                       (then (call $respond (local.get 0) (i32.const 0) (i32.const 42)) (return (i32.const 0))))
                   (global.set $token (local.get 0))
                   (drop (call $region (i32.const 1) (i64.const 65536) (i32.const 5)))
                   (i32.const 0))
               (func $complete (param i32 i64) (result i32) {then})"#
        ),
    )
}

#[test]
fn a_completion_may_bring_the_answer_in_the_record() {
    let record = r#"(global $record i32 (i32.const 64)) (export "request_record" (global $record))"#;
    let answer = "(i32.store (i32.const 64) (global.get $token)) (i32.store (i32.const 88) (i32.const 6))
        (i32.store (i32.const 92) (i32.const 77)) (i32.const 2)";
    let (outcome, result, _) = misbehaving_module(&answering_later(record, answer));
    assert_eq!((outcome, result), (RpcOutcome::Answered { status: 6 }, 77));
    // A stranger's token is nobody's: nothing is answered by it.
    let stranger = "(call $respond (global.get $token) (i32.const 0) (i32.const 9))
        (i32.store (i32.const 64) (i32.const 0x12340001)) (i32.store (i32.const 92) (i32.const 77)) (i32.const 2)";
    let (outcome, result, _) = misbehaving_module(&answering_later(record, stranger));
    assert_eq!((outcome, result), (RpcOutcome::Answered { status: 0 }, 9));
    for (record, then, reason) in
        [("", "(i32.const 2)", "has no request record"), (record, "(i32.const 7)", "returned 7")]
    {
        let (outcome, _, log) = misbehaving_module(&answering_later(record, then));
        assert_eq!(outcome, RpcOutcome::AppEnded, "{then}");
        assert!(log.contains(reason), "{log}");
    }
}

/// Hardware on which each step takes a nanosecond.
struct Nanosecond;

impl Timing for Nanosecond {
    fn send(&mut self, at_ns: u64, message: Message, agenda: &mut Agenda<'_>) {
        agenda.arrive(at_ns + 1, message.id);
    }
    fn dma(&mut self, at_ns: u64, _transfer: &Transfer) -> DmaStep {
        DmaStep::Ends(at_ns + 1)
    }
    fn processor(&mut self, at_ns: u64, _spu: u16, _work: &Work) -> u64 {
        at_ns + 1
    }
}

/// An app whose handler 3 makes a region, and whose handler 2 answers with the result of a DMA from there that may not wait.
fn hasty(source_port: u32, bytes: &str) -> Vec<u8> {
    module(
        "hasty",
        &format!(
            "(global $base (mut i64) (i64.const 0)) (global $token (mut i32) (i32.const 0))
            (func $start (param i32 i32) (result i32)
                (if (i32.eq (local.get 1) (i32.const 3)) (then
                    (global.set $token (local.get 0))
                    (global.set $base (call $region (i32.const 1) (i64.const 65536) (i32.const 5)))
                    (if (i64.ge_s (global.get $base) (i64.const 0))
                        (then (call $respond (local.get 0) (i32.const 0) (i32.const 0))))
                    (return (i32.const 0))))
                (if (i32.eqz (local.get 1)) (then
                    (call $respond (local.get 0) (i32.const 0) (i32.const 0)) (return (i32.const 0))))
                (i64.store (i32.const 200) (i64.const 0x5555555555555555))
                (local.set 1 (call $dma (local.get 0) (i32.const {source_port}) (global.get $base) (i32.const 0) (i64.const 200)
                    (i32.const {bytes}) (i32.const 3)))
                (call $respond (local.get 0) (i32.load (i32.const 200)) (local.get 1)) (i32.const 0))
            (func $complete (param i32 i64)
                (global.set $base (local.get 1))
                (call $respond (global.get $token) (i32.const 0) (i32.const 0)))"
        ),
    )
}

#[test]
fn a_dma_is_done_at_once_or_not_at_all_where_that_is_asked() {
    let valve = Valve::default();
    // The result, and what was at the destination before or is there now.
    let moved = |rig: &mut Rig, port: u32, bytes: &str, slow: bool| {
        let app = rig.install(&hasty(port, bytes)).unwrap();
        assert_eq!(rig.call(app, 3, 1, &[], &[], 0).outcome, RpcOutcome::Answered { status: 0 });
        valve.closed.set(slow);
        let done = rig.call(app, 2, 1, &[], &[], 0);
        valve.closed.set(false);
        let RpcOutcome::Answered { status } = done.outcome else { panic!("{:?}", done.outcome) };
        (done.result as i32, status)
    };
    let untouched = 0x5555_5555;
    let mut rig = Rig::slow(config(2), 1 << 30, None, valve.clone());
    // Flash never has it at once: its FTL is asked.
    let at_once = if is_on_flash() { (3, untouched) } else { (0, 0) };
    assert_eq!(moved(&mut rig, 0x201, "4", false), at_once, "a store that has it at once");
    assert_eq!(moved(&mut rig, 0x201, "4", true), (3, untouched), "one that does not");
    assert_eq!(valve.waiting(), 0, "nothing was begun");
    // Only reads of NV memory, and only where the app may.
    assert_eq!(moved(&mut rig, 0x202, "4", false), (-2, untouched));
    assert_eq!(moved(&mut rig, 0x301, "4", false), (-2, untouched));
    assert_eq!(moved(&mut rig, 0x201, "65537", false), (-4, untouched), "past the region");
    assert_eq!(moved(&mut rig, 0x201, "-1", false), (-2, untouched));
    let mut timed = Rig::with(config(2), Some(Box::new(Nanosecond)));
    assert_eq!(moved(&mut timed, 0x201, "4", false), (3, untouched), "under a model of time everything takes time");
    ends(
        "(drop (call $dma (local.get 0) (i32.const 0x201) (i64.const 0) (i32.const 0) (i64.const 0) (i32.const 4) (i32.const 0)))
        (unreachable)",
        "unreachable",
    );
}

#[test]
fn a_request_record_that_cannot_be_is_refused() {
    let refused = |global: &str| Rig::new(2).install(&recorded(global, "(i32.const 0)")).unwrap_err();
    assert!(refused("i32 (i32.const 65441)").contains("outside of its memory"));
    assert!(refused("i32 (i32.const -1)").contains("outside of its memory"));
    assert!(refused("(mut i32) (i32.const 64)").contains("no immutable i32"));
    assert!(refused("i64 (i64.const 64)").contains("no immutable i32"));
    // One that just fits is fine, and without any there is nowhere to leave an answer.
    Rig::new(2)
        .install(&recorded("i32 (i32.const 65440)", "(i32.store (i32.const 65464) (i32.const 0)) (i32.const 2)"))
        .unwrap();
    ends("(return (i32.const 2))", "has no request record");
}

#[test]
fn an_answer_in_the_record_to_what_was_answered_before_is_nothing() {
    let mut rig = Rig::new(2);
    let twice = "(i64.store (i32.const 88) (i64.const 9))
        (call $respond (local.get 0) (i32.const 0) (i32.const 42)) (i32.const 2)";
    let app = rig.install(&recorded("i32 (i32.const 64)", twice)).unwrap();
    for _ in 0..3 {
        let done = rig.call(app, 2, 1, &[], &[], 0);
        assert_eq!((done.outcome, done.result), (RpcOutcome::Answered { status: 0 }, 42));
    }
}

/// Handler 2 takes the device's time before and after a DMA from the address in its arguments, and answers with the difference, and
/// with what the DMA came to as its status.
const STOPWATCH: &str = r#"(func $start (param i32 i32) (result i32) (local $begun i64) (local $code i32)
    (if (i32.eq (local.get 1) (i32.const 2)) (then
        (drop (call $receive_bytes (local.get 0) (i32.const 0) (i32.const 16)))
        (local.set $begun (call $time_ns))
        (local.set $code (call $dma (local.get 0) (i32.load (i32.const 12)) (i64.load (i32.const 0)) (i32.const 0) (i64.const 64) (i32.load (i32.const 8)) (i32.const 0)))
        (i64.store (i32.const 32) (local.get $begun))
        (if (i32.eq (local.get $code) (i32.const 1)) (then (i32.store (i32.const 40) (local.get 0)) (return (i32.const 0))))
        (call $respond (local.get 0) (i32.sub (i32.const 0) (local.get $code)) (i32.wrap_i64 (i64.sub (call $time_ns) (local.get $begun))))
        (return (i32.const 0))))
    (call $respond (local.get 0) (i32.const 0) (i32.const 0)) (i32.const 0))
    (func $complete (param i32 i64)
        (call $respond (i32.load (i32.const 40)) (i32.const 99) (i32.wrap_i64 (i64.sub (call $time_ns) (i64.load (i32.const 32))))))"#;

#[test]
fn an_app_that_times_the_permission_table_learns_nothing_of_others() {
    let mut users = users::Users::new(config(1));
    let (alice, mallory) = (users.user(1000), users.user(6666));
    // Alice has many extents, Mallory one.
    for number in 0..200 {
        users.grant(&alice, 1 + number as u32 % 3, 8192 + number * 512, 256);
    }
    users.grant(&mallory, users::READ, 0, 512);
    let watch = users.install_for(mallory.hre, &users::app("stopwatch", STOPWATCH, "")).expect("an app");
    let mut time = |port: u32, start: u64| {
        let arguments = users.arguments(start, 64, port);
        let done = users.rig.call_on(mallory.hre, (watch, 2, 0), &arguments, &[], 0);
        (done.outcome, done.result)
    };
    // What is Alice's and what is nobody's is refused alike, and the clock stands still within a run.
    let refused = RpcOutcome::Answered { status: 4 };
    for start in [8192, 8192 + 512 * 100, 8192 + 300, 200_000, 4096] {
        assert_eq!(time(users::NV, start), (refused, 0), "{start}");
    }
    // What is read from flash ends in a later run.
    let status = if is_on_flash() { 99 } else { 0 };
    assert_eq!(time(users::NV, 0), (RpcOutcome::Answered { status }, 0));
    // The twin: a DMA that the store works on ends in a later run, which the stopwatch sees.
    users.valve.closed.set(true);
    let arguments = users.arguments(0, 64, users::NV);
    users.rig.begin(mallory.hre, (watch, 2, 0), &arguments, &[], 0);
    users.run();
    users.rig.now_ns += 5000;
    users.valve.closed.set(false);
    users.rig.settle();
    let done = users.completion().expect("it has ended");
    assert_eq!((done.outcome, done.result), (RpcOutcome::Answered { status: 99 }, 5000));
}
