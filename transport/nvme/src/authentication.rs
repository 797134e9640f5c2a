//! Who a host is: known hosts and their keys, and Authentication Send and Receive on a queue (NVMe Base 6.2, 6.3, 8.13.5).
//!
//! What always holds:
//! - with authentication on, a host without a key gets nothing but discovery, and one with a key nothing but authentication
//!   commands until it has proved itself, on each of its queues;
//! - an authentication ends within [`AUTHENTICATION_LIMIT`], well or with the queue; one that failed is not tried again on the same
//!   connection;
//! - a queue that came by TLS with a generated key need not prove its host again (`concatenation.rs`), and may;
//! - what takes milliseconds is done by [`AuthenticationJob::run`] on another thread, at most one for each queue.

use std::collections::BTreeMap;
use std::sync::Arc;

use willow_auth::{
    Computation, Computed, Concatenation, ControllerExchange, Credentials, Ends, Entropy, HostKey, KeyRing, Policy,
    PresharedKey, Sent,
};
use willow_wire::spec::authentication::{
    AuthenticationCommand, MESSAGE_BYTES_MAX, SECURITY_PROTOCOL, SECURITY_PROTOCOL_SPECIFIC,
};
use willow_wire::spec::{Status, SubmissionEntry, opcode};

use crate::backend::Backend;
use crate::command::{self, Data};
use crate::concatenation::Secured;
use crate::config::*;
use crate::queue::{Association, State};
use crate::status::Failure;
use crate::subsystem::{ConnectionId, Next, Subsystem};

/// The hosts that may connect, and how they prove themselves.
#[derive(Clone, Debug, Default)]
pub struct HostAuthentication {
    hosts: BTreeMap<String, KnownHost>,
    /// Every connection has to be TLS. Otherwise those of hosts that have a key for it have to be.
    pub tls_required: bool,
    /// Hashes and groups that are agreed to.
    pub policy: Policy,
    /// Random bytes for challenges and exponents.
    pub entropy: Entropy,
}

/// What one host proves itself by: one of both, or both.
#[derive(Clone, Debug)]
struct KnownHost {
    credentials: Option<Arc<Credentials>>,
    psk: Option<PresharedKey>,
    /// It has to come by TLS with a key that its authentication generates.
    secure_channel: bool,
}

impl HostAuthentication {
    /// Hosts that may act as kernel: each proves itself with its own secret. The error names a host that is there twice.
    pub fn new(hosts: impl IntoIterator<Item = impl Into<HostKey>>) -> Result<Self, String> {
        let mut authentication = HostAuthentication::default();
        for host in hosts {
            let HostKey { host_nqn: nqn, credentials, psk, secure_channel } = host.into();
            let known = KnownHost { credentials: credentials.map(Arc::new), psk, secure_channel };
            if authentication.hosts.insert(nqn.clone(), known).is_some() {
                return Err(format!("host {nqn} has more than one key"));
            }
        }
        Ok(authentication)
    }

    /// Whether a host of this name has to come by TLS. (Tickets know it of themselves.)
    pub fn requires_tls(&self, host_nqn: &str) -> bool {
        self.tls_required || self.hosts.get(host_nqn).is_some_and(|host| host.psk.is_some())
    }

    /// Whether a host of this name has to come by TLS with a key that its authentication generates.
    pub(crate) fn requires_channel(&self, host_nqn: &str) -> bool {
        self.hosts.get(host_nqn).is_some_and(|host| host.secure_channel)
    }

    /// Keys for TLS, by host.
    pub(crate) fn keys(&self) -> BTreeMap<String, PresharedKey> {
        self.hosts.iter().filter_map(|(nqn, host)| Some((nqn.clone(), host.psk.clone()?))).collect()
    }

    /// Whether connections may be TLS: by a host's key for it, or by one that its authentication generates.
    pub fn may_need_tls(&self) -> bool {
        self.tls_required || self.hosts.values().any(|host| host.psk.is_some() || host.credentials.is_some())
    }

