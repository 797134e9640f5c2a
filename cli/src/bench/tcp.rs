//! A device over NVMe/TCP, driven by a queue that this thread polls: as fast as one core can be.
//!
//! Invariants: buffers travel with their commands and come back; what ended before a connection broke is told before the
//! error is.

use super::CommonOptions;
use super::engine::{Driver, Ended, Operation};
use super::in_process::fill;
use crate::client::{self, Client};
use crate::failure::{Context, Outcome, fail};
use crate::target::TargetOption;
use std::time::Duration;
use willow_host::control::CommandSet;
use willow_host::nvme_tcp::identity::NamespaceKind;
use willow_host::nvme_tcp::polled::{PolledController, PolledQueue};
use willow_host::nvme_tcp::{Completed, Transfer};
use willow_sim::operation::key_of;
use willow_wire::spec::opcode::{kv as kv_opcode, nvm};
use willow_wire::spec::{Status, SubmissionEntry, kv};

/// Longest wait for a completion.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// One polled queue, on one namespace.
pub struct Tcp {
    // Dropped before the client deletes a scratch namespace.
    queue: PolledQueue,
    controller: PolledController,
    nsid: u32,
    /// Bytes of a logical block; 1 for key-value.
    block_bytes: u32,
    buffer_bytes: usize,
    buffers: Vec<Vec<u8>>,
    operations: Vec<Operation>,
    completed: Vec<Completed>,
    target_pid: Option<u32>,
    /// To delete the namespace that was made for this.
    scratch: Option<Client>,
}

impl Tcp {
    /// On namespace `nsid`, or on one of `bytes` bytes made for this. Lengths are those of an operation and of the buffers.
    pub fn block(
        options: &CommonOptions,
        nsid: Option<u32>,
        bytes: u64,
        slots: usize,
        (operation_bytes, buffer_bytes): (u64, usize),
    ) -> Outcome<Self> {
        let mut client = Client::connect(&options.target)?;
        let pid = client.statistics()?.transport.pid;
        let (nsid, scratch) = match nsid {
            Some(nsid) => (nsid, None),
            None => {
                // Operations that do not fill blocks of 4 KiB get small ones.
                let block_bytes = if operation_bytes.is_multiple_of(4096) { 4096 } else { 512 };
                (client.create_namespace(CommandSet::Nvm, bytes, Some(block_bytes))?, Some(client))
            }
        };
        let made = Self::open(&options.target, nsid, slots, buffer_bytes).and_then(|tcp| match tcp.block_bytes {
            1 => fail!("namespace {nsid} is no block namespace"),
            _ => Ok(tcp),
        });
        Self::with_scratch(made, pid, nsid, scratch)
    }

    /// On key-value namespace `nsid`, or on one of `bytes` bytes made for this.
    pub fn key_value(
        options: &CommonOptions,
        nsid: Option<u32>,
        bytes: u64,
        slots: usize,
        buffer_bytes: usize,
    ) -> Outcome<Self> {
        let mut client = Client::connect(&options.target)?;
        let pid = client.statistics()?.transport.pid;
        let (nsid, scratch) = match nsid {
            Some(nsid) => (nsid, None),
            None => (client.create_namespace(CommandSet::Kv, bytes, None)?, Some(client)),
        };
        let made = Self::open(&options.target, nsid, slots, buffer_bytes).and_then(|tcp| match tcp.block_bytes {
            1 => Ok(tcp),
            _ => fail!("namespace {nsid} is no key-value namespace"),
        });
        Self::with_scratch(made, pid, nsid, scratch)
    }

    /// On a namespace that is kept.
    pub fn existing(target: &TargetOption, nsid: u32, slots: usize, buffer_bytes: usize) -> Outcome<Self> {
        Self::open(target, nsid, slots, buffer_bytes)
    }

    fn with_scratch(made: Outcome<Self>, pid: Option<u32>, nsid: u32, scratch: Option<Client>) -> Outcome<Self> {
        match (made, scratch) {
            (Ok(tcp), scratch) => Ok(Tcp { scratch, target_pid: pid, ..tcp }),
            (Err(failure), Some(mut client)) => {
                client.delete_namespace(nsid)?;
                Err(failure)
            }
            (Err(failure), None) => Err(failure),
        }
    }

    fn open(target: &TargetOption, nsid: u32, slots: usize, buffer_bytes: usize) -> Outcome<Self> {
        let address = target.address()?;
        let mut options = client::options(&client::runtime()?, target, address)?;
        options.depth = u16::try_from(slots).context(|| "too many operations under way".to_owned())?;
        let circumstance = || format!("cannot attach to the device at {address}");
        let mut controller = PolledController::connect(&options).context(circumstance)?;
        let namespaces = controller.namespaces().context(circumstance)?;
        let Some(namespace) = namespaces.iter().find(|namespace| namespace.nsid == nsid) else {
            fail!("the device has no namespace {nsid}: see willow ns list");
        };
        let block_bytes = match namespace.kind {
            NamespaceKind::Block { block_bytes, .. } => block_bytes,
            _ => 1,
        };
        let queue = controller.open_queue().context(circumstance)?;
        if queue.depth() < slots {
            fail!(
                "the device takes {} commands on a queue, {slots} were asked for: use a smaller depth",
                queue.depth()
            );
        }
        let buffers = (0..slots).map(|slot| {
            let mut buffer = vec![0; buffer_bytes];
            fill(&mut buffer, slot as u64 + 1);
            buffer
        });
        Ok(Tcp {
            queue,
            controller,
            nsid,
            block_bytes,
            buffer_bytes,
            buffers: buffers.collect(),
            operations: vec![Operation::Delete { key: 0 }; slots],
            completed: Vec::with_capacity(slots),
            target_pid: None,
            scratch: None,
        })
    }

