//! The host agent: the trusted part of the host that lets processes reach their own files on the device directly (Willow, 2.2 and
//! 2.6: the driver and Direct-IO's kernel module). A process passes the descriptor of a file that it has opened; the agent
//! installs permissions for the file's extents, as far as the descriptor's access mode goes, and takes them back when the process
//! closes the file or ends.
//!
//! What always holds:
//! - who a process is, and what a descriptor may do, comes from the host's kernel, never from a message;
//! - a process that reaches the device by a network does so by endpoints that the agent had made for it alone ([`endpoints`]); they, and
//!   its permissions, end with the process or its connection here, whichever is first, and with the agent;
//! - a permission is installed only while the file is immutable ([`freeze`]) and a lease proves that it is open for writing nowhere
//!   ([`lease`]): its extents are the file's for as long as it lasts;
//! - a file thaws only after the device has answered the revocation of every permission in it; until then it is frozen, listed and in
//!   the journal, and the revocation is tried again; where the device refuses that past [`REVOKE_MAX`] the agent ends, and what it permitted does
//!   with it;
//! - what a process changes through the file system is taken back from all that have it, and comes back when they ask again;
//! - places for connections, open files and their extents are bounded, for each user as well ([`admission`], [`shares`]);
//! - files per process and processes are bounded; a message that breaks the rules ends its connection, and so its grants.

mod access;
mod admission;
mod apart;
pub mod append;
pub mod block;
pub mod caching;
mod digits;
mod endpoints;
mod exclusive;
pub mod extents;
#[cfg_attr(not(feature = "testing"), allow(dead_code))]
pub(crate) mod fault;
mod files;
pub mod freeze;
mod freezes;
mod handle;
mod hold;
mod journal;
mod judge;
mod lease;
mod left;
mod mending;
pub mod message;
mod misses;
mod module;
pub mod network;
mod pages;
mod revoking;
mod seldom;
mod serving;
mod shares;
mod thaw;

use crate::control::{CommandSet, ControlClient, ControlStatus, NamespaceInfo, PermissionInfo};
use crate::hre::{Hre, HreError};
use crate::nvme_tcp::Options;
use crate::shm::ShmHre;
use admission::Admission;
use base_io_host::Geometry;
use block::{BlockDevice, Places};
use direct_io_host::FileExtent;
use fault::Faults;
use freezes::{Freezes, Watch};
use hold::{Hold, Holds};
pub use left::give_back_left;
use network::{EndpointLimits, Network};
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use willow_shm::socket::{Channel, Descriptors, Listener};

/// Most processes at once.
pub const CONNECTIONS_MAX: usize = 1024;
/// Most files that one process has open by the agent.
pub const FILES_MAX: usize = 1024;
/// Most files of which it is remembered that a process did not get them.
const CONTENDED_MAX: usize = 64;
/// Most files that a process has released at once: a call has two, where it renames one over another.
const CHANGES_MAX: usize = 2;
/// Most extents of a file that is opened directly.
pub const EXTENTS_MAX: usize = 65536;

/// How long a device may refuse to revoke, or say nothing, before the agent ends: shorter than the kernel waits for a lease to be given up
/// (`/proc/sys/fs/lease-break-time`, 45 s).
pub const REVOKE_MAX: Duration = Duration::from_secs(15);

/// A number that the device gives to no process.
const PROCESS_NONE: u32 = 0;

/// Where the device is.
#[derive(Clone, Debug)]
pub enum DeviceAddress {
    /// On this machine: its socket.
    Socket(PathBuf),
    /// Its NVMe/TCP listener; the options hold the key by which this host acts as kernel there.
    Network(Box<Options>),
}

/// What an agent is started with.
#[derive(Clone, Debug)]
pub struct AgentConfig {
    /// The device.
    pub device: DeviceAddress,
    /// Where processes reach the agent.
    pub socket: PathBuf,
    /// Block devices of this machine that are block namespaces of the device; none, for a device on a network: all that the kernel's
    /// NVMe driver has attached.
    pub blocks: Vec<BlockDevice>,
    /// How many endpoints processes may have on a device on a network.
    pub limits: EndpointLimits,
    /// Files on xfs may be opened directly: only where no user can mount overlayfs (docs/protection.md).
    pub allow_xfs: bool,
    /// Where the agent notes what it has frozen, so that it thaws it after a crash.
    pub state: PathBuf,
}

/// Why an agent cannot start or go on: one sentence.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct AgentError(pub String);

impl From<HreError> for AgentError {
    fn from(error: HreError) -> Self {
        AgentError(error.to_string())
    }
}

