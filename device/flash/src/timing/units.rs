//! The next event of each die and each bus, and the first of all: a tree of minima.
//!
//! What always holds: a unit has one next event or none; setting another replaces it. Of events at the same time the one of the unit with the
//! lower number comes first.

/// No event.
pub const NEVER: u64 = u64::MAX;

/// The next events.
#[derive(Debug)]
pub struct Units {
    /// Leaves from `leaves` on; every node is the lesser of its two children.
    nodes: Vec<u64>,
    leaves: usize,
}

impl Units {
    pub fn new(units: usize) -> Units {
        let leaves = units.next_power_of_two().max(2);
        Units { nodes: vec![NEVER; leaves * 2], leaves }
    }

    /// The time of a unit's next event, in place of the one that it had.
    #[inline]
    pub fn set(&mut self, unit: usize, at_ns: u64) {
        let mut node = self.leaves + unit;
        self.nodes[node] = at_ns;
        while node > 1 {
            node /= 2;
            let least = self.nodes[node * 2].min(self.nodes[node * 2 + 1]);
            if self.nodes[node] == least {
                return;
            }
            self.nodes[node] = least;
        }
    }

    /// The time of the first event.
    #[inline]
    pub fn first_ns(&self) -> u64 {
        self.nodes[1]
    }

    /// The unit of the first event, if there is one.
    #[inline]
    pub fn first(&self) -> Option<usize> {
        if self.nodes[1] == NEVER {
            return None;
        }
        let mut node = 1;
        while node < self.leaves {
            node *= 2;
            if self.nodes[node] != self.nodes[node / 2] {
                node += 1;
            }
        }
        Some(node - self.leaves)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_event_is_the_least_by_time_and_unit() {
        let mut units = Units::new(5);
        assert_eq!(units.first(), None);
        let mut times = [NEVER; 5];
        let mut state = 1u64;
        for _ in 0..10_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let unit = (state >> 33) as usize % 5;
            let at = if state >> 60 == 0 { NEVER } else { (state >> 40) % 16 };
            times[unit] = at;
            units.set(unit, at);
            let least = *times.iter().min().unwrap();
            assert_eq!(units.first_ns(), least);
            assert_eq!(units.first(), (least != NEVER).then(|| times.iter().position(|at| *at == least).unwrap()));
        }
    }
}
