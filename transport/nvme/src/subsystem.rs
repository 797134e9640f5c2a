//! The subsystem: controllers, queues and namespaces in front of a device. A transport hands it the entries of submission
//! queues and takes completions; there is no socket, thread or clock in it.
//!
//! What always holds:
//! - every command that is taken is answered exactly once, unless its queue goes first;
//! - a data buffer is in one place: the pool, the transport, the device, or a completion;
//! - nothing that a host sends makes it panic, and nothing grows without a bound of [`crate::config`].
//!
//! Who may call it: one transport, from one thread. The way of a command: [`Subsystem::command`] parses and begins it,
//! [`Subsystem::data`] brings what was fetched, [`Subsystem::run`] lets the device work, [`Subsystem::completion`] gives the end.

mod lifecycle;
mod table;

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use base_io_host::Geometry;
use key_value_host::Placement;
use willow_auth::{KeyRing, SequenceNumbers};
use willow_device::metadata::HostTables;
use willow_device::reservation::Reservation;
use willow_device::{AppNumber, CommandSet, FlashState, Namespace};

use willow_wire::spec::{CompletionEntry, Status, SubmissionEntry, opcode};

use crate::account::{Accounts, UNPROVED};
use crate::admission::Orphan;
use crate::authentication::{AuthenticationJob, HostAuthentication};
use crate::backend::Backend;
use crate::buffer::{BufferPool, HEADROOM_BYTES};
use crate::command::{self, NamespaceView};
use crate::concatenation::SecureChannel;
use crate::config::*;
use crate::controller::Controller;
use crate::fused::Exclusives;
use crate::queue::{Queue, State};
use crate::reservation::Preempting;
use crate::statistics::*;
use crate::status::Failure;
use crate::ticket::Ticket;

/// Names a connection: its place and how often the place was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnectionId {
    pub(crate) index: u16,
    pub(crate) generation: u16,
}

impl ConnectionId {
    /// Its place: below [`CONNECTIONS_MAX`], and no other open connection's.
    pub fn index(self) -> usize {
        usize::from(self.index)
    }
}

