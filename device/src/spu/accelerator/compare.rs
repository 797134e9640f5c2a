//! The compare accelerator: NV memory with a range of a request's body.
//!
//! Natively a comparison of two slices; under a model the accelerator takes the bytes once.

use crate::interconnect::{Key, Transfer};
use crate::media::store::Progress;
use crate::model::accelerator::Accelerator;
use crate::spu::abi::{self, DONE};
use crate::spu::continuation::Pending;
use crate::spu::gate::{Behalf, Charged};
use crate::spu::group::Waiter;
use crate::spu::os::{Caller, Machine, error_of};
use willow_gate::Compare;

impl Machine {
    /// `compare`: NV memory with a range of the body.
    pub fn compare(&mut self, caller: Caller, (compare, behalf): (&Compare, Behalf), _: Charged) -> i32 {
        let &Compare { token, address, body_offset, bytes, wait } = compare;
        let Some(permit) = self.may_read(caller, behalf, address, bytes as usize) else {
            return abi::ERROR_PERMISSION;
        };
        let mut nv = vec![0; bytes as usize];
        self.spus[usize::from(caller.spu)].counters.nv_read_bytes += u64::from(bytes);
        let transfer = Transfer::read(caller.spu, address, bytes, token);
        match permit.read(&mut self.media, &mut nv) {
            Ok(Progress::Done) => {
                let result = self.compare_with_body(caller.at(token), body_offset, &nv);
                if result < 0 {
                    self.accelerates(caller, Accelerator::Compare, bytes.into());
                    return result as i32;
                }
                let at_once = |_: &mut Machine| if result == 0 { DONE } else { abi::DIFFERS };
                let taken = (Accelerator::Compare, bytes.into());
                self.streams((caller, Waiter { token, wait }), taken, (result, Some(transfer)), at_once)
            }
            Ok(Progress::WouldBlock) => {
                self.accelerates(caller, Accelerator::Compare, bytes.into());
                let Some(group) = self.group(caller, Some(token), wait) else { return abi::ERROR_REFUSED };
                self.begin_single(permit, Pending::Compare { group, token, body_offset }, (group, transfer))
            }
            Err(error) => error_of(error),
        }
    }

    /// 0 equal, 1 different, or an error.
    pub fn compare_with_body(&self, token: Key, body_offset: u64, nv: &[u8]) -> i64 {
        let differs = self.with_body(token, body_offset, nv.len(), |body| body != nv);
        differs.map_or(abi::ERROR_RANGE.into(), i64::from)
    }
}
