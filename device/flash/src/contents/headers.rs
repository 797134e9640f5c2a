//! No contents but what an FTL recovers from: spare areas, and pages that it marked as its own. For simulations of large devices; any other
//! page reads as zeroes.
//!
//! What always holds:
//! - What is read is what was written, with ones at its end where it was shorter than what is asked for.
//! - A block takes memory from its first page to its erase. Headers are kept packed ([`super::pack`]): as what differs from the page before, so
//!   that an FTL's header of 32 bytes takes some 8.

use super::pack::{pack, unpack};
use super::{Block, FileError, PageWrite, entries};
use crate::geometry::Geometry;
use std::collections::BTreeMap;

/// Pages from one that is packed by itself to the next: the longest way to any page.
const KEY_PAGES: usize = 16;

/// Headers of one block.
#[derive(Debug, Default)]
struct BlockHeaders {
    /// Of all pages, one after the other.
    bytes: Vec<u8>,
    /// Where those of pages 0, 16, 32 and so on begin.
    keys: Vec<u32>,
    pages: u16,
    /// Some page of it is, or was, the FTL's own.
    has_metadata: bool,
}

/// The header that was read or written last: the next one is often the next page's.
#[derive(Debug, Default)]
struct Cursor {
    /// Block and page; `None`: none.
    at: Option<(u64, u32)>,
    header: Vec<u8>,
    /// Where the next page's begins.
    end: usize,
}

/// One of the FTL's own pages. Logs are zeroes for the most part, which take no memory.
#[derive(Debug)]
struct Kept {
    /// Up to the last byte that is none.
    bytes: Box<[u8]>,
    /// Bytes that were written, zeroes included.
    written: u32,
}

/// Headers alone.
#[derive(Debug)]
pub struct HeaderContents {
    pages_per_block: usize,
    blocks: Vec<BlockHeaders>,
    /// The FTL's own pages.
    metadata: BTreeMap<(u64, u32), Kept>,
    cursor: Cursor,
    held_bytes: u64,
}

impl Kept {
    fn held_bytes(&self) -> u64 {
        self.bytes.len() as u64 + size_of::<((u64, u32), Kept)>() as u64
    }
}

impl HeaderContents {
    /// Nothing written.
    pub fn new(geometry: &Geometry) -> HeaderContents {
        let mut blocks = Vec::new();
        blocks.resize_with(entries(geometry), BlockHeaders::default);
        HeaderContents {
            pages_per_block: geometry.pages_per_block as usize,
            blocks,
            metadata: BTreeMap::new(),
            cursor: Cursor::default(),
            held_bytes: 0,
        }
    }

