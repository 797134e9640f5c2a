//! Files that are kept as they are: immutable, and open for writing nowhere, which a lease proves.
//!
//! What always holds:
//! - a file is made immutable only while a lease proves that nobody has it open for writing: whoever had it open so would find his next
//!   write refused (EPERM), or touch memory that is not there any more (SIGBUS);
//! - a file is in the journal before it is made immutable, and until it is no longer;
//! - a permission is installed only for a file that [`Holds::prove`] has proved, and the file thaws only when its last user says that
//!   the device has answered the revocation;
//! - a file that cannot be thawed stays immutable and listed; it is tried again ([`Holds::retry`]);
//! - calls on a file wait for nobody but who is busy with the same file: a file system that blocks keeps others' files from nobody.

use super::fault::{Fault, Faults};
use super::handle::Handle;
use super::journal::{Found, Journal, Key};
use super::judge::{NAMELESS, places};
use super::{Refusal, freeze, lease, lock, pages};
use freeze::Guard;
use rustix::fs::{Mode, OFlags};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long a file may still be open for writing when its lease is asked for: another process of the same program may be replacing its
/// descriptors just now.
const PROOF_PATIENCE: Duration = Duration::from_millis(20);
/// How long an agent that begins waits for what the one before it left.
const THAW_MAX: Duration = Duration::from_secs(10);
/// Wait between two looks.
const PROOF_LOOK: Duration = Duration::from_millis(1);

enum Phase {
    Thawed,
    /// Open for reading alone, and nothing else was done to it.
    Prepared(Arc<OwnedFd>),
    Frozen(Kept),
}

struct Kept {
    /// Open for reading alone. It keeps the file system mounted and the file there, and holds the lease.
    descriptor: Arc<OwnedFd>,
    was_immutable: bool,
    is_proved: bool,
    /// It may be written directly, which the journal says.
    writes: bool,
}

const FORBIDDEN: &str = "it is immutable (chattr +i)";

/// A file that somebody has open directly, or is about to.
pub(super) struct Hold {
    key: Key,
    phase: Mutex<Phase>,
    /// It was written past the file system, which knows nothing of that.
    written: AtomicBool,
    /// It could not be thawed, which has been said.
    is_stuck: AtomicBool,
}

impl Hold {
    /// Device and inode.
    pub fn key(&self) -> Key {
        self.key
    }

    /// Its descriptor, while it is prepared or frozen.
    pub fn descriptor(&self) -> Option<Arc<OwnedFd>> {
        match &*lock(&self.phase) {
            Phase::Prepared(descriptor) => Some(descriptor.clone()),
            Phase::Frozen(kept) => Some(kept.descriptor.clone()),
            Phase::Thawed => None,
        }
    }

    /// Its modification time is to be set.
    pub fn note_write(&self) {
        self.written.store(true, Ordering::Relaxed);
    }

    /// True where it is known that somebody waits to open the file for writing; false as well while another thread is busy with it.
    fn is_broken(&self) -> bool {
        let Ok(phase) = self.phase.try_lock() else { return false };
        matches!(&*phase, Phase::Frozen(kept) if kept.is_proved && !lease::is_whole(kept.descriptor.as_fd()))
    }

    /// True while nobody has it open for writing, or is about to.
    pub fn is_whole(&self) -> bool {
        match &*lock(&self.phase) {
            Phase::Frozen(kept) => kept.is_proved && lease::is_whole(kept.descriptor.as_fd()),
            Phase::Thawed | Phase::Prepared(_) => false,
        }
    }
}

struct Entry {
    hold: Arc<Hold>,
    users: usize,
}

/// All of them.
pub(super) struct Holds {
    all: Mutex<BTreeMap<Key, Entry>>,
    journal: Arc<Journal>,
    stuck: Mutex<Vec<Arc<Hold>>>,
    /// What an agent before this one left, by device.
    thawing: Mutex<Vec<(u64, std::thread::JoinHandle<()>)>>,
    faults: Arc<Faults>,
}

impl Holds {
    /// Begins with nothing held: thaws what the journal lists.
    pub fn open(state: PathBuf, faults: Arc<Faults>) -> Result<Self, String> {
        let journal = Arc::new(Journal::open(state)?);
        let mut left: BTreeMap<u64, Vec<(Key, Found)>> = BTreeMap::new();
        for (key, found) in journal.frozen() {
            left.entry(key.0).or_default().push((key, found));
        }
        // One that is frozen now waits; others do not wait for it.
        let thawing: Vec<(u64, std::thread::JoinHandle<()>)> = left
            .into_iter()
            .map(|(device, files)| {
                let journal = journal.clone();
                let thread = std::thread::Builder::new().name("willow-agent-thaw".to_owned());
                let thread = thread.spawn(move || thaw_all(&journal, &files));
                thread.map(|thread| (device, thread)).map_err(|error| format!("no thread to thaw files: {error}"))
            })
            .collect::<Result<_, _>>()?;
        let begun = Instant::now();
        while thawing.iter().any(|(_, thread)| !thread.is_finished()) && begun.elapsed() < THAW_MAX {
            std::thread::sleep(PROOF_LOOK);
        }
        let (all, stuck, thawing) = (Mutex::default(), Mutex::default(), Mutex::new(thawing));
        Ok(Holds { all, journal, stuck, thawing, faults })
    }

