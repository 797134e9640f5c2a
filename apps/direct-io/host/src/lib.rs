//! Direct-IO's library for hosts: which RPC goes to which SPU so that a range of a file is read or written, given where the file's
//! bytes lie in the block namespace.
//!
//! What always holds:
//! - each RPC covers one contiguous range of one SPU's bank, within one stripe, and one contiguous range of the caller's buffer;
//! - bytes that no extent covers (holes, what lies past the end) are never asked of the device: the caller is told of them;
//! - no allocation, no input or output, no knowledge of a transport.
//!
//! Who may call it: host programs; Direct-IO files of `willow-host` are written over it.

use base_io_host::Geometry;
use direct_io_spu::wire::Arguments;

pub use direct_io_spu::wire;

/// Name that Direct-IO is installed under.
pub const APP_NAME: &str = "direct-io";

/// Where some bytes of a file lie in the namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileExtent {
    /// First byte in the file.
    pub file_offset: u64,
    /// First byte in the namespace.
    pub namespace_offset: u64,
    /// Bytes.
    pub bytes: u64,
}

impl FileExtent {
    /// One past its last byte in the file.
    pub fn file_end(&self) -> u64 {
        self.file_offset + self.bytes
    }
}

/// A part of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// One RPC.
    Rpc {
        /// Receiver.
        spu: u16,
        /// What to move.
        arguments: Arguments,
        /// Where its bytes lie in the caller's buffer.
        buffer_offset: usize,
    },
    /// Bytes that no extent covers.
    Hole {
        /// Where they lie in the caller's buffer.
        buffer_offset: usize,
        /// How many.
        bytes: usize,
    },
}

/// The pieces of a range of a file, in order; between two of them it can be put away, as what is left.
#[derive(Clone, Debug)]
pub struct Pieces {
    start: u64,
    at: u64,
    end: u64,
    index: usize,
    flags: u32,
    piece_bytes_max: u64,
}

impl Pieces {
    /// Of `bytes` bytes of a file from `offset` on, none longer than `piece_bytes_max`; `extents` are sorted and disjoint.
    pub fn new(extents: &[FileExtent], (offset, bytes): (u64, usize), flags: u32, piece_bytes_max: u32) -> Self {
        let index = extents.partition_point(|extent| extent.file_end() <= offset);
        let end = offset.saturating_add(bytes as u64);
        Pieces { start: offset, at: offset, end, index, flags, piece_bytes_max: u64::from(piece_bytes_max.max(1)) }
    }

    /// The next one; `extents` are the same each time.
    #[inline]
    pub fn next(&mut self, geometry: &Geometry, extents: &[FileExtent]) -> Option<Piece> {
        if self.at >= self.end {
            return None;
        }
        let buffer_offset = (self.at - self.start) as usize;
        let extent = extents.get(self.index).filter(|extent| extent.file_offset < self.end);
        let Some(extent) = extent.filter(|extent| extent.file_offset <= self.at) else {
            let until = extent.map_or(self.end, |extent| extent.file_offset);
            let bytes = (until - self.at) as usize;
            self.at = until;
            return Some(Piece::Hole { buffer_offset, bytes });
        };
        let stripe = u64::from(geometry.stripe_bytes);
        let spus = u64::from(geometry.spus);
        let namespace = extent.namespace_offset + (self.at - extent.file_offset);
        let (number, within) = (namespace / stripe, namespace % stripe);
        let count = (stripe - within).min(extent.file_end() - self.at).min(self.end - self.at);
        let count = count.min(self.piece_bytes_max);
        let nv_address = geometry.base + number / spus * stripe + within;
        let arguments = Arguments { nv_address, bytes: count as u32, flags: self.flags };
        self.at += count;
        if self.at == extent.file_end() {
            self.index += 1;
        }
        Some(Piece::Rpc { spu: (number % spus) as u16, arguments, buffer_offset })
    }
}

/// True where every byte of the range is in an extent.
pub fn covers(extents: &[FileExtent], offset: u64, bytes: usize) -> bool {
    let end = offset.saturating_add(bytes as u64);
    let mut at = offset;
    let first = extents.partition_point(|extent| extent.file_end() <= offset);
    for extent in &extents[first..] {
        if at >= end || extent.file_offset > at {
            break;
        }
        at = extent.file_end();
    }
    at >= end
}

