//! Counters and latency histograms of namespaces and queues: cheap enough to be always on. All counts are since the
//! subsystem was made; nothing is kept over restarts.

use serde::Serialize;

/// Buckets of a histogram: for each power of two of nanoseconds four of equal width; 40 powers reach 18 minutes.
const BUCKETS: usize = 40 * 4;

/// Latencies in logarithmic buckets, each at most a quarter of its value wide.
#[derive(Clone)]
pub struct Histogram {
    buckets: Box<[u64; BUCKETS]>,
    count: u64,
    sum_ns: u64,
    max_ns: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { buckets: Box::new([0; BUCKETS]), count: 0, sum_ns: 0, max_ns: 0 }
    }
}

fn bucket_of(nanoseconds: u64) -> usize {
    if nanoseconds < 4 {
        return nanoseconds as usize;
    }
    let power = 63 - nanoseconds.leading_zeros() as usize;
    ((power - 1) * 4 + ((nanoseconds >> (power - 2)) & 3) as usize).min(BUCKETS - 1)
}

fn bucket_end(bucket: usize) -> u64 {
    if bucket < 4 {
        return bucket as u64;
    }
    let power = bucket / 4 + 1;
    ((4 + bucket as u64 % 4 + 1) << (power - 2)) - 1
}

impl Histogram {
    /// Counts one.
    #[inline]
    pub fn record(&mut self, nanoseconds: u64) {
        self.buckets[bucket_of(nanoseconds)] += 1;
        self.count += 1;
        self.sum_ns = self.sum_ns.wrapping_add(nanoseconds);
        self.max_ns = self.max_ns.max(nanoseconds);
    }

    /// Upper end of the bucket that holds the value below which `share` (0.0 to 1.0) of all lie; 0 where there is none.
    pub fn percentile_ns(&self, share: f64) -> u64 {
        let wanted = (self.count as f64 * share).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (bucket, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return bucket_end(bucket).min(self.max_ns);
            }
        }
        self.max_ns
    }

    /// What is shown of it.
    pub fn summary(&self) -> LatencySummary {
        LatencySummary {
            count: self.count,
            mean_ns: self.sum_ns.checked_div(self.count).unwrap_or(0),
            p50_ns: self.percentile_ns(0.5),
            p90_ns: self.percentile_ns(0.9),
            p99_ns: self.percentile_ns(0.99),
            p999_ns: self.percentile_ns(0.999),
            max_ns: self.max_ns,
            buckets: self
                .buckets
                .iter()
                .enumerate()
                .filter(|(_, count)| **count > 0)
                .map(|(bucket, count)| (bucket_end(bucket), *count))
                .collect(),
        }
    }
}

/// A histogram as it is shown.
#[derive(Clone, Debug, Default, Serialize)]
pub struct LatencySummary {
    /// Commands counted.
    pub count: u64,
    /// Mean.
    pub mean_ns: u64,
    /// Median.
    pub p50_ns: u64,
    /// Nine of ten were at most this.
    pub p90_ns: u64,
    /// 99 of 100 were at most this.
    pub p99_ns: u64,
    /// 999 of 1000 were at most this.
    pub p999_ns: u64,
    /// The longest.
    pub max_ns: u64,
    /// (upper end in nanoseconds, count) of the buckets that are not empty.
    pub buckets: Vec<(u64, u64)>,
}

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

/// All of the subsystem's counters at one moment.
#[derive(Clone, Debug, Serialize)]
pub struct Statistics {
    /// Subsystem's name.
    pub nqn: String,
    /// Controllers that exist.
    pub controllers: u32,
    /// Bytes of data buffers in use.
    pub buffer_bytes: u64,
    /// One a namespace.
    pub namespaces: Vec<NamespaceStatistics>,
    /// One a queue.
    pub queues: Vec<QueueStatistics>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_in_order_and_hold_their_values() {
        let mut before = 0;
        for value in (0..5000u64).chain([1 << 20, 1 << 30, (1 << 39) + 5, u64::MAX]) {
            let bucket = bucket_of(value);
            assert!(bucket >= before && bucket < BUCKETS);
            if bucket < BUCKETS - 1 {
                assert!(value <= bucket_end(bucket), "{value}");
                assert!(bucket == 0 || value > bucket_end(bucket - 1), "{value}");
            }
            before = bucket;
        }
    }

    #[test]
    fn percentiles_are_within_a_quarter() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.summary().p99_ns, 0);
        (1..=1000).for_each(|value| histogram.record(value * 100));
        for (share, exact) in [(0.5, 50_000), (0.99, 99_000), (1.0, 100_000)] {
            let shown = histogram.percentile_ns(share);
            assert!(shown >= exact && shown <= exact + exact / 4, "{share} {shown}");
        }
    }
}
