//! NV memory of other SPUs: a DMA to or from another SPU's bank comes there later, in the order that the seed has.

use super::host::SpuHost;
use super::{Action, Device};
use willow_gate::abi::PENDING;
use willow_gate::{Behalf, Port, RemoteDma};

impl SpuHost {
    /// Begins one, or says why not: regions and namespaces are the same in every bank.
    pub(super) fn remote_dma(&mut self, remote: &RemoteDma, behalf: Behalf) -> i32 {
        let dma = remote.dma;
        let (source, destination, bytes) = (dma.source, dma.destination, dma.segment_bytes as usize);
        let there = if source.port == Port::Nv { source.address } else { destination.address };
        let checked = self.permit(behalf, there, bytes).and_then(|()| match (source.port, destination.port) {
            (Port::Network, _) => self.within_body(dma.token, source.address, bytes),
            (_, Port::Network) => self.within_reply(dma.token, destination.address, bytes),
            _ => Ok(()),
        });
        if let Err(error) = checked {
            return error;
        }
        let mut shared = self.shared.borrow_mut();
        if let Some(request) = shared.requests.get_mut(&dma.token) {
            request.ending.begins();
        }
        shared.actions.push(Action::Remote { spu: self.spu, remote: *remote });
        PENDING
    }
}

impl Device {
    /// Moves the bytes of one; what it comes to.
    pub(super) fn carry_there(&mut self, spu: u32, remote: &RemoteDma) -> i64 {
        let RemoteDma { spu: there, dma } = *remote;
        let (source, destination, bytes) = (dma.source, dma.destination, dma.segment_bytes as usize);
        let reads = source.port == Port::Nv;
        let bank = &self.spus[usize::from(there)].host;
        if let Err(error) = bank.medium(if reads { source.address } else { destination.address }, bytes) {
            return error.into();
        }
        let (from, to) = if reads { (there.into(), spu) } else { (spu, there.into()) };
        let moved = self.spus[from as usize].host.read(dma.token, (source.port, source.address), bytes);
        self.spus[to as usize].host.put(dma.token, (destination.port, destination.address), &moved);
        0
    }
}
