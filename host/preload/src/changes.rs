//! What changes a file otherwise than by writing to it, asks whether it may be written, or moves its bytes in the kernel: done by the kernel,
//! when the file has been given back; and mappings, with which a file stays with the kernel.
//!
//! What always holds: what the kernel refuses since the file is open directly, here or in another process, is done once more when
//! nobody has it so.

use crate::descriptors::insisting;
use crate::memory;
use crate::process::{by_kernel, enter};
use crate::real;
use crate::real::{result, returned};
use libc::{c_char, c_int, c_uint, c_void, gid_t, mode_t, off_t, uid_t};
use rustix::io::Errno;
use std::ffi::CStr;
use willow_host::agent::freeze::is_immutable;
use willow_host::direct_io::Waits;

macro_rules! by_descriptor {
    ($($name:ident ($first:ident $(, $argument:ident : $kind:ty)*);)*) => {$(
        /// # Safety
        /// As for the C library's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($first: c_int $(, $argument: $kind)*) -> c_int {
            let real = real!($name: (c_int $(, $kind)*) -> c_int);
            // SAFETY: the caller's arguments.
            by_kernel(&[$first], || unsafe { real($first $(, $argument)*) })
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
            let mut said = 0;
            by_kernel(&[descriptor], || {
                // SAFETY: the caller's arguments.
                said = unsafe { real(descriptor, at, bytes) };
                crate::real::set_errno(said);
                if said == 0 { 0 } else { -1 }
            });
            said
        }
    )*};
}

allocates!(posix_fallocate, posix_fallocate64);

fn mapping(descriptor: c_int, protection: c_int, flags: c_int, mut map: impl FnMut() -> *mut c_void) -> *mut c_void {
    if flags & libc::MAP_FIXED != 0 {
        let mapped = map_of(descriptor, protection, flags, map);
        memory::forget();
        return mapped;
    }
    map_of(descriptor, protection, flags, &mut map)
}

fn map_of(descriptor: c_int, protection: c_int, flags: c_int, mut map: impl FnMut() -> *mut c_void) -> *mut c_void {
    if flags & libc::MAP_ANONYMOUS != 0 {
        return map();
    }
    let Some((_inside, process)) = enter() else { return map() };
    let Some(file) = process.get(descriptor) else { return map() };
    process.keep_mapped(&file);
    let writes = protection & libc::PROT_WRITE != 0 && flags & libc::MAP_TYPE != libc::MAP_PRIVATE;
    let mut once = || {
        // Nobody may have it directly while it is written through a mapping.
        if writes && is_immutable(file.file.descriptor()) {
            return Err(Errno::PERM);
        }
        let mapped = map();
        if mapped == libc::MAP_FAILED { Err(crate::real::errno()) } else { Ok(mapped) }
    };
    let mut mapped = file.file.insist(&mut once);
    if mapped == Err(Errno::ACCESS) {
        // A descriptor that only reads still: or that was opened so.
        mapped = file.file.give_back().and_then(|()| file.file.insist(once));
    }
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

macro_rules! unmaps {
    ($($name:ident ($($argument:ident : $kind:ty),*) -> $result:ty;)*) => {$(
        /// # Safety
        /// As for the C library's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $kind),*) -> $result {
            // SAFETY: the caller's arguments.
            let done = unsafe { real!($name: ($($kind),*) -> $result)($($argument),*) };
            memory::forget();
            done
        }
    )*};
}

unmaps! {
    munmap(at: *mut c_void, bytes: usize) -> c_int;
    mprotect(at: *mut c_void, bytes: usize, protection: c_int) -> c_int;
    pkey_mprotect(at: *mut c_void, bytes: usize, protection: c_int, key: c_int) -> c_int;
    mremap(at: *mut c_void, bytes: usize, new: usize, flags: c_int, to: *mut c_void) -> *mut c_void;
    shmdt(at: *const c_void) -> c_int;
}

macro_rules! between {
    ($($name:ident ($($argument:ident : $kind:ty),*) of $from:ident, $to:ident;)*) => {$(
        /// # Safety
        /// As for the C library's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $kind),*) -> isize {
            let real = real!($name: ($($kind),*) -> isize);
            // SAFETY: the caller's arguments.
            by_kernel(&[$from, $to], || unsafe { real($($argument),*) })
        }
    )*};
}

type At = *mut off_t;

