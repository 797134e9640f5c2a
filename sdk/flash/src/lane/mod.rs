//! A lane: the logical pages that lie on one set of dies, from the map down to bad blocks. Lanes share nothing, so a flash of many dies is as
//! many of these side by side.
//!
//! # The life of an erase block
//! `Ready` -> `Reserved` (the log says so durably, with the block's next sequence) -> erased, `Open` (a stream writes into it in order) -> `Closed` (a
//! candidate for collection) -> `Collecting` (its valid pages are copied) -> `Freed` (nothing in it counts) -> `Ready` (and that is durable).
//!
//! # What always holds
//! - A write takes effect, in the map, when its page is programmed; a copy does so only if the map still points to what was copied.
//! - A block is erased only if all that replaced its pages is durable: see `log::sync`, the one place where `Freed` becomes `Ready`.
//! - After a cut, recovery starts from the newest readable checkpoint, and looks only at the log since then and at blocks that were open or
//!   reserved then, or were reserved by the log.
//! - At most one program is under way for each stream, so at most one virtual page of an open block is torn.
//! - No lock is taken while a lock of a stream is held; within the lock of the metadata nothing waits for anything but flash.
//!
//! # Who may call it
//! An FTL. Its host operations must not overlap on a logical page (SPU-OS' gate sees to that). One handler runs
//! [`Lane::maintain`] all the time: it collects, levels and writes checkpoints; without it writes wait for ever once blocks run out.

#[cfg(any(test, feature = "testing"))]
mod check;
mod checkpoint;
mod collect;
mod host;
mod log;
mod program;
mod records;
mod recovery;
mod remembered;
mod scan;
mod state;
mod stream;

pub use host::{LaneMap, Update};
pub use recovery::MountError;

use crate::geometry::{DIES_PER_UNIT_MAX, Layout, PLANES_MAX};
use crate::planted::{Planted, Plants};
use crate::port::FlashPort;
use crate::wait::{Event, Lock};
use core::cell::{RefCell, RefMut};
use state::State;

/// Blocks that only collection may open: one to copy into and one in reserve.
pub(crate) const COLLECTION_BLOCKS: u32 = 2;
/// Programs of one page that are tried, in other blocks each time.
pub(crate) const ATTEMPTS_MAX: u32 = 16;
/// Steps of a loop over the map until others may work.
pub(crate) const SLICE: usize = 4096;
/// Records that wait for the log, beyond which a trim has them written.
pub(crate) const PENDING_RECORDS_MAX: usize = 256;
/// Erases of a lane between two blocks that are moved to level wear.
const LEVELING_INTERVAL: u32 = 4;

/// What a lane is made for. What is not marked otherwise cannot change after formatting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneConfig {
    /// Logical pages.
    pub units: u32,
    /// Rows of each plane that replace bad blocks.
    pub replacement_blocks: u32,
    /// Collection begins when fewer blocks than this are free (may change).
    pub collect_below: u32,
    /// It goes on until that many more are (may change).
    pub collect_batch: u32,
    /// Pages of the log after which a checkpoint is written. Writers wait at twice as many (may change).
    pub log_pages_max: u32,
    /// Blocks opened after which a checkpoint is written (may change).
    pub blocks_between_checkpoints: u32,
    /// Difference of erase counts from which on cold blocks are moved; 0: never (may change).
    pub wear_spread_max: u32,
    /// Erases that a block endures, for what SMART tells (may change).
    pub endurance: u32,
    /// Blocks that hold roots of checkpoints.
    pub anchors: u32,
    /// Bytes of memory for the headers of all pages, which spare collection the reading of them; where these take more, none is kept (may change).
    pub remembered_bytes_max: u32,
}

impl LaneConfig {
    /// What most lanes take, for that many logical pages.
    pub fn new(units: u32) -> LaneConfig {
        LaneConfig {
            units,
            replacement_blocks: 8,
            collect_below: 6,
            collect_batch: 2,
            log_pages_max: 64,
            blocks_between_checkpoints: 64,
            wear_spread_max: 100,
            endurance: 3000,
            anchors: 3,
            remembered_bytes_max: 1 << 20,
        }
    }

    /// Bytes of memory that the headers of pages take, which are kept so that collection need not read them.
    pub fn remembered_bytes(&self, layout: &Layout) -> u64 {
        remembered::Remembered::bytes(self.remembered_pages(layout), self.remembered_bytes_max)
    }

