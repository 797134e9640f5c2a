//! A store whose data operations wait until the test lets them go, and which tells of those that touch what they must not.

use super::shared::Shared;
use std::collections::VecDeque;
use std::sync::Arc;
use willow_device::media::delegate::DelegatingStore;
use willow_device::{Progress, Store, StoreCompletion, StoreError, Ticket};

enum Waiting {
    Read(Ticket, usize, u64, usize),
    Write(Ticket, usize, u64, Vec<u8>),
    Zero(Ticket, usize, u64, u64),
}

/// What the test holds in its hand.
#[derive(Clone, Default)]
pub struct Valve {
    /// Operations wait while this is true.
    pub closed: Shared<bool>,
    /// Of these only reads.
    pub reads_alone: Shared<bool>,
    /// The store has no place for operations while this is true.
    pub busy: Shared<bool>,
    /// The store says that there is news, and has none to tell, while this is true.
    pub alarms: Shared<bool>,
    /// Saves of the metadata wait while this is true.
    pub saves: Shared<bool>,
    /// Bytes that were zeroed at once.
    pub zeroed_bytes: Shared<u64>,
    /// Blobs that were read, and what is read of them is another byte while this is true.
    pub blobs_read: Shared<u64>,
    pub damages_blobs: Shared<bool>,
    waiting: Shared<VecDeque<Waiting>>,
    unsaved: Shared<VecDeque<(Ticket, Vec<u8>)>>,
    /// While there is a watch.
    pub watch: Shared<Option<Watch>>,
}

/// Which bytes nobody may touch now, and who did.
#[derive(Default)]
pub struct Watch {
    /// Ranges that are guarded, the same in every bank: first byte and one past the last.
    pub guarded: Vec<(u64, u64)>,
    /// Exceptions: bank, for writing, first byte, one past the last.
    pub allowed: Vec<(usize, bool, u64, u64)>,
    /// The first breach.
    pub breach: Option<String>,
    /// Operations seen within guarded ranges that were allowed.
    pub seen: u64,
}

impl Watch {
    fn touch(&mut self, bank: usize, write: bool, address: u64, bytes: u64) {
        let end = address + bytes;
        if bytes == 0 || !self.guarded.iter().any(|(from, until)| address < *until && *from < end) {
            return;
        }
        let mut at = address;
        while at < end {
            let covering = self.allowed.iter().filter(|(of, may_write, from, until)| {
                *of == bank && *may_write == write && *from <= at && at < *until
            });
            match covering.map(|(.., until)| *until).max() {
                Some(until) => at = until,
                None => {
                    let what = if write { "written" } else { "read" };
                    let text = format!("bytes {address:#x} to {end:#x} of bank {bank} were {what}");
                    self.breach.get_or_insert(text);
                    return;
                }
            }
        }
        self.seen += 1;
    }
}

impl Valve {
    fn touch(&self, bank: usize, write: bool, address: u64, bytes: usize) {
        if let Some(watch) = self.watch.lock().as_mut() {
            watch.touch(bank, write, address, bytes as u64);
        }
    }

    fn take(&self) -> Option<Waiting> {
        self.waiting.lock().pop_front()
    }

    /// Operations that wait.
    pub fn waiting(&self) -> usize {
        self.waiting.lock().len()
    }

    /// Saves that wait.
    pub fn saves_waiting(&self) -> usize {
        self.unsaved.lock().len()
    }

    fn take_save(&self) -> Option<(Ticket, Vec<u8>)> {
        if self.saves.get() { None } else { self.unsaved.lock().pop_front() }
    }
}

pub struct SlowStore {
    inner: Box<dyn Store>,
    valve: Valve,
}

impl SlowStore {
    pub fn new(inner: Box<dyn Store>, valve: Valve) -> SlowStore {
        SlowStore { inner, valve }
    }

    fn waits(&self) -> bool {
        self.valve.closed.get()
    }

    fn takes(&self) -> Result<(), StoreError> {
        if self.valve.busy.get() { Err(StoreError::Busy) } else { Ok(()) }
    }

    fn changes_wait(&self) -> bool {
        self.waits() && !self.valve.reads_alone.get()
    }
}

