//! The device's end of one endpoint's memory: takes commands off the submission ring, puts completions on the other.
//!
//! What always holds:
//! - everything in the memory is hostile: a slot's words are read once each, into a copy, and nothing is read again after it
//!   was checked; positions, what is under way and what was answered are counted here;
//! - a completion's place is reserved before its command is taken: `under_way + answered - seen_head` never exceeds the ring;
//! - payload is copied out when a command is taken, so that handlers that read it twice see the same bytes; all payload so
//!   held is never more than the endpoint's own data area has bytes;
//! - replies go straight into the endpoint's data area, into the range that the command named.

use crate::config::*;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use willow_device::shared::{SharedMemory, SharedWindow};
use willow_device::{Arguments, HostRequest, HreId, Rpc, RpcList};
use willow_shm::layout::{
    AT_COMPLETION_HEAD, AT_DEVICE_ASLEEP, AT_HOST_ASLEEP, AT_SUBMISSION_HEAD, AT_VIEW_VERSION, Call, Command,
    Completion, Layout, Operation, Outcome, SLOT_WORDS, Slot,
};
use willow_shm::memory::Mapping;

/// The mapping as the device's data path takes it.
pub(crate) struct Memory(pub Mapping);

// SAFETY: the mapping stays as it is until the value is dropped, and nobody makes Rust references to plain bytes of it
// (willow_shm::memory).
unsafe impl SharedMemory for Memory {
    fn span(&self) -> (NonNull<u8>, usize) {
        self.0.span()
    }
}

/// A command under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flight {
    /// The host's number for it.
    pub tag: u32,
    /// Bytes of payload held for it.
    pub payload_bytes: u32,
}

/// What was taken off the ring.
pub(crate) enum Taken {
    /// For the device, under the flight's number.
    Request(u16, HostRequest, Option<SharedWindow>),
    /// To be waited with for an upcall: flight, where it goes, milliseconds.
    Receive(u16, Option<SharedWindow>, u32),
    /// An upcall's answer: flight, id, status, result.
    Answer(u16, u64, u32, u32),
    /// To be answered with the view.
    View(u16, Option<SharedWindow>),
    /// To take back the command of this tag.
    Abort(u16, u32),
    /// Answered here already.
    Done,
}

/// Why an endpoint is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Violation(pub &'static str);

/// Mistakes that tests plant, to see that they are caught.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    /// Believes what the host says that it has taken.
    TrustHead,
    /// Takes commands without a place for their completion.
    NoReserve,
    /// Reads a length again after it was checked.
    ReadTwice,
}

/// An endpoint.
pub(crate) struct Endpoint {
    pub hre: HreId,
    pub layout: Layout,
    memory: Arc<Memory>,
    shared: Arc<dyn SharedMemory>,
    /// Slots taken.
    position: u64,
    /// Completions written, and how many of them the host has taken, as it showed last.
    answered: u64,
    seen_head: u64,
    flights: Vec<Option<Flight>>,
    free: Vec<u16>,
    payload_bytes: u64,
    /// A request that the device had no room for.
    pub held: Option<(HostRequest, Option<SharedWindow>)>,
    asleep: bool,
    #[cfg(feature = "testing")]
    pub plant: Option<Plant>,
}

impl Endpoint {
    /// Around fresh memory; `depth` commands may be under way.
    pub fn new(hre: HreId, layout: Layout, mapping: Mapping, depth: u32) -> Self {
        let memory = Arc::new(Memory(mapping));
        let depth = depth.min(layout.entries).min(u32::from(u16::MAX));
        let mapping = &memory.0;
        mapping.word(willow_shm::layout::AT_MAGIC).store(willow_shm::layout::MAGIC, Ordering::Relaxed);
        mapping.half(willow_shm::layout::AT_VERSION).store(willow_shm::layout::VERSION, Ordering::Release);
        Endpoint {
            hre,
            layout,
            shared: memory.clone(),
            memory,
            position: 0,
            answered: 0,
            seen_head: 0,
            flights: vec![None; depth as usize],
            free: (0..depth as u16).rev().collect(),
            payload_bytes: 0,
            held: None,
            asleep: false,
            #[cfg(feature = "testing")]
            plant: None,
        }
    }

    /// Whether a test has planted this mistake here.
    #[inline]
    fn planted(&self, plant: Plant) -> bool {
        #[cfg(feature = "testing")]
        let planted = self.plant == Some(plant);
        #[cfg(not(feature = "testing"))]
        let planted = {
            let _ = plant;
            false
        };
        planted
    }

