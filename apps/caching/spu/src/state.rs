//! What an instance knows: caches, their slots, who may use which chunk, and what is under way. No input or output.
//!
//! What always holds:
//! - a slot that is linked has the chunk's bytes, and is found by the chunk; all else about it is meaningless in one that is not;
//! - who holds a slot ([`Busy`]) is alone in changing what the map says of it; who uses its bytes ([`Use`]) keeps it from being emptied, and never
//!   waits for who holds it;
//! - permissions are a chunk's: they go with it;
//! - all of it is zeroes at the start, so that the module has no bytes of it.

use crate::wire::{self, CACHES_MAX, CLAIM_NS, Counts, Descriptor, KEPT_NS, PROCESSES_MAX, SLOTS_MAX};
use base_io_ranges::Failure;
use core::cell::Cell;
use willow_sdk::sync::{Event, Mutex};

/// Requests of processes on an SPU at a time.
pub const USES_MAX: usize = 32;
/// Requests of the host's kernel on an SPU at a time that change a cache.
pub const CONTROLS_MAX: usize = 12;
/// Ages of chunks: new ones, and those that were used since they were looked at last.
const AGE_NEW: u8 = 0x40;
const AGE_USED: u8 = 0x80;
/// Slots that are looked at for one that makes way, when one was found.
const WINDOW: u32 = 64;
/// Heads of lists of slots by chunk; a power of two.
const LISTS: usize = 8192;

/// It has a chunk.
pub const LINKED: u8 = 1;
/// The backing file does not have the chunk.
pub const DIRTY: u8 = 2;
/// The map on the media says so, durably.
pub const DIRTY_DURABLE: u8 = 4;
/// What the map says of it is being changed.
pub const BUSY: u8 = 8;
/// The map on the media may say that it has a chunk.
pub const NAMED: u8 = 16;

/// It has not been used since it was put in, and is to be.
pub const KEPT: u8 = 32;

/// Why no slot makes way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crowded {
    /// All that could go is dirty.
    Dirty,
    /// The others are to be used first, or are just used.
    Used,
}

/// A place for a chunk.
pub struct Slot {
    /// The chunk.
    pub chunk: Cell<u64>,
    /// Grows with the beginning and the end of each write.
    pub written: Cell<u32>,
    /// When it was put in.
    pub put_in_ns: Cell<u64>,
    /// Processes that may read it, one bit each, and those that may write it.
    pub rights: [Cell<u32>; 2],
    /// The next slot of its list, from 1 on.
    next: Cell<u16>,
    /// Its cache.
    pub cache: Cell<u8>,
    /// [`LINKED`] and so on.
    pub flags: Cell<u8>,
    /// How lately it was used.
    pub age: Cell<u8>,
    /// Requests that use its bytes, and those of them that write.
    pub users: Cell<u8>,
    pub writers: Cell<u8>,
}

impl Slot {
    /// True where one of these is set.
    pub fn has(&self, flags: u8) -> bool {
        self.flags.get() & flags != 0
    }

    /// Sets some.
    pub fn set(&self, flags: u8) {
        self.flags.set(self.flags.get() | flags);
    }

    /// Takes some away.
    pub fn clear(&self, flags: u8) {
        self.flags.set(self.flags.get() & !flags);
    }
}

/// A cache.
pub struct Cache {
    /// It is there.
    pub is_known: Cell<bool>,
    /// It is being removed.
    pub is_closing: Cell<bool>,
    /// Where it lies in the bank.
    pub base: Cell<u64>,
    /// Bytes of a chunk, and chunks.
    pub chunk_bytes: Cell<u32>,
    pub slots: Cell<u32>,
    /// Its first slot among those of all caches.
    pub first: Cell<u32>,
    /// Chunks of the file.
    pub chunks: Cell<u64>,
    pub generation: Cell<u64>,
    pub writes_through: Cell<bool>,
    /// Of its manager; 0: it has none.
    pub epoch: Cell<u32>,
    /// When the manager was heard of last.
    pub seen_ns: Cell<u64>,
    /// Where the search for a slot goes on.
    hand: Cell<u32>,
    /// Slots that the media may say to have a chunk which they have not.
    pub doubtful: Cell<u32>,
    /// Since the start.
    pub hits: Cell<u64>,
    pub misses: Cell<u64>,
    pub writes: Cell<u64>,
    pub installs: Cell<u64>,
    pub evictions: Cell<u64>,
    /// One chunk is put in at a time.
    pub installing: Mutex<()>,
}

/// Adds one.
pub fn add(counter: &Cell<u64>) {
    counter.set(counter.get() + 1);
}

/// A request under way: whose, and in which slot; both from 1 on.
struct Under {
    process: Cell<u32>,
    slot: Cell<u32>,
}

