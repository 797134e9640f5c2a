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
use super::flash_job::{Task, To};
use super::gate::Charged;
use super::meter::Fault;
use super::os::{LocalMemory, Machine};
use crate::interconnect::Key;
use crate::media::delegate::{BankPort, DelegatingStore};
use willow_flash_media::{Array, GEOMETRY_WORDS, PageAddress, Read, Status};
use willow_gate::{FlashOperation, FlashRead};

/// Bytes that `flash_geometry` writes.
const GEOMETRY_BYTES: usize = 64;
/// Where the bytes of a unit are in them.
const UNIT_WORD: usize = 10;
/// Where the bytes of the bank are.
const BANK_WORD: usize = GEOMETRY_WORDS;
/// Where what the FTL is to do is: when to collect, and by what.
const POLICY_WORD: usize = BANK_WORD + 2;
pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
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

impl Machine {
    /// The store, where the caller is the app that serves its banks.
    pub(super) fn port(&mut self, caller: Caller) -> Option<&mut DelegatingStore> {
        let app = self.apps.get(usize::from(caller.app)).and_then(Option::as_ref)?;
        let store = self.media.store.delegating()?;
        app.is_ftl(store.ftl()).then_some(store)
    }

    /// The flash of the caller's SPU and the peers that it may use with it; else the error.
    pub(super) fn bank_port(&mut self, caller: Caller) -> Result<BankPort<'_>, i32> {
        let bank = usize::from(caller.spu);
        self.port(caller).and_then(|store| store.bank_port(bank)).ok_or(abi::ERROR_PERMISSION)
    }

    pub(super) fn array(&mut self, caller: Caller) -> Result<&mut Array, i32> {
        Ok(self.bank_port(caller)?.flash)
    }

    /// Whether payload is kept; else it need not be moved.
    pub(super) fn keeps_payload(&mut self, caller: Caller) -> bool {
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
    pub(super) fn flash_done(&mut self, caller: Caller, wait: u32, status: i32) -> i32 {
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
