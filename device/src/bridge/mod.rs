//! The bridge: the device's front. It owns the queues of the host endpoints, stamps the originating HRE on all that comes in
//! on them (Willow, section 2.6), and hands completions and upcalls back.
//!
//! Invariants: a request completes exactly once, after all its RPCs have ended; the endpoint in a message is the queue's
//! that it came in on, never a sender's word; the number of requests and upcalls an endpoint has is bounded, and that of
//! requests of a process ([`crate::bridge::accounts`]).

pub mod accounts;
mod subscriptions;
mod upcalls;

use crate::config::{PROCESSES_MAX, TRANSFERS_MAX};
use crate::hre::HreId;
use crate::request::{HostCompletion, RpcOutcome, Upcall};
use crate::shared::ReplyTo;
use crate::slab::Slab;
use accounts::{Accounts, KERNEL};
use std::collections::{BTreeMap, VecDeque};
use subscriptions::Subscriptions;
use upcalls::Upcalls;

/// Most endpoints of the host kernel at once.
pub const KERNEL_HRES_MAX: usize = 16384;
/// Most upcalls that wait for one endpoint to fetch them.
pub const UPCALLS_PER_HRE_MAX: usize = 64;
/// The same where SPU-OS tells an agent of misses: a few for each process that there can be, so that none keeps those of others out.
pub const MISSES_PER_AGENT_MAX: usize = 4 * PROCESSES_MAX;

/// A host request on its way through the device.
pub(crate) struct Transfer {
    pub hre: HreId,
    pub account: u16,
    pub tag: u64,
    pub buffer: Vec<u8>,
    /// Where the reply goes.
    pub reply_to: ReplyTo,
    pub payload_bytes: u32,
    pub reply_bytes: u32,
    /// One past the last byte of the reply that was written.
    pub reply_high: u32,
    /// Its RPCs, and those not ended yet.
    pub rpcs: u32,
    pub outstanding: u32,
    pub outcome: RpcOutcome,
    pub result: u32,
}

#[derive(Default)]
struct Hre {
    open: bool,
    /// Whose requests it brings.
    account: u16,
    in_flight: usize,
    upcalls: VecDeque<Upcall>,
}

/// The bridge.
pub(crate) struct Bridge {
    kernel: Vec<Hre>,
    users: BTreeMap<u32, Hre>,
    pub transfers: Slab<Transfer>,
    pub accounts: Accounts,
    pub completions: VecDeque<HostCompletion>,
    /// Ends of requests whose endpoint was closed meanwhile, where somebody wants to know of them.
    pub drained: Option<VecDeque<HostCompletion>>,
    /// Upcalls in all queues.
    queued_upcalls: usize,
    /// Those of apps that are not answered, in a queue or at their hosts.
    pub upcalls: Upcalls,
    /// Who is told of what by which app.
    pub subscriptions: Subscriptions,
    /// What completions are dated with.
    pub now_ns: u64,
    in_flight_max: usize,
    /// Answers to requests that had completed, since the device started: a defect where there are some.
    pub strays: u64,
}

impl Bridge {
    pub fn new(in_flight_max: usize, accounts: Accounts) -> Self {
        Bridge {
            kernel: Vec::new(),
            users: BTreeMap::new(),
            transfers: Slab::new(TRANSFERS_MAX),
            accounts,
            completions: VecDeque::new(),
            drained: None,
            queued_upcalls: 0,
            upcalls: Upcalls::default(),
            subscriptions: Subscriptions::default(),
            now_ns: 0,
            in_flight_max,
            strays: 0,
        }
    }

    #[inline(always)]
    fn hre(&mut self, id: HreId) -> Option<&mut Hre> {
        if id.is_kernel() { self.kernel.get_mut((id.0 as usize).checked_sub(1)?) } else { self.users.get_mut(&id.0) }
    }

    /// A new queue for the host kernel, or for process `process` (its low 19 bits).
    pub fn open(&mut self, process: Option<u32>) -> Option<HreId> {
        match process {
            None => {
                let free = self.kernel.iter().position(|hre| !hre.open && hre.in_flight == 0);
                let place = match free {
                    Some(place) => place,
                    None if self.kernel.len() < KERNEL_HRES_MAX => {
                        self.kernel.push(Hre::default());
                        self.kernel.len() - 1
                    }
                    None => return None,
                };
                self.kernel[place] = Hre { open: true, account: KERNEL, ..Hre::default() };
                Some(HreId(place as u32 + 1))
            }
            Some(process) => {
                let first = 1 << 31 | (process & 0x7ffff) << 12;
                let id = (first..first + 4096).find(|id| !self.users.contains_key(id))?;
                self.users.insert(id, Hre { open: true, ..Hre::default() });
                Some(HreId(id))
            }
        }
    }

