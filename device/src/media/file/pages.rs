//! Sets of 4 KiB pages of a bank, as bit maps in segments that exist only where a bit is set.
//!
//! What always holds: `len` is the number of set bits. A set over a whole bank costs one bit a page in the segments that
//! are in use (1/32768 of the bytes) and eight bytes for each segment before the last one in use.
//!
//! The file store calls it, from one thread.

use std::ops::Range;

/// Unit of all the sets: of holes in the files, of the page cache, and of what a failed sync makes suspect.
pub const PAGE_BYTES: u64 = 4096;
/// Pages of one segment: 64 MiB.
const SEGMENT_PAGES: u64 = 16384;
const SEGMENT_WORDS: usize = (SEGMENT_PAGES / 64) as usize;

type Segment = Box<[u64; SEGMENT_WORDS]>;

/// Pages that a range of bytes touches.
#[inline]
pub fn pages_touched(start: u64, end: u64) -> Range<u64> {
    if start >= end { 0..0 } else { start / PAGE_BYTES..end.div_ceil(PAGE_BYTES) }
}

/// Pages that a range of bytes covers as a whole.
#[inline]
pub fn pages_covered(start: u64, end: u64) -> Range<u64> {
    let first = start.div_ceil(PAGE_BYTES);
    let last = end / PAGE_BYTES;
    if first >= last { 0..0 } else { first..last }
}

/// A set of pages.
#[derive(Default)]
pub struct PageSet {
    segments: Vec<Option<Segment>>,
    len: u64,
}

