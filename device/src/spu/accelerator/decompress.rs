//! The decompress accelerator: Snappy's raw format, as pages of Parquet have it, piece by piece within an app's local memory.
//!
//! Natively [`willow_gate::decompress`], which the SDK's mock and hosts use too; under a model the accelerator takes the bytes that come out, or those that go in
//! where these are more, while the processor goes on: it streams.
//!
//! What always holds: between calls it keeps nothing, so that any number of blocks of any apps can be under way; a call does bounded work
//! ([`willow_gate::decompress::WORK_MAX`]), and is charged what it did.

use crate::model::accelerator::Accelerator;
use crate::spu::abi;
use crate::spu::gate::Charged;
use crate::spu::group::Waiter;
use crate::spu::meter::Fault;
use crate::spu::os::{Caller, LocalMemory, Machine};
use willow_gate::decompress::{STATE_BYTES, State, WORK_MAX};
use willow_gate::{Decompress, SpuOs};

impl Machine {
    /// `decompress`.
    #[inline(never)]
    pub fn decompress<M: LocalMemory>(
        &mut self,
        caller: Caller,
        memory: &mut M,
        asked: Decompress,
        _: Charged,
    ) -> Result<i32, Fault> {
        let Decompress { token, from, bytes, to, to_bytes, state, wait } = asked;
        let record = memory.slice_mut(state, STATE_BYTES)?;
        let Some(mut at) = record.first_chunk().map(State::decode).filter(|state| state.is_sound(to_bytes)) else {
            return Ok(abi::ERROR_ARGUMENT);
        };
        // The app's memory is lent once: the input is copied, so that it may lie anywhere.
        let mut input = std::mem::take(&mut self.spus[usize::from(caller.spu)].piece);
        input.clear();
        input.extend_from_slice(memory.slice(from, bytes as usize)?);
        let kept = at.kept;
        // One element at least, so that who gets nothing knows that more input is needed.
        let work_max = WORK_MAX.min(self.meter(caller).left()).max(1);
        let work = at.decompress(&input, memory.slice_mut(to, to_bytes as usize)?, work_max);
        self.spus[usize::from(caller.spu)].piece = input;
        // It is over the budget only where the run could not have gone on anyway.
        self.meter(caller).charge_found(work)?;
        memory.slice_mut(state, STATE_BYTES)?.copy_from_slice(&at.encode());
        let taken = (Accelerator::Decompress, u64::from((at.kept - kept).max(at.used)));
        Ok(self.streams((caller, Waiter { token, wait }), taken, (abi::DONE.into(), None), |_| abi::DONE))
    }
}
