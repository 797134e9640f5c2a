//! The flash port: what an FTL can ask of its SPU's flash, and nobody else (module `willow_flash` of docs/abi.md).
//!
//! Invariants:
//! - Only the app that serves the banks reaches flash, and only that of its own SPU; of peers only those of operations that it has.
//! - An operation whose parts do not all exist (a peer that has ended, a pointer outside of its memory, a page that cannot be read) changes
//!   nothing.
//! - Under the free clock an operation takes effect when it is asked for. What changes the flash is told by a completion nevertheless, so
//!   that an FTL which goes on for long makes way for others. Under a model it takes effect, and is told, when the model says ([`super::flash_time`]).

use super::abi::{self, PENDING};
use super::activity::Caller;
use super::flash_job::{MadePage, Task, To};
use super::flash_time::{Copied, program};
use super::meter::{Fault, SEGMENT_WORK, STORE_WORK};
use super::os::{LocalMemory, Machine};
use crate::media::delegate::DelegatingStore;
use willow_flash_media::{Array, Cell, PageAddress, Read, Status};

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

/// The bytes of a page, gathered, and whether some of them come from the FTL's memory; else why not.
enum Gathered {
    Page { data: Vec<u8>, own: bool },
    Not(i32),
}

/// What a program is made of that may have to be waited for.
#[derive(Default)]
struct Sources {
    copied: Vec<Copied>,
    peers: Vec<u32>,
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

