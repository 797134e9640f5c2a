//! Memory of scans under way: as much for each, for so many at once; others wait in line.
//!
//! What always holds: who waits for the host (a DMA that is parked until the agent has answered) holds no buffers meanwhile, so that a
//! process whose agent is slow keeps nobody else from scanning.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};

use willow_sdk::Found;
use willow_sdk::sync::Event;

use crate::wire::REPLY_BYTES_MAX;

/// Bytes that are scanned while the next ones are read.
pub const CHUNK_BYTES: usize = 16 << 10;
/// Most matches that the accelerator brings at once.
pub const MATCHES_MAX: usize = 128;
/// Most scans at once.
const SCANS_MAX: usize = 4;

/// The memory of one scan.
pub struct Buffer {
    /// What is scanned, and what is being read.
    pub chunks: [Box<[u8]>; 2],
    /// What is replied.
    pub reply: Box<[u8]>,
    /// What the accelerator finds in a block, and in a segment: lists of one.
    pub found: [Vec<Found<MATCHES_MAX>>; 2],
}

fn boxed(bytes: usize) -> Option<Box<[u8]>> {
    let mut room = Vec::new();
    room.try_reserve_exact(bytes).ok()?;
    room.resize(bytes, 0);
    Some(room.into_boxed_slice())
}

/// In a list of one, which says where there is no memory.
fn found() -> Option<Vec<Found<MATCHES_MAX>>> {
    let mut room = Vec::new();
    room.try_reserve_exact(1).ok()?;
    room.push(Found::new());
    Some(room)
}

impl Buffer {
    fn new() -> Option<Buffer> {
        let chunks = [boxed(CHUNK_BYTES)?, boxed(CHUNK_BYTES)?];
        Some(Buffer { chunks, reply: boxed(REPLY_BYTES_MAX)?, found: [found()?, found()?] })
    }
}

/// All of them.
pub struct Buffers {
    free: RefCell<Vec<Buffer>>,
    made: Cell<usize>,
    given_back: Event,
}

impl Buffers {
    /// None made yet.
    pub const fn new() -> Buffers {
        Buffers { free: RefCell::new(Vec::new()), made: Cell::new(0), given_back: Event::new() }
    }

    /// Waits for one; `None` where the SPU has no memory for the first.
    pub async fn take(&self) -> Option<Buffer> {
        loop {
            let free = self.free.borrow_mut().pop();
            if free.is_some() {
                return free;
            }
            if self.made.get() < SCANS_MAX {
                let has_room = self.free.borrow_mut().try_reserve(SCANS_MAX).is_ok();
                let made = if has_room { Buffer::new() } else { None };
                if made.is_some() {
                    self.made.set(self.made.get() + 1);
                    return made;
                }
                if self.made.get() == 0 {
                    return None;
                }
            }
            self.given_back.wait().await;
        }
    }

    /// Gives one back.
    pub fn give(&self, buffer: Buffer) {
        self.free.borrow_mut().push(buffer);
        self.given_back.notify_all();
    }
}
