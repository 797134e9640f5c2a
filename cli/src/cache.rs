//! `willow cache`: files cached on a device, mounted, listed and removed.
//!
//! What always holds: the line `mounted …` is printed once the file is there; when the mount ends, all that was written is in the backing file, or the
//! command says what is not, and the next mount of that file has it.

use crate::client;
use crate::failure::{Context, Failure, Outcome, fail};
use crate::mount::unmount_on;
use crate::output;
use crate::size::Size;
use crate::table::Table;
use crate::target::TargetOption;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use willow_fuse::{Disk, MountOptions, Mounted, mounted};
use willow_host::cache::disk::NSID;
use willow_host::cache::{self, Backing, CacheOptions, CachedDisk, Manager, Mode};
use willow_host::direct_io::{CachedFile, Session, SessionOptions};
use willow_host::{BlockClient, CachingClient, Hre};

/// Bytes moved at a time.
const STEP_BYTES: usize = 1 << 20;
/// How often the device is told that the manager is there.
const HOLD_EVERY: Duration = Duration::from_secs(1);
/// How often dirty chunks are written back.
const WRITE_BACK_EVERY: Duration = Duration::from_secs(5);
/// Wait between two looks.
const LOOK: Duration = Duration::from_millis(50);

/// The subcommands.
#[derive(Debug, clap::Subcommand)]
pub enum Cache {
    /// A file with its cache on the device in front of it: DIR/disk, by FUSE, until Ctrl-C
    Mount(MountArguments),
    /// List the caches
    List {
        #[command(flatten)]
        target: TargetOption,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Write a file's bytes to standard output, through its cache, by the process' own endpoint
    Read {
        /// The file
        file: PathBuf,
        /// First byte
        #[arg(long, default_value_t = 0)]
        offset: u64,
        /// How many [default: to the end]
        #[arg(long)]
        bytes: Option<u64>,
        /// The agent's socket (willow agent --socket)
        #[arg(long, value_name = "PATH")]
        agent: PathBuf,
    },
    /// Write standard input to a file, within its length, through its cache, durably
    Write {
        /// The file
        file: PathBuf,
        /// First byte
        #[arg(long, default_value_t = 0)]
        offset: u64,
        /// Where there is no cache of it: when writes are acknowledged [default: write-through]
        #[arg(long, value_name = "write-through|write-back")]
        mode: Option<Mode>,
        /// Open the file for reading only, and try all the same
        #[arg(long)]
        read_only: bool,
        /// The agent's socket (willow agent --socket)
        #[arg(long, value_name = "PATH")]
        agent: PathBuf,
    },
    /// Have the device forget a cache that nobody uses
    Remove {
        /// Its number
        cache: u32,
        /// Also where the backing file does not have all of it: that is lost
        #[arg(long)]
        discard: bool,
        #[command(flatten)]
        target: TargetOption,
    },
}

/// Flags of `willow cache mount`.
#[derive(Debug, clap::Args)]
pub struct MountArguments {
    /// Empty folder to mount at; the cached file is the file `disk` in it
    pub folder: PathBuf,
    /// The file or block device that is cached; nobody else writes it meanwhile
    #[arg(long, value_name = "FILE")]
    pub backing: PathBuf,
    /// Writes are acknowledged by the backing file (write-through) or by the cache (write-back) [default: as the cache that there is, or write-through]
    #[arg(long, value_name = "write-through|write-back")]
    pub mode: Option<Mode>,
    /// Bytes of the cache, such as 256M [default: as the cache that there is, or 64M]
    #[arg(long, value_name = "BYTES")]
    pub size: Option<Size>,
    /// Bytes of a chunk, a power of two from 4K to 64K [default: as the cache that there is, or the smallest that there is room for]
    #[arg(long, value_name = "BYTES")]
    pub chunk: Option<Size>,
    /// Refuse writes
    #[arg(long)]
    pub read_only: bool,
    /// Let other users see the mount (FUSE has to allow it)
    #[arg(long)]
    pub allow_other: bool,
    /// Requests served at the same time, 1 to 64
    #[arg(long, default_value_t = MountOptions::default().threads)]
    pub threads: usize,
    #[command(flatten)]
    pub target: TargetOption,
}

/// Runs one.
pub fn run(cache: Cache) -> Outcome<()> {
    match cache {
        Cache::Mount(arguments) => mount(&arguments),
        Cache::List { target, json } => list(&target, json),
        Cache::Read { file, offset, bytes, agent } => {
            let named = std::fs::File::open(&file).context(|| format!("cannot open {}", file.display()))?;
            let cached = cached(named, &agent, CacheOptions::default())?;
            let whole = cached.shape().map_err(Failure::new)?.0;
            let end = bytes.map_or(whole, |bytes| offset.saturating_add(bytes).min(whole));
            let (mut at, mut buffer) = (offset, vec![0; STEP_BYTES]);
            while at < end {
                let step = STEP_BYTES.min((end - at) as usize);
                let count = cached.read_at(&mut buffer[..step], at).map_err(Failure::new)?;
                output::bytes(&buffer[..count])?;
                at += count as u64;
            }
            Ok(())
        }
        Cache::Write { file, offset, mode, read_only, agent } => {
            let named = std::fs::File::options().read(true).write(!read_only).open(&file);
            let named = named.context(|| format!("cannot open {}", file.display()))?;
            let cached = cached(named, &agent, CacheOptions { mode, ..CacheOptions::default() })?;
            let room = cached.shape().map_err(Failure::new)?.0.saturating_sub(offset);
            let mut data = Vec::new();
            let read = std::io::stdin().take(room + 1).read_to_end(&mut data);
            read.context(|| "cannot read standard input".to_owned())?;
            if data.len() as u64 > room {
                fail!("standard input has more than the {room} bytes from {offset} to the end of the file");
            }
            for (index, piece) in data.chunks(STEP_BYTES).enumerate() {
                let at = offset + (index * STEP_BYTES) as u64;
                cached.write_at(piece, at).context(|| format!("cannot write {}", file.display()))?;
            }
            cached.sync().map_err(Failure::new)
        }
        Cache::Remove { cache, discard, target } => {
            let runtime = client::runtime()?;
            let (_controller, hre) = client::attach(&runtime, &target)?;
            let app = runtime.block_on(CachingClient::find(hre)).map_err(Failure::new)?;
            let removed = runtime.block_on(cache::remove(&app, cache, discard));
            removed.context(|| format!("cache {cache} is not removed"))
        }
    }
}

fn cached(file: std::fs::File, agent: &std::path::Path, options: CacheOptions) -> Outcome<CachedFile> {
    let session = Session::open(SessionOptions::by_agent(agent)).map_err(Failure::new)?;
    CachedFile::open(&session, file, options).map_err(Failure::new)
}

fn list(target: &TargetOption, json: bool) -> Outcome<()> {
    let runtime = client::runtime()?;
    let (_controller, hre) = client::attach(&runtime, target)?;
    let app = runtime.block_on(CachingClient::find(hre)).map_err(Failure::new)?;
    let spus = app.numbers().1;
    let listed = runtime.block_on(cache::list(&app)).map_err(Failure::new)?;
    let path = |it: &cache::Listed| {
        let bytes = it.descriptor.path.get(..it.descriptor.path_bytes as usize).unwrap_or_default();
        String::from_utf8_lossy(bytes).into_owned()
    };
    let mode = |it: &cache::Listed| if it.descriptor.writes_through { "write-through" } else { "write-back" };
    let bytes =
        |it: &cache::Listed| u64::from(it.descriptor.slots) * u64::from(it.descriptor.chunk_bytes) * u64::from(spus);
    if json {
        let all: Vec<_> = listed
            .iter()
            .map(|it| {
                let chunk = u64::from(it.descriptor.chunk_bytes);
                serde_json::json!({
                    "cache": it.cache, "backing": path(it), "mode": mode(it), "bytes": bytes(it),
                    "chunk_bytes": chunk, "used_bytes": it.counts.used * chunk, "dirty_bytes": it.counts.dirty * chunk,
                    "hits": it.counts.hits, "misses": it.counts.misses, "writes": it.counts.writes,
                    "installs": it.counts.installs, "evictions": it.counts.evictions,
                    "is_open": it.counts.epoch != 0,
                })
            })
            .collect();
        return output::json(&serde_json::json!({ "caches": all }));
    }
    let mut table = Table::new(&["cache", "mode", "MiB", "used", "dirty", "hits", "misses", "backing file"]);
    for it in &listed {
        let mib = |bytes: u64| format!("{:.1}", bytes as f64 / f64::from(1 << 20));
        let chunk = u64::from(it.descriptor.chunk_bytes);
        table.row([
            it.cache.to_string(),
            mode(it).to_owned(),
            mib(bytes(it)),
            mib(it.counts.used * chunk),
            mib(it.counts.dirty * chunk),
            it.counts.hits.to_string(),
            it.counts.misses.to_string(),
            path(it),
        ]);
    }
    output::text(&table.render())
}

/// Opens the file, for writing where that is wanted.
fn open(arguments: &MountArguments) -> Outcome<Backing> {
    let path = &arguments.backing;
    let file = std::fs::File::options().read(true).write(!arguments.read_only).open(path);
    let file = file.context(|| format!("cannot open {}", path.display()))?;
    Backing::of(file).map_err(|why| Failure::new(format!("{} cannot be cached: {why}", path.display())))
}

/// Writes back now and then, and tells the device that the manager is there, until the mount ends.
fn tend(manager: &Manager, runtime: &Handle, is_over: &AtomicBool) {
    let (mut held, mut written) = (Instant::now(), Instant::now());
    while !is_over.load(Ordering::Acquire) {
        std::thread::sleep(LOOK);
        if held.elapsed() >= HOLD_EVERY {
            held = Instant::now();
            if let Err(error) = runtime.block_on(manager.hold()) {
                tracing::warn!("the cache is lost to this mount: {error}");
            }
        }
        if manager.mode() == Mode::WriteBack && written.elapsed() >= WRITE_BACK_EVERY {
            if let Err(error) = runtime.block_on(manager.write_back(None)) {
                tracing::warn!("what was written stays in the cache for now: {error}");
            }
            written = Instant::now();
        }
    }
}

fn mount(arguments: &MountArguments) -> Outcome<()> {
    let signals = Signals::new([SIGTERM, SIGINT]).context(|| "cannot wait for signals".to_owned())?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context(|| "cannot start the I/O runtime".to_owned())?;
    let (controller, hre) = client::attach(&runtime, &arguments.target)?;
    let app = runtime.block_on(CachingClient::find(hre)).map_err(Failure::new)?;
    let Ok(chunk_bytes) = arguments.chunk.map(|size| u32::try_from(size.0)).transpose() else {
        fail!("--chunk must be 4K to 64K");
    };
    let options = CacheOptions { mode: arguments.mode, bytes: arguments.size.map(|size| size.0), chunk_bytes };
    if options.bytes == Some(0) {
        fail!("--size is 0: a cache has at least one chunk on each processor");
    }
    let backing = open(arguments)?;
    let name = arguments.backing.display();
    let manager = runtime.block_on(Manager::open(&app, backing, &options));
    let manager = Arc::new(manager.context(|| format!("cannot cache {name}"))?);
    let served = serve(arguments, signals, &runtime, &manager);
    let closed = runtime.block_on(manager.close());
    if let Some(controller) = controller {
        let _ = runtime.block_on(async { tokio::time::timeout(client::GOODBYE_TIMEOUT, controller.shut_down()).await });
    }
    served?;
    closed.context(|| format!("{name} does not have all that was written, which stays in the cache: mount it again"))
}

fn serve(
    arguments: &MountArguments,
    signals: Signals,
    runtime: &tokio::runtime::Runtime,
    manager: &Arc<Manager>,
) -> Outcome<()> {
    let disk: Arc<dyn Hre> = Arc::new(CachedDisk::new(manager.clone()).map_err(Failure::new)?);
    let blocks = runtime.block_on(BlockClient::open(disk, NSID)).map_err(Failure::new)?;
    let bytes = blocks.bytes();
    let options =
        MountOptions { threads: arguments.threads, read_only: arguments.read_only, allow_other: arguments.allow_other };
    let disk = Arc::new(Disk::new(blocks));
    let mounted = Mounted::new(disk, &arguments.folder, &options, runtime.handle().clone()).map_err(Failure::new)?;
    unmount_on(signals, mounted.path())?;
    let is_over = Arc::new(AtomicBool::new(false));
    let thread = {
        let (manager, handle, is_over) = (manager.clone(), runtime.handle().clone(), is_over.clone());
        let tend = move || tend(&manager, &handle, &is_over);
        std::thread::Builder::new().name("willow-cache".to_owned()).spawn(tend)
    };
    let thread = thread.context(|| "cannot start a thread for the cache".to_owned())?;
    let path = mounted.path().join(mounted::FILE_NAME);
    output::line(&format!("mounted {} bytes={bytes} cache-bytes={}", path.display(), manager.bytes()))?;
    let served = mounted.run().map_err(Failure::new);
    is_over.store(true, Ordering::Release);
    let _ = thread.join();
    served
}
