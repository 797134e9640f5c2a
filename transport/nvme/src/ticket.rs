//! Tickets: by them processes of users connect over fabrics, each by an endpoint of its own. A controller that acts as kernel asks for
//! one for a process; who proves to have its secret gets endpoints of that process, and nothing of the kernel's.
//!
//! What always holds:
//! - a ticket is good for one association: the first that proves to have its secret; for another, or after its time, it is not there;
//! - a ticket and what came by it end when it is withdrawn, and with the controller that asked for it;
//! - a host has as many tickets at most as it leaves for others;
//! - a ticket that was asked for over TLS has a key for TLS, and is good over TLS alone;
//! - a controller that came by a ticket has every queue on endpoints of the ticket's process, as many as the ticket says at most, asks
//!   for no tickets, and manages nothing.

use std::sync::Arc;

use willow_auth::{Credentials, Hash, LentKey, PresharedKey, Secret};
use willow_wire::spec::opcode::admin;
use willow_wire::spec::{Status, SubmissionEntry, ticket};

use crate::backend::Backend;
use crate::command;
use crate::config::*;
use crate::status::Failure;
use crate::subsystem::Subsystem;

/// A ticket.
pub(crate) struct Ticket {
    process: u32,
    /// Controller that asked for it.
    pub(crate) issuer: u16,
    credentials: Arc<Credentials>,
    /// Of those that are asked for over TLS: their key is known as long as they are.
    tls: Option<LentKey>,
    /// Most I/O queues, each an endpoint.
    queues_max: u16,
    /// Until when it has to be used.
    deadline_ns: u64,
    /// Controller of the association that used it.
    used_by: Option<u16>,
}

/// True for the admin commands that a user's controller may be sent.
pub(crate) fn is_for_users(opcode: u8) -> bool {
    matches!(
        opcode,
        admin::IDENTIFY
            | admin::GET_LOG_PAGE
            | admin::GET_FEATURES
            | admin::SET_FEATURES
            | admin::ASYNC_EVENT_REQUEST
            | admin::KEEP_ALIVE
            | admin::ABORT
    )
}

impl<B: Backend> Subsystem<B> {
    /// Issue Ticket.
    pub(crate) fn issue_ticket(&mut self, cntlid: u16, entry: &SubmissionEntry) -> Result<Vec<u8>, Failure> {
        command::data_to_host(entry, Some(ticket::TICKET_BYTES as u64))?;
        let (process, milliseconds) = (entry.cdw10(), entry.cdw11());
        if process == 0 || process > PROCESS_MAX {
            return Err(Failure::field(40));
        }
        if milliseconds == 0 || milliseconds > ticket::TICKET_MS_MAX {
            return Err(Failure::field(44));
        }
        let queues_max = match u16::try_from(entry.cdw12()) {
            Ok(0) => IO_QUEUES_MAX,
            Ok(queues) if queues <= IO_QUEUES_MAX => queues,
            _ => return Err(Failure::field(48)),
        };
        let host_of = |cntlid: u16| self.controllers.get(&cntlid).map(|controller| &controller.host_nqn);
        let own = self.tickets.values().filter(|ticket| host_of(ticket.issuer) == host_of(cntlid)).count();
        if own >= TICKETS_MAX - self.tickets.len() {
            return Err(Failure::retryable(Status::OPERATION_DENIED));
        }
        let (_, entropy) = self.policy_and_entropy();
        let mut id = [0; 16];
        let made = entropy.fill(&mut id).and_then(|()| Secret::generate(Some(Hash::Sha256), &entropy));
        let secret = made.map_err(|_| Failure::retryable(Status::INTERNAL_ERROR))?;
        let id: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
        let host_nqn = format!("{TICKET_NQN_PREFIX}{id}");
        let issuer = self.controllers.get(&cntlid).map(|controller| controller.host_nqn.as_str()).unwrap_or_default();
        // A host that has a key for TLS has come by it; another one may have by a generated key.
        let hash = self.keys.get(issuer).map(|key| key.hash()).or_else(|| self.channel_hash(cntlid));
        let made = hash.map(|hash| PresharedKey::generate(hash, &entropy)).transpose();
        let psk = made.map_err(|_| Failure::retryable(Status::INTERNAL_ERROR))?;
        let psk_text = psk.as_ref().map(PresharedKey::to_text).unwrap_or_default();
        let told = ticket::to_bytes(&host_nqn, &secret.to_text(), &psk_text);
        let tls = psk.and_then(|psk| self.keys.lend(&host_nqn, psk));
        let credentials = Credentials { host_nqn: host_nqn.clone(), secret, controller_secret: None };
        let deadline_ns = self.now_ns.saturating_add(u64::from(milliseconds) * 1_000_000);
        let (issuer, credentials, used_by) = (cntlid, Arc::new(credentials), None);
        let ticket = Ticket { process, issuer, credentials, tls, queues_max, deadline_ns, used_by };
        self.tickets.insert(host_nqn, ticket);
        self.set_timer(deadline_ns);
        tracing::info!(controller = cntlid, process, "ticket issued");
        Ok(told)
    }

