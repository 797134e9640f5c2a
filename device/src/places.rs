//! Places of a table that several parties share, so that none can take them all.
//!
//! What always holds:
//! - half of the places are kept back, as many for each party that there can be: whoever has fewer than that finds one, whatever others do;
//! - of the other half a party may have as much as it leaves free. So one that hoards gets half of it, and what nobody else wants is
//!   not kept from those who do.

/// The places. Parties are numbers, small ones.
#[derive(Debug)]
pub(crate) struct Places {
    /// Kept back for each party.
    own: u64,
    parties: u16,
    /// Those that are kept back for nobody, and how many of them are taken.
    common: u64,
    common_taken: u64,
    /// What each party has.
    of: Vec<u64>,
}

impl Places {
    /// All free, for parties below `parties`.
    pub fn new(total: u64, parties: u16) -> Self {
        let own = total / 2 / u64::from(parties.max(1));
        Places { own, parties, common: total - own * u64::from(parties), common_taken: 0, of: Vec::new() }
    }

    /// Of so many places that a party has, those that are not its own.
    #[inline]
    fn of_common(&self, party: u16, has: u64) -> u64 {
        if party < self.parties { has.saturating_sub(self.own) } else { has }
    }

    /// True where a party may take so many more.
    #[inline]
    pub fn admits(&self, party: u16, places: u64) -> bool {
        let has = self.of(party);
        let (before, after) = (self.of_common(party, has), self.of_common(party, has.saturating_add(places)));
        after == before || after <= self.common.saturating_sub(self.common_taken)
    }

    /// Takes places, or none; true where they were taken.
    #[inline]
    pub fn take(&mut self, party: u16, places: u64) -> bool {
        if !self.admits(party, places) {
            return false;
        }
        self.put(party, places);
        true
    }

    /// Gives places back that were taken.
    #[inline]
    pub fn release(&mut self, party: u16, places: u64) {
        if places == 0 {
            return;
        }
        let has = self.of(party);
        assert!(has >= places, "a place was given back that nobody had taken");
        self.common_taken -= self.of_common(party, has) - self.of_common(party, has - places);
        self.of[usize::from(party)] = has - places;
    }

    /// Places go over to another party, whether it may have them or not: nobody is asked before a process ends.
    pub fn pass(&mut self, from: u16, to: u16, places: u64) {
        self.release(from, places);
        self.put(to, places);
    }

    /// Takes places without asking whether there are any: the caller has ([`Places::admits`]).
    #[inline]
    pub fn put(&mut self, party: u16, places: u64) {
        if self.of.len() <= usize::from(party) {
            self.of.resize(usize::from(party) + 1, 0);
        }
        let has = self.of[usize::from(party)];
        self.common_taken += self.of_common(party, has + places) - self.of_common(party, has);
        self.of[usize::from(party)] = has + places;
    }

    /// What all have.
    pub fn taken(&self) -> u64 {
        self.of.iter().sum()
    }

    /// What a party has.
    #[inline]
    pub fn of(&self, party: u16) -> u64 {
        self.of.get(usize::from(party)).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hoard(places: &mut Places, party: u16) -> usize {
        (0..2000).filter(|_| places.take(party, 1)).count()
    }

    #[test]
    fn who_hoards_leaves_as_much_as_he_has_and_everybody_their_own() {
        let mut places = Places::new(1000, 50);
        assert_eq!((hoard(&mut places, 0), hoard(&mut places, 7)), (260, 135));
        assert!(!places.take(1, 137) && places.take(1, 73));
        places.release(0, 260);
        assert_eq!((places.of(0), places.of(1)), (0, 73));
        for party in 2..50 {
            assert!(hoard(&mut places, party) >= if party == 7 { 0 } else { 10 });
        }
        // The last has what is its own, and a party that was not reckoned with has what is left.
        assert!(places.admits(0, 10) && !places.admits(50, 1000));
    }

    proptest! {
        #[test]
        fn everybody_finds_their_own(steps in prop::collection::vec((0u16..20, 1u64..50, any::<bool>()), 1..400)) {
            let mut places = Places::new(640, 20);
            for (party, count, takes) in steps {
                match takes {
                    true => drop(places.take(party, count)),
                    false => places.release(party, count.min(places.of(party))),
                }
                for party in 0..20 {
                    prop_assert!(places.of(party) >= 16 || places.admits(party, 16 - places.of(party)));
                }
                let sum: u64 = (0..20).map(|party| places.of(party).max(16)).sum();
                prop_assert!(sum <= 640, "{places:?}");
            }
        }
    }
}
