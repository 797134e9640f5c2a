//! All endpoints in shared memory: who is let in, which rings are polled, what ends.
//!
//! What always holds:
//! - a ring that is not in the list of hot ones has told its host to ring, and one that rings is hot again: no command is
//!   forgotten, and rings that are quiet cost nothing;
//! - a tag that the device is handed names connection, generation and flight, so that an answer for an endpoint that has ended
//!   finds nobody;
//! - a connection keeps its place until its socket is closed, which may wait for descriptors that its process has sent: no thread but
//!   one of its own does;
//! - all of a process's endpoints end with it, whoever else holds their sockets.

use crate::admission::Closing;
use crate::config::*;
use crate::connection::{Came, Connection};
use crate::endpoint::Taken;
use crate::processes::Processes;
use crate::service::Receive;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use willow_device::control::CONTROL_APP;
use willow_device::{HostCompletion, HostRequest, Namespace, RpcList, RpcOutcome};
use willow_nvme::Backend;
use willow_shm::layout::Outcome;
use willow_shm::message::DOORBELL;
use willow_shm::rings::device::Violation;
use willow_shm::socket::{Listener, Peer};

pub(crate) const TOKEN_LISTENER: u64 = u64::MAX;
/// Marks tokens of processes; the rest is the process' number.
pub(crate) const TOKEN_PROCESS: u64 = 1 << 62;
/// Marks tags of this front among all that the device is handed.
const TAG_MARK: u64 = 1 << 63;
/// Events taken from the kernel in one call.
const EVENTS_MAX: usize = 64;

/// Why there is no front.
#[derive(Debug, thiserror::Error)]
pub enum FrontError {
    /// A value of the configuration.
    #[error("{0}")]
    Config(String),
    /// The socket cannot be had.
    #[error("cannot listen at {path}: {source}")]
    Listen {
        /// The socket.
        path: String,
        /// What is in the way.
        source: std::io::Error,
    },
    /// The kernel refuses something that the front cannot do without.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the kernel says.
        source: std::io::Error,
    },
}

/// What the front has done so far.
#[derive(Debug, Default)]
pub struct Counters {
    /// Endpoints open now.
    pub endpoints: Cell<u64>,
    /// Processes connected now.
    pub processes: Cell<u64>,
    /// Commands taken.
    pub commands: Cell<u64>,
    /// Endpoints ended since their host broke the rules.
    pub violations: Cell<u64>,
    /// Requests for an endpoint that were refused.
    pub refused: Cell<u64>,
}

pub(crate) fn add(counter: &Cell<u64>, by: u64) {
    counter.set(counter.get().wrapping_add(by));
}

/// The front.
pub struct Front {
    pub(crate) config: FrontConfig,
    /// [`Opened::start`].
    pub(crate) start: u64,
    pub(crate) listener: Listener,
    pub(crate) poll: OwnedFd,
    pub(crate) owner_uid: u32,
    pub(crate) processes: Processes,
    pub(crate) connections: Vec<Option<Connection>>,
    pub(crate) generations: Vec<u16>,
    pub(crate) open: usize,
    /// Connections that have ended and are not closed yet.
    pub(crate) closing: Vec<Closing>,
    pub(crate) endpoints: usize,
    pub(crate) memory_bytes: u64,
    /// Indices of connections whose rings are polled.
    pub(crate) hot: Vec<usize>,
    /// Indices of connections with completions that their hosts may have to be told of.
    pub(crate) dirty: Vec<usize>,
    pub(crate) receives: Vec<Receive>,
    pub(crate) buffers: Vec<Vec<u8>>,
    pub(crate) namespaces: Arc<Vec<Namespace>>,
    /// How often the FTL had lost something when endpoints were last looked at.
    pub(crate) flash_losses: u64,
    pub(crate) view_version: u32,
    pub(crate) turns: u32,
    pub(crate) active: bool,
    pub(crate) statistics_wanted: bool,
    pub(crate) accept_after_ns: u64,
    /// When to look at time limits again.
    pub(crate) next_limit_ns: u64,
    /// When to look for processes that were killed and cannot end, and the number of the last that was looked at.
    pub(crate) look_ns: u64,
    pub(crate) looked_at: u32,
    pub(crate) counters: Rc<Counters>,
}

