//! Protection: processes and their users, the SPUs' permission tables, and which call is allowed to whom (Willow, section 2.6).
//! What a DMA misses is in [`crate::spu::miss`].
//!
//! What always holds:
//! - an app of a user ([`AppState::owner`]) never acts with the kernel's rights: on behalf of a kernel endpoint, or of SPU-OS, it
//!   reaches its own regions alone and calls no other app;
//! - an app calls its own handlers, those of its owner's other apps, those that their manifest makes public, and what a rule in
//!   the intercall table names; a handler for the kernel alone is reached on behalf of kernel endpoints alone;
//! - a process has permissions only while it is known to the device; one that a host's endpoint told of ends with that endpoint.

use super::counters::ProtectionCounters;
use super::unit::Spu;
use crate::bridge::MISSES_PER_AGENT_MAX;
use crate::bridge::accounts::Accounts;
use crate::config::PROCESSES_MAX;
use crate::hre::HreId;
use crate::request::{AppNumber, Upcall};
use crate::spu::miss::Misses;
use crate::spu::os::{AppState, Caller, Machine, planted};
use crate::spu::permission::{Extent, Rights};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// Most rules of the intercall table.
pub const INTERCALLS_MAX: usize = 4096;
/// The user of a process that nobody vouched for: may call public handlers, and owns nothing.
pub const USER_NOBODY: u32 = u32::MAX;
/// Numbers of processes have this many bits; in an endpoint's id a one stands before them.
const PROCESS_BITS: u32 = 19;
/// That one.
const PROCESS_USER: u32 = 1 << PROCESS_BITS;
/// The control service numbers processes from here on; those below are for transports that know their processes themselves.
pub const OPENED_FIRST: u32 = PROCESS_USER / 2;

/// A rule of the intercall table: `caller` may call `handler` of `callee` (0: any that is not for the kernel alone).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Intercall {
    /// Name of the calling app.
    pub caller: String,
    /// Name of the called app.
    pub callee: String,
    /// Handler number, or 0.
    pub handler: u8,
}

/// A process of a user, as the trusted part of the host told of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessInfo {
    /// Number, 1 to 2^19 - 1.
    pub process: u32,
    /// Its user.
    pub user: u32,
    /// Its share of the processors, beside others'.
    pub weight: u16,
    /// Endpoints that it has open.
    pub hres: u32,
    /// What tells it from all other processes of its host, as [`crate::Device::vouch`] was told; zeroes: not known.
    #[serde(default)]
    pub identity: (u64, u64),
}

struct Process {
    user: u32,
    account: u16,
    hres: u32,
    identity: (u64, u64),
    /// Told of by [`crate::Device::open_process`]: known until it is closed, not only while it has endpoints.
    kept: bool,
    /// The kernel endpoint that told of it.
    opener: Option<HreId>,
}

/// State of protection.
pub(crate) struct Protection {
    /// By process number, as endpoints' ids have it (with the one before it).
    processes: BTreeMap<u32, Process>,
    next_process: u32,
    pub misses: Misses,
}

/// A process number as it stands in endpoints' ids.
pub(crate) fn in_ids(process: u32) -> u32 {
    PROCESS_USER | process & (PROCESS_USER - 1)
}

impl Protection {
    pub fn new() -> Self {
        Protection { processes: BTreeMap::new(), next_process: 0, misses: Misses::default() }
    }

    /// A new process of `user`, which `opener` tells of; its number, with the account that `open` gives it. `None` where there are
    /// [`PROCESSES_MAX`], or the endpoint that tells of it has told of as many as it leaves to others.
    pub fn open_process(&mut self, user: u32, opener: Option<HreId>, open: impl FnOnce(u32) -> u16) -> Option<u32> {
        let left = PROCESSES_MAX.saturating_sub(self.processes.len());
        let of_opener = |process: &&Process| opener.is_some() && process.opener == opener;
        if self.processes.values().filter(of_opener).count() >= left {
            return None;
        }
        loop {
            // Numbers come again as late as possible.
            self.next_process = OPENED_FIRST | (self.next_process + 1) & (OPENED_FIRST - 1);
            let id = in_ids(self.next_process);
            if let Entry::Vacant(free) = self.processes.entry(id) {
                free.insert(Process { user, account: open(id), hres: 0, identity: (0, 0), kept: true, opener });
                return Some(self.next_process);
            }
        }
    }

