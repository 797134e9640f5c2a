//! The keeper of the small records of a data folder: superblock, device metadata, blobs.
//!
//! What always holds:
//! - The length that the superblock records for a bank file is never above the length that is durable: it is recorded
//!   after a sync of that file. So a file that is shorter was truncated by somebody else.
//! - One change at a time, in the order in which they were asked for; each is durable when its call returns.
//!
//! The file store calls it, from one worker at a time (it is behind a lock), and at opening.

use super::copies::{CopiesError, TwoCopies, UNPLACED_SUFFIX, remove, replace};
use super::folder::Folder;
use super::record::{HEADER_BYTES, Kind, Record, RecordError, Uuid, field};
use crate::media::store::{MEDIA_FAILED, StoreError};
use crate::media::{BANKS_MAX, BLOB_BYTES_MAX, BLOB_NAME_BYTES_MAX, METADATA_BYTES_MAX};
use std::io;

/// Stem of the names of the superblock's copies.
pub const SUPERBLOCK: &str = "superblock";
/// Stem of the names of the metadata's copies.
pub const METADATA: &str = "metadata";
const SUPERBLOCK_FIXED_BYTES: usize = 16;
const SUPERBLOCK_BYTES_MAX: usize = SUPERBLOCK_FIXED_BYTES + 8 * BANKS_MAX;

/// The superblock's payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Bytes that a bank can hold at most.
    pub bank_bytes: u64,
    /// For each bank the least length that its file must have.
    pub lengths: Vec<u64>,
}

impl Superblock {
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(SUPERBLOCK_FIXED_BYTES + 8 * self.lengths.len());
        bytes.extend_from_slice(&(self.lengths.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&self.bank_bytes.to_le_bytes());
        for length in &self.lengths {
            bytes.extend_from_slice(&length.to_le_bytes());
        }
        bytes
    }

    /// Checks all that can be checked without the bank files.
    pub fn decode(bytes: &[u8]) -> Result<Superblock, RecordError> {
        let damaged = || RecordError::Damaged("superblock fields");
        if bytes.len() < SUPERBLOCK_FIXED_BYTES {
            return Err(damaged());
        }
        let banks = u32::from_le_bytes(field(bytes, 0)) as usize;
        let bank_bytes = u64::from_le_bytes(field(bytes, 8));
        if !shape_is_valid(banks, bank_bytes) || bytes.len() != SUPERBLOCK_FIXED_BYTES + 8 * banks {
            return Err(damaged());
        }
        let lengths =
            bytes[SUPERBLOCK_FIXED_BYTES..].chunks_exact(8).map(|length| u64::from_le_bytes(field(length, 0)));
        Ok(Superblock { bank_bytes, lengths: lengths.collect() })
    }
}

/// True for a number of banks and a bank size that the format allows.
pub fn shape_is_valid(banks: usize, bank_bytes: u64) -> bool {
    (1..=BANKS_MAX).contains(&banks)
        && bank_bytes > 0
        && bank_bytes.is_multiple_of(super::pages::PAGE_BYTES)
        && bank_bytes <= super::BANK_BYTES_MAX
}

/// The keeper.
pub struct Keeper {
    folder: Box<dyn Folder + Send>,
    blobs: Box<dyn Folder + Send>,
    uuid: Uuid,
    superblock_copies: TwoCopies,
    superblock: Superblock,
    metadata_copies: TwoCopies,
}

impl Keeper {
    /// Writes the records of a new data folder, all but the superblock.
    pub fn create_metadata(folder: &mut dyn Folder, uuid: Uuid) -> io::Result<()> {
        TwoCopies::create(folder, Kind::Metadata, METADATA, uuid, &[])
    }

    /// Writes the superblock: the last step of creation. Its first copy is put in place by one rename, and without it
    /// there is no data folder.
    pub fn create_superblock(folder: &mut dyn Folder, uuid: Uuid, superblock: &Superblock) -> io::Result<()> {
        let [first, second] = TwoCopies::names(SUPERBLOCK);
        let bytes = Record { uuid, number: 0, payload: superblock.encode() }.encode(Kind::Superblock);
        folder.create(&second, &bytes)?;
        folder.sync(&second)?;
        folder.sync_folder()?;
        replace(folder, &first, &bytes)
    }

