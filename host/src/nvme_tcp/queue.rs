//! One NVMe/TCP queue pair of a host, without I/O: bytes in, bytes out. The drivers beside it (tokio, polled) move the bytes.
//!
//! What always holds:
//! - at most `depth` commands are in flight; a command's identifier is slot + generation, so that a completion that comes
//!   twice or for a command that never was ends the connection instead of another command;
//! - a buffer handed in with a command comes back in its [`Completed`], also where the connection dies ([`Queue::fail`]);
//! - data are taken in order and within the buffer, whatever the controller says; all else ends the connection with the
//!   termination request that the specification prescribes;
//! - memory is bounded: the receive buffer, the slots, and output of at most what the commands in flight may send.

mod receive;

use std::collections::VecDeque;
use std::io::IoSlice;
use willow_wire::pdu::{self, Decoder, Digest, Encoder, InitializeRequest, PduError, Role, Termination};
use willow_wire::spec::{CompletionEntry, Sgl, Status, SubmissionEntry, opcode};

/// Most commands in flight on one queue.
pub const DEPTH_MAX: u16 = 1024;
/// In-capsule data of admin and fabrics commands (NVMe/TCP 3.3: 8192 bytes).
pub const ADMIN_CAPSULE_DATA_BYTES: u32 = 8192;
/// Payload up to this size is copied behind its header; more is sent from where it is.
const COPIED_PAYLOAD_BYTES_MAX: usize = 16 << 10;
/// Slices for one vectored write.
pub const SLICES_MAX: usize = 32;
/// Sent output is dropped from the front when it is more than this.
const SENT_BYTES_MAX: usize = 256 << 10;
/// Smallest receive buffer.
const RECEIVE_BYTES_MIN: usize = 4096;
const SLOT_BITS: u32 = 10;

/// What a connection is set up with.
#[derive(Clone, Copy, Debug)]
pub struct QueueConfig {
    /// Commands in flight, 1 to [`DEPTH_MAX`].
    pub depth: u16,
    /// Ask for header digests.
    pub header_digest: bool,
    /// Ask for data digests.
    pub data_digest: bool,
    /// Data that I/O commands may carry in their capsule (from IOCCSZ); admin and fabrics commands may always carry
    /// [`ADMIN_CAPSULE_DATA_BYTES`].
    pub capsule_data_bytes: u32,
    /// Size of the receive buffer.
    pub receive_bytes: usize,
    /// True for queue 0.
    pub admin: bool,
}

/// Data of a command.
#[derive(Debug)]
pub enum Transfer {
    /// None.
    None,
    /// These bytes go to the controller.
    ToController(Vec<u8>),
    /// The controller may fill these bytes, to the vector's length.
    FromController(Vec<u8>),
}

impl Transfer {
    /// The buffer, whichever way it goes.
    pub fn into_buffer(self) -> Vec<u8> {
        match self {
            Transfer::None => Vec::new(),
            Transfer::ToController(buffer) | Transfer::FromController(buffer) => buffer,
        }
    }
}

/// The end of a command.
#[derive(Debug)]
pub struct Completed {
    /// As given to [`Queue::submit`].
    pub tag: u64,
    /// The completion. Where a data digest did not match, its status is Transient Transport Error.
    pub entry: CompletionEntry,
    /// The command's buffer.
    pub buffer: Vec<u8>,
    /// Bytes of it that came from the controller.
    pub received_bytes: u32,
}

/// Why a connection cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueueError {
    /// The controller broke the protocol; a termination request is in the output.
    #[error("protocol violated by the controller: {0}")]
    Protocol(PduError),
    /// The controller ended the connection and says why.
    #[error("connection ended by the controller: fatal error status {}, information {:x}h", .0.status, .0.information)]
    Terminated(Termination),
    /// The controller agreed to something that was not asked for.
    #[error("controller answered the initialization with {0}")]
    Initialization(&'static str),
}

