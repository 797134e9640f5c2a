//! Files that an agent before this one has left immutable, and what gives them back: the next agent, or `willow agent --thaw`.
//!
//! What always holds:
//! - the caller has the journal to itself, and the device has ended what that agent permitted;
//! - a file is off the journal only when it has thawed.

use super::apart::{apart, hear};
use super::fault::Faults;
use super::freeze::{self, Guard};
use super::handle::Handle;
use super::journal::{Found, Journal, Key};
use super::judge::{other_places, places};
use super::pages;
use super::thaw::{Thaw, durable};
use rustix::fs::{Mode, OFlags};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long `--thaw` waits where no file thaws: somebody keeps the rest busy.
const STILL_MAX: Duration = Duration::from_secs(15);
/// Wait between two looks.
const THAW_LOOK: Duration = Duration::from_millis(5);

/// Thaws what an agent that was killed has left immutable, where none is to be started again: how many files, and where those are, at last,
/// of which that failed. The caller knows that no agent uses this list, and that the device has ended what it permitted.
pub fn give_back_left(state: PathBuf) -> Result<(usize, Vec<PathBuf>), String> {
    if !state.exists() {
        return Err(format!("{} is not there: no agent has its list of frozen files there", state.display()));
    }
    let journal = Arc::new(Journal::open(state)?);
    let count = journal.frozen().len();
    let thawing = thaw_in_threads(&journal, &Arc::new(Faults::new()))?;
    let (mut left, mut since) = (count, Instant::now());
    while thawing.iter().any(|(_, thread)| !thread.is_finished()) && since.elapsed() < STILL_MAX {
        std::thread::sleep(THAW_LOOK);
        let now = journal.frozen().len();
        if now != left {
            (left, since) = (now, Instant::now());
        }
    }
    let left: Vec<PathBuf> = journal.frozen().into_values().map(|found| found.path).collect();
    Ok((count - left.len(), left))
}

/// Files that one user has on one file system.
type Files = Vec<(Key, Found)>;

/// Listed files by file system and owner, who stays the same while they are immutable; without one: those that are not found now.
fn by_owner(listed: BTreeMap<Key, Found>) -> BTreeMap<(u64, Option<u32>), Files> {
    let mut all: BTreeMap<_, Files> = BTreeMap::new();
    for (key, found) in listed {
        // By a mere path, and by no name: whoever has a folder on the way could have this thread wait.
        let file = found.handle.as_ref().and_then(|handle| open_by_handle(handle, key, OFlags::PATH).ok()?);
        let owner = file.and_then(|file| Some(rustix::fs::fstat(&file).ok()?.st_uid));
        all.entry((key.0, owner)).or_default().push((key, found));
    }
    all
}

/// Files, and who thaws them.
pub(super) type Thawing = (BTreeSet<Key>, JoinHandle<()>);

/// Has all that is listed thawed, by a thread for the files of each user, and one more for each file with which the kernel waits: whoever may
/// read it can bring that about.
pub(super) fn thaw_in_threads(journal: &Arc<Journal>, faults: &Arc<Faults>) -> Result<Vec<Thawing>, String> {
    let all = by_owner(journal.frozen()).into_values().map(|files| {
        let (journal, faults) = (journal.clone(), faults.clone());
        let keys = files.iter().map(|(key, _)| *key).collect();
        let thread = std::thread::Builder::new().name("willow-agent-thaw".to_owned());
        let thread = thread.spawn(move || thaw_all(&journal, &faults, files));
        thread.map(|thread| (keys, thread)).map_err(|error| format!("no thread to thaw files: {error}"))
    });
    all.collect()
}

