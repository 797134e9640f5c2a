//! The run loop under a model of time: events are handled in the order of their modelled times, each at its own, however late the
//! driver of the device is; what waits for a busy processor waits in that processor's queue.
//!
//! Invariants: a processor runs one handler at a time, and takes what is for it in the order in which it came; modelled time
//! depends on what hosts hand in and when, and on nothing that the machine does.

use super::*;
use crate::model::{ModelStatistics, TraceSink};

/// An SPU's processor.
#[derive(Default)]
pub(super) struct Processor {
    /// Until when it runs what it has begun.
    pub free_ns: u64,
    /// What waits for it; while something does, an [`Event::Processor`] is scheduled.
    pub queue: VecDeque<Event>,
}

impl Device {
    /// The clock of whoever drives the device: requests handed in from now on come then. Without a model it has no effect.
    #[inline]
    pub fn set_time(&mut self, now_ns: u64) {
        let mut machine = self.machine.borrow_mut();
        machine.host_now_ns = machine.host_now_ns.max(now_ns);
    }

    /// True where a model of time is there: whoever drives the device then calls [`Device::set_time`] before what it hands in, keeps
    /// wake-up times precisely, and tells of completions that it hands out ([`Device::delivered`]).
    pub fn is_timed(&self) -> bool {
        self.machine.borrow().is_timed()
    }

    /// For a real clock: a completion that was due at `at_ns` is handed to its host at `now_ns`.
    #[inline]
    pub fn delivered(&mut self, now_ns: u64, at_ns: u64) {
        if self.is_timed() {
            self.punctuality.record(now_ns, at_ns);
        }
    }

    /// For a virtual clock: like [`Device::run`], but stops as soon as there is a completion or an upcall, whose time may be before
    /// `until_ns`, so that the host can act on it before anything later happens.
    pub fn run_to_completion(&mut self, until_ns: u64) -> Option<u64> {
        if !self.machine.borrow().is_timed() {
            return self.run(until_ns);
        }
        self.run_timed(until_ns, true)
    }

    /// What the model of time has counted until `now_ns`; `None` under the free clock.
    pub fn model_statistics(&self, now_ns: u64) -> Option<ModelStatistics> {
        self.machine.borrow().timing.as_ref()?.statistics(now_ns)
    }

    /// Where the model's spans go from now on; without a model there are none.
    pub fn set_trace(&mut self, sink: Option<Box<dyn TraceSink>>) {
        if let Some(timing) = self.machine.borrow_mut().timing.as_mut() {
            timing.set_trace(sink);
        }
    }

    pub(super) fn run_timed(&mut self, until_ns: u64, stop_at_completion: bool) -> Option<u64> {
        self.run_instructions = 0;
        let mut events = 0;
        {
            let machine = &mut *self.machine.borrow_mut();
            let now_ns = machine.now_ns;
            // What came about between two runs (an aborted request) begins now.
            machine.begin_deferred(now_ns.max(machine.host_now_ns));
        }
        loop {
            while events < EVENTS_A_RUN_MAX
                && self.run_instructions < INSTRUCTIONS_A_RUN_MAX
                && let Some(event) = self.next_event(until_ns)
            {
                events += 1;
                self.handle(event);
                let machine = &mut *self.machine.borrow_mut();
                let now_ns = machine.now_ns;
                machine.begin_deferred(now_ns);
                if stop_at_completion && machine.bridge.has_news() {
                    return Some(now_ns);
                }
            }
            if events >= EVENTS_A_RUN_MAX || self.run_instructions >= INSTRUCTIONS_A_RUN_MAX {
                return Some(until_ns.min(self.machine.borrow().events.next_ns().unwrap_or(until_ns)));
            }
            {
                let machine = &mut *self.machine.borrow_mut();
                if !stop_at_completion {
                    machine.now_ns = machine.now_ns.max(until_ns);
                    machine.host_now_ns = machine.host_now_ns.max(until_ns);
                    machine.bridge.now_ns = machine.now_ns;
                }
            }
            self.collect_store();
            let now_ns = self.machine.borrow().now_ns;
            let more = self.serve_control(now_ns);
            events += usize::from(more);
            let machine = &mut *self.machine.borrow_mut();
            machine.begin_deferred(now_ns);
            let due = machine.events.has_ready() || machine.events.next_ns().is_some_and(|at_ns| at_ns <= until_ns);
            if !more && !due {
                break;
            }
        }
        let machine = self.machine.borrow();
        [machine.events.next_ns(), self.service.deadline_ns()].into_iter().flatten().min()
    }

