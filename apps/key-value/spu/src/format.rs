//! The bytes of a key-value region: superblock, durability mark, slab entries, records. FORMAT.md has the diagrams and
//! the argument why every interruption leaves a region readable.
//!
//! What always holds: all numbers are little-endian; a structure that is written in place lies within one 512-byte sector.

use crate::wire::{KEY_BYTES_MAX, PairArguments};
use core::cmp::Ordering;

/// A pointer counts these from the region's start; 0 is none.
pub const UNIT_BYTES: u64 = 64;
/// A slab holds slots of one class, or is one chunk of a long value.
pub const SLAB_BYTES: u64 = 64 << 10;
/// Unit of tearing.
pub const SECTOR_BYTES: u64 = 512;
/// Length of a record's header.
pub const HEADER_BYTES: u64 = 64;
/// Largest region that pointers reach.
pub const REGION_BYTES_MAX: u64 = UNIT_BYTES << 32;

/// Slots in a slab, class by class: sizes grow by about a quarter.
const SLOTS: [u16; CLASSES] =
    [512, 341, 256, 204, 170, 146, 128, 113, 102, 85, 73, 60, 51, 40, 31, 25, 20, 15, 12, 10, 7, 6, 5, 4, 3, 2, 1];
/// Number of slot classes.
pub const CLASSES: usize = 27;
/// In the place of a class: the slab is a chunk.
pub const CLASS_CHUNK: u8 = 0xff;
/// Words in a slab's bitmap.
pub const BITMAP_WORDS: usize = 8;

/// Slots in a slab of that class.
#[inline]
pub const fn slots_per_slab(class: usize) -> u32 {
    SLOTS[class] as u32
}

/// Bytes of a slot of that class: a multiple of [`UNIT_BYTES`].
#[inline]
pub const fn slot_bytes(class: usize) -> u64 {
    SLAB_BYTES / SLOTS[class] as u64 / UNIT_BYTES * UNIT_BYTES
}

const _: () = {
    assert!(slot_bytes(0) == 128 && slot_bytes(CLASSES - 1) == SLAB_BYTES);
    let mut class = 1;
    while class < CLASSES {
        assert!(slot_bytes(class) > slot_bytes(class - 1));
        class += 1;
    }
    assert!(SLOTS[0] as usize <= BITMAP_WORDS * 64);
};

/// The smallest class whose slots hold that many bytes (at most [`SLAB_BYTES`]).
pub fn class_for(bytes: u64) -> usize {
    let mut class = 0;
    while slot_bytes(class) < bytes {
        class += 1;
    }
    class
}

/// How a value is laid out: whole chunks first, then a rest that lies in the record's slot behind the chunks' pointers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Chunks, each a slab.
    pub chunks: u32,
    /// Bytes in the slot.
    pub rest: u32,
}

impl Layout {
    /// For a value of that length.
    pub fn of(value_bytes: u32) -> Self {
        if HEADER_BYTES + u64::from(value_bytes) <= SLAB_BYTES {
            return Layout { chunks: 0, rest: value_bytes };
        }
        let chunks = value_bytes / SLAB_BYTES as u32;
        let rest = value_bytes % SLAB_BYTES as u32;
        let layout = Layout { chunks, rest };
        if layout.record_bytes() <= SLAB_BYTES { layout } else { Layout { chunks: chunks + 1, rest: 0 } }
    }

    /// Bytes of the record in its slot.
    pub fn record_bytes(&self) -> u64 {
        HEADER_BYTES + 4 * u64::from(self.chunks) + u64::from(self.rest)
    }

    /// Bytes of chunk `index` that the value uses.
    pub fn chunk_bytes(&self, index: u32, value_bytes: u32) -> u32 {
        (value_bytes - index * SLAB_BYTES as u32).min(SLAB_BYTES as u32)
    }
}

const _: () = assert!(crate::wire::VALUE_BYTES_MAX as u64 / SLAB_BYTES <= 1024, "the pointers fit the largest slot");

/// Where the parts of a region lie. All offsets are from the region's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Geometry {
    /// First byte of the region in the bank.
    pub base: u64,
    /// Bytes of the region.
    pub bytes: u64,
    /// Entries of the hash table.
    pub buckets: u32,
    /// Offset of the slab entries.
    pub entries: u64,
    /// Offset of the first slab.
    pub heap: u64,
    /// Number of slabs.
    pub slabs: u32,
}

