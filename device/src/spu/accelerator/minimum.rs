//! The minimum accelerator: the place of the least of a row of numbers in local memory. FTLs find the block with the fewest valid pages by it.
//!
//! Natively a loop that the compiler makes vectors of; under a model the accelerator takes the bytes once, and the processor waits for it.

use crate::model::accelerator::Accelerator;
use crate::spu::abi;
use crate::spu::gate::Charged;
use crate::spu::meter::Fault;
use crate::spu::os::{Caller, LocalMemory, Machine};

/// Most numbers of a row.
pub(crate) const NUMBERS_MAX: u32 = 1 << 20;

impl Machine {
    /// `flash_minimum`: the place of the first of the least of `count` numbers.
    pub fn minimum<M: LocalMemory>(
        &mut self,
        caller: Caller,
        memory: &M,
        (numbers, count): (u64, u32),
        _: &Charged,
    ) -> Result<i32, Fault> {
        if count == 0 || count > NUMBERS_MAX {
            return Ok(abi::ERROR_ARGUMENT);
        }
        let bytes = memory.slice(numbers, count as usize * 4)?;
        let place = place_of_minimum(bytes);
        self.accelerates(caller, Accelerator::Minimum, bytes.len() as u64);
        Ok(place as i32)
    }
}

/// The place of the first of the least of a row of numbers that has at least one.
fn place_of_minimum(bytes: &[u8]) -> usize {
    let number = |bytes: &[u8; 4]| u32::from_le_bytes(*bytes);
    let (numbers, _) = bytes.as_chunks::<4>();
    let least = numbers.iter().map(number).min().unwrap_or(0);
    numbers.iter().position(|of| number(of) == least).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_the_least_is_found() {
        for (numbers, expected) in [
            (&[7][..], 0),
            (&[3, 2, 1, 2, 1], 2),
            (&[u32::MAX, u32::MAX, 0x0100_0000, 0x00ff_ffff], 3),
            (&[u32::MAX, u32::MAX], 0),
        ] {
            let bytes: Vec<u8> = numbers.iter().flat_map(|number: &u32| number.to_le_bytes()).collect();
            assert_eq!(place_of_minimum(&bytes), expected, "{numbers:?}");
        }
    }
}
