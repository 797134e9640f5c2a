//! Operations of flash that take time, from when an FTL asks for them until they are done: what they are, and which of them wait for what.
//!
//! Invariants:
//! - a job is in one place: asked for in the run at work, on its way to the flash, waiting here, or in the flash; it ends once;
//! - jobs of one die that share a block go to the flash in the order in which they were asked for;
//! - there are at most [`JOBS_MAX`] jobs.

use crate::interconnect::Key;
use crate::slab::Slab;
use std::collections::{BTreeMap, VecDeque};
use willow_flash_media::{Array, CopybackPage, PageAddress, Read, Status};

/// Most jobs: as many as handlers can wait for, and what programs copy from.
pub const JOBS_MAX: usize = (1 << 16) - 1;
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
        pages: Vec<MadePage>,
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

/// All of them.
pub(crate) struct FlashJobs {
    pub(super) jobs: Slab<Job>,
    /// By bank and die: what waits before the flash, in the order in which it was asked for.
    pub(super) waiting: BTreeMap<(u16, u32), VecDeque<u32>>,
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
}

impl FlashJobs {
    /// None yet. `delegates`: banks are served by an FTL.
    pub fn new(delegates: bool) -> Self {
        FlashJobs {
            jobs: Slab::new(JOBS_MAX),
            waiting: BTreeMap::new(),
            landings: BTreeMap::new(),
            banks: vec![(0, false); crate::media::BANKS_MAX],
            next_ns: u64::MAX,
            completions: Vec::new(),
            delegates,
        }
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
