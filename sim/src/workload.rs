//! Ready-made workloads: random or sequential reads and writes, gets and puts, by any number of threads and at any depth.
//!
//! What always holds: every number that a workload draws comes from its seed; threads draw from sources of their own, so that their
//! operations do not depend on who came first.

use crate::generator::{GeneratorOptions, Next, Source};
use crate::host::Path;
use crate::operation::Operation;
use crate::random::Random;

/// Reads and writes of a range of the block namespace.
#[derive(Clone, Debug)]
pub struct BlockWorkload {
    /// Shown in the report.
    pub name: String,
    /// The way through the host's software.
    pub path: Path,
    /// Host threads.
    pub threads: usize,
    /// Operations that each has under way.
    pub queue_depth: usize,
    /// Bytes of an operation.
    pub bytes: u32,
    /// Reads in a hundred.
    pub read_percent: u8,
    /// Bytes that the operations are spread over, from the namespace's beginning.
    pub range_bytes: u64,
    /// In order instead of at random; each thread has a part of the range of its own.
    pub sequential: bool,
    /// At random, but each place once, and then it ends.
    pub once: bool,
    /// Operations of all threads together; `None`: until `duration_ns`.
    pub operations: Option<u64>,
    /// Simulated time, nanoseconds, warm-up included.
    pub duration_ns: Option<u64>,
    /// Simulated time that is not counted at first.
    pub warm_up_ns: u64,
    /// Threads work on a file each.
    pub file_a_thread: bool,
    /// Seed.
    pub seed: u64,
}

impl Default for BlockWorkload {
    fn default() -> Self {
        BlockWorkload {
            name: "block".to_owned(),
            path: Path::File,
            threads: 1,
            queue_depth: 1,
            bytes: 4096,
            read_percent: 100,
            range_bytes: 1 << 28,
            sequential: false,
            once: false,
            operations: Some(1000),
            duration_ns: None,
            warm_up_ns: 0,
            file_a_thread: false,
            seed: 1,
        }
    }
}

/// Most places of a workload that goes to each once.
const ONCE_PLACES_MAX: u64 = 1 << 28;

/// All numbers below `count`, in a random order (Fisher and Yates).
fn shuffled(count: u32, mut random: Random) -> Vec<u32> {
    let mut order: Vec<u32> = (0..count).collect();
    for last in (1..order.len()).rev() {
        order.swap(last, random.below(last as u64 + 1) as usize);
    }
    order
}

/// How many operations a thread of several does, so that all together do `operations`.
fn share(operations: Option<u64>, threads: usize, thread: usize) -> u64 {
    let (all, threads, thread) = (operations.unwrap_or(u64::MAX), threads as u64, thread as u64);
    if all == u64::MAX { all } else { all / threads + u64::from(thread < all % threads) }
}

/// The source of a [`BlockWorkload`].
pub(crate) struct BlockSource {
    bytes: u32,
    read_percent: u64,
    places: u64,
    sequential: bool,
    /// All places in the order in which each comes once; empty: any, any number of times. Threads take turns.
    order: Vec<u32>,
    threads: Vec<ThreadState>,
}

struct ThreadState {
    random: Random,
    left: u64,
    place: u64,
}

impl Source for BlockSource {
    #[inline(always)]
    fn next(&mut self, _now_ns: u64, thread: usize) -> Next {
        let threads = self.threads.len() as u64;
        let of = &mut self.threads[thread];
        if of.left == 0 {
            return Next::End;
        }
        of.left -= u64::from(of.left != u64::MAX);
        let place = match self.sequential {
            _ if !self.order.is_empty() => {
                let Some(&place) = self.order.get(of.place as usize) else { return Next::End };
                of.place += threads;
                u64::from(place)
            }
            true => {
                of.place = if of.place + 1 >= self.places { 0 } else { of.place + 1 };
                of.place
            }
            false => of.random.below(self.places),
        };
        let (offset, bytes) = (place * u64::from(self.bytes), self.bytes);
        let read = self.read_percent == 100 || (self.read_percent > 0 && of.random.below(100) < self.read_percent);
        Next::Now(if read { Operation::Read { offset, bytes } } else { Operation::Write { offset, bytes } })
    }
}

