//! Leases (fcntl(2)): the kernel's proof that nobody has a file open for writing, and its word when somebody is about to.
//!
//! What always holds: a read lease is given only while the file has no writable open file anywhere: descriptor, duplicate, mapping,
//! descriptor in a socket's queue, request under way. While it lasts, who opens the file for writing or truncates it waits until the
//! lease is given up, for `/proc/sys/fs/lease-break-time` seconds at most; that it is to be given up shows in [`is_whole`].

use super::REVOKE_MAX;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

const F_SETLEASE: libc::c_int = 1024;
const F_GETLEASE: libc::c_int = 1025;

/// How long the kernel waits for a lease to be given up, in seconds.
const BREAK_TIME: &str = "/proc/sys/fs/lease-break-time";
/// What it has to wait at least: as long as a device may fail to revoke, and the agent then needs to end.
const BREAK_TIME_MIN: Duration = REVOKE_MAX.saturating_add(Duration::from_secs(5));

/// Checks that the kernel waits longer for a lease than the agent may need to revoke what it permitted by it. The error is a sentence.
pub fn check_break_time() -> Result<(), String> {
    let text = std::fs::read_to_string(BREAK_TIME).map_err(|error| format!("{BREAK_TIME}: {error}"))?;
    judge_break_time(&text)
}

fn judge_break_time(text: &str) -> Result<(), String> {
    match text.trim().parse().map(Duration::from_secs) {
        // 0: for ever.
        Ok(Duration::ZERO) => Ok(()),
        Ok(time) if time >= BREAK_TIME_MIN => Ok(()),
        _ => Err(format!(
            "{BREAK_TIME} is {}, and the device may need longer to take a file back: it must be {} at least",
            text.trim(),
            BREAK_TIME_MIN.as_secs()
        )),
    }
}

/// The kernel tells of a lease to be given up by SIGIO, which would end the process: who holds leases looks instead.
pub fn ignore_signals() {
    // SAFETY: no handler is installed, the signal is ignored.
    unsafe { libc::signal(libc::SIGIO, libc::SIG_IGN) };
}

/// Takes a read lease by a descriptor that is open for reading alone; false where the file is open for writing somewhere.
pub fn take(file: BorrowedFd<'_>) -> std::io::Result<bool> {
    set(file, libc::F_RDLCK)
}

/// Takes a write lease by the file's only descriptor; false where there is another one, or a mapping. Mere paths (O_PATH) are none. While it
/// lasts, whoever opens the file in any way waits until it is given up.
pub fn take_alone(file: BorrowedFd<'_>) -> std::io::Result<bool> {
    set(file, libc::F_WRLCK)
}

fn set(file: BorrowedFd<'_>, lease: libc::c_int) -> std::io::Result<bool> {
    // SAFETY: a call without memory.
    if unsafe { libc::fcntl(file.as_raw_fd(), F_SETLEASE, lease) } == 0 {
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

/// True while a write lease is held by this descriptor, and nobody waits for its end.
pub fn is_alone(file: BorrowedFd<'_>) -> bool {
    // SAFETY: a call without memory.
    unsafe { libc::fcntl(file.as_raw_fd(), F_GETLEASE) == libc::F_WRLCK }
}

/// Gives it up: who waits for that goes on.
pub fn give_up(file: BorrowedFd<'_>) {
    // SAFETY: a call without memory. That there was none is as good.
    unsafe { libc::fcntl(file.as_raw_fd(), F_SETLEASE, libc::F_UNLCK) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_that_does_not_wait_long_enough_for_a_lease_is_not_relied_upon() {
        for good in ["45\n", "20", "0\n", "86400"] {
            assert_eq!(judge_break_time(good), Ok(()), "{good}");
        }
        for bad in ["19\n", "1", "", "-1", "many"] {
            assert!(judge_break_time(bad).unwrap_err().contains("20 at least"), "{bad}");
        }
    }
}
