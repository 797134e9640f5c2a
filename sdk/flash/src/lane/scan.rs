//! What recovery reads: the log since a checkpoint, and the blocks that were written since.
//!
//! What always holds: only blocks that the checkpoint or the log names are looked at, and what is found there counts only if it bears
//! the block sequence that they say. Of two versions of a logical page that with the higher sequence counts; of copies of one version the original, then
//! the one that was made first, since what was copied is still there, and a copy that does not count leaves its block free.

use super::records::{NONE, PageKind, Reader, Record, Root, decode_page};
use super::{Lane, MountError};
use crate::Planted;
use crate::header::{COPIED, HEADER_BYTES, Header, Kind, Previous};
use crate::port::{FlashPort, Sink, Status};
use crate::replacements::Replacement;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

/// Where a version of a logical page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    pub address: u32,
    pub block_sequence: u32,
}

/// What was found since a checkpoint.
#[derive(Default)]
pub(crate) struct Found {
    pub versions: BTreeMap<u32, (u64, Version)>,
    /// Blocks that streams may have written to: the block's sequence, and the first page that the checkpoint does not know.
    pub candidates: BTreeMap<u32, (u32, u32)>,
    /// Of blocks without a summary: headers in the log, by block and its sequence.
    pub headers: BTreeMap<(u32, u32), BTreeMap<u32, (u32, u64)>>,
    /// Blocks of the log, in order, and blocks that were to follow.
    pub log_blocks: Vec<u32>,
    /// Blocks that may have been erased since the checkpoint.
    pub gone: BTreeSet<u32>,
    pub records: Vec<Record>,
    /// What pages say of those before them.
    pub previous: Vec<Previous>,
    pub serial: u64,
    pub sequence: u64,
    pub block_sequence: u32,
}

impl Found {
    /// Pages that were written, as their successors say, and were not found: the media have lost them. Reading them fails, and nothing
    /// older comes back.
    pub fn take_lost(&mut self, pages: u32) {
        for Previous { logical, sequence, address, block_sequence } in core::mem::take(&mut self.previous) {
            // In a block that was not looked at, or not from there on, the checkpoint knows it.
            let block = self.candidates.get(&(address / pages));
            if block.is_some_and(|(life, from)| *life == block_sequence && address % pages >= *from) {
                self.offer(logical, sequence, Version { address, block_sequence }, false);
            }
        }
    }

    fn offer(&mut self, unit: u32, sequence: u64, version: Version, wrong: bool) {
        let rank = |sequence: u64, version: Version| {
            let place = core::cmp::Reverse((version.block_sequence, version.address));
            (sequence & !COPIED, sequence & COPIED == 0, place)
        };
        self.sequence = self.sequence.max((sequence & !COPIED) + 1);
        match self.versions.get(&unit) {
            Some(&(known, than)) if (rank(known, than) >= rank(sequence, version)) != wrong => {}
            _ => {
                self.versions.insert(unit, (sequence, version));
            }
        }
    }
}

