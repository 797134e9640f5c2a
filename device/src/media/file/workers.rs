//! Threads that wait for the disk so that the device does not have to.
//!
//! What always holds:
//! - A lane has at most `threads_max` threads; they are started when work finds none idle, and cost no processor time
//!   while there is none. Work is started in the order in which it was given.
//! - Dropping a lane finishes all the work that it was given.
//! - A queue is bounded by what the store hands over: one job for each operation under way.
//! - Work that panics ends by itself: whoever waits for it is told that it failed ([`Panics::failed`]), its thread serves on, and what it
//!   panicked with goes on where the lane ends.
//!
//! The file store calls it.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Work for a lane.
pub type Work = Box<dyn FnOnce(&Panics) + Send>;

/// What work of a lane has panicked with first.
#[derive(Default)]
pub struct Panics(Mutex<Option<Box<dyn Any + Send>>>);

impl Panics {
    /// Does a part of some work; where it panics, it came to `failed`. What it was at must be sound after a panic at any point, as it is after
    /// an error there.
    pub fn failed<T>(&self, failed: T, part: impl FnOnce() -> T) -> T {
        catch_unwind(AssertUnwindSafe(part)).unwrap_or_else(|panic| {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
            failed
        })
    }
}

struct State {
    queue: VecDeque<Work>,
    idle: usize,
    closing: bool,
}

struct Shared {
    state: Mutex<State>,
    news: Condvar,
    panics: Panics,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, work: Work) {
        self.panics.failed((), || work(&self.panics));
    }
}

/// Threads for one sort of work.
pub struct Lane {
    name: &'static str,
    threads_max: usize,
    threads: Vec<JoinHandle<()>>,
    shared: Arc<Shared>,
}

impl Lane {
    pub fn new(name: &'static str, threads_max: usize) -> Lane {
        let state = State { queue: VecDeque::new(), idle: 0, closing: false };
        Lane {
            name,
            threads_max,
            threads: Vec::new(),
            shared: Arc::new(Shared { state: Mutex::new(state), news: Condvar::new(), panics: Panics::default() }),
        }
    }

    /// Hands work over.
    pub fn give(&mut self, work: Work) {
        let mut state = self.shared.lock();
        state.queue.push_back(work);
        let is_short = state.idle < state.queue.len();
        drop(state);
        self.shared.news.notify_one();
        if !is_short || self.threads.len() >= self.threads_max {
            return;
        }
        let shared = self.shared.clone();
        match std::thread::Builder::new().name(self.name.to_owned()).spawn(move || serve(&shared)) {
            Ok(thread) => self.threads.push(thread),
            Err(error) if self.threads.is_empty() => {
                // No thread at all: slow is better than never.
                tracing::warn!(lane = self.name, %error, "cannot start a thread; working in place");
                let work = self.shared.lock().queue.pop_front();
                if let Some(work) = work {
                    self.shared.run(work);
                }
            }
            Err(error) => tracing::debug!(lane = self.name, %error, "cannot start another thread"),
        }
    }
}

fn serve(shared: &Shared) {
    let mut state = shared.lock();
    loop {
        if let Some(work) = state.queue.pop_front() {
            drop(state);
            shared.run(work);
            state = shared.lock();
        } else if state.closing {
            return;
        } else {
            state.idle += 1;
            state = shared.news.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
        }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.shared.lock().closing = true;
        self.shared.news.notify_all();
        // All of them, before a panic goes on here.
        let ended: Vec<_> = self.threads.drain(..).map(JoinHandle::join).collect();
        let panic = self.shared.panics.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(panic) = ended.into_iter().find_map(Result::err).or(panic)
            && !std::thread::panicking()
        {
            resume_unwind(panic);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workers_panic_goes_on_where_the_lane_ends() {
        let mut lane = Lane::new("test", 2);
        lane.give(Box::new(|_| std::panic::panic_any("a defect of some work")));
        let ended = catch_unwind(AssertUnwindSafe(|| drop(lane)));
        assert_eq!(ended.expect_err("it goes on").downcast_ref(), Some(&"a defect of some work"));
    }
}
