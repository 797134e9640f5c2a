//! Accounts: who uses the device how much, and how much may. One account is the host kernel's, each process of a user has one, and each
//! user with apps has one for what they do for nobody: events of SPU-OS, and work in the background. Shares of processors come of what an
//! account is charged, over its weight ([`crate::interconnect::fair`]).
//!
//! What always holds:
//! - a request is counted in its process' account from when it is taken until it completes; past its places it is handed back;
//! - the places of all users' requests, and of the RPCs that they are made of, are shared by users ([`crate::places`]): one who never lets go of what he has leaves others theirs;
//! - processes of one user that have requests under way, and what the user's apps do for nobody, share that user's part: opening more
//!   gives no more;
//! - what a process that has ended has under way is its user's as before, until it ends; its account is given to another process then. So there
//!   is one for each process, however many have ended.

mod account;

use crate::config::{
    APPS_MAX, HOST_RPCS_MAX, KERNEL_RPCS_MAX, KERNEL_TRANSFERS_MAX, PROCESSES_MAX, USERS_RPCS_MAX, USERS_TRANSFERS_MAX,
};
use crate::places::Places;
use account::Account;
pub use account::{AccountCounters, AccountStatistics};
use std::collections::{BTreeMap, VecDeque};

/// The host kernel's account.
pub(crate) const KERNEL: u16 = 0;
/// The account of those that no account was left for.
pub(crate) const EVENTS: u16 = 1;
/// Most accounts: one for each process, for each request of one that has ended, and for the apps of each user, twice while they are replaced.
const ACCOUNTS_MAX: usize = PROCESSES_MAX + USERS_TRANSFERS_MAX + 2 * APPS_MAX as usize + 2;
const _: () = assert!(ACCOUNTS_MAX <= u16::MAX as usize);
/// Parties among which users' places are shared ([`crate::places`]): users, each with all his processes and apps, and one more.
pub(crate) const PARTIES: u16 = PROCESSES_MAX as u16 + APPS_MAX + 1;
/// That one: who has no account of his own, and each user past the number that places are kept for (requests of processes that have ended can
/// be those of any number).
const NO_USER: u16 = PARTIES - 1;
/// Most users whose weights are kept.
pub const WEIGHTS_MAX: usize = 4096;

/// What a run of a handler costs beside its instructions and DMAs, in instructions: taking the request, and answering it.
pub(crate) const RUN_COST: u64 = 300;
/// Bytes of DMA that cost as much as an instruction.
pub(crate) const DMA_BYTES_A_COST: u64 = 8;

/// A user, while there are processes or apps of his, or requests of such as have ended.
struct User {
    user: u32,
    /// Accounts of these: one a process, and one of his apps.
    accounts: u32,
    /// Of them with something under way.
    busy: u32,
}

