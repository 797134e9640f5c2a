//! Delegation: an operation on a bank that an app serves, the FTL, becomes a request to that app on the bank's SPU (design of flash).
//!
//! Invariants:
//! - Permissions were checked before: an FTL is asked for what is allowed. It knows neither who asked nor on whose behalf.
//! - What an FTL does for an operation is the work of the account that asked.
//! - Each operation is answered once: by the FTL, or, where that ended while it worked on it, with a failure of the media. One that the FTL
//!   had not begun waits for the next.
//! - The FTL's instances share nothing, so one that fails ends alone: those of other SPUs go on, with all that they keep in memory.

use super::abi;
use super::activity::{Activity, Admission, Caller, Origin};
use super::dma::{Dma, End, Port};
use super::flash_map::ReadMap;
use super::gate::Behalf;
use super::os::Machine;
use super::turns::Turns;
use crate::bridge::accounts::KERNEL;
use crate::interconnect::Key;
use crate::media::delegate::{Delegated, DelegatingStore, FlashHealth, Kind, Service};
use crate::media::store::{MEDIA_FAILED, StoreError};
use crate::request::{AppNumber, Arguments, RpcOutcome};

/// The app that serves the banks, as SPU-OS knows it.
pub(crate) struct Ftl {
    /// Its number, where it is installed.
    pub(super) number: Option<AppNumber>,
    /// Operations that it has.
    handed_out: usize,
    /// How each bank does, as its FTL said last.
    health: Vec<FlashHealth>,
    /// Whose operation is next, by bank.
    pub(super) turns: Vec<Turns>,
    /// Where units lie, by bank, as its FTL has published it.
    pub(super) maps: Vec<Option<Box<ReadMap>>>,
    /// Some bank's has.
    pub(super) has_maps: bool,
}

impl Ftl {
    pub fn new(spus: u16) -> Self {
        let turns = (0..spus).map(|_| Turns::default()).collect();
        let health = vec![FlashHealth::default(); spus.into()];
        let maps = (0..spus).map(|_| None).collect();
        Ftl { number: None, handed_out: 0, health, turns, maps, has_maps: false }
    }

    /// How all banks do: of spare blocks and wear the worst.
    pub fn health(&self) -> FlashHealth {
        self.health.iter().fold(FlashHealth::default(), |all, bank| FlashHealth {
            spare_percent: all.spare_percent.min(bank.spare_percent),
            used_percent: all.used_percent.max(bank.used_percent),
            media_errors: all.media_errors.saturating_add(bank.media_errors),
            is_read_only: all.is_read_only || bank.is_read_only,
        })
    }
}

impl Machine {
    /// The app that serves the banks, where one does.
    pub fn ftl(&self) -> Option<AppNumber> {
        self.ftl.number
    }

    /// Operations that FTLs have.
    pub fn handed_out(&self) -> usize {
        self.ftl.handed_out
    }

    /// From now on a bank is served otherwise.
    pub fn set_service(&mut self, spu: u16, service: Service) {
        if let Some(store) = self.media.store.delegating() {
            store.set_service(spu.into(), service);
        }
    }

    /// How the banks do; `None` where no FTL serves them.
    pub fn flash_health(&self) -> Option<FlashHealth> {
        self.media.store.served_by().map(|_| self.ftl.health())
    }

    /// `flash_health`. What is used up is the medium's own count.
    pub(super) fn take_flash_health(&mut self, caller: Caller, told: (u32, u64, u32)) -> i32 {
        let (spare_percent, media_errors, read_only) = told;
        let bank = usize::from(caller.spu);
        let Some(used_percent) = self.port(caller).map(|store| store.used_percent(bank)) else {
            return abi::ERROR_PERMISSION;
        };
        if spare_percent > 100 || read_only > 1 {
            return abi::ERROR_ARGUMENT;
        }
        let health = FlashHealth {
            spare_percent: spare_percent as u8,
            used_percent,
            media_errors,
            is_read_only: read_only == 1,
        };
        if health.is_read_only && !self.ftl.health[bank].is_read_only {
            tracing::error!("bank {bank} is read-only from now on: too much of its flash has worn out");
        }
        self.ftl.health[bank] = health;
        0
    }

    /// Asks the FTLs for all that waits for them.
    pub fn ask_ftls(&mut self) {
        if !self.media.store.has_news() {
            return;
        }
        self.tell_erased();
        let Some(app) = self.ftl.number else { return };
        while let Some(delegated) = self.media.store.delegating().and_then(DelegatingStore::take_next) {
            let account = self.account_of_delegated(&delegated);
            if self.takes_turn(account, &delegated) && !self.ask_ftl(app, account, &delegated) {
                self.ask_next(delegated.bank, delegated.kind);
            }
        }
    }

