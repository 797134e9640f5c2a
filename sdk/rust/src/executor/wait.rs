//! The waits of handlers: from an import that may complete later to its result.
//!
//! What always holds: a wait's record is taken from the moment at which the import has said that it is pending until its result was
//! fetched, or has come for nobody.

use core::cell::Cell;
use core::future::Future;
use core::marker::PhantomPinned;
use core::pin::Pin;
use core::ptr::NonNull;
use core::task::{Context, Poll};

use super::{Table, Thread, WAITS_MAX, try_table, with_running};
use crate::sys;

/// An import that may complete later.
pub(crate) trait Operation {
    /// What the handler gets.
    type Output;
    /// Whether the import may use local memory until it completes.
    const LOCAL: bool;
    /// Calls the import.
    fn issue(&mut self, wait: u32) -> Issued<Self::Output>;
    /// Turns `complete`'s result into the output.
    fn completed(&mut self, result: i64) -> Self::Output;
}

/// What came of [`Operation::issue`].
pub(crate) enum Issued<T> {
    /// Finished at once.
    Done(T),
    /// `complete` will come.
    Pending,
}

const IDLE: u32 = u32::MAX;
const FINISHED: u32 = u32::MAX - 1;

/// The future of an operation: issued when first polled; where the import finishes at once the handler does not wait.
///
/// It may borrow local buffers which an import writes to later, and so must not be dropped while it is pending: an app that
/// does so is ended (operations without local buffers are merely forgotten). Leaking one while it is pending and using its
/// buffer again is the one thing that the types cannot prevent; it takes an allocator and `mem::forget` on purpose.
pub(crate) struct Wait<O: Operation> {
    operation: O,
    /// The wait's number, or [`IDLE`] or [`FINISHED`].
    wait: u32,
    _pinned: PhantomPinned,
}

impl<O: Operation> Wait<O> {
    #[inline]
    pub(crate) fn new(operation: O) -> Wait<O> {
        Wait { operation, wait: IDLE, _pinned: PhantomPinned }
    }

    /// Cancels it, where it is pending: its result will come nevertheless.
    pub(crate) fn cancel(&self) {
        if self.wait != IDLE && self.wait != FINISHED {
            cancel_waits(1 << (self.wait % WAITS_MAX as u32));
        }
    }
}

impl<O: Operation> Future for Wait<O> {
    type Output = O::Output;

    #[inline(always)]
    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<O::Output> {
        // SAFETY: nothing is moved out of it.
        let this = unsafe { self.get_unchecked_mut() };
        if this.wait == IDLE {
            let wait = next_wait();
            return match this.operation.issue(wait) {
                Issued::Done(output) => {
                    this.wait = FINISHED;
                    Poll::Ready(output)
                }
                Issued::Pending => {
                    begin_wait(wait);
                    this.wait = wait;
                    Poll::Pending
                }
            };
        }
        match end_wait(this.wait) {
            Some(result) => {
                this.wait = FINISHED;
                // SAFETY: the running thread's, which is not changed before this returns.
                Poll::Ready(this.operation.completed(unsafe { result.as_ref() }.get()))
            }
            None => Poll::Pending,
        }
    }
}

impl<O: Operation> Drop for Wait<O> {
    #[inline]
    fn drop(&mut self) {
        if self.wait != IDLE && self.wait != FINISHED {
            abandon_wait(self.wait, O::LOCAL);
        }
    }
}

/// A number for a wait of the running thread, not taken yet.
#[inline(always)]
pub(crate) fn next_wait() -> u32 {
    with_running(|thread| {
        let record = thread.taken.get().trailing_ones();
        if record >= WAITS_MAX as u32 {
            too_many_waits();
        }
        thread.number.get() << 16 | record
    })
}

/// Waits until the running thread may have one more operation pending. The end of any that it has polls it again, as a whole.
pub(crate) fn free_wait() -> impl Future<Output = ()> {
    core::future::poll_fn(|_| {
        let taken = with_running(|thread| thread.taken.get().count_ones());
        if taken < WAITS_MAX as u32 { Poll::Ready(()) } else { Poll::Pending }
    })
}

#[cold]
fn too_many_waits() -> ! {
    panic!("more than WAITS_MAX operations of one handler are pending");
}

