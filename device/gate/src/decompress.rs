//! Snappy's raw format, decompressed piece by piece into an app's memory, as the decompress accelerator does it: what an app may ask for, what it is charged, and
//! the decoding itself.
//!
//! All that goes from one call to the next is in a record of the app's, [`State`], and in the bytes that it keeps before those to come:
//!
//! ```text
//! u32 kept, u32 left, u32 phase, u32 offset, u32 count, u32 used, u32 x 2 zero
//! ```
//!
//! What always holds:
//! - whatever the record says, a call reads its input and `to` and writes `to`, and nothing else;
//! - as many bytes come out as the block's head says, or the record says that it is malformed;
//! - a call does one element at least where there is one, and ends when it has done as much as it may: the next one goes on.

use crate::meter::{BYTES_A_WORK, SEGMENT_WORK};

/// Most bytes of one call's input.
pub const INPUT_BYTES_MAX: u32 = 64 << 10;
/// Most bytes of the memory that one call decompresses into, with those that are kept.
pub const ROOM_BYTES_MAX: u32 = 512 << 10;
/// Bytes of the record.
pub const STATE_BYTES: usize = 32;
/// The codec that there is: Snappy, by its number in Parquet.
pub const SNAPPY: u32 = 1;
/// `left` where the block's head alone says how long it is.
pub const AS_THE_HEAD_SAYS: u32 = u32::MAX;
/// A phase: the block's head comes next.
pub const HEAD: u32 = 0;
/// A phase: its elements do, or all have come.
pub const ELEMENTS: u32 = 1;
/// A phase: it is no block of Snappy's, or not as long as it was said to be.
pub const MALFORMED: u32 = 2;
/// A phase: it refers further back than what is kept.
pub const TOO_FAR: u32 = 3;

/// What one call does at most.
pub const WORK_MAX: u64 = 100_000;
/// What an element is charged: its branches are unpredictable.
const ELEMENT_WORK: u64 = 40;
/// What is charged on top where an element repeats what it has just written.
const REPEAT_WORK: u64 = 80;

/// Longest element that is copied in one go, and what of it is copied at a time: up to so much more is copied than it has, which is overwritten later.
const SHORT_BYTES: usize = 64;
const CHUNK_BYTES: usize = 16;
/// Bytes of a short element's head, at most.
const SHORT_HEAD_BYTES: usize = 3;

/// `decompress`: a piece of a block.
#[derive(Clone, Copy, Debug)]
pub struct Decompress {
    /// The request.
    pub token: u32,
    /// The input's pointer.
    pub from: u64,
    /// Bytes of the input.
    pub bytes: u32,
    /// Where the bytes that are kept lie, and behind them room.
    pub to: u64,
    /// Bytes of both.
    pub to_bytes: u32,
    /// The record's pointer.
    pub state: u64,
    /// The wait.
    pub wait: u32,
}

impl Decompress {
    /// Whether it is short enough.
    pub fn is_sound(&self) -> bool {
        self.bytes <= INPUT_BYTES_MAX && self.to_bytes <= ROOM_BYTES_MAX
    }

    /// What it is charged before anything is decompressed: the input is copied.
    pub fn work(&self) -> u64 {
        SEGMENT_WORK + u64::from(self.bytes) / BYTES_A_WORK
    }
}

/// Where a decompression is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// Bytes at the beginning of `to` that are there: what came last. What comes goes behind them.
    pub kept: u32,
    /// Bytes of the block that are yet to come, but for those of the element under way.
    pub left: u32,
    /// [`HEAD`], [`ELEMENTS`], [`MALFORMED`] or [`TOO_FAR`].
    pub phase: u32,
    /// How far back the element under way copies from; 0: it is a literal.
    pub offset: u32,
    /// Bytes left of it.
    pub count: u32,
    /// Bytes of the input that the call has used.
    pub used: u32,
}

impl State {
    /// What an app's record says.
    pub fn decode(record: &[u8; STATE_BYTES]) -> State {
        let (words, _) = record.as_chunks::<4>();
        let word = |number: usize| u32::from_le_bytes(words[number]);
        let [kept, left, phase, offset, count] = [0, 1, 2, 3, 4].map(word);
        State { kept, left, phase, offset, count, used: 0 }
    }

    /// The record.
    pub fn encode(&self) -> [u8; STATE_BYTES] {
        let words = [self.kept, self.left, self.phase, self.offset, self.count, self.used, 0, 0];
        let mut record = [0; STATE_BYTES];
        for (place, word) in record.as_chunks_mut::<4>().0.iter_mut().zip(words) {
            *place = word.to_le_bytes();
        }
        record
    }

