//! A source of random numbers that is the same from run to run and machine to machine.

/// SplitMix64 (Steele and others 2014): small, and every seed is a good one.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// The next number.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end` (which is not 0).
    #[inline]
    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(end)) >> 64) as u64
    }

    /// A source of its own for part `number` of a whole: the parts' numbers have nothing to do with one another.
    pub fn part(&self, number: u64) -> Random {
        let mut source = Random(self.0 ^ number.wrapping_mul(0xd6e8_feb8_6659_fd93));
        source.next_u64();
        source
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_numbers_stay_below_their_end() {
        let mut random = Random(1);
        let mut seen = [0; 10];
        (0..1000).for_each(|_| seen[random.below(10) as usize] += 1);
        assert!(seen.iter().all(|count| *count > 50), "{seen:?}");
    }

    #[test]
    fn parts_differ() {
        let whole = Random(7);
        let firsts: std::collections::BTreeSet<u64> = (0..1000).map(|part| whole.part(part).next_u64()).collect();
        assert_eq!(firsts.len(), 1000);
        assert_eq!(whole.part(3).next_u64(), Random(7).part(3).next_u64());
    }
}
