//! Pages that an FTL marked as its own, kept where nothing else is: maps, logs and roots of checkpoints.
//!
//! What always holds: what is read is what was written, with ones behind its end. Maps are numbers that use few of their 32 bits, and logs are
//! zeroes for the most part: both are kept in as many bits as they need.
//!
//! ```text
//! frames of 64 words (u32, little-endian; behind the page's end zeroes): u8 bits 0 to 6 width, bit 7 what is kept of each word is one more, so that
//! ones take nothing either; then 64 x width bits, from the lowest up. Frames of zeroes at the end are left out.
//! ```

/// Words of a frame: as many bytes of it as eight times a word's bits.
const FRAME_WORDS: usize = 64;
const FRAME_BYTES: usize = FRAME_WORDS * 4;
/// In the width: what is kept of each word is one more.
const ONE_MORE: u8 = 0x80;

/// A page.
#[derive(Debug, PartialEq, Eq)]
pub struct Kept {
    packed: Box<[u8]>,
    /// Bytes that were written.
    written: u32,
}

impl Kept {
    /// Packs a page that is given in pieces.
    pub fn new(pieces: &[&[u8]]) -> Kept {
        let mut bytes = pieces.concat();
        let written = bytes.len() as u32;
        bytes.resize(bytes.len().next_multiple_of(FRAME_BYTES), 0);
        let mut packed = Vec::new();
        // Behind the last frame that is not all zeroes.
        let mut end = 0;
        for frame in bytes.chunks_exact(FRAME_BYTES) {
            let mut words: [u32; FRAME_WORDS] = std::array::from_fn(|index| {
                let word = frame[index * 4..index * 4 + 4].try_into().expect("four bytes");
                u32::from_le_bytes(word)
            });
            let width =
                |words: &[u32; FRAME_WORDS]| u32::BITS - words.iter().fold(0, |all, word| all | word).leading_zeros();
            let more = words.map(|word| word.wrapping_add(1));
            let flag = if width(&more) < width(&words) { ONE_MORE } else { 0 };
            if flag == ONE_MORE {
                words = more;
            }
            let width = width(&words);
            packed.push(width as u8 | flag);
            let (mut held, mut bits) = (0u64, 0);
            for word in words {
                held |= u64::from(word) << bits;
                bits += width;
                while bits >= 8 {
                    packed.push(held as u8);
                    (held, bits) = (held >> 8, bits - 8);
                }
            }
            debug_assert_eq!(bits, 0, "64 words are whole bytes");
            if width > 0 || flag == ONE_MORE {
                end = packed.len();
            }
        }
        packed.truncate(end);
        Kept { packed: packed.into_boxed_slice(), written }
    }

    /// Reads a part of it.
    pub fn read(&self, offset: u32, into: &mut [u8]) {
        let (offset, mut at, mut first) = (offset as usize, 0, 0);
        let end = (offset + into.len()).min(self.written as usize);
        let told = end.saturating_sub(offset);
        into[told..].fill(0xFF);
        while first < end && told > 0 {
            let width = self.packed.get(at).copied().unwrap_or(0);
            let bytes = usize::from(width & !ONE_MORE) * FRAME_WORDS / 8;
            if first + FRAME_BYTES > offset {
                let frame = unpack_frame(width, self.packed.get(at + 1..at + 1 + bytes).unwrap_or(&[]));
                let (from, to) = (offset.max(first), end.min(first + FRAME_BYTES));
                into[from - offset..to - offset].copy_from_slice(&frame[from - first..to - first]);
            }
            at += 1 + bytes;
            first += FRAME_BYTES;
        }
    }

    /// Memory that it holds.
    pub fn held_bytes(&self) -> u64 {
        self.packed.len() as u64
    }
}

fn unpack_frame(width: u8, packed: &[u8]) -> [u8; FRAME_BYTES] {
    let mut frame = [0; FRAME_BYTES];
    let (more, width) = (u32::from(width & ONE_MORE != 0), width & !ONE_MORE);
    let mask = (1u64 << width) - 1;
    let (mut held, mut bits, mut bytes) = (0u64, 0, packed.iter());
    for word in frame.chunks_exact_mut(4) {
        while bits < width {
            held |= u64::from(*bytes.next().expect("a frame has all its bytes")) << bits;
            bits += 8;
        }
        word.copy_from_slice(&((held & mask) as u32).wrapping_sub(more).to_le_bytes());
        (held, bits) = (held >> width, bits - width);
    }
    frame
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_read_is_what_was_written(
            words in proptest::collection::vec(prop_oneof![Just(0u32), Just(u32::MAX), 0u32..1 << 20, any::<u32>()], 0..300),
            cut in 0usize..4, pieces in 1usize..5, offset in 0usize..1300, length in 0usize..1300,
        ) {
            let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            bytes.truncate(bytes.len().saturating_sub(cut));
            let pieces: Vec<&[u8]> = bytes.chunks(bytes.len() / pieces + 1).collect();
            let kept = Kept::new(&pieces);
            let mut found = vec![1; length];
            kept.read(offset as u32, &mut found);
            let expected: Vec<u8> = (offset..offset + length).map(|at| bytes.get(at).copied().unwrap_or(0xFF)).collect();
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn numbers_take_as_many_bits_as_they_need() {
        let map: Vec<u8> = (0..4096u32).flat_map(|unit| (unit * 97 % (1 << 18)).to_le_bytes()).collect();
        let held = Kept::new(&[&map]).held_bytes();
        assert!(held <= 4096 * 19 / 8 + 64, "{held} bytes for 4096 numbers of 18 bits");
        assert!(Kept::new(&[&[0xFF; 16384]]).held_bytes() <= 64, "nothing stored");
        assert_eq!(Kept::new(&[&[0; 16384]]).held_bytes(), 0, "zeroes");
        let log = [&[7; 300][..], &[0; 16084]].concat();
        assert!(Kept::new(&[&log]).held_bytes() <= 2 * 257, "a page of the log");
    }
}
