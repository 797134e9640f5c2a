//! Contents in one file for each bank (docs/media-format.md, section 9, has it byte by byte).
//!
//! What always holds:
//! - A page's record is written after its bytes, and tells their checksum and the erase count of its block. So a page is there with the
//!   bytes that were programmed, or not there, or (after a cut of the machine's power) known as unreadable.
//! - An erase that destroys something is written after everything that was programmed before it is on the disk, since that may have been copied.
//! - A failed sync is never passed off as a good one: syncs and erases fail from then on, until the file is opened again.
//! - At most one sync is under way, here or on another thread ([`Sync`]): the system tells of a failure once.
//! - Only one process has the file open.
//!
//! Death of the process loses nothing that was answered: whatever was written is in the system's page cache.

use super::head::{HEAD_BYTES, Head, Uuid};
use super::{Block, PageState, PageWrite, gather};
use crate::geometry::Geometry;
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes of a block's record and of a page's.
pub const RECORD_BYTES: u64 = 32;
/// The areas of the file begin at multiples of this.
const ALIGNMENT: u64 = 4096;
/// Bytes of page records that opening reads at a time.
const SCAN_BYTES: usize = 1 << 20;

/// Why an operation on the file failed.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The file cannot be used; what is wrong with it. It was left alone.
    #[error("{0}")]
    Refused(String),
    /// The disk has no room; it goes on when there is some.
    #[error("no room on the disk of the flash file: {0}")]
    NoRoom(io::Error),
    /// A sync failed before: what was written since may be lost, and nobody knows what.
    #[error("an earlier sync of the flash file failed: stop the device, check the disk, and start it again")]
    SyncFailed,
    /// The system's error.
    #[error("the flash file cannot be {doing}: {error}")]
    System {
        /// What was tried.
        doing: &'static str,
        /// What it said.
        error: io::Error,
    },
}

/// The system's error, told apart from a full disk.
fn failed(doing: &'static str) -> impl Fn(io::Error) -> FileError {
    move |error| match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
            FileError::NoRoom(error)
        }
        _ => FileError::System { doing, error },
    }
}

/// Where the areas of a file begin.
#[derive(Clone, Copy, Debug)]
struct Layout {
    pages_per_block: u64,
    page_bytes: u64,
    spare_bytes: u64,
    page_records: u64,
    spares: u64,
    data: u64,
    end: u64,
}

impl Layout {
    fn new(geometry: &Geometry) -> Layout {
        let (page_bytes, spare_bytes) = (u64::from(geometry.page_bytes), u64::from(geometry.spare_bytes));
        let page_records = (HEAD_BYTES as u64 + geometry.blocks() * RECORD_BYTES).next_multiple_of(ALIGNMENT);
        let spares = (page_records + geometry.pages() * RECORD_BYTES).next_multiple_of(ALIGNMENT);
        let data = (spares + geometry.pages() * spare_bytes).next_multiple_of(ALIGNMENT);
        Layout {
            pages_per_block: geometry.pages_per_block.into(),
            page_bytes,
            spare_bytes,
            page_records,
            spares,
            data,
            end: data + geometry.pages() * page_bytes,
        }
    }

    fn block_record(block: u64) -> u64 {
        HEAD_BYTES as u64 + block * RECORD_BYTES
    }

    fn page(&self, block: u64, page: u32) -> u64 {
        block * self.pages_per_block + u64::from(page)
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// The checksum of a record knows whose it is, so that one in another's place is noticed.
fn seal(record: &mut [u8; RECORD_BYTES as usize], number: u64) {
    let sum = crc32c::crc32c_append(crc32c::crc32c(&record[..28]), &number.to_le_bytes());
    record[28..].copy_from_slice(&sum.to_le_bytes());
}

fn is_sealed(record: &[u8], number: u64) -> bool {
    crc32c::crc32c_append(crc32c::crc32c(&record[..28]), &number.to_le_bytes()) == u32_at(record, 28)
}

fn encode_block(block: u64, state: &Block) -> [u8; RECORD_BYTES as usize] {
    let mut record = [0; RECORD_BYTES as usize];
    record[..4].copy_from_slice(&state.erase_count.to_le_bytes());
    record[4] = state.flags;
    record[8..12].copy_from_slice(&state.reads.to_le_bytes());
    seal(&mut record, block);
    record
}

/// A page's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PageRecord {
    erase_count: u32,
    state: PageState,
    spare_length: u16,
    data_sum: u32,
    spare_sum: u32,
    programmed_s: u32,
}

impl PageRecord {
    fn encode(&self, number: u64) -> [u8; RECORD_BYTES as usize] {
        let mut record = [0; RECORD_BYTES as usize];
        record[..4].copy_from_slice(&self.erase_count.to_le_bytes());
        record[4] = match self.state {
            PageState::Programmed => 1,
            PageState::Unreadable => 2,
            PageState::LooksErased => 3,
        };
        record[6..8].copy_from_slice(&self.spare_length.to_le_bytes());
        record[12..16].copy_from_slice(&self.data_sum.to_le_bytes());
        record[16..20].copy_from_slice(&self.spare_sum.to_le_bytes());
        record[20..24].copy_from_slice(&self.programmed_s.to_le_bytes());
        seal(&mut record, number);
        record
    }