/// All accounts.
pub(crate) struct Accounts {
    all: Vec<Account>,
    free: VecDeque<u16>,
    users: Vec<User>,
    /// Accounts of what users' apps do for nobody, by user, and how many apps that are.
    of_apps: BTreeMap<u32, (u16, u16)>,
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
    /// Their RPCs, and those of all.
    rpcs: Places,
    all_rpcs: usize,
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
            of_apps: BTreeMap::new(),
            weights: kept.iter().chain(given).copied().collect(),
            kept: kept.iter().copied().collect(),
            requests_max: limits.requests_max as u32,
            kernel_max: KERNEL_TRANSFERS_MAX as u32,
            places: Places::new(USERS_TRANSFERS_MAX as u64, PARTIES),
            rpcs: Places::new(USERS_RPCS_MAX as u64, PARTIES),
            all_rpcs: 0,
            begun_max: limits.begun_max,
            spus: limits.spus.into(),
        }
    }

    /// A process' account.
    pub fn open(&mut self, process: u32, user: u32, weight: Option<u16>) -> u16 {
        let place = match self.free.pop_front() {
            Some(place) => Some(place),
            None if self.all.len() < ACCOUNTS_MAX => {
                self.all.push(Account::default());
                Some((self.all.len() - 1) as u16)
            }
            None => None,
        };
        let Some(place) = place else { return EVENTS };
        self.all[usize::from(place)] = Account::of_process(process);
        self.set_user(place, user);
        if let Some(weight) = weight {
            self.all[usize::from(place)].weigh(weight);
        }
        place
    }

    /// A user has one more app.
    pub fn open_app(&mut self, user: u32) {
        let account = match self.of_apps.get(&user) {
            Some((account, _)) => *account,
            None => self.open(0, user, None),
        };
        self.of_apps.entry(user).or_insert((account, 0)).1 += 1;
    }

    /// One of a user's apps is gone.
    pub fn close_app(&mut self, user: u32) {
        let Some((account, apps)) = self.of_apps.get_mut(&user) else { return };
        *apps -= 1;
        if *apps == 0 {
            let account = *account;
            self.of_apps.remove(&user);
            self.close(account);
        }
    }

    /// The account of what a user's apps do for nobody.
    pub fn of_apps(&self, user: u32) -> u16 {
        self.of_apps.get(&user).map_or(EVENTS, |(account, _)| *account)
    }

    /// The process has ended; what it has under way is charged to it, and is its user's, yet.
    pub fn close(&mut self, account: u16) {
        if account <= EVENTS {
            return;
        }
        let Some(of) = self.all.get_mut(usize::from(account)).filter(|of| !of.closed) else { return };
        of.closed = true;
        if !of.is_busy() {
            self.vacate(account);
        }
    }

    /// Who had an account has ended, and nothing of it is under way.
    #[cold]
    fn vacate(&mut self, account: u16) {
        self.leave_user(account);
        self.free.push_back(account);
    }

    fn leave_user(&mut self, account: u16) {
        let of = &mut self.all[usize::from(account)];
        let (under_way, rpcs) = (of.under_way, of.rpcs);
        let (busy, user) = (of.is_busy(), of.user.take());
        if let Some(place) = user {
            let user = &mut self.users[usize::from(place)];
            user.accounts -= 1;
            user.busy -= u32::from(busy);
            self.places.pass(place, NO_USER, under_way.into());
            self.rpcs.pass(place, NO_USER, rpcs.into());
        }
    }

    /// Whose a process is; its weight becomes that user's.
    pub fn set_user(&mut self, account: u16, user: u32) {
        if account <= EVENTS {
            return;
        }
        self.leave_user(account);
        let place = self.users.iter().position(|known| known.user == user && known.accounts > 0);
        let place = place.or_else(|| self.users.iter().position(|known| known.accounts == 0));
        let place = place.or_else(|| {
            let is_room = self.users.len() < usize::from(NO_USER);
            is_room.then(|| {
                self.users.push(User { user, accounts: 0, busy: 0 });
                self.users.len() - 1
            })
        });
        let of = &mut self.all[usize::from(account)];
        let Some(place) = place else {
            return of.weigh(self.weights.get(&user).copied().unwrap_or(1));
        };
        of.user = Some(place as u16);
        self.places.pass(NO_USER, place as u16, of.under_way.into());
        self.rpcs.pass(NO_USER, place as u16, of.rpcs.into());
        of.weigh(self.weights.get(&user).copied().unwrap_or(1));
        let entry = &mut self.users[place];
        entry.user = user;
        entry.accounts += 1;
        entry.busy += u32::from(of.is_busy());
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

    /// The party that has an account's places now: that of its user, so that many processes have no more of them than one. It may be another
    /// when they are given back.
    pub fn party(&self, account: u16) -> u16 {
        self.all[usize::from(account)].user.unwrap_or(NO_USER)
    }

    /// The weight of an account.
    pub fn weight(&self, account: u16) -> u16 {
        self.all[usize::from(account)].weight
    }

    /// True where an account has a place for one more request, and for each of its RPCs.
    #[inline(always)]
    pub fn admits(&mut self, account: u16, rpcs: usize) -> bool {
        let of = &mut self.all[usize::from(account)];
        let admits = self.all_rpcs + rpcs <= HOST_RPCS_MAX
            && match account {
                KERNEL => of.under_way < self.kernel_max && of.rpcs as usize + rpcs <= KERNEL_RPCS_MAX,
                _ => {
                    let user = of.user.unwrap_or(NO_USER);
                    of.under_way < self.requests_max
                        && self.places.admits(user, 1)
                        && self.rpcs.admits(user, rpcs as u64)
                }
            };
        of.counters.refused += u64::from(!admits);
        admits
    }

    /// A request was taken that is made of so many RPCs.
    #[inline(always)]
    pub fn begin(&mut self, account: u16, rpcs: u32) {
        let of = &mut self.all[usize::from(account)];
        of.counters.requests += 1;
        of.under_way += 1;
        of.rpcs += rpcs;
        self.all_rpcs += rpcs as usize;
        if account != KERNEL {
            let user = of.user.unwrap_or(NO_USER);
            self.places.put(user, 1);
            self.rpcs.put(user, rpcs.into());
        }
        if of.under_way == 1
            && let Some(user) = of.user
        {
            self.users[usize::from(user)].busy += 1;
        }
    }

    /// A request has completed that was made of so many RPCs.
    #[inline(always)]
    pub fn end(&mut self, account: u16, rpcs: u32) {
        let of = &mut self.all[usize::from(account)];
        of.under_way -= 1;
        of.rpcs -= rpcs;
        self.all_rpcs -= rpcs as usize;
        if account != KERNEL {
            let user = of.user.unwrap_or(NO_USER);
            self.places.release(user, 1);
            self.rpcs.release(user, rpcs.into());
        }
        if of.under_way == 0 {
            self.rests(account);
        }
    }

    /// Nothing of an account is under way any more.
    fn rests(&mut self, account: u16) {
        let of = &self.all[usize::from(account)];
        let closed = of.closed;
        if let Some(user) = of.user {
            self.users[usize::from(user)].busy -= 1;
        }
        if closed {
            self.vacate(account);
        }
    }

    /// An activity begins that belongs to no request. Users' accounts have such activities, or requests, never both.
    pub fn begin_own(&mut self, account: u16) {
        let of = &mut self.all[usize::from(account)];
        of.own += 1;
        if of.own == 1
            && let Some(user) = of.user
        {
            self.users[usize::from(user)].busy += 1;
        }
    }

    /// One has ended.
    pub fn end_own(&mut self, account: u16) {
        let of = &mut self.all[usize::from(account)];
        of.own -= 1;
        if of.own == 0 {
            self.rests(account);
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
        of.units(busy, cost)
    }

    /// SPU-OS has worked for an account, beside runs.
    pub fn worked(&mut self, account: u16, cost: u64) {
        self.all[usize::from(account)].counters.host_work += cost;
    }

    /// The same for work that is not metered.
    pub fn charge_unmetered(&self, account: u16, cost: u64) -> u64 {
        self.units(account, RUN_COST + cost)
    }

    /// The kernel's account, that of those that none was left for, and those of processes and of users' apps, in order of place.
    pub fn statistics(&self) -> Vec<AccountStatistics> {
        let line = |(place, of): (usize, &Account)| AccountStatistics {
            name: match place as u16 {
                KERNEL => "kernel".to_owned(),
                _ if of.process == 0 => "events".to_owned(),
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
            assert!(accounts.admits(one, 1));
            accounts.begin(one, 1);
        }
        assert!(!accounts.admits(one, 1) && accounts.admits(KERNEL, 1));
        accounts.end(one, 1);
        assert!(accounts.admits(one, 1));
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
        accounts.begin(one, 1);
        accounts.begin(two, 1);
        assert_eq!((accounts.charge(one, (2700, 0), 0), accounts.charge(heavy, (2700, 0), 0)), (6000, 999));
        accounts.end(two, 1);
        assert_eq!(accounts.charge(one, (2000, 700), 2400), 3300);
        assert!(accounts.set_weight(1000, Some(10)));
        assert_eq!(accounts.charge(one, (700, 0), 0), 99);
        assert_eq!(accounts.weight(accounts.users.len() as u16), 10);
    }

    #[test]
    fn an_account_is_given_again_when_nothing_of_the_former_is_under_way() {
        let mut accounts = accounts(100, 8);
        let one = accounts.open(5, 1000, None);
        accounts.begin(one, 1);
        accounts.close(one);
        accounts.close(one);
        let two = accounts.open(6, 1000, None);
        assert_ne!(one, two);
        accounts.end(one, 1);
        assert_eq!(accounts.open(7, 1001, Some(5)), one);
        assert_eq!((accounts.weight(one), accounts.statistics().len()), (5, 4));
        assert_eq!(accounts.users.iter().map(|user| (user.accounts, user.busy)).collect::<Vec<_>>(), [(1, 0), (1, 0)]);
    }

    #[test]
    fn one_user_more_than_places_are_kept_for_has_those_of_nobody_and_no_others() {
        let mut accounts = accounts(100, 8);
        // Each leaves a request under way and ends: there are more users than processes.
        let mut open = |user: u32| {
            let account = accounts.open(user + 1, user, None);
            let admits = accounts.admits(account, 1);
            accounts.begin(account, 1);
            accounts.close(account);
            (account, admits)
        };
        let opened: Vec<(u16, bool)> = (0..u32::from(PARTIES) + 100).map(|user| open(1000 + user)).collect();
        assert!(opened.iter().all(|(_, admits)| *admits));
        let accounts_of: Vec<u16> = opened.iter().map(|(account, _)| *account).collect();
        let parties: Vec<u16> = accounts_of.iter().map(|account| accounts.party(*account)).collect();
        let mut own = parties[..usize::from(NO_USER)].to_vec();
        own.sort_unstable();
        own.dedup();
        assert!(own.len() == usize::from(NO_USER) && !own.contains(&NO_USER), "each has one of his own");
        assert!(parties[usize::from(NO_USER)..].iter().all(|party| *party == NO_USER));
        assert_eq!((accounts.places.of(NO_USER), accounts.places.taken()), (101, u64::from(PARTIES) + 100));
        // What of them ends makes room, for users to come too.
        for account in &accounts_of {
            accounts.end(*account, 1);
        }
        assert_eq!((accounts.places.taken(), accounts.rpcs.taken()), (0, 0));
        let next = accounts.open(1, 7, None);
        assert!(accounts.party(next) < NO_USER && accounts.weight(next) == 3);
    }

    #[test]
    fn what_a_users_apps_do_for_nobody_has_one_account_while_there_are_any() {
        let mut accounts = accounts(100, 8);
        let process = accounts.open(5, 1000, None);
        accounts.open_app(1000);
        accounts.open_app(1000);
        accounts.open_app(7);
        let (of_apps, others) = (accounts.of_apps(1000), accounts.of_apps(7));
        assert!(of_apps > process && others > of_apps && accounts.party(of_apps) == accounts.party(process));
        assert_eq!((accounts.of_apps(1001), accounts.weight(others)), (EVENTS, 3));
        // Both at work: each counts twice.
        accounts.begin(process, 1);
        assert_eq!(accounts.charge(of_apps, (2700, 0), 0), 3000);
        accounts.begin_own(of_apps);
        accounts.begin_own(of_apps);
        assert_eq!([of_apps, process].map(|account| accounts.charge(account, (2700, 0), 0)), [6000, 6000]);
        accounts.end_own(of_apps);
        accounts.end_own(of_apps);
        assert_eq!(accounts.charge(process, (2700, 0), 0), 3000);
        accounts.close_app(1000);
        assert_eq!(accounts.of_apps(1000), of_apps, "one is left");
        accounts.begin_own(of_apps);
        accounts.close_app(1000);
        assert_eq!(accounts.of_apps(1000), EVENTS);
        let next = accounts.open(6, 1000, None);
        assert_ne!(next, of_apps, "something of it is under way");
        accounts.end_own(of_apps);
        assert_eq!(accounts.open(9, 1000, None), of_apps);
        accounts.end(process, 1);
        assert_eq!(accounts.users.iter().map(|user| (user.accounts, user.busy)).collect::<Vec<_>>(), [(3, 0), (1, 0)]);
    }
}
