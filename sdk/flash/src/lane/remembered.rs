//! The headers of pages that were written since the lane was mounted, kept in memory where they fit: collection then knows what it moves without
//! reading each header from the flash first.
//!
//! What always holds: what is remembered of a valid page is its header's logical page and sequence, as they were programmed. Of pages from before
//! the mount nothing is known, and of no page where all of them would take more than [`super::LaneConfig::remembered_bytes_max`].

use alloc::vec;
use alloc::vec::Vec;

/// Bytes that one page takes.
const PAGE_BYTES: u64 = 12;

/// Of each page: logical page plus one (0: unknown), and the two halves of the sequence.
#[derive(Default)]
pub(crate) struct Remembered(Vec<[u32; 3]>);

impl Remembered {
    /// Bytes that so many pages take; 0 where that is more than there may be.
    pub fn bytes(pages: u64, bytes_max: u32) -> u64 {
        let bytes = pages * PAGE_BYTES;
        if bytes <= u64::from(bytes_max) { bytes } else { 0 }
    }

    /// Nothing is known yet of so many pages.
    pub fn new(pages: u64, bytes_max: u32) -> Remembered {
        let kept = Remembered::bytes(pages, bytes_max) / PAGE_BYTES;
        Remembered(vec![[0; 3]; kept as usize])
    }

    /// A page was programmed with that header.
    pub fn note(&mut self, address: u32, unit: u32, sequence: u64) {
        if let Some(page) = self.0.get_mut(address as usize) {
            // No logical page, `u32::MAX`, becomes unknown.
            *page = [unit.wrapping_add(1), sequence as u32, (sequence >> 32) as u32];
        }
    }

    /// The logical page and sequence of a page, where they are known.
    pub fn get(&self, address: u32) -> Option<(u32, u64)> {
        let &[unit, low, high] = self.0.get(address as usize)?;
        Some((unit.checked_sub(1)?, u64::from(low) | u64::from(high) << 32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::header::{COPIED, NONE};

    #[test]
    fn what_is_noted_is_known_as_far_as_there_is_room() {
        let mut some = Remembered::new(4, 48);
        assert_eq!(some.get(2), None);
        some.note(2, 7, COPIED | 1 << 40 | 5);
        some.note(3, 0, 1);
        assert_eq!((some.get(2), some.get(3)), (Some((7, COPIED | 1 << 40 | 5)), Some((0, 1))));
        some.note(2, NONE, 0);
        assert_eq!(some.get(2), None, "a filler is nobody's page");
        some.note(4, 1, 1);
        assert_eq!(some.get(4), None, "past the end");
        let mut none = Remembered::new(5, 48);
        none.note(0, 7, 1);
        assert_eq!((none.get(0), Remembered::bytes(5, 48), Remembered::bytes(4, 48)), (None, 0, 48));
    }
}
