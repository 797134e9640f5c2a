//! The bytes of metadata: pages of the log, of checkpoints, roots and summaries. FORMAT.md has the diagrams.
//!
//! What always holds: what was encoded decodes to the same; bytes that are no metadata, or of another lane, are refused by the checksum.

use crate::geometry::Layout;
use crate::replacements::Replacement;
use alloc::vec::Vec;

/// Bytes before the payload of a metadata page.
pub(crate) const PAGE_HEADER_BYTES: usize = 52;
const MAGIC: u32 = u32::from_le_bytes(*b"WFTL");
const FORMAT: u8 = 1;
pub(crate) const NONE: u32 = u32::MAX;

/// What a metadata page holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum PageKind {
    Log = 1,
    Map = 2,
    Wear = 3,
    Root = 4,
    Summary = 5,
    Filler = 6,
}

/// The header of a metadata page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageHeader {
    pub kind: PageKind,
    pub lane: u16,
    /// Of the log: number of the page; of roots: of the checkpoint; of summaries: 0.
    pub serial: u64,
    pub block_sequence: u32,
    /// Where the log goes on after this block: the first of these that holds a page.
    pub next: Successors,
}

/// Blocks, and the sequences with which they will be used; [`NONE`]: no more.
pub(crate) type Successors = [(u32, u32); SUCCESSORS];
/// So many blocks in a row may fail at their first page until the log cannot go on.
pub(crate) const SUCCESSORS: usize = 3;

/// Reads numbers out of bytes; what is missing makes it fail for good.
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    pub failed: bool,
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { bytes, failed: false }
    }

    fn take<const BYTES: usize>(&mut self) -> [u8; BYTES] {
        match self.bytes.split_first_chunk() {
            Some((first, rest)) => {
                self.bytes = rest;
                *first
            }
            None => {
                self.failed = true;
                [0; BYTES]
            }
        }
    }

    pub fn u8(&mut self) -> u8 {
        self.take::<1>()[0]
    }

    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

pub(crate) fn put32(into: &mut Vec<u8>, value: u32) {
    into.extend_from_slice(&value.to_le_bytes());
}

pub(crate) fn put64(into: &mut Vec<u8>, value: u64) {
    into.extend_from_slice(&value.to_le_bytes());
}

/// Fills `page` with header and payload: as many bytes as a part has, where that is enough, so that each part gets all of it.
pub(crate) fn encode_page(header: &PageHeader, payload: &[u8], page: &mut Vec<u8>, layout: &Layout) {
    let (page_bytes, unit_bytes) = (layout.geometry.page_bytes as usize, layout.unit_bytes() as usize);
    let bytes = PAGE_HEADER_BYTES + payload.len();
    assert!(bytes <= unit_bytes, "the payload fits a page");
    page.clear();
    put32(page, MAGIC);
    page.extend_from_slice(&[FORMAT, header.kind as u8]);
    page.extend_from_slice(&header.lane.to_le_bytes());
    put64(page, header.serial);
    put32(page, header.block_sequence);
    put32(page, payload.len() as u32);
    for (block, block_sequence) in header.next {
        put32(page, block);
        put32(page, block_sequence);
    }
    let mut checksum = crc32fast::Hasher::new();
    checksum.update(page);
    checksum.update(payload);
    put32(page, checksum.finalize());
    page.extend_from_slice(payload);
    page.resize(if bytes <= page_bytes { page_bytes } else { unit_bytes }, 0);
}

/// The header and the payload; `None` where the bytes are no page of that lane's metadata.
pub(crate) fn decode_page(page: &[u8], lane: u16) -> Option<(PageHeader, &[u8])> {
    let mut reader = Reader::new(page);
    let magic = reader.u32();
    let [format, kind] = reader.take::<2>();
    let of_lane = u16::from_le_bytes(reader.take());
    let serial = reader.u64();
    let [block_sequence, bytes] = core::array::from_fn(|_| reader.u32());
    let next = core::array::from_fn(|_| (reader.u32(), reader.u32()));
    let sum = reader.u32();
    let payload = page.get(PAGE_HEADER_BYTES..PAGE_HEADER_BYTES.checked_add(bytes as usize)?)?;
    let mut checksum = crc32fast::Hasher::new();
    checksum.update(&page[..PAGE_HEADER_BYTES - 4]);
    checksum.update(payload);
    if magic != MAGIC || format != FORMAT || of_lane != lane || checksum.finalize() != sum {
        return None;
    }
    let kind = match kind {
        1 => PageKind::Log,
        2 => PageKind::Map,
        3 => PageKind::Wear,
        4 => PageKind::Root,
        5 => PageKind::Summary,
        6 => PageKind::Filler,
        _ => return None,
    };
    Some((PageHeader { kind, lane, serial, block_sequence, next }, payload))
}

/// An entry of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    /// Logical pages hold nothing since that sequence.
    Trim { unit: u32, count: u32, sequence: u64 },
    /// The media lost a logical page.
    Lost { unit: u32, sequence: u64 },
    /// A stream may use this block from now on.
    Reserve { block: u32, block_sequence: u32 },
    /// A part of a block lies elsewhere.
    Replace(Replacement),
    /// A block is bad beyond replacement.
    Retire { block: u32 },
    /// What pages of a block hold, which has no summary yet.
    Headers { block: u32, block_sequence: u32, first_page: u32, entries: Vec<(u32, u64)> },
}

