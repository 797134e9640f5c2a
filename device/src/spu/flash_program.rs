//! Programs of the flash port: pages that are put together of parts of an FTL's memory, of peers and of other pages.
//!
//! Invariants:
//! - What an FTL described is checked as a whole before anything is begun; a program that is refused changes nothing.
//! - Memory for descriptions is used again by the next program: nothing of one is left when another is described.

use super::abi;
use super::activity::Caller;
use super::flash::{u32_at, u64_at};
use super::flash_job::{MadePage, MovedPage, Task};
use super::flash_time::Copied;
use super::meter::Fault;
use super::os::{LocalMemory, Machine};
use crate::media::delegate::BankPort;
use std::ops::Range;
use willow_flash_media::{Geometry, PLANES_MAX, PageAddress, ProgramPage, Read, Status};
use willow_gate::SpuOs;

/// Bytes that describe a page to be programmed: u32 block, u32 page, u64 pointer to its parts, u32 parts, u32 spare bytes, u64 pointer to
/// the spare bytes.
const PAGE_BYTES: usize = 32;
/// Bytes that describe a part: u32 kind, u32 bytes, then u64 pointer and u64 zero; or u32 peer, u32 zero, u64 offset; or u32 die, u32 block,
/// u32 page, u32 offset.
const SEGMENT_BYTES: usize = 24;
/// What parts of zeroes are made of.
static ZEROES: [u8; 16384] = [0; 16384];

/// Part of a page, checked as far as that goes without its bytes.
enum Part {
    Local {
        pointer: u64,
        bytes: usize,
    },
    Peer {
        peer: u32,
        offset: u64,
        bytes: usize,
    },
    /// From another page, copied: where in the program's copies.
    Copied(Range<usize>),
    Zeroes(usize),
}

impl Part {
    fn bytes(&self) -> usize {
        match self {
            Part::Local { bytes, .. } | Part::Peer { bytes, .. } | Part::Zeroes(bytes) => *bytes,
            Part::Copied(range) => range.len(),
        }
    }
}

/// A page to be programmed.
struct Page {
    at: PageAddress,
    parts: Range<usize>,
    spare: (u64, usize),
    /// Some of it comes from the FTL's memory: its own data, which are kept where payload is not.
    is_own: bool,
}

/// A program, as its descriptions say.
#[derive(Default)]
pub(super) struct Program {
    pages: Vec<Page>,
    parts: Vec<Part>,
    copies: Vec<u8>,
    /// Under a model: what is yet to be copied.
    sources: Vec<Copied>,
    /// Of copybacks, where each page comes from.
    moved: Vec<PageAddress>,
    /// Under a model: whose data it takes.
    peers: Vec<u32>,
}

impl Program {
    /// Nothing is described yet.
    fn clear(&mut self) {
        let Program { pages, parts, copies, sources, moved, peers } = self;
        pages.clear();
        parts.clear();
        copies.clear();
        sources.clear();
        moved.clear();
        peers.clear();
    }
}

impl Machine {
    /// `flash_program`.
    pub(super) fn flash_program<M: LocalMemory>(
        &mut self,
        caller: Caller,
        memory: &mut M,
        asked: (u32, u64, u32),
        wait: u32,
    ) -> Result<i32, Fault> {
        let mut wanted = std::mem::take(&mut self.flash.described);
        let told = self.program_described(caller, memory, asked, wait, &mut wanted);
        wanted.clear();
        self.flash.described = wanted;
        told
    }