/// Thaws files of an agent before this one.
fn thaw_all(journal: &Arc<Journal>, faults: &Arc<Faults>, files: Files) {
    let mut waiting = Vec::new();
    for (key, found) in files {
        let path = found.path.clone();
        let (journal, faults) = (journal.clone(), faults.clone());
        match apart("willow-agent-thaw", move || thaw_one(&journal, &faults, key, &found)) {
            Ok(thread) => waiting.extend(thread),
            Err(error) => tracing::warn!("{} is still immutable (chattr -i), no thread: {error}", path.display()),
        }
    }
    waiting.into_iter().for_each(hear);
}

fn thaw_one(journal: &Journal, faults: &Faults, key: Key, found: &Found) {
    faults.step();
    let thawed = open(found, key).and_then(|file| thaw_found(journal, faults, (key, found), (file.as_fd(), true)));
    faults.step();
    if let Err(error) = thawed.and_then(|()| journal.thaw(key)) {
        // The file system may not be mounted now.
        tracing::warn!("{} may still be immutable (chattr -i): {error}", found.path.display());
    }
    faults.step();
}

/// Opens a listed file for reading. That waits for nobody who has its inode.
fn open(found: &Found, key: Key) -> std::io::Result<OwnedFd> {
    match found.handle.as_ref().map(|handle| open_by_handle(handle, key, OFlags::RDONLY)) {
        Some(Ok(Some(file))) => Ok(file),
        // Its file system is there: by its path it would be no other file, and who has a folder on the way could have this thread wait.
        Some(Err(error)) => Err(error),
        // By its path where its file system is mounted with another id, say.
        Some(Ok(None)) | None => open_by_path((&found.path, found.handle.as_ref()), key),
    }
}

/// Opens a file in this mode wherever its path is now, and whatever number its disk has; `None` where its file system is not mounted.
pub(super) fn open_by_handle(handle: &Handle, key: Key, mode: OFlags) -> std::io::Result<Option<OwnedFd>> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
    let is_it = |file: &OwnedFd| rustix::fs::fstat(file).is_ok_and(|stat| stat.st_ino == key.1);
    for place in places(key.0, &mounts) {
        if let Some(file) = handle.open_at(&place, mode)?.filter(is_it) {
            return Ok(Some(file));
        }
    }
    let mut found: Option<(String, OwnedFd)> = None;
    for (number, place) in other_places(key.0, &mounts) {
        // Where it cannot be opened there, it is not there.
        let Some(file) = handle.open_at(&place, mode).ok().flatten().filter(is_it) else { continue };
        if found.as_ref().is_some_and(|(before, _)| *before != number) {
            // A copy of the disk, say: which of them the device wrote is not known.
            return Err(std::io::Error::other("more than one file system that is mounted has its UUID"));
        }
        found = Some((number, file));
    }
    Ok(found.map(|(_, file)| file))
}

fn open_by_path((path, handle): (&Path, Option<&Handle>), key: Key) -> std::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    // A link in the path is not what was there: its owner may have put it there since.
    let links = rustix::fs::ResolveFlags::NO_SYMLINKS;
    let file = rustix::fs::openat2(rustix::fs::CWD, path, flags, Mode::empty(), links)?;
    let stat = rustix::fs::fstat(&file)?;
    if (stat.st_dev, stat.st_ino) != key || handle.is_some_and(|handle| !handle.is_of_same(file.as_fd())) {
        return Err(std::io::Error::other("another file is there now"));
    }
    Ok(file)
}

/// Thaws an open file of an agent before this one, which may have been written directly; whether it waits for leases of it ([`Thaw`]).
pub(super) fn thaw_found(
    journal: &Journal,
    faults: &Faults,
    (key, found): (Key, &Found),
    (file, waits): (BorrowedFd<'_>, bool),
) -> std::io::Result<()> {
    // One that is not kept as it is may be open for writing by now, and have been written.
    if freeze::guarded(file)? == Guard::Nothing {
        return durable(file);
    }
    let is_stale = found.writes && !pages::drop_all(file);
    if is_stale || found.renewal.is_some() {
        freeze::set_immutable(file, true)?;
    }
    Thaw { journal, faults, key, file, waits }.run(is_stale, || {})
}