/// Bytes of one entry of [`Record::Headers`].
pub(crate) const HEADERS_ENTRY_BYTES: usize = 12;
/// Bytes of [`Record::Headers`] without entries; no other record is longer.
pub(crate) const RECORD_BYTES_MAX: usize = 17;

impl Record {
    pub fn encode(&self, into: &mut Vec<u8>) {
        match self {
            Record::Trim { unit, count, sequence } => {
                into.push(1);
                put32(into, *unit);
                put32(into, *count);
                put64(into, *sequence);
            }
            Record::Lost { unit, sequence } => {
                into.push(2);
                put32(into, *unit);
                put64(into, *sequence);
            }
            Record::Reserve { block, block_sequence } => {
                into.push(3);
                put32(into, *block);
                put32(into, *block_sequence);
            }
            Record::Replace(made) => {
                into.push(4);
                put32(into, made.block);
                put32(into, made.part);
                put32(into, made.row);
            }
            Record::Retire { block } => {
                into.push(5);
                put32(into, *block);
            }
            Record::Headers { block, block_sequence, first_page, entries } => {
                into.push(6);
                put32(into, *block);
                put32(into, *block_sequence);
                put32(into, *first_page);
                put32(into, entries.len() as u32);
                for (unit, sequence) in entries {
                    put32(into, *unit);
                    put64(into, *sequence);
                }
            }
        }
    }

    pub fn decode(reader: &mut Reader) -> Option<Record> {
        let record = match reader.u8() {
            1 => Record::Trim { unit: reader.u32(), count: reader.u32(), sequence: reader.u64() },
            2 => Record::Lost { unit: reader.u32(), sequence: reader.u64() },
            3 => Record::Reserve { block: reader.u32(), block_sequence: reader.u32() },
            4 => Record::Replace(Replacement { block: reader.u32(), part: reader.u32(), row: reader.u32() }),
            5 => Record::Retire { block: reader.u32() },
            6 => {
                let (block, block_sequence, first_page) = (reader.u32(), reader.u32(), reader.u32());
                let count = reader.u32();
                let mut entries = Vec::new();
                for _ in 0..count {
                    entries.push((reader.u32(), reader.u64()));
                    if reader.failed {
                        break;
                    }
                }
                Record::Headers { block, block_sequence, first_page, entries }
            }
            _ => return None,
        };
        (!reader.failed).then_some(record)
    }
}

/// Where a page of metadata is, and which it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PagePlace {
    pub address: u32,
    pub serial: u64,
}

/// The root of a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Root {
    /// What the flash was formatted for: units, dies of a unit, lanes, replacement blocks, pages of a block, bytes of a unit.
    pub parameters: [u32; 6],
    pub sequence: u64,
    /// All versions of a lower sequence that ever took effect are in the map.
    pub known_below: u64,
    pub block_sequence: u32,
    /// Where the log goes on, and with which serial.
    pub log_address: u32,
    pub log_block_sequence: u32,
    pub log_serial: u64,
    pub log_next: Successors,
    /// Of each stream: block, its sequence, first page that is not in the map; block [`NONE`]: none is open.
    pub streams: [[u32; 3]; 2],
    pub reserved: Vec<(u32, u32)>,
    pub map: Vec<PagePlace>,
    pub wear: Vec<PagePlace>,
    pub anchors: Vec<u32>,
    pub replaced: Vec<Replacement>,
    pub replacements_used: Vec<u32>,
    pub counters: Vec<u64>,
}

/// A list of a root, at most: what is longer is damaged.
const LIST_MAX: u32 = 1 << 24;

