//! The bytes of a log in NV memory. FORMAT.md has the diagram, and the argument why every interruption leaves it readable.
//!
//! What always holds: a head is 512 bytes at a multiple of 512, so that media write it whole or not at all; what a head says of its
//! entries and of their data is covered by checks, so that one whose data were lost with the power is none.

/// What media write whole or not at all.
pub const UNIT_BYTES: u64 = 512;
/// Number of transactions that have a head on an SPU.
pub const HEADS: usize = 256;
/// Where the heads begin in the region.
pub const HEADS_OFFSET: u64 = 4096;
/// Data of a chunk.
pub const CHUNK_BYTES: u64 = 16384;
/// Most chunks of a log.
pub const CHUNKS_MAX: usize = 1024;
/// Where the chunks' pages of entries begin.
pub const PAGES_OFFSET: u64 = HEADS_OFFSET + HEADS as u64 * UNIT_BYTES;
/// Bytes of the region that is made, in each bank.
pub const LOG_BYTES: u64 = 17 << 20;
/// The smallest that is made where there is no room for more.
pub const LOG_BYTES_MIN: u64 = 1 << 20;
/// Number of the region.
pub const REGION: u32 = 1;

/// Bytes of an entry.
pub const ENTRY_BYTES: usize = 24;
/// Bytes of a head before its entries.
pub const HEADER_BYTES: usize = 64;
/// Entries in a head.
pub const HEAD_ENTRIES: usize = 18;
/// Bytes of a page before its entries.
pub const PAGE_HEADER_BYTES: usize = 16;
/// Entries in a page.
pub const PAGE_ENTRIES: usize = 20;

const _: () = assert!(HEADER_BYTES + HEAD_ENTRIES * ENTRY_BYTES <= UNIT_BYTES as usize);
const _: () = assert!(PAGE_HEADER_BYTES + PAGE_ENTRIES * ENTRY_BYTES <= UNIT_BYTES as usize);

/// A page or chunk that is none.
pub const NONE: u32 = u32::MAX;

const MAGIC: u64 = u64::from_le_bytes(*b"WLWATOMW");
const VERSION: u32 = 1;

/// How many chunks a region of that size has.
pub fn chunks(region_bytes: u64) -> u32 {
    let left = region_bytes.saturating_sub(PAGES_OFFSET);
    (left / (CHUNK_BYTES + UNIT_BYTES)).min(CHUNKS_MAX as u64) as u32
}

/// Where a head lies in the region.
pub fn head_offset(index: usize) -> u64 {
    HEADS_OFFSET + index as u64 * UNIT_BYTES
}

/// Where a chunk's page of entries lies in the region.
pub fn page_offset(chunk: u32) -> u64 {
    PAGES_OFFSET + u64::from(chunk) * UNIT_BYTES
}

/// Where a chunk's data lie in a region of so many chunks.
pub fn data_offset(chunk: u32, chunks: u32) -> u64 {
    PAGES_OFFSET + u64::from(chunks) * UNIT_BYTES + u64::from(chunk) * CHUNK_BYTES
}

/// A 64-bit sum of words; each word and its place count.
#[inline]
pub fn mix(sum: u64, word: u64) -> u64 {
    let mixed = (sum ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ mixed >> 29
}

fn put(out: &mut [u8], at: usize, word: u64) {
    out[at..at + 8].copy_from_slice(&word.to_le_bytes());
}

fn take(from: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&from[at..at + 8]);
    u64::from_le_bytes(word)
}

/// One write in the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// Where it goes: a byte of the bank.
    pub address: u64,
    /// Its length.
    pub bytes: u32,
    /// CRC-32C of its data.
    pub sum: u32,
    /// Where its data lie in the region.
    pub data: u64,
}

impl Entry {
    /// Not a write.
    pub const EMPTY: Entry = Entry { address: 0, bytes: 0, sum: 0, data: 0 };

    /// Writes it to the first [`ENTRY_BYTES`] bytes.
    pub fn encode(&self, out: &mut [u8]) {
        put(out, 0, self.address);
        put(out, 8, u64::from(self.bytes) | u64::from(self.sum) << 32);
        put(out, 16, self.data);
    }

    /// From the first [`ENTRY_BYTES`] bytes.
    pub fn decode(from: &[u8]) -> Entry {
        let lengths = take(from, 8);
        Entry { address: take(from, 0), bytes: lengths as u32, sum: (lengths >> 32) as u32, data: take(from, 16) }
    }

    /// Its part of the sum over a transaction's entries.
    #[inline]
    pub fn check(&self, number: u32) -> u64 {
        let sum = mix(u64::from(number), self.address);
        mix(mix(sum, u64::from(self.bytes) | u64::from(self.sum) << 32), self.data)
    }

    /// Whether two writes touch a byte both.
    #[inline]
    pub fn overlaps(&self, other: &Entry) -> bool {
        self.address < other.address + u64::from(other.bytes) && other.address < self.address + u64::from(self.bytes)
    }
}

/// How far a transaction is on this SPU, as the media have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// Its entries and data are durable.
    Prepared = 1,
    /// It is applied, durably.
    Applied = 2,
}

/// What a head says but for its entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// How far it is.
    pub mark: Mark,
    /// The SPU that coordinates its commit.
    pub coordinator: u16,
    /// The coordinator's number of the commit.
    pub number: u64,
    /// The SPUs that have a part of it.
    pub participants: u64,
    /// How many writes it has here.
    pub entries: u32,
    /// The first page of entries beyond the head, or [`NONE`].
    pub first_page: u32,
    /// Sum over all entries.
    pub sum: u64,
    /// The host's number of the transaction.
    pub transaction: u64,
}

