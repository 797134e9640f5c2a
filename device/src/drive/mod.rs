//! Drives: who runs SPU-OS and the control service, in which order and when; and the device as its driver sees it.
//!
//! Invariants: handlers run one at a time, to completion; under the free clock ([`free`]) what is due is done in the order in which accounts
//! are to be served, under a model of time ([`modelled`]) at its modelled time.

mod free;
mod modelled;
mod slip;

use crate::config::{DeviceConfig, STRIPE_BYTES};
use crate::hre::HreId;
use crate::media::delegate::{FlashHealth, FlashStatistics};
use crate::media::store::Store;
use crate::model::{ModelStatistics, Timing, TraceSink};
use crate::namespace::Namespace;
use crate::request::{AppNumber, HostCompletion, HostRequest, Upcall};
use crate::service::OpenError;
use crate::service::core::{Core, Job, JobDone};
use crate::service::ftl::FlashState;
use crate::service::metadata::HostTables;
use crate::service::statistics::Statistics;
use crate::service::versions::BuiltInApp;
use crate::shared::{ReplyTo, SharedWindow};
use crate::spu::flash_cut::PowerCut;
use crate::spu::profile::Sampler;
use free::Free;
use modelled::Modelled;
use std::sync::Arc;
use willow_flash_media::{CutOutcome, FileError};

/// Most events of one [`Device::run`]: the driver of the device has its say again soon, and takes in what others have asked for meanwhile.
const EVENTS_A_RUN_MAX: usize = 65536;

/// Who runs it.
enum Driven {
    Free(Free),
    Modelled(Modelled),
}

/// The device.
pub struct Device {
    pub(crate) core: Core,
    drive: Driven,
}

impl Device {
    /// Opens the device on a store: a fresh one gets the namespaces that `config` asks for. `timing`: `None` for the free
    /// clock. Compiles the installed apps, which takes a while.
    pub fn open(
        config: DeviceConfig,
        store: Box<dyn Store>,
        timing: Option<Box<dyn Timing>>,
        built_in: Vec<BuiltInApp>,
    ) -> Result<Device, OpenError> {
        let drive = match timing {
            None => Driven::Free(Free::default()),
            Some(_) => Driven::Modelled(Modelled::new(config.spus)),
        };
        let (core, is_fresh) = Core::open(config, store, timing, built_in)?;
        let mut device = Device { core, drive };
        if is_fresh {
            device.core.make_fresh()?;
            // The only wait of the device for its store: at birth, before anybody is served.
            while device.core.is_saving() {
                device.run(0);
                std::thread::yield_now();
            }
            device.core.made_fresh()?;
        }
        Ok(device)
    }

    /// The power goes at `now_ns`, up to which the device has run: what flash was doing ends in the middle, as `outcome` says of each page and block,
    /// and all that only the device knew is gone. What is left is the store, for another device to be opened on. For flash in memory.
    pub fn cut_power(
        mut self,
        now_ns: u64,
        outcome: &mut dyn FnMut() -> CutOutcome,
    ) -> Result<(Box<dyn Store>, PowerCut), FileError> {
        let now_ns = self.modelled_ns(now_ns);
        let cut = self.core.machine.cut_power(now_ns, outcome)?;
        Ok((self.core.machine.media.store, cut))
    }

    /// Takes a request from a queue; the request comes back where the queue's or the device's limit is reached, or where it
    /// makes no sense (no RPC, more payload than buffer).
    #[inline]
    pub fn submit(&mut self, hre: HreId, request: HostRequest) -> Result<(), HostRequest> {
        self.core.machine.take_in(hre, request, ReplyTo::Buffer)
    }

    /// The same with a window of shared memory, where there is one, that the reply goes into instead of into the buffer.
    #[inline]
    pub fn submit_to(
        &mut self,
        hre: HreId,
        request: HostRequest,
        window: Option<SharedWindow>,
    ) -> Result<(), HostRequest> {
        self.core.machine.take_in(hre, request, window.map_or(ReplyTo::Buffer, ReplyTo::Window))
    }

    /// The same for a host that looks at the request's times and outcome alone (a simulated one): the reply is made and counted, but its
    /// bytes go nowhere, and `buffer` need not have room for them.
    #[inline]
    pub fn submit_unread(&mut self, hre: HreId, request: HostRequest) -> Result<(), HostRequest> {
        self.core.machine.take_in(hre, request, ReplyTo::Nowhere)
    }

    /// Tries to take a request back: true where none of its RPCs has begun. Its completion still comes, with
    /// [`crate::RpcOutcome::Aborted`] then.
    pub fn abort(&mut self, hre: HreId, tag: u64) -> bool {
        self.core.machine.abort(hre, tag)
    }

    /// Does all that can be done at `now_ns`, up to a bound; returns when it wants to be called again, if it knows: at
    /// `now_ns` itself where more is to be done.
    pub fn run(&mut self, now_ns: u64) -> Option<u64> {
        match &mut self.drive {
            Driven::Free(drive) => drive.run(&mut self.core, now_ns),
            Driven::Modelled(drive) => drive.run_with(&mut self.core, now_ns),
        }
    }

