//! What dies and buses are doing, each as one value.

use super::operation::Slab;
use std::collections::VecDeque;

/// What the array of a die is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Nothing.
    Idle,
    /// An operation waits for the bus to give the command, or the bus gives it.
    Command(u32),
    /// A page is sensed.
    Sensing(u32),
    /// A sensed page waits for the register that another is sent from.
    Holding(u32),
    /// Programs, erases or copies.
    Changing(u32),
    /// A change is about to be suspended.
    Suspending(u32),
}

impl Phase {
    /// The operation.
    #[inline]
    pub fn operation(self) -> Option<u32> {
        match self {
            Phase::Idle => None,
            Phase::Command(operation)
            | Phase::Sensing(operation)
            | Phase::Holding(operation)
            | Phase::Changing(operation)
            | Phase::Suspending(operation) => Some(operation),
        }
    }
}

/// A change that waits while reads go before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Suspended {
    pub operation: u32,
    pub left_ns: u64,
    pub since_ns: u64,
}

/// Data on their way into a die.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataIn {
    /// None.
    None,
    /// Waits for the bus.
    Waiting(u32),
    /// On the bus.
    OnBus(u32),
    /// In the register, waits for the array.
    Loaded(u32),
}

impl DataIn {
    #[inline]
    pub fn operation(self) -> Option<u32> {
        match self {
            DataIn::None => None,
            DataIn::Waiting(operation) | DataIn::OnBus(operation) | DataIn::Loaded(operation) => Some(operation),
        }
    }
}

/// A die.
#[derive(Debug)]
pub struct Die {
    pub phase: Phase,
    /// When the array began, and will end, what it is doing.
    pub begin_ns: u64,
    pub end_ns: u64,
    pub suspended: Option<Suspended>,
    /// A page in the register that is sent, or waits for the bus.
    pub data_out: Option<u32>,
    pub data_in: DataIn,
    pub reads: VecDeque<u32>,
    pub writes: VecDeque<u32>,
    /// Reads that went before a waiting write since the last write.
    pub overtaken: u32,
}

impl Die {
    pub fn new() -> Die {
        Die {
            phase: Phase::Idle,
            begin_ns: 0,
            end_ns: 0,
            suspended: None,
            data_out: None,
            data_in: DataIn::None,
            reads: VecDeque::new(),
            writes: VecDeque::new(),
            overtaken: 0,
        }
    }

    /// A read waits for changes of its block that came before it.
    pub fn read_is_blocked(&self, read: u32, slab: &Slab) -> bool {
        let read = &slab[read];
        let blocks = |place: u32| !slab[place].work.is_read() && slab[place].shares_a_block(read);
        self.phase.operation().is_some_and(blocks)
            || self.suspended.is_some_and(|suspended| blocks(suspended.operation))
            || self.data_in.operation().is_some_and(|place| slab[place].sequence < read.sequence && blocks(place))
            || self.writes.iter().take_while(|place| slab[**place].sequence < read.sequence).any(|place| blocks(*place))
    }

    /// A change waits for reads of its blocks that came before it.
    pub fn write_is_blocked(&self, write: u32, slab: &Slab) -> bool {
        let write = &slab[write];
        let blocks = |place: u32| slab[place].work.is_read() && slab[place].shares_a_block(write);
        self.phase.operation().is_some_and(blocks)
            || self.data_out.is_some_and(blocks)
            || self.reads.iter().take_while(|place| slab[**place].sequence < write.sequence).any(|place| blocks(*place))
    }
}

/// What goes over a bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// A command without data.
    Command,
    /// A page out of a die.
    Out,
    /// Pages into a die, with their command.
    In,
}

/// A transfer that waits.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    pub operation: u32,
    pub transfer: Transfer,
    pub duration_ns: u64,
    pub requested_ns: u64,
    pub sequence: u64,
}

/// A channel's bus.
#[derive(Debug, Default)]
pub struct Bus {
    /// A transfer of data that is on it.
    pub current: Option<Request>,
    pub busy_until_ns: u64,
    /// Its event is being handled: what is requested meanwhile waits until all has been.
    pub in_event: bool,
    /// Commands of reads: short, at most one for each die, and they let the arrays work while data are sent.
    pub commands: VecDeque<Request>,
    pub for_reads: VecDeque<Request>,
    pub for_writes: VecDeque<Request>,
    pub overtaken: u32,
    pub requests: u64,
}

impl Bus {
    pub fn has_waiting(&self) -> bool {
        !self.commands.is_empty() || !self.for_reads.is_empty() || !self.for_writes.is_empty()
    }
}
