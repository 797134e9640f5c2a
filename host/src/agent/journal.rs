//! What the agent has made immutable, in a file, so that the next agent undoes it after a crash.
//!
//! A line for each change, appended: a checksum (CRC-32C, 8 hexadecimal digits), a space, and JSON:
//! `{"freeze":{"device":..,"inode":..,"path":"..","handle":{..},"writes":..,"renewal":{..}}}` or `{"thaw":{"device":..,"inode":..}}` (docs/protection.md).
//! What always holds:
//! - the line about a file that is to be frozen is durable before the file is frozen; that of its thawing follows it;
//! - who waits for a line to be durable shares the sync with all whose lines were there when it began;
//! - a last line that is torn tells of a file that was not frozen yet, or of one that was thawed: it is left out;
//! - the file is written anew, beside the old one and then in its place, when most of its lines say nothing any more, and when a sync of it
//!   has failed: what the kernel had of it then may be lost;
//! - nobody else works by it meanwhile ([`Exclusive`]), and its owner alone can read it: some lines have bytes of users' files;
//! - where a line could not be written (a full disk), nothing is frozen by the file until it has been written anew, and no line follows one that
//!   is torn.

use super::digits;
use super::exclusive::Exclusive;
use super::handle::Handle;
use super::lock;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// Lines before the file is written anew, if most of them are old.
const LINES_MIN: usize = 1024;
/// Bytes before it is written anew, if it was much shorter then: lines with a last page are long.
const BYTES_MIN: usize = 4 << 20;

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
        #[serde(default, skip_serializing_if = "Option::is_none")]
        renewal: Option<Renewal>,
    },
    Thaw {
        device: u64,
        inode: u64,
    },
}

fn may_be_written() -> bool {
    true
}

impl Line {
    fn freeze(key: Key, found: Found) -> Line {
        let Found { path, handle, writes, renewal } = found;
        Line::Freeze { device: key.0, inode: key.1, path, handle, writes, renewal }
    }
}

/// What the device held in the last page of a file, and where that begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Last {
    pub at: u64,
    #[serde(with = "digits")]
    pub bytes: Vec<u8>,
}

/// A file's pages are being written anew, for which it is append-only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Renewal {
    /// It was that by itself.
    pub append_only: bool,
    /// To be written first. `None`: all its pages have been written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<Last>,
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
    /// It is just being given back.
    pub renewal: Option<Renewal>,
}

type All = BTreeMap<Key, Found>;

struct State {
    file: Arc<File>,
    lines: usize,
    /// Of the file, and how many those were when it was written anew.
    bytes: usize,
    bytes_anew: usize,
    frozen: All,
    /// Lines that were appended in all, and how many of them are durable.
    appended: u64,
    durable: u64,
    is_syncing: bool,
    /// A sync failed.
    is_suspect: bool,
    /// A line could not be written: the file lacks what has changed, or ends with a part of a line.
    is_behind: bool,
    #[cfg(test)]
    syncs: u64,
}

