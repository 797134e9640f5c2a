//! The runtime of trusted native apps: the same handlers without a sandbox, to measure what it costs. They come with the program;
//! nothing that a user installs ever runs here.
//!
//! Invariant: local addresses are pointers that the handler vouches for (the SDK's `Host` contract); SPU-OS uses them within the
//! call, or, for a pending DMA, until its completion, and never after the instance is gone.

use super::abi;
use super::dma::{Dma, End};
use super::meter::Fault;
use super::os::{Caller, LocalMemory, Machine, WildPointer};
use super::{Instance, Offered};
use willow_sdk::native::{BoxedInstance, Host, NativeApp, Strided};
use willow_sdk::{Namespace, RequestInfo};

/// A native app's instance on one SPU.
pub(crate) struct NativeInstance {
    instance: BoxedInstance,
    caller: Caller,
}

/// What a call into the app reaches.
struct Imports<'a> {
    machine: &'a mut Machine,
    caller: Caller,
}

/// The program's own memory, as far as the handler vouches for the range.
struct NativeMemory;

impl LocalMemory for NativeMemory {
    #[inline]
    fn slice(&self, pointer: u64, bytes: usize) -> Result<&[u8], WildPointer> {
        if bytes == 0 {
            return Ok(&[]);
        }
        // SAFETY: the caller of the import vouches for the range (contract of `Host`), and waits for us.
        Ok(unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(pointer as usize), bytes) })
    }

    #[inline]
    fn slice_mut(&mut self, pointer: u64, bytes: usize) -> Result<&mut [u8], WildPointer> {
        if bytes == 0 {
            return Ok(&mut []);
        }
        // SAFETY: as above, and nobody else uses what is written to (contract of `Host`).
        Ok(unsafe { std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut(pointer as usize), bytes) })
    }
}

impl NativeInstance {
    pub fn new(app: &'static dyn NativeApp, caller: Caller) -> Self {
        NativeInstance { instance: app.instantiate(), caller }
    }
}

impl Instance for NativeInstance {
    #[inline]
    fn start(&mut self, machine: &mut Machine, token: u32, handler: u8) -> Result<Offered, String> {
        machine.meter.allow(u64::MAX);
        match self.instance.start(&mut Imports { machine, caller: self.caller }, token, handler.into()) {
            Ok(0) => Ok(Offered::Taken),
            Ok(_) => Ok(Offered::NoThread),
            Err(trap) => Err(trap.0),
        }
    }

    #[inline]
    fn complete(&mut self, machine: &mut Machine, wait: u32, result: i64) -> Result<(), String> {
        machine.meter.allow(u64::MAX);
        self.instance.complete(&mut Imports { machine, caller: self.caller }, wait, result).map_err(|trap| trap.0)
    }

    fn local(&mut self, pointer: u64, bytes: usize) -> Result<&mut [u8], String> {
        if bytes == 0 {
            return Ok(&mut []);
        }
        // SAFETY: the handler vouches for the range until the DMA is completed (contract of `Host`), and waits for that.
        Ok(unsafe { std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut(pointer as usize), bytes) })
    }

    fn instructions(&self) -> u64 {
        0
    }

    fn is_metered(&self) -> bool {
        false
    }

    fn memory_bytes(&self) -> u64 {
        0
    }

    fn enter(&mut self, caller: Caller) {
        self.caller = caller;
    }
}

/// A handler's own pointer cannot be wild: it is trusted.
fn trusted<T: From<i32>>(result: Result<T, impl Into<Fault>>) -> T {
    result.unwrap_or_else(|_| abi::ERROR_ARGUMENT.into())
}

