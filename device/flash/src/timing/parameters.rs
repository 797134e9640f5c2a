//! How long things take and what they cost, and how a die is shared between reads and writes.

use crate::check::{Absurd, within};
use crate::geometry::PageKind;
use serde::{Deserialize, Serialize};

/// Times of the kinds of pages, nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PageTimes {
    /// Lower pages, and all pages of SLC.
    pub lower_ns: u64,
    /// Middle pages of TLC; others have none.
    pub middle_ns: u64,
    /// Upper pages. Of TLC: the program of the whole word line, before which the others only go into the latches.
    pub upper_ns: u64,
}

impl PageTimes {
    /// The time of a kind.
    #[inline]
    pub fn of(&self, kind: PageKind) -> u64 {
        match kind {
            PageKind::Lower => self.lower_ns,
            PageKind::Middle => self.middle_ns,
            PageKind::Upper => self.upper_ns,
        }
    }
}

/// Parameters of time, of scheduling and of energy.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TimingParameters {
    /// Rate of each channel's bus, bytes a second.
    pub bus_bytes_per_s: u64,
    /// Time on the bus of a command and its addresses, for each plane, nanoseconds.
    pub command_ns: u64,
    /// Time in the array of a read (tR).
    pub read: PageTimes,
    /// Time in the array that each step of the ladder of read retries adds, nanoseconds.
    pub retry_ns: u64,
    /// Time in the array of a program (tPROG).
    pub program: PageTimes,
    /// Time in the array of an erase (tBERS), nanoseconds.
    pub erase_ns: u64,
    /// Whether a die has a cache register beside its page register: it senses the next page while the bus takes the one before, and takes
    /// the next page while it programs the one before.
    pub cache_operations: bool,
    /// Time in the array to exchange the registers, nanoseconds; only with `cache_operations`.
    pub cache_busy_ns: u64,
    /// Whether reads go before writes that wait for the same die or bus.
    pub read_priority: bool,
    /// Reads that may go before a write that waits, one after the other.
    pub overtaking_reads_max: u32,
    /// Whether a read suspends a program.
    pub suspend_program: bool,
    /// Whether a read suspends an erase.
    pub suspend_erase: bool,
    /// Time from the decision until the die takes the read, nanoseconds.
    pub suspend_ns: u64,
    /// Time that going on costs beside what was left, nanoseconds.
    pub resume_ns: u64,
    /// An operation that has less left is not suspended, nanoseconds.
    pub suspend_left_min_ns: u64,
    /// Times that one operation is suspended at most.
    pub suspensions_max: u32,
    /// Time after which a suspended operation goes on, whatever reads wait, nanoseconds.
    pub suspended_max_ns: u64,
    /// Energy of reading a page, picojoules.
    pub read_pj: u64,
    /// Energy of programming a page, picojoules.
    pub program_pj: u64,
    /// Energy of erasing a block, picojoules.
    pub erase_pj: u64,
    /// Energy of a byte on the bus, picojoules.
    pub bus_pj_per_byte: u64,
}

/// A step of flash takes less than ten seconds.
const STEP_NS: std::ops::RangeInclusive<u64> = 0..=10_000_000_000;

impl TimingParameters {
    /// Checks all values; the error names the field, its value and what was expected.
    pub fn validate(&self) -> Result<(), Absurd> {
        within("bus_bytes_per_s", self.bus_bytes_per_s, 1_000..=1_000_000_000_000, "bytes/s")?;
        within("command_ns", self.command_ns, STEP_NS, "ns")?;
        within("read.lower_ns", self.read.lower_ns, STEP_NS, "ns")?;
        within("read.middle_ns", self.read.middle_ns, STEP_NS, "ns")?;
        within("read.upper_ns", self.read.upper_ns, STEP_NS, "ns")?;
        within("retry_ns", self.retry_ns, STEP_NS, "ns")?;
        within("program.lower_ns", self.program.lower_ns, STEP_NS, "ns")?;
        within("program.middle_ns", self.program.middle_ns, STEP_NS, "ns")?;
        within("program.upper_ns", self.program.upper_ns, STEP_NS, "ns")?;
        within("erase_ns", self.erase_ns, STEP_NS, "ns")?;
        within("cache_busy_ns", self.cache_busy_ns, STEP_NS, "ns")?;
        within("overtaking_reads_max", self.overtaking_reads_max, 1..=1_000_000, "reads")?;
        within("suspend_ns", self.suspend_ns, STEP_NS, "ns")?;
        within("resume_ns", self.resume_ns, STEP_NS, "ns")?;
        within("suspend_left_min_ns", self.suspend_left_min_ns, STEP_NS, "ns")?;
        within("suspensions_max", self.suspensions_max, 0..=1_000_000, "suspensions")?;
        within("suspended_max_ns", self.suspended_max_ns, STEP_NS, "ns")?;
        within("read_pj", self.read_pj, 0..=1_000_000_000_000, "pJ")?;
        within("program_pj", self.program_pj, 0..=1_000_000_000_000, "pJ")?;
        within("erase_pj", self.erase_pj, 0..=1_000_000_000_000, "pJ")?;
        within("bus_pj_per_byte", self.bus_pj_per_byte, 0..=1_000_000, "pJ")
    }
}
