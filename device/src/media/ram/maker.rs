//! Makes memory ready beside the data path: a thread that has the operating system put pages behind addresses before anybody writes there.
//! The first touch of 2 MiB takes milliseconds, and the data path must not wait for it.
//!
//! What always holds:
//! - the thread writes to memory that nobody else has at that time: pieces that it has not handed out, and homes whose flag is not set;
//! - at most [`Maker::set_target`] pieces lie ready, and at most [`HOMES_WAITING_MAX`] homes wait;
//! - it ends before the value is dropped, so that no memory is touched afterwards.
//!
//! Stores in memory call it; nobody else does.

use super::memory::{Mapping, Pages};
use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Bytes that memory is made ready in: a huge page of x86-64 and arm64.
pub(super) const PIECE_BYTES: usize = 2 << 20;
/// Bytes from one touch to the next.
const PAGE_BYTES: usize = 4096;
/// Most homes that wait to be made ready; who finds no place asks again later.
const HOMES_WAITING_MAX: usize = 1 << 16;

/// Memory of a chunk in its bank, to be made ready.
struct Home {
    base: NonNull<u8>,
    ready: Arc<AtomicBool>,
}

// SAFETY: a home's memory is the maker's alone until its flag is set ([`Maker::make_home`]).
unsafe impl Send for Home {}

#[derive(Default)]
struct Work {
    homes: VecDeque<Home>,
    ready: Vec<Mapping>,
    /// Pieces that shall lie ready.
    target: usize,
    /// Pieces to give back.
    spent: Vec<Mapping>,
    /// No piece could be made: the machine has no memory left. Tried again when somebody asks.
    failed: bool,
    stop: bool,
}

#[derive(Default)]
struct Desk {
    work: Mutex<Work>,
    changed: Condvar,
    /// Homes that wait or are being made.
    homes: AtomicUsize,
}

impl Desk {
    fn work(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The thread and what it is asked for.
pub(super) struct Maker {
    desk: Arc<Desk>,
    thread: Option<JoinHandle<()>>,
}

impl Maker {
    /// Starts it, with so many pieces to lie ready.
    pub fn start(target: usize) -> std::io::Result<Maker> {
        let desk = Arc::new(Desk::default());
        desk.work().target = target;
        let of_thread = desk.clone();
        let thread = std::thread::Builder::new().name("willow-memory".to_owned()).spawn(move || run(&of_thread))?;
        Ok(Maker { desk, thread: Some(thread) })
    }

    /// A piece that is ready, where one is.
    pub fn take(&self) -> Option<Mapping> {
        let mut work = self.desk.work();
        let piece = work.ready.pop();
        work.failed = false;
        drop(work);
        self.desk.changed.notify_one();
        piece
    }

    /// How many pieces shall lie ready.
    pub fn set_target(&self, target: usize) {
        self.desk.work().target = target;
    }

    /// Gives a piece back to the operating system.
    pub fn give_back(&self, piece: Mapping) {
        self.desk.work().spent.push(piece);
        self.desk.changed.notify_one();
    }

    /// Has a chunk's own memory made ready; the flag is set once it is. `None`: too many wait.
    ///
    /// # Safety
    /// [`PIECE_BYTES`] from `base` on are writable, all zero, and stay mapped for as long as this maker lives; nobody else uses them
    /// before the flag is set.
    pub unsafe fn make_home(&self, base: NonNull<u8>) -> Option<Arc<AtomicBool>> {
        let mut work = self.desk.work();
        if work.homes.len() >= HOMES_WAITING_MAX {
            return None;
        }
        let ready = Arc::new(AtomicBool::new(false));
        work.homes.push_back(Home { base, ready: ready.clone() });
        self.desk.homes.fetch_add(1, Ordering::Relaxed);
        drop(work);
        self.desk.changed.notify_one();
        Some(ready)
    }

    /// Homes that were asked for and are not ready.
    #[inline]
    pub fn homes_waiting(&self) -> usize {
        self.desk.homes.load(Ordering::Relaxed)
    }

    /// Waits until nothing is left to do.
    #[cfg(test)]
    pub fn settle(&self) {
        for _ in 0..10_000 {
            let work = self.desk.work();
            if self.homes_waiting() == 0 && work.ready.len() >= work.target && work.spent.is_empty() {
                return;
            }
            drop(work);
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        panic!("memory is not made ready");
    }
}

impl Drop for Maker {
    fn drop(&mut self) {
        self.desk.work().stop = true;
        self.desk.changed.notify_one();
        // What it was at is over once it has ended.
        if let Some(Err(panic)) = self.thread.take().map(JoinHandle::join)
            && !std::thread::panicking()
        {
            std::panic::resume_unwind(panic);
        }
    }
}

fn run(desk: &Desk) {
    let mut work = desk.work();
    loop {
        if work.stop {
            return;
        }
        let spent = std::mem::take(&mut work.spent);
        if !spent.is_empty() {
            drop(work);
            drop(spent);
            work = desk.work();
        } else if work.ready.len() < work.target && !work.failed {
            // Pieces first: they serve any place, a home but one.
            drop(work);
            let piece = Mapping::new(PIECE_BYTES, Pages::Huge).ok();
            if let Some(piece) = &piece {
                touch(piece.base());
            }
            work = desk.work();
            work.failed = piece.is_none();
            work.ready.extend(piece);
        } else if let Some(home) = work.homes.pop_front() {
            // The store's address space stays mapped until this thread has ended, so that the lock need not be held.
            drop(work);
            touch(home.base);
            home.ready.store(true, Ordering::Release);
            desk.homes.fetch_sub(1, Ordering::Relaxed);
            work = desk.work();
        } else {
            work = desk.changed.wait(work).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Has pages put behind [`PIECE_BYTES`] that are all zero. By touching: the fault locks this range alone, while `madvise` would keep
/// other threads from mapping memory for as long as it takes.
fn touch(base: NonNull<u8>) {
    for offset in (0..PIECE_BYTES).step_by(PAGE_BYTES) {
        // SAFETY: the piece was mapped by this thread, or is a home that nobody else uses now ([`Maker::make_home`]).
        unsafe { base.add(offset).write_volatile(0) };
    }
}
