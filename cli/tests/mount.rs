//! `willow mount`: real file systems on the device by way of a loop device; what they discard, and what happens when the device
//! dies under them. Skipped with a line that says why where this is not root, or FUSE, loop devices or a file system's tools
//! are not there.

mod support;

use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use support::{Folder, Served, willow};
use willow_skip::{missing_for_fuse_mounts, programs, skip};

const PATIENCE: Duration = Duration::from_secs(180);

fn tool(name: &str) -> Option<PathBuf> {
    let folders = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"];
    folders.iter().map(|folder| Path::new(folder).join(name)).find(|path| path.exists())
}

fn run(program: &str, arguments: &[&str]) -> Output {
    let path = tool(program).unwrap_or_else(|| panic!("{program} is there"));
    Command::new(path).args(arguments).output().unwrap()
}

fn ok(program: &str, arguments: &[&str]) -> String {
    let output = run(program, arguments);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {error}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A mount, gone at the end whatever happens.
struct Mount {
    child: Child,
    folder: String,
}

impl Mount {
    fn start(device: &Served, folder: &str, more: &[&str]) -> Self {
        std::fs::create_dir_all(folder).unwrap();
        let mut command = willow();
        command.args(["mount", folder, "--target", &device.address]).args(more).stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("mounted ") && line.contains("/disk bytes="), "{line:?}");
        Mount { child, folder: folder.to_owned() }
    }
    fn disk(&self) -> String {
        format!("{}/disk", self.folder)
    }
    /// As Ctrl-C does.
    fn end(mut self) {
        ok("kill", &["-INT", &self.child.id().to_string()]);
        assert!(self.child.wait().unwrap().success(), "a clean end has status 0");
        assert_eq!(std::fs::read_dir(&self.folder).unwrap().count(), 0, "unmounted");
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = Command::new("umount").args(["-l", &self.folder]).stderr(Stdio::null()).status();
    }
}

/// A loop device over the mount.
struct Loop(String);

impl Loop {
    fn new(disk: &str) -> Self {
        let name = ok("losetup", &["-f", "--show", "--direct-io=on", "--sector-size", "4096", disk]);
        Loop(name.trim().to_owned())
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.0]).stderr(Stdio::null()).status();
    }
}

/// A file system mounted at a folder.
struct Attached(String);

impl Attached {
    fn new(device: &str, folder: &str) -> Self {
        std::fs::create_dir_all(folder).unwrap();
        ok("mount", &[device, folder]);
        Attached(folder.to_owned())
    }
    fn end(self) {
        ok("umount", &[&self.0]);
        std::mem::forget(self);
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let _ = Command::new("umount").args(["-l", &self.0]).stderr(Stdio::null()).status();
    }
}

fn content(file: u64) -> Vec<u8> {
    let mut number = file.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let bytes = (file * 7919) % 200_000 + 1;
    let next = || {
        number ^= number << 13;
        number ^= number >> 7;
        number ^= number << 17;
        number as u8
    };
    std::iter::repeat_with(next).take(bytes as usize).collect()
}

/// Bytes that the data folder takes on its disk.
fn taken(media: &str) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let files = std::fs::read_dir(media).unwrap().map(|entry| entry.unwrap().metadata().unwrap());
    files.filter(|file| file.is_file()).map(|file| file.blocks() * 512).sum()
}

