//! A bank in memory: one range of addresses, and for places in it whose memory is not ready yet, frames.
//!
//! A bank is cut into chunks of 2 MiB. Without a [`Maker`] every chunk is *settled*: its bytes are at their place in the bank's mapping,
//! whose pages the operating system makes at the first touch. With one, the data path does not wait for that:
//!
//! ```text
//! fresh      nothing is written: reads as zeroes
//!   | a small write
//! scattered  written pages are in frames; from HOME_PAGES_MIN of them on the maker readies the chunk's own memory, its home
//!   | home is ready: new pages go there, and each operation brings MOVED_FRAMES_MAX frames home
//! settled    all is at home
//! ```
//! A large write into a fresh chunk settles it at once, since a copy costs about as much as what it would wait for, and asks for the next
//! chunk's home where writes come in order. So does a small one that comes in order while the maker is behind: a fill goes at the speed of
//! the maker instead of leaving all of it to be brought home later.
//!
//! What always holds:
//! - a page of a scattered chunk is absent, in a frame or at home, and never at two places;
//! - the home of a scattered chunk is the maker's from the time that it is asked for until its flag is set; nobody else touches it then;
//! - a byte at home whose page is absent is zero;
//! - a chunk becomes fresh only while its home is not the maker's.
//!
//! The store in memory calls it, from one thread.

use super::frames::{FRAME_BYTES, Frame, Frames};
use super::maker::{Maker, PIECE_BYTES};
use super::memory::Mapping;
use std::collections::BTreeMap;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes of a chunk.
pub(super) const CHUNK_BYTES: u64 = PIECE_BYTES as u64;
/// Pages of a chunk.
const CHUNK_PAGES: usize = PIECE_BYTES / FRAME_BYTES;
/// Written pages from which on a chunk's home is made ready: a home costs 2 MiB, so that memory is at most 64 times what is written.
const HOME_PAGES_MIN: usize = 8;
/// Most frames that one operation brings home: some microseconds.
const MOVED_FRAMES_MAX: usize = 8;
/// From this length on a write settles a fresh chunk.
const LARGE_BYTES_MIN: usize = 64 * 1024;
/// From so many homes that are not ready on, whoever writes in order, and faster than memory can be made, waits for it.
const HOMES_BACKLOG_MIN: usize = 32;

/// Where a page of a scattered chunk is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Page {
    Absent,
    Frame(Frame),
    Home,
}

/// What is known of a chunk at a glance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum State {
    // Zero: a bank's table costs memory where chunks are written alone.
    Fresh = 0,
    Scattered = 1,
    Settled = 2,
}

struct Scattered {
    pages: Box<[Page; CHUNK_PAGES]>,
    frames: usize,
    /// Pages below are brought home already.
    moved: usize,
    /// Present once the home was asked for; true once it is ready.
    home: Option<Arc<AtomicBool>>,
}

impl Scattered {
    fn new() -> Scattered {
        Scattered { pages: Box::new([Page::Absent; CHUNK_PAGES]), frames: 0, moved: 0, home: None }
    }

    fn home_is_ready(&self) -> bool {
        // Acquire: the maker's zeroes were written before.
        self.home.as_ref().is_some_and(|ready| ready.load(Ordering::Acquire))
    }

    fn home_is_the_makers(&self) -> bool {
        self.home.as_ref().is_some_and(|ready| !ready.load(Ordering::Acquire))
    }
}

/// What the chunks of a store share.
pub(super) struct ReadyAhead {
    pub maker: Maker,
    pub frames: Frames,
}

/// The chunks of a bank that is made ready ahead.
pub(super) struct Chunks {
    states: Vec<u8>,
    scattered: BTreeMap<usize, Scattered>,
}

impl Chunks {
    pub fn new(bank_bytes: u64) -> Chunks {
        // Zeroed pages of the operating system: no memory until a state is set.
        Chunks { states: vec![0; bank_bytes.div_ceil(CHUNK_BYTES) as usize], scattered: BTreeMap::new() }
    }

    /// True where all of a range is at its place in the mapping. The range lies in the bank.
    #[inline(always)]
    pub fn is_settled(&self, address: u64, bytes: u64) -> bool {
        let first = (address / CHUNK_BYTES) as usize;
        let last = ((address + bytes).saturating_sub(1) / CHUNK_BYTES) as usize;
        self.states.get(first..=last).is_some_and(|states| states.iter().all(|state| *state == State::Settled as u8))
    }

    fn state(&self, chunk: usize) -> State {
        match self.states[chunk] {
            0 => State::Fresh,
            1 => State::Scattered,
            _ => State::Settled,
        }
    }

