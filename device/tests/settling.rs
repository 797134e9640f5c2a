//! Apps that carry out writes after they have answered (`settles=1`): hosts' requests wait for their start, revocations for what they owe.

mod common;
use common::drive::Drive;
use common::users::*;
use common::*;
use willow_device::control::{self, ControlStatus};
use willow_device::media::fault::{FaultMedia, FaultOptions};
use willow_device::media::ram::RamStore;
use willow_device::{BuiltInApp, Device, RpcOutcome};

const ANSWERED: RpcOutcome = RpcOutcome::Answered { status: 0 };
const MILLISECOND: u64 = 1_000_000;

/// Answers STARTED (event 4) and REVOKED (5) after some milliseconds, REVOKED with a status; counts both (counters 4 and 5), and what REVOKED
/// tells of (6: the process, 7: whether it has ended). Milliseconds of 0: never; below 0: it traps.
fn settler(started_ms: i64, revoked_ms: i64, status: u32) -> Vec<u8> {
    let after = |milliseconds: i64| match milliseconds {
        0 => "(return (i32.const 0))".to_owned(),
        ..0 => "(unreachable)".to_owned(),
        some => format!(
            "(drop (call $sleep (i64.const {}) (local.get 0))) (return (i32.const 0))",
            some as u64 * MILLISECOND
        ),
    };
    let body = format!(
        r#"(func $start (param i32 i32) (result i32)
            (if (i32.eqz (local.get 1)) (then
                (drop (call $receive_bytes (local.get 0) (i32.const 0) (i32.const 12)))
                (call $count (i32.load (i32.const 0)) (i64.const 1))
                (i32.store (i32.const 64) (i32.const 0))
                (if (i32.eq (i32.load (i32.const 0)) (i32.const 4)) (then {}))
                (if (i32.eq (i32.load (i32.const 0)) (i32.const 5)) (then
                    (call $count (i32.const 6) (i64.extend_i32_u (i32.load (i32.const 4))))
                    (call $count (i32.const 7) (i64.extend_i32_u (i32.load (i32.const 8))))
                    (i32.store (i32.const 64) (i32.const {status})) {}))))
            (call $respond (local.get 0) (i32.const 0) (i32.const 0)) (i32.const 0))
        (func $complete (param i32 i64) (call $respond (local.get 0) (i32.load (i32.const 64)) (i32.const 0)))"#,
        after(started_ms),
        after(revoked_ms)
    );
    app("settler", &body, "settles=1\\n")
}

/// A device that starts with an app which answers after that time, and its neighbour.
fn starting(started_ms: i64) -> (Rig, u16) {
    let settler = settler(started_ms, 1, 0).leak();
    let neighbour = well_behaved("neighbour", "").leak();
    // They come with the program.
    let apps = vec![BuiltInApp::Wasm(neighbour), BuiltInApp::Wasm(settler)];
    let store = RamStore::new(1, 1 << 26).expect("a store in memory");
    let mut device = Device::open(config(1), Box::new(store), None, apps).expect("the device opens");
    let hre = device.open_hre(None).expect("an endpoint");
    let neighbour = device.app_number("neighbour").expect("it is built in");
    (Rig::around(device, hre), neighbour)
}

/// When a request that came at the start is answered.
fn answered_at_ns(rig: &mut Rig, to: u16) -> u64 {
    let hre = rig.hre;
    rig.begin(hre, (to, 1, 0), &[], &[], 0);
    for _ in 0..1000 {
        let now_ns = rig.now_ns;
        let wake_ns = rig.device.run(now_ns);
        if let Some(done) = rig.device.completion() {
            assert_eq!((done.outcome, done.result), (ANSWERED, 42));
            return now_ns;
        }
        rig.now_ns = wake_ns.expect("something will happen").max(now_ns);
    }
    panic!("the request is not answered");
}

#[test]
fn requests_of_hosts_wait_until_the_app_has_started() {
    let (mut rig, neighbour) = starting(7);
    assert_eq!(answered_at_ns(&mut rig, neighbour), 7 * MILLISECOND);
    // Later ones do not wait.
    assert_eq!(answered_at_ns(&mut rig, neighbour), 7 * MILLISECOND);
}

#[test]
fn an_app_that_does_not_start_is_not_waited_for() {
    // One that traps holds nobody up, one that says nothing 10 s.
    let (mut rig, neighbour) = starting(-1);
    assert_eq!(answered_at_ns(&mut rig, neighbour), 0);
    let (mut rig, neighbour) = starting(0);
    assert_eq!(answered_at_ns(&mut rig, neighbour), 10_000 * MILLISECOND);
}

