//! A Debian kernel under QEMU as host: boots the guest, runs shell scripts in it, hands back what they printed.
//!
//! What always holds: a guest is thrown away after use (its disk is a snapshot), needs no root, and reaches this
//! machine's loopback as [`HOST_ADDRESS`]. Every wait has a bound. A guest whose [`Guest`] is dropped is killed.
//!
//! Who may call it: tests and the `willow-guest` tool. Where a guest cannot run, tests say so by [`Guest::boot_or_skip`].

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::scratch::Scratch;
pub use willow_skip::skip;

/// The address at which the guest reaches this machine's loopback (QEMU's user networking).
pub const HOST_ADDRESS: &str = "10.0.2.2";
/// Longest wait for the guest to say that it is ready. An idle machine needs 7 s.
pub const BOOT_WAIT_MAX: Duration = Duration::from_secs(600);
/// How long a script may run unless it is told otherwise ([`Guest::run_for`]).
pub const SCRIPT_WAIT: Duration = Duration::from_secs(600);
/// Added to a script's time before the host gives up on the guest itself.
const SCRIPT_GRACE: Duration = Duration::from_secs(30);
/// Most output that is taken from one script.
const SCRIPT_OUTPUT_BYTES_MAX: usize = 64 << 20;
/// Exit status of `build-image` when this machine cannot have a guest.
const IMAGE_UNAVAILABLE: i32 = 75;
const QEMU: &str = "qemu-system-x86_64";

