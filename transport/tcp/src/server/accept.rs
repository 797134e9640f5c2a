//! Takes connections in, and lets them begin.
//!
//! What always holds: there are never more than the configuration allows; a machine without descriptors pauses accepting, and no more.

use super::{Server, TOKEN_LISTENER};
use crate::channel::{Channel, Opened, Refused};
use crate::config::*;
use crate::connection::Connection;
use crate::handle::{ServeError, system};
use crate::peer::is_own;
use crate::unsent::limit_unsent;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{self, SocketFlags, sockopt};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use willow_nvme::config::UNPROVED_CONNECTIONS_MAX;
use willow_nvme::{Backend, Secured};
use willow_tls::Proven;

/// Has `poll` look at all listeners.
pub(super) fn add_listeners(poll: &OwnedFd, listeners: &[TcpListener]) -> Result<(), ServeError> {
    for (place, listener) in listeners.iter().enumerate() {
        epoll::add(poll, listener, EventData::new_u64(TOKEN_LISTENER + place as u64), EventFlags::IN)
            .map_err(system("cannot poll"))?;
    }
    Ok(())
}

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
            self.make_way();
            if self.open >= self.config.connections_max {
                tracing::warn!(limit = self.config.connections_max, "too many connections: one refused");
                continue;
            }
            self.take_in(socket, place);
        }
    }

    /// Goes on with a connection that may be TLS; true once it can be read from.
    #[cold]
    pub(super) fn open_channel(&mut self, index: usize) -> bool {
        let (Some(Some(connection)), Some(tls)) = (self.connections.get_mut(index), &self.tls) else { return false };
        let before = connection.channel.in_handshake();
        let opened = connection.channel.open(&connection.socket, tls, connection.tls_required);
        if !before && connection.channel.in_handshake() {
            self.make_way_for_handshake(index);
        }
        match opened {
            Ok(Opened::Ready) => true,
            Ok(Opened::Proven(Proven { host_nqn, subsystem_nqn, generated })) => {
                tracing::debug!(connection = index, host = %host_nqn, "TLS agreed on");
                let Some(Some(Connection { id, .. })) = self.connections.get(index) else { return false };
                let id = *id;
                self.subsystem.secured(id, Secured { host_nqn, subsystem_nqn, generated });
                true
            }
            Ok(Opened::NotYet) => false,
            Err(Refused::Closed) => {
                self.close(index, "closed by the host");
                false
            }
            Err(Refused::Because(reason)) => {
                let peer = self.connections.get(index).and_then(|one| one.as_ref()?.peer);
                let peer = peer.map_or_else(|| "unknown".to_owned(), |address| address.to_string());
                tracing::warn!(connection = index, peer, reason, "connection refused");
                self.close(index, "refused");
                false
            }
        }
    }

    /// One more handshake has begun: where there are too many, the one that was idle longest makes way.
    #[cold]
    fn make_way_for_handshake(&mut self, index: usize) {
        if self.connections.iter().flatten().filter(|one| one.channel.in_handshake()).count() > HANDSHAKES_MAX {
            let others = (0..self.connections.len()).filter(|other| *other != index);
            let oldest = self.idle_for_longest(others, |one| one.channel.in_handshake());
            oldest.into_iter().for_each(|oldest| self.close(oldest, "the oldest of too many handshakes"));
        }
    }

    /// Where as many connections as may be have proved nothing, one of them makes way for another: of the address that has most of
    /// them, the one from which nothing has come for longest.
    fn make_way(&mut self) {
        let share = (self.config.connections_max / UNPROVED_CONNECTIONS_PART).clamp(1, UNPROVED_CONNECTIONS_MAX);
        if self.subsystem.unproved_connections() < share {
            return;
        }
        let is_unproved = |one: &Connection| self.subsystem.is_unproved(one.id);
        let mut crowds: BTreeMap<Option<IpAddr>, usize> = BTreeMap::new();
        for connection in self.connections.iter().flatten().filter(|one| is_unproved(one)) {
            *crowds.entry(connection.peer).or_default() += 1;
        }
        let crowd = crowds.into_iter().max_by_key(|(_, count)| *count).map(|(peer, _)| peer);
        let of_crowd = |one: &Connection| is_unproved(one) && crowd.is_none_or(|peer| one.peer == peer);
        if let Some(index) = self.idle_for_longest(0..self.connections.len(), of_crowd) {
            self.close(index, "idle for longest of too many that proved nothing");
        }
    }

    /// The connection of these from which nothing has come for longest.
    fn idle_for_longest(&self, of: impl Iterator<Item = usize>, which: impl Fn(&Connection) -> bool) -> Option<usize> {
        let found = of.filter_map(|index| Some((index, self.connections.get(index)?.as_ref()?)));
        found.filter(|(_, one)| which(one)).min_by_key(|(_, one)| (one.progress_ns, one.number)).map(|(index, _)| index)
    }

    /// Whether a connection may act as a host where hosts have no keys: one of this machine if it is of a user that is trusted, others
    /// where they reach an address that is listened on.
    fn is_trusted(&self, peer: Option<SocketAddr>, local: Option<SocketAddr>) -> bool {
        let (Some(users), Some(trusted)) = (&self.local_users, &self.config.local_users) else { return true };
        let (Some(peer), Some(local)) = (peer, local) else {
            tracing::warn!("a connection without addresses is refused");
            return false;
        };
        match users.user_of(peer, local) {
            Ok(Some(user)) if trusted.contains(&user) => true,
            Ok(Some(user)) => {
                tracing::warn!(%peer, user, "refused: neither root nor the user who runs the device, and hosts have no keys");
                false
            }
            // Of another machine.
            Ok(None) if !is_own(peer.ip()) => true,
            Ok(None) => {
                tracing::warn!(%peer, "refused: it is of this machine, and has closed before the kernel could tell whose it is");
                false
            }
            Err(error) => {
                tracing::warn!(%peer, %error, "refused: the kernel does not tell whose it is (serve --trust-loopback asks for no proof)");
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

    pub(super) fn take_in(&mut self, socket: OwnedFd, place: usize) {
        // Each of these only costs speed where the kernel refuses it.
        let _ = sockopt::set_tcp_nodelay(&socket, true);
        if let Err(error) = limit_unsent(socket.as_fd(), Some(UNPROVED_UNSENT_BYTES_MAX)) {
            tracing::warn!(%error, "a connection is refused: what it does not read would have no bound");
            return;
        }
        let _ = sockopt::set_tcp_congestion(&socket, "cubic").or_else(|_| sockopt::set_tcp_congestion(&socket, "reno"));
        // A host that vanished without a word, and asked for no keep alive, is found out.
        let _ = sockopt::set_socket_keepalive(&socket, true)
            .and_then(|()| sockopt::set_tcp_keepidle(&socket, PROBE_AFTER))
            .and_then(|()| sockopt::set_tcp_keepintvl(&socket, PROBE_INTERVAL))
            .and_then(|()| sockopt::set_tcp_keepcnt(&socket, PROBES_MAX));
        let local = net::getsockname(&socket).ok().and_then(|address| SocketAddr::try_from(address).ok());
        let Some(id) = self.subsystem.open_connection(local) else {
            tracing::warn!("too many connections: one refused");
            return;
        };
        let index = id.index();
        let channel = if self.tls.is_some() { Channel::Unknown } else { Channel::Plain };
        let mut connection = Connection::new(socket, id, channel, self.now_ns);
        self.accepted += 1;
        connection.number = self.accepted;
        let peer = net::getpeername(&connection.socket).ok().flatten();
        let peer = peer.and_then(|address| SocketAddr::try_from(address).ok());
        connection.peer = peer.map(|address| address.ip());
        connection.tls_required = self.addresses.get(place).is_some_and(|listen| listen.tls_required);
        if !self.is_trusted(peer, local) {
            self.subsystem.distrust(id);
        }
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
