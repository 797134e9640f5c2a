//! Fused Compare and Write (NVMe Base 3.4.2, NVM 3.2.1): two commands, one behind the other in a submission queue, that are one operation: nothing
//! else that hosts write to those blocks comes between the comparison and the write.
//!
//! What always holds:
//! - both commands are answered, the first before the second; where one fails before the comparison, so does the other;
//! - while a range is *taken* by a fused operation, commands of hosts that write there have ended, or wait in [`Exclusives::held`]: what was under way
//!   when the range was taken is waited for (its *blockers*), also where its queue has gone since;
//! - a range stays taken until the device has answered the write, whoever has disconnected;
//! - a range is at most a stripe, so that its write is as whole for readers as any other (NACWU tells so); what waits is bounded by the queues' entries.
//!
//! What goes past NVMe commands (files directly, apps' own RPCs) is not held up.

use willow_device::{HostCompletion, HreId};
use willow_wire::spec::opcode::nvm;
use willow_wire::spec::{Status, SubmissionEntry};

use base_io_host::wire::handler;

use crate::account::Use;
use crate::backend::Backend;
use crate::buffer::HEADROOM_BYTES;
use crate::command::{self, Blocks, Command, Data, Durable, Operation};
use crate::config::planted;
use crate::io::{NOT_READY, block_rpcs, block_status, fua};
use crate::queue::{Association, State};
use crate::status::Failure;
use crate::subsystem::{ConnectionId, Next, Subsystem};
use crate::work::Work;
use willow_device::reservation::Access as ReservationAccess;

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

/// Two commands whose data are on their way, by their slots.
pub(crate) struct Pair {
    first: u16,
    second: u16,
    durable: Durable,
    data: [Option<Vec<u8>>; 2],
}

/// A request of a host in the device: its endpoint and its tag.
type Key = (HreId, u64);

/// A fused operation whose data are there.
struct Fused {
    connection: ConnectionId,
    first: u16,
    second: u16,
    nsid: u32,
    generation: u32,
    blocks: Blocks,
    durable: Durable,
    /// What is compared, and what is written: taken when the device gets it.
    data: [Option<Vec<u8>>; 2],
}

/// How far an operation is that has taken its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It waits for what was under way before.
    Draining,
    /// The device compares.
    Comparing,
    /// The device writes.
    Writing,
    /// It is over, and its range is to be given up.
    Ended,
}

/// A range that an operation has taken.
struct Taken {
    /// Of the operation's requests.
    key: Key,
    nsid: u32,
    blocks: Blocks,
    blockers: Vec<Key>,
    stage: Stage,
    /// `None`: its queue has gone.
    fused: Option<Fused>,
}

/// What waits for a range.
enum Held {
    Fused(Fused),
    Command { connection: ConnectionId, place: u16, command: Command, buffer: Vec<u8> },
}

impl Held {
    fn connection(&self) -> ConnectionId {
        match self {
            Held::Fused(fused) => fused.connection,
            Held::Command { connection, .. } => *connection,
        }
    }

    fn into_buffers(self) -> Vec<Vec<u8>> {
        match self {
            Held::Fused(fused) => fused.data.into_iter().flatten().collect(),
            Held::Command { buffer, .. } => vec![buffer],
        }
    }
}

/// The ranges that are taken, and what waits for them, oldest first.
#[derive(Default)]
pub(crate) struct Exclusives {
    taken: Vec<Taken>,
    held: Vec<Held>,
    /// Something may go on.
    due: bool,
}

fn overlap(one: &Blocks, other: &Blocks) -> bool {
    one.start < other.start + other.bytes && other.start < one.start + one.bytes
}

impl Exclusives {
    /// True where no fused operation is under way.
    #[inline]
    pub fn are_none(&self) -> bool {
        self.taken.is_empty()
    }

    /// True where [`Subsystem::settle_fused`] has something to do.
    #[inline]
    pub fn are_due(&self) -> bool {
        self.due
    }

    /// Whether a command that writes to a namespace, there or (`None`) anywhere, has to wait.
    fn keep(&self, nsid: u32, blocks: Option<&Blocks>) -> bool {
        self.taken.iter().any(|taken| taken.nsid == nsid && blocks.is_none_or(|blocks| overlap(&taken.blocks, blocks)))
    }

