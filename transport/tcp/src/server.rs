//! The reactor: one thread that polls sockets, hands commands to the subsystem, lets the device run and sends what came of it.
//! It polls for a bounded time after the last activity, then sleeps in the kernel until a socket, a timer or another thread
//! wakes it: fast at queue depth 1, and no processor time where nothing happens.
//!
//! One turn: receive from all that have something; run the device once; frame all completions; send once a connection.
//! What always holds: no call blocks but the sleep; a connection that does not move is ended in bounded time; jobs of the device
//! run on a thread of their own, and what hosts' proofs take on another.

mod accept;
mod deadlines;
mod reload;
mod resume;
mod stop;

use std::collections::VecDeque;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{self};
use willow_device::{Job, JobDone};
use willow_nvme::authentication::{AuthenticationDone, AuthenticationJob};
use willow_nvme::config::{ListenAddress, SENT_A_TURN_BYTES_MAX};
use willow_nvme::{Backend, ConnectionId, Subsystem};

use crate::channel::{Channel, Tls};
use crate::config::*;
use crate::connection::{Connection, End};
use crate::handle::{ServeError, ServerHandle, Shared, Worker, system};
use crate::output::Sent;
use crate::peer::LocalUsers;
use crate::wake::Wake;

const TOKEN_WAKE: u64 = u64::MAX;
const TOKEN_FRONT: u64 = u64::MAX - 1;
const TOKEN_LISTENER: u64 = 1 << 32;
/// Turns between two looks at all sockets while only hot ones are polled.
const LOOK_AROUND_TURNS: u32 = 32;
/// Polls without anything coming after which a connection is no longer hot.
const HOT_POLLS_MAX: u32 = 2000;
/// Events taken from the kernel in one call.
const EVENTS_MAX: usize = 256;

/// What a server listens on, before there is a server: where that cannot be, nothing else needs to be begun.
pub struct Listeners {
    listeners: Vec<TcpListener>,
    addresses: Vec<ListenAddress>,
}

impl Listeners {
    /// Listens where the configuration says: at all of its addresses, or the error names the one that is not to be had.
    pub fn bind(config: &ServerConfig) -> Result<Self, ServeError> {
        config.validate().map_err(ServeError::Config)?;
        let (mut listeners, mut addresses) = (Vec::new(), Vec::new());
        for wanted in &config.listen {
            let address = wanted.address;
            let listen = || -> std::io::Result<(TcpListener, SocketAddr)> {
                let listener = TcpListener::bind(address)?;
                listener.set_nonblocking(true)?;
                let address = listener.local_addr()?;
                Ok((listener, address))
            };
            let (listener, address) = listen().map_err(|source| ServeError::Listen { address, source })?;
            listeners.push(listener);
            addresses.push(ListenAddress { address, ..*wanted });
        }
        Ok(Listeners { listeners, addresses })
    }
}

/// An NVMe/TCP target in front of a device.
pub struct Server<B: Backend> {
    config: ServerConfig,
    subsystem: Subsystem<B>,
    /// Where connections can be TLS.
    tls: Option<Tls>,
    shared: Arc<Shared>,
    listeners: Vec<TcpListener>,
    addresses: Vec<ListenAddress>,
    /// Where users of this machine are told apart.
    local_users: Option<LocalUsers>,
    poll: OwnedFd,
    /// By the connection's index in the subsystem.
    connections: Vec<Option<Connection>>,
    open: usize,
    /// Indices of connections with something to send.
    dirty: Vec<usize>,
    /// Connections that were active lately: index, and how often they were polled since without anything coming.
    hot: Vec<(usize, u32)>,
    /// Connections whose TLS may have plaintext that no socket tells of.
    unread: Vec<usize>,
    /// Connections that were told to wait for room, in turn.
    waiting: VecDeque<usize>,
    /// Of them those that have not tried again since room was made, and the subsystem's count of releases then.
    retries_due: usize,
    releases_seen: u64,
    receive: Vec<u8>,
    started: Instant,
    now_ns: u64,
    accept_after_ns: u64,
    /// Connections accepted so far.
    accepted: u64,
    /// When time limits are looked at next, however busy it is.
    judge_at_ns: u64,
    /// Two, so that no module that is compiled keeps hosts from proving themselves.
    jobs: Worker<Job, JobDone>,
    authentications: Worker<AuthenticationJob, AuthenticationDone>,
}