    /// Withdraw Tickets: those of a process, with what came by them.
    pub(crate) fn withdraw_tickets(&mut self, entry: &SubmissionEntry) -> Result<u32, Failure> {
        let process = entry.cdw10();
        Ok(self.end_tickets("its ticket was withdrawn", |ticket| ticket.process == process))
    }

    /// A controller is gone: so are the tickets that it asked for, and the one that it came by.
    pub(crate) fn tickets_of_controller_end(&mut self, cntlid: u16) {
        if self.tickets.is_empty() {
            return;
        }
        let stay = planted!(self, TicketsStayGood);
        self.tickets.retain(|_, ticket| ticket.used_by != Some(cntlid) || stay);
        self.end_tickets("who asked for its ticket is gone", |ticket| ticket.issuer == cntlid);
    }

    fn end_tickets(&mut self, reason: &'static str, which: impl Fn(&Ticket) -> bool) -> u32 {
        let mut users = Vec::new();
        let before = self.tickets.len();
        self.tickets.retain(|_, ticket| {
            let ends = which(ticket);
            users.extend(ticket.used_by.filter(|_| ends));
            !ends
        });
        let ended = before - self.tickets.len();
        users.into_iter().for_each(|cntlid| self.end_controller(cntlid, reason));
        ended as u32
    }

    /// Tickets that were not used in time go; when the next one is due.
    pub(crate) fn expire_tickets(&mut self) -> u64 {
        let now_ns = self.now_ns;
        self.tickets.retain(|_, ticket| ticket.used_by.is_some() || ticket.deadline_ns > now_ns);
        let unused = self.tickets.values().filter(|ticket| ticket.used_by.is_none());
        unused.map(|ticket| ticket.deadline_ns).min().unwrap_or(u64::MAX)
    }

    /// What a host that connects by a ticket has to prove, and the process whose endpoints it gets. `controller`: of an I/O queue.
    pub(crate) fn ticket(&self, host_nqn: &str, controller: Option<u16>) -> Option<(Arc<Credentials>, u32)> {
        let ticket = self.tickets.get(host_nqn)?;
        let good = match controller {
            None if planted!(self, TicketsStayGood) => true,
            None => ticket.used_by.is_none() && ticket.deadline_ns > self.now_ns,
            Some(cntlid) => ticket.used_by == Some(cntlid) || planted!(self, AsksForNoProof),
        };
        good.then(|| (ticket.credentials.clone(), ticket.process))
    }

    /// True where this is a ticket's name and the ticket good over TLS alone.
    pub(crate) fn has_tls_ticket(&self, host_nqn: &str) -> bool {
        self.tickets.get(host_nqn).is_some_and(|ticket| ticket.tls.is_some())
    }

    /// Most I/O queues of who comes by a ticket.
    pub(crate) fn ticket_queues(&self, host_nqn: &str) -> Option<u16> {
        self.tickets.get(host_nqn).map(|ticket| ticket.queues_max)
    }

    /// A host has proved itself on an admin queue: where it came by a ticket that is used up now. False where that was gone.
    pub(crate) fn redeem_ticket(&mut self, cntlid: u16, host_nqn: &str) -> bool {
        let by_ticket = self.controllers.get(&cntlid).is_some_and(|controller| controller.process.is_some());
        if !by_ticket {
            return true;
        }
        let stays = planted!(self, TicketsStayGood);
        match self.tickets.get_mut(host_nqn) {
            Some(ticket) if ticket.used_by.is_none_or(|user| user == cntlid) || stays => {
                ticket.used_by = Some(cntlid);
                true
            }
            _ => false,
        }
    }
}
