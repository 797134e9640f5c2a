//! Revocations: what was allowed before, and is under way when they come.

mod common;
use common::users::*;
use common::*;
use willow_device::{RpcOutcome, control};

#[test]
fn a_revocation_waits_for_what_is_under_way() {
    // To the reply, from the body, to local memory and from there.
    for handler in [1, 2, 3, 4] {
        let mut users = Users::new(config(1));
        let alice = users.user(1000);
        let (kernel, mover) = (users.rig.hre, users.mover);
        users.grant(&alice, READ | WRITE, 0, 4096);
        users.valve.closed.set(true);
        let arguments = users.arguments(0, 16, NV);
        let (payload, reply): (&[u8], u32) = if handler % 2 == 0 { (&[8; 16], 0) } else { (&[], 16) };
        users.rig.begin(alice.hre, (mover, handler, 0), &arguments, payload, reply);
        users.run();
        assert_eq!(users.valve.waiting(), 1);
        let body = Users::extents(alice.process, &[(0, READ | WRITE, users.base, 4096)]);
        users.rig.begin(kernel, (control::CONTROL_APP, control::REVOKE, 0), &[], &body, 0);
        users.run();
        users.run();
        assert!(users.completion().is_none(), "answered while a DMA is under way");
        // A DMA that begins now is refused; the revocation still waits for the old one.
        users.rig.begin(alice.hre, (mover, handler, 0), &arguments, payload, reply);
        users.run();
        assert_eq!(users.completion().unwrap().result, PERMISSION);
        users.valve.closed.set(false);
        users.rig.settle();
        let ended: Vec<_> = std::iter::from_fn(|| users.completion()).collect();
        let mut ended: Vec<_> = ended.iter().map(|done| (done.hre, done.result)).collect();
        ended.sort();
        assert_eq!(ended, [(kernel, 0), (alice.hre, 0)]);
    }
}

/// Handler 1 copies NV memory: inline arguments u64 from, u64 to, u32 bytes.
const COPIER: &str = r#"
    (func $start (param i32 i32) (result i32) (local $code i32)
        (if (i32.eqz (local.get 1)) (then (call $respond (local.get 0) (i32.const 0) (i32.const 0)) (return (i32.const 0))))
        (drop (call $receive_bytes (local.get 0) (i32.const 0) (i32.const 20)))
        (local.set $code (call $dma (local.get 0) (i32.const 1) (i64.load (i32.const 0)) (i32.const 1) (i64.load (i32.const 8)) (i32.load (i32.const 16)) (local.get 0)))
        (if (i32.ne (local.get $code) (i32.const 1)) (then (call $respond (local.get 0) (i32.const 0) (local.get $code))))
        (i32.const 0))
    (func $complete (param i32 i64)
        (call $respond (local.get 0) (i32.const 0) (i32.wrap_i64 (local.get 1))))"#;

#[test]
fn a_copy_within_nv_memory_that_was_read_before_a_revocation_is_not_written_after_it() {
    let mut users = Users::new(config(1));
    let alice = users.user(1000);
    let kernel = users.rig.hre;
    users.grant(&alice, READ | WRITE, 0, 8192);
    let copier = users.install_for(alice.hre, &app("copier", COPIER, "")).expect("an app");
    assert_eq!(users.write(alice.hre, users.mover, 0, &[5; 512]).1, 0);
    let arguments = [(users.base).to_le_bytes(), (users.base + 4096).to_le_bytes(), 512u64.to_le_bytes()].concat();
    users.valve.closed.set(true);
    users.rig.begin(alice.hre, (copier, 1, 0), &arguments[..20], &[], 0);
    users.run();
    assert_eq!(users.valve.waiting(), 1, "the copy is being read");
    let body = Users::extents(alice.process, &[(0, READ | WRITE, users.base, 8192)]);
    users.rig.begin(kernel, (control::CONTROL_APP, control::REVOKE, 0), &[], &body, 0);
    users.run();
    users.run();
    assert!(users.completion().is_none(), "answered while a copy is under way");
    users.valve.closed.set(false);
    users.rig.settle();
    let mut ended: Vec<_> = std::iter::from_fn(|| users.completion()).map(|done| (done.hre, done.result)).collect();
    ended.sort();
    assert_eq!(ended, [(kernel, 0), (alice.hre, PERMISSION)]);
    assert_eq!(users.read(kernel, users.mover, 4096, 512), (RpcOutcome::Answered { status: 0 }, 0, vec![0; 512]));
}