    fn program_described<M: LocalMemory>(
        &mut self,
        caller: Caller,
        memory: &mut M,
        (die, pages, count): (u32, u64, u32),
        wait: u32,
        wanted: &mut Program,
    ) -> Result<i32, Fault> {
        let shape = match self.array(caller) {
            Ok(array) => *array.geometry(),
            Err(error) => return Ok(error),
        };
        if count == 0 || count > shape.planes_per_die {
            return Ok(abi::ERROR_ARGUMENT);
        }
        for described in memory.slice(pages, count as usize * PAGE_BYTES)?.chunks_exact(PAGE_BYTES) {
            if let Err(refusal) = self.describe(caller, memory, (described, die, &shape), wanted)? {
                return Ok(refusal);
            }
        }
        if !wanted.moved.is_empty() {
            return self.flash_copyback(caller, memory, (die, wait), wanted);
        }
        if self.flash_takes_time() {
            return self.ask_program_of(caller, memory, (die, wait), wanted);
        }
        let BankPort { flash, peers } = match self.bank_port(caller) {
            Ok(port) => port,
            Err(error) => return Ok(error),
        };
        // The bytes of all pages, in pieces that lie where they are.
        let mut pieces: Vec<&[u8]> = Vec::with_capacity(wanted.parts.len());
        let mut bounds = Vec::with_capacity(wanted.pages.len());
        for page in &wanted.pages {
            let first = pieces.len();
            for part in &wanted.parts[page.parts.clone()] {
                match part {
                    Part::Local { pointer, bytes } => pieces.push(memory.slice(*pointer, *bytes)?),
                    Part::Peer { peer, offset, bytes } => match peers.source(*peer, *offset, *bytes) {
                        Some(from) => pieces.push(from),
                        None => return Ok(abi::ERROR_ENDED),
                    },
                    Part::Copied(range) => pieces.push(&wanted.copies[range.clone()]),
                    Part::Zeroes(bytes) => {
                        let mut left = *bytes;
                        while left > 0 {
                            let piece = left.min(ZEROES.len());
                            pieces.push(&ZEROES[..piece]);
                            left -= piece;
                        }
                    }
                }
            }
            bounds.push((first..pieces.len(), memory.slice(page.spare.0, page.spare.1)?));
        }
        let pages = wanted.pages.iter().zip(bounds).map(|(page, (range, spare))| ProgramPage {
            at: page.at,
            data: &pieces[range],
            spare,
            metadata: page.is_own,
        });
        let pages: Vec<ProgramPage<'_>> = pages.collect();
        let status = match flash.program(die, &pages) {
            Ok(status) => self.told(caller, status),
            Err(_) => abi::ERROR_MEDIA,
        };
        Ok(self.flash_done(caller, wait, status))
    }

    /// A program all of whose pages come by copyback.
    fn flash_copyback<M: LocalMemory>(
        &mut self,
        caller: Caller,
        memory: &M,
        (die, wait): (u32, u32),
        wanted: &Program,
    ) -> Result<i32, Fault> {
        let Program { pages, moved, .. } = wanted;
        // The model names the blocks of both ends.
        if moved.len() != pages.len() || moved.len() * 2 > PLANES_MAX as usize {
            return Ok(abi::ERROR_ARGUMENT);
        }
        let mut made = Vec::with_capacity(pages.len());
        for (page, from) in pages.iter().zip(moved) {
            let spare = memory.slice(page.spare.0, page.spare.1)?.to_vec();
            made.push(MovedPage { from: *from, to: page.at, spare });
        }
        if self.flash_takes_time() {
            return Ok(self.ask_flash(caller, wait, die, Task::Copyback { pages: made }));
        }
        let status = match self.array(caller).map(|array| MovedPage::carry_out(array, die, &made)) {
            Ok(Some(status)) => self.told(caller, status),
            Ok(None) => abi::ERROR_MEDIA,
            Err(error) => error,
        };
        Ok(self.flash_done(caller, wait, status))
    }

    /// Under a model: asks for a program. What it takes from the FTL's memory and from peers is copied now, as far as it is kept.
    fn ask_program_of<M: LocalMemory>(
        &mut self,
        caller: Caller,
        memory: &M,
        (die, wait): (u32, u32),
        wanted: &mut Program,
    ) -> Result<i32, Fault> {
        let mut made = self.flash.take_pages();
        let BankPort { flash, peers } = match self.bank_port(caller) {
            Ok(port) => port,
            Err(error) => return Ok(error),
        };
        let keeps = flash.keeps_payload();
        for page in &wanted.pages {
            let MadePage { data, .. } = made.add(page.at, memory.slice(page.spare.0, page.spare.1)?, page.is_own);
            for part in &wanted.parts[page.parts.clone()] {
                let bytes = match part {
                    Part::Local { pointer, bytes } => Some(memory.slice(*pointer, *bytes)?),
                    Part::Peer { peer, offset, bytes } => {
                        wanted.peers.push(*peer);
                        match peers.source(*peer, *offset, *bytes) {
                            Some(from) => Some(from),
                            None => return Ok(abi::ERROR_ENDED),
                        }
                    }
                    Part::Copied(_) | Part::Zeroes(_) => None,
                };
                if keeps || page.is_own {
                    let length = data.len() + part.bytes();
                    data.extend_from_slice(bytes.unwrap_or(&[]));
                    data.resize(length, 0);
                }
            }
        }
        Ok(self.ask_program((caller, wait, die), made, &wanted.sources, &wanted.peers))
    }

