//! The app's requests on the wire, little-endian, and what is replied. Shared by the handlers and the host library.
//!
//! ```text
//! create   u32 tree, u32 layout, u64 bytes a bank, u32 name bytes, u32 zero; the name
//! get      u32 tree, u32 zero, key                          reply: the value; the result is its length
//! put      u32 tree, u32 pairs; for each key, u32 value bytes, u32 zero; then the values, one behind the other
//! delete   u32 tree, u32 keys; the keys                     the result is how many were there
//! range    u32 tree, u32 flags and most pairs, key          reply: u32 pairs, u32 bytes used, u32 more, u32 zero; for each
//!                                                           key, u32 value bytes, u32 zero, and the value at a multiple of 8
//! stat     u32 tree                                         reply: `Statistics`
//! remove   u32 tree, u32 name bytes; the name
//! close    u32 tree, u32 1: keep it closed, 0: not any more
//! ```

/// Handler numbers.
pub mod handler {
    /// Makes a tree, or what is missing of it on this SPU.
    pub const CREATE: u8 = 1;
    /// The value of a key.
    pub const GET: u8 = 2;
    /// Stores pairs, all or none; they are durable when it is answered.
    pub const PUT: u8 = 3;
    /// Deletes keys, all or none; they are gone for good when it is answered.
    pub const DELETE: u8 = 4;
    /// Pairs in the order of their keys.
    pub const RANGE: u8 = 5;
    /// What there is of a tree on this SPU.
    pub const STAT: u8 = 6;
    /// How many SPUs there are: who reaches this app alone is told by it. No body; the result is the number.
    pub const SPUS: u8 = 9;
    /// Removes a tree from all banks, and gives its room back; the tree's owner does it.
    pub const REMOVE: u8 = 10;
    /// From another SPU: lets requests of a tree end, and no more begin.
    pub const CLOSE: u8 = 11;
    /// From another SPU: opens a striped tree, so that its root can be read.
    pub const OPEN: u8 = 7;
    /// From another SPU: makes this one's bank durable.
    pub const SYNC: u8 = 8;
}

/// Status: the media failed.
pub const STATUS_MEDIA: u32 = 2;
/// Status: there is no such key.
pub const STATUS_NOT_FOUND: u32 = 3;
/// Status: there is no such tree here.
pub const STATUS_NO_TREE: u32 = 4;
/// Status: the tree exists already.
pub const STATUS_EXISTS: u32 = 5;
/// Status: arguments that make no sense.
pub const STATUS_MALFORMED: u32 = 6;
/// Status: the tree, or the bank, has no room for it.
pub const STATUS_FULL: u32 = 7;
/// Status: there was no place for the request, or the tree changed too often while it was searched: try again.
pub const STATUS_BUSY: u32 = 8;
/// Status: what lies in the bank is no sound tree.
pub const STATUS_DAMAGED: u32 = 9;
/// Status: another SPU changes this tree.
pub const STATUS_ELSEWHERE: u32 = 10;
/// Status: another tree's name leads to the same number.
pub const STATUS_OTHER_NAME: u32 = 11;
/// Status: not permitted.
pub const STATUS_PERMISSION: u32 = 12;

/// Bytes of a key; shorter ones are filled with zeroes.
pub const KEY_BYTES: usize = 16;
/// Most bytes of a value.
pub const VALUE_BYTES_MAX: u32 = 4096;
/// Most bytes of a tree's name.
pub const NAME_BYTES_MAX: usize = 64;
/// Most pairs of a put, or keys of a delete.
pub const PAIRS_MAX: u32 = 64;
/// Most bytes of the values of a put.
pub const PUT_BYTES_MAX: u32 = 64 << 10;
/// Most pairs of a reply to a range.
pub const RANGE_PAIRS_MAX: u32 = 1024;
/// Bytes of a reply to a range at least: one pair fits.
pub const RANGE_REPLY_BYTES_MIN: u32 = RANGE_HEAD_BYTES as u32 + PAIR_HEAD_BYTES as u32 + VALUE_BYTES_MAX;

/// Each SPU has a tree of its own; a key's hash says which.
pub const LAYOUT_PARTITIONED: u32 = 0;
/// One tree, whose nodes and values lie in all banks in turn.
pub const LAYOUT_STRIPED: u32 = 1;

/// Flag of a range, beside the most pairs: behind the key, not at it.
pub const RANGE_AFTER: u32 = 1 << 31;
/// Flag of a range: no values.
pub const RANGE_KEYS_ONLY: u32 = 1 << 30;
/// The most pairs.
pub const RANGE_PAIRS_MASK: u32 = 0xffff;

/// A key, filled up.
pub type Key = [u8; KEY_BYTES];

/// Bytes of what a create begins with.
pub const CREATE_BYTES: usize = 24;
/// Bytes of what a put or a delete begins with.
pub const CHANGE_BYTES: usize = 8;
/// Bytes before each value's, in a put and in a reply to a range.
pub const PAIR_HEAD_BYTES: usize = KEY_BYTES + 8;
/// Bytes that a reply to a range begins with.
pub const RANGE_HEAD_BYTES: usize = 16;
/// Bytes of the arguments of a get or a range: as many as a command of NVMe carries beside a reply.
pub const LOOK_BYTES: usize = 24;

fn word(from: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([from[at], from[at + 1], from[at + 2], from[at + 3]])
}

fn long(from: &[u8], at: usize) -> u64 {
    u64::from(word(from, at)) | u64::from(word(from, at + 4)) << 32
}

