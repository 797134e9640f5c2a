//! What the file store does by its workers: operations that may wait, writing out, flushes, records.
//!
//! What always holds:
//! - An operation is handed to a worker only when nothing that it overlaps is under way (see [`crate::media`]'s ordering)
//!   and, for a write, when dirty pages are below the bound.
//! - At most one sync and one writing out a bank are under way. A flush is answered by a sync that began after all that
//!   the flush has to cover had completed.
//! - Workers touch files and the keeper; all bookkeeping is done on the device's thread, when it takes the news.

use super::bank::store_error;
use super::*;
use crate::media::store::MEDIA_FAILED;
use std::sync::atomic::Ordering as Atomic;

/// An operation in the background.
pub(super) enum Operation {
    Read { ticket: Ticket, bytes: usize },
    Write { ticket: Ticket, from: Vec<u8> },
    Zero { ticket: Ticket },
}

/// Banks that a flush still waits for.
pub(super) struct Waiters {
    banks_left: usize,
    error: Option<StoreError>,
}

/// How a sync ended.
pub(super) enum SyncEnd {
    Durable,
    /// The data may be lost.
    DataFailed(Errno),
    /// The data is on the disk, but the file's length could not be recorded.
    RecordFailed(StoreError),
}

/// What a worker has done.
pub(super) enum Finished {
    Operation {
        id: u64,
        ticket: Ticket,
        failures: u64,
        kind: Finishing,
        result: Result<Vec<u8>, StoreError>,
    },
    Synced {
        bank: usize,
        pages: u64,
        end: SyncEnd,
    },
    WrittenOut {
        bank: usize,
        pages: u64,
        result: Result<(), Errno>,
    },
    Recorded {
        ticket: Ticket,
        result: Result<(), StoreError>,
    },
    /// A worker has done the writes that it was given.
    WriteJob,
}

/// A write that may start, and waits for a worker.
pub(super) struct Write {
    id: u64,
    ticket: Ticket,
    address: u64,
    from: Vec<u8>,
}

/// What kind of operation has been done.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Finishing {
    Read,
    Write,
    Zero,
}

type Waker = Arc<dyn Fn() + Send + Sync>;

/// Where workers leave their news.
#[derive(Default)]
pub(super) struct Mailbox {
    finished: Mutex<VecDeque<Finished>>,
    waker: Mutex<Option<Waker>>,
    waiting: AtomicU64,
}

impl Mailbox {
    pub fn set_waker(&self, waker: Waker) {
        *self.waker.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(waker);
    }

    fn put(&self, finished: Finished) {
        self.put_all([finished]);
    }

    fn put_all(&self, finished: impl IntoIterator<Item = Finished>) {
        let mut queue = self.finished.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        queue.extend(finished);
        self.waiting.store(queue.len() as u64, Atomic::Release);
        drop(queue);
        self.wake();
    }

    pub fn wake(&self) {
        let waker = self.waker.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone();
        if let Some(waker) = waker {
            waker();
        }
    }

    fn take(&self, into: &mut VecDeque<Finished>) {
        if self.waiting.load(Atomic::Acquire) == 0 {
            return;
        }
        let mut queue = self.finished.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        self.waiting.store(0, Atomic::Release);
        into.append(&mut queue);
    }
}

impl FileStore {
    /// Has a completion delivered that needed no worker.
    pub(super) fn end(&mut self, ticket: Ticket, result: Result<Vec<u8>, StoreError>) {
        self.ended.push_back(StoreCompletion { ticket, result });
        self.mailbox.wake();
    }

    /// Queues an operation behind those that it overlaps.
    pub(super) fn begin(&mut self, span: Span, operation: Operation) {
        self.order.push(span, operation);
        self.dispatch();
    }

    /// Hands to workers what may start.
    fn dispatch(&mut self) {
        while let Some((id, span, operation)) = self.order.take_ready() {
            if matches!(operation, Operation::Write { .. }) {
                self.held.push_back((id, span, operation));
            } else {
                self.start(id, span, operation);
            }
        }
        while self.dirty_pages < self.dirty_pages_max {
            let Some((id, span, operation)) = self.held.pop_front() else { return };
            self.start(id, span, operation);
        }
        // At the bound there are dirty pages that are not yet being written out, or a writing out is under way.
        self.write_out();
    }

