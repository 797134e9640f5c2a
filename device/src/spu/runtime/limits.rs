//! What an app's instance may have of the machine's memory: its linear memory and its tables together, within the preset's data segment.
//!
//! Invariant: what is counted is what the instance has; growth past the limit fails in the guest (`memory.grow` and `table.grow` give
//! -1), and at instantiation it is a refusal.

use wasmtime::ResourceLimiter;

/// Bytes that an element of a table is counted as: a pointer, twice, since a table that grows keeps as much again in reserve.
pub(crate) const TABLE_ELEMENT_BYTES: u64 = 16;

/// What an instance may have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InstanceLimits {
    /// Bytes of its memory and tables.
    pub data_bytes_max: u64,
    /// What it may do between two waits.
    pub budget: u64,
    /// What it may do in `_initialize`, for which everybody waits, also where its runs make way.
    pub initialize_budget: u64,
}

/// The limiter of one instance.
pub(crate) struct MemoryLimits {
    bytes: u64,
    bytes_max: u64,
    /// What the growth that was allowed last adds: taken back where it failed for another reason.
    growing_bytes: u64,
}

impl MemoryLimits {
    /// Nothing yet, and at most `bytes_max`.
    pub fn new(bytes_max: u64) -> Self {
        MemoryLimits { bytes: 0, bytes_max, growing_bytes: 0 }
    }

    /// Bytes of its memory and tables.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    fn grow(&mut self, (current, desired): (usize, usize), maximum: Option<usize>, unit_bytes: u64) -> bool {
        self.growing_bytes = 0;
        // Past the module's own maximum it fails in any case.
        if maximum.is_some_and(|maximum| desired > maximum) {
            return false;
        }
        let grows_bytes = (desired.saturating_sub(current) as u64).saturating_mul(unit_bytes);
        let Some(bytes) = self.bytes.checked_add(grows_bytes).filter(|bytes| *bytes <= self.bytes_max) else {
            return false;
        };
        (self.bytes, self.growing_bytes) = (bytes, grows_bytes);
        true
    }

    fn failed(&mut self) {
        self.bytes -= std::mem::take(&mut self.growing_bytes);
    }
}

impl ResourceLimiter for MemoryLimits {
    fn memory_growing(&mut self, current: usize, desired: usize, maximum: Option<usize>) -> wasmtime::Result<bool> {
        Ok(self.grow((current, desired), maximum, 1))
    }

    fn memory_grow_failed(&mut self, _: wasmtime::Error) -> wasmtime::Result<()> {
        self.failed();
        Ok(())
    }

    fn table_growing(&mut self, current: usize, desired: usize, maximum: Option<usize>) -> wasmtime::Result<bool> {
        Ok(self.grow((current, desired), maximum, TABLE_ELEMENT_BYTES))
    }

    fn table_grow_failed(&mut self, _: wasmtime::Error) -> wasmtime::Result<()> {
        self.failed();
        Ok(())
    }

    fn instances(&self) -> usize {
        1
    }

    fn memories(&self) -> usize {
        1
    }
}
