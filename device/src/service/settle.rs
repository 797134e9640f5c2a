//! Apps that carry out writes after they have answered, since they keep a log (the manifest's line `settles=1`): what they owe is waited for.
//!
//! What always holds:
//! - At the device's start no request of a host begins before each such app has answered STARTED: nobody sees a write half done that
//!   a stop interrupted. So also when one is started anew ([`super::revive`]). One that takes longer than [`START_NS_MAX`] is waited for no
//!   longer, and the log says so.
//! - A revocation is answered when each such app has answered REVOKED, and then what is under way has ended. One that traps meanwhile is
//!   started anew and asked again, [`ASKED_MAX`] times; then what it owes is given up. Where one does not answer in time, or refuses, the
//!   revocation is refused; the rights are gone all the same, and who asked asks again.
//! - Only apps that no user installed are waited for.

use super::change::{Change, Refusal};
use super::core::Core;
use super::ftl::STARTS_MAX;
use super::transaction::{Asker, Transaction, Work};
use super::{DRAIN_NS_MAX, START_NS_MAX, Shutdown};
use crate::hre::HreId;
use crate::interconnect::Key;
use crate::media::store::StoreError;
use crate::request::AppNumber;
use crate::service::control::ControlStatus;
use crate::spu::abi;
use crate::spu::continuation::Continuation;
use crate::spu::os::{Admission, error_of};
use std::collections::BTreeMap;

/// How often an app is asked that traps each time.
pub(super) const ASKED_MAX: u32 = 3;
/// Stands for all processes.
pub(super) const ALL_PROCESSES: u32 = 0;

/// The start of the device or of an app, while apps are waited for.
#[derive(Default)]
pub(super) struct Starting {
    /// What each of them has to answer.
    waits: BTreeMap<u32, AppNumber>,
    deadline_ns: u64,
    /// How often each has been started anew since it last came up.
    tries: BTreeMap<AppNumber, u32>,
}

/// A revocation that waits for apps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settling {
    process: u32,
    has_ended: bool,
    /// REVOKED is sent; else apps that start are waited for.
    is_asked: bool,
    /// How often that was.
    asked: u32,
    /// Traps of such apps until it was.
    traps: u64,
    /// The one that has trapped since.
    trapped: Option<AppNumber>,
}

impl Starting {
    /// When it is waited for no longer.
    pub fn deadline_ns(&self) -> Option<u64> {
        (!self.waits.is_empty()).then_some(self.deadline_ns)
    }

    /// True while apps are waited for.
    pub fn is_under_way(&self) -> bool {
        !self.waits.is_empty()
    }

    /// Another version of an app is there, or nothing is owed by it any more.
    pub fn forget(&mut self, number: AppNumber) {
        self.tries.remove(&number);
    }

    /// Whether an app that has ended is to be started once more; counts it.
    pub fn may_try(&mut self, number: AppNumber) -> bool {
        let tries = self.tries.entry(number).or_default();
        *tries += 1;
        *tries <= STARTS_MAX
    }
}

impl Core {
    /// Tells an app that its instances are up, at the device's start.
    pub(super) fn tell_started(&mut self, number: AppNumber) {
        let settles = self.machine.app_at(number).is_some_and(|app| app.settles);
        let watch = (settles && self.machine.ftl() != Some(number)).then(|| self.wait_for_start(number));
        self.announce_start(number, watch);
    }

    /// An app is in its place and is told to start; `watch` counts its instances' answers. The FTL's are counted by what keeps it.
    pub(super) fn announce_start(&mut self, number: AppNumber, watch: Option<u32>) {
        match self.machine.ftl() {
            Some(ftl) if ftl == number => self.start_ftl(number),
            _ => self.send_event(number, &[abi::EVENT_STARTED], watch),
        }
    }

    /// Has hosts' requests wait for an app's start; what that answers to.
    pub(super) fn wait_for_start(&mut self, number: AppNumber) -> u32 {
        let watch = self.service.key();
        self.service.starting.waits.insert(watch, number);
        self.service.starting.deadline_ns = self.machine.now_ns + START_NS_MAX;
        watch
    }

