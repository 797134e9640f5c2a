//! The order of operations that a store does in its own time.
//!
//! What always holds:
//! - Operations that overlap, one of them not a read, are never under way together: the later one stays in the queue
//!   until the earlier one has been finished. Operations that do not overlap never wait for each other.
//! - Ids rise in the order in which operations were begun; what waits for an operation has a higher id.
//! - An operation looks at those of its own bank alone, and there at those near it: what others have under way elsewhere costs it nothing. A read
//!   looks at no reads.
//! - The number of entries is bounded by the caller: one for each operation that it has begun and that has not ended.
//!
//! Stores call it; nobody else does.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Where an operation works and whether it only reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub bank: usize,
    pub start: u64,
    pub end: u64,
    pub reads: bool,
}

impl Span {
    /// True where the two may not be under way together. Empty spans touch nothing.
    fn conflicts(&self, other: &Span) -> bool {
        let (start, end) = (self.start.max(other.start), self.end.min(other.end));
        self.bank == other.bank && start < end && !(self.reads && other.reads)
    }
}

struct Entry<T> {
    span: Span,
    /// Earlier entries that this one has to wait for.
    blockers: usize,
    /// Present until the operation is taken by [`Ordering::take_ready`].
    operation: Option<T>,
}

/// The spans under way in a bank, by where they begin. Spans of like lengths are together, so that what may reach into a range begins at
/// most one length before it; reads and what writes are apart.
#[derive(Default)]
struct BankIndex {
    /// By whether they read, and the number of bits of their length: where they begin, and their ids.
    by_class: BTreeMap<(bool, u32), BTreeSet<(u64, u64)>>,
}

impl BankIndex {
    fn class(span: &Span) -> (bool, u32) {
        (span.reads, u64::BITS - (span.end - span.start).leading_zeros())
    }

    fn insert(&mut self, span: &Span, id: u64) {
        self.by_class.entry(BankIndex::class(span)).or_default().insert((span.start, id));
    }

    fn remove(&mut self, span: &Span, id: u64) {
        let class = BankIndex::class(span);
        if let Some(of_class) = self.by_class.get_mut(&class) {
            of_class.remove(&(span.start, id));
            if of_class.is_empty() {
                self.by_class.remove(&class);
            }
        }
    }

    /// The ids of all that may conflict with a span.
    fn near(&self, span: &Span) -> impl Iterator<Item = u64> {
        let classes = self.by_class.iter().filter(move |((reads, _), _)| !(*reads && span.reads));
        classes.flat_map(move |((_, length_bits), of_class)| {
            // Those of the class are shorter than this.
            let length = 1_u64.checked_shl(*length_bits).unwrap_or(u64::MAX);
            of_class.range((span.start.saturating_sub(length), 0)..(span.end, 0)).map(|(_, id)| *id)
        })
    }
}

/// The queue.
pub(crate) struct Ordering<T> {
    entries: BTreeMap<u64, Entry<T>>,
    banks: Vec<BankIndex>,
    ready: VecDeque<u64>,
    next_id: u64,
    /// Entries that were looked at: what ordering has cost.
    #[cfg(test)]
    pub looked_at: std::cell::Cell<u64>,
}