#[test]
fn a_revocation_is_answered_when_nothing_is_owed() {
    let mut users = Users::new(config(2));
    let alice = users.user(1000);
    let kernel = users.rig.hre;
    users.rig.install(&settler(1, 3, 0)).expect("an app");
    users.grant(&alice, READ | WRITE, 0, 4096);
    users.revoke_later(&alice);
    users.run();
    // The right has gone at once; the answer waits for the app.
    assert!(users.completion().is_none());
    let mover = users.mover;
    let arguments = users.arguments(0, 4, NV);
    users.rig.begin(alice.hre, (mover, 1, 0), &arguments, &[], 4);
    users.run();
    assert_eq!(users.completion().map(|done| (done.hre, done.result)), Some((alice.hre, PERMISSION)));
    let begun_ns = users.rig.now_ns;
    users.rig.settle();
    assert_eq!(users.completion().map(|done| (done.hre, done.outcome)), Some((kernel, ANSWERED)));
    assert!(users.rig.now_ns >= begun_ns + 3 * MILLISECOND);
    let counters = |users: &Users| {
        let apps = users.rig.device.statistics().apps;
        apps.into_iter().find(|app| app.name == "settler").expect("it is there").user
    };
    // Each SPU was told of that process, which is there still.
    let told = counters(&users);
    assert_eq!((told[5], told[6], told[7]), (2, 2 * i64::from(alice.process | 1 << 19), 0));
    // The process' end is told as well, and waited for where somebody asks.
    users.rig.begin(kernel, (control::CONTROL_APP, control::CLOSE_PROCESS, 0), &[], &alice.process.to_le_bytes(), 0);
    users.run();
    assert!(users.completion().is_none());
    users.rig.settle();
    assert_eq!(users.completion().map(|done| done.outcome), Some(ANSWERED));
    assert!(counters(&users)[7] > 0);
    let bob = users.user(1001);
    users.rig.device.close_process(bob.process);
    users.rig.settle();
    assert_eq!(counters(&users)[7] % 2, 0);
}

#[test]
fn a_revocation_is_refused_while_something_is_owed() {
    for (module, why) in [(settler(1, 1, 6), "status 6"), (settler(1, 0, 0), "after 5 s")] {
        let mut users = Users::new(config(1));
        let alice = users.user(1000);
        let kernel = users.rig.hre;
        users.rig.install(&module).expect("an app");
        users.grant(&alice, READ | WRITE, 0, 4096);
        users.revoke_later(&alice);
        users.rig.settle();
        let done = users.completion().expect("it is answered");
        assert_eq!(done.hre, kernel);
        assert_eq!(done.outcome, RpcOutcome::Answered { status: ControlStatus::Busy as u32 }, "{why}");
        let text = users.rig.error_text();
        assert!(text.contains(why), "{text}");
    }
}

#[test]
fn no_trap_keeps_a_revocation_from_being_answered() {
    // It traps when it starts; when it is told of a revocation.
    for module in [settler(-1, 1, 0), settler(1, -1, 0)] {
        let mut users = Users::new(config(2));
        let alice = users.user(1000);
        let kernel = users.rig.hre;
        users.rig.install(&module).expect("an app");
        users.rig.settle();
        users.grant(&alice, READ | WRITE, 0, 4096);
        users.revoke_later(&alice);
        users.rig.settle();
        let done = users.completion().map(|done| (done.hre, done.outcome));
        assert_eq!(done, Some((kernel, ANSWERED)));
        let apps = users.rig.device.statistics().apps;
        let listed = apps.into_iter().find(|app| app.name == "settler").expect("it is listed");
        assert!(listed.ended.is_some() && listed.counters.traps >= 3, "{} traps", listed.counters.traps);
        // Nothing waits for it any more: others are served, and revocations answered at once.
        assert_eq!(users.read(kernel, users.mover, 0, 512).0, ANSWERED);
        users.grant(&alice, READ, 0, 512);
        users.revoke(&alice, READ, 0, 512);
        // A fresh version begins anew.
        users.rig.install(&settler(1, 3, 0)).expect("an app");
        users.rig.settle();
        users.revoke_later(&alice);
        assert!(users.completion().is_none(), "it is waited for");
        users.rig.settle();
        assert_eq!(users.completion().map(|done| done.outcome), Some(ANSWERED));
    }
}

#[test]
fn users_apps_are_waited_for_by_nobody() {
    let mut users = Users::new(config(1));
    let alice = users.user(1000);
    let refused = users.install_for(alice.hre, &settler(1, 1, 0));
    assert_eq!(refused, Err(RpcOutcome::Answered { status: ControlStatus::ModuleRefused as u32 }));
}

#[test]
fn a_range_is_kept_while_an_app_that_settles_does_not_answer_or_traps() {
    for deleted in ["(return (i32.const 0))", "(unreachable)"] {
        let media = FaultMedia::new(FaultOptions::new(2, 1 << 26));
        let mut drive = Drive::open(&media).expect("a fresh device opens");
        let body = format!(
            r#"(func $start (param i32 i32) (result i32)
            (if (i32.eqz (local.get 1)) (then
                (drop (call $receive_bytes (local.get 0) (i32.const 0) (i32.const 12)))
                (if (i32.eq (i32.load (i32.const 0)) (i32.const 2)) (then {deleted}))))
            (call $respond (local.get 0) (i32.const 0) (i32.const 0)) (i32.const 0))"#
        );
        drive.install(&app("base-io", &body, "settles=1\\n")).expect("an app");
        assert!(drive.control(control::CREATE_NAMESPACE, br#"{"csi":"nvm","size_bytes":1048576}"#));
        assert!(!drive.control(control::DELETE_NAMESPACE, &1u32.to_le_bytes()), "{deleted}");
        let text = drive.error_text();
        assert!(text.contains("its app still has something to write there"), "{text}");
        assert!(drive.device.namespaces().is_empty());
        assert_eq!(drive.device.statistics().regions.len(), 1, "{deleted}");
    }
}
