//! The executor's parts: tasks, and the queue of those that are to be polled.
//!
//! What always holds: tasks are polled in the order in which they were woken, one at a time, by the simulation's thread. A task is woken
//! as often as its wakers say; polling once too often is harmless.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Wake, Waker};

/// Tasks that are to be polled.
#[derive(Default)]
pub(crate) struct Ready(Mutex<VecDeque<u32>>);

impl Ready {
    pub fn push(&self, task: u32) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push_back(task);
    }
    pub fn pop(&self) -> Option<u32> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}

pub(crate) struct TaskWaker {
    pub task: u32,
    pub ready: Arc<Ready>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.ready.push(self.task);
    }
    fn wake_by_ref(self: &Arc<Self>) {
        self.ready.push(self.task);
    }
}

/// A task.
pub(crate) struct Task {
    pub name: String,
    pub future: Pin<Box<dyn Future<Output = ()>>>,
    pub waker: Waker,
}
