//! Packs a page's header as what differs from the one that is expected after the two before it.
//!
//! What always holds: unpacking gives the bytes that were packed, whatever they are; how short they become depends on how headers follow from one
//! another. Nothing here knows a format: what is expected is learnt from how the last header followed from the one before it. Of its words of
//! four bytes,
//! - one that stayed the same, stays so;
//! - one that grew by one, grows by one again;
//! - one that repeats a word which stood further to the front in the header before, does so again (what an FTL says of the page that it wrote before);
//! - any other is expected to be as it was, since numbers mostly share their high bytes.
//!
//! ```text
//! u8 flags: 1 the length differs, 2 the last four bytes are the CRC-32 of those before, bits 2 to 7 number of runs (63: runs end with a zero)
//! u16 length without that checksum, where it differs
//! runs: u8 skip << 4 | count, then as many bytes (exclusive or with what is expected); a count of zero only skips
//! ```
//! The checksum is that of IEEE 802.3, which FTLs of this repository end their headers with: it need not be kept, since it can be computed.

use std::mem::swap;

const LENGTH_DIFFERS: u8 = 1;
const ENDS_WITH_CHECKSUM: u8 = 2;
/// Where the number of runs begins in the flags.
const RUNS_SHIFT: u32 = 2;
/// Runs that the flags cannot count: a zero ends them.
const RUNS_UNCOUNTED: u8 = 63;
/// Most bytes that a run skips, and that it has.
const RUN_MAX: usize = 15;
/// Bytes of a word and of the checksum.
const WORD: usize = 4;
/// Words at the front among which a repeated one is looked for.
const LOOKED_AT_WORDS: usize = 32;

fn checksum(bytes: &[u8]) -> [u8; WORD] {
    crc32fast::hash(bytes).to_le_bytes()
}

fn word(bytes: &[u8], at: usize) -> u32 {
    let bytes = bytes[at..at + WORD].try_into().expect("four bytes");
    u32::from_le_bytes(bytes)
}

/// A header without its checksum, where it has one.
fn body(header: &[u8]) -> (&[u8], bool) {
    match header.split_last_chunk::<WORD>() {
        Some((front, end)) if *end == checksum(front) => (front, true),
        _ => (header, false),
    }
}

/// The last two headers of a row of them, which the next one is expected from.
#[derive(Debug, Default)]
pub struct Window {
    /// How many there are: 0, 1, or 2 for more.
    known: u8,
    older: Vec<u8>,
    newer: Vec<u8>,
    /// The newer one ends with a checksum.
    sealed: bool,
    /// What is expected next.
    next: Vec<u8>,
}

impl Window {
    /// Begins a row.
    pub fn clear(&mut self) {
        self.known = 0;
        self.newer.clear();
    }

    /// Memory that it holds.
    pub fn held_bytes(&self) -> u64 {
        (size_of::<Window>() + self.older.capacity() + self.newer.capacity() + self.next.capacity()) as u64
    }

    /// Whether the newest header is these bytes, but for some that differ by a mask.
    pub fn is(&self, header: &[u8], mask: &Mask) -> bool {
        let (body, sealed) = body(header);
        sealed == self.sealed && mask.joins(&self.newer, body)
    }

    /// What the bytes of another header are exclusive or those of the newest one, where few differ.
    pub fn mask(&self, header: &[u8]) -> Option<Mask> {
        let (body, sealed) = body(header);
        if sealed != self.sealed || body.len() != self.newer.len() {
            return None;
        }
        let mut mask = Mask::NOTHING;
        for (at, (ours, theirs)) in self.newer.iter().zip(body).enumerate().filter(|(_, (ours, theirs))| ours != theirs)
        {
            let entry = mask.bytes.get_mut(usize::from(mask.count))?;
            *entry = (u8::try_from(at).ok()?, ours ^ theirs);
            mask.count += 1;
        }
        Some(mask)
    }

    /// The newest header under a mask; ones where it is shorter than what is asked for.
    pub fn copy_to(&self, mask: &Mask, into: &mut [u8]) {
        let length = self.newer.len().min(into.len());
        into[..length].copy_from_slice(&self.newer[..length]);
        mask.apply(&mut into[..length]);
        let mut end = length;
        if self.sealed && into.len() > length {
            let sum = checksum(&into[..length]);
            end = into.len().min(length + WORD);
            into[length..end].copy_from_slice(&sum[..end - length]);
        }
        into[end..].fill(0xFF);
    }