/// How far a file is.
#[derive(Clone, Copy)]
enum Stage {
    /// Since then: the process replaces its descriptors.
    Prepared(Instant),
    /// One thread opens or closes it.
    Busy,
    Granted,
    /// It is being closed, and the device has not revoked what it permits. It is tried again. Since then it refuses that; where it works on what is
    /// under way, it does not.
    Revoking(Option<Instant>),
}

/// Why something is not done for a process.
#[derive(Debug)]
enum Refusal {
    /// One sentence.
    Said(String),
    /// The file, by device and inode, is open for writing somewhere.
    OpenForWriting((u64, u64)),
    /// Its file system is being frozen, or is.
    Frozen,
    /// Others are opening or closing it: it is to be asked again.
    Busy,
}

impl From<String> for Refusal {
    fn from(why: String) -> Self {
        Refusal::Said(why)
    }
}

impl From<&str> for Refusal {
    fn from(why: &str) -> Self {
        Refusal::Said(why.to_owned())
    }
}

/// A file that a process has open.
struct OpenFile {
    hold: Arc<Hold>,
    rights: u32,
    /// Namespace, and where in it the file system's device begins.
    place: (u32, u64),
    stage: Stage,
    /// What may be installed in the device.
    permissions: Vec<PermissionInfo>,
    /// What was taken off that list, until the device has answered that it is revoked: never installed again.
    revoking: Vec<PermissionInfo>,
    /// Extents for which it has room.
    extents: usize,
    /// A freeze of its file system waits until the device permits nothing in it any more.
    watch: Arc<Watch>,
}

impl OpenFile {
    /// Takes all that may be installed off the list; what the device is to revoke then.
    fn begin_revoking(&mut self) -> Vec<PermissionInfo> {
        self.revoking.append(&mut self.permissions);
        self.revoking.clone()
    }
}

/// A file that a process has proved to have rights to.
struct Known {
    rights: u32,
    /// While it is open the file's number is no other file's.
    descriptor: Arc<OwnedFd>,
    since: u64,
}

/// A process that is connected.
struct Connected {
    /// Until its thread ends, which drops it last: that may wait for descriptors in its queue.
    channel: Option<Arc<Channel>>,
    user: u32,
    /// Number in the device, once it is known.
    process: Option<u32>,
    /// Endpoints that it was handed tickets for.
    endpoints: u32,
    files: BTreeMap<u32, OpenFile>,
    /// Of all of them.
    extents: usize,
    /// At most [`FILES_MAX`].
    known: BTreeMap<(u64, u64), Known>,
    next_known: u64,
    /// Files that it did not get, since they were open for writing: the latest [`CONTENDED_MAX`].
    contended: VecDeque<(u64, u64)>,
    /// The process has ended, and the device did not take its permissions back yet.
    is_gone: bool,
    /// Number of its next file: none is used twice, since a file may be released without its knowing.
    next_file: u32,
    /// The files that it changes through the file system now, which nobody opens directly meanwhile: at most [`CHANGES_MAX`].
    changes: VecDeque<(u64, u64)>,
    /// A file of it was taken back, and it has not acknowledged that.
    is_stale: bool,
}

#[derive(Default)]
struct State {
    next: u64,
    connected: BTreeMap<u64, Connected>,
}

/// How processes reach the device.
enum Way {
    /// By its socket.
    Memory(PathBuf),
    /// By endpoints that the agent has made for them.
    Network(Network),
}

/// A running agent.
pub struct Agent {
    way: Way,
    places: Places,
    limits: EndpointLimits,
    hre: Arc<dyn Hre>,
    control: ControlClient,
    geometries: BTreeMap<u32, Geometry>,
    /// Bytes of a logical block of each.
    block_bytes: BTreeMap<u32, u32>,
    direct_io: u16,
    holds: Arc<Holds>,
    modules: Vec<Arc<dyn module::Module>>,
    freezes: Freezes,
    admission: Admission,
    allow_xfs: bool,
    /// Most descriptors that files of all processes may take.
    descriptors_max: AtomicUsize,
    /// Most extents of users' files.
    extents_open_max: AtomicUsize,
    state: Mutex<State>,
    /// Whose turn it is to install permissions that are on the list, or to take them off it.
    order: tokio::sync::Mutex<()>,
    faults: Arc<Faults>,
    stop: AtomicBool,
    /// Why it ends by itself.
    failure: Mutex<Option<String>>,
    /// It has left threads behind that still wait.
    has_threads: AtomicBool,
}