fn a_file_system(make: &[&str], check: &[&str], size: &str, by_socket: bool) {
    if let Some(why) = missing_for_fuse_mounts().or_else(|| programs(&[make[0], check[0]])) {
        return skip(&format!("a file system by {}", make[0]), &why);
    }
    let folder = Folder::new();
    let (media, mnt, files) = (folder.path("media"), folder.path("mnt"), folder.path("files"));
    let socket = std::env::temp_dir()
        .join(format!("willow-{}-{by_socket}-{}.sock", make[0], std::process::id()))
        .display()
        .to_string();
    let mut device = Served::start(&["--media", &media, "--size", size, "--kv-size", "0", "--socket", &socket]);
    if by_socket {
        device.address = socket;
    }
    let mount = Mount::start(&device, &mnt, &[]);
    let block = Loop::new(&mount.disk());
    ok(make[0], &[&make[1..], &[block.0.as_str()]].concat());
    let attached = Attached::new(&block.0, &files);
    for file in 0..60 {
        std::fs::write(format!("{files}/{file}"), content(file)).unwrap();
    }
    let large: Vec<u8> = (0..500).flat_map(|file| content(file + 1000)).collect();
    std::fs::write(format!("{files}/large"), &large).unwrap();
    attached.end();

    // All of it is in the device, not in a cache on the way.
    let attached = Attached::new(&block.0, &files);
    for file in 0..60 {
        assert!(std::fs::read(format!("{files}/{file}")).unwrap() == content(file), "file {file}");
    }
    assert!(std::fs::read(format!("{files}/large")).unwrap() == large);
    let before = taken(&media);
    std::fs::remove_file(format!("{files}/large")).unwrap();
    ok("sync", &["-f", &files]);
    // Some file systems give space back with their next transaction.
    let begun = Instant::now();
    while taken(&media) + large.len() as u64 / 2 > before {
        assert!(begun.elapsed() < PATIENCE, "discard reaches the media: {before} bytes before, {} now", taken(&media));
        ok("fstrim", &[&files]);
        ok("sync", &["-f", &files]);
    }
    attached.end();
    ok(check[0], &[&check[1..], &[block.0.as_str()]].concat());
    drop(block);
    mount.end();
    device.end();
}

#[test]
fn ext4_lives_on_the_disk() {
    a_file_system(&["mkfs.ext4", "-q"], &["fsck.ext4", "-fn"], "512M", true);
}

#[test]
fn xfs_lives_on_the_disk() {
    a_file_system(&["mkfs.xfs", "-q"], &["xfs_repair", "-n"], "512M", true);
}

#[test]
fn btrfs_lives_on_the_disk() {
    a_file_system(&["mkfs.btrfs", "-q"], &["btrfs", "check"], "512M", true);
}

#[test]
fn ext4_lives_on_the_disk_over_the_network() {
    a_file_system(&["mkfs.ext4", "-q"], &["fsck.ext4", "-fn"], "512M", false);
}

#[test]
fn a_device_that_dies_is_an_error_and_no_hang() {
    if let Some(why) = missing_for_fuse_mounts() {
        return skip("a_device_that_dies_is_an_error_and_no_hang", &why);
    }
    let folder = Folder::new();
    let (mnt, files) = (folder.path("mnt"), folder.path("files"));
    let socket = std::env::temp_dir().join(format!("willow-dies-{}.sock", std::process::id())).display().to_string();
    let mut device = Served::start(&["--ram", "--size", "128M", "--kv-size", "0", "--socket", &socket]);
    device.address = socket;
    let mount = Mount::start(&device, &mnt, &["--reconnect", "1"]);
    let block = Loop::new(&mount.disk());
    ok("mkfs.ext4", &["-q", &block.0]);
    let attached = Attached::new(&block.0, &files);
    std::fs::write(format!("{files}/kept"), content(3)).unwrap();
    ok("sync", &["-f", &files]);
    device.child.kill().unwrap();
    device.child.wait().unwrap();
    let begun = Instant::now();
    let read = std::fs::read(mount.disk());
    assert_eq!(read.unwrap_err().raw_os_error(), Some(5), "EIO");
    std::fs::write(format!("{files}/late"), content(4)).ok();
    assert!(!run("sync", &["-f", &files]).status.success(), "what cannot be written is an error");
    assert!(begun.elapsed() < PATIENCE);
    ok("umount", &[&files]);
    std::mem::forget(attached);
    drop(block);
    mount.end();
}

