//! The control service's work: what [`control`] describes. Each change of the device is a transaction, a value with a state
//! ([`transaction`]): staged, durable, published, answered. Long work (compiling, saving metadata, zeroing a region, draining
//! an app) is done in steps that other requests run between.
//!
//! What always holds:
//! - Saving the metadata is the only commit point ([`commit`]). Before it, nothing that others can see has changed; after it, all
//!   of the change is there, also after a power cut.
//! - A transaction that is refused or fails leaves what there was at work.
//! - A region's range is free again only when whatever began while the region was there has ended and its zeroes are durable.
//! - A module lies under the hash of its content; what no metadata name is removed.

pub(crate) mod change;
mod commit;
pub mod control;
pub(crate) mod core;
mod debug;
mod endpoints;
mod erase;
pub(crate) mod ftl;
mod inspect;
mod install;
mod jobs;
pub mod metadata;
mod profile;
mod protection;
mod requests;
pub mod reservation;
mod revive;
mod room;
mod settle;
pub mod statistics;
mod transaction;
pub(crate) mod uncorrectable;
pub(crate) mod versions;
mod watches;

use self::core::{Core, JobDone};
use crate::hre::HreId;
use crate::media::store::{Progress, StoreError};
use crate::request::AppNumber;
use crate::service::control::ControlStatus;
use crate::service::metadata::Metadata;
use crate::service::statistics::{AppStatistics, Statistics};
use crate::spu::continuation::{Continuation, Pending};
use commit::Commits;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use transaction::{Asker, Transaction, Work};

/// Why a device cannot be opened: one sentence.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct OpenError(pub String);

/// How long an app's requests may take to drain, and an app to leave its state clean.
pub const DRAIN_NS_MAX: u64 = 5_000_000_000;
/// How long a version that takes another's place may take to start.
pub const START_NS_MAX: u64 = 10_000_000_000;
/// Most sentences of failures kept, one an endpoint.
pub const ERROR_TEXTS_MAX: usize = 1024;

/// State of the service.
pub(crate) struct Service {
    commits: Commits,
    transactions: BTreeMap<u32, Transaction>,
    /// Those that wait for an app until a deadline.
    polled: BTreeSet<u32>,
    watches: watches::Watches,
    /// Apps' calls for regions that are under way.
    imports: BTreeMap<AppNumber, u32>,
    next_key: u32,
    /// Steps that may be taken: what ended at once.
    ready: VecDeque<(Continuation, Result<(), StoreError>)>,
    /// Erasures that go on by a piece, one at each turn.
    erasing: VecDeque<u32>,
    /// Blobs that may be in the store.
    blobs: BTreeSet<String>,
    errors: BTreeMap<HreId, String>,
    front: Option<Box<dyn Fn() -> serde_json::Value>>,
    shutdown: Shutdown,
    /// Where an app serves the banks.
    ftl: Option<ftl::Keeper>,
    /// The device's start, while apps are waited for.
    starting: settle::Starting,
    /// The profile of an app that is under way.
    profile: Option<profile::Session>,
    /// Who waits for one.
    profile_line: profile::Line,
    /// Debuggers of apps.
    debuggers: Vec<debug::Session>,
}

/// How far the clean end of the device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Shutdown {
    No,
    /// Transactions that had begun end.
    Settling,
    /// Apps end their requests and leave their state clean.
    Draining,
    /// All media are flushed.
    Flushing,
    /// The app that serves the banks, which all others needed until now, leaves the flash clean.
    Parting,
    /// The metadata are saved.
    Saving,
    Done,
}

impl Service {
    pub fn new(durable: Metadata) -> Self {
        Service {
            commits: Commits::new(durable),
            transactions: BTreeMap::new(),
            polled: BTreeSet::new(),
            watches: watches::Watches::default(),
            imports: BTreeMap::new(),
            next_key: 1,
            ready: VecDeque::new(),
            erasing: VecDeque::new(),
            blobs: BTreeSet::new(),
            errors: BTreeMap::new(),
            front: None,
            shutdown: Shutdown::No,
            ftl: None,
            starting: settle::Starting::default(),
            profile: None,
            profile_line: profile::Line::default(),
            debuggers: Vec::new(),
        }
    }

    fn key(&mut self) -> u32 {
        self.next_key = self.next_key.wrapping_add(1).max(1);
        self.next_key
    }

