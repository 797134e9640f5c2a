//! Randomness by seed, and choices that are drawn or tried one after another.

use alloc::vec::Vec;

/// SplitMix64: replayed from its seed.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// The next number.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// True once in `bound` times; never where `bound` is 0.
    pub fn one_in(&mut self, bound: u64) -> bool {
        bound > 0 && self.below(bound) == 0
    }
}

/// Which of several outcomes happens.
#[derive(Clone, Debug)]
pub enum Choices {
    /// By seed.
    Drawn(Random),
    /// One combination after another; see [`Choices::advance`].
    Enumerated {
        /// What was chosen, and of how many.
        script: Vec<(u64, u64)>,
        /// The next choice.
        at: usize,
    },
}

impl Choices {
    /// The first combination of an enumeration.
    pub fn first() -> Choices {
        Choices::Enumerated { script: Vec::new(), at: 0 }
    }

    /// Chooses one of `count`.
    pub fn choose(&mut self, count: u64) -> u64 {
        match self {
            Choices::Drawn(random) => random.below(count),
            Choices::Enumerated { script, at } => {
                if *at == script.len() {
                    script.push((0, count));
                }
                *at += 1;
                script[*at - 1].0
            }
        }
    }

    /// Goes on to the next combination. False: all were tried, or they are drawn.
    pub fn advance(&mut self) -> bool {
        let Choices::Enumerated { script, at } = self else { return false };
        *at = 0;
        while let Some((chosen, count)) = script.pop() {
            if chosen + 1 < count {
                script.push((chosen + 1, count));
                return true;
            }
        }
        false
    }
}
