//! `willow bench direct`: a file on a real ext4 on the device, read and written directly against the same file through the file system
//! with O_DIRECT (loop device, FUSE), and a plain file of this machine beside them, by system calls and by io_uring, by request size:
//! Willow's figure 4. By turns in one run.
//!
//! Invariants: the file is written once as a whole before anything is measured; no turn counts of which an operation went another way
//! than its name says; a failed or short operation ends the benchmark.

use super::engine::{self, Driver, Ended, Operation, Plan, QUEUE_DEPTH_MAX, Random};
use super::in_process::fill;
use super::mount::{Buffer, kernel, measure};
use super::report::{Report, Row, median};
use super::uring::Ring;
use crate::failure::{Context, Failure, Outcome, fail};
use crate::size::Size;
use crate::stage::Stage;
use rustix::fs::{Mode, OFlags};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use willow_host::direct_io::{DirectError, Done, File, LaneOptions, Queue, Request, Session, SessionOptions};
use willow_sim::experiments::{Drawing, Plot, Series};

/// Bytes of a write that fills.
const FILL_BYTES: usize = 1 << 20;
/// Longest look for a completion before sleeping, as `bench io` has it.
const SPIN: Duration = Duration::from_millis(2);
/// Longest wait for an end.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// A way to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// By libwillow: threads that wait, or a queue.
    Direct,
    /// The same file through ext4, by system calls.
    Ext4,
    /// A plain file of this machine, by system calls.
    Plain,
    /// The same file through ext4, by io_uring.
    Ext4Ring,
    /// The plain file, by io_uring.
    PlainRing,
}

/// In the order of their turns: for threads that have one request each, and for one thread with several.
const BY_THREADS: &[Way] = &[Way::Direct, Way::Ext4, Way::Plain, Way::PlainRing];
const BY_DEPTH: &[Way] = &[Way::Direct, Way::Ext4Ring, Way::PlainRing];

impl Way {
    fn name(self) -> &'static str {
        match self {
            Way::Direct => "direct",
            Way::Ext4 => "ext4",
            Way::Plain => "plain file",
            Way::Ext4Ring => "ext4 by io_uring",
            Way::PlainRing => "io_uring",
        }
    }

    fn is_plain(self) -> bool {
        matches!(self, Way::Plain | Way::PlainRing)
    }
}

/// Flags of `willow bench direct`.
#[derive(Clone, Debug, clap::Args)]
pub struct DirectBenchOptions {
    /// Bytes of a request, one measurement each: multiples of 512, at most 1M
    #[arg(long, value_delimiter = ',', default_value = "512,1K,2K,4K,8K,16K,32K,64K,128K", value_name = "N,...")]
    pub sizes: Vec<Size>,
    /// Bytes of the file
    #[arg(long, default_value = "64M")]
    pub range: Size,
    /// Threads that read or write, one request each
    #[arg(long, default_value_t = 1)]
    pub threads: usize,
    /// Requests under way by one thread: a queue of libwillow against rings of io_uring
    #[arg(long, conflicts_with = "threads")]
    pub depth: Option<usize>,
    /// Measure opening files directly instead: each for the first time, and once more
    #[arg(long, conflicts_with_all = ["sizes", "depth", "plots"])]
    pub opening: bool,
    /// Measure appending records of these sizes durably instead: by the drive, by write(2) with O_DSYNC, and by databases' write-ahead logs
    #[arg(long, conflicts_with_all = ["opening", "depth", "plots"])]
    pub append: bool,
    /// Device and agent of this build of willow, to compare with
    #[arg(long, value_name = "FILE")]
    pub program: Option<PathBuf>,
    /// Plain file to compare with: made for this and removed afterwards
    #[arg(long, default_value = "willow-bench-direct.tmp")]
    pub plain: PathBuf,
    /// Seconds counted for each measurement
    #[arg(long, default_value_t = 0.5)]
    pub seconds: f64,
    /// Turns of each way
    #[arg(long, default_value_t = 3)]
    pub turns: u32,
    /// Folder for the plots
    #[arg(long, value_name = "FOLDER")]
    pub plots: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Append the result to a kept history
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "docs/benchmark-history.jsonl")]
    pub record: Option<PathBuf>,
}

