//! How far this process may write into any file (RLIMIT_FSIZE).
//!
//! What always holds: the limit is known from the calls that set it; a write that would pass it is the kernel's, which cuts or refuses it
//! and sends the signal. A limit that another process sets is seen when this one sets or opens something next.

use crate::real;
use libc::{c_int, c_long, c_uint, pid_t, rlimit};
use std::sync::atomic::{AtomicU64, Ordering};

static FILE_BYTES_MAX: AtomicU64 = AtomicU64::new(u64::MAX);

/// Looks what it is.
pub fn refresh() {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize);
    FILE_BYTES_MAX.store(limit.current.unwrap_or(u64::MAX), Ordering::Relaxed);
}

/// True where a write of so many bytes there is within it.
pub fn allow(offset: u64, bytes: usize) -> bool {
    let max = FILE_BYTES_MAX.load(Ordering::Relaxed);
    crate::planted("limit") || offset.checked_add(bytes as u64).is_some_and(|end| end <= max)
}

/// True where any write is within it.
pub fn is_none() -> bool {
    FILE_BYTES_MAX.load(Ordering::Relaxed) == u64::MAX
}

macro_rules! sets {
    ($($name:ident ($($argument:ident : $kind:ty),*) of $limit:expr => $result:ty;)*) => {$(
        /// # Safety
        /// As for the C library's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $kind),*) -> $result {
            let (process, resource, new): (pid_t, c_uint, *const rlimit) = $limit;
            // SAFETY: the caller's arguments.
            unsafe { crate::identity::limiting(process, resource, new) };
            // SAFETY: as above.
            let done = unsafe { real!($name: ($($kind),*) -> $result)($($argument),*) };
            refresh();
            done
        }
    )*};
}

sets! {
    setrlimit(resource: c_uint, limit: *const rlimit) of (0, resource, limit) => c_int;
    setrlimit64(resource: c_uint, limit: *const rlimit) of (0, resource, limit) => c_int;
    prlimit(process: pid_t, resource: c_uint, new: *const rlimit, old: *mut rlimit) of (process, resource, new) => c_int;
    prlimit64(process: pid_t, resource: c_uint, new: *const rlimit, old: *mut rlimit) of (process, resource, new) => c_int;
    // That of bytes alone.
    ulimit(command: c_int, bytes: c_long) of (0, libc::RLIMIT_FSIZE, std::ptr::null()) => c_long;
}
