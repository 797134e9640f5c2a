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

/// Longest element that is copied in one go, and what of it is copied at a time: up to so much more is copied than it has, which is overwritten later.
const SHORT_BYTES: usize = 64;
const CHUNK_BYTES: usize = 16;
/// Bytes of a short element's head, at most.
const SHORT_HEAD_BYTES: usize = 3;

/// A decompression under way.
pub struct Snappy {
    /// What is kept of what came out, up to `end`; behind it there is room.
    out: Vec<u8>,
    end: usize,
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
        let mut out = crate::value::reserved(WINDOW_BYTES + AHEAD_BYTES)?;
        out.resize(WINDOW_BYTES + AHEAD_BYTES, 0);
        let element = Element::None;
        Ok(Snappy { out, end: 0, begin: 0, left: 0, has_head: false, has_dropped: false, element })
    }

    /// Begins anew: `bytes` come out, of which as many are kept as a reference may reach.
    pub fn start(&mut self, bytes: usize) {
        (self.begin, self.end, self.left, self.element) = (0, 0, bytes, Element::None);
        (self.has_head, self.has_dropped) = (false, false);
    }

    /// Bytes that came out and were not taken.
    pub fn available(&self) -> &[u8] {
        &self.out[self.begin..self.end]
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
        let unread = self.end - self.begin;
        let more = wanted.saturating_sub(unread).max(1);
        if self.out.len() - self.end >= more {
            return Ok(());
        }
        if !keep_all {
            let kept = unread.max(WINDOW_BYTES).min(self.end);
            let gone = self.end - kept;
            self.out.copy_within(gone..self.end, 0);
            self.end = kept;
            self.begin -= gone;
            self.has_dropped |= gone > 0;
        }
        let room = self.out.len() - self.end;
        if room < more {
            self.out.try_reserve(more - room).map_err(|_| PackedError::NoMemory)?;
            // All that was had for it, so that this is rare.
            self.out.resize(self.out.capacity(), 0);
        }
        Ok(())
    }

    /// Whether a reference that far back reaches what is kept.
    fn reaches(&self, offset: usize) -> Result<(), PackedError> {
        match offset {
            0 => Err(PackedError::Malformed),
            _ if offset <= self.end => Ok(()),
            _ if self.has_dropped => Err(PackedError::NoMemory),
            _ => Err(PackedError::Malformed),
        }
    }

    /// Decompresses short elements as long as all of each is here, and there is room for more than it has; the bytes of the input that were used. What is left is
    /// done one by one.
    fn short_elements(&mut self, input: &[u8]) -> Result<usize, PackedError> {
        let mut at = 0;
        while self.left > 0
            && input.len() - at >= SHORT_HEAD_BYTES + SHORT_BYTES
            && self.out.len() - self.end >= SHORT_BYTES + CHUNK_BYTES
        {
            let tag = input[at];
            let upper = usize::from(tag >> 2);
            let (offset, count, head) = match tag & 3 {
                0 if upper < 60 => (0, upper + 1, 1),
                1 => (usize::from(tag >> 5) << 8 | usize::from(input[at + 1]), (upper & 7) + 4, 2),
                2 => (usize::from(input[at + 1]) | usize::from(input[at + 2]) << 8, upper + 1, 3),
                _ => break,
            };
            self.left = self.left.checked_sub(count).ok_or(PackedError::Malformed)?;
            at += head;
            let end = self.end;
            if tag & 3 == 0 {
                for chunk in (0..count).step_by(CHUNK_BYTES) {
                    let from = &input[at + chunk..at + chunk + CHUNK_BYTES];
                    self.out[end + chunk..end + chunk + CHUNK_BYTES].copy_from_slice(from);
                }
                at += count;
            } else {
                self.reaches(offset)?;
                let from = end - offset;
                if offset >= CHUNK_BYTES {
                    for chunk in (0..count).step_by(CHUNK_BYTES) {
                        self.out.copy_within(from + chunk..from + chunk + CHUNK_BYTES, end + chunk);
                    }
                } else {
                    // It repeats what it has just written.
                    for index in 0..count {
                        self.out[end + index] = self.out[from + index];
                    }
                }
            }
            self.end += count;
        }
        Ok(at)
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
            let room = self.out.len() - self.end;
            match &mut self.element {
                Element::Literal(left) => {
                    let count = room.min(*left).min(input.len() - at);
                    self.out[self.end..self.end + count].copy_from_slice(&input[at..at + count]);
                    self.end += count;
                    at += count;
                    *left -= count;
                    if *left > 0 {
                        return Ok(at);
                    }
                }
                Element::Copy { offset, left } => {
                    let count = room.min(*left);
                    // What it refers to may have been dropped since it began.
                    let Some(from) = self.end.checked_sub(*offset) else { return Err(PackedError::NoMemory) };
                    if *offset >= count {
                        self.out.copy_within(from..from + count, self.end);
                    } else {
                        for index in 0..count {
                            self.out[self.end + index] = self.out[from + index];
                        }
                    }
                    self.end += count;
                    *left -= count;
                    if *left > 0 {
                        return Ok(at);
                    }
                }
                Element::None => {}
            }
            self.element = Element::None;
            at += self.short_elements(&input[at..])?;
            if self.left == 0 {
                return Ok(at);
            }
            let Some((element, bytes)) = element(&input[at..]) else { return Ok(at) };
            at += bytes;
            let count = match element {
                Element::None => return Err(PackedError::Malformed),
                Element::Copy { offset, left } => {
                    self.reaches(offset)?;
                    left
                }
                Element::Literal(left) => left,
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Elements of all kinds, and what they stand for.
    fn page(seed: u64, elements: usize) -> (Vec<u8>, Vec<u8>) {
        let mut state = seed;
        let mut below = |bound: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % bound
        };
        let (mut body, mut plain) = (Vec::new(), Vec::<u8>::new());
        for _ in 0..elements {
            let farthest = plain.len().min(WINDOW_BYTES - 1);
            let near = 1 + below(farthest.clamp(1, 40));
            let offset = if below(2) == 0 { near } else { 1 + below(farthest.max(1)) };
            match below(8) {
                0..3 | 7 if plain.is_empty() || below(2) == 0 => {
                    let count = if below(9) == 0 { 1 + below(3000) } else { 1 + below(60) };
                    match count - 1 {
                        upper if upper < 60 => body.push((upper << 2) as u8),
                        upper if upper < 256 => body.extend([60 << 2, upper as u8]),
                        upper => body.extend([61 << 2, upper as u8, (upper >> 8) as u8]),
                    }
                    let bytes: Vec<u8> = (0..count).map(|_| below(256) as u8).collect();
                    body.extend(&bytes);
                    plain.extend(bytes);
                }
                _ if plain.is_empty() => {}
                kind => {
                    let offset = if kind == 3 { offset.min(2047) } else { offset };
                    let count = if kind == 3 { 4 + below(8) } else { 1 + below(64) };
                    match kind {
                        3 => body.extend([((offset >> 8) << 5 | (count - 4) << 2 | 1) as u8, offset as u8]),
                        4 => {
                            body.push(((count - 1) << 2 | 3) as u8);
                            body.extend((offset as u32).to_le_bytes());
                        }
                        _ => body.extend([((count - 1) << 2 | 2) as u8, offset as u8, (offset >> 8) as u8]),
                    }
                    (0..count).for_each(|_| plain.push(plain[plain.len() - offset]));
                }
            }
        }
        let mut bytes = Vec::new();
        let mut length = plain.len();
        while length > 127 {
            bytes.push(length as u8 | 128);
            length >>= 7;
        }
        bytes.push(length as u8);
        bytes.extend(body);
        (bytes, plain)
    }

    /// All that comes out, where so many bytes are there at a time and so many are taken.
    fn whole(
        snappy: &mut Snappy,
        packed: &[u8],
        bytes: usize,
        (piece, taken): (usize, usize),
    ) -> Result<Vec<u8>, PackedError> {
        let (mut out, mut from, mut end) = (Vec::new(), 0, 0);
        snappy.start(bytes);
        while !snappy.is_over() {
            snappy.make_room(1, false)?;
            let before = snappy.available().len();
            let used = snappy.step(&packed[from..end])?;
            from += used;
            if used == 0 && snappy.available().len() == before {
                if end == packed.len() {
                    return Err(PackedError::Malformed);
                }
                end = packed.len().min(end + piece);
            }
            let take = snappy.available().len().min(taken);
            out.extend_from_slice(&snappy.available()[..take]);
            snappy.take(take);
        }
        out.extend_from_slice(snappy.available());
        Ok(out)
    }

    #[test]
    fn elements_of_all_kinds_come_out_in_whatever_pieces_they_come() {
        let mut snappy = Snappy::new().expect("memory");
        for seed in 0..12 {
            let (packed, plain) = page(seed, if seed < 8 { 300 } else { 9000 });
            for how in [(1 << 20, 1 << 20), (7, 1 << 20), (100, 33), (5000, 20_000)] {
                let came = whole(&mut snappy, &packed, plain.len(), how);
                assert!(came == Ok(plain.clone()), "{seed} {how:?}");
            }
            // Cut off, longer than it says, and with bytes that are others.
            assert!(whole(&mut snappy, &packed[..packed.len() - 1], plain.len(), (5000, 5000)).is_err());
            assert!(whole(&mut snappy, &packed, plain.len() + 1, (5000, 5000)).is_err());
            for at in (3..packed.len().min(2000)).step_by(7) {
                let mut bad = packed.clone();
                bad[at] ^= 0x55;
                if let Ok(came) = whole(&mut snappy, &bad, plain.len(), (1 << 20, 1 << 20)) {
                    assert_eq!(came.len(), plain.len());
                }
            }
        }
        // References to nothing.
        for bad in [&[4, 0, b'a', 2 << 2 | 1, 0][..], &[5, 0, b'a', 1, 2, 0], &[200, 1, 0, b'a', 63 << 2 | 2, 2, 0]] {
            assert_eq!(whole(&mut snappy, bad, usize::from(bad[0]), (100, 100)), Err(PackedError::Malformed));
        }
    }
}
