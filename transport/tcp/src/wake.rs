//! How other threads wake the reactor: a flag that it looks at while it spins, and an eventfd for when it sleeps.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, eventfd};

/// The waker.
pub(crate) struct Wake {
    event: OwnedFd,
    woken: AtomicBool,
    sleeping: AtomicBool,
}

impl Wake {
    pub fn new() -> rustix::io::Result<Self> {
        let event = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Wake { event, woken: AtomicBool::new(false), sleeping: AtomicBool::new(false) })
    }

    /// Makes the reactor look around; from any thread.
    pub fn wake(&self) {
        self.woken.store(true, Ordering::SeqCst);
        if self.sleeping.load(Ordering::SeqCst) {
            // A full counter wakes as well; nothing else can fail.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }

    /// Whether someone woke since the last call.
    pub fn take(&self) -> bool {
        self.woken.load(Ordering::Relaxed) && self.woken.swap(false, Ordering::SeqCst)
    }

    /// Announces sleep; false where someone woke already, so that there is no sleeping now.
    pub fn prepare_sleep(&self) -> bool {
        self.sleeping.store(true, Ordering::SeqCst);
        if self.woken.load(Ordering::SeqCst) {
            self.sleeping.store(false, Ordering::SeqCst);
            return false;
        }
        true
    }

    /// After sleep.
    pub fn awake(&self) {
        self.sleeping.store(false, Ordering::SeqCst);
    }

    /// Empties the eventfd.
    pub fn drain(&self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.event, &mut count);
    }

    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
