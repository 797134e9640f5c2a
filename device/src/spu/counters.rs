//! Counters of SPU-OS, as they are shown (docs/statistics.md).

use crate::model::accelerator::AcceleratorCounters;
use serde::{Deserialize, Serialize};

/// Counters of one SPU since the device started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpuCounters {
    /// Requests that arrived at this SPU.
    pub requests: u64,
    /// Instructions that apps ran here (0 for native apps, which are not metered).
    pub instructions: u64,
    /// Bytes that DMA read from NV memory.
    pub nv_read_bytes: u64,
    /// Bytes that DMA wrote to NV memory (zeroing included).
    pub nv_write_bytes: u64,
    /// DMA operations.
    pub dmas: u64,
    /// Operations that had to wait for the store.
    pub store_waits: u64,
    /// Requests that waited since no thread of their app was free.
    pub thread_waits: u64,
    /// Use of its accelerators.
    #[serde(default)]
    pub accelerators: AcceleratorCounters,
}

/// Counters of one app since it was installed or the device started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppCounters {
    /// Requests.
    pub requests: u64,
    /// Instructions.
    pub instructions: u64,
    /// Times that it trapped or went past its budget.
    pub traps: u64,
    /// RPCs that it sent to SPUs and hosts.
    pub rpcs: u64,
    /// Bytes that its DMAs moved.
    #[serde(default)]
    pub dma_bytes: u64,
    /// What SPU-OS did for it, as instructions: docs/abi.md.
    #[serde(default)]
    pub host_work: u64,
}

/// Counters of protection since the device started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProtectionCounters {
    /// Processes of users that the device knows.
    pub processes: u64,
    /// Extents in all permission tables.
    pub permissions: u64,
    /// Look-ups that found no permission.
    pub misses: u64,
    /// Extents evicted for want of room.
    pub evictions: u64,
    /// Upcalls to the agent about misses.
    pub upcalls: u64,
    /// DMAs parked now.
    pub parked: u64,
}
