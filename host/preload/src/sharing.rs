//! What others come to share: the descriptions of open files, over fork, exec and sockets.
//!
//! What always holds:
//! - a child, and a program that is executed, find real descriptors: all files are given back before either is made;
//! - a description that another process has too stays with the kernel, in both, until it is closed. Positions and flags are then
//!   what the kernel makes of them;
//! - a file that one thread opens while another forks is taken for shared.

use crate::process::{DESCRIPTORS_MAX, Inside, Process, Tracked, enter};
use std::cell::Cell;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use willow_host::direct_io::Hold;

/// Forks and their like, as they begin and end.
#[derive(Default)]
pub struct Sharing {
    under_way: AtomicU32,
    /// Beginnings and ends.
    changes: AtomicU64,
}

/// When something was about to be opened; `None`: while a fork was under way.
#[derive(Clone, Copy)]
pub struct Since(Option<u64>);

impl Sharing {
    /// To be asked before something is opened.
    pub fn since(&self) -> Since {
        let changes = self.changes.load(Ordering::SeqCst);
        Since((self.under_way.load(Ordering::SeqCst) == 0).then_some(changes))
    }

    /// True where what was opened since then may have been inherited by somebody.
    pub fn has_happened(&self, since: Since) -> bool {
        since.0 != Some(self.changes.load(Ordering::SeqCst))
    }

    fn begin(&self) {
        self.under_way.fetch_add(1, Ordering::SeqCst);
        self.changes.fetch_add(1, Ordering::SeqCst);
    }

    fn end(&self) {
        self.changes.fetch_add(1, Ordering::SeqCst);
        self.under_way.fetch_sub(1, Ordering::SeqCst);
    }
}

thread_local! {
    /// This thread's fork has begun, in this process.
    static FORKING: Cell<Option<&'static Process>> = const { Cell::new(None) };
}

/// Has forks of the C library share what they share.
pub fn watch() {
    // SAFETY: the three are safe to run there: before the fork as in any call, behind it they touch two numbers.
    unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork), None) };
}

/// To be called before a child is made that has copies of all descriptors.
pub extern "C" fn before_fork() {
    // A fork in the handler of a signal that came amid a call of this library: what that call holds cannot be waited for.
    let Some((_inside, process)) = enter() else { return };
    process.sharing.begin();
    if !crate::planted("offset") {
        process.all().for_each(|(_, tracked)| tracked.keep());
    }
    FORKING.set(Some(process));
}

/// To be called in the parent behind it, also where it failed.
pub extern "C" fn after_fork() {
    if let Some(process) = FORKING.take() {
        process.sharing.end();
    }
}

/// All files are given back while one lives: another program is about to be started, here or in a child.
pub struct Starting {
    process: &'static Process,
    files: Vec<(c_int, Arc<Tracked>)>,
    holds: Vec<Hold>,
}

impl Starting {
    /// `None` where there is nothing to do.
    pub fn begin() -> Option<Starting> {
        let (_inside, process) = enter()?;
        process.sharing.begin();
        let files: Vec<_> = process.all().collect();
        let not_kept = files.iter().filter(|(_, tracked)| !tracked.description.is_kept());
        let holds = not_kept.map(|(_, tracked)| tracked.hold_for_others()).collect();
        Some(Starting { process, files, holds })
    }

    /// The program runs by now, in a child: what it has inherited is shared.
    pub fn inherited(&self) {
        let Some(_inside) = Inside::enter() else { return };
        for (descriptor, tracked) in &self.files {
            let flags = rustix::io::fcntl_getfd(crate::process::Raw(*descriptor));
            let is_closed = flags.is_ok_and(|flags| flags.contains(rustix::io::FdFlags::CLOEXEC));
            if !is_closed || SPAWNED_WITH.contains(*descriptor) {
                tracked.keep();
            }
        }
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        let _inside = Inside::enter();
        self.holds.clear();
        self.files.clear();
        self.process.sharing.end();
    }
}

/// Descriptors that the program has asked `posix_spawn` to duplicate for some child.
pub static SPAWNED_WITH: Descriptors = Descriptors([const { AtomicU64::new(0) }; DESCRIPTORS_MAX / 64]);

/// A set of descriptors.
pub struct Descriptors([AtomicU64; DESCRIPTORS_MAX / 64]);

impl Descriptors {
    fn place(&self, descriptor: c_int) -> Option<(&AtomicU64, u64)> {
        let number = usize::try_from(descriptor).ok()?;
        Some((self.0.get(number / 64)?, 1 << (number % 64)))
    }

    /// Adds one.
    pub fn insert(&self, descriptor: c_int) {
        if let Some((word, bit)) = self.place(descriptor) {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }

    fn contains(&self, descriptor: c_int) -> bool {
        self.place(descriptor).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
    }
}
