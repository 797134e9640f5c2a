//! A delegating store beside the model of all stores, with FTLs that are plain arrays; and FTLs that end.

use super::*;
use crate::media::fault::Random;
use crate::media::model::{Checked, check_contract};
use crate::media::ram::RamStore;

const BANK_BYTES: u64 = 1 << 18;
const UNIT_BYTES: u64 = 4096;
const BANKS: Banks<'static> =
    Banks { ftl: "plain", bank_bytes: BANK_BYTES, unit_bytes: UNIT_BYTES, is_volatile: true, ftl_forgets: true };

/// A store whose FTLs are plain arrays that serve what they have been handed in any order, whenever somebody looks for completions.
struct Served {
    store: DelegatingStore,
    banks: Vec<Vec<u8>>,
    taken: Vec<Delegated>,
    random: Random,
    /// Operations that two FTLs' threads would have had at once on one unit.
    overlaps: u32,
    /// More than one was under way.
    together: u32,
}

impl Served {
    fn new(seed: u64) -> Self {
        let inner = RamStore::new(2, 4096).expect("a store");
        let mut store = DelegatingStore::new(Box::new(inner), Vec::new(), &BANKS);
        (0..2).for_each(|bank| store.set_service(bank, Service::Serving));
        Served {
            store,
            banks: vec![vec![0; BANK_BYTES as usize]; 2],
            taken: Vec::new(),
            random: Random::new(seed),
            overlaps: 0,
            together: 0,
        }
    }

    fn take(&mut self) {
        while let Some(next) = self.store.take_next() {
            let units = |one: &Delegated| (one.address / UNIT_BYTES, (one.address + one.bytes).div_ceil(UNIT_BYTES));
            let overlap = |other: &&Delegated| {
                let both_read = other.kind == Kind::Read && next.kind == Kind::Read;
                let (a, b) = (units(other), units(&next));
                other.bank == next.bank && a.0 < b.1 && b.0 < a.1 && !both_read
            };
            let flushes = |one: &Delegated| one.kind == Kind::Flush;
            self.overlaps +=
                self.taken.iter().filter(|one| !flushes(one) && !flushes(&next)).filter(overlap).count() as u32;
            self.taken.push(next);
        }
        self.together += u32::from(self.taken.len() > 1);
    }

    fn serve_one(&mut self) {
        self.take();
        if self.taken.is_empty() {
            return;
        }
        let one = self.taken.swap_remove(self.random.below(self.taken.len() as u64) as usize);
        let (begin, bytes) = (one.address as usize, one.bytes as usize);
        let contents = &mut self.banks[one.bank][begin..begin + bytes];
        // In two pieces, as an FTL whose units lie apart.
        let half = bytes / 2;
        match one.kind {
            Kind::Read => {
                let mut peers = self.store.peers(one.bank);
                peers.sink(one.peer, 0, half).expect("its place").copy_from_slice(&contents[..half]);
                let rest = peers.sink(one.peer, half as u64, bytes - half).expect("its place");
                rest.copy_from_slice(&contents[half..]);
            }
            Kind::Write => {
                let peers = self.store.peers(one.bank);
                contents[..half].copy_from_slice(peers.source(one.peer, 0, half).expect("its bytes"));
                let rest = peers.source(one.peer, half as u64, bytes - half).expect("its bytes");
                contents[half..].copy_from_slice(rest);
            }
            Kind::Zero => contents.fill(0),
            Kind::Flush => {}
        }
        assert!(self.store.peers(1 - one.bank).source(one.peer, 0, 0).is_none(), "a peer of another bank");
        assert!(self.store.answered(one.peer, Ok(())));
        assert!(!self.store.answered(one.peer, Ok(())), "answered once");
        assert!(self.store.peers(one.bank).source(one.peer, 0, 0).is_none(), "a peer that is over");
        assert!(self.store.peers(one.bank).sink(one.peer, 0, 0).is_none(), "a peer that is over");
    }
}

