//! Numbers of descriptors that a library has in a program which knows nothing of it: high ones, so that the program finds the numbers that it
//! would find without, and known ones, so that who stands before the program's calls keeps it from closing them.
//!
//! What always holds: a number is the library's as long as the very socket is under it that was put there.

use rustix::io::fcntl_dupfd_cloexec;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

/// Most that are known.
pub const OWN_MAX: usize = 1024;

/// 0: wherever the kernel puts them.
static FIRST: AtomicI32 = AtomicI32::new(0);
/// The sockets' inodes, by number from the first; 0 is none.
static INODES: [AtomicU64; OWN_MAX] = [const { AtomicU64::new(0) }; OWN_MAX];

/// From now on sockets of this library get numbers from this one on, where the process may have such.
pub fn from(first: RawFd) {
    FIRST.store(first, Ordering::Relaxed);
}

fn place(number: RawFd) -> Option<&'static AtomicU64> {
    let first = FIRST.load(Ordering::Relaxed);
    let index = number.checked_sub(first).filter(|_| first > 0)?;
    INODES.get(usize::try_from(index).ok()?)
}

/// Gives a new socket such a number.
pub fn raised(socket: OwnedFd) -> OwnedFd {
    let first = FIRST.load(Ordering::Relaxed);
    if first <= 0 {
        return socket;
    }
    // Past the process' bound, say: it stays where it is.
    let raised = fcntl_dupfd_cloexec(&socket, first).unwrap_or(socket);
    if let (Some(place), Ok(stat)) = (place(raised.as_raw_fd()), rustix::fs::fstat(raised.as_fd())) {
        place.store(stat.st_ino, Ordering::Relaxed);
    }
    raised
}

/// True where a number is that of a socket of this library's.
pub fn is_own(number: RawFd) -> bool {
    let inode = place(number).map_or(0, |place| place.load(Ordering::Relaxed));
    if inode == 0 {
        return false;
    }
    // SAFETY: used for this call alone; a number that is not open is an error.
    let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
    rustix::fs::fstat(descriptor).is_ok_and(|stat| stat.st_ino == inode)
}

/// Those of these numbers that are not this library's, as ranges.
pub fn without_own(first: u32, last: u32) -> Vec<(u32, u32)> {
    let start = FIRST.load(Ordering::Relaxed);
    let known = (start..start.saturating_add(OWN_MAX as i32)).filter(|number| start > 0 && is_own(*number));
    let (mut ranges, mut next) = (Vec::new(), Some(first));
    for own in known.map(|number| number as u32).filter(|own| (first..=last).contains(own)) {
        if let Some(from) = next.filter(|from| *from < own) {
            ranges.push((from, own - 1));
        }
        next = own.checked_add(1);
    }
    ranges.extend(next.filter(|from| *from <= last).map(|from| (from, last)));
    ranges
}
