//! Other names by which the C library exports the functions that this library stands in front of: older programs were linked to some.

use crate::{descriptors, programs, streams, transfers};
use libc::{FILE, c_char, c_int, c_long, c_void, mode_t, off_t, pid_t};

macro_rules! also {
    ($($name:ident ($($argument:ident : $kind:ty),*) -> $result:ty = $module:ident :: $same:ident;)*) => {$(
        /// # Safety
        /// As for the C library's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $kind),*) -> $result {
            // SAFETY: the caller's arguments.
            unsafe { $module::$same($($argument),*) }
        }
    )*};
}

also! {
    __open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int = descriptors::open;
    __open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int = descriptors::open64;
    __close(fd: c_int) -> c_int = descriptors::close;
    __dup2(from: c_int, to: c_int) -> c_int = descriptors::dup2;
    __fcntl(fd: c_int, command: c_int, argument: c_long) -> c_int = descriptors::fcntl;
    __read(fd: c_int, to: *mut c_void, bytes: usize) -> isize = transfers::read;
    __write(fd: c_int, of: *const c_void, bytes: usize) -> isize = transfers::write;
    __pread64(fd: c_int, to: *mut c_void, bytes: usize, at: off_t) -> isize = transfers::pread64;
    __pwrite64(fd: c_int, of: *const c_void, bytes: usize, at: off_t) -> isize = transfers::pwrite64;
    __lseek(fd: c_int, offset: off_t, whence: c_int) -> off_t = transfers::lseek;
    __vfork() -> pid_t = programs::vfork;
    __clone(main: programs::Main, stack: *mut c_void, flags: c_int, argument: *mut c_void, parent: c_long, storage: c_long,
        child: c_long) -> c_int = programs::clone;
    _IO_fopen(path: *const c_char, mode: *const c_char) -> *mut FILE = streams::fopen;
    _IO_fdopen(fd: c_int, mode: *const c_char) -> *mut FILE = streams::fdopen;
    _IO_fclose(stream: *mut FILE) -> c_int = streams::fclose;
    _IO_popen(command: *const c_char, kind: *const c_char) -> *mut c_void = programs::popen;
}
