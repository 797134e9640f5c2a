//! An endpoint that its thread polls, for reads and writes of files: no other thread between, no system call while the device
//! looks at its ring.
//!
//! What always holds:
//! - the data area is cut into slots of one size; a slot belongs to one RPC until its completion has come, so that a late reply
//!   never lands in what is somebody else's by then;
//! - a caller's memory is touched only inside of calls of this lane, and never after its operation was taken off;
//! - operations are sent in the order in which they were begun; each ends once, and all of them with an error when the device goes.

use super::agent_client::DirectError;
use super::mapped::Mapped;
use super::session::Registered;
use crate::hre::HreError;
use direct_io_host::wire::{Arguments, FLAG_DURABLE, handler};
use direct_io_host::{Piece, Pieces};
use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use willow_shm::layout::{Call, Command, Completion, Operation as Wanted, Outcome};
use willow_shm::memory::Mapping;
use willow_shm::message::Kind;
use willow_shm::ring::Endpoint;

/// Bytes of a slot: a stripe of the device, as it comes.
const SLOT_BYTES: u32 = 8192;
/// Longest wait for a completion: the agent may have to install a permission again.
const ANSWER_MAX: Duration = Duration::from_secs(60);
/// Longest sleep between two looks.
const SLEEP_MAX: Duration = Duration::from_secs(1);
/// Looks at the ring between two looks at the clock.
const LOOKS: u32 = 64;

/// What a lane is made with.
#[derive(Clone, Copy, Debug)]
pub struct LaneOptions {
    /// RPCs of at most 8192 bytes that may be under way; each has its part of the shared memory.
    pub slots: u32,
    /// How long to look for a completion before the thread sleeps.
    pub spin: Duration,
}

impl Default for LaneOptions {
    fn default() -> Self {
        LaneOptions { slots: 128, spin: Duration::from_micros(50) }
    }
}

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Read,
    Write { durable: bool },
    Sync,
}

/// The caller's memory: one range of it, several, or a buffer that was handed over.
pub(crate) enum Segments {
    One(*mut u8, usize),
    Several(Vec<(*mut u8, usize)>),
    Owned(Vec<u8>),
}

// SAFETY: the memory behind the pointers is the operation's alone until it is taken off (whoever makes one promises it), and
// whoever holds the lane is the only one that uses them.
unsafe impl Send for Segments {}

impl Segments {
    /// Bytes.
    pub fn len(&self) -> usize {
        match self {
            Segments::One(_, length) => *length,
            Segments::Several(all) => all.iter().map(|(_, length)| length).sum(),
            Segments::Owned(buffer) => buffer.len(),
        }
    }

    /// Calls `each` with the parts of a range of it: pointer, bytes before it in the range, bytes.
    #[inline]
    fn parts(&mut self, at: usize, bytes: usize, mut each: impl FnMut(*mut u8, usize, usize)) {
        debug_assert!(at + bytes <= self.len());
        match self {
            // In bounds, as asserted: callers cut their ranges by `len`.
            Segments::One(start, _) => each(start.wrapping_add(at), 0, bytes),
            Segments::Owned(buffer) => each(buffer[at..at + bytes].as_mut_ptr(), 0, bytes),
            Segments::Several(all) => {
                let (mut skip, mut done) = (at, 0);
                for (start, length) in all {
                    if skip >= *length {
                        skip -= *length;
                        continue;
                    }
                    let count = (*length - skip).min(bytes - done);
                    if count == 0 {
                        break;
                    }
                    each(start.wrapping_add(skip), done, count);
                    (skip, done) = (0, done + count);
                }
            }
        }
    }

