//! Takes connections in, and lets them begin.
//!
//! What always holds: there are never more than the configuration allows; a machine without descriptors pauses accepting, and no more.

use super::{Server, TOKEN_LISTENER};
use crate::channel::{Channel, Opened, Refused};
use crate::config::*;
use crate::connection::Connection;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{self, SocketFlags, sockopt};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use willow_nvme::Backend;

impl<B: Backend> Server<B> {
    pub(super) fn accept(&mut self, place: usize) {
        if self.now_ns < self.accept_after_ns {
            return;
        }
        loop {
            let Some(listener) = self.listeners.get(place) else { return };
            let socket = match net::accept_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
                Ok(socket) => socket,
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(error) => {
                    tracing::error!(%error, "cannot accept a connection; pausing");
                    self.accept_after_ns = self.now_ns + ACCEPT_PAUSE.as_nanos() as u64;
                    self.listen_for(EventFlags::empty());
                    return;
                }
            };
            if self.open >= self.config.connections_max {
                tracing::warn!(limit = self.config.connections_max, "too many connections: one refused");
                continue;
            }
            self.take_in(socket);
        }
    }

    /// Goes on with a connection that may be TLS; true once it can be read from.
    #[cold]
    pub(super) fn open_channel(&mut self, index: usize) -> bool {
        let handshakes = self.connections.iter().flatten().filter(|one| one.channel.in_handshake()).count();
        let (Some(Some(connection)), Some(tls)) = (self.connections.get_mut(index), &self.tls) else { return false };
        match connection.channel.open(&connection.socket, tls, handshakes < HANDSHAKES_MAX) {
            Ok(Opened::Ready) => true,
            Ok(Opened::Proven(host_nqn, subsystem_nqn)) => {
                tracing::debug!(connection = index, host = %host_nqn, "TLS agreed on");
                let id = connection.id;
                self.subsystem.secured(id, &host_nqn, &subsystem_nqn);
                true
            }
            Ok(Opened::NotYet) => false,
            Err(Refused::Closed) => {
                self.close(index, "closed by the host");
                false
            }
            Err(Refused::Because(reason)) => {
                let peer = net::getpeername(&connection.socket).ok().flatten();
                let peer = peer.and_then(|address| SocketAddr::try_from(address).ok());
                let peer = peer.map_or_else(|| "unknown".to_owned(), |address| address.to_string());
                tracing::warn!(connection = index, peer, reason, "connection refused");
                self.close(index, "refused");
                false
            }
        }
    }

    pub(super) fn listen_for(&self, flags: EventFlags) {
        for (place, listener) in self.listeners.iter().enumerate() {
            if let Err(error) =
                epoll::modify(&self.poll, listener, EventData::new_u64(TOKEN_LISTENER + place as u64), flags)
            {
                tracing::error!(%error, "cannot change what the poll looks for");
            }
        }
    }

    pub(super) fn take_in(&mut self, socket: OwnedFd) {
        // Each of these only costs speed where the kernel refuses it.
        let _ = sockopt::set_tcp_nodelay(&socket, true);
        let _ = sockopt::set_tcp_congestion(&socket, "cubic").or_else(|_| sockopt::set_tcp_congestion(&socket, "reno"));
        let local = net::getsockname(&socket).ok().and_then(|address| SocketAddr::try_from(address).ok());
        let Some(id) = self.subsystem.open_connection(local.map(|address| address.ip())) else {
            tracing::warn!("too many connections: one refused");
            return;
        };
        let index = id.index();
        let channel = if self.tls.is_some() { Channel::Unknown } else { Channel::Plain };
        let mut connection = Connection::new(socket, id, channel, self.now_ns);
        connection.interest = EventFlags::IN | EventFlags::RDHUP;
        if let Err(error) =
            epoll::add(&self.poll, &connection.socket, EventData::new_u64(index as u64), connection.interest)
        {
            tracing::error!(%error, "cannot poll a connection");
            self.subsystem.close_connection(id);
            return;
        }
        if self.connections.len() <= index {
            self.connections.resize_with(index + 1, || None);
        }
        self.connections[index] = Some(connection);
        self.open += 1;
        self.mark_hot(index);
        tracing::debug!(connection = index, "connection accepted");
    }
}
