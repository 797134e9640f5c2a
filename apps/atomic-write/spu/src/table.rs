//! The transactions that an SPU knows, and the log's chunks.
//!
//! What always holds:
//! - a chunk is free or one transaction's; it is free again only when nothing that was begun may still write to it;
//! - a process has at most as many places, and as many chunks, as it leaves free: whoever hoards leaves others theirs;
//! - links and numbers are one higher than what they name: 0 is none, so that the state is all zeroes at first.

use crate::format::{CHUNKS_MAX, Entry, HEAD_ENTRIES, HEADS, NONE, PAGE_ENTRIES};
use core::cell::Cell;

/// Lists that transactions are found by.
const BUCKETS: usize = 256;

/// How far a transaction is on this SPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The place is free.
    Free,
    /// Writes are added to it.
    Open,
    /// A coordinator has asked for it; the answer is not given yet.
    Preparing,
    /// It is prepared, durably; the coordinator decides.
    Prepared,
    /// It is committed, and being applied.
    Applying,
    /// It is committed, and its process may not write there any more: the caretaker is to apply it.
    Handed,
    /// It is committed and could not be applied; the head says so, for the next start.
    Stuck,
    /// It is applied, durably; the coordinator says when all are.
    Applied,
    /// Of the coordinator's own part: it is applied, and that of another is not yet.
    Unfinished,
    /// Of the coordinator's own part: all have applied it, and are to be told that they may forget it.
    Finished,
}

/// Set in the first half of a key: the second half is a coordinator's number of a commit, and not a host's of a transaction.
const OF_COMMIT: u64 = 1 << 32;

/// A transaction's part on this SPU.
pub struct Part {
    /// How far it is.
    pub stage: Cell<Stage>,
    /// Whose it is: a process, or 0 for the host's kernel.
    pub owner: Cell<u32>,
    /// The host's number of it.
    pub transaction: Cell<u64>,
    /// A request works on it.
    pub busy: Cell<bool>,
    /// The device's time of the last request.
    pub used_ns: Cell<u64>,
    /// Writes in it.
    pub entries: Cell<u32>,
    /// Sum over its entries.
    pub sum: Cell<u64>,
    /// First and last chunk, and how many.
    first_chunk: Cell<u16>,
    last_chunk: Cell<u16>,
    chunks: Cell<u16>,
    /// Bytes of the last chunk that are taken.
    pub taken_bytes: Cell<u32>,
    /// The last chunk's page is taken.
    pub page_taken: Cell<bool>,
    /// Pages of entries beyond the head: the first, and the last, which is in `tail`.
    pub first_page: Cell<u16>,
    pub last_page: Cell<u16>,
    /// The commit: its coordinator, the coordinator's number of it, and who takes part.
    pub coordinator: Cell<u16>,
    pub number: Cell<u64>,
    pub participants: Cell<u64>,
    /// Entries of the head.
    pub head: [Cell<Entry>; HEAD_ENTRIES],
    /// Entries of the last page.
    pub tail: [Cell<Entry>; PAGE_ENTRIES],
    /// What it is found by, and the next one in its list.
    key: Cell<(u64, u64)>,
    next: Cell<u16>,
}

impl Part {
    const fn new() -> Part {
        Part {
            stage: Cell::new(Stage::Free),
            owner: Cell::new(0),
            transaction: Cell::new(0),
            busy: Cell::new(false),
            used_ns: Cell::new(0),
            entries: Cell::new(0),
            sum: Cell::new(0),
            first_chunk: Cell::new(0),
            last_chunk: Cell::new(0),
            chunks: Cell::new(0),
            taken_bytes: Cell::new(0),
            page_taken: Cell::new(false),
            first_page: Cell::new(0),
            last_page: Cell::new(0),
            coordinator: Cell::new(0),
            number: Cell::new(0),
            participants: Cell::new(0),
            head: [const { Cell::new(Entry::EMPTY) }; HEAD_ENTRIES],
            tail: [const { Cell::new(Entry::EMPTY) }; PAGE_ENTRIES],
            key: Cell::new((0, 0)),
            next: Cell::new(0),
        }
    }

