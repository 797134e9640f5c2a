//! What is about to happen inside the device, in order of time and then of cause.
//!
//! Invariant: events of the same time come out in the order in which they were scheduled.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

/// Something that is about to happen.
#[derive(Debug)]
pub(crate) enum Event {
    /// A request has arrived at its SPU.
    Deliver {
        /// Activity.
        token: u32,
    },
    /// Something that a handler waited for has happened.
    Complete(Completion),
}

/// The end of a wait.
#[derive(Debug)]
pub(crate) struct Completion {
    pub spu: u16,
    pub app: u16,
    /// The app's incarnation that waits: an older one's completions are dropped.
    pub incarnation: u32,
    /// The wait and its result; `None`: only bytes for the app's memory.
    pub wake: Option<(u32, i64)>,
    /// Bytes to put into the app's memory first, and where.
    pub memory: Option<Box<(u64, Vec<u8>)>>,
    /// Activity whose DMA count goes down.
    pub token: Option<u32>,
}

/// The queue.
#[derive(Default)]
pub(crate) struct EventQueue {
    ready: VecDeque<Event>,
    order: BinaryHeap<Reverse<(u64, u64)>>,
    timed: BTreeMap<u64, Event>,
    sequence: u64,
}

impl EventQueue {
    /// Schedules what is due now.
    #[inline]
    pub fn push(&mut self, event: Event) {
        self.ready.push_back(event);
    }

    /// Schedules for a time; due now where that is not after `now_ns`.
    pub fn push_at(&mut self, now_ns: u64, at_ns: u64, event: Event) {
        if at_ns <= now_ns {
            return self.push(event);
        }
        self.sequence += 1;
        self.order.push(Reverse((at_ns, self.sequence)));
        self.timed.insert(self.sequence, event);
    }

    /// The next event that is due.
    #[inline]
    pub fn pop(&mut self, now_ns: u64) -> Option<Event> {
        // What became due by the passing of time was scheduled before what is ready was: it goes first.
        if let Some(&Reverse((at_ns, sequence))) = self.order.peek()
            && at_ns <= now_ns
        {
            self.order.pop();
            return self.timed.remove(&sequence);
        }
        self.ready.pop_front()
    }

    /// When the next event that is not due yet will be.
    pub fn next_ns(&self) -> Option<u64> {
        self.order.peek().map(|Reverse((at_ns, _))| *at_ns)
    }

    /// True where something is due now.
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }
}
