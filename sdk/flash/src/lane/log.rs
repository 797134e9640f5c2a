//! The log: records of what the headers of pages do not tell, in metadata blocks that follow one another.
//!
//! What always holds:
//! - [`Lane::sync`] ends when all is durable that had taken effect when it was called;
//! - it is the one place where freed blocks become ready to be erased: those that were free when it was called;
//! - a page that failed is written again, with the same serial, in the next block; a page names the blocks that follow its own;
//! - where later pages endanger earlier ones, what fills up a group of the log are copies of its pages, with their serials: one page that rots takes nothing.

use super::program::{Programmed, UnitSource};
use super::records::{
    HEADERS_ENTRY_BYTES, PAGE_HEADER_BYTES, PageHeader, PageKind, PagePlace, RECORD_BYTES_MAX, Record, SUCCESSORS,
    Successors, encode_page,
};
use super::state::{BlockState, Metadata, Place, Stream};
use super::{ATTEMPTS_MAX, Failure, Lane};
use crate::Planted;
use crate::header::{Header, Kind, NONE, Previous};
use crate::port::FlashPort;
use alloc::vec::Vec;

impl Metadata {
    /// The blocks that come next.
    pub fn successors(&self) -> Successors {
        core::array::from_fn(|index| self.pool.get(index).copied().unwrap_or((NONE, 0)))
    }
}

/// A page of the log that is put together.
struct Draft {
    payload: Vec<u8>,
    /// Blocks whose headers are in it, and up to which page.
    logged: Vec<(u32, usize)>,
    reserved: Vec<u32>,
    is_last: bool,
}

/// A page that was written to the log: what copies of it are made of.
pub(crate) struct LogPage {
    group: u32,
    serial: u64,
    payload: Vec<u8>,
}

impl<P: FlashPort> Lane<P> {
    /// Makes durable what has taken effect. `reserve`: and has the log reserve blocks for the streams.
    pub(crate) async fn sync(&self, who: Stream, reserve: bool) -> Result<(), Failure> {
        let log_is_full = || {
            let mut state = self.state();
            let is_full = !state.read_only && state.metadata.log_pages >= 2 * self.config.log_pages_max;
            state.checkpoint_wanted |= is_full;
            is_full
        };
        while who == Stream::Host && log_is_full() {
            let room = self.room.wait();
            self.work.notify();
            room.await;
        }
        let freed = self.state().freed_serial;
        if !(reserve && self.has(Planted::EraseBeforeDurable)) {
            self.settle_streams().await?;
        }
        let _guard = self.metadata_lock.lock().await;
        self.write_log(freed, reserve).await
    }

    /// Writes all records. The caller holds the lock of the metadata.
    async fn write_log(&self, freed: u64, reserve: bool) -> Result<(), Failure> {
        let mut written: Vec<LogPage> = Vec::new();
        let reserved = loop {
            let draft = self.draft(freed, reserve);
            if !draft.payload.is_empty() {
                let place = self.append_metadata(PageKind::Log, &draft.payload, None).await?;
                let group = self.layout.geometry.group_of(place.address);
                written.retain(|page| page.group == group);
                written.push(LogPage { group, serial: place.serial, payload: draft.payload });
                let mut state = self.state();
                state.metadata.log_pages += 1;
                for (block, logged) in draft.logged {
                    if let Some(headers) = state.headers.get_mut(&block) {
                        headers.logged = headers.logged.max(logged);
                    }
                }
                if state.metadata.log_pages >= self.config.log_pages_max {
                    state.checkpoint_wanted = true;
                    self.work.notify();
                }
            }
            if draft.is_last {
                break draft.reserved;
            }
        };
        // Only what nothing endangers any more may be built upon.
        self.settle_metadata(&written).await?;
        loop {
            let mut state = self.state();
            let Some((_, block)) = state.freed.front().copied().filter(|(serial, _)| *serial <= freed) else { break };
            state.freed.pop_front();
            if !state.failing.contains_key(&block) {
                state.make_ready(block);
                continue;
            }
            drop(state);
            if self.repair(block) {
                // Free again once the record of the repair is durable.
                self.free_block(block);
            }
        }
        let mut state = self.state();
        for block in reserved {
            let wear = state.erase_counts[block as usize];
            // It may have become metadata meanwhile; then the record is of no consequence.
            if state.ready.remove(&(wear, block)) {
                state.states[block as usize] = BlockState::Reserved;
                state.reserved.push(block);
            }
        }
        Ok(())
    }

