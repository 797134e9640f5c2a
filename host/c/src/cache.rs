//! Files through their caches on the drive, for programs in C, over the host library's cached files.
//!
//! What always holds: a descriptor of the file is the library's own, opened by the caller's path and rights; nothing of a caller's memory is used past
//! a call.
//!
//! Who may call it: the functions of `libwillow.h`.

use crate::{Failure, invalid, of, range, text, told, willow_session};
use libc::{off_t, ssize_t};
use rustix::fs::{Mode as FileMode, OFlags};
use std::ffi::{c_char, c_int, c_void};
use willow_host::cache::{CacheError, CacheOptions, Mode};
use willow_host::direct_io::CachedFile;

/// As in the header.
const AS_IT_IS: c_int = 0;
const WRITE_THROUGH: c_int = 1;
const WRITE_BACK: c_int = 2;

/// A file through its cache. In a forked child it is left alone.
#[allow(non_camel_case_types)]
pub struct willow_cached(CachedFile);

impl From<CacheError> for Failure {
    fn from(failure: CacheError) -> Self {
        Failure(failure.errno(), failure.to_string())
    }
}

fn at(offset: off_t) -> Result<u64, Failure> {
    u64::try_from(offset).map_err(|_| invalid("an offset is not negative"))
}

/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn willow_cached_open(
    session: *mut willow_session,
    path: *const c_char,
    flags: c_int,
    mode: c_int,
    cache_bytes: u64,
) -> *mut willow_cached {
    let open = || -> Result<_, Failure> {
        // SAFETY: the caller's session and string.
        let (session, path) = unsafe { (of(session, "session")?, text(path, "path")?) };
        let mode = match mode {
            AS_IT_IS => None,
            WRITE_THROUGH => Some(Mode::WriteThrough),
            WRITE_BACK => Some(Mode::WriteBack),
            _ => return Err(invalid("there is no such mode of a cache")),
        };
        if !matches!(flags, libc::O_RDONLY | libc::O_RDWR) {
            return Err(invalid("a cached file is opened by O_RDONLY or O_RDWR alone"));
        }
        let flags = OFlags::from_bits_retain(flags as u32) | OFlags::CLOEXEC;
        let file = rustix::fs::open(path, flags, FileMode::empty())?;
        let options = CacheOptions { mode, bytes: (cache_bytes > 0).then_some(cache_bytes), chunk_bytes: None };
        let cached = CachedFile::open(&session.0, file.into(), options)?;
        Ok(Box::into_raw(Box::new(willow_cached(cached))))
    };
    told(open(), std::ptr::null_mut())
}

/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn willow_cached_pread(
    file: *mut willow_cached,
    into: *mut c_void,
    bytes: usize,
    offset: off_t,
) -> ssize_t {
    let read = || -> Result<_, Failure> {
        let (start, bytes) = range(into, bytes)?;
        // SAFETY: the caller's buffer, for this call, and the caller's file.
        let (into, file) = unsafe { (std::slice::from_raw_parts_mut(start, bytes), of(file, "file")?) };
        Ok(file.0.read_at(into, at(offset)?)? as ssize_t)
    };
    told(read(), -1)
}

/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn willow_cached_pwrite(
    file: *mut willow_cached,
    from: *const c_void,
    bytes: usize,
    offset: off_t,
) -> ssize_t {
    let write = || -> Result<_, Failure> {
        let (start, bytes) = range(from, bytes)?;
        // SAFETY: the caller's buffer, for this call, and the caller's file.
        let (from, file) = unsafe { (std::slice::from_raw_parts(start, bytes), of(file, "file")?) };
        file.0.write_at(from, at(offset)?)?;
        Ok(bytes as ssize_t)
    };
    told(write(), -1)
}

/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn willow_cached_sync(file: *mut willow_cached) -> c_int {
    // SAFETY: the caller's file.
    let sync = || -> Result<_, Failure> { Ok(unsafe { of(file, "file") }?.0.sync()?) };
    told(sync().map(|()| 0), -1)
}

/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn willow_cached_size(file: *mut willow_cached) -> off_t {
    // SAFETY: the caller's file.
    let size = || -> Result<_, Failure> { Ok(unsafe { of(file, "file") }?.0.shape()?.0 as off_t) };
    told(size(), -1)
}

/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn willow_cached_mode(file: *mut willow_cached) -> c_int {
    let mode = || -> Result<_, Failure> {
        // SAFETY: the caller's file.
        Ok(match unsafe { of(file, "file") }?.0.shape()?.2 {
            Mode::WriteThrough => WRITE_THROUGH,
            Mode::WriteBack => WRITE_BACK,
        })
    };
    told(mode(), -1)
}

/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn willow_cached_close(file: *mut willow_cached) -> c_int {
    if file.is_null() {
        return told(Err(invalid("the file is NULL")), -1);
    }
    // SAFETY: made by `willow_cached_open`, and not used any more.
    drop(unsafe { Box::from_raw(file) });
    0
}
