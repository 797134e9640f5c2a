//! A store whose banks an app serves, the FTL: each operation on a bank waits here until the run loop hands it to that app, and ends when
//! the app has answered. Metadata and modules live in another store. The flash that the FTLs work on is here as well: one array a bank.
//!
//! Invariants:
//! - Operations on one unit of a bank (what the FTL maps as one) never overlap: the later one waits here until the earlier one has ended,
//!   so that an FTL needs no locks for what hosts ask.
//! - The bytes of an operation lie here, and the FTL reaches them by its number alone (its *peer*), from when it was handed out until
//!   it has ended; the number of one that has ended, or that belongs to another bank, finds nothing.
//! - Every operation ends exactly once: by the FTL's answer, because the FTL ended while it worked on it, or because no FTL comes up.
//! - Operations are handed out while their bank is being served, wait while its FTL starts, and fail where none comes up ([`Service`]).
//! - There are at most [`OPERATIONS_MAX`] operations; one more is told to come again.

mod buffers;
mod located;
mod serving;
mod statistics;
mod syncs;

pub use located::Located;
pub use serving::Service;
pub use statistics::{FlashHealth, FlashStatistics};

use super::ordering::{Ordering, Span};
use super::store::{MEDIA_FAILED, Progress, Store, StoreCompletion, StoreError, Ticket};
use crate::slab::Slab;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use syncs::{Ended, Syncs, Waiter};
use willow_flash_media::{Array, FileError, Status};

/// Most operations under way, those that wait for others included.
pub const OPERATIONS_MAX: usize = 1 << 15;

/// What an FTL is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Bring the range to the peer.
    Read,
    /// Make the range what the peer has.
    Write,
    /// Make the range read as zeroes.
    Zero,
    /// Make durable all that was answered before.
    Flush,
}

/// An operation for the FTL of a bank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delegated {
    /// The handle of its bytes, and by which it is answered.
    pub peer: u32,
    /// The operation of the store that it is.
    pub ticket: Ticket,
    /// Which bank.
    pub bank: usize,
    /// What to do.
    pub kind: Kind,
    /// Where in the bank.
    pub address: u64,
    /// How much.
    pub bytes: u64,
}

struct Operation {
    delegated: Delegated,
    /// Its place in the order; a flush has none.
    order: Option<u64>,
    /// The FTL has it.
    handed_out: bool,
    /// How often it was found with the FTL, unanswered.
    looks: u32,
    buffer: Vec<u8>,
}

impl Operation {
    /// The FTL of that bank has it, and it is of that kind.
    fn is_with(&self, bank: usize, kind: Kind) -> bool {
        self.handed_out && self.delegated.bank == bank && self.delegated.kind == kind
    }
}

/// A flush of several banks.
struct Flush {
    banks_left: usize,
    result: Result<(), StoreError>,
}

/// What an FTL offers.
#[derive(Clone, Copy, Debug)]
pub struct Banks<'a> {
    /// The name of the app that serves the banks.
    pub ftl: &'a str,
    /// Bytes of each bank.
    pub bank_bytes: u64,
    /// What the FTL maps as one; a power of two.
    pub unit_bytes: u64,
    /// Whether a power cut can take along what was answered and not flushed.
    pub is_volatile: bool,
    /// Whether the end of the FTL can.
    pub ftl_forgets: bool,
}

/// How the FTL is to collect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CollectionPolicy {
    /// Free blocks of a lane below which it begins; 0: as it thinks best.
    pub collect_below_blocks: u32,
    /// Whether it finds the block to collect by the accelerator for minima.
    pub victim_search: bool,
    /// Whether it moves pages by copyback, where they stay in their plane.
    pub copyback: bool,
}

/// The bytes of operations that the FTL of a bank has.
pub struct Peers<'a> {
    operations: &'a mut Slab<Operation>,
    bank: usize,
}

