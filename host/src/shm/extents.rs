//! Which parts of an endpoint's data area are in use.
//!
//! What always holds: extents handed out do not overlap; whole units of 4096 bytes; first fit, so that what is small stays in
//! front and long stretches stay whole.

use std::collections::BTreeMap;

/// Unit.
const UNIT_BYTES: u32 = 4096;

/// An extent in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First byte in the data area.
    pub offset: u32,
    /// Bytes, as many as were asked for.
    pub bytes: u32,
}

/// The free parts: start, length in bytes; no two touch.
#[derive(Debug)]
pub struct Extents {
    free: BTreeMap<u32, u32>,
}

impl Extents {
    /// All of `bytes` free.
    pub fn new(bytes: u64) -> Self {
        let whole = u32::try_from(bytes).unwrap_or(u32::MAX) / UNIT_BYTES * UNIT_BYTES;
        Extents { free: [(0, whole)].into() }
    }

    /// Takes an extent; `None` where no stretch is long enough now.
    pub fn take(&mut self, bytes: u32) -> Option<Extent> {
        let units = bytes.checked_next_multiple_of(UNIT_BYTES)?;
        if units == 0 {
            return Some(Extent { offset: 0, bytes: 0 });
        }
        let (&offset, &length) = self.free.iter().find(|(_, length)| **length >= units)?;
        self.free.remove(&offset);
        if length > units {
            self.free.insert(offset + units, length - units);
        }
        Some(Extent { offset, bytes })
    }

    /// Gives one back.
    pub fn give(&mut self, extent: Extent) {
        let mut length = extent.bytes.next_multiple_of(UNIT_BYTES);
        if length == 0 {
            return;
        }
        let mut offset = extent.offset;
        if let Some(next) = self.free.remove(&(offset + length)) {
            length += next;
        }
        if let Some((&before, &its)) = self.free.range(..offset).next_back()
            && before + its == offset
        {
            self.free.remove(&before);
            (offset, length) = (before, its + length);
        }
        self.free.insert(offset, length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_never_overlap_and_all_comes_back() {
        let mut extents = Extents::new(64 << 12);
        let mut held: Vec<Extent> = Vec::new();
        let mut seed = 5u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) % below
        };
        let (mut refused, mut most) = (0, 0);
        for _ in 0..5000 {
            if random(2) == 0 && !held.is_empty() {
                extents.give(held.swap_remove(random(held.len() as u64) as usize));
            } else if let Some(extent) = extents.take(1 + random(40_000) as u32) {
                let end = |extent: &Extent| extent.offset + extent.bytes.next_multiple_of(UNIT_BYTES);
                assert!(end(&extent) <= 64 << 12 && extent.offset.is_multiple_of(UNIT_BYTES));
                assert!(held.iter().all(|other| end(other) <= extent.offset || end(&extent) <= other.offset));
                held.push(extent);
                most = most.max(held.len());
            } else {
                refused += 1;
            }
        }
        assert!(refused > 100 && most > 8);
        held.into_iter().for_each(|extent| extents.give(extent));
        assert_eq!(extents.take(64 << 12), Some(Extent { offset: 0, bytes: 64 << 12 }));
        assert_eq!(extents.take(1), None);
        assert_eq!(extents.take(0), Some(Extent { offset: 0, bytes: 0 }));
    }
}