impl Host for Imports<'_> {
    fn request_info(&mut self, token: u32) -> RequestInfo {
        let info = self.machine.request_info(self.caller, token);
        let word = |at: usize| u32::from_le_bytes([info[at], info[at + 1], info[at + 2], info[at + 3]]);
        RequestInfo {
            originating_hre: word(0),
            source: word(4),
            body_bytes: word(8),
            reply_bytes: word(12),
            handler: word(16),
            argument_bytes: word(20),
        }
    }

    #[inline]
    fn receive_bytes_at(&mut self, token: u32, offset: u32, to: &mut [u8]) -> u32 {
        let (pointer, bytes) = (to.as_mut_ptr().expose_provenance() as u64, to.len() as u32);
        trusted(self.machine.receive_bytes_at(self.caller, &mut NativeMemory, token, offset, (pointer, bytes))).max(0)
            as u32
    }

    #[inline]
    fn respond(&mut self, token: u32, status: u32, result: u32) {
        self.machine.respond(self.caller, token, status, result);
    }

    #[inline]
    unsafe fn dma(
        &mut self,
        token: u32,
        source_port: u32,
        source_address: u64,
        destination_port: u32,
        destination_address: u64,
        bytes: u32,
        wait: u32,
    ) -> i32 {
        let source = End { port: source_port, address: source_address, stride: 0 };
        let destination = End { port: destination_port, address: destination_address, stride: 0 };
        let dma = Dma { token, source, destination, segment_bytes: bytes, segments: 1, wait };
        trusted(self.machine.dma(self.caller, &mut NativeMemory, dma))
    }

    #[inline]
    unsafe fn dma_strided(&mut self, token: u32, strided: &Strided, wait: u32) -> i32 {
        let source = End { port: strided.source_port, address: strided.source_address, stride: strided.source_stride };
        let destination = End {
            port: strided.destination_port,
            address: strided.destination_address,
            stride: strided.destination_stride,
        };
        let (segment_bytes, segments) = (strided.segment_bytes, strided.segments);
        let dma = Dma { token, source, destination, segment_bytes, segments, wait };
        trusted(self.machine.dma(self.caller, &mut NativeMemory, dma))
    }

    fn compare(&mut self, token: u32, nv_address: u64, body_offset: u64, bytes: u32, wait: u32) -> i32 {
        trusted(self.machine.compare(self.caller, token, nv_address, body_offset, bytes, wait))
    }

    unsafe fn checksum(&mut self, token: u32, port: u32, address: u64, bytes: u32, seed: u32, wait: u32) -> i32 {
        let request = (token, port, address, bytes, seed, wait);
        trusted(self.machine.checksum(self.caller, &NativeMemory, request))
    }

    fn checksum_value(&mut self) -> u32 {
        self.machine.checksum_value
    }

    unsafe fn rpc_start(
        &mut self,
        token: u32,
        destination: i32,
        app: i32,
        handler: u32,
        body_bytes: u32,
        reply: *mut u8,
        reply_bytes: u32,
    ) -> i32 {
        let reply = (reply.expose_provenance() as u64, reply_bytes);
        let message = (destination, app, handler, body_bytes);
        trusted(self.machine.rpc_start(self.caller, &NativeMemory, token, message, reply))
    }

    unsafe fn rpc_append(&mut self, handle: i32, port: u32, address: u64, bytes: u32) -> i32 {
        trusted(self.machine.rpc_append(self.caller, &NativeMemory, handle, port, address, bytes))
    }

    unsafe fn rpc_finish(&mut self, handle: i32, wait: u32) -> i32 {
        trusted(self.machine.rpc_finish(self.caller, handle, wait))
    }

    fn app_number(&mut self, name: &str) -> i32 {
        self.machine.find_app(name.as_bytes()).map_or(abi::ERROR_NOT_FOUND, i32::from)
    }

    fn region(&mut self, id: u32, bytes: u64, wait: u32) -> i64 {
        trusted(self.machine.region(self.caller, id, bytes, wait))
    }

    fn region_bytes(&mut self, id: u32) -> i64 {
        self.machine.region_bytes(self.caller, id)
    }

    fn region_free(&mut self, id: u32, wait: u32) -> i32 {
        trusted(self.machine.region_free(self.caller, id, wait))
    }

    fn namespace(&mut self, nsid: u32) -> Option<Namespace> {
        let namespace = self.machine.namespaces.iter().find(|namespace| namespace.nsid == nsid)?;
        Some(Namespace {
            base: namespace.base,
            bank_bytes: namespace.bank_bytes,
            command_set: if namespace.csi == crate::CommandSet::Kv { 1 } else { 0 },
            block_bytes: namespace.block_bytes,
            blocks: namespace.size_bytes / u64::from(namespace.block_bytes.max(1)),
        })
    }

    fn flush(&mut self, wait: u32) -> i32 {
        self.machine.flush_bank(self.caller, wait)
    }

    fn spu_id(&mut self) -> u32 {
        self.caller.spu.into()
    }

    fn spu_count(&mut self) -> u32 {
        self.machine.spus.len() as u32
    }

    fn time_ns(&mut self) -> u64 {
        self.machine.now_ns
    }

    fn print(&mut self, text: &[u8]) {
        // Nothing is past the budget of a native app.
        let _ = self.machine.print(self.caller, text);
    }

    fn count(&mut self, counter: u32, delta: i64) {
        self.machine.count(self.caller, counter, delta);
    }
}