    fn start(&mut self, id: u64, span: Span, operation: Operation) {
        if matches!(operation, Operation::Write { .. }) && span.start < span.end {
            self.note_write(&span);
        }
        let bank = &mut self.banks[span.bank];
        let (file, mailbox, failures) = (bank.file.clone(), self.mailbox.clone(), bank.failures);
        match operation {
            Operation::Read { ticket, bytes } => {
                let refused = bank.refuse_suspect(&span);
                self.reads.give(Box::new(move |panics| {
                    let read = || {
                        let mut data = vec![0; bytes];
                        file.read(span.start, &mut data).map(|()| data)
                    };
                    let result = refused.and_then(|()| panics.failed(Err(MEDIA_FAILED), read));
                    mailbox.put(Finished::Operation { id, ticket, failures, kind: Finishing::Read, result });
                }));
            }
            Operation::Write { ticket, from } => {
                bank.writes.push_back(Write { id, ticket, address: span.start, from });
                self.hand_over_writes();
            }
            Operation::Zero { ticket } => {
                let pages = pages_touched(span.start, span.end);
                let head_has_data = !pages.is_empty() && bank.present.contains(pages.start);
                let tail_has_data = !pages.is_empty() && bank.present.contains(pages.end - 1);
                bank.unsynced.absorb_within(&bank.present, pages);
                self.writes.give(Box::new(move |panics| {
                    let zero = || file.zero(span.start, span.end, head_has_data, tail_has_data).map(|()| Vec::new());
                    let result = panics.failed(Err(MEDIA_FAILED), zero);
                    mailbox.put(Finished::Operation { id, ticket, failures, kind: Finishing::Zero, result });
                }));
            }
        }
    }

    /// Gives writes to workers, many at a time: a small one costs a system call, and neither a thread's waking nor the device's. Banks
    /// have turns, so that whoever has many under way in one holds up no write to another.
    fn hand_over_writes(&mut self) {
        while self.write_jobs < WRITE_THREADS_MAX {
            let banks = self.banks.len();
            let next =
                (0..banks).map(|it| (self.write_turn + it) % banks).find(|it| !self.banks[*it].writes.is_empty());
            let Some(index) = next else { return };
            self.write_turn = (index + 1) % banks;
            let bank = &mut self.banks[index];
            let (mut bytes, mut count) = (0, 0);
            for write in bank.writes.iter().take(WRITE_JOB_OPERATIONS_MAX) {
                bytes += write.from.len();
                count += 1;
                if bytes >= WRITE_JOB_BYTES {
                    break;
                }
            }
            let writes: Vec<Write> = bank.writes.drain(..count).collect();
            let (file, mailbox, failures) = (bank.file.clone(), self.mailbox.clone(), bank.failures);
            self.write_jobs += 1;
            self.writes.give(Box::new(move |panics| {
                let mut finished = Vec::with_capacity(writes.len() + 1);
                for Write { id, ticket, address, from } in writes {
                    let write = || file.write(address, &from).map(|()| Vec::new());
                    let result = panics.failed(Err(MEDIA_FAILED), write);
                    finished.push(Finished::Operation { id, ticket, failures, kind: Finishing::Write, result });
                }
                finished.push(Finished::WriteJob);
                mailbox.put_all(finished);
            }));
        }
    }

    /// Takes what workers have left, and goes on with what waited for it.
    pub(super) fn take_news(&mut self) {
        self.mailbox.take(&mut self.news);
        if self.news.is_empty() {
            return;
        }
        while let Some(finished) = self.news.pop_front() {
            match finished {
                Finished::Operation { id, ticket, failures, kind, result } => {
                    let span = self.order.finish(id);
                    self.operation_done(span, failures, kind, result.is_ok());
                    self.ended.push_back(StoreCompletion { ticket, result });
                }
                Finished::Synced { bank, pages, end } => self.synced(bank, pages, end),
                Finished::WrittenOut { bank, pages, result } => {
                    self.write_outs -= 1;
                    self.dirty_pages -= pages;
                    self.cleaning_pages -= pages;
                    let state = &mut self.banks[bank];
                    state.is_written_out = false;
                    if let Err(errno) = result {
                        state.data_failed(errno);
                    }
                    state.forget_reported_failure();
                }
                Finished::WriteJob => self.write_jobs -= 1,
                Finished::Recorded { ticket, result } => {
                    self.ended.push_back(StoreCompletion { ticket, result: result.map(|()| Vec::new()) });
                }
            }
        }
        self.dispatch();
        self.hand_over_writes();
    }

