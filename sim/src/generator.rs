//! Generators: closed and timed loops of operations that need no task for each of them. A slot is one operation under way; it goes
//! through the stages below, and begins the next one when it ends.
//!
//! What always holds: a thread's submissions and completions take its processor time one after the other; an operation's latency begins
//! when it was due (in a timed loop: before it found a free slot), and ends when the program's thread has it.

use crate::direct::DirectSlot;
use crate::host::Path;
use crate::operation::{KINDS, Operation};
use crate::workload::BlockSource;
use hdrhistogram::Histogram;
use std::any::Any;
use willow_device::HreId;

/// Longest latency that is told apart, nanoseconds.
pub const LATENCY_NS_MAX: u64 = 1_000_000_000_000;
/// Most operations under way of one generator.
pub const SLOTS_MAX: usize = 16384;

/// What a source says when it is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Begin this now.
    Now(Operation),
    /// Begin this at that time (nanoseconds from the beginning of the run), or at once where that has passed.
    At(u64, Operation),
    /// There is nothing more.
    End,
    /// The workload is broken: ends the simulation with this sentence.
    Broken(String),
}

/// Where a generator's operations come from.
pub trait Source: Any {
    /// The next operation for thread `thread` of the generator; `now_ns` is the time since the beginning of the run. After
    /// [`Next::End`] it is asked again for each operation that was under way, and for other threads.
    fn next(&mut self, now_ns: u64, thread: usize) -> Next;
}

/// The source that a generator was given: that of block workloads is called directly, any other by its table of functions.
pub(crate) enum ChosenSource {
    Block(Box<BlockSource>),
    Other(Box<dyn Source>),
}

impl ChosenSource {
    /// Finds out which it is.
    pub fn new(source: Box<dyn Source>) -> Self {
        if !(&*source as &dyn Any).is::<BlockSource>() {
            return ChosenSource::Other(source);
        }
        let any: Box<dyn Any> = source;
        any.downcast().map_or_else(|_| unreachable!("it is one"), ChosenSource::Block)
    }

    /// [`Source::next`].
    #[inline(always)]
    pub fn next(&mut self, now_ns: u64, thread: usize) -> Next {
        match self {
            ChosenSource::Block(source) => source.next(now_ns, thread),
            ChosenSource::Other(source) => source.next(now_ns, thread),
        }
    }
}

/// What a generator is made of.
pub struct GeneratorOptions {
    /// Shown in the report.
    pub name: String,
    /// The way through the host's software.
    pub path: Path,
    /// Host threads, each with an endpoint of its own.
    pub threads: usize,
    /// Operations that each thread has under way.
    pub queue_depth: usize,
    /// Time that is not counted at first, nanoseconds.
    pub warm_up_ns: u64,
    /// Time after which nothing is counted or begun, nanoseconds from the beginning of the run, the warm-up included; `None`: the
    /// source's end.
    pub duration_ns: Option<u64>,
    /// Threads work on a file each (locks of files are not shared); else all on one.
    pub file_a_thread: bool,
}

/// Stages of an operation, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Nothing is under way; what comes next is asked of the source.
    Idle,
    /// It is not due yet (timed loop).
    Early,
    /// Waits for the file's lock.
    Locking,
    /// The thread puts it into the queue.
    Submitting,
    /// The device takes no more for now.
    Refused,
    /// It waits in the block layer's queue, or the SATA port has it.
    Port,
    /// The device has it.
    Device,
    /// An interrupt tells of its completion.
    Interrupt,
    /// The thread takes the completion.
    Completing,
    /// There is nothing more to do.
    Over,
}

pub(crate) struct Slot {
    pub stage: Stage,
    pub thread: u32,
    pub thread_index: u32,
    pub hre: HreId,
    /// The endpoint of a user's process, and what is under way of it.
    pub direct: Option<DirectSlot>,
    pub file_lock: u32,
    pub holds_lock: bool,
    pub operation: Operation,
    pub due_ns: u64,
    pub sent_ns: u64,
    pub buffer: Vec<u8>,
}

/// What was measured of one kind of operation.
pub(crate) struct Measured {
    pub operations: u64,
    pub bytes: u64,
    pub latency: Histogram<u64>,
    pub last_ns: u64,
}

pub(crate) struct Generator {
    pub name: String,
    pub path: Path,
    pub source: ChosenSource,
    pub slots: Vec<Slot>,
    pub threads: usize,
    pub queue_depth: usize,
    pub active: usize,
    pub started: bool,
    pub warm_up_ns: u64,
    pub duration_ns: u64,
    pub measured: [Option<Box<Measured>>; KINDS.len()],
    pub refused: u64,
}

impl Generator {
    /// Counts an operation that has ended at `now_ns` of the run.
    #[inline]
    pub fn count(&mut self, operation: &Operation, due_ns: u64, now_ns: u64) {
        if now_ns < self.warm_up_ns || now_ns > self.duration_ns {
            return;
        }
        let measured = self.measured[operation.kind()].get_or_insert_with(|| {
            // The bounds are constants that a histogram takes.
            let latency = Histogram::new_with_max(LATENCY_NS_MAX, 3).unwrap_or_else(|_| unreachable!());
            Box::new(Measured { operations: 0, bytes: 0, latency, last_ns: 0 })
        });
        measured.operations += 1;
        measured.bytes += u64::from(operation.bytes());
        measured.last_ns = now_ns;
        measured.latency.saturating_record(now_ns - due_ns);
    }
}
