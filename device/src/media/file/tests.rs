//! Tests of the file store at work: contents, order, limits, faults of the disk, death of the process.

use super::*;
use crate::media::fault::Random;
use crate::media::model::{Checked, UNWATCHED, check_contract, wait_for};
use crate::media::store::MEDIA_FAILED;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering as Atomic};

/// A folder that is gone after the test.
pub struct TestFolder(pub PathBuf);

impl TestFolder {
    pub fn new() -> TestFolder {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = |number| format!("willow-media-{}-{number}", std::process::id());
        let next = || std::env::temp_dir().join(name(NEXT.fetch_add(1, Atomic::Relaxed)));
        // One that is there is that of a process with the same number, in another namespace or of a run that was killed.
        let path = std::iter::repeat_with(next).find(|path| !path.exists()).unwrap();
        std::fs::create_dir(&path).unwrap();
        TestFolder(path)
    }

    /// Path of the data folder in it.
    pub fn data(&self) -> PathBuf {
        self.0.join("data")
    }
}

impl Drop for TestFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub const SHAPE: FileShape = FileShape { banks: 2, bank_bytes: 1 << 20 };

pub fn create(folder: &TestFolder, shape: FileShape) -> FileStore {
    FileStore::create(&folder.data(), shape).unwrap()
}

pub fn read(store: &mut FileStore, bank: usize, address: u64, bytes: usize) -> Result<Vec<u8>, StoreError> {
    let mut into = vec![0xEE; bytes];
    if store.read(bank, address, &mut into)? == Progress::Done {
        return Ok(into);
    }
    wait_for(store, |store| {
        store.begin_read(5, bank, address, bytes);
        Ok(Progress::WouldBlock)
    })
}

pub fn write(store: &mut FileStore, bank: usize, address: u64, bytes: &[u8]) -> Result<(), StoreError> {
    if store.write(bank, address, bytes)? == Progress::Done {
        return Ok(());
    }
    wait_for(store, |store| {
        store.begin_write(6, bank, address, bytes.to_vec());
        Ok(Progress::WouldBlock)
    })
    .map(|_| ())
}

pub fn zero(store: &mut FileStore, bank: usize, address: u64, bytes: u64) -> Result<(), StoreError> {
    if store.zero(bank, address, bytes)? == Progress::Done {
        return Ok(());
    }
    wait_for(store, |store| {
        store.begin_zero(7, bank, address, bytes);
        Ok(Progress::WouldBlock)
    })
    .map(|_| ())
}

pub fn flush(store: &mut FileStore) -> Result<(), StoreError> {
    wait_for(store, |store| store.flush(8, None)).map(|_| ())
}

/// Bytes that a file takes on the disk.
fn disk_bytes(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path).unwrap().blocks() * 512
}

/// Has the page cache forget a file.
pub fn drop_cache(path: &Path) {
    let file = File::open(path).unwrap();
    file.sync_all().unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
}

/// True where `attempt` would have to wait for the disk once the page cache has forgotten a file. An attempt that may not wait has the
/// kernel begin to read ahead all the same, and finds the page where this thread was put off until it was there: tried more than once.
fn would_block_uncached(path: &Path, mut attempt: impl FnMut() -> Result<Progress, StoreError>) -> bool {
    (0..1000).any(|_| {
        drop_cache(path);
        attempt() == Ok(Progress::WouldBlock)
    })
}

#[test]
fn contract() {
    let folder = TestFolder::new();
    check_contract(&mut create(&folder, SHAPE));
    let mut store = FileStore::open(&folder.data()).unwrap();
    assert_eq!(store.load_metadata(), Ok(Some(Vec::new())));
    assert_eq!(store.load_blob("key-value"), Ok(Some(vec![2; 70_000])));
    assert_eq!(store.load_blob("b"), Ok(None));
}

#[test]
fn same_as_the_model_also_after_reopening() {
    for seed in 0..3 {
        let folder = TestFolder::new();
        let mut random = Random::new(seed);
        let mut checked = Checked::fresh(create(&folder, SHAPE));
        checked.run(&mut random, 1200);
        assert!(checked.blocked > 50, "the paths through the workers were not reached");
        for _ in 0..2 {
            let model = checked.model;
            drop(checked.store);
            drop_cache(&folder.data().join("bank-000"));
            checked = Checked::new(FileStore::open(&folder.data()).unwrap(), model);
            checked.compare();
            checked.run(&mut random, 300);
        }
    }
}

