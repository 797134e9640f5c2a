//! The host agent: the trusted part of the host that lets processes reach their own files on the device directly (Willow, 2.2 and
//! 2.6: the driver and Direct-IO's kernel module). A process passes the descriptor of a file that it has opened; the agent
//! installs permissions for the file's extents, as far as the descriptor's access mode goes, and takes them back when the process
//! closes the file or ends.
//!
//! What always holds:
//! - who a process is, and what a descriptor may do, comes from the host's kernel, never from a message;
//! - a permission is installed only while the file is frozen ([`freeze`]): its extents are the file's for as long as it lasts;
//! - a file thaws only after the device has answered the revocation of every permission in it;
//! - what a process changes through the file system is taken back from all that have it, and comes back when they ask again;
//! - files per process and processes are bounded; a message that breaks the rules ends its connection, and so its grants.

pub mod block;
pub mod extents;
pub mod freeze;
pub mod message;
mod serving;

use crate::control::{ControlClient, PermissionInfo};
use crate::hre::{Hre, HreError};
use crate::shm::ShmHre;
use base_io_host::Geometry;
use block::BlockDevice;
use direct_io_host::FileExtent;
use freeze::Frozen;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use willow_shm::socket::{Channel, Listener};

/// Most processes at once.
pub const CONNECTIONS_MAX: usize = 1024;
/// Most files that one process has open by the agent.
pub const FILES_MAX: usize = 1024;
/// Most extents of a file that is opened directly.
pub const EXTENTS_MAX: usize = 65536;

/// What an agent is started with.
#[derive(Clone, Debug)]
pub struct AgentConfig {
    /// Socket of the device.
    pub device: PathBuf,
    /// Where processes reach the agent.
    pub socket: PathBuf,
    /// Block devices of this machine that are block namespaces of the device.
    pub blocks: Vec<BlockDevice>,
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

/// A file that a process has open.
struct OpenFile {
    /// Keeps the file system mounted and the file there.
    descriptor: OwnedFd,
    key: (u64, u64),
    permissions: Vec<PermissionInfo>,
    writable: bool,
}

/// A process that is connected.
struct Connected {
    channel: Arc<Channel>,
    user: u32,
    /// Number in the device, once it is known.
    process: Option<u32>,
    files: BTreeMap<u32, OpenFile>,
    /// Number of its next file: none is used twice, since a file may be released without its knowing.
    next_file: u32,
    /// The file that it changes through the file system now, which nobody opens directly meanwhile.
    changes: Option<(u64, u64)>,
    /// A file of it was taken back, and it has not acknowledged that.
    is_stale: bool,
}

#[derive(Default)]
struct State {
    next: u64,
    connected: BTreeMap<u64, Connected>,
}

/// A running agent.
pub struct Agent {
    config: AgentConfig,
    hre: Arc<ShmHre>,
    control: ControlClient,
    geometries: BTreeMap<u32, Geometry>,
    direct_io: u16,
    frozen: Mutex<Frozen>,
    state: Mutex<State>,
    stop: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A runtime for the waits of one thread.
fn runtime() -> Result<tokio::runtime::Runtime, AgentError> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| AgentError(format!("cannot start the I/O runtime: {error}")))
}

impl Agent {
    /// Attaches to the device, becomes its agent, and thaws what an earlier one left frozen.
    pub fn start(config: AgentConfig) -> Result<(Arc<Agent>, Listener), AgentError> {
        let options = crate::shm::ShmOptions { kind: willow_shm::message::Kind::Kernel, ..Default::default() };
        let hre = Arc::new(ShmHre::open(&config.device, options)?);
        let control = ControlClient::new(hre.clone() as Arc<dyn Hre>);
        let runtime = runtime()?;
        let (spus, stripe_bytes) = runtime.block_on(hre.stripes())?;
        let namespaces = runtime.block_on(control.namespaces())?;
        let mut geometries = BTreeMap::new();
        for block in &config.blocks {
            let found = namespaces.iter().find(|namespace| namespace.nsid == block.nsid);
            let found = found.filter(|namespace| namespace.csi == crate::control::CommandSet::Nvm);
            let Some(namespace) = found else {
                return Err(AgentError(format!(
                    "{} is said to be namespace {}, and the device has no such block namespace",
                    block.path.display(),
                    block.nsid
                )));
            };
            runtime.block_on(block.check(hre.clone(), namespace))?;
            geometries.insert(block.nsid, Geometry { spus, stripe_bytes, base: namespace.base });
        }
        let direct_io = runtime.block_on(control.find_app(direct_io_host::APP_NAME))?;
        runtime.block_on(control.register_agent())?;
        // What an agent before this one granted ends before the files of that thaw.
        for process in runtime.block_on(control.processes())? {
            runtime.block_on(control.revoke_all(process.process))?;
        }
        let frozen = Frozen::open(config.state.clone()).map_err(AgentError)?;
        let listener = Listener::bind(&config.socket, 0o666)
            .map_err(|error| AgentError(format!("cannot listen at {}: {error}", config.socket.display())))?;
        let agent = Agent {
            config,
            hre,
            control,
            geometries,
            direct_io,
            frozen: Mutex::new(frozen),
            state: Mutex::default(),
            stop: AtomicBool::new(false),
        };
        Ok((Arc::new(agent), listener))
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
