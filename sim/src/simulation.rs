//! The driver of the virtual clock: one device, one host, one thread of the machine. It goes from one moment at which something happens
//! to the next, and at each does all that is due: the host's events, the tasks, the device.
//!
//! What always holds:
//! - time never goes back, and goes forward only when nothing more is due;
//! - same preset, workload and seed: same events in the same order at the same nanoseconds, on any machine and beside any number of
//!   other simulations;
//! - where nothing can ever happen any more and somebody waits, the run ends with a list of who waits for what.

mod flash_counts;
mod moments;
mod plan;
mod port;
mod power;
mod saved;

pub(crate) use flash_counts::FlashCounts;
use plan::Plan;
use port::Port;
pub use power::{Cut, CutReport};

use crate::direct::DirectSlot;
use crate::executor::{Ready, Task, TaskWaker};
use crate::flash::{self, Contents, FlashChoice};
use crate::generator::{ChosenSource, Generator, GeneratorOptions, SLOTS_MAX, Slot, Source, Stage};
use crate::hardware;
use crate::host::{HostParameters, Path};
use crate::operation::{KINDS, KvTarget, Operation};
use crate::preset::Preset;
use crate::report::{self, Report};
use crate::thread::{BlockTarget, HostLock, HostThread, Shared, SimulatedQueue};
use crate::trace::Trace;
use crate::world::{Brought, Then, World};
use base_io_host::Geometry;
use key_value_host::Placement;
use std::cell::RefCell;
use std::future::Future;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
use willow_device::media::ram::RamStore;
use willow_device::region::REGION_ALIGNMENT_BYTES;
use willow_device::{
    AppNumber, Arguments, BuiltInApp, CommandSet, Device, DeviceConfig, HostRequest, HreId, Rpc, RpcList, RpcOutcome,
    Store,
};
use willow_host::device_queue::{QueueHre, upcall_of};

/// Simulated time that a device is given to start in, nanoseconds; more where it has more to do.
const SETTLE_NS: u64 = 1_000_000;
/// The user of the process that reaches the device by Direct-IO.
const USER: u32 = 1000;
/// Most rounds at one moment: a simulation that does more never goes on.
const ROUNDS_AT_ONCE_MAX: u64 = 5_000_000;

/// Why a simulation could not be made or did not end well.
#[derive(Debug, thiserror::Error)]
pub enum SimulationError {
    /// The device cannot be made.
    #[error("the simulated device cannot be made: {0}")]
    Device(String),
    /// Nothing can happen any more, and these wait.
    #[error("deadlock at {now_ns} ns of simulated time: {}", waiting.join("; "))]
    Deadlock {
        /// When.
        now_ns: u64,
        /// Who waits for what, a line each.
        waiting: Vec<String>,
    },
    /// Time does not go forward.
    #[error("time stands still at {now_ns} ns: {who} never waits for anything that takes time")]
    Livelock {
        /// When.
        now_ns: u64,
        /// Who was at it last.
        who: String,
    },
    /// A workload is broken.
    #[error("workload {workload}: {what}")]
    Workload {
        /// Which.
        workload: String,
        /// What is wrong.
        what: String,
    },
}

/// What a simulation is made of.
#[derive(Clone)]
pub struct SimulationOptions {
    /// The hardware and the host.
    pub preset: Preset,
    /// Size of the block namespace, bytes; 0: none.
    pub namespace_bytes: u64,
    /// Its logical block size.
    pub block_bytes: u32,
    /// Size of the key-value namespace, bytes; 0: none.
    pub kv_namespace_bytes: u64,
    /// Run the apps as native code instead of in the sandbox: faster to simulate; their processor time is then a constant.
    pub native: bool,
    /// Apps besides those that come with the device.
    pub apps: Vec<&'static willow_apps::BundledApp>,
    /// The FTL, where the preset has flash; `None`: the first that there is.
    pub ftl: Option<String>,
    /// Keep what is written to flash; else it reads as zeroes, and memory goes to headers alone: at most 24 bytes a mapping unit.
    pub contents: bool,
    /// Run under the free clock: the preset's hardware takes no time.
    pub free: bool,
    /// Keeps spans.
    pub trace: Option<Trace>,
    /// Seed of the device and for workloads to derive theirs from.
    pub seed: u64,
    /// Folder where compiled code of apps is kept from one simulation to the next ([`willow_device::KeptModules`]); `None`: nowhere.
    pub kept_modules: Option<PathBuf>,
}

impl SimulationOptions {
    /// Of a preset: a block namespace of 1 GiB in blocks of 512 bytes, apps in the sandbox.
    pub fn new(preset: Preset) -> Self {
        SimulationOptions {
            preset,
            namespace_bytes: 1 << 30,
            block_bytes: 512,
            kv_namespace_bytes: 0,
            native: false,
            apps: Vec::new(),
            ftl: None,
            contents: true,
            free: false,
            trace: None,
            seed: 1,
            kept_modules: None,
        }
    }
}

