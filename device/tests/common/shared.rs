//! A value that a test and what it has put into the device both hold: the device may move to another thread with its part.

use std::sync::{Arc, Mutex, MutexGuard};

#[derive(Default)]
pub struct Shared<T>(Arc<Mutex<T>>);

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Shared(self.0.clone())
    }
}

impl<T> Shared<T> {
    /// The value, for as long as the guard lives.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().expect("no holder has panicked")
    }
}

impl<T: Copy> Shared<T> {
    pub fn get(&self) -> T {
        *self.lock()
    }

    pub fn set(&self, value: T) {
        *self.lock() = value;
    }
}
