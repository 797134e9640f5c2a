//! Operations of flash that take time, from when an FTL asks for them until they are done: what they are, and which of them wait for what.
//!
//! Invariants:
//! - a job is in one place: asked for in the run at work, on its way to the flash, waiting here, or in the flash; it ends once;
//! - jobs of one die that share a block go to the flash in the order in which they were asked for;
//! - there are at most [`JOBS_MAX`] jobs, and each bank has an equal share of them: an FTL that asks without end has nobody else's refused.

use super::flash_program::Program;
use crate::interconnect::Key;
use crate::slab::Slab;
use std::collections::{BTreeMap, VecDeque};
use willow_flash_media::{Array, CopybackPage, DIES_MAX, PageAddress, ProgramPage, Read, Status};

/// Most jobs: as many as handlers can wait for, and what programs copy from.
pub const JOBS_MAX: usize = (1 << 16) - 1;
/// Most bytes of pages that wait to be programmed, by bank: many times what all dies of a bank can be at.
pub const PROGRAM_BYTES_MAX: usize = 64 << 20;
/// Lists of pages that wait for the next programs, at most.
const PAGES_KEPT_MAX: usize = 256;
/// Bytes that one of them holds, at most.
const PAGES_KEPT_BYTES_MAX: usize = 64 << 10;
/// No job.
pub(super) const NO_JOB: u32 = u32::MAX;

/// Where the bytes of a read go.
#[derive(Clone, Copy, Debug)]
pub(super) enum To {
    /// The FTL's memory.
    Local { pointer: u64 },
    /// A peer.
    Peer { peer: u32, offset: u64 },
}

/// A page that is to be programmed.
#[derive(Debug)]
pub(super) struct MadePage {
    pub at: PageAddress,
    /// Its bytes as far as they are kept.
    pub data: Vec<u8>,
    pub spare: Vec<u8>,
    /// Some of it comes from the FTL's memory: it is kept where payload is not.
    pub own: bool,
}