#[test]
fn a_device_that_comes_back_is_gone_on_with() {
    if let Some(why) = missing_for_fuse_mounts() {
        return skip("a_device_that_comes_back_is_gone_on_with", &why);
    }
    let folder = Folder::new();
    let (media, mnt, files) = (folder.path("media"), folder.path("mnt"), folder.path("files"));
    let socket = std::env::temp_dir().join(format!("willow-back-{}.sock", std::process::id())).display().to_string();
    let start = |media: &[&str]| {
        let mut device = Served::start(&[media, &["--size", "256M", "--kv-size", "0", "--socket", &socket]].concat());
        device.address = socket.clone();
        device
    };
    let mut device = start(&["--media", &media]);
    let mount = Mount::start(&device, &mnt, &[]);
    let block = Loop::new(&mount.disk());
    ok("mkfs.ext4", &["-q", &block.0]);
    let attached = Attached::new(&block.0, &files);
    let writer = {
        let files = files.clone();
        std::thread::spawn(move || {
            for file in 0..120 {
                std::fs::write(format!("{files}/{file}"), content(file)).unwrap();
                if file % 4 == 0 {
                    std::fs::File::open(format!("{files}/{file}")).unwrap().sync_all().unwrap();
                }
            }
        })
    };
    // Killed in the middle of it, three times.
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(150));
        device.child.kill().unwrap();
        device.child.wait().unwrap();
        std::thread::sleep(Duration::from_millis(300));
        device = start(&["--media", &media]);
    }
    writer.join().expect("no write failed");
    attached.end();
    let attached = Attached::new(&block.0, &files);
    for file in 0..120 {
        assert!(std::fs::read(format!("{files}/{file}")).unwrap() == content(file), "file {file}");
    }
    attached.end();
    ok("fsck.ext4", &["-fn", &block.0]);
    // Another device at the same socket is not taken for this one.
    device.child.kill().unwrap();
    device.child.wait().unwrap();
    let other = start(&["--ram"]);
    assert_eq!(std::fs::read(mount.disk()).unwrap_err().raw_os_error(), Some(6), "ENXIO");
    drop(block);
    mount.end();
    other.end();
}

/// A device on flash whose media are files, at a socket.
fn flash(media: &str, socket: &str) -> Served {
    let kept = ["--media", media, "--size", "128M", "--kv-size", "0", "--socket", socket];
    let mut device = Served::start(&[&kept[..], &["--preset", "jasmine"]].concat());
    device.address = socket.to_owned();
    device
}

/// SIGKILL.
fn kill(device: &mut Served) {
    device.child.kill().unwrap();
    device.child.wait().unwrap();
}

#[test]
fn a_disk_is_gone_on_with_where_all_was_flushed_and_not_where_flash_may_have_forgotten() {
    let test = "a_disk_is_gone_on_with_where_all_was_flushed_and_not_where_flash_may_have_forgotten";
    if let Some(why) = missing_for_fuse_mounts() {
        return skip(test, &why);
    }
    let folder = Folder::new();
    let (media, mnt) = (folder.path("media"), folder.path("mnt"));
    let socket = std::env::temp_dir().join(format!("willow-forgets-{}.sock", std::process::id()));
    let socket = socket.display().to_string();
    let mut device = flash(&media, &socket);
    let mount = Mount::start(&device, &mnt, &[]);
    let open = |mount: &Mount| std::fs::OpenOptions::new().read(true).write(true).open(mount.disk()).unwrap();
    let disk = open(&mount);
    disk.write_all_at(&[1; 1 << 20], 0).unwrap();
    disk.sync_all().unwrap();
    kill(&mut device);
    device = flash(&media, &socket);
    let mut found = vec![0; 1 << 20];
    disk.read_exact_at(&mut found, 0).unwrap();
    assert!(found == [1; 1 << 20], "what was flushed is there");
    // A change of which nobody was told that it is durable, and the device goes.
    disk.write_all_at(&[2; 1 << 20], 0).unwrap();
    kill(&mut device);
    device = flash(&media, &socket);
    assert_eq!(disk.sync_all().unwrap_err().raw_os_error(), Some(5), "EIO: no flush says that it is there");
    assert_eq!(disk.read_exact_at(&mut found, 0).unwrap_err().raw_os_error(), Some(5), "EIO");
    assert_eq!(disk.write_all_at(&[3; 4096], 0).unwrap_err().raw_os_error(), Some(5), "EIO");
    drop(disk);
    mount.end();
    let mount = Mount::start(&device, &mnt, &[]);
    let disk = open(&mount);
    disk.read_exact_at(&mut found, 0).unwrap();
    assert!(found.chunks(4096).all(|block| block == [1; 4096] || block == [2; 4096]), "the one or the other");
    disk.write_all_at(&[3; 1 << 20], 0).unwrap();
    disk.sync_all().unwrap();
    drop(disk);
    mount.end();
    device.end();
}