impl Peers<'_> {
    /// What a write brings: `bytes` from `offset` of its range. `None` where the peer is not that of a write of this bank that the FTL has, or
    /// the range goes past its end.
    pub fn source(&self, peer: u32, offset: u64, bytes: usize) -> Option<&[u8]> {
        let operation = self.operations.get(peer)?;
        if !operation.is_with(self.bank, Kind::Write) {
            return None;
        }
        let begin = usize::try_from(offset).ok()?;
        operation.buffer.get(begin..begin.checked_add(bytes)?)
    }

    /// Where a read goes, as [`Peers::source`].
    pub fn sink(&mut self, peer: u32, offset: u64, bytes: usize) -> Option<&mut [u8]> {
        let operation = self.operations.get_mut(peer)?;
        if !operation.is_with(self.bank, Kind::Read) {
            return None;
        }
        let begin = usize::try_from(offset).ok()?;
        operation.buffer.get_mut(begin..begin.checked_add(bytes)?)
    }
}

/// What the FTL of a bank works on.
pub struct BankPort<'a> {
    /// The bank's flash.
    pub flash: &'a mut Array,
    /// The other ends of the operations that it has.
    pub peers: Peers<'a>,
}

/// The store.
pub struct DelegatingStore {
    /// Metadata and modules.
    inner: Box<dyn Store>,
    /// The name of the app that serves the banks.
    ftl: String,
    /// Each bank's flash.
    flash: Vec<Array>,
    bank_bytes: u64,
    /// What the FTL maps as one.
    unit_bytes: u64,
    policy: CollectionPolicy,
    is_volatile: bool,
    ftl_forgets: bool,
    operations: Slab<Operation>,
    order: Ordering<u32>,
    /// By bank.
    services: Vec<Service>,
    /// What waits until its bank is served, by bank.
    waiting: Vec<VecDeque<u32>>,
    /// What the FTLs shall be handed next.
    outbox: VecDeque<u32>,
    /// What is about to fail, since its bank has no FTL.
    failing: VecDeque<u32>,
    flushes: BTreeMap<Ticket, Flush>,
    syncs: Syncs,
    /// Erases that had to wait for the disk and have ended.
    erased: VecDeque<(u64, Option<Status>)>,
    completions: VecDeque<StoreCompletion>,
    buffers: buffers::Buffers,
    waker: Option<Arc<dyn Fn() + Send + Sync>>,
}

impl DelegatingStore {
    /// A store of as many banks as `inner` has, to be served by an FTL; `inner` keeps metadata and modules.
    ///
    /// # Panics
    /// Where a unit is no power of two.
    pub fn new(inner: Box<dyn Store>, flash: Vec<Array>, banks: &Banks<'_>) -> Self {
        let &Banks { ftl, bank_bytes, unit_bytes, is_volatile, ftl_forgets } = banks;
        assert!(unit_bytes.is_power_of_two());
        let count = inner.banks();
        DelegatingStore {
            inner,
            ftl: ftl.to_owned(),
            flash,
            bank_bytes,
            unit_bytes,
            policy: CollectionPolicy::default(),
            is_volatile,
            ftl_forgets,
            operations: Slab::new(OPERATIONS_MAX),
            order: Ordering::new(),
            services: vec![Service::Waiting; count],
            waiting: vec![VecDeque::new(); count],
            outbox: VecDeque::new(),
            failing: VecDeque::new(),
            flushes: BTreeMap::new(),
            syncs: Syncs::new(count),
            erased: VecDeque::new(),
            completions: VecDeque::new(),
            buffers: Default::default(),
            waker: None,
        }
    }

    /// The same, whose FTL is to collect like this.
    pub fn with_policy(self, policy: CollectionPolicy) -> Self {
        DelegatingStore { policy, ..self }
    }

    /// How the FTL is to collect.
    pub fn policy(&self) -> CollectionPolicy {
        self.policy
    }

    /// The name of the app that serves the banks.
    pub fn ftl(&self) -> &str {
        &self.ftl
    }

    /// The operation of the store that a peer is of.
    pub fn ticket(&self, peer: u32) -> Option<Ticket> {
        self.operations.get(peer).map(|operation| operation.delegated.ticket)
    }

    /// What a bank's FTL is to offer: bytes of the bank, bytes of a unit.
    pub fn shape(&self) -> (u64, u64) {
        (self.bank_bytes, self.unit_bytes)
    }

    fn wake(&self) {
        if let Some(waker) = &self.waker {
            waker();
        }
    }

    fn check(&self, bank: usize, address: u64, bytes: u64) -> Result<(), StoreError> {
        let fits = address.checked_add(bytes).is_some_and(|end| end <= self.bank_bytes);
        if bank < self.inner.banks() && fits { Ok(()) } else { Err(StoreError::Range) }
    }

