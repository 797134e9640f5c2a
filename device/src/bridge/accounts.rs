//! Accounts: who uses the device how much, and how much may. One account is the host kernel's, one is that of events of SPU-OS in
//! users' apps, and each process of a user has one. Shares of processors come of what an account is charged, over its weight
//! ([`crate::interconnect::fair`]).
//!
//! What always holds:
//! - a request is counted in its process' account from when it is taken until it completes; past its places it is handed back;
//! - the places of all users' requests are shared by users ([`crate::places`]): one who never lets go of what he has leaves others theirs;
//! - processes of one user that have requests under way share that user's part: opening more gives no more;
//! - an account is given to another process only when nothing of the former one is under way.

use crate::config::{KERNEL_TRANSFERS_MAX, PROCESSES_MAX, USERS_TRANSFERS_MAX, WEIGHT_MAX};
use crate::places::Places;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

/// The host kernel's account.
pub(crate) const KERNEL: u16 = 0;
/// The account of what SPU-OS itself asks of users' apps, and of processes that no account was left for.
pub(crate) const EVENTS: u16 = 1;
/// Most accounts.
pub(crate) const ACCOUNTS_MAX: usize = 8192;
/// The party that has the places of requests whose process has ended or has no account of its own.
const NO_USER: u16 = PROCESSES_MAX as u16;
/// Most users whose weights are kept.
pub const WEIGHTS_MAX: usize = 4096;
/// Units of the queue for each of cost at weight 1.
const SCALE_BITS: u32 = 20;

/// What a run of a handler costs beside its instructions and DMAs, in instructions: taking the request, and answering it.
pub(crate) const RUN_COST: u64 = 300;
/// Bytes of DMA that cost as much as an instruction.
pub(crate) const DMA_BYTES_A_COST: u64 = 8;

/// What an account was used for since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccountCounters {
    /// Requests taken.
    pub requests: u64,
    /// Requests handed back since all places were taken.
    pub refused: u64,
    /// Requests that waited since their process had as many handlers on an SPU as it may.
    pub stalls: u64,
    /// Instructions of apps on its behalf.
    pub instructions: u64,
    /// What SPU-OS did for these apps, in the same unit.
    #[serde(default)]
    pub host_work: u64,
    /// Bytes of DMAs on its behalf.
    pub dma_bytes: u64,
}

/// A process' line in the statistics.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccountStatistics {
    /// `kernel`, `events`, or the process' number.
    pub name: String,
    /// Its user.
    pub user: Option<u32>,
    /// Its weight.
    pub weight: u16,
    /// Requests under way.
    pub under_way: u32,
    /// Counters.
    #[serde(flatten)]
    pub counters: AccountCounters,
}

#[derive(Default)]
struct Account {
    /// Its number as in ids; 0: no process'.
    process: u32,
    /// Place of its user.
    user: Option<u16>,
    weight: u16,
    /// Units for each of cost: one over the weight.
    rate: u64,
    under_way: u32,
    /// Handlers begun for its hosts' requests, by SPU; empty until one is.
    begun: Vec<u16>,
    /// Requests that wait for one of them to end, by SPU.
    stalled: BTreeMap<u16, VecDeque<u32>>,
    closed: bool,
    counters: AccountCounters,
}

impl Account {
    fn weigh(&mut self, weight: u16) {
        self.weight = weight.clamp(1, WEIGHT_MAX);
        self.rate = (1 << SCALE_BITS) / u64::from(self.weight);
    }
}

/// A user, while there are processes of his.
struct User {
    user: u32,
    processes: u32,
    /// Of them with requests under way.
    busy: u32,
}

/// All accounts.
pub(crate) struct Accounts {
    all: Vec<Account>,
    free: VecDeque<u16>,
    users: Vec<User>,
    /// Users' weights now.
    weights: BTreeMap<u32, u16>,
    /// Those that were set while a device of these media ran, and last.
    kept: BTreeMap<u32, u16>,
    requests_max: u32,
    kernel_max: u32,
    begun_max: u16,
    spus: usize,
    /// Requests of users' processes, by place of the user.
    places: Places,
}

