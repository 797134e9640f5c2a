//! A process' own files, read and written by endpoints of its own, without the operating system between (Willow, 4.2): the library
//! of Direct-IO. The descriptor that the process has opened decides what it may do; the agent installs the permissions.
//!
//! ```text
//! file      a file with POSIX semantics: directly where that goes, through the kernel where it does not   queue   the same, several at once
//! session   the device and the agent of one process: its lanes, its files         reach     by which way the device is reached
//! lane      an endpoint that its thread polls            over_hre  the bare direct access over any endpoint, asynchronous
//! mapped    what the agent granted of a file             agent_client  the agent's socket
//! append    records behind the end of a file, whose length the device has meanwhile (append_port: its endpoint)
//! atomic    ranges of files, written as a whole or not at all
//! inode     a file, however often it is open             description   open files, and placeholders for them while the file is direct
//! ```
//!
//! What always holds:
//! - a file keeps its length while it is open directly; [`File`] gives it back to the file system for whatever changes it, and takes
//!   it again afterwards;
//! - within one [`Session`] all of a file's input and output goes one way at a time, directly or through the kernel, and what
//!   changes the way waits for what is under way: reads see every write that was done before them;
//! - while a file is direct no descriptor of it that the library knows can write: each is a read-only placeholder under the same number.
//!   While the device appends to it ([`File::append`]) each is a mere path;
//! - a write is durable after the sync that follows it; overlapping calls leave what overlapping `pwrite`s leave.

mod agent_client;
mod append;
mod append_port;
mod atomic;
mod cached;
mod description;
mod file;
mod inode;
mod insist;
mod lane;
mod mapped;
mod over_hre;
mod queue;
mod reach;
mod session;
mod spare;
mod unsynced;

pub use agent_client::{AgentClient, DirectError};
pub use append::{AppendFailure, Appender};
pub use atomic::{AtomicError, AtomicWriter, FileWrites};
pub use cached::CachedFile;
pub use file::File;
pub use inode::Hold;
pub use insist::{Place, Waits, refused};
pub use lane::LaneOptions;
pub use mapped::Mapped;
pub use over_hre::DirectFile;
pub(crate) use over_hre::all;
pub use queue::{Done, Queue, Request};
pub use reach::endpoint;
pub use session::{AGENT_PATIENCE, Counts, Session, SessionOptions, forks, watch_forks};
