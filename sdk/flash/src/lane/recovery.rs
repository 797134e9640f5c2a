//! Formatting, and recovery after any end: a power cut, a kill, or none.
//!
//! What always holds:
//! - recovery reads the anchors, the newest checkpoint that can be read, the log since then, and the blocks named there; nothing else;
//! - it writes into blocks alone that hold nothing and that the old checkpoint does not need, and its own checkpoint becomes the newest by one program: a
//!   cut in recovery leaves all as it was;
//! - where too few good blocks are left to write that checkpoint, the lane is mounted all the same, and is read-only;
//! - streams start in fresh blocks: nothing is appended to a block that may have a torn page.

use super::records::{PageKind, PagePlace, Record, Root, decode_page};
use super::scan::{Found, candidates_of};
use super::state::{BlockState, LOST, State, UNMAPPED};
use super::{Counters, Failure, Lane, LaneConfig};
use crate::Planted;
use crate::geometry::Layout;
use crate::header::{COPIED, HEADER_BYTES, Header};
use crate::lane::checkpoint::RETIRED;
use crate::planted::Plants;
use crate::port::{FlashPort, Sink, Status};
use crate::replacements::Replacements;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;

/// Roots that are tried: the newest, and the one before.
const ROOTS_TRIED: usize = 2;

/// Why a lane cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MountError {
    /// The configuration is wrong for this flash.
    Config(&'static str),
    /// Too few good blocks.
    TooManyBadBlocks,
    /// No anchor holds a root: the flash was never formatted, or holds something else.
    NotFormatted,
    /// The flash was formatted for something else: its parameter of that number (units, dies of a unit, lanes, replacement blocks, pages of
    /// a block, bytes of a unit), and its value.
    OtherParameter {
        /// Which.
        index: usize,
        /// What the flash says.
        formatted: u32,
        /// What was asked for.
        asked: u32,
    },
    /// No checkpoint can be read.
    CheckpointDamaged,
    /// A page of the log that was durable cannot be read.
    LogDamaged {
        /// Where it would be.
        block: u32,
        /// Which page.
        page: u32,
    },
    /// Two logical pages point to one page, or one to a block that holds no data.
    MapDamaged {
        /// The logical page.
        unit: u32,
    },
    /// Writing failed.
    Write(Failure),
}

impl From<Failure> for MountError {
    fn from(failure: Failure) -> MountError {
        MountError::Write(failure)
    }
}

impl<P: FlashPort> Lane<P> {
    fn new(port: P, layout: Layout, config: LaneConfig, plants: Plants) -> Result<Lane<P>, MountError> {
        config.check(&layout).map_err(MountError::Config)?;
        let bad: Vec<_> = (0..layout.dies_per_unit).map(|die| port.factory_bad_blocks(layout.die(die))).collect();
        let replacements = Replacements::new(layout, config.replacement_blocks, &bad);
        let mut state = State::new(layout, &config, replacements);
        let plain = (0..state.states.len() as u32).filter(|block| state.replacements.is_plain(*block));
        state.anchors.blocks = plain.take(config.anchors as usize).collect();
        if (state.anchors.blocks.len() as u32) < config.anchors {
            return Err(MountError::TooManyBadBlocks);
        }
        state.anchors.failed = alloc::vec![false; config.anchors as usize];
        for anchor in state.anchors.blocks.clone() {
            state.states[anchor as usize] = BlockState::Anchor;
        }
        let mut lane = Lane::assemble(port, layout, config, state);
        lane.plants = plants;
        Ok(lane)
    }