impl DirectBenchOptions {
    fn check(&self) -> Outcome<u64> {
        let range = self.range.0 / FILL_BYTES as u64 * FILL_BYTES as u64;
        if range == 0 || range > 8 << 30 {
            fail!("--range must be 1M to 8G");
        }
        let is_right = |size: &Size| size.0 > 0 && size.0.is_multiple_of(512) && size.0 <= 1 << 20;
        if self.sizes.is_empty() || !self.sizes.iter().all(is_right) {
            fail!("--sizes takes multiples of 512 up to 1M");
        }
        if !(1..=64).contains(&self.threads) || !(0.0..=3600.0).contains(&self.seconds) || self.turns == 0 {
            fail!("--threads must be 1 to 64, --seconds 0 to 3600, and --turns at least 1");
        }
        if self.depth.is_some_and(|depth| !(1..=QUEUE_DEPTH_MAX).contains(&depth)) {
            fail!("--depth must be 1 to {QUEUE_DEPTH_MAX}");
        }
        if self.plain.exists() {
            fail!("{} exists: name another file with --plain, it is made and removed", self.plain.display());
        }
        if !rustix::process::geteuid().is_root() {
            fail!("this makes a file system on a loop device: run it as root");
        }
        Ok(range)
    }

    /// A device with an agent.
    pub fn stage(&self, size: u64) -> Outcome<Stage> {
        let (size, name) = (size.to_string(), "bench");
        let serve = ["--size", &size, "--block-bytes", "512"];
        let mut stage = match &self.program {
            Some(program) => Stage::of(program, name, &serve)?,
            None => Stage::new(name, &serve)?,
        };
        stage.start_agent()?;
        Ok(stage)
    }

    fn ways(&self) -> &'static [Way] {
        if self.depth.is_some() { BY_DEPTH } else { BY_THREADS }
    }
}

/// Removes the plain file, whatever happens.
struct Scratch<'a>(&'a Path);

impl Drop for Scratch<'_> {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.0);
    }
}

fn open(path: &Path) -> Outcome<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC | OFlags::CREATE;
    rustix::fs::open(path, flags, Mode::from_raw_mode(0o600))
        .context(|| format!("cannot open {} with O_DIRECT", path.display()))
}

fn filled(path: &Path, range: u64) -> Outcome<()> {
    let file = open(path)?;
    let mut buffer = Buffer::new(FILL_BYTES, 1);
    for offset in (0..range).step_by(FILL_BYTES) {
        if kernel(&file, false, buffer.slice(), offset)? != FILL_BYTES {
            fail!("{} could not be filled", path.display());
        }
    }
    rustix::fs::fsync(&file).context(|| format!("cannot sync {}", path.display()))
}