    fn begin(&self, owner: u32, transaction: u64) {
        self.stage.set(Stage::Open);
        self.owner.set(owner);
        self.transaction.set(transaction);
        self.busy.set(false);
        self.entries.set(0);
        self.sum.set(0);
        self.first_chunk.set(0);
        self.last_chunk.set(0);
        self.chunks.set(0);
        self.taken_bytes.set(0);
        self.page_taken.set(false);
        self.first_page.set(0);
        self.last_page.set(0);
    }

    /// The chunk that writes are added to.
    pub fn last_chunk(&self) -> Option<u32> {
        named(self.last_chunk.get())
    }

    /// The first page of entries as a head names it.
    pub fn first_page_number(&self) -> u32 {
        named(self.first_page.get()).unwrap_or(NONE)
    }
}

/// What a link names.
pub fn named(link: u16) -> Option<u32> {
    link.checked_sub(1).map(u32::from)
}

/// The link that names something.
pub fn link(number: u32) -> u16 {
    number as u16 + 1
}

/// All of them.
pub struct Table {
    parts: [Part; HEADS],
    /// First of each list.
    lists: [Cell<u16>; BUCKETS],
    /// The first free place among those that were taken before, linked by `next`, and how many never were.
    free_part: Cell<u16>,
    fresh_parts: Cell<u16>,
    taken_parts: Cell<u16>,
    /// The same for chunks; the chunks of a transaction are linked as well.
    chunk_next: [Cell<u16>; CHUNKS_MAX],
    free_chunk: Cell<u16>,
    fresh_chunks: Cell<u16>,
    chunks: Cell<u32>,
    free_chunks: Cell<u32>,
}

impl Table {
    /// Nothing is there.
    pub const fn new() -> Table {
        Table {
            parts: [const { Part::new() }; HEADS],
            lists: [const { Cell::new(0) }; BUCKETS],
            free_part: Cell::new(0),
            fresh_parts: Cell::new(0),
            taken_parts: Cell::new(0),
            chunk_next: [const { Cell::new(0) }; CHUNKS_MAX],
            free_chunk: Cell::new(0),
            fresh_chunks: Cell::new(0),
            chunks: Cell::new(0),
            free_chunks: Cell::new(0),
        }
    }

    /// The log has so many chunks, all of them free.
    pub fn set_chunks(&self, chunks: u32) {
        self.chunks.set(chunks);
        self.free_chunks.set(chunks);
        self.free_chunk.set(0);
        self.fresh_chunks.set(0);
    }

    /// Chunks of the log, and those that are free.
    pub fn chunks(&self) -> (u32, u32) {
        (self.chunks.get(), self.free_chunks.get())
    }

    /// A place.
    pub fn part(&self, index: usize) -> &Part {
        &self.parts[index]
    }

    /// All places that are taken.
    pub fn taken(&self) -> impl Iterator<Item = (usize, &Part)> {
        self.parts.iter().enumerate().filter(|(_, part)| part.stage.get() != Stage::Free)
    }

    fn list(&self, (of, number): (u64, u64)) -> &Cell<u16> {
        &self.lists[(number ^ number >> 8 ^ of << 3) as usize % BUCKETS]
    }

    fn find_key(&self, key: (u64, u64)) -> Option<usize> {
        let mut link = self.list(key).get();
        while let Some(index) = named(link) {
            let part = &self.parts[index as usize];
            if part.key.get() == key {
                return Some(index as usize);
            }
            link = part.next.get();
        }
        None
    }

    /// The transaction of that owner and number that writes may be added to.
    pub fn find(&self, owner: u32, transaction: u64) -> Option<usize> {
        self.find_key((owner.into(), transaction))
    }

    /// The part of a commit.
    pub fn find_commit(&self, coordinator: u32, number: u64) -> Option<usize> {
        self.find_key((OF_COMMIT | u64::from(coordinator), number))
    }

    /// Whether a process that holds so many may have one more while so many are free.
    fn has_share(held: u32, free: u32, all: u32) -> bool {
        // Nobody can hold more than is free while more than half of all is free.
        free * 2 > all || held < free
    }

