//! Transactions: each change of the device from its request to its answer, as a value with a state.
//!
//! What always holds:
//! - A transaction is in the table from its beginning to its answer, and is answered once.
//! - Its steps follow from what ended: a save ([`Core::committed`]), an operation of the store ([`Core::step_ended`]), answers
//!   of an app or a deadline ([`Core::poll_transactions`]).
//! - An app is in one transaction at a time.

use super::change::{Change, Made, Refusal};
use super::core::Core;
use super::debug;
use super::erase::Erasure;
use super::install::Install;
use super::revive::Revival;
use super::settle::Settling;
use super::{DRAIN_NS_MAX, Shutdown};
use crate::hre::HreId;
use crate::interconnect::Key;
use crate::media::store::{StoreError, Ticket};
use crate::request::{AppNumber, RpcOutcome};
use crate::service::control::ControlStatus;
use crate::spu::abi;
use crate::spu::news::RegionCall;
use crate::spu::os::Admission;

/// Most transactions at once, but for apps' calls for regions and what the service itself has begun.
pub const TRANSACTIONS_MAX: usize = 4096;
/// Most calls of one app for regions that are under way.
pub const REGION_CALLS_PER_APP_MAX: u32 = 128;

/// Who is answered.
#[derive(Clone, Copy, Debug)]
pub(super) enum Asker {
    /// A control request.
    Request { token: Key, hre: HreId },
    /// An import of an app: the group of its wait.
    Import { group: Key, app: AppNumber },
    /// Nobody: the service itself began it.
    Service,
}

/// What a transaction does, and how far it is.
pub(super) enum Work {
    /// Its change is all.
    Change,
    /// The device's last save.
    LastSave,
    /// An app is installed or replaced.
    Install(Box<Install>),
    /// An app is removed.
    Removal(Removal),
    /// A namespace is deleted, or resized: its app is told, then the range that is given up, once that is known, is erased. `traps`: those
    /// that the app had when it was told.
    Deletion { app: String, range: Option<(u64, u64)>, traps: u64 },
    /// The marks go that an operation wrote over, which ends then.
    Mending { ticket: Ticket },
    /// A region is given up, and then erased.
    GivingUp,
    /// A region's range is made free.
    Erasure(Erasure),
    /// Rights were taken back: what apps owe by them is waited for.
    Settling(Settling),
    /// An app that is waited for has trapped, and is started anew.
    Revival(Revival),
    /// An app is compiled for a debugger.
    Debug { number: AppNumber, name: String, beginning: debug::Beginning },
    /// An app ends its requests and leaves its state clean, since the device ends.
    Retirement { number: AppNumber, state: Retiring },
}

/// A removal.
pub(super) struct Removal {
    pub number: AppNumber,
    pub name: String,
    pub state: Removing,
}

/// How far a removal is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Removing {
    /// Requests that the app has begun end; new ones of hosts wait.
    Draining,
    /// The metadata without it are being saved.
    Committing,
}

/// How far an app's retirement is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Retiring {
    /// Requests that it has begun end; new ones wait.
    Draining,
    /// It leaves its state clean.
    ShuttingDown,
}

/// One change of the device.
pub(super) struct Transaction {
    pub asker: Asker,
    /// What is saved at its commit.
    pub change: Change,
    pub work: Work,
    /// While it waits for an app (it is in `polled` then): until when.
    pub deadline_ns: u64,
    /// The event whose answers it waits for; `None`: all have come.
    pub watch: Option<u32>,
    /// A status other than 0 that it was answered with.
    pub refusal: Option<u32>,
}

impl Transaction {
    /// The app that it installs, replaces or removes.
    pub fn app_name(&self) -> Option<&str> {
        match &self.work {
            Work::Install(install) => install.name.as_deref(),
            Work::Removal(removal) => Some(&removal.name),
            Work::Revival(revival) => Some(&revival.name),
            Work::Debug { name, .. } => Some(name),
            _ => None,
        }
    }