/// Bounds of each process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AccountLimits {
    /// Requests under way.
    pub requests_max: usize,
    /// Handlers begun on one SPU.
    pub begun_max: u16,
    /// SPUs.
    pub spus: u16,
}

impl Accounts {
    /// `kept`: users' weights as they were set before; `given`: as this device is started with, which stand before those.
    pub fn new(limits: AccountLimits, kernel_weight: u16, kept: &[(u32, u16)], given: &[(u32, u16)]) -> Self {
        let own = |weight| {
            let mut account = Account::default();
            account.weigh(weight);
            account
        };
        Accounts {
            all: vec![own(kernel_weight), own(1)],
            free: VecDeque::new(),
            users: Vec::new(),
            weights: kept.iter().chain(given).copied().collect(),
            kept: kept.iter().copied().collect(),
            requests_max: limits.requests_max as u32,
            kernel_max: KERNEL_TRANSFERS_MAX as u32,
            places: Places::new(USERS_TRANSFERS_MAX as u64, PROCESSES_MAX as u16 + 1),
            begun_max: limits.begun_max,
            spus: limits.spus.into(),
        }
    }

    /// A process' account.
    pub fn open(&mut self, process: u32, user: u32, weight: Option<u16>) -> u16 {
        let place = match self.free.iter().position(|place| self.all[usize::from(*place)].under_way == 0) {
            Some(at) => self.free.remove(at),
            None if self.all.len() < ACCOUNTS_MAX => {
                self.all.push(Account::default());
                Some((self.all.len() - 1) as u16)
            }
            None => None,
        };
        let Some(place) = place else { return EVENTS };
        self.all[usize::from(place)] = Account { process, ..Account::default() };
        self.set_user(place, user);
        if let Some(weight) = weight {
            self.all[usize::from(place)].weigh(weight);
        }
        place
    }

    /// The process has ended; what it has under way is charged to it yet.
    pub fn close(&mut self, account: u16) {
        let Some(of) = self.all.get_mut(usize::from(account)).filter(|of| of.process != 0 && !of.closed) else {
            return;
        };
        of.closed = true;
        self.leave_user(account);
        self.free.push_back(account);
    }

    fn leave_user(&mut self, account: u16) {
        let of = &mut self.all[usize::from(account)];
        let under_way = of.under_way;
        let (busy, user) = (under_way > 0, of.user.take());
        if let Some(place) = user {
            let user = &mut self.users[usize::from(place)];
            user.processes -= 1;
            user.busy -= u32::from(busy);
            self.places.pass(place, NO_USER, under_way.into());
        }
    }

    /// Whose a process is; its weight becomes that user's.
    pub fn set_user(&mut self, account: u16, user: u32) {
        if account <= EVENTS {
            return;
        }
        self.leave_user(account);
        let place = self.users.iter().position(|known| known.user == user && known.processes > 0);
        let place = place.or_else(|| self.users.iter().position(|known| known.processes == 0));
        let place = place.unwrap_or_else(|| {
            self.users.push(User { user, processes: 0, busy: 0 });
            self.users.len() - 1
        });
        let of = &mut self.all[usize::from(account)];
        of.user = Some(place as u16);
        self.places.pass(NO_USER, place as u16, of.under_way.into());
        of.weigh(self.weights.get(&user).copied().unwrap_or(1));
        let entry = &mut self.users[place];
        entry.user = user;
        entry.processes += 1;
        entry.busy += u32::from(of.under_way > 0);
    }

    /// Gives a user's processes a weight, those to come as well; without, 1 as for any user. False where there are too many.
    pub fn set_weight(&mut self, user: u32, weight: Option<u16>) -> bool {
        if weight.is_some() && self.kept.len() >= WEIGHTS_MAX && !self.kept.contains_key(&user) {
            return false;
        }
        for map in [&mut self.weights, &mut self.kept] {
            match weight {
                Some(weight) => map.insert(user, weight),
                None => map.remove(&user),
            };
        }
        let weight = weight.unwrap_or(1);
        for of in &mut self.all {
            if of.user.is_some_and(|place| self.users[usize::from(place)].user == user) {
                of.weigh(weight);
            }
        }
        true
    }

    /// Users' weights now, where they are not 1 by default.
    pub fn weights(&self) -> Vec<(u32, u16)> {
        self.weights.iter().map(|(user, weight)| (*user, *weight)).collect()
    }

