//! What a session knows of a file, however often it is open: the way to it now, and its open files.
//!
//! What always holds:
//! - while there is a grant, or another process has the file directly, all open files that write are placeholders;
//! - before the kernel does something that needs a descriptor which writes, placeholders are what they stand for again;
//! - while the device appends to it, its open files are mere paths, all of them; whatever else is done with it ends that first;
//! - a file of which another process and this one both keep descriptors that write would never be direct for either: it is kept by
//!   placeholders here while the kernel does nothing with it (`is_contended`).

use super::agent_client::DirectError;
use super::append::Appender;
use super::description::{Description, Descriptions};
use super::insist::{Waits, is_immutable};
use super::mapped::Mapped;
use super::session::{Session, add};
use super::unsynced::Unsynced;
use crate::agent::freeze::EXECUTABLE;
use rustix::fs::{Access, AtFlags, CWD, OFlags};
use rustix::io::Errno;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Fewest and most operations that a file stays with the kernel after it was given back, or refused.
const KERNEL_OPERATIONS_MIN: u32 = 16;
pub(crate) const KERNEL_OPERATIONS_MAX: u32 = 4096;
/// Writes that append between two syncs, at most, where the device appends them one by one.
const APPENDS_A_SYNC_MAX: u32 = 4;
/// Rights of a grant.
const READ: u32 = 1;
const WRITE: u32 = 2;

/// The way to a file now.
#[derive(Default)]
pub(crate) struct State {
    /// By which it is read and written directly.
    mapped: Option<Arc<Mapped>>,
    descriptions: Descriptions,
    /// By which the device appends to it.
    appender: Option<Arc<Appender>>,
    /// It stays with the kernel (it is mapped into memory, say).
    pub is_pinned: bool,
    /// Another process has it open for writing as well.
    is_contended: bool,
    /// The agent has seen what the process may do with it.
    is_shown: bool,
    pub files: usize,
    pub writers: usize,
    /// Why it was not taken, the last time.
    pub refusal: Option<String>,
}

impl State {
    pub fn way(&self, writes: bool) -> Option<&Arc<Mapped>> {
        let right = if writes { WRITE } else { READ };
        self.mapped.as_ref().filter(|mapped| mapped.rights() & right != 0)
    }

    pub fn is_direct(&self) -> bool {
        self.mapped.is_some()
    }

    /// The grant, whatever it allows.
    pub fn grant(&self) -> Option<&Arc<Mapped>> {
        self.mapped.as_ref()
    }

    /// True where the kernel writes nothing by the descriptors as they are.
    pub fn has_placeholders(&self) -> bool {
        self.descriptions.are_placeholders()
    }

    /// True while the device appends to it for this process, or did a moment ago.
    pub fn is_appending(&self) -> bool {
        self.appender.is_some()
    }

    /// By which the device appends; `None` also where a descriptor has come since that is no mere path.
    pub fn appender(&self) -> Option<&Arc<Appender>> {
        self.appender.as_ref().filter(|_| self.descriptions.are_paths())
    }

    /// Makes durable what was written before the device appends. What fails is the program's to know: the kernel tells it once.
    pub fn settle_before_appending(&mut self) -> Result<(), Errno> {
        match self.descriptions.all().next().map(|one| one.lent()) {
            Some(file) => rustix::fs::fdatasync(file),
            None => Err(Errno::BADF),
        }
    }

