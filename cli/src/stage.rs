//! A device in memory with a real ext4 on its block namespace, by FUSE and a loop device, and an agent beside it: what the demo of
//! protection and the benchmark of direct access stand on.
//!
//! Invariant: mounts, loop device, processes and files go when it is dropped.

use crate::failure::{Context, Outcome, fail};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a process may take to be ready, or a file to thaw.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Runs a program; what it printed, or what it said was wrong.
pub fn tool(program: &str, arguments: &[&str]) -> Outcome<String> {
    let output = Command::new(program).args(arguments).output();
    let output = output.context(|| format!("cannot run {program}: is it installed?"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        fail!("{program} {} failed: {}", arguments.join(" "), said.trim().replace('\n', " / "));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// How the mount and the agent reach the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// By its socket.
    Memory,
    /// By NVMe/TCP, with a key.
    Network,
}

/// The stage: what is to be undone at the end, the last first.
pub struct Stage {
    /// Of all of it.
    pub folder: PathBuf,
    /// A copy of this program, where other users get to.
    pub program: PathBuf,
    /// In the order in which they were started: the device first.
    pub children: Vec<Child>,
    /// The loop device.
    pub block: Option<String>,
    /// Of the story that is told on it.
    pub step: u32,
    /// Flags that say where the device is.
    target: Vec<String>,
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = tool("umount", &["-l", &self.path("files")]);
        if let Some(block) = &self.block {
            let _ = tool("losetup", &["-d", block]);
        }
        for mut child in self.children.drain(..).rev() {
            let _ = tool("kill", &["-TERM", &child.id().to_string()]);
            let begin = Instant::now();
            while matches!(child.try_wait(), Ok(None)) && begin.elapsed() < PATIENCE / 3 {
                std::thread::sleep(Duration::from_millis(20));
            }
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = tool("umount", &["-l", &self.path("mount")]);
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A command with the flags that say where the device is.
fn with<'a>(command: &[&'a str], target: &'a [String]) -> Vec<&'a str> {
    command.iter().copied().chain(target.iter().map(String::as_str)).collect()
}

impl Stage {
    /// Sets it up but for the agent; `serve` are more arguments for the device.
    pub fn new(name: &str, serve: &[&str]) -> Outcome<Stage> {
        let own = std::env::current_exe().context(|| "cannot find this program".to_owned())?;
        Stage::of(&own, name, serve)
    }

    /// The same, with a device that the mount and the agent reach so.
    pub fn by(way: Way, name: &str, serve: &[&str]) -> Outcome<Stage> {
        let own = std::env::current_exe().context(|| "cannot find this program".to_owned())?;
        Stage::set_up(&own, way, name, serve)
    }

    /// The same with this build of the program.
    pub fn of(program: &Path, name: &str, serve: &[&str]) -> Outcome<Stage> {
        Stage::set_up(program, Way::Memory, name, serve)
    }

    fn set_up(program: &Path, way: Way, name: &str, serve: &[&str]) -> Outcome<Stage> {
        let folder = std::env::temp_dir().join(format!("willow-{name}-{}", std::process::id()));
        let mut stage = Stage {
            program: folder.join("willow"),
            folder,
            children: Vec::new(),
            block: None,
            step: 0,
            target: Vec::new(),
        };
        for name in ["mount", "files"] {
            fs::create_dir_all(stage.folder.join(name)).context(|| format!("cannot make {}", stage.path(name)))?;
        }
        let copied = fs::set_permissions(&stage.folder, fs::Permissions::from_mode(0o755))
            .and_then(|()| fs::copy(program, &stage.program));
        copied.context(|| format!("cannot fill {}", stage.folder.display()))?;
        let (device, mount, files) = (stage.path("device"), stage.path("mount"), stage.path("files"));
        let common = ["serve", "--ram", "--listen", "127.0.0.1:0", "--log", "error", "--socket", &device];
        let key = stage.path("key");
        let demand: &[&str] = if way == Way::Network { &["--host-key", &key] } else { &[] };
        if way == Way::Network {
            tool(&stage.program.display().to_string(), &["key", "new", &key])?;
        }
        let ready = stage.start(&[&common, serve, demand].concat())?;
        stage.target = match way {
            Way::Memory => vec!["--target".to_owned(), device],
            Way::Network => {
                let listen = ready.split_whitespace().find_map(|word| word.strip_prefix("listen="));
                let Some(address) = listen else { fail!("the device does not say where it listens: {ready}") };
                ["--target", address, "--key", &key].map(ToOwned::to_owned).to_vec()
            }
        };
        let target = stage.target.clone();
        stage.start(&with(&["mount", &mount], &target))?;
        let disk = format!("{mount}/disk");
        let block = tool("losetup", &["--direct-io=on", "-f", "--show", &disk])?;
        stage.block = Some(block.clone());
        // Blocks of the device's size or larger, whatever the default is: files with others are not served directly.
        tool("mkfs.ext4", &["-q", "-F", "-b", "4096", "-E", "lazy_itable_init=0,lazy_journal_init=0", &block])?;
        tool("mount", &["-o", "noatime", &block, &files])?;
        Ok(stage)
    }

    /// Starts the agent.
    pub fn start_agent(&mut self) -> Outcome<()> {
        let block = format!("{}=1", self.block.clone().unwrap_or_default());
        let (agent, target) = (self.path("agent"), self.target.clone());
        self.start(&with(&["agent", "--socket", &agent, "--block", &block], &target)).map(|_| ())
    }

    /// A path on the stage: `device` and `agent` are the sockets, `files` the file system.
    pub fn path(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    /// Starts a command of this program that prints a line once it is ready; the line.
    pub fn start(&mut self, arguments: &[&str]) -> Outcome<String> {
        let mut child = Command::new(&self.program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context(|| format!("cannot start willow {}", arguments[0]))?;
        let output = child.stdout.take();
        self.children.push(child);
        let mut line = String::new();
        if let Some(output) = output {
            let read = BufReader::new(output).read_line(&mut line);
            read.context(|| format!("cannot read what willow {} says", arguments[0]))?;
        }
        if line.is_empty() {
            fail!("willow {} did not become ready", arguments[0]);
        }
        Ok(line)
    }
}
