//! The agent's socket, as a process uses it: which files it has open directly, and what came of asking.
//!
//! What always holds: one question at a time, with its answer before the next; every wait has a bound.

use super::mapped::Mapped;
use crate::agent::message::{Attachment, Request, Response, VERSION};
use crate::hre::HreError;
use base_io_host::Geometry;
use direct_io_host::{FileExtent, wire};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use willow_shm::message::{decode, encode};
use willow_shm::socket::{Channel, ReceiveError};

/// Longest wait for an answer of the agent: it may have to sync a large file.
const ANSWER_MAX: Duration = Duration::from_secs(120);

/// Why a file cannot be accessed directly.
#[derive(Debug, thiserror::Error)]
pub enum DirectError {
    /// The agent refuses, and says why.
    #[error("the file cannot be accessed directly: {0}")]
    Refused(String),
    /// The connection with the agent failed.
    #[error("the agent does not answer: {0}")]
    Agent(String),
    /// The device refuses: no permission.
    #[error("the device refuses it: this process has no such permission there")]
    Permission,
    /// A write past the end of the file, or into a hole.
    #[error(
        "bytes {offset} to {end} are past the end of the file or in a hole: write them through the file system first"
    )]
    NoBlocks {
        /// First byte.
        offset: u64,
        /// One past the last.
        end: u64,
    },
    /// The device is full or its media failed.
    #[error("the device failed with status {0}")]
    Device(u32),
    /// The endpoint failed.
    #[error(transparent)]
    Hre(#[from] HreError),
    /// The way to the device is gone, over a network: what was under way may have been done or not.
    #[error("the way to the device is gone: {0}")]
    Lost(String),
    /// Files were taken back by the agent: nothing is opened until they are closed and [`AgentClient::acknowledge`] was called.
    #[error("the agent has taken files back from this process: close them, and acknowledge it")]
    Stale,
    /// The operating system says so, about what went through it or makes no sense at all.
    #[error("{0}")]
    System(rustix::io::Errno),
}

impl From<rustix::io::Errno> for DirectError {
    fn from(error: rustix::io::Errno) -> Self {
        DirectError::System(error)
    }
}

impl DirectError {
    /// What POSIX calls it.
    pub fn errno(&self) -> i32 {
        match self {
            DirectError::System(error) => error.raw_os_error(),
            DirectError::Refused(_) => libc::EOPNOTSUPP,
            DirectError::Agent(_) => libc::ECONNREFUSED,
            DirectError::Permission => libc::EACCES,
            DirectError::Stale => libc::ESTALE,
            DirectError::NoBlocks { .. } => libc::ENOSPC,
            DirectError::Device(wire::STATUS_FULL) => libc::ENOSPC,
            DirectError::Device(_) | DirectError::Hre(_) | DirectError::Lost(_) => libc::EIO,
        }
    }

    /// Of a handler's status.
    pub(crate) fn of_status(status: u32) -> Result<(), DirectError> {
        match status {
            0 => Ok(()),
            wire::STATUS_PERMISSION => Err(DirectError::Permission),
            other => Err(DirectError::Device(other)),
        }
    }
}

impl From<DirectError> for std::io::Error {
    fn from(error: DirectError) -> Self {
        match error {
            DirectError::System(error) => error.into(),
            other => std::io::Error::new(std::io::Error::from_raw_os_error(other.errno()).kind(), other),
        }
    }
}

/// A connection with the agent: one a process, or one a session in it where the device is reached by a network.
pub struct AgentClient {
    channel: Mutex<Channel>,
    notices: Mutex<Vec<(String, String)>>,
}

impl AgentClient {
    /// Connects. The process must have an endpoint at the device before it opens a file: [`AgentClient::attach`] says where.
    pub fn connect(path: &Path) -> Result<Arc<AgentClient>, DirectError> {
        let channel =
            Channel::connect(path).map_err(|error| DirectError::Agent(format!("{}: {error}", path.display())))?;
        Ok(Arc::new(AgentClient { channel: Mutex::new(channel), notices: Mutex::default() }))
    }

