//! Media that fail as real ones do, for tests and simulations: a store in memory whose power can be cut at any point.
//!
//! # What it does to who trusts it too much
//! - **Power cuts.** A bank is a durable image and, for each unit of 512 bytes, the versions that were written since. A
//!   write adds one version to every unit that it touches (a unit that it covers in part gets the whole new unit). A
//!   completed flush makes durable what had completed before it began. At a power cut each unit becomes, independently of
//!   all others, its durable version or any of the later ones: so any subset of the unflushed units survives, in any
//!   order, and writes are torn at 512 bytes. That goes for writes that were begun and never completed as well. Metadata
//!   and blobs are atomic, as the contract of [`Store`] promises: of the saves under way at the cut, the first few in
//!   order have happened. Which of the many outcomes it is, [`Choices`] decides: by seed, or each in turn.
//! - **Cut after the k-th operation.** All that changes the media counts as one operation: a write, a zeroing, a flush
//!   that had something to do, a save. With [`FaultMedia::cut_after`] the power goes when operation k + 1 is tried: that
//!   and all later ones fail, and so do those under way. A test runs its workload once to count the operations, and
//!   then once for each k.
//! - **Without a volatile cache** ([`FaultOptions::volatile_write_cache`] false) a completed write is durable, but the
//!   last operation before the cut may still be torn.
//! - **Delays.** A share of the operations would block, and ends some polls later, in random order. Overlapping operations
//!   keep their order, as the contract says. A poll is a call of [`Store::completed`] that finds nothing; the waker is
//!   called for as long as anything is under way, so a driver that obeys it never hangs.
//! - **Bad sectors.** Reads or writes that touch a given range fail; a failed write leaves each unit old or new.
//! - **Failing flushes.** Nothing becomes durable by them.
//! - **Failing saves** of metadata and blobs, which may have happened all the same; blobs that are lost or damaged.
//! - **Full.** Past a number of used bytes, writes that need more fail and change nothing. Zeroing gives bytes back.
//!
//! What always holds: same options, same calls, same results. Bits do not rot and writes do not go astray here; that is
//! what checksums in the layers above are for, and no layer of this device has promised it.
//!
//! Anybody may call it.

mod folder;
mod random;
mod state;

#[cfg(test)]
mod tests;

pub use folder::FaultFolder;
pub use random::{Choices, Random};

use super::store::{Progress, Store, StoreCompletion, StoreError, Ticket};
use state::{Change, FailingSaves, State, Task};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

/// What survives a power cut as a whole or not at all.
pub const UNIT_BYTES: u64 = 512;
/// Error of an operation that the power cut has caught: ENODEV.
pub const CUT_ERROR: i32 = 19;

/// How the media behave.
#[derive(Clone, Debug)]
pub struct FaultOptions {
    /// Number of banks.
    pub banks: usize,
    /// Bytes that a bank can hold.
    pub bank_bytes: u64,
    /// Seed of the delays and of what a failed write leaves.
    pub seed: u64,
    /// Bytes that all banks can hold together.
    pub capacity_bytes: Option<u64>,
    /// Whether a completed write can be lost before a flush.
    pub volatile_write_cache: bool,
    /// Share of the operations, in percent, that would block.
    pub delayed_percent: u8,
    /// Polls until a delayed operation ends, at most.
    pub delay_polls_max: u32,
}

impl FaultOptions {
    /// Media with a volatile cache and no delays.
    pub fn new(banks: usize, bank_bytes: u64) -> FaultOptions {
        FaultOptions {
            banks,
            bank_bytes,
            seed: 0,
            capacity_bytes: None,
            volatile_write_cache: true,
            delayed_percent: 0,
            delay_polls_max: 8,
        }
    }
}

/// What has been done to the media.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultStatistics {
    /// Reads that were done.
    pub reads: u64,
    /// Writes that took effect.
    pub writes: u64,
    /// Zeroings that took effect.
    pub zeroes: u64,
    /// Flushes that had something to do.
    pub flushes: u64,
    /// Saves of metadata, saves and removals of blobs.
    pub saves: u64,
    /// Times that an operation would have blocked.
    pub blocked: u64,
}

/// The media themselves; clones are the same media. Keep one to cut the power while a device owns the store.
#[derive(Clone)]
pub struct FaultMedia {
    state: Arc<Mutex<State>>,
}

impl FaultMedia {
    /// Fresh media.
    pub fn new(options: FaultOptions) -> FaultMedia {
        FaultMedia { state: Arc::new(Mutex::new(State::new(options))) }
    }

