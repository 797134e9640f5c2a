//! Goes on with what waited for room: commands that get their buffer now, and connections that were not read from meanwhile.
//!
//! What always holds: whatever makes room is followed by a look here before the thread sleeps, so that nobody who waits is forgotten;
//! in one turn only so many connections try again.

use super::Server;
use crate::config::RETRIES_A_TURN_MAX;
use crate::connection::End;
use willow_nvme::Backend;

impl<B: Backend> Server<B> {
    /// True where somebody who waits may go on now.
    pub(super) fn has_to_resume(&self) -> bool {
        let released = self.releases_seen != self.subsystem.releases();
        self.subsystem.may_grant() || (!self.waiting.is_empty() && (released || self.retries_due > 0))
    }

    /// Gives buffers to commands that wait for them, and hands in again what connections waited with; true where something went on.
    pub(super) fn resume(&mut self) -> bool {
        let mut worked = self.subsystem.grant();
        while let Some((id, fetch)) = self.subsystem.fetch() {
            worked = true;
            let index = id.index();
            match self.connections.get_mut(index) {
                Some(Some(connection)) if connection.id == id => {
                    connection.ask_for(fetch, self.now_ns);
                    self.mark_dirty(index);
                }
                _ => self.subsystem.give_buffer(id, fetch.buffer),
            }
        }
        if self.waiting.is_empty() {
            return worked;
        }
        let releases = self.subsystem.releases();
        if releases != self.releases_seen {
            self.releases_seen = releases;
            self.retries_due = self.waiting.len();
        }
        for _ in 0..self.retries_due.min(RETRIES_A_TURN_MAX) {
            let Some(index) = self.waiting.pop_front() else { break };
            self.retries_due -= 1;
            worked |= self.retry(index);
        }
        self.retries_due = self.retries_due.min(self.waiting.len());
        worked
    }

    fn retry(&mut self, index: usize) -> bool {
        let Some(Some(connection)) = self.connections.get_mut(index) else { return false };
        let before = connection.carry().len();
        let ended = connection.retry(self.now_ns, &mut self.subsystem);
        connection.tell_held(&mut self.subsystem);
        let worked = !connection.waiting || connection.carry().len() < before;
        if connection.waiting {
            self.waiting.push_back(index);
        }
        if ended == Err(End::Host) {
            self.close(index, "ended by the host");
            return true;
        }
        if worked {
            self.update_interest(index);
            self.mark_dirty(index);
        }
        worked
    }
}
