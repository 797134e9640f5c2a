//! What the processes have prepared on this SPU.
//!
//! What always holds: all sets together have [`TOTAL_BYTES_MAX`] and [`SETS_MAX`] at most; a set that is being used stays; where there is no
//! more room, the process with most bytes loses the one that was used longest ago, so that nobody loses what is his to another who has less.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};

use memchr::memmem;
use regex_automata::dfa::dense::DFA;
use willow_sdk::{Error, LiteralOptions, Literals, Match, write_literal};

use crate::segment::{Automaton, Found, Set};
use crate::wire::*;

/// Most sets.
const SETS_MAX: usize = 64;
/// Most bytes of all sets.
const TOTAL_BYTES_MAX: usize = 448 << 10;
/// Most sets whose literals are in the accelerator, which has no room for more of an app's.
const ACCELERATED_MAX: usize = 16;
const _: () = assert!(SET_BYTES_MAX * 2 <= TOTAL_BYTES_MAX);
/// What a set takes besides its bytes.
const OVERHEAD_BYTES: usize = 128;

/// A set as it is kept.
pub struct Kept {
    head: Prepare,
    /// The literals, and the automaton at the next multiple of four bytes.
    words: Vec<u32>,
    /// The literals in the accelerator, and behind them the zero byte where that is looked for.
    accelerated: Option<Literals>,
}

/// Bytes of words.
fn bytes(words: &[u32]) -> &[u8] {
    // SAFETY: bytes have no alignment and no invalid values, and there are four for each word.
    unsafe { core::slice::from_raw_parts(words.as_ptr().cast(), words.len() * 4) }
}

/// The same, to be received into.
pub fn bytes_mut(words: &mut [u32]) -> &mut [u8] {
    // SAFETY: as in `bytes`; any bytes are words.
    unsafe { core::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), words.len() * 4) }
}

/// How many literals there are; `None` where they are malformed.
fn count(mut literals: &[u8]) -> Option<usize> {
    let mut count = 0;
    while let Some((length, rest)) = literals.split_first_chunk() {
        let length = u32::from_le_bytes(*length) as usize;
        if length == 0 || length > LITERAL_BYTES_MAX || count == LITERALS_MAX {
            return None;
        }
        literals = rest.get(length..)?;
        count += 1;
    }
    literals.is_empty().then_some(count)
}

impl Kept {
    /// Room for what is to be received; `None` where there is no memory.
    pub fn room(head: &Prepare) -> Option<Vec<u32>> {
        let words = (head.automaton_offset() + head.automaton_bytes as usize).div_ceil(4);
        let mut room = Vec::new();
        room.try_reserve_exact(words).ok()?;
        room.resize(words, 0);
        Some(room)
    }

    /// Of a request's body behind its head; `None` where that is malformed.
    pub fn of_body(head: Prepare, body: &[u8]) -> Option<Kept> {
        let mut words = Self::room(&head)?;
        bytes_mut(&mut words).get_mut(..body.len())?.copy_from_slice(body);
        Self::new(head, words)
    }

    /// Of what was received; `None` where the automaton or the literals are none.
    pub fn new(head: Prepare, words: Vec<u32>) -> Option<Kept> {
        let kept = Kept { head, words, accelerated: None };
        count(kept.literals())?;
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

    fn has(&self, option: u32) -> bool {
        self.head.options & option != 0
    }

    fn literals(&self) -> &[u8] {
        &bytes(&self.words)[..self.head.literals_bytes as usize]
    }

    fn automaton(&self) -> &[u8] {
        let begin = self.head.automaton_offset();
        &bytes(&self.words)[begin..begin + self.head.automaton_bytes as usize]
    }

    /// The literal, where there is one alone and each of its letters stands for itself.
    fn single(&self) -> Option<&[u8]> {
        let (length, literal) = self.literals().split_first_chunk()?;
        (u32::from_le_bytes(*length) as usize == literal.len() && !self.has(OPTION_IGNORE_CASE)).then_some(literal)
    }

    /// Loads the literals into the accelerator.
    fn load(&self) -> Result<Literals, Error> {
        let mut room = [0; LITERALS_BYTES_MAX + 8];
        let literals = self.literals();
        let end = literals.len();
        let place = room.get_mut(..end).ok_or(Error::Full)?;
        place.copy_from_slice(literals);
        let end = if self.has(OPTION_FIND_NUL) { write_literal(&mut room, end, &[0]).ok_or(Error::Full)? } else { end };
        let options = LiteralOptions { ignore_case: self.has(OPTION_IGNORE_CASE), lines: None };
        Literals::load(&room[..end], options)
    }

    /// The literals in the accelerator.
    pub fn accelerated(&self) -> Option<&Literals> {
        self.accelerated.as_ref()
    }

    /// True where only the accelerator can tell whether a line matches.
    pub fn needs_accelerator(&self) -> bool {
        self.has(OPTION_LITERALS_DECIDE) && self.automaton().is_empty() && self.single().is_none()
    }

    /// True where a segment without literals has nothing to tell but its borders.
    pub fn is_fast(&self) -> bool {
        self.accelerated.is_some() && !self.has(OPTION_INVERT) && !self.has(OPTION_NUMBER)
    }

    /// True where zero bytes end lines.
    pub fn nul_ends(&self) -> bool {
        self.has(OPTION_NUL_ENDS)
    }

    /// Number of literals without the zero byte: the number that it has in the accelerator, where it is looked for.
    pub fn literals_count(&self) -> u32 {
        count(self.literals()).unwrap_or(0) as u32
    }

    /// Ready to search with; where the accelerator is needed, with its matches in the segment.
    pub fn set<'a>(&'a self, matches: &'a [Match]) -> Set<'a, Decider<'a>> {
        let automaton = self.automaton();
        // SAFETY: `new` has checked these bytes by `from_bytes`, and nothing has changed them since.
        let parsed = (!automaton.is_empty()).then(|| unsafe { DFA::from_bytes_unchecked(automaton) });
        let automaton = match parsed.and_then(Result::ok) {
            Some((automaton, _)) => Some(Decider::Automaton(automaton)),
            None if self.needs_accelerator() => Some(Decider::Matches { matches, nul: self.literals_count() }),
            None => None,
        };
        // Where an automaton is there for what literals decide, it is quicker.
        let single = self.single().filter(|_| automaton.is_none() || !self.has(OPTION_LITERALS_DECIDE));
        Set { options: self.head.options, literal: single.map(memmem::Finder::new), automaton }
    }

