//! `willow serve` as a process of its own: started, asked, killed, started again.
//!
//! What always holds: a started daemon has said that it is ready; one that is dropped is dead. Each wait has a bound.
//!
//! Who may call it: tests that need the real command.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::scratch::Scratch;

/// Longest wait for the line `ready`.
const READY_WAIT_MAX: Duration = Duration::from_secs(300);
/// Longest wait for a daemon that was asked to end.
const STOP_WAIT_MAX: Duration = Duration::from_secs(120);

/// A daemon with a media folder of its own.
pub struct Daemon {
    child: Option<Child>,
    arguments: Vec<String>,
    scratch: Scratch,
    address: SocketAddr,
    addresses: Vec<SocketAddr>,
    nqn: String,
}

impl Daemon {
    /// Starts a fresh device on an empty media folder and a free port of the loopback; `arguments` go to `willow serve`. With `--config` among
    /// them it listens where that file says.
    ///
    /// # Panics
    /// When it does not become ready.
    pub fn start(arguments: &[&str]) -> Self {
        let scratch = Scratch::new("daemon").expect("a temporary folder");
        let mut daemon = Self {
            child: None,
            arguments: arguments.iter().map(ToString::to_string).collect(),
            scratch,
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            addresses: Vec::new(),
            nqn: String::new(),
        };
        daemon.launch();
        daemon
    }

    /// The address it listens at; the same after [`Daemon::restart`].
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// All addresses that it listens at.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The subsystem's name.
    pub fn nqn(&self) -> &str {
        &self.nqn
    }

    /// Its process, to send signals to.
    pub fn process_id(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// The folder of the media files.
    pub fn media(&self) -> PathBuf {
        self.scratch.path().join("media")
    }

    /// SIGKILL, and waits until it is gone.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// SIGTERM; hands back how it ended.
    ///
    /// # Panics
    /// When it does not run, or does not end.
    pub fn stop(&mut self) -> ExitStatus {
        let mut child = self.child.take().expect("the daemon runs");
        let asked = Command::new("kill").args(["-TERM", &child.id().to_string()]).status();
        assert!(asked.is_ok_and(|status| status.success()), "no signal could be sent");
        let deadline = Instant::now() + STOP_WAIT_MAX;
        loop {
            if let Some(status) = child.try_wait().expect("the daemon can be waited for") {
                return status;
            }
            if Instant::now() > deadline {
                let _ = child.kill();
                let _ = child.wait();
                panic!("willow serve did not end within {STOP_WAIT_MAX:?} of SIGTERM\n{}", self.log());
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Starts it again on the same media folder and the same port, after [`Daemon::kill`] or [`Daemon::stop`].
    ///
    /// # Panics
    /// When it does not become ready.
    pub fn restart(&mut self) {
        assert!(self.child.is_none(), "the daemon still runs");
        self.launch();
    }

    /// Runs another command of `willow` against it, and hands back what it printed.
    ///
    /// # Panics
    /// When the command fails.
    pub fn command(&self, arguments: &[&str]) -> String {
        let output = Command::new(binary())
            .args(arguments)
            .args(["--target", &self.address.to_string()])
            .stdin(Stdio::null())
            .output()
            .expect("willow runs");
        assert!(
            output.status.success(),
            "willow {}: {}{}",
            arguments.join(" "),
            String::from_utf8_lossy(&output.stderr),
            self.log()
        );
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// All that it logged since it was first started.
    pub fn log(&self) -> String {
        fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    fn log_path(&self) -> PathBuf {
        self.scratch.path().join("log")
    }

    fn launch(&mut self) {
        let listen = vec!["--listen".to_owned(), self.address.to_string()];
        let log = fs::OpenOptions::new().create(true).append(true).open(self.log_path()).expect("a log file");
        let mut child = Command::new(binary())
            .arg("serve")
            .args(if self.arguments.iter().any(|one| one == "--config") { Vec::new() } else { listen })
            .arg("--media")
            .arg(self.media())
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .expect("willow runs");
        let output = child.stdout.take().expect("standard output is a pipe");
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        self.child = Some(child);
        let Ok(line) = lines.recv_timeout(READY_WAIT_MAX) else {
            self.kill();
            panic!("willow serve did not become ready\n{}", self.log());
        };
        let field = |name: &str| line.split_whitespace().find_map(|word| word.strip_prefix(name));
        let ready = line.starts_with("ready ");
        let listen: Option<Result<Vec<SocketAddr>, _>> =
            field("listen=").map(|all| all.split(',').map(str::parse).collect());
        let (Some(nqn), Some(Ok(addresses)), true) = (field("nqn="), listen, ready) else {
            panic!("willow serve said {line:?} instead of being ready");
        };
        assert!(self.nqn.is_empty() || self.nqn == nqn, "the subsystem's name changed from {} to {nqn}", self.nqn);
        self.nqn = nqn.to_owned();
        self.address = addresses[0];
        self.addresses = addresses;
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
        if thread::panicking() {
            eprintln!("--- log of willow serve\n{}", self.log());
        }
    }
}

/// The command under test: the one of `WILLOW_BINARY`, else the one that cargo built beside this test.
///
/// # Panics
/// When there is none.
pub fn binary() -> PathBuf {
    std::env::var_os("WILLOW_BINARY").map_or_else(|| built("willow", "willow-cli"), PathBuf::from)
}

/// A program of this package, which cargo builds with its tests.
pub fn own(name: &str) -> PathBuf {
    built(name, "willow-tests")
}

fn built(name: &str, package: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a test has a path");
    // target/PROFILE/deps/TEST: programs are target/PROFILE/NAME.
    let path = test.parent().and_then(Path::parent).map(|folder| folder.join(name));
    match path {
        Some(path) if path.exists() => path,
        _ => panic!("there is no {name} beside {}: run `cargo build --package {package}` first", test.display()),
    }
}
