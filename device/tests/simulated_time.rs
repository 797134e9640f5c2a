//! The core under simulated time: a seeded model of time in place of the free clock. Same seed, same trace to the last
//! nanosecond; another seed, another order of completions; the same answers in any case.

mod common;
use common::*;
use std::fmt::Write;
use willow_device::clock::{Agenda, DmaStep, Message, Timing, Transfer, Work};
use willow_device::{Arguments, DeviceConfig, Rpc, RpcOutcome};

/// Every step takes a random time from a seed; each SPU's processor does one thing at a time.
struct Seeded(u64);

impl Seeded {
    fn draw(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

impl Timing for Seeded {
    fn send(&mut self, at_ns: u64, message: Message, agenda: &mut Agenda<'_>) {
        let bytes = u64::from(message.header_bytes) + message.payload_bytes;
        agenda.arrive(at_ns + 88 + bytes + self.draw(1000), message.id);
    }
    fn dma(&mut self, at_ns: u64, transfer: &Transfer) -> DmaStep {
        DmaStep::Ends(at_ns + 48 + transfer.segment_bytes / 4 + self.draw(500))
    }
    fn processor(&mut self, at_ns: u64, _spu: u16, work: &Work) -> u64 {
        at_ns + work.instructions.unwrap_or(100) * 8
    }
}

/// Handler 2: copies 8 bytes of the body to its memory by DMA, then to the reply, then answers with its SPU's number. The token is
/// the wait number, the stage is kept by it.
fn copier() -> Vec<u8> {
    module(
        "copier",
        r#"
        (func $reply (param i32) (result i32)
            (call $dma (local.get 0) (i32.const 0) (i64.extend_i32_u (call $slot (local.get 0))) (i32.const 2) (i64.const 0) (i32.const 8) (local.get 0)))
        (func $slot (param i32) (result i32) (i32.shl (i32.and (local.get 0) (i32.const 0xfff)) (i32.const 4)))
        (func $end (param i32) (call $respond (local.get 0) (i32.const 0) (call $spu_id)))
        (func $start (param i32 i32) (result i32)
            (if (i32.lt_u (local.get 1) (i32.const 2))
                (then (call $respond (local.get 0) (i32.const 0) (i32.const 42)) (return (i32.const 0))))
            (i32.store (i32.add (call $slot (local.get 0)) (i32.const 8)) (i32.const 0))
            (if (i32.eqz (call $dma (local.get 0) (i32.const 2) (i64.const 0) (i32.const 0) (i64.extend_i32_u (call $slot (local.get 0))) (i32.const 8) (local.get 0)))
                (then (drop (call $reply (local.get 0))) (call $end (local.get 0))))
            (i32.const 0))
        (func $complete (param i32 i64)
            (if (i32.load (i32.add (call $slot (local.get 0)) (i32.const 8)))
                (then (call $end (local.get 0)))
                (else
                    (i32.store (i32.add (call $slot (local.get 0)) (i32.const 8)) (i32.const 1))
                    (if (i32.eqz (call $reply (local.get 0))) (then (call $end (local.get 0)))))))"#,
    )
}

/// Runs 200 requests over 4 SPUs; the trace of their completions, and the order of their tags.
fn trace(timing: Option<Box<dyn Timing>>) -> (String, Vec<u64>) {
    let mut rig = Rig::with(DeviceConfig { ..config(4) }, timing);
    let app = rig.install(&copier()).unwrap();
    let mut payloads = std::collections::BTreeMap::new();
    for number in 0..200u64 {
        let rpc = Rpc { app, handler: 2, spu: (number % 4) as u16, arguments: Arguments::EMPTY };
        let payload = number.wrapping_mul(0x0123_4567_89ab_cdef).to_le_bytes();
        let mut request = rig.request(rpc, &payload, 8);
        request.buffer.resize(8, 0);
        payloads.insert(request.tag, payload);
        rig.device.submit(rig.hre, request).unwrap();
    }
    let (mut text, mut order) = (String::new(), Vec::new());
    loop {
        let wake = rig.device.run(rig.now_ns);
        while let Some(done) = rig.device.completion() {
            assert_eq!(done.outcome, RpcOutcome::Answered { status: 0 });
            assert_eq!((done.reply_bytes, &done.buffer[..8]), (8, &payloads.remove(&done.tag).unwrap()[..]));
            order.push(done.tag);
            writeln!(text, "{} tag {} spu {}", rig.now_ns, done.tag, done.result).unwrap();
        }
        match wake {
            Some(at_ns) => {
                assert!(at_ns > rig.now_ns, "time goes forward");
                rig.now_ns = at_ns;
            }
            None => break,
        }
    }
    assert!(payloads.is_empty(), "{} requests were not answered", payloads.len());
    (text, order)
}

#[test]
fn same_seed_same_trace_other_seed_other_order() {
    let first = trace(Some(Box::new(Seeded(1))));
    let second = trace(Some(Box::new(Seeded(2))));
    assert_eq!(first, trace(Some(Box::new(Seeded(1)))));
    assert_eq!(second, trace(Some(Box::new(Seeded(2)))));
    assert_ne!(first.1, second.1);
}

#[test]
fn the_free_clock_takes_no_time() {
    let (text, order) = trace(None);
    assert!(text.lines().all(|line| line.starts_with("0 ")));
    assert!(order.is_sorted(), "with no waits, requests end in the order in which they came");
}
