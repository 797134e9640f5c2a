//! The model that a device was given: the hardware's own is called directly, so that its steps become part of the run loop; any other
//! by its table of functions.
//!
//! Invariant: whichever it is, it is called with the same arguments in the same order.

use super::flash::FlashStep;
use super::hardware::HardwareModel;
use super::statistics::ModelStatistics;
use super::timing::{DmaStep, Timing, Work};
use super::trace::TraceSink;
use crate::interconnect::{Agenda, Message, Transfer};
use std::any::Any;
use willow_flash_media::timing::{Completion, Submission};

/// A model of time.
pub(crate) enum ChosenModel {
    Hardware(Box<HardwareModel>),
    Other(Box<dyn Timing>),
}

impl ChosenModel {
    /// Finds out which it is.
    pub fn new(timing: Box<dyn Timing>) -> Self {
        if !(&*timing as &dyn Any).is::<HardwareModel>() {
            return ChosenModel::Other(timing);
        }
        let any: Box<dyn Any> = timing;
        match any.downcast() {
            Ok(hardware) => ChosenModel::Hardware(hardware),
            Err(_) => unreachable!("it is one"),
        }
    }
}

macro_rules! of_either {
    ($self:ident, $model:ident => $call:expr) => {
        match $self {
            ChosenModel::Hardware($model) => $call,
            ChosenModel::Other($model) => $call,
        }
    };
}

impl ChosenModel {
    /// [`Timing::send`].
    #[inline(always)]
    pub fn send(&mut self, at_ns: u64, message: Message, agenda: &mut Agenda<'_>) {
        of_either!(self, model => model.send(at_ns, message, agenda));
    }

    /// [`Timing::stream`].
    #[inline(always)]
    pub fn stream(&mut self, times_ns: (u64, u64), message: Message, agenda: &mut Agenda<'_>) {
        of_either!(self, model => model.stream(times_ns, message, agenda));
    }

    /// [`Timing::tick`].
    #[inline(always)]
    pub fn tick(&mut self, now_ns: u64, word: u32, agenda: &mut Agenda<'_>) {
        of_either!(self, model => model.tick(now_ns, word, agenda));
    }

    /// [`Timing::dma`].
    #[inline(always)]
    pub fn dma(&mut self, at_ns: u64, transfer: &Transfer) -> DmaStep {
        of_either!(self, model => model.dma(at_ns, transfer))
    }

    /// [`Timing::streams`].
    #[inline]
    pub fn streams(&self, accelerator: u8, bytes: u64) -> bool {
        of_either!(self, model => model.streams(accelerator, bytes))
    }

    /// [`Timing::dma_data`].
    #[inline(always)]
    pub fn dma_data(&mut self, at_ns: u64, transfer: &Transfer) -> u64 {
        of_either!(self, model => model.dma_data(at_ns, transfer))
    }

    /// [`Timing::flash`].
    #[inline]
    pub fn flash(&mut self, now_ns: u64, spu: u16, submission: &Submission<'_>) -> FlashStep {
        of_either!(self, model => model.flash(now_ns, spu, submission))
    }

    /// [`Timing::flash_next_ns`].
    #[inline]
    pub fn flash_next_ns(&self) -> Option<u64> {
        of_either!(self, model => model.flash_next_ns())
    }

    /// [`Timing::flash_advance`].
    #[inline]
    pub fn flash_advance(&mut self, now_ns: u64, completions: &mut Vec<Completion>) {
        of_either!(self, model => model.flash_advance(now_ns, completions));
    }

    /// [`Timing::flash_cut`].
    pub fn flash_cut(&mut self, now_ns: u64) -> Vec<u64> {
        of_either!(self, model => model.flash_cut(now_ns))
    }

    /// [`Timing::processor`].
    #[inline(always)]
    pub fn processor(&mut self, at_ns: u64, spu: u16, work: &Work) -> u64 {
        of_either!(self, model => model.processor(at_ns, spu, work))
    }

    /// [`Timing::statistics`].
    pub fn statistics(&self, now_ns: u64) -> Option<ModelStatistics> {
        of_either!(self, model => model.statistics(now_ns))
    }

    /// [`Timing::set_trace`].
    pub fn set_trace(&mut self, sink: Option<Box<dyn TraceSink>>) {
        of_either!(self, model => model.set_trace(sink));
    }
}
