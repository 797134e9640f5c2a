//! Memory that the device shares with another process: a window of it is where the reply to a host request goes.
//!
//! What always holds:
//! - the other process may change every byte at any moment, so that nothing here makes a Rust reference into it, and nothing
//!   is ever decided by what is read from it;
//! - a window lies within its memory from its making on, and keeps it mapped for as long as it lives.

use std::ptr::NonNull;
use std::sync::Arc;

/// Memory shared with another process, mapped for as long as the value lives.
///
/// # Safety
/// `span` returns the same readable and writable range each time, which stays mapped until the value is dropped and which no
/// Rust reference points into.
pub unsafe trait SharedMemory: Send + Sync {
    /// First byte and number of bytes.
    fn span(&self) -> (NonNull<u8>, usize);
}

/// A checked range of shared memory.
#[derive(Clone)]
pub struct SharedWindow {
    // Keeps `start` valid.
    memory: Arc<dyn SharedMemory>,
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the pointer is into memory that `SharedMemory` keeps mapped, whichever thread the window is on; it is accessed by
// raw copies alone.
unsafe impl Send for SharedWindow {}

impl std::fmt::Debug for SharedWindow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} shared bytes", self.bytes)
    }
}

impl SharedWindow {
    /// The window of `bytes` bytes from byte `offset` of `memory` on; `None` where it is not wholly inside.
    #[inline]
    pub fn new(memory: Arc<dyn SharedMemory>, offset: usize, bytes: usize) -> Option<Self> {
        let (base, length) = memory.span();
        if offset.checked_add(bytes)? > length {
            return None;
        }
        // SAFETY: `offset` is at most the length of the mapping.
        let start = unsafe { base.add(offset) };
        Some(SharedWindow { memory, start, bytes })
    }

    /// Its length.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The memory that it is in.
    pub fn memory(&self) -> &Arc<dyn SharedMemory> {
        &self.memory
    }

    /// Copies bytes in at an offset; false where they do not fit.
    pub fn write(&mut self, offset: usize, from: &[u8]) -> bool {
        let span = offset.checked_add(from.len()).and_then(|end| self.span(offset, end));
        span.map(|mut span| span.copy_from(from)).is_some()
    }

    /// A part of it, for the time of one copy.
    #[inline]
    pub(crate) fn span(&mut self, begin: usize, end: usize) -> Option<SharedSpan<'_>> {
        if begin > end || end > self.bytes {
            return None;
        }
        // SAFETY: `begin` is at most the window's length.
        let start = unsafe { self.start.add(begin) };
        Some(SharedSpan { start, bytes: end - begin, window: std::marker::PhantomData })
    }
}

/// Where one copy goes, in memory that another process may change meanwhile.
pub struct SharedSpan<'a> {
    start: NonNull<u8>,
    bytes: usize,
    window: std::marker::PhantomData<&'a mut SharedWindow>,
}

impl SharedSpan<'_> {
    /// Its length.
    #[inline]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Copies bytes in; `from` must be as long as the span.
    #[inline]
    pub fn copy_from(&mut self, from: &[u8]) {
        assert_eq!(from.len(), self.bytes, "a copy fills its span");
        // SAFETY: the span lies in mapped memory (SharedWindow), `from` is as long, and a Rust slice is no part of it.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), self.start.as_ptr(), self.bytes) };
    }

    /// Copies bytes in from memory that is named by address.
    ///
    /// # Safety
    /// As many bytes as the span has are readable at `from`, and none of them is part of the span.
    #[inline]
    pub(crate) unsafe fn copy_from_raw(&mut self, from: *const u8) {
        // SAFETY: the caller's promise, and the span lies in mapped memory.
        unsafe { std::ptr::copy_nonoverlapping(from, self.start.as_ptr(), self.bytes) };
    }

    /// Fills it with zeroes.
    #[inline]
    pub fn clear(&mut self) {
        // SAFETY: the span lies in mapped memory.
        unsafe { std::ptr::write_bytes(self.start.as_ptr(), 0, self.bytes) };
    }
}

/// Where the reply to a host request goes.
pub(crate) enum ReplyTo {
    /// Into the request's buffer.
    Buffer,
    /// Into memory shared with the one that asked.
    Window(SharedWindow),
    /// Nowhere: whoever asked looks at its times alone.
    Nowhere,
}

/// Where bytes of a reply go: memory of this process, memory shared with the one that asked, or nowhere.
pub(crate) enum ReplySpan<'a> {
    /// Ours.
    Private(&'a mut [u8]),
    /// Shared.
    Shared(SharedSpan<'a>),
    /// So many bytes that nobody looks at.
    Nowhere(usize),
}

impl ReplySpan<'_> {
    /// Copies as many bytes as it has.
    #[inline]
    pub fn copy_from(&mut self, from: &[u8]) {
        match self {
            ReplySpan::Private(into) => into.copy_from_slice(from),
            ReplySpan::Shared(into) => into.copy_from(from),
            ReplySpan::Nowhere(bytes) => assert_eq!(from.len(), *bytes, "a copy fills its span"),
        }
    }

    /// Zeroes it.
    #[inline]
    pub fn clear(&mut self) {
        match self {
            ReplySpan::Private(into) => into.fill(0),
            ReplySpan::Shared(into) => into.clear(),
            ReplySpan::Nowhere(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::UnsafeCell;

    struct Cells(Box<[UnsafeCell<u8>]>);
    // SAFETY: the cells live as long as the value, and are accessed by raw copies alone.
    unsafe impl SharedMemory for Cells {
        fn span(&self) -> (NonNull<u8>, usize) {
            (NonNull::new(self.0.as_ptr().cast_mut().cast()).unwrap(), self.0.len())
        }
    }
    // SAFETY: as above; the tests use one thread.
    unsafe impl Sync for Cells {}

    #[test]
    fn windows_and_spans_stay_inside() {
        let memory: Arc<dyn SharedMemory> = Arc::new(Cells((0..64).map(UnsafeCell::new).collect()));
        for (offset, bytes, fits) in
            [(0, 64, true), (64, 0, true), (1, 64, false), (65, 0, false), (usize::MAX, 2, false)]
        {
            assert_eq!(SharedWindow::new(memory.clone(), offset, bytes).is_some(), fits, "{offset} {bytes}");
        }
        let mut window = SharedWindow::new(memory.clone(), 8, 16).unwrap();
        assert!(window.span(0, 17).is_none() && window.span(5, 4).is_none());
        window.span(2, 5).unwrap().copy_from(&[70, 71, 72]);
        window.span(15, 16).unwrap().clear();
        let (base, _) = memory.span();
        // SAFETY: inside the 64 cells.
        let bytes: Vec<u8> = (8..25).map(|at| unsafe { *base.as_ptr().add(at) }).collect();
        assert_eq!(bytes, [8, 9, 70, 71, 72, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 0, 24]);
    }
}