    /// The newest header under a mask, whole.
    pub fn header(&self, mask: &Mask, into: &mut Vec<u8>) {
        into.clear();
        into.resize(self.newer.len() + if self.sealed { WORD } else { 0 }, 0);
        self.copy_to(mask, into);
    }

    fn expect(&mut self, length: usize) {
        let (older, newer, next) = (&self.older, &self.newer, &mut self.next);
        next.clear();
        next.extend_from_slice(&newer[..length.min(newer.len())]);
        next.resize(length, 0);
        if self.known < 2 {
            return;
        }
        let words = length.min(older.len()).min(newer.len()) / WORD;
        for at in (0..words * WORD).step_by(WORD) {
            let (was, is) = (word(older, at), word(newer, at));
            if is == was {
                continue;
            }
            let becomes = if is == was.wrapping_add(1) {
                is.wrapping_add(1)
            } else {
                let before = (0..at.min(LOOKED_AT_WORDS * WORD)).step_by(WORD);
                let Some(front) = before.into_iter().find(|front| word(older, *front) == is) else { continue };
                word(newer, front)
            };
            next[at..at + WORD].copy_from_slice(&becomes.to_le_bytes());
        }
    }

    fn advance(&mut self, sealed: bool) {
        swap(&mut self.older, &mut self.newer);
        swap(&mut self.newer, &mut self.next);
        self.sealed = sealed;
        self.known = (self.known + 1).min(2);
    }

    /// Appends the next header of the row, packed.
    pub fn pack(&mut self, header: &[u8], packed: &mut Vec<u8>) {
        let (body, sealed) = body(header);
        let flags_at = packed.len();
        let mut flags = if sealed { ENDS_WITH_CHECKSUM } else { 0 };
        packed.push(0);
        if body.len() != self.newer.len() {
            flags |= LENGTH_DIFFERS;
            // At most 65,535: validated.
            packed.extend_from_slice(&(body.len() as u16).to_le_bytes());
        }
        self.expect(body.len());
        let difference = |at: usize| body[at] ^ self.next[at];
        let (mut at, mut runs, mut skip) = (0, 0usize, 0);
        while at < body.len() {
            if difference(at) == 0 {
                (at, skip) = (at + 1, skip + 1);
                continue;
            }
            while skip > RUN_MAX {
                packed.push((RUN_MAX << 4) as u8);
                (skip, runs) = (skip - RUN_MAX, runs + 1);
            }
            let mut count = 1;
            // A single byte that is as expected costs less within a run than a new run.
            while count < RUN_MAX && at + count < body.len() {
                let more =
                    difference(at + count) != 0 || (at + count + 1 < body.len() && difference(at + count + 1) != 0);
                if !more {
                    break;
                }
                count += 1;
            }
            packed.push((skip << 4 | count) as u8);
            packed.extend((at..at + count).map(difference));
            (at, skip, runs) = (at + count, 0, runs + 1);
        }
        if runs >= usize::from(RUNS_UNCOUNTED) {
            packed.push(0);
        }
        packed[flags_at] = flags | (runs.min(RUNS_UNCOUNTED.into()) as u8) << RUNS_SHIFT;
        self.next.copy_from_slice(body);
        self.advance(sealed);
    }

    /// Goes to the next header of the row, packed; the bytes that it took.
    pub fn unpack(&mut self, packed: &[u8]) -> usize {
        let flags = packed[0];
        let (mut at, mut length) = (1, self.newer.len());
        if flags & LENGTH_DIFFERS != 0 {
            length = u16::from_le_bytes([packed[1], packed[2]]).into();
            at = 3;
        }
        self.expect(length);
        let mut left = flags >> RUNS_SHIFT;
        let counted = left < RUNS_UNCOUNTED;
        let mut place = 0;
        while left > 0 {
            let run = packed[at];
            at += 1;
            if !counted && run == 0 {
                break;
            }
            place += usize::from(run >> 4);
            let count = usize::from(run & 15);
            let into = &mut self.next[place..place + count];
            into.iter_mut().zip(&packed[at..at + count]).for_each(|(byte, differs)| *byte ^= differs);
            (place, at) = (place + count, at + count);
            left -= u8::from(counted);
        }
        self.advance(flags & ENDS_WITH_CHECKSUM != 0);
        at
    }
}

/// Most bytes in which headers differ that are kept as one.
const MASK_BYTES: usize = 4;

/// The bytes in which a header differs from another, without checksums: parts of one page differ by which part they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mask {
    count: u8,
    /// Where, and exclusive or what.
    bytes: [(u8, u8); MASK_BYTES],
}