    /// For a virtual clock: like [`Device::run`], but modelled time is the driver's, however much there is to do.
    pub fn run_through(&mut self, now_ns: u64) -> Option<u64> {
        match &mut self.drive {
            Driven::Free(drive) => drive.run(&mut self.core, now_ns),
            Driven::Modelled(drive) => drive.run(&mut self.core, now_ns, false),
        }
    }

    /// For a virtual clock: like [`Device::run_through`], but stops as soon as there is a completion or an upcall, whose time may be before
    /// `until_ns`, so that the host can act on it before anything later happens.
    pub fn run_to_completion(&mut self, until_ns: u64) -> Option<u64> {
        match &mut self.drive {
            Driven::Free(drive) => drive.run(&mut self.core, until_ns),
            Driven::Modelled(drive) => drive.run(&mut self.core, until_ns, true),
        }
    }

    /// True where a model of time is there: whoever drives the device then calls [`Device::set_time`] before what it hands in, keeps
    /// wake-up times precisely, and tells of completions that it hands out ([`Device::delivered`]).
    pub fn is_timed(&self) -> bool {
        matches!(self.drive, Driven::Modelled(_))
    }

    /// The clock of whoever drives the device: requests handed in from now on come then. Without a model it has no effect.
    #[inline]
    pub fn set_time(&mut self, now_ns: u64) {
        self.core.machine.host_time_is(self.modelled_ns(now_ns));
    }

    /// What time it is for the model, when it is `now_ns` for the driver.
    #[inline]
    fn modelled_ns(&self, now_ns: u64) -> u64 {
        match &self.drive {
            Driven::Free(_) => now_ns,
            Driven::Modelled(drive) => drive.slip.modelled_ns(now_ns),
        }
    }

    /// For a real clock: a completion that was due at `at_ns` is handed to its host at `now_ns`.
    #[inline]
    pub fn delivered(&mut self, now_ns: u64, at_ns: u64) {
        if let Driven::Modelled(drive) = &self.drive {
            self.core.punctuality.record(now_ns, drive.slip.driver_ns(at_ns));
        }
    }

    /// What the model of time has counted until `now_ns`; `None` under the free clock.
    pub fn model_statistics(&self, now_ns: u64) -> Option<ModelStatistics> {
        self.core.machine.model()?.statistics(self.modelled_ns(now_ns))
    }

    /// What the flash has done and how worn it is, where an FTL serves the banks.
    pub fn flash_statistics(&mut self) -> Option<FlashStatistics> {
        self.core.machine.media.store.delegating().map(|store| store.statistics())
    }

    /// How to ask, while the device runs, for the time that [`Device::run`] is told: the device looks at how long runs of users' apps take. Without it, and under
    /// a model of time, it does not.
    pub fn set_clock(&mut self, clock: Box<dyn Fn() -> u64 + Send>) {
        self.core.machine.set_clock(clock);
    }

    /// Where the model's spans go from now on; without a model there are none.
    pub fn set_trace(&mut self, sink: Option<Box<dyn TraceSink>>) {
        if let Some(timing) = self.core.machine.model_mut() {
            timing.set_trace(sink);
        }
    }

    /// The next completion.
    #[inline]
    pub fn completion(&mut self) -> Option<HostCompletion> {
        self.core.machine.bridge.completions.pop_front()
    }

    /// The namespaces, in order of NSID; a new `Arc` each time the table changes.
    pub fn namespaces(&self) -> Arc<Vec<Namespace>> {
        self.core.namespaces()
    }

    /// Which hosts namespaces are attached to; one that is not listed is open to all hosts. A new `Arc` each time that changes.
    pub fn host_tables(&self) -> Arc<HostTables> {
        self.core.host_tables()
    }

    /// Whether these are the tables of namespaces and of hosts that the device works by.
    #[inline]
    pub fn tables_are(&self, namespaces: &Arc<Vec<Namespace>>, host_tables: &Arc<HostTables>) -> bool {
        self.core.tables_are(namespaces, host_tables)
    }

    /// Number of an installed app.
    pub fn app_number(&self, name: &str) -> Option<AppNumber> {
        self.core.app_number(name)
    }

    /// Number of SPUs.
    pub fn spus(&self) -> u16 {
        self.core.spus()
    }

    /// Stripe of block namespaces over SPUs.
    pub fn stripe_bytes(&self) -> u32 {
        STRIPE_BYTES
    }

    /// Identity of the device, made with its media.
    pub fn uuid(&self) -> [u8; 16] {
        self.core.uuid()
    }

    /// True where a power cut can lose completed writes that were not flushed (NVMe: VWC).
    pub fn volatile_write_cache(&self) -> bool {
        self.core.machine.media.store.volatile_write_cache()
    }