/// What became of a command that was handed in.
#[derive(Debug)]
pub enum Next {
    /// It was taken: its completion is there or will be.
    Taken,
    /// It was taken; the transport fetches its data from the host and hands them to [`Subsystem::data`].
    Fetch(Fetch),
    /// Nothing was done, since its connection holds as much as it may: hand it in again when [`Subsystem::releases`] has changed.
    Wait,
    /// The host broke a rule that no completion can tell of: end the connection.
    Violation(&'static str),
}

/// Data to be fetched from a host.
#[derive(Debug)]
pub struct Fetch {
    /// To hand back.
    pub slot: u16,
    /// The command.
    pub cid: u16,
    /// Where the data go: from `start` on, `bytes` bytes.
    pub buffer: Vec<u8>,
    /// First byte of the data in the buffer.
    pub start: usize,
    /// Length of the data.
    pub bytes: u32,
}

/// Data that go to a host with a completion, before it.
#[derive(Debug)]
pub struct Payload {
    /// Give it back by [`Subsystem::give_buffer`] when it is sent.
    pub buffer: Vec<u8>,
    /// First byte: [`HEADROOM_BYTES`], or 0 where there is no room in front.
    pub start: usize,
    /// Length.
    pub bytes: usize,
}

/// The end of a command.
#[derive(Debug)]
pub struct Completion {
    /// Where to.
    pub connection: ConnectionId,
    /// The completion queue entry.
    pub entry: CompletionEntry,
    /// Data that go before it.
    pub payload: Option<Payload>,
    /// The host has disabled SQ flow control: a transport may leave out the entry where its status is success and its result 0.
    pub entry_optional: bool,
}

/// A namespace of the table, with what serving it needs.
pub(crate) struct Entry {
    pub namespace: Namespace,
    pub view: NamespaceView,
    pub geometry: Geometry,
    pub placement: Placement,
    /// Number of the app that serves it, once it was asked for.
    pub app: Option<AppNumber>,
    pub counters: NamespaceCounters,
    /// The generation that it had first: it gets another one when it shrinks.
    pub since: u32,
    /// The hosts that it is attached to, sorted; `None`: all.
    pub hosts: Option<Vec<String>>,
    /// It is never attached to more than one host (NMIC bit 0 is clear).
    pub private: bool,
    /// Registrations and reservation, once a host has registered.
    pub reservation: Option<Reservation>,
}

/// The subsystem.
pub struct Subsystem<B> {
    pub(crate) backend: B,
    pub(crate) config: SubsystemConfig,
    pub(crate) now_ns: u64,
    /// The device's tables as they were taken over last.
    table: Arc<Vec<Namespace>>,
    pub(crate) host_tables: Arc<HostTables>,
    pub(crate) namespaces: Vec<Entry>,
    /// Namespaces seen so far, those included that have gone.
    namespaces_seen: u32,
    /// Counts changes of the discovery log (GENCTR).
    pub(crate) discovery_generation: u64,
    /// The state of the flash that hosts were told of.
    pub(crate) flash: FlashState,
    pub(crate) controllers: BTreeMap<u16, Controller>,
    pub(crate) next_cntlid: u16,
    pub(crate) queues: Vec<Option<Queue>>,
    generations: Vec<u16>,
    pub(crate) pool: BufferPool,
    pub(crate) accounts: Accounts,
    /// Value of [`Subsystem::releases`] when buffers were last given to commands that wait for them.
    pub(crate) granted_at: u64,
    /// What the device has for queues that are gone, by endpoint and tag.
    pub(crate) orphans: BTreeMap<(u32, u64), Orphan>,
    /// Ranges that fused operations have taken.
    pub(crate) exclusives: Exclusives,
    /// Preempt and Abort that waits for what was preempted.
    pub(crate) preempting: Vec<Preempting>,
    /// Commands that waited for a buffer and have it: the transport fetches their data.
    pub(crate) fetches: VecDeque<(ConnectionId, Fetch)>,
    pub(crate) completions: VecDeque<Completion>,
    pub(crate) closing: VecDeque<ConnectionId>,
    pub(crate) next_spu: u16,
    /// Connections with parked Receives.
    pub(crate) receiving: Vec<u16>,
    pub(crate) next_timer_ns: u64,
    /// Until when the transport has handed in all that had come; `None`: it always has.
    pub(crate) judged_ns: Option<u64>,
    pub(crate) submitted: bool,
    pub(crate) started_ns: u64,
    /// True under a clock with a model, which is told the time before it is handed something.
    timed: bool,
    busy_since_ns: u64,
    pub(crate) busy_ns: u64,
    pub(crate) error_entries: u64,
    /// Bytes of admin commands' answers since the device ran last.
    pub(crate) answered_bytes: usize,
    pub(crate) sequence_numbers: SequenceNumbers,
    pub(crate) authentication_jobs: VecDeque<AuthenticationJob>,
    /// By the host name that uses them.
    pub(crate) tickets: BTreeMap<String, Ticket>,
    pub(crate) keys: KeyRing,
    /// Generated keys, by their identities.
    pub(crate) channels: BTreeMap<String, SecureChannel>,
    /// What the control service's statistics tell of hosts: made anew when they are asked for.
    pub(crate) front: Rc<RefCell<serde_json::Value>>,
}

impl<B: Backend> Subsystem<B> {
    /// A subsystem in front of `backend`; the error says which value of `config` is wrong.
    pub fn new(config: SubsystemConfig, backend: B, now_ns: u64) -> Result<Self, String> {
        config.validate()?;
        let accounts = Accounts::new(config.buffer_budget_bytes);
        let timed = backend.is_timed();
        let keys = KeyRing::new(config.authentication.as_ref().map(HostAuthentication::keys).unwrap_or_default());
        let mut subsystem = Subsystem {
            backend,
            config,
            now_ns,
            table: Arc::new(Vec::new()),
            host_tables: Arc::default(),
            namespaces: Vec::new(),
            namespaces_seen: 0,
            discovery_generation: 1,
            flash: FlashState::default(),
            controllers: BTreeMap::new(),
            next_cntlid: 1,
            queues: Vec::new(),
            generations: Vec::new(),
            pool: BufferPool::new(),
            accounts,
            granted_at: 0,
            orphans: BTreeMap::new(),
            exclusives: Exclusives::default(),
            preempting: Vec::new(),
            fetches: VecDeque::new(),
            completions: VecDeque::new(),
            closing: VecDeque::new(),
            next_spu: 0,
            receiving: Vec::new(),
            next_timer_ns: u64::MAX,
            judged_ns: None,
            submitted: false,
            started_ns: now_ns,
            timed,
            busy_since_ns: 0,
            busy_ns: 0,
            error_entries: 0,
            answered_bytes: 0,
            sequence_numbers: SequenceNumbers::default(),
            authentication_jobs: VecDeque::new(),
            tickets: BTreeMap::new(),
            keys,
            channels: BTreeMap::new(),
            front: Rc::default(),
        };
        subsystem.backend.keep_drained();
        let front = subsystem.front.clone();
        subsystem.backend.set_front_statistics(Box::new(move || front.borrow().clone()));
        subsystem.take_tables();
        Ok(subsystem)
    }

