//! What a server is made of, and the bounds of everything in it.

use std::net::SocketAddr;
use std::time::Duration;

use willow_nvme::SubsystemConfig;
use willow_nvme::config::{CONNECTIONS_MAX, ListenAddress};

/// Bytes of the one receive buffer that all connections share.
pub const RECEIVE_BYTES: usize = 512 << 10;
/// Most bytes of one receive that are not data of a transfer: what they bring is done and sent while it is in the cache.
pub const RECEIVE_ONCE_BYTES: usize = 128 << 10;
/// The same of a connection that has proved nothing, and of one that was told to wait.
pub const RECEIVE_ONCE_SMALL_BYTES: usize = 16 << 10;
/// Connections that were told to wait and try again, in one turn.
pub const RETRIES_A_TURN_MAX: usize = 64;
/// Framing of a connection that was not sent, responses above all, past which nothing more is read from it until some has gone.
pub const FRAMING_BYTES_MAX: usize = 64 << 10;
/// The same of a connection that has proved nothing.
pub const UNPROVED_FRAMING_BYTES_MAX: usize = 8 << 10;
/// Output of a connection that has proved nothing which the kernel keeps and has not sent, past which it is given no more.
pub const UNPROVED_UNSENT_BYTES_MAX: u32 = 32 << 10;
/// Output of a connection past which nothing more is read from it until some has gone.
pub const OUTPUT_BYTES_MAX: usize = 8 << 20;
/// Most data in one H2CData PDU (MAXH2CDATA).
pub const HOST_DATA_BYTES_MAX: u32 = 1 << 20;
/// Bytes of a connection's output that are handed to the kernel in one turn: others wait no longer than for this.
pub const SEND_A_TURN_BYTES_MAX: usize = 1 << 20;
/// Pieces handed to the kernel in one call.
pub const SEND_PIECES_MAX: usize = 128;
/// Sockets that are polled directly while spinning; with more, the kernel is asked which have something.
pub const HOT_CONNECTIONS_MAX: usize = 8;
/// The part of all connections that may have proved nothing, one over this: past it, the one that was idle longest makes way.
pub const UNPROVED_CONNECTIONS_PART: usize = 4;
/// The kernel asks hosts from which nothing came for this time whether they are still there (TCP keep alive),
pub const PROBE_AFTER: Duration = Duration::from_secs(60);
/// this often,
pub const PROBE_INTERVAL: Duration = Duration::from_secs(10);
/// and ends the connection of one that does not answer so many times.
pub const PROBES_MAX: u32 = 6;
/// TLS handshakes at once; where there would be one more, the one that was idle longest makes way.
pub const HANDSHAKES_MAX: usize = 128;
/// Time between ICReq's connection and a Connect that succeeds.
pub const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// Longest time from the first byte of a PDU to its last, and the time in which a transfer that was asked for, and output, have to move
/// by [`PACE_BYTES_MIN`] or to be over.
pub const STALL_LIMIT: Duration = Duration::from_secs(30);
/// See [`STALL_LIMIT`].
pub const PACE_BYTES_MIN: u64 = 1 << 20;
/// How often time limits are looked at where the thread is never at rest.
pub const JUDGE_INTERVAL: Duration = Duration::from_millis(100);
/// How often all sockets are read from before somebody is judged by what did not come.
pub const READ_ALL_ROUNDS_MAX: usize = 64;
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

/// Most addresses that are listened on.
pub const LISTENERS_MAX: usize = 16;

/// Configuration of a server.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Addresses to listen on; port 0: any free one; with none, only what another front brings.
    pub listen: Vec<ListenAddress>,
    /// Without keys of hosts: users of this machine whose connections may act as hosts; `None`: all.
    pub local_users: Option<Vec<u32>>,
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
            listen: vec![SocketAddr::from(([127, 0, 0, 1], 4420)).into()],
            local_users: None,
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
        if self.listen.len() > LISTENERS_MAX {
            return Err(format!("listen has {} addresses, at most {LISTENERS_MAX} are possible", self.listen.len()));
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