    fn receive(&self, channel: &Channel) -> Result<Response, DirectError> {
        loop {
            let message = match channel.receive_within(ANSWER_MAX) {
                Ok(message) => message,
                Err(ReceiveError::Nothing) => return Err(DirectError::Agent("it takes too long".to_owned())),
                Err(error) => return Err(DirectError::Agent(error.to_string())),
            };
            match decode::<Response>(&message.bytes).map_err(DirectError::Agent)? {
                Response::AppEnded { name, reason } => {
                    let mut notices = self.notices.lock().unwrap_or_else(PoisonError::into_inner);
                    // The latest are kept.
                    if notices.len() >= 64 {
                        notices.remove(0);
                    }
                    notices.push((name, reason));
                }
                answer => return Ok(answer),
            }
        }
    }

    /// The socket's descriptor.
    pub(crate) fn descriptor(&self) -> RawFd {
        self.channel.lock().unwrap_or_else(PoisonError::into_inner).as_fd().as_raw_fd()
    }

    /// Asks how this process reaches the device, by so many endpoints at most. `lost`: what was given before has failed, and ends first,
    /// with all files that are open by this connection.
    pub fn attach(&self, endpoints: u16, lost: bool) -> Result<Attachment, DirectError> {
        match self.ask(&Request::Attach { version: VERSION, endpoints, lost }, None)? {
            (Response::Attached(attachment), _) => Ok(attachment),
            (other, _) => Err(DirectError::Agent(format!("it says {other:?} to the question where the device is"))),
        }
    }

    /// Asks for direct access to an open file, as far as its descriptor goes. Waits for the agent.
    pub fn open(self: &Arc<Self>, file: impl AsFd) -> Result<Mapped, DirectError> {
        match self.ask(&Request::Open { version: VERSION }, Some(file.as_fd()))? {
            (Response::Opened { file, bytes, rights, app, spus, stripe_bytes, base }, extents) => {
                if spus == 0 || !stripe_bytes.is_power_of_two() {
                    return Err(DirectError::Agent(format!("{spus} SPUs with stripes of {stripe_bytes} bytes")));
                }
                let geometry = Geometry { spus, stripe_bytes, base };
                Ok(Mapped::new(self.clone(), file, (bytes, rights, app), geometry, extents))
            }
            (Response::Stale, _) => Err(DirectError::Stale),
            (other, _) => Err(DirectError::Agent(format!("it says {other:?} to the opening of a file"))),
        }
    }

    /// Gives a file back: when this returns it is the file system's own again. `unchanged`: nothing was written to it.
    pub(crate) fn close(&self, file: u32, unchanged: bool) -> Result<(), DirectError> {
        self.ask(&Request::Close { file, unchanged }, None).map(|_| ())
    }

    /// Has a file taken back from all that have it directly, until [`AgentClient::resume`]. Any descriptor of it will do.
    pub(crate) fn release(&self, file: impl AsFd) -> Result<(), DirectError> {
        self.ask(&Request::Release, Some(file.as_fd())).map(|_| ())
    }

    /// Nothing is done any more by what was opened before: all of it is closed.
    pub fn acknowledge(&self) -> Result<(), DirectError> {
        self.ask(&Request::Acknowledge, None).map(|_| ())
    }

    /// It has been changed.
    pub(crate) fn resume(&self) -> Result<(), DirectError> {
        self.ask(&Request::Resume, None).map(|_| ())
    }

    /// Apps that have ended, with the reasons, as far as the agent told by now.
    pub fn ended_apps(&self) -> Vec<(String, String)> {
        std::mem::take(&mut self.notices.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn ask(&self, request: &Request, file: Option<BorrowedFd<'_>>) -> Result<(Response, Vec<FileExtent>), DirectError> {
        let channel = self.channel.lock().unwrap_or_else(PoisonError::into_inner);
        let descriptors: Vec<BorrowedFd<'_>> = file.into_iter().collect();
        channel.send(&encode(request), &descriptors).map_err(|error| DirectError::Agent(error.to_string()))?;
        let answer = self.receive(&channel)?;
        let mut extents = Vec::new();
        if matches!(answer, Response::Opened { .. }) {
            loop {
                match self.receive(&channel)? {
                    Response::Extents { list, more } => {
                        let extent = |(file_offset, namespace_offset, bytes)| FileExtent {
                            file_offset,
                            namespace_offset,
                            bytes,
                        };
                        extents.extend(list.into_iter().map(extent));
                        if !more {
                            break;
                        }
                    }
                    other => return Err(DirectError::Agent(format!("it says {other:?} where extents should be"))),
                }
            }
        }
        match answer {
            Response::Refused { reason } => Err(DirectError::Refused(reason)),
            answer => Ok((answer, extents)),
        }
    }
}