    /// Pages whose headers would be kept: where firmware does not reach the spare area, blocks have summaries instead.
    pub(crate) fn remembered_pages(&self, layout: &Layout) -> u64 {
        let blocks = layout.geometry.blocks_per_plane.saturating_sub(self.replacement_blocks);
        let pages = u64::from(blocks) * u64::from(layout.geometry.pages_per_block);
        if layout.geometry.spare_accessible { pages } else { 0 }
    }

    /// Pages of metadata that one checkpoint takes.
    pub(crate) fn checkpoint_pages(&self, layout: &Layout) -> u32 {
        let payload = layout.unit_bytes() - records::PAGE_HEADER_BYTES as u32;
        let blocks = layout.geometry.blocks_per_plane - self.replacement_blocks;
        self.units.div_ceil(payload / 4) + blocks.div_ceil(payload / 4)
    }

    /// Blocks that belong to the log and the checkpoints: three generations of both, as long as the log may become, and what recoveries that are cut leave.
    pub fn metadata_blocks(&self, layout: &Layout) -> u32 {
        let group = u64::from(layout.geometry.settled_from(1).max(1));
        let log = (2 * u64::from(self.log_pages_max) + 8) * group;
        let generation = u64::from(self.checkpoint_pages(layout)) + log;
        let blocks = (3 * generation).div_ceil(u64::from(layout.geometry.pages_per_block)) + 3;
        blocks.min(u64::from(u32::MAX)) as u32
    }

    /// Blocks without which the lane cannot work.
    pub fn blocks_needed(&self, layout: &Layout) -> u32 {
        let data_pages = layout.geometry.pages_per_block - u32::from(!layout.geometry.spare_accessible);
        // Open: one of each stream. The last one makes sure that some block has an invalid page.
        let data = self.units.div_ceil(data_pages) + self.anchors + 2 + COLLECTION_BLOCKS + 1;
        data.saturating_add(self.metadata_blocks(layout))
    }

    /// What is wrong with it for this flash.
    pub fn check(&self, layout: &Layout) -> Result<(), &'static str> {
        let geometry = &layout.geometry;
        let dies = u64::from(geometry.channels)
            .saturating_mul(u64::from(geometry.packages_per_channel))
            .saturating_mul(u64::from(geometry.dies_per_package));
        let planes = u64::from(geometry.planes_per_die);
        let die_blocks = u64::from(geometry.blocks_per_plane) * planes;
        let pages = u64::from(geometry.blocks_per_plane) * u64::from(geometry.pages_per_block);
        if dies > DIES_MAX
            || planes > PLANES_MAX as u64
            || die_blocks > u64::from(u32::MAX)
            || u64::from(geometry.page_bytes) > PAGE_BYTES_MAX
            || geometry.paired_distance > geometry.pages_per_block
            || pages >= u64::from(LOST_ADDRESS)
            || u64::from(self.units) > pages
            || self.log_pages_max > LOG_PAGES_MAX
            || self.anchors > ANCHORS_MAX
            || self.collect_below > geometry.blocks_per_plane
        {
            return Err(
                "the flash or the lane is too large: more than 65536 dies, 8 planes, 2^32 - 2 pages of a plane, 1 MiB a page, or more logical pages than pages",
            );
        }
        let sizes = [
            geometry.channels,
            geometry.packages_per_channel,
            geometry.dies_per_package,
            geometry.planes_per_die,
            geometry.blocks_per_plane,
            geometry.page_bytes,
            layout.dies_per_unit,
        ];
        if sizes.contains(&0) || geometry.planes_per_die as usize > PLANES_MAX || geometry.pages_per_block < 4 {
            return Err(
                "the flash's geometry cannot be: a count is 0, a die has more than 8 planes, or a block fewer than 4 pages",
            );
        }
        if self.replacement_blocks >= geometry.blocks_per_plane {
            return Err("the planes have too few blocks for the replacements");
        }
        if layout.dies_per_unit > DIES_PER_UNIT_MAX || !geometry.dies().is_multiple_of(layout.dies_per_unit) {
            return Err("a virtual page lies on at most 4 dies, and these must divide the dies of the flash");
        }
        if layout.lane >= layout.lanes() || layout.lane > u32::from(u16::MAX) {
            return Err("no such lane");
        }
        if geometry.spare_accessible && (geometry.spare_bytes as usize) < crate::HEADER_BYTES {
            return Err("the spare area has no room for a page's header of 44 bytes");
        }
        if geometry.page_bytes < 256 {
            return Err("a page has fewer than 256 bytes");
        }
        if !geometry.spare_accessible && self.summary_bytes(layout) > layout.unit_bytes() as usize {
            return Err("a summary of an erase block does not fit one virtual page");
        }
        if !geometry.pages_per_block.is_multiple_of(geometry.paired_distance.saturating_mul(2).max(1)) {
            return Err("the pages of a block must be whole groups of lower and upper pages");
        }
        if self.units == 0 || self.anchors < 2 || self.log_pages_max == 0 || self.blocks_between_checkpoints == 0 {
            return Err("a lane has at least one logical page, two anchors, and a log of a page and a block");
        }
        if self.collect_below <= COLLECTION_BLOCKS {
            return Err("collection must begin while more than two blocks are free");
        }
        let pages = u64::from(self.checkpoint_pages(layout));
        let root = 400 + 12 * pages + 8 * u64::from(self.collect_below) + 16 * u64::from(layout.parts());
        if root > u64::from(layout.unit_bytes()) {
            return Err(
                "the root of a checkpoint does not fit one virtual page: fewer logical pages a lane, or larger pages",
            );
        }
        let blocks = geometry.blocks_per_plane - self.replacement_blocks;
        if self.blocks_needed(layout).saturating_add(self.collect_below - COLLECTION_BLOCKS) > blocks {
            return Err("the lane has too few blocks for its logical pages: fewer of these, or more over-provisioning");
        }
        Ok(())
    }

    pub(crate) fn summary_bytes(&self, layout: &Layout) -> usize {
        let entries = (layout.geometry.pages_per_block - 1) as usize;
        records::PAGE_HEADER_BYTES + records::RECORD_BYTES_MAX + entries * records::HEADERS_ENTRY_BYTES
    }
}

