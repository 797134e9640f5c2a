//! What can go wrong between this host and a controller.

use super::queue::QueueError;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use willow_wire::spec::Status;

/// An error of the NVMe/TCP initiator: what failed, and where.
#[derive(Clone, Debug, thiserror::Error)]
pub enum NvmeError {
    /// No TCP connection.
    #[error("cannot connect to {address}: {source}")]
    Connect {
        /// Target.
        address: SocketAddr,
        /// The system's error.
        source: Arc<std::io::Error>,
    },
    /// The connection of a queue broke while commands were in flight; whether they took effect is not known.
    #[error("connection of queue {queue} to {address} lost: {reason}")]
    ConnectionLost {
        /// Target.
        address: SocketAddr,
        /// Queue, 0 is admin.
        queue: u16,
        /// Why.
        reason: Arc<str>,
    },
    /// The protocol was violated or the controller terminated the connection.
    #[error("queue {queue} to {address}: {source}")]
    Protocol {
        /// Target.
        address: SocketAddr,
        /// Queue, 0 is admin.
        queue: u16,
        /// What happened.
        source: QueueError,
    },
    /// The controller answered with an error.
    #[error("{what} failed: {status}")]
    Status {
        /// Which command.
        what: &'static str,
        /// Its status.
        status: Status,
        /// Its result (DW0-1).
        result: u64,
    },
    /// No answer in time; an Abort was tried.
    #[error("{what} not answered within {after:?}")]
    TimedOut {
        /// Which command.
        what: &'static str,
        /// Its time limit.
        after: Duration,
    },
    /// The controller lacks what is needed, or says senseless things.
    #[error("controller at {address}: {what}")]
    Incompatible {
        /// Target.
        address: SocketAddr,
        /// What.
        what: String,
    },
    /// One end did not prove itself to the other.
    #[error("controller at {address}: authentication: {source}")]
    Authentication {
        /// Target.
        address: SocketAddr,
        /// What went wrong.
        source: willow_auth::HostFailure,
    },
    /// There is no TLS with the controller.
    #[error("controller at {address}: TLS: {source}")]
    Secure {
        /// Target.
        address: SocketAddr,
        /// What went wrong.
        source: willow_tls::TlsError,
    },
    /// The command asks for what cannot be.
    #[error("{0}")]
    Argument(String),
    /// The device has begun anew, and loses with its process what it answered and did not flush: nothing is done any more by this controller.
    #[error(
        "the device at {address} has begun anew, and what it had answered and not flushed may be lost: connect again, and write that again"
    )]
    Forgotten {
        /// Target.
        address: SocketAddr,
    },
    /// The controller was shut down by this host.
    #[error("the connection was shut down")]
    ShutDown,
}

impl NvmeError {
    /// The status, where the controller answered with one.
    pub fn status(&self) -> Option<Status> {
        match self {
            NvmeError::Status { status, .. } => Some(*status),
            _ => None,
        }
    }
    /// True where another try on a new connection may succeed.
    pub fn is_connection(&self) -> bool {
        matches!(self, NvmeError::Connect { .. } | NvmeError::ConnectionLost { .. } | NvmeError::Protocol { .. })
    }
}
