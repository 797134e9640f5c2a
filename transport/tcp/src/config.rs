//! What a server is made of, and the bounds of everything in it.

use std::net::SocketAddr;
use std::time::Duration;

use willow_nvme::SubsystemConfig;
use willow_nvme::config::CONNECTIONS_MAX;

/// Bytes of the one receive buffer that all connections share.
pub const RECEIVE_BYTES: usize = 512 << 10;
/// Most bytes of one receive that are not data of a transfer: what they bring is done and sent while it is in the cache.
pub const RECEIVE_ONCE_BYTES: usize = 128 << 10;
/// Output of a connection past which nothing more is read from it until some has gone.
pub const OUTPUT_BYTES_MAX: usize = 8 << 20;
/// Most data in one H2CData PDU (MAXH2CDATA).
pub const HOST_DATA_BYTES_MAX: u32 = 1 << 20;
/// Pieces handed to the kernel in one call.
pub const SEND_PIECES_MAX: usize = 128;
/// Sockets that are polled directly while spinning; with more, the kernel is asked which have something.
pub const HOT_CONNECTIONS_MAX: usize = 8;
/// TLS handshakes at once; a connection that would begin one more is closed.
pub const HANDSHAKES_MAX: usize = 128;
/// Time between ICReq's connection and a Connect that succeeds.
pub const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// Time without progress in the midst of a PDU, of a transfer that was asked for, or of sending.
pub const STALL_LIMIT: Duration = Duration::from_secs(30);
/// Time that a host has to close after a termination request (NVMe/TCP 3.5.1 allows 30 s).
pub const TERMINATION_LIMIT: Duration = Duration::from_secs(2);
/// Time that commands under way have to end when the server stops.
pub const DRAIN_LIMIT: Duration = Duration::from_secs(5);
/// Time that the device has to shut down.
pub const SHUTDOWN_LIMIT: Duration = Duration::from_secs(30);
/// Under a model of time: how long before the device's wake-up the thread stops sleeping and polls. The kernel's timers come up to 50 us
/// late by default, and a core takes its time to come out of rest.
pub const WAKE_EARLY: Duration = Duration::from_micros(150);
/// Pause of accepting where the process is out of descriptors.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Configuration of a server.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Addresses to listen on; port 0: any free one.
    pub listen: Vec<SocketAddr>,
    /// What hosts are told.
    pub subsystem: SubsystemConfig,
    /// Most connections at once; more are refused.
    pub connections_max: usize,
    /// How long to poll after the last activity before sleeping.
    pub spin: Duration,
    /// See [`CONNECT_LIMIT`].
    pub connect_limit: Duration,
    /// See [`STALL_LIMIT`].
    pub stall_limit: Duration,
}

impl Default for ServerConfig {
    fn default() -> Self {
        ServerConfig {
            listen: vec![SocketAddr::from(([127, 0, 0, 1], 4420))],
            subsystem: SubsystemConfig::default(),
            connections_max: CONNECTIONS_MAX,
            spin: Duration::from_micros(100),
            connect_limit: CONNECT_LIMIT,
            stall_limit: STALL_LIMIT,
        }
    }
}

impl ServerConfig {
    /// Checks the values; the error names the field and what it may be.
    pub fn validate(&self) -> Result<(), String> {
        if self.listen.is_empty() || self.listen.len() > 16 {
            return Err(format!("listen has {} addresses, must have 1 to 16", self.listen.len()));
        }
        if self.connections_max == 0 || self.connections_max > CONNECTIONS_MAX {
            return Err(format!("connections_max is {}, must be 1 to {CONNECTIONS_MAX}", self.connections_max));
        }
        if self.spin > Duration::from_millis(10) {
            return Err(format!("spin is {:?}, must be at most 10 ms", self.spin));
        }
        self.subsystem.validate()
    }
}