    /// Now or not: nothing is done at once but nothing.
    fn now(&self, bank: usize, address: u64, bytes: u64) -> Result<Progress, StoreError> {
        self.check(bank, address, bytes)?;
        Ok(if bytes == 0 { Progress::Done } else { Progress::WouldBlock })
    }

    fn complete(&mut self, ticket: Ticket, result: Result<Vec<u8>, StoreError>) {
        self.completions.push_back(StoreCompletion { ticket, result });
        self.wake();
    }

    fn begin(&mut self, ticket: Ticket, (bank, kind): (usize, Kind), (address, bytes): (u64, u64), buffer: Vec<u8>) {
        if let Err(error) = self.check(bank, address, bytes) {
            return self.complete(ticket, Err(error));
        }
        if bytes == 0 && kind != Kind::Flush {
            return self.complete(ticket, Ok(buffer));
        }
        let delegated = Delegated { peer: 0, ticket, bank, kind, address, bytes };
        let operation = Operation { delegated, order: None, handed_out: false, looks: 0, buffer };
        let Ok(peer) = self.operations.insert(operation) else { return self.complete(ticket, Err(StoreError::Busy)) };
        let order = (kind != Kind::Flush).then(|| {
            let (start, end) = (address & !(self.unit_bytes - 1), (address + bytes).next_multiple_of(self.unit_bytes));
            self.order.push(Span { bank, start, end, reads: kind == Kind::Read }, peer)
        });
        let operation = self.operations.get_mut(peer).expect("it was just put there");
        operation.delegated.peer = peer;
        operation.order = order;
        if order.is_none() {
            self.offer(peer);
        }
        self.proceed();
        self.wake();
    }

    /// An operation waits for nothing but its bank's FTL.
    fn offer(&mut self, peer: u32) {
        let Some(operation) = self.operations.get(peer) else { return };
        let bank = operation.delegated.bank;
        match self.services[bank] {
            Service::Serving => self.outbox.push_back(peer),
            Service::Waiting => self.waiting[bank].push_back(peer),
            Service::Failed => self.failing.push_back(peer),
        }
    }

    /// Offers what waits for no other operation any more, and ends what fails.
    fn proceed(&mut self) {
        loop {
            while let Some((_, _, peer)) = self.order.take_ready() {
                self.offer(peer);
            }
            let Some(peer) = self.failing.pop_front() else { return };
            if let Some(operation) = self.operations.remove(peer) {
                self.ended(operation, Err(MEDIA_FAILED));
            }
        }
    }

    /// How a bank is served.
    pub fn service(&self, bank: usize) -> Option<Service> {
        self.services.get(bank).copied()
    }

    /// From now on a bank is served otherwise. What its FTL has stays with it until it is answered, or given back.
    pub fn set_service(&mut self, bank: usize, service: Service) {
        let Some(before) = self.services.get_mut(bank) else { return };
        *before = service;
        if service != Service::Serving {
            self.forget_erases(bank);
        }
        let of_bank = |peer: &u32| self.operations.get(*peer).is_some_and(|one| one.delegated.bank == bank);
        let (mut affected, others): (VecDeque<u32>, VecDeque<u32>) = self.outbox.drain(..).partition(of_bank);
        self.outbox = others;
        affected.append(&mut self.waiting[bank]);
        affected.into_iter().for_each(|peer| self.offer(peer));
        self.proceed();
        self.wake();
    }

    /// The FTL of a bank has ended: erases that it asked for and that wait for the disk are not done.
    pub fn forget_erases(&mut self, bank: usize) {
        let mut ended = Ended::default();
        self.syncs.forget_erases(bank, &mut ended);
        self.erased.extend(ended.erases);
    }

    /// The next operation for an FTL, which has it from now on until [`DelegatingStore::answered`].
    pub fn take_next(&mut self) -> Option<Delegated> {
        loop {
            let peer = self.outbox.pop_front()?;
            // One that failed meanwhile is gone.
            if let Some(operation) = self.operations.get_mut(peer) {
                operation.handed_out = true;
                operation.looks = 0;
                return Some(operation.delegated);
            }
        }
    }

    /// Takes one back that the FTL had been handed and had not begun.
    pub fn give_back(&mut self, peer: u32) {
        if let Some(operation) = self.operations.get_mut(peer).filter(|operation| operation.handed_out) {
            operation.handed_out = false;
            self.offer(peer);
            self.proceed();
        }
    }

