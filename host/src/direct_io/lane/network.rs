//! A lane's port over NVMe/TCP: RPCs by the tunnel (opcodes 81h and 82h), one command each, on a queue that the lane's thread polls.
//!
//! What always holds: each slot has one buffer, which goes with its command and comes back with the completion; after an error the
//! queue does no more, and the lane ends.

use super::{Came, SLOT_BYTES, Segments};
use crate::direct_io::DirectError;
use crate::direct_io::session::Registered;
use crate::nvme_tcp::polled::PolledQueue;
use crate::nvme_tcp::{Completed, NvmeError, Transfer, rpc_error};
use direct_io_host::wire::{Arguments, handler};
use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;
use willow_shm::layout::Call;
use willow_wire::spec::{Status, SubmissionEntry, tunnel};

/// The tunnel goes through any namespace or none.
const NSID_ALL: u32 = 0xffff_ffff;

/// The port.
pub struct Network {
    queue: PolledQueue,
    /// Of each slot, but while its command is under way: arguments and payload, or what was read.
    buffers: Vec<Vec<u8>>,
    came: VecDeque<Completed>,
    taken: Vec<Completed>,
    _registered: Registered,
}

fn lost(error: NvmeError) -> DirectError {
    DirectError::Lost(error.to_string())
}

impl Network {
    pub fn new(queue: PolledQueue, slots: u32) -> Network {
        let buffer = || Vec::with_capacity(SLOT_BYTES as usize + Arguments::BYTES);
        Network {
            _registered: Registered::new(queue.as_fd().as_raw_fd()),
            queue,
            buffers: (0..slots).map(|_| buffer()).collect(),
            came: VecDeque::new(),
            taken: Vec::new(),
        }
    }

    #[inline]
    pub fn has_room(&self) -> bool {
        self.queue.has_room()
    }

    #[inline]
    pub fn put(&mut self, slot: u16, from: &mut Segments, at: usize, bytes: usize) {
        let buffer = &mut self.buffers[usize::from(slot)];
        buffer.clear();
        // Its arguments are known when it is submitted.
        buffer.resize(Arguments::BYTES, 0);
        from.copy(at, bytes, |_, part| buffer.extend_from_slice(part));
    }

    #[inline]
    pub fn take(&mut self, slot: u16, into: &mut Segments, at: usize, bytes: usize) {
        let buffer = &self.buffers[usize::from(slot)][..bytes];
        into.fill(at, bytes, |done, part| part.copy_from_slice(&buffer[done..done + part.len()]));
    }

    #[inline]
    pub fn submit(&mut self, slot: u16, call: &Call, bytes: u32) -> bool {
        let mut buffer = std::mem::take(&mut self.buffers[usize::from(slot)]);
        let reads = call.handler == handler::READ;
        let opcode = if reads { tunnel::CALL } else { tunnel::SEND };
        let mut entry = SubmissionEntry::new(opcode)
            .with_nsid(NSID_ALL)
            .with_cdw(10, tunnel::target(call.app, call.handler))
            .with_cdw(11, u32::from(call.spu));
        let transfer = if reads {
            let put = tunnel::put_call_arguments(&mut entry, call.arguments());
            debug_assert!(put.is_some(), "16 bytes of arguments");
            buffer.resize(bytes as usize, 0);
            Transfer::FromController(buffer)
        } else {
            if call.handler != handler::WRITE {
                buffer.clear();
                buffer.resize(Arguments::BYTES, 0);
            }
            buffer[..Arguments::BYTES].copy_from_slice(call.arguments());
            Transfer::ToController(buffer)
        };
        match self.queue.submit(u64::from(slot), entry, transfer) {
            Ok(()) => true,
            Err(full) => {
                let (Transfer::FromController(buffer) | Transfer::ToController(buffer)) = full.0 else { return false };
                self.buffers[usize::from(slot)] = buffer;
                false
            }
        }
    }

    #[inline]
    pub fn send(&mut self) {
        // Commands that end because the connection did are told by the next look.
        let _ = self.look();
    }

    #[inline]
    pub fn look(&mut self) -> Result<(), DirectError> {
        let looked = self.queue.poll(&mut self.taken);
        self.came.extend(self.taken.drain(..));
        looked.map(|_| ()).map_err(lost)
    }

    #[inline]
    pub fn completion(&mut self, call: impl Fn(usize) -> Option<Call>) -> Result<Option<(usize, Came)>, DirectError> {
        let Some(done) = self.came.pop_front() else { return Ok(None) };
        let slot = done.tag as usize;
        let came = if done.entry.status.is_success() {
            let (status, _) = tunnel::split_result(done.entry.result);
            Came::Answered { status, reply_bytes: done.received_bytes }
        } else {
            failed(done.entry.status, done.entry.result, call(slot))
        };
        if let Some(buffer) = self.buffers.get_mut(slot) {
            *buffer = done.buffer;
        }
        Ok(Some((slot, came)))
    }

    #[inline]
    pub fn is_ready(&self) -> bool {
        !self.came.is_empty()
    }

    pub fn sleep(&mut self, most: Duration) -> Result<(), DirectError> {
        self.queue.sleep(most).map_err(lost)
    }
}

#[cold]
fn failed(status: Status, result: u64, call: Option<Call>) -> Came {
    let target = call.map_or((0, 0, None), |call| (call.app, call.handler, Some(call.spu)));
    match rpc_error(target, NvmeError::Status { what: "RPC", status, result }) {
        // Room in the device, or buffers, may be there the next time.
        error if error.is_busy() => Came::Refused,
        error => Came::Failed(error),
    }
}
