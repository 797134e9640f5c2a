//! An endpoint over NVMe/TCP: a queue that the server's thread polls, and vendor commands of key-value namespaces (docs/key-value.md).

use super::{Completion, End, Operation, Port, PortError, SPUS_UNKNOWN};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use willow_host::hre::{ITEM_HEAD_BYTES, ItemStore, ItemTerms, KvCommand};
use willow_host::nvme_tcp::polled::{PolledController, PolledQueue};
use willow_host::nvme_tcp::{Completed, NamespaceKind, Options, Transfer, kv_entry};
use willow_wire::spec::Status;
use willow_wire::spec::kv::{ItemHead, Key};

/// Buffers that are kept for the next commands.
const SPARE_MAX: usize = 64;
/// Buffers longer than this are not kept.
const SPARE_BYTES_MAX: usize = 64 << 10;

enum Flight {
    Free,
    /// (the operation's tag, whether it reads, whether it stores)
    Way(u32, bool, bool),
    /// A value that was read, behind its head.
    Value(Vec<u8>),
}

/// The endpoint.
pub struct Network {
    queue: PolledQueue,
    // Its connection is the controller's life.
    _controller: PolledController,
    flights: Vec<Flight>,
    free: Vec<u32>,
    spare: Vec<Vec<u8>>,
    taken: Vec<Completed>,
    came: VecDeque<Completed>,
    nsid: u32,
    spus: u16,
    value_bytes_max: usize,
    failure: Option<PortError>,
}

fn broken(error: impl std::fmt::Display) -> PortError {
    PortError(error.to_string())
}

impl Network {
    /// Connects, and opens a queue for a key-value namespace (where there is only one, for that).
    pub fn open(options: &Options, nsid: Option<u32>) -> Result<Self, PortError> {
        let mut controller = PolledController::connect(options).map_err(broken)?;
        let namespaces = controller.namespaces().map_err(broken)?;
        let pairs = |kind: &NamespaceKind| matches!(kind, NamespaceKind::Kv { .. });
        let all: Vec<u32> = namespaces.iter().filter(|found| pairs(&found.kind)).map(|found| found.nsid).collect();
        let nsid = crate::choose(&all, nsid).map_err(PortError)?;
        let queue = controller.open_queue().map_err(broken)?;
        let transfer_bytes_max = controller.ready().identity.transfer_bytes_max.min(4 << 20);
        Ok(Network {
            queue,
            flights: Vec::new(),
            free: Vec::new(),
            spare: Vec::new(),
            taken: Vec::new(),
            came: VecDeque::new(),
            nsid,
            // How many there are is not told; sweeps find the end.
            spus: SPUS_UNKNOWN,
            value_bytes_max: transfer_bytes_max as usize - ITEM_HEAD_BYTES,
            failure: None,
            _controller: controller,
        })
    }

    /// The namespace.
    pub fn nsid(&self) -> u32 {
        self.nsid
    }

    fn buffer(&mut self) -> Vec<u8> {
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.clear();
        buffer
    }

    fn keep(&mut self, buffer: Vec<u8>) {
        if self.spare.len() < SPARE_MAX && (1..=SPARE_BYTES_MAX).contains(&buffer.capacity()) {
            self.spare.push(buffer);
        }
    }

    fn look(&mut self) -> Result<(), PortError> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        let looked = self.queue.poll(&mut self.taken);
        self.came.extend(self.taken.drain(..));
        looked.map(drop).map_err(|error| {
            let failure = broken(error);
            self.failure = Some(failure.clone());
            failure
        })
    }

    fn finished(&mut self, completed: Completed) -> Option<Completion> {
        let place = completed.tag as u32;
        let &Flight::Way(tag, reads, stores) = self.flights.get(place as usize)? else { return None };
        let status = completed.entry.status;
        let end = end_of(status);
        let mut done = Completion { result: completed.entry.result as u32, ..Completion::of(tag, end) };
        let mut buffer = completed.buffer;
        if stores {
            done.version = completed.entry.result;
        }
        if reads && end == End::Done {
            buffer.truncate(completed.received_bytes as usize);
            match ItemHead::decode(&buffer) {
                Some(head) => {
                    (done.version, done.expiry, done.value) = (head.version, head.expiry.into(), Some(place));
                    self.flights[place as usize] = Flight::Value(buffer);
                    return Some(done);
                }
                None => done.end = End::Failed,
            }
        }
        self.keep(buffer);
        self.flights[place as usize] = Flight::Free;
        self.free.push(place);
        Some(done)
    }
}

