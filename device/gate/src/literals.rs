//! Sets of literals as apps write them down: u32 length and bytes, one after the other, and flags.
//!
//! Invariant: a set that was read has 1 to [`LITERALS_MAX`] literals of 1 to [`LITERAL_BYTES_MAX`] bytes.

/// Most literals of a set.
pub const LITERALS_MAX: usize = 4096;
/// Most bytes of a literal.
pub const LITERAL_BYTES_MAX: usize = 1024;
/// Most bytes of all literals of a set, with the lengths before them.
pub const SET_BYTES_MAX: u32 = 65536;
/// Most sets of an app on an SPU.
pub const SETS_MAX: usize = 16;
/// Most bytes that a search is asked to look at: it goes no further.
pub const SEARCH_BYTES_MAX: u32 = 256 << 10;
/// Most matches that a search brings.
pub const FOUND_MAX: u32 = 4096;
/// Charged when a set is loaded (30 us).
pub const LOAD_WORK: u64 = 100_000;
/// Charged for each byte of its literals then: its part of the automaton is made (100 to 400 ns).
pub const LOAD_BYTE_WORK: u64 = 1000;

/// Flag of `literals_load`: ASCII letters match in either case.
pub const IGNORE_CASE: u32 = 1;
/// Flag of `literals_load`: one match a line; bits 8 to 15 are the byte that ends one.
pub const LINES: u32 = 2;
const FLAGS: u32 = IGNORE_CASE | LINES | 0xff00;

/// A set as it was written down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written<'a> {
    /// Its literals, in their order.
    pub literals: Vec<&'a [u8]>,
    /// ASCII letters match in either case.
    pub ignores_case: bool,
    /// Of one match a line, the byte that ends a line.
    pub separator: Option<u8>,
}

impl<'a> Written<'a> {
    /// The set that is written in `bytes`; `None` where there can be no such set.
    pub fn read(mut bytes: &'a [u8], flags: u32) -> Option<Written<'a>> {
        let separator = match flags & LINES {
            0 if flags >> 8 != 0 => return None,
            0 => None,
            _ => Some((flags >> 8) as u8),
        };
        let mut literals = Vec::new();
        while let Some((length, rest)) = bytes.split_first_chunk::<4>() {
            let length = u32::from_le_bytes(*length) as usize;
            if length == 0 || length > LITERAL_BYTES_MAX || literals.len() == LITERALS_MAX {
                return None;
            }
            let (literal, rest) = rest.split_at_checked(length)?;
            literals.push(literal);
            bytes = rest;
        }
        let is_set = bytes.is_empty() && !literals.is_empty() && flags & !FLAGS == 0;
        is_set.then_some(Written { literals, ignores_case: flags & IGNORE_CASE != 0, separator })
    }
}