    /// Writes a range of the bank.
    #[cold]
    pub fn write(&mut self, mapping: &Mapping, ahead: &mut ReadyAhead, address: u64, from: &[u8]) -> bool {
        let mut done = 0;
        for (chunk, part) in parts(address, from.len() as u64, CHUNK_BYTES) {
            let bytes = &from[done..done + part.len()];
            done += part.len();
            if self.state(chunk) == State::Fresh {
                let in_order = part.start == 0 && chunk > 0 && self.state(chunk - 1) != State::Fresh;
                let large = bytes.len() >= LARGE_BYTES_MIN;
                if large || (in_order && ahead.maker.homes_waiting() >= HOMES_BACKLOG_MIN) {
                    self.states[chunk] = State::Settled as u8;
                }
                if large && in_order {
                    self.ask_for(mapping, ahead, chunk + 1);
                }
            }
            if self.state(chunk) == State::Settled {
                // SAFETY: the part lies in the bank, and a settled chunk's memory is its home, which is the store's; `bytes` is a
                // Rust slice and so no part of it.
                unsafe {
                    std::ptr::copy_nonoverlapping(
                        bytes.as_ptr(),
                        home(mapping, chunk, part.start).as_ptr(),
                        bytes.len(),
                    )
                };
            } else if !self.write_scattered(mapping, ahead, chunk, part, bytes) {
                return false;
            }
        }
        true
    }

    /// Has a fresh chunk made ready before it is written to.
    fn ask_for(&mut self, mapping: &Mapping, ahead: &ReadyAhead, chunk: usize) {
        if is_whole(mapping, chunk) && self.state(chunk) == State::Fresh {
            let mut scattered = Scattered::new();
            if ask_for_home(mapping, ahead, chunk, &mut scattered) {
                self.scattered.insert(chunk, scattered);
                self.states[chunk] = State::Scattered as u8;
            }
        }
    }

    fn write_scattered(
        &mut self,
        mapping: &Mapping,
        ahead: &mut ReadyAhead,
        chunk: usize,
        part: Range<usize>,
        from: &[u8],
    ) -> bool {
        self.states[chunk] = State::Scattered as u8;
        let scattered = self.scattered.entry(chunk).or_insert_with(Scattered::new);
        let ready = scattered.home_is_ready();
        let mut done = 0;
        for (page, within) in parts(part.start as u64, part.len() as u64, FRAME_BYTES as u64) {
            let bytes = &from[done..done + within.len()];
            done += within.len();
            let place = match scattered.pages[page] {
                Page::Frame(frame) => ahead.frames.place(frame),
                Page::Home => home(mapping, chunk, page * FRAME_BYTES),
                Page::Absent if ready => {
                    scattered.pages[page] = Page::Home;
                    home(mapping, chunk, page * FRAME_BYTES)
                }
                Page::Absent => {
                    let Some((frame, zero)) = ahead.frames.take(&ahead.maker) else { return false };
                    scattered.pages[page] = Page::Frame(frame);
                    scattered.frames += 1;
                    let place = ahead.frames.place(frame);
                    if !zero && within.len() < FRAME_BYTES {
                        // SAFETY: a frame of this store, which nobody else has.
                        unsafe { std::ptr::write_bytes(place.as_ptr(), 0, FRAME_BYTES) };
                    }
                    place
                }
            };
            // SAFETY: `within` lies in the page, which is a frame of this store or lies in its mapping, and at home only once the
            // maker is done; `bytes` is a Rust slice and so no part of it.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), place.add(within.start).as_ptr(), bytes.len()) };
        }
        if scattered.home.is_none() && scattered.frames >= HOME_PAGES_MIN && is_whole(mapping, chunk) {
            ask_for_home(mapping, ahead, chunk, scattered);
        }
        self.bring_home(mapping, ahead, chunk);
        true
    }

    /// Reads a range of the bank.
    #[cold]
    pub fn read(&mut self, mapping: &Mapping, ahead: &mut ReadyAhead, address: u64, into: &mut [u8]) {
        let mut done = 0;
        for (chunk, part) in parts(address, into.len() as u64, CHUNK_BYTES) {
            let bytes = &mut into[done..done + part.len()];
            done += part.len();
            match self.state(chunk) {
                State::Fresh => bytes.fill(0),
                // SAFETY: as in `write`.
                State::Settled => unsafe {
                    std::ptr::copy_nonoverlapping(
                        home(mapping, chunk, part.start).as_ptr(),
                        bytes.as_mut_ptr(),
                        bytes.len(),
                    );
                },
                State::Scattered => {
                    self.read_scattered(mapping, ahead, chunk, part, bytes);
                    self.bring_home(mapping, ahead, chunk);
                }
            }
        }
    }

    fn read_scattered(&self, mapping: &Mapping, ahead: &ReadyAhead, chunk: usize, part: Range<usize>, into: &mut [u8]) {
        let scattered = &self.scattered[&chunk];
        let mut done = 0;
        for (page, within) in parts(part.start as u64, part.len() as u64, FRAME_BYTES as u64) {
            let bytes = &mut into[done..done + within.len()];
            done += within.len();
            let place = match scattered.pages[page] {
                Page::Absent => {
                    bytes.fill(0);
                    continue;
                }
                Page::Frame(frame) => ahead.frames.place(frame),
                Page::Home => home(mapping, chunk, page * FRAME_BYTES),
            };
            // SAFETY: as in `write_scattered`.
            unsafe { std::ptr::copy_nonoverlapping(place.add(within.start).as_ptr(), bytes.as_mut_ptr(), bytes.len()) };
        }
    }

