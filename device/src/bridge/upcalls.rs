//! Upcalls of apps that their hosts have not answered: at which endpoint each is, and what waits for the answer.
//!
//! What always holds: an upcall has a number that none had before; it is answered once, or given up.

use crate::hre::HreId;
use crate::interconnect::Key;
use std::collections::BTreeMap;

/// All of them, bounded by what apps may have unanswered.
pub(crate) struct Upcalls {
    asked: BTreeMap<u64, (HreId, Key)>,
    next: u64,
}

impl Default for Upcalls {
    fn default() -> Self {
        Upcalls { asked: BTreeMap::new(), next: 1 }
    }
}

impl Upcalls {
    /// The number that the next upcall will have.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// An upcall has that number.
    pub fn number(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// An endpoint is asked, on behalf of a group.
    pub fn ask(&mut self, id: u64, hre: HreId, group: Key) {
        self.asked.insert(id, (hre, group));
    }

    /// Who is asked, and what waits.
    pub fn of(&self, id: u64) -> Option<(HreId, Key)> {
        self.asked.get(&id).copied()
    }

    /// It has been answered, or is given up.
    pub fn take(&mut self, id: u64) -> Option<(HreId, Key)> {
        self.asked.remove(&id)
    }

    /// All, in order.
    pub fn all(&self) -> impl Iterator<Item = (u64, HreId, Key)> {
        self.asked.iter().map(|(id, (hre, group))| (*id, *hre, *group))
    }

    /// How many there are.
    #[cfg(feature = "testing")]
    pub fn len(&self) -> usize {
        self.asked.len()
    }
}
