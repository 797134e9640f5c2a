//! The bytes in NV memory; FORMAT.md has the diagram, and the argument why every interruption leaves the right bytes.
//!
//! What always holds: a unit has a checksum over itself, and lies in one unit of 512 bytes, which media write whole or not at all.

use crate::wire::Descriptor;

/// What media write whole or not at all.
pub const UNIT_BYTES: usize = 512;
/// Bytes of the checksum at the end.
pub const SUM_BYTES: usize = 8;
/// Bytes of an entry's unit that are used.
pub const ENTRY_BYTES: usize = 40;
/// Bytes of a cache's head.
pub const HEAD_BYTES: usize = 24 + Descriptor::BYTES + SUM_BYTES;
/// Where the chunks of a cache begin is a multiple of this.
const DATA_ALIGNMENT: u64 = 65536;

const HEAD_MAGIC: u64 = u64::from_le_bytes(*b"WLWCACH1");
const ENTRY_MAGIC: u64 = u64::from_le_bytes(*b"WLWCHNK1");

const _: () = assert!(HEAD_BYTES <= UNIT_BYTES && ENTRY_BYTES <= UNIT_BYTES);

/// Number of a cache's region.
pub fn region(cache: usize) -> u32 {
    cache as u32 + 1
}

/// Where the entry of a cache's slot lies in its region.
pub fn entry_offset(slot: u64) -> u64 {
    (slot + 1) * UNIT_BYTES as u64
}

/// Bytes of a cache's head and entries.
pub fn map_bytes(slots: u32) -> u64 {
    entry_offset(u64::from(slots))
}

/// Where the bytes of a cache's slot lie in its region.
pub fn data_offset(descriptor: (u32, u32), slot: u64) -> u64 {
    let (chunk_bytes, slots) = descriptor;
    map_bytes(slots).next_multiple_of(DATA_ALIGNMENT) + slot * u64::from(chunk_bytes)
}

/// Bytes of a cache's region.
pub fn region_bytes(descriptor: (u32, u32)) -> u64 {
    data_offset(descriptor, u64::from(descriptor.1))
}

fn put(into: &mut [u8], at: usize, word: u64) {
    into[at..at + 8].copy_from_slice(&word.to_le_bytes());
}

fn word(from: &[u8], at: usize) -> u64 {
    from[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

fn place(spu: u32, number: usize) -> u64 {
    u64::from(spu) << 32 | number as u64
}

/// The head of a cache, without its checksum.
pub fn encode_head(into: &mut [u8; HEAD_BYTES], (spu, cache): (u32, usize), descriptor: &Descriptor) {
    into.fill(0);
    put(into, 0, HEAD_MAGIC);
    put(into, 8, place(spu, cache));
    into[24..24 + Descriptor::BYTES].copy_from_slice(&descriptor.encode());
}

/// Of a head whose checksum is right; `None` where it is none of that cache.
pub fn decode_head(from: &[u8; HEAD_BYTES], (spu, cache): (u32, usize)) -> Option<Descriptor> {
    let is_here = word(from, 0) == HEAD_MAGIC && word(from, 8) == place(spu, cache);
    is_here.then(|| Descriptor::decode(&core::array::from_fn(|at| from[24 + at]))).filter(Descriptor::is_sound)
}

/// What the map says of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Which cache of that number it is of.
    pub generation: u64,
    /// The chunk.
    pub chunk: u64,
    /// The backing file does not have it.
    pub is_dirty: bool,
}

impl Entry {
    /// As bytes, without their checksum.
    pub fn encode(&self, spu: u32, slot: usize) -> [u8; ENTRY_BYTES] {
        let mut bytes = [0; ENTRY_BYTES];
        let words = [ENTRY_MAGIC, place(spu, slot), self.generation, self.chunk << 1 | u64::from(self.is_dirty)];
        words.iter().enumerate().for_each(|(at, word)| put(&mut bytes, 8 * at, *word));
        bytes
    }

    /// From bytes whose checksum is right; `None` where they are no entry of that slot.
    pub fn decode(from: &[u8; ENTRY_BYTES], spu: u32, slot: usize) -> Option<Entry> {
        let is_here = word(from, 0) == ENTRY_MAGIC && word(from, 8) == place(spu, slot);
        let last = word(from, 24);
        is_here.then(|| Entry { generation: word(from, 16), chunk: last >> 1, is_dirty: last & 1 != 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::PATH_BYTES_MAX;

    #[test]
    fn units_are_read_where_they_were_written_and_nowhere_else() {
        let descriptor = Descriptor {
            chunk_bytes: 4096,
            slots: 7,
            writes_through: true,
            bytes: 1 << 40,
            identity: core::array::from_fn(|at| at as u8),
            stamp: core::array::from_fn(|at| at as u8 + 100),
            generation: 9,
            path_bytes: 5,
            path: core::array::from_fn::<u8, PATH_BYTES_MAX, _>(|at| at as u8),
        };
        let mut head = [7; HEAD_BYTES];
        encode_head(&mut head, (1, 5), &descriptor);
        assert_eq!(head[HEAD_BYTES - SUM_BYTES..], [0; SUM_BYTES]);
        assert_eq!(decode_head(&head, (1, 5)), Some(descriptor));
        assert_eq!((decode_head(&head, (1, 4)), decode_head(&head, (0, 5))), (None, None));
        let entry = Entry { generation: 9, chunk: 1 << 50, is_dirty: true };
        let bytes = entry.encode(1, 5);
        assert_eq!(Entry::decode(&bytes, 1, 5), Some(entry));
        assert_eq!((Entry::decode(&bytes, 1, 4), Entry::decode(&bytes, 0, 5)), (None, None));
        // Slots lie behind the map and behind each other.
        assert!(data_offset((4096, 7), 0) >= map_bytes(7));
        assert_eq!(data_offset((4096, 7), 7), region_bytes((4096, 7)));
    }
}
