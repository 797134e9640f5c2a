//! Opening, closing and duplicating descriptors.
//!
//! What always holds: what the kernel does comes first when something is opened or duplicated, and last when it is closed.

use crate::process::{Process, enter};
use crate::real;
use crate::real::{result, returned};
use libc::{c_char, c_int, c_long, c_uint, c_void, mode_t};
use rustix::io::Errno;
use std::ffi::CStr;
use std::os::fd::BorrowedFd;
use std::path::Path;

/// Opens by `open`; one more time where a file has to be given back first.
///
/// # Safety
/// `path` is the caller's string.
unsafe fn opening(folder: c_int, path: *const c_char, mut open: impl FnMut() -> c_int) -> c_int {
    let Some((_inside, process)) = enter() else { return open() };
    let mut opened = result(open());
    if opened == Err(Errno::PERM) && !path.is_null() {
        // SAFETY: as above.
        let path = unsafe { CStr::from_ptr(path) };
        opened = insisting(process, folder, path, || result(open()));
    }
    if let Ok(descriptor) = opened {
        process.opened(descriptor);
    }
    returned(opened)
}

/// Does something to a file by its path that the kernel refused, since it may be open directly here or elsewhere.
pub fn insisting<T>(
    process: &Process,
    folder: c_int,
    path: &CStr,
    what: impl FnMut() -> Result<T, Errno>,
) -> Result<T, Errno> {
    let text = path.to_str().unwrap_or_default();
    let chosen = || {
        let path = if Path::new(text).is_absolute() || folder == libc::AT_FDCWD {
            Path::new(text).to_owned()
        } else {
            std::fs::read_link(format!("/proc/self/fd/{folder}")).unwrap_or_default().join(text)
        };
        path.canonicalize().is_ok_and(|path| process.is_chosen(&path))
    };
    if process.known_session().is_none() && !chosen() {
        return Err(Errno::PERM);
    }
    let Some(session) = process.session() else { return Err(Errno::PERM) };
    // SAFETY: lent by the caller for this call; AT_FDCWD stands for the working folder.
    let folder = unsafe { BorrowedFd::borrow_raw(folder) };
    session.change(path, folder, what)
}

macro_rules! opens {
    ($($name:ident ($($argument:ident : $kind:ty),*) at ($folder:expr, $path:ident);)*) => {$(
        /// # Safety
        /// As for the C library's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $kind),*) -> c_int {
            let real = real!($name: ($($kind),*) -> c_int);
            // SAFETY: the caller's arguments.
            unsafe { opening($folder, $path, || real($($argument),*)) }
        }
    )*};
}

// The C library's are variadic in the mode: an integer there is passed as one that is named.
opens! {
    open(path: *const c_char, flags: c_int, mode: mode_t) at (libc::AT_FDCWD, path);
    open64(path: *const c_char, flags: c_int, mode: mode_t) at (libc::AT_FDCWD, path);
    openat(folder: c_int, path: *const c_char, flags: c_int, mode: mode_t) at (folder, path);
    openat64(folder: c_int, path: *const c_char, flags: c_int, mode: mode_t) at (folder, path);
    creat(path: *const c_char, mode: mode_t) at (libc::AT_FDCWD, path);
    creat64(path: *const c_char, mode: mode_t) at (libc::AT_FDCWD, path);
    __open_2(path: *const c_char, flags: c_int) at (libc::AT_FDCWD, path);
    __open64_2(path: *const c_char, flags: c_int) at (libc::AT_FDCWD, path);
    __openat_2(folder: c_int, path: *const c_char, flags: c_int) at (folder, path);
    __openat64_2(folder: c_int, path: *const c_char, flags: c_int) at (folder, path);
}

/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close(descriptor: c_int) -> c_int {
    if let Some((_inside, process)) = enter() {
        process.forget(descriptor);
    }
    // SAFETY: the caller's descriptor.
    unsafe { real!(close: (c_int) -> c_int)(descriptor) }
}

/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    if let Some((_inside, process)) = enter()
        && flags & libc::CLOSE_RANGE_CLOEXEC as c_int == 0
    {
        process.forget_range(first, last);
    }
    // SAFETY: the caller's descriptors.
    unsafe { real!(close_range: (c_uint, c_uint, c_int) -> c_int)(first, last, flags) }
}

