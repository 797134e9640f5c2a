//! Key-Value's host library: hashes a key, picks its SPU and encodes the request (Willow 4.5: the hash is computed on
//! the host and spreads the buckets over the SPUs). It sends nothing itself: who has an endpoint, or serves NVMe KV
//! commands, turns a [`Call`] into an RPC and hands its answer back.
//!
//! What always holds: the order of pairs is ascending (hash, key); SPU 0 has the lowest hashes.

#![forbid(unsafe_code)]

mod batch;
mod hash;
mod item;
mod list;
mod scan;

pub use batch::{GetBatch, Gotten, PutBatch};
pub use hash::Placement;
pub use item::{ItemCall, ItemCondition, ItemPut};
pub use key_value_spu::wire;
pub use list::{ListKeys, ListScan, ListStep};
pub use scan::{KeyScan, ScanCall, ScanStep};

use key_value_spu::wire::{
    FLAG_FUA, FLAG_ONLY_IF_ABSENT, FLAG_ONLY_IF_EXISTS, KEY_BYTES_MAX, PairArguments, VALUE_BYTES_MAX, handler,
};
use std::fmt;

/// Name that the app is installed under.
pub const APP_NAME: &str = "key-value";

/// A key: 1 to 16 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    bytes: [u8; KEY_BYTES_MAX],
    length: u8,
}

impl Key {
    /// Copies `from`.
    pub fn new(from: &[u8]) -> Result<Self, KeyValueError> {
        if from.is_empty() || from.len() > KEY_BYTES_MAX {
            return Err(KeyValueError::KeySize);
        }
        let mut bytes = [0; KEY_BYTES_MAX];
        bytes[..from.len()].copy_from_slice(from);
        Ok(Key { bytes, length: from.len() as u8 })
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.as_bytes().escape_ascii())
    }
}

/// When PUT stores (NVMe KV Store, CDW11 bits 8 and 9).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PutCondition {
    /// In any case.
    #[default]
    Always,
    /// Only over a pair that exists.
    IfExists,
    /// Only where there is none.
    IfAbsent,
}

/// One RPC to the app: the payload (PUT) or reply buffer (GET, LIST, STAT) travels beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call<const ARGUMENT_BYTES: usize = { PairArguments::BYTES }> {
    /// Handler number.
    pub handler: u8,
    /// Receiving SPU.
    pub spu: u16,
    /// Inline arguments.
    pub arguments: [u8; ARGUMENT_BYTES],
}

impl Call {
    fn pair(handler: u8, placement: &Placement, nsid: u32, key: &Key, flags: u32, word: u32) -> Self {
        let hash = placement.hash(key);
        let arguments = PairArguments {
            nsid,
            flags,
            hash,
            key: key.bytes,
            key_bytes: u32::from(key.length),
            word,
            reply_offset: 0,
        };
        Call { handler, spu: placement.spu(hash), arguments: arguments.encode() }
    }

    /// Stores a value of `value_bytes` bytes, which are the request's payload. `durable`: it is flushed before the answer.
    pub fn put(
        placement: &Placement,
        nsid: u32,
        key: &Key,
        value_bytes: u32,
        condition: PutCondition,
        durable: bool,
    ) -> Result<Self, KeyValueError> {
        if value_bytes > VALUE_BYTES_MAX {
            return Err(KeyValueError::ValueSize);
        }
        let condition = match condition {
            PutCondition::Always => 0,
            PutCondition::IfExists => FLAG_ONLY_IF_EXISTS,
            PutCondition::IfAbsent => FLAG_ONLY_IF_ABSENT,
        };
        let flags = condition | if durable { FLAG_FUA } else { 0 };
        Ok(Self::pair(handler::PUT, placement, nsid, key, flags, value_bytes))
    }

    /// Copies the value from byte `offset` on into the reply, as far as the buffer goes. The result is the value's full
    /// length, so that a short buffer is noticed (NVMe KV Retrieve: the value size is in completion DW0).
    pub fn get(placement: &Placement, nsid: u32, key: &Key, offset: u32) -> Self {
        Self::pair(handler::GET, placement, nsid, key, 0, offset)
    }

    /// The same GET, its value at byte `reply_offset` of the reply: a transport has room for its framing in front of it.
    pub fn get_at(placement: &Placement, nsid: u32, key: &Key, reply_offset: u32) -> Self {
        let hash = placement.hash(key);
        let (key, key_bytes) = (key.bytes, u32::from(key.length));
        let arguments = PairArguments { nsid, flags: 0, hash, key, key_bytes, word: 0, reply_offset };
        Call { handler: handler::GET, spu: placement.spu(hash), arguments: arguments.encode() }
    }

    /// Removes the pair.
    pub fn delete(placement: &Placement, nsid: u32, key: &Key, durable: bool) -> Self {
        Self::pair(handler::DELETE, placement, nsid, key, if durable { FLAG_FUA } else { 0 }, 0)
    }

    /// Asks whether there is such a pair; the result is its value's length.
    pub fn exists(placement: &Placement, nsid: u32, key: &Key) -> Self {
        Self::pair(handler::EXISTS, placement, nsid, key, 0, 0)
    }

