//! Words in order of time: a wheel with a slot for each nanosecond that is near, and a heap for all that is later.
//!
//! Invariants: words of the same time come out in the order in which they were put in; the wheel holds all words from its base on for
//! [`SLOTS`] nanoseconds and the heap all others, so that a slot has words of one time alone; the base is the time of the last word
//! that was taken, and never goes back. Putting in and taking out compare nothing with one another, so that what other events there are
//! makes no difference; after the first ones, nothing is allocated: a word is linked at its own place, at which there is one word at a time.

/// Nanoseconds that the wheel spans: a word of bits for each 64 of them, and one word over those.
const SLOTS: usize = 4096;
const WORD_BITS: usize = 64;
/// Children of a node of the heap: four keys are one cache line.
const ARITY: usize = 4;
/// Bits of a word; those below [`FLAG_BIT`] are its place.
const VALUE_BITS: u32 = 21;
const FLAG_BIT: u32 = VALUE_BITS - 1;
const PLACE_MASK: u32 = (1 << FLAG_BIT) - 1;

/// Time in the upper half; below it the order of putting in above [`VALUE_BITS`] bits of word: 2^43 words, months at the highest
/// rates. One number, so that comparing takes no branch.
type Key = u128;

#[inline]
fn time_of(key: Key) -> u64 {
    (key >> 64) as u64
}

/// A slot's list: its first word, so that taking a word that is alone looks nowhere else, and the place of its last.
#[derive(Clone, Copy)]
struct List {
    first: u32,
    last: u32,
}

/// The words.
pub(crate) struct Wheel {
    base_ns: u64,
    /// One bit a slot that has words, and one a word of those bits that is not zero.
    bits: [u64; SLOTS / WORD_BITS],
    summary: u64,
    /// By slot; only where its bit is set.
    lists: Box<[List; SLOTS]>,
    /// By a word's place: the word that follows it in its list.
    next: Vec<u32>,
    far: Vec<Key>,
    order: u64,
}

impl Default for Wheel {
    fn default() -> Self {
        Wheel {
            base_ns: 0,
            bits: [0; SLOTS / WORD_BITS],
            summary: 0,
            lists: Box::new([List { first: 0, last: 0 }; SLOTS]),
            next: Vec::new(),
            far: Vec::new(),
            order: 0,
        }
    }
}

impl Wheel {
    /// Puts a word of at most [`VALUE_BITS`] bits in, of whose place no other word is in. A time before that of the last word that was
    /// taken counts as that.
    #[inline]
    pub fn insert(&mut self, at_ns: u64, value: u32) {
        debug_assert!(value < 1 << VALUE_BITS);
        let at_ns = at_ns.max(self.base_ns);
        if at_ns - self.base_ns < SLOTS as u64 {
            return self.append(at_ns, value);
        }
        self.insert_far(at_ns, value);
    }

    #[inline(never)]
    fn insert_far(&mut self, at_ns: u64, value: u32) {
        self.order += 1;
        push(&mut self.far, Key::from(at_ns) << 64 | Key::from(self.order << VALUE_BITS | u64::from(value)));
    }

    /// True where no word is in.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.summary == 0 && self.far.is_empty()
    }

    /// The time of the first word.
    #[inline]
    pub fn first_ns(&self) -> Option<u64> {
        match self.first_slot() {
            Some(slot) => Some(self.base_ns + self.after_base(slot)),
            None => self.far.first().copied().map(time_of),
        }
    }

    /// Takes the first word, where it is due until then; and its time.
    #[inline(always)]
    pub fn take_until(&mut self, until_ns: u64) -> Option<(u64, u32)> {
        let slot = match self.first_slot() {
            Some(slot) => slot,
            None => self.first_far_slot(until_ns)?,
        };
        let at_ns = self.base_ns + self.after_base(slot);
        if at_ns > until_ns {
            return None;
        }
        self.base_ns = at_ns;
        let List { first, last } = self.lists[slot];
        let place = first & PLACE_MASK;
        if place == last {
            let word = slot / WORD_BITS;
            let left = self.bits[word] & !(1 << (slot % WORD_BITS));
            self.bits[word] = left;
            self.summary &= !(u64::from(left == 0) << word);
        } else {
            self.lists[slot].first = self.next[place as usize];
        }
        if self.far.first().is_some_and(|key| time_of(*key) - at_ns < SLOTS as u64) {
            self.bring_near();
        }
        Some((at_ns, first))
    }

    /// Where the wheel is empty: brings the first words of the heap into it, where they are due until then.
    #[inline(never)]
    fn first_far_slot(&mut self, until_ns: u64) -> Option<usize> {
        let first_ns = self.far.first().copied().map(time_of)?;
        if first_ns > until_ns {
            return None;
        }
        self.base_ns = first_ns;
        self.bring_near();
        self.first_slot()
    }

    /// Nanoseconds from the base to a slot's time.
    #[inline]
    fn after_base(&self, slot: usize) -> u64 {
        (slot as u64).wrapping_sub(self.base_ns) % SLOTS as u64
    }

    /// The slot of the first word in the wheel: in the base's word of bits, from the base on, or in the next word that has any, around to
    /// the base's own again.
    #[inline]
    fn first_slot(&self) -> Option<usize> {
        if self.summary == 0 {
            return None;
        }
        let base = self.base_ns as usize % SLOTS;
        let own = base / WORD_BITS;
        let own_bits = self.bits[own] & (!0 << (base % WORD_BITS));
        let next = (own + 1) % WORD_BITS;
        let other = (next + self.summary.rotate_right(next as u32).trailing_zeros() as usize) % WORD_BITS;
        // This branch is unpredictable.
        let (word, bits) = std::hint::select_unpredictable(own_bits != 0, (own, own_bits), (other, self.bits[other]));
        Some(word * WORD_BITS + bits.trailing_zeros() as usize)
    }

    /// Puts a word at the end of its slot's list.
    #[inline]
    fn append(&mut self, at_ns: u64, value: u32) {
        let place = value & PLACE_MASK;
        let slot = at_ns as usize % SLOTS;
        let (word, bit) = (slot / WORD_BITS, 1 << (slot % WORD_BITS));
        if self.bits[word] & bit != 0 {
            let last = std::mem::replace(&mut self.lists[slot].last, place);
            return self.follow(last, value);
        }
        self.lists[slot] = List { first: value, last: place };
        self.bits[word] |= bit;
        self.summary |= 1 << word;
    }

    /// A word follows that at a place.
    #[inline]
    fn follow(&mut self, place: u32, value: u32) {
        match self.next.get_mut(place as usize) {
            Some(next) => *next = value,
            None => self.follow_new(place, value),
        }
    }

    /// The same for a place that there has not been yet.
    #[cold]
    #[inline(never)]
    fn follow_new(&mut self, place: u32, value: u32) {
        self.next.resize(place as usize + 1, 0);
        self.next[place as usize] = value;
    }

    /// Moves what the base has come near to into the wheel: before anything else can be put in for those times.
    #[cold]
    fn bring_near(&mut self) {
        while let Some(key) = self.far.first().copied()
            && time_of(key) - self.base_ns < SLOTS as u64
        {
            pop(&mut self.far);
            self.append(time_of(key), key as u32 & ((1 << VALUE_BITS) - 1));
        }
    }
}

