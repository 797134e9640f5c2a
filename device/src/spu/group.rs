//! Groups: what a handler waits for, one operation or several, under a number of its own choosing.
//!
//! Invariants: a group ends once, with the first failure among its operations where there was one, and when the last of them has ended; its
//! completion goes to the incarnation of the app that began it, or nowhere.

use super::abi::{self, PENDING};
use super::dma::Dma;
use super::os::{Caller, Machine};
use crate::interconnect::event::{Event, Wait};
use crate::interconnect::{Key, Transfer};

/// Who waits: a request's handler, under a number of its own choosing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiter {
    pub token: u32,
    pub wait: u32,
}

/// What a wait is for, as far as it can be cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Under {
    /// Operations that go on until they end.
    Operations,
    /// Time; the alarm, once it has begun.
    Sleep { alarm: Option<(u64, u64)> },
    /// The answer to an RPC: the request at its SPU.
    Request { token: Key },
    /// The answer to an upcall.
    Upcall { id: u64 },
}

/// A place in no list, and a key that no group has.
pub(crate) const UNLISTED: u32 = u32::MAX;

/// One wait of a handler, of one or more operations.
pub(crate) struct Group {
    pub caller: Caller,
    /// Whose work it is.
    pub account: u16,
    pub token: Option<u32>,
    pub wait: u32,
    pub remaining: u32,
    pub result: i64,
    /// It has one of its app's places.
    pub placed: bool,
    pub under: Under,
    /// Its place among what its app can cancel, or [`UNLISTED`].
    pub listed: u32,
    /// Under a model: the data that it writes have not come yet to where flash takes them from.
    pub landing: bool,
    /// Under a model: the transfer that follows when its operations have brought the data, and whether they go to a host as they move.
    pub then: Option<Box<(Transfer, bool)>>,
}

impl Machine {
    /// A new wait of a handler.
    pub fn group(&mut self, caller: Caller, token: Option<u32>, wait: u32) -> Option<Key> {
        if !self.spus[caller.spu as usize].groups.has_room() {
            return None;
        }
        let placed = self.place_for_wait(caller)?;
        let (under, listed) = (Under::Operations, UNLISTED);
        let spu = &mut self.spus[caller.spu as usize];
        let account = spu.running;
        let key = spu.groups.put(|| Group {
            caller,
            account,
            token,
            wait,
            remaining: 0,
            result: 0,
            placed,
            under,
            listed,
            landing: false,
            then: None,
        });
        if let Some(activity) = token.and_then(|token| spu.activities.get_mut(token)) {
            activity.ending.begins();
        }
        Some(caller.at(key))
    }

    /// One operation of a group has ended; the last one wakes the handler.
    pub fn end_one(&mut self, key: Key, result: i64, memory: Option<Box<(u64, Vec<u8>)>>) {
        if key.key == UNLISTED {
            // It was cancelled: nobody waits for it any more.
            return;
        }
        let Some(group) = self.group_at_mut(key) else {
            return self.stray("the end of an operation that no group waits for");
        };
        if result < 0 && group.result >= 0 || group.result == 0 {
            group.result = result;
        }
        group.remaining -= 1;
        let mut last = group.remaining == 0;
        if last && let Some(then) = group.then.take_if(|_| group.result >= 0) {
            group.remaining = 1;
            last = false;
            self.dma_then(then.0, then.1, || Event::End { group: key, result: 0, memory: None });
        }
        let Some(group) = self.group_at(key) else { return };
        let (caller, account, wait, token, result) =
            (group.caller, group.account, group.wait, group.token, group.result);
        let (placed, listed) = (group.placed && last, group.listed);
        if last {
            self.remove_group(key);
            if listed != UNLISTED {
                self.unlist(caller, listed);
            }
        }
        if last || memory.is_some() {
            // Bytes for the app's memory travel with the completion; those of earlier operations of a group go ahead of it.
            let of = Wait {
                spu: caller.spu,
                app: caller.app,
                account,
                incarnation: caller.incarnation,
                wake: last.then_some((wait, result)),
                token: token.filter(|_| last),
                placed,
            };
            self.wake(of, memory);
        }
    }

    /// A group whose operations have all been begun: pending, or, where none was, gone again.
    pub fn settle_group(&mut self, key: Key, error: i32) -> i32 {
        let Some(group) = self.group_at_mut(key) else { return abi::ERROR_ARGUMENT };
        if group.remaining > 0 {
            // The error is told when all that had begun has ended.
            group.result = i64::from(error);
            return PENDING;
        }
        let (token, placed, app) = (group.token, group.placed, group.caller.app);
        self.remove_group(key);
        if placed {
            self.spus[key.spu as usize].waits.release(app, 1);
        }
        if let Some(token) = token {
            self.drained(Key { spu: key.spu, key: token });
        }
        error
    }

    #[inline]
    fn remove_group(&mut self, key: Key) {
        self.spus[key.spu as usize].groups.remove(key.key);
    }

    pub fn group_for(&mut self, caller: Caller, dma: &Dma, group: &mut Option<Key>) -> Option<Key> {
        if group.is_none() {
            *group = self.group(caller, Some(dma.token), dma.wait);
        }
        *group
    }
}
