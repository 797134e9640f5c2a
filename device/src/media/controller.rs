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

/// What shall happen when an operation of the store has ended.
pub(crate) enum Pending<C> {
    /// A read for the reply buffer of an activity.
    ToReply { group: u32, token: u32, offset: u64 },
    /// A read for an app's memory.
    ToLocal { group: u32, pointer: u64 },
    /// A read for the body of a message.
    ToMessage { handle: u32, offset: usize, account: u16 },
    /// A read that goes on as a write.
    ToNv { group: u32, bank: usize, address: u64 },
    /// A read to be compared with an activity's body.
    Compare { group: u32, token: u32, body_offset: u64 },
    /// A read to be summed.
    Checksum { group: u32, seed: u32 },
    /// A write, a zeroing or a flush.
    Group { group: u32 },
    /// Work of the control service.
    Control(C),
}

/// The controller. `C`: what the control service waits with.
pub(crate) struct MediaController<C> {
    pub store: Box<dyn Store>,
    pending: Slab<Pending<C>>,
    /// Operations that somebody waits for, and what goes on then.
    fences: Vec<(BTreeSet<u32>, C)>,
}

impl<C> MediaController<C> {
    pub fn new(store: Box<dyn Store>) -> Self {
        MediaController { store, pending: Slab::new(PENDING_MAX), fences: Vec::new() }
    }

    /// Number of operations under way.
    pub fn in_flight(&self) -> usize {
        self.pending.len()
    }

    /// A ticket for an operation about to begin; gives `pending` back where too many are under way.
    pub fn ticket(&mut self, pending: Pending<C>) -> Result<Ticket, Pending<C>> {
        self.pending.insert(pending).map(Ticket::from)
    }

    /// What waits for a ticket.
    pub fn waiting(&self, ticket: Ticket) -> Option<&Pending<C>> {
        self.pending.get(u32::try_from(ticket).ok()?)
    }

    /// What waited for a ticket.
    pub fn take(&mut self, ticket: Ticket) -> Option<Pending<C>> {
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
    pub fn begin_write(
        &mut self,
        bank: usize,
        address: u64,
        from: Vec<u8>,
        pending: Pending<C>,
    ) -> Result<(), StoreError> {
        let ticket = self.ticket(pending).map_err(|_| TOO_MANY)?;
        self.store.begin_write(ticket, bank, address, from);
        Ok(())
    }

    /// Begins a zeroing that the store could not do at once.
    pub fn begin_zero(&mut self, bank: usize, address: u64, bytes: u64, pending: Pending<C>) -> Result<(), StoreError> {
        let ticket = self.ticket(pending).map_err(|_| TOO_MANY)?;
        self.store.begin_zero(ticket, bank, address, bytes);
        Ok(())
    }

    /// Begins a read that the store could not do at once.
    pub fn begin_read(
        &mut self,
        bank: usize,
        address: u64,
        bytes: usize,
        pending: Pending<C>,
    ) -> Result<(), StoreError> {
        let ticket = self.ticket(pending).map_err(|_| TOO_MANY)?;
        self.store.begin_read(ticket, bank, address, bytes);
        Ok(())
    }

    /// Makes a bank, or all, durable.
    pub fn flush(&mut self, bank: Option<usize>, pending: Pending<C>) -> Result<Progress, StoreError> {
        let ticket = self.ticket(pending).map_err(|_| TOO_MANY)?;
        let progress = self.store.flush(ticket, bank);
        if !matches!(progress, Ok(Progress::WouldBlock)) {
            self.take(ticket);
        }
        progress
    }
}
