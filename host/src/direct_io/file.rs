//! A file with POSIX semantics: what a descriptor of the process allows, directly wherever that goes, and through the kernel where it
//! does not (growing and holes, files that cannot be taken directly).
//!
//! What always holds:
//! - all of a file's operations of a session go one way at a time: who changes the way (its write lock) waits for all that is under
//!   way (their read locks), so that no operation sees less than what was done before it;
//! - nothing changes a file through the kernel while the session has it directly: it is given back first;
//! - a file that had to be given back stays with the kernel for some operations, more of them each time in short succession, so
//!   that appending does not go back and forth with every call.

mod appending;

use super::agent_client::DirectError;
use super::description::are_durable;
use super::inode::{Hold, Inode, State};
use super::insist::{Place, Waits, refused};
use super::lane::{Action, Operation, Segments};
use super::mapped::Mapped;
use super::session::{Session, Undone, add};
use super::unsynced::Unsynced;
use crate::agent::freeze;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::ffi::CStr;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLockReadGuard};

/// How often an operation begins anew since the agent has taken the file back meanwhile.
const ATTEMPTS_MAX: u32 = 8;

/// A file that is open. Its descriptor is its own: until [`File::forget`] or the end of this nothing else is opened under its number, and
/// while the file is direct it only reads. A process that takes record locks on the file (fcntl, flock) has it stay with the kernel first
/// ([`File::pin`]): the exchange of descriptors drops locks.
pub struct File<F: AsFd = OwnedFd> {
    session: Arc<Session>,
    inode: Arc<Inode>,
    descriptor: F,
    reads: bool,
    writes: bool,
    appends: bool,
    durable: bool,
    /// Its descriptor's number is not used any more.
    is_forgotten: AtomicBool,
}

impl<F: AsFd> Drop for File<F> {
    fn drop(&mut self) {
        self.forget();
    }
}

impl File<OwnedFd> {
    /// As `open`: also where the file is open directly already, by this process or another, so that the kernel alone would refuse to
    /// open it for writing.
    pub fn open(session: &Arc<Session>, path: &CStr, flags: OFlags, mode: Mode) -> Result<Self, DirectError> {
        let flags = flags | OFlags::CLOEXEC;
        let mut last = Errno::PERM;
        let open = || rustix::fs::open(path, flags, mode).inspect_err(|error| last = *error).map_err(refused);
        let opened = session.change(&[Place::new(path)], Waits::Interruptible, open);
        File::new(session, opened.map_err(|error| if error == Errno::PERM { last } else { error })?)
    }
}

impl<F: AsFd> File<F> {
    /// Of an open descriptor of a regular file. It is taken directly when it is first used, or by [`File::take`].
    pub fn new(session: &Arc<Session>, descriptor: F) -> Result<Self, DirectError> {
        session.check()?;
        let stat = rustix::fs::fstat(&descriptor)?;
        if rustix::fs::FileType::from_raw_mode(stat.st_mode) != rustix::fs::FileType::RegularFile {
            return Err(Errno::INVAL.into());
        }
        let inode = session.inode((stat.st_dev, stat.st_ino));
        let (flags, writes) = {
            let mut state = inode.write();
            let flags = state.add(descriptor.as_fd())?;
            let writes = !flags.contains(OFlags::PATH) && flags & OFlags::RWMODE != OFlags::RDONLY;
            state.files += 1;
            state.writers += usize::from(writes);
            (flags, writes)
        };
        let (mode, is_path) = (flags & OFlags::RWMODE, flags.contains(OFlags::PATH));
        Ok(File {
            session: session.clone(),
            inode,
            descriptor,
            reads: !is_path && mode != OFlags::WRONLY,
            writes,
            appends: flags.contains(OFlags::APPEND),
            durable: are_durable(flags),
            is_forgotten: AtomicBool::new(false),
        })
    }

    fn number(&self) -> RawFd {
        self.descriptor.as_fd().as_raw_fd()
    }

    /// Its descriptor is about to be closed, or to be another file's: nothing is done by it any more. Waits for what is under way.
    pub fn forget(&self) {
        if self.session.check().is_err() || self.is_forgotten.swap(true, Ordering::AcqRel) {
            return;
        }
        self.inode.write().remove(&self.session, self.descriptor.as_fd(), self.writes);
    }

