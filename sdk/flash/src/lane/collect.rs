//! Collection: moving the valid pages of a block so that it can be erased. The same moves level wear and rescue failing blocks.
//!
//! What always holds:
//! - one block of a lane is collected at a time, by the maintainer, which writes the checkpoints too: at a checkpoint's moment no copy is under way;
//! - a copy keeps the sequence of what it copies, and takes effect only where the map still points to that;
//! - a block is freed when nothing in it counts and nobody reads it any more.

use super::program::UnitSource;
use super::records::{PageKind, Reader, Record, decode_page};
use super::state::{BlockState, LOST, State, Stream};
use super::{Failure, LEVELING_INTERVAL, Lane, SLICE};
use crate::Planted;
use crate::buckets::VictimBuckets;
use crate::header::{COPIED, HEADER_BYTES, Header, NONE};
use crate::port::{FlashPort, Sink};
use alloc::vec;
use alloc::vec::Vec;

/// Least worn blocks that are looked at for one that can be moved.
const LEVELING_CANDIDATES_MAX: usize = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Job {
    Checkpoint,
    Collect(u32),
    /// For another reason than space.
    Move(u32),
}

/// What is known of a page: its logical page, and the sequence; `None`: a copy needs one of its own.
type Known = (u32, Option<u64>);

impl<P: FlashPort> Lane<P> {
    /// Collects, levels wear and writes checkpoints, for as long as the lane works. Called once, by a handler of its own.
    pub async fn maintain(&self) -> Result<(), Failure> {
        loop {
            let work = self.work.wait();
            {
                let state = self.state();
                if state.stopping || state.read_only {
                    return Ok(());
                }
            }
            let done = match self.next_job() {
                Some(Job::Checkpoint) => self.checkpoint().await,
                Some(Job::Collect(block)) => self.collect(block, false).await,
                Some(Job::Move(block)) => self.collect(block, true).await,
                None => {
                    work.await;
                    Ok(())
                }
            };
            if let Err(failure) = done {
                self.give_up();
                return Err(failure);
            }
        }
    }

    /// The block with the fewest valid pages, and their number: as hardware finds it, where it does.
    fn victim(&self, victims: &mut VictimBuckets) -> Option<(u32, u32)> {
        match self.port.minimum(victims.counts()) {
            Some(block) => {
                let valid = victims.counts()[block];
                victims.contains(block as u32).then_some((block as u32, valid))
            }
            None => victims.fewest(),
        }
    }

    fn next_job(&self) -> Option<Job> {
        let mut state = self.state();
        let state = &mut *state;
        if state.checkpoint_wanted {
            return Some(Job::Checkpoint);
        }
        let closed = |block: &u32| state.states[*block as usize] == BlockState::Closed;
        if let Some(block) = state.failing.keys().copied().find(closed) {
            return Some(Job::Move(block));
        }
        let free = state.free();
        state.collecting = free < self.config.collect_below
            || state.collecting && free < self.config.collect_below + self.config.collect_batch;
        if state.collecting
            && let Some((victim, valid)) = self.victim(&mut state.victims)
            && valid < state.data_pages()
        {
            return Some(Job::Collect(victim));
        }
        let spread = self.config.wear_spread_max;
        if spread > 0 && state.erases_since_leveling >= LEVELING_INTERVAL {
            state.erases_since_leveling = 0;
            let most = state.by_wear.last()?.0;
            let mut least = state.by_wear.iter().take(LEVELING_CANDIDATES_MAX).filter(|(_, block)| closed(block));
            if let Some((count, block)) = least.next()
                && most - count > spread
            {
                return Some(Job::Move(*block));
            }
        }
        None
    }

    /// Moves what is valid in a block, and frees it.
    async fn collect(&self, block: u32, moves: bool) -> Result<(), Failure> {
        let (pages, data_pages, has_spare) = {
            let mut state = self.state();
            state.victims.remove(block);
            state.states[block as usize] = BlockState::Collecting;
            (state.pages(), state.data_pages(), self.layout.geometry.spare_accessible)
        };
        let mut listed = None;
        let mut found: Option<Vec<u32>> = None;
        for page in 0..data_pages {
            let address = block * pages + page;
            if !self.state().is_valid(address) {
                continue;
            }
            let remembered = self.state().remembered.get(address);
            let known = if let Some((unit, sequence)) = remembered {
                Some((unit, sequence & !COPIED))
            } else if has_spare {
                self.header_of(address).await
            } else {
                if listed.is_none() {
                    listed = Some(self.summary_of(block).await);
                }
                listed.as_ref().and_then(|entries| entries.get(page as usize).copied())
            };
            if !self.state().is_valid(address) {
                continue;
            }
            let points_here = |unit: u32| self.state().map.get(unit as usize) == Some(&address);
            let known: Option<Known> = match known {
                Some((unit, sequence)) if points_here(unit) => Some((unit, Some(sequence | COPIED))),
                _ => {
                    // Neither header nor summary can be read: look for who points to the page.
                    if found.is_none() {
                        found = Some(self.units_of(block).await);
                    }
                    let unit = found.as_ref().map_or(NONE, |found| found[page as usize]);
                    let was_there = self.is_older_than_life(block);
                    // What is older than the last mount is older than a checkpoint, so that any copy beats it.
                    points_here(unit).then_some((unit, was_there.then_some(COPIED)))
                }
            };
            let Some((unit, sequence)) = known else {
                assert!(!self.state().is_valid(address), "each valid page is in the map");
                continue;
            };
            self.copy(unit, address, sequence, moves).await?;
        }
        while self.state().readers[block as usize] > 0 {
            self.settled.wait().await;
        }
        assert!(self.state().valid_counts[block as usize] == 0, "all valid pages were moved");
        self.free_block(block);
        self.room.notify();
        Ok(())
    }

