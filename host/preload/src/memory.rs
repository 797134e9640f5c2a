//! Whether a caller's memory is there: the kernel answers EFAULT, or moves a part, where this library would crash.
//!
//! What always holds:
//! - memory is looked at once, by a system call that faults its pages in; a thread remembers its latest ranges, until the program unmaps
//!   or protects anything;
//! - what does not look right is left to the kernel, which says what is wrong with it.

use rustix::mm::{Advice, madvise};
use std::cell::Cell;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

const PAGE_BYTES: usize = 4096;
/// Ranges that a thread remembers.
const RANGES: usize = 4;

#[derive(Clone, Copy)]
struct Range {
    start: usize,
    end: usize,
    /// Of the process' mappings, when it was looked at.
    epoch: u64,
    is_writable: bool,
}

const NOTHING: Range = Range { start: 0, end: 0, epoch: 0, is_writable: false };

thread_local! {
    static KNOWN: Cell<([Range; RANGES], usize)> = const { Cell::new(([NOTHING; RANGES], 0)) };
}

/// Raised whenever memory may have gone, or changed its protection.
static EPOCH: AtomicU64 = AtomicU64::new(1);
/// Whether the kernel can be asked: 0 is not known yet, 1 yes, 2 no (before 5.14).
static CAN_ASK: AtomicU32 = AtomicU32::new(0);

/// Memory is about to go, or to change its protection.
pub fn forget() {
    EPOCH.fetch_add(1, Ordering::SeqCst);
}

fn populate(start: usize, end: usize, writes: bool) -> bool {
    let advice = if writes { Advice::LinuxPopulateWrite } else { Advice::LinuxPopulateRead };
    // SAFETY: faults pages in, as touching them would, and changes nothing.
    unsafe { madvise(start as *mut c_void, end - start, advice) }.is_ok()
}

fn can_ask() -> bool {
    match CAN_ASK.load(Ordering::Relaxed) {
        0 => {
            let here = 0_u8;
            let page = std::ptr::from_ref(&here) as usize & !(PAGE_BYTES - 1);
            let can = populate(page, page + PAGE_BYTES, true);
            CAN_ASK.store(if can { 1 } else { 2 }, Ordering::Relaxed);
            can
        }
        known => known == 1,
    }
}

/// True where these bytes can be read, or written.
pub fn is_there(start: *const c_void, bytes: usize, writes: bool) -> bool {
    let start = start as usize;
    let Some(end) = start.checked_add(bytes).and_then(|end| end.checked_next_multiple_of(PAGE_BYTES)) else {
        return false;
    };
    let start = start & !(PAGE_BYTES - 1);
    let epoch = EPOCH.load(Ordering::SeqCst);
    let Ok((mut known, next)) = KNOWN.try_with(Cell::get) else { return false };
    let covers = |range: &Range| {
        range.epoch == epoch && range.start <= start && end <= range.end && (range.is_writable || !writes)
    };
    if known.iter().any(covers) {
        return true;
    }
    if can_ask() && !populate(start, end, writes) {
        return false;
    }
    known[next] = Range { start, end, epoch, is_writable: writes };
    let _ = KNOWN.try_with(|all| all.set((known, (next + 1) % RANGES)));
    true
}
