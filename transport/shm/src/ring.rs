//! The host's end of an endpoint's memory: submits commands, takes completions. Without a wait and without a system call,
//! but for the doorbell of a device that sleeps.
//!
//! What always holds: no more commands are under way than the endpoint's depth, so that neither ring can overflow; positions
//! are counted here, and what the device says of its own is only used to wait for it.

use crate::layout::{
    AT_COMPLETION_HEAD, AT_DEVICE_ASLEEP, AT_HOST_ASLEEP, AT_SUBMISSION_HEAD, AT_VIEW_VERSION, COMPLETION_WORDS, Call,
    Command, Completion, Layout, VERSION,
};
use crate::memory::{Mapping, MemoryError};
use crate::message::{DOORBELL, Kind, Opened, Request, Response, decode, encode};
use crate::socket::{Channel, Message, ReceiveError};
use rustix::io::Errno;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
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

/// An endpoint as the process has it.
pub struct Endpoint {
    /// What the device told.
    pub opened: Opened,
    layout: Layout,
    memory: Arc<Mapping>,
    channel: Arc<Channel>,
    /// Slots written, completions taken, commands under way.
    submitted: u64,
    taken: u64,
    under_way: u32,
    /// The device's submission head, as it was seen last.
    seen_head: u64,
    shown_head: u64,
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
        if opened.depth == 0 || opened.depth > opened.entries {
            return Err(no("a depth that cannot be"));
        }
        let memory = Arc::new(Mapping::open(descriptor, layout.bytes())?);
        let made = Endpoint {
            opened,
            layout,
            memory,
            channel: Arc::new(channel),
            submitted: 0,
            taken: 0,
            under_way: 0,
            seen_head: 0,
            shown_head: 0,
        };
        Ok(made)
    }

    /// The memory, for the data area.
    pub fn memory(&self) -> &Arc<Mapping> {
        &self.memory
    }

    /// Where everything lies in it.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// The connection: readable when the device has rung, or has gone.
    pub fn channel(&self) -> &Arc<Channel> {
        &self.channel
    }

    /// Completions taken so far: where the next one will be.
    pub fn position(&self) -> u64 {
        self.taken
    }

    /// Commands under way.
    pub fn under_way(&self) -> u32 {
        self.under_way
    }

    /// True where `slots` more slots and one more command fit.
    #[inline]
    pub fn has_room(&mut self, slots: u32) -> bool {
        if self.under_way >= self.opened.depth {
            return false;
        }
        let entries = u64::from(self.layout.entries);
        if self.submitted + u64::from(slots) - self.seen_head > entries {
            let shown = self.memory.half(AT_SUBMISSION_HEAD).load(Ordering::Acquire);
            // Never past what was submitted, whatever the device says.
            let passed = shown.wrapping_sub(self.seen_head as u32);
            self.seen_head = (self.seen_head + u64::from(passed)).min(self.submitted);
        }
        self.submitted + u64::from(slots) - self.seen_head <= entries
    }

    /// Submits a command with the RPCs behind its first; false where there is no room now. Call [`Endpoint::ring`] after
    /// the last of a batch.
    #[inline]
    pub fn submit(&mut self, command: &Command, calls: &[Call]) -> bool {
        let slots = command.slots(calls);
        if !self.has_room(slots) {
            return false;
        }
        let (memory, layout, position) = (&self.memory, &self.layout, self.submitted);
        command.encode(layout.turn(position), calls, |number, slot| {
            let at = layout.slot(position + u64::from(number));
            for (index, word) in slot.iter().enumerate().skip(1) {
                memory.word(at + index * 8).store(*word, Ordering::Relaxed);
            }
            memory.word(at).store(slot[0], Ordering::Release);
        });
        self.submitted += u64::from(slots);
        self.under_way += 1;
        true
    }

    /// Wakes the device if it sleeps.
    #[inline]
    pub fn ring(&self) {
        // The slots are written before the flag is read; the device sets the flag before it looks at the slots for the last
        // time.
        fence(Ordering::SeqCst);
        if self.memory.half(AT_DEVICE_ASLEEP).load(Ordering::Relaxed) != 0 {
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
        let at = self.layout.completion(self.taken);
        let mut words = [0; COMPLETION_WORDS];
        words[0] = self.memory.word(at).load(Ordering::Acquire);
        if words[0] as u32 != self.layout.turn(self.taken) {
            return Ok(None);
        }
        for (index, word) in words.iter_mut().enumerate().skip(1) {
            *word = self.memory.word(at + index * 8).load(Ordering::Relaxed);
        }
        let completion = Completion::decode(&words).ok_or(EndpointError::Completion)?;
        self.taken += 1;
        self.under_way = self.under_way.checked_sub(1).ok_or(EndpointError::Completion)?;
        // The device needs to know now and then: it keeps a completion free for each command that it takes.
        if self.under_way == 0 || self.taken - self.shown_head >= u64::from(self.layout.entries / 4) {
            self.show_head();
        }
        Ok(Some(completion))
    }

    /// Tells the device what was taken.
    #[inline]
    pub fn show_head(&mut self) {
        if self.shown_head != self.taken {
            self.shown_head = self.taken;
            self.memory.half(AT_COMPLETION_HEAD).store(self.taken as u32, Ordering::Release);
        }
    }

    /// True where a completion waits to be taken.
    #[inline]
    pub fn is_ready(&self) -> bool {
        let word = self.memory.word(self.layout.completion(self.taken)).load(Ordering::Acquire);
        word as u32 == self.layout.turn(self.taken)
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
        self.memory.half(AT_HOST_ASLEEP).store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
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
        self.memory.half(AT_VIEW_VERSION).load(Ordering::Acquire)
    }
}

/// True where sending failed since the other side is gone.
pub fn is_gone(error: Errno) -> bool {
    matches!(error, Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN)
}
