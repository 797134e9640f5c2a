//! When what SPU-OS asks for ends: at once under the free clock; under a model of time, what a handler asks for begins when its run ends on
//! the processor, and ends when the model says. This file alone knows which of the two it is.
//!
//! Invariants: a message arrives once, and an operation that is done is told once, under either clock; under a model, what was asked for
//! during a run leaves in the order in which it was asked; an event that is held has exactly one way to its time, by a message or by a DMA.

use super::abi::PENDING;
use super::activity::{Caller, Origin};
use super::flash_job::Chain;
use super::group::Waiter;
use super::os::Machine;
use super::sleep::begin_sleep;
use crate::bridge::accounts::KERNEL;
use crate::interconnect::event::{EVENTS_MAX, Event, EventQueue, TimedDma};
use crate::interconnect::{Agenda, DmaKind, Endpoint, HEADER_BYTES, Key, Message, Transfer};
use crate::model::accelerator::Accelerator;
use crate::model::chosen::ChosenModel;
use crate::model::flash::FlashStep;
use crate::model::timing::{DmaStep, Timing, Work};
use crate::request::AppNumber;
use willow_flash_media::timing::{Completion, Submission};

/// The clock that SPU-OS works by.
pub(crate) enum Clock {
    /// Every step is due at once, and is done in place.
    Free,
    /// A model says when.
    Modelled(Modelled),
}

/// A model, and what is yet to be told to it.
pub(crate) struct Modelled {
    pub model: ChosenModel,
    /// What begins when the run of a handler ends.
    deferred: Vec<Deferred>,
    /// What the run has made the processor do.
    work: Work,
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
    /// An operation of flash: its job.
    Flash(u32),
}