impl Store for Served {
    fn banks(&self) -> usize {
        self.store.banks()
    }
    fn bank_bytes(&self) -> u64 {
        self.store.bank_bytes()
    }
    fn volatile_write_cache(&self) -> bool {
        self.store.volatile_write_cache()
    }
    fn read(&mut self, bank: usize, address: u64, into: &mut [u8]) -> Result<Progress, StoreError> {
        self.store.read(bank, address, into)
    }
    fn write(&mut self, bank: usize, address: u64, from: &[u8]) -> Result<Progress, StoreError> {
        self.store.write(bank, address, from)
    }
    fn zero(&mut self, bank: usize, address: u64, bytes: u64) -> Result<Progress, StoreError> {
        self.store.zero(bank, address, bytes)
    }
    fn begin_read(&mut self, ticket: Ticket, bank: usize, address: u64, bytes: usize) {
        self.store.begin_read(ticket, bank, address, bytes);
    }
    fn begin_write(&mut self, ticket: Ticket, bank: usize, address: u64, from: Vec<u8>) {
        self.store.begin_write(ticket, bank, address, from);
    }
    fn begin_zero(&mut self, ticket: Ticket, bank: usize, address: u64, bytes: u64) {
        self.store.begin_zero(ticket, bank, address, bytes);
    }
    fn flush(&mut self, ticket: Ticket, bank: Option<usize>) -> Result<Progress, StoreError> {
        self.store.flush(ticket, bank)
    }
    fn completed(&mut self) -> Option<StoreCompletion> {
        // Many are together before the first is served, and then one at a time.
        if self.random.chance(1, 3) {
            self.take();
        } else {
            self.serve_one();
        }
        self.store.completed()
    }
    fn set_waker(&mut self, waker: Arc<dyn Fn() + Send + Sync>) {
        waker();
        self.store.set_waker(waker);
    }
    crate::records_of!(store);
}

/// Serves until nothing is under way, then says what has ended.
fn settle(served: &mut Served) -> BTreeMap<Ticket, Result<Vec<u8>, StoreError>> {
    let mut ended = BTreeMap::new();
    loop {
        served.serve_one();
        while let Some(completion) = served.store.completed() {
            assert!(ended.insert(completion.ticket, completion.result).is_none(), "ended twice");
        }
        if served.taken.is_empty() && served.store.operations.len() == 0 {
            return ended;
        }
    }
}

#[test]
fn it_is_a_store() {
    check_contract(&mut Served::new(1));
}

#[test]
fn what_ftls_serve_in_any_order_is_what_the_model_does() {
    let (mut overlaps, mut together) = (0, 0);
    for seed in 0..12 {
        let mut checked = Checked::fresh(Served::new(seed));
        let mut random = Random::new(seed);
        for _ in 0..300 {
            let bank = random.below(2) as usize;
            let (address, bytes) = crate::media::model::random_range(&mut random, BANK_BYTES);
            match random.below(8) {
                0..=2 => {
                    let data = random.bytes(bytes);
                    checked.write(bank, address, &data);
                }
                3..=5 => checked.read(bank, address, bytes),
                6 => checked.zero(bank, address, bytes as u64),
                _ => checked.flush(random.chance(1, 2).then_some(bank)),
            }
            if random.chance(1, 3) {
                checked.poll();
            }
        }
        while checked.store.store.operations.len() > 0 || !checked.store.store.completions.is_empty() {
            checked.poll();
        }
        let banks: Vec<_> = checked.store.banks.clone();
        assert!(banks == checked.model, "seed {seed}");
        (overlaps, together) = (overlaps + checked.store.overlaps, together + checked.store.together);
    }
    assert_eq!(overlaps, 0, "operations on one unit that were under way together");
    assert!(together > 100, "the FTLs had several at once {together} times");
}