    /// True while files of an agent before this one are being thawed on a file system.
    fn is_thawing(&self, device: u64) -> bool {
        let mut thawing = lock(&self.thawing);
        thawing.retain(|(_, thread)| !thread.is_finished());
        thawing.iter().any(|(other, _)| *other == device)
    }

    /// Counts a user of a file, before anything is done to it. [`Holds::release`] ends it.
    pub fn reserve(&self, key: Key) -> Arc<Hold> {
        let mut all = lock(&self.all);
        let entry = all.entry(key).or_insert_with(|| {
            let (phase, written, is_stuck) =
                (Mutex::new(Phase::Thawed), AtomicBool::new(false), AtomicBool::new(false));
            Entry { hold: Arc::new(Hold { key, phase, written, is_stuck }), users: 0 }
        });
        entry.users += 1;
        entry.hold.clone()
    }

    /// Opens a file for reading, where it is not open yet, for somebody who is going to write it, or not. Changes nothing of it. The error
    /// is a sentence about it.
    pub fn prepare(&self, hold: &Hold, file: BorrowedFd<'_>, writes: bool) -> Result<(), String> {
        if writes {
            freeze::check_writing(file)?;
            pages::check(file)?;
        }
        let mut phase = lock(&hold.phase);
        if let Phase::Frozen(kept) = &*phase {
            return if writes && kept.was_immutable { Err(FORBIDDEN.to_owned()) } else { Ok(()) };
        }
        if self.is_thawing(hold.key.0) {
            return Err("what an agent before this one left on its file system is not thawed yet".to_owned());
        }
        if self.is_immutable(hold.key, file)? && writes {
            return Err(FORBIDDEN.to_owned());
        }
        if matches!(*phase, Phase::Thawed) {
            // Never waits: for another's lease, say.
            let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
            let opened = rustix::fs::open(format!("/proc/self/fd/{}", file.as_raw_fd()), flags, Mode::empty());
            let opened = opened.map_err(|error| format!("the agent cannot open it for reading ({error})"))?;
            *phase = Phase::Prepared(Arc::new(opened));
        }
        Ok(())
    }

    /// True where a file is immutable by itself: not by an agent before this one that could not be thawed when this one began.
    fn is_immutable(&self, key: Key, file: BorrowedFd<'_>) -> Result<bool, String> {
        Ok(freeze::check(file)? && !self.journal.contains(key))
    }

    /// Makes a file immutable, which nobody has open for writing.
    fn freeze(&self, key: Key, descriptor: &Arc<OwnedFd>, writes: bool) -> Result<Kept, String> {
        let file = descriptor.as_fd();
        let was_immutable = self.is_immutable(key, file)?;
        if !was_immutable {
            let frozen = self.list_and_freeze(key, file, writes);
            if frozen.is_err() {
                match freeze::set_immutable(file, false) {
                    Ok(()) => self.forget(key),
                    Err(error) => tracing::error!("a file is still immutable (chattr -i): {error}"),
                }
            }
            frozen?;
        }
        Ok(Kept { descriptor: descriptor.clone(), was_immutable, is_proved: !self.forgets_lease(), writes })
    }

    /// Puts a file that is frozen, or is about to be, into the journal.
    fn list(&self, key: Key, file: BorrowedFd<'_>, writes: bool) -> Result<(), String> {
        let path = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let path = path.map_err(|error| format!("its path cannot be found out ({error})"))?;
        let found = Found { path, handle: Handle::of_file(file), writes };
        let listed = self.journal.freeze(key, found);
        listed.map_err(|error| format!("it cannot be put on the list of frozen files ({error})"))
    }

    fn list_and_freeze(&self, key: Key, file: BorrowedFd<'_>, writes: bool) -> Result<(), String> {
        let kept = |error| format!("it cannot be kept as it is while it is accessed directly ({error})");
        self.faults.step();
        if self.faults.has(Fault::FlagFirst) {
            freeze::set_immutable(file, true).map_err(kept)?;
            self.faults.step();
        }
        self.list(key, file, writes)?;
        self.faults.step();
        if !self.faults.has(Fault::NoFlag) {
            freeze::set_immutable(file, true).map_err(kept)?;
        }
        self.faults.step();
        Ok(())
    }