#[test]
fn same_as_the_model_under_a_small_bound_on_dirty_pages() {
    let folder = TestFolder::new();
    let mut store = create(&folder, SHAPE);
    store.write_out_pages = 8;
    store.dirty_pages_max = 24;
    let mut checked = Checked::fresh(store);
    checked.run(&mut Random::new(3), 1500);
    let store = &mut checked.store;
    // What is still being written out counts; nothing else may be left over.
    while store.write_outs > 0 || store.banks.iter().any(|bank| bank.syncing.is_some()) {
        store.take_news();
        std::thread::yield_now();
    }
    let dirty: u64 = store.banks.iter().map(|bank| bank.dirty.len()).sum();
    assert_eq!((store.dirty_pages, store.cleaning_pages), (dirty, 0));
    assert!(store.held.is_empty() && store.flushes.is_empty() && store.order.is_empty());
}

#[test]
fn writes_wait_at_the_bound_on_dirty_pages_and_go_on() {
    let folder = TestFolder::new();
    let mut store = create(&folder, SHAPE);
    write(&mut store, 0, 0, &[1; 4096]).unwrap();
    store.write_out_pages = u64::MAX;
    store.dirty_pages_max = 4;
    for page in 1..4 {
        assert_eq!(store.write(0, page * 4096, &[1; 4096]), Ok(Progress::Done));
    }
    assert_eq!(store.write(0, 4 * 4096, &[1; 4096]), Ok(Progress::WouldBlock));
    store.begin_write(1, 0, 4 * 4096, vec![9; 4096]);
    assert_eq!(store.held.len(), 1);
    store.write_out_pages = 2;
    store.write_out();
    assert_eq!(store.write_outs, 1);
    while store.completed().is_none() {
        std::thread::yield_now();
    }
    assert_eq!(read(&mut store, 0, 4 * 4096, 4096), Ok(vec![9; 4096]));
}

#[test]
fn a_read_that_misses_the_cache_would_block_and_a_hole_does_not() {
    let folder = TestFolder::new();
    let mut store = create(&folder, FileShape { banks: 1, bank_bytes: 64 << 20 });
    write(&mut store, 0, 1 << 20, &[7; 1 << 20]).unwrap();
    flush(&mut store).unwrap();
    let mut bytes = vec![0; 4096];
    // Never written, also beyond and around what was.
    for address in [0, 3 << 20, (64 << 20) - 4096, (1 << 20) - 4096] {
        assert_eq!(store.read(0, address, &mut bytes), Ok(Progress::Done));
        assert_eq!(bytes, [0; 4096]);
    }
    assert_eq!(store.read(0, 1 << 20, &mut bytes), Ok(Progress::Done));
    let bank = folder.data().join("bank-000");
    if !would_block_uncached(&bank, || store.read(0, 1 << 20, &mut bytes)) {
        let why = "the temporary folder is on a file system whose page cache cannot be dropped";
        return willow_skip::skip("a_read_that_misses_the_cache_would_block_and_a_hole_does_not", why);
    }
    // A part of a page that is not cached would have to be read first.
    assert!(would_block_uncached(&bank, || store.write(0, (1 << 20) + 8192 + 100, &[1; 8])));
    assert_eq!(read(&mut store, 0, 1 << 20, 4096), Ok(vec![7; 4096]));
    assert_eq!(store.read(0, 1 << 20, &mut bytes), Ok(Progress::Done));
    // Whole pages need nothing of the disk.
    drop_cache(&bank);
    assert_eq!(store.write(0, 1 << 20, &[8; 4096]), Ok(Progress::Done));
    // The fresh store knows the holes as well.
    drop(store);
    drop_cache(&folder.data().join("bank-000"));
    let mut store = FileStore::open(&folder.data()).unwrap();
    assert_eq!(store.used_bytes(), 1 << 20);
    assert_eq!(store.read(0, 5 << 20, &mut bytes), Ok(Progress::Done));
    assert_eq!(read(&mut store, 0, 1 << 20, 8192), Ok([[8; 4096], [7; 4096]].concat()));
}