impl PageSet {
    pub fn len(&self) -> u64 {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds pages; returns how many were new.
    #[inline]
    pub fn insert(&mut self, pages: Range<u64>) -> u64 {
        let mut added = 0;
        each_word(pages, |segment, word, mask| {
            if segment >= self.segments.len() {
                self.segments.resize_with(segment + 1, || None);
            }
            let bits = &mut self.segments[segment].get_or_insert_with(|| Box::new([0; SEGMENT_WORDS]))[word];
            added += u64::from((mask & !*bits).count_ones());
            *bits |= mask;
            true
        });
        self.len += added;
        added
    }

    /// Takes pages out.
    pub fn remove(&mut self, pages: Range<u64>) {
        let mut removed = 0;
        let known = self.known(pages);
        each_word(known, |segment, word, mask| {
            if let Some(words) = &mut self.segments[segment] {
                removed += u64::from((mask & words[word]).count_ones());
                words[word] &= !mask;
            }
            true
        });
        self.len -= removed;
    }

    /// True where at least one of the pages is in the set.
    #[inline]
    pub fn intersects(&self, pages: Range<u64>) -> bool {
        let mut found = false;
        self.each_known_word(pages, |bits| {
            found = bits != 0;
            !found
        });
        found
    }

    /// Number of these pages that are in the set.
    #[cfg(test)]
    pub fn count(&self, pages: Range<u64>) -> u64 {
        let mut count = 0;
        self.each_known_word(pages, |bits| {
            count += u64::from(bits.count_ones());
            true
        });
        count
    }

    /// Whether the first of the pages is in the set, and how many of them in a row are alike.
    pub fn run(&self, pages: Range<u64>) -> (bool, u64) {
        let is_in = self.contains(pages.start);
        let mut end = pages.start + 1;
        while end < pages.end && self.contains(end) == is_in {
            end += 1;
        }
        (is_in, end - pages.start)
    }

    /// True where the page is in the set.
    #[inline]
    pub fn contains(&self, page: u64) -> bool {
        match self.segments.get((page / SEGMENT_PAGES) as usize) {
            Some(Some(words)) => words[(page % SEGMENT_PAGES / 64) as usize] >> (page % 64) & 1 == 1,
            _ => false,
        }
    }

    /// Adds all of another set.
    pub fn absorb(&mut self, other: &PageSet) {
        if other.segments.len() > self.segments.len() {
            self.segments.resize_with(other.segments.len(), || None);
        }
        for (mine, theirs) in self.segments.iter_mut().zip(&other.segments) {
            let Some(theirs) = theirs else { continue };
            let mine = mine.get_or_insert_with(|| Box::new([0; SEGMENT_WORDS]));
            for (into, from) in mine.iter_mut().zip(theirs.iter()) {
                self.len += u64::from((from & !*into).count_ones());
                *into |= from;
            }
        }
    }

    /// Adds those of the pages that are in another set as well.
    pub fn absorb_within(&mut self, other: &PageSet, pages: Range<u64>) {
        let known = other.known(pages);
        let mut at = known.start;
        while at < known.end {
            let segment = (at / SEGMENT_PAGES) as usize;
            let segment_end = known.end.min((segment as u64 + 1) * SEGMENT_PAGES);
            if let Some(theirs) = &other.segments[segment] {
                if segment >= self.segments.len() {
                    self.segments.resize_with(segment + 1, || None);
                }
                let mine = self.segments[segment].get_or_insert_with(|| Box::new([0; SEGMENT_WORDS]));
                let len = &mut self.len;
                each_word(at..segment_end, |_, word, mask| {
                    let bits = theirs[word] & mask;
                    *len += u64::from((bits & !mine[word]).count_ones());
                    mine[word] |= bits;
                    true
                });
            }
            at = segment_end;
        }
    }

    fn known(&self, pages: Range<u64>) -> Range<u64> {
        pages.start..pages.end.min(self.segments.len() as u64 * SEGMENT_PAGES)
    }

    /// Calls with the bits of each word of the range that may have some, until told to stop by `false`.
    #[inline]
    fn each_known_word(&self, pages: Range<u64>, mut visit: impl FnMut(u64) -> bool) {
        let mut known = self.known(pages);
        while known.start < known.end {
            let segment = (known.start / SEGMENT_PAGES) as usize;
            let segment_end = known.end.min((segment as u64 + 1) * SEGMENT_PAGES);
            if let Some(words) = &self.segments[segment] {
                let mut goes_on = true;
                each_word(known.start..segment_end, |_, word, mask| {
                    goes_on = visit(words[word] & mask);
                    goes_on
                });
                if !goes_on {
                    return;
                }
            }
            known.start = segment_end;
        }
    }
}

/// Calls with segment, word and mask for each word that the range touches, until told to stop by `false`.
#[inline]
fn each_word(pages: Range<u64>, mut visit: impl FnMut(usize, usize, u64) -> bool) {
    let mut page = pages.start;
    while page < pages.end {
        let bit = page % 64;
        let length = (64 - bit).min(pages.end - page);
        let mask = (u64::MAX >> (64 - length)) << bit;
        if !visit((page / SEGMENT_PAGES) as usize, (page % SEGMENT_PAGES / 64) as usize, mask) {
            return;
        }
        page += length;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::media::fault::Random;
    use std::collections::BTreeSet;

    #[test]
    fn same_as_a_set_of_numbers() {
        let mut random = Random::new(1);
        let mut set = PageSet::default();
        let mut other = PageSet::default();
        let mut model = BTreeSet::new();
        let mut other_model = BTreeSet::new();
        for _ in 0..600 {
            let start = random.below(40_000);
            let range = start..start + random.below(300);
            match random.below(6) {
                0 | 1 => {
                    let before = model.len();
                    let added = set.insert(range.clone());
                    model.extend(range.clone());
                    assert_eq!(added as usize, model.len() - before);
                }
                2 | 3 => {
                    set.remove(range.clone());
                    model.retain(|page| !range.contains(page));
                }
                4 => {
                    other.insert(range.clone());
                    other_model.extend(range.clone());
                }
                _ => {
                    set.absorb_within(&other, range.clone());
                    model.extend(other_model.iter().filter(|page| range.contains(page)));
                }
            }
            assert_eq!(set.len() as usize, model.len());
            assert_eq!(set.intersects(range.clone()), model.range(range.clone()).next().is_some());
            assert_eq!(set.count(range.clone()) as usize, model.range(range.clone()).count());
            if !range.is_empty() {
                let (is_in, length) = set.run(range.clone());
                assert!((range.start..range.start + length).all(|page| model.contains(&page) == is_in));
            }
        }
        set.absorb(&other);
        model.extend(&other_model);
        assert_eq!(set.len() as usize, model.len());
    }

    #[test]
    fn ranges_of_bytes() {
        assert_eq!(pages_touched(4095, 4097), 0..2);
        assert_eq!(pages_touched(10, 10), 0..0);
        assert_eq!(pages_covered(1, 12288), 1..3);
        assert_eq!(pages_covered(1, 8191), 0..0);
    }
}
