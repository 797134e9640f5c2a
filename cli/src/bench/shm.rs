//! A device over shared memory, driven by an endpoint that this thread polls: no system call on the data path while both
//! sides are busy. Data stay in the shared area: what a program that works on them in place has.
//!
//! Invariants: each slot has a part of the data area of its own; an operation that does not end well ends the benchmark.

use super::CommonOptions;
use super::engine::{Driver, Ended, Operation};
use super::in_process::fill;
use crate::client::Client;
use crate::failure::{Context, Failure, Outcome, fail};
use base_io_host::Geometry;
use base_io_host::wire::handler;
use key_value_host::wire::STATUS_NOT_FOUND;
use key_value_host::{Call as PairCall, Placement, PutCondition};
use std::path::Path;
use std::time::{Duration, Instant};
use willow_host::control::CommandSet;
use willow_shm::layout::{Call, Command, Completion, Operation as Wanted, Outcome as End};
use willow_shm::message::{Kind, View, decode};
use willow_shm::ring::Endpoint;
use willow_sim::operation::key_of;

/// Longest wait for a completion.
const WAIT_MAX: Duration = Duration::from_secs(30);
/// How long to poll before sleeping: longer than the device's loop polls.
const SPIN: Duration = Duration::from_millis(2);
/// Room for the view of the device.
const VIEW_BYTES: u32 = 64 << 10;

/// One polled endpoint, on one namespace.
pub struct Shm {
    endpoint: Endpoint,
    nsid: u32,
    block_bytes: u32,
    geometry: Geometry,
    placement: Placement,
    /// The app that serves the namespace.
    app: u16,
    /// Bytes between two slots' data.
    stride: usize,
    private: Vec<Vec<u8>>,
    /// The caller may have changed the slot's private copy.
    is_changed: Vec<bool>,
    operations: Vec<Operation>,
    calls: Vec<Call>,
    target_pid: Option<u32>,
    /// To delete the namespace that was made for this.
    scratch: Option<Client>,
}

impl Shm {
    /// On block namespace `nsid`, or on one of `bytes` bytes made for this. Lengths are those of an operation and of the buffers.
    pub fn block(
        options: &CommonOptions,
        path: &Path,
        nsid: Option<u32>,
        bytes: u64,
        slots: usize,
        (operation_bytes, buffer_bytes): (u64, usize),
    ) -> Outcome<Self> {
        let block_bytes = if operation_bytes.is_multiple_of(4096) { 4096 } else { 512 };
        let shape = (CommandSet::Nvm, bytes, Some(block_bytes));
        Self::with(options, path, nsid, shape, slots, buffer_bytes)
    }

    /// On key-value namespace `nsid`, or on one of `bytes` bytes made for this.
    pub fn key_value(
        options: &CommonOptions,
        path: &Path,
        nsid: Option<u32>,
        bytes: u64,
        slots: usize,
        buffer_bytes: usize,
    ) -> Outcome<Self> {
        Self::with(options, path, nsid, (CommandSet::Kv, bytes, None), slots, buffer_bytes)
    }

    fn with(
        options: &CommonOptions,
        path: &Path,
        nsid: Option<u32>,
        (set, bytes, block_bytes): (CommandSet, u64, Option<u32>),
        slots: usize,
        buffer_bytes: usize,
    ) -> Outcome<Self> {
        let mut client = Client::connect(&options.target)?;
        let pid = client.statistics()?.transport.pid;
        let (nsid, scratch) = match nsid {
            Some(nsid) => (nsid, None),
            None => (client.create_namespace(set, bytes, block_bytes)?, Some(client)),
        };
        let made = Self::open(path, nsid, slots, buffer_bytes).and_then(|shm| match (shm.block_bytes == 1, set) {
            (true, CommandSet::Kv) | (false, CommandSet::Nvm) => Ok(shm),
            (true, _) => fail!("namespace {nsid} is no block namespace"),
            (false, _) => fail!("namespace {nsid} is no key-value namespace"),
        });
        match (made, scratch) {
            (Ok(made), scratch) => Ok(Shm { scratch, target_pid: pid, ..made }),
            (Err(failure), Some(mut client)) => {
                client.delete_namespace(nsid)?;
                Err(failure)
            }
            (Err(failure), None) => Err(failure),
        }
    }

