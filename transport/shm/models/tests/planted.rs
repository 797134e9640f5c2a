//! Mistakes that the models must find: an ordering, a fence or an order of steps that one end has wrong. And what proved to be
//! no mistake.

use std::panic::{AssertUnwindSafe, catch_unwind};
use willow_shm_models::plant::{Mistake, Mistake::*, Plant, Side, Side::*};
use willow_shm_models::{Shape, explore};

/// Two threads reach a cell without order between them.
const UNORDERED: &str = "Causality violation";
/// All threads wait.
const ASLEEP: &str = "deadlock";

/// Two-slot commands on rings of two entries: each may be written only where the device has shown that it took the one before.
const LONG: Shape = Shape { depth: 2, commands: 2, argument_bytes: 40, ..Shape::SMALL };

fn found(shape: Shape, side: Side, mistake: Mistake) -> Result<u64, String> {
    catch_unwind(AssertUnwindSafe(|| explore(shape, Some(Plant(side, mistake))))).map_err(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
    })
}

fn assert_found(shape: Shape, side: Side, mistake: Mistake, how: &str) {
    match found(shape, side, mistake) {
        Err(what) if what.contains(how) => {}
        Err(what) => panic!("{mistake:?} of the {side:?} is found by \"{what}\", not by \"{how}\""),
        Ok(runs) => panic!("{mistake:?} of the {side:?} is not found in {runs} runs"),
    }
}

#[test]
fn orderings_of_entries() {
    for side in [Host, Device] {
        for mistake in [RelaxedPublish, RelaxedLook, FirstWordFirst] {
            assert_found(Shape { commands: 1, ..Shape::SMALL }, side, mistake, UNORDERED);
        }
    }
}

#[test]
fn orderings_of_the_submission_head() {
    assert_found(LONG, Device, RelaxedShow, UNORDERED);
    assert_found(LONG, Host, RelaxedHead, UNORDERED);
    assert_found(LONG, Device, HeadBeforeEntry, UNORDERED);
}

#[test]
fn fences_and_flags_of_sleepers() {
    for side in [Host, Device] {
        for mistake in [NoFenceBeforeRinging, NoFenceBeforeSleeping, FlagAfterLook] {
            assert_found(Shape { commands: 1, ..Shape::SMALL }, side, mistake, ASLEEP);
        }
    }
}

/// A host without room that has nothing under way waits for what nobody will say.
#[test]
fn completions_before_the_head() {
    assert_found(Shape { depth: 1, at_once: true, ..LONG }, Device, LateHead, ASLEEP);
}

/// The head of the completion ring orders nothing that other words do not order already: a device has a completion to write
/// over an older one only for a command that the host has submitted after it took that older one. So these are no mistakes, as
/// long as no more commands are under way than the ring has entries.
#[test]
fn the_completion_head_is_a_count_and_orders_nothing() {
    for shape in [Shape { commands: 3, ..Shape::SMALL }, Shape { depth: 2, commands: 3, ..Shape::SMALL }] {
        for (side, mistake) in [(Host, RelaxedShow), (Device, RelaxedHead), (Host, HeadBeforeEntry)] {
            assert!(found(shape, side, mistake).expect("no order of events goes wrong") > 1000);
        }
    }
}