    /// Whether a host proves itself by the same here as there.
    pub(crate) fn agrees_on(&self, host_nqn: &str, other: &HostAuthentication) -> bool {
        match (self.hosts.get(host_nqn), other.hosts.get(host_nqn)) {
            (Some(one), Some(other)) => {
                let secrets = match (&one.credentials, &other.credentials) {
                    (Some(one), Some(other)) => one.is_same(other),
                    (one, other) => one.is_none() && other.is_none(),
                };
                let keys = match (&one.psk, &other.psk) {
                    (Some(one), Some(other)) => one.to_text() == other.to_text(),
                    (one, other) => one.is_none() && other.is_none(),
                };
                secrets && keys && one.secure_channel == other.secure_channel
            }
            _ => false,
        }
    }

    /// Number of hosts.
    pub fn hosts(&self) -> usize {
        self.hosts.len()
    }

    /// Checks the values; the error names the field and what it may be.
    pub fn validate(&self) -> Result<(), String> {
        if self.hosts.len() > HOST_KEYS_MAX {
            return Err(format!("{} hosts have keys, at most {HOST_KEYS_MAX} can", self.hosts.len()));
        }
        if let Some(nqn) = self.hosts.keys().find(|nqn| !is_nqn(nqn.as_bytes())) {
            return Err(format!("host {nqn:?} must be \"nqn.YYYY-MM.DOMAIN:NAME\" of at most 223 bytes"));
        }
        if self.policy.hashes.is_empty() || self.policy.groups.is_empty() {
            return Err("authentication needs at least one hash and one group".to_owned());
        }
        if let Some((nqn, _)) = self.hosts.iter().find(|(_, host)| host.credentials.is_none() && host.psk.is_none()) {
            return Err(format!("host {nqn} has neither a secret nor a key for TLS"));
        }
        let useless = |host: &KnownHost| host.secure_channel && (host.credentials.is_none() || host.psk.is_some());
        if let Some((nqn, _)) = self.hosts.iter().find(|(_, host)| useless(host)) {
            return Err(format!("host {nqn} can have a secure channel by its secret, or a key for TLS, not both"));
        }
        if self.tls_required
            && let Some((nqn, _)) = self.hosts.iter().find(|(_, host)| host.psk.is_none())
        {
            return Err(format!("TLS is required, and host {nqn} has no key for it: it could never connect"));
        }
        Ok(())
    }
}

/// The authentication of one queue.
pub(crate) struct QueueAuthentication {
    exchange: ControllerExchange,
    /// When the queue ends unless the host has proved itself; `u64::MAX` while nothing is under way.
    deadline_ns: u64,
}

/// Computing that belongs to an Authentication Send.
#[derive(Debug)]
pub struct AuthenticationJob {
    connection: ConnectionId,
    place: u16,
    computation: Computation,
}

/// What came of an [`AuthenticationJob`].
#[derive(Debug)]
pub struct AuthenticationDone {
    connection: ConnectionId,
    place: u16,
    computed: Computed,
}

impl AuthenticationJob {
    /// Computes: some milliseconds. To be called on a thread that may take them.
    pub fn run(self) -> AuthenticationDone {
        AuthenticationDone { connection: self.connection, place: self.place, computed: self.computation.run() }
    }
}

impl<B: Backend> Subsystem<B> {
    /// Keys for TLS: those of the hosts that are configured, and those of tickets as long as they are there.
    pub fn keys(&self) -> &KeyRing {
        &self.keys
    }

    /// What a host that connects has to prove (`None`: nothing), and the process of a user whose endpoints it gets (`None`: the
    /// kernel's). A host that is not known is refused. `controller`: of an I/O queue.
    pub(crate) fn credentials(
        &self,
        host_nqn: &str,
        discovery: bool,
        controller: Option<u16>,
    ) -> Result<(Option<Arc<Credentials>>, Option<u32>), Failure> {
        let of_ticket = host_nqn.starts_with(TICKET_NQN_PREFIX) && !discovery;
        if let Some((credentials, process)) = self.ticket(host_nqn, controller).filter(|_| of_ticket) {
            return Ok((Some(credentials).filter(|_| !planted!(self, AsksForNoProof)), Some(process)));
        }
        let hosts = match &self.config.authentication {
            _ if discovery => return Ok((None, None)),
            // Without keys any host is let in, but by a ticket's name only with the ticket.
            None if !of_ticket => return Ok((None, None)),
            None => None,
            Some(authentication) => authentication.hosts.get(host_nqn).filter(|_| !of_ticket),
        };
        match hosts {
            Some(known) => Ok((known.credentials.clone(), None)),
            None => {
                tracing::warn!(host = host_nqn, "a host without a key is refused");
                let offset = willow_wire::spec::fabrics::connect_offset::HOSTNQN;
                Err(Failure::at(Status::CONNECT_INVALID_HOST, offset))
            }
        }
    }

