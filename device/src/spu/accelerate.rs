//! What is done with bytes on their way: comparisons and checksums.
//!
//! Invariants: they read what a DMA could read, and bytes of NV memory never reach the app's memory; a result that is known at once is told at
//! once, unless the run has to make way for others or a model of time says when.

use super::abi::{self, DONE, PENDING};
use super::continuation::Pending;
use super::dma::Moved;
use super::meter::{Fault, SEGMENT_WORK};
use super::os::{Caller, LocalMemory, Machine, error_of};
use super::permission::Rights;
use crate::interconnect::{DmaKind, Key, Transfer};
use crate::media::store::Progress;

impl Machine {
    /// Under a model: ends an operation over bytes of NV memory, whose result is known, when they could have been read.
    fn after_reading(
        &mut self,
        caller: Caller,
        token: u32,
        (address, bytes): (u64, u32),
        wait: u32,
        result: i64,
    ) -> i32 {
        let transfer = Transfer {
            spu: caller.spu,
            kind: DmaKind::NvRead,
            address,
            segment_bytes: bytes.into(),
            segments: 1,
            stride: 0,
            id: token,
        };
        self.complete_after((transfer, false), caller, Some(token), wait, result)
    }

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
        self.work.compared_bytes += u64::from(bytes);
        let mut nv = vec![0; bytes as usize];
        let bank = caller.spu as usize;
        self.spus[bank].counters.nv_read_bytes += u64::from(bytes);
        Ok(match self.media.store.read(bank, address, &mut nv) {
            Ok(Progress::Done) if self.timing.is_some() => {
                let result = self.compare_with_body(caller.at(token), body_offset, &nv);
                self.after_reading(caller, token, (address, bytes), wait, result)
            }
            Ok(Progress::Done) => match self.compare_with_body(caller.at(token), body_offset, &nv) {
                result @ (0 | 1) if self.makes_way(caller) => {
                    self.yields(caller, token, (wait, result), self.is_users_app(caller.app))
                }
                0 => DONE,
                1 => abi::DIFFERS,
                error => error as i32,
            },
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

    fn begin_single(&mut self, group: Key, bank: usize, address: u64, bytes: usize, pending: Pending) -> i32 {
        let account = self.account_of(Some(group));
        let Some(caller) = self.group_at(group).map(|group| group.caller) else { return abi::ERROR_ARGUMENT };
        if !self.place_for_single(caller, account) {
            return self.settle_group(group, abi::ERROR_REFUSED);
        }
        if let Some(group) = self.group_at_mut(group) {
            group.remaining += 1;
        }
        match self.begin_read(bank, address, bytes, pending, group) {
            Moved::Error(error) => {
                if let Some(group) = self.group_at_mut(group) {
                    group.remaining -= 1;
                }
                self.settle_group(group, error)
            }
            _ => PENDING,
        }
    }

    /// A sum that is known: told now, or, where the run has moved a lot, when it is its turn again.
    fn summed(&mut self, caller: Caller, token: u32, wait: u32, sum: u32) -> i32 {
        // Under a model what is in local memory or in the body is summed at once, and takes the processor's time.
        if self.timing.is_none() && self.makes_way(caller) {
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
        if port != abi::PORT_NV {
            self.work.summed_bytes += u64::from(bytes);
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
                    Ok(Progress::Done) if self.timing.is_some() => {
                        let sum = i64::from(crc32c::crc32c_append(seed, &nv));
                        Ok(self.after_reading(caller, token, (address, bytes), wait, sum))
                    }
                    Ok(Progress::Done) => {
                        let sum = crc32c::crc32c_append(seed, &nv);
                        Ok(self.summed(caller, token, wait, sum))
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
