//! An agent that forgets something, in the place of a stage's own.

use crate::stage::Stage;
use std::sync::Arc;
use willow_host::agent::network::EndpointLimits;
use willow_host::agent::{Agent, AgentConfig, AgentError, DeviceAddress};
use willow_host::testing::AgentFault;

/// An agent in this process that forgets something; it ends with this.
pub struct Planted {
    /// The agent.
    pub agent: Arc<Agent>,
    faults: Vec<AgentFault>,
    thread: Option<std::thread::JoinHandle<Result<(), AgentError>>>,
}

impl Planted {
    /// In the place of the stage's own.
    pub fn start(stage: &mut Stage, fault: AgentFault) -> Planted {
        Planted::with(stage, &[fault], true, ("", ""))
    }

    /// One that forgets nothing, as it is without flags: files on xfs are refused.
    pub fn strict(stage: &mut Stage) -> Planted {
        Planted::with(stage, &[], false, ("", ""))
    }

    /// One that forgets nothing, and is told of this part of the stage's block device (`p1`, say).
    pub fn named(stage: &mut Stage, part: &str) -> Planted {
        Planted::with(stage, &[], true, (part, ""))
    }

    /// One that forgets several things.
    pub fn forgets(stage: &mut Stage, faults: &[AgentFault]) -> Planted {
        Planted::with(stage, faults, true, ("", ""))
    }

    /// One that forgets nothing, and has its journal in this folder of the stage.
    pub fn listing_in(stage: &mut Stage, folder: &str) -> Planted {
        Planted::with(stage, &[], true, ("", folder))
    }

    /// One that forgets this, and is told of these block devices, all of the stage's device.
    pub fn of_blocks(stage: &mut Stage, blocks: &[&str], fault: AgentFault) -> Planted {
        Planted::begin(stage, blocks, &[fault], true, "")
    }

    fn with(stage: &mut Stage, faults: &[AgentFault], allow_xfs: bool, (part, folder): (&str, &str)) -> Planted {
        let block = format!("{}{part}", stage.block());
        Planted::begin(stage, &[&block], faults, allow_xfs, folder)
    }

    fn begin(stage: &mut Stage, blocks: &[&str], faults: &[AgentFault], allow_xfs: bool, folder: &str) -> Planted {
        if stage.agent.is_some() {
            stage.kill_agent();
        }
        let config = AgentConfig {
            device: DeviceAddress::Socket(stage.path("device").into()),
            socket: stage.path("agent").into(),
            blocks: blocks.iter().map(|block| format!("{block}=1").parse().expect("a block device")).collect(),
            limits: EndpointLimits::default(),
            allow_xfs,
            state: stage.folder.join(folder).join("agent.frozen"),
        };
        let started = (0..10).find_map(|_| Agent::start(config.clone()).ok());
        let (agent, listener) = started.expect("an agent");
        faults.iter().for_each(|fault| agent.plant(*fault));
        let served = agent.clone();
        let thread = std::thread::spawn(move || served.serve(&listener));
        Planted { agent, faults: faults.to_vec(), thread: Some(thread) }
    }

    /// Waits until it has ended by itself, and says why.
    pub fn ended(mut self) -> Option<AgentError> {
        let is_over = || self.thread.as_ref().is_none_or(std::thread::JoinHandle::is_finished);
        crate::stage::within_seconds("the agent ends by itself", is_over);
        self.thread.take().and_then(|thread| thread.join().expect("it does not panic").err())
    }
}

impl Drop for Planted {
    fn drop(&mut self) {
        // What waits for that ends as well.
        self.faults.iter().for_each(|fault| self.agent.heal(*fault));
        self.agent.stop();
        let ended = self.thread.take().map(std::thread::JoinHandle::join);
        if !std::thread::panicking()
            && let Some(ended) = ended
        {
            ended.expect("it does not panic").expect("the agent ended with an error");
        }
    }
}
