//! The agent's socket, as a process uses it: which files it has open directly, and what came of asking.
//!
//! What always holds: one question at a time, with its answer before the next; every wait has a bound.

use super::mapped::Mapped;
use crate::agent::message::{Attachment, Request, Response, VERSION};
use crate::hre::HreError;
use base_io_host::Geometry;
use direct_io_host::{FileExtent, wire};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use willow_shm::message::{decode, encode};
use willow_shm::socket::{Channel, ReceiveError};

/// Longest wait for an answer of the agent: it may have to sync a large file.
const ANSWER_MAX: Duration = Duration::from_secs(120);
/// Wait between two questions whether a file system is frozen still, or others are busy with a file.
const FROZEN_LOOK: Duration = Duration::from_millis(20);

/// Why a file cannot be accessed directly.
#[derive(Debug, thiserror::Error)]
pub enum DirectError {
    /// The agent refuses, and says why.
    #[error("the file cannot be accessed directly: {0}")]
    Refused(String),
    /// It is open for writing somewhere, so that its blocks could be moved; `shared`: another process has asked for it as well.
    #[error(
        "the file cannot be accessed directly: it is open for writing somewhere (another process, a mapping into memory, a \
         descriptor that the library does not know), by which its blocks could be moved"
    )]
    Contended {
        /// Another process of the agent's.
        shared: bool,
    },
    /// Its file system is being frozen, or is (fsfreeze, a snapshot).
    #[error("the file cannot be accessed directly: its file system is frozen")]
    Frozen,
    /// Others are opening or closing it, and that takes long.
    #[error("the file cannot be accessed directly: others are opening or closing it")]
    Busy,
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
    /// A device that loses with its process what nobody has synced has begun anew: what was written to the file before may be gone. One sync of the file says so.
    #[error(
        "the device has begun anew since the file was written, and may have forgotten what was not synced: write it again"
    )]
    Forgotten,
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
            DirectError::Refused(_) | DirectError::Contended { .. } | DirectError::Frozen | DirectError::Busy => {
                libc::EOPNOTSUPP
            }
            DirectError::Agent(_) => libc::ECONNREFUSED,
            DirectError::Permission => libc::EACCES,
            DirectError::Stale => libc::ESTALE,
            DirectError::NoBlocks { .. } => libc::ENOSPC,
            DirectError::Device(wire::STATUS_FULL) => libc::ENOSPC,
            // Only bare access over an endpoint is told so; lanes send it again.
            DirectError::Hre(HreError::Refused) => libc::EAGAIN,
            DirectError::Device(_) | DirectError::Forgotten | DirectError::Hre(_) | DirectError::Lost(_) => libc::EIO,
        }
    }

    /// Of a handler's status.
    pub(crate) fn of_status(status: u32) -> Result<(), DirectError> {
        match status {
            0 => Ok(()),
            wire::STATUS_PERMISSION => Err(DirectError::Permission),
            wire::STATUS_BUSY => Err(DirectError::Hre(HreError::Refused)),
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

/// What the agent has answered.
struct Answer {
    response: Response,
    descriptors: Vec<OwnedFd>,
    extents: Vec<FileExtent>,
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

    fn receive(&self, channel: &Channel) -> Result<(Response, Vec<OwnedFd>), DirectError> {
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
                answer => return Ok((answer, message.descriptors)),
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
        match self.ask(&Request::Attach { version: VERSION, endpoints, lost }, &[])?.response {
            Response::Attached(attachment) => Ok(attachment),
            other => Err(DirectError::Agent(format!("it says {other:?} to the question where the device is"))),
        }
    }

    /// Asks for direct access to an open file, as far as its descriptor goes, and closes that: the agent keeps the file. Waits for the
    /// agent. Refused where this process, or another, has it open for writing by any other descriptor.
    pub fn open(self: &Arc<Self>, file: impl Into<OwnedFd>) -> Result<Mapped, DirectError> {
        let file = file.into();
        let request = Request::Open { version: VERSION, again: false, ready: false };
        let asked = self.ask(&request, &[file.as_fd()]);
        drop(file);
        let mapped = self.granted(asked?, || Ok(()))?;
        // Nobody asks for it anew.
        mapped.forget();
        Ok(mapped)
    }

    /// The same by descriptors of the caller's, which replaces those that write when the agent has closed its own (`give_up`; `None`:
    /// there are none). `again`: with the rights that were proved before as well.
    pub(crate) fn open_for(
        self: &Arc<Self>,
        descriptors: &[BorrowedFd<'_>],
        again: bool,
        give_up: Option<impl FnOnce() -> Result<(), DirectError>>,
    ) -> Result<Mapped, DirectError> {
        let ready = give_up.is_none();
        let asked = self.ask(&Request::Open { version: VERSION, again, ready }, descriptors)?;
        self.granted(asked, || give_up.map_or(Ok(()), |give_up| give_up()))
    }

    /// Goes on with what the agent said to the opening of a file.
    fn granted(
        self: &Arc<Self>,
        mut answer: Answer,
        give_up: impl FnOnce() -> Result<(), DirectError>,
    ) -> Result<Mapped, DirectError> {
        if let Response::Prepared { file } = answer.response {
            if let Err(error) = give_up() {
                let _ = self.close(file, true, true);
                return Err(error);
            }
            answer = self.ask(&Request::Confirm { file }, &[])?;
        }
        match answer.response {
            Response::Opened { file, bytes, rights, app, spus, stripe_bytes, base } => {
                if spus == 0 || !stripe_bytes.is_power_of_two() {
                    return Err(DirectError::Agent(format!("{spus} SPUs with stripes of {stripe_bytes} bytes")));
                }
                let geometry = Geometry { spus, stripe_bytes, base };
                Ok(Mapped::new(self.clone(), file, (bytes, rights, app), geometry, answer.extents))
            }
            Response::Stale => Err(DirectError::Stale),
            other => Err(DirectError::Agent(format!("it says {other:?} to the opening of a file"))),
        }
    }

    /// Gives a file back: when this returns it is the file system's own again. `unchanged`: nothing was written to it; `forget`: it is
    /// not asked for again by what was proved.
    pub(crate) fn close(&self, file: u32, unchanged: bool, forget: bool) -> Result<(), DirectError> {
        self.ask(&Request::Close { file, unchanged, forget }, &[]).map(|_| ())
    }

    /// A descriptor like one that this connection has opened the file with before.
    pub(crate) fn reopen(&self, file: BorrowedFd<'_>, flags: u32) -> Result<OwnedFd, DirectError> {
        let mut answer = self.ask(&Request::Reopen { flags }, &[file])?;
        match (answer.response, answer.descriptors.pop()) {
            (Response::Reopened, Some(descriptor)) => {
                // The agent has closed its own when it answers something else, here to forget nothing: until then nobody can run the file (ETXTBSY).
                self.ask(&Request::Forget, &[])?;
                Ok(descriptor)
            }
            (other, _) => Err(DirectError::Agent(format!("it says {other:?} to the opening of a file anew"))),
        }
    }

    /// The process closes its last descriptor of a file.
    pub(crate) fn forget(&self, file: BorrowedFd<'_>) -> Result<(), DirectError> {
        self.ask(&Request::Forget, &[file]).map(|_| ())
    }

    /// Has a file taken back from all that have it directly, until [`AgentClient::resume`]. Any descriptor of it will do. While its file
    /// system is frozen this waits, as a write would; and while others open it, which may have much to write back.
    pub fn release(&self, file: impl AsFd) -> Result<(), DirectError> {
        loop {
            match self.ask(&Request::Release, &[file.as_fd()]) {
                Err(DirectError::Frozen | DirectError::Busy) => std::thread::sleep(FROZEN_LOOK),
                done => return done.map(|_| ()),
            }
        }
    }

    /// Asks an app's part of the agent.
    pub fn ask_module<A: serde::Serialize, T: serde::de::DeserializeOwned>(
        &self,
        name: &str,
        ask: &A,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<T, DirectError> {
        let wrong = |error: serde_json::Error| DirectError::Agent(format!("{name}: {error}"));
        let request = Request::Module { name: name.to_owned(), ask: serde_json::to_value(ask).map_err(wrong)? };
        match self.ask(&request, descriptors)?.response {
            Response::Module { told } => serde_json::from_value(told).map_err(wrong),
            other => Err(DirectError::Agent(format!("it says {other:?} to a question for {name}"))),
        }
    }

    /// Nothing is done any more by what was opened before: all of it is closed.
    pub fn acknowledge(&self) -> Result<(), DirectError> {
        self.ask(&Request::Acknowledge, &[]).map(|_| ())
    }

    /// It has been changed.
    pub fn resume(&self) -> Result<(), DirectError> {
        self.ask(&Request::Resume, &[]).map(|_| ())
    }

    /// Apps that have ended, with the reasons, as far as the agent told by now.
    pub fn ended_apps(&self) -> Vec<(String, String)> {
        std::mem::take(&mut self.notices.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn ask(&self, request: &Request, descriptors: &[BorrowedFd<'_>]) -> Result<Answer, DirectError> {
        let channel = self.channel.lock().unwrap_or_else(PoisonError::into_inner);
        channel.send(&encode(request), descriptors).map_err(|error| DirectError::Agent(error.to_string()))?;
        let (response, descriptors) = self.receive(&channel)?;
        let mut extents = Vec::new();
        let mut more = matches!(response, Response::Opened { .. });
        while more {
            let Response::Extents { list, more: others } = self.receive(&channel)?.0 else {
                return Err(DirectError::Agent("it says something else where extents should be".to_owned()));
            };
            let extent = |(file_offset, namespace_offset, bytes)| FileExtent { file_offset, namespace_offset, bytes };
            extents.extend(list.into_iter().map(extent));
            more = others;
        }
        match response {
            Response::Refused { reason } => Err(DirectError::Refused(reason)),
            Response::Contended { shared } => Err(DirectError::Contended { shared }),
            Response::Frozen => Err(DirectError::Frozen),
            Response::Busy => Err(DirectError::Busy),
            response => Ok(Answer { response, descriptors, extents }),
        }
    }
}