impl<B: Backend> Server<B> {
    /// Listens where the configuration says.
    pub fn bind(config: ServerConfig, backend: B) -> Result<Self, ServeError> {
        let listeners = Listeners::bind(&config)?;
        Self::new(config, listeners, backend)
    }

    /// In front of `backend`; hosts can connect from when the listeners were bound, and are answered once [`Server::run`] runs.
    pub fn new(mut config: ServerConfig, listeners: Listeners, mut backend: B) -> Result<Self, ServeError> {
        config.validate().map_err(ServeError::Config)?;
        let wake = Wake::new().map_err(system("cannot make an eventfd"))?;
        let shared = Arc::new(Shared {
            wake,
            stop: AtomicBool::new(false),
            statistics: Mutex::new(Vec::new()),
            reload: Mutex::new(None),
        });
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system("cannot make an epoll"))?;
        epoll::add(&poll, shared.wake.descriptor(), EventData::new_u64(TOKEN_WAKE), EventFlags::IN)
            .map_err(system("cannot poll"))?;
        let Listeners { listeners, addresses } = listeners;
        accept::add_listeners(&poll, &listeners)?;
        let tells_apart = config.local_users.is_some() && config.subsystem.authentication.is_none();
        let local_users = if tells_apart {
            Some(LocalUsers::new().map_err(system("cannot ask the kernel whose a connection is"))?)
        } else {
            None
        };
        if let Some(front) = backend.front_descriptor() {
            epoll::add(&poll, front, EventData::new_u64(TOKEN_FRONT), EventFlags::IN).map_err(system("cannot poll"))?;
        }
        let waker = shared.clone();
        backend.set_waker(Arc::new(move || waker.wake.wake()));
        let started = Instant::now();
        backend.set_clock(Box::new(move || started.elapsed().as_nanos() as u64));
        config.subsystem.addresses = addresses.clone();
        let subsystem = Subsystem::new(config.subsystem.clone(), backend, 0).map_err(ServeError::Config)?;
        let tls = Tls::new(&config, subsystem.keys()).map_err(|error| ServeError::Config(error.to_string()))?;
        let jobs = Worker::start("willow-jobs", shared.clone(), Job::run)?;
        let authentications = Worker::start("willow-keys", shared.clone(), AuthenticationJob::run)?;
        Ok(Server {
            config,
            subsystem,
            tls,
            shared,
            listeners,
            addresses,
            local_users,
            poll,
            connections: Vec::new(),
            open: 0,
            dirty: Vec::new(),
            hot: Vec::new(),
            unread: Vec::new(),
            waiting: VecDeque::new(),
            retries_due: 0,
            releases_seen: 0,
            receive: vec![0; RECEIVE_BYTES],
            started,
            now_ns: 0,
            accept_after_ns: 0,
            accepted: 0,
            judge_at_ns: 0,
            jobs,
            authentications,
        })
    }

    /// The first address that is listened on.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.addresses.first().map(|listen| listen.address)
    }

    /// All of them.
    pub fn local_addrs(&self) -> &[ListenAddress] {
        &self.addresses
    }

    /// To stop it or ask it from other threads.
    pub fn handle(&self) -> ServerHandle {
        ServerHandle { shared: self.shared.clone() }
    }

    /// The subsystem, before it runs or after.
    pub fn subsystem_mut(&mut self) -> &mut Subsystem<B> {
        &mut self.subsystem
    }

    /// Serves until [`ServerHandle::stop`]; then lets commands under way end, closes all connections and shuts the device
    /// down cleanly.
    pub fn run(&mut self) -> Result<(), ServeError> {
        let spin_ns = self.config.spin.as_nanos() as u64;
        // A model's completions are due to the microsecond: the rest of the way to them is polled.
        let early_ns = if self.subsystem.backend().is_timed() { WAKE_EARLY.as_nanos() as u64 } else { 0 };
        let mut active_ns = 0;
        let mut turns = 0u32;
        let mut readable = Vec::with_capacity(EVENTS_MAX);
        self.tick();
        while !self.shared.stop.load(Ordering::Relaxed) {
            turns = turns.wrapping_add(1);
            let mut active = self.shared.wake.take();
            if active {
                self.answer_others();
            }
            // Which sockets have something: polled directly while few are hot, asked of the kernel else.
            readable.clear();
            let is_quiet = self.hot.is_empty() && !self.subsystem.backend().front_is_hot();
            let look_around =
                self.hot.len() > HOT_CONNECTIONS_MAX || turns.is_multiple_of(LOOK_AROUND_TURNS) || is_quiet;
            if look_around {
                self.poll(Some(0), &mut readable)?;
            }
            // One that has gone quiet beside busy ones is left to the kernel.
            self.hot.retain_mut(|(_, polls)| {
                *polls += 1;
                *polls < HOT_POLLS_MAX
            });
            for (index, _) in self.hot.iter().take(HOT_CONNECTIONS_MAX) {
                if !readable.contains(index) {
                    readable.push(*index);
                }
            }
            for index in self.unread.drain(..) {
                if !readable.contains(&index) {
                    readable.push(index);
                }
            }
            self.tick();
            for index in readable.drain(..) {
                active |= self.receive(index);
            }
            if self.now_ns >= self.judge_at_ns || self.now_ns >= self.subsystem.timer_ns() {
                // Nobody is judged by what lies unread: after a pause of this process all of it is old.
                self.read_all(&mut readable)?;
                self.subsystem.judge_by(self.now_ns);
                self.check_time_limits();
            }
            let (worked, wake_ns) = self.work();
            active |= worked | self.subsystem.backend_mut().front_was_active();
            if active {
                active_ns = self.now_ns;
                continue;
            }
            let may_come = self.open > 0 || self.subsystem.backend().front_is_hot();
            if self.now_ns.saturating_sub(active_ns) < spin_ns && may_come {
                std::hint::spin_loop();
                continue;
            }
            if wake_ns.is_some_and(|at_ns| at_ns <= self.now_ns.saturating_add(early_ns)) {
                std::hint::spin_loop();
                continue;
            }
            let wake_ns = wake_ns.map(|at_ns| at_ns - early_ns);
            if self.has_to_resume() {
                continue;
            }
            if self.read_all(&mut readable)? {
                continue;
            }
            self.hot.clear();
            self.subsystem.judge_by(self.now_ns);
            let judge_at_ns = self.check_time_limits();
            if self.has_to_resume() {
                // Somebody was ended: there is room for others.
                continue;
            }
            let deadline_ns = [wake_ns, judge_at_ns].into_iter().flatten().min();
            let sleep_ns = match deadline_ns {
                Some(at_ns) if at_ns <= self.now_ns => continue,
                Some(at_ns) => Some(at_ns - self.now_ns),
                None => None,
            };
            if self.subsystem.backend_mut().prepare_sleep() && self.shared.wake.prepare_sleep() {
                let slept = self.poll(sleep_ns, &mut readable);
                self.shared.wake.awake();
                slept?;
                // What woke it is likely to go on: spin from here.
                active_ns = self.tick();
                for index in readable.drain(..) {
                    self.receive(index);
                }
            }
        }
        self.wind_down()
    }

    fn tick(&mut self) -> u64 {
        self.now_ns = self.started.elapsed().as_nanos() as u64;
        self.subsystem.set_time(self.now_ns);
        self.now_ns
    }

    /// Asks the kernel what is ready; accepts, and puts readable connections into `readable`. False where there was nothing.
    fn poll(&mut self, sleep_ns: Option<u64>, readable: &mut Vec<usize>) -> Result<bool, ServeError> {
        let timeout = sleep_ns.map(|nanoseconds| rustix::event::Timespec {
            tv_sec: (nanoseconds / 1_000_000_000) as i64,
            tv_nsec: (nanoseconds % 1_000_000_000) as i64,
        });
        let mut events: Vec<epoll::Event> = Vec::with_capacity(0);
        let mut space = [const { std::mem::MaybeUninit::<epoll::Event>::uninit() }; EVENTS_MAX];
        match epoll::wait(&self.poll, &mut space, timeout.as_ref()) {
            Ok((ready, _)) => events.extend(ready.iter().copied()),
            Err(Errno::INTR) => {}
            Err(source) => return Err(system("cannot wait for events")(source)),
        }
        // What was accepted after a long sleep counts its time limits from now.
        if sleep_ns != Some(0) {
            self.tick();
        }
        let came = !events.is_empty();
        for event in events {
            match event.data.u64() {
                TOKEN_WAKE => self.shared.wake.drain(),
                TOKEN_FRONT => self.subsystem.backend_mut().look_around(self.now_ns),
                token if token >= TOKEN_LISTENER => self.accept((token - TOKEN_LISTENER) as usize),
                token => {
                    let index = token as usize;
                    let Some(Some(connection)) = self.connections.get_mut(index) else { continue };
                    let flags = event.flags;
                    if flags.intersects(EventFlags::OUT | EventFlags::ERR | EventFlags::HUP) && connection.blocked {
                        connection.blocked = false;
                        self.mark_dirty(index);
                    }
                    if flags.intersects(EventFlags::IN | EventFlags::ERR | EventFlags::HUP | EventFlags::RDHUP) {
                        readable.push(index);
                    }
                }
            }
        }
        Ok(came)
    }

    #[inline]
    fn mark_hot(&mut self, index: usize) {
        match self.hot.iter_mut().find(|(other, _)| *other == index) {
            Some((_, polls)) => *polls = 0,
            None => self.hot.push((index, 0)),
        }
    }

    /// Schedules another read: TLS may still hold decrypted bytes.
    #[inline]
    fn mark_unread(&mut self, index: usize) {
        if let Some(Some(connection)) = self.connections.get(index)
            && connection.more
            && connection.may_read()
            && !self.unread.contains(&index)
        {
            self.unread.push(index);
        }
    }

    fn mark_dirty(&mut self, index: usize) {
        if let Some(Some(connection)) = self.connections.get_mut(index)
            && !connection.dirty
        {
            connection.dirty = true;
            self.dirty.push(index);
        }
    }

    /// Receives once from a connection and takes what came; true where something did.
    fn receive(&mut self, index: usize) -> bool {
        let Some(Some(connection)) = self.connections.get_mut(index) else { return false };
        if !connection.may_read() {
            return false;
        }
        if self.subsystem.has_had_its_turn(connection.id) {
            // Read from it again in the next turn, which comes at once.
            if !self.unread.contains(&index) {
                self.unread.push(index);
            }
            return true;
        }
        if !matches!(connection.channel, Channel::Plain | Channel::Tls(_)) && !self.open_channel(index) {
            return false;
        }
        let Some(Some(connection)) = self.connections.get_mut(index) else { return false };
        let carried = connection.carry().len();
        // A PDU that is not whole yet lies in front of what comes.
        self.receive[..carried].copy_from_slice(connection.carry());
        // Who proved nothing, or waits for room again and again, is read from in small pieces: what is received is held.
        let is_small = connection.waited || self.subsystem.is_unproved(connection.id);
        let once = match (is_small, self.subsystem.is_shared()) {
            (true, _) => RECEIVE_ONCE_SMALL_BYTES,
            (false, true) => SENT_A_TURN_BYTES_MAX,
            (false, false) => RECEIVE_ONCE_BYTES,
        };
        let end = RECEIVE_BYTES.min(carried + once);
        let rest = &mut self.receive[carried..end];
        let (direct_bytes, outcome) = connection.receive(rest);
        let count = match outcome {
            Ok(0) => {
                self.close(index, "closed by the host");
                return true;
            }
            Ok(count) => count,
            Err(Errno::AGAIN | Errno::INTR) => return false,
            Err(error) => {
                tracing::debug!(connection = index, %error, "receive failed");
                self.close(index, "lost");
                return true;
            }
        };
        connection.progress_ns = self.now_ns;
        let direct = count.min(direct_bytes);
        if direct > 0 {
            connection.direct_received(direct, &mut self.subsystem);
        }
        self.subsystem.has_sent(connection.id, count - direct);
        let bytes = &self.receive[..carried + (count - direct)];
        let ended = connection.received(bytes, self.now_ns, &mut self.subsystem);
        connection.tell_held(&mut self.subsystem);
        if connection.waiting {
            self.waiting.push_back(index);
        }
        let dirty = !connection.output.is_empty();
        if ended == Err(End::Host) {
            self.close(index, "ended by the host");
            return true;
        }
        let may_read = connection.may_read();
        if dirty {
            self.mark_dirty(index);
        }
        if !may_read {
            self.update_interest(index);
        } else {
            self.mark_unread(index);
        }
        self.mark_hot(index);
        true
    }

    /// Lets the device run, frames what came of it and sends. Returns whether something happened, and when the device wants
    /// to run again.
    fn work(&mut self) -> (bool, Option<u64>) {
        let started = self.started;
        let wake_ns = self.subsystem.run_by(&|| started.elapsed().as_nanos() as u64);
        let mut worked = false;
        while let Some(completion) = self.subsystem.completion() {
            worked = true;
            let index = completion.connection.index();
            match self.connections.get_mut(index) {
                Some(Some(connection)) if connection.id == completion.connection => {
                    connection.complete(completion, &mut self.subsystem);
                    self.mark_dirty(index);
                }
                _ => {
                    if let Some(payload) = completion.payload {
                        self.subsystem.give_buffer(completion.connection, payload.buffer);
                    }
                }
            }
        }
        worked |= self.send();
        while let Some(id) = self.subsystem.closing() {
            worked = true;
            self.close_after_output(id);
        }
        worked |= self.resume();
        while let Some(job) = self.subsystem.backend_mut().job() {
            worked = true;
            self.jobs.send(job);
        }
        while let Some(job) = self.subsystem.authentication_job() {
            worked = true;
            self.authentications.send(job);
        }
        (worked, wake_ns)
    }

    fn send(&mut self) -> bool {
        let mut worked = false;
        let mut list = std::mem::take(&mut self.dirty);
        for index in list.drain(..) {
            let Some(Some(connection)) = self.connections.get_mut(index) else { continue };
            connection.dirty = false;
            if connection.blocked || connection.output.is_empty() {
                continue;
            }
            worked = true;
            let (subsystem, id) = (&mut self.subsystem, connection.id);
            match connection.send(self.now_ns, |buffer| subsystem.give_buffer(id, buffer)) {
                Ok(sent) => {
                    connection.tell_held(&mut self.subsystem);
                    connection.blocked = sent == Sent::Blocked;
                    let goes_on = sent == Sent::Enough;
                    if connection.terminating_ns.is_some() && sent == Sent::All {
                        // The termination request was the last of it; the host is to close now.
                        connection.say_goodbye();
                        let _ = net::shutdown(&connection.socket, net::Shutdown::Write);
                    }
                    self.update_interest(index);
                    if goes_on {
                        self.mark_dirty(index);
                    }
                }
                Err(error) => {
                    tracing::debug!(connection = index, %error, "send failed");
                    self.close(index, "lost");
                }
            }
        }
        // The list's memory is kept; closing may have added nothing to it.
        if self.dirty.is_empty() {
            self.dirty = list;
        }
        worked
    }

    /// Tells the poll what a connection can do now: read where it may, send where the kernel was full.
    fn update_interest(&mut self, index: usize) {
        let Some(Some(connection)) = self.connections.get_mut(index) else { return };
        let mut wanted = EventFlags::empty();
        if connection.may_read() {
            wanted |= EventFlags::IN | EventFlags::RDHUP;
        }
        if connection.blocked {
            wanted |= EventFlags::OUT;
        }
        self.mark_unread(index);
        let Some(Some(connection)) = self.connections.get_mut(index) else { return };
        if wanted != connection.interest {
            connection.interest = wanted;
            if let Err(error) = epoll::modify(&self.poll, &connection.socket, EventData::new_u64(index as u64), wanted)
            {
                tracing::error!(%error, "cannot change what the poll looks for");
            }
        }
    }

    /// Closes a connection whose controller is gone, after what is to be sent has been tried once more.
    fn close_after_output(&mut self, id: ConnectionId) {
        let index = id.index();
        let Some(Some(connection)) = self.connections.get_mut(index) else { return };
        if connection.id != id {
            return;
        }
        if !connection.output.is_empty() && !connection.blocked {
            let subsystem = &mut self.subsystem;
            let _ = connection.send(self.now_ns, |buffer| subsystem.give_buffer(id, buffer));
        }
        self.close(index, "its controller is gone or reset");
    }

    fn close(&mut self, index: usize, reason: &'static str) {
        let Some(mut connection) = self.connections.get_mut(index).and_then(Option::take) else { return };
        if connection.waiting {
            self.waiting.retain(|other| *other != index);
        }
        connection.say_goodbye();
        connection.clear(&mut self.subsystem);
        self.subsystem.close_connection(connection.id);
        self.open -= 1;
        self.hot.retain(|(other, _)| *other != index);
        tracing::debug!(connection = index, reason, "connection closed");
    }

    /// Does what other threads asked for.
    fn answer_others(&mut self) {
        while let Some(done) = self.jobs.done() {
            self.subsystem.backend_mut().job_done(done);
        }
        while let Some(done) = self.authentications.done() {
            self.subsystem.authentication_done(done);
        }
        self.answer_reload();
        let asked = self.shared.statistics.lock().map(|mut list| std::mem::take(&mut *list)).unwrap_or_default();
        if !asked.is_empty() {
            let statistics = self.subsystem.statistics();
            asked.into_iter().for_each(|sender| {
                let _ = sender.try_send(statistics.clone());
            });
        }
    }
}