impl Geometry {
    /// Superblock copies at these offsets.
    pub const SUPERBLOCKS: [u64; 2] = [0, 4096];
    /// The durability mark.
    pub const MARK: u64 = 8192;
    /// The hash table.
    pub const BUCKETS: u64 = 16 << 10;
    /// Bytes of region for each bucket.
    const BYTES_PER_BUCKET: u64 = 256;
    const BUCKETS_MULTIPLE: u64 = 1024;

    /// Of a region; `None` where not even one slab fits.
    pub fn new(base: u64, bytes: u64) -> Option<Self> {
        let bytes = bytes.min(REGION_BYTES_MAX);
        let buckets = (bytes / Self::BYTES_PER_BUCKET).next_multiple_of(Self::BUCKETS_MULTIPLE);
        let entries = Self::BUCKETS + 4 * buckets;
        let room = bytes.checked_sub(entries + 4096)?;
        let slabs = room / (SLAB_BYTES + ENTRY_BYTES);
        let heap = (entries + slabs * ENTRY_BYTES).next_multiple_of(4096);
        if slabs == 0 {
            return None;
        }
        debug_assert!(heap + slabs * SLAB_BYTES <= bytes);
        Some(Geometry { base, bytes, buckets: buckets as u32, entries, heap, slabs: slabs as u32 })
    }

    /// Bucket of a place (see [`crate::wire::place_on_spu`]); ascending.
    #[inline]
    pub fn bucket(&self, place: u64) -> u32 {
        // The product's bits from 64 on, without numbers of 128 bits, which WebAssembly has not.
        let buckets = u64::from(self.buckets);
        (((place >> 32) * buckets + (((place & 0xffff_ffff) * buckets) >> 32)) >> 32) as u32
    }

    /// Bank address of a bucket's head.
    #[inline]
    pub fn bucket_address(&self, bucket: u32) -> u64 {
        self.base + Self::BUCKETS + 4 * u64::from(bucket)
    }

    /// Bank address of a slab's entry.
    #[inline]
    pub fn entry_address(&self, slab: u32) -> u64 {
        self.base + self.entries + ENTRY_BYTES * u64::from(slab)
    }

    /// Bank address of a slab.
    #[inline]
    pub fn slab_address(&self, slab: u32) -> u64 {
        self.base + self.heap + SLAB_BYTES * u64::from(slab)
    }

    /// Pointer to a slot.
    #[inline]
    pub fn pointer(&self, slab: u32, class: usize, slot: u32) -> u32 {
        ((self.heap + SLAB_BYTES * u64::from(slab) + slot_bytes(class) * u64::from(slot)) / UNIT_BYTES) as u32
    }

    /// Bank address that a pointer stands for.
    #[inline]
    pub fn address(&self, pointer: u32) -> u64 {
        self.base + UNIT_BYTES * u64::from(pointer)
    }

    /// Whether a pointer lies in the heap.
    #[inline]
    pub fn holds(&self, pointer: u32) -> bool {
        let offset = UNIT_BYTES * u64::from(pointer);
        offset >= self.heap && offset - self.heap < SLAB_BYTES * u64::from(self.slabs)
    }

    /// Slab that a pointer lies in and its offset there; `None` outside the heap.
    #[inline]
    pub fn slab_of(&self, pointer: u32) -> Option<(u32, u64)> {
        let offset = (UNIT_BYTES * u64::from(pointer)).checked_sub(self.heap)?;
        let slab = offset / SLAB_BYTES;
        (slab < u64::from(self.slabs)).then_some((slab as u32, offset % SLAB_BYTES))
    }
}

/// What ties a structure to its place and time, so that bytes that merely look like one do not pass for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Nonce(pub [u64; 2]);

impl Nonce {
    /// A 64-bit keyed check of words at an address in a generation; never 0.
    #[inline]
    pub fn check(&self, address: u64, generation: u64, words: &[u64]) -> u64 {
        let mut state = mix(self.0[0] ^ address, self.0[1] ^ generation);
        for word in words {
            state = mix(state ^ word, self.0[1]);
        }
        mix(state, self.0[0]).max(1)
    }
}

