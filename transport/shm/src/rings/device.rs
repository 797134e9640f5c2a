//! The device's end of the rings: takes commands, puts completions.
//!
//! What always holds:
//! - everything in the memory is hostile: a slot's words are read once each, into a copy, and nothing is read again after it
//!   was checked; positions, what is under way and what was answered are counted here;
//! - a completion's place is reserved before its command is taken: `under_way + answered - seen_head` never exceeds the ring;
//! - a command that comes out names ranges inside the data area; all payload of commands under way is never more than the
//!   data area has bytes, but for one command alone;
//! - the slots of a command are shown as taken before its completion is published, so that a host without room waits for
//!   completions and for nothing else.

use super::Words;
use crate::layout::{
    AT_COMPLETION_HEAD, AT_DEVICE_ASLEEP, AT_HOST_ASLEEP, AT_MAGIC, AT_SUBMISSION_HEAD, AT_VERSION, AT_VIEW_VERSION,
    Call, Command, Completion, Layout, MAGIC, Operation, Outcome, SLOT_WORDS, Slot, VERSION,
};
use std::sync::atomic::Ordering;

/// A command under way.
#[derive(Clone, Copy, Debug)]
struct Flight {
    /// The host's number for it.
    tag: u32,
    /// Bytes of payload held for it.
    payload_bytes: u32,
}

/// What was taken off the ring.
#[derive(Debug)]
pub enum Taken<L> {
    /// A command, under the number of its flight, with its RPCs.
    Command(u16, Command, L),
    /// One that makes no sense; answered here already.
    Refused,
}

/// Why an endpoint is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Violation(pub &'static str);

/// Mistakes that tests plant, to see that they are caught.
#[cfg(feature = "testing")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    /// Believes what the host says that it has taken.
    TrustHead,
    /// Takes commands without a place for their completion.
    NoReserve,
    /// Reads a length again after it was checked.
    ReadTwice,
    /// Shows what it took only when it is asked to.
    LateHead,
}

/// Whether a test has planted this mistake in these rings.
macro_rules! planted {
    ($rings:expr, $plant:ident) => {{
        #[cfg(feature = "testing")]
        let planted = $rings.plant == Some(Plant::$plant);
        #[cfg(not(feature = "testing"))]
        let planted = false;
        planted
    }};
}

/// The device's end.
pub struct DeviceRings<W> {
    words: W,
    layout: Layout,
    transfer_bytes_max: u32,
    /// Slots taken, and how many of them the host was shown.
    position: u64,
    shown_position: u64,
    /// Completions written, and how many of them the host has taken, as it showed last.
    answered: u64,
    seen_head: u64,
    flights: Vec<Option<Flight>>,
    free: Vec<u16>,
    payload_bytes: u64,
    asleep: bool,
    /// What a test has planted.
    #[cfg(feature = "testing")]
    pub plant: Option<Plant>,
}

impl<W: Words> DeviceRings<W> {
    /// Around fresh memory; `depth` commands may be under way, each with at most so many bytes of payload and of reply.
    pub fn new(words: W, layout: Layout, depth: u32, transfer_bytes_max: u32) -> Self {
        let depth = depth.min(layout.entries).min(u32::from(u16::MAX));
        words.store(AT_MAGIC, MAGIC, Ordering::Relaxed);
        words.store_half(AT_VERSION, VERSION, Ordering::Release);
        DeviceRings {
            words,
            layout,
            transfer_bytes_max,
            position: 0,
            shown_position: 0,
            answered: 0,
            seen_head: 0,
            flights: vec![None; depth as usize],
            free: (0..depth as u16).rev().collect(),
            payload_bytes: 0,
            asleep: false,
            #[cfg(feature = "testing")]
            plant: None,
        }
    }

    /// The memory.
    #[inline]
    pub fn words(&self) -> &W {
        &self.words
    }

    /// Where everything lies in it.
    #[inline]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Slots taken.
    #[inline]
    pub fn position(&self) -> u64 {
        self.position
    }

