//! Closes sockets in threads that nobody waits for. A socket's queue may hold descriptors that its peer made, and the last close of such a
//! descriptor may wait for as long as the peer likes: a TCP socket with `SO_LINGER` does for the data that its other end does not take.
//!
//! What always holds:
//! - who gives a socket away does not wait, and its peer sees at once that the connection is over;
//! - a close that takes longer than [`SIGNAL_AFTER`] is sent a signal, again and again: that ends the wait of a TCP socket. Descriptors in a
//!   queue were never this process', so that no file system's `flush` runs for them, which a signal would not end;
//! - each close has a thread of its own while there are at most [`THREADS_MAX`]; what is given away beyond waits for one.

use rustix::net::Shutdown;
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::os::unix::thread::JoinHandleExt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time after which a close is sent a signal.
const SIGNAL_AFTER: Duration = Duration::from_millis(20);
/// Most threads that close.
const THREADS_MAX: usize = 2048;
/// Threads that stay when there is nothing to close.
const IDLE_MAX: usize = 1;
/// A thread that closes needs next to none.
const STACK_BYTES: usize = 64 << 10;

/// The signal that ends waits: the first one for applications that nobody has a handler for; `None` where there is none.
static SIGNAL: OnceLock<Option<libc::c_int>> = OnceLock::new();

extern "C" fn nothing(_: libc::c_int) {}

fn signal() -> Option<libc::c_int> {
    *SIGNAL.get_or_init(|| (libc::SIGRTMIN()..=libc::SIGRTMAX()).find(|number| handle(*number)))
}

/// Gives a signal an empty handler; false where it has another already.
fn handle(number: libc::c_int) -> bool {
    // SAFETY: all zeroes is a value of this structure; the kernel writes the second one; the handler does nothing, which is always safe.
    unsafe {
        let mut known: libc::sigaction = std::mem::zeroed();
        let mut ours: libc::sigaction = std::mem::zeroed();
        ours.sa_sigaction = nothing as *const () as libc::sighandler_t;
        // What can go on after a signal does.
        ours.sa_flags = libc::SA_RESTART;
        libc::sigaction(number, std::ptr::null(), &raw mut known) == 0
            && known.sa_sigaction == libc::SIG_DFL
            && libc::sigaction(number, &raw const ours, std::ptr::null_mut()) == 0
    }
}

/// Lets [`interrupt`] reach this thread, whatever signals the one blocked that started it.
pub fn interruptible() {
    let Some(signal) = signal() else { return };
    // SAFETY: the set is made before it is read, and changes this thread's mask alone.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut());
    }
}

/// Ends a wait of a thread that a signal ends, in a close say; what can be gone on with is.
pub fn interrupt<T>(thread: &JoinHandle<T>) {
    // SAFETY: the thread is neither joined nor detached while there is a handle of it.
    unsafe { send(thread.as_pthread_t()) }
}

/// # Safety
/// The thread has not been joined, nor has it ended where it is detached.
unsafe fn send(thread: libc::pthread_t) {
    if let Some(signal) = signal() {
        // SAFETY: as the caller says.
        unsafe { libc::pthread_kill(thread, signal) };
    }
}

/// Closes sockets, until it is dropped and all are closed.
#[derive(Debug)]
pub(crate) struct Closer {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// There is something to close.
    work: Condvar,
    /// A thread closes something.
    busy: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<(OwnedFd, Arc<()>)>,
    threads: usize,
    idle: usize,
    next: u64,
    /// Threads that close something, and since when.
    closing: BTreeMap<u64, (libc::pthread_t, Instant)>,
    is_over: bool,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close_all(&self) {
        interruptible();
        // SAFETY: a call without arguments.
        let own = unsafe { libc::pthread_self() };
        let mut state = self.state();
        loop {
            if let Some((socket, open)) = state.waiting.pop_front() {
                state.next += 1;
                let number = state.next;
                state.closing.insert(number, (own, Instant::now()));
                self.busy.notify_one();
                drop(state);
                drop(socket);
                drop(open);
                state = self.state();
                state.closing.remove(&number);
            } else if state.is_over || state.idle >= IDLE_MAX {
                state.threads -= 1;
                self.busy.notify_one();
                return;
            } else {
                state.idle += 1;
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
            }
        }
    }

    /// Signals those that wait.
    fn watch(&self) {
        let mut state = self.state();
        loop {
            if !state.closing.is_empty() {
                (state, _) = self.busy.wait_timeout(state, SIGNAL_AFTER).unwrap_or_else(PoisonError::into_inner);
                for (thread, _) in state.closing.values().filter(|(_, since)| since.elapsed() >= SIGNAL_AFTER) {
                    // SAFETY: it takes itself off the list, under this lock, before it ends.
                    unsafe { send(*thread) };
                }
            } else if state.is_over && state.threads == 0 {
                return;
            } else {
                state = self.busy.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

impl Drop for Closer {
    fn drop(&mut self) {
        self.shared.state().is_over = true;
        self.shared.work.notify_all();
        self.shared.busy.notify_all();
    }
}

impl Closer {
    pub(crate) fn new() -> std::io::Result<Closer> {
        signal();
        let state = Mutex::new(State { threads: 1, ..State::default() });
        let shared = Arc::new(Shared { state, work: Condvar::new(), busy: Condvar::new() });
        // Dropped with an error, so that a thread which there is ends.
        let closer = Closer { shared: shared.clone() };
        start("willow-close", move || shared.close_all())?;
        let shared = closer.shared.clone();
        start("willow-close-look", move || shared.watch())?;
        Ok(closer)
    }

    /// Closes a socket, and drops what goes with it when it is closed.
    pub(crate) fn close(&self, socket: OwnedFd, open: Arc<()>) {
        // Nothing more comes into its queue.
        let _ = rustix::net::shutdown(&socket, Shutdown::Both);
        let more = {
            let mut state = self.shared.state();
            state.waiting.push_back((socket, open));
            let more = state.waiting.len() > state.idle && state.threads < THREADS_MAX;
            state.threads += usize::from(more);
            more
        };
        self.shared.work.notify_one();
        let shared = self.shared.clone();
        if more && start("willow-close", move || shared.close_all()).is_err() {
            // One that there is closes it.
            self.shared.state().threads -= 1;
        }
    }
}

fn start(name: &str, what: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).stack_size(STACK_BYTES).spawn(what).map(drop)
}

/// How a socket that has been dropped is closed: [`Unclosed::is_open`] until it is.
#[derive(Clone, Debug)]
pub struct Unclosed(Weak<()>);

impl Unclosed {
    pub(crate) fn of(open: Option<&Arc<()>>) -> Unclosed {
        Unclosed(open.map_or_else(Weak::new, Arc::downgrade))
    }

    /// True while the socket is open where its close may wait; never where it cannot.
    pub fn is_open(&self) -> bool {
        self.0.strong_count() > 0
    }
}
