//! The sockets: one thread that polls listeners, clients and the device.
//!
//! What always holds: nothing here waits but the one call that waits for all; whoever cannot go on waits in a queue of its own cause, and
//! is taken from there in turn.

mod config;
mod socket;

pub use config::{ServerConfig, ServerError};

use crate::connection::{Connection, Grants, Stop};
use crate::engine::Engine;
use crate::port::{Port, PortError};
use config::system;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::Errno;
use socket::{Listener, Socket};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Events that are taken at a time.
const EVENTS_MAX: usize = 256;
/// Looks at the device between two looks at the sockets.
const LOOKS: u32 = 16;
/// Between two tries to reach a device that is gone.
const RETRY: Duration = Duration::from_millis(200);
/// How long a connection may hold the room for a long item until all of that has come.
const GRANT_TIME_MAX: Duration = Duration::from_secs(60);
/// Between two looks at those that hold such room; also the longest sleep.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long what is under way may take when the server is stopped.
const GOODBYE: Duration = Duration::from_secs(5);
/// How long nobody is accepted after descriptors ran out.
const NO_DESCRIPTORS: Duration = Duration::from_millis(100);

const TOKEN_STOP: u64 = 0;
const TOKEN_PORT: u64 = 1;
const TOKEN_LISTENER: u64 = 2;
const TOKEN_CONNECTION: u64 = 1 << 32;

/// Stops a server, from any thread.
#[derive(Clone, Debug)]
pub struct Stopper(Arc<OwnedFd>);

impl Stopper {
    /// It ends when what is under way has ended, or after five seconds.
    pub fn stop(&self) {
        // A counter that is full has been rung before.
        let _ = rustix::io::write(&*self.0, &1_u64.to_ne_bytes());
    }
}

struct Client {
    socket: Socket,
    connection: Connection,
    interest: EventFlags,
    /// It is in the list of those to be looked at.
    listed: bool,
    /// It waits for the engine, or for grants.
    waiting: bool,
    /// Since when it holds a grant for a long item.
    holds_since: Option<Instant>,
}

/// The server.
pub struct Server<P, F> {
    config: ServerConfig,
    open: F,
    engine: Engine<P>,
    poll: OwnedFd,
    stop: Stopper,
    listeners: Vec<Listener>,
    accepting: bool,
    accept_at: Option<Instant>,
    clients: Vec<Option<Box<Client>>>,
    free: Vec<u32>,
    count: usize,
    /// To be looked at.
    todo: Vec<u32>,
    for_engine: VecDeque<u32>,
    for_grants: VecDeque<u32>,
    grants: Grants,
    /// When those that hold grants are looked at again.
    look_at: Instant,
    touched: Vec<u32>,
    /// What the port's descriptor is polled for.
    port_interest: EventFlags,
}

