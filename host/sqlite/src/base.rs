//! A base: what a transaction writes is kept in memory until its commit, and is then written as a whole.
//!
//! What always holds:
//! - until a commit nothing of a transaction is on the device, unless its journal is on the disk, durably, with all that it needs;
//! - a commit that is refused leaves what there was, and the transaction is forgotten when the lock goes;
//! - where nobody knows whether a commit was done, nothing more is read or written by this connection.

use crate::extension::log;
use crate::journal::Journal;
use crate::locks::Locks;
use crate::ranges::Ranges;
use crate::session::{Way, way};
use crate::sqlite;
use crate::under::Done;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::ffi::{CStr, CString, c_int};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use willow_host::direct_io::{DirectError, File, FileWrites};

/// Most bytes that a transaction may write to go without a journal on the disk: with room to spare below what Atomic-Write's log takes.
const PENDING_BYTES_MAX: usize = 4 << 20;
/// A base grows by an eighth, by so much at least and at most: where a file grows, it goes through the kernel.
const GROWTH_BYTES_MIN: u64 = 256 << 10;
const GROWTH_BYTES_MAX: u64 = 16 << 20;
/// What is left free behind a base's end is given back to the file system where it is more than this.
const SLACK_BYTES_MAX: u64 = 32 << 20;
/// The header of a base (SQLite's file format, 1.3).
const HEADER_BYTES: usize = 100;
const MAGIC: &[u8; 16] = b"SQLite format 3\0";

/// What went which way.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Commits by Atomic-Write.
    pub atomic: u64,
    /// Transactions with a journal on the disk.
    pub journaled: u64,
}

/// A base that is open.
pub struct Base {
    file: File,
    way: Way,
    /// Its journal's path.
    pub journal_path: CString,
    pub locks: Locks,
    pending: Ranges,
    pub journal: Journal,
    /// Length that SQLite has cut it to in a transaction.
    cut: Option<u64>,
    /// The journal that the transaction shares with other bases.
    pub super_journal: Option<Vec<u8>>,
    /// SQLite writes a batch of its own, which has no journal.
    in_batch: bool,
    is_broken: bool,
    /// A commit failed half-way: nothing is read or written until SQLite has given up its lock, and so looks for a journal.
    has_failed: bool,
    counts: Counts,
}

/// A base as SQLite's files share it.
pub type Shared = Arc<Mutex<Base>>;

/// All bases that are open.
static BASES: Mutex<Vec<Weak<Mutex<Base>>>> = Mutex::new(Vec::new());

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The base that is being written with a journal of this path.
pub fn by_journal(path: &CStr) -> Option<Shared> {
    let all: Vec<Shared> = lock(&BASES).iter().filter_map(Weak::upgrade).collect();
    all.into_iter().find(|base| {
        let base = lock(base);
        base.locks.level >= sqlite::LOCK_RESERVED && base.journal_path.as_c_str() == path
    })
}

/// The bases whose transactions share this journal.
pub fn by_super_journal(path: &[u8]) -> Vec<Shared> {
    let all: Vec<Shared> = lock(&BASES).iter().filter_map(Weak::upgrade).collect();
    all.into_iter().filter(|base| lock(base).super_journal.as_deref() == Some(path)).collect()
}

fn code(error: &DirectError, otherwise: c_int) -> c_int {
    log(otherwise, &error.to_string());
    match error.errno() {
        libc::ENOSPC | libc::EDQUOT => sqlite::FULL,
        _ => otherwise,
    }
}

