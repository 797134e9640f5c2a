//! What the control service goes on with when an operation of the store has ended that it has begun through SPU-OS.

use crate::hre::HreId;

/// What goes on when an operation of the store has ended, or a fence is passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Continuation {
    /// The save of the metadata that is under way.
    Metadata,
    /// A step of a transaction.
    Transaction(u32),
    /// A control request that has waited for this alone: it is answered.
    Answer { token: u32, hre: HreId },
    /// A module that nobody names was removed.
    Garbage,
    /// The flush at the device's end.
    Shutdown,
}
