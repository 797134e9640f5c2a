//! Opening, closing and duplicating descriptors.
//!
//! What always holds:
//! - what the kernel does comes first when something is opened or duplicated, and last when it is closed;
//! - while a descriptor is replaced (`dup2`) it is what the program opened, the old one or the new one: a thread that uses it meanwhile finds
//!   no placeholder.

use crate::process::{Process, Raw, enter, tracked};
use crate::real;
use crate::real::{result, returned};
use libc::{c_char, c_int, c_long, c_uint, mode_t};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::ffi::CStr;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::PoisonError;
use willow_host::direct_io::{Place, Waits, refused as as_refused};
use willow_shm::own::{is_own, without_own};

/// Opens by `open`; one more time where a file has to be given back first.
///
/// # Safety
/// `path` is the caller's string.
pub unsafe fn opening(folder: c_int, path: *const c_char, mut open: impl FnMut() -> c_int) -> c_int {
    let Some((inside, process)) = enter() else { return open() };
    let since = process.sharing.since();
    // It may wait for whoever opens the other end.
    drop(inside);
    let mut opened = result(open());
    if let Err(refused @ (Errno::PERM | Errno::AGAIN)) = opened
        && !path.is_null()
    {
        // SAFETY: as above.
        let path = unsafe { CStr::from_ptr(path) };
        let once = || result(open()).map_err(as_refused);
        opened = insisting(&[(folder, path, true)], Waits::Interruptible, once);
        opened = opened.map_err(|error| if error == Errno::PERM { refused } else { error });
    }
    if let (Ok(descriptor), Some((_inside, process))) = (opened, enter()) {
        process.opened(descriptor, since);
    }
    returned(opened)
}

/// The name that a path has, links in it followed or not: as it can be opened without following any.
fn name_of(folder: c_int, path: &CStr, follows: bool) -> Option<PathBuf> {
    let path = std::path::Path::new(std::ffi::OsStr::from_bytes(path.to_bytes()));
    let whole = if path.is_absolute() || folder == libc::AT_FDCWD {
        path.to_owned()
    } else {
        std::fs::read_link(format!("/proc/self/fd/{folder}")).ok()?.join(path)
    };
    if follows {
        return whole.canonicalize().ok();
    }
    let parent = whole.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(std::path::Path::new(".")).canonicalize().ok()?;
    Some(parent.join(whole.file_name()?))
}

/// Does something to files by their paths (and whether links are followed) that the kernel refused, since one may be open directly here or
/// elsewhere.
pub fn insisting<T>(
    paths: &[(c_int, &CStr, bool)],
    waits: Waits,
    what: impl FnMut() -> Result<T, Errno>,
) -> Result<T, Errno> {
    let Some((_inside, process)) = enter() else { return Err(Errno::PERM) };
    let known = process.known_session().is_some();
    let is_chosen = |(folder, path, follows): &(c_int, &CStr, bool)| {
        known || name_of(*folder, path, *follows).is_some_and(|name| process.is_chosen(&name))
    };
    let chosen = paths.iter().filter(|path| path.0 != -1 && is_chosen(path));
    let places: Vec<Place<'_>> = chosen
        .map(|(folder, path, follows)| {
            // SAFETY: lent by the caller for this call, and not -1; AT_FDCWD stands for the working folder.
            Place { folder: unsafe { BorrowedFd::borrow_raw(*folder) }, path, follows: *follows }
        })
        .collect();
    match process.session().filter(|_| !places.is_empty()) {
        Some(session) => session.change(&places, waits, what),
        None => Err(Errno::PERM),
    }
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
        if is_own(descriptor) {
            return returned(Err::<c_int, _>(Errno::BADF));
        }
        process.forget(descriptor);
    }
    // SAFETY: the caller's descriptor.
    unsafe { real!(close: (c_int) -> c_int)(descriptor) }
}

/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    if flags & libc::CLOSE_RANGE_UNSHARE as c_int != 0 {
        // Other threads keep what this one closes.
        crate::identity::leave();
    }
    if flags & libc::CLOSE_RANGE_CLOEXEC as c_int == 0 && first <= last {
        if let Some((_inside, process)) = enter() {
            process.forget_range(first, last);
        }
        let done = without_own(first, last).into_iter().try_for_each(|(first, last)| {
            // SAFETY: the caller's descriptors, without those of this library.
            result(unsafe { real!(close_range: (c_uint, c_uint, c_int) -> c_int)(first, last, flags) }).map(|_| ())
        });
        return returned(done.map(|()| 0));
    }
    // SAFETY: the caller's descriptors; or they are to be closed on exec, as the library's are.
    unsafe { real!(close_range: (c_uint, c_uint, c_int) -> c_int)(first, last, flags) }
}

/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn closefrom(first: c_int) {
    if let Some((_inside, process)) = enter() {
        process.forget_range(first.max(0) as u32, u32::MAX);
        let ranges = without_own(first.max(0) as u32, u32::MAX);
        if ranges.len() > 1 {
            for (first, last) in ranges {
                // SAFETY: the caller's descriptors, without those of this library.
                unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
            }
            return;
        }
    }
    // SAFETY: the caller's descriptors.
    unsafe { real!(closefrom: (c_int) -> ())(first) }
}