impl Base {
    /// Opens it; also whether it may only be read.
    pub fn open(path: &CStr, flags: c_int) -> Result<(Shared, bool), c_int> {
        let failed = |what: &str, why: &dyn std::fmt::Display| {
            log(sqlite::CANTOPEN, &format!("{}: {what}: {why}", path.to_string_lossy()));
            sqlite::CANTOPEN
        };
        let way = way().map_err(|why| failed("the device", &why))?;
        let open = |flags| File::open(&way.session, path, flags, Mode::from_raw_mode(0o644));
        let has = |flag| flags & flag != 0;
        let mut wanted = OFlags::NOFOLLOW;
        wanted.set(OFlags::CREATE, has(sqlite::OPEN_CREATE));
        wanted.set(OFlags::EXCL, has(sqlite::OPEN_EXCLUSIVE));
        let mut reads_only = !has(sqlite::OPEN_READWRITE);
        let mut opened = open(wanted | if reads_only { OFlags::RDONLY } else { OFlags::RDWR });
        if !reads_only && matches!(opened, Err(DirectError::System(Errno::ACCESS | Errno::PERM | Errno::ROFS))) {
            (reads_only, opened) = (true, open(OFlags::NOFOLLOW | OFlags::RDONLY));
        }
        let file = opened.map_err(|error| failed("the file", &error))?;
        let stat = rustix::fs::fstat(file.descriptor()).map_err(|error| failed("the file", &error))?;
        let locks = Locks::open(path, &stat).map_err(|error| failed("its lock file", &error))?;
        let journal_path = CString::new([path.to_bytes(), b"-journal"].concat()).map_err(|_| sqlite::CANTOPEN)?;
        let base = Base {
            file,
            way,
            journal_path,
            locks,
            pending: Ranges::default(),
            journal: Journal::default(),
            cut: None,
            super_journal: None,
            in_batch: false,
            is_broken: false,
            has_failed: false,
            counts: Counts::default(),
        };
        let base = Arc::new(Mutex::new(base));
        let mut all = lock(&BASES);
        all.retain(|base| base.strong_count() > 0);
        all.push(Arc::downgrade(&base));
        Ok((base, reads_only))
    }

    fn check(&self, otherwise: c_int) -> Done {
        if self.is_broken || self.has_failed { Err(otherwise) } else { Ok(()) }
    }

    /// Reads; a short read fills the rest with zeroes, and is an error.
    pub fn read(&mut self, offset: u64, into: &mut [u8]) -> Done {
        self.check(sqlite::IOERR_READ)?;
        let mut done = 0;
        while done < into.len() {
            let count = self.file.pread(&mut into[done..], offset + done as u64);
            match count.map_err(|error| code(&error, sqlite::IOERR_READ))? {
                0 => break,
                count => done += count,
            }
        }
        into[done..].fill(0);
        self.pending.read(offset, into);
        let is_short = done < into.len() && offset + into.len() as u64 > self.pending.end();
        if is_short { Err(sqlite::IOERR_SHORT_READ) } else { Ok(()) }
    }

