//! The seam for models of time: what each step costs. The free clock has none: every step is due at once and is done in place. With a
//! model, each step's end becomes an event; the driver of the clock advances time to the wake-up that [`crate::Device::run`] returns
//! (virtual clock), or waits for it (real clock).
//!
//! Invariants: no step ends before it begins; calls for one resource come in the order of the times that they are handed, so that
//! a queue is the time until which its resource is taken.

use super::accelerator::Accelerated;
use super::flash::FlashStep;
use super::parameters::OperatorCosts;
use super::{ModelStatistics, TraceSink};
use crate::interconnect::{Agenda, Message, Transfer};
use std::any::Any;
use willow_flash_media::timing::{Completion, Submission};

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
    /// What the accelerators take; the processor waits for them.
    pub accelerated: Accelerated,
    /// Activity, for the trace.
    pub id: u32,
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

    /// Whether the processor goes on beside an accelerator that takes so many bytes, by its place in the registry, instead of waiting for it.
    fn streams(&self, accelerator: u8, bytes: u64) -> bool {
        let _ = (accelerator, bytes);
        false
    }

    /// The media have the data of a DMA: when it ends. An accelerator takes what a DMA has brought: when it has.
    fn dma_data(&mut self, at_ns: u64, transfer: &Transfer) -> u64 {
        let _ = transfer;
        at_ns
    }

    /// Takes an operation on the flash of an SPU's bank, at a time that is not before any other of these calls.
    fn flash(&mut self, now_ns: u64, spu: u16, submission: &Submission<'_>) -> FlashStep {
        let _ = (now_ns, spu, submission);
        FlashStep::Done
    }

    /// When something happens next in the flash, if anything does; then [`Timing::flash_advance`] is to be called.
    fn flash_next_ns(&self) -> Option<u64> {
        None
    }

    /// Has the flash go on until now, and tells which operations are done.
    fn flash_advance(&mut self, now_ns: u64, completions: &mut Vec<Completion>) {
        let _ = (now_ns, completions);
    }

    /// The power goes: which operations were changing an array, by their tokens. Nothing is under way in the flash any more.
    fn flash_cut(&mut self, now_ns: u64) -> Vec<u64> {
        let _ = now_ns;
        Vec::new()
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
