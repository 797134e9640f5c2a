//! What SPU-OS keeps apps and processes to: how much a handler may move between two waits, how many messages a user's app may have
//! under way, how many handlers a process may have begun on an SPU ([`crate::accounts`]).
//!
//! Invariants: what is past a budget is refused, and the next run has a budget of its own; a message's place is given back once,
//! when it is refused, given up or answered.

use super::abi::{self, DONE, PENDING};
use super::os::{Caller, Machine};
use crate::accounts::{EVENTS, KERNEL};
use crate::event::{Completion, Event, Wait};
use crate::request::AppNumber;

/// What the DMAs of one run move before it makes way for others: it goes on by a completion.
pub const DMA_SLICE_BYTES: u64 = 1 << 20;

impl Machine {
    /// Counts bytes that an import is to move; the error where they are more than one may move, or than the run may.
    #[inline]
    pub fn too_much(&mut self, caller: Caller, bytes: u64, most: u64) -> Option<i32> {
        if bytes > most {
            return Some(abi::ERROR_ARGUMENT);
        }
        let moved = self.run_dma_bytes + bytes;
        if moved > DMA_SLICE_BYTES && moved > self.dma_budget_bytes(caller.app) {
            return Some(abi::ERROR_REFUSED);
        }
        self.run_dma_bytes = moved;
        None
    }

    /// Whether a run may move these bytes as well before others have their turn.
    #[inline]
    pub fn in_slice(&self, bytes: u64) -> bool {
        self.run_dma_bytes + bytes < DMA_SLICE_BYTES
    }

    #[cold]
    fn dma_budget_bytes(&self, app: AppNumber) -> u64 {
        self.apps.get(app as usize).and_then(Option::as_ref).map_or(0, |app| app.dma_budget_bytes)
    }

    /// A DMA that is done: a run that has moved a lot is told so by a completion, behind what others have to do.
    #[inline]
    pub fn done_or_yields(&mut self, caller: Caller, token: u32, wait: u32) -> i32 {
        if self.run_dma_bytes < DMA_SLICE_BYTES {
            return DONE;
        }
        let Some(activity) = self.activities.get_mut(token) else { return DONE };
        activity.pending_dmas += 1;
        let account = self.running;
        let of = Wait {
            spu: caller.spu,
            app: caller.app,
            account,
            incarnation: caller.incarnation,
            wake: Some((wait, 0)),
            token: Some(token),
        };
        self.events.push(account, Event::Complete(Completion { of, memory: None }));
        PENDING
    }

    /// The account under which what is ready is ordered: under a model accounts meet at the processors, not before.
    #[inline]
    pub fn ready_account(&self, account: u16) -> u16 {
        if self.timing.is_some() { KERNEL } else { account }
    }

    /// Whose work an event of SPU-OS for an app is.
    pub fn account_of_events(&self, app: AppNumber) -> u16 {
        if self.is_users_app(app) { EVENTS } else { KERNEL }
    }

    /// True for an app that a user installed.
    pub fn is_users_app(&self, app: AppNumber) -> bool {
        self.apps.get(app as usize).and_then(Option::as_ref).is_some_and(|app| app.owner.is_some())
    }

    /// True where an app may have one more message.
    pub fn takes_message(&self, app: AppNumber) -> bool {
        let most = self.config.messages_per_user_app_max;
        self.apps
            .get(app as usize)
            .and_then(Option::as_ref)
            .is_some_and(|app| app.owner.is_none() || app.messages < most)
    }

    /// An app has one more.
    pub fn message_made(&mut self, app: AppNumber) {
        if let Some(app) = self.app(app) {
            app.messages += 1;
        }
    }

    /// One of an app's has been answered, or is gone.
    pub fn message_gone(&mut self, sender: Caller) {
        if let Some(app) = self.app(sender.app).filter(|app| app.incarnation == sender.incarnation) {
            app.messages = app.messages.saturating_sub(1);
        }
    }

    /// Gives up a message that is being put together.
    pub fn remove_message(&mut self, handle: u32) {
        if let Some(message) = self.messages.remove(handle) {
            self.message_gone(message.caller);
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
        while let Some(token) = self.bridge.accounts.next(account, spu) {
            // One that was taken back meanwhile is passed over.
            if self.activities.get(token).is_some() {
                return self.events.push(self.ready_account(account), Event::Deliver { token });
            }
        }
    }
}
