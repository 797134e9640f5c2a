//! Caching's requests on the wire, little-endian.

/// Handler numbers.
pub mod handler {
    /// Reads bytes of a cached chunk: [`super::ChunkArguments`] with offset and bytes. The reply is the bytes, the result the chunk's version.
    pub const READ: u8 = 1;
    /// Writes bytes of a cached chunk of a write-back cache: the same, then the bytes.
    pub const WRITE: u8 = 2;
    /// Makes durable what was written to this bank.
    pub const SYNC: u8 = 3;
    /// Makes a cache: [`super::ChunkArguments`] with the cache alone, then a [`super::Descriptor`]. For the host's kernel, as all that follow.
    pub const CREATE: u8 = 10;
    /// Has this SPU forget a cache; of one with dirty chunks only where the first word is 1.
    pub const REMOVE: u8 = 11;
    /// Gives the NV memory of a cache back that all SPUs have forgotten.
    pub const FREE: u8 = 12;
    /// Becomes the cache's manager with this epoch, or stays it.
    pub const CLAIM: u8 = 13;
    /// Is its manager no more.
    pub const RELEASE: u8 = 14;
    /// Puts a chunk into the cache, and permits it to a process: process and rights, then the chunk. Result 1: it was there already.
    pub const INSTALL: u8 = 15;
    /// Permits a cached chunk to a process: process and rights.
    pub const PERMIT: u8 = 16;
    /// A process may use nothing of the cache any more; answered when nothing of it is under way. First word: the process.
    pub const REVOKE: u8 = 17;
    /// The backing file has this version of a chunk, durably. First word: the version.
    pub const CLEAN: u8 = 18;
    /// Has the cache forget a chunk; a dirty one only where the first word is 1.
    pub const DROP: u8 = 19;
    /// Has the cache forget all clean chunks.
    pub const DROP_CLEAN: u8 = 20;
    /// Tells of dirty chunks from a slot (in the chunk's place) on: the reply is [`super::DirtyChunk`]s, the result their number.
    pub const DIRTY: u8 = 21;
    /// Writes bytes of a cached chunk which the backing file has already: as [`WRITE`].
    pub const UPDATE: u8 = 22;
    /// Notes what the backing file is like: a [`super::Descriptor`]'s stamp behind the arguments.
    pub const STAMP: u8 = 23;
    /// Tells of a cache: the reply is a [`super::Descriptor`], then [`super::Counts`].
    pub const DESCRIBE: u8 = 24;
    /// As [`READ`], but no access that counts.
    pub const COPY: u8 = 25;
}

pub use base_io_ranges::wire::{
    STATUS_BUSY, STATUS_FULL, STATUS_MALFORMED, STATUS_MEDIA_ERROR, STATUS_PERMISSION, STATUS_RANGE,
};
/// Status: the chunk is not in the cache.
pub const STATUS_MISS: u32 = 16;
/// Status: the cache has another manager by now, or none.
pub const STATUS_STALE: u32 = 17;
/// Status: there is such a cache.
pub const STATUS_EXISTS: u32 = 18;
/// Status: there is no such cache.
pub const STATUS_ABSENT: u32 = 19;
/// Status: what would have to go is dirty: it is to be written back first.
pub const STATUS_DIRTY: u32 = 20;
/// Status: the chunk was written since.
pub const STATUS_CHANGED: u32 = 21;
/// Status: this cache writes through: the manager writes.
pub const STATUS_THROUGH: u32 = 22;
/// Status: the cache has a manager.
pub const STATUS_CLAIMED: u32 = 23;
/// Status: no room in the list of processes.
pub const STATUS_PROCESSES: u32 = 24;

/// Right to read a chunk.
pub const RIGHT_READ: u32 = 1;
/// Right to write it.
pub const RIGHT_WRITE: u32 = 2;
/// Of [`handler::INSTALL`]: the chunk stays until it was used once, for [`KEPT_NS`] at most, so that who asked for it finds it.
pub const KEEP: u32 = 4;
/// How long a chunk stays that nobody uses and that is to be kept.
pub const KEPT_NS: u64 = 20_000_000;

/// Caches of a device at a time.
pub const CACHES_MAX: usize = 16;
/// Slots for chunks on an SPU, of all caches.
pub const SLOTS_MAX: usize = 8192;
/// Least bytes of a chunk.
pub const CHUNK_BYTES_MIN: u32 = 4096;
/// Most bytes of a chunk.
pub const CHUNK_BYTES_MAX: u32 = 65536;
/// Processes that have permissions on an SPU.
pub const PROCESSES_MAX: usize = 32;
/// A manager that has asked for nothing for so long may be replaced.
pub const CLAIM_NS: u64 = 5_000_000_000;
/// Dirty chunks that are told of at once.
pub const DIRTY_MAX: usize = 32;
/// Bytes of a backing file's path that are kept.
pub const PATH_BYTES_MAX: usize = 384;