    /// The connection is TLS: its handshake proved who the host is, and which subsystem it means. To be told before its Connect.
    pub fn secured(&mut self, connection: ConnectionId, secured: Secured) {
        if self.queue(connection).is_some()
            && let Some(queue) = self.queues[connection.index()].as_mut()
        {
            queue.secured = Some(Box::new(secured));
        }
    }

    /// Connect's names have to be those that TLS proved; a host that has a key for TLS has to come by it.
    pub(crate) fn check_secured(&self, index: u16, host_nqn: &str, subsystem_nqn: &str) -> Result<(), Failure> {
        let secured = self.queues[usize::from(index)].as_ref().and_then(|queue| queue.secured.as_deref());
        let reason = match secured {
            Some(proved) if proved.host_nqn == host_nqn && proved.subsystem_nqn == subsystem_nqn => return Ok(()),
            Some(_) => "it proved another name by TLS",
            None => {
                let configured = self.config.authentication.as_ref();
                let required =
                    configured.is_some_and(|known| known.requires_tls(host_nqn)) || self.has_tls_ticket(host_nqn);
                if subsystem_nqn == NQN_DISCOVERY || !required {
                    return Ok(());
                }
                "it has a key for TLS, and came without"
            }
        };
        tracing::warn!(host = host_nqn, reason, "a host is refused");
        Err(Failure::at(Status::CONNECT_INVALID_HOST, willow_wire::spec::fabrics::connect_offset::HOSTNQN))
    }

    /// What is agreed to, and where random bytes come from: as configured, or by default where only tickets are proved.
    pub(crate) fn policy_and_entropy(&self) -> (Policy, Entropy) {
        let configured = self.config.authentication.as_ref();
        configured.map(|configured| (configured.policy.clone(), configured.entropy.clone())).unwrap_or_default()
    }

    /// From here on the queue's host has to prove itself; where it is `proved` by the channel that it came by, it may.
    pub(crate) fn expect_authentication(
        &mut self,
        index: u16,
        credentials: Arc<Credentials>,
        concatenation: Concatenation,
        proved: bool,
    ) {
        let (policy, entropy) = self.policy_and_entropy();
        let ends = Ends { credentials, subsystem_nqn: self.config.nqn.clone() };
        let exchange = ControllerExchange::new(ends, policy, entropy).with_concatenation(concatenation);
        let (exchange, deadline_ns) = match proved {
            true => (exchange.already_authenticated(), u64::MAX),
            false => (exchange, self.now_ns.saturating_add(AUTHENTICATION_LIMIT.as_nanos() as u64)),
        };
        if let Some(queue) = self.queues[usize::from(index)].as_mut() {
            queue.authentication = Some(Box::new(QueueAuthentication { exchange, deadline_ns }));
        }
        self.set_timer(deadline_ns);
    }

    /// A command on a queue whose host has not proved itself.
    #[cold]
    pub(crate) fn unauthenticated_command(
        &mut self,
        index: u16,
        association: Association,
        entry: &SubmissionEntry,
        capsule: &[u8],
    ) -> Next {
        let kind = entry.fabrics_type();
        let is_authentication =
            matches!(kind, opcode::fabrics::AUTHENTICATION_SEND | opcode::fabrics::AUTHENTICATION_RECEIVE);
        if entry.opcode() == opcode::FABRICS && is_authentication {
            return self.authentication_command(index, association, entry, capsule);
        }
        self.fail(index, entry, Failure::of(Status::AUTHENTICATION_REQUIRED));
        Next::Taken
    }

