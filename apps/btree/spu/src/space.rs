//! Which units of a tree's pages are taken: a bit for each, in local memory. It is made anew from the tree when that is first changed.
//!
//! What always holds: what was given out is taken until it is given back; values lie within a page; pages for nodes are whole.

use crate::format::UNITS;
use alloc::vec;
use alloc::vec::Vec;

/// Pages of a word.
const PAGES: u32 = u64::BITS / UNITS;
/// The lowest unit of each page.
const LOWEST: u64 = 0x1111_1111_1111_1111;

/// The units of a tree.
pub struct Space {
    words: Vec<u64>,
    /// Pages without a taken unit.
    free_pages: u32,
    /// Where whole pages are looked for next, and places in others.
    cursors: [usize; 2],
    /// The page that the last value went to.
    last: u32,
    /// No place for so many units, less one, is left within pages, since something was given back.
    is_cramped: [bool; UNITS as usize],
}

/// A piece of a page: units from one on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// First unit of all.
    pub unit: u32,
    /// How many.
    pub units: u32,
}

impl Piece {
    /// A whole page.
    pub fn page(page: u32) -> Piece {
        Piece { unit: page * UNITS, units: UNITS }
    }

    fn mask(self) -> (usize, u64) {
        let ones = (1 << self.units) - 1;
        ((self.unit / u64::BITS) as usize, ones << (self.unit % u64::BITS))
    }
}

/// Of each page, the units at which so many free ones begin.
fn places(word: u64, units: u32) -> u64 {
    let free = !word;
    let begins = (1..units).fold(free, |begins, after| begins & free >> after);
    let within = (LOWEST << (UNITS - units + 1)).wrapping_sub(LOWEST);
    begins & if units == 1 { u64::MAX } else { within }
}

impl Space {
    /// Nothing is taken.
    pub fn new(pages: u32) -> Space {
        let mut words = vec![0; pages.div_ceil(PAGES) as usize];
        // What lies past the end is taken for good.
        let rest = pages % PAGES;
        if rest > 0
            && let Some(last) = words.last_mut()
        {
            *last = u64::MAX << (rest * UNITS);
        }
        Space { words, free_pages: pages, cursors: [0; 2], last: 0, is_cramped: [false; UNITS as usize] }
    }

    /// Pages without a taken unit.
    pub fn free_pages(&self) -> u32 {
        self.free_pages
    }

    /// A page's bits.
    fn page(&self, page: u32) -> u64 {
        self.words[(page / PAGES) as usize] >> (page % PAGES * UNITS) & 0xf
    }

    /// Takes a piece; false where some of it is taken.
    pub fn take(&mut self, piece: Piece) -> bool {
        let was_free = self.page(piece.unit / UNITS) == 0;
        let (word, mask) = piece.mask();
        if self.words[word] & mask != 0 {
            return false;
        }
        self.words[word] |= mask;
        self.free_pages -= u32::from(was_free && piece.units > 0);
        true
    }

    /// Gives a piece back.
    pub fn give_back(&mut self, piece: Piece) {
        if piece.units == 0 {
            return;
        }
        let (word, mask) = piece.mask();
        debug_assert!(self.words[word] & mask == mask, "given back twice");
        self.words[word] &= !mask;
        self.free_pages += u32::from(self.page(piece.unit / UNITS) == 0);
        self.is_cramped = [false; UNITS as usize];
    }

    /// A whole page, where more than `reserve` are left.
    pub fn take_page(&mut self, reserve: u32) -> Option<u32> {
        if self.free_pages <= reserve {
            return None;
        }
        let page = self.find(0, UNITS)? / UNITS;
        self.take(Piece::page(page)).then_some(page)
    }

    /// A place for a value: behind the last one, in a whole page, or wherever there is one.
    pub fn take_units(&mut self, units: u32, reserve: u32) -> Option<u32> {
        let at = places(self.page(self.last) | !0xf, units);
        let unit = if at != 0 && self.page(self.last) != 0 {
            self.last * UNITS + at.trailing_zeros()
        } else if self.free_pages > reserve {
            self.find(0, UNITS)?
        } else if self.is_cramped[units as usize - 1] {
            return None;
        } else {
            // A page of the reserve is not begun.
            match self.find(1, units) {
                Some(unit) => unit,
                None => {
                    self.is_cramped[units as usize - 1] = true;
                    return None;
                }
            }
        };
        self.last = unit / UNITS;
        self.take(Piece { unit, units }).then_some(unit)
    }

    /// The next place: of whole pages, or (1) in pages that are begun.
    fn find(&mut self, kind: usize, units: u32) -> Option<u32> {
        for step in 0..=self.words.len() {
            let at = (self.cursors[kind] + step) % self.words.len().max(1);
            let word = *self.words.get(at)?;
            let mut found = places(word, units);
            if kind == 1 {
                let begun = (word | word >> 1 | word >> 2 | word >> 3) & LOWEST;
                found &= begun * 0xf;
            }
            if found != 0 {
                self.cursors[kind] = at;
                return Some(at as u32 * u64::BITS + found.trailing_zeros());
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_given_out_twice_and_all_is_used() {
        for pages in [1, 15, 16, 17, 90] {
            let mut space = Space::new(pages);
            let mut taken = vec![false; (pages * UNITS) as usize];
            let mut held: Vec<Piece> = Vec::new();
            let mut state = 5u64;
            for _ in 0..4000 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let (drawn, units) = ((state >> 33) as usize, 1 + (state >> 60) as u32 % UNITS);
                if drawn.is_multiple_of(3) && !held.is_empty() {
                    let piece = held.swap_remove(drawn / 3 % held.len());
                    (piece.unit..piece.unit + piece.units).for_each(|unit| taken[unit as usize] = false);
                    space.give_back(piece);
                    continue;
                }
                let found = match drawn % 3 {
                    1 => space.take_page(0).map(Piece::page),
                    _ => space.take_units(units, 0).map(|unit| Piece { unit, units }),
                };
                let wanted = if drawn % 3 == 1 { UNITS } else { units };
                let fits = |page: &[bool]| page.windows(wanted as usize).any(|run| run.iter().all(|taken| !taken));
                let has_room = taken.chunks(UNITS as usize).any(fits);
                assert_eq!(found.is_some(), has_room, "{pages} {wanted}");
                let Some(piece) = found else { continue };
                assert!(piece.unit / UNITS == (piece.unit + piece.units - 1) / UNITS && piece.units == wanted);
                for unit in piece.unit..piece.unit + piece.units {
                    assert!(!std::mem::replace(&mut taken[unit as usize], true), "unit {unit} is given out twice");
                }
                held.push(piece);
                assert_eq!(
                    space.free_pages() as usize,
                    taken.chunks(4).filter(|page| page.iter().all(|it| !it)).count()
                );
            }
            assert!(!space.take(held[0]) || held[0].units == 0);
        }
    }

    #[test]
    fn the_reserve_is_for_nodes() {
        let mut space = Space::new(20);
        while space.take_units(4, 4).is_some() {}
        assert_eq!((space.free_pages(), space.take_page(4), space.take_units(1, 4)), (4, None, None));
        assert!(space.take_page(0).is_some());
    }
}
