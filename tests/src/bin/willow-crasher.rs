//! An agent that ends, as SIGKILL would end it, when it has come to a step of freezing and thawing files: for the tests of what it leaves.
//!
//! `willow-crasher DEVICE SOCKET BLOCK=NSID STATE STEP [flag-first|last-forgotten|at-start|descriptors=N]` prints a line when it answers; at step 0 it never ends; with
//! `flag-first` it makes files immutable before its journal knows of them, with `last-forgotten` append-only before their last page is there; with `at-start` steps count from its start on, so that it may end
//! while it thaws what an agent before it left; with `descriptors` it may have so many.

use willow_host::agent::network::EndpointLimits;
use willow_host::agent::{Agent, AgentConfig, DeviceAddress};
use willow_host::testing::{AgentFault, crash_next_agent_at};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [device, socket, block, state, step, faults @ ..] = &arguments[..] else {
        panic!("DEVICE SOCKET BLOCK=NSID STATE STEP [flag-first|last-forgotten|at-start|descriptors=N]");
    };
    if let Some(count) = faults.iter().find_map(|fault| fault.strip_prefix("descriptors=")) {
        let limit = Some(count.parse().expect("a number"));
        let limit = rustix::process::Rlimit { current: limit, maximum: limit };
        rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).expect("less is always granted");
    }
    let config = AgentConfig {
        device: DeviceAddress::Socket(device.into()),
        socket: socket.into(),
        blocks: vec![block.parse().expect("a block device")],
        limits: EndpointLimits::default(),
        allow_xfs: false,
        state: state.into(),
    };
    let step = step.parse().expect("a number");
    let at_start = faults.iter().any(|fault| fault == "at-start");
    if at_start {
        crash_next_agent_at(step);
    }
    let (agent, listener) = Agent::start(config).expect("an agent");
    if !at_start {
        agent.crash_at(step);
    }
    for (name, fault) in [("flag-first", AgentFault::FlagFirst), ("last-forgotten", AgentFault::LastForgotten)] {
        if faults.iter().any(|planted| planted == name) {
            agent.plant(fault);
        }
    }
    println!("ready");
    agent.serve(&listener).expect("it serves");
}
