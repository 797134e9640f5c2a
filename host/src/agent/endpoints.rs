//! Endpoints of processes on a device that is reached by a network: each process that is connected here is one of the device's, and comes
//! there by tickets (docs/authentication.md).
//!
//! What always holds:
//! - a ticket is asked for on behalf of the user that the kernel named, and goes to the connection that asked, never elsewhere;
//! - when a process is let go, first its connections with the device end, then its files are taken back, then it ends itself in the
//!   device: when that is answered, nothing of it is under way.

use super::message::{Attachment, VERSION};
use super::network::TICKET_TIME;
use super::{Agent, Way};
use crate::control::ProcessRequest;

impl Agent {
    /// How a process reaches the device. `lost`: all that it had is ended first.
    pub(super) async fn attach(
        &self,
        key: u64,
        user: u32,
        (version, wanted, lost): (u32, u16, bool),
    ) -> Result<Attachment, String> {
        if version != VERSION {
            return Err(format!("the agent speaks version {VERSION}, not {version}"));
        }
        let network = match &self.way {
            Way::Memory(device) => {
                // As seen from anywhere: processes have folders of their own.
                let device = std::path::absolute(device).map_err(|error| error.to_string())?;
                return Ok(Attachment::Memory { device });
            }
            Way::Network(network) => network,
        };
        if lost {
            self.let_go(key).await?;
        }
        let (process, endpoints) = {
            let mut state = self.state();
            let taken = state.connected.values().map(|it| it.endpoints).sum();
            let own = state.connected.values().filter(|it| it.user == user).map(|it| it.endpoints).sum();
            let endpoints = self.limits.grant(wanted, user, (taken, own))?;
            let connected = state.connected.get_mut(&key).ok_or("the connection has ended")?;
            // Counted before they are there, so that others do not get the same.
            connected.endpoints += u32::from(endpoints);
            (connected.process, endpoints)
        };
        let made = async {
            let process = match process {
                Some(process) => process,
                None => {
                    let request = ProcessRequest { user, weight: 0 };
                    let process = self.control.open_process(&request).await.map_err(|error| error.to_string())?;
                    if let Some(connected) = self.state().connected.get_mut(&key) {
                        connected.process = Some(process);
                    }
                    process
                }
            };
            let ticket = network.controller.issue_ticket(process, TICKET_TIME, endpoints).await;
            ticket.map(|ticket| (process, ticket)).map_err(|error| error.to_string())
        };
        let made = made.await;
        if made.is_err()
            && let Some(connected) = self.state().connected.get_mut(&key)
        {
            connected.endpoints -= u32::from(endpoints);
        }
        let (process, ticket) = made?;
        let credentials = ticket.credentials.ok_or("the device gave a ticket without a secret")?;
        let options = network.controller.options();
        Ok(Attachment::Network {
            address: options.address,
            subsystem_nqn: options.subsystem_nqn.clone(),
            host_nqn: ticket.host_nqn,
            secret: credentials.secret.to_text(),
            psk: ticket.psk.map(|psk| psk.to_text()),
            endpoints,
            process,
        })
    }

    /// Ends what a process has on the device: connections, permissions, itself. Its files are the file system's own again.
    pub(super) async fn let_go(&self, key: u64) -> Result<(), String> {
        let process = self.state().connected.get(&key).and_then(|connected| connected.process);
        let (Way::Network(network), Some(process)) = (&self.way, process) else {
            return match self.close_all(key).await {
                0 => Ok(()),
                left => Err(format!("{left} of its files stay immutable for now")),
            };
        };
        let withdrawn = network.controller.withdraw_tickets(process).await;
        self.close_all(key).await;
        withdrawn.map_err(|error| error.to_string())?;
        self.control.close_process(process).await.map_err(|error| error.to_string())?;
        if let Some(connected) = self.state().connected.get_mut(&key) {
            (connected.process, connected.endpoints) = (None, 0);
            // It has given back what it knew of files: it says so by asking anew.
            connected.is_stale = false;
        }
        // What could not be revoked before ended with the process.
        match self.close_all(key).await {
            0 => Ok(()),
            left => Err(format!("{left} of its files stay immutable for now")),
        }
    }
}
