//! Upcalls to endpoints that have subscribed to them.

mod common;
use common::users::*;
use common::*;
use willow_device::testing::tables;
use willow_device::{HreId, RpcOutcome, control};

const ANSWERED: RpcOutcome = RpcOutcome::Answered { status: 0 };
const PERMISSION_CODE: u32 = -4i32 as u32;
const ENDED: u32 = -8i32 as u32;

/// Arguments: u32 kind, u32 HRE. 1: tells that endpoint, and answers with its result or the error. 2: who has subscribed to the kind, behind the HRE: ids in
/// the reply. 3: as 1, but the message is begun, and sent by the next request for 4.
const TELLER: &str = r#"
    (func $start (param $token i32) (param $handler i32) (result i32) (local $code i32)
        (if (i32.eqz (local.get $handler)) (then (call $respond (local.get $token) (i32.const 0) (i32.const 0)) (return (i32.const 0))))
        (drop (call $receive_bytes (local.get $token) (i32.const 0) (i32.const 8)))
        (if (i32.eq (local.get $handler) (i32.const 2)) (then
            (local.set $code (call $subscribers (i32.load (i32.const 0)) (i32.load (i32.const 4)) (i32.const 512) (i32.const 8)))
            (if (i32.ge_s (local.get $code) (i32.const 0)) (then
                (drop (call $dma (local.get $token) (i32.const 0) (i64.const 512) (i32.const 2) (i64.const 0)
                    (i32.mul (local.get $code) (i32.const 4)) (i32.const 0)))))
            (call $respond (local.get $token) (i32.const 0) (local.get $code)) (return (i32.const 0))))
        (if (i32.eq (local.get $handler) (i32.const 4)) (then
            (local.set $code (call $rpc_finish (i32.load (i32.const 64)) (i32.load (i32.const 68))))
            (call $respond (local.get $token) (i32.const 0) (local.get $code)) (return (i32.const 0))))
        (local.set $code (call $upcall_start (local.get $token) (i32.load (i32.const 4)) (i32.load (i32.const 0)) (i32.const 4)))
        (if (i32.lt_s (local.get $code) (i32.const 0)) (then
            (call $respond (local.get $token) (i32.const 0) (local.get $code)) (return (i32.const 0))))
        (i32.store (i32.const 64) (local.get $code))
        (i32.store (i32.const 68) (local.get $token))
        (drop (call $rpc_append (local.get $code) (i32.const 0) (i64.const 0) (i32.const 4)))
        (if (i32.eq (local.get $handler) (i32.const 1)) (then
            (drop (call $rpc_finish (local.get $code) (local.get $token)))))
        (i32.const 0))
    (func $complete (param $token i32) (param $result i64)
        (call $respond (local.get $token) (i32.const 0) (i32.wrap_i64 (local.get $result))))"#;

fn teller(name: &str, lines: &str) -> Vec<u8> {
    app(name, TELLER, lines)
}

fn words(a: u32, b: u32) -> Vec<u8> {
    [a.to_le_bytes(), b.to_le_bytes()].concat()
}

fn subscribe(users: &mut Users, hre: HreId, handler: u8, app: u32, kind: u32) -> RpcOutcome {
    users.rig.call_on(hre, (control::CONTROL_APP, handler, 0), &words(app, kind), &[], 0).outcome
}

fn subscribers(users: &mut Users, hre: HreId, app: u16, kind: u32, after: u32) -> Vec<u32> {
    let done = users.rig.call_on(hre, (app, 2, 0), &words(kind, after), &[], 64);
    assert_eq!(done.outcome, ANSWERED);
    done.buffer[..done.result as usize * 4].as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect()
}