/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup(from: c_int) -> c_int {
    // SAFETY: the caller's descriptor.
    duplicating(from, || unsafe { real!(dup: (c_int) -> c_int)(from) })
}

/// Duplicates a descriptor. Its file is given back meanwhile, so that the duplicate is of what the program opened.
fn duplicating(from: c_int, real: impl FnOnce() -> c_int) -> c_int {
    let Some((_inside, process)) = enter() else { return real() };
    duplicating_in(process, from, real)
}

fn duplicating_in(process: &Process, from: c_int, real: impl FnOnce() -> c_int) -> c_int {
    let Some(file) = process.get(from) else {
        let to = real();
        // Whatever was under that number is not there any more.
        process.forget(to);
        return to;
    };
    let _hold = file.hold();
    let to = real();
    if to >= 0 {
        process.duplicated(from, to);
    }
    to
}

/// The same onto a number, of which what it was is forgotten first.
fn replacing(from: c_int, to: c_int, real: impl FnOnce() -> c_int) -> c_int {
    // Where it cannot be, what is under the other number stays there.
    if from == to || from < 0 || rustix::io::fcntl_getfd(Raw(from)).is_err() {
        return real();
    }
    let Some((_inside, process)) = enter() else { return real() };
    if is_own(to) {
        return returned(Err::<c_int, _>(Errno::BUSY));
    }
    let Some(before) = process.get(to) else { return duplicating_in(process, from, real) };
    // Other threads read and write by it until it is another's.
    let _hold = (!crate::planted("dup2")).then(|| before.file.hold());
    // None of them is between its look at the position and its end.
    let _alone = before.description.position.lock().unwrap_or_else(PoisonError::into_inner);
    process.forget(to);
    if crate::planted("dup2") {
        // So that a thread meets it on any machine.
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let done = duplicating_in(process, from, real);
    if done < 0 {
        let code = crate::real::code();
        process.remained(to, &before);
        crate::real::set_errno(code);
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

/// What a program says of locks: they are the kernel's, which drops them when a descriptor of the file is closed or replaced.
const LOCKING: [c_int; 8] = [
    libc::F_SETLK,
    libc::F_SETLKW,
    libc::F_GETLK,
    libc::F_OFD_SETLK,
    libc::F_OFD_SETLKW,
    libc::F_OFD_GETLK,
    libc::F_SETLEASE,
    libc::F_NOTIFY,
];

/// Flags that `F_SETFL` changes.
const CHANGED: c_int = libc::O_APPEND | libc::O_NONBLOCK | libc::O_DIRECT | libc::O_NOATIME | libc::O_ASYNC;

/// A lock is about to be taken on a file, or asked for: it stays with the kernel until it is closed.
pub fn keep(descriptor: c_int) {
    if let Some((_inside, process)) = enter() {
        process.keep(descriptor);
    }
}

fn control(descriptor: c_int, command: c_int, argument: c_long, real: impl Fn() -> c_int) -> c_int {
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => duplicating(descriptor, real),
        libc::F_SETFL => {
            let Some((_inside, process)) = enter() else { return real() };
            let Some(file) = process.get(descriptor) else { return real() };
            let done = file.file.set_flags(OFlags::from_bits_retain(argument as u32));
            process.flags_changed(descriptor);
            returned(done.map(|()| 0))
        }
        libc::F_GETFL => match tracked(descriptor) {
            // What it was opened with: while the file is direct, the descriptor only reads. What can be changed may have been, by
            // whoever has it too.
            Some((_inside, file)) => match file.file.flags().map(|flags| flags.bits() as c_int) {
                Ok(flags) if file.description.is_kept() => flags & !CHANGED | real() & CHANGED,
                flags => returned(flags),
            },
            None => real(),
        },
        _ if LOCKING.contains(&command) => {
            keep(descriptor);
            real()
        }
        // A mere path has them, too.
        libc::F_GETFD | libc::F_SETFD => real(),
        _ => crate::looks::by_descriptor(descriptor, real),
    }
}

macro_rules! controls {
    ($($name:ident),*) => {$(
        /// # Safety
        /// As for the C library's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(descriptor: c_int, command: c_int, argument: c_long) -> c_int {
            let real = real!($name: (c_int, c_int, c_long) -> c_int);
            // SAFETY: the caller's; an argument that it did not give is not looked at.
            control(descriptor, command, argument, || unsafe { real(descriptor, command, argument) })
        }
    )*};
}

controls!(fcntl, fcntl64);

macro_rules! locks {
    ($($name:ident ($first:ident $(, $argument:ident : $kind:ty)*);)*) => {$(
        /// # Safety
        /// As for the C library's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($first: c_int $(, $argument: $kind)*) -> c_int {
            keep($first);
            // SAFETY: the caller's arguments.
            unsafe { real!($name: (c_int $(, $kind)*) -> c_int)($first $(, $argument)*) }
        }
    )*};
}

locks! {
    flock(fd, operation: c_int);
    lockf(fd, command: c_int, bytes: libc::off_t);
    lockf64(fd, command: c_int, bytes: libc::off_t);
}
