//! What the flash behind all banks has done and met since it was opened, and how worn it is.
//!
//! Invariant: wear is the medium's own count; blocks that were bad from the factory have none.

use super::DelegatingStore;
use serde::{Deserialize, Serialize};

/// Counts of the flash of all banks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FlashStatistics {
    /// Pages read.
    pub reads: u64,
    /// Pages programmed.
    pub programs: u64,
    /// Blocks erased.
    pub erases: u64,
    /// Pages that were moved within their plane by copyback; they count among those read and programmed, too.
    #[serde(default)]
    pub copybacks: u64,
    /// Copybacks that went by the controller after all, since the chip could not correct a page by itself.
    #[serde(default)]
    pub uncorrectable_copybacks: u64,
    /// Reads that the ECC corrected bits of.
    pub corrected_reads: u64,
    /// Steps of the ladder of read retries.
    pub retries: u64,
    /// Reads that could not be corrected.
    pub uncorrectable_reads: u64,
    /// Pages that could not be programmed.
    pub program_failures: u64,
    /// Blocks that could not be erased.
    pub erase_failures: u64,
    /// Blocks that are not bad from the factory.
    pub blocks: u64,
    /// Fewest erases of one of them.
    pub erases_min: u32,
    /// Most erases of one of them.
    pub erases_max: u32,
    /// Erases of one on average.
    pub erases_mean: f64,
    /// Standard deviation of that.
    pub erases_deviation: f64,
    /// Bytes of a page.
    pub page_bytes: u32,
    /// Bytes of this machine's memory that contents and states of blocks take.
    pub held_bytes: u64,
}

/// How far through its life flash is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlashHealth {
    /// What is left of the spare blocks, in percent of those of new flash.
    pub spare_percent: u8,
    /// Erases of a block on average, in percent of those that it is rated for; may exceed 100.
    pub used_percent: u32,
    /// Pages that the media have lost, and reads that failed, over its life.
    pub media_errors: u64,
    /// Nothing is written any more: too many blocks have worn out.
    pub is_read_only: bool,
}

impl Default for FlashHealth {
    fn default() -> FlashHealth {
        FlashHealth { spare_percent: 100, used_percent: 0, media_errors: 0, is_read_only: false }
    }
}

/// Instead of an erase count: the block was bad from the factory.
const FACTORY_BAD: u32 = 1 << 31;

impl DelegatingStore {
    /// How worn the blocks of a die are, in the words of [`crate::control::FLASH_MAP`]; `None`: there is no such die.
    pub fn wear_of(&self, bank: usize, die: u32) -> Option<Vec<u32>> {
        let array = self.flash.get(bank)?;
        let shape = array.geometry();
        if die >= shape.dies() {
            return None;
        }
        let mut blocks: Vec<u32> = (0..shape.blocks_per_die())
            .map(|block| array.erase_count(die, block).unwrap_or(0).min(FACTORY_BAD - 1))
            .collect();
        array.factory_bad_blocks(die).for_each(|block| blocks[block as usize] = FACTORY_BAD);
        let head = [shape.dies(), shape.planes_per_die, array.endurance_cycles()];
        Some(head.into_iter().chain(blocks).collect())
    }

    /// Erases of a block of a bank on average, in percent of those that it is rated for.
    pub fn used_percent(&self, bank: usize) -> u32 {
        let Some(array) = self.flash.get(bank) else { return 0 };
        let shape = array.geometry();
        let blocks = || (0..shape.dies()).flat_map(|die| (0..shape.blocks_per_die()).map(move |block| (die, block)));
        let erases: u64 = blocks().filter_map(|(die, block)| array.erase_count(die, block)).map(u64::from).sum();
        let rated = u64::from(array.endurance_cycles()) * blocks().count().max(1) as u64;
        u32::try_from(erases.saturating_mul(100) / rated).unwrap_or(u32::MAX)
    }

    /// What the flash of all banks has done, and its wear.
    pub fn statistics(&self) -> FlashStatistics {
        let mut all = FlashStatistics { erases_min: u32::MAX, ..FlashStatistics::default() };
        let (mut sum, mut squares) = (0.0, 0.0);
        for array in &self.flash {
            let counted = array.statistics();
            all.reads += counted.reads;
            all.programs += counted.programs;
            all.erases += counted.erases;
            all.copybacks += counted.copybacks;
            all.uncorrectable_copybacks += counted.uncorrectable_copybacks;
            all.corrected_reads += counted.corrected_reads;
            all.retries += counted.retries;
            all.uncorrectable_reads += counted.uncorrectable_reads;
            all.program_failures += counted.program_failures;
            all.erase_failures += counted.erase_failures;
            all.held_bytes += array.held_bytes();
            let shape = array.geometry();
            all.page_bytes = shape.page_bytes;
            for die in 0..shape.dies() {
                let mut bad = array.factory_bad_blocks(die).peekable();
                for block in 0..shape.blocks_per_die() {
                    if bad.next_if_eq(&block).is_some() {
                        continue;
                    }
                    let erases = array.erase_count(die, block).unwrap_or(0);
                    all.blocks += 1;
                    all.erases_min = all.erases_min.min(erases);
                    all.erases_max = all.erases_max.max(erases);
                    sum += f64::from(erases);
                    squares += f64::from(erases) * f64::from(erases);
                }
            }
        }
        let blocks = all.blocks.max(1) as f64;
        all.erases_min = all.erases_min.min(all.erases_max);
        all.erases_mean = sum / blocks;
        all.erases_deviation = (squares / blocks - all.erases_mean * all.erases_mean).max(0.0).sqrt();
        all
    }
}