    /// Its number.
    pub fn app_number(&self) -> Option<AppNumber> {
        match &self.work {
            Work::Install(install) => install.number,
            Work::Removal(removal) => Some(removal.number),
            Work::Revival(revival) => Some(revival.number),
            Work::Debug { number, .. } => Some(*number),
            _ => None,
        }
    }

    /// The module that it is about to name.
    pub fn module(&self) -> Option<&String> {
        match &self.work {
            Work::Install(install) => install.module.as_ref(),
            _ => None,
        }
    }

    /// True for what waits until media that failed work again.
    pub fn is_stalled(&self) -> bool {
        matches!(&self.work, Work::Erasure(erasure) if erasure.is_stalled())
    }
}

impl Core {
    /// Begins a transaction; `None` where it was refused, which its asker has been told.
    pub(super) fn transact(&mut self, asker: Asker, change: Change, work: Work) -> Option<u32> {
        let shutdown = self.service.shutdown;
        let (is_last, is_full) = match asker {
            // What has begun ends while the device does, and is waited for.
            Asker::Request { .. } if matches!(work, Work::Settling(_)) => (false, false),
            Asker::Request { .. } => (shutdown != Shutdown::No, self.service.transactions.len() >= TRANSACTIONS_MAX),
            // Apps go on until their state is clean.
            Asker::Import { app, .. } => {
                let count = self.service.imports.get(&app).copied().unwrap_or(0);
                (shutdown > Shutdown::Draining, count >= REGION_CALLS_PER_APP_MAX)
            }
            Asker::Service => (false, false),
        };
        if is_last || is_full {
            let (status, error) = (ControlStatus::Busy, abi::ERROR_REFUSED);
            let text =
                if is_last { "the device is shutting down" } else { "too many changes are under way: try again" };
            self.tell(asker, Err(Refusal { status, text: text.to_owned(), error }));
            return None;
        }
        if let Asker::Import { app, .. } = asker {
            *self.service.imports.entry(app).or_default() += 1;
        }
        let key = self.service.key();
        let begins = matches!(
            work,
            Work::Change | Work::LastSave | Work::GivingUp | Work::Mending { .. } | Work::Deletion { .. }
        );
        let transaction = Transaction { asker, change, work, deadline_ns: 0, watch: None, refusal: None };
        self.service.transactions.insert(key, transaction);
        if begins {
            self.commit(key);
        }
        Some(key)
    }

    /// What a transaction has that compiles for a debugger: from now on it starts the app anew.
    pub(super) fn take_debug(&mut self, key: u32) -> Option<Work> {
        let transaction = self.service.transactions.get_mut(&key)?;
        let Work::Debug { number, name, .. } = &transaction.work else { return None };
        let starts = Work::Revival(Revival::new(*number, name.clone()));
        Some(std::mem::replace(&mut transaction.work, starts))
    }

    /// A transaction has ended: its asker is told.
    pub(super) fn finish(&mut self, key: u32, result: Result<u64, Refusal>) {
        self.service.polled.remove(&key);
        let Some(transaction) = self.service.transactions.remove(&key) else { return };
        if let Asker::Import { app, .. } = transaction.asker
            && let Some(count) = self.service.imports.get_mut(&app)
        {
            *count -= 1;
            if *count == 0 {
                self.service.imports.remove(&app);
            }
        }
        self.tell(transaction.asker, result);
    }

    fn tell(&mut self, asker: Asker, result: Result<u64, Refusal>) {
        match asker {
            Asker::Request { token, hre } => {
                let answer = result.map(|result| result as u32).map_err(|refusal| (refusal.status, refusal.text));
                self.answer(token, hre, answer);
            }
            Asker::Import { group, .. } => {
                let result = result.map_or_else(|refusal| i64::from(refusal.error), |result| result as i64);
                self.machine.end_one(group, result, None);
            }
            Asker::Service => {
                if let Err(refusal) = result {
                    tracing::warn!("{}", refusal.text);
                }
            }
        }
    }

