//! Requests for items, that is pairs with their version and expiry, for several pairs at once, and for ranges of keys.
//!
//! What always holds: arguments fit inline (64 bytes); what comes from outside is bounded before it is used.

use super::{KEY_BYTES_MAX, PairArguments, long, word};

/// Most bytes of inline arguments (docs/abi.md).
const INLINE_BYTES_MAX: usize = 64;
/// Most pairs of one PUT_MANY or GET_MANY.
pub const BATCH_MAX: u32 = 1024;
/// Parts of a batch begin at multiples of this.
pub const BATCH_ALIGNMENT: u32 = 8;

const _: () = assert!(
    ItemArguments::BYTES <= INLINE_BYTES_MAX
        && BatchArguments::BYTES <= INLINE_BYTES_MAX
        && ScanArguments::BYTES <= INLINE_BYTES_MAX
);

/// Arguments of requests for one item.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ItemArguments {
    /// As in every request. `reply_offset` is where the value begins, in the payload or in the reply.
    pub pair: PairArguments,
    /// With [`super::FLAG_IF_VERSION`].
    pub version: u64,
    /// The host's time in seconds since 1970 (or whatever all hosts of the namespace count); 0: not told.
    pub now_s: u32,
    /// When the pair ends to exist, in the same time; 0: never.
    pub expiry: u32,
}

impl ItemArguments {
    /// Encoded length.
    pub const BYTES: usize = PairArguments::BYTES + 16;

    /// Little-endian bytes.
    #[inline]
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[..PairArguments::BYTES].copy_from_slice(&self.pair.encode());
        out[44..52].copy_from_slice(&self.version.to_le_bytes());
        out[52..56].copy_from_slice(&self.now_s.to_le_bytes());
        out[56..60].copy_from_slice(&self.expiry.to_le_bytes());
        out
    }

    /// From [`Self::BYTES`] bytes.
    #[inline]
    pub fn decode(from: &[u8; Self::BYTES]) -> Self {
        let mut pair = [0; PairArguments::BYTES];
        pair.copy_from_slice(&from[..PairArguments::BYTES]);
        ItemArguments {
            pair: PairArguments::decode(&pair),
            version: long(from, 44),
            now_s: word(from, 52),
            expiry: word(from, 56),
        }
    }
}

/// What goes in front of an item's value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ItemHead {
    /// Differs from that of whatever was stored under this key before, or will be.
    pub version: u64,
    /// When it ends to exist; 0: never.
    pub expiry: u32,
    /// Length of the whole value.
    pub value_bytes: u32,
}

impl ItemHead {
    /// Encoded length.
    pub const BYTES: usize = 16;

    /// Little-endian bytes.
    #[inline]
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[0..8].copy_from_slice(&self.version.to_le_bytes());
        out[8..12].copy_from_slice(&self.expiry.to_le_bytes());
        out[12..16].copy_from_slice(&self.value_bytes.to_le_bytes());
        out
    }

    /// From [`Self::BYTES`] bytes.
    #[inline]
    pub fn decode(from: &[u8; Self::BYTES]) -> Self {
        ItemHead { version: long(from, 0), expiry: word(from, 8), value_bytes: word(from, 12) }
    }
}

/// Arguments of PUT_MANY and GET_MANY.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchArguments {
    /// Namespace.
    pub nsid: u32,
    /// [`super::FLAG_FUA`] and [`super::FLAG_PAST_UNMET`] for PUT_MANY.
    pub flags: u32,
    /// The host's time; 0: not told.
    pub now_s: u32,
    /// Pairs, 1 to [`BATCH_MAX`].
    pub count: u32,
    /// Where the reply begins in the buffer, which may hold the payload as well.
    pub reply_offset: u32,
}

impl BatchArguments {
    /// Encoded length.
    pub const BYTES: usize = 24;

    /// Little-endian bytes.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        let words = [self.nsid, self.flags, self.now_s, self.count, self.reply_offset];
        for (place, word) in out.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        out
    }

    /// From [`Self::BYTES`] bytes.
    pub fn decode(from: &[u8; Self::BYTES]) -> Self {
        let (nsid, flags, now_s) = (word(from, 0), word(from, 4), word(from, 8));
        BatchArguments { nsid, flags, now_s, count: word(from, 12), reply_offset: word(from, 16) }
    }
}

/// A pair of a PUT_MANY whose condition is not met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unmet {
    /// Which of the batch.
    pub index: u32,
    /// Why.
    pub status: u32,
}

impl Unmet {
    /// Encoded length.
    pub const BYTES: usize = 8;