    /// The device's process, where it told and is on this machine.
    pub fn target_pid(&self) -> Option<u32> {
        self.target_pid
    }

    /// Ends the connection; deletes the namespace that was made for this.
    pub fn finish(self) -> Outcome<()> {
        drop(self.queue);
        self.controller.shut_down().context(|| "the connection did not end cleanly".to_owned())?;
        match self.scratch {
            Some(mut client) => client.delete_namespace(self.nsid),
            None => Ok(()),
        }
    }

    fn block_entry(&self, opcode: u8, offset: u64, bytes: u32) -> Outcome<SubmissionEntry> {
        let block = self.block_bytes;
        if !bytes.is_multiple_of(block) || !offset.is_multiple_of(u64::from(block)) || bytes == 0 {
            fail!("operations of {bytes} bytes do not fit blocks of {block} bytes: choose another --bs");
        }
        let entry = SubmissionEntry::new(opcode).with_nsid(self.nsid).with_lba(offset / u64::from(block));
        Ok(entry.with_cdw(12, bytes / block - 1))
    }

    fn pair_entry(&self, opcode: u8, key: u64, bytes: u32) -> SubmissionEntry {
        let mut entry = SubmissionEntry::new(opcode).with_nsid(self.nsid).with_cdw(10, bytes);
        let name = key_of(key);
        if let Some(name) = kv::Key::new(name.as_bytes()) {
            name.put(&mut entry);
        }
        entry
    }

    fn take(&mut self, completed: Completed) -> Outcome<Option<Ended>> {
        let slot = completed.tag as usize;
        let (operation, status) = (self.operations[slot], completed.entry.status);
        if !completed.buffer.is_empty() {
            self.buffers[slot] = completed.buffer;
        }
        if status.is(Status::HOST_PATH_ERROR) {
            // It ended since the connection did: the error of the connection follows.
            return Ok(None);
        }
        if status.is(Status::KV_KEY_NOT_FOUND) {
            return Ok(Some(Ended { slot, result: None }));
        }
        if !status.is_success() {
            fail!("{operation:?} failed: {status}");
        }
        if let Operation::Read { bytes, .. } = operation
            && completed.received_bytes != bytes
        {
            fail!("{operation:?} brought {} bytes", completed.received_bytes);
        }
        Ok(Some(Ended { slot, result: Some(completed.entry.result as u32) }))
    }
}

impl Driver for Tcp {
    fn buffer(&mut self, slot: usize) -> &mut [u8] {
        let buffer = &mut self.buffers[slot];
        buffer.resize(self.buffer_bytes, 0);
        buffer
    }

    #[inline]
    fn begin(&mut self, slot: usize, operation: Operation) -> Outcome<()> {
        self.operations[slot] = operation;
        let (entry, to_controller) = match operation {
            Operation::Read { offset, bytes } => (self.block_entry(nvm::READ, offset, bytes)?, false),
            Operation::Write { offset, bytes } => (self.block_entry(nvm::WRITE, offset, bytes)?, true),
            Operation::Get { key, bytes } => (self.pair_entry(kv_opcode::RETRIEVE, key, bytes), false),
            Operation::Put { key, bytes } => (self.pair_entry(kv_opcode::STORE, key, bytes), true),
            Operation::Delete { key } => (self.pair_entry(kv_opcode::DELETE, key, 0), true),
        };
        let bytes = operation.bytes() as usize;
        let transfer = if bytes == 0 {
            Transfer::None
        } else {
            let mut buffer = std::mem::take(&mut self.buffers[slot]);
            buffer.resize(bytes, 0);
            if to_controller { Transfer::ToController(buffer) } else { Transfer::FromController(buffer) }
        };
        match self.queue.submit(slot as u64, entry, transfer) {
            Ok(()) => Ok(()),
            // Closed meanwhile, for depth was checked: the reason comes with the next poll.
            Err(_) => match self.queue.poll(&mut self.completed) {
                Err(error) => fail!("{error}"),
                Ok(_) => fail!("the queue takes no more commands: please report this"),
            },
        }
    }

    #[inline]
    fn poll(&mut self, ended: &mut Vec<Ended>) -> Outcome<()> {
        let waited = self.queue.wait(&mut self.completed, WAIT_MAX);
        let mut completed = std::mem::take(&mut self.completed);
        for one in completed.drain(..) {
            ended.extend(self.take(one)?);
        }
        self.completed = completed;
        waited.map(|_| ()).context(|| "the connection broke".to_owned())
    }
}