/// Spreads two words over one: two odd multiplications with shifts between.
#[inline]
fn mix(a: u64, b: u64) -> u64 {
    let x = (a ^ b.rotate_left(23)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ x >> 29).wrapping_add(b).wrapping_mul(0xd6e8_feb8_6659_fd93);
    x ^ x >> 32
}

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
        let kept = u128::MAX >> (8 * (KEY_BYTES_MAX - length));
        let key = (u128::from_le_bytes(arguments.key) & kept).to_le_bytes();
        Some(PairId { hash: arguments.hash, key, key_bytes: length as u8 })
    }

    /// The order of lists and chains.
    #[inline]
    pub fn order(&self, other: &PairId) -> Ordering {
        // A number with the first byte highest is ordered as the bytes are.
        let rank = |id: &PairId| (u128::from_be_bytes(id.key), id.key_bytes);
        self.hash.cmp(&other.hash).then_with(|| rank(self).cmp(&rank(other)))
    }
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
const KIND_PAIR: u64 = 1;
const KIND_TOMBSTONE: u64 = 2;

impl Header {
    /// True for a pair. A tombstone is in a chain only during recovery, or where the media failed in the midst of a delete.
    pub fn is_pair(&self) -> bool {
        self.kind == Kind::Pair
    }

    fn words(&self) -> [u64; 6] {
        let half = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&self.id.key[at..at + 8]);
            u64::from_le_bytes(bytes)
        };
        let kind = match self.kind {
            Kind::Pair => KIND_PAIR,
            Kind::Tombstone => KIND_TOMBSTONE,
        };
        [
            self.id.hash,
            half(0),
            half(8),
            self.sequence,
            u64::from(self.value_bytes) | u64::from(self.value_check) << 32,
            u64::from(self.id.key_bytes)
                | kind << 8
                | u64::from(self.chunks) << 16
                | u64::from(self.chunks_check) << 32,
        ]
    }

    /// Bytes of the header at that offset of its region, in a slab of that generation.
    pub fn encode(&self, nonce: &Nonce, offset: u64, generation: u64) -> [u8; HEADER_BYTES as usize] {
        let words = self.words();
        let mut out = [0; HEADER_BYTES as usize];
        out[0..8].copy_from_slice(&nonce.check(offset, generation, &words).to_le_bytes());
        out[8..12].copy_from_slice(&self.next.to_le_bytes());
        for (place, word) in out[16..].chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        out
    }

    /// Reads a header that the index points to; `None` where it makes no sense.
    #[inline]
    pub fn decode(from: &[u8; HEADER_BYTES as usize]) -> Option<Self> {
        let last = long(from, 56);
        let kind = match last >> 8 & 0xff {
            KIND_PAIR => Kind::Pair,
            KIND_TOMBSTONE => Kind::Tombstone,
            _ => return None,
        };
        let mut key = [0; KEY_BYTES_MAX];
        key.copy_from_slice(&from[24..40]);
        let key_bytes = last as u8;
        if long(from, 0) == 0 || key_bytes == 0 || usize::from(key_bytes) > KEY_BYTES_MAX {
            return None;
        }
        Some(Header {
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
        nonce.check(offset, generation, &self.words()) == long(from, 0)
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
        (kind == KIND_PAIR || kind == KIND_TOMBSTONE)
            && key_bytes.wrapping_sub(1) < KEY_BYTES_MAX as u64
            && long(self.0, 0) != 0
    }

    /// Hash of its key.
    #[inline]
    pub fn hash(&self) -> u64 {
        long(self.0, 16)
    }

    /// Whether its key is that one, in the order of chains.
    #[inline]
    pub fn key_order(&self, id: &PairId) -> Ordering {
        let half = |at: usize| long(self.0, at).swap_bytes();
        let (first, second) = (half(24), half(32));
        let rank = u128::from_be_bytes(id.key);
        (first, second, self.0[56]).cmp(&((rank >> 64) as u64, rank as u64, id.key_bytes))
    }

    /// Next record of the chain.
    #[inline]
    pub fn next(&self) -> u32 {
        word(self.0, 8)
    }

    /// Length of the value, and number of its chunks; `None` where it is a tombstone's.
    #[inline]
    pub fn value(&self) -> Option<(u32, u16)> {
        let last = long(self.0, 56);
        (last >> 8 & 0xff == KIND_PAIR).then_some((word(self.0, 48), (last >> 16) as u16))
    }
}

/// Length of a slab's entry.
pub const ENTRY_BYTES: u64 = 128;
/// In the place of a slab's number: none.
pub const NO_SLAB: u32 = u32::MAX;

/// A slab's entry. Generation and class are authoritative; the rest is rebuilt after a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Number of its latest assignment; 0: never assigned.
    pub generation: u64,
    /// Class of its slots, or [`CLASS_CHUNK`].
    pub class: u8,
    /// Free slots in the bitmap.
    pub free: u32,
    /// Next slab of its list, or [`NO_SLAB`].
    pub next: u32,
    /// Slab before it in its list, or [`NO_SLAB`].
    pub previous: u32,
    /// Recovery's mark: the epoch in which a record was found to use the slab as a chunk.
    pub mark: u32,
    /// A bit for each free slot.
    pub bitmap: [u64; BITMAP_WORDS],
}

