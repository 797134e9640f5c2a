//! The table against a reference model that knows each unit's rights, over more than a million random operations, and planted
//! mistakes that the same comparison finds.

use super::*;
use std::collections::BTreeMap;

/// What the comparison drives.
trait Table {
    fn permits(&mut self, process: u32, start: u64, bytes: u64, rights: Rights) -> bool;
    fn grant(&mut self, process: u32, extent: Extent);
    fn revoke(&mut self, process: u32, extent: Extent);
    fn revoke_all(&mut self, process: u32);
    fn table(&self) -> &PermissionTable;
}

impl Table for PermissionTable {
    fn permits(&mut self, process: u32, start: u64, bytes: u64, rights: Rights) -> bool {
        PermissionTable::permits(self, process, start, bytes, rights)
    }
    fn grant(&mut self, process: u32, extent: Extent) {
        PermissionTable::grant(self, process, extent);
    }
    fn revoke(&mut self, process: u32, extent: Extent) {
        PermissionTable::revoke(self, process, extent);
    }
    fn revoke_all(&mut self, process: u32) {
        PermissionTable::revoke_all(self, process);
    }
    fn table(&self) -> &PermissionTable {
        self
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// Bytes of the modelled bank.
const SPACE: u64 = 512;

/// Rights of every byte, by process: what was granted and not revoked, whatever was evicted.
#[derive(Default)]
struct Model(BTreeMap<u32, Vec<u8>>);

impl Model {
    fn bytes(&mut self, process: u32) -> &mut Vec<u8> {
        self.0.entry(process).or_insert_with(|| vec![0; SPACE as usize])
    }

    fn permits(&mut self, process: u32, start: u64, bytes: u64, rights: Rights) -> bool {
        let range = start as usize..(start + bytes) as usize;
        self.bytes(process)[range].iter().all(|held| Rights(*held).contain(rights))
    }

    /// Number of extents in the shortest form.
    fn extents(&self) -> usize {
        let runs = |bytes: &Vec<u8>| {
            let mut last = 0;
            bytes.iter().filter(|byte| std::mem::replace(&mut last, **byte) != **byte && **byte != 0).count()
        };
        self.0.values().map(runs).sum()
    }
}

/// Drives a table and the model with the same operations; the first difference as a sentence.
fn compare(table: &mut dyn Table, capacity: usize, seed: u64, operations: u64, reach: u64) -> Result<(), String> {
    let mut random = Random(seed);
    let mut model = Model::default();
    // Where nothing was ever evicted, both say the same; after that the table may say no where the model says yes.
    let mut just_used: Option<(u32, u64, u64, Rights)> = None;
    for operation in 0..operations {
        let process = 0x80000 + random.below(4) as u32;
        let start = random.below(SPACE);
        let bytes = random.below(reach.min(SPACE - start) + 1);
        let rights = Rights(1 + random.below(3) as u8);
        let extent = Extent { start, end: start + bytes, rights };
        let evicted_before = table.table().counters().evictions;
        let choice = random.below(100);
        match choice {
            0..40 => {
                table.grant(process, extent);
                for byte in &mut model.bytes(process)[start as usize..(start + bytes) as usize] {
                    *byte |= rights.0;
                }
            }
            40..60 => {
                table.revoke(process, extent);
                for byte in &mut model.bytes(process)[start as usize..(start + bytes) as usize] {
                    *byte &= !rights.0;
                }
                if bytes > 0 && table.permits(process, start, bytes, rights) {
                    return Err(format!("{operation}: {extent:?} of {process:x} is permitted after it was revoked"));
                }
                just_used = None;
            }
            60 => {
                table.revoke_all(process);
                model.0.remove(&process);
                just_used = None;
            }
            _ => {
                let says = table.permits(process, start, bytes, rights);
                let should = model.permits(process, start, bytes, rights);
                if says && !should {
                    return Err(format!("{operation}: {extent:?} of {process:x} is permitted and was not granted"));
                }
                if !says && should && table.table().counters().evictions == 0 {
                    return Err(format!("{operation}: {extent:?} of {process:x} was granted and is not permitted"));
                }
                if says && bytes > 0 {
                    just_used = Some((process, start, bytes, rights));
                }
            }
        }
        // What was used last outlives an eviction by the next grant, where there is more to evict.
        let evictions = table.table().counters().evictions - evicted_before;
        if choice < 40
            && let Some((process, start, bytes, rights)) = just_used.take()
            && evictions == 1
            && table.table().len() > 4 * RECENT
            && bytes == 1
            && !table.permits(process, start, bytes, rights)
        {
            return Err(format!("{operation}: what was used last is evicted ({start} of {process:x})"));
        }
        let held = table.table().len();
        if held > capacity {
            return Err(format!("{operation}: {held} extents in a table for {capacity}"));
        }
        if operation % 64 == 0 {
            check_form(table.table(), &mut model)?;
            if table.table().counters().evictions == 0 && held != model.extents() {
                return Err(format!("{operation}: {held} extents where {} would do", model.extents()));
            }
        }
    }
    Ok(())
}

/// Sorted, disjoint, in the shortest form, nothing that was not granted, and counted right.
fn check_form(table: &PermissionTable, model: &mut Model) -> Result<(), String> {
    let mut count = 0;
    for process in 0x80000..0x80004 {
        let extents = table.extents(process);
        count += extents.len();
        for pair in extents.windows(2) {
            let touching = pair[0].end == pair[1].start && pair[0].rights == pair[1].rights;
            if pair[0].end > pair[1].start || touching {
                return Err(format!("{:?} and {:?} of {process:x} overlap or are one", pair[0], pair[1]));
            }
        }
        for extent in extents {
            if extent.start >= extent.end
                || !model.permits(process, extent.start, extent.end - extent.start, extent.rights)
            {
                return Err(format!("{extent:?} of {process:x} is in the table and was not granted"));
            }
        }
    }
    if count == table.len() { Ok(()) } else { Err(format!("{count} extents, counted as {}", table.len())) }
}

#[test]
fn a_million_random_operations_agree_with_the_model() {
    for (seed, capacity, reach) in [
        (1, 1, 40),
        (2, 2, 40),
        (3, 12, 10),
        (4, 40, 40),
        (5, 200, 8),
        (6, 768, 3),
        (7, 768, 500),
        (8, 5000, 2),
        (9, 5000, 60),
        (10, 300, 4),
    ] {
        let mut table = PermissionTable::new(capacity);
        let agreed = compare(&mut table, capacity, seed, 120_000, reach);
        assert_eq!(agreed, Ok(()), "seed {seed}, capacity {capacity}, reach {reach}");
    }
}

/// The table with one mistake.
struct Planted {
    table: PermissionTable,
    mistake: Mistake,
    kept: Option<(u32, Extent)>,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Mistake {
    /// What was found last is remembered past its revocation.
    StaleRecent,
    /// A revocation forgets the last byte of its range.
    ShortRevoke,
    /// Read and write are the same.
    RightsIgnored,
    /// Another process' table is looked up where the own one has nothing.
    Neighbour,
    /// Eviction takes what was used last.
    EvictsTheLatest,
    /// A grant rounds its end up.
    GrantsMore,
}

impl Table for Planted {
    fn permits(&mut self, process: u32, start: u64, bytes: u64, rights: Rights) -> bool {
        let asked = Extent { start, end: start + bytes, rights };
        if self.mistake == Mistake::StaleRecent && self.kept == Some((process, asked)) {
            return true;
        }
        let rights = if self.mistake == Mistake::RightsIgnored { Rights::READ } else { rights };
        let mut says = self.table.permits(process, start, bytes, rights);
        if self.mistake == Mistake::Neighbour {
            says |= self.table.permits(process ^ 1, start, bytes, rights);
        }
        if says && bytes > 0 {
            self.kept = Some((process, asked));
        }
        says
    }
    fn grant(&mut self, process: u32, extent: Extent) {
        let mut extent = extent;
        if self.mistake == Mistake::GrantsMore && extent.start < extent.end {
            extent.end = extent.end.next_multiple_of(8).min(SPACE);
        }
        if self.mistake == Mistake::EvictsTheLatest
            && self.table.len() >= self.table.capacity
            && let Some((process, kept)) = self.kept.take()
        {
            self.table.revoke(process, kept);
            self.table.counters.evictions += 1;
        }
        self.table.grant(process, extent);
    }
    fn revoke(&mut self, process: u32, extent: Extent) {
        let mut extent = extent;
        if self.mistake == Mistake::ShortRevoke && extent.end > extent.start {
            extent.end -= 1;
        }
        self.table.revoke(process, extent);
    }
    fn revoke_all(&mut self, process: u32) {
        self.table.revoke_all(process);
    }
    fn table(&self) -> &PermissionTable {
        &self.table
    }
}

#[test]
fn planted_mistakes_are_found() {
    use Mistake::*;
    for mistake in [StaleRecent, ShortRevoke, RightsIgnored, Neighbour, EvictsTheLatest, GrantsMore] {
        let found = (1..20).find_map(|seed| {
            let capacity = if mistake == EvictsTheLatest { 40 } else { 5000 };
            let mut planted = Planted { table: PermissionTable::new(capacity), mistake, kept: None };
            compare(&mut planted, capacity, seed, 60_000, 6).err()
        });
        assert!(found.is_some(), "{mistake:?} was not found");
    }
}

#[test]
fn rights_add_up_and_are_taken_by_the_byte() {
    let mut table = PermissionTable::new(100);
    let of = |start, end, rights| Extent { start, end, rights };
    table.grant(7, of(100, 200, Rights::READ));
    table.grant(7, of(200, 300, Rights::READ));
    assert_eq!(table.extents(7), [of(100, 300, Rights::READ)]);
    table.grant(7, of(150, 250, Rights::WRITE));
    assert!(table.permits(7, 100, 200, Rights::READ) && table.permits(7, 150, 100, Rights::READ_WRITE));
    assert!(!table.permits(7, 149, 100, Rights::WRITE) && !table.permits(7, 250, 51, Rights::READ));
    assert!(!table.permits(8, 150, 1, Rights::READ) && table.permits(8, 150, 0, Rights::READ));
    assert!(!table.permits(7, u64::MAX, 2, Rights::READ));
    table.revoke(7, of(0, 1000, Rights::READ));
    assert_eq!(table.extents(7), [of(150, 250, Rights::WRITE)]);
    table.revoke(7, of(180, 190, Rights::READ_WRITE));
    assert_eq!(table.extents(7), [of(150, 180, Rights::WRITE), of(190, 250, Rights::WRITE)]);
    table.revoke_all(7);
    assert!(table.is_empty() && !table.permits(7, 150, 1, Rights::WRITE));
}

#[test]
fn who_has_most_loses_first() {
    let mut table = PermissionTable::new(100);
    for index in 0..10 {
        table.grant(1, Extent { start: index * 10, end: index * 10 + 5, rights: Rights::READ });
    }
    for index in 0..1000 {
        table.grant(2, Extent { start: index * 10, end: index * 10 + 5, rights: Rights::READ });
    }
    assert_eq!((table.extents(1).len(), table.extents(2).len(), table.len()), (10, 90, 100));
    assert_eq!(table.counters().evictions, 910);
    // The one that came last is there; it would be the wrong one to evict.
    assert!(table.permits(2, 9990, 5, Rights::READ));
    // Also where another asks for more: they come to have the same.
    for index in 0..60 {
        table.grant(1, Extent { start: 100_000 + index * 10, end: 100_005 + index * 10, rights: Rights::READ });
    }
    let (first, second) = (table.extents(1).len(), table.extents(2).len());
    assert!(first + second == 100 && first.abs_diff(second) <= 2, "{first} and {second}");
}

/// All that a process' look-ups read and change, which is what their time can depend on.
fn traces(table: &PermissionTable, number: u32) -> String {
    let Some(process) = table.processes.iter().find(|process| process.number == number) else { return String::new() };
    let used = |chunk: &Chunk| chunk.rest.iter().map(|rest| rest.used).collect::<Vec<_>>();
    let chunks: Vec<_> = process.chunks.iter().map(|chunk| (&chunk.starts, used(chunk))).collect();
    format!("{:?} {:?} {chunks:?} {}", process.recent, process.firsts, process.hand)
}

/// Runs the operations of process 7 in a table of its own, and in one that others use meanwhile; where they leave traces in what the
/// look-ups of process 7 go through, that is an error. `planted`: others' look-ups are, now and then, done as that process'.
fn spied(seed: u64, planted: bool) -> Result<(), String> {
    let (mut random, mut noise) = (Random(seed), Random(seed + 1000));
    let (mut alone, mut beside) = (PermissionTable::new(4096), PermissionTable::new(4096));
    for step in 0..3000 {
        let (start, bytes) = (random.below(400), 1 + random.below(60));
        let extent = Extent { start, end: start + bytes, rights: Rights(1 + random.below(3) as u8) };
        match random.below(8) {
            0 => [&mut alone, &mut beside].map(|table| table.revoke(7, extent)),
            1 | 2 => [&mut alone, &mut beside].map(|table| table.grant(7, extent)),
            _ => [&mut alone, &mut beside].map(|table| {
                table.permits(7, start, bytes, extent.rights);
            }),
        };
        for _ in 0..noise.below(6) {
            let other = [1, 6, 8, 1 << 19][noise.below(4) as usize];
            let number = if planted && noise.below(50) == 0 { 7 } else { other };
            let (start, bytes) = (noise.below(400), 1 + noise.below(60));
            match noise.below(4) {
                0 => beside.grant(other, Extent { start, end: start + bytes, rights: Rights::READ_WRITE }),
                1 => beside.revoke(other, Extent { start, end: start + bytes, rights: Rights::READ }),
                _ => drop(beside.permits(number, start, bytes, Rights::READ)),
            }
        }
        if traces(&alone, 7) != traces(&beside, 7) {
            return Err(format!("step {step}: others have left traces"));
        }
    }
    Ok(())
}

#[test]
fn what_a_look_up_goes_through_tells_nothing_of_other_processes() {
    for seed in 0..20 {
        assert_eq!(spied(seed, false), Ok(()));
    }
    assert!((0..20).any(|seed| spied(seed, true).is_err()), "a planted leak is found");
}