    /// Whether the block was written before the lane was mounted.
    fn is_older_than_life(&self, block: u32) -> bool {
        let state = self.state();
        state.block_sequences[block as usize] < state.life
    }

    /// Moves a page.
    async fn copy(&self, unit: u32, address: u32, sequence: Option<u64>, moves: bool) -> Result<(), Failure> {
        if sequence.is_none() {
            self.keep_hosts_off(unit).await;
        }
        let unconditional = self.has(Planted::CopyUnconditional);
        let source = |state: &State| {
            let counts = state.map[unit as usize] == address;
            Ok((counts || unconditional).then_some(UnitSource::Copy(address)))
        };
        let commit = |state: &mut State, to| {
            if state.map[unit as usize] == address || unconditional {
                state.set_entry(unit, to);
            }
            let counters = &mut state.counters;
            *if moves { &mut counters.leveled_pages } else { &mut counters.collected_pages } += 1;
        };
        let result = self.append(Stream::Collection, unit, sequence, source, commit).await;
        let result = match result {
            Err(Failure::Media) => {
                self.keep_hosts_off(unit).await;
                let mut state = self.state();
                if state.map[unit as usize] == address {
                    state.set_entry(unit, LOST);
                    let sequence = state.next_sequence();
                    state.pending.push_back(Record::Lost { unit, sequence });
                    state.counters.media_errors += 1;
                }
                Ok(())
            }
            result => result,
        };
        if self.state().moving.take().is_some() {
            self.settled.notify();
        }
        result
    }

    /// Waits until no host writes that page, and has them wait until `moving` is taken away.
    async fn keep_hosts_off(&self, unit: u32) {
        self.state().moving = Some(unit);
        while self.state().writing.is_some_and(|(writing, _)| writing == unit) {
            self.settled.wait().await;
        }
    }

    /// The header of a page, from the first part that can be read.
    pub(crate) async fn header_of(&self, address: u32) -> Option<(u32, u64)> {
        for part in 0..self.layout.parts() {
            let mut bytes = [0; HEADER_BYTES];
            let status = self.read_part(address, part, 0, 0, Sink::Local(&mut []), &mut bytes).await;
            if status.is_done()
                && let Some(header) = Header::decode(&bytes)
            {
                return Some((header.logical, header.sequence & !COPIED));
            }
        }
        None
    }

    /// What a block holds, where firmware does not reach the spare area: from memory, or from its summary. Empty: unknown.
    pub(crate) async fn summary_of(&self, block: u32) -> Vec<(u32, u64)> {
        let strip =
            |entries: &[(u32, u64)]| entries.iter().map(|(unit, sequence)| (*unit, sequence & !COPIED)).collect();
        if let Some(headers) = self.state().headers.get(&block) {
            return strip(&headers.entries);
        }
        match self.read_summary(block).await {
            Some((_, entries)) => strip(&entries),
            None => Vec::new(),
        }
    }

    /// Reads a summary: the block's sequence, and the headers.
    pub(crate) async fn read_summary(&self, block: u32) -> Option<(u32, Vec<(u32, u64)>)> {
        let mut page = Vec::new();
        let last = (block + 1) * self.layout.geometry.pages_per_block - 1;
        if !self.read_metadata(last, &mut page).await.is_done() {
            return None;
        }
        let (header, payload) = decode_page(&page, self.layout.lane as u16)?;
        let record = Record::decode(&mut Reader::new(payload))?;
        match record {
            Record::Headers { block: of, block_sequence, first_page: 0, entries }
                if header.kind == PageKind::Summary && of == block =>
            {
                Some((block_sequence, entries))
            }
            _ => None,
        }
    }

    /// The logical page that points to each page of a block, or [`NONE`]: by looking through the map.
    async fn units_of(&self, block: u32) -> Vec<u32> {
        let pages = self.layout.geometry.pages_per_block;
        let mut found = vec![NONE; pages as usize];
        let units = self.config.units as usize;
        for first in (0..units).step_by(SLICE) {
            if first > 0 {
                self.port.pause().await;
            }
            let state = self.state();
            for unit in first..units.min(first + SLICE) {
                let entry = state.map[unit];
                if entry / pages == block && entry < LOST {
                    found[(entry % pages) as usize] = unit as u32;
                }
            }
        }
        found
    }
}
