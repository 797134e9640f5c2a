//! What each import of [`super::table`] has SPU-OS do: one function each, over any kind of memory.
//!
//! Invariant: the sandbox and the native shims call these and nothing else, so that an app does the same in both.

use super::abi;
use crate::spu::accelerator::keys::{KeySearch, Layout};
use crate::spu::accelerator::literals::LiteralSearch;
use crate::spu::dma::{Dma, End};
use crate::spu::flash::FlashRead;
use crate::spu::meter::{ENTRY_WORK, Fault, STORE_WORK};
use crate::spu::os::{Caller, LocalMemory, Machine};

/// An import that is being carried out: who calls, the caller's memory, SPU-OS.
pub(super) struct Call<'a, M> {
    pub caller: Caller,
    pub memory: &'a mut M,
    pub machine: &'a mut Machine,
}

/// Bytes that `namespace` writes, if there is that namespace.
fn namespace_info(machine: &Machine, nsid: u32) -> Option<[u8; 32]> {
    let namespace = machine.published().namespaces.iter().find(|namespace| namespace.nsid == nsid)?;
    let mut info = [0; 32];
    info[0..8].copy_from_slice(&namespace.base.to_le_bytes());
    info[8..16].copy_from_slice(&namespace.bank_bytes.to_le_bytes());
    let csi: u32 = if namespace.csi == crate::CommandSet::Kv { 1 } else { 0 };
    info[16..20].copy_from_slice(&csi.to_le_bytes());
    info[20..24].copy_from_slice(&namespace.block_bytes.to_le_bytes());
    info[24..32].copy_from_slice(&(namespace.size_bytes / u64::from(namespace.block_bytes.max(1))).to_le_bytes());
    Some(info)
}

