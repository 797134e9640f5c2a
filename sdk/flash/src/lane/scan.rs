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
use crate::wait::join_all;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec;
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
    /// Serials of pages that are no records: of checkpoints.
    pub checkpoint_serials: BTreeSet<u64>,
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
    ///
    /// Pages are looked at by groups: those of which a later one endangers an earlier one; without pairs each page is a group. A group that is whole
    /// was not hurt by a cut, so what is missing in it was lost by the media: either a copy of it is there, or the gap in the serials tells.
    pub(crate) async fn read_log(&self, root: &Root, found: &mut Found) -> Result<(), MountError> {
        let geometry = self.layout.geometry;
        let pages = geometry.pages_per_block;
        let group = geometry.group_pages();
        let (mut block, mut page) = (root.log_address / pages, root.log_address % pages);
        let (mut block_sequence, mut next) = (root.log_block_sequence, root.log_next);
        let mut buffer = Vec::new();
        found.serial = root.log_serial;
        let mut sound = self.is_log_block(block, page);
        // Behind a page that a cut has destroyed in an unsettled group nothing counts.
        let mut has_ended = false;
        while sound {
            found.log_blocks.push(block);
            // Pages that cannot be read, and of which it is not known yet whether they were copies, or torn.
            let mut hole = false;
            let mut is_erased = false;
            while page < pages && !is_erased {
                let end = ((page / group + 1) * group).min(pages);
                let mut readable = Vec::new();
                let (mut unreadable, mut is_whole) = (false, false);
                while page < end {
                    let status = self.read_metadata(block * pages + page, &mut buffer).await;
                    is_erased = status == Status::Erased;
                    if is_erased {
                        break;
                    }
                    let decoded = decode_page(&buffer, self.layout.lane as u16);
                    let decoded =
                        decoded.filter(|(header, _)| status.is_done() && header.block_sequence == block_sequence);
                    is_whole = decoded.is_some() && page + 1 == end;
                    match decoded {
                        Some((header, payload)) => {
                            next = header.next;
                            readable.push((header.serial, page, header.kind, Vec::from(payload)));
                        }
                        None => unreadable = true,
                    }
                    page += 1;
                }
                // The original before its copies.
                readable.sort_unstable_by_key(|(serial, page, _, _)| (*serial, *page));
                for (serial, page, kind, payload) in readable {
                    let damaged = MountError::LogDamaged { block, page };
                    while found.checkpoint_serials.contains(&found.serial) {
                        found.serial += 1;
                    }
                    if has_ended {
                        return Err(damaged);
                    }
                    if serial > found.serial {
                        if group == 1 || is_whole || hole || !unreadable {
                            return Err(damaged);
                        }
                        has_ended = true;
                        break;
                    }
                    hole = false;
                    // Less: a copy, or a page that failed, can be read all the same, and was written again.
                    if serial == found.serial {
                        found.serial += 1;
                        if kind == PageKind::Log {
                            self.take_records(&payload, found).map_err(|()| damaged)?;
                        }
                    }
                }
                if unreadable && hole {
                    // One group may be torn, at the end; this one is behind another.
                    return Err(MountError::LogDamaged { block, page: page - 1 });
                }
                hole |= unreadable;
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
        let mut headers = vec![[0; HEADER_BYTES]; self.layout.parts() as usize];
        for page in from..pages {
            let address = block * pages + page;
            let (mut header, mut unreadable, mut void) = (None, false, false);
            // Of all planes at once.
            let parts = headers.iter_mut().zip(0..);
            let reads = parts.map(|(bytes, part)| self.read_part(address, part, 0, 0, Sink::Local(&mut []), bytes));
            let statuses = join_all(reads).await;
            for ((bytes, status), part) in headers.iter().zip(statuses).zip(0..) {
                let decoded = Header::decode(bytes).filter(|decoded| status.is_done() && decoded.part == part);
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
