//! A resource that does one thing at a time, first come first served, and the arithmetic of rates.
//!
//! Invariants: work is handed in, in the order of the times at which it arrives; it begins at its arrival or when all earlier work has
//! ended, whichever is later.

use super::statistics::ResourceStatistics;

/// Nanoseconds of a second.
pub const SECOND_NS: u64 = 1_000_000_000;

/// Time that `units` take at `per_s` units a second, in whole nanoseconds, rounded up.
#[inline]
pub fn duration_ns(units: u64, per_s: u64) -> u64 {
    match units.checked_mul(SECOND_NS) {
        Some(scaled) => scaled.div_ceil(per_s),
        None => {
            (u128::from(units) * u128::from(SECOND_NS)).div_ceil(u128::from(per_s)).min(u128::from(u64::MAX)) as u64
        }
    }
}

/// A rate, prepared so that no step divides.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// Nanoseconds that a unit takes, times 2^[`FRACTION_BITS`].
    unit: u64,
}

/// Bits of [`Rate::unit`] behind the point: a slow rate of a thousand units a second still fits.
const FRACTION_BITS: u32 = 40;

impl Rate {
    /// So many units a second; at least a thousand.
    pub fn per_s(units: u64) -> Self {
        Rate { unit: (((u128::from(SECOND_NS)) << FRACTION_BITS) / u128::from(units.max(1000))) as u64 }
    }

    /// Time that so many units take, in whole nanoseconds, rounded up.
    #[inline]
    pub fn duration_ns(self, units: u64) -> u64 {
        let scaled = u128::from(units) * u128::from(self.unit) + ((1 << FRACTION_BITS) - 1);
        (scaled >> FRACTION_BITS) as u64
    }
}

/// A number that is divided by, prepared so that no step divides.
#[derive(Clone, Copy, Debug)]
pub struct Divisor {
    number: u64,
    /// 2^64 over the number, rounded up; 0 for 1.
    reciprocal: u64,
    /// All bits where the number is 1.
    one: u64,
}

/// Below this, quotients are exact by multiplication: the error of the reciprocal, less than 2^-64 of a quotient's unit for each unit that
/// is divided, stays below what the smallest remainder leaves.
const PREPARED_MAX: u64 = 1 << 32;

impl Divisor {
    /// Any number; 0 must not be divided by.
    pub fn new(number: u64) -> Self {
        let reciprocal = if number > 1 { u64::MAX / number + 1 } else { 0 };
        Divisor { number, reciprocal, one: if number == 1 { !0 } else { 0 } }
    }

    /// The number.
    #[inline]
    pub fn get(self) -> u64 {
        self.number
    }

    /// `dividend / number`, rounded down.
    #[inline]
    pub fn div(self, dividend: u64) -> u64 {
        if (dividend | self.number) < PREPARED_MAX {
            ((u128::from(dividend) * u128::from(self.reciprocal)) >> 64) as u64 + (dividend & self.one)
        } else {
            dividend / self.number
        }
    }

    /// `dividend / number`, rounded up.
    #[inline]
    pub fn div_ceil(self, dividend: u64) -> u64 {
        if dividend == 0 { 0 } else { self.div(dividend - 1) + 1 }
    }
}

/// What follows from a number of bytes alone, for the numbers that came last: messages and transfers come in few sizes.
#[derive(Clone, Debug)]
pub struct BySize<T> {
    places: [(u64, T); BySize::<()>::PLACES],
}

impl BySize<()> {
    const PLACES: usize = 4;
}

impl<T: Copy + Default> BySize<T> {
    /// Nothing yet.
    pub fn new() -> Self {
        // No size is that large.
        BySize { places: [(u64::MAX, T::default()); BySize::PLACES] }
    }

    /// What `compute` makes of that many bytes: always the same.
    #[inline(always)]
    pub fn of(&mut self, bytes: u64, compute: impl FnOnce(u64) -> T) -> T {
        let place = &mut self.places[(bytes >> 4 ^ bytes >> 12) as usize % BySize::PLACES];
        if place.0 != bytes {
            *place = (bytes, compute(bytes));
        }
        place.1
    }
}

/// A server with one queue.
#[derive(Clone, Debug, Default)]
pub struct Fifo {
    /// Until when it works for what has been handed in.
    pub free_ns: u64,
    busy_ns: u64,
    operations: u64,
    bytes: u64,
    waited_ns: u64,
}