    fn operation_done(&mut self, span: Span, failures: u64, kind: Finishing, is_good: bool) {
        if kind == Finishing::Read {
            return;
        }
        let is_overlapped = self.order.conflicts(&span);
        let bank = &mut self.banks[span.bank];
        bank.needs_sync = true;
        let touched = pages_touched(span.start, span.end);
        // Noted at the start for a sync that failed in between, and now for the next sync to cover it.
        if kind == Finishing::Write {
            bank.unsynced.insert(touched);
        } else {
            bank.unsynced.absorb_within(&bank.present, touched);
        }
        if !is_good {
            return;
        }
        let covered = pages_covered(span.start, span.end);
        if failures == bank.failures {
            bank.suspect.remove(covered.clone());
        }
        if kind == Finishing::Zero && !is_overlapped {
            bank.present.remove(covered);
        }
    }

    /// Begins a flush.
    pub(super) fn begin_flush(&mut self, ticket: Ticket, bank: Option<usize>) -> Result<Progress, StoreError> {
        let banks = match bank {
            Some(bank) if bank >= self.banks.len() => return Err(StoreError::Range),
            Some(bank) => bank..bank + 1,
            None => 0..self.banks.len(),
        };
        if let Some(bank) = self.banks[banks.clone()].iter().find(|bank| bank.may_have_lost()) {
            return Err(StoreError::Failed(bank.suspect_error));
        }
        let mut banks_left = 0;
        for index in banks {
            let bank = &mut self.banks[index];
            if bank.syncing.is_some() {
                let waiting = if bank.needs_sync { &mut bank.waiting_next } else { &mut bank.waiting_now };
                waiting.push(ticket);
                banks_left += 1;
            } else if bank.needs_sync {
                bank.waiting_now.push(ticket);
                self.start_sync(index);
                banks_left += 1;
            }
        }
        if banks_left == 0 {
            return Ok(Progress::Done);
        }
        self.flushes.insert(ticket, Waiters { banks_left, error: None });
        Ok(Progress::WouldBlock)
    }

    fn start_sync(&mut self, index: usize) {
        let bank = &mut self.banks[index];
        debug_assert!(bank.syncing.is_none());
        bank.needs_sync = false;
        bank.syncing = Some(std::mem::take(&mut bank.unsynced));
        let pages = std::mem::take(&mut bank.dirty).len();
        self.cleaning_pages += pages;
        let (file, mailbox, keeper) = (bank.file.clone(), self.mailbox.clone(), self.keeper.clone());
        let synced_lengths = self.synced_lengths.clone();
        self.syncs.give(Box::new(move |panics| {
            let file_bytes = DATA_OFFSET_BYTES + file.data_bytes();
            let record = || {
                synced_lengths[index].fetch_max(file_bytes, Atomic::AcqRel);
                let mut keeper = keeper.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                // One save records all the lengths that were synced meanwhile.
                if keeper.superblock().lengths[index] >= file_bytes {
                    return Ok(());
                }
                keeper.record_lengths(synced_lengths.iter().map(|length| length.load(Atomic::Acquire)))
            };
            let end = match panics.failed(Err(Errno::IO), || file.sync()) {
                Err(errno) => SyncEnd::DataFailed(errno),
                Ok(()) => match panics.failed(Err(MEDIA_FAILED), record) {
                    Err(error) => SyncEnd::RecordFailed(error),
                    Ok(()) => SyncEnd::Durable,
                },
            };
            mailbox.put(Finished::Synced { bank: index, pages, end });
        }));
    }