impl Front {
    /// Listens; processes are answered once the loop runs.
    pub fn bind(config: FrontConfig) -> Result<Self, FrontError> {
        config.validate().map_err(FrontError::Config)?;
        let system = |what| move |error: Errno| FrontError::System { what, source: error.into() };
        let listener = Listener::bind(&config.path, config.mode, config.descriptors)
            .map_err(|source| FrontError::Listen { path: config.path.display().to_string(), source })?;
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system("cannot make an epoll"))?;
        epoll::add(&poll, &listener, EventData::new_u64(TOKEN_LISTENER), EventFlags::IN)
            .map_err(system("cannot poll"))?;
        Ok(Front {
            config,
            start: 0,
            listener,
            poll,
            owner_uid: rustix::process::geteuid().as_raw(),
            processes: Processes::default(),
            connections: Vec::new(),
            generations: Vec::new(),
            open: 0,
            closing: Vec::new(),
            endpoints: 0,
            memory_bytes: 0,
            hot: Vec::new(),
            dirty: Vec::new(),
            receives: Vec::new(),
            buffers: Vec::new(),
            namespaces: Arc::default(),
            flash_losses: 0,
            view_version: 0,
            turns: 0,
            active: false,
            statistics_wanted: false,
            accept_after_ns: 0,
            next_limit_ns: u64::MAX,
            look_ns: 0,
            looked_at: 0,
            counters: Rc::default(),
        })
    }

    /// Of a device that loses with its process what it answered and did not flush: which start of it this is, told with each endpoint.
    pub fn with_start(self, start: u64) -> Front {
        Front { start, ..self }
    }

    /// What it has done so far, as it goes on.
    pub fn counters(&self) -> Rc<Counters> {
        self.counters.clone()
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.poll.as_fd()
    }

    pub(crate) fn was_active(&mut self) -> bool {
        std::mem::take(&mut self.active)
    }

    #[inline]
    pub(crate) fn wants_statistics(&mut self) -> bool {
        std::mem::take(&mut self.statistics_wanted)
    }

    pub(crate) fn is_hot(&self) -> bool {
        !self.hot.is_empty()
    }

    /// Takes commands off the rings and hands them to the device; returns when it wants to be called again, if it knows.
    #[inline]
    pub(crate) fn turn<B: Backend>(&mut self, device: &mut B, now_ns: u64) -> Option<u64> {
        self.turns = self.turns.wrapping_add(1);
        if self.hot.is_empty() && self.open == 0 && self.accept_after_ns == 0 {
            return None;
        }
        if self.turns.is_multiple_of(LOOK_AROUND_TURNS) && !self.hot.is_empty() {
            self.look_around(device, now_ns);
        }
        let mut place = 0;
        while let Some(index) = self.hot.get(place).copied() {
            let keep = self.serve(device, index, now_ns);
            if keep {
                place += 1;
            } else if self.hot.get(place) == Some(&index) {
                self.hot.swap_remove(place);
            }
        }
        if now_ns >= self.next_limit_ns {
            self.check_limits(device, now_ns);
        }
        if !self.receives.is_empty() {
            self.deliver_upcalls(device, now_ns);
        }
        (self.next_limit_ns != u64::MAX).then_some(self.next_limit_ns)
    }

    /// Serves one ring; false where it is not hot any more.
    #[inline]
    fn serve<B: Backend>(&mut self, device: &mut B, index: usize, now_ns: u64) -> bool {
        let Some(Some(connection)) = self.connections.get_mut(index) else { return false };
        let Some(endpoint) = connection.endpoint.as_mut() else {
            connection.is_hot = false;
            return false;
        };
        if let Some((request, window)) = endpoint.held.take()
            && let Err(request) = device.submit_to(endpoint.hre, request, window.clone())
        {
            endpoint.held = Some((request, window));
            return true;
        }
        let mut taken = 0;
        let mut ended = None;
        while taken < BATCH_MAX {
            let buffers = &mut self.buffers;
            let connection = match self.connections.get_mut(index) {
                Some(Some(connection)) => connection,
                _ => return false,
            };
            let Some(endpoint) = connection.endpoint.as_mut() else { return false };
            match endpoint.take(|| buffers.pop().unwrap_or_default()) {
                Ok(None) => break,
                Ok(Some(Taken::Request(flight, mut request, window))) => {
                    request.tag = tag(index, self.generations[index], flight);
                    if is_for_control(&request) {
                        // One turn later, so that the statistics that it may ask for are made before.
                        self.statistics_wanted = true;
                        endpoint.held = Some((request, window));
                        taken += 1;
                        break;
                    }
                    if let Err(request) = device.submit_to(endpoint.hre, request, window.clone()) {
                        endpoint.held = Some((request, window));
                        taken += 1;
                        break;
                    }
                }
                Ok(Some(other)) => self.do_other(device, index, other, now_ns),
                Err(violation) => {
                    ended = Some(violation);
                    break;
                }
            }
            taken += 1;
        }
        if let Some(Violation(why)) = ended {
            add(&self.counters.violations, 1);
            self.end(device, index, why);
            return false;
        }
        let Some(Some(connection)) = self.connections.get_mut(index) else { return false };
        let Some(endpoint) = connection.endpoint.as_mut() else { return false };
        if taken > 0 {
            endpoint.show_position();
            connection.idle_polls = 0;
            self.active = true;
            add(&self.counters.commands, u64::from(taken));
            return true;
        }
        connection.idle_polls += 1;
        if connection.idle_polls >= HOT_POLLS_MAX && endpoint.held.is_none() && endpoint.fall_asleep() {
            connection.is_hot = false;
            return false;
        }
        true
    }

    #[inline]
    pub(crate) fn mark_dirty(&mut self, index: usize) {
        if let Some(Some(connection)) = self.connections.get_mut(index)
            && !connection.is_dirty
        {
            connection.is_dirty = true;
            self.dirty.push(index);
        }
    }

    pub(crate) fn mark_hot(&mut self, index: usize) {
        if let Some(Some(connection)) = self.connections.get_mut(index)
            && let Some(endpoint) = connection.endpoint.as_mut()
        {
            endpoint.wake();
            connection.idle_polls = 0;
            if !connection.is_hot {
                connection.is_hot = true;
                self.hot.push(index);
            }
        }
    }

    /// Whether a completion is one of this front's.
    #[inline]
    pub(crate) fn is_mine(&self, completion: &HostCompletion) -> bool {
        completion.tag & TAG_MARK != 0
    }

    /// Takes a completion that is this front's; gives back any other.
    #[inline]
    pub(crate) fn completed(&mut self, completion: HostCompletion) -> Option<HostCompletion> {
        if !self.is_mine(&completion) {
            return Some(completion);
        }
        self.active = true;
        let (index, generation, flight) =
            ((completion.tag >> 16) as u16 as usize, (completion.tag >> 32) as u16, completion.tag as u16);
        if completion.buffer.capacity() > 0
            && completion.buffer.capacity() <= BUFFER_KEPT_BYTES_MAX
            && self.buffers.len() < BUFFERS_MAX
        {
            self.buffers.push(completion.buffer);
        }
        if self.generations.get(index) != Some(&generation) {
            return None;
        }
        let Some(Some(connection)) = self.connections.get_mut(index) else { return None };
        let endpoint = connection.endpoint.as_mut()?;
        if endpoint.hre != completion.hre {
            return None;
        }
        let (outcome, status) = match completion.outcome {
            RpcOutcome::Answered { status } => (Outcome::Answered, status),
            RpcOutcome::NoApp => (Outcome::NoApp, 0),
            RpcOutcome::NoHandler => (Outcome::NoHandler, 0),
            RpcOutcome::NoSpu => (Outcome::NoSpu, 0),
            RpcOutcome::Refused => (Outcome::Refused, 0),
            RpcOutcome::AppEnded => (Outcome::AppEnded, 0),
            RpcOutcome::NotPermitted => (Outcome::NotPermitted, 0),
            RpcOutcome::Aborted => (Outcome::Aborted, 0),
        };
        endpoint.end(flight, outcome, status, completion.result, completion.reply_bytes);
        if !connection.is_hot {
            self.mark_hot(index);
        }
        self.mark_dirty(index);
        None
    }

    /// All completions of this turn are on their rings: wakes hosts that sleep.
    #[inline]
    pub(crate) fn tell_hosts(&mut self) {
        while let Some(index) = self.dirty.pop() {
            let Some(Some(connection)) = self.connections.get_mut(index) else { continue };
            connection.is_dirty = false;
            if let Some(endpoint) = &connection.endpoint
                && endpoint.wants_doorbell()
            {
                // A full queue has rung already; one that has gone is noticed by the poll.
                let _ = connection.channel.send(DOORBELL, &[]);
            }
        }
    }

    /// True where nothing waits on any ring: their hosts ring from now on.
    pub(crate) fn prepare_sleep(&mut self) -> bool {
        while let Some(index) = self.hot.last().copied() {
            if let Some(Some(connection)) = self.connections.get_mut(index)
                && let Some(endpoint) = connection.endpoint.as_mut()
            {
                if endpoint.held.is_some() || !endpoint.fall_asleep() {
                    return false;
                }
                connection.is_hot = false;
            }
            self.hot.pop();
        }
        true
    }

    /// The descriptor was readable: accepts, receives, and ends what is over.
    pub(crate) fn look_around<B: Backend>(&mut self, device: &mut B, now_ns: u64) {
        let mut space = [const { std::mem::MaybeUninit::<epoll::Event>::uninit() }; EVENTS_MAX];
        let zero = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        let events: Vec<epoll::Event> = match epoll::wait(&self.poll, &mut space, Some(&zero)) {
            Ok((ready, _)) => ready.to_vec(),
            Err(_) => return,
        };
        for event in events {
            self.active = true;
            match event.data.u64() {
                TOKEN_LISTENER => self.accept(now_ns),
                token if token & TOKEN_PROCESS != 0 => self.process_ended(device, token as u32),
                token => {
                    let (index, generation) = (token as u32 as usize, (token >> 32) as u16);
                    if self.generations.get(index) != Some(&generation) {
                        continue;
                    }
                    let Some(Some(connection)) = self.connections.get(index) else { continue };
                    match connection.receive() {
                        None => {}
                        Some(Came::Doorbell) => self.mark_hot(index),
                        Some(Came::Open(kind, entries, data_bytes)) => {
                            if let Err(why) = self.open(device, index, kind, entries, data_bytes) {
                                self.refuse(device, index, &why);
                            }
                        }
                        Some(Came::End(why)) if why.is_empty() => self.end(device, index, "closed by its process"),
                        Some(Came::End(why)) => self.refuse(device, index, &why),
                    }
                }
            }
        }
    }

    /// To be called when the device has run, before its completions are taken: whoever sees that a namespace was made or
    /// deleted sees the new view, too.
    #[inline]
    pub(crate) fn look_at_namespaces<B: Backend>(&mut self, device: &B) {
        if self.open > 0 && !Arc::ptr_eq(&self.namespaces, &device.namespaces()) {
            self.take_namespaces(device);
        }
    }

    #[cold]
    fn take_namespaces<B: Backend>(&mut self, device: &B) {
        self.namespaces = device.namespaces();
        self.view_version = self.view_version.wrapping_add(1);
        for connection in self.connections.iter().flatten() {
            if let Some(endpoint) = &connection.endpoint {
                endpoint.show_view(self.view_version);
            }
        }
    }

    /// To be called when the device has run: where what was answered and not flushed may be lost, endpoints end, so that hosts know.
    #[inline]
    pub(crate) fn look_at_flash<B: Backend>(&mut self, device: &mut B) {
        let losses = device.flash_state().losses;
        if self.flash_losses != losses {
            self.flash_losses = losses;
            self.end_endpoints(device);
        }
    }

    #[cold]
    fn end_endpoints<B: Backend>(&mut self, device: &mut B) {
        for index in 0..self.connections.len() {
            let has_endpoint = |connection: &Connection| connection.endpoint.is_some();
            if self.connections[index].as_ref().is_some_and(has_endpoint) {
                self.end(device, index, "the FTL has failed: what was answered and not flushed may be lost");
            }
        }
    }

    /// Ends all connections: the device shuts down.
    pub(crate) fn shut_down<B: Backend>(&mut self, device: &mut B) {
        for index in 0..self.connections.len() {
            self.end(device, index, "the device shuts down");
        }
        self.listen_for(EventFlags::empty());
    }

    /// The process of an endpoint's number: its kernel-given credentials.
    pub fn peer_of(&self, process: u32) -> Option<&Peer> {
        self.processes.of_number(process).map(|(_, process)| &process.peer)
    }
}

#[inline]
fn is_for_control(request: &HostRequest) -> bool {
    matches!(&request.rpcs, RpcList::One(rpc) if rpc.app == CONTROL_APP)
}

pub(crate) fn tag(index: usize, generation: u16, flight: u16) -> u64 {
    TAG_MARK | u64::from(generation) << 32 | (index as u64) << 16 | u64::from(flight)
}

/// Counters as the statistics show them.
pub(crate) fn document(counters: &Counters) -> serde_json::Value {
    let of = |counter: &Cell<u64>| serde_json::Value::from(counter.get());
    let fields: BTreeMap<&str, serde_json::Value> = [
        ("endpoints", of(&counters.endpoints)),
        ("processes", of(&counters.processes)),
        ("commands", of(&counters.commands)),
        ("violations", of(&counters.violations)),
        ("refused", of(&counters.refused)),
    ]
    .into();
    serde_json::to_value(fields).unwrap_or_default()
}