    /// `None`: it is torn or damaged.
    fn decode(record: &[u8], number: u64) -> Option<PageRecord> {
        let state = match record[4] {
            1 => PageState::Programmed,
            2 => PageState::Unreadable,
            3 => PageState::LooksErased,
            _ => return None,
        };
        is_sealed(record, number).then(|| PageRecord {
            erase_count: u32_at(record, 0),
            state,
            spare_length: u16::from_le_bytes([record[6], record[7]]),
            data_sum: u32_at(record, 12),
            spare_sum: u32_at(record, 16),
            programmed_s: u32_at(record, 20),
        })
    }
}

/// What opening found beside the contents.
#[derive(Debug)]
pub struct Found {
    /// Who the file belongs to.
    pub head: Head,
    /// Every block.
    pub blocks: Vec<Block>,
    /// Pages in another state than their place says.
    pub exceptions: Vec<(u64, u32, PageState)>,
}

/// A sync of a flash file, for another thread. What was programmed before it was begun is on the disk when it has ended well.
pub struct Sync {
    file: Arc<File>,
    hook: SyncHook,
}

impl Sync {
    /// Waits for the disk.
    pub fn run(self) -> io::Result<()> {
        self.hook.before()?;
        self.file.sync_data()
    }
}

/// What a test has done before each sync: it may wait, and fail. Nothing in a device.
#[derive(Clone, Default)]
pub struct SyncHook(#[cfg(feature = "testing")] Option<Arc<dyn Fn() -> io::Result<()> + Send + std::marker::Sync>>);

impl std::fmt::Debug for SyncHook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SyncHook")
    }
}

impl SyncHook {
    /// Has this done before each sync.
    #[cfg(feature = "testing")]
    pub fn new(before: Arc<dyn Fn() -> io::Result<()> + Send + std::marker::Sync>) -> SyncHook {
        SyncHook(Some(before))
    }

    fn before(&self) -> io::Result<()> {
        #[cfg(feature = "testing")]
        if let Some(before) = &self.0 {
            return before();
        }
        Ok(())
    }
}

/// Contents in a file.
#[derive(Debug)]
pub struct FileContents {
    file: Arc<File>,
    layout: Layout,
    /// Programmed before the file was opened and not read since: their checksums are still to be compared.
    unverified: Vec<u64>,
    /// A page's bytes, to gather them and to compare checksums.
    buffer: Vec<u8>,
    /// Programs since the last sync was begun.
    unsynced: bool,
    /// A sync is under way on another thread.
    syncing: bool,
    sync_failed: bool,
    syncs: u64,
    hook: SyncHook,
}