impl Store for SlowStore {
    fn banks(&self) -> usize {
        self.inner.banks()
    }
    fn bank_bytes(&self) -> u64 {
        self.inner.bank_bytes()
    }
    fn volatile_write_cache(&self) -> bool {
        false
    }
    fn read(&mut self, bank: usize, address: u64, into: &mut [u8]) -> Result<Progress, StoreError> {
        self.valve.touch(bank, false, address, into.len());
        self.takes()?;
        if self.waits() { Ok(Progress::WouldBlock) } else { self.inner.read(bank, address, into) }
    }
    fn write(&mut self, bank: usize, address: u64, from: &[u8]) -> Result<Progress, StoreError> {
        self.valve.touch(bank, true, address, from.len());
        self.takes()?;
        if self.changes_wait() { Ok(Progress::WouldBlock) } else { self.inner.write(bank, address, from) }
    }
    fn zero(&mut self, bank: usize, address: u64, bytes: u64) -> Result<Progress, StoreError> {
        self.valve.touch(bank, true, address, bytes as usize);
        self.takes()?;
        if self.changes_wait() {
            return Ok(Progress::WouldBlock);
        }
        self.valve.zeroed_bytes.set(self.valve.zeroed_bytes.get() + bytes);
        self.inner.zero(bank, address, bytes)
    }
    fn begin_read(&mut self, ticket: Ticket, bank: usize, address: u64, bytes: usize) {
        self.valve.waiting.lock().push_back(Waiting::Read(ticket, bank, address, bytes));
    }
    fn begin_write(&mut self, ticket: Ticket, bank: usize, address: u64, from: Vec<u8>) {
        self.valve.waiting.lock().push_back(Waiting::Write(ticket, bank, address, from));
    }
    fn begin_zero(&mut self, ticket: Ticket, bank: usize, address: u64, bytes: u64) {
        self.valve.waiting.lock().push_back(Waiting::Zero(ticket, bank, address, bytes));
    }
    fn flush(&mut self, ticket: Ticket, bank: Option<usize>) -> Result<Progress, StoreError> {
        self.takes()?;
        self.inner.flush(ticket, bank)
    }
    fn completed(&mut self) -> Option<StoreCompletion> {
        // What had been let go before goes on: `has_news` tells of its end, and a device that is told so asks until it gets it.
        while !self.waits()
            && let Some(next) = self.valve.take()
        {
            match next {
                Waiting::Read(ticket, bank, address, bytes) => self.inner.begin_read(ticket, bank, address, bytes),
                Waiting::Write(ticket, bank, address, from) => self.inner.begin_write(ticket, bank, address, from),
                Waiting::Zero(ticket, bank, address, bytes) => self.inner.begin_zero(ticket, bank, address, bytes),
            }
        }
        while let Some((ticket, bytes)) = self.valve.take_save() {
            match self.inner.save_metadata(ticket, bytes) {
                Ok(Progress::WouldBlock) => {}
                Ok(Progress::Done) => return Some(StoreCompletion { ticket, result: Ok(Vec::new()) }),
                Err(error) => return Some(StoreCompletion { ticket, result: Err(error) }),
            }
        }
        self.inner.completed()
    }
    fn served_by(&self) -> Option<&str> {
        self.inner.served_by()
    }
    fn volatile_service(&self) -> bool {
        self.inner.volatile_service()
    }
    fn delegating(&mut self) -> Option<&mut DelegatingStore> {
        self.inner.delegating()
    }
    fn has_news(&self) -> bool {
        let lets_go =
            !self.waits() && self.valve.waiting() > 0 || !self.valve.saves.get() && self.valve.saves_waiting() > 0;
        self.inner.has_news() || self.valve.alarms.get() || lets_go
    }
    fn set_waker(&mut self, waker: Arc<dyn Fn() + Send + Sync>) {
        self.inner.set_waker(waker);
    }
    fn load_metadata(&mut self) -> Result<Option<Vec<u8>>, StoreError> {
        self.inner.load_metadata()
    }
    fn save_metadata(&mut self, ticket: Ticket, bytes: Vec<u8>) -> Result<Progress, StoreError> {
        if !self.valve.saves.get() {
            return self.inner.save_metadata(ticket, bytes);
        }
        self.valve.unsaved.lock().push_back((ticket, bytes));
        Ok(Progress::WouldBlock)
    }
    fn load_blob(&mut self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        self.valve.blobs_read.set(self.valve.blobs_read.get() + 1);
        self.inner.load_blob(name)
    }
    fn blob_reader(&mut self, name: &str) -> willow_device::BlobReader {
        let (reader, valve) = (self.inner.blob_reader(name), self.valve.clone());
        Box::new(move || {
            valve.blobs_read.set(valve.blobs_read.get() + 1);
            let mut bytes = reader()?;
            if let (true, Some(last)) = (valve.damages_blobs.get(), bytes.as_mut().and_then(|bytes| bytes.last_mut())) {
                *last ^= 1;
            }
            Ok(bytes)
        })
    }
    fn list_blobs(&mut self) -> Result<Vec<String>, StoreError> {
        self.inner.list_blobs()
    }
    fn save_blob(&mut self, ticket: Ticket, name: &str, bytes: Vec<u8>) -> Result<Progress, StoreError> {
        self.inner.save_blob(ticket, name, bytes)
    }
    fn delete_blob(&mut self, ticket: Ticket, name: &str) -> Result<Progress, StoreError> {
        self.inner.delete_blob(ticket, name)
    }
}