    /// Gives one process a weight.
    pub fn set_process_weight(&mut self, account: u16, weight: u16) {
        if account > EVENTS {
            self.all[usize::from(account)].weigh(weight);
        }
    }

    /// The weight of an account.
    pub fn weight(&self, account: u16) -> u16 {
        self.all[usize::from(account)].weight
    }

    /// True where an account has a place for one more request.
    #[inline]
    pub fn admits(&mut self, account: u16) -> bool {
        let of = &mut self.all[usize::from(account)];
        let admits = match account {
            KERNEL => of.under_way < self.kernel_max,
            _ => of.under_way < self.requests_max && self.places.admits(of.user.unwrap_or(NO_USER), 1),
        };
        of.counters.refused += u64::from(!admits);
        admits
    }

    /// A request was taken.
    #[inline(always)]
    pub fn begin(&mut self, account: u16) {
        let of = &mut self.all[usize::from(account)];
        of.counters.requests += 1;
        of.under_way += 1;
        if account != KERNEL {
            self.places.put(of.user.unwrap_or(NO_USER), 1);
        }
        if of.under_way == 1
            && let Some(user) = of.user
        {
            self.users[usize::from(user)].busy += 1;
        }
    }

    /// A request has completed.
    #[inline]
    pub fn end(&mut self, account: u16) {
        let of = &mut self.all[usize::from(account)];
        of.under_way -= 1;
        if account != KERNEL {
            self.places.release(of.user.unwrap_or(NO_USER), 1);
        }
        if of.under_way == 0
            && let Some(user) = of.user
        {
            self.users[usize::from(user)].busy -= 1;
        }
    }

    /// Takes a place for a host's request on an SPU; false where the account has as many as it may: then the request is kept, and
    /// comes out of [`Accounts::next`].
    #[inline(always)]
    pub fn begins(&mut self, account: u16, spu: u16, token: u32) -> bool {
        if account <= EVENTS {
            return true;
        }
        let of = &mut self.all[usize::from(account)];
        if of.begun.is_empty() {
            of.begun = vec![0; self.spus];
        }
        let begun = &mut of.begun[usize::from(spu)];
        if *begun >= self.begun_max {
            of.counters.stalls += 1;
            of.stalled.entry(spu).or_default().push_back(token);
            return false;
        }
        *begun += 1;
        true
    }

    /// A host's request that had a place on an SPU has ended.
    #[inline]
    pub fn ended(&mut self, account: u16, spu: u16) {
        if let Some(begun) = self.all[usize::from(account)].begun.get_mut(usize::from(spu)) {
            *begun = begun.saturating_sub(1);
        }
    }

    /// A request that waits for a place, where there is one.
    #[inline]
    pub fn next(&mut self, account: u16, spu: u16) -> Option<u32> {
        let of = &mut self.all[usize::from(account)];
        if of.stalled.is_empty() || of.begun[usize::from(spu)] >= self.begun_max {
            return None;
        }
        let waiting = of.stalled.get_mut(&spu)?;
        let next = waiting.pop_front();
        if waiting.is_empty() {
            of.stalled.remove(&spu);
        }
        next
    }

    /// Charges a run: what the queue is to be told.
    #[inline(always)]
    pub fn charge(&mut self, account: u16, (instructions, host_work): (u64, u64), dma_bytes: u64) -> u64 {
        let of = &mut self.all[usize::from(account)];
        of.counters.instructions += instructions;
        of.counters.host_work += host_work;
        of.counters.dma_bytes += dma_bytes;
        self.units(account, RUN_COST + instructions + host_work + dma_bytes / DMA_BYTES_A_COST)
    }

    /// What a cost is to the queue.
    #[inline(always)]
    fn units(&self, account: u16, cost: u64) -> u64 {
        let of = &self.all[usize::from(account)];
        let busy = match of.user {
            None => 1,
            Some(user) => u64::from(self.users[usize::from(user)].busy.max(1)),
        };
        cost.saturating_mul(busy * of.rate) >> SCALE_BITS
    }

    /// The same for work that is not metered.
    pub fn charge_unmetered(&self, account: u16, cost: u64) -> u64 {
        self.units(account, RUN_COST + cost)
    }