    /// The FTL works on an operation: what it is, and how often this was asked since it was handed out, this time included.
    pub fn look(&mut self, peer: u32) -> Option<(Delegated, u32)> {
        let operation = self.operations.get_mut(peer).filter(|operation| operation.handed_out)?;
        operation.looks += 1;
        Some((operation.delegated, operation.looks))
    }

    /// The device ends: what the flash keeps in memory goes to its files, and nothing is handed out any more.
    pub fn close(&mut self) {
        (0..self.services.len()).for_each(|bank| self.set_service(bank, Service::Failed));
        self.syncs.finish();
        self.take_news();
        for (bank, flash) in std::mem::take(&mut self.flash).into_iter().enumerate() {
            if let Err(error) = flash.close() {
                tracing::error!("the flash of bank {bank} could not be closed: {error}");
            }
        }
    }

    /// The power is gone and back: what the store had under way is forgotten, metadata and flash are as they are. Flash in files knows no cut
    /// of the power: what it had not synced is there.
    pub fn power_cut(&mut self) {
        let banks = self.services.len();
        self.operations = Slab::new(OPERATIONS_MAX);
        self.order = Ordering::new();
        self.services = vec![Service::Waiting; banks];
        self.waiting = vec![VecDeque::new(); banks];
        self.syncs = Syncs::new(banks);
        self.buffers = Default::default();
        self.waker = None;
        self.outbox.clear();
        self.failing.clear();
        self.flushes.clear();
        self.erased.clear();
        self.completions.clear();
        while self.inner.completed().is_some() {}
    }

    fn take_news(&mut self) {
        let mut ended = Ended::default();
        self.syncs.take_news(&mut self.flash, &mut ended);
        self.synced(ended);
    }

    /// A bank's flash, and the peers that its FTL may use with it.
    pub fn bank_port(&mut self, bank: usize) -> Option<BankPort<'_>> {
        let flash = self.flash.get_mut(bank)?;
        Some(BankPort { flash, peers: Peers { operations: &mut self.operations, bank } })
    }

    /// The peers of a bank.
    pub fn peers(&mut self, bank: usize) -> Peers<'_> {
        Peers { operations: &mut self.operations, bank }
    }

    /// The FTL has answered; false where there is no such operation that it has.
    pub fn answered(&mut self, peer: u32, result: Result<(), StoreError>) -> bool {
        if self.operations.get(peer).is_none_or(|operation| !operation.handed_out) {
            return false;
        }
        let Some(operation) = self.operations.get_mut(peer) else { return false };
        operation.handed_out = false;
        let &mut Operation { delegated: Delegated { bank, kind, .. }, .. } = operation;
        if kind == Kind::Flush
            && result.is_ok()
            && let Some(flash) = self.flash.get_mut(bank)
        {
            // What the FTL has programmed is durable on the flash; the files that stand for it follow.
            let mut ended = Ended::default();
            self.syncs.wait((bank, flash), Waiter::Flush(peer), &mut ended);
            self.synced(ended);
            return true;
        }
        if let Some(operation) = self.operations.remove(peer) {
            self.ended(operation, result);
            self.proceed();
        }
        true
    }

    /// Syncs have ended.
    fn synced(&mut self, ended: Ended) {
        for (peer, is_durable) in ended.flushes {
            if let Some(operation) = self.operations.remove(peer) {
                self.ended(operation, if is_durable { Ok(()) } else { Err(MEDIA_FAILED) });
            }
        }
        self.erased.extend(ended.erases);
        self.proceed();
    }

    /// Erases blocks of a bank: at once, or when what was programmed is on the disk. Then (`None`) it ends by [`DelegatingStore::erased`] with this
    /// tag.
    pub fn erase(&mut self, bank: usize, blocks: (u32, &[u32]), tag: u64) -> Option<Result<Status, FileError>> {
        let flash = &mut self.flash[bank];
        let mut ended = Ended::default();
        let status = self.syncs.erase((bank, flash), blocks, tag, &mut ended);
        self.synced(ended);
        status
    }

    /// Whether the FTL of a bank may be waiting for the disk.
    pub fn waits_for_disk(&self, bank: usize) -> bool {
        self.syncs.holds_erase(bank)
    }

    /// The next erase that had to wait and has ended, by its tag; without a status it was not done.
    pub fn erased(&mut self) -> Option<(u64, Option<Status>)> {
        self.erased.pop_front()
    }

    fn ended(&mut self, operation: Operation, result: Result<(), StoreError>) {
        let Operation { delegated, order, mut buffer, .. } = operation;
        let ticket = delegated.ticket;
        if let Some(order) = order {
            self.order.finish(order);
        }
        if delegated.kind != Kind::Read {
            self.buffers.give(std::mem::take(&mut buffer));
        }
        if delegated.kind == Kind::Flush
            && let Some(flush) = self.flushes.get_mut(&ticket)
        {
            flush.banks_left -= 1;
            flush.result = flush.result.and(result);
            if flush.banks_left > 0 {
                return;
            }
            let result = flush.result;
            self.flushes.remove(&ticket);
            return self.complete(ticket, result.map(|()| buffer));
        }
        self.complete(ticket, result.map(|()| buffer));
    }
}

