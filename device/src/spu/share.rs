//! What SPU-OS keeps apps and processes to: how much a handler may move between two waits, how many messages a user's app may have
//! under way, how many handlers a process may have begun on an SPU ([`crate::bridge::accounts`]).
//!
//! Invariants: what is past a budget is refused, and the next run has a budget of its own; a message's place is given back once,
//! when it is refused, given up or answered, an upcall's as well; that of a wait when the app has been told of its end, or has ended.

use super::abi;
use super::group::Group;
use super::os::{Caller, Machine};
use super::rpc::Message;
use crate::bridge::accounts::{EVENTS, KERNEL};
use crate::hre::HreId;
use crate::interconnect::Key;
use crate::interconnect::event::Event;
use crate::request::AppNumber;

impl Machine {
    /// Whether a run may move these bytes as well before others have their turn.
    #[inline]
    pub fn in_slice(&self, caller: Caller, bytes: u64) -> bool {
        self.spus[usize::from(caller.spu)].meter.in_slice(bytes)
    }

    /// Takes a place for one more operation whose end the app is to be told of; `None` where it has as many as it may. Apps that no user
    /// installed need none: what they do is bounded by the requests that they serve.
    #[inline(always)]
    pub fn place_for_wait(&mut self, caller: Caller) -> Option<bool> {
        if !self.is_users_app(caller.app) {
            return Some(false);
        }
        self.spus[usize::from(caller.spu)].waits.take(caller.app, 1).then_some(true)
    }

    /// True where an app may wait for one more operation.
    #[inline]
    pub fn may_wait(&self, caller: Caller) -> bool {
        !self.is_users_app(caller.app) || self.spus[usize::from(caller.spu)].waits.admits(caller.app, 1)
    }

    /// Whose work an event of SPU-OS for an app is.
    pub fn account_of_events(&self, app: AppNumber) -> u16 {
        self.app_at(app).and_then(|app| app.owner).map_or(KERNEL, |user| self.bridge.accounts.of_apps(user))
    }

    /// True for an app that a user installed.
    #[inline(always)]
    pub fn is_users_app(&self, app: AppNumber) -> bool {
        self.apps.get(app as usize).and_then(Option::as_ref).is_some_and(|app| app.owner.is_some())
    }

    /// Takes a place for one more message of an app; whether it is a user's, or `None` where there is none for it.
    pub fn place_for_message(&mut self, caller: Caller) -> Option<bool> {
        let most = self.config.messages_per_user_app_max;
        let users = self.app_at(caller.app)?.owner.is_some();
        let at = &mut self.spus[usize::from(caller.spu)];
        let of = &mut at.residents[usize::from(caller.app)];
        if !at.messages.has_room() || users && (of.messages >= most || !at.drafts.take(caller.app, 1)) {
            return None;
        }
        of.messages += 1;
        Some(users)
    }

    /// One of an app's has been answered, or is gone.
    pub fn message_gone(&mut self, sender: Caller) {
        let of = &mut self.spus[usize::from(sender.spu)].residents[usize::from(sender.app)];
        if of.incarnation == sender.incarnation {
            of.messages = of.messages.saturating_sub(1);
        }
    }

    /// Gives up a message that is being put together.
    pub fn remove_message(&mut self, handle: Key) {
        let Some(message) = self.take_message(handle) else { return };
        self.message_gone(message.caller);
        if let Some(group) = message.finished {
            // Its sender waits, or has ended.
            self.end_one(group, abi::ERROR_ENDED.into(), None);
        }
    }

    /// Takes a message out that was being put together.
    pub fn take_message(&mut self, handle: Key) -> Option<Message> {
        let message = self.spus[handle.spu as usize].messages.remove(handle.key)?;
        if message.users {
            self.spus[handle.spu as usize].drafts.release(message.caller.app, 1);
        }
        Some(message)
    }

    /// Takes a place for an upcall to a process; false where the process leaves as many of the app's unanswered as are left for others.
    pub fn place_for_upcall(&mut self, sender: Caller, hre: HreId) -> bool {
        let most = self.config.messages_per_user_app_max;
        let is_users = self.is_users_app(sender.app);
        let of = &mut self.spus[usize::from(sender.spu)].residents[usize::from(sender.app)];
        let at = of.upcalls_at.get(&hre.process()).copied().unwrap_or(0);
        if is_users && at > most.saturating_sub(of.messages) {
            return false;
        }
        *of.upcalls_at.entry(hre.process()).or_default() += 1;
        true
    }

    /// Ends an upcall whose answer has come, or never will: its places are free. Its group is to be ended.
    pub fn take_upcall(&mut self, id: u64) -> Option<Key> {
        let (hre, group) = self.bridge.upcalls.take(id)?;
        if let Some(sender) = self.group_at(group).map(|group| group.caller) {
            self.upcall_gone(sender, hre);
        }
        Some(group)
    }

    /// Gives the places of an upcall back.
    pub fn upcall_gone(&mut self, sender: Caller, hre: HreId) {
        self.message_gone(sender);
        let of = &mut self.spus[usize::from(sender.spu)].residents[usize::from(sender.app)].upcalls_at;
        if let Some(at) = of.get_mut(&hre.process()) {
            *at -= 1;
            if *at == 0 {
                of.remove(&hre.process());
            }
        }
    }

    /// Ends the upcalls, on their way to a host or there, that `of_it` says.
    pub fn end_upcalls(&mut self, of_it: impl Fn(HreId, &Group) -> bool, error: i32) {
        let concerned =
            |(_, hre, group): &(u64, HreId, Key)| self.group_at(*group).is_none_or(|group| of_it(*hre, group));
        let ids: Vec<u64> = self.bridge.upcalls.all().filter(concerned).map(|(id, ..)| id).collect();
        for id in ids {
            if let Some(group) = self.take_upcall(id) {
                self.end_one(group, error.into(), None);
            }
        }
    }

    /// A host's request has ended at an SPU, with a place there or before it had one: another that waits may be delivered.
    #[inline(always)]
    pub fn host_request_ended(&mut self, account: u16, spu: u16, placed: bool) {
        if account <= EVENTS {
            return;
        }
        if placed {
            self.bridge.accounts.ended(account, spu);
        }
        while let Some(key) = self.bridge.accounts.next(account, spu) {
            let token = Key { spu, key };
            // One that was taken back meanwhile is passed over.
            if self.activity_at(token).is_some() {
                return self.events.push(self.ready_account(account), Event::Deliver { token });
            }
        }
    }
}