/// Runs it.
pub fn run(options: &DirectBenchOptions) -> Outcome<Report> {
    let range = options.check()?;
    if options.opening {
        return super::opening::run(options);
    }
    if options.append {
        return super::appending::run(options);
    }
    let stage = options.stage(range * 2 + (64 << 20))?;
    let path = stage.folder.join("files/file");
    filled(&path, range)?;
    let _scratch = Scratch(&options.plain);
    filled(&options.plain, range)?;
    let mut session = SessionOptions::new(stage.path("device"), stage.path("agent"));
    session.lane = LaneOptions { spin: SPIN, ..session.lane };
    let session = Session::open(session).map_err(Failure::new)?;
    let device = stage.children.first().map(std::process::Child::id);
    let ways = options.ways();
    let mut rows = Vec::new();
    for read in [false, true] {
        for size in &options.sizes {
            for way in ways.iter().cycle().take(ways.len() * options.turns as usize) {
                let plan = Plan {
                    name: format!("random {} {size}", if read { "read" } else { "write" }),
                    transport: way.name(),
                    queue_depth: options.depth.unwrap_or(options.threads),
                    warm_up: Duration::ZERO,
                    duration: Duration::from_secs_f64(options.seconds),
                    target_pid: if way.is_plain() { None } else { device },
                };
                let path = if way.is_plain() { &options.plain } else { &path };
                let what = (size.0, range, read);
                rows.push(match (way, options.depth) {
                    (Way::Direct, None) => directly(&plan, &session, path, what)?,
                    (Way::Direct, Some(_)) => queued(&plan, &session, path, what)?,
                    (Way::Ext4 | Way::Plain, _) => through(&plan, path, what)?,
                    (Way::Ext4Ring | Way::PlainRing, _) => ring(&plan, path, what)?,
                });
            }
        }
    }
    let figures = figures(&rows, options);
    if let Some(folder) = &options.plots {
        plots(&rows, options, folder)?;
    }
    Ok(Report {
        bench: "direct",
        settings: serde_json::json!({ "range": range, "threads": options.threads, "depth": options.depth, "turns": options.turns }),
        rows,
        figures,
    })
}

/// Bytes of a request, bytes that they are spread over, and whether they are reads.
type What = (u64, u64, bool);

/// Fails where some of what `body` does goes through the kernel.
fn without_kernel(session: &Session, body: impl FnOnce() -> Outcome<Row>) -> Outcome<Row> {
    let before = session.counts();
    let row = body()?;
    let after = session.counts();
    if after.kernel_reads != before.kernel_reads || after.kernel_writes != before.kernel_writes {
        fail!("some operations went through the kernel");
    }
    Ok(row)
}

/// How long what was measured last may keep the file open for writing.
const CONTENDED_MAX: Duration = Duration::from_secs(5);

fn taken(session: &Arc<Session>, path: &Path) -> Outcome<File> {
    let file = File::new(session, open(path)?).map_err(Failure::new)?;
    let begun = Instant::now();
    loop {
        match file.take() {
            // What was measured before may not have let go of it yet: a ring ends in the background.
            Err(DirectError::Contended { .. }) if begun.elapsed() < CONTENDED_MAX => {
                std::thread::sleep(Duration::from_millis(5));
            }
            taken => break taken.map_err(Failure::new)?,
        }
    }
    Ok(file)
}

fn directly(plan: &Plan, session: &Arc<Session>, path: &Path, (bs, range, read): What) -> Outcome<Row> {
    let file = taken(session, path)?;
    without_kernel(session, || {
        measure(plan, bs, range, &|buffer, offset| {
            let done = if read { file.pread(buffer, offset) } else { file.pwrite(buffer, offset) };
            done.map_err(Failure::new)
        })
    })
}

fn through(plan: &Plan, path: &Path, (bs, range, read): What) -> Outcome<Row> {
    let file = open(path)?;
    measure(plan, bs, range, &|buffer, offset| kernel(&file, read, buffer, offset))
}

/// Requests at random places.
fn requests((bs, range, read): What) -> impl FnMut() -> Operation {
    let mut random = Random(1);
    move || {
        let (offset, bytes) = (random.below(range / bs) * bs, bs as u32);
        if read { Operation::Read { offset, bytes } } else { Operation::Write { offset, bytes } }
    }
}

fn ring(plan: &Plan, path: &Path, what: What) -> Outcome<Row> {
    let mut ring = Ring::new(open(path)?, plan.queue_depth, what.0 as usize)?;
    engine::run(plan, &mut ring, requests(what))
}

fn queued(plan: &Plan, session: &Arc<Session>, path: &Path, what: What) -> Outcome<Row> {
    let mut lane = QueueDriver {
        file: Arc::new(taken(session, path)?),
        queue: Queue::new(session, plan.queue_depth as u32).map_err(Failure::new)?,
        buffers: (0..plan.queue_depth).map(|_| vec![0; what.0 as usize]).collect(),
        done: Vec::new(),
    };
    (lane.buffers.iter_mut().zip(1..)).for_each(|(buffer, seed)| fill(buffer, seed));
    without_kernel(session, || engine::run(plan, &mut lane, requests(what)))
}

