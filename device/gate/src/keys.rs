//! Keys that lie at equal distances, as in a node of a B+tree or a bucket of a hash table, and the place of one among them.
//!
//! Invariant: whatever lies there, in order or not, as many keys are compared as the order asks for, and the place is within the range.

/// Most bytes of a key.
pub const KEY_BYTES_MAX: u32 = 256;
/// Most bytes that a search's keys span.
pub const SPAN_BYTES_MAX: u64 = 65536;

/// How the keys lie.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Bytes of a key.
    pub key_bytes: u32,
    /// From the begin of a key to that of the next.
    stride_bytes: u32,
    pub(crate) count: u32,
    /// 0: they ascend; 1: they are in no order.
    pub(crate) order: u32,
    /// From the first key's begin to the last one's end.
    pub span_bytes: u32,
}

/// What there is of a key among others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Keys before it that are less; in no order, keys before the first that equals it.
    pub index: u32,
    /// Whether the key there equals it.
    pub equal: bool,
    /// How many keys were compared.
    pub comparisons: u64,
}

impl Layout {
    /// `None` where they cannot lie so.
    pub fn new(key_bytes: u32, stride_bytes: u32, count: u32, order: u32) -> Option<Layout> {
        let fits = (1..=KEY_BYTES_MAX).contains(&key_bytes) && stride_bytes >= key_bytes && order <= 1;
        let before_last = u64::from(stride_bytes) * u64::from(count.saturating_sub(1));
        let span = if count == 0 { 0 } else { before_last.checked_add(key_bytes.into())? };
        let span_bytes = (fits && span <= SPAN_BYTES_MAX).then_some(span as u32)?;
        Some(Layout { key_bytes, stride_bytes, count, order, span_bytes })
    }

    /// Most keys that are compared, whatever lies there.
    pub fn comparisons_max(&self) -> u64 {
        if self.order == 1 { self.count.into() } else { (u32::BITS - self.count.leading_zeros()).into() }
    }

    /// The place of a key among keys.
    pub fn place(&self, keys: &[u8], key: &[u8]) -> Place {
        let at = |index: usize| &keys[index * self.stride_bytes as usize..][..self.key_bytes as usize];
        let mut comparisons = 0;
        if self.order == 1 {
            let found = (0..self.count as usize).find(|index| {
                comparisons += 1;
                at(*index) == key
            });
            return Place {
                index: found.map_or(self.count, |index| index as u32),
                equal: found.is_some(),
                comparisons,
            };
        }
        let (mut low, mut high, mut equal) = (0, self.count as usize, false);
        while low < high {
            let middle = low.midpoint(high);
            comparisons += 1;
            match at(middle).cmp(key) {
                std::cmp::Ordering::Less => low = middle + 1,
                order => {
                    high = middle;
                    equal = order.is_eq();
                }
            }
        }
        Place { index: low as u32, equal, comparisons }
    }
}

impl Place {
    /// What the app is told: 2 and more, so that it is neither pending nor an error.
    pub fn result(&self) -> i32 {
        2 + 2 * self.index as i32 + i32::from(self.equal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_those_of_the_definition() {
        let mut state = 3u64;
        let mut next = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let mut most = [false; 2];
        for _ in 0..3000 {
            let key_bytes = 1 + next(3) as u32;
            let (stride_bytes, count) = (key_bytes + next(4) as u32, next(40) as u32);
            let draw =
                |next: &mut dyn FnMut(u64) -> u64| (0..key_bytes).map(|_| next(4) as u8 + 126).collect::<Vec<u8>>();
            let mut all: Vec<Vec<u8>> = (0..count).map(|_| draw(&mut next)).collect();
            let key = draw(&mut next);
            for order in [1, 0] {
                if order == 0 {
                    all.sort();
                }
                let layout = Layout::new(key_bytes, stride_bytes, count, order).expect("a layout");
                let mut bytes: Vec<u8> = all
                    .iter()
                    .flat_map(|key| [key.clone(), vec![0xff; (stride_bytes - key_bytes) as usize]].concat())
                    .collect();
                let span = layout.span_bytes as usize;
                assert!(span <= bytes.len());
                bytes.truncate(span);
                let first = all.iter().position(|other| *other == key);
                let less = all.iter().filter(|other| **other < key).count();
                let index = if order == 1 { first.unwrap_or(count as usize) } else { less };
                let place = layout.place(&bytes, &key);
                assert_eq!((place.index as usize, place.equal), (index, first.is_some()));
                assert!(place.comparisons <= layout.comparisons_max());
                most[order as usize] |= count > 0 && place.comparisons == layout.comparisons_max();
            }
        }
        assert_eq!(most, [true; 2], "the bound is reached");
    }

    #[test]
    fn layouts_that_cannot_be_are_none() {
        let layout = |key_bytes, stride_bytes, count, order| {
            Layout::new(key_bytes, stride_bytes, count, order).map(|it| it.span_bytes)
        };
        assert_eq!(
            (layout(8, 8, 0, 0), layout(8, 16, 2, 1), layout(256, 256, 256, 0)),
            (Some(0), Some(24), Some(65_536))
        );
        for (key_bytes, stride_bytes, count, order) in
            [(0, 8, 1, 0), (257, 300, 1, 0), (8, 7, 1, 0), (8, 8, 1, 2), (256, 256, 257, 0), (1, u32::MAX, u32::MAX, 0)]
        {
            assert_eq!(layout(key_bytes, stride_bytes, count, order), None);
        }
    }
}
