//! Versions of apps as SPU-OS sees them: what reaches an app that is being replaced, and what ends with a version.
//!
//! What always holds: a request that is held is begun by the version that follows, or ended when none does; where one is about to
//! follow, what a version has not begun does not end with it.

use super::abi;
use super::group::Group;
use super::os::{Activity, Admission, Machine, Origin, planted};
use crate::interconnect::Key;
use crate::request::{AppNumber, RpcOutcome};
use std::ops::Range;

impl Machine {
    /// True while an app has begun something that has not ended: requests, and messages on behalf of such. It is asked at each turn of the device: what
    /// was found once is looked at first, a host's request rather than what comes and goes on its behalf.
    pub fn is_at_work(&mut self, number: AppNumber) -> bool {
        if !self.is_running(number) {
            return false;
        }
        let seen = self.app_at(number).and_then(|app| app.at_work);
        if seen.and_then(|key| self.activity_at(key)).is_some_and(|seen| seen.app == number && self.is_begun(seen)) {
            return true;
        }
        self.note_walk();
        let begun = self.all_activities().filter(|(_, activity)| activity.app == number && self.is_begun(activity));
        let mut found = None;
        for (key, activity) in begun {
            let is_hosts = matches!(activity.origin, Origin::Host { .. });
            if is_hosts || found.is_none() {
                found = Some(key);
            }
            if is_hosts {
                break;
            }
        }
        if let Some(app) = self.app(number) {
            app.at_work = found;
        }
        found.is_some()
    }

    /// True for what was begun and is waited for: requests of hosts that have begun, events, and messages while who asked is there. What an
    /// app does in the background holds nobody up.
    pub fn is_begun(&self, activity: &Activity) -> bool {
        match &activity.origin {
            Origin::Host { .. } | Origin::Bank { .. } => activity.state.is_begun(),
            Origin::Event { .. } => true,
            Origin::Background => false,
            Origin::Spu(origin) => self.activity_at(origin.asked_by).is_some(),
        }
    }

    /// Has requests for an app wait, as `admission` says; those that found no free thread as well.
    pub fn hold_requests(&mut self, number: AppNumber, admission: Admission) {
        let Some(app) = self.apps.get_mut(number as usize).and_then(Option::as_mut) else { return };
        app.admission = admission;
        for (at, spu) in self.spus.iter_mut().enumerate() {
            let waiting = std::mem::take(&mut spu.residents[number as usize].waiting);
            for key in waiting {
                match spu.activities.get(key) {
                    Some(activity) if activity.is_held(admission) => app.held.push(Key { spu: at as u16, key }),
                    _ => spu.residents[number as usize].waiting.push_back(key),
                }
            }
        }
    }

    /// Ends the requests that wait for an app.
    pub fn end_held(&mut self, number: AppNumber, outcome: RpcOutcome) {
        let held = self.app(number).map(|app| std::mem::take(&mut app.held)).unwrap_or_default();
        for token in held {
            // One that was held when its app ended has ended with that.
            if self.activity_at(token).is_some() {
                self.end_activity(token, outcome, 0);
            }
        }
    }

    /// Ends an app: all its requests are answered with `outcome`, what it waits for is forgotten. Where another version is about to
    /// follow, requests that it has not begun wait for that.
    pub fn end_app(&mut self, number: AppNumber, reason: &str, outcome: RpcOutcome) {
        let Some(app) = self.app(number) else { return };
        let is_changing = app.admission != Admission::Open;
        app.ended = Some(reason.to_owned());
        self.forget_waits(number);
        self.ftl_ended(number, reason);
        if is_changing {
            self.hold_requests(number, Admission::Own);
        }
        for token in self.activity_keys() {
            let Some(activity) = self.activity_at(token).filter(|activity| activity.app == number) else { continue };
            if !is_changing || !activity.is_held(Admission::Own) {
                self.end_activity(token, outcome, 0);
            }
        }
        self.clear_waiting(number);
        self.end_literals(number);
        if planted!(self, KeepsPlaces) {
            return;
        }
        self.end_own(number, 0..self.config.spus);
    }

    /// What an app's instances on some SPUs have put together, sleep for and ask hosts ends.
    pub(super) fn end_own(&mut self, number: AppNumber, spus: Range<u16>) {
        self.end_messages(number, spus.clone());
        self.end_sleeps(number, spus.clone());
        let is_own = |_, group: &Group| group.caller.app == number && spus.contains(&group.caller.spu);
        self.end_upcalls(is_own, abi::ERROR_ENDED);
    }

    fn clear_waiting(&mut self, number: AppNumber) {
        self.spus.iter_mut().for_each(|spu| spu.residents[number as usize].waiting.clear());
    }

    /// What an app has put together or has finished, but not sent yet, goes.
    fn end_messages(&mut self, number: AppNumber, spus: Range<u16>) {
        for spu in spus {
            for key in self.spus[spu as usize].messages.keys() {
                let handle = Key { spu, key };
                if self.message_at_mut(handle).is_some_and(|message| message.caller.app == number) {
                    self.remove_message(handle);
                }
            }
        }
    }

    /// A version of an app is about to give way: what it still has at work, or has asked itself, is told that it ended; what waits
    /// for the app is kept for the next.
    pub fn end_version(&mut self, number: AppNumber) {
        if self.app(number).is_none() {
            return;
        }
        self.forget_waits(number);
        for token in self.activity_keys() {
            let Some(activity) = self.activity_at(token).filter(|activity| activity.app == number) else { continue };
            if !activity.is_held(Admission::Own) {
                self.end_activity(token, RpcOutcome::AppEnded, 0);
            }
        }
        self.end_own(number, 0..self.config.spus);
        if self.ftl() == Some(number) {
            (0..self.config.spus).for_each(|bank| self.cut_flash(bank));
        }
        self.hold_requests(number, Admission::Own);
        self.clear_waiting(number);
        self.end_literals(number);
    }
}
