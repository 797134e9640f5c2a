//! Parts of the agent that apps bring (the papers' kernel modules): what an app needs of the host's trusted side, beside files that are opened
//! directly. `docs/agent-modules.md` says how to write one.
//!
//! What always holds:
//! - a module is part of the agent's program: who runs that, root, has chosen it, and no user adds one. It works with an app that the host's kernel
//!   has installed, never with a user's of the same name;
//! - what a module permits is on its own list while it may be installed ([`Module::permissions`]), and is taken off that before it is revoked
//!   ([`Services::take_off`]): a permission that was missed is never installed again once it is being revoked;
//! - a module is asked by the threads of connections, each for its own process; what may take long is done by [`Module::mend`] and [`Module::end`], in
//!   a thread for that item alone.
//!
//! Who may call it: the agent. Who may be called: all of [`Services`].

use super::fault::Faults;
use super::revoking::{Patience, Unrevoked};
use super::seldom::Seldom;
use super::serving::WATCH;
use super::{Agent, REVOKE_MAX, Refusal, runtime};
use crate::control::PermissionInfo;
use crate::hre::Hre;
use base_io_host::Geometry;
use direct_io_host::FileExtent;
use serde_json::Value;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long [`Module::ended`] is waited for.
const ENDED_MAX: Duration = Duration::from_secs(2);

/// The process that asks, as the host's kernel told of it.
pub(super) struct Caller {
    /// Its connection: no number is used twice.
    pub connection: u64,
    /// Its user.
    pub user: u32,
    /// Process and when it began.
    pub identity: (u64, u64),
}

/// An app's part of the agent.
pub(super) trait Module: Send + Sync {
    /// The app's name, by which processes ask.
    fn name(&self) -> &'static str;