    /// Has a transaction wait for answers to `watch`, and looked at in any case.
    pub(super) fn wait_for_app(&mut self, key: u32, watch: Option<u32>, within_ns: u64) {
        let deadline_ns = self.machine.now_ns + within_ns;
        if let Some(transaction) = self.service.transactions.get_mut(&key) {
            (transaction.deadline_ns, transaction.watch, transaction.refusal) = (deadline_ns, watch, None);
            self.service.polled.insert(key);
        }
    }

    /// Sends an event to an app, whose answers a transaction waits for.
    pub(super) fn tell_app(&mut self, key: u32, number: AppNumber, words: &[u32], within_ns: u64) {
        let watch = self.service.key();
        self.wait_for_app(key, Some(watch), within_ns);
        self.send_event(number, words, Some(watch));
    }

    /// A transaction's change is durable and published, or it was refused or could not be saved.
    pub(super) fn committed(&mut self, key: u32, result: Result<Made, Refusal>) {
        let Some(transaction) = self.service.transactions.get(&key) else { return };
        match &transaction.work {
            Work::Change => {
                let change = transaction.change.clone();
                if result.is_ok() {
                    self.change_made(&change, &result);
                }
                let made = result.map(|made| match made {
                    Made::Region(base) => base,
                    Made::Namespace(nsid) => u64::from(nsid),
                    Made::Nothing | Made::GivenUp(_) => 0,
                });
                self.finish(key, made);
            }
            &Work::Mending { ticket } => self.mended(key, ticket, result),
            Work::LastSave => {
                self.service.shutdown = Shutdown::Done;
                self.finish(key, result.map(|_| 0));
            }
            Work::Install(_) => self.install_committed(key, result),
            Work::Removal(removal) => {
                let (number, name) = (removal.number, removal.name.clone());
                self.removal_committed(key, number, &name, result);
            }
            Work::Deletion { app, .. } => {
                let app = app.clone();
                self.deletion_committed(key, &app, result);
            }
            Work::GivingUp => match result {
                Ok(Made::GivenUp(ranges)) if !ranges.is_empty() => {
                    let range = ranges[0];
                    self.begin_erasure(key, range);
                }
                result => self.finish(key, result.map(|_| 0)),
            },
            Work::Erasure(_) => self.erasure_committed(key, result),
            Work::Settling(_) => {
                if let Change::GiveUpRegions { app } = &transaction.change {
                    let name = app.clone();
                    self.forfeited(key, &name, result);
                }
            }
            Work::Retirement { .. } | Work::Revival(_) | Work::Debug { .. } => {}
        }
    }

    /// What else follows from a change that is durable.
    fn change_made(&mut self, change: &Change, made: &Result<Made, Refusal>) {
        match (change, made) {
            (Change::Weight { user, weight }, _) => {
                self.machine.bridge.accounts.set_weight(*user, *weight);
            }
            (Change::MakeNamespace(request), Ok(Made::Namespace(nsid))) => {
                if let Some(number) = self.app_number(request.app.as_deref().unwrap_or(request.csi.app())) {
                    self.send_event(number, &[abi::EVENT_NAMESPACE_CREATED, *nsid], None);
                }
            }
            _ => {}
        }
    }

    /// An operation of the store that a transaction has begun has ended, or the fence that it set is passed.
    pub(super) fn step_ended(&mut self, key: u32, result: Result<(), StoreError>) {
        let Some(transaction) = self.service.transactions.get(&key) else { return };
        match &transaction.work {
            Work::Install(_) => self.module_stored(key, result),
            Work::Erasure(_) => self.erasure_step(key, result),
            Work::Settling(_) => self.settled(key, result),
            Work::Revival(_) => self.revived(key),
            _ => debug_assert!(false, "only these have steps of the store"),
        }
    }

    /// Goes on with what waits for an app; true where something was done.
    pub(super) fn poll_transactions(&mut self, now_ns: u64) -> bool {
        let polled: Vec<u32> = self.service.polled.iter().copied().collect();
        let mut busy = false;
        let mut has_made = false;
        for key in polled {
            if self.makes_instances(key) && std::mem::replace(&mut has_made, true) {
                // One instance in a turn, however many apps are to have some.
                busy = true;
                continue;
            }
            busy |= self.poll(key, now_ns);
        }
        busy
    }