    /// Ends a queue. What is in flight drains and is dropped.
    pub fn close(&mut self, id: HreId) {
        if let Some(hre) = self.hre(id) {
            hre.open = false;
            let (dropped, idle) = (hre.upcalls.len(), hre.in_flight == 0);
            hre.upcalls.clear();
            self.queued_upcalls -= dropped;
            if idle {
                self.users.remove(&id.0);
            }
        }
    }

    /// True where there is this queue.
    pub fn is_open(&mut self, id: HreId) -> bool {
        self.hre(id).is_some_and(|hre| hre.open)
    }

    /// Who pays for what is done for a queue.
    pub fn account_of(&mut self, id: HreId) -> u16 {
        self.hre(id).map_or(accounts::EVENTS, |hre| hre.account)
    }

    /// The open queues of a process, its number as in ids.
    pub fn of_process(&self, process: u32) -> Vec<HreId> {
        let first = process << 12;
        let open = self.users.range(first..=first | 0xfff).filter(|(_, hre)| hre.open);
        open.map(|(id, _)| HreId(*id)).collect()
    }

    /// Says whose requests a queue brings.
    pub fn set_account(&mut self, id: HreId, account: u16) {
        if let Some(hre) = self.hre(id) {
            hre.account = account;
        }
    }

    /// Whether the queue takes one more request that is made of so many RPCs, and on whose account.
    #[inline(always)]
    pub fn admits(&mut self, id: HreId, rpcs: usize) -> Option<u16> {
        let limit = self.in_flight_max;
        let hre = self.hre(id)?;
        let (account, admits) = (hre.account, hre.open && hre.in_flight < limit);
        (admits && self.transfers.len() < TRANSFERS_MAX && self.accounts.admits(account, rpcs)).then_some(account)
    }

    /// Takes a request in; call only after [`Bridge::admits`]. Its key, and where it goes, which is empty and to be filled at once.
    #[inline(always)]
    pub fn begin(&mut self, hre: HreId, account: u16, rpcs: u32) -> (u32, &mut Option<Transfer>) {
        self.accounts.begin(account, rpcs);
        if let Some(hre) = self.hre(hre) {
            hre.in_flight += 1;
        }
        self.transfers.reserve()
    }

    /// One RPC of a request has ended; the last one completes it.
    #[inline(always)]
    pub fn end_rpc(&mut self, key: u32, outcome: RpcOutcome, result: u32) {
        let Some(transfer) = self.transfers.get_mut(key) else { return self.stray() };
        if matches!(transfer.outcome, RpcOutcome::Answered { status: 0 }) {
            transfer.outcome = outcome;
        }
        transfer.result |= result;
        transfer.outstanding -= 1;
        if transfer.outstanding > 0 {
            return;
        }
        let (id, account, rpcs) = (transfer.hre, transfer.account, transfer.rpcs);
        let completion = HostCompletion {
            hre: id,
            tag: transfer.tag,
            outcome: transfer.outcome,
            result: transfer.result,
            buffer: std::mem::take(&mut transfer.buffer),
            reply_bytes: transfer.reply_high,
            at_ns: self.now_ns,
        };
        self.transfers.discard(key);
        self.accounts.end(account, rpcs);
        let mut open = false;
        if let Some(hre) = self.hre(id) {
            hre.in_flight -= 1;
            open = hre.open;
            if !open && hre.in_flight == 0 {
                self.users.remove(&id.0);
            }
        }
        if open {
            self.completions.push_back(completion);
        } else if let Some(drained) = &mut self.drained {
            drained.push_back(completion);
        }
    }

    /// One RPC too many of a request has ended.
    #[cold]
    fn stray(&mut self) {
        self.strays += 1;
        tracing::error!("a defect of the device: the answer to a request that has completed");
        debug_assert!(false, "the answer to a request that has completed");
    }

    /// A weakness for tests ([`crate::spu::os`], `planted`): completes a request that goes on.
    pub fn answer_twice(&mut self, key: u32) {
        let Some(transfer) = self.transfers.get(key) else { return };
        self.completions.push_back(HostCompletion {
            hre: transfer.hre,
            tag: transfer.tag,
            outcome: transfer.outcome,
            result: 0,
            buffer: Vec::new(),
            reply_bytes: 0,
            at_ns: self.now_ns,
        });
    }