/// A DMA begins and ends then.
#[inline(always)]
fn ends(dma: &TimedDma, (begin_ns, end_ns): (u64, u64), timing: &mut ChosenModel, events: &mut EventQueue) {
    match dma.accelerated {
        None => events.schedule(end_ns, dma.then),
        Some((accelerator, bytes)) => {
            let Transfer { spu, id, .. } = dma.transfer;
            let transfer = Transfer::accelerated(spu, accelerator, bytes.into(), id);
            let taken = TimedDma { transfer, accelerated: None, streamed: false, ..*dma };
            let place = events.hold(|| Event::DmaData(taken));
            events.schedule(end_ns, place);
        }
    }
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

impl Clock {
    /// `timing`: `None` for the free clock.
    pub fn new(timing: Option<Box<dyn Timing>>) -> Self {
        let modelled =
            |timing| Modelled { model: ChosenModel::new(timing), deferred: Vec::new(), work: Work::default() };
        timing.map_or(Clock::Free, |timing| Clock::Modelled(modelled(timing)))
    }

    /// The model, if there is one.
    pub fn model(&self) -> Option<&ChosenModel> {
        match self {
            Clock::Free => None,
            Clock::Modelled(modelled) => Some(&modelled.model),
        }
    }

    /// The same, to be changed.
    pub fn model_mut(&mut self) -> Option<&mut ChosenModel> {
        match self {
            Clock::Free => None,
            Clock::Modelled(modelled) => Some(&mut modelled.model),
        }
    }

    /// Notes what the run at work makes its processor do.
    #[inline(always)]
    pub fn note(&mut self, note: impl FnOnce(&mut Work)) {
        if let Clock::Modelled(modelled) = self {
            note(&mut modelled.work);
        }
    }
}

/// Messages.
impl Machine {
    /// Sends a message, whose arrival is `event`. `bytes`: of arguments, and of payload.
    #[inline(always)]
    pub fn transmit(
        &mut self,
        event: impl FnOnce() -> Event,
        ends: (Endpoint, Endpoint),
        bytes: impl FnOnce(&Machine) -> (u64, u64),
    ) {
        match self.clock {
            Clock::Free => self.arrived(event()),
            Clock::Modelled(_) => self.carry(event, ends, bytes),
        }
    }

    #[inline(never)]
    fn carry(
        &mut self,
        event: impl FnOnce() -> Event,
        (from, to): (Endpoint, Endpoint),
        bytes: impl FnOnce(&Machine) -> (u64, u64),
    ) {
        let (arguments_bytes, payload_bytes) = bytes(self);
        let Clock::Modelled(modelled) = &mut self.clock else { return };
        let id = self.events.hold(event);
        let header_bytes = (HEADER_BYTES + arguments_bytes) as u32;
        let message = Message { id, from, to, header_bytes, payload_bytes };
        match from {
            Endpoint::Host => modelled.model.send(self.host_now_ns, message, &mut Agenda(&mut self.events)),
            _ => {
                modelled.work.sends += u32::from(from != Endpoint::Bridge);
                modelled.deferred.push(Deferred::Message(message));
            }
        }
    }

    /// Sends a request to its SPU, as work of its account: under the free clock it is ready at once.
    #[inline(always)]
    pub fn transmit_request(&mut self, account: u16, token: Key, from: Endpoint) {
        match self.clock {
            Clock::Free => self.events.push(account, Event::Deliver { token }),
            Clock::Modelled(_) => self.carry(
                || Event::Deliver { token },
                (from, Endpoint::Spu(token.spu)),
                |machine| machine.request_bytes(token),
            ),
        }
    }

    /// Bytes of a request on the wire: of arguments, and of payload.
    #[inline(always)]
    fn request_bytes(&self, token: Key) -> (u64, u64) {
        let Some(activity) = self.activity_at(token) else { return (0, 0) };
        let payload_bytes = match &activity.origin {
            // Each of a request's RPCs brings its share of the payload.
            Origin::Host { transfer } => {
                let share = |bytes: u32, rpcs: u32| if rpcs > 1 { bytes / rpcs } else { bytes };
                let transfer = self.bridge.transfers.get(*transfer);
                transfer.map_or(0, |transfer| share(transfer.payload_bytes, transfer.outstanding).into())
            }
            Origin::Spu(origin) => origin.body.len() as u64,
            Origin::Event { .. } | Origin::Bank { .. } | Origin::Background => 0,
        };
        (activity.arguments.as_slice().len() as u64, payload_bytes)
    }

    /// A message has arrived that no handler is waited for to take.
    #[inline(always)]
    pub fn arrived(&mut self, event: Event) {
        match event {
            Event::Response { transfer, outcome, result } => self.bridge.end_rpc(transfer, outcome, result),
            Event::End { group, result, memory } => self.end_one(group, result, memory),
            Event::Upcall(posted) => self.upcall_arrived(posted),
            Event::MessagePart { handle, users } => {
                if let Some(app) = users {
                    self.spus[usize::from(handle.spu)].waits.release(app, 1);
                }
                self.message_read(handle, 0, Ok(&[]));
            }
            Event::Landed { group } => self.landed(group),
            Event::Flash { first } => self.begin_flash(first),
            Event::Remote(on) => self.remote_arrived(on),
            Event::Deliver { .. }
            | Event::Complete(_)
            | Event::DmaData(_)
            | Event::Streamed
            | Event::Processor { .. }
            | Event::Resume { .. } => {}
        }
    }

    /// Whether so many more requests may be on their way: under a model each is an event until it has arrived.
    #[inline(always)]
    pub fn takes_requests(&self, count: usize) -> bool {
        matches!(self.clock, Clock::Free) || self.events.held() + count <= EVENTS_MAX / 2
    }
}

/// Ends of operations.
impl Machine {
    /// Whether an app may begin an operation: under a model it waits for each, also for one that is done at once.
    #[inline(always)]
    pub fn may_promise(&self, caller: Caller) -> bool {
        matches!(self.clock, Clock::Free) || self.may_wait(caller)
    }

    /// Whether what is done at once is told at once.
    #[inline(always)]
    pub fn answers_now(&self) -> bool {
        matches!(self.clock, Clock::Free)
    }

    /// An operation is done whose end no group waits for: it is told now, as `at_once` says, or, where the run has moved as much as it may
    /// before others have their turn, behind what these have to do. Under a model it is told when the model's transfer has ended; without one
    /// it was the processor's work, which takes its time.
    #[inline(always)]
    pub fn tell_end(
        &mut self,
        (caller, waiter): (Caller, Waiter),
        result: i64,
        transfer: impl FnOnce(&mut Machine) -> Option<(Transfer, bool)>,
        at_once: impl FnOnce(&mut Machine) -> i32,
    ) -> i32 {
        if matches!(self.clock, Clock::Free) {
            return if self.makes_way(caller, waiter, result) { PENDING } else { at_once(self) };
        }
        match transfer(self) {
            Some(transfer) => self.wake_after(transfer, None, (caller, waiter), result),
            None => at_once(self),
        }
    }

    /// An accelerator has done its part of an operation, on what is in local memory or the request, or on what `read` brings: it is told as any operation
    /// is. Under a model the accelerator takes its time beside the processor, once the data are there; what takes no longer than telling it,
    /// the processor waits for.
    pub fn tell_accelerated(
        &mut self,
        (caller, waiter): (Caller, Waiter),
        (accelerator, bytes): (Accelerator, u64),
        (result, read): (i64, Option<Transfer>),
        at_once: impl FnOnce(&mut Machine) -> i32,
    ) -> i32 {
        let place = accelerator as u8;
        if !self.clock.model().is_some_and(|model| model.streams(place, bytes)) {
            self.clock.note(|work| work.accelerated.add(accelerator, bytes));
            return self.tell_end((caller, waiter), result, |_| read.map(|read| (read, false)), at_once);
        }
        let (transfer, accelerated) = match read {
            // One operation is shorter than that.
            Some(read) => (read, Some((place, bytes.min(u32::MAX.into()) as u32))),
            None => (Transfer::accelerated(caller.spu, place, bytes, waiter.token), None),
        };
        self.wake_after((transfer, false), accelerated, (caller, waiter), result)
    }

    /// The operations of a group have begun: under a model the end of its transfer is one more. What an FTL reads moves when that has
    /// brought it; what is written has to come before the flash takes it.
    #[inline(always)]
    pub fn group_takes(&mut self, key: Key, transfer: impl FnOnce(&mut Machine) -> (Transfer, bool)) {
        if matches!(self.clock, Clock::Free) {
            return;
        }
        let (transfer, streamed) = transfer(self);
        let delegates = self.delegates();
        let Some(group) = self.group_at_mut(key) else { return };
        match transfer.kind {
            DmaKind::NvRead | DmaKind::NvCopy { .. } if delegates => group.then = Some(Box::new((transfer, streamed))),
            _ => {
                group.remaining += 1;
                group.landing = delegates;
                let end = match delegates {
                    true => Event::Landed { group: key },
                    false => Event::End { group: key, result: 0, memory: None },
                };
                self.dma_then(transfer, streamed, || end);
            }
        }
    }

    /// Whether operations of flash take time: then an app is told of each by a completion, when the model says.
    #[inline]
    pub fn flash_takes_time(&self) -> bool {
        matches!(self.clock, Clock::Modelled(_))
    }

    /// An operation of flash begins when the run ends.
    pub fn flash_then(&mut self, job: u32) {
        if let Clock::Modelled(modelled) = &mut self.clock {
            modelled.work.dmas += 1;
            modelled.deferred.push(Deferred::Flash(job));
        }
    }

    /// A part of a message is read from NV memory: under a model the message waits for the end of that.
    pub fn message_takes(&mut self, caller: Caller, handle: Key, address: u64, bytes: u32) {
        if matches!(self.clock, Clock::Free) {
            return;
        }
        let Some(message) = self.message_at_mut(handle) else { return };
        message.pending += 1;
        let users = self.place_for_wait(caller).filter(|placed| *placed).map(|_| caller.app);
        let transfer = Transfer::read(caller.spu, address, bytes, handle.key);
        self.dma_then(transfer, false, || Event::MessagePart { handle, users });
    }

    /// Begins a DMA after this run, whose end is `event`; `streamed`: its data go to a host as they move.
    #[inline(always)]
    pub fn dma_then(&mut self, transfer: Transfer, streamed: bool, event: impl FnOnce() -> Event) {
        self.dma_and_then((transfer, streamed), None, event);
    }

    /// The same, where an accelerator takes what it has brought first.
    #[inline(always)]
    pub fn dma_and_then(
        &mut self,
        (transfer, streamed): (Transfer, bool),
        accelerated: Option<(u8, u32)>,
        event: impl FnOnce() -> Event,
    ) {
        let Clock::Modelled(modelled) = &mut self.clock else { return };
        let then = self.events.hold(event);
        modelled.work.dmas += 1;
        let place = self.events.hold(|| Event::DmaData(TimedDma { transfer, then, streamed, accelerated }));
        modelled.deferred.push(Deferred::Dma(place));
    }
}

/// Sleeps.
impl Machine {
    /// Begins a sleep: now, or, under a model, when the run ends.
    pub fn fall_asleep(&mut self, group: Key, duration_ns: u64) {
        match &mut self.clock {
            Clock::Free => {
                let until_ns = self.now_ns.saturating_add(duration_ns);
                begin_sleep(&mut self.spus, &mut self.events, group, until_ns);
            }
            Clock::Modelled(modelled) => modelled.deferred.push(Deferred::Sleep { group, duration_ns }),
        }
    }

    /// A sleep that has not begun does not begin any more.
    pub fn forget_sleep(&mut self, key: Key) {
        if let Clock::Modelled(modelled) = &mut self.clock {
            modelled.deferred.retain(|deferred| !matches!(deferred, Deferred::Sleep { group, .. } if *group == key));
        }
    }

    /// Whether what takes no time is told in place.
    pub fn tells_at_once(&self) -> bool {
        matches!(self.clock, Clock::Free)
    }
}

/// Accounts: under the free clock they meet before the processors, under a model at them.
impl Machine {
    /// Charges an account for work that is none of a run's.
    pub fn charge_account(&mut self, account: u16, cost: u64) {
        if matches!(self.clock, Clock::Free) {
            let units = self.bridge.accounts.charge_unmetered(account, cost);
            self.events.charge(account, units);
        }
    }

    /// SPU-OS did so much for an account beside its runs: charged, counted as its work, and whoever waits for the device has waited for it.
    pub fn did_for(&mut self, account: u16, cost: u64) {
        if cost > 0 {
            self.bridge.accounts.worked(account, cost);
            self.charge_account(account, cost);
            self.costs_beside(cost);
        }
    }

    /// The account under which what is ready is ordered.
    #[inline]
    pub fn ready_account(&self, account: u16) -> u16 {
        if matches!(self.clock, Clock::Free) { account } else { KERNEL }
    }

    /// Work of an account for an app that is due at once. What an FTL does for an account goes before what the account's apps have to do: it has places
    /// and locks that other accounts' operations wait for, and would keep them from these for as long as the account keeps itself busy.
    #[inline(always)]
    pub fn make_due(&mut self, account: u16, app: AppNumber, event: Event) {
        match self.clock {
            Clock::Free if self.ftl() == Some(app) => self.events.push_first(account, event),
            Clock::Free => self.events.push(account, event),
            Clock::Modelled(_) => self.events.push(KERNEL, event),
        }
    }
}

/// What the drive of modelled time asks for.
impl Machine {
    /// The model of time, if there is one.
    pub fn model(&self) -> Option<&ChosenModel> {
        self.clock.model()
    }

    /// The same, to be changed.
    pub fn model_mut(&mut self) -> Option<&mut ChosenModel> {
        self.clock.model_mut()
    }

    /// An operation of flash is begun: whether it is done, or when the model says.
    pub fn time_flash(&mut self, bank: u16, submission: &Submission<'_>) -> FlashStep {
        let now_ns = self.now_ns;
        self.model_mut().map_or(FlashStep::Done, |model| model.flash(now_ns, bank, submission))
    }

    /// When the flash goes on by itself; [`u64::MAX`]: it does not.
    pub fn flash_goes_on_ns(&self) -> u64 {
        self.model().and_then(|model| model.flash_next_ns()).unwrap_or(u64::MAX)
    }

    /// The power goes: what arrays were changing then, by its number.
    pub fn flash_under_way_at_cut(&mut self, now_ns: u64) -> Vec<u64> {
        self.model_mut().map_or(Vec::new(), |model| model.flash_cut(now_ns))
    }

    /// Lets the flash go on until then; what has ended is added to `completions`.
    pub fn advance_flash(&mut self, now_ns: u64, completions: &mut Vec<Completion>) {
        if let Some(model) = self.model_mut() {
            model.flash_advance(now_ns, completions);
        }
    }

    /// A run has ended, on a processor that was free at `free_ns`: when it is free again. What the run asked for begins then.
    #[inline(always)]
    pub fn processor_ran(&mut self, free_ns: u64, spu: u16, instructions: Option<u64>, started: Option<u32>) -> u64 {
        let now_ns = self.now_ns;
        let Clock::Modelled(Modelled { model, work, .. }) = &mut self.clock else { return free_ns };
        (work.instructions, work.dispatch, work.id) = (instructions, started.is_some(), started.unwrap_or(0));
        let free_ns = model.processor(now_ns.max(free_ns), spu, work);
        *work = Work::default();
        self.begin_deferred(free_ns);
        free_ns
    }

    /// A run has ended at `at_ns` (or something outside of a run has happened): what was asked for begins.
    #[inline(always)]
    pub fn begin_deferred(&mut self, at_ns: u64) {
        if let Clock::Modelled(modelled) = &self.clock
            && !modelled.deferred.is_empty()
        {
            self.begin_all_deferred(at_ns);
        }
    }

    fn begin_all_deferred(&mut self, at_ns: u64) {
        let Clock::Modelled(Modelled { model, deferred, work }) = &mut self.clock else { return };
        *work = Work::default();
        let mut flash = Chain::default();
        for deferred in &*deferred {
            match deferred {
                Deferred::Flash(job) => flash.push(&mut self.flash, *job),
                Deferred::Sleep { group, duration_ns } => {
                    let until_ns = at_ns.saturating_add(*duration_ns);
                    begin_sleep(&mut self.spus, &mut self.events, *group, until_ns);
                }
                Deferred::Message(message) => model.send(at_ns, *message, &mut Agenda(&mut self.events)),
                Deferred::Dma(place) => {
                    let Some(Event::DmaData(dma)) = self.events.held_at(*place) else { continue };
                    match model.dma(at_ns, &dma.transfer) {
                        DmaStep::Data(data_ns) => self.events.schedule(data_ns, *place),
                        DmaStep::Ends(end_ns) => {
                            let dma = *dma;
                            self.events.release(*place);
                            ends(&dma, (at_ns, end_ns), model, &mut self.events);
                        }
                    }
                }
            }
        }
        deferred.clear();
        if let Some(first) = flash.first() {
            self.events.push_at(at_ns, Event::Flash { first });
        }
    }

    /// The media have a DMA's data in their buffers.
    #[inline]
    pub fn dma_data(&mut self, dma: &TimedDma) {
        let now_ns = self.now_ns;
        let Some(model) = self.clock.model_mut() else { return };
        let end_ns = model.dma_data(now_ns, &dma.transfer);
        ends(dma, (now_ns, end_ns), model, &mut self.events);
    }

    /// A word of the model's.
    #[inline(always)]
    pub fn tick(&mut self, word: u32) {
        let now_ns = self.now_ns;
        if let Some(model) = self.clock.model_mut() {
            model.tick(now_ns, word, &mut Agenda(&mut self.events));
        }
    }
}
