//! The bytes of the log in NV memory. FORMAT.md has the diagram, and the argument why every interruption leaves a write whole.
//!
//! What always holds: superblock and headers are less than 512 bytes at a multiple of 512, so that media write each whole or not at all; a header
//! counts only with a checksum over itself, and only while its data have the checksum that it names.

/// What media write whole or not at all.
pub const UNIT_BYTES: u64 = 512;
/// Most bytes of a write that is whole.
pub const DATA_BYTES: u32 = 65536;
/// Most writes that are in the log at a time.
pub const SLOTS_MAX: usize = 32;
/// Fewest, where the media have room for no more.
pub const SLOTS_MIN: usize = 4;
/// Number of the region; namespaces are regions of the app by their numbers, which are less.
pub const REGION: u32 = 1 << 31;
/// Where the headers begin in the region.
const HEADERS_OFFSET: u64 = 4096;
/// Where the data begin in the region.
const DATA_OFFSET: u64 = 65536;

const _: () = assert!(HEADERS_OFFSET + SLOTS_MAX as u64 * UNIT_BYTES <= DATA_OFFSET);

const MAGIC: u64 = u64::from_le_bytes(*b"WLWATIO1");

/// Bytes of a region with so many slots.
pub const fn region_bytes(slots: usize) -> u64 {
    DATA_OFFSET + slots as u64 * DATA_BYTES as u64
}

/// How many slots a region of that size has.
pub fn slots(region_bytes: u64) -> usize {
    (region_bytes.saturating_sub(DATA_OFFSET) / u64::from(DATA_BYTES)).min(SLOTS_MAX as u64) as usize
}

/// Where the header of a slot lies in the region.
pub fn header_offset(slot: usize) -> u64 {
    HEADERS_OFFSET + slot as u64 * UNIT_BYTES
}

/// Where the data of a slot lie in the region.
pub fn data_offset(slot: usize) -> u64 {
    DATA_OFFSET + slot as u64 * u64::from(DATA_BYTES)
}

/// Whether media write that range whole or not at all by themselves.
pub fn is_of_one_unit(address: u64, bytes: u32) -> bool {
    address % UNIT_BYTES + u64::from(bytes) <= UNIT_BYTES
}

/// Words of 64 bits, little-endian, of which the last is kept for a checksum of the others.
pub type Words = [u8; WORDS_BYTES];
/// Their length.
pub const WORDS_BYTES: usize = 48;
/// What the checksum is over.
pub const CHECKED_BYTES: usize = 40;

fn words(of: [u64; 5]) -> Words {
    let mut bytes = [0; WORDS_BYTES];
    of.iter().zip(bytes.chunks_exact_mut(8)).for_each(|(word, bytes)| bytes.copy_from_slice(&word.to_le_bytes()));
    bytes
}

fn word(bytes: &Words, number: usize) -> u64 {
    bytes[8 * number..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// Puts the checksum in its place.
pub fn seal(bytes: &mut Words, sum: u32) {
    bytes[CHECKED_BYTES..CHECKED_BYTES + 4].copy_from_slice(&sum.to_le_bytes());
}

/// Whether that is their checksum.
pub fn is_sealed(bytes: &Words, sum: u32) -> bool {
    word(bytes, 5) == u64::from(sum)
}

/// One write in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Its number: of two writes to the same bytes the later one has the higher.
    pub sequence: u64,
    /// Where it goes: a byte of the bank.
    pub address: u64,
    /// Its length.
    pub bytes: u32,
    /// CRC-32C of its data.
    pub sum: u32,
}

impl Header {
    /// As bytes, of slot `slot` on SPU `spu`; without their checksum.
    pub fn encode(&self, spu: u32, slot: usize) -> Words {
        let place = u64::from(spu) << 32 | slot as u64;
        words([MAGIC, place, self.sequence, self.address, u64::from(self.bytes) | u64::from(self.sum) << 32])
    }

    /// From bytes whose checksum is right; `None` where they are no header of that slot.
    pub fn decode(bytes: &Words, spu: u32, slot: usize) -> Option<Header> {
        let lengths = word(bytes, 4);
        let header = Header {
            sequence: word(bytes, 2),
            address: word(bytes, 3),
            bytes: lengths as u32,
            sum: (lengths >> 32) as u32,
        };
        let is_here = word(bytes, 0) == MAGIC && word(bytes, 1) == (u64::from(spu) << 32 | slot as u64);
        (is_here && (1..=DATA_BYTES).contains(&header.bytes)).then_some(header)
    }
}

/// The region's first bytes: writes of lower numbers are durable in their places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// The lowest number that counts.
    pub low: u64,
}

impl Superblock {
    /// As bytes, on SPU `spu` of `spus`; without their checksum.
    pub fn encode(&self, spu: u32, spus: u32) -> Words {
        words([!MAGIC, u64::from(spu) | u64::from(spus) << 32, self.low, 0, 0])
    }

    /// From bytes whose checksum is right; `None` where they are none of this SPU.
    pub fn decode(bytes: &Words, spu: u32, spus: u32) -> Option<Superblock> {
        let is_here = word(bytes, 0) == !MAGIC && word(bytes, 1) == (u64::from(spu) | u64::from(spus) << 32);
        is_here.then(|| Superblock { low: word(bytes, 2) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read_where_they_were_written_and_nowhere_else() {
        let header = Header { sequence: 7 << 40, address: 1 << 33 | 512, bytes: 65536, sum: 0xdead_beef };
        let bytes = header.encode(3, 31);
        assert_eq!(Header::decode(&bytes, 3, 31), Some(header));
        assert_eq!((Header::decode(&bytes, 3, 30), Header::decode(&bytes, 2, 31)), (None, None));
        assert_eq!(Header::decode(&[0; WORDS_BYTES], 0, 0), None);
        assert_eq!(Header::decode(&Header { bytes: 65537, ..header }.encode(3, 31), 3, 31), None);
        let superblock = Superblock { low: 9 };
        assert_eq!(Superblock::decode(&superblock.encode(1, 8), 1, 8), Some(superblock));
        assert_eq!(Superblock::decode(&superblock.encode(1, 8), 1, 7), None);
        assert_eq!(Superblock::decode(&bytes, 3, 31), None);
        let mut sealed = bytes;
        seal(&mut sealed, 5);
        assert!(is_sealed(&sealed, 5) && !is_sealed(&sealed, 6));
    }

    #[test]
    fn the_parts_of_a_region_do_not_overlap() {
        for count in SLOTS_MIN..=SLOTS_MAX {
            assert_eq!(slots(region_bytes(count)), count);
            assert!(header_offset(count) <= DATA_OFFSET && data_offset(count) == region_bytes(count));
        }
        assert_eq!((slots(0), slots(1 << 40)), (0, SLOTS_MAX));
    }

    #[test]
    fn units_are_those_of_the_media() {
        assert!(is_of_one_unit(1024, 512) && is_of_one_unit(1100, 8) && !is_of_one_unit(1100, 512));
        assert!(!is_of_one_unit(0, 4096));
    }
}