    #[inline]
    fn map(&self) -> &Mapping {
        &self.memory.0
    }

    /// Slots taken.
    #[cfg(feature = "testing")]
    pub fn position(&self) -> u64 {
        self.position
    }

    /// (completions written, of them taken by the host, payload held)
    #[cfg(feature = "testing")]
    pub fn accounts(&self) -> (u64, u64, u64) {
        (self.answered, self.seen_head, self.payload_bytes)
    }

    /// Bytes of shared memory that it takes.
    pub fn bytes(&self) -> u64 {
        self.map().len() as u64
    }

    /// Commands under way.
    #[inline]
    pub fn under_way(&self) -> usize {
        self.flights.len() - self.free.len()
    }

    /// True where a command waits on the ring.
    #[inline]
    pub fn is_ready(&self) -> bool {
        let word = self.map().word(self.layout.slot(self.position)).load(Ordering::Acquire);
        word as u32 == self.layout.turn(self.position)
    }

    #[inline]
    fn read_slot(&self, position: u64) -> Slot {
        let at = self.layout.slot(position);
        let mut slot = [0; SLOT_WORDS];
        for (index, word) in slot.iter_mut().enumerate() {
            *word = self.map().word(at + index * 8).load(Ordering::Relaxed);
        }
        slot
    }

    /// True where a completion's place can be reserved.
    fn has_completion_room(&mut self) -> Result<bool, Violation> {
        let entries = u64::from(self.layout.entries);
        let wanted = self.under_way() as u64 + self.answered + 1;
        if wanted.saturating_sub(self.seen_head) > entries {
            let shown = self.map().half(AT_COMPLETION_HEAD).load(Ordering::Acquire);
            let passed = u64::from(shown.wrapping_sub(self.seen_head as u32));
            if passed > self.answered - self.seen_head && !self.planted(Plant::TrustHead) {
                return Err(Violation("it claims completions that it was not given"));
            }
            self.seen_head += passed;
        }
        Ok(wanted.saturating_sub(self.seen_head) <= entries || self.planted(Plant::NoReserve))
    }

