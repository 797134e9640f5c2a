//! `willow bench mount`: the file of a mounted namespace against a plain file, the same way: threads that read and write blocks
//! at random with O_DIRECT, by turns A B A B in one run.
//!
//! Invariants: both files are written once as a whole before anything is measured; a failed or short operation ends the
//! benchmark.

use super::engine::{LATENCY_NS_MAX, Plan, Random};
use super::report::{Report, Row};
use crate::cpu;
use crate::failure::{Context, Failure, Outcome, fail};
use crate::size::Size;
use hdrhistogram::Histogram;
use rustix::fs::{Mode, OFlags};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Alignment of buffers for O_DIRECT: that of a page suits every file system.
const ALIGNMENT_BYTES: usize = 4096;
/// Bytes of a write that fills.
const FILL_BYTES: usize = 1 << 20;

/// Flags of `willow bench mount`.
#[derive(Clone, Debug, clap::Args)]
pub struct MountOptions {
    /// File of a mounted namespace (DIR/disk); its first bytes are OVERWRITTEN
    pub disk: PathBuf,
    /// Plain file to compare with: made for this and removed afterwards
    #[arg(long, default_value = "willow-bench-mount.tmp")]
    pub plain: PathBuf,
    /// Bytes of an operation: a multiple of 4096, at most 1M
    #[arg(long, default_value = "4K")]
    pub bs: Size,
    /// Bytes that the operations are spread over
    #[arg(long, default_value = "64M")]
    pub range: Size,
    /// Numbers of threads, one measurement each
    #[arg(long, value_delimiter = ',', default_value = "1,8", value_name = "N,...")]
    pub depths: Vec<usize>,
    /// Seconds counted for each measurement
    #[arg(long, default_value_t = 2.0)]
    pub seconds: f64,
    /// Turns of each file
    #[arg(long, default_value_t = 2)]
    pub turns: u32,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Append the result to a kept history
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "docs/benchmark-history.jsonl")]
    pub record: Option<PathBuf>,
}

/// Memory aligned for O_DIRECT.
pub struct Buffer {
    bytes: Vec<u8>,
    start: usize,
    length: usize,
}

impl Buffer {
    /// Of so many bytes, filled from the seed.
    pub fn new(length: usize, seed: u64) -> Self {
        let mut bytes = vec![0; length + ALIGNMENT_BYTES];
        let start = bytes.as_ptr().align_offset(ALIGNMENT_BYTES);
        super::in_process::fill(&mut bytes, seed);
        Buffer { bytes, start, length }
    }
    /// Its bytes.
    pub fn slice(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.length]
    }
}

fn open(path: &Path, make: bool) -> Outcome<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC | if make { OFlags::CREATE } else { OFlags::empty() };
    rustix::fs::open(path, flags, Mode::from_raw_mode(0o600))
        .context(|| format!("cannot open {} with O_DIRECT", path.display()))
}

/// Removes the plain file, whatever happens.
struct Scratch<'a>(&'a Path);

impl Drop for Scratch<'_> {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.0);
    }
}

