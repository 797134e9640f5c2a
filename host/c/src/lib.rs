//! libwillow for programs in C: the functions of `libwillow.h`, over the host library's files and queues.
//!
//! What always holds: a pointer is null, or what one of these functions returned and not yet took back (the header says so); errors
//! are errno and a sentence of the thread's own; no panic crosses the boundary, since what could fail is a `Result`.

mod append;
mod cache;
mod compute;
mod kv;
mod queue;

use rustix::fs::{Mode, OFlags};
use std::cell::RefCell;
use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use willow_host::direct_io::{DirectError, File, Session, SessionOptions};

/// As in the header.
const VERSION: u32 = 6;
/// Most elements of a vector, as in Linux (IOV_MAX).
const VECTOR_MAX: c_int = 1024;

thread_local! {
    static ERROR: RefCell<CString> = RefCell::default();
}

/// An error to be told: errno, and the sentence.
struct Failure(c_int, String);

impl From<DirectError> for Failure {
    fn from(error: DirectError) -> Self {
        Failure(error.errno(), error.to_string())
    }
}

impl From<rustix::io::Errno> for Failure {
    fn from(error: rustix::io::Errno) -> Self {
        DirectError::from(error).into()
    }
}

fn invalid(what: &str) -> Failure {
    Failure(libc::EINVAL, what.to_owned())
}

/// Sets errno and the sentence where it failed, and returns what the function returns then.
fn told<T>(done: Result<T, Failure>, failed: T) -> T {
    done.unwrap_or_else(|Failure(errno, sentence)| {
        let sentence = CString::new(sentence.replace('\0', " ")).unwrap_or_default();
        ERROR.with_borrow_mut(|error| *error = sentence);
        // SAFETY: the thread's own errno.
        unsafe { *libc::__errno_location() = errno };
        failed
    })
}

/// A session.
#[allow(non_camel_case_types)]
pub struct willow_session(Arc<Session>);

/// A file. In a forked child it is left alone.
#[allow(non_camel_case_types)]
pub struct willow_file(Arc<File<OwnedFd>>);

/// What a pointer of a caller points to.
///
/// # Safety
/// It is null, or points to a living value for as long as the reference is used.
unsafe fn of<'a, T>(pointer: *const T, what: &str) -> Result<&'a T, Failure> {
    // SAFETY: as above.
    unsafe { pointer.as_ref() }.ok_or_else(|| invalid(&format!("the {what} is NULL")))
}

/// # Safety
/// It is null, or a string that ends with a zero byte.
unsafe fn text<'a>(pointer: *const c_char, what: &str) -> Result<&'a CStr, Failure> {
    if pointer.is_null() {
        return Err(invalid(&format!("the {what} is NULL")));
    }
    // SAFETY: as above.
    Ok(unsafe { CStr::from_ptr(pointer) })
}

fn offset_of(offset: libc::off_t) -> Result<u64, Failure> {
    u64::try_from(offset).map_err(|_| invalid("the offset is negative"))
}

/// The ranges of a vector.
///
/// # Safety
/// `vector` has `count` elements, whose ranges are valid.
unsafe fn ranges(vector: *const libc::iovec, count: c_int) -> Result<Vec<(*mut u8, usize)>, Failure> {
    if !(0..=VECTOR_MAX).contains(&count) || (vector.is_null() && count > 0) {
        return Err(invalid("a vector has 0 to 1024 elements"));
    }
    if count == 0 {
        return Ok(Vec::new());
    }
    // SAFETY: as above.
    let all = unsafe { std::slice::from_raw_parts(vector, count as usize) };
    let used = all.iter().filter(|it| it.iov_len > 0);
    if used.clone().any(|it| it.iov_base.is_null() || it.iov_len > isize::MAX as usize) {
        return Err(Failure(libc::EFAULT, "an element of the vector is NULL".to_owned()));
    }
    Ok(used.map(|it| (it.iov_base.cast(), it.iov_len)).collect())
}

