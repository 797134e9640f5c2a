//! The flash port: what an FTL can ask of its SPU's flash, and nobody else (module `willow_flash` of docs/abi.md).
//!
//! Invariants:
//! - Only the app that serves the banks reaches flash, and only that of its own SPU; of peers only those of operations that it has.
//! - An operation whose parts do not all exist (a peer that has ended, a pointer outside of its memory, a page that cannot be read) changes
//!   nothing.
//! - Payload goes from and to peers and the app's memory in place; only what comes from other pages is copied on the way.
//! - Under the free clock an operation takes effect when it is asked for. What changes the flash is told by a completion nevertheless, so
//!   that an FTL which goes on for long makes way for others.

use super::abi::{self, PENDING};
use super::activity::Caller;
use super::meter::{Fault, SEGMENT_WORK, STORE_WORK};
use super::os::{LocalMemory, Machine};
use crate::interconnect::Key;
use crate::media::delegate::{BankPort, DelegatingStore};
use std::ops::Range;
use willow_flash_media::{Array, GEOMETRY_WORDS, Geometry, PageAddress, ProgramPage, Read, Status};

/// Bytes that describe a page to be programmed: u32 block, u32 page, u64 pointer to its parts, u32 parts, u32 spare bytes, u64 pointer to
/// the spare bytes.
const PAGE_BYTES: usize = 32;
/// Bytes that describe a part: u32 kind, u32 bytes, then u64 pointer and u64 zero; or u32 peer, u32 zero, u64 offset; or u32 die, u32 block,
/// u32 page, u32 offset.
const SEGMENT_BYTES: usize = 24;
/// Bytes that `flash_geometry` writes.
const GEOMETRY_BYTES: usize = 64;
/// Where the bytes of a unit are in them.
const UNIT_WORD: usize = 10;
/// Where the bytes of the bank are.
const BANK_WORD: usize = GEOMETRY_WORDS;
/// What parts of zeroes are made of.
static ZEROES: [u8; 16384] = [0; 16384];

/// Where a read of a page goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlashRead {
    pub die: u32,
    pub block: u32,
    pub page: u32,
    pub offset: u32,
    pub bytes: u32,
    /// 0: `to` is a pointer; else a peer, and `to` an offset in it.
    pub peer: u32,
    pub to: u64,
    pub spare: u64,
    pub spare_bytes: u32,
    pub wait: u32,
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

/// A status as the port tells it.
fn told(status: Status) -> i32 {
    match status {
        Status::Done { corrected_bits, .. } => abi::FLASH_DONE | i32::from(corrected_bits) << 8,
        Status::Latched => abi::FLASH_LATCHED,
        Status::Erased => abi::FLASH_ERASED,
        Status::Uncorrectable { .. } => abi::FLASH_UNCORRECTABLE,
        Status::ProgramFailed(pages) => abi::FLASH_PROGRAM_FAILED | i32::from(pages.0) << 8,
        Status::EraseFailed(blocks) => abi::FLASH_ERASE_FAILED | i32::from(blocks.0) << 8,
        Status::Misuse(_) => abi::FLASH_MISUSE,
    }
}

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

/// A page to be programmed.
struct Page {
    at: PageAddress,
    parts: Range<usize>,
    spare: (u64, usize),
    /// All of it comes from the FTL's memory: its own data.
    is_local: bool,
}

/// A program, as its descriptions say.
#[derive(Default)]
struct Program {
    pages: Vec<Page>,
    parts: Vec<Part>,
    copies: Vec<u8>,
}

impl Machine {
    /// The store, where the caller is the app that serves its banks.
    fn port(&mut self, caller: Caller) -> Option<&mut DelegatingStore> {
        let app = self.apps.get(usize::from(caller.app)).and_then(Option::as_ref)?;
        let store = self.media.store.delegating()?;
        app.is_ftl(store.ftl()).then_some(store)
    }

