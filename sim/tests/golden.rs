//! The golden digest: what happens when and where in a mixed workload on `bee3`, as one number that is the same on any machine and after
//! any change that does not change what the modelled device does.
//!
//! What counts is each span's begin, end, place, name and bytes, whatever table numbers stand behind it and in which order the spans are
//! told, and what each request of the app answered. A change that moves a span on purpose says so in CHANGELOG.md and sets the new number.
//! The built-in apps run natively here, since the instructions of their modules are the compiler's affair; the app runs in the sandbox.

use std::sync::Arc;
use willow_host::{ControlClient, Hre, RpcCall};
use willow_sim::{
    BlockWorkload, HostThread, KvWorkload, Path, Preset, Simulation, SimulationOptions, Trace, TracedSpan,
};

/// The digest of seed 1.
const GOLDEN: u64 = 0x814f_8df2_74fc_1a78;
/// Spans of seed 1, so that a failure tells whether something happened at another time, or more or less often.
const GOLDEN_SPANS: usize = 7005;
/// When the workload begins: after all that starting the device and installing the app takes, nanoseconds.
const BEGIN_NS: u64 = 200_000_000;
/// Threads that call the app, and calls of each.
const CALLERS: u32 = 4;
const CALLS: u32 = 12;

/// Handlers 2 and 3 pass the four bytes of their body on to the next handler on the next SPU and answer what it answers; handler 4 doubles
/// them, sends them as its reply by DMA and answers them.
const CHAIN: &str = r#"(module
    (import "willow" "receive_bytes" (func $receive_bytes (param i32 i32 i32) (result i32)))
    (import "willow" "respond" (func $respond (param i32 i32 i32)))
    (import "willow" "dma" (func $dma (param i32 i32 i64 i32 i64 i32 i32) (result i32)))
    (import "willow" "rpc_start" (func $rpc_start (param i32 i32 i32 i32 i32 i32 i32) (result i32)))
    (import "willow" "rpc_append" (func $rpc_append (param i32 i32 i64 i32) (result i32)))
    (import "willow" "rpc_finish" (func $rpc_finish (param i32 i32) (result i32)))
    (import "willow" "spu_id" (func $spu_id (result i32)))
    (import "willow" "spu_count" (func $spu_count (result i32)))
    (memory (export "memory") 1)
    (; A token's 16 bytes: the token, 1 where it waits for a DMA, its number, the reply of its RPC. ;)
    (func $slot (param i32) (result i32) (i32.shl (i32.and (local.get 0) (i32.const 0xfff)) (i32.const 4)))
    (func $number (param i32) (result i32) (i32.add (call $slot (local.get 0)) (i32.const 8)))
    (func $start (export "start") (param i32 i32) (result i32) (local i32)
        (if (i32.lt_u (local.get 1) (i32.const 2))
            (then (call $respond (local.get 0) (i32.const 0) (i32.const 0)) (return (i32.const 0))))
        (i32.store (call $slot (local.get 0)) (local.get 0))
        (i32.store offset=4 (call $slot (local.get 0)) (i32.const 0))
        (drop (call $receive_bytes (local.get 0) (call $number (local.get 0)) (i32.const 4)))
        (if (i32.eq (local.get 1) (i32.const 4)) (then
            (i32.store (call $number (local.get 0)) (i32.shl (i32.load (call $number (local.get 0))) (i32.const 1)))
            (i32.store offset=4 (call $slot (local.get 0)) (i32.const 1))
            (if (i32.eqz (call $dma (local.get 0) (i32.const 0) (i64.extend_i32_u (call $number (local.get 0)))
                    (i32.const 2) (i64.const 0) (i32.const 4) (local.get 0)))
                (then (call $respond (local.get 0) (i32.const 0) (i32.load (call $number (local.get 0))))))
            (return (i32.const 0))))
        (local.set 2 (call $rpc_start (local.get 0)
            (i32.rem_u (i32.add (call $spu_id) (i32.const 1)) (call $spu_count)) (i32.const -1)
            (i32.add (local.get 1) (i32.const 1)) (i32.const 4) (i32.add (call $slot (local.get 0)) (i32.const 12)) (i32.const 4)))
        (if (i32.lt_s (local.get 2) (i32.const 0)) (then (unreachable)))
        (drop (call $rpc_append (local.get 2) (i32.const 0) (i64.extend_i32_u (call $number (local.get 0))) (i32.const 4)))
        (if (i32.ne (call $rpc_finish (local.get 2) (local.get 0)) (i32.const 1)) (then (unreachable)))
        (i32.const 0))
    (func (export "complete") (param i32 i64)
        (if (i32.load offset=4 (call $slot (local.get 0)))
            (then (call $respond (i32.load (call $slot (local.get 0))) (i32.const 0) (i32.load (call $number (local.get 0)))))
            (else (call $respond (i32.load (call $slot (local.get 0))) (i32.const 0) (i32.wrap_i64 (local.get 1))))))
    (@custom "willow.app" "abi=2\nname=chain\nversion=1\nhandler=2:two\nhandler=3:three\nhandler=4:four\n")
)"#;

