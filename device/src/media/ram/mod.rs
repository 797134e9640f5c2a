//! Contents in memory: the fastest store, gone with the process.
//!
//! What always holds:
//! - Each operation is done before the call returns: nothing ever blocks, and nothing completes later.
//! - A bank is one anonymous private mapping without reserved memory; a page costs memory from its first write until it
//!   is zeroed as a whole, in huge pages 2 MiB at a time. The bound on memory is banks x bank bytes, plus [`METADATA_BYTES_MAX`], the
//!   blobs, and, where memory is made ready ahead, the frames (`frames.rs`).
//! - There is no power cut that it survives, so there is no volatile cache to declare either.
//!
//! The media controller calls it, from one thread. [`RamStore::make_ready_ahead`] starts another, which never sees contents.

mod bank;
mod frames;
mod maker;
mod memory;

use super::store::{Progress, Store, StoreCompletion, StoreError, Ticket};
use super::{BANKS_MAX, BLOB_BYTES_MAX, BLOBS_MAX, METADATA_BYTES_MAX, blob_name_is_valid};
use crate::shared::SharedSpan;
use bank::{CHUNK_BYTES, Chunks, ReadyAhead, parts};
use frames::{Frames, PIECES_READY_MIN};
use maker::Maker;
use memory::{Mapping, Pages};
use rustix::mm::Advice;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Unit of memory that is given back by zeroing.
const PAGE_BYTES: u64 = 4096;
/// Pages that one block of [`Written`] tells of: 128 MiB.
const BLOCK_PAGES: u64 = 32768;
/// From this length on zeroing gives pages back; below, writing zeroes is cheaper than taking page faults again.
const RELEASE_BYTES_MIN: u64 = 64 * 1024;

/// Length of a line of the processor's caches.
#[cfg(target_arch = "x86_64")]
const LINE_BYTES: u64 = 64;

/// Why a store in memory could not be made.
#[derive(Debug, thiserror::Error)]
pub enum RamError {
    /// A number of banks that is not supported.
    #[error("{0} banks asked for: the number of banks must be from 1 to {BANKS_MAX}")]
    Banks(usize),
    /// A bank's size that is not supported.
    #[error("bank size {0} bytes: it must be a multiple of 4096 above zero")]
    BankBytes(u64),
    /// The operating system has no address space for it.
    #[error("cannot map {bytes} bytes of memory for a bank ({error}): choose a smaller size")]
    Map {
        /// Size of the bank.
        bytes: u64,
        /// What the operating system said.
        error: std::io::Error,
    },
}

/// Which pages of a bank may have been written; all others read as zeroes, which takes no look at memory that was never touched. Grows
/// with what is written, and is not taken back by zeroing.
struct Written(Vec<Option<Box<[u64; (BLOCK_PAGES / 64) as usize]>>>);

impl Written {
    fn new(bank_bytes: u64) -> Written {
        let blocks = bank_bytes.div_ceil(PAGE_BYTES * BLOCK_PAGES);
        Written((0..blocks).map(|_| None).collect())
    }

    fn is_empty(&self) -> bool {
        self.0.iter().all(Option::is_none)
    }

    /// True where any page of a range may have been written.
    #[inline]
    fn any(&self, address: u64, bytes: u64) -> bool {
        let pages = address / PAGE_BYTES..(address + bytes).div_ceil(PAGE_BYTES);
        pages.into_iter().any(|page| {
            let block = self.0.get((page / BLOCK_PAGES) as usize).and_then(Option::as_ref);
            block.is_some_and(|block| block[(page % BLOCK_PAGES / 64) as usize] >> (page % 64) & 1 != 0)
        })
    }

    #[inline]
    fn mark(&mut self, address: u64, bytes: u64) {
        for page in address / PAGE_BYTES..(address + bytes).div_ceil(PAGE_BYTES) {
            let Some(block) = self.0.get_mut((page / BLOCK_PAGES) as usize) else { return };
            let block = block.get_or_insert_with(|| Box::new([0; (BLOCK_PAGES / 64) as usize]));
            block[(page % BLOCK_PAGES / 64) as usize] |= 1 << (page % 64);
        }
    }
}

