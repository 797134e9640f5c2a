//! Queues of `libwillow.h`.
//!
//! What always holds: as in the parent module; a queue is one thread's at a time, as the header asks.

use crate::{Failure, invalid, of, offset_of, range, ranges, told, willow_file, willow_session};
use std::collections::VecDeque;
use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::OwnedFd;
use std::time::Duration;
use willow_host::direct_io::{Done, Queue, Request};

/// As in the header.
#[repr(C)]
#[allow(non_camel_case_types)]
pub struct willow_done {
    /// Of the operation.
    pub tag: u64,
    /// Bytes, or the negative of an errno.
    pub result: i64,
}

/// A queue, and what has ended and did not fit where it was asked for.
#[allow(non_camel_case_types)]
pub struct willow_queue {
    queue: Queue<OwnedFd>,
    ended: VecDeque<Done>,
    scratch: Vec<Done>,
    depth: usize,
}

/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn willow_queue_open(session: *mut willow_session, depth: c_uint) -> *mut willow_queue {
    let open = || -> Result<_, Failure> {
        // SAFETY: the caller's session.
        let session = unsafe { of(session, "session") }?;
        let queue = Queue::new(&session.0, depth)?;
        let (ended, scratch) = (VecDeque::new(), Vec::new());
        Ok(Box::into_raw(Box::new(willow_queue { queue, ended, scratch, depth: depth as usize })))
    };
    told(open(), std::ptr::null_mut())
}

/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn willow_queue_close(queue: *mut willow_queue) {
    if !queue.is_null() {
        // SAFETY: made by `willow_queue_open`, and not used any more.
        drop(unsafe { Box::from_raw(queue) });
    }
}

/// The queue and the file of a call.
///
/// # Safety
/// Both are null or living, and the queue is nobody else's meanwhile.
unsafe fn both<'a>(
    queue: *mut willow_queue,
    file: *mut willow_file,
) -> Result<(&'a mut willow_queue, &'a willow_file), Failure> {
    // SAFETY: as above.
    let (queue, file) = unsafe { (queue.as_mut(), of(file, "file")?) };
    let queue = queue.ok_or_else(|| invalid("the queue is NULL"))?;
    if queue.queue.under_way() + queue.ended.len() >= queue.depth {
        return Err(Failure(libc::EAGAIN, format!("{} operations are there, which is all that may be", queue.depth)));
    }
    Ok((queue, file))
}

/// # Safety
/// As for [`both`]; the ranges are valid until the operation is handed back.
unsafe fn submit(
    queue: *mut willow_queue,
    file: *mut willow_file,
    tag: u64,
    writes: bool,
    offset: libc::off_t,
    ranges: impl FnOnce() -> Result<Vec<(*mut u8, usize)>, Failure>,
) -> c_int {
    let submitted = || -> Result<_, Failure> {
        // SAFETY: as above.
        let (queue, file) = unsafe { both(queue, file) }?;
        // SAFETY: the caller keeps the ranges valid, says the header.
        unsafe { queue.queue.submit_raw(&file.0, tag, writes, offset_of(offset)?, ranges()?) }?;
        Ok(0)
    };
    told(submitted(), -1)
}

/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn willow_submit_pread(
    queue: *mut willow_queue,
    file: *mut willow_file,
    into: *mut c_void,
    bytes: usize,
    offset: libc::off_t,
    tag: u64,
) -> c_int {
    // SAFETY: the caller's.
    unsafe { submit(queue, file, tag, false, offset, || Ok(vec![range(into, bytes)?])) }
}

/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn willow_submit_pwrite(
    queue: *mut willow_queue,
    file: *mut willow_file,
    from: *const c_void,
    bytes: usize,
    offset: libc::off_t,
    tag: u64,
) -> c_int {
    // SAFETY: the caller's.
    unsafe { submit(queue, file, tag, true, offset, || Ok(vec![range(from, bytes)?])) }
}

/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn willow_submit_preadv(
    queue: *mut willow_queue,
    file: *mut willow_file,
    into: *const libc::iovec,
    count: c_int,
    offset: libc::off_t,
    tag: u64,
) -> c_int {
    // SAFETY: the caller's.
    unsafe { submit(queue, file, tag, false, offset, || ranges(into, count)) }
}

/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn willow_submit_pwritev(
    queue: *mut willow_queue,
    file: *mut willow_file,
    from: *const libc::iovec,
    count: c_int,
    offset: libc::off_t,
    tag: u64,
) -> c_int {
    // SAFETY: the caller's.
    unsafe { submit(queue, file, tag, true, offset, || ranges(from, count)) }
}

/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn willow_submit_fsync(queue: *mut willow_queue, file: *mut willow_file, tag: u64) -> c_int {
    let submitted = || -> Result<_, Failure> {
        // SAFETY: the caller's.
        let (queue, file) = unsafe { both(queue, file) }?;
        queue.queue.submit(&file.0, tag, Request::Sync)?;
        Ok(0)
    };
    told(submitted(), -1)
}

/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn willow_poll(queue: *mut willow_queue, done: *mut willow_done, most: c_int) -> c_int {
    // SAFETY: the caller's.
    unsafe { willow_wait(queue, done, most, 0, 0) }
}

/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn willow_wait(
    queue: *mut willow_queue,
    done: *mut willow_done,
    most: c_int,
    wanted: c_int,
    timeout_ms: c_int,
) -> c_int {
    let waited = || -> Result<_, Failure> {
        // SAFETY: the caller's queue, nobody else's meanwhile.
        let queue = unsafe { queue.as_mut() }.ok_or_else(|| invalid("the queue is NULL"))?;
        if most < 0 || wanted < 0 || (done.is_null() && most > 0) {
            return Err(invalid("what is to be handed back, and where to, makes no sense"));
        }
        let most = most as usize;
        let missing = (wanted as usize).min(most).saturating_sub(queue.ended.len());
        let timeout = u64::try_from(timeout_ms).map_or(Duration::MAX, Duration::from_millis);
        queue.queue.wait(&mut queue.scratch, missing, if missing == 0 { Duration::ZERO } else { timeout });
        queue.ended.extend(queue.scratch.drain(..));
        let count = most.min(queue.ended.len());
        for (index, one) in queue.ended.drain(..count).enumerate() {
            let result = one.result.map_or_else(|error| -i64::from(error.errno()), |bytes| bytes as i64);
            // SAFETY: the caller has room for `most` of them.
            unsafe { done.add(index).write(willow_done { tag: one.tag, result }) };
        }
        Ok(count as c_int)
    };
    told(waited(), -1)
}
