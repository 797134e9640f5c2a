//! Runs handlers of an FTL on one thread, interleaved by seed with each other and with the medium.

use super::{Medium, Random};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::task::Wake;
use alloc::vec::Vec;
use core::future::Future;
use core::pin::Pin;
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::{Context, Waker};

struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

struct Task<'a> {
    future: Pin<Box<dyn Future<Output = ()> + 'a>>,
    flag: Arc<Flag>,
    waker: Waker,
    is_background: bool,
}

/// Why a run stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// All tasks that are not in the background have ended.
    Done,
    /// The power went.
    Cut,
    /// Tasks wait, and nothing will wake them.
    Stuck,
}

/// Tasks that take turns by seed.
pub struct Executor<'a> {
    tasks: Vec<Task<'a>>,
    random: Random,
}

impl<'a> Executor<'a> {
    /// Without tasks.
    pub fn new(seed: u64) -> Executor<'a> {
        Executor { tasks: Vec::new(), random: Random(seed) }
    }

    /// Adds a task; the run ends when all of them have.
    pub fn spawn(&mut self, future: impl Future<Output = ()> + 'a) {
        self.add(Box::pin(future), false);
    }

    /// Adds a task that nobody waits for.
    pub fn spawn_background(&mut self, future: impl Future<Output = ()> + 'a) {
        self.add(Box::pin(future), true);
    }

    fn add(&mut self, future: Pin<Box<dyn Future<Output = ()> + 'a>>, is_background: bool) {
        let flag = Arc::new(Flag(AtomicBool::new(true)));
        self.tasks.push(Task { future, waker: flag.clone().into(), flag, is_background });
    }

    /// Runs until all tasks have ended, the power goes, or nothing moves any more.
    pub fn run(&mut self, medium: &Medium) -> Stop {
        self.run_until(medium, false)
    }

    /// Runs until nothing moves any more, background tasks included.
    pub fn settle(&mut self, medium: &Medium) -> Stop {
        self.run_until(medium, true)
    }

    fn run_until(&mut self, medium: &Medium, idle: bool) -> Stop {
        loop {
            if medium.is_cut() {
                return Stop::Cut;
            }
            if !idle && self.tasks.iter().all(|task| task.is_background) {
                return Stop::Done;
            }
            let ready = |task: &Task| task.flag.0.load(Ordering::Relaxed);
            let runnable = self.tasks.iter().filter(|task| ready(task)).count() as u64;
            let moves = runnable + u64::from(medium.has_work());
            if moves == 0 {
                return Stop::Stuck;
            }
            let chosen = self.random.below(moves);
            if chosen == runnable {
                medium.step(&mut self.random);
                continue;
            }
            let mut runnable = self.tasks.iter().enumerate().filter(|(_, task)| ready(task));
            let index = runnable.nth(chosen as usize).expect("counted above").0;
            let task = &mut self.tasks[index];
            task.flag.0.store(false, Ordering::Relaxed);
            let waker = task.waker.clone();
            if task.future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
                drop(self.tasks.swap_remove(index));
            }
        }
    }
}
