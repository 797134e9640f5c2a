//! DMA to and from another SPU's NV memory: over the interconnect, without that SPU's processor.
//!
//! What always holds:
//! - the permission is that SPU's: its table and its region decide, for each DMA, on behalf of the request's endpoint. Who may not, is told as for
//!   the own bank, and so is the agent where a permission is missing; such a DMA does not park;
//! - under a model of time a request goes over the ring, that SPU's DMA controller moves the bytes, and they, or the end of it, come back over
//!   the ring. No processor but the caller's has work with it.

use super::abi::{self, DONE};
use super::dma::Moved;
use super::gate::{Behalf, Charged};
use super::group::Waiter;
use super::os::{Caller, LocalMemory, Machine};
use super::permission::Rights;
use crate::interconnect::event::{Event, OnItsWay};
use crate::interconnect::{DmaKind, Endpoint, Transfer};
use willow_gate::{Fault, Port, RemoteDma};

/// Bytes that go with the message to that SPU, or back from it.
fn payload_bytes(on: &OnItsWay) -> u64 {
    match (on.transfer.kind, on.is_done) {
        (DmaKind::NvWrite, false) | (DmaKind::NvRead, true) => on.transfer.segment_bytes,
        _ => 0,
    }
}

impl Machine {
    /// Carries one out, or as much of it as the store can do now.
    pub fn remote_dma<M: LocalMemory>(
        &mut self,
        caller: Caller,
        memory: &mut M,
        (remote, behalf): (&RemoteDma, Behalf),
        _: Charged,
    ) -> Result<i32, Fault> {
        let &RemoteDma { spu, ref dma } = remote;
        let there = Caller { spu, ..caller };
        let (from, to, bytes) = (dma.source.address, dma.destination.address, dma.segment_bytes);
        let reads = dma.source.port == Port::Nv;
        let mut group = None;
        let moved = if reads {
            match self.may_read(there, behalf, from, bytes as usize) {
                Some(permit) => self.move_from_nv(caller, memory, dma, (permit, to), &mut group)?,
                None => Moved::Error(self.missed_there(there, behalf, (from, bytes), Rights::READ)),
            }
        } else {
            match self.may_write(there, behalf, to, bytes as usize) {
                Some(permit) => self.move_to_nv(caller, memory, dma, (from, permit), &mut group)?,
                None => Moved::Error(self.missed_there(there, behalf, (to, bytes), Rights::WRITE)),
            }
        };
        let error = match moved {
            Moved::Done | Moved::Pending => 0,
            // It does not wait in line: others of the caller's bank would pass it there.
            Moved::Full => abi::ERROR_REFUSED,
            Moved::Error(error) => error,
        };
        if let (Moved::Pending, Some(group)) = (&moved, group.and_then(|key| self.group_at_mut(key))) {
            group.remaining += 1;
        }
        if error == 0 {
            let counters = &mut self.spus[spu as usize].counters;
            let moved_bytes = if reads { &mut counters.nv_read_bytes } else { &mut counters.nv_write_bytes };
            *moved_bytes += u64::from(bytes);
            self.spus[caller.spu as usize].counters.dmas += 1;
            if !self.answers_now() {
                let Some(key) = self.group_for(caller, dma, &mut group) else { return Ok(abi::ERROR_REFUSED) };
                if let Some(group) = self.group_at_mut(key) {
                    group.remaining += 1;
                }
                let (kind, address) = if reads { (DmaKind::NvRead, from) } else { (DmaKind::NvWrite, to) };
                let segment_bytes = bytes.into();
                let transfer = Transfer { spu, kind, address, segment_bytes, segments: 1, stride: 0, id: dma.token };
                self.send_remote(OnItsWay { group: key, transfer, is_done: false });
            }
        }
        match group {
            Some(key) => Ok(self.settle_group(key, error)),
            None if error != 0 => Ok(error),
            None => {
                let waiter = Waiter { token: dma.token, wait: dma.wait };
                Ok(self.tell_end((caller, waiter), 0, |_| None, |_| DONE))
            }
        }
    }

    /// The error of a segment that is not permitted there; the agent is told where a grant would help.
    #[cold]
    fn missed_there(&mut self, there: Caller, behalf: Behalf, (address, bytes): (u64, u32), rights: Rights) -> i32 {
        if let Behalf::Of(originating) = behalf
            && !originating.is_kernel()
        {
            self.tell_missing(there, originating, (address, bytes.into()), rights);
        }
        abi::ERROR_PERMISSION
    }

    /// A message of a remote DMA leaves, to that SPU or back.
    fn send_remote(&mut self, on: OnItsWay) {
        let (here, there) = (Endpoint::Spu(on.group.spu), Endpoint::Spu(on.transfer.spu));
        let (ends, event) = match on.is_done {
            false => ((here, there), Event::Remote(on)),
            true => ((there, here), Event::End { group: on.group, result: 0, memory: None }),
        };
        self.transmit(|| event, ends, |_| (0, payload_bytes(&on)));
    }

    /// A remote DMA has come to its SPU, or is done there.
    pub fn remote_arrived(&mut self, on: OnItsWay) {
        match on.is_done {
            false => self.dma_then(on.transfer, false, || Event::Remote(OnItsWay { is_done: true, ..on })),
            true => self.send_remote(on),
        }
    }
}
