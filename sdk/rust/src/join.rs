//! Several operations of one handler at the same time. All are polled whenever the handler is.

use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};

/// A future, then what it gave. Written by hand because arguments of an `async fn` are kept twice, and a thread's memory is
/// scarce.
enum Branch<F: Future> {
    /// Pinned while the whole is.
    Future(F),
    Output(F::Output),
    Taken,
}

impl<F: Future> Branch<F> {
    /// True once the output is there.
    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> bool {
        // SAFETY: the future is not moved: it is polled in place, and replacing it drops it there.
        let this = unsafe { self.get_unchecked_mut() };
        if let Branch::Future(future) = this {
            // SAFETY: pinned with the whole.
            match unsafe { Pin::new_unchecked(future) }.poll(context) {
                Poll::Ready(output) => *this = Branch::Output(output),
                Poll::Pending => return false,
            }
        }
        true
    }

    #[inline]
    fn take(self: Pin<&mut Self>) -> F::Output {
        // SAFETY: moves out an output, which is not pinned; a future is never taken.
        let this = unsafe { self.get_unchecked_mut() };
        if let Branch::Future(_) = this {
            panic!("a future was taken before it was ready");
        }
        match core::mem::replace(this, Branch::Taken) {
            Branch::Output(output) => output,
            _ => panic!("a joined future was polled after its end"),
        }
    }
}

struct Join<A: Future, B: Future>(Branch<A>, Branch<B>);

impl<A: Future, B: Future> Future for Join<A, B> {
    type Output = (A::Output, B::Output);

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // SAFETY: both branches are pinned with the whole.
        let (mut a, mut b) = unsafe {
            let this = self.get_unchecked_mut();
            (Pin::new_unchecked(&mut this.0), Pin::new_unchecked(&mut this.1))
        };
        let (a_ready, b_ready) = (a.as_mut().poll(context), b.as_mut().poll(context));
        if a_ready && b_ready { Poll::Ready((a.take(), b.take())) } else { Poll::Pending }
    }
}

struct JoinAll<F: Future, const COUNT: usize>([Branch<F>; COUNT]);

impl<F: Future, const COUNT: usize> Future for JoinAll<F, COUNT> {
    type Output = [F::Output; COUNT];

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // SAFETY: every branch is pinned with the whole.
        let branches = unsafe { &mut self.get_unchecked_mut().0 };
        let mut ready = true;
        for branch in branches.iter_mut() {
            // SAFETY: as above.
            ready &= unsafe { Pin::new_unchecked(branch) }.poll(context);
        }
        if !ready {
            return Poll::Pending;
        }
        // SAFETY: as above.
        Poll::Ready(core::array::from_fn(|index| unsafe { Pin::new_unchecked(&mut branches[index]) }.take()))
    }
}

/// Waits for both; they go on at the same time.
#[inline]
pub fn join<A: Future, B: Future>(a: A, b: B) -> impl Future<Output = (A::Output, B::Output)> {
    Join(Branch::Future(a), Branch::Future(b))
}

/// Waits for all; they go on at the same time. At most [`crate::WAITS_MAX`] operations can be pending in one handler.
pub fn join_all<F: Future, const COUNT: usize>(futures: [F; COUNT]) -> impl Future<Output = [F::Output; COUNT]> {
    JoinAll(futures.map(Branch::Future))
}
