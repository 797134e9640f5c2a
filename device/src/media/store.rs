//! The seam below the media controller: where a bank's bytes live. The device core does no I/O of its own; a store does
//! it, either at once or in its own time, and is polled for what has ended.
//!
//! Invariants:
//! - Operations on overlapping ranges take effect in the order in which they were begun, and none is seen half done by
//!   another: a store that works in the background keeps later overlapping operations waiting (they get
//!   [`Progress::WouldBlock`], and their `begin_` form queues behind).
//! - Bytes never written read as zeroes.
//! - After a completed flush, all that had completed before that flush was begun survives a power cut. What was not
//!   flushed may be lost in units of 512 bytes, in any combination; it survives the death of the process.
//! - A failed operation names what failed; a failed write leaves old or new bytes in each 512-byte unit.

use crate::shared::SharedSpan;

/// Names an operation that a store does in its own time.
pub type Ticket = u64;

/// Whether an operation is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Done.
    Done,
    /// It would have to wait: nothing has happened; use the `begin_` form.
    WouldBlock,
}

/// Why a store could not do what was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// No room (disk full, capacity reached). Nothing is corrupted; works again when there is room.
    #[error("no room left in the media")]
    Full,
    /// The medium or the disk under it failed.
    #[error("the media failed (os error {0})")]
    Failed(i32),
    /// Past the end of the bank.
    #[error("address past the end of the bank")]
    Range,
    /// As many operations are under way as there may be. Nothing has happened; works when some have ended.
    #[error("too many operations of the media are under way: try again")]
    Busy,
}

/// The operating system's input/output error: EIO.
pub const INPUT_OUTPUT_ERROR: i32 = 5;
/// A failure of which no more is known.
pub const MEDIA_FAILED: StoreError = StoreError::Failed(INPUT_OUTPUT_ERROR);

/// What ended in the background.
#[derive(Debug)]
pub struct StoreCompletion {
    /// As given to `begin_*`.
    pub ticket: Ticket,
    /// For reads the bytes, else empty.
    pub result: Result<Vec<u8>, StoreError>,
}

/// The banks' contents and the device's metadata.
pub trait Store: Send {
    /// Number of banks, one an SPU.
    fn banks(&self) -> usize;
    /// Bytes that a bank can hold at most.
    fn bank_bytes(&self) -> u64;
    /// True where completed writes can be lost by a power cut before a flush (NVMe: VWC).
    fn volatile_write_cache(&self) -> bool;

    /// Reads `into.len()` bytes, now or not at all.
    fn read(&mut self, bank: usize, address: u64, into: &mut [u8]) -> Result<Progress, StoreError>;
    /// Has the processor fetch a range into its caches, where the store is memory: true where a read of it is worth putting off
    /// for a moment, while there is other work.
    #[inline]
    fn prefetch(&self, _bank: usize, _address: u64, _bytes: u64) -> bool {
        false
    }
    /// As [`Store::read`] into memory that another process may change meanwhile; by way of private memory, unless the store knows better.
    fn read_shared(&mut self, bank: usize, address: u64, into: &mut SharedSpan<'_>) -> Result<Progress, StoreError> {
        let mut bytes = vec![0; into.len()];
        let progress = self.read(bank, address, &mut bytes)?;
        if progress == Progress::Done {
            into.copy_from(&bytes);
        }
        Ok(progress)
    }
    /// As [`Store::read`] of bytes that nobody looks at: by way of memory that is dropped, unless the store knows better.
    fn skip(&mut self, bank: usize, address: u64, bytes: usize) -> Result<Progress, StoreError> {
        self.read(bank, address, &mut vec![0; bytes])
    }
    /// Writes, now or not at all.
    fn write(&mut self, bank: usize, address: u64, from: &[u8]) -> Result<Progress, StoreError>;
    /// Makes the range read as zeroes, giving its space back where whole units of the store are covered; now or not.
    fn zero(&mut self, bank: usize, address: u64, bytes: u64) -> Result<Progress, StoreError>;
    /// Begins a read that would have blocked.
    fn begin_read(&mut self, ticket: Ticket, bank: usize, address: u64, bytes: usize);
    /// Begins a write that would have blocked.
    fn begin_write(&mut self, ticket: Ticket, bank: usize, address: u64, from: Vec<u8>);
    /// Begins a zeroing that would have blocked.
    fn begin_zero(&mut self, ticket: Ticket, bank: usize, address: u64, bytes: u64);
    /// Makes all completed writes durable, of one bank or (`None`) of all. `Done` where there is nothing left to do;
    /// [`Progress::WouldBlock`] means here and for the saves below that it has been begun, and its completion follows. After
    /// an error nothing follows.
    fn flush(&mut self, ticket: Ticket, bank: Option<usize>) -> Result<Progress, StoreError>;

