//! What apps ask about NV memory as a whole: regions of their own, namespaces, durability.
//!
//! Invariants: an app changes its own regions alone, by way of the control service, which is durable before it is told; calls that wait for
//! the service are bounded, users' apps share a part of them.

use super::abi::{self, DONE, PENDING};
use super::continuation::Pending;
use super::gate::Charged;
use super::meter::OverBudget;
use super::news::RegionCall;
use super::os::{Caller, LocalMemory, Machine, WildPointer, error_of};
use crate::media::store::Progress;
use willow_gate::SpuOs;

impl Machine {
    /// `flush`: this SPU's bank becomes durable.
    pub fn flush(&mut self, caller: Caller, wait: u32, _: Charged) -> i32 {
        // What the FTL flushed would wait for the FTL.
        if self.app(caller.app).is_none() || self.ftl() == Some(caller.app) {
            return abi::ERROR_REFUSED;
        }
        let Some(group) = self.group(caller, None, wait) else { return abi::ERROR_REFUSED };
        let account = self.account_of(group);
        if !self.place_for_single(caller, account) {
            return self.settle_group(group, abi::ERROR_REFUSED);
        }
        let flushed = self.media.flush(Some(caller.spu as usize), Pending::Group { group });
        if let Ok(Progress::WouldBlock) = flushed {
            if let Some(group) = self.group_at_mut(group) {
                group.remaining = 1;
            }
            return PENDING;
        }
        self.operation_ended(account);
        self.settle_group(group, flushed.map_or_else(error_of, |_| DONE))
    }

    /// The name that an app's regions are under.
    fn owner_name(&self, caller: Caller) -> &str {
        self.apps.get(usize::from(caller.app)).and_then(Option::as_ref).map_or("", |app| &app.name)
    }

    /// `region`, for one that exists: its base; else the control service makes it.
    pub fn region(
        &mut self,
        caller: Caller,
        (id, bytes): (u32, u64),
        wait: u32,
        _: Charged,
    ) -> Result<i64, OverBudget> {
        if self.ftl() == Some(caller.app) {
            return Ok(abi::ERROR_REFUSED.into());
        }
        if let Some(region) = self.published.regions.find(self.owner_name(caller), id) {
            return Ok(region.base as i64);
        }
        if bytes == 0 || self.app(caller.app).is_none() {
            return Ok(abi::ERROR_NOT_FOUND.into());
        }
        Ok(match self.region_call(caller, id, Some(bytes), wait)? {
            PENDING => abi::REGION_PENDING,
            error => error.into(),
        })
    }

    /// `region_bytes`: size a bank of a region of the calling app.
    pub fn region_bytes(&self, caller: Caller, id: u32) -> i64 {
        let region = self.published.regions.find(self.owner_name(caller), id);
        region.map_or(abi::ERROR_NOT_FOUND.into(), |region| region.bank_bytes as i64)
    }

    /// `region_free`.
    pub fn region_free(&mut self, caller: Caller, id: u32, wait: u32, _: Charged) -> Result<i32, OverBudget> {
        match self.published.regions.find(self.owner_name(caller), id) {
            None => Ok(abi::ERROR_NOT_FOUND),
            Some(region) if self.published.namespaces.iter().any(|namespace| namespace.base == region.base) => {
                Ok(abi::ERROR_PERMISSION)
            }
            Some(_) => self.region_call(caller, id, None, wait),
        }
    }

    fn region_call(&mut self, caller: Caller, id: u32, bank_bytes: Option<u64>, wait: u32) -> Result<i32, OverBudget> {
        self.meter(caller).charge_change()?;
        let called = self.call_for_region(caller.app, |machine| {
            let group = machine.group(caller, None, wait)?;
            if let Some(group) = machine.group_at_mut(group) {
                group.remaining = 1;
            }
            Some(RegionCall { group, app: caller.app, id, bank_bytes })
        });
        Ok(if called { PENDING } else { abi::ERROR_REFUSED })
    }

    /// `namespace`: where one lies, and what it is.
    pub fn namespace_info<M: LocalMemory>(&self, memory: &mut M, nsid: u32, to: u64) -> Result<i32, WildPointer> {
        let found = self.published.namespaces.iter().find(|namespace| namespace.nsid == nsid);
        let Some(namespace) = found else { return Ok(abi::ERROR_NOT_FOUND) };
        let csi: u32 = if namespace.csi == crate::CommandSet::Kv { 1 } else { 0 };
        let blocks = namespace.size_bytes / u64::from(namespace.block_bytes.max(1));
        let into = memory.slice_mut(to, 32)?;
        into[0..8].copy_from_slice(&namespace.base.to_le_bytes());
        into[8..16].copy_from_slice(&namespace.bank_bytes.to_le_bytes());
        into[16..20].copy_from_slice(&csi.to_le_bytes());
        into[20..24].copy_from_slice(&namespace.block_bytes.to_le_bytes());
        into[24..32].copy_from_slice(&blocks.to_le_bytes());
        Ok(DONE)
    }
}
