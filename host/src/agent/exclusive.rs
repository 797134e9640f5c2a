//! The journal's lock: one agent, or one `--thaw`, works by a journal at a time.
//!
//! What always holds:
//! - the lock is on a file of its own beside the journal (`.lock`), in which its holder says which process it is. Only the agent's user can open
//!   the file, so that nobody else holds the lock;
//! - it ends with this value, or with the process. A process that was killed may not end for as long as a user keeps an inode busy that a thread
//!   of it waits for: its file is replaced, by whoever holds the lock of `.lock.turn` for that. What that thread still does comes before what
//!   anybody does with that inode later;
//! - who holds a lock of a file that is not at its path any more holds nothing.

use rustix::fs::{FlockOperation, flock};
use std::fs::{File, Permissions};
use std::io::{Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, Instant};
use willow_shm::process::{is_ending, started};

/// How long an agent that was killed may need to be gone.
const PATIENCE: Duration = Duration::from_secs(2);
/// Wait between two tries.
const AGAIN: Duration = Duration::from_millis(20);

/// Exclusive use of a journal.
pub struct Exclusive(File);

impl Exclusive {
    /// Of the journal with this path. Waits a moment for one who is about to end. The error is a sentence.
    pub fn take(journal: &Path) -> Result<Exclusive, String> {
        let path = super::journal::beside(journal, ".lock");
        let said = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let begun = Instant::now();
        loop {
            if let Some(taken) = try_take(&path).map_err(|error| said(&error))? {
                return Ok(taken);
            }
            if begun.elapsed() >= PATIENCE {
                let why =
                    "the list of frozen files is in use: end its agent first (SIGTERM), whether or not that answers";
                return Err(said(&why));
            }
            std::thread::sleep(AGAIN);
        }
    }
}

/// `None`: another process has it.
fn try_take(path: &Path) -> std::io::Result<Option<Exclusive>> {
    // While this one has its turn nobody else replaces the file.
    let Some(_turn) = locked(&super::journal::beside(path, ".turn"))? else { return Ok(None) };
    if let Some(taken) = locked(path)? {
        return taken.tell_who().map(Some);
    }
    if !is_left(path)? {
        return Ok(None);
    }
    std::fs::remove_file(path)?;
    locked(path)?.map(Exclusive::tell_who).transpose()
}

/// With the lock of the file at a path, which is made where there is none; `None`: another process has it.
fn locked(path: &Path) -> std::io::Result<Option<Exclusive>> {
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let file = options.open(path)?;
    // Who could open it could lock it, and so keep every agent from starting.
    file.set_permissions(Permissions::from_mode(0o600))?;
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => break,
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let taken = Exclusive(file);
    let own = taken.0.metadata()?;
    // Replaced meanwhile: another one has the lock that counts.
    let is_at_path = std::fs::metadata(path).is_ok_and(|there| (there.dev(), there.ino()) == (own.dev(), own.ino()));
    Ok(Some(taken).filter(|_| is_at_path))
}

/// True where the process that has the lock has ended, as far as it can. One of another process namespace is none that this one knows.
fn is_left(path: &Path) -> std::io::Result<bool> {
    let text = std::fs::read_to_string(path)?;
    let said = text.trim_end().split_once(' ').and_then(|(pid, start)| Some((pid.parse().ok()?, start.parse().ok()?)));
    Ok(said.is_some_and(|(pid, start): (i32, u64)| started(pid) == Some(start) && is_ending(pid)))
}

impl Exclusive {
    /// Has the file say which process has the lock.
    fn tell_who(mut self) -> std::io::Result<Exclusive> {
        let pid = std::process::id();
        let start = i32::try_from(pid).ok().and_then(started).unwrap_or_default();
        self.0.set_len(0)?;
        self.0.rewind()?;
        writeln!(self.0, "{pid} {start}")?;
        Ok(self)
    }
}

impl Drop for Exclusive {
    fn drop(&mut self) {
        // A child process that was just forked may still have a copy of the file.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}
