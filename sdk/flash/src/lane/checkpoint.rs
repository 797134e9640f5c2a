//! Checkpoints: the map and what else recovery starts from, written while hosts go on.
//!
//! What always holds:
//! - A checkpoint stands for a moment `T`, at which no copy and no trim is under way. Its map is written afterwards, piece by piece, so an entry may be newer
//!   than `T`. That does no harm: recovery takes over whatever the log and the pages since `T` say, and a page is erased only after what replaced
//!   it is durable.
//! - The root, in an anchor block, is programmed after all that it points to, and twice at least: one page that rots does not take it. Two roots are kept,
//!   with all that they need, but for the first of a life: what the one before it needs is released.
//! - What an older checkpoint needs is released once two newer ones are durable.

use super::program::{Programmed, UnitSource};
use super::records::{NONE, PAGE_HEADER_BYTES, PageHeader, PageKind, PagePlace, Root, SUCCESSORS, encode_page, put32};
use super::state::{BlockState, Place, State};
use super::{COLLECTION_BLOCKS, Failure, Lane};
use crate::Planted;
use crate::header::{Header, Kind, Previous};
use crate::port::FlashPort;
use alloc::vec::Vec;

/// Set in an entry of the table of erase counts: the block is retired.
pub(crate) const RETIRED: u32 = 1 << 31;
/// Pages that hold one root, at least, but at the end of an anchor.
const ROOT_COPIES: u32 = 2;

impl<P: FlashPort> Lane<P> {
    /// Writes a checkpoint. The caller is the maintainer (or recovery), so that no copy is under way.
    pub(crate) async fn checkpoint(&self) -> Result<(), Failure> {
        // Trims that begin from here on wait (`checkpoint_wanted`); those under way end.
        self.state().checkpoint_wanted = true;
        while self.state().trims > 0 {
            self.settled.wait().await;
        }
        let (mut root, needed_from) = {
            let _guard = self.metadata_lock.lock().await;
            self.begin_checkpoint()
        };
        self.settled.notify();
        self.room.notify();
        if self.has(Planted::RootBeforeData) && self.state().metadata.checkpoint > 0 {
            // As with a checkpoint at a fixed place: until its data is there, the root points to that of the one before.
            (root.map, root.wear) = self.state().metadata.places.clone();
            self.write_root(&root).await?;
            (root.map, root.wear) = Default::default();
        }
        let payload_max = self.layout.unit_bytes() as usize - PAGE_HEADER_BYTES;
        let entries = payload_max / 4;
        let units = self.config.units as usize;
        for first in (0..units).step_by(entries) {
            let payload = self.words(&self.state().map[first..units.min(first + entries)]);
            root.map.push(self.append_checkpoint_page(PageKind::Map, &payload).await?);
        }
        let blocks = self.state().states.len();
        for first in (0..blocks).step_by(entries) {
            let payload = {
                let state = self.state();
                let range = first..blocks.min(first + entries);
                let word = |block: usize| {
                    let retired = state.states[block] == BlockState::Retired;
                    state.erase_counts[block] & !RETIRED | if retired { RETIRED } else { 0 }
                };
                self.words(&range.map(word).collect::<Vec<u32>>())
            };
            root.wear.push(self.append_checkpoint_page(PageKind::Wear, &payload).await?);
        }
        // The map points to nothing that a later program endangers.
        self.settle_streams().await?;
        {
            let _guard = self.metadata_lock.lock().await;
            self.settle_metadata(&[]).await?;
        }
        self.write_root(&root).await?;
        self.state().metadata.places = (root.map, root.wear);
        self.end_checkpoint(needed_from).await
    }

    async fn append_checkpoint_page(&self, kind: PageKind, payload: &[u8]) -> Result<PagePlace, Failure> {
        let _guard = self.metadata_lock.lock().await;
        self.append_metadata(kind, payload, None).await
    }

    fn words(&self, words: &[u32]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(4 * words.len());
        words.iter().for_each(|word| put32(&mut bytes, *word));
        bytes
    }

