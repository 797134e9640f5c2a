//! Waiting among handlers of one FTL, with nothing but standard wakers: the SDK's executor and the tests' both drive it.
//!
//! What always holds: a lock is served in the order of asking; who waits for an event is woken by the next [`Event::notify`]. The number of
//! waiters is bounded by the number of handlers. A future that waits for a lock is not dropped before it has it: handlers are not cancelled.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::future::{Future, poll_fn};
use core::pin::Pin;
use core::task::{Poll, Waker};

/// Something that others announce: `while !condition() { event.wait().await }`.
#[derive(Default)]
pub struct Event {
    generation: Cell<u64>,
    waiters: RefCell<Vec<Waker>>,
}

impl Event {
    /// Waits for the next [`Event::notify`].
    pub fn wait(&self) -> impl Future<Output = ()> + '_ {
        let begun = self.generation.get();
        poll_fn(move |context| {
            if self.generation.get() != begun {
                return Poll::Ready(());
            }
            let mut waiters = self.waiters.borrow_mut();
            if !waiters.iter().any(|waker| waker.will_wake(context.waker())) {
                waiters.push(context.waker().clone());
            }
            Poll::Pending
        })
    }

    /// Ends the waiting of all that wait.
    pub fn notify(&self) {
        self.generation.set(self.generation.get() + 1);
        for waker in self.waiters.take() {
            waker.wake();
        }
    }
}

/// A lock that is held across waits, served in order.
#[derive(Default)]
pub struct Lock {
    next_ticket: Cell<u64>,
    serving: Cell<u64>,
    waiters: RefCell<VecDeque<(u64, Waker)>>,
}

/// Holds a [`Lock`] until dropped.
pub struct Guard<'a>(&'a Lock);

impl Lock {
    /// Waits for its turn.
    pub async fn lock(&self) -> Guard<'_> {
        let ticket = self.next_ticket.get();
        self.next_ticket.set(ticket + 1);
        poll_fn(|context| {
            let mut waiters = self.waiters.borrow_mut();
            let place = waiters.iter().position(|waiter| waiter.0 == ticket);
            if self.serving.get() == ticket {
                place.map(|place| waiters.remove(place));
                return Poll::Ready(());
            }
            match place {
                Some(place) => waiters[place].1.clone_from(context.waker()),
                None => waiters.push_back((ticket, context.waker().clone())),
            }
            Poll::Pending
        })
        .await;
        Guard(self)
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.0.serving.set(self.0.serving.get() + 1);
        if let Some((_, waker)) = self.0.waiters.borrow().iter().find(|waiter| waiter.0 == self.0.serving.get()) {
            waker.wake_by_ref();
        }
    }
}

/// Waits for all; they go on at the same time.
pub async fn join_all<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut futures: Vec<Pin<Box<F>>> = futures.map(Box::pin).collect();
    let mut outputs: Vec<Option<F::Output>> = futures.iter().map(|_| None).collect();
    poll_fn(|context| {
        let mut ready = true;
        for (future, output) in futures.iter_mut().zip(&mut outputs).filter(|(_, output)| output.is_none()) {
            match future.as_mut().poll(context) {
                Poll::Ready(value) => *output = Some(value),
                Poll::Pending => ready = false,
            }
        }
        if ready { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    outputs.into_iter().flatten().collect()
}
