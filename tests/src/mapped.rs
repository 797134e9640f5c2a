//! A file in memory, as any program that may read it has it.

use rustix::mm::{MapFlags, ProtFlags};
use std::fs::File;

/// A file that is mapped for reading, shared, with all its pages.
pub struct Mapped {
    at: *const u8,
    bytes: usize,
}

impl Mapped {
    /// Of so many bytes.
    pub fn new(file: &File, bytes: usize) -> Mapped {
        let (rights, flags) = (ProtFlags::READ, MapFlags::SHARED | MapFlags::POPULATE);
        // SAFETY: a new mapping, at a place of the kernel's choice.
        let at = unsafe { rustix::mm::mmap(std::ptr::null_mut(), bytes, rights, flags, file, 0) }.expect("mapped");
        Mapped { at: at.cast(), bytes }
    }

    /// What it shows now.
    pub fn bytes(&self) -> Vec<u8> {
        // SAFETY: as many bytes are mapped while this lives; each is read once, whatever it is by then.
        (0..self.bytes).map(|at| unsafe { self.at.add(at).read_volatile() }).collect()
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: mapped above, and nobody borrows of it.
        let _ = unsafe { rustix::mm::munmap(self.at.cast_mut().cast(), self.bytes) };
    }
}