    /// What a process asks for, with descriptors that it sends. They are the module's: it closes them before it answers.
    fn request(
        &self,
        services: &Services<'_>,
        caller: &Caller,
        ask: Value,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Value, Refusal>;

    /// What may be installed for a process of the device's, and for which user. Waits for nobody.
    fn permissions(&self, process: u32) -> Vec<(u32, PermissionInfo)>;

    /// What a connection would lose with its end.
    fn holds(&self, connection: u64) -> usize;

    /// A connection has ended: what its process was permitted ends before this returns, or is due.
    fn gone(&self, services: &Services<'_>, connection: u64);

    /// A file, by device and inode, is to be changed through the file system: it is the file system's own when this returns.
    fn take_back(&self, services: &Services<'_>, file: (u64, u64)) -> Result<(), Refusal>;

    /// What is to be done now, each by [`Module::mend`]. Asked often; waits for nobody.
    fn due(&self) -> Vec<u64>;

    /// Does one thing that was due. An error, one sentence, is logged, and it is due again.
    fn mend(&self, services: &Services<'_>, item: u64) -> Result<(), String>;

    /// What is to be given back now that the agent ends, each by [`Module::end`].
    fn left(&self) -> Vec<u64>;

    /// The agent ends: gives one thing back, as far as that goes.
    fn end(&self, services: &Services<'_>, item: u64);

    /// All that was left is given back, or [`Module::end`] has not returned in time.
    fn ended(&self);
}

/// What a module may use of the agent.
pub(super) struct Services<'a> {
    agent: &'a Agent,
    runtime: &'a tokio::runtime::Runtime,
    patience: Patience,
}

impl<'a> Services<'a> {
    /// For a thread that has this runtime, outside of it.
    pub fn new(agent: &'a Agent, runtime: &'a tokio::runtime::Runtime) -> Self {
        Services { agent, runtime, patience: Patience::UpTo(REVOKE_MAX) }
    }

    /// The same, for a thread for which nobody waits: a revocation is waited for as long as the device works on it.
    pub fn patient(self) -> Self {
        Services { patience: Patience::UntilDone, ..self }
    }

    /// Waits for an answer of the device.
    pub fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    /// The agent's endpoint: the host's kernel, as far as the device can tell.
    pub fn hre(&self) -> Arc<dyn Hre> {
        self.agent.hre.clone()
    }

    /// Number of an app of the host's kernel, and SPUs of the device.
    pub fn app(&self, name: &str) -> Result<(u16, u16), String> {
        let numbers = async { Ok((self.agent.control.find_app(name).await?, self.agent.control.stripes().await?.0)) };
        self.wait(numbers).map_err(|error: crate::HreError| error.to_string())
    }

    /// Namespace of a file system's device, and where in it that begins. The error is a sentence.
    pub fn place(&self, of_file_system: u64) -> Result<(u32, u64), String> {
        self.agent.places.find(of_file_system)
    }

    /// How a namespace lies in the banks.
    pub fn geometry(&self, nsid: u32) -> Result<Geometry, String> {
        self.agent.geometries.get(&nsid).copied().ok_or_else(|| format!("namespace {nsid} is not this agent's"))
    }

    /// Checks that a file with these extents in a namespace has no block of the device in part. The error is a sentence.
    pub fn check_blocks(&self, nsid: u32, file: BorrowedFd<'_>, extents: &[FileExtent]) -> Result<(), String> {
        self.agent.check_blocks(nsid, file, extents)
    }

    /// Number of a process in the device.
    pub fn process(&self, caller: &Caller) -> Result<u32, String> {
        self.wait(self.agent.process(caller.connection, caller.user, caller.identity))
    }

    /// True while a process changes this file through the file system, so that it is left alone.
    pub fn is_changed(&self, file: (u64, u64)) -> bool {
        self.agent.state().connected.values().any(|connected| connected.changes.contains(&file))
    }

    /// Permissions for ranges of a namespace.
    pub fn permissions(&self, nsid: u32, extents: &[FileExtent], rights: u32) -> Vec<PermissionInfo> {
        self.agent.permissions(nsid, extents, rights)
    }

    /// Installs permissions that are on the module's list.
    pub fn grant(&self, who: (u32, u32), permissions: &[PermissionInfo]) -> Result<(), String> {
        self.wait(self.agent.control.grant_to_user(who, permissions)).map_err(|error| error.to_string())
    }

    /// Takes permissions off the module's list: nothing that was missed is installed again meanwhile, or by that list later.
    pub fn take_off<T>(&self, take: impl FnOnce() -> T) -> T {
        let _turn = self.wait(self.agent.order.lock());
        take()
    }

    /// Has the device revoke what was taken off the list: when this returns without an error, nothing of it is under way.
    pub fn revoke(&self, process: u32, permissions: &[PermissionInfo]) -> Result<(), Unrevoked> {
        self.wait(self.agent.revoke(process, permissions, self.patience))
    }

    /// What tests plant.
    pub fn faults(&self) -> &Faults {
        &self.agent.faults
    }

    /// The agent cannot go on: it ends, and what it permitted with it.
    pub fn fail(&self, why: String) {
        self.agent.fail(why);
    }
}

impl Agent {
    /// What a process asks of a module.
    pub(super) fn ask_module(
        &self,
        runtime: &tokio::runtime::Runtime,
        caller: &Caller,
        (name, ask): (&str, Value),
        descriptors: Vec<OwnedFd>,
    ) -> Result<Value, Refusal> {
        let module = self.modules.iter().find(|module| module.name() == name);
        let module = module.ok_or_else(|| format!("the agent has no part of an app {name:?}"))?;
        module.request(&Services::new(self, runtime), caller, ask, descriptors)
    }

    /// A file is to be changed through the file system.
    pub(super) fn take_back_from_modules(
        &self,
        runtime: &tokio::runtime::Runtime,
        file: Option<rustix::fs::Stat>,
    ) -> Result<(), Refusal> {
        let Some(stat) = file else { return Ok(()) };
        let services = Services::new(self, runtime);
        self.modules.iter().try_for_each(|module| module.take_back(&services, (stat.st_dev, stat.st_ino)))
    }

    /// A connection has ended.
    pub(super) fn leave_modules(&self, runtime: &tokio::runtime::Runtime, connection: u64) {
        let services = Services::new(self, runtime);
        self.modules.iter().for_each(|module| module.gone(&services, connection));
    }

    /// Has modules do what is due, each thing in a thread of its own: what waits for a file system delays nothing else.
    pub(super) fn watch_modules(self: &Arc<Self>) {
        let mut mending: Vec<((usize, u64), JoinHandle<()>)> = Vec::new();
        while !self.stopping() {
            std::thread::sleep(WATCH);
            mending.extract_if(.., |(_, thread)| thread.is_finished()).for_each(|(_, thread)| self.look_after(thread));
            for (index, module) in self.modules.iter().enumerate() {
                for item in module.due() {
                    if mending.iter().any(|(what, _)| *what == (index, item)) {
                        continue;
                    }
                    let (agent, module) = (self.clone(), module.clone());
                    let mend = move || agent.mend_module(&*module, item);
                    let thread = std::thread::Builder::new().name("willow-agent-mend".to_owned()).spawn(mend);
                    mending.extend(thread.ok().map(|thread| ((index, item), thread)));
                }
            }
        }
        // Those that wait for a file system are left behind, as connections are.
        let end = Instant::now() + WATCH * 4;
        self.join_until(mending.into_iter().map(|(_, thread)| thread).collect(), end);
    }

    fn mend_module(&self, module: &dyn Module, item: u64) {
        static SAID: Seldom = Seldom::new();
        let done = match runtime() {
            Ok(runtime) => module.mend(&Services::new(self, &runtime).patient(), item),
            Err(error) => Err(error.to_string()),
        };
        if let Err(why) = done
            && SAID.is_due()
        {
            tracing::warn!("{}: {why}", module.name());
        }
    }

    /// Ends modules, until then at most. Each thing that they have is given back in a thread of its own: one that waits for a file system keeps
    /// no other.
    pub(super) fn end_modules(self: &Arc<Self>, end: Instant) {
        let mut ending = Vec::new();
        for module in &self.modules {
            for item in module.left() {
                let (agent, module) = (self.clone(), module.clone());
                let give_back = move || {
                    if let Ok(runtime) = runtime() {
                        module.end(&Services::new(&agent, &runtime), item);
                    }
                };
                ending.extend(std::thread::Builder::new().name("willow-agent-end".to_owned()).spawn(give_back));
            }
        }
        if !self.join_until(ending, end) {
            tracing::error!("what apps' parts of the agent have is left to the next agent: it took too long");
            self.note_threads();
        }
        let agent = self.clone();
        let ended = move || agent.modules.iter().for_each(|module| module.ended());
        let thread = std::thread::Builder::new().name("willow-agent-end".to_owned()).spawn(ended);
        if !self.join_until(thread.into_iter().collect(), Instant::now() + ENDED_MAX) {
            self.note_threads();
        }
    }
}
