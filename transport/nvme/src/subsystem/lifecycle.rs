//! A command's life in its queue: it takes a slot, is in the device or not, and ends with one completion.
//!
//! What always holds: a slot that was taken is given back with its completion, and by nothing else but its queue's end; what is in the
//! device is counted.

use super::{Completion, ConnectionId, Payload, Subsystem};
use crate::backend::Backend;
use crate::config::planted;
use crate::log_page::ErrorEntry;
use crate::queue::State;
use crate::statistics::*;
use crate::status::{self, Failure};
use willow_device::{CommandSet, HostCompletion};
use willow_wire::spec::{CompletionEntry, Status, SubmissionEntry};

impl<B: Backend> Subsystem<B> {
    /// Takes a command off its submission queue: identifier, head, count. `None`: one with its identifier is under way.
    #[inline]
    pub(crate) fn begin(&mut self, index: u16, entry: &SubmissionEntry) -> Option<u16> {
        let now_ns = self.now_ns;
        let reuses = planted!(self, ReusesIdentifiers);
        let queue = self.queues[usize::from(index)].as_mut()?;
        if !queue.take_identifier(entry.cid()) && !reuses {
            // A host that shuts down may take its event requests back without an Abort, and use their identifiers again
            // (SPDK does): such a request is given up.
            let place = queue.find(entry.cid());
            let event = place.filter(|place| queue.slots[usize::from(*place)].state == State::Event);
            let (Some(place), Some(association)) = (event, queue.association) else {
                self.fail(index, entry, Failure::at(Status::COMMAND_ID_CONFLICT, 2));
                return None;
            };
            queue.free_slot(place);
            queue.take_identifier(entry.cid());
            if let Some(controller) = self.controllers.get_mut(&association.controller) {
                controller.event_requests.retain(|other| *other != place);
            }
        }
        let queue = self.queues[usize::from(index)].as_mut()?;
        queue.in_flight += 1;
        queue.advance();
        let place = queue.take_slot();
        let slot = &mut queue.slots[usize::from(place)];
        slot.cid = entry.cid();
        slot.opcode = entry.opcode();
        slot.internal = false;
        slot.nsid = entry.nsid();
        slot.lba = 0;
        slot.bytes = 0;
        slot.buffer_bytes = 0;
        slot.submitted = false;
        slot.paired = false;
        slot.start_ns = now_ns;
        slot.direction = Direction::Other;
        // Whoever takes it on says what it is; until then it is the device's.
        slot.state = State::Device;
        Some(place)
    }

    /// Ends a command that was begun.
    #[inline]
    pub(crate) fn complete(&mut self, index: u16, place: u16, status: Status, result: u64, payload: Option<Payload>) {
        let Some(queue) = self.queues[usize::from(index)].as_mut() else { return };
        let slot = &queue.slots[usize::from(place)];
        if slot.internal {
            queue.free_slot(place);
            return;
        }
        let is_paired = slot.paired;
        let elapsed_ns = self.now_ns.saturating_sub(slot.start_ns);
        let waits = matches!(slot.state, State::Event | State::Parked);
        let (cid, nsid, direction, bytes, opcode, lba) =
            (slot.cid, slot.nsid, slot.direction, slot.bytes, slot.opcode, slot.lba);
        queue.free_slot(place);
        queue.commands += 1;
        if !waits {
            queue.latency.record(elapsed_ns);
        }
        let Some(association) = queue.association else { return };
        let mut status = status;
        if association.qid != 0
            && !waits
            && let Some(found) = self.find(nsid)
        {
            let counters = &mut self.namespaces[found].counters;
            if status.is_success() || status::is_answer(status) {
                counters.record(direction, u64::from(bytes), elapsed_ns);
            } else {
                counters.errors += 1;
                counters.media_errors += u64::from(status::is_media_error(status));
            }
        }
        if !status.is_success() && !status::is_answer(status) {
            let csi = u8::from(self.find(nsid).is_some_and(|found| self.namespaces[found].view.set == CommandSet::Kv));
            self.log_error(
                index,
                ErrorEntry { sqid: association.qid, cid, status, byte: 0xffff, lba, nsid, csi, opcode },
            );
            status = status.with_more();
        }
        // The first command of a fused operation is answered before the second.
        let is_second = is_paired && self.is_second_of_fused(index, place);
        if is_second {
            self.pair_broken(index, place, status);
        }
        self.push_completion(index, cid, status, result, payload);
        if is_paired && !is_second {
            self.pair_broken(index, place, status);
        }
        if !self.exclusives.are_none() {
            self.fused_slot_ended(index, place);
        }
    }

