//! Leases (fcntl(2)): the kernel's proof that nobody has a file open for writing, and its word when somebody is about to.
//!
//! What always holds: a read lease is given only while the file has no writable open file anywhere: descriptor, duplicate, mapping,
//! descriptor in a socket's queue, request under way. While it lasts, who opens the file for writing or truncates it waits until the
//! lease is given up, for `/proc/sys/fs/lease-break-time` seconds at most; that it is to be given up shows in [`is_whole`].

use std::os::fd::{AsRawFd, BorrowedFd};

const F_SETLEASE: libc::c_int = 1024;
const F_GETLEASE: libc::c_int = 1025;

/// The kernel tells of a lease to be given up by SIGIO, which would end the process: who holds leases looks instead.
pub fn ignore_signals() {
    // SAFETY: no handler is installed, the signal is ignored.
    unsafe { libc::signal(libc::SIGIO, libc::SIG_IGN) };
}

/// Takes a read lease by a descriptor that is open for reading alone; false where the file is open for writing somewhere.
pub fn take(file: BorrowedFd<'_>) -> std::io::Result<bool> {
    // SAFETY: a call without memory.
    if unsafe { libc::fcntl(file.as_raw_fd(), F_SETLEASE, libc::F_RDLCK) } == 0 {
        return Ok(true);
    }
    match std::io::Error::last_os_error() {
        error if error.raw_os_error() == Some(libc::EAGAIN) => Ok(false),
        error => Err(error),
    }
}

/// True while a read lease is held by this descriptor, and nobody waits for its end.
pub fn is_whole(file: BorrowedFd<'_>) -> bool {
    // SAFETY: a call without memory.
    unsafe { libc::fcntl(file.as_raw_fd(), F_GETLEASE) == libc::F_RDLCK }
}

/// Gives it up: who waits for that goes on.
pub fn give_up(file: BorrowedFd<'_>) {
    // SAFETY: a call without memory. That there was none is as good.
    unsafe { libc::fcntl(file.as_raw_fd(), F_SETLEASE, libc::F_UNLCK) };
}
