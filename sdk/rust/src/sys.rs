//! The imports ([`crate::imports`]) as the SDK uses them, and the numbers of the ABI.
//!
//! Who may call it: the SDK's own modules. Pointers are as the ABI has them: an address that the import may still use after
//! it has returned 1 must stay valid until `complete` brings its wait number.

use crate::{Error, Namespace, RequestInfo, imports};

pub use imports::{
    background, cancel, checksum, checksum_value, compare, count, decompress, dma, dma_strided, fft, flush, keys_find,
    literals_find, literals_load, multiply_add, region, region_bytes, region_free, respond, rpc_append, rpc_finish,
    rpc_start, sleep, spu_count, spu_id, subscribers, time_ns, upcall_start,
};

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
    /// Nothing, as a source: the permission to write is looked up.
    pub const NOTHING: u32 = 4;
    /// Added to a port of a DMA: a permission miss parks it.
    pub const PARK: u32 = 0x100;
    /// Added to the source's port of a DMA: a read of NV memory is done at once or not at all.
    pub const NOW: u32 = 0x200;
    /// Added to [`NV`] of a DMA, for each SPU as often as its number says, and once more: that SPU's NV memory.
    pub const SPU: u32 = 0x1_0000;
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

/// A local buffer's address as the ABI carries it.
#[inline]
pub fn address(pointer: *const u8) -> u64 {
    pointer.expose_provenance() as u64
}

#[inline]
pub fn request_info(token: u32) -> RequestInfo {
    let mut words = [0u32; 8];
    // SAFETY: the import writes 32 bytes, which `words` has.
    unsafe { imports::request_info(token, words.as_mut_ptr().cast()) };
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
    let code = unsafe { imports::namespace(nsid, words.as_mut_ptr().cast()) };
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

/// Gives a set of literals up; natively it may be that the instance is gone, and its sets with it.
pub fn literals_free(set: i32) {
    #[cfg(not(target_arch = "wasm32"))]
    if !crate::native::is_hosted() {
        return;
    }
    imports::literals_free(set);
}

pub fn print(text: &[u8]) {
    // SAFETY: the import reads `text` before it returns.
    unsafe { imports::print(text.as_ptr(), text.len() as u32) }
}
