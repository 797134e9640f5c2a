//! Bounds of the front.

use std::path::PathBuf;
use std::time::Duration;
use willow_shm::layout::{DATA_ALIGNMENT_BYTES, DATA_BYTES_MAX};
pub use willow_shm::socket::Descriptors;

/// Most bytes of payload or of reply of one command.
pub const TRANSFER_BYTES_MAX: u32 = 4 << 20;
/// Commands taken off one ring before the next one has its turn.
pub const BATCH_MAX: u32 = 64;
/// Polls of a ring without anything coming after which it is no longer looked at until its doorbell rings.
pub const HOT_POLLS_MAX: u32 = 4000;
/// Turns between two looks at the socket while rings are busy.
pub const LOOK_AROUND_TURNS: u32 = 64;
/// Connections of one user that have not asked for their endpoint yet.
pub const PENDING_PER_USER_MAX: usize = 16;
/// Connections beside those with endpoints.
pub const PENDING_MAX: usize = 256;
/// Connections that were refused and are being closed: beyond them nobody is accepted for [`ACCEPT_PAUSE`].
pub const REFUSED_CLOSING_MAX: usize = 64;
/// Time between connecting and asking for the endpoint.
pub const OPEN_LIMIT: Duration = Duration::from_secs(5);
/// Between two looks for processes that were killed and cannot end.
pub const LOOK: Duration = Duration::from_secs(1);
/// Processes that are looked at each time: a file of proc(5) each, read by the device's thread.
pub const LOOKS_MAX: usize = 16;
/// Pause of accepting where the process is out of descriptors, or has many connections to close.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Longest wait for an upcall.
pub const RECEIVE_WAIT_MAX_MS: u32 = 3_600_000;
/// Buffers for payloads that are kept for use again, and the longest kept.
pub const BUFFERS_MAX: usize = 256;
/// See [`BUFFERS_MAX`].
pub const BUFFER_KEPT_BYTES_MAX: usize = 256 << 10;

/// Configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrontConfig {
    /// Where the socket is.
    pub path: PathBuf,
    /// Permissions of its file.
    pub mode: u32,
    /// Most endpoints at once.
    pub endpoints_max: usize,
    /// Most endpoints of one user; root's and the device's owner's are bounded by `endpoints_max` alone.
    pub endpoints_per_user_max: usize,
    /// Most bytes of data of one endpoint.
    pub data_bytes_max: u64,
    /// Most bytes of shared memory altogether.
    pub memory_bytes_max: u64,
    /// What becomes of descriptors that somebody sends: a device takes none.
    pub descriptors: Descriptors,
    /// How long the device's loop polls after the last activity, as endpoints are told.
    pub spin: Duration,
}

impl FrontConfig {
    /// A socket at this path, with the usual bounds.
    pub fn new(path: PathBuf) -> Self {
        FrontConfig {
            path,
            mode: 0o666,
            endpoints_max: 1024,
            endpoints_per_user_max: 256,
            data_bytes_max: 256 << 20,
            memory_bytes_max: 4 << 30,
            descriptors: Descriptors::Refused,
            spin: Duration::from_micros(100),
        }
    }

    /// Checks the values; the error names the field and what it may be.
    pub fn validate(&self) -> Result<(), String> {
        if self.endpoints_max == 0 || self.endpoints_max > 16384 {
            return Err(format!("endpoints_max is {}, must be 1 to 16384", self.endpoints_max));
        }
        if self.endpoints_per_user_max == 0 || self.endpoints_per_user_max > 4096 {
            return Err(format!("endpoints_per_user_max is {}, must be 1 to 4096", self.endpoints_per_user_max));
        }
        if self.descriptors == Descriptors::Taken {
            return Err("descriptors is Taken, must be Refused or Left".to_owned());
        }
        if !(DATA_ALIGNMENT_BYTES..=DATA_BYTES_MAX).contains(&self.data_bytes_max) {
            return Err(format!("data_bytes_max is {}, must be 4096 to {DATA_BYTES_MAX}", self.data_bytes_max));
        }
        Ok(())
    }
}
