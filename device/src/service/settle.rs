//! Apps that carry out writes after they have answered, since they keep a log (the manifest's line `settles=1`): what they owe is waited for.
//!
//! What always holds:
//! - At the device's start no request of a host begins before each such app has answered STARTED: nobody sees a write half done that
//!   a stop interrupted. An app that ends, or takes longer than [`START_NS_MAX`], is waited for no longer, and the log says so.
//! - A revocation is answered when each such app has answered REVOKED, and then what is under way has ended. Where one has ended and may
//!   owe something, or does not answer in time, the revocation is refused; the rights are gone all the same, and who asked asks again.
//! - Only apps that no user installed are waited for.

use super::change::{Change, Refusal};
use super::core::Core;
use super::transaction::{Asker, Work};
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

/// Stands for all processes.
pub(super) const ALL_PROCESSES: u32 = 0;

/// The device's start, while apps are waited for.
#[derive(Default)]
pub(super) struct Starting {
    /// What each of them has to answer.
    waits: BTreeMap<u32, AppNumber>,
    deadline_ns: u64,
}

impl Starting {
    /// When it is waited for no longer.
    pub fn deadline_ns(&self) -> Option<u64> {
        (!self.waits.is_empty()).then_some(self.deadline_ns)
    }
}

impl Core {
    /// Tells an app that its instances are up, at the device's start.
    pub(super) fn tell_started(&mut self, number: AppNumber) {
        if self.machine.ftl() == Some(number) {
            return self.start_ftl(number);
        }
        let settles = self.machine.app_at(number).is_some_and(|app| app.settles);
        let watch = settles.then(|| self.service.key());
        if let Some(watch) = watch {
            self.service.starting.waits.insert(watch, number);
            self.service.starting.deadline_ns = self.machine.now_ns + START_NS_MAX;
        }
        self.machine.send_event(number, &[abi::EVENT_STARTED], watch);
    }

    /// All apps are there: hosts' requests wait for those that are to be waited for. What serves the banks goes on.
    pub(super) fn hold_until_settled(&mut self) {
        if self.service.starting.waits.is_empty() {
            return;
        }
        let ftl = self.machine.media.store.served_by().map(str::to_owned);
        let all = self.machine.apps().filter(|(_, app)| !ftl.as_deref().is_some_and(|ftl| app.is_ftl(ftl)));
        let numbers: Vec<AppNumber> = all.map(|(number, _)| number).collect();
        for number in numbers {
            self.machine.hold_requests(number, Admission::Begun);
        }
    }

    /// All of an app's instances have answered an event; true where it was one of these.
    pub(super) fn started_or_not(&mut self, watch: u32, refusal: Option<u32>) -> bool {
        let Some(number) = self.service.starting.waits.remove(&watch) else { return false };
        if let (Some(status), Some(app)) = (refusal, self.machine.app_at(number)) {
            tracing::error!(
                "app {} answered STARTED with status {status}: what it had begun may be half done",
                app.name
            );
        }
        if self.service.starting.waits.is_empty() {
            self.end_start();
        }
        true
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
            self.machine.apps().filter(|(_, app)| app.admission == Admission::Begun && !self.is_changing(&app.name));
        let numbers: Vec<AppNumber> = held.map(|(number, _)| number).collect();
        for number in numbers {
            self.machine.release_requests(number);
        }
    }

    /// Apps that are to be waited for, and the name of one that has ended and may owe something.
    fn settling(&self) -> (Vec<AppNumber>, Option<String>) {
        let all = self.machine.apps().filter(|(_, app)| app.settles);
        let (running, ended): (Vec<_>, Vec<_>) = all.partition(|(_, app)| app.ended.is_none());
        let numbers = running.into_iter().map(|(number, _)| number).collect();
        (numbers, ended.first().map(|(_, app)| app.name.clone()))
    }

    /// Rights of a process, or of all, have ended; nobody waits for what apps owe.
    pub(super) fn tell_revoked(&mut self, process: u32, has_ended: bool) {
        for number in self.settling().0 {
            self.machine.send_event(number, &[abi::EVENT_REVOKED, process, has_ended.into()], None);
        }
    }

    /// Rights of a process, or of all, have ended: answers when nothing is owed and nothing is under way that they allowed.
    pub(super) fn answer_settled(&mut self, token: Key, hre: HreId, (process, has_ended): (u32, bool)) {
        let (numbers, ended) = self.settling();
        if (numbers.is_empty() && ended.is_none()) || self.service.shutdown > Shutdown::Draining {
            // Nobody owes anything.
            return match self.machine.media.in_flight() {
                0 => self.answer(token, hre, Ok(0)),
                _ => self.machine.media.fence(Continuation::Answer { token, hre }),
            };
        }
        let asker = Asker::Request { token, hre };
        let Some(key) = self.transact(asker, Change::Nothing, Work::Settling) else { return };
        if let Some(name) = ended {
            let text = format!("app {name} has ended and may still have to write there: start the device again");
            return self.finish(key, Err(busy(text)));
        }
        let watch = self.service.key();
        self.wait_for_app(key, Some(watch), DRAIN_NS_MAX);
        for number in numbers {
            self.machine.send_event(number, &[abi::EVENT_REVOKED, process, has_ended.into()], Some(watch));
        }
    }

    /// Looks at a revocation that waits for apps; true where it went on.
    pub(super) fn poll_settling(&mut self, key: u32, is_told: bool, is_late: bool, refusal: Option<u32>) -> bool {
        match (is_told, refusal) {
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
            _ => self.machine.media.fence(Continuation::Transaction(key)),
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