    /// Whose work an operation is.
    fn account_of_delegated(&self, delegated: &Delegated) -> u16 {
        let pending = self.media.waiting(delegated.ticket);
        pending.and_then(|pending| self.account_of_operation(pending)).unwrap_or(KERNEL)
    }

    fn ask_ftl(&mut self, app: AppNumber, account: u16, delegated: &Delegated) -> bool {
        let &Delegated { peer, bank, kind, address, bytes, .. } = delegated;
        let handler = match kind {
            Kind::Read => abi::NV_READ_HANDLER,
            Kind::Write => abi::NV_WRITE_HANDLER,
            Kind::Zero => abi::NV_ZERO_HANDLER,
            Kind::Flush => abi::NV_FLUSH_HANDLER,
        };
        let mut words = [0; 24];
        words[0..4].copy_from_slice(&peer.to_le_bytes());
        words[8..16].copy_from_slice(&address.to_le_bytes());
        words[16..24].copy_from_slice(&bytes.to_le_bytes());
        let arguments = Arguments::new(&words).expect("24 bytes are few enough");
        let to = (app, bank as u16, handler);
        let activity = || Activity::of_device(to, account, arguments, Origin::Bank { peer });
        if self.send_here(account, bank as u16, app, activity).is_some() {
            self.ftl.handed_out += 1;
            return true;
        }
        // There is a place for each.
        if let Some(store) = self.media.store.delegating() {
            store.answered(peer, Err(StoreError::Busy));
        }
        self.stray("no place for a request to the FTL");
        false
    }

    /// An operation of a kind on a bank is no longer under way: the next whose turn it is goes to the FTL, or back to wait for one.
    fn ask_next(&mut self, bank: usize, kind: Kind) {
        while let Some(next) = self.next_turn(bank, kind) {
            let account = self.account_of_delegated(&next);
            let ftl = self.ftl.number;
            match ftl {
                Some(app) if self.ask_ftl(app, account, &next) => return,
                Some(_) => {}
                None => {
                    if let Some(store) = self.media.store.delegating() {
                        store.give_back(next.peer);
                    }
                }
            }
        }
    }

    /// Makes one segment of those that follow one another without gaps: an FTL that is asked for a whole unit need not merge its parts. Only where
    /// the range is permitted as one.
    pub fn join_segments(&mut self, caller: Caller, mut dma: Dma, behalf: Behalf) -> Dma {
        let adjoins = |end: &End| end.port == Port::Zero || end.stride == i64::from(dma.segment_bytes);
        let (true, Ok(segment_bytes)) = (adjoins(&dma.source) && adjoins(&dma.destination), u32::try_from(dma.bytes()))
        else {
            return dma;
        };
        let bytes = segment_bytes as usize;
        let permitted = match (dma.source.port, dma.destination.port) {
            (Port::Nv, Port::Nv) => false,
            (Port::Nv, _) => self.may_read(caller, behalf, dma.source.address, bytes).is_some(),
            (_, Port::Nv) => self.may_write(caller, behalf, dma.destination.address, bytes).is_some(),
            _ => false,
        };
        if permitted {
            (dma.segment_bytes, dma.segments) = (segment_bytes, 1);
        }
        dma
    }

    /// The parts of a host's write that does not begin and end at units of the FTL: what lies in its first unit, the whole units, what lies in its last.
    /// As one, it would wait for its neighbours in the units that they share, and all that follow for it. `None`: it is one part. What hosts
    /// see at once or not at all is a stripe, and no stripe is cut. What is not permitted as a whole is one part: it is refused, or asked for, as one.
    #[inline]
    pub fn cut_at_units(&mut self, caller: Caller, dma: &Dma, behalf: Behalf) -> Option<([Dma; 3], usize)> {
        let is_write = dma.source.port == Port::Network && dma.destination.port == Port::Nv;
        if !is_write || dma.segments != 1 || !self.delegates() {
            return None;
        }
        let (_, unit_bytes) = self.media.store.delegating()?.shape();
        let (start, bytes) = (dma.destination.address, u64::from(dma.segment_bytes));
        let head = (unit_bytes - start % unit_bytes) % unit_bytes;
        let is_cut = head < bytes && (head > 0 || bytes % unit_bytes > 0);
        if !is_cut || self.published.namespaces.iter().any(|namespace| u64::from(namespace.stripe_bytes) > unit_bytes) {
            return None;
        }
        self.may_write(caller, behalf, start, bytes as usize)?;
        let tail = (bytes - head) % unit_bytes;
        let (mut parts, mut count) = ([*dma; 3], 0);
        for bytes in [head, bytes - head - tail, tail].into_iter().filter(|bytes| *bytes > 0) {
            parts[count].segment_bytes = bytes as u32;
            count += 1;
        }
        (count > 1).then_some((parts, count))
    }