    /// True since [`File::forget`]: its descriptor may be another file's by now. What the kernel would do by it fails with EBADF.
    pub fn is_forgotten(&self) -> bool {
        self.is_forgotten.load(Ordering::Acquire)
    }

    /// What is asked under the lock of its state before the kernel does anything by its descriptor: who forgets it waits for that lock.
    fn check_number(&self) -> Result<(), Errno> {
        if self.is_forgotten() { Err(Errno::BADF) } else { Ok(()) }
    }

    /// The flags of its descriptor, as `fcntl(F_GETFL)` has them when the file is not direct.
    pub fn flags(&self) -> Result<OFlags, Errno> {
        let known = self.inode.write().flags(self.number());
        known.map_or_else(|| rustix::fs::fcntl_getfl(&self.descriptor), Ok)
    }

    /// Changes them as `fcntl(F_SETFL)` does. A file that begins or ceases to append by that is made anew of its descriptor.
    pub fn set_flags(&self, flags: OFlags) -> Result<(), Errno> {
        if self.is_appending() {
            self.give_back()?;
        }
        self.inode.write().set_flags(self.number(), flags)
    }

    /// Gives it back to the file system now: all descriptors of it are what they were opened as. It is taken again later.
    pub fn give_back(&self) -> Result<(), Errno> {
        self.inode.change(&self.session, false, || Ok(()))
    }

    /// The session that it is open in.
    pub fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// The descriptor.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    /// Length in bytes.
    pub fn bytes(&self) -> Result<u64, DirectError> {
        Ok(rustix::fs::fstat(&self.descriptor)?.st_size as u64)
    }

    /// True while it is read or written directly.
    pub fn is_direct(&self) -> bool {
        self.inode.read().is_direct()
    }

    /// Why it was not taken, the last time that it was tried.
    pub fn refusal(&self) -> Option<String> {
        self.inode.read().refusal.clone()
    }

    /// Takes it directly now, as far as the descriptor goes; an error says why not, and it goes through the kernel.
    pub fn take(&self) -> Result<(), DirectError> {
        self.session.check()?;
        self.inode.end_kernels_turn();
        if self.appends && self.writes {
            return Err(DirectError::Refused("it is open for appending".to_owned()));
        }
        self.take_for(self.writes)
    }

    fn take_for(&self, writes: bool) -> Result<(), DirectError> {
        let mut state = self.inode.write();
        if state.way(writes).is_some() {
            return Ok(());
        }
        if state.is_pinned || state.is_appending() || self.inode.is_held() {
            return Err(DirectError::Refused("it is used through the kernel, by a mapping into memory say".to_owned()));
        }
        match state.take(&self.session) {
            Ok(()) => {
                state.refusal = None;
                add(&self.session.counters.opened);
                self.inode.begin_direct();
                let refused =
                    || DirectError::Refused("the agent does not know any more that it may be written".to_owned());
                state.way(writes).map(|_| ()).ok_or_else(refused)
            }
            Err(error) => {
                state.refusal = Some(error.to_string());
                add(&self.session.counters.refused);
                self.inode.stay_with_kernel();
                Err(error)
            }
        }
    }

    /// The agent has taken a grant back: so do we.
    pub(super) fn lost(&self, mapped: &Arc<Mapped>) {
        let mut state = self.inode.write();
        if state.grant().is_some_and(|it| Arc::ptr_eq(it, mapped)) {
            let _ = state.give_back(&self.session);
        }
    }

    /// No lane could do an operation: its memory, where it can be done anew, since all that was under way has ended, else the error.
    fn undone(&self, mapped: &Arc<Mapped>, undone: Undone) -> Result<Segments, DirectError> {
        match (undone.error, undone.operation) {
            (DirectError::Lost(why), Some(operation)) => {
                tracing::debug!("the way to the device is gone: {why}");
                self.session.lose(undone.way);
                self.lost(mapped);
                Ok(operation.memory)
            }
            // The agent is gone, or has no more endpoints: the file is asked for anew, or stays with the kernel.
            (DirectError::Agent(_) | DirectError::Refused(_), Some(operation)) => {
                self.lost(mapped);
                Ok(operation.memory)
            }
            (error, _) => Err(error),
        }
    }

