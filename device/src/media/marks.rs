//! Marks: ranges of banks whose reads fail, since a host has said so (NVMe's Write Uncorrectable), until they are written.
//!
//! Invariants: marks are in order of bank and address, none is empty, and none of a bank touches another; of a device without any, asking
//! costs one load.
//!
//! Who may call it: the control service keeps the durable set and hands the media controller a copy with each commit, by which reads are
//! refused and writes are held until the set is saved without them.

use serde::{Deserialize, Serialize};

/// A marked range of a bank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// The bank's SPU.
    pub spu: u16,
    /// First byte in the bank.
    pub start: u64,
    /// Length.
    pub bytes: u64,
}

impl Mark {
    fn end(&self) -> u64 {
        self.start + self.bytes
    }
}

/// A set of marks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Marks(Vec<Mark>);

impl Marks {
    /// True where nothing is marked.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All of them.
    pub fn all(&self) -> &[Mark] {
        &self.0
    }

    /// True where they keep the invariants, in a device of so many banks: what was read from media may be anything.
    pub fn is_sound(&self, banks: u16) -> bool {
        let is_one = |mark: &Mark| mark.spu < banks && mark.bytes > 0 && mark.start.checked_add(mark.bytes).is_some();
        self.0.iter().all(is_one)
            && self.0.windows(2).all(|pair| (pair[0].spu, pair[0].end()) < (pair[1].spu, pair[1].start))
    }

    /// Place of the first that ends behind an address.
    fn first_behind(&self, spu: u16, address: u64) -> usize {
        self.0.partition_point(|mark| (mark.spu, mark.end()) <= (spu, address))
    }

    /// Whether a byte of a range is marked.
    #[cold]
    pub fn overlap(&self, spu: u16, start: u64, bytes: u64) -> bool {
        let next = self.0.get(self.first_behind(spu, start));
        bytes > 0 && next.is_some_and(|mark| mark.spu == spu && mark.start < start.saturating_add(bytes))
    }

    /// Marked bytes of a range.
    pub fn bytes_within(&self, spu: u16, start: u64, bytes: u64) -> u64 {
        let end = start.saturating_add(bytes);
        let of_range = self.0[self.first_behind(spu, start)..].iter();
        let of_range = of_range.take_while(|mark| mark.spu == spu && mark.start < end);
        of_range.map(|mark| mark.end().min(end) - mark.start.max(start)).sum()
    }

    /// Marks a range.
    pub fn add(&mut self, spu: u16, start: u64, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let (mut start, mut end) = (start, start + bytes);
        // With all that it touches it becomes one.
        let from = self.0.partition_point(|mark| (mark.spu, mark.end()) < (spu, start));
        let to = self.0.partition_point(|mark| (mark.spu, mark.start) <= (spu, end)).max(from);
        for mark in &self.0[from..to] {
            (start, end) = (start.min(mark.start), end.max(mark.end()));
        }
        self.0.splice(from..to, [Mark { spu, start, bytes: end - start }]);
    }

    /// Takes the marks from a range; true where there were some.
    pub fn remove(&mut self, spu: u16, start: u64, bytes: u64) -> bool {
        let end = start.saturating_add(bytes);
        let from = self.first_behind(spu, start);
        let to = self.0.partition_point(|mark| (mark.spu, mark.start) < (spu, end)).max(from);
        if from == to || bytes == 0 {
            return false;
        }
        let (first, last) = (self.0[from], self.0[to - 1]);
        let before = Mark { spu, start: first.start, bytes: start.saturating_sub(first.start) };
        let behind = Mark { spu, start: end, bytes: last.end().saturating_sub(end) };
        self.0.splice(from..to, [before, behind].into_iter().filter(|mark| mark.bytes > 0));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Marks against a table of bytes, by a thousand additions and removals.
    #[test]
    fn marks_are_the_bytes_that_were_marked() {
        const BYTES: usize = 64;
        let (mut marks, mut table) = (Marks::default(), [[false; BYTES]; 3]);
        let mut seed = 1u64;
        let mut random = |below: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as usize % below
        };
        for step in 0..2000 {
            let (spu, start) = (random(3), random(BYTES));
            let bytes = random(BYTES - start + 1);
            let had = table[spu][start..start + bytes].iter().any(|is_marked| *is_marked);
            let count = table[spu][start..start + bytes].iter().filter(|is_marked| **is_marked).count();
            assert_eq!(marks.overlap(spu as u16, start as u64, bytes as u64), had, "step {step}");
            assert_eq!(marks.bytes_within(spu as u16, start as u64, bytes as u64), count as u64, "step {step}");
            let adds = random(2) == 0;
            match adds {
                true => marks.add(spu as u16, start as u64, bytes as u64),
                false => assert_eq!(marks.remove(spu as u16, start as u64, bytes as u64), had, "step {step}"),
            }
            table[spu][start..start + bytes].fill(adds);
            assert!(marks.is_sound(3), "step {step}: {marks:?}");
            for (spu, row) in (0u16..).zip(&table) {
                for (at, is_marked) in (0u64..).zip(row) {
                    assert_eq!(marks.overlap(spu, at, 1), *is_marked, "step {step}, byte {at} of bank {spu}");
                }
            }
        }
        assert!(!marks.is_sound(2), "a bank that is not there");
    }

    #[test]
    fn what_media_say_may_be_no_set_of_marks() {
        let mark = |spu, start, bytes| Mark { spu, start, bytes };
        for wrong in [
            vec![mark(0, 0, 0)],
            vec![mark(0, u64::MAX, 2)],
            vec![mark(0, 0, 8), mark(0, 8, 8)],
            vec![mark(1, 0, 8), mark(0, 0, 8)],
        ] {
            assert!(!Marks(wrong.clone()).is_sound(2), "{wrong:?}");
        }
        assert!(Marks(vec![mark(0, 0, 8), mark(0, 9, 8), mark(1, 0, 8)]).is_sound(2));
    }
}