    /// The kernel's account, that of events, and those of processes, in order of place.
    pub fn statistics(&self) -> Vec<AccountStatistics> {
        let line = |(place, of): (usize, &Account)| AccountStatistics {
            name: match place as u16 {
                KERNEL => "kernel".to_owned(),
                EVENTS => "events".to_owned(),
                _ => (of.process & ((1 << 19) - 1)).to_string(),
            },
            user: of.user.map(|user| self.users[usize::from(user)].user),
            weight: of.weight,
            under_way: of.under_way,
            counters: of.counters,
        };
        self.all.iter().enumerate().filter(|(_, of)| !of.closed).map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accounts(requests_max: usize, begun_max: u16) -> Accounts {
        Accounts::new(AccountLimits { requests_max, begun_max, spus: 2 }, 8, &[], &[(7, 3)])
    }

    #[test]
    fn places_are_bounded_and_come_back() {
        let mut accounts = accounts(2, 8);
        let one = accounts.open(5, 1000, None);
        for _ in 0..2 {
            assert!(accounts.admits(one));
            accounts.begin(one);
        }
        assert!(!accounts.admits(one) && accounts.admits(KERNEL));
        accounts.end(one);
        assert!(accounts.admits(one));
        assert_eq!(
            accounts.statistics()[2].counters,
            AccountCounters { requests: 2, refused: 1, ..Default::default() }
        );
    }

    #[test]
    fn handlers_of_a_process_on_an_spu_are_bounded_and_the_rest_waits_in_order() {
        let mut accounts = accounts(100, 2);
        let one = accounts.open(5, 1000, None);
        let two = accounts.open(6, 1001, None);
        assert!(accounts.begins(one, 0, 10) && accounts.begins(one, 0, 11));
        assert!(!accounts.begins(one, 0, 12) && !accounts.begins(one, 0, 13));
        assert!(accounts.begins(one, 1, 14) && accounts.begins(two, 0, 15), "another SPU, another process");
        assert_eq!(accounts.next(one, 0), None);
        accounts.ended(one, 0);
        assert_eq!(accounts.next(one, 0), Some(12));
        assert!(accounts.begins(one, 0, 12) && accounts.next(one, 0).is_none());
        accounts.ended(one, 0);
        accounts.ended(one, 0);
        assert_eq!((accounts.next(one, 0), accounts.next(one, 0), accounts.next(one, 1)), (Some(13), None, None));
    }

    #[test]
    fn weights_are_the_users_and_processes_of_one_user_share_its_part() {
        let mut accounts = accounts(100, 8);
        let (one, two, heavy) = (accounts.open(5, 1000, None), accounts.open(6, 1000, None), accounts.open(8, 7, None));
        let cost = accounts.charge(one, (2700, 0), 0);
        assert_eq!(cost, 3000);
        assert_eq!(accounts.charge(heavy, (2700, 0), 0), 999, "rounded, over 3");
        accounts.begin(one);
        accounts.begin(two);
        assert_eq!((accounts.charge(one, (2700, 0), 0), accounts.charge(heavy, (2700, 0), 0)), (6000, 999));
        accounts.end(two);
        assert_eq!(accounts.charge(one, (2000, 700), 2400), 3300);
        assert!(accounts.set_weight(1000, Some(10)));
        assert_eq!(accounts.charge(one, (700, 0), 0), 99);
        assert_eq!(accounts.weight(accounts.users.len() as u16), 10);
    }

    #[test]
    fn an_account_is_given_again_when_nothing_of_the_former_is_under_way() {
        let mut accounts = accounts(100, 8);
        let one = accounts.open(5, 1000, None);
        accounts.begin(one);
        accounts.close(one);
        accounts.close(one);
        let two = accounts.open(6, 1000, None);
        assert_ne!(one, two);
        accounts.end(one);
        assert_eq!(accounts.open(7, 1001, Some(5)), one);
        assert_eq!((accounts.weight(one), accounts.statistics().len()), (5, 4));
        assert_eq!(accounts.users.iter().map(|user| (user.processes, user.busy)).collect::<Vec<_>>(), [(1, 0), (1, 0)]);
    }
}
