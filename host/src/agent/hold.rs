//! Files that are kept as they are: immutable, and open for writing nowhere, which a lease proves.
//!
//! What always holds:
//! - a file is made immutable only while a lease proves that nobody has it open for writing: whoever had it open so would find his next
//!   write refused (EPERM), or touch memory that is not there any more (SIGBUS);
//! - a file is in the journal before it is made immutable, and until it is no longer;
//! - a permission is installed only for a file that [`Holds::prove`] has proved, and the file thaws only when its last user says that
//!   the device has answered the revocation;
//! - a file that cannot be thawed, also where freezing it has failed half-way, stays immutable, listed and under its lease; it is tried again
//!   ([`Holds::retry`]), and counts for the user who had it last until then ([`Holds::left`]);
//! - calls on a file wait for nobody but who is busy with the same file: a file system that blocks keeps others' files from nobody. A file that
//!   is given back while the kernel waits with it is left to a thread of its own, and counts as one that could not be thawed.

use super::apart::apart;
use super::fault::{Fault, Faults};
use super::handle::{Handle, open_by_own_mount};
use super::journal::{Found, Journal, Key};
use super::judge::{ANOTHERS, NAMELESS};
use super::left::{Thawing, thaw_found, thaw_in_threads};
use super::seldom::Seldom;
use super::thaw::Thaw;
use super::{Refusal, freeze, lease, lock, pages};
use rustix::fs::OFlags;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
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
    /// It is being given back, for which nothing is permitted and no lease is needed any more: nobody has it directly until it has thawed.
    gave_lease_up: bool,
}

/// Why a file could not be frozen, and, where it could not be made writable again either, what is left to be thawed.
type Unfrozen = (String, Option<Kept>);

/// What is known of a file that is being released, by who asked for that and by the thread that does it.
enum Outcome {
    Awaited,
    /// Nobody waits for it any more, and it counts for its user.
    Counted,
    Known,
}

const FORBIDDEN: &str = "it is immutable (chattr +i)";

