//! The words of one endpoint as loom has them.
//!
//! What always holds: positions, flags and the first word of each entry are loom's atomics: every value that the orderings
//! allow is read, in every order. All other words, and the data area, are loom's cells: a read and a write that no ordering
//! keeps apart are an error, also where both would happen to see the right value. So the models ask for more than the rings
//! need of relaxed atomics, and what they show holds for words that are not atomic, too. It also makes up for what loom does
//! not try: a load that is carried out after a later store of its own thread.

use crate::plant::{Mistake, Plant, Side};
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, AtomicU64, fence};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use willow_shm::layout::{
    AT_COMPLETION_HEAD, AT_DEVICE_ASLEEP, AT_HOST_ASLEEP, AT_MAGIC, AT_SUBMISSION_HEAD, AT_VERSION, AT_VIEW_VERSION,
    Layout, SLOT_WORDS,
};
use willow_shm::rings::Words;

/// The memory that both ends share. Loom's threads take turns on one of the machine's.
pub struct Memory {
    firsts: BTreeMap<usize, AtomicU64>,
    halves: BTreeMap<usize, AtomicU32>,
    /// What follows the first word of an entry, by the first word's offset.
    rest: BTreeMap<usize, UnsafeCell<[u64; SLOT_WORDS]>>,
    data: Vec<UnsafeCell<u64>>,
}

impl Memory {
    /// Zeroes, with room for the data of so many commands.
    pub fn new(layout: &Layout, data: usize) -> Rc<Memory> {
        let mut memory =
            Memory { firsts: BTreeMap::new(), halves: BTreeMap::new(), rest: BTreeMap::new(), data: Vec::new() };
        for half in [AT_SUBMISSION_HEAD, AT_DEVICE_ASLEEP, AT_COMPLETION_HEAD, AT_HOST_ASLEEP] {
            memory.halves.insert(half, AtomicU32::new(0));
        }
        for position in 0..u64::from(layout.entries) {
            for at in [layout.slot(position), layout.completion(position)] {
                memory.firsts.insert(at, AtomicU64::new(0));
                memory.rest.insert(at, UnsafeCell::new([0; SLOT_WORDS]));
            }
        }
        memory.data = (0..data).map(|_| UnsafeCell::new(0)).collect();
        Rc::new(memory)
    }

    /// Writes a command's data.
    pub fn write_data(&self, place: usize, value: u64) {
        // SAFETY: loom panics before where another thread may have the cell.
        self.data[place].with_mut(|cell| unsafe { *cell = value });
    }

    /// Reads a command's data.
    pub fn read_data(&self, place: usize) -> u64 {
        // SAFETY: as for `write_data`.
        self.data[place].with(|cell| unsafe { *cell })
    }
}

/// The memory as one end reaches it, with the mistake that was planted there.
pub struct End {
    memory: Rc<Memory>,
    side: Side,
    mistake: Option<Mistake>,
    /// Words that wait for the first one of their entry.
    stashed: RefCell<Vec<(usize, u64)>>,
    /// This end has just said that it sleeps.
    sleeping: Cell<bool>,
}

impl End {
    /// One end.
    pub fn new(memory: &Rc<Memory>, side: Side, plant: Option<Plant>) -> Self {
        let mistake = plant.filter(|plant| plant.0 == side).map(|plant| plant.1);
        End { memory: memory.clone(), side, mistake, stashed: RefCell::default(), sleeping: Cell::new(false) }
    }

    /// Whether this mistake is planted here.
    pub fn makes(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }

    /// Says that this end sleeps, where [`Mistake::FlagAfterLook`] has kept that back.
    pub fn raise_flag(&self) {
        self.write_half(self.flag(), 1, Ordering::Relaxed);
    }

    /// Loom keeps stores of two threads to one place in no order, and would let a thread read its own swap again after it has
    /// seen a later store of the other. Where both ends write, a store is a swap here too: these loom keeps in order.
    fn write_half(&self, at: usize, half: u32, order: Ordering) {
        if at == AT_HOST_ASLEEP {
            self.memory.halves[&at].swap(half, order);
        } else {
            self.memory.halves[&at].store(half, order);
        }
    }

    fn order(&self, order: Ordering, weak: &[Mistake]) -> Ordering {
        if self.mistake.is_some_and(|mistake| weak.contains(&mistake)) { Ordering::Relaxed } else { order }
    }

    fn flag(&self) -> usize {
        match self.side {
            Side::Host => AT_HOST_ASLEEP,
            Side::Device => AT_DEVICE_ASLEEP,
        }
    }

    /// The cell that a word lies in, and which of its words it is.
    fn rest(&self, at: usize) -> (&UnsafeCell<[u64; SLOT_WORDS]>, usize) {
        let (first, cell) = self.memory.rest.range(..at).next_back().expect("a word of an entry");
        (cell, (at - first) / 8)
    }

    fn put(&self, at: usize, word: u64) {
        let (cell, index) = self.rest(at);
        // SAFETY: loom panics before where another thread may have the cell.
        cell.with_mut(|cell| unsafe { (*cell)[index] = word });
    }
}

impl Words for End {
    fn load(&self, at: usize, order: Ordering) -> u64 {
        match self.memory.firsts.get(&at) {
            Some(first) => first.load(self.order(order, &[Mistake::RelaxedLook])),
            None => {
                let (cell, index) = self.rest(at);
                // SAFETY: loom panics before where another thread may write the cell.
                cell.with(|cell| unsafe { (*cell)[index] })
            }
        }
    }

    fn store(&self, at: usize, word: u64, order: Ordering) {
        if at == AT_MAGIC {
            // Nobody looks at it again.
        } else if let Some(first) = self.memory.firsts.get(&at) {
            first.store(word, self.order(order, &[Mistake::RelaxedPublish]));
            for (at, word) in self.stashed.take() {
                self.put(at, word);
            }
        } else if self.makes(Mistake::FirstWordFirst) {
            self.stashed.borrow_mut().push((at, word));
        } else {
            self.put(at, word);
        }
    }

    fn load_half(&self, at: usize, order: Ordering) -> u32 {
        self.memory.halves[&at].load(self.order(order, &[Mistake::RelaxedHead]))
    }

    fn store_half(&self, at: usize, half: u32, order: Ordering) {
        if at == AT_VERSION || at == AT_VIEW_VERSION {
            return;
        }
        self.sleeping.set(at == self.flag() && half == 1);
        if self.sleeping.get() && self.makes(Mistake::FlagAfterLook) {
            return;
        }
        self.write_half(at, half, self.order(order, &[Mistake::RelaxedShow]));
    }

    fn swap_half(&self, at: usize, half: u32, order: Ordering) -> u32 {
        self.memory.halves[&at].swap(half, order)
    }

    fn fence(&self) {
        let missing = if self.sleeping.take() { Mistake::NoFenceBeforeSleeping } else { Mistake::NoFenceBeforeRinging };
        if !self.makes(missing) {
            fence(Ordering::SeqCst);
        }
    }
}