    /// Its descriptors become mere paths, so that the device can have its length; what was written before is durable
    /// ([`State::settle_before_appending`]).
    pub fn begin_appending(&mut self, session: &Arc<Session>) -> Result<Arc<Appender>, DirectError> {
        let refused = |why: &str| DirectError::Refused(why.to_owned());
        if self.is_direct() || !self.descriptions.all_append() {
            return Err(refused("it is open for more than appending"));
        }
        if session.device_socket()?.is_none() {
            return Err(refused("the device is reached by a network"));
        }
        let Some(file) = self.descriptions.all().next().map(|one| one.lent()) else {
            return Err(Errno::BADF.into());
        };
        // By a mere path it is opened anew for each proof, and for what the kernel appends: not where its mode keeps this process from that. That it is
        // immutable just now (EPERM) passes.
        let number = format!("/proc/self/fd/{}", file.as_raw_fd());
        match rustix::fs::accessat(CWD, number, Access::WRITE_OK, AtFlags::EACCESS) {
            Ok(()) | Err(Errno::PERM) => {}
            Err(error) => return Err(error.into()),
        }
        let appender = Arc::new(Appender::of_file(session, file)?);
        if let Err(error) = self.descriptions.become_paths(appender.path()) {
            let _ = self.restore(session);
            return Err(error.into());
        }
        self.appender = Some(appender.clone());
        Ok(appender)
    }

    /// The device appends no more for this process: the file system has the file's length. Its descriptors stay mere paths.
    fn end_appending(&mut self) -> bool {
        let ended = self.appender.take();
        if let Some(appender) = &ended
            && let Err(error) = appender.give_back()
        {
            // The agent notices by itself, or is gone.
            tracing::debug!("a file that the device appends to is not given back: {error}");
        }
        ended.is_some()
    }

    /// The program's position of a number is there now.
    pub fn moved(&self, number: RawFd, to: u64) {
        self.descriptions.moved(number, to);
    }

    /// Takes a descriptor in; its flags, as the program has them.
    pub fn add(&mut self, descriptor: BorrowedFd<'_>) -> Result<OFlags, Errno> {
        self.descriptions.add(descriptor)
    }

    /// Takes a descriptor off. The rights of a process are those of the files that it has open.
    pub fn remove(&mut self, session: &Session, descriptor: BorrowedFd<'_>, writes: bool) {
        self.descriptions.remove(descriptor.as_raw_fd());
        self.files -= 1;
        self.writers -= usize::from(writes);
        if self.files == 0 {
            self.end_appending();
        }
        if self.files == 0 && self.is_shown && !self.is_direct() {
            self.is_shown = false;
            session.forget(descriptor);
        }
        let writes_no_more = self.writers == 0 && self.way(true).is_some();
        if let Some(mapped) = self.mapped.as_ref().filter(|_| self.files == 0 || writes_no_more) {
            mapped.forget();
            let _ = self.give_back(session);
        }
    }

    /// The flags of a descriptor, as the program has them.
    pub fn flags(&mut self, number: RawFd) -> Option<OFlags> {
        self.descriptions.of(number).map(|one| one.flags())
    }

    /// Changes them as `fcntl(F_SETFL)` does.
    pub fn set_flags(&mut self, number: RawFd, flags: OFlags) -> Result<(), Errno> {
        self.descriptions.set_flags(number, flags)
    }

    /// Gives all of it back to the file system. Its placeholders stay.
    pub fn give_back(&mut self, session: &Session) -> Result<(), DirectError> {
        let Some(mapped) = self.mapped.take() else { return Ok(()) };
        mapped.end();
        session.drain(&mapped);
        mapped.give_back()
    }

    /// Makes placeholders what they stand for. EPERM: the file is direct somewhere.
    pub fn restore(&mut self, session: &Session) -> Result<(), Errno> {
        for one in self.descriptions.all().filter(|one| one.is_placeholder()) {
            session.spare.with(|| restore_one(session, one))?;
        }
        Ok(())
    }

