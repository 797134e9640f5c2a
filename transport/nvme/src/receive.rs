//! Receives (86h) that are parked until an upcall comes for their endpoint.
//!
//! What always holds: a queue parks [`RECEIVES_PARKED_MAX`] at most, each for [`RECEIVE_PARKED_MS_MAX`] at most; upcalls go to the oldest.

use willow_device::Upcall;
use willow_wire::spec::{Status, tunnel};

use crate::backend::Backend;
use crate::config::*;
use crate::queue::State;
use crate::subsystem::Subsystem;

impl<B: Backend> Subsystem<B> {
    /// Receive (86h): answered at once where an upcall is there, else parked.
    pub(crate) fn receive(&mut self, index: u16, place: u16, wait_ms: u32) {
        let deadline_ns = self.now_ns.saturating_add(u64::from(wait_ms) * 1_000_000);
        let Some(queue) = self.queues[usize::from(index)].as_mut() else { return };
        if queue.parked.len() >= RECEIVES_PARKED_MAX {
            return self.complete(index, place, tunnel::status::REFUSED, 0, None);
        }
        let slot = &mut queue.slots[usize::from(place)];
        slot.state = State::Parked;
        slot.deadline_ns = deadline_ns;
        queue.parked.push(place);
        if !self.receiving.contains(&index) {
            self.receiving.push(index);
        }
        self.set_timer(deadline_ns);
    }

    /// Hands upcalls to parked Receives.
    pub(crate) fn deliver_upcalls(&mut self) {
        for index in self.receiving.clone() {
            while let Some(queue) = self.queues[usize::from(index)].as_mut() {
                let (Some(association), Some(&place)) = (queue.association, queue.parked.first()) else { break };
                let upcall = match queue.upcall.take() {
                    Some(upcall) => Some(upcall),
                    None => self.backend.upcall(association.hre),
                };
                let Some(upcall) = upcall else { break };
                queue.parked.remove(0);
                self.deliver(index, place, upcall);
            }
        }
        let queues = &self.queues;
        self.receiving
            .retain(|index| queues[usize::from(*index)].as_ref().is_some_and(|queue| !queue.parked.is_empty()));
    }

    fn deliver(&mut self, index: u16, place: u16, upcall: Upcall) {
        let whole = tunnel::UPCALL_HEAD_BYTES + upcall.body.len();
        let Some(queue) = self.queues[usize::from(index)].as_mut() else { return };
        if whole > queue.slots[usize::from(place)].bytes as usize {
            queue.upcall = Some(upcall);
            return self.complete(index, place, tunnel::status::BUFFER_SHORT.with_do_not_retry(), whole as u64, None);
        }
        let head = tunnel::UpcallHead {
            id: upcall.id,
            app: upcall.app,
            handler: upcall.handler,
            spu: upcall.spu,
            body_bytes: upcall.body.len() as u32,
        };
        let mut data = head.to_bytes().to_vec();
        data.extend_from_slice(&upcall.body);
        let payload = self.payload_of(index, &data);
        self.complete(index, place, Status::SUCCESS, whole as u64, Some(payload));
    }

    /// Ends parked Receives whose time is over: result 0, no data.
    pub(crate) fn expire_receives(&mut self) {
        for index in self.receiving.clone() {
            let Some(queue) = self.queues[usize::from(index)].as_mut() else { continue };
            let now_ns = self.now_ns;
            let slots = &queue.slots;
            let (over, kept): (Vec<u16>, Vec<u16>) =
                queue.parked.iter().partition(|place| slots[usize::from(**place)].deadline_ns <= now_ns);
            queue.parked = kept;
            over.into_iter().for_each(|place| self.complete(index, place, Status::SUCCESS, 0, None));
        }
        let queues = &self.queues;
        self.receiving
            .retain(|index| queues[usize::from(*index)].as_ref().is_some_and(|queue| !queue.parked.is_empty()));
    }

    /// When the next parked Receive's time is over.
    pub(crate) fn receive_deadline_ns(&self) -> u64 {
        let queues = self.receiving.iter().filter_map(|index| self.queues[usize::from(*index)].as_ref());
        let deadlines =
            queues.flat_map(|queue| queue.parked.iter().map(|place| queue.slots[usize::from(*place)].deadline_ns));
        deadlines.min().unwrap_or(u64::MAX)
    }
}