    /// What serves it: for jobs, wakers, shutdown.
    pub fn backend_mut(&mut self) -> &mut B {
        &mut self.backend
    }

    /// What serves it.
    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// Its configuration.
    pub fn config(&self) -> &SubsystemConfig {
        &self.config
    }

    /// Sets the time for all that follows, until it is set again.
    pub fn set_time(&mut self, now_ns: u64) {
        self.now_ns = self.now_ns.max(now_ns);
        if self.timed {
            self.backend.set_time(self.now_ns);
        }
    }

    /// A new connection, without a queue yet. `local`: the address that the host reached. `None`: there are too many.
    pub fn open_connection(&mut self, local: Option<SocketAddr>) -> Option<ConnectionId> {
        let index = match self.queues.iter().position(Option::is_none) {
            Some(index) => index,
            None if self.queues.len() < CONNECTIONS_MAX => {
                self.queues.push(None);
                self.generations.push(0);
                self.queues.len() - 1
            }
            None => return None,
        };
        self.generations[index] = self.generations[index].wrapping_add(1);
        let generation = self.generations[index];
        self.queues[index] = Some(Queue::new(generation, local));
        self.accounts.connected(UNPROVED);
        Some(ConnectionId { index: index as u16, generation })
    }

    /// A connection is of a user of this machine who may not act as a host: nothing but discovery, and what a ticket allows.
    pub fn distrust(&mut self, connection: ConnectionId) {
        if self.queue(connection).is_some()
            && let Some(queue) = self.queues[connection.index()].as_mut()
        {
            queue.distrusted = true;
        }
    }

    /// A connection is gone: so is its queue with all commands under way, and with an admin queue its controller. The transport has
    /// given back all buffers that it had for it.
    pub fn close_connection(&mut self, connection: ConnectionId) {
        if self.queue(connection).is_none() {
            return;
        }
        self.detach(connection.index);
        self.leave_account(connection);
        self.queues[connection.index()] = None;
    }

    /// The next connection that the transport is to close: its controller is gone or reset.
    pub fn closing(&mut self) -> Option<ConnectionId> {
        self.closing.pop_front()
    }

    /// True once Connect succeeded on the connection.
    pub fn is_connected(&self, connection: ConnectionId) -> bool {
        self.queue(connection).is_some_and(|queue| queue.association.is_some())
    }

    /// The next end of a command.
    #[inline]
    pub fn completion(&mut self) -> Option<Completion> {
        let completion = self.completions.pop_front()?;
        if let Some(queue) = self.queues[completion.connection.index()].as_mut() {
            queue.completions = queue.completions.saturating_sub(1);
            self.accounts.releases += 1;
        }
        Some(completion)
    }

    pub(crate) fn queue(&self, connection: ConnectionId) -> Option<&Queue> {
        let queue = self.queues.get(connection.index())?.as_ref()?;
        (queue.generation == connection.generation).then_some(queue)
    }