/// A file that somebody has open directly, or is about to.
pub(super) struct Hold {
    key: Key,
    phase: Mutex<Phase>,
    /// It was written past the file system, which knows nothing of that.
    written: AtomicBool,
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
        self.proved(|file| !lease::is_whole(file))
    }

    /// True where it is known that the file has no name any more: its removal had passed the check of the attribute before that was set.
    fn is_nameless(&self) -> bool {
        self.proved(|file| rustix::fs::fstat(file).is_ok_and(|stat| stat.st_nlink == 0))
    }

    /// What is to be said of a file that is frozen and proved; false while another thread is busy with it.
    fn proved(&self, what: impl FnOnce(BorrowedFd<'_>) -> bool) -> bool {
        let Ok(phase) = self.phase.try_lock() else { return false };
        match &*phase {
            Phase::Frozen(kept) => kept.is_proved && !kept.gave_lease_up && what(kept.descriptor.as_fd()),
            Phase::Thawed | Phase::Prepared(_) => false,
        }
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
    /// Files on the journal from an agent before this one, as far as they have not thawed yet.
    before: Mutex<Vec<Key>>,
    /// Those that wait to be released, and for whom they count.
    stuck: Mutex<Vec<(Arc<Hold>, u32)>>,
    /// How many those are for each user, with those that are being tried again just now.
    left: Mutex<BTreeMap<u32, usize>>,
    /// What an agent before this one left: files of one user each, and who thaws them.
    thawing: Mutex<Vec<Thawing>>,
    /// Who gives back a file with which the kernel waits.
    waiting: Mutex<Vec<JoinHandle<()>>>,
    faults: Arc<Faults>,
}

impl Holds {
    /// Begins with nothing held: thaws what the journal lists.
    pub fn open(state: PathBuf, faults: Arc<Faults>) -> Result<Self, String> {
        let journal = Arc::new(Journal::open(state)?);
        let before = Mutex::new(journal.frozen().into_keys().collect());
        // A file system that is frozen now lets its thread wait, as does a user who keeps a file of his own busy; others do not wait for those.
        let thawing = thaw_in_threads(&journal, &faults)?;
        let begun = Instant::now();
        while thawing.iter().any(|(_, thread)| !thread.is_finished()) && begun.elapsed() < THAW_MAX {
            std::thread::sleep(PROOF_LOOK);
        }
        let (all, stuck, left) = (Mutex::default(), Mutex::default(), Mutex::default());
        let (thawing, waiting) = (Mutex::new(thawing), Mutex::default());
        Ok(Holds { all, before, journal, stuck, left, thawing, waiting, faults })
    }

    /// Leaves the journal to the next agent, where no thread of this one has anything to do with files any more. `all_ended`: none is left that
    /// has to do with the connections of processes.
    pub fn leave_journal(&self, all_ended: bool) {
        let is_idle = all_ended || lock(&self.all).is_empty() && lock(&self.stuck).is_empty();
        if is_idle && lock(&self.thawing).iter().all(|(_, thread)| thread.is_finished()) {
            self.journal.leave();
        }
    }

    /// True while a listed file of an agent before this one is being thawed.
    fn is_thawing(&self, key: Key) -> bool {
        let mut thawing = lock(&self.thawing);
        thawing.retain(|(_, thread)| !thread.is_finished());
        thawing.iter().any(|(files, _)| files.contains(&key))
    }

    /// Counts a user of a file, before anything is done to it. [`Holds::release`] ends it.
    pub fn reserve(&self, key: Key) -> Arc<Hold> {
        let mut all = lock(&self.all);
        let entry = all.entry(key).or_insert_with(|| {
            let (phase, written) = (Mutex::new(Phase::Thawed), AtomicBool::new(false));
            Entry { hold: Arc::new(Hold { key, phase, written }), users: 0 }
        });
        entry.users += 1;
        entry.hold.clone()
    }

    /// Opens a file for reading, where it is not open yet, for somebody who is going to write it, or not. Changes nothing of it. The error
    /// is a sentence about it.
    pub fn prepare(&self, hold: &Hold, file: BorrowedFd<'_>, writes: bool, places: &[String]) -> Result<(), String> {
        if writes {
            freeze::check_writing(file)?;
            pages::check(file)?;
        }
        let mut phase = lock(&hold.phase);
        if let Phase::Frozen(kept) = &*phase {
            return if writes && kept.was_immutable { Err(FORBIDDEN.to_owned()) } else { Ok(()) };
        }
        let opened = match *phase {
            Phase::Thawed => Some(open_by_own_mount(file, hold.key, places, OFlags::RDONLY)?),
            Phase::Prepared(_) | Phase::Frozen(_) => None,
        };
        if let Some(opened) = &opened {
            self.thaw_left(hold.key, opened.as_fd())?;
        }
        if freeze::check(file)? && writes {
            return Err(FORBIDDEN.to_owned());
        }
        if let Some(opened) = opened {
            *phase = Phase::Prepared(Arc::new(opened));
        }
        Ok(())
    }

    /// Gives back a file that an agent before this one has left, and that could not be thawed when this one began: its file system was not
    /// mounted, say. Its disk may have another number by now, and another file its own.
    fn thaw_left(&self, key: Key, file: BorrowedFd<'_>) -> Result<(), String> {
        let listed: Vec<(Key, Found)> = {
            let mut before = lock(&self.before);
            before.retain(|key| self.journal.found(*key).is_some());
            before.iter().filter_map(|key| Some((*key, self.journal.found(*key)?))).collect()
        };
        for (old, found) in &listed {
            let is_it = found.handle.as_ref().map_or(*old == key, |handle| old.1 == key.1 && handle.is_of(file));
            if is_it {
                if self.is_thawing(*old) {
                    return Err("an agent before this one has left it immutable, and it is not thawed yet".to_owned());
                }
                let thawed = thaw_found(&self.journal, &self.faults, (*old, found), (file, false));
                thawed.and_then(|()| self.journal.thaw(*old)).map_err(|error| {
                    format!("an agent before this one has left it immutable, and it cannot be thawed ({error})")
                })?;
            } else if *old == key {
                return Err(format!(
                    "an agent before this one has left {} immutable, a file with its number on a disk with its disk's number: mount that, and start the agent again",
                    found.path.display()
                ));
            }
        }
        Ok(())
    }

    /// Makes a file immutable, which nobody has open for writing.
    fn freeze(&self, key: Key, descriptor: &Arc<OwnedFd>, writes: bool) -> Result<Kept, Unfrozen> {
        let file = descriptor.as_fd();
        let was_immutable = freeze::check(file).map_err(|why| (why, None))?;
        let (descriptor, is_proved) = (descriptor.clone(), !self.forgets_lease());
        let kept = Kept { descriptor, was_immutable, is_proved, writes, gave_lease_up: false };
        if was_immutable {
            return Ok(kept);
        }
        let Err(why) = self.list_and_freeze(key, file, writes) else { return Ok(kept) };
        match self.thaw_of(key, file).run(false, || {}) {
            Ok(()) => {
                self.forget(key);
                Err((why, None))
            }
            Err(error) => {
                tracing::error!("a file may be immutable, it is tried again (chattr -i): {error}");
                Err((why, Some(kept)))
            }
        }
    }

    /// As the file system does it, or a planted fault.
    fn freeze_file(&self, file: BorrowedFd<'_>) -> std::io::Result<()> {
        freeze::set_immutable(file, true)?;
        if self.faults.has(Fault::FreezeFails) { Err(super::fault::refused()) } else { Ok(()) }
    }

    fn thaw_of<'a>(&'a self, key: Key, file: BorrowedFd<'a>) -> Thaw<'a> {
        Thaw { journal: &self.journal, faults: &self.faults, key, file, waits: false }
    }

    /// Puts a file that is frozen, or is about to be, into the journal.
    fn list(&self, key: Key, file: BorrowedFd<'_>, writes: bool) -> Result<(), String> {
        let path = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let path = path.map_err(|error| format!("its path cannot be found out ({error})"))?;
        let found = Found { path, handle: Handle::of_file(file), writes, renewal: None };
        let listed = self.journal.freeze(key, found);
        listed.map_err(|error| format!("it cannot be put on the list of frozen files ({error})"))
    }

    fn list_and_freeze(&self, key: Key, file: BorrowedFd<'_>, writes: bool) -> Result<(), String> {
        let kept = |error| format!("it cannot be kept as it is while it is accessed directly ({error})");
        self.faults.step();
        if self.faults.has(Fault::FlagFirst) {
            self.freeze_file(file).map_err(kept)?;
            self.faults.step();
        }
        self.list(key, file, writes)?;
        self.faults.step();
        if !self.faults.has(Fault::NoFlag) {
            self.freeze_file(file).map_err(kept)?;
        }
        self.faults.step();
        Ok(())
    }

    /// Freezes a file that was prepared for a user, and proves that it is the user's, that it has nobody who could move its blocks, and that it may
    /// be written directly where somebody is going to. Waits while its file system is frozen.
    pub fn prove(&self, hold: &Hold, user: u32, writes: bool) -> Result<(), Refusal> {
        lease::check_break_time()?;
        let begun = Instant::now();
        loop {
            {
                let mut phase = lock(&hold.phase);
                self.faults.step();
                if let Phase::Prepared(descriptor) = &*phase
                    && self.take_lease(descriptor.as_fd())?
                {
                    self.faults.step();
                    // Whoever opens it for writing from now on waits until the lease is given up, and so finds it thawed.
                    match self.freeze(hold.key, descriptor, writes) {
                        Ok(kept) => *phase = Phase::Frozen(kept),
                        Err((why, None)) => {
                            lease::give_up(descriptor.as_fd());
                            return Err(why.into());
                        }
                        // Its last user thaws it, or what tries again does.
                        Err((why, Some(kept))) => {
                            *phase = Phase::Frozen(kept);
                            return Err(why.into());
                        }
                    }
                }
                match &mut *phase {
                    Phase::Thawed => return Err("it was taken back meanwhile".into()),
                    Phase::Frozen(kept) => {
                        self.judge_frozen(hold.key, kept, (user, writes))?;
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
    fn judge_frozen(&self, key: Key, kept: &Kept, (user, writes): (u32, bool)) -> Result<(), Refusal> {
        let file = kept.descriptor.as_fd();
        let stat = rustix::fs::fstat(file).map_err(|error| error.to_string())?;
        // From now on nobody deletes it,
        if stat.st_nlink == 0 {
            return Err(NAMELESS.into());
        }
        // nor gives it to another user: root may have done so since it was prepared.
        if user != 0 && stat.st_uid != user && !self.faults.has(Fault::OwnerForgotten) {
            return Err(ANOTHERS.into());
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

    /// A user has done with a file: with the last one it thaws, or is tried again and counts for that user meanwhile. Nothing that was
    /// permitted is under way.
    pub fn release(self: &Arc<Self>, hold: &Arc<Hold>, user: u32) {
        // Nothing of a file that is not frozen waits.
        if hold.phase.try_lock().is_ok_and(|phase| !matches!(*phase, Phase::Frozen(_))) {
            return self.released(hold, user, &mut Outcome::Awaited, self.try_release(hold, false));
        }
        let outcome = Arc::new(Mutex::new(Outcome::Awaited));
        let (holds, own, told) = (self.clone(), hold.clone(), outcome.clone());
        let release = move || {
            let done = holds.try_release(&own, false);
            holds.released(&own, user, &mut lock(&told), done);
        };
        match apart("willow-agent-release", release) {
            Ok(None) => {}
            Ok(Some(thread)) => {
                let mut outcome = lock(&outcome);
                if matches!(*outcome, Outcome::Awaited) {
                    *lock(&self.left).entry(user).or_default() += 1;
                    *outcome = Outcome::Counted;
                }
                lock(&self.waiting).push(thread);
            }
            Err(error) => self.released(hold, user, &mut lock(&outcome), Err(error)),
        }
    }

    /// Whether a file could be released. Where not it counts for its user, and is tried again.
    fn released(&self, hold: &Arc<Hold>, user: u32, outcome: &mut Outcome, done: std::io::Result<()>) {
        match (std::mem::replace(outcome, Outcome::Known), done) {
            (Outcome::Counted, Ok(())) => self.count_off(user),
            (_, Ok(())) => {}
            (Outcome::Counted, Err(error)) => self.stay(hold, user, &error),
            (_, Err(error)) => {
                self.defer(hold, user);
                self.complain(&error);
            }
        }
    }

    /// Who gives back what the kernel has waited with, and is through.
    pub fn through(&self) -> Vec<JoinHandle<()>> {
        lock(&self.waiting).extract_if(.., |thread| thread.is_finished()).collect()
    }

    fn stay(&self, hold: &Arc<Hold>, user: u32, error: &std::io::Error) {
        lock(&self.stuck).push((hold.clone(), user));
        self.complain(error);
    }

    fn complain(&self, error: &std::io::Error) {
        static SAID: Seldom = Seldom::new();
        if SAID.is_due() {
            let left: usize = self.left().values().sum();
            tracing::error!(
                "{left} files are still immutable, and are tried again (chattr -i); the last of them: {error}"
            );
        }
    }

    /// An error: it could not be thawed, and is as it was. `waits`: for leases of its user ([`Thaw`]).
    fn try_release(&self, hold: &Hold, waits: bool) -> std::io::Result<()> {
        let mut phase = lock(&hold.phase);
        // Nobody else's count falls meanwhile to be the last: that takes the phase's lock.
        let is_last = lock(&self.all).get(&hold.key).is_some_and(|entry| entry.users == 1);
        if is_last && let Phase::Frozen(kept) = &mut *phase {
            self.thaw(hold, kept, waits)?;
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
        Ok(())
    }

    /// Releases a file later ([`Holds::retry`]), which counts for this user until then.
    pub fn defer(&self, hold: &Arc<Hold>, user: u32) {
        *lock(&self.left).entry(user).or_default() += 1;
        lock(&self.stuck).push((hold.clone(), user));
    }

    /// Users for whom something of these could not be thawed before.
    pub fn stuck(&self, which: impl Fn(Key) -> bool) -> BTreeSet<u32> {
        lock(&self.stuck).iter().filter(|(hold, _)| which(hold.key)).map(|(_, user)| *user).collect()
    }

    /// Releases what could not be thawed before, of these that a user had last. What waits behind one with which the kernel waits is left for
    /// another thread that calls this.
    pub fn retry(&self, user: u32, which: impl Fn(Key) -> bool) {
        let is_such = |(hold, other): &(Arc<Hold>, u32)| *other == user && which(hold.key);
        let now: Vec<Key> = lock(&self.stuck).iter().filter(|it| is_such(it)).map(|(hold, _)| hold.key).collect();
        for key in now {
            let next = {
                let mut stuck = lock(&self.stuck);
                let at = stuck.iter().position(|it| it.0.key == key && is_such(it));
                at.map(|at| stuck.remove(at))
            };
            if let Some((hold, user)) = next {
                match self.try_release(&hold, true) {
                    Ok(()) => self.count_off(user),
                    Err(error) => self.stay(&hold, user, &error),
                }
            }
        }
    }

    fn count_off(&self, user: u32) {
        let mut left = lock(&self.left);
        if let Some(count) = left.get_mut(&user) {
            *count -= 1;
            if *count == 0 {
                left.remove(&user);
            }
        }
    }

    /// How many files of each user wait to be released, each with a descriptor.
    pub fn left(&self) -> BTreeMap<u32, usize> {
        lock(&self.left).clone()
    }

    fn thaw(&self, hold: &Hold, kept: &mut Kept, waits: bool) -> std::io::Result<()> {
        let descriptor = kept.descriptor.clone();
        let file = descriptor.as_fd();
        // What the page cache holds is old by now.
        let is_dropped = pages::drop_all(file);
        self.faults.step();
        let is_written = hold.written.load(Ordering::Relaxed);
        if !kept.was_immutable {
            let is_stale = is_written && !is_dropped && !self.faults.has(Fault::KeepsPages);
            // While there is a lease nobody writes, this agent neither. Who waits for its end had opened the file before it was immutable, or root
            // has taken the attribute off: that one's writes are refused while it is immutable, and may be lost while it is append-only.
            Thaw { waits, ..self.thaw_of(hold.key, file) }.run(is_stale, || {
                kept.gave_lease_up = true;
                lease::give_up(file);
            })?;
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
        while self.faults.has(Fault::LeaseKept) {
            std::thread::sleep(PROOF_LOOK);
        }
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
        self.all_that(Hold::is_broken)
    }

    /// Files that have lost their last name since they were frozen, and that somebody has still.
    pub fn nameless(&self) -> Vec<Key> {
        let mut found = self.all_that(Hold::is_nameless);
        if !found.is_empty() {
            let stuck: BTreeSet<Key> = lock(&self.stuck).iter().map(|(hold, _)| hold.key).collect();
            found.retain(|key| !stuck.contains(key));
        }
        found
    }

    fn all_that(&self, are: impl Fn(&Hold) -> bool) -> Vec<Key> {
        let all: Vec<Arc<Hold>> = lock(&self.all).values().map(|entry| entry.hold.clone()).collect();
        all.iter().filter(|hold| are(hold)).map(|hold| hold.key).collect()
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
