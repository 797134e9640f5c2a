//! Append's requests on the wire, little-endian.

/// Handler numbers.
pub mod handler {
    /// Appends a record to a delegated file: [`super::AppendArguments`], then the record. The result is the low 32 bits of the offset at which it lies.
    pub const APPEND: u8 = 1;
    /// Takes over a file's length: [`super::Delegation`], then its extents. For the host's kernel, as all that follow.
    pub const DELEGATE: u8 = 2;
    /// Adds extents behind those that there are: [`super::Delegation`] with the file and the number alone, then the extents.
    pub const EXTEND: u8 = 3;
    /// Lets a process append: file, u32 process (the upper 20 bits of its endpoints' ids), u32 1; or not any more: 0.
    pub const ADMIT: u8 = 4;
    /// Tells of a file: its number; the reply is a [`super::Entry`].
    pub const LENGTH: u8 = 5;
    /// Ends appending: the number of the file; the reply is a [`super::Entry`], whose length is the last.
    pub const SUSPEND: u8 = 6;
    /// Gives the length of a suspended file back to the file system: its number.
    pub const END: u8 = 7;
    /// Tells of the delegated file with the lowest slot from a number (u64) on; the reply is a [`super::Entry`].
    pub const LIST: u8 = 8;
    /// Makes this bank durable, for an instance of the app on another SPU.
    pub const SYNC: u8 = 9;
}

pub use base_io_ranges::wire::{
    STATUS_BUSY, STATUS_FULL, STATUS_MALFORMED, STATUS_MEDIA_ERROR, STATUS_PERMISSION, STATUS_RANGE,
};
/// Status: no such file is delegated to this SPU.
pub const STATUS_NOT_FOUND: u32 = 16;
/// Status: the file is delegated already, or what failed has left something: it is to be suspended and ended first.
pub const STATUS_EXISTS: u32 = 17;
/// Status: insufficient space: the file system is to allocate more, and to extend the delegation.
pub const STATUS_INSUFFICIENT: u32 = 18;
/// Status: the file is suspended: nothing is appended any more.
pub const STATUS_SUSPENDED: u32 = 19;
/// Status: a file that is not suspended cannot be ended.
pub const STATUS_APPENDING: u32 = 20;

/// Longest record.
pub const RECORD_BYTES_MAX: u32 = 65536;
/// Most extents of a file's tail.
pub const EXTENTS_MAX: usize = 27;

fn word(from: &[u8], at: usize) -> u64 {
    from.get(at..).and_then(|from| from.first_chunk()).map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// Words of 64 bits, little-endian.
fn words<const BYTES: usize>(of: &[u64]) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    of.iter().zip(bytes.chunks_exact_mut(8)).for_each(|(word, bytes)| bytes.copy_from_slice(&word.to_le_bytes()));
    bytes
}

/// Of an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AppendArguments {
    /// The file: its inode, or whatever the agent calls it. Its coordinator is the SPU of that number modulo the SPUs.
    pub file: u64,
    /// Bytes of the record, which follows.
    pub bytes: u32,
}

impl AppendArguments {
    /// Encoded length.
    pub const BYTES: usize = 16;

    /// Little-endian bytes.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        words(&[self.file, self.bytes.into()])
    }

    /// From bytes.
    pub fn decode(from: &[u8; Self::BYTES]) -> Self {
        AppendArguments { file: word(from, 0), bytes: word(from, 8) as u32 }
    }
}

/// A range of the namespace, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// First byte.
    pub start: u64,
    /// Bytes.
    pub bytes: u64,
}

impl Extent {
    /// Encoded length.
    pub const BYTES: usize = 16;

    /// Little-endian bytes.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        words(&[self.start, self.bytes])
    }

    /// From bytes.
    pub fn decode(from: &[u8]) -> Self {
        Extent { start: word(from, 0), bytes: word(from, 8) }
    }
}

/// A file whose length the app takes over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delegation {
    /// The file; not 0.
    pub file: u64,
    /// Its length.
    pub length: u64,
    /// Byte of the file at which the first extent begins: at most its length.
    pub first: u64,
    /// Where the namespace begins in each bank.
    pub base: u64,
    /// Its stripes.
    pub stripe_bytes: u32,
    /// How many extents follow.
    pub extents: u32,
}

impl Delegation {
    /// Encoded length.
    pub const BYTES: usize = 40;

    /// Little-endian bytes.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let last = u64::from(self.stripe_bytes) | u64::from(self.extents) << 32;
        words(&[self.file, self.length, self.first, self.base, last])
    }

    /// From bytes.
    pub fn decode(from: &[u8]) -> Self {
        let last = word(from, 32);
        Delegation {
            file: word(from, 0),
            length: word(from, 8),
            first: word(from, 16),
            base: word(from, 24),
            stripe_bytes: last as u32,
            extents: (last >> 32) as u32,
        }
    }
}

/// What is told of a delegated file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The file.
    pub file: u64,
    /// Its length: all before it is durable.
    pub length: u64,
    /// The length that it can have with its extents.
    pub capacity: u64,
    /// Its slot on this SPU.
    pub slot: u32,
    /// Nothing is appended any more.
    pub is_suspended: bool,
}

impl Entry {
    /// Encoded length.
    pub const BYTES: usize = 32;

    /// Little-endian bytes.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let last = u64::from(self.slot) | u64::from(self.is_suspended) << 32;
        words(&[self.file, self.length, self.capacity, last])
    }

    /// From bytes.
    pub fn decode(from: &[u8]) -> Self {
        let last = word(from, 24);
        Entry {
            file: word(from, 0),
            length: word(from, 8),
            capacity: word(from, 16),
            slot: last as u32,
            is_suspended: last >> 32 != 0,
        }
    }
}