    /// Takes a command; `capsule` is the data in its capsule.
    #[inline]
    pub fn command(&mut self, connection: ConnectionId, entry: &SubmissionEntry, capsule: &[u8]) -> Next {
        let Some(queue) = self.queue(connection) else { return Next::Violation("the connection is closed") };
        let index = connection.index;
        let Some(association) = queue.association else {
            if entry.opcode() == opcode::FABRICS && entry.fabrics_type() == opcode::fabrics::CONNECT {
                return self.connect(index, entry, capsule);
            }
            return Next::Violation("a command before Connect");
        };
        if queue.in_flight >= u32::from(association.entries) {
            return Next::Violation("more commands than the queue has entries");
        }
        let is_unproved = queue.account == UNPROVED;
        if queue.completions >= if is_unproved { UNPROVED_COMPLETIONS_MAX } else { association.entries.into() } {
            // Its host sends without taking what was answered.
            return Next::Wait;
        }
        if !association.authenticated {
            return self.unauthenticated_command(index, association, entry, capsule);
        }
        if entry.opcode() == opcode::FABRICS {
            return self.fabrics_command(index, association, entry, capsule);
        }
        if association.qid == 0 {
            return self.admin_command(index, association, entry, capsule);
        }
        self.io_command(index, association, entry, capsule)
    }

    /// Brings data that were fetched.
    pub fn data(&mut self, connection: ConnectionId, slot: u16, buffer: Vec<u8>) {
        match self.fetched(connection, slot) {
            Some(command) => match self.refusal(connection.index, &command) {
                None => self.execute(connection.index, slot, command, buffer),
                Some(status) => self.give_up(connection.index, slot, status, buffer),
            },
            None => self.give(connection.index, buffer),
        }
    }

    /// Data could not be fetched intact (a digest is wrong): the command fails, and may be sent again.
    pub fn data_failed(&mut self, connection: ConnectionId, slot: u16, buffer: Vec<u8>) {
        self.give(connection.index, buffer);
        if self.fetched(connection, slot).is_some() {
            self.complete(connection.index, slot, Status::TRANSIENT_TRANSPORT_ERROR, 0, None);
        }
    }

    /// Refuses a command whose capsule's data did not arrive intact.
    pub fn refuse(&mut self, connection: ConnectionId, entry: &SubmissionEntry) -> Next {
        match self.queue(connection).map(|queue| queue.association) {
            Some(Some(_)) => {
                self.fail(connection.index, entry, Failure::retryable(Status::TRANSIENT_TRANSPORT_ERROR));
                Next::Taken
            }
            _ => Next::Violation("Connect with damaged data"),
        }
    }

    fn fetched(&mut self, connection: ConnectionId, slot: u16) -> Option<command::Command> {
        self.queue(connection)?;
        let queue = self.queues[connection.index()].as_mut()?;
        let slot = queue.slots.get_mut(usize::from(slot))?;
        if slot.state != State::Fetching {
            return None;
        }
        let command = slot.command.take()?;
        queue.fetching -= 1;
        Some(command)
    }

    /// Lets the device work and time pass; returns when it wants to be called again, if it knows. To be called again at once
    /// while completions come.
    pub fn run(&mut self, now_ns: u64) -> Option<u64> {
        self.run_by(&|| now_ns)
    }

    /// The same by a clock that is asked again when the device has worked, so that commands that end at once have a latency.
    pub fn run_by(&mut self, clock: &dyn Fn() -> u64) -> Option<u64> {
        self.set_time(clock());
        self.accounts.next_turn();
        if std::mem::take(&mut self.answered_bytes) > ANSWERS_A_TURN_BYTES_MAX {
            // Whoever was told to wait for this tries again.
            self.accounts.releases += 1;
        }
        if self.backend.wants_statistics() {
            self.refresh_front();
        }
        let wake_ns = loop {
            self.submitted = false;
            let wake_ns = self.backend.run(self.now_ns);
            self.set_time(clock());
            while let Some(completion) = self.backend.completion() {
                self.device_completed(completion);
            }
            self.take_drained();
            self.admit_ready();
            if self.exclusives.are_due() {
                self.settle_fused();
            }
            if !self.submitted {
                break wake_ns;
            }
        };
        if self.tables_changed() {
            self.take_tables();
        }
        if self.backend.flash_state() != self.flash {
            self.take_flash_state();
        }
        if !self.preempting.is_empty() {
            self.settle_preempting();
        }
        if !self.receiving.is_empty() {
            self.deliver_upcalls();
        }
        if self.judged_ns.unwrap_or(self.now_ns) >= self.next_timer_ns {
            self.expire();
        }
        let retry_ns = self.ready_retry_ns();
        let timer_ns = (self.next_timer_ns != u64::MAX).then_some(self.next_timer_ns);
        // Looking for what fused operations wait for goes on at once.
        let due_ns = self.exclusives.are_due().then_some(self.now_ns);
        [wake_ns, timer_ns, retry_ns, due_ns].into_iter().flatten().min()
    }

