//! Requests of hosts as they come in from the bridge, and are taken back.
//!
//! Invariants: a request that is not taken is handed back as it came; one that is taken has a place for each of its RPCs (at any SPU: a constant
//! assertion in `unit.rs`).

use super::abi;
use super::activity::{Activity, Ending, Origin, State};
use super::os::Machine;
use crate::bridge::Transfer;
use crate::hre::HreId;
use crate::interconnect::{Endpoint, Key};
use crate::request::{HostRequest, Rpc, RpcList, RpcOutcome};
use crate::shared::ReplyTo;

impl Machine {
    /// Takes a request from a queue; the request comes back where the queue's or the device's limit is reached, or where it makes no
    /// sense (no RPC, more payload than buffer).
    #[inline(always)]
    pub fn take_in(&mut self, hre: HreId, request: HostRequest, reply_to: ReplyTo) -> Result<(), HostRequest> {
        let count = match &request.rpcs {
            RpcList::One(_) => 1,
            RpcList::Many(rpcs) => rpcs.len(),
        };
        let room = match &reply_to {
            ReplyTo::Buffer => request.buffer.len(),
            ReplyTo::Window(window) => window.bytes(),
            ReplyTo::Nowhere => usize::MAX,
        };
        let fits = request.payload_bytes as usize <= request.buffer.len() && request.reply_bytes as usize <= room;
        if !fits || count == 0 {
            return Err(request);
        }
        let Some(account) = self.bridge.admits(hre, count) else { return Err(request) };
        if !self.takes_requests(count) {
            return Err(request);
        }
        let (transfer, place) = self.bridge.begin(hre, account, count as u32);
        // It is empty: nothing to drop.
        std::mem::forget(place.replace(Transfer {
            hre,
            account,
            tag: request.tag,
            buffer: request.buffer,
            reply_to,
            payload_bytes: request.payload_bytes,
            reply_bytes: request.reply_bytes,
            reply_high: 0,
            rpcs: count as u32,
            outstanding: count as u32,
            outcome: RpcOutcome::Answered { status: 0 },
            result: 0,
        }));
        match request.rpcs {
            RpcList::One(rpc) => self.send_rpc((hre, account), transfer, rpc),
            RpcList::Many(rpcs) => rpcs.into_iter().for_each(|rpc| self.send_rpc((hre, account), transfer, rpc)),
        }
        Ok(())
    }

    #[inline(always)]
    fn send_rpc(&mut self, (hre, account): (HreId, u16), transfer: u32, rpc: Rpc) {
        if rpc.spu >= self.config.spus {
            return self.bridge.end_rpc(transfer, RpcOutcome::NoSpu, 0);
        }
        if rpc.handler == abi::EVENT_HANDLER {
            return self.bridge.end_rpc(transfer, RpcOutcome::NoHandler, 0);
        }
        let activity = || Activity {
            app: rpc.app,
            spu: rpc.spu,
            handler: rpc.handler,
            state: State::Arrived,
            originating: hre,
            account,
            arguments: rpc.arguments,
            cursor: 0,
            ending: Ending::default(),
            replied_bytes: 0,
            origin: Origin::Host { transfer },
        };
        if self.send(account, rpc.spu, activity, Endpoint::Host).is_none() {
            self.bridge.end_rpc(transfer, RpcOutcome::Refused, 0);
        }
    }

    /// Tries to take a request back: true where none of its RPCs has begun. Its completion still comes, with
    /// [`RpcOutcome::Aborted`] then.
    pub fn abort(&mut self, hre: HreId, tag: u64) -> bool {
        self.note_walk();
        let Some(transfer) = self.bridge.find(hre, tag) else { return false };
        let of_it = |activity: &Activity| matches!(activity.origin, Origin::Host { transfer: of } if of == transfer);
        let tokens: Vec<Key> =
            self.all_activities().filter(|(_, activity)| of_it(activity)).map(|(token, _)| token).collect();
        // One that is not there any more has been answered, though the answer may be under way yet.
        let rpcs = self.bridge.transfers.get(transfer).map_or(0, |transfer| transfer.rpcs);
        let begun = |token: &Key| self.activity_at(*token).is_none_or(|activity| activity.state.is_begun());
        if tokens.len() != rpcs as usize || tokens.iter().any(begun) {
            return false;
        }
        for token in tokens {
            self.end_activity(token, RpcOutcome::Aborted, 0);
        }
        true
    }
}