    /// The earliest time at which waiting ends.
    pub fn deadline_ns(&self) -> Option<u64> {
        let waiting = self.polled.iter().filter_map(|key| self.transactions.get(key));
        let debuggers = self.debuggers.iter().map(debug::Session::deadline_ns).filter(|at_ns| *at_ns != u64::MAX).min();
        let profile = self.profile.as_ref().map(profile::Session::deadline_ns);
        waiting
            .map(|transaction| transaction.deadline_ns)
            .chain(self.starting.deadline_ns())
            .chain(profile)
            .chain(debuggers)
            .min()
    }

    /// An endpoint is gone.
    pub fn forget(&mut self, hre: HreId) {
        self.errors.remove(&hre);
    }
}

/// A control request's end: status and result, and for failures the sentence.
type Answer = Result<u32, (ControlStatus, String)>;

fn refuse(status: ControlStatus, text: impl Into<String>) -> Answer {
    Err((status, text.into()))
}

impl Core {
    /// What the transports want to add to [`crate::service::control::STATISTICS`], under the key `transport`.
    pub fn set_front_statistics(&mut self, front: Box<dyn Fn() -> serde_json::Value>) {
        self.service.front = Some(front);
    }

    /// Takes back what came of a job.
    pub fn job_done(&mut self, done: JobDone) {
        self.jobs.done();
        self.compiled(done.transaction, done.compiled);
        self.proceed_ready();
    }

    /// Begins a clean end: what the service has begun ends, apps leave their state clean, all is flushed. Done when
    /// [`Core::is_shut_down`].
    pub fn shutdown(&mut self) {
        if self.service.shutdown == Shutdown::No {
            self.service.shutdown = Shutdown::Settling;
            self.give_up_compiling();
            self.end_all_debuggers();
        }
    }

    /// True after [`Core::shutdown`] has run its course.
    pub fn is_shut_down(&self) -> bool {
        self.service.shutdown == Shutdown::Done
    }

    /// All counters, at this moment.
    pub fn statistics(&self) -> Statistics {
        let machine = &*self.machine;
        let apps = machine.apps().map(|(number, app)| {
            let regions = machine.published().regions.all().iter().filter(|region| region.app == app.name);
            AppStatistics {
                number,
                name: app.name.clone(),
                counters: app.counters,
                memory_bytes: machine.memory_bytes(number.into()).sum(),
                nv_bytes: regions.map(|region| region.bank_bytes).sum::<u64>() * u64::from(self.spus()),
                messages: machine.messages_of(number),
                waits: machine.waits_of(number),
                user: app.user_counters.to_vec(),
                ended: app.ended.clone(),
                failed: app.failed,
            }
        });
        let apps = apps.collect();
        let (used_bytes, capacity_bytes) = self.capacity();
        Statistics {
            now_ns: machine.now_ns,
            spus: machine.spu_counters(),
            apps,
            accounts: machine.bridge.accounts.statistics(),
            protection: machine.protection_counters(),
            regions: machine.published().regions.all().to_vec(),
            used_bytes,
            capacity_bytes,
            uncorrectable_bytes: machine.media.marks.all().iter().map(|mark| mark.bytes).sum(),
            store_in_flight: machine.media.in_flight() as u64,
            strays: machine.strays(),
            flash: self.flash_statistics(),
            clock: self.punctuality.statistics(),
            model: machine.model().and_then(|timing| timing.statistics(machine.now_ns)),
        }
    }

    /// Steps of the service that do not begin with a request; true where something was done.
    pub(crate) fn serve_control(&mut self, now_ns: u64) -> bool {
        let mut busy = !self.service.ready.is_empty();
        busy |= self.revive_settlers();
        self.serve_profile(now_ns);
        self.serve_debuggers(now_ns);
        while let Some((watch, refusal)) = self.answered_event() {
            busy = true;
            if self.started_or_not(watch, refusal) {
                continue;
            }
            for key in &self.service.polled {
                match self.service.transactions.get_mut(key) {
                    Some(transaction) if transaction.watch == Some(watch) => {
                        (transaction.watch, transaction.refusal) = (None, refusal);
                    }
                    _ => {}
                }
            }
            self.ftl_told(watch, refusal);
        }
        if self.service.ftl.is_some() {
            busy |= self.keep_ftl(now_ns);
        }
        loop {
            let call = self.machine.news.region_call();
            let Some(call) = call else { break };
            busy = true;
            self.region_call(call);
        }
        if self.machine.protection.misses.deadline_ns().is_some_and(|deadline| deadline <= now_ns) {
            busy |= self.machine.expire_misses(now_ns);
        }
        busy |= self.poll_start(now_ns);
        busy |= self.erase_piece();
        self.proceed_ready();
        if !self.service.polled.is_empty() {
            busy |= self.poll_transactions(now_ns);
        }
        if self.service.shutdown != Shutdown::No {
            busy |= self.step_shutdown();
        }
        self.proceed_ready();
        busy
    }

