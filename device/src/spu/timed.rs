//! What SPU-OS does under a model of time: what a handler asks for begins when its run ends on the processor, and ends when the model
//! says.
//!
//! Invariants: under the free clock nothing here runs; what was asked for during a run leaves in the order in which it was
//! asked; an event that is held has exactly one way to its time, by a message or by a DMA.

use super::os::Machine;
use super::sleep::begin_sleep;
use crate::interconnect::event::{Event, EventQueue, TimedDma};
use crate::interconnect::{Agenda, Endpoint, HEADER_BYTES, Key, Message, Transfer};
use crate::model::chosen::ChosenModel;
use crate::model::timing::{DmaStep, Work};

/// A DMA begins and ends then.
#[inline(always)]
fn ends(dma: &TimedDma, (begin_ns, end_ns): (u64, u64), timing: &mut ChosenModel, events: &mut EventQueue) {
    events.schedule(end_ns, dma.then);
    if dma.streamed {
        let Transfer { spu, segment_bytes, segments, .. } = dma.transfer;
        let message = Message {
            id: events.hold(|| Event::Streamed),
            from: Endpoint::Spu(spu),
            to: Endpoint::Host,
            header_bytes: HEADER_BYTES as u32,
            payload_bytes: segment_bytes * u64::from(segments),
        };
        timing.stream((begin_ns, end_ns), message, &mut Agenda(events));
    }
}

/// Something that begins when the handler's run has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Deferred {
    /// A DMA: the place of its [`Event::DmaData`].
    Dma(u32),
    /// A message; its number is the place of the event.
    Message(Message),
    /// A sleep.
    Sleep { group: Key, duration_ns: u64 },
}

impl Machine {
    /// True under a clock with a model.
    #[inline]
    pub fn is_timed(&self) -> bool {
        self.timing.is_some()
    }

    /// Sends a message whose arrival is `event`.
    #[inline(always)]
    pub fn carry(
        &mut self,
        event: impl FnOnce() -> Event,
        (from, to): (Endpoint, Endpoint),
        arguments_bytes: u64,
        payload_bytes: u64,
    ) {
        let id = self.events.hold(event);
        let header_bytes = (HEADER_BYTES + arguments_bytes) as u32;
        let message = Message { id, from, to, header_bytes, payload_bytes };
        match (from, self.timing.as_mut()) {
            (Endpoint::Host, Some(timing)) => timing.send(self.host_now_ns, message, &mut Agenda(&mut self.events)),
            _ => {
                self.work.sends += u32::from(from != Endpoint::Bridge);
                self.deferred.push(Deferred::Message(message));
            }
        }
    }

    /// Begins a DMA after this run, whose end is `event`; `streamed`: its data go to a host as they move.
    #[inline(always)]
    pub fn dma_then(&mut self, transfer: Transfer, streamed: bool, event: impl FnOnce() -> Event) {
        let then = self.events.hold(event);
        self.work.dmas += 1;
        let place = self.events.hold(|| Event::DmaData(TimedDma { transfer, then, streamed }));
        self.deferred.push(Deferred::Dma(place));
    }

    /// A run has ended at `at_ns` (or something outside of a run has happened): what was asked for begins.
    #[inline(always)]
    pub fn begin_deferred(&mut self, at_ns: u64) {
        if !self.deferred.is_empty() {
            self.begin_all_deferred(at_ns);
        }
    }

    fn begin_all_deferred(&mut self, at_ns: u64) {
        self.work = Work::default();
        let Some(timing) = self.timing.as_mut() else { return };
        for deferred in &self.deferred {
            match deferred {
                Deferred::Sleep { group, duration_ns } => {
                    let until_ns = at_ns.saturating_add(*duration_ns);
                    begin_sleep(&mut self.spus, &mut self.events, *group, until_ns);
                }
                Deferred::Message(message) => timing.send(at_ns, *message, &mut Agenda(&mut self.events)),
                Deferred::Dma(place) => {
                    let Some(Event::DmaData(dma)) = self.events.held_at(*place) else { continue };
                    match timing.dma(at_ns, &dma.transfer) {
                        DmaStep::Data(data_ns) => self.events.schedule(data_ns, *place),
                        DmaStep::Ends(end_ns) => {
                            let dma = *dma;
                            self.events.release(*place);
                            ends(&dma, (at_ns, end_ns), timing, &mut self.events);
                        }
                    }
                }
            }
        }
        self.deferred.clear();
    }

    /// The media have a DMA's data in their buffers.
    #[inline]
    pub fn dma_data(&mut self, dma: &TimedDma) {
        let now_ns = self.now_ns;
        let Some(timing) = self.timing.as_mut() else { return };
        let end_ns = timing.dma_data(now_ns, &dma.transfer);
        ends(dma, (now_ns, end_ns), timing, &mut self.events);
    }

    /// A word of the model's.
    #[inline(always)]
    pub fn tick(&mut self, word: u32) {
        let now_ns = self.now_ns;
        if let Some(timing) = self.timing.as_mut() {
            timing.tick(now_ns, word, &mut Agenda(&mut self.events));
        }
    }
}
