//! An endpoint's memory: made and sealed by the device, handed over by descriptor, mapped by both ends.
//!
//! What always holds:
//! - it can neither shrink nor grow, nor lose these seals, so that no access inside it can fault for want of a file behind it
//!   (holes that the other side punches read as zeroes);
//! - words are accessed as atomics, data by raw copies: no Rust reference to plain bytes of it ever exists;
//! - every access is checked against its length.

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
#[cfg(not(miri))]
use rustix::mm::{MapFlags, ProtFlags};
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// Seals without which the memory is not used.
pub const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Why memory cannot be shared.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// The kernel refuses.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the kernel says.
        source: std::io::Error,
    },
    /// Not sealed as it must be.
    #[error("the memory is not sealed against shrinking, growing and unsealing")]
    NotSealed,
    /// Another size than was told.
    #[error("the memory has {found} bytes, {expected} were told")]
    Size {
        /// Its size.
        found: u64,
        /// The size told.
        expected: u64,
    },
}

fn system(what: &'static str) -> impl FnOnce(Errno) -> MemoryError {
    move |source| MemoryError::System { what, source: source.into() }
}

/// Shared memory, mapped until it is dropped.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
    /// Keeps `base` valid where it is no mapping.
    #[cfg(miri)]
    _heap: std::sync::Arc<heap::Heap>,
}

// SAFETY: all access is by atomics or raw copies into memory that any number of threads and another process may use.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

#[cfg(not(miri))]
impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `base` and `bytes` are those of a mapping that this value made; nothing refers to it any more.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

impl Mapping {
    /// Makes sealed memory of `bytes` zeroes; the descriptor is to be handed to the other side.
    pub fn create(bytes: usize) -> Result<(Mapping, OwnedFd), MemoryError> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        // Kernels before 6.3 do not know that memory can be sealed against being run.
        let memory = rustix::fs::memfd_create("willow-hre", flags | MemfdFlags::NOEXEC_SEAL)
            .or_else(|_| rustix::fs::memfd_create("willow-hre", flags))
            .map_err(system("cannot make shared memory"))?;
        rustix::fs::ftruncate(&memory, bytes as u64).map_err(system("cannot size shared memory"))?;
        rustix::fs::fcntl_add_seals(&memory, SEALS).map_err(system("cannot seal shared memory"))?;
        Ok((Self::map(&memory, bytes)?, memory))
    }

    /// Maps memory that the other side made, if it is sealed and as large as was told.
    pub fn open(memory: impl AsFd, bytes: usize) -> Result<Mapping, MemoryError> {
        let seals = rustix::fs::fcntl_get_seals(&memory).map_err(|_| MemoryError::NotSealed)?;
        if !seals.contains(SEALS) {
            return Err(MemoryError::NotSealed);
        }
        let found = rustix::fs::fstat(&memory).map_err(system("cannot look at shared memory"))?.st_size as u64;
        if found != bytes as u64 {
            return Err(MemoryError::Size { found, expected: bytes as u64 });
        }
        Self::map(memory, bytes)
    }

    /// Both ends of memory in one process. Miri has neither memfds nor mappings of them: there it is memory of the heap.
    #[cfg(all(any(test, feature = "testing"), not(miri)))]
    pub fn pair(bytes: usize) -> Result<(Mapping, Mapping), MemoryError> {
        let (one, memory) = Mapping::create(bytes)?;
        Ok((one, Mapping::open(memory, bytes)?))
    }

    /// As above.
    #[cfg(miri)]
    pub fn pair(bytes: usize) -> Result<(Mapping, Mapping), MemoryError> {
        Ok(heap::pair(bytes))
    }

    #[cfg(miri)]
    fn map(_: impl AsFd, _: usize) -> Result<Mapping, MemoryError> {
        Err(system("Miri cannot map files")(Errno::NOSYS))
    }

    #[cfg(not(miri))]
    fn map(memory: impl AsFd, bytes: usize) -> Result<Mapping, MemoryError> {
        // SAFETY: a new mapping at an address of the kernel's choice aliases nothing of this process.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                memory,
                0,
            )
        };
        let base = base.map_err(system("cannot map shared memory"))?;
        let base = NonNull::new(base.cast::<u8>()).expect("a successful mapping is not at address zero");
        Ok(Mapping { base, bytes })
    }

    /// Its length.
    #[inline]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// First byte and length.
    #[inline]
    pub fn span(&self) -> (NonNull<u8>, usize) {
        (self.base, self.bytes)
    }

    /// The 8-byte word at an offset.
    #[inline]
    pub fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset < self.bytes && self.bytes - offset >= 8, "no word at {offset}");
        // SAFETY: aligned (mappings are page aligned) and inside the mapping, which lives as long as the reference; others,
        // in this process or another, access it as an atomic or harm only what they read of it.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }

    /// The 4-byte word at an offset.
    #[inline]
    pub fn half(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4) && offset < self.bytes && self.bytes - offset >= 4, "no word at {offset}");
        // SAFETY: as for `word`.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }

    #[inline]
    fn range(&self, offset: usize, bytes: usize) -> Option<*mut u8> {
        let inside = offset.checked_add(bytes).is_some_and(|end| end <= self.bytes);
        // SAFETY: `offset` is at most the length of the mapping.
        inside.then(|| unsafe { self.base.as_ptr().add(offset) })
    }

    /// Copies bytes out; false where the range is not inside. What is copied while the other side writes is any mixture.
    #[inline]
    pub fn read(&self, offset: usize, into: &mut [u8]) -> bool {
        let Some(from) = self.range(offset, into.len()) else { return false };
        // SAFETY: `range` checked the mapped side; `into` is a Rust slice and so no part of the mapping.
        unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
        true
    }

    /// Appends bytes to a buffer; false where the range is not inside.
    #[inline]
    pub fn append_to(&self, offset: usize, bytes: usize, into: &mut Vec<u8>) -> bool {
        let Some(from) = self.range(offset, bytes) else { return false };
        into.reserve(bytes);
        // SAFETY: `range` checked the mapped side, `reserve` made room for as many bytes behind the buffer's length, and
        // they are written before the length grows by them.
        unsafe {
            std::ptr::copy_nonoverlapping(from, into.as_mut_ptr().add(into.len()), bytes);
            into.set_len(into.len() + bytes);
        }
        true
    }

    /// Copies bytes in; false where the range is not inside.
    #[inline]
    pub fn write(&self, offset: usize, from: &[u8]) -> bool {
        let Some(into) = self.range(offset, from.len()) else { return false };
        // SAFETY: as for `read`.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), into, from.len()) };
        true
    }
}

