//! What a connection is made with.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use willow_auth::{Credentials, HostKey, PresharedKey, TlsKey};
use willow_wire::spec::fabrics::{self, NQN_BYTES_MAX};

/// What to do with commands that were in flight when the connection died.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Retry {
    /// They fail with `ConnectionLost`; their effect is unknown.
    #[default]
    Never,
    /// Commands that may be done twice with the same outcome (reads, writes, flush, KV retrieve and the like, never RPCs) are
    /// sent again after reconnecting, at most [`RETRIES_MAX`] times.
    Idempotent,
}

/// Most times that a command is sent again.
pub const RETRIES_MAX: u32 = 8;
/// Most I/O queues of a connection.
pub const QUEUES_MAX: u16 = 64;

/// Options of a connection. Make it with [`Options::new`] and change what you need.
#[derive(Clone, Debug)]
pub struct Options {
    /// Address of the target.
    pub address: SocketAddr,
    /// NQN of the subsystem.
    pub subsystem_nqn: String,
    /// NQN of this host.
    pub host_nqn: String,
    /// Id of this host.
    pub host_id: [u8; 16],
    /// How this host proves itself where the controller asks for it; with a secret of the controller, that has to, too. The name in it
    /// is `host_nqn`: see [`Options::with_credentials`].
    pub credentials: Option<Arc<Credentials>>,
    /// A controller that does not ask this host to prove itself is refused: for hosts that rely on others' having to.
    pub proof_required: bool,
    /// The key for TLS: with it every connection is TLS. It is of `host_nqn`: see [`Options::with_host_key`].
    pub psk: Option<Arc<PresharedKey>>,
    /// This host comes by TLS, with a key that its authentication generates each time it connects.
    pub secure_channel: bool,
    /// The key that was generated: who connects makes it, and it is not to be set otherwise.
    pub channel_key: Option<Arc<TlsKey>>,
    /// I/O queues wanted; the controller may give fewer.
    pub queues: u16,
    /// Commands in flight on each I/O queue, 1 to 1024; the controller may allow fewer.
    pub depth: u16,
    /// Header digests.
    pub header_digest: bool,
    /// Data digests.
    pub data_digest: bool,
    /// Keep alive timeout; zero for none.
    pub keep_alive: Duration,
    /// Time to connect and to initialize.
    pub connect_timeout: Duration,
    /// Time for a command; past it an Abort is sent, and past twice it the connection is made anew.
    pub command_timeout: Duration,
    /// First wait before reconnecting; doubles each time.
    pub reconnect_delay: Duration,
    /// Longest wait before reconnecting.
    pub reconnect_delay_max: Duration,
    /// Time without a connection after which commands fail and nothing more is tried; zero: never reconnect.
    pub reconnect_for: Duration,
    /// What happens to commands in flight when the connection dies.
    pub retry: Retry,
    /// Receive buffer of a connection.
    pub receive_bytes: usize,
}

impl Options {
    /// Usual options for a subsystem.
    pub fn new(address: SocketAddr, subsystem_nqn: impl Into<String>) -> Self {
        let mut host_id = *b"willow-host-lib\0";
        // Not a secret, only to tell hosts apart: process and time of start.
        let nanoseconds = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |since| since.as_nanos() as u64);
        host_id[..4].copy_from_slice(&std::process::id().to_be_bytes());
        host_id[8..].copy_from_slice(&nanoseconds.to_be_bytes());
        host_id[6] = host_id[6] & 0x0f | 0x40;
        host_id[8] = host_id[8] & 0x3f | 0x80;
        let mut hex = String::with_capacity(36);
        for (index, byte) in host_id.iter().enumerate() {
            if matches!(index, 4 | 6 | 8 | 10) {
                hex.push('-');
            }
            hex.push_str(&format!("{byte:02x}"));
        }
        Options {
            address,
            subsystem_nqn: subsystem_nqn.into(),
            host_nqn: format!("nqn.2014-08.org.nvmexpress:uuid:{hex}"),
            host_id,
            credentials: None,
            proof_required: false,
            psk: None,
            secure_channel: false,
            channel_key: None,
            queues: 1,
            depth: 128,
            header_digest: false,
            data_digest: false,
            keep_alive: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(10),
            command_timeout: Duration::from_secs(30),
            reconnect_delay: Duration::from_millis(50),
            reconnect_delay_max: Duration::from_secs(2),
            reconnect_for: Duration::from_secs(60),
            retry: Retry::default(),
            receive_bytes: 256 << 10,
        }
    }

    /// The same for the host that these are of.
    pub fn with_credentials(self, credentials: Arc<Credentials>) -> Self {
        Options { host_nqn: credentials.host_nqn.clone(), credentials: Some(credentials), ..self }
    }

    /// The same for the host that this is of, with all that it has.
    pub fn with_host_key(self, key: HostKey) -> Self {
        let HostKey { host_nqn, credentials, psk, secure_channel } = key;
        Options { host_nqn, credentials: credentials.map(Arc::new), psk: psk.map(Arc::new), secure_channel, ..self }
    }

    /// Whether a key for TLS is still to be generated.
    pub(super) fn awaits_channel(&self) -> bool {
        self.secure_channel && self.channel_key.is_none() && self.subsystem_nqn != fabrics::DISCOVERY_NQN
    }

    /// Checks the values; the error names the field.
    pub fn validate(&self) -> Result<(), super::NvmeError> {
        let error = |text: String| Err(super::NvmeError::Argument(text));
        for (name, nqn) in [("subsystem_nqn", &self.subsystem_nqn), ("host_nqn", &self.host_nqn)] {
            if nqn.len() > NQN_BYTES_MAX || !nqn.starts_with("nqn.") {
                return error(format!("{name} `{nqn}` must begin with `nqn.` and have at most {NQN_BYTES_MAX} bytes"));
            }
        }
        if let Some(credentials) = &self.credentials
            && credentials.host_nqn != self.host_nqn
        {
            return error(format!("the credentials are of {}, host_nqn is {}", credentials.host_nqn, self.host_nqn));
        }
        if self.secure_channel && (self.credentials.is_none() || self.psk.is_some()) {
            return error("a secure channel needs credentials, and no other key for TLS".to_owned());
        }
        if self.queues == 0 || self.queues > QUEUES_MAX {
            return error(format!("queues is {}, must be 1 to {QUEUES_MAX}", self.queues));
        }
        if self.depth == 0 || self.depth > super::queue::DEPTH_MAX {
            return error(format!("depth is {}, must be 1 to {}", self.depth, super::queue::DEPTH_MAX));
        }
        if self.command_timeout.is_zero() || self.connect_timeout.is_zero() {
            return error("connect_timeout and command_timeout must not be zero".to_owned());
        }
        Ok(())
    }
}