impl BlockWorkload {
    /// What [`crate::Simulation::generator`] takes. The error names the field.
    pub fn generator(&self) -> Result<(GeneratorOptions, Box<dyn Source>), String> {
        let places = self.range_bytes / u64::from(self.bytes.max(1));
        if self.bytes == 0 || places == 0 {
            return Err(format!("a range of {} bytes has no operation of {} bytes", self.range_bytes, self.bytes));
        }
        if self.read_percent > 100 {
            return Err(format!("{} reads in a hundred, expected 0 to 100", self.read_percent));
        }
        if self.once && (self.sequential || places > ONCE_PLACES_MAX) {
            return Err(format!(
                "each of {places} places once{}: at random, and of at most {ONCE_PLACES_MAX} places",
                if self.sequential { ", in order" } else { "" }
            ));
        }
        if self.operations.is_none() && self.duration_ns.is_none() && !self.once {
            return Err("neither a number of operations nor a time ends it: give one".to_owned());
        }
        if self.threads == 0 {
            return Err("no thread does it: give at least 1".to_owned());
        }
        let whole = Random(self.seed);
        let threads = (0..self.threads).map(|thread| ThreadState {
            random: whole.part(thread as u64),
            left: share(self.operations, self.threads, thread),
            place: if self.once { thread as u64 } else { places / self.threads as u64 * thread as u64 },
        });
        let order = if self.once { shuffled(places as u32, whole.part(self.threads as u64)) } else { Vec::new() };
        let source = BlockSource {
            bytes: self.bytes,
            read_percent: self.read_percent.into(),
            places,
            sequential: self.sequential,
            order,
            threads: threads.collect(),
        };
        let options = GeneratorOptions {
            name: self.name.clone(),
            path: self.path,
            threads: self.threads,
            queue_depth: self.queue_depth,
            warm_up_ns: self.warm_up_ns,
            duration_ns: self.duration_ns,
            file_a_thread: self.file_a_thread,
        };
        Ok((options, Box::new(source)))
    }
}

/// Gets and puts of pairs.
#[derive(Clone, Debug)]
pub struct KvWorkload {
    /// Shown in the report.
    pub name: String,
    /// The way through the host's software.
    pub path: Path,
    /// Host threads.
    pub threads: usize,
    /// Operations that each has under way.
    pub queue_depth: usize,
    /// Keys that the operations are spread over.
    pub keys: u64,
    /// Bytes of a value.
    pub value_bytes: u32,
    /// Gets in a hundred.
    pub get_percent: u8,
    /// Puts each key once, in order, instead.
    pub load: bool,
    /// Operations of all threads together; with `load` the number of keys.
    pub operations: u64,
    /// Seed.
    pub seed: u64,
}

impl Default for KvWorkload {
    fn default() -> Self {
        KvWorkload {
            name: "key-value".to_owned(),
            path: Path::Rpc,
            threads: 1,
            queue_depth: 1,
            keys: 1000,
            value_bytes: 1024,
            get_percent: 100,
            load: false,
            operations: 1000,
            seed: 1,
        }
    }
}

struct KvSource {
    workload: KvWorkload,
    threads: Vec<ThreadState>,
}

impl Source for KvSource {
    fn next(&mut self, _now_ns: u64, thread: usize) -> Next {
        let threads = self.threads.len() as u64;
        let KvWorkload { keys, value_bytes: bytes, get_percent, load, .. } = self.workload;
        let of = &mut self.threads[thread];
        if of.left == 0 {
            return Next::End;
        }
        of.left -= 1;
        if load {
            let key = of.place;
            of.place += threads;
            return Next::Now(Operation::Put { key, bytes });
        }
        let key = of.random.below(keys);
        let get = of.random.below(100) < u64::from(get_percent);
        Next::Now(if get { Operation::Get { key, bytes } } else { Operation::Put { key, bytes } })
    }
}

impl KvWorkload {
    /// What [`crate::Simulation::generator`] takes. The error names the field.
    pub fn generator(&self) -> Result<(GeneratorOptions, Box<dyn Source>), String> {
        if self.keys == 0 || self.threads == 0 {
            return Err(format!("{} keys and {} threads: give at least 1 of each", self.keys, self.threads));
        }
        if self.get_percent > 100 {
            return Err(format!("{} gets in a hundred, expected 0 to 100", self.get_percent));
        }
        let operations = if self.load { self.keys } else { self.operations };
        let whole = Random(self.seed);
        let threads = (0..self.threads).map(|thread| ThreadState {
            random: whole.part(thread as u64),
            left: share(Some(operations), self.threads, thread),
            place: thread as u64,
        });
        let source = KvSource { workload: self.clone(), threads: threads.collect() };
        let options = GeneratorOptions {
            name: self.name.clone(),
            path: self.path,
            threads: self.threads,
            queue_depth: self.queue_depth,
            warm_up_ns: 0,
            duration_ns: None,
            file_a_thread: false,
        };
        Ok((options, Box::new(source)))
    }
}
