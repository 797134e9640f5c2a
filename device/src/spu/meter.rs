//! What SPU-OS does on an app's behalf, metered: every import call, and what it copies, walks through or allocates, counts against the
//! budget of the run beside the instructions that the app executes itself. Without that a loop of imports would do hundreds of times
//! the work of a loop of instructions, and everybody else would wait for it.
//!
//! What always holds:
//! - work is charged before it is done: what the budget does not cover does not happen, and the app ends as one that loops does;
//! - charges depend on what was asked for and on tables' sizes, never on time, so that a run ends at the same place on any machine;
//! - the meter sets no fuel: instructions and work are two counts that are compared at every import.
//!
//! One unit is what an instruction of WebAssembly costs: 0.1 to 0.3 ns (2 million in a tight loop were measured at 220 us). The charges
//! are rounded times, measured or estimated, over that.

use super::os::WildPointer;

/// Any import: leaving the sandbox and entering it again, and finding the request (6 to 13 ns).
pub const IMPORT_WORK: u64 = 60;
/// Bytes that are copied for a unit (64 GB/s within the caches).
pub const BYTES_A_WORK: u64 = 8;
/// A segment of a DMA, a comparison or a sum: checking address and permission, and asking the store (15 to 70 ns).
pub const SEGMENT_WORK: u64 = 150;
/// A message: its entry, its buffers, its place in the receiver's inbox (150 ns).
pub const MESSAGE_WORK: u64 = 500;
/// A byte on the virtual serial port: looked at for the end of a line, copied, checked, and copied to the log (0.6 ns).
pub const PRINTED_BYTE_WORK: u64 = 3;
/// A line on the virtual serial port: a string, and room for it in the log (100 ns).
pub const LINE_WORK: u64 = 300;
/// An entry of a table that is searched from its beginning.
pub const ENTRY_WORK: u64 = 4;
/// A flush, or a change of the region table: the store and the control service have work with it (5 us at least).
pub const STORE_WORK: u64 = 20_000;

/// An import did more than the budget of the run covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OverBudget;

/// Why an import ends its app.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A pointer outside of its memory.
    Wild(WildPointer),
    /// More work than the run may have done.
    OverBudget,
}

impl From<WildPointer> for Fault {
    fn from(wild: WildPointer) -> Self {
        Fault::Wild(wild)
    }
}

impl From<OverBudget> for Fault {
    fn from(_: OverBudget) -> Self {
        Fault::OverBudget
    }
}

/// The counter of a run.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    /// Charged since the run began.
    done: u64,
    /// What the run may have charged: the instructions that it has left.
    most: u64,
}

impl Meter {
    /// The calling app may execute so many instructions more. An app that is not metered has [`u64::MAX`].
    #[inline]
    pub fn allow(&mut self, instructions_left: u64) {
        self.most = instructions_left;
    }

    /// Charges work that is about to be done.
    #[inline]
    pub fn charge(&mut self, units: u64) -> Result<(), OverBudget> {
        let done = self.done.saturating_add(units);
        if done > self.most {
            return Err(OverBudget);
        }
        self.done = done;
        Ok(())
    }

    /// Charges a copy.
    #[inline]
    pub fn charge_bytes(&mut self, bytes: u64) -> Result<(), OverBudget> {
        self.charge(bytes / BYTES_A_WORK)
    }

    /// What the run may still have charged.
    #[inline]
    pub fn left(&self) -> u64 {
        self.most.saturating_sub(self.done)
    }

    /// Charged since the run began.
    #[inline]
    pub fn done(&self) -> u64 {
        self.done
    }

    /// The run has ended: what it was charged.
    #[inline]
    pub fn take(&mut self) -> u64 {
        std::mem::take(&mut self.done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_and_instructions_share_one_budget_and_what_is_refused_is_not_charged() {
        let mut meter = Meter::default();
        meter.allow(1000);
        assert_eq!(meter.charge(600), Ok(()));
        assert_eq!(meter.charge(u64::MAX), Err(OverBudget));
        assert_eq!(meter.charge(401), Err(OverBudget));
        // The app has executed 300 instructions meanwhile.
        meter.allow(700);
        assert_eq!((meter.charge(101), meter.charge_bytes(800)), (Err(OverBudget), Ok(())));
        assert_eq!((meter.take(), meter.take()), (700, 0));
    }
}
