//! Fused Compare and Write (NVMe Base 3.4.2, NVM 3.2.1): two commands, one behind the other in a submission queue, that are one operation: nothing
//! else that hosts write to those blocks comes between the comparison and the write.
//!
//! What always holds:
//! - both commands are answered, the first before the second where the operation was begun; where one fails before the comparison, so does the
//!   other;
//! - while a range is *taken* by a fused operation, commands of hosts that write there have ended, or wait ([`Taken::held`]): what the device had when
//!   the range was taken is waited for (its *blockers*), also where its queue has gone since; what waited for a place there goes on waiting;
//! - a range stays taken until the device has answered the write, whoever has disconnected;
//! - a range is at most a stripe, so that its write is as whole for readers as any other (NACWU tells so);
//! - a host has [`FUSED_RANGES_MAX`] ranges at most, and its other fused operations wait in its own line: what others' commands are compared with
//!   is short. What waits is bounded by the queues' entries. What is under way is looked through once for all ranges that were new when that
//!   began, [`FUSED_LOOKS_A_TURN_MAX`] of it in a turn of the device: what begins meanwhile and writes there is held.
//!
//! What goes past NVMe commands (files directly, apps' own RPCs) is not held up.

mod halves;
mod search;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use willow_device::{HostCompletion, HreId};
use willow_wire::spec::Status;
use willow_wire::spec::opcode::nvm;

use base_io_host::wire::handler;

pub(crate) use halves::{FirstHalf, is_fused};

use crate::account::Ready;
use crate::backend::Backend;
use crate::buffer::HEADROOM_BYTES;
use crate::command::{Blocks, Command, Data, Durable, Operation};
use crate::config::{FUSED_LOOKS_A_TURN_MAX, FUSED_RANGES_MAX, planted};
use crate::io::{NOT_READY, block_rpcs, block_status, fua};
use crate::queue::State;
use crate::subsystem::{ConnectionId, Subsystem};
use crate::work::Work;

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
    /// What was under way before has not been looked for.
    Fresh,
    /// It is being looked for.
    Searching,
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
pub(crate) struct Taken {
    /// Of the operation's requests.
    key: Key,
    /// Whose it is.
    account: u16,
    nsid: u32,
    blocks: Blocks,
    blockers: BTreeSet<Key>,
    stage: Stage,
    /// `None`: its queue has gone.
    fused: Option<Fused>,
    /// What waits for the range, oldest first.
    held: VecDeque<Held>,
}

/// What waits for a range.
enum Held {
    Fused(Fused),
    Command {
        connection: ConnectionId,
        place: u16,
        command: Command,
        buffer: Vec<u8>,
    },
    /// It waited for a place in the device; `blocks`: where it writes, `None`: anywhere in the namespace.
    Ready {
        ready: Ready,
        blocks: Option<Blocks>,
    },
}

impl Held {
    fn connection(&self) -> ConnectionId {
        match self {
            Held::Fused(fused) => fused.connection,
            Held::Command { connection, .. } => *connection,
            Held::Ready { ready, .. } => ready.connection,
        }
    }

    fn into_buffers(self) -> Vec<Vec<u8>> {
        match self {
            Held::Fused(fused) => fused.data.into_iter().flatten().collect(),
            Held::Command { buffer, .. } => vec![buffer],
            Held::Ready { ready, .. } => vec![ready.request.buffer],
        }
    }
}

/// The ranges that are taken, and what waits for them.
#[derive(Default)]
pub(crate) struct Exclusives {
    taken: Vec<Taken>,
    /// Fused operations past their host's share of ranges, by account.
    waiting: BTreeMap<u16, VecDeque<Fused>>,
    /// Something may go on.
    due: bool,
    /// The queue that is to be looked at next, while what is under way is looked through.
    next_queue: Option<usize>,
}

fn overlap(one: &Blocks, other: &Blocks) -> bool {
    one.start < other.start + other.bytes && other.start < one.start + one.bytes
}

