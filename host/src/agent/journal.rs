//! What the agent has made immutable, in a file, so that the next agent undoes it after a crash.
//!
//! A line for each change, appended: a checksum (CRC-32C, 8 hexadecimal digits), a space, and JSON:
//! `{"freeze":{"device":..,"inode":..,"path":"..","handle":{..},"writes":..}}` or `{"thaw":{"device":..,"inode":..}}` (docs/protection.md).
//! What always holds:
//! - the line about a file that is to be frozen is durable before the file is frozen; that of its thawing follows it;
//! - who waits for a line to be durable shares the sync with all whose lines were there when it began;
//! - a last line that is torn tells of a file that was not frozen yet, or of one that was thawed: it is left out;
//! - the file is written anew, beside the old one and then in its place, when most of its lines say nothing any more, and when a sync of it
//!   has failed: what the kernel had of it then may be lost.

use super::handle::Handle;
use super::lock;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// Lines before the file is written anew, if most of them are old.
const LINES_MIN: usize = 1024;

/// Device and inode of a file.
pub type Key = (u64, u64);

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Line {
    Freeze {
        device: u64,
        inode: u64,
        path: PathBuf,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        handle: Option<Handle>,
        /// Not in lines of agents before this one.
        #[serde(default = "may_be_written")]
        writes: bool,
    },
    Thaw {
        device: u64,
        inode: u64,
    },
}

fn may_be_written() -> bool {
    true
}

/// How a file that is frozen is found again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its path when it was frozen.
    pub path: PathBuf,
    /// Where its file system has handles.
    pub handle: Option<Handle>,
    /// It may be written past the file system.
    pub writes: bool,
}

type All = BTreeMap<Key, Found>;

struct State {
    file: Arc<File>,
    lines: usize,
    frozen: All,
    /// Lines that were appended in all, and how many of them are durable.
    appended: u64,
    durable: u64,
    is_syncing: bool,
    /// A sync failed.
    is_suspect: bool,
    #[cfg(test)]
    syncs: u64,
}

/// The journal.
pub struct Journal {
    path: PathBuf,
    state: Mutex<State>,
    synced: Condvar,
}

fn encode(line: &Line) -> std::io::Result<String> {
    let text = serde_json::to_string(line)?;
    Ok(format!("{:08x} {text}\n", crc32c::crc32c(text.as_bytes())))
}

fn decode(line: &str) -> Option<Line> {
    let (sum, text) = line.split_once(' ')?;
    let sum = u32::from_str_radix(sum, 16).ok()?;
    (sum == crc32c::crc32c(text.as_bytes())).then(|| serde_json::from_str(text).ok()).flatten()
}

/// What a journal says is frozen. The error names the line that is wrong, and is not the last.
fn read(text: &str) -> Result<All, String> {
    let mut frozen = BTreeMap::new();
    if text.starts_with('[') {
        // As agents before this one wrote it: a list of all.
        let all: Vec<(u64, u64, PathBuf)> = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let found = |path| Found { path, handle: None, writes: may_be_written() };
        return Ok(all.into_iter().map(|(device, inode, path)| ((device, inode), found(path))).collect());
    }
    let mut lines = text.split_inclusive('\n').enumerate().peekable();
    while let Some((number, line)) = lines.next() {
        match line.strip_suffix('\n').and_then(decode) {
            Some(Line::Freeze { device, inode, path, handle, writes }) => {
                frozen.insert((device, inode), Found { path, handle, writes });
            }
            Some(Line::Thaw { device, inode }) => {
                frozen.remove(&(device, inode));
            }
            // The last one, torn.
            None if lines.peek().is_none() => {}
            None => return Err(format!("line {} is damaged", number + 1)),
        }
    }
    Ok(frozen)
}

