//! Apps that are started anew: those that are waited for (`settles=1`, [`super::settle`]) and have trapped, so that what they owe is carried
//! out, and those whose owner resets them.
//!
//! What always holds:
//! - A fresh instance starts when all that the old one had at the media has ended. Until it has answered STARTED no request of a host begins,
//!   as at the device's start.
//! - Instances are made one in a turn of the device, and each is charged to who asked.
//! - One that traps [`STARTS_MAX`] times before it has started is not started again. The next revocation gives its regions up, durably:
//!   what it had begun is never carried out, and the place may be another's. So no trap keeps a revocation from being answered.
//! - An app that is being replaced or removed is the installation's or the removal's affair.

use super::Shutdown;
use super::change::{Change, Made, Refusal};
use super::core::Core;
use super::erase::Erasure;
use super::ftl::STARTS_MAX;
use super::transaction::{Asker, Transaction, Work};
use super::versions::{Making, Program, Version};
use crate::request::{AppNumber, RpcOutcome};
use crate::service::control::ControlStatus;
use crate::spu::abi;
use crate::spu::continuation::Continuation;
use crate::spu::os::{Admission, AppState};

/// What a fresh instance costs who asked for it, in instructions.
const INSTANCE_COST: u64 = 500_000;

/// An app on its way back.
pub(super) struct Revival {
    pub number: AppNumber,
    pub name: String,
    /// What it will answer STARTED to; `None`: nobody waits for that.
    watch: Option<u32>,
    /// For a debugger: what its instances are made from.
    debugged: Option<Program>,
    /// What failed for the debugger, so that the app goes on without.
    lost: Option<Refusal>,
    /// Its instances, while they are made.
    making: Option<Box<Making>>,
}

impl Revival {
    /// One for which nobody waits.
    pub fn new(number: AppNumber, name: String) -> Self {
        Revival { number, name, watch: None, debugged: None, lost: None, making: None }
    }

    /// True while its instances are made.
    pub fn makes_instances(&self) -> bool {
        self.making.is_some()
    }
}

impl Core {
    /// Begins to start apps anew that have trapped; true where there were any.
    pub(super) fn revive_settlers(&mut self) -> bool {
        let mut busy = false;
        while let Some(number) = self.machine.news.settler_ended() {
            busy = true;
            self.revive(number);
        }
        busy
    }

    /// Begins to start an app anew, where that is to be tried.
    fn revive(&mut self, number: AppNumber) {
        let Some(app) = self.machine.app_at(number).filter(|app| app.settles && app.ended.is_some()) else { return };
        let name = app.name.clone();
        if self.service.shutdown != Shutdown::No || self.is_changing(&name) {
            return;
        }
        if !self.service.starting.may_try(number) {
            tracing::error!("app {name} has ended {STARTS_MAX} times while it started: it is not started again");
            return;
        }
        let watch = self.wait_for_start(number);
        self.hold_until_settled();
        let revival = Work::Revival(Revival { watch: Some(watch), ..Revival::new(number, name) });
        if let Some(key) = self.transact(Asker::Service, Change::Nothing, revival) {
            self.fence(key);
        }
    }

    /// Ends what an app has begun, and starts it anew when all that it had at the media has ended. Requests that it had not begun wait for that.
    pub(super) fn reset(&mut self, asker: Asker, number: AppNumber, name: String) {
        // Where it did not start before, it gets all its attempts again.
        self.service.starting.forget(number);
        let settles = self.machine.app_at(number).is_some_and(|app| app.settles);
        let watch = settles.then(|| self.wait_for_start(number));
        let revival = Work::Revival(Revival { watch, ..Revival::new(number, name.clone()) });
        let Some(key) = self.transact(asker, Change::Nothing, revival) else {
            return watch.into_iter().for_each(|watch| self.start_has_failed(watch));
        };
        self.hold_until_settled();
        self.reset_with(key, number, name, None);
    }