    /// Forgets a process and all its permissions; its account, where it was known.
    pub fn close_process(&mut self, process: u32) -> Option<u16> {
        let id = in_ids(process);
        self.processes.remove(&id).map(|process| process.account)
    }

    /// An endpoint of a process was opened: the process' account, which `open` gives it where it is new.
    pub fn hre_opened(&mut self, process: u32, open: impl FnOnce(u32) -> u16) -> u16 {
        let id = in_ids(process);
        let fresh =
            || Process { user: USER_NOBODY, account: open(id), hres: 0, identity: (0, 0), kept: false, opener: None };
        let process = self.processes.entry(id).or_insert_with(fresh);
        process.hres += 1;
        process.account
    }

    /// What a transport knows of a process that has an endpoint; its account.
    pub fn vouch(&mut self, process: u32, user: u32, identity: (u64, u64)) -> Option<u16> {
        let known = self.processes.get_mut(&in_ids(process))?;
        (known.user, known.identity) = (user, identity);
        Some(known.account)
    }

    /// An endpoint was closed; the account of its process, where that has ended with it.
    pub fn hre_closed(&mut self, hre: HreId) -> Option<u16> {
        if hre.is_kernel() {
            return None;
        }
        let process = self.processes.get_mut(&hre.process())?;
        process.hres = process.hres.saturating_sub(1);
        if process.hres > 0 || process.kept {
            return None;
        }
        self.close_process(hre.process())
    }

    /// A process' account.
    pub fn account(&self, process: u32) -> Option<u16> {
        self.processes.get(&in_ids(process)).map(|process| process.account)
    }

    /// True where the device knows of this process.
    pub fn knows(&self, process: u32) -> bool {
        self.processes.contains_key(&in_ids(process))
    }

    /// The user of a process that is known.
    pub fn user_of(&self, process: u32) -> Option<u32> {
        self.processes.get(&in_ids(process)).map(|process| process.user)
    }

    /// Processes that a kernel endpoint told of.
    pub fn opened_by(&self, hre: HreId) -> Vec<u32> {
        if !hre.is_kernel() {
            return Vec::new();
        }
        let of = self.processes.iter().filter(|(_, process)| process.opener == Some(hre));
        of.map(|(id, _)| id & (PROCESS_USER - 1)).collect()
    }

    /// User of an endpoint; `None` for the kernel's.
    pub fn user(&self, hre: HreId) -> Option<u32> {
        if hre.is_kernel() {
            return None;
        }
        Some(self.processes.get(&hre.process()).map_or(USER_NOBODY, |process| process.user))
    }

    /// Numbers of all processes.
    pub fn numbers(&self) -> Vec<u32> {
        self.processes.keys().map(|id| id & (PROCESS_USER - 1)).collect()
    }

    /// All processes.
    pub fn processes(&self, accounts: &Accounts) -> Vec<ProcessInfo> {
        let info = |(id, process): (&u32, &Process)| ProcessInfo {
            process: id & (PROCESS_USER - 1),
            user: process.user,
            weight: accounts.weight(process.account),
            hres: process.hres,
            identity: process.identity,
        };
        self.processes.iter().map(info).collect()
    }
}

/// What the look-up of a range came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Access {
    Permitted,
    /// Never, whatever is granted.
    Forbidden,
    /// Not unless somebody grants it.
    Missing,
}

impl Machine {
    /// A process of a user; its number. `weight` 0: the user's.
    pub fn open_process(&mut self, user: u32, weight: u16, opener: Option<HreId>) -> Option<u32> {
        let accounts = &mut self.bridge.accounts;
        self.protection.open_process(user, opener, |id| accounts.open(id, user, (weight > 0).then_some(weight)))
    }

    /// Adds rights on an SPU.
    pub fn grant(&mut self, process: u32, spu: u16, extent: Extent) {
        if let Some(spu) = self.spus.get_mut(spu as usize) {
            spu.permissions.grant(in_ids(process), extent);
        }
    }