    /// The app that serves the namespace at a place of the table.
    #[inline]
    pub(crate) fn app_of(&mut self, found: usize) -> Option<AppNumber> {
        let entry = &mut self.namespaces[found];
        if entry.app.is_none() {
            entry.app = self.backend.app_number(&entry.namespace.app);
        }
        entry.app
    }

    /// The apps that serve block namespaces, each once; where there are none, the one that would.
    pub(crate) fn block_apps(&mut self) -> Vec<AppNumber> {
        let blocks = |entry: &Entry| entry.namespace.csi == CommandSet::Nvm;
        let places: Vec<usize> = (0..self.namespaces.len()).filter(|place| blocks(&self.namespaces[*place])).collect();
        let mut apps: Vec<AppNumber> = places.iter().filter_map(|place| self.app_of(*place)).collect();
        if places.is_empty() {
            apps.extend(self.backend.app_number(base_io_host::APP_NAME));
        }
        apps.sort_unstable();
        apps.dedup();
        apps
    }

    /// Numbers of apps may have changed: ask again.
    pub(crate) fn forget_apps(&mut self) {
        self.namespaces.iter_mut().for_each(|entry| entry.app = None);
    }

    /// The tag of a slot's request.
    #[inline]
    pub(crate) fn tag(&self, index: u16, place: u16) -> u64 {
        let generation = self.generations[usize::from(index)];
        u64::from(generation) << 32 | u64::from(index) << 16 | u64::from(place)
    }

    /// Requests that the device has not answered yet, and those that wait for a place there.
    pub fn in_device(&self) -> u32 {
        self.accounts.in_device() + self.accounts.held_requests() as u32
    }

    /// A payload with a copy of `data`. Who makes it has asked [`Subsystem::has_room`], or a queue bounds how many there are.
    pub(crate) fn payload_of(&mut self, index: u16, data: &[u8]) -> Payload {
        self.padded_payload_of(index, data, data.len())
    }

    /// The same with zeroes behind the data, up to `bytes` in all.
    pub(crate) fn padded_payload_of(&mut self, index: u16, data: &[u8], bytes: usize) -> Payload {
        let mut buffer = self.take_buffer_always(index, bytes);
        let (front, rest) = buffer[HEADROOM_BYTES..HEADROOM_BYTES + bytes].split_at_mut(data.len());
        front.copy_from_slice(data);
        rest.fill(0);
        Payload { buffer, start: HEADROOM_BYTES, bytes }
    }

    /// Whether more than one host has connections.
    #[inline]
    pub fn is_shared(&self) -> bool {
        self.accounts.is_shared()
    }

    /// Whether a connection's host has had its turn, having sent so much since the device ran last, while others may wait for theirs.
    #[inline]
    pub fn has_had_its_turn(&self, connection: ConnectionId) -> bool {
        self.accounts.is_shared()
            && self.queue(connection).is_some_and(|queue| self.accounts.has_had_its_turn(queue.account))
    }

    /// A connection has sent so much that is not data of a transfer.
    #[inline]
    pub fn has_sent(&mut self, connection: ConnectionId, bytes: usize) {
        if let Some(account) = self.queue(connection).map(|queue| queue.account) {
            self.accounts.has_sent(account, bytes);
        }
    }
}