    /// What a transaction has begun to start anew ends, so that it can; for a debugger with instances of another program.
    pub(super) fn reset_with(&mut self, key: u32, number: AppNumber, name: String, debugged: Option<Program>) {
        if let Some(Transaction { work: Work::Revival(revival), .. }) = self.service.transactions.get_mut(&key) {
            debug_assert_eq!(revival.name, name);
            revival.debugged = debugged;
        }
        let machine = &mut *self.machine;
        machine.hold_requests(number, Admission::Begun);
        machine.drop_instances(number);
        machine.end_app(number, "it is being reset", RpcOutcome::AppEnded);
        if let Some(app) = machine.app(number) {
            app.push_line("0: [SPU-OS] reset".to_owned());
        }
        self.fence(key);
    }

    /// A transaction goes on when what is under way at the media has ended.
    pub(super) fn fence(&mut self, key: u32) {
        match self.machine.media.in_flight() {
            0 => self.service.ready.push_back((Continuation::Transaction(key), Ok(()))),
            _ => self.machine.media.fence(Continuation::Transaction(key)),
        }
    }

    fn revival_of(&mut self, key: u32) -> Option<&mut Revival> {
        match self.service.transactions.get_mut(&key) {
            Some(Transaction { work: Work::Revival(revival), .. }) => Some(revival),
            _ => None,
        }
    }

    /// What the old instances had at the media has ended: the new ones are made.
    pub(super) fn revived(&mut self, key: u32) {
        let Some(revival) = self.revival_of(key) else { return };
        // What failed for the debugger is done without it.
        let debugged = revival.debugged.clone().filter(|_| revival.lost.is_none());
        let number = revival.number;
        match self.begin_again(number, debugged) {
            Ok(making) if self.machine.ftl() == Some(number) => {
                self.charge_for_instances(key, self.spus());
                let made = self.make_all(making);
                self.made_again(key, made);
            }
            Ok(making) => {
                if let Some(revival) = self.revival_of(key) {
                    revival.making = Some(Box::new(making));
                }
                self.wait_for_app(key, None, 0);
            }
            Err(why) => self.made_again(key, Err(why)),
        }
    }

    /// Makes one more of an app's fresh instances. When there are all, they take their place.
    pub(super) fn revive_one(&mut self, key: u32) {
        let Some(making) = self.revival_of(key).and_then(|revival| revival.making.take()) else { return };
        self.charge_for_instances(key, 1);
        match self.make_one(*making) {
            Ok(making) if !self.is_made(&making) => {
                if let Some(revival) = self.revival_of(key) {
                    revival.making = Some(Box::new(making));
                }
            }
            made => {
                let made = made.map(|making| self.made(making));
                self.made_again(key, made);
            }
        }
    }

    /// An app's fresh instances are made, or cannot be.
    fn made_again(&mut self, key: u32, made: Result<Version, String>) {
        self.service.polled.remove(&key);
        let Some(revival) = self.revival_of(key) else { return };
        let (number, name, watch) = (revival.number, revival.name.clone(), revival.watch);
        let is_debugged = revival.debugged.is_some();
        if let (Err(why), true) = (&made, is_debugged && revival.lost.is_none()) {
            // What fails for a debugger leaves the app at work without.
            let text = format!("app {name} is not debugged, and runs as ever: {why}");
            revival.lost = Some(Refusal { status: ControlStatus::Busy, text, error: abi::ERROR_REFUSED });
            return self.revived(key);
        }
        let lost = revival.lost.take();
        match made {
            Ok(version) => {
                tracing::warn!("app {name} is started anew");
                // Where others start as well, its requests wait with those of all.
                let waits = self.service.starting.is_under_way();
                self.enter_version(number, version, if waits { Admission::Begun } else { Admission::Open });
                if is_debugged {
                    self.leave_if_lost(number);
                }
                self.finish(key, lost.map_or(Ok(0), Err));
                self.announce_start(number, watch);
                if !waits {
                    self.machine.release_requests(number);
                }
            }
            Err(why) => {
                if let Some(app) = self.machine.app(number) {
                    app.ended = Some(why.clone());
                }
                let text = format!("app {name} could not be started anew: {why}");
                self.finish(key, Err(Refusal { status: ControlStatus::NoRoom, text, error: abi::ERROR_FULL }));
                match watch {
                    Some(watch) => self.start_has_failed(watch),
                    None if !self.service.starting.is_under_way() => self.machine.release_requests(number),
                    None => {}
                }
            }
        }
    }

