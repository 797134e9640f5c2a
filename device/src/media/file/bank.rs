//! The file of one bank: its head, and reading, writing, zeroing, growing and syncing of what follows.
//!
//! What always holds:
//! - Data at bank address A is at file offset [`DATA_OFFSET_BYTES`] + A. The head before it is written at creation only.
//! - The file only grows, in steps, before anything is written past its end. `data_bytes` is what it has room for; past
//!   that a bank reads as zeroes.
//! - Interrupted and short system calls are gone on with; an end of file where `data_bytes` says that there is data is an
//!   error (somebody truncated the file), not zeroes.
//!
//! The file store calls it from the device's thread (`*_now`) and from its workers (the rest). Overlapping operations are
//! kept apart by the store.

use super::pages::{PAGE_BYTES, pages_covered};
use crate::media::store::{MEDIA_FAILED, StoreError};
use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::io::{Errno, ReadWriteFlags};
use std::fs::File;
use std::io::IoSliceMut;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Where the data begins in a bank file.
pub const DATA_OFFSET_BYTES: u64 = 4096;
/// Least growth of a bank file.
const GROWTH_BYTES_MIN: u64 = 64 << 20;
/// A file grows by at least one part in this of its length, so that the number of steps is bounded.
const GROWTH_FRACTION: u64 = 8;
/// Piece in which zeroes are written where holes cannot be punched.
const ZEROES_BYTES: usize = 64 * 1024;
static ZEROES: [u8; ZEROES_BYTES] = [0; ZEROES_BYTES];

/// A bank's file.
pub struct BankFile {
    pub path: PathBuf,
    file: File,
    bank_bytes: u64,
    data_bytes: AtomicU64,
    growing: Mutex<()>,
    /// False once the file system has said that it cannot read without waiting.
    reads_without_waiting: AtomicBool,
    /// True on a file system whose files are memory, where a plain read does not wait for a disk.
    is_memory: bool,
    /// Held by a sync or a writing out: the system reports an error to one of them only. Inside, an error of a writing
    /// out that the next sync has to report as its own.
    unreported: Mutex<Option<Errno>>,
    /// For tests: errors that the next syncs give; [`i32::MIN`]: they panic.
    #[cfg(test)]
    pub sync_error: std::sync::atomic::AtomicI32,
    /// For tests: what workers do at this address panics.
    #[cfg(test)]
    pub panics_at: AtomicU64,
}

/// What an error of the operating system means to the device.
pub fn store_error(errno: Errno) -> StoreError {
    match errno {
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG => StoreError::Full,
        other => StoreError::Failed(other.raw_os_error()),
    }
}

impl BankFile {
    /// Takes a file that is open and has been checked.
    pub fn new(file: File, path: PathBuf, bank_bytes: u64, file_bytes: u64) -> BankFile {
        let is_memory = rustix::fs::fstatfs(&file).is_ok_and(|fs| fs.f_type as u64 == libc::TMPFS_MAGIC as u64);
        let data_bytes = (file_bytes - DATA_OFFSET_BYTES).min(bank_bytes);
        BankFile {
            path,
            file,
            bank_bytes,
            data_bytes: AtomicU64::new(data_bytes),
            growing: Mutex::new(()),
            reads_without_waiting: AtomicBool::new(true),
            is_memory,
            unreported: Mutex::new(None),
            #[cfg(test)]
            sync_error: std::sync::atomic::AtomicI32::new(0),
            #[cfg(test)]
            panics_at: AtomicU64::new(u64::MAX),
        }
    }

    /// Bytes of data that the file has room for now.
    #[inline]
    pub fn data_bytes(&self) -> u64 {
        self.data_bytes.load(Ordering::Acquire)
    }