/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn closefrom(first: c_int) {
    if let Some((_inside, process)) = enter() {
        process.forget_range(first.max(0) as u32, u32::MAX);
    }
    // SAFETY: the caller's descriptors.
    unsafe { real!(closefrom: (c_int) -> ())(first) }
}

/// A stream goes past this library, and closes its descriptor itself.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdopen(descriptor: c_int, mode: *const c_char) -> *mut c_void {
    if let Some((_inside, process)) = enter() {
        process.forget(descriptor);
    }
    // SAFETY: the caller's.
    unsafe { real!(fdopen: (c_int, *const c_char) -> *mut c_void)(descriptor, mode) }
}

/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup(from: c_int) -> c_int {
    // SAFETY: the caller's descriptor.
    let to = unsafe { real!(dup: (c_int) -> c_int)(from) };
    note_duplicate(from, to);
    to
}

fn note_duplicate(from: c_int, to: c_int) {
    if to >= 0
        && let Some((_inside, process)) = enter()
    {
        process.duplicated(from, to);
    }
}

/// Replaces a descriptor: what it was is forgotten first.
fn replacing(from: c_int, to: c_int, real: impl FnOnce() -> c_int) -> c_int {
    if from != to
        && let Some((_inside, process)) = enter()
    {
        process.forget(to);
    }
    let done = real();
    if from != to {
        note_duplicate(from, done);
    }
    done
}

/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup2(from: c_int, to: c_int) -> c_int {
    // SAFETY: the caller's descriptors.
    replacing(from, to, || unsafe { real!(dup2: (c_int, c_int) -> c_int)(from, to) })
}

/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int {
    // SAFETY: the caller's descriptors.
    replacing(from, to, || unsafe { real!(dup3: (c_int, c_int, c_int) -> c_int)(from, to, flags) })
}

fn after_fcntl(descriptor: c_int, command: c_int, done: c_int) -> c_int {
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => note_duplicate(descriptor, done),
        libc::F_SETFL => {
            if let Some((_inside, process)) = enter() {
                process.flags_changed(descriptor);
            }
        }
        _ => {}
    }
    done
}

/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcntl(descriptor: c_int, command: c_int, argument: c_long) -> c_int {
    // SAFETY: the caller's; an argument that it did not give is not looked at.
    let done = unsafe { real!(fcntl: (c_int, c_int, c_long) -> c_int)(descriptor, command, argument) };
    after_fcntl(descriptor, command, done)
}

/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcntl64(descriptor: c_int, command: c_int, argument: c_long) -> c_int {
    // SAFETY: as for `fcntl`.
    let done = unsafe { real!(fcntl64: (c_int, c_int, c_long) -> c_int)(descriptor, command, argument) };
    after_fcntl(descriptor, command, done)
}

/// A child that shares this process' memory would change what is tracked here: it gets a copy instead.
///
/// # Safety
/// As for the C library's `fork`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vfork() -> libc::pid_t {
    // SAFETY: as above.
    unsafe { libc::fork() }
}

macro_rules! executes {
    ($($name:ident ($($argument:ident : $kind:ty),*);)*) => {$(
        /// All is given back before another program takes this one's place: it finds what it inherits by itself.
        ///
        /// # Safety
        /// As for the C library's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $kind),*) -> c_int {
            if let Some((_inside, process)) = enter() {
                process.give_back();
            }
            // SAFETY: the caller's arguments.
            unsafe { real!($name: ($($kind),*) -> c_int)($($argument),*) }
        }
    )*};
}

type Strings = *const *const c_char;

executes! {
    execve(path: *const c_char, arguments: Strings, environment: Strings);
    execv(path: *const c_char, arguments: Strings);
    execvp(path: *const c_char, arguments: Strings);
    execvpe(path: *const c_char, arguments: Strings, environment: Strings);
    fexecve(descriptor: c_int, arguments: Strings, environment: Strings);
}

/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _exit(status: c_int) -> ! {
    crate::process::end();
    // SAFETY: ends the process.
    unsafe { real!(_exit: (c_int) -> !)(status) }
}

/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _Exit(status: c_int) -> ! {
    // SAFETY: as above.
    unsafe { _exit(status) }
}
