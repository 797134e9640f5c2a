//! What a connection's bytes go through: the socket as it is, or TLS on it.
//!
//! What always holds: the first byte decides, before anything is read; what is received before a handshake is over is for the handshake
//! alone, and nothing of the target's is sent; a connection without TLS costs one comparison a call.

use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::RecvFlags;
use willow_tls::{Acceptor, FIRST_BYTE, KeyRing, KnownHosts, Proven, Received, Session, TlsError};

use crate::config::ServerConfig;

/// The states.
pub(crate) enum Channel {
    /// Bytes as they are.
    Plain,
    /// Nothing has come yet.
    Unknown,
    /// TLS, not proved yet.
    Handshake(Box<Session>),
    /// TLS; the two ends have proved that they have the same key.
    Tls(Box<Session>),
    /// TLS that failed: nothing goes any more.
    Failed,
}

/// What came of opening.
pub(crate) enum Opened {
    /// Bytes can be read.
    Ready,
    /// The handshake has just ended, with whom this says.
    Proven(Proven),
    /// Later.
    NotYet,
}

/// How the connections of a server begin.
pub(crate) struct Tls {
    acceptor: Acceptor,
    required: bool,
}

impl Tls {
    /// What the configuration wants, with these keys; `None`: all connections are plain.
    pub fn new(config: &ServerConfig, keys: &KeyRing) -> Result<Option<Self>, TlsError> {
        let authentication = config.subsystem.authentication.as_ref();
        let required = authentication.is_some_and(|known| known.tls_required);
        // Keys come later only by hosts that have one.
        if !authentication.is_some_and(|known| known.may_need_tls())
            && !config.listen.iter().any(|listen| listen.tls_required)
        {
            return Ok(None);
        }
        let names = vec![config.subsystem.nqn.clone(), willow_nvme::config::NQN_DISCOVERY.to_owned()];
        Ok(Some(Tls { acceptor: Acceptor::new(KnownHosts::new(keys.clone(), names))?, required }))
    }
}

impl Tls {
    /// Whether every connection has to be TLS from now on.
    pub fn require(&mut self, required: bool) {
        self.required = required;
    }
}

impl Channel {
    /// True from the first byte of TLS until it is proved.
    pub fn in_handshake(&self) -> bool {
        matches!(self, Channel::Handshake(_))
    }

    /// Goes on until bytes can be read.
    #[cold]
    pub fn open(&mut self, socket: &OwnedFd, tls: &Tls, required: bool) -> Result<Opened, Refused> {
        if let Channel::Unknown = self {
            let mut first = [0];
            match rustix::net::recv(socket, &mut first, RecvFlags::DONTWAIT | RecvFlags::PEEK) {
                Ok((_, 0)) => return Err(Refused::Closed),
                Ok(_) => {}
                Err(Errno::AGAIN | Errno::INTR) => return Ok(Opened::NotYet),
                Err(_) => return Err(Refused::Closed),
            }
            *self = match (first[0] == FIRST_BYTE, tls.required || required) {
                (true, _) => Channel::Handshake(Box::new(tls.acceptor.accept().map_err(Refused::of)?)),
                (false, true) => return Err(Refused::Because("it does not begin with TLS, which is required".into())),
                (false, false) => Channel::Plain,
            };
        }
        let session = match self {
            Channel::Handshake(session) => session,
            Channel::Plain | Channel::Tls(_) => return Ok(Opened::Ready),
            Channel::Unknown | Channel::Failed => return Err(Refused::Closed),
        };
        match session.handshake(socket.as_fd()) {
            Ok(false) => Ok(Opened::NotYet),
            Ok(true) => {
                let Some(proven) = session.proven().cloned() else {
                    return Err(Refused::Because("TLS proved nothing".into()));
                };
                if let Channel::Handshake(session) = std::mem::replace(self, Channel::Failed) {
                    *self = Channel::Tls(session);
                }
                Ok(Opened::Proven(proven))
            }
            Err(error) => {
                *self = Channel::Failed;
                Err(Refused::of(error))
            }
        }
    }
}

/// Why a connection is not let in.
pub(crate) enum Refused {
    /// The host has gone.
    Closed,
    /// This.
    Because(String),
}

impl Refused {
    fn of(error: TlsError) -> Self {
        Refused::Because(error.to_string())
    }
}

/// Reads plaintext into `direct`, then into `rest`: as much as there is and fits.
#[cold]
pub(crate) fn receive(
    session: &mut Session,
    socket: &OwnedFd,
    direct: Option<&mut [u8]>,
    rest: &mut [u8],
) -> rustix::io::Result<usize> {
    let mut read = |buffer: &mut [u8]| match session.read(socket.as_fd(), buffer) {
        Ok(Received::Bytes(count)) => Ok(count),
        Ok(Received::Blocked) => Err(Errno::AGAIN),
        Ok(Received::Closed) => Ok(0),
        Err(error) => {
            tracing::warn!(%error, "TLS connection ended");
            Err(Errno::CONNABORTED)
        }
    };
    let Some(direct) = direct else { return read(rest) };
    let room = direct.len();
    let first = read(direct)?;
    if first < room {
        return Ok(first);
    }
    // What else there is may be told by the next call as well.
    Ok(first + read(rest).unwrap_or(0))
}
