//! What is about to happen inside the device, in order of time and then of cause.
//!
//! Invariants: events of the same time come out in the order in which they were scheduled; those that are due at once, in the
//! order in which accounts ([`crate::bridge::accounts`]) are to be served, an account's own in the order in which they came (what an FTL does for it
//! first); after the first events, nothing is
//! allocated: words are put in order ([`super::wheel`]), the events lie still in a table until they are due.

use super::fair::FairQueue;
use super::wheel::Wheel;
use super::{Key, Transfer};
use crate::hre::HreId;
use crate::request::{AppNumber, RpcOutcome, Upcall};
use std::collections::BTreeMap;

/// Something that is about to happen.
#[derive(Debug)]
pub(crate) enum Event {
    /// A request has arrived at its SPU.
    Deliver {
        /// Activity.
        token: Key,
    },
    /// Something that a handler waited for has happened.
    Complete(Completion),
    /// An RPC's answer has arrived at its host.
    Response { transfer: u32, outcome: RpcOutcome, result: u32 },
    /// An RPC's answer has arrived at the SPU that asked.
    End { group: Key, result: i64, memory: Option<Box<(u64, Vec<u8>)>> },
    /// An RPC from an SPU has arrived at its host.
    Upcall(PostedUpcall),
    /// A part of a message that a handler puts together has been read from NV memory.
    MessagePart {
        handle: Key,
        /// The user's app that has one of its places for it.
        users: Option<AppNumber>,
    },
    /// The media have the data of a DMA.
    DmaData(TimedDma),
    /// Data that were streamed have arrived: nobody waits for them.
    Streamed,
    /// The data of a write have come to the buffers before flash.
    Landed { group: Key },
    /// Operations of flash begin: the first of a run's.
    Flash { first: u32 },
    /// A processor is free, and work waits for it.
    Processor { spu: u16 },
    /// A DMA to or from another SPU's NV memory has come there, or is done there.
    Remote(OnItsWay),
    /// A run that made way goes on, if it is still there: one an instance.
    Resume { spu: u16, app: AppNumber, incarnation: u32 },
}

/// A DMA to or from another SPU's NV memory on its way, under a model of time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OnItsWay {
    /// Who waits for it.
    pub group: Key,
    /// What that SPU's controller does.
    pub transfer: Transfer,
    /// It has been done: what comes back are its bytes, or its end.
    pub is_done: bool,
}

/// The end of a wait.
#[derive(Debug)]
pub(crate) struct Completion {
    pub of: Wait,
    /// Bytes to put into the app's memory first, and where.
    pub memory: Option<Box<(u64, Vec<u8>)>>,
}

/// Whose wait has ended, and how.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait {
    pub spu: u16,
    pub app: u16,
    /// Whose work it is.
    pub account: u16,
    /// The app's incarnation that waits: an older one's completions are dropped.
    pub incarnation: u32,
    /// The wait and its result; `None`: only bytes for the app's memory.
    pub wake: Option<(u32, i64)>,
    /// Activity whose DMA count goes down.
    pub token: Option<u32>,
    /// It has one of its app's places ([`crate::spu::os::Machine::waits`]): that of a user's app.
    pub placed: bool,
}

/// An upcall on its way to a host.
#[derive(Debug)]
pub(crate) struct PostedUpcall {
    pub hre: HreId,
    pub upcall: Upcall,
    pub group: Key,
}

/// A DMA and the event that follows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimedDma {
    pub transfer: Transfer,
    /// Place of the event.
    pub then: u32,
    /// True where its data go to a host as they move.
    pub streamed: bool,
    /// The accelerator that takes what it has brought before the event follows, and how many bytes of it.
    pub accelerated: Option<(u8, u32)>,
}

/// Bits of a word that name a place in the table, or a word of the model.
const PLACE_BITS: u32 = 21;
/// Set in a word that is a tick.
const TICK: u32 = 1 << (PLACE_BITS - 1);
/// The place of the model's own tick: no event lies there.
pub(crate) const MODEL_PLACE: u32 = 0;
/// Most events held at once: activities, groups, messages and ticks, with room.
pub(crate) const EVENTS_MAX: usize = TICK as usize - 1;

/// What is due next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// A word that the model of time asked for.
    Tick(u32),
    /// The event at this place: [`EventQueue::take`].
    Held(u32),
    /// The first of those that are ready: [`EventQueue::pop_ready`].
    Ready,
    /// The sleep of this group is over.
    Alarm(Key),
}

/// The queue.
pub(crate) struct EventQueue {
    ready: FairQueue<Event>,
    times: Wheel,
    held: Vec<Option<Event>>,
    free: Vec<u32>,
    /// Groups that sleep: by when that ends, and then in the order in which they began.
    alarms: BTreeMap<(u64, u64), Key>,
    alarms_set: u64,
}

impl Default for EventQueue {
    fn default() -> Self {
        // What lies at MODEL_PLACE.
        EventQueue {
            ready: FairQueue::default(),
            times: Wheel::default(),
            held: vec![None],
            free: Vec::new(),
            alarms: BTreeMap::new(),
            alarms_set: 0,
        }
    }
}

