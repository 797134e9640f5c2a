//! Every order of events on rings of two and four entries: commands and completions come once, whole and in order, no entry is
//! written over before it was taken, and nobody sleeps through a doorbell.

use loom::sync::atomic::{AtomicU32, fence};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};
use willow_shm_models::{Shape, explore};

/// One command: all orders, however often a thread is stopped.
#[test]
fn one_command_in_all_orders() {
    let shape = Shape { commands: 1, preemptions: None, ..Shape::SMALL };
    assert!(explore(shape, None) > 1000);
}

/// Rings of two entries, used one and a half times, by commands of one slot.
#[test]
fn three_commands_around_the_ring() {
    assert!(explore(Shape { commands: 3, preemptions: Some(3), ..Shape::SMALL }, None) > 10_000);
}

/// As many, answered in the batch that took them.
#[test]
fn three_commands_answered_at_once() {
    assert!(explore(Shape { commands: 3, at_once: true, ..Shape::SMALL }, None) > 1000);
}

/// Rings of four entries, two commands under way, five altogether, those of one batch answered in the reverse order.
#[test]
fn two_commands_under_way() {
    assert!(explore(Shape { entries: 4, depth: 2, commands: 5, ..Shape::SMALL }, None) > 10_000);
}

/// Commands that fill the ring: only the head that the device shows says when the next may be written.
#[test]
fn commands_as_long_as_the_ring() {
    let two_slots = Shape { depth: 2, commands: 2, argument_bytes: 40, preemptions: Some(3), ..Shape::SMALL };
    assert!(explore(two_slots, None) > 1000);
    assert!(explore(Shape { at_once: true, depth: 1, ..two_slots }, None) > 1000);
    let four_slots = Shape { entries: 4, depth: 2, commands: 2, more: 3, ..Shape::SMALL };
    assert!(explore(four_slots, None) > 1000);
}

/// Whether two threads that each store, fence and look can both miss the other's store, as loom has it.
fn both_miss(with_fences: bool) -> bool {
    let (missed, runs) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let (seen, counted) = (missed.clone(), runs.clone());
    loom::model(move || {
        counted.fetch_add(1, Relaxed);
        let flags = Arc::new([AtomicU32::new(0), AtomicU32::new(0)]);
        let look = move |flags: &[AtomicU32; 2], mine: usize| {
            flags[mine].store(1, Relaxed);
            if with_fences {
                fence(SeqCst);
            }
            flags[1 - mine].load(Relaxed) == 0
        };
        let theirs = flags.clone();
        let other = loom::thread::spawn(move || look(&theirs, 1));
        let mine = look(&flags, 0);
        if mine & other.join().unwrap() {
            seen.store(true, Relaxed);
        }
    });
    assert!(runs.load(Relaxed) > 1);
    missed.load(Relaxed)
}

/// What the models rest on: loom knows what a sequentially consistent fence is for, and what is possible without it.
#[test]
fn loom_knows_fences() {
    assert!(!both_miss(true));
    assert!(both_miss(false));
}

/// As above, for release and acquire: a word that is seen brings what was written before it, or it does not.
#[test]
fn loom_knows_release_and_acquire() {
    for (store, load, safe) in [(Release, Acquire, true), (Relaxed, Acquire, false), (Release, Relaxed, false)] {
        let stale = Arc::new(AtomicBool::new(false));
        let seen = stale.clone();
        loom::model(move || {
            let words = Arc::new([AtomicU32::new(0), AtomicU32::new(0)]);
            let theirs = words.clone();
            let other = loom::thread::spawn(move || {
                theirs[0].store(1, Relaxed);
                theirs[1].store(1, store);
            });
            if words[1].load(load) == 1 && words[0].load(Relaxed) == 0 {
                seen.store(true, Relaxed);
            }
            other.join().unwrap();
        });
        assert_eq!(stale.load(Relaxed), !safe, "{store:?} {load:?}");
    }
}