fn word(from: &[u8], at: usize) -> u64 {
    from.get(at..).and_then(|from| from.first_chunk()).map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

fn half(from: &[u8], at: usize) -> u32 {
    from.get(at..).and_then(|from| from.first_chunk()).map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

/// Two numbers of 32 bits as one.
fn both(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

/// Words of 64 bits, little-endian.
fn words<const BYTES: usize>(of: &[u64]) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    of.iter().zip(bytes.chunks_exact_mut(8)).for_each(|(word, bytes)| bytes.copy_from_slice(&word.to_le_bytes()));
    bytes
}

/// Arguments of all requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChunkArguments {
    /// The chunk: chunk *c* is bytes from *c* times the chunk's length on, and is kept by the SPU *c* modulo the SPUs.
    pub chunk: u64,
    /// The cache.
    pub cache: u32,
    /// Of the cache's manager.
    pub epoch: u32,
    /// First word: an offset in the chunk, a process or a version.
    pub first: u32,
    /// Second word: bytes or rights.
    pub second: u32,
}

impl ChunkArguments {
    /// Encoded length.
    pub const BYTES: usize = 24;

    /// Little-endian bytes.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        words(&[self.chunk, both(self.cache, self.epoch), both(self.first, self.second)])
    }

    /// From bytes.
    pub fn decode(from: &[u8; Self::BYTES]) -> Self {
        let (cache, epoch) = (half(from, 8), half(from, 12));
        ChunkArguments { chunk: word(from, 0), cache, epoch, first: half(from, 16), second: half(from, 20) }
    }
}

/// Bytes that tell one state of a backing file from another; zeroes: none is known.
pub type Stamp = [u8; 24];

/// A cache.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Descriptor {
    /// Bytes of a chunk: a power of two.
    pub chunk_bytes: u32,
    /// Chunks that each SPU can have of it.
    pub slots: u32,
    /// Writes are acknowledged when the backing file has them, and not before.
    pub writes_through: bool,
    /// Bytes of the backing file.
    pub bytes: u64,
    /// Which file it is, as the manager knows.
    pub identity: [u8; 24],
    /// What the file was like when all clean chunks were the same as it.
    pub stamp: Stamp,
    /// Tells this cache from those before it with its number.
    pub generation: u64,
    /// Its path's length.
    pub path_bytes: u32,
    /// Its path.
    pub path: [u8; PATH_BYTES_MAX],
}

impl core::fmt::Debug for Descriptor {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let (chunk_bytes, slots) = (self.chunk_bytes, self.slots);
        write!(formatter, "{slots} chunks of {chunk_bytes} bytes an SPU, of {} bytes", self.bytes)
    }
}

impl Descriptor {
    /// Encoded length.
    pub const BYTES: usize = 88 + PATH_BYTES_MAX;
    /// Where its stamp lies.
    pub const STAMP: usize = 56;

    /// Little-endian bytes.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let sizes = both(self.chunk_bytes, self.slots);
        let mut bytes: [u8; Self::BYTES] =
            words(&[sizes, both(self.writes_through.into(), self.path_bytes), self.bytes, self.generation]);
        bytes[32..Self::STAMP].copy_from_slice(&self.identity);
        bytes[Self::STAMP..80].copy_from_slice(&self.stamp);
        bytes[88..].copy_from_slice(&self.path);
        bytes
    }

    /// From bytes.
    pub fn decode(from: &[u8; Self::BYTES]) -> Self {
        Descriptor {
            chunk_bytes: half(from, 0),
            slots: half(from, 4),
            writes_through: half(from, 8) != 0,
            path_bytes: half(from, 12),
            bytes: word(from, 16),
            generation: word(from, 24),
            identity: core::array::from_fn(|at| from[32 + at]),
            stamp: core::array::from_fn(|at| from[Self::STAMP + at]),
            path: core::array::from_fn(|at| from[88 + at]),
        }
    }

    /// Whether it makes sense.
    pub fn is_sound(&self) -> bool {
        (CHUNK_BYTES_MIN..=CHUNK_BYTES_MAX).contains(&self.chunk_bytes)
            && self.chunk_bytes.is_power_of_two()
            && (1..=SLOTS_MAX as u32).contains(&self.slots)
            && self.path_bytes as usize <= PATH_BYTES_MAX
            && self.generation != 0
            && self.bytes > 0
            && self.bytes < 1 << 56
    }

    /// Chunks that the file has.
    pub fn chunks(&self) -> u64 {
        self.bytes.div_ceil(u64::from(self.chunk_bytes.max(1)))
    }
}

/// What an SPU has seen of a cache since it started, and has of it now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Its manager's epoch; 0: it has none.
    pub epoch: u64,
    /// Chunks in it.
    pub used: u64,
    /// Those of them that the backing file does not have.
    pub dirty: u64,
    /// Reads and writes of chunks that were there.
    pub hits: u64,
    /// Of those that were not.
    pub misses: u64,
    /// Writes among the hits.
    pub writes: u64,
    /// Chunks that were put in.
    pub installs: u64,
    /// Chunks that made way for others.
    pub evictions: u64,
}

impl Counts {
    /// Encoded length.
    pub const BYTES: usize = 64;

    /// Little-endian bytes.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        words(&[self.epoch, self.used, self.dirty, self.hits, self.misses, self.writes, self.installs, self.evictions])
    }

    /// From bytes.
    pub fn decode(from: &[u8]) -> Self {
        let at = |index: usize| word(from, 8 * index);
        Counts {
            epoch: at(0),
            used: at(1),
            dirty: at(2),
            hits: at(3),
            misses: at(4),
            writes: at(5),
            installs: at(6),
            evictions: at(7),
        }
    }
}

/// A chunk that the backing file does not have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirtyChunk {
    /// The chunk.
    pub chunk: u64,
    /// Its slot.
    pub slot: u32,
    /// Its version now.
    pub version: u32,
}

impl DirtyChunk {
    /// Encoded length.
    pub const BYTES: usize = 16;

    /// Little-endian bytes.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        words(&[self.chunk, both(self.slot, self.version)])
    }

    /// From bytes.
    pub fn decode(from: &[u8]) -> Self {
        DirtyChunk { chunk: word(from, 0), slot: half(from, 8), version: half(from, 12) }
    }
}

/// The SPU that keeps a chunk.
pub fn home(chunk: u64, spus: u16) -> u16 {
    (chunk % u64::from(spus.max(1))) as u16
}