/// The journal.
pub struct Journal {
    path: PathBuf,
    state: Mutex<State>,
    synced: Condvar,
    /// Until the journal is left to others.
    exclusive: Mutex<Option<Exclusive>>,
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
        let found = |path| Found { path, handle: None, writes: may_be_written(), renewal: None };
        return Ok(all.into_iter().map(|(device, inode, path)| ((device, inode), found(path))).collect());
    }
    let mut lines = text.split_inclusive('\n').enumerate().peekable();
    while let Some((number, line)) = lines.next() {
        match line.strip_suffix('\n').and_then(decode) {
            Some(Line::Freeze { device, inode, path, handle, writes, renewal }) => {
                frozen.insert((device, inode), Found { path, handle, writes, renewal });
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
        let exclusive = Exclusive::take(&path)?;
        let whole = match std::fs::read(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            found => found.map_err(|error| said(&error))?,
        };
        let frozen = read(&String::from_utf8_lossy(&whole)).map_err(|why| said(&why))?;
        let (file, bytes) = match rewrite(&path, &frozen) {
            // No room for a second one beside it: it goes on as it is. Files have to thaw for there to be room, and that needs an agent.
            Err(error) if is_full(&error) && path.exists() => go_on(&path, &whole).map_err(|error| said(&error))?,
            done => done.map_err(|error| said(&error))?,
        };
        let state = State {
            file: Arc::new(file),
            lines: frozen.len(),
            bytes,
            bytes_anew: bytes,
            frozen,
            appended: 0,
            durable: 0,
            is_syncing: false,
            is_suspect: false,
            is_behind: false,
            #[cfg(test)]
            syncs: 0,
        };
        let (state, exclusive) = (Mutex::new(state), Mutex::new(Some(exclusive)));
        Ok(Journal { path, state, synced: Condvar::new(), exclusive })
    }

    /// Lets others work by it: whoever calls this does nothing more with files.
    pub fn leave(&self) {
        lock(&self.exclusive).take();
    }

    /// What is frozen.
    pub fn frozen(&self) -> All {
        lock(&self.state).frozen.clone()
    }

    /// A file is about to be frozen, or to be written as well: durable when this returns.
    pub fn freeze(&self, key: Key, found: Found) -> std::io::Result<()> {
        let mut state = lock(&self.state);
        if state.is_suspect || state.is_behind {
            state.rewrite(&self.path)?;
        }
        state.append(&Line::freeze(key, found.clone()))?;
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

    /// How a file that is frozen is found again.
    pub fn found(&self, key: Key) -> Option<Found> {
        lock(&self.state).frozen.get(&key).cloned()
    }

    /// How far it is with the pages of a file that is being given back.
    pub fn renewal(&self, key: Key) -> Option<Renewal> {
        self.found(key).and_then(|found| found.renewal)
    }

    /// Pages of a file that is frozen are about to be written anew, or have been: durable when this returns.
    pub fn renew(&self, key: Key, renewal: Renewal) -> std::io::Result<()> {
        let found = self.found(key).ok_or_else(|| std::io::Error::other("it is not on the list of frozen files"))?;
        self.freeze(key, Found { renewal: Some(renewal), ..found })
    }

    /// A file was thawed, or could not be frozen. Not durable at once: to thaw it once more does no harm.
    pub fn thaw(&self, key: Key) -> std::io::Result<()> {
        let mut state = lock(&self.state);
        if state.frozen.remove(&key).is_none() {
            return Ok(());
        }
        let has_old_lines = state.lines >= LINES_MIN && state.lines / 4 > state.frozen.len();
        let is_old = has_old_lines || state.bytes >= BYTES_MIN && state.bytes / 4 > state.bytes_anew;
        if is_old || state.is_behind {
            let done = state.rewrite(&self.path);
            // As long as there is no room for another one this one grows.
            if done.is_ok() || state.is_behind {
                return done;
            }
        }
        state.append(&Line::Thaw { device: key.0, inode: key.1 })
    }
}

impl State {
    /// Writes it anew: all that was appended is durable then.
    fn rewrite(&mut self, path: &Path) -> std::io::Result<()> {
        // Which of the two is there is not known where that fails, unless there was no room for the other.
        let (file, bytes) = rewrite(path, &self.frozen).inspect_err(|error| self.is_behind |= !is_full(error))?;
        self.file = Arc::new(file);
        (self.bytes, self.bytes_anew) = (bytes, bytes);
        (self.lines, self.durable) = (self.frozen.len(), self.appended);
        (self.is_suspect, self.is_behind) = (false, false);
        Ok(())
    }

    fn append(&mut self, line: &Line) -> std::io::Result<()> {
        let written = encode(line).and_then(|line| {
            self.bytes += line.len();
            (&*self.file).write_all(line.as_bytes())
        });
        self.is_behind |= written.is_err();
        self.lines += 1;
        written
    }
}

/// The journal's path with something behind it.
pub(super) fn beside(journal: &Path, what: &str) -> PathBuf {
    let mut name = journal.as_os_str().to_owned();
    name.push(what);
    PathBuf::from(name)
}

fn is_full(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded)
}

/// Opens a journal as it is, without a last line that is torn; with its length.
fn go_on(path: &Path, whole: &[u8]) -> std::io::Result<(File, usize)> {
    let file = File::options().append(true).open(path)?;
    file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    let bytes = whole.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    if whole.starts_with(b"[") {
        // Nothing can be appended to a list of an agent before this one.
        return Err(std::io::ErrorKind::StorageFull.into());
    }
    file.set_len(bytes as u64)?;
    file.sync_all()?;
    Ok((file, bytes))
}

/// Writes a journal with these files alone in the place of what is there; with its length.
fn rewrite(path: &Path, frozen: &All) -> std::io::Result<(File, usize)> {
    let new = beside(path, ".new");
    let _ = std::fs::remove_file(&new);
    let written = write_new(&new, frozen).inspect_err(|_| {
        // What there is of it keeps room from others.
        let _ = std::fs::remove_file(&new);
    })?;
    std::fs::rename(&new, path)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // The other one is in its place by now: that is no lack of room.
    File::open(folder)
        .and_then(|folder| folder.sync_all())
        .map_err(|error| std::io::Error::other(error.to_string()))?;
    Ok(written)
}

fn write_new(new: &Path, frozen: &All) -> std::io::Result<(File, usize)> {
    // Some lines have bytes of users' files: nobody else reads them.
    let mut file = File::options().append(true).create_new(true).mode(0o600).open(new)?;
    let mut text = String::new();
    for (key, found) in frozen {
        text.push_str(&encode(&Line::freeze(*key, found.clone()))?);
    }
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    Ok((file, text.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::fs::PermissionsExt;

    fn plain(path: &str) -> Found {
        Found { path: PathBuf::from(path), handle: None, writes: true, renewal: None }
    }

    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("willow-journal-{}-{name}", std::process::id()));
        remove(&path);
        path
    }

    fn remove(path: &Path) {
        for path in [path.to_owned(), beside(path, ".lock")] {
            let _ = std::fs::remove_file(path);
        }
    }

    #[test]
    fn a_journal_has_one_agent_at_a_time() {
        let path = scratch("exclusive");
        let journal = Journal::open(path.clone()).unwrap();
        journal.freeze((1, 1), plain("/file")).unwrap();
        let refused = Journal::open(path.clone()).err().unwrap();
        assert!(refused.contains("exclusive.lock: the list of frozen files is in use"), "{refused}");
        // What that one lists from then on is in the file.
        journal.freeze((1, 2), plain("/file")).unwrap();
        journal.leave();
        assert_eq!(Journal::open(path.clone()).unwrap().frozen().len(), 2);
        drop(journal);
        remove(&path);
    }

    #[test]
    fn a_journal_and_its_lock_are_their_owners_alone() {
        let path = scratch("modes");
        let lock = beside(&path, ".lock");
        // As an agent with another umask, or of another version, may have left them.
        for path in [&path, &lock] {
            std::fs::write(path, "").unwrap();
            std::fs::set_permissions(path, PermissionsExt::from_mode(0o666)).unwrap();
        }
        let journal = Journal::open(path.clone()).unwrap();
        journal.freeze((1, 1), plain("/file")).unwrap();
        for path in [&path, &lock] {
            assert_eq!(std::fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600, "{}", path.display());
        }
        drop(journal);
        remove(&path);
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
            let found = Found { path: named, handle, writes: inode % 2 == 0, renewal: None };
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
        remove(&path);
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
        drop(journal);
        assert_eq!(Journal::open(path.clone()).unwrap().frozen().len(), 1);
        remove(&path);
    }

    #[test]
    fn a_journal_knows_what_a_page_was_and_stays_short_with_that() {
        let path = scratch("renewal");
        let journal = Journal::open(path.clone()).unwrap();
        let bytes: Vec<u8> = (0..65_535).map(|at| ((at * 7) >> 3) as u8).collect();
        let renewal = |append_only, at| Renewal { append_only, last: Some(Last { at, bytes: bytes.clone() }) };
        journal.renew((1, 1), renewal(false, 0)).unwrap_err();
        for round in 0..100 {
            journal.freeze((1, round), plain("/file")).unwrap();
            assert_eq!(journal.renewal((1, round)), None);
            journal.renew((1, round), renewal(round % 2 == 0, round << 16)).unwrap();
            let length = std::fs::metadata(&path).unwrap().len() as usize;
            assert!(length < BYTES_MIN + (1 << 20), "{length} bytes");
            if round < 98 {
                journal.thaw((1, round)).unwrap();
            }
        }
        journal.renew((1, 99), Renewal { append_only: false, last: None }).unwrap();
        drop(journal);
        let journal = Journal::open(path.clone()).unwrap();
        assert_eq!(journal.renewal((1, 98)), Some(renewal(true, 98 << 16)));
        assert_eq!(journal.renewal((1, 99)), Some(Renewal { append_only: false, last: None }));
        assert_eq!(journal.found((1, 98)).map(|found| found.path), Some(PathBuf::from("/file")));
        drop(journal);
        remove(&path);
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
        // How many share one is the scheduler's.
        assert!(state.syncs < THREADS * (ROUNDS - 1), "{} syncs", state.syncs);
        drop(state);
        assert_eq!(read(&std::fs::read_to_string(&path).unwrap()).unwrap().len() as u64, THREADS * ROUNDS);
        // Where a sync has failed all of it is written anew before anything is frozen by it.
        std::fs::write(&path, "what was lost").unwrap();
        lock(&journal.state).is_suspect = true;
        journal.freeze((99, 1), plain("/file")).unwrap();
        assert_eq!(read(&std::fs::read_to_string(&path).unwrap()).unwrap().len() as u64, THREADS * ROUNDS + 1);
        remove(&path);
    }

    /// A file system of a few pages, in a mount namespace of this thread's own; `None` for who may not mount.
    fn small(name: &str) -> Option<PathBuf> {
        let folder = scratch(name);
        std::fs::create_dir_all(&folder).unwrap();
        let path = std::ffi::CString::new(folder.to_str().unwrap()).unwrap();
        let (none, private) = (c"none".as_ptr(), libc::MS_REC | libc::MS_PRIVATE);
        let (kind, size) = (c"tmpfs".as_ptr(), c"size=64k".as_ptr().cast());
        // SAFETY: calls with strings that end, and numbers.
        let done = unsafe {
            libc::unshare(libc::CLONE_NEWNS | libc::CLONE_FS) == 0
                && libc::mount(none, c"/".as_ptr(), none, private, std::ptr::null()) == 0
                && libc::mount(none, path.as_ptr(), kind, 0, size) == 0
        };
        done.then_some(folder)
    }

    #[test]
    fn a_journal_without_room_for_another_is_gone_on_with() {
        let Some(folder) = small("no-room") else {
            assert!(!rustix::process::geteuid().is_root(), "root may mount");
            return willow_skip::skip("journal", "who is not root may not mount");
        };
        let path = folder.join("journal");
        let long = format!("/{}", "long".repeat(500));
        let journal = Journal::open(path.clone()).unwrap();
        let mut inode = 0;
        while journal.freeze((1, inode), plain(&long)).is_ok() {
            inode += 1;
        }
        assert!(inode > 16, "{inode} files");
        drop(journal);
        // The last line is torn, and there is no room for a second journal.
        let journal = Journal::open(path.clone()).unwrap();
        assert_eq!(journal.frozen().len() as u64, inode);
        for thawed in 0..inode {
            journal.thaw((1, thawed)).unwrap();
        }
        journal.freeze((1, 99), plain("/file")).unwrap();
        drop(journal);
        assert_eq!(Journal::open(path).unwrap().frozen().keys().copied().collect::<Vec<_>>(), [(1, 99)]);
    }

    #[test]
    fn a_line_that_could_not_be_written_is_made_up_for() {
        let path = scratch("full");
        let journal = Journal::open(path.clone()).unwrap();
        let listed =
            || read(&std::fs::read_to_string(&path).unwrap()).unwrap().keys().map(|key| key.1).collect::<Vec<_>>();
        let full = || lock(&journal.state).file = Arc::new(File::options().append(true).open("/dev/full").unwrap());
        for inode in [1, 2] {
            journal.freeze((1, inode), plain("/file")).unwrap();
        }
        // That one has thawed, by the next that thaws or is frozen.
        full();
        journal.thaw((1, 1)).unwrap_err();
        assert_eq!(listed(), [1, 2]);
        journal.thaw((1, 2)).unwrap();
        assert!(listed().is_empty());
        // Nothing is frozen by a line that is not there.
        full();
        journal.freeze((1, 3), plain("/file")).unwrap_err();
        assert!(journal.found((1, 3)).is_none() && listed().is_empty());
        journal.freeze((1, 4), plain("/file")).unwrap();
        assert_eq!(listed(), [4]);
        // Nor is anything said of what was not listed.
        full();
        journal.thaw((1, 3)).unwrap();
        remove(&path);
    }
}
