//! Freezing of file systems (fsfreeze, snapshots of dm): it waits until nothing can be written past the file system.
//!
//! A thread waits in `splice` from an empty pipe into a nameless file on the file system. It holds the kernel's protection against
//! freezing meanwhile (`sb_start_write`), so that whoever freezes waits for it. Another thread tries the same without waiting, again and
//! again: while somebody waits to freeze, and while it is frozen, that does not return. Nothing else tells of it beforehand.
//!
//! What always holds:
//! - permissions to write in a file system are there only while a [`Watch`] of it is, and while its protection is held;
//! - the protection is let go when the device has answered the revocation of all of them, by calls that touch no file system;
//! - a file system that cannot be watched is not written past;
//! - one thread a file system waits for what is frozen; nobody else waits for it here, and nobody for long.

use super::{Refusal, lock};
use rustix::fs::{Mode, OFlags};
use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Between two tries.
const PROBE: Duration = Duration::from_millis(20);
/// A try that takes longer is looked at.
const PROBE_MAX: Duration = Duration::from_millis(20);
/// A try that takes so long means a freeze, whatever its thread waits for.
const PROBE_LIMIT: Duration = Duration::from_secs(1);
/// How long a file system may take until it is watched: else it is frozen.
const BEGIN_MAX: Duration = Duration::from_secs(2);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    Beginning,
    Watched,
    /// Somebody freezes it: nothing is granted, and what was is being revoked.
    Freezing,
    /// Nothing can be written past it; it is frozen, or will be.
    LetGo,
    /// Over, or it could not be begun, for this reason.
    Ended(String),
}

struct Inner {
    device: u64,
    phase: Mutex<Phase>,
    changed: Condvar,
    /// Since when a try has been under way.
    probing: Mutex<Option<Instant>>,
    /// The thread that tries.
    thread: AtomicU32,
    /// Its end is the end of the protection.
    holder: Mutex<Option<OwnedFd>>,
    /// Permissions that are being installed or revoked just now.
    under_way: AtomicUsize,
    /// Nobody needs it any more.
    is_left: AtomicBool,
}

fn pipe() -> Result<(OwnedFd, OwnedFd), String> {
    let (reader, writer) = std::io::pipe().map_err(|error| error.to_string())?;
    Ok((reader.into(), writer.into()))
}

/// A file system that is watched: as long as one of these is there.
pub(super) struct Watch(Arc<Inner>);

/// Something is being installed or revoked: a freeze waits for its end.
pub(super) struct UnderWay(Arc<Inner>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.is_left.store(true, Ordering::SeqCst);
        let mut phase = lock(&self.0.phase);
        if *phase == Phase::Watched {
            *phase = Phase::Ended(String::new());
        }
        drop(lock(&self.0.holder).take());
    }
}

impl Watch {
    /// Begins something that a freeze has to wait for. An error: it is being frozen.
    pub fn begin(&self) -> Result<UnderWay, Refusal> {
        self.0.under_way.fetch_add(1, Ordering::SeqCst);
        let under_way = UnderWay(self.0.clone());
        match &*lock(&self.0.phase) {
            Phase::Watched => Ok(under_way),
            _ => Err(Refusal::Frozen),
        }
    }

    /// The same of a revocation, which is done at all times.
    pub fn begin_revoking(&self) -> UnderWay {
        self.0.under_way.fetch_add(1, Ordering::SeqCst);
        UnderWay(self.0.clone())
    }
}

/// One of them: by whoever needs it, and by its threads.
type Watched = (Weak<Watch>, Arc<Inner>);

/// All file systems that are watched, by device.
#[derive(Default)]
pub(super) struct Freezes {
    all: Mutex<BTreeMap<u64, Watched>>,
}

impl Freezes {
    /// Watches a file system that is mounted at one of these places. Waits for a bounded time.
    pub fn watch(&self, device: u64, places: &[String]) -> Result<Arc<Watch>, Refusal> {
        let watch = {
            let mut all = lock(&self.all);
            let known = all.get(&device).map(|(watch, inner)| (watch.upgrade(), inner.clone()));
            let is_over = |inner: &Inner| matches!(&*lock(&inner.phase), Phase::Ended(_));
            match known {
                Some((Some(watch), inner)) if !is_over(&inner) => watch,
                // Its thread still waits for what is frozen.
                Some((None, inner)) if !is_over(&inner) => return Err(Refusal::Frozen),
                _ => {
                    let inner = Arc::new(Inner {
                        device,
                        phase: Mutex::new(Phase::Beginning),
                        changed: Condvar::new(),
                        probing: Mutex::default(),
                        thread: AtomicU32::new(0),
                        holder: Mutex::default(),
                        under_way: AtomicUsize::new(0),
                        is_left: AtomicBool::new(false),
                    });
                    let (probed, places) = (inner.clone(), places.to_vec());
                    let thread = std::thread::Builder::new().name("willow-agent-probe".to_owned());
                    let spawned = thread.spawn(move || probed.probe(&places));
                    spawned.map_err(|error| Refusal::Said(format!("no thread to watch its file system: {error}")))?;
                    let watch = Arc::new(Watch(inner.clone()));
                    all.insert(device, (Arc::downgrade(&watch), inner));
                    watch
                }
            }
        };
        watch.0.begun()?;
        Ok(watch)
    }

