//! A reference model of a store, and random workloads that compare a store with it: one oracle for all stores.
//!
//! The model is a plain array a bank. An operation takes effect in it when it is begun; since stores keep overlapping
//! operations in order, a read has to return what the array held when the read was begun.

use super::fault::Random;
use super::store::{Progress, Store, StoreError, Ticket};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

/// Longest wait for a completion that has to come: far above anything seen; without it a lost one would hang the tests.
pub const COMPLETION_WAIT_MAX: Duration = Duration::from_secs(60);

/// A store next to its model.
pub struct Checked<S: Store> {
    pub store: S,
    pub model: Vec<Vec<u8>>,
    /// What each read under way has to return; `None` for operations without data.
    expected: BTreeMap<Ticket, Option<Vec<u8>>>,
    next_ticket: Ticket,
    news: Receiver<()>,
    /// Operations that would have blocked: to prove that such paths were reached.
    pub blocked: u64,
}

impl<S: Store> Checked<S> {
    pub fn new(mut store: S, model: Vec<Vec<u8>>) -> Self {
        let (sender, news) = sync_channel(1);
        store.set_waker(Arc::new(move || {
            let _ = sender.try_send(());
        }));
        Checked { store, model, expected: BTreeMap::new(), next_ticket: 0, news, blocked: 0 }
    }

    /// A store that was never written.
    pub fn fresh(store: S) -> Self {
        let model = vec![vec![0; store.bank_bytes() as usize]; store.banks()];
        Checked::new(store, model)
    }

    fn ticket(&mut self, expected: Option<Vec<u8>>) -> Ticket {
        self.next_ticket += 1;
        self.blocked += 1;
        self.expected.insert(self.next_ticket, expected);
        self.next_ticket
    }

    pub fn write(&mut self, bank: usize, address: u64, bytes: &[u8]) {
        self.model[bank][address as usize..address as usize + bytes.len()].copy_from_slice(bytes);
        if self.store.write(bank, address, bytes).unwrap() == Progress::WouldBlock {
            let ticket = self.ticket(None);
            self.store.begin_write(ticket, bank, address, bytes.to_vec());
        }
    }

    pub fn zero(&mut self, bank: usize, address: u64, bytes: u64) {
        self.model[bank][address as usize..(address + bytes) as usize].fill(0);
        if self.store.zero(bank, address, bytes).unwrap() == Progress::WouldBlock {
            let ticket = self.ticket(None);
            self.store.begin_zero(ticket, bank, address, bytes);
        }
    }

    pub fn read(&mut self, bank: usize, address: u64, bytes: usize) {
        let wanted = self.model[bank][address as usize..address as usize + bytes].to_vec();
        let mut found = vec![0xEE; bytes];
        match self.store.read(bank, address, &mut found).unwrap() {
            Progress::Done => assert!(found == wanted, "read of {bytes} bytes at {address} of bank {bank}"),
            Progress::WouldBlock => {
                let ticket = self.ticket(Some(wanted));
                self.store.begin_read(ticket, bank, address, bytes);
            }
        }
    }

    /// Begins a flush.
    pub fn flush(&mut self, bank: Option<usize>) {
        let ticket = self.ticket(None);
        if self.store.flush(ticket, bank).unwrap() == Progress::Done {
            self.blocked -= 1;
            self.expected.remove(&ticket);
        }
    }

    /// Takes a completion, if there is one.
    pub fn poll(&mut self) -> bool {
        let Some(completion) = self.store.completed() else { return false };
        let expected = self.expected.remove(&completion.ticket).expect("each operation completes once");
        let bytes = completion.result.expect("no errors were injected");
        assert!(bytes == expected.unwrap_or_default(), "contents of the read with ticket {}", completion.ticket);
        true
    }

    /// Waits until nothing is under way.
    pub fn settle(&mut self) {
        loop {
            while self.poll() {}
            if self.expected.is_empty() {
                return;
            }
            self.news.recv_timeout(COMPLETION_WAIT_MAX).expect("a completion is missing");
        }
    }

    /// A random workload, compared all along and as a whole at the end.
    pub fn run(&mut self, random: &mut Random, operations: usize) {
        for _ in 0..operations {
            let bank = random.below(self.store.banks() as u64) as usize;
            let (address, bytes) = random_range(random, self.store.bank_bytes());
            match random.below(16) {
                0..=5 => {
                    let data = random.bytes(bytes);
                    self.write(bank, address, &data);
                }
                6..=11 => self.read(bank, address, bytes),
                12 | 13 => self.zero(bank, address, bytes as u64),
                14 => self.flush(random.chance(1, 2).then_some(bank)),
                _ => {
                    for _ in 0..random.below(4) {
                        self.poll();
                    }
                }
            }
        }
        self.settle();
        self.compare();
    }