impl<P: FlashPort> Lane<P> {
    /// Reads the log from where the root says.
    pub(crate) async fn read_log(&self, root: &Root, found: &mut Found) -> Result<(), MountError> {
        let geometry = self.layout.geometry;
        let pages = geometry.pages_per_block;
        let group = (2 * geometry.paired_distance).max(1);
        let (mut block, mut page) = (root.log_address / pages, root.log_address % pages);
        let (mut block_sequence, mut next) = (root.log_block_sequence, root.log_next);
        let mut buffer = Vec::new();
        found.serial = root.log_serial;
        // Behind a page that was lost in an unsettled group nothing counts.
        let mut ended: Option<(u32, u32)> = None;
        let mut sound = self.is_log_block(block, page);
        while sound {
            found.log_blocks.push(block);
            let mut hole: Option<u32> = None;
            while page < pages {
                let status = self.read_metadata(block * pages + page, &mut buffer).await;
                if status == Status::Erased {
                    break;
                }
                if let Some((header, payload)) = decode_page(&buffer, self.layout.lane as u16)
                    && status.is_done()
                    && header.block_sequence == block_sequence
                {
                    hole = None;
                    next = header.next;
                    // A page that failed and can be read all the same was written again.
                    let is_again = header.serial < found.serial;
                    if header.serial > found.serial && ended.is_none() {
                        ended = Some((block, page / group));
                    }
                    match ended {
                        Some(_) if group == 1 => return Err(MountError::LogDamaged { block, page }),
                        Some(at) if at != (block, page / group) => {
                            return Err(MountError::LogDamaged { block, page });
                        }
                        Some(_) => {}
                        None if is_again => {}
                        None => {
                            found.serial += 1;
                            if header.kind == PageKind::Log {
                                self.take_records(payload, found)
                                    .map_err(|()| MountError::LogDamaged { block, page })?;
                            }
                        }
                    }
                } else if hole.is_some_and(|hole| hole / group != page / group) {
                    // One page may be torn, at the end; this one is behind another.
                    return Err(MountError::LogDamaged { block, page });
                } else {
                    hole = Some(page);
                }
                page += 1;
            }
            if ended.is_some_and(|(at, _)| at == block)
                && page > 0
                && self.read_unit(block * pages + page - 1, &mut buffer).await.is_done()
            {
                // Nothing is torn, so no program has destroyed the page that is missing.
                return Err(MountError::LogDamaged { block, page });
            }
            // The first of the successors whose first page can be read.
            sound = false;
            for (successor, sequence) in next {
                if !self.is_log_block(successor, 0) || found.log_blocks.contains(&successor) {
                    continue;
                }
                found.gone.insert(successor);
                found.block_sequence = found.block_sequence.max(sequence + 1);
                if sound {
                    continue;
                }
                // Where the first page cannot be read, those behind it tell whether it was lost or torn.
                for first in 0..=group.min(pages - 1) {
                    if !sound && self.is_page_of_log(successor * pages + first, sequence, &mut buffer).await {
                        (block, page, block_sequence) = (successor, 0, sequence);
                        sound = true;
                    }
                }
            }
        }
        found.gone.extend(&found.log_blocks);
        Ok(())
    }

    async fn is_page_of_log(&self, address: u32, block_sequence: u32, buffer: &mut Vec<u8>) -> bool {
        let status = self.read_metadata(address, buffer).await;
        let header = decode_page(buffer, self.layout.lane as u16);
        status.is_done() && header.is_some_and(|(header, _)| header.block_sequence == block_sequence)
    }

    fn is_log_block(&self, block: u32, page: u32) -> bool {
        (block as usize) < self.state().states.len() && page <= self.layout.geometry.pages_per_block
    }

    fn take_records(&self, payload: &[u8], found: &mut Found) -> Result<(), ()> {
        let blocks = self.state().states.len() as u32;
        let pages = self.layout.geometry.pages_per_block;
        let mut reader = Reader::new(payload);
        while !reader.is_empty() {
            let record = Record::decode(&mut reader).ok_or(())?;
            let sound = match &record {
                Record::Trim { unit, count, .. } => {
                    unit.checked_add(*count).is_some_and(|end| end <= self.config.units)
                }
                Record::Lost { unit, .. } => *unit < self.config.units,
                Record::Reserve { block, .. } | Record::Retire { block } => *block < blocks,
                Record::Headers { block, first_page, entries, .. } => {
                    *block < blocks && u64::from(*first_page) + entries.len() as u64 <= u64::from(pages)
                }
                Record::Replace(_) => true,
            };
            if !sound {
                return Err(());
            }
            match &record {
                Record::Reserve { block, block_sequence } => {
                    found.candidates.insert(*block, (*block_sequence, 0));
                    found.gone.insert(*block);
                    found.block_sequence = found.block_sequence.max(block_sequence + 1);
                }
                Record::Replace(Replacement { block, .. }) | Record::Retire { block } => {
                    // Nothing in it counted any more, and what lies in its place was never written.
                    found.gone.insert(*block);
                    found.candidates.remove(block);
                }
                Record::Headers { block, block_sequence, first_page, entries } => {
                    let of_block = found.headers.entry((*block, *block_sequence)).or_default();
                    of_block.extend((*first_page..).zip(entries.iter().copied()));
                }
                _ => {}
            }
            found.records.push(record);
        }
        Ok(())
    }

