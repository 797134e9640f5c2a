//! A tiny FTL in WebAssembly text, for devices whose FTL is to go wrong: each page that is written goes to the next page of the flash, with its
//! number in the spare area, and nothing is ever collected. At its start it reads the spare areas, so that it finds after an end of its own what
//! it had answered. What it does wrong is put in before each operation.

use willow_device::media::flash::{Cell, Geometry};

/// Its name.
pub const NAME: &str = "tiny";
/// The unit that it maps: one page.
pub const UNIT_BYTES: u64 = 4096;
/// Bytes of a bank.
pub const BANK_BYTES: u64 = 1 << 20;
/// Flash for it: some 4000 pages can be written before it is full.
pub const FLASH: Geometry = Geometry {
    channels: 1,
    packages_per_channel: 1,
    dies_per_package: 1,
    planes_per_die: 1,
    blocks_per_plane: 64,
    pages_per_block: 64,
    page_bytes: 4096,
    spare_bytes: 64,
    cell: Cell::Slc,
    spare_accessible: true,
    paired_distance: 0,
};

/// What it does before it looks at an operation: statements that may use the request's token (local 0) and handler (local 1), `$operations` (how
/// many there have been, this one included, since its start) and `$recovered` (how many pages it found at its start).
pub struct Hook<'a>(pub &'a str);

/// What it does when it starts, before it looks at the flash.
pub struct AtStart<'a>(pub &'a str);

/// As it should be.
pub fn honest() -> Vec<u8> {
    module(&Hook(""), &AtStart(""))
}

/// One that goes wrong at an operation.
pub fn that(hook: &str) -> Vec<u8> {
    module(&Hook(hook), &AtStart(""))
}