impl<P: Port, F: FnMut() -> Result<P, PortError>> Server<P, F> {
    /// Reaches the device, and listens. `open` is called again when the device was gone.
    pub fn bind(config: ServerConfig, mut open: F) -> Result<Self, ServerError> {
        let port = open()?;
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system("cannot make an epoll"))?;
        let stop =
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(system("cannot make an eventfd"))?;
        let stop = Stopper(Arc::new(stop));
        epoll::add(&poll, &*stop.0, EventData::new_u64(TOKEN_STOP), EventFlags::IN).map_err(system("cannot poll"))?;
        let mut listeners = Vec::new();
        for address in &config.listen {
            listeners.push(Listener::tcp(*address)?);
        }
        if let Some(path) = &config.unix {
            listeners.push(Listener::unix(path)?);
        }
        for (index, listener) in listeners.iter().enumerate() {
            let token = EventData::new_u64(TOKEN_LISTENER + index as u64);
            epoll::add(&poll, listener, token, EventFlags::IN).map_err(system("cannot poll a listener"))?;
        }
        let engine = Engine::new(port, config.durable, config.item_bytes_max);
        let grants = Grants::new(config.memory_bytes.max(2 * engine.data_bytes_max()));
        let mut server = Server {
            open,
            engine,
            poll,
            stop,
            listeners,
            accepting: true,
            accept_at: None,
            clients: Vec::new(),
            free: Vec::new(),
            count: 0,
            todo: Vec::new(),
            for_engine: VecDeque::new(),
            for_grants: VecDeque::new(),
            grants,
            look_at: config.clock.now(),
            touched: Vec::new(),
            port_interest: EventFlags::empty(),
            config,
        };
        server.poll_port()?;
        Ok(server)
    }

    /// What it listens on, as the kernel chose.
    pub fn addresses(&self) -> Vec<String> {
        self.listeners.iter().map(Listener::place).collect()
    }

    /// Stops it.
    pub fn stopper(&self) -> Stopper {
        self.stop.clone()
    }

    /// The way to the device.
    pub fn port(&mut self) -> &mut P {
        self.engine.port()
    }

    fn poll_port(&mut self) -> Result<(), ServerError> {
        let token = EventData::new_u64(TOKEN_PORT);
        let descriptor = self.engine.port().descriptor();
        epoll::add(&self.poll, descriptor, token, EventFlags::IN).map_err(system("cannot poll the device"))?;
        self.port_interest = EventFlags::IN;
        Ok(())
    }

    /// Before the thread sleeps: what the port could not send goes on when its socket takes more.
    fn poll_port_output(&mut self) -> Result<(), ServerError> {
        let mut interest = EventFlags::IN;
        interest.set(EventFlags::OUT, self.engine.port().wants_to_write());
        if interest != self.port_interest {
            let token = EventData::new_u64(TOKEN_PORT);
            let descriptor = self.engine.port().descriptor();
            epoll::modify(&self.poll, descriptor, token, interest).map_err(system("cannot poll the device"))?;
            self.port_interest = interest;
        }
        Ok(())
    }

    /// Serves until it is stopped, or the device is gone for good.
    pub fn run(&mut self) -> Result<(), ServerError> {
        let clock = self.config.clock.clone();
        let mut idle_since = clock.now();
        let mut events: Vec<(u64, EventFlags)> = Vec::with_capacity(EVENTS_MAX);
        let mut stop_by: Option<Instant> = None;
        let mut space = [const { std::mem::MaybeUninit::<epoll::Event>::uninit() }; EVENTS_MAX];
        loop {
            let now = clock.now();
            if stop_by.is_some_and(|by| now >= by || self.is_quiet()) {
                return Ok(());
            }
            let timeout = self.timeout(now, idle_since, stop_by);
            self.poll_port_output()?;
            events.clear();
            match epoll::wait(&self.poll, &mut space, Some(&timeout)) {
                Ok((came, _)) => events.extend(came.iter().map(|event| (event.data.u64(), event.flags))),
                Err(Errno::INTR) => {}
                Err(error) => return Err(system("cannot wait")(error)),
            }
            let mut worked = !events.is_empty();
            let mut lost = None;
            for &(token, flags) in &events {
                match token {
                    TOKEN_STOP => {
                        stop_by.get_or_insert_with(|| now + GOODBYE);
                        self.stop_listening();
                    }
                    TOKEN_PORT => lost = lost.or(self.engine.port().woken().err()),
                    TOKEN_CONNECTION.. => self.client_ready((token - TOKEN_CONNECTION) as u32, flags),
                    _ => self.accept((token - TOKEN_LISTENER) as usize, now),
                }
            }
            let now_s = clock.now_s();
            for _ in 0..LOOKS {
                match self.engine.pump(now_s) {
                    Ok(0) if self.engine.running() > 0 && self.todo.is_empty() => std::hint::spin_loop(),
                    Ok(ended) => {
                        worked |= ended > 0;
                        break;
                    }
                    Err(error) => {
                        lost = Some(error);
                        break;
                    }
                }
            }
            if let Some(error) = lost
                && !self.reach_again(&error)?
            {
                return Ok(());
            }
            if self.engine.take_clear() {
                self.clear_now();
            }
            self.engine.sweep(now);
            if self.serve_all(now) {
                worked = true;
                // Before the thread may sleep.
                self.engine.send();
            }
            if now >= self.look_at {
                self.look_at = now + LOOK_EVERY;
                self.drop_withholders(now);
            }
            if worked {
                idle_since = clock.now();
            }
        }
    }

    /// Nothing is under way, and nothing is to be sent.
    fn is_quiet(&self) -> bool {
        self.engine.running() == 0 && self.clients.iter().flatten().all(|client| client.connection.is_settled())
    }

    fn timeout(&mut self, now: Instant, idle_since: Instant, stop_by: Option<Instant>) -> Timespec {
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let looks = self.engine.running() > 0 && now.duration_since(idle_since) < self.config.spin;
        if looks || !self.todo.is_empty() || self.engine.port().ask() {
            return zero;
        }
        let mut until = self.engine.sweep(now);
        if let Some(at) = stop_by.into_iter().chain(self.accept_at).min() {
            until = until.min(at);
        }
        // Delayed removals, and room that is held for too long, are looked at by the second.
        let wait = until.saturating_duration_since(now).min(LOOK_EVERY).max(Duration::from_millis(1));
        Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: i64::from(wait.subsec_nanos()) }
    }

    fn list(&mut self, number: u32) {
        if let Some(client) = self.clients.get_mut(number as usize).and_then(Option::as_mut)
            && !client.listed
        {
            client.listed = true;
            self.todo.push(number);
        }
    }

    /// Looks at all that can go on. True where there was something.
    fn serve_all(&mut self, now: Instant) -> bool {
        if self.accept_at.is_some_and(|at| at <= now) {
            self.accept_at = None;
            self.listen_again();
        }
        let mut touched = std::mem::take(&mut self.touched);
        self.engine.take_touched(&mut touched);
        touched.drain(..).for_each(|number| self.list(number));
        self.touched = touched;
        // Each in turn, as long as there is room.
        let waiting = self.for_engine.len();
        for _ in 0..waiting {
            if !self.engine.has_room() {
                break;
            }
            if let Some(number) = self.for_engine.pop_front() {
                self.unwait(number);
                self.serve(number, now);
            }
        }
        for _ in 0..self.for_grants.len() {
            if let Some(number) = self.for_grants.pop_front() {
                self.unwait(number);
                self.serve(number, now);
            }
        }
        let mut todo = std::mem::take(&mut self.todo);
        let worked = !todo.is_empty();
        for number in &todo {
            if let Some(client) = &mut self.clients[*number as usize] {
                client.listed = false;
                if !client.waiting {
                    self.serve(*number, now);
                } else {
                    self.answer_only(*number);
                }
            }
        }
        todo.clear();
        todo.append(&mut self.todo);
        self.todo = todo;
        worked
    }

    /// Ends connections that have held room for a long item for too long, and whose clients are what is waited for: they do not send the
    /// rest, or do not take their answers.
    fn drop_withholders(&mut self, now: Instant) {
        for number in 0..self.clients.len() {
            let Some(client) = &self.clients[number] else { continue };
            let held_too_long = client.holds_since.is_some_and(|since| now.duration_since(since) > GRANT_TIME_MAX);
            if held_too_long && !client.waiting && client.connection.waits_for_its_client() {
                self.drop_client(number as u32);
            }
        }
    }

    fn unwait(&mut self, number: u32) {
        if let Some(client) = &mut self.clients[number as usize] {
            client.waiting = false;
        }
    }

    /// One that waits for its turn still gets the answers to what has ended.
    fn answer_only(&mut self, number: u32) {
        let Some(client) = &mut self.clients[number as usize] else { return };
        client.connection.take_ended(&mut self.engine);
        self.flush_output(number);
    }

    /// Goes on with a client as far as that goes.
    fn serve(&mut self, number: u32, now: Instant) {
        loop {
            let Some(client) = &mut self.clients[number as usize] else { return };
            let stop = client.connection.advance(&mut self.engine, &mut self.grants);
            match stop {
                Stop::Engine => {
                    client.waiting = true;
                    self.for_engine.push_back(number);
                }
                Stop::Grants => {
                    client.waiting = true;
                    self.for_grants.push_back(number);
                }
                Stop::Input | Stop::Own => {}
            }
            // Of a long item no more is read than belongs to it, so that this is looked at between two of them.
            client.holds_since = client.connection.holds_grant().then(|| client.holds_since.unwrap_or(now));
            let before = client.connection.output().len();
            self.flush_output(number);
            // What was stopped by a full output goes on where it could be sent.
            let Some(client) = &mut self.clients[number as usize] else { return };
            let is_sent = before > 0 && client.connection.output().is_empty();
            if !(stop == Stop::Own && is_sent && client.connection.was_backed_up(before)) {
                return;
            }
        }
    }

    /// Sends what goes, and says what is waited for.
    fn flush_output(&mut self, number: u32) {
        let Some(client) = &mut self.clients[number as usize] else { return };
        while !client.connection.output().is_empty() {
            match client.socket.write(client.connection.output()) {
                Ok(bytes) => {
                    client.connection.wrote(bytes);
                    self.engine.statistics.bytes_written += bytes as u64;
                }
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(_) => return self.drop_client(number),
            }
        }
        if client.connection.is_over() {
            return self.drop_client(number);
        }
        let mut interest = EventFlags::empty();
        interest.set(EventFlags::IN, client.connection.wants_input());
        interest.set(EventFlags::OUT, !client.connection.output().is_empty());
        if interest != client.interest {
            client.interest = interest;
            let token = EventData::new_u64(TOKEN_CONNECTION + u64::from(number));
            if epoll::modify(&self.poll, &client.socket, token, interest).is_err() {
                self.drop_client(number);
            }
        }
    }

    fn client_ready(&mut self, number: u32, flags: EventFlags) {
        let Some(client) = self.clients.get_mut(number as usize).and_then(Option::as_mut) else { return };
        if flags.contains(EventFlags::ERR) {
            return self.drop_client(number);
        }
        if flags.intersects(EventFlags::IN | EventFlags::HUP) {
            loop {
                let space = client.connection.space();
                if space.is_empty() {
                    // Who has gone, and is not read from, is noticed here.
                    if flags.contains(EventFlags::HUP) {
                        return self.drop_client(number);
                    }
                    break;
                }
                let length = space.len();
                match client.socket.read(space) {
                    Ok(0) => {
                        client.connection.received(0, length);
                        client.connection.end_of_input();
                        break;
                    }
                    Ok(bytes) => {
                        client.connection.received(bytes, length);
                        self.engine.statistics.bytes_read += bytes as u64;
                        break;
                    }
                    Err(error) => {
                        client.connection.received(0, length);
                        match error {
                            Errno::INTR => {}
                            Errno::AGAIN => break,
                            _ => return self.drop_client(number),
                        }
                    }
                }
            }
        }
        self.list(number);
    }

    fn accept(&mut self, index: usize, now: Instant) {
        while self.accepting && self.listeners.len() > index {
            if self.count >= self.config.connections_max {
                self.stop_accepting();
                return;
            }
            let socket = match self.listeners[index].accept() {
                Ok(socket) => socket,
                Err(Errno::AGAIN) => return,
                Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS) => {
                    self.accept_at = Some(now + NO_DESCRIPTORS);
                    self.stop_accepting();
                    return;
                }
                // Who has gone again already.
                Err(_) => continue,
            };
            let number = self.free.pop().unwrap_or_else(|| {
                self.clients.push(None);
                self.clients.len() as u32 - 1
            });
            let token = EventData::new_u64(TOKEN_CONNECTION + u64::from(number));
            if epoll::add(&self.poll, &socket, token, EventFlags::IN).is_err() {
                self.free.push(number);
                continue;
            }
            self.clients[number as usize] = Some(Box::new(Client {
                socket,
                connection: Connection::new(number),
                interest: EventFlags::IN,
                listed: false,
                waiting: false,
                holds_since: None,
            }));
            self.count += 1;
            self.engine.statistics.curr_connections = self.count as u64;
            self.engine.statistics.total_connections += 1;
        }
    }

    fn set_accepting(&mut self, accepting: bool) {
        if self.accepting == accepting {
            return;
        }
        self.accepting = accepting;
        for (index, listener) in self.listeners.iter().enumerate() {
            let token = EventData::new_u64(TOKEN_LISTENER + index as u64);
            let interest = if accepting { EventFlags::IN } else { EventFlags::empty() };
            if let Err(error) = epoll::modify(&self.poll, listener, token, interest) {
                tracing::error!(%error, "a listener cannot be polled");
            }
        }
    }

    fn stop_accepting(&mut self) {
        self.engine.statistics.rejected_connections += 1;
        self.set_accepting(false);
    }

    fn listen_again(&mut self) {
        if self.accept_at.is_none() && self.count < self.config.connections_max {
            self.set_accepting(true);
        }
    }

    /// No more clients: those that wait in the listeners' queues are refused.
    fn stop_listening(&mut self) {
        self.listeners.clear();
    }

    fn drop_client(&mut self, number: u32) {
        let Some(mut client) = self.clients[number as usize].take() else { return };
        client.connection.drop_all(&mut self.engine, &mut self.grants);
        self.for_engine.retain(|waiting| *waiting != number);
        self.for_grants.retain(|waiting| *waiting != number);
        self.todo.retain(|listed| *listed != number);
        self.free.push(number);
        self.count -= 1;
        self.engine.statistics.curr_connections = self.count as u64;
        self.listen_again();
    }

    /// Removes all, since a client asked for it some time ago: nobody waits for the end.
    fn clear_now(&mut self) {
        if !self.engine.clear() {
            // No room now: by the next turn.
            self.engine.clear_later(self.engine.now_s());
        }
    }

    /// The device is gone: what is under way fails, and what comes waits until there is a device again. False: it was stopped meanwhile.
    fn reach_again(&mut self, error: &PortError) -> Result<bool, ServerError> {
        tracing::warn!(%error, "the device is gone");
        self.engine.fail_all();
        for number in 0..self.clients.len() as u32 {
            self.answer_only(number);
        }
        let until = Instant::now() + self.config.reconnect;
        loop {
            match (self.open)() {
                Ok(port) => {
                    self.engine.replace(port);
                    self.poll_port()?;
                    // Nobody was read from meanwhile.
                    let now = self.config.clock.now();
                    for client in self.clients.iter_mut().flatten() {
                        client.holds_since = client.holds_since.map(|_| now);
                    }
                    (0..self.clients.len() as u32).for_each(|number| self.list(number));
                    tracing::info!("the device is there again");
                    return Ok(true);
                }
                Err(still) if Instant::now() >= until => return Err(still.into()),
                Err(_) => {}
            }
            let mut asked = [rustix::event::PollFd::new(&*self.stop.0, rustix::event::PollFlags::IN)];
            let wait = Timespec { tv_sec: 0, tv_nsec: RETRY.subsec_nanos().into() };
            if rustix::event::poll(&mut asked, Some(&wait)).is_ok_and(|ready| ready > 0) {
                return Ok(false);
            }
        }
    }
}