/// One range.
fn range(start: *const c_void, bytes: usize) -> Result<(*mut u8, usize), Failure> {
    if bytes > isize::MAX as usize {
        return Err(invalid("more bytes than there can be"));
    }
    match (start.is_null(), bytes) {
        (_, 0) => Ok((std::ptr::NonNull::dangling().as_ptr(), 0)),
        (true, _) => Err(Failure(libc::EFAULT, "the buffer is NULL".to_owned())),
        _ => Ok((start.cast_mut().cast(), bytes)),
    }
}

/// Version of the library.
#[unsafe(no_mangle)]
pub extern "C" fn willow_version() -> u32 {
    VERSION
}

/// The sentence about the thread's last failure.
#[unsafe(no_mangle)]
pub extern "C" fn willow_error() -> *const c_char {
    ERROR.with_borrow(|error| error.as_ptr())
}

/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn willow_session_open(device: *const c_char, agent: *const c_char) -> *mut willow_session {
    let opened = || -> Result<_, Failure> {
        // SAFETY: the caller's string.
        let agent = unsafe { text(agent, "agent's path")? };
        let path = |text: &CStr| OsStr::from_bytes(text.to_bytes()).to_owned();
        let options = match device.is_null() {
            true => SessionOptions::by_agent(path(agent)),
            // SAFETY: the caller's string.
            false => SessionOptions::new(path(unsafe { CStr::from_ptr(device) }), path(agent)),
        };
        let session = Session::open(options)?;
        Ok(Box::into_raw(Box::new(willow_session(session))))
    };
    told(opened(), std::ptr::null_mut())
}

/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn willow_session_close(session: *mut willow_session) {
    if !session.is_null() {
        // SAFETY: made by `willow_session_open`, and not used any more.
        drop(unsafe { Box::from_raw(session) });
    }
}

fn opened(file: File) -> Result<*mut willow_file, Failure> {
    // Where it is refused it goes through the kernel.
    let _ = file.take();
    Ok(Box::into_raw(Box::new(willow_file(Arc::new(file)))))
}

/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn willow_open(
    session: *mut willow_session,
    path: *const c_char,
    flags: c_int,
    mode: libc::mode_t,
) -> *mut willow_file {
    let open = || -> Result<_, Failure> {
        // SAFETY: the caller's session and string.
        let (session, path) = unsafe { (of(session, "session")?, text(path, "path")?) };
        let flags = OFlags::from_bits_retain(flags as u32);
        opened(File::open(&session.0, path, flags, Mode::from_raw_mode(mode))?)
    };
    told(open(), std::ptr::null_mut())
}

/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn willow_open_descriptor(session: *mut willow_session, descriptor: c_int) -> *mut willow_file {
    let open = || -> Result<_, Failure> {
        // SAFETY: the caller's session.
        let session = unsafe { of(session, "session") }?;
        if descriptor < 0 {
            return Err(rustix::io::Errno::BADF.into());
        }
        // SAFETY: lent for this call; one that is not open is an error of the system calls on it.
        let lent = unsafe { BorrowedFd::borrow_raw(descriptor) };
        // It is the caller's until nothing can be wrong with it any more.
        drop(File::new(&session.0, lent)?);
        // SAFETY: the caller hands it over.
        let owned = unsafe { OwnedFd::from_raw_fd(descriptor) };
        opened(File::new(&session.0, owned)?)
    };
    told(open(), std::ptr::null_mut())
}

/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn willow_close(file: *mut willow_file) -> c_int {
    if file.is_null() {
        return told(Err(invalid("the file is NULL")), -1);
    }
    // SAFETY: made by `opened`, and not used any more.
    drop(unsafe { Box::from_raw(file) });
    0
}

/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn willow_is_direct(file: *mut willow_file) -> c_int {
    // SAFETY: the caller's file.
    told(unsafe { of(file, "file") }.map(|file| c_int::from(file.0.is_direct())), -1)
}