impl<M: LocalMemory> Call<'_, M> {
    #[inline]
    pub fn request_info(self, token: u32, to: u64) -> Result<(), Fault> {
        let info = self.machine.request_info(self.caller, token);
        self.memory.slice_mut(to, info.len())?.copy_from_slice(&info);
        Ok(())
    }

    #[inline]
    pub fn receive_bytes(self, token: u32, to: u64, bytes: u32) -> Result<i32, Fault> {
        self.machine.receive_bytes(self.caller, self.memory, token, (to, bytes))
    }

    #[inline]
    pub fn receive_bytes_at(self, token: u32, offset: u32, to: u64, bytes: u32) -> Result<i32, Fault> {
        self.machine.receive_bytes_at(self.caller, self.memory, token, offset, (to, bytes))
    }

    #[inline]
    pub fn respond(self, token: u32, status: u32, result: u32) -> Result<(), Fault> {
        self.machine.respond(self.caller, token, status, result);
        Ok(())
    }

    #[inline]
    #[expect(clippy::too_many_arguments, reason = "the import's")]
    pub fn dma(
        self,
        token: u32,
        source_port: u32,
        source_address: u64,
        destination_port: u32,
        destination_address: u64,
        bytes: u32,
        wait: u32,
    ) -> Result<i32, Fault> {
        let source = End { port: source_port, address: source_address, stride: 0 };
        let destination = End { port: destination_port, address: destination_address, stride: 0 };
        let dma = Dma { token, source, destination, segment_bytes: bytes, segments: 1, wait };
        self.machine.dma(self.caller, self.memory, dma)
    }

    #[inline]
    #[expect(clippy::too_many_arguments, reason = "the import's")]
    pub fn dma_strided(
        self,
        token: u32,
        source_port: u32,
        source_address: u64,
        source_stride: i64,
        destination_port: u32,
        destination_address: u64,
        destination_stride: i64,
        segment_bytes: u32,
        segments: u32,
        wait: u32,
    ) -> Result<i32, Fault> {
        let source = End { port: source_port, address: source_address, stride: source_stride };
        let destination = End { port: destination_port, address: destination_address, stride: destination_stride };
        let dma = Dma { token, source, destination, segment_bytes, segments, wait };
        self.machine.dma(self.caller, self.memory, dma)
    }

    pub fn compare(self, token: u32, nv: u64, body: u64, bytes: u32, wait: u32) -> Result<i32, Fault> {
        self.machine.compare(self.caller, token, nv, body, bytes, wait)
    }

    pub fn checksum(self, token: u32, port: u32, address: u64, bytes: u32, seed: u32, wait: u32) -> Result<i32, Fault> {
        self.machine.checksum(self.caller, self.memory, (token, port, address, bytes, seed, wait))
    }

    pub fn checksum_value(self) -> Result<u32, Fault> {
        Ok(self.machine.checksum_value)
    }

    #[expect(clippy::too_many_arguments, reason = "the import's")]
    pub fn rpc_start(
        self,
        token: u32,
        destination: i32,
        app: i32,
        handler: u32,
        body_bytes: u32,
        reply: u64,
        reply_bytes: u32,
    ) -> Result<i32, Fault> {
        let message = (destination, app, handler, body_bytes);
        self.machine.rpc_start(self.caller, self.memory, token, message, (reply, reply_bytes))
    }

    pub fn rpc_append(self, handle: i32, port: u32, address: u64, bytes: u32) -> Result<i32, Fault> {
        self.machine.rpc_append(self.caller, self.memory, handle, port, address, bytes)
    }

    pub fn rpc_finish(self, handle: i32, wait: u32) -> Result<i32, Fault> {
        Ok(self.machine.rpc_finish(self.caller, handle, wait)?)
    }

    pub fn subscribers(self, kind: u32, after: u32, to: u64, most: u32) -> Result<i32, Fault> {
        self.machine.subscribers(self.caller, self.memory, (kind, after), (to, most))
    }

    pub fn upcall_start(self, token: u32, hre: u32, kind: u32, body_bytes: u32) -> Result<i32, Fault> {
        Ok(self.machine.upcall_start(self.caller, token, hre, (kind, body_bytes))?)
    }

    pub fn app_number(self, name: u64, bytes: u32) -> Result<i32, Fault> {
        let machine = self.machine;
        machine.meter.charge_bytes(bytes.into())?;
        machine.meter.charge(machine.apps.len() as u64 * ENTRY_WORK)?;
        let name = self.memory.slice(name, bytes as usize)?;
        let owner = machine.app(self.caller.app).and_then(|app| app.owner);
        Ok(machine.find_app_for(owner, name).map_or(abi::ERROR_NOT_FOUND, i32::from))
    }

    pub fn region(self, id: u32, bytes: u64, wait: u32) -> Result<i64, Fault> {
        Ok(self.machine.region(self.caller, id, bytes, wait)?)
    }

    pub fn region_bytes(self, id: u32) -> Result<i64, Fault> {
        self.machine.charge_region_search()?;
        Ok(self.machine.region_bytes(self.caller, id))
    }

    pub fn region_free(self, id: u32, wait: u32) -> Result<i32, Fault> {
        Ok(self.machine.region_free(self.caller, id, wait)?)
    }

    pub fn namespace(self, nsid: u32, to: u64) -> Result<i32, Fault> {
        self.machine.meter.charge(self.machine.published().namespaces.len() as u64 * ENTRY_WORK)?;
        let Some(info) = namespace_info(self.machine, nsid) else { return Ok(abi::ERROR_NOT_FOUND) };
        self.memory.slice_mut(to, info.len())?.copy_from_slice(&info);
        Ok(abi::DONE)
    }

    pub fn flush(self, wait: u32) -> Result<i32, Fault> {
        self.machine.meter.charge(STORE_WORK)?;
        Ok(self.machine.flush_bank(self.caller, wait))
    }

    pub fn literals_load(self, literals: u64, bytes: u32, flags: u32) -> Result<i32, Fault> {
        self.machine.literals_load(self.caller, self.memory, (literals, bytes), flags)
    }

    #[expect(clippy::too_many_arguments, reason = "the import's")]
    pub fn literals_find(
        self,
        token: u32,
        set: i32,
        port: u32,
        address: u64,
        bytes: u32,
        state: u32,
        to: u64,
        most: u32,
        wait: u32,
    ) -> Result<i32, Fault> {
        let search = LiteralSearch { token, set, port, address, bytes, state, to, most, wait };
        self.machine.literals_find(self.caller, self.memory, search)
    }

    #[expect(clippy::too_many_arguments, reason = "the import's")]
    pub fn keys_find(
        self,
        token: u32,
        port: u32,
        address: u64,
        key_bytes: u32,
        stride_bytes: u32,
        count: u32,
        order: u32,
        key: u64,
        wait: u32,
    ) -> Result<i32, Fault> {
        let layout = Layout { key_bytes, stride_bytes, count, order };
        self.machine.keys_find(self.caller, self.memory, KeySearch { token, port, address, layout, key, wait })
    }

    pub fn literals_free(self, set: i32) -> Result<i32, Fault> {
        Ok(self.machine.literals_free(self.caller, set))
    }

    pub fn sleep(self, duration_ns: u64, wait: u32) -> Result<i32, Fault> {
        Ok(self.machine.sleep(self.caller, duration_ns, wait)?)
    }

    pub fn cancel(self, token: u32, wait: u32) -> Result<i32, Fault> {
        Ok(self.machine.cancel(self.caller, token, wait)?)
    }

    pub fn background(self, handler: u32, argument: u64) -> Result<i32, Fault> {
        Ok(self.machine.background(self.caller, handler, argument)?)
    }

    pub fn spu_id(self) -> Result<u32, Fault> {
        Ok(self.caller.spu.into())
    }

    pub fn spu_count(self) -> Result<u32, Fault> {
        Ok(self.machine.spus.len() as u32)
    }

    pub fn time_ns(self) -> Result<u64, Fault> {
        Ok(self.machine.now_ns)
    }

    pub fn print(self, text: u64, bytes: u32) -> Result<(), Fault> {
        let text = self.memory.slice(text, bytes.min(abi::PRINT_BYTES_MAX) as usize)?;
        Ok(self.machine.print(self.caller, text)?)
    }

    pub fn count(self, counter: u32, delta: i64) -> Result<(), Fault> {
        self.machine.count(self.caller, counter, delta);
        Ok(())
    }

    pub fn flash_geometry(self, to: u64) -> Result<i32, Fault> {
        self.machine.flash_geometry(self.caller, self.memory, to)
    }

    pub fn flash_bad_blocks(self, die: u32, to: u64, most: u32) -> Result<i32, Fault> {
        self.machine.flash_bad_blocks(self.caller, self.memory, die, (to, most))
    }

    #[expect(clippy::too_many_arguments, reason = "the import's")]
    pub fn flash_read(
        self,
        die: u32,
        block: u32,
        page: u32,
        offset: u32,
        bytes: u32,
        peer: u32,
        to: u64,
        spare: u64,
        spare_bytes: u32,
        wait: u32,
    ) -> Result<i32, Fault> {
        let read = FlashRead { die, block, page, offset, bytes, peer, to, spare, spare_bytes, wait };
        self.machine.flash_read(self.caller, self.memory, &read)
    }

    pub fn flash_program(self, die: u32, pages: u64, count: u32, wait: u32) -> Result<i32, Fault> {
        self.machine.flash_program(self.caller, self.memory, (die, pages, count), wait)
    }

    pub fn flash_erase(self, die: u32, blocks: u64, count: u32, wait: u32) -> Result<i32, Fault> {
        self.machine.flash_erase(self.caller, self.memory, (die, blocks, count), wait)
    }

    pub fn flash_zero_peer(self, peer: u32, offset: u64, bytes: u32) -> Result<i32, Fault> {
        self.machine.flash_zero_peer(self.caller, peer, offset, bytes)
    }

    pub fn flash_pause(self, wait: u32) -> Result<i32, Fault> {
        Ok(self.machine.flash_pause(self.caller, wait))
    }
}
