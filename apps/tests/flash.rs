//! A device whose banks are flash behind the FTL `page`, in the sandbox and natively: the same bytes as any other device's, also after
//! collection has had to work, and after a kill.

mod support;

use base_io_host::wire;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};
use support::dies::Dies;
use support::{BLOCK, Drive, FLASH, Ftl, SPUS};
use willow_device::clock::Timing;
use willow_device::media::fault::{FaultMedia, FaultOptions, Random};
use willow_device::media::flash::{Array, FaultParameters, Head, SyncHook};

const UUID: [u8; 16] = [7; 16];

/// Writes, reads and zeroes at random, compared with an array all along; more is written than the flash has bytes.
fn workload(drive: &mut Drive, model: &mut [u8], random: &mut Random, steps: usize) {
    for _ in 0..steps {
        let block = random.below(drive.blocks as u64) as usize;
        let count = 1 + random.below((drive.blocks - block).min(24) as u64) as usize;
        let range = block * BLOCK..(block + count) * BLOCK;
        match random.below(10) {
            0..6 => {
                let data = random.bytes(count * BLOCK);
                model[range].copy_from_slice(&data);
                drive.write(block, &data);
            }
            6..8 => {
                let found = drive.read(block, count);
                assert!(found == model[range], "blocks {block} to {}: {}", block + count, drive.log(drive.ftl_name()));
            }
            8 => {
                model[range].fill(0);
                drive.zero(block, count);
            }
            _ => drive.flush(),
        }
    }
    compare(drive, model);
}

fn compare(drive: &mut Drive, model: &[u8]) {
    for block in (0..drive.blocks).step_by(16) {
        let count = (drive.blocks - block).min(16);
        let found = drive.read(block, count);
        assert!(
            found == model[block * BLOCK..][..count * BLOCK],
            "from block {block} on: {}",
            drive.log(drive.ftl_name())
        );
    }
}

fn same_as_an_array(ftl: Ftl) {
    let mut drive = Drive::new(ftl);
    let mut model = vec![0; drive.blocks * BLOCK];
    let mut random = Random::new(11);
    workload(&mut drive, &mut model, &mut random, 1500);
}

#[test]
fn the_same_bytes_in_the_sandbox() {
    same_as_an_array(Ftl::Page);
}

#[test]
fn the_same_bytes_natively() {
    same_as_an_array(Ftl::NativePage);
}

fn flash_files(folder: &Path, fresh: bool) -> Vec<Array> {
    (0..u64::from(SPUS))
        .map(|bank| {
            let path = folder.join(format!("flash-{bank:03}"));
            let head = Head { uuid: UUID, bank, geometry: FLASH, seed: bank };
            match fresh {
                true => Array::create(&path, &head, &FaultParameters::NONE).expect("a flash file"),
                false => Array::open(&path, &UUID, bank, &FLASH, &FaultParameters::NONE).expect("the same file"),
            }
        })
        .collect()
}