/// Whether the map has been read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// It has not: requests wait.
    Unread = 0,
    /// It has.
    Ready = 1,
    /// It cannot be read: requests are refused.
    Failed = 2,
}

/// All that an instance knows.
pub struct State {
    start: Cell<u8>,
    pub caches: [Cache; CACHES_MAX],
    pub slots: [Slot; SLOTS_MAX],
    lists: [Cell<u16>; LISTS],
    processes: [Cell<u32>; PROCESSES_MAX],
    uses: [Under; USES_MAX],
    controls: Cell<u32>,
    /// One cache is made, changed or removed at a time.
    pub control: Mutex<()>,
    /// Something has ended that others may wait for.
    pub changed: Event,
}

/// Alone with what the map says of a slot, until dropped.
pub struct Busy<'a>(&'a State, pub usize);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.slots[self.1].clear(BUSY);
        self.0.changed.notify_all();
    }
}

/// Uses the bytes of a slot, until dropped.
pub struct Use<'a> {
    state: &'a State,
    pub slot: usize,
    place: usize,
    writes: bool,
}

impl Drop for Use<'_> {
    fn drop(&mut self) {
        let slot = &self.state.slots[self.slot];
        slot.users.set(slot.users.get() - 1);
        if self.writes {
            slot.writers.set(slot.writers.get() - 1);
            slot.written.set(slot.written.get().wrapping_add(1));
        }
        self.state.uses[self.place].slot.set(0);
        self.state.changed.notify_all();
    }
}

/// A place for a request of a process, until dropped.
pub struct Place<'a>(&'a State, usize);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.uses[self.1].process.set(0);
        self.0.changed.notify_all();
    }
}

/// A place for a request of the host's kernel, until dropped.
pub struct Control<'a>(&'a State);

impl Drop for Control<'_> {
    fn drop(&mut self) {
        self.0.controls.set(self.0.controls.get() - 1);
    }
}

impl State {
    /// As an instance begins: zeroes.
    pub const fn new() -> State {
        const fn zero() -> Cell<u64> {
            Cell::new(0)
        }
        State {
            start: Cell::new(Start::Unread as u8),
            caches: [const {
                Cache {
                    is_known: Cell::new(false),
                    is_closing: Cell::new(false),
                    base: zero(),
                    chunk_bytes: Cell::new(0),
                    slots: Cell::new(0),
                    first: Cell::new(0),
                    chunks: zero(),
                    generation: zero(),
                    writes_through: Cell::new(false),
                    epoch: Cell::new(0),
                    seen_ns: zero(),
                    hand: Cell::new(0),
                    doubtful: Cell::new(0),
                    hits: zero(),
                    misses: zero(),
                    writes: zero(),
                    installs: zero(),
                    evictions: zero(),
                    installing: Mutex::new(()),
                }
            }; CACHES_MAX],
            slots: [const {
                Slot {
                    chunk: zero(),
                    written: Cell::new(0),
                    put_in_ns: zero(),
                    rights: [const { Cell::new(0) }; 2],
                    next: Cell::new(0),
                    cache: Cell::new(0),
                    flags: Cell::new(0),
                    age: Cell::new(0),
                    users: Cell::new(0),
                    writers: Cell::new(0),
                }
            }; SLOTS_MAX],
            lists: [const { Cell::new(0) }; LISTS],
            processes: [const { Cell::new(0) }; PROCESSES_MAX],
            uses: [const { Under { process: Cell::new(0), slot: Cell::new(0) } }; USES_MAX],
            controls: Cell::new(0),
            control: Mutex::new(()),
            changed: Event::new(),
        }
    }

    /// The map has been read, or cannot be.
    pub fn begin(&self, start: Start) {
        self.start.set(start as u8);
        self.changed.notify_all();
    }

    /// Waits until the map has been read.
    pub async fn open(&self) -> Result<(), Failure> {
        while self.start.get() == Start::Unread as u8 {
            self.changed.wait().await;
        }
        if self.start.get() == Start::Ready as u8 { Ok(()) } else { Err(Failure(wire::STATUS_MEDIA_ERROR)) }
    }

