//! The C library's functions, each by one of its names: which one the dice say.
//!
//! What always holds: whichever it is, the call is the same.

use crate::world::World;
use libc::{
    FILE, c_char, c_int, c_long, c_uint, c_void, iovec, mode_t, off_t, rlimit, size_t, ssize_t, timespec, timeval,
};
use std::ffi::CStr;

type Path = *const c_char;
type Into = *mut c_void;
type From = *const c_void;
type Vector = *const iovec;
type List = *const *mut libc::aiocb;

/// Those that the library of Rust does not declare, or declares otherwise.
mod names {
    use super::*;

    unsafe extern "C" {
        pub fn __open(path: Path, flags: c_int, ...) -> c_int;
        pub fn __open64(path: Path, flags: c_int, ...) -> c_int;
        pub fn __open_2(path: Path, flags: c_int) -> c_int;
        pub fn __open64_2(path: Path, flags: c_int) -> c_int;
        pub fn __openat_2(folder: c_int, path: Path, flags: c_int) -> c_int;
        pub fn __openat64_2(folder: c_int, path: Path, flags: c_int) -> c_int;
        pub fn __close(fd: c_int) -> c_int;
        pub fn __dup2(from: c_int, to: c_int) -> c_int;
        pub fn __fcntl(fd: c_int, command: c_int, ...) -> c_int;
        pub fn fcntl64(fd: c_int, command: c_int, ...) -> c_int;
        pub fn __read(fd: c_int, to: Into, bytes: size_t) -> ssize_t;
        pub fn __write(fd: c_int, of: From, bytes: size_t) -> ssize_t;
        pub fn __read_chk(fd: c_int, to: Into, bytes: size_t, room: size_t) -> ssize_t;
        pub fn __pread64(fd: c_int, to: Into, bytes: size_t, at: off_t) -> ssize_t;
        pub fn __pwrite64(fd: c_int, of: From, bytes: size_t, at: off_t) -> ssize_t;
        pub fn __pread_chk(fd: c_int, to: Into, bytes: size_t, at: off_t, room: size_t) -> ssize_t;
        pub fn __pread64_chk(fd: c_int, to: Into, bytes: size_t, at: off_t, room: size_t) -> ssize_t;
        pub fn preadv64v2(fd: c_int, all: Vector, count: c_int, at: off_t, flags: c_int) -> ssize_t;
        pub fn pwritev64v2(fd: c_int, all: Vector, count: c_int, at: off_t, flags: c_int) -> ssize_t;
        pub fn __lseek(fd: c_int, offset: off_t, whence: c_int) -> off_t;
        pub fn lockf64(fd: c_int, command: c_int, bytes: off_t) -> c_int;
        pub fn posix_fallocate64(fd: c_int, at: off_t, bytes: off_t) -> c_int;
        pub fn fopen64(path: Path, mode: Path) -> *mut FILE;
        pub fn _IO_fopen(path: Path, mode: Path) -> *mut FILE;
        pub fn _IO_fdopen(fd: c_int, mode: Path) -> *mut FILE;
        pub fn freopen64(path: Path, mode: Path, stream: *mut FILE) -> *mut FILE;
        pub fn _IO_fclose(stream: *mut FILE) -> c_int;
        pub fn _Fork() -> c_int;
        pub fn _Exit(status: c_int) -> !;
        pub fn dprintf(fd: c_int, format: Path, ...) -> c_int;
        pub fn __dprintf_chk(fd: c_int, check: c_int, format: Path, ...) -> c_int;
        pub fn eaccess(path: Path, mode: c_int) -> c_int;
        pub fn euidaccess(path: Path, mode: c_int) -> c_int;
        pub fn lchmod(path: Path, mode: mode_t) -> c_int;
        pub fn futimes(fd: c_int, times: *const timeval) -> c_int;
        pub fn lutimes(path: Path, times: *const timeval) -> c_int;
        pub fn futimesat(folder: c_int, path: Path, times: *const timeval) -> c_int;
        pub fn prlimit(process: c_int, resource: c_uint, new: *const rlimit, old: *mut rlimit) -> c_int;
        pub fn prlimit64(process: c_int, resource: c_uint, new: *const rlimit, old: *mut rlimit) -> c_int;
        pub fn setrlimit64(resource: c_uint, limit: *const rlimit) -> c_int;
        pub fn aio_read64(one: *mut libc::aiocb) -> c_int;
        pub fn aio_write64(one: *mut libc::aiocb) -> c_int;
        pub fn lio_listio64(mode: c_int, all: List, count: c_int, event: *mut libc::sigevent) -> c_int;
        pub fn pkey_mprotect(at: Into, bytes: size_t, protection: c_int, key: c_int) -> c_int;
        pub fn aio_fsync64(kind: c_int, one: *mut libc::aiocb) -> c_int;
    }
}