    /// What is under way no longer is.
    fn ended(&mut self, key: Key) {
        for taken in &mut self.taken {
            taken.blockers.retain(|blocker| *blocker != key);
            if taken.key == key && taken.fused.is_none() {
                taken.stage = Stage::Ended;
            }
        }
        self.due = true;
    }
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
            return self.give_up(index, place, Status::ABORTED_FAILED_FUSED.with_do_not_retry(), buffer);
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

    /// Takes the operation's range, or lets it wait for that.
    fn take_range(&mut self, fused: Fused) {
        if self.exclusives.keep(fused.nsid, Some(&fused.blocks)) && !planted!(self, FusedTakesNothing) {
            return self.exclusives.held.push(Held::Fused(fused));
        }
        let Some(key) = self.key(fused.connection.index, fused.second) else {
            debug_assert!(false, "a fused operation of a queue that is gone");
            let index = fused.connection.index;
            return fused.data.into_iter().flatten().for_each(|buffer| self.give(index, buffer));
        };
        let blockers = self.blockers(fused.nsid, &fused.blocks);
        let (nsid, blocks) = (fused.nsid, fused.blocks);
        self.exclusives.taken.push(Taken { key, nsid, blocks, blockers, stage: Stage::Draining, fused: Some(fused) });
        self.exclusives.due = true;
    }

    fn key(&self, index: u16, place: u16) -> Option<Key> {
        let association = self.queues[usize::from(index)].as_ref()?.association?;
        Some((association.hre, self.tag(index, place)))
    }

    /// What is under way that writes there.
    fn blockers(&self, nsid: u32, blocks: &Blocks) -> Vec<Key> {
        let shift = self.find(nsid).map_or(0, |place| self.namespaces[place].view.block_shift);
        let mut keys: Vec<Key> = self.orphans.keys().map(|(hre, tag)| (HreId(*hre), *tag)).collect();
        for (index, queue) in (0u16..).zip(&self.queues) {
            let Some(queue) = queue else { continue };
            for (place, slot) in (0u16..).zip(&queue.slots) {
                let is_under_way = matches!(slot.state, State::Device | State::Ready) && !slot.internal;
                let writes = match slot.opcode {
                    nvm::WRITE => {
                        let (lba, start) = (slot.lba, slot.lba << shift);
                        overlap(&Blocks { lba, start, bytes: slot.bytes.into() }, blocks)
                    }
                    // Of these the slot does not say where.
                    nvm::WRITE_ZEROES | nvm::DATASET_MANAGEMENT | nvm::COPY => true,
                    _ => false,
                };
                if is_under_way && writes && slot.nsid == nsid {
                    keys.extend(self.key(index, place));
                }
            }
        }
        keys
    }

    /// Whether a command of a block namespace has to wait for a range; then it does.
    #[cold]
    pub(crate) fn hold_for_fused(
        &mut self,
        index: u16,
        place: u16,
        command: Command,
        buffer: Vec<u8>,
    ) -> Option<Vec<u8>> {
        let waits = match &command.operation {
            Operation::Write(blocks, _) | Operation::WriteZeroes { blocks, .. } => {
                self.exclusives.keep(command.nsid, Some(blocks))
            }
            Operation::DatasetManagement { .. } | Operation::Copy { .. } | Operation::CopyRanges => {
                self.exclusives.keep(command.nsid, None)
            }
            _ => false,
        };
        if !waits || planted!(self, FusedTakesNothing) {
            return Some(buffer);
        }
        let Some(queue) = self.queues[usize::from(index)].as_mut() else { return Some(buffer) };
        queue.slots[usize::from(place)].state = State::Held;
        let connection = ConnectionId { index, generation: queue.generation };
        self.exclusives.held.push(Held::Command { connection, place, command, buffer });
        None
    }

