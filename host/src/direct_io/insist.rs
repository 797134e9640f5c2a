//! What the kernel refuses (EPERM) while a file is open directly: the agent takes the file back from all processes, and it is done once more.
//!
//! What always holds:
//! - an agent that is gone is waited for, since what it left immutable only the next one thaws: [`SessionOptions::patience`] in all, each
//!   time that it goes, whatever the number of threads and calls; past it the kernel's refusal stands;
//! - when another agent is asked, all that the one before it granted has ended;
//! - a signal ends the wait of a call that it would end in the kernel, as the signal's handler was installed (SA_RESTART or not).
//!
//! [`SessionOptions::patience`]: super::SessionOptions::patience

use super::agent_client::{AgentClient, DirectError};
use super::session::{AGENT_LOOK, Session, lock};
use crate::agent::freeze::is_immutable;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Weak;
use std::time::Instant;

/// How a call waits for an agent that is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waits {
    /// As `open` waits for a lease: a signal's handler ends it with EINTR, unless it was installed with SA_RESTART.
    Interruptible,
    /// As reading and writing a file do.
    ToTheEnd,
}

/// Waits for a short time. Reading a timer waits as any call of the kernel that is begun anew after a signal.
fn pause(waits: Waits) -> Result<(), Errno> {
    if waits == Waits::ToTheEnd {
        std::thread::sleep(AGENT_LOOK);
        return Ok(());
    }
    // SAFETY: a call without memory.
    let timer = unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC) };
    if timer < 0 {
        std::thread::sleep(AGENT_LOOK);
        return Ok(());
    }
    // SAFETY: made above, and nobody else's.
    let timer = unsafe { OwnedFd::from_raw_fd(timer) };
    let never = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let soon = libc::timespec { tv_sec: 0, tv_nsec: AGENT_LOOK.subsec_nanos().into() };
    let setting = libc::itimerspec { it_interval: never, it_value: soon };
    // SAFETY: the kernel reads one structure.
    unsafe { libc::timerfd_settime(timer.as_raw_fd(), 0, &raw const setting, std::ptr::null_mut()) };
    rustix::io::read(&timer, &mut [0; 8]).map(|_| ())
}

impl Session {
    /// Asks the agent; where it is gone, the next one.
    fn ask_patiently<T>(
        &self,
        waits: Waits,
        what: impl Fn(&AgentClient) -> Result<T, DirectError>,
    ) -> Result<T, Errno> {
        let begun = Instant::now();
        loop {
            let why = match self.agent() {
                Ok(client) => match what(&client) {
                    Err(DirectError::Agent(why)) => {
                        self.lose_agent(&client);
                        why
                    }
                    answered => {
                        self.note_agent();
                        return answered.map_err(|error| {
                            tracing::debug!("a file is not released: {error}");
                            Errno::PERM
                        });
                    }
                },
                Err(DirectError::Agent(why)) => why,
                Err(_) => return Err(Errno::PERM),
            };
            if !self.is_worth_waiting() || begun.elapsed() >= self.options.patience {
                tracing::warn!("a file stays immutable, since the agent is gone: {why}");
                return Err(Errno::PERM);
            }
            pause(waits)?;
        }
    }

    /// Does what the kernel refuses while a file is open directly (EPERM): has the agent take it back from all processes first.
    pub(crate) fn insist<T>(
        &self,
        descriptor: impl AsFd,
        waits: Waits,
        mut what: impl FnMut() -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        match what() {
            Err(Errno::PERM) if is_immutable(descriptor.as_fd()) => {}
            done => return done,
        }
        // One at a time: the agent keeps one file a process released.
        let _one = lock(&self.insisting);
        self.ask_patiently(waits, |agent| agent.release(&descriptor))?;
        let done = what();
        let _ = self.agent().and_then(|agent| agent.resume());
        done
    }

    /// Does something to the file at a path that the kernel has to do (open it for writing, rename it, remove it) and that it refuses
    /// while the file is open directly, by this process or another.
    pub fn change<T>(
        &self,
        path: &CStr,
        folder: BorrowedFd<'_>,
        waits: Waits,
        mut what: impl FnMut() -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        match what() {
            Err(Errno::PERM) if self.check().is_ok() => {}
            done => return done,
        }
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOFOLLOW;
        let Ok(file) = rustix::fs::openat(folder, path, flags, Mode::empty()) else { return Err(Errno::PERM) };
        let stat = rustix::fs::fstat(&file)?;
        let known = lock(&self.inodes).get(&(stat.st_dev, stat.st_ino)).and_then(Weak::upgrade);
        match known {
            Some(inode) => inode.change(self, false, || self.insist(&file, waits, what)),
            None => self.insist(&file, waits, what),
        }
    }
}