    /// Authentication Send or Receive.
    #[cold]
    pub(crate) fn authentication_command(
        &mut self,
        index: u16,
        association: Association,
        entry: &SubmissionEntry,
        capsule: &[u8],
    ) -> Next {
        let now_ns = self.now_ns;
        let is_receive = entry.fabrics_type() == opcode::fabrics::AUTHENTICATION_RECEIVE;
        if is_receive && !self.has_room(index, entry.sgl().length.min(MESSAGE_BYTES_MAX as u32)) {
            return Next::Wait;
        }
        if let Some(controller) = self.controllers.get_mut(&association.controller) {
            (controller.keep_alive_ns, controller.commanded_ns) = (now_ns, now_ns);
        }
        let outcome = match entry.fabrics_type() {
            opcode::fabrics::AUTHENTICATION_SEND => self.authentication_send(index, entry, capsule),
            _ => self.authentication_receive(index, entry),
        };
        match outcome {
            Ok(()) => self.after_authentication(index),
            Err(failure) => self.fail(index, entry, failure),
        }
        Next::Taken
    }

    /// The command's fields, checked but for the data's descriptor.
    fn authentication_fields(&self, index: u16, entry: &SubmissionEntry) -> Result<AuthenticationCommand, Failure> {
        command::check_flags(entry)?;
        let queue = self.queues[usize::from(index)].as_ref();
        if queue.is_none_or(|queue| queue.authentication.is_none()) {
            return Err(Failure::at(Status::INVALID_OPCODE, 4));
        }
        let fields = AuthenticationCommand::from_entry(entry);
        let checks = [
            (fields.protocol == SECURITY_PROTOCOL, AuthenticationCommand::SECP),
            (fields.specific_0 == SECURITY_PROTOCOL_SPECIFIC, AuthenticationCommand::SPSP0),
            (fields.specific_1 == SECURITY_PROTOCOL_SPECIFIC, AuthenticationCommand::SPSP1),
            (fields.bytes != 0, AuthenticationCommand::LENGTH),
        ];
        match checks.into_iter().find(|(good, _)| !good) {
            Some((_, offset)) => Err(Failure::field(offset)),
            None => Ok(fields),
        }
    }

    fn authentication_send(&mut self, index: u16, entry: &SubmissionEntry, capsule: &[u8]) -> Result<(), Failure> {
        let fields = self.authentication_fields(index, entry)?;
        if fields.bytes as usize > MESSAGE_BYTES_MAX {
            return Err(Failure::field(AuthenticationCommand::LENGTH));
        }
        // Data of fabrics commands come in the capsule (NVMe/TCP 3.3.2.2).
        let data = command::data_from_host(entry, Some(u64::from(fields.bytes)), capsule.len())?;
        let Data::Capsule(at, bytes) = data else { return Err(Failure::at(Status::SGL_TYPE_INVALID, 39)) };
        let message = &capsule[at as usize..at as usize + bytes as usize];
        let Some(place) = self.begin(index, entry) else { return Ok(()) };
        let Some(queue) = self.queues[usize::from(index)].as_mut() else { return Ok(()) };
        let Some(authentication) = queue.authentication.as_mut() else { return Ok(()) };
        match authentication.exchange.send(message, &mut self.sequence_numbers) {
            Sent::Taken => self.complete(index, place, Status::SUCCESS, 0, None),
            Sent::Compute(computation) => {
                queue.slots[usize::from(place)].state = State::Authenticating;
                let connection = ConnectionId { index, generation: queue.generation };
                self.authentication_jobs.push_back(AuthenticationJob { connection, place, computation });
            }
        }
        Ok(())
    }

    fn authentication_receive(&mut self, index: u16, entry: &SubmissionEntry) -> Result<(), Failure> {
        let fields = self.authentication_fields(index, entry)?;
        command::data_to_host(entry, Some(u64::from(fields.bytes)))?;
        let Some(queue) = self.queues[usize::from(index)].as_mut() else { return Ok(()) };
        let Some(authentication) = queue.authentication.as_mut() else { return Ok(()) };
        let exchange = &mut authentication.exchange;
        if exchange.message_bytes() > fields.bytes as usize {
            return Err(Failure::field(AuthenticationCommand::LENGTH));
        }
        let mut message = exchange.receive().map_err(|_| Failure::of(Status::COMMAND_SEQUENCE_ERROR))?;
        // As much as the host has room for: what is behind the message is zero.
        message.resize((fields.bytes as usize).min(MESSAGE_BYTES_MAX), 0);
        if let Some(place) = self.begin(index, entry) {
            let payload = self.payload_of(index, &message);
            self.complete(index, place, Status::SUCCESS, 0, Some(payload));
        }
        Ok(())
    }