    /// Gives it back to the file system, if it is direct, and does something to it that the kernel has to do. Where the kernel refuses
    /// since other processes have it directly, it is taken back from them as well, and done once more.
    pub fn change<T>(&self, mut what: impl FnMut(BorrowedFd<'_>) -> Result<T, Errno>) -> Result<T, Errno> {
        let descriptor = self.descriptor.as_fd();
        self.inode
            .change(&self.session, false, || self.session.insist(&[descriptor], Waits::ToTheEnd, || what(descriptor)))
    }

    /// The same, and it stays with the kernel from now on.
    pub fn pin<T>(&self, mut what: impl FnMut(BorrowedFd<'_>) -> Result<T, Errno>) -> Result<T, Errno> {
        let descriptor = self.descriptor.as_fd();
        self.inode
            .change(&self.session, true, || self.session.insist(&[descriptor], Waits::ToTheEnd, || what(descriptor)))
    }

    /// Gives it back to the file system, if it is direct; all of it goes through the kernel while what this returns lives. Unlike
    /// [`File::change`], it lets other threads use the file meanwhile, and so suits calls that may wait long. Where descriptors cannot be
    /// what they were opened as, [`File::give_back`] says why.
    pub fn hold(&self) -> Hold {
        Hold::new(&self.inode, &self.session)
    }

    /// Does something that the kernel refuses while other processes have the file directly: the agent takes it back from them first.
    pub fn insist<T>(&self, what: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
        self.session.insist(&[self.descriptor.as_fd()], Waits::ToTheEnd, what)
    }

    /// To be called before the kernel reads a file that is held: where another process may write it directly, the page cache may be old.
    pub fn refresh(&self) {
        if freeze::is_immutable(self.descriptor.as_fd()) {
            let _ = rustix::fs::fadvise(self.descriptor.as_fd(), 0, None, rustix::fs::Advice::DontNeed);
        }
    }

    /// `pread`: how many bytes were read, fewer only at the end of the file.
    pub fn pread(&self, into: &mut [u8], offset: u64) -> Result<usize, DirectError> {
        self.transfer(Action::Read, offset, Segments::One(into.as_mut_ptr(), into.len())).0
    }

    /// `preadv`: fills the buffers one after the other.
    pub fn preadv(&self, into: &mut [IoSliceMut<'_>], offset: u64) -> Result<usize, DirectError> {
        let all = into.iter_mut().map(|it| (it.as_mut_ptr(), it.len())).collect();
        self.transfer(Action::Read, offset, Segments::Several(all)).0
    }

    /// `pwrite`: how many bytes were written, fewer only where the kernel had to write and found no room. A file that is open for
    /// appending is appended to, as Linux does.
    pub fn pwrite(&self, from: &[u8], offset: u64) -> Result<usize, DirectError> {
        self.transfer(self.writing(), offset, Segments::One(from.as_ptr().cast_mut(), from.len())).0
    }

    /// `pwritev`: writes the buffers one after the other.
    pub fn pwritev(&self, from: &[IoSlice<'_>], offset: u64) -> Result<usize, DirectError> {
        let all = from.iter().map(|it| (it.as_ptr().cast_mut(), it.len())).collect();
        self.transfer(self.writing(), offset, Segments::Several(all)).0
    }

    /// How this file is written.
    pub(crate) fn writing(&self) -> Action {
        Action::Write { durable: self.durable }
    }

    /// `fsync` and `fdatasync` (`data` alone): what was written before is durable when this returns.
    pub fn sync(&self, data: bool) -> Result<(), DirectError> {
        self.session.check()?;
        if let Some(done) = self.sync_appended(data) {
            return done;
        }
        for _ in 0..ATTEMPTS_MAX {
            let (state, mapped) = self.sync_way();
            let covered = self.inode.unsynced.begin();
            let Some(mapped) = mapped else {
                self.check_number()?;
                if data { rustix::fs::fdatasync(&self.descriptor) } else { rustix::fs::fsync(&self.descriptor) }?;
                drop(state);
                // The kernel knows nothing of what was written past it.
                return match covered {
                    None => Ok(()),
                    covered => self.inode.unsynced.synced(self.session.device_start()?, covered),
                };
            };
            self.note(&mapped, Action::Sync);
            let operation = Operation::new(mapped.clone(), Action::Sync, 0, Segments::Several(Vec::new()), 0, 0);
            let mut operation = match self.session.run(operation) {
                Ok(operation) => operation,
                Err(undone) => {
                    drop(state);
                    self.undone(&mapped, *undone)?;
                    continue;
                }
            };
            match operation.outcome() {
                Err(DirectError::Permission) => {
                    drop(state);
                    self.lost(&mapped);
                }
                done => return done.and_then(|()| self.inode.unsynced.synced(operation.start, covered)),
            }
        }
        Err(DirectError::Permission)
    }

    /// By which grant it is synced; `None`: by the kernel.
    pub(crate) fn sync_way(&self) -> (RwLockReadGuard<'_, State>, Option<Arc<Mapped>>) {
        let state = self.inode.read();
        let mapped = state.grant().cloned();
        (state, mapped)
    }

    /// `ftruncate`.
    pub fn set_bytes(&self, bytes: u64) -> Result<(), DirectError> {
        Ok(self.change(|descriptor| rustix::fs::ftruncate(descriptor, bytes))?)
    }

    /// Closes it: when this returns, nothing of it is direct any more for the sake of this descriptor.
    pub fn close(self) {}

    /// What has to hold before anything moves.
    fn check(&self, action: Action, offset: u64, bytes: usize) -> Result<(), DirectError> {
        self.session.check()?;
        if offset.checked_add(bytes as u64).is_none_or(|end| end > i64::MAX as u64) {
            return Err(Errno::INVAL.into());
        }
        let allowed = match action {
            Action::Read => self.reads,
            Action::Write { .. } => self.writes,
            Action::Sync => true,
        };
        if allowed { Ok(()) } else { Err(Errno::BADF.into()) }
    }

    /// True where nothing forbids it beforehand.
    pub(crate) fn allows(&self, action: Action, offset: u64, bytes: usize) -> bool {
        self.check(action, offset, bytes).is_ok()
    }

    /// By which grant an operation goes, and how many of its bytes; `None`: through the kernel. The lock is held while it goes.
    pub(crate) fn way(&self, action: Action, offset: u64, bytes: usize) -> (RwLockReadGuard<'_, State>, Way) {
        let writes = action != Action::Read;
        for _ in 0..ATTEMPTS_MAX {
            let state = self.inode.read();
            if state.is_appending() {
                return (state, Way::Change);
            }
            if let Some(mapped) = state.way(writes) {
                let mapped = mapped.clone();
                // At the end of the file, a look whether it still is there: another process may have made it longer.
                let is_past = !writes && offset + bytes as u64 > mapped.bytes();
                let is_old = || is_past && self.bytes().is_ok_and(|now| now != mapped.bytes());
                if mapped.has_ended() || is_old() {
                    drop(state);
                    self.lost(&mapped);
                    continue;
                }
                let way = match writes {
                    true if self.appends || !mapped.can_write(offset, bytes) => Way::Change,
                    true => Way::Direct(mapped, bytes),
                    false => {
                        let left = usize::try_from(mapped.bytes().saturating_sub(offset)).unwrap_or(usize::MAX);
                        Way::Direct(mapped, bytes.min(left))
                    }
                };
                return (state, way);
            }
            if writes && self.appends {
                let way = if state.is_direct() || state.has_placeholders() { Way::Change } else { Way::Kernel };
                return (state, way);
            }
            let is_inside = |bytes_of_file: u64| offset < bytes_of_file && offset + bytes as u64 <= bytes_of_file;
            // What grows it is the kernel's anyway, and so are empty files.
            let is_worth =
                bytes > 0 && self.bytes().is_ok_and(|all| if writes { is_inside(all) } else { offset < all });
            // What another process has directly is read as that process writes it.
            let is_others = || freeze::is_immutable(self.descriptor.as_fd()) && !state.is_direct();
            if state.is_pinned || self.inode.is_held() || !is_worth || (self.inode.is_kernels_turn() && !is_others()) {
                let changes = writes && (state.is_direct() || state.has_placeholders());
                let way = if changes { Way::Change } else { Way::Kernel };
                return (state, way);
            }
            drop(state);
            // Refused: the kernel's turn has come by that.
            let _ = self.take_for(writes);
        }
        (self.inode.read(), Way::Change)
    }

    /// Moves bytes, and gives the memory back.
    pub(crate) fn transfer(
        &self,
        action: Action,
        offset: u64,
        mut memory: Segments,
    ) -> (Result<usize, DirectError>, Segments) {
        let bytes = memory.len();
        if let Err(error) = self.check(action, offset, bytes) {
            return (Err(error), memory);
        }
        for _ in 0..ATTEMPTS_MAX {
            let (state, way) = self.way(action, offset, bytes);
            let (mapped, count) = match way {
                Way::Direct(mapped, count) => (mapped, count),
                Way::Kernel => return (self.through_kernel(action, offset, &mut memory), memory),
                Way::Change => {
                    drop(state);
                    let once = || self.through_kernel(action, offset, &mut memory);
                    let done: Result<usize, DirectError> = self.inode.change(&self.session, false, once);
                    return (done, memory);
                }
            };
            let mut operation = Operation::new(mapped.clone(), action, offset, memory, count, 0);
            self.note(&mapped, action);
            let used = mapped.used();
            let ran = self.session.run(operation);
            drop(used);
            operation = match ran {
                Ok(operation) => operation,
                Err(undone) => {
                    drop(state);
                    match self.undone(&mapped, *undone) {
                        Ok(same) => memory = same,
                        Err(error) => return (Err(error), Segments::Several(Vec::new())),
                    }
                    continue;
                }
            };
            let outcome = operation.outcome();
            memory = operation.memory;
            match outcome {
                Ok(()) => {
                    self.done(action, operation.start);
                    return (Ok(count), memory);
                }
                Err(DirectError::Permission) => {
                    drop(state);
                    self.lost(&mapped);
                }
                Err(error) => return (Err(error), memory),
            }
        }
        (Err(DirectError::Permission), memory)
    }

    /// An operation that went directly has been answered.
    #[inline]
    pub(crate) fn done(&self, action: Action, start: u64) {
        if action == (Action::Write { durable: false }) {
            self.inode.unsynced.wrote(start);
        }
    }

    /// What this file's syncs cover.
    pub(crate) fn unsynced(&self) -> &Unsynced {
        &self.inode.unsynced
    }

    /// Counts an operation that goes directly.
    pub(crate) fn note(&self, mapped: &Mapped, action: Action) {
        let counters = &self.session.counters;
        match action {
            Action::Read => add(&counters.direct_reads),
            Action::Sync => add(&counters.direct_syncs),
            Action::Write { .. } => {
                mapped.note_write();
                add(&counters.direct_writes);
            }
        }
        self.inode.count_direct();
    }

    fn through_kernel(&self, action: Action, offset: u64, memory: &mut Segments) -> Result<usize, DirectError> {
        self.check_number()?;
        let counters = &self.session.counters;
        let descriptor = self.descriptor.as_fd();
        Ok(match action {
            Action::Read => {
                add(&counters.kernel_reads);
                if freeze::is_immutable(descriptor) {
                    // Another process may write it directly: what the page cache holds is old.
                    let _ = rustix::fs::fadvise(descriptor, 0, None, rustix::fs::Advice::DontNeed);
                }
                memory.as_slices_mut(|slices| rustix::io::preadv(descriptor, slices, offset))?
            }
            _ => {
                add(&counters.kernel_writes);
                let write = || memory.as_slices(|slices| rustix::io::pwritev(descriptor, slices, offset));
                self.session.insist(&[descriptor], Waits::ToTheEnd, write)?
            }
        })
    }
}

/// How an operation goes.
pub(crate) enum Way {
    /// Directly, so many bytes.
    Direct(Arc<Mapped>, usize),
    /// Through the kernel, as things are.
    Kernel,
    /// Through the kernel, when the file has been given back.
    Change,
}