    /// Takes rights on an SPU.
    pub fn revoke(&mut self, process: u32, spu: u16, extent: Extent) {
        if planted!(self, KeepsRights) {
            return;
        }
        if let Some(spu) = self.spus.get_mut(spu as usize) {
            spu.permissions.revoke(in_ids(process), extent);
        }
    }

    /// Takes all rights of a process.
    pub fn revoke_all(&mut self, process: u32) {
        for spu in &mut self.spus {
            spu.permissions.revoke_all(in_ids(process));
        }
    }

    /// The extents of a process, by SPU.
    pub fn extents_of(&self, process: u32) -> impl Iterator<Item = (u16, Extent)> {
        let of = move |(number, spu): (usize, &Spu)| {
            let extents = spu.permissions.extents(in_ids(process)).into_iter();
            extents.map(|extent| (number as u16, extent)).collect::<Vec<_>>()
        };
        self.spus.iter().enumerate().flat_map(of)
    }

    /// Forgets a process, its permissions and its account.
    pub fn close_process(&mut self, process: u32) {
        self.revoke_all(process);
        if let Some(account) = self.protection.close_process(process) {
            self.bridge.accounts.close(account);
        }
    }

    /// An endpoint of a process was opened.
    pub fn hre_opened(&mut self, hre: HreId, process: u32) {
        let accounts = &mut self.bridge.accounts;
        let account = self.protection.hre_opened(process, |id| accounts.open(id, USER_NOBODY, None));
        self.bridge.set_account(hre, account);
    }

    /// An endpoint was closed; true where that was the end of its process.
    pub fn hre_closed(&mut self, hre: HreId) -> bool {
        let Some(account) = self.protection.hre_closed(hre) else { return false };
        self.revoke_all(hre.process());
        self.bridge.accounts.close(account);
        true
    }

    /// The whole rule, where the calling app's remembered range does not answer.
    pub fn access(&mut self, caller: Caller, originating: HreId, address: u64, bytes: u64, rights: Rights) -> Access {
        match self.rule(caller, originating, (address, bytes)) {
            Ok(access) => access,
            Err(process) => {
                self.clock.note(|work| work.permission_checks += 1);
                let table = if planted!(self, SharesPermissions) { 0 } else { usize::from(caller.spu) };
                let permits = self.spus[table].permissions.permits(process, address, bytes, rights);
                if permits { Access::Permitted } else { Access::Missing }
            }
        }
    }

    /// The same for a segment that was looked up and refused: what it lacked. That is no further look-up.
    pub fn access_again(
        &mut self,
        caller: Caller,
        originating: HreId,
        (address, bytes): (u64, u64),
        rights: Rights,
    ) -> Access {
        match self.rule(caller, originating, (address, bytes)) {
            Ok(access) => access,
            Err(process) => match self.spus[caller.spu as usize].permissions.holds(process, address, bytes, rights) {
                true => Access::Permitted,
                false => Access::Missing,
            },
        }
    }

    /// What follows from the regions alone; or the process whose permissions decide.
    fn rule(&mut self, caller: Caller, originating: HreId, (address, bytes): (u64, u64)) -> Result<Access, u32> {
        let Some(end) = address.checked_add(bytes) else { return Ok(Access::Forbidden) };
        let Some(state) = self.apps.get(caller.app as usize).and_then(Option::as_ref) else {
            return Ok(Access::Forbidden);
        };
        if self.ftl() == Some(caller.app) {
            // It would wait for itself.
            return Ok(Access::Forbidden);
        }
        let permitted = &mut self.spus[caller.spu as usize].residents[caller.app as usize].permitted;
        let (base, limit, all) = *permitted;
        if all || address < base || end > limit {
            let Some((_, region)) = self.published.regions.holding(address, bytes) else {
                return Ok(Access::Forbidden);
            };
            if region.deleting || (!region.shared && region.app != state.name) {
                return Ok(Access::Forbidden);
            }
            if !region.shared || state.owner.is_none() {
                *permitted = (region.base, region.end(), !region.shared);
            }
            if !region.shared {
                return Ok(Access::Permitted);
            }
            if originating.is_kernel() {
                let trusted = state.owner.is_none();
                return Ok(if trusted { Access::Permitted } else { Access::Forbidden });
            }
        }
        Err(originating.process())
    }

