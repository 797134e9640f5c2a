//! The flash port: what an FTL can ask of its SPU's flash, and nobody else (module `willow_flash` of docs/abi.md).
//!
//! Invariants:
//! - Only the app that serves the banks reaches flash, and only that of its own SPU; of peers only those of operations that it has.
//! - An operation whose parts do not all exist (a peer that has ended, a pointer outside of its memory, a page that cannot be read) changes
//!   nothing.
//! - Under the free clock an operation takes effect when it is asked for. What changes the flash is told by a completion nevertheless, so
//!   that an FTL which goes on for long makes way for others.

use super::abi::{self, PENDING};
use super::activity::Caller;
use super::gate::{Charged, FlashOperation};
use super::meter::Fault;
use super::os::{LocalMemory, Machine};
use crate::media::delegate::DelegatingStore;
use willow_flash_media::{Array, Cell, PageAddress, ProgramPage, Read, Status};

/// Bytes that describe a page to be programmed: u32 block, u32 page, u64 pointer to its parts, u32 parts, u32 spare bytes, u64 pointer to
/// the spare bytes.
const PAGE_BYTES: usize = 32;
/// Bytes that describe a part: u32 kind, u32 bytes, then u64 pointer and u64 zero; or u32 peer, u32 zero, u64 offset; or u32 die, u32 block,
/// u32 page, u32 offset.
const SEGMENT_BYTES: usize = 24;
/// Bytes that `flash_geometry` writes.
const GEOMETRY_BYTES: usize = 64;

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

/// The bytes of a page, gathered; else why not.
enum Gathered {
    Page(Vec<u8>),
    Not(i32),
}

impl Machine {
    /// The store, where the caller is the app that serves its banks.
    fn port(&mut self, caller: Caller) -> Option<&mut DelegatingStore> {
        let app = self.apps.get(usize::from(caller.app)).and_then(Option::as_ref)?;
        let store = self.media.store.delegating()?;
        (app.owner.is_none() && app.name == store.ftl()).then_some(store)
    }

    fn array(&mut self, caller: Caller) -> Option<&mut Array> {
        self.port(caller)?.flash(usize::from(caller.spu))
    }

