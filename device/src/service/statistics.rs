//! Counters of the device; [`Statistics`] is what `willow stat` shows (docs/statistics.md).

use crate::bridge::accounts::AccountStatistics;
use crate::media::delegate::FlashHealth;
pub use crate::spu::counters::{AppCounters, ProtectionCounters, SpuCounters};
use serde::{Deserialize, Serialize};

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

/// The flash behind an FTL.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FlashStatistics {
    /// The app that serves the banks.
    pub ftl: String,
    /// Instances of it that were started anew, since they had failed while they served.
    pub restarts: u64,
    /// How often what was answered and not flushed may have been lost with one.
    pub losses: u64,
    /// Why a bank has failed, where one has: its FTL does not come up.
    pub failed: Option<String>,
    /// How far through its life the flash is.
    #[serde(default)]
    pub health: FlashHealth,
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
    /// Bytes of all namespaces that cannot be read until they are written, since hosts said so (Write Uncorrectable).
    #[serde(default)]
    pub uncorrectable_bytes: u64,
    /// Operations under way in the store.
    pub store_in_flight: u64,
    /// Answers and ends of operations that nobody waited for any more, since the device started: a defect of the device where it is not 0.
    #[serde(default)]
    pub strays: u64,
    /// The flash, where an FTL serves the banks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flash: Option<FlashStatistics>,
    /// How late completions are, under the real clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock: Option<crate::model::punctuality::ClockStatistics>,
    /// What the modelled hardware did, under a clock with a model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<crate::model::ModelStatistics>,
}
