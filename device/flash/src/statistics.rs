//! What a medium counts. Counts only grow, and begin with the process.

/// Counts of what the medium has done and met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArrayStatistics {
    /// Reads of pages.
    pub reads: u64,
    /// Pages programmed.
    pub programs: u64,
    /// Blocks erased.
    pub erases: u64,
    /// Pages copied within a plane.
    pub copybacks: u64,
    /// Copybacks that the chip could not carry out, since a page needs the controller's ladder of read retries or cannot be read.
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
    /// Operations that broke a rule.
    pub misuses: u64,
}