#[test]
fn zeroing_gives_room_back() {
    let folder = TestFolder::new();
    let mut store = create(&folder, FileShape { banks: 1, bank_bytes: 16 << 20 });
    write(&mut store, 0, 0, &vec![7; 8 << 20]).unwrap();
    flush(&mut store).unwrap();
    let path = folder.data().join("bank-000");
    let before = disk_bytes(&path);
    zero(&mut store, 0, 100, (6 << 20) - 200).unwrap();
    flush(&mut store).unwrap();
    assert_eq!(store.used_bytes(), (2 << 20) + 8192);
    assert!(disk_bytes(&path) <= before - (5 << 20), "{before} then {}", disk_bytes(&path));
    let wanted = [vec![7; 100], vec![0; 6000]].concat();
    assert_eq!(read(&mut store, 0, 0, 6100), Ok(wanted));
    assert_eq!(read(&mut store, 0, (6 << 20) - 101, 102), Ok([vec![0], vec![7; 101]].concat()));
}

#[test]
fn flushes_are_needed_once_and_share_syncs() {
    let folder = TestFolder::new();
    let mut store = create(&folder, SHAPE);
    flush(&mut store).unwrap();
    assert_eq!(store.flush(1, None), Ok(Progress::Done));
    write(&mut store, 1, 0, &[1; 512]).unwrap();
    assert_eq!(store.flush(1, Some(0)), Ok(Progress::Done));
    assert_eq!(store.flush(2, Some(1)), Ok(Progress::WouldBlock));
    // Nothing was written since the sync began: the same sync will do.
    assert_eq!(store.flush(3, None), Ok(Progress::WouldBlock));
    assert_eq!(store.banks[1].waiting_now, [2, 3]);
    // While it is under way, writes would wait; and they need the next sync.
    assert_eq!(store.write(1, 0, &[2; 512]), Ok(Progress::WouldBlock));
    let mut tickets = BTreeMap::new();
    while tickets.len() < 2 {
        tickets.extend(store.completed().map(|completion| (completion.ticket, completion.result)));
    }
    assert_eq!(tickets, BTreeMap::from([(2, Ok(vec![])), (3, Ok(vec![]))]));
    let before = std::fs::read(folder.data().join("superblock-a")).unwrap();
    write(&mut store, 1, 512, &[2; 512]).unwrap();
    flush(&mut store).unwrap();
    assert_eq!(before, std::fs::read(folder.data().join("superblock-a")).unwrap(), "lengths did not change");
}

#[test]
fn a_failed_sync_is_never_passed_off_as_good() {
    let folder = TestFolder::new();
    let mut store = create(&folder, SHAPE);
    let lost = Err(MEDIA_FAILED);
    write(&mut store, 0, 0, &[1; 65536]).unwrap();
    flush(&mut store).unwrap();
    write(&mut store, 0, 4096, &[2; 8192]).unwrap();
    store.banks[0].file.sync_error.store(5, Atomic::Relaxed);
    assert_eq!(flush(&mut store), lost);
    store.banks[0].file.sync_error.store(0, Atomic::Relaxed);
    // The disk is well again, but what it dropped is not: neither flushes nor reads of those pages succeed.
    assert_eq!(flush(&mut store), lost);
    assert_eq!(read(&mut store, 0, 0, 8192), lost.map(|()| vec![]));
    assert_eq!(read(&mut store, 0, 0, 4096), Ok(vec![1; 4096]));
    assert_eq!(read(&mut store, 0, 12288, 4096), Ok(vec![1; 4096]));
    wait_for(&mut store, |store| store.flush(1, Some(1))).unwrap();
    // Parts of a page do not make it whole.
    write(&mut store, 0, 4096, &[3; 512]).unwrap();
    assert_eq!(flush(&mut store), lost);
    write(&mut store, 0, 4096, &[3; 4096]).unwrap();
    zero(&mut store, 0, 8192, 4096).unwrap();
    flush(&mut store).unwrap();
    assert_eq!(read(&mut store, 0, 4096, 8192), Ok([[3; 4096], [0; 4096]].concat()));
}

#[test]
fn a_failed_first_sync_or_writing_out_is_reported_too() {
    let folder = TestFolder::new();
    drop(create(&folder, SHAPE));
    let mut store = FileStore::open(&folder.data()).unwrap();
    store.banks[1].file.sync_error.store(5, Atomic::Relaxed);
    assert_eq!(flush(&mut store), Err(MEDIA_FAILED));
    store.banks[1].file.sync_error.store(0, Atomic::Relaxed);
    assert_eq!(flush(&mut store), Err(MEDIA_FAILED));
    drop(store);

    let mut store = FileStore::open(&folder.data()).unwrap();
    flush(&mut store).unwrap();
    write(&mut store, 0, 0, &[1; 65536]).unwrap();
    store.banks[0].file.sync_error.store(28, Atomic::Relaxed);
    store.write_out_pages = 4;
    store.write_out();
    while store.write_outs > 0 {
        store.take_news();
        std::thread::yield_now();
    }
    store.banks[0].file.sync_error.store(0, Atomic::Relaxed);
    assert_eq!(flush(&mut store), Err(StoreError::Failed(28)));
    write(&mut store, 0, 0, &[1; 65536]).unwrap();
    flush(&mut store).unwrap();
}

