//! What hosts ask for: reading, writing, trimming and flushing logical pages of a lane.
//!
//! What always holds:
//! - a write that has ended is what reads give; durable it is after a flush, or at once where spare areas are reached and no later program
//!   endangers it;
//! - a trim is durable after a flush: nothing that was there before comes back then;
//! - part of a page is written by reading the rest of the old one, from flash to flash, and programming a new one.

use super::program::UnitSource;
use super::records::Record;
use super::state::{ADDRESSES_MAX, LOST, State, Stream, UNMAPPED};
use super::{Failure, Lane, PENDING_RECORDS_MAX, SLICE};
use crate::Planted;
use crate::port::{FlashPort, Peer, Sink, Status};
use crate::wait::join_all;

/// A write to part of a logical page, or to all of it.
#[derive(Clone, Copy, Debug)]
pub struct Update {
    /// Which.
    pub unit: u32,
    /// First byte that is written.
    pub start: u32,
    /// The byte behind the last.
    pub end: u32,
    /// Where the bytes come from, and the first one's offset there; `None`: zeroes.
    pub peer: Option<(Peer, u32)>,
}

/// Where the logical pages of a lane lie: the entry of one is `block * pages_per_block + page`, and its parts are those of the lane's [`crate::Layout`], as long as
/// `moved` has a zero for the block. Entries of blocks that there are not stand for pages that hold nothing, or were lost.
#[derive(Clone, Copy, Debug)]
pub struct LaneMap<'a> {
    /// By logical page.
    pub entries: &'a [u32],
    /// By block: other than 0 where a part of it lies elsewhere.
    pub moved: &'a [u8],
}

impl<P: FlashPort> Lane<P> {
    fn entry(&self, unit: u32) -> Result<u32, Failure> {
        self.state().map.get(unit as usize).copied().ok_or(Failure::Range)
    }

    /// Whether what a write has done is durable when it ends, without a flush.
    pub fn is_durable_at_once(&self) -> bool {
        self.layout.geometry.is_durable_at_once()
    }

    /// Reads bytes of a logical page to a peer.
    pub async fn read(&self, unit: u32, start: u32, end: u32, peer: Peer, offset: u32) -> Result<(), Failure> {
        if start > end || end > self.layout.unit_bytes() {
            return Err(Failure::Range);
        }
        let address = match self.entry(unit)? {
            UNMAPPED => {
                return match self.port.zero_peer(peer, offset, end - start).await {
                    Status::Done { .. } => Ok(()),
                    _ => Err(Failure::PeerEnded),
                };
            }
            LOST => return Err(Failure::Media),
            address => address,
        };
        self.state().pin(address);
        let page_bytes = self.layout.geometry.page_bytes;
        let parts = start / page_bytes..end.div_ceil(page_bytes);
        let read = |part: u32| {
            let first = start.max(part * page_bytes);
            let bytes = end.min((part + 1) * page_bytes) - first;
            let sink = Sink::Peer { peer, offset: offset + first - start };
            async move { self.read_part(address, part, first - part * page_bytes, bytes, sink, &mut []).await }
        };
        let result = if parts.len() <= 1 {
            self.read_outcome(if parts.is_empty() {
                Status::Done { corrected_bits: 0 }
            } else {
                read(parts.start).await
            })
        } else {
            let statuses = join_all(parts.map(read)).await;
            statuses.into_iter().try_for_each(|status| self.read_outcome(status))
        };
        self.state().unpin(address);
        self.settled.notify();
        result
    }

    fn read_outcome(&self, status: Status) -> Result<(), Failure> {
        match status {
            Status::Done { .. } => Ok(()),
            Status::PeerEnded => Err(Failure::PeerEnded),
            Status::Misuse(reason) => Err(Failure::Misuse(reason)),
            _ => {
                self.state().counters.media_errors += 1;
                Err(Failure::Media)
            }
        }
    }

    /// Writes a logical page, or part of it.
    pub async fn write(&self, update: Update) -> Result<(), Failure> {
        let Update { unit, start, end, peer } = update;
        let unit_bytes = self.layout.unit_bytes();
        if start >= end || end > unit_bytes {
            return if start == end { Ok(()) } else { Err(Failure::Range) };
        }
        self.entry(unit)?;
        let source = |state: &State| {
            let old = match state.map[unit as usize] {
                _ if end - start == unit_bytes => None,
                LOST => return Err(Failure::Media),
                UNMAPPED => None,
                address => Some(address),
            };
            Ok(Some(UnitSource::Update { peer, start, end, old }))
        };
        let commit = |state: &mut State, address| {
            state.set_entry(unit, address);
            state.counters.host_pages += 1;
            state.counters.host_bytes += u64::from(end - start);
            state.counters.merged_bytes += u64::from(unit_bytes - (end - start));
        };
        let result = self.append(Stream::Host, unit, None, source, commit).await;
        if result == Err(Failure::Media) {
            self.state().counters.media_errors += 1;
        }
        result
    }

    /// Logical pages hold nothing from now on, and read as zeroes.
    pub async fn trim(&self, unit: u32, count: u32) -> Result<(), Failure> {
        let end = unit.checked_add(count).filter(|end| *end <= self.config.units).ok_or(Failure::Range)?;
        let must_wait = || {
            let state = self.state();
            let is_moved = state.moving.is_some_and(|moving| (unit..end).contains(&moving));
            (state.checkpoint_wanted || is_moved) && !state.read_only
        };
        while must_wait() {
            let settled = self.settled.wait();
            self.work.notify();
            settled.await;
        }
        {
            let mut state = self.state();
            if state.read_only {
                return Err(Failure::ReadOnly);
            }
            state.trims += 1;
            // The record comes first, so that no sync frees a page without it.
            let sequence = state.next_sequence();
            if !self.has(Planted::TrimForgotten) {
                state.pending.push_back(Record::Trim { unit, count, sequence });
            }
        }
        for first in (unit..end).step_by(SLICE) {
            if first != unit {
                self.port.pause().await;
            }
            let mut state = self.state();
            for unit in first..end.min(first.saturating_add(SLICE as u32)) {
                state.set_entry(unit, UNMAPPED);
            }
        }
        let records = {
            let mut state = self.state();
            state.trims -= 1;
            state.pending.len()
        };
        self.settled.notify();
        self.work.notify();
        if records >= PENDING_RECORDS_MAX { self.sync(Stream::Host, false).await } else { Ok(()) }
    }

    /// All that has ended when this is called is durable when it ends.
    pub async fn flush(&self) -> Result<(), Failure> {
        if self.state().is_read_only_since_mount {
            return Ok(());
        }
        self.sync(Stream::Host, false).await
    }

    /// Where its logical pages lie, for who reads them without asking ([`LaneMap`]). Both slices stay at their places in memory for as long as the lane
    /// is there; after each wait of any handler they are as true as what [`Lane::read`] goes by.
    pub fn with_map<R>(&self, look: impl FnOnce(LaneMap<'_>) -> R) -> R {
        let state = self.state();
        look(LaneMap { entries: &state.map, moved: state.replacements.moved() })
    }

    /// Whether something is stored in a logical page.
    pub fn is_mapped(&self, unit: u32) -> bool {
        self.entry(unit).is_ok_and(|entry| entry < ADDRESSES_MAX || entry == LOST)
    }
}
