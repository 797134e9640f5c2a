//! An endpoint in memory shared with a device of this machine (docs/shared-memory.md).
//!
//! What always holds: a command's part of the data area is its own until its completion has come, and a value's until it was given
//! back.

use super::{Completion, End, Operation, Port, PortError};
use key_value_host::wire::{ItemHead, Statistics};
use key_value_host::{Call as PairCall, ItemCall, ItemCondition, ItemPut, Key as PairKey, KeyValueError, Placement};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use willow_host::shm::extents::{Extent, Extents};
use willow_shm::layout::{self, Call, Command, Outcome};
use willow_shm::memory::Mapping;
use willow_shm::message::{Kind, View, decode};
use willow_shm::ring::Endpoint;
use willow_wire::spec::kv::Key;

/// Entries of the rings.
const ENTRIES: u32 = 2048;
/// Bytes of the data area.
const DATA_BYTES: u64 = 64 << 20;
/// Room for the device's view.
const VIEW_BYTES: u32 = 64 << 10;
/// Longest wait for it.
const VIEW_WAIT_MAX: Duration = Duration::from_secs(10);
/// Slots of the longest command.
const SLOTS_MAX: u32 = 2;
/// In front of a value.
const HEAD_BYTES: u32 = ItemHead::BYTES as u32;
/// A version in a reply.
const VERSION_BYTES: u32 = 8;

#[derive(Clone, Copy)]
enum Flight {
    Free,
    /// (the operation's tag, what its reply is, its part of the data area)
    Way(u32, Reply, Extent),
    /// A value that was read: (its part, bytes of it that came).
    Value(Extent, u32),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Reply {
    None,
    Value,
    Version,
    Counts,
}

/// The endpoint.
pub struct Memory {
    endpoint: Endpoint,
    memory: Arc<Mapping>,
    data: usize,
    extents: Extents,
    flights: Vec<Flight>,
    free: Vec<u32>,
    app: u16,
    nsid: u32,
    spus: u16,
    placement: Placement,
    value_bytes_max: usize,
}

fn broken(error: impl std::fmt::Display) -> PortError {
    PortError(error.to_string())
}

impl Memory {
    /// Opens an endpoint at a device's socket, for a key-value namespace (where there is only one, for that).
    pub fn open(path: &Path, nsid: Option<u32>) -> Result<Self, PortError> {
        let mut endpoint = Endpoint::open(path, Kind::Any, ENTRIES, DATA_BYTES).map_err(broken)?;
        let view = view_of(&mut endpoint)?;
        let pairs = |namespace: &&willow_shm::message::NamespaceView| namespace.key_value;
        let all: Vec<u32> = view.namespaces.iter().filter(pairs).map(|namespace| namespace.nsid).collect();
        let nsid = crate::choose(&all, nsid).map_err(PortError)?;
        let namespace = view.namespaces.iter().find(|namespace| namespace.nsid == nsid);
        let namespace = namespace.ok_or_else(|| broken("the namespace is gone"))?;
        let spus = view.spus.max(1);
        let transfer_bytes_max = endpoint.opened.transfer_bytes_max.min(endpoint.opened.data_bytes as u32 / 4);
        Ok(Memory {
            memory: endpoint.memory().clone(),
            data: endpoint.layout().data(),
            extents: Extents::new(endpoint.opened.data_bytes),
            flights: Vec::new(),
            free: Vec::new(),
            app: namespace.app_number.ok_or_else(|| broken(format!("app {} is not installed", namespace.app)))?,
            nsid,
            spus,
            placement: Placement::new(namespace.nguid, spus),
            value_bytes_max: (transfer_bytes_max - HEAD_BYTES) as usize,
            endpoint,
        })
    }

    /// The namespace.
    pub fn nsid(&self) -> u32 {
        self.nsid
    }

    fn flight(&mut self, flight: Flight) -> u32 {
        match self.free.pop() {
            Some(place) => {
                self.flights[place as usize] = flight;
                place
            }
            None => {
                self.flights.push(flight);
                self.flights.len() as u32 - 1
            }
        }
    }

    fn read<const BYTES: usize>(&self, extent: Extent) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        let inside = self.memory.read(self.data + extent.offset as usize, &mut bytes);
        debug_assert!(inside, "extents are inside of the data area");
        bytes
    }