#[test]
fn files_grow_in_steps_and_their_lengths_are_recorded() {
    let folder = TestFolder::new();
    let mut store = create(&folder, FileShape { banks: 1, bank_bytes: 1 << 40 });
    let path = folder.data().join("bank-000");
    let length = || std::fs::metadata(&path).unwrap().len();
    assert_eq!(length(), DATA_OFFSET_BYTES);
    write(&mut store, 0, 0, &[1; 512]).unwrap();
    assert_eq!(length(), DATA_OFFSET_BYTES + (64 << 20));
    write(&mut store, 0, 1 << 39, &[2; 512]).unwrap();
    assert!(length() > 1 << 39);
    assert_eq!(store.keeper().superblock().lengths, [DATA_OFFSET_BYTES]);
    flush(&mut store).unwrap();
    assert_eq!(store.keeper().superblock().lengths, [length()]);
    write(&mut store, 0, (1 << 40) - 1, &[3]).unwrap();
    assert_eq!(length(), DATA_OFFSET_BYTES + (1 << 40));
    assert_eq!(read(&mut store, 0, (1 << 40) - 2, 2), Ok(vec![0, 3]));
    assert!(disk_bytes(&path) < 1 << 20);
}

// ---- Tests with a child process: this test program again, in a role ----

const ROLE: &str = "WILLOW_MEDIA_TEST_ROLE";
const FOLDER: &str = "WILLOW_MEDIA_TEST_FOLDER";

/// Round that a writer begins with.
const FROM: &str = "WILLOW_MEDIA_TEST_FROM";