/// Files that are written and synced at the same time, each by a thread.
const WRITERS: usize = 4;
const BLOCKS: usize = 64;
const BLOCK_BYTES: usize = 4096;
/// Kills.
const ROUNDS: u64 = 4;
/// Syncs after the device is there again, where they succeed.
const SYNCS_AFTER_A_KILL: u64 = 40;

/// What a writer knows of a block. Versions count up and are never given twice, so that an old one that comes back is known.
#[derive(Clone, Copy, Default)]
struct Version {
    /// What it was when the file was last synced, or found to be since.
    durable: u64,
    /// The last one that was given when it was found.
    before: u64,
    /// The last one that was given.
    given: u64,
}

impl Version {
    /// The file is synced: what was written since the block was found is durable. What was written before, and not found, is gone.
    fn is_synced(&mut self) {
        if self.given > self.before {
            self.durable = self.given;
        }
    }

    /// What it may be now.
    fn possible(&self) -> impl Iterator<Item = u64> + use<> {
        std::iter::once(self.durable).chain(self.before.max(self.durable) + 1..=self.given)
    }
}

/// What a writer knows of its file.
#[derive(Clone)]
struct Versions(Vec<Version>);

/// A block's bytes; of version 0 zeroes.
fn block(file: usize, at: usize, version: u64) -> Vec<u8> {
    let word = if version == 0 { 0 } else { (file as u64 + 1) << 56 | (at as u64) << 40 | version };
    word.to_le_bytes().repeat(BLOCK_BYTES / 8)
}

impl Versions {
    /// Writes and syncs until that fails, or the round is over; counts what was synced.
    fn write(mut self, file: usize, path: &str, seed: u64, (is_over, synced): (&AtomicBool, &AtomicU64)) -> Versions {
        let mut random = seed | 1;
        let mut below = |bound: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % bound
        };
        let Ok(disk) = std::fs::OpenOptions::new().write(true).open(path) else { return self };
        while !is_over.load(Ordering::Acquire) {
            for _ in 0..1 + below(6) {
                let (first, count) = (below(BLOCKS as u64) as usize, 1 + below(8) as usize);
                let last = (first + count).min(BLOCKS);
                let mut bytes = Vec::new();
                for at in first..last {
                    self.0[at].given += 1;
                    bytes.extend(block(file, at, self.0[at].given));
                }
                if disk.write_all_at(&bytes, (first * BLOCK_BYTES) as u64).is_err() {
                    return self;
                }
            }
            if disk.sync_all().is_err() {
                return self;
            }
            self.0.iter_mut().for_each(Version::is_synced);
            synced.fetch_add(1, Ordering::Release);
        }
        self
    }

    /// Each block is of the version that was synced, or of one that was written after it.
    fn check(&mut self, file: usize, path: &str, round: u64) {
        let bytes = std::fs::read(path).unwrap();
        assert_eq!(bytes.len(), BLOCKS * BLOCK_BYTES, "round {round}: file {file}");
        for (at, of) in self.0.iter_mut().enumerate() {
            let held = &bytes[at * BLOCK_BYTES..][..BLOCK_BYTES];
            let Some(found) = of.possible().find(|version| block(file, at, *version) == held) else {
                let Version { durable, before, given } = of;
                panic!(
                    "round {round}: file {file} block {at} has {:02x?}, not version {durable}, nor one after {before} to {given}",
                    &held[..8]
                )
            };
            *of = Version { durable: found, before: of.given, given: of.given };
        }
    }
}

