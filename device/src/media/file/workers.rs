//! Threads that wait for the disk so that the device does not have to.
//!
//! What always holds:
//! - A lane has at most `threads_max` threads; they are started when work finds none idle, and cost no processor time
//!   while there is none. Work is started in the order in which it was given.
//! - Dropping a lane finishes all the work that it was given.
//! - A queue is bounded by what the store hands over: one job for each operation under way.
//!
//! The file store calls it.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;

/// Work for a lane.
pub type Work = Box<dyn FnOnce() + Send>;

struct State {
    queue: VecDeque<Work>,
    idle: usize,
    closing: bool,
}

struct Shared {
    state: Mutex<State>,
    news: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
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
            shared: Arc::new(Shared { state: Mutex::new(state), news: Condvar::new() }),
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
                    work();
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
            work();
            state = shared.lock();
        } else if state.closing {
            return;
        } else {
            state.idle += 1;
            state = shared.news.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
            state.idle -= 1;
        }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.shared.lock().closing = true;
        self.shared.news.notify_all();
        for thread in self.threads.drain(..) {
            // A worker's panic was printed where it happened; there is nobody left to tell.
            let _ = thread.join();
        }
    }
}
