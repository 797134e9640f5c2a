//! Runs of handlers: a request that has arrived, the end of what a handler waited for, what waited for a free thread.
//!
//! Invariants: an instance is out of its place while it runs, and has SPU-OS for that time; what it ran is charged to its app and SPU, and
//! whoever drives the device is told of each run; an app that traps ends on all SPUs.

use super::activity::{Activity, Admission, Caller, Origin, State};
use super::counters::SpuCounters;
use super::os::{Machine, planted};
use super::protection::may_request;
use super::{Instance, Offered, Told, abi};
use crate::interconnect::Key;
use crate::interconnect::event::{Event, Wait};
use crate::request::{AppNumber, CONTROL_APP, RpcOutcome};

/// A run of a handler that has ended: from a request, or the end of a wait, to the handler's next wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub spu: u16,
    /// Whose work it was.
    pub account: u16,
    /// The activity that it began with, if it was the first.
    pub started: Option<u32>,
    /// Instructions of the app; native code is not metered.
    pub instructions: u64,
    pub metered: bool,
    /// What SPU-OS did for the app meanwhile.
    pub work: u64,
    /// What its DMAs have moved.
    pub dma_bytes: u64,
}

/// Whoever runs SPU-OS: charges runs to their accounts, and decides what comes next.
pub(crate) trait Drive {
    /// A handler has run.
    fn ran(&mut self, machine: &mut Machine, run: &Run);
}

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
        activity.state = State::Begun;
        *running = activity.account;
        Begun { number: activity.app, spu: activity.spu, handler: activity.handler, account: activity.account }
    }
}

impl Machine {
    /// True for a request to the control service.
    #[inline]
    pub fn is_for_control(&self, token: Key) -> bool {
        self.activity_at(token).is_some_and(|activity| activity.app == CONTROL_APP)
    }

    /// A request has arrived at its SPU.
    #[inline(always)]
    pub fn deliver(&mut self, drive: &mut impl Drive, token: Key) {
        let offered = self.admit(token);
        if !offered.is_some_and(|begun| self.start(drive, token, &begun)) {
            self.break_jam(token);
        }
    }

    /// A request that has arrived begins, if it can now.
    #[inline(always)]
    fn admit(&mut self, token: Key) -> Option<Begun> {
        let at = &mut self.spus[token.spu as usize];
        let activity = at.activities.get_mut(token.key)?;
        let (number, spu, handler) = (activity.app, activity.spu, activity.handler);
        let Some(app) = self.apps.get_mut(number as usize).and_then(Option::as_mut) else {
            self.end_activity(token, RpcOutcome::NoApp, 0);
            return None;
        };
        if app.admission != Admission::Open && activity.is_held(app.admission) {
            // Also where this version has ended: another one follows.
            app.held.push(token);
            return None;
        }
        if app.ended.is_some() {
            self.end_activity(token, RpcOutcome::AppEnded, 0);
            return None;
        }
        if handler == abi::EVENT_HANDLER {
            return Some(Begun::new(&mut at.running, activity));
        }
        let (originating, from_host) = (activity.originating, matches!(activity.origin, Origin::Host { .. }));
        let is_open = originating.is_kernel() || !from_host || planted!(self, AdmitsAll);
        if !is_open && !may_request(&self.protection, app, handler, originating) {
            self.end_activity(token, RpcOutcome::NotPermitted, 0);
            return None;
        }
        if (abi::NV_READ_HANDLER..=abi::NV_FLUSH_HANDLER).contains(&handler)
            && !matches!(activity.origin, Origin::Bank { .. })
            && self.media.store.served_by().is_some_and(|ftl| app.is_ftl(ftl))
        {
            // Its peers are others' bytes.
            self.end_activity(token, RpcOutcome::NotPermitted, 0);
            return None;
        }
        if !app.has_handler[handler as usize] {
            self.end_activity(token, RpcOutcome::NoHandler, 0);
            return None;
        }
        if from_host && !activity.state.is_placed() {
            if !self.bridge.accounts.begins(activity.account, spu, token.key) {
                return None;
            }
            activity.state = State::Placed;
        }
        app.counters.requests += 1;
        at.counters.requests += 1;
        let resident = &mut at.residents[number as usize];
        if !resident.waiting.is_empty() || resident.suspended.is_some() {
            at.counters.thread_waits += 1;
            resident.waiting.push_back(token.key);
            return None;
        }
        Some(Begun::new(&mut at.running, activity))
    }