    /// Whether it can be gone on from, with so many bytes of memory.
    pub fn is_sound(&self, to_bytes: u32) -> bool {
        self.kept <= to_bytes && (self.phase == HEAD || self.phase == ELEMENTS)
    }

    /// True where all of the block has come.
    pub fn is_over(&self) -> bool {
        self.phase == ELEMENTS && self.left == 0 && self.count == 0
    }

    /// Goes on with a block: as far as the input, the room behind what is kept and `work_max` go. What it did.
    pub fn decompress(&mut self, input: &[u8], to: &mut [u8], work_max: u64) -> u64 {
        let mut run = Run { end: self.kept as usize, to, at: 0, input, work: 0, work_max };
        if run.end > run.to.len() {
            self.phase = MALFORMED;
        }
        if self.phase == HEAD {
            self.head(&mut run);
        }
        if self.phase == ELEMENTS
            && let Err(phase) = run.elements(self)
        {
            self.phase = phase;
        }
        (self.kept, self.used) = (run.end as u32, run.at as u32);
        run.work
    }

    /// Takes the head, where all of it is here.
    fn head(&mut self, run: &mut Run<'_>) {
        let mut length = 0u64;
        for (index, byte) in run.input.iter().take(5).enumerate() {
            length |= u64::from(byte & 127) << (7 * index);
            if *byte < 128 {
                let is_right = self.left == AS_THE_HEAD_SAYS || length == u64::from(self.left);
                match u32::try_from(length) {
                    Ok(length) if is_right => {
                        (self.left, self.phase, self.count, run.at) = (length, ELEMENTS, 0, index + 1);
                    }
                    _ => self.phase = MALFORMED,
                }
                return;
            }
        }
        if run.input.len() >= 5 {
            self.phase = MALFORMED;
        }
    }
}

/// A call under way.
struct Run<'a> {
    to: &'a mut [u8],
    end: usize,
    input: &'a [u8],
    at: usize,
    work: u64,
    work_max: u64,
}