    /// A store on these media. A store that was made before is dead from then on, as after a SIGKILL: what it had
    /// completed is there, flushed or not; of what it had under way each unit is old or new.
    pub fn store(&self) -> FaultStore {
        self.state().restart();
        FaultStore { media: self.clone() }
    }

    /// The media as a power cut at this moment leaves them. These media stay as they are, so that other outcomes of the
    /// same cut can be looked at.
    pub fn power_cut(&self, choices: &mut Choices) -> FaultMedia {
        FaultMedia { state: Arc::new(Mutex::new(self.state().power_cut(choices))) }
    }

    /// Number of outcomes that a power cut at this moment has; at most `u128::MAX`.
    pub fn outcomes(&self) -> u128 {
        self.state().outcomes()
    }

    /// Operations that have changed the media.
    pub fn operations(&self) -> u64 {
        self.state().operations
    }

    /// Has the power go after that many operations, counted from the making of these media.
    pub fn cut_after(&self, operations: u64) {
        self.state().cut_after = Some(operations);
    }

    /// True once the power has gone.
    pub fn is_cut(&self) -> bool {
        self.state().is_cut
    }

    /// What has been done.
    pub fn statistics(&self) -> FaultStatistics {
        self.state().statistics
    }

    /// Bytes that are in use: 512 for each unit that holds data.
    pub fn used_bytes(&self) -> u64 {
        self.state().used_units * UNIT_BYTES
    }

    /// Changes the capacity.
    pub fn set_capacity_bytes(&self, capacity_bytes: Option<u64>) {
        self.state().options.capacity_bytes = capacity_bytes;
    }

    /// Has reads fail that touch this range of addresses.
    pub fn fail_reads(&self, bank: usize, range: Range<u64>) {
        self.state().bad_reads.push((bank, range));
    }

    /// Has writes and zeroing fail that touch this range of addresses.
    pub fn fail_writes(&self, bank: usize, range: Range<u64>) {
        self.state().bad_writes.push((bank, range));
    }

    /// Has the next flushes fail.
    pub fn fail_flushes(&self, flushes: u64) {
        self.fail_flushes_after(0, flushes);
    }

    /// Has flushes fail after so many good ones.
    pub fn fail_flushes_after(&self, skipped: u64, flushes: u64) {
        let mut state = self.state();
        (state.skipped_flushes, state.failing_flushes) = (skipped, flushes);
    }

    /// Has saves of metadata and saves and removals of blobs fail: after `skipped` good ones the next `count`. The first `happening` of
    /// these have happened all the same, as when a disk fails after it has written.
    pub fn fail_saves(&self, skipped: u64, count: u64, happening: u64) {
        self.state().failing_saves = FailingSaves { skipped, count, happening };
    }

    /// Has a blob be lost, or hold other bytes, as after damage to the disk.
    pub fn damage_blob(&self, name: &str, bytes: Option<Vec<u8>>) {
        let blobs = &mut self.state().records.blobs;
        match bytes {
            Some(bytes) => blobs.insert(name.to_owned(), bytes),
            None => blobs.remove(name),
        };
    }

    /// Names of the blobs.
    pub fn blobs(&self) -> Vec<String> {
        self.state().records.blobs.keys().cloned().collect()
    }

    /// The metadata.
    pub fn metadata(&self) -> Option<Vec<u8>> {
        self.state().records.metadata.clone()
    }

