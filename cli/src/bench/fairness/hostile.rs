//! The apps that are hostile, each in its way, to whoever else uses the device.

use crate::failure::{Context, Outcome};

/// The app that loops: handler 1 counts down from its argument.
pub const LOOPER: &str = r#"(module
    (import "willow" "receive_bytes" (func $receive_bytes (param i32 i32 i32) (result i32)))
    (import "willow" "respond" (func $respond (param i32 i32 i32)))
    (memory (export "memory") 1)
    (func (export "start") (param i32 i32) (result i32) (local $left i32)
        (if (local.get 1) (then
            (drop (call $receive_bytes (local.get 0) (i32.const 0) (i32.const 4)))
            (local.set $left (i32.load (i32.const 0)))
            (loop $again
                (br_if $again (local.tee $left (i32.sub (local.get $left) (i32.const 1)))))))
        (call $respond (local.get 0) (i32.const 0) (i32.const 0))
        (i32.const 0))
    (func (export "complete") (param i32 i64))
    (@custom "willow.app" "abi=2\nname=looper\nversion=1\nhandler=1:loop\n"))"#;

/// What a hostile app does in each of its handlers, and how often in a run: as often as the budget of a user's app covers, where no number is
/// said, since what is past that ends the app. (A number where the run causes others, whose work would be taken for its own.)
pub const HOSTILE: &[(&str, &str, Option<u32>)] = &[
    (
        "strided",
        "(drop (call $dma_strided (local.get 0) (i32.const 3) (i64.const 0) (i64.const 1) (i32.const 0) (i64.const 64) (i64.const 1) (i32.const 1) (i32.const 2000) (i32.const 0)))",
        None,
    ),
    (
        "empty_segments",
        "(drop (call $dma_strided (local.get 0) (i32.const 3) (i64.const 0) (i64.const 1) (i32.const 0) (i64.const 64) (i64.const 1) (i32.const 0) (i32.const -1) (i32.const 0)))",
        None,
    ),
    ("receive", "(drop (call $receive_bytes_at (local.get 0) (i32.const 0) (i32.const 64) (i32.const 4)))", None),
    ("print", "(call $print (i32.const 64) (i32.const 4096))", None),
    (
        "upcalls",
        "(drop (call $rpc_finish (call $rpc_start (local.get 0) (i32.const -1) (i32.const -1) (i32.const 9) (i32.const 0) (i32.const 0) (i32.const 0)) (i32.const 1)))",
        Some(300),
    ),
    ("tables", "(drop (table.grow $table (ref.null func) (i32.const 100)))", Some(600)),
    ("growing", "(drop (memory.grow (i32.const 0)))", None),
    ("divisions", "(global.set $x (i64.div_u (i64.const -1) (i64.or (global.get $x) (i64.const 1))))", None),
    ("roots", "(global.set $f (f64.sqrt (f64.sqrt (f64.sqrt (f64.add (global.get $f) (f64.const 3))))))", None),
    // DMAs of a page that nobody waits for, each as long as the run may have it.
    (
        "dmas_of_pages",
        "(drop (call $dma (local.get 0) (i32.const 3) (i64.const 0) (i32.const 0) (i64.const 65536) (i32.const 65536) (i32.const 1)))",
        None,
    ),
    // Loads from all over its memory, each from where the one before says.
    (
        "scattered",
        "(global.set $p (i32.add (i32.load (i32.and (i32.shr_u (global.get $p) (i32.const 8)) (i32.const 0xdffc0)))
            (i32.add (i32.mul (global.get $p) (i32.const 1103515245)) (i32.const 12345))))",
        None,
    ),
    (
        "dmas_unawaited",
        "(drop (call $dma (local.get 0) (i32.const 3) (i64.const 0) (i32.const 0) (i64.const 64) (i32.const 64) (i32.const 1)))",
        None,
    ),
    (
        "checksums",
        "(drop (call $checksum (local.get 0) (i32.const 0) (i64.const 0) (i32.const 16384) (i32.const 0) (i32.const 1)))",
        None,
    ),
    (
        "searches",
        "(if (i32.eqz (global.get $set)) (then (i32.store8 (i32.const 16) (i32.const 1)) (i32.store8 (i32.const 20) (i32.const 120))
            (global.set $set (call $literals_load (i32.const 16) (i32.const 5) (i32.const 0)))))
        (drop (call $literals_find (local.get 0) (global.get $set) (i32.const 0) (i64.const 1024) (i32.const 32768) (i32.const 0)
            (i32.const 64) (i32.const 4) (i32.const 1)))",
        None,
    ),
    ("sleeps", "(drop (call $sleep (i64.const 1000) (i32.const 1)))", Some(500)),
    ("background", "(drop (call $background (i32.const 1) (i64.const 0)))", Some(500)),
    (
        "messages",
        "(drop (call $rpc_finish (call $rpc_start (local.get 0) (i32.const 1) (i32.const -1) (i32.const 1) (i32.const 0) (i32.const 0) (i32.const 0)) (i32.const 1)))",
        Some(250),
    ),
    ("flushes", "(drop (call $flush (i32.const 1)))", Some(15)),
];

