//! The checksum accelerator: CRC-32C (Castagnoli) of bytes at a port.
//!
//! Natively the processor's own instruction; under a model the accelerator takes what is in local memory or in the request, and sums what
//! comes from NV memory as it passes.

use crate::interconnect::Transfer;
use crate::media::store::Progress;
use crate::model::accelerator::Accelerator;
use crate::spu::abi::{self, DONE};
use crate::spu::continuation::Pending;
use crate::spu::dma::Port;
use crate::spu::gate::{Behalf, Charged};
use crate::spu::group::Waiter;
use crate::spu::os::{Caller, LocalMemory, Machine, WildPointer, error_of};
use willow_gate::Checksum;

impl Machine {
    /// What `checksum_value` gives the caller from now on.
    fn set_checksum(&mut self, caller: Caller, sum: u32) {
        if let Some(resident) = self.spus[usize::from(caller.spu)].residents.get_mut(usize::from(caller.app)) {
            resident.checksum_value = sum;
        }
    }

    /// `checksum`: CRC-32C of bytes at a port; done at once, the value is in `checksum_value`.
    pub fn checksum<M: LocalMemory>(
        &mut self,
        caller: Caller,
        memory: &M,
        (checksum, behalf): (&Checksum, Behalf),
        _: Charged,
    ) -> Result<i32, WildPointer> {
        let &Checksum { token, port, address, bytes, seed, wait } = checksum;
        // Under a model what is in local memory or in the body takes the processor's time, what is in NV memory that of a transfer.
        let mut transfer = None;
        let sum = match port {
            Port::Local => crc32c::crc32c_append(seed, memory.slice(address, bytes as usize)?),
            Port::Network => {
                match self
                    .with_body(caller.at(token), address, bytes as usize, |body| crc32c::crc32c_append(seed, body))
                {
                    Some(sum) => sum,
                    None => return Ok(abi::ERROR_RANGE),
                }
            }
            Port::Nv => {
                let Some(permit) = self.may_read(caller, behalf, address, bytes as usize) else {
                    return Ok(abi::ERROR_PERMISSION);
                };
                self.passes_accelerator(caller.spu, Accelerator::Checksum, bytes.into());
                self.spus[usize::from(caller.spu)].counters.nv_read_bytes += u64::from(bytes);
                let takes = Transfer::read(caller.spu, address, bytes, token);
                let mut nv = vec![0; bytes as usize];
                match permit.read(&mut self.media, &mut nv) {
                    Ok(Progress::Done) => {
                        transfer = Some((takes, false));
                        crc32c::crc32c_append(seed, &nv)
                    }
                    Ok(Progress::WouldBlock) => {
                        let Some(group) = self.group(caller, Some(token), wait) else { return Ok(abi::ERROR_REFUSED) };
                        return Ok(self.begin_single(permit, Pending::Checksum { group, seed }, (group, takes)));
                    }
                    Err(error) => return Ok(error_of(error)),
                }
            }
            Port::Zero | Port::Nothing => return Ok(abi::ERROR_ARGUMENT),
        };
        let at_once = |machine: &mut Machine| {
            machine.set_checksum(caller, sum);
            DONE
        };
        let told = (caller, Waiter { token, wait });
        Ok(match transfer {
            Some(transfer) => self.tell_end(told, sum.into(), |_| Some(transfer), at_once),
            None => self.streams(told, (Accelerator::Checksum, bytes.into()), (sum.into(), None), at_once),
        })
    }
}