    /// Offers a request to its app; false where no thread of it is free (the request waits then) or the app has ended.
    #[inline(always)]
    fn start(&mut self, drive: &mut impl Drive, token: Key, begun: &Begun) -> bool {
        let &Begun { number, spu, handler, account } = begun;
        let Some(mut instance) = self.spus[spu as usize].take_instance(number) else {
            self.end_activity(token, RpcOutcome::AppEnded, 0);
            return false;
        };
        let taken = instance.start(self, token.key, handler);
        let (instructions, metered) = (instance.instructions(), instance.is_metered());
        self.spus[spu as usize].put_back(number, instance);
        if let Ok(Offered::Answered { status, result }) = taken {
            self.respond_to(token, status, result);
        }
        self.ran(drive, (number, spu, account), (instructions, metered), Some(token.key));
        match taken {
            Ok(Offered::Taken | Offered::Answered { .. }) => true,
            Ok(Offered::Suspended) => {
                self.suspend((number, spu, account), Some(token));
                true
            }
            Ok(Offered::NoThread) => {
                self.found_no_thread(number, token);
                false
            }
            Err(why) => {
                self.trapped(number, spu, &why);
                false
            }
        }
    }

    /// A handler has run: it is charged to its app and its SPU, and the drive is told. True where requests wait for a thread of the app.
    #[inline(always)]
    pub(super) fn ran(
        &mut self,
        drive: &mut impl Drive,
        (number, spu, account): (AppNumber, u16, u16),
        (instructions, metered): (u64, bool),
        started: Option<u32>,
    ) -> bool {
        let at = &mut self.spus[spu as usize];
        let super::meter::Metered { work, moved_bytes: dma_bytes } = at.meter.take();
        at.counters.instructions += instructions;
        let waits = !at.residents[number as usize].waiting.is_empty();
        if let Some(app) = self.apps[number as usize].as_mut() {
            app.counters.instructions += instructions;
            app.counters.host_work += work;
            app.counters.dma_bytes += dma_bytes;
        }
        drive.ran(self, &Run { spu, account, started, instructions, metered, work, dma_bytes });
        waits
    }

    /// An app's instances, by SPU.
    pub fn place_instances(&mut self, number: AppNumber, instances: Vec<Box<dyn Instance>>) {
        self.drop_instances(number);
        for (at, instance) in instances.into_iter().enumerate() {
            self.place_instance(number, at as u16, instance);
        }
    }

    /// An instance of an app, on one SPU.
    pub fn place_instance(&mut self, number: AppNumber, spu: u16, mut instance: Box<dyn Instance>) {
        let incarnation = self.next_incarnation(number);
        self.unsuspend(number, spu);
        instance.enter(Caller { app: number, spu, incarnation });
        let resident = &mut self.spus[spu as usize].residents[number as usize];
        resident.is_now(incarnation);
        resident.instance = Some(instance);
    }

    /// Whether an app has an instance on an SPU.
    pub fn has_instance(&self, number: AppNumber, spu: u16) -> bool {
        self.spus[spu as usize].memory_bytes(number.into()).is_some()
    }

    /// A number that no instance of an app had.
    pub fn next_incarnation(&mut self, number: AppNumber) -> u32 {
        let Some(app) = self.app(number) else { return 0 };
        app.incarnation = app.incarnation.wrapping_add(1);
        app.incarnation
    }

    /// What an app's instances wait for is waited for no longer.
    pub fn forget_waits(&mut self, number: AppNumber) {
        let incarnation = self.next_incarnation(number);
        for spu in &mut self.spus {
            spu.residents[number as usize].is_now(incarnation);
        }
    }

    /// Bytes of memory of an app's instances, by SPU.
    pub fn memory_bytes(&self, number: usize) -> impl Iterator<Item = u64> {
        self.spus.iter().filter_map(move |spu| spu.memory_bytes(number))
    }

    /// Counters, by SPU.
    pub fn spu_counters(&self) -> Vec<SpuCounters> {
        self.spus.iter().map(|spu| spu.counters).collect()
    }

