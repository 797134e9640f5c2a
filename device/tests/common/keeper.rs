//! An app that keeps 8 bytes, and what the tests of transactions and upgrades do with it.

use super::{Rig, module};

/// Answers handler 1 with `version`; handler 2 writes the first 8 payload bytes into region 1, handler 3 reads them back; handler 4
/// counts in memory. `extra` is more functions, `started` what it does when it is told that it is up.
pub fn keeper(version: u32, started: &str, extra: &str) -> Vec<u8> {
    module(
        "keeper",
        &format!(
            r#"
    (func $start (param i32 i32) (result i32) (local i64)
        (if (i32.eqz (local.get 1)) (then
            (drop (call $receive_bytes (local.get 0) (i32.const 64) (i32.const 4)))
            (if (i32.eq (i32.load (i32.const 64)) (i32.const 4)) (then {started}))
            (call $respond (local.get 0) (i32.const 0) (i32.const 0)) (return (i32.const 0))))
        (if (i32.eq (local.get 1) (i32.const 1))
            (then (call $respond (local.get 0) (i32.const 0) (i32.const {version})) (return (i32.const 0))))
        (if (i32.eq (local.get 1) (i32.const 4)) (then
            (i32.store (i32.const 128) (i32.add (i32.load (i32.const 128)) (i32.const 1)))
            (call $respond (local.get 0) (i32.const 0) (i32.load (i32.const 128))) (return (i32.const 0))))
        (i32.store (i32.const 0) (local.get 0))
        (i32.store (i32.const 4) (local.get 1))
        (i32.store (i32.const 8) (i32.const 0))
        (local.set 2 (call $region (i32.const 1) (i64.const 65536) (i32.const 3)))
        (if (i64.ne (local.get 2) (i64.const -1)) (then (call $go (local.get 2))))
        (i32.const 0))
    (func $go (param i64) (local i32)
        (if (i64.lt_s (local.get 0) (i64.const 0))
            (then (call $respond (i32.load (i32.const 0)) (i32.const 9) (i32.wrap_i64 (local.get 0))) (return)))
        (i32.store (i32.const 8) (i32.const 1))
        (if (i32.eq (i32.load (i32.const 4)) (i32.const 2))
            (then (local.set 1 (call $dma (i32.load (i32.const 0)) (i32.const 2) (i64.const 0) (i32.const 1) (local.get 0) (i32.const 8) (i32.const 0))))
            (else (local.set 1 (call $dma (i32.load (i32.const 0)) (i32.const 1) (local.get 0) (i32.const 2) (i64.const 0) (i32.const 8) (i32.const 0)))))
        (if (i32.ne (local.get 1) (i32.const 1)) (then (call $finish (local.get 1)))))
    (func $finish (param i32)
        (call $respond (i32.load (i32.const 0)) (i32.const 0) (local.get 0)))
    (func $complete (param i32 i64)
        (if (i32.eqz (i32.load (i32.const 8))) (then (call $go (local.get 1)) (return)))
        (call $finish (i32.wrap_i64 (local.get 1))))
    {extra}"#
        ),
    )
}

/// Sends some requests to SPU 0.
pub fn begin(rig: &mut Rig, app: u16, handler: u8, count: usize) {
    for _ in 0..count {
        rig.begin(rig.hre, (app, handler, 0), &[], &[], 0);
    }
}