    /// The app that an endpoint or another app means by a name: a user's own before the kernel's.
    pub fn find_app_for(&self, user: Option<u32>, name: &[u8]) -> Option<AppNumber> {
        if let (Some(user), Ok(text)) = (user, std::str::from_utf8(name))
            && let Some(own) = self.find_app(user_app_name(user, text).as_bytes())
        {
            return Some(own);
        }
        let number = self.find_app(name)?;
        let seen = self.apps[number as usize].as_ref().is_some_and(|app| is_seen(app, user));
        seen.then_some(number)
    }

    /// Counters of protection.
    pub fn protection_counters(&self) -> ProtectionCounters {
        let mut counters = ProtectionCounters {
            processes: self.protection.processes.len() as u64,
            upcalls: self.protection.misses.upcalls,
            parked: self.parked() as u64,
            ..Default::default()
        };
        for table in self.spus.iter().map(|spu| &spu.permissions) {
            counters.permissions += table.len() as u64;
            counters.misses += table.counters().misses;
            counters.evictions += table.counters().evictions;
        }
        counters
    }

    /// Tells the agents that an app has ended; they tell the app's users.
    pub fn tell_app_ended(&mut self, number: AppNumber, spu: u16, why: &str) {
        let name = self.apps.get(number as usize).and_then(Option::as_ref).map_or("", |app| &app.name);
        let mut body = u32::from(number).to_le_bytes().to_vec();
        body.extend_from_slice(format!("{name}\n{why}").as_bytes());
        let handler = crate::request::UPCALL_APP_ENDED;
        for agent in &self.protection.misses.agents {
            let upcall = Upcall { id: 0, app: crate::request::CONTROL_APP, handler, spu, body: body.clone() };
            if !self.bridge.push_upcall(agent.hre, upcall, MISSES_PER_AGENT_MAX) {
                tracing::warn!(
                    "an agent could not be told that app {name} ended: it leaves too many upcalls unfetched"
                );
            }
        }
    }

    /// May an app call this handler of an app, on behalf of that endpoint?
    pub fn may_call(&self, caller: AppNumber, callee: AppNumber, handler: u8, originating: HreId) -> bool {
        if planted!(self, AdmitsAll) {
            return true;
        }
        let find = |number: AppNumber| self.apps.get(number as usize).and_then(Option::as_ref);
        let (Some(from), Some(to)) = (find(caller), find(callee)) else { return false };
        let from_outside = caller != callee && from.owner.is_some();
        if to.calls.kernel.has(handler) && (!originating.is_kernel() || from_outside) {
            return false;
        }
        if caller == callee {
            return true;
        }
        match from.owner {
            // What comes with the device, or was installed by the kernel, is trusted to call; its own rules hold for what it is
            // asked by users.
            None => true,
            Some(_) if originating.is_kernel() => false,
            Some(owner) => {
                let rule = |handler| {
                    let rule = Intercall { caller: from.name.clone(), callee: to.name.clone(), handler };
                    self.published.intercalls.contains(&rule)
                };
                to.owner == Some(owner) || to.calls.public.has(handler) || rule(handler) || rule(0)
            }
        }
    }
}

/// Whether an app is there for a user: it is the user's own, or has a public handler.
pub(crate) fn is_seen(app: &AppState, user: Option<u32>) -> bool {
    let public = || app.handlers.iter().any(|(number, _)| app.calls.public.has(*number));
    user.is_none() || (app.owner == user && user != Some(USER_NOBODY)) || public()
}

/// May a user's request for this handler be delivered?
pub(crate) fn may_request(protection: &Protection, app: &AppState, handler: u8, originating: HreId) -> bool {
    protection.user(originating).is_none_or(|user| may_user_call(app, handler, user))
}

/// May a process of `user` call this handler itself?
pub(crate) fn may_user_call(app: &AppState, handler: u8, user: u32) -> bool {
    !app.calls.kernel.has(handler)
        && (app.calls.public.has(handler) || (app.owner == Some(user) && user != USER_NOBODY))
}