    fn step_shutdown(&mut self) -> bool {
        let at_rest = self.service.transactions.values().all(Transaction::is_stalled);
        match self.service.shutdown {
            Shutdown::Settling if at_rest => {
                self.service.shutdown = Shutdown::Draining;
                self.retire_all();
            }
            Shutdown::Draining if at_rest => {
                self.service.shutdown = Shutdown::Flushing;
                self.store_step(Continuation::Shutdown, |store, ticket| store.flush(ticket, None));
            }
            Shutdown::Parting if at_rest => {
                if let Some(store) = self.machine.media.store.delegating() {
                    store.close();
                }
                self.save_last();
            }
            _ => return false,
        }
        true
    }

    /// All media are flushed, or could not be.
    fn flushed_at_shutdown(&mut self, flushed: Result<(), StoreError>) {
        if let Err(error) = flushed {
            tracing::error!("the media could not be flushed at shutdown: {error}");
        }
        match self.machine.ftl() {
            Some(number) => {
                self.service.shutdown = Shutdown::Parting;
                self.retire(number);
            }
            None => self.save_last(),
        }
    }

    fn save_last(&mut self) {
        self.service.shutdown = Shutdown::Saving;
        self.transact(Asker::Service, change::Change::Nothing, Work::LastSave);
    }

    /// Begins an operation of the store; `then` goes on when it has ended.
    fn store_step(
        &mut self,
        then: Continuation,
        begin: impl FnOnce(&mut dyn crate::Store, crate::Ticket) -> Result<Progress, StoreError>,
    ) {
        let machine = &mut *self.machine;
        let Ok(ticket) = machine.media.ticket(Pending::Control(then)) else {
            return self.service.ready.push_back((then, Err(StoreError::Busy)));
        };
        let result = match begin(&mut *machine.media.store, ticket) {
            Ok(Progress::WouldBlock) => return,
            Ok(Progress::Done) => Ok(()),
            Err(error) => Err(error),
        };
        machine.media.take(ticket);
        self.service.ready.push_back((then, result));
    }

    /// An operation of the store that the service has begun has ended, or a fence is passed.
    pub(crate) fn proceed(&mut self, then: Continuation, result: Result<(), StoreError>) {
        self.service.ready.push_back((then, result));
        self.proceed_ready();
    }

    /// Takes all steps that may be taken.
    #[inline(always)]
    fn proceed_ready(&mut self) {
        if !self.service.ready.is_empty() {
            self.proceed_all();
        }
    }

    fn proceed_all(&mut self) {
        while let Some((then, result)) = self.service.ready.pop_front() {
            match then {
                Continuation::Metadata => self.metadata_saved(result),
                Continuation::Transaction(key) => self.step_ended(key, result),
                Continuation::Answer { token, hre } => self.answer(token, hre, Ok(0)),
                Continuation::Garbage => {
                    if let Err(error) = result {
                        tracing::warn!("a module that no app has any more stays in the media for now: {error}");
                    }
                }
                Continuation::Shutdown => self.flushed_at_shutdown(result),
                Continuation::Mend(ticket) => self.mend(ticket),
            }
        }
    }

    /// Removes modules that neither the metadata nor an installation under way name.
    fn collect_garbage(&mut self) {
        if !self.service.commits.is_settled() {
            return;
        }
        let installed = self.service.commits.durable.apps.iter().filter_map(|app| app.module.as_ref());
        let installing = self.service.transactions.values().filter_map(Transaction::module);
        let named: BTreeSet<&String> = installed.chain(installing).collect();
        let garbage: Vec<String> = self.service.blobs.iter().filter(|name| !named.contains(name)).cloned().collect();
        for name in garbage {
            self.service.blobs.remove(&name);
            self.store_step(Continuation::Garbage, |store, ticket| store.delete_blob(ticket, &name));
        }
    }

    /// At the start: looks at what modules there are, and removes what no app has.
    pub(crate) fn open_blobs(&mut self) -> Result<(), StoreError> {
        let names = self.machine.media.store.list_blobs()?;
        self.service.blobs.extend(names);
        self.collect_garbage();
        Ok(())
    }

    /// True where an app is being installed, replaced or removed.
    fn is_changing(&self, name: &str) -> bool {
        self.service.transactions.values().any(|transaction| transaction.app_name() == Some(name))
    }

    /// Numbers that installations under way have taken.
    pub(crate) fn is_reserved(&self, number: AppNumber) -> bool {
        self.service.transactions.values().any(|transaction| transaction.app_number() == Some(number))
    }
}