/// No command slot is free; the data come back.
#[derive(Debug)]
pub struct QueueFull(pub Transfer);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlotState {
    /// No command.
    Free,
    /// Sent, or waiting to be.
    InFlight,
    /// Its completion has come, but output still refers to its buffer.
    Draining(CompletionEntry),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    None,
    ToController,
    FromController,
}

#[derive(Debug)]
struct Slot {
    state: SlotState,
    generation: u8,
    way: Way,
    digest_failed: bool,
    tag: u64,
    deadline_ms: u64,
    buffer: Vec<u8>,
    /// From the controller: bytes received. To it: bytes that it has asked for.
    moved: u32,
    /// Output segments that point into the buffer.
    references: u32,
}

#[derive(Clone, Copy, Debug)]
enum Segment {
    Bytes(usize),
    Buffer { slot: u16, start: usize, bytes: usize },
}

/// Data of a C2HData PDU that is under way.
#[derive(Clone, Copy, Debug)]
struct Receiving {
    slot: u16,
    at: usize,
    left: usize,
    digest: Option<Digest>,
    success: bool,
}

/// The queue.
#[derive(Debug)]
pub struct Queue {
    config: QueueConfig,
    decoder: Decoder,
    encoder: Encoder,
    initialized: bool,
    host_data_bytes_max: usize,
    slots: Vec<Slot>,
    free: Vec<u16>,
    output: Vec<u8>,
    sent: usize,
    segments: VecDeque<Segment>,
    input: Vec<u8>,
    input_start: usize,
    input_end: usize,
    receiving: Option<Receiving>,
    completed: VecDeque<Completed>,
}

impl Queue {
    /// A queue whose first output is the initialization request.
    pub fn new(config: QueueConfig) -> Self {
        let depth = config.depth.clamp(1, DEPTH_MAX);
        let mut output = Vec::with_capacity(4096);
        Encoder::initialize_request(
            &mut output,
            &InitializeRequest {
                header_digest: config.header_digest,
                data_digest: config.data_digest,
                ..InitializeRequest::default()
            },
        );
        let mut segments = VecDeque::with_capacity(64);
        segments.push_back(Segment::Bytes(output.len()));
        Queue {
            config: QueueConfig { depth, ..config },
            decoder: Decoder::new(Role::Host),
            encoder: Encoder::default(),
            initialized: false,
            host_data_bytes_max: pdu::MAXH2CDATA_MIN as usize,
            slots: (0..depth)
                .map(|_| Slot {
                    state: SlotState::Free,
                    generation: 0,
                    way: Way::None,
                    digest_failed: false,
                    tag: 0,
                    deadline_ms: 0,
                    buffer: Vec::new(),
                    moved: 0,
                    references: 0,
                })
                .collect(),
            free: (0..depth).rev().collect(),
            output,
            sent: 0,
            segments,
            input: vec![0; config.receive_bytes.max(RECEIVE_BYTES_MIN)],
            input_start: 0,
            input_end: 0,
            receiving: None,
            completed: VecDeque::with_capacity(usize::from(depth)),
        }
    }