    /// The descriptors that show what the process may do with the file: one for all, or one for reading and one for writing.
    fn proofs(&mut self) -> Vec<BorrowedFd<'static>> {
        let (mut reads, mut writes) = (None, None);
        for one in self.descriptions.all() {
            let flags = one.flags();
            let descriptor = one.lent();
            let shows_writing = one.writes() && !flags.contains(OFlags::APPEND) && !one.is_placeholder();
            match flags & OFlags::RWMODE {
                OFlags::RDWR if shows_writing => return vec![descriptor],
                OFlags::WRONLY if shows_writing => writes = Some(descriptor),
                OFlags::WRONLY => {}
                _ if one.writes() && !one.is_placeholder() => {}
                _ => reads = Some(descriptor),
            }
        }
        reads.into_iter().chain(writes).collect()
    }

    /// Asks the agent for it, by all that the process may do.
    pub fn take(&mut self, session: &Session) -> Result<(), DirectError> {
        let _ = self.give_back(session);
        // Where that goes they show what they may themselves; else the agent knows it, or does not.
        let again = self.has_placeholders() && self.restore(session).is_err();
        let placeholders = self.descriptions.placeholders();
        let refused = |error: Errno| {
            DirectError::Refused(format!("a descriptor that only reads cannot take its place ({error})"))
        };
        let placeholders = placeholders.map_err(refused)?;
        let mut proofs = self.proofs();
        if proofs.is_empty() {
            // All of them are placeholders of what only wrote.
            proofs.extend(self.descriptions.all().find(|one| one.is_placeholder()).map(|one| one.lent()));
        }
        if proofs.is_empty() {
            return Err(DirectError::Refused("it is open for appending".to_owned()));
        }
        let descriptions = &mut self.descriptions;
        let mut give_up = || Ok(descriptions.give_up(&placeholders)?);
        self.is_shown = true;
        let mapped = session.map(&proofs, again, (!placeholders.is_empty()).then_some(&mut give_up));
        drop(placeholders);
        match mapped {
            Ok(mapped) => {
                self.mapped = Some(mapped);
                self.is_contended = false;
                Ok(())
            }
            Err(error) => {
                self.is_contended = matches!(error, DirectError::Contended { shared: true });
                if !self.is_contended {
                    // Another process may have it directly: then they stay until something is done by them.
                    let _ = self.restore(session);
                }
                Err(error)
            }
        }
    }

    /// True where somebody may execute it, whom the kernel is to refuse while it is open for writing here.
    fn may_be_executed(&mut self) -> bool {
        let stat = self.descriptions.all().next().map(|one| rustix::fs::fstat(one.descriptor()));
        stat.is_none_or(|stat| stat.is_ok_and(|stat| stat.st_mode & EXECUTABLE != 0))
    }

    /// Where another process waits for it: nothing here can write it while nothing is done.
    fn give_way(&mut self) {
        if self.is_contended
            && !self.is_pinned
            && !self.may_be_executed()
            && let Ok(placeholders) = self.descriptions.placeholders()
        {
            let _ = self.descriptions.give_up(&placeholders);
        }
    }
}

/// Makes a placeholder what it stands for.
fn restore_one(session: &Session, one: &mut Description) -> Result<(), Errno> {
    // It may be a mere path.
    let is_frozen = |one: &Description| is_immutable(one.descriptor());
    let mut real = one.real();
    if real.as_ref().is_err_and(|error| *error == Errno::PERM) && !is_frozen(one) {
        // It may have been, when it was refused.
        real = one.real();
    }
    if matches!(real, Err(Errno::ACCESS | Errno::PERM | Errno::NOENT)) && !is_frozen(one) {
        // Its mode is another by now, or there is no /proc where the process is. Where the agent refuses since it is direct again, it is to be released.
        let reopened = session.reopen(one.descriptor(), one.flags());
        real = reopened.map_err(|error| if is_frozen(one) { Errno::PERM } else { error });
    }
    one.restore(&real?)
}

/// A file.
#[derive(Default)]
pub(crate) struct Inode {
    state: RwLock<State>,
    /// Operations through the kernel until direct access is tried again.
    kernel_left: AtomicU32,
    /// How many it will be the next time.
    kernel_next: AtomicU32,
    /// The most that it may be.
    kernel_max: u32,
    /// Operations since it was taken directly.
    direct: AtomicU32,
    /// Writes by descriptors that append, since the last sync; and whether the one before came after few of them.
    appended: AtomicU32,
    is_synced_often: AtomicBool,
    /// While it is not zero, all of it goes through the kernel: it is raised before the file is given back, and read under the lock
    /// by whoever takes it.
    holds: AtomicU32,
    /// Writes past the kernel that nobody has synced.
    pub unsynced: Unsynced,
}

