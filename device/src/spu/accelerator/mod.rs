//! Accelerators: native kernels beside each SPU's processor, one file each. A file says what its kernel does natively and what it is charged;
//! [`crate::model::accelerator`] is the registry that gives it its parameters and counters, [`willow_gate::table`] has its imports.
//!
//! What always holds:
//! - they read what a DMA could read: an accelerator's operand passes the same checks of address and permission;
//! - what is known at once is told at once, unless the run has to make way for others or a model of time says when;
//! - an operation is charged by its operands and what it finds, never by how fast this machine's kernel is.
//!
//! A new one: a line in the registry, values in the presets, its import in the table, a file here.

pub(crate) mod checksum;
pub(crate) mod compare;
pub(crate) mod decompress;
pub(crate) mod fft;
pub(crate) mod keys;
pub(crate) mod literals;
pub(crate) mod minimum;
pub(crate) mod multiply_add;

use super::abi::{self, PENDING};
use super::continuation::Pending;
use super::dma::Moved;
use super::gate::MayRead;
use super::group::Waiter;
use super::os::{Caller, Machine};
use crate::interconnect::{Key, Transfer};
use crate::model::accelerator::Accelerator;

impl Machine {
    /// The processor starts an accelerator and waits for it: what has no wait to be told by, or waits for the store first.
    pub(super) fn accelerates(&mut self, caller: Caller, accelerator: Accelerator, bytes: u64) {
        self.passes_accelerator(caller.spu, accelerator, bytes);
        self.clock.note(|work| work.accelerated.add(accelerator, bytes));
    }

    /// An accelerator has done its part, on what is in local memory or the request, or on what `read` brings.
    pub(super) fn streams(
        &mut self,
        told: (Caller, Waiter),
        (accelerator, bytes): (Accelerator, u64),
        end: (i64, Option<Transfer>),
        at_once: impl FnOnce(&mut Machine) -> i32,
    ) -> i32 {
        self.passes_accelerator(told.0.spu, accelerator, bytes);
        self.tell_accelerated(told, (accelerator, bytes), end, at_once)
    }

    /// Bytes pass an accelerator on their way from NV memory, which takes it no time of its own.
    pub(super) fn passes_accelerator(&mut self, spu: u16, accelerator: Accelerator, bytes: u64) {
        self.spus[spu as usize].counters.accelerators.count(accelerator, bytes);
    }

    /// Begins the one read of an operation that is no DMA; under a model it takes what this transfer takes.
    pub(super) fn begin_single(
        &mut self,
        permit: MayRead,
        pending: Pending,
        (group, transfer): (Key, Transfer),
    ) -> i32 {
        let account = self.account_of(group);
        let Some(caller) = self.group_at(group).map(|group| group.caller) else { return abi::ERROR_ARGUMENT };
        if !self.place_for_single(caller, account) {
            return self.settle_group(group, abi::ERROR_REFUSED);
        }
        if let Some(group) = self.group_at_mut(group) {
            group.remaining += 1;
        }
        match self.begin_read(permit, pending, group) {
            Moved::Error(error) => {
                if let Some(group) = self.group_at_mut(group) {
                    group.remaining -= 1;
                }
                self.settle_group(group, error)
            }
            _ => {
                self.group_takes(group, |_| (transfer, false));
                PENDING
            }
        }
    }
}