    /// (completions written, of them taken by the host, payload held)
    #[cfg(feature = "testing")]
    pub fn accounts(&self) -> (u64, u64, u64) {
        (self.answered, self.seen_head, self.payload_bytes)
    }

    /// Commands under way.
    #[inline]
    pub fn under_way(&self) -> usize {
        self.flights.len() - self.free.len()
    }

    /// True where a command waits on the ring.
    #[inline]
    pub fn is_ready(&self) -> bool {
        let word = self.words.load(self.layout.slot(self.position), Ordering::Acquire);
        word as u32 == self.layout.turn(self.position)
    }

    #[inline]
    pub(crate) fn read_slot(&self, position: u64) -> Slot {
        let at = self.layout.slot(position);
        let mut slot = [0; SLOT_WORDS];
        for (index, word) in slot.iter_mut().enumerate() {
            *word = self.words.load(at + index * 8, Ordering::Relaxed);
        }
        slot
    }

    /// The payload's length once more, as a mistake that tests plant.
    #[cfg(feature = "testing")]
    pub fn payload_bytes_again(&self) -> Option<u32> {
        planted!(self, ReadTwice).then(|| (self.read_slot(self.position - 1)[2] >> 32) as u32)
    }

    /// True where a completion's place can be reserved.
    fn has_completion_room(&mut self) -> Result<bool, Violation> {
        let entries = u64::from(self.layout.entries);
        let wanted = self.under_way() as u64 + self.answered + 1;
        if wanted.saturating_sub(self.seen_head) > entries {
            let shown = self.words.load_half(AT_COMPLETION_HEAD, Ordering::Acquire);
            let passed = u64::from(shown.wrapping_sub(self.seen_head as u32));
            if passed > self.answered - self.seen_head && !planted!(self, TrustHead) {
                return Err(Violation("it claims completions that it was not given"));
            }
            self.seen_head += passed;
        }
        Ok(wanted.saturating_sub(self.seen_head) <= entries || planted!(self, NoReserve))
    }

    /// Takes the next command; `None` where there is none, or no room for it now. `list` begins the list of its RPCs with the
    /// first and the number of those behind it, `push` adds one of these; what they refuse makes no sense.
    #[inline]
    pub fn take<L>(
        &mut self,
        list: impl FnOnce(&Call, u8) -> Option<L>,
        push: impl FnMut(&mut L, &Call) -> Option<()>,
    ) -> Result<Option<Taken<L>>, Violation> {
        if !self.is_ready() || self.free.is_empty() || !self.has_completion_room()? {
            return Ok(None);
        }
        let first = self.read_slot(self.position);
        let Some(mut command) = Command::decode(&first) else {
            return Ok(Some(self.refuse(self.position + 1, (first[0] >> 32) as u32)));
        };
        if self.payload_bytes + u64::from(command.payload_bytes) > self.layout.data_bytes && self.payload_bytes > 0 {
            // Overlapping payloads are taken one after the other: a host whose buffers are apart never comes here.
            return Ok(None);
        }
        let mut next = self.position + 1;
        if command.call.slots() == 2 {
            let rest = self.read_slot(next);
            command.call.complete(&rest);
            next += 1;
        }
        let calls = list(&command.call, command.more);
        let Some(calls) = calls.and_then(|calls| self.calls(calls, command.more, push, &mut next)) else {
            return Ok(Some(self.refuse(self.position + 1, command.tag)));
        };
        if !self.inside(command.payload_offset, command.payload_bytes)
            || !self.inside(command.reply_offset, command.reply_bytes)
        {
            return Ok(Some(self.refuse(next, command.tag)));
        }
        self.position = next;
        Ok(Some(Taken::Command(self.begin(&command), command, calls)))
    }

    /// The RPCs behind the first; `None` where they cannot be.
    #[inline]
    fn calls<L>(
        &self,
        mut calls: L,
        more: u8,
        mut push: impl FnMut(&mut L, &Call) -> Option<()>,
        next: &mut u64,
    ) -> Option<L> {
        for _ in 0..more {
            let mut call = Call::decode(&self.read_slot(*next))?;
            *next += 1;
            if call.slots() == 2 {
                call.complete(&self.read_slot(*next));
                *next += 1;
            }
            push(&mut calls, &call)?;
            if *next - self.position > u64::from(self.layout.entries) {
                return None;
            }
        }
        Some(calls)
    }