    /// Freezes a file that was prepared, and proves that it has nobody who could move its blocks, and that it may be written directly where
    /// somebody is going to. Waits while its file system is frozen.
    pub fn prove(&self, hold: &Hold, writes: bool) -> Result<(), Refusal> {
        lease::check_break_time()?;
        let begun = Instant::now();
        loop {
            {
                let mut phase = lock(&hold.phase);
                if let Phase::Prepared(descriptor) = &*phase
                    && self.take_lease(descriptor.as_fd())?
                {
                    // Whoever opens it for writing from now on waits until the lease is given up, and so finds it thawed.
                    let frozen = self.freeze(hold.key, descriptor, writes);
                    let frozen = frozen.inspect_err(|_| lease::give_up(descriptor.as_fd()));
                    *phase = Phase::Frozen(frozen?);
                }
                match &mut *phase {
                    Phase::Thawed => return Err("it was taken back meanwhile".into()),
                    Phase::Frozen(kept) => {
                        self.judge_frozen(hold.key, kept, writes)?;
                        if writes && !kept.writes {
                            self.list(hold.key, kept.descriptor.as_fd(), true)?;
                            kept.writes = true;
                        }
                        return Ok(());
                    }
                    Phase::Prepared(_) => {}
                }
            }
            if begun.elapsed() >= PROOF_PATIENCE {
                return Err(Refusal::OpenForWriting(hold.key));
            }
            std::thread::sleep(PROOF_LOOK);
        }
    }

    fn forgets_lease(&self) -> bool {
        self.faults.has(Fault::NoLease) || self.faults.has(Fault::GrantFirst)
    }

    /// What an agent that proves too late does when the permissions are there.
    pub fn prove_late(&self, hold: &Hold) -> Result<(), Refusal> {
        let mut phase = lock(&hold.phase);
        if let Phase::Frozen(kept) = &mut *phase {
            kept.is_proved = lease::take(kept.descriptor.as_fd()).map_err(|error| error.to_string())?;
        }
        drop(phase);
        hold.is_whole().then_some(()).ok_or(Refusal::OpenForWriting(hold.key))
    }

    /// False where the file is open for writing somewhere.
    fn take_lease(&self, file: BorrowedFd<'_>) -> Result<bool, String> {
        if self.forgets_lease() {
            return Ok(true);
        }
        lease::take(file).map_err(|error| format!("the agent gets no lease of it ({error})"))
    }

    /// What has to hold of a file that is immutable now.
    fn judge_frozen(&self, key: Key, kept: &Kept, writes: bool) -> Result<(), Refusal> {
        let file = kept.descriptor.as_fd();
        // From now on nobody deletes it,
        if rustix::fs::fstat(file).map_err(|error| error.to_string())?.st_nlink == 0 {
            return Err(NAMELESS.into());
        }
        // and what the flags say stays so.
        if !freeze::check(file)? && !self.faults.has(Fault::NoFlag) {
            return Err("somebody has taken the attribute from it that keeps it as it is (chattr -i)".into());
        }
        if writes {
            if kept.was_immutable {
                return Err(FORBIDDEN.into());
            }
            freeze::check_writing(file)?;
        }
        (!kept.is_proved || lease::is_whole(file)).then_some(()).ok_or(Refusal::OpenForWriting(key))
    }

    /// A user has done with a file: with the last one it thaws. Nothing that was permitted is under way.
    pub fn release(&self, hold: &Arc<Hold>) {
        let mut phase = lock(&hold.phase);
        // Nobody else's count falls meanwhile to be the last: that takes the phase's lock.
        let is_last = lock(&self.all).get(&hold.key).is_some_and(|entry| entry.users == 1);
        if is_last && let Phase::Frozen(kept) = &*phase {
            if let Err(error) = self.thaw(hold, kept) {
                if !hold.is_stuck.swap(true, Ordering::Relaxed) {
                    tracing::error!("a file is still immutable, it is tried again (chattr -i): {error}");
                }
                lock(&self.stuck).push(hold.clone());
                return;
            }
            hold.is_stuck.store(false, Ordering::Relaxed);
        }
        if is_last {
            *phase = Phase::Thawed;
        }
        let mut all = lock(&self.all);
        if let Some(entry) = all.get_mut(&hold.key) {
            entry.users -= 1;
            if entry.users == 0 {
                all.remove(&hold.key);
            }
        }
    }

    /// Releases a file later: [`Holds::retry`].
    pub fn defer(&self, hold: &Arc<Hold>) {
        lock(&self.stuck).push(hold.clone());
    }