#[test]
fn an_endpoint_gets_what_it_has_subscribed_to_and_nothing_else() {
    let mut users = Users::new(config(2));
    let kernel = users.rig.hre;
    let (alice, bob) = (users.user(1000), users.user(1001));
    let public = users.rig.install(&teller("teller", "public=*\\n")).expect("an app");
    let tell = |users: &mut Users, from: HreId, kind: u32, to: HreId| {
        users.rig.begin(from, (public, 1, 0), &words(kind, to.0), &[], 0);
        users.rig.settle();
        users.rig.device.completion().map(|done| done.result)
    };
    assert_eq!(tell(&mut users, bob.hre, 3, alice.hre), Some(PERMISSION_CODE), "nobody has subscribed");
    assert_eq!(subscribe(&mut users, alice.hre, control::SUBSCRIBE, public.into(), 3), ANSWERED);
    assert_eq!(subscribe(&mut users, kernel, control::SUBSCRIBE, public.into(), 0), ANSWERED);
    assert_eq!(subscribers(&mut users, bob.hre, public, 3, 0), [kernel.0, alice.hre.0]);
    assert_eq!(subscribers(&mut users, bob.hre, public, 3, kernel.0), [alice.hre.0]);
    assert_eq!(subscribers(&mut users, bob.hre, public, 4, 0), [kernel.0]);
    assert_eq!(tell(&mut users, bob.hre, 4, alice.hre), Some(PERMISSION_CODE), "another kind");
    assert_eq!(tell(&mut users, alice.hre, 3, bob.hre), Some(PERMISSION_CODE), "another endpoint");
    // Bob's request has the app tell alice, and hers is the answer.
    assert_eq!(tell(&mut users, bob.hre, 3, alice.hre), None);
    assert!(users.rig.device.upcall(bob.hre).is_none() && users.rig.device.upcall(kernel).is_none());
    let upcall = users.rig.device.upcall(alice.hre).expect("she is told");
    assert_eq!((upcall.app, upcall.handler, &upcall.body[..]), (public, 3, &3u32.to_le_bytes()[..]));
    assert!(!users.rig.device.answer_upcall(bob.hre, upcall.id, 0, 1), "it is not his to answer");
    assert!(users.rig.device.answer_upcall(alice.hre, upcall.id, 0, 77));
    users.rig.settle();
    assert_eq!(users.rig.device.completion().map(|done| done.result), Some(77));
    // One that has taken it back meanwhile is not told.
    users.rig.begin(bob.hre, (public, 3, 0), &words(3, alice.hre.0), &[], 0);
    users.rig.settle();
    assert_eq!(subscribe(&mut users, alice.hre, control::UNSUBSCRIBE, public.into(), 3), ANSWERED);
    assert_eq!(users.rig.call_on(bob.hre, (public, 4, 0), &words(0, 0), &[], 0).result, 1);
    users.rig.settle();
    assert_eq!(users.rig.device.completion().map(|done| done.result), Some(ENDED));
    assert_eq!(
        subscribe(&mut users, alice.hre, control::UNSUBSCRIBE, public.into(), 3),
        RpcOutcome::Answered { status: control::ControlStatus::NotFound as u32 }
    );
    assert_eq!(tables(&users.rig.device).subscriptions, 1);
    assert_eq!(tables(&users.rig.device).upcalls, 0);
}

#[test]
fn who_may_subscribe_and_what_a_subscription_goes_with() {
    let mut users = Users::new(config(1));
    let kernel = users.rig.hre;
    let (alice, bob) = (users.user(1000), users.user(1001));
    let own = users.install_for(alice.hre, &teller("own", "")).expect("an app");
    let internal = users.rig.install(&teller("internal", "")).expect("an app");
    let not_found = RpcOutcome::Answered { status: control::ControlStatus::NotFound as u32 };
    let malformed = RpcOutcome::Answered { status: control::ControlStatus::Malformed as u32 };
    for (hre, app, outcome) in [
        (alice.hre, u32::from(own), ANSWERED),
        (bob.hre, own.into(), not_found),
        (bob.hre, internal.into(), not_found),
        (kernel, internal.into(), ANSWERED),
        (kernel, own.into(), ANSWERED),
        (alice.hre, 60_000, not_found),
        (alice.hre, u32::MAX, not_found),
    ] {
        assert_eq!(subscribe(&mut users, hre, control::SUBSCRIBE, app, 1), outcome, "{hre:?} {app}");
    }
    assert_eq!(subscribe(&mut users, kernel, control::SUBSCRIBE, own.into(), 256), malformed);
    let wild = users.rig.call_on(kernel, (control::CONTROL_APP, control::SUBSCRIBE, 0), &[1; 7], &[], 0);
    assert_eq!(wild.outcome, malformed);
    assert_eq!(tables(&users.rig.device).subscriptions, 3);
    // It stays when the app is replaced, and goes with the endpoint, the process or the app.
    assert_eq!(users.install_for(alice.hre, &teller("own", "")), Ok(own));
    assert_eq!(subscribers(&mut users, alice.hre, own, 1, 0), [kernel.0, alice.hre.0]);
    users.rig.device.close_process(alice.process);
    assert_eq!(subscribers(&mut users, kernel, own, 1, 0), [kernel.0]);
    let removed = users.rig.call(control::CONTROL_APP, control::REMOVE, 0, &[], b"internal", 0);
    assert_eq!(removed.outcome, ANSWERED);
    assert_eq!(tables(&users.rig.device).subscriptions, 1);
}

#[test]
fn who_subscribes_to_all_there_is_leaves_places_for_others() {
    let mut users = Users::new(config(1));
    let public = users.rig.install(&teller("teller", "public=*\\n")).expect("an app");
    let mallory = users.user(6666);
    let mut refused = false;
    let mut endpoints = vec![mallory.hre];
    for _ in 0..6000 {
        let hre = *endpoints.last().expect("one");
        if subscribe(&mut users, hre, control::SUBSCRIBE, public.into(), 1) != ANSWERED {
            refused = true;
            break;
        }
        let Some(next) = users.rig.device.open_hre(Some(mallory.process)) else { break };
        endpoints.push(next);
    }
    assert!(refused, "{} are too many", endpoints.len());
    let alice = users.user(1000);
    assert_eq!(subscribe(&mut users, alice.hre, control::SUBSCRIBE, public.into(), 1), ANSWERED);
}
