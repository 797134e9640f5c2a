//! Caching's library for hosts: requests as the app reads them, refusals as sentences, and how a cache is shaped.
//!
//! What always holds: no input or output, no knowledge of a transport.
//!
//! Who may call it: the host library's client, its cache manager, and agents.

pub use caching_spu::wire;
use wire::{CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, SLOTS_MAX};

/// Name that Caching is installed under.
pub const APP_NAME: &str = "caching";

/// How a cache is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Bytes of a chunk.
    pub chunk_bytes: u32,
    /// Chunks an SPU.
    pub slots: u32,
}

impl Shape {
    /// The shape of a cache of so many bytes for a file of so many, on a device with so many SPUs: the chunks that were asked for, or the smallest
    /// that there are slots enough for, from 4 KiB on. The error is a sentence.
    pub fn of(bytes: u64, file_bytes: u64, spus: u16, chunk_bytes: Option<u32>) -> Result<Shape, String> {
        let spus = u64::from(spus.max(1));
        // More than the file is of no use; a chunk may be cut by its end.
        let wanted = bytes.min(file_bytes.next_multiple_of(u64::from(CHUNK_BYTES_MIN)));
        let slots = |chunk: u32| wanted.div_ceil(u64::from(chunk)).div_ceil(spus).max(1);
        if let Some(chunk) = chunk_bytes {
            if !chunk.is_power_of_two() || !(CHUNK_BYTES_MIN..=CHUNK_BYTES_MAX).contains(&chunk) {
                return Err(format!(
                    "a chunk has {CHUNK_BYTES_MIN} to {CHUNK_BYTES_MAX} bytes, a power of two, and not {chunk}"
                ));
            }
        }
        let mut chunk = chunk_bytes.unwrap_or(CHUNK_BYTES_MIN);
        while chunk_bytes.is_none() && chunk < CHUNK_BYTES_MAX && slots(chunk) > SLOTS_MAX as u64 {
            chunk *= 2;
        }
        match slots(chunk) {
            0..=8192 => Ok(Shape { chunk_bytes: chunk, slots: slots(chunk) as u32 }),
            _ => Err(format!(
                "the device keeps at most {} bytes in chunks of {chunk}: ask for less, or for larger chunks",
                SLOTS_MAX as u64 * spus * u64::from(chunk)
            )),
        }
    }
}

const _: () = assert!(SLOTS_MAX == 8192);

/// Why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The chunk is not in the cache.
    Miss,
    /// The process may not use the chunk: it asks the manager.
    Permission,
    /// The cache has another manager by now, or none.
    Stale,
    /// There is such a cache, or what is left of one.
    Exists,
    /// There is no such cache.
    Absent,
    /// What would have to go is dirty.
    Dirty,
    /// The chunk was written since.
    Changed,
    /// The cache writes through.
    Through,
    /// The cache has a manager.
    Claimed,
    /// As many processes as an SPU knows have permissions.
    Processes,
    /// No room for the cache.
    Full,
    /// Too much is under way, and nothing was done.
    Busy,
    /// Arguments that make no sense.
    Malformed,
    /// The media failed.
    Media,
    /// A status that this version does not know.
    Unknown(u32),
}

impl Refusal {
    /// What a status says.
    pub fn from_status(status: u32) -> Result<(), Refusal> {
        Err(match status {
            0 => return Ok(()),
            wire::STATUS_MISS => Refusal::Miss,
            wire::STATUS_PERMISSION => Refusal::Permission,
            wire::STATUS_STALE => Refusal::Stale,
            wire::STATUS_EXISTS => Refusal::Exists,
            wire::STATUS_ABSENT => Refusal::Absent,
            wire::STATUS_DIRTY => Refusal::Dirty,
            wire::STATUS_CHANGED => Refusal::Changed,
            wire::STATUS_THROUGH => Refusal::Through,
            wire::STATUS_CLAIMED => Refusal::Claimed,
            wire::STATUS_PROCESSES => Refusal::Processes,
            wire::STATUS_FULL => Refusal::Full,
            wire::STATUS_BUSY => Refusal::Busy,
            wire::STATUS_MALFORMED | wire::STATUS_RANGE => Refusal::Malformed,
            wire::STATUS_MEDIA_ERROR => Refusal::Media,
            other => Refusal::Unknown(other),
        })
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Refusal::Miss => "the chunk is not in the cache",
            Refusal::Permission => "the process may not use this chunk of the cache",
            Refusal::Stale => "the cache has another manager by now, or none",
            Refusal::Exists => "there is such a cache, or what is left of one",
            Refusal::Absent => "there is no such cache",
            Refusal::Dirty => "the backing file does not have all of it yet",
            Refusal::Changed => "the chunk was written since",
            Refusal::Through => "the cache writes through: its manager writes",
            Refusal::Claimed => "another program manages the cache",
            Refusal::Processes => "as many processes use caches as the drive keeps permissions of",
            Refusal::Full => "the drive has no room for the cache",
            Refusal::Busy => "too much is under way: try again",
            Refusal::Malformed => "the request makes no sense",
            Refusal::Media => "the media failed",
            Refusal::Unknown(status) => return write!(formatter, "status {status}"),
        })
    }
}

impl std::error::Error for Refusal {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caches_are_cut_into_the_smallest_chunks_that_there_are_slots_for() {
        let of = |bytes, file| Shape::of(bytes, file, 8, None);
        assert_eq!(of(1 << 20, 1 << 30), Ok(Shape { chunk_bytes: 4096, slots: 32 }));
        assert_eq!(of(1 << 30, 1 << 20), Ok(Shape { chunk_bytes: 4096, slots: 32 }), "no larger than the file");
        assert_eq!(of(1 << 30, 1 << 40), Ok(Shape { chunk_bytes: 16384, slots: 8192 }));
        assert_eq!(of(1, 1), Ok(Shape { chunk_bytes: 4096, slots: 1 }));
        assert!(of(8 << 30, 1 << 40).is_err());
        assert!(Shape::of(1 << 20, 1 << 30, 8, Some(5000)).is_err());
        assert_eq!(Shape::of(1 << 20, 1 << 30, 8, Some(65536)), Ok(Shape { chunk_bytes: 65536, slots: 2 }));
    }
}
