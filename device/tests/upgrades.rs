//! Upgrades: a new version takes the old one's place while that is in use, or does not; no request is lost either way.

mod common;
use common::drive::*;
use common::keeper::{begin, keeper};
use common::*;
use std::collections::BTreeSet;
use willow_device::clock::{Agenda, DmaStep, Message, Timing, Transfer, Work as ProcessorWork};
use willow_device::media::fault::{FaultMedia, FaultOptions};
use willow_device::{Arguments, Rpc, RpcOutcome, control};

#[test]
fn a_version_that_does_not_start_makes_way_for_the_one_before() {
    let traps = "unreachable";
    let silent = "(return (i32.const 0))";
    let loops = "(loop (br 0))";
    let refuses = "(call $respond (local.get 0) (i32.const 9) (i32.const 0)) (return (i32.const 0))";
    let ways = [
        (traps, "unreachable"),
        (silent, "has not answered STARTED"),
        (loops, "instructions"),
        (refuses, "answered STARTED with status 9"),
    ];
    for (started, why) in ways {
        let media = FaultMedia::new(FaultOptions::new(usize::from(SPUS), 1 << 26));
        let mut drive = Drive::open(&media).unwrap();
        let number = drive.install(&keeper(1, "", "")).unwrap();
        drive.call(number, 2, b"precious");
        let before = drive.state();
        let refused = drive.install(&keeper(2, started, "")).unwrap_err();
        assert!(refused.contains("refused") && refused.contains(why), "{refused}");
        assert_eq!((drive.call(number, 1, &[]).1, drive.read(number)), (1, *b"precious"), "{why}");
        assert_eq!((drive.state(), media.blobs().len()), (before.clone(), 1), "{why}");
        assert!(drive.log("keeper").contains("version 1 goes on"), "{}", drive.log("keeper"));
        drive.shut_down();
        assert_eq!(Drive::open(&media).unwrap().state(), before);
    }
}

/// Handler 2 asks its host; when that has answered it asks SPU 1's handler 3, and answers with what comes back. Handler 1: `version`.
fn nested(version: u32) -> Vec<u8> {
    module(
        "nested",
        &format!(
            r#"
    (func $start (param $token i32) (param $handler i32) (result i32) (local $slot i32)
        (if (i32.lt_u (local.get $handler) (i32.const 2))
            (then (call $respond (local.get $token) (i32.const 0) (i32.const {version})) (return (i32.const 0))))
        (if (i32.eq (local.get $handler) (i32.const 3))
            (then (call $respond (local.get $token) (i32.const 0) (i32.const {version}00)) (return (i32.const 0))))
        (i32.store (i32.const 0) (i32.add (i32.load (i32.const 0)) (i32.const 8)))
        (local.set $slot (i32.load (i32.const 0)))
        (i32.store (local.get $slot) (local.get $token))
        (call $ask (local.get $slot) (i32.const -1))
        (i32.const 0))
    (func $ask (param $slot i32) (param $whom i32) (local $handle i32)
        (local.set $handle (call $rpc_start (i32.load (local.get $slot)) (local.get $whom) (i32.const -1) (i32.const 3) (i32.const 0) (i32.const 0) (i32.const 0)))
        (if (i32.ne (call $rpc_finish (local.get $handle) (local.get $slot)) (i32.const 1)) (then (unreachable))))
    (func $complete (param $slot i32) (param $result i64)
        (if (i32.eqz (i32.load offset=4 (local.get $slot))) (then
            (i32.store offset=4 (local.get $slot) (i32.const 1))
            (call $ask (local.get $slot) (i32.const 1))
            (return)))
        (call $respond (i32.load (local.get $slot)) (i32.const 0) (i32.wrap_i64 (local.get $result))))"#
        ),
    )
}

/// Requests at work that wait for their host, the more of them than an endpoint's upcalls.
const AT_WORK: usize = 56;

fn begin_install(rig: &mut Rig, module: &[u8]) {
    let install = Rpc { app: control::CONTROL_APP, handler: control::INSTALL, spu: 0, arguments: Arguments::EMPTY };
    let request = rig.request(install, module, 0);
    rig.device.submit(rig.hre, request).unwrap();
    rig.device.run(rig.now_ns);
    let job = rig.device.job().expect("compiling is work for outside");
    let done = job.run();
    rig.device.job_done(done);
    for _ in 0..100 {
        rig.device.run(rig.now_ns);
    }
}

fn answer_upcalls(rig: &mut Rig) -> usize {
    let mut count = 0;
    while let Some(upcall) = rig.device.upcall(rig.hre) {
        assert!(rig.device.answer_upcall(rig.hre, upcall.id, 0, 1));
        count += 1;
        for _ in 0..10 {
            rig.device.run(rig.now_ns);
        }
    }
    count
}