    /// A place for a new transaction of that owner; `None` where there is none for it.
    pub fn begin(&self, owner: u32, transaction: u64) -> Option<usize> {
        let (taken, all) = (u32::from(self.taken_parts.get()), HEADS as u32);
        let free = all - taken;
        if free == 0 {
            return None;
        }
        if free * 2 <= all {
            let held = self.taken().filter(|(_, part)| part.owner.get() == owner).count() as u32;
            if !Self::has_share(held, free, all) {
                return None;
            }
        }
        let index = match named(self.free_part.get()) {
            Some(index) => {
                self.free_part.set(self.parts[index as usize].next.get());
                index
            }
            None => {
                let fresh = self.fresh_parts.get();
                self.fresh_parts.set(fresh + 1);
                u32::from(fresh)
            }
        };
        self.enter(index as usize, owner, transaction);
        Some(index as usize)
    }

    /// Takes a certain place, which is free, for a commit that the media have there; before any [`Self::begin`]. Its chunks are not
    /// known: the log is not to be used before all such places are free.
    pub fn restore(&self, index: usize, transaction: u64, coordinator: u16, number: u64) {
        let part = &self.parts[index];
        part.begin(0, transaction);
        part.coordinator.set(coordinator);
        part.number.set(number);
        self.put_in_list(index, (OF_COMMIT | u64::from(coordinator), number));
        self.taken_parts.set(self.taken_parts.get() + 1);
    }

    /// All is free; for after [`Self::restore`].
    pub fn restored(&self) {
        self.free_part.set(0);
        self.fresh_parts.set(0);
    }

    fn enter(&self, index: usize, owner: u32, transaction: u64) {
        self.parts[index].begin(owner, transaction);
        self.put_in_list(index, (owner.into(), transaction));
        self.taken_parts.set(self.taken_parts.get() + 1);
    }

    fn put_in_list(&self, index: usize, key: (u64, u64)) {
        let part = &self.parts[index];
        part.key.set(key);
        part.next.set(self.list(key).replace(link(index as u32)));
    }

    fn take_from_list(&self, index: usize) {
        let part = &self.parts[index];
        let mut place = self.list(part.key.get());
        while let Some(other) = named(place.get()) {
            if other as usize == index {
                place.set(part.next.get());
                return;
            }
            place = &self.parts[other as usize].next;
        }
    }

    /// From now on it is found by its commit, and its host's number may be used again.
    pub fn enter_commit(&self, index: usize, coordinator: u32, number: u64, participants: u64) {
        self.take_from_list(index);
        let part = &self.parts[index];
        part.coordinator.set(coordinator as u16);
        part.number.set(number);
        part.participants.set(participants);
        self.put_in_list(index, (OF_COMMIT | u64::from(coordinator), number));
    }

    /// The place is free, and so are its chunks.
    pub fn free(&self, index: usize) {
        self.take_from_list(index);
        let part = &self.parts[index];
        if let Some(last) = named(part.last_chunk.get()) {
            self.chunk_next[last as usize].set(self.free_chunk.replace(part.first_chunk.get()));
            self.free_chunks.set(self.free_chunks.get() + u32::from(part.chunks.get()));
        }
        part.stage.set(Stage::Free);
        part.busy.set(false);
        part.next.set(self.free_part.replace(link(index as u32)));
        self.taken_parts.set(self.taken_parts.get() - 1);
    }

    /// Takes one more chunk for a transaction; `None` where there is none for its owner.
    pub fn take_chunk(&self, index: usize) -> Option<u32> {
        let part = &self.parts[index];
        let (free, all) = (self.free_chunks.get(), self.chunks.get());
        if free == 0 {
            return None;
        }
        if free * 2 <= all {
            let owner = part.owner.get();
            let own = self.taken().filter(|(_, part)| part.owner.get() == owner);
            let held = own.map(|(_, part)| u32::from(part.chunks.get())).sum();
            if !Self::has_share(held, free, all) {
                return None;
            }
        }
        self.free_chunks.set(free - 1);
        let chunk = match named(self.free_chunk.get()) {
            Some(chunk) => {
                self.free_chunk.set(self.chunk_next[chunk as usize].get());
                chunk
            }
            None => {
                let fresh = self.fresh_chunks.get();
                self.fresh_chunks.set(fresh + 1);
                u32::from(fresh)
            }
        };
        match named(part.last_chunk.get()) {
            Some(last) => self.chunk_next[last as usize].set(link(chunk)),
            None => part.first_chunk.set(link(chunk)),
        }
        part.last_chunk.set(link(chunk));
        part.chunks.set(part.chunks.get() + 1);
        part.taken_bytes.set(0);
        part.page_taken.set(false);
        Some(chunk)
    }