    fn draft(&self, freed: u64, reserve: bool) -> Draft {
        let mut state = self.state();
        let state = &mut *state;
        let capacity = self.layout.unit_bytes() as usize - PAGE_HEADER_BYTES;
        let mut draft = Draft { payload: Vec::new(), logged: Vec::new(), reserved: Vec::new(), is_last: true };
        let (streams, group) = (state.streams, self.layout.geometry.settled_from(1).max(1));
        let skipped = reserve && self.has(Planted::EraseBeforeDurable);
        while !skipped && draft.payload.len() + RECORD_BYTES_MAX <= capacity {
            let Some(record) = state.pending.pop_front() else { break };
            record.encode(&mut draft.payload);
        }
        for (&block, headers) in state.headers.iter().filter(|_| !skipped) {
            // Of a block that is being written, what a later program does not endanger.
            let open = streams.iter().flatten().find(|open| open.block == block);
            let sound = open.map_or(headers.entries.len(), |open| (open.next_page / group * group) as usize);
            let room = capacity.saturating_sub(draft.payload.len() + RECORD_BYTES_MAX) / HEADERS_ENTRY_BYTES;
            let end = sound.min(headers.logged + room);
            if end > headers.logged {
                let record = Record::Headers {
                    block,
                    block_sequence: headers.block_sequence,
                    first_page: headers.logged as u32,
                    entries: headers.entries[headers.logged..end].to_vec(),
                };
                record.encode(&mut draft.payload);
                draft.logged.push((block, end));
            }
            draft.is_last &= end >= sound;
        }
        draft.is_last &= skipped || state.pending.is_empty();
        if reserve && draft.is_last {
            let wanted = self.config.collect_batch.max(1) as usize;
            let covered = state.freed.iter();
            let covered = covered.filter(|(serial, block)| *serial <= freed && !state.failing.contains_key(block));
            let covered = covered.map(|(_, block)| (state.erase_counts[*block as usize], *block));
            let mut candidates: Vec<_> = state.ready.iter().copied().take(wanted).chain(covered).collect();
            candidates.sort_unstable();
            candidates.truncate(wanted.saturating_sub(state.reserved.len()));
            for (_, block) in candidates {
                if draft.payload.len() + RECORD_BYTES_MAX > capacity {
                    draft.is_last = !draft.reserved.is_empty();
                    break;
                }
                let block_sequence = state.next_block_sequence();
                state.block_sequences[block as usize] = block_sequence;
                Record::Reserve { block, block_sequence }.encode(&mut draft.payload);
                draft.reserved.push(block);
            }
        }
        draft
    }

    /// Programs copies of the log's pages, or fillers where there are none, until no later program endangers the metadata. The caller holds the lock of the
    /// metadata.
    pub(crate) async fn settle_metadata(&self, written: &[LogPage]) -> Result<(), Failure> {
        let geometry = self.layout.geometry;
        if geometry.paired_distance == 0 || self.has(Planted::UnsettledFlush) {
            return Ok(());
        }
        let mut copies = written.iter().rev().cycle();
        loop {
            let open = self.state().metadata.open;
            match (open, copies.next()) {
                (Some(place), copy) if geometry.settled_from(place.next_page) != place.next_page => match copy {
                    Some(copy) => self.append_metadata(PageKind::Log, &copy.payload, Some(copy.serial)).await?,
                    // It has no serial of its own, so that nothing is missing where it is lost.
                    None => {
                        let last = self.state().metadata.serial - 1;
                        self.append_metadata(PageKind::Filler, &[], Some(last)).await?
                    }
                },
                _ => return Ok(()),
            };
        }
    }

    /// Programs a page of metadata, or a copy of the one with that serial. The caller holds the lock of the metadata.
    pub(crate) async fn append_metadata(
        &self,
        kind: PageKind,
        payload: &[u8],
        copy_of: Option<u64>,
    ) -> Result<PagePlace, Failure> {
        let mut page = Vec::new();
        let mut in_vain = 0;
        for _ in 0..ATTEMPTS_MAX {
            let opened = {
                let mut state = self.state();
                let pages = state.pages();
                match state.metadata.open {
                    Some(place) if place.next_page < pages => Some(place),
                    _ if in_vain == SUCCESSORS => None,
                    _ => state.metadata.pool.pop_front().map(|(block, block_sequence)| {
                        let place = Place { block, block_sequence, next_page: 0 };
                        state.metadata.live.push_back(block);
                        state.metadata.open = Some(place);
                        place
                    }),
                }
            };
            let Some(place) = opened else { break };
            let serial = {
                let state = self.state();
                let header = PageHeader {
                    kind,
                    lane: self.layout.lane as u16,
                    serial: copy_of.unwrap_or(state.metadata.serial),
                    block_sequence: place.block_sequence,
                    next: state.metadata.successors(),
                };
                encode_page(&header, payload, &mut page, &self.layout);
                header.serial
            };
            let header = Header {
                kind: Kind::Metadata,
                logical: NONE,
                sequence: serial,
                block_sequence: place.block_sequence,
                part: 0,
                previous: Previous::NOTHING,
            };
            match self.program_unit(place, UnitSource::Local(&page), header).await {
                Programmed::Done => {
                    let mut state = self.state();
                    state.counters.metadata_pages += 1;
                    state.metadata.serial += u64::from(copy_of.is_none());
                    state.metadata.open = Some(Place { next_page: place.next_page + 1, ..place });
                    return Ok(PagePlace { address: place.block * state.pages() + place.next_page, serial });
                }
                Programmed::Failed => {
                    in_vain = if place.next_page == 0 { in_vain + 1 } else { 0 };
                    self.state().metadata.open = None;
                }
                Programmed::Misuse(reason) => return Err(Failure::Misuse(reason)),
                _ => return Err(Failure::Misuse("a program from local memory lost its source")),
            }
        }
        self.give_up();
        Err(Failure::ReadOnly)
    }
}