#[test]
fn what_was_flushed_is_there_after_a_kill() {
    let folder = std::env::temp_dir().join(format!("willow-flash-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let mut model = Vec::new();
    let mut random = Random::new(5);
    let metadata = FaultMedia::new(FaultOptions::new(SPUS.into(), 65536));
    for round in 0..4 {
        let mut drive = Drive::open(flash_files(&folder, round == 0), Box::new(metadata.store()), Ftl::Page);
        drive.on_disk = true;
        model.resize(drive.blocks * BLOCK, 0);
        if round > 0 {
            compare(&mut drive, &model);
        }
        workload(&mut drive, &mut model, &mut random, 150);
        drive.flush();
        // No regular end: the FTL finds what it programmed, and its log.
        drop(drive);
    }
    std::fs::remove_dir_all(&folder).expect("a folder");
}

/// A door that syncs of flash files wait at.
#[derive(Default)]
struct Door {
    /// Open, and what it lets through fails.
    state: Mutex<(bool, bool)>,
    moved: Condvar,
    waiting: AtomicUsize,
}

impl Door {
    fn hook(self: &Arc<Self>) -> SyncHook {
        let door = self.clone();
        SyncHook::new(Arc::new(move || {
            door.waiting.fetch_add(1, Ordering::SeqCst);
            let state = door.state.lock().expect("the door");
            let state = door.moved.wait_while(state, |(open, _)| !*open).expect("the door");
            door.waiting.fetch_sub(1, Ordering::SeqCst);
            if state.1 { Err(std::io::Error::other("on purpose")) } else { Ok(()) }
        }))
    }

    fn set(&self, open: bool, fails: bool) {
        *self.state.lock().expect("the door") = (open, fails);
        self.moved.notify_all();
    }
}

/// Opens the door when a test ends, however it ends: the device's end waits for its threads.
struct OpenAtEnd(Arc<Door>);

impl Drop for OpenAtEnd {
    fn drop(&mut self) {
        self.0.set(true, false);
    }
}

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let folder = std::env::temp_dir().join(format!("willow-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        Scratch(folder)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Steps until something has come true that another thread has to bring.
fn until(drive: &mut Drive, mut is_true: impl FnMut(&mut Drive) -> bool) {
    let deadline = Instant::now() + Duration::from_secs(180);
    while !is_true(drive) {
        assert!(Instant::now() < deadline, "it does not come about");
        drive.step();
    }
}

/// While the disk takes its time with a flush, reads, writes and collection (whose erases wait for the disk as well) go on.
#[test]
fn a_slow_disk_holds_up_nobody_but_who_waits_for_it() {
    a_slow_disk("flash-slow", None);
}

/// The same where flash takes time: an erase takes effect when its time is over, and then waits for the disk.
#[test]
fn a_slow_disk_under_a_model_holds_up_nobody_but_who_waits_for_it() {
    a_slow_disk("flash-slow-model", Some(Box::new(Dies::default())));
}

fn a_slow_disk(name: &str, timing: Option<Box<dyn Timing>>) {
    let scratch = Scratch::new(name);
    let door = Arc::new(Door::default());
    door.set(true, false);
    let mut flash = flash_files(&scratch.0, true);
    flash.iter_mut().for_each(|array| array.set_sync_hook(door.hook()));
    let config = support::config(&Ftl::Page.banks());
    let mut drive = Drive::timed(config, flash, support::metadata(), Ftl::Page, timing);
    drive.on_disk = true;
    let _open = OpenAtEnd(door.clone());
    drive.write(0, &vec![1; BLOCK]);
    door.set(false, false);
    let flush = drive.begin_flush();
    until(&mut drive, |_| door.waiting.load(Ordering::SeqCst) == usize::from(SPUS));
    // The same blocks again and again: half of what the flash has free, so that nothing must be collected.
    for round in 0..60 {
        drive.write(round % 16, &vec![round as u8; BLOCK]);
        assert!(drive.read(round % 16, 1) == vec![round as u8; BLOCK]);
    }
    assert!(drive.ended(flush).is_none(), "the disk has not said anything yet");
    // Now the flash is used up: who writes waits for collection, which waits for the disk, and readers for nobody.
    let (mut writes, mut stuck) = (Vec::<u64>::new(), 0);
    for round in 0.. {
        assert!(round < 100_000, "the flash is used up long before");
        let before = writes.len();
        if before < 16 {
            writes.push(drive.begin(wire::handler::WRITE, round * 2 % 64, 1, &vec![2; BLOCK]));
        }
        drive.step();
        writes.retain(|tag| drive.ended(*tag).is_none());
        stuck = if writes.len() == 16 && before == 16 { stuck + 1 } else { 0 };
        if stuck == 500 {
            break;
        }
    }
    assert!(drive.read(65, 1) == vec![0; BLOCK], "a block that nobody writes");
    door.set(true, false);
    until(&mut drive, |drive| drive.ended(flush).is_some_and(|done| done.outcome == support::ANSWERED));
    until(&mut drive, |drive| {
        writes.retain(|tag| drive.ended(*tag).is_none_or(|done| done.outcome != support::ANSWERED));
        writes.is_empty()
    });
    drive.flush();
}

/// What the disk may have lost is told by every flush from then on.
#[test]
fn a_disk_that_fails_a_flush_is_not_believed_again() {
    let scratch = Scratch::new("flash-failing");
    let door = Arc::new(Door::default());
    door.set(true, false);
    let mut flash = flash_files(&scratch.0, true);
    flash.iter_mut().for_each(|array| array.set_sync_hook(door.hook()));
    let mut drive = Drive::open(flash, support::metadata(), Ftl::Page);
    drive.on_disk = true;
    drive.write(0, &vec![1; BLOCK]);
    drive.flush();
    drive.write(0, &vec![2; BLOCK]);
    for fails in [true, false, false] {
        door.set(true, fails);
        let flush = drive.begin_flush();
        let mut outcome = None;
        until(&mut drive, |drive| {
            outcome = drive.ended(flush).map(|done| done.outcome);
            outcome.is_some()
        });
        assert_ne!(outcome, Some(support::ANSWERED), "fails: {fails}");
    }
    assert!(drive.read(0, 1) == vec![2; BLOCK]);
}