    /// Takes a page's description in, and the bytes that come from other pages; else why the program is refused.
    fn describe<M: LocalMemory>(
        &mut self,
        caller: Caller,
        memory: &M,
        (described, die, shape): (&[u8], u32, &Geometry),
        into: &mut Program,
    ) -> Result<Result<(), i32>, Fault> {
        let (segments, spare_bytes) = (u32_at(described, 16), u32_at(described, 20));
        if segments > abi::FLASH_SEGMENTS_MAX || spare_bytes > shape.spare_bytes {
            return Ok(Err(abi::ERROR_ARGUMENT));
        }
        let (first, mut left) = (into.parts.len(), shape.page_bytes as usize);
        let (mut is_own, takes_time, keeps) = (false, self.flash_takes_time(), self.keeps_payload(caller));
        let described_parts = memory.slice(u64_at(described, 8), segments as usize * SEGMENT_BYTES)?;
        for segment in described_parts.chunks_exact(SEGMENT_BYTES) {
            let (kind, bytes) = (u32_at(segment, 0), u32_at(segment, 4) as usize);
            if bytes > left {
                return Ok(Err(abi::ERROR_RANGE));
            }
            let at_byte = shape.page_bytes as usize - left;
            left -= bytes;
            self.meter(caller).charge_piece(bytes as u64)?;
            is_own |= kind == abi::FLASH_FROM_LOCAL;
            into.parts.push(match kind {
                abi::FLASH_FROM_LOCAL => Part::Local { pointer: u64_at(segment, 8), bytes },
                abi::FLASH_FROM_ZEROES => Part::Zeroes(bytes),
                abi::FLASH_FROM_PEER => Part::Peer { peer: u32_at(segment, 8), offset: u64_at(segment, 16), bytes },
                abi::FLASH_FROM_FLASH => {
                    let at = PageAddress { block: u32_at(segment, 12), page: u32_at(segment, 16) };
                    let (die, offset_bytes) = (u32_at(segment, 8), u32_at(segment, 20));
                    let read = Read { at, offset_bytes, length_bytes: bytes as u32, spare: false };
                    if takes_time {
                        into.sources.push(Copied { page: into.pages.len(), at: at_byte, die, read });
                        into.parts.push(Part::Zeroes(bytes));
                        continue;
                    }
                    let begin = into.copies.len();
                    into.copies.resize(begin + bytes, 0);
                    let array = match self.array(caller) {
                        Ok(array) => array,
                        Err(error) => return Ok(Err(error)),
                    };
                    is_own |= !keeps && array.keeps(die, at);
                    match array.read(die, &read, &mut into.copies[begin..], &mut []) {
                        Ok(Status::Done { .. } | Status::Latched) => Part::Copied(begin..begin + bytes),
                        Ok(status) => return Ok(Err(self.told(caller, status))),
                        Err(_) => return Ok(Err(abi::ERROR_MEDIA)),
                    }
                }
                abi::FLASH_BY_COPYBACK => {
                    let is_whole = bytes == shape.page_bytes as usize && u32_at(segment, 20) == 0;
                    if !is_whole || segments != 1 || u32_at(segment, 8) != die {
                        return Ok(Err(abi::ERROR_ARGUMENT));
                    }
                    into.moved.push(PageAddress { block: u32_at(segment, 12), page: u32_at(segment, 16) });
                    Part::Zeroes(bytes)
                }
                _ => return Ok(Err(abi::ERROR_ARGUMENT)),
            });
        }
        self.meter(caller).charge_copy(spare_bytes.into())?;
        into.pages.push(Page {
            at: PageAddress { block: u32_at(described, 0), page: u32_at(described, 4) },
            parts: first..into.parts.len(),
            spare: (u64_at(described, 24), spare_bytes as usize),
            is_own,
        });
        Ok(Ok(()))
    }
}