    fn open(path: &Path, nsid: u32, slots: usize, buffer_bytes: usize) -> Outcome<Self> {
        let stride = buffer_bytes.next_multiple_of(4096);
        let data_bytes = (stride * slots).max(VIEW_BYTES as usize) as u64;
        // The ring holds twice as many as may be under way, and operations over stripes take several slots.
        let entries = u32::try_from((slots * 4).next_power_of_two().clamp(256, 8192)).unwrap_or(8192);
        let mut endpoint = Endpoint::open(path, Kind::Any, entries, data_bytes).map_err(Failure::new)?;
        if (endpoint.opened.depth as usize) < slots {
            fail!("the device takes {} commands on a ring, {slots} were asked for", endpoint.opened.depth);
        }
        let view = view_of(&mut endpoint)?;
        let Some(namespace) = view.namespaces.iter().find(|namespace| namespace.nsid == nsid) else {
            fail!("the device has no namespace {nsid}: see willow ns list");
        };
        let app = namespace.serving_app().map_err(Failure::new)?;
        let made = Shm {
            nsid,
            block_bytes: if namespace.key_value { 1 } else { namespace.block_bytes },
            geometry: Geometry { spus: view.spus.max(1), stripe_bytes: namespace.stripe_bytes, base: namespace.base },
            placement: Placement::new(namespace.nguid, view.spus.max(1)),
            app,
            stride,
            private: vec![vec![0; buffer_bytes]; slots],
            is_changed: vec![false; slots],
            operations: vec![Operation::Delete { key: 0 }; slots],
            calls: Vec::new(),
            target_pid: None,
            scratch: None,
            endpoint,
        };
        for slot in 0..slots {
            let mut bytes = vec![0; buffer_bytes];
            fill(&mut bytes, slot as u64 + 1);
            made.endpoint.memory().write(made.place(slot), &bytes);
        }
        Ok(made)
    }

    /// The device's process, where it told.
    pub fn target_pid(&self) -> Option<u32> {
        self.target_pid
    }

    /// Ends the endpoint; deletes the namespace that was made for this.
    pub fn finish(self) -> Outcome<()> {
        drop(self.endpoint);
        match self.scratch {
            Some(mut client) => client.delete_namespace(self.nsid),
            None => Ok(()),
        }
    }

    fn place(&self, slot: usize) -> usize {
        self.endpoint.layout().data() + slot * self.stride
    }

    #[inline]
    fn submit(&mut self, slot: usize, payload_bytes: u32, reply_bytes: u32) -> Outcome<()> {
        let Some((call, more)) = self.calls.split_first() else { fail!("an operation of 0 bytes") };
        let offset = (slot * self.stride) as u32;
        let command = Command {
            tag: slot as u32,
            operation: Wanted::Rpc,
            more: more.len() as u8,
            payload_offset: offset,
            payload_bytes,
            reply_offset: offset,
            reply_bytes,
            call: *call,
        };
        if !self.endpoint.submit(&command, more) {
            fail!("the ring takes no more commands: use a smaller depth");
        }
        Ok(())
    }

    #[inline]
    fn range(&mut self, handler: u8, offset: u64, bytes: u32) -> Outcome<()> {
        let block = self.block_bytes;
        if !bytes.is_multiple_of(block) || !offset.is_multiple_of(u64::from(block)) {
            fail!("operations of {bytes} bytes do not fit blocks of {block} bytes: choose another --bs");
        }
        let (app, calls) = (self.app, &mut self.calls);
        calls.clear();
        self.geometry.range(handler, offset, u64::from(bytes), 0, 0, |request| {
            calls.extend(Call::new(app, request.handler, request.spu, &request.arguments.encode()));
        });
        Ok(())
    }

    fn pair(&mut self, call: &PairCall) {
        self.calls.clear();
        self.calls.extend(Call::new(self.app, call.handler, call.spu, &call.arguments));
    }

