//! Whose rights an operation has, with weaknesses planted one at a time: what keeps a rule is seen to fail where nobody keeps it.

mod common;
use common::users::*;
use common::*;
use willow_device::RpcOutcome;
use willow_device::testing::{Hole, plant};

const REFUSED: (RpcOutcome, u32) = (RpcOutcome::Answered { status: 0 }, PERMISSION);

/// Rules that are broken in a device with that weakness.
fn broken(hole: Option<Hole>) -> Vec<&'static str> {
    let mut users = Users::new(config(2));
    let (alice, bob) = (users.user(1000), users.user(1001));
    let mover = users.mover;
    let calls = users.install_for(alice.hre, &app("calls", &caller(1), "public=*\\n")).expect("an app");
    let closed = users.rig.install(&app("closed", MOVER, "kernel=2\\n")).expect("an app");
    let bobs = users.install_for(bob.hre, &app("bobs", MOVER, "")).expect("an app");
    users.grant(&bob, READ, 0, 512);
    users.grant(&alice, READ, 1024, 512);
    if let Some(hole) = hole {
        plant(&mut users.rig.device, hole);
    }
    let through = |users: &Users, callee: u16, start| {
        let mut arguments = users.arguments(start, 16, NV);
        arguments.extend(u32::from(callee).to_le_bytes());
        arguments
    };
    let call = |users: &mut Users, callee, start| {
        let arguments = through(users, callee, start);
        let done = users.rig.call_on(alice.hre, (calls, 1, 0), &arguments, &[], 0);
        (done.outcome, done.result)
    };
    let mut broken = Vec::new();
    let mut holds = |rule, holds: bool| broken.extend((!holds).then_some(rule));
    holds("nested: an app that is called has the first caller's rights", call(&mut users, mover, 0) == REFUSED);
    // A request of Bob's waits in the same app for what it reads; then Alice asks for the same bytes.
    users.valve.closed.set(true);
    let of_bob = through(&users, mover, 0);
    users.rig.begin(bob.hre, (calls, 1, 0), &of_bob, &[], 0);
    users.run();
    assert_eq!(users.valve.waiting(), 1, "Bob's read is under way");
    let of_alice = through(&users, mover, 0);
    users.rig.begin(alice.hre, (calls, 1, 0), &of_alice, &[], 0);
    users.run();
    users.valve.closed.set(false);
    users.rig.settle();
    let mut ended: Vec<_> = std::iter::from_fn(|| users.completion()).map(|done| (done.hre, done.result)).collect();
    ended.sort();
    let mut expected = [(alice.hre, PERMISSION), (bob.hre, 0)];
    expected.sort();
    let is_nested_kept = hole != Some(Hole::ForgetsOrigin);
    holds("asynchronous: each message is its own request's", !is_nested_kept || ended == expected);
    let privileged = [
        call(&mut users, closed, 1024) == REFUSED,
        users.write(alice.hre, closed, 1024, &[1; 4]).0 == RpcOutcome::NotPermitted,
        users.read(alice.hre, bobs, 1024, 4).0 == RpcOutcome::NotPermitted,
    ];
    holds("privileged: handlers of the kernel's, and others' apps, are not called", privileged == [true; 3]);
    assert_eq!(users.read(alice.hre, mover, 1024, 16).1, 0, "it is permitted");
    users.revoke(&alice, READ, 1024, 512);
    let held = users.read(alice.hre, mover, 1024, 16);
    holds("held: what is revoked is not permitted", (held.0, held.1) == REFUSED);
    // What Bob may on SPU 0 he may not on SPU 1.
    let arguments = users.arguments(0, 16, NV);
    let elsewhere = users.rig.call_on(bob.hre, (mover, 1, 1), &arguments, &[], 16);
    holds("SPUs: each has permissions of its own", (elsewhere.outcome, elsewhere.result) == REFUSED);
    broken.extend(broken_messages(hole));
    broken
}