/// What makes a tree; the name follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Create {
    /// Its number.
    pub tree: u32,
    /// `LAYOUT_*`.
    pub layout: u32,
    /// Bytes that it has in every bank.
    pub bank_bytes: u64,
    /// Bytes of its name.
    pub name_bytes: u32,
}

impl Create {
    /// Little-endian bytes.
    pub fn encode(&self) -> [u8; CREATE_BYTES] {
        let mut out = [0; CREATE_BYTES];
        out[0..4].copy_from_slice(&self.tree.to_le_bytes());
        out[4..8].copy_from_slice(&self.layout.to_le_bytes());
        out[8..16].copy_from_slice(&self.bank_bytes.to_le_bytes());
        out[16..20].copy_from_slice(&self.name_bytes.to_le_bytes());
        out
    }

    /// From its bytes.
    pub fn decode(from: &[u8; CREATE_BYTES]) -> Create {
        Create { tree: word(from, 0), layout: word(from, 4), bank_bytes: long(from, 8), name_bytes: word(from, 16) }
    }
}

/// What is looked for: a get's key, or where a range begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// The tree's number.
    pub tree: u32,
    /// Of a range: `RANGE_*` and the most pairs.
    pub flags: u32,
    /// Key.
    pub key: Key,
}

impl Look {
    /// Little-endian bytes.
    pub fn encode(&self) -> [u8; LOOK_BYTES] {
        let mut out = [0; LOOK_BYTES];
        out[0..4].copy_from_slice(&self.tree.to_le_bytes());
        out[4..8].copy_from_slice(&self.flags.to_le_bytes());
        out[8..24].copy_from_slice(&self.key);
        out
    }

    /// From its bytes.
    pub fn decode(from: &[u8; LOOK_BYTES]) -> Look {
        let mut key = [0; KEY_BYTES];
        key.copy_from_slice(&from[8..24]);
        Look { tree: word(from, 0), flags: word(from, 4), key }
    }
}

/// What a put or a delete begins with: the tree's number and how many follow.
pub fn encode_change(tree: u32, count: u32) -> [u8; CHANGE_BYTES] {
    let mut out = [0; CHANGE_BYTES];
    out[0..4].copy_from_slice(&tree.to_le_bytes());
    out[4..8].copy_from_slice(&count.to_le_bytes());
    out
}

/// See [`encode_change`].
pub fn decode_change(from: &[u8; CHANGE_BYTES]) -> (u32, u32) {
    (word(from, 0), word(from, 4))
}

/// What stands before a value: its key and its length.
pub fn encode_pair(key: &Key, value_bytes: u32) -> [u8; PAIR_HEAD_BYTES] {
    let mut out = [0; PAIR_HEAD_BYTES];
    out[..KEY_BYTES].copy_from_slice(key);
    out[KEY_BYTES..KEY_BYTES + 4].copy_from_slice(&value_bytes.to_le_bytes());
    out
}

/// See [`encode_pair`].
pub fn decode_pair(from: &[u8; PAIR_HEAD_BYTES]) -> (Key, u32) {
    let mut key = [0; KEY_BYTES];
    key.copy_from_slice(&from[..KEY_BYTES]);
    (key, word(from, KEY_BYTES))
}

/// What a reply to a range begins with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RangeHead {
    /// Pairs.
    pub pairs: u32,
    /// Bytes of the reply that are used.
    pub used: u32,
    /// There are more behind the last one.
    pub more: bool,
}

impl RangeHead {
    /// Little-endian bytes.
    pub fn encode(&self) -> [u8; RANGE_HEAD_BYTES] {
        let mut out = [0; RANGE_HEAD_BYTES];
        out[0..4].copy_from_slice(&self.pairs.to_le_bytes());
        out[4..8].copy_from_slice(&self.used.to_le_bytes());
        out[8] = self.more.into();
        out
    }

    /// From its bytes.
    pub fn decode(from: &[u8; RANGE_HEAD_BYTES]) -> RangeHead {
        RangeHead { pairs: word(from, 0), used: word(from, 4), more: from[8] != 0 }
    }
}

/// What there is of a tree on an SPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Statistics {
    /// `LAYOUT_*`.
    pub layout: u32,
    /// Levels; 0: it is empty.
    pub height: u32,
    /// Changes that were made.
    pub revision: u64,
    /// Pairs.
    pub pairs: u64,
    /// Pages of 4 kB that it may use.
    pub pages: u64,
    /// Bytes of its name.
    pub name_bytes: u32,
    /// Its name.
    pub name: [u8; NAME_BYTES_MAX],
}

impl Statistics {
    /// Encoded length.
    pub const BYTES: usize = 40 + NAME_BYTES_MAX;

    /// Little-endian bytes.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[0..4].copy_from_slice(&self.layout.to_le_bytes());
        out[4..8].copy_from_slice(&self.height.to_le_bytes());
        out[8..16].copy_from_slice(&self.revision.to_le_bytes());
        out[16..24].copy_from_slice(&self.pairs.to_le_bytes());
        out[24..32].copy_from_slice(&self.pages.to_le_bytes());
        out[32..36].copy_from_slice(&self.name_bytes.to_le_bytes());
        out[40..].copy_from_slice(&self.name);
        out
    }

    /// From its bytes.
    pub fn decode(from: &[u8; Self::BYTES]) -> Statistics {
        let mut name = [0; NAME_BYTES_MAX];
        name.copy_from_slice(&from[40..]);
        Statistics {
            layout: word(from, 0),
            height: word(from, 4),
            revision: long(from, 8),
            pairs: long(from, 16),
            pages: long(from, 24),
            name_bytes: word(from, 32),
            name,
        }
    }
}