    /// The next event until then, and its time becomes now.
    #[inline]
    fn next_event(&mut self, until_ns: u64) -> Option<Event> {
        let machine = &mut *self.machine.borrow_mut();
        if let Some(event) = machine.events.pop(machine.now_ns) {
            return Some(event);
        }
        let at_ns = machine.events.next_ns().filter(|at_ns| *at_ns <= until_ns)?;
        machine.now_ns = at_ns;
        machine.bridge.now_ns = at_ns;
        machine.events.pop(at_ns)
    }

    #[inline]
    fn handle(&mut self, event: Event) {
        match event {
            Event::Tick { word } => self.machine.borrow_mut().tick(word),
            Event::Deliver { token } if self.is_for_control(token) => self.handle_control(token),
            Event::Deliver { .. } | Event::Complete(_) => self.gate(event),
            Event::Fetch(fetch) => self.fetch(fetch),
            Event::Processor { spu } => {
                if let Some(event) = self.processors[spu as usize].queue.pop_front() {
                    self.work_on(event);
                }
                self.await_processor(spu);
            }
            Event::Response { transfer, outcome, result } => {
                self.machine.borrow_mut().bridge.end_rpc(transfer, outcome, result);
            }
            Event::End { group, result, memory } => self.machine.borrow_mut().end_one(group, result, memory),
            Event::Streamed => {}
            Event::Upcall(posted) => self.machine.borrow_mut().upcall_arrived(*posted),
            Event::MessagePart { handle } => self.machine.borrow_mut().message_read(handle, 0, Ok(&[])),
            Event::DmaData(dma) => self.machine.borrow_mut().dma_data(&dma),
        }
    }

    /// Something for a processor: now, where that is free and nothing came before it.
    #[inline]
    fn gate(&mut self, event: Event) {
        let (spu, now_ns) = {
            let machine = self.machine.borrow();
            let spu = match &event {
                Event::Complete(completion) => completion.spu,
                Event::Deliver { token } => match machine.activities.get(*token) {
                    Some(activity) => activity.spu,
                    None => return,
                },
                _ => unreachable!("only these are for processors"),
            };
            (spu, machine.now_ns)
        };
        let processor = &mut self.processors[spu as usize];
        if processor.queue.is_empty() && processor.free_ns <= now_ns {
            return self.work_on(event);
        }
        processor.queue.push_back(event);
        if processor.queue.len() == 1 {
            self.await_processor(spu);
        }
    }

    fn work_on(&mut self, event: Event) {
        match event {
            Event::Complete(completion) => self.complete(completion),
            Event::Deliver { token } => self.deliver(token),
            _ => unreachable!("only these are for processors"),
        }
    }

    fn await_processor(&mut self, spu: u16) {
        let processor = &self.processors[spu as usize];
        if !processor.queue.is_empty() {
            let machine = &mut *self.machine.borrow_mut();
            machine.events.push_at(processor.free_ns.max(machine.now_ns), Event::Processor { spu });
        }
    }

    /// A handler has run: its processor is taken for as long as the model says, and what it asked for begins then. `started`: the
    /// activity that it began with.
    #[inline]
    pub(super) fn charge(&mut self, spu: u16, instructions: Option<u64>, started: Option<u32>) {
        let machine = &mut *self.machine.borrow_mut();
        let Some(timing) = machine.timing.as_mut() else { return };
        let processor = &mut self.processors[spu as usize];
        let work = Work { instructions, dispatch: started.is_some(), id: started.unwrap_or(0), ..machine.work };
        processor.free_ns = timing.processor(machine.now_ns.max(processor.free_ns), spu, &work);
        machine.begin_deferred(processor.free_ns);
    }
}
