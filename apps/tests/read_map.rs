//! The read map: what an FTL publishes is read without it, also while it writes and collects; and a map that is wrong harms nobody else.

mod support;

use base_io_host::wire;
use support::tiny::{AtStart, Hook};
use support::{ANSWERED, BLOCK, Drive, Ftl, SPUS, tiny};
use willow_device::media::fault::Random;

/// Where the tiny FTL has its map.
const MAP: u32 = 32768;
/// Memory that it does not use: zeroes.
const OTHER: u32 = 18432;
/// An error of the interface.
const ERROR_ARGUMENT: i32 = -2;
/// Blocks that are used.
const BLOCKS: usize = 120;

/// From the first flush on, reads that reach the FTL end it.
const NO_READS: &str = "(if (i32.eq (local.get 1) (i32.const 253)) (then (i32.store (i32.const 300) (i32.const 1))))
    (if (i32.and (i32.eq (local.get 1) (i32.const 250)) (i32.load (i32.const 300))) (then (unreachable)))";

/// Publishes a lane of so many rows whose entries are there, on SPU 0 alone or on all, where that has to come to `expected`.
fn publishing(entries: u32, (lanes, rows): (u32, u32), all: bool, expected: i32) -> String {
    let which = if all { "(i32.const 1)" } else { "(i32.eqz (call $spu_id))" };
    format!(
        "(i64.store (i32.const 256) (i64.const {entries})) (i64.store (i32.const 264) (i64.const 320))
        (i32.store (i32.const 272) (i32.const 256)) (i32.store (i32.const 276) (i32.const {rows}))
        (if {which} (then
            (if (i32.ne (call $flash_read_map (i32.const 256) (i32.const {lanes}) (i32.const 100)) (i32.const {expected}))
                (then (unreachable)))))"
    )
}

fn drive(hook: &str, at_start: &str) -> Drive {
    Drive::new(Ftl::Tiny(tiny::module(&Hook(hook), &AtStart(at_start))))
}

fn block(number: usize) -> Vec<u8> {
    let mut random = Random::new(number as u64);
    random.bytes(BLOCK)
}

fn spu_of(number: usize) -> usize {
    number / 2 % usize::from(SPUS)
}

fn restarts(drive: &Drive) -> u64 {
    drive.device.statistics().flash.expect("there is flash").restarts
}

fn filled(hook: &str, at_start: &str) -> Drive {
    let mut drive = drive(hook, at_start);
    (0..BLOCKS).for_each(|number| drive.write(number, &block(number)));
    drive.flush();
    drive
}

/// Reads of what an FTL has published do not reach it, whatever their size; without a map they do.
#[test]
fn what_is_published_is_read_without_the_ftl() {
    let mut drive = filled(NO_READS, &publishing(MAP, (1, 64), true, 0));
    for number in 0..BLOCKS {
        assert!(drive.read(number, 1) == block(number), "block {number}");
    }
    for count in [2, 3, 16] {
        let found = drive.read(5, count);
        assert!((0..count).all(|place| found[place * BLOCK..][..BLOCK] == block(5 + place)), "{count} blocks");
    }
    assert_eq!(restarts(&drive), 0);
    let mut drive = filled(NO_READS, "");
    assert_ne!(drive.range(wire::handler::READ, 0, 1, &[]).outcome, ANSWERED, "it reached the FTL, and ended it");
    assert_eq!(restarts(&drive), 1);
}

/// A read sees each write that came before it, though the map may have said something else when it came.
#[test]
fn reads_see_the_writes_before_them() {
    for ftl in [Ftl::Page, Ftl::Tiny(tiny::module(&Hook(""), &AtStart(&publishing(MAP, (1, 64), true, 0))))] {
        let mut drive = Drive::new(ftl);
        let mut random = Random::new(3);
        let mut versions = [0; BLOCKS];
        for round in 1..=40 {
            let mut reads = Vec::new();
            let mut writes = Vec::new();
            for step in 0..30 {
                let number = random.below(BLOCKS as u64) as usize;
                if random.below(2) == 0 {
                    versions[number] = round * 100 + step;
                    writes.push(drive.begin(wire::handler::WRITE, number, 1, &block(versions[number])));
                } else {
                    let tag = drive.begin(wire::handler::READ, number, 1, &[]);
                    reads.push((tag, number, versions[number]));
                }
            }
            for (tag, number, version) in reads {
                let done = drive.wait(tag);
                assert_eq!(done.outcome, ANSWERED);
                let expected = if version == 0 { vec![0; BLOCK] } else { block(version) };
                assert!(done.buffer == expected, "block {number} in round {round}");
            }
            for tag in writes {
                assert_eq!(drive.wait(tag).outcome, ANSWERED);
            }
        }
        assert_eq!(restarts(&drive), 0);
    }
}