/// Shell functions for every script of a guest.
pub const FUNCTIONS: &str = r#"
# eventually SECONDS COMMAND...: waits until the command succeeds.
eventually() {
    # So many seconds are enough on a machine at rest.
    local deadline=$((SECONDS + 4 * $1)); shift
    until "$@" > /dev/null 2>&1; do
        if [ $SECONDS -ge $deadline ]; then echo "not within the time: $*"; "$@"; return 1; fi
        sleep 0.1
    done
}
controller() { basename "$(grep -l "^$NQN$" /sys/class/nvme/nvme*/subsysnqn | head -n 1 | xargs dirname)"; }
# The daemon that makes the kernel's TLS handshakes, with the keyring where the kernel looks for keys. Until it has told the kernel that it
# is there, which nothing shows, a connection by TLS fails (ESRCH): the first one is tried until it succeeds.
serve_handshakes() {
    modprobe tls
    printf '[debug]\nloglevel=1\ntls=1\n[authenticate]\nkeyrings=.nvme\n' > /tmp/tlshd.conf
    (tlshd -s -c /tmp/tlshd.conf > /tmp/tlshd.log 2>&1 < /dev/null &)
}
# Linux numbers the devices of a subsystem in the order in which it finds its namespaces, which is any: nvme0n2 may be
# namespace 1. block NSID and generic NSID print the path of a namespace's devices, or fail.
block() {
    local folder
    for folder in /sys/block/nvme*; do
        case ${folder##*/} in nvme*c*n*) continue ;; esac
        if [ -b /dev/"$(basename "$folder")" ] && [ "$(cat "$folder"/nsid)" = "$1" ]; then
            echo /dev/"$(basename "$folder")"
            return
        fi
    done
    return 1
}
generic() {
    local path
    for path in /dev/ng*; do
        if [ -c "$path" ] && nvme get-ns-id "$path" | grep -q "namespace-id:$1$"; then
            echo "$path"
            return
        fi
    done
    return 1
}
gone() { ! "$@"; }
# Where the devices were found by an earlier step.
[ ! -e /tmp/devices ] || . /tmp/devices
live() { [ "$(cat /sys/class/nvme/"$(controller)"/state)" = live ]; }
# Key "alpha" in CDW2-3, five bytes.
ALPHA="--cdw2=0x68706c61 --cdw3=0x61"
"#;

/// Why there is no guest, or no answer from it.
#[derive(Debug, thiserror::Error)]
pub enum GuestError {
    /// This machine cannot run guests: a tool or the packages are missing.
    #[error("{0}")]
    Unavailable(String),
    /// The guest or its image broke.
    #[error("{0}")]
    Failed(String),
    /// The operating system refused something.
    #[error("{0}: {1}")]
    Io(&'static str, io::Error),
}

/// What a guest is made of.
#[derive(Debug, Clone)]
pub struct GuestOptions {
    /// Virtual processors; Linux makes one NVMe/TCP I/O queue for each.
    pub processors: u32,
    /// Memory in MiB.
    pub memory_mib: u32,
    /// Where QEMU writes all packets of the guest's network interface, in pcap format.
    pub capture: Option<PathBuf>,
    /// A folder whose files the guest has on a second disk, an ext4 to be mounted from /dev/vdb.
    pub folder: Option<PathBuf>,
    /// The small image with the newest kernel that the suite's backports have.
    pub newer: bool,
}

impl Default for GuestOptions {
    fn default() -> Self {
        Self { processors: 2, memory_mib: 768, capture: None, folder: None, newer: false }
    }
}

/// What a script left behind.
#[derive(Debug, Clone)]
pub struct Output {
    /// Exit status; 124 or 137 when its time was over.
    pub status: i32,
    /// Standard output and standard error in the order written.
    pub bytes: Vec<u8>,
}

impl Output {
    /// What it printed as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}

/// A booted guest.
pub struct Guest {
    qemu: Child,
    port: BufReader<UnixStream>,
    scratch: Scratch,
}

impl Guest {
    /// Builds the image if it is not there yet, boots it and waits until it takes scripts.
    pub fn boot(options: &GuestOptions) -> Result<Self, GuestError> {
        if let Some(reason) = no_qemu() {
            return Err(GuestError::Unavailable(reason));
        }
        let image = image(options.newer)?;
        let scratch = Scratch::new("guest").map_err(|error| GuestError::Io("temporary folder", error))?;
        let socket = scratch.path().join("port");
        let listener = UnixListener::bind(&socket).map_err(|error| GuestError::Io("guest's port", error))?;
        listener.set_nonblocking(true).map_err(|error| GuestError::Io("guest's port", error))?;

        let mut command = Command::new(QEMU);
        // KVM answers on some machines where a guest then hangs: emulation is the default, the variable overrides it.
        match std::env::var("WILLOW_GUEST_ACCELERATOR").as_deref() {
            Ok("kvm") => command.args(["-accel", "kvm", "-cpu", "host"]),
            // One host thread for all virtual processors: it costs no more processor time than one each, and kernel text
            // that is patched while another processor runs it has crashed guests otherwise.
            _ => command.args(["-accel", "tcg,thread=single", "-cpu", "max,la57=off"]),
        };
        command
            .args(["-machine", "q35", "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"])
            .args(["-smp", &options.processors.to_string(), "-m", &options.memory_mib.to_string()])
            .arg("-kernel")
            .arg(image.join("vmlinuz"))
            .arg("-initrd")
            .arg(image.join("initramfs"))
            .args(["-append", "console=ttyS0 loglevel=6 mitigations=off audit=0 apparmor=0 panic=-1 8250.nr_uarts=1"])
            .arg("-drive")
            .arg(format!("file={},format=raw,if=virtio,snapshot=on,cache=unsafe", image.join("root.ext4").display()))
            .args(["-netdev", "user,id=network", "-device", "virtio-net-pci,netdev=network"])
            .arg("-chardev")
            .arg(format!("socket,id=port,path={}", socket.display()))
            .args(["-device", "virtio-serial-pci", "-device", "virtserialport,chardev=port,name=willow.guest"])
            .args(["-device", "virtio-rng-pci"])
            .arg("-serial")
            .arg(format!("file:{}", scratch.path().join("console").display()));
        if let Some(folder) = &options.folder {
            let disk = scratch.path().join("folder.ext4");
            disk_of(folder, &disk)?;
            command.arg("-drive").arg(format!("file={},format=raw,if=virtio,snapshot=on,cache=unsafe", disk.display()));
        }
        if let Some(capture) = &options.capture {
            command.arg("-object").arg(format!("filter-dump,id=capture,netdev=network,file={}", capture.display()));
        }
        let errors = fs::File::create(scratch.path().join("qemu")).map_err(|error| GuestError::Io("log", error))?;
        let mut qemu = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(errors)
            .spawn()
            .map_err(|error| GuestError::Io(QEMU, error))?;

        let deadline = Instant::now() + BOOT_WAIT_MAX;
        let stream = loop {
            match listener.accept() {
                Ok((stream, _)) => break stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(GuestError::Io("guest's port", error)),
            }
            if Instant::now() > deadline || qemu.try_wait().ok().flatten().is_some() {
                let _ = qemu.kill();
                let _ = qemu.wait();
                let said = fs::read_to_string(scratch.path().join("qemu")).unwrap_or_default();
                return Err(GuestError::Failed(format!("{QEMU} did not start: {}", said.trim())));
            }
            thread::sleep(Duration::from_millis(10));
        };
        let mut guest = Self { qemu, port: BufReader::new(stream), scratch };
        guest.receive(BOOT_WAIT_MAX)?;
        Ok(guest)
    }

    /// As [`Guest::boot`]. Where guests cannot run, prints that `test` was skipped and why, and hands back nothing;
    /// in continuous integration that is a failure.
    ///
    /// # Panics
    /// When the guest should run but does not.
    pub fn boot_or_skip(test: &str, options: &GuestOptions) -> Option<Self> {
        match Self::boot(options) {
            Ok(guest) => Some(guest),
            Err(GuestError::Unavailable(reason)) => {
                skip(test, &reason);
                None
            }
            Err(error) => panic!("{test}: {error}"),
        }
    }

    /// Runs a bash script as root, within [`SCRIPT_WAIT`].
    pub fn run(&mut self, script: &str) -> Result<Output, GuestError> {
        self.run_for(SCRIPT_WAIT, script)
    }

    /// Runs a bash script as root; one that takes longer than `time` is killed in the guest and has status 124 or 137.
    pub fn run_for(&mut self, time: Duration, script: &str) -> Result<Output, GuestError> {
        let message = format!("{} {}\n{script}", script.len(), time.as_secs().max(1));
        self.port
            .get_mut()
            .write_all(message.as_bytes())
            .map_err(|error| self.broken(format!("the guest takes no script: {error}")))?;
        self.receive(time + SCRIPT_GRACE)
    }

    /// Runs a script with `set -eu` that must succeed, and hands back what it printed.
    ///
    /// # Panics
    /// With the script and all of its output when it fails.
    pub fn check(&mut self, script: &str) -> String {
        self.check_for(SCRIPT_WAIT, script)
    }

    /// As [`Guest::check`], within `time`.
    ///
    /// # Panics
    /// With the script and all of its output when it fails.
    pub fn check_for(&mut self, time: Duration, script: &str) -> String {
        match self.run_for(time, &format!("set -euo pipefail\n{script}")) {
            Ok(output) if output.status == 0 => output.text(),
            Ok(output) => panic!(
                "in the guest, status {}:\n{script}\n--- it printed:\n{}\n--- the guest's kernel, last lines:\n{}",
                output.status,
                output.text(),
                self.console_tail()
            ),
            Err(error) => panic!("{error}\n--- while running:\n{script}"),
        }
    }

    /// All that the guest's kernel printed on its console.
    pub fn console(&self) -> String {
        let bytes = fs::read(self.scratch.path().join("console")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn console_tail(&self) -> String {
        let console = self.console();
        let lines: Vec<&str> = console.lines().collect();
        lines[lines.len().saturating_sub(25)..].join("\n")
    }

    fn receive(&mut self, time: Duration) -> Result<Output, GuestError> {
        self.port.get_ref().set_read_timeout(Some(time)).map_err(|error| GuestError::Io("guest's port", error))?;
        let mut header = String::new();
        match self.port.read_line(&mut header) {
            Ok(0) => return Err(self.broken("the guest is gone".to_owned())),
            Ok(_) => {}
            Err(error) => return Err(self.broken(format!("no answer from the guest within {time:?}: {error}"))),
        }
        let mut words = header.split_whitespace();
        let (Some(Ok(status)), Some(Ok(length))) =
            (words.next().map(str::parse::<i32>), words.next().map(str::parse::<usize>))
        else {
            return Err(self.broken(format!("the guest answers with nonsense: {header:?}")));
        };
        if length > SCRIPT_OUTPUT_BYTES_MAX {
            return Err(self.broken(format!("a script printed {length} bytes")));
        }
        let mut bytes = vec![0; length];
        self.port.read_exact(&mut bytes).map_err(|error| self.broken(format!("output cut short: {error}")))?;
        Ok(Output { status, bytes })
    }

    fn broken(&self, what: String) -> GuestError {
        GuestError::Failed(format!("{what}\n--- the guest's kernel, last lines:\n{}", self.console_tail()))
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}

/// Makes an ext4 with a folder's files, without root.
fn disk_of(folder: &Path, disk: &Path) -> Result<(), GuestError> {
    let mut bytes = 16 << 20;
    for entry in fs::read_dir(folder).map_err(|error| GuestError::Io("the guest's folder", error))? {
        let about = entry.and_then(|entry| entry.metadata());
        bytes += about.map_err(|error| GuestError::Io("the guest's folder", error))?.len() * 11 / 10;
    }
    let mut command = Command::new("mke2fs");
    // Where ordinary users' paths often do not lead.
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{path}:/usr/sbin:/sbin")).args(["-q", "-t", "ext4", "-O", "^has_journal", "-d"]);
    let made = command.arg(folder).arg(disk).arg(format!("{}k", bytes / 1024)).output();
    match made {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(GuestError::Failed(format!("mke2fs: {}", String::from_utf8_lossy(&output.stderr).trim()))),
        Err(error) => Err(GuestError::Unavailable(format!("mke2fs (e2fsprogs) does not run: {error}"))),
    }
}

fn no_qemu() -> Option<String> {
    let found = Command::new(QEMU).arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).status();
    match found {
        Ok(status) if status.success() => None,
        Ok(status) => Some(format!("{QEMU} does not run ({status})")),
        Err(_) => Some(format!("{QEMU} is not installed (scripts/bootstrap --tests installs it)")),
    }
}

/// The folder of the image, built from packages when the recipe changed or was never built.
fn image(newer: bool) -> Result<PathBuf, GuestError> {
    let builder = Path::new(env!("CARGO_MANIFEST_DIR")).join("guest/build-image");
    let output = Command::new(&builder)
        .args(newer.then_some("newer"))
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .output()
        .map_err(|error| GuestError::Io("tests/guest/build-image", error))?;
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    match output.status.code() {
        Some(0) => {}
        Some(IMAGE_UNAVAILABLE) => {
            return Err(GuestError::Unavailable(said.lines().last().unwrap_or("no image").to_owned()));
        }
        _ => return Err(GuestError::Failed(format!("tests/guest/build-image failed:\n{said}"))),
    }
    let folder = String::from_utf8_lossy(&output.stdout).lines().last().unwrap_or_default().to_owned();
    Ok(PathBuf::from(folder))
}
