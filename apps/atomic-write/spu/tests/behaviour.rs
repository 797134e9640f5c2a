//! What the app does for one host: long logs, edits, refusals, full logs, media that fail.

mod world;

use atomic_write_spu::format::{HEAD_ENTRIES, PAGE_ENTRIES};
use atomic_write_spu::wire::{self, RecordArguments, WriteArguments, handler};
use std::collections::BTreeMap;
use willow_device::media::fault::{Choices, FaultMedia, Random};
use willow_on_flash::{Medium, on_each_medium};
use world::{BLOCK, Rig, SPUS, content, options, status, value_of};

on_each_medium!(
    writes_in_the_log_can_be_read_and_changed_until_the_commit,
    senseless_requests_are_refused_and_leave_nothing,
    a_full_log_is_refused_and_room_comes_back,
    idle_transactions_make_way_where_there_is_no_room
);

fn start(seed: u64) -> (FaultMedia, Rig) {
    let media = FaultMedia::new(options(seed));
    let mut rig = Rig::open(Box::new(media.store())).expect("a fresh device opens");
    rig.settle();
    (media, rig)
}

impl Rig {
    /// Logs one write; its status and number.
    fn log(&mut self, transaction: u64, block: usize, value: u32, first: bool) -> (u32, u32) {
        let (spu, _) = self.address(block);
        let tag = self.begin_log(transaction, spu, &[(block, value)], first);
        let done = self.wait(tag);
        (status(&done), done.result)
    }

    fn commit(&mut self, transaction: u64, coordinator: u16, counts: &[(u16, u16)]) -> u32 {
        let counts: BTreeMap<u16, u16> = counts.iter().copied().collect();
        let tag = self.begin_commit(transaction, coordinator, &counts);
        status(&self.wait(tag))
    }

    fn value(&mut self, block: usize) -> Option<u32> {
        value_of(&self.read_block(block))
    }

    fn is_clean(&mut self) -> bool {
        self.settle();
        (0..SPUS).all(|spu| {
            let statistics = self.statistics(spu);
            statistics.open + statistics.committed == 0 && statistics.free_chunks == statistics.chunks
        })
    }
}

/// More writes than a head and several pages hold, some of them over others: all are applied, in their order; also after a cut.
#[test]
fn long_logs_are_applied_in_order() {
    for (seed, count) in
        [(0, HEAD_ENTRIES + 1), (1, HEAD_ENTRIES + PAGE_ENTRIES), (2, HEAD_ENTRIES + 3 * PAGE_ENTRIES + 7)]
    {
        let (media, mut rig) = start(seed);
        let mut expected = BTreeMap::new();
        for number in 0..count {
            // SPU 0 and 1, each block of them about twice.
            let block = number * 7 % (count / 2) * 3 + number % 2;
            let value = 1 + number as u32;
            let first = number < 2;
            assert_eq!(rig.log(5, block, value, first), (0, (number / 2) as u32));
            expected.insert(block, value);
        }
        let counts = [(0, count.div_ceil(2) as u16), (1, (count / 2) as u16)];
        // Nothing is there before the commit.
        assert!(expected.keys().all(|block| rig.value(*block) == Some(0)));
        assert_eq!(rig.commit(5, 1, &counts), 0);
        for (block, value) in &expected {
            assert_eq!(rig.value(*block), Some(*value), "block {block}");
        }
        // The head and pages are read back where the power goes before they are forgotten.
        drop(rig);
        for seed in 0..8 {
            let mut rig = Rig::open(Box::new(media.power_cut(&mut Choices::seeded(seed)).store())).unwrap();
            rig.settle();
            for (block, value) in &expected {
                assert_eq!(rig.value(*block), Some(*value), "block {block} after a cut");
            }
            assert!(rig.is_clean());
        }
    }
}