/// What a task returned, once the simulation has run.
pub struct Output<T>(Rc<RefCell<Option<T>>>);

impl<T> Output<T> {
    /// Takes it; `None` before the task has ended.
    pub fn take(&self) -> Option<T> {
        self.0.borrow_mut().take()
    }
}

/// Whose a request in the device is.
#[derive(Clone, Copy)]
pub(crate) enum Owner {
    Free(u32),
    Wait(u32),
    Slot(u32, u32),
    /// A command of the SATA port.
    Command(u32),
}

/// A device and a host in simulated time.
pub struct Simulation {
    world: Shared,
    pub(crate) device: Device,
    /// When the device wants to run next.
    pub(crate) device_ns: Option<u64>,
    /// True where the device has a model of time.
    timed: bool,
    options: SimulationOptions,
    pub(crate) parameters: Arc<HostParameters>,
    ready: Arc<Ready>,
    pub(crate) tasks: Vec<Option<Task>>,
    tasks_left: usize,
    pub(crate) generators: Vec<Generator>,
    pub(crate) generators_left: usize,
    owners: Vec<Owner>,
    free_owner: u32,
    pub(crate) upcalls: Vec<(HreId, u32)>,
    pub(crate) block: Option<BlockTarget>,
    pub(crate) kv: Option<KvTarget>,
    /// The user's process whose endpoints Direct-IO is called by.
    process: Option<u32>,
    file_lock: u32,
    /// The port to the device, where it is SATA.
    pub(crate) port: Option<Box<Port>>,
    pub(crate) run_began_ns: u64,
    pub(crate) broken: Option<SimulationError>,
    /// Under the free clock: the device has something to do that nobody has submitted.
    woken: Arc<AtomicBool>,
    ftl_name: Option<&'static str>,
    /// The FTL, and an endpoint to ask it by.
    ftl: Option<(AppNumber, HreId)>,
}

const NO_OWNER: u32 = u32::MAX;

impl Simulation {
    /// Makes device and host; what the apps do when they start is over when this returns.
    pub fn new(options: &SimulationOptions) -> Result<Self, SimulationError> {
        let plan = Plan::of(options)?;
        let store = plan.store(options)?;
        Simulation::start(options, plan, store)
    }

    fn start(options: &SimulationOptions, plan: Plan, store: Box<dyn Store>) -> Result<Self, SimulationError> {
        let mut simulation = Simulation::open(options, plan, store)?;
        simulation.settle()?;
        simulation.find_ftl()?;
        simulation.find_targets();
        simulation.open_process();
        Ok(simulation)
    }

    /// Device and host at the moment at which the power comes: nothing has happened yet.
    fn open(options: &SimulationOptions, plan: Plan, store: Box<dyn Store>) -> Result<Self, SimulationError> {
        let Plan { config, flash, bank_bytes } = plan;
        let preset = &options.preset;
        let failed = |error: &dyn std::fmt::Display| SimulationError::Device(error.to_string());
        let ftl = flash.as_ref().and_then(|flash| flash::ftl(&flash.ftl).ok());
        // The FTL first: whatever the others do with their banks waits for it.
        let apps = ftl.into_iter().chain(&willow_apps::BUNDLED_APPS).chain(options.apps.iter().copied()).map(|app| {
            match options.native {
                true => BuiltInApp::Native((app.native)()),
                false => BuiltInApp::Wasm(app.wasm),
            }
        });
        let timing = hardware::timing(options, &config, bank_bytes).map_err(SimulationError::Device)?;
        let timed = timing.is_some();
        let mut device = Device::open(config, store, timing, apps.collect()).map_err(|error| failed(&error))?;
        let woken = Arc::new(AtomicBool::new(false));
        if !timed {
            let woken = woken.clone();
            device.set_waker(Arc::new(move || woken.store(true, Ordering::Relaxed)));
        }
        let parameters = Arc::new(preset.host.clone().unwrap_or_else(HostParameters::free));
        let port = match (preset.sata, &preset.model) {
            (Some(sata), Some(model)) => {
                Some(Box::new(Port::new(sata, parameters.merge_bytes_max, model.link.clone())))
            }
            _ => None,
        };
        let mut world = World::new(parameters.processors, options.trace.clone());
        let file_lock = world.lock("file".to_owned(), 1);
        Ok(Simulation {
            world: Shared(Arc::new(Mutex::new(world))),
            device,
            device_ns: Some(0),
            timed,
            options: options.clone(),
            parameters,
            ready: Arc::new(Ready::default()),
            tasks: Vec::new(),
            tasks_left: 0,
            generators: Vec::new(),
            generators_left: 0,
            owners: Vec::new(),
            free_owner: NO_OWNER,
            upcalls: Vec::new(),
            block: None,
            kv: None,
            process: None,
            file_lock,
            port,
            run_began_ns: 0,
            broken: None,
            woken,
            ftl_name: ftl.map(|ftl| ftl.name),
            ftl: None,
        })
    }