impl Header {
    /// As bytes, of head `index` on SPU `spu`.
    pub fn encode(&self, spu: u32, index: usize) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        put(&mut out, 0, self.mark as u64 | u64::from(self.coordinator) << 32 | (index as u64) << 48);
        put(&mut out, 8, self.number);
        put(&mut out, 16, self.participants);
        put(&mut out, 24, u64::from(self.entries) | u64::from(self.first_page) << 32);
        put(&mut out, 32, self.sum);
        put(&mut out, 40, self.transaction);
        let check = Self::check(&out, spu);
        put(&mut out, 56, check);
        out
    }

    /// From bytes; `None` where they are no header of that head.
    pub fn decode(from: &[u8], spu: u32, index: usize) -> Option<Header> {
        let first = take(from, 0);
        let mark = match first as u32 {
            1 => Mark::Prepared,
            2 => Mark::Applied,
            _ => return None,
        };
        if (first >> 48) as usize != index || take(from, 56) != Self::check(from, spu) {
            return None;
        }
        let counts = take(from, 24);
        Some(Header {
            mark,
            coordinator: (first >> 32) as u16,
            number: take(from, 8),
            participants: take(from, 16),
            entries: counts as u32,
            first_page: (counts >> 32) as u32,
            sum: take(from, 32),
            transaction: take(from, 40),
        })
    }

    fn check(bytes: &[u8], spu: u32) -> u64 {
        (0..7).fold(mix(MAGIC, u64::from(spu)), |sum, word| mix(sum, take(bytes, word * 8)))
    }
}

/// The region's first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Starts of the app that have used the log.
    pub epoch: u32,
    /// The SPU, and how many there are.
    pub spu: u16,
    /// See above.
    pub spus: u16,
}

/// What a region's first bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// All zeroes: a log that was never used.
    Fresh,
    /// A log.
    Log(Superblock),
    /// Something else, or a log of another version.
    Foreign,
}

impl Superblock {
    /// Encoded length.
    pub const BYTES: usize = 64;

    /// As bytes.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        put(&mut out, 0, MAGIC);
        put(&mut out, 8, u64::from(VERSION) | u64::from(self.epoch) << 32);
        put(&mut out, 16, u64::from(self.spu) | u64::from(self.spus) << 16);
        let check = Self::check(&out);
        put(&mut out, 56, check);
        out
    }

    /// From bytes.
    pub fn decode(from: &[u8; Self::BYTES]) -> Found {
        if from.iter().all(|byte| *byte == 0) {
            return Found::Fresh;
        }
        let version = take(from, 8);
        if take(from, 0) != MAGIC || version as u32 != VERSION || take(from, 56) != Self::check(from) {
            return Found::Foreign;
        }
        let place = take(from, 16);
        Found::Log(Superblock { epoch: (version >> 32) as u32, spu: place as u16, spus: (place >> 16) as u16 })
    }

    fn check(bytes: &[u8]) -> u64 {
        (0..7).fold(!MAGIC, |sum, word| mix(sum, take(bytes, word * 8)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: Header = Header {
        mark: Mark::Prepared,
        coordinator: 5,
        number: 7 << 32 | 3,
        participants: 1 << 63 | 2,
        entries: 20,
        first_page: 9,
        sum: 0x1234_5678_9abc_def0,
        transaction: u64::MAX,
    };

    #[test]
    fn headers_are_read_where_they_were_written_and_nowhere_else() {
        let bytes = HEADER.encode(3, 200);
        assert_eq!(Header::decode(&bytes, 3, 200), Some(HEADER));
        assert_eq!(Header::decode(&bytes, 3, 201), None);
        assert_eq!(Header::decode(&bytes, 2, 200), None);
        assert_eq!(Header::decode(&[0; HEADER_BYTES], 3, 200), None);
        for bit in 0..HEADER_BYTES * 8 {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            // Bytes 48 to 56 are spare, and checked as well.
            assert_eq!(Header::decode(&damaged, 3, 200), None, "bit {bit}");
        }
    }

    #[test]
    fn superblocks_are_fresh_good_or_foreign() {
        let block = Superblock { epoch: 9, spu: 3, spus: 8 };
        assert_eq!(Superblock::decode(&block.encode()), Found::Log(block));
        assert_eq!(Superblock::decode(&[0; Superblock::BYTES]), Found::Fresh);
        let mut damaged = block.encode();
        damaged[12] ^= 1;
        assert_eq!(Superblock::decode(&damaged), Found::Foreign);
    }

    #[test]
    fn entries_keep_their_order_in_the_sum() {
        let one = Entry { address: 4096, bytes: 512, sum: 1, data: 0 };
        let two = Entry { address: 8192, bytes: 512, sum: 2, data: 512 };
        assert_ne!(one.check(0).wrapping_add(two.check(1)), two.check(0).wrapping_add(one.check(1)));
        let mut bytes = [0; ENTRY_BYTES];
        two.encode(&mut bytes);
        assert_eq!(Entry::decode(&bytes), two);
        assert!(one.overlaps(&Entry { address: 4607, ..one }) && !one.overlaps(&Entry { address: 4608, ..one }));
    }

    #[test]
    fn the_parts_of_a_region_do_not_overlap() {
        for bytes in [LOG_BYTES_MIN, LOG_BYTES / 4, LOG_BYTES] {
            let count = chunks(bytes);
            assert!(count > 8 && head_offset(HEADS) == PAGES_OFFSET);
            assert_eq!(page_offset(count), data_offset(0, count));
            assert!(data_offset(count, count) <= bytes);
        }
        assert_eq!((chunks(LOG_BYTES), chunks(0)), (CHUNKS_MAX as u32, 0));
    }
}
