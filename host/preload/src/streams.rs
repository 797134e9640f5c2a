//! Streams of the C library: it reads and writes their descriptors past this library.
//!
//! What always holds: the file of a stream stays with the kernel while the stream is open, and until what it had buffered is written. So does
//! one that gets the number of standard error, or of another standard stream that the program has used.

use crate::descriptors::insisting;
use crate::process::enter;
use crate::real;
use crate::real::{code, errno, set_errno};
use libc::{FILE, c_char, c_int};
use rustix::io::Errno;
use std::ffi::CStr;
use willow_host::direct_io::Waits;

unsafe extern "C" {
    static mut _IO_2_1_stdin_: FILE;
    static mut _IO_2_1_stdout_: FILE;
    fn __fbufsize(stream: *mut FILE) -> usize;
}

/// True where a standard stream writes or reads by this number: standard error at any time, the others when they have a buffer, which they
/// get when they are first used.
pub fn have(descriptor: c_int) -> bool {
    // SAFETY: the C library's own, which are always there.
    let is_used = |stream: *mut FILE| unsafe { __fbufsize(stream) } > 0;
    match descriptor {
        libc::STDIN_FILENO => is_used(&raw mut _IO_2_1_stdin_),
        libc::STDOUT_FILENO => is_used(&raw mut _IO_2_1_stdout_),
        libc::STDERR_FILENO => true,
        _ => false,
    }
}

/// The descriptor of a stream, if it has one.
fn number(stream: *mut FILE) -> Option<c_int> {
    // SAFETY: one that is open.
    let number = unsafe { libc::fileno(stream) };
    (number >= 0).then_some(number)
}

fn opened(stream: *mut FILE) {
    let code = code();
    if !stream.is_null()
        && let Some((_inside, process)) = enter()
        && let Some(descriptor) = number(stream)
    {
        process.opened_shared(descriptor);
    }
    set_errno(code);
}

/// # Safety
/// The path is the caller's.
unsafe fn opening(path: *const c_char, mut real: impl FnMut() -> *mut FILE) -> *mut FILE {
    let mut stream = real();
    if stream.is_null() && errno() == Errno::PERM && !path.is_null() {
        let once = || {
            let stream = real();
            if stream.is_null() { Err(errno()) } else { Ok(stream) }
        };
        // SAFETY: as above.
        let path = unsafe { CStr::from_ptr(path) };
        match insisting(&[(libc::AT_FDCWD, path, true)], Waits::Interruptible, once) {
            Ok(opened) => stream = opened,
            Err(error) => set_errno(error.raw_os_error()),
        }
    }
    opened(stream);
    stream
}

macro_rules! opens {
    ($($name:ident),*) => {$(
        /// # Safety
        /// As for the C library's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(path: *const c_char, mode: *const c_char) -> *mut FILE {
            let real = real!($name: (*const c_char, *const c_char) -> *mut FILE);
            // SAFETY: the caller's arguments.
            unsafe { opening(path, || real(path, mode)) }
        }
    )*};
}

opens!(fopen, fopen64);

/// Does what closes a stream's descriptor: its file stays with the kernel until that has been done.
fn closing<T>(stream: *mut FILE, real: impl FnOnce() -> T) -> T {
    let found = enter().filter(|_| !stream.is_null()).and_then(|(inside, process)| {
        let descriptor = number(stream)?;
        let hold = process.get(descriptor)?.file.hold();
        process.forget(descriptor);
        drop(inside);
        Some(hold)
    });
    let done = real();
    let code = code();
    drop(found);
    set_errno(code);
    done
}

/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fclose(stream: *mut FILE) -> c_int {
    // SAFETY: the caller's stream.
    closing(stream, || unsafe { real!(fclose: (*mut FILE) -> c_int)(stream) })
}

macro_rules! reopens {
    ($($name:ident),*) => {$(
        /// # Safety
        /// As for the C library's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE {
            let real = real!($name: (*const c_char, *const c_char, *mut FILE) -> *mut FILE);
            // Whether it was opened or not, the old one is closed: what refuses it is asked for beforehand.
            if !path.is_null() {
                release(path, mode);
            }
            // SAFETY: the caller's arguments.
            let reopened = closing(stream, || unsafe { real(path, mode, stream) });
            opened(reopened);
            reopened
        }
    )*};
}

reopens!(freopen, freopen64);

/// Has a file that is open directly given back, so that it can be opened in this mode.
fn release(path: *const c_char, mode: *const c_char) {
    // SAFETY: the caller's strings.
    let (path_text, mode) = unsafe { (CStr::from_ptr(path), CStr::from_ptr(mode)) };
    if mode.to_bytes().iter().all(|letter| !b"wa+".contains(letter)) {
        return;
    }
    // Opened and closed again: then it is nobody's directly until this process uses it.
    let once = || {
        // SAFETY: as above.
        let opened = unsafe { libc::open(path, libc::O_WRONLY | libc::O_CLOEXEC | libc::O_NONBLOCK) };
        if opened < 0 {
            return Err(errno());
        }
        // SAFETY: opened above.
        unsafe { libc::close(opened) };
        Ok(())
    };
    let _ = insisting(&[(libc::AT_FDCWD, path_text, true)], Waits::ToTheEnd, once);
}

/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdopen(descriptor: c_int, mode: *const c_char) -> *mut FILE {
    if let Some((_inside, process)) = enter() {
        process.keep(descriptor);
    }
    // SAFETY: the caller's.
    unsafe { real!(fdopen: (c_int, *const c_char) -> *mut FILE)(descriptor, mode) }
}
