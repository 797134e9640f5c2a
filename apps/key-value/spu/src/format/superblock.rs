//! The superblock: what a store is, and what it keeps of itself when it is closed in order (FORMAT.md).
//!
//! What always holds: it lies within one sector, and a torn, foreign or newer one is told from a good one.

use super::{CLASSES, Nonce, SECTOR_BYTES, long, word};

/// Length of a superblock: one sector.
pub const SUPERBLOCK_BYTES: usize = SECTOR_BYTES as usize;
const MAGIC: u64 = u64::from_le_bytes(*b"WLWKEYVL");
/// Version of this format. Version 1 had neither expiry nor horizon; what is written to a region of it makes it one of this version.
pub const FORMAT_VERSION: u32 = 2;
/// Oldest version that is understood.
pub const FORMAT_VERSION_MIN: u32 = 1;

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
    /// Pairs of this sequence number or a lower one do not exist: the namespace was cleared then.
    pub horizon: u64,
    /// Slabs from here on were never used, also where the region was not closed in order; 0: nobody has said so.
    pub ceiling: u32,
}

const HORIZON_OFFSET: usize = 208;
const CEILING_OFFSET: usize = 216;
const _: () = assert!(96 + 4 * CLASSES <= HORIZON_OFFSET && CEILING_OFFSET + 4 <= SUPERBLOCK_BYTES - 8);

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
        put(HORIZON_OFFSET, &self.horizon.to_le_bytes());
        put(CEILING_OFFSET, &self.ceiling.to_le_bytes());
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
            && (FORMAT_VERSION_MIN..=FORMAT_VERSION).contains(&word(from, 8))
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
            // Version 1 had zeroes there.
            horizon: long(from, HORIZON_OFFSET),
            // So had version 2 before it had ceilings.
            ceiling: word(from, CEILING_OFFSET),
        })
    }
}