/// A set of handler numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Handlers([u64; 4]);

impl Handlers {
    /// All of them.
    pub const ALL: Handlers = Handlers([u64::MAX; 4]);

    /// Whether it has a handler.
    #[inline]
    pub fn has(&self, handler: u8) -> bool {
        self.0[usize::from(handler >> 6)] >> (handler & 63) & 1 != 0
    }

    /// Adds one.
    pub fn add(&mut self, handler: u8) {
        self.0[usize::from(handler >> 6)] |= 1 << (handler & 63);
    }

    /// From `*` or numbers with commas between.
    pub fn parse(text: &str) -> Option<Handlers> {
        if text == "*" {
            return Some(Handlers::ALL);
        }
        let mut set = Handlers::default();
        for number in text.split(',') {
            set.add(number.trim().parse().ok().filter(|number| *number > 0)?);
        }
        Some(set)
    }
}

/// Who may call which of an app's handlers, from its manifest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Calls {
    /// Any user's processes, and any app.
    pub public: Handlers,
    /// On behalf of kernel endpoints alone.
    pub kernel: Handlers,
}

/// The name under which a user's app is installed: nobody else's can be the same.
pub(crate) fn user_app_name(user: u32, name: &str) -> String {
    format!("u{user}-{name}")
}

/// True for names that only users' apps have.
pub(crate) fn is_user_app_name(name: &str) -> bool {
    let digits = name.strip_prefix('u').map_or("", |rest| rest.split('-').next().unwrap_or(""));
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) && name.contains('-')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::DeviceConfig;
    use crate::media::ram::RamStore;
    use crate::region::RegionTable;
    use crate::spu::published::Published;
    use std::collections::BTreeSet;

    #[test]
    fn processes_are_known_from_opening_to_closing() {
        let config = DeviceConfig { spus: 2, ..DeviceConfig::default() };
        let store = Box::new(RamStore::new(2, 1 << 20).unwrap());
        let regions = RegionTable::new(1 << 20, vec![]).unwrap();
        let published = Published { regions, namespaces: Default::default(), intercalls: BTreeSet::new() };
        let mut machine = Machine::new(config, store, None, published, &[]);
        let permits = |machine: &mut Machine, spu: usize, hre: HreId| {
            machine.spus[spu].permissions.permits(hre.process(), 0, 10, Rights::READ)
        };
        let process = machine.open_process(1000, 0, None).unwrap();
        let hre = machine.bridge.open(Some(process)).unwrap();
        assert_eq!(machine.protection.user(hre), Some(1000));
        let extent = Extent { start: 0, end: 10, rights: Rights::READ };
        machine.grant(process, 1, extent);
        assert!(permits(&mut machine, 1, hre) && !permits(&mut machine, 0, hre));
        machine.hre_opened(hre, process);
        assert!(!machine.hre_closed(hre) && machine.protection.knows(process));
        machine.close_process(process);
        assert!(!machine.protection.knows(process) && !permits(&mut machine, 1, hre));
        // One that nobody told of lives as long as its endpoints.
        let other = machine.bridge.open(Some(77)).unwrap();
        machine.hre_opened(other, 77);
        assert_eq!(machine.protection.user(other), Some(USER_NOBODY));
        machine.grant(77, 0, extent);
        assert!(permits(&mut machine, 0, other));
        assert!(machine.hre_closed(other));
        assert!(machine.spus[0].permissions.is_empty() && !machine.protection.knows(77));
        assert_ne!(machine.open_process(1, 0, None), Some(process), "numbers come again late");
    }

    #[test]
    fn sets_of_handlers_and_names() {
        let set = Handlers::parse("1, 64,255").unwrap();
        assert!(set.has(1) && set.has(64) && set.has(255) && !set.has(2) && !set.has(0));
        assert!(Handlers::parse("*").unwrap().has(200));
        assert!(Handlers::parse("0").is_none() && Handlers::parse("").is_none() && Handlers::parse("1,x").is_none());
        assert!(is_user_app_name(&user_app_name(1000, "scan")));
        assert!(!is_user_app_name("u-scan") && !is_user_app_name("user-1") && !is_user_app_name("u1000"));
    }
}
