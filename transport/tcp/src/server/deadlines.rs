//! Ends connections that do not move.
//!
//! What always holds: time limits are looked at however busy the thread is; nobody is judged before what lies unread in the sockets was
//! read, so that a pause of this process ends no one; who moves a few bytes now and then does not move.

use super::Server;
use crate::config::*;
use crate::connection::Connection;
use rustix::event::epoll::EventFlags;
use willow_nvme::Backend;
use willow_wire::pdu::PduError;

impl<B: Backend> Server<B> {
    /// Reads what lies in all sockets, as far as they may be read from and within a bound; false where there was nothing.
    pub(super) fn read_all(&mut self, readable: &mut Vec<usize>) -> Result<bool, super::ServeError> {
        let mut came = false;
        for _ in 0..READ_ALL_ROUNDS_MAX {
            readable.clear();
            let some = self.poll(Some(0), readable)?;
            came |= some;
            // Whose host has had its turn is read from in the next.
            let subsystem = &self.subsystem;
            let had_turn =
                |one: &Option<Connection>| one.as_ref().is_some_and(|one| subsystem.has_had_its_turn(one.id));
            readable.retain(|index| !self.connections.get(*index).is_some_and(had_turn));
            if !some || readable.is_empty() {
                break;
            }
            for index in readable.drain(..) {
                self.receive(index);
            }
        }
        readable.clear();
        // What may not be read now may well hold a keep alive.
        for connection in self.connections.iter().flatten() {
            if !connection.may_read() || self.subsystem.has_had_its_turn(connection.id) {
                self.subsystem.postpone_keep_alive(connection.id);
            }
        }
        Ok(came)
    }

    /// The first time limit of a connection that is not its own to wait for: when, and what is said of it (`None`: it had its time
    /// to close).
    fn limit_of(&self, connection: &Connection) -> Option<(u64, Option<&'static str>)> {
        let stall_ns = self.config.stall_limit.as_nanos() as u64;
        if let Some(since_ns) = connection.terminating_ns {
            return Some((since_ns + TERMINATION_LIMIT.as_nanos() as u64, None));
        }
        let connect_ns = self.config.connect_limit.as_nanos() as u64;
        let unconnected = (!self.subsystem.is_connected(connection.id))
            .then_some((connection.accepted_ns + connect_ns, Some("no Connect in time")));
        let pdu = connection.pdu_since_ns().map(|at_ns| (at_ns + stall_ns, Some("stalled in the midst of a PDU")));
        let transfer = connection
            .data_due_ns(stall_ns)
            .map(|at_ns| (at_ns, Some("sends too little of the data that it was asked for")));
        let output =
            connection.output_due_ns(stall_ns).map(|at_ns| (at_ns, Some("the host takes no data, or too few")));
        [unconnected, pdu, transfer, output].into_iter().flatten().min_by_key(|(at_ns, _)| *at_ns)
    }

    /// Ends connections that do not move; returns when to look again.
    pub(super) fn check_time_limits(&mut self) -> Option<u64> {
        let now_ns = self.now_ns;
        let mut next_ns = u64::MAX;
        if self.accept_after_ns != 0 {
            if now_ns >= self.accept_after_ns {
                self.accept_after_ns = 0;
                self.listen_for(EventFlags::IN);
            } else {
                next_ns = self.accept_after_ns;
            }
        }
        for index in 0..self.connections.len() {
            let Some(Some(connection)) = self.connections.get_mut(index) else { continue };
            connection.keep_pace(now_ns);
            let Some(Some(connection)) = self.connections.get(index) else { continue };
            let Some((at_ns, reason)) = self.limit_of(connection) else { continue };
            if at_ns > now_ns {
                next_ns = next_ns.min(at_ns);
                continue;
            }
            match reason {
                // The host had its time to close.
                None => self.close(index, "terminated"),
                Some(reason) => {
                    tracing::warn!(connection = index, reason, "connection ended");
                    let Some(Some(connection)) = self.connections.get_mut(index) else { continue };
                    connection.terminate(&PduError::sequence(0, reason), &[], now_ns);
                    let (subsystem, id) = (&mut self.subsystem, connection.id);
                    let _ = connection.send(now_ns, |buffer| subsystem.give_buffer(id, buffer));
                    self.close(index, reason);
                }
            }
        }
        // What begins to wait meanwhile is found in time: a limit is never missed by more than this.
        self.judge_at_ns = next_ns.min(now_ns + JUDGE_INTERVAL.as_nanos() as u64).max(now_ns + 1);
        (next_ns != u64::MAX).then_some(next_ns)
    }
}