impl FileContents {
    /// Makes a file for flash of which these blocks are bad from the factory. The path must be free; an interrupted creation leaves it so.
    pub fn create(path: &Path, head: &Head, blocks: &[Block]) -> Result<FileContents, FileError> {
        if path.exists() {
            return Err(FileError::Refused(format!("{} exists already: open it, or remove it", path.display())));
        }
        let layout = Layout::new(&head.geometry);
        let mut unfinished = path.as_os_str().to_owned();
        unfinished.push(".new");
        let unfinished = PathBuf::from(unfinished);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true).mode(0o600);
        let file = options.open(&unfinished).map_err(failed("created"))?;
        lock(&file)?;
        let mut table = Vec::with_capacity(blocks.len() * RECORD_BYTES as usize);
        for (number, block) in blocks.iter().enumerate() {
            table.extend_from_slice(&encode_block(number as u64, block));
        }
        file.set_len(layout.end).map_err(failed("made as long as the flash"))?;
        file.write_all_at(&head.encode(), 0).map_err(failed("written"))?;
        file.write_all_at(&table, Layout::block_record(0)).map_err(failed("written"))?;
        file.sync_all().map_err(failed("synced"))?;
        std::fs::rename(&unfinished, path).map_err(failed("renamed"))?;
        sync_folder_of(path)?;
        Ok(FileContents::over(file, layout, &head.geometry))
    }

    fn over(file: File, layout: Layout, geometry: &Geometry) -> FileContents {
        let words = usize::try_from(geometry.pages().div_ceil(64)).expect("fits into memory");
        FileContents {
            file: Arc::new(file),
            layout,
            unverified: vec![0; words],
            buffer: vec![0; geometry.page_bytes as usize],
            unsynced: false,
            syncing: false,
            sync_failed: false,
            syncs: 0,
            hook: SyncHook::default(),
        }
    }

    /// Opens a file of the data folder `uuid` for bank `bank` and flash of this geometry. The error names the file and what is wrong.
    pub fn open(path: &Path, uuid: &Uuid, bank: u64, geometry: &Geometry) -> Result<(FileContents, Found), FileError> {
        FileContents::open_it(path, uuid, bank, geometry).map_err(|error| match error {
            FileError::Refused(what) => FileError::Refused(format!("{}: {what}", path.display())),
            other => other,
        })
    }

    fn open_it(path: &Path, uuid: &Uuid, bank: u64, geometry: &Geometry) -> Result<(FileContents, Found), FileError> {
        let file = OpenOptions::new().read(true).write(true).open(path).map_err(failed("opened"))?;
        lock(&file)?;
        let length = file.metadata().map_err(failed("examined"))?.len();
        let mut bytes = vec![0; HEAD_BYTES.min(length as usize)];
        file.read_exact_at(&mut bytes, 0).map_err(failed("read"))?;
        let head = Head::decode(&bytes)?;
        let refuse = |what: String| Err(FileError::Refused(what));
        if head.uuid != *uuid {
            return refuse("it belongs to another data folder".into());
        }
        if head.bank != bank {
            return refuse(format!("it is bank {}, expected bank {bank}: files were swapped", head.bank));
        }
        if head.geometry != *geometry {
            return refuse(format!(
                "its flash is arranged otherwise than the preset's: {:?}, expected {geometry:?}",
                head.geometry
            ));
        }
        let layout = Layout::new(&head.geometry);
        if length != layout.end {
            let what = if length < layout.end { "truncated" } else { "longer than its flash" };
            return refuse(format!("it is {what}: {length} bytes, expected {}", layout.end));
        }
        let mut contents = FileContents::over(file, layout, &head.geometry);
        let blocks = contents.read_blocks(&head.geometry)?;
        let mut found = Found { head, blocks, exceptions: Vec::new() };
        contents.scan(&mut found)?;
        Ok((contents, found))
    }

    fn read_blocks(&self, geometry: &Geometry) -> Result<Vec<Block>, FileError> {
        let mut table = vec![0; geometry.blocks() as usize * RECORD_BYTES as usize];
        self.file.read_exact_at(&mut table, Layout::block_record(0)).map_err(failed("read"))?;
        let mut blocks = Vec::with_capacity(geometry.blocks() as usize);
        for (number, record) in table.chunks_exact(RECORD_BYTES as usize).enumerate() {
            if !is_sealed(record, number as u64) {
                return Err(FileError::Refused(format!("the record of block {number} is damaged (checksum)")));
            }
            blocks.push(Block {
                erase_count: u32_at(record, 0),
                flags: record[4],
                reads: u32_at(record, 8),
                ..Block::default()
            });
        }
        Ok(blocks)
    }

    /// Reads all page records.
    fn scan(&mut self, found: &mut Found) -> Result<(), FileError> {
        let per_block = self.layout.pages_per_block as usize * RECORD_BYTES as usize;
        let blocks_at_once = (SCAN_BYTES / per_block).max(1);
        let mut bytes = vec![0; blocks_at_once * per_block];
        let mut first = 0;
        while first < found.blocks.len() {
            let count = blocks_at_once.min(found.blocks.len() - first);
            let part = &mut bytes[..count * per_block];
            let at = self.layout.page_records + (first * per_block) as u64;
            self.file.read_exact_at(part, at).map_err(failed("read"))?;
            for (place, records) in part.chunks_exact(per_block).enumerate() {
                if records.iter().any(|byte| *byte != 0) {
                    self.scan_block((first + place) as u64, records, found);
                }
            }
            first += count;
        }
        Ok(())
    }

    fn scan_block(&mut self, block: u64, records: &[u8], found: &mut Found) {
        let state = &mut found.blocks[block as usize];
        let records: Vec<Option<Option<PageRecord>>> = records
            .chunks_exact(RECORD_BYTES as usize)
            .enumerate()
            .map(|(page, record)| {
                let written = record.iter().any(|byte| *byte != 0);
                written.then(|| PageRecord::decode(record, self.layout.page(block, page as u32)))
            })
            .collect();
        // A page of a later erase count than its block's proves that the erase had begun: only the block's record is missing.
        let latest = records.iter().flatten().flatten().map(|record| record.erase_count).max().unwrap_or(0);
        if latest > state.erase_count {
            (state.erase_count, state.reads) = (latest, 0);
            state.flags &= !Block::UNDEFINED;
        }
        // A block whose erasing was interrupted still holds pages of the life before.
        let life = state.erase_count.saturating_sub(u32::from(state.is(Block::UNDEFINED)));
        let of_now = |record: &Option<Option<PageRecord>>| match record {
            // A record that is torn belongs to a page that was being written.
            Some(None) => Some(PageState::Unreadable),
            Some(Some(record)) => (record.erase_count == life).then_some(record.state),
            None => None,
        };
        let states: Vec<Option<PageState>> = records.iter().map(of_now).collect();
        let end = states.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
        // Validated: a block has at most 65,535 pages.
        state.next_page = end as u16;
        for (page, page_state) in states[..end].iter().enumerate() {
            match page_state {
                Some(PageState::Programmed) => {
                    let number = self.layout.page(block, page as u32);
                    self.unverified[(number / 64) as usize] |= 1 << (number % 64);
                    let programmed_s = records[page].flatten().map_or(0, |record| record.programmed_s);
                    if state.programmed_s == 0 {
                        state.programmed_s = programmed_s;
                    }
                }
                // A page before one that is there, lost by a cut of the machine's power.
                None => found.exceptions.push((block, page as u32, PageState::Unreadable)),
                Some(other) => found.exceptions.push((block, page as u32, *other)),
            }
        }
    }

    pub(super) fn write(&mut self, page: &PageWrite<'_>) -> Result<(), FileError> {
        let number = self.layout.page(page.block, page.page);
        gather(page.data, &mut self.buffer);
        self.unsynced = true;
        let at = self.layout.data + number * self.layout.page_bytes;
        self.file.write_all_at(&self.buffer, at).map_err(failed("written"))?;
        if !page.spare.is_empty() {
            let at = self.layout.spares + number * self.layout.spare_bytes;
            self.file.write_all_at(page.spare, at).map_err(failed("written"))?;
        }
        let record = PageRecord {
            erase_count: page.erase_count,
            state: PageState::Programmed,
            // At most 65,535: validated.
            spare_length: page.spare.len() as u16,
            data_sum: crc32c::crc32c(&self.buffer),
            spare_sum: crc32c::crc32c(page.spare),
            programmed_s: page.time_s,
        };
        self.write_record(number, &record.encode(number))?;
        self.unverified[(number / 64) as usize] &= !(1 << (number % 64));
        Ok(())
    }

    fn write_record(&mut self, number: u64, record: &[u8; RECORD_BYTES as usize]) -> Result<(), FileError> {
        let at = self.layout.page_records + number * RECORD_BYTES;
        self.unsynced = true;
        self.file.write_all_at(record, at).map_err(failed("written"))
    }

    pub(super) fn read(
        &mut self,
        (block, page): (u64, u32),
        offset: u32,
        data: &mut [u8],
        spare: &mut [u8],
    ) -> Result<bool, FileError> {
        let number = self.layout.page(block, page);
        let unverified = self.unverified[(number / 64) as usize] & (1 << (number % 64)) != 0;
        let at = self.layout.data + number * self.layout.page_bytes;
        if unverified || !spare.is_empty() {
            let mut record = [0; RECORD_BYTES as usize];
            let record_at = self.layout.page_records + number * RECORD_BYTES;
            self.file.read_exact_at(&mut record, record_at).map_err(failed("read"))?;
            let Some(record) = PageRecord::decode(&record, number) else {
                return Ok(false);
            };
            let mut known = vec![0; usize::from(record.spare_length).min(self.layout.spare_bytes as usize)];
            let spare_at = self.layout.spares + number * self.layout.spare_bytes;
            self.file.read_exact_at(&mut known, spare_at).map_err(failed("read"))?;
            if unverified {
                self.file.read_exact_at(&mut self.buffer, at).map_err(failed("read"))?;
                let fits =
                    crc32c::crc32c(&self.buffer) == record.data_sum && crc32c::crc32c(&known) == record.spare_sum;
                if !fits {
                    return Ok(false);
                }
                self.unverified[(number / 64) as usize] &= !(1 << (number % 64));
            }
            let length = known.len().min(spare.len());
            spare[..length].copy_from_slice(&known[..length]);
            spare[length..].fill(0xFF);
        }
        if !data.is_empty() {
            self.file.read_exact_at(data, at + u64::from(offset)).map_err(failed("read"))?;
        }
        Ok(true)
    }

    pub(super) fn mark(&mut self, block: u64, page: u32, erase_count: u32, state: PageState) -> Result<(), FileError> {
        let number = self.layout.page(block, page);
        let record = PageRecord { erase_count, state, spare_length: 0, data_sum: 0, spare_sum: 0, programmed_s: 0 };
        self.write_record(number, &record.encode(number))
    }

    pub(super) fn forget(&mut self, block: u64, page: u32) -> Result<(), FileError> {
        self.write_record(self.layout.page(block, page), &[0; RECORD_BYTES as usize])
    }

    pub(super) fn erase(&mut self, block: u64, state: &Block, covered: bool) -> Result<(), FileError> {
        if self.sync_failed || self.must_sync() && !covered {
            self.sync()?;
        }
        self.save_block(block, state)
    }

    pub(super) fn save_block(&mut self, block: u64, state: &Block) -> Result<(), FileError> {
        self.file.write_all_at(&encode_block(block, state), Layout::block_record(block)).map_err(failed("written"))
    }

    pub(super) fn sync(&mut self) -> Result<(), FileError> {
        if self.sync_failed {
            return Err(FileError::SyncFailed);
        }
        assert!(!self.syncing, "a sync is under way on another thread");
        self.unsynced = false;
        self.syncing = true;
        let sync = Sync { file: self.file.clone(), hook: self.hook.clone() };
        self.end_sync(sync.run())
    }

    /// Whether something may not be on the disk that was programmed.
    pub(super) fn must_sync(&self) -> bool {
        self.unsynced || self.syncing
    }

    /// Begins a sync that another thread does; `None` where there is nothing to sync.
    pub(super) fn begin_sync(&mut self) -> Result<Option<Sync>, FileError> {
        if self.sync_failed {
            return Err(FileError::SyncFailed);
        }
        if !self.unsynced {
            return Ok(None);
        }
        assert!(!self.syncing, "one sync at a time");
        (self.unsynced, self.syncing) = (false, true);
        Ok(Some(Sync { file: self.file.clone(), hook: self.hook.clone() }))
    }

    /// It has ended.
    pub(super) fn end_sync(&mut self, result: io::Result<()>) -> Result<(), FileError> {
        self.syncing = false;
        result.map_err(|error| {
            self.sync_failed = true;
            FileError::System { doing: "synced", error }
        })?;
        self.syncs += 1;
        Ok(())
    }

    #[cfg(feature = "testing")]
    pub fn set_hook(&mut self, hook: SyncHook) {
        self.hook = hook;
    }

    pub(super) fn syncs(&self) -> u64 {
        self.syncs
    }

    pub(super) fn held_bytes(&self) -> u64 {
        (self.unverified.len() * 8 + self.buffer.len()) as u64
    }
}

fn lock(file: &File) -> Result<(), FileError> {
    match file.try_lock() {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => {
            Err(FileError::Refused("it is in use by another process: stop that one first".into()))
        }
        Err(TryLockError::Error(error)) => Err(FileError::System { doing: "locked", error }),
    }
}

fn sync_folder_of(path: &Path) -> Result<(), FileError> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed("synced with its folder"))
}

#[cfg(test)]
mod tests;