    /// Little-endian bytes.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[..4].copy_from_slice(&self.index.to_le_bytes());
        out[4..].copy_from_slice(&self.status.to_le_bytes());
        out
    }

    /// From [`Self::BYTES`] bytes.
    pub fn decode(from: &[u8; Self::BYTES]) -> Self {
        Unmet { index: word(from, 0), status: word(from, 4) }
    }
}

/// How far a PUT_MANY with [`super::FLAG_PAST_UNMET`] came, as its result: pairs worked off, and how many of them are told as unmet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Pairs.
    pub done: u32,
    /// Of them.
    pub unmet: u32,
}

const _: () = assert!(BATCH_MAX < 1 << 16);

impl Progress {
    /// As a result.
    pub fn encode(self) -> u32 {
        self.done | self.unmet << 16
    }

    /// From a result.
    pub fn decode(result: u32) -> Self {
        Progress { done: result & 0xffff, unmet: result >> 16 }
    }
}

/// One pair of a GET_MANY.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GetEntry {
    /// Hash of the key.
    pub hash: u64,
    /// The key, zeroes behind it.
    pub key: [u8; KEY_BYTES_MAX],
    /// Its length.
    pub key_bytes: u32,
}

impl GetEntry {
    /// Encoded length.
    pub const BYTES: usize = 32;

    /// Little-endian bytes.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[0..8].copy_from_slice(&self.hash.to_le_bytes());
        out[8..24].copy_from_slice(&self.key);
        out[24..28].copy_from_slice(&self.key_bytes.to_le_bytes());
        out
    }

    /// From [`Self::BYTES`] bytes.
    pub fn decode(from: &[u8; Self::BYTES]) -> Self {
        let mut key = [0; KEY_BYTES_MAX];
        key.copy_from_slice(&from[8..24]);
        GetEntry { hash: long(from, 0), key, key_bytes: word(from, 24) }
    }
}

/// One pair of a PUT_MANY.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PutEntry {
    /// Whose.
    pub pair: GetEntry,
    /// `FLAG_ONLY_IF_*` and [`super::FLAG_IF_VERSION`].
    pub flags: u32,
    /// Length of the value.
    pub value_bytes: u32,
    /// With [`super::FLAG_IF_VERSION`].
    pub version: u64,
    /// When it ends to exist; 0: never.
    pub expiry: u32,
}

impl PutEntry {
    /// Encoded length.
    pub const BYTES: usize = 56;

    /// Little-endian bytes.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[..GetEntry::BYTES].copy_from_slice(&self.pair.encode());
        out[32..36].copy_from_slice(&self.flags.to_le_bytes());
        out[36..40].copy_from_slice(&self.value_bytes.to_le_bytes());
        out[40..48].copy_from_slice(&self.version.to_le_bytes());
        out[48..52].copy_from_slice(&self.expiry.to_le_bytes());
        out
    }

    /// From [`Self::BYTES`] bytes.
    pub fn decode(from: &[u8; Self::BYTES]) -> Self {
        let mut pair = [0; GetEntry::BYTES];
        pair.copy_from_slice(&from[..GetEntry::BYTES]);
        PutEntry {
            pair: GetEntry::decode(&pair),
            flags: word(from, 32),
            value_bytes: word(from, 36),
            version: long(from, 40),
            expiry: word(from, 48),
        }
    }
}

/// What a GET_MANY says of one pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ManyHead {
    /// 0: the value follows; else a `STATUS_*`, and none does.
    pub status: u32,
    /// Its version, expiry and length.
    pub head: ItemHead,
}

impl ManyHead {
    /// Encoded length.
    pub const BYTES: usize = 24;

    /// Little-endian bytes.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[0..4].copy_from_slice(&self.status.to_le_bytes());
        out[8..].copy_from_slice(&self.head.encode());
        out
    }

    /// From [`Self::BYTES`] bytes.
    pub fn decode(from: &[u8; Self::BYTES]) -> Self {
        let mut head = [0; ItemHead::BYTES];
        head.copy_from_slice(&from[8..]);
        ManyHead { status: word(from, 0), head: ItemHead::decode(&head) }
    }
}

/// A key without a hash; empty where there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bound {
    /// The key, zeroes behind it.
    pub key: [u8; KEY_BYTES_MAX],
    /// Its length.
    pub key_bytes: u8,
}

/// Arguments of SCAN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScanArguments {
    /// Namespace.
    pub nsid: u32,
    /// Where it begins in the order of listings: at this hash
    pub hash: u64,
    /// and, of those with it, this key or the one behind it (empty: the first of them).
    pub at: Bound,
    /// First key of the range; empty: no bound.
    pub from: Bound,
    /// Key behind the range; empty: no bound.
    pub to: Bound,
}

