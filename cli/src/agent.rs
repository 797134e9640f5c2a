//! `willow agent`: lets processes of this machine reach their own files on a device directly.

use crate::failure::{Context, Failure, Outcome};
use crate::output;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::path::PathBuf;
use willow_host::agent::block::BlockDevice;
use willow_host::agent::{Agent, AgentConfig};

/// Flags.
#[derive(Debug, clap::Args)]
pub struct AgentOptions {
    /// The device's socket (willow serve --socket)
    #[arg(long, value_name = "PATH")]
    target: PathBuf,
    /// Unix socket where processes reach the agent
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    /// A block device of this machine and the namespace that it is, such as /dev/loop0=1; may be repeated
    #[arg(long = "block", value_name = "DEVICE=NSID", required = true)]
    blocks: Vec<BlockDevice>,
    /// Where it notes what it keeps from changing, to undo that after a crash [default: the socket's path and .frozen]
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
}

/// Runs it until SIGTERM or SIGINT.
pub fn run(options: AgentOptions) -> Outcome<()> {
    let AgentOptions { target, socket, blocks, state } = options;
    let state = state.unwrap_or_else(|| {
        let mut path = socket.clone().into_os_string();
        path.push(".frozen");
        path.into()
    });
    let (agent, listener) =
        Agent::start(AgentConfig { device: target, socket: socket.clone(), blocks, state }).map_err(Failure::new)?;
    let mut signals = Signals::new([SIGTERM, SIGINT]).context(|| "cannot watch for signals".to_owned())?;
    let stopped = agent.clone();
    let wait = move || {
        if signals.forever().next().is_some() {
            stopped.stop();
        }
    };
    let thread = std::thread::Builder::new().name("willow-signals".to_owned()).spawn(wait);
    thread.context(|| "cannot start a thread for signals".to_owned())?;
    output::line(&format!("ready socket={}", socket.display()))?;
    agent.serve(&listener).map_err(Failure::new)
}
