//! How a session reaches the device: by its socket, or by endpoints over NVMe/TCP that the agent has made for this process. Which it is
//! says the program, by naming the socket, or the agent.
//!
//! What always holds:
//! - a way has a number, which its lanes know; when it is lost another takes its place, under another number, and lanes of the old one are
//!   dropped;
//! - after a loss nothing is asked of the device before the agent has ended what was under way by the old way: an operation that is done
//!   again never meets itself.

use super::agent_client::{AgentClient, DirectError};
use super::lane::{Lane, LaneOptions};
use super::session::Registered;
use crate::agent::message::Attachment;
use crate::agent::network::ENDPOINTS_PER_TICKET_MAX;
use crate::nvme_tcp::polled::{PolledController, PolledQueue};
use crate::nvme_tcp::{NvmeError, NvmeHre, Options};
use crate::shm::{ShmHre, ShmOptions};
use crate::{Controller, Hre, HreError};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use willow_auth::{Credentials, HostKey};

/// Endpoints that are asked for at first; twice as many each time that they are not enough.
const ENDPOINTS_FIRST: u16 = 4;

/// An association that the process came to by a ticket.
pub(crate) struct Association {
    controller: PolledController,
    _registered: Registered,
}

/// The way to the device.
pub(crate) enum Reach {
    Memory(PathBuf),
    Network { associations: Vec<Association>, next: u16 },
}

/// What the way is now.
#[derive(Default)]
pub(crate) struct Way {
    /// `None`: the agent is to be asked.
    pub reach: Option<Reach>,
    pub number: u64,
    /// The last one has failed, and its agent does not know yet.
    pub lost: bool,
}

fn lost(error: NvmeError) -> DirectError {
    DirectError::Lost(error.to_string())
}

/// What to connect with, of what the agent said.
fn options(attachment: Attachment) -> Result<Options, DirectError> {
    let Attachment::Network { address, subsystem_nqn, host_nqn, secret, psk, endpoints, .. } = attachment else {
        return Err(DirectError::Agent("it has changed its mind about where the device is".to_owned()));
    };
    // What is wrong with it is not repeated: it is a secret.
    let secret = secret.parse().map_err(|_| DirectError::Agent("it gave a secret that is none".to_owned()))?;
    let psk = psk.map(|psk| psk.parse()).transpose();
    let psk = psk.map_err(|_| DirectError::Agent("it gave a key for TLS that is none".to_owned()))?;
    let credentials = Credentials { host_nqn: host_nqn.clone(), secret, controller_secret: None };
    let key = HostKey { host_nqn, credentials: Some(credentials), psk, secure_channel: false };
    let options = Options::new(address, subsystem_nqn).with_host_key(key);
    Ok(Options {
        queues: endpoints.max(1),
        // Any host could stand in for a device that asks for no proof.
        proof_required: true,
        reconnect_for: Duration::ZERO,
        // The agent watches this process, and the device that agent: a thread that does something else is not taken for dead.
        keep_alive: Duration::ZERO,
        ..options
    })
}

impl Association {
    fn connect(attachment: Attachment, depth: u32) -> Result<Association, DirectError> {
        let options = Options { depth: depth.clamp(1, 1024) as u16, ..options(attachment)? };
        let controller = PolledController::connect(&options).map_err(lost)?;
        let _registered = Registered::new(controller.descriptor().as_raw_fd());
        Ok(Association { controller, _registered })
    }

    /// A queue, and which start of the device it is of.
    fn open(&mut self) -> Option<Result<(PolledQueue, u64), DirectError>> {
        let has_more = self.controller.opened() < self.controller.queues();
        let start = self.controller.start();
        has_more.then(|| self.controller.open_queue().map(|queue| (queue, start)).map_err(lost))
    }
}

impl Way {
    /// Finds out how the device is reached; `device` is its socket, where the program named that.
    pub fn find(
        &mut self,
        device: Option<&PathBuf>,
        agent: impl FnOnce() -> Result<Arc<AgentClient>, DirectError>,
        depth: u32,
    ) -> Result<&mut Reach, DirectError> {
        if self.reach.is_none() {
            let reach = match device {
                Some(path) => Reach::Memory(path.clone()),
                None => match agent()?.attach(ENDPOINTS_FIRST, self.lost)? {
                    Attachment::Memory { device } => Reach::Memory(device),
                    network => {
                        // Whatever becomes of it: the agent has ended the old one.
                        self.lost = false;
                        let associations = vec![Association::connect(network, depth)?];
                        Reach::Network { associations, next: ENDPOINTS_FIRST * 2 }
                    }
                },
            };
            self.reach = Some(reach);
        }
        self.reach.as_mut().ok_or_else(|| DirectError::Agent("it says nothing".to_owned()))
    }
}

impl Reach {
    /// Opens a lane; asks the agent for more endpoints where there are no more.
    pub fn lane(
        &mut self,
        agent: impl FnOnce() -> Result<Arc<AgentClient>, DirectError>,
        options: LaneOptions,
        number: u64,
    ) -> Result<Lane, DirectError> {
        let (associations, next) = match self {
            Reach::Memory(device) => return Lane::open(device, options, number),
            Reach::Network { associations, next } => (associations, next),
        };
        if let Some(queue) = associations.iter_mut().rev().find_map(Association::open) {
            return Lane::over_queue(queue?, options, number);
        }
        let attachment = agent()?.attach(*next, false)?;
        let mut association = Association::connect(attachment, options.slots)?;
        *next = (*next * 2).min(ENDPOINTS_PER_TICKET_MAX);
        let queue = association.open().ok_or_else(|| DirectError::Lost("the device gives no endpoint".to_owned()))?;
        associations.push(association);
        Lane::over_queue(queue?, options, number)
    }
}

/// An asynchronous endpoint of this process, wherever the agent says that the device is: for [`super::DirectFile`]. It needs a tokio
/// runtime that runs while it is used; each is an endpoint of its own.
pub async fn endpoint(agent: &Arc<AgentClient>) -> Result<Arc<dyn Hre>, DirectError> {
    match agent.attach(1, false)? {
        Attachment::Memory { device } => {
            let options = ShmOptions { kind: willow_shm::message::Kind::User, ..Default::default() };
            Ok(Arc::new(ShmHre::open(&device, options)?))
        }
        network => {
            let controller = Controller::connect(options(network)?).await.map_err(HreError::from)?;
            Ok(Arc::new(NvmeHre::new(controller, 0).await?))
        }
    }
}
