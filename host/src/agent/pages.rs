//! A file's pages in the page cache, which are old where the file was written past it.
//!
//! What always holds:
//! - a file that may have been written directly thaws only when the page cache has held nothing of it since the device had revoked, or holds
//!   what the device does. Otherwise later reads would see old bytes, and the next write of a part of a page would put them back;
//! - the kernel keeps a page, whatever it is advised, that somebody has mapped or in a pipe, for which the right to read is enough. Such
//!   pages are written anew, from the device, while nobody else can change what they hold.

use super::freeze::{Guard, guard};
use super::journal::Last;
use rustix::fs::{Mode, OFlags};
use std::io::{Error, ErrorKind, Result};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

/// cachestat(2), the same number on all processors that matter here; since Linux 6.5.
const SYS_CACHESTAT: libc::c_long = 451;
/// What is read and written at once; a multiple of pages and of a device's blocks.
const PART_BYTES: usize = 1 << 20;
/// To which memory and places of reads past the page cache are aligned: pages of any machine are of this size or smaller.
const ALIGNMENT: usize = 64 << 10;

/// `struct cachestat_range`.
#[repr(C)]
struct Range {
    offset: u64,
    bytes: u64,
}

/// `struct cachestat`, in pages.
#[repr(C)]
#[derive(Default)]
struct Counts {
    cached: u64,
    rest: [u64; 4],
}

/// Number of pages of a part of a file that are in the page cache, being read included. 0 bytes: to the file's end.
fn cached(file: BorrowedFd<'_>, offset: u64, bytes: u64) -> Result<u64> {
    let (range, mut counts) = (Range { offset, bytes }, Counts::default());
    // SAFETY: the kernel reads a structure of 16 bytes and writes one of 40, which these are.
    let done = unsafe { libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), &raw const range, &raw mut counts, 0) };
    if done == 0 { Ok(counts.cached) } else { Err(Error::last_os_error()) }
}

/// Checks that the kernel tells what the page cache holds of a file, without which it is not written directly. The error is a sentence.
pub fn check(file: BorrowedFd<'_>) -> std::result::Result<(), String> {
    match cached(file, 0, 1) {
        Ok(_) => Ok(()),
        Err(error) => {
            Err(format!("what the page cache holds of it cannot be found out (cachestat, Linux 6.5: {error})"))
        }
    }
}

/// Drops a file's pages; true where none is left.
pub fn drop_all(file: BorrowedFd<'_>) -> bool {
    let _ = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed);
    matches!(cached(file, 0, 0), Ok(0))
}

/// What the device holds in the last page of a file that is immutable. It is in the journal for as long as the file waits: no more than that.
pub fn last(file: BorrowedFd<'_>) -> Result<Last> {
    let bytes = rustix::fs::fstat(file)?.st_size as u64;
    let at = bytes - bytes % rustix::param::page_size() as u64;
    let device = open(file, OFlags::RDONLY | OFlags::DIRECT)?;
    let mut memory = vec![0; 2 * ALIGNMENT];
    let bytes = read(&device, at, aligned(&mut memory)?, (bytes - at) as usize)?.to_vec();
    Ok(Last { at, bytes })
}

