//! A served device for tests, and commands against it. Each test file includes it as a module.
#![allow(dead_code, missing_docs)]

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// The command under test.
pub fn willow() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_willow"));
    command.env_remove("WILLOW_LOG").env_remove("WILLOW_KEY");
    command
}

/// Makes a folder that was not there: processes of another namespace have the same numbers, and so had those of a run that was killed.
fn fresh(within: &std::path::Path, name: &str) -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let path = || within.join(format!("{name}-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed)));
    let is_there = |error: &std::io::Error| error.kind() == std::io::ErrorKind::AlreadyExists;
    loop {
        let path = path();
        match std::fs::create_dir(&path) {
            Err(error) if is_there(&error) => {}
            made => break made.map(|()| path).unwrap(),
        }
    }
}

/// A folder that every user may enter, with a copy of the command: a build folder may be in somebody's home.
pub struct Public(PathBuf);

impl Public {
    pub fn new() -> Self {
        use std::os::unix::fs::PermissionsExt;
        let folder = fresh(&std::env::temp_dir(), "willow-public");
        std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o755)).unwrap();
        // By another process: children that other tests begin meanwhile would inherit a descriptor that writes it, and keep it from being run (ETXTBSY).
        let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_willow")).arg(folder.join("willow")).status();
        assert!(copied.unwrap().success());
        Public(folder)
    }

    pub fn willow(&self) -> Command {
        let mut command = Command::new(self.0.join("willow"));
        command.env_remove("WILLOW_LOG").env_remove("WILLOW_KEY");
        command
    }

    pub fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Public {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A folder of its own for a test, gone afterwards.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new() -> Self {
        Folder(fresh(&PathBuf::from(env!("CARGO_TARGET_TMPDIR")), "cli"))
    }

    pub fn file(&self, name: &str, contents: &[u8]) -> String {
        let path = self.0.join(name);
        std::fs::write(&path, contents).unwrap();
        path.display().to_string()
    }

    pub fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A device process.
pub struct Served {
    pub child: Child,
    pub ready: String,
    pub address: String,
}

impl Served {
    pub fn start(arguments: &[&str]) -> Self {
        Self::spawn(&mut willow(), arguments)
    }

    /// The same run by another user; for root.
    pub fn start_as(user: u32, program: &Public, arguments: &[&str]) -> Self {
        use std::os::unix::process::CommandExt;
        Self::spawn(program.willow().uid(user).gid(user).current_dir("/"), arguments)
    }

    fn spawn(command: &mut Command, arguments: &[&str]) -> Self {
        let mut child = command
            .args(["serve", "--listen", "127.0.0.1:0", "--log", "error"])
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut ready).unwrap();
        let address =
            ready.split_whitespace().find_map(|word| word.strip_prefix("listen=")).unwrap_or_default().to_owned();
        assert!(!address.is_empty(), "no ready line: {ready:?}");
        Served { child, ready, address }
    }

    pub fn signal(&self, signal: &str) {
        assert!(Command::new("kill").args([signal, &self.child.id().to_string()]).status().unwrap().success());
    }

    pub fn end(mut self) {
        self.signal("-TERM");
        assert!(self.child.wait().unwrap().success(), "a clean end has status 0");
    }

    pub fn run(&self, arguments: &[&str]) -> Output {
        self.run_with(arguments, b"")
    }

    pub fn run_with(&self, arguments: &[&str], input: &[u8]) -> Output {
        let mut child = willow()
            .args(arguments)
            .args(["--target", &self.address])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(input).unwrap();
        child.wait_with_output().unwrap()
    }

    /// Standard output of a command that must succeed and say nothing on standard error.
    pub fn ok(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && error.is_empty(), "{arguments:?}: {error}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// The one line of a command that must fail.
    pub fn fails(&self, arguments: &[&str]) -> String {
        failure(arguments, &self.run(arguments))
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Checks the form of a failure: status 1, one line.
pub fn failure(arguments: &[&str], output: &Output) -> String {
    let error = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {error}");
    assert_eq!(error.lines().count(), 1, "{arguments:?}: {error}");
    assert!(error.starts_with("willow: ") && error.ends_with('\n'), "{error}");
    error
}

/// The one line of a command, without a device, that must fail.
pub fn fails(arguments: &[&str]) -> String {
    failure(arguments, &willow().args(arguments).output().unwrap())
}
