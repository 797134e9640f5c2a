//! The run loop under a model of time: events are handled in the order of their modelled times, each at its own, however late the
//! driver of the device is; what waits for a busy processor waits in that processor's queue.
//!
//! Invariants: a processor runs one handler at a time, and takes what is for it in the order in which accounts are to be served, an
//! account's own in the order in which it came; modelled time
//! depends on what hosts hand in and when, and on nothing that the machine does.

use super::EVENTS_A_RUN_MAX;
use super::slip::Slip;
use crate::interconnect::Key;
use crate::interconnect::event::{Completion, Due, Event, Wait};
use crate::interconnect::fair::FairQueue;
use crate::request::{AppNumber, CONTROL_APP};
use crate::service::core::Core;
use crate::spu::handlers::{Drive, Run};
use crate::spu::os::Machine;

/// Most instructions of apps in one run under the real clock: hosts wait for its end, some hundreds of microseconds.
const INSTRUCTIONS_A_RUN_MAX: u64 = 1 << 21;
/// The same where the driver wants the next completion: nobody waits.
const INSTRUCTIONS_TO_COMPLETION_MAX: u64 = 200_000_000;

/// How far the hardware goes by itself.
enum Hardware {
    /// There is something for a host.
    News(u64),
    /// The event at this place is for software.
    Software(u32),
    /// Nothing more is due, or it has done as much as it may in one go.
    AtRest,
}

/// Handles what is due until then, each at its time, as long as it concerns the hardware alone.
fn run_hardware(machine: &mut Machine, until_ns: u64, stop_at_completion: bool, events: &mut usize) -> Hardware {
    while *events < EVENTS_A_RUN_MAX {
        let Some((now_ns, due)) = machine.events.due(machine.now_ns, until_ns.min(machine.flash_next_ns())) else {
            if machine.flash_next_ns() > until_ns || machine.flash_next_ns() == u64::MAX {
                return Hardware::AtRest;
            }
            // Dies and buses go on after what else is due at that time.
            *events += 1;
            machine.flash_due();
            let now_ns = machine.now_ns;
            machine.begin_deferred(now_ns);
            continue;
        };
        *events += 1;
        (machine.now_ns, machine.bridge.now_ns) = (now_ns, now_ns);
        let place = match due {
            Due::Tick(word) => {
                machine.tick(word);
                continue;
            }
            Due::Alarm(group) => {
                machine.end_one(group, 0, None);
                continue;
            }
            Due::Held(place) => place,
            Due::Ready => match machine.events.pop_ready() {
                Some(event) => machine.events.hold(|| event),
                None => continue,
            },
        };
        match machine.events.held_at(place) {
            Some(Event::Deliver { .. } | Event::Complete(_) | Event::Processor { .. } | Event::Resume { .. }) => {
                return Hardware::Software(place);
            }
            Some(&Event::Response { transfer, outcome, result }) => {
                machine.events.release(place);
                machine.bridge.end_rpc(transfer, outcome, result);
            }
            Some(&Event::DmaData(dma)) => {
                machine.events.release(place);
                machine.dma_data(&dma);
                continue;
            }
            _ => match machine.events.take(place) {
                None | Some(Event::Streamed) => continue,
                Some(event) => machine.arrived(event),
            },
        }
        machine.begin_deferred(now_ns);
        if stop_at_completion && machine.bridge.has_news() {
            return Hardware::News(now_ns);
        }
    }
    Hardware::AtRest
}

/// What an event brings.
enum Next {
    /// This activity begins.
    Start(Key),
    /// A handler goes on after this wait.
    Go(Wait),
    /// A run that made way goes on.
    Resume { spu: u16, app: AppNumber, incarnation: u32 },
    /// What the event at this place says.
    Aside(u32),
}

/// An SPU's processor.
#[derive(Default)]
struct Processor {
    /// Until when it runs what it has begun.
    free_ns: u64,
    /// Places of events that wait for it; while one does, an [`Event::Processor`] is scheduled.
    queue: FairQueue<u32>,
}

impl Processor {
    /// Has the machine say when it is free for what waits for it.
    fn wake(&self, machine: &mut Machine, spu: u16) {
        if !self.queue.is_empty() {
            machine.events.push_at(self.free_ns.max(machine.now_ns), Event::Processor { spu });
        }
    }