    /// Fresh instances are work for who asked for them.
    pub(super) fn charge_for_instances(&mut self, key: u32, count: u16) {
        let cost = u64::from(count) * INSTANCE_COST;
        let asker = self.service.transactions.get(&key).map(|transaction| transaction.asker);
        match asker {
            Some(Asker::Request { token, .. }) => self.did_for(token, cost),
            _ => self.machine.costs_beside(cost),
        }
    }

    /// Begins to make fresh instances of an app that has ended.
    fn begin_again(&self, number: AppNumber, debugged: Option<Program>) -> Result<Making, String> {
        let program = self.programs[usize::from(number)].clone().ok_or("it never came up")?;
        let old = self.machine.app_at(number).ok_or("it is not installed any more")?;
        let mut state = AppState::new(&old.name, &old.version, old.handlers.clone(), old.module_bytes, 0);
        (state.owner, state.calls, state.footprint, state.settles) = (old.owner, old.calls, old.footprint, old.settles);
        (state.long, state.pace, state.counters, state.user_counters) =
            (old.long, old.pace, old.counters, old.user_counters);
        Ok(match debugged {
            Some(debugged) => self.begin_making_for_debugger((debugged, program), state),
            None => self.begin_making(program, state),
        })
    }

    /// An app that has ended, may owe something, and is not on its way back.
    pub(super) fn lost_settler(&self) -> Option<String> {
        let mut apps = self.machine.apps();
        let lost = apps.find(|(_, app)| app.settles && app.ended.is_some() && !self.is_changing(&app.name));
        lost.map(|(_, app)| app.name.clone())
    }

    /// A revocation waits for an app that does not come back: its regions are given up, so that it will never carry out what it owed.
    pub(super) fn forfeit(&mut self, key: u32, name: String) {
        tracing::error!("app {name} does not start: what it had begun is given up, since a revocation waits for it");
        self.service.polled.remove(&key);
        if let Some(transaction) = self.service.transactions.get_mut(&key) {
            transaction.change = Change::GiveUpRegions { app: name };
        }
        self.commit(key);
    }

    /// The regions of an app are given up, durably, or could not be.
    pub(super) fn forfeited(&mut self, key: u32, name: &str, result: Result<Made, Refusal>) {
        let ranges = match result {
            Ok(Made::GivenUp(ranges)) => ranges,
            Ok(_) => Vec::new(),
            Err(refusal) => return self.finish(key, Err(refusal)),
        };
        self.erase_all(ranges);
        let number = self.machine.find_app(name.as_bytes());
        if let Some(number) = number {
            self.service.starting.forget(number);
        }
        if let Some(app) = number.and_then(|number| self.machine.app(number)) {
            app.push_line("0: [SPU-OS] what it had begun is given up, since it does not start".to_owned());
            app.settles = false;
        }
        self.ask_settlers(key);
    }

    /// Ranges that were given up become free in the background.
    pub(super) fn erase_all(&mut self, ranges: Vec<(u64, u64)>) {
        for range in ranges {
            let erasure = Work::Erasure(Erasure::new(range));
            if let Some(key) = self.transact(Asker::Service, Change::Nothing, erasure) {
                self.begin_erasure(key, range);
            }
        }
    }
}