fn spawn(role: &str, folder: &Path, from: u64) -> Child {
    let name = format!("{}::child", module_path!().split_once("::").unwrap().1);
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &name, "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .env(FOLDER, folder)
        .env(FROM, from.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Not a test by itself: what child processes do.
#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let folder = PathBuf::from(std::env::var(FOLDER).unwrap());
    match role.as_str() {
        "writer" => child_writes(&folder),
        "limited" => child_meets_the_limit_of_file_lengths(&folder),
        other => panic!("unknown role {other}"),
    }
}

const KILL_SHAPE: FileShape = FileShape { banks: 2, bank_bytes: 8 << 20 };
const SLOT_BYTES: u64 = 4096;

/// Contents of a slot: the round that wrote it, in every word.
fn slot(round: u64) -> Vec<u8> {
    round.to_le_bytes().repeat(SLOT_BYTES as usize / 8)
}

fn slot_of(round: u64) -> (usize, u64) {
    let mut random = Random::new(round);
    (random.below(2) as usize, random.below(KILL_SHAPE.bank_bytes / SLOT_BYTES) * SLOT_BYTES)
}

/// Writes for ever, and prints the number of each round that was acknowledged.
fn child_writes(folder: &Path) {
    let mut store = FileStore::open(folder).unwrap();
    let from = std::env::var(FROM).unwrap().parse().unwrap();
    let mut out = std::io::stdout().lock();
    for round in from.. {
        let (bank, address) = slot_of(round);
        write(&mut store, bank, address, &slot(round)).unwrap();
        if round % 64 == 0 {
            wait_for(&mut store, |store| store.save_metadata(1, round.to_le_bytes().to_vec())).unwrap();
        }
        if round % 200 == 7 {
            store.flush(UNWATCHED, None).unwrap();
        }
        writeln!(out, "round {round}").unwrap();
        out.flush().unwrap();
    }
}

#[test]
fn a_kill_loses_nothing_that_was_acknowledged() {
    let folder = TestFolder::new();
    drop(FileStore::create(&folder.data(), KILL_SHAPE).unwrap());
    let mut random = Random::new(11);
    let mut acknowledged = 0;
    let mut next = 0;
    for _ in 0..8 {
        let mut child = spawn("writer", &folder.data(), next);
        let rounds = 1 + random.below(600);
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(|line| line.unwrap());
        let mut seen = 0;
        let mut take = |line: String| {
            if let Some(round) = line.strip_prefix("round ") {
                acknowledged = round.parse::<u64>().unwrap();
                seen += 1;
            }
            seen
        };
        while take(lines.next().expect("the child ended by itself")) < rounds {}
        // SIGKILL, in the middle of whatever it does; what it has printed until then counts too.
        child.kill().unwrap();
        child.wait().unwrap();
        for line in lines {
            take(line);
        }

        let mut store = FileStore::open(&folder.data()).unwrap();
        let saved = u64::from_le_bytes(store.load_metadata().unwrap().unwrap().try_into().unwrap());
        assert!(saved >= acknowledged / 64 * 64, "metadata {saved}, acknowledged {acknowledged}");
        next = acknowledged + 1;
        let mut newest = BTreeMap::new();
        for round in 0..=acknowledged {
            newest.insert(slot_of(round), round);
        }
        for ((bank, address), round) in newest {
            let found = read(&mut store, bank, address, SLOT_BYTES as usize).unwrap();
            let number = u64::from_le_bytes(found[..8].try_into().unwrap());
            // The round that was under way may have happened.
            assert!(number == round || (number == next && slot_of(number) == (bank, address)));
            assert!(found == slot(number));
        }
    }
}

fn child_meets_the_limit_of_file_lengths(folder: &Path) {
    use rustix::process::{Resource, Rlimit, setrlimit};
    let mut store = FileStore::open(folder).unwrap();
    let limit = Rlimit { current: Some(10 << 20), maximum: Some(10 << 20) };
    setrlimit(Resource::Fsize, limit).unwrap();
    write(&mut store, 0, 0, &[1; 4096]).unwrap();
    write(&mut store, 0, 9 << 20, &[1; 4096]).unwrap();
    assert_eq!(write(&mut store, 0, 11 << 20, &[1; 4096]), Err(StoreError::Full));
    assert_eq!(write(&mut store, 0, 1 << 20, &[1; 4096]), Ok(()));
    // This bank's file is longer than the limit already.
    assert_eq!(store.write(1, 0, &[2; 4096]), Ok(Progress::Done));
    assert_eq!(store.write(1, 20 << 20, &[2; 4096]), Err(StoreError::Full));
    assert_eq!(store.write(1, 4096, &[3; 4096]), Ok(Progress::Done));
    flush(&mut store).unwrap();
    assert_eq!(read(&mut store, 0, 11 << 20, 8), Ok(vec![0; 8]));
    println!("all is well");
}

#[test]
fn a_limit_of_file_lengths_means_full() {
    let folder = TestFolder::new();
    let mut store = create(&folder, FileShape { banks: 2, bank_bytes: 32 << 20 });
    write(&mut store, 1, 0, &[1; 4096]).unwrap();
    drop(store);
    let output = spawn("limited", &folder.data(), 0).wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("all is well"), "{} {said}", output.status);
    let mut store = FileStore::open(&folder.data()).unwrap();
    assert_eq!(read(&mut store, 0, 9 << 20, 4096), Ok(vec![1; 4096]));
}

// ---- A real full disk ----

/// A small file system of its own; unmounted after the test. `None` where that is not possible.
struct SmallDisk(TestFolder);

impl SmallDisk {
    fn new(bytes: u64) -> SmallDisk {
        let folder = TestFolder::new();
        let image = folder.0.join("image");
        let mount_point = folder.0.join("mounted");
        std::fs::create_dir(&mount_point).unwrap();
        File::create(&image).unwrap().set_len(bytes).unwrap();
        let run = |program: &str, arguments: &[&std::ffi::OsStr]| {
            let output = Command::new(program).args(arguments).output().unwrap();
            assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
        };
        run("mkfs.ext4", &["-q".as_ref(), "-F".as_ref(), "-m0".as_ref(), image.as_ref()]);
        run("mount", &["-o".as_ref(), "loop".as_ref(), image.as_ref(), mount_point.as_ref()]);
        SmallDisk(folder)
    }

    fn data(&self) -> PathBuf {
        self.0.0.join("mounted/data")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.0.join("mounted")).status();
    }
}