    /// An endpoint to ask the FTL by, where there is one.
    fn find_ftl(&mut self) -> Result<(), SimulationError> {
        if let Some(app) = self.ftl_name.and_then(|name| self.device.app_number(name)) {
            self.ftl = Some((app, self.endpoint(None)?));
        }
        Ok(())
    }

    /// Lets the device do all that it has to do by itself: at least [`SETTLE_NS`] pass.
    fn settle(&mut self) -> Result<(), SimulationError> {
        if !self.timed {
            return self.go_on(true, u64::MAX);
        }
        let mut until_ns = self.now_ns() + SETTLE_NS;
        loop {
            self.device_ns = self.device.run_through(until_ns);
            self.run_jobs();
            let Some(next_ns) = self.device_ns else { break };
            until_ns = until_ns.max(next_ns) + SETTLE_NS;
        }
        self.world.lock().advance(until_ns);
        Ok(())
    }

    fn find_targets(&mut self) {
        let spus = self.device.spus();
        for namespace in self.device.namespaces().iter() {
            match namespace.csi {
                CommandSet::Nvm => {
                    self.block = self.device.app_number(&namespace.app).map(|base_io| BlockTarget {
                        geometry: Geometry { spus, stripe_bytes: namespace.stripe_bytes, base: namespace.base },
                        base_io,
                        bytes: namespace.size_bytes,
                        block_bytes: namespace.block_bytes,
                        direct_io: self.device.app_number(direct_io_host::APP_NAME),
                    });
                }
                CommandSet::Kv => {
                    self.kv = self.device.app_number(&namespace.app).map(|key_value| KvTarget {
                        placement: Placement::new(namespace.nguid, spus),
                        key_value,
                        nsid: namespace.nsid,
                    });
                }
            }
        }
    }

    /// A user's process that may read and write the whole block namespace, as if the host's agent had opened a file over all of it.
    fn open_process(&mut self) {
        let Some(block) = self.block else { return };
        self.process = self.device.open_process(USER, 1);
        let (device, Some(process)) = (&mut self.device, self.process) else { return };
        direct_io_host::bank_ranges(&block.geometry, 0, block.bytes, |spu, start, bytes| {
            device.permit(process, spu, (start, bytes), true);
        });
    }

    /// The simulated time, nanoseconds.
    pub fn now_ns(&self) -> u64 {
        self.world.lock().now_ns
    }

    /// Bytes of the block namespace.
    pub fn block_namespace_bytes(&self) -> u64 {
        self.block.map_or(0, |block| block.bytes)
    }

    /// The trace, where one is kept.
    pub fn trace(&self) -> Option<&Trace> {
        self.options.trace.as_ref()
    }

    /// A new lock of the host that `permits` threads hold at once, for tasks to share.
    pub fn host_lock(&mut self, name: &str, permits: u32) -> HostLock {
        HostLock { lock: self.world.lock().lock(name.to_owned(), permits) }
    }

    /// An endpoint of the host's kernel, or of the user's process.
    fn endpoint(&mut self, process: Option<u32>) -> Result<HreId, SimulationError> {
        let none = || SimulationError::Device("it has no endpoint free for another host thread".to_owned());
        self.device.open_hre(process).ok_or_else(none)
    }

    /// A host thread that runs `body`; it begins with [`Simulation::run`]. What it returns is in the [`Output`] afterwards.
    pub fn host_thread<T: 'static, F: Future<Output = T> + 'static>(
        &mut self,
        name: &str,
        body: impl FnOnce(HostThread) -> F,
    ) -> Result<Output<T>, SimulationError> {
        let endpoints = [self.endpoint(None)?, self.endpoint(self.process)?];
        let thread = self.world.lock().thread(name.to_owned());
        let [endpoint, direct] =
            endpoints.map(|hre| Arc::new(QueueHre::new(SimulatedQueue { world: self.world.clone(), hre })));
        let future = body(HostThread {
            world: self.world.clone(),
            thread,
            parameters: self.parameters.clone(),
            block: self.block,
            endpoint,
            direct,
            file_lock: self.file_lock,
        });
        let output = Rc::new(RefCell::new(None));
        let kept = output.clone();
        let task = self.tasks.len() as u32;
        self.tasks.push(Some(Task {
            name: name.to_owned(),
            future: Box::pin(async move {
                let value = future.await;
                *kept.borrow_mut() = Some(value);
            }),
            waker: Waker::from(Arc::new(TaskWaker { task, ready: self.ready.clone() })),
        }));
        self.tasks_left += 1;
        self.ready.push(task);
        Ok(Output(output))
    }

