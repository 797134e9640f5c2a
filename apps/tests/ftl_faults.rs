//! FTLs that go wrong, and what others can ask of one: no other SPU's data suffers, and the device goes on.

mod support;

use base_io_host::wire;
use support::{ANSWERED, BLOCK, Drive, Ftl, SPUS, rpc, tiny};
use willow_device::{RpcOutcome, control};

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

/// What an FTL does wrong at an operation of SPU 0, in its first life alone: it found nothing on the flash when it started.
const FIRST_LIFE: &str = "(i32.and (i32.eqz (call $spu_id)) (i32.eqz (global.get $recovered)))";

/// A hook that does something at the `count`th operation of the first life on SPU 0.
fn at(count: u32, what: &str) -> String {
    format!("(if (i32.and (i32.eq (global.get $operations) (i32.const {count})) {FIRST_LIFE}) (then {what}))")
}

/// Blocks that lie on an SPU: stripes of 8 KiB.
fn block_of(spu: usize, number: usize) -> usize {
    (number / 2 * usize::from(SPUS) + spu) * 2 + number % 2
}

/// The FTL's instance on SPU 0 fails at its 6th operation while others are under way on both: of SPU 0 what it had begun fails, nothing
/// else does, and all that was answered is there.
fn fails_alone(hook: &str, why: &str) {
    let mut drive = Drive::new(Ftl::Tiny(tiny::that(&at(6, hook))));
    for number in 0..5 {
        drive.write(block_of(0, number), &block(number as u8 + 1));
        drive.write(block_of(1, number), &block(number as u8 + 101));
    }
    let bad = drive.begin(wire::handler::WRITE, block_of(0, 5), 1, &block(6));
    let others: Vec<u64> =
        (5..40).map(|number| drive.begin(wire::handler::WRITE, block_of(1, number), 1, &block(7))).collect();
    let later: Vec<u64> =
        (6..40).map(|number| drive.begin(wire::handler::WRITE, block_of(0, number), 1, &block(8))).collect();
    let failed = drive.wait(bad);
    assert_ne!(failed.outcome, ANSWERED, "{why}");
    for tag in others {
        assert_eq!(drive.wait(tag).outcome, ANSWERED, "{why}: an operation of the other SPU");
    }
    // Those of SPU 0 failed where the FTL had begun them, and waited for the next instance where it had not.
    let outcomes: Vec<bool> = later.into_iter().map(|tag| drive.wait(tag).outcome == ANSWERED).collect();
    assert!(outcomes.iter().any(|good| *good), "{why}: none has waited for the next instance");
    let statistics = drive.device.statistics();
    let flash = statistics.flash.expect("there is flash");
    assert_eq!((flash.restarts, flash.losses, flash.failed), (1, 1, None), "{why}");
    assert_eq!(statistics.strays, 0, "{why}");
    let log = drive.log(tiny::NAME);
    assert!(log.contains(why), "{log}");
    for number in 0..5 {
        assert!(drive.read(block_of(0, number), 1) == block(number as u8 + 1), "{why}: block {number} of SPU 0");
        assert!(drive.read(block_of(1, number), 1) == block(number as u8 + 101), "{why}: block {number} of SPU 1");
    }
    for (number, good) in (6..40).zip(outcomes) {
        let found = drive.read(block_of(0, number), 1);
        assert!(found == block(8) || !good && found == block(0), "{why}: block {number} of SPU 0, answered: {good}");
    }
    drive.write(block_of(0, 5), &block(9));
    assert!(drive.read(block_of(0, 5), 1) == block(9));
}

#[test]
fn one_that_traps_ends_alone_and_is_started_anew() {
    fails_alone("(unreachable)", "unreachable");
}

#[test]
fn one_that_loops_ends_alone_and_is_started_anew() {
    fails_alone("(loop $forever (br $forever))", "without waiting");
}

#[test]
fn one_that_never_answers_an_operation_ends_alone_and_is_started_anew() {
    fails_alone("(return (i32.const 0))", "within 10 s");
}