#[test]
fn a_full_disk_is_an_error_and_works_again_with_room() {
    let needed = || willow_skip::programs(&["mkfs.ext4"]);
    if let Some(why) = willow_skip::missing_for_loop_mounts().or_else(needed) {
        return willow_skip::skip("a_full_disk_is_an_error_and_works_again_with_room", &why);
    }
    let disk = SmallDisk::new(24 << 20);
    let shape = FileShape { banks: 1, bank_bytes: 256 << 20 };
    let mut store = FileStore::create(&disk.data(), shape).unwrap();
    wait_for(&mut store, |store| store.save_metadata(1, b"first".to_vec())).unwrap();
    let mut written = Vec::new();
    let mut full = None;
    for index in 0..256_u64 {
        let address = index << 20;
        match write(&mut store, 0, address, &vec![index as u8 + 1; 1 << 20]) {
            Ok(()) => written.push(address),
            Err(error) => {
                assert_eq!(error, StoreError::Full);
                full = Some(address);
                break;
            }
        }
    }
    let full = full.expect("the disk is smaller than the bank");
    assert!(written.len() > 4);
    flush(&mut store).unwrap();
    // Blobs and larger metadata do not fit either, and what was there stays.
    assert_eq!(wait_for(&mut store, |store| store.save_blob(1, "app", vec![0; 4 << 20])), Err(StoreError::Full));
    assert_eq!(store.load_blob("app"), Ok(None));
    assert_eq!(wait_for(&mut store, |store| store.save_metadata(1, vec![0; 4 << 20])), Err(StoreError::Full));
    assert_eq!(store.load_metadata(), Ok(Some(b"first".to_vec())));
    // It opens while it is full, and nothing was torn.
    drop(store);
    let mut store = FileStore::open(&disk.data()).unwrap();
    for address in &written {
        let byte = (address >> 20) as u8 + 1;
        assert!(read(&mut store, 0, *address, 1 << 20).unwrap().iter().all(|found| *found == byte));
    }
    let partly = read(&mut store, 0, full, 1 << 20).unwrap();
    let byte = (full >> 20) as u8 + 1;
    assert!(partly.chunks(512).all(|unit| unit == [byte; 512] || unit == [0; 512]));
    // With room again, it goes on.
    zero(&mut store, 0, 0, 3 << 20).unwrap();
    flush(&mut store).unwrap();
    write(&mut store, 0, full, &vec![byte; 1 << 20]).unwrap();
    wait_for(&mut store, |store| store.save_metadata(1, b"second".to_vec())).unwrap();
    flush(&mut store).unwrap();
    assert_eq!(read(&mut store, 0, full, 1 << 20), Ok(vec![byte; 1 << 20]));
    assert_eq!(store.load_metadata(), Ok(Some(b"second".to_vec())));
}

/// One who has tens of thousands of small writes under way in a bank that is being flushed: writes to another bank pass them, and they cost
/// as many wake-ups as there are jobs, not one each.
#[test]
fn many_small_writes_hold_up_no_other_bank_and_wake_seldom() {
    const WRITES: u64 = 30_000;
    let folder = TestFolder::new();
    let mut store = create(&folder, FileShape { banks: 2, bank_bytes: 256 << 20 });
    // Memory-like file systems sync at once; a sync under way is what makes writes wait.
    write(&mut store, 0, 0, &vec![1; 8 << 20]).unwrap();
    let wakes = Arc::new(AtomicU64::new(0));
    let counted = wakes.clone();
    store.set_waker(Arc::new(move || {
        counted.fetch_add(1, Atomic::Relaxed);
    }));
    for index in 0..WRITES {
        store.begin_write(index, 0, index * 257, vec![index as u8; 1]);
    }
    store.begin_write(WRITES, 1, 0, vec![9; 4096]);
    let (mut done, mut before_the_other) = (0, None);
    let begin = std::time::Instant::now();
    while done <= WRITES {
        assert!(begin.elapsed() < std::time::Duration::from_secs(180), "{done} are done");
        let Some(completion) = store.completed() else {
            std::thread::yield_now();
            continue;
        };
        completion.result.unwrap();
        done += 1;
        if completion.ticket == WRITES {
            before_the_other = Some(done);
        }
    }
    // A turn of each worker before it, and what they had when it came.
    let before = before_the_other.unwrap();
    assert!(before < WRITES / 2, "{before} of {WRITES} were done before the other bank's");
    let wakes = wakes.load(Atomic::Relaxed);
    assert!(wakes < WRITES / 4, "{wakes} wake-ups for {WRITES} writes");
    store.set_waker(Arc::new(|| ()));
    for index in [0, 1, 4095, WRITES - 1] {
        assert_eq!(read(&mut store, 0, index * 257, 1), Ok(vec![index as u8]));
    }
}