    /// The transaction that was idle longest, no request works on, and that nobody has asked for since `before_ns`.
    pub fn idle_longest(&self, before_ns: u64) -> Option<usize> {
        let idle = self
            .taken()
            .filter(|(_, part)| part.stage.get() == Stage::Open && !part.busy.get() && part.used_ns.get() < before_ns);
        idle.min_by_key(|(_, part)| part.used_ns.get()).map(|(index, _)| index)
    }
}

impl Default for Table {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(chunks: u32) -> Box<Table> {
        let table = Box::new(Table::new());
        table.set_chunks(chunks);
        table
    }

    #[test]
    fn transactions_are_found_by_owner_and_number() {
        let table = table(100);
        let places: Vec<usize> = (0..100).map(|number| table.begin(number % 7, number.into()).unwrap()).collect();
        for (number, place) in (0..100).zip(&places) {
            assert_eq!(table.find(number % 7, number.into()), Some(*place));
            assert_eq!(table.find(number % 7 + 1, number.into()), None);
        }
        for (number, place) in (0..100u32).zip(&places).filter(|(number, _)| number % 3 == 0) {
            table.enter_commit(*place, 3, 1000 + u64::from(number), 8);
            assert_eq!(table.find(number % 7, number.into()), None);
            assert_eq!(table.find_commit(3, 1000 + u64::from(number)), Some(*place));
            table.free(*place);
            assert_eq!(table.find_commit(3, 1000 + u64::from(number)), None);
        }
        assert_eq!(table.taken().count(), 66);
        assert!((0..100).filter(|number| number % 3 != 0).all(|n| table.find(n % 7, n.into()).is_some()));
    }

    #[test]
    fn whoever_hoards_leaves_as_much_for_others() {
        let table = table(64);
        let hoard = (0..).take_while(|number| table.begin(1, *number).is_some()).count();
        assert_eq!(hoard, HEADS / 2);
        let second = (0..).take_while(|number| table.begin(2, *number).is_some()).count();
        assert_eq!(second, HEADS / 4);
        assert!(table.begin(3, 0).is_some());
        let first = table.find(1, 0).unwrap();
        let chunks = (0..).take_while(|_| table.take_chunk(first).is_some()).count();
        assert_eq!(chunks, 32);
        // Another transaction of the same owner has no more.
        assert_eq!(table.take_chunk(table.find(1, 1).unwrap()), None);
        let other = table.find(2, 0).unwrap();
        assert_eq!((0..).take_while(|_| table.take_chunk(other).is_some()).count(), 16);
        assert_eq!(table.chunks(), (64, 16));
    }

    #[test]
    fn chunks_come_back_and_are_nobody_elses_meanwhile() {
        let table = table(20);
        let mut taken = std::collections::BTreeMap::new();
        let mut state = 1u64;
        for _ in 0..5000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let owner = (state >> 33) as u32 % 6;
            match table.find(owner, 1) {
                Some(place) if state >> 40 & 3 == 0 => {
                    table.free(place);
                    taken.retain(|_, of| *of != owner);
                }
                found => {
                    let place = found.unwrap_or_else(|| table.begin(owner, 1).unwrap());
                    if let Some(chunk) = table.take_chunk(place) {
                        assert!(chunk < 20 && taken.insert(chunk, owner).is_none(), "chunk {chunk} is taken");
                    }
                }
            }
            assert_eq!(table.chunks().1 as usize, 20 - taken.len());
        }
    }

    #[test]
    fn the_longest_idle_one_is_found() {
        let table = table(4);
        for number in 0..4u64 {
            let place = table.begin(1, number).unwrap();
            table.part(place).used_ns.set(100 - number * 10);
        }
        assert_eq!(table.idle_longest(65), None);
        assert_eq!(table.idle_longest(75), table.find(1, 3));
        table.part(table.find(1, 3).unwrap()).busy.set(true);
        assert_eq!(table.idle_longest(90), table.find(1, 2));
    }
}
