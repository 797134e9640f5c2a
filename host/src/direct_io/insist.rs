//! What the kernel refuses (EPERM) while a file is open directly: the agent takes the file back from all processes, and it is done once more.
//!
//! What always holds:
//! - an agent that is gone is waited for, since what it left immutable only the next one thaws: [`SessionOptions::patience`] in all, each
//!   time that it goes, whatever the number of threads and calls; past it the kernel's refusal stands;
//! - a refusal is the caller's only when it stands while the agent keeps the file from being frozen: one that another process' use of the file
//!   explains may be over by the time that anybody looks for it;
//! - when another agent is asked, all that the one before it granted has ended;
//! - a signal ends the wait of a call that it would end in the kernel, as the signal's handler was installed (SA_RESTART or not).
//!
//! [`SessionOptions::patience`]: super::SessionOptions::patience

use super::agent_client::{AgentClient, DirectError};
use super::inode::Hold;
use super::session::{AGENT_LOOK, Session, lock};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, StatxAttributes, StatxFlags};
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

/// How often something is done while the agent keeps its files from being frozen: it forgets that with the connection.
const RELEASES_MAX: u32 = 4;

/// A file by its name, as calls have it.
#[derive(Clone, Copy)]
pub struct Place<'a> {
    /// Where a relative path begins; the file itself where the path is empty.
    pub folder: BorrowedFd<'a>,
    /// The path.
    pub path: &'a CStr,
    /// Whether a link in its last part is followed.
    pub follows: bool,
}

impl<'a> Place<'a> {
    /// As `open` has it.
    pub fn new(path: &'a CStr) -> Place<'a> {
        Place { folder: rustix::fs::CWD, path, follows: true }
    }

    /// A descriptor of the regular file that is there. An error: there are no descriptors left.
    fn open(&self) -> Result<Option<OwnedFd>, Errno> {
        let flags = if self.follows { OFlags::empty() } else { OFlags::NOFOLLOW };
        let file = match self.path.is_empty() {
            true => rustix::io::fcntl_dupfd_cloexec(self.folder, 3),
            // Nobody needs a right to the file for that.
            false => rustix::fs::openat(self.folder, self.path, OFlags::PATH | OFlags::CLOEXEC | flags, Mode::empty()),
        };
        let file = match file {
            Err(Errno::MFILE) => return Err(Errno::MFILE),
            Err(_) => return Ok(None),
            Ok(file) => file,
        };
        let is_regular = |stat: rustix::fs::Stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        // A mere path: an agent gives a file that is appended to back when nobody has it open, this call neither.
        Ok(Some(file).filter(|file| rustix::fs::fstat(file).is_ok_and(is_regular)))
    }
}

/// What the kernel's refusal to open a file is taken for: one that does not wait (O_NONBLOCK) finds the agent's lease (EAGAIN) where the
/// file is just being taken, or given back.
pub fn refused(error: Errno) -> Errno {
    if error == Errno::AGAIN { Errno::PERM } else { error }
}

/// True where a file is immutable now, by an agent or otherwise, be its descriptor a mere path.
pub(super) fn is_immutable(file: BorrowedFd<'_>) -> bool {
    let found = rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::empty());
    found.is_ok_and(|found| found.stx_attributes.contains(StatxAttributes::IMMUTABLE))
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

    /// Has the agent take a file back, and keep it from being frozen until it is told to go on.
    fn release(&self, file: BorrowedFd<'_>, waits: Waits) -> Result<(), Errno> {
        if is_immutable(file) {
            return self.ask_patiently(waits, |agent| agent.release(file));
        }
        // Nobody has it now: an agent that is gone freezes nothing.
        let asked = self.agent().and_then(|agent| agent.release(file));
        asked.map_err(|error| {
            tracing::debug!("a file is not kept from being frozen: {error}");
            Errno::PERM
        })
    }

    /// Does what the kernel refuses while one of these files is open directly (EPERM): has the agent take them back from all processes first.
    pub(crate) fn insist<T>(
        &self,
        files: &[BorrowedFd<'_>],
        waits: Waits,
        mut what: impl FnMut() -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let is_frozen = || files.iter().any(|file| is_immutable(*file));
        let mut done = what();
        if matches!(done, Err(Errno::PERM)) && !is_frozen() {
            // It may have been, when it was refused.
            done = what();
        }
        if !matches!(done, Err(Errno::PERM)) || files.is_empty() {
            return done;
        }
        // One at a time: what a process has released is for one call.
        let _one = lock(&self.insisting);
        for _ in 0..RELEASES_MAX {
            let released = files.iter().try_for_each(|file| self.release(*file, waits));
            done = released.and_then(|()| what());
            let _ = self.agent().and_then(|agent| agent.resume());
            released?;
            if !matches!(done, Err(Errno::PERM)) || !is_frozen() {
                break;
            }
        }
        done
    }

    /// Does something to the files at these places that the kernel has to do (open one for writing, rename it, remove it) and that it
    /// refuses while a file is open directly, by this process or another.
    pub fn change<T>(
        &self,
        places: &[Place<'_>],
        waits: Waits,
        mut what: impl FnMut() -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        match what() {
            Err(Errno::PERM) if self.check().is_ok() => {}
            done => return done,
        }
        let mut known = Vec::new();
        let opened: Result<Vec<_>, Errno> = places.iter().map(|place| self.spare.with(|| place.open())).collect();
        let files: Vec<OwnedFd> = opened?.into_iter().flatten().collect();
        for file in &files {
            let stat = rustix::fs::fstat(file)?;
            known.extend(lock(&self.inodes).get(&(stat.st_dev, stat.st_ino)).and_then(Weak::upgrade));
        }
        let _holds: Vec<Hold> = known.iter().map(|inode| Hold::new(inode, self)).collect();
        let files: Vec<BorrowedFd<'_>> = files.iter().map(AsFd::as_fd).collect();
        self.insist(&files, waits, what)
    }
}