    /// Makes an empty lane; what the flash held is gone.
    pub async fn format(port: P, layout: Layout, config: LaneConfig) -> Result<Lane<P>, MountError> {
        let lane = Lane::new(port, layout, config, Plants::default())?;
        let blocks = lane.state().states.len() as u32;
        for block in 0..blocks {
            let mut state = lane.state();
            let bad = (0..layout.parts()).filter(|part| !state.replacements.is_good(*part, block));
            for part in bad.collect::<Vec<_>>() {
                if state.replacements.replace(block, part).is_none() {
                    state.states[block as usize] = BlockState::Retired;
                }
            }
        }
        // Roots of an earlier format must not be found again.
        let anchors = lane.state().anchors.blocks.clone();
        for anchor in anchors {
            if !lane.erase_block(anchor).await? {
                return Err(MountError::TooManyBadBlocks);
            }
        }
        lane.state().pending.clear();
        lane.finish(Vec::new()).await?;
        Ok(lane)
    }

    /// Recovers what the flash holds.
    pub async fn mount(port: P, layout: Layout, config: LaneConfig) -> Result<Lane<P>, MountError> {
        Lane::mount_with(port, layout, config, Plants::default()).await
    }

    /// The same with a bug planted.
    #[cfg(feature = "planted")]
    pub async fn mount_planted(
        port: P,
        layout: Layout,
        config: LaneConfig,
        planted: Option<Planted>,
    ) -> Result<Lane<P>, MountError> {
        Lane::mount_with(port, layout, config, Plants { planted }).await
    }

    async fn mount_with(port: P, layout: Layout, config: LaneConfig, plants: Plants) -> Result<Lane<P>, MountError> {
        let lane = Lane::new(port, layout, config, plants)?;
        let mut roots = Vec::new();
        let anchors = lane.state().anchors.blocks.clone();
        for (index, block) in anchors.into_iter().enumerate() {
            lane.read_roots(index, block, &mut roots).await;
        }
        roots.sort_by_key(|(serial, _, _)| core::cmp::Reverse(*serial));
        roots.dedup_by_key(|(serial, _, _)| *serial);
        let Some((newest, anchor, first)) = roots.first() else { return Err(MountError::NotFormatted) };
        {
            let mut state = lane.state();
            state.metadata.checkpoint = *newest;
            state.anchors.keep = [Some(*anchor), roots.get(1).map(|(_, anchor, _)| *anchor)];
        }
        // What the root before the first one of a life needs is released: it would lead to pages that mean something else by now.
        let kept = if first.is_first_of_life() { 1 } else { ROOTS_TRIED };
        let checkpoint_serials: BTreeSet<u64> = roots.iter().flat_map(|(_, _, root)| root.page_serials()).collect();
        let mut outcome = Err(MountError::CheckpointDamaged);
        for (_, _, root) in roots.iter().take(kept) {
            let asked = lane.parameters();
            if let Some(index) = (0..asked.len()).find(|index| root.parameters[*index] != asked[*index]) {
                let formatted = root.parameters[index];
                return Err(MountError::OtherParameter { index, formatted, asked: asked[index] });
            }
            if lane.load(root).await {
                outcome = lane.replay(root, checkpoint_serials).await;
                break;
            }
        }
        let old = outcome?;
        match lane.finish(old).await {
            // At the end of its life it cannot write a checkpoint; the old one stands, with all that it needs.
            Err(MountError::TooManyBadBlocks | MountError::Write(Failure::ReadOnly)) => {
                lane.give_up();
                lane.state().is_read_only_since_mount = true;
            }
            finished => finished?,
        }
        Ok(lane)
    }

    /// The newest roots in an anchor, as many as recovery may go back to. Pages are programmed in order, so the last one is found by halving.
    async fn read_roots(&self, index: usize, block: u32, into: &mut Vec<(u64, usize, Root)>) {
        let pages = self.layout.geometry.pages_per_block;
        let (mut written, mut erased) = (0, pages);
        while written < erased {
            let middle = (written + erased) / 2;
            match self.read_part(block * pages + middle, 0, 0, 0, Sink::Local(&mut []), &mut []).await {
                Status::Erased => erased = middle,
                _ => written = middle + 1,
            }
        }
        let (mut buffer, mut found) = (Vec::new(), BTreeSet::new());
        for page in (0..written).rev() {
            let status = self.read_metadata(block * pages + page, &mut buffer).await;
            if status.is_done()
                && let Some((header, payload)) = decode_page(&buffer, self.layout.lane as u16)
                && header.kind == PageKind::Root
                && let Some(root) = Root::decode(payload)
            {
                into.push((header.serial, index, root));
                // Each is there more than once.
                found.insert(header.serial);
                if found.len() == ROOTS_TRIED {
                    return;
                }
            }
        }
    }

