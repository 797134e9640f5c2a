//! `willow agent`: lets processes of this host reach their own files on a device directly.
//!
//! What always holds: a device on a network that is lost is connected to anew, which is as if the agent had been started again: what it had
//! granted is gone with the old connection, and what it had frozen thaws when the device has said so.

use crate::client;
use crate::failure::{Context, Failure, Outcome, fail};
use crate::output;
use crate::target::{Target, TargetOption};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use willow_host::agent::block::BlockDevice;
use willow_host::agent::network::{ENDPOINTS_DEFAULT, ENDPOINTS_PER_USER_DEFAULT, EndpointLimits};
use willow_host::agent::{Agent, AgentConfig, DeviceAddress, give_back_left};

/// Wait between two tries to reach a device that is gone.
const AGAIN: Duration = Duration::from_millis(200);
/// Most endpoints: what a device takes.
const ENDPOINTS_MAX: u32 = 4096;

/// Flags.
#[derive(Debug, clap::Args)]
pub struct AgentOptions {
    #[command(flatten)]
    target: TargetOption,
    /// Unix socket where processes reach the agent
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    /// A block device of this host and the namespace that it is, such as /dev/loop0=1; may be repeated [default, over NVMe/TCP: all
    /// namespaces of the device that the kernel has attached]
    #[arg(long = "block", value_name = "DEVICE=NSID")]
    blocks: Vec<BlockDevice>,
    /// Serves caches of files alone (willow cache), and no files on the device
    #[arg(long, conflicts_with = "blocks")]
    caches_only: bool,
    /// Lets files on xfs be opened directly: only where no user can mount overlayfs (no user namespaces), by which a user could free
    /// blocks that the device still permits
    #[arg(long)]
    allow_xfs: bool,
    /// Where it notes what it keeps from changing, to undo that after a crash [default: the socket's path and .frozen]
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
    /// Gives back what an agent that was killed has left immutable, and ends: without a device. To be used where no agent is started again,
    /// once the device is gone, or has noticed (over NVMe/TCP after 10 s)
    #[arg(long, conflicts_with_all = ["blocks", "allow_xfs"])]
    thaw: bool,
    /// Over NVMe/TCP: most endpoints of all processes at once
    #[arg(long, value_name = "N", default_value_t = ENDPOINTS_DEFAULT)]
    endpoints: u32,
    /// Over NVMe/TCP: most endpoints of one user's processes; root has all
    #[arg(long, value_name = "N", default_value_t = ENDPOINTS_PER_USER_DEFAULT)]
    endpoints_per_user: u32,
    /// Over NVMe/TCP: seconds that it goes on trying to reach a device that has gone; 0: it ends at once
    #[arg(long, default_value_t = 60.0, value_name = "SECONDS")]
    reconnect: f64,
}

/// What a signal stops.
#[derive(Default)]
struct Running {
    agent: Mutex<Option<Arc<Agent>>>,
    stopped: AtomicBool,
}

impl Running {
    fn set(&self, agent: Option<Arc<Agent>>) {
        *self.agent.lock().unwrap_or_else(PoisonError::into_inner) = agent;
        if self.is_stopped() {
            self.stop();
        }
    }

    fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        if let Some(agent) = &*self.agent.lock().unwrap_or_else(PoisonError::into_inner) {
            agent.stop();
        }
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }
}

/// Where the list of frozen files is.
fn state(options: &AgentOptions) -> PathBuf {
    options.state.clone().unwrap_or_else(|| {
        let mut path = options.socket.clone().into_os_string();
        path.push(".frozen");
        path.into()
    })
}

/// Gives back what is left immutable.
fn thaw(options: &AgentOptions) -> Outcome<()> {
    if willow_shm::Channel::connect(&options.socket).is_ok_and(|agent| !willow_shm::socket::is_left(&agent)) {
        fail!("an agent answers at {}: it gives back what it has when it ends (SIGTERM)", options.socket.display());
    }
    let (thawed, left) = give_back_left(state(options)).map_err(Failure::new)?;
    output::line(&format!("thawed {thawed}"))?;
    if left.is_empty() {
        return Ok(());
    }
    let names: Vec<String> = left.iter().map(|path| path.display().to_string()).collect();
    fail!("still immutable, or not there any more: {}; mount their file systems, or use chattr -i", names.join(", "))
}

fn config(options: &AgentOptions) -> Outcome<AgentConfig> {
    let (endpoints_max, per_user_max) = (options.endpoints, options.endpoints_per_user);
    for (flag, value) in [("--endpoints", endpoints_max), ("--endpoints-per-user", per_user_max)] {
        if value == 0 || value > ENDPOINTS_MAX {
            fail!("{flag} is {value}, must be 1 to {ENDPOINTS_MAX}");
        }
    }
    let device = match options.target.resolve()? {
        Target::Socket(path) if options.blocks.is_empty() && !options.caches_only => {
            fail!("a device's socket ({}) does not say which block device it is: --block DEVICE=NSID", path.display())
        }
        Target::Socket(path) => DeviceAddress::Socket(path),
        Target::Address(address) => {
            DeviceAddress::Network(Box::new(client::options(&client::runtime()?, &options.target, address)?))
        }
    };
    let state = state(options);
    let limits = EndpointLimits { endpoints_max, per_user_max };
    let (socket, blocks, allow_xfs) = (options.socket.clone(), options.blocks.clone(), options.allow_xfs);
    Ok(AgentConfig { device, socket, blocks, limits, allow_xfs, state })
}

/// Runs it until SIGTERM or SIGINT.
pub fn run(options: AgentOptions) -> Outcome<()> {
    if !(0.0..=86_400.0).contains(&options.reconnect) {
        fail!("--reconnect is {}, must be 0 to 86400", options.reconnect);
    }
    if options.thaw {
        return thaw(&options);
    }
    let patience = Duration::from_secs_f64(options.reconnect);
    let config = config(&options)?;
    let is_remote = matches!(config.device, DeviceAddress::Network(_));
    let mut signals = Signals::new([SIGTERM, SIGINT]).context(|| "cannot watch for signals".to_owned())?;
    let running = Arc::new(Running::default());
    let stopped = running.clone();
    let wait = move || {
        if signals.forever().next().is_some() {
            stopped.stop();
        }
    };
    let thread = std::thread::Builder::new().name("willow-signals".to_owned()).spawn(wait);
    thread.context(|| "cannot start a thread for signals".to_owned())?;
    let (mut agent, mut listener) = Agent::start(config.clone()).map_err(Failure::new)?;
    output::line(&format!("ready socket={}", options.socket.display()))?;
    loop {
        running.set(Some(agent.clone()));
        let ended = agent.serve(&listener).map_err(Failure::new);
        running.set(None);
        let Err(failure) = ended else { return Ok(()) };
        if !is_remote || patience.is_zero() || running.is_stopped() {
            return Err(failure);
        }
        tracing::warn!("{failure}; trying again");
        // Who asks meanwhile is refused by the kernel, at once.
        drop(listener);
        let begun = Instant::now();
        if !agent.wait_for_threads(|| !running.is_stopped() && begun.elapsed() < patience) {
            return Err(Failure::new(format!(
                "{failure}; the agent ends, since calls of file systems still wait: start it again"
            )));
        }
        drop(agent);
        (agent, listener) = loop {
            match Agent::start(config.clone()) {
                Ok(started) => break started,
                Err(error) if running.is_stopped() || begun.elapsed() >= patience => return Err(Failure::new(error)),
                Err(error) => tracing::debug!("not yet: {error}"),
            }
            std::thread::sleep(AGAIN);
        };
        tracing::warn!("the device is there again");
    }
}
