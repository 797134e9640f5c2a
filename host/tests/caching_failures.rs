//! What managers of caches do where the backing file, or the device's power, fails in the midst: held to what the file has, and to what was written.
//!
//! What always holds: the limit of file sizes by which one place of a file cannot be written is the process', so that one test runs at a time.

use std::fs::File;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use willow_device::media::fault::{Choices, FaultMedia, FaultOptions};
use willow_device::{BuiltInApp, Device, DeviceConfig, OpenError};
use willow_host::cache::disk::NSID;
use willow_host::cache::{Backing, CacheError, CacheOptions, CachedDisk, Manager, Mode, list};
use willow_host::{BlockClient, CachingClient, Hre, InProcess};
use willow_skip::{has, is_root, skip};

const SPUS: u16 = 4;
const CHUNK: usize = 4096;
const BYTES: usize = 40 * CHUNK + 1536;

fn device_on(media: &FaultMedia) -> Result<Device, OpenError> {
    let config = DeviceConfig {
        spus: SPUS,
        namespace_bytes: 8 << 20,
        block_bytes: 4096,
        kv_namespace_bytes: 0,
        ..DeviceConfig::default()
    };
    let apps = [base_io_spu::native(), caching_spu::native()].into_iter().map(BuiltInApp::Native).collect();
    Device::open(config, Box::new(media.store()), None, apps)
}

/// Held by the test that runs.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn media() -> FaultMedia {
    FaultMedia::new(FaultOptions::new(SPUS.into(), 64 << 20))
}

