//! The way to the device: one endpoint that the server's thread polls, in shared memory or over NVMe/TCP.
//!
//! What always holds: an operation that was taken ends exactly once, or with the port; a value that was read stays until it is given
//! back.

pub mod memory;
pub mod network;

use std::os::fd::BorrowedFd;
use willow_host::hre::ItemCondition;
use willow_wire::spec::kv::Key;

/// For ports that are not told how many processors there are: an operation on one that is not there fails.
pub const SPUS_UNKNOWN: u16 = u16::MAX;

/// What is asked of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Reads a value, at most so many bytes of it.
    Get {
        /// Whose.
        key: Key,
        /// Room for it.
        room: u32,
    },
    /// Stores.
    Put {
        /// Under this key.
        key: Key,
        /// When.
        condition: ItemCondition,
        /// When it ends; 0: never.
        expiry: u32,
    },
    /// Removes.
    Delete {
        /// Whose.
        key: Key,
        /// Only this version; 0: any.
        version: u64,
    },
    /// Another expiry.
    Touch {
        /// Whose.
        key: Key,
        /// The new one.
        expiry: u32,
    },
    /// Makes durable what was done in that group ([`Port::group_of`]).
    Flush {
        /// Which.
        group: u16,
    },
    /// Removes what has expired from some buckets.
    Sweep {
        /// SPU.
        spu: u16,
        /// First bucket.
        from: u32,
    },
    /// Removes all of an SPU, or of all where the port has one group.
    Clear {
        /// Which.
        group: u16,
    },
    /// Counts the pairs of an SPU.
    Count {
        /// Which.
        spu: u16,
    },
}

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Well.
    Done,
    /// There is no such pair.
    NotFound,
    /// There is one.
    Exists,
    /// It has another version.
    Changed,
    /// No room.
    Full,
    /// The device had no room for the request: the same may go well later.
    Busy,
    /// It failed.
    Failed,
}

/// The end of an operation.
#[derive(Clone, Copy, Debug)]
pub struct Completion {
    /// The operation's.
    pub tag: u32,
    /// How it ended.
    pub end: End,
    /// Get: length of the whole value. Sweep: where to go on.
    pub result: u32,
    /// Get, Put: its version. Count: pairs.
    pub version: u64,
    /// Get: when it ends. Count: bytes of values.
    pub expiry: u64,
    /// Get: where the value is, until it is given back.
    pub value: Option<u32>,
}

impl Completion {
    /// Without anything to tell.
    pub fn of(tag: u32, end: End) -> Self {
        Completion { tag, end, result: 0, version: 0, expiry: 0, value: None }
    }
}

/// Why the way is gone.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PortError(pub String);

/// The way to the device.
pub trait Port {
    /// Processors of the device, or [`SPUS_UNKNOWN`].
    fn spus(&self) -> u16;
    /// Groups of keys, each with flushes of its own.
    fn groups(&self) -> u16;
    /// Which group a key is in.
    fn group_of(&self, key: &Key) -> u16;
    /// Longest value.
    fn value_bytes_max(&self) -> usize;
    /// Whether it can count pairs.
    fn counts(&self) -> bool {
        true
    }
    /// Takes an operation, with the parts of the value that is stored; false where there is no room for it now.
    fn submit(&mut self, tag: u32, operation: &Operation, now_s: u32, value: &[&[u8]]) -> bool;
    /// Sends what was taken.
    fn send(&mut self);
    /// Takes what has ended.
    fn poll(&mut self, into: &mut Vec<Completion>) -> Result<(), PortError>;
    /// Appends part of a value that was read; false where that part is not there.
    fn value(&self, value: u32, at: usize, bytes: usize, into: &mut Vec<u8>) -> bool;
    /// Gives a value back.
    fn give_back(&mut self, value: u32);
    /// Readable when the device has something to say and was asked to ([`Port::ask`]).
    fn descriptor(&self) -> BorrowedFd<'_>;
    /// Whether it must be writable for what is to be sent.
    fn wants_to_write(&self) -> bool {
        false
    }
    /// Before the thread sleeps; true where there is something already.
    fn ask(&mut self) -> bool;
    /// After the descriptor was readable.
    fn woken(&mut self) -> Result<(), PortError>;
}