    /// Ends all injected errors.
    pub fn heal(&self) {
        let mut state = self.state();
        state.bad_reads.clear();
        state.bad_writes.clear();
        state.failing_flushes = 0;
        state.failing_saves = FailingSaves::default();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// A store on [`FaultMedia`].
pub struct FaultStore {
    media: FaultMedia,
}

impl FaultStore {
    /// The media that it is on.
    pub fn media(&self) -> FaultMedia {
        self.media.clone()
    }

    /// Has the driver poll again; never under the lock, since wakers may do anything.
    fn wake(&self) {
        let waker = self.media.state().waker.clone();
        if let Some(waker) = waker {
            waker();
        }
    }

    fn begin(&self, ticket: Ticket, bank: usize, address: u64, bytes: u64, reads: bool, task: Task) {
        self.media.state().begin(ticket, bank, address, bytes, reads, task);
        self.wake();
    }

    fn save(&self, ticket: Ticket, change: Change) -> Result<Progress, StoreError> {
        let progress = self.media.state().save(ticket, change)?;
        if progress == Progress::WouldBlock {
            self.wake();
        }
        Ok(progress)
    }
}

impl Store for FaultStore {
    fn banks(&self) -> usize {
        self.media.state().options.banks
    }

    fn bank_bytes(&self) -> u64 {
        self.media.state().options.bank_bytes
    }

    fn volatile_write_cache(&self) -> bool {
        self.media.state().options.volatile_write_cache
    }

    fn read(&mut self, bank: usize, address: u64, into: &mut [u8]) -> Result<Progress, StoreError> {
        let mut state = self.media.state();
        let span = state.span(bank, address, into.len() as u64, true)?;
        if state.would_block(&span) {
            return Ok(Progress::WouldBlock);
        }
        state.read(&span, into)?;
        Ok(Progress::Done)
    }

    fn write(&mut self, bank: usize, address: u64, from: &[u8]) -> Result<Progress, StoreError> {
        let mut state = self.media.state();
        let span = state.span(bank, address, from.len() as u64, false)?;
        if state.would_block(&span) {
            return Ok(Progress::WouldBlock);
        }
        state.change(&span, Some(from))?;
        state.complete_versions(&span);
        Ok(Progress::Done)
    }

    fn zero(&mut self, bank: usize, address: u64, bytes: u64) -> Result<Progress, StoreError> {
        let mut state = self.media.state();
        let span = state.span(bank, address, bytes, false)?;
        if state.would_block(&span) {
            return Ok(Progress::WouldBlock);
        }
        state.change(&span, None)?;
        state.complete_versions(&span);
        Ok(Progress::Done)
    }

    fn begin_read(&mut self, ticket: Ticket, bank: usize, address: u64, bytes: usize) {
        self.begin(ticket, bank, address, bytes as u64, true, Task::Read);
    }

    fn begin_write(&mut self, ticket: Ticket, bank: usize, address: u64, from: Vec<u8>) {
        self.begin(ticket, bank, address, from.len() as u64, false, Task::Write(from));
    }

    fn begin_zero(&mut self, ticket: Ticket, bank: usize, address: u64, bytes: u64) {
        self.begin(ticket, bank, address, bytes, false, Task::Zero);
    }

    fn flush(&mut self, ticket: Ticket, bank: Option<usize>) -> Result<Progress, StoreError> {
        let progress = self.media.state().flush(ticket, bank)?;
        if progress == Progress::WouldBlock {
            self.wake();
        }
        Ok(progress)
    }

    fn completed(&mut self) -> Option<StoreCompletion> {
        let mut state = self.media.state();
        let completion = state.completed();
        let goes_on = completion.is_none() && state.is_busy();
        drop(state);
        if goes_on {
            self.wake();
        }
        completion
    }

    fn set_waker(&mut self, waker: Arc<dyn Fn() + Send + Sync>) {
        self.media.state().waker = Some(waker);
    }

    fn load_metadata(&mut self) -> Result<Option<Vec<u8>>, StoreError> {
        let state = self.media.state();
        state.refuse_if_cut()?;
        Ok(state.records.metadata.clone())
    }

    fn save_metadata(&mut self, ticket: Ticket, bytes: Vec<u8>) -> Result<Progress, StoreError> {
        if bytes.len() > super::METADATA_BYTES_MAX {
            return Err(StoreError::Full);
        }
        self.save(ticket, Change::Metadata(bytes))
    }

    fn load_blob(&mut self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let state = self.media.state();
        state.refuse_if_cut()?;
        Ok(state.records.blobs.get(name).cloned())
    }

    fn list_blobs(&mut self) -> Result<Vec<String>, StoreError> {
        let state = self.media.state();
        state.refuse_if_cut()?;
        Ok(state.records.blobs.keys().cloned().collect())
    }

    fn save_blob(&mut self, ticket: Ticket, name: &str, bytes: Vec<u8>) -> Result<Progress, StoreError> {
        if !super::blob_name_is_valid(name) {
            return Err(StoreError::Range);
        }
        if bytes.len() > super::BLOB_BYTES_MAX || self.media.state().blobs_are_full(name) {
            return Err(StoreError::Full);
        }
        self.save(ticket, Change::SaveBlob(name.to_owned(), bytes))
    }

    fn delete_blob(&mut self, ticket: Ticket, name: &str) -> Result<Progress, StoreError> {
        self.save(ticket, Change::DeleteBlob(name.to_owned()))
    }
}
