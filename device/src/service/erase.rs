//! Erasures: a region that was given up becomes free range, all zeroes.
//!
//! What always holds:
//! - It begins after the region has become unreachable, durably: the region is marked as deleting in the metadata.
//! - First whatever was under way then ends, so that no late write lands in the range when it is another's.
//! - The range is free when its zeroes are durable, and not before.
//! - It is zeroed by pieces, with others' turns in between, unless the store does it beside the device.
//! - Where the media fail, the region stays marked; the erasure is taken up again after the next commit, and at the next start.
//! - An app that writes after it has answered (`settles`) has said before that it writes nothing there any more. Where it does not, or not in
//!   time, the region stays marked as well, and the app is asked again when the erasure is taken up.

use super::DRAIN_NS_MAX;
use super::change::{Change, Made, Refusal};
use super::core::Core;
use super::transaction::{Asker, Transaction, Work};
use crate::media::store::{Progress, StoreError};
use crate::request::AppNumber;
use crate::service::control::ControlStatus;
use crate::spu::abi;
use crate::spu::continuation::Continuation;
use crate::spu::os::error_of;

/// Bytes of a bank that are zeroed in one go.
const PIECE_BYTES_MAX: u64 = 1 << 20;
/// What a piece costs whoever waits for the device, in instructions: some tens of microseconds.
const PIECE_COST: u64 = 100_000;

/// How far an erasure is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// What was under way when the region became unreachable ends.
    Fenced,
    /// This bank's range is being zeroed; so many bytes of it are, and those of the banks before it.
    Zeroing { bank: u16, done: u64 },
    /// The zeroes become durable.
    Flushing,
    /// The metadata without the region are being saved.
    Forgetting,
    /// The media failed, or the app may still write there; waits for a commit that ends well.
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
            State::Fenced => State::Zeroing { bank: 0, done: 0 },
            State::Zeroing { bank, done } if done < erasure.bank_bytes => State::Zeroing { bank, done },
            State::Zeroing { bank, .. } if bank + 1 < spus => State::Zeroing { bank: bank + 1, done: 0 },
            State::Zeroing { .. } => State::Flushing,
            State::Flushing => State::Forgetting,
            state @ (State::Forgetting | State::Stalled) => state,
        };
        let then = Continuation::Transaction(key);
        match erasure.state {
            State::Zeroing { .. } => self.service.erasing.push_back(key),
            State::Flushing => self.store_step(then, |store, ticket| store.flush(ticket, None)),
            State::Forgetting => self.commit(key),
            State::Fenced | State::Stalled => {}
        }
    }

    /// The next piece of an erasure is zeroed; true where there was one.
    pub(super) fn erase_piece(&mut self) -> bool {
        let Some(key) = self.service.erasing.pop_front() else { return false };
        let Some(Erasure { base, bank_bytes, state: State::Zeroing { bank, done } }) = self.erasure(key).copied()
        else {
            return true;
        };
        let (from, left) = (base + done, bank_bytes - done);
        let piece = left.min(PIECE_BYTES_MAX);
        let mut zeroed = piece;
        self.store_step(Continuation::Transaction(key), |store, ticket| {
            let bank = usize::from(bank);
            Ok(match store.zero(bank, from, piece)? {
                Progress::Done => Progress::Done,
                Progress::WouldBlock => {
                    // The store does it beside the device, all of it.
                    store.begin_zero(ticket, bank, from, left);
                    zeroed = left;
                    Progress::WouldBlock
                }
            })
        });
        self.machine.costs_beside(PIECE_COST);
        if let Some(erasure) = self.erasure(key) {
            erasure.state = State::Zeroing { bank, done: done + zeroed };
        }
        true
    }

    /// The metadata without the region are saved, or could not be.
    pub(super) fn erasure_committed(&mut self, key: u32, result: Result<Made, Refusal>) {
        match result {
            Ok(_) => self.finish(key, Ok(0)),
            Err(refusal) => self.stall(key, refusal),
        }
    }

    /// Tells the app of a namespace, where it runs, that a range of it was given up.
    pub(super) fn tell_of_deletion(&mut self, key: u32, name: &str, event: [u32; 2]) {
        let number = self.machine.find_app(name.as_bytes());
        if let Some(Transaction { work: Work::Deletion { traps, .. }, .. }) = self.service.transactions.get_mut(&key) {
            *traps = number.map_or(0, |number| self.machine.traps_of(number));
        }
        match number.filter(|number| self.machine.is_running(*number)) {
            Some(number) => self.tell_app(key, number, &event, DRAIN_NS_MAX),
            None => self.deletion_told(key),
        }
    }

    fn settler(&self, name: &str) -> Option<AppNumber> {
        self.machine.apps().find(|(_, app)| app.settles && app.name == name).map(|(number, _)| number)
    }

    /// Whether the app of a deletion, which was told of it or had its time, may still write to the range.
    pub(super) fn may_still_write(&self, key: u32) -> bool {
        let Some(transaction) = self.service.transactions.get(&key) else { return false };
        let Work::Deletion { app, traps, .. } = &transaction.work else { return false };
        let Some(number) = self.settler(app) else { return false };
        let is_told = transaction.watch.is_none() && transaction.refusal.is_none();
        // What has ended meanwhile cannot have answered for all that it owes.
        !is_told || !self.machine.is_running(number) || self.machine.traps_of(number) != *traps
    }

    /// The range of a deletion stays marked until its app writes nothing there any more.
    pub(super) fn keep_for_app(&mut self, key: u32, range: (u64, u64)) {
        let Some(transaction) = self.service.transactions.get_mut(&key) else { return };
        transaction.work = Work::Erasure(Erasure::new(range));
        let text = "the change is durable, but the range that was given up is not free yet: its app still has something to write there".to_owned();
        self.stall(key, Refusal { status: ControlStatus::Busy, text, error: abi::ERROR_REFUSED });
    }

    /// Takes up what is to be done until a range that was given up is free: the app of a namespace is asked once more.
    fn resume_erasure(&mut self, key: u32, range: (u64, u64)) {
        let regions = self.machine.published().regions.all();
        let given_up = regions.iter().find(|region| region.deleting && region.base == range.0);
        // What else apps have is their own: they gave it up themselves, or are gone.
        let asked = given_up.filter(|region| region.shared && self.settler(&region.app).is_some());
        let Some((app, nsid)) = asked.map(|region| (region.app.clone(), region.id)) else {
            return self.begin_erasure(key, range);
        };
        let is_there = self.namespaces().iter().any(|namespace| namespace.nsid == nsid);
        let event = if is_there { abi::EVENT_NAMESPACE_RESIZED } else { abi::EVENT_NAMESPACE_DELETED };
        let Some(transaction) = self.service.transactions.get_mut(&key) else { return };
        transaction.work = Work::Deletion { app: app.clone(), range: Some(range), traps: 0 };
        transaction.change = Change::ForgetRegion { base: range.0 };
        self.tell_of_deletion(key, &app, [event, nsid]);
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

    /// Takes up erasures that were stalled: the media have just worked.
    pub(super) fn resume_erasures(&mut self) {
        let stalled = self.service.transactions.iter().filter(|(_, transaction)| transaction.is_stalled());
        let stalled: Vec<u32> = stalled.map(|(key, _)| *key).collect();
        for key in stalled {
            if let Some(erasure) = self.erasure(key) {
                let range = erasure.range();
                self.resume_erasure(key, range);
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
                self.resume_erasure(key, range);
            }
        }
    }
}
