//! What the processes have prepared on this SPU.
//!
//! What always holds: all sets together have [`TOTAL_BYTES_MAX`] and [`SETS_MAX`] at most; a set that is being used stays; where there is no
//! more room, the process with most bytes loses the one that was used longest ago, so that nobody loses what is his to another who has less.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};

use memchr::memmem;
use regex_automata::dfa::dense::DFA;

use crate::segment::Set;
use crate::wire::{Prepare, SET_BYTES_MAX};

/// Most sets.
const SETS_MAX: usize = 64;
/// Most bytes of all sets.
const TOTAL_BYTES_MAX: usize = 448 << 10;
const _: () = assert!(SET_BYTES_MAX * 2 <= TOTAL_BYTES_MAX);
/// What a set takes besides its bytes.
const OVERHEAD_BYTES: usize = 128;

/// A set as it is kept.
pub struct Kept {
    head: Prepare,
    /// The literal, and the automaton at the next multiple of four bytes.
    words: Vec<u32>,
}

impl Kept {
    fn bytes(words: &[u32]) -> &[u8] {
        // SAFETY: bytes have no alignment and no invalid values, and there are four for each word.
        unsafe { core::slice::from_raw_parts(words.as_ptr().cast(), words.len() * 4) }
    }

    /// Room for what is to be received; `None` where there is no memory.
    pub fn room(head: &Prepare) -> Option<Vec<u32>> {
        let words = (head.automaton_offset() + head.automaton_bytes as usize).div_ceil(4);
        let mut room = Vec::new();
        room.try_reserve_exact(words).ok()?;
        room.resize(words, 0);
        Some(room)
    }

    /// The same as bytes, to be received into.
    pub fn bytes_mut(words: &mut [u32]) -> &mut [u8] {
        // SAFETY: as in `bytes`; any bytes are words.
        unsafe { core::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), words.len() * 4) }
    }

    /// Of what was received; `None` where the automaton is none.
    pub fn new(head: Prepare, words: Vec<u32>) -> Option<Kept> {
        let kept = Kept { head, words };
        let automaton = kept.automaton();
        if !automaton.is_empty() {
            // All that a search relies on is checked here.
            let (_, bytes) = DFA::from_bytes(automaton).ok()?;
            if bytes != automaton.len() {
                return None;
            }
        }
        Some(kept)
    }

    fn automaton(&self) -> &[u8] {
        let begin = self.head.automaton_offset();
        &Self::bytes(&self.words)[begin..begin + self.head.automaton_bytes as usize]
    }

    /// Ready to search with.
    pub fn set(&self) -> Set<'_> {
        let literal = &Self::bytes(&self.words)[..self.head.literal_bytes as usize];
        let automaton = self.automaton();
        // SAFETY: `new` has checked these bytes by `from_bytes`, and nothing has changed them since.
        let parsed = (!automaton.is_empty()).then(|| unsafe { DFA::from_bytes_unchecked(automaton) });
        Set {
            options: self.head.options,
            literal: (!literal.is_empty()).then(|| memmem::Finder::new(literal)),
            automaton: parsed.and_then(Result::ok).map(|(automaton, _)| automaton),
        }
    }

    fn room_taken(&self) -> usize {
        self.words.len() * 4 + OVERHEAD_BYTES
    }
}

struct Entry {
    number: u32,
    process: u32,
    used: u64,
    kept: Arc<Kept>,
}

/// All sets of an SPU.
pub struct Sets {
    entries: RefCell<Vec<Entry>>,
    /// Number of the last set.
    last: Cell<u32>,
    /// Counts uses.
    uses: Cell<u64>,
    /// Bytes that are being received.
    receiving: Cell<usize>,
}

impl Sets {
    /// None.
    pub const fn new() -> Sets {
        Sets { entries: RefCell::new(Vec::new()), last: Cell::new(0), uses: Cell::new(0), receiving: Cell::new(0) }
    }

    fn next_use(&self) -> u64 {
        self.uses.set(self.uses.get() + 1);
        self.uses.get()
    }

    /// Makes room for a set of a process; false where everything else is in use.
    pub fn reserve(&self, process: u32, head: &Prepare) -> bool {
        let bytes = head.automaton_offset() + head.automaton_bytes as usize + OVERHEAD_BYTES;
        let mut entries = self.entries.borrow_mut();
        let taken = |entries: &[Entry]| entries.iter().map(|entry| entry.kept.room_taken()).sum::<usize>();
        while entries.len() >= SETS_MAX || taken(&entries) + self.receiving.get() + bytes > TOTAL_BYTES_MAX {
            // What a process has, its new set included.
            let has = |of: u32| {
                let own = entries.iter().filter(|entry| entry.process == of).map(|entry| entry.kept.room_taken());
                own.sum::<usize>() + if of == process { bytes } else { 0 }
            };
            let free = entries.iter().enumerate().filter(|(_, entry)| Arc::strong_count(&entry.kept) == 1);
            let victim = free.max_by_key(|(_, entry)| (has(entry.process), u64::MAX - entry.used));
            let Some((index, _)) = victim else { return false };
            entries.swap_remove(index);
        }
        if entries.try_reserve(1).is_err() {
            return false;
        }
        self.receiving.set(self.receiving.get() + bytes);
        true
    }

    /// What was reserved has been received, or will not be.
    pub fn received(&self, head: &Prepare) {
        let bytes = head.automaton_offset() + head.automaton_bytes as usize + OVERHEAD_BYTES;
        self.receiving.set(self.receiving.get() - bytes);
    }

    /// Keeps a set of a process; returns its number.
    pub fn keep(&self, process: u32, kept: Kept) -> u32 {
        let mut entries = self.entries.borrow_mut();
        let mut number = self.last.get();
        loop {
            number = number.wrapping_add(1);
            if number != 0 && !entries.iter().any(|entry| entry.number == number) {
                break;
            }
        }
        self.last.set(number);
        entries.push(Entry { number, process, used: self.next_use(), kept: Arc::new(kept) });
        number
    }

    /// The set of that number, if it is this process'.
    pub fn get(&self, process: u32, number: u32) -> Option<Arc<Kept>> {
        let used = self.next_use();
        let mut entries = self.entries.borrow_mut();
        let entry = entries.iter_mut().find(|entry| entry.number == number && entry.process == process)?;
        entry.used = used;
        Some(entry.kept.clone())
    }

    /// Gives a set up; scans that use it go on.
    pub fn release(&self, process: u32, number: u32) {
        self.entries.borrow_mut().retain(|entry| entry.number != number || entry.process != process);
    }
}
