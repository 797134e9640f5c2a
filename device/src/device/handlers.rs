//! Runs of handlers: a request that has arrived, the end of what a handler waited for, what waited for a free thread.
//!
//! Invariants: SPU-OS is unborrowed while a handler runs; what it ran is charged to its app and SPU; an app that traps ends on all
//! SPUs.

use super::{DMA_BYTES_A_COST, Device, RUN_COST};
use crate::event::Wait;
use crate::protection::may_request;
use crate::request::{AppNumber, RpcOutcome};
use crate::spu::os::{Activity, Admission, Origin};
use crate::spu::{Offered, abi};

/// A request that its app is about to be offered.
struct Begun {
    number: AppNumber,
    spu: u16,
    handler: u8,
    account: u16,
}

impl Begun {
    /// From now on it runs.
    #[inline(always)]
    fn new(running: &mut u16, activity: &mut Activity) -> Self {
        activity.started = true;
        *running = activity.account;
        Begun { number: activity.app, spu: activity.spu, handler: activity.handler, account: activity.account }
    }
}

impl Device {
    /// A request has arrived at its SPU.
    #[inline(always)]
    pub(super) fn deliver(&mut self, token: u32) {
        let offered = self.admit(token);
        if !offered.is_some_and(|begun| self.start(token, &begun)) {
            self.machine.break_jam(token);
        }
    }

    /// The same, as a call: for the free clock's loop, where it would only be in the way of what is done more often.
    #[inline(never)]
    pub(super) fn deliver_apart(&mut self, token: u32) {
        self.deliver(token);
    }

    /// A request that has arrived begins, if it can now.
    #[inline(always)]
    fn admit(&mut self, token: u32) -> Option<Begun> {
        let machine = &mut *self.machine;
        let activity = machine.activities.get_mut(token)?;
        let (number, spu, handler) = (activity.app, activity.spu, activity.handler);
        let Some(app) = machine.apps.get_mut(number as usize).and_then(Option::as_mut) else {
            machine.end_activity(token, RpcOutcome::NoApp, 0);
            return None;
        };
        if app.admission != Admission::Open && activity.is_held(app.admission) {
            // Also where this version has ended: another one follows.
            app.held.push(token);
            return None;
        }
        if app.ended.is_some() {
            machine.end_activity(token, RpcOutcome::AppEnded, 0);
            return None;
        }
        if handler == abi::EVENT_HANDLER {
            return Some(Begun::new(&mut machine.running, activity));
        }
        let (originating, from_host) = (activity.originating, matches!(activity.origin, Origin::Host { .. }));
        if !originating.is_kernel() && from_host && !may_request(&machine.protection, app, handler, originating) {
            machine.end_activity(token, RpcOutcome::NotPermitted, 0);
            return None;
        }
        if !app.has_handler[handler as usize] {
            machine.end_activity(token, RpcOutcome::NoHandler, 0);
            return None;
        }
        if from_host && !activity.placed {
            if !machine.bridge.accounts.begins(activity.account, spu, token) {
                return None;
            }
            activity.placed = true;
        }
        app.counters.requests += 1;
        machine.spus[spu as usize].requests += 1;
        let waiting = &mut app.waiting[spu as usize];
        if !waiting.is_empty() {
            machine.spus[spu as usize].thread_waits += 1;
            waiting.push_back(token);
            return None;
        }
        Some(Begun::new(&mut machine.running, activity))
    }

    /// Offers a request to its app; false where no thread of it is free (the request waits then) or the app has ended.
    #[inline(always)]
    fn start(&mut self, token: u32, begun: &Begun) -> bool {
        let &Begun { number, spu, handler, account } = begun;
        let slot = self.instances.get_mut(number as usize).and_then(|spus| spus.get_mut(spu as usize));
        let Some(instance) = slot.and_then(Option::as_mut) else {
            self.machine.end_activity(token, RpcOutcome::AppEnded, 0);
            return false;
        };
        let taken = instance.start(&mut self.machine, token, handler);
        let (instructions, metered) = (instance.instructions(), instance.is_metered());
        if let Ok(Offered::Answered { status, result }) = taken {
            self.machine.respond_to(token, status, result);
        }
        self.ran((number, spu, account), (instructions, metered), Some(token));
        match taken {
            Ok(Offered::Taken | Offered::Answered { .. }) => true,
            Ok(Offered::NoThread) => {
                let machine = &mut *self.machine;
                if let Some(activity) = machine.activities.get_mut(token) {
                    activity.started = false;
                    machine.spus[spu as usize].thread_waits += 1;
                    if let Some(app) = machine.apps[number as usize].as_mut() {
                        app.waiting[spu as usize].push_front(token);
                    }
                }
                false
            }
            Err(why) => {
                self.trapped(number, spu, &why);
                false
            }
        }
    }

