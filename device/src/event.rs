//! What is about to happen inside the device, in order of time and then of cause.
//!
//! Invariants: events of the same time come out in the order in which they were scheduled; after the first events, nothing is
//! allocated: small keys are ordered in a heap, the events lie still in a table until they are due.

use crate::request::RpcOutcome;
use crate::spu::rpc::PostedUpcall;
use crate::spu::timed::TimedDma;
use std::collections::VecDeque;

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
    /// A short read of NV memory that was put off while the processor fetches it.
    Fetch(Fetch),
    /// An RPC's answer has arrived at its host.
    Response { transfer: u32, outcome: RpcOutcome, result: u32 },
    /// An RPC's answer has arrived at the SPU that asked.
    End { group: u32, result: i64, memory: Option<Box<(u64, Vec<u8>)>> },
    /// An RPC from an SPU has arrived at its host.
    Upcall(Box<PostedUpcall>),
    /// A part of a message that a handler puts together has been read from NV memory.
    MessagePart { handle: u32 },
    /// The media have the data of a DMA.
    DmaData(TimedDma),
    /// Data that were streamed have arrived: nobody waits for them.
    Streamed,
    /// A processor is free, and work waits for it.
    Processor { spu: u16 },
    /// The model of time asked for this.
    Tick { word: u32 },
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

/// A short read from NV memory to local memory that is to be done yet.
#[derive(Debug)]
pub(crate) struct Fetch {
    pub spu: u16,
    pub app: u16,
    /// The app's incarnation that waits: an older one's reads are dropped.
    pub incarnation: u32,
    pub token: u32,
    pub wait: u32,
    /// In the bank.
    pub address: u64,
    /// In local memory.
    pub pointer: u64,
    pub bytes: u32,
}

/// Bits of a key that name a place in the table, or a word of the model.
const PLACE_BITS: u32 = 21;
/// Set in the low bits of a key that is a tick.
const TICK: u64 = 1 << (PLACE_BITS - 1);
/// Most events held at once: activities, groups, messages and ticks, with room.
pub(crate) const EVENTS_MAX: usize = TICK as usize - 1;
/// Children of a node: four keys are one cache line.
const ARITY: usize = 4;

/// Time in the upper half; below it the order of scheduling above [`PLACE_BITS`] bits of place: 2^43 events, months at the
/// highest rates. One number, so that comparing takes no branch.
type Key = u128;

#[inline]
fn time_of(key: Key) -> u64 {
    (key >> 64) as u64
}

/// The queue.
#[derive(Default)]
pub(crate) struct EventQueue {
    ready: VecDeque<Event>,
    heap: Vec<Key>,
    held: Vec<Option<Event>>,
    free: Vec<u32>,
    order: u64,
}

impl EventQueue {
    /// Schedules what is due now.
    #[inline]
    pub fn push(&mut self, event: Event) {
        self.ready.push_back(event);
    }

    /// Schedules for a time.
    #[inline]
    pub fn push_at(&mut self, at_ns: u64, event: Event) {
        let place = self.hold(event);
        self.schedule(at_ns, place);
    }

    /// Keeps an event that has no time yet; [`EventQueue::schedule`] or [`EventQueue::take`] is to follow.
    #[inline]
    pub fn hold(&mut self, event: Event) -> u32 {
        if let Some(place) = self.free.pop() {
            self.held[place as usize] = Some(event);
            return place;
        }
        assert!(self.held.len() < EVENTS_MAX, "more events than the tables that cause them can hold");
        self.held.push(Some(event));
        self.held.len() as u32 - 1
    }

    /// Gives a held event its time.
    #[inline]
    pub fn schedule(&mut self, at_ns: u64, place: u32) {
        debug_assert!(self.held.get(place as usize).is_some_and(Option::is_some));
        self.insert(at_ns, u64::from(place));
    }

    /// Schedules a word of the model of time.
    #[inline]
    pub fn schedule_tick(&mut self, at_ns: u64, word: u32) {
        debug_assert!(u64::from(word) < TICK);
        self.insert(at_ns, TICK | u64::from(word));
    }

    /// A held event.
    #[inline]
    pub fn take(&mut self, place: u32) -> Option<Event> {
        let event = self.held.get_mut(place as usize)?.take();
        if event.is_some() {
            self.free.push(place);
        }
        event
    }

