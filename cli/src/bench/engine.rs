//! The closed loop of all benchmarks: a fixed number of operations is under way; each that ends is replaced until time is
//! over. What the operations are and how they reach the device are parameters.
//!
//! Invariants: every operation that was begun has ended when [`run`] returns; one that fails ends the benchmark.

use crate::bench::report::Row;
use crate::cpu;
use crate::failure::{Context, Outcome, fail};
use hdrhistogram::Histogram;
use std::time::{Duration, Instant};

pub use willow_sim::random::Random;

/// Longest latency that is told apart.
pub const LATENCY_NS_MAX: u64 = 60_000_000_000;
/// Most operations under way.
pub const QUEUE_DEPTH_MAX: usize = 1024;

/// One operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Read a range of the block namespace.
    Read {
        /// First byte.
        offset: u64,
        /// Bytes.
        bytes: u32,
    },
    /// Write a range of the block namespace.
    Write {
        /// First byte.
        offset: u64,
        /// Bytes.
        bytes: u32,
    },
    /// Get the value of a key, which has this many bytes.
    Get {
        /// Number of the key.
        key: u64,
        /// Bytes of its value.
        bytes: u32,
    },
    /// Put a value.
    Put {
        /// Number of the key.
        key: u64,
        /// Bytes of the value.
        bytes: u32,
    },
    /// Delete a pair.
    Delete {
        /// Number of the key.
        key: u64,
    },
}

impl Operation {
    /// Bytes of data that it moves.
    pub fn bytes(&self) -> u32 {
        match *self {
            Operation::Read { bytes, .. }
            | Operation::Write { bytes, .. }
            | Operation::Get { bytes, .. }
            | Operation::Put { bytes, .. } => bytes,
            Operation::Delete { .. } => 0,
        }
    }
}

/// An operation that has ended well, or that found no such key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Its slot.
    pub slot: usize,
    /// Its result: of a get, the bytes of the value. `None`: there is no such key.
    pub result: Option<u32>,
}

/// A way to the device: operations are begun by slot, and each slot ends before it is used again.
pub trait Driver {
    /// The data of a free slot: what the next write or put takes, what the last read or get brought.
    fn buffer(&mut self, slot: usize) -> &mut [u8];
    /// Begins an operation in a free slot.
    fn begin(&mut self, slot: usize, operation: Operation) -> Outcome<()>;
    /// Adds to `ended` what has ended since the last call; may spin or wait until there is something. Any other end of an
    /// operation is an error.
    fn poll(&mut self, ended: &mut Vec<Ended>) -> Outcome<()>;
}

/// A benchmark's operations never miss a key, and its values have the length that they were stored with.
fn expect(operation: Operation, result: Option<u32>) -> Outcome<()> {
    match (operation, result) {
        (_, None) => fail!("{operation:?}: there is no such key"),
        (Operation::Get { bytes, .. }, Some(result)) if result != bytes => {
            fail!("{operation:?}: the value has {result} bytes")
        }
        _ => Ok(()),
    }
}

/// What to run, and for how long.
pub struct Plan {
    /// Shown in the report.
    pub name: String,
    /// `tcp` or `in-process`.
    pub transport: &'static str,
    /// Operations under way.
    pub queue_depth: usize,
    /// Time before counting begins.
    pub warm_up: Duration,
    /// Time that is counted.
    pub duration: Duration,
    /// The device's process, where it is another one on this machine.
    pub target_pid: Option<u32>,
}