    pub(super) fn write(&mut self, page: &PageWrite<'_>) {
        assert_eq!(u32::from(self.blocks[page.block as usize].pages), page.page, "pages are written in order");
        self.append(page.block, page.spare);
        if page.metadata {
            let mut bytes = page.data.concat();
            let written = bytes.len() as u32;
            bytes.truncate(bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1));
            let bytes = Kept { bytes: bytes.into_boxed_slice(), written };
            self.held_bytes += bytes.held_bytes();
            self.blocks[page.block as usize].has_metadata = true;
            self.metadata.insert((page.block, page.page), bytes);
        }
    }

    fn append(&mut self, block: u64, spare: &[u8]) {
        let page = usize::from(self.blocks[block as usize].pages);
        let is_key = page.is_multiple_of(KEY_PAGES);
        if !is_key {
            self.seek(block, page as u32 - 1);
        }
        let headers = &mut self.blocks[block as usize];
        let before = (headers.bytes.capacity(), headers.keys.capacity());
        if is_key {
            headers.keys.push(headers.bytes.len() as u32);
            self.cursor.header.clear();
        }
        pack(&self.cursor.header, spare, &mut headers.bytes);
        headers.pages += 1;
        if usize::from(headers.pages) == self.pages_per_block {
            headers.bytes.shrink_to_fit();
            headers.keys.shrink_to_fit();
        }
        self.held_bytes += headers.bytes.capacity() as u64 + 4 * headers.keys.capacity() as u64;
        self.held_bytes -= before.0 as u64 + 4 * before.1 as u64;
        self.cursor.header.clear();
        self.cursor.header.extend_from_slice(spare);
        self.cursor.at = Some((block, page as u32));
        self.cursor.end = headers.bytes.len();
    }

    /// Has the cursor at a page.
    fn seek(&mut self, block: u64, page: u32) {
        let key = page as usize / KEY_PAGES;
        let headers = &self.blocks[block as usize];
        let (mut next, mut at) = match self.cursor.at {
            Some((held, held_page)) if held == block && held_page == page => return,
            Some((held, held_page)) if held == block && held_page < page && held_page as usize / KEY_PAGES == key => {
                (held_page + 1, self.cursor.end)
            }
            _ => {
                self.cursor.header.clear();
                ((key * KEY_PAGES) as u32, headers.keys[key] as usize)
            }
        };
        while next <= page {
            if (next as usize).is_multiple_of(KEY_PAGES) {
                self.cursor.header.clear();
            }
            at += unpack(&headers.bytes[at..], &mut self.cursor.header);
            next += 1;
        }
        self.cursor.at = Some((block, page));
        self.cursor.end = at;
    }

    pub(super) fn read(&mut self, (block, page): (u64, u32), offset: u32, data: &mut [u8], spare: &mut [u8]) {
        if !spare.is_empty() {
            self.seek(block, page);
            let known = &self.cursor.header;
            let length = known.len().min(spare.len());
            spare[..length].copy_from_slice(&known[..length]);
            spare[length..].fill(0xFF);
        }
        if data.is_empty() {
            return;
        }
        let of_ftl = self.blocks[block as usize].has_metadata;
        let Some(kept) = of_ftl.then(|| self.metadata.get(&(block, page))).flatten() else {
            data.fill(0);
            return;
        };
        let from = kept.bytes.get(offset as usize..).unwrap_or(&[]);
        let length = from.len().min(data.len());
        let written = (kept.written.saturating_sub(offset) as usize).min(data.len());
        data[..length].copy_from_slice(&from[..length]);
        data[length..written].fill(0);
        data[written..].fill(0xFF);
    }

    /// Whether a page is the FTL's own.
    #[inline]
    pub fn keeps(&self, (block, page): (u64, u32)) -> bool {
        self.blocks[block as usize].has_metadata && self.metadata.contains_key(&(block, page))
    }

    /// A page that holds nothing, and follows the others.
    pub(super) fn mark(&mut self, block: u64, page: u32) {
        while u32::from(self.blocks[block as usize].pages) <= page {
            self.append(block, &[]);
        }
        self.held_bytes -= self.metadata.remove(&(block, page)).map_or(0, |kept| kept.held_bytes());
    }

    pub(super) fn forget(&mut self, block: u64, page: u32) -> Result<(), FileError> {
        if page < u32::from(self.blocks[block as usize].pages) {
            let end = if page == 0 {
                0
            } else {
                self.seek(block, page - 1);
                self.cursor.end
            };
            let headers = &mut self.blocks[block as usize];
            headers.bytes.truncate(end);
            headers.keys.truncate((page as usize).div_ceil(KEY_PAGES));
            headers.pages = page as u16;
            if page == 0 {
                self.cursor.at = None;
            }
        }
        self.drop_metadata(block, page);
        Ok(())
    }

    pub(super) fn erase(&mut self, block: u64, state: &Block) {
        if state.is(Block::UNDEFINED) {
            return;
        }
        let headers = std::mem::take(&mut self.blocks[block as usize]);
        self.held_bytes -= headers.bytes.capacity() as u64 + 4 * headers.keys.capacity() as u64;
        if self.cursor.at.is_some_and(|(held, _)| held == block) {
            self.cursor.at = None;
        }
        self.drop_metadata(block, 0);
    }

    fn drop_metadata(&mut self, block: u64, from_page: u32) {
        while let Some((&key, _)) = self.metadata.range((block, from_page)..(block + 1, 0)).next() {
            let kept = self.metadata.remove(&key).expect("it was found");
            self.held_bytes -= kept.held_bytes();
        }
    }

    pub(super) fn held_bytes(&self) -> u64 {
        self.held_bytes + (self.blocks.len() * size_of::<BlockHeaders>()) as u64
    }
}
