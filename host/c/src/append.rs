//! Appending records by the drive, for programs in C, over the host library's appender.
//!
//! What always holds: a record is copied before its call returns, so that nothing of a caller's is used past it; what may have been appended or not is
//! told by an errno of its own (ECONNRESET).
//!
//! Who may call it: the functions of `libwillow.h`.

use crate::{Failure, invalid, of, range, text, told, willow_session};
use std::ffi::{OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use willow_host::direct_io::{AppendFailure, Appender};

/// A file that is appended to. In a forked child it is left alone.
#[allow(non_camel_case_types)]
pub struct willow_log(Appender);

impl From<AppendFailure> for Failure {
    fn from(failure: AppendFailure) -> Self {
        let errno = match &failure {
            AppendFailure::Unknown(_) => libc::ECONNRESET,
            other => other.errno(),
        };
        Failure(errno, failure.to_string())
    }
}

/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn willow_log_open(session: *mut willow_session, path: *const c_char) -> *mut willow_log {
    let open = || -> Result<_, Failure> {
        // SAFETY: the caller's session and string.
        let (session, path) = unsafe { (of(session, "session")?, text(path, "path")?) };
        let appender = Appender::open(&session.0, Path::new(OsStr::from_bytes(path.to_bytes())))?;
        Ok(Box::into_raw(Box::new(willow_log(appender))))
    };
    told(open(), std::ptr::null_mut())
}

/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn willow_log_append(log: *mut willow_log, record: *const c_void, bytes: usize) -> libc::off_t {
    let append = || -> Result<_, Failure> {
        let (start, bytes) = range(record, bytes)?;
        // SAFETY: the caller's record, for this call, and the caller's log.
        let (record, log) = unsafe { (std::slice::from_raw_parts(start, bytes), of(log, "log")?) };
        Ok(log.0.append(record)? as libc::off_t)
    };
    told(append(), -1)
}

/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn willow_log_size(log: *mut willow_log) -> libc::off_t {
    // SAFETY: the caller's log.
    let size = || -> Result<_, Failure> { Ok(unsafe { of(log, "log") }?.0.length()? as libc::off_t) };
    told(size(), -1)
}

/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn willow_log_give_back(log: *mut willow_log) -> c_int {
    // SAFETY: the caller's log.
    let give_back = || -> Result<_, Failure> { Ok(unsafe { of(log, "log") }?.0.give_back()?) };
    told(give_back().map(|()| 0), -1)
}

/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn willow_log_close(log: *mut willow_log) -> c_int {
    if log.is_null() {
        return told(Err(invalid("the log is NULL")), -1);
    }
    // SAFETY: made by `willow_log_open`, and not used any more.
    let log = unsafe { Box::from_raw(log) };
    told(log.0.give_back().map(|()| 0).map_err(Failure::from), -1)
}
