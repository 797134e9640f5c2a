//! Searching files: in the drive, where they lie on one and the agent grants them, and on this host where they do not. What is printed of the
//! lines is [`search_host::Grep`]'s.
//!
//! ```text
//! in_drive  scans of banks by the app `search`, a few rounds ahead      on_host  the same segments, read by this host
//! resolve   lines of which the bytes did not come along
//! ```
//!
//! What always holds: a file is searched one way from its start to its end; what fails in the middle ends its search with the reason, after what
//! was found before it; memory is bounded by the rounds ahead and by one line of [`LINE_BYTES_MAX`].
//!
//! Who may call it: host programs; `willow grep` is written over it.

mod in_drive;
mod on_host;
mod resolve;

pub use in_drive::Searcher;
pub use on_host::search_on_host;

use crate::direct_io::DirectError;
use crate::hre::HreError;
use search_host::grep::LINE_BYTES_MAX;
use search_host::join::ReplyError;
use search_host::{PatternError, wire};

/// Why a search ended before the file did.
#[derive(Debug, thiserror::Error)]
pub enum SearchError {
    /// The pattern.
    #[error("{0}")]
    Pattern(#[from] PatternError),
    /// The permission went in the middle: the agent has taken the file back.
    #[error(
        "the file was taken back in the middle of the search (something opened it for writing, cut or replaced it, or its permission was \
         revoked): what follows was not searched"
    )]
    TakenBack,
    /// The app is not in the device.
    #[error("the device has no app search: {0}")]
    NoApp(HreError),
    /// An SPU has no room for what is searched for.
    #[error("the SPUs' memory is full of what others search for: try again")]
    NoMemory,
    /// What is searched for is given up by the device again and again, since others prepare so much.
    #[error("the device forgets what is searched for again and again, since others search for too much: try again")]
    Forgotten,
    /// The media, or anything else in the device.
    #[error("the device failed with status {0} of app search")]
    Device(u32),
    /// The endpoint.
    #[error(transparent)]
    Hre(#[from] HreError),
    /// Reading what did not come along.
    #[error(transparent)]
    Direct(DirectError),
    /// The device answers senselessly.
    #[error(transparent)]
    Reply(#[from] ReplyError),
    /// A line that is too long for what is wanted of it.
    #[error("the line at byte {offset} is longer than {LINE_BYTES_MAX} bytes, the most for {what}")]
    LongLine {
        /// Where it begins.
        offset: u64,
        /// What cannot be done with it.
        what: &'static str,
    },
    /// The file ends sooner than it did.
    #[error("the file became shorter in the middle of the search")]
    Shorter,
    /// The file cannot be read.
    #[error("{0}")]
    Read(std::io::Error),
    /// The output cannot be written.
    #[error("cannot write to standard output: {0}")]
    Write(std::io::Error),
}

impl From<DirectError> for SearchError {
    fn from(error: DirectError) -> Self {
        match error {
            DirectError::Permission => SearchError::TakenBack,
            other => SearchError::Direct(other),
        }
    }
}

impl SearchError {
    fn of_status(status: u32) -> SearchError {
        match status {
            wire::STATUS_PERMISSION => SearchError::TakenBack,
            wire::STATUS_NO_MEMORY => SearchError::NoMemory,
            other => SearchError::Device(other),
        }
    }
}

/// What a search came to, beside its output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Bytes that SPUs have scanned.
    pub drive_bytes: u64,
    /// Bytes that came from the drive for that.
    pub reply_bytes: u64,
    /// Bytes that this host has scanned.
    pub host_bytes: u64,
}
