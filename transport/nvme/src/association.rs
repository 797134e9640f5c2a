//! The beginning and the end of associations: numbers of controllers, queues that go, events, and what waits too long.
//!
//! What always holds: when an admin queue goes, its controller and all queues of it go; a connection that this side ends is
//! named to the transport once.

use willow_wire::spec::Status;
use willow_wire::spec::property::csts;

use crate::backend::Backend;
use crate::config::CONTROLLERS_MAX;
use crate::controller::Controller;
use crate::queue::{Queue, State};
use crate::subsystem::{ConnectionId, Subsystem};

impl<B: Backend> Subsystem<B> {
    /// A number for a new controller.
    pub(crate) fn allocate_cntlid(&mut self) -> Option<u16> {
        if self.controllers.len() >= CONTROLLERS_MAX {
            return None;
        }
        // FFF0h and above are reserved (NVMe Base 3.1.2).
        loop {
            let cntlid = self.next_cntlid;
            self.next_cntlid = if cntlid >= 0xffef { 1 } else { cntlid + 1 };
            if !self.controllers.contains_key(&cntlid) {
                return Some(cntlid);
            }
        }
    }

    /// Ends a connection's queue, and with an admin queue its controller. The connection stays, without a queue.
    pub(crate) fn detach(&mut self, index: u16) {
        let Some(queue) = self.queues[usize::from(index)].as_mut() else { return };
        let Some(association) = queue.association.take() else { return };
        let mut in_device = 0;
        for slot in &queue.slots {
            if slot.state == State::Device {
                in_device += u32::from(!matches!(slot.work, crate::work::Work::Nothing));
                self.pool.lost(slot.buffer_bytes as usize);
            }
        }
        *queue = Queue::new(queue.generation, queue.local);
        self.receiving.retain(|other| *other != index);
        self.backend.close_hre(association.hre);
        self.count_out_of_device(in_device);
        self.submitted = true;
        // Completions of it that were not taken yet have nowhere to go; the transport gives their buffers back.
        let Some(controller) = self.controllers.get_mut(&association.controller) else { return };
        if association.qid != 0 {
            if let Some(queue) = controller.io.get_mut(usize::from(association.qid) - 1) {
                *queue = None;
            }
            return;
        }
        let io: Vec<u16> = controller.io.iter().flatten().copied().collect();
        self.controllers.remove(&association.controller);
        tracing::info!(controller = association.controller, "controller gone");
        io.into_iter().for_each(|other| self.detach_and_close(other));
        self.tickets_of_controller_end(association.controller);
    }

    /// Ends a queue from this side: the transport is told to close its connection.
    pub(crate) fn detach_and_close(&mut self, index: u16) {
        self.detach(index);
        if let Some(queue) = &self.queues[usize::from(index)] {
            self.closing.push_back(ConnectionId { index, generation: queue.generation });
        }
    }

    /// Ends an association for the controller's sake: it can do no more (NVMe Base 9.2).
    pub(crate) fn end_controller(&mut self, cntlid: u16, reason: &'static str) {
        let Some(controller) = self.controllers.get_mut(&cntlid) else { return };
        tracing::warn!(controller = cntlid, host = %controller.host_nqn, reason, "association ended");
        controller.status |= csts::CFS;
        let admin = controller.admin;
        self.detach_and_close(admin);
    }

    /// Answers event requests of a controller with what there is to tell.
    pub(crate) fn tell_events(&mut self, cntlid: u16) {
        let Some(controller) = self.controllers.get_mut(&cntlid) else { return };
        let admin = controller.admin;
        if let Some((place, result)) = controller.next_event() {
            self.complete(admin, place, Status::SUCCESS, u64::from(result), None);
        }
    }

    /// Sets the timer to go off by then.
    pub(crate) fn set_timer(&mut self, at_ns: u64) {
        self.next_timer_ns = self.next_timer_ns.min(at_ns);
    }

    /// Ends what has waited too long: associations without keep alive, parked Receives.
    pub(crate) fn expire(&mut self) {
        let now_ns = self.now_ns;
        let expired: Vec<u16> = self
            .controllers
            .values()
            .filter(|one| one.keep_alive_deadline_ns().is_some_and(|deadline| deadline <= now_ns))
            .map(|one| one.cntlid)
            .collect();
        expired.into_iter().for_each(|cntlid| self.end_controller(cntlid, "keep alive timeout"));
        self.expire_receives();
        let authentication_ns = self.expire_authentications();
        let ticket_ns = self.expire_tickets();
        let keep_alive = self.controllers.values().filter_map(Controller::keep_alive_deadline_ns).min();
        self.next_timer_ns =
            keep_alive.unwrap_or(u64::MAX).min(self.receive_deadline_ns()).min(authentication_ns).min(ticket_ns);
    }
}
