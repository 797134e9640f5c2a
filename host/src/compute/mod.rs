//! Numeric kernels on files of numbers: in the drive, where the files lie on one and the agent grants them, and by this host where they do not.
//!
//! ```text
//! files   inputs, and an output that is there as a whole or not at all    run   requests for the app `compute`, some at once
//! saxpy   a = alpha * x + y    fft   rows transformed, and matrices by rows, a transposition, and rows
//! ```
//!
//! What always holds: what fails in the middle ends with the reason; a new output gets its name when all of it is durable, so that a failed run leaves
//! nothing by that name; memory is bounded by the requests at once.
//!
//! Who may call it: host programs; `willow saxpy` is written over it, and `willow_saxpy` of libwillow.

mod fft;
mod files;
mod run;
mod saxpy;

pub use compute_host::Element;
pub use fft::{FftOptions, Transposer, fft};
pub use files::Form;
pub use saxpy::saxpy;

use crate::control::ControlClient;
use crate::direct_io::{AgentClient, DirectError, DirectFile, endpoint};
use crate::hre::{Hre, HreError};
use crate::shm::{ShmHre, ShmOptions};
use compute_host::npy::NpyError;
use compute_host::{APP_NAME, wire};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use willow_shm::message::Kind;

/// Why it could not be done.
#[derive(Debug, thiserror::Error)]
pub enum ComputeError {
    /// A file cannot be opened, read or written.
    #[error("{}: {error}", .path.display())]
    File {
        /// Which one.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// A file's header.
    #[error("{}: {error}", .path.display())]
    Npy {
        /// Which one.
        path: PathBuf,
        /// What is wrong with it.
        error: NpyError,
    },
    /// A file that is something else than what is asked for.
    #[error("{}: {what}", .path.display())]
    Unfit {
        /// Which one.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// A file that ends before its numbers do.
    #[error("{}: it ends before its numbers do: {there} of {wanted} bytes", .path.display())]
    Shorter {
        /// Which one.
        path: PathBuf,
        /// Its length.
        there: u64,
        /// What its header, or its length when it was opened, says.
        wanted: u64,
    },
    /// A file was written while it was read by this host.
    #[error("{}: it was changed in the middle", .0.display())]
    Changed(PathBuf),
    /// The drive cannot do it, and it was to be done there alone.
    #[error("{}: {why}", .path.display())]
    NotInDrive {
        /// The file that it cannot be done for.
        path: PathBuf,
        /// Why not.
        why: String,
    },
    /// The permission went in the middle: the agent has taken a file back.
    #[error(
        "a file was taken back in the middle (something opened it for writing, cut or replaced it, or its permission was revoked)"
    )]
    TakenBack,
    /// The app is not in the device.
    #[error("the device has no app {APP_NAME}: {0}")]
    NoApp(HreError),
    /// The SPUs have no memory, or no place, for as long as was waited.
    #[error("the SPUs are full of what others do: try again")]
    Busy,
    /// The media, or anything else in the device.
    #[error("the device failed with status {0} of app {APP_NAME}")]
    Device(u32),
    /// The endpoint.
    #[error(transparent)]
    Hre(#[from] HreError),
    /// Direct access.
    #[error(transparent)]
    Direct(DirectError),
}

impl From<DirectError> for ComputeError {
    fn from(error: DirectError) -> Self {
        match error {
            DirectError::Permission | DirectError::Stale => ComputeError::TakenBack,
            other => ComputeError::Direct(other),
        }
    }
}

impl ComputeError {
    /// What POSIX calls it.
    pub fn errno(&self) -> i32 {
        match self {
            ComputeError::File { error, .. } => error.raw_os_error().unwrap_or(libc::EIO),
            ComputeError::Npy { .. } | ComputeError::Unfit { .. } | ComputeError::Shorter { .. } => libc::EINVAL,
            ComputeError::Changed(_) | ComputeError::TakenBack => libc::ESTALE,
            ComputeError::NotInDrive { .. } | ComputeError::NoApp(_) => libc::EOPNOTSUPP,
            ComputeError::Busy => libc::EAGAIN,
            ComputeError::Device(_) | ComputeError::Hre(_) => libc::EIO,
            ComputeError::Direct(error) => error.errno(),
        }
    }

    pub(super) fn of_file(path: &Path) -> impl FnOnce(std::io::Error) -> ComputeError {
        let path = path.to_owned();
        move |error| ComputeError::File { path, error }
    }

    pub(super) fn unfit(path: &Path, what: impl Into<String>) -> ComputeError {
        ComputeError::Unfit { path: path.to_owned(), what: what.into() }
    }
}

/// A way to a drive, of this process.
#[derive(Clone)]
pub struct Drive {
    /// Who grants files.
    pub agent: Arc<AgentClient>,
    /// An endpoint of this process.
    pub hre: Arc<dyn Hre>,
}

/// How it is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// How numbers lie in the files.
    pub form: Form,
    /// Fail where the drive cannot do it, instead of doing it on this host.
    pub drive_only: bool,
    /// Write over an output that is there and has the right length, instead of making a new one: a failed run leaves part of the result in it.
    pub in_place: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options { form: Form::Npy, drive_only: false, in_place: false }
    }
}

/// What was done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Elements of the result.
    pub elements: u64,
    /// Their kind.
    pub element: Option<Element>,
    /// Why this host has done it; none where the drive has.
    pub by_host: Option<String>,
    /// Bytes of files that this host has read or written for it, but for a new output's blocks.
    pub host_bytes: u64,
}

/// The numbers of the apps of a drive that are asked.
#[derive(Clone, Copy, Debug)]
struct Apps {
    compute: u16,
    direct: u16,
}

impl Drive {
    /// By an agent's socket; the device is where the agent says, or at a socket of its own.
    pub async fn connect(agent: &Path, device: Option<&Path>) -> Result<Drive, ComputeError> {
        let agent = AgentClient::connect(agent)?;
        let hre: Arc<dyn Hre> = match device {
            Some(path) => {
                let options = ShmOptions { kind: Kind::User, ..ShmOptions::default() };
                Arc::new(ShmHre::open(path, options).map_err(DirectError::Hre)?)
            }
            None => endpoint(&agent).await?,
        };
        Ok(Drive { agent, hre })
    }

    async fn apps(&self, file: &DirectFile) -> Result<Apps, ComputeError> {
        let compute = ControlClient::new(self.hre.clone()).find_app(APP_NAME).await.map_err(ComputeError::NoApp)?;
        Ok(Apps { compute, direct: file.app() })
    }

    /// Opens a file directly; what is refused is none, with the reason.
    fn open(&self, file: std::fs::File) -> Result<Result<DirectFile, String>, ComputeError> {
        match DirectFile::open(&self.agent, self.hre.clone(), file) {
            Ok(file) => Ok(Ok(file)),
            Err(
                error @ (DirectError::Refused(_)
                | DirectError::Contended { .. }
                | DirectError::Frozen
                | DirectError::Busy),
            ) => Ok(Err(error.to_string())),
            Err(error) => Err(error.into()),
        }
    }
}

/// What a status of the app says.
fn of_status(status: u32) -> ComputeError {
    match status {
        wire::STATUS_PERMISSION => ComputeError::TakenBack,
        wire::STATUS_BUSY | wire::STATUS_NO_MEMORY => ComputeError::Busy,
        other => ComputeError::Device(other),
    }
}