    /// Takes the next command; `None` where there is none, or no room for it now. `buffer` gives memory for payload.
    #[inline]
    pub fn take(&mut self, buffer: impl FnOnce() -> Vec<u8>) -> Result<Option<Taken>, Violation> {
        if self.held.is_some() || !self.is_ready() || self.free.is_empty() || !self.has_completion_room()? {
            return Ok(None);
        }
        let first = self.read_slot(self.position);
        let Some(mut command) = Command::decode(&first) else {
            self.position += 1;
            self.refuse((first[0] >> 32) as u32);
            return Ok(Some(Taken::Done));
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
        let Some(rpcs) = self.calls(&command, &mut next) else {
            self.position += 1;
            self.refuse(command.tag);
            return Ok(Some(Taken::Done));
        };
        self.position = next;
        Ok(Some(self.parse(&command, rpcs, buffer)))
    }

    /// The RPCs of a command; `None` where they cannot be.
    #[inline]
    fn calls(&self, command: &Command, next: &mut u64) -> Option<RpcList> {
        let first = rpc_of(&command.call)?;
        if command.more == 0 {
            return Some(RpcList::One(first));
        }
        let mut rpcs = Vec::with_capacity(usize::from(command.more) + 1);
        rpcs.push(first);
        for _ in 0..command.more {
            let mut call = Call::decode(&self.read_slot(*next))?;
            *next += 1;
            if call.slots() == 2 {
                call.complete(&self.read_slot(*next));
                *next += 1;
            }
            rpcs.push(rpc_of(&call)?);
            if *next - self.position > u64::from(self.layout.entries) {
                return None;
            }
        }
        Some(RpcList::Many(rpcs))
    }

    #[inline]
    fn parse(&mut self, command: &Command, rpcs: RpcList, buffer: impl FnOnce() -> Vec<u8>) -> Taken {
        let inside = |offset: u32, bytes: u32| {
            bytes <= TRANSFER_BYTES_MAX && u64::from(offset) + u64::from(bytes) <= self.layout.data_bytes
        };
        if !inside(command.payload_offset, command.payload_bytes) || !inside(command.reply_offset, command.reply_bytes)
        {
            self.refuse(command.tag);
            return Taken::Done;
        }
        let at = |offset: u32| self.layout.data() + offset as usize;
        let window = match command.reply_bytes {
            0 => None,
            bytes => SharedWindow::new(self.shared.clone(), at(command.reply_offset), bytes as usize),
        };
        let mut payload = Vec::new();
        let mut payload_bytes = 0;
        if command.operation == Operation::Rpc && command.payload_bytes > 0 {
            payload_bytes = command.payload_bytes;
            payload = buffer();
            payload.clear();
            if self.planted(Plant::ReadTwice) {
                let again = self.read_slot(self.position - 1);
                payload_bytes = (again[2] >> 32) as u32;
            }
            let copied = self.map().append_to(at(command.payload_offset), payload_bytes as usize, &mut payload);
            debug_assert!(copied || self.planted(Plant::ReadTwice), "the range was checked");
        }
        let flight = self.begin(Flight { tag: command.tag, payload_bytes });
        let arguments = command.call.arguments();
        let word = |index: usize| -> u32 {
            arguments.get(index * 4..index * 4 + 4).map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
        };
        match command.operation {
            Operation::Rpc => {
                let reply_bytes = command.reply_bytes;
                let request = HostRequest { tag: u64::from(flight), rpcs, buffer: payload, payload_bytes, reply_bytes };
                Taken::Request(flight, request, window)
            }
            Operation::Receive => Taken::Receive(flight, window, word(0).min(RECEIVE_WAIT_MAX_MS)),
            Operation::Answer => Taken::Answer(flight, u64::from(word(0)) | u64::from(word(1)) << 32, word(2), word(3)),
            Operation::View => Taken::View(flight, window),
            Operation::Abort => Taken::Abort(flight, word(0)),
            Operation::Nothing => {
                self.end(flight, Outcome::Answered, 0, 0, 0);
                Taken::Done
            }
        }
    }

    #[inline]
    fn begin(&mut self, flight: Flight) -> u16 {
        // `take` has seen that there is one.
        let number = self.free.pop().unwrap_or_default();
        self.payload_bytes += u64::from(flight.payload_bytes);
        self.flights[usize::from(number)] = Some(flight);
        number
    }

    /// Answers a command that was none, under the place reserved for it.
    #[cold]
    fn refuse(&mut self, tag: u32) {
        self.publish(Completion { tag, outcome: Outcome::Invalid, status: 0, result: 0, reply_bytes: 0 });
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
        let at = self.layout.completion(self.answered);
        let words = completion.encode(self.layout.turn(self.answered));
        for (index, word) in words.iter().enumerate().skip(1) {
            self.map().word(at + index * 8).store(*word, Ordering::Relaxed);
        }
        self.map().word(at).store(words[0], Ordering::Release);
        self.answered += 1;
    }

    /// Shows the host how many slots were taken.
    #[inline]
    pub fn show_position(&self) {
        self.map().half(AT_SUBMISSION_HEAD).store(self.position as u32, Ordering::Release);
    }

    /// True where the host asked for a doorbell; it has to ask again for the next.
    #[inline]
    pub fn wants_doorbell(&self) -> bool {
        // The completions are written before the flag is read; the host sets the flag before it looks for the last time.
        fence(Ordering::SeqCst);
        let flag = self.map().half(AT_HOST_ASLEEP);
        flag.load(Ordering::Relaxed) != 0 && flag.swap(0, Ordering::Relaxed) != 0
    }

    /// Tells the host to ring from now on; false where a command has come meanwhile, which cancels it.
    pub fn fall_asleep(&mut self) -> bool {
        self.asleep = true;
        self.map().half(AT_DEVICE_ASLEEP).store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let could_go_on = self.held.is_none() && !self.free.is_empty() && self.is_ready();
        if could_go_on && self.has_completion_room() == Ok(true) {
            self.wake();
            return false;
        }
        true
    }

    /// The ring is looked at again.
    pub fn wake(&mut self) {
        if self.asleep {
            self.asleep = false;
            self.map().half(AT_DEVICE_ASLEEP).store(0, Ordering::Relaxed);
        }
    }

    /// Tells the host that the view has changed.
    pub fn show_view(&self, version: u32) {
        self.map().half(AT_VIEW_VERSION).store(version, Ordering::Release);
    }
}

#[inline]
fn rpc_of(call: &Call) -> Option<Rpc> {
    Some(Rpc { app: call.app, handler: call.handler, spu: call.spu, arguments: Arguments::new(call.arguments())? })
}