    /// A place for a request of a process, of which it has at most as many as it leaves free.
    pub fn place(&self, process: u32) -> Result<Place<'_>, Failure> {
        let own = self.uses.iter().filter(|it| it.process.get() == process + 1).count();
        let mut free = (0..USES_MAX).filter(|place| self.uses[*place].process.get() == 0);
        match (free.next(), free.count()) {
            (Some(place), left) if own <= left => {
                self.uses[place].process.set(process + 1);
                Ok(Place(self, place))
            }
            _ => Err(Failure(wire::STATUS_BUSY)),
        }
    }

    /// A place for a request of the host's kernel.
    pub fn place_control(&self) -> Result<Control<'_>, Failure> {
        if self.controls.get() as usize >= CONTROLS_MAX {
            return Err(Failure(wire::STATUS_BUSY));
        }
        self.controls.set(self.controls.get() + 1);
        Ok(Control(self))
    }

    /// A cache that is there.
    pub fn known(&self, cache: u32) -> Result<&Cache, Failure> {
        let found = self.caches.get(cache as usize).filter(|it| it.is_known.get() && !it.is_closing.get());
        found.ok_or(Failure(wire::STATUS_ABSENT))
    }

    /// The same, where this is its manager's epoch.
    pub fn managed(&self, cache: u32, epoch: u32) -> Result<&Cache, Failure> {
        let known = self.known(cache)?;
        if epoch == 0 || known.epoch.get() != epoch { Err(Failure(wire::STATUS_STALE)) } else { Ok(known) }
    }

    fn list(&self, cache: u8, chunk: u64) -> &Cell<u16> {
        let mixed = (chunk ^ u64::from(cache) << 56).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.lists[(mixed >> 40) as usize % LISTS]
    }

    /// The slot that has a chunk.
    pub fn find(&self, cache: u32, chunk: u64) -> Option<usize> {
        let cache = cache as u8;
        let mut next = self.list(cache, chunk).get();
        while next != 0 {
            let slot = &self.slots[usize::from(next) - 1];
            if slot.chunk.get() == chunk && slot.cache.get() == cache {
                return Some(usize::from(next) - 1);
            }
            next = slot.next.get();
        }
        None
    }

    /// A slot has a chunk from now on.
    pub fn link(&self, slot: usize, cache: u32, chunk: u64) {
        let it = &self.slots[slot];
        let list = self.list(cache as u8, chunk);
        it.chunk.set(chunk);
        it.cache.set(cache as u8);
        it.next.set(list.replace(slot as u16 + 1));
        it.age.set(AGE_NEW);
        it.rights.iter().for_each(|rights| rights.set(0));
        it.clear(DIRTY | DIRTY_DURABLE | KEPT);
        it.set(LINKED);
    }

    /// A slot has no chunk any more.
    pub fn unlink(&self, slot: usize) {
        let it = &self.slots[slot];
        if !it.has(LINKED) {
            return;
        }
        let mut at = self.list(it.cache.get(), it.chunk.get());
        while at.get() != 0 && usize::from(at.get()) != slot + 1 {
            at = &self.slots[usize::from(at.get()) - 1].next;
        }
        at.set(it.next.get());
        it.rights.iter().for_each(|rights| rights.set(0));
        it.clear(LINKED | DIRTY | DIRTY_DURABLE);
    }

    /// Alone with a slot that nobody holds.
    pub fn hold(&self, slot: usize) -> Busy<'_> {
        self.slots[slot].set(BUSY);
        Busy(self, slot)
    }

    /// Uses a slot by a place; who holds it was asked for before.
    pub fn enter<'a>(&'a self, place: &Place<'a>, slot: usize, writes: bool) -> Use<'a> {
        let it = &self.slots[slot];
        it.users.set(it.users.get() + 1);
        if writes {
            it.writers.set(it.writers.get() + 1);
            it.written.set(it.written.get().wrapping_add(1));
        }
        self.uses[place.1].slot.set(slot as u32 + 1);
        Use { state: self, slot, place: place.1, writes }
    }

    /// A chunk was used.
    pub fn touch(&self, slot: usize) {
        let slot = &self.slots[slot];
        slot.age.set(slot.age.get() | AGE_USED);
        slot.clear(KEPT);
    }

    /// The slots of a cache.
    pub fn slots_of(&self, cache: &Cache) -> core::ops::Range<usize> {
        let first = cache.first.get() as usize;
        first..first + cache.slots.get() as usize
    }

    /// Slots that no cache has, so many behind each other.
    pub fn free_slots(&self, count: u32) -> Option<u32> {
        let mut first = 0;
        loop {
            let end = first + count;
            if end as usize > SLOTS_MAX {
                return None;
            }
            let known = self.caches.iter().filter(|it| it.is_known.get());
            let mut inside = known.filter(|it| it.first.get() < end && first < it.first.get() + it.slots.get());
            match inside.next() {
                Some(other) => first = other.first.get() + other.slots.get(),
                None => return Some(first),
            }
        }
    }

    /// An empty slot of a cache that nobody holds.
    pub fn empty(&self, cache: &Cache) -> Option<usize> {
        self.slots_of(cache).find(|slot| !self.slots[*slot].has(LINKED | BUSY))
    }

    /// The slot that makes way: one that was not used for long, by bits that a hand goes over and shifts out (a clock with eight of them), which
    /// nobody uses or holds. `dirty`: also one that the backing file does not have.
    pub fn oldest(&self, cache: &Cache, dirty: bool, now_ns: u64) -> Result<usize, Crowded> {
        let (first, count) = (cache.first.get(), cache.slots.get());
        let (mut found, mut looked): (Option<(usize, u8)>, u32) = (None, 0);
        let mut crowded = Crowded::Used;
        for _ in 0..count {
            let at = (first + cache.hand.get()) as usize;
            cache.hand.set((cache.hand.get() + 1) % count);
            let slot = &self.slots[at];
            if slot.has(LINKED) && slot.has(DIRTY) && !dirty {
                crowded = Crowded::Dirty;
                continue;
            }
            let is_kept = slot.has(KEPT) && now_ns.saturating_sub(slot.put_in_ns.get()) < KEPT_NS;
            if !slot.has(LINKED) || slot.has(BUSY) || slot.users.get() > 0 || is_kept {
                continue;
            }
            let age = slot.age.get();
            if age == 0 {
                return Ok(at);
            }
            if found.is_none_or(|(_, least)| age < least) {
                found = Some((at, age));
            }
            slot.age.set(age >> 1);
            looked += 1;
            if looked >= WINDOW {
                break;
            }
        }
        found.map(|(slot, _)| slot).ok_or(crowded)
    }

    /// The bit of a process, which it gets where `makes`.
    pub fn bit(&self, process: u32, makes: bool) -> Option<u32> {
        let place = |of: u32| self.processes.iter().position(|it| it.get() == of);
        let found = place(process).or_else(|| {
            let free = if makes { place(0) } else { None }?;
            self.processes[free].set(process);
            Some(free)
        })?;
        Some(1 << found)
    }

    /// Takes all rights of a process in these slots away; its bit is free where it has none left.
    pub fn forbid(&self, process: u32, slots: core::ops::Range<usize>) {
        let Some(bit) = self.bit(process, false) else { return };
        let those = self.slots[slots].iter().flat_map(|slot| &slot.rights);
        those.for_each(|rights| rights.set(rights.get() & !bit));
        let is_left = self.slots.iter().flat_map(|slot| &slot.rights).any(|rights| rights.get() & bit != 0);
        if !is_left {
            self.processes.iter().filter(|it| it.get() == process).for_each(|it| it.set(0));
        }
    }

    /// Waits until nothing of a process is under way; of all for 0. `slots`: in these.
    pub async fn quiet(&self, process: u32, slots: core::ops::Range<usize>) {
        let is_it = |it: &Under| {
            let slot = it.slot.get() as usize;
            (process == 0 || it.process.get() == process + 1) && slot != 0 && slots.contains(&(slot - 1))
        };
        while self.uses.iter().any(is_it) {
            self.changed.wait().await;
        }
    }

    /// Who manages a cache may do so alone: another may when that one was not heard of for long.
    pub fn may_claim(cache: &Cache, epoch: u32, now_ns: u64) -> bool {
        let has = cache.epoch.get();
        has == 0 || has == epoch || now_ns.saturating_sub(cache.seen_ns.get()) > CLAIM_NS
    }

    /// A cache is there from now on, without chunks.
    pub fn make(&self, number: usize, descriptor: &Descriptor, base: u64, first: u32) {
        let cache = &self.caches[number];
        let numbers = [&cache.hits, &cache.misses, &cache.writes, &cache.installs, &cache.evictions, &cache.seen_ns];
        numbers.iter().for_each(|number| number.set(0));
        cache.is_closing.set(false);
        cache.base.set(base);
        cache.chunk_bytes.set(descriptor.chunk_bytes);
        cache.slots.set(descriptor.slots);
        cache.first.set(first);
        cache.chunks.set(descriptor.chunks());
        cache.generation.set(descriptor.generation);
        cache.writes_through.set(descriptor.writes_through);
        cache.epoch.set(0);
        cache.hand.set(0);
        cache.doubtful.set(0);
        self.slots_of(cache).for_each(|slot| self.slots[slot].flags.set(0));
        cache.is_known.set(true);
    }

    /// What is told of a cache.
    pub fn counts(&self, cache: &Cache) -> Counts {
        let count = |flags: u8| self.slots_of(cache).filter(|slot| self.slots[*slot].has(flags)).count() as u64;
        Counts {
            epoch: cache.epoch.get().into(),
            used: count(LINKED),
            dirty: count(DIRTY),
            hits: cache.hits.get(),
            misses: cache.misses.get(),
            writes: cache.writes.get(),
            installs: cache.installs.get(),
            evictions: cache.evictions.get(),
        }
    }
}

impl Default for State {
    fn default() -> Self {
        Self::new()
    }
}