fn end_of(status: Status) -> End {
    if status.is_success() {
        return End::Done;
    }
    let known = [
        (Status::KV_KEY_NOT_FOUND, End::NotFound),
        (Status::KV_KEY_EXISTS, End::Exists),
        (Status::COMPARE_FAILURE, End::Changed),
        (Status::CAPACITY_EXCEEDED, End::Full),
        (Status::COMMAND_INTERRUPTED, End::Busy),
    ];
    known.iter().find(|(known, _)| status.is(*known)).map_or(End::Failed, |(_, end)| *end)
}

impl Port for Network {
    fn spus(&self) -> u16 {
        self.spus
    }

    fn groups(&self) -> u16 {
        1
    }

    fn group_of(&self, _key: &Key) -> u16 {
        0
    }

    fn value_bytes_max(&self) -> usize {
        self.value_bytes_max
    }

    fn counts(&self) -> bool {
        false
    }

    fn submit(&mut self, tag: u32, operation: &Operation, now_s: u32, value: &[&[u8]]) -> bool {
        if !self.queue.has_room() {
            return false;
        }
        let terms = |expiry| ItemTerms { expiry, now_s, durable: false };
        let mut buffer = Vec::new();
        let (command, reads, stores) = match operation {
            Operation::Get { key, room } => {
                buffer = self.buffer();
                buffer.resize(*room as usize + ITEM_HEAD_BYTES, 0);
                (KvCommand::RetrieveItem(*key, now_s), true, false)
            }
            Operation::Put { key, condition, expiry } => {
                buffer = self.buffer();
                buffer.resize(ITEM_HEAD_BYTES, 0);
                value.iter().for_each(|part| buffer.extend_from_slice(part));
                let store = ItemStore { condition: *condition, terms: terms(*expiry) };
                (KvCommand::StoreItem(*key, store), false, true)
            }
            Operation::Delete { key, version } => {
                let version = Some(*version).filter(|version| *version != 0);
                (KvCommand::DeleteItem(*key, version, terms(0)), false, false)
            }
            Operation::Touch { key, expiry } => (KvCommand::Touch(*key, terms(*expiry)), false, false),
            Operation::Flush { .. } => (KvCommand::Flush, false, false),
            Operation::Sweep { spu, from } => (KvCommand::Sweep { spu: *spu, from: *from, now_s }, false, false),
            Operation::Clear { .. } => (KvCommand::Clear, false, false),
            Operation::Count { .. } => unreachable!("it cannot count"),
        };
        let (_, entry, out) = kv_entry(self.nsid, &command, &mut buffer);
        let transfer = match out {
            _ if buffer.is_empty() => Transfer::None,
            true => Transfer::ToController(buffer),
            false => Transfer::FromController(buffer),
        };
        let flight = Flight::Way(tag, reads, stores);
        let place = match self.free.pop() {
            Some(place) => {
                self.flights[place as usize] = flight;
                place
            }
            None => {
                self.flights.push(flight);
                self.flights.len() as u32 - 1
            }
        };
        if self.queue.submit(u64::from(place), entry, transfer).is_err() {
            self.flights[place as usize] = Flight::Free;
            self.free.push(place);
            return false;
        }
        true
    }

    fn send(&mut self) {
        // What ends because the connection did is told by the next poll.
        let _ = self.look();
    }

    fn poll(&mut self, into: &mut Vec<Completion>) -> Result<(), PortError> {
        let looked = self.look();
        while let Some(completed) = self.came.pop_front() {
            match self.finished(completed) {
                Some(done) => into.push(done),
                None => return Err(broken("the device completed what was not asked for")),
            }
        }
        looked
    }

    fn value(&self, value: u32, at: usize, bytes: usize, into: &mut Vec<u8>) -> bool {
        let Some(Flight::Value(buffer)) = self.flights.get(value as usize) else { return false };
        let from = ITEM_HEAD_BYTES + at;
        match buffer.get(from..from + bytes) {
            Some(part) => {
                into.extend_from_slice(part);
                true
            }
            None => false,
        }
    }

    fn give_back(&mut self, value: u32) {
        let Some(flight) = self.flights.get_mut(value as usize) else { return };
        if let Flight::Value(buffer) = std::mem::replace(flight, Flight::Free) {
            self.free.push(value);
            self.keep(buffer);
        }
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.queue.as_fd()
    }

    fn wants_to_write(&self) -> bool {
        self.queue.has_output()
    }

    fn ask(&mut self) -> bool {
        self.look().is_err() || !self.came.is_empty()
    }

    fn woken(&mut self) -> Result<(), PortError> {
        Ok(())
    }
}