    /// Takes over the map and the tables of a checkpoint. False: some of it cannot be read.
    async fn load(&self, root: &Root) -> bool {
        {
            let mut state = self.state();
            state.sequence = root.sequence;
            state.block_sequence = root.block_sequence;
            state.replacements.restore_used(&root.replacements_used);
            let mut counters = Counters::default();
            counters.fields().into_iter().zip(&root.counters).for_each(|(field, value)| *field = *value);
            state.counters = counters;
            if !root.replaced.iter().all(|made| state.replacements.restore(*made)) {
                return false;
            }
        }
        let Some(map) = self.load_words(&root.map, PageKind::Map, self.config.units).await else { return false };
        let blocks = self.state().states.len() as u32;
        let Some(wear) = self.load_words(&root.wear, PageKind::Wear, blocks).await else { return false };
        let mut state = self.state();
        state.map = map;
        for (block, word) in wear.into_iter().enumerate() {
            state.erase_counts[block] = word & !RETIRED;
            if word & RETIRED != 0 {
                state.states[block] = BlockState::Retired;
            }
        }
        true
    }

    async fn load_words(&self, places: &[PagePlace], kind: PageKind, count: u32) -> Option<Vec<u32>> {
        let mut words = Vec::with_capacity(count as usize);
        let mut buffer = Vec::new();
        let addresses = self.state().states.len() as u64 * u64::from(self.layout.geometry.pages_per_block);
        for place in places {
            if u64::from(place.address) >= addresses || !self.read_metadata(place.address, &mut buffer).await.is_done()
            {
                return None;
            }
            let (header, payload) = decode_page(&buffer, self.layout.lane as u16)?;
            if header.kind != kind || header.serial != place.serial {
                return None;
            }
            words.extend(payload.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]])));
        }
        (words.len() == count as usize).then_some(words)
    }

    /// Takes over what happened since the checkpoint. Returns the blocks that the old metadata need until there is a new checkpoint.
    async fn replay(&self, root: &Root, checkpoint_serials: BTreeSet<u64>) -> Result<Vec<u32>, MountError> {
        let mut found = Found {
            checkpoint_serials,
            candidates: candidates_of(root),
            sequence: root.sequence,
            block_sequence: root.block_sequence,
            ..Found::default()
        };
        self.read_log(root, &mut found).await?;
        // Where blocks lie must be known before they are looked at.
        for record in &found.records {
            let mut state = self.state();
            match record {
                Record::Replace(made) => {
                    state.replacements.restore(*made);
                }
                Record::Retire { block } => state.states[*block as usize] = BlockState::Retired,
                Record::Reserve { block, .. } => state.erase_counts[*block as usize] += 1,
                _ => {}
            }
        }
        for (block, (block_sequence, from)) in found.candidates.clone() {
            if (block as usize) < self.state().states.len() {
                self.scan_block(block, block_sequence, from, &mut found).await;
            }
        }
        found.take_lost(self.layout.geometry.pages_per_block);
        for record in core::mem::take(&mut found.records) {
            let (range, sequence, entry) = match record {
                Record::Trim { unit, count, sequence } => (unit..unit + count, sequence, UNMAPPED),
                Record::Lost { unit, sequence } => (unit..unit + 1, sequence, LOST),
                _ => continue,
            };
            found.sequence = found.sequence.max(sequence + 1);
            // What is older than the checkpoint is in it.
            if sequence >= root.sequence {
                self.state().map[range.start as usize..range.end as usize].fill(entry);
                let older = found.versions.range(range).filter(|(_, (version, _))| version & !COPIED < sequence);
                let older: Vec<u32> = older.map(|(unit, _)| *unit).collect();
                for unit in older {
                    found.versions.remove(&unit);
                }
            }
        }
        let pages = self.layout.geometry.pages_per_block;
        for (unit, (sequence, place)) in core::mem::take(&mut found.versions) {
            let entry = self.state().map[unit as usize];
            // A copy of what the checkpoint knows, and that is still there.
            let is_copy = sequence & COPIED != 0 && sequence & !COPIED < root.known_below;
            let is_known = is_copy && entry < LOST && !found.gone.contains(&(entry / pages));
            if !is_known || self.was_erased(entry, unit, sequence & !COPIED).await {
                self.state().map[unit as usize] = place.address;
            }
        }
        let mut old: BTreeSet<u32> = found.log_blocks.iter().copied().collect();
        // What an erase that is cut leaves there must not be taken for pages.
        old.extend(found.candidates.keys().filter(|block| (**block as usize) < self.state().states.len()));
        old.extend(root.map.iter().chain(&root.wear).map(|place| place.address / pages));
        let mut state = self.state();
        state.sequence = found.sequence;
        state.block_sequence = found.block_sequence.max(state.block_sequence);
        state.metadata.serial = found.serial;
        Ok(old.into_iter().collect())
    }

    /// Whether a page that a logical page had when it was copied is erased, or holds something else. The log says so, unless the media have lost its last page.
    async fn was_erased(&self, address: u32, unit: u32, sequence: u64) -> bool {
        if address / self.layout.geometry.pages_per_block >= self.state().states.len() as u32 {
            // The map is refused as a whole.
            return false;
        }
        for part in 0..self.layout.parts() {
            let mut bytes = [0; HEADER_BYTES];
            let spare = if self.layout.geometry.spare_accessible { &mut bytes[..] } else { &mut [] };
            let status = self.read_part(address, part, 0, 0, Sink::Local(&mut []), spare).await;
            if status == Status::Erased {
                return true;
            }
            if status.is_done()
                && let Some(header) = Header::decode(&bytes)
            {
                return header.logical != unit || header.sequence & !COPIED < sequence;
            }
        }
        false
    }

    /// Brings the blocks' states in line with the map, and writes the first checkpoint of this life.
    async fn finish(&self, old: Vec<u32>) -> Result<(), MountError> {
        {
            let mut state = self.state();
            let state = &mut *state;
            let (blocks, pages) = (state.states.len() as u32, state.pages());
            for unit in 0..state.map.len() {
                let entry = state.map[unit];
                if entry >= LOST {
                    continue;
                }
                let sound = entry / pages < blocks
                    && entry % pages < state.data_pages()
                    && state.states[(entry / pages) as usize] == BlockState::Ready
                    && !state.is_valid(entry);
                if !sound {
                    return Err(MountError::MapDamaged { unit: unit as u32 });
                }
                state.set_valid(entry);
            }
            let early = self.has(Planted::RecoveryReleasesEarly);
            for block in old.iter().filter(|_| !early) {
                if state.states[*block as usize] == BlockState::Ready && state.valid_counts[*block as usize] == 0 {
                    state.states[*block as usize] = BlockState::Metadata;
                    state.metadata.old.push(*block);
                }
            }
            for block in 0..blocks {
                match state.states[block as usize] {
                    BlockState::Ready if state.valid_counts[block as usize] > 0 => state.close(block),
                    BlockState::Ready => state.make_ready(block),
                    _ => {}
                }
                if !matches!(state.states[block as usize], BlockState::Anchor | BlockState::Retired) {
                    state.by_wear.insert((state.erase_counts[block as usize], block));
                }
            }
            let usable = state.usable_blocks();
            if usable < self.config.blocks_needed(&self.layout) {
                return Err(MountError::TooManyBadBlocks);
            }
        }
        {
            let mut state = self.state();
            state.metadata.erases_before = state.counters.erases;
        }
        self.refill_metadata().await?;
        {
            let mut state = self.state();
            state.life = state.block_sequence;
        }
        self.checkpoint().await?;
        Ok(())
    }
}
