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

use crate::memory::WildPointer;

/// Any import: leaving the sandbox and entering it again, and finding the request (6 to 30 ns).
pub const IMPORT_WORK: u64 = 80;
/// Bytes that are copied for a unit (64 GB/s within the caches).
pub const BYTES_A_WORK: u64 = 8;
/// Bytes that DMAs, comparisons and sums move for a unit, where a run has not made way for others (14 GB/s: from memory).
pub const MOVED_BYTES_A_WORK: u64 = 4;
/// A segment of a DMA, a comparison or a sum: checking address and permission, and asking the store (15 to 70 ns).
pub const SEGMENT_WORK: u64 = 150;
/// A message: its entry, its buffers, its place in the receiver's inbox (150 ns).
pub const MESSAGE_WORK: u64 = 500;
/// A byte on the virtual serial port: looked at for the end of a line, copied, checked, and copied to the log (1.6 ns).
pub const PRINTED_BYTE_WORK: u64 = 6;
/// A line on the virtual serial port: a string, and room for it in the log (100 ns).
pub const LINE_WORK: u64 = 300;
/// An entry of a table that is searched from its beginning.
pub const ENTRY_WORK: u64 = 4;
/// A flush, or a change of the region table: the store and the control service have work with it (5 us at least).
pub const STORE_WORK: u64 = 20_000;

/// So many bytes a run moves before its next DMA makes way for others.
pub const DMA_SLICE_BYTES: u64 = 1 << 20;

/// What SPU-OS does for one run before its next DMA makes way in the same manner: long lists of short DMAs as well.
pub const WORK_SLICE: u64 = 50_000;

/// An import did more than the budget of the run covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverBudget;

/// Why an import ends its app.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A pointer outside of its memory.
    Wild(WildPointer),
    /// More work than the run may have done.
    OverBudget,
}

impl std::fmt::Display for Fault {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Fault::Wild(WildPointer { pointer, bytes }) => {
                write!(formatter, "an import was handed {bytes} bytes at {pointer:#x}, outside of the app's memory")
            }
            Fault::OverBudget => formatter.write_str(
                "it had SPU-OS do more for it without waiting than its budget covers \
                 (instruction_budget; docs/abi.md says what imports cost)",
            ),
        }
    }
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
pub struct Meter {
    /// Charged since the run began.
    done: u64,
    /// What the run may have charged: the instructions that it has left.
    most: u64,
    /// What DMAs of this run have moved.
    moved_bytes: u64,
}

/// What a run has come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Metered {
    /// What it was charged.
    pub work: u64,
    /// What its DMAs have moved.
    pub moved_bytes: u64,
}

impl Meter {
    /// The calling app may execute so many instructions more. An app that is not metered has [`u64::MAX`].
    #[inline]
    pub fn allow(&mut self, instructions_left: u64) {
        self.most = instructions_left;
    }

    /// An import is called, by a run that may execute so many instructions more.
    ///
    /// # Errors
    /// The run may not do that as well.
    #[inline]
    pub fn enter(&mut self, instructions_left: u64) -> Result<(), OverBudget> {
        self.allow(instructions_left);
        self.charge(IMPORT_WORK)
    }

    /// Charges work that is about to be done.
    #[inline]
    pub(crate) fn charge(&mut self, units: u64) -> Result<(), OverBudget> {
        let done = self.done.saturating_add(units);
        if done > self.most {
            return Err(OverBudget);
        }
        self.done = done;
        Ok(())
    }

    /// Charges a copy.
    #[inline]
    pub(crate) fn charge_bytes(&mut self, bytes: u64) -> Result<(), OverBudget> {
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

    /// Whether the run may move these bytes as well before others have their turn.
    #[inline]
    pub fn in_slice(&self, bytes: u64) -> bool {
        self.moved_bytes + bytes < DMA_SLICE_BYTES && self.done < WORK_SLICE
    }

    /// What its DMAs have moved since the run began.
    #[inline]
    pub fn moved_bytes(&self) -> u64 {
        self.moved_bytes
    }

    /// A DMA of the run moves bytes.
    #[inline]
    pub fn moves(&mut self, bytes: u64) {
        self.moved_bytes += bytes;
    }

    /// A run goes on that made way: what it moved before counts against what it may move in all.
    #[inline]
    pub fn goes_on(&mut self, moved_before: u64) {
        debug_assert_eq!(self.moved_bytes, 0, "the run before was taken");
        self.moved_bytes = moved_before;
    }

    /// It makes way again, or has ended: what it has moved in all. What it moved before is no longer in the count.
    #[inline]
    pub fn makes_way(&mut self, moved_before: u64) -> u64 {
        let moved = self.moved_bytes;
        debug_assert!(moved >= moved_before, "the count only grows");
        self.moved_bytes = moved - moved_before;
        moved
    }

    /// The run has ended: what it has come to.
    #[inline]
    pub fn take(&mut self) -> Metered {
        let Meter { done, moved_bytes, .. } = self;
        Metered { work: std::mem::take(done), moved_bytes: std::mem::take(moved_bytes) }
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
        meter.moves(9);
        assert_eq!(meter.take(), Metered { work: 700, moved_bytes: 9 });
        assert_eq!(meter.take(), Metered::default());
    }

    #[test]
    fn what_a_run_moved_before_it_made_way_counts_for_the_run_and_is_taken_once() {
        let mut meter = Meter::default();
        meter.goes_on(0);
        meter.moves(DMA_SLICE_BYTES / 2);
        let before = meter.makes_way(0);
        assert_eq!((before, meter.take().moved_bytes), (DMA_SLICE_BYTES / 2, DMA_SLICE_BYTES / 2));
        meter.allow(u64::MAX);
        meter.goes_on(before);
        assert!(!meter.in_slice(DMA_SLICE_BYTES / 2));
        meter.moves(7);
        assert_eq!((meter.moved_bytes(), meter.makes_way(before)), (before + 7, before + 7));
        assert_eq!(meter.take(), Metered { work: 0, moved_bytes: 7 });
    }
}
