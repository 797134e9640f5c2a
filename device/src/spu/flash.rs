//! The flash port: what an FTL can ask of its SPU's flash, and nobody else (module `willow_flash` of docs/abi.md).
//!
//! Invariants:
//! - Only the app that serves the banks reaches flash, and only that of its own SPU; of peers only those of operations that it has.
//! - An operation whose parts do not all exist (a peer that has ended, a pointer outside of its memory, a page that cannot be read) changes
//!   nothing.
//! - Payload goes from and to peers and the app's memory in place; only what comes from other pages is copied on the way.
//! - Under the free clock an operation takes effect when it is asked for. What changes the flash is told by a completion nevertheless, so
//!   that an FTL which goes on for long makes way for others. Under a model it takes effect, and is told, when the model says ([`super::flash_time`]).

use super::abi::{self, PENDING};
use super::activity::Caller;
use super::flash_job::{MadePage, MovedPage, Task, To};
use super::flash_time::Copied;
use super::gate::Charged;
use super::meter::Fault;
use super::os::{LocalMemory, Machine};
use crate::interconnect::Key;
use crate::media::delegate::{BankPort, DelegatingStore};
use std::ops::Range;
use willow_flash_media::{Array, GEOMETRY_WORDS, Geometry, PLANES_MAX, PageAddress, ProgramPage, Read, Status};
use willow_gate::{FlashOperation, FlashRead, SpuOs};

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
/// Where what the FTL is to do is: when to collect, and by what.
const POLICY_WORD: usize = BANK_WORD + 2;
/// What parts of zeroes are made of.
static ZEROES: [u8; 16384] = [0; 16384];

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