    /// The FTL's request for an operation, on this SPU and for this handler, has ended; it had begun with it, or not.
    pub fn bank_answered(&mut self, peer: u32, outcome: RpcOutcome, (spu, handler, begun): (u16, u8, bool)) {
        self.ftl.handed_out -= 1;
        let kind = match handler {
            abi::NV_READ_HANDLER => Kind::Read,
            abi::NV_FLUSH_HANDLER => Kind::Flush,
            _ => Kind::Write,
        };
        self.end_bank_operation(peer, outcome, begun);
        self.ask_next(spu.into(), kind);
    }

    fn end_bank_operation(&mut self, peer: u32, outcome: RpcOutcome, begun: bool) {
        let Some(store) = self.media.store.delegating() else { return };
        let result = match outcome {
            RpcOutcome::Answered { status: abi::NV_DONE } => Ok(()),
            RpcOutcome::Answered { status: abi::NV_FULL } => Err(StoreError::Full),
            RpcOutcome::AppEnded if !begun => return store.give_back(peer),
            _ => Err(MEDIA_FAILED),
        };
        if !store.answered(peer, result) {
            self.stray("the end of an operation that no FTL had");
        }
    }

    /// True for an app whose instances end one by one: the FTL, unless it is being replaced.
    pub(super) fn ends_alone(&self, number: AppNumber) -> bool {
        let is_open = |app: &super::app::AppState| app.admission == Admission::Open && app.ended.is_none();
        self.ftl.number == Some(number) && self.app_at(number).is_some_and(is_open)
    }

    /// The FTL's instance on an SPU has failed, and ends. What it had begun fails, the rest of its bank's operations wait for the next one.
    pub fn ftl_instance_ended(&mut self, spu: u16, why: &str) {
        let Some(number) = self.ftl.number else { return };
        self.set_service(spu, Service::Waiting);
        self.ftl.maps[usize::from(spu)] = None;
        self.give_turns_back(spu.into());
        self.cut_flash(spu);
        let incarnation = self.next_incarnation(number);
        self.unsuspend(number, spu);
        self.keep_dead(number, spu, why);
        let resident = &mut self.spus[spu as usize].residents[number as usize];
        resident.is_now(incarnation);
        (resident.instance, resident.permitted) = (None, (0, 0, false));
        resident.waiting.clear();
        resident.literals = Default::default();
        if let Some(app) = self.app(number) {
            tracing::warn!("app {} ended on SPU {spu}: {why}", app.name);
            app.counters.traps += 1;
            app.push_line(format!("{spu}: [SPU-OS] ended: {why}"));
        }
        for key in self.spus[spu as usize].activities.keys() {
            let token = Key { spu, key };
            if self.activity_at(token).is_some_and(|activity| activity.app == number) {
                self.end_activity(token, RpcOutcome::AppEnded, 0);
            }
        }
        self.end_own(number, spu..spu + 1);
        self.news.ftl_has_ended(spu, why);
        self.tell_app_ended(number, spu, why);
    }

    /// An app has ended on all SPUs: where it serves the banks, these wait for the next.
    pub(super) fn ftl_ended(&mut self, number: AppNumber, why: &str) {
        if self.ftl.number != Some(number) {
            return;
        }
        for spu in 0..self.config.spus {
            self.set_service(spu, Service::Waiting);
            self.ftl.maps[usize::from(spu)] = None;
            self.give_turns_back(spu.into());
            self.cut_flash(spu);
            self.news.ftl_has_ended(spu, why);
        }
    }

    /// Looks at what the FTL's instance on an SPU works on: an operation that was found there this often before, if there is one.
    pub fn overdue(&mut self, spu: u16, looks_max: u32) -> Option<Delegated> {
        let number = self.ftl.number?;
        if self.media.store.delegating().is_some_and(|store| store.waits_for_disk(spu.into())) {
            // The disk's time is not the FTL's.
            return None;
        }
        let mut overdue = None;
        for key in self.spus[spu as usize].activities.keys() {
            let Some(activity) = self.activity_at(Key { spu, key }) else { continue };
            if activity.app != number || !activity.state.is_begun() {
                continue;
            }
            let &Activity { origin: Origin::Bank { peer }, .. } = activity else { continue };
            let looked = self.media.store.delegating().and_then(|store| store.look(peer));
            overdue = overdue.or(looked.filter(|(_, looks)| *looks > looks_max).map(|(delegated, _)| delegated));
        }
        overdue
    }
}
