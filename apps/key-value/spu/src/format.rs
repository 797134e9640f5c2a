//! The bytes of a key-value region: superblock, durability mark, slab entries, records. FORMAT.md has the diagrams and
//! the argument why every interruption leaves a region readable.
//!
//! What always holds: all numbers are little-endian; a structure that is written in place lies within one 512-byte sector.

mod record;
mod superblock;

pub use record::{Header, HeaderView, Kind, NEXT_OFFSET, PairId};
pub use superblock::{FORMAT_VERSION, Found, SUPERBLOCK_BYTES, Superblock};

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

/// Bytes of the slots, class by class: divided once, by the compiler.
static SLOT_BYTES: [u32; CLASSES] = {
    let mut bytes = [0; CLASSES];
    let mut class = 0;
    while class < CLASSES {
        bytes[class] = slot_bytes_of(class) as u32;
        class += 1;
    }
    bytes
};

const fn slot_bytes_of(class: usize) -> u64 {
    SLAB_BYTES / SLOTS[class] as u64 / UNIT_BYTES * UNIT_BYTES
}

/// Bytes of a slot of that class: a multiple of [`UNIT_BYTES`].
#[inline]
pub fn slot_bytes(class: usize) -> u64 {
    SLOT_BYTES[class].into()
}

const _: () = {
    assert!(slot_bytes_of(0) == 128 && slot_bytes_of(CLASSES - 1) == SLAB_BYTES);
    let mut class = 1;
    while class < CLASSES {
        assert!(slot_bytes_of(class) > slot_bytes_of(class - 1));
        class += 1;
    }
    assert!(SLOTS[0] as usize <= BITMAP_WORDS * 64);
};

/// Power of two by power of two: the first class whose slots are longer than half of it.
static FIRST_CLASS: [u8; 17] = {
    let mut first = [0; 17];
    let mut power = 1;
    while power < first.len() {
        let mut class = 0;
        while slot_bytes_of(class) <= 1 << (power - 1) {
            class += 1;
        }
        first[power] = class as u8;
        power += 1;
    }
    first
};

/// The smallest class whose slots hold that many bytes (at least 1, at most [`SLAB_BYTES`]).
#[inline]
pub fn class_for(bytes: u64) -> usize {
    let power = u64::BITS - (bytes - 1).leading_zeros();
    let mut class = usize::from(FIRST_CLASS[power as usize]);
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
    #[inline]
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
    #[inline]
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
    #[inline(always)]
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
    /// Recovery's mark: the epoch in which a record was found to use the slab as a chunk, or, in a slab of slots, a tombstone.
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

    /// A slot is in use.
    pub fn take(&mut self, slot: u32) {
        let (word, bit) = (slot as usize / 64, 1 << (slot % 64));
        debug_assert!(self.bitmap[word] & bit != 0, "it was free");
        self.bitmap[word] &= !bit;
        self.free -= 1;
    }

    /// A slot is free again.
    pub fn give_back(&mut self, slot: u32) {
        let (word, bit) = (slot as usize / 64, 1 << (slot % 64));
        debug_assert!(self.bitmap[word] & bit == 0, "it was in use");
        self.bitmap[word] |= bit;
        self.free += 1;
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
    let mut bytes = [0; 4];
    bytes.copy_from_slice(&from[at..at + 4]);
    u32::from_le_bytes(bytes)
}

#[inline]
fn long(from: &[u8], at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&from[at..at + 8]);
    u64::from_le_bytes(bytes)
}