    /// What has ended since the last call, one at a time; never waits.
    fn completed(&mut self) -> Option<StoreCompletion>;
    /// The name of the app that serves its banks, where one does.
    fn served_by(&self) -> Option<&str> {
        None
    }
    /// True where that app keeps in memory what it has answered and is not durable yet: its end loses that.
    fn volatile_service(&self) -> bool {
        false
    }
    /// The store itself, where an app serves its banks.
    fn delegating(&mut self) -> Option<&mut super::delegate::DelegatingStore> {
        None
    }
    /// True where there is something for an FTL, or for [`Store::completed`], that no other thread has to bring.
    fn has_news(&self) -> bool {
        false
    }
    /// Called from any thread of the store, or from within its methods, when there may be something for
    /// [`Store::completed`].
    fn set_waker(&mut self, waker: std::sync::Arc<dyn Fn() + Send + Sync>);

    /// The newest intact device metadata, or `None` in a fresh store.
    fn load_metadata(&mut self) -> Result<Option<Vec<u8>>, StoreError>;
    /// Replaces the metadata durably and atomically: after a cut it is the old or the new. Always ends by a completion, or
    /// `Done` at once.
    fn save_metadata(&mut self, ticket: Ticket, bytes: Vec<u8>) -> Result<Progress, StoreError>;
    /// A named blob (an app's module), or `None`.
    fn load_blob(&mut self, name: &str) -> Result<Option<Vec<u8>>, StoreError>;
    /// What reads a blob, on whatever thread that is to wait for the medium. By default it has been read by then.
    fn blob_reader(&mut self, name: &str) -> BlobReader {
        let loaded = self.load_blob(name);
        Box::new(|| loaded)
    }
    /// Names of the blobs that there are, in order; also of some whose save or removal did not end well.
    fn list_blobs(&mut self) -> Result<Vec<String>, StoreError>;
    /// Stores a blob durably under a name of `[a-z0-9-]`, replacing atomically what was there.
    fn save_blob(&mut self, ticket: Ticket, name: &str, bytes: Vec<u8>) -> Result<Progress, StoreError>;
    /// Removes a blob (no error if there is none).
    fn delete_blob(&mut self, ticket: Ticket, name: &str) -> Result<Progress, StoreError>;
}

/// Reads a blob ([`Store::load_blob`]) when it is called.
pub type BlobReader = Box<dyn FnOnce() -> Result<Option<Vec<u8>>, StoreError> + Send>;

/// The part of a [`Store`] that stands before another one, in the field of that name, which is the other's: the device's metadata and blobs.
#[macro_export]
macro_rules! records_of {
    ($inner:ident) => {
        fn load_metadata(&mut self) -> Result<Option<Vec<u8>>, $crate::StoreError> {
            self.$inner.load_metadata()
        }

        fn save_metadata(
            &mut self,
            ticket: $crate::Ticket,
            bytes: Vec<u8>,
        ) -> Result<$crate::Progress, $crate::StoreError> {
            self.$inner.save_metadata(ticket, bytes)
        }

        fn load_blob(&mut self, name: &str) -> Result<Option<Vec<u8>>, $crate::StoreError> {
            self.$inner.load_blob(name)
        }

        fn blob_reader(&mut self, name: &str) -> $crate::BlobReader {
            self.$inner.blob_reader(name)
        }

        fn list_blobs(&mut self) -> Result<Vec<String>, $crate::StoreError> {
            self.$inner.list_blobs()
        }

        fn save_blob(
            &mut self,
            ticket: $crate::Ticket,
            name: &str,
            bytes: Vec<u8>,
        ) -> Result<$crate::Progress, $crate::StoreError> {
            self.$inner.save_blob(ticket, name, bytes)
        }

        fn delete_blob(&mut self, ticket: $crate::Ticket, name: &str) -> Result<$crate::Progress, $crate::StoreError> {
            self.$inner.delete_blob(ticket, name)
        }
    };
}
