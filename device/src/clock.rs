//! The seam for the clocks: what each step costs in modelled time. The free clock has no model (`None`): every step is due
//! at once and is done in place. With a model, each step's end becomes an event; the driver of the clock advances time to
//! the wake-up that [`crate::Device::run`] returns (virtual clock), or waits for it (real clock).
//!
//! Invariants: no step ends before it begins; calls for one resource come in the order of the times that they are handed, so that
//! a queue is the time until which its resource is taken.

use crate::event::{EventQueue, MODEL_PLACE};
use crate::model::parameters::OperatorCosts;
use crate::model::{ModelStatistics, TraceSink};
use std::any::Any;

/// One end of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// A host: over its link, the bridge and the interconnect.
    Host,
    /// The bridge itself, for what the device sends of its own accord.
    Bridge,
    /// An SPU.
    Spu(u16),
}

/// A message on its way.
#[derive(Clone, Copy, Debug)]
pub struct Message {
    /// To name it in [`Agenda::arrive`]; below the number of events that the device holds, and taken again once it has arrived.
    pub id: u32,
    /// Sender.
    pub from: Endpoint,
    /// Receiver.
    pub to: Endpoint,
    /// Bytes of header and arguments.
    pub header_bytes: u32,
    /// Bytes of data that go with it.
    pub payload_bytes: u64,
}

/// What a DMA moves between, as far as its cost goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DmaKind {
    /// From NV memory.
    NvRead,
    /// To NV memory.
    NvWrite,
    /// From NV memory to NV memory: `address` is where it is read.
    NvCopy {
        /// Where it is written.
        to: u64,
    },
    /// Between network and local memory.
    Local,
}

/// A DMA: `segments` pieces of `segment_bytes`, `stride` bytes apart in NV memory.
#[derive(Clone, Copy, Debug)]
pub struct Transfer {
    /// Whose controller.
    pub spu: u16,
    /// Between what.
    pub kind: DmaKind,
    /// First byte in NV memory.
    pub address: u64,
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// Number of segments.
    pub segments: u32,
    /// From the begin of a segment to the begin of the next.
    pub stride: i64,
    /// Activity, for the trace.
    pub id: u32,
}

/// How far a DMA gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DmaStep {
    /// It ends then.
    Ends(u64),
    /// The media have the data then; [`Timing::dma_data`] is to be called at that time.
    Data(u64),
}

/// What a processor does in one go: from an RPC or the end of a wait to the handler's next wait.
#[derive(Clone, Copy, Debug, Default)]
pub struct Work {
    /// Instructions of the handler; `None`: native code, which is not metered.
    pub instructions: Option<u64>,
    /// True where an RPC was taken in, false where a wait was over.
    pub dispatch: bool,
    /// DMAs that were set up.
    pub dmas: u32,
    /// Messages that were sent.
    pub sends: u32,
    /// Look-ups in the permission table that SPU-OS made for DMAs of user processes.
    pub permission_checks: u32,
    /// Bytes that the compare accelerator took, once or more; the processor waits for it.
    pub compared_bytes: u64,
    /// Bytes that the checksum accelerator took.
    pub summed_bytes: u64,
    /// Activity, for the trace.
    pub id: u32,
}

/// Where a model puts what is to happen.
pub struct Agenda<'a>(pub(crate) &'a mut EventQueue);

impl Agenda<'_> {
    /// A message arrives then.
    #[inline]
    pub fn arrive(&mut self, at_ns: u64, message: u32) {
        self.0.schedule(at_ns, message);
    }

    /// A streamed message needs no arrival: its number is free again.
    #[inline]
    pub fn release(&mut self, message: u32) {
        self.0.release(message);
    }

    /// [`Timing::tick`] is called then with this word: the number of a message that is on its way and has no arrival yet, or
    /// [`Agenda::OWN_TICK`]; the same word not twice at once.
    #[inline]
    pub fn tick(&mut self, at_ns: u64, word: u32) {
        self.0.schedule_tick(at_ns, word);
    }

    /// A tick that no message is named by.
    pub const OWN_TICK: u32 = MODEL_PLACE;
}

/// A model of time. All functions are handed the time at which the step begins, in nanoseconds of the device's clock.
pub trait Timing: Any + Send {
    /// Takes a message on its way at `at_ns` (not before now); it calls [`Agenda::arrive`] for it exactly once, now or in a tick.
    fn send(&mut self, at_ns: u64, message: Message, agenda: &mut Agenda<'_>);

    /// Takes a message on its way whose data a DMA feeds into the network as it moves them (Willow, figure 3): its last byte is there at
    /// `end_ns`, its first not before `from_ns`. Nobody waits for it; it goes ahead of what its sender sends later. The model may
    /// call [`Agenda::release`] for it instead of [`Agenda::arrive`].
    fn stream(&mut self, (from_ns, end_ns): (u64, u64), message: Message, agenda: &mut Agenda<'_>) {
        let _ = from_ns;
        self.send(end_ns, message, agenda);
    }

    /// A time that the model asked for has come.
    fn tick(&mut self, now_ns: u64, word: u32, agenda: &mut Agenda<'_>) {
        let _ = (now_ns, word, agenda);
    }

    /// A DMA begins.
    fn dma(&mut self, at_ns: u64, transfer: &Transfer) -> DmaStep;

    /// The media have the data of a DMA: when it ends.
    fn dma_data(&mut self, at_ns: u64, transfer: &Transfer) -> u64 {
        let _ = transfer;
        at_ns
    }

    /// When a processor that begins now is done.
    fn processor(&mut self, at_ns: u64, spu: u16, work: &Work) -> u64;

    /// Costs of instructions, for the meter of the app runtime; `None`: one each.
    fn operator_costs(&self) -> Option<OperatorCosts> {
        None
    }

    /// What the model has counted until `now_ns`.
    fn statistics(&self, now_ns: u64) -> Option<ModelStatistics> {
        let _ = now_ns;
        None
    }

    /// Where spans go from now on.
    fn set_trace(&mut self, sink: Option<Box<dyn TraceSink>>) {
        let _ = sink;
    }
}
