//! The control service's work: what [`crate::control`] describes. Long work (compiling, saving metadata, zeroing a deleted
//! region, draining an app) is done in steps that other requests run between.
//!
//! Invariants: a change is durable before it is answered; an app is replaced or removed only after its requests have drained
//! (or [`DRAIN_NS_MAX`] has passed: then they are told that it ended); a region's bytes are durably zero before its range is free.

mod protection;
mod requests;

use crate::control::{ControlStatus, NamespaceRequest};
use crate::device::{Continuation, Device, JobDone};
use crate::hre::HreId;
use crate::media::controller::Pending;
use crate::media::store::{Progress, StoreError};
use crate::metadata::{InstalledApp, METADATA_VERSION, Metadata, identity};
use crate::namespace::{CommandSet, Namespace};
use crate::region::RegionError;
use crate::request::AppNumber;
use crate::spu::abi;
use crate::spu::os::{RegionCall, error_of};
use crate::spu::wasm::CompiledModule;
use crate::statistics::{AppStatistics, Statistics};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// How long an app's requests may take to drain, and an app to leave its state clean.
pub const DRAIN_NS_MAX: u64 = 5_000_000_000;
/// Most sentences of failures kept, one an endpoint.
pub const ERROR_TEXTS_MAX: usize = 1024;
/// Most namespaces.
pub const NAMESPACES_MAX: usize = 1024;

type WatchDone = Box<dyn FnOnce(&mut Device)>;
type CompileDone = Box<dyn FnOnce(&mut Device, Result<CompiledModule, String>)>;

/// An app that is being drained.
struct Drain {
    app: AppNumber,
    deadline_ns: u64,
    /// The SHUTDOWN event is out: waiting for its answers.
    watch: Option<u32>,
    then: Option<WatchDone>,
}

/// State of the service.
pub(crate) struct Service {
    pub built_in: BTreeSet<AppNumber>,
    identities: u64,
    next_key: u32,
    watches: BTreeMap<u32, WatchDone>,
    compiles: BTreeMap<u32, CompileDone>,
    drains: Vec<Drain>,
    /// Calls of `save`: those that the save under way covers, and those that came later.
    saving: Option<Vec<Continuation>>,
    save_next: Vec<Continuation>,
    errors: BTreeMap<HreId, String>,
    /// Users whose modules are being compiled.
    compiling: BTreeSet<u32>,
    front: Option<Box<dyn Fn() -> serde_json::Value>>,
    shutdown: Shutdown,
}

#[derive(PartialEq, Eq)]
enum Shutdown {
    No,
    Draining,
    Flushing,
    Done,
}

impl Service {
    pub fn new(identities: u64) -> Self {
        Service {
            built_in: BTreeSet::new(),
            identities,
            next_key: 1,
            watches: BTreeMap::new(),
            compiles: BTreeMap::new(),
            drains: Vec::new(),
            saving: None,
            save_next: Vec::new(),
            errors: BTreeMap::new(),
            compiling: BTreeSet::new(),
            front: None,
            shutdown: Shutdown::No,
        }
    }

    fn key(&mut self) -> u32 {
        self.next_key = self.next_key.wrapping_add(1).max(1);
        self.next_key
    }

    /// True while the app takes no new requests.
    #[inline]
    pub fn is_draining(&self, app: AppNumber) -> bool {
        !self.drains.is_empty() && self.drains.iter().any(|drain| drain.app == app)
    }