    /// The flash of the caller's SPU and the peers that it may use with it; else the error.
    fn bank_port(&mut self, caller: Caller) -> Result<BankPort<'_>, i32> {
        let bank = usize::from(caller.spu);
        self.port(caller).and_then(|store| store.bank_port(bank)).ok_or(abi::ERROR_PERMISSION)
    }

    fn array(&mut self, caller: Caller) -> Result<&mut Array, i32> {
        Ok(self.bank_port(caller)?.flash)
    }

    /// A status as the port tells it; which rule an FTL broke is on its serial port.
    fn told(&mut self, caller: Caller, status: Status) -> i32 {
        if let Status::Misuse(misuse) = status
            && let Some(app) = self.app(caller.app)
        {
            app.push_line(format!("{}: [SPU-OS] misuse of the flash: {misuse}", caller.spu));
        }
        told(status)
    }

    /// `flash_geometry`.
    pub fn flash_geometry<M: LocalMemory>(&mut self, caller: Caller, memory: &mut M, to: u64) -> Result<i32, Fault> {
        let Some((bank_bytes, unit_bytes)) = self.port(caller).map(|store| store.shape()) else {
            return Ok(abi::ERROR_PERMISSION);
        };
        let array = match self.array(caller) {
            Ok(array) => array,
            Err(error) => return Ok(error),
        };
        let mut words = [0; GEOMETRY_BYTES / 4];
        words[..GEOMETRY_WORDS].copy_from_slice(&array.words());
        words[UNIT_WORD] = unit_bytes as u32;
        words[BANK_WORD..BANK_WORD + 2].copy_from_slice(&[bank_bytes as u32, (bank_bytes >> 32) as u32]);
        let into = memory.slice_mut(to, GEOMETRY_BYTES)?;
        for (word, place) in words.iter().zip(into.chunks_exact_mut(4)) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        Ok(0)
    }

    /// `flash_bad_blocks`.
    pub fn flash_bad_blocks<M: LocalMemory>(
        &mut self,
        caller: Caller,
        memory: &mut M,
        die: u32,
        (to, most): (u64, u32),
    ) -> Result<i32, Fault> {
        self.meter.charge(STORE_WORK)?;
        let array = match self.array(caller) {
            Ok(array) => array,
            Err(error) => return Ok(error),
        };
        if die >= array.geometry().dies() {
            return Ok(abi::ERROR_RANGE);
        }
        let most = most.min(array.geometry().blocks_per_die()) as usize;
        let count = array.factory_bad_blocks(die).count();
        let into = memory.slice_mut(to, count.min(most) * 4)?;
        for (block, place) in array.factory_bad_blocks(die).zip(into.chunks_exact_mut(4)) {
            place.copy_from_slice(&block.to_le_bytes());
        }
        Ok(count as i32)
    }

    /// `flash_read`.
    pub fn flash_read<M: LocalMemory>(
        &mut self,
        caller: Caller,
        memory: &mut M,
        asked: &FlashRead,
    ) -> Result<i32, Fault> {
        self.meter.charge(SEGMENT_WORK)?;
        self.meter.charge_bytes(u64::from(asked.bytes) + u64::from(asked.spare_bytes))?;
        let read = Read {
            at: PageAddress { block: asked.block, page: asked.page },
            offset_bytes: asked.offset,
            length_bytes: asked.bytes,
            spare: asked.spare_bytes > 0,
        };
        let BankPort { flash, mut peers } = match self.bank_port(caller) {
            Ok(port) => port,
            Err(error) => return Ok(error),
        };
        let shape = flash.geometry();
        if asked.bytes > shape.page_bytes || asked.spare_bytes > shape.spare_bytes {
            return Ok(abi::ERROR_RANGE);
        }
        let mut spare = vec![0; asked.spare_bytes as usize];
        let into = if asked.peer == 0 {
            memory.slice_mut(asked.to, asked.bytes as usize)?
        } else {
            match peers.sink(asked.peer, asked.to, asked.bytes as usize) {
                Some(into) => into,
                None => return Ok(abi::ERROR_ENDED),
            }
        };
        let status = flash.read(asked.die, &read, into, &mut spare);
        if read.spare {
            memory.slice_mut(asked.spare, spare.len())?.copy_from_slice(&spare);
        }
        let status = match status {
            Ok(status @ Status::Misuse(_)) => self.told(caller, status),
            Ok(status) => told(status),
            Err(_) => abi::ERROR_MEDIA,
        };
        // A run that has read a lot is told by a completion, behind what others have to do.
        Ok(if self.in_slice(0) { status } else { self.flash_done(caller, asked.wait, status) })
    }

    /// `flash_program`.
    pub fn flash_program<M: LocalMemory>(
        &mut self,
        caller: Caller,
        memory: &mut M,
        (die, pages, count): (u32, u64, u32),
        wait: u32,
    ) -> Result<i32, Fault> {
        let shape = match self.array(caller) {
            Ok(array) => *array.geometry(),
            Err(error) => return Ok(error),
        };
        if count == 0 || count > shape.planes_per_die {
            return Ok(abi::ERROR_ARGUMENT);
        }
        let mut wanted = Program::default();
        for described in memory.slice(pages, count as usize * PAGE_BYTES)?.chunks_exact(PAGE_BYTES) {
            if let Err(refusal) = self.describe(caller, memory, (described, &shape), &mut wanted)? {
                return Ok(refusal);
            }
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
            metadata: page.is_local,
        });
        let pages: Vec<ProgramPage<'_>> = pages.collect();
        let status = match flash.program(die, &pages) {
            Ok(status) => self.told(caller, status),
            Err(_) => abi::ERROR_MEDIA,
        };
        Ok(self.flash_done(caller, wait, status))
    }

    /// Takes a page's description in, and the bytes that come from other pages; else why the program is refused.
    fn describe<M: LocalMemory>(
        &mut self,
        caller: Caller,
        memory: &M,
        (described, shape): (&[u8], &Geometry),
        into: &mut Program,
    ) -> Result<Result<(), i32>, Fault> {
        let (segments, spare_bytes) = (u32_at(described, 16), u32_at(described, 20));
        if segments > abi::FLASH_SEGMENTS_MAX || spare_bytes > shape.spare_bytes {
            return Ok(Err(abi::ERROR_ARGUMENT));
        }
        let (first, mut left) = (into.parts.len(), shape.page_bytes as usize);
        let mut is_local = true;
        let described_parts = memory.slice(u64_at(described, 8), segments as usize * SEGMENT_BYTES)?;
        for segment in described_parts.chunks_exact(SEGMENT_BYTES) {
            let (kind, bytes) = (u32_at(segment, 0), u32_at(segment, 4) as usize);
            if bytes > left {
                return Ok(Err(abi::ERROR_RANGE));
            }
            left -= bytes;
            self.meter.charge(SEGMENT_WORK)?;
            self.meter.charge_bytes(bytes as u64)?;
            is_local &= kind == abi::FLASH_FROM_LOCAL;
            into.parts.push(match kind {
                abi::FLASH_FROM_LOCAL => Part::Local { pointer: u64_at(segment, 8), bytes },
                abi::FLASH_FROM_ZEROES => Part::Zeroes(bytes),
                abi::FLASH_FROM_PEER => Part::Peer { peer: u32_at(segment, 8), offset: u64_at(segment, 16), bytes },
                abi::FLASH_FROM_FLASH => {
                    let at = PageAddress { block: u32_at(segment, 12), page: u32_at(segment, 16) };
                    let (die, offset_bytes) = (u32_at(segment, 8), u32_at(segment, 20));
                    let read = Read { at, offset_bytes, length_bytes: bytes as u32, spare: false };
                    let begin = into.copies.len();
                    into.copies.resize(begin + bytes, 0);
                    let array = match self.array(caller) {
                        Ok(array) => array,
                        Err(error) => return Ok(Err(error)),
                    };
                    match array.read(die, &read, &mut into.copies[begin..], &mut []) {
                        Ok(Status::Done { .. } | Status::Latched) => Part::Copied(begin..begin + bytes),
                        Ok(status) => return Ok(Err(self.told(caller, status))),
                        Err(_) => return Ok(Err(abi::ERROR_MEDIA)),
                    }
                }
                _ => return Ok(Err(abi::ERROR_ARGUMENT)),
            });
        }
        self.meter.charge_bytes(spare_bytes.into())?;
        into.pages.push(Page {
            at: PageAddress { block: u32_at(described, 0), page: u32_at(described, 4) },
            parts: first..into.parts.len(),
            spare: (u64_at(described, 24), spare_bytes as usize),
            is_local,
        });
        Ok(Ok(()))
    }

    /// `flash_erase`.
    pub fn flash_erase<M: LocalMemory>(
        &mut self,
        caller: Caller,
        memory: &mut M,
        (die, blocks, count): (u32, u64, u32),
        wait: u32,
    ) -> Result<i32, Fault> {
        self.meter.charge(STORE_WORK)?;
        let array = match self.array(caller) {
            Ok(array) => array,
            Err(error) => return Ok(error),
        };
        if count == 0 || count > array.geometry().planes_per_die {
            return Ok(abi::ERROR_ARGUMENT);
        }
        let blocks: Vec<u32> =
            memory.slice(blocks, count as usize * 4)?.chunks_exact(4).map(|block| u32_at(block, 0)).collect();
        let Some(group) = self.flash_group(caller, wait) else { return Ok(abi::ERROR_REFUSED) };
        let tag = u64::from(group.spu) << 32 | u64::from(group.key);
        let Some(store) = self.port(caller) else { return Ok(abi::ERROR_PERMISSION) };
        match store.erase(caller.spu.into(), (die, &blocks), tag) {
            Some(Ok(status)) => self.erased(group, Some(status)),
            Some(Err(_)) => self.erased(group, None),
            // It waits for the disk.
            None => {}
        }
        Ok(PENDING)
    }

    /// An erase has ended; without a status it was not done.
    fn erased(&mut self, group: Key, status: Option<Status>) {
        let caller = self.group_at(group).map(|group| group.caller);
        let status = match (status, caller) {
            (Some(status), Some(caller)) => self.told(caller, status),
            _ => abi::ERROR_MEDIA,
        };
        self.end_one(group, status.into(), None);
    }

    /// Tells FTLs of erases that had to wait for the disk.
    pub fn tell_erased(&mut self) {
        while let Some((tag, status)) = self.media.store.delegating().and_then(DelegatingStore::erased) {
            self.erased(Key { spu: (tag >> 32) as u16, key: tag as u32 }, status);
        }
    }

    /// `flash_zero_peer`.
    pub fn flash_zero_peer(&mut self, caller: Caller, peer: u32, offset: u64, bytes: u32) -> Result<i32, Fault> {
        self.meter.charge_bytes(bytes.into())?;
        let mut port = match self.bank_port(caller) {
            Ok(port) => port,
            Err(error) => return Ok(error),
        };
        let Some(into) = port.peers.sink(peer, offset, bytes as usize) else { return Ok(abi::ERROR_ENDED) };
        into.fill(0);
        Ok(0)
    }

    /// `flash_pause`: a completion behind what others have to do.
    pub fn flash_pause(&mut self, caller: Caller, wait: u32) -> i32 {
        if self.port(caller).is_none() {
            return abi::ERROR_PERMISSION;
        }
        self.flash_done(caller, wait, abi::FLASH_DONE)
    }

    /// An operation that has taken effect is told by a completion.
    fn flash_done(&mut self, caller: Caller, wait: u32, status: i32) -> i32 {
        let Some(group) = self.flash_group(caller, wait) else { return abi::ERROR_REFUSED };
        self.end_one(group, status.into(), None);
        PENDING
    }

    /// What the end of one operation is told by.
    fn flash_group(&mut self, caller: Caller, wait: u32) -> Option<Key> {
        let group = self.group(caller, None, wait)?;
        if let Some(group) = self.group_at_mut(group) {
            group.remaining = 1;
        }
        Some(group)
    }
}
