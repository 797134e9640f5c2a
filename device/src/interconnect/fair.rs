//! Who is next: work of several parties that want the same processor, in the order of what each has had of it so far, by weight
//! (start-time fair queueing).
//!
//! What always holds:
//! - within a party, work comes out in the order in which it came in, but what others wait for ([`FairQueue::push_first`]) before the rest; with one
//!   party alone that is all there is to it;
//! - while two parties have work waiting, what they were charged differs by at most one piece of work of each and [`GRAIN`];
//! - one that was idle begins level with those that were not: it has saved nothing up, and owes nothing longer than others worked;
//! - the order depends on what was pushed and charged, and on nothing else.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// What a party may have had more than the next one before its turn ends: a few dozen small requests, so that they keep the
/// processor's caches warm for one another. In charged units.
pub(crate) const GRAIN: u64 = 16_384;

struct Party<T> {
    waiting: VecDeque<T>,
    /// How many of these, at the front, go before the others.
    first: usize,
    /// What it was charged, or when it began to wait: the time of its own clock.
    clock: u64,
    /// Its clock stands in the heap.
    queued: bool,
}

/// The queue.
pub(crate) struct FairQueue<T> {
    parties: Vec<Party<T>>,
    /// Clocks, and parties, of all that have work but the current one. A clock here may be older than the party's own.
    heap: BinaryHeap<Reverse<(u64, u16)>>,
    current: u16,
    /// The least clock of those that have work.
    now: u64,
    /// Pieces of work that wait, of all parties.
    len: usize,
}

impl<T> Default for Party<T> {
    fn default() -> Self {
        Party { waiting: VecDeque::new(), first: 0, clock: 0, queued: false }
    }
}

impl<T> Party<T> {
    #[inline(always)]
    fn is_idle(&self) -> bool {
        self.waiting.is_empty()
    }
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        FairQueue { parties: vec![Party::default()], heap: BinaryHeap::new(), current: 0, now: 0, len: 0 }
    }
}

impl<T> FairQueue<T> {
    fn grow(&mut self, party: u16) {
        while self.parties.len() <= usize::from(party) {
            self.parties.push(Party::default());
        }
    }

    /// Work of a party.
    #[inline]
    pub fn push(&mut self, party: u16, work: T) {
        self.comes(party).waiting.push_back(work);
    }

    /// Work of a party that others wait for: it goes before the party's other work, which may be long.
    #[inline]
    pub fn push_first(&mut self, party: u16, work: T) {
        let of = self.comes(party);
        of.waiting.insert(of.first, work);
        of.first += 1;
    }

    /// A party is about to have another piece of work.
    #[inline(always)]
    fn comes(&mut self, party: u16) -> &mut Party<T> {
        if usize::from(party) >= self.parties.len() {
            self.grow(party);
        }
        let of = &mut self.parties[usize::from(party)];
        if of.is_idle() {
            of.clock = of.clock.max(self.now);
        }
        self.len += 1;
        if party != self.current && !of.queued {
            of.queued = true;
            self.heap.push(Reverse((of.clock, party)));
        }
        of
    }

    /// Whose work is next; where that is another party's, its turn begins.
    #[inline]
    pub fn next(&mut self) -> Option<u16> {
        loop {
            let current = &self.parties[usize::from(self.current)];
            match self.heap.peek() {
                None if current.is_idle() => return None,
                None => {
                    self.now = self.now.max(current.clock);
                    return Some(self.current);
                }
                Some(Reverse((next, _))) if !current.is_idle() && current.clock <= next.saturating_add(GRAIN) => {
                    self.now = self.now.max(current.clock.min(*next));
                    return Some(self.current);
                }
                Some(_) => self.turn(),
            }
        }
    }