/// True for commands that write to a block namespace.
pub(crate) fn writes(opcode: u8) -> bool {
    matches!(opcode, nvm::WRITE | nvm::WRITE_UNCORRECTABLE | nvm::WRITE_ZEROES | nvm::DATASET_MANAGEMENT | nvm::COPY)
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

    /// The range for which a command has to wait that writes to a namespace, there or (`None`) anywhere.
    fn keeps(&mut self, nsid: u32, blocks: Option<&Blocks>) -> Option<&mut Taken> {
        self.taken
            .iter_mut()
            .find(|taken| taken.nsid == nsid && blocks.is_none_or(|blocks| overlap(&taken.blocks, blocks)))
    }

    /// The range behind which a fused operation waits: one that overlaps, or one for which an older command waits that writes there.
    fn keeps_fused(&mut self, nsid: u32, blocks: &Blocks) -> Option<&mut Taken> {
        let writes_there = |held: &Held| match held {
            Held::Fused(_) => false,
            Held::Ready { blocks: of, .. } => of.as_ref().is_none_or(|of| overlap(of, blocks)),
            Held::Command { command, .. } => match &command.operation {
                Operation::Write(of, _)
                | Operation::WriteUncorrectable(of)
                | Operation::WriteZeroes { blocks: of, .. } => overlap(of, blocks),
                _ => true,
            },
        };
        self.taken
            .iter_mut()
            .find(|taken| taken.nsid == nsid && (overlap(&taken.blocks, blocks) || taken.held.iter().any(writes_there)))
    }

    fn ranges_of(&self, account: u16) -> usize {
        self.taken.iter().filter(|taken| taken.account == account).count()
    }

    /// What is under way no longer is.
    fn ended(&mut self, key: Key) {
        for taken in &mut self.taken {
            taken.blockers.remove(&key);
            if taken.key == key && taken.fused.is_none() {
                taken.stage = Stage::Ended;
            }
        }
        self.due = true;
    }

    /// Takes what waits, of one connection or of one operation, out of all lines.
    fn take_waiting(&mut self, mut is_it: impl FnMut(&Held) -> bool) -> Vec<Held> {
        let mut found = Vec::new();
        for taken in &mut self.taken {
            let (gone, kept): (VecDeque<Held>, VecDeque<Held>) =
                std::mem::take(&mut taken.held).into_iter().partition(&mut is_it);
            taken.held = kept;
            found.extend(gone);
        }
        for line in self.waiting.values_mut() {
            let all = std::mem::take(line).into_iter().map(Held::Fused);
            let (gone, kept): (VecDeque<Held>, VecDeque<Held>) = all.partition(&mut is_it);
            let fused = |held| if let Held::Fused(fused) = held { Some(fused) } else { None };
            *line = kept.into_iter().filter_map(fused).collect();
            found.extend(gone);
        }
        self.waiting.retain(|_, line| !line.is_empty());
        found
    }
}

impl<B: Backend> Subsystem<B> {
    /// Takes the operation's range, or lets it wait for that. True where it has the range.
    fn take_range(&mut self, fused: Fused) -> bool {
        let index = fused.connection.index;
        let account = self.queues[usize::from(index)].as_ref().map(|queue| queue.account);
        let (Some(key), Some(account)) = (self.key(index, fused.second), account) else {
            debug_assert!(false, "a fused operation of a queue that is gone");
            fused.data.into_iter().flatten().for_each(|buffer| self.give(index, buffer));
            return false;
        };
        let is_open = planted!(self, FusedTakesNothing);
        if let Some(taken) = self.exclusives.keeps_fused(fused.nsid, &fused.blocks).filter(|_| !is_open) {
            taken.held.push_back(Held::Fused(fused));
            return false;
        }
        if self.exclusives.ranges_of(account) >= FUSED_RANGES_MAX {
            self.exclusives.waiting.entry(account).or_default().push_back(fused);
            return false;
        }
        let (nsid, blocks) = (fused.nsid, fused.blocks);
        let (blockers, held) = (BTreeSet::new(), VecDeque::new());
        let stage = Stage::Fresh;
        self.exclusives.taken.push(Taken { key, account, nsid, blocks, blockers, stage, fused: Some(fused), held });
        self.exclusives.due = true;
        true
    }

    fn key(&self, index: u16, place: u16) -> Option<Key> {
        let association = self.queues[usize::from(index)].as_ref()?.association?;
        Some((association.hre, self.tag(index, place)))
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
        let is_open = planted!(self, FusedTakesNothing);
        let taken = match &command.operation {
            Operation::Write(blocks, _)
            | Operation::WriteUncorrectable(blocks)
            | Operation::WriteZeroes { blocks, .. } => self.exclusives.keeps(command.nsid, Some(blocks)),
            Operation::DatasetManagement { .. } | Operation::Copy { .. } | Operation::CopyRanges => {
                self.exclusives.keeps(command.nsid, None)
            }
            _ => None,
        };
        let (Some(taken), Some(queue)) = (taken.filter(|_| !is_open), self.queues[usize::from(index)].as_mut()) else {
            return Some(buffer);
        };
        queue.slots[usize::from(place)].state = State::Held;
        let connection = ConnectionId { index, generation: queue.generation };
        taken.held.push_back(Held::Command { connection, place, command, buffer });
        None
    }

