//! The two rings of an endpoint's memory, apart from where the memory lies: what each end writes, reads and believes, and in
//! which order.
//!
//! ```text
//! host    submits commands, takes completions, sleeps
//! device  takes commands, puts completions, sleeps
//! ```
//!
//! What always holds:
//! - an entry is published by its first word, which is stored last (release) and loaded first (acquire);
//! - an entry is written again only after the other end has shown that it took it (release, acquire);
//! - who sees the completion of a command sees the command's slots as free;
//! - before an end sleeps it sets its flag, fences and looks once more; before an end decides not to ring it has published and
//!   fences: one of the two sees the other.
//!
//! Both ends reach the memory through [`Words`] alone, which costs nothing: the mapping implements it for processes, and the
//! models of `transport/shm/models` for a memory that shows every order of events that the orderings allow.

pub mod device;
pub mod host;

use crate::memory::Mapping;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

pub use device::DeviceRings;
pub use host::HostRings;

/// Memory as both ends of the rings reach it: 8-byte words of entries, 4-byte halves of positions and flags.
pub trait Words {
    /// Loads the word at an offset.
    fn load(&self, at: usize, order: Ordering) -> u64;
    /// Stores the word at an offset.
    fn store(&self, at: usize, word: u64, order: Ordering);
    /// Loads the half at an offset.
    fn load_half(&self, at: usize, order: Ordering) -> u32;
    /// Stores the half at an offset.
    fn store_half(&self, at: usize, half: u32, order: Ordering);
    /// Stores the half at an offset, and returns what was there.
    fn swap_half(&self, at: usize, half: u32, order: Ordering) -> u32;
    /// A sequentially consistent fence.
    fn fence(&self);
}

impl Words for Mapping {
    #[inline]
    fn load(&self, at: usize, order: Ordering) -> u64 {
        self.word(at).load(order)
    }
    #[inline]
    fn store(&self, at: usize, word: u64, order: Ordering) {
        self.word(at).store(word, order);
    }
    #[inline]
    fn load_half(&self, at: usize, order: Ordering) -> u32 {
        self.half(at).load(order)
    }
    #[inline]
    fn store_half(&self, at: usize, half: u32, order: Ordering) {
        self.half(at).store(half, order);
    }
    #[inline]
    fn swap_half(&self, at: usize, half: u32, order: Ordering) -> u32 {
        self.half(at).swap(half, order)
    }
    #[inline]
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}

impl<W: Words + ?Sized> Words for Arc<W> {
    #[inline]
    fn load(&self, at: usize, order: Ordering) -> u64 {
        (**self).load(at, order)
    }
    #[inline]
    fn store(&self, at: usize, word: u64, order: Ordering) {
        (**self).store(at, word, order);
    }
    #[inline]
    fn load_half(&self, at: usize, order: Ordering) -> u32 {
        (**self).load_half(at, order)
    }
    #[inline]
    fn store_half(&self, at: usize, half: u32, order: Ordering) {
        (**self).store_half(at, half, order);
    }
    #[inline]
    fn swap_half(&self, at: usize, half: u32, order: Ordering) -> u32 {
        (**self).swap_half(at, half, order)
    }
    #[inline]
    fn fence(&self) {
        (**self).fence();
    }
}