/// Writes a file's pages that are in the page cache anew, from the device: the last one with what the device held there before the file
/// was append-only, up to where it ended then. The file is immutable before, or append-only since an agent was killed here; it is without
/// a lease. Afterwards it is append-only, and what was written of the last page is durable; with an error it is one or the other. `step` is
/// called between what has to be right wherever an agent ends. `waits`: for who has a lease of the file, as long as the kernel does.
///
/// Nobody opens an immutable file for writing, this agent included. An append-only one is opened for appending alone; a descriptor of that
/// kind becomes one for writing while the file is immutable, and writes when it is append-only. Others that may append open it meanwhile: what
/// they can change is the last page, which was read before, and what is behind it, which the page cache has as they wrote it.
pub fn renew(file: BorrowedFd<'_>, last: &Last, waits: bool, step: &impl Fn()) -> Result<()> {
    let writer = open_for_writing(file, waits, step)?;
    // By root it may have become shorter.
    let end = rustix::fs::fstat(file)?.st_size as u64;
    let kept = (end.saturating_sub(last.at) as usize).min(last.bytes.len());
    write(&writer, last.at, &last.bytes[..kept])?;
    // Its old bytes may be on the device by now.
    rustix::fs::fdatasync(&writer)?;
    step();
    let device = open(file, OFlags::RDONLY | OFlags::DIRECT)?;
    let mut memory = vec![0; PART_BYTES + ALIGNMENT];
    let part = aligned(&mut memory)?;
    let end = end.min(last.at);
    for at in (0..end).step_by(PART_BYTES) {
        let bytes = (end - at).min(PART_BYTES as u64);
        if cached(file, at, bytes)? > 0 {
            write(&writer, at, read(&device, at, part, bytes as usize)?)?;
        }
    }
    step();
    Ok(())
}

/// All of this memory from where it is aligned, but for [`ALIGNMENT`] bytes in all.
fn aligned(memory: &mut [u8]) -> Result<&mut [u8]> {
    let (start, bytes) = (memory.as_ptr().align_offset(ALIGNMENT), memory.len() - ALIGNMENT);
    memory.get_mut(start..start + bytes).ok_or_else(|| ErrorKind::OutOfMemory.into())
}

/// A descriptor for writing of a file that nobody else can open so meanwhile. Whoever has a lease of it gives that up, or loses it when the kernel has
/// waited long enough. Only an open that waits is sure of that: the kernel gives nobody a new lease while it does, and would between two that do not.
fn open_for_writing(file: BorrowedFd<'_>, waits: bool, step: &impl Fn()) -> Result<OwnedFd> {
    guard(file, Guard::AppendOnly)?;
    step();
    let waiting = if waits { OFlags::empty() } else { OFlags::NONBLOCK };
    let writer = open_waiting(file, OFlags::WRONLY | OFlags::APPEND, waiting);
    guard(file, Guard::Immutable)?;
    step();
    let writer = writer?;
    rustix::fs::fcntl_setfl(&writer, OFlags::empty())?;
    guard(file, Guard::AppendOnly)?;
    step();
    Ok(writer)
}

fn open(file: BorrowedFd<'_>, flags: OFlags) -> Result<OwnedFd> {
    open_waiting(file, flags, OFlags::NONBLOCK)
}

fn open_waiting(file: BorrowedFd<'_>, flags: OFlags, waiting: OFlags) -> Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok(rustix::fs::open(path, flags | OFlags::CLOEXEC | waiting, Mode::empty())?)
}

/// Reads past the page cache, from a place that is aligned to pages, into memory that is.
fn read<'a>(device: &OwnedFd, at: u64, part: &'a mut [u8], bytes: usize) -> Result<&'a [u8]> {
    let whole = bytes.next_multiple_of(ALIGNMENT);
    let room = part.get_mut(..whole).ok_or(ErrorKind::InvalidInput)?;
    let count = rustix::io::retry_on_intr(|| rustix::io::pread(device, &mut *room, at))?;
    if count < bytes {
        return Err(Error::new(ErrorKind::UnexpectedEof, format!("{count} bytes at {at} instead of {bytes}")));
    }
    Ok(&room[..bytes])
}

/// Writes all of it at a place.
pub fn write(writer: &OwnedFd, mut at: u64, mut data: &[u8]) -> Result<()> {
    while !data.is_empty() {
        let count = rustix::io::retry_on_intr(|| rustix::io::pwrite(writer, data, at))?;
        if count == 0 {
            return Err(ErrorKind::WriteZero.into());
        }
        (at, data) = (at + count as u64, &data[count..]);
    }
    Ok(())
}