impl Journal {
    /// Reads it, or begins a new one.
    pub fn open(path: PathBuf) -> Result<Journal, String> {
        let said = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let frozen = match std::fs::read(&path) {
            Ok(bytes) => read(&String::from_utf8_lossy(&bytes)).map_err(|why| said(&why))?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => BTreeMap::new(),
            Err(error) => return Err(said(&error)),
        };
        let file = Arc::new(rewrite(&path, &frozen).map_err(|error| said(&error))?);
        let state = State {
            file,
            lines: frozen.len(),
            frozen,
            appended: 0,
            durable: 0,
            is_syncing: false,
            is_suspect: false,
            #[cfg(test)]
            syncs: 0,
        };
        Ok(Journal { path, state: Mutex::new(state), synced: Condvar::new() })
    }

    /// What is frozen.
    pub fn frozen(&self) -> All {
        lock(&self.state).frozen.clone()
    }

    /// True where a file is.
    pub fn contains(&self, key: Key) -> bool {
        lock(&self.state).frozen.contains_key(&key)
    }

    /// A file is about to be frozen, or to be written as well: durable when this returns.
    pub fn freeze(&self, key: Key, found: Found) -> std::io::Result<()> {
        let mut state = lock(&self.state);
        if state.is_suspect {
            state.rewrite(&self.path)?;
        }
        let Found { path, handle, writes } = found.clone();
        state.append(&Line::Freeze { device: key.0, inode: key.1, path, handle, writes })?;
        let before = state.frozen.insert(key, found);
        state.appended += 1;
        let own = state.appended;
        while state.durable < own {
            if state.is_suspect {
                match before {
                    Some(found) => state.frozen.insert(key, found),
                    None => state.frozen.remove(&key),
                };
                return Err(std::io::Error::other("the list could not be synced"));
            }
            if state.is_syncing {
                state = self.synced.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            state.is_syncing = true;
            let (file, all) = (state.file.clone(), state.appended);
            drop(state);
            #[cfg(test)]
            std::thread::sleep(std::time::Duration::from_millis(2));
            let done = file.sync_data();
            state = lock(&self.state);
            state.is_syncing = false;
            #[cfg(test)]
            {
                state.syncs += 1;
            }
            match done {
                Ok(()) => state.durable = state.durable.max(all),
                Err(error) => {
                    tracing::error!("{}: {error}", self.path.display());
                    state.is_suspect = true;
                }
            }
            self.synced.notify_all();
        }
        Ok(())
    }

    /// A file was thawed. Not durable at once: to thaw it once more does no harm.
    pub fn thaw(&self, key: Key) -> std::io::Result<()> {
        let mut state = lock(&self.state);
        state.frozen.remove(&key);
        if state.lines >= LINES_MIN && state.lines / 4 > state.frozen.len() {
            return state.rewrite(&self.path);
        }
        state.append(&Line::Thaw { device: key.0, inode: key.1 })
    }
}

impl State {
    /// Writes it anew: all that was appended is durable then.
    fn rewrite(&mut self, path: &Path) -> std::io::Result<()> {
        self.file = Arc::new(rewrite(path, &self.frozen)?);
        (self.lines, self.durable, self.is_suspect) = (self.frozen.len(), self.appended, false);
        Ok(())
    }

    fn append(&mut self, line: &Line) -> std::io::Result<()> {
        let length = self.file.metadata()?.len();
        let written = (&*self.file).write_all(encode(line)?.as_bytes());
        if written.is_err() {
            // A part of a line would make those behind it unreadable.
            self.file.set_len(length)?;
        }
        self.lines += 1;
        written
    }
}

/// Writes a journal with these files alone in the place of what is there.
fn rewrite(path: &Path, frozen: &All) -> std::io::Result<File> {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    let new = PathBuf::from(name);
    let _ = std::fs::remove_file(&new);
    let mut file = File::options().append(true).create_new(true).open(&new)?;
    let mut text = String::new();
    for ((device, inode), found) in frozen {
        let (device, inode, Found { path, handle, writes }) = (*device, *inode, found.clone());
        text.push_str(&encode(&Line::Freeze { device, inode, path, handle, writes })?);
    }
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&new, path)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    fn plain(path: &str) -> Found {
        Found { path: PathBuf::from(path), handle: None, writes: true }
    }

    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("willow-journal-{}-{name}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        path
    }