    /// The next work.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        if !self.heap.is_empty() {
            self.next();
        }
        let current = &mut self.parties[usize::from(self.current)];
        let work = current.waiting.pop_front()?;
        current.first = current.first.saturating_sub(1);
        self.len -= 1;
        if self.heap.is_empty() {
            self.now = self.now.max(current.clock);
        }
        Some(work)
    }

    /// True where several parties have work, or one whose turn it was not.
    #[inline]
    pub fn is_shared(&self) -> bool {
        !self.heap.is_empty()
    }

    /// Ends the current party's turn: the one with the least clock follows.
    fn turn(&mut self) {
        let current = &mut self.parties[usize::from(self.current)];
        if !current.is_idle() {
            current.queued = true;
            self.heap.push(Reverse((current.clock, self.current)));
        }
        while let Some(Reverse((clock, party))) = self.heap.pop() {
            let of = &mut self.parties[usize::from(party)];
            if of.clock > clock {
                // It was charged while it waited.
                self.heap.push(Reverse((of.clock, party)));
                continue;
            }
            of.queued = false;
            self.current = party;
            return;
        }
    }

    /// A party had this much: units over its weight.
    #[inline(always)]
    pub fn charge(&mut self, party: u16, units: u64) {
        if usize::from(party) >= self.parties.len() {
            self.grow(party);
        }
        let of = &mut self.parties[usize::from(party)];
        of.clock = of.clock.saturating_add(units);
    }

    /// Whose turn it is: whom the last work was of.
    #[inline]
    pub fn current(&self) -> u16 {
        self.current
    }

    /// True where nothing waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn one_party_is_first_in_first_out() {
        for party in [0, 7] {
            let mut queue = FairQueue::default();
            assert!(queue.is_empty() && queue.pop().is_none());
            for round in 0..3 {
                for number in 0..100 {
                    queue.push(party, number + round);
                }
                for number in 0..100 {
                    assert_eq!(queue.pop(), Some(number + round));
                    queue.charge(party, 1_000_000);
                }
                assert!(queue.is_empty() && queue.pop().is_none());
            }
        }
    }

    /// What each of `parties` (weight, cost of a piece of its work) has had after `steps`, with work waiting all the time.
    fn backlogged(parties: &[(u64, u64)], steps: usize) -> Vec<u64> {
        let mut queue = FairQueue::default();
        let mut had = vec![0; parties.len()];
        for party in 0..parties.len() as u16 {
            queue.push(party, party);
        }
        for _ in 0..steps {
            let party = queue.pop().expect("work waits");
            let (weight, cost) = parties[usize::from(party)];
            had[usize::from(party)] += cost;
            queue.push(party, party);
            queue.charge(party, cost * 840 / weight);
        }
        had
    }

    proptest! {
        #[test]
        fn shares_converge_to_weights(parties in prop::collection::vec((1u64..8, 1u64..100_000), 2..12)) {
            let had = backlogged(&parties, 20_000);
            let spans: Vec<u64> = had.iter().zip(&parties).map(|(had, (weight, _))| had * 840 / weight).collect();
            let piece = parties.iter().map(|(weight, cost)| cost * 840 / weight).max().unwrap();
            let (least, most) = (spans.iter().min().unwrap(), spans.iter().max().unwrap());
            // Whatever pieces cost: the difference is bounded, and does not grow with time.
            prop_assert!(most - least <= 2 * piece + GRAIN, "{spans:?}, piece {piece}");
        }

        #[test]
        fn whoever_comes_back_waits_for_a_bounded_amount(
            others in 1u16..20, pieces in 1u64..50, cost in 1u64..500_000, idle in 0usize..500,
        ) {
            let mut queue = FairQueue::default();
            for party in 1..=others {
                for _ in 0..200 {
                    queue.push(party, party);
                }
            }
            for _ in 0..pieces {
                let party = queue.pop().unwrap();
                queue.charge(party, cost);
            }
            // The victim works a little now and then; the others never stop.
            for _ in 0..20 {
                for _ in 0..idle.min(100) {
                    let party = queue.pop().unwrap();
                    queue.charge(party, cost);
                    queue.push(party, party);
                }
                queue.push(0, 0);
                // Of each other one piece and a grain at most, and what the victim itself had last; the others have work without end.
                let (mut waited, bound) = (0, u64::from(others) * (GRAIN + cost + 800) + cost);
                loop {
                    let party = queue.pop().unwrap();
                    queue.charge(party, if party == 0 { 800 } else { cost });
                    if party == 0 {
                        break;
                    }
                    queue.push(party, party);
                    waited += cost;
                    prop_assert!(waited <= bound, "{waited}");
                }
            }
        }

        #[test]
        fn nothing_is_lost_and_nobody_starves(steps in prop::collection::vec((0u16..6, any::<bool>(), 1u64..40_000, 0usize..6), 1..400)) {
            let mut queue = FairQueue::default();
            // By party: what goes first, and the rest.
            let mut model: Vec<[VecDeque<usize>; 2]> = (0..6).map(|_| Default::default()).collect();
            for (number, (party, is_first, cost, pops)) in steps.iter().enumerate() {
                match is_first {
                    true => queue.push_first(*party, (*party, number)),
                    false => queue.push(*party, (*party, number)),
                }
                model[usize::from(*party)][usize::from(!is_first)].push_back(number);
                for _ in 0..*pops {
                    match queue.pop() {
                        Some((party, number)) => {
                            prop_assert_eq!(model[usize::from(party)].iter_mut().find_map(VecDeque::pop_front), Some(number));
                            prop_assert_eq!(queue.current(), party);
                            queue.charge(party, *cost);
                        }
                        None => prop_assert!(model.iter().flatten().all(VecDeque::is_empty)),
                    }
                }
                prop_assert_eq!(queue.is_empty(), model.iter().flatten().all(VecDeque::is_empty));
            }
            while let Some((party, number)) = queue.pop() {
                prop_assert_eq!(model[usize::from(party)].iter_mut().find_map(VecDeque::pop_front), Some(number));
                queue.charge(party, 1);
            }
            prop_assert!(model.iter().flatten().all(VecDeque::is_empty));
        }
    }

    #[test]
    fn what_others_wait_for_goes_before_its_partys_other_work_and_before_nobody_elses() {
        let mut queue = FairQueue::default();
        for _ in 0..100 {
            queue.push(1, "own");
        }
        queue.push(2, "other");
        queue.push_first(1, "one");
        queue.push_first(1, "two");
        assert_eq!((queue.pop(), queue.current()), (Some("one"), 1));
        // It has had its turn by that.
        queue.charge(1, 2 * GRAIN);
        assert_eq!((queue.pop(), queue.current()), (Some("other"), 2));
        assert_eq!((queue.pop(), queue.pop()), (Some("two"), Some("own")));
    }

    #[test]
    fn who_was_alone_owes_nothing_for_it() {
        let mut queue = FairQueue::default();
        for _ in 0..1000 {
            queue.push(1, 1);
            queue.pop();
            queue.charge(1, 100_000);
        }
        // Another comes, with many times what the bound is, and after it the first again: it waits for a turn, not for all that it had alone.
        const PIECE: u64 = 1000;
        const PIECES: u64 = 1000;
        let bound = 100_000 + GRAIN + PIECE;
        assert!(PIECES * PIECE > 5 * bound, "a bound that can be passed");
        for _ in 0..PIECES {
            queue.push(2, 2);
        }
        queue.push(1, 1);
        let mut before = 0;
        while queue.pop() == Some(2) {
            queue.charge(2, PIECE);
            before += PIECE;
        }
        assert!(before <= bound, "{before}");
    }
}