/// A map that names other pages has its own SPU's reads wrong, as its FTL could have them in any case, and nobody else's. What it names and
/// cannot be, or is to be asked for, is asked for.
#[test]
fn a_wrong_map_is_wrong_for_its_own_bank_alone() {
    // Each unit lies on page 0.
    let mut drive = filled("", &publishing(OTHER, (1, 64), false, 0));
    let wrong = (0..BLOCKS).filter(|number| drive.read(*number, 1) != block(*number)).collect::<Vec<_>>();
    assert!(wrong.len() > BLOCKS / 2 - 3 && wrong.iter().all(|number| spu_of(*number) == 0), "{wrong:?}");
    assert_eq!(restarts(&drive), 0);
    // Pages that are erased, blocks that there are not, rows that are asked for; refusals are told and change nothing.
    let fill = |value: u32| {
        format!(
            "(local.set 2 (i32.const {OTHER})) (loop $fill (i32.store (local.get 2) (i32.const {value}))
            (local.set 2 (i32.add (local.get 2) (i32.const 4))) (br_if $fill (i32.lt_u (local.get 2) (i32.const {}))))",
            OTHER + 1024
        )
    };
    let publish = |rows| publishing(OTHER, (1, rows), false, 0);
    for at_start in [
        fill(4000) + &publish(64),
        fill(64 * 64) + &publish(64),
        fill(0x7fff_ffff) + &publish(64),
        format!("(i32.store8 (i32.const 320) (i32.const 1)) {}", publish(64)),
        publish(0),
        publishing(MAP, (2, 64), false, ERROR_ARGUMENT),
        publishing(MAP, (5000, 64), false, ERROR_ARGUMENT),
        publishing(MAP, (1, 65), false, ERROR_ARGUMENT),
        // Published, and taken back.
        publish(64) + &publishing(MAP, (0, 64), false, 0),
    ] {
        let mut drive = filled("", &at_start);
        for number in 0..BLOCKS {
            assert!(drive.read(number, 1) == block(number), "block {number} where it starts by {at_start}");
        }
        assert_eq!(restarts(&drive), 0, "{at_start}");
    }
}

/// A map outside of its memory ends the FTL that publishes it; others go on. One whose FTL ends goes with it.
#[test]
fn a_map_ends_with_its_ftl() {
    let mut drive = drive("", &publishing(65000, (1, 64), false, 0));
    let outcome = |drive: &mut Drive, number| drive.range(wire::handler::WRITE, number, 1, &block(number)).outcome;
    assert_ne!(outcome(&mut drive, 0), ANSWERED, "SPU 0 has no FTL");
    assert_eq!(outcome(&mut drive, 2), ANSWERED);
    assert!(drive.read(2, 1) == block(2));
    // The second life on SPU 0 has a map of its own, whose units lie elsewhere: what the first one had begun is not there.
    let trap =
        "(if (i32.and (i32.eq (global.get $operations) (i32.const 50)) (i32.eqz (call $spu_id))) (then (unreachable)))";
    let mut drive = self::drive(trap, &publishing(MAP, (1, 64), true, 0));
    let answered: Vec<bool> = (0..BLOCKS).map(|number| outcome(&mut drive, number) == ANSWERED).collect();
    assert!(answered.iter().filter(|answered| !**answered).count() <= 1, "one was with the FTL that ended");
    assert_eq!(restarts(&drive), 1);
    for (number, answered) in answered.into_iter().enumerate() {
        assert!(!answered || drive.read(number, 1) == block(number), "block {number}");
    }
}
