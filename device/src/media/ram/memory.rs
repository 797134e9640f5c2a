//! Ranges of anonymous memory.
//!
//! What always holds: a mapping is owned by one value, begins at a multiple of [`ALIGNMENT_BYTES`], reads as zeroes where it was not
//! written, and costs memory where it was touched alone.
//!
//! Who may call it: the store in memory.

use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::ptr::NonNull;

/// What a mapping's begin is a multiple of: a huge page.
pub(super) const ALIGNMENT_BYTES: usize = 2 << 20;

/// Which pages stand behind a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pages {
    /// As this machine does.
    Any,
    /// Huge ones where there are such: fast to use, slow to make.
    Huge,
    /// Small ones: quick to make, one by one.
    Small,
}

/// A private anonymous mapping without reserved memory.
pub(super) struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
    /// What was mapped, with the room to align it.
    whole: (NonNull<u8>, usize),
}

// SAFETY: the mapping is owned by this value alone; whoever has the value has its memory.
unsafe impl Send for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `whole` is a mapping that this value made and that nothing else refers to.
        let unmapped = unsafe { rustix::mm::munmap(self.whole.0.as_ptr().cast(), self.whole.1) };
        debug_assert!(unmapped.is_ok());
    }
}

impl Mapping {
    /// Maps so many bytes.
    pub fn new(bytes: usize, pages: Pages) -> std::io::Result<Mapping> {
        let room = bytes.checked_add(ALIGNMENT_BYTES).ok_or(std::io::ErrorKind::OutOfMemory)?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice aliases nothing.
        let mapped = unsafe {
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), room, ProtFlags::READ | ProtFlags::WRITE, flags)
        }?;
        let mapped = NonNull::new(mapped.cast::<u8>()).expect("a successful mapping is not at address zero");
        let skipped = mapped.as_ptr().align_offset(ALIGNMENT_BYTES);
        // SAFETY: `skipped` is less than the alignment, which the mapping is longer by than `bytes`.
        let base = unsafe { mapped.add(skipped) };
        let mapping = Mapping { base, bytes, whole: (mapped, room) };
        match pages {
            Pages::Any => {}
            Pages::Huge => mapping.prefer_huge_pages(),
            Pages::Small => mapping.advise(Advice::LinuxNoHugepage),
        }
        Ok(mapping)
    }

    /// First byte.
    #[inline]
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Length.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// From now on in huge pages, where there are such.
    pub fn prefer_huge_pages(&self) {
        self.advise(Advice::LinuxHugepage);
    }

    fn advise(&self, advice: Advice) {
        // SAFETY: the range is the mapping's own; such advice changes no contents.
        let advised = unsafe { rustix::mm::madvise(self.base.as_ptr().cast(), self.bytes, advice) };
        if let Err(error) = advised {
            tracing::debug!("no choice of pages for contents in memory: {error}");
        }
    }
}
