//! Who is let in and who goes: accepting, opening endpoints within their bounds, ending them.
//!
//! What always holds: whether somebody is trusted is decided by the user id that the kernel tells, and by nothing else; every
//! bound that was counted up for a connection is counted down when it ends; and a socket that is closed by another thread is polled by nobody
//! any more: the kernel holds a socket for the moment in which it polls it, and who polls would be the last to close it, with what is in its queue.

use crate::config::*;
use crate::connection::Connection;
use crate::endpoint::Endpoint;
use crate::front::{Front, TOKEN_LISTENER, TOKEN_PROCESS, add};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use std::os::fd::AsFd;
use willow_nvme::Backend;
use willow_shm::closing::Unclosed;
use willow_shm::layout::{Layout, depth_max};
use willow_shm::memory::Mapping;
use willow_shm::message::{Kind, Opened, Response, encode};
use willow_shm::process::is_ending;
use willow_shm::socket::Channel;

/// What a connection had that is being closed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// Nothing: it was refused.
    Refused,
    /// It had not asked for an endpoint.
    Pending,
    Endpoint,
}

/// A connection that is over and not closed yet.
pub(crate) struct Closing {
    uid: u32,
    place: Place,
    socket: Unclosed,
}

impl Front {
    /// Drops a connection's socket; who it is of has the place until it is closed.
    fn close(&mut self, channel: Channel, uid: u32, place: Place) {
        let socket = channel.unclosed();
        drop(channel);
        self.closing.retain(|closing| closing.socket.is_open());
        if socket.is_open() {
            self.closing.push(Closing { uid, place, socket });
        }
    }

    /// Connections that are being closed, of one user or of all.
    fn closing(&self, place: Place, uid: Option<u32>) -> usize {
        let is_open = |it: &&Closing| it.socket.is_open();
        let all = self.closing.iter().filter(|it| it.place == place && uid.is_none_or(|uid| it.uid == uid));
        all.filter(is_open).count()
    }

    pub(crate) fn accept(&mut self, now_ns: u64) {
        loop {
            if self.closing(Place::Refused, None) >= REFUSED_CLOSING_MAX {
                return self.pause_accepting(now_ns);
            }
            match self.listener.accept() {
                Ok(channel) => self.take_in(channel, now_ns),
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(error) => {
                    tracing::error!(%error, "cannot accept a process; pausing");
                    return self.pause_accepting(now_ns);
                }
            }
        }
    }

    fn pause_accepting(&mut self, now_ns: u64) {
        self.accept_after_ns = now_ns + ACCEPT_PAUSE.as_nanos() as u64;
        self.next_limit_ns = self.next_limit_ns.min(self.accept_after_ns);
        self.listen_for(EventFlags::empty());
    }

    pub(crate) fn listen_for(&self, flags: EventFlags) {
        if let Err(error) = epoll::modify(&self.poll, &self.listener, EventData::new_u64(TOKEN_LISTENER), flags) {
            tracing::error!(%error, "cannot change what the poll looks for");
        }
    }

    /// Refuses one that has no place.
    fn turn_away(&mut self, channel: Channel, uid: u32, reason: &str) {
        let _ = channel.send(&encode(&Response::Refused { reason: reason.to_owned() }), &[]);
        self.close(channel, uid, Place::Refused);
    }

    pub(crate) fn take_in(&mut self, channel: Channel, now_ns: u64) {
        let peer = match channel.peer() {
            Ok(peer) => peer,
            Err(error) => {
                return self.turn_away(channel, u32::MAX, &format!("the kernel does not tell who you are: {error}"));
            }
        };
        let uid = peer.uid;
        let of_user = |connection: &&Connection| connection.uid == uid && connection.endpoint.is_none();
        let pending =
            self.connections.iter().flatten().filter(of_user).count() + self.closing(Place::Pending, Some(uid));
        let closing = self.closing(Place::Pending, None) + self.closing(Place::Endpoint, None);
        if self.open + closing >= self.config.endpoints_max + PENDING_MAX || pending >= PENDING_PER_USER_MAX {
            add(&self.counters.refused, 1);
            return self.turn_away(channel, uid, "too many connections: close some");
        }
        let (key, new) = self.processes.enter(peer);
        if let (true, Some(process)) = (new, self.processes.get(key))
            && let Some(descriptor) = &process.peer.process
        {
            // One that cannot be watched ends its endpoints by closing their sockets all the same.
            let token = EventData::new_u64(TOKEN_PROCESS | u64::from(process.number));
            let _ = epoll::add(&self.poll, descriptor, token, EventFlags::IN);
        }
        let index = match self.connections.iter().position(Option::is_none) {
            Some(index) => index,
            None => {
                self.connections.push(None);
                self.generations.push(0);
                self.connections.len() - 1
            }
        };
        let token = u64::from(self.generations[index]) << 32 | index as u64;
        if let Err(error) = epoll::add(&self.poll, &channel, EventData::new_u64(token), EventFlags::IN) {
            tracing::error!(%error, "cannot poll a process's socket");
            self.close(channel, uid, Place::Refused);
            self.leave_process(key);
            return;
        }
        self.open += 1;
        self.connections[index] = Some(Connection {
            channel,
            process: key,
            uid,
            since_ns: now_ns,
            endpoint: None,
            is_hot: false,
            idle_polls: 0,
            is_dirty: false,
        });
        self.next_limit_ns = self.next_limit_ns.min(now_ns + LOOK.as_nanos() as u64);
        self.counters.processes.set(self.processes.len() as u64);
    }