/// Banks in memory.
pub struct RamStore {
    // Before the banks: its thread must have ended when they go.
    ahead: Option<ReadyAhead>,
    /// Of each bank, where memory is made ready ahead; else none.
    chunks: Vec<Chunks>,
    banks: Vec<Mapping>,
    written: Vec<Written>,
    bank_bytes: u64,
    metadata: Option<Vec<u8>>,
    blobs: BTreeMap<String, Vec<u8>>,
    ended: VecDeque<StoreCompletion>,
    waker: Option<Arc<dyn Fn() + Send + Sync>>,
}

impl RamStore {
    /// Reserves address space for the banks; memory is taken as they are written. `bank_bytes` is a multiple of 4096.
    pub fn new(banks: usize, bank_bytes: u64) -> Result<RamStore, RamError> {
        if banks == 0 || banks > BANKS_MAX {
            return Err(RamError::Banks(banks));
        }
        if bank_bytes == 0 || !bank_bytes.is_multiple_of(PAGE_BYTES) {
            return Err(RamError::BankBytes(bank_bytes));
        }
        let bytes = usize::try_from(bank_bytes).map_err(|_| RamError::BankBytes(bank_bytes))?;
        let mut mappings = Vec::with_capacity(banks);
        for _ in 0..banks {
            let mapping =
                Mapping::new(bytes, Pages::Any).map_err(|error| RamError::Map { bytes: bank_bytes, error })?;
            mappings.push(mapping);
        }
        Ok(RamStore {
            ahead: None,
            chunks: Vec::new(),
            written: mappings.iter().map(|_| Written::new(bank_bytes)).collect(),
            banks: mappings,
            bank_bytes,
            metadata: None,
            blobs: BTreeMap::new(),
            ended: VecDeque::new(),
            waker: None,
        })
    }

    /// Asks the operating system for huge pages: fewer faults and faster access, at up to 2 MiB of memory for the first byte
    /// written in each 2 MiB. For stores that fit in this machine's memory; where there are none to be had, nothing changes.
    pub fn prefer_huge_pages(&mut self) {
        self.banks.iter().for_each(Mapping::prefer_huge_pages);
    }

    /// Has a thread of its own make memory ready, so that no operation waits for huge pages to be made: the first small writes of a place
    /// go to pages that lie ready (32 MiB from now on, up to 256 MiB while they are not enough), and come home when the place is ready.
    /// For stores with huge pages that nothing was written to yet.
    pub fn make_ready_ahead(&mut self) -> std::io::Result<()> {
        assert!(self.written.iter().all(Written::is_empty), "nothing was written yet");
        let maker = Maker::start(PIECES_READY_MIN)?;
        self.ahead = Some(ReadyAhead { maker, frames: Frames::new() });
        self.chunks = self.banks.iter().map(|_| Chunks::new(self.bank_bytes)).collect();
        Ok(())
    }

    fn wake(&self) {
        if let Some(waker) = &self.waker {
            waker();
        }
    }

    /// Where a range is in memory: the one bounds check of each operation.
    #[inline]
    fn locate(&self, bank: usize, address: u64, bytes: u64) -> Result<*mut u8, StoreError> {
        let mapping = self.banks.get(bank).ok_or(StoreError::Range)?;
        let end = address.checked_add(bytes).ok_or(StoreError::Range)?;
        if end > mapping.bytes() as u64 {
            return Err(StoreError::Range);
        }
        // SAFETY: `address` is at most the length of the mapping.
        Ok(unsafe { mapping.base().as_ptr().add(address as usize) })
    }

    /// True where a range, which lies in its bank, is at its place in the mapping.
    #[inline(always)]
    fn is_settled(&self, bank: usize, address: u64, bytes: u64) -> bool {
        // Without chunks, or where they are: one look at a table that stays in the processor's cache.
        self.chunks.get(bank).is_none_or(|chunks| chunks.is_settled(address, bytes))
    }