    /// True where the end of the process, or of an FTL, can do so too.
    pub fn forgets(&self) -> bool {
        self.core.machine.media.store.volatile_service()
    }

    /// Why a bank's operations fail, where they do: its FTL does not come up.
    pub fn flash_failed(&self) -> Option<(u16, &str)> {
        self.core.flash_failed()
    }

    /// What hosts should know of the flash, where there is some.
    #[inline]
    pub fn flash_state(&self) -> FlashState {
        self.core.flash_state()
    }

    /// How far through its life the flash is, where an FTL serves the banks.
    pub fn flash_health(&self) -> Option<FlashHealth> {
        self.core.machine.flash_health()
    }

    /// (used, total) bytes of the media; total is `None` where only the disk bounds it.
    pub fn capacity(&self) -> (u64, Option<u64>) {
        self.core.capacity()
    }

    /// All counters, at this moment.
    pub fn statistics(&self) -> Statistics {
        self.core.statistics()
    }

    /// Samples the processor for profiles from now on.
    pub fn set_sampler(&mut self, sampler: Box<dyn Sampler>) {
        self.core.set_sampler(sampler);
    }

    /// What the transports want to add to [`crate::control::STATISTICS`], under the key `transport`.
    pub fn set_front_statistics(&mut self, front: Box<dyn Fn() -> serde_json::Value>) {
        self.core.set_front_statistics(front);
    }

    /// The next job to run outside.
    pub fn job(&mut self) -> Option<Job> {
        self.core.job()
    }

    /// Takes back what came of a job.
    pub fn job_done(&mut self, done: JobDone) {
        self.core.job_done(done);
    }

    /// To be called from any thread when the store has news: see [`Store::set_waker`].
    pub fn set_waker(&mut self, waker: Arc<dyn Fn() + Send + Sync>) {
        self.core.machine.media.store.set_waker(waker);
    }

    /// Begins a clean end: what the service has begun ends, apps leave their state clean, all is flushed. Done when
    /// [`Device::is_shut_down`].
    pub fn shutdown(&mut self) {
        self.core.shutdown();
    }

    /// True after [`Device::shutdown`] has run its course.
    pub fn is_shut_down(&self) -> bool {
        self.core.is_shut_down()
    }
}

/// Endpoints and processes, as their transports see them.
impl Device {
    /// A new queue at the bridge. `process`: `None` for the host kernel (trusted), else a user process' number.
    pub fn open_hre(&mut self, process: Option<u32>) -> Option<HreId> {
        self.core.open_hre(process)
    }

    /// True where an endpoint is open.
    pub fn is_open(&mut self, hre: HreId) -> bool {
        self.core.machine.bridge.is_open(hre)
    }

    /// Ends a queue: what it has in flight is drained and its completions are dropped.
    pub fn close_hre(&mut self, hre: HreId) {
        self.core.close_hre(hre);
    }

    /// From now on the ends of requests whose endpoint was closed meanwhile are kept for [`Device::drained`], so that who made
    /// them knows when their buffers are free. To be fetched after each [`Device::run`].
    pub fn keep_drained(&mut self) {
        self.core.machine.bridge.drained.get_or_insert_default();
    }

    /// The next end of a request whose endpoint was closed before it ended.
    pub fn drained(&mut self) -> Option<HostCompletion> {
        self.core.machine.bridge.drained.as_mut()?.pop_front()
    }

    /// The next upcall for an endpoint.
    pub fn upcall(&mut self, hre: HreId) -> Option<Upcall> {
        self.core.machine.bridge.pop_upcall(hre)
    }

    /// Answers an upcall. False where there is no such upcall waiting for this endpoint.
    pub fn answer_upcall(&mut self, hre: HreId, id: u64, status: u32, result: u32) -> bool {
        self.core.machine.answer_upcall(hre, id, status, result)
    }

    /// A new process of `user`, with a share of `weight` of the processors beside others' (0: the user's); its number, for
    /// [`Device::open_hre`]. It is known until [`Device::close_process`]. `None` where there are too many.
    pub fn open_process(&mut self, user: u32, weight: u16) -> Option<u32> {
        self.core.machine.open_process(user, weight, None)
    }

    /// Lets a process read, and write where `write` says so, bytes of an SPU's bank from `start` on. For who drives the device itself;
    /// the host's agent asks the control service.
    pub fn permit(&mut self, process: u32, spu: u16, (start, bytes): (u64, u64), write: bool) {
        self.core.permit(process, spu, (start, bytes), write);
    }

    /// Says whose a process is that has endpoints: its user, and what tells it from others on its host. For transports that
    /// take it from the host's kernel, never from the process.
    pub fn vouch(&mut self, process: u32, user: u32, identity: (u64, u64)) {
        self.core.vouch(process, user, identity);
    }

    /// Ends a process: its endpoints are closed and its permissions are gone. What it has under way is drained.
    pub fn close_process(&mut self, process: u32) {
        self.core.close_process(process);
    }
}