    /// Carries out an operation of the flash port, or begins it.
    pub fn flash<M: LocalMemory>(
        &mut self,
        caller: Caller,
        memory: &mut M,
        operation: FlashOperation,
        _: Charged,
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
        }
    }

    /// `flash_geometry`.
    fn flash_geometry<M: LocalMemory>(&mut self, caller: Caller, memory: &mut M, to: u64) -> Result<i32, Fault> {
        let Some((bank_bytes, unit_bytes)) = self.port(caller).map(|store| store.shape()) else {
            return Ok(abi::ERROR_PERMISSION);
        };
        let Some(array) = self.array(caller) else { return Ok(abi::ERROR_NOT_FOUND) };
        let shape = array.geometry();
        let cell = match shape.cell {
            Cell::Slc => 1,
            Cell::Mlc => 2,
            Cell::Tlc => 3,
        };
        let words = [
            shape.channels,
            shape.packages_per_channel,
            shape.dies_per_package,
            shape.planes_per_die,
            shape.blocks_per_plane,
            shape.pages_per_block,
            shape.page_bytes,
            shape.spare_bytes,
            cell,
            u32::from(shape.spare_accessible),
            unit_bytes as u32,
            shape.paired_distance,
            bank_bytes as u32,
            (bank_bytes >> 32) as u32,
            0,
            0,
        ];
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
        if self.port(caller).is_none() {
            return Ok(abi::ERROR_PERMISSION);
        }
        let Some(array) = self.array(caller) else { return Ok(abi::ERROR_NOT_FOUND) };
        if die >= array.geometry().dies() {
            return Ok(abi::ERROR_RANGE);
        }
        let bad: Vec<u32> = array.factory_bad_blocks(die).collect();
        let told = bad.len().min(most as usize);
        let into = memory.slice_mut(to, told * 4)?;
        for (block, place) in bad.iter().zip(into.chunks_exact_mut(4)) {
            place.copy_from_slice(&block.to_le_bytes());
        }
        Ok(bad.len() as i32)
    }

    /// `flash_read`.
    fn flash_read<M: LocalMemory>(&mut self, caller: Caller, memory: &mut M, asked: &FlashRead) -> Result<i32, Fault> {
        let bank = usize::from(caller.spu);
        let read = Read {
            at: PageAddress { block: asked.block, page: asked.page },
            offset_bytes: asked.offset,
            length_bytes: asked.bytes,
            spare: asked.spare_bytes > 0,
        };
        let Some(array) = self.array(caller) else { return Ok(abi::ERROR_PERMISSION) };
        let shape = *array.geometry();
        if asked.bytes > shape.page_bytes || asked.spare_bytes > shape.spare_bytes {
            return Ok(abi::ERROR_RANGE);
        }
        let mut spare = vec![0; if read.spare { shape.spare_bytes as usize } else { 0 }];
        let status = if asked.peer == 0 {
            let into = memory.slice_mut(asked.to, asked.bytes as usize)?;
            array.read(asked.die, &read, into, &mut spare)
        } else {
            let mut data = vec![0; asked.bytes as usize];
            let status = array.read(asked.die, &read, &mut data, &mut spare);
            let sink = self.port(caller).and_then(|store| store.sink(bank, asked.peer, asked.to, data.len()));
            let Some(into) = sink else { return Ok(abi::ERROR_ENDED) };
            into.copy_from_slice(&data);
            status
        };
        if read.spare {
            let bytes = asked.spare_bytes as usize;
            memory.slice_mut(asked.spare, bytes)?.copy_from_slice(&spare[..bytes]);
        }
        let status = status.map_or(abi::ERROR_MEDIA, told);
        // A run that has read a lot is told by a completion, behind what others have to do.
        Ok(if self.in_slice(0) { status } else { self.flash_done(caller, asked.wait, status) })
    }

    /// `flash_program`.
    fn flash_program<M: LocalMemory>(
        &mut self,
        caller: Caller,
        memory: &mut M,
        (die, pages, count): (u32, u64, u32),
        wait: u32,
    ) -> Result<i32, Fault> {
        let Some(array) = self.array(caller) else { return Ok(abi::ERROR_PERMISSION) };
        let shape = *array.geometry();
        if count == 0 || count > shape.planes_per_die {
            return Ok(abi::ERROR_ARGUMENT);
        }
        let described = memory.slice(pages, count as usize * PAGE_BYTES)?.to_vec();
        let mut made = Vec::with_capacity(count as usize);
        for page in described.chunks_exact(PAGE_BYTES) {
            let (segments, spare_bytes) = (u32_at(page, 16), u32_at(page, 20));
            if segments > abi::FLASH_SEGMENTS_MAX || spare_bytes > shape.spare_bytes {
                return Ok(abi::ERROR_ARGUMENT);
            }
            let at = PageAddress { block: u32_at(page, 0), page: u32_at(page, 4) };
            let data = match self.gather(caller, memory, (u64_at(page, 8), segments), shape.page_bytes)? {
                Gathered::Page(data) => data,
                Gathered::Not(error) => return Ok(error),
            };
            self.charge_copy(spare_bytes.into())?;
            let spare = memory.slice(u64_at(page, 24), spare_bytes as usize)?.to_vec();
            made.push((at, data, spare));
        }
        let parts: Vec<[&[u8]; 1]> = made.iter().map(|(_, data, _)| [&data[..]]).collect();
        let pages: Vec<ProgramPage<'_>> = made
            .iter()
            .zip(&parts)
            .map(|((at, _, spare), data)| ProgramPage { at: *at, data, spare, metadata: false })
            .collect();
        let Some(array) = self.array(caller) else { return Ok(abi::ERROR_PERMISSION) };
        let status = array.program(die, &pages).map_or(abi::ERROR_MEDIA, told);
        Ok(self.flash_done(caller, wait, status))
    }

    /// The bytes of a page from its parts.
    fn gather<M: LocalMemory>(
        &mut self,
        caller: Caller,
        memory: &mut M,
        (segments, count): (u64, u32),
        page_bytes: u32,
    ) -> Result<Gathered, Fault> {
        let bank = usize::from(caller.spu);
        let described = memory.slice(segments, count as usize * SEGMENT_BYTES)?.to_vec();
        let mut page = Vec::with_capacity(page_bytes as usize);
        for segment in described.chunks_exact(SEGMENT_BYTES) {
            let (kind, bytes) = (u32_at(segment, 0), u32_at(segment, 4) as usize);
            if page.len() + bytes > page_bytes as usize {
                return Ok(Gathered::Not(abi::ERROR_RANGE));
            }
            self.charge_piece(bytes as u64)?;
            match kind {
                abi::FLASH_FROM_LOCAL => page.extend_from_slice(memory.slice(u64_at(segment, 8), bytes)?),
                abi::FLASH_FROM_ZEROES => page.resize(page.len() + bytes, 0),
                abi::FLASH_FROM_PEER => {
                    let (peer, offset) = (u32_at(segment, 8), u64_at(segment, 16));
                    let Some(from) = self.port(caller).and_then(|store| store.source(bank, peer, offset, bytes)) else {
                        return Ok(Gathered::Not(abi::ERROR_ENDED));
                    };
                    page.extend_from_slice(from);
                }
                abi::FLASH_FROM_FLASH => {
                    let at = PageAddress { block: u32_at(segment, 12), page: u32_at(segment, 16) };
                    let (die, offset_bytes) = (u32_at(segment, 8), u32_at(segment, 20));
                    let begin = page.len();
                    page.resize(begin + bytes, 0);
                    let Some(array) = self.array(caller) else { return Ok(Gathered::Not(abi::ERROR_PERMISSION)) };
                    let read = Read { at, offset_bytes, length_bytes: bytes as u32, spare: false };
                    match array.read(die, &read, &mut page[begin..], &mut []) {
                        Ok(Status::Done { .. } | Status::Latched) => {}
                        Ok(status) => return Ok(Gathered::Not(told(status))),
                        Err(_) => return Ok(Gathered::Not(abi::ERROR_MEDIA)),
                    }
                }
                _ => return Ok(Gathered::Not(abi::ERROR_ARGUMENT)),
            }
        }
        Ok(Gathered::Page(page))
    }

    /// `flash_erase`.
    fn flash_erase<M: LocalMemory>(
        &mut self,
        caller: Caller,
        memory: &mut M,
        (die, blocks, count): (u32, u64, u32),
        wait: u32,
    ) -> Result<i32, Fault> {
        let Some(array) = self.array(caller) else { return Ok(abi::ERROR_PERMISSION) };
        if count == 0 || count > array.geometry().planes_per_die {
            return Ok(abi::ERROR_ARGUMENT);
        }
        let blocks: Vec<u32> =
            memory.slice(blocks, count as usize * 4)?.chunks_exact(4).map(|block| u32_at(block, 0)).collect();
        let status = array.erase(die, &blocks).map_or(abi::ERROR_MEDIA, told);
        Ok(self.flash_done(caller, wait, status))
    }

    /// `flash_zero_peer`.
    fn flash_zero_peer(&mut self, caller: Caller, peer: u32, offset: u64, bytes: u32) -> i32 {
        let bank = usize::from(caller.spu);
        let Some(store) = self.port(caller) else { return abi::ERROR_PERMISSION };
        let Some(into) = store.sink(bank, peer, offset, bytes as usize) else { return abi::ERROR_ENDED };
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
        let Some(group) = self.group(caller, None, wait) else { return abi::ERROR_REFUSED };
        if let Some(group) = self.group_at_mut(group) {
            group.remaining = 1;
        }
        self.end_one(group, status.into(), None);
        PENDING
    }
}
