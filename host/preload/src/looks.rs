//! What is asked of a file without reading it: its length and other attributes, whether it is ready, advice.
//!
//! What always holds:
//! - a descriptor of a file that the device appends to is a mere path: the file is given back before anything is asked by it that such a path
//!   cannot answer, or does not know;
//! - who asks for attributes by a path finds the length with all that the device has appended, whichever process appends: the file is
//!   opened for that, and whoever opens it waits until the file system has its length.

use crate::process::{by_kernel, enter, tracked};
use crate::real;
use crate::real::{code, set_errno};
use libc::{c_char, c_int, c_long, c_ulong, c_void, fd_set, off_t, pollfd, sigset_t, timespec, timeval};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, StatxAttributes, StatxFlags};
use std::ffi::CStr;
use std::os::fd::BorrowedFd;

/// True while a descriptor is a mere path, since the device appends to its file.
fn is_path(descriptor: c_int) -> bool {
    tracked(descriptor).is_some_and(|(_inside, file)| file.file.is_appending())
}

/// Asks by a descriptor.
pub fn by_descriptor<T: PartialOrd + Default + From<i8>>(descriptor: c_int, mut real: impl FnMut() -> T) -> T {
    if is_path(descriptor) { by_kernel(&[descriptor], real) } else { real() }
}

macro_rules! looks {
    ($($name:ident ($($argument:ident : $kind:ty),*) of $descriptor:ident -> $result:ty;)*) => {$(
        /// # Safety
        /// As for the C library's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $kind),*) -> $result {
            // SAFETY: the caller's arguments.
            by_descriptor($descriptor, || unsafe { real!($name: ($($kind),*) -> $result)($($argument),*) })
        }
    )*};
}

type Text = *const c_char;
type Stat = *mut libc::stat;

looks! {
    fstat(fd: c_int, to: Stat) of fd -> c_int;
    fstat64(fd: c_int, to: Stat) of fd -> c_int;
    __fstat64(fd: c_int, to: Stat) of fd -> c_int;
    __fxstat(version: c_int, fd: c_int, to: Stat) of fd -> c_int;
    __fxstat64(version: c_int, fd: c_int, to: Stat) of fd -> c_int;
    fgetxattr(fd: c_int, name: Text, to: *mut c_void, bytes: usize) of fd -> isize;
    flistxattr(fd: c_int, to: *mut c_char, bytes: usize) of fd -> isize;
    posix_fadvise(fd: c_int, at: off_t, bytes: off_t, advice: c_int) of fd -> c_int;
    posix_fadvise64(fd: c_int, at: off_t, bytes: off_t, advice: c_int) of fd -> c_int;
    readahead(fd: c_int, at: off_t, bytes: usize) of fd -> isize;
    syncfs(fd: c_int) of fd -> c_int;
    epoll_ctl(poll: c_int, operation: c_int, fd: c_int, event: *mut c_void) of fd -> c_int;
}

/// Asks by a path; of a regular file that is immutable once more when it has been open for a moment.
///
/// # Safety
/// `path` is the caller's string.
unsafe fn by_path(folder: c_int, path: Text, flags: c_int, mut real: impl FnMut() -> c_int) -> c_int {
    // SAFETY: looked at where it is there: the kernel has read it, or says that it cannot. No path is the empty one (Linux 6.11).
    let is_empty = || path.is_null() || unsafe { *path == 0 };
    let done = real();
    if done != 0 {
        return done;
    }
    if is_empty() {
        return if is_path(folder) { by_kernel(&[folder], real) } else { done };
    }
    let code = code();
    let Some((_inside, process)) = enter() else { return done };
    // SAFETY: as above.
    let path = unsafe { CStr::from_ptr(path) };
    // With a path from the root on no folder is looked at, whatever number is there.
    let folder = if folder == -1 { libc::AT_FDCWD } else { folder };
    // SAFETY: lent by the caller for this call; AT_FDCWD stands for the working folder.
    let folder = unsafe { BorrowedFd::borrow_raw(folder) };
    let nofollow = flags & libc::AT_SYMLINK_NOFOLLOW != 0;
    let at = if nofollow { AtFlags::SYMLINK_NOFOLLOW } else { AtFlags::empty() };
    let is_others = rustix::fs::statx(folder, path, at, StatxFlags::TYPE | StatxFlags::INO).is_ok_and(|found| {
        let device = rustix::fs::makedev(found.stx_dev_major, found.stx_dev_minor);
        // To close a descriptor of a file that this process has open would end its record locks there; and the device appends to no file that anybody
        // has open otherwise.
        let is_open = || process.with_identity((device, found.stx_ino)).is_some_and(|file| !file.file.is_appending());
        FileType::from_raw_mode(found.stx_mode.into()) == FileType::RegularFile
            && found.stx_attributes.contains(StatxAttributes::IMMUTABLE)
            && process.is_watching(device)
            && !is_open()
    });
    if is_others {
        let how = OFlags::RDONLY | OFlags::CLOEXEC | if nofollow { OFlags::NOFOLLOW } else { OFlags::empty() };
        // Who may not read it finds the length that the file system has.
        drop(rustix::fs::openat(folder, path, how, Mode::empty()));
        let again = real();
        set_errno(code);
        return again;
    }
    set_errno(code);
    done
}

macro_rules! paths {
    ($($name:ident ($($argument:ident : $kind:ty),*) at ($folder:expr, $path:ident, $flags:expr);)*) => {$(
        /// # Safety
        /// As for the C library's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $kind),*) -> c_int {
            let real = real!($name: ($($kind),*) -> c_int);
            // SAFETY: the caller's arguments.
            unsafe { by_path($folder, $path, $flags, || real($($argument),*)) }
        }
    )*};
}