impl ScanArguments {
    /// Encoded length.
    pub const BYTES: usize = 64;

    /// Little-endian bytes.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[0..4].copy_from_slice(&self.nsid.to_le_bytes());
        for (index, bound) in [self.at, self.from, self.to].into_iter().enumerate() {
            out[4 + index] = bound.key_bytes;
            out[16 + 16 * index..32 + 16 * index].copy_from_slice(&bound.key);
        }
        out[8..16].copy_from_slice(&self.hash.to_le_bytes());
        out
    }

    /// From [`Self::BYTES`] bytes; `None` where a key is too long.
    pub fn decode(from: &[u8; Self::BYTES]) -> Option<Self> {
        let bound = |index: usize| {
            let mut key = [0; KEY_BYTES_MAX];
            let key_bytes = from[4 + index];
            if usize::from(key_bytes) > KEY_BYTES_MAX {
                return None;
            }
            let length = usize::from(key_bytes);
            key[..length].copy_from_slice(&from[16 + 16 * index..16 + 16 * index + length]);
            Some(Bound { key, key_bytes })
        };
        Some(ScanArguments { nsid: word(from, 0), hash: long(from, 8), at: bound(0)?, from: bound(1)?, to: bound(2)? })
    }
}

/// In front of a SCAN's entries: where the next one begins on this SPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScanHead {
    /// False: that was all.
    pub more: bool,
    /// At this hash
    pub hash: u64,
    /// and this key.
    pub at: Bound,
}

impl ScanHead {
    /// Encoded length.
    pub const BYTES: usize = 32;

    /// Little-endian bytes.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[0] = u8::from(self.more);
        out[1] = self.at.key_bytes;
        out[8..16].copy_from_slice(&self.hash.to_le_bytes());
        out[16..32].copy_from_slice(&self.at.key);
        out
    }

    /// From [`Self::BYTES`] bytes; `None` where the key is too long.
    pub fn decode(from: &[u8; Self::BYTES]) -> Option<Self> {
        let mut key = [0; KEY_BYTES_MAX];
        key.copy_from_slice(&from[16..32]);
        let sensible = usize::from(from[1]) <= KEY_BYTES_MAX;
        sensible.then_some(ScanHead {
            more: from[0] & 1 != 0,
            hash: long(from, 8),
            at: Bound { key, key_bytes: from[1] },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_encoded_decodes() {
        let bound = |byte: u8, length: u8| {
            let mut key = [0; KEY_BYTES_MAX];
            key[..usize::from(length)].fill(byte);
            Bound { key, key_bytes: length }
        };
        let pair = PairArguments { nsid: 1, flags: 2, hash: 3, key: [4; 16], key_bytes: 16, word: 6, reply_offset: 7 };
        let item = ItemArguments { pair, version: 0x0102_0304_0506_0708, now_s: 9, expiry: 10 };
        assert_eq!(ItemArguments::decode(&item.encode()), item);
        let head = ItemHead { version: 11, expiry: 12, value_bytes: 13 };
        assert_eq!(ItemHead::decode(&head.encode()), head);
        let batch = BatchArguments { nsid: 1, flags: 2, now_s: 3, count: 4, reply_offset: 5 };
        assert_eq!(BatchArguments::decode(&batch.encode()), batch);
        let unmet = Unmet { index: 6, status: 7 };
        assert_eq!(Unmet::decode(&unmet.encode()), unmet);
        for (done, unmet) in [(0, 0), (BATCH_MAX, BATCH_MAX), (3, 2)] {
            assert_eq!(Progress::decode(Progress { done, unmet }.encode()), Progress { done, unmet });
        }
        let get = GetEntry { hash: u64::MAX - 1, key: [5; 16], key_bytes: 15 };
        assert_eq!(GetEntry::decode(&get.encode()), get);
        let put = PutEntry { pair: get, flags: 1, value_bytes: 2, version: u64::MAX, expiry: 4 };
        assert_eq!(PutEntry::decode(&put.encode()), put);
        let many = ManyHead { status: 5, head };
        assert_eq!(ManyHead::decode(&many.encode()), many);
        let scan = ScanArguments { nsid: 3, hash: 77, at: bound(1, 16), from: bound(2, 0), to: bound(3, 7) };
        assert_eq!(ScanArguments::decode(&scan.encode()), Some(scan));
        let mut long = scan.encode();
        long[5] = 17;
        assert_eq!(ScanArguments::decode(&long), None);
        let scan_head = ScanHead { more: true, hash: 9, at: bound(8, 3) };
        assert_eq!(ScanHead::decode(&scan_head.encode()), Some(scan_head));
    }
}
