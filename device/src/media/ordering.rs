//! The order of operations that a store does in its own time.
//!
//! What always holds:
//! - Operations that overlap, one of them not a read, are never under way together: the later one stays in the queue
//!   until the earlier one has been finished. Operations that do not overlap never wait for each other.
//! - Entries are kept in the order of their ids, which is the order in which they were begun.
//! - The number of entries is bounded by the caller: one for each operation that it has begun and that has not ended.
//!
//! Stores call it; nobody else does.

use std::collections::VecDeque;

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
        self.bank == other.bank && self.start < other.end && other.start < self.end && !(self.reads && other.reads)
    }
}

struct Entry<T> {
    id: u64,
    span: Span,
    /// Earlier entries that this one has to wait for.
    blockers: usize,
    /// Present until the operation is taken by [`Ordering::take_ready`].
    operation: Option<T>,
}

/// The queue.
pub(crate) struct Ordering<T> {
    entries: VecDeque<Entry<T>>,
    ready: VecDeque<u64>,
    next_id: u64,
}

impl<T> Ordering<T> {
    pub fn new() -> Self {
        Ordering { entries: VecDeque::new(), ready: VecDeque::new(), next_id: 0 }
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// True where an operation on this span has to queue.
    pub fn conflicts(&self, span: &Span) -> bool {
        self.entries.iter().any(|entry| entry.span.conflicts(span))
    }

    /// Queues an operation.
    pub fn push(&mut self, span: Span, operation: T) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        let blockers = self.entries.iter().filter(|entry| entry.span.conflicts(&span)).count();
        self.entries.push_back(Entry { id, span, blockers, operation: Some(operation) });
        if blockers == 0 {
            self.ready.push_back(id);
        }
        id
    }

    /// The next operation that may start; it stays an obstacle to later ones until [`Ordering::finish`].
    pub fn take_ready(&mut self) -> Option<(u64, Span, T)> {
        let id = self.ready.pop_front()?;
        let index = self.index(id);
        let entry = &mut self.entries[index];
        debug_assert_eq!(entry.blockers, 0);
        let operation = entry.operation.take().expect("an operation is made ready once");
        Some((id, entry.span, operation))
    }

    /// Ends an operation that was taken; returns where it worked.
    pub fn finish(&mut self, id: u64) -> Span {
        let index = self.index(id);
        let done = self.entries.remove(index).expect("the index was just found");
        debug_assert!(done.operation.is_none(), "finished before it was taken");
        for entry in self.entries.range_mut(index..) {
            if entry.span.conflicts(&done.span) {
                entry.blockers -= 1;
                if entry.blockers == 0 {
                    self.ready.push_back(entry.id);
                }
            }
        }
        done.span
    }

    fn index(&self, id: u64) -> usize {
        self.entries.binary_search_by_key(&id, |entry| entry.id).expect("the operation is in the queue")
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
}
