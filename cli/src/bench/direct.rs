//! `willow bench direct`: a file on a real ext4 on the device, read and written directly against the same file through the file system
//! with O_DIRECT (loop device, FUSE), and a plain file of this machine beside them, by request size: Willow's figure 4. By turns in
//! one run.
//!
//! Invariants: the file is written once as a whole before anything is measured; no turn counts of which an operation went another way
//! than its name says; a failed or short operation ends the benchmark.

use super::engine::Plan;
use super::mount::{Buffer, kernel, measure};
use super::report::{Report, Row};
use crate::failure::{Context, Failure, Outcome, fail};
use crate::size::Size;
use crate::stage::Stage;
use rustix::fs::{Mode, OFlags};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;
use willow_host::direct_io::{File, LaneOptions, Session, SessionOptions};
use willow_sim::experiments::{Drawing, Plot, Series};

/// Bytes of a write that fills.
const FILL_BYTES: usize = 1 << 20;
/// Longest look for a completion before sleeping, as `bench io` has it.
const SPIN: Duration = Duration::from_millis(2);
/// The ways, in the order of their turns.
const WAYS: [&str; 3] = ["direct", "ext4", "plain file"];

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
        if self.plain.exists() {
            fail!("{} exists: name another file with --plain, it is made and removed", self.plain.display());
        }
        if !rustix::process::geteuid().is_root() {
            fail!("this makes a file system on a loop device: run it as root");
        }
        Ok(range)
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
    let size = (range * 2 + (64 << 20)).to_string();
    let mut stage = Stage::new("bench", &["--size", &size, "--block-bytes", "512"])?;
    stage.start_agent()?;
    let path = stage.folder.join("files/file");
    filled(&path, range)?;
    let _scratch = Scratch(&options.plain);
    filled(&options.plain, range)?;
    let mut session = SessionOptions::new(stage.path("device"), stage.path("agent"));
    session.lane = LaneOptions { spin: SPIN, ..session.lane };
    let session = Session::open(session).map_err(Failure::new)?;
    let device = stage.children.first().map(std::process::Child::id);
    let mut rows = Vec::new();
    for read in [false, true] {
        for size in &options.sizes {
            for way in WAYS.iter().cycle().take(WAYS.len() * options.turns as usize) {
                let plan = Plan {
                    name: format!("random {} {size}", if read { "read" } else { "write" }),
                    transport: way,
                    queue_depth: options.threads,
                    warm_up: Duration::ZERO,
                    duration: Duration::from_secs_f64(options.seconds),
                    target_pid: if *way == "plain file" { None } else { device },
                };
                let row = match *way {
                    "direct" => directly(&plan, &session, &path, (size.0, range), read)?,
                    "ext4" => through(&plan, &path, (size.0, range), read)?,
                    _ => through(&plan, &options.plain, (size.0, range), read)?,
                };
                rows.push(row);
            }
        }
    }
    let figures = figures(&rows, options);
    if let Some(folder) = &options.plots {
        plots(&rows, options, folder)?;
    }
    Ok(Report {
        bench: "direct",
        settings: serde_json::json!({ "range": range, "threads": options.threads, "turns": options.turns }),
        rows,
        figures,
    })
}

fn directly(
    plan: &Plan,
    session: &std::sync::Arc<Session>,
    path: &Path,
    (bs, range): (u64, u64),
    read: bool,
) -> Outcome<Row> {
    let file = File::new(session, open(path)?).map_err(Failure::new)?;
    file.take().map_err(Failure::new)?;
    let before = session.counts();
    let row = measure(plan, bs, range, &|buffer, offset| {
        let done = if read { file.pread(buffer, offset) } else { file.pwrite(buffer, offset) };
        done.map_err(Failure::new)
    })?;
    let after = session.counts();
    if after.kernel_reads != before.kernel_reads || after.kernel_writes != before.kernel_writes {
        fail!("some operations went through the kernel");
    }
    Ok(row)
}

fn through(plan: &Plan, path: &Path, (bs, range): (u64, u64), read: bool) -> Outcome<Row> {
    let file = open(path)?;
    measure(plan, bs, range, &|buffer, offset| kernel(&file, read, buffer, offset))
}

/// The median of a way's turns, operations a second.
fn median(rows: &[Row], name: &str, way: &str) -> f64 {
    let of_it = rows.iter().filter(|row| row.name == name && row.transport == way);
    let mut all: Vec<f64> = of_it.map(|row| row.iops).collect();
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or(0.0)
}

fn names(options: &DirectBenchOptions, kind: &str) -> Vec<(f64, String)> {
    options.sizes.iter().map(|size| (size.0 as f64 / 1024.0, format!("random {kind} {size}"))).collect()
}

fn figures(rows: &[Row], options: &DirectBenchOptions) -> serde_json::Map<String, serde_json::Value> {
    let mut figures = serde_json::Map::new();
    for kind in ["write", "read"] {
        for (_, name) in names(options, kind) {
            let direct = median(rows, &name, WAYS[0]);
            for way in &WAYS[1..] {
                let ratio = (direct / median(rows, &name, way).max(1e-9) * 100.0).round() / 100.0;
                figures.insert(format!("{name}: direct over {way}"), serde_json::json!(ratio));
            }
        }
    }
    figures
}

fn plots(rows: &[Row], options: &DirectBenchOptions, folder: &Path) -> Outcome<()> {
    std::fs::create_dir_all(folder).context(|| format!("cannot make {}", folder.display()))?;
    for (kind, file) in [("write", "direct-write"), ("read", "direct-read")] {
        let line = |way: &&str| Series {
            name: (*way).to_owned(),
            published: false,
            points: names(options, kind)
                .into_iter()
                .map(|(kib, name)| (kib, median(rows, &name, way) * kib / 1024.0))
                .collect(),
        };
        let plot = Plot {
            file,
            title: format!("Random {kind}s, {} thread(s)", options.threads),
            x: "request, KiB".to_owned(),
            y: "MiB/s".to_owned(),
            drawing: Drawing::Lines { series: WAYS.iter().map(line).collect(), log_x: true, log_y: true },
        };
        willow_sim::plot::write(&plot, folder).map_err(Failure::new)?;
    }
    Ok(())
}
