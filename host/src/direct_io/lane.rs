//! An endpoint that its thread polls, for reads and writes of files: no other thread between. What it is made of is its port: shared
//! memory ([`memory`]), where nothing is a system call while the device looks at its ring, or a queue over NVMe/TCP ([`network`]).
//!
//! What always holds:
//! - a slot, with its part of the port's memory, belongs to one RPC until its completion has come, so that a late reply never lands in what
//!   is somebody else's by then;
//! - a caller's memory is touched only inside of calls of this lane, and never after its operation was taken off;
//! - operations are sent in the order in which they were begun; each ends once, and all of them with an error when the device goes.

mod memory;
mod network;

use super::agent_client::DirectError;
use super::mapped::Mapped;
use crate::hre::HreError;
use crate::nvme_tcp::polled::PolledQueue;
use direct_io_host::wire::{Arguments, FLAG_DURABLE, STATUS_BUSY, handler};
use direct_io_host::{Piece, Pieces};
use memory::Memory;
use network::Network;
use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use willow_shm::layout::Call;

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
    /// RPCs of at most 8192 bytes that may be under way; each has its part of the endpoint's memory.
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
            // SAFETY: as for `copy`; the slices are gone when this returns.
            let slice = unsafe { std::slice::from_raw_parts(part, count) };
            slices.push(IoSlice::new(slice));
        });
        each(&slices)
    }

    fn zero(&mut self, at: usize, bytes: usize) {
        // SAFETY: the parts are inside of what the caller lent for writing, see `Send`.
        self.parts(at, bytes, |part, _, count| unsafe { part.write_bytes(0, count) });
    }

    /// Calls `each` with slices to be read into, and how many bytes of the range are before each.
    #[inline]
    fn fill(&mut self, at: usize, bytes: usize, mut each: impl FnMut(usize, &mut [u8])) {
        self.parts(at, bytes, |part, done, count| {
            // SAFETY: as for `zero`.
            each(done, unsafe { std::slice::from_raw_parts_mut(part, count) });
        });
    }

    /// The same, to be written from.
    #[inline]
    fn copy(&mut self, at: usize, bytes: usize, mut each: impl FnMut(usize, &[u8])) {
        self.parts(at, bytes, |part, done, count| {
            // SAFETY: the parts are inside of what the caller lent.
            each(done, unsafe { std::slice::from_raw_parts(part, count) });
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
    /// Which start of the device carries it out, once a lane has begun it ([`super::unsynced`]).
    pub start: u64,
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
        Operation { file, action, offset, memory, tag, start: 0, pieces, next_spu, under_way, is_sent, failed }
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

/// What an RPC came to.
enum Came {
    /// The handler's status, and bytes of reply.
    Answered { status: u32, reply_bytes: u32 },
    /// The device had no room: it is to be sent again, as it is.
    Refused,
    /// No handler answered.
    Failed(HreError),
}

/// What carries a lane's RPCs.
// One a lane, and looked at for every RPC: not to be boxed for what one of them is larger.
#[allow(clippy::large_enum_variant)]
enum Port {
    Memory(Memory),
    Network(Network),
}

impl Port {
    /// Room for one more RPC, a free slot apart.
    #[inline]
    fn has_room(&mut self) -> bool {
        match self {
            Port::Memory(port) => port.has_room(),
            Port::Network(port) => port.has_room(),
        }
    }

    /// Puts what a slot's RPC writes into the slot's memory.
    #[inline]
    fn put(&mut self, slot: u16, from: &mut Segments, at: usize, bytes: usize) {
        match self {
            Port::Memory(port) => port.put(slot, from, at, bytes),
            Port::Network(port) => port.put(slot, from, at, bytes),
        }
    }

    /// Takes a slot's RPC; false where there is no room. It may go out only with [`Port::send`].
    #[inline]
    fn submit(&mut self, slot: u16, call: &Call, bytes: u32) -> bool {
        match self {
            Port::Memory(port) => port.submit(slot, call, bytes),
            Port::Network(port) => port.submit(slot, call, bytes),
        }
    }

    #[inline]
    fn send(&mut self) {
        match self {
            Port::Memory(port) => port.send(),
            Port::Network(port) => port.send(),
        }
    }

    /// The next RPC that has ended: its slot, and what it came to. An error ends the lane.
    #[inline]
    fn completion(&mut self, slots: &[Slot]) -> Result<Option<(usize, Came)>, DirectError> {
        let call = |slot: usize| slots.get(slot).map(|slot| slot.call);
        match self {
            Port::Memory(port) => port.completion(call),
            Port::Network(port) => port.completion(call),
        }
    }

    /// Takes what a slot's RPC has read.
    #[inline]
    fn take(&mut self, slot: u16, into: &mut Segments, at: usize, bytes: usize) {
        match self {
            Port::Memory(port) => port.take(slot, into, at, bytes),
            Port::Network(port) => port.take(slot, into, at, bytes),
        }
    }

    /// True where there is a completion to be taken, as far as is known without a system call.
    #[inline]
    fn is_ready(&self) -> bool {
        match self {
            Port::Memory(port) => port.is_ready(),
            Port::Network(port) => port.is_ready(),
        }
    }

    /// Looks whether something has come.
    #[inline]
    fn look(&mut self) -> Result<(), DirectError> {
        match self {
            Port::Memory(_) => Ok(()),
            Port::Network(port) => port.look(),
        }
    }

    /// Sleeps until something has come, for at most this long.
    fn sleep(&mut self, most: Duration) -> Result<(), DirectError> {
        match self {
            Port::Memory(port) => port.sleep(most),
            Port::Network(port) => port.sleep(most),
        }
    }
}

/// A lane.
pub(crate) struct Lane {
    port: Port,
    /// Which of the session's ways to the device it is of.
    way: u64,
    /// Which start of a device that loses with its process what it answered; 0: it loses nothing by that.
    start: u64,
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
}

impl Lane {
    /// Opens an endpoint of this process at a device's socket.
    pub fn open(device: &Path, options: LaneOptions, way: u64) -> Result<Lane, DirectError> {
        let (port, slots) = Memory::open(device, options.slots.clamp(1, 4096))?;
        let start = port.start();
        Lane::over(Port::Memory(port), slots, options.spin, (way, start))
    }

    /// Over a queue of NVMe/TCP, which is an endpoint of this process.
    pub fn over_queue((queue, start): (PolledQueue, u64), options: LaneOptions, way: u64) -> Result<Lane, DirectError> {
        let slots = (queue.depth() as u32).min(options.slots.max(1));
        Lane::over(Port::Network(Network::new(queue, slots)), slots, options.spin, (way, start))
    }

    fn over(port: Port, slots: u32, spin: Duration, (way, start): (u64, u64)) -> Result<Lane, DirectError> {
        let Some(call) = Call::new(0, 0, 0, &[]).filter(|_| slots > 0) else {
            return Err(DirectError::Hre(HreError::Argument("the device gives no shared memory".to_owned())));
        };
        Ok(Lane {
            port,
            way,
            start,
            slots: vec![Slot { operation: 0, buffer_offset: 0, bytes: 0, call }; slots as usize],
            free: (0..slots as u16).rev().collect(),
            again: Vec::new(),
            operations: Vec::new(),
            idle: Vec::new(),
            sending: VecDeque::new(),
            ended: VecDeque::new(),
            spin,
        })
    }

    /// Which of the session's ways to the device it is of.
    pub fn way(&self) -> u64 {
        self.way
    }

    /// Which start of a device it reaches that loses with its process what it answered; 0: it loses nothing by that.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Takes off what has not ended, of a lane that will be dropped: nothing of it is touched any more.
    pub fn abandon(&mut self) -> impl Iterator<Item = Operation> + use<> {
        (self.idle, self.again) = (Vec::new(), Vec::new());
        self.sending.clear();
        self.ended.clear();
        std::mem::take(&mut self.operations).into_iter().flatten()
    }

    /// True where an operation of this grant is under way.
    pub fn uses(&self, file: &Arc<Mapped>) -> bool {
        let mut all = self.operations.iter().flatten();
        all.any(|operation| operation.under_way > 0 && Arc::ptr_eq(&operation.file, file))
    }

    /// Begins an operation; [`Lane::send`] sends it.
    pub fn begin(&mut self, mut operation: Operation) -> u32 {
        operation.start = self.start;
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
            self.port.send();
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
            if self.free.is_empty() || !self.port.has_room() {
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
                self.port.put(slot, &mut operation.memory, buffer_offset, arguments.bytes as usize);
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
        self.port.submit(slot, &call, bytes)
    }

    /// Takes the completions that are there, and sends what has room by them. An error ends the lane: drop it.
    pub fn poll(&mut self) -> Result<(), DirectError> {
        self.port.look()?;
        while let Some((slot, came)) = self.port.completion(&self.slots)? {
            self.completed(slot, came)?;
        }
        if !self.sending.is_empty() || !self.again.is_empty() {
            self.send();
        }
        Ok(())
    }

    fn completed(&mut self, slot: usize, came: Came) -> Result<(), DirectError> {
        let of_slot = self.slots.get(slot).copied();
        let operation = of_slot.and_then(|it| Some((it, self.operations.get_mut(it.operation as usize)?.as_mut()?)));
        let Some((Slot { operation: number, buffer_offset, bytes, call }, operation)) = operation else {
            return Err(DirectError::Hre(HreError::Answer("a completion of what was not sent".to_owned())));
        };
        let (failure, reply_bytes) = match came {
            // What has no place in the device is sent again, whoever says so.
            Came::Refused | Came::Answered { status: STATUS_BUSY, .. } => {
                self.again.push(slot as u16);
                return Ok(());
            }
            Came::Answered { status, reply_bytes } => (DirectError::of_status(status).err(), reply_bytes),
            Came::Failed(error) => (Some(error.into()), 0),
        };
        if failure.is_none() && call.handler == handler::READ {
            if reply_bytes == bytes {
                self.port.take(slot as u16, &mut operation.memory, buffer_offset, bytes as usize);
            } else {
                operation.failed = Some(HreError::Answer(format!("{reply_bytes} bytes of {bytes}")).into());
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
        self.port.is_ready() || !self.ended.is_empty() || !self.again.is_empty()
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
            self.port.look()?;
            if self.is_ready() {
                break;
            }
            let waited = begun.get_or_insert_with(Instant::now).elapsed();
            if waited >= most {
                return Ok(());
            }
            if waited >= self.spin {
                self.port.sleep(SLEEP_MAX.min(most - waited))?;
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