    /// What a range that is not all at its place holds.
    #[cold]
    fn read_unsettled(&mut self, bank: usize, address: u64, into: &mut [u8]) {
        let ahead = self.ahead.as_mut().expect("chunks are made with it");
        self.chunks[bank].read(&self.banks[bank], ahead, address, into);
    }

    /// Makes a range of the mapping read as zeroes; true where its memory was given back.
    fn zero_in_place(&mut self, bank: usize, address: u64, bytes: u64) -> Result<(), StoreError> {
        let start = self.locate(bank, address, bytes)?;
        let pages_start = address.next_multiple_of(PAGE_BYTES);
        let pages_end = (address + bytes) / PAGE_BYTES * PAGE_BYTES;
        if bytes >= RELEASE_BYTES_MIN && pages_start < pages_end {
            let head = (pages_start - address) as usize;
            let tail = (address + bytes - pages_end) as usize;
            let pages = (pages_end - pages_start) as usize;
            // SAFETY: head, pages and tail are the parts of the range that `locate` checked, in order; the pages are
            // whole ones of a private anonymous mapping, which read as zeroes after `DONTNEED`.
            unsafe {
                std::ptr::write_bytes(start, 0, head);
                if rustix::mm::madvise(start.add(head).cast(), pages, Advice::LinuxDontNeed).is_err() {
                    std::ptr::write_bytes(start.add(head), 0, pages);
                }
                std::ptr::write_bytes(start.add(head + pages), 0, tail);
            }
        } else {
            // SAFETY: `locate` checked that the range lies in the mapping.
            unsafe { std::ptr::write_bytes(start, 0, bytes as usize) };
        }
        Ok(())
    }
}

impl Store for RamStore {
    fn banks(&self) -> usize {
        self.banks.len()
    }

    fn bank_bytes(&self) -> u64 {
        self.bank_bytes
    }

    fn volatile_write_cache(&self) -> bool {
        false
    }

    #[inline]
    fn read(&mut self, bank: usize, address: u64, into: &mut [u8]) -> Result<Progress, StoreError> {
        let from = self.locate(bank, address, into.len() as u64)?;
        if !self.written[bank].any(address, into.len() as u64) {
            into.fill(0);
            return Ok(Progress::Done);
        }
        if !self.is_settled(bank, address, into.len() as u64) {
            self.read_unsettled(bank, address, into);
            return Ok(Progress::Done);
        }
        // SAFETY: `locate` checked that the range lies in the mapping; `into` is a Rust slice and so not part of it.
        unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
        Ok(Progress::Done)
    }

    #[inline]
    fn prefetch(&self, bank: usize, address: u64, bytes: u64) -> bool {
        #[cfg(target_arch = "x86_64")]
        {
            let end = address.saturating_add(bytes).min(self.bank_bytes);
            for line in (address / LINE_BYTES * LINE_BYTES..end).step_by(LINE_BYTES as usize) {
                let Ok(place) = self.locate(bank, line, 1) else { return false };
                // SAFETY: a hint that changes nothing, on memory of the mapping.
                unsafe { std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(place.cast()) };
            }
            true
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            let _ = (bank, address, bytes);
            false
        }
    }

    #[inline]
    fn read_shared(&mut self, bank: usize, address: u64, into: &mut SharedSpan<'_>) -> Result<Progress, StoreError> {
        let from = self.locate(bank, address, into.len() as u64)?;
        if !self.written[bank].any(address, into.len() as u64) {
            into.clear();
            return Ok(Progress::Done);
        }
        if !self.is_settled(bank, address, into.len() as u64) {
            let mut bytes = vec![0; into.len()];
            self.read_unsettled(bank, address, &mut bytes);
            into.copy_from(&bytes);
            return Ok(Progress::Done);
        }
        // SAFETY: `locate` checked that the range lies in the mapping, which is private and so shared with nobody.
        unsafe { into.copy_from_raw(from) };
        Ok(Progress::Done)
    }

