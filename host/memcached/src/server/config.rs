//! How a server serves, and why it does not.

use crate::clock::Clock;
use crate::port::PortError;
use rustix::io::Errno;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// How it serves.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Addresses for TCP.
    pub listen: Vec<SocketAddr>,
    /// Path of a Unix socket.
    pub unix: Option<PathBuf>,
    /// Connections at a time; more wait to be accepted.
    pub connections_max: usize,
    /// An answer says what is durable.
    pub durable: bool,
    /// Longest data of an item.
    pub item_bytes_max: usize,
    /// Bytes for items that are longer than what a connection has, all together.
    pub memory_bytes: usize,
    /// How long to wait for a device that is gone.
    pub reconnect: Duration,
    /// How long to look for completions before the thread sleeps.
    pub spin: Duration,
    /// The time that it goes by.
    pub clock: Clock,
}

impl Default for ServerConfig {
    fn default() -> Self {
        ServerConfig {
            listen: Vec::new(),
            unix: None,
            connections_max: 1024,
            durable: true,
            item_bytes_max: 1 << 20,
            memory_bytes: 256 << 20,
            reconnect: Duration::from_secs(60),
            spin: Duration::from_micros(20),
            clock: Clock::default(),
        }
    }
}

/// Why it does not serve.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The device cannot be reached.
    #[error("{0}")]
    Port(#[from] PortError),
    /// An address cannot be listened on.
    #[error("cannot listen on {place}: {source}")]
    Listen {
        /// Which.
        place: String,
        /// What the kernel says.
        source: std::io::Error,
    },
    /// The kernel refuses something else.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the kernel says.
        source: std::io::Error,
    },
}

pub(super) fn system(what: &'static str) -> impl FnOnce(Errno) -> ServerError {
    move |source| ServerError::System { what, source: source.into() }
}
