//! How much of a connection's output the kernel keeps that it has not sent.
//!
//! What always holds: nothing but the socket's option is changed. Memory for TCP is one for all of a machine's connections: a thousand that never read
//! would otherwise have the kernel keep megabytes for each, and then all others wait for it.

use std::os::fd::{AsRawFd, BorrowedFd};

/// Has the socket take no more output while so many bytes of it were not sent; `None`: as many as the kernel likes.
pub(crate) fn limit_unsent(socket: BorrowedFd<'_>, bytes: Option<u32>) -> std::io::Result<()> {
    let value = bytes.unwrap_or(u32::MAX);
    let length = size_of::<u32>() as libc::socklen_t;
    // SAFETY: the descriptor is open, and the kernel reads the four bytes of a value that lives past the call.
    let done = unsafe {
        let value = (&raw const value).cast();
        libc::setsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, value, length)
    };
    if done == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}