use names::*;

macro_rules! spelled {
    ($($name:ident ($($argument:ident : $kind:ty),*) -> $result:ty = $first:path $(, $other:path)*;)*) => {$(
        /// # Safety
        /// As for the C library's.
        pub unsafe fn $name(world: &mut World, $($argument: $kind),*) -> $result {
            const ALL: &[unsafe extern "C" fn($($kind),*) -> $result] = &[$first $(, $other)*];
            // SAFETY: the caller's arguments.
            unsafe { ALL[world.below(ALL.len() as u64) as usize]($($argument),*) }
        }
    )*};
}

spelled! {
    write(fd: c_int, of: From, bytes: size_t) -> ssize_t = libc::write, __write;
    pwrite(fd: c_int, of: From, bytes: size_t, at: off_t) -> ssize_t = libc::pwrite, libc::pwrite64, __pwrite64;
    preadv(fd: c_int, all: Vector, count: c_int, at: off_t) -> ssize_t = libc::preadv, libc::preadv64;
    pwritev(fd: c_int, all: Vector, count: c_int, at: off_t) -> ssize_t = libc::pwritev, libc::pwritev64;
    preadv2(fd: c_int, all: Vector, count: c_int, at: off_t, flags: c_int) -> ssize_t = libc::preadv2, preadv64v2;
    pwritev2(fd: c_int, all: Vector, count: c_int, at: off_t, flags: c_int) -> ssize_t = libc::pwritev2, pwritev64v2;
    lseek(fd: c_int, offset: off_t, whence: c_int) -> off_t = libc::lseek, libc::lseek64, __lseek;
    ftruncate(fd: c_int, bytes: off_t) -> c_int = libc::ftruncate, libc::ftruncate64;
    truncate(path: Path, bytes: off_t) -> c_int = libc::truncate, libc::truncate64;
    fallocate(fd: c_int, mode: c_int, at: off_t, bytes: off_t) -> c_int = libc::fallocate, libc::fallocate64;
    posix_fallocate(fd: c_int, at: off_t, bytes: off_t) -> c_int = libc::posix_fallocate, posix_fallocate64;
    sendfile(to: c_int, from: c_int, at: *mut off_t, bytes: size_t) -> ssize_t = libc::sendfile, libc::sendfile64;
    lockf(fd: c_int, command: c_int, bytes: off_t) -> c_int = libc::lockf, lockf64;
    close(fd: c_int) -> c_int = libc::close, __close;
    dup2(from: c_int, to: c_int) -> c_int = libc::dup2, __dup2;
    fopen(path: Path, mode: Path) -> *mut FILE = libc::fopen, fopen64, _IO_fopen;
    fdopen(fd: c_int, mode: Path) -> *mut FILE = libc::fdopen, _IO_fdopen;
    freopen(path: Path, mode: Path, stream: *mut FILE) -> *mut FILE = libc::freopen, freopen64;
    fclose(stream: *mut FILE) -> c_int = libc::fclose, _IO_fclose;
    fork() -> c_int = libc::fork, libc::fork, _Fork;
    exit(status: c_int) -> ! = libc::_exit, _Exit;
    mmap(at: Into, bytes: size_t, protection: c_int, flags: c_int, fd: c_int, offset: off_t) -> Into
        = libc::mmap, libc::mmap64;
    aio_read(one: *mut libc::aiocb) -> c_int = libc::aio_read, aio_read64;
    aio_write(one: *mut libc::aiocb) -> c_int = libc::aio_write, aio_write64;
    lio_listio(mode: c_int, all: List, count: c_int, event: *mut libc::sigevent) -> c_int
        = libc::lio_listio, lio_listio64;
    aio_fsync(kind: c_int, one: *mut libc::aiocb) -> c_int = libc::aio_fsync, aio_fsync64;
}