    /// A handler has run: the processor is taken for as long as the model says, and what it asked for begins then.
    #[inline(always)]
    fn ran(&mut self, machine: &mut Machine, spu: u16, instructions: Option<u64>, started: Option<u32>) {
        self.free_ns = machine.processor_ran(self.free_ns, spu, instructions, started);
    }
}

/// The drive of modelled time.
pub(super) struct Modelled {
    processors: Vec<Processor>,
    /// Instructions of apps since the run began.
    run_instructions: u64,
    /// When the handler's run that was handled last ends.
    ran_until_ns: u64,
    /// The last run did as much as one may, and there is more to do.
    has_more: bool,
    /// How far modelled time is behind the driver's.
    pub slip: Slip,
}

impl Drive for Modelled {
    #[inline(always)]
    fn ran(&mut self, machine: &mut Machine, run: &Run) {
        let &Run { spu, account, started, instructions, metered, work, dma_bytes } = run;
        self.run_instructions += instructions + work;
        // A processor's time is what the model says, and what SPU-OS does takes none of it.
        let units = machine.bridge.accounts.charge(account, (instructions, 0), dma_bytes);
        let processor = &mut self.processors[spu as usize];
        processor.queue.charge(account, units);
        processor.ran(machine, spu, metered.then_some(instructions), started);
        self.ran_until_ns = processor.free_ns;
    }
}

impl Modelled {
    pub fn new(spus: u16) -> Self {
        Modelled {
            processors: (0..spus).map(|_| Processor::default()).collect(),
            run_instructions: 0,
            ran_until_ns: 0,
            has_more: false,
            slip: Slip::default(),
        }
    }

    /// For a driver of the real clock: does what is due when it is `now_ns` for the driver. Where that is more than the machine can do, modelled time
    /// waits, so that what hosts ask for next is not behind all of it.
    pub fn run_with(&mut self, core: &mut Core, now_ns: u64) -> Option<u64> {
        let until_ns = self.slip.modelled_ns(now_ns);
        let wake_ns = self.run(core, until_ns, false);
        if !self.has_more {
            return wake_ns.map(|at_ns| self.slip.driver_ns(at_ns));
        }
        if let Some(waited_ns) = self.slip.falls_behind(now_ns, until_ns.saturating_sub(core.machine.now_ns)) {
            core.punctuality.waited(now_ns, waited_ns);
        }
        Some(now_ns)
    }

    /// Does all that is due until `until_ns`, up to a bound, or stops at the first completion; returns when it wants to be called again, if
    /// it knows.
    pub fn run(&mut self, core: &mut Core, until_ns: u64, stop_at_completion: bool) -> Option<u64> {
        (self.run_instructions, self.has_more) = (0, false);
        let instructions_max = if stop_at_completion { INSTRUCTIONS_TO_COMPLETION_MAX } else { INSTRUCTIONS_A_RUN_MAX };
        let mut events = 0;
        {
            let machine = &mut *core.machine;
            let now_ns = machine.now_ns;
            // What came about between two runs (an aborted request) begins now.
            machine.begin_deferred(now_ns.max(machine.host_now_ns()));
        }
        loop {
            while events < EVENTS_A_RUN_MAX && self.run_instructions < instructions_max {
                let next = run_hardware(&mut core.machine, until_ns, stop_at_completion, &mut events);
                match next {
                    Hardware::News(now_ns) => return Some(now_ns),
                    Hardware::AtRest => break,
                    Hardware::Software(place) => {
                        self.ran_until_ns = 0;
                        self.handle(core, place);
                    }
                }
                if core.machine.delegates() && core.machine.media.store.has_news() {
                    self.collect_store(core);
                }
                let machine = &mut *core.machine;
                let now_ns = machine.now_ns;
                machine.begin_deferred(now_ns);
                if stop_at_completion && machine.bridge.has_news() {
                    return Some(now_ns);
                }
            }
            if events >= EVENTS_A_RUN_MAX || self.run_instructions >= instructions_max {
                self.has_more = true;
                // A device that has fallen behind may always have more to do than this: the store and the control service are not to wait for its end.
                core.collect_store();
                let now_ns = core.machine.now_ns;
                core.serve_control(now_ns);
                core.machine.begin_deferred(now_ns);
                return Some(until_ns.min(core.machine.next_ns().unwrap_or(until_ns)));
            }
            {
                let machine = &mut *core.machine;
                if !stop_at_completion {
                    machine.now_ns = machine.now_ns.max(until_ns);
                    machine.host_time_is(until_ns);
                    machine.bridge.now_ns = machine.now_ns;
                }
            }
            core.collect_store();
            let now_ns = core.machine.now_ns;
            let more = core.serve_control(now_ns);
            self.run_instructions += core.machine.take_beside_cost();
            // Also where nothing came of it, as under the free clock.
            events += 1;
            let machine = &mut *core.machine;
            machine.begin_deferred(now_ns);
            let due = !machine.is_at_rest() || machine.next_ns().is_some_and(|at_ns| at_ns <= until_ns);
            if !more && !due {
                break;
            }
        }
        [core.machine.next_ns(), core.deadline_ns()].into_iter().flatten().min()
    }

