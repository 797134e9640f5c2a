//! Requests that wait for one another for ever: handlers that hold all threads of their apps, each waiting for an RPC whose handler waits for
//! such a thread. One of these RPCs is refused, so that its sender goes on.
//!
//! What always holds: where nobody is in such a circle nothing is refused. It is looked for whenever an RPC of an SPU finds no thread, which
//! is how every such circle closes; the search is charged to the account whose RPC it is.

use super::os::{Machine, Origin};
use crate::interconnect::Key;
use crate::request::RpcOutcome;
use std::collections::{BTreeMap, BTreeSet};

/// A request that is looked at in the search: it lies anywhere in memory (10 ns).
const LOOK_WORK: u64 = 40;

impl Machine {
    /// A request has come that may have found no thread: where it closes a circle, an RPC in it is refused.
    #[cold]
    pub fn break_jam(&mut self, token: Key) {
        let Some(activity) = self.activity_at(token) else { return };
        if activity.state.is_begun() || !matches!(activity.origin, Origin::Spu(_)) {
            return;
        }
        let account = activity.account;
        self.charge_account(account, self.spus[usize::from(token.spu)].activities.len() as u64 * LOOK_WORK);
        if !self.has_holders(token) {
            // Nobody has a thread: one that comes free by itself is not waited for.
            return;
        }
        self.note_walk();
        self.charge_account(account, self.activities() as u64 * LOOK_WORK);
        if !self.may_close_circle(token) {
            return;
        }
        self.note_walk();
        self.charge_account(account, self.activities() as u64 * LOOK_WORK);
        if let Some(last) = self.find_jam() {
            if let Some(app) = self.activity_at(last).map(|activity| activity.app) {
                let at = &mut self.spus[last.spu as usize];
                at.residents[app as usize].waiting.retain(|waiting| *waiting != last.key);
            }
            self.end_activity(last, RpcOutcome::Refused, 0);
        }
    }

    /// Handlers that have the threads of the app that a request waits for, on its SPU.
    fn holders(&self, token: Key) -> impl Iterator<Item = u32> {
        let app = self.activity_at(token).map(|activity| activity.app);
        let at = self.spus[usize::from(token.spu)].activities.iter();
        let holders = at.filter(move |(_, activity)| Some(activity.app) == app && activity.state.is_begun());
        holders.map(|(key, _)| key)
    }

    /// False where there are none: an app that says at each request that it has no thread is seen here.
    fn has_holders(&self, token: Key) -> bool {
        self.holders(token).next().is_some()
    }

    /// False where one of them waits for no RPC: its thread comes free by itself.
    fn may_close_circle(&self, token: Key) -> bool {
        let mut holders: BTreeSet<u32> = self.holders(token).collect();
        for (_, activity) in self.all_activities() {
            if let Origin::Spu(origin) = &activity.origin
                && origin.asked_by.spu == token.spu
            {
                holders.remove(&origin.asked_by.key);
            }
        }
        holders.is_empty()
    }

    /// The RPC that came last among those that wait in a circle.
    fn find_jam(&self) -> Option<Key> {
        // All that wait for a thread, and all handlers that wait for an RPC, until one proves able to go on.
        let mut stuck = BTreeSet::new();
        let mut asked: BTreeMap<Key, Vec<Key>> = BTreeMap::new();
        let mut holders: BTreeMap<(u16, u16), Vec<Key>> = BTreeMap::new();
        let mut waiting = Vec::new();
        for number in 0..self.apps.len() as u16 {
            for (spu, at) in self.spus.iter().enumerate() {
                let spu = spu as u16;
                let resident = &at.residents[number as usize];
                if resident.suspended.is_some() {
                    // They wait for the end of a run, which comes.
                    continue;
                }
                let queue = resident.waiting.iter();
                waiting.extend(queue.map(|key| (Key { spu, key: *key }, (number, spu))));
            }
        }
        stuck.extend(waiting.iter().map(|(token, _)| *token));
        for (token, activity) in self.all_activities() {
            if activity.state.is_begun() {
                holders.entry((activity.app, activity.spu)).or_default().push(token);
            }
            if let Origin::Spu(origin) = &activity.origin {
                asked.entry(origin.asked_by).or_default().push(token);
                stuck.insert(origin.asked_by);
            }
        }
        loop {
            let goes_on = |token: &Key| !stuck.contains(token);
            let of_waiting = waiting.iter().filter(|(token, at)| {
                stuck.contains(token) && holders.get(at).is_none_or(|holders| holders.iter().any(goes_on))
            });
            let mut free: Vec<Key> = of_waiting.map(|(token, _)| *token).collect();
            let of_handlers = asked.iter().filter(|(token, children)| {
                let started = self.activity_at(**token).is_none_or(|activity| activity.state.is_begun());
                stuck.contains(token) && started && children.iter().all(goes_on)
            });
            free.extend(of_handlers.map(|(token, _)| *token));
            if free.is_empty() {
                break;
            }
            for token in free {
                stuck.remove(&token);
            }
        }
        let nested =
            |token: &Key| self.activity_at(*token).is_some_and(|activity| matches!(activity.origin, Origin::Spu(_)));
        waiting.iter().rev().map(|(token, _)| *token).find(|token| stuck.contains(token) && nested(token))
    }
}
