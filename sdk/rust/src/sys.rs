//! The imports of docs/abi.md, one function each: in a module they are WebAssembly imports, natively they go to the
//! [`Host`](crate::native::Host) that runs the handler.
//!
//! Who may call it: the SDK's own modules. Pointers are as the ABI has them: an address that the import may still use after
//! it has returned 1 must stay valid until `complete` brings its wait number.

/// Port numbers of the ABI.
pub mod port {
    /// Local memory.
    pub const LOCAL: u32 = 0;
    /// NV memory of this SPU.
    pub const NV: u32 = 1;
    /// Network: the body as a source, the reply as a destination.
    pub const NETWORK: u32 = 2;
    /// Zeroes, as a source.
    pub const ZEROES: u32 = 3;
    /// Added to a port of a DMA: a permission miss parks it.
    pub const PARK: u32 = 0x100;
    /// Added to the source's port of a DMA: a read of NV memory is done at once or not at all.
    pub const NOW: u32 = 0x200;
}

/// An import's result: finished at once.
pub const DONE: i32 = 0;
/// An import's result: `complete` will bring what came of it.
pub const PENDING: i32 = 1;
/// `compare`'s result: finished at once, and they differ.
pub const DIFFERENT: i32 = 2;
/// A DMA's result with [`port::NOW`]: it would have had to wait, nothing was moved.
pub const NOT_NOW: i32 = 3;
/// `region`'s result: `complete` will bring it.
pub const REGION_PENDING: i64 = -1;

#[cfg(target_arch = "wasm32")]
mod imports {
    #[link(wasm_import_module = "willow")]
    unsafe extern "C" {
        pub fn request_info(token: u32, to: *mut u32);
        pub fn receive_bytes_at(token: u32, offset: u32, to: *mut u8, bytes: u32) -> i32;
        pub safe fn respond(token: u32, status: u32, result: u32);
        pub fn dma(
            token: u32,
            source_port: u32,
            source_address: u64,
            destination_port: u32,
            destination_address: u64,
            bytes: u32,
            wait: u32,
        ) -> i32;
        pub fn dma_strided(
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
        ) -> i32;
        pub safe fn compare(token: u32, nv_address: u64, body_offset: u64, bytes: u32, wait: u32) -> i32;
        pub fn checksum(token: u32, port: u32, address: u64, bytes: u32, seed: u32, wait: u32) -> i32;
        pub safe fn checksum_value() -> u32;
        pub fn rpc_start(
            token: u32,
            destination: i32,
            app: i32,
            handler: u32,
            body_bytes: u32,
            reply: *mut u8,
            reply_bytes: u32,
        ) -> i32;
        pub fn rpc_append(handle: i32, port: u32, address: u64, bytes: u32) -> i32;
        pub fn rpc_finish(handle: i32, wait: u32) -> i32;
        pub fn app_number(name: *const u8, bytes: u32) -> i32;
        pub safe fn region(id: u32, bytes: u64, wait: u32) -> i64;
        pub safe fn region_bytes(id: u32) -> i64;
        pub safe fn region_free(id: u32, wait: u32) -> i32;
        pub fn namespace(nsid: u32, to: *mut u64) -> i32;
        pub safe fn flush(wait: u32) -> i32;
        pub safe fn spu_id() -> u32;
        pub safe fn spu_count() -> u32;
        pub safe fn time_ns() -> u64;
        pub fn print(text: *const u8, bytes: u32);
        pub safe fn count(counter: u32, delta: i64);
    }
}

/// A local buffer's address as the ABI carries it.
#[inline]
pub fn address(pointer: *const u8) -> u64 {
    pointer.expose_provenance() as u64
}

#[cfg(target_arch = "wasm32")]
mod wasm {
    use super::imports;
    use crate::{Error, Namespace, RequestInfo};

    pub use imports::{
        checksum, checksum_value, compare, count, dma, dma_strided, flush, region, region_bytes, region_free, respond,
        rpc_append, rpc_finish, rpc_start, spu_count, spu_id, time_ns,
    };

    #[inline]
    pub fn request_info(token: u32) -> RequestInfo {
        let mut words = [0u32; 8];
        // SAFETY: the import writes 32 bytes, which `words` has.
        unsafe { imports::request_info(token, words.as_mut_ptr()) };
        RequestInfo {
            originating_hre: words[0],
            source: words[1],
            body_bytes: words[2],
            reply_bytes: words[3],
            handler: words[4],
            argument_bytes: words[5],
        }
    }

    #[inline]
    pub fn receive_bytes_at(token: u32, offset: u32, to: &mut [u8]) -> u32 {
        // SAFETY: the import writes at most `to.len()` bytes before it returns.
        unsafe { imports::receive_bytes_at(token, offset, to.as_mut_ptr(), to.len() as u32) }.max(0) as u32
    }

    pub fn app_number(name: &str) -> i32 {
        // SAFETY: the import reads `name` before it returns.
        unsafe { imports::app_number(name.as_ptr(), name.len() as u32) }
    }

    pub fn namespace(nsid: u32) -> Result<Namespace, Error> {
        let mut words = [0u64; 4];
        // SAFETY: the import writes 32 bytes, which `words` has.
        let code = unsafe { imports::namespace(nsid, words.as_mut_ptr()) };
        if code < 0 {
            return Err(Error::from_code(code.into()));
        }
        Ok(Namespace {
            base: words[0],
            bank_bytes: words[1],
            command_set: words[2] as u32,
            block_bytes: (words[2] >> 32) as u32,
            blocks: words[3],
        })
    }

