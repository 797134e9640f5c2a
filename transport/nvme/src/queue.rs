//! A queue: one transport connection's submission and completion queue pair, and the commands under way on it.
//!
//! What always holds:
//! - commands under way never exceed the queue's entries, and no two have the same identifier;
//! - a slot is taken when a command is taken and freed exactly when its completion is made or the queue goes.

use std::net::SocketAddr;

use willow_device::{HreId, Upcall};
use willow_wire::spec::SubmissionEntry;

use crate::account::UNPROVED;
use crate::authentication::QueueAuthentication;
use crate::command::Command;
use crate::concatenation::Secured;
use crate::fused::{FirstHalf, Pair};
use crate::statistics::{Direction, Histogram};
use crate::work::Work;

/// The states of a command under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// No command.
    Free,
    /// It waits for a buffer.
    Waiting,
    /// The transport fetches its data from the host.
    Fetching,
    /// It waits for a place in the device.
    Ready,
    /// The device works on it.
    Device,
    /// A Receive that waits for an upcall.
    Parked,
    /// An Authentication Send whose powers are computed elsewhere.
    Authenticating,
    /// An Asynchronous Event Request that waits for an event.
    Event,
    /// It waits for a fused operation, or for the other half of its own.
    Held,
}

/// A command under way.
pub(crate) struct Slot {
    pub state: State,
    pub cid: u16,
    pub opcode: u8,
    /// Set where nobody is told of the end (a flush at shutdown).
    pub internal: bool,
    pub direction: Direction,
    pub nsid: u32,
    pub lba: u64,
    /// Data bytes of it.
    pub bytes: u32,
    /// Whole length of the data buffer that the device holds.
    pub buffer_bytes: u32,
    /// It is half of a fused operation: the other ends with it.
    pub paired: bool,
    /// The device has a request of it that has not been answered.
    pub submitted: bool,
    /// What it took of its connection's buffers for capsules.
    pub capsule_bytes: u32,
    pub start_ns: u64,
    /// Parked: until when.
    pub deadline_ns: u64,
    /// What it is, while its data are fetched.
    pub command: Option<Command>,
    /// Its submission queue entry, while an admin command waits for a buffer.
    pub entry: Option<Box<SubmissionEntry>>,
    /// What is to be made of the device's answer.
    pub work: Work,
}

impl Slot {
    fn free() -> Self {
        Slot {
            state: State::Free,
            cid: 0,
            opcode: 0,
            internal: false,
            direction: Direction::Other,
            nsid: 0,
            lba: 0,
            bytes: 0,
            buffer_bytes: 0,
            paired: false,
            submitted: false,
            capsule_bytes: 0,
            start_ns: 0,
            deadline_ns: 0,
            command: None,
            entry: None,
            work: Work::Nothing,
        }
    }
}

/// A queue, or a connection that has none yet.
pub(crate) struct Queue {
    pub generation: u16,
    /// Address that the host reached.
    pub local: Option<SocketAddr>,
    /// Whose account is charged for what it holds; it stays until the connection is closed.
    pub account: u16,
    /// Data buffers that it holds, whole.
    pub charged_bytes: usize,
    /// What the transport holds for it beside these.
    pub transport_bytes: usize,
    /// Bytes that the transport has to send and has not sent yet.
    pub queued_bytes: usize,
    /// Commands whose data were asked for and are not all there.
    pub fetching: u32,
    /// Buffers of data from capsules past its host's share.
    pub capsules_bytes: u32,
    /// Completions that were made and that the transport has not taken yet.
    pub completions: u32,
    /// What TLS proved, where the connection is TLS.
    pub secured: Option<Box<Secured>>,
    /// It is of a user of this machine who may not act as a host.
    pub distrusted: bool,
    /// Set by Connect.
    pub association: Option<Association>,
    /// How its host proves itself, where it has to.
    pub authentication: Option<Box<QueueAuthentication>>,
    /// The first command of a fused operation, whose second has not come.
    pub first_half: Option<Box<FirstHalf>>,
    /// Fused operations whose data are on their way.
    pub pairs: Vec<Pair>,
    pub slots: Vec<Slot>,
    pub free: Vec<u16>,
    pub in_flight: u32,
    identifiers: Vec<u64>,
    /// Slots of parked Receives, oldest first.
    pub parked: Vec<u16>,
    /// An upcall that a Receive's buffer was too short for.
    pub upcall: Option<Upcall>,
    pub commands: u64,
    pub errors: u64,
    pub latency: Histogram,
}

