//! Where the bytes of flash are: in memory, in a file, or nowhere but for the headers that an FTL recovers from.
//!
//! What always holds:
//! - The array above has checked every address and length, and asks for pages that were written and not forgotten alone.
//! - What fails with an error leaves the page as it was for the array: it is not counted as programmed.
//!
//! The array calls it.

pub mod file;
pub mod head;
mod headers;
mod kept;
mod pack;
mod ram;

use crate::geometry::Geometry;
pub use file::{FileContents, FileError, Sync};
pub use headers::HeaderContents;
pub use ram::RamContents;

/// What the medium keeps of a block beside its contents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Block {
    /// Erases, the medium's own count.
    pub erase_count: u32,
    /// Reads since the last erase.
    pub reads: u32,
    /// Seconds of the medium's time at which its first page was programmed.
    pub programmed_s: u32,
    /// The page whose turn it is.
    pub next_page: u16,
    /// [`Block::FACTORY_BAD`] and so on.
    pub flags: u8,
}

impl Block {
    /// Bad from the factory: never written, never read.
    pub const FACTORY_BAD: u8 = 1;
    /// A program or an erase failed: its pages can be read, nothing else.
    pub const WORN: u8 = 2;
    /// Its erasing was interrupted.
    pub const UNDEFINED: u8 = 4;

    /// Whether a flag is set.
    #[inline]
    pub fn is(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// A page's state, where it is not what its place before or after the next page says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageState {
    /// Programmed; the ordinary state before the next page.
    Programmed,
    /// Its programming failed or was interrupted.
    Unreadable,
    /// Its programming was interrupted, and it looks erased.
    LooksErased,
}

/// One page to be written.
#[derive(Clone, Copy)]
pub struct PageWrite<'a> {
    /// Die and block as one number.
    pub block: u64,
    /// Page of the block.
    pub page: u32,
    /// Erase count of the block.
    pub erase_count: u32,
    /// The bytes in pieces.
    pub data: &'a [&'a [u8]],
    /// Bytes of the spare area.
    pub spare: &'a [u8],
    /// Whether it is the FTL's own.
    pub metadata: bool,
    /// When, in seconds of the medium's time.
    pub time_s: u32,
}

/// Which of them it is.
#[derive(Debug)]
pub enum Contents {
    /// In memory.
    Ram(RamContents),
    /// In a file.
    File(Box<FileContents>),
    /// Headers alone.
    Headers(HeaderContents),
}

macro_rules! of_any {
    ($self:ident, $contents:ident => $call:expr) => {
        match $self {
            Contents::Ram($contents) => $call,
            Contents::File($contents) => $call,
            Contents::Headers($contents) => $call,
        }
    };
}

impl Contents {
    /// Writes a page.
    #[inline]
    pub fn write(&mut self, page: &PageWrite<'_>) -> Result<(), FileError> {
        match self {
            Contents::Ram(ram) => ram.write(page),
            Contents::File(file) => return file.write(page),
            Contents::Headers(headers) => headers.write(page),
        }
        Ok(())
    }

    /// Reads a part of a page and its spare area; false where it does not hold what was written (a torn write).
    #[inline]
    pub fn read(
        &mut self,
        (block, page): (u64, u32),
        offset: u32,
        data: &mut [u8],
        spare: &mut [u8],
    ) -> Result<bool, FileError> {
        match self {
            Contents::Ram(ram) => ram.read((block, page), offset, data, spare),
            Contents::File(file) => return file.read((block, page), offset, data, spare),
            Contents::Headers(headers) => headers.read((block, page), offset, data, spare),
        }
        Ok(true)
    }

    /// A page has another state than its place says; it holds nothing any more.
    pub fn mark(&mut self, block: u64, page: u32, erase_count: u32, state: PageState) -> Result<(), FileError> {
        match self {
            Contents::Ram(ram) => ram.mark(block, page),
            Contents::File(file) => return file.mark(block, page, erase_count, state),
            Contents::Headers(headers) => headers.mark(block, page),
        }
        Ok(())
    }

    /// A page is as if it had never been written: it was in the latches when the power went, or its write failed.
    pub fn forget(&mut self, block: u64, page: u32) -> Result<(), FileError> {
        of_any!(self, contents => contents.forget(block, page))
    }

    /// A block is erased: its pages hold nothing any more. Or its erasing was interrupted: they are as they were, as far as they can be read.
    /// `covered`: it destroys nothing whose copies are not safe from a power cut of the machine.
    #[inline]
    pub fn erase(&mut self, block: u64, state: &Block, covered: bool) -> Result<(), FileError> {
        match self {
            Contents::Ram(ram) => ram.erase(block, state),
            Contents::File(file) => return file.erase(block, state, covered),
            Contents::Headers(headers) => headers.erase(block, state),
        }
        Ok(())
    }

    /// What is kept of a block has changed, but not its pages.
    pub fn save_block(&mut self, block: u64, state: &Block) -> Result<(), FileError> {
        match self {
            Contents::File(file) => file.save_block(block, state),
            Contents::Ram(_) | Contents::Headers(_) => Ok(()),
        }
    }

    /// All that was written survives a power cut of the machine when this returns.
    pub fn sync(&mut self) -> Result<(), FileError> {
        match self {
            Contents::File(file) => file.sync(),
            Contents::Ram(_) | Contents::Headers(_) => Ok(()),
        }
    }

    /// Whether something may not be safe from a power cut of the machine that was written.
    pub fn must_sync(&self) -> bool {
        match self {
            Contents::File(file) => file.must_sync(),
            Contents::Ram(_) | Contents::Headers(_) => false,
        }
    }

    /// Begins a sync for another thread; `None` where there is nothing to sync.
    pub fn begin_sync(&mut self) -> Result<Option<file::Sync>, FileError> {
        match self {
            Contents::File(file) => file.begin_sync(),
            Contents::Ram(_) | Contents::Headers(_) => Ok(None),
        }
    }

    /// It has ended.
    pub fn end_sync(&mut self, result: std::io::Result<()>) -> Result<(), FileError> {
        match self {
            Contents::File(file) => file.end_sync(result),
            Contents::Ram(_) | Contents::Headers(_) => Ok(()),
        }
    }

    /// Syncs of the file so far.
    pub fn syncs(&self) -> u64 {
        match self {
            Contents::File(file) => file.syncs(),
            Contents::Ram(_) | Contents::Headers(_) => 0,
        }
    }

    /// Bytes of memory that it holds for pages.
    pub fn held_bytes(&self) -> u64 {
        of_any!(self, contents => contents.held_bytes())
    }
}

/// Gathers pieces into a buffer; what is missing becomes ones, as unprogrammed cells are.
#[inline]
fn gather(pieces: &[&[u8]], into: &mut [u8]) {
    let mut at = 0;
    for piece in pieces {
        into[at..at + piece.len()].copy_from_slice(piece);
        at += piece.len();
    }
    into[at..].fill(0xFF);
}

/// Blocks of a geometry as a number of entries.
fn entries(geometry: &Geometry) -> usize {
    usize::try_from(geometry.blocks()).expect("at most BLOCKS_MAX blocks")
}
