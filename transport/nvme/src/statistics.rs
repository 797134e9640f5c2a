//! Counters and latency histograms of namespaces and queues: cheap enough to be always on. All counts are since the
//! subsystem was made; nothing is kept over restarts.

use serde::Serialize;

pub use willow_device::histogram::{Histogram, LatencySummary};

/// What commands do to a namespace, for counting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Data to the host: Read, Retrieve, List.
    Read,
    /// Data to the media: Write, Store.
    Write,
    /// All else.
    Other,
}

/// Counters of a namespace.
#[derive(Clone, Default)]
pub(crate) struct NamespaceCounters {
    pub read_commands: u64,
    pub write_commands: u64,
    pub other_commands: u64,
    pub read_bytes: u64,
    pub write_bytes: u64,
    pub errors: u64,
    pub media_errors: u64,
    pub read: Histogram,
    pub write: Histogram,
    pub other: Histogram,
}

impl NamespaceCounters {
    #[inline]
    pub fn record(&mut self, direction: Direction, bytes: u64, nanoseconds: u64) {
        match direction {
            Direction::Read => {
                self.read_commands += 1;
                self.read_bytes += bytes;
                self.read.record(nanoseconds);
            }
            Direction::Write => {
                self.write_commands += 1;
                self.write_bytes += bytes;
                self.write.record(nanoseconds);
            }
            Direction::Other => {
                self.other_commands += 1;
                self.other.record(nanoseconds);
            }
        }
    }
}

/// A namespace's line in the statistics.
#[derive(Clone, Debug, Serialize)]
pub struct NamespaceStatistics {
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
    /// Of them, for the media's sake.
    pub media_errors: u64,
    /// Latencies from a command's arrival to its completion.
    pub read_latency: LatencySummary,
    /// Same of writes.
    pub write_latency: LatencySummary,
    /// Same of others.
    pub other_latency: LatencySummary,
}

/// A queue's line in the statistics.
#[derive(Clone, Debug, Serialize)]
pub struct QueueStatistics {
    /// Controller.
    pub controller: u16,
    /// Queue; 0 is the admin queue.
    pub queue: u16,
    /// The host's name.
    pub host: String,
    /// Entries of its submission queue.
    pub entries: u32,
    /// Commands under way.
    pub in_flight: u32,
    /// Commands completed.
    pub commands: u64,
    /// Of them failed.
    pub errors: u64,
    /// Latencies of all its commands but those that wait by their nature (async events, receive).
    pub latency: LatencySummary,
}

/// A host's line in the statistics: what it holds now, and how often there was no room for it.
#[derive(Clone, Debug, Serialize)]
pub struct HostStatistics {
    /// Its name; empty for all connections that proved nothing, and those of discovery controllers.
    pub host: String,
    /// The host that asked for its ticket, where it came by one, else empty: what all hold that came by a host's tickets is counted together.
    pub issuer: String,
    /// Its connections.
    pub connections: u32,
    /// Bytes held for it.
    pub held_bytes: u64,
    /// Bytes that are to be sent to it.
    pub queued_bytes: u64,
    /// Commands whose data it was asked for (R2T) and has not sent.
    pub fetching: u32,
    /// Commands that wait for a buffer.
    pub waiting_for_buffer: u32,
    /// Requests that wait for a place in the device.
    pub waiting_for_device: u32,
    /// Its requests in the device.
    pub in_device: u32,
    /// Commands that had to wait so far, for either.
    pub waited: u64,
    /// Connects that found no place, and commands that waited in vain, so far; of strangers, all Connects that were refused.
    pub refused: u64,
}

/// All of the subsystem's counters at one moment.
#[derive(Clone, Debug, Serialize)]
pub struct Statistics {
    /// Subsystem's name.
    pub nqn: String,
    /// Controllers that exist.
    pub controllers: u32,
    /// Bytes of data buffers in use.
    pub buffer_bytes: u64,
    /// Bytes held for hosts and connections in all: data buffers, what was received and not taken, output that was not sent.
    pub held_bytes: u64,
    /// Of them for connections that proved nothing, and those of discovery controllers.
    pub unproved_bytes: u64,
    /// Such connections.
    pub unproved_connections: u32,
    /// One a host with connections, or with something held; first the one of strangers.
    pub hosts: Vec<HostStatistics>,
    /// One a namespace.
    pub namespaces: Vec<NamespaceStatistics>,
    /// One a queue.
    pub queues: Vec<QueueStatistics>,
}