/// While one lives, all of its file goes through the kernel in its session, by descriptors that are what the program opened: see
/// [`super::File::hold`].
pub struct Hold(Arc<Inode>);

impl Hold {
    pub(crate) fn new(inode: &Arc<Inode>, session: &Session) -> Hold {
        inode.holds.fetch_add(1, Ordering::SeqCst);
        let hold = Hold(inode.clone());
        if let Err(error) = inode.change(session, false, || Ok::<_, Errno>(())) {
            tracing::debug!("descriptors of a file only read for now: {error}");
        }
        hold
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.holds.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Inode {
    /// It stays with the kernel for so many operations at most when it was given back.
    pub fn new(kernel_max: u32) -> Inode {
        Inode { kernel_max, ..Inode::default() }
    }

    /// True while it is to stay with the kernel.
    pub fn is_held(&self) -> bool {
        self.holds.load(Ordering::SeqCst) > 0
    }

    pub fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on the kernel, for a time.
    pub fn stay_with_kernel(&self) {
        let next = self.kernel_next.load(Ordering::Relaxed).max(KERNEL_OPERATIONS_MIN);
        let worth_it = self.direct.swap(0, Ordering::Relaxed) >= next.saturating_mul(4);
        let now = if worth_it { KERNEL_OPERATIONS_MIN } else { next }.min(self.kernel_max);
        self.kernel_left.store(now, Ordering::Relaxed);
        self.kernel_next.store((now * 2).min(KERNEL_OPERATIONS_MAX), Ordering::Relaxed);
    }

    /// True where this operation is to go through the kernel.
    pub fn is_kernels_turn(&self) -> bool {
        let less = |left: u32| left.checked_sub(1);
        self.kernel_left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }

    /// Direct access is tried with the next operation.
    pub fn end_kernels_turn(&self) {
        self.kernel_left.store(0, Ordering::Relaxed);
    }

    /// It was taken directly.
    pub fn begin_direct(&self) {
        self.direct.store(0, Ordering::Relaxed);
    }

    /// Counts an operation that goes directly, up to where it says enough.
    pub fn count_direct(&self) {
        if self.direct.load(Ordering::Relaxed) < u32::MAX / 2 {
            self.direct.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A write by a descriptor that appends: true where the program syncs so often that the device is worth it.
    pub fn note_append(&self) -> bool {
        let since = self.appended.fetch_add(1, Ordering::Relaxed);
        since <= APPENDS_A_SYNC_MAX && self.is_synced_often.load(Ordering::Relaxed)
    }

    /// The program syncs it.
    pub fn note_sync(&self) {
        let since = self.appended.swap(0, Ordering::Relaxed);
        self.is_synced_often.store((1..=APPENDS_A_SYNC_MAX).contains(&since), Ordering::Relaxed);
    }

    /// Gives the file back, where it is direct, and does something to it while nothing else is under way, by descriptors that are what the
    /// program opened.
    pub fn change<T, E: From<Errno>>(
        &self,
        session: &Session,
        pin: bool,
        what: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        let mut state = self.write();
        state.is_pinned |= pin;
        if state.end_appending() {
            add(&session.counters.given_back);
            self.stay_with_kernel();
        }
        if state.is_direct() {
            add(&session.counters.given_back);
            if let Err(error) = state.give_back(session) {
                tracing::warn!("a file could not be given back to the file system: {error}");
            }
            self.stay_with_kernel();
        }
        let placeholder = state.descriptions.all().find(|one| one.is_placeholder()).map(|one| one.lent());
        if let Some(placeholder) = placeholder {
            session.insist(&[placeholder], Waits::ToTheEnd, || state.restore(session))?;
        }
        let done = what();
        if !self.is_held() {
            state.give_way();
        }
        done
    }
}
