//! `willow bench direct --append`: records appended by the drive ([`Appender`]) beside `write` on the same ext4 with O_APPEND and O_DSYNC, and beside
//! databases' ways of writing ahead ([`Log`]), by record size: Willow's section 4.6. By turns in one run.
//!
//! Invariants: all are durable when they return; a record that went another way than its row says ends the benchmark; each turn has a file of its own,
//! which was synced.

use super::direct::DirectBenchOptions;
use super::engine::Plan;
use super::mount::measure;
use super::report::{Report, Row, median, p50_us};
use super::wal::{Log, Manner};
use crate::failure::{Context, Failure, Outcome, fail};
use rustix::fs::{Mode, OFlags};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;
use willow_host::direct_io::{Appender, Session, SessionOptions};

/// Bytes of the device.
const DEVICE_BYTES: u64 = 2 << 30;
/// Longest record that the drive appends.
const RECORD_BYTES_MAX: u64 = 64 << 10;
/// Bytes of records in a file where nothing else is said.
const FILE_BYTES_MAX: u64 = 1 << 40;

fn open(path: &Path) -> Outcome<OwnedFd> {
    // `OFlags::DSYNC` is O_SYNC, which has the kernel write more.
    let durable = OFlags::from_bits_retain(libc::O_DSYNC as u32);
    let flags = OFlags::WRONLY | OFlags::APPEND | durable | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).context(|| format!("cannot open {}", path.display()))
}

/// A new file, durably.
fn make(path: &Path) -> Outcome<()> {
    let cannot = || format!("cannot make {}", path.display());
    let file = std::fs::File::create_new(path).context(cannot)?;
    file.sync_all().context(cannot)
}

fn by_the_drive(plan: &Plan, session: &std::sync::Arc<Session>, path: &Path, bytes: u64) -> Outcome<Row> {
    let appender = Appender::open(session, path).map_err(Failure::new)?;
    // The agent is asked, and an endpoint made, once for a file: that is not what is measured.
    appender.append(&vec![0; bytes as usize]).map_err(Failure::new)?;
    let before = session.counts();
    let row = measure(plan, bytes, FILE_BYTES_MAX, &|record, _| {
        appender.append(record).map(|_| record.len()).map_err(Failure::new)
    })?;
    if session.counts().kernel_appends != before.kernel_appends {
        fail!("some records were appended by the kernel");
    }
    appender.give_back().map_err(Failure::new)?;
    Ok(row)
}

fn by_the_kernel(plan: &Plan, path: &Path, bytes: u64) -> Outcome<Row> {
    let file = open(path)?;
    measure(plan, bytes, FILE_BYTES_MAX, &|record, _| {
        rustix::io::retry_on_intr(|| rustix::io::write(&file, record)).context(|| "cannot append".to_owned())
    })
}

fn in_the_manner_of(manner: Manner, plan: &Plan, path: &Path, bytes: u64) -> Outcome<Row> {
    let log = Log::open(path, manner)?;
    measure(plan, bytes, FILE_BYTES_MAX, &|record, _| log.commit(record))
}

/// Runs it.
pub fn run(options: &DirectBenchOptions) -> Outcome<Report> {
    let sizes: Vec<_> = options.sizes.iter().filter(|size| size.0 <= RECORD_BYTES_MAX).collect();
    if sizes.is_empty() {
        fail!("--sizes has none of up to 64K, which is the longest record that the drive appends");
    }
    let stage = options.stage(DEVICE_BYTES)?;
    let session = Session::open(SessionOptions::new(stage.path("device"), stage.path("agent")));
    let session = session.map_err(Failure::new)?;
    let device = stage.children.first().map(std::process::Child::id);
    let mut rows = Vec::new();
    for size in &sizes {
        for turn in 0..options.turns {
            for transport in ["direct", "ext4", "rocksdb", "postgresql"] {
                let plan = Plan {
                    name: format!("append {size}"),
                    transport,
                    queue_depth: options.threads,
                    warm_up: Duration::ZERO,
                    duration: Duration::from_secs_f64(options.seconds),
                    target_pid: device,
                };
                let path = stage.folder.join(format!("files/log-{size}-{transport}-{turn}"));
                make(&path)?;
                rows.push(match transport {
                    "direct" => by_the_drive(&plan, &session, &path, size.0)?,
                    "rocksdb" => in_the_manner_of(Manner::Growing, &plan, &path, size.0)?,
                    "postgresql" => in_the_manner_of(Manner::Segment, &plan, &path, size.0)?,
                    _ => by_the_kernel(&plan, &path, size.0)?,
                });
                // All turns have the same room.
                std::fs::remove_file(&path).context(|| format!("cannot remove {}", path.display()))?;
            }
        }
    }
    let median = |name: &str, transport: &str| median(&rows, name, transport, p50_us);
    let mut figures = serde_json::Map::new();
    for size in &sizes {
        let name = format!("append {size}");
        let (direct, ext4) = (median(&name, "direct"), median(&name, "ext4"));
        figures.insert(format!("{name}, direct: p50 us"), serde_json::json!(direct));
        figures.insert(format!("{name}, ext4: p50 us"), serde_json::json!(ext4));
        let share = (direct / ext4.max(1e-9) * 100.0).round() / 100.0;
        figures.insert(format!("{name}: latency of direct over that of ext4"), serde_json::json!(share));
        for manner in ["rocksdb", "postgresql"] {
            let other = self::median(&rows, &name, manner, |row| row.iops);
            let more = self::median(&rows, &name, "direct", |row| row.iops) / other.max(1e-9);
            let more = (more * 100.0).round() / 100.0;
            figures.insert(format!("{name}: commits of direct over those of {manner}'s log"), serde_json::json!(more));
        }
    }
    Ok(Report {
        bench: "direct",
        settings: serde_json::json!({ "append": true, "threads": options.threads, "turns": options.turns }),
        rows,
        figures,
    })
}