/// Offset of [`Entry::next`].
pub const ENTRY_NEXT_OFFSET: u64 = 20;
/// Offset of [`Entry::previous`].
pub const ENTRY_PREVIOUS_OFFSET: u64 = 24;

impl Entry {
    /// A slab that was never assigned.
    pub const UNASSIGNED: Entry = Entry {
        generation: 0,
        class: 0,
        free: 0,
        next: NO_SLAB,
        previous: NO_SLAB,
        mark: 0,
        bitmap: [0; BITMAP_WORDS],
    };

    /// A newly assigned slab: all its slots are free.
    pub fn assigned(generation: u64, class: u8) -> Self {
        let mut entry = Entry { generation, class, ..Self::UNASSIGNED };
        if class != CLASS_CHUNK {
            let slots = slots_per_slab(usize::from(class));
            entry.free = slots;
            for (index, word) in entry.bitmap.iter_mut().enumerate() {
                let left = slots.saturating_sub(64 * index as u32);
                *word = if left >= 64 { u64::MAX } else { (1 << left) - 1 };
            }
        }
        entry
    }

    fn check(nonce: &Nonce, slab: u32, generation: u64, class: u8) -> u32 {
        nonce.check(!u64::from(slab), generation, &[u64::from(class)]) as u32
    }

    /// Bytes.
    pub fn encode(&self, nonce: &Nonce, slab: u32) -> [u8; ENTRY_BYTES as usize] {
        let mut out = [0; ENTRY_BYTES as usize];
        out[0..8].copy_from_slice(&self.generation.to_le_bytes());
        out[8] = self.class;
        out[12..16].copy_from_slice(&Self::check(nonce, slab, self.generation, self.class).to_le_bytes());
        out[16..20].copy_from_slice(&self.free.to_le_bytes());
        out[20..24].copy_from_slice(&self.next.to_le_bytes());
        out[24..28].copy_from_slice(&self.previous.to_le_bytes());
        out[28..32].copy_from_slice(&self.mark.to_le_bytes());
        for (place, word) in out[64..].chunks_exact_mut(8).zip(self.bitmap) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        out
    }

    /// Reads an entry; one that was never written, or is no entry, is [`Self::UNASSIGNED`].
    pub fn decode(from: &[u8; ENTRY_BYTES as usize], nonce: &Nonce, slab: u32) -> Self {
        let (generation, class) = (long(from, 0), from[8]);
        let sensible = generation != 0
            && (class == CLASS_CHUNK || usize::from(class) < CLASSES)
            && word(from, 12) == Self::check(nonce, slab, generation, class);
        if !sensible {
            return Self::UNASSIGNED;
        }
        let mut bitmap = [0; BITMAP_WORDS];
        for (index, place) in bitmap.iter_mut().enumerate() {
            *place = long(from, 64 + 8 * index);
        }
        Entry {
            generation,
            class,
            free: word(from, 16),
            next: word(from, 20),
            previous: word(from, 24),
            mark: word(from, 28),
            bitmap,
        }
    }
}

/// Length of a superblock: one sector.
pub const SUPERBLOCK_BYTES: usize = SECTOR_BYTES as usize;
const MAGIC: u64 = u64::from_le_bytes(*b"WLWKEYVL");
/// Version of this format.
pub const FORMAT_VERSION: u32 = 1;

/// The superblock: identity of the region and, where it is clean, what was in local memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// The rest and the index are valid: the region was closed in order and not written since.
    pub clean: bool,
    /// Of the two copies the one with the higher revision counts.
    pub revision: u64,
    /// Chosen when the region was formatted.
    pub nonce: Nonce,
    /// Length of the region.
    pub region_bytes: u64,
    /// Number of this SPU.
    pub spu: u16,
    /// Number of SPUs.
    pub spus: u16,
    /// Number of times that the region was opened to write.
    pub epoch: u32,
    /// Latest sequence number.
    pub sequence: u64,
    /// Pairs.
    pub pairs: u64,
    /// Bytes of values.
    pub value_bytes: u64,
    /// Bytes of slots and chunks in use.
    pub used_bytes: u64,
    /// First free slab.
    pub free_head: u32,
    /// Slabs from here on were never used.
    pub fresh: u32,
    /// First slab with free slots, class by class.
    pub partial: [u32; CLASSES],
}