    /// Takes over what an exchange came to, and sets its time limit.
    fn after_authentication(&mut self, index: u16) {
        let now_ns = self.now_ns;
        let Some(queue) = self.queues[usize::from(index)].as_mut() else { return };
        let (Some(authentication), Some(association)) = (queue.authentication.as_mut(), queue.association.as_mut())
        else {
            return;
        };
        let exchange = &authentication.exchange;
        let (controller, queue_id) = (association.controller, association.qid);
        if exchange.is_authenticated() != association.authenticated {
            association.authenticated = exchange.is_authenticated();
            let host = exchange.ends().credentials.host_nqn.as_str();
            match exchange.failure() {
                None => {
                    tracing::info!(controller, queue = queue_id, host, "host authenticated");
                    let host = host.to_owned();
                    if queue_id == 0 && !self.redeem_ticket(controller, &host) {
                        return self.end_controller(controller, "its ticket was used by another");
                    }
                    if self.check_host_share(index, queue_id, &host).is_err() {
                        tracing::warn!(
                            controller,
                            queue = queue_id,
                            host,
                            "its host has as many queues as are left for others"
                        );
                        return self.detach_and_close(index);
                    }
                    self.enter_account(index, &host);
                    if let (0, Some(controller)) = (queue_id, self.controllers.get_mut(&controller)) {
                        controller.proved = true;
                    }
                    return self.after_authentication(index);
                }
                Some(reason) => tracing::warn!(controller, queue = queue_id, host, %reason, "authentication lost"),
            }
        }
        if let Some(key) = authentication.exchange.take_generated() {
            self.keep_generated(index, controller, &key);
            return self.after_authentication(index);
        }
        let exchange = &authentication.exchange;
        let limit = match (exchange.has_failed(), exchange.is_under_way()) {
            (true, _) => {
                let host = exchange.ends().credentials.host_nqn.as_str();
                let reason = exchange.failure().map(tracing::field::display);
                tracing::warn!(controller, queue = queue_id, host, reason, "authentication failed");
                AUTHENTICATION_FAILED_LINGER
            }
            (false, true) => AUTHENTICATION_LIMIT,
            (false, false) => {
                if exchange.is_authenticated() {
                    authentication.deadline_ns = u64::MAX;
                }
                return;
            }
        };
        // What is under way is not prolonged by its steps.
        let deadline_ns = now_ns.saturating_add(limit.as_nanos() as u64);
        authentication.deadline_ns = authentication.deadline_ns.min(deadline_ns);
        let deadline_ns = authentication.deadline_ns;
        self.set_timer(deadline_ns);
    }

    /// The next computing to be done elsewhere; its outcome goes to [`Subsystem::authentication_done`].
    pub fn authentication_job(&mut self) -> Option<AuthenticationJob> {
        self.authentication_jobs.pop_front()
    }

    /// Takes what a job came to: its command ends.
    pub fn authentication_done(&mut self, done: AuthenticationDone) {
        let AuthenticationDone { connection, place, computed } = done;
        if self.queue(connection).is_none() {
            return;
        }
        let Some(queue) = self.queues[connection.index()].as_mut() else { return };
        let Some(authentication) = queue.authentication.as_mut() else { return };
        let waits = queue.slots.get(usize::from(place)).is_some_and(|slot| slot.state == State::Authenticating);
        if !waits {
            return;
        }
        authentication.exchange.computed(computed);
        self.complete(connection.index, place, Status::SUCCESS, 0, None);
        self.after_authentication(connection.index);
    }

    /// Ends queues whose hosts did not prove themselves in time; returns when the next one is due.
    pub(crate) fn expire_authentications(&mut self) -> u64 {
        let now_ns = self.now_ns;
        let mut next_ns = u64::MAX;
        for index in 0..self.queues.len() as u16 {
            let Some(queue) = &self.queues[usize::from(index)] else { continue };
            let (Some(authentication), Some(association)) = (&queue.authentication, queue.association) else {
                continue;
            };
            if authentication.deadline_ns > now_ns {
                next_ns = next_ns.min(authentication.deadline_ns);
            } else if association.qid == 0 {
                self.end_controller(association.controller, "not authenticated");
            } else {
                tracing::warn!(controller = association.controller, queue = association.qid, "queue not authenticated");
                self.detach_and_close(index);
            }
        }
        next_ns
    }
}