    #[inline]
    fn skip(&mut self, bank: usize, address: u64, bytes: usize) -> Result<Progress, StoreError> {
        self.locate(bank, address, bytes as u64).map(|_| Progress::Done)
    }

    #[inline]
    fn write(&mut self, bank: usize, address: u64, from: &[u8]) -> Result<Progress, StoreError> {
        let into = self.locate(bank, address, from.len() as u64)?;
        self.written[bank].mark(address, from.len() as u64);
        if !self.is_settled(bank, address, from.len() as u64) {
            let ahead = self.ahead.as_mut().expect("chunks are made with it");
            let written = self.chunks[bank].write(&self.banks[bank], ahead, address, from);
            return if written { Ok(Progress::Done) } else { Err(StoreError::Full) };
        }
        // SAFETY: `locate` checked that the range lies in the mapping; `from` is a Rust slice and so not part of it.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), into, from.len()) };
        Ok(Progress::Done)
    }

    fn zero(&mut self, bank: usize, address: u64, bytes: u64) -> Result<Progress, StoreError> {
        self.locate(bank, address, bytes)?;
        if self.chunks.is_empty() {
            return self.zero_in_place(bank, address, bytes).map(|()| Progress::Done);
        }
        for (chunk, part) in parts(address, bytes, CHUNK_BYTES) {
            let ahead = self.ahead.as_mut().expect("chunks are made with it");
            if self.chunks[bank].zero(&self.banks[bank], ahead, chunk, part.clone()) {
                continue;
            }
            self.zero_in_place(bank, chunk as u64 * CHUNK_BYTES + part.start as u64, part.len() as u64)?;
            if part.len() as u64 == CHUNK_BYTES {
                self.chunks[bank].released(chunk);
            }
        }
        Ok(Progress::Done)
    }

    // Nothing ever blocks here, so nobody has a reason to begin anything; who does is answered all the same.
    fn begin_read(&mut self, ticket: Ticket, bank: usize, address: u64, bytes: usize) {
        let result = self.locate(bank, address, bytes as u64).and_then(|_| {
            let mut data = vec![0; bytes];
            self.read(bank, address, &mut data).map(|_| data)
        });
        self.ended.push_back(StoreCompletion { ticket, result });
        self.wake();
    }

    fn begin_write(&mut self, ticket: Ticket, bank: usize, address: u64, from: Vec<u8>) {
        let result = self.write(bank, address, &from).map(|_| Vec::new());
        self.ended.push_back(StoreCompletion { ticket, result });
        self.wake();
    }

    fn begin_zero(&mut self, ticket: Ticket, bank: usize, address: u64, bytes: u64) {
        let result = self.zero(bank, address, bytes).map(|_| Vec::new());
        self.ended.push_back(StoreCompletion { ticket, result });
        self.wake();
    }

    fn flush(&mut self, _ticket: Ticket, bank: Option<usize>) -> Result<Progress, StoreError> {
        match bank {
            Some(bank) if bank >= self.banks.len() => Err(StoreError::Range),
            _ => Ok(Progress::Done),
        }
    }

    fn completed(&mut self) -> Option<StoreCompletion> {
        self.ended.pop_front()
    }

    fn set_waker(&mut self, waker: Arc<dyn Fn() + Send + Sync>) {
        self.waker = Some(waker);
    }