    /// Releases what could not be thawed before, of these.
    pub fn retry(&self, which: impl Fn(Key) -> bool) {
        let now: Vec<Arc<Hold>> = lock(&self.stuck).extract_if(.., |hold| which(hold.key)).collect();
        now.iter().for_each(|hold| self.release(hold));
    }

    fn thaw(&self, hold: &Hold, kept: &Kept) -> std::io::Result<()> {
        let file = kept.descriptor.as_fd();
        // What the page cache holds is old by now.
        let is_dropped = pages::drop_all(file);
        self.faults.step();
        let is_written = hold.written.load(Ordering::Relaxed);
        if !kept.was_immutable {
            if is_written && !is_dropped && !self.faults.has(Fault::KeepsPages) {
                // While there is a lease nobody writes, this agent neither. Nobody waits for its end: who opens the file is refused.
                lease::give_up(file);
                pages::renew(file, &|| self.faults.step())?;
            }
            thaw(file, kept.writes)?;
        }
        self.faults.step();
        hold.written.store(false, Ordering::Relaxed);
        if is_written {
            // Direct writes have not told the file system of themselves.
            let now = rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
            let then = rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT };
            let _ = rustix::fs::futimens(file, &rustix::fs::Timestamps { last_access: then, last_modification: now });
        }
        self.faults.step();
        lease::give_up(file);
        self.faults.step();
        if !kept.was_immutable {
            self.forget(hold.key);
        }
        self.faults.step();
        Ok(())
    }

    fn forget(&self, key: Key) {
        if let Err(error) = self.journal.thaw(key) {
            tracing::error!("the list of frozen files: {error}");
        }
    }

    /// Files that somebody waits to open for writing.
    pub fn broken(&self) -> Vec<Key> {
        let all: Vec<Arc<Hold>> = lock(&self.all).values().map(|entry| entry.hold.clone()).collect();
        all.iter().filter(|hold| hold.is_broken()).map(|hold| hold.key).collect()
    }

    /// True where somebody has this file, or is about to.
    pub fn contains(&self, key: Key) -> bool {
        lock(&self.all).contains_key(&key)
    }

    /// Number of files that somebody has.
    pub fn count(&self) -> usize {
        lock(&self.all).len()
    }
}

/// Takes away what keeps a file as it is. One that is append-only by itself is not written directly.
fn thaw(file: BorrowedFd<'_>, writes: bool) -> std::io::Result<()> {
    if writes { freeze::guard(file, Guard::Nothing) } else { freeze::set_immutable(file, false) }
}

/// The same with a file of an agent before this one, which may have been written directly.
fn thaw_left(file: BorrowedFd<'_>, writes: bool) -> std::io::Result<()> {
    // One that is not kept as it is may be open for writing by now.
    if writes && freeze::guarded(file)? != Guard::Nothing && !pages::drop_all(file) {
        freeze::set_immutable(file, true)?;
        pages::renew(file, &|| ())?;
    }
    thaw(file, writes)
}

/// Thaws files of an agent before this one.
fn thaw_all(journal: &Journal, files: &[(Key, Found)]) {
    for (key, found) in files {
        let thawed = match found.handle.as_ref().map(|handle| thaw_handle(handle, *key, found.writes)) {
            Some(Ok(true)) => Ok(()),
            // By its path where its file system is mounted with another id, say.
            Some(Err(_)) | Some(Ok(false)) | None => thaw_path(&found.path, *key, found.writes),
        };
        if let Err(error) = thawed.and_then(|()| journal.thaw(*key)) {
            // The file system may not be mounted now.
            tracing::warn!("{} may still be immutable (chattr -i): {error}", found.path.display());
        }
    }
}

/// Thaws a file wherever its path is now; false where its file system is not mounted.
fn thaw_handle(handle: &Handle, key: Key, writes: bool) -> std::io::Result<bool> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
    for place in places(key.0, &mounts) {
        if let Some(file) = handle.open_at(&place)?
            && rustix::fs::fstat(&file)?.st_ino == key.1
        {
            thaw_left(file.as_fd(), writes)?;
            return Ok(true);
        }
    }
    Ok(false)
}

fn thaw_path(path: &Path, key: Key, writes: bool) -> std::io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    // A link in the path is not what was there: its owner may have put it there since.
    let links = rustix::fs::ResolveFlags::NO_SYMLINKS;
    let file = rustix::fs::openat2(rustix::fs::CWD, path, flags, Mode::empty(), links)?;
    let stat = rustix::fs::fstat(&file)?;
    if (stat.st_dev, stat.st_ino) != key {
        return Err(std::io::Error::other("another file is there now"));
    }
    thaw_left(file.as_fd(), writes)
}
