//! What is done with bytes on their way: comparisons and checksums.
//!
//! Invariants: they read what a DMA could read, and bytes of NV memory never reach the app's memory; a result that is known at once is told at
//! once, unless the run has to make way for others or a model of time says when.

use super::abi::{self, DONE, PENDING};
use super::continuation::Pending;
use super::dma::{Moved, Port};
use super::gate::{Behalf, Charged, MayRead};
use super::group::Waiter;
use super::os::{Caller, LocalMemory, Machine, WildPointer, error_of};
use crate::interconnect::{Key, Transfer};
use crate::media::store::Progress;

/// A comparison of NV memory with a range of the body.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Compare {
    pub token: u32,
    pub address: u64,
    pub body_offset: u64,
    pub bytes: u32,
    pub wait: u32,
}

/// A CRC-32C of bytes at a port.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Checksum {
    pub token: u32,
    pub port: Port,
    pub address: u64,
    pub bytes: u32,
    pub seed: u32,
    pub wait: u32,
}

impl Machine {
    /// `compare`: NV memory with a range of the body.
    pub fn compare(&mut self, caller: Caller, (compare, behalf): (&Compare, Behalf), _: Charged) -> i32 {
        let &Compare { token, address, body_offset, bytes, wait } = compare;
        let Some(permit) = self.may_read(caller, behalf, address, bytes as usize) else {
            return abi::ERROR_PERMISSION;
        };
        self.clock.note(|work| work.compared_bytes += u64::from(bytes));
        let mut nv = vec![0; bytes as usize];
        self.spus[usize::from(caller.spu)].counters.nv_read_bytes += u64::from(bytes);
        match permit.read(&mut self.media, &mut nv) {
            Ok(Progress::Done) => {
                let result = self.compare_with_body(caller.at(token), body_offset, &nv);
                if result < 0 {
                    return result as i32;
                }
                let transfer = Transfer::read(caller.spu, address, bytes, token);
                let at_once = |_: &mut Machine| if result == 0 { DONE } else { abi::DIFFERS };
                self.tell_end((caller, Waiter { token, wait }), result, |_| Some((transfer, false)), at_once)
            }
            Ok(Progress::WouldBlock) => {
                let Some(group) = self.group(caller, Some(token), wait) else { return abi::ERROR_REFUSED };
                self.begin_single(permit, Pending::Compare { group, token, body_offset }, group)
            }
            Err(error) => error_of(error),
        }
    }

    /// 0 equal, 1 different, or an error.
    pub fn compare_with_body(&self, token: Key, body_offset: u64, nv: &[u8]) -> i64 {
        let mut body = vec![0; nv.len()];
        match self.copy_body(token, body_offset, &mut body) {
            None => i64::from(abi::ERROR_RANGE),
            Some(()) => i64::from(body != nv),
        }
    }

    /// Begins the only read of a group.
    fn begin_single(&mut self, permit: MayRead, pending: Pending, group: Key) -> i32 {
        let account = self.account_of(Some(group));
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
            _ => PENDING,
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
        if port != Port::Nv {
            self.clock.note(|work| work.summed_bytes += u64::from(bytes));
        }
        let sum = match port {
            Port::Local => crc32c::crc32c_append(seed, memory.slice(address, bytes as usize)?),
            Port::Network => {
                let Some(activity) = self.activity_at(caller.at(token)) else { return Ok(abi::ERROR_ARGUMENT) };
                match Self::payload_range(&self.bridge, activity, address, bytes as usize) {
                    Some(range) => crc32c::crc32c_append(seed, range),
                    None => {
                        let mut body = vec![0; bytes as usize];
                        if self.copy_body(caller.at(token), address, &mut body).is_none() {
                            return Ok(abi::ERROR_RANGE);
                        }
                        crc32c::crc32c_append(seed, &body)
                    }
                }
            }
            Port::Nv => {
                let Some(permit) = self.may_read(caller, behalf, address, bytes as usize) else {
                    return Ok(abi::ERROR_PERMISSION);
                };
                self.spus[usize::from(caller.spu)].counters.nv_read_bytes += u64::from(bytes);
                let mut nv = vec![0; bytes as usize];
                match permit.read(&mut self.media, &mut nv) {
                    Ok(Progress::Done) => {
                        transfer = Some((Transfer::read(caller.spu, address, bytes, token), false));
                        crc32c::crc32c_append(seed, &nv)
                    }
                    Ok(Progress::WouldBlock) => {
                        let Some(group) = self.group(caller, Some(token), wait) else { return Ok(abi::ERROR_REFUSED) };
                        return Ok(self.begin_single(permit, Pending::Checksum { group, seed }, group));
                    }
                    Err(error) => return Ok(error_of(error)),
                }
            }
            Port::Zero => return Ok(abi::ERROR_ARGUMENT),
        };
        Ok(self.tell_end(
            (caller, Waiter { token, wait }),
            sum.into(),
            |_| transfer,
            |machine| {
                machine.checksum_value = sum;
                DONE
            },
        ))
    }
}
