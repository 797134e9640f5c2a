//! The two commands of a fused operation as they come: the first is kept until its second is there, then both are parsed, begun and brought their
//! data.
//!
//! What always holds: a queue keeps one first command at most, and what comes behind it decides what becomes of it; nothing of either begins
//! before both are known to belong together.

use willow_device::reservation::Access as ReservationAccess;
use willow_wire::spec::{Status, SubmissionEntry};

use super::{Fused, Pair};
use crate::account::Use;
use crate::backend::Backend;
use crate::buffer::HEADROOM_BYTES;
use crate::command::{self, Command, Data, Operation};
use crate::queue::{Association, State};
use crate::status::Failure;
use crate::subsystem::{ConnectionId, Next, Subsystem};
use crate::work::Work;

/// FUSE, bits 1:0 of an entry's flags.
const FUSE_MASK: u8 = 3;
const FUSE_FIRST: u8 = 1;
const FUSE_SECOND: u8 = 2;

/// What of a command says that it is part of a fused operation.
#[inline]
pub(crate) fn is_fused(entry: &SubmissionEntry) -> bool {
    entry.flags() & FUSE_MASK != 0
}

/// A first command whose second has not come.
pub(crate) struct FirstHalf {
    entry: SubmissionEntry,
    capsule: Vec<u8>,
}

impl<B: Backend> Subsystem<B> {
    /// A command of a fused operation, or one that comes in the place of a second.
    #[cold]
    pub(crate) fn fused_command(
        &mut self,
        index: u16,
        association: Association,
        entry: &SubmissionEntry,
        capsule: &[u8],
    ) -> Next {
        let Some(queue) = self.queues[usize::from(index)].as_mut() else { return Next::Taken };
        let first = queue.first_half.take();
        if entry.flags() & FUSE_MASK != FUSE_SECOND {
            if let Some(first) = first {
                self.fail(index, &first.entry, Failure::of(Status::ABORTED_MISSING_FUSED));
            }
            match entry.flags() & FUSE_MASK {
                0 => return self.io_command(index, association, entry, capsule),
                FUSE_FIRST => {
                    if let Some(queue) = self.queues[usize::from(index)].as_mut() {
                        queue.first_half = Some(Box::new(FirstHalf { entry: *entry, capsule: capsule.to_vec() }));
                    }
                }
                _ => self.fail(index, entry, Failure::field(1)),
            }
            return Next::Taken;
        }
        let Some(first) = first else {
            self.fail(index, entry, Failure::of(Status::ABORTED_MISSING_FUSED));
            return Next::Taken;
        };
        let commands = match self.parse_fused(association, &first, entry, capsule.len()) {
            Ok(commands) => commands,
            Err((of_first, of_second)) => {
                self.fail(index, &first.entry, of_first);
                self.fail(index, entry, of_second);
                return Next::Taken;
            }
        };
        let capsules = [&first.capsule[..], capsule];
        let mut buffers = [None, None];
        for at in 0..2 {
            let Data::Capsule(_, bytes) = commands[at].data else { continue };
            let Some(taken) = self.take_capsule_buffer(index, bytes) else {
                buffers.into_iter().flatten().for_each(|(buffer, _)| self.give(index, buffer));
                if let Some(queue) = self.queues[usize::from(index)].as_mut() {
                    queue.first_half = Some(first);
                }
                return Next::Wait;
            };
            buffers[at] = Some(taken);
        }
        let is_past_share = buffers.iter().flatten().any(|(_, capsule_bytes)| *capsule_bytes > 0);
        if is_past_share && buffers.iter().any(Option::is_none) {
            // It would wait for data from the host with a buffer that is for what needs none.
            buffers.into_iter().flatten().for_each(|(buffer, _)| self.give(index, buffer));
            let failure = Failure::retryable(Status::COMMAND_INTERRUPTED);
            self.fail(index, &first.entry, failure);
            self.fail(index, entry, failure);
            return Next::Taken;
        }
        let Some(places) = self.begin_fused(index, [&first.entry, entry]) else {
            buffers.into_iter().flatten().for_each(|(buffer, _)| self.give(index, buffer));
            return Next::Taken;
        };
        let Some(queue) = self.queues[usize::from(index)].as_mut() else { return Next::Taken };
        let Operation::FusedWrite(_, durable) = commands[1].operation else { unreachable!("parsed as one") };
        queue.pairs.push(Pair { first: places[0], second: places[1], durable, data: [None, None] });
        for (at, place) in places.into_iter().enumerate() {
            let command = commands[at];
            let Some(queue) = self.queues[usize::from(index)].as_mut() else { return Next::Taken };
            let slot = &mut queue.slots[usize::from(place)];
            (slot.direction, slot.lba) = (command.operation.direction(), command.operation.lba());
            let cid = slot.cid;
            let (Data::Capsule(_, bytes) | Data::Fetch(bytes)) = command.data else {
                // One has failed, and this one with it; nothing else has no data.
                debug_assert!(false, "a fused command has data");
                continue;
            };
            slot.bytes = bytes;
            match (command.data, buffers[at].take()) {
                (Data::Capsule(from, bytes), Some((mut buffer, capsule_bytes))) => {
                    slot.capsule_bytes = capsule_bytes;
                    queue.capsules_bytes += capsule_bytes;
                    let (from, bytes) = (from as usize, bytes as usize);
                    buffer[HEADROOM_BYTES..HEADROOM_BYTES + bytes].copy_from_slice(&capsules[at][from..from + bytes]);
                    self.execute(index, place, command, buffer);
                }
                _ => match self.take_buffer(index, bytes, Use::Fetch) {
                    Some(buffer) => {
                        let generation = self.queues[usize::from(index)].as_ref().map_or(0, |queue| queue.generation);
                        if let Some(fetch) = self.start(index, place, cid, command, None, buffer) {
                            self.fetches.push_back((ConnectionId { index, generation }, fetch));
                        }
                    }
                    None => self.wait_for_buffer(index, place, command, Use::Fetch),
                },
            }
        }
        Next::Taken
    }