    /// Opens the endpoint that was asked for; the error is for who asked.
    pub(crate) fn open<B: Backend>(
        &mut self,
        device: &mut B,
        index: usize,
        kind: Kind,
        entries: u32,
        data_bytes: u64,
    ) -> Result<(), String> {
        let Some(Some(connection)) = self.connections.get(index) else { return Ok(()) };
        let (uid, key) = (connection.uid, connection.process);
        let trusted = uid == 0 || uid == self.owner_uid;
        let kernel = match kind {
            Kind::Kernel if !trusted => {
                return Err("endpoints of the host kernel are for root and for the user who runs the device".to_owned());
            }
            Kind::Kernel => true,
            Kind::Any => trusted,
            Kind::User => false,
        };
        if self.endpoints + self.closing(Place::Endpoint, None) >= self.config.endpoints_max {
            return Err(format!("all {} endpoints are in use", self.config.endpoints_max));
        }
        let of_user = |connection: &&Connection| connection.uid == uid && connection.endpoint.is_some();
        let own = self.connections.iter().flatten().filter(of_user).count() + self.closing(Place::Endpoint, Some(uid));
        if !trusted && own >= self.config.endpoints_per_user_max {
            return Err(format!("a user has at most {} endpoints", self.config.endpoints_per_user_max));
        }
        if data_bytes > self.config.data_bytes_max {
            let most = self.config.data_bytes_max;
            return Err(format!("{data_bytes} bytes of data are more than the {most} of an endpoint"));
        }
        let layout = Layout::new(entries, data_bytes)
            .ok_or_else(|| format!("rings of {entries} entries with {data_bytes} bytes of data cannot be"))?;
        let left_bytes = self.config.memory_bytes_max.saturating_sub(self.memory_bytes);
        if layout.bytes() as u64 > left_bytes {
            return Err("the shared memory of all endpoints together is used up".to_owned());
        }
        // One user's may be as much as it leaves free.
        let of_user = self.connections.iter().flatten().filter(|connection| connection.uid == uid);
        let of_user_bytes = of_user.filter_map(|connection| Some(connection.endpoint.as_ref()?.bytes())).sum::<u64>();
        if !trusted && of_user_bytes + layout.bytes() as u64 > left_bytes {
            return Err(format!("a user has at most as much shared memory as is free, {left_bytes} bytes"));
        }
        let process = self.processes.get(key).ok_or("the process has ended")?;
        let (number, user) = (process.number, process.peer.uid);
        let (mapping, memory) = Mapping::create(layout.bytes()).map_err(|error| error.to_string())?;
        let hre = device.open_hre((!kernel).then_some(number)).ok_or("the device has no endpoint left")?;
        if !kernel {
            device.vouch(number, user, key);
        }
        let depth = depth_max(entries);
        let mut endpoint = Box::new(Endpoint::new(hre, layout, mapping, depth));
        endpoint.show_view(self.view_version);
        let opened = Opened {
            hre: hre.0,
            entries,
            data_bytes,
            depth,
            transfer_bytes_max: TRANSFER_BYTES_MAX.min(u32::try_from(data_bytes).unwrap_or(u32::MAX)),
            spin_ns: self.config.spin.as_nanos() as u64,
            start: device.flash_state().start(self.start),
        };
        let asleep = endpoint.fall_asleep();
        debug_assert!(asleep, "nobody else has the memory yet");
        self.endpoints += 1;
        self.memory_bytes += endpoint.bytes();
        self.counters.endpoints.set(self.endpoints as u64);
        let Some(Some(connection)) = self.connections.get_mut(index) else { return Ok(()) };
        connection.endpoint = Some(endpoint);
        let sent = connection.channel.send(&encode(&Response::Opened(opened)), &[memory.as_fd()]);
        sent.map_err(|error| format!("the answer cannot be sent: {error}"))?;
        self.mark_hot(index);
        tracing::debug!(hre = ?hre, process = number, uid, "endpoint opened");
        Ok(())
    }