    /// Reads superblock and metadata.
    pub fn open(mut folder: Box<dyn Folder + Send>, mut blobs: Box<dyn Folder + Send>) -> Result<Keeper, CopiesError> {
        let (superblock_copies, record, torn) =
            TwoCopies::open(&mut *folder, Kind::Superblock, SUPERBLOCK, None, SUPERBLOCK_BYTES_MAX)?;
        warn_torn(torn);
        let superblock = Superblock::decode(&record.payload)
            .map_err(|problem| CopiesError::Refused { file: TwoCopies::names(SUPERBLOCK).join(", "), problem })?;
        let uuid = record.uuid;
        let (metadata_copies, _, torn) =
            TwoCopies::open(&mut *folder, Kind::Metadata, METADATA, Some(uuid), METADATA_BYTES_MAX)?;
        warn_torn(torn);
        // Names that a kill left undurable are made durable before anything is built on them.
        for folder in [&mut folder, &mut blobs] {
            folder.sync_folder().map_err(|error| CopiesError::Io { file: ".".to_owned(), error })?;
        }
        Ok(Keeper { folder, blobs, uuid, superblock_copies, superblock, metadata_copies })
    }

    /// Identity of the data folder.
    pub fn uuid(&self) -> Uuid {
        self.uuid
    }

    /// The superblock as it is durable.
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// Records that bank files are durable at these lengths; shorter ones than recorded change nothing.
    pub fn record_lengths(&mut self, lengths: impl Iterator<Item = u64>) -> Result<(), StoreError> {
        let mut superblock = self.superblock.clone();
        for (recorded, length) in superblock.lengths.iter_mut().zip(lengths) {
            *recorded = length.max(*recorded);
        }
        if superblock != self.superblock {
            self.superblock_copies.save(&mut *self.folder, &superblock.encode()).map_err(io_error)?;
            self.superblock = superblock;
        }
        Ok(())
    }

    /// The newest metadata, or `None` where none was ever saved.
    pub fn load_metadata(&mut self) -> Result<Option<Vec<u8>>, StoreError> {
        let record = self.metadata_copies.read(&mut *self.folder).map_err(|error| {
            tracing::error!(%error, "cannot read the metadata");
            copies_error(error)
        })?;
        Ok((record.number > 0).then_some(record.payload))
    }

    /// Replaces the metadata.
    pub fn save_metadata(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        self.metadata_copies.save(&mut *self.folder, bytes).map_err(io_error)
    }

    /// Reads a blob.
    pub fn load_blob(&mut self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let bytes_max = (HEADER_BYTES + BLOB_NAME_BYTES_MAX + BLOB_BYTES_MAX) as u64;
        let Some(bytes) = self.blobs.read(name, bytes_max).map_err(io_error)? else { return Ok(None) };
        let damaged = |problem: &dyn std::fmt::Display| {
            tracing::error!(blob = name, %problem, "cannot use a blob");
            MEDIA_FAILED
        };
        let mut record = Record::decode(Kind::Blob, &bytes).map_err(|error| damaged(&error))?;
        if record.uuid != self.uuid {
            return Err(damaged(&"it belongs to another data folder"));
        }
        if record.payload.len() < BLOB_NAME_BYTES_MAX || record.payload[..BLOB_NAME_BYTES_MAX] != name_field(name) {
            return Err(damaged(&"it was saved under another name"));
        }
        record.payload.drain(..BLOB_NAME_BYTES_MAX);
        Ok(Some(record.payload))
    }

    /// Saves a blob; the store has checked name and length.
    pub fn save_blob(&mut self, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
        let mut payload = Vec::with_capacity(BLOB_NAME_BYTES_MAX + bytes.len());
        payload.extend_from_slice(&name_field(name));
        payload.extend_from_slice(bytes);
        let record = Record { uuid: self.uuid, number: 0, payload }.encode(Kind::Blob);
        replace(&mut *self.blobs, name, &record).map_err(io_error)
    }

    /// Removes a blob.
    pub fn delete_blob(&mut self, name: &str) -> Result<(), StoreError> {
        remove(&mut *self.blobs, name).map_err(io_error)
    }
}

/// True for a file that an interrupted replacement left behind.
pub fn is_unplaced(name: &str) -> bool {
    name.ends_with(UNPLACED_SUFFIX)
}

fn name_field(name: &str) -> [u8; BLOB_NAME_BYTES_MAX] {
    let mut bytes = [0; BLOB_NAME_BYTES_MAX];
    bytes[..name.len()].copy_from_slice(name.as_bytes());
    bytes
}

fn warn_torn(torn: Option<CopiesError>) {
    if let Some(error) = torn {
        tracing::warn!(%error, "a save was interrupted; the copy before it is used");
    }
}

fn io_error(error: io::Error) -> StoreError {
    match error.raw_os_error() {
        Some(code) => super::bank::store_error(rustix::io::Errno::from_raw_os_error(code)),
        None => MEDIA_FAILED,
    }
}

fn copies_error(error: CopiesError) -> StoreError {
    match error {
        CopiesError::Io { error, .. } => io_error(error),
        _ => MEDIA_FAILED,
    }
}