    fn synced(&mut self, index: usize, pages: u64, end: SyncEnd) {
        self.dirty_pages -= pages;
        self.cleaning_pages -= pages;
        let bank = &mut self.banks[index];
        let result = match end {
            SyncEnd::Durable => {
                bank.was_synced = true;
                Ok(())
            }
            SyncEnd::DataFailed(errno) => {
                bank.data_failed(errno);
                Err(StoreError::Failed(bank.suspect_error))
            }
            SyncEnd::RecordFailed(error) => {
                bank.needs_sync = true;
                Err(error)
            }
        };
        bank.syncing = None;
        bank.forget_reported_failure();
        let waiting_now = std::mem::take(&mut bank.waiting_now);
        let waiting_next = std::mem::take(&mut bank.waiting_next);
        for ticket in waiting_now {
            self.answer_flush(ticket, result);
        }
        // A writing out may have failed since those flushes began: then there is nothing that a sync can promise.
        let bank = &mut self.banks[index];
        if bank.may_have_lost() {
            let error = StoreError::Failed(bank.suspect_error);
            for ticket in waiting_next {
                self.answer_flush(ticket, Err(error));
            }
        } else if !waiting_next.is_empty() {
            bank.waiting_now = waiting_next;
            self.start_sync(index);
        }
    }

    fn answer_flush(&mut self, ticket: Ticket, result: Result<(), StoreError>) {
        let Some(waiters) = self.flushes.get_mut(&ticket) else { return };
        waiters.banks_left -= 1;
        waiters.error = waiters.error.or(result.err());
        if waiters.banks_left == 0 {
            let error = waiters.error;
            self.flushes.remove(&ticket);
            self.ended.push_back(StoreCompletion { ticket, result: error.map_or(Ok(Vec::new()), Err) });
        }
    }

    /// Begins to write out the banks with the most dirty pages, where that is due.
    pub(super) fn write_out(&mut self) {
        while self.write_outs < WRITE_OUTS_MAX && self.dirty_pages - self.cleaning_pages >= self.write_out_pages {
            let due = self.banks.iter().enumerate().filter(|(_, bank)| !bank.is_written_out && bank.syncing.is_none());
            let Some((index, _)) = due.max_by_key(|(_, bank)| bank.dirty.len()) else { return };
            let bank = &mut self.banks[index];
            if bank.dirty.is_empty() {
                return;
            }
            let pages = std::mem::take(&mut bank.dirty).len();
            self.cleaning_pages += pages;
            bank.is_written_out = true;
            self.write_outs += 1;
            let (file, mailbox) = (bank.file.clone(), self.mailbox.clone());
            self.syncs.give(Box::new(move |panics| {
                let result = panics.failed(Err(Errno::IO), || file.write_out());
                mailbox.put(Finished::WrittenOut { bank: index, pages, result });
            }));
        }
    }

    /// Has the keeper do something durably.
    pub(super) fn record(
        &mut self,
        ticket: Ticket,
        change: impl FnOnce(&mut Keeper) -> Result<(), StoreError> + Send + 'static,
    ) {
        let (keeper, mailbox) = (self.keeper.clone(), self.mailbox.clone());
        self.records.give(Box::new(move |panics| {
            let change = || change(&mut keeper.lock().unwrap_or_else(|poisoned| poisoned.into_inner()));
            let result = panics.failed(Err(MEDIA_FAILED), change);
            mailbox.put(Finished::Recorded { ticket, result });
        }));
    }
}

impl Bank {
    /// A sync or a writing out failed: what it was to make durable may be lost, and the system will not say so again.
    fn data_failed(&mut self, errno: Errno) {
        tracing::error!(path = %self.file.path.display(), %errno, "the disk refused data that had been written");
        self.failures += 1;
        // Never `Full`: this data was accepted.
        self.suspect_error = match store_error(errno) {
            StoreError::Failed(code) => code,
            _ => errno.raw_os_error(),
        };
        self.suspect.absorb(&self.unsynced);
        if let Some(syncing) = &self.syncing {
            self.suspect.absorb(syncing);
        }
        self.has_lost_unknown |= !self.was_synced;
        self.needs_sync = true;
    }

    /// True where data that was accepted may be lost.
    fn may_have_lost(&self) -> bool {
        self.has_lost_unknown || !self.suspect.is_empty()
    }

    /// A failure that this thread knows of is not to be reported by a later sync once more.
    fn forget_reported_failure(&self) {
        if self.syncing.is_none() && !self.is_written_out {
            self.file.forget_failure();
        }
    }
}