#[cold]
fn no_such_wait() -> ! {
    panic!("a finished operation was polled, or one of another handler");
}

/// The thread and record bit of a wait's number.
#[inline(always)]
pub(super) fn record_of(table: &Table, wait: u32) -> (&Thread, u32) {
    match table.threads.get((wait >> 16) as usize) {
        Some(thread) if wait & 0xffff < WAITS_MAX as u32 => (thread, 1 << (wait % WAITS_MAX as u32)),
        _ => no_such_wait(),
    }
}

/// Takes a wait's record, of the running thread: `complete` will come.
#[inline(always)]
pub(crate) fn begin_wait(wait: u32) {
    with_running(|thread| thread.taken.set(thread.taken.get() | 1 << (wait % WAITS_MAX as u32)));
}

/// The records of the running thread for which somebody waits, one bit each.
pub(crate) fn waits_taken() -> u32 {
    with_running(|thread| thread.taken.get() & !thread.abandoned.get())
}

/// Cancels those of these waits of the running thread that have not ended.
#[cold]
pub(crate) fn cancel_waits(waits: u32) {
    let (number, token, waits) = with_running(|thread| {
        let pending = thread.taken.get() & !thread.done.get() & !thread.abandoned.get();
        (thread.number.get(), thread.token.get(), waits & pending)
    });
    for record in (0..WAITS_MAX as u32).filter(|record| waits >> record & 1 != 0) {
        // What cannot be cancelled goes on.
        sys::cancel(token, number << 16 | record);
    }
}

/// Gives a wait's record back, where its result is there, and the result.
#[inline(never)]
fn end_wait(wait: u32) -> Option<NonNull<Cell<i64>>> {
    with_running(|thread| {
        if wait >> 16 != thread.number.get() {
            no_such_wait();
        }
        let bit = 1 << (wait % WAITS_MAX as u32);
        if thread.done.get() & bit == 0 {
            return None;
        }
        thread.done.set(thread.done.get() & !bit);
        thread.taken.set(thread.taken.get() & !bit);
        Some(NonNull::from(&thread.results[wait as usize % WAITS_MAX]))
    })
}

/// The results of several waits of the running thread, once all are there: 0, or one that is an error. Until then the thread is
/// not polled for any of them, unless another set is being waited for already.
#[inline]
pub(crate) fn gather(waits: u32) -> Option<i64> {
    with_running(|thread| {
        if thread.done.get() & waits != waits {
            if thread.gathering.get() == 0 {
                thread.gathering.set(waits);
            }
            return None;
        }
        if thread.gathering.get() == waits {
            thread.gathering.set(0);
        }
        thread.done.set(thread.done.get() & !waits);
        thread.taken.set(thread.taken.get() & !waits);
        let (mut left, mut failed) = (waits, 0);
        while left != 0 {
            let result = thread.results[left.trailing_zeros() as usize % WAITS_MAX].get();
            if result != 0 {
                failed = result;
            }
            left &= left - 1;
        }
        Some(failed)
    })
}

/// The future of several waits of a thread is gone.
#[cold]
pub(crate) fn abandon(thread: u32, waits: u32, local: bool) {
    try_table(|table| {
        if let Some(thread) = table.threads.get(thread as usize)
            && thread.gathering.get() == waits
        {
            thread.gathering.set(0);
        }
    });
    for record in (0..WAITS_MAX as u32).filter(|record| waits >> record & 1 != 0) {
        abandon_wait(thread << 16 | record, local);
    }
}

/// The future of a wait is gone.
#[inline(never)]
fn abandon_wait(wait: u32, local: bool) {
    // Outside of a handler the instance itself is being dropped, after its host has drained its DMAs.
    try_table(|table| {
        let (thread, bit) = record_of(table, wait);
        if thread.done.get() & bit != 0 {
            thread.done.set(thread.done.get() & !bit);
            thread.taken.set(thread.taken.get() & !bit);
        } else if !local {
            thread.abandoned.set(thread.abandoned.get() | bit);
        } else {
            #[cfg(not(target_arch = "wasm32"))]
            if std::thread::panicking() {
                // The instance has ended and is kept until its DMAs are drained.
                return;
            }
            panic!("an operation with a local buffer was dropped while pending");
        }
    });
}
