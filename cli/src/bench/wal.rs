//! The kernel's side of `willow bench direct --append` in the manner of databases' write-ahead logs: threads that commit at the same time have one of them
//! write for all that wait.
//!
//! Invariants: a commit that was answered is durable; what is written for it was handed in before; an error is every later commit's.
//!
//! Who may call it: the benchmark of appending, from any number of threads.

use crate::failure::{Context, Outcome, fail};
use rustix::fs::{FallocateFlags, Mode, OFlags};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Bytes of a segment of PostgreSQL's log, and of a page in it, which is written as a whole.
const SEGMENT_BYTES: u64 = 16 << 20;
const PAGE_BYTES: u64 = 8 << 10;

/// Whose manner it is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    /// RocksDB's: a file that grows, whose blocks are allocated ahead; written behind its end, then fdatasync.
    Growing,
    /// PostgreSQL's: a segment full of zeroes that is used again and again; whole pages are written over, then fdatasync.
    Segment,
}

#[derive(Default)]
struct State {
    /// Handed in, and not yet written.
    waiting: Vec<u8>,
    /// Bytes that were handed in, and those of them that are durable.
    end: u64,
    durable: u64,
    /// One writes for all.
    is_writing: bool,
    has_failed: bool,
}

/// A log.
pub struct Log {
    file: OwnedFd,
    manner: Manner,
    state: Mutex<State>,
    written: Condvar,
    /// What the last page of a segment has so far: the writer's.
    page: Mutex<Vec<u8>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Log {
    /// Of a new file.
    pub fn open(path: &Path, manner: Manner) -> Outcome<Log> {
        let cannot = || format!("cannot prepare {}", path.display());
        let file = rustix::fs::open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()).context(cannot)?;
        match manner {
            Manner::Growing => {
                rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, 0, 4 * SEGMENT_BYTES).context(cannot)?;
            }
            Manner::Segment => {
                let zeroes = vec![0; 1 << 20];
                for at in (0..SEGMENT_BYTES).step_by(zeroes.len()) {
                    write_all(&file, &zeroes, at)?;
                }
            }
        }
        rustix::fs::fsync(&file).context(cannot)?;
        Ok(Log { file, manner, state: Mutex::default(), written: Condvar::new(), page: Mutex::default() })
    }

    /// Commits a record: durable when this returns.
    pub fn commit(&self, record: &[u8]) -> Outcome<usize> {
        let mut state = lock(&self.state);
        state.waiting.extend_from_slice(record);
        state.end += record.len() as u64;
        let own = state.end;
        while state.durable < own {
            if state.has_failed {
                fail!("another commit failed, which wrote for this one too");
            }
            if state.is_writing {
                state = self.written.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            state.is_writing = true;
            let (batch, end) = (std::mem::take(&mut state.waiting), state.end);
            drop(state);
            let done = self.write(&batch, end - batch.len() as u64);
            state = lock(&self.state);
            state.is_writing = false;
            state.has_failed |= done.is_err();
            if done.is_ok() {
                state.durable = end;
            }
            self.written.notify_all();
            done?;
        }
        Ok(record.len())
    }

    fn write(&self, batch: &[u8], at: u64) -> Outcome<()> {
        match self.manner {
            Manner::Growing => write_all(&self.file, batch, at)?,
            Manner::Segment => {
                let mut page = lock(&self.page);
                let first = at / PAGE_BYTES * PAGE_BYTES;
                page.extend_from_slice(batch);
                let used = page.len();
                page.resize(used.next_multiple_of(PAGE_BYTES as usize), 0);
                let (mut from, mut place) = (0, first % SEGMENT_BYTES);
                while from < page.len() {
                    let count = (page.len() - from).min((SEGMENT_BYTES - place) as usize);
                    write_all(&self.file, &page[from..from + count], place)?;
                    (from, place) = (from + count, 0);
                }
                // What the next batch goes on with.
                let last = used / PAGE_BYTES as usize * PAGE_BYTES as usize;
                page.truncate(used);
                page.drain(..last);
            }
        }
        rustix::fs::fdatasync(&self.file).context(|| "cannot sync the log".to_owned())
    }
}

fn write_all(file: &OwnedFd, bytes: &[u8], at: u64) -> Outcome<()> {
    let mut done = 0;
    while done < bytes.len() {
        let count = rustix::io::retry_on_intr(|| rustix::io::pwrite(file, &bytes[done..], at + done as u64));
        done += count.context(|| "cannot write the log".to_owned())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Log, Manner, PAGE_BYTES, SEGMENT_BYTES};

    /// What was committed lies in the file in one order, records whole, however many commit at once.
    #[test]
    fn logs_have_what_was_committed() {
        let path = std::env::temp_dir().join(format!("willow-wal-{}", std::process::id()));
        for manner in [Manner::Growing, Manner::Segment] {
            std::fs::File::create(&path).expect("made");
            let log = Log::open(&path, manner).expect("a log");
            std::thread::scope(|scope| {
                for thread in 0..4_u8 {
                    let log = &log;
                    scope.spawn(move || {
                        for _ in 0..50 {
                            assert_eq!(log.commit(&[thread + 1; 1000]).expect("committed"), 1000);
                        }
                    });
                }
            });
            let found = std::fs::read(&path).expect("reads");
            let records: Vec<&[u8]> = found[..200_000].chunks(1000).collect();
            assert!(records.iter().all(|record| record[0] > 0 && record.iter().all(|byte| *byte == record[0])));
            assert!((1..=4).all(|thread| records.iter().filter(|record| record[0] == thread).count() == 50));
            match manner {
                Manner::Growing => assert_eq!(found.len(), 200_000),
                Manner::Segment => {
                    assert_eq!(found.len() as u64, SEGMENT_BYTES);
                    assert!(found[200_000..].iter().all(|byte| *byte == 0));
                    // Past its end it begins anew.
                    for _ in 0..(SEGMENT_BYTES - 200_000).div_ceil(60_000) + 1 {
                        log.commit(&[9; 60_000]).expect("committed");
                    }
                    let found = std::fs::read(&path).expect("reads");
                    assert_eq!(found.len() as u64, SEGMENT_BYTES);
                    assert!(found[..PAGE_BYTES as usize].iter().all(|byte| *byte == 9));
                }
            }
        }
        std::fs::remove_file(&path).expect("removed");
    }
}