const DIES_MAX: u64 = 1 << 16;
const PAGE_BYTES_MAX: u64 = 1 << 20;
const LOG_PAGES_MAX: u32 = 1 << 16;
const ANCHORS_MAX: u32 = 16;
const LOST_ADDRESS: u32 = state::LOST;

/// What a lane has done since it was formatted, by cause. Pages are virtual pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Pages programmed because a host wrote.
    pub host_pages: u64,
    /// Bytes that hosts wrote.
    pub host_bytes: u64,
    /// Bytes of host pages that were copied from the old page: merges.
    pub merged_bytes: u64,
    /// Pages that collection copied.
    pub collected_pages: u64,
    /// Pages that wear leveling, and the rescue of failing blocks, copied.
    pub leveled_pages: u64,
    /// Pages of the log, checkpoints, roots and summaries.
    pub metadata_pages: u64,
    /// Pages that settle others.
    pub filler_pages: u64,
    /// Programs that failed.
    pub program_failures: u64,
    /// Erases that failed.
    pub erase_failures: u64,
    /// Erases of blocks of the lane.
    pub erases: u64,
    /// Logical pages that the media lost, and reads that failed.
    pub media_errors: u64,
    /// Checkpoints.
    pub checkpoints: u64,
}

impl Counters {
    /// All pages that were programmed.
    pub fn programmed_pages(&self) -> u64 {
        self.host_pages + self.collected_pages + self.leveled_pages + self.metadata_pages + self.filler_pages
    }

    fn fields(&mut self) -> [&mut u64; 12] {
        [
            &mut self.host_pages,
            &mut self.host_bytes,
            &mut self.merged_bytes,
            &mut self.collected_pages,
            &mut self.leveled_pages,
            &mut self.metadata_pages,
            &mut self.filler_pages,
            &mut self.program_failures,
            &mut self.erase_failures,
            &mut self.erases,
            &mut self.media_errors,
            &mut self.checkpoints,
        ]
    }

    /// All of them, in the order of the fields.
    pub fn words(&self) -> [u64; 12] {
        let mut copy = *self;
        copy.fields().map(|field| *field)
    }

    /// From what [`Counters::words`] gave.
    pub fn from_words(words: &[u64; 12]) -> Counters {
        let mut counters = Counters::default();
        for (field, word) in counters.fields().into_iter().zip(words) {
            *field = *word;
        }
        counters
    }

    /// Adds another lane's.
    pub fn add(&mut self, other: &Counters) {
        let mut other = *other;
        for (mine, others) in self.fields().into_iter().zip(other.fields()) {
            *mine += *others;
        }
    }
}

