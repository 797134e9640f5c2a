//! A device, its block namespace by FUSE and a loop device, a real file system on it, and an agent: what tests of direct access to files
//! stand on. The agent may be one of another host, as far as the device can tell: then it knows the device's NVMe/TCP address and a key
//! alone. All of it goes when the stage is dropped.

use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{FileExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::scratch::Scratch;
pub use willow_skip::{has, skip};
use willow_skip::{missing_for_fuse_mounts, programs};

/// Makes ext4, at once.
const EXT4: &[&str] = &["mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0"];
/// Makes xfs on which nothing can be shared.
const XFS: &[&str] = &["mkfs.xfs", "-q", "-f", "-m", "reflink=0"];
/// Bytes of a piece of a file in pieces: a block of the file system.
const PIECE_BYTES: usize = 4096;

/// The device's flags where the file system is ext4.
const EXT4_DEVICE: &[&str] = &["--ram", "--size", "128M"];
/// The test program that has tests of the others, and runs them on flash.
const ON_FLASH: &str = "files_on_flash";

/// Whether these tests are part of the program that runs them on flash.
pub fn is_on_flash() -> bool {
    let this = std::env::current_exe().expect("this program");
    this.file_name().is_some_and(|name| name.to_string_lossy().starts_with(ON_FLASH))
}

/// Runs a program; what it printed, or what it said was wrong.
pub fn tool(program: &str, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(arguments).output().map_err(|error| format!("{program}: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
        false => Err(format!("{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr).trim())),
    }
}

/// Longest wait of a test for what comes by itself, on however slow a machine: it is there so that the test ends.
pub const WAIT_MAX: Duration = Duration::from_secs(120);

/// Waits until something holds, for [`WAIT_MAX`] at most: longer than the kernel waits for a lease that nobody gives up.
pub fn within_seconds(what: &str, holds: impl Fn() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < WAIT_MAX, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// True where a file is immutable.
pub fn is_frozen(path: &Path) -> bool {
    has_attribute(path, StatxAttributes::IMMUTABLE)
}

/// True where a file is append-only.
pub fn is_append_only(path: &Path) -> bool {
    has_attribute(path, StatxAttributes::APPEND)
}

/// Without opening it, which would break somebody's lease.
fn has_attribute(path: &Path, attribute: StatxAttributes) -> bool {
    let found = rustix::fs::statx(CWD, path, AtFlags::empty(), StatxFlags::empty()).expect("attributes");
    assert!(found.stx_attributes_mask.contains(attribute), "its file system says nothing of that");
    found.stx_attributes.contains(attribute)
}

/// Writes a table with one partition: from this byte to the end, in blocks of 4096 bytes (the format of DOS, which every kernel knows).
fn partition(disk: &Path, at: u64) -> std::io::Result<()> {
    let file = fs::OpenOptions::new().write(true).open(disk)?;
    let blocks = |bytes: u64| ((bytes / 4096) as u32).to_le_bytes();
    let mut table = [0; 4096];
    table[446 + 4] = 0x83;
    table[446 + 8..446 + 12].copy_from_slice(&blocks(at));
    table[446 + 12..446 + 16].copy_from_slice(&blocks(file.metadata()?.len() - at));
    table[510..512].copy_from_slice(&[0x55, 0xaa]);
    file.write_all_at(&table, 0)
}

/// Sets the feature of xfs by which files exchange ranges (linux 6.10: XFS_SB_FEAT_INCOMPAT_EXCHRANGE), which asks for nothing else on the
/// disk.
fn allow_exchange(disk: &Path) -> std::io::Result<()> {
    const FEATURES_AT: usize = 216;
    const CHECKSUM_AT: usize = 224;
    const EXCHANGE_RANGE: u32 = 1 << 6;
    let file = fs::OpenOptions::new().read(true).write(true).open(disk)?;
    // A sector of what mkfs finds there.
    let mut block = vec![0; 4096];
    file.read_exact_at(&mut block, 0)?;
    let sector = usize::from(u16::from_be_bytes([block[102], block[103]]));
    block.truncate(sector);
    let features = block[FEATURES_AT..FEATURES_AT + 4].try_into().map(u32::from_be_bytes).unwrap_or_default();
    block[FEATURES_AT..FEATURES_AT + 4].copy_from_slice(&(features | EXCHANGE_RANGE).to_be_bytes());
    block[CHECKSUM_AT..CHECKSUM_AT + 4].fill(0);
    let sum = crc32c::crc32c(&block).to_le_bytes();
    block[CHECKSUM_AT..CHECKSUM_AT + 4].copy_from_slice(&sum);
    file.write_all_at(&block, 0)?;
    file.sync_all()
}

/// The library that is put before programs.
pub const PRELOAD: &str = "libwillow_preload.so";

/// Where cargo puts a library that programs load.
pub fn library(name: &str) -> PathBuf {
    let this = std::env::current_exe().expect("this program");
    let library = this.parent().expect("the folder of the build").join(name);
    assert!(library.exists(), "{}", library.display());
    library
}

/// Bytes of a file, the same for the same seed.
pub fn contents(bytes: usize, seed: u32) -> Vec<u8> {
    (0..bytes as u32).map(|at| (at ^ seed << 20).wrapping_mul(2_654_435_761).rotate_left(9) as u8).collect()
}

/// How the agent reaches the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// By its socket.
    Memory,
    /// By NVMe/TCP, in the clear.
    Network,
    /// By NVMe/TCP over TLS, which the device demands.
    Tls,
}

/// A stage.
pub struct Stage {
    /// Of all of it.
    pub folder: PathBuf,
    willow: PathBuf,
    children: Vec<Child>,
    block: Option<String>,
    /// Of the device's listener, where the agent reaches it by that.
    pub address: Option<String>,
    serve: Vec<String>,
    /// More flags of the agent.
    pub agent_flags: Vec<String>,
    /// The agent, while it lives.
    pub agent: Option<Child>,
}

impl Drop for Stage {
    fn drop(&mut self) {
        if let Some(mut agent) = self.agent.take() {
            end(&mut agent);
        }
        let _ = tool("umount", &["-l", &self.path("files")]);
        if let Some(block) = &self.block {
            let _ = tool("losetup", &["-d", block]);
        }
        for mut child in self.children.drain(..).rev() {
            end(&mut child);
        }
        let _ = tool("umount", &["-l", &self.path("mount")]);
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Copies a program, by a process of its own: a child that another test's thread makes meanwhile would inherit the file, open for writing,
/// and a file that is open for writing cannot be run.
fn copy(built: &Path, program: &Path) {
    tool("cp", &[&built.display().to_string(), &program.display().to_string()]).expect("a copy of a program");
}

fn end(child: &mut Child) {
    let _ = tool("kill", &["-TERM", &child.id().to_string()]);
    let begin = Instant::now();
    while matches!(child.try_wait(), Ok(None)) && begin.elapsed() < WAIT_MAX {
        std::thread::sleep(Duration::from_millis(10));
    }
    let _ = child.kill();
    let _ = child.wait();
}

impl Stage {
    /// With the file system that this command makes, of this size; the error says why that cannot be tested here.
    pub fn new(make: &[&str], size: &str) -> Result<Stage, String> {
        Stage::with(make, &["--ram", "--size", size], By::Memory, None)
    }

    /// With the file system that this command makes, on a device with these flags; on a partition that begins at this byte, or on all of
    /// it.
    fn with(make: &[&str], flags: &[&str], by: By, partition_at: Option<u64>) -> Result<Stage, String> {
        if let Some(missing) = missing_for_fuse_mounts().or_else(|| programs(&[make[0], "lsattr"])) {
            return Err(missing);
        }
        // Where other users get to, unlike this user's own folders.
        let folder = Scratch::new("stage").expect("a folder").into_path();
        for name in ["mount", "files"] {
            fs::create_dir(folder.join(name)).expect("a folder");
        }
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).expect("its mode");
        let willow = folder.join("willow");
        copy(&crate::daemon::binary(), &willow);
        let mut stage = Stage {
            folder,
            willow,
            children: Vec::new(),
            block: None,
            address: None,
            serve: Vec::new(),
            agent_flags: Vec::new(),
            agent: None,
        };
        let (device, mount, files, key) =
            (stage.path("device"), stage.path("mount"), stage.path("files"), stage.path("key"));
        let media = stage.path("media");
        let medium: &[&str] = if is_on_flash() { &["--preset", "jasmine", "--kv-size", "0"] } else { &[] };
        let flags = flags.iter().chain(medium).map(|flag| if *flag == "MEDIA" { &media } else { *flag });
        let mut serve: Vec<&str> = ["serve", "--log", "error", "--socket", &device].into_iter().chain(flags).collect();
        let (new_key, demand): (&[&str], &[&str]) = match by {
            By::Memory => (&[], &[]),
            By::Network => (&["key", "new", &key], &["--host-key", &key]),
            By::Tls => (&["key", "new", "--tls", &key], &["--host-key", &key, "--tls", "required"]),
        };
        if by != By::Memory {
            tool(&stage.willow.display().to_string(), new_key)?;
        }
        serve.extend(demand);
        stage.serve = serve.iter().map(ToString::to_string).collect();
        let (served, ready) = stage.serve("127.0.0.1:0");
        let address = ready.split_whitespace().find_map(|word| word.strip_prefix("listen="));
        stage.address = address.filter(|_| by != By::Memory).map(ToOwned::to_owned);
        let (mounted, _) = stage.start(&["mount", &mount, "--target", &device]).expect("a mount");
        stage.children.extend([served, mounted]);
        let disk = format!("{mount}/disk");
        if let Some(at) = partition_at {
            partition(Path::new(&disk), at).map_err(|error| format!("{disk}: {error}"))?;
        }
        let block = tool("losetup", &["--direct-io=on", "--sector-size", "4096", "-P", "-f", "--show", &disk])?;
        stage.block = Some(block.clone());
        let place = if partition_at.is_some() { format!("{block}p1") } else { block.clone() };
        if !Path::new(&place).exists() {
            // A kernel that reads no tables is told.
            tool("partx", &["--add", &block])?;
        }
        tool(make[0], &[&make[1..], &[&place]].concat())?;
        if make[0] == "mkfs.xfs" {
            allow_exchange(Path::new(&place)).map_err(|error| format!("{place}: {error}"))?;
        }
        // A kernel without this file system.
        tool("mount", &["-o", "noatime", &place, &files])?;
        stage.start_agent();
        Ok(stage)
    }

    /// With ext4.
    pub fn ext4() -> Result<Stage, String> {
        Stage::ext4_by(By::Memory)
    }

    /// With ext4, and an agent that reaches the device in this way.
    pub fn ext4_by(by: By) -> Result<Stage, String> {
        Stage::remote(EXT4_DEVICE, by)
    }

    /// With ext4 on a partition.
    pub fn partition() -> Result<Stage, String> {
        Stage::with(EXT4, EXT4_DEVICE, By::Memory, Some(5 << 20))
    }

    /// With ext4, and an agent that reaches the device by a network. `MEDIA` in the device's flags is a folder of the stage.
    pub fn remote(flags: &[&str], by: By) -> Result<Stage, String> {
        Stage::with(EXT4, flags, by, None)
    }

    /// With xfs, and an agent that reaches the device by a network.
    pub fn remote_xfs(flags: &[&str], by: By) -> Result<Stage, String> {
        Stage::with(XFS, flags, by, None)
    }

    /// With xfs without reflink, and with what EXCHANGE_RANGE needs: xfsprogs before 6.10 cannot make that, so that the superblock is told by
    /// hand.
    pub fn xfs() -> Result<Stage, String> {
        Stage::new(XFS, "400M")
    }

    /// A path beside the file system: `device` and `agent` are the sockets, `key` is the host's key file.
    pub fn path(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    /// A path on the file system.
    pub fn on_it(&self, name: &str) -> PathBuf {
        self.folder.join("files").join(name)
    }

    /// Makes a file of a user, which nobody else may open.
    pub fn owned(&self, name: &str, owner: u32, data: &[u8]) -> PathBuf {
        let path = self.on_it(name);
        fs::write(&path, data).expect("written");
        chown(&path, Some(owner), Some(owner)).expect("its owner");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("its mode");
        path
    }

    /// Makes a file of so many pieces of 4 KiB, with a hole of as much behind each, so that each is an extent of its own; with what it
    /// holds.
    pub fn in_pieces(&self, name: &str, pieces: usize) -> (fs::File, Vec<u8>) {
        let file = fs::OpenOptions::new().read(true).write(true).create_new(true).open(self.on_it(name)).expect("made");
        let mut model = vec![0; pieces * 2 * PIECE_BYTES];
        for (piece, both) in model.chunks_mut(2 * PIECE_BYTES).enumerate() {
            both[..PIECE_BYTES].copy_from_slice(&contents(PIECE_BYTES, piece as u32));
            file.write_all_at(&both[..PIECE_BYTES], (piece * 2 * PIECE_BYTES) as u64).expect("written");
        }
        file.set_len(model.len() as u64).expect("its length");
        (file, model)
    }

    /// A copy of a program, where every user gets to: the folder where it was built may be in somebody's home.
    pub fn public(&self, built: &Path) -> PathBuf {
        let program = self.folder.join(built.file_name().expect("a name"));
        if !program.exists() {
            copy(built, &program);
        }
        program
    }

    /// A copy of the command, where every user gets to.
    pub fn willow(&self) -> &Path {
        &self.willow
    }

    /// The loop device.
    pub fn block(&self) -> &str {
        self.block.as_deref().unwrap_or_default()
    }

    /// The device's process.
    pub fn device_pid(&self) -> u32 {
        self.children[0].id()
    }

    /// The process by which the kernel reaches the device: while it is stopped, calls of the file system wait.
    pub fn mount_pid(&self) -> u32 {
        self.children[1].id()
    }

    fn serve(&self, listen: &str) -> (Child, String) {
        let flags = self.serve.iter().map(String::as_str);
        self.start(&flags.chain(["--listen", listen]).collect::<Vec<_>>()).expect("a device")
    }

    /// Kills the device, and starts it again at the same address.
    pub fn restart_device(&mut self) {
        self.kill_device();
        self.start_device();
    }

    /// Kills the device.
    pub fn kill_device(&mut self) {
        self.children[0].kill().expect("killed");
        self.children[0].wait().expect("an end");
    }

    /// Starts it again when it was killed, at the same address.
    pub fn start_device(&mut self) {
        let address = self.address.clone().expect("it is reached by its address");
        self.children[0] = self.serve(&address).0;
    }

    fn start(&self, arguments: &[&str]) -> Result<(Child, String), String> {
        // Another thread's child may still hold the copy open for writing, between its fork and its exec.
        let spawn = || Command::new(&self.willow).args(arguments).stdout(Stdio::piped()).spawn();
        let is_busy = |child: &std::io::Result<Child>| {
            child.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::ExecutableFileBusy)
        };
        let begin = Instant::now();
        let mut child = loop {
            match spawn() {
                busy if is_busy(&busy) && begin.elapsed() < WAIT_MAX => std::thread::sleep(Duration::from_millis(2)),
                child => break child.expect("it runs"),
            }
        };
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("its output")).read_line(&mut line).expect("a line");
        if line.is_empty() {
            let _ = child.wait();
            return Err(format!("willow {} did not become ready", arguments[0]));
        }
        Ok((child, line))
    }

    /// Starts the agent.
    pub fn start_agent(&mut self) {
        let block = format!("{}=1", self.block());
        let (device, agent, key) = (self.path("device"), self.path("agent"), self.path("key"));
        let target = self.address.as_deref().unwrap_or(&device);
        let mut arguments = vec!["agent", "--target", target, "--socket", &agent, "--block", &block, "--allow-xfs"];
        if self.address.is_some() {
            arguments.extend(["--key", &key]);
        }
        arguments.extend(self.agent_flags.iter().map(String::as_str));
        self.agent = Some(self.start(&arguments).expect("an agent").0);
    }

    /// Starts an agent that ends at a step (`willow-crasher`), in the place of the stage's; `None`: it has ended before it answered.
    pub fn crasher(&self, step: u32, how: Option<&str>) -> Option<Child> {
        let block = format!("{}=1", self.block());
        // The file system may write its superblock while the agent looks at it.
        for _ in 0..10 {
            let mut command = Command::new(crate::daemon::own("willow-crasher"));
            command.args([&self.path("device"), &self.path("agent"), &block, &self.path("agent.frozen")]);
            command.arg(step.to_string()).args(how).stdout(Stdio::piped()).stderr(Stdio::null());
            let mut child = command.spawn().expect("it runs");
            let mut line = String::new();
            BufReader::new(child.stdout.take().expect("its output")).read_line(&mut line).expect("a line");
            if line == "ready\n" {
                return Some(child);
            }
            if child.wait().expect("an end").code() == Some(willow_host::testing::AGENT_CRASHED) {
                return None;
            }
        }
        panic!("no agent");
    }

    /// Kills it.
    pub fn kill_agent(&mut self) {
        let mut agent = self.agent.take().expect("an agent");
        agent.kill().expect("killed");
        agent.wait().expect("an end");
    }

    /// Has the agent end, which gives back what it has.
    pub fn end_agent(&mut self) {
        end(&mut self.agent.take().expect("an agent"));
    }

    /// Kills the agent, and does not wait for its end.
    pub fn leave_agent(&mut self) -> Child {
        let mut agent = self.agent.take().expect("an agent");
        agent.kill().expect("killed");
        agent
    }

    /// Makes another file system by this command, on a loop device with these sectors, in the place of the one there is. Its agent is dead.
    pub fn make_anew(&mut self, make: &[&str], sector: &str) {
        let before = self.unmount();
        tool("losetup", &["-d", &before]).expect("detached");
        let after = self.attach(sector);
        tool(make[0], &[&make[1..], &[&after]].concat()).expect("a file system");
        self.mount(after);
    }

    /// Unmounts the file system, and mounts it by a loop device with another number, as after a start of the machine. Its agent is dead.
    pub fn renumber(&mut self) {
        let before = self.unmount();
        let after = self.attach("4096");
        assert_ne!(before, after);
        tool("losetup", &["-d", &before]).expect("detached");
        self.mount(after);
    }

    /// Unmounts the file system, of which the loop device stays: which that is. Descriptors that a killed agent had may take a moment to be closed.
    fn unmount(&mut self) -> String {
        assert!(self.agent.is_none());
        within_seconds("it is unmounted", || tool("umount", &[&self.path("files")]).is_ok());
        self.block.take().expect("a loop device")
    }

    /// One more loop device on the stage's disk.
    fn attach(&self, sector: &str) -> String {
        let disk = format!("{}/disk", self.path("mount"));
        let attach = ["--direct-io=on", "--sector-size", sector, "-f", "--show", &disk];
        tool("losetup", &attach).expect("a loop device")
    }

    fn mount(&mut self, block: String) {
        tool("mount", &["-o", "noatime", &block, &self.path("files")]).expect("mounted");
        self.block = Some(block);
    }
}

/// The stage's file system is frozen while this lives. Nobody who waits for it can be killed meanwhile.
pub struct Frozen(String);

impl Frozen {
    /// Freezes it.
    pub fn new(stage: &Stage) -> Frozen {
        let files = stage.path("files");
        tool("timeout", &["300", "fsfreeze", "--freeze", &files]).expect("frozen");
        Frozen(files)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        tool("fsfreeze", &["--unfreeze", &self.0]).expect("thawed");
    }
}

/// The stage, or a line that says why the test is skipped; in continuous integration a failure.
pub fn or_skip(test: &str, stage: Result<Stage, String>) -> Option<Stage> {
    match stage {
        Ok(stage) => Some(stage),
        Err(why) => {
            skip(test, &why);
            None
        }
    }
}