impl Fifo {
    /// Work that arrives then and takes that long: when it begins and ends.
    #[inline]
    pub fn take(&mut self, arrival_ns: u64, duration_ns: u64, bytes: u64) -> (u64, u64) {
        self.take_until(arrival_ns, duration_ns, 0, bytes)
    }

    /// When work would begin that arrives then.
    #[inline]
    pub fn begins_ns(&self, arrival_ns: u64) -> u64 {
        arrival_ns.max(self.free_ns)
    }

    /// The same for work that cannot end before a time, since its last part is not there earlier.
    #[inline]
    pub fn take_until(&mut self, arrival_ns: u64, duration_ns: u64, end_ns_min: u64, bytes: u64) -> (u64, u64) {
        let begin_ns = self.begins_ns(arrival_ns);
        let end_ns = begin_ns.saturating_add(duration_ns).max(end_ns_min);
        self.count((arrival_ns, begin_ns, end_ns), duration_ns, bytes);
        (begin_ns, end_ns)
    }

    /// Counts work that arrived, began and ends then, in an order that is not this queue's own.
    #[inline]
    pub fn count(&mut self, (arrival_ns, begin_ns, end_ns): (u64, u64, u64), duration_ns: u64, bytes: u64) {
        self.free_ns = end_ns;
        self.busy_ns += duration_ns;
        self.operations += 1;
        self.bytes += bytes;
        self.waited_ns += begin_ns - arrival_ns;
    }

    /// Time that it has worked until `now_ns`: what is still to come of the work handed in is not counted.
    pub fn busy_ns(&self, now_ns: u64) -> u64 {
        self.busy_ns.saturating_sub(self.free_ns.saturating_sub(now_ns)).min(now_ns)
    }

