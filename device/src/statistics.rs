//! Counters of the device; [`Statistics`] is what `willow stat` shows (docs/statistics.md).

use crate::accounts::AccountStatistics;
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

/// An app's line in the statistics.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AppStatistics {
    /// Number.
    pub number: u16,
    /// Name.
    pub name: String,
    /// Counters of SPU-OS.
    #[serde(flatten)]
    pub counters: AppCounters,
    /// Bytes of its linear memories and tables, on all SPUs.
    #[serde(default)]
    pub memory_bytes: u64,
    /// Bytes of its regions of NV memory, in all banks.
    #[serde(default)]
    pub nv_bytes: u64,
    /// Messages that it puts together, and RPCs of its that are not answered.
    #[serde(default)]
    pub messages: u32,
    /// Ends of operations that it has been promised and not been told of; 0 for apps that no user installed.
    #[serde(default)]
    pub waits: u64,
    /// The app's own counters, 0..=15.
    pub user: Vec<i64>,
    /// Why it ended, where it has.
    pub ended: Option<String>,
    /// True where it did not come up with the device; `ended` says why.
    #[serde(default)]
    pub failed: bool,
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

/// Everything, at one moment.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Statistics {
    /// The device's clock.
    pub now_ns: u64,
    /// One an SPU, in order.
    pub spus: Vec<SpuCounters>,
    /// One an app.
    pub apps: Vec<AppStatistics>,
    /// What the host kernel, SPU-OS and each process of a user had of the device.
    #[serde(default)]
    pub accounts: Vec<AccountStatistics>,
    /// Protection.
    #[serde(default)]
    pub protection: ProtectionCounters,
    /// The regions of NV memory.
    pub regions: Vec<crate::region::Region>,
    /// Bytes of all regions, in all banks.
    pub used_bytes: u64,
    /// Bytes that the media can hold; `None`: only the disk bounds it.
    pub capacity_bytes: Option<u64>,
    /// Operations under way in the store.
    pub store_in_flight: u64,
    /// How late completions are, under the real clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock: Option<crate::punctuality::ClockStatistics>,
    /// What the modelled hardware did, under a clock with a model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<crate::model::ModelStatistics>,
}
