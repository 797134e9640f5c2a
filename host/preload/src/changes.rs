//! What changes a file otherwise than by writing to it, or uses it past this library: done by the kernel, when the file has been given
//! back; and mappings, with which a file stays with the kernel.
//!
//! What always holds: what the kernel refuses since the file is open directly, here or in another process, is done once more when
//! nobody has it so.

use crate::descriptors::insisting;
use crate::process::{enter, tracked};
use crate::real;
use crate::real::{result, returned};
use libc::{c_char, c_int, c_uint, c_ulong, c_void, gid_t, mode_t, off_t, uid_t};
use rustix::io::Errno;
use std::ffi::CStr;
use willow_host::agent::freeze::is_immutable;

fn on(descriptor: c_int, mut real: impl FnMut() -> c_int) -> c_int {
    match tracked(descriptor) {
        Some((_inside, file)) => returned(file.file.change(|_| result(real()))),
        None => real(),
    }
}

macro_rules! by_descriptor {
    ($($name:ident ($first:ident $(, $argument:ident : $kind:ty)*);)*) => {$(
        /// # Safety
        /// As for the C library's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($first: c_int $(, $argument: $kind)*) -> c_int {
            let real = real!($name: (c_int $(, $kind)*) -> c_int);
            // SAFETY: the caller's arguments.
            on($first, || unsafe { real($first $(, $argument)*) })
        }
    )*};
}

by_descriptor! {
    ftruncate(fd, bytes: off_t);
    ftruncate64(fd, bytes: off_t);
    fallocate(fd, mode: c_int, at: off_t, bytes: off_t);
    fallocate64(fd, mode: c_int, at: off_t, bytes: off_t);
    fchmod(fd, mode: mode_t);
    fchown(fd, owner: uid_t, group: gid_t);
    futimens(fd, times: *const libc::timespec);
    futimes(fd, times: *const libc::timeval);
    fsetxattr(fd, name: *const c_char, value: *const c_void, bytes: usize, flags: c_int);
    fremovexattr(fd, name: *const c_char);
}

macro_rules! allocates {
    ($($name:ident),*) => {$(
        /// Returns the error, as the C library's.
        ///
        /// # Safety
        /// As for the C library's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(descriptor: c_int, at: off_t, bytes: off_t) -> c_int {
            let real = real!($name: (c_int, off_t, off_t) -> c_int);
            let Some((_inside, file)) = tracked(descriptor) else {
                // SAFETY: the caller's arguments.
                return unsafe { real(descriptor, at, bytes) };
            };
            // SAFETY: the caller's arguments.
            let done = file.file.change(|_| match unsafe { real(descriptor, at, bytes) } {
                0 => Ok(()),
                error => Err(Errno::from_raw_os_error(error)),
            });
            done.map_or_else(Errno::raw_os_error, |()| 0)
        }
    )*};
}

allocates!(posix_fallocate, posix_fallocate64);

/// Requests that share, move or attribute a file's blocks.
const CHANGING: [c_ulong; 6] = [
    0x4004_9409, // FICLONE
    0x4020_940d, // FICLONERANGE
    0xc018_9436, // FIDEDUPERANGE
    0x4008_6602, // FS_IOC_SETFLAGS
    0x401c_5820, // FS_IOC_FSSETXATTR
    0xc028_660f, // EXT4_IOC_MOVE_EXT
];

/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(descriptor: c_int, request: c_ulong, argument: c_ulong) -> c_int {
    let real = real!(ioctl: (c_int, c_ulong, c_ulong) -> c_int);
    // SAFETY: the caller's; an argument that it did not give is not looked at.
    let real = || unsafe { real(descriptor, request, argument) };
    if CHANGING.contains(&request) { on(descriptor, real) } else { real() }
}

fn mapping(descriptor: c_int, protection: c_int, flags: c_int, mut map: impl FnMut() -> *mut c_void) -> *mut c_void {
    let is_of_file = flags & libc::MAP_ANONYMOUS == 0;
    let Some((_inside, file)) = tracked(descriptor).filter(|_| is_of_file) else { return map() };
    let writes = protection & libc::PROT_WRITE != 0 && flags & libc::MAP_TYPE != libc::MAP_PRIVATE;
    let mapped = file.file.pin(|descriptor| {
        // Nobody may have it directly while it is written through a mapping.
        if writes && is_immutable(descriptor) {
            return Err(Errno::PERM);
        }
        let mapped = map();
        if mapped == libc::MAP_FAILED { Err(crate::real::errno()) } else { Ok(mapped) }
    });
    mapped.unwrap_or_else(|error| {
        crate::real::set_errno(error.raw_os_error());
        libc::MAP_FAILED
    })
}