/// What files may take of this process' descriptors; the rest is for connections and what opening needs.
fn descriptors_max() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.map_or(usize::MAX, |limit| limit as usize / 2)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What tells a file from all others of its file system, also those that have its number later: its handle, or when it was made. `None` where the
/// file system tells neither.
pub(crate) fn which_file(file: BorrowedFd<'_>) -> Option<String> {
    if let Some(handle) = handle::Handle::of_file(file) {
        return Some(handle.which());
    }
    let (flags, mask) = (rustix::fs::AtFlags::EMPTY_PATH, rustix::fs::StatxFlags::BTIME);
    let told = rustix::fs::statx(file, c"", flags, mask).ok()?;
    let has_it = told.stx_mask & mask.bits() != 0;
    has_it.then(|| format!("{}.{}", told.stx_btime.tv_sec, told.stx_btime.tv_nsec))
}

/// A runtime for the waits of one thread.
fn runtime() -> Result<tokio::runtime::Runtime, AgentError> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| AgentError(format!("cannot start the I/O runtime: {error}")))
}

/// How long an agent that starts waits for the device to notice that the one before it is gone: on a network, longer than the time
/// after which the device takes a silent host for gone.
fn patience(way: &Way) -> Duration {
    match way {
        // The device looks each second for processes that were killed and cannot end.
        Way::Memory(_) => Duration::from_secs(5),
        Way::Network(_) => Duration::from_secs(30),
    }
}

/// Becomes the agent of these namespaces, when the one before it is gone.
async fn register(control: &ControlClient, namespaces: &[u32], patience: Duration) -> Result<(), AgentError> {
    let begun = std::time::Instant::now();
    loop {
        match control.register_agent(namespaces).await {
            Err(HreError::Control { status, .. })
                if status == ControlStatus::Busy as u32 && begun.elapsed() < patience =>
            {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            done => return Ok(done?),
        }
    }
}

fn block_namespace<'a>(all: &'a [NamespaceInfo], block: &BlockDevice) -> Result<&'a NamespaceInfo, AgentError> {
    let found = all.iter().find(|namespace| namespace.nsid == block.nsid && namespace.csi == CommandSet::Nvm);
    let (path, nsid) = (block.path.display(), block.nsid);
    match found {
        Some(namespace) if is_reached_directly(namespace) => Ok(namespace),
        Some(namespace) => {
            let app = &namespace.app;
            let text =
                format!("{path} is namespace {nsid}, which app {app} serves: what is on it is reached by that app");
            Err(AgentError(text))
        }
        None => {
            let text = format!("{path} is said to be namespace {nsid}, and the device has no such block namespace");
            Err(AgentError(text))
        }
    }
}

/// True where what a file's blocks are is what lies in the banks: another app than Base-IO may keep it elsewhere.
fn is_reached_directly(namespace: &NamespaceInfo) -> bool {
    namespace.app == base_io_host::APP_NAME
}

