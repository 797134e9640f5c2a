//! A ring (io_uring) that holds a file: by no descriptor of the process.

use super::check;
use std::io::{Error, Result};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

const SETUP_BYTES: usize = 120;
const REGISTER_FILES: u32 = 2;
const ENTER_GETEVENTS: u32 = 1;
const OPERATION_FALLOCATE: u8 = 17;
const FIXED_FILE: u8 = 1;
const PUNCH_AND_KEEP_SIZE: u32 = 3;

/// One with a file in its table.
pub struct Ring {
    ring: OwnedFd,
    setup: [u8; SETUP_BYTES],
}

impl Ring {
    pub fn with_file(file: RawFd) -> Result<Ring> {
        let mut setup = [0u8; SETUP_BYTES];
        // SAFETY: io_uring_setup fills the 120 bytes.
        let ring = unsafe { libc::syscall(libc::SYS_io_uring_setup, 4, setup.as_mut_ptr()) };
        check(ring)?;
        // SAFETY: made above, nobody else's.
        let ring = unsafe { OwnedFd::from_raw_fd(ring as RawFd) };
        let list = [file];
        let (number, request) = (ring.as_raw_fd(), REGISTER_FILES);
        // SAFETY: one descriptor is read.
        check(unsafe { libc::syscall(libc::SYS_io_uring_register, number, request, list.as_ptr(), 1) })?;
        Ok(Ring { ring, setup })
    }

    fn word(&self, at: usize) -> usize {
        u32::from_le_bytes([0, 1, 2, 3].map(|byte| self.setup[at + byte])) as usize
    }

    fn map(&self, bytes: usize, offset: i64) -> Result<*mut u8> {
        let (both, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_POPULATE);
        // SAFETY: a new mapping of the ring's.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, both, shared, self.ring.as_raw_fd(), offset) };
        if at == libc::MAP_FAILED { Err(Error::last_os_error()) } else { Ok(at.cast()) }
    }

    /// Punches a hole of so many bytes into the file in its table.
    pub fn truncate_by_allocation(&self, bytes: u64) -> Result<()> {
        // io_sqring_offsets are at byte 40 (tail is its second word, array its seventh), io_cqring_offsets at 80 (cqes is its sixth).
        let (tail, array, results) = (self.word(44), self.word(64), self.word(100));
        let queue = self.map(results + 1024, 0)?;
        let entries = self.map(4 * 64, 0x1000_0000)?;
        let mut entry = [0u8; 64];
        (entry[0], entry[1]) = (OPERATION_FALLOCATE, FIXED_FILE);
        // Offset 0; length in the address, mode in the length.
        entry[16..24].copy_from_slice(&bytes.to_le_bytes());
        entry[24..28].copy_from_slice(&PUNCH_AND_KEEP_SIZE.to_le_bytes());
        // SAFETY: within what was mapped: the first entry, its place in the array, and the tail, which the kernel reads at enter.
        unsafe {
            entries.copy_from(entry.as_ptr(), entry.len());
            queue.add(array).cast::<u32>().write_volatile(0);
            queue.add(tail).cast::<u32>().write_volatile(1);
        }
        let nothing = std::ptr::null::<u8>();
        let number = self.ring.as_raw_fd();
        // SAFETY: one entry is handed over, and waited for; no signals are set.
        check(unsafe { libc::syscall(libc::SYS_io_uring_enter, number, 1, 1, ENTER_GETEVENTS, nothing, 0) })?;
        // SAFETY: the first result: 8 bytes of user data, then the answer.
        match unsafe { queue.add(results + 8).cast::<i32>().read_volatile() } {
            result if result < 0 => Err(Error::from_raw_os_error(-result)),
            _ => Ok(()),
        }
    }
}