    /// True where a file system is being frozen, or is: what is written to it waits.
    pub fn is_frozen(&self, device: u64) -> bool {
        let all = lock(&self.all);
        let of_it = all.get(&device).map(|(_, inner)| inner.clone());
        drop(all);
        of_it.is_some_and(|inner| {
            let phase = lock(&inner.phase).clone();
            matches!(phase, Phase::Freezing | Phase::LetGo)
        })
    }

    /// Those that somebody freezes now: with [`Freezes::let_go`] to follow.
    pub fn noticed(&self) -> Vec<u64> {
        let all: Vec<Arc<Inner>> = lock(&self.all).values().map(|(_, inner)| inner.clone()).collect();
        all.iter().filter(|inner| inner.notice()).map(|inner| inner.device).collect()
    }

    /// True while permissions in it are being installed or revoked by others.
    pub fn is_busy(&self, device: u64) -> bool {
        lock(&self.all).get(&device).is_some_and(|(_, inner)| inner.under_way.load(Ordering::SeqCst) > 0)
    }

    /// Nothing can be written past a file system any more: who freezes it goes on.
    pub fn let_go(&self, device: u64) {
        if let Some(inner) = lock(&self.all).get(&device).map(|(_, inner)| inner.clone()) {
            let mut phase = lock(&inner.phase);
            if *phase == Phase::Freezing {
                *phase = Phase::LetGo;
            }
            drop(lock(&inner.holder).take());
        }
    }

    /// True where there is nothing to be looked at.
    pub fn is_empty(&self) -> bool {
        let mut all = lock(&self.all);
        all.retain(|_, (_, inner)| !matches!(&*lock(&inner.phase), Phase::Ended(_)));
        all.is_empty()
    }
}