    #[inline]
    fn inside(&self, offset: u32, bytes: u32) -> bool {
        bytes <= self.transfer_bytes_max && u64::from(offset) + u64::from(bytes) <= self.layout.data_bytes
    }

    #[inline]
    fn begin(&mut self, command: &Command) -> u16 {
        // Other operations' payload is not looked at.
        let payload_bytes = if command.operation == Operation::Rpc { command.payload_bytes } else { 0 };
        // `take` has seen that there is one.
        let number = self.free.pop().unwrap_or_default();
        self.payload_bytes += u64::from(payload_bytes);
        self.flights[usize::from(number)] = Some(Flight { tag: command.tag, payload_bytes });
        number
    }

    /// Answers a command that was none, under the place reserved for it.
    #[cold]
    fn refuse<L>(&mut self, next: u64, tag: u32) -> Taken<L> {
        self.position = next;
        self.publish(Completion { tag, outcome: Outcome::Invalid, status: 0, result: 0, reply_bytes: 0 });
        Taken::Refused
    }

    /// The flight of a host's tag.
    pub fn flight_of(&self, tag: u32) -> Option<u16> {
        let place = self.flights.iter().position(|flight| flight.is_some_and(|flight| flight.tag == tag))?;
        Some(place as u16)
    }

    /// Ends a command: its completion goes onto the ring. Nothing happens where there is no such flight.
    #[inline]
    pub fn end(&mut self, flight: u16, outcome: Outcome, status: u32, result: u32, reply_bytes: u32) {
        let Some(Some(ended)) = self.flights.get_mut(usize::from(flight)).map(Option::take) else { return };
        self.free.push(flight);
        self.payload_bytes -= u64::from(ended.payload_bytes);
        self.publish(Completion { tag: ended.tag, outcome, status, result, reply_bytes });
    }

    #[inline]
    fn publish(&mut self, completion: Completion) {
        if !planted!(self, LateHead) {
            self.show_position();
        }
        let at = self.layout.completion(self.answered);
        let words = completion.encode(self.layout.turn(self.answered));
        for (index, word) in words.iter().enumerate().skip(1) {
            self.words.store(at + index * 8, *word, Ordering::Relaxed);
        }
        self.words.store(at, words[0], Ordering::Release);
        self.answered += 1;
    }

    /// Shows the host how many slots were taken.
    #[inline]
    pub fn show_position(&mut self) {
        if self.shown_position != self.position {
            self.shown_position = self.position;
            self.words.store_half(AT_SUBMISSION_HEAD, self.position as u32, Ordering::Release);
        }
    }

    /// True where the host asked for a doorbell; it has to ask again for the next.
    #[inline]
    pub fn wants_doorbell(&self) -> bool {
        // The completions are written before the flag is read; the host sets the flag before it looks for the last time.
        self.words.fence();
        self.words.load_half(AT_HOST_ASLEEP, Ordering::Relaxed) != 0
            && self.words.swap_half(AT_HOST_ASLEEP, 0, Ordering::Relaxed) != 0
    }

    /// Tells the host to ring from now on; false where a command has come meanwhile that can be taken, which cancels it.
    pub fn fall_asleep(&mut self) -> bool {
        self.asleep = true;
        self.words.store_half(AT_DEVICE_ASLEEP, 1, Ordering::Relaxed);
        self.words.fence();
        if !self.free.is_empty() && self.is_ready() && self.has_completion_room() == Ok(true) {
            self.wake();
            return false;
        }
        true
    }

    /// The ring is looked at again.
    pub fn wake(&mut self) {
        if self.asleep {
            self.asleep = false;
            self.words.store_half(AT_DEVICE_ASLEEP, 0, Ordering::Relaxed);
        }
    }

    /// Tells the host that the view has changed.
    pub fn show_view(&self, version: u32) {
        self.words.store_half(AT_VIEW_VERSION, version, Ordering::Release);
    }
}
