//! Waiting for a condition among handlers that interleave at their waits on one SPU. There are no other threads: a lock is
//! a cell that is looked at and set between two waits.
//!
//! What always holds: whoever makes a condition true calls [`Waiters::changed`]; at most [`WAITERS_MAX`] handlers wait.

use core::cell::{Cell, RefCell};
use core::future::poll_fn;
use core::task::{Poll, Waker};

/// Most handlers that wait at one place: the app's threads on an SPU.
pub const WAITERS_MAX: usize = 32;

/// Handlers that wait for something to change.
pub struct Waiters {
    wakers: RefCell<[Option<Waker>; WAITERS_MAX]>,
    count: Cell<usize>,
}

impl Waiters {
    /// Nobody.
    pub const fn new() -> Self {
        Waiters { wakers: RefCell::new([const { None }; WAITERS_MAX]), count: Cell::new(0) }
    }

    /// Waits until `take` gives something; it is asked again after each [`Self::changed`].
    pub async fn until<T>(&self, mut take: impl FnMut() -> Option<T>) -> T {
        poll_fn(|context| match take() {
            Some(taken) => Poll::Ready(taken),
            None => {
                self.register(context.waker());
                Poll::Pending
            }
        })
        .await
    }

    fn register(&self, waker: &Waker) {
        let mut wakers = self.wakers.borrow_mut();
        let count = self.count.get();
        if wakers[..count].iter().flatten().any(|known| known.will_wake(waker)) {
            return;
        }
        assert!(count < WAITERS_MAX, "more handlers wait than there are threads");
        wakers[count] = Some(waker.clone());
        self.count.set(count + 1);
    }

    /// Lets all who wait look again.
    #[inline]
    pub fn changed(&self) {
        if self.count.get() != 0 {
            self.wake_all();
        }
    }

    #[cold]
    fn wake_all(&self) {
        let count = self.count.replace(0);
        for index in 0..count {
            let waker = self.wakers.borrow_mut()[index].take();
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }
}

impl Default for Waiters {
    fn default() -> Self {
        Self::new()
    }
}

/// A flag that one handler holds at a time.
pub struct Busy(Cell<bool>);

impl Busy {
    /// Free.
    pub const fn new() -> Self {
        Busy(Cell::new(false))
    }

    /// Takes it where it is free.
    pub fn try_hold<'a>(&'a self, waiters: &'a Waiters) -> Option<Held<'a>> {
        if self.0.replace(true) { None } else { Some(Held { flag: &self.0, waiters }) }
    }

    /// Waits for it.
    pub async fn hold<'a>(&'a self, waiters: &'a Waiters) -> Held<'a> {
        waiters.until(|| self.try_hold(waiters)).await
    }
}

impl Default for Busy {
    fn default() -> Self {
        Self::new()
    }
}

/// Holds a [`Busy`] flag until it is dropped.
pub struct Held<'a> {
    flag: &'a Cell<bool>,
    waiters: &'a Waiters,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.flag.set(false);
        self.waiters.changed();
    }
}

/// Number of read-write locks that the buckets share.
pub const STRIPES: usize = 64;
const WRITER: u8 = u8::MAX;

/// Read-write locks over buckets: bucket `n` is guarded by stripe `n % STRIPES`. A handler holds at most one of them. Where
/// a writer waits, new readers wait behind it.
pub struct Stripes {
    state: [Cell<u8>; STRIPES],
    writers_waiting: [Cell<u8>; STRIPES],
}

impl Stripes {
    /// All free.
    pub const fn new() -> Self {
        Stripes { state: [const { Cell::new(0) }; STRIPES], writers_waiting: [const { Cell::new(0) }; STRIPES] }
    }

    /// Shares a bucket with other readers, where that can be at once.
    #[inline]
    pub fn try_read<'a>(&'a self, bucket: u32, waiters: &'a Waiters) -> Option<StripeGuard<'a>> {
        let index = bucket as usize % STRIPES;
        let state = &self.state[index];
        if state.get() >= WRITER - 1 || self.writers_waiting[index].get() > 0 {
            return None;
        }
        state.set(state.get() + 1);
        Some(StripeGuard { state, waiters })
    }

    /// Whether somebody is changing a bucket: who is through before anything else runs needs to know no more.
    #[inline]
    pub fn is_changing(&self, bucket: u32) -> bool {
        self.state[bucket as usize % STRIPES].get() == WRITER
    }

    /// Shares a bucket with other readers.
    pub async fn read<'a>(&'a self, bucket: u32, waiters: &'a Waiters) -> StripeGuard<'a> {
        waiters.until(|| self.try_read(bucket, waiters)).await
    }

    /// Has a bucket alone, where that can be at once.
    #[inline]
    pub fn try_write<'a>(&'a self, bucket: u32, waiters: &'a Waiters) -> Option<StripeGuard<'a>> {
        let state = &self.state[bucket as usize % STRIPES];
        if state.get() != 0 {
            return None;
        }
        state.set(WRITER);
        Some(StripeGuard { state, waiters })
    }

    /// Has a bucket alone.
    pub async fn write<'a>(&'a self, bucket: u32, waiters: &'a Waiters) -> StripeGuard<'a> {
        if let Some(guard) = self.try_write(bucket, waiters) {
            return guard;
        }
        let waiting = &self.writers_waiting[bucket as usize % STRIPES];
        waiting.set(waiting.get() + 1);
        let guard = waiters.until(|| self.try_write(bucket, waiters)).await;
        waiting.set(waiting.get() - 1);
        guard
    }
}

impl Default for Stripes {
    fn default() -> Self {
        Self::new()
    }
}

/// A share of a stripe, or all of it.
pub struct StripeGuard<'a> {
    state: &'a Cell<u8>,
    waiters: &'a Waiters,
}

impl Drop for StripeGuard<'_> {
    fn drop(&mut self) {
        let state = self.state.get();
        self.state.set(if state == WRITER { 0 } else { state - 1 });
        self.waiters.changed();
    }
}
