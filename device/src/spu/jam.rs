//! Requests that wait for one another for ever: handlers that hold all threads of their apps, each waiting for an RPC whose handler waits for
//! such a thread. One of these RPCs is refused, so that its sender goes on.
//!
//! What always holds: where nobody is in such a circle nothing is refused. It is looked for whenever an RPC of an SPU finds no thread, which
//! is how every such circle closes; the search is charged to the account whose RPC it is.

use super::meter::ENTRY_WORK;
use super::os::{Machine, Origin};
use crate::interconnect::Key;
use crate::request::RpcOutcome;
use std::collections::{BTreeMap, BTreeSet};

impl Machine {
    /// A request has come that may have found no thread: where it closes a circle, an RPC in it is refused.
    #[cold]
    pub fn break_jam(&mut self, token: Key) {
        let Some(activity) = self.activity_at(token) else { return };
        if activity.state.is_begun() || !matches!(activity.origin, Origin::Spu(_)) {
            return;
        }
        let account = activity.account;
        self.charge_account(account, self.activities() as u64 * ENTRY_WORK);
        if let Some(last) = self.find_jam() {
            if let Some(app) = self.activity_at(last).map(|activity| activity.app) {
                let at = &mut self.spus[last.spu as usize];
                at.residents[app as usize].waiting.retain(|waiting| *waiting != last.key);
            }
            self.end_activity(last, RpcOutcome::Refused, 0);
        }
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
        for token in self.activity_keys() {
            let Some(activity) = self.activity_at(token) else { continue };
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
