//! What a lane knows: its map, its blocks, its streams, what is not durable yet. Plain data; who changes it is in the other files.
//!
//! What always holds, between two waits of any handler:
//! - a bit of `valid` is set exactly where an entry of the map points to that page, and `valid_counts` counts them;
//! - a block is in the victim lists exactly in the state `Closed`;
//! - `ready`, `freed` and `reserved` hold blocks of these states, each once.

use super::records::PagePlace;
use super::remembered::Remembered;
use super::{Counters, LaneConfig};
use crate::buckets::VictimBuckets;
use crate::geometry::Layout;
use crate::header::Previous;
use crate::replacements::Replacements;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec;
use alloc::vec::Vec;

/// An entry of the map: nothing is stored.
pub(crate) const UNMAPPED: u32 = u32::MAX;
/// An entry of the map: what was stored was lost by the media.
pub(crate) const LOST: u32 = u32::MAX - 1;
/// Entries from here on are no addresses.
pub(crate) const ADDRESSES_MAX: u32 = LOST;

/// In which state an erase block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockState {
    /// Holds nothing; what replaced its pages may not be durable yet, so it must not be erased.
    Freed,
    /// Holds nothing and may be erased.
    Ready,
    /// Ready, and the log says durably under which sequence it will be used.
    Reserved,
    /// A stream writes into it.
    Open,
    /// Full, or given up by its stream.
    Closed,
    /// Its pages are being moved.
    Collecting,
    /// Belongs to the log and the checkpoints.
    Metadata,
    /// Holds roots of checkpoints; always the same blocks.
    Anchor,
    /// Bad beyond replacement.
    Retired,
}

/// A place that is written in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub block: u32,
    pub block_sequence: u32,
    pub next_page: u32,
}

/// The two streams of data, which fill blocks of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    /// What the host writes.
    Host = 0,
    /// What collection and wear leveling move.
    Collection = 1,
}

pub(crate) const STREAMS: [Stream; 2] = [Stream::Host, Stream::Collection];

/// Headers of a block without a summary, where firmware does not reach the spare area.
#[derive(Clone, Debug, Default)]
pub(crate) struct Headers {
    pub block_sequence: u32,
    /// Logical page and sequence of each page; the logical page is [`crate::header::NONE`] for fillers.
    pub entries: Vec<(u32, u64)>,
    /// So many are in the log.
    pub logged: usize,
}

/// Log and checkpoints.
#[derive(Clone, Debug, Default)]
pub(crate) struct Metadata {
    pub open: Option<Place>,
    /// Blocks that hold what counts, oldest first; the open one is the last.
    pub live: VecDeque<u32>,
    /// Blocks that come next, erased, with their sequences.
    pub pool: VecDeque<(u32, u32)>,
    /// Number of the next page.
    pub serial: u64,
    /// Pages of the log since the last checkpoint.
    pub log_pages: u32,
    /// First block that the newest checkpoint needs, and the one before.
    pub needed_from: [Option<u32>; 2],
    /// Blocks that recovery still needs: released when the first checkpoint is durable.
    pub old: Vec<u32>,
    /// Number of the newest checkpoint.
    pub checkpoint: u64,
    /// Erases of blocks for the metadata in this life.
    pub erases: u64,
    /// Erases of all blocks before this life.
    pub erases_before: u64,
    /// Where its map and its erase counts are.
    pub places: (Vec<PagePlace>, Vec<PagePlace>),
}

/// The blocks that hold roots.
#[derive(Clone, Debug, Default)]
pub(crate) struct Anchors {
    pub blocks: Vec<u32>,
    /// Which of them is written, and its next page.
    pub open: Option<(usize, u32)>,
    /// Which of them must not be erased: they hold the newest root, or the one before.
    pub keep: [Option<usize>; 2],
    pub failed: Vec<bool>,
}

pub(crate) struct State {
    pub layout: Layout,
    pub map: Vec<u32>,
    pub states: Vec<BlockState>,
    pub valid: Vec<u64>,
    pub valid_counts: Vec<u32>,
    pub erase_counts: Vec<u32>,
    pub block_sequences: Vec<u32>,
    /// Reads under way, by block.
    pub readers: Vec<u32>,
    /// Parts whose program or erase failed, by block.
    pub failing: BTreeMap<u32, u32>,
    pub victims: VictimBuckets,
    pub by_wear: BTreeSet<(u32, u32)>,
    pub ready: BTreeSet<(u32, u32)>,
    /// In the order of becoming free, each with its number in that order.
    pub freed: VecDeque<(u64, u32)>,
    pub freed_serial: u64,
    /// By erase count, as `ready`; the sequence is in `block_sequences`.
    pub reserved: Vec<u32>,
    pub streams: [Option<Place>; 2],
    /// What each stream wrote last.
    pub previous: [Previous; 2],
    pub headers: BTreeMap<u32, Headers>,
    pub remembered: Remembered,
    pub sequence: u64,
    pub block_sequence: u32,
    /// Records that are not in the log yet.
    pub pending: VecDeque<super::records::Record>,
    /// The logical page that the host's stream is programming, and its sequence.
    pub writing: Option<(u32, u64)>,
    /// A logical page that host operations must leave alone while it is moved under a sequence of its own.
    pub moving: Option<u32>,
    /// Blocks of a lower sequence were written before the lane was mounted.
    pub life: u32,
    pub collecting: bool,
    pub trims: u32,
    pub checkpoint_wanted: bool,
    pub blocks_opened: u32,
    pub erases_since_leveling: u32,
    pub metadata: Metadata,
    pub anchors: Anchors,
    pub replacements: Replacements,
    pub counters: Counters,
    pub read_only: bool,
    /// It was mounted so: nothing that was written is not durable.
    pub is_read_only_since_mount: bool,
    pub stopping: bool,
}