    /// Says why, and ends a connection.
    pub(crate) fn refuse<B: Backend>(&mut self, device: &mut B, index: usize, why: &str) {
        let Some(Some(connection)) = self.connections.get(index) else { return };
        add(&self.counters.refused, 1);
        let _ = connection.channel.send(&encode(&Response::Refused { reason: why.to_owned() }), &[]);
        self.end(device, index, why);
    }

    pub(crate) fn end<B: Backend>(&mut self, device: &mut B, index: usize, why: &str) {
        let Some(connection) = self.connections.get_mut(index).and_then(Option::take) else { return };
        let generation = self.generations[index];
        self.generations[index] = generation.wrapping_add(1) & 0x7fff;
        self.open -= 1;
        if let Some(endpoint) = &connection.endpoint {
            // What is in flight drains in the device, and keeps the memory mapped until then.
            device.close_hre(endpoint.hre);
            self.endpoints -= 1;
            self.memory_bytes -= endpoint.bytes();
            self.counters.endpoints.set(self.endpoints as u64);
            let sent = encode(&Response::Refused { reason: why.to_owned() });
            let _ = connection.channel.send(&sent, &[]);
            tracing::debug!(hre = ?endpoint.hre, why, "endpoint ended");
        }
        if let Err(error) = epoll::delete(&self.poll, &connection.channel) {
            tracing::error!(%error, "a process's socket cannot be taken from the poll");
        }
        let place = if connection.endpoint.is_some() { Place::Endpoint } else { Place::Pending };
        self.close(connection.channel, connection.uid, place);
        self.receives.retain(|receive| receive.index != index || receive.generation != generation);
        self.hot.retain(|other| *other != index);
        self.leave_process(connection.process);
        self.active = true;
    }

    pub(crate) fn leave_process(&mut self, key: (u64, u64)) {
        if let Some(process) = self.processes.leave(key)
            && let Some(descriptor) = &process.peer.process
        {
            let _ = epoll::delete(&self.poll, descriptor);
        }
        self.counters.processes.set(self.processes.len() as u64);
    }

    pub(crate) fn process_ended<B: Backend>(&mut self, device: &mut B, number: u32) {
        let Some((key, _)) = self.processes.of_number(number) else { return };
        let of_it = |connection: &Option<Connection>| connection.as_ref().is_some_and(|one| one.process == key);
        let indices: Vec<usize> =
            (0..self.connections.len()).filter(|index| of_it(&self.connections[*index])).collect();
        for index in indices {
            self.end(device, index, "its process has ended");
        }
    }

    /// Ends what processes have that were killed and cannot end: nothing else tells. Only root's and the owner's, among which agents are.
    fn look_for_ending<B: Backend>(&mut self, device: &mut B) {
        let looked_at = self.processes.next_of(self.owner_uid, self.looked_at, LOOKS_MAX);
        self.looked_at = looked_at.last().map_or(0, |(number, _)| *number);
        for (number, pid) in looked_at {
            if is_ending(pid) {
                self.process_ended(device, number);
            }
        }
    }

    pub(crate) fn check_limits<B: Backend>(&mut self, device: &mut B, now_ns: u64) {
        let mut next_ns = u64::MAX;
        if self.processes.len() > 0 {
            if now_ns >= self.look_ns {
                self.look_ns = now_ns + LOOK.as_nanos() as u64;
                self.look_for_ending(device);
            }
            next_ns = self.look_ns;
        }
        if self.accept_after_ns != 0 {
            if now_ns >= self.accept_after_ns {
                self.accept_after_ns = 0;
                self.listen_for(EventFlags::IN);
            } else {
                next_ns = next_ns.min(self.accept_after_ns);
            }
        }
        for index in 0..self.connections.len() {
            let Some(Some(connection)) = self.connections.get(index) else { continue };
            if connection.endpoint.is_some() {
                continue;
            }
            let at_ns = connection.since_ns + OPEN_LIMIT.as_nanos() as u64;
            if now_ns >= at_ns {
                self.refuse(device, index, "no request for an endpoint came in time");
            } else {
                next_ns = next_ns.min(at_ns);
            }
        }
        self.next_limit_ns = next_ns;
    }
}