/// The power goes at each operation while a log of several pages is committed.
#[test]
fn a_cut_leaves_all_or_nothing_of_a_long_log() {
    let count = (HEAD_ENTRIES + PAGE_ENTRIES + 5) * 2;
    let mut cut = 0;
    loop {
        let (media, mut rig) = start(1);
        for number in 0..count {
            assert_eq!(rig.log(5, number / 2 * 3 + number % 2, 7, number < 2).0, 0);
        }
        media.cut_after(media.operations() + cut);
        let counts = [(0, (count / 2) as u16), (1, (count / 2) as u16)].into_iter().collect();
        rig.begin_commit(5, 0, &counts);
        rig.settle_or_cut(&media);
        let was_cut = media.is_cut();
        drop(rig);
        for seed in 0..3 {
            let mut rig = Rig::open(Box::new(media.power_cut(&mut Choices::seeded(seed)).store())).unwrap();
            rig.settle();
            let new = (0..count).filter(|number| rig.value(number / 2 * 3 + number % 2) == Some(7)).count();
            assert!(new == 0 || new == count, "cut after {cut}, seed {seed}: {new} of {count} are new");
        }
        if !was_cut {
            assert!(cut > 10, "only {cut} cuts");
            return;
        }
        cut += 1 + cut / 12;
    }
}

fn writes_in_the_log_can_be_read_and_changed_until_the_commit(medium: Medium) {
    let mut rig = Rig::on(medium);
    let count = HEAD_ENTRIES + 2 * PAGE_ENTRIES + 3;
    for number in 0..count {
        assert_eq!(rig.log(9, number * 3, number as u32 + 1, number == 0).0, 0);
    }
    let mut expected: Vec<Vec<u8>> = (0..count).map(|number| content(number as u32 + 1)).collect();
    let mut random = Random::new(3);
    for _ in 0..200 {
        let record = random.below(count as u64) as u32;
        let offset = random.below(BLOCK as u64) as u32;
        let bytes = random.below(BLOCK as u64 - u64::from(offset)) as u32;
        let arguments = RecordArguments { transaction: 9, record, offset, bytes }.encode();
        let range = offset as usize..(offset + bytes) as usize;
        if random.chance(1, 2) {
            let new = random.bytes(bytes as usize);
            assert_eq!(rig.ask(0, handler::LOG_EDIT, &arguments, &new).0, 0);
            expected[record as usize][range].copy_from_slice(&new);
        } else {
            let to = (rig.atomic_write, 0, handler::LOG_READ);
            let done = rig.call(to, &arguments, &[], bytes as usize);
            assert_eq!((status(&done), done.result), (0, bytes));
            assert_eq!(done.buffer[..bytes as usize], expected[record as usize][range]);
        }
    }
    let wrong = |record, offset, bytes| RecordArguments { transaction: 9, record, offset, bytes }.encode();
    assert_eq!(rig.ask(0, handler::LOG_EDIT, &wrong(count as u32, 0, 1), b"x").0, wire::STATUS_NOT_FOUND);
    assert_eq!(rig.ask(0, handler::LOG_EDIT, &wrong(0, 512, 1), b"x").0, wire::STATUS_MALFORMED);
    assert_eq!(rig.ask(0, handler::LOG_EDIT, &wrong(0, 0, 2), b"x").0, wire::STATUS_MALFORMED);
    assert_eq!(rig.ask(0, handler::LOG_EDIT, &wrong(0, u32::MAX, 2), b"xy").0, wire::STATUS_MALFORMED);
    assert_eq!(rig.commit(9, 0, &[(0, count as u16)]), 0);
    for (number, bytes) in expected.iter().enumerate() {
        assert!(rig.read_block(number * 3) == *bytes, "write {number}");
    }
    assert_eq!(rig.ask(0, handler::LOG_EDIT, &wrong(0, 0, 1), b"x").0, wire::STATUS_NOT_FOUND);
    assert!(rig.is_clean());
}