    #[test]
    fn a_journal_cut_anywhere_says_what_was_frozen_by_then() {
        let path = scratch("cut");
        let journal = Journal::open(path.clone()).unwrap();
        let folder = File::open(std::env::temp_dir()).unwrap();
        // After each change: the length, and what is frozen.
        let mut after = vec![(0, Vec::new())];
        for (step, (inode, freezes)) in
            [(1, true), (2, true), (1, false), (3, true), (2, false), (1, true)].iter().enumerate()
        {
            let named = PathBuf::from(format!("/a file\n\u{fe}{step}"));
            let handle = Some(*inode).filter(|inode| inode % 2 == 0).and_then(|_| Handle::of_file(folder.as_fd()));
            let found = Found { path: named, handle, writes: inode % 2 == 0 };
            let done = if *freezes { journal.freeze((7, *inode), found) } else { journal.thaw((7, *inode)) };
            done.unwrap();
            after.push((std::fs::metadata(&path).unwrap().len(), journal.frozen().keys().copied().collect()));
        }
        drop(journal);
        let whole = std::fs::read(&path).unwrap();
        for length in 0..=whole.len() {
            std::fs::write(&path, &whole[..length]).unwrap();
            let (_, wanted) = after.iter().rfind(|(at, _)| *at <= length as u64).unwrap();
            let found: Vec<Key> = Journal::open(path.clone()).unwrap().frozen().keys().copied().collect();
            assert_eq!(found, *wanted, "cut at {length}");
        }
        // Damage before the last line is said, and where.
        let mut damaged = whole.clone();
        damaged[20] ^= 1;
        std::fs::write(&path, &damaged).unwrap();
        assert!(Journal::open(path.clone()).err().unwrap().contains("line 1 is damaged"));
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_journal_stays_short_and_knows_what_agents_before_it_wrote() {
        let path = scratch("short");
        std::fs::write(&path, r#"[[5,6,"/old"]]"#).unwrap();
        let journal = Journal::open(path.clone()).unwrap();
        assert_eq!(journal.frozen().get(&(5, 6)), Some(&plain("/old")));
        for round in 0..1100u64 {
            journal.freeze((1, round), plain("/file")).unwrap();
            journal.thaw((1, round)).unwrap();
        }
        let lines = std::fs::read_to_string(&path).unwrap().lines().count();
        assert!(lines < 2 * LINES_MIN, "{lines} lines");
        assert_eq!(Journal::open(path.clone()).unwrap().frozen().len(), 1);
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn who_freezes_at_the_same_time_shares_a_sync() {
        const THREADS: u64 = 8;
        const ROUNDS: u64 = 20;
        let path = scratch("shared");
        let journal = Journal::open(path.clone()).unwrap();
        let begin = std::sync::Barrier::new(THREADS as usize);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (journal, begin) = (&journal, &begin);
                scope.spawn(move || {
                    begin.wait();
                    (0..ROUNDS).for_each(|round| journal.freeze((thread, round), plain("/file")).unwrap());
                });
            }
        });
        let state = lock(&journal.state);
        assert_eq!((state.durable, state.frozen.len() as u64), (THREADS * ROUNDS, THREADS * ROUNDS));
        assert!(state.syncs < THREADS * ROUNDS / 2, "{} syncs", state.syncs);
        drop(state);
        assert_eq!(read(&std::fs::read_to_string(&path).unwrap()).unwrap().len() as u64, THREADS * ROUNDS);
        // Where a sync has failed all of it is written anew before anything is frozen by it.
        std::fs::write(&path, "what was lost").unwrap();
        lock(&journal.state).is_suspect = true;
        journal.freeze((99, 1), plain("/file")).unwrap();
        assert_eq!(read(&std::fs::read_to_string(&path).unwrap()).unwrap().len() as u64, THREADS * ROUNDS + 1);
        std::fs::remove_file(path).unwrap();
    }
}
