//! The multiply-add accelerator: y = alpha * x + y of rows of numbers in local memory, the thesis' saxpy unit (XSSD, 4.2.2).
//!
//! Natively a loop that the compiler makes vectors of ([`willow_gate::numbers::multiply_add`]); under a model the accelerator takes both rows once,
//! while the processor goes on: it streams.

use crate::model::accelerator::Accelerator;
use crate::spu::abi;
use crate::spu::gate::Charged;
use crate::spu::group::Waiter;
use crate::spu::os::{Caller, LocalMemory, Machine, WildPointer};
use willow_gate::MultiplyAdd;
use willow_gate::numbers::multiply_add;

/// Bytes of x that are copied at once, since an app's memory is lent once: they stay in the processor's first cache.
const PIECE_BYTES: usize = 4096;

impl Machine {
    /// `multiply_add`.
    #[inline(never)]
    pub fn multiply_add<M: LocalMemory>(
        &mut self,
        caller: Caller,
        memory: &mut M,
        asked: MultiplyAdd,
        _: Charged,
    ) -> Result<i32, WildPointer> {
        let MultiplyAdd { token, number, alpha, x, y, wait, .. } = asked;
        let bytes = asked.row_bytes() as usize;
        // Nothing is written where either row lies outside.
        memory.slice(x, bytes)?;
        memory.slice_mut(y, bytes)?;
        let mut piece = [0; PIECE_BYTES];
        for at in (0..bytes).step_by(PIECE_BYTES) {
            let piece = &mut piece[..PIECE_BYTES.min(bytes - at)];
            piece.copy_from_slice(memory.slice(x + at as u64, piece.len())?);
            multiply_add(number, alpha, piece, memory.slice_mut(y + at as u64, piece.len())?);
        }
        let taken = (Accelerator::MultiplyAdd, 2 * bytes as u64);
        Ok(self.streams((caller, Waiter { token, wait }), taken, (abi::DONE.into(), None), |_| abi::DONE))
    }
}