    /// Looks at a block that a stream may have written to.
    pub(crate) async fn scan_block(&self, block: u32, block_sequence: u32, from: u32, found: &mut Found) {
        if self.layout.geometry.spare_accessible {
            return self.scan_headers(block, block_sequence, from, found).await;
        }
        let pages = self.layout.geometry.pages_per_block;
        let wrong = self.has(Planted::WrongSequence);
        let unchecked = self.has(Planted::HeaderUnchecked);
        let entries: Vec<(u32, (u32, u64))> = match self.read_summary(block).await {
            Some((sequence, entries)) if sequence == block_sequence || unchecked => (0u32..).zip(entries).collect(),
            _ => found.headers.remove(&(block, block_sequence)).unwrap_or_default().into_iter().collect(),
        };
        // A summary that was torn, and can be read in some part all the same, may have destroyed its lower page.
        let mut destroyed = None;
        if let Some(lower) = self.layout.geometry.lower_page(pages - 1) {
            let mut buffer = Vec::new();
            let torn = !self.read_unit(block * pages + pages - 1, &mut buffer).await.is_done();
            let lost = !self.read_unit(block * pages + lower, &mut buffer).await.is_done();
            destroyed = (torn && lost).then_some(lower);
        }
        for (page, (unit, sequence)) in entries {
            if page >= from && unit < self.config.units && destroyed != Some(page) {
                let version = Version { address: block * pages + page, block_sequence };
                found.offer(unit, sequence, version, wrong);
            }
        }
    }

    async fn scan_headers(&self, block: u32, block_sequence: u32, from: u32, found: &mut Found) {
        let pages = self.layout.geometry.pages_per_block;
        // Pages some part of which cannot be read. Torn is the last one that was written alone, and its lower page is destroyed with it; others the
        // media have lost.
        let mut damaged: Vec<(u32, Header)> = Vec::new();
        let mut heard: Vec<Previous> = Vec::new();
        let (mut written, mut is_whole) = (from, true);
        for page in from..pages {
            let address = block * pages + page;
            let (mut header, mut unreadable, mut void) = (None, false, false);
            for part in 0..self.layout.parts() {
                let mut bytes = [0; HEADER_BYTES];
                let status = self.read_part(address, part, 0, 0, Sink::Local(&mut []), &mut bytes).await;
                let decoded = Header::decode(&bytes).filter(|decoded| status.is_done() && decoded.part == part);
                let Some(decoded) = decoded else {
                    void |= status == Status::Erased;
                    unreadable |= status != Status::Erased;
                    continue;
                };
                // Parts differ where a source was lost, and a filler took its place.
                void |= header.is_some_and(|header: Header| Header { part, ..header } != decoded);
                header = header.or(Some(decoded));
            }
            let Some(header) = header else {
                if unreadable {
                    (written, is_whole) = (page + 1, false);
                    continue;
                }
                break;
            };
            if header.block_sequence != block_sequence && !self.has(Planted::HeaderUnchecked) {
                // Left from an earlier life.
                break;
            }
            (written, is_whole) = (page + 1, !unreadable && !void);
            heard.push(header.previous);
            if header.kind != Kind::Data || header.logical >= self.config.units {
                continue;
            }
            if !unreadable && !void {
                let version = Version { address, block_sequence };
                found.offer(header.logical, header.sequence, version, self.has(Planted::WrongSequence));
            } else if !void {
                damaged.push((page, header));
            }
        }
        let last = written.saturating_sub(1);
        let is_torn = |address: u32| {
            let (of, page) = (address / pages, address % pages);
            let lower = self.layout.geometry.lower_page(last);
            // The page behind the last one may have been begun, and look erased all the same: its lower page is destroyed then.
            let begun = if written < pages { self.layout.geometry.lower_page(written) } else { None };
            of == block && (!is_whole && (page == last || lower == Some(page)) || begun == Some(page))
        };
        for previous in heard {
            if !is_torn(previous.address) && previous.logical < self.config.units {
                found.previous.push(previous);
            }
        }
        for (page, header) in damaged {
            found.sequence = found.sequence.max((header.sequence & !COPIED) + 1);
            if !is_torn(block * pages + page) {
                let version = Version { address: block * pages + page, block_sequence };
                found.offer(header.logical, header.sequence, version, false);
            }
        }
    }
}

/// What the checkpoint's streams and reserved blocks say: where to look first.
pub(crate) fn candidates_of(root: &Root) -> BTreeMap<u32, (u32, u32)> {
    let open = root.streams.iter().filter(|stream| stream[0] != NONE);
    let open = open.map(|stream| (stream[0], (stream[1], stream[2])));
    root.reserved.iter().map(|(block, sequence)| (*block, (*sequence, 0))).chain(open).collect()
}
