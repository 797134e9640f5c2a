//! The end of an FTL under a model of time: what the flash has not begun for it is not begun any more, and the next FTL is shown the flash when
//! all that had begun is done.

mod support;

use base_io_host::wire;
use support::dies::{DIE_OPERATIONS_MAX, Dies, Taken};
use support::{ANSWERED, BLOCK, Drive, Ftl, config, metadata, tiny};
use willow_device::media::flash::{Array, FaultParameters, Geometry};

/// Blocks that lie on SPU 0: stripes of two blocks, over two SPUs.
fn block_of(number: usize) -> usize {
    number / 2 * 4 + number % 2
}

/// An FTL that erases block 1 of die 1 when it is asked for the second operation of its first life on SPU 0, and at the fourteenth asks for an
/// erase of block 2 there and traps in the same run. Between the two it has programs under way, most of which its die has no room for.
#[test]
fn what_a_dead_ftl_had_asked_of_the_flash_is_done_before_the_next_begins_or_not_at_all() {
    let erase = |block: u32| {
        format!(
            "(i32.store (i32.const 60000) (i32.const {block}))
             (if (i32.ne (call $flash_erase (i32.const 1) (i32.const 60000) (i32.const 1) (i32.const 999)) (i32.const 1)) (then (unreachable)))"
        )
    };
    let first = "(i32.and (i32.eqz (call $spu_id)) (i32.eqz (global.get $recovered)))";
    let hook = format!(
        "(if {first} (then
            (if (i32.eq (global.get $operations) (i32.const 2)) (then {}))
            (if (i32.eq (global.get $operations) (i32.const 14)) (then {} (unreachable)))))",
        erase(1),
        erase(2),
    );
    let flash = Geometry { dies_per_package: 2, ..tiny::FLASH };
    let flash = (0..u64::from(support::SPUS)).map(|bank| Array::in_memory(&flash, &FaultParameters::NONE, bank));
    let ftl = Ftl::Tiny(tiny::that(&hook));
    let dies = Dies::default();
    let taken = dies.taken.clone();
    let config = config(&ftl.banks());
    let mut drive = Drive::timed(config, flash.collect(), metadata(), ftl, Some(Box::new(dies)));
    drive.write(block_of(0), &[1; BLOCK]);
    let before = taken.lock().expect("the log").len();
    let tags: Vec<u64> =
        (1..14).map(|number| drive.begin(wire::handler::WRITE, block_of(number), 1, &[2; BLOCK])).collect();
    let answered = tags.into_iter().filter(|tag| drive.wait(*tag).outcome == ANSWERED).count();
    // The fourteenth operation waited for the next FTL, or failed with the rest.
    drive.write(block_of(20), &[3; BLOCK]);
    assert!(drive.read(block_of(20), 1) == [3; BLOCK] && drive.read(block_of(0), 1) == [1; BLOCK]);

    let statistics = drive.device.statistics();
    assert_eq!(statistics.strays, 0);
    assert_eq!(statistics.flash.map(|flash| (flash.restarts, flash.failed)), Some((1, None)));
    let taken = taken.lock().expect("the log").split_off(before);
    let restart = taken.iter().position(|one| one.kind == "read").expect("the next FTL reads what is there");
    let (old, new) = taken.split_at(restart);
    let programs = old.iter().filter(|one| one.kind == "program").count();
    assert_eq!(programs, DIE_OPERATIONS_MAX, "what had not begun is not begun any more: {old:?}");
    let erases: Vec<u32> = taken.iter().filter(|one| one.kind == "erase").map(|one| one.block).collect();
    assert_eq!(erases, [1], "that of the run that trapped was not begun: {taken:?}");
    let erased_ns = old.iter().map(|one| one.end_ns).max().expect("an erase");
    let early: Vec<&Taken> = new.iter().filter(|one| one.begin_ns < erased_ns).collect();
    assert!(early.is_empty(), "the next FTL looks at flash that is still changing until {erased_ns}: {early:?}");
    assert!(answered <= 1, "{answered} writes were answered whose programs had not been done");
}

/// The FTL's instance on SPU 0 asks for reads until it is refused. Those of SPU 1 go on: what they ask of their flash is taken.
#[test]
fn an_ftl_that_asks_without_end_has_nobody_elses_flash_refused() {
    let flood = "(loop $more (br_if $more (i32.eq (i32.const 1)
        (call $flash_read (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i64.const 0)
            (i32.const 144) (i32.const 8) (i32.const 1000)))))
        (i32.store8 (i32.const 60000) (i32.const 10)) (call $print (i32.const 60000) (i32.const 1))";
    let hook = format!(
        "(if (i32.and (i32.eqz (call $spu_id)) (i32.eq (global.get $operations) (i32.const 3))) (then {flood}))"
    );
    let ftl = Ftl::Tiny(tiny::that(&hook));
    let config = config(&ftl.banks());
    let flash = ftl.in_memory();
    let mut drive = Drive::timed(config, flash, metadata(), ftl, Some(Box::new(Dies::default())));
    let other = |number: usize| block_of(number) + 2;
    drive.write(block_of(0), &[1; BLOCK]);
    drive.write(block_of(1), &[1; BLOCK]);
    let flooded = drive.begin(wire::handler::WRITE, block_of(2), 1, &[1; BLOCK]);
    while !drive.log(tiny::NAME).contains("0: ") {
        drive.step();
    }
    for number in 0..20 {
        let byte = number as u8 + 1;
        drive.write(other(number), &[byte; BLOCK]);
        assert!(drive.read(other(number), 1) == [byte; BLOCK], "block {number} of SPU 1");
    }
    assert_ne!(drive.wait(flooded).outcome, ANSWERED, "its own program is refused");
    let statistics = drive.device.statistics();
    assert_eq!(
        (statistics.strays, statistics.flash.map(|flash| flash.restarts)),
        (0, Some(0)),
        "its reads are still there"
    );
}
