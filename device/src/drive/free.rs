//! The free clock: no step takes modelled time, and the device is as fast as the machine. What is ready is done in the order in which
//! accounts are to be served.
//!
//! Invariant: one run is bounded by its events and by what its handlers cost, so that the driver of the device has its say again soon.

use super::EVENTS_A_RUN_MAX;
use crate::bridge::accounts::{DMA_BYTES_A_COST, RUN_COST};
use crate::interconnect::Key;
use crate::interconnect::event::{Completion, Event};
use crate::service::core::Core;
use crate::spu::handlers::{Drive, Run};
use crate::spu::os::Machine;

/// What the handlers of one run may cost (what is under way ends its turn).
const COST_A_RUN_MAX: u64 = 1 << 18;
/// The same while several accounts have work: who came late waits for no more than this.
const COST_A_SHARED_RUN_MAX: u64 = 1 << 14;
/// How many runs after two accounts have met the device is taken for shared.
const SHARED_RUNS: u32 = 4096;
/// What a request to the control service costs whoever makes it, in instructions.
const CONTROL_COST: u64 = 50_000;

/// The drive of the free clock.
#[derive(Default)]
pub(super) struct Free {
    /// What all has cost since the run began.
    run_cost: u64,
    /// Runs until the device is one account's again.
    shared_runs: u32,
}

impl Drive for Free {
    #[inline(always)]
    fn ran(&mut self, machine: &mut Machine, run: &Run) {
        let &Run { account, instructions, work, dma_bytes, .. } = run;
        // Beside it: what its slice took longer than that.
        self.run_cost += RUN_COST + instructions + work + dma_bytes / DMA_BYTES_A_COST + machine.take_beside_cost();
        let units = machine.bridge.accounts.charge(account, (instructions, work), dma_bytes);
        machine.events.charge(account, units);
    }
}

impl Free {
    /// Does all that can be done at `now_ns`, up to a bound; returns when it wants to be called again, if it knows.
    pub fn run(&mut self, core: &mut Core, now_ns: u64) -> Option<u64> {
        core.machine.time_is(now_ns);
        self.run_cost = 0;
        self.shared_runs = self.shared_runs.saturating_sub(1);
        let mut events = 0;
        loop {
            core.collect_store();
            while events < EVENTS_A_RUN_MAX
                && self.run_cost < self.cost_max()
                && let Some(event) = {
                    let machine = &mut *core.machine;
                    if machine.events.turns() {
                        self.shared_runs = SHARED_RUNS;
                        if !machine.bridge.completions.is_empty() {
                            // The other's turn may be long: what is done is handed out first.
                            return Some(now_ns);
                        }
                    }
                    machine.events.pop(now_ns)
                }
            {
                events += 1;
                let before = self.run_cost;
                match event {
                    Event::Deliver { token } if core.machine.is_for_control(token) => {
                        self.charge_unmetered(&mut core.machine, CONTROL_COST);
                        core.handle_control(token);
                        self.run_cost += core.machine.take_beside_cost();
                    }
                    Event::Deliver { token } => self.deliver(&mut core.machine, token),
                    Event::Complete(completion) => self.complete(&mut core.machine, completion),
                    Event::Resume { spu, app, incarnation } => {
                        core.machine.resume(self, (app, spu), incarnation);
                        // What a debugger looked at meanwhile.
                        self.run_cost += core.machine.take_beside_cost();
                    }
                    // A sleep is over.
                    Event::End { group, result, memory } => {
                        let account = core.machine.account_of(group);
                        core.machine.charge_account(account, RUN_COST);
                        self.run_cost += RUN_COST;
                        core.machine.end_one(group, result, memory);
                    }
                    _ => unreachable!("only a model of time causes the other events"),
                }
                if self.run_cost == before {
                    self.charge_unmetered(&mut core.machine, 0);
                }
            }
            let more = core.serve_control(now_ns);
            self.run_cost += core.machine.take_beside_cost();
            // Also where nothing came of it: a store whose news nobody can take must not keep the driver from its say.
            events += 1;
            if events >= EVENTS_A_RUN_MAX || self.run_cost >= self.cost_max() {
                return Some(now_ns);
            }
            if !more && core.machine.is_at_rest() {
                break;
            }
        }
        [core.machine.events.next_ns(), core.deadline_ns()].into_iter().flatten().min()
    }

    /// What the handlers of one run may cost.
    #[inline]
    fn cost_max(&self) -> u64 {
        if self.shared_runs > 0 { COST_A_SHARED_RUN_MAX } else { COST_A_RUN_MAX }
    }

    /// A call of its own: in the loop it would be in the way of what is done more often.
    #[inline(never)]
    fn deliver(&mut self, machine: &mut Machine, token: Key) {
        machine.deliver(self, token);
    }

    #[inline(never)]
    fn complete(&mut self, machine: &mut Machine, Completion { of, memory }: Completion) {
        machine.complete(self, &of, memory);
    }

    /// Charges the account of the event that is handled for work that no handler did.
    fn charge_unmetered(&mut self, machine: &mut Machine, cost: u64) {
        self.run_cost += RUN_COST + cost;
        let account = machine.events.account();
        let units = machine.bridge.accounts.charge_unmetered(account, cost);
        machine.events.charge(account, units);
    }
}
