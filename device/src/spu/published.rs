//! What the control service publishes for all SPUs: an immutable snapshot, replaced as a whole when a change is durable.
//!
//! Invariant: nobody changes one that is published; each operation reads the one that is there.

use super::os::Machine;
use super::protection::Intercall;
use crate::namespace::Namespace;
use crate::region::RegionTable;
use std::collections::BTreeSet;
use std::sync::Arc;

/// What all SPUs work by.
pub(crate) struct Published {
    /// Who owns which range of every bank.
    pub regions: RegionTable,
    /// In order of NSID; the same `Arc` until the table changes.
    pub namespaces: Arc<Vec<Namespace>>,
    /// Which users' apps may call which others.
    pub intercalls: BTreeSet<Intercall>,
}

impl Machine {
    /// What is published now.
    pub fn published(&self) -> &Arc<Published> {
        &self.published
    }

    /// From now on all SPUs work by this.
    pub fn publish(&mut self, published: Published) {
        self.published = Arc::new(published);
        for resident in self.spus.iter_mut().flat_map(|spu| &mut spu.residents) {
            // What was found to be permitted was so by the one before.
            resident.permitted = (0, 0, false);
        }
    }
}
