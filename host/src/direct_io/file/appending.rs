//! A file that its program opened for appending, and makes durable record by record: the device appends (Willow, 4.6), where the session is
//! for that ([`SessionOptions::appends`](crate::direct_io::SessionOptions)).
//!
//! What always holds:
//! - what was answered is durable, so that a sync of the file has nothing to do;
//! - each call is one record, whole, behind all that were answered before it, or what the kernel makes of that call;
//! - whatever else is done with the file ends this first: by then the file system has its length, and descriptors are what the program
//!   opened, with the positions that they would have.

use super::File;
use crate::direct_io::DirectError;
use crate::direct_io::append::{AppendFailure, Appender};
use crate::direct_io::session::add;
use append_host::Refusal;
use append_host::wire::RECORD_BYTES_MAX;
use rustix::fs::{AtFlags, StatxAttributes, StatxFlags};
use rustix::io::Errno;
use std::borrow::Cow;
use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Records in a row that the kernel appends, at most, before the file stays with it for a time.
const KERNEL_RUN_MAX: u32 = 32;

impl<F: AsFd> File<F> {
    /// True while its descriptor is a mere path, since the device appends to it.
    pub fn is_appending(&self) -> bool {
        self.inode.read().is_appending()
    }

    /// What a `write` of one record is, by a descriptor that appends: how many bytes were appended. `None`: the device does not, and
    /// nothing was done.
    pub fn append(&self, from: &[IoSlice<'_>]) -> Option<Result<usize, DirectError>> {
        let bytes = from.iter().map(|part| part.len()).sum::<usize>();
        if !self.appends || !self.writes || !self.session.options.appends {
            return None;
        }
        let is_worth = self.inode.note_append() || self.durable;
        if bytes == 0 || bytes > RECORD_BYTES_MAX as usize || self.session.check().is_err() {
            return None;
        }
        match self.appender(is_worth) {
            Ok(appender) => appender.map(|appender| self.append_by(&appender, from)),
            Err(error) => Some(Err(error.into())),
        }
    }

    /// By which it is appended; `None`: the kernel appends. An error: what was written before could not be made durable.
    fn appender(&self, is_worth: bool) -> Result<Option<Arc<Appender>>, Errno> {
        {
            let state = self.inode.read();
            if state.is_appending() {
                return Ok(state.appender().filter(|_| !self.is_forgotten()).cloned());
            }
        }
        if !is_worth || self.inode.is_kernels_turn() {
            return Ok(None);
        }
        let mut state = self.inode.write();
        if self.is_forgotten() || state.is_pinned || self.inode.is_held() || state.is_appending() {
            return Ok(None);
        }
        state.settle_before_appending()?;
        Ok(match state.begin_appending(&self.session) {
            Ok(appender) => {
                state.refusal = None;
                self.inode.begin_direct();
                Some(appender)
            }
            Err(error) => {
                tracing::debug!("the kernel appends: {error}");
                state.refusal = Some(error.to_string());
                add(&self.session.counters.refused);
                self.inode.stay_with_kernel();
                None
            }
        })
    }

    fn append_by(&self, appender: &Appender, from: &[IoSlice<'_>]) -> Result<usize, DirectError> {
        let record = match from {
            [one] => Cow::Borrowed(&one[..]),
            all => Cow::Owned(all.iter().flat_map(|part| part.iter().copied()).collect()),
        };
        // No lock is held: what is asked of the agent may have it take back what other threads do with the file.
        let done = match appender.append_by_device(&record) {
            Ok(Some(offset)) => {
                self.inode.count_direct();
                appender.kernel_run.store(0, Ordering::Relaxed);
                Ok((record.len(), offset + record.len() as u64))
            }
            // Nothing was done.
            Ok(None) | Err(AppendFailure::Refused(Refusal::Busy | Refusal::Full)) => {
                if appender.kernel_run.fetch_add(1, Ordering::Relaxed) >= KERNEL_RUN_MAX {
                    // Descriptors of the program's own are quicker than one for each record; without them it goes on as it is.
                    if let Err(error) = self.give_back() {
                        tracing::debug!("a file that the kernel appends to is not given back: {error}");
                    }
                }
                appender.write_by_kernel(from).map_err(DirectError::from)
            }
            Err(AppendFailure::Direct(error)) => Err(error),
            Err(failure) => {
                tracing::warn!("a record may not have been appended: {failure}");
                Err(Errno::from_raw_os_error(failure.errno()).into())
            }
        };
        let (count, end) = done?;
        self.inode.read().moved(self.number(), end);
        Ok(count)
    }

    /// A sync of a file that is appended to; `None`: it is synced as any other.
    pub(super) fn sync_appended(&self, data: bool) -> Option<Result<(), DirectError>> {
        if !self.appends || !self.writes || !self.session.options.appends {
            return self.is_appending().then(|| self.sync_by_kernel(data));
        }
        self.inode.note_sync();
        let state = self.inode.read();
        if !state.is_appending() {
            return None;
        }
        if let Some(appender) = state.appender().cloned() {
            drop(state);
            // While it is kept from being written, by the agent that has it, nobody else has written since that had it durable.
            if is_kept(appender.path()) {
                add(&self.session.counters.direct_syncs);
                return Some(Ok(()));
            }
            return Some(appender.sync_by_kernel(data).map_err(DirectError::from));
        }
        drop(state);
        Some(self.sync_by_kernel(data))
    }

    /// Something may have been written by a descriptor that has come since the device appends.
    fn sync_by_kernel(&self, data: bool) -> Result<(), DirectError> {
        let once = |descriptor: BorrowedFd<'_>| {
            if data { rustix::fs::fdatasync(descriptor) } else { rustix::fs::fsync(descriptor) }
        };
        Ok(self.change(once)?)
    }
}

/// True where a file is immutable, or append-only.
fn is_kept(path: BorrowedFd<'_>) -> bool {
    rustix::fs::statx(path, "", AtFlags::EMPTY_PATH, StatxFlags::empty())
        .is_ok_and(|found| found.stx_attributes.intersects(StatxAttributes::IMMUTABLE | StatxAttributes::APPEND))
}
