//! A record's header: whose pair it is, how its value lies, and the check that it belongs there (FORMAT.md).
//!
//! What always holds: the check covers all of a header but [`Header::next`], which recovery rebuilds.

use super::{HEADER_BYTES, Layout, Nonce, long, word};
use crate::wire::{KEY_BYTES_MAX, PairArguments};
use core::cmp::Ordering;

/// Identity of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairId {
    /// Hash of the key.
    pub hash: u64,
    /// Key, zeroes behind it.
    pub key: [u8; KEY_BYTES_MAX],
    /// Its length.
    pub key_bytes: u8,
}

impl PairId {
    /// From a request's arguments; `None` for a key length that cannot be.
    pub fn new(arguments: &PairArguments) -> Option<Self> {
        let length = arguments.key_bytes as usize;
        if length == 0 || length > KEY_BYTES_MAX {
            return None;
        }
        let mut key = arguments.key;
        if length < KEY_BYTES_MAX {
            let kept = u128::MAX >> (8 * (KEY_BYTES_MAX - length));
            key = (u128::from_le_bytes(key) & kept).to_le_bytes();
        }
        Some(PairId { hash: arguments.hash, key, key_bytes: length as u8 })
    }

    /// The key as two numbers, little-endian: to be compared, not ordered.
    #[inline]
    fn key_halves(&self) -> [u64; 2] {
        [half(&self.key, 0), half(&self.key, 8)]
    }

    /// The order of lists and chains.
    #[inline]
    pub fn order(&self, other: &PairId) -> Ordering {
        // A number with the first byte highest is ordered as the bytes are.
        let rank = |id: &PairId| (u128::from_be_bytes(id.key), id.key_bytes);
        self.hash.cmp(&other.hash).then_with(|| rank(self).cmp(&rank(other)))
    }
}

#[inline]
fn half(key: &[u8; KEY_BYTES_MAX], at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&key[at..at + 8]);
    u64::from_le_bytes(bytes)
}

/// What a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A pair.
    Pair,
    /// A deleted pair: holds back older versions of it that may still be on the media.
    Tombstone,
}

/// A record's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// When the pair ends to exist, in seconds of the hosts' clock; 0: never. A tombstone has none.
    pub expiry: u32,
    /// Next record of the bucket, or of the limbo list. Not checked: rebuilt after a crash.
    pub next: u32,
    /// Whose record.
    pub id: PairId,
    /// Higher is newer.
    pub sequence: u64,
    /// Length of the value.
    pub value_bytes: u32,
    /// CRC-32C of the value.
    pub value_check: u32,
    /// Pair or tombstone.
    pub kind: Kind,
    /// Number of chunk pointers.
    pub chunks: u16,
    /// CRC-32C of the chunk pointers.
    pub chunks_check: u32,
}

/// Offset of [`Header::next`].
pub const NEXT_OFFSET: u64 = 8;
/// Offset of [`Header::expiry`].
const EXPIRY_OFFSET: usize = 12;
const KIND_PAIR: u64 = 1;
const KIND_TOMBSTONE: u64 = 2;
/// A pair with an expiry (from version 2 of the format on).
const KIND_EXPIRING: u64 = 3;

impl Header {
    /// True for a pair. A tombstone is in a chain only during recovery, or where the media failed in the midst of a delete.
    pub fn is_pair(&self) -> bool {
        self.kind == Kind::Pair
    }

    #[inline(always)]
    fn words(&self) -> [u64; 6] {
        let [first, second] = self.id.key_halves();
        let kind = match self.kind {
            Kind::Pair if self.expiry == 0 => KIND_PAIR,
            Kind::Pair => KIND_EXPIRING,
            Kind::Tombstone => KIND_TOMBSTONE,
        };
        [
            self.id.hash,
            first,
            second,
            self.sequence,
            u64::from(self.value_bytes) | u64::from(self.value_check) << 32,
            u64::from(self.id.key_bytes)
                | kind << 8
                | u64::from(self.chunks) << 16
                | u64::from(self.chunks_check) << 32,
        ]
    }

    /// Writes the bytes of the header at that offset of its region, in a slab of that generation.
    #[inline(always)]
    pub fn encode(&self, nonce: &Nonce, offset: u64, generation: u64, out: &mut [u8; HEADER_BYTES as usize]) {
        debug_assert!(self.expiry == 0 || self.is_pair(), "a tombstone does not expire");
        let words = self.words();
        let second = u64::from(self.next) | u64::from(self.expiry) << 32;
        let tag = self.tag(&words, nonce, offset, generation);
        let [a, b, c, d, e, f] = words;
        let all = [tag, second, a, b, c, d, e, f];
        for (place, word) in out.as_chunks_mut::<8>().0.iter_mut().zip(all) {
            *place = word.to_le_bytes();
        }
    }

