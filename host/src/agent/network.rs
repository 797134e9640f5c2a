//! A device that the agent reaches by NVMe/TCP: the controller by which it acts as kernel there, and what it hands to processes.
//!
//! What always holds:
//! - the agent has proved who it is: a device that lets any host in is refused, since tickets would protect nothing there;
//! - the connection is one association; it is never made anew beneath the agent, since the device has ended by then what the agent
//!   had let in ([`super::Agent::start`] begins anew);
//! - endpoints handed out are bounded, altogether and for each user.

use super::{AgentError, runtime};
use crate::hre::HreError;
use crate::nvme_tcp::{Controller, NvmeHre, Options};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::oneshot;

/// Most endpoints of processes at once, where nothing else is said.
pub const ENDPOINTS_DEFAULT: u32 = 1024;
/// Most of one user, root apart, where nothing else is said.
pub const ENDPOINTS_PER_USER_DEFAULT: u32 = 256;
/// Most endpoints of one ticket: I/O queues of one association.
pub const ENDPOINTS_PER_TICKET_MAX: u16 = 64;
/// How long a process has to use its ticket.
pub const TICKET_TIME: Duration = Duration::from_secs(60);
/// How long the device waits for a sign of life before it takes the agent for gone.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// How many endpoints of processes there may be on a device that is reached by a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointLimits {
    /// Altogether.
    pub endpoints_max: u32,
    /// Of one user; root has all.
    pub per_user_max: u32,
}

impl Default for EndpointLimits {
    fn default() -> Self {
        EndpointLimits { endpoints_max: ENDPOINTS_DEFAULT, per_user_max: ENDPOINTS_PER_USER_DEFAULT }
    }
}

impl EndpointLimits {
    /// How many of those that are `wanted` a user gets, where `taken` are taken, `own` of them by the same user. The error is a sentence.
    pub fn grant(&self, wanted: u16, user: u32, (taken, own): (u32, u32)) -> Result<u16, String> {
        let of_all = self.endpoints_max.saturating_sub(taken);
        let of_user = if user == 0 { of_all } else { self.per_user_max.saturating_sub(own) };
        match wanted.clamp(1, ENDPOINTS_PER_TICKET_MAX).min(of_all.min(of_user).min(u32::from(u16::MAX)) as u16) {
            0 if of_all == 0 => Err(format!("all of the agent's {} endpoints are in use", self.endpoints_max)),
            0 => Err(format!("user {user} has {} endpoints in use, which is the most", self.per_user_max)),
            count => Ok(count),
        }
    }
}

/// The connection: it lives on a thread of its own until it is dropped.
pub struct Network {
    /// The controller.
    pub controller: Controller,
    /// Its first I/O queue: the agent's endpoint.
    pub hre: Arc<NvmeHre>,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Network {
    /// Connects.
    pub fn connect(options: &Options) -> Result<Network, AgentError> {
        if options.credentials.is_none() && options.psk.is_none() {
            let why = "an agent over NVMe/TCP needs a key of this host (--key; the device: serve --host-key): without, anybody who \
                       reaches the device acts as a kernel";
            return Err(AgentError(why.to_owned()));
        }
        let options = Options {
            queues: 1,
            keep_alive: KEEP_ALIVE,
            reconnect_for: Duration::ZERO,
            proof_required: true,
            ..options.clone()
        };
        let (made, connected) = mpsc::channel();
        let (end, ended) = oneshot::channel::<()>();
        let runtime = runtime()?;
        let work = async move {
            let attach = async {
                let controller = Controller::connect(options).await?;
                let hre = NvmeHre::new(controller.clone(), 0).await?;
                Ok::<_, HreError>((controller, Arc::new(hre)))
            };
            let attached = attach.await;
            let is_made = attached.is_ok();
            if made.send(attached).is_ok() && is_made {
                // What drives the connection are tasks of this runtime.
                let _ = ended.await;
            }
        };
        let thread = std::thread::Builder::new().name("willow-agent-nvme".to_owned());
        let thread = thread.spawn(move || runtime.block_on(work));
        let thread = thread.map_err(|error| AgentError(format!("no thread for the connection: {error}")))?;
        let gone = || AgentError("the connection's thread ended".to_owned());
        let (controller, hre) = connected.recv().map_err(|_| gone())??;
        Ok(Network { controller, hre, end: Some(end), thread: Some(thread) })
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        drop(self.end.take());
        self.thread.take().into_iter().for_each(crate::threads::ended);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_given_within_bounds_and_refused_with_the_reason() {
        let limits = EndpointLimits { endpoints_max: 100, per_user_max: 10 };
        assert_eq!(limits.grant(4, 1000, (0, 0)), Ok(4));
        assert_eq!(limits.grant(0, 1000, (0, 0)), Ok(1));
        assert_eq!(limits.grant(200, 1000, (0, 0)), Ok(10));
        assert_eq!(limits.grant(200, 0, (0, 0)), Ok(ENDPOINTS_PER_TICKET_MAX));
        assert_eq!(limits.grant(4, 1000, (50, 8)), Ok(2));
        assert_eq!(limits.grant(4, 1001, (97, 0)), Ok(3));
        assert!(limits.grant(1, 1000, (50, 10)).unwrap_err().contains("user 1000 has 10"));
        assert!(limits.grant(1, 0, (100, 50)).unwrap_err().contains("all of the agent's 100"));
    }
}
