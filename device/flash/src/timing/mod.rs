//! How long flash takes: dies and buses as a state machine that is handed time.
//!
//! What always holds:
//! - A die's array does one thing at a time, a bus carries one transfer at a time, and each has at most one event ahead of it.
//! - Nothing is reserved in advance: whoever waits is chosen when die or bus becomes free, among those that have come by then.
//! - Operations that share a block are done in the order in which they were submitted, unless all of them are reads.
//! - Same submissions at the same times give the same completions at the same times, on any machine.
//! - A write waits for a bounded number of reads, a suspended one for a bounded time.
//!
//! A bank's owner calls it under modelled clocks; it knows neither contents nor rules (crate documentation).

mod engine;
mod operation;
mod parameters;
mod schedule;
mod state;
mod units;

pub use engine::Timing;
pub use operation::{Submission, Work};
pub use parameters::{PageTimes, TimingParameters};

/// Most operations of one die that wait or are under way.
pub const OPERATIONS_PER_DIE_MAX: usize = 256;

/// An operation that is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The owner's name for it.
    pub token: u64,
    /// When it was done.
    pub at_ns: u64,
    /// When it was submitted.
    pub submitted_ns: u64,
}

/// Why an operation was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The die has as many as it takes: submit it again when one of them is done.
    #[error("die {0} has {OPERATIONS_PER_DIE_MAX} operations under way")]
    Full(u32),
    /// There is no such die, or no block or too many are named.
    #[error("no die {die}, or {blocks} blocks named of which it takes 1 to {most}", most = crate::PLANES_MAX)]
    NoSuch {
        /// The die.
        die: u32,
        /// Blocks that were named.
        blocks: u32,
    },
}

/// What a die has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DieUse {
    /// Time in its array, nanoseconds.
    pub busy_ns: u64,
    /// Reads, programs, erases, copybacks.
    pub operations: [u64; 4],
    /// Programs and erases that were suspended.
    pub suspensions: u64,
    /// Time from submissions to the first step, nanoseconds.
    pub waited_ns: u64,
}

/// What a bus has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BusUse {
    /// Time that it carried something, nanoseconds.
    pub busy_ns: u64,
    /// Transfers, commands included.
    pub transfers: u64,
    /// Bytes of data.
    pub bytes: u64,
    /// Time that transfers waited for it, nanoseconds.
    pub waited_ns: u64,
}

/// Where a span of the trace is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// The array of a die.
    Die(u32),
    /// A channel's bus.
    Bus(u32),
}

/// Something that took time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Where.
    pub lane: Lane,
    /// What.
    pub name: &'static str,
    /// When it began.
    pub begin_ns: u64,
    /// When it ended.
    pub end_ns: u64,
    /// The operation.
    pub token: u64,
    /// Bytes on a bus; 0 for arrays.
    pub bytes: u64,
}
