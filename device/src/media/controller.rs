//! The media controller: carries operations out on the store, remembers those that the store does in its own time, and counts.
//!
//! Invariants: an operation that the store took has exactly one entry here until it ends; tickets of entries that are gone
//! find nothing; a fence is passed when all that was under way when it was set has ended.

use super::store::{Progress, Store, StoreError, Ticket};
use crate::slab::Slab;
use std::collections::BTreeSet;

/// Most operations that the store may have under way.
pub const PENDING_MAX: usize = 1 << 15;

// The media are well: never told as a failure of theirs.
const TOO_MANY: StoreError = StoreError::Busy;

/// The controller. `P`: what shall happen when an operation has ended; `C`: when a fence is passed.
pub(crate) struct MediaController<P, C> {
    pub store: Box<dyn Store>,
    pending: Slab<P>,
    /// Operations that somebody waits for, and what goes on then.
    fences: Vec<(BTreeSet<u32>, C)>,
}

impl<P, C> MediaController<P, C> {
    pub fn new(store: Box<dyn Store>) -> Self {
        MediaController { store, pending: Slab::new(PENDING_MAX), fences: Vec::new() }
    }

    /// Number of operations under way.
    pub fn in_flight(&self) -> usize {
        self.pending.len()
    }

    /// A ticket for an operation about to begin; gives `pending` back where too many are under way.
    pub fn ticket(&mut self, pending: P) -> Result<Ticket, P> {
        self.pending.insert(pending).map(Ticket::from)
    }

    /// What waits for a ticket.
    pub fn waiting(&self, ticket: Ticket) -> Option<&P> {
        self.pending.get(u32::try_from(ticket).ok()?)
    }

    /// What waited for a ticket.
    pub fn take(&mut self, ticket: Ticket) -> Option<P> {
        self.pending.remove(u32::try_from(ticket).ok()?)
    }

    /// Goes on with `then` ([`MediaController::passed_fence`]) when all operations that are under way now have ended.
    pub fn fence(&mut self, then: C) {
        self.fences.push((self.pending.keys().into_iter().collect(), then));
    }

    /// An operation has ended; true where a fence waited for it.
    #[inline]
    pub fn reaches_fence(&mut self, ticket: Ticket) -> bool {
        if self.fences.is_empty() {
            return false;
        }
        let Ok(ticket) = u32::try_from(ticket) else { return false };
        self.fences.iter_mut().fold(false, |reached, (waits, _)| waits.remove(&ticket) || reached)
    }

    /// What waited for a fence that is passed.
    #[inline]
    pub fn passed_fence(&mut self) -> Option<C> {
        let passed = self.fences.iter().position(|(waits, _)| waits.is_empty())?;
        Some(self.fences.remove(passed).1)
    }

    /// Begins a write that the store could not do at once.
    pub fn begin_write(&mut self, bank: usize, address: u64, from: Vec<u8>, pending: P) -> Result<(), StoreError> {
        let ticket = self.ticket(pending).map_err(|_| TOO_MANY)?;
        self.store.begin_write(ticket, bank, address, from);
        Ok(())
    }

    /// Begins a zeroing that the store could not do at once.
    pub fn begin_zero(&mut self, bank: usize, address: u64, bytes: u64, pending: P) -> Result<(), StoreError> {
        let ticket = self.ticket(pending).map_err(|_| TOO_MANY)?;
        self.store.begin_zero(ticket, bank, address, bytes);
        Ok(())
    }

    /// Begins a read that the store could not do at once.
    pub fn begin_read(&mut self, bank: usize, address: u64, bytes: usize, pending: P) -> Result<(), StoreError> {
        let ticket = self.ticket(pending).map_err(|_| TOO_MANY)?;
        self.store.begin_read(ticket, bank, address, bytes);
        Ok(())
    }

    /// Makes a bank, or all, durable.
    pub fn flush(&mut self, bank: Option<usize>, pending: P) -> Result<Progress, StoreError> {
        let ticket = self.ticket(pending).map_err(|_| TOO_MANY)?;
        let progress = self.store.flush(ticket, bank);
        if !matches!(progress, Ok(Progress::WouldBlock)) {
            self.take(ticket);
        }
        progress
    }
}
