//! Managers of caches against a device in this process and real files: held to a copy of the file in memory, through managers that end and that are
//! killed, in both modes.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use willow_device::media::ram::RamStore;
use willow_device::{BuiltInApp, Device, DeviceConfig, OpenError};
use willow_host::cache::disk::NSID;
use willow_host::cache::{Backing, CacheError, CacheOptions, CachedDisk, Manager, Mode, list, remove};
use willow_host::{BlockClient, CachingClient, Hre, HreError, InProcess};

fn device() -> Result<Device, OpenError> {
    let config = DeviceConfig {
        spus: 4,
        namespace_bytes: 8 << 20,
        block_bytes: 4096,
        kv_namespace_bytes: 0,
        ..DeviceConfig::default()
    };
    let store = RamStore::new(4, 256 << 20).expect("memory for a store");
    let apps = [base_io_spu::native(), caching_spu::native()].into_iter().map(BuiltInApp::Native).collect();
    Device::open(config, Box::new(store), None, apps)
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// A file of this test's own, gone at its end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(contents: &[u8]) -> Scratch {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("willow-caching-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, contents).expect("written");
        Scratch(path)
    }

    fn backing(&self) -> Backing {
        let file = File::options().read(true).write(true).open(&self.0).expect("it is there");
        Backing::of(file).expect("it can be cached")
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

/// A linear congruential generator: the same each time.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

fn contents(bytes: usize, seed: u64) -> Vec<u8> {
    (0..bytes as u64).map(|at| (at.wrapping_mul(2_654_435_761).wrapping_add(seed * 977) >> 13) as u8).collect()
}

fn options(mode: Mode, bytes: u64) -> CacheOptions {
    CacheOptions { mode: Some(mode), bytes: Some(bytes), chunk_bytes: Some(4096) }
}

async fn opened(client: &CachingClient, backing: Backing, options: CacheOptions) -> Arc<Manager> {
    Arc::new(Manager::open(client, backing, &options).await.expect("a cache"))
}

async fn disk(manager: &Arc<Manager>) -> BlockClient {
    let hre: Arc<dyn Hre> = Arc::new(CachedDisk::new(manager.clone()).expect("whole blocks"));
    BlockClient::open(hre, NSID).await.expect("a disk")
}

/// A manager that is killed: the device learns of it by its silence, or, here, since another says that it was.
async fn killed(manager: Arc<Manager>) {
    let client = manager.client().clone();
    drop(manager);
    client.on_all(caching_host::wire::handler::RELEASE, 0).await.expect("released");
}

const BYTES: usize = 40 * 4096 + 1536;

/// Reads and writes of a cache of 12 chunks for a file of 41, at random, with managers that end or are killed in between.
async fn held_to_a_copy(client: &CachingClient, mode: Mode, seed: u64) {
    let mut model = contents(BYTES, seed);
    let scratch = Scratch::new(&model);
    let mut random = Random(seed);
    for round in 0..6 {
        let manager = opened(client, scratch.backing(), options(mode, 12 * 4096)).await;
        assert_eq!((manager.mode(), manager.bytes()), (mode, 12 * 4096));
        let disk = disk(&manager).await;
        assert_eq!(disk.bytes(), BYTES as u64);
        for _ in 0..60 {
            let blocks = 1 + random.below(20);
            let offset = random.below(BYTES as u64 / 512 - blocks) * 512;
            let range = offset as usize..(offset + blocks * 512) as usize;
            match random.below(12) {
                0..5 => assert_eq!(disk.read(offset, range.len()).await.expect("reads"), model[range], "round {round}"),
                5 => drop(manager.write_back(None).await.expect("written back")),
                6 => disk.flush().await.expect("flushes"),
                7 => {
                    disk.write_zeroes(offset, range.len() as u64, false).await.expect("zeroes");
                    model[range].fill(0);
                }
                _ => {
                    let data = contents(range.len(), random.below(1 << 20));
                    disk.write(offset, data.clone(), false).await.expect("writes");
                    model[range].copy_from_slice(&data);
                    if mode == Mode::WriteThrough {
                        assert!(scratch.contents() == model, "the file has it when it is answered");
                    }
                }
            }
        }
        let counts = manager.counts().await.expect("counts");
        assert!(counts.used <= 12 && counts.hits > 0 && counts.misses > 0 && counts.evictions > 0, "{counts:?}");
        assert_eq!(disk.read(0, BYTES).await.expect("reads"), model);
        drop(disk);
        if round % 2 == 0 {
            manager.close().await.expect("closed");
            assert!(scratch.contents() == model, "round {round}: the file has all of it");
            assert_eq!(list(client).await.expect("a list")[0].counts.dirty, 0);
        } else {
            killed(manager).await;
        }
    }
    let manager = opened(client, scratch.backing(), CacheOptions::default()).await;
    assert_eq!(manager.mode(), mode, "as the cache that there is");
    assert_eq!(disk(&manager).await.read(0, BYTES).await.expect("reads"), model);
    manager.close().await.expect("closed");
    remove(client, 0, false).await.expect("removed");
    assert!(list(client).await.expect("a list").is_empty());
}

#[test]
fn a_cached_file_is_the_file_whatever_manager_comes_and_goes() {
    let device = InProcess::start(device).expect("opens");
    runtime().block_on(async {
        let client = CachingClient::find(Arc::new(device.endpoint(None).await.expect("an endpoint"))).await.unwrap();
        for seed in 1..4 {
            held_to_a_copy(&client, Mode::WriteBack, seed).await;
            held_to_a_copy(&client, Mode::WriteThrough, seed).await;
        }
    });
}

/// Many at once on one cache, of which each has blocks of its own.
#[test]
fn readers_and_writers_beside_each_other_find_what_they_wrote() {
    let device = InProcess::start(device).expect("opens");
    runtime().block_on(async {
        let client = CachingClient::find(Arc::new(device.endpoint(None).await.expect("an endpoint"))).await.unwrap();
        for mode in [Mode::WriteBack, Mode::WriteThrough] {
            let scratch = Scratch::new(&contents(BYTES, 1));
            let manager = opened(&client, scratch.backing(), options(mode, 8 * 4096)).await;
            let disk = disk(&manager).await;
            let work = |own: u64| {
                let (disk, manager) = (disk.clone(), manager.clone());
                tokio::spawn(async move {
                    let mut random = Random(own);
                    let mut model = std::collections::BTreeMap::new();
                    for step in 0..80 {
                        // Blocks are shared by chunks, and no two have one.
                        let block = random.below(BYTES as u64 / 512 / 6) * 6 + own;
                        if random.below(2) == 0 {
                            let data = contents(512, own << 16 | step);
                            disk.write(block * 512, data.clone(), false).await.expect("writes");
                            model.insert(block, data);
                        } else if let Some(data) = model.get(&block) {
                            assert!(disk.read(block * 512, 512).await.expect("reads") == *data, "block {block}");
                        }
                        if step % 30 == own {
                            manager.write_back(None).await.expect("written back");
                        }
                    }
                    model
                })
            };
            let all: Vec<_> = (0..6).map(work).collect();
            let mut model = std::collections::BTreeMap::new();
            for one in all {
                model.extend(one.await.expect("it ends"));
            }
            manager.close().await.expect("closed");
            let file = scratch.contents();
            let is_there = |(block, data): (&u64, &Vec<u8>)| file[*block as usize * 512..][..512] == data[..];
            assert!(model.iter().all(is_there), "{mode:?}");
        }
    });
}

#[test]
fn chunks_stay_over_managers_where_the_file_is_as_it_was_and_go_where_it_is_not() {
    let device = InProcess::start(device).expect("opens");
    runtime().block_on(async {
        let client = CachingClient::find(Arc::new(device.endpoint(None).await.expect("an endpoint"))).await.unwrap();
        for mode in [Mode::WriteBack, Mode::WriteThrough] {
            let model = contents(BYTES, 4);
            let scratch = Scratch::new(&model);
            let first = opened(&client, scratch.backing(), options(mode, 64 * 4096)).await;
            disk(&first).await.read(0, BYTES).await.expect("reads");
            let used = first.counts().await.expect("counts").used;
            assert_eq!(used, 41);
            first.close().await.expect("closed");
            let second = opened(&client, scratch.backing(), CacheOptions::default()).await;
            assert_eq!(second.counts().await.expect("counts").used, used, "it is warm");
            second.close().await.expect("closed");
            // Somebody writes the file.
            std::thread::sleep(std::time::Duration::from_millis(20));
            let file = File::options().write(true).open(&scratch.0).expect("it is there");
            file.write_all_at(b"another", 5000).expect("written");
            let third = opened(&client, scratch.backing(), CacheOptions::default()).await;
            assert_eq!(third.counts().await.expect("counts").used, 0, "nothing of it is believed");
            assert_eq!(disk(&third).await.read(4096, 4096).await.expect("reads")[904..911], *b"another");
            third.close().await.expect("closed");
            // Another file with its path, and perhaps its number.
            std::fs::remove_file(&scratch.0).expect("removed");
            std::fs::write(&scratch.0, contents(BYTES, 5)).expect("written");
            let fourth = opened(&client, scratch.backing(), CacheOptions::default()).await;
            assert_eq!(fourth.counts().await.expect("counts").used, 0);
            assert_eq!(disk(&fourth).await.read(0, BYTES).await.expect("reads"), contents(BYTES, 5));
            fourth.close().await.expect("closed");
        }
    });
}

#[test]
fn a_cache_has_one_manager_and_takes_another_shape_without_losing_anything() {
    let device = InProcess::start(device).expect("opens");
    runtime().block_on(async {
        let client = CachingClient::find(Arc::new(device.endpoint(None).await.expect("an endpoint"))).await.unwrap();
        let mut model = contents(BYTES, 6);
        let scratch = Scratch::new(&model);
        let first = opened(&client, scratch.backing(), options(Mode::WriteBack, 8 * 4096)).await;
        let own = disk(&first).await;
        own.write(4096, vec![9; 8192], false).await.expect("writes");
        model[4096..12288].fill(9);
        let (cache, _) = first.client().cache();
        let busy = remove(&client, cache, true).await.expect_err("it has a manager");
        assert!(busy.is(caching_host::Refusal::Claimed), "{busy}");
        killed(first).await;
        // Dirty: it is removed on request alone.
        let dirty = remove(&client, cache, false).await.expect_err("it is dirty");
        assert!(dirty.is(caching_host::Refusal::Dirty), "{dirty}");
        assert!(scratch.contents() != model);
        let second = opened(
            &client,
            scratch.backing(),
            CacheOptions { chunk_bytes: Some(8192), ..options(Mode::WriteThrough, 16 * 8192) },
        )
        .await;
        assert_eq!((second.mode(), second.shape().chunk_bytes), (Mode::WriteThrough, 8192));
        assert!(scratch.contents() == model, "what was dirty is in the file");
        assert_eq!(disk(&second).await.read(0, BYTES).await.expect("reads"), model);
        // Who was replaced does nothing any more.
        let replaced = own.write(4096, vec![7; 4096], false).await;
        assert!(matches!(replaced, Err(HreError::Media)), "{replaced:?}");
        second.close().await.expect("closed");
        assert!(scratch.contents() == model);
    });
}

/// The backing file cannot be written: what was written stays in the cache, and is there when it can.
#[test]
fn what_cannot_be_written_back_stays_and_is_written_later() {
    let device = InProcess::start(device).expect("opens");
    runtime().block_on(async {
        let client = CachingClient::find(Arc::new(device.endpoint(None).await.expect("an endpoint"))).await.unwrap();
        let mut model = contents(BYTES, 7);
        let scratch = Scratch::new(&model);
        let first = opened(&client, scratch.backing(), options(Mode::WriteBack, 8 * 4096)).await;
        disk(&first).await.write(0, vec![3; 8 * 4096], false).await.expect("writes");
        model[..8 * 4096].fill(3);
        killed(first).await;
        // By a descriptor that does not write.
        let reads = Backing::of(File::open(&scratch.0).expect("it is there")).expect("it can be cached");
        let second = opened(&client, reads, CacheOptions::default()).await;
        let own = disk(&second).await;
        assert_eq!(own.read(0, 8 * 4096).await.expect("reads"), model[..8 * 4096]);
        assert!(matches!(own.write(0, vec![1; 512], false).await, Err(HreError::NotPermitted)));
        let refused = own.read(20 * 4096, 4096).await;
        assert!(refused.is_err(), "all of it is dirty, so that nothing makes way");
        let unwritten = second.close().await.expect_err("it cannot be written back");
        assert!(matches!(unwritten, CacheError::Said(_)), "{unwritten}");
        assert_eq!(list(&client).await.expect("a list")[0].counts.dirty, 8);
        let third = opened(&client, scratch.backing(), CacheOptions::default()).await;
        assert_eq!(disk(&third).await.read(0, BYTES).await.expect("reads"), model);
        third.close().await.expect("closed");
        assert!(scratch.contents() == model);
    });
}

/// An SPU that has lost its part costs what the others have that is nowhere else neither when the cache is opened nor when its number is free.
#[test]
fn what_is_changed_stays_where_a_processor_has_lost_its_part() {
    use caching_host::wire::handler;
    let device = InProcess::start(device).expect("opens");
    runtime().block_on(async {
        let client = CachingClient::find(Arc::new(device.endpoint(None).await.expect("an endpoint"))).await.unwrap();
        let scratch = Scratch::new(&contents(BYTES, 8));
        let first = opened(&client, scratch.backing(), options(Mode::WriteBack, 8 * 4096)).await;
        disk(&first).await.write(0, vec![5; 4 * 4096], false).await.expect("writes");
        let own = first.client().clone();
        assert_eq!(first.counts().await.expect("counts").dirty, 4, "one of each SPU");
        own.on(3, handler::REMOVE, 1).await.expect("removed");
        for spu in 0..3 {
            own.on(spu, handler::RELEASE, 0).await.expect("released");
        }
        drop(first);
        let said = Manager::open(&client, scratch.backing(), &CacheOptions::default()).await.err().expect("refused");
        assert!(said.to_string().contains("would be lost"), "{said}");
        let listed = list(&client).await.expect("a list");
        assert_eq!((listed.len(), listed[0].is_whole, listed[0].counts.dirty), (1, false, 3));
        assert_eq!(listed[0].counts.epoch, 0, "nobody has it");
        // The first one is who tells of a cache: to all others its number is free then.
        let again = client.of(own.cache().0, 77);
        again.on(0, handler::CLAIM, 0).await.expect("taken");
        again.on(0, handler::REMOVE, 1).await.expect("removed");
        let other = Scratch::new(&contents(BYTES, 9));
        let second = opened(&client, other.backing(), options(Mode::WriteBack, 8 * 4096)).await;
        assert_ne!(second.client().cache().0, own.cache().0, "that number is not free");
        assert_eq!(disk(&second).await.read(0, BYTES).await.expect("reads"), contents(BYTES, 9));
        second.close().await.expect("closed");
        for spu in 1..3 {
            assert_eq!(again.describe(spu).await.expect("it is there").1.dirty, 1, "SPU {spu}");
        }
    });
}

/// A manager that gave the cache up, or to which somebody did not tell what he wrote, vouches for nothing that was clean before.
#[test]
fn what_is_clean_is_forgotten_where_the_file_may_have_been_written() {
    let device = InProcess::start(device).expect("opens");
    runtime().block_on(async {
        let client = CachingClient::find(Arc::new(device.endpoint(None).await.expect("an endpoint"))).await.unwrap();
        for mode in [Mode::WriteBack, Mode::WriteThrough] {
            let scratch = Scratch::new(&contents(BYTES, 10));
            let manager = opened(&client, scratch.backing(), options(mode, 64 * 4096)).await;
            let own = disk(&manager).await;
            own.read(0, BYTES).await.expect("reads");
            manager.close().await.expect("closed");
            manager.hold().await.expect("it has it again");
            assert_eq!(manager.counts().await.expect("counts").used, 41, "nobody wrote it");
            manager.close().await.expect("closed");
            std::thread::sleep(std::time::Duration::from_millis(20));
            let file = File::options().write(true).open(&scratch.0).expect("it is there");
            file.write_all_at(b"another", 5000).expect("written");
            manager.hold().await.expect("it has it again");
            assert_eq!(own.read(4608, 512).await.expect("reads")[392..399], *b"another");
            // While it has it somebody writes and does not say so.
            file.write_all_at(b"untold!", 5000).expect("written");
            manager.distrust().await.expect("forgotten");
            assert_eq!(own.read(4608, 512).await.expect("reads")[392..399], *b"untold!");
            manager.close().await.expect("closed");
            let listed = list(&client).await.expect("a list");
            let cache = listed.iter().find(|it| it.cache == manager.client().cache().0).expect("it is there");
            assert_eq!(cache.descriptor.stamp, [0; 24], "nothing vouches for what is in it");
            let next = opened(&client, scratch.backing(), CacheOptions::default()).await;
            assert_eq!(next.counts().await.expect("counts").used, 0);
            next.close().await.expect("closed");
        }
    });
}

#[test]
fn what_cannot_be_cached_is_refused() {
    let refused = |file: File, why: &str| {
        let said = Backing::of(file).expect_err("refused");
        assert!(said.contains(why), "{said}");
    };
    let scratch = Scratch::new(b"");
    refused(File::open(&scratch.0).expect("it is there"), "empty");
    refused(File::options().write(true).open(&scratch.0).expect("it is there"), "does not read");
    let appends = File::options().read(true).append(true).open(&scratch.0).expect("it is there");
    refused(appends, "appending");
    refused(File::open("/dev/null").expect("it is there"), "neither");
    refused(File::open("/").expect("it is there"), "neither");
}