/// Revocations and flushes wait for what is under way, and so for an FTL that never answers: for as long as it may take, and no longer.
#[test]
fn fences_pass_though_the_ftl_never_answers() {
    let mut drive = Drive::new(Ftl::Tiny(tiny::that(&at(3, "(return (i32.const 0))"))));
    let process = drive.device.open_process(1000, 0).expect("a process");
    drive.device.permit(process, 0, (drive.stripes.base, 65536), true);
    drive.write(block_of(0, 0), &block(1));
    drive.write(block_of(0, 1), &block(2));
    let stuck = drive.begin(wire::handler::WRITE, block_of(0, 2), 1, &block(3));
    let hre = drive.device.open_hre(None).expect("another endpoint");
    let words = [process, 0, 0, 3];
    let mut revoke: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    revoke.extend([drive.stripes.base.to_le_bytes(), 65536_u64.to_le_bytes()].concat());
    let revoked = drive.begin_on(hre, vec![rpc((control::CONTROL_APP, control::REVOKE, 0), &[])], &revoke, 0);
    let flushed = drive.begin_flush();
    let begun_ns = drive.now_ns;
    for _ in 0..100 {
        drive.step();
    }
    assert_eq!(drive.wait(revoked).outcome, ANSWERED);
    assert_ne!(drive.wait(stuck).outcome, ANSWERED);
    drive.wait(flushed);
    let waited_s = (drive.now_ns - begun_ns) / 1_000_000_000;
    assert!((9..=12).contains(&waited_s), "{waited_s} s");
    assert!(drive.idle_steps < 60, "the device was busy with waiting: {} steps", drive.idle_steps);
    drive.flush();
}

#[test]
fn one_that_answers_twice_or_nonsense_does_no_harm() {
    let answer = "(call $respond (local.get $token) (i32.const 0) (i32.const 0))";
    let twice = at(3, &format!("{answer} {answer} (return (i32.const 0))"));
    let mut drive = Drive::new(Ftl::Tiny(tiny::that(&twice)));
    for number in 0..6 {
        drive.write(block_of(0, number), &block(number as u8 + 1));
    }
    assert_eq!(drive.device.statistics().strays, 0);
    for number in (0..6).filter(|number| *number != 2) {
        // The third was answered and never done, which nobody can know.
        assert!(drive.read(block_of(0, number), 1) == block(number as u8 + 1));
    }
    let nonsense = at(3, "(call $respond (local.get $token) (i32.const 77) (i32.const 5)) (return (i32.const 0))");
    let mut drive = Drive::new(Ftl::Tiny(tiny::that(&nonsense)));
    for number in 0..6 {
        let done = drive.range(wire::handler::WRITE, block_of(0, number), 1, &block(number as u8 + 1));
        assert_eq!(done.outcome == ANSWERED, number != 2, "block {number}");
    }
    assert!(drive.read(block_of(0, 2), 1) == block(0));
    assert_eq!(drive.device.statistics().flash.map(|flash| flash.restarts), Some(0));
}

#[test]
fn one_that_programs_out_of_order_is_told_which_rule_it_broke_and_changes_nothing() {
    let skip = at(4, "(global.set $next (i32.add (global.get $next) (i32.const 1)))");
    let mut drive = Drive::new(Ftl::Tiny(tiny::that(&skip)));
    for number in 0..3 {
        drive.write(block_of(0, number), &block(number as u8 + 1));
    }
    let done = drive.range(wire::handler::WRITE, block_of(0, 3), 1, &block(4));
    assert_ne!(done.outcome, ANSWERED);
    let log = drive.log(tiny::NAME);
    assert!(log.contains("[SPU-OS] misuse of the flash: page 4 is out of order, the next one is 3"), "{log}");
    for number in 0..3 {
        assert!(drive.read(block_of(0, number), 1) == block(number as u8 + 1));
    }
}