    /// Compares all the contents.
    pub fn compare(&mut self) {
        for bank in 0..self.model.len() {
            for address in (0..self.model[bank].len()).step_by(1 << 16) {
                let bytes = (self.model[bank].len() - address).min(1 << 16);
                self.read(bank, address as u64, bytes);
            }
        }
        self.settle();
    }
}

/// A range that likes to be aligned, short, overlapping with others, or at the end.
pub fn random_range(random: &mut Random, bank_bytes: u64) -> (u64, usize) {
    let unit = [1, 512, 4096][random.below(3) as usize];
    let length_max = [64, 4096, 20_000, 200_000][random.below(4) as usize];
    let hot = if random.chance(1, 2) { bank_bytes } else { bank_bytes / 16 };
    let mut address = random.below(hot) / unit * unit;
    let length = (random.below(length_max) / unit * unit).min(bank_bytes - address);
    if random.chance(1, 40) {
        address = bank_bytes - length;
    }
    (address, length as usize)
}

/// Ticket of an operation whose completion no test waits for.
pub const UNWATCHED: Ticket = Ticket::MAX;

/// Does an operation and waits for its end. It has to be the only one under way, but for [`UNWATCHED`] ones.
pub fn wait_for(
    store: &mut dyn Store,
    begin: impl FnOnce(&mut dyn Store) -> Result<Progress, StoreError>,
) -> Result<Vec<u8>, StoreError> {
    let (sender, news) = sync_channel(1);
    store.set_waker(Arc::new(move || {
        let _ = sender.try_send(());
    }));
    if begin(store)? == Progress::Done {
        return Ok(Vec::new());
    }
    loop {
        while let Some(completion) = store.completed() {
            if completion.ticket != UNWATCHED {
                return completion.result;
            }
            completion.result.expect("no errors were injected");
        }
        news.recv_timeout(COMPLETION_WAIT_MAX).expect("a completion is missing");
    }
}

/// What every store has to do, whatever it is made of.
pub fn check_contract(store: &mut dyn Store) {
    let end = store.bank_bytes();
    let banks = store.banks();
    let mut byte = [0; 1];
    assert_eq!(store.read(0, end, &mut byte), Err(StoreError::Range));
    assert_eq!(store.read(banks, 0, &mut byte), Err(StoreError::Range));
    assert_eq!(store.write(0, u64::MAX, &byte), Err(StoreError::Range));
    assert_eq!(store.zero(0, end - 1, 2), Err(StoreError::Range));
    assert_eq!(store.zero(0, 1, u64::MAX), Err(StoreError::Range));
    assert_eq!(store.flush(0, Some(banks)), Err(StoreError::Range));
    store.begin_read(77, 0, end, 1);
    let refused = store.completed().expect("refused at once");
    assert_eq!((refused.ticket, refused.result), (77, Err(StoreError::Range)));
    assert_eq!(store.read(0, end, &mut []), Ok(Progress::Done));

    assert_eq!(store.load_metadata(), Ok(None));
    for round in 0..5_u8 {
        let bytes = vec![round; 5000 - 900 * usize::from(round)];
        wait_for(store, |store| store.save_metadata(1, bytes.clone())).unwrap();
        assert_eq!(store.load_metadata(), Ok(Some(bytes)));
    }
    assert_eq!(store.save_metadata(1, vec![0; super::METADATA_BYTES_MAX + 1]), Err(StoreError::Full));
    wait_for(store, |store| store.save_metadata(1, Vec::new())).unwrap();
    assert_eq!(store.load_metadata(), Ok(Some(Vec::new())));

    assert_eq!(store.load_blob("key-value"), Ok(None));
    wait_for(store, |store| store.save_blob(1, "key-value", vec![1; 100_000])).unwrap();
    wait_for(store, |store| store.save_blob(1, "key-value", vec![2; 70_000])).unwrap();
    wait_for(store, |store| store.save_blob(1, "b", Vec::new())).unwrap();
    assert_eq!(store.load_blob("key-value"), Ok(Some(vec![2; 70_000])));
    assert_eq!(store.load_blob("b"), Ok(Some(Vec::new())));
    for name in ["", "..", "a/b", "A", &"x".repeat(65)] {
        assert_eq!(store.save_blob(1, name, vec![0]), Err(StoreError::Range), "{name}");
        assert_eq!(store.load_blob(name), Ok(None), "{name}");
    }
    wait_for(store, |store| store.delete_blob(1, "b")).unwrap();
    wait_for(store, |store| store.delete_blob(1, "never-there")).unwrap();
    assert_eq!(store.load_blob("b"), Ok(None));
}
