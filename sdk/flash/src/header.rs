//! The header of a page of data: what recovery and collection know a page by. It lies in the spare area of each part of a virtual
//! page, or, where firmware does not reach that, in the summary that the last page of each erase block holds.
//!
//! 44 bytes, little-endian:
//! ```text
//! 0 u8 format = 1   1 u8 kind   2 u16 part   4 u32 logical page   8 u64 sequence   16 u32 block sequence
//! 20 u32 previous logical page   24 u64 previous sequence   32 u32 previous address   36 u32 its block's sequence
//! 40 u32 CRC-32 of bytes 0..40
//! ```
//! - The logical page is the lane's own number of it.
//! - The sequence numbers the lane's host writes; a page that was moved keeps the one that it was written with,
//!   with its highest bit set. Of two headers of one
//!   logical page that with the higher sequence counts.
//! - The block sequence is that of the erase block's life: what is left of an earlier life, after an erase that was cut, differs.
//! - Previous is what the stream wrote before: where that page cannot be read any more, its logical page is still known, and an older version of it
//!   does not come back.
//! - The checksum covers the header; the payload is the ECC's.

/// Bytes of a header.
pub const HEADER_BYTES: usize = 44;
/// The format's version.
pub const FORMAT: u8 = 1;
/// No page.
pub const NONE: u32 = u32::MAX;

/// In a sequence: the page was moved here by collection.
pub const COPIED: u64 = 1 << 63;

/// What a page holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A logical page.
    Data = 1,
    /// Nothing: programmed to settle others, or to keep the order.
    Filler = 2,
    /// Records, part of a checkpoint, its root or a summary: the page says so itself.
    Metadata = 3,
}

/// The header of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What the page holds.
    pub kind: Kind,
    /// Which logical page.
    pub logical: u32,
    /// Which version of it.
    pub sequence: u64,
    /// The life of the erase block.
    pub block_sequence: u32,
    /// Which part of the virtual page.
    pub part: u32,
    /// What the stream wrote before.
    pub previous: Previous,
}

/// A page that a stream wrote: its logical page ([`NONE`]: none was written before), sequence and address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Previous {
    /// Which logical page.
    pub logical: u32,
    /// Which version of it.
    pub sequence: u64,
    /// Where it is.
    pub address: u32,
    /// In which life of its block.
    pub block_sequence: u32,
}

impl Previous {
    /// Nothing was written before.
    pub const NOTHING: Previous = Previous { logical: NONE, sequence: 0, address: NONE, block_sequence: 0 };
}

impl Header {
    /// As bytes.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0] = FORMAT;
        bytes[1] = self.kind as u8;
        bytes[4..8].copy_from_slice(&self.logical.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.block_sequence.to_le_bytes());
        bytes[2..4].copy_from_slice(&(self.part as u16).to_le_bytes());
        bytes[20..24].copy_from_slice(&self.previous.logical.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.previous.sequence.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.previous.address.to_le_bytes());
        bytes[36..40].copy_from_slice(&self.previous.block_sequence.to_le_bytes());
        let checksum = crc32fast::hash(&bytes[..40]);
        bytes[40..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// `None` where the bytes are no header.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Option<Header> {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        if bytes[0] != FORMAT || word(40) != crc32fast::hash(&bytes[..40]) {
            return None;
        }
        let kind = match bytes[1] {
            1 => Kind::Data,
            2 => Kind::Filler,
            3 => Kind::Metadata,
            _ => return None,
        };
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        let part = u32::from(u16::from_le_bytes([bytes[2], bytes[3]]));
        let previous = Previous { logical: word(20), sequence: long(24), address: word(32), block_sequence: word(36) };
        Some(Header { kind, logical: word(4), sequence: long(8), block_sequence: word(16), part, previous })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_bit_is_refused() {
        let previous = Previous { logical: 76, sequence: COPIED | 4, address: 12, block_sequence: 7 };
        let header =
            Header { kind: Kind::Data, logical: 77, sequence: 1 << 40 | 5, block_sequence: 9, part: 3, previous };
        let bytes = header.encode();
        assert_eq!(Header::decode(&bytes), Some(header));
        for bit in 0..HEADER_BYTES * 8 {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Header::decode(&damaged), None, "bit {bit}");
        }
        assert_eq!(Header::decode(&[0; HEADER_BYTES]), None);
        assert_eq!(Header::decode(&[0xff; HEADER_BYTES]), None);
    }
}