impl EventQueue {
    /// Schedules what is due now, as work of an account. (Under a model accounts meet at the processors: here one is enough.)
    #[inline]
    pub fn push(&mut self, account: u16, event: Event) {
        self.ready.push(account, event);
    }

    /// The same for work that others wait for: before the account's other work.
    #[inline]
    pub fn push_first(&mut self, account: u16, event: Event) {
        self.ready.push_first(account, event);
    }

    /// An account had this much of the processor.
    #[inline]
    pub fn charge(&mut self, account: u16, units: u64) {
        self.ready.charge(account, units);
    }

    /// Whose the last ready event was.
    #[inline]
    pub fn account(&self) -> u16 {
        self.ready.current()
    }

    /// True where the next ready event is another account's than the last: its turn begins.
    #[inline]
    pub fn turns(&mut self) -> bool {
        self.ready.is_shared() && {
            let before = self.ready.current();
            self.ready.next().is_some_and(|account| account != before)
        }
    }

    /// Schedules for a time.
    #[inline(always)]
    pub fn push_at(&mut self, at_ns: u64, event: Event) {
        let place = self.hold(|| event);
        self.schedule(at_ns, place);
    }

    /// Keeps an event that has no time yet; [`EventQueue::schedule`] or [`EventQueue::take`] is to follow.
    #[inline(always)]
    pub fn hold(&mut self, event: impl FnOnce() -> Event) -> u32 {
        let place = match self.free.pop() {
            Some(place) => place,
            None => self.another_place(),
        };
        // The slot is empty here, so skip the drop that the compiler would emit. (An event is made where it will lie: a copy of one that
        // was just made waits for its parts to be written.)
        let held = &mut self.held[place as usize];
        std::mem::forget(held.replace(event()));
        place
    }

    #[cold]
    fn another_place(&mut self) -> u32 {
        assert!(self.held.len() < EVENTS_MAX, "more events than the tables that cause them can hold");
        self.held.push(None);
        self.held.len() as u32 - 1
    }

    /// Gives a held event its time.
    #[inline]
    pub fn schedule(&mut self, at_ns: u64, place: u32) {
        debug_assert!(self.held.get(place as usize).is_some_and(Option::is_some));
        self.times.insert(at_ns, place);
    }

    /// Schedules a tick of the model of time: its own ([`MODEL_PLACE`]), or one for an event that is held and has no time yet.
    #[inline]
    pub fn schedule_tick(&mut self, at_ns: u64, word: u32) {
        debug_assert!(word == MODEL_PLACE || self.held_at(word).is_some());
        self.times.insert(at_ns, TICK | word);
    }

    /// A held event, where it lies.
    #[inline]
    pub fn held_at(&self, place: u32) -> Option<&Event> {
        self.held.get(place as usize)?.as_ref()
    }

    /// A held event.
    #[inline(always)]
    pub fn take(&mut self, place: u32) -> Option<Event> {
        let event = self.held.get_mut(place as usize)?.take();
        if event.is_some() {
            self.free.push(place);
        }
        event
    }

    /// Forgets a held event that owns nothing.
    #[inline(always)]
    pub fn release(&mut self, place: u32) {
        let Some(held) = self.held.get_mut(place as usize) else { return };
        if let Some(event) = held.take() {
            debug_assert!(!matches!(
                event,
                Event::Complete(Completion { memory: Some(_), .. })
                    | Event::End { memory: Some(_), .. }
                    | Event::Upcall(_)
            ));
            // These hold nothing to drop, so skip the drop that the compiler would emit.
            std::mem::forget(event);
            self.free.push(place);
        }
    }

    /// The first of those that are ready.
    #[inline]
    pub fn pop_ready(&mut self) -> Option<Event> {
        self.ready.pop()
    }

    /// What is due next, at `now_ns` or at the latest at `until_ns`, and when: timed events that are due already first, since what
    /// became due by the passing of time was scheduled before what is ready was.
    #[inline(always)]
    pub fn due(&mut self, now_ns: u64, until_ns: u64) -> Option<(u64, Due)> {
        let ready = !self.ready.is_empty();
        let until_ns = if ready { now_ns } else { until_ns.max(now_ns) };
        if !self.alarms.is_empty() {
            return self.due_beside_alarms(now_ns, until_ns);
        }
        match self.times.take_until(until_ns) {
            Some((at_ns, word)) => {
                let due = if word & TICK != 0 { Due::Tick(word & (TICK - 1)) } else { Due::Held(word) };
                Some((at_ns.max(now_ns), due))
            }
            None => ready.then_some((now_ns, Due::Ready)),
        }
    }

    /// The same while somebody sleeps: what is scheduled for the time of an alarm goes before it.
    #[cold]
    fn due_beside_alarms(&mut self, now_ns: u64, until_ns: u64) -> Option<(u64, Due)> {
        let first = self.alarms.first_key_value().map(|(at, _)| at.0).filter(|at_ns| *at_ns <= until_ns);
        if let Some((at_ns, word)) = self.times.take_until(first.unwrap_or(until_ns)) {
            let due = if word & TICK != 0 { Due::Tick(word & (TICK - 1)) } else { Due::Held(word) };
            return Some((at_ns.max(now_ns), due));
        }
        if first.is_some()
            && let Some(((at_ns, _), group)) = self.alarms.pop_first()
        {
            return Some((at_ns.max(now_ns), Due::Alarm(group)));
        }
        (!self.ready.is_empty()).then_some((now_ns, Due::Ready))
    }