    /// A generator; it begins with [`Simulation::run`].
    pub fn generator(&mut self, options: GeneratorOptions, source: Box<dyn Source>) -> Result<(), SimulationError> {
        let refuse = |what: String| Err(SimulationError::Workload { workload: options.name.clone(), what });
        let count = options.threads.saturating_mul(options.queue_depth);
        if count == 0 || count > SLOTS_MAX {
            return refuse(format!(
                "{} threads with {} operations each are {count} operations under way, expected 1 to {SLOTS_MAX}",
                options.threads, options.queue_depth
            ));
        }
        let mut slots = Vec::with_capacity(count);
        for index in 0..options.threads {
            let hre = self.endpoint(None)?;
            let direct = match options.path {
                Path::User if self.block.is_some_and(|block| block.direct_io.is_some()) => {
                    Some(self.endpoint(self.process)?)
                }
                _ => None,
            };
            let mut world = self.world.lock();
            let thread = world.thread(format!("{} {index}", options.name));
            let file_lock = match options.file_a_thread {
                true => world.lock(format!("file of {} {index}", options.name), 1),
                false => self.file_lock,
            };
            slots.extend((0..options.queue_depth).map(|_| Slot {
                stage: Stage::Idle,
                thread,
                thread_index: index as u32,
                hre,
                direct: direct.map(DirectSlot::new),
                file_lock,
                holds_lock: false,
                operation: Operation::Read { offset: 0, bytes: 0 },
                due_ns: 0,
                sent_ns: 0,
                buffer: Vec::new(),
            }));
        }
        self.generators.push(Generator {
            name: options.name,
            path: options.path,
            source: ChosenSource::new(source),
            active: slots.len(),
            slots,
            threads: options.threads,
            queue_depth: options.queue_depth,
            started: false,
            warm_up_ns: options.warm_up_ns,
            duration_ns: options.duration_ns.unwrap_or(u64::MAX),
            measured: [const { None }; KINDS.len()],
            refused: 0,
        });
        self.generators_left += 1;
        Ok(())
    }

    /// Runs until all threads and generators have ended, and tells what was measured since. May be called again for others.
    pub fn run(&mut self) -> Result<Report, SimulationError> {
        self.run_at_most(None)
    }

    fn run_at_most(&mut self, duration_ns: Option<u64>) -> Result<Report, SimulationError> {
        let flash_before = self.flash_counts()?;
        let began_ns = self.now_ns();
        let stop_ns = duration_ns.map_or(u64::MAX, |duration_ns| began_ns.saturating_add(duration_ns));
        self.run_began_ns = began_ns;
        let before = self.device.model_statistics(began_ns);
        let (_, busy_before) = self.world.lock().processor_time();
        let polled_before = self.world.lock().polled_ns;
        let mut first = Vec::new();
        for (number, generator) in self.generators.iter_mut().enumerate() {
            if !generator.started {
                generator.started = true;
                first.push(number as u32);
                let slots = generator.slots.len() as u32;
                self.world.lock().fired.extend((0..slots).map(|slot| Then::Slot(number as u32, slot)));
            }
        }
        self.go_on(false, stop_ns)?;
        let now_ns = self.now_ns();
        let (processors, busy_ns) = self.world.lock().processor_time();
        let polled_ns = self.world.lock().polled_ns - polled_before;
        let elapsed_ns = now_ns - began_ns;
        let (host, mut energy) =
            report::host_of(&self.parameters, elapsed_ns, processors, busy_ns - busy_before, polled_ns);
        let mut resources = vec![host];
        let mut wear = report::WearReport::default();
        if let (Some(before), Some(after)) = (before, self.device.model_statistics(now_ns)) {
            let (device, device_energy, device_wear) = report::device_of(&before, &after);
            resources.extend(device);
            energy.extend(device_energy);
            wear = device_wear;
        }
        // Nobody can ask the FTL about the middle of its work.
        let flash = match flash_before {
            Some(before) if duration_ns.is_none() => {
                self.flash_counts()?.map(|after| report::flash_of(&before, &after))
            }
            _ => None,
        };
        let workloads = first.iter().flat_map(|number| report::workloads_of(&self.generators[*number as usize]));
        Ok(Report {
            preset: self.options.preset.name.clone(),
            seed: self.options.seed,
            elapsed_ns,
            workloads: workloads.collect(),
            resources,
            energy,
            wear,
            flash,
            power_cut: None,
        })
    }
}