fn start(media: &FaultMedia) -> InProcess {
    let media = media.clone();
    InProcess::start(move || device_on(&media)).expect("opens")
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

async fn client(device: &InProcess) -> CachingClient {
    CachingClient::find(Arc::new(device.endpoint(None).await.expect("an endpoint"))).await.expect("the app")
}

/// A file of this test's own, gone at its end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(contents: &[u8]) -> Scratch {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("willow-caching-failures-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, contents).expect("written");
        Scratch(path)
    }

    fn backing(&self) -> Backing {
        backing(&self.0)
    }

    fn contents(&self) -> Vec<u8> {
        std::fs::read(&self.0).expect("it is there")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn backing(path: &std::path::Path) -> Backing {
    let file = File::options().read(true).write(true).open(path).expect("it is there");
    Backing::of(file).expect("it can be cached")
}

fn options(mode: Mode) -> CacheOptions {
    CacheOptions { mode: Some(mode), bytes: Some(64 * CHUNK as u64), chunk_bytes: Some(CHUNK as u32) }
}

async fn opened(client: &CachingClient, backing: Backing, mode: Mode) -> Arc<Manager> {
    Arc::new(Manager::open(client, backing, &options(mode)).await.expect("a cache"))
}

async fn disk(manager: &Arc<Manager>) -> BlockClient {
    let hre: Arc<dyn Hre> = Arc::new(CachedDisk::new(manager.clone()).expect("whole blocks"));
    BlockClient::open(hre, NSID).await.expect("a disk")
}

/// Writes of this process end there, in whichever file: what goes past it is written up to it, and what begins past it fails (EFBIG).
fn limit(bytes: Option<u64>) {
    use rustix::process::{Resource, getrlimit, setrlimit};
    // SAFETY: it is ignored, which needs no handler.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    let mut limits = getrlimit(Resource::Fsize);
    limits.current = bytes.or(limits.maximum);
    setrlimit(Resource::Fsize, limits).expect("a limit below the highest");
}

fn is_too_large(error: &CacheError) -> bool {
    matches!(error, CacheError::Backing(error) if error.raw_os_error() == Some(libc::EFBIG))
}

#[test]
fn a_place_that_cannot_be_written_costs_nothing_but_itself() {
    let _alone = alone();
    let device = start(&media());
    runtime().block_on(async {
        let client = client(&device).await;
        let mut model = vec![b'a'; BYTES];
        let scratch = Scratch::new(&model);
        let manager = opened(&client, scratch.backing(), Mode::WriteBack).await;
        let own = disk(&manager).await;
        // Two chunks of one processor, of which one cannot be written, and one of each other.
        for (chunk, byte) in [(0, 1), (28, 2), (1, 3), (2, 4), (3, 5)] {
            own.write((chunk * CHUNK) as u64, vec![byte; CHUNK], false).await.expect("writes");
            model[chunk * CHUNK..][..CHUNK].fill(byte);
        }
        limit(Some(20 * CHUNK as u64));
        let failed = manager.write_back(None).await;
        let unwritten = manager.counts().await.expect("counts").dirty;
        let file = scratch.contents();
        let closed = manager.close().await;
        limit(None);
        assert!(failed.as_ref().is_err_and(is_too_large), "{failed:?}");
        assert!(closed.as_ref().is_err_and(is_too_large), "{closed:?}");
        assert_eq!(unwritten, 1, "all others are written, and count as clean");
        assert!(file[..20 * CHUNK] == model[..20 * CHUNK] && file[28 * CHUNK] == b'a');
        let next = opened(&client, scratch.backing(), Mode::WriteBack).await;
        assert_eq!(disk(&next).await.read(0, BYTES).await.expect("reads"), model, "it is in the cache");
        next.close().await.expect("closed");
        assert!(scratch.contents() == model);

        // A write through of which a part alone is in the file.
        let scratch = Scratch::new(&vec![b'a'; BYTES]);
        let manager = opened(&client, scratch.backing(), Mode::WriteThrough).await;
        let own = disk(&manager).await;
        own.read(0, BYTES).await.expect("reads");
        let end = 10 * CHUNK + 100;
        limit(Some(end as u64));
        let failed = manager.write_through(10 * CHUNK as u64 - 512, &[7; 2 * CHUNK]).await;
        limit(None);
        assert!(failed.as_ref().is_err_and(is_too_large), "{failed:?}");
        let file = scratch.contents();
        assert_eq!((file[end - 1], file[end]), (7, b'a'), "the half of it is there");
        assert_eq!(own.read(0, BYTES).await.expect("reads"), file, "the cache has what the file has");
        manager.close().await.expect("closed");
        let next = opened(&client, scratch.backing(), Mode::WriteThrough).await;
        assert_eq!(disk(&next).await.read(0, BYTES).await.expect("reads"), file);
        next.close().await.expect("closed");
    });
}

/// A cache that writes through, with a chunk of each processor that is there durably.
async fn prepared(client: &CachingClient, scratch: &Scratch) -> Arc<Manager> {
    let manager = opened(client, scratch.backing(), Mode::WriteThrough).await;
    for chunk in 0..u64::from(SPUS) {
        manager.fetch(chunk, 0, 0).await.expect("fetched");
        manager.client().sync(chunk as u16).await.expect("durable");
    }
    manager
}

/// Writes to all of these, and closes the cache, unless the power goes.
async fn written_through(manager: &Manager, byte: u8) -> Result<(), CacheError> {
    for chunk in 0..u64::from(SPUS) {
        manager.write_through(chunk * CHUNK as u64 + 512, &[byte; 1024]).await?;
    }
    manager.close().await
}

/// The power goes between any two operations of the media, from before a write through until after the cache was closed: the next manager reads from the
/// cache what the file has.
#[test]
fn a_cache_that_was_written_through_has_what_the_file_has_after_every_cut() {
    let _alone = alone();
    let runtime = runtime();
    // What it takes where the power stays.
    let (media, scratch) = (media(), Scratch::new(&vec![b'a'; BYTES]));
    let device = start(&media);
    let (begun, whole) = runtime.block_on(async {
        let manager = prepared(&client(&device).await, &scratch).await;
        let begun = media.operations();
        written_through(&manager, 1).await.expect("closed");
        (begun, media.operations())
    });
    drop(device);
    assert!(whole > begun);
    let mut warm = 0;
    for after in begun..=whole {
        let (media, scratch) = (self::media(), Scratch::new(&vec![b'a'; BYTES]));
        let device = start(&media);
        let done = runtime.block_on(async {
            let manager = prepared(&client(&device).await, &scratch).await;
            media.cut_after(after.max(media.operations()));
            written_through(&manager, 1 + after as u8 % 90).await
        });
        assert!(done.is_ok() || media.is_cut(), "{after} of {whole}: {done:?}");
        drop(device);
        for seed in 0..3 {
            let left = media.power_cut(&mut Choices::seeded(after * 3 + seed));
            let device = start(&left);
            runtime.block_on(async {
                let client = client(&device).await;
                let manager = opened(&client, scratch.backing(), Mode::WriteThrough).await;
                warm += manager.counts().await.expect("counts").used;
                let chunks = CHUNK * usize::from(SPUS);
                let found = disk(&manager).await.read(0, chunks).await.expect("reads");
                assert!(found == scratch.contents()[..chunks], "cut after {after} of {whole} operations, seed {seed}");
            });
        }
    }
    assert!(warm > 0, "no cut left anything in the cache that was believed");
}

/// A loop device, detached at the end.
struct Loop(String);

impl Loop {
    fn losetup(arguments: &[&str]) -> Result<String, String> {
        let output = Command::new("losetup").args(arguments).output().map_err(|error| error.to_string())?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }

    fn new(file: &std::path::Path) -> Result<Loop, String> {
        Self::losetup(&["-f", "--show", &file.display().to_string()]).map(Loop)
    }

    /// Another file comes to lie under the same name. Where that fails it may be somebody else's by now, and is left alone.
    fn exchange(&mut self, file: &std::path::Path) -> Result<(), String> {
        let name = std::mem::take(&mut self.0);
        Self::losetup(&["-d", &name])?;
        Self::losetup(&[&name, &file.display().to_string()])?;
        self.0 = name;
        Ok(())
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        if !self.0.is_empty() {
            let _ = Self::losetup(&["-d", &self.0]);
        }
    }
}

#[test]
fn a_disk_that_takes_anothers_name_gets_nothing_of_what_was_written_to_that() {
    let test = "a_disk_that_takes_anothers_name_gets_nothing_of_what_was_written_to_that";
    if !is_root() || !has("losetup") {
        return skip(test, "loop devices are root's to make, by losetup");
    }
    let _alone = alone();
    // Whoever makes a loop device meanwhile, in another test, may get the one that is free for a moment.
    for _ in 0..20 {
        let disk_of = match Loop::new(&Scratch::new(&vec![b'0'; CHUNK]).0) {
            Ok(disk_of) => disk_of,
            Err(why) => return skip(test, &why),
        };
        drop(disk_of);
        match names_are_exchanged() {
            Ok(()) => return,
            Err(taken) => eprintln!("{taken}"),
        }
    }
    panic!("others take each loop device");
}

/// An error: another has taken the name.
fn names_are_exchanged() -> Result<(), String> {
    let bytes = 64 * CHUNK;
    let (first, second) = (Scratch::new(&vec![b'1'; bytes]), Scratch::new(&vec![b'2'; bytes]));
    let mut disk_of = Loop::new(&first.0)?;
    let path = PathBuf::from(&disk_of.0);
    let device = start(&media());
    runtime().block_on(async {
        let client = client(&device).await;
        let manager = opened(&client, backing(&path), Mode::WriteBack).await;
        disk(&manager).await.write(CHUNK as u64, vec![9; CHUNK], false).await.expect("writes");
        // It is killed: the device learns of that here since another says it.
        let own = manager.client().clone();
        drop(manager);
        own.on_all(caching_host::wire::handler::RELEASE, 0).await.expect("released");
        disk_of.exchange(&second.0)?;
        let other = opened(&client, backing(&path), Mode::WriteBack).await;
        assert_ne!(other.client().cache().0, own.cache().0, "it has a cache of its own");
        assert_eq!(disk(&other).await.read(0, bytes).await.expect("reads"), vec![b'2'; bytes]);
        other.close().await.expect("closed");
        drop(other);
        assert!(second.contents() == vec![b'2'; bytes]);
        let left = list(&client).await.expect("a list");
        assert!(left.iter().any(|it| it.cache == own.cache().0 && it.counts.dirty == 1), "what was written stays");
        disk_of.exchange(&first.0)?;
        let again = opened(&client, backing(&path), Mode::WriteBack).await;
        assert_eq!(again.client().cache().0, own.cache().0, "it is known again");
        again.close().await.expect("closed");
        let expected = [vec![b'1'; CHUNK], vec![9; CHUNK], vec![b'1'; bytes - 2 * CHUNK]].concat();
        assert!(first.contents() == expected);
        Ok(())
    })
}
