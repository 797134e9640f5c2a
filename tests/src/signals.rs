//! Signals with a handler, sent to a thread that waits.
//!
//! Who may call it: one test of a process at a time, since a handler is the process'.

use crate::stage::within_seconds;
use std::os::unix::thread::JoinHandleExt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

static HANDLED: AtomicU32 = AtomicU32::new(0);

extern "C" fn handler(_: libc::c_int) {
    HANDLED.fetch_add(1, Ordering::SeqCst);
}

fn handle(flags: libc::c_int) {
    // SAFETY: all zeroes is a valid structure; the handler only counts.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = flags;
        assert_eq!(libc::sigaction(libc::SIGUSR2, &raw const action, std::ptr::null_mut()), 0);
    }
}

/// Signals a thread, unless it has ended.
fn signal<T>(thread: &JoinHandle<T>) {
    std::thread::sleep(Duration::from_millis(150));
    if thread.is_finished() {
        return;
    }
    let before = HANDLED.load(Ordering::SeqCst);
    // SAFETY: the thread is not joined yet, so that it is there.
    unsafe { libc::pthread_kill(thread.as_pthread_t(), libc::SIGUSR2) };
    within_seconds("it is handled", || HANDLED.load(Ordering::SeqCst) > before || thread.is_finished());
}

/// Begins something in a thread that signals do not end: it gets a few while it is at it. Their handler is installed with these flags.
pub fn signalled<T: Send + 'static>(flags: libc::c_int, what: Box<dyn FnOnce() -> T + Send>) -> JoinHandle<T> {
    handle(flags);
    let thread = std::thread::spawn(what);
    (0..5).for_each(|_| signal(&thread));
    thread
}

/// Begins something in a thread that a signal is to end, and signals it until it has: the first one may come before it waits.
pub fn interrupted<T: Send + 'static>(what: Box<dyn FnOnce() -> T + Send>) -> T {
    handle(0);
    let thread = std::thread::spawn(what);
    while !thread.is_finished() {
        signal(&thread);
    }
    thread.join().expect("it does not panic")
}