/// Runs it.
pub fn run(options: &MountOptions) -> Outcome<Report> {
    let (bs, range) = (options.bs.0, options.range.0 / FILL_BYTES as u64 * FILL_BYTES as u64);
    if bs == 0 || bs > 1 << 20 || !bs.is_multiple_of(4096) || range < FILL_BYTES as u64 {
        fail!("--bs must be a multiple of 4K up to 1M, and --range at least 1M");
    }
    if options.depths.is_empty() || options.depths.iter().any(|depth| !(1..=256).contains(depth)) {
        fail!("--depths takes numbers from 1 to 256");
    }
    if !(0.0..=3600.0).contains(&options.seconds) || options.turns == 0 {
        fail!("--seconds must be 0 to 3600, and --turns at least 1");
    }
    if options.plain.exists() {
        fail!("{} exists: name another file with --plain, it is made and removed", options.plain.display());
    }
    let disk = open(&options.disk, false)?;
    let bytes = rustix::fs::fstat(&disk).context(|| "cannot look at the disk".to_owned())?.st_size as u64;
    if bytes < range {
        fail!("{} has {bytes} bytes, --range is {range}: choose a smaller one", options.disk.display());
    }
    let _scratch = Scratch(&options.plain);
    let plain = open(&options.plain, true)?;
    let files = [("mount", &disk), ("plain file", &plain)];
    for (name, file) in files {
        let mut buffer = Buffer::new(FILL_BYTES, 1);
        for offset in (0..range).step_by(FILL_BYTES) {
            match rustix::io::pwrite(file, buffer.slice(), offset) {
                Ok(FILL_BYTES) => {}
                Ok(count) => fail!("filling the {name}: {count} bytes written of {FILL_BYTES}"),
                Err(error) => fail!("filling the {name}: {error}"),
            }
        }
    }
    let mut rows = Vec::new();
    for read in [true, false] {
        for depth in &options.depths {
            for (name, file) in files.iter().cycle().take(2 * options.turns as usize) {
                let kind = if read { "read" } else { "write" };
                let plan = Plan {
                    name: format!("random {kind} {}", options.bs),
                    transport: name,
                    queue_depth: *depth,
                    warm_up: Duration::ZERO,
                    duration: Duration::from_secs_f64(options.seconds),
                    target_pid: None,
                };
                let operation = |buffer: &mut [u8], offset| kernel(file, read, buffer, offset);
                rows.push(measure(&plan, bs, range, &operation)?);
            }
        }
    }
    Ok(Report {
        bench: "mount",
        settings: serde_json::json!({ "bs": bs, "range": range, "turns": options.turns }),
        rows,
        figures: serde_json::Map::new(),
    })
}

/// One operation through the kernel.
pub fn kernel(file: &OwnedFd, read: bool, buffer: &mut [u8], offset: u64) -> Outcome<usize> {
    let done = if read { rustix::io::pread(file, buffer, offset) } else { rustix::io::pwrite(file, buffer, offset) };
    done.context(|| format!("at {offset}"))
}

/// An operation on a buffer at an offset: how many bytes it moved.
pub type FileOperation<'a> = &'a (dyn Fn(&mut [u8], u64) -> Outcome<usize> + Sync);

/// Measures an operation on a file at random offsets of its first `range` bytes, by as many threads as the plan's depth says.
pub fn measure(plan: &Plan, bs: u64, range: u64, operation: FileOperation<'_>) -> Outcome<Row> {
    let stop = AtomicBool::new(false);
    let client = cpu::of_self();
    let target = plan.target_pid.and_then(cpu::of_process);
    let begun = Instant::now();
    let histograms = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..plan.queue_depth)
            .map(|thread| {
                let stop = &stop;
                scope.spawn(move || one_thread(operation, bs, range, thread as u64, stop))
            })
            .collect();
        std::thread::sleep(plan.duration);
        stop.store(true, Ordering::Relaxed);
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err(Failure::new("a thread panicked"))))
            .collect::<Vec<_>>()
    });
    let elapsed = begun.elapsed();
    let mut all = histogram()?;
    for one in histograms {
        all.add(one?).context(|| "cannot add histograms".to_owned())?;
    }
    let operations = all.len();
    let target = target.and_then(|before| Some(cpu::of_process(plan.target_pid?)? - before));
    Ok(Row::new(plan, elapsed, operations, operations * bs, &all, cpu::of_self() - client, target))
}

fn histogram() -> Outcome<Histogram<u64>> {
    Histogram::new_with_max(LATENCY_NS_MAX, 3).context(|| "cannot make a histogram".to_owned())
}

fn one_thread(
    operation: FileOperation<'_>,
    bs: u64,
    range: u64,
    thread: u64,
    stop: &AtomicBool,
) -> Outcome<Histogram<u64>> {
    let mut histogram = histogram()?;
    let mut buffer = Buffer::new(bs as usize, thread + 1);
    let mut random = Random(thread + 1);
    while !stop.load(Ordering::Relaxed) {
        let offset = random.below(range / bs) * bs;
        let begun = Instant::now();
        let count = operation(buffer.slice(), offset)?;
        if count as u64 != bs {
            fail!("{count} bytes of {bs} moved at {offset}");
        }
        histogram.saturating_record(begun.elapsed().as_nanos().min(u128::from(LATENCY_NS_MAX)) as u64);
    }
    Ok(histogram)
}