/// One that does not come up: operations fail at once instead of waiting, the device says why and does all else, and another version mends it.
fn does_not_come_up(at_start: &str, why: &str, seconds: std::ops::RangeInclusive<u64>) {
    let broken = tiny::module(&tiny::Hook(""), &tiny::AtStart(at_start));
    let mut drive = Drive::new(Ftl::Tiny(broken));
    let tags: Vec<u64> = (0..20).map(|number| drive.begin(wire::handler::READ, number * 2, 2, &[])).collect();
    for tag in tags {
        assert_ne!(drive.wait(tag).outcome, ANSWERED, "{why}");
    }
    let waited_s = drive.now_ns / 1_000_000_000;
    assert!(seconds.contains(&waited_s), "{why}: {waited_s} s");
    let told = drive.device.flash_failed().map(|(_, text)| text.to_owned()).expect("the device says so");
    assert!(told.contains(why), "{told}");
    let before_ns = drive.now_ns;
    assert_ne!(drive.range(wire::handler::WRITE, 0, 1, &block(1)).outcome, ANSWERED);
    assert_eq!(drive.now_ns, before_ns, "{why}: nothing waits any more");
    let text = drive.device.statistics().flash.and_then(|flash| flash.failed).unwrap_or_default();
    assert!(text.contains(why) && text.starts_with("bank "), "{text}");
    drive.install(&tiny::honest()).expect("another version");
    assert_eq!(drive.device.flash_failed(), None);
    drive.write(0, &block(1));
    assert!(drive.read(0, 1) == block(1));
}

#[test]
fn one_that_traps_whenever_it_starts_fails_its_banks() {
    does_not_come_up("(unreachable)", "unreachable", 0..=0);
}

#[test]
fn one_that_refuses_to_start_fails_its_banks() {
    let refuses = "(call $respond (local.get $token) (i32.const 5) (i32.const 0)) (return (i32.const 0))";
    does_not_come_up(refuses, "answered STARTED with status 5", 0..=0);
}

#[test]
fn one_that_never_ends_its_start_fails_its_banks() {
    does_not_come_up("(return (i32.const 0))", "has not answered STARTED within 120 s", 119..=123);
}

/// It ends at its first start, and comes up at the second: what waited goes on.
#[test]
fn what_waits_for_an_ftl_that_comes_up_at_the_second_attempt_goes_on() {
    // The flash is all that it remembers: it traps where page 0 is erased, and programs it before.
    let once = "(drop (call $flash_geometry (i32.const 160))) (global.set $pages (i32.load (i32.const 180)))
        (if (i32.eq (i32.and (call $read (i32.const 0) (i32.const 0) (i32.const 0) (i64.const 0) (i32.const 8) (i32.const 9)) (i32.const 255)) (i32.const 2)) (then
            (drop (call $program (i32.const 3) (i32.const 0x80000000) (i32.const 0) (i64.const 0) (i32.const 9)))
            (unreachable)))";
    let mut drive = Drive::new(Ftl::Tiny(tiny::module(&tiny::Hook(""), &tiny::AtStart(once))));
    drive.write(0, &block(1));
    drive.write(2, &block(2));
    assert!(drive.read(0, 1) == block(1) && drive.read(2, 1) == block(2));
    assert!(drive.log(tiny::NAME).contains("unreachable"));
    assert_eq!(drive.device.flash_failed(), None);
}

/// It fails at each tenth operation, again and again: what is answered is there, and the device goes on.
#[test]
fn one_that_fails_again_and_again_is_started_as_often() {
    let hook = "(if (i32.eq (global.get $operations) (i32.const 10)) (then (unreachable)))";
    let mut drive = Drive::new(Ftl::Tiny(tiny::that(hook)));
    let mut model = [0_u8; 30];
    let mut failed = 0;
    for step in 0..300_usize {
        let (place, byte) = (step * 7 % model.len(), (step % 250) as u8 + 1);
        match drive.range(wire::handler::WRITE, place * 2, 1, &block(byte)).outcome == ANSWERED {
            true => model[place] = byte,
            false => failed += 1,
        }
        let place = step * 11 % model.len();
        let read = drive.range(wire::handler::READ, place * 2, 1, &[]);
        match read.outcome == ANSWERED {
            true => assert!(read.buffer == block(model[place]), "step {step}"),
            false => failed += 1,
        }
    }
    let restarts = drive.device.statistics().flash.expect("flash").restarts;
    assert!(failed > 30 && restarts == failed, "{failed} failed, {restarts} restarts");
    assert_eq!(drive.device.statistics().strays, 0);
}