    /// Hosts' requests wait for apps whose start is waited for. What serves the banks goes on.
    pub(super) fn hold_until_settled(&mut self) {
        if self.service.starting.waits.is_empty() {
            return;
        }
        let ftl = self.machine.media.store.served_by().map(str::to_owned);
        let open = self.machine.apps().filter(|(_, app)| app.admission == Admission::Open);
        let all = open.filter(|(_, app)| !ftl.as_deref().is_some_and(|ftl| app.is_ftl(ftl)));
        let numbers: Vec<AppNumber> = all.map(|(number, _)| number).collect();
        for number in numbers {
            self.machine.hold_requests(number, Admission::Begun);
        }
    }

    /// All of an app's instances have answered an event; true where it was one of these.
    pub(super) fn started_or_not(&mut self, watch: u32, refusal: Option<u32>) -> bool {
        let Some(number) = self.service.starting.waits.remove(&watch) else { return false };
        if refusal.is_none() && self.machine.is_running(number) {
            self.service.starting.forget(number);
        }
        if let (Some(status), Some(app)) = (refusal, self.machine.app_at(number)) {
            tracing::error!(
                "app {} answered STARTED with status {status}: what it had begun may be half done",
                app.name
            );
        }
        self.end_start_unless_waiting();
        true
    }

    /// An app whose start is waited for does not start.
    pub(super) fn start_has_failed(&mut self, watch: u32) {
        self.service.starting.waits.remove(&watch);
        self.end_start_unless_waiting();
    }

    fn end_start_unless_waiting(&mut self) {
        if self.service.starting.waits.is_empty() {
            self.end_start();
        }
    }

    /// Gives up waiting for apps that take too long to start; true where that was so.
    pub(super) fn poll_start(&mut self, now_ns: u64) -> bool {
        if self.service.starting.deadline_ns().is_none_or(|deadline_ns| now_ns < deadline_ns) {
            return false;
        }
        for number in std::mem::take(&mut self.service.starting.waits).into_values() {
            let name = self.machine.app_at(number).map_or("", |app| &app.name);
            let seconds = START_NS_MAX / 1_000_000_000;
            tracing::error!(
                "app {name} has not answered STARTED within {seconds} s: what it had begun may be half done"
            );
        }
        self.end_start();
        true
    }

    fn end_start(&mut self) {
        if self.service.shutdown != Shutdown::No {
            // They are released by nobody any more.
            return;
        }
        let held =
            self.machine.apps().filter(|(_, app)| app.admission != Admission::Open && !self.is_changing(&app.name));
        let numbers: Vec<AppNumber> = held.map(|(number, _)| number).collect();
        for number in numbers {
            self.machine.release_requests(number);
        }
    }

    /// Apps that are to be told of revocations.
    fn settlers(&self) -> Vec<AppNumber> {
        let running = self.machine.apps().filter(|(_, app)| app.settles && app.ended.is_none());
        running.map(|(number, _)| number).collect()
    }

    /// How often such apps have trapped.
    fn settlers_traps(&self) -> u64 {
        self.machine.apps().filter(|(_, app)| app.settles).map(|(_, app)| app.counters.traps).sum()
    }

    /// Rights of a process, or of all, have ended; nobody waits for what apps owe.
    pub(super) fn tell_revoked(&mut self, process: u32, has_ended: bool) {
        for number in self.settlers() {
            self.send_event(number, &[abi::EVENT_REVOKED, process, has_ended.into()], None);
        }
    }

    /// Rights of a process, or of all, have ended: answers when nothing is owed and nothing is under way that they allowed.
    pub(super) fn answer_settled(&mut self, token: Key, hre: HreId, (process, has_ended): (u32, bool)) {
        let owes = self.machine.apps().any(|(_, app)| app.settles);
        if !owes || self.service.shutdown > Shutdown::Draining {
            return match self.machine.media.in_flight() {
                0 => self.answer(token, hre, Ok(0)),
                _ => self.machine.media.fence(Continuation::Answer { token, hre }),
            };
        }
        let settling = Settling { process, has_ended, is_asked: false, asked: 0, traps: 0, trapped: None };
        if let Some(key) = self.transact(Asker::Request { token, hre }, Change::Nothing, Work::Settling(settling)) {
            self.ask_settlers(key);
        }
    }