/// What SMART tells of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Health {
    /// Blocks that may still go bad until the lane is read-only, in percent of those of new flash; the same of the blocks that hold roots of
    /// checkpoints, where that is less. 0: it is read-only.
    pub spare_percent: u32,
    /// Average erases of a block in percent of what it endures; may exceed 100.
    pub used_percent: u32,
    /// Most erases of a block, and fewest.
    pub erases_max: u32,
    /// Fewest.
    pub erases_min: u32,
    /// Logical pages that the media lost, and reads that failed.
    pub media_errors: u64,
    /// Nothing is written any more.
    pub read_only: bool,
}

/// Why an operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The media cannot give the bytes back.
    Media,
    /// Too few good blocks are left, or the metadata cannot be written any more: nothing is written.
    ReadOnly,
    /// The owner of the bytes has ended.
    PeerEnded,
    /// Past the lane's logical pages.
    Range,
    /// The flash refused an operation that breaks its rules: a bug, or another flash than the lane was made for.
    Misuse(&'static str),
}

/// A lane of a flash. See the module's text.
pub struct Lane<P> {
    port: P,
    layout: Layout,
    config: LaneConfig,
    state: RefCell<State>,
    stream_locks: [Lock; 2],
    metadata_lock: Lock,
    /// Something that the maintainer looks after may have changed.
    work: Event,
    /// Blocks became free, or nothing will.
    room: Event,
    /// A read or a write has ended.
    settled: Event,
    /// Blocks that could go bad when the flash was new.
    spare_blocks_new: u32,
    plants: Plants,
}

impl<P: FlashPort> Lane<P> {
    fn assemble(port: P, layout: Layout, config: LaneConfig, state: State) -> Lane<P> {
        let (retired, left) = state.replacements.when_new();
        let usable = state.replacements.blocks() - retired;
        Lane {
            port,
            layout,
            config,
            spare_blocks_new: usable.saturating_sub(config.blocks_needed(&layout)) + left,
            state: RefCell::new(state),
            stream_locks: Default::default(),
            metadata_lock: Lock::default(),
            work: Event::default(),
            room: Event::default(),
            settled: Event::default(),
            plants: Plants::default(),
        }
    }

    fn state(&self) -> RefMut<'_, State> {
        self.state.borrow_mut()
    }

    fn has(&self, planted: Planted) -> bool {
        self.plants.has(planted)
    }

    /// Plants a bug.
    #[cfg(feature = "planted")]
    pub fn plant(&mut self, planted: Option<Planted>) {
        self.plants.planted = planted;
    }

    /// How it lies on the flash.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// What it was made for.
    pub fn config(&self) -> LaneConfig {
        self.config
    }

    /// What it has done.
    pub fn counters(&self) -> Counters {
        self.state().counters
    }

    /// Whether writes are refused.
    pub fn is_read_only(&self) -> bool {
        self.state().read_only
    }

    /// What SMART tells.
    pub fn health(&self) -> Health {
        let state = self.state();
        let blocks = state.states.len() as u32;
        let needed = self.config.blocks_needed(&self.layout);
        let sum: u64 = state.erase_counts.iter().map(|count| u64::from(*count)).sum();
        let average = sum * 100 / u64::from(blocks) / u64::from(self.config.endurance.max(1));
        let left = state.usable_blocks().saturating_sub(needed) + state.replacements.left();
        let percent = |left: u32, new: u32| (u64::from(left) * 100 / u64::from(new.max(1))).min(100) as u32;
        let left_percent = percent(left, self.spare_blocks_new);
        // One of them holds the newest root.
        let anchors = state.anchors.failed.iter().filter(|failed| !**failed).count() as u32;
        let anchors_percent = percent(anchors.saturating_sub(1), self.config.anchors - 1);
        Health {
            spare_percent: if state.read_only { 0 } else { left_percent.min(anchors_percent) },
            used_percent: average.min(u64::from(u32::MAX)) as u32,
            erases_max: state.by_wear.last().map_or(0, |most| most.0),
            erases_min: state.by_wear.first().map_or(0, |least| least.0),
            media_errors: state.counters.media_errors,
            read_only: state.read_only,
        }
    }

    /// Nothing is written from now on.
    fn give_up(&self) {
        self.state().read_only = true;
        self.room.notify();
        self.settled.notify();
        self.work.notify();
    }

    /// Ends [`Lane::maintain`] at its next step.
    pub fn stop(&self) {
        self.state().stopping = true;
        self.work.notify();
    }
}