impl MadePage {
    fn as_medium<'a>(&'a self, data: &'a [&'a [u8]; 1]) -> ProgramPage<'a> {
        ProgramPage { at: self.at, data, spare: &self.spare, metadata: self.own }
    }

    /// The pages as the medium takes them.
    pub fn with_all<R>(made: &[MadePage], then: impl FnOnce(&[ProgramPage<'_>]) -> R) -> R {
        if let [page] = made {
            return then(&[page.as_medium(&[&page.data])]);
        }
        let parts: Vec<[&[u8]; 1]> = made.iter().map(|page| [&page.data[..]]).collect();
        then(&made.iter().zip(&parts).map(|(page, data)| page.as_medium(data)).collect::<Vec<_>>())
    }
}

/// The pages of a program. What it held before stays as memory for the next.
#[derive(Debug, Default)]
pub(super) struct MadePages {
    pages: Vec<MadePage>,
    count: usize,
}

impl MadePages {
    /// One more page, without data yet.
    pub fn add(&mut self, at: PageAddress, spare: &[u8], own: bool) -> &mut MadePage {
        if self.count == self.pages.len() {
            self.pages.push(MadePage { at, data: Vec::new(), spare: Vec::new(), own });
        }
        let page = &mut self.pages[self.count];
        self.count += 1;
        (page.at, page.own) = (at, own);
        page.data.clear();
        page.spare.clear();
        page.spare.extend_from_slice(spare);
        page
    }

    fn held_bytes(&self) -> usize {
        self.pages.iter().map(|page| page.data.capacity() + page.spare.capacity()).sum()
    }
}

impl std::ops::Deref for MadePages {
    type Target = [MadePage];

    fn deref(&self) -> &[MadePage] {
        &self.pages[..self.count]
    }
}

impl std::ops::DerefMut for MadePages {
    fn deref_mut(&mut self) -> &mut [MadePage] {
        &mut self.pages[..self.count]
    }
}

/// A page that is to be copied within its plane.
#[derive(Debug)]
pub(super) struct MovedPage {
    pub from: PageAddress,
    pub to: PageAddress,
    pub spare: Vec<u8>,
}

impl MovedPage {
    /// Copies pages; `None`: what keeps the contents failed.
    pub fn carry_out(array: &mut Array, die: u32, pages: &[MovedPage]) -> Option<Status> {
        let copied = pages.iter().map(|of| CopybackPage { from: of.from, to: of.to, spare: Some(&of.spare) });
        array.copyback(die, &copied.collect::<Vec<_>>()).ok()
    }
}

/// What is to be done.
#[derive(Debug)]
pub(super) enum Task {
    Read {
        read: Read,
        to: To,
        /// Where the spare area goes, and how much of it.
        spare: Option<(u64, u32)>,
    },
    /// A part of a page that a program copies.
    Source {
        program: u32,
        page: usize,
        at: usize,
        read: Read,
    },
    Program {
        pages: MadePages,
        /// The status of a source that could not be read.
        failed: Option<i32>,
    },
    Copyback {
        pages: Vec<MovedPage>,
    },
    Erase {
        blocks: Vec<u32>,
    },
}

/// An operation of flash.
#[derive(Debug)]
pub(super) struct Job {
    /// Who waits for it; that of a source is its program's.
    pub group: Key,
    pub bank: u16,
    pub die: u32,
    pub task: Task,
    /// Bytes of the pages that it programs.
    pub bytes: usize,
    /// Sources, and data of hosts, that have not come yet.
    pub awaits: u32,
    /// The next job of the same run, or of the same multi-plane read.
    pub next: u32,
}

impl Job {
    /// The blocks that it reads or changes.
    pub fn blocks(&self) -> impl Iterator<Item = u32> {
        let (one, pages, moved, blocks): (Option<u32>, &[MadePage], &[MovedPage], &[u32]) = match &self.task {
            Task::Read { read, .. } | Task::Source { read, .. } => (Some(read.at.block), &[], &[], &[]),
            Task::Program { pages, .. } => (None, pages, &[], &[]),
            Task::Copyback { pages } => (None, &[], pages, &[]),
            Task::Erase { blocks } => (None, &[], &[], blocks),
        };
        let moved = moved.iter().map(|page| page.from.block).chain(moved.iter().map(|page| page.to.block));
        one.into_iter().chain(pages.iter().map(|page| page.at.block)).chain(moved).chain(blocks.iter().copied())
    }

    /// What it reads, where it does.
    pub fn reads(&self) -> Option<&Read> {
        match &self.task {
            Task::Read { read, .. } | Task::Source { read, .. } => Some(read),
            Task::Program { .. } | Task::Copyback { .. } | Task::Erase { .. } => None,
        }
    }
}

/// Which of a bank's queues a die's is.
fn queue_of(die: u32) -> usize {
    die.min(DIES_MAX) as usize
}

/// All of them.
pub(crate) struct FlashJobs {
    jobs: Slab<Job>,
    /// By bank: how many of them are its own, and most of these.
    of_bank: Vec<usize>,
    bank_max: usize,
    /// By bank: bytes of the pages that are to be programmed.
    program_bytes: Vec<usize>,
    /// By bank and die: what waits before the flash, in the order in which it was asked for. Queues of dies stay when they are empty; dies that no flash
    /// has share the last one.
    waiting: Vec<Vec<VecDeque<u32>>>,
    /// By bank: how many of its jobs wait so, since mostly none does.
    waiting_of_bank: Vec<usize>,
    /// By write: the programs that wait for its data.
    pub(super) landings: BTreeMap<Key, Vec<u32>>,
    /// By bank: how many are in the flash, and whether all that is asked for waits until none is.
    pub(super) banks: Vec<(u32, bool)>,
    /// When the flash goes on by itself.
    pub(super) next_ns: u64,
    /// What the flash has just done; empty between two events.
    pub(super) completions: Vec<willow_flash_media::timing::Completion>,
    /// Banks are served by an FTL.
    pub(super) delegates: bool,
    /// What describes a program; empty between two.
    pub(super) described: Program,
    /// Pages of programs that have ended.
    kept_pages: Vec<MadePages>,
}

impl FlashJobs {
    /// None yet, for so many banks. `delegates`: these are served by an FTL.
    pub fn new(delegates: bool, banks: u16) -> Self {
        FlashJobs {
            jobs: Slab::new(JOBS_MAX),
            of_bank: vec![0; banks.into()],
            bank_max: JOBS_MAX / usize::from(banks.max(1)),
            program_bytes: vec![0; banks.into()],
            waiting: vec![Vec::new(); banks.into()],
            waiting_of_bank: vec![0; banks.into()],
            landings: BTreeMap::new(),
            banks: vec![(0, false); crate::media::BANKS_MAX],
            next_ns: u64::MAX,
            completions: Vec::new(),
            delegates,
            described: Program::default(),
            kept_pages: Vec::new(),
        }
    }

    /// No page yet, with memory of programs that have ended.
    pub(super) fn take_pages(&mut self) -> MadePages {
        self.kept_pages.pop().unwrap_or_default()
    }

    /// A program has ended: its pages are of use for others.
    pub(super) fn give_pages(&mut self, mut pages: MadePages) {
        pages.count = 0;
        if self.kept_pages.len() < PAGES_KEPT_MAX && pages.held_bytes() <= PAGES_KEPT_BYTES_MAX {
            self.kept_pages.push(pages);
        }
    }

    /// Whether a bank may have so many more, and so many more bytes of pages that are to be programmed.
    pub(super) fn has_room(&self, bank: u16, more: usize, bytes: usize) -> bool {
        let bank = usize::from(bank);
        self.of_bank[bank] + more <= self.bank_max && self.program_bytes[bank] + bytes <= PROGRAM_BYTES_MAX
    }

    /// Puts a job in, where its bank has room.
    pub(super) fn put(&mut self, job: Job) -> u32 {
        debug_assert!(self.has_room(job.bank, 1, job.bytes));
        self.of_bank[usize::from(job.bank)] += 1;
        self.program_bytes[usize::from(job.bank)] += job.bytes;
        self.jobs.put(|| job)
    }

    /// Takes a job out.
    pub(super) fn take(&mut self, key: u32) -> Option<Job> {
        let job = self.jobs.remove(key)?;
        self.of_bank[usize::from(job.bank)] -= 1;
        self.program_bytes[usize::from(job.bank)] -= job.bytes;
        Some(job)
    }

    /// Ends a job.
    pub(super) fn discard(&mut self, key: u32) {
        if let Some(job) = self.jobs.get(key) {
            self.of_bank[usize::from(job.bank)] -= 1;
            self.program_bytes[usize::from(job.bank)] -= job.bytes;
            self.jobs.discard(key);
        }
    }

    pub(super) fn get(&self, key: u32) -> Option<&Job> {
        self.jobs.get(key)
    }

    pub(super) fn get_mut(&mut self, key: u32) -> Option<&mut Job> {
        self.jobs.get_mut(key)
    }

    /// Whether something waits before a die.
    pub(super) fn waits_before(&self, bank: u16, die: u32) -> bool {
        self.waiting_of_bank[usize::from(bank)] > 0
            && self.waiting[usize::from(bank)].get(queue_of(die)).is_some_and(|queue| !queue.is_empty())
    }

    /// A job waits before its die.
    pub(super) fn wait_before(&mut self, bank: u16, die: u32, key: u32) {
        self.queue(bank, die).push_back(key);
        self.waiting_of_bank[usize::from(bank)] += 1;
    }

    /// Takes what waits before a die; [`FlashJobs::put_back`] follows.
    pub(super) fn take_waiting(&mut self, bank: u16, die: u32) -> Option<VecDeque<u32>> {
        let of_bank = self.waiting_of_bank.get_mut(usize::from(bank)).filter(|waiting| **waiting > 0)?;
        let queues = self.waiting.get_mut(usize::from(bank))?;
        let queue = queues.get_mut(queue_of(die)).filter(|queue| !queue.is_empty()).map(std::mem::take)?;
        *of_bank -= queue.len();
        Some(queue)
    }

    /// The queue before a die.
    fn queue(&mut self, bank: u16, die: u32) -> &mut VecDeque<u32> {
        let (queues, at) = (&mut self.waiting[usize::from(bank)], queue_of(die));
        if queues.len() <= at {
            queues.resize_with(at + 1, VecDeque::new);
        }
        &mut queues[at]
    }

    /// Puts back what goes on waiting before a die, before what has come since.
    pub(super) fn put_back(&mut self, bank: u16, die: u32, mut queue: VecDeque<u32>) {
        self.waiting_of_bank[usize::from(bank)] += queue.len();
        let place = self.queue(bank, die);
        queue.append(place);
        *place = queue;
    }

    /// The dies of a bank before which something waits; [`DIES_MAX`]: those that no flash has.
    pub(super) fn dies_waited_before(&self, bank: u16) -> Vec<u32> {
        let queues = self.waiting[usize::from(bank)].iter().zip(0..);
        queues.filter(|(queue, _)| !queue.is_empty()).map(|(_, die)| die).collect()
    }

    /// The blocks that a job, with those that are joined to it, reads or changes.
    pub(super) fn blocks(&self, key: u32) -> impl Iterator<Item = u32> {
        let next = |job: &&Job| self.jobs.get(job.next);
        std::iter::successors(self.jobs.get(key), next).flat_map(Job::blocks)
    }

    pub(super) fn job(&mut self, key: u32) -> &mut Job {
        self.jobs.get_mut(key).expect("a job is there until it has ended")
    }
}

/// The jobs of one run, in the order in which they were asked for.
#[derive(Default)]
pub(super) struct Chain {
    ends: Option<(u32, u32)>,
}

impl Chain {
    pub fn push(&mut self, jobs: &mut FlashJobs, job: u32) {
        match &mut self.ends {
            None => self.ends = Some((job, job)),
            Some((_, last)) => {
                jobs.job(*last).next = job;
                *last = job;
            }
        }
    }

    pub fn first(&self) -> Option<u32> {
        self.ends.map(|(first, _)| first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(bank: u16, bytes: usize) -> Job {
        let task = Task::Erase { blocks: vec![bank.into()] };
        Job { group: Key { spu: bank, key: 0 }, bank, die: 0, task, bytes, awaits: 0, next: NO_JOB }
    }

    #[test]
    fn a_bank_that_has_its_share_of_operations_and_bytes_leaves_others_theirs() {
        let mut jobs = FlashJobs::new(true, 4);
        let share = JOBS_MAX / 4;
        let mut keys: Vec<u32> = (0..share).map(|_| jobs.put(job(1, 0))).collect();
        assert!(!jobs.has_room(1, 1, 0), "it has its share");
        assert!([0, 2, 3].iter().all(|bank| jobs.has_room(*bank, share, PROGRAM_BYTES_MAX)));
        jobs.discard(keys.pop().expect("some"));
        assert!(jobs.has_room(1, 1, 0) && !jobs.has_room(1, 2, 0));
        assert!(jobs.take(keys.pop().expect("some")).is_some() && jobs.has_room(1, 2, 0));
        let large = jobs.put(job(2, PROGRAM_BYTES_MAX - 1));
        assert!(jobs.has_room(2, 1, 1) && !jobs.has_room(2, 1, 2), "bytes are bounded as well");
        assert!(jobs.has_room(3, 1, PROGRAM_BYTES_MAX));
        jobs.discard(large);
        jobs.discard(large);
        assert!(jobs.has_room(2, share, PROGRAM_BYTES_MAX), "what has ended counts no more, and once");
    }
}
