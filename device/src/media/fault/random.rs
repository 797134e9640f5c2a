//! Where tests and simulations take their random decisions from: all of it follows from a seed, or is enumerated.

/// A generator of random numbers: same seed, same numbers, on any machine (SplitMix64).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A generator for this seed.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, which is above zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// True in `times` of `of` cases.
    pub fn chance(&mut self, times: u64, of: u64) -> bool {
        self.below(of) < times
    }

    /// Random bytes.
    pub fn bytes(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.next_u64().to_le_bytes()[..chunk.len()]);
        }
        bytes
    }
}

/// Decides what survives a power cut: at random by seed, or each possibility in turn:
///
/// ```
/// use willow_device::media::fault::Choices;
/// let mut outcomes = Vec::new();
/// let mut choices = Choices::exhaustive();
/// loop {
///     outcomes.push((choices.choose(2), choices.choose(3)));
///     if !choices.advance() {
///         break;
///     }
/// }
/// assert_eq!(outcomes.len(), 6);
/// ```
#[derive(Clone, Debug)]
pub struct Choices {
    source: Source,
}

#[derive(Clone, Debug)]
enum Source {
    Seeded(Random),
    /// The decisions of this round as (taken, number of possibilities), and how many have been asked for.
    Exhaustive {
        path: Vec<(usize, usize)>,
        asked: usize,
    },
}

impl Choices {
    /// Random decisions.
    pub fn seeded(seed: u64) -> Choices {
        Choices { source: Source::Seeded(Random::new(seed)) }
    }

    /// All decisions, one combination a round; [`Choices::advance`] begins the next round. Each round has to ask the same
    /// questions as long as it gets the same answers.
    pub fn exhaustive() -> Choices {
        Choices { source: Source::Exhaustive { path: Vec::new(), asked: 0 } }
    }

    /// Takes a decision between `possibilities`, which is above zero.
    pub fn choose(&mut self, possibilities: usize) -> usize {
        match &mut self.source {
            Source::Seeded(random) => random.below(possibilities as u64) as usize,
            Source::Exhaustive { path, asked } => {
                if *asked == path.len() {
                    path.push((0, possibilities));
                }
                let (taken, of) = path[*asked];
                assert_eq!(of, possibilities, "the same answers have to lead to the same questions");
                *asked += 1;
                taken
            }
        }
    }

    /// Begins the next round; false where there is none. Random decisions go on for ever.
    pub fn advance(&mut self) -> bool {
        match &mut self.source {
            Source::Seeded(_) => true,
            Source::Exhaustive { path, asked } => {
                path.truncate(*asked);
                *asked = 0;
                while let Some((taken, of)) = path.pop() {
                    if taken + 1 < of {
                        path.push((taken + 1, of));
                        return true;
                    }
                }
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exhaustive_choices_reach_every_combination_once() {
        let mut seen = std::collections::BTreeSet::new();
        let mut choices = Choices::exhaustive();
        let mut rounds = 0;
        loop {
            let first = choices.choose(3);
            let second = if first == 1 { choices.choose(4) } else { 9 };
            seen.insert((first, second));
            rounds += 1;
            if !choices.advance() {
                break;
            }
        }
        assert_eq!(rounds, 6);
        assert_eq!(seen.len(), 6);
    }

    #[test]
    fn same_seed_same_numbers() {
        let (mut one, mut two) = (Random::new(5), Random::new(5));
        assert_eq!(one.bytes(33), two.bytes(33));
        assert!((0..1000).all(|_| one.below(7) < 7));
    }
}
