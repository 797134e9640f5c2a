//! What the device reports about itself (control request STATISTICS), as the command reads it. docs/statistics.md describes
//! the document; a field that an older device does not send reads as zero.

use serde::{Deserialize, Serialize};
use willow_device::accounts::AccountStatistics;
pub use willow_device::histogram::LatencySummary as Latency;
use willow_device::model::ModelStatistics;
use willow_device::punctuality::ClockStatistics;
use willow_device::statistics::{AppStatistics, FlashStatistics, SpuCounters};

/// A namespace.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Namespace {
    /// NSID.
    pub nsid: u32,
    /// Commands that read data.
    pub read_commands: u64,
    /// Commands that write data.
    pub write_commands: u64,
    /// Other commands.
    pub other_commands: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Commands that failed.
    pub errors: u64,
    /// Of them for the media's sake.
    pub media_errors: u64,
    /// Latencies of reads.
    pub read_latency: Latency,
    /// Latencies of writes.
    pub write_latency: Latency,
    /// Latencies of others.
    pub other_latency: Latency,
}

/// A queue.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Queue {
    /// Controller.
    pub controller: u16,
    /// Queue; 0 is the admin queue.
    pub queue: u16,
    /// The host's name.
    pub host: String,
    /// Entries.
    pub entries: u32,
    /// Commands under way.
    pub in_flight: u32,
    /// Commands completed.
    pub commands: u64,
    /// Of them failed.
    pub errors: u64,
    /// Latencies.
    pub latency: Latency,
}

/// A host.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Host {
    /// Its name; empty: all that proved nothing.
    pub host: String,
    /// The host that asked for its ticket, where it came by one, else empty.
    pub issuer: String,
    /// Its connections.
    pub connections: u32,
    /// Bytes held for it.
    pub held_bytes: u64,
    /// Bytes that are to be sent to it.
    pub queued_bytes: u64,
    /// Commands whose data it was asked for and has not sent.
    pub fetching: u32,
    /// Commands that wait for a buffer.
    pub waiting_for_buffer: u32,
    /// Requests that wait for a place in the device.
    pub waiting_for_device: u32,
    /// Its requests in the device.
    pub in_device: u32,
    /// Commands that had to wait.
    pub waited: u64,
    /// What was refused.
    pub refused: u64,
}

/// What the transports add.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Transport {
    /// The device's process.
    pub pid: Option<u32>,
    /// Subsystem's name.
    pub nqn: String,
    /// Controllers.
    pub controllers: u32,
    /// Bytes of data buffers in use.
    pub buffer_bytes: u64,
    /// Bytes held for hosts and connections in all.
    pub held_bytes: u64,
    /// One a host.
    pub hosts: Vec<Host>,
    /// One a namespace.
    pub namespaces: Vec<Namespace>,
    /// One a queue.
    pub queues: Vec<Queue>,
}

/// The whole document.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Statistics {
    /// The device's clock.
    pub now_ns: u64,
    /// One an SPU.
    pub spus: Vec<SpuCounters>,
    /// One an app.
    pub apps: Vec<AppStatistics>,
    /// What the host kernel and each process of a user had.
    pub accounts: Vec<AccountStatistics>,
    /// Bytes of all regions.
    pub used_bytes: u64,
    /// Bytes that the media can hold, where something other than the disk bounds it.
    pub capacity_bytes: Option<u64>,
    /// Operations under way in the store.
    pub store_in_flight: u64,
    /// The flash, where an FTL serves the banks.
    pub flash: Option<FlashStatistics>,
    /// How late completions are, under the real clock.
    pub clock: Option<ClockStatistics>,
    /// What the modelled hardware did, under a clock with a model.
    pub model: Option<ModelStatistics>,
    /// What the transports add.
    pub transport: Transport,
}