/// The device is killed again and again under files that are synced, and is there again at once. The mount notices what may be lost; then the file
/// system is mounted anew, and recovers.
#[test]
fn ext4_on_flash_loses_nothing_that_was_synced() {
    let test = "ext4_on_flash_loses_nothing_that_was_synced";
    if let Some(why) = missing_for_fuse_mounts().or_else(|| programs(&["mkfs.ext4", "fsck.ext4"])) {
        return skip(test, &why);
    }
    let folder = Folder::new();
    let (media, mnt, files) = (folder.path("media"), folder.path("mnt"), folder.path("files"));
    let socket = std::env::temp_dir().join(format!("willow-synced-{}.sock", std::process::id()));
    let socket = socket.display().to_string();
    let mut device = flash(&media, &socket);
    let mut versions = vec![Versions(vec![Version::default(); BLOCKS]); WRITERS];
    let path = |file: usize| format!("{files}/{file}");
    for round in 0..=ROUNDS {
        let mount = Mount::start(&device, &mnt, &[]);
        let block = Loop::new(&mount.disk());
        if round == 0 {
            ok("mkfs.ext4", &["-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", &block.0]);
        }
        let attached = Attached::new(&block.0, &files);
        if round == 0 {
            for file in 0..WRITERS {
                std::fs::write(path(file), vec![0; BLOCKS * BLOCK_BYTES]).unwrap();
            }
            ok("sync", &["-f", &files]);
        }
        versions.iter_mut().enumerate().for_each(|(file, of)| of.check(file, &path(file), round));
        if round == ROUNDS {
            attached.end();
            ok("fsck.ext4", &["-fn", &block.0]);
            drop(block);
            mount.end();
            break;
        }
        let (is_over, synced) = (AtomicBool::new(false), AtomicU64::new(0));
        versions = std::thread::scope(|scope| {
            let writers = std::mem::take(&mut versions).into_iter().enumerate().map(|(file, of)| {
                let (path, told) = (path(file), (&is_over, &synced));
                scope.spawn(move || of.write(file, &path, round * 1000 + file as u64, told))
            });
            let writers: Vec<_> = writers.collect();
            let wait_for = |syncs: u64| {
                let begun = Instant::now();
                while synced.load(Ordering::Acquire) < syncs && !writers.iter().all(|writer| writer.is_finished()) {
                    assert!(begun.elapsed() < PATIENCE, "files are synced, or that fails");
                    std::thread::sleep(Duration::from_millis(1));
                }
            };
            wait_for(20 + 17 * round);
            assert!(!writers.iter().any(|writer| writer.is_finished()), "the device is there");
            kill(&mut device);
            device = flash(&media, &socket);
            // A mount that went on over what was lost would have files synced that are not.
            wait_for(synced.load(Ordering::Acquire) + SYNCS_AFTER_A_KILL);
            is_over.store(true, Ordering::Release);
            writers.into_iter().map(|writer| writer.join().expect("a writer ends")).collect()
        });
        attached.end();
        drop(block);
        mount.end();
    }
    device.end();
}

#[test]
fn what_is_in_the_way_is_said() {
    if let Some(why) = missing_for_fuse_mounts() {
        return skip("what_is_in_the_way_is_said", &why);
    }
    let folder = Folder::new();
    let device = Served::start(&["--ram", "--size", "64M", "--kv-size", "64M"]);
    let fails = |arguments: &[&str]| device.fails(&[&["mount"], arguments].concat());
    assert!(fails(&[&folder.path("nowhere")]).contains("cannot mount at"));
    let mnt = folder.path("mnt");
    std::fs::create_dir_all(&mnt).unwrap();
    assert!(fails(&[&mnt, "--nsid", "2"]).contains("no block namespace"));
    assert!(fails(&[&mnt, "--nsid", "9"]).contains("not there"));
    assert!(fails(&[&mnt, "--threads", "0"]).contains("1 to 64"));
    // A file that is open holds up unmounting, and the mount goes on until it is closed.
    let mut mount = Mount::start(&device, &mnt, &["--read-only"]);
    let open = std::fs::File::open(mount.disk()).unwrap();
    assert!(std::fs::OpenOptions::new().write(true).open(mount.disk()).is_err());
    ok("kill", &["-TERM", &mount.child.id().to_string()]);
    let mut line = String::new();
    BufReader::new(mount.child.stderr.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("busy") && line.contains("losetup -d"), "{line}");
    let mut bytes = [1; 4096];
    std::os::unix::fs::FileExt::read_exact_at(&open, &mut bytes, 8192).unwrap();
    assert_eq!(bytes, [0; 4096]);
    drop(open);
    mount.end();
    device.end();
}