/// Puts a key into a heap.
fn push(heap: &mut Vec<Key>, key: Key) {
    let mut hole = heap.len();
    heap.push(key);
    while hole > 0 {
        let parent = (hole - 1) / ARITY;
        if heap[parent] <= key {
            break;
        }
        heap[hole] = heap[parent];
        hole = parent;
    }
    heap[hole] = key;
}

/// Takes the first key out of a heap.
fn pop(heap: &mut Vec<Key>) {
    let Some(key) = heap.pop() else { return };
    let count = heap.len();
    let mut hole = 0;
    loop {
        let begin = hole * ARITY + 1;
        if begin >= count {
            break;
        }
        let (mut least, mut least_key) = (begin, heap[begin]);
        for (place, child) in heap[begin + 1..(begin + ARITY).min(count)].iter().enumerate() {
            let less = *child < least_key;
            least = if less { begin + 1 + place } else { least };
            least_key = if less { *child } else { least_key };
        }
        if key <= least_key {
            break;
        }
        heap[hole] = least_key;
        hole = least;
    }
    if count > 0 {
        heap[hole] = key;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::media::fault::Random;
    use std::collections::BTreeMap;

    /// Against a sorted map, with distances that stay in the wheel, that end just before and behind its edge, and that are far.
    #[test]
    fn the_order_is_that_of_a_sorted_map() {
        for seed in 0..60 {
            let mut random = Random::new(seed);
            let (mut wheel, mut model) = (Wheel::default(), BTreeMap::new());
            let (mut now_ns, mut number) = (random.below(10_000), 0u32);
            let spread = [3, 50, 4000, 5000, 100_000, 1 << 40][seed as usize % 6];
            for _ in 0..5000 {
                if random.below(100) < 50 + seed % 5 {
                    number += 1;
                    let edge = SLOTS as u64 - 2 + random.below(4);
                    let distance_ns = if random.below(8) == 0 { edge } else { random.below(spread) };
                    wheel.insert(now_ns + distance_ns, number);
                    model.insert((now_ns + distance_ns, number), ());
                } else {
                    let first = model.pop_first().map(|(key, ())| key);
                    let first_ns = first.map(|(at_ns, _)| at_ns);
                    assert_eq!(wheel.first_ns(), first_ns, "seed {seed}");
                    let early_ns = first_ns.and_then(|at_ns| at_ns.checked_sub(1));
                    assert!(early_ns.is_none_or(|early_ns| wheel.take_until(early_ns).is_none()));
                    now_ns = first_ns.unwrap_or(now_ns);
                    assert_eq!(wheel.take_until(now_ns + random.below(5)), first, "seed {seed}");
                }
            }
            while let Some((first, ())) = model.pop_first() {
                assert_eq!((wheel.first_ns(), wheel.take_until(u64::MAX)), (Some(first.0), Some(first)));
            }
            assert_eq!((wheel.first_ns(), wheel.take_until(u64::MAX)), (None, None));
            assert!(wheel.is_empty() && wheel.bits.iter().all(|bits| *bits == 0));
        }
    }

    #[test]
    fn a_time_that_has_passed_counts_as_the_last_one() {
        let mut wheel = Wheel::default();
        wheel.insert(100, 1);
        assert_eq!(wheel.take_until(200), Some((100, 1)));
        wheel.insert(100, 2);
        wheel.insert(7, 3);
        assert_eq!((wheel.take_until(100), wheel.take_until(100)), (Some((100, 2)), Some((100, 3))));
    }
}