/// # Safety
/// A string.
pub unsafe fn open(world: &mut World, path: &CStr, flags: c_int) -> c_int {
    const CREATES: c_int = libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC;
    let (path, here, mode) = (path.as_ptr(), libc::AT_FDCWD, 0o644);
    // Without a mode there are four more.
    let names = if flags & (libc::O_CREAT | libc::O_TMPFILE) == 0 { 10 } else { 6 };
    let name = world.below(names);
    // SAFETY: as above.
    unsafe {
        match name {
            0 | 1 if flags == CREATES => [libc::creat, libc::creat64][name as usize](path, mode),
            0 => libc::open(path, flags, mode),
            1 => libc::open64(path, flags, mode),
            2 => libc::openat(here, path, flags, mode),
            3 => libc::openat64(here, path, flags, mode),
            4 => __open(path, flags, mode),
            5 => __open64(path, flags, mode),
            6 => __open_2(path, flags),
            7 => __open64_2(path, flags),
            8 => __openat_2(here, path, flags),
            _ => __openat64_2(here, path, flags),
        }
    }
}

/// # Safety
/// As for the C library's.
pub unsafe fn fcntl(world: &mut World, fd: c_int, command: c_int, argument: c_long) -> c_int {
    // SAFETY: the caller's arguments.
    unsafe {
        match world.below(3) {
            0 => libc::fcntl(fd, command, argument),
            1 => fcntl64(fd, command, argument),
            _ => __fcntl(fd, command, argument),
        }
    }
}

/// # Safety
/// As for the C library's; there is room for all of it.
pub unsafe fn read(world: &mut World, fd: c_int, to: Into, bytes: size_t) -> ssize_t {
    // SAFETY: the caller's arguments.
    unsafe {
        match world.below(3) {
            0 => libc::read(fd, to, bytes),
            1 => __read(fd, to, bytes),
            _ => __read_chk(fd, to, bytes, bytes),
        }
    }
}

/// # Safety
/// As for [`read`].
pub unsafe fn pread(world: &mut World, fd: c_int, to: Into, bytes: size_t, at: off_t) -> ssize_t {
    // SAFETY: the caller's arguments.
    unsafe {
        match world.below(5) {
            0 => libc::pread(fd, to, bytes, at),
            1 => libc::pread64(fd, to, bytes, at),
            2 => __pread64(fd, to, bytes, at),
            3 => __pread_chk(fd, to, bytes, at, bytes),
            _ => __pread64_chk(fd, to, bytes, at, bytes),
        }
    }
}

/// Prints a number to a descriptor.
///
/// # Safety
/// Any number will do.
pub unsafe fn print(world: &mut World, fd: c_int, number: c_int) -> c_int {
    let (format, many) = (c"number %d of %s\n".as_ptr(), c"many".as_ptr());
    // SAFETY: what the format wants.
    unsafe {
        match world.chance(2) {
            true => dprintf(fd, format, number, many),
            false => __dprintf_chk(fd, 1, format, number, many),
        }
    }
}

/// # Safety
/// As for the C library's.
pub unsafe fn mprotect(world: &mut World, at: Into, bytes: size_t, protection: c_int) -> c_int {
    // SAFETY: the caller's arguments.
    unsafe {
        match world.chance(2) {
            true => libc::mprotect(at, bytes, protection),
            false => pkey_mprotect(at, bytes, protection, -1),
        }
    }
}

/// Sends a message, alone or as one of several.
///
/// # Safety
/// As for the C library's.
pub unsafe fn sendmsg(world: &mut World, socket: c_int, message: &libc::msghdr) -> ssize_t {
    let mut one = libc::mmsghdr { msg_hdr: *message, msg_len: 0 };
    // SAFETY: the caller's message.
    unsafe {
        match world.chance(2) {
            true => libc::sendmsg(socket, message, 0),
            false => libc::sendmmsg(socket, &raw mut one, 1, 0) as ssize_t,
        }
    }
}

/// The same of what is received.
///
/// # Safety
/// As for the C library's.
pub unsafe fn recvmsg(world: &mut World, socket: c_int, message: &mut libc::msghdr) {
    let mut one = libc::mmsghdr { msg_hdr: *message, msg_len: 0 };
    // SAFETY: the caller's message.
    unsafe {
        match world.chance(2) {
            true => {
                libc::recvmsg(socket, message, 0);
            }
            false => {
                libc::recvmmsg(socket, &raw mut one, 1, 0, std::ptr::null_mut());
                *message = one.msg_hdr;
            }
        }
    }
}

