//! Where in a text a literal of a set may stand: its fingerprint, up to four bytes of it, is looked for in 32 places at once.
//!
//! Literals are dealt to eight buckets. For each byte of the fingerprint a table says by the byte's low and by its high half which buckets have such
//! a half there; a place where one bucket has all halves is a candidate. That is wrong only in that it also names places where no literal
//! stands.
//!
//! What always holds: where the fingerprint of a literal stands there is a candidate; which places are candidates does not depend on
//! the machine, so that what a search is charged does not either.

/// Most bytes of a fingerprint.
pub const WIDTH_MAX: usize = 4;
/// How far into a literal its fingerprint may begin.
const OFFSET_MAX: usize = 24;
const BUCKETS: usize = 8;

/// Buckets by the low half and by the high half of a byte.
type Halves = [[u8; 16]; 2];

/// Fingerprints of all literals of a set.
#[derive(Debug)]
pub struct Fingerprint {
    tables: [Halves; WIDTH_MAX],
    width: usize,
    offset: usize,
    #[cfg(target_arch = "x86_64")]
    has_avx2: bool,
}

/// Places that are looked at at once.
const LANES: usize = 32;

/// The candidates of the last places that were looked at.
#[derive(Debug)]
pub struct Block {
    begin: usize,
    candidates: u32,
}

impl Block {
    /// Nothing is known.
    pub const NONE: Block = Block { begin: usize::MAX, candidates: 0 };
}

/// How common a byte is: rarer ones tell more. Text, then binary data; by what is usual, not measured.
fn commonness(byte: u8) -> u32 {
    match byte {
        b' ' | b'e' | b't' | b'a' | b'o' | b'i' | b'n' | b's' | b'r' => 9,
        0 => 8,
        b'l' | b'h' | b'd' | b'c' | b'u' | b'm' | b'p' | b'f' | b'g' | b'\n' => 6,
        b'y' | b'w' | b'b' | b'v' | b'.' | b',' | b'-' | b'_' | b'0' | b'1' | b'2' | b'/' | b'"' | b'\t' | 0xff => 4,
        b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' | b'(' | b')' | b':' | b'=' | b';' => 3,
        b'!'..=b'~' => 2,
        _ => 1,
    }
}

impl Fingerprint {
    /// Of literals that have a byte at least. `ignores_case`: ASCII letters match in either case.
    pub fn new(literals: &[&[u8]], ignores_case: bool) -> Fingerprint {
        let shortest = literals.iter().map(|literal| literal.len()).min().unwrap_or(1).max(1);
        let width = shortest.min(WIDTH_MAX);
        // A literal's candidates are as many as its bytes there are common together.
        let cost = |offset: usize| -> u64 {
            let of = |literal: &&[u8]| {
                literal[offset..offset + width].iter().map(|byte| u64::from(commonness(*byte))).product::<u64>()
            };
            literals.iter().map(of).sum()
        };
        let offset = (0..=(shortest - width).min(OFFSET_MAX)).min_by_key(|offset| cost(*offset)).unwrap_or(0);
        // Literals that are alike there share a bucket.
        let mut order: Vec<&[u8]> = literals.iter().map(|literal| &literal[offset..offset + width]).collect();
        order.sort_unstable();
        order.dedup();
        let mut tables = [[[0; 16]; 2]; WIDTH_MAX];
        let count = order.len();
        for (number, bytes) in order.into_iter().enumerate() {
            let bucket = 1u8 << (number * BUCKETS / count.max(BUCKETS));
            for (table, byte) in tables.iter_mut().zip(bytes) {
                let mut put = |byte: u8| {
                    table[0][usize::from(byte & 15)] |= bucket;
                    table[1][usize::from(byte >> 4)] |= bucket;
                };
                put(*byte);
                if ignores_case {
                    put(byte.to_ascii_lowercase());
                    put(byte.to_ascii_uppercase());
                }
            }
        }
        Fingerprint {
            tables,
            width,
            offset,
            #[cfg(target_arch = "x86_64")]
            has_avx2: std::arch::is_x86_feature_detected!("avx2"),
        }
    }

    /// The first place from `from` on at which a literal may begin. `block` is what is known of places from calls before, for the same text.
    #[inline]
    pub fn candidate(&self, text: &[u8], from: usize, block: &mut Block) -> Option<usize> {
        // `at` is where the fingerprint stands.
        let at = from.checked_add(self.offset)?;
        let found = match self.width {
            1 => self.search::<1>(text, at, block),
            2 => self.search::<2>(text, at, block),
            3 => self.search::<3>(text, at, block),
            _ => self.search::<4>(text, at, block),
        };
        found.map(|at| at - self.offset)
    }