    /// Calls `each` with all of it as slices to be read into.
    pub fn as_slices_mut<T>(&mut self, each: impl FnOnce(&mut [IoSliceMut<'_>]) -> T) -> T {
        let (bytes, mut slices) = (self.len(), Vec::with_capacity(1));
        self.parts(0, bytes, |part, _, count| {
            // SAFETY: as for `zero`; the slices are gone when this returns.
            let slice = unsafe { std::slice::from_raw_parts_mut(part, count) };
            slices.push(IoSliceMut::new(slice));
        });
        each(&mut slices)
    }

    /// The same, to be written from.
    pub fn as_slices<T>(&mut self, each: impl FnOnce(&[IoSlice<'_>]) -> T) -> T {
        let (bytes, mut slices) = (self.len(), Vec::with_capacity(1));
        self.parts(0, bytes, |part, _, count| {
            // SAFETY: as for `copy_to`; the slices are gone when this returns.
            let slice = unsafe { std::slice::from_raw_parts(part, count) };
            slices.push(IoSlice::new(slice));
        });
        each(&slices)
    }

    fn zero(&mut self, at: usize, bytes: usize) {
        // SAFETY: the parts are inside of what the caller lent for writing, see `Send`.
        self.parts(at, bytes, |part, _, count| unsafe { part.write_bytes(0, count) });
    }

    #[inline]
    fn fill_from(&mut self, at: usize, memory: &Mapping, from: usize, bytes: usize) {
        self.parts(at, bytes, |part, done, count| {
            // SAFETY: as for `zero`.
            let into = unsafe { std::slice::from_raw_parts_mut(part, count) };
            let inside = memory.read(from + done, into);
            debug_assert!(inside, "slots are inside of the data area");
        });
    }

    #[inline]
    fn copy_to(&mut self, at: usize, memory: &Mapping, to: usize, bytes: usize) {
        self.parts(at, bytes, |part, done, count| {
            // SAFETY: the parts are inside of what the caller lent.
            let from = unsafe { std::slice::from_raw_parts(part, count) };
            let inside = memory.write(to + done, from);
            debug_assert!(inside, "slots are inside of the data area");
        });
    }
}

/// One operation: its pieces go out as there is room.
pub(crate) struct Operation {
    pub file: Arc<Mapped>,
    pub action: Action,
    pub offset: u64,
    pub memory: Segments,
    /// The caller's number for it.
    pub tag: u64,
    pieces: Pieces,
    next_spu: u16,
    under_way: u32,
    is_sent: bool,
    failed: Option<DirectError>,
}

impl Operation {
    /// Of the first `bytes` bytes of `memory`, which are inside of the file (and for writing: of its extents).
    pub fn new(file: Arc<Mapped>, action: Action, offset: u64, memory: Segments, bytes: usize, tag: u64) -> Self {
        let flags = if action == (Action::Write { durable: true }) { FLAG_DURABLE } else { 0 };
        let pieces = Pieces::new(file.extents(), (offset, bytes.min(memory.len())), flags, SLOT_BYTES);
        let (next_spu, under_way, is_sent, failed) = (0, 0, false, None);
        Operation { file, action, offset, memory, tag, pieces, next_spu, under_way, is_sent, failed }
    }

    /// What came of it.
    pub fn outcome(&mut self) -> Result<(), DirectError> {
        self.failed.take().map_or(Ok(()), Err)
    }
}

#[derive(Clone, Copy)]
struct Slot {
    operation: u32,
    buffer_offset: usize,
    bytes: u32,
    call: Call,
}

/// A lane.
pub(crate) struct Lane {
    endpoint: Endpoint,
    memory: Arc<Mapping>,
    data: usize,
    slots: Vec<Slot>,
    free: Vec<u16>,
    /// Slots whose RPC the device had no room for.
    again: Vec<u16>,
    operations: Vec<Option<Operation>>,
    idle: Vec<u32>,
    /// Operations with pieces to be sent.
    sending: VecDeque<u32>,
    ended: VecDeque<u32>,
    spin: Duration,
    _registered: Registered,
}

impl Lane {
    /// Opens an endpoint of this process at a device's socket.
    pub fn open(device: &Path, options: LaneOptions) -> Result<Lane, DirectError> {
        let slots = options.slots.clamp(1, 4096);
        let entries = (slots * 2).next_power_of_two().clamp(64, 8192);
        let data_bytes = u64::from(slots) * u64::from(SLOT_BYTES);
        let opened = Endpoint::open(device, Kind::User, entries, data_bytes);
        let endpoint = opened.map_err(|error| DirectError::Hre(HreError::Argument(error.to_string())))?;
        let slots = slots.min(endpoint.opened.depth).min((endpoint.opened.data_bytes / u64::from(SLOT_BYTES)) as u32);
        let Some(call) = Call::new(0, 0, 0, &[]).filter(|_| slots > 0) else {
            return Err(DirectError::Hre(HreError::Argument("the device gives no shared memory".to_owned())));
        };
        Ok(Lane {
            memory: endpoint.memory().clone(),
            data: endpoint.layout().data(),
            slots: vec![Slot { operation: 0, buffer_offset: 0, bytes: 0, call }; slots as usize],
            free: (0..slots as u16).rev().collect(),
            again: Vec::new(),
            operations: Vec::new(),
            idle: Vec::new(),
            sending: VecDeque::new(),
            ended: VecDeque::new(),
            spin: options.spin,
            _registered: Registered::new(endpoint.channel().as_fd().as_raw_fd()),
            endpoint,
        })
    }

    /// True where an operation of this grant is under way.
    pub fn uses(&self, file: &Arc<Mapped>) -> bool {
        let mut all = self.operations.iter().flatten();
        all.any(|operation| operation.under_way > 0 && Arc::ptr_eq(&operation.file, file))
    }

    /// Begins an operation; [`Lane::send`] sends it.
    pub fn begin(&mut self, operation: Operation) -> u32 {
        let number = match self.idle.pop() {
            Some(number) => {
                self.operations[number as usize] = Some(operation);
                number
            }
            None => {
                self.operations.push(Some(operation));
                (self.operations.len() - 1) as u32
            }
        };
        self.sending.push_back(number);
        number
    }

    /// Sends what there is room for.
    pub fn send(&mut self) {
        let mut sent = false;
        while let Some(slot) = self.again.pop() {
            if !self.submit(slot) {
                self.again.push(slot);
                break;
            }
            sent = true;
        }
        while let Some(number) = self.sending.front().copied() {
            let (did, whole) = self.send_of(number);
            sent |= did;
            if !whole {
                break;
            }
            self.sending.pop_front();
        }
        if sent {
            self.endpoint.ring();
        }
    }

    /// Sends pieces of an operation: whether any went, and whether that was all of them.
    fn send_of(&mut self, number: u32) -> (bool, bool) {
        let mut sent = false;
        loop {
            let Some(operation) = &mut self.operations[number as usize] else { return (sent, true) };
            if operation.failed.is_none() && operation.file.has_ended() {
                operation.failed = Some(DirectError::Permission);
            }
            if operation.failed.is_some() {
                break;
            }
            if self.free.is_empty() || !self.endpoint.has_room(1) {
                return (sent, false);
            }
            let geometry = operation.file.geometry();
            let (spu, arguments, buffer_offset) = if operation.action == Action::Sync {
                if operation.next_spu >= geometry.spus {
                    break;
                }
                operation.next_spu += 1;
                (operation.next_spu - 1, Arguments { nv_address: 0, bytes: 0, flags: 0 }, 0)
            } else {
                match operation.pieces.next(&geometry, operation.file.extents()) {
                    Some(Piece::Rpc { spu, arguments, buffer_offset }) => (spu, arguments, buffer_offset),
                    Some(Piece::Hole { buffer_offset, bytes }) => {
                        match operation.action {
                            Action::Read => operation.memory.zero(buffer_offset, bytes),
                            _ => operation.failed = Some(no_blocks(operation.offset, buffer_offset, bytes)),
                        }
                        continue;
                    }
                    None => break,
                }
            };
            // Seen above.
            let Some(slot) = self.free.pop() else { return (sent, false) };
            let handler = match operation.action {
                Action::Read => handler::READ,
                Action::Write { .. } => handler::WRITE,
                Action::Sync => handler::FLUSH,
            };
            if handler == handler::WRITE {
                let place = self.data + usize::from(slot) * SLOT_BYTES as usize;
                operation.memory.copy_to(buffer_offset, &self.memory, place, arguments.bytes as usize);
            }
            let call = Call::new(operation.file.app(), handler, spu, &arguments.encode());
            let Some(call) = call else { unreachable!("16 bytes of arguments") };
            operation.under_way += 1;
            self.slots[usize::from(slot)] = Slot { operation: number, buffer_offset, bytes: arguments.bytes, call };
            let submitted = self.submit(slot);
            debug_assert!(submitted, "room was seen");
            sent = true;
        }
        if let Some(operation) = &mut self.operations[number as usize] {
            operation.is_sent = true;
            if operation.under_way == 0 {
                self.ended.push_back(number);
            }
        }
        (sent, true)
    }

    fn submit(&mut self, slot: u16) -> bool {
        let Slot { bytes, call, .. } = self.slots[usize::from(slot)];
        let offset = u32::from(slot) * SLOT_BYTES;
        let (payload_bytes, reply_bytes) = match call.handler {
            handler::WRITE => (bytes, 0),
            handler::READ => (0, bytes),
            _ => (0, 0),
        };
        let command = Command {
            tag: u32::from(slot),
            operation: Wanted::Rpc,
            more: 0,
            payload_offset: offset,
            payload_bytes,
            reply_offset: offset,
            reply_bytes,
            call,
        };
        self.endpoint.submit(&command, &[])
    }

    /// Takes the completions that are there, and sends what has room by them. An error ends the lane: drop it.
    pub fn poll(&mut self) -> Result<(), DirectError> {
        while let Some(completion) = self.endpoint.completion().map_err(broken)? {
            self.completed(&completion)?;
        }
        if !self.sending.is_empty() || !self.again.is_empty() {
            self.send();
        }
        Ok(())
    }

    fn completed(&mut self, completion: &Completion) -> Result<(), DirectError> {
        let slot = completion.tag as usize;
        let of_slot = self.slots.get(slot).copied();
        let operation = of_slot.and_then(|it| Some((it, self.operations.get_mut(it.operation as usize)?.as_mut()?)));
        let Some((Slot { operation: number, buffer_offset, bytes, call }, operation)) = operation else {
            return Err(DirectError::Hre(HreError::Answer("a completion of what was not sent".to_owned())));
        };
        let failure = match completion.outcome {
            Outcome::Answered => DirectError::of_status(completion.status).err(),
            Outcome::Refused => {
                self.again.push(slot as u16);
                return Ok(());
            }
            Outcome::NoApp => Some(HreError::NoApp(call.app).into()),
            Outcome::NoHandler => Some(HreError::NoHandler { app: call.app, handler: call.handler }.into()),
            Outcome::NoSpu => Some(HreError::NoSpu(Some(call.spu)).into()),
            Outcome::AppEnded => Some(HreError::AppEnded.into()),
            Outcome::NotPermitted => Some(HreError::NotPermitted.into()),
            Outcome::Aborted => Some(HreError::Aborted.into()),
            Outcome::Invalid | Outcome::Nothing => {
                Some(HreError::Answer("the device finds the command senseless".to_owned()).into())
            }
        };
        if failure.is_none() && call.handler == handler::READ {
            if completion.reply_bytes == bytes {
                let place = self.data + slot * SLOT_BYTES as usize;
                operation.memory.fill_from(buffer_offset, &self.memory, place, bytes as usize);
            } else {
                let short = format!("{} bytes of {bytes}", completion.reply_bytes);
                operation.failed = Some(HreError::Answer(short).into());
            }
        }
        if operation.failed.is_none() {
            operation.failed = failure;
        }
        operation.under_way -= 1;
        self.free.push(slot as u16);
        if operation.is_sent && operation.under_way == 0 {
            self.ended.push_back(number);
        }
        Ok(())
    }

    /// Takes an operation that has ended off the lane.
    pub fn take_ended(&mut self) -> Option<Operation> {
        let number = self.ended.pop_front()?;
        self.idle.push(number);
        self.operations[number as usize].take()
    }

    /// True where a look at the ring would bring something.
    pub fn is_ready(&self) -> bool {
        self.endpoint.is_ready() || !self.ended.is_empty() || !self.again.is_empty()
    }

    /// Waits until a look would bring something, for at most this long: looks for a time, then sleeps.
    pub fn wait(&mut self, most: Duration) -> Result<(), DirectError> {
        let mut begun = None;
        let mut looks = 0u32;
        while !self.is_ready() {
            std::hint::spin_loop();
            looks += 1;
            if !looks.is_multiple_of(LOOKS) {
                continue;
            }
            let waited = begun.get_or_insert_with(Instant::now).elapsed();
            if waited >= most {
                return Ok(());
            }
            if waited >= self.spin {
                self.endpoint.sleep(SLEEP_MAX.min(most - waited)).map_err(broken)?;
            }
        }
        Ok(())
    }

    /// Does one operation to its end. Nothing else is under way. An error of the outer kind ends the lane.
    pub fn run(&mut self, operation: Operation) -> Result<Operation, DirectError> {
        self.begin(operation);
        self.send();
        let mut since = None;
        loop {
            self.poll()?;
            if let Some(ended) = self.take_ended() {
                return Ok(ended);
            }
            self.wait(SLEEP_MAX)?;
            if !self.is_ready() && since.get_or_insert_with(Instant::now).elapsed() > ANSWER_MAX {
                return Err(broken("the device does not answer"));
            }
        }
    }
}

fn no_blocks(offset: u64, at: usize, bytes: usize) -> DirectError {
    let offset = offset + at as u64;
    DirectError::NoBlocks { offset, end: offset + bytes as u64 }
}

fn broken(why: impl std::fmt::Display) -> DirectError {
    DirectError::Hre(HreError::Gone(why.to_string()))
}
