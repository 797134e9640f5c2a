//! The checksum accelerator: CRC-32C (Castagnoli) of bytes at a port.
//!
//! Natively the processor's own instruction; under a model the accelerator takes what is in local memory or in the request, and sums what
//! comes from NV memory as it passes.

use crate::interconnect::Transfer;
use crate::media::store::Progress;
use crate::model::accelerator::Accelerator;
use crate::spu::abi::{self, DONE};
use crate::spu::continuation::Pending;
use crate::spu::group::Waiter;
use crate::spu::meter::{Fault, SEGMENT_WORK};
use crate::spu::os::{Caller, LocalMemory, Machine, error_of};
use crate::spu::permission::Rights;

impl Machine {
    /// A sum that is known: told now, or, where the run has moved a lot, when it is its turn again.
    fn summed(&mut self, caller: Caller, token: u32, wait: u32, sum: u32) -> i32 {
        // Under a model what is in local memory or in the body is summed at once, and takes the processor's time.
        if self.makes_way(caller) {
            return self.yields(caller, token, (wait, sum.into()), self.is_users_app(caller.app));
        }
        self.checksum_value = sum;
        DONE
    }

    /// `checksum`: CRC-32C of bytes at a port; done at once, the value is in `checksum_value`.
    pub fn checksum<M: LocalMemory>(
        &mut self,
        caller: Caller,
        memory: &M,
        (token, port, address, bytes, seed, wait): (u32, u32, u64, u32, u32, u32),
    ) -> Result<i32, Fault> {
        let Some(activity) = self.activity(caller, token) else { return Ok(abi::ERROR_ARGUMENT) };
        let originating = activity.originating;
        if let Some(error) = self.too_much(caller, bytes.into(), abi::BOUNCE_BYTES_MAX as u64)? {
            return Ok(error);
        }
        self.meter.charge(SEGMENT_WORK)?;
        match port {
            abi::PORT_NV => self.passes_accelerator(caller.spu, Accelerator::Checksum, bytes.into()),
            _ => self.accelerates(caller, Accelerator::Checksum, bytes.into()),
        }
        // Sums do not park.
        match port & !abi::PORT_PARK {
            abi::PORT_LOCAL => {
                let sum = crc32c::crc32c_append(seed, memory.slice(address, bytes as usize)?);
                Ok(self.summed(caller, token, wait, sum))
            }
            abi::PORT_NETWORK => {
                let Some(activity) = self.activity_at(caller.at(token)) else { return Ok(abi::ERROR_ARGUMENT) };
                if let Some(range) = Self::payload_range(&self.bridge, activity, address, bytes as usize) {
                    let sum = crc32c::crc32c_append(seed, range);
                    return Ok(self.summed(caller, token, wait, sum));
                }
                let mut body = vec![0; bytes as usize];
                if self.copy_body(caller.at(token), address, &mut body).is_none() {
                    return Ok(abi::ERROR_RANGE);
                }
                let sum = crc32c::crc32c_append(seed, &body);
                Ok(self.summed(caller, token, wait, sum))
            }
            abi::PORT_NV => {
                if !self.permitted(caller, originating, address, u64::from(bytes), Rights::READ) {
                    return Ok(abi::ERROR_PERMISSION);
                }
                let bank = caller.spu as usize;
                self.spus[bank].counters.nv_read_bytes += u64::from(bytes);
                let mut nv = vec![0; bytes as usize];
                match self.media.store.read(bank, address, &mut nv) {
                    Ok(Progress::Done) => {
                        let sum = crc32c::crc32c_append(seed, &nv);
                        let transfer = Transfer::read(caller.spu, address, bytes, token);
                        let at_once = |machine: &mut Machine| machine.summed(caller, token, wait, sum);
                        Ok(self.tell_end((caller, Waiter { token, wait }), sum.into(), |_| (transfer, false), at_once))
                    }
                    Ok(Progress::WouldBlock) => {
                        let Some(group) = self.group(caller, Some(token), wait) else { return Ok(abi::ERROR_REFUSED) };
                        Ok(self.begin_single(group, bank, address, bytes as usize, Pending::Checksum { group, seed }))
                    }
                    Err(error) => Ok(error_of(error)),
                }
            }
            _ => Ok(abi::ERROR_ARGUMENT),
        }
    }
}
