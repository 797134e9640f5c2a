//! The device's end of one endpoint's memory as the device's data path takes it: commands become requests, with their payload
//! and a window for their reply. The rings themselves are in `willow_shm::rings`.
//!
//! What always holds:
//! - what comes off the rings is a copy that was judged (`DeviceRings`), and nothing is read again after it was checked;
//! - payload is copied out when a command is taken, so that handlers that read it twice see the same bytes; all payload so
//!   held is never more than the endpoint's own data area has bytes;
//! - replies go straight into the endpoint's data area, into the range that the command named.

use crate::config::*;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use willow_device::shared::{SharedMemory, SharedWindow};
use willow_device::{Arguments, HostRequest, HreId, Rpc, RpcList};
use willow_shm::layout::{Call, Command, Layout, Operation, Outcome};
use willow_shm::memory::Mapping;
use willow_shm::rings::Words;
use willow_shm::rings::device::{DeviceRings, Taken as OffTheRing, Violation};

/// The mapping as the device's data path takes it.
pub(crate) struct Memory(pub Mapping);

// SAFETY: the mapping stays as it is until the value is dropped, and nobody makes Rust references to plain bytes of it
// (willow_shm::memory).
unsafe impl SharedMemory for Memory {
    fn span(&self) -> (NonNull<u8>, usize) {
        self.0.span()
    }
}

impl Words for Memory {
    #[inline]
    fn load(&self, at: usize, order: Ordering) -> u64 {
        self.0.load(at, order)
    }
    #[inline]
    fn store(&self, at: usize, word: u64, order: Ordering) {
        self.0.store(at, word, order);
    }
    #[inline]
    fn load_half(&self, at: usize, order: Ordering) -> u32 {
        self.0.load_half(at, order)
    }
    #[inline]
    fn store_half(&self, at: usize, half: u32, order: Ordering) {
        self.0.store_half(at, half, order);
    }
    #[inline]
    fn swap_half(&self, at: usize, half: u32, order: Ordering) -> u32 {
        self.0.swap_half(at, half, order)
    }
    #[inline]
    fn fence(&self) {
        self.0.fence();
    }
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

/// An endpoint.
pub(crate) struct Endpoint {
    pub hre: HreId,
    rings: DeviceRings<Arc<Memory>>,
    shared: Arc<dyn SharedMemory>,
    /// A request that the device had no room for.
    pub held: Option<(HostRequest, Option<SharedWindow>)>,
}

impl Deref for Endpoint {
    type Target = DeviceRings<Arc<Memory>>;
    #[inline]
    fn deref(&self) -> &Self::Target {
        &self.rings
    }
}

impl DerefMut for Endpoint {
    #[inline]
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.rings
    }
}

impl Endpoint {
    /// Around fresh memory; `depth` commands may be under way.
    pub fn new(hre: HreId, layout: Layout, mapping: Mapping, depth: u32) -> Self {
        let memory = Arc::new(Memory(mapping));
        let rings = DeviceRings::new(memory.clone(), layout, depth, TRANSFER_BYTES_MAX);
        Endpoint { hre, rings, shared: memory, held: None }
    }

    /// Bytes of shared memory that it takes.
    pub fn bytes(&self) -> u64 {
        self.words().0.len() as u64
    }

    /// Takes the next command; `None` where there is none, or no room for it now. `buffer` gives memory for payload.
    #[inline]
    pub fn take(&mut self, buffer: impl FnOnce() -> Vec<u8>) -> Result<Option<Taken>, Violation> {
        if self.held.is_some() {
            return Ok(None);
        }
        Ok(match self.rings.take(list_of, push_to)? {
            None => None,
            Some(OffTheRing::Refused) => Some(Taken::Done),
            Some(OffTheRing::Command(flight, command, rpcs)) => Some(self.parse(flight, &command, rpcs, buffer)),
        })
    }

    #[inline]
    fn parse(&mut self, flight: u16, command: &Command, rpcs: RpcList, buffer: impl FnOnce() -> Vec<u8>) -> Taken {
        let data = self.layout().data();
        let at = |offset: u32| data + offset as usize;
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
            #[cfg(feature = "testing")]
            if let Some(again) = self.payload_bytes_again() {
                payload_bytes = again;
            }
            let copied = self.words().0.append_to(at(command.payload_offset), payload_bytes as usize, &mut payload);
            debug_assert!(copied || cfg!(feature = "testing"), "the range was checked");
        }
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
}

#[inline]
fn list_of(first: &Call, more: u8) -> Option<RpcList> {
    let first = rpc_of(first)?;
    if more == 0 {
        return Some(RpcList::One(first));
    }
    let mut rpcs = Vec::with_capacity(usize::from(more) + 1);
    rpcs.push(first);
    Some(RpcList::Many(rpcs))
}

#[inline]
fn push_to(list: &mut RpcList, call: &Call) -> Option<()> {
    let rpc = rpc_of(call)?;
    match list {
        RpcList::Many(rpcs) => rpcs.push(rpc),
        RpcList::One(_) => return None,
    }
    Some(())
}

#[inline]
fn rpc_of(call: &Call) -> Option<Rpc> {
    Some(Rpc { app: call.app, handler: call.handler, spu: call.spu, arguments: Arguments::new(call.arguments())? })
}