    /// Has a group's sleep end then; what [`EventQueue::clear_alarm`] takes, with the time.
    pub fn set_alarm(&mut self, at_ns: u64, group: Key) -> u64 {
        self.alarms_set += 1;
        self.alarms.insert((at_ns, self.alarms_set), group);
        self.alarms_set
    }

    /// A sleep has ended before its time.
    pub fn clear_alarm(&mut self, alarm: (u64, u64)) {
        self.alarms.remove(&alarm);
    }

    /// Groups that sleep.
    #[cfg(feature = "testing")]
    pub fn alarms(&self) -> usize {
        self.alarms.len()
    }

    /// The next event that is due at `now_ns`.
    #[inline]
    pub fn pop(&mut self, now_ns: u64) -> Option<Event> {
        if self.times.is_empty() && self.alarms.is_empty() {
            return self.pop_ready();
        }
        match self.due(now_ns, now_ns)?.1 {
            Due::Ready => self.pop_ready(),
            Due::Held(place) => self.take(place),
            Due::Alarm(group) => Some(Event::End { group, result: 0, memory: None }),
            Due::Tick(_) => unreachable!("only a model of time asks for ticks, and its driver takes them"),
        }
    }

    /// When the next event that is not due yet will be.
    #[inline]
    pub fn next_ns(&self) -> Option<u64> {
        let alarm = self.alarms.first_key_value().map(|(at, _)| at.0);
        [self.times.first_ns(), alarm].into_iter().flatten().min()
    }

    /// Events that are held.
    pub fn held(&self) -> usize {
        self.held.len() - 1 - self.free.len()
    }

    /// True where something is due now.
    #[inline]
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::media::fault::Random;
    use std::collections::BTreeMap;

    fn deliver(key: u32) -> Event {
        Event::Deliver { token: Key { spu: 0, key } }
    }

    fn token(event: Event) -> u32 {
        match event {
            Event::Deliver { token } => token.key,
            _ => unreachable!("only these were scheduled"),
        }
    }

    #[test]
    fn events_and_ticks_come_out_in_order() {
        let mut random = Random::new(4);
        let (mut queue, mut model) = (EventQueue::default(), BTreeMap::new());
        let (mut now_ns, mut number) = (0, 0u32);
        for _ in 0..20_000 {
            if random.below(5) < 3 {
                number += 1;
                let at_ns = now_ns + random.below(50);
                let tick = random.below(4) == 0;
                let place = queue.hold(|| deliver(number));
                match tick {
                    true => queue.schedule_tick(at_ns, place),
                    false => queue.schedule(at_ns, place),
                }
                model.insert((at_ns, number), tick);
            } else if let Some(next_ns) = queue.next_ns() {
                assert_eq!(model.keys().next().map(|key| key.0), Some(next_ns));
                assert!(next_ns == now_ns || queue.due(now_ns, next_ns - 1).is_none());
                let (at_ns, due) = queue.due(now_ns, next_ns + 7).unwrap();
                now_ns = next_ns;
                let found = match due {
                    Due::Tick(place) => (queue.take(place).map(token).unwrap(), true),
                    Due::Held(place) => (queue.take(place).map(token).unwrap(), false),
                    Due::Ready | Due::Alarm(_) => unreachable!("nothing was"),
                };
                let ((expected_ns, number), tick) = model.pop_first().unwrap();
                assert_eq!((at_ns, found), (expected_ns, (number, tick)));
            }
        }
        while let Some(event) = queue.next_ns().and_then(|next_ns| queue.due(next_ns, next_ns)) {
            let ((_, number), tick) = model.pop_first().unwrap();
            match event.1 {
                Due::Held(place) => assert_eq!((queue.take(place).map(token), false), (Some(number), tick)),
                Due::Tick(place) => assert_eq!((queue.take(place).map(token), true), (Some(number), tick)),
                Due::Ready | Due::Alarm(_) => unreachable!("nothing was"),
            }
        }
        assert!(model.is_empty());
        assert_eq!(queue.held(), 0, "nothing is held any more");
    }

    #[test]
    fn timed_events_that_are_due_go_before_those_that_are_ready() {
        let mut queue = EventQueue::default();
        queue.push_at(10, deliver(1));
        queue.push(0, deliver(2));
        assert_eq!(queue.pop(9).map(token), Some(2));
        queue.push(0, deliver(3));
        assert_eq!(queue.due(9, 20), Some((9, Due::Ready)), "what is ready goes before what is to come");
        assert_eq!(queue.pop(10).map(token), Some(1));
        assert!(queue.has_ready());
        assert_eq!(queue.pop(10).map(token), Some(3));
        assert!(queue.pop(100).is_none());
    }
}