/// The module.
pub fn module(hook: &Hook<'_>, at_start: &AtStart<'_>) -> Vec<u8> {
    let (Hook(hook), AtStart(at_start)) = (hook, at_start);
    // Memory: 0 arguments, 64 a page's description, 96 its part, 128 its spare area, 144 a spare area that was read, 160 the geometry, 1024 what is
    // under way (u32 token, u32 parts left, u32 failed, u32 zero), 32768 the map.
    let text = format!(
        r#"(module
        (import "willow" "receive_bytes" (func $receive_bytes (param i32 i32 i32) (result i32)))
        (import "willow" "respond" (func $respond (param i32 i32 i32)))
        (import "willow" "print" (func $print (param i32 i32)))
        (import "willow" "flush" (func $flush (param i32) (result i32)))
        (import "willow" "region" (func $region (param i32 i64 i32) (result i64)))
        (import "willow" "dma" (func $dma (param i32 i32 i64 i32 i64 i32 i32) (result i32)))
        (import "willow" "rpc_start" (func $rpc_start (param i32 i32 i32 i32 i32 i32 i32) (result i32)))
        (import "willow" "spu_id" (func $spu_id (result i32)))
        (import "willow_flash" "flash_geometry" (func $flash_geometry (param i32) (result i32)))
        (import "willow_flash" "flash_read"
            (func $flash_read (param i32 i32 i32 i32 i32 i32 i64 i32 i32 i32) (result i32)))
        (import "willow_flash" "flash_program" (func $flash_program (param i32 i32 i32 i32) (result i32)))
        (import "willow_flash" "flash_erase" (func $flash_erase (param i32 i32 i32 i32) (result i32)))
        (import "willow_flash" "flash_read_map" (func $flash_read_map (param i32 i32 i32) (result i32)))
        (import "willow_flash" "flash_zero_peer" (func $flash_zero_peer (param i32 i64 i32) (result i32)))
        (memory (export "memory") 1)
        (global $next (mut i32) (i32.const 0))
        (global $operations (mut i32) (i32.const 0))
        (global $recovered (mut i32) (i32.const 0))
        (global $starter (mut i32) (i32.const 0))
        (global $last (mut i32) (i32.const 0))
        (global $pages (mut i32) (i32.const 1))

        (func $read (param $page i32) (param $bytes i32) (param $peer i32) (param $to i64) (param $spare_bytes i32) (param $wait i32) (result i32)
            (call $flash_read (i32.const 0) (i32.div_u (local.get $page) (global.get $pages)) (i32.rem_u (local.get $page) (global.get $pages))
                (i32.const 0) (local.get $bytes) (local.get $peer) (local.get $to) (i32.const 144) (local.get $spare_bytes) (local.get $wait)))

        ;; Programs the next page: of kind 1 from a peer, of kind 3 with zeroes.
        (func $program (param $kind i32) (param $word i32) (param $peer i32) (param $offset i64) (param $wait i32) (result i32)
            (i32.store (i32.const 64) (i32.div_u (global.get $next) (global.get $pages)))
            (i32.store (i32.const 68) (i32.rem_u (global.get $next) (global.get $pages)))
            (i64.store (i32.const 72) (i64.const 96))
            (i32.store (i32.const 80) (i32.const 1)) (i32.store (i32.const 84) (i32.const 8))
            (i64.store (i32.const 88) (i64.const 128))
            (i32.store (i32.const 96) (local.get $kind)) (i32.store (i32.const 100) (i32.const 4096))
            (i32.store (i32.const 104) (local.get $peer)) (i32.store (i32.const 108) (i32.const 0))
            (i64.store (i32.const 112) (local.get $offset))
            (i32.store (i32.const 128) (local.get $word)) (i32.store (i32.const 132) (i32.const 87))
            (global.set $next (i32.add (global.get $next) (i32.const 1)))
            (call $flash_program (i32.const 0) (i32.const 64) (i32.const 1) (local.get $wait)))

        (func $entry (param $unit i32) (result i32) (i32.add (i32.const 32768) (i32.shl (local.get $unit) (i32.const 2))))
        (func $context (param $slot i32) (result i32) (i32.add (i32.const 1024) (i32.shl (local.get $slot) (i32.const 4))))

        ;; Takes in what the next page's spare area says; 0 where there is no further page.
        (func $take (param $code i32) (result i32) (local $word i32)
            (if (i32.lt_s (local.get $code) (i32.const 0)) (then (unreachable)))
            (if (i32.eq (i32.and (local.get $code) (i32.const 255)) (i32.const 2)) (then
                (call $respond (global.get $starter) (i32.const 0) (i32.const 0)) (return (i32.const 0))))
            (if (i32.eqz (i32.and (local.get $code) (i32.const 255))) (then
                (local.set $word (i32.load (i32.const 144)))
                (i32.store (call $entry (i32.and (local.get $word) (i32.const 0x7fffffff)))
                    (select (i32.const -1) (global.get $next) (i32.lt_s (local.get $word) (i32.const 0))))
                (global.set $recovered (i32.add (global.get $recovered) (i32.const 1)))))
            (global.set $next (i32.add (global.get $next) (i32.const 1)))
            (i32.const 1))
        (func $recover (local $code i32)
            (loop $more
                (local.set $code (call $read (global.get $next) (i32.const 0) (i32.const 0) (i64.const 0) (i32.const 8) (i32.const 0xffff)))
                (if (i32.eq (local.get $code) (i32.const 1)) (then (return)))
                (br_if $more (call $take (local.get $code)))))

        (func $part_ended (param $slot i32) (param $failed i32) (local $at i32) (local $token i32)
            (local.set $at (call $context (local.get $slot)))
            (if (local.get $failed) (then (i32.store (i32.add (local.get $at) (i32.const 8)) (i32.const 1))))
            (i32.store (i32.add (local.get $at) (i32.const 4))
                (i32.sub (i32.load (i32.add (local.get $at) (i32.const 4))) (i32.const 1)))
            (if (i32.load (i32.add (local.get $at) (i32.const 4))) (then (return)))
            (local.set $token (i32.load (local.get $at)))
            (i32.store (local.get $at) (i32.const 0))
            (call $respond (local.get $token) (i32.load (i32.add (local.get $at) (i32.const 8))) (i32.const 0)))

        (func $start (param $token i32) (param $handler i32) (result i32)
            (local $slot i32) (local $at i32) (local $unit i32) (local $end i32) (local $offset i64) (local $peer i32) (local $code i32)
            (if (i32.eqz (local.get $handler)) (then
                (drop (call $receive_bytes (local.get $token) (i32.const 0) (i32.const 4)))
                (if (i32.ne (i32.load (i32.const 0)) (i32.const 4)) (then
                    (call $respond (local.get $token) (i32.const 0) (i32.const 0)) (return (i32.const 0))))
                {at_start}
                (memory.fill (i32.const 32768) (i32.const 255) (i32.const 32768))
                (if (call $flash_geometry (i32.const 160)) (then (unreachable)))
                (global.set $pages (i32.load (i32.const 180)))
                (global.set $starter (local.get $token))
                (call $recover)
                (return (i32.const 0))))
            (global.set $operations (i32.add (global.get $operations) (i32.const 1)))
            {hook}
            (drop (call $receive_bytes (local.get $token) (i32.const 0) (i32.const 24)))
            (if (i32.eq (local.get $handler) (i32.const 253)) (then
                (call $respond (local.get $token) (i32.const 0) (i32.const 0)) (return (i32.const 0))))
            (loop $taken
                (global.set $last (i32.and (i32.add (global.get $last) (i32.const 1)) (i32.const 1023)))
                (br_if $taken (i32.load (call $context (global.get $last)))))
            (local.set $slot (global.get $last))
            (local.set $at (call $context (local.get $slot)))
            (i32.store (local.get $at) (local.get $token))
            (i32.store (i32.add (local.get $at) (i32.const 4)) (i32.const 1))
            (i32.store (i32.add (local.get $at) (i32.const 8)) (i32.const 0))
            (local.set $peer (i32.load (i32.const 0)))
            (local.set $unit (i32.wrap_i64 (i64.shr_u (i64.load (i32.const 8)) (i64.const 12))))
            (local.set $end (i32.add (local.get $unit) (i32.wrap_i64 (i64.shr_u (i64.load (i32.const 16)) (i64.const 12)))))
            (block $done (loop $next_unit
                (br_if $done (i32.ge_u (local.get $unit) (local.get $end)))
                (local.set $code (i32.const 0))
                (if (i32.eq (local.get $handler) (i32.const 250)) (then
                    (if (i32.eq (i32.load (call $entry (local.get $unit))) (i32.const -1))
                        (then (local.set $code (call $flash_zero_peer (local.get $peer) (local.get $offset) (i32.const 4096))))
                        (else (local.set $code (call $read (i32.load (call $entry (local.get $unit))) (i32.const 4096) (local.get $peer)
                            (local.get $offset) (i32.const 0) (local.get $slot)))))))
                (if (i32.eq (local.get $handler) (i32.const 251)) (then
                    (i32.store (call $entry (local.get $unit)) (global.get $next))
                    (local.set $code (call $program (i32.const 1) (local.get $unit) (local.get $peer) (local.get $offset) (local.get $slot)))))
                (if (i32.and (i32.eq (local.get $handler) (i32.const 252)) (i32.ne (i32.load (call $entry (local.get $unit))) (i32.const -1))) (then
                    (i32.store (call $entry (local.get $unit)) (i32.const -1))
                    (local.set $code (call $program (i32.const 3) (i32.or (local.get $unit) (i32.const 0x80000000)) (i32.const 0)
                        (i64.const 0) (local.get $slot)))))
                (if (i32.eq (local.get $code) (i32.const 1))
                    (then (i32.store (i32.add (local.get $at) (i32.const 4))
                        (i32.add (i32.load (i32.add (local.get $at) (i32.const 4))) (i32.const 1))))
                    (else (if (local.get $code) (then (i32.store (i32.add (local.get $at) (i32.const 8)) (i32.const 1))))))
                (local.set $unit (i32.add (local.get $unit) (i32.const 1)))
                (local.set $offset (i64.add (local.get $offset) (i64.const 4096)))
                (br $next_unit)))
            (call $part_ended (local.get $slot) (i32.const 0))
            (i32.const 0))

        (func $complete (param $wait i32) (param $result i64)
            (if (i32.eq (local.get $wait) (i32.const 0xffff)) (then
                (if (call $take (i32.wrap_i64 (local.get $result))) (then (call $recover)))
                (return)))
            (call $part_ended (local.get $wait) (i64.ne (local.get $result) (i64.const 0))))

        (export "start" (func $start)) (export "complete" (func $complete))
        (@custom "willow.app" "abi=2\nname={NAME}\nversion=1\nhandler=250:nv_read\nhandler=251:nv_write\nhandler=252:nv_zero\nhandler=253:nv_flush\n")
        )"#
    );
    wat::parse_str(&text).expect("the tests' FTL is well formed")
}