    /// True when the controller has answered the initialization: commands may be submitted.
    pub fn is_initialized(&self) -> bool {
        self.initialized
    }
    /// Sets what IOCCSZ allows, once Identify has said it.
    pub fn set_capsule_data_bytes(&mut self, bytes: u32) {
        self.config.capsule_data_bytes = bytes;
    }
    /// Commands in flight.
    pub fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }
    /// Slots.
    pub fn depth(&self) -> usize {
        self.slots.len()
    }

    /// Takes a command; its CID and SGL are set here. Returns the CID. `deadline_ms` is for [`Queue::expired`].
    pub fn submit(
        &mut self,
        tag: u64,
        mut entry: SubmissionEntry,
        transfer: Transfer,
        deadline_ms: u64,
    ) -> Result<u16, QueueFull> {
        if !self.initialized {
            return Err(QueueFull(transfer));
        }
        let Some(index) = self.free.pop() else { return Err(QueueFull(transfer)) };
        let slot = &mut self.slots[usize::from(index)];
        debug_assert_eq!(slot.state, SlotState::Free);
        slot.state = SlotState::InFlight;
        // 63 generations, not 64: identifier FFFFh means no command (NVMe Base 4.1.1).
        slot.generation = (slot.generation + 1) % 63;
        slot.tag = tag;
        slot.deadline_ms = deadline_ms;
        slot.moved = 0;
        slot.references = 0;
        slot.digest_failed = false;
        let cid = u16::from(slot.generation) << SLOT_BITS | index;
        entry.set_cid(cid);
        let fabrics = entry.opcode() == opcode::FABRICS;
        let capsule_max =
            if self.config.admin || fabrics { ADMIN_CAPSULE_DATA_BYTES } else { self.config.capsule_data_bytes };
        let before = self.output.len();
        match transfer {
            Transfer::None => {
                slot.way = Way::None;
                slot.buffer = Vec::new();
                entry.set_sgl(Sgl::transport(0));
                self.encoder.command(&mut self.output, &entry, 0);
                self.pushed(before);
            }
            Transfer::FromController(buffer) => {
                slot.way = Way::FromController;
                slot.buffer = buffer;
                entry.set_sgl(Sgl::transport(slot.buffer.len() as u32));
                self.encoder.command(&mut self.output, &entry, 0);
                self.pushed(before);
            }
            Transfer::ToController(buffer) => {
                slot.way = Way::ToController;
                let bytes = buffer.len();
                slot.buffer = buffer;
                if bytes != 0 && bytes <= capsule_max as usize {
                    slot.moved = bytes as u32;
                    entry.set_sgl(Sgl::in_capsule(0, bytes as u32));
                    self.encoder.command(&mut self.output, &entry, bytes);
                    self.payload(before, index, 0, bytes);
                } else {
                    entry.set_sgl(Sgl::transport(bytes as u32));
                    self.encoder.command(&mut self.output, &entry, 0);
                    self.pushed(before);
                }
            }
        }
        Ok(cid)
    }

    /// Appends payload behind the head that starts at `before` in the output.
    fn payload(&mut self, before: usize, index: u16, start: usize, bytes: usize) {
        let slot = &mut self.slots[usize::from(index)];
        let data = &slot.buffer[start..start + bytes];
        if bytes <= COPIED_PAYLOAD_BYTES_MAX {
            self.encoder.payload(&mut self.output, data);
            self.pushed(before);
            return;
        }
        let digest = self.encoder.data_digest_of(data);
        slot.references += 1;
        self.pushed(before);
        self.segments.push_back(Segment::Buffer { slot: index, start, bytes });
        if let Some(digest) = digest {
            let before = self.output.len();
            self.output.extend_from_slice(&digest);
            self.pushed(before);
        }
    }

    fn pushed(&mut self, before: usize) {
        let bytes = self.output.len() - before;
        match self.segments.back_mut() {
            Some(Segment::Bytes(count)) => *count += bytes,
            _ => self.segments.push_back(Segment::Bytes(bytes)),
        }
    }

    /// True where there is something to send.
    pub fn has_output(&self) -> bool {
        !self.segments.is_empty()
    }

    /// What to send next, in up to [`SLICES_MAX`] slices.
    pub fn output<'a>(&'a self, slices: &mut [IoSlice<'a>; SLICES_MAX]) -> usize {
        let mut at = self.sent;
        let mut count = 0;
        for segment in self.segments.iter().take(SLICES_MAX) {
            slices[count] = IoSlice::new(match *segment {
                Segment::Bytes(bytes) => {
                    let piece = &self.output[at..at + bytes];
                    at += bytes;
                    piece
                }
                Segment::Buffer { slot, start, bytes } => &self.slots[usize::from(slot)].buffer[start..start + bytes],
            });
            count += 1;
        }
        count
    }

    /// `bytes` of the output have been sent.
    pub fn sent(&mut self, mut bytes: usize) {
        while bytes > 0 {
            match self.segments.front_mut() {
                Some(Segment::Bytes(count)) => {
                    let step = bytes.min(*count);
                    self.sent += step;
                    *count -= step;
                    bytes -= step;
                    if *count == 0 {
                        self.segments.pop_front();
                    }
                }
                Some(Segment::Buffer { slot, start, bytes: count }) => {
                    let step = bytes.min(*count);
                    *start += step;
                    *count -= step;
                    bytes -= step;
                    if *count == 0 {
                        let index = *slot;
                        self.segments.pop_front();
                        let slot = &mut self.slots[usize::from(index)];
                        slot.references -= 1;
                        if let SlotState::Draining(entry) = slot.state
                            && slot.references == 0
                        {
                            self.finish(index, entry);
                        }
                    }
                }
                None => {
                    debug_assert!(false, "more was sent than there was");
                    return;
                }
            }
        }
        if self.segments.is_empty() {
            self.output.clear();
            self.sent = 0;
        } else if self.sent > SENT_BYTES_MAX {
            self.output.drain(..self.sent);
            self.sent = 0;
        }
    }

    fn complete(&mut self, index: u16, entry: CompletionEntry) {
        let slot = &mut self.slots[usize::from(index)];
        if slot.references > 0 {
            slot.state = SlotState::Draining(entry);
        } else {
            self.finish(index, entry);
        }
    }

    fn finish(&mut self, index: u16, mut entry: CompletionEntry) {
        let slot = &mut self.slots[usize::from(index)];
        slot.state = SlotState::Free;
        if slot.digest_failed && entry.status.is_success() {
            entry.status = Status::TRANSIENT_TRANSPORT_ERROR;
        }
        let received_bytes = if slot.way == Way::FromController { slot.moved } else { 0 };
        self.completed.push_back(Completed {
            tag: slot.tag,
            entry,
            buffer: std::mem::take(&mut slot.buffer),
            received_bytes,
        });
        self.free.push(index);
    }

    /// The next command that has ended.
    #[inline]
    pub fn completed(&mut self) -> Option<Completed> {
        self.completed.pop_front()
    }

    /// (CID, tag) of commands in flight whose deadline is at or before `now_ms`; each is told once.
    pub fn expired(&mut self, now_ms: u64) -> Vec<(u16, u64)> {
        let mut expired = Vec::new();
        for (index, slot) in self.slots.iter_mut().enumerate() {
            if slot.state != SlotState::Free && slot.deadline_ms <= now_ms {
                slot.deadline_ms = u64::MAX;
                expired.push((u16::from(slot.generation) << SLOT_BITS | index as u16, slot.tag));
            }
        }
        expired
    }

    /// Gives a command in flight another deadline.
    pub fn extend(&mut self, cid: u16, deadline_ms: u64) {
        if let Some(slot) = self.slots.get_mut(usize::from(cid & ((1 << SLOT_BITS) - 1)))
            && slot.state != SlotState::Free
            && u16::from(slot.generation) == cid >> SLOT_BITS
        {
            slot.deadline_ms = deadline_ms;
        }
    }

    /// The connection is gone: all commands in flight end with Host Pathing Error, buffers come back.
    pub fn fail(&mut self) {
        self.segments.clear();
        self.output.clear();
        self.sent = 0;
        self.receiving = None;
        self.initialized = false;
        for index in 0..self.slots.len() as u16 {
            let slot = &mut self.slots[usize::from(index)];
            if slot.state != SlotState::Free {
                let cid = u16::from(slot.generation) << SLOT_BITS | index;
                self.finish(
                    index,
                    CompletionEntry { result: 0, sqhd: 0, sqid: 0, cid, status: Status::HOST_PATH_ERROR },
                );
            }
        }
    }
}
