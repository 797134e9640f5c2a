//! An endpoint as a process has it: the handshake, the host's end of the rings (`rings::host`), and the doorbell of a device
//! that sleeps, which is the only system call.
//!
//! What always holds: what the device tells of sizes is checked before the memory is used.

use crate::layout::{Call, Command, Completion, Layout, VERSION, depth_max};
use crate::memory::{Mapping, MemoryError};
use crate::message::{DOORBELL, Kind, Opened, Request, Response, decode, encode};
use crate::rings::host::{HostRings, NoCompletion};
use crate::socket::{Channel, Message, ReceiveError};
use rustix::io::Errno;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Entries of each ring unless told otherwise.
pub const ENTRIES_DEFAULT: u32 = 1024;
/// Bytes of the data area unless told otherwise.
pub const DATA_BYTES_DEFAULT: u64 = 8 << 20;
/// Longest wait for the answer to a handshake.
const OPEN_WAIT_MAX: Duration = Duration::from_secs(10);

/// Why there is no endpoint, or none any more.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// Nobody listens there.
    #[error("no device answers at {path}: {source} (start one with willow serve --socket {path})")]
    Connect {
        /// The socket.
        path: String,
        /// What the kernel says.
        source: std::io::Error,
    },
    /// The device refuses.
    #[error("the device refuses: {0}")]
    Refused(String),
    /// The connection broke.
    #[error("{0}")]
    Connection(#[from] ReceiveError),
    /// The memory is not as it must be.
    #[error("{0}")]
    Memory(#[from] MemoryError),
    /// The other side is no device of this version.
    #[error("the other side answers as no device of this version does: {0}")]
    Protocol(String),
    /// The device wrote a completion that is none.
    #[error("the device wrote a completion that makes no sense")]
    Completion,
}

impl From<NoCompletion> for EndpointError {
    fn from(_: NoCompletion) -> Self {
        EndpointError::Completion
    }
}

/// An endpoint as the process has it.
pub struct Endpoint {
    /// What the device told.
    pub opened: Opened,
    rings: HostRings<Arc<Mapping>>,
    channel: Arc<Channel>,
}

impl Endpoint {
    /// Opens an endpoint at a device's socket.
    pub fn open(path: &Path, kind: Kind, entries: u32, data_bytes: u64) -> Result<Endpoint, EndpointError> {
        let channel = Channel::connect(path)
            .map_err(|source| EndpointError::Connect { path: path.display().to_string(), source })?;
        Self::open_on(channel, kind, entries, data_bytes)
    }

    /// The same on a connection that there is.
    pub fn open_on(channel: Channel, kind: Kind, entries: u32, data_bytes: u64) -> Result<Endpoint, EndpointError> {
        let request = Request::Open { version: VERSION, kind, entries, data_bytes };
        channel.send(&encode(&request), &[]).map_err(|error| ReceiveError::System(error.into()))?;
        let Message { bytes, descriptors } = channel.receive_within(OPEN_WAIT_MAX)?;
        let opened = match decode(&bytes).map_err(EndpointError::Protocol)? {
            Response::Opened(opened) => opened,
            Response::Refused { reason } => return Err(EndpointError::Refused(reason)),
        };
        let no = |what: &str| EndpointError::Protocol(what.to_owned());
        let layout = Layout::new(opened.entries, opened.data_bytes).ok_or_else(|| no("sizes that cannot be"))?;
        let [descriptor] = &descriptors[..] else { return Err(no("not one descriptor")) };
        if opened.depth == 0 || opened.depth > depth_max(opened.entries) {
            return Err(no("a depth that cannot be"));
        }
        let memory = Arc::new(Mapping::open(descriptor, layout.bytes())?);
        let rings = HostRings::new(memory, layout, opened.depth);
        Ok(Endpoint { opened, rings, channel: Arc::new(channel) })
    }

    /// The memory, for the data area.
    pub fn memory(&self) -> &Arc<Mapping> {
        self.rings.words()
    }

    /// Where everything lies in it.
    pub fn layout(&self) -> Layout {
        self.rings.layout()
    }

    /// The connection: readable when the device has rung, or has gone.
    pub fn channel(&self) -> &Arc<Channel> {
        &self.channel
    }

    /// Completions taken so far: where the next one will be.
    pub fn position(&self) -> u64 {
        self.rings.position()
    }

    /// Commands under way.
    pub fn under_way(&self) -> u32 {
        self.rings.under_way()
    }

    /// True where `slots` more slots and one more command fit.
    #[inline]
    pub fn has_room(&mut self, slots: u32) -> bool {
        self.rings.has_room(slots)
    }

    /// Submits a command with the RPCs behind its first; false where there is no room now. Call [`Endpoint::ring`] after
    /// the last of a batch.
    #[inline]
    pub fn submit(&mut self, command: &Command, calls: &[Call]) -> bool {
        self.rings.submit(command, calls)
    }

    /// Wakes the device if it sleeps.
    #[inline]
    pub fn ring(&self) {
        if self.rings.must_ring() {
            self.ring_now();
        }
    }

    #[cold]
    fn ring_now(&self) {
        // One that has gone is noticed by who waits; a full queue has rung already.
        let _ = self.channel.send(DOORBELL, &[]);
    }

    /// Takes the next completion, if there is one.
    #[inline]
    pub fn completion(&mut self) -> Result<Option<Completion>, EndpointError> {
        Ok(self.rings.completion()?)
    }

    /// Tells the device what was taken.
    #[inline]
    pub fn show_head(&mut self) {
        self.rings.show_head();
    }

    /// True where a completion waits to be taken.
    #[inline]
    pub fn is_ready(&self) -> bool {
        self.rings.is_ready()
    }

    /// Sleeps until a completion comes, or this time is over; true where one is there.
    pub fn sleep(&mut self, wait: Duration) -> Result<bool, EndpointError> {
        self.show_head();
        self.ask_for_doorbell();
        if !self.is_ready() && self.channel.wait(wait) {
            self.drain()?;
        }
        Ok(self.is_ready())
    }

    /// Asks the device to ring at the next completion. To be followed by a look at the ring before sleeping.
    pub fn ask_for_doorbell(&self) {
        self.rings.ask_for_doorbell();
    }

    /// Takes doorbells off the connection. An error where the device has ended it.
    pub fn drain(&self) -> Result<(), EndpointError> {
        loop {
            match self.channel.receive() {
                Ok(message) if message.bytes == DOORBELL => {}
                Ok(message) => match decode(&message.bytes) {
                    Ok(Response::Refused { reason }) => return Err(EndpointError::Refused(reason)),
                    _ => return Err(EndpointError::Protocol("a message that is none".to_owned())),
                },
                Err(ReceiveError::Nothing) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Grows when namespaces or apps may have changed.
    #[inline]
    pub fn view_version(&self) -> u32 {
        self.rings.view_version()
    }
}

/// True where sending failed since the other side is gone.
pub fn is_gone(error: Errno) -> bool {
    matches!(error, Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN)
}