    /// Answers a command that was not begun.
    #[cold]
    pub(crate) fn fail(&mut self, index: u16, entry: &SubmissionEntry, failure: Failure) {
        let Some(queue) = self.queues[usize::from(index)].as_mut() else { return };
        queue.commands += 1;
        queue.advance();
        let sqid = queue.association.map_or(0, |association| association.qid);
        let nsid = entry.nsid();
        if sqid != 0
            && let Some(found) = self.find(nsid)
        {
            self.namespaces[found].counters.errors += 1;
        }
        self.log_error(
            index,
            ErrorEntry {
                sqid,
                cid: entry.cid(),
                status: failure.status,
                byte: failure.byte,
                lba: if sqid != 0 { entry.lba() } else { 0 },
                nsid,
                csi: 0,
                opcode: entry.opcode(),
            },
        );
        let status = if self.queues[usize::from(index)].as_ref().is_some_and(|queue| queue.association.is_some()) {
            failure.status.with_more()
        } else {
            failure.status
        };
        self.push_completion(index, entry.cid(), status, u64::from(failure.result), None);
    }

    pub(super) fn log_error(&mut self, index: u16, entry: ErrorEntry) {
        let Some(queue) = self.queues[usize::from(index)].as_mut() else { return };
        queue.errors += 1;
        let cntlid = queue.association.map(|association| association.controller);
        tracing::info!(
            controller = cntlid, queue = entry.sqid, cid = entry.cid, opcode = entry.opcode, nsid = entry.nsid,
            lba = entry.lba, byte = entry.byte, status = %entry.status, "command failed"
        );
        if let Some(controller) = cntlid.and_then(|cntlid| self.controllers.get_mut(&cntlid)) {
            controller.error_log.push(entry);
            self.error_entries += 1;
        }
    }

    #[inline]
    pub(super) fn push_completion(
        &mut self,
        index: u16,
        cid: u16,
        status: Status,
        result: u64,
        payload: Option<Payload>,
    ) {
        let Some(queue) = self.queues[usize::from(index)].as_mut() else { return };
        queue.completions += 1;
        let flow_control = queue.association.is_none_or(|association| association.flow_control);
        let head = queue.association.map_or(0, |association| association.head);
        self.completions.push_back(Completion {
            connection: ConnectionId { index, generation: queue.generation },
            entry: CompletionEntry { result, sqhd: head, sqid: 0, cid, status },
            payload,
            entry_optional: !flow_control,
        });
    }

    /// Counts a slot's request that the device now has.
    #[inline]
    pub(crate) fn count_in_device(&mut self, index: u16, place: u16, account: u16) {
        if self.accounts.in_device() == 0 {
            self.busy_since_ns = self.now_ns;
        }
        self.accounts.entered_device(account);
        if let Some(queue) = self.queues[usize::from(index)].as_mut() {
            let slot = &mut queue.slots[usize::from(place)];
            (slot.state, slot.submitted) = (State::Device, true);
        }
        self.submitted = true;
    }

    /// A request was taken out of its account: the device may be at rest now.
    #[inline]
    pub(crate) fn count_out_of_device(&mut self) {
        if self.accounts.in_device() == 0 {
            self.busy_ns += self.now_ns.saturating_sub(self.busy_since_ns);
        }
    }

    pub(super) fn device_completed(&mut self, completion: HostCompletion) {
        let (index, generation) = ((completion.tag >> 16) as u16, (completion.tag >> 32) as u16);
        let place = completion.tag as u16;
        if self.timed {
            self.backend.delivered(self.now_ns, completion.at_ns);
        }
        let connection = ConnectionId { index, generation };
        let known = self.queue(connection).is_some_and(|queue| {
            queue.association.is_some_and(|association| association.hre == completion.hre)
                && queue.slots.get(usize::from(place)).is_some_and(|slot| slot.submitted)
        });
        if !known {
            // Of a queue that went since.
            let (hre, tag) = (completion.hre, completion.tag);
            self.orphan_ended(hre, tag, completion.buffer);
            return;
        }
        if let Some(queue) = self.queues[usize::from(index)].as_mut() {
            queue.slots[usize::from(place)].submitted = false;
            self.accounts.left_device(queue.account);
            self.count_out_of_device();
        }
        self.answered(index, place, completion);
    }
}