    /// The earliest time at which waiting ends.
    pub fn deadline_ns(&self) -> Option<u64> {
        self.drains.iter().map(|drain| drain.deadline_ns).min()
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

impl Device {
    /// What the transports want to add to [`control::STATISTICS`], under the key `transport`.
    pub fn set_front_statistics(&mut self, front: Box<dyn Fn() -> serde_json::Value>) {
        self.service.front = Some(front);
    }

    /// Takes back what came of a job.
    pub fn job_done(&mut self, done: JobDone) {
        let JobDone(key, result) = done;
        if let (Some(then), Ok(compiled)) =
            (self.service.compiles.remove(&key), result.downcast::<Result<CompiledModule, String>>())
        {
            then(self, *compiled);
        }
    }

    /// Begins a clean end: apps leave their state clean, all is flushed. Done when [`Device::is_shut_down`].
    pub fn shutdown(&mut self) {
        if self.service.shutdown != Shutdown::No {
            return;
        }
        self.service.shutdown = Shutdown::Draining;
        let running: Vec<AppNumber> = {
            let machine = self.machine.borrow();
            let apps = machine.apps.iter().enumerate();
            apps.filter(|(_, app)| app.as_ref().is_some_and(|app| app.ended.is_none())).map(|(n, _)| n as u16).collect()
        };
        for app in running {
            if !self.service.is_draining(app) {
                self.drain(app, Box::new(|_| {}));
            }
        }
    }

    /// True after [`Device::shutdown`] has run its course.
    pub fn is_shut_down(&self) -> bool {
        self.service.shutdown == Shutdown::Done
    }

    /// All counters, at this moment.
    pub fn statistics(&self) -> Statistics {
        let machine = self.machine.borrow();
        let apps = machine.apps.iter().enumerate().filter_map(|(number, app)| {
            let app = app.as_ref()?;
            let instances = self.instances.get(number).into_iter().flatten().flatten();
            let regions = machine.regions.all().iter().filter(|region| region.app == app.name);
            Some(AppStatistics {
                number: number as u16,
                name: app.name.clone(),
                counters: app.counters,
                memory_bytes: instances.map(|instance| instance.memory_bytes()).sum(),
                nv_bytes: regions.map(|region| region.bank_bytes).sum::<u64>() * machine.spus.len() as u64,
                messages: app.messages,
                waits: machine.waits.of(number as u16),
                user: app.user_counters.to_vec(),
                ended: app.ended.clone(),
            })
        });
        let apps = apps.collect();
        let (used_bytes, capacity_bytes) = self.capacity();
        Statistics {
            now_ns: machine.now_ns,
            spus: machine.spus.clone(),
            apps,
            accounts: machine.bridge.accounts.statistics(),
            protection: machine.protection_counters(),
            regions: machine.regions.all().to_vec(),
            used_bytes,
            capacity_bytes,
            store_in_flight: machine.media.in_flight() as u64,
            clock: self.punctuality.statistics(),
            model: machine.timing.as_ref().and_then(|timing| timing.statistics(machine.now_ns)),
        }
    }

    /// Steps of the service that do not begin with a request; true where something was done.
    pub(crate) fn serve_control(&mut self, now_ns: u64) -> bool {
        let mut busy = false;
        loop {
            let finished = self.machine.borrow_mut().finished_watches.pop();
            let Some(watch) = finished else { break };
            busy = true;
            if let Some(then) = self.service.watches.remove(&watch) {
                then(self);
            }
            for drain in &mut self.service.drains {
                if drain.watch == Some(watch) {
                    drain.deadline_ns = 0;
                }
            }
        }
        loop {
            let call = self.machine.borrow_mut().region_calls.pop_front();
            let Some(call) = call else { break };
            busy = true;
            self.region_call(call);
        }
        if self.machine.borrow().protection.misses.deadline_ns().is_some_and(|deadline| deadline <= now_ns) {
            busy |= self.machine.borrow_mut().expire_misses(now_ns);
        }
        if !self.service.drains.is_empty() {
            busy |= self.step_drains(now_ns);
        }
        if self.service.shutdown == Shutdown::Draining && self.service.drains.is_empty() {
            self.service.shutdown = Shutdown::Flushing;
            busy = true;
            self.flush_all(Box::new(|device, flushed| {
                if let Err(error) = flushed {
                    tracing::error!("the media could not be flushed at shutdown: {error}");
                }
                device.save(Box::new(|device, _| device.service.shutdown = Shutdown::Done));
            }));
        }
        busy
    }

    fn step_drains(&mut self, now_ns: u64) -> bool {
        let mut busy = false;
        let mut index = 0;
        while index < self.service.drains.len() {
            let (app, deadline_ns, watch) = {
                let drain = &self.service.drains[index];
                (drain.app, drain.deadline_ns, drain.watch)
            };
            if watch.is_none() {
                let machine = self.machine.borrow();
                let tokens = machine.activities.keys();
                let at_work = tokens.iter().filter_map(|token| machine.activities.get(*token));
                let at_work = at_work.filter(|activity| activity.app == app && activity.started).count();
                let alive = machine.apps[app as usize].as_ref().is_some_and(|app| app.ended.is_none());
                drop(machine);
                if at_work == 0 || now_ns >= deadline_ns || !alive {
                    busy = true;
                    let watch = self.service.key();
                    self.service.drains[index].watch = Some(watch);
                    self.service.drains[index].deadline_ns = if alive { now_ns + DRAIN_NS_MAX } else { 0 };
                    if alive {
                        self.send_event(app, &[abi::EVENT_SHUTDOWN], Some(watch));
                    }
                    continue;
                }
            } else if now_ns >= deadline_ns {
                busy = true;
                let mut drain = self.service.drains.swap_remove(index);
                if let Some(then) = drain.then.take() {
                    then(self);
                }
                continue;
            }
            index += 1;
        }
        busy
    }

    /// Drains an app, lets it leave its state clean, then goes on with `then`.
    fn drain(&mut self, app: AppNumber, then: WatchDone) {
        let deadline_ns = self.machine.borrow().now_ns + DRAIN_NS_MAX;
        self.service.drains.push(Drain { app, deadline_ns, watch: None, then: Some(then) });
    }

    /// Saves the metadata as it is now, durably, then goes on.
    fn save(&mut self, then: Continuation) {
        self.service.save_next.push(then);
        if self.service.saving.is_none() {
            self.save_now();
        }
    }

    fn save_now(&mut self) {
        let waiting = std::mem::take(&mut self.service.save_next);
        if waiting.is_empty() {
            return;
        }
        let bytes = self.metadata().encode();
        self.service.saving = Some(waiting);
        let done: Continuation = Box::new(|device, result| {
            for then in device.service.saving.take().unwrap_or_default() {
                then(device, result);
            }
            device.save_now();
        });
        self.store_step(done, |store, ticket| store.save_metadata(ticket, bytes));
    }

    /// Begins an operation of the store and goes on with `then` when it has ended.
    fn store_step(
        &mut self,
        then: Continuation,
        begin: impl FnOnce(&mut dyn crate::Store, crate::Ticket) -> Result<Progress, StoreError>,
    ) {
        let mut machine = self.machine.borrow_mut();
        let ticket = match machine.media.ticket(Pending::Control(then)) {
            Ok(ticket) => ticket,
            Err(Pending::Control(then)) => {
                drop(machine);
                return then(self, Err(StoreError::Failed(rustix::io::Errno::AGAIN.raw_os_error())));
            }
            Err(_) => return,
        };
        let result = match begin(&mut *machine.media.store, ticket) {
            Ok(Progress::WouldBlock) => return,
            Ok(Progress::Done) => Ok(()),
            Err(error) => Err(error),
        };
        let pending = machine.media.take(ticket);
        drop(machine);
        if let Some(Pending::Control(then)) = pending {
            then(self, result);
        }
    }

    fn flush_all(&mut self, then: Continuation) {
        self.store_step(then, |store, ticket| store.flush(ticket, None));
    }

    fn metadata(&self) -> Metadata {
        let machine = self.machine.borrow();
        let apps = machine.apps.iter().enumerate().filter_map(|(number, app)| {
            let number = number as u16;
            let name = app.as_ref()?.name.clone();
            let (built_in, owner) = (self.service.built_in.contains(&number), app.as_ref()?.owner);
            Some(InstalledApp { number, name, built_in, owner })
        });
        Metadata {
            version: METADATA_VERSION,
            uuid: self.uuid(),
            spus: machine.config.spus,
            stripe_bytes: self.stripe_bytes(),
            identities: self.service.identities,
            regions: machine.regions.all().to_vec(),
            namespaces: machine.namespaces.to_vec(),
            apps: apps.collect(),
            intercalls: machine.protection.intercalls.iter().cloned().collect(),
            weights: machine.bridge.accounts.kept_weights(),
        }
    }

    /// Gives a fresh device its namespaces and saves it for the first time.
    pub(crate) fn make_fresh(&mut self) -> Result<(), crate::device::OpenError> {
        let config = self.machine.borrow().config.clone();
        let wanted = [
            (CommandSet::Nvm, config.namespace_bytes, Some(config.block_bytes)),
            (CommandSet::Kv, config.kv_namespace_bytes, None),
        ];
        for (csi, size_bytes, block_bytes) in wanted {
            let app = serving_app(csi);
            if size_bytes > 0 && self.app_number(app).is_some() {
                let request = NamespaceRequest { csi, size_bytes, block_bytes };
                self.add_namespace(&request).map_err(|(_, text)| crate::device::OpenError(text))?;
            }
        }
        let outcome = std::rc::Rc::new(std::cell::Cell::new(None));
        let told = outcome.clone();
        self.save(Box::new(move |_, result| told.set(Some(result))));
        // The only wait of the core for its store: at birth, before anybody is served.
        loop {
            self.run(0);
            match outcome.get() {
                Some(Ok(())) => return Ok(()),
                Some(Err(error)) => {
                    return Err(crate::device::OpenError(format!(
                        "the new device's metadata cannot be saved: {error}"
                    )));
                }
                None => std::thread::yield_now(),
            }
        }
    }

    /// Goes on with deletions that a stop interrupted.
    pub(crate) fn resume_deletions(&mut self) {
        let deleting: Vec<(u64, u64)> = {
            let machine = self.machine.borrow();
            machine.regions.all().iter().filter(|region| region.deleting).map(|r| (r.base, r.bank_bytes)).collect()
        };
        for (base, bank_bytes) in deleting {
            self.zero_region(base, bank_bytes, 0, Box::new(|_, _| {}));
        }
    }

    /// Zeroes a region that is marked as deleted, bank by bank, durably; then forgets it.
    fn zero_region(&mut self, base: u64, bank_bytes: u64, bank: usize, then: Continuation) {
        if bank < self.spus() as usize {
            let next: Continuation = Box::new(move |device, zeroed| match zeroed {
                Ok(()) => device.zero_region(base, bank_bytes, bank + 1, then),
                Err(error) => then(device, Err(error)),
            });
            let progress = self.machine.borrow_mut().media.store.zero(bank, base, bank_bytes);
            return match progress {
                Ok(Progress::Done) => next(self, Ok(())),
                Err(error) => next(self, Err(error)),
                Ok(Progress::WouldBlock) => self.store_step(next, |store, ticket| {
                    store.begin_zero(ticket, bank, base, bank_bytes);
                    Ok(Progress::WouldBlock)
                }),
            };
        }
        self.flush_all(Box::new(move |device, flushed| match flushed {
            Err(error) => then(device, Err(error)),
            Ok(()) => {
                device.machine.borrow_mut().regions.end_delete(base);
                device.save(then);
            }
        }));
    }

    fn region_call(&mut self, call: RegionCall) {
        let RegionCall { group, app, id, bank_bytes } = call;
        let end = move |device: &mut Device, result: i64| device.machine.borrow_mut().end_one(group, result, None);
        let name = self.machine.borrow_mut().app(app).map(|app| app.name.clone());
        let Some(name) = name else { return end(self, abi::ERROR_ENDED.into()) };
        match bank_bytes {
            None => {
                let range = self.machine.borrow_mut().regions.begin_delete(&name, id);
                self.machine.borrow_mut().regions_changed();
                let Some((base, bank_bytes)) = range else { return end(self, abi::ERROR_NOT_FOUND.into()) };
                self.save(Box::new(move |device, saved| match saved {
                    Err(error) => end(device, error_of(error).into()),
                    Ok(()) => device.zero_region(
                        base,
                        bank_bytes,
                        0,
                        Box::new(move |device, zeroed| end(device, zeroed.map_or_else(|e| error_of(e).into(), |()| 0))),
                    ),
                }));
            }
            Some(bytes) => {
                // Another SPU's instance may have asked in between: the region is there then.
                let made = {
                    let machine = &mut *self.machine.borrow_mut();
                    let found = machine.regions.find(&name, id).map(|region| region.base);
                    match found {
                        Some(base) => Ok(base),
                        None if !machine.region_fits_user(app, bytes) => Err(RegionError::Full),
                        None => machine.regions.create(&name, id, bytes, false).map(|region| region.base),
                    }
                };
                self.machine.borrow_mut().regions_changed();
                match made {
                    Err(RegionError::Full) => end(self, abi::ERROR_FULL.into()),
                    Err(RegionError::Size) => end(self, abi::ERROR_ARGUMENT.into()),
                    Ok(base) => self.save(Box::new(move |device, saved| {
                        end(device, saved.map_or_else(|error| error_of(error).into(), |()| base as i64));
                    })),
                }
            }
        }
    }

    /// Enters a namespace and its region into the tables (not yet saved).
    fn add_namespace(&mut self, request: &NamespaceRequest) -> Result<Namespace, (ControlStatus, String)> {
        let block_bytes = match (request.csi, request.block_bytes) {
            (CommandSet::Kv, None) => 1,
            (CommandSet::Nvm, None) => 4096,
            (CommandSet::Nvm, Some(bytes @ (512 | 4096))) => bytes,
            (_, Some(bytes)) => {
                let text = format!("block_bytes {bytes} is not possible: 512 or 4096 for nvm, none for kv");
                return Err((ControlStatus::Malformed, text));
            }
        };
        let mut machine = self.machine.borrow_mut();
        if machine.namespaces.len() >= NAMESPACES_MAX {
            return Err((ControlStatus::NoRoom, format!("there are {NAMESPACES_MAX} namespaces already")));
        }
        if request.size_bytes < 1 << 20 {
            return Err((ControlStatus::Malformed, "a namespace has at least 1 MiB".to_owned()));
        }
        let share = machine.config.bank_share_bytes(request.size_bytes);
        let share = share.ok_or((ControlStatus::Malformed, "the size is too large".to_owned()))?;
        let taken: BTreeSet<u32> = machine.namespaces.iter().map(|namespace| namespace.nsid).collect();
        let deleting: BTreeSet<u32> = machine.regions.all().iter().filter(|r| r.deleting).map(|r| r.id).collect();
        let Some(nsid) = (1..=NAMESPACES_MAX as u32 * 2).find(|nsid| !taken.contains(nsid) && !deleting.contains(nsid))
        else {
            return Err((ControlStatus::NoRoom, "no namespace id is free".to_owned()));
        };
        let shared = request.csi == CommandSet::Nvm;
        let created = machine.regions.create(serving_app(request.csi), nsid, share, shared).cloned();
        let region = match created {
            Ok(region) => region,
            Err(RegionError::Size) => return Err((ControlStatus::Malformed, "the size makes no sense".to_owned())),
            Err(RegionError::Full) => {
                let banks = u64::from(machine.config.spus);
                let left = machine.media.store.bank_bytes().saturating_sub(machine.regions.used_bank_bytes());
                let text = format!(
                    "a namespace of {} bytes does not fit, {} are left in the media",
                    request.size_bytes,
                    left.saturating_mul(banks)
                );
                return Err((ControlStatus::NoRoom, text));
            }
        };
        machine.regions_changed();
        let size_bytes = match request.csi {
            CommandSet::Nvm => request.size_bytes.next_multiple_of(u64::from(block_bytes)),
            CommandSet::Kv => request.size_bytes,
        };
        let nguid =
            identity(u64::from_le_bytes(self.uuid()[..8].try_into().unwrap_or_default()), self.service.identities);
        self.service.identities += 1;
        let namespace = Namespace {
            nsid,
            csi: request.csi,
            size_bytes,
            block_bytes,
            base: region.base,
            bank_bytes: region.bank_bytes,
            nguid,
        };
        let mut namespaces = machine.namespaces.to_vec();
        namespaces.push(namespace.clone());
        namespaces.sort_by_key(|namespace| namespace.nsid);
        machine.namespaces = Arc::new(namespaces);
        Ok(namespace)
    }

    fn remove_namespace_entry(&mut self, nsid: u32) {
        let mut machine = self.machine.borrow_mut();
        let left = machine.namespaces.iter().filter(|namespace| namespace.nsid != nsid).cloned().collect();
        machine.namespaces = Arc::new(left);
    }
}

/// The app that serves a command set.
pub(crate) fn serving_app(csi: CommandSet) -> &'static str {
    match csi {
        CommandSet::Nvm => "base-io",
        CommandSet::Kv => "key-value",
    }
}