    /// An app's instances are gone.
    pub fn drop_instances(&mut self, number: AppNumber) {
        for spu in 0..self.config.spus {
            self.unsuspend(number, spu);
        }
        for spu in &mut self.spus {
            let resident = &mut spu.residents[number as usize];
            // What was permitted was permitted to that app.
            (resident.instance, resident.permitted) = (None, (0, 0, false));
        }
    }

    /// An app ends on all SPUs.
    pub fn trapped(&mut self, number: AppNumber, spu: u16, why: &str) {
        if self.ends_alone(number) {
            return self.ftl_instance_ended(spu, why);
        }
        self.keep_dead(number, spu, why);
        self.drop_instances(number);
        if let Some(app) = self.app(number) {
            tracing::warn!("app {} ended on SPU {spu}: {why}", app.name);
            app.counters.traps += 1;
            app.push_line(format!("{spu}: [SPU-OS] ended: {why}"));
        }
        if self.app(number).is_some_and(|app| app.settles) {
            self.news.settler_has_ended(number);
        }
        let is_changing = self.app(number).is_some_and(|app| app.admission == Admission::Own);
        self.end_app(number, why, RpcOutcome::AppEnded);
        if !is_changing {
            // Else another version is about to be there.
            self.tell_app_ended(number, spu, why);
        }
    }

    /// A wait has ended: bytes go into the app's memory, and its handler goes on.
    #[inline(always)]
    pub fn complete(&mut self, drive: &mut impl Drive, of: &Wait, memory: Option<Box<(u64, Vec<u8>)>>) {
        let &Wait { spu, app: number, account, incarnation, wake, token, placed } = of;
        let at = &mut self.spus[spu as usize];
        if let Some(suspended) = &mut at.residents[number as usize].suspended {
            if suspended.keep(of, memory) && self.is_stopped(number, spu) {
                self.trapped(number, spu, "while its debugger had it stopped, more came for it than is kept");
            }
            return;
        }
        if placed {
            at.waits.release(number, 1);
        }
        at.running = account;
        if let Some(token) = token {
            self.drained(Key { spu, key: token });
        }
        if self.app(number).is_none_or(|app| app.ended.is_some()) {
            return;
        }
        let at = &mut self.spus[spu as usize];
        if at.residents[number as usize].incarnation != incarnation {
            return;
        }
        let Some(mut instance) = at.take_instance(number) else { return };
        let mut ran = match memory {
            Some(memory) => instance.bring(memory.0, memory.1).map(|()| Told::Done),
            None => Ok(Told::Done),
        };
        if let (Ok(_), Some((wait, result))) = (&ran, wake) {
            ran = instance.complete(self, wait, result);
        }
        let (instructions, metered) = (instance.instructions(), instance.is_metered());
        self.spus[spu as usize].put_back(number, instance);
        let waits = wake.is_none() || self.ran(drive, (number, spu, account), (instructions, metered), None);
        match ran {
            Ok(Told::Done) => {}
            Ok(Told::Suspended) => return self.suspend((number, spu, account), None),
            Err(why) => {
                let why: String = why;
                return self.trapped(number, spu, &why);
            }
        }
        if waits {
            self.offer_waiting(drive, number, spu);
        }
    }

    /// Offers again what found no free thread before.
    #[cold]
    pub(super) fn offer_waiting(&mut self, drive: &mut impl Drive, number: AppNumber, spu: u16) {
        loop {
            let at = &mut self.spus[spu as usize];
            if at.residents[number as usize].suspended.is_some() {
                return;
            }
            let Some(key) = at.residents[number as usize].waiting.pop_front() else { return };
            let Some(activity) = at.activities.get_mut(key) else { continue };
            let begun = Begun::new(&mut at.running, activity);
            let token = Key { spu, key };
            if !self.start(drive, token, &begun) {
                return;
            }
        }
    }

    /// All requests reach the app again; those that waited go first.
    pub fn release_requests(&mut self, number: AppNumber) {
        let Some(app) = self.app(number) else { return };
        app.admission = Admission::Open;
        let held = std::mem::take(&mut app.held);
        for token in held {
            let Some(account) = self.activity_at(token).map(|activity| activity.account) else { continue };
            self.make_due(account, number, Event::Deliver { token });
        }
    }
}