impl Run<'_> {
    /// Does elements; the phase that it ends in where that is none of them.
    fn elements(&mut self, state: &mut State) -> Result<(), u32> {
        loop {
            self.rest_of(state)?;
            if state.count > 0 {
                return Ok(());
            }
            self.short_elements(state)?;
            if state.left == 0 || self.work >= self.work_max {
                return Ok(());
            }
            let Some((offset, count, head)) = element(&self.input[self.at..]) else { return Ok(()) };
            self.at += head;
            self.work += ELEMENT_WORK;
            state.left = u32::try_from(count).ok().and_then(|count| state.left.checked_sub(count)).ok_or(MALFORMED)?;
            if let Some(offset) = offset {
                self.reaches(offset)?;
            }
            // An offset of 0 is refused above: it says that this is a literal.
            (state.offset, state.count) = (offset.unwrap_or(0) as u32, count as u32);
        }
    }

    /// Whether a reference that far back reaches what is kept.
    #[inline(always)]
    fn reaches(&self, offset: usize) -> Result<(), u32> {
        match offset {
            0 => Err(MALFORMED),
            _ if offset <= self.end => Ok(()),
            _ => Err(TOO_FAR),
        }
    }

    /// What is left of the element under way, as far as there is input and room.
    fn rest_of(&mut self, state: &mut State) -> Result<(), u32> {
        let room = self.to.len() - self.end;
        let wanted = (state.count as usize).min(room);
        if wanted == 0 {
            return Ok(());
        }
        let count = match state.offset as usize {
            0 => {
                let count = wanted.min(self.input.len() - self.at);
                self.to[self.end..self.end + count].copy_from_slice(&self.input[self.at..self.at + count]);
                self.at += count;
                count
            }
            offset => {
                // What it refers to may have been dropped since it began.
                self.reaches(offset)?;
                // Of what is at hand of it: it may repeat what it writes.
                let count = wanted.min(SHORT_BYTES);
                for place in self.end..self.end + count {
                    self.to[place] = self.to[place - offset];
                }
                self.work += REPEAT_WORK;
                count
            }
        };
        self.end += count;
        self.work += count as u64 / BYTES_A_WORK;
        state.count -= count as u32;
        Ok(())
    }

    /// Does short elements as long as all of each is here and there is room for more than it has.
    #[inline(never)]
    fn short_elements(&mut self, state: &mut State) -> Result<(), u32> {
        let Run { end, at, .. } = *self;
        let (mut at, mut end, mut left, mut work) = (at, end, state.left as usize, self.work);
        let (input, to) = (self.input, &mut *self.to);
        let mut ends = Ok(());
        while left > 0 && work < self.work_max {
            let Some(ahead) = input.get(at..at + SHORT_HEAD_BYTES + SHORT_BYTES) else { break };
            if to.len() - end < SHORT_BYTES + CHUNK_BYTES {
                break;
            }
            let tag = ahead[0];
            let upper = usize::from(tag >> 2);
            let (offset, count, head) = match tag & 3 {
                0 if upper < 60 => (0, upper + 1, 1),
                1 => (usize::from(tag >> 5) << 8 | usize::from(ahead[1]), (upper & 7) + 4, 2),
                2 => (usize::from(ahead[1]) | usize::from(ahead[2]) << 8, upper + 1, 3),
                _ => break,
            };
            let Some(less) = left.checked_sub(count) else {
                ends = Err(MALFORMED);
                break;
            };
            work += ELEMENT_WORK + count as u64 / BYTES_A_WORK;
            if tag & 3 == 0 {
                let (from, place) = (&ahead[1..1 + SHORT_BYTES], &mut to[end..end + SHORT_BYTES]);
                if count <= CHUNK_BYTES {
                    place[..CHUNK_BYTES].copy_from_slice(&from[..CHUNK_BYTES]);
                } else {
                    place.copy_from_slice(from);
                }
                at += 1 + count;
            } else {
                if offset == 0 || offset > end {
                    ends = Err(if offset == 0 { MALFORMED } else { TOO_FAR });
                    break;
                }
                at += head;
                let from = end - offset;
                if offset >= CHUNK_BYTES {
                    let mut chunk = 0;
                    while chunk < count {
                        to.copy_within(from + chunk..from + chunk + CHUNK_BYTES, end + chunk);
                        chunk += CHUNK_BYTES;
                    }
                } else {
                    // It repeats the few bytes before it.
                    let mut pattern = [0; CHUNK_BYTES];
                    for (index, byte) in pattern.iter_mut().enumerate() {
                        *byte = to[from + index % offset];
                    }
                    let step = CHUNK_BYTES - CHUNK_BYTES % offset;
                    let mut chunk = 0;
                    while chunk < count {
                        to[end + chunk..end + chunk + CHUNK_BYTES].copy_from_slice(&pattern);
                        chunk += step;
                    }
                    work += REPEAT_WORK;
                }
            }
            left = less;
            end += count;
        }
        (self.at, self.end, self.work, state.left) = (at, end, work, left as u32);
        ends
    }
}

