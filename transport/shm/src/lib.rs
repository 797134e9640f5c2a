//! Endpoints in shared memory: what both ends agree on. The device's end is `willow-shm-front`, the host's in `willow-host`.
//!
//! ```text
//! socket    a Unix socket: handshake, descriptor of the memory, the peer's credentials, doorbells for sleepers
//! closing   threads that close sockets, since a close may wait
//! ending    processes that have ended and are still there
//! message   what is said on it
//! own       numbers of descriptors in programs that know nothing of them
//! layout    where everything lies in the memory; entries of the rings (docs/shared-memory.md, byte by byte)
//! memory    the sealed memory, mapped: words are atomics, data are raw copies
//! rings     the two rings: the host's and the device's end, wherever their words lie
//! ring      an endpoint as a process has it: handshake, the host's end of the rings, doorbell
//! ```
//!
//! What always holds: the memory belongs to two processes that do not trust each other. An entry is copied out once and
//! judged by the copy; positions are each side's own counters, never read back from the memory; what the other side says of
//! its progress is checked against what it can be.

pub mod closing;
pub mod layout;
pub mod memory;
pub mod message;
pub mod own;
pub mod process;
pub mod ring;
pub mod rings;
pub mod socket;
#[cfg(feature = "testing")]
pub mod testing;

pub use layout::{Command, Completion, Layout, Outcome};
pub use memory::Mapping;
pub use message::{Opened, Request, Response};
pub use socket::{Channel, Listener, Peer};