    /// The check of all but [`Header::next`]: the words that every header has and, where there is one, the expiry.
    #[inline(always)]
    fn tag(&self, words: &[u64; 6], nonce: &Nonce, offset: u64, generation: u64) -> u64 {
        if self.expiry == 0 {
            return nonce.check(offset, generation, words);
        }
        let [a, b, c, d, e, f] = *words;
        nonce.check(offset, generation, &[a, b, c, d, e, f, u64::from(self.expiry)])
    }

    /// Reads a header that the index points to; `None` where it makes no sense.
    #[inline]
    pub fn decode(from: &[u8; HEADER_BYTES as usize]) -> Option<Self> {
        let last = long(from, 56);
        let (kind, expiry) = match last >> 8 & 0xff {
            KIND_PAIR => (Kind::Pair, 0),
            KIND_TOMBSTONE => (Kind::Tombstone, 0),
            KIND_EXPIRING if word(from, EXPIRY_OFFSET) != 0 => (Kind::Pair, word(from, EXPIRY_OFFSET)),
            _ => return None,
        };
        let mut key = [0; KEY_BYTES_MAX];
        key.copy_from_slice(&from[24..40]);
        let key_bytes = last as u8;
        if long(from, 0) == 0 || key_bytes == 0 || usize::from(key_bytes) > KEY_BYTES_MAX {
            return None;
        }
        Some(Header {
            expiry,
            next: word(from, 8),
            id: PairId { hash: long(from, 16), key, key_bytes },
            sequence: long(from, 40),
            value_bytes: word(from, 48),
            value_check: word(from, 52),
            kind,
            chunks: (last >> 16) as u16,
            chunks_check: (last >> 32) as u32,
        })
    }

    /// Reads a header from the media and checks that it belongs there.
    pub fn verify(
        from: &[u8; HEADER_BYTES as usize],
        nonce: &Nonce,
        offset: u64,
        generation: u64,
        slot_bytes: u64,
    ) -> Option<Self> {
        let header = Self::decode(from)?;
        let right = header.check_matches(from, nonce, offset, generation)
            && header.value_bytes <= crate::wire::VALUE_BYTES_MAX
            && Layout::of(header.value_bytes).chunks == u32::from(header.chunks)
            && (header.kind == Kind::Tombstone || Layout::of(header.value_bytes).record_bytes() <= slot_bytes);
        right.then_some(header)
    }

    fn check_matches(&self, from: &[u8; HEADER_BYTES as usize], nonce: &Nonce, offset: u64, generation: u64) -> bool {
        self.tag(&self.words(), nonce, offset, generation) == long(from, 0)
    }
}

/// A header that the index points to, looked at where it is: what a get needs of it, and no more.
pub struct HeaderView<'a>(pub &'a [u8; HEADER_BYTES as usize]);

impl HeaderView<'_> {
    /// As [`Header::decode`] finds it: does it make sense?
    #[inline]
    pub fn is_sound(&self) -> bool {
        let last = long(self.0, 56);
        let (key_bytes, kind) = (last & 0xff, last >> 8 & 0xff);
        kind.wrapping_sub(KIND_PAIR) <= KIND_EXPIRING - KIND_PAIR
            && key_bytes.wrapping_sub(1) < KEY_BYTES_MAX as u64
            && long(self.0, 0) != 0
    }

    /// Hash of its key.
    #[inline]
    pub fn hash(&self) -> u64 {
        long(self.0, 16)
    }

    /// Whether it is that pair's.
    #[inline]
    pub fn is_of(&self, id: &PairId) -> bool {
        let [first, second] = id.key_halves();
        let differ = (self.hash() ^ id.hash) | (long(self.0, 24) ^ first) | (long(self.0, 32) ^ second);
        differ == 0 && self.0[56] == id.key_bytes
    }

    /// Length of the value.
    #[inline]
    pub fn value_bytes(&self) -> u32 {
        word(self.0, 48)
    }

    /// Next record of the chain.
    #[inline]
    pub fn next(&self) -> u32 {
        word(self.0, 8)
    }

    /// Its sequence number: the pair's version.
    #[inline]
    pub fn sequence(&self) -> u64 {
        long(self.0, 40)
    }

    /// When the pair ends to exist; 0: never. Of a tombstone nothing can be said.
    #[inline]
    pub fn expiry(&self) -> u32 {
        word(self.0, EXPIRY_OFFSET)
    }

    /// Length of the value, and number of its chunks, of a pair that does not expire; `None` for all else.
    #[inline]
    pub fn value(&self) -> Option<(u32, u16)> {
        let last = long(self.0, 56);
        (last >> 8 & 0xff == KIND_PAIR).then_some((word(self.0, 48), (last >> 16) as u16))
    }

    /// The same of a pair that exists at that time.
    #[inline]
    pub fn value_at(&self, now_s: u32) -> Option<(u32, u16)> {
        let last = long(self.0, 56);
        let exists = match last >> 8 & 0xff {
            KIND_PAIR => true,
            KIND_EXPIRING => self.expiry() > now_s,
            _ => false,
        };
        exists.then_some((word(self.0, 48), (last >> 16) as u16))
    }
}