    /// Goes on with what can: gives up ranges whose operations are over, and begins those that wait for nothing any more.
    #[cold]
    pub(crate) fn settle_fused(&mut self) {
        while std::mem::take(&mut self.exclusives.due) {
            let taken = self.exclusives.taken.len();
            self.exclusives.taken.retain(|one| one.stage != Stage::Ended);
            if self.exclusives.taken.len() < taken {
                for held in std::mem::take(&mut self.exclusives.held) {
                    match held {
                        Held::Fused(fused) => self.take_range(fused),
                        Held::Command { connection, place, command, buffer } => {
                            let index = connection.index;
                            match self.refusal(index, &command) {
                                Some(status) => self.give_up(index, place, status, buffer),
                                None => self.execute(index, place, command, buffer),
                            }
                        }
                    }
                }
            }
            let is_free = |one: &Taken| one.stage == Stage::Draining && one.blockers.is_empty();
            while let Some(at) = self.exclusives.taken.iter().position(is_free) {
                self.ask_for(at, Stage::Comparing);
            }
        }
    }

    /// Has the device compare, or write.
    fn ask_for(&mut self, at: usize, stage: Stage) {
        let taken = &mut self.exclusives.taken[at];
        let key = taken.key;
        taken.stage = stage;
        let Some(fused) = taken.fused.as_mut() else {
            taken.stage = Stage::Ended;
            self.exclusives.due = true;
            return;
        };
        let (index, place, nsid, blocks) = (fused.connection.index, fused.second, fused.nsid, fused.blocks);
        let (handler, flags, work) = match stage {
            Stage::Comparing => (handler::COMPARE, 0, Work::FusedCompare),
            _ => (handler::WRITE, fua(fused.durable), Work::FusedWrite),
        };
        let buffer = fused.data[usize::from(stage == Stage::Writing)].take().unwrap_or_default();
        let operation = Operation::FusedWrite(blocks, fused.durable);
        let command = Command { nsid, generation: fused.generation, operation, data: Data::None };
        if let Some(status) = self.refusal(index, &command) {
            self.give(index, buffer);
            return self.end_fused(key, status, status);
        }
        let found = self.find(nsid).and_then(|found| Some((self.app_of(found)?, self.namespaces[found].geometry)));
        let Some((app, geometry)) = found else {
            self.give(index, buffer);
            return self.end_fused(key, NOT_READY, NOT_READY);
        };
        let rpcs = block_rpcs(app, &geometry, handler, &blocks, flags);
        let payload_bytes = HEADROOM_BYTES as u32 + blocks.bytes as u32;
        self.submit(index, place, rpcs, buffer, payload_bytes, 0, work);
    }

    /// The device has compared, or written.
    #[cold]
    pub(crate) fn fused_answered(&mut self, index: u16, place: u16, wrote: bool, completion: HostCompletion) {
        let status = block_status(completion.outcome, if wrote { nvm::WRITE } else { nvm::COMPARE });
        self.give(index, completion.buffer);
        let Some(key) = self.key(index, place) else { return };
        let Some(at) = self.exclusives.taken.iter().position(|taken| taken.key == key) else {
            debug_assert!(false, "a fused operation has its range until it is answered");
            return self.complete(index, place, Status::INTERNAL_ERROR, 0, None);
        };
        match (status.is_success(), wrote) {
            (true, false) => self.ask_for(at, Stage::Writing),
            (false, false) => self.end_fused(key, status, Status::ABORTED_FAILED_FUSED.with_do_not_retry()),
            (_, true) => self.end_fused(key, Status::SUCCESS, status),
        }
    }

    /// Answers both commands, and gives the range up.
    fn end_fused(&mut self, key: Key, of_first: Status, of_second: Status) {
        let Some(taken) = self.exclusives.taken.iter_mut().find(|taken| taken.key == key) else { return };
        taken.stage = Stage::Ended;
        self.exclusives.due = true;
        let Some(fused) = taken.fused.take() else { return };
        self.answer_both(fused, Some(of_first), Some(of_second));
    }

    /// Answers the commands of an operation that are not answered yet, the first before the second.
    fn answer_both(&mut self, fused: Fused, of_first: Option<Status>, of_second: Option<Status>) {
        let index = fused.connection.index;
        fused.data.into_iter().flatten().for_each(|buffer| self.give(index, buffer));
        for (place, status) in [(fused.first, of_first), (fused.second, of_second)] {
            let Some(status) = status else { continue };
            if let Some(slot) = self.slot_mut(index, place) {
                slot.paired = false;
            }
            self.complete(index, place, status, 0, None);
        }
    }

