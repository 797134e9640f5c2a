//! The ends of operations: what an app was promised is told to it here, by a completion, or by the import itself where that is the end.
//!
//! Invariants: an app that is to be told has one of its places until it has been ([`crate::places`]); what it was promised is told once; the
//! request that an operation is for is not answered before the operation has ended.

use crate::interconnect::Transfer;
use crate::interconnect::event::{Completion, Event, Wait};
use crate::spu::abi::{self, PENDING};
use crate::spu::activity::Caller;
use crate::spu::group::Waiter;
use crate::spu::os::{Machine, planted};

impl Machine {
    /// Promises an app the end of an operation for a request of its, in the name of whoever runs; `None` where it waits for as much as it may.
    #[inline(always)]
    fn promise(&mut self, caller: Caller, waiter: Waiter, result: i64) -> Option<Wait> {
        let placed = self.place_for_wait(caller)?;
        if let Some(activity) = self.activity_at_mut(caller.at(waiter.token)) {
            activity.ending.begins();
        }
        Some(Wait {
            spu: caller.spu,
            app: caller.app,
            account: self.spus[usize::from(caller.spu)].running,
            incarnation: caller.incarnation,
            wake: Some((waiter.wait, result)),
            token: Some(waiter.token),
            placed,
        })
    }

    /// Tells an app what it was promised, when it is its turn. Bytes for its memory travel with the completion.
    #[inline]
    pub fn wake(&mut self, of: Wait, memory: Option<Box<(u64, Vec<u8>)>>) {
        if planted!(self, ForgetsWake) && of.token.is_none() && of.wake.is_some() {
            return;
        }
        if planted!(self, WakesTwice) && of.wake.is_some() {
            let again = Wait { token: None, placed: false, ..of };
            self.make_due(of.account, of.app, Event::Complete(Completion { of: again, memory: None }));
        }
        self.make_due(of.account, of.app, Event::Complete(Completion { of, memory }));
    }

    /// Under a model: ends a wait that took no store's time with `result` when a DMA that begins after this run has ended, and an accelerator has taken
    /// what it brought.
    #[inline(never)]
    pub fn wake_after(
        &mut self,
        transfer: (Transfer, bool),
        accelerated: Option<(u8, u32)>,
        (caller, waiter): (Caller, Waiter),
        result: i64,
    ) -> i32 {
        let Some(of) = self.promise(caller, waiter, result) else { return abi::ERROR_REFUSED };
        self.dma_and_then(transfer, accelerated, || Event::Complete(Completion { of, memory: None }));
        PENDING
    }

    /// An operation is done: true where the app is told so by a completion behind what others have to do, since the run has moved as much as
    /// it may before they have their turn; else the import tells it.
    #[inline(always)]
    pub fn makes_way(&mut self, caller: Caller, waiter: Waiter, result: i64) -> bool {
        !self.in_slice(caller, 0) && self.make_way(caller, waiter, result)
    }

    #[cold]
    fn make_way(&mut self, caller: Caller, waiter: Waiter, result: i64) -> bool {
        let Some(of) = self.promise(caller, waiter, result) else { return false };
        self.wake(of, None);
        true
    }
}