    /// Writes, in memory; to the file where the transaction goes SQLite's own way.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> Done {
        self.check(sqlite::IOERR_WRITE)?;
        if self.journal.is_on_disk() {
            return self.write_through(offset, data);
        }
        self.pending.write(offset, data);
        if self.pending.bytes() <= PENDING_BYTES_MAX {
            return Ok(());
        }
        if self.in_batch {
            // SQLite does it again with a journal.
            return Err(sqlite::IOERR_WRITE);
        }
        self.go_own_way()
    }

    /// From now on the transaction goes SQLite's own way: its journal on the disk, then what it has written.
    pub fn go_own_way(&mut self) -> Done {
        if self.journal.has_content() {
            self.counts.journaled += 1;
            let path = self.journal_path.clone();
            self.journal.put_on_disk(&path, false)?;
        }
        // Without a journal it has been told to do without safety.
        self.flush()
    }

    /// Writes to the file what is kept.
    fn flush(&mut self) -> Done {
        let pending = std::mem::take(&mut self.pending);
        let written = pending.iter().try_for_each(|(offset, data)| self.write_through(offset, data));
        if written.is_err() {
            self.pending = pending;
        }
        written
    }

    fn write_through(&mut self, offset: u64, data: &[u8]) -> Done {
        self.grow(offset + data.len() as u64)?;
        let mut done = 0;
        while done < data.len() {
            let count = self.file.pwrite(&data[done..], offset + done as u64);
            match count.map_err(|error| code(&error, sqlite::IOERR_WRITE))? {
                0 => {
                    log(sqlite::FULL, &format!("nothing was written at byte {}", offset + done as u64));
                    return Err(sqlite::FULL);
                }
                count => done += count,
            }
        }
        Ok(())
    }

    /// Makes the file at least so long, with blocks for all of it.
    fn grow(&mut self, end: u64) -> Done {
        let failed = |error: DirectError| code(&error, sqlite::IOERR_WRITE);
        let bytes = self.file.bytes().map_err(failed)?;
        if end <= bytes {
            return Ok(());
        }
        let wanted = end + (end / 8).clamp(GROWTH_BYTES_MIN, GROWTH_BYTES_MAX);
        let zeroes = vec![0; 64 << 10];
        let grown = self.file.change(|file| {
            let mut at = bytes;
            while at < wanted {
                let most = zeroes.len().min((wanted - at) as usize);
                match rustix::io::pwrite(file, &zeroes[..most], at) {
                    Ok(count) => at += count as u64,
                    // What there is is enough.
                    Err(Errno::NOSPC) if at >= end => break,
                    Err(error) => return Err(error),
                }
            }
            Ok(())
        });
        grown.map_err(|error| failed(error.into()))?;
        // Where it is refused it goes through the kernel.
        let _ = self.file.take();
        Ok(())
    }

    /// Length of what is committed: as its header says, since files have room left behind their end. SQLite sees neither that room, nor a base
    /// of which nothing was ever committed.
    fn committed_bytes(&mut self) -> Done<u64> {
        let failed = |error: DirectError| code(&error, sqlite::IOERR_FSTAT);
        let bytes = self.file.bytes().map_err(failed)?;
        let mut header = [0; HEADER_BYTES];
        if bytes < HEADER_BYTES as u64 {
            return Ok(bytes);
        }
        self.file.pread(&mut header, 0).map_err(failed)?;
        if header.iter().all(|byte| *byte == 0) {
            return Ok(0);
        }
        let word = |at: usize| u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let page_bytes = match u64::from(word(16) >> 16) {
            1 => 65536,
            bytes => bytes,
        };
        let (pages, is_known) = (word(28), word(24) == word(92));
        let said = page_bytes * u64::from(pages);
        let is_whole = &header[..16] == MAGIC && is_known && said > 0;
        Ok(if is_whole { said.min(bytes) } else { bytes })
    }

    /// Its length, as SQLite is to see it.
    pub fn bytes(&mut self) -> Done<u64> {
        if self.journal.is_on_disk() {
            // What it was and what it will be are both in there.
            return self.file.bytes().map_err(|error| code(&error, sqlite::IOERR_FSTAT));
        }
        let committed = self.committed_bytes()?;
        Ok(self.cut.map_or(committed, |cut| cut.min(committed)).max(self.pending.end()))
    }

    /// Cuts it.
    pub fn truncate(&mut self, bytes: u64) -> Done {
        self.check(sqlite::IOERR_TRUNCATE)?;
        if self.journal.is_on_disk() {
            let failed = |error: DirectError| code(&error, sqlite::IOERR_TRUNCATE);
            return self.file.set_bytes(bytes).map_err(failed);
        }
        self.pending.truncate(bytes);
        self.cut = Some(self.cut.map_or(bytes, |cut| cut.min(bytes)));
        Ok(())
    }

    /// Makes what was written durable; what is kept is durable with its commit.
    pub fn sync(&mut self) -> Done {
        self.check(sqlite::IOERR_FSYNC)?;
        if !self.journal.is_on_disk() {
            return Ok(());
        }
        self.file.sync(true).map_err(|error| code(&error, sqlite::IOERR_FSYNC))
    }

    /// A batch of SQLite's own begins.
    pub fn begin_batch(&mut self) -> Done {
        self.in_batch = true;
        Ok(())
    }

    /// It ends: as a whole, or SQLite does it again with a journal.
    pub fn commit_batch(&mut self) -> Done {
        self.in_batch = false;
        self.check(sqlite::IOERR_COMMIT_ATOMIC)?;
        if self.commit_atomically()? {
            return Ok(());
        }
        self.pending.clear();
        Err(sqlite::IOERR_COMMIT_ATOMIC)
    }

    /// It is given up.
    pub fn give_up_batch(&mut self) {
        self.in_batch = false;
        self.pending.clear();
    }

    /// Commits what is kept; false where that cannot be done as a whole.
    fn commit_atomically(&mut self) -> Done<bool> {
        if self.pending.is_empty() {
            return Ok(true);
        }
        commit_together(&mut [self])
    }

    /// The commit has come. SQLite has its cache for what is on disk by now, and forgets that for these errors alone.
    pub fn commit(&mut self) -> Done {
        self.commit_kept().map_err(|code| {
            self.has_failed = true;
            match code & 0xff {
                sqlite::IOERR | sqlite::FULL => code,
                _ => sqlite::IOERR_WRITE,
            }
        })
    }

    fn commit_kept(&mut self) -> Done {
        self.check(sqlite::IOERR_WRITE)?;
        if !self.commit_atomically()? {
            self.commit_own_way()?;
        }
        self.ended()
    }

    /// Commits as SQLite does, which has ended its journal by now.
    fn commit_own_way(&mut self) -> Done {
        let path = self.journal_path.clone();
        let is_safe = self.journal.had_content();
        if is_safe {
            self.counts.journaled += 1;
            self.journal.put_on_disk(&path, true)?;
        }
        self.flush()?;
        self.file.sync(true).map_err(|error| code(&error, sqlite::IOERR_FSYNC))?;
        if is_safe { self.journal.delete_from_disk(&path) } else { Ok(()) }
    }

    /// A transaction is committed.
    fn ended(&mut self) -> Done {
        self.journal.end();
        (self.cut, self.super_journal) = (None, None);
        let (committed, bytes) = (self.committed_bytes()?, self.file.bytes().unwrap_or(0));
        if bytes > committed + SLACK_BYTES_MAX.max(committed / 4) {
            // Only room that nobody uses: another time, where it cannot be given back now.
            let _ = self.file.set_bytes(committed + GROWTH_BYTES_MIN);
        }
        Ok(())
    }

    /// SQLite lowers its lock: what was not committed never was.
    pub fn lower(&mut self, level: c_int) -> Done {
        if self.locks.level > sqlite::LOCK_SHARED {
            self.pending.clear();
            self.journal.forget();
            (self.cut, self.super_journal, self.in_batch) = (None, None, false);
        }
        self.has_failed &= level > sqlite::LOCK_NONE;
        self.locks.lower(level)
    }

    /// One line on it.
    pub fn report(&self) -> String {
        let Counts { atomic, journaled } = self.counts;
        let refusal = self.file.refusal().map_or(String::new(), |why| format!(", {why}"));
        format!("direct {}, atomic commits {atomic}, with a journal {journaled}{refusal}", self.file.is_direct())
    }
}

/// Commits what several bases keep, as a whole; false where that cannot be done so.
pub fn commit_together(bases: &mut [&mut Base]) -> Done<bool> {
    for base in &mut *bases {
        base.check(sqlite::IOERR_WRITE)?;
        let end = base.pending.end();
        base.grow(end)?;
        if !base.file.is_direct() {
            let _ = base.file.take();
        }
    }
    let Some(first) = bases.first() else { return Ok(true) };
    let writer = first.way.writer.clone();
    let writes: Vec<_> =
        bases.iter().map(|base| FileWrites { file: &base.file, ranges: base.pending.iter().collect() }).collect();
    let written = writer.write(&writes);
    drop(writes);
    match written {
        Ok(()) => {
            for base in bases {
                base.pending.clear();
                base.counts.atomic += 1;
            }
            Ok(true)
        }
        Err(error) if error.is_unknown() => {
            log(sqlite::IOERR, &format!("nobody knows whether a commit was done: {error}"));
            bases.iter_mut().for_each(|base| base.is_broken = true);
            Err(sqlite::IOERR_WRITE)
        }
        Err(error) => {
            log(sqlite::NOTICE, &format!("a commit goes by a journal: {error}"));
            Ok(false)
        }
    }
}