/// An FTL waits for flash and peers alone: what it asked of the banks, or of other apps, might wait for itself.
#[test]
fn an_ftl_has_no_way_to_wait_for_itself() {
    let tries = "
        (if (i32.ne (call $flush (i32.const 5)) (i32.const -7)) (then (unreachable)))
        (if (i64.ne (call $region (i32.const 1) (i64.const 65536) (i32.const 5)) (i64.const -7)) (then (unreachable)))
        (if (i32.ne (call $dma (local.get $token) (i32.const 1) (i64.const 0) (i32.const 0) (i64.const 60000) (i32.const 512) (i32.const 5)) (i32.const -4)) (then (unreachable)))
        (if (i32.ne (call $dma (local.get $token) (i32.const 3) (i64.const 0) (i32.const 1) (i64.const 0) (i32.const 512) (i32.const 5)) (i32.const -4)) (then (unreachable)))
        (if (i32.ne (call $rpc_start (local.get $token) (i32.const 1) (i32.const -1) (i32.const 251) (i32.const 24) (i32.const 0) (i32.const 0)) (i32.const -7)) (then (unreachable)))";
    let mut drive = Drive::new(Ftl::Tiny(tiny::that(tries)));
    drive.write(0, &block(1));
    assert!(drive.read(0, 1) == block(1), "{}", drive.log(tiny::NAME));
}

#[test]
fn the_ftl_is_replaced_and_never_removed() {
    let mut drive = Drive::new(Ftl::Tiny(tiny::honest()));
    drive.write(0, &block(1));
    let done = drive.control(control::REMOVE, &[], tiny::NAME.as_bytes(), 0);
    assert_ne!(done.outcome, ANSWERED);
    let text = drive.error_text();
    assert!(text.contains("can be replaced"), "{text}");
    drive.install(&tiny::honest()).expect("another version of it");
    assert!(drive.read(0, 1) == block(1));
    // One that does not start is refused, and the one before goes on.
    let refused = drive.install(&tiny::module(&tiny::Hook(""), &tiny::AtStart("(unreachable)")));
    assert!(refused.is_err_and(|text| text.contains("did not start")));
    drive.write(2, &block(2));
    assert!(drive.read(0, 1) == block(1) && drive.read(2, 1) == block(2));
    assert_eq!(drive.device.flash_failed(), None);
}

/// The FTL leaves last: what other apps write when they leave reaches the flash, and the end is not waited for in vain.
#[test]
fn a_device_on_flash_ends_cleanly() {
    for ftl in [Ftl::Page, Ftl::Tiny(tiny::honest())] {
        let mut drive = Drive::new(ftl);
        drive.write(0, &block(1));
        drive.device.shutdown();
        let begun_ns = drive.now_ns;
        for _ in 0..1000 {
            drive.step();
        }
        assert!(drive.device.is_shut_down());
        assert!(drive.now_ns - begun_ns < 1_000_000_000, "it took {} ns", drive.now_ns - begun_ns);
    }
}

/// Whatever writes wait for, reads find the FTL free: it has at most 24 writes of a bank at the same time.
#[test]
fn reads_go_beside_writes_that_wait() {
    let keeps = "(if (i32.eq (local.get $handler) (i32.const 251)) (then
            (i32.store (i32.const 60000) (i32.add (i32.load (i32.const 60000)) (i32.const 1)))
            (if (i32.gt_u (i32.load (i32.const 60000)) (i32.const 24)) (then (unreachable)))
            (return (i32.const 0))))";
    let mut drive = Drive::new(Ftl::Tiny(tiny::that(keeps)));
    let writes: Vec<u64> =
        (0..50).map(|number| drive.begin(wire::handler::WRITE, block_of(0, number), 1, &block(1))).collect();
    let reads: Vec<u64> =
        (0..10).map(|number| drive.begin(wire::handler::READ, block_of(0, 60 + number), 1, &[])).collect();
    for tag in reads {
        assert_eq!(drive.wait(tag).outcome, ANSWERED);
    }
    assert!(drive.now_ns < 2_000_000_000, "the reads waited: {} ns", drive.now_ns);
    assert!(!drive.log(tiny::NAME).contains("unreachable"));
    for tag in writes {
        assert_ne!(drive.wait(tag).outcome, ANSWERED, "nobody has answered it");
    }
}