/// Runs one plan; `next` makes the operations.
pub fn run(plan: &Plan, driver: &mut impl Driver, mut next: impl FnMut() -> Operation) -> Outcome<Row> {
    let mut histogram =
        Histogram::<u64>::new_with_max(LATENCY_NS_MAX, 3).context(|| "cannot make a histogram".to_owned())?;
    let depth = plan.queue_depth;
    let start = Instant::now();
    let mut begun = vec![(start, Operation::Delete { key: 0 }); depth];
    let mut ended = Vec::with_capacity(depth);
    for (slot, begun) in begun.iter_mut().enumerate() {
        let operation = next();
        *begun = (Instant::now(), operation);
        driver.begin(slot, operation)?;
    }
    let mut active = depth;
    let mut counting_since: Option<(Instant, Duration, Option<Duration>)> = None;
    let (mut operations, mut bytes) = (0_u64, 0_u64);
    let mut row = None;
    while active > 0 {
        driver.poll(&mut ended)?;
        for Ended { slot, result } in ended.drain(..) {
            let now = Instant::now();
            let (began, operation) = begun[slot];
            expect(operation, result)?;
            match &counting_since {
                None if now - start >= plan.warm_up => {
                    counting_since = Some((now, cpu::of_self(), plan.target_pid.and_then(cpu::of_process)));
                }
                Some((since, client, target)) if row.is_none() => {
                    operations += 1;
                    bytes += u64::from(operation.bytes());
                    histogram.saturating_record((now - began).as_nanos().min(u128::from(LATENCY_NS_MAX)) as u64);
                    if now - *since >= plan.duration {
                        let target = target.and_then(|before| Some(cpu::of_process(plan.target_pid?)? - before));
                        row = Some(Row::new(
                            plan,
                            now - *since,
                            operations,
                            bytes,
                            &histogram,
                            cpu::of_self() - *client,
                            target,
                        ));
                    }
                }
                _ => {}
            }
            if row.is_some() {
                active -= 1;
                continue;
            }
            let operation = next();
            begun[slot] = (now, operation);
            driver.begin(slot, operation)?;
        }
    }
    row.ok_or_else(|| crate::failure::Failure::new("the benchmark ended before it was measured: no operation ended"))
}

/// Runs a fixed list of operations, `depth` at a time; `progress` is told how many have ended.
pub fn run_all(
    driver: &mut impl Driver,
    depth: usize,
    mut operations: impl Iterator<Item = Operation>,
    mut progress: impl FnMut(u64),
) -> Outcome<()> {
    let mut active = 0;
    for slot in 0..depth {
        let Some(operation) = operations.next() else { break };
        driver.begin(slot, operation)?;
        active += 1;
    }
    let mut ended = Vec::with_capacity(depth);
    while active > 0 {
        driver.poll(&mut ended)?;
        progress(ended.len() as u64);
        for Ended { slot, .. } in ended.drain(..) {
            match operations.next() {
                Some(operation) => driver.begin(slot, operation)?,
                None => active -= 1,
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ends each operation at the second poll after it was begun.
    #[derive(Default)]
    struct Echo {
        waiting: Vec<usize>,
        ready: Vec<usize>,
        begun: u64,
    }

    impl Driver for Echo {
        fn buffer(&mut self, _slot: usize) -> &mut [u8] {
            &mut []
        }
        fn begin(&mut self, slot: usize, _operation: Operation) -> Outcome<()> {
            assert!(!self.waiting.contains(&slot) && !self.ready.contains(&slot), "slot {slot} is used twice");
            self.begun += 1;
            self.waiting.push(slot);
            Ok(())
        }
        fn poll(&mut self, ended: &mut Vec<Ended>) -> Outcome<()> {
            ended.extend(self.ready.drain(..).map(|slot| Ended { slot, result: Some(0) }));
            self.ready.append(&mut self.waiting);
            Ok(())
        }
    }

    #[test]
    fn all_that_is_begun_ends_and_is_counted_once() {
        let plan = Plan {
            name: "echo".into(),
            transport: "in-process",
            queue_depth: 7,
            warm_up: Duration::from_millis(1),
            duration: Duration::from_millis(5),
            target_pid: Some(std::process::id()),
        };
        // Where this process was not there for all of the duration, nothing was measured.
        let begin = |_: u32| {
            let mut driver = Echo::default();
            let row = run(&plan, &mut driver, || Operation::Read { offset: 0, bytes: 10 }).unwrap();
            assert!(driver.waiting.is_empty() && driver.ready.is_empty());
            (row.operations > 0).then_some((driver, row))
        };
        let (driver, row) = (0..100).find_map(begin).expect("it is there for one of so many");
        assert!(row.operations > 0 && row.operations <= driver.begun);
        assert_eq!(row.queue_depth, 7);
        assert!(row.bytes_per_second > 0.0 && row.target_cpu_seconds_per_million.is_some());
    }

    #[test]
    fn a_list_is_run_to_its_end() {
        for (depth, count) in [(4, 0_u64), (4, 3), (4, 4), (3, 100)] {
            let mut driver = Echo::default();
            let mut seen = 0;
            let list = (0..count).map(|key| Operation::Get { key, bytes: 1 });
            run_all(&mut driver, depth, list, |ended| seen += ended).unwrap();
            assert_eq!((driver.begun, seen), (count, count));
        }
    }
}