    fn call<const BYTES: usize>(&self, call: &PairCall<BYTES>) -> Option<Call> {
        Call::new(self.app, call.handler, call.spu, &call.arguments)
    }

    fn finished(&mut self, completion: &layout::Completion) -> Option<Completion> {
        let place = completion.tag;
        let &Flight::Way(tag, reply, extent) = self.flights.get(place as usize)? else { return None };
        let end = match completion.outcome {
            Outcome::Answered => end_of(completion.status),
            Outcome::Refused => End::Busy,
            _ => End::Failed,
        };
        let mut done = Completion { result: completion.result, ..Completion::of(tag, end) };
        let written = completion.reply_bytes.min(extent.bytes);
        let mut held = false;
        match reply {
            Reply::Value if end == End::Done && written >= HEAD_BYTES => {
                let head = ItemHead::decode(&self.read(extent));
                (done.version, done.expiry) = (head.version, head.expiry.into());
                done.value = Some(place);
                self.flights[place as usize] = Flight::Value(extent, written - HEAD_BYTES);
                held = true;
            }
            Reply::Value if end == End::Done => done.end = End::Failed,
            Reply::Version if end == End::Done && written >= VERSION_BYTES => {
                done.version = u64::from_le_bytes(self.read(extent));
            }
            Reply::Counts if end == End::Done && written as usize >= Statistics::BYTES => {
                let counts = Statistics::decode(&self.read(extent));
                (done.version, done.expiry) = (counts.pairs, counts.value_bytes);
            }
            _ => {}
        }
        if !held {
            self.extents.give(extent);
            self.flights[place as usize] = Flight::Free;
            self.free.push(place);
        }
        Some(done)
    }
}

fn end_of(status: u32) -> End {
    match KeyValueError::from_status(status) {
        Ok(()) => End::Done,
        Err(KeyValueError::NotFound) => End::NotFound,
        Err(KeyValueError::Exists) => End::Exists,
        Err(KeyValueError::Changed) => End::Changed,
        Err(KeyValueError::Capacity) => End::Full,
        Err(_) => End::Failed,
    }
}

/// The device as it tells itself to hosts.
fn view_of(endpoint: &mut Endpoint) -> Result<View, PortError> {
    let until = Instant::now() + VIEW_WAIT_MAX;
    let mut bytes = VIEW_BYTES;
    loop {
        let command = Command {
            tag: 0,
            operation: layout::Operation::View,
            more: 0,
            payload_offset: 0,
            payload_bytes: 0,
            reply_offset: 0,
            reply_bytes: bytes,
            call: Call::new(0, 0, 0, &[]).ok_or_else(|| broken("no call"))?,
        };
        if !endpoint.submit(&command, &[]) {
            return Err(broken("the device takes no command"));
        }
        endpoint.ring();
        let completion = loop {
            if let Some(completion) = endpoint.completion().map_err(broken)? {
                break completion;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(broken("the device does not answer"));
            }
            endpoint.sleep(left).map_err(broken)?;
        };
        if completion.result > bytes && completion.result <= endpoint.opened.transfer_bytes_max {
            bytes = completion.result;
            continue;
        }
        let mut document = vec![0; completion.reply_bytes.min(bytes) as usize];
        endpoint.memory().read(endpoint.layout().data(), &mut document);
        return decode(&document).map_err(broken);
    }
}

impl Port for Memory {
    fn spus(&self) -> u16 {
        self.spus
    }

    fn groups(&self) -> u16 {
        self.spus
    }

    fn group_of(&self, key: &Key) -> u16 {
        PairKey::new(key.as_slice()).map_or(0, |key| self.placement.spu(self.placement.hash(&key)))
    }

    fn value_bytes_max(&self) -> usize {
        self.value_bytes_max
    }

