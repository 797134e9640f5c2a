//! The rollback journal of a base, as SQLite writes it, in memory; on the disk where a transaction goes SQLite's own way.
//!
//! What always holds:
//! - a journal in memory keeps its last content when SQLite has deleted, cut or voided it, until the transaction has ended: where the commit
//!   has to go SQLite's own way after all, the journal is put on the disk first;
//! - a journal that is on the disk is the disk's: all goes there, and its deletion is the commit.

use crate::sqlite;
use crate::under::{Done, Under, delete};
use std::ffi::CStr;

/// Most bytes of a journal in memory.
const MEMORY_BYTES_MAX: usize = 16 << 20;
/// Bytes that SQLite voids of a journal that it keeps ("persist").
const VOIDED_BYTES: usize = 28;

/// A journal.
#[derive(Default)]
pub struct Journal {
    bytes: Vec<u8>,
    /// What it was when SQLite ended it.
    kept: Vec<u8>,
    /// SQLite sees it in its folder.
    pub is_there: bool,
    /// It is on the disk, by this file, or by one that SQLite has opened itself.
    disk: Option<Option<Under>>,
}

impl Journal {
    /// True where all goes SQLite's own way.
    pub fn is_on_disk(&self) -> bool {
        self.disk.is_some()
    }

    /// SQLite begins a journal.
    pub fn begin(&mut self) {
        *self = Journal { is_there: true, ..Journal::default() };
    }

    /// SQLite has opened one that is on the disk, to roll it back.
    pub fn begin_on_disk(&mut self) {
        *self = Journal { disk: Some(None), ..Journal::default() };
    }

    /// The transaction has ended. A journal that SQLite keeps open is empty from now on.
    pub fn end(&mut self) {
        self.kept = Vec::new();
        self.disk = None;
    }

    /// All is over, and nothing of it may be read any more.
    pub fn forget(&mut self) {
        *self = Journal::default();
    }

    /// True where there is something to roll back by, of a transaction that goes on.
    pub fn has_content(&self) -> bool {
        !self.bytes.is_empty()
    }

    /// The same of one that SQLite has ended.
    pub fn had_content(&self) -> bool {
        !self.kept.is_empty()
    }

    /// True where it takes more memory than it may.
    pub fn is_too_large(&self) -> bool {
        self.bytes.len() > MEMORY_BYTES_MAX
    }

    fn keep(&mut self) {
        if !self.bytes.is_empty() {
            self.kept = std::mem::take(&mut self.bytes);
        }
    }

    /// SQLite deletes it.
    pub fn delete(&mut self, path: &CStr, sync: bool) -> Done {
        self.keep();
        self.is_there = false;
        if self.disk.take().is_some() {
            self.kept = Vec::new();
            return delete(path, sync);
        }
        Ok(())
    }

    fn under(&mut self) -> Option<&mut Under> {
        self.disk.as_mut().and_then(Option::as_mut)
    }

    /// SQLite writes it.
    pub fn write(&mut self, offset: usize, data: &[u8]) -> Done {
        if let Some(under) = self.under() {
            return under.write(offset as u64, data);
        }
        let voids = offset == 0 && data.len() == VOIDED_BYTES && data.iter().all(|byte| *byte == 0);
        if voids && !self.bytes.is_empty() {
            self.kept = self.bytes.clone();
        }
        let end = offset.checked_add(data.len()).ok_or(sqlite::IOERR_WRITE)?;
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        self.bytes[offset..end].copy_from_slice(data);
        Ok(())
    }

    /// SQLite reads it.
    pub fn read(&mut self, offset: usize, into: &mut [u8]) -> Done {
        if let Some(under) = self.under() {
            return under.read(offset as u64, into);
        }
        let there = self.bytes.get(offset..).unwrap_or_default();
        let count = there.len().min(into.len());
        into[..count].copy_from_slice(&there[..count]);
        into[count..].fill(0);
        if count < into.len() { Err(sqlite::IOERR_SHORT_READ) } else { Ok(()) }
    }

    /// SQLite cuts it.
    pub fn truncate(&mut self, bytes: usize) -> Done {
        if let Some(under) = self.under() {
            under.truncate(bytes as u64)?;
            if bytes == 0 {
                // That was the commit.
                under.sync(sqlite::SYNC_NORMAL)?;
            }
            return Ok(());
        }
        if bytes == 0 {
            self.keep();
        }
        self.bytes.truncate(bytes);
        Ok(())
    }

    /// SQLite makes it durable.
    pub fn sync(&mut self, flags: i32) -> Done {
        self.under().map_or(Ok(()), |under| under.sync(flags))
    }

    /// How long it is.
    pub fn bytes(&mut self) -> Done<u64> {
        match self.under() {
            Some(under) => under.bytes(),
            None => Ok(self.bytes.len() as u64),
        }
    }

    /// Puts it on the disk, durably: as it is, or, where SQLite has ended it already, as it was.
    pub fn put_on_disk(&mut self, path: &CStr, has_ended: bool) -> Done {
        let mut under = Under::journal(path)?;
        under.truncate(0)?;
        let content = if has_ended { &self.kept } else { &self.bytes };
        under.write(0, content)?;
        under.sync(sqlite::SYNC_FULL)?;
        self.disk = Some(Some(under));
        self.bytes = Vec::new();
        Ok(())
    }

    /// Deletes what [`Journal::put_on_disk`] has made: the commit, where SQLite believes that it has deleted it long ago.
    pub fn delete_from_disk(&mut self, path: &CStr) -> Done {
        self.disk = None;
        self.kept = Vec::new();
        delete(path, true)
    }
}