    #[inline]
    fn search<const WIDTH: usize>(&self, text: &[u8], at: usize, block: &mut Block) -> Option<usize> {
        #[cfg(target_arch = "x86_64")]
        if self.has_avx2 {
            let mut at = at;
            if let Some(within) = at.checked_sub(block.begin).filter(|within| *within < LANES) {
                let left = block.candidates & u32::MAX << within;
                if left != 0 {
                    return Some(block.begin + left.trailing_zeros() as usize);
                }
                at = block.begin + LANES;
            }
            // SAFETY: the processor has AVX2.
            return match unsafe { self.search_avx2::<WIDTH>(text, at, block) } {
                Ok(found) => Some(found),
                Err(at) => self.search_bytes::<WIDTH>(text, at),
            };
        }
        let _ = block;
        self.search_bytes::<WIDTH>(text, at)
    }

    /// One place after the other.
    fn search_bytes<const WIDTH: usize>(&self, text: &[u8], at: usize) -> Option<usize> {
        let halves = |table: &Halves, byte: u8| table[0][usize::from(byte & 15)] & table[1][usize::from(byte >> 4)];
        let is_candidate = |window: &[u8]| {
            self.tables[..WIDTH].iter().zip(window).fold(0xff, |buckets, (table, byte)| buckets & halves(table, *byte))
                != 0
        };
        Some(at + text.get(at..)?.windows(WIDTH).position(is_candidate)?)
    }

    /// 32 places at once, as long as there are so many; `Err`: there is none before this place.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn search_avx2<const WIDTH: usize>(&self, text: &[u8], mut at: usize, block: &mut Block) -> Result<usize, usize> {
        use std::arch::x86_64::*;
        let low_half = _mm256_set1_epi8(15);
        let mut tables = [[_mm256_setzero_si256(); 2]; WIDTH_MAX];
        for (wide, table) in tables.iter_mut().zip(&self.tables) {
            for (wide, half) in wide.iter_mut().zip(table) {
                // SAFETY: a half has the 16 bytes that are read.
                *wide = _mm256_broadcastsi128_si256(unsafe { _mm_loadu_si128(half.as_ptr().cast()) });
            }
        }
        while at + LANES + WIDTH - 1 <= text.len() {
            let mut buckets = _mm256_set1_epi8(-1);
            for (index, table) in tables[..WIDTH].iter().enumerate() {
                // SAFETY: `at + index + LANES` is no more than `text.len()`, as the loop's condition says.
                let bytes = unsafe { _mm256_loadu_si256(text.as_ptr().add(at + index).cast()) };
                let low = _mm256_shuffle_epi8(table[0], _mm256_and_si256(bytes, low_half));
                let high = _mm256_shuffle_epi8(table[1], _mm256_and_si256(_mm256_srli_epi16(bytes, 4), low_half));
                buckets = _mm256_and_si256(buckets, _mm256_and_si256(low, high));
            }
            let none = _mm256_cmpeq_epi8(buckets, _mm256_setzero_si256());
            let candidates = !(_mm256_movemask_epi8(none) as u32);
            if candidates != 0 {
                *block = Block { begin: at, candidates };
                return Ok(at + candidates.trailing_zeros() as usize);
            }
            at += LANES;
        }
        Err(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the definition says, for a literal's own bytes.
    fn stands(literal: &[u8], text: &[u8], at: usize, ignores_case: bool) -> bool {
        text.get(at..at + literal.len())
            .is_some_and(|there| if ignores_case { there.eq_ignore_ascii_case(literal) } else { there == literal })
    }

    #[test]
    fn no_literal_is_missed_and_vectors_find_what_bytes_find() {
        let mut state = 1u64;
        let mut next = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for round in 0..2000 {
            let letters = [2, 4, 256][round % 3];
            let text: Vec<u8> = (0..next(300)).map(|_| (b'A' as u64 + next(letters)) as u8).collect();
            let literals: Vec<Vec<u8>> = (0..1 + next(20))
                .map(|_| (0..1 + next(6)).map(|_| (b'A' as u64 + next(letters)) as u8).collect())
                .collect();
            let literals: Vec<&[u8]> = literals.iter().map(Vec::as_slice).collect();
            let ignores_case = next(2) == 0;
            let fingerprint = Fingerprint::new(&literals, ignores_case);
            let (mut from, mut block) = (0, Block::NONE);
            loop {
                let found = fingerprint.candidate(&text, from, &mut block);
                let bytes = match fingerprint.width {
                    1 => fingerprint.search_bytes::<1>(&text, from + fingerprint.offset),
                    2 => fingerprint.search_bytes::<2>(&text, from + fingerprint.offset),
                    3 => fingerprint.search_bytes::<3>(&text, from + fingerprint.offset),
                    _ => fingerprint.search_bytes::<4>(&text, from + fingerprint.offset),
                };
                assert_eq!(found, bytes.map(|at| at - fingerprint.offset));
                let until = found.unwrap_or(text.len());
                for at in from..until {
                    assert!(!literals.iter().any(|literal| stands(literal, &text, at, ignores_case)), "{at}");
                }
                let Some(found) = found else { break };
                from = found + 1;
            }
        }
    }
}
