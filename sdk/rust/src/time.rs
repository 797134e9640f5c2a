//! What an app does in its own time: sleeping, giving up what takes too long, work in the background (docs/abi.md, Time of its own).

use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};

use crate::executor::{Issued, Operation, Wait, cancel_waits, waits_taken};
use crate::{Error, sys};

/// Waits for so many ns of the device's clock. Other handlers of the app run meanwhile; the thread stays taken.
pub fn sleep_ns(duration_ns: u64) -> impl Future<Output = Result<(), Error>> {
    Wait::new(Sleep { duration_ns })
}

/// Waits until others have had their turn: for work that takes long in itself.
pub fn yield_now() -> impl Future<Output = Result<(), Error>> {
    sleep_ns(0)
}

struct Sleep {
    duration_ns: u64,
}

impl Operation for Sleep {
    type Output = Result<(), Error>;
    const LOCAL: bool = false;

    fn issue(&mut self, wait: u32) -> Issued<Self::Output> {
        match sys::sleep(self.duration_ns, wait) {
            sys::DONE => Issued::Done(Ok(())),
            sys::PENDING => Issued::Pending,
            error => Issued::Done(Err(Error::from_code(error.into()))),
        }
    }

    fn completed(&mut self, result: i64) -> Self::Output {
        if result < 0 { Err(Error::from_code(result)) } else { Ok(()) }
    }
}

/// Runs a future; once that has taken `duration_ns`, what it waits for is cancelled, so that its operations end with
/// [`Error::Cancelled`]. What can be cancelled is in docs/abi.md; all else goes on, and is waited for.
pub fn cancel_after<F: Future>(duration_ns: u64, future: F) -> impl Future<Output = F::Output> {
    CancelAfter { future, sleep: Wait::new(Sleep { duration_ns }), waits: 0, over: false }
}

struct CancelAfter<F> {
    future: F,
    sleep: Wait<Sleep>,
    /// Records of the thread that the future has taken, one bit each.
    waits: u32,
    over: bool,
}

impl<F: Future> Future for CancelAfter<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        // SAFETY: neither future is moved out of it, and both are polled pinned alone.
        let this = unsafe { self.get_unchecked_mut() };
        let before = waits_taken();
        // SAFETY: as above.
        let polled = unsafe { Pin::new_unchecked(&mut this.future) }.poll(context);
        let after = waits_taken();
        // What it waits for now: records that it gave back may be another's.
        this.waits = (this.waits | (after & !before)) & after;
        if let Poll::Ready(output) = polled {
            if !this.over {
                this.sleep.cancel();
            }
            return Poll::Ready(output);
        }
        if this.over {
            // What it began after its time is up goes the same way.
            cancel_waits(this.waits);
            return Poll::Pending;
        }
        // SAFETY: as above.
        if unsafe { Pin::new_unchecked(&mut this.sleep) }.poll(context).is_ready() {
            this.over = true;
            cancel_waits(this.waits);
        }
        Poll::Pending
    }
}

/// Begins a handler of this app on this SPU that belongs to no request, with `argument` as its 8 inline argument bytes. Nobody waits for it, and
/// it ends with this version of the app, at whatever it waits for then.
pub fn background(handler: u8, argument: u64) -> Result<(), Error> {
    match sys::background(handler.into(), argument) {
        sys::DONE => Ok(()),
        error => Err(Error::from_code(error.into())),
    }
}
