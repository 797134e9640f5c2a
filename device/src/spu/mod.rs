//! An SPU from inside: SPU-OS (requests, DMA, RPCs, regions) and the runtime of the apps on it.

pub mod abi;
mod costs;
pub(crate) mod dma;
pub(crate) mod module;
pub(crate) mod native;
pub(crate) mod os;
pub(crate) mod rpc;
pub(crate) mod timed;
pub(crate) mod wasm;

/// An instance of an app on one SPU. Every call runs to completion; an `Err` says why the app ends.
pub(crate) trait Instance {
    /// Offers a request: true where the app took it, false where no thread of it is free.
    fn start(&mut self, token: u32, handler: u8) -> Result<bool, String>;
    /// What a handler waited for has happened.
    fn complete(&mut self, wait: u32, result: i64) -> Result<(), String>;
    /// Puts bytes that a handler waits for into the app's memory, at the pointer that it gave.
    fn place(&mut self, memory: &(u64, Vec<u8>)) -> Result<(), String>;
    /// Instructions that the last call ran.
    fn instructions(&self) -> u64;
    /// False where instructions are not counted (native code).
    fn is_metered(&self) -> bool {
        true
    }
    /// Bytes of linear memory.
    fn memory_bytes(&self) -> u64;
}
