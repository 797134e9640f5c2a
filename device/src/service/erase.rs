//! Erasures: a region that was given up becomes free range, all zeroes.
//!
//! What always holds:
//! - It begins after the region has become unreachable, durably: the region is marked as deleting in the metadata.
//! - First whatever was under way then ends, so that no late write lands in the range when it is another's.
//! - The range is free when its zeroes are durable, and not before.
//! - Where the media fail, the region stays marked; the erasure is taken up again after the next commit, and at the next start.

use super::change::{Change, Made, Refusal};
use super::core::Core;
use super::transaction::{Asker, Transaction, Work};
use crate::media::store::{Progress, StoreError};
use crate::service::control::ControlStatus;
use crate::spu::continuation::Continuation;
use crate::spu::os::error_of;

/// How far an erasure is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// What was under way when the region became unreachable ends.
    Fenced,
    /// This bank's range is being zeroed; those before it are.
    Zeroing { bank: u16 },
    /// The zeroes become durable.
    Flushing,
    /// The metadata without the region are being saved.
    Forgetting,
    /// The media failed; waits for a commit that ends well.
    Stalled,
}

/// A range that is being erased, the same in every bank.
#[derive(Clone, Copy, Debug)]
pub(super) struct Erasure {
    base: u64,
    bank_bytes: u64,
    state: State,
}

impl Erasure {
    /// Of `bank_bytes` from `base` on.
    pub fn new((base, bank_bytes): (u64, u64)) -> Self {
        Erasure { base, bank_bytes, state: State::Fenced }
    }

    pub fn range(&self) -> (u64, u64) {
        (self.base, self.bank_bytes)
    }

    pub fn is_stalled(&self) -> bool {
        self.state == State::Stalled
    }
}

impl Core {
    /// A transaction goes on as the erasure of a range.
    pub(super) fn begin_erasure(&mut self, key: u32, range: (u64, u64)) {
        let Some(transaction) = self.service.transactions.get_mut(&key) else { return };
        transaction.work = Work::Erasure(Erasure::new(range));
        transaction.change = Change::ForgetRegion { base: range.0 };
        self.fence(key);
    }

    fn erasure(&mut self, key: u32) -> Option<&mut Erasure> {
        match self.service.transactions.get_mut(&key) {
            Some(Transaction { work: Work::Erasure(erasure), .. }) => Some(erasure),
            _ => None,
        }
    }

    /// A step has ended: on to the next.
    pub(super) fn erasure_step(&mut self, key: u32, result: Result<(), StoreError>) {
        let spus = self.spus();
        let Some(erasure) = self.erasure(key) else { return };
        if let Err(error) = result {
            return self.erasure_failed(key, error);
        }
        erasure.state = match erasure.state {
            State::Fenced => State::Zeroing { bank: 0 },
            State::Zeroing { bank } if bank + 1 < spus => State::Zeroing { bank: bank + 1 },
            State::Zeroing { .. } => State::Flushing,
            State::Flushing => State::Forgetting,
            state @ (State::Forgetting | State::Stalled) => state,
        };
        let Erasure { base, bank_bytes, state } = *erasure;
        let then = Continuation::Transaction(key);
        match state {
            State::Zeroing { bank } => self.store_step(then, |store, ticket| {
                let bank = usize::from(bank);
                Ok(match store.zero(bank, base, bank_bytes)? {
                    Progress::Done => Progress::Done,
                    Progress::WouldBlock => {
                        store.begin_zero(ticket, bank, base, bank_bytes);
                        Progress::WouldBlock
                    }
                })
            }),
            State::Flushing => self.store_step(then, |store, ticket| store.flush(ticket, None)),
            State::Forgetting => self.commit(key),
            State::Fenced | State::Stalled => {}
        }
    }

    /// The metadata without the region are saved, or could not be.
    pub(super) fn erasure_committed(&mut self, key: u32, result: Result<Made, Refusal>) {
        match result {
            Ok(_) => self.finish(key, Ok(0)),
            Err(refusal) => self.stall(key, refusal),
        }
    }

    fn erasure_failed(&mut self, key: u32, error: StoreError) {
        let text = format!("the change is durable, but the range that was given up is not free yet: {error}");
        self.stall(key, Refusal { status: ControlStatus::MediaFailed, text, error: error_of(error) });
    }

    /// Whoever waits is told; the erasure is kept for later.
    fn stall(&mut self, key: u32, refusal: Refusal) {
        let Some(erasure) = self.erasure(key) else { return };
        erasure.state = State::Stalled;
        let erasure = *erasure;
        self.finish(key, Err(refusal));
        self.transact(Asker::Service, Change::ForgetRegion { base: erasure.base }, Work::Erasure(erasure));
    }

    /// Takes up erasures that the media had failed: they have just worked.
    pub(super) fn resume_erasures(&mut self) {
        let stalled = self.service.transactions.iter().filter(|(_, transaction)| transaction.is_stalled());
        let stalled: Vec<u32> = stalled.map(|(key, _)| *key).collect();
        for key in stalled {
            if let Some(erasure) = self.erasure(key) {
                let range = erasure.range();
                self.begin_erasure(key, range);
            }
        }
    }

    /// Goes on with erasures that a stop interrupted.
    pub(crate) fn resume_deletions(&mut self) {
        let deleting: Vec<(u64, u64)> = {
            let regions = self.machine.published().regions.all();
            regions.iter().filter(|region| region.deleting).map(|r| (r.base, r.bank_bytes)).collect()
        };
        for range in deleting {
            let work = Work::Erasure(Erasure::new(range));
            if let Some(key) = self.transact(Asker::Service, Change::ForgetRegion { base: range.0 }, work) {
                self.begin_erasure(key, range);
            }
        }
    }
}