    /// The next event that is due at `now_ns`: timed ones first, since what became due by the passing of time was
    /// scheduled before what is ready was.
    #[inline]
    pub fn pop(&mut self, now_ns: u64) -> Option<Event> {
        if let Some(key) = self.heap.first()
            && time_of(*key) <= now_ns
        {
            return self.pop_timed();
        }
        self.ready.pop_front()
    }

    /// When the next event that is not due yet will be.
    #[inline]
    pub fn next_ns(&self) -> Option<u64> {
        self.heap.first().map(|key| time_of(*key))
    }

    /// Events that are held.
    pub fn held(&self) -> usize {
        self.held.len() - self.free.len()
    }

    /// True where something is due now.
    #[inline]
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    fn pop_timed(&mut self) -> Option<Event> {
        let place = self.remove_first() & ((1 << PLACE_BITS) - 1);
        if place & TICK != 0 {
            return Some(Event::Tick { word: (place & (TICK - 1)) as u32 });
        }
        self.take(place as u32)
    }

    #[inline]
    fn insert(&mut self, at_ns: u64, place: u64) {
        self.order += 1;
        let key = Key::from(at_ns) << 64 | Key::from(self.order << PLACE_BITS | place);
        let mut hole = self.heap.len();
        self.heap.push(key);
        while hole > 0 {
            let parent = (hole - 1) / ARITY;
            if self.heap[parent] <= key {
                break;
            }
            self.heap[hole] = self.heap[parent];
            hole = parent;
        }
        self.heap[hole] = key;
    }

    /// Takes the first key out of a heap that is not empty.
    #[inline]
    fn remove_first(&mut self) -> u64 {
        let first = self.heap[0];
        let last = self.heap.len() - 1;
        let key = self.heap[last];
        self.heap.truncate(last);
        let mut hole = 0;
        loop {
            let begin = hole * ARITY + 1;
            if begin >= last {
                break;
            }
            let (mut least, mut least_key) = (begin, self.heap[begin]);
            for (place, child) in self.heap[begin + 1..(begin + ARITY).min(last)].iter().enumerate() {
                let less = *child < least_key;
                least = if less { begin + 1 + place } else { least };
                least_key = if less { *child } else { least_key };
            }
            if key <= least_key {
                break;
            }
            self.heap[hole] = least_key;
            hole = least;
        }
        if last > 0 {
            self.heap[hole] = key;
        }
        first as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::media::fault::Random;
    use std::collections::BTreeMap;

    fn token(event: Event) -> u32 {
        match event {
            Event::Deliver { token } => token,
            Event::Tick { word } => word | 1 << 31,
            _ => unreachable!("only these were scheduled"),
        }
    }

    #[test]
    fn same_order_as_a_sorted_map() {
        for seed in 0..20 {
            let mut random = Random::new(seed);
            let (mut queue, mut model) = (EventQueue::default(), BTreeMap::new());
            let (mut now_ns, mut number) = (0, 0u32);
            for _ in 0..5000 {
                if random.below(5) < 3 {
                    number += 1;
                    let at_ns = now_ns + random.below(50);
                    if random.below(4) == 0 {
                        queue.schedule_tick(at_ns, number);
                        model.insert((at_ns, number), number | 1 << 31);
                    } else {
                        queue.push_at(at_ns, Event::Deliver { token: number });
                        model.insert((at_ns, number), number);
                    }
                } else if let Some(next_ns) = queue.next_ns() {
                    assert_eq!(model.keys().next().map(|key| key.0), Some(next_ns));
                    assert!(next_ns == 0 || queue.pop(next_ns - 1).is_none());
                    now_ns = next_ns;
                    let event = queue.pop(now_ns).map(token);
                    assert_eq!(event, model.pop_first().map(|(_, token)| token));
                }
            }
            while let Some(next_ns) = queue.next_ns() {
                assert_eq!(queue.pop(next_ns).map(token), model.pop_first().map(|(_, token)| token));
            }
            assert!(model.is_empty());
            assert_eq!(queue.free.len(), queue.held.len(), "nothing is held any more");
        }
    }

    #[test]
    fn timed_events_that_are_due_go_before_those_that_are_ready() {
        let mut queue = EventQueue::default();
        queue.push_at(10, Event::Deliver { token: 1 });
        queue.push(Event::Deliver { token: 2 });
        assert_eq!(queue.pop(9).map(token), Some(2));
        queue.push(Event::Deliver { token: 3 });
        assert_eq!(queue.pop(10).map(token), Some(1));
        assert!(queue.has_ready());
        assert_eq!(queue.pop(10).map(token), Some(3));
        assert!(queue.pop(100).is_none());
    }
}
