//! The beginning and the end of associations: numbers of controllers, queues that go, events, and what waits too long.
//!
//! What always holds: when an admin queue goes, its controller and all queues of it go; a connection that this side ends is
//! named to the transport once.

use willow_wire::spec::Status;
use willow_wire::spec::property::csts;

use crate::backend::Backend;
use crate::config::*;
use crate::controller::Controller;
use crate::status::Failure;
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

    /// Where there are as many controllers whose hosts proved nothing as may be, discovery controllers among them, the one that got no
    /// command for longest makes way.
    pub(crate) fn make_way_for_unproved(&mut self) {
        let unproved = || self.controllers.values().filter(|one| !one.proved);
        if unproved().count() < UNPROVED_CONTROLLERS_MAX {
            return;
        }
        let oldest = unproved().min_by_key(|one| one.commanded_ns).map(|one| one.cntlid);
        if let Some(cntlid) = oldest {
            self.end_controller(
                cntlid,
                "idle for longest of too many discovery controllers and hosts that proved nothing",
            );
        }
    }

    /// Whether a host may have one more queue, and with an admin queue one more controller: as many as are left for others, so
    /// that no host takes them all.
    pub(crate) fn check_host_share(&self, index: u16, qid: u16, host_nqn: &str) -> Result<(), Failure> {
        let busy = Err(Failure::retryable(Status::CONNECT_CONTROLLER_BUSY));
        let account = self.accounts.find(host_nqn);
        let is_counted = self.queues[usize::from(index)].as_ref().is_some_and(|queue| Some(queue.account) == account);
        let share = self.share_of(host_nqn);
        let own = self.accounts.connections_of(share);
        let left = (CONNECTIONS_MAX - UNPROVED_CONNECTIONS_MAX).saturating_sub(self.accounts.host_connections());
        if own >= left && !is_counted {
            return busy;
        }
        if qid != 0 {
            return Ok(());
        }
        let proved = || self.controllers.values().filter(|one| one.proved);
        let left = (CONTROLLERS_MAX - UNPROVED_CONTROLLERS_MAX).saturating_sub(proved().count());
        let own = proved().filter(|one| self.share_of(&one.host_nqn) == share).count();
        if own >= left { busy } else { Ok(()) }
    }

    /// The host whose share a controller's host takes of: its own, or of a ticket that of the host which asked for it.
    pub(crate) fn share_of<'a>(&'a self, host_nqn: &'a str) -> &'a str {
        let issuer = self.tickets.get(host_nqn).and_then(|ticket| self.controllers.get(&ticket.issuer));
        issuer.map_or(host_nqn, |issuer| &issuer.host_nqn)
    }

    /// Ends a connection's queue, and with an admin queue its controller. The connection stays, without a queue.
    pub(crate) fn detach(&mut self, index: u16) {
        let Some(queue) = self.queues[usize::from(index)].as_ref() else { return };
        let (Some(association), generation) = (queue.association, queue.generation) else { return };
        self.abandon(ConnectionId { index, generation });
        let Some(queue) = self.queues[usize::from(index)].as_mut() else { return };
        *queue = queue.without_association();
        self.receiving.retain(|other| *other != index);
        self.backend.close_hre(association.hre);
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
        self.channel_of_controller_ends(association.controller);
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

    /// The flash is in another state. Where what was answered and not flushed may be lost, or a bank has failed, controllers have a fatal
    /// status (NVMe Base 3.1.4.6): their I/O queues end, and their hosts are told, so that they reset them.
    #[cold]
    pub(crate) fn take_flash_state(&mut self) {
        let (before, now) = (self.flash, self.backend.flash_state());
        self.flash = now;
        if before.losses == now.losses && (before.failed || !now.failed) {
            return;
        }
        let of_subsystem = self.controllers.values().filter(|one| !one.discovery && one.is_ready());
        for cntlid in of_subsystem.map(|one| one.cntlid).collect::<Vec<u16>>() {
            let Some(controller) = self.controllers.get_mut(&cntlid) else { continue };
            tracing::warn!(controller = cntlid, host = %controller.host_nqn, "fatal status: the FTL has failed");
            controller.status |= csts::CFS;
            controller.fatal_pending = true;
            let io: Vec<u16> = controller.io.iter().flatten().copied().collect();
            io.into_iter().for_each(|index| self.detach_and_close(index));
            self.tell_events(cntlid);
        }
    }

    /// Answers event requests of a controller with what there is to tell.
    pub(crate) fn tell_events(&mut self, cntlid: u16) {
        let Some(admin) = self.controllers.get(&cntlid).map(|controller| controller.admin) else { return };
        while let Some(controller) = self.controllers.get_mut(&cntlid)
            && let Some((place, result)) = controller.next_event()
        {
            self.complete(admin, place, Status::SUCCESS, u64::from(result), None);
        }
    }

    /// The transport may not read from a connection now: a keep alive may lie there, so that its timer starts again.
    pub fn postpone_keep_alive(&mut self, connection: ConnectionId) {
        let now_ns = self.now_ns;
        let association = self.queue(connection).and_then(|queue| queue.association);
        if let Some(association) = association.filter(|association| association.qid == 0)
            && let Some(controller) = self.controllers.get_mut(&association.controller)
        {
            controller.keep_alive_ns = now_ns;
        }
    }

    /// When something has waited too long next: what hosts sent until then is to be handed in before [`Subsystem::run`].
    #[inline]
    pub fn timer_ns(&self) -> u64 {
        self.next_timer_ns
    }

    /// The transport has handed in all that had come until then: whoever should have sent something by then may be ended for it, and
    /// from now on nobody for what should have come later, until this is called again.
    #[inline]
    pub fn judge_by(&mut self, looked_ns: u64) {
        self.judged_ns = Some(looked_ns);
    }

    /// Sets the timer to go off by then.
    pub(crate) fn set_timer(&mut self, at_ns: u64) {
        self.next_timer_ns = self.next_timer_ns.min(at_ns);
    }

    /// Ends what has waited too long: associations without keep alive, parked Receives.
    pub(crate) fn expire(&mut self) {
        let now_ns = self.judged_ns.unwrap_or(self.now_ns);
        let expired: Vec<u16> = self
            .controllers
            .values()
            .filter(|one| one.keep_alive_deadline_ns().is_some_and(|deadline| deadline <= now_ns))
            .map(|one| one.cntlid)
            .collect();
        expired.into_iter().for_each(|cntlid| self.end_controller(cntlid, "keep alive timeout"));
        self.expire_receives();
        let authentication_ns = self.expire_authentications();
        let ticket_ns = self.expire_tickets().min(self.expire_channels());
        let keep_alive = self.controllers.values().filter_map(Controller::keep_alive_deadline_ns).min();
        self.next_timer_ns =
            keep_alive.unwrap_or(u64::MAX).min(self.receive_deadline_ns()).min(authentication_ns).min(ticket_ns);
    }
}