    /// A command of a fused operation has ended by itself: so does the other.
    #[cold]
    pub(crate) fn pair_broken(&mut self, index: u16, place: u16) {
        let failed = Status::ABORTED_FAILED_FUSED.with_do_not_retry();
        let Some(queue) = self.queues[usize::from(index)].as_mut() else { return };
        if let Some(at) = queue.pairs.iter().position(|pair| pair.first == place || pair.second == place) {
            let Pair { first, second, data, .. } = queue.pairs.remove(at);
            let other = if first == place { second } else { first };
            let slot = &mut queue.slots[usize::from(other)];
            slot.paired = false;
            // One whose data are still on their way ends when they are there.
            let is_there = slot.state == State::Held;
            data.into_iter().flatten().for_each(|buffer| self.give(index, buffer));
            if is_there {
                self.complete(index, other, failed, 0, None);
            }
            return;
        }
        let connection = ConnectionId { index, generation: queue.generation };
        let is_it = |fused: &Fused| fused.connection == connection && (fused.first == place || fused.second == place);
        let taken = self.exclusives.taken.iter_mut().find(|taken| taken.fused.as_ref().is_some_and(is_it));
        let of_taken = taken.and_then(|taken| {
            taken.stage = Stage::Ended;
            taken.fused.take()
        });
        let is_held = |held: &Held| matches!(held, Held::Fused(fused) if is_it(fused));
        let fused = match of_taken {
            Some(fused) => Some(fused),
            None => match self.exclusives.held.iter().position(is_held) {
                Some(at) => match self.exclusives.held.remove(at) {
                    Held::Fused(fused) => Some(fused),
                    Held::Command { .. } => None,
                },
                None => None,
            },
        };
        self.exclusives.due = true;
        if let Some(fused) = fused {
            let (of_first, of_second) = (fused.first != place, fused.second != place);
            self.answer_both(fused, of_first.then_some(failed), of_second.then_some(failed));
        }
    }

    /// A command has ended, by which a fused operation may be held up.
    #[cold]
    pub(crate) fn fused_slot_ended(&mut self, index: u16, place: u16) {
        if let Some(key) = self.key(index, place) {
            self.exclusives.ended(key);
        }
    }

    /// What the device had of a queue that is gone has ended.
    #[cold]
    pub(crate) fn fused_orphan_ended(&mut self, hre: HreId, tag: u64) {
        self.exclusives.ended((hre, tag));
    }

    /// A queue goes, and what the device has of it is among the orphans.
    pub(crate) fn abandon_fused(&mut self, connection: ConnectionId) {
        let index = connection.index;
        let Some(queue) = self.queues[usize::from(index)].as_mut() else { return };
        queue.first_half = None;
        let mut buffers: Vec<Vec<u8>> =
            std::mem::take(&mut queue.pairs).into_iter().flat_map(|pair| pair.data).flatten().collect();
        let held = std::mem::take(&mut self.exclusives.held);
        let (gone, kept): (Vec<Held>, Vec<Held>) = held.into_iter().partition(|held| held.connection() == connection);
        self.exclusives.held = kept;
        buffers.extend(gone.into_iter().flat_map(Held::into_buffers));
        let is_orphan =
            |orphans: &std::collections::BTreeMap<(u32, u64), _>, key: Key| orphans.contains_key(&(key.0.0, key.1));
        for taken in &mut self.exclusives.taken {
            let is_of_it = |key: &Key| (key.1 >> 16) as u16 == index && (key.1 >> 32) as u16 == connection.generation;
            taken.blockers.retain(|key| !is_of_it(key) || is_orphan(&self.orphans, *key));
            if taken.fused.as_ref().is_some_and(|fused| fused.connection == connection) {
                buffers.extend(taken.fused.take().into_iter().flat_map(|fused| fused.data).flatten());
                if !is_orphan(&self.orphans, taken.key) {
                    taken.stage = Stage::Ended;
                }
            }
        }
        self.exclusives.due = true;
        buffers.into_iter().for_each(|buffer| self.give(index, buffer));
    }
}