impl<T> Ordering<T> {
    pub fn new() -> Self {
        Ordering {
            entries: BTreeMap::new(),
            banks: Vec::new(),
            ready: VecDeque::new(),
            next_id: 0,
            #[cfg(test)]
            looked_at: std::cell::Cell::new(0),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The ids of entries that may not be under way together with a span.
    fn conflicting(&self, span: &Span) -> impl Iterator<Item = u64> {
        let near = self.banks.get(span.bank).into_iter().flat_map(move |bank| bank.near(span));
        near.filter(move |id| {
            #[cfg(test)]
            self.looked_at.set(self.looked_at.get() + 1);
            self.entries.get(id).is_some_and(|entry| entry.span.conflicts(span))
        })
    }

    /// True where an operation on this span has to queue.
    pub fn conflicts(&self, span: &Span) -> bool {
        self.conflicting(span).next().is_some()
    }

    /// Queues an operation.
    pub fn push(&mut self, span: Span, operation: T) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        let blockers = self.conflicting(&span).count();
        if span.bank >= self.banks.len() {
            self.banks.resize_with(span.bank + 1, BankIndex::default);
        }
        // An empty span touches nothing, and nothing waits for it.
        if span.start < span.end {
            self.banks[span.bank].insert(&span, id);
        }
        self.entries.insert(id, Entry { span, blockers, operation: Some(operation) });
        if blockers == 0 {
            self.ready.push_back(id);
        }
        id
    }

    /// The next operation that may start; it stays an obstacle to later ones until [`Ordering::finish`].
    pub fn take_ready(&mut self) -> Option<(u64, Span, T)> {
        let id = self.ready.pop_front()?;
        let entry = self.entries.get_mut(&id).expect("an operation that is ready is in the queue");
        debug_assert_eq!(entry.blockers, 0);
        let operation = entry.operation.take().expect("an operation is made ready once");
        Some((id, entry.span, operation))
    }

    /// Ends an operation that was taken; returns where it worked.
    pub fn finish(&mut self, id: u64) -> Span {
        let done = self.entries.remove(&id).expect("the operation is in the queue");
        debug_assert!(done.operation.is_none(), "finished before it was taken");
        if done.span.start < done.span.end {
            self.banks[done.span.bank].remove(&done.span, id);
        }
        let mut waiting: Vec<u64> = self.conflicting(&done.span).filter(|later| *later > id).collect();
        // In the order in which they were begun, whatever their lengths.
        waiting.sort_unstable();
        for id in waiting {
            let entry = self.entries.get_mut(&id).expect("it was just found");
            entry.blockers -= 1;
            if entry.blockers == 0 {
                self.ready.push_back(id);
            }
        }
        done.span
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(start: u64, end: u64, reads: bool) -> Span {
        Span { bank: 0, start, end, reads }
    }

    #[test]
    fn overlapping_operations_wait_for_the_earlier_ones_only() {
        let mut order = Ordering::new();
        let first = order.push(span(0, 10, false), 'a');
        let second = order.push(span(5, 15, true), 'b');
        let third = order.push(span(5, 15, true), 'c');
        let fourth = order.push(span(14, 20, false), 'd');
        assert_eq!(order.take_ready().unwrap().2, 'a');
        assert!(order.take_ready().is_none());
        order.finish(first);
        assert_eq!(order.take_ready().unwrap().2, 'b');
        assert_eq!(order.take_ready().unwrap().2, 'c');
        assert!(order.take_ready().is_none());
        order.finish(third);
        assert!(order.take_ready().is_none());
        order.finish(second);
        assert_eq!(order.take_ready().unwrap().2, 'd');
        assert!(order.conflicts(&span(19, 30, true)));
        assert!(!order.conflicts(&span(20, 30, false)));
        order.finish(fourth);
        assert!(order.is_empty());
    }

    #[test]
    fn banks_and_empty_spans_do_not_conflict() {
        let mut order = Ordering::new();
        order.push(span(0, 10, false), ());
        assert!(!order.conflicts(&Span { bank: 1, start: 0, end: 10, reads: false }));
        assert!(!order.conflicts(&span(10, 10, false)));
    }

    /// As simple as it can be: all entries in a list, each looked at by each.
    struct Plain(Vec<(u64, Span, bool)>);

    impl Plain {
        fn is_ready(&self, id: u64) -> bool {
            let place = self.0.iter().position(|(other, ..)| *other == id).unwrap();
            !self.0[..place].iter().any(|(_, earlier, _)| earlier.conflicts(&self.0[place].1))
        }
    }

    #[test]
    fn same_as_a_plain_list() {
        let mut random = crate::media::fault::Random::new(7);
        for _ in 0..40 {
            let (mut order, mut plain) = (Ordering::new(), Plain(Vec::new()));
            for _ in 0..400 {
                let start = random.below(300);
                let length = [0, 1, 2, random.below(20), random.below(300)][random.below(5) as usize];
                let (bank, reads) = (random.below(3) as usize, random.below(2) == 0);
                let of = Span { bank, start, end: start + length, reads };
                let all = plain.0.iter().any(|(_, other, _)| other.conflicts(&of));
                assert_eq!(order.conflicts(&of), all);
                if random.below(3) > 0 {
                    let id = order.push(of, ());
                    plain.0.push((id, of, false));
                }
                while let Some((id, span, ())) = order.take_ready() {
                    assert!(plain.is_ready(id));
                    let entry = plain.0.iter_mut().find(|(other, ..)| *other == id).unwrap();
                    assert_eq!((entry.1, entry.2), (span, false));
                    entry.2 = true;
                }
                assert!(plain.0.iter().all(|(id, _, taken)| *taken == plain.is_ready(*id)), "nothing waits in vain");
                if random.below(2) == 0 && !plain.0.is_empty() {
                    let taken: Vec<u64> = plain.0.iter().filter(|(.., taken)| *taken).map(|(id, ..)| *id).collect();
                    let id = taken[random.below(taken.len() as u64) as usize];
                    order.finish(id);
                    plain.0.retain(|(other, ..)| *other != id);
                }
            }
        }
    }

    /// One app has tens of thousands of small writes under way; another's operations, elsewhere in the bank and in other banks, look at
    /// none of them, nor do these at each other.
    #[test]
    fn what_is_elsewhere_costs_nothing() {
        let mut order = Ordering::new();
        let ids: Vec<u64> = (0..30_000).map(|at| order.push(span(at * 4096, at * 4096 + 1, false), ())).collect();
        order.push(span(1 << 40, (1 << 40) + (256 << 20), false), ());
        assert!(order.looked_at.get() < 100, "{} were looked at", order.looked_at.get());
        assert!(!order.conflicts(&Span { bank: 1, start: 0, end: 1 << 30, reads: false }));
        assert!(!order.conflicts(&span((1 << 40) - 4096, 1 << 40, false)));
        while order.take_ready().is_some() {}
        for id in ids {
            order.finish(id);
        }
        assert!(order.looked_at.get() < 30_200, "{} were looked at", order.looked_at.get());
    }

    /// Many read the same bytes at once; a write there waits for them, and they do not look at each other.
    #[test]
    fn reads_of_one_place_do_not_look_at_each_other() {
        let mut order = Ordering::new();
        let reads: Vec<u64> = (0..3000).map(|_| order.push(span(0, 32_768, true), ())).collect();
        assert!(!order.conflicts(&span(512, 1024, true)));
        assert_eq!(order.looked_at.get(), 0);
        let write = order.push(span(512, 1024, false), ());
        assert_eq!(order.looked_at.get(), 3000);
        while order.take_ready().is_some_and(|(id, ..)| id != write) {}
        for id in reads {
            assert_eq!(order.take_ready(), None, "the write waits");
            order.finish(id);
        }
        assert_eq!(order.take_ready().map(|(id, ..)| id), Some(write));
        assert_eq!(order.looked_at.get(), 6000);
    }
}