fn senseless_requests_are_refused_and_leave_nothing(medium: Medium) {
    let mut rig = Rig::on(medium);
    let base = rig.base;
    let write =
        |nv_address, bytes| WriteArguments { transaction: 1, nv_address, bytes, flags: wire::FLAG_FIRST }.encode();
    assert_eq!(rig.ask(0, handler::LOG_WRITE, &write(base, 513), &[0; 512]).0, wire::STATUS_MALFORMED);
    assert_eq!(rig.ask(0, handler::LOG_WRITE, &write(base, 0), &[]).0, wire::STATUS_MALFORMED);
    assert_eq!(
        rig.ask(0, handler::LOG_WRITE, &write(base, wire::WRITE_BYTES_MAX + 1), &[0; 20000]).0,
        wire::STATUS_MALFORMED
    );
    assert_eq!(rig.ask(0, handler::LOG_WRITE, &write(u64::MAX - 4, 512), &[0; 512]).0, wire::STATUS_PERMISSION);
    assert_eq!(rig.ask(0, handler::LOG_WRITE, &[1; 23], &[]).0, wire::STATUS_MALFORMED);
    for count in [0, 13, u32::MAX] {
        assert_eq!(
            rig.ask(0, handler::VECTOR_LOG_WRITE, &write(0, count), &[0; 4000]).0,
            wire::STATUS_MALFORMED,
            "{count}"
        );
    }
    // A vector whose data are short, and one with a write that cannot be: the good one beside it is not there either.
    let mut vector = Vec::new();
    vector.extend(wire::VectorWrite { nv_address: base, bytes: 512 }.encode());
    vector.extend(wire::VectorWrite { nv_address: 1 << 60, bytes: 512 }.encode());
    assert_eq!(rig.ask(0, handler::VECTOR_LOG_WRITE, &write(0, 2), &vector).0, wire::STATUS_MALFORMED);
    vector.extend([1; 1024]);
    assert_eq!(rig.ask(0, handler::VECTOR_LOG_WRITE, &write(0, 2), &vector).0, wire::STATUS_PERMISSION);
    // The log's own region is no target.
    assert!(rig.is_clean());
    assert_eq!(rig.log(2, 0, 1, true).0, 0);
    assert_eq!(rig.log(2, 0, 1, true).0, wire::STATUS_EXISTS);
    assert_eq!(rig.log(3, 0, 1, false).0, wire::STATUS_NOT_FOUND);
    assert_eq!(rig.commit(3, 0, &[(0, 1)]), wire::STATUS_NOT_FOUND);
    // The coordinator takes part; nobody takes part that is not there; a participant without a part refuses.
    assert_eq!(rig.commit(2, 1, &[(0, 1)]), wire::STATUS_MALFORMED);
    assert_eq!(
        rig.ask(0, handler::COMMIT, &wire::CommitArguments { transaction: 2, participants: 9 }.encode(), &[1, 0, 1, 0])
            .0,
        wire::STATUS_MALFORMED
    );
    assert_eq!(rig.commit(2, 0, &[(0, 1), (2, 1)]), wire::STATUS_NOT_FOUND);
    assert!(rig.is_clean(), "a commit that was refused has ended the transaction");
    assert_eq!(rig.value(0), Some(0));
    // What instances tell each other comes from no host, not even a kernel's.
    for number in [
        handler::PREPARE,
        handler::APPLY,
        handler::CANCEL,
        handler::FORGET,
        handler::RESOLVE,
        handler::PROGRESS,
        handler::CARETAKER,
    ] {
        assert_eq!(rig.ask(0, number, &[0; 64], &[]).0, wire::STATUS_MALFORMED, "{number}");
    }
}