    /// The moment `T`: nothing waits in here. Also returns the first block of the log that the checkpoint needs.
    fn begin_checkpoint(&self) -> (Root, Option<u32>) {
        let mut state = self.state();
        let state: &mut State = &mut state;
        let pages = state.pages();
        let metadata = &state.metadata;
        // Where the next page of the log goes, and what comes after that block.
        let (place, next) = match metadata.open {
            Some(place) if place.next_page < pages => (place, metadata.successors()),
            _ => match metadata.pool.front() {
                Some(&(block, block_sequence)) => {
                    let mut next = [(NONE, 0); SUCCESSORS];
                    let rest = metadata.pool.iter().skip(1);
                    next.iter_mut().zip(rest).for_each(|(slot, successor)| *slot = *successor);
                    (Place { block, block_sequence, next_page: 0 }, next)
                }
                None => (Place { block: NONE, block_sequence: 0, next_page: 0 }, [(NONE, 0); SUCCESSORS]),
            },
        };
        let geometry = &self.layout.geometry;
        let mut counters = state.counters;
        let root = Root {
            parameters: self.parameters(),
            sequence: state.sequence,
            known_below: state.writing.map_or(state.sequence, |(_, sequence)| sequence),
            block_sequence: state.block_sequence,
            log_address: place.block.saturating_mul(geometry.pages_per_block).saturating_add(place.next_page),
            log_block_sequence: place.block_sequence,
            log_serial: metadata.serial,
            log_next: next,
            streams: state
                .streams
                .map(|open| open.map_or([NONE, 0, 0], |open| [open.block, open.block_sequence, open.next_page])),
            reserved: state.reserved.iter().map(|block| (*block, state.block_sequences[*block as usize])).collect(),
            map: Vec::new(),
            wear: Vec::new(),
            anchors: state.anchors.blocks.clone(),
            replaced: state.replacements.iter().collect(),
            replacements_used: state.replacements.used().to_vec(),
            counters: counters.fields().map(|field| *field).to_vec(),
        };
        state.checkpoint_wanted = false;
        state.blocks_opened = 0;
        state.metadata.log_pages = 0;
        (root, Some(place.block))
    }

    pub(crate) fn parameters(&self) -> [u32; 6] {
        [
            self.config.units,
            self.layout.dies_per_unit,
            self.layout.lanes(),
            self.config.replacement_blocks,
            self.layout.geometry.pages_per_block,
            self.layout.unit_bytes(),
        ]
    }

    /// Programs the root in an anchor block: the open one, or another that holds neither of the two newest roots.
    async fn write_root(&self, root: &Root) -> Result<(), Failure> {
        let payload = root.encode();
        if PAGE_HEADER_BYTES + payload.len() > self.layout.unit_bytes() as usize {
            // So many bad blocks that their list has outgrown a page.
            self.give_up();
            return Err(Failure::ReadOnly);
        }
        let serial = self.state().metadata.checkpoint + 1;
        let header = PageHeader {
            kind: PageKind::Root,
            lane: self.layout.lane as u16,
            serial,
            block_sequence: 0,
            next: [(NONE, 0); SUCCESSORS],
        };
        let mut page = Vec::new();
        encode_page(&header, &payload, &mut page, &self.layout);
        loop {
            let Some((anchor, next_page)) = self.open_anchor().await? else {
                self.give_up();
                return Err(Failure::ReadOnly);
            };
            let block = self.state().anchors.blocks[anchor];
            let settled = self.layout.geometry.settled_from(next_page + ROOT_COPIES).min(self.state().pages());
            let mut failed = false;
            for page_number in next_page..settled {
                let place = Place { block, block_sequence: 0, next_page: page_number };
                let header = Header {
                    kind: Kind::Metadata,
                    logical: NONE,
                    sequence: serial,
                    block_sequence: 0,
                    part: 0,
                    previous: Previous::NOTHING,
                };
                match self.program_unit(place, UnitSource::Local(&page), header).await {
                    Programmed::Done => self.state().counters.metadata_pages += 1,
                    Programmed::Failed => {
                        failed = true;
                        break;
                    }
                    Programmed::Misuse(reason) => return Err(Failure::Misuse(reason)),
                    _ => return Err(Failure::Misuse("a program from local memory lost its source")),
                }
            }
            let mut state = self.state();
            if failed {
                // What it holds stays readable; nothing more is written to it.
                state.anchors.failed[anchor] = true;
                state.anchors.open = None;
                state.failing.remove(&block);
                continue;
            }
            state.anchors.open = Some((anchor, settled));
            state.anchors.keep = [Some(anchor), state.anchors.keep[0]];
            state.metadata.checkpoint = serial;
            state.counters.checkpoints += 1;
            return Ok(());
        }
    }