const HERE: c_int = libc::AT_FDCWD;
const LINK: c_int = libc::AT_SYMLINK_NOFOLLOW;

paths! {
    stat(path: Text, to: Stat) at (HERE, path, 0);
    stat64(path: Text, to: Stat) at (HERE, path, 0);
    lstat(path: Text, to: Stat) at (HERE, path, LINK);
    lstat64(path: Text, to: Stat) at (HERE, path, LINK);
    fstatat(folder: c_int, path: Text, to: Stat, flags: c_int) at (folder, path, flags);
    fstatat64(folder: c_int, path: Text, to: Stat, flags: c_int) at (folder, path, flags);
    statx(folder: c_int, path: Text, flags: c_int, mask: u32, to: *mut libc::statx) at (folder, path, flags);
    __xstat(version: c_int, path: Text, to: Stat) at (HERE, path, 0);
    __xstat64(version: c_int, path: Text, to: Stat) at (HERE, path, 0);
    __lxstat(version: c_int, path: Text, to: Stat) at (HERE, path, LINK);
    __lxstat64(version: c_int, path: Text, to: Stat) at (HERE, path, LINK);
    __fxstatat(version: c_int, folder: c_int, path: Text, to: Stat, flags: c_int) at (folder, path, flags);
    __fxstatat64(version: c_int, folder: c_int, path: Text, to: Stat, flags: c_int) at (folder, path, flags);
}

/// Waits for descriptors, of which some are mere paths.
fn waiting<T: PartialOrd + Default + From<i8>>(descriptors: impl Iterator<Item = c_int>, real: impl FnMut() -> T) -> T {
    let paths: Vec<c_int> = match enter() {
        Some((inside, process)) if process.known_session().is_some() => {
            drop(inside);
            descriptors.filter(|descriptor| is_path(*descriptor)).collect()
        }
        _ => Vec::new(),
    };
    by_kernel(&paths, real)
}

/// # Safety
/// The caller's list, which the kernel looks at next.
unsafe fn polled(all: *const pollfd, count: c_ulong) -> impl Iterator<Item = c_int> {
    let bytes = usize::try_from(count).ok().and_then(|count| count.checked_mul(size_of::<pollfd>()));
    let there = bytes.is_some_and(|bytes| crate::memory::is_there(all.cast_mut().cast(), bytes, false));
    // SAFETY: as above, and it is there.
    (0..if there { count as usize } else { 0 }).map(move |index| unsafe { (*all.add(index)).fd })
}

/// A call that waits for these, by its number.
///
/// # Safety
/// As for [`polled`].
pub unsafe fn polling(all: *const pollfd, count: c_ulong, real: impl FnMut() -> c_long) -> c_long {
    // SAFETY: as above.
    waiting(unsafe { polled(all, count) }, real)
}

macro_rules! polls {
    ($($name:ident ($all:ident, $count:ident $(, $argument:ident : $kind:ty)*);)*) => {$(
        /// # Safety
        /// As for the C library's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($all: *mut pollfd, $count: c_ulong $(, $argument: $kind)*) -> c_int {
            let real = real!($name: (*mut pollfd, c_ulong $(, $kind)*) -> c_int);
            // SAFETY: the caller's arguments.
            unsafe { waiting(polled($all, $count), || real($all, $count $(, $argument)*)) }
        }
    )*};
}

polls! {
    poll(all, count, wait_ms: c_int);
    __poll(all, count, wait_ms: c_int);
    __poll_chk(all, count, wait_ms: c_int, room: usize);
    ppoll(all, count, wait: *const timespec, signals: *const sigset_t);
    __ppoll_chk(all, count, wait: *const timespec, signals: *const sigset_t, room: usize);
}

/// # Safety
/// The caller's sets, which the kernel looks at next.
unsafe fn selected(count: c_int, sets: [*const fd_set; 3]) -> impl Iterator<Item = c_int> {
    let there =
        sets.map(|set| !set.is_null() && crate::memory::is_there(set.cast_mut().cast(), size_of::<fd_set>(), false));
    let is_in = move |descriptor: c_int| {
        // SAFETY: as above, and it is there; the number is within a set.
        sets.iter().zip(there).any(|(set, there)| there && unsafe { libc::FD_ISSET(descriptor, *set) })
    };
    (0..count.clamp(0, libc::FD_SETSIZE as c_int)).filter(move |descriptor| is_in(*descriptor))
}

/// A call that waits for these, by its number.
///
/// # Safety
/// As for [`selected`].
pub unsafe fn selecting(count: c_int, sets: [*const fd_set; 3], real: impl FnMut() -> c_long) -> c_long {
    // SAFETY: as above.
    waiting(unsafe { selected(count, sets) }, real)
}

macro_rules! selects {
    ($($name:ident ($($argument:ident : $kind:ty),*);)*) => {$(
        /// # Safety
        /// As for the C library's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            count: c_int,
            reads: *mut fd_set,
            writes: *mut fd_set,
            others: *mut fd_set
            $(, $argument: $kind)*
        ) -> c_int {
            let real = real!($name: (c_int, *mut fd_set, *mut fd_set, *mut fd_set $(, $kind)*) -> c_int);
            // SAFETY: the caller's arguments.
            unsafe {
                let descriptors = selected(count, [reads, writes, others]);
                waiting(descriptors, || real(count, reads, writes, others $(, $argument)*))
            }
        }
    )*};
}

selects! {
    select(wait: *mut timeval);
    __select(wait: *mut timeval);
    pselect(wait: *const timespec, signals: *const sigset_t);
}