    /// An FTL is asked, or has answered, in the run that was just handled: what follows begins when that run has ended.
    #[cold]
    fn collect_store(&mut self, core: &mut Core) {
        core.collect_store();
        let at_ns = self.ran_until_ns.max(core.machine.now_ns);
        core.machine.begin_deferred(at_ns);
    }

    /// What concerns handlers, processors or the control service.
    #[inline(always)]
    fn handle(&mut self, core: &mut Core, place: u32) {
        let (next, woken) = {
            let machine = &mut *core.machine;
            let (place, woken) = match machine.events.held_at(place) {
                // A processor is free: the next that waits for it.
                Some(&Event::Processor { spu }) => {
                    machine.events.release(place);
                    let Some(place) = self.processors[spu as usize].queue.pop() else { return };
                    (place, Some(spu))
                }
                _ => (place, None),
            };
            let what = match machine.events.held_at(place) {
                Some(Event::Complete(Completion { of, memory: None })) => Some((of.spu, of.account, Next::Go(*of))),
                Some(Event::Complete(Completion { of, .. })) => Some((of.spu, of.account, Next::Aside(place))),
                Some(&Event::Deliver { token }) => {
                    let activity = machine.activity_at(token).filter(|activity| activity.app != CONTROL_APP);
                    activity.map(|activity| (activity.spu, activity.account, Next::Start(token)))
                }
                Some(&Event::Resume { spu, app, incarnation }) => {
                    let account = machine.account_of_suspended(app, spu, incarnation);
                    account.map(|account| (spu, account, Next::Resume { spu, app, incarnation }))
                }
                _ => None,
            };
            match what {
                None => (Next::Aside(place), woken),
                Some((spu, account, next)) => {
                    // For a processor: now, where that is free and nothing came before it.
                    let processor = &mut self.processors[spu as usize];
                    let was_empty = processor.queue.is_empty();
                    if woken.is_none() && (!was_empty || processor.free_ns > machine.now_ns) {
                        processor.queue.push(account, place);
                        if was_empty {
                            processor.wake(machine, spu);
                        }
                        return;
                    }
                    if !matches!(next, Next::Aside(_)) {
                        // The usual ones own nothing and are not moved.
                        machine.events.release(place);
                    }
                    (next, woken)
                }
            }
        };
        match next {
            Next::Start(token) => core.machine.deliver(self, token),
            Next::Go(of) => core.machine.complete(self, &of, None),
            Next::Resume { spu, app, incarnation } => {
                core.machine.resume(self, (app, spu), incarnation);
                self.run_instructions += core.machine.take_beside_cost();
            }
            Next::Aside(place) => self.handle_aside(core, place),
        }
        if let Some(spu) = woken {
            self.processors[spu as usize].wake(&mut core.machine, spu);
        }
    }

    /// What is for the control service, or has something for an app's memory.
    #[cold]
    fn handle_aside(&mut self, core: &mut Core, place: u32) {
        let event = core.machine.events.take(place);
        match event {
            Some(Event::Deliver { token }) if core.machine.is_for_control(token) => core.handle_control(token),
            Some(Event::Complete(Completion { of, memory })) => core.machine.complete(self, &of, memory),
            _ => {}
        }
    }
}
