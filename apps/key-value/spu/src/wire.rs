//! Key-Value's requests on the wire: inline arguments, little-endian. Shared by the handlers and the host library.
//!
//! Every request but LIST, FLUSH and STAT names one pair by (hash, key). The hash is the host's: see the host library's
//! `Placement`. The engine takes (hash, key) as the pair's identity and never computes the hash itself, so that a host with
//! another hash function harms nobody but its own namespace.

mod items;

pub use items::{
    BATCH_ALIGNMENT, BATCH_MAX, BatchArguments, Bound, GetEntry, ItemArguments, ItemHead, ManyHead, Progress, PutEntry,
    ScanArguments, ScanHead, Unmet,
};

/// Handler numbers.
pub mod handler {
    /// Stores a pair. Payload: the value. `word`: its length in bytes. `FLAG_ONLY_IF_*` and [`super::FLAG_FUA`] apply.
    pub const PUT: u8 = 1;
    /// Copies the value from byte `word` on to the reply from its byte `reply_offset` on, as far as the reply buffer goes.
    /// Result: the value's full length.
    pub const GET: u8 = 2;
    /// Removes a pair. [`super::FLAG_FUA`] applies.
    pub const DELETE: u8 = 3;
    /// Status 0 where the pair exists; result: the value's length.
    pub const EXISTS: u8 = 4;
    /// Writes entries (see [`super::LIST_ENTRY_HEADER_BYTES`]) into the reply from byte `word` on, in ascending
    /// (hash, key), beginning at or after the given pair. Result: bytes written, a multiple of 4, plus
    /// [`super::LIST_MORE`] where this SPU holds more.
    pub const LIST: u8 = 5;
    /// All that was answered before on this SPU is durable when it answers.
    pub const FLUSH: u8 = 6;
    /// Reply: [`super::Statistics`].
    pub const STAT: u8 = 7;
    /// As PUT, with [`super::ItemArguments`]: on condition of a version ([`super::FLAG_IF_VERSION`]), with an expiry. The value begins
    /// at byte `offset` of the payload. Reply, as far as there is room: the new version (u64).
    pub const PUT_ITEM: u8 = 8;
    /// As GET, with [`super::ItemArguments`]. An [`super::ItemHead`] goes in front of the value, to `offset` - 16 of the reply.
    pub const GET_ITEM: u8 = 9;
    /// As DELETE, with [`super::ItemArguments`]: on condition of a version.
    pub const DELETE_ITEM: u8 = 10;
    /// Gives a pair another expiry; its value and version stay. [`super::FLAG_FUA`] applies. Reply, as far as there is room: an
    /// [`super::ItemHead`]. Result: the value's length.
    pub const TOUCH: u8 = 11;
    /// Removes pairs that have expired from some buckets, from number `word` on. Result: where to go on; 0: that was the end.
    pub const SWEEP: u8 = 12;
    /// Removes all pairs of this SPU, durably.
    pub const CLEAR: u8 = 13;
    /// Stores several pairs: [`super::BatchArguments`], payload: a [`super::PutEntry`] each, then its value and zeroes up to a multiple of 8.
    /// In order; the first that fails ends it. Result: how many were stored. [`super::FLAG_FUA`]: all of them are durable then.
    /// [`super::FLAG_PAST_UNMET`]: a pair whose condition is not met is told in the reply and ends nothing, as far as there is room for an
    /// [`super::Unmet`] each from `reply_offset` on. Result: how many were worked off, and from bit 16 on how many of them are told.
    pub const PUT_MANY: u8 = 14;
    /// Reads several pairs: [`super::BatchArguments`], payload: a [`super::GetEntry`] each. Reply: an [`super::ManyHead`] each, then its value
    /// and zeroes up to a multiple of 8, as many as there is room for. Result: how many.
    pub const GET_MANY: u8 = 15;
    /// The keys of a range: [`super::ScanArguments`]. Reply: a [`super::ScanHead`], then entries as of LIST. Result: bytes of the reply.
    pub const SCAN: u8 = 16;
    /// For the app itself, in the background: sees to it that namespaces are closed in order while nobody changes them.
    pub const CARETAKER: u8 = 17;
}

/// No such pair (NVMe KV: KV Key Does Not Exist, 87h).
pub const STATUS_NOT_FOUND: u32 = 1;
/// There is such a pair already (NVMe KV: KV Key Exists, 89h).
pub const STATUS_EXISTS: u32 = 2;
/// No room for it; all that is stored stays readable and deletable (NVMe: Capacity Exceeded, 81h).
pub const STATUS_CAPACITY: u32 = 3;
/// The media failed.
pub const STATUS_MEDIA_ERROR: u32 = 4;
/// Arguments that make no sense.
pub const STATUS_MALFORMED: u32 = 5;
/// A key of 0 or more than [`KEY_BYTES_MAX`] bytes (NVMe KV: Invalid Key Size, 86h).
pub const STATUS_KEY_SIZE: u32 = 6;
/// A value of more than [`VALUE_BYTES_MAX`] bytes (NVMe KV: Invalid Value Size, 85h).
pub const STATUS_VALUE_SIZE: u32 = 7;
/// No such key-value namespace.
pub const STATUS_NO_NAMESPACE: u32 = 8;
/// The originating HRE may not.
pub const STATUS_PERMISSION: u32 = 9;
/// The namespace's region holds something that is no key-value store, or one of a newer format: nothing was touched.
pub const STATUS_FORMAT: u32 = 10;
/// The namespace is too small to hold anything.
pub const STATUS_TOO_SMALL: u32 = 11;