impl Mask {
    /// It changes nothing.
    pub const NOTHING: Mask = Mask { count: 0, bytes: [(0, 0); MASK_BYTES] };

    fn entries(&self) -> &[(u8, u8)] {
        &self.bytes[..usize::from(self.count)]
    }

    /// Whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    fn apply(&self, bytes: &mut [u8]) {
        for (at, differs) in self.entries() {
            if let Some(byte) = bytes.get_mut(usize::from(*at)) {
                *byte ^= differs;
            }
        }
    }

    /// Whether the second is the first under this mask.
    fn joins(&self, first: &[u8], second: &[u8]) -> bool {
        if first.len() != second.len() || self.entries().iter().any(|(at, _)| usize::from(*at) >= first.len()) {
            return false;
        }
        let mut from = 0;
        for (at, differs) in self.entries() {
            let at = usize::from(*at);
            if first[from..at] != second[from..at] || first[at] ^ differs != second[at] {
                return false;
            }
            from = at + 1;
        }
        first[from..] == second[from..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn seal(mut bytes: Vec<u8>) -> Vec<u8> {
        let sum = checksum(&bytes);
        bytes.extend(sum);
        bytes
    }

    fn header() -> impl Strategy<Value = Vec<u8>> {
        let bytes = proptest::collection::vec(prop_oneof![3 => Just(0u8), 1 => any::<u8>()], 0..80);
        (bytes, any::<bool>()).prop_map(|(bytes, sealed)| if sealed { seal(bytes) } else { bytes })
    }

    /// Packs a row of headers, and unpacks it again.
    fn there_and_back(headers: &[Vec<u8>]) -> Vec<usize> {
        let (mut packed, mut lengths, mut window) = (Vec::new(), Vec::new(), Window::default());
        for header in headers {
            let before = packed.len();
            window.pack(header, &mut packed);
            lengths.push(packed.len() - before);
        }
        let (mut at, mut window, mut found) = (0, Window::default(), Vec::new());
        for header in headers {
            at += window.unpack(&packed[at..]);
            window.header(&Mask::NOTHING, &mut found);
            assert_eq!(&found, header);
            assert!(window.is(header, &Mask::NOTHING));
        }
        assert_eq!(at, packed.len());
        lengths
    }

    proptest! {
        #[test]
        fn what_is_unpacked_is_what_was_packed(headers in proptest::collection::vec(header(), 1..20)) {
            there_and_back(&headers);
        }

        #[test]
        fn long_headers_of_any_kind_are_packed_as_well(
            headers in proptest::collection::vec(proptest::collection::vec(0u8..3, 0..700), 1..6)
        ) {
            there_and_back(&headers);
        }

        #[test]
        fn a_mask_is_what_differs(one in header(), places in proptest::collection::btree_map(0usize..60, 1u8.., 0..6)) {
            let mut window = Window::default();
            window.pack(&one, &mut Vec::new());
            let (old, sealed) = body(&one);
            let mut other = old.to_vec();
            let changed = places.iter().filter(|(at, differs)| {
                other.get_mut(**at).map(|byte| *byte ^= **differs).is_some()
            }).count();
            let other = if sealed { seal(other) } else { other };
            if !sealed && body(&other).1 {
                return Ok(());
            }
            let mask = window.mask(&other);
            prop_assert_eq!(mask.is_some(), changed <= MASK_BYTES);
            if let Some(mask) = mask {
                let mut found = Vec::new();
                window.header(&mask, &mut found);
                prop_assert_eq!(&found, &other);
                prop_assert!(window.is(&other, &mask) && (changed == 0 || !window.is(&one, &mask)));
            }
        }
    }

    /// Headers as FTLs write them: what they say of the page before costs nothing.
    #[test]
    fn what_repeats_the_header_before_is_expected() {
        let mut random = 1u64;
        let mut before = [0u32; 3];
        let headers: Vec<Vec<u8>> = (0..64u32)
            .map(|page| {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let logical = (random >> 33) as u32 & 0xF_FFFF;
                let words = [257, logical, 70_000 + page, 7, before[0], before[1], 4096 + page, before[2]];
                before = [logical, 70_000 + page, 7];
                seal(words.iter().flat_map(|word| word.to_le_bytes()).collect())
            })
            .collect();
        let lengths = there_and_back(&headers);
        assert!(lengths[3..].iter().all(|length| *length <= 6), "flags, a run and three bytes: {lengths:?}");
    }
}
