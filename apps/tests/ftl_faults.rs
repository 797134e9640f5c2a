//! FTLs that go wrong, and what others can ask of one: no other SPU's data suffers, and the device goes on.

mod support;

use support::{ANSWERED, BLOCK, Drive, Ftl, SPUS, rpc, tiny};
use willow_device::RpcOutcome;

fn block(byte: u8) -> Vec<u8> {
    vec![byte; BLOCK]
}

#[test]
fn the_tests_ftl_keeps_what_it_is_given() {
    let mut drive = Drive::new(Ftl::Tiny(tiny::honest()));
    for number in 0..40 {
        drive.write(number * 3, &block(number as u8 + 1));
    }
    drive.zero(9, 1);
    drive.flush();
    for number in 0..40 {
        let expected = if number == 3 { 0 } else { number as u8 + 1 };
        assert!(drive.read(number * 3, 1) == block(expected), "block {}", number * 3);
    }
}

/// The four handlers are SPU-OS' alone: a host, or another app, would reach bytes of others by their peers, and answer for them.
#[test]
fn nobody_but_spu_os_calls_an_ftls_handlers() {
    for ftl in [Ftl::Page, Ftl::Tiny(tiny::honest())] {
        let mut drive = Drive::new(ftl);
        drive.write(0, &block(1));
        let number = drive.device.app_number(drive.ftl_name()).expect("the FTL");
        for handler in 250..=253 {
            for spu in 0..SPUS {
                let mut arguments = [0; 24];
                arguments[0..4].copy_from_slice(&0x1_0000_u32.to_le_bytes());
                arguments[16..24].copy_from_slice(&4096_u64.to_le_bytes());
                let done = drive.call(rpc((number, handler, spu), &arguments), &[], 0);
                assert_eq!(done.outcome, RpcOutcome::NotPermitted, "handler {handler} on SPU {spu}");
            }
        }
        // By way of an app that the kernel has installed.
        let caller = drive.install(&calling_app()).expect("an app like others");
        for handler in 250..=253_u32 {
            let words = [u32::from(number), handler, 0];
            let arguments: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            let done = drive.call(rpc((caller, 1, 0), &arguments), &[], 0);
            assert_eq!((done.outcome, done.result as i32), (ANSWERED, -4), "handler {handler} from another app");
        }
        assert!(drive.read(0, 1) == block(1));
    }
}

/// Handler 1 (u32 app, u32 handler, u32 SPU) asks that app with 24 bytes of arguments, and answers with what came of it.
fn calling_app() -> Vec<u8> {
    wat::parse_str(
        r#"(module
        (import "willow" "receive_bytes" (func $receive_bytes (param i32 i32 i32) (result i32)))
        (import "willow" "respond" (func $respond (param i32 i32 i32)))
        (import "willow" "rpc_start" (func $rpc_start (param i32 i32 i32 i32 i32 i32 i32) (result i32)))
        (import "willow" "rpc_append" (func $rpc_append (param i32 i32 i64 i32) (result i32)))
        (import "willow" "rpc_finish" (func $rpc_finish (param i32 i32) (result i32)))
        (memory (export "memory") 1)
        (func $start (param $token i32) (param $handler i32) (result i32) (local $handle i32) (local $code i32)
            (if (i32.eqz (local.get $handler)) (then
                (call $respond (local.get $token) (i32.const 0) (i32.const 0)) (return (i32.const 0))))
            (drop (call $receive_bytes (local.get $token) (i32.const 0) (i32.const 12)))
            (i32.store (i32.const 64) (i32.const 0x10000)) (i64.store (i32.const 80) (i64.const 4096))
            (local.set $handle (call $rpc_start (local.get $token) (i32.load (i32.const 8)) (i32.load (i32.const 0)) (i32.load (i32.const 4))
                (i32.const 24) (i32.const 1024) (i32.const 0)))
            (drop (call $rpc_append (local.get $handle) (i32.const 0) (i64.const 64) (i32.const 24)))
            (local.set $code (call $rpc_finish (local.get $handle) (local.get $token)))
            (if (i32.ne (local.get $code) (i32.const 1)) (then
                (call $respond (local.get $token) (i32.const 0) (local.get $code))))
            (i32.const 0))
        (func $complete (param $token i32) (param $result i64)
            (call $respond (local.get $token) (i32.const 0) (i32.wrap_i64 (local.get $result))))
        (export "start" (func $start)) (export "complete" (func $complete))
        (@custom "willow.app" "abi=2\nname=caller\nversion=1\nhandler=1:ask\n"))"#,
    )
    .expect("the app is well formed")
}