/// The pair has another version.
pub const STATUS_CHANGED: u32 = 12;
/// The reply has no room for the value.
pub const STATUS_ROOM: u32 = 13;
/// The device has no place for more at the moment: to be tried again. Of what was to be stored the old or the new is there.
pub const STATUS_BUSY: u32 = 14;

/// PUT: only where the key exists (NVMe KV Store Option, CDW11 bit 8).
pub const FLAG_ONLY_IF_EXISTS: u32 = 1;
/// PUT: only where the key does not exist (NVMe KV Store Option, CDW11 bit 9).
pub const FLAG_ONLY_IF_ABSENT: u32 = 2;
/// PUT, DELETE: durable before the answer.
pub const FLAG_FUA: u32 = 4;
/// LIST: from the first pair of this SPU; key and hash are not looked at.
pub const FLAG_FROM_START: u32 = 8;
/// LIST: begin after the given pair rather than at it.
pub const FLAG_AFTER: u32 = 16;
/// PUT_ITEM, DELETE_ITEM: only where the pair has this version.
pub const FLAG_IF_VERSION: u32 = 32;
/// PUT_MANY: conditions that are not met do not end it.
pub const FLAG_PAST_UNMET: u32 = 64;

/// Longest key (NVMe KV: 16 bytes in CDW2-3 and CDW14-15).
pub const KEY_BYTES_MAX: usize = 16;
/// Longest value.
pub const VALUE_BYTES_MAX: u32 = 16 << 20;
/// LIST result: there is more on this SPU.
pub const LIST_MORE: u32 = 1 << 31;
/// A list entry is a u16 key length, the key, and zeroes up to a multiple of 4 (NVMe KV, List data structure).
pub const LIST_ENTRY_HEADER_BYTES: usize = 2;
/// Longest list entry.
pub const LIST_ENTRY_BYTES_MAX: usize = list_entry_bytes(KEY_BYTES_MAX);

/// Bytes of the list entry of a key of that length.
pub const fn list_entry_bytes(key_bytes: usize) -> usize {
    (LIST_ENTRY_HEADER_BYTES + key_bytes).next_multiple_of(4)
}

/// The arguments of every request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PairArguments {
    /// Namespace.
    pub nsid: u32,
    /// `FLAG_*`.
    pub flags: u32,
    /// Hash of the key.
    pub hash: u64,
    /// The key, zeroes behind it.
    pub key: [u8; KEY_BYTES_MAX],
    /// Its length.
    pub key_bytes: u32,
    /// PUT: value length. GET: offset in the value. LIST: offset in the reply.
    pub word: u32,
    /// GET: first byte of the reply that is written: a transport has room for its framing in front of the value.
    pub reply_offset: u32,
}

impl PairArguments {
    /// Encoded length.
    pub const BYTES: usize = 44;

    /// Little-endian bytes.
    #[inline]
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[0..4].copy_from_slice(&self.nsid.to_le_bytes());
        out[4..8].copy_from_slice(&self.flags.to_le_bytes());
        out[8..16].copy_from_slice(&self.hash.to_le_bytes());
        out[16..32].copy_from_slice(&self.key);
        out[32..36].copy_from_slice(&self.key_bytes.to_le_bytes());
        out[36..40].copy_from_slice(&self.word.to_le_bytes());
        out[40..44].copy_from_slice(&self.reply_offset.to_le_bytes());
        out
    }

    /// From [`Self::BYTES`] bytes.
    #[inline]
    pub fn decode(from: &[u8; Self::BYTES]) -> Self {
        let mut key = [0; KEY_BYTES_MAX];
        key.copy_from_slice(&from[16..32]);
        PairArguments {
            nsid: word(from, 0),
            flags: word(from, 4),
            hash: long(from, 8),
            key,
            key_bytes: word(from, 32),
            word: word(from, 36),
            reply_offset: word(from, 40),
        }
    }
}

/// What STAT tells of one namespace on one SPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Pairs.
    pub pairs: u64,
    /// Bytes of their values.
    pub value_bytes: u64,
    /// Bytes of the slots and chunks that they take, and of those that wait to be free.
    pub used_bytes: u64,
    /// Bytes for slots and chunks in all.
    pub heap_bytes: u64,
    /// Slots that wait for a flush before they are free again.
    pub limbo_slots: u64,
    /// Length of the hash table.
    pub buckets: u64,
}

impl Statistics {
    /// Encoded length.
    pub const BYTES: usize = 48;

    /// Little-endian bytes.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        let words = [self.pairs, self.value_bytes, self.used_bytes, self.heap_bytes, self.limbo_slots, self.buckets];
        for (place, word) in out.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        out
    }

    /// From [`Self::BYTES`] bytes.
    pub fn decode(from: &[u8; Self::BYTES]) -> Self {
        Statistics {
            pairs: long(from, 0),
            value_bytes: long(from, 8),
            used_bytes: long(from, 16),
            heap_bytes: long(from, 24),
            limbo_slots: long(from, 32),
            buckets: long(from, 40),
        }
    }
}

/// The SPU that a hash belongs to: its high-order part, so that SPU 0 has the lowest hashes (XSSD 4.4.2: Ctrl ID).
#[inline]
pub fn spu_of(hash: u64, spus: u16) -> u16 {
    ((u128::from(hash) * u128::from(spus)) >> 64) as u16
}

/// The place of a hash among those of its SPU, as a 64-bit fraction; ascending with the hash.
#[inline]
pub fn place_on_spu(hash: u64, spus: u16) -> u64 {
    hash.wrapping_mul(u64::from(spus))
}

#[inline]
fn word(from: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([from[at], from[at + 1], from[at + 2], from[at + 3]])
}

#[inline]
fn long(from: &[u8], at: usize) -> u64 {
    u64::from(word(from, at)) | u64::from(word(from, at + 4)) << 32
}