/// Memory of the heap in place of a mapping: what is tested under Miri is how it is accessed, not where it comes from.
#[cfg(miri)]
mod heap {
    use super::Mapping;
    use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
    use std::ptr::NonNull;
    use std::sync::Arc;

    #[derive(Debug)]
    pub(super) struct Heap(NonNull<u8>, Layout);

    // SAFETY: as for `Mapping`, and only the last owner frees it.
    unsafe impl Send for Heap {}
    // SAFETY: as above.
    unsafe impl Sync for Heap {}

    impl Drop for Heap {
        fn drop(&mut self) {
            // SAFETY: `pair` allocated it with this layout, and no mapping refers to it any more.
            unsafe { dealloc(self.0.as_ptr(), self.1) };
        }
    }

    pub(super) fn pair(bytes: usize) -> (Mapping, Mapping) {
        let layout = Layout::from_size_align(bytes, 4096).expect("sizes of a layout");
        assert!(bytes > 0, "no memory is nothing to share");
        // SAFETY: the layout is not of size zero.
        let Some(base) = NonNull::new(unsafe { alloc_zeroed(layout) }) else { handle_alloc_error(layout) };
        let heap = Arc::new(Heap(base, layout));
        (Mapping { base, bytes, _heap: heap.clone() }, Mapping { base, bytes, _heap: heap })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn both_ends_see_the_same_bytes() {
        let (one, other) = Mapping::pair(8192).unwrap();
        assert!(one.write(8190, &[1, 2]) && !one.write(8191, &[1, 2]) && !one.write(usize::MAX, &[1]));
        let mut bytes = [9; 3];
        assert!(other.read(8189, &mut bytes) && !other.read(8190, &mut bytes));
        assert_eq!(bytes, [0, 1, 2]);
        one.word(64).store(0x0102_0304_0506_0708, Ordering::Release);
        assert_eq!(other.half(64).load(Ordering::Acquire), 0x0506_0708);
        let mut appended = vec![7];
        assert!(other.append_to(8190, 2, &mut appended) && !other.append_to(8191, 2, &mut appended));
        assert_eq!(appended, [7, 1, 2]);
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no memfds")]
    fn the_seals_hold_and_memory_without_them_is_refused() {
        let (_mapping, memory) = Mapping::create(8192).unwrap();
        for bytes in [0, 4096, 16384] {
            assert_eq!(rustix::fs::ftruncate(&memory, bytes), Err(Errno::PERM));
        }
        assert_eq!(rustix::fs::fcntl_add_seals(&memory, SealFlags::WRITE), Err(Errno::PERM));
        assert!(matches!(Mapping::open(&memory, 4096), Err(MemoryError::Size { found: 8192, expected: 4096 })));
        // The planted twin: memory that lacks any one of the seals.
        for missing in [SealFlags::SHRINK, SealFlags::GROW, SealFlags::SEAL] {
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
            let memory = rustix::fs::memfd_create("planted", flags).unwrap();
            rustix::fs::ftruncate(&memory, 8192).unwrap();
            rustix::fs::fcntl_add_seals(&memory, SEALS.difference(missing)).unwrap();
            assert!(matches!(Mapping::open(&memory, 8192), Err(MemoryError::NotSealed)), "{missing:?}");
        }
        assert!(matches!(Mapping::open(std::fs::File::open("/dev/null").unwrap(), 0), Err(MemoryError::NotSealed)));
    }

    #[test]
    #[should_panic(expected = "no word")]
    fn words_outside_are_refused() {
        let (mapping, _other) = Mapping::pair(4096).unwrap();
        mapping.word(4096);
    }
}