    fn poll(&mut self, key: u32, now_ns: u64) -> bool {
        let Some(transaction) = self.service.transactions.get(&key) else {
            return self.service.polled.remove(&key);
        };
        let is_late = now_ns >= transaction.deadline_ns;
        let is_told = transaction.watch.is_none();
        match &transaction.work {
            Work::Install(install) => {
                let (state, number) = (install.state, install.number);
                let refusal = transaction.refusal;
                self.poll_install(key, state, number, (is_told, is_late, refusal))
            }
            Work::Removal(removal) if removal.state == Removing::Draining => {
                let number = removal.number;
                if self.machine.is_at_work(number) && !is_late {
                    return false;
                }
                self.service.polled.remove(&key);
                if let Some(Transaction { work: Work::Removal(removal), .. }) = self.service.transactions.get_mut(&key)
                {
                    removal.state = Removing::Committing;
                }
                self.commit(key);
                true
            }
            Work::Deletion { .. } if is_told || is_late => {
                self.service.polled.remove(&key);
                self.deletion_told(key);
                true
            }
            Work::Settling(settling) => {
                let (settling, refusal) = (*settling, transaction.refusal);
                self.poll_settling(key, settling, (is_told, is_late), refusal)
            }
            Work::Revival(revival) if revival.makes_instances() => {
                self.revive_one(key);
                true
            }
            Work::Retirement { number, state } => {
                let (number, state) = (*number, *state);
                self.poll_retirement(key, number, state, (is_told, is_late))
            }
            _ => false,
        }
    }

    /// An app takes no new requests of hosts from now on; they wait.
    pub(super) fn begin_drain(&mut self, key: u32, number: AppNumber) {
        self.machine.hold_requests(number, Admission::Begun);
        self.wait_for_app(key, None, DRAIN_NS_MAX);
    }

    /// Begins to remove an app.
    pub(super) fn begin_removal(&mut self, asker: Asker, number: AppNumber, name: String) {
        let removal = Removal { number, name: name.clone(), state: Removing::Draining };
        if let Some(key) = self.transact(asker, Change::RemoveApp { name }, Work::Removal(removal)) {
            self.begin_drain(key, number);
        }
    }

    fn removal_committed(&mut self, key: u32, number: AppNumber, name: &str, result: Result<Made, Refusal>) {
        match result {
            Ok(made) => {
                {
                    let machine = &mut *self.machine;
                    machine.hold_requests(number, Admission::Open);
                    machine.end_app(number, "removed", RpcOutcome::AppEnded);
                    machine.end_held(number, RpcOutcome::AppEnded);
                    machine.set_app(number, None);
                    machine.bridge.subscriptions.forget(|app, _| app == number);
                }
                tracing::info!("app {name} is removed");
                self.machine.drop_instances(number);
                self.programs[number as usize] = None;
                if let Made::GivenUp(ranges) = made {
                    self.erase_all(ranges);
                }
                self.finish(key, Ok(0));
            }
            Err(refusal) => {
                self.machine.release_requests(number);
                self.finish(key, Err(refusal));
            }
        }
    }

    fn deletion_committed(&mut self, key: u32, app: &str, result: Result<Made, Refusal>) {
        let range = match result {
            Ok(Made::GivenUp(ranges)) => ranges.first().copied(),
            result => return self.finish(key, result.map(|_| 0)),
        };
        if let Some((base, bank_bytes)) = range {
            self.revoke_region(base, bank_bytes);
        }
        let event = match self.service.transactions.get_mut(&key) {
            Some(Transaction { work: Work::Deletion { range: of, .. }, change, .. }) => {
                *of = range;
                match change {
                    Change::DeleteNamespace { nsid } | Change::FormatNamespace { nsid, .. } => {
                        [abi::EVENT_NAMESPACE_DELETED, *nsid]
                    }
                    Change::ResizeNamespace { nsid, .. } => [abi::EVENT_NAMESPACE_RESIZED, *nsid],
                    // As at a new size: what the app has of before comes over nothing from now on.
                    Change::MarkUncorrectable(request) => [abi::EVENT_NAMESPACE_RESIZED, request.nsid],
                    _ => return,
                }
            }
            _ => return,
        };
        self.tell_of_deletion(key, app, event);
    }