    #[inline]
    fn submit(&mut self, tag: u32, operation: &Operation, now_s: u32, value: &[&[u8]]) -> bool {
        if !self.endpoint.has_room(SLOTS_MAX) {
            return false;
        }
        let pair = |key: &Key| PairKey::new(key.as_slice()).ok();
        let (placement, nsid) = (&self.placement, self.nsid);
        let (mut payload_bytes, mut reply_bytes, mut reply) = (0, 0, Reply::None);
        let call = match operation {
            Operation::Get { key, room } => {
                (reply_bytes, reply) = (room + HEAD_BYTES, Reply::Value);
                pair(key).and_then(|key| self.call(&ItemCall::get_item(placement, nsid, &key, now_s, 0, HEAD_BYTES)))
            }
            Operation::Put { key, condition, expiry } => {
                payload_bytes = value.iter().map(|part| part.len()).sum::<usize>() as u32;
                (reply_bytes, reply) = (VERSION_BYTES, Reply::Version);
                let (value_bytes, condition, expiry): (_, ItemCondition, _) = (payload_bytes, *condition, *expiry);
                let put = ItemPut { value_bytes, offset: 0, condition, expiry, now_s, durable: false };
                pair(key).and_then(|key| self.call(&ItemCall::put_item(placement, nsid, &key, &put).ok()?))
            }
            Operation::Delete { key, version } => {
                let version = Some(*version).filter(|version| *version != 0);
                pair(key)
                    .and_then(|key| self.call(&ItemCall::delete_item(placement, nsid, &key, version, now_s, false)))
            }
            Operation::Touch { key, expiry } => {
                pair(key).and_then(|key| self.call(&ItemCall::touch(placement, nsid, &key, *expiry, now_s, false)))
            }
            Operation::Flush { group } => self.call(&PairCall::flush(nsid, *group)),
            Operation::Sweep { spu, from } => self.call(&ItemCall::sweep(nsid, *spu, *from, now_s)),
            Operation::Clear { group } => self.call(&ItemCall::clear(nsid, *group)),
            Operation::Count { spu } => {
                (reply_bytes, reply) = (Statistics::BYTES as u32, Reply::Counts);
                self.call(&PairCall::statistics(nsid, *spu))
            }
        };
        // Keys and values of these lengths were checked where they came in.
        let Some(call) = call else { unreachable!("an operation that cannot be: {operation:?}") };
        let Some(extent) = self.extents.take(payload_bytes.max(reply_bytes)) else { return false };
        let mut at = self.data + extent.offset as usize;
        for part in value {
            let inside = self.memory.write(at, part);
            debug_assert!(inside, "extents are inside of the data area");
            at += part.len();
        }
        let place = self.flight(Flight::Way(tag, reply, extent));
        let command = Command {
            tag: place,
            operation: layout::Operation::Rpc,
            more: 0,
            payload_offset: extent.offset,
            payload_bytes,
            reply_offset: extent.offset,
            reply_bytes,
            call,
        };
        let submitted = self.endpoint.submit(&command, &[]);
        debug_assert!(submitted, "room was seen");
        true
    }

    fn send(&mut self) {
        self.endpoint.ring();
    }

    #[inline]
    fn poll(&mut self, into: &mut Vec<Completion>) -> Result<(), PortError> {
        while let Some(completion) = self.endpoint.completion().map_err(broken)? {
            match self.finished(&completion) {
                Some(done) => into.push(done),
                None => return Err(broken("the device completed what was not asked for")),
            }
        }
        Ok(())
    }

    #[inline]
    fn value(&self, value: u32, at: usize, bytes: usize, into: &mut Vec<u8>) -> bool {
        match self.flights.get(value as usize) {
            Some(Flight::Value(extent, came)) if at + bytes <= *came as usize => {
                self.memory.append_to(self.data + extent.offset as usize + HEAD_BYTES as usize + at, bytes, into)
            }
            _ => false,
        }
    }

    fn give_back(&mut self, value: u32) {
        let Some(&Flight::Value(extent, _)) = self.flights.get(value as usize) else {
            debug_assert!(false, "a value that is not there is given back");
            return;
        };
        self.extents.give(extent);
        self.flights[value as usize] = Flight::Free;
        self.free.push(value);
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.endpoint.channel().as_fd()
    }

    fn ask(&mut self) -> bool {
        self.endpoint.show_head();
        self.endpoint.ask_for_doorbell();
        self.endpoint.is_ready()
    }

    fn woken(&mut self) -> Result<(), PortError> {
        self.endpoint.drain().map_err(broken)
    }
}