    /// Goes on with what can: gives up ranges whose operations are over, and begins those that wait for nothing any more.
    #[cold]
    pub(crate) fn settle_fused(&mut self) {
        let (mut left, mut goes_on) = (FUSED_LOOKS_A_TURN_MAX, false);
        while std::mem::take(&mut self.exclusives.due) {
            while let Some(at) = self.exclusives.taken.iter().position(|one| one.stage == Stage::Ended) {
                let held = self.exclusives.taken.swap_remove(at).held;
                self.let_go(held);
            }
            // Whoever has a range to spare takes the next of its line.
            let lines: Vec<u16> = self.exclusives.waiting.keys().copied().collect();
            for account in lines {
                while self.exclusives.ranges_of(account) < FUSED_RANGES_MAX
                    && let Some(next) = self.exclusives.waiting.get_mut(&account).and_then(VecDeque::pop_front)
                {
                    self.take_range(next);
                }
            }
            self.exclusives.waiting.retain(|_, line| !line.is_empty());
            goes_on = self.find_blockers(&mut left);
            let is_free = |one: &Taken| one.stage == Stage::Draining && one.blockers.is_empty();
            while let Some(at) = self.exclusives.taken.iter().position(is_free) {
                self.ask_for(at, Stage::Comparing);
            }
        }
        self.exclusives.due = goes_on;
    }

    /// Begins what waited for a range that is given up, up to the first that takes it anew: the others wait for that one then.
    fn let_go(&mut self, mut held: VecDeque<Held>) {
        while let Some(next) = held.pop_front() {
            match next {
                Held::Fused(fused) => {
                    if self.take_range(fused)
                        && let Some(taken) = self.exclusives.taken.last_mut()
                    {
                        taken.held = held;
                        return;
                    }
                }
                Held::Ready { ready, .. } => {
                    let account = self.queue(ready.connection).map(|queue| queue.account);
                    debug_assert!(account.is_some(), "what waits goes with its queue");
                    if let Some(account) = account {
                        self.hold(account, ready);
                    }
                }
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

    /// True for the second command of a fused operation.
    #[cold]
    pub(crate) fn is_second_of_fused(&self, index: u16, place: u16) -> bool {
        let Some(queue) = self.queues[usize::from(index)].as_ref() else { return false };
        let connection = ConnectionId { index, generation: queue.generation };
        let is_it = |fused: &Fused| fused.connection == connection && fused.second == place;
        let held = self.exclusives.taken.iter().flat_map(|taken| &taken.held);
        let held = held.filter_map(|held| if let Held::Fused(fused) = held { Some(fused) } else { None });
        queue.pairs.iter().any(|pair| pair.second == place)
            || self.exclusives.taken.iter().filter_map(|taken| taken.fused.as_ref()).any(is_it)
            || held.chain(self.exclusives.waiting.values().flatten()).any(is_it)
    }

    /// A command of a fused operation has ended by itself, with this status: so does the other. Both may be sent again where the one may.
    #[cold]
    pub(crate) fn pair_broken(&mut self, index: u16, place: u16, status: Status) {
        let failed = Status::ABORTED_FAILED_FUSED;
        let failed = if status.do_not_retry() { failed.with_do_not_retry() } else { failed };
        let Some(queue) = self.queues[usize::from(index)].as_mut() else { return };
        if let Some(at) = queue.pairs.iter().position(|pair| pair.first == place || pair.second == place) {
            let Pair { first, second, data, .. } = queue.pairs.remove(at);
            let other = if first == place { second } else { first };
            let slot = &mut queue.slots[usize::from(other)];
            slot.paired = false;
            // One whose data are still on their way ends when they are there.
            let is_there = slot.state == State::Held;
            if !is_there {
                slot.work = Work::FusedBroken(failed);
            }
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
        let fused = of_taken.or_else(|| match self.exclusives.take_waiting(is_held).pop() {
            Some(Held::Fused(fused)) => Some(fused),
            _ => None,
        });
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
        let gone = self.exclusives.take_waiting(|held| held.connection() == connection);
        buffers.extend(gone.into_iter().flat_map(Held::into_buffers));
        let is_orphan = |orphans: &BTreeMap<(u32, u64), _>, key: Key| orphans.contains_key(&(key.0.0, key.1));
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
