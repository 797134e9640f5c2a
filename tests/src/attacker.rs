//! `willow-attacker` as another user: how it is started, what it tells, and what that comes to as docs/direct-ways.md has it.

use crate::daemon;
use crate::stage::{Stage, WAIT_MAX};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::Receiver;

/// The attacker as a user.
pub fn attacker(stage: &Stage, user: u32, file: &Path, what: &str) -> Command {
    let mut command = Command::new(stage.public(&daemon::own("willow-attacker")));
    // Where the agent reaches it by a network, it says how.
    let device = if stage.address.is_some() { "-".to_owned() } else { stage.path("device") };
    command.args([&device, &stage.path("agent"), &file.display().to_string(), what]);
    command.uid(user).gid(user).current_dir("/").stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

/// A child with its output line by line.
pub struct Talking {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Talking {
    /// Starts it.
    pub fn new(command: &mut Command) -> Talking {
        let mut child = command.spawn().expect("it runs");
        let output = BufReader::new(child.stdout.take().expect("its output"));
        Talking { input: child.stdin.take(), output, child }
    }

    /// Its next line; nothing at its end.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("a line");
        line
    }

    /// Writes a line to it.
    pub fn tell(&mut self) {
        self.input.as_mut().expect("its input").write_all(b"\n").expect("it listens");
    }

    /// Writes a line to it, the last one.
    pub fn go_on(&mut self) {
        self.tell();
        self.input = None;
    }

    /// True where it has ended well.
    pub fn has_succeeded(mut self) -> bool {
        self.input = None;
        self.child.wait().is_ok_and(|status| status.success())
    }
}

impl Drop for Talking {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A process that writes its file past the kernel without end. It ends, with the file, when this does.
pub struct Writer {
    child: Child,
    _input: Option<ChildStdin>,
    lines: Receiver<String>,
    /// Its file.
    pub file: PathBuf,
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Writer {
    /// Of a user, in a folder of the user's own on the stage's file system. It has written when this returns.
    pub fn start(stage: &Stage, user: u32) -> Writer {
        let folder = stage.on_it(&format!("of-{user}"));
        std::fs::create_dir_all(&folder).expect("a folder");
        std::os::unix::fs::chown(&folder, Some(user), Some(user)).expect("its owner");
        let file = folder.join("file");
        let mut child = attacker(stage, user, &file, "writer").spawn().expect("it runs");
        let output = BufReader::new(child.stdout.take().expect("its output"));
        let (send, lines) = std::sync::mpsc::channel();
        std::thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| send.send(line)));
        let writer = Writer { _input: child.stdin.take(), child, lines, file };
        assert!(writer.line().starts_with("written"));
        writer
    }

    fn line(&self) -> String {
        self.lines.recv_timeout(WAIT_MAX).expect("a line")
    }

    /// What it says when it cannot write any more.
    pub fn last_line(&self) -> String {
        std::iter::repeat_with(|| self.line()).find(|line| !line.starts_with("written")).expect("an end")
    }
}

/// What came of a way for one user.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Seen {
    alone: Option<String>,
    direct: Option<String>,
}

/// What came of all ways, for a user and for root.
#[derive(Debug, Default)]
pub struct Found {
    by_name: BTreeMap<String, [Seen; 2]>,
}

impl Found {
    /// Notes a line of the attacker's. The error is what no way may come to.
    pub fn note(&mut self, line: &str, is_root: bool) -> Result<(), String> {
        let parts: Vec<&str> = line.trim_end().split('\t').collect();
        let [kind, name, said, verdict] = parts[..] else { return Err(format!("the attacker says {line:?}")) };
        let outcome = match (kind, verdict, said) {
            ("alone", ..) => said,
            (_, "same", "done") => "nothing",
            (_, "same", errno) => errno,
            (_, "shared", _) => "shares",
            (_, "refused" | "revoked", _) => verdict,
            _ => return Err(format!("{name}: {said}: {verdict}")),
        };
        let ends = [", opened before", ", opened after", ", to read"];
        let way = ends.iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
        let seen = &mut self.by_name.entry(way.to_owned()).or_default()[usize::from(is_root)];
        let place = if kind == "alone" { &mut seen.alone } else { &mut seen.direct };
        match place.replace(outcome.to_owned()) {
            Some(other) if other != outcome => Err(format!("{name}: {outcome}, and {other} before")),
            _ => Ok(()),
        }
    }

    /// For each way what docs/direct-ways.md has to say: what it comes to alone, and what when the file is direct.
    pub fn cells(&self) -> BTreeMap<&str, String> {
        let text = |seen: &Option<String>| seen.clone().unwrap_or_else(|| crate::ways::NOT_TRIED.to_owned());
        let side = |user: String, root: String| if user == root { user } else { format!("{user}, root {root}") };
        let cell = |[user, root]: &[Seen; 2]| {
            let alone = side(text(&user.alone), text(&root.alone));
            let direct = side(text(&user.direct), text(&root.direct));
            if alone == direct { alone } else { format!("{alone} → {direct}") }
        };
        self.by_name.iter().map(|(name, seen)| (name.as_str(), cell(seen))).collect()
    }
}