    fn load_metadata(&mut self) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.metadata.clone())
    }

    fn save_metadata(&mut self, _ticket: Ticket, bytes: Vec<u8>) -> Result<Progress, StoreError> {
        if bytes.len() > METADATA_BYTES_MAX {
            return Err(StoreError::Full);
        }
        self.metadata = Some(bytes);
        Ok(Progress::Done)
    }

    fn load_blob(&mut self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.blobs.get(name).cloned())
    }

    fn list_blobs(&mut self) -> Result<Vec<String>, StoreError> {
        Ok(self.blobs.keys().cloned().collect())
    }

    fn save_blob(&mut self, _ticket: Ticket, name: &str, bytes: Vec<u8>) -> Result<Progress, StoreError> {
        if !blob_name_is_valid(name) {
            return Err(StoreError::Range);
        }
        let is_new = !self.blobs.contains_key(name);
        if bytes.len() > BLOB_BYTES_MAX || (is_new && self.blobs.len() >= BLOBS_MAX) {
            return Err(StoreError::Full);
        }
        self.blobs.insert(name.to_owned(), bytes);
        Ok(Progress::Done)
    }

    fn delete_blob(&mut self, _ticket: Ticket, name: &str) -> Result<Progress, StoreError> {
        self.blobs.remove(name);
        Ok(Progress::Done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::media::fault::Random;
    use crate::media::model::{Checked, check_contract};

    #[test]
    fn contract() {
        check_contract(&mut RamStore::new(3, 1 << 20).unwrap());
    }

    #[test]
    fn same_as_the_model() {
        for seed in 0..4 {
            let mut checked = Checked::fresh(RamStore::new(2, 1 << 20).unwrap());
            checked.run(&mut Random::new(seed), 1500);
            assert_eq!(checked.blocked, 0);
        }
    }

    #[test]
    fn a_bank_larger_than_memory_costs_nothing_until_it_is_written() {
        let mut store = RamStore::new(2, 1 << 44).unwrap();
        let far = (1 << 44) - 4096;
        assert_eq!(store.write(1, far, &[7; 4096]), Ok(Progress::Done));
        let mut bytes = [0; 4096];
        assert_eq!(store.read(1, far, &mut bytes), Ok(Progress::Done));
        assert_eq!(bytes, [7; 4096]);
        assert_eq!(store.zero(1, 5, (1 << 44) - 10), Ok(Progress::Done));
        assert_eq!(store.read(1, far, &mut bytes), Ok(Progress::Done));
        assert_eq!((bytes[0], bytes[4095]), (0, 7));
    }

    /// Ranges over pages that were written, not written, zeroed, and over the edge of a block.
    #[test]
    fn what_was_never_written_reads_as_zeroes_beside_what_was() {
        let edge = BLOCK_PAGES * PAGE_BYTES;
        let mut store = RamStore::new(1, 2 * edge).unwrap();
        assert_eq!(store.write(0, edge - 3, &[9; 5]), Ok(Progress::Done));
        let mut bytes = vec![1; 3 * PAGE_BYTES as usize];
        for (address, expected) in [(edge - 2 * PAGE_BYTES, 5), (edge, 2), (edge + PAGE_BYTES, 0), (0, 0)] {
            bytes.fill(1);
            assert_eq!(store.read(0, address, &mut bytes), Ok(Progress::Done));
            assert_eq!(bytes.iter().filter(|byte| **byte == 9).count(), expected, "from {address}");
            assert_eq!(bytes.iter().filter(|byte| **byte == 0).count(), bytes.len() - expected, "from {address}");
        }
        assert_eq!(store.written[0].0.iter().flatten().count(), 2);
        assert_eq!(store.zero(0, edge - PAGE_BYTES, 2 * PAGE_BYTES), Ok(Progress::Done));
        assert_eq!(store.read(0, edge - PAGE_BYTES, &mut bytes), Ok(Progress::Done));
        assert!(bytes.iter().all(|byte| *byte == 0));
    }

    fn ready_ahead(banks: usize, bank_bytes: u64) -> RamStore {
        let mut store = RamStore::new(banks, bank_bytes).unwrap();
        store.prefer_huge_pages();
        store.make_ready_ahead().unwrap();
        store
    }

    #[test]
    fn contract_with_memory_made_ahead() {
        check_contract(&mut ready_ahead(3, 1 << 20));
        check_contract(&mut ready_ahead(2, 5 << 20));
    }

    /// Small writes, large ones, zeroing and reading over chunks of all kinds, with the maker at work meanwhile.
    #[test]
    fn same_as_the_model_with_memory_made_ahead() {
        for seed in 0..6 {
            let mut checked = Checked::fresh(ready_ahead(2, (7 << 20) + 4096 * seed));
            checked.run(&mut Random::new(seed), 3000);
            assert_eq!(checked.blocked, 0);
        }
    }

    #[test]
    fn what_was_scattered_comes_home_and_frames_are_given_back() {
        let chunks = 40_u64;
        let mut store = ready_ahead(1, chunks * CHUNK_BYTES);
        let page = |chunk: u64, page: u64| chunk * CHUNK_BYTES + (page * 37 % 512) * PAGE_BYTES;
        let bytes = |chunk: u64, page: u64| [(chunk * 7 + page) as u8 | 1; PAGE_BYTES as usize];
        // Every page of every chunk, chunk after chunk: as scattered as can be.
        for number in 0..400 {
            for chunk in 0..chunks {
                assert_eq!(store.write(0, page(chunk, number), &bytes(chunk, number)), Ok(Progress::Done));
            }
        }
        store.ahead.as_ref().unwrap().maker.settle();
        let mut read = [0; PAGE_BYTES as usize];
        for number in 0..400 {
            for chunk in 0..chunks {
                assert_eq!(store.read(0, page(chunk, number), &mut read), Ok(Progress::Done));
                assert!(read == bytes(chunk, number), "page {number} of chunk {chunk}");
            }
        }
        assert_eq!(store.chunks[0].scattered(), 0, "reading brings home what is left");
        let pieces = store.ahead.as_ref().unwrap().frames.pieces();
        assert!(pieces <= 17, "{pieces} pieces are held for frames that nobody has");
        // Zeroed as a whole it is fresh, and its memory is made ready anew.
        assert_eq!(store.zero(0, 0, chunks * CHUNK_BYTES), Ok(Progress::Done));
        assert_eq!(store.write(0, 5, &[3]), Ok(Progress::Done));
        assert_eq!(store.chunks[0].scattered(), 1);
        assert_eq!(store.read(0, 0, &mut read), Ok(Progress::Done));
        assert_eq!((read[4], read[5], read[6]), (0, 3, 0));
    }

    /// A place whose memory is not ready costs what is written; the device does not wait for it, and an idle one does not grow.
    #[test]
    fn memory_grows_with_what_is_written() {
        let mut store = ready_ahead(1, 4 << 30);
        let resident = || {
            let status = std::fs::read_to_string("/proc/self/statm").unwrap();
            status.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * PAGE_BYTES
        };
        store.ahead.as_ref().unwrap().maker.settle();
        let before = resident();
        // One page in each of 2048 chunks: 8 MiB, where a huge page each would take 4 GiB.
        for chunk in 0..2048 {
            assert_eq!(store.write(0, chunk * CHUNK_BYTES + 8192, &[1; 4096]), Ok(Progress::Done));
        }
        store.ahead.as_ref().unwrap().maker.settle();
        let grown = resident().saturating_sub(before);
        // Other tests run in this process.
        assert!(grown < 1 << 30, "{grown} bytes for 8 MiB");
        assert_eq!(store.chunks[0].scattered(), 2048);
    }

    #[test]
    fn bad_shapes_are_refused() {
        assert!(matches!(RamStore::new(0, 4096), Err(RamError::Banks(0))));
        assert!(matches!(RamStore::new(65, 4096), Err(RamError::Banks(65))));
        assert!(matches!(RamStore::new(1, 100), Err(RamError::BankBytes(100))));
        assert!(matches!(RamStore::new(1, 1 << 62), Err(RamError::Map { .. })));
    }

    #[test]
    fn begun_operations_complete_in_order() {
        let mut store = RamStore::new(1, 8192).unwrap();
        store.begin_write(1, 0, 10, vec![5; 3]);
        store.begin_zero(2, 0, 11, 1);
        store.begin_read(3, 0, 9, 5);
        let ended: Vec<_> = std::iter::from_fn(|| store.completed()).map(|end| (end.ticket, end.result)).collect();
        assert_eq!(ended, [(1, Ok(vec![])), (2, Ok(vec![])), (3, Ok(vec![0, 5, 0, 5, 0]))]);
    }
}