    fn ended(&self, completion: Completion) -> Outcome<Ended> {
        let slot = completion.tag as usize;
        let Some(operation) = self.operations.get(slot) else { fail!("the device answers what was not asked") };
        let of_a_pair = matches!(operation, Operation::Get { .. } | Operation::Put { .. } | Operation::Delete { .. });
        match (completion.outcome, completion.status) {
            (End::Answered, 0) => {}
            (End::Answered, STATUS_NOT_FOUND) if of_a_pair => return Ok(Ended { slot, result: None }),
            (outcome, status) => fail!("{operation:?} failed: {outcome:?}, status {status}"),
        }
        if let Operation::Read { bytes, .. } = operation
            && completion.reply_bytes != *bytes
        {
            fail!("{operation:?} brought {} bytes", completion.reply_bytes);
        }
        Ok(Ended { slot, result: Some(completion.result) })
    }
}

/// Reads the device's view over an endpoint with nothing under way.
pub fn view_of(endpoint: &mut Endpoint) -> Outcome<View> {
    let Some(call) = Call::new(0, 0, 0, &[]) else { fail!("a call without arguments") };
    let bytes = VIEW_BYTES;
    let (payload_offset, payload_bytes, reply_offset, reply_bytes) = (0, 0, 0, bytes);
    let operation = Wanted::View;
    let command =
        Command { tag: 0, operation, more: 0, payload_offset, payload_bytes, reply_offset, reply_bytes, call };
    endpoint.submit(&command, &[]);
    endpoint.ring();
    let begun = Instant::now();
    let completion = loop {
        if let Some(completion) = endpoint.completion().map_err(Failure::new)? {
            break completion;
        }
        if begun.elapsed() > WAIT_MAX {
            fail!("the device does not answer");
        }
        endpoint.sleep(Duration::from_secs(1)).map_err(Failure::new)?;
    };
    let mut document = vec![0; completion.reply_bytes.min(bytes) as usize];
    endpoint.memory().read(endpoint.layout().data(), &mut document);
    decode(&document).context(|| "the device's view cannot be read".to_owned())
}

impl Driver for Shm {
    fn buffer(&mut self, slot: usize) -> &mut [u8] {
        let place = self.place(slot);
        if !self.is_changed[slot] {
            self.endpoint.memory().read(place, &mut self.private[slot]);
            self.is_changed[slot] = true;
        }
        &mut self.private[slot]
    }

    #[inline]
    fn begin(&mut self, slot: usize, operation: Operation) -> Outcome<()> {
        self.operations[slot] = operation;
        if self.is_changed[slot] {
            self.endpoint.memory().write(self.place(slot), &self.private[slot]);
            self.is_changed[slot] = false;
        }
        match operation {
            Operation::Read { offset, bytes } => {
                self.range(handler::READ, offset, bytes)?;
                self.submit(slot, 0, bytes)
            }
            Operation::Write { offset, bytes } => {
                self.range(handler::WRITE, offset, bytes)?;
                self.submit(slot, bytes, 0)
            }
            Operation::Get { key, bytes } => {
                self.pair(&PairCall::get(&self.placement, self.nsid, &key_of(key), 0));
                self.submit(slot, 0, bytes)
            }
            Operation::Put { key, bytes } => {
                let key = key_of(key);
                let call = PairCall::put(&self.placement, self.nsid, &key, bytes, PutCondition::Always, false)
                    .map_err(Failure::new)?;
                self.pair(&call);
                self.submit(slot, bytes, 0)
            }
            Operation::Delete { key } => {
                self.pair(&PairCall::delete(&self.placement, self.nsid, &key_of(key), false));
                self.submit(slot, 0, 0)
            }
        }
    }

    #[inline]
    fn poll(&mut self, ended: &mut Vec<Ended>) -> Outcome<()> {
        // All that was begun since the last call is rung for at once.
        self.endpoint.ring();
        let mut begun = None;
        let mut spins = 0u32;
        loop {
            while let Some(completion) = self.endpoint.completion().map_err(Failure::new)? {
                ended.push(self.ended(completion)?);
            }
            if !ended.is_empty() {
                return Ok(());
            }
            std::hint::spin_loop();
            spins += 1;
            if spins.is_multiple_of(1024) {
                let begun = *begun.get_or_insert_with(Instant::now);
                if begun.elapsed() > WAIT_MAX {
                    fail!("the device does not answer");
                }
                if begun.elapsed() > SPIN {
                    self.endpoint.sleep(Duration::from_secs(1)).map_err(Failure::new)?;
                }
            }
        }
    }
}