impl State {
    pub fn new(layout: Layout, config: &LaneConfig, replacements: Replacements) -> State {
        let blocks = replacements.blocks();
        let pages = layout.geometry.pages_per_block;
        State {
            layout,
            map: vec![UNMAPPED; config.units as usize],
            states: vec![BlockState::Ready; blocks as usize],
            valid: vec![0; (blocks as usize * pages as usize).div_ceil(64)],
            valid_counts: vec![0; blocks as usize],
            erase_counts: vec![0; blocks as usize],
            block_sequences: vec![0; blocks as usize],
            readers: vec![0; blocks as usize],
            failing: BTreeMap::new(),
            victims: VictimBuckets::new(blocks, pages),
            by_wear: BTreeSet::new(),
            ready: BTreeSet::new(),
            freed: VecDeque::new(),
            freed_serial: 0,
            reserved: Vec::new(),
            streams: [None; 2],
            previous: [Previous::NOTHING; 2],
            headers: BTreeMap::new(),
            remembered: Remembered::new(config.remembered_pages(&layout), config.remembered_bytes_max),
            sequence: 1,
            block_sequence: 1,
            pending: VecDeque::new(),
            writing: None,
            moving: None,
            life: 0,
            collecting: false,
            trims: 0,
            checkpoint_wanted: false,
            blocks_opened: 0,
            erases_since_leveling: 0,
            metadata: Metadata { serial: 1, ..Metadata::default() },
            anchors: Anchors::default(),
            replacements,
            counters: Counters::default(),
            read_only: false,
            is_read_only_since_mount: false,
            stopping: false,
        }
    }

    pub fn pages(&self) -> u32 {
        self.layout.geometry.pages_per_block
    }

    /// Pages of a block that hold data.
    pub fn data_pages(&self) -> u32 {
        self.pages() - u32::from(!self.layout.geometry.spare_accessible)
    }

    pub fn block_of(&self, address: u32) -> u32 {
        address / self.pages()
    }

    pub fn is_valid(&self, address: u32) -> bool {
        self.valid[address as usize / 64] >> (address % 64) & 1 == 1
    }

    /// Blocks that hold nothing.
    pub fn free(&self) -> u32 {
        (self.ready.len() + self.freed.len() + self.reserved.len()) as u32
    }

    /// The page's block is not erased until [`State::unpin`].
    pub fn pin(&mut self, address: u32) {
        let block = self.block_of(address);
        self.readers[block as usize] += 1;
    }

    pub fn unpin(&mut self, address: u32) {
        let block = self.block_of(address);
        self.readers[block as usize] -= 1;
    }

    pub fn next_sequence(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence - 1
    }

    pub fn next_block_sequence(&mut self) -> u32 {
        self.block_sequence += 1;
        self.block_sequence - 1
    }

    /// The page holds what the map says from now on.
    pub fn set_valid(&mut self, address: u32) {
        debug_assert!(!self.is_valid(address));
        self.valid[address as usize / 64] |= 1 << (address % 64);
        let block = self.block_of(address) as usize;
        self.valid_counts[block] += 1;
        debug_assert!(self.states[block] != BlockState::Closed);
    }

    /// The page is of no use any more.
    pub fn invalidate(&mut self, address: u32) {
        assert!(self.is_valid(address), "the map points to valid pages");
        self.valid[address as usize / 64] &= !(1 << (address % 64));
        let block = self.block_of(address);
        self.valid_counts[block as usize] -= 1;
        if self.states[block as usize] == BlockState::Closed {
            self.victims.decrement(block);
        }
    }

    /// Changes an entry of the map, and what depends on it.
    pub fn set_entry(&mut self, unit: u32, entry: u32) {
        let old = core::mem::replace(&mut self.map[unit as usize], entry);
        if old < ADDRESSES_MAX {
            self.invalidate(old);
        }
        if entry < ADDRESSES_MAX {
            self.set_valid(entry);
        }
    }

    /// A stream is done with a block.
    pub fn close(&mut self, block: u32) {
        self.states[block as usize] = BlockState::Closed;
        self.victims.insert(block, self.valid_counts[block as usize]);
    }

    pub fn erased(&mut self, block: u32) {
        let count = &mut self.erase_counts[block as usize];
        let was_there = self.by_wear.remove(&(*count, block));
        *count += 1;
        // Anchors are not part of it.
        if was_there {
            self.by_wear.insert((*count, block));
        }
        self.counters.erases += 1;
        self.erases_since_leveling += 1;
    }

    pub fn make_ready(&mut self, block: u32) {
        self.states[block as usize] = BlockState::Ready;
        self.ready.insert((self.erase_counts[block as usize], block));
    }

    /// Takes the least worn block that is ready.
    pub fn take_ready(&mut self) -> Option<u32> {
        self.ready.pop_first().map(|(_, block)| block)
    }

    /// Blocks that data can lie in, but for the replacement of bad ones.
    pub fn usable_blocks(&self) -> u32 {
        let retired = self.states.iter().filter(|state| **state == BlockState::Retired).count();
        self.states.len() as u32 - retired as u32
    }
}
