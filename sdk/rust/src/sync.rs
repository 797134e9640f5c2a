//! Waiting for other handlers of the same app on the same SPU. Between two waits a handler runs alone, so that plain `Cell`s in
//! the app's state need no lock; a [`Mutex`] is for what must hold across a wait.
//!
//! What always holds: the number of waiters is bounded by the number of threads; nobody is overtaken by a newcomer, and a
//! waiter gets its turn after each other waiting thread had at most one.

use core::cell::{Cell, UnsafeCell};
use core::future::Future;
use core::ops::{Deref, DerefMut};
use core::pin::Pin;
use core::task::{Context, Poll};

use crate::executor::{running, wake};

/// The thread after `last`, round and round, among those of which `threads` has the bit.
fn next_after(threads: u64, last: u32) -> u32 {
    let later = threads & !(u64::MAX >> (63 - last));
    if later != 0 { later.trailing_zeros() } else { threads.trailing_zeros() }
}

/// A lock that is held across waits.
pub struct Mutex<T> {
    locked: Cell<bool>,
    /// Threads that wait, one bit each.
    waiters: Cell<u64>,
    /// The thread whose turn it is.
    turn: Cell<u32>,
    value: UnsafeCell<T>,
}

impl<T> Mutex<T> {
    /// Unlocked.
    pub const fn new(value: T) -> Mutex<T> {
        Mutex { locked: Cell::new(false), waiters: Cell::new(0), turn: Cell::new(0), value: UnsafeCell::new(value) }
    }

    /// Waits until nobody else holds it. A handler that locks twice waits for itself for ever.
    pub fn lock(&self) -> Lock<'_, T> {
        Lock { mutex: self, waiting: None }
    }

    /// Locks it where that needs no waiting.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        if self.locked.get() || self.waiters.get() != 0 {
            return None;
        }
        self.locked.set(true);
        Some(MutexGuard { mutex: self })
    }

    fn pass_on(&self) {
        let waiters = self.waiters.get();
        if waiters != 0 {
            self.turn.set(next_after(waiters, self.turn.get()));
            wake(self.turn.get());
        }
    }
}

/// The future of [`Mutex::lock`].
#[must_use = "locks when awaited"]
pub struct Lock<'a, T> {
    mutex: &'a Mutex<T>,
    /// The thread, once it waits.
    waiting: Option<u32>,
}

impl<'a, T> Future for Lock<'a, T> {
    type Output = MutexGuard<'a, T>;

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<MutexGuard<'a, T>> {
        let mutex = self.mutex;
        let thread = running();
        let bit = 1 << thread;
        let waiters = mutex.waiters.get();
        let mine = waiters == 0 || waiters & bit != 0 && mutex.turn.get() == thread;
        if mutex.locked.get() || !mine {
            mutex.waiters.set(waiters | bit);
            self.waiting = Some(thread);
            return Poll::Pending;
        }
        mutex.locked.set(true);
        // Another future of this thread that waits too is polled after this one, and sets the bit again.
        mutex.waiters.set(waiters & !bit);
        if self.waiting.take().is_some() {
            wake(thread);
        }
        Poll::Ready(MutexGuard { mutex })
    }
}

impl<T> Drop for Lock<'_, T> {
    fn drop(&mut self) {
        let Some(thread) = self.waiting else { return };
        self.mutex.waiters.set(self.mutex.waiters.get() & !(1 << thread));
        // Other futures of this thread that wait set the bit again.
        wake(thread);
        if !self.mutex.locked.get() && self.mutex.turn.get() == thread {
            self.mutex.pass_on();
        }
    }
}

/// Holds a [`Mutex`] until dropped.
pub struct MutexGuard<'a, T> {
    mutex: &'a Mutex<T>,
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: `locked` is set, and only this guard was given out for it.
        unsafe { &*self.mutex.value.get() }
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and the guard is borrowed mutably.
        unsafe { &mut *self.mutex.value.get() }
    }
}

impl<T> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        self.mutex.locked.set(false);
        self.mutex.pass_on();
    }
}

/// Something that handlers wait for and another handler announces: `while !condition() { event.wait().await }`.
#[derive(Default)]
pub struct Event {
    generation: Cell<u32>,
    /// Threads that wait, one bit each.
    waiters: Cell<u64>,
}

impl Event {
    /// Nobody waits.
    pub const fn new() -> Event {
        Event { generation: Cell::new(0), waiters: Cell::new(0) }
    }

    /// Waits for the next [`Event::notify_all`].
    pub fn wait(&self) -> impl Future<Output = ()> + '_ {
        let mut begun = None;
        core::future::poll_fn(move |_| {
            let generation = self.generation.get();
            if *begun.get_or_insert(generation) != generation {
                return Poll::Ready(());
            }
            self.waiters.set(self.waiters.get() | 1 << running());
            Poll::Pending
        })
    }

    /// Ends the waiting of all that wait; they run before SPU-OS gets the processor back.
    pub fn notify_all(&self) {
        self.generation.set(self.generation.get().wrapping_add(1));
        let mut waiters = self.waiters.replace(0);
        while waiters != 0 {
            wake(waiters.trailing_zeros());
            waiters &= waiters - 1;
        }
    }
}