/// A number for bytes (FNV-1a): the same on any machine.
fn digest(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// What happened, a line each, in an order that does not depend on when it was told.
fn text(spans: &[TracedSpan], answers: &[u32]) -> String {
    let mut lines: Vec<String> = spans
        .iter()
        .map(|span| {
            let TracedSpan { lane, name, begin_ns, end_ns, bytes } = span;
            format!("{begin_ns:012} {end_ns:012} {lane}: {name}, {bytes} bytes\n")
        })
        .collect();
    lines.sort_unstable();
    lines.extend(answers.iter().map(|answer| format!("answer {answer}\n")));
    lines.concat()
}

fn block(name: &str, path: Path, seed: u64) -> BlockWorkload {
    let range_bytes = 1 << 22;
    BlockWorkload { name: name.to_owned(), path, range_bytes, read_percent: 50, seed, ..BlockWorkload::default() }
}

/// The spans of the mixed workload that a seed makes up, and what the app answered: reads and writes through the kernel, and past it as a
/// user's process whose permissions are looked up, within stripes and over many; puts and gets; nested RPCs over three SPUs.
fn run(seed: u64) -> (Vec<TracedSpan>, Vec<u32>) {
    let trace = Trace::new();
    let mut sim = Simulation::new(&SimulationOptions {
        namespace_bytes: 1 << 22,
        kv_namespace_bytes: 1 << 22,
        native: true,
        trace: Some(trace.clone()),
        seed,
        ..SimulationOptions::new(Preset::load("bee3").expect("it is built in"))
    })
    .expect("a simulation");
    let module = wat::parse_str(CHAIN).expect("it is well formed");
    let app = sim
        .host_thread("install", |thread: HostThread| async move {
            let hre: Arc<dyn Hre> = thread.endpoint().clone();
            let app = ControlClient::new(hre).install(module).await.expect("installed");
            thread.sleep(BEGIN_NS - thread.now_ns()).await;
            app
        })
        .expect("a thread");
    sim.run().expect("it is installed");
    assert_eq!(sim.now_ns(), BEGIN_NS, "the workload begins when it always does");
    let app = app.take().expect("its number");

    let within = BlockWorkload { threads: 2, queue_depth: 3, operations: Some(60), ..block("file", Path::File, seed) };
    let across =
        BlockWorkload { bytes: 65536, queue_depth: 2, operations: Some(20), ..block("raw", Path::Raw, seed ^ 2) };
    let user =
        BlockWorkload { bytes: 12288, queue_depth: 2, operations: Some(40), ..block("user", Path::User, seed ^ 4) };
    for workload in [within, across, user] {
        let (generator, source) = workload.generator().expect("a workload");
        sim.generator(generator, source).expect("it begins");
    }
    for (name, load) in [("load", true), ("mix", false)] {
        let name = name.to_owned();
        let pairs = KvWorkload {
            name,
            load,
            threads: 2,
            keys: 40,
            get_percent: 60,
            operations: 60,
            seed,
            ..KvWorkload::default()
        };
        let (generator, source) = pairs.generator().expect("a workload");
        sim.generator(generator, source).expect("it begins");
    }
    let callers: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let body = move |thread: HostThread| async move {
                let mut answers = Vec::new();
                for call in 0..CALLS {
                    let number = caller * 1000 + call;
                    let (spu, arguments) = (Some((number % 8) as u16), number.to_le_bytes().to_vec());
                    let request = RpcCall { app, handler: 2, spu, arguments, ..RpcCall::default() };
                    let hre = thread.endpoint().clone();
                    let reply = thread.rpc(4, 0, hre.rpc(request)).await.expect("an answer");
                    assert_eq!((reply.status, reply.result), (0, 2 * number));
                    answers.push(reply.result);
                    thread.sleep(u64::from(number % 7) * 500).await;
                }
                answers
            };
            sim.host_thread(&format!("caller {caller}"), body).expect("a thread")
        })
        .collect();
    sim.run().expect("the workload ends");
    let answers = callers.iter().flat_map(|caller| caller.take().expect("it has ended")).collect();
    (trace.spans(BEGIN_NS), answers)
}

#[test]
fn what_happens_when_and_where_is_what_it_was_on_every_machine() {
    let (spans, answers) = run(1);
    let text = text(&spans, &answers);
    if let Some(path) = std::env::var_os("WILLOW_GOLDEN_TEXT") {
        std::fs::write(path, &text).expect("written");
    }
    assert_eq!(
        (spans.len(), format!("{:#018x}", digest(text.as_bytes()))),
        (GOLDEN_SPANS, format!("{GOLDEN:#018x}")),
        "WILLOW_GOLDEN_TEXT=FILE writes down what happened, to be compared with the same of the version before"
    );
}

#[test]
fn the_digest_sees_every_part_of_the_workload_and_every_nanosecond() {
    let (mut spans, answers) = run(1);
    let whole = digest(text(&spans, &answers).as_bytes());
    let seen = |part: &str| spans.iter().any(|span| span.lane.contains(part));
    for lane in [
        "link, host to device",
        "bridge, device to host",
        "ring",
        "SPU 7 processor",
        "SPU 0 DMA",
        "media bank",
        "caller 3",
    ] {
        assert!(seen(lane), "{lane}");
    }
    // The same again, told in another order.
    let (mut again, _) = run(1);
    again.reverse();
    assert_eq!(digest(text(&again, &answers).as_bytes()), whole);
    // Another seed; one answer; one nanosecond of one span in the middle.
    let (other, others) = run(2);
    assert_ne!(digest(text(&other, &others).as_bytes()), whole);
    let mut answers_now = answers.clone();
    answers_now[5] += 1;
    assert_ne!(digest(text(&spans, &answers_now).as_bytes()), whole);
    let middle = spans.len() / 2;
    spans[middle].end_ns += 1;
    assert_ne!(digest(text(&spans, &answers).as_bytes()), whole);
}