    /// The request of an endpoint with this tag.
    pub fn find(&self, id: HreId, tag: u64) -> Option<u32> {
        self.transfers.iter().find(|(_, transfer)| transfer.hre == id && transfer.tag == tag).map(|(key, _)| key)
    }

    /// True where the host has something to fetch.
    #[inline]
    pub fn has_news(&self) -> bool {
        !self.completions.is_empty()
            || self.queued_upcalls > 0
            || self.drained.as_ref().is_some_and(|ends| !ends.is_empty())
    }

    /// Queues an upcall; false where the endpoint is gone or has `most`.
    pub fn push_upcall(&mut self, id: HreId, upcall: Upcall, most: usize) -> bool {
        match self.hre(id) {
            Some(hre) if hre.open && hre.upcalls.len() < most => {
                hre.upcalls.push_back(upcall);
                self.queued_upcalls += 1;
                true
            }
            _ => false,
        }
    }

    /// Takes an upcall back that has not been fetched.
    pub fn withdraw_upcall(&mut self, id: HreId, upcall: u64) {
        let Some(hre) = self.hre(id) else { return };
        if let Some(at) = hre.upcalls.iter().position(|queued| queued.id == upcall) {
            hre.upcalls.remove(at);
            self.queued_upcalls -= 1;
        }
    }

    /// The endpoint's next upcall.
    pub fn pop_upcall(&mut self, id: HreId) -> Option<Upcall> {
        let upcall = self.hre(id)?.upcalls.pop_front()?;
        self.queued_upcalls -= 1;
        Some(upcall)
    }
}

#[cfg(test)]
mod tests {
    use super::accounts::AccountLimits;
    use super::*;

    fn bridge(in_flight_max: usize) -> Bridge {
        let limits = AccountLimits { requests_max: 1, begun_max: 1, spus: 1 };
        Bridge::new(in_flight_max, Accounts::new(limits, 1, &[], &[]))
    }

    fn begin(bridge: &mut Bridge, hre: HreId, outstanding: u32) -> u32 {
        let (key, place) = bridge.begin(hre, KERNEL, outstanding);
        *place = Some(Transfer {
            hre,
            account: KERNEL,
            tag: 7,
            buffer: vec![],
            reply_to: ReplyTo::Buffer,
            payload_bytes: 0,
            reply_bytes: 0,
            reply_high: 0,
            rpcs: outstanding,
            outstanding,
            outcome: RpcOutcome::Answered { status: 0 },
            result: 0,
        });
        key
    }

    #[test]
    fn a_request_completes_once_with_its_first_failure() {
        let mut bridge = bridge(4);
        let hre = bridge.open(None).unwrap();
        let key = begin(&mut bridge, hre, 3);
        bridge.end_rpc(key, RpcOutcome::Answered { status: 0 }, 1);
        bridge.end_rpc(key, RpcOutcome::Answered { status: 9 }, 0);
        assert!(bridge.completions.is_empty());
        bridge.end_rpc(key, RpcOutcome::AppEnded, 2);
        assert_eq!(bridge.completions.len(), 1);
        // An answer too many is told as the defect that it is, and completes nothing.
        let again = std::panic::AssertUnwindSafe(|| bridge.end_rpc(key, RpcOutcome::AppEnded, 4));
        assert_eq!(std::panic::catch_unwind(again).is_err(), cfg!(debug_assertions));
        assert_eq!((bridge.completions.len(), bridge.strays), (1, 1));
        let completion = bridge.completions.pop_front().unwrap();
        assert_eq!((completion.outcome, completion.result), (RpcOutcome::Answered { status: 9 }, 3));
    }

    #[test]
    fn a_closed_queue_drains_silently_and_its_id_is_free_only_then() {
        let mut bridge = bridge(1);
        let hre = bridge.open(None).unwrap();
        assert_eq!(bridge.admits(hre, 1), Some(KERNEL));
        let key = begin(&mut bridge, hre, 1);
        assert_eq!(bridge.admits(hre, 1), None);
        bridge.close(hre);
        assert_ne!(bridge.open(None).unwrap(), hre);
        bridge.end_rpc(key, RpcOutcome::Answered { status: 0 }, 0);
        assert!(bridge.completions.is_empty());
        assert_eq!(bridge.open(None).unwrap(), hre);
        let user = bridge.open(Some(5)).unwrap();
        assert!(!user.is_kernel() && user.process() & 0x7ffff == 5);
    }
}