    /// Its line in the statistics.
    pub fn statistics(&self, name: String, now_ns: u64) -> ResourceStatistics {
        ResourceStatistics {
            name,
            busy_ns: self.busy_ns(now_ns),
            operations: self.operations,
            bytes: self.bytes,
            waited_ns: self.waited_ns,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::media::fault::Random;

    #[test]
    fn what_is_remembered_is_what_was_computed() {
        let (mut random, mut by_size, mut computed) = (Random::new(8), BySize::new(), 0);
        let rate = Rate::per_s(3_210_000_000);
        for _ in 0..10_000 {
            let bytes = random.below(3) << (4 + random.below(14));
            let found = by_size.of(bytes, |bytes| {
                computed += 1;
                rate.duration_ns(bytes)
            });
            assert_eq!(found, rate.duration_ns(bytes), "{bytes} bytes");
        }
        assert!(computed < 9_000, "{computed}: nothing is remembered");
    }

    /// A number from the exponential distribution of mean `mean_ns`.
    fn exponential_ns(random: &mut Random, mean_ns: f64) -> f64 {
        let uniform = (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        -(1.0 - uniform).ln() * mean_ns
    }

    #[test]
    fn durations_are_exact_and_never_overflow() {
        assert_eq!(duration_ns(4096, 1_000_000_000), 4096);
        assert_eq!(duration_ns(1, 3_000_000_000), 1);
        assert_eq!(duration_ns(0, 1), 0);
        assert_eq!(duration_ns(1 << 40, 1 << 30), 1024 * SECOND_NS);
        assert_eq!(duration_ns(u64::MAX, 1), u64::MAX);
    }

    #[test]
    fn prepared_quotients_are_exact() {
        let mut random = Random::new(5);
        let numbers = [1, 2, 3, 7, 16, 88, 256, 4095, 4096, 4097, (1 << 32) - 1, 1 << 32, u64::MAX];
        for number in numbers.into_iter().chain((0..200).map(|_| random.below(1 << 32) + 1).collect::<Vec<_>>()) {
            let divisor = Divisor::new(number);
            let near = (0..20)
                .map(|times| (number.wrapping_mul(random.below(1 << 20) + 1)).wrapping_add(times).wrapping_sub(10));
            let dividends: Vec<u64> = near.chain([0, 1, (1 << 32) - 1, 1 << 32, u64::MAX]).collect();
            for dividend in dividends.into_iter().chain((0..200).map(|_| random.below(1 << 33))) {
                assert_eq!(divisor.div(dividend), dividend / number, "{dividend} / {number}");
                assert_eq!(divisor.div_ceil(dividend), dividend.div_ceil(number), "{dividend} / {number}");
            }
        }
    }

    #[test]
    fn prepared_rates_are_those_that_divide() {
        let mut random = Random::new(3);
        for per_s in
            [1000, 125_000_000, 250_000_000, 1_000_000_000, 2_000_000_000, 7_877_000_000, 3, 10_000_000_000_000]
        {
            let rate = Rate::per_s(per_s);
            for units in (0..100).chain((0..1000).map(|_| random.below(1 << 26))) {
                let (exact, prepared) = (duration_ns(units, per_s.max(1000)), rate.duration_ns(units));
                assert!(prepared == exact || prepared + 1 == exact, "{units} at {per_s}/s: {prepared}, not {exact}");
            }
        }
        assert_eq!(Rate::per_s(2_000_000_000).duration_ns(4736), 2368);
    }

    /// Mean wait of an M/D/1 queue: utilization * service / (2 * (1 - utilization)) (Pollaczek and Khinchine). The tolerance is six
    /// standard errors of the mean, estimated from the means of batches, which are long enough to be all but independent.
    #[test]
    fn the_mean_wait_is_that_of_m_d_1() {
        const SERVICE_NS: u64 = 1000;
        const BATCHES: usize = 200;
        const BATCH: usize = 5000;
        for (seed, utilization) in [(1, 0.2), (2, 0.5), (3, 0.7), (4, 0.85)] {
            let mut random = Random::new(seed);
            let mut server = Fifo::default();
            let mut arrival_ns = 0.0;
            let (mut means, mut total_ns) = (Vec::new(), 0);
            for _ in 0..BATCHES {
                let mut waits_ns = 0;
                for _ in 0..BATCH {
                    arrival_ns += exponential_ns(&mut random, SERVICE_NS as f64 / utilization);
                    let (begin_ns, _) = server.take(arrival_ns as u64, SERVICE_NS, 0);
                    waits_ns += begin_ns - arrival_ns as u64;
                }
                means.push(waits_ns as f64 / BATCH as f64);
                total_ns += waits_ns;
            }
            let mean = means.iter().sum::<f64>() / BATCHES as f64;
            let variance = means.iter().map(|of| (of - mean).powi(2)).sum::<f64>() / (BATCHES - 1) as f64;
            let standard_error = (variance / BATCHES as f64).sqrt();
            let expected = utilization * SERVICE_NS as f64 / (2.0 * (1.0 - utilization));
            assert!(
                (mean - expected).abs() < 6.0 * standard_error,
                "utilization {utilization}: {mean} ns, expected {expected}, standard error {standard_error}"
            );
            let now_ns = server.free_ns;
            let measured = server.busy_ns(now_ns) as f64 / now_ns as f64;
            assert!((measured - utilization).abs() < 0.01, "{measured} is not {utilization}");
            assert_eq!(server.statistics(String::new(), now_ns).waited_ns, total_ns);
        }
    }

    /// Little: the mean number in the system is the rate of arrivals times the mean time in it. Both sides are measured
    /// independently: the number by integrating it over time at every arrival and departure.
    #[test]
    fn little_s_law_holds() {
        let mut random = Random::new(9);
        let mut server = Fifo::default();
        let mut events = Vec::new();
        let (mut arrival_ns, mut in_system_ns) = (0.0, 0u64);
        const WORK: usize = 100_000;
        for _ in 0..WORK {
            arrival_ns += exponential_ns(&mut random, 900.0);
            let (_, end_ns) = server.take(arrival_ns as u64, random.below(1500), 0);
            in_system_ns += end_ns - arrival_ns as u64;
            events.push((arrival_ns as u64, 1i64));
            events.push((end_ns, -1));
        }
        events.sort();
        let (mut area, mut inside, mut before_ns) = (0i128, 0i64, 0);
        for (at_ns, change) in &events {
            area += i128::from(inside) * i128::from(at_ns - before_ns);
            inside += change;
            before_ns = *at_ns;
        }
        assert_eq!(inside, 0);
        assert_eq!(area, i128::from(in_system_ns), "number over time is time over number, exactly");
    }

    #[test]
    fn a_saturated_server_works_all_the_time() {
        let mut server = Fifo::default();
        for _ in 0..1000 {
            server.take(0, 37, 64);
        }
        assert_eq!((server.free_ns, server.busy_ns(37_000)), (37_000, 37_000));
        assert_eq!(server.busy_ns(10_000), 10_000, "work to come is not counted");
        let statistics = server.statistics("x".to_owned(), 37_000);
        assert_eq!((statistics.operations, statistics.bytes, statistics.utilization(37_000)), (1000, 64_000, 1.0));
    }
}