#[test]
fn an_upgrade_ends_no_request_that_waits_for_nested_rpcs() {
    let mut rig = Rig::new(2);
    let app = rig.install(&nested(1)).unwrap();
    begin(&mut rig, app, 2, AT_WORK);
    rig.device.run(0);
    begin_install(&mut rig, &nested(2));
    begin(&mut rig, app, 1, 10);
    for _ in 0..100 {
        rig.device.run(rig.now_ns);
    }
    assert!(rig.device.completion().is_none(), "the old version has work, and new requests wait");
    assert_eq!(answer_upcalls(&mut rig), AT_WORK);
    rig.settle();
    let mut results = Vec::new();
    while let Some(done) = rig.device.completion() {
        assert_eq!(done.outcome, RpcOutcome::Answered { status: 0 });
        results.push(done.result);
    }
    let count = |wanted: u32| results.iter().filter(|result| **result == wanted).count();
    // The install's own result is the app's number.
    assert_eq!((count(100), count(2), count(u32::from(app))), (AT_WORK, 10, 1), "{results:?}");
    assert_eq!(rig.now_ns, 0, "nobody waited for a deadline");
}

#[test]
fn past_the_deadline_the_upgrade_is_refused_and_not_the_requests() {
    let mut rig = Rig::new(2);
    let app = rig.install(&nested(1)).unwrap();
    begin(&mut rig, app, 2, AT_WORK);
    rig.device.run(0);
    begin_install(&mut rig, &nested(2));
    begin(&mut rig, app, 1, 10);
    rig.settle();
    assert!(rig.now_ns >= 5_000_000_000);
    let mut outcomes = Vec::new();
    while let Some(done) = rig.device.completion() {
        outcomes.push((done.outcome, done.result));
    }
    let refused = outcomes.iter().filter(|(outcome, _)| *outcome != RpcOutcome::Answered { status: 0 });
    assert_eq!(refused.count(), 1, "the install alone: {outcomes:?}");
    assert_eq!(outcomes.iter().filter(|(_, result)| *result == 1).count(), 10, "the old version goes on");
    assert_eq!(answer_upcalls(&mut rig), AT_WORK);
    rig.settle();
    for _ in 0..AT_WORK {
        let done = rig.device.completion().expect("none is lost");
        assert_eq!((done.outcome, done.result), (RpcOutcome::Answered { status: 0 }, 100));
    }
    assert!(rig.error_text().contains("have not ended within 5 s"));
    assert_eq!(rig.install(&nested(2)), Ok(app));
    assert_eq!(rig.call(app, 1, 0, &[], &[], 0).result, 2);
}

#[test]
fn an_upgrade_whose_version_does_not_start_loses_no_request_either() {
    let mut rig = Rig::new(2);
    let app = rig.install(&keeper(1, "", "")).unwrap();
    begin_install(&mut rig, &keeper(2, "(return (i32.const 0))", ""));
    begin(&mut rig, app, 1, 20);
    rig.settle();
    let mut results = Vec::new();
    while let Some(done) = rig.device.completion() {
        results.push((done.outcome, done.result));
    }
    let served = results.iter().filter(|it| **it == (RpcOutcome::Answered { status: 0 }, 1)).count();
    assert_eq!((served, results.len()), (20, 21), "{results:?}");
}

/// Handler 2 asks the other SPU's handler 3, which asks the first one's handler 4; each adds `version` to the answer. Handler 1 answers
/// with `version`.
fn chained(version: u32) -> Vec<u8> {
    module(
        "chained",
        &format!(
            r#"
    (func $start (param $token i32) (param $handler i32) (result i32) (local $slot i32) (local $handle i32)
        (if (i32.eqz (local.get $handler))
            (then (call $respond (local.get $token) (i32.const 0) (i32.const 0)) (return (i32.const 0))))
        (if (i32.or (i32.eq (local.get $handler) (i32.const 1)) (i32.eq (local.get $handler) (i32.const 4)))
            (then (call $respond (local.get $token) (i32.const 0) (i32.const {version})) (return (i32.const 0))))
        (local.set $slot (i32.and (i32.add (i32.load (i32.const 0)) (i32.const 4)) (i32.const 0xfff)))
        (i32.store (i32.const 0) (local.get $slot))
        (local.set $slot (i32.add (local.get $slot) (i32.const 64)))
        (i32.store (local.get $slot) (local.get $token))
        (local.set $handle (call $rpc_start (local.get $token) (i32.sub (i32.const 1) (call $spu_id)) (i32.const -1)
            (i32.add (local.get $handler) (i32.const 1)) (i32.const 0) (i32.const 0) (i32.const 0)))
        (if (i32.ne (call $rpc_finish (local.get $handle) (local.get $slot)) (i32.const 1)) (then (unreachable)))
        (i32.const 0))
    (func $complete (param $slot i32) (param $result i64)
        (call $respond (i32.load (local.get $slot)) (i32.wrap_i64 (i64.shr_u (local.get $result) (i64.const 32)))
            (i32.add (i32.wrap_i64 (local.get $result)) (i32.const {version}))))"#
        ),
    )
}