/// # Safety
/// A limit of the process' own.
pub unsafe fn setrlimit(world: &mut World, resource: c_uint, limit: *const rlimit) -> c_int {
    // SAFETY: as above.
    unsafe {
        match world.below(4) {
            0 => libc::setrlimit(resource, limit),
            1 => setrlimit64(resource, limit),
            2 => prlimit(0, resource, limit, std::ptr::null_mut()),
            _ => prlimit64(libc::getpid(), resource, limit, std::ptr::null_mut()),
        }
    }
}

/// # Safety
/// Strings.
pub unsafe fn rename(world: &mut World, old: &CStr, new: &CStr) -> c_int {
    let (old, new, here) = (old.as_ptr(), new.as_ptr(), libc::AT_FDCWD);
    // SAFETY: as above.
    unsafe {
        match world.below(4) {
            0 => libc::rename(old, new),
            1 => libc::renameat(here, old, here, new),
            2 => libc::renameat2(here, old, here, new, libc::RENAME_NOREPLACE),
            _ => libc::renameat2(here, old, here, new, 0),
        }
    }
}

/// # Safety
/// A string.
pub unsafe fn unlink(world: &mut World, path: &CStr) -> c_int {
    // SAFETY: as above.
    unsafe {
        match world.below(3) {
            0 => libc::unlink(path.as_ptr()),
            1 => libc::unlinkat(libc::AT_FDCWD, path.as_ptr(), 0),
            _ => libc::remove(path.as_ptr()),
        }
    }
}

/// Whether a file may be used in this way.
///
/// # Safety
/// A string.
pub unsafe fn access(world: &mut World, path: &CStr, mode: c_int) -> c_int {
    let (path, here) = (path.as_ptr(), libc::AT_FDCWD);
    // SAFETY: as above.
    unsafe {
        match world.below(5) {
            0 => libc::access(path, mode),
            1 => eaccess(path, mode),
            2 => euidaccess(path, mode),
            3 => libc::faccessat(here, path, mode, 0),
            _ => libc::faccessat(here, path, mode, libc::AT_EACCESS),
        }
    }
}

/// Mode, owner, times and attributes of a file, by its path and by a descriptor of it; which of them, and what came of it.
///
/// # Safety
/// A string.
pub unsafe fn attribute(world: &mut World, path: &CStr, fd: c_int) -> (u64, c_int) {
    let (path, here, name, mode) = (path.as_ptr(), libc::AT_FDCWD, c"user.willow".as_ptr(), 0o640);
    let value: From = c"value".as_ptr().cast();
    let nobody = u32::MAX;
    let way = world.below(25);
    // SAFETY: as above, and numbers.
    let done = unsafe {
        let (times, older) = ([std::mem::zeroed::<timespec>(); 2], [std::mem::zeroed::<timeval>(); 2]);
        let (times, older) = (times.as_ptr(), older.as_ptr());
        match way {
            0 => libc::chmod(path, mode),
            1 => libc::fchmod(fd, mode),
            2 => libc::fchmodat(here, path, mode, 0),
            3 => lchmod(path, mode),
            4 => libc::chown(path, nobody, nobody),
            5 => libc::fchown(fd, nobody, nobody),
            6 => libc::lchown(path, nobody, nobody),
            7 => libc::fchownat(here, path, nobody, nobody, 0),
            8 => libc::fchownat(fd, c"".as_ptr(), nobody, nobody, libc::AT_EMPTY_PATH),
            9 => libc::utimensat(here, path, times, 0),
            10 => libc::futimens(fd, times),
            11 => libc::utimes(path, older),
            12 => lutimes(path, older),
            13 => futimes(fd, older),
            14 => futimesat(here, path, older),
            15 => libc::utime(path, std::ptr::null()),
            16 | 17 => libc::setxattr(path, name, value, 5, 0),
            18 => libc::lsetxattr(path, name, value, 5, 0),
            19 | 20 => libc::fsetxattr(fd, name, value, 5, 0),
            21 => libc::removexattr(path, name),
            22 => libc::lremovexattr(path, name),
            _ => libc::fremovexattr(fd, name),
        }
    };
    (way, done)
}
