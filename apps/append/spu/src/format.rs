//! The bytes in NV memory; FORMAT.md has the diagram, and the argument why every interruption leaves the right length.
//!
//! What always holds: a unit has a checksum over itself, and lies in one unit of 512 bytes, which media write whole or not at all.

use crate::wire::{Delegation, EXTENTS_MAX, Extent};

/// What media write whole or not at all.
pub const UNIT_BYTES: usize = 512;
/// Files that are delegated to an SPU at a time.
pub const SLOTS: usize = 32;
/// Number of the region.
pub const REGION: u32 = 1;
/// Its bytes: each slot has a unit for the delegation and one for the length.
pub const REGION_BYTES: u64 = (SLOTS * 2 * UNIT_BYTES) as u64;
/// Bytes of the checksum at the end.
pub const SUM_BYTES: usize = 8;
/// Bytes of a length's unit that are used.
pub const LENGTH_BYTES: usize = 48;

const DELEGATION_MAGIC: u64 = u64::from_le_bytes(*b"WLWAPND1");
const EXTENTS_OFFSET: usize = 24 + Delegation::BYTES;

const _: () = assert!(EXTENTS_OFFSET + EXTENTS_MAX * Extent::BYTES + SUM_BYTES <= UNIT_BYTES);

/// Where the delegation of a slot lies in the region.
pub fn delegation_offset(slot: usize) -> u64 {
    (slot * 2 * UNIT_BYTES) as u64
}

/// Where the length of a slot lies in the region.
pub fn length_offset(slot: usize) -> u64 {
    delegation_offset(slot) + UNIT_BYTES as u64
}

fn put(into: &mut [u8], at: usize, word: u64) {
    into[at..at + 8].copy_from_slice(&word.to_le_bytes());
}

fn word(from: &[u8], at: usize) -> u64 {
    from[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

fn place(spu: u32, slot: usize) -> u64 {
    u64::from(spu) << 32 | slot as u64
}

/// The unit of a delegation, without its checksum.
pub fn encode_delegation(
    into: &mut [u8; UNIT_BYTES],
    (spu, slot): (u32, usize),
    generation: u64,
    delegation: &Delegation,
    extents: &[Extent],
) {
    into.fill(0);
    put(into, 0, DELEGATION_MAGIC);
    put(into, 8, place(spu, slot));
    put(into, 16, generation);
    into[24..EXTENTS_OFFSET].copy_from_slice(&delegation.encode());
    let places = into[EXTENTS_OFFSET..].chunks_exact_mut(Extent::BYTES);
    extents.iter().zip(places).for_each(|(extent, into)| into.copy_from_slice(&extent.encode()));
}

/// Of a unit whose checksum is right: generation, delegation and extents; `None` where it is none of that slot.
pub fn decode_delegation(
    from: &[u8; UNIT_BYTES],
    (spu, slot): (u32, usize),
) -> Option<(u64, Delegation, [Extent; EXTENTS_MAX])> {
    let delegation = Delegation::decode(&from[24..EXTENTS_OFFSET]);
    let is_here = word(from, 0) == DELEGATION_MAGIC && word(from, 8) == place(spu, slot);
    if !is_here || delegation.extents as usize > EXTENTS_MAX {
        return None;
    }
    let mut extents = [Extent::default(); EXTENTS_MAX];
    let all = from[EXTENTS_OFFSET..].chunks_exact(Extent::BYTES);
    all.zip(extents.iter_mut().take(delegation.extents as usize)).for_each(|(from, to)| *to = Extent::decode(from));
    Some((word(from, 16), delegation, extents))
}

/// A settled length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Length {
    /// Which delegation of the slot it is of.
    pub generation: u64,
    /// Bytes of the file.
    pub length: u64,
    /// Nothing is appended any more.
    pub is_suspended: bool,
}

impl Length {
    /// As bytes, without their checksum.
    pub fn encode(&self, spu: u32, slot: usize) -> [u8; LENGTH_BYTES] {
        let mut bytes = [0; LENGTH_BYTES];
        let words = [!DELEGATION_MAGIC, place(spu, slot), self.generation, self.length, self.is_suspended.into()];
        words.iter().enumerate().for_each(|(at, word)| put(&mut bytes, 8 * at, *word));
        bytes
    }

    /// From bytes whose checksum is right; `None` where they are no length of that slot.
    pub fn decode(from: &[u8; LENGTH_BYTES], spu: u32, slot: usize) -> Option<Length> {
        let is_here = word(from, 0) == !DELEGATION_MAGIC && word(from, 8) == place(spu, slot);
        is_here.then(|| Length {
            generation: word(from, 16),
            length: word(from, 24),
            is_suspended: word(from, 32) != 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_read_where_they_were_written_and_nowhere_else() {
        let mut extents = [Extent::default(); EXTENTS_MAX];
        (1..).zip(&mut extents).for_each(|(number, extent)| *extent = Extent { start: number << 40, bytes: number });
        let delegation = Delegation { file: 7, length: 5, first: 4, base: 1 << 33, stripe_bytes: 8192, extents: 27 };
        let mut unit = [9; UNIT_BYTES];
        encode_delegation(&mut unit, (1, 5), 3, &delegation, &extents);
        assert_eq!(unit[UNIT_BYTES - SUM_BYTES..], [0; SUM_BYTES]);
        assert_eq!(decode_delegation(&unit, (1, 5)), Some((3, delegation, extents)));
        assert_eq!((decode_delegation(&unit, (1, 4)), decode_delegation(&unit, (0, 5))), (None, None));
        let length = Length { generation: 3, length: 1 << 40, is_suspended: true };
        let bytes = length.encode(1, 5);
        assert_eq!(Length::decode(&bytes, 1, 5), Some(length));
        assert_eq!((Length::decode(&bytes, 1, 4), Length::decode(&bytes, 0, 5)), (None, None));
        // Neither is taken for the other.
        assert_eq!(Length::decode(unit.first_chunk().unwrap(), 1, 5), None);
    }
}