    /// Reads without waiting for the disk: false where that is not possible, and `into` is of no use then.
    pub fn read_now(&self, address: u64, into: &mut [u8]) -> Result<bool, StoreError> {
        let into = self.zero_past_end(address, into);
        if into.is_empty() {
            return Ok(true);
        }
        if !self.reads_without_waiting.load(Ordering::Relaxed) {
            if self.is_memory {
                return self.read_within(address, into).map(|()| true);
            }
            return Ok(false);
        }
        let mut done = 0;
        while done < into.len() {
            let offset = DATA_OFFSET_BYTES + address + done as u64;
            let mut parts = [IoSliceMut::new(&mut into[done..])];
            match rustix::io::preadv2(&self.file, &mut parts, offset, ReadWriteFlags::NOWAIT) {
                Ok(0) => return Err(self.shrunk()),
                Ok(bytes) => done += bytes,
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::INTR) => {}
                Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
                    self.reads_without_waiting.store(false, Ordering::Relaxed);
                    return self.read_now(address, into);
                }
                Err(errno) => return Err(store_error(errno)),
            }
        }
        Ok(true)
    }

    /// True where a page's contents can be had without waiting, so that writing a part of it does not wait either.
    pub fn page_is_cached(&self, page: u64) -> bool {
        self.is_memory || matches!(self.read_now(page * PAGE_BYTES, &mut [0]), Ok(true) | Err(_))
    }

    /// Reads, waiting for the disk.
    pub fn read(&self, address: u64, into: &mut [u8]) -> Result<(), StoreError> {
        #[cfg(test)]
        self.may_panic(address);
        let into = self.zero_past_end(address, into);
        self.read_within(address, into)
    }

    fn read_within(&self, address: u64, into: &mut [u8]) -> Result<(), StoreError> {
        let mut done = 0;
        while done < into.len() {
            match rustix::io::pread(&self.file, &mut into[done..], DATA_OFFSET_BYTES + address + done as u64) {
                Ok(0) => return Err(self.shrunk()),
                Ok(bytes) => done += bytes,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(store_error(errno)),
            }
        }
        Ok(())
    }

    /// Fills what lies past the end of the file with zeroes; returns the rest.
    fn zero_past_end<'a>(&self, address: u64, into: &'a mut [u8]) -> &'a mut [u8] {
        let within = self.data_bytes().saturating_sub(address).min(into.len() as u64) as usize;
        let (within, past) = into.split_at_mut(within);
        past.fill(0);
        within
    }

    fn shrunk(&self) -> StoreError {
        tracing::error!(path = %self.path.display(), "the bank file was truncated while in use");
        MEDIA_FAILED
    }

    /// Writes into the page cache; the range is within `data_bytes`.
    pub fn write_now(&self, address: u64, from: &[u8]) -> Result<(), StoreError> {
        debug_assert!(address + from.len() as u64 <= self.data_bytes());
        let mut done = 0;
        while done < from.len() {
            match rustix::io::pwrite(&self.file, &from[done..], DATA_OFFSET_BYTES + address + done as u64) {
                Ok(0) => return Err(MEDIA_FAILED),
                Ok(bytes) => done += bytes,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(store_error(errno)),
            }
        }
        Ok(())
    }

    /// Grows the file where needed, and writes.
    pub fn write(&self, address: u64, from: &[u8]) -> Result<(), StoreError> {
        self.grow(address + from.len() as u64)?;
        #[cfg(test)]
        self.may_panic(address);
        self.write_now(address, from)
    }

    fn grow(&self, data_bytes: u64) -> Result<(), StoreError> {
        if data_bytes <= self.data_bytes() {
            return Ok(());
        }
        let _growing = self.growing.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let now = self.data_bytes();
        if data_bytes <= now {
            return Ok(());
        }
        let step = (now / GROWTH_FRACTION).max(GROWTH_BYTES_MIN);
        let roomy = data_bytes.max(now.saturating_add(step)).next_multiple_of(PAGE_BYTES).min(self.bank_bytes);
        let tight = data_bytes.next_multiple_of(PAGE_BYTES).min(self.bank_bytes);
        // A limit on the length of files may leave room for what is asked, if not for a whole step.
        for target in [roomy, tight] {
            match rustix::fs::ftruncate(&self.file, DATA_OFFSET_BYTES + target) {
                Ok(()) => {
                    self.data_bytes.store(target, Ordering::Release);
                    return Ok(());
                }
                Err(Errno::FBIG | Errno::INVAL) => {}
                Err(errno) => return Err(store_error(errno)),
            }
        }
        Err(StoreError::Full)
    }

    /// Makes a range read as zeroes. Pages that it covers become holes where the file system can; of the pages at its
    /// edges those that never held data are left alone.
    pub fn zero(&self, address: u64, end: u64, head_has_data: bool, tail_has_data: bool) -> Result<(), StoreError> {
        #[cfg(test)]
        self.may_panic(address);
        let end = end.min(self.data_bytes());
        if address >= end {
            return Ok(());
        }
        let covered = pages_covered(address, end);
        if covered.is_empty() {
            return if head_has_data || tail_has_data { self.write_zeroes(address, end) } else { Ok(()) };
        }
        let (covered_start, covered_end) = (covered.start * PAGE_BYTES, covered.end * PAGE_BYTES);
        if head_has_data {
            self.write_zeroes(address, covered_start)?;
        }
        if tail_has_data {
            self.write_zeroes(covered_end, end)?;
        }
        loop {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let offset = DATA_OFFSET_BYTES + covered_start;
            match rustix::fs::fallocate(&self.file, flags, offset, covered_end - covered_start) {
                Ok(()) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => return self.write_zeroes(covered_start, covered_end),
                Err(errno) => return Err(store_error(errno)),
            }
        }
    }

    fn write_zeroes(&self, mut address: u64, end: u64) -> Result<(), StoreError> {
        while address < end {
            let piece = (end - address).min(ZEROES_BYTES as u64);
            self.write_now(address, &ZEROES[..piece as usize])?;
            address += piece;
        }
        Ok(())
    }

    /// Makes all that was written before durable.
    pub fn sync(&self) -> Result<(), Errno> {
        let mut unreported = self.unreported.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        unreported.take().map_or_else(|| self.sync_data(), Err)
    }

    fn sync_data(&self) -> Result<(), Errno> {
        #[cfg(test)]
        if let Some(errno) = self.injected() {
            return Err(errno);
        }
        loop {
            match rustix::fs::fdatasync(&self.file) {
                Err(Errno::INTR) => {}
                other => return other,
            }
        }
    }

    /// Has what is dirty written to the disk and waits for it, without making it durable. A sync after it reports its
    /// error too, unless [`BankFile::forget_failure`] is called before.
    pub fn write_out(&self) -> Result<(), Errno> {
        let mut unreported = self.unreported.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let result = self.write_out_data();
        *unreported = result.err();
        result
    }

    /// The error of a writing out has been dealt with.
    pub fn forget_failure(&self) {
        *self.unreported.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = None;
    }

    fn write_out_data(&self) -> Result<(), Errno> {
        #[cfg(test)]
        if let Some(errno) = self.injected() {
            return Err(errno);
        }
        let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
        loop {
            // SAFETY: a system call on a file descriptor that is open as long as `self`; no memory is handed over.
            if unsafe { libc::sync_file_range(self.file.as_raw_fd(), 0, 0, flags) } == 0 {
                return Ok(());
            }
            match std::io::Error::last_os_error().raw_os_error().map(Errno::from_raw_os_error) {
                Some(Errno::INTR) => {}
                Some(Errno::NOSYS | Errno::OPNOTSUPP | Errno::INVAL | Errno::SPIPE) => return self.sync_data(),
                Some(errno) => return Err(errno),
                None => return Err(Errno::IO),
            }
        }
    }

    #[cfg(test)]
    fn injected(&self) -> Option<Errno> {
        let errno = self.sync_error.load(Ordering::Relaxed);
        assert!(errno != i32::MIN, "a planted panic of a sync");
        (errno != 0).then(|| Errno::from_raw_os_error(errno))
    }

    #[cfg(test)]
    fn may_panic(&self, address: u64) {
        assert!(self.panics_at.load(Ordering::Relaxed) != address, "a planted panic at {address}");
    }

    /// Calls with each range of bytes of the bank that the file system keeps data for.
    pub fn each_data_range(&self, mut visit: impl FnMut(u64, u64)) -> Result<(), Errno> {
        let end = DATA_OFFSET_BYTES + self.data_bytes();
        let mut offset = DATA_OFFSET_BYTES;
        while offset < end {
            let start = match rustix::fs::seek(&self.file, SeekFrom::Data(offset)) {
                Ok(start) => start,
                Err(Errno::NXIO) => return Ok(()),
                Err(Errno::INVAL | Errno::OPNOTSUPP) => offset,
                Err(errno) => return Err(errno),
            };
            if start >= end {
                return Ok(());
            }
            let stop = match rustix::fs::seek(&self.file, SeekFrom::Hole(start)) {
                Ok(stop) => stop.min(end),
                Err(Errno::NXIO | Errno::INVAL | Errno::OPNOTSUPP) => end,
                Err(errno) => return Err(errno),
            };
            visit(start - DATA_OFFSET_BYTES, stop - DATA_OFFSET_BYTES);
            offset = stop;
        }
        Ok(())
    }
}