    pub fn print(text: &[u8]) {
        // SAFETY: the import reads `text` before it returns.
        unsafe { imports::print(text.as_ptr(), text.len() as u32) }
    }
}
#[cfg(target_arch = "wasm32")]
pub use wasm::*;

#[cfg(not(target_arch = "wasm32"))]
mod hosted {
    use crate::native::{Strided, with_host};
    use crate::{Error, Namespace, RequestInfo};

    #[inline]
    pub fn request_info(token: u32) -> RequestInfo {
        with_host(|host| host.request_info(token))
    }
    #[inline]
    pub fn receive_bytes_at(token: u32, offset: u32, to: &mut [u8]) -> u32 {
        with_host(|host| host.receive_bytes_at(token, offset, to))
    }
    #[inline]
    pub fn respond(token: u32, status: u32, result: u32) {
        with_host(|host| host.respond(token, status, result));
    }
    /// # Safety
    /// Local addresses are valid until the wait ends.
    #[inline]
    pub unsafe fn dma(
        token: u32,
        source_port: u32,
        source_address: u64,
        destination_port: u32,
        destination_address: u64,
        bytes: u32,
        wait: u32,
    ) -> i32 {
        // SAFETY: as the caller promises.
        with_host(|host| unsafe {
            host.dma(token, source_port, source_address, destination_port, destination_address, bytes, wait)
        })
    }
    /// # Safety
    /// Local addresses are valid until the wait ends.
    #[allow(clippy::too_many_arguments)]
    #[inline]
    pub unsafe fn dma_strided(
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
    ) -> i32 {
        let strided = Strided {
            source_port,
            source_address,
            source_stride,
            destination_port,
            destination_address,
            destination_stride,
            segment_bytes,
            segments,
        };
        // SAFETY: as the caller promises.
        with_host(|host| unsafe { host.dma_strided(token, &strided, wait) })
    }
    #[inline]
    pub fn compare(token: u32, nv_address: u64, body_offset: u64, bytes: u32, wait: u32) -> i32 {
        with_host(|host| host.compare(token, nv_address, body_offset, bytes, wait))
    }
    /// # Safety
    /// A local address is valid until the wait ends.
    #[inline]
    pub unsafe fn checksum(token: u32, port: u32, address: u64, bytes: u32, seed: u32, wait: u32) -> i32 {
        // SAFETY: as the caller promises.
        with_host(|host| unsafe { host.checksum(token, port, address, bytes, seed, wait) })
    }
    #[inline]
    pub fn checksum_value() -> u32 {
        with_host(|host| host.checksum_value())
    }
    /// # Safety
    /// `reply` is valid for `reply_bytes` until the request has ended.
    #[inline]
    pub unsafe fn rpc_start(
        token: u32,
        destination: i32,
        app: i32,
        handler: u32,
        body_bytes: u32,
        reply: *mut u8,
        reply_bytes: u32,
    ) -> i32 {
        // SAFETY: as the caller promises.
        with_host(|host| unsafe { host.rpc_start(token, destination, app, handler, body_bytes, reply, reply_bytes) })
    }
    /// # Safety
    /// A local address is valid until the request has ended.
    #[inline]
    pub unsafe fn rpc_append(handle: i32, port: u32, address: u64, bytes: u32) -> i32 {
        // SAFETY: as the caller promises.
        with_host(|host| unsafe { host.rpc_append(handle, port, address, bytes) })
    }
    /// # Safety
    /// What was given to `rpc_start` and `rpc_append` is valid until the wait ends.
    #[inline]
    pub unsafe fn rpc_finish(handle: i32, wait: u32) -> i32 {
        // SAFETY: as the caller promises.
        with_host(|host| unsafe { host.rpc_finish(handle, wait) })
    }
    pub fn app_number(name: &str) -> i32 {
        with_host(|host| host.app_number(name))
    }
    pub fn region(id: u32, bytes: u64, wait: u32) -> i64 {
        with_host(|host| host.region(id, bytes, wait))
    }
    pub fn region_bytes(id: u32) -> i64 {
        with_host(|host| host.region_bytes(id))
    }
    pub fn region_free(id: u32, wait: u32) -> i32 {
        with_host(|host| host.region_free(id, wait))
    }
    pub fn namespace(nsid: u32) -> Result<Namespace, Error> {
        with_host(|host| host.namespace(nsid)).ok_or(Error::NotFound)
    }
    #[inline]
    pub fn flush(wait: u32) -> i32 {
        with_host(|host| host.flush(wait))
    }
    #[inline]
    pub fn spu_id() -> u32 {
        with_host(|host| host.spu_id())
    }
    #[inline]
    pub fn spu_count() -> u32 {
        with_host(|host| host.spu_count())
    }
    pub fn time_ns() -> u64 {
        with_host(|host| host.time_ns())
    }
    pub fn print(text: &[u8]) {
        with_host(|host| host.print(text));
    }
    pub fn count(counter: u32, delta: i64) {
        with_host(|host| host.count(counter, delta));
    }
}
#[cfg(not(target_arch = "wasm32"))]
pub use hosted::*;
