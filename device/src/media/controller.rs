//! The media controller: carries operations out on the store, remembers those that the store does in its own time, and counts.
//!
//! Invariants: an operation that the store took has exactly one entry here until it ends; tickets of entries that are gone
//! find nothing; a fence is passed when all that was under way when it was set has ended. A write over marks ends when its bytes are
//! durable, and then the set without these marks: until then reads there fail, and nobody is told that it is written.

use super::marks::Marks;
use super::store::{MEDIA_FAILED, Progress, Store, StoreCompletion, StoreError, Ticket};
use crate::slab::Slab;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Most operations that the store may have under way.
pub const PENDING_MAX: usize = 1 << 15;

// The media are well: never told as a failure of theirs.
const TOO_MANY: StoreError = StoreError::Busy;

/// How far a write over marks is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mending {
    /// The store writes.
    Writing,
    /// What it wrote becomes durable.
    Flushing,
    /// The set without the marks is saved.
    Saving,
}

/// A write, or a zeroing, over marks.
struct Mend {
    bank: usize,
    address: u64,
    bytes: u64,
    stage: Mending,
}

/// What has ended.
pub(crate) enum Ended {
    /// An operation.
    Operation(StoreCompletion),
    /// What an operation has written over marks is durable; it ends by [`MediaController::mended`].
    Written(Ticket),
}

/// The controller. `P`: what shall happen when an operation has ended; `C`: when a fence is passed.
pub(crate) struct MediaController<P, C> {
    pub store: Box<dyn Store>,
    pending: Slab<P>,
    /// Operations that somebody waits for, and what goes on then.
    fences: Vec<(BTreeSet<u32>, C)>,
    /// Ranges whose reads fail.
    pub marks: Marks,
    /// Writes over them.
    mends: BTreeMap<Ticket, Mend>,
    /// Those that have ended.
    mended: VecDeque<StoreCompletion>,
}

impl<P, C> MediaController<P, C> {
    pub fn new(store: Box<dyn Store>) -> Self {
        MediaController {
            store,
            pending: Slab::new(PENDING_MAX),
            fences: Vec::new(),
            marks: Marks::default(),
            mends: BTreeMap::new(),
            mended: VecDeque::new(),
        }
    }

    /// Whether a read of a range fails for a mark.
    #[inline(always)]
    pub fn is_marked(&self, bank: usize, address: u64, bytes: u64) -> bool {
        !self.marks.is_empty() && self.marks.overlap(bank as u16, address, bytes)
    }

    /// An operation writes a range: where it is marked, its end is told later.
    fn may_mend(&mut self, ticket: Ticket, bank: usize, address: u64, bytes: u64) {
        if self.is_marked(bank, address, bytes) {
            self.mends.insert(ticket, Mend { bank, address, bytes, stage: Mending::Writing });
        }
    }

    /// What has ended since the last call, one at a time.
    #[inline]
    pub fn completed(&mut self) -> Option<Ended> {
        if self.mends.is_empty() && self.mended.is_empty() {
            return self.store.completed().map(Ended::Operation);
        }
        self.completed_beside_mends()
    }

    #[cold]
    fn completed_beside_mends(&mut self) -> Option<Ended> {
        if let Some(mended) = self.mended.pop_front() {
            return Some(Ended::Operation(mended));
        }
        loop {
            let mut completion = self.store.completed()?;
            let ticket = completion.ticket;
            let Some(mend) = self.mends.get_mut(&ticket) else { return Some(Ended::Operation(completion)) };
            debug_assert_ne!(mend.stage, Mending::Saving, "nothing of it is under way in the store");
            if completion.result.is_ok() && mend.stage == Mending::Writing {
                mend.stage = Mending::Flushing;
                match self.store.flush(ticket, Some(mend.bank)) {
                    Ok(Progress::WouldBlock) => continue,
                    Ok(Progress::Done) => {}
                    Err(error) => completion.result = Err(error),
                }
            }
            if completion.result.is_err() {
                // The marks stay, whatever was written.
                self.mends.remove(&ticket);
                return Some(Ended::Operation(completion));
            }
            mend.stage = Mending::Saving;
            return Some(Ended::Written(ticket));
        }
    }

    /// The range that an operation has written over marks: bank, first byte and bytes.
    pub fn written(&self, ticket: Ticket) -> Option<(usize, u64, u64)> {
        self.mends.get(&ticket).map(|mend| (mend.bank, mend.address, mend.bytes))
    }

    /// The set without the marks that an operation wrote over is saved, or could not be: the operation has ended.
    pub fn mended(&mut self, ticket: Ticket, is_saved: bool) {
        if self.mends.remove(&ticket).is_some() {
            let result = if is_saved { Ok(Vec::new()) } else { Err(MEDIA_FAILED) };
            self.mended.push_back(StoreCompletion { ticket, result });
        }
    }

    /// True where [`MediaController::completed`] has something that the store does not know of.
    pub fn has_mended(&self) -> bool {
        !self.mended.is_empty()
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
        self.may_mend(ticket, bank, address, from.len() as u64);
        self.store.begin_write(ticket, bank, address, from);
        Ok(())
    }

    /// Begins a zeroing that the store could not do at once.
    pub fn begin_zero(&mut self, bank: usize, address: u64, bytes: u64, pending: P) -> Result<(), StoreError> {
        let ticket = self.ticket(pending).map_err(|_| TOO_MANY)?;
        self.may_mend(ticket, bank, address, bytes);
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
