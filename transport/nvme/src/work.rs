//! What is to be made of the device's answer to a request: one variant for each kind of command, held in the command's slot
//! while the device works on it.

use base_io_host::Geometry;
use key_value_host::ListScan;

use crate::command::{Blocks, Durable};
use crate::config::{STEP_BANK_BYTES, STEP_RPCS_MAX};
use willow_wire::spec::Status;

/// Dataset Management on its way. A command can name 256 ranges of any length, so that its RPCs are made step by step.
#[derive(Debug)]
pub(crate) struct Deallocation {
    /// The namespace.
    pub nsid: u32,
    /// Which of those that had this number: one that was deleted meanwhile, and made anew, is another.
    pub generation: u32,
    /// Where it lies.
    pub geometry: Geometry,
    /// What is left: first byte and bytes, the next range last.
    pub ranges: Vec<(u64, u64)>,
}

impl Deallocation {
    /// Takes what the next step covers; calls `each` with its parts.
    pub fn step(&mut self, mut each: impl FnMut(u64, u64)) {
        let spus = usize::from(self.geometry.spus);
        let step_bytes = STEP_BANK_BYTES * u64::from(self.geometry.spus);
        let (mut left, mut rpcs) = (step_bytes, 0);
        while left > 0 && rpcs + spus <= STEP_RPCS_MAX.max(spus) {
            let Some((start, bytes)) = self.ranges.pop() else { return };
            let now = bytes.min(left);
            each(start, now);
            left -= now;
            rpcs += spus;
            if now < bytes {
                self.ranges.push((start + now, bytes - now));
            }
        }
    }
}

/// A Copy on its way: all is read into one buffer before anything is written, so that ranges may overlap.
#[derive(Debug)]
pub(crate) struct Copying {
    /// Where the data come from, one range behind the other in the buffer.
    pub from: Vec<Blocks>,
    /// Where they go.
    pub to: Blocks,
    /// The write is durable before it completes.
    pub durable: Durable,
    /// The namespace, as it was when the ranges were checked.
    pub generation: u32,
}

/// What a request was for.
#[derive(Debug)]
pub(crate) enum Work {
    /// Nothing is under way.
    Nothing,
    /// Base-IO; data that it read goes to the host.
    Block,
    /// Base-IO: ranges that are still to be deallocated, a step after the other.
    Deallocate(Box<Deallocation>),
    /// Base-IO has read what a Copy writes; before that, what it is to read.
    Copy(Box<Copying>),
    /// Base-IO compares what a fused operation compares.
    FusedCompare,
    /// Base-IO writes what a fused operation writes.
    FusedWrite,
    /// The other command of its fused operation has ended: so does this one, with this status, when its data are there.
    FusedBroken(Status),
    /// Key-Value: only the status matters.
    Pair,
    /// Key-Value: the value goes to the host, its length is the result.
    Retrieve,
    /// Key-Value: the new version, which is the reply, is the result.
    StoreItem,
    /// Key-Value: head and value go to the host, the value's length is the result.
    RetrieveItem,
    /// Key-Value: the handler's result is the command's.
    Item,
    /// Key-Value: a listing, one SPU after the other.
    List(Box<ListScan>),
    /// Key-Value: statistics of each SPU, for the description of the namespace that goes to the host.
    Utilization(Vec<u8>),
    /// An RPC of the tunnel.
    Tunnel,
    /// The control service makes a namespace.
    NamespaceCreate,
    /// The control service deletes a namespace.
    NamespaceDelete,
    /// The control service attaches a namespace to hosts, or detaches it.
    NamespaceAttach,
    /// The control service marks blocks that cannot be read.
    WriteUncorrectable,
    /// The control service changes a reservation; with the hosts that were registered before, where those that are no longer are to be
    /// aborted.
    Reserve(Option<Vec<[u8; 16]>>),
    /// All is flushed before the controller says that it is shut down.
    Shutdown,
}
