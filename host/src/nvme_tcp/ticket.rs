//! Tickets: how the trusted part of a host lets a process of a user connect by itself (`willow_wire::spec::ticket`).

use super::queue::Transfer;
use super::{Controller, NvmeError, Via};
use std::time::Duration;
use willow_auth::{Credentials, HostKey};
use willow_wire::spec::ticket;

impl Controller {
    /// Asks for a ticket for a process that the device knows, to be used within `time`. Who has these credentials connects once, by
    /// at most `queues_max` endpoints of that process (0: as many as the device gives); by TLS where this controller is connected by it.
    /// For controllers that act as kernel.
    pub async fn issue_ticket(&self, process: u32, time: Duration, queues_max: u16) -> Result<HostKey, NvmeError> {
        let (what, milliseconds) = ("Issue Ticket", u32::try_from(time.as_millis()).unwrap_or(u32::MAX));
        let transfer = Transfer::FromController(vec![0; ticket::TICKET_BYTES]);
        let entry = ticket::issue(process, milliseconds, queues_max);
        let mut done = self.command(Via::Admin, what, entry, transfer, false).await?;
        let made = ticket::from_bytes(&done.buffer).and_then(|(host_nqn, secret, psk)| {
            let (host_nqn, secret) = (host_nqn.to_owned(), secret.parse().ok()?);
            let psk = psk.map(str::parse).transpose().ok()?;
            let credentials = Credentials { host_nqn: host_nqn.clone(), secret, controller_secret: None };
            Some(HostKey { host_nqn, credentials: Some(credentials), psk, secure_channel: false })
        });
        done.buffer.fill(0);
        made.ok_or_else(|| NvmeError::Incompatible {
            address: self.options().address,
            what: "answered with something that is no ticket".to_owned(),
        })
    }

    /// Takes the tickets of a process back, and ends what was connected by them; how many there were.
    pub async fn withdraw_tickets(&self, process: u32) -> Result<u32, NvmeError> {
        let entry = ticket::withdraw(process);
        let done = self.command(Via::Admin, "Withdraw Tickets", entry, Transfer::None, false).await?;
        Ok(done.entry.result as u32)
    }
}