    fn room_taken(&self) -> usize {
        self.words.len() * 4 + OVERHEAD_BYTES
    }
}

/// What decides about a line.
#[allow(clippy::large_enum_variant, reason = "there is one a scan, and no memory to be had that could not fail")]
pub enum Decider<'a> {
    /// An automaton.
    Automaton(DFA<&'a [u32]>),
    /// The accelerator has: its matches in the segment, in order.
    Matches {
        /// The matches.
        matches: &'a [Match],
        /// The number of the literal that is no match.
        nul: u32,
    },
}

impl Automaton for Decider<'_> {
    fn find(&self, segment: &[u8], from: usize, end: usize) -> Option<Found> {
        match self {
            Decider::Automaton(automaton) => automaton.find(segment, from, end),
            Decider::Matches { matches, nul } => {
                let first = matches.partition_point(|found| (found.begin as usize) < from);
                let found = matches[first..].iter().find(|found| found.literal != *nul)?;
                (found.end as usize <= end).then_some(Found::Match(found.begin as usize))
            }
        }
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
    pub(crate) const fn new() -> Sets {
        Sets { entries: RefCell::new(Vec::new()), last: Cell::new(0), uses: Cell::new(0), receiving: Cell::new(0) }
    }

    fn next_use(&self) -> u64 {
        self.uses.set(self.uses.get() + 1);
        self.uses.get()
    }

    /// Has the process that has most lose the set that it used longest ago, of those that `may` go; false where there is none.
    fn evict(entries: &mut Vec<Entry>, (process, bytes): (u32, usize), may: impl Fn(&Entry) -> bool) -> bool {
        // What a process has, the new set included.
        let has = |of: u32| {
            let own = entries.iter().filter(|entry| entry.process == of).map(|entry| entry.kept.room_taken());
            own.sum::<usize>() + if of == process { bytes } else { 0 }
        };
        let free = entries.iter().enumerate().filter(|(_, entry)| Arc::strong_count(&entry.kept) == 1 && may(entry));
        let victim = free.max_by_key(|(_, entry)| (has(entry.process), u64::MAX - entry.used));
        let Some((index, _)) = victim else { return false };
        entries.swap_remove(index);
        true
    }

    /// Makes room for a set of a process; false where everything else is in use.
    pub fn reserve(&self, process: u32, head: &Prepare) -> bool {
        let bytes = head.automaton_offset() + head.automaton_bytes as usize + OVERHEAD_BYTES;
        let mut entries = self.entries.borrow_mut();
        let taken = |entries: &[Entry]| entries.iter().map(|entry| entry.kept.room_taken()).sum::<usize>();
        while entries.len() >= SETS_MAX || taken(&entries) + self.receiving.get() + bytes > TOTAL_BYTES_MAX {
            if !Self::evict(&mut entries, (process, bytes), |_| true) {
                return false;
            }
        }
        if entries.try_reserve(1).is_err() {
            return false;
        }
        self.receiving.set(self.receiving.get() + bytes);
        true
    }

    /// Loads a set's literals into the accelerator, where it has some; false where it cannot do without and there is no room.
    pub fn accelerate(&self, process: u32, kept: &mut Kept) -> bool {
        if kept.literals().is_empty() {
            return true;
        }
        let mut entries = self.entries.borrow_mut();
        let is_accelerated = |entry: &Entry| entry.kept.accelerated.is_some();
        loop {
            if entries.iter().filter(|entry| is_accelerated(entry)).count() < ACCELERATED_MAX {
                match kept.load() {
                    Ok(literals) => {
                        kept.accelerated = Some(literals);
                        return true;
                    }
                    Err(Error::Full) => {}
                    Err(_) => return !kept.needs_accelerator(),
                }
            }
            if !Self::evict(&mut entries, (process, kept.room_taken()), is_accelerated) {
                return !kept.needs_accelerator();
            }
        }
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