    /// Both commands; or what each of them ends with.
    fn parse_fused(
        &self,
        association: Association,
        first: &FirstHalf,
        second: &SubmissionEntry,
        capsule_bytes: usize,
    ) -> Result<[Command; 2], (Failure, Failure)> {
        let other_failed = Failure::of(Status::ABORTED_FAILED_FUSED);
        let controller = self.controllers.get(&association.controller).filter(|one| one.is_ready());
        let Some(controller) = controller else {
            let failure = Failure::of(Status::COMMAND_SEQUENCE_ERROR);
            return Err((failure, failure));
        };
        let plain = |entry: &SubmissionEntry| {
            let mut entry = *entry;
            entry.0[1] &= !FUSE_MASK;
            entry
        };
        let found = self.find_active(association.controller, first.entry.nsid()).map(|place| &self.namespaces[place]);
        let view = found.map(|entry| entry.view);
        let compare = command::parse(&plain(&first.entry), view, first.capsule.len())
            .map_err(|failure| (failure, other_failed))?;
        let write = command::parse(&plain(second), view, capsule_bytes).map_err(|failure| (other_failed, failure))?;
        let (Some(entry), Operation::Compare(blocks), Operation::Write(same, durable)) =
            (found, compare.operation, write.operation)
        else {
            // Compare and Write is the only fused operation that there is.
            return Err((Failure::field(0), other_failed));
        };
        if first.entry.nsid() != second.nsid() || blocks != same {
            return Err((Failure::field(40), other_failed));
        }
        if controller.access.state == crate::access::Access::Inaccessible {
            let failure = Failure::retryable(Status::ANA_INACCESSIBLE);
            return Err((failure, failure));
        }
        let stripe_bytes = u64::from(entry.geometry.stripe_bytes);
        if blocks.start / stripe_bytes != (blocks.start + blocks.bytes - 1) / stripe_bytes {
            return Err((Failure::at(Status::ATOMIC_WRITE_UNIT_EXCEEDED, 48), other_failed));
        }
        if let Some(reservation) = &entry.reservation
            && !reservation.permits(&controller.host_id, ReservationAccess::Write)
        {
            let failure = Failure::of(Status::RESERVATION_CONFLICT);
            return Err((failure, failure));
        }
        Ok([
            Command { operation: Operation::FusedCompare(blocks), ..compare },
            Command { operation: Operation::FusedWrite(blocks, durable), ..write },
        ])
    }

    /// Slots for both commands; `None`: one of them has an identifier that is under way, and both have failed.
    fn begin_fused(&mut self, index: u16, entries: [&SubmissionEntry; 2]) -> Option<[u16; 2]> {
        let Some(first) = self.begin(index, entries[0]) else {
            self.fail(index, entries[1], Failure::of(Status::ABORTED_FAILED_FUSED));
            return None;
        };
        let Some(second) = self.begin(index, entries[1]) else {
            self.complete(index, first, Status::ABORTED_FAILED_FUSED.with_do_not_retry(), 0, None);
            return None;
        };
        for place in [first, second] {
            if let Some(slot) = self.slot_mut(index, place) {
                slot.paired = true;
            }
        }
        Some([first, second])
    }

    /// The data of one of both commands are there.
    #[cold]
    pub(crate) fn half_of_fused(&mut self, index: u16, place: u16, command: Command, buffer: Vec<u8>) {
        let Some(queue) = self.queues[usize::from(index)].as_mut() else { return };
        let found = queue.pairs.iter().position(|pair| pair.first == place || pair.second == place);
        let Some(found) = found else {
            // The other one has failed meanwhile.
            let status = match queue.slots[usize::from(place)].work {
                Work::FusedBroken(status) => status,
                _ => Status::ABORTED_FAILED_FUSED.with_do_not_retry(),
            };
            return self.give_up(index, place, status, buffer);
        };
        let pair = &mut queue.pairs[found];
        pair.data[usize::from(pair.second == place)] = Some(buffer);
        queue.slots[usize::from(place)].state = State::Held;
        if pair.data.iter().any(Option::is_none) {
            return;
        }
        let Pair { first, second, durable, data } = queue.pairs.remove(found);
        let connection = ConnectionId { index, generation: queue.generation };
        let (Operation::FusedCompare(blocks) | Operation::FusedWrite(blocks, _)) = command.operation else {
            unreachable!("half of a fused operation")
        };
        let (nsid, generation) = (command.nsid, command.generation);
        self.take_range(Fused { connection, first, second, nsid, generation, blocks, durable, data });
    }
}