#[test]
fn what_a_dead_ftl_had_fails_and_the_rest_waits_for_the_next() {
    let mut served = Served::new(3);
    served.begin_write(1, 0, 0, vec![1; 100]);
    served.begin_write(2, 0, 8192, vec![2; 100]);
    served.begin_write(3, 1, 0, vec![3; 100]);
    served.take();
    let peers: Vec<u32> = served.taken.iter().map(|one| one.peer).collect();
    // Behind the first, and so not handed out; and one that nobody has looked at yet.
    served.begin_read(4, 0, 50, 10);
    served.begin_read(5, 0, 65536, 10);
    assert_eq!(served.store.flush(6, None), Ok(Progress::WouldBlock));
    // The FTL of bank 0 ends: it had begun the first, and had been handed the second.
    served.store.set_service(0, Service::Waiting);
    assert!(served.store.answered(peers[0], Err(MEDIA_FAILED)));
    served.store.give_back(peers[1]);
    let mut ended = Vec::new();
    while let Some(completion) = served.store.completed() {
        ended.push((completion.ticket, completion.result.is_err()));
    }
    assert_eq!(ended, [(1, true)]);
    assert!(served.store.peers(0).source(peers[0], 0, 1).is_none() && !served.store.answered(peers[0], Ok(())));
    assert!(served.store.peers(0).source(peers[1], 0, 1).is_none(), "given back");
    assert!(served.store.peers(1).source(peers[2], 0, 1).is_some(), "the other bank's FTL has what it had");
    served.taken.retain(|one| one.bank == 1);
    // Nothing of bank 0 is handed out meanwhile, and nobody is told that there was something to hand out.
    served.take();
    assert!(served.taken.iter().all(|one| one.bank == 1) && !served.store.has_news());
    served.store.set_service(0, Service::Serving);
    let ended = settle(&mut served);
    assert_eq!(ended.keys().copied().collect::<Vec<_>>(), [2, 3, 4, 5, 6]);
    assert!(ended.values().all(Result::is_ok));
}

#[test]
fn where_no_ftl_comes_up_operations_fail_at_once_however_many_wait_for_one_another() {
    let mut served = Served::new(3);
    served.store.set_service(0, Service::Waiting);
    // Each waits for the one before.
    for ticket in 0..3000 {
        served.begin_write(ticket, 0, 0, vec![1; 10]);
    }
    served.begin_write(3000, 1, 0, vec![3; 100]);
    assert_eq!(served.store.flush(3001, None), Ok(Progress::WouldBlock));
    assert!(served.store.completed().is_none());
    served.store.set_service(0, Service::Failed);
    served.begin_read(3002, 0, 0, 10);
    let ended = settle(&mut served);
    assert_eq!(ended.len(), 3003);
    let good: Vec<Ticket> = ended.iter().filter(|(_, result)| result.is_ok()).map(|(ticket, _)| *ticket).collect();
    assert_eq!(good, [3000], "and a flush of both banks is none");
    assert!(served.store.order.is_empty() && served.store.flushes.is_empty());
    // Another FTL comes.
    served.store.set_service(0, Service::Serving);
    served.begin_write(1, 0, 0, vec![1; 10]);
    assert!(settle(&mut served)[&1].is_ok());
}

#[test]
fn too_many_are_told_to_come_again_and_nothing_is_left_behind() {
    let mut served = Served::new(4);
    for ticket in 0..OPERATIONS_MAX as u64 {
        served.begin_read(ticket, 0, ticket * 8, 1);
    }
    served.begin_read(u64::MAX, 0, 0, 1);
    let refused = served.store.completed().expect("at once");
    assert_eq!((refused.ticket, refused.result), (u64::MAX, Err(StoreError::Busy)));
    assert_eq!(served.store.flush(1 << 40, None), Err(StoreError::Busy));
    while let Some(one) = served.store.take_next() {
        assert!(served.store.answered(one.peer, Ok(())));
    }
    let mut ended = 0;
    while let Some(completion) = served.store.completed() {
        assert!(completion.result.is_ok());
        ended += 1;
    }
    assert_eq!(ended, OPERATIONS_MAX);
    assert!(served.store.order.is_empty() && served.store.flushes.is_empty());
}
