//! The compare accelerator: NV memory with a range of a request's body.
//!
//! Natively a comparison of two slices; under a model the accelerator takes the bytes once.

use crate::interconnect::{Key, Transfer};
use crate::media::store::Progress;
use crate::model::accelerator::Accelerator;
use crate::spu::abi::{self, DONE};
use crate::spu::continuation::Pending;
use crate::spu::group::Waiter;
use crate::spu::meter::{Fault, SEGMENT_WORK};
use crate::spu::os::{Caller, Machine, error_of};
use crate::spu::permission::Rights;

impl Machine {
    /// `compare`: NV memory with a range of the body.
    pub fn compare(
        &mut self,
        caller: Caller,
        token: u32,
        address: u64,
        body_offset: u64,
        bytes: u32,
        wait: u32,
    ) -> Result<i32, Fault> {
        let Some(activity) = self.activity(caller, token) else { return Ok(abi::ERROR_ARGUMENT) };
        let originating = activity.originating;
        if let Some(error) = self.too_much(caller, bytes.into(), abi::BOUNCE_BYTES_MAX as u64)? {
            return Ok(error);
        }
        self.meter.charge(SEGMENT_WORK)?;
        if !self.permitted(caller, originating, address, u64::from(bytes), Rights::READ) {
            return Ok(abi::ERROR_PERMISSION);
        }
        self.accelerates(caller, Accelerator::Compare, bytes.into());
        let mut nv = vec![0; bytes as usize];
        let bank = caller.spu as usize;
        self.spus[bank].counters.nv_read_bytes += u64::from(bytes);
        Ok(match self.media.store.read(bank, address, &mut nv) {
            Ok(Progress::Done) => {
                let result = self.compare_with_body(caller.at(token), body_offset, &nv);
                let transfer = Transfer::read(caller.spu, address, bytes, token);
                let at_once = |machine: &mut Machine| match result {
                    result @ (0 | 1) if machine.makes_way(caller) => {
                        machine.yields(caller, token, (wait, result), machine.is_users_app(caller.app))
                    }
                    0 => DONE,
                    1 => abi::DIFFERS,
                    error => error as i32,
                };
                self.tell_end((caller, Waiter { token, wait }), result, |_| (transfer, false), at_once)
            }
            Ok(Progress::WouldBlock) => {
                let Some(group) = self.group(caller, Some(token), wait) else { return Ok(abi::ERROR_REFUSED) };
                let pending = Pending::Compare { group, token, body_offset };
                self.begin_single(group, bank, address, bytes as usize, pending)
            }
            Err(error) => error_of(error),
        })
    }

    /// 0 equal, 1 different, or an error.
    pub fn compare_with_body(&self, token: Key, body_offset: u64, nv: &[u8]) -> i64 {
        let mut body = vec![0; nv.len()];
        match self.copy_body(token, body_offset, &mut body) {
            None => i64::from(abi::ERROR_RANGE),
            Some(()) => i64::from(body != nv),
        }
    }
}