impl Root {
    /// Serials of the pages of its map and its erase counts.
    pub fn page_serials(&self) -> impl Iterator<Item = u64> + '_ {
        self.map.iter().chain(&self.wear).map(|place| place.serial)
    }

    /// True of the first checkpoint after formatting or recovery, before any block is reserved; of others only where nothing was written since.
    pub fn is_first_of_life(&self) -> bool {
        self.reserved.is_empty() && self.streams.iter().all(|stream| stream[0] == NONE)
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.parameters.iter().for_each(|word| put32(&mut bytes, *word));
        put64(&mut bytes, self.sequence);
        put64(&mut bytes, self.known_below);
        put32(&mut bytes, self.block_sequence);
        put32(&mut bytes, self.log_address);
        put32(&mut bytes, self.log_block_sequence);
        put64(&mut bytes, self.log_serial);
        for (block, block_sequence) in self.log_next {
            put32(&mut bytes, block);
            put32(&mut bytes, block_sequence);
        }
        self.streams.iter().flatten().for_each(|word| put32(&mut bytes, *word));
        put32(&mut bytes, self.reserved.len() as u32);
        for (block, block_sequence) in &self.reserved {
            put32(&mut bytes, *block);
            put32(&mut bytes, *block_sequence);
        }
        for places in [&self.map, &self.wear] {
            put32(&mut bytes, places.len() as u32);
            for place in places {
                put32(&mut bytes, place.address);
                put64(&mut bytes, place.serial);
            }
        }
        for words in [&self.anchors, &self.replacements_used] {
            put32(&mut bytes, words.len() as u32);
            words.iter().for_each(|word| put32(&mut bytes, *word));
        }
        put32(&mut bytes, self.replaced.len() as u32);
        for made in &self.replaced {
            [made.block, made.part, made.row].iter().for_each(|word| put32(&mut bytes, *word));
        }
        put32(&mut bytes, self.counters.len() as u32);
        self.counters.iter().for_each(|value| put64(&mut bytes, *value));
        bytes
    }

    pub fn decode(bytes: &[u8]) -> Option<Root> {
        let reader = &mut Reader::new(bytes);
        fn list<T>(reader: &mut Reader, read: impl Fn(&mut Reader) -> T) -> Vec<T> {
            let count = reader.u32().min(LIST_MAX);
            let mut all = Vec::new();
            for _ in 0..count {
                all.push(read(reader));
                if reader.failed {
                    break;
                }
            }
            all
        }
        let place = |reader: &mut Reader| PagePlace { address: reader.u32(), serial: reader.u64() };
        let root = Root {
            parameters: core::array::from_fn(|_| reader.u32()),
            sequence: reader.u64(),
            known_below: reader.u64(),
            block_sequence: reader.u32(),
            log_address: reader.u32(),
            log_block_sequence: reader.u32(),
            log_serial: reader.u64(),
            log_next: core::array::from_fn(|_| (reader.u32(), reader.u32())),
            streams: core::array::from_fn(|_| core::array::from_fn(|_| reader.u32())),
            reserved: list(reader, |reader| (reader.u32(), reader.u32())),
            map: list(reader, place),
            wear: list(reader, place),
            anchors: list(reader, |reader| reader.u32()),
            replacements_used: list(reader, |reader| reader.u32()),
            replaced: list(reader, |reader| Replacement { block: reader.u32(), part: reader.u32(), row: reader.u32() }),
            counters: list(reader, |reader| reader.u64()),
        };
        (!reader.failed && reader.is_empty()).then_some(root)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::{Cell, Geometry};
    use alloc::vec;

    #[test]
    fn what_was_encoded_decodes_and_every_flipped_bit_is_refused() {
        let records = [
            Record::Trim { unit: 3, count: 9, sequence: 1 << 33 },
            Record::Lost { unit: 4, sequence: 10 },
            Record::Reserve { block: 5, block_sequence: 11 },
            Record::Replace(Replacement { block: 6, part: 2, row: 99 }),
            Record::Retire { block: 7 },
            Record::Headers { block: 8, block_sequence: 12, first_page: 3, entries: vec![(1, 2), (NONE, 0)] },
        ];
        let mut payload = Vec::new();
        for record in &records {
            let before = payload.len();
            record.encode(&mut payload);
            let extra = if let Record::Headers { entries, .. } = record { entries.len() * 12 } else { 0 };
            assert!(payload.len() - before - extra <= RECORD_BYTES_MAX);
        }
        let header = PageHeader {
            kind: PageKind::Log,
            lane: 3,
            serial: 77,
            block_sequence: 5,
            next: [(6, 8), (7, 9), (NONE, 0)],
        };
        let mut page = Vec::new();
        let geometry = Geometry {
            channels: 1,
            packages_per_channel: 1,
            dies_per_package: 1,
            planes_per_die: 1,
            blocks_per_plane: 1,
            pages_per_block: 8,
            page_bytes: 512,
            spare_bytes: 0,
            cell: Cell::Slc,
            spare_accessible: false,
            paired_distance: 0,
        };
        encode_page(&header, &payload, &mut page, &Layout { geometry, dies_per_unit: 1, lane: 3 });
        let (found, decoded) = decode_page(&page, 3).expect("a page");
        assert_eq!((found, decoded), (header, &payload[..]));
        let mut reader = Reader::new(decoded);
        for record in records {
            assert_eq!(Record::decode(&mut reader), Some(record));
        }
        assert!(reader.is_empty() && decode_page(&page, 4).is_none());
        for bit in 0..(PAGE_HEADER_BYTES + payload.len()) * 8 {
            let mut damaged = page.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(decode_page(&damaged, 3).is_none(), "bit {bit}");
        }
    }

    #[test]
    fn roots_decode_and_their_truncations_do_not() {
        let place = PagePlace { address: 9, serial: 10 };
        let root = Root {
            parameters: [1, 2, 3, 4, 5, 6],
            reserved: vec![(1, 2)],
            map: vec![place; 3],
            wear: vec![place],
            anchors: vec![0, 1],
            replaced: vec![Replacement { block: 1, part: 2, row: 3 }],
            replacements_used: vec![7; 4],
            counters: vec![1; 5],
            ..Root::default()
        };
        let bytes = root.encode();
        assert_eq!(Root::decode(&bytes), Some(root));
        for length in 0..bytes.len() {
            assert_eq!(Root::decode(&bytes[..length]), None);
        }
    }
}