    /// The app of a namespace that was deleted or resized knows, or had its time.
    pub(super) fn deletion_told(&mut self, key: u32) {
        let Some(transaction) = self.service.transactions.get(&key) else { return };
        if let (Change::FormatNamespace { nsid, .. }, Work::Deletion { app, .. }) =
            (&transaction.change, &transaction.work)
            && let Some(number) = self.app_number(app)
        {
            let event = [abi::EVENT_NAMESPACE_CREATED, *nsid];
            self.send_event(number, &event, None);
        }
        let Some(transaction) = self.service.transactions.get(&key) else { return };
        let Work::Deletion { range, .. } = transaction.work else { return };
        match range {
            Some(range) if self.may_still_write(key) => self.keep_for_app(key, range),
            // Blocks were marked.
            None if self.may_still_write(key) || !self.marks_stand(key) => self.marks_in_doubt(key),
            Some(range) => self.begin_erasure(key, range),
            None => self.finish(key, Ok(0)),
        }
    }

    /// Retires all apps, since the device ends, but the one that serves the banks: the others need it to leave their state clean.
    pub(super) fn retire_all(&mut self) {
        let running: Vec<AppNumber> = self.machine.apps().map(|(number, _)| number).collect();
        for number in running {
            if self.machine.ftl() != Some(number) {
                self.retire(number);
            }
        }
    }

    /// Retires an app, where it runs.
    pub(super) fn retire(&mut self, number: AppNumber) {
        let work = Work::Retirement { number, state: Retiring::Draining };
        if self.machine.is_running(number)
            && let Some(key) = self.transact(Asker::Service, Change::Nothing, work)
        {
            self.begin_drain(key, number);
        }
    }

    fn poll_retirement(
        &mut self,
        key: u32,
        number: AppNumber,
        state: Retiring,
        (is_told, is_late): (bool, bool),
    ) -> bool {
        match state {
            Retiring::Draining if !self.machine.is_at_work(number) || is_late => {
                if let Some(Transaction { work: Work::Retirement { state, .. }, .. }) =
                    self.service.transactions.get_mut(&key)
                {
                    *state = Retiring::ShuttingDown;
                }
                self.send_shutdown(key, number);
                true
            }
            Retiring::ShuttingDown if is_told || is_late => {
                self.finish(key, Ok(0));
                true
            }
            _ => false,
        }
    }

    /// Has an app leave its persistent state clean; only what it asks itself reaches it meanwhile.
    pub(super) fn send_shutdown(&mut self, key: u32, number: AppNumber) {
        self.machine.hold_requests(number, Admission::Own);
        self.tell_app(key, number, &[abi::EVENT_SHUTDOWN], DRAIN_NS_MAX);
    }

    /// An app's call that changes the region table.
    pub(super) fn region_call(&mut self, call: RegionCall) {
        let RegionCall { group, app, id, bank_bytes } = call;
        let asker = Asker::Import { group, app };
        let (name, share) = {
            let machine = &*self.machine;
            let state = machine.app_at(app);
            let most = machine.config.user_region_bytes_max;
            let share = state.and_then(|state| state.owner);
            let share = share.map(|owner| (crate::spu::protection::user_app_name(owner, ""), most));
            // An app that is gone has no name that the metadata know.
            (state.map(|state| state.name.clone()).unwrap_or_default(), share)
        };
        match bank_bytes {
            None => self.transact(asker, Change::FreeRegion { app: name, id }, Work::GivingUp),
            Some(bank_bytes) => {
                self.transact(asker, Change::MakeRegion { app: name, id, bank_bytes, share }, Work::Change)
            }
        };
    }
}
