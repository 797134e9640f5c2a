//! Parquet's hybrid of runs and bit-packed groups: definition levels, and numbers of a dictionary's values.
//!
//! What always holds: no more values come than are wanted; a value has at most as many bits as were said.

use alloc::vec::Vec;

/// What has been decoded, and what is left of the run or group at hand.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hybrid {
    bits: u32,
    /// Values left of a run, and the value.
    run: (u64, u32),
    /// Groups of eight values left.
    groups: u64,
    group: [u32; 8],
    /// Values of the group that were given.
    given: usize,
}

/// The bytes are none of the hybrid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoHybrid;

impl Hybrid {
    /// Of values of so many bits, 32 at most.
    pub fn new(bits: u32) -> Hybrid {
        Hybrid { bits, given: 8, ..Hybrid::default() }
    }

    /// Takes `wanted` values where a run has all of them, and they are `value`; whether it did, and the bytes that were used in any case.
    pub fn take_run(&mut self, bytes: &[u8], wanted: usize, value: u32) -> Result<(bool, usize), NoHybrid> {
        let mut at = 0;
        if self.given == 8 && self.groups == 0 && self.run.0 == 0 {
            at = self.head(bytes)?.unwrap_or(0);
        }
        let is_run = self.given == 8 && self.run.1 == value && self.run.0 >= wanted as u64;
        if is_run {
            self.run.0 -= wanted as u64;
        }
        Ok((is_run, at))
    }

    /// Takes the head of a run, with its value, or of groups; `None` where more of it is needed.
    fn head(&mut self, bytes: &[u8]) -> Result<Option<usize>, NoHybrid> {
        let width = self.bits.div_ceil(8) as usize;
        let Some((head, count)) = varint(bytes)? else { return Ok(None) };
        if head & 1 == 1 {
            self.groups = head >> 1;
            return Ok(Some(count));
        }
        let Some(value) = bytes.get(count..count + width) else { return Ok(None) };
        let value = value.iter().rev().fold(0u32, |value, byte| value << 8 | u32::from(*byte));
        if self.bits < 32 && value >> self.bits != 0 {
            return Err(NoHybrid);
        }
        self.run = (head >> 1, value);
        Ok(Some(count + width))
    }

    /// Appends values until there are `wanted` in `out`, which has room for them, or more bytes are needed; the bytes that were used.
    pub fn decode(&mut self, bytes: &[u8], wanted: usize, out: &mut Vec<u32>) -> Result<usize, NoHybrid> {
        let mut at = 0;
        while out.len() < wanted {
            let missing = wanted - out.len();
            if self.given < 8 {
                let count = missing.min(8 - self.given);
                out.extend_from_slice(&self.group[self.given..self.given + count]);
                self.given += count;
            } else if self.run.0 > 0 {
                let count = (missing as u64).min(self.run.0);
                out.resize(out.len() + count as usize, self.run.1);
                self.run.0 -= count;
            } else if self.groups > 0 && missing >= 8 && bytes.len() - at >= self.bits as usize + 8 {
                out.extend_from_slice(&self.group_of(&bytes[at..]));
                at += self.bits as usize;
                self.groups -= 1;
            } else if self.groups > 0 {
                let Some(group) = bytes.get(at..at + self.bits as usize) else { break };
                at += group.len();
                self.unpack(group);
                self.groups -= 1;
            } else {
                let Some(count) = self.head(&bytes[at..])? else { break };
                at += count;
            }
        }
        Ok(at)
    }

    /// The values of a group, behind which there are eight more bytes.
    #[inline(always)]
    fn group_of(&self, from: &[u8]) -> [u32; 8] {
        let mask = if self.bits == 32 { u32::MAX } else { (1 << self.bits) - 1 };
        core::array::from_fn(|number| {
            let bit = number * self.bits as usize;
            let word = from[bit / 8..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
            (word >> (bit % 8)) as u32 & mask
        })
    }

    fn unpack(&mut self, from: &[u8]) {
        let bits = self.bits;
        let mask = if bits == 32 { u32::MAX } else { (1 << bits) - 1 };
        let (mut held, mut held_bits, mut bytes) = (0u64, 0, from.iter());
        for place in &mut self.group {
            while held_bits < bits {
                held |= u64::from(bytes.next().copied().unwrap_or(0)) << held_bits;
                held_bits += 8;
            }
            *place = held as u32 & mask;
            held >>= bits;
            held_bits -= bits;
        }
        self.given = 0;
    }
}

fn varint(bytes: &[u8]) -> Result<Option<(u64, usize)>, NoHybrid> {
    let mut value = 0u64;
    for index in 0..5 {
        let Some(byte) = bytes.get(index) else { return Ok(None) };
        value |= u64::from(byte & 127) << (7 * index);
        if *byte < 128 {
            return Ok(Some((value, index + 1)));
        }
    }
    Err(NoHybrid)
}