    /// Makes a range of one chunk read as zeroes, where that is not at its place; false where it is, and the caller does it there.
    /// `whole`: the range is all of the chunk.
    pub fn zero(&mut self, mapping: &Mapping, ahead: &mut ReadyAhead, chunk: usize, part: Range<usize>) -> bool {
        match self.state(chunk) {
            State::Fresh => return true,
            State::Settled => return false,
            State::Scattered => {}
        }
        let scattered = self.scattered.get_mut(&chunk).expect("a scattered chunk has its pages");
        for (page, within) in parts(part.start as u64, part.len() as u64, FRAME_BYTES as u64) {
            let place = match scattered.pages[page] {
                Page::Absent => continue,
                Page::Frame(frame) if within.len() == FRAME_BYTES => {
                    ahead.frames.give_back(frame, &ahead.maker);
                    scattered.pages[page] = Page::Absent;
                    scattered.frames -= 1;
                    continue;
                }
                Page::Frame(frame) => ahead.frames.place(frame),
                Page::Home => home(mapping, chunk, page * FRAME_BYTES),
            };
            // SAFETY: as in `write_scattered`.
            unsafe { std::ptr::write_bytes(place.add(within.start).as_ptr(), 0, within.len()) };
        }
        let untouched = scattered.home.is_none() && scattered.pages.iter().all(|page| *page == Page::Absent);
        if untouched {
            self.scattered.remove(&chunk);
            self.states[chunk] = State::Fresh as u8;
        } else {
            self.bring_home(mapping, ahead, chunk);
        }
        true
    }

    /// A settled chunk's memory was given back whole: it is fresh again.
    pub fn released(&mut self, chunk: usize) {
        debug_assert_eq!(self.state(chunk), State::Settled);
        self.states[chunk] = State::Fresh as u8;
    }

    /// Brings some frames of a chunk home, where that is ready; it is settled once none is left.
    fn bring_home(&mut self, mapping: &Mapping, ahead: &mut ReadyAhead, chunk: usize) {
        let Some(scattered) = self.scattered.get_mut(&chunk) else { return };
        if !scattered.home_is_ready() {
            return;
        }
        for _ in 0..MOVED_FRAMES_MAX {
            let next = (scattered.moved..CHUNK_PAGES).find(|page| matches!(scattered.pages[*page], Page::Frame(_)));
            let Some(page) = next else { break };
            if let Page::Frame(frame) = scattered.pages[page] {
                let from = ahead.frames.place(frame);
                // SAFETY: a frame of this store and a page of its mapping, which the maker is done with: not the same memory.
                unsafe {
                    let to = home(mapping, chunk, page * FRAME_BYTES);
                    std::ptr::copy_nonoverlapping(from.as_ptr(), to.as_ptr(), FRAME_BYTES);
                }
                ahead.frames.give_back(frame, &ahead.maker);
                scattered.pages[page] = Page::Home;
                scattered.frames -= 1;
            }
            scattered.moved = page + 1;
        }
        if scattered.frames == 0 {
            debug_assert!(!scattered.home_is_the_makers());
            self.scattered.remove(&chunk);
            self.states[chunk] = State::Settled as u8;
        }
    }

    /// Chunks that are scattered.
    #[cfg(test)]
    pub fn scattered(&self) -> usize {
        self.scattered.len()
    }
}

/// True where all of a chunk lies in the bank: others have no home to be made.
fn is_whole(mapping: &Mapping, chunk: usize) -> bool {
    (chunk + 1).checked_mul(PIECE_BYTES).is_some_and(|end| end <= mapping.bytes())
}

fn ask_for_home(mapping: &Mapping, ahead: &ReadyAhead, chunk: usize, scattered: &mut Scattered) -> bool {
    // SAFETY: the chunk lies in the mapping (`is_whole`), which outlives the maker (`RamStore`); no page of it was written, or it was
    // given back to the operating system, so that it is zero; nobody uses it before the flag is set, which `home_is_ready` asks for.
    scattered.home = unsafe { ahead.maker.make_home(home(mapping, chunk, 0)) };
    scattered.home.is_some()
}

/// A place in a chunk's own memory.
#[inline]
fn home(mapping: &Mapping, chunk: usize, offset: usize) -> NonNull<u8> {
    // SAFETY: callers name chunks of the bank, and places in them that lie in it.
    unsafe { mapping.base().add(chunk * PIECE_BYTES + offset) }
}

/// A range cut at multiples of `unit`: the number of the unit, and the part within it.
pub(super) fn parts(address: u64, bytes: u64, unit: u64) -> impl Iterator<Item = (usize, Range<usize>)> {
    let end = address + bytes;
    let mut at = address;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let number = at / unit;
        let part_end = end.min((number + 1) * unit);
        let part = (at - number * unit) as usize..(part_end - number * unit) as usize;
        at = part_end;
        Some((number as usize, part))
    })
}