/// What a sector where a superblock should be turned out to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Zeroes.
    Nothing,
    /// A superblock.
    Superblock(Superblock),
    /// Something else.
    Foreign,
}

impl Superblock {
    /// Bytes.
    pub fn encode(&self) -> [u8; SUPERBLOCK_BYTES] {
        let mut out = [0; SUPERBLOCK_BYTES];
        let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &MAGIC.to_le_bytes());
        put(8, &FORMAT_VERSION.to_le_bytes());
        put(12, &u32::from(self.clean).to_le_bytes());
        put(16, &self.revision.to_le_bytes());
        put(24, &self.nonce.0[0].to_le_bytes());
        put(32, &self.nonce.0[1].to_le_bytes());
        put(40, &self.region_bytes.to_le_bytes());
        put(48, &self.spu.to_le_bytes());
        put(50, &self.spus.to_le_bytes());
        put(52, &self.epoch.to_le_bytes());
        put(56, &self.sequence.to_le_bytes());
        put(64, &self.pairs.to_le_bytes());
        put(72, &self.value_bytes.to_le_bytes());
        put(80, &self.used_bytes.to_le_bytes());
        put(88, &self.free_head.to_le_bytes());
        put(92, &self.fresh.to_le_bytes());
        for (class, head) in self.partial.iter().enumerate() {
            put(96 + 4 * class, &head.to_le_bytes());
        }
        let check = Self::check(&out);
        out[SUPERBLOCK_BYTES - 8..].copy_from_slice(&check.to_le_bytes());
        out
    }

    fn check(bytes: &[u8; SUPERBLOCK_BYTES]) -> u64 {
        let mut words = [0; SUPERBLOCK_BYTES / 8 - 1];
        for (index, word) in words.iter_mut().enumerate() {
            *word = long(bytes, 8 * index);
        }
        Nonce([MAGIC, !MAGIC]).check(0, 0, &words)
    }

    /// Reads a sector.
    pub fn decode(from: &[u8; SUPERBLOCK_BYTES]) -> Found {
        if from.iter().all(|byte| *byte == 0) {
            return Found::Nothing;
        }
        let right = long(from, 0) == MAGIC
            && word(from, 8) == FORMAT_VERSION
            && long(from, SUPERBLOCK_BYTES - 8) == Self::check(from);
        if !right {
            return Found::Foreign;
        }
        let mut partial = [0; CLASSES];
        for (class, head) in partial.iter_mut().enumerate() {
            *head = word(from, 96 + 4 * class);
        }
        Found::Superblock(Superblock {
            clean: word(from, 12) & 1 != 0,
            revision: long(from, 16),
            nonce: Nonce([long(from, 24), long(from, 32)]),
            region_bytes: long(from, 40),
            spu: word(from, 48) as u16,
            spus: (word(from, 48) >> 16) as u16,
            epoch: word(from, 52),
            sequence: long(from, 56),
            pairs: long(from, 64),
            value_bytes: long(from, 72),
            used_bytes: long(from, 80),
            free_head: word(from, 88),
            fresh: word(from, 92),
            partial,
        })
    }
}

/// Length of the durability mark.
pub const MARK_BYTES: usize = 16;

/// Bytes of a mark: every record with at most that sequence number was durable when it was written.
pub fn encode_mark(nonce: &Nonce, sequence: u64) -> [u8; MARK_BYTES] {
    let mut out = [0; MARK_BYTES];
    out[..8].copy_from_slice(&sequence.to_le_bytes());
    out[8..].copy_from_slice(&nonce.check(Geometry::MARK, 0, &[sequence]).to_le_bytes());
    out
}

/// Reads a mark; 0 where there is none.
pub fn decode_mark(from: &[u8; MARK_BYTES], nonce: &Nonce) -> u64 {
    let sequence = long(from, 0);
    if nonce.check(Geometry::MARK, 0, &[sequence]) == long(from, 8) { sequence } else { 0 }
}

#[inline]
fn word(from: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([from[at], from[at + 1], from[at + 2], from[at + 3]])
}

#[inline]
fn long(from: &[u8], at: usize) -> u64 {
    u64::from(word(from, at)) | u64::from(word(from, at + 4)) << 32
}
