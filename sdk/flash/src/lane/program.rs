//! Virtual pages on the flash: reading, programming and erasing all their parts at the same time, and what becomes of blocks that fail.

use super::state::{BlockState, Place};
use super::{Failure, Lane};
use crate::geometry::PLANES_MAX;
use crate::header::{HEADER_BYTES, Header};
use crate::lane::records::{Record, decode_page};
use crate::port::{FlashPort, Peer, ProgramPage, Read, Segment, Sink, Source, Status};
use crate::wait::join_all;
use alloc::vec::Vec;

/// What a virtual page is made of.
#[derive(Clone, Copy, Debug)]
pub(crate) enum UnitSource<'a> {
    /// Bytes `start..end` from a peer or zeroes, the others from an old page, or zeroes where there is none.
    Update { peer: Option<(Peer, u32)>, start: u32, end: u32, old: Option<u32> },
    /// Another page.
    Copy(u32),
    /// Another page, moved by copyback: each part stays in its plane.
    CopyWithin(u32),
    /// Local memory: as many bytes as a virtual page has, or as one part, for each of them.
    Local(&'a [u8]),
    /// Zeroes.
    Zeroes,
}

impl UnitSource<'_> {
    /// The page of a host's write that must stay where it is meanwhile.
    pub fn pinned(&self) -> Option<u32> {
        match self {
            UnitSource::Update { old, .. } => *old,
            _ => None,
        }
    }
}

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Programmed {
    Done,
    /// Parts that failed; the block must not be used any more.
    Failed,
    /// A source cannot be read. `consumed`: the page is programmed all the same, with nothing in it.
    SourceLost {
        consumed: bool,
    },
    PeerEnded {
        consumed: bool,
    },
    Misuse(&'static str),
}

const NO_SEGMENT: Segment<'static> = Segment { source: Source::Zeroes, bytes: 0 };

impl<P: FlashPort> Lane<P> {
    /// Programs a virtual page.
    pub(crate) async fn program_unit(&self, place: Place, source: UnitSource<'_>, header: Header) -> Programmed {
        let dies = self.layout.dies_per_unit;
        if dies == 1 {
            let status = self.program_die(0, place, source, header).await;
            return self.programmed(place.block, &[status]);
        }
        let statuses = join_all((0..dies).map(|die| self.program_die(die, place, source, header))).await;
        let outcome = self.programmed(place.block, &statuses);
        let some = statuses.iter().any(|status| status.is_done());
        match outcome {
            Programmed::SourceLost { .. } | Programmed::PeerEnded { .. } if some => {}
            other => return other,
        }
        // Some dies have programmed the page and others have not: bring them in step.
        let filler = Header { kind: crate::Kind::Filler, ..header };
        let left = (0..dies).filter(|die| !statuses[*die as usize].is_done());
        let filled = join_all(left.map(|die| self.program_die(die, place, UnitSource::Zeroes, filler))).await;
        match self.programmed(place.block, &filled) {
            Programmed::Done => match outcome {
                Programmed::PeerEnded { .. } => Programmed::PeerEnded { consumed: true },
                _ => Programmed::SourceLost { consumed: true },
            },
            other => other,
        }
    }

    async fn program_die(&self, die: u32, place: Place, source: UnitSource<'_>, header: Header) -> Status {
        let mut by = match source {
            UnitSource::Copy(address) if self.port.copies_back() => UnitSource::CopyWithin(address),
            other => other,
        };
        loop {
            let status = self.program_die_of(die, place, by, header).await;
            match (status, by) {
                // What the chip cannot correct goes by the controller, which has the ladder of read retries.
                (Status::Uncorrectable, UnitSource::CopyWithin(_)) => by = source,
                _ => return status,
            }
        }
    }

    async fn program_die_of(&self, die: u32, place: Place, source: UnitSource<'_>, header: Header) -> Status {
        // Descriptions of planes that a die does not have cost as much as those of its own.
        match self.layout.geometry.planes_per_die {
            1 => self.program_planes::<1>(die, place, source, header).await,
            2 => self.program_planes::<2>(die, place, source, header).await,
            _ => self.program_planes::<PLANES_MAX>(die, place, source, header).await,
        }
    }

    /// Programs the pages of a die's planes, of which there are at most so many.
    async fn program_planes<const PLANES: usize>(
        &self,
        die: u32,
        place: Place,
        source: UnitSource<'_>,
        header: Header,
    ) -> Status {
        let planes = self.layout.geometry.planes_per_die;
        let spare = self.layout.geometry.spare_accessible;
        let mut segments = [[NO_SEGMENT; 3]; PLANES];
        let mut counts = [0; PLANES];
        let mut spares = [[0; HEADER_BYTES]; PLANES];
        let mut blocks = [0; PLANES];
        {
            let state = self.state();
            for plane in 0..planes {
                let (part, index) = (die * planes + plane, plane as usize);
                blocks[index] = state.replacements.physical(place.block, part);
                counts[index] = self.segments(&state.replacements, part, source, &mut segments[index]);
                if spare {
                    spares[index] = Header { part, ..header }.encode();
                }
            }
        }
        let pages: [ProgramPage; PLANES] = core::array::from_fn(|index| ProgramPage {
            block: blocks[index],
            page: place.next_page,
            data: &segments[index][..counts[index]],
            spare: if spare { &spares[index] } else { &[] },
        });
        let status = self.port.program(self.layout.die(die), &pages[..planes as usize]).await;
        if let Status::ProgramFailed { pages } = status {
            let mut state = self.state();
            *state.failing.entry(place.block).or_default() |= pages << (die * planes);
            state.counters.program_failures += 1;
        }
        status
    }

    fn programmed(&self, _block: u32, statuses: &[Status]) -> Programmed {
        let mut outcome = Programmed::Done;
        for status in statuses {
            outcome = match (outcome, *status) {
                (outcome, Status::Done { .. }) => outcome,
                (_, Status::Misuse(reason)) => return Programmed::Misuse(reason),
                (_, Status::ProgramFailed { .. }) | (Programmed::Failed, _) => Programmed::Failed,
                (_, Status::PeerEnded) => Programmed::PeerEnded { consumed: false },
                (_, Status::Uncorrectable | Status::Erased) => Programmed::SourceLost { consumed: false },
                (_, Status::EraseFailed { .. }) => return Programmed::Misuse("a program ended as an erase"),
            };
        }
        outcome
    }

    /// Where the bytes of a part come from.
    fn segments<'a>(
        &self,
        replacements: &crate::replacements::Replacements,
        part: u32,
        source: UnitSource<'a>,
        into: &mut [Segment<'a>; 3],
    ) -> usize {
        let page_bytes = self.layout.geometry.page_bytes;
        let (first, last) = (part * page_bytes, (part + 1) * page_bytes);
        let pages = self.layout.geometry.pages_per_block;
        let flash = |address: u32, offset: u32| Source::Flash {
            die: self.layout.part_die(part),
            block: replacements.physical(address / pages, part),
            page: address % pages,
            offset,
        };
        match source {
            UnitSource::Zeroes => into[0] = Segment { source: Source::Zeroes, bytes: page_bytes },
            UnitSource::Copy(address) => into[0] = Segment { source: flash(address, 0), bytes: page_bytes },
            UnitSource::CopyWithin(address) => {
                let block = replacements.physical(address / pages, part);
                into[0] = Segment { source: Source::Copyback { block, page: address % pages }, bytes: page_bytes };
            }
            UnitSource::Local(bytes) => {
                // What fits a part is in each of them.
                let fits = bytes.len() as u32 <= page_bytes;
                let bytes = if fits { bytes } else { &bytes[first as usize..last as usize] };
                into[0] = Segment { source: Source::Local(bytes), bytes: page_bytes };
            }
            UnitSource::Update { peer, start, end, old } => {
                let old = |offset| old.map_or(Source::Zeroes, |address| flash(address, offset));
                let (from, to) = (start.clamp(first, last), end.clamp(first, last));
                let mut count = 0;
                let mut push = |source, bytes| {
                    if bytes > 0 {
                        into[count] = Segment { source, bytes };
                        count += 1;
                    }
                };
                push(old(0), from - first);
                let middle = peer.map_or(Source::Zeroes, |(peer, offset)| Source::Peer {
                    peer,
                    offset: offset + from.saturating_sub(start),
                });
                push(middle, to - from);
                push(old(to - first), last - to);
                return count;
            }
        }
        1
    }

    /// Reads part of a part.
    pub(crate) async fn read_part(
        &self,
        address: u32,
        part: u32,
        offset_bytes: u32,
        length_bytes: u32,
        sink: Sink<'_>,
        spare: &mut [u8],
    ) -> Status {
        let pages = self.layout.geometry.pages_per_block;
        let block = self.state().replacements.physical(address / pages, part);
        let read = Read { block, page: address % pages, offset_bytes, length_bytes, sink, spare };
        self.port.read(self.layout.part_die(part), read).await
    }

    /// Reads a whole virtual page to local memory; the first status that is not good.
    pub(crate) async fn read_unit(&self, address: u32, into: &mut Vec<u8>) -> Status {
        into.clear();
        into.resize(self.layout.unit_bytes() as usize, 0);
        let page_bytes = self.layout.geometry.page_bytes;
        let parts = into.chunks_mut(page_bytes as usize).zip(0u32..);
        let reads =
            parts.map(|(chunk, part)| self.read_part(address, part, 0, page_bytes, Sink::Local(chunk), &mut []));
        let reads: Vec<_> = reads.collect();
        let statuses = join_all(reads.into_iter()).await;
        let bad = statuses.iter().find(|status| !status.is_done());
        bad.copied().unwrap_or(Status::Done { corrected_bits: 0 })
    }

    /// Reads a page of metadata, which is in each part or in all of them together. [`Status::Done`]: it can be read, by some way.
    pub(crate) async fn read_metadata(&self, address: u32, into: &mut Vec<u8>) -> Status {
        let status = self.read_unit(address, into).await;
        let lane = self.layout.lane as u16;
        if status.is_done() && decode_page(into, lane).is_some() {
            return status;
        }
        let page_bytes = self.layout.geometry.page_bytes as usize;
        let found = into.chunks(page_bytes).position(|part| decode_page(part, lane).is_some());
        match found {
            Some(part) => {
                into.copy_within(part * page_bytes..(part + 1) * page_bytes, 0);
                Status::Done { corrected_bits: 0 }
            }
            None => status,
        }
    }

    /// Erases a block. `Ok(false)`: it failed, and was taken out of use or repaired; another is to be taken.
    pub(crate) async fn erase_block(&self, block: u32) -> Result<bool, Failure> {
        let (dies, planes) = (self.layout.dies_per_unit, self.layout.geometry.planes_per_die);
        let erase_die = |die: u32| {
            let mut blocks = [0; PLANES_MAX];
            for plane in 0..planes {
                blocks[plane as usize] = self.state().replacements.physical(block, die * planes + plane);
            }
            async move { self.port.erase(self.layout.die(die), &blocks[..planes as usize]).await }
        };
        let mut failed = 0;
        let statuses = join_all((0..dies).map(erase_die)).await;
        for (status, die) in statuses.into_iter().zip(0..) {
            match status {
                Status::Done { .. } => {}
                Status::EraseFailed { blocks } => failed |= blocks << (die * planes),
                Status::Misuse(reason) => return Err(Failure::Misuse(reason)),
                _ => return Err(Failure::Misuse("an erase ended as something else")),
            }
        }
        let mut state = self.state();
        state.erased(block);
        if failed != 0 {
            state.counters.erase_failures += 1;
            *state.failing.entry(block).or_default() |= failed;
        }
        Ok(failed == 0)
    }

    /// Replaces the failing parts of a block in which nothing counts, or retires it. True: it can be used again, once the log is durable.
    pub(crate) fn repair(&self, block: u32) -> bool {
        let mut state = self.state();
        let failing = state.failing.remove(&block).unwrap_or(0);
        for part in (0..self.layout.parts()).filter(|part| failing >> part & 1 == 1) {
            match state.replacements.replace(block, part) {
                Some(made) => state.pending.push_back(Record::Replace(made)),
                None => {
                    state.states[block as usize] = BlockState::Retired;
                    let count = state.erase_counts[block as usize];
                    state.by_wear.remove(&(count, block));
                    state.pending.push_back(Record::Retire { block });
                    let usable = state.usable_blocks();
                    drop(state);
                    if usable < self.config.blocks_needed(&self.layout) {
                        self.give_up();
                    }
                    return false;
                }
            }
        }
        true
    }

    /// A block in which nothing counts goes back to the free ones. It is repaired when that is durable: until then its parts must stay where they
    /// are.
    pub(crate) fn free_block(&self, block: u32) {
        let mut state = self.state();
        debug_assert_eq!(state.valid_counts[block as usize], 0);
        if self.has(crate::Planted::BlockLeaked) && state.counters.erases % 7 == 3 {
            return;
        }
        state.states[block as usize] = BlockState::Freed;
        state.headers.remove(&block);
        state.freed_serial += 1;
        let serial = state.freed_serial;
        state.freed.push_back((serial, block));
    }
}