/// A queue of libwillow. A slot's buffer is the queue's while its operation is under way.
struct QueueDriver {
    file: Arc<File>,
    queue: Queue,
    buffers: Vec<Vec<u8>>,
    done: Vec<Done>,
}

impl Driver for QueueDriver {
    fn buffer(&mut self, slot: usize) -> &mut [u8] {
        &mut self.buffers[slot]
    }

    fn begin(&mut self, slot: usize, operation: Operation) -> Outcome<()> {
        let buffer = std::mem::take(&mut self.buffers[slot]);
        let request = match operation {
            Operation::Read { offset, .. } => Request::Read { offset, buffer },
            Operation::Write { offset, .. } => Request::Write { offset, buffer },
            _ => fail!("{operation:?} is nothing that a file does"),
        };
        self.queue.submit(&self.file, slot as u64, request).map_err(Failure::new)
    }

    fn poll(&mut self, ended: &mut Vec<Ended>) -> Outcome<()> {
        if self.queue.wait(&mut self.done, 1, WAIT_MAX) == 0 {
            fail!("no operation has ended within {} s", WAIT_MAX.as_secs());
        }
        for Done { tag, result, buffer } in self.done.drain(..) {
            let (slot, count) = (tag as usize, result.map_err(Failure::new)?);
            if count != buffer.len() {
                fail!("{count} bytes of {} moved", buffer.len());
            }
            self.buffers[slot] = buffer;
            ended.push(Ended { slot, result: Some(count as u32) });
        }
        Ok(())
    }
}

/// The median of a way's turns, operations a second.
fn iops(rows: &[Row], name: &str, way: Way) -> f64 {
    median(rows, name, way.name(), |row| row.iops)
}

fn names(options: &DirectBenchOptions, kind: &str) -> Vec<(f64, String)> {
    options.sizes.iter().map(|size| (size.0 as f64 / 1024.0, format!("random {kind} {size}"))).collect()
}

fn figures(rows: &[Row], options: &DirectBenchOptions) -> serde_json::Map<String, serde_json::Value> {
    let mut figures = serde_json::Map::new();
    for kind in ["write", "read"] {
        for (_, name) in names(options, kind) {
            let direct = iops(rows, &name, Way::Direct);
            for way in options.ways().iter().filter(|way| **way != Way::Direct) {
                let ratio = (direct / iops(rows, &name, *way).max(1e-9) * 100.0).round() / 100.0;
                figures.insert(format!("{name}: direct over {}", way.name()), serde_json::json!(ratio));
            }
        }
    }
    figures
}

fn plots(rows: &[Row], options: &DirectBenchOptions, folder: &Path) -> Outcome<()> {
    std::fs::create_dir_all(folder).context(|| format!("cannot make {}", folder.display()))?;
    for (kind, file) in [("write", "direct-write"), ("read", "direct-read")] {
        let line = |way: &Way| Series {
            name: way.name().to_owned(),
            published: false,
            points: names(options, kind)
                .into_iter()
                .map(|(kib, name)| (kib, iops(rows, &name, *way) * kib / 1024.0))
                .collect(),
        };
        let plot = Plot {
            file,
            title: match options.depth {
                Some(depth) => format!("Random {kind}s, {depth} under way"),
                None => format!("Random {kind}s, {} thread(s)", options.threads),
            },
            x: "request, KiB".to_owned(),
            y: "MiB/s".to_owned(),
            drawing: Drawing::Lines { series: options.ways().iter().map(line).collect(), log_x: true, log_y: true },
        };
        willow_sim::plot::write(&plot, folder).map_err(Failure::new)?;
    }
    Ok(())
}
