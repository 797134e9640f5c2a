//! What an app does in its own time: sleeping, cancelling what it waits for, and work in the background.
//!
//! What always holds:
//! - a sleep is a wait like others: it has a place of its app, ends once, and goes with the version of the app that began it;
//! - what is cancelled ends once as well, with `ERROR_CANCELLED`; bytes that were to come for it do not come any more. What cannot be
//!   cancelled goes on as if nobody had asked;
//! - cancelling searches the app's own waits and those of the request's process, and is charged for that search;
//! - work in the background belongs to no request: nobody waits for it, an upgrade least of all.

use super::abi::{self, PENDING};
use super::gate::Charged;
use super::group::{Group, UNLISTED, Under};
use super::os::{Activity, Caller, Machine, Origin};
use super::unit::Spu;
use crate::interconnect::Key;
use crate::interconnect::event::{Event, EventQueue};
use crate::request::{AppNumber, Arguments};
use std::ops::Range;

/// A sleep begins that ends then.
pub(super) fn begin_sleep(spus: &mut [Spu], events: &mut EventQueue, key: Key, until_ns: u64) {
    let Some(group) = spus[usize::from(key.spu)].groups.get_mut(key.key) else { return };
    group.under = Under::Sleep { alarm: Some((until_ns, events.set_alarm(until_ns, key))) };
}

impl Machine {
    /// Notes under what number a wait may be cancelled.
    pub fn list(&mut self, key: Key, under: Under) {
        let spu = &mut self.spus[usize::from(key.spu)];
        let Some(group) = spu.groups.get_mut(key.key) else { return };
        let list = &mut spu.residents[usize::from(group.caller.app)].cancellable;
        (group.under, group.listed) = (under, list.len() as u32);
        list.push(key.key);
    }

    /// A wait that was noted has ended.
    pub fn unlist(&mut self, caller: Caller, place: u32) {
        let spu = &mut self.spus[usize::from(caller.spu)];
        let list = &mut spu.residents[usize::from(caller.app)].cancellable;
        list.swap_remove(place as usize);
        if let Some(moved) = list.get(place as usize).and_then(|key| spu.groups.get_mut(*key)) {
            moved.listed = place;
        }
    }

    /// What an app may cancel on an SPU.
    fn cancellable(&self, app: AppNumber, spu: u16) -> &[u32] {
        &self.spus[usize::from(spu)].residents[usize::from(app)].cancellable
    }

    /// `sleep`.
    pub fn sleep(&mut self, caller: Caller, duration_ns: u64, wait: u32, _: Charged) -> i32 {
        let Some(key) = self.group(caller, None, wait) else { return abi::ERROR_REFUSED };
        if let Some(group) = self.group_at_mut(key) {
            group.remaining = 1;
        }
        if duration_ns == 0 && self.tells_at_once() {
            self.end_one(key, 0, None);
        } else {
            self.list(key, Under::Sleep { alarm: None });
            self.fall_asleep(key, duration_ns);
        }
        PENDING
    }

    /// Ends a sleep before its time.
    fn end_sleep(&mut self, key: Key, alarm: Option<(u64, u64)>, result: i32) {
        match alarm {
            Some(alarm) => self.events.clear_alarm(alarm),
            None => self.forget_sleep(key),
        }
        self.end_one(key, result.into(), None);
    }

    /// An app, or a version of it, has ended: nobody sleeps there any more.
    pub fn end_sleeps(&mut self, app: AppNumber, spus: Range<u16>) {
        for spu in spus {
            for key in self.cancellable(app, spu).to_vec() {
                let key = Key { spu, key };
                if let Some(&Group { under: Under::Sleep { alarm }, .. }) = self.group_at(key) {
                    self.end_sleep(key, alarm, abi::ERROR_ENDED);
                }
            }
        }
    }

    /// Entries among which what is to be cancelled is looked for: the app's own, and those of the request's process.
    pub fn cancel_entries(&self, caller: Caller, token: u32) -> usize {
        let own = self.cancellable(caller.app, caller.spu).len();
        let resting = |activity: &Activity| {
            self.line.of(activity.account) + self.parked_of(activity.originating.process(), caller.spu)
        };
        own + self.activity_at(caller.at(token)).map_or(0, resting)
    }

    /// `cancel`.
    pub fn cancel(&mut self, caller: Caller, token: u32, wait: u32, _: Charged) -> i32 {
        let Some(activity) = self.activity_at(caller.at(token)) else { return abi::ERROR_ARGUMENT };
        let (account, process) = (activity.account, activity.originating.process());
        let cancelled = self.cancel_listed(caller, wait)
            || self.cancel_in_line(account, caller, wait)
            || self.cancel_parked(process, caller, wait);
        if cancelled { abi::DONE } else { abi::GOES_ON }
    }

    /// Cancels a sleep, an RPC or an upcall.
    fn cancel_listed(&mut self, caller: Caller, wait: u32) -> bool {
        let of_it = |group: &Group| group.caller == caller && group.wait == wait;
        let mut keys = self.cancellable(caller.app, caller.spu).iter().map(|key| caller.at(*key));
        let Some(key) = keys.find(|key| self.group_at(*key).is_some_and(of_it)) else { return false };
        let Some(under) = self.group_at(key).map(|group| group.under) else { return false };
        match under {
            Under::Operations => false,
            Under::Sleep { alarm } => {
                self.end_sleep(key, alarm, abi::ERROR_CANCELLED);
                true
            }
            Under::Request { token } => {
                // It goes on where it is; its answer is nobody's.
                let Some(Activity { origin: Origin::Spu(origin), .. }) = self.activity_at_mut(token) else {
                    return false;
                };
                if origin.group != key || origin.sender != caller {
                    // It has been answered, and the answer is on its way.
                    return false;
                }
                (origin.group.key, origin.asked_by.key) = (UNLISTED, UNLISTED);
                self.end_one(key, abi::ERROR_CANCELLED.into(), None);
                true
            }
            Under::Upcall { id } => {
                let Some(hre) = self.bridge.upcalls.of(id).map(|(hre, _)| hre) else { return false };
                if self.take_upcall(id) != Some(key) {
                    return false;
                }
                self.bridge.withdraw_upcall(hre, id);
                self.end_one(key, abi::ERROR_CANCELLED.into(), None);
                true
            }
        }
    }

    /// `background`: begins a handler of the calling app that belongs to no request.
    pub fn background(&mut self, caller: Caller, handler: u8, argument: u64, _: Charged) -> i32 {
        let account = self.account_of_events(caller.app);
        let app = self.apps[usize::from(caller.app)].as_ref();
        let arguments = Arguments::new(&argument.to_le_bytes());
        let (true, Some(arguments)) = (app.is_some_and(|app| app.has_handler[usize::from(handler)]), arguments) else {
            return abi::ERROR_ARGUMENT;
        };
        let at = &mut self.spus[usize::from(caller.spu)];
        if !at.activities.has_room() || !at.backgrounds.take(caller.app, 1) {
            return abi::ERROR_REFUSED;
        }
        let to = (caller.app, caller.spu, handler);
        let token = at.activities.put(|| Activity::of_device(to, account, arguments, Origin::Background));
        self.bridge.accounts.begin_own(account);
        // It stays on its SPU: no message carries it.
        self.events.push(self.ready_account(account), Event::Deliver { token: caller.at(token) });
        abi::DONE
    }
}