/// What is done to a file, and -1 where that fails.
///
/// # Safety
/// See [`of`].
unsafe fn with(file: *const willow_file, what: impl FnOnce(&File) -> Result<usize, Failure>) -> isize {
    // SAFETY: the caller's file.
    let done = unsafe { of(file, "file") }.and_then(|file| what(&file.0));
    told(done.map(|count| count as isize), -1)
}

/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn willow_take(file: *mut willow_file) -> c_int {
    // SAFETY: the caller's file.
    unsafe { with(file, |file| Ok(file.take().map(|()| 0)?)) as c_int }
}

/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn willow_descriptor(file: *const willow_file) -> c_int {
    // SAFETY: the caller's file.
    unsafe { with(file, |file| Ok(file.descriptor().as_raw_fd() as usize)) as c_int }
}

/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn willow_pread(
    file: *mut willow_file,
    into: *mut c_void,
    bytes: usize,
    offset: libc::off_t,
) -> isize {
    let read = |file: &File| {
        let (start, bytes) = range(into, bytes)?;
        // SAFETY: the caller's buffer, for this call.
        let into = unsafe { std::slice::from_raw_parts_mut(start, bytes) };
        Ok(file.pread(into, offset_of(offset)?)?)
    };
    // SAFETY: the caller's file.
    unsafe { with(file, read) }
}

/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn willow_pwrite(
    file: *mut willow_file,
    from: *const c_void,
    bytes: usize,
    offset: libc::off_t,
) -> isize {
    let write = |file: &File| {
        let (start, bytes) = range(from, bytes)?;
        // SAFETY: the caller's buffer, for this call.
        let from = unsafe { std::slice::from_raw_parts(start, bytes) };
        Ok(file.pwrite(from, offset_of(offset)?)?)
    };
    // SAFETY: the caller's file.
    unsafe { with(file, write) }
}

/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn willow_preadv(
    file: *mut willow_file,
    into: *const libc::iovec,
    count: c_int,
    offset: libc::off_t,
) -> isize {
    let read = |file: &File| {
        // SAFETY: the caller's vector, for this call.
        let ranges = unsafe { ranges(into, count) }?;
        // SAFETY: as above.
        let slice = |(start, bytes)| IoSliceMut::new(unsafe { std::slice::from_raw_parts_mut(start, bytes) });
        let mut slices: Vec<_> = ranges.into_iter().map(slice).collect();
        Ok(file.preadv(&mut slices, offset_of(offset)?)?)
    };
    // SAFETY: the caller's file.
    unsafe { with(file, read) }
}

/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn willow_pwritev(
    file: *mut willow_file,
    from: *const libc::iovec,
    count: c_int,
    offset: libc::off_t,
) -> isize {
    let write = |file: &File| {
        // SAFETY: the caller's vector, for this call.
        let ranges = unsafe { ranges(from, count) }?;
        // SAFETY: as above.
        let slice =
            |(start, bytes): (*mut u8, usize)| IoSlice::new(unsafe { std::slice::from_raw_parts(start, bytes) });
        let slices: Vec<_> = ranges.into_iter().map(slice).collect();
        Ok(file.pwritev(&slices, offset_of(offset)?)?)
    };
    // SAFETY: the caller's file.
    unsafe { with(file, write) }
}

/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn willow_fsync(file: *mut willow_file) -> c_int {
    // SAFETY: the caller's file.
    unsafe { with(file, |file| Ok(file.sync(false).map(|()| 0)?)) as c_int }
}

/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn willow_fdatasync(file: *mut willow_file) -> c_int {
    // SAFETY: the caller's file.
    unsafe { with(file, |file| Ok(file.sync(true).map(|()| 0)?)) as c_int }
}

/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn willow_ftruncate(file: *mut willow_file, bytes: libc::off_t) -> c_int {
    // SAFETY: the caller's file.
    unsafe { with(file, |file| Ok(file.set_bytes(offset_of(bytes)?).map(|()| 0)?)) as c_int }
}

/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn willow_size(file: *mut willow_file) -> libc::off_t {
    // SAFETY: the caller's file.
    unsafe { with(file, |file| Ok(file.bytes()? as usize)) as libc::off_t }
}
