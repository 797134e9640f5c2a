//! The device as its driver sees it, and the run loop: takes what is due, runs the handlers that it is for, collects what
//! came of it.
//!
//! Invariants: handlers run one at a time, to completion, with SPU-OS unborrowed; an app that traps ends on all SPUs, and
//! nothing else does.

mod apps;
mod endpoints;
mod handlers;
mod timed;

use crate::accounts::{AccountLimits, Accounts, DMA_BYTES_A_COST, RUN_COST};
use crate::bridge::{Bridge, Transfer};
use crate::clock::{Endpoint, Timing, Work};
use crate::config::{DeviceConfig, STRIPE_BYTES};
use crate::control::CONTROL_APP;
use crate::event::{Completion, EVENTS_MAX, Event, EventQueue};
use crate::hre::HreId;
use crate::interconnect::users_inbox;
use crate::media::controller::{MediaController, Pending};
use crate::media::store::{Progress, Store, StoreCompletion, StoreError};
use crate::metadata::{METADATA_VERSION, Metadata, identity};
use crate::model::chosen::ChosenModel;
use crate::namespace::Namespace;
use crate::places::Places;
use crate::protection::Protection;
use crate::punctuality::Punctuality;
use crate::region::RegionTable;
use crate::request::{AppNumber, HostCompletion, HostRequest, Rpc, RpcList, RpcOutcome, Upcall};
use crate::service::Service;
use crate::shared::{ReplyTo, SharedWindow};
use crate::slab::Slab;
use crate::spu::meter::Meter;
use crate::spu::module::ModuleLimits;
use crate::spu::os::{
    ACTIVITIES_MAX, Activity, AppState, Caller, Machine, Origin, USERS_WAITS_MAX, WAITS_MAX, error_of,
};
use crate::spu::rest::Line;
use crate::spu::rpc::{MESSAGES_MAX, USERS_MESSAGES_MAX};
use crate::spu::wasm::{CompiledModule, Runtime, WasmInstance, compile};
use crate::spu::{Instance, abi};
use crate::statistics::SpuCounters;
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

pub(crate) use crate::service::Continuation;
pub(crate) use apps::{Program, Version};

/// Work that the driver of the device does outside of it: on a thread of its own, or in place.
pub struct Job(pub(crate) Box<dyn FnOnce() -> JobDone + Send>);
/// What came of a [`Job`]; hand it to [`Device::job_done`].
pub struct JobDone(pub(crate) u32, pub(crate) Box<dyn std::any::Any + Send>);

impl Job {
    /// Does it; may take tens of milliseconds.
    pub fn run(self) -> JobDone {
        (self.0)()
    }
}

/// Most events of one [`Device::run`], and what their handlers may cost (what is under way ends its turn): the driver of the device has
/// its say again soon, and takes in what others have asked for meanwhile.
const EVENTS_A_RUN_MAX: usize = 65536;
const INSTRUCTIONS_A_RUN_MAX: u64 = 200_000_000;
const COST_A_RUN_MAX: u64 = 1 << 18;
/// The same while several accounts have work: who came late waits for no more than this.
const COST_A_SHARED_RUN_MAX: u64 = 1 << 14;
/// How many runs after two accounts have met the device is taken for shared.
const SHARED_RUNS: u32 = 4096;
/// What a request to the control service costs whoever makes it, in instructions.
const CONTROL_COST: u64 = 50_000;

