//! The write-ahead log of the versions on the host: records of rows before and after, one log for all, forced for all that wait at once.
//!
//! What always holds: records are whole and in the order of their transactions' commits; what was forced is on the device; a transaction whose
//! commit record is there has all its records there.

use super::bank::{PAGE_BYTES, Row};
use crate::host::Path;
use crate::thread::{HostLock, HostThread};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use willow_host::HreError;

/// What the log takes of the namespace. Ours.
pub const BYTES: u64 = 32 << 20;
/// The log is written in blocks of this: the least that the modelled file system writes without locking the file for one writer. Ours.
pub const BLOCK_BYTES: u64 = 4096;
/// Header of a record: its length, the length of a row, transaction, address, and room for what ARIES has besides. Ours.
pub const HEADER_BYTES: usize = 48;
/// Most bytes of one write. Ours.
const WRITE_BYTES_MAX: u64 = 1 << 20;

pub struct Log {
    /// One force at a time.
    forcing: HostLock,
    /// Where in the namespace it begins.
    start: u64,
    bytes: RefCell<Vec<u8>>,
    /// So far it is on the device.
    durable: Cell<u64>,
    forces: Cell<u64>,
}

fn header(record_bytes: usize, row_bytes: usize, transaction: u64, address: u64) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..4].copy_from_slice(&(record_bytes as u32).to_le_bytes());
    header[4..8].copy_from_slice(&(row_bytes as u32).to_le_bytes());
    header[8..16].copy_from_slice(&transaction.to_le_bytes());
    header[16..24].copy_from_slice(&address.to_le_bytes());
    header
}

fn number<const BYTES: usize>(header: &[u8], at: usize) -> u64 {
    header[at..at + BYTES].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

impl Log {
    pub fn new(forcing: HostLock, start: u64) -> Self {
        Log { forcing, start, bytes: RefCell::default(), durable: Cell::new(0), forces: Cell::new(0) }
    }

    /// Writes of the log so far.
    pub fn forces(&self) -> u64 {
        self.forces.get()
    }

    /// Adds a transaction with its commit: the end of it in the log, for [`Log::force`].
    pub fn append(&self, transaction: u64, rows: &[Row]) -> Result<u64, String> {
        let mut bytes = self.bytes.borrow_mut();
        for Row { address, before, after } in rows {
            let record_bytes = HEADER_BYTES + before.len() + after.len();
            bytes.extend(header(record_bytes, after.len(), transaction, *address));
            bytes.extend(before.iter().chain(after));
        }
        bytes.extend(header(HEADER_BYTES, 0, transaction, 0));
        let end = bytes.len() as u64;
        if end <= BYTES { Ok(end) } else { Err(format!("the log is longer than {BYTES} bytes")) }
    }

    /// Waits until the log is on the device up to `lsn`; whoever finds nobody at it writes for all.
    pub async fn force(&self, thread: &HostThread, path: Path, lsn: u64) -> Result<(), HreError> {
        if self.durable.get() >= lsn {
            return Ok(());
        }
        let _forcing = self.forcing.hold(thread).await;
        while self.durable.get() < lsn {
            let from = self.durable.get() / BLOCK_BYTES * BLOCK_BYTES;
            let end = (self.bytes.borrow().len() as u64).min(from + WRITE_BYTES_MAX);
            let mut data = self.bytes.borrow()[from as usize..end as usize].to_vec();
            data.resize(data.len().next_multiple_of(BLOCK_BYTES as usize), 0);
            thread.write(path, self.start + from, data).await?;
            self.forces.set(self.forces.get() + 1);
            self.durable.set(end);
        }
        Ok(())
    }

    /// Reads the log from the device and repeats its committed transactions on pages of zeroes.
    pub async fn replay(&self, thread: &HostThread, pages: &mut BTreeMap<u64, Vec<u8>>) -> Result<(), String> {
        let mut log = Vec::new();
        while (log.len() as u64) < BYTES && log.len() < self.bytes.borrow().len() {
            let address = self.start + log.len() as u64;
            let read = thread.read(Path::Bare, address, WRITE_BYTES_MAX as u32).await;
            log.extend(read.map_err(|error| error.to_string())?);
        }
        let (mut rest, mut of_transaction) = (&log[..], BTreeMap::<u64, Vec<(u64, &[u8])>>::new());
        while rest.len() >= HEADER_BYTES && number::<4>(rest, 0) != 0 {
            let record_bytes = number::<4>(rest, 0) as usize;
            let (row_bytes, transaction, address) = (number::<4>(rest, 4), number::<8>(rest, 8), number::<8>(rest, 16));
            let record = rest.get(..record_bytes).ok_or("a record of the log is cut off")?;
            if row_bytes > 0 {
                let after = &record[HEADER_BYTES + row_bytes as usize..];
                of_transaction.entry(transaction).or_default().push((address, after));
            } else {
                for (address, after) in of_transaction.remove(&transaction).unwrap_or_default() {
                    let page = pages.entry(address / PAGE_BYTES * PAGE_BYTES);
                    let page = page.or_insert_with(|| vec![0; PAGE_BYTES as usize]);
                    page[(address % PAGE_BYTES) as usize..][..after.len()].copy_from_slice(after);
                }
            }
            rest = &rest[record_bytes..];
        }
        Ok(())
    }
}