/// Calls `each` with the pieces of `bytes` bytes of a file from `offset` on, in order. `extents` are sorted and disjoint.
pub fn pieces(
    geometry: &Geometry,
    extents: &[FileExtent],
    range: (u64, usize),
    flags: u32,
    mut each: impl FnMut(Piece),
) {
    let mut pieces = Pieces::new(extents, range, flags, u32::MAX);
    while let Some(piece) = pieces.next(geometry, extents) {
        each(piece);
    }
}

/// Calls `each` with (SPU, first byte in its bank, bytes) for what a range of the namespace takes of the banks: what a permission
/// is made of. At most one range an SPU.
pub fn bank_ranges(geometry: &Geometry, start: u64, bytes: u64, mut each: impl FnMut(u16, u64, u64)) {
    if bytes == 0 {
        return;
    }
    let stripe = u64::from(geometry.stripe_bytes);
    let spus = u64::from(geometry.spus);
    let (first, last) = (start / stripe, (start + bytes - 1) / stripe);
    for number in first..=last.min(first + spus - 1) {
        let final_stripe = number + (last - number) / spus * spus;
        let skipped = if number == first { start % stripe } else { 0 };
        let missing = if final_stripe == last { (last + 1) * stripe - (start + bytes) } else { 0 };
        let from = geometry.base + number / spus * stripe + skipped;
        let until = geometry.base + (final_stripe / spus + 1) * stripe - missing;
        each((number % spus) as u16, from, until - from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    struct Random(u64);
    impl Random {
        fn below(&mut self, bound: u64) -> u64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) % bound
        }
    }

    /// Where a byte of the namespace lies.
    fn place(geometry: &Geometry, byte: u64) -> (u16, u64) {
        let (stripe, spus) = (u64::from(geometry.stripe_bytes), u64::from(geometry.spus));
        ((byte / stripe % spus) as u16, geometry.base + byte / stripe / spus * stripe + byte % stripe)
    }

    #[test]
    fn every_byte_goes_where_its_extent_says() {
        let mut random = Random(5);
        for _ in 0..3000 {
            let geometry = Geometry { spus: 1 + random.below(6) as u16, stripe_bytes: 16, base: 4096 };
            let mut extents = Vec::new();
            let mut at = 0;
            while at < 300 {
                at += random.below(2) * random.below(30);
                let bytes = 1 + random.below(70);
                extents.push(FileExtent { file_offset: at, namespace_offset: random.below(1000), bytes });
                at += bytes;
            }
            let (offset, bytes) = (random.below(350), random.below(200));
            let mut next = 0;
            let most = 1 + random.below(20) as u32;
            let mut short = Pieces::new(&extents, (offset, bytes as usize), 0, most);
            let mut check = |piece| match piece {
                Piece::Hole { buffer_offset, bytes } => {
                    assert_eq!(buffer_offset, next);
                    for byte in offset + next as u64..offset + (next + bytes) as u64 {
                        assert!(!extents.iter().any(|it| it.file_offset <= byte && byte < it.file_end()));
                    }
                    next += bytes;
                }
                Piece::Rpc { spu, arguments, buffer_offset } => {
                    assert_eq!(buffer_offset, next);
                    assert!(arguments.bytes <= most);
                    for index in 0..u64::from(arguments.bytes) {
                        let byte = offset + next as u64 + index;
                        let extent = extents.iter().find(|it| it.file_offset <= byte && byte < it.file_end()).unwrap();
                        let namespace = extent.namespace_offset + byte - extent.file_offset;
                        assert_eq!((spu, arguments.nv_address + index), place(&geometry, namespace));
                    }
                    next += arguments.bytes as usize;
                }
            };
            while let Some(piece) = short.next(&geometry, &extents) {
                check(piece);
            }
            assert_eq!(next as u64, bytes);
            let is_in_one = |byte: u64| extents.iter().any(|it| it.file_offset <= byte && byte < it.file_end());
            assert_eq!(covers(&extents, offset, bytes as usize), (offset..offset + bytes).all(is_in_one));
        }
    }

    #[test]
    fn bank_ranges_are_the_range_and_no_more() {
        let mut random = Random(6);
        for _ in 0..3000 {
            let geometry = Geometry { spus: 1 + random.below(6) as u16, stripe_bytes: 16, base: 4096 };
            let (start, bytes) = (random.below(500), random.below(300));
            let wanted: BTreeSet<(u16, u64)> = (start..start + bytes).map(|byte| place(&geometry, byte)).collect();
            let mut got = BTreeSet::new();
            bank_ranges(&geometry, start, bytes, |spu, from, count| {
                assert!(count > 0);
                for address in from..from + count {
                    assert!(got.insert((spu, address)), "a byte twice");
                }
            });
            assert_eq!(got, wanted);
        }
    }
}