    /// A handler has run: it is charged to its app, its SPU and the account whose work it was; under a model, its processor is taken for as
    /// long as that says. `started`: the activity that it began with. True where requests wait for a thread of the app.
    #[inline(always)]
    fn ran(
        &mut self,
        (number, spu, account): (AppNumber, u16, u16),
        (instructions, metered): (u64, bool),
        started: Option<u32>,
    ) -> bool {
        let machine = &mut *self.machine;
        let (dma_bytes, work) = (std::mem::take(&mut machine.run_dma_bytes), machine.meter.take());
        self.run_instructions += instructions + work;
        self.run_cost += RUN_COST + instructions + work + dma_bytes / DMA_BYTES_A_COST;
        machine.spus[spu as usize].instructions += instructions;
        let mut waits = false;
        if let Some(app) = machine.apps[number as usize].as_mut() {
            app.counters.instructions += instructions;
            app.counters.host_work += work;
            app.counters.dma_bytes += dma_bytes;
            waits = !app.waiting[spu as usize].is_empty();
        }
        // Under a model a processor's time is what the model says, and what SPU-OS does takes none of it.
        let counted = if machine.is_timed() { 0 } else { work };
        let units = machine.bridge.accounts.charge(account, (instructions, counted), dma_bytes);
        if !machine.is_timed() {
            machine.events.charge(account, units);
            return waits;
        }
        let processor = &mut self.processors[spu as usize];
        processor.queue.charge(account, units);
        processor.ran(machine, spu, metered.then_some(instructions), started);
        waits
    }

    /// Charges the account of the event that is handled for work that no handler did.
    pub(super) fn charge_unmetered(&mut self, cost: u64) {
        self.run_cost += RUN_COST + cost;
        let machine = &mut *self.machine;
        let account = machine.events.account();
        let units = machine.bridge.accounts.charge_unmetered(account, cost);
        machine.events.charge(account, units);
    }

    pub(super) fn trapped(&mut self, number: AppNumber, spu: u16, why: &str) {
        self.instances[number as usize].clear();
        let machine = &mut *self.machine;
        if let Some(app) = machine.app(number) {
            tracing::warn!("app {} ended on SPU {spu}: {why}", app.name);
            app.counters.traps += 1;
            app.push_line(format!("{spu}: [SPU-OS] ended: {why}"));
        }
        let is_changing = machine.app(number).is_some_and(|app| app.admission == Admission::Own);
        machine.end_app(number, why, RpcOutcome::AppEnded);
        if !is_changing {
            // Else another version is about to be there.
            machine.tell_app_ended(number, spu, why);
        }
    }

    /// A wait has ended: bytes go into the app's memory, and its handler goes on.
    #[inline(always)]
    pub(super) fn complete(&mut self, of: &Wait, memory: Option<Box<(u64, Vec<u8>)>>) {
        let &Wait { spu, app: number, account, incarnation, wake, token, placed } = of;
        {
            let machine = &mut *self.machine;
            if placed {
                machine.waits.release(number, 1);
            }
            machine.running = account;
            if let Some(token) = token {
                machine.drained(token);
            }
            match machine.app(number) {
                Some(app) if app.incarnation == incarnation && app.ended.is_none() => {}
                _ => return,
            }
        }
        let slot = self.instances.get_mut(number as usize).and_then(|spus| spus.get_mut(spu as usize));
        let Some(instance) = slot.and_then(Option::as_mut) else { return };
        let mut ran = match &memory {
            Some(memory) => instance.local(memory.0, memory.1.len()).map(|local| local.copy_from_slice(&memory.1)),
            None => Ok(()),
        };
        if let (Ok(()), Some((wait, result))) = (&ran, wake) {
            ran = instance.complete(&mut self.machine, wait, result);
        }
        let (instructions, metered) = (instance.instructions(), instance.is_metered());
        let waits = wake.is_none() || self.ran((number, spu, account), (instructions, metered), None);
        if let Err(why) = ran {
            return self.trapped(number, spu, &why);
        }
        if waits {
            self.offer_waiting(number, spu);
        }
    }

    /// The same, as a call.
    #[inline(never)]
    pub(super) fn complete_apart(&mut self, of: &Wait, memory: Option<Box<(u64, Vec<u8>)>>) {
        self.complete(of, memory);
    }

    /// Offers again what found no free thread before.
    #[cold]
    pub(super) fn offer_waiting(&mut self, number: AppNumber, spu: u16) {
        loop {
            let (token, begun) = {
                let machine = &mut *self.machine;
                let Some(app) = machine.apps[number as usize].as_mut() else { return };
                let Some(token) = app.waiting[spu as usize].pop_front() else { return };
                let Some(activity) = machine.activities.get_mut(token) else { continue };
                (token, Begun::new(&mut machine.running, activity))
            };
            if !self.start(token, &begun) {
                return;
            }
        }
    }
}