/// The hostile app: handler N does the Nth of [`HOSTILE`], so often as its argument says.
pub fn hostile_module() -> Outcome<Vec<u8>> {
    let (mut cases, mut handlers) = (String::new(), String::new());
    for ((name, body, _), number) in HOSTILE.iter().zip(1..) {
        cases += &format!(
            "(if (i32.eq (local.get 1) (i32.const {number})) (then (loop $again {body}
                (br_if $again (local.tee $left (i32.sub (local.get $left) (i32.const 1)))))))\n"
        );
        handlers += &format!("handler={number}:{}\\n", name.replace('_', "-"));
    }
    let text = format!(
        r#"(module
        (import "willow" "receive_bytes_at" (func $receive_bytes_at (param i32 i32 i32 i32) (result i32)))
        (import "willow" "respond" (func $respond (param i32 i32 i32)))
        (import "willow" "dma" (func $dma (param i32 i32 i64 i32 i64 i32 i32) (result i32)))
        (import "willow" "dma_strided" (func $dma_strided (param i32 i32 i64 i64 i32 i64 i64 i32 i32 i32) (result i32)))
        (import "willow" "rpc_start" (func $rpc_start (param i32 i32 i32 i32 i32 i32 i32) (result i32)))
        (import "willow" "rpc_finish" (func $rpc_finish (param i32 i32) (result i32)))
        (import "willow" "print" (func $print (param i32 i32)))
        (import "willow" "checksum" (func $checksum (param i32 i32 i64 i32 i32 i32) (result i32)))
        (import "willow" "literals_load" (func $literals_load (param i32 i32 i32) (result i32)))
        (import "willow" "literals_find" (func $literals_find (param i32 i32 i32 i64 i32 i32 i32 i32 i32) (result i32)))
        (import "willow" "sleep" (func $sleep (param i64 i32) (result i32)))
        (import "willow" "background" (func $background (param i32 i64) (result i32)))
        (import "willow" "flush" (func $flush (param i32) (result i32)))
        (memory (export "memory") 15) (table $table 1 funcref) (global $set (mut i32) (i32.const 0))
        (global $x (mut i64) (i64.const 3)) (global $f (mut f64) (f64.const 3)) (global $p (mut i32) (i32.const 1))
        (func (export "start") (param i32 i32) (result i32) (local $left i32)
            (i32.store (i32.const 0) (i32.const 0))
            (drop (call $receive_bytes_at (local.get 0) (i32.const 0) (i32.const 0) (i32.const 4)))
            (local.set $left (i32.load (i32.const 0)))
            ;; Events, and what the app has asked itself for.
            (if (i32.eqz (local.get $left)) (then
                (call $respond (local.get 0) (i32.const 0) (i32.const 0))
                (return (i32.const 0))))
            {cases}
            (call $respond (local.get 0) (i32.const 0) (i32.const 0))
            (i32.const 0))
        (func (export "complete") (param i32 i64))
        (@custom "willow.app" "abi=2\nname=hostile\nversion=1\n{handlers}"))"#
    );
    wat::parse_str(text).context(|| "the hostile app".to_owned())
}

/// Chasing apps that a user installs: with [`LINES`] of 64 bytes on each SPU, more than a processor's caches hold.
pub const CHASERS: usize = 5;
/// Cache lines that a chase goes through: nearly all of an app's memory.
const LINES: u32 = 15 * 1024;
/// Loads of a round.
const LOADS: usize = 16;

/// An app that follows pointers, each to somewhere else in its memory: handler 1 does so as often as its argument says. The first run on an SPU makes
/// the memory ready instead.
pub fn chaser_module(number: usize) -> Outcome<Vec<u8>> {
    let chain = (0..LOADS).fold("(local.get $p)".to_owned(), |chain, _| format!("(i32.load {chain})"));
    let text = format!(
        r#"(module
        (import "willow" "receive_bytes_at" (func $receive_bytes_at (param i32 i32 i32 i32) (result i32)))
        (import "willow" "respond" (func $respond (param i32 i32 i32)))
        (memory (export "memory") 16) (global $is_ready (mut i32) (i32.const 0))
        (func $prepare (local $line i32)
            (loop $again
                (i32.store (i32.shl (local.get $line) (i32.const 6))
                    (i32.shl (i32.rem_u (i32.add (local.get $line) (i32.const 7919)) (i32.const {LINES})) (i32.const 6)))
                (br_if $again (i32.lt_u (local.tee $line (i32.add (local.get $line) (i32.const 1))) (i32.const {LINES}))))
            (global.set $is_ready (i32.const 1)))
        (func (export "start") (param i32 i32) (result i32) (local $left i32) (local $p i32)
            (if (i32.eqz (global.get $is_ready)) (then (call $prepare)
                (call $respond (local.get 0) (i32.const 0) (i32.const 0)) (return (i32.const 0))))
            (i32.store (i32.const 1048000) (i32.const 0))
            (drop (call $receive_bytes_at (local.get 0) (i32.const 0) (i32.const 1048000) (i32.const 4)))
            (local.set $left (i32.load (i32.const 1048000)))
            (if (local.get $left) (then (loop $again
                (local.set $p {chain})
                (br_if $again (local.tee $left (i32.sub (local.get $left) (i32.const 1)))))))
            (call $respond (local.get 0) (i32.const 0) (local.get $p))
            (i32.const 0))
        (func (export "complete") (param i32 i64))
        (@custom "willow.app" "abi=2\nname=chaser-{number}\nversion=1\nhandler=1:chase\n"))"#
    );
    wat::parse_str(text).context(|| "an app that follows pointers".to_owned())
}