/// An app that comes with the program.
pub enum BuiltInApp {
    /// A module for the sandbox.
    Wasm(&'static [u8]),
    /// The same handlers built natively, trusted: to measure what the sandbox costs.
    Native(&'static dyn willow_sdk::native::NativeApp),
}

/// Why a device cannot be opened: one sentence.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct OpenError(pub String);

/// The device.
pub struct Device {
    pub(crate) machine: Rc<RefCell<Machine>>,
    pub(crate) runtime: Runtime,
    /// By app number, then SPU.
    pub(crate) instances: Vec<Vec<Option<Box<dyn Instance>>>>,
    /// By app number: what its instances are made from.
    pub(crate) programs: Vec<Option<Program>>,
    pub(crate) service: Service,
    pub(crate) jobs: VecDeque<Job>,
    uuid: [u8; 16],
    /// Under a model of time: each SPU's processor.
    processors: Vec<timed::Processor>,
    /// Under the real clock: how late the driver hands completions out.
    pub(crate) punctuality: Punctuality,
    /// Instructions of apps since [`Device::run`] was called, and what all has cost.
    run_instructions: u64,
    run_cost: u64,
    /// Runs until the device is one account's again.
    shared_runs: u32,
}

impl Device {
    /// Opens the device on a store: a fresh one gets the namespaces that `config` asks for. `timing`: `None` for the free
    /// clock. Compiles the installed apps, which takes a while.
    pub fn open(
        config: DeviceConfig,
        mut store: Box<dyn Store>,
        timing: Option<Box<dyn Timing>>,
        built_in: Vec<BuiltInApp>,
    ) -> Result<Device, OpenError> {
        config.validate().map_err(OpenError)?;
        if store.banks() != config.spus as usize {
            return Err(OpenError(format!(
                "the media has {} banks and the device {} SPUs: start it with --spus {}",
                store.banks(),
                config.spus,
                store.banks()
            )));
        }
        let failed = |error: StoreError| OpenError(format!("the media's metadata cannot be read: {error}"));
        let stored = store.load_metadata().map_err(failed)?;
        let metadata = match &stored {
            Some(bytes) => Metadata::decode(bytes).map_err(OpenError)?,
            None => Metadata {
                version: METADATA_VERSION,
                uuid: identity(config.seed, 0),
                spus: config.spus,
                stripe_bytes: STRIPE_BYTES,
                identities: 1,
                regions: vec![],
                namespaces: vec![],
                apps: vec![],
                intercalls: vec![],
                weights: vec![],
                attachments: vec![],
            },
        };
        if metadata.spus != config.spus || metadata.stripe_bytes != STRIPE_BYTES {
            return Err(OpenError(format!(
                "the media was made for {} SPUs and stripes of {} bytes, this device has {} and {STRIPE_BYTES}",
                metadata.spus, metadata.stripe_bytes, config.spus
            )));
        }
        let regions = RegionTable::new(store.bank_bytes(), metadata.regions.clone()).map_err(OpenError)?;
        let spus = config.spus as usize;
        let limits = AccountLimits {
            requests_max: config.requests_per_process_max,
            begun_max: config.handlers_per_process_max,
            spus: config.spus,
        };
        let accounts = Accounts::new(limits, config.kernel_weight, &metadata.weights, &config.user_weights);
        let operator_costs = timing.as_ref().and_then(|timing| timing.operator_costs());
        let machine = Machine {
            now_ns: 0,
            host_now_ns: 0,
            timing: timing.map(ChosenModel::new),
            deferred: Vec::new(),
            work: Work::default(),
            events: EventQueue::default(),
            bridge: Bridge::new(config.requests_per_hre_max, accounts),
            activities: Slab::new(ACTIVITIES_MAX),
            groups: Slab::new(WAITS_MAX),
            waits: Places::new(USERS_WAITS_MAX as u64, config.apps_max),
            drafts: Places::new(USERS_MESSAGES_MAX as u64, config.apps_max),
            messages: Slab::new(MESSAGES_MAX),
            inboxes: (0..spus).map(|_| (0, users_inbox(config.apps_max))).collect(),
            running: crate::accounts::KERNEL,
            run_dma_bytes: 0,
            line: Line::default(),
            meter: Meter::default(),
            upcalls: BTreeMap::new(),
            upcalls_at: BTreeMap::new(),
            next_upcall: 1,
            media: MediaController::new(store),
            regions,
            protection: Protection::new(
                config.spus,
                config.permission_entries,
                metadata.intercalls.iter().cloned().collect(),
            ),
            namespaces: Arc::new(metadata.namespaces.clone()),
            attachments: Arc::new(metadata.attachments.clone()),
            staging: None,
            apps: (0..config.apps_max).map(|_| None).collect(),
            spus: vec![SpuCounters::default(); spus],
            watches: BTreeMap::new(),
            finished_watches: Vec::new(),
            region_calls: VecDeque::new(),
            checksum_value: 0,
            #[cfg(feature = "testing")]
            hole: None,
            config,
        };
        let mut device = Device {
            instances: (0..machine.config.apps_max).map(|_| Vec::new()).collect(),
            programs: (0..machine.config.apps_max).map(|_| None).collect(),
            machine: Rc::new(RefCell::new(machine)),
            runtime: Runtime::new(operator_costs).map_err(OpenError)?,
            uuid: metadata.uuid,
            service: Service::new(metadata),
            jobs: VecDeque::new(),
            processors: (0..spus).map(|_| timed::Processor::default()).collect(),
            punctuality: Punctuality::default(),
            run_instructions: 0,
            run_cost: 0,
            shared_runs: 0,
        };
        device.load_apps(built_in)?;
        device.open_blobs().map_err(|error| OpenError(format!("the media's modules cannot be listed: {error}")))?;
        device.resume_deletions();
        if stored.is_none() {
            device.make_fresh()?;
        }
        Ok(device)
    }

    /// Sends an event of SPU-OS to an app on all SPUs; `watch` counts their answers.
    pub(crate) fn send_event(&mut self, app: AppNumber, words: &[u32], watch: Option<u32>) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let Some(arguments) = crate::Arguments::new(&bytes) else { return };
        let mut machine = self.machine.borrow_mut();
        let (spus, account) = (machine.config.spus, machine.account_of_events(app));
        if let Some(watch) = watch {
            machine.watches.entry(watch).or_default().0 += u32::from(spus);
        }
        for spu in 0..spus {
            let activity = || Activity {
                app,
                spu,
                handler: abi::EVENT_HANDLER,
                started: false,
                placed: false,
                originating: HreId::DEVICE,
                account,
                arguments,
                cursor: 0,
                pending_dmas: 0,
                response: None,
                replied_bytes: 0,
                origin: Origin::Event { watch: watch.unwrap_or(0) },
            };
            if !machine.send(account, activity, Endpoint::Bridge)
                && let Some(watch) = watch
            {
                machine.watched(watch, abi::EVENT_UNDELIVERED);
            }
        }
    }

    /// Takes a request from a queue; the request comes back where the queue's or the device's limit is reached, or where it
    /// makes no sense (no RPC, more payload than buffer).
    #[inline]
    pub fn submit(&mut self, hre: HreId, request: HostRequest) -> Result<(), HostRequest> {
        self.begin(hre, request, ReplyTo::Buffer)
    }

    /// The same with a window of shared memory, where there is one, that the reply goes into instead of into the buffer.
    #[inline]
    pub fn submit_to(
        &mut self,
        hre: HreId,
        request: HostRequest,
        window: Option<SharedWindow>,
    ) -> Result<(), HostRequest> {
        self.begin(hre, request, window.map_or(ReplyTo::Buffer, ReplyTo::Window))
    }

    /// The same for a host that looks at the request's times and outcome alone (a simulated one): the reply is made and counted, but its
    /// bytes go nowhere, and `buffer` need not have room for them.
    #[inline]
    pub fn submit_unread(&mut self, hre: HreId, request: HostRequest) -> Result<(), HostRequest> {
        self.begin(hre, request, ReplyTo::Nowhere)
    }

    #[inline(always)]
    fn begin(&mut self, hre: HreId, request: HostRequest, reply_to: ReplyTo) -> Result<(), HostRequest> {
        let mut machine = self.machine.borrow_mut();
        let count = match &request.rpcs {
            RpcList::One(_) => 1,
            RpcList::Many(rpcs) => rpcs.len(),
        };
        let room = match &reply_to {
            ReplyTo::Buffer => request.buffer.len(),
            ReplyTo::Window(window) => window.bytes(),
            ReplyTo::Nowhere => usize::MAX,
        };
        let fits = request.payload_bytes as usize <= request.buffer.len() && request.reply_bytes as usize <= room;
        if !fits || count == 0 {
            return Err(request);
        }
        let Some(account) = machine.bridge.admits(hre) else { return Err(request) };
        if machine.activities.len() + count > machine.host_activities_max(account) {
            return Err(request);
        }
        if machine.is_timed() && machine.events.held() + count > EVENTS_MAX / 2 {
            return Err(request);
        }
        let (transfer, place) = machine.bridge.begin(hre, account);
        // It is empty: nothing to drop.
        std::mem::forget(place.replace(Transfer {
            hre,
            account,
            tag: request.tag,
            buffer: request.buffer,
            reply_to,
            payload_bytes: request.payload_bytes,
            reply_bytes: request.reply_bytes,
            reply_high: 0,
            rpcs: count as u32,
            outstanding: count as u32,
            outcome: RpcOutcome::Answered { status: 0 },
            result: 0,
        }));
        match request.rpcs {
            RpcList::One(rpc) => send_rpc(&mut machine, (hre, account), transfer, rpc),
            RpcList::Many(rpcs) => {
                rpcs.into_iter().for_each(|rpc| send_rpc(&mut machine, (hre, account), transfer, rpc));
            }
        }
        Ok(())
    }

    /// Tries to take a request back: true where none of its RPCs has begun. Its completion still comes, with
    /// [`RpcOutcome::Aborted`] then.
    pub fn abort(&mut self, hre: HreId, tag: u64) -> bool {
        let mut machine = self.machine.borrow_mut();
        let Some(transfer) = machine.bridge.find(hre, tag) else { return false };
        let of_it = |activity: &Activity| matches!(activity.origin, Origin::Host { transfer: of } if of == transfer);
        let tokens: Vec<u32> = (machine.activities.keys().into_iter())
            .filter(|token| machine.activities.get(*token).is_some_and(of_it))
            .collect();
        // One that is not there any more has been answered, though the answer may be under way yet.
        let rpcs = machine.bridge.transfers.get(transfer).map_or(0, |transfer| transfer.rpcs);
        let begun = |token: &u32| machine.activities.get(*token).is_none_or(|activity| activity.started);
        if tokens.len() != rpcs as usize || tokens.iter().any(begun) {
            return false;
        }
        for token in tokens {
            machine.end_activity(token, RpcOutcome::Aborted, 0);
        }
        true
    }

    /// Does all that can be done at `now_ns`, up to a bound; returns when it wants to be called again, if it knows: at
    /// `now_ns` itself where more is to be done.
    pub fn run(&mut self, now_ns: u64) -> Option<u64> {
        {
            let mut machine = self.machine.borrow_mut();
            if machine.is_timed() {
                drop(machine);
                return self.run_timed(now_ns, false);
            }
            (machine.now_ns, machine.host_now_ns, machine.bridge.now_ns) = (now_ns, now_ns, now_ns);
        }
        self.run_cost = 0;
        self.shared_runs = self.shared_runs.saturating_sub(1);
        let mut events = 0;
        loop {
            self.collect_store();
            while events < EVENTS_A_RUN_MAX
                && self.run_cost < self.cost_max()
                && let Some(event) = {
                    let machine = &mut *self.machine.borrow_mut();
                    if machine.events.turns() {
                        self.shared_runs = SHARED_RUNS;
                        if !machine.bridge.completions.is_empty() {
                            // The other's turn may be long: what is done is handed out first.
                            return Some(now_ns);
                        }
                    }
                    machine.events.pop(now_ns)
                }
            {
                events += 1;
                let before = self.run_cost;
                match event {
                    Event::Deliver { token } if self.is_for_control(token) => {
                        self.charge_unmetered(CONTROL_COST);
                        self.handle_control(token);
                    }
                    Event::Deliver { token } => self.deliver_apart(token),
                    Event::Complete(Completion { of, memory }) => self.complete_apart(&of, memory),
                    _ => unreachable!("only a model of time causes the other events"),
                }
                if self.run_cost == before {
                    self.charge_unmetered(0);
                }
            }
            let more = self.serve_control(now_ns);
            events += usize::from(more);
            if events >= EVENTS_A_RUN_MAX || self.run_cost >= self.cost_max() {
                return Some(now_ns);
            }
            if !more && self.machine.borrow().is_at_rest() {
                break;
            }
        }
        let machine = self.machine.borrow();
        let misses = machine.protection.misses.deadline_ns();
        let deadline = [self.service.deadline_ns(), misses].into_iter().flatten().min();
        match (machine.events.next_ns(), deadline) {
            (Some(event), Some(deadline)) => Some(event.min(deadline)),
            (event, deadline) => event.or(deadline),
        }
    }

    /// What the handlers of one run may cost.
    #[inline]
    fn cost_max(&self) -> u64 {
        if self.shared_runs > 0 { COST_A_SHARED_RUN_MAX } else { COST_A_RUN_MAX }
    }

    #[inline]
    fn is_for_control(&self, token: u32) -> bool {
        self.machine.borrow().activities.get(token).is_some_and(|activity| activity.app == CONTROL_APP)
    }

    fn collect_store(&mut self) {
        loop {
            let mut machine = self.machine.borrow_mut();
            if let Some(then) = machine.media.passed_fence() {
                drop(machine);
                self.proceed(then, Ok(()));
                continue;
            }
            let Some(StoreCompletion { ticket, result }) = machine.media.store.completed() else {
                if machine.line.ready {
                    machine.serve_line();
                }
                return;
            };
            let fenced = machine.media.reaches_fence(ticket);
            let Some(pending) = machine.media.take(ticket) else { continue };
            if let Some(account) = machine.account_of_operation(&pending) {
                machine.operation_ended(account);
            }
            let code = result.as_ref().err().map_or(0, |error| i64::from(error_of(*error)));
            match pending {
                Pending::ToReply { group, token, offset } => {
                    let mut code = code;
                    let machine = &mut *machine;
                    if let Ok(bytes) = &result
                        && let Some(activity) = machine.activities.get_mut(token)
                    {
                        match Machine::reply_range(&mut machine.bridge, activity, offset, bytes.len()) {
                            Some(mut into) => {
                                into.copy_from(bytes);
                                // They were counted when they were asked for.
                                activity.replied_bytes -= bytes.len() as u64;
                            }
                            None => code = i64::from(abi::ERROR_RANGE),
                        }
                    }
                    machine.end_one(group, code, None);
                }
                Pending::ToLocal { group, pointer } => {
                    machine.end_one(group, code, result.ok().map(|bytes| Box::new((pointer, bytes))));
                }
                Pending::ToMessage { handle, offset, .. } => {
                    let result = result.as_deref().map_err(|error| error_of(*error));
                    machine.message_read(handle, offset, result);
                }
                // Somebody waits for what was under way when a permission or a region went: what was read is written only where
                // that is still allowed.
                Pending::ToNv { group, address, .. }
                    if fenced
                        && result.as_ref().is_ok_and(|bytes| !machine.may_still_write(group, address, bytes.len())) =>
                {
                    machine.end_one(group, abi::ERROR_PERMISSION.into(), None);
                }
                Pending::ToNv { group, bank, address } => match result {
                    Ok(bytes) => {
                        let written = match machine.media.store.write(bank, address, &bytes) {
                            Ok(Progress::WouldBlock) => {
                                // It goes on in the place of the read.
                                let account = machine.account_of(Some(group));
                                match machine.media.begin_write(bank, address, bytes, Pending::Group { group }) {
                                    Ok(()) => {
                                        machine.put_operation(account);
                                        continue;
                                    }
                                    Err(error) => i64::from(error_of(error)),
                                }
                            }
                            Ok(Progress::Done) => 0,
                            Err(error) => i64::from(error_of(error)),
                        };
                        machine.end_one(group, written, None);
                    }
                    Err(_) => machine.end_one(group, code, None),
                },
                Pending::Compare { group, token, body_offset } => {
                    let code = result.map_or(code, |bytes| machine.compare_with_body(token, body_offset, &bytes));
                    machine.end_one(group, code, None);
                }
                Pending::Checksum { group, seed } => {
                    let code = result.map_or(code, |bytes| i64::from(crc32c::crc32c_append(seed, &bytes)));
                    machine.end_one(group, code, None);
                }
                Pending::Group { group } => machine.end_one(group, code, None),
                Pending::Control(then) => {
                    drop(machine);
                    self.proceed(then, result.map(|_| ()));
                }
            }
        }
    }

    /// The next completion.
    #[inline]
    pub fn completion(&mut self) -> Option<HostCompletion> {
        self.machine.borrow_mut().bridge.completions.pop_front()
    }

    /// The namespaces, in order of NSID; a new `Arc` each time the table changes.
    pub fn namespaces(&self) -> Arc<Vec<Namespace>> {
        self.machine.borrow().namespaces.clone()
    }

    /// Number of an installed app.
    pub fn app_number(&self, name: &str) -> Option<AppNumber> {
        self.machine.borrow().find_app(name.as_bytes())
    }

    /// Number of SPUs.
    pub fn spus(&self) -> u16 {
        self.machine.borrow().config.spus
    }

    /// Stripe of block namespaces over SPUs.
    pub fn stripe_bytes(&self) -> u32 {
        STRIPE_BYTES
    }

    /// Identity of the device, made with its media.
    pub fn uuid(&self) -> [u8; 16] {
        self.uuid
    }

    /// True where a power cut can lose completed writes that were not flushed (NVMe: VWC).
    pub fn volatile_write_cache(&self) -> bool {
        self.machine.borrow().media.store.volatile_write_cache()
    }

    /// (used, total) bytes of the media; total is `None` where only the disk bounds it.
    pub fn capacity(&self) -> (u64, Option<u64>) {
        let machine = self.machine.borrow();
        let banks = machine.media.store.banks() as u64;
        (machine.regions.used_bank_bytes() * banks, machine.media.store.bank_bytes().checked_mul(banks))
    }

    /// The next job to run outside.
    pub fn job(&mut self) -> Option<Job> {
        self.jobs.pop_front()
    }

    /// To be called from any thread when the store has news: see [`Store::set_waker`].
    pub fn set_waker(&mut self, waker: Arc<dyn Fn() + Send + Sync>) {
        self.machine.borrow_mut().media.store.set_waker(waker);
    }
}

#[inline(always)]
fn send_rpc(machine: &mut Machine, (hre, account): (HreId, u16), transfer: u32, rpc: Rpc) {
    if rpc.spu >= machine.config.spus {
        return machine.bridge.end_rpc(transfer, RpcOutcome::NoSpu, 0);
    }
    if rpc.handler == abi::EVENT_HANDLER {
        return machine.bridge.end_rpc(transfer, RpcOutcome::NoHandler, 0);
    }
    let activity = || Activity {
        app: rpc.app,
        spu: rpc.spu,
        handler: rpc.handler,
        started: false,
        placed: false,
        originating: hre,
        account,
        arguments: rpc.arguments,
        cursor: 0,
        pending_dmas: 0,
        response: None,
        replied_bytes: 0,
        origin: Origin::Host { transfer },
    };
    if !machine.send(account, activity, Endpoint::Host) {
        machine.bridge.end_rpc(transfer, RpcOutcome::Refused, 0);
    }
}