    /// `flash_geometry`.
    pub fn flash_geometry<M: LocalMemory>(&mut self, caller: Caller, memory: &mut M, to: u64) -> Result<i32, Fault> {
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
    pub fn flash_bad_blocks<M: LocalMemory>(
        &mut self,
        caller: Caller,
        memory: &mut M,
        die: u32,
        (to, most): (u64, u32),
    ) -> Result<i32, Fault> {
        self.meter.charge(STORE_WORK)?;
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
    pub fn flash_read<M: LocalMemory>(
        &mut self,
        caller: Caller,
        memory: &mut M,
        asked: &FlashRead,
    ) -> Result<i32, Fault> {
        self.meter.charge(SEGMENT_WORK)?;
        self.meter.charge_bytes(u64::from(asked.bytes) + u64::from(asked.spare_bytes))?;
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
        if self.flash_takes_time() {
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
            return Ok(self.ask_flash(caller, asked.wait, asked.die, Task::Read { read, to, spare }));
        }
        let mut spare = vec![0; if read.spare { shape.spare_bytes as usize } else { 0 }];
        let Some(array) = self.array(caller) else { return Ok(abi::ERROR_PERMISSION) };
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
    pub fn flash_program<M: LocalMemory>(
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
        let mut sources = Sources::default();
        for page in described.chunks_exact(PAGE_BYTES) {
            let (segments, spare_bytes) = (u32_at(page, 16), u32_at(page, 20));
            if segments > abi::FLASH_SEGMENTS_MAX || spare_bytes > shape.spare_bytes {
                return Ok(abi::ERROR_ARGUMENT);
            }
            let at = PageAddress { block: u32_at(page, 0), page: u32_at(page, 4) };
            let page_number = made.len();
            let segments = (u64_at(page, 8), segments);
            let (data, own) =
                match self.gather(caller, memory, segments, (page_number, shape.page_bytes), &mut sources)? {
                    Gathered::Page { data, own } => (data, own),
                    Gathered::Not(error) => return Ok(error),
                };
            self.meter.charge_bytes(spare_bytes.into())?;
            let spare = memory.slice(u64_at(page, 24), spare_bytes as usize)?.to_vec();
            made.push(MadePage { at, data, spare, own });
        }
        if self.flash_takes_time() {
            return Ok(self.ask_program((caller, wait, die), made, &sources.copied, &sources.peers));
        }
        let Some(array) = self.array(caller) else { return Ok(abi::ERROR_PERMISSION) };
        let status = program(array, die, &made);
        Ok(self.flash_done(caller, wait, status))
    }

    /// The bytes of a page from its parts. Under a model, what comes from flash, or has yet to come from hosts, is noted instead.
    fn gather<M: LocalMemory>(
        &mut self,
        caller: Caller,
        memory: &mut M,
        (segments, count): (u64, u32),
        (number, page_bytes): (usize, u32),
        sources: &mut Sources,
    ) -> Result<Gathered, Fault> {
        let bank = usize::from(caller.spu);
        let takes_time = self.flash_takes_time();
        let Some(keeps) = self.array(caller).map(|array| array.keeps_payload()) else {
            return Ok(Gathered::Not(abi::ERROR_PERMISSION));
        };
        let described = memory.slice(segments, count as usize * SEGMENT_BYTES)?.to_vec();
        let mut page = Vec::with_capacity(if keeps { page_bytes as usize } else { 0 });
        let (mut filled, mut own) = (0, false);
        for segment in described.chunks_exact(SEGMENT_BYTES) {
            let (kind, bytes) = (u32_at(segment, 0), u32_at(segment, 4) as usize);
            if filled + bytes > page_bytes as usize {
                return Ok(Gathered::Not(abi::ERROR_RANGE));
            }
            self.meter.charge(SEGMENT_WORK)?;
            self.meter.charge_bytes(bytes as u64)?;
            let begin = filled;
            filled += bytes;
            if keeps {
                page.resize(filled, 0);
            }
            match kind {
                abi::FLASH_FROM_LOCAL => {
                    own = true;
                    page.resize(filled, 0);
                    page[begin..].copy_from_slice(memory.slice(u64_at(segment, 8), bytes)?);
                }
                abi::FLASH_FROM_ZEROES => {}
                abi::FLASH_FROM_PEER => {
                    let (peer, offset) = (u32_at(segment, 8), u64_at(segment, 16));
                    let Some(from) = self.port(caller).and_then(|store| store.source(bank, peer, offset, bytes)) else {
                        return Ok(Gathered::Not(abi::ERROR_ENDED));
                    };
                    if keeps {
                        page[begin..].copy_from_slice(from);
                    }
                    sources.peers.push(peer);
                }
                abi::FLASH_FROM_FLASH => {
                    let at = PageAddress { block: u32_at(segment, 12), page: u32_at(segment, 16) };
                    let (die, offset_bytes) = (u32_at(segment, 8), u32_at(segment, 20));
                    let read = Read { at, offset_bytes, length_bytes: bytes as u32, spare: false };
                    if takes_time {
                        sources.copied.push(Copied { page: number, at: begin, die, read });
                        continue;
                    }
                    let Some(array) = self.array(caller) else { return Ok(Gathered::Not(abi::ERROR_PERMISSION)) };
                    let status = match keeps || array.keeps(die, at) {
                        true => {
                            own |= !keeps;
                            page.resize(filled, 0);
                            array.read(die, &read, &mut page[begin..], &mut [])
                        }
                        false => array.read_unseen(die, &read, &mut []),
                    };
                    match status {
                        Ok(Status::Done { .. } | Status::Latched) => {}
                        Ok(status) => return Ok(Gathered::Not(told(status))),
                        Err(_) => return Ok(Gathered::Not(abi::ERROR_MEDIA)),
                    }
                }
                _ => return Ok(Gathered::Not(abi::ERROR_ARGUMENT)),
            }
        }
        Ok(Gathered::Page { data: page, own })
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
        let Some(array) = self.array(caller) else { return Ok(abi::ERROR_PERMISSION) };
        if count == 0 || count > array.geometry().planes_per_die {
            return Ok(abi::ERROR_ARGUMENT);
        }
        let blocks: Vec<u32> =
            memory.slice(blocks, count as usize * 4)?.chunks_exact(4).map(|block| u32_at(block, 0)).collect();
        if self.flash_takes_time() {
            return Ok(self.ask_flash(caller, wait, die, Task::Erase { blocks }));
        }
        let Some(array) = self.array(caller) else { return Ok(abi::ERROR_PERMISSION) };
        let status = array.erase(die, &blocks).map_or(abi::ERROR_MEDIA, told);
        Ok(self.flash_done(caller, wait, status))
    }

    /// `flash_zero_peer`.
    pub fn flash_zero_peer(&mut self, caller: Caller, peer: u32, offset: u64, bytes: u32) -> Result<i32, Fault> {
        self.meter.charge_bytes(bytes.into())?;
        let bank = usize::from(caller.spu);
        let Some(store) = self.port(caller) else { return Ok(abi::ERROR_PERMISSION) };
        let Some(into) = store.sink(bank, peer, offset, bytes as usize) else { return Ok(abi::ERROR_ENDED) };
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
        let Some(group) = self.group(caller, None, wait) else { return abi::ERROR_REFUSED };
        if let Some(group) = self.group_at_mut(group) {
            group.remaining = 1;
        }
        self.end_one(group, status.into(), None);
        PENDING
    }
}