impl Agent {
    /// Attaches to the device, becomes its agent for the namespaces of this host, and thaws what an earlier one left frozen.
    pub fn start(config: AgentConfig) -> Result<(Arc<Agent>, Listener), AgentError> {
        let (hre, way): (Arc<dyn Hre>, Way) = match &config.device {
            DeviceAddress::Socket(path) => {
                let options = crate::shm::ShmOptions { kind: willow_shm::message::Kind::Kernel, ..Default::default() };
                (Arc::new(ShmHre::open(path, options)?), Way::Memory(path.clone()))
            }
            DeviceAddress::Network(options) => {
                let network = Network::connect(options)?;
                (network.hre.clone(), Way::Network(network))
            }
        };
        let control = ControlClient::new(hre.clone());
        let runtime = runtime()?;
        let (spus, _) = runtime.block_on(control.stripes())?;
        let known = runtime.block_on(control.namespaces())?;
        let mut checked = Vec::new();
        for block in &config.blocks {
            checked.push(runtime.block_on(block.check(hre.clone(), block_namespace(&known, block)?))?);
        }
        let places = match &way {
            Way::Network(network) if config.blocks.is_empty() => {
                let known: Vec<_> = known.iter().filter(|it| is_reached_directly(it)).cloned().collect();
                Places::attached(&network.controller.options().subsystem_nqn, &known)?
            }
            _ => Places::named(checked),
        };
        let namespaces = places.namespaces();
        let own: Vec<&NamespaceInfo> = known.iter().filter(|it| namespaces.contains(&it.nsid)).collect();
        let geometry = |it: &&NamespaceInfo| (it.nsid, Geometry { spus, stripe_bytes: it.stripe_bytes, base: it.base });
        let geometries = own.iter().map(geometry).collect();
        let block_bytes = own.iter().map(|it| (it.nsid, it.block_bytes)).collect();
        let direct_io = runtime.block_on(control.find_app(direct_io_host::APP_NAME))?;
        runtime.block_on(register(&control, &namespaces, patience(&way)))?;
        // What an agent before this one granted ends before the files of that thaw.
        let whole = |it: &&NamespaceInfo| {
            let (start, bytes, rights) = (it.base, it.bank_bytes, serving::READ | serving::WRITE);
            (0..spus).map(move |spu| PermissionInfo { spu, start, bytes, rights })
        };
        let everything: Vec<PermissionInfo> = own.iter().flat_map(whole).collect();
        let processes = runtime.block_on(control.processes())?;
        // And one that is nobody's, so that what ended processes had under way is waited for even where no others are left.
        for process in processes.iter().map(|it| it.process).chain([PROCESS_NONE]) {
            runtime.block_on(control.revoke(process, &everything))?;
        }
        lease::ignore_signals();
        let faults = Arc::new(Faults::new());
        let holds = Arc::new(Holds::open(config.state.clone(), faults.clone()).map_err(AgentError)?);
        // Nobody else has the lists of this state by now. Which apps have parts here is chosen by who builds and runs the agent.
        let modules: Vec<Arc<dyn module::Module>> = vec![
            Arc::new(append::Append::open(&config.state).map_err(AgentError)?),
            Arc::new(caching::Caching::default()),
        ];
        let listener = Listener::bind(&config.socket, 0o666, Descriptors::Taken)
            .map_err(|error| AgentError(format!("cannot listen at {}: {error}", config.socket.display())))?;
        let agent = Agent {
            way,
            places,
            limits: config.limits,
            hre,
            control,
            geometries,
            block_bytes,
            direct_io,
            holds,
            modules,
            freezes: Freezes::default(),
            admission: Admission::default(),
            allow_xfs: config.allow_xfs,
            descriptors_max: AtomicUsize::new(descriptors_max()),
            extents_open_max: AtomicUsize::new(shares::EXTENTS_OPEN_MAX),
            state: Mutex::default(),
            order: tokio::sync::Mutex::default(),
            faults,
            stop: AtomicBool::new(false),
            failure: Mutex::default(),
            has_threads: AtomicBool::new(false),
        };
        Ok((Arc::new(agent), listener))
    }

    /// Makes it forget something, for tests that have to notice.
    #[cfg(feature = "testing")]
    pub fn plant(&self, fault: fault::Fault) {
        self.faults.plant(fault);
    }

    /// Takes a planted fault away.
    #[cfg(feature = "testing")]
    pub fn heal(&self, fault: fault::Fault) {
        self.faults.heal(fault);
    }

    /// Ends this process when the agent has come to this many steps of freezing and thawing files.
    #[cfg(feature = "testing")]
    pub fn crash_at(&self, step: u32) {
        self.faults.crash_at(step);
    }

    /// Ends [`Agent::serve`] with an error, and with it all that is permitted.
    fn fail(&self, why: String) {
        tracing::error!("the agent ends: {why}");
        lock(&self.failure).get_or_insert(why);
        self.stop();
    }

    /// Ends [`Agent::serve`] soon; what is granted is taken back.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
    }

    fn stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Checks that a file has no block of the device in part. What is between the file system and the device changes parts of a block by reading
    /// and writing the whole (a loop device with sectors of 512 bytes on a mount), beside direct writes of the rest. The error is a sentence.
    fn check_blocks(&self, nsid: u32, file: BorrowedFd<'_>, extents: &[FileExtent]) -> Result<(), String> {
        let block = u64::from(self.block_bytes.get(&nsid).copied().unwrap_or(u32::MAX));
        let of_system = rustix::fs::fstatvfs(file).map_err(|error| error.to_string())?.f_frsize;
        let is_whole = |bytes: u64| bytes.is_multiple_of(block);
        if is_whole(of_system) && extents.iter().all(|extent| is_whole(extent.namespace_offset)) {
            return Ok(());
        }
        Err(format!(
            "its blocks are not the device's, of {block} bytes: make the file system with blocks of that, at a multiple of it (losetup --sector-size {block})"
        ))
    }

    /// The bank ranges of a file's extents.
    fn permissions(&self, nsid: u32, extents: &[FileExtent], rights: u32) -> Vec<PermissionInfo> {
        let Some(geometry) = self.geometries.get(&nsid) else { return Vec::new() };
        let mut permissions = Vec::new();
        for extent in extents {
            direct_io_host::bank_ranges(geometry, extent.namespace_offset, extent.bytes, |spu, start, bytes| {
                permissions.push(PermissionInfo { spu, start, bytes, rights });
            });
        }
        permissions
    }
}