    fn settling(&mut self, key: u32) -> Option<&mut Settling> {
        match self.service.transactions.get_mut(&key) {
            Some(Transaction { work: Work::Settling(settling), .. }) => Some(settling),
            _ => None,
        }
    }

    /// Has a revocation wait for apps that start, then asks all; what does not come back is given up first.
    pub(super) fn ask_settlers(&mut self, key: u32) {
        // What has trapped just now is on its way back before it is looked at.
        self.revive_settlers();
        if !self.service.starting.waits.is_empty() {
            return self.wait_for_app(key, None, START_NS_MAX);
        }
        if let Some(&mut Settling { asked: ASKED_MAX.., trapped: Some(number), .. }) = self.settling(key) {
            self.service.starting.tries.insert(number, STARTS_MAX);
            if self.machine.is_running(number) {
                self.machine.trapped(number, 0, "it trapped each time that it was told of a revocation");
            }
        }
        if let Some(name) = self.lost_settler() {
            if self.service.shutdown != Shutdown::No {
                let text = format!("app {name} has ended and may still have to write there, and the device ends");
                return self.finish(key, Err(busy(text)));
            }
            return self.forfeit(key, name);
        }
        if self.machine.apps().any(|(_, app)| app.settles && app.ended.is_some()) {
            let text = "an app that may still have to write there is being replaced: try again".to_owned();
            return self.finish(key, Err(busy(text)));
        }
        let (numbers, traps) = (self.settlers(), self.settlers_traps());
        let Some(settling) = self.settling(key) else { return };
        (settling.is_asked, settling.traps) = (true, traps);
        settling.asked += 1;
        let words = [abi::EVENT_REVOKED, settling.process, settling.has_ended.into()];
        if numbers.is_empty() {
            return self.fence_settled(key);
        }
        let watch = self.service.key();
        self.wait_for_app(key, Some(watch), DRAIN_NS_MAX);
        for number in numbers {
            self.send_event(number, &words, Some(watch));
        }
    }

    /// Looks at a revocation that waits for apps; true where it went on.
    pub(super) fn poll_settling(
        &mut self,
        key: u32,
        settling: Settling,
        (is_told, is_late): (bool, bool),
        refusal: Option<u32>,
    ) -> bool {
        if !settling.is_asked {
            let is_due = self.service.starting.waits.is_empty();
            if is_due {
                self.ask_settlers(key);
            }
            return is_due;
        }
        match (is_told, refusal) {
            (true, _) if self.settlers_traps() != settling.traps => {
                // What has ended cannot have answered for all that it owes.
                let trapped = self.service.starting.waits.values().next().copied();
                if let Some(settling) = self.settling(key) {
                    (settling.is_asked, settling.trapped) = (false, trapped);
                }
                self.ask_settlers(key);
            }
            (true, None) => {
                self.service.polled.remove(&key);
                self.fence_settled(key);
            }
            (true, Some(status)) => {
                let text = format!("an app still has to write there, and cannot (status {status}): try again");
                self.finish(key, Err(busy(text)));
            }
            (false, _) if is_late => {
                let seconds = DRAIN_NS_MAX / 1_000_000_000;
                self.finish(key, Err(busy(format!("an app still has to write there after {seconds} s: try again"))));
            }
            (false, _) => return false,
        }
        true
    }

    /// Nothing is owed: all operations of the store that are under way now are waited for.
    fn fence_settled(&mut self, key: u32) {
        match self.machine.media.in_flight() {
            0 => self.finish(key, Ok(0)),
            _ => self.fence(key),
        }
    }

    /// Those have ended.
    pub(super) fn settled(&mut self, key: u32, result: Result<(), StoreError>) {
        let refused = |error| Refusal {
            status: ControlStatus::MediaFailed,
            text: format!("what was under way has not ended well: {error}"),
            error: error_of(error),
        };
        self.finish(key, result.map(|()| 0).map_err(refused));
    }
}

fn busy(text: String) -> Refusal {
    Refusal { status: ControlStatus::Busy, text, error: abi::ERROR_REFUSED }
}
