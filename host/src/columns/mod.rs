//! Columns of files: summed, counted and filtered in the drive, where they lie on one and the agent grants them, and by this host where they do not.
//! What is asked, and what comes of it, is `columns_host`'s.
//!
//! ```text
//! place   what a file's bytes are read from    parts   a part's plan, run by an SPU or this host    run   all parts, in the file's order
//! ```
//!
//! What always holds: parts are put together in the file's order; what fails in the middle ends the whole with the reason; memory is bounded by the
//! parts under way and their replies.
//!
//! Who may call it: host programs; `willow sum`, `histogram` and `filter` are written over it.

mod parts;
mod place;
mod run;

pub use place::{CsvOptions, Place, read_table};
pub use run::run;

use crate::direct_io::DirectError;
use crate::hre::HreError;
use columns_host::outcome::ReplyError;
use columns_host::{QueryError, TableError};

/// Why it ended before the file did.
#[derive(Debug, thiserror::Error)]
pub enum ColumnsError {
    /// The file.
    #[error(transparent)]
    Table(#[from] TableError),
    /// What is asked of it.
    #[error(transparent)]
    Query(#[from] QueryError),
    /// Something in the file that breaks its format, or is not supported.
    #[error("{0}")]
    Fault(String),
    /// The permission went in the middle: the agent has taken the file back.
    #[error(
        "the file was taken back in the middle (something opened it for writing, cut or replaced it, or its permission was revoked): what follows \
         was not read"
    )]
    TakenBack,
    /// The app is not in the device.
    #[error("the device has no app columns: {0}")]
    NoApp(HreError),
    /// Values that are too long even for this host.
    #[error("a value, a record or a row is too long, or this host has too little memory for it")]
    NoMemory,
    /// A plan is given up by the device again and again, since others prepare so much.
    #[error("the device forgets what is asked again and again, since others ask for too much: try again")]
    Forgotten,
    /// The media, or anything else in the device.
    #[error("the device failed with status {0} of app columns")]
    Device(u32),
    /// The endpoint.
    #[error(transparent)]
    Hre(#[from] HreError),
    /// Reading the file directly.
    #[error(transparent)]
    Direct(DirectError),
    /// The device answers senselessly.
    #[error(transparent)]
    Reply(#[from] ReplyError),
    /// The file ends sooner than it did.
    #[error("the file became shorter in the middle")]
    Shorter,
    /// The file cannot be read.
    #[error("{0}")]
    Read(std::io::Error),
    /// The output cannot be written.
    #[error("cannot write the output: {0}")]
    Write(#[from] std::io::Error),
}

impl From<DirectError> for ColumnsError {
    fn from(error: DirectError) -> Self {
        match error {
            DirectError::Permission => ColumnsError::TakenBack,
            other => ColumnsError::Direct(other),
        }
    }
}

/// What it came to, beside the result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Parts of the file that SPUs did alone.
    pub drive_parts: u64,
    /// Parts that this host did, or ended.
    pub host_parts: u64,
    /// Bytes that came from the drive as replies.
    pub reply_bytes: u64,
    /// Bytes of the file that this host has read.
    pub host_bytes: u64,
}
