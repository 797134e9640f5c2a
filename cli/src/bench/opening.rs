//! `willow bench direct --opening`: how long it takes to open a file directly and to give it back, for the first time and once more, by
//! threads with files of their own, beside `open` and `close` of the kernel. By turns in one run.
//!
//! Invariants: what is opened for the first time was never opened since it was made and synced; a file that is not taken directly ends the
//! benchmark.

use super::direct::DirectBenchOptions;
use super::engine::Plan;
use super::mount::measure;
use super::report::{Report, median, p50_us};
use crate::failure::{Context, Failure, Outcome, fail};
use rustix::fs::{Mode, OFlags};
use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use willow_host::direct_io::{File, Session, SessionOptions};

/// Bytes of each file.
const FILE_BYTES: usize = 4096;
/// Files that are there to be opened for the first time.
const FILES: usize = 12_288;
/// Bytes of the device.
const DEVICE_BYTES: u64 = 512 << 20;

thread_local! {
    /// Number of a thread of one measurement.
    static NUMBER: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Files by number.
struct Files {
    folder: PathBuf,
    next: AtomicUsize,
    /// Of the threads of this measurement.
    threads: AtomicUsize,
}

impl Files {
    fn path(&self, number: usize) -> PathBuf {
        self.folder.join(format!("file-{number}"))
    }

    /// One that nobody has opened.
    fn fresh(&self) -> Outcome<PathBuf> {
        match self.next.fetch_add(1, Ordering::Relaxed) {
            number if number < FILES => Ok(self.path(number)),
            _ => fail!("all {FILES} files have been opened: measure for a shorter time (--seconds, --turns)"),
        }
    }

    /// This thread's own.
    fn own(&self) -> PathBuf {
        let number = NUMBER.with(|number| {
            let own = number.get().unwrap_or_else(|| self.threads.fetch_add(1, Ordering::Relaxed));
            number.set(Some(own));
            own
        });
        self.folder.join(format!("own-{number}"))
    }
}

fn open(path: &Path) -> Outcome<std::os::fd::OwnedFd> {
    let opened = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    opened.context(|| format!("cannot open {}", path.display()))
}

fn directly(session: &Arc<Session>, path: &Path) -> Outcome<usize> {
    let file = File::new(session, open(path)?).map_err(Failure::new)?;
    file.take().map_err(Failure::new)?;
    drop(file);
    Ok(FILE_BYTES)
}

/// Runs it.
pub fn run(options: &DirectBenchOptions) -> Outcome<Report> {
    let stage = options.stage(DEVICE_BYTES)?;
    let files = Files { folder: stage.folder.join("files"), next: AtomicUsize::new(0), threads: AtomicUsize::new(0) };
    let own = (0..options.threads).map(|number| files.folder.join(format!("own-{number}")));
    for path in (0..FILES).map(|number| files.path(number)).chain(own) {
        std::fs::write(&path, [1; FILE_BYTES]).context(|| format!("cannot write {}", path.display()))?;
    }
    rustix::fs::syncfs(open(&files.path(0))?).context(|| "cannot sync the files".to_owned())?;
    let session = Session::open(SessionOptions::new(stage.path("device"), stage.path("agent")));
    let session = session.map_err(Failure::new)?;
    let device = stage.children.first().map(std::process::Child::id);
    let mut rows = Vec::new();
    type Way<'a> = (&'static str, &'static str, Box<dyn Fn() -> Outcome<usize> + Sync + 'a>);
    let ways: [Way<'_>; 3] = [
        ("open for the first time", "direct", Box::new(|| directly(&session, &files.fresh()?))),
        ("open once more", "direct", Box::new(|| directly(&session, &files.own()))),
        ("open once more", "ext4", Box::new(|| open(&files.own()).map(|_| FILE_BYTES))),
    ];
    for _ in 0..options.turns {
        for (name, transport, operation) in &ways {
            let plan = Plan {
                name: (*name).to_owned(),
                transport,
                queue_depth: options.threads,
                warm_up: Duration::ZERO,
                duration: Duration::from_secs_f64(options.seconds),
                target_pid: device,
            };
            files.threads.store(0, Ordering::Relaxed);
            let bytes = FILE_BYTES as u64;
            rows.push(measure(&plan, bytes, bytes, &|_, _| operation())?);
        }
    }
    let median = |name: &str, transport: &str| median(&rows, name, transport, p50_us);
    let mut figures = serde_json::Map::new();
    for (name, transport, _) in &ways {
        figures.insert(format!("{name}, {transport}: p50 us"), serde_json::json!(median(name, transport)));
    }
    drop(ways);
    Ok(Report {
        bench: "direct",
        settings: serde_json::json!({ "opening": true, "threads": options.threads, "turns": options.turns }),
        rows,
        figures,
    })
}