    /// The anchor that is written, and its next page.
    async fn open_anchor(&self) -> Result<Option<(usize, u32)>, Failure> {
        loop {
            let (anchor, block) = {
                let mut state = self.state();
                if let Some((anchor, next_page)) = state.anchors.open
                    && next_page < state.pages()
                {
                    return Ok(Some((anchor, next_page)));
                }
                let anchors = &mut state.anchors;
                let good = |index: &usize| !anchors.failed[*index] && anchors.keep[0] != Some(*index);
                // Where only two are good, the older root goes.
                let spared = (0..anchors.blocks.len()).filter(good).find(|index| anchors.keep[1] != Some(*index));
                let Some(anchor) = spared.or_else(|| (0..anchors.blocks.len()).find(good)) else { return Ok(None) };
                (anchor, anchors.blocks[anchor])
            };
            let good = self.erase_block(block).await?;
            let mut state = self.state();
            state.failing.remove(&block);
            if good {
                state.anchors.open = Some((anchor, 0));
            } else {
                state.anchors.failed[anchor] = true;
            }
        }
    }

    /// The root is durable: what only older ones needed is free, and the metadata gets new blocks.
    async fn end_checkpoint(&self, needed_from: Option<u32>) -> Result<(), Failure> {
        let released = {
            let mut state = self.state();
            let metadata = &mut state.metadata;
            metadata.needed_from = [needed_from, metadata.needed_from[0]];
            let mut released = core::mem::take(&mut metadata.old);
            if let Some(oldest) = metadata.needed_from[1] {
                while let Some(front) = metadata.live.front().copied().filter(|front| *front != oldest) {
                    metadata.live.pop_front();
                    released.push(front);
                }
            }
            released
        };
        for block in released {
            // They never held data, so nothing must become durable first but the record of a repair.
            if self.state().failing.contains_key(&block) {
                self.free_block(block);
            } else {
                self.state().make_ready(block);
            }
        }
        self.refill_metadata().await?;
        self.room.notify();
        Ok(())
    }

    /// Whether a block of the metadata is erased less often than one of the data: then worn blocks rest there.
    fn metadata_wears_less(&self, state: &State) -> bool {
        let share = u64::from(self.config.metadata_blocks(&self.layout));
        let blocks = state.states.len() as u64;
        self.config.wear_spread_max > 0
            && state.metadata.erases * blocks < (state.counters.erases - state.metadata.erases_before) * share
    }

    /// Brings the metadata's share of blocks up to what it may take. Those that are added are the least worn ones that are ready, or the most worn
    /// ones where the metadata erase less than the data.
    pub(crate) async fn refill_metadata(&self) -> Result<(), Failure> {
        let share = self.config.metadata_blocks(&self.layout) as usize;
        loop {
            let block = {
                let mut state = self.state();
                let state = &mut *state;
                if state.metadata.live.len() + state.metadata.pool.len() >= share {
                    return Ok(());
                }
                let enough = state.metadata.pool.len() > SUCCESSORS && state.free() <= COLLECTION_BLOCKS;
                let taken = match () {
                    () if enough => None,
                    () if self.metadata_wears_less(state) => state.ready.pop_last().map(|(_, block)| block),
                    () => state.take_ready(),
                };
                let Some(block) = taken else { return Ok(()) };
                state.states[block as usize] = BlockState::Metadata;
                block
            };
            if self.erase_block(block).await? {
                let mut state = self.state();
                state.metadata.erases += 1;
                let block_sequence = state.next_block_sequence();
                state.block_sequences[block as usize] = block_sequence;
                state.metadata.pool.push_back((block, block_sequence));
            } else {
                self.free_block(block);
            }
        }
    }
}