/// Another app, whose handler 2 answers with what handler 2 of the app with that number answers on SPU 0.
fn caller(app: u16) -> String {
    format!(
        r#"
    (func $start (param $token i32) (param $handler i32) (result i32) (local $handle i32)
        (if (i32.lt_u (local.get $handler) (i32.const 2))
            (then (call $respond (local.get $token) (i32.const 0) (i32.const 0)) (return (i32.const 0))))
        (local.set $handle (call $rpc_start (local.get $token) (i32.const 0) (i32.const {app}) (i32.const 2) (i32.const 0) (i32.const 0) (i32.const 0)))
        (if (i32.ne (call $rpc_finish (local.get $handle) (local.get $token)) (i32.const 1)) (then (unreachable)))
        (i32.const 0))
    (func $complete (param $token i32) (param $result i64)
        (call $respond (local.get $token) (i32.wrap_i64 (i64.shr_u (local.get $result) (i64.const 32))) (i32.wrap_i64 (local.get $result))))"#
    )
}

/// A model of time in which everything takes some, so that much is under way when an upgrade begins.
struct Slow;

impl Timing for Slow {
    fn send(&mut self, at_ns: u64, message: Message, agenda: &mut Agenda<'_>) {
        agenda.arrive(at_ns + 3_000, message.id);
    }
    fn dma(&mut self, at_ns: u64, _transfer: &Transfer) -> DmaStep {
        DmaStep::Ends(at_ns + 5_000)
    }
    fn processor(&mut self, at_ns: u64, _spu: u16, work: &ProcessorWork) -> u64 {
        at_ns + work.instructions.unwrap_or(100) * 20
    }
}

/// Requests in flight while versions follow each other.
const IN_FLIGHT: usize = 64;
/// Upgrades, one after the other; each third one is of a version that does not start.
const UPGRADES: u32 = 24;

#[test]
fn upgrades_under_load_lose_no_request_under_either_clock() {
    for timing in [None, Some(Box::new(Slow) as Box<dyn Timing>)] {
        let is_timed = timing.is_some();
        let mut rig = Rig::with(config(2), timing);
        let app = rig.install(&chained(1)).unwrap();
        let caller = rig.install(&module("caller", &caller(app))).unwrap();
        let (mut served, mut refused, mut versions) = (0, 0, BTreeSet::new());
        for upgrade in 0..UPGRADES {
            let next = chained(upgrade + 2);
            let breaks = upgrade % 3 == 2;
            let module = if breaks { module("chained", TRAPS_AT_STARTED) } else { next };
            let install = Rpc { app: 0, handler: control::INSTALL, spu: 0, arguments: Arguments::EMPTY };
            let request = rig.request(install, &module, 0);
            let install_tag = request.tag;
            rig.device.submit(rig.hre, request).unwrap();
            let (mut in_flight, mut installed) = (0, false);
            let mut number = 0;
            // Until the upgrade is over and some have come after it.
            while !installed || in_flight > 0 {
                while in_flight < IN_FLIGHT && !installed {
                    number += 1;
                    match number % 4 {
                        0 => begin(&mut rig, app, 1, 1),
                        1 => begin(&mut rig, caller, 2, 1),
                        _ => begin(&mut rig, app, 2, 1),
                    }
                    in_flight += 1;
                }
                let wake_ns = rig.device.run(rig.now_ns);
                // The compiler is slow: much is served meanwhile.
                if number > 4 * IN_FLIGHT
                    && let Some(job) = rig.device.job()
                {
                    let done = job.run();
                    rig.device.job_done(done);
                }
                while let Some(done) = rig.device.completion() {
                    if done.tag == install_tag {
                        installed = true;
                        assert_eq!(done.outcome != RpcOutcome::Answered { status: 0 }, breaks, "{}", rig.now_ns);
                        refused += u32::from(breaks);
                        continue;
                    }
                    assert_eq!(done.outcome, RpcOutcome::Answered { status: 0 }, "upgrade {upgrade}");
                    in_flight -= 1;
                    served += 1;
                    versions.insert(done.result);
                }
                rig.now_ns = rig.now_ns.max(wake_ns.unwrap_or(0));
            }
        }
        assert_eq!(refused, UPGRADES / 3);
        assert!(served > 4 * IN_FLIGHT * UPGRADES as usize, "{served}");
        // Each version that came up has served; a chain is one version's: three times its number.
        for upgrade in (0..UPGRADES).filter(|upgrade| upgrade % 3 != 2) {
            let version = upgrade + 2;
            assert!(versions.contains(&version) || versions.contains(&(3 * version)), "{version}: {versions:?}");
        }
        assert!(rig.now_ns < 1_000_000_000, "no deadline was needed: {}", rig.now_ns);
        assert_eq!(is_timed, rig.now_ns > 0);
    }
}

const TRAPS_AT_STARTED: &str = "(func $start (param i32 i32) (result i32) (unreachable))";