between! {
    sendfile(to: c_int, from: c_int, at: At, bytes: usize) of from, to;
    sendfile64(to: c_int, from: c_int, at: At, bytes: usize) of from, to;
    splice(from: c_int, from_at: At, to: c_int, to_at: At, bytes: usize, flags: c_uint) of from, to;
    copy_file_range(from: c_int, from_at: At, to: c_int, to_at: At, bytes: usize, flags: c_uint) of from, to;
}

/// Does something by a path; where the kernel refuses, once more when the files of these paths were given back.
///
/// # Safety
/// The paths are the caller's strings.
pub unsafe fn at_paths(paths: &[(c_int, *const c_char, bool)], mut real: impl FnMut() -> c_int) -> c_int {
    let mut done = result(real());
    if done == Err(Errno::PERM) && !crate::planted("path") {
        let those = paths.iter().filter(|(_, path, _)| !path.is_null());
        // SAFETY: as above.
        let those: Vec<_> =
            those.map(|(folder, path, follows)| (*folder, unsafe { CStr::from_ptr(*path) }, *follows)).collect();
        done = insisting(&those, Waits::ToTheEnd, || result(real()));
    }
    returned(done)
}

macro_rules! by_path {
    ($($name:ident ($($argument:ident : $kind:ty),*) at $(($folder:expr, $path:ident, $follows:expr))+;)*) => {$(
        /// # Safety
        /// As for the C library's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $kind),*) -> c_int {
            let real = real!($name: ($($kind),*) -> c_int);
            // SAFETY: the caller's arguments.
            unsafe { at_paths(&[$(($folder, $path, $follows)),+], || real($($argument),*)) }
        }
    )*};
}

type Path = *const c_char;
type Times = *const libc::timeval;
type Bytes = *const c_void;
const HERE: c_int = libc::AT_FDCWD;

/// True where these flags of a call say to follow links.
pub fn follows(flags: c_int) -> bool {
    flags & libc::AT_SYMLINK_NOFOLLOW == 0
}

by_path! {
    truncate(path: Path, bytes: off_t) at (HERE, path, true);
    truncate64(path: Path, bytes: off_t) at (HERE, path, true);
    unlink(path: Path) at (HERE, path, false);
    unlinkat(folder: c_int, path: Path, flags: c_int) at (folder, path, false);
    remove(path: Path) at (HERE, path, false);
    rename(old: Path, new: Path) at (HERE, old, false) (HERE, new, false);
    renameat(from: c_int, old: Path, to: c_int, new: Path) at (from, old, false) (to, new, false);
    renameat2(from: c_int, old: Path, to: c_int, new: Path, flags: c_uint) at (from, old, false) (to, new, false);
    link(old: Path, new: Path) at (HERE, old, false);
    linkat(from: c_int, old: Path, to: c_int, new: Path, flags: c_int)
        at (from, old, flags & libc::AT_SYMLINK_FOLLOW != 0);
    chmod(path: Path, mode: mode_t) at (HERE, path, true);
    fchmodat(folder: c_int, path: Path, mode: mode_t, flags: c_int) at (folder, path, follows(flags));
    lchmod(path: Path, mode: mode_t) at (HERE, path, false);
    chown(path: Path, owner: uid_t, group: gid_t) at (HERE, path, true);
    lchown(path: Path, owner: uid_t, group: gid_t) at (HERE, path, false);
    fchownat(folder: c_int, path: Path, owner: uid_t, group: gid_t, flags: c_int) at (folder, path, follows(flags));
    utimensat(folder: c_int, path: Path, times: *const libc::timespec, flags: c_int) at (folder, path, follows(flags));
    utimes(path: Path, times: Times) at (HERE, path, true);
    lutimes(path: Path, times: Times) at (HERE, path, false);
    futimesat(folder: c_int, path: Path, times: Times) at (folder, path, true);
    utime(path: Path, times: *const libc::utimbuf) at (HERE, path, true);
    setxattr(path: Path, name: Path, value: Bytes, bytes: usize, flags: c_int) at (HERE, path, true);
    lsetxattr(path: Path, name: Path, value: Bytes, bytes: usize, flags: c_int) at (HERE, path, false);
    removexattr(path: Path, name: Path) at (HERE, path, true);
    lremovexattr(path: Path, name: Path) at (HERE, path, false);
    access(path: Path, mode: c_int) at (HERE, path, true);
    eaccess(path: Path, mode: c_int) at (HERE, path, true);
    euidaccess(path: Path, mode: c_int) at (HERE, path, true);
    faccessat(folder: c_int, path: Path, mode: c_int, flags: c_int) at (folder, path, follows(flags));
}
