//! The functions that this library stands in front of, and errno.

use rustix::io::Errno;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A function's address, looked up once.
pub struct Real(AtomicPtr<libc::c_void>, &'static [u8]);

impl Real {
    /// By its name, which ends with a zero byte.
    pub const fn new(name: &'static [u8]) -> Self {
        Real(AtomicPtr::new(std::ptr::null_mut()), name)
    }

    /// As a function pointer of the type that the C library declares; to be called is unsafe.
    pub fn function<F: Copy>(&self) -> F {
        const { assert!(size_of::<F>() == size_of::<*mut libc::c_void>()) };
        // SAFETY: function pointers and addresses are the same, and as large, on all that this builds for.
        unsafe { std::mem::transmute_copy(&self.get()) }
    }

    /// The address.
    fn get(&self) -> *mut libc::c_void {
        let known = self.0.load(Ordering::Relaxed);
        if !known.is_null() {
            return known;
        }
        // SAFETY: the name ends with a zero byte.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.1.as_ptr().cast()) };
        if found.is_null() {
            // The C library has no such function, and so nobody could have linked against it.
            std::process::abort();
        }
        self.0.store(found, Ordering::Relaxed);
        found
    }
}

/// The function behind one of ours: `real!(read: (c_int, *mut c_void, usize) -> isize)`.
#[macro_export]
macro_rules! real {
    ($name:ident : ($($argument:ty),*) -> $result:ty) => {{
        static REAL: $crate::real::Real = $crate::real::Real::new(concat!(stringify!($name), "\0").as_bytes());
        let function: unsafe extern "C" fn($($argument),*) -> $result = REAL.function();
        function
    }};
}

/// Sets errno.
pub fn set_errno(errno: i32) {
    // SAFETY: the thread's own.
    unsafe { *libc::__errno_location() = errno };
}

/// errno as it is; 0 where nothing has failed.
pub fn code() -> i32 {
    // SAFETY: the thread's own.
    unsafe { *libc::__errno_location() }
}

/// errno of what has just failed.
pub fn errno() -> Errno {
    Errno::from_raw_os_error(code())
}

/// What a function of the C library returned, as a result.
pub fn result<T: PartialOrd + Default>(returned: T) -> Result<T, Errno> {
    if returned < T::default() { Err(errno()) } else { Ok(returned) }
}

/// A result as a function of the C library returns it.
pub fn returned<T: From<i8>>(result: Result<T, Errno>) -> T {
    result.unwrap_or_else(|error| {
        set_errno(error.raw_os_error());
        T::from(-1)
    })
}