/// A status as the port tells it.
pub(super) fn told(status: Status) -> i32 {
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
struct Program {
    pages: Vec<Page>,
    parts: Vec<Part>,
    copies: Vec<u8>,
    /// Under a model: what is yet to be copied.
    sources: Vec<Copied>,
    /// Of copybacks, where each page comes from.
    moved: Vec<PageAddress>,
}

impl Machine {
    /// The store, where the caller is the app that serves its banks.
    pub(super) fn port(&mut self, caller: Caller) -> Option<&mut DelegatingStore> {
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

    /// Whether payload is kept; else it need not be moved.
    fn keeps_payload(&mut self, caller: Caller) -> bool {
        self.array(caller).is_ok_and(|array| array.keeps_payload())
    }

    /// A status as the port tells it; which rule an FTL broke is on its serial port.
    pub(super) fn told(&mut self, caller: Caller, status: Status) -> i32 {
        if let Status::Misuse(misuse) = status
            && let Some(app) = self.app(caller.app)
        {
            app.push_line(format!("{}: [SPU-OS] misuse of the flash: {misuse}", caller.spu));
        }
        told(status)
    }

    /// Carries out an operation of the flash port, or begins it.
    pub fn flash<M: LocalMemory>(
        &mut self,
        caller: Caller,
        memory: &mut M,
        operation: FlashOperation,
        charged: Charged,
    ) -> Result<i32, Fault> {
        match operation {
            FlashOperation::Geometry { to } => self.flash_geometry(caller, memory, to),
            FlashOperation::BadBlocks { die, to, most } => self.flash_bad_blocks(caller, memory, die, (to, most)),
            FlashOperation::Read(read) => self.flash_read(caller, memory, &read),
            FlashOperation::Program { die, pages, count, wait } => {
                self.flash_program(caller, memory, (die, pages, count), wait)
            }
            FlashOperation::Erase { die, blocks, count, wait } => {
                self.flash_erase(caller, memory, (die, blocks, count), wait)
            }
            FlashOperation::ZeroPeer { peer, offset, bytes } => Ok(self.flash_zero_peer(caller, peer, offset, bytes)),
            FlashOperation::Pause { wait } => Ok(self.flash_pause(caller, wait)),
            FlashOperation::Health { spare_percent, media_errors, read_only } => {
                Ok(self.take_flash_health(caller, (spare_percent, media_errors, read_only)))
            }
            FlashOperation::ReadMap { lanes, count, corrected_bits_max } => {
                self.take_read_map(caller, memory, (lanes, count, corrected_bits_max))
            }
            FlashOperation::Minimum { numbers, count } => match self.port(caller).is_some() {
                true => self.minimum(caller, memory, (numbers, count), &charged),
                false => Ok(abi::ERROR_PERMISSION),
            },
        }
    }

    /// `flash_geometry`.
    fn flash_geometry<M: LocalMemory>(&mut self, caller: Caller, memory: &mut M, to: u64) -> Result<i32, Fault> {
        let Some(((bank_bytes, unit_bytes), policy)) = self.port(caller).map(|store| (store.shape(), store.policy()))
        else {
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
        let told = (u32::from(policy.victim_search) * abi::FLASH_VICTIM_SEARCH)
            | (u32::from(policy.copyback) * abi::FLASH_COPYBACK);
        words[POLICY_WORD..].copy_from_slice(&[policy.collect_below_blocks, told]);
        let into = memory.slice_mut(to, GEOMETRY_BYTES)?;
        for (word, place) in words.iter().zip(into.chunks_exact_mut(4)) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        Ok(0)
    }

    /// `flash_bad_blocks`.
    fn flash_bad_blocks<M: LocalMemory>(
        &mut self,
        caller: Caller,
        memory: &mut M,
        die: u32,
        (to, most): (u64, u32),
    ) -> Result<i32, Fault> {
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
    fn flash_read<M: LocalMemory>(&mut self, caller: Caller, memory: &mut M, asked: &FlashRead) -> Result<i32, Fault> {
        let read = Read {
            at: PageAddress { block: asked.block, page: asked.page },
            offset_bytes: asked.offset,
            length_bytes: asked.bytes,
            spare: asked.spare_bytes > 0,
        };
        let shape = match self.array(caller) {
            Ok(array) => array.geometry(),
            Err(error) => return Ok(error),
        };
        if asked.bytes > shape.page_bytes || asked.spare_bytes > shape.spare_bytes {
            return Ok(abi::ERROR_RANGE);
        }
        if self.flash_takes_time() {
            return self.ask_read(caller, memory, asked, read);
        }
        let BankPort { flash, mut peers } = match self.bank_port(caller) {
            Ok(port) => port,
            Err(error) => return Ok(error),
        };
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
        Ok(if self.in_slice(caller, 0) { status } else { self.flash_done(caller, asked.wait, status) })
    }

    /// `flash_program`.
    fn flash_program<M: LocalMemory>(
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
            if let Err(refusal) = self.describe(caller, memory, (described, die, &shape), &mut wanted)? {
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
        wanted: Program,
    ) -> Result<i32, Fault> {
        let Program { pages, moved, .. } = wanted;
        // The model names the blocks of both ends.
        if moved.len() != pages.len() || moved.len() * 2 > PLANES_MAX as usize {
            return Ok(abi::ERROR_ARGUMENT);
        }
        let mut made = Vec::with_capacity(pages.len());
        for (page, from) in pages.iter().zip(moved) {
            let spare = memory.slice(page.spare.0, page.spare.1)?.to_vec();
            made.push(MovedPage { from, to: page.at, spare });
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

    /// Under a model: asks for a read.
    fn ask_read<M: LocalMemory>(
        &mut self,
        caller: Caller,
        memory: &mut M,
        asked: &FlashRead,
        read: Read,
    ) -> Result<i32, Fault> {
        let to = match asked.peer {
            0 => {
                memory.slice_mut(asked.to, asked.bytes as usize)?;
                To::Local { pointer: asked.to }
            }
            peer => To::Peer { peer, offset: asked.to },
        };
        if read.spare {
            memory.slice_mut(asked.spare, asked.spare_bytes as usize)?;
        }
        let spare = read.spare.then_some((asked.spare, asked.spare_bytes));
        Ok(self.ask_flash(caller, asked.wait, asked.die, Task::Read { read, to, spare }))
    }

    /// Under a model: asks for a program. What it takes from the FTL's memory and from peers is copied now, as far as it is kept.
    fn ask_program_of<M: LocalMemory>(
        &mut self,
        caller: Caller,
        memory: &M,
        (die, wait): (u32, u32),
        wanted: Program,
    ) -> Result<i32, Fault> {
        let BankPort { flash, peers } = match self.bank_port(caller) {
            Ok(port) => port,
            Err(error) => return Ok(error),
        };
        let keeps = flash.keeps_payload();
        let mut awaited = Vec::new();
        let mut made = Vec::with_capacity(wanted.pages.len());
        for page in &wanted.pages {
            let mut data = Vec::new();
            for part in &wanted.parts[page.parts.clone()] {
                let bytes = match part {
                    Part::Local { pointer, bytes } => Some(memory.slice(*pointer, *bytes)?),
                    Part::Peer { peer, offset, bytes } => {
                        awaited.push(*peer);
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
            let spare = memory.slice(page.spare.0, page.spare.1)?.to_vec();
            made.push(MadePage { at: page.at, data, spare, own: page.is_own });
        }
        Ok(self.ask_program((caller, wait, die), made, &wanted.sources, &awaited))
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

    /// `flash_erase`.
    fn flash_erase<M: LocalMemory>(
        &mut self,
        caller: Caller,
        memory: &mut M,
        (die, blocks, count): (u32, u64, u32),
        wait: u32,
    ) -> Result<i32, Fault> {
        let array = match self.array(caller) {
            Ok(array) => array,
            Err(error) => return Ok(error),
        };
        if count == 0 || count > array.geometry().planes_per_die {
            return Ok(abi::ERROR_ARGUMENT);
        }
        let blocks: Vec<u32> =
            memory.slice(blocks, count as usize * 4)?.chunks_exact(4).map(|block| u32_at(block, 0)).collect();
        if self.flash_takes_time() {
            return Ok(self.ask_flash(caller, wait, die, Task::Erase { blocks }));
        }
        let Some(group) = self.flash_group(caller, wait) else { return Ok(abi::ERROR_REFUSED) };
        self.take_erase((caller.spu, die), &blocks, group);
        Ok(PENDING)
    }

    /// An erase takes effect: now, or when the disk has what it rests on.
    pub(super) fn take_erase(&mut self, (bank, die): (u16, u32), blocks: &[u32], group: Key) {
        let tag = u64::from(group.spu) << 32 | u64::from(group.key);
        let erased = self.media.store.delegating().map(|store| store.erase(bank.into(), (die, blocks), tag));
        match erased {
            Some(Some(Ok(status))) => self.erased(group, Some(status)),
            // It waits for the disk.
            Some(None) => {}
            Some(Some(Err(_))) | None => self.erased(group, None),
        }
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
    fn flash_zero_peer(&mut self, caller: Caller, peer: u32, offset: u64, bytes: u32) -> i32 {
        let mut port = match self.bank_port(caller) {
            Ok(port) => port,
            Err(error) => return error,
        };
        let Some(into) = port.peers.sink(peer, offset, bytes as usize) else { return abi::ERROR_ENDED };
        into.fill(0);
        0
    }

    /// `flash_pause`: a completion behind what others have to do.
    fn flash_pause(&mut self, caller: Caller, wait: u32) -> i32 {
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
