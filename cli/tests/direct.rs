//! Direct access to files of a real ext4 by processes of two users: the whole way from a descriptor to the device and back.
//! The block device under the file system is a loop device over an image whose bytes are put into the namespace when all is synced,
//! so that the test needs no FUSE; what is written directly is then in the namespace alone.
//! Skipped, with a line that says why, where it is not run as root or loop devices are missing.

mod support;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use willow_host::{BlockClient, ShmHre, ShmOptions};

const ALICE: u32 = 54001;
const BOB: u32 = 54002;
const IMAGE_BYTES: usize = 32 << 20;
const FILE_BYTES: usize = 1_500_000;

fn command(program: &str, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(arguments).output().map_err(|error| format!("{program}: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
        false => Err(format!("{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr))),
    }
}

/// A mounted file system on a loop device; taken apart when dropped.
struct Mounted {
    device: String,
    point: PathBuf,
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = command("umount", &["-l", &self.point.display().to_string()]);
        let _ = command("losetup", &["-d", &self.device]);
    }
}

struct World {
    folder: PathBuf,
    willow: PathBuf,
    // Lives as long as the test.
    _device: support::Served,
    mounted: Mounted,
    agent: Option<Child>,
}

impl Drop for World {
    fn drop(&mut self) {
        if let Some(mut agent) = self.agent.take() {
            let _ = agent.kill();
            let _ = agent.wait();
        }
        let _ = command("umount", &["-l", &self.mounted.point.display().to_string()]);
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn pattern(seed: u8) -> Vec<u8> {
    (0..FILE_BYTES).map(|at| (at as u32).wrapping_mul(2_654_435_761).rotate_left(9) as u8 ^ seed).collect()
}

impl World {
    fn new() -> Result<World, String> {
        let needed = || willow_skip::programs(&["mkfs.ext4", "lsattr"]);
        if let Some(why) = willow_skip::missing_for_loop_mounts().or_else(needed) {
            return Err(why);
        }
        // Where other users get to, unlike this user's own folders.
        let folder = std::env::temp_dir().join(format!("willow-direct-{}", std::process::id()));
        let say = |error: std::io::Error| error.to_string();
        fs::create_dir_all(folder.join("files")).map_err(say)?;
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).map_err(say)?;
        let willow = folder.join("willow");
        // By a process of its own: what is open for writing, be it in a child of another thread, cannot be run.
        command("cp", &[env!("CARGO_BIN_EXE_willow"), &willow.display().to_string()])?;
        let image = folder.join("image").display().to_string();
        File::create(&image).and_then(|file| file.set_len(IMAGE_BYTES as u64)).map_err(say)?;
        command(
            "mkfs.ext4",
            &["-q", "-F", "-b", "4096", "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard", &image],
        )?;
        let device = command("losetup", &["-f", "--show", &image])?;
        let mounted = Mounted { device, point: folder.join("files") };
        command("mount", &["-o", "noatime", &mounted.device, &mounted.point.display().to_string()])?;
        let socket = folder.join("device").display().to_string();
        let size = IMAGE_BYTES.to_string();
        let device = support::Served::start(&["--ram", "--size", &size, "--socket", &socket]);
        Ok(World { folder, willow, _device: device, mounted, agent: None })
    }

    fn path(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    fn file(&self, name: &str, owner: u32, mode: u32, contents: &[u8]) -> PathBuf {
        let path = self.mounted.point.join(name);
        fs::write(&path, contents).expect("a file");
        chown(&path, Some(owner), Some(owner)).expect("its owner");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("its mode");
        path
    }

    /// Puts what is on the block device into the namespace.
    fn copy_to_namespace(&self) {
        command("sync", &["-f", &self.mounted.point.display().to_string()]).expect("synced");
        let image = fs::read(self.folder.join("image")).expect("the image");
        let hre = Arc::new(ShmHre::open(&self.folder.join("device"), ShmOptions::default()).expect("an endpoint"));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let block = BlockClient::open(hre, 1).await.expect("the namespace");
            for (index, piece) in image.chunks(1 << 20).enumerate() {
                block.write((index << 20) as u64, piece.to_vec(), false).await.expect("written");
            }
        });
    }

    fn start_agent(&mut self) {
        let block = format!("{}=1", self.mounted.device);
        for _ in 0..10 {
            self.copy_to_namespace();
            let arguments =
                ["agent", "--target", &self.path("device"), "--socket", &self.path("agent"), "--block", &block];
            let mut child =
                Command::new(&self.willow).args(arguments).stdout(Stdio::piped()).spawn().expect("an agent");
            let mut line = String::new();
            BufReader::new(child.stdout.take().expect("its output")).read_line(&mut line).expect("a line");
            if line.starts_with("ready") {
                self.agent = Some(child);
                return;
            }
            // The file system wrote its superblock in between.
            child.wait().expect("an end");
        }
        panic!("the agent does not start");
    }

    fn kill_agent(&mut self) {
        let mut agent = self.agent.take().expect("an agent");
        agent.kill().expect("killed");
        agent.wait().expect("an end");
    }

    /// Runs `willow direct` as a user.
    fn direct(&self, user: u32, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.willow);
        command.arg("direct").args(arguments).args(["--target", &self.path("device"), "--agent", &self.path("agent")]);
        command.uid(user).gid(user).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn read(&self, user: u32, file: &Path, range: &[&str]) -> Output {
        let path = file.display().to_string();
        let arguments: Vec<&str> = ["read", &path].iter().chain(range).copied().collect();
        self.direct(user, &arguments).output().expect("it runs")
    }

    fn write(&self, user: u32, file: &Path, more: &[&str], data: &[u8]) -> Output {
        let path = file.display().to_string();
        let arguments: Vec<&str> = ["write", &path].iter().chain(more).copied().collect();
        let mut child = self.direct(user, &arguments).spawn().expect("it runs");
        let _ = child.stdin.take().expect("its input").write_all(data);
        child.wait_with_output().expect("it ends")
    }
}

fn reason(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn is_frozen(path: &Path) -> bool {
    command("lsattr", &["-d", &path.display().to_string()])
        .expect("attributes")
        .split(' ')
        .next()
        .is_some_and(|it| it.contains('i'))
}

fn within_seconds(what: &str, holds: impl Fn() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < Duration::from_secs(120), "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn two_users_on_a_real_file_system() {
    let mut world = match World::new() {
        Ok(world) => world,
        Err(why) => {
            return willow_skip::skip("two_users_on_a_real_file_system", &why);
        }
    };
    let contents = pattern(1);
    let alices = world.file("alices", ALICE, 0o600, &contents);
    let shown = world.file("shown", ALICE, 0o644, &contents);
    let bobs = world.file("bobs", BOB, 0o600, &pattern(2));
    let allocated = world.file("allocated", ALICE, 0o600, b"");
    command("fallocate", &["-l", "65536", &allocated.display().to_string()]).expect("allocated");
    world.start_agent();

    // Her own file, byte for byte, at any offset.
    let read = world.read(ALICE, &alices, &[]);
    assert!(read.status.success() && read.stdout == contents, "{}", String::from_utf8_lossy(&read.stderr));
    let part = world.read(ALICE, &alices, &["--offset", "12345", "--bytes", "70001"]);
    assert_eq!(part.stdout, &contents[12345..12345 + 70001]);
    assert!(world.read(ALICE, &alices, &["--offset", "1499999"]).stdout == contents[1_499_999..]);

    // Direct writes are read back, and change nothing else; the length stays.
    let written = world.write(ALICE, &alices, &["--offset", "8190"], &[0xa5; 9000]);
    assert!(written.status.success(), "{}", String::from_utf8_lossy(&written.stderr));
    let mut expected = contents.clone();
    expected[8190..17190].fill(0xa5);
    assert!(world.read(ALICE, &alices, &[]).stdout == expected);
    assert!(world.read(BOB, &bobs, &[]).stdout == pattern(2));
    assert!(reason(&world.write(ALICE, &alices, &["--offset", "1499999"], &[1; 2])).contains("end of the file"));

    // Opened for reading only: the device refuses to write.
    let refused = world.write(ALICE, &alices, &["--read-only"], &[1; 10]);
    assert!(reason(&refused).contains("the device refuses"), "{}", reason(&refused));
    assert!(world.read(ALICE, &alices, &[]).stdout == expected);

    // Others' files: by the file system where it may not be opened, by the agent where it may.
    assert!(reason(&world.read(BOB, &alices, &[])).contains("cannot open"));
    assert!(reason(&world.read(BOB, &shown, &[])).contains("another user"));
    assert!(reason(&world.read(ALICE, &allocated, &[])).contains("never written"));
    let elsewhere = world.folder.join("elsewhere");
    fs::write(&elsewhere, [1; 9000]).expect("a file");
    chown(&elsewhere, Some(ALICE), Some(ALICE)).expect("its owner");
    let why = reason(&world.read(ALICE, &elsewhere, &[]));
    assert!(why.contains("block device") || why.contains("file system"), "{why}");

    // While it is open directly its blocks stay where they are; when the process dies it is the file system's own again.
    let path = alices.display().to_string();
    let mut open = world.direct(ALICE, &["write", &path]).spawn().expect("it runs");
    within_seconds("the file is frozen", || is_frozen(&alices));
    for (program, arguments) in [
        ("truncate", vec!["-s", "0", &path]),
        ("rm", vec!["-f", &path]),
        ("fallocate", vec!["-p", "-l", "4096", &path]),
    ] {
        assert!(command(program, &arguments).is_err(), "{program} on a frozen file");
    }
    assert!(command("umount", &[&world.mounted.point.display().to_string()]).is_err());
    open.kill().expect("killed");
    open.wait().expect("an end");
    within_seconds("the file is thawed after its process died", || !is_frozen(&alices));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let hre = Arc::new(ShmHre::open(&world.folder.join("device"), ShmOptions::default()).expect("an endpoint"));
    let statistics = runtime.block_on(willow_host::ControlClient::new(hre).statistics()).expect("statistics");
    assert_eq!(statistics["protection"]["permissions"], 0);

    // An agent that dies leaves the file frozen; the next one thaws it.
    let mut open = world.direct(ALICE, &["write", &path]).spawn().expect("it runs");
    within_seconds("the file is frozen", || is_frozen(&alices));
    world.kill_agent();
    assert!(is_frozen(&alices));
    open.kill().expect("killed");
    open.wait().expect("an end");
    let mut rest = String::new();
    let _ = open.stderr.take().map(|mut it| it.read_to_string(&mut rest));
    world.start_agent();
    assert!(!is_frozen(&alices));
    assert!(command("truncate", &["-s", "5", &path]).is_ok());
}

#[test]
fn the_demo_of_protection_holds() {
    let needed = || willow_skip::programs(&["mkfs.ext4", "lsattr"]);
    if let Some(why) = willow_skip::missing_for_fuse_mounts().or_else(needed) {
        return willow_skip::skip("the_demo_of_protection_holds", &why);
    }
    let output = support::willow().args(["demo", "protection"]).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("all of it held"),
        "{said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
