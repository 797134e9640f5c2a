//! Takes connections in.
//!
//! What always holds: there are never more than the configuration allows; a machine without descriptors pauses accepting, and no more.

use super::{Server, TOKEN_LISTENER};
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
        let mut connection = Connection::new(socket, id, self.now_ns);
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