/// The next element: how far back it copies from, unless it is a literal, its bytes, and those of its head; `None` where more is needed.
fn element(input: &[u8]) -> Option<(Option<usize>, usize, usize)> {
    let tag = *input.first()?;
    let number = |bytes: usize| {
        let from = input.get(1..1 + bytes)?;
        Some(from.iter().rev().fold(0usize, |value, byte| value << 8 | usize::from(*byte)))
    };
    let upper = usize::from(tag >> 2);
    Some(match tag & 3 {
        0 if upper < 60 => (None, upper + 1, 1),
        0 => {
            let bytes = upper - 59;
            (None, number(bytes)? + 1, 1 + bytes)
        }
        1 => (Some(usize::from(tag >> 5) << 8 | number(1)?), (upper & 7) + 4, 2),
        2 => (Some(number(2)?), upper + 1, 3),
        _ => (Some(number(4)?), upper + 1, 5),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Elements of all kinds, and what they stand for; none refers further back than `window` bytes.
    fn block(seed: u64, elements: usize, window: usize) -> (Vec<u8>, Vec<u8>) {
        let mut state = seed;
        let mut below = |bound: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % bound
        };
        let (mut body, mut plain) = (Vec::new(), Vec::<u8>::new());
        for _ in 0..elements {
            let farthest = plain.len().min(window);
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

    /// All that comes out, or the phase that it ends in; so many bytes are there at a time, in a memory of so many bytes that keeps a window.
    fn whole(
        packed: &[u8],
        left: u32,
        (piece, room, window): (usize, usize, usize),
        work_max: u64,
    ) -> Result<Vec<u8>, u32> {
        let mut state = State { kept: 0, left, phase: HEAD, offset: 0, count: 0, used: 0 };
        let (mut out, mut to, mut from, mut end) = (Vec::new(), vec![0; room], 0, 0);
        while !state.is_over() {
            let (kept, is_all) = (state.kept as usize, end == packed.len());
            if kept == room {
                to.copy_within(kept - window.., 0);
                state.kept = window as u32;
            }
            let before = state.kept as usize;
            // The record goes through the app's memory.
            state = State::decode(&state.encode());
            let work = state.decompress(&packed[from..end], &mut to, work_max);
            assert!(work <= work_max.saturating_add(2 * ELEMENT_WORK + REPEAT_WORK + room as u64), "{work}");
            out.extend_from_slice(&to[before..state.kept as usize]);
            from += state.used as usize;
            match state.phase {
                HEAD | ELEMENTS => {}
                phase => return Err(phase),
            }
            if state.used == 0 && state.kept as usize == before && !state.is_over() {
                if is_all {
                    return Err(MALFORMED);
                }
                end = packed.len().min(end + piece);
            }
        }
        Ok(out)
    }

    const WINDOW_BYTES: usize = 64 << 10;

    #[test]
    fn elements_of_all_kinds_come_out_in_whatever_pieces_they_come() {
        let rooms = [(1 << 20, 96 << 10, WINDOW_BYTES), (7, 96 << 10, WINDOW_BYTES), (100, 65_600, WINDOW_BYTES)];
        for seed in 0..12 {
            let (packed, plain) = block(seed, if seed < 8 { 300 } else { 9000 }, WINDOW_BYTES - 1);
            let length = plain.len() as u32;
            for (how, work_max) in rooms.into_iter().flat_map(|how| [(how, 1), (how, 5000), (how, u64::MAX)]) {
                assert!(whole(&packed, length, how, work_max) == Ok(plain.clone()), "{seed} {how:?} {work_max}");
            }
            assert!(whole(&packed, AS_THE_HEAD_SAYS, rooms[0], u64::MAX) == Ok(plain.clone()));
            // Cut off, of another length than was said, and with bytes that are others.
            assert_eq!(whole(&packed[..packed.len() - 1], length, rooms[0], u64::MAX), Err(MALFORMED));
            assert_eq!(whole(&packed, length + 1, rooms[0], u64::MAX), Err(MALFORMED));
            for at in (3..packed.len().min(2000)).step_by(7) {
                let mut bad = packed.clone();
                bad[at] ^= 0x55;
                if let Ok(came) = whole(&bad, length, rooms[0], u64::MAX) {
                    assert_eq!(came.len(), plain.len());
                }
            }
        }
    }

    #[test]
    fn references_to_nothing_and_to_what_is_not_kept_are_told_apart() {
        let how = (100, 1000, 100);
        assert_eq!(whole(&[4, 0, b'a', 2 << 2 | 1, 0], 4, how, u64::MAX), Err(MALFORMED), "an offset of 0");
        for bad in [&[5, 0, b'a', 1, 2, 0][..], &[200, 1, 0, b'a', 63 << 2 | 2, 2, 0]] {
            assert_eq!(whole(bad, AS_THE_HEAD_SAYS, how, u64::MAX), Err(TOO_FAR));
        }
        let (packed, plain) = block(3, 2000, 5000);
        assert!(plain.len() > 20_000);
        assert_eq!(whole(&packed, AS_THE_HEAD_SAYS, (100, 6000, 5000), 900), Ok(plain));
        assert_eq!(whole(&packed, AS_THE_HEAD_SAYS, (100, 6000, 1000), 900), Err(TOO_FAR));
        for head in [&[128, 128, 128, 128, 128, 0][..], &[255, 255, 255, 255, 127]] {
            assert_eq!(whole(head, AS_THE_HEAD_SAYS, how, u64::MAX), Err(MALFORMED), "no length");
        }
    }

    #[test]
    fn a_record_that_nobody_wrote_harms_nothing() {
        let mut state = 7u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 32) as u32
        };
        for _ in 0..20_000 {
            let mut record = [0; STATE_BYTES];
            for word in record.as_chunks_mut::<4>().0 {
                *word = match next() % 4 {
                    0 => next(),
                    1 => next() % 4,
                    _ => next() % 300,
                }
                .to_le_bytes();
            }
            let input: Vec<u8> = (0..next() % 200).map(|_| next() as u8).collect();
            let mut to = vec![0; 256];
            let mut state = State::decode(&record);
            let was_sound = state.is_sound(256);
            state.decompress(&input, &mut to, 10_000);
            assert!(state.kept <= 256 && state.used as usize <= input.len() || !was_sound, "{state:?}");
        }
    }
}