    /// Makes all that this SPU answered before durable. A namespace is flushed by one call for each SPU.
    pub fn flush(nsid: u32, spu: u16) -> Self {
        let arguments = PairArguments { nsid, ..PairArguments::default() }.encode();
        Call { handler: handler::FLUSH, spu, arguments }
    }

    /// Asks for [`wire::Statistics`] of a namespace on one SPU.
    pub fn statistics(nsid: u32, spu: u16) -> Self {
        Self::statistics_at(nsid, spu, 0)
    }

    /// The same, at byte `reply_offset` of the reply: several SPUs answer into one.
    pub fn statistics_at(nsid: u32, spu: u16, reply_offset: u32) -> Self {
        let arguments = PairArguments { nsid, reply_offset, ..PairArguments::default() }.encode();
        Call { handler: handler::STAT, spu, arguments }
    }
}

/// Why a request cannot be sent, or failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyValueError {
    /// No such pair.
    NotFound,
    /// There is such a pair already.
    Exists,
    /// No room.
    Capacity,
    /// The media failed.
    Media,
    /// The device found the arguments senseless.
    Malformed,
    /// A key of 0 or more than 16 bytes.
    KeySize,
    /// A value longer than [`VALUE_BYTES_MAX`].
    ValueSize,
    /// No such key-value namespace.
    NoNamespace,
    /// Not permitted.
    Permission,
    /// The namespace's region holds no store that this app understands.
    Format,
    /// The namespace is too small to hold anything.
    TooSmall,
    /// The pair has another version.
    Changed,
    /// The reply has no room for the value.
    Room,
    /// The device has no place for more at the moment.
    Busy,
    /// A status that this library does not know.
    Unknown(u32),
}

impl KeyValueError {
    /// The error that a response's status stands for; `Ok` for 0.
    pub fn from_status(status: u32) -> Result<(), Self> {
        Err(match status {
            0 => return Ok(()),
            wire::STATUS_NOT_FOUND => Self::NotFound,
            wire::STATUS_EXISTS => Self::Exists,
            wire::STATUS_CAPACITY => Self::Capacity,
            wire::STATUS_MEDIA_ERROR => Self::Media,
            wire::STATUS_MALFORMED => Self::Malformed,
            wire::STATUS_KEY_SIZE => Self::KeySize,
            wire::STATUS_VALUE_SIZE => Self::ValueSize,
            wire::STATUS_NO_NAMESPACE => Self::NoNamespace,
            wire::STATUS_PERMISSION => Self::Permission,
            wire::STATUS_FORMAT => Self::Format,
            wire::STATUS_TOO_SMALL => Self::TooSmall,
            wire::STATUS_CHANGED => Self::Changed,
            wire::STATUS_ROOM => Self::Room,
            wire::STATUS_BUSY => Self::Busy,
            other => Self::Unknown(other),
        })
    }
}

impl fmt::Display for KeyValueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::NotFound => "there is no such key",
            Self::Exists => "the key exists already",
            Self::Capacity => "the key-value namespace is full",
            Self::Media => "the media failed",
            Self::Malformed => "the device refused the arguments as malformed",
            Self::KeySize => "a key has 1 to 16 bytes",
            Self::ValueSize => "a value has at most 16 MiB",
            Self::NoNamespace => "there is no such key-value namespace",
            Self::Permission => "not permitted",
            Self::Format => "the namespace holds no key-value store that this version understands",
            Self::Changed => "the pair has another version",
            Self::Room => "the buffer is too short for the value",
            Self::Busy => "the device has no place for more at the moment; try again",
            Self::TooSmall => "the key-value namespace is too small to hold anything",
            Self::Unknown(status) => return write!(f, "the key-value app answered with unknown status {status}"),
        };
        f.write_str(text)
    }
}

impl std::error::Error for KeyValueError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_sizes() {
        assert_eq!(Key::new(b""), Err(KeyValueError::KeySize));
        assert_eq!(Key::new(&[0; 17]), Err(KeyValueError::KeySize));
        assert_ne!(Key::new(b"a").unwrap(), Key::new(b"a\0").unwrap());
        assert_eq!(Key::new(&[7; 16]).unwrap().as_bytes(), &[7; 16]);
    }

    #[test]
    fn arguments_survive_the_wire() {
        let placement = Placement::new([3; 16], 5);
        let key = Key::new(b"some key").unwrap();
        let call = Call::put(&placement, 9, &key, 1234, PutCondition::IfAbsent, true).unwrap();
        let decoded = PairArguments::decode(&call.arguments);
        assert_eq!(decoded.flags, FLAG_ONLY_IF_ABSENT | FLAG_FUA);
        assert_eq!((decoded.nsid, decoded.word, decoded.key_bytes), (9, 1234, 8));
        assert_eq!(decoded.hash, placement.hash(&key));
        assert_eq!(call.spu, placement.spu(decoded.hash));
        assert!(call.spu < 5);
        assert_eq!(
            Call::put(&placement, 9, &key, VALUE_BYTES_MAX + 1, PutCondition::Always, false),
            Err(KeyValueError::ValueSize)
        );
    }

    #[test]
    fn every_status_has_an_error() {
        assert_eq!(KeyValueError::from_status(0), Ok(()));
        for status in 1..=wire::STATUS_BUSY {
            let error = KeyValueError::from_status(status).unwrap_err();
            assert!(!matches!(error, KeyValueError::Unknown(_)), "{status}");
        }
    }
}