impl Store for DelegatingStore {
    fn banks(&self) -> usize {
        self.inner.banks()
    }

    fn bank_bytes(&self) -> u64 {
        self.bank_bytes
    }

    fn volatile_write_cache(&self) -> bool {
        self.is_volatile
    }

    fn read(&mut self, bank: usize, address: u64, into: &mut [u8]) -> Result<Progress, StoreError> {
        self.now(bank, address, into.len() as u64)
    }

    fn skip(&mut self, bank: usize, address: u64, bytes: usize) -> Result<Progress, StoreError> {
        self.now(bank, address, bytes as u64)
    }

    fn write(&mut self, bank: usize, address: u64, from: &[u8]) -> Result<Progress, StoreError> {
        self.now(bank, address, from.len() as u64)
    }

    fn zero(&mut self, bank: usize, address: u64, bytes: u64) -> Result<Progress, StoreError> {
        self.now(bank, address, bytes)
    }

    fn begin_read(&mut self, ticket: Ticket, bank: usize, address: u64, bytes: usize) {
        // What cannot be is refused before there is memory for it.
        let buffer =
            if self.check(bank, address, bytes as u64).is_ok() { self.buffers.take(bytes) } else { Vec::new() };
        self.begin(ticket, (bank, Kind::Read), (address, bytes as u64), buffer);
    }

    fn begin_write(&mut self, ticket: Ticket, bank: usize, address: u64, from: Vec<u8>) {
        self.begin(ticket, (bank, Kind::Write), (address, from.len() as u64), from);
    }

    fn begin_zero(&mut self, ticket: Ticket, bank: usize, address: u64, bytes: u64) {
        self.begin(ticket, (bank, Kind::Zero), (address, bytes), Vec::new());
    }

    fn flush(&mut self, ticket: Ticket, bank: Option<usize>) -> Result<Progress, StoreError> {
        let banks = match bank {
            Some(bank) => {
                self.check(bank, 0, 0)?;
                bank..bank + 1
            }
            None => 0..self.inner.banks(),
        };
        if self.operations.len() + banks.len() > OPERATIONS_MAX {
            return Err(StoreError::Busy);
        }
        self.flushes.insert(ticket, Flush { banks_left: banks.len(), result: Ok(()) });
        for bank in banks {
            self.begin(ticket, (bank, Kind::Flush), (0, 0), Vec::new());
        }
        Ok(Progress::WouldBlock)
    }

    fn served_by(&self) -> Option<&str> {
        Some(&self.ftl)
    }

    fn volatile_service(&self) -> bool {
        self.ftl_forgets
    }

    fn delegating(&mut self) -> Option<&mut DelegatingStore> {
        Some(self)
    }

    fn has_news(&self) -> bool {
        !self.completions.is_empty() || !self.erased.is_empty() || !self.outbox.is_empty()
    }

    fn completed(&mut self) -> Option<StoreCompletion> {
        if self.syncs.has_news() {
            self.take_news();
        }
        self.completions.pop_front().or_else(|| self.inner.completed())
    }

    fn set_waker(&mut self, waker: Arc<dyn Fn() + Send + Sync>) {
        self.waker = Some(waker.clone());
        self.syncs.set_waker(waker.clone());
        self.inner.set_waker(waker);
    }

    crate::records_of!(inner);
}

#[cfg(test)]
mod tests;