/// What Connect ties a connection to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Association {
    pub controller: u16,
    pub qid: u16,
    pub hre: HreId,
    pub entries: u16,
    /// Submission queue head; not kept up where the host has disabled flow control.
    pub head: u16,
    pub flow_control: bool,
    /// False until the host has proved itself, where it has to: only authentication commands are taken.
    pub authenticated: bool,
}

impl Queue {
    /// Moves the submission queue's head on by one entry.
    #[inline]
    pub fn advance(&mut self) {
        if let Some(association) = &mut self.association
            && association.flow_control
        {
            association.head = if association.head + 1 >= association.entries { 0 } else { association.head + 1 };
        }
    }

    pub fn new(generation: u16, local: Option<SocketAddr>) -> Self {
        Queue {
            generation,
            local,
            account: UNPROVED,
            charged_bytes: 0,
            transport_bytes: 0,
            queued_bytes: 0,
            fetching: 0,
            capsules_bytes: 0,
            completions: 0,
            secured: None,
            distrusted: false,
            association: None,
            authentication: None,
            first_half: None,
            pairs: Vec::new(),
            slots: Vec::new(),
            free: Vec::new(),
            in_flight: 0,
            identifiers: Vec::new(),
            parked: Vec::new(),
            upcall: None,
            commands: 0,
            errors: 0,
            latency: Histogram::default(),
        }
    }

    /// Takes note of a command's identifier; false where one under way has it.
    #[inline]
    pub fn take_identifier(&mut self, cid: u16) -> bool {
        if self.identifiers.is_empty() {
            self.identifiers = vec![0; 1024];
        }
        let word = &mut self.identifiers[usize::from(cid) / 64];
        let bit = 1 << (cid % 64);
        let fresh = *word & bit == 0;
        *word |= bit;
        fresh
    }

    /// A free slot, not counted as a host's command yet.
    #[inline]
    pub fn take_slot(&mut self) -> u16 {
        self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::free());
            (self.slots.len() - 1) as u16
        })
    }

    /// Frees a slot and the identifier of its command.
    #[inline]
    pub fn free_slot(&mut self, index: u16) {
        let slot = &mut self.slots[usize::from(index)];
        debug_assert!(slot.state != State::Free);
        slot.state = State::Free;
        slot.work = Work::Nothing;
        slot.command = None;
        slot.entry = None;
        self.capsules_bytes -= slot.capsule_bytes;
        slot.capsule_bytes = 0;
        if !slot.internal {
            self.identifiers[usize::from(slot.cid) / 64] &= !(1 << (slot.cid % 64));
            self.in_flight -= 1;
        }
        self.free.push(index);
    }

    /// Bytes that are held for the connection.
    pub fn held_bytes(&self) -> usize {
        self.charged_bytes + self.transport_bytes
    }

    /// The same connection without a queue: its association and the commands under way are gone, what it holds is not.
    pub fn without_association(&self) -> Self {
        Queue {
            account: self.account,
            charged_bytes: self.charged_bytes,
            transport_bytes: self.transport_bytes,
            queued_bytes: self.queued_bytes,
            completions: self.completions,
            distrusted: self.distrusted,
            ..Queue::new(self.generation, self.local)
        }
    }

    /// The slot of a command under way.
    pub fn find(&self, cid: u16) -> Option<u16> {
        let found = self.slots.iter().position(|slot| slot.state != State::Free && !slot.internal && slot.cid == cid);
        found.map(|index| index as u16)
    }
}