impl Inner {
    /// Waits until it is watched.
    fn begun(&self) -> Result<(), Refusal> {
        let begun = Instant::now();
        let mut phase = lock(&self.phase);
        loop {
            match &*phase {
                Phase::Watched => return Ok(()),
                Phase::Beginning if begun.elapsed() < BEGIN_MAX => {
                    let waited = self.changed.wait_timeout(phase, PROBE);
                    phase = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
                Phase::Ended(why) if !why.is_empty() => return Err(Refusal::Said(why.clone())),
                _ => return Err(Refusal::Frozen),
            }
        }
    }

    /// The thread that tries.
    fn probe(&self, places: &[String]) {
        // SAFETY: a call without arguments.
        self.thread.store(unsafe { libc::gettid() } as u32, Ordering::Relaxed);
        let ended = match self.begin(places) {
            Ok((file, pipe)) => {
                self.go_on(&file, &pipe);
                String::new()
            }
            Err(why) => format!("it cannot be seen when its file system is frozen ({why})"),
        };
        *lock(&self.phase) = Phase::Ended(ended);
        self.changed.notify_all();
        drop(lock(&self.holder).take());
    }

    /// A nameless file there, and the end of an empty pipe, when the protection is held. Waits while the file system is frozen.
    fn begin(&self, places: &[String]) -> Result<(OwnedFd, (OwnedFd, OwnedFd)), String> {
        let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        let on_it = |file: &OwnedFd| rustix::fs::fstat(file).is_ok_and(|stat| stat.st_dev == self.device);
        let mut why = "it is not mounted in a place that the agent sees".to_owned();
        let opened = places.iter().find_map(|place| {
            let opened = rustix::fs::open(place, flags, Mode::RUSR);
            opened.inspect_err(|error| why = format!("{place}: {error}")).ok().filter(on_it)
        });
        let file = opened.ok_or(why)?;
        let say = |error: rustix::io::Errno| error.to_string();
        let (empty, holder) = pipe()?;
        let into = rustix::io::fcntl_dupfd_cloexec(&file, 0).map_err(say)?;
        let (begun, has_begun) = std::sync::mpsc::channel();
        let hold = move || {
            // SAFETY: a call without arguments.
            let _ = begun.send(unsafe { libc::gettid() });
            splice(&empty, &into, 0);
        };
        let thread = std::thread::Builder::new().name("willow-agent-freeze".to_owned()).spawn(hold);
        thread.map_err(|error| error.to_string())?;
        let holding = has_begun.recv().map_err(|error| error.to_string())?;
        // It holds the protection when it sleeps there.
        let since = Instant::now();
        while !waits_for_pipe(holding as u32) {
            if since.elapsed() > BEGIN_MAX {
                return Err("the thread that keeps it from being frozen does not get to it".to_owned());
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        let pipe = pipe()?;
        let mut phase = lock(&self.phase);
        if self.is_left.load(Ordering::SeqCst) {
            return Err("nobody waits for it any more".to_owned());
        }
        *lock(&self.holder) = Some(holder);
        *phase = Phase::Watched;
        self.changed.notify_all();
        Ok((file, pipe))
    }

    fn go_on(&self, file: &OwnedFd, (empty, _writer): &(OwnedFd, OwnedFd)) {
        loop {
            *lock(&self.probing) = Some(Instant::now());
            // Comes back at once, with nothing moved, or when it has been thawed.
            splice(empty, file, libc::SPLICE_F_NONBLOCK);
            *lock(&self.probing) = None;
            if *lock(&self.phase) != Phase::Watched {
                return;
            }
            std::thread::sleep(PROBE);
        }
    }

    /// True where somebody freezes it, once.
    fn notice(&self) -> bool {
        let Some(since) = *lock(&self.probing) else { return false };
        let waits = waits_for_thaw(since.elapsed(), || state_of(self.thread.load(Ordering::Relaxed)));
        let mut phase = lock(&self.phase);
        let is_noticed = *phase == Phase::Watched && waits;
        // The same try, still: it has not come back meanwhile.
        if !is_noticed || *lock(&self.probing) != Some(since) {
            return false;
        }
        *phase = Phase::Freezing;
        true
    }
}

/// Whether a try means that somebody freezes, by how long it takes and how its thread is. One that could run and does not, since the machine
/// is busy, does not wait for anything.
fn waits_for_thaw(takes: Duration, state: impl FnOnce() -> Option<char>) -> bool {
    takes >= PROBE_MAX
        && match state() {
            Some('D') => true,
            Some('R') => false,
            _ => takes >= PROBE_LIMIT,
        }
}

/// True where a thread of this process waits within `splice` for something to be in the pipe: not for a thaw, and nowhere before the call.
fn waits_for_pipe(thread: u32) -> bool {
    let call = std::fs::read_to_string(format!("/proc/self/task/{thread}/syscall")).unwrap_or_default();
    call.split(' ').next().and_then(|number| number.parse().ok()) == Some(libc::SYS_splice)
        && state_of(thread) == Some('S')
}

/// How a thread of this process is: running, sleeping, waiting for what nothing interrupts.
fn state_of(thread: u32) -> Option<char> {
    let text = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).ok()?;
    text.rsplit_once(") ")?.1.chars().next()
}

/// Moves what is in a pipe into a file; waits for something where nothing is there, unless the flags say otherwise.
fn splice(from: &OwnedFd, into: &OwnedFd, flags: libc::c_uint) {
    let nothing = std::ptr::null_mut();
    // SAFETY: two descriptors, no memory.
    unsafe { libc::splice(from.as_raw_fd(), nothing, into.as_raw_fd(), nothing, 1, flags) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_try_means_a_freeze_where_its_thread_waits_and_none_where_it_could_run() {
        let means = |millis, state| waits_for_thaw(Duration::from_millis(millis), || state);
        assert!(!means(19, Some('D')) && means(20, Some('D')));
        for state in [Some('S'), Some('T'), None] {
            assert!(!means(999, state) && means(1000, state));
        }
        assert!(!means(1000, Some('R')) && !means(60_000, Some('R')));
    }

    #[test]
    fn a_thread_waits_for_the_pipe_when_it_is_in_splice_and_only_then() {
        let (empty, writer) = pipe().unwrap();
        let into = std::fs::File::create("/dev/null").unwrap();
        let ((begun, has_begun), (goes_on, go_on)) = (std::sync::mpsc::channel(), std::sync::mpsc::channel());
        let thread = std::thread::spawn(move || {
            // SAFETY: a call without arguments.
            begun.send(unsafe { libc::gettid() } as u32).unwrap();
            // It sleeps here too, and has nothing of a file system.
            let () = go_on.recv().unwrap();
            splice(&empty, &into.into(), 0);
        });
        let number = has_begun.recv().unwrap();
        let asleep = || state_of(number) == Some('S');
        while !asleep() {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(!waits_for_pipe(number), "a thread that waits for something else");
        goes_on.send(()).unwrap();
        let begun = Instant::now();
        while !waits_for_pipe(number) {
            assert!(begun.elapsed() < Duration::from_secs(120), "it does not get there");
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(writer);
        thread.join().unwrap();
    }
}
