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
use crate::config::MESSAGES_MAX;
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
        self.waits.take(caller.app, 1).then_some(true)
    }

    /// True where an app may wait for one more operation.
    #[inline]
    pub fn may_wait(&self, caller: Caller) -> bool {
        !self.is_users_app(caller.app) || self.waits.admits(caller.app, 1)
    }

    /// Whose work an event of SPU-OS for an app is.
    pub fn account_of_events(&self, app: AppNumber) -> u16 {
        if self.is_users_app(app) { EVENTS } else { KERNEL }
    }

    /// True for an app that a user installed.
    #[inline(always)]
    pub fn is_users_app(&self, app: AppNumber) -> bool {
        self.apps.get(app as usize).and_then(Option::as_ref).is_some_and(|app| app.owner.is_some())
    }

    /// Takes a place for one more message of an app; whether it is a user's, or `None` where there is none for it.
    pub fn place_for_message(&mut self, app: AppNumber) -> Option<bool> {
        let most = self.config.messages_per_user_app_max;
        let of = self.apps.get_mut(app as usize)?.as_mut()?;
        let users = of.owner.is_some();
        if self.held.messages >= MESSAGES_MAX || users && (of.messages >= most || !self.drafts.take(app, 1)) {
            return None;
        }
        of.messages += 1;
        Some(users)
    }

    /// One of an app's has been answered, or is gone.
    pub fn message_gone(&mut self, sender: Caller) {
        let resident = self.spus[sender.spu as usize].residents.get(sender.app as usize);
        if resident.is_some_and(|resident| resident.incarnation == sender.incarnation)
            && let Some(app) = self.app(sender.app)
        {
            app.messages = app.messages.saturating_sub(1);
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
        self.held.messages -= 1;
        if message.users {
            self.drafts.release(message.caller.app, 1);
        }
        Some(message)
    }

    /// Takes a place for an upcall to a process; false where the process leaves as many of the app's unanswered as are left for others.
    pub fn place_for_upcall(&mut self, sender: Caller, hre: HreId) -> bool {
        let key = (sender.app, hre.process());
        let at = self.upcalls_at.get(&key).copied().unwrap_or(0);
        let most = self.config.messages_per_user_app_max;
        let left = self.app(sender.app).map_or(0, |app| match app.owner {
            Some(_) => most.saturating_sub(app.messages),
            None => u32::MAX,
        });
        if at > left {
            return false;
        }
        *self.upcalls_at.entry(key).or_default() += 1;
        true
    }

    /// Ends an upcall whose answer has come, or never will: its places are free. Its group is to be ended.
    pub fn take_upcall(&mut self, id: u64) -> Option<Key> {
        let (hre, group) = self.upcalls.remove(&id)?;
        if let Some(sender) = self.group_at(group).map(|group| group.caller) {
            self.upcall_gone(sender, hre);
        }
        Some(group)
    }

    /// Gives the places of an upcall back.
    pub fn upcall_gone(&mut self, sender: Caller, hre: HreId) {
        self.message_gone(sender);
        let key = (sender.app, hre.process());
        if let Some(at) = self.upcalls_at.get_mut(&key) {
            *at -= 1;
            if *at == 0 {
                self.upcalls_at.remove(&key);
            }
        }
    }

    /// Ends the upcalls, on their way to a host or there, that `of_it` says.
    pub fn end_upcalls(&mut self, of_it: impl Fn(HreId, &Group) -> bool, error: i32) {
        let concerned =
            |(_, (hre, group)): &(&u64, &(HreId, Key))| self.group_at(*group).is_none_or(|group| of_it(*hre, group));
        let ids: Vec<u64> = self.upcalls.iter().filter(concerned).map(|(id, _)| *id).collect();
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
