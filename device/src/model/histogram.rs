//! A histogram of times: cheap enough to be always on.
//!
//! Invariant: its buckets' counts add up to its count.

use serde::{Deserialize, Serialize};

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
    /// Number of values.
    pub fn count(&self) -> u64 {
        self.count
    }

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
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
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
