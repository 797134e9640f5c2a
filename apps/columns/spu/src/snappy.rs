//! Snappy's raw format, decompressed piece by piece: what was decompressed is kept as far as later bytes may refer to it.
//!
//! What always holds: as many bytes come out as the head says, or an error; a reference reaches what was decompressed and nothing else.

use alloc::vec::Vec;

use crate::engine::Stop;
use crate::packed::PackedError;

/// How far back compressors refer: they compress 64 KiB at a time.
pub const WINDOW_BYTES: usize = 64 << 10;
/// What is decompressed ahead of that: memory is scarce, and four compressed columns at once are to have room.
const AHEAD_BYTES: usize = 32 << 10;

enum Element {
    None,
    Literal(usize),
    Copy { offset: usize, left: usize },
}

/// A decompression under way.
pub struct Snappy {
    /// What is kept of what came out.
    out: Vec<u8>,
    /// What was taken of it.
    begin: usize,
    /// Bytes that are still to come.
    left: usize,
    has_head: bool,
    /// Some of what came out is no longer kept.
    has_dropped: bool,
    element: Element,
}

impl Snappy {
    /// Nothing yet, with room to work in.
    pub fn new() -> Result<Snappy, Stop> {
        let out = crate::value::reserved(WINDOW_BYTES + AHEAD_BYTES)?;
        Ok(Snappy { out, begin: 0, left: 0, has_head: false, has_dropped: false, element: Element::None })
    }

    /// Begins anew: `bytes` come out, of which as many are kept as a reference may reach.
    pub fn start(&mut self, bytes: usize) {
        self.out.clear();
        (self.begin, self.left, self.element) = (0, bytes, Element::None);
        (self.has_head, self.has_dropped) = (false, false);
    }

    /// Bytes that came out and were not taken.
    pub fn available(&self) -> &[u8] {
        &self.out[self.begin..]
    }

    /// Takes bytes.
    pub fn take(&mut self, bytes: usize) {
        self.begin += bytes;
    }

    /// True where all has come out.
    pub fn is_over(&self) -> bool {
        self.has_head && self.left == 0 && matches!(self.element, Element::None)
    }

    /// Makes room for at least `wanted` bytes that were not taken; where all is kept, any valid reference is within reach.
    pub fn make_room(&mut self, wanted: usize, keep_all: bool) -> Result<(), PackedError> {
        let unread = self.out.len() - self.begin;
        let more = wanted.saturating_sub(unread);
        if self.out.capacity() - self.out.len() >= more.max(1) {
            return Ok(());
        }
        if !keep_all {
            let kept = unread.max(WINDOW_BYTES).min(self.out.len());
            let gone = self.out.len() - kept;
            self.out.copy_within(gone.., 0);
            self.out.truncate(kept);
            self.begin -= gone;
            self.has_dropped |= gone > 0;
        }
        if self.out.capacity() - self.out.len() < more.max(1) {
            self.out.try_reserve(more.max(1)).map_err(|_| PackedError::NoMemory)?;
        }
        Ok(())
    }

    /// Decompresses until there is no room, or the input is at its end; the bytes of it that were used.
    pub fn step(&mut self, input: &[u8]) -> Result<usize, PackedError> {
        let mut at = 0;
        if !self.has_head {
            let Some((length, bytes)) = length(input)? else { return Ok(0) };
            if length != self.left {
                return Err(PackedError::Malformed);
            }
            (at, self.has_head) = (bytes, true);
        }
        loop {
            let room = self.out.capacity() - self.out.len();
            match &mut self.element {
                Element::Literal(left) => {
                    let count = room.min(*left).min(input.len() - at);
                    self.out.extend_from_slice(&input[at..at + count]);
                    at += count;
                    *left -= count;
                    if *left > 0 {
                        return Ok(at);
                    }
                }
                Element::Copy { offset, left } => {
                    let count = room.min(*left);
                    // What it refers to may have been dropped since it began.
                    let Some(from) = self.out.len().checked_sub(*offset) else { return Err(PackedError::NoMemory) };
                    if *offset >= count {
                        self.out.extend_from_within(from..from + count);
                    } else {
                        for index in from..from + count {
                            let byte = self.out[index];
                            self.out.push(byte);
                        }
                    }
                    *left -= count;
                    if *left > 0 {
                        return Ok(at);
                    }
                }
                Element::None => {}
            }
            self.element = Element::None;
            if self.left == 0 {
                return Ok(at);
            }
            let Some((element, bytes)) = element(&input[at..]) else { return Ok(at) };
            at += bytes;
            let count = match element {
                Element::Copy { offset: 0, .. } | Element::None => return Err(PackedError::Malformed),
                Element::Copy { offset, .. } if offset > self.out.len() => {
                    return Err(if self.has_dropped { PackedError::NoMemory } else { PackedError::Malformed });
                }
                Element::Copy { left, .. } | Element::Literal(left) => left,
            };
            self.left = self.left.checked_sub(count).ok_or(PackedError::Malformed)?;
            self.element = element;
        }
    }
}

/// The head: bytes that come out, and bytes of the head; `None` where more of it is needed.
fn length(input: &[u8]) -> Result<Option<(usize, usize)>, PackedError> {
    let mut value = 0u64;
    for index in 0..5 {
        let Some(byte) = input.get(index) else { return Ok(None) };
        value |= u64::from(byte & 127) << (7 * index);
        if *byte < 128 {
            return usize::try_from(value).map(|value| Some((value, index + 1))).map_err(|_| PackedError::Malformed);
        }
    }
    Err(PackedError::Malformed)
}

/// The next element and its head's bytes; `None` where more is needed.
fn element(input: &[u8]) -> Option<(Element, usize)> {
    let tag = *input.first()?;
    let number = |bytes: usize| {
        let from = input.get(1..1 + bytes)?;
        Some(from.iter().rev().fold(0usize, |value, byte| value << 8 | usize::from(*byte)))
    };
    let left = usize::from(tag >> 2);
    Some(match tag & 3 {
        0 if left < 60 => (Element::Literal(left + 1), 1),
        0 => {
            let bytes = left - 59;
            (Element::Literal(number(bytes)?.checked_add(1)?), 1 + bytes)
        }
        1 => {
            let offset = usize::from(tag >> 5) << 8 | number(1)?;
            (Element::Copy { offset, left: (left & 7) + 4 }, 2)
        }
        2 => (Element::Copy { offset: number(2)?, left: left + 1 }, 3),
        _ => (Element::Copy { offset: number(4)?, left: left + 1 }, 5),
    })
}