/// A log that one host fills is an error to that host; room comes back.
fn a_full_log_is_refused_and_room_comes_back(medium: Medium) {
    let mut rig = Rig::on(medium);
    let mut count = 0u16;
    let refused = loop {
        match rig.log(1, 0, 1, count == 0).0 {
            0 => count += 1,
            other => break other,
        }
        assert!(count < 60_000);
    };
    assert_eq!(refused, wire::STATUS_FULL);
    let statistics = rig.statistics(0);
    assert!(statistics.free_chunks >= statistics.chunks / 2 - 1, "{statistics:?}");
    // There is room for others on other processors, and for this one's commit.
    assert_eq!(rig.log(2, 1, 1, true).0, 0);
    assert_eq!(rig.commit(1, 0, &[(0, count)]), 0);
    assert_eq!(rig.value(0), Some(1));
    assert_eq!(rig.log(3, 0, 2, true).0, 0);
    assert_eq!(rig.commit(3, 0, &[(0, 1)]), 0);
    assert_eq!(rig.ask(1, handler::ABORT, &2u64.to_le_bytes(), &[]).0, 0);
    assert!(rig.is_clean());
}

/// Transactions that nobody asks for any more make way, those in use do not.
fn idle_transactions_make_way_where_there_is_no_room(medium: Medium) {
    let mut rig = Rig::on(medium);
    let mut opened = 0;
    while rig.log(opened, 0, 1, true).0 == 0 {
        opened += 1;
    }
    assert_eq!(opened, 128, "as many as it leaves free");
    rig.now_ns += 9_000_000_000;
    // This one is in use; the others will have been idle for 10 s soon.
    assert_eq!(rig.log(7, 0, 1, false).0, 0);
    assert_eq!(rig.log(1000, 0, 1, true).0, wire::STATUS_FULL);
    rig.now_ns += 2_000_000_000;
    assert_eq!(rig.log(1000, 0, 1, true).0, 0);
    assert_eq!(rig.log(0, 0, 1, false).0, wire::STATUS_NOT_FOUND, "the one that was idle longest has gone");
    assert_eq!(rig.commit(7, 0, &[(0, 2)]), 0);
}

/// Media that fail: before the decision nothing is done; after it all is, as soon as they let it.
#[test]
fn failing_media_abort_or_are_waited_for() {
    let (media, mut rig) = start(0);
    for number in 1..4 {
        assert_eq!(rig.log(number, 0, number as u32, true).0, 0);
        assert_eq!(rig.log(number, 1, number as u32, true).0, 0);
    }
    // A flush fails: a participant cannot prepare.
    media.fail_flushes(1);
    let refused = rig.commit(1, 0, &[(0, 1), (1, 1)]);
    assert_ne!(refused, 0);
    media.heal();
    rig.settle();
    assert_eq!((rig.value(0), rig.value(1)), (Some(0), Some(0)));
    // One target cannot be written: the commit is decided, and told as unfinished.
    let (_, address) = rig.address(1);
    media.fail_writes(1, address..address + 512);
    assert_eq!(rig.commit(2, 0, &[(0, 1), (1, 1)]), wire::STATUS_UNFINISHED);
    assert_eq!(rig.value(0), Some(2));
    media.heal();
    // It is tried again.
    rig.settle();
    assert_eq!(rig.value(1), Some(2));
    assert_eq!(rig.commit(3, 1, &[(0, 1), (1, 1)]), 0);
    assert_eq!((rig.value(0), rig.value(1)), (Some(3), Some(3)));
    assert!(rig.is_clean());
    // The same, and the power goes meanwhile: the next start does it.
    assert_eq!(rig.log(4, 0, 4, true).0, 0);
    assert_eq!(rig.log(4, 1, 4, true).0, 0);
    media.fail_writes(1, address..address + 512);
    assert_eq!(rig.commit(4, 0, &[(0, 1), (1, 1)]), wire::STATUS_UNFINISHED);
    media.heal();
    drop(rig);
    let left = media.power_cut(&mut Choices::seeded(1));
    let mut rig = Rig::open(Box::new(left.store())).unwrap();
    rig.settle();
    assert_eq!((rig.value(0), rig.value(1)), (Some(4), Some(4)));
    assert!(rig.is_clean());
}