macro_rules! maps {
    ($($name:ident),*) => {$(
        /// # Safety
        /// As for the C library's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            at: *mut c_void,
            bytes: usize,
            protection: c_int,
            flags: c_int,
            descriptor: c_int,
            offset: off_t,
        ) -> *mut c_void {
            let real = real!($name: (*mut c_void, usize, c_int, c_int, c_int, off_t) -> *mut c_void);
            // SAFETY: the caller's arguments.
            let map = || unsafe { real(at, bytes, protection, flags, descriptor, offset) };
            mapping(descriptor, protection, flags, map)
        }
    )*};
}

maps!(mmap, mmap64);

/// Programs copy by themselves where this says that it cannot (EXDEV), and then it goes directly.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copy_file_range(
    from: c_int,
    from_at: *mut off_t,
    to: c_int,
    to_at: *mut off_t,
    bytes: usize,
    flags: c_uint,
) -> isize {
    if tracked(from).or_else(|| tracked(to)).is_some() {
        return returned(Err(Errno::XDEV));
    }
    let real = real!(copy_file_range: (c_int, *mut off_t, c_int, *mut off_t, usize, c_uint) -> isize);
    // SAFETY: the caller's arguments.
    unsafe { real(from, from_at, to, to_at, bytes, flags) }
}

macro_rules! sends {
    ($($name:ident),*) => {$(
        /// # Safety
        /// As for the C library's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(to: c_int, from: c_int, at: *mut off_t, bytes: usize) -> isize {
            let real = real!($name: (c_int, c_int, *mut off_t, usize) -> isize);
            // SAFETY: the caller's arguments.
            let send = || unsafe { real(to, from, at, bytes) };
            match tracked(from).or_else(|| tracked(to)) {
                Some((_inside, file)) => returned(file.file.change(|_| result(send()))),
                None => send(),
            }
        }
    )*};
}

sends!(sendfile, sendfile64);

/// Does something by a path; where the kernel refuses, once more when the files of these paths were given back.
///
/// # Safety
/// The paths are the caller's strings.
unsafe fn at_paths(paths: &[(c_int, *const c_char)], mut real: impl FnMut() -> c_int) -> c_int {
    let Some((_inside, process)) = enter() else { return real() };
    let mut done = result(real());
    for (folder, path) in paths {
        if done != Err(Errno::PERM) || path.is_null() {
            break;
        }
        // SAFETY: as above.
        let path = unsafe { CStr::from_ptr(*path) };
        done = insisting(process, *folder, path, || result(real()));
    }
    returned(done)
}

macro_rules! by_path {
    ($($name:ident ($($argument:ident : $kind:ty),*) at $(($folder:expr, $path:ident))+;)*) => {$(
        /// # Safety
        /// As for the C library's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $kind),*) -> c_int {
            let real = real!($name: ($($kind),*) -> c_int);
            // SAFETY: the caller's arguments.
            unsafe { at_paths(&[$(($folder, $path)),+], || real($($argument),*)) }
        }
    )*};
}

type Path = *const c_char;
const HERE: c_int = libc::AT_FDCWD;

by_path! {
    truncate(path: Path, bytes: off_t) at (HERE, path);
    truncate64(path: Path, bytes: off_t) at (HERE, path);
    unlink(path: Path) at (HERE, path);
    unlinkat(folder: c_int, path: Path, flags: c_int) at (folder, path);
    remove(path: Path) at (HERE, path);
    rename(old: Path, new: Path) at (HERE, old) (HERE, new);
    renameat(from: c_int, old: Path, to: c_int, new: Path) at (from, old) (to, new);
    renameat2(from: c_int, old: Path, to: c_int, new: Path, flags: c_uint) at (from, old) (to, new);
    link(old: Path, new: Path) at (HERE, old);
    linkat(from: c_int, old: Path, to: c_int, new: Path, flags: c_int) at (from, old);
    chmod(path: Path, mode: mode_t) at (HERE, path);
    fchmodat(folder: c_int, path: Path, mode: mode_t, flags: c_int) at (folder, path);
    chown(path: Path, owner: uid_t, group: gid_t) at (HERE, path);
    lchown(path: Path, owner: uid_t, group: gid_t) at (HERE, path);
    fchownat(folder: c_int, path: Path, owner: uid_t, group: gid_t, flags: c_int) at (folder, path);
    utimensat(folder: c_int, path: Path, times: *const libc::timespec, flags: c_int) at (folder, path);
    utimes(path: Path, times: *const libc::timeval) at (HERE, path);
    setxattr(path: Path, name: Path, value: *const c_void, bytes: usize, flags: c_int) at (HERE, path);
    removexattr(path: Path, name: Path) at (HERE, path);
}