/// Handler 1 keeps the request that it is asked by, and does not answer. 2 answers the request that was kept first, with 66, and then its own with what that came
/// to. 3 answers the kept one with 1, if it is there. 4 tells the endpoint in its arguments, and answers with what comes back or the error; 5 tells whoever asks.
const KEEPER: &str = r#"(global $kept (mut i32) (i32.const 0)) (global $first (mut i32) (i32.const 0))
    (func $start (param i32 i32) (result i32) (local $code i32)
        (if (i32.eqz (local.get 1)) (then (call $respond (local.get 0) (i32.const 0) (i32.const 0)) (return (i32.const 0))))
        (if (i32.eq (local.get 1) (i32.const 1)) (then
            (global.set $kept (local.get 0))
            (if (i32.eqz (global.get $first)) (then (global.set $first (local.get 0))))
            (return (i32.const 0))))
        (if (i32.eq (local.get 1) (i32.const 2)) (then
            (call $respond (global.get $first) (i32.const 0) (i32.const 66))
            (call $respond (local.get 0) (i32.const 0) (i32.const 2)) (return (i32.const 0))))
        (if (i32.eq (local.get 1) (i32.const 3)) (then
            (call $respond (global.get $kept) (i32.const 0) (i32.const 1))
            (call $respond (local.get 0) (i32.const 0) (i32.const 3)) (return (i32.const 0))))
        (if (i32.eq (local.get 1) (i32.const 4))
            (then
                (drop (call $receive_bytes (local.get 0) (i32.const 0) (i32.const 4)))
                (local.set $code (call $upcall_start (local.get 0) (i32.load (i32.const 0)) (i32.const 9) (i32.const 4))))
            (else (local.set $code
                (call $rpc_start (local.get 0) (i32.const -1) (i32.const -1) (i32.const 9) (i32.const 4) (i32.const 0) (i32.const 0)))))
        (if (i32.lt_s (local.get $code) (i32.const 0)) (then
            (call $respond (local.get 0) (i32.const 0) (local.get $code)) (return (i32.const 0))))
        (drop (call $rpc_append (local.get $code) (i32.const 0) (i64.const 0) (i32.const 4)))
        (drop (call $rpc_finish (local.get $code) (local.get 0)))
        (i32.const 0))
    (func $complete (param i32 i64) (call $respond (local.get 0) (i32.const 0) (i32.wrap_i64 (local.get 1))))"#;

/// The same of what messages and answers say of themselves.
fn broken_messages(hole: Option<Hole>) -> Vec<&'static str> {
    let mut users = Users::new(config(1));
    let (alice, bob) = (users.user(1000), users.user(1001));
    let handlers = "public=*\\nhandler=5:five\\n";
    let keeper = users.rig.install(&app("keeper", KEEPER, handlers)).expect("an app");
    if let Some(hole) = hole {
        plant(&mut users.rig.device, hole);
    }
    let mut broken = Vec::new();
    let mut holds = |rule, holds: bool| broken.extend((!holds).then_some(rule));
    // An app tells an endpoint that has subscribed to nothing.
    users.rig.begin(bob.hre, (keeper, 4, 0), &alice.hre.0.to_le_bytes(), &[], 0);
    users.run();
    let told = users.rig.device.upcall(alice.hre);
    let refused = users.completion().map(|done| done.result);
    holds("receiver: an app tells who asked, or has subscribed", told.is_none() && refused == Some(PERMISSION));
    // Alice is told by what she asked for; Bob answers in her place.
    users.rig.begin(alice.hre, (keeper, 5, 0), &[], &[], 0);
    users.run();
    let upcall = users.rig.device.upcall(alice.hre).expect("she is told");
    let believed = users.rig.device.answer_upcall(bob.hre, upcall.id, 0, 666);
    users.run();
    let ended = users.completion().map(|done| done.result);
    holds("answer: an upcall is answered by whom it was for", !believed && ended.is_none());
    users.rig.device.answer_upcall(alice.hre, upcall.id, 0, 1);
    users.rig.settle();
    while users.completion().is_some() {}
    // The number of Bob's request, which has ended, is used again when Alice's has its place.
    users.rig.begin(bob.hre, (keeper, 1, 0), &[], &[], 0);
    users.run();
    assert_eq!(users.rig.call_on(bob.hre, (keeper, 3, 0), &[], &[], 0).outcome, RpcOutcome::Answered { status: 0 });
    users.rig.settle();
    while users.completion().is_some() {}
    let mut answered = Vec::new();
    for _ in 0..4 {
        users.rig.begin(alice.hre, (keeper, 1, 0), &[], &[], 0);
        users.run();
    }
    users.rig.begin(bob.hre, (keeper, 2, 0), &[], &[], 0);
    users.rig.settle();
    answered.extend(std::iter::from_fn(|| users.completion()).map(|done| (done.hre, done.result)));
    holds("number: that of a request that has ended names no other", answered == [(bob.hre, 2)]);
    broken
}

#[test]
fn rules_of_rights_hold_and_each_planted_weakness_breaks_its_own() {
    assert_eq!(broken(None), [""; 0]);
    for (hole, rule) in [
        (Hole::ForgetsOrigin, "nested"),
        (Hole::MixesOrigins, "asynchronous"),
        (Hole::AdmitsAll, "privileged"),
        (Hole::KeepsRights, "held"),
        (Hole::SharesPermissions, "SPUs"),
        (Hole::TellsAnybody, "receiver"),
        (Hole::BelievesAnswers, "answer"),
        (Hole::ReusesNumbers, "number"),
    ] {
        let broken = broken(Some(hole));
        assert!(broken.len() == 1 && broken[0].starts_with(rule), "{hole:?}: {broken:?}");
    }
}
