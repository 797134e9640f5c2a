//! No contents but what an FTL recovers from: spare areas, and pages that it marked as its own. For simulations of large devices; any other
//! page reads as zeroes.
//!
//! What always holds: a block takes memory from its first page to its erase, as much for each page as its longest spare area; what was
//! programmed shorter reads with ones at its end, as from any other contents.

use super::{Block, FileError, PageWrite, entries};
use crate::geometry::Geometry;
use std::collections::BTreeMap;

/// Headers of one block: `stride` bytes for each page.
#[derive(Debug, Default)]
struct BlockHeaders {
    bytes: Vec<u8>,
    stride: u16,
    /// Pages, which `bytes` does not tell where the stride is zero.
    pages: u16,
}

/// Headers alone.
#[derive(Debug)]
pub struct HeaderContents {
    pages_per_block: usize,
    blocks: Vec<BlockHeaders>,
    /// The FTL's own pages.
    metadata: BTreeMap<(u64, u32), Box<[u8]>>,
    held_bytes: u64,
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
            held_bytes: 0,
        }
    }

    pub(super) fn write(&mut self, page: &PageWrite<'_>) {
        let headers = &mut self.blocks[page.block as usize];
        assert_eq!(u32::from(headers.pages), page.page, "pages are written in order");
        // At most 65,535 bytes: validated.
        let length = page.spare.len() as u16;
        if length > headers.stride {
            let (old, new) = (usize::from(headers.stride), usize::from(length));
            let mut wider = Vec::with_capacity(new * self.pages_per_block);
            for number in 0..usize::from(headers.pages) {
                wider.extend_from_slice(&headers.bytes[number * old..(number + 1) * old]);
                wider.resize((number + 1) * new, 0xFF);
            }
            self.held_bytes += (wider.capacity() - headers.bytes.capacity()) as u64;
            headers.bytes = wider;
            headers.stride = length;
        }
        headers.pages += 1;
        headers.bytes.extend_from_slice(page.spare);
        headers.bytes.resize(usize::from(headers.pages) * usize::from(headers.stride), 0xFF);
        if page.metadata {
            let bytes: Box<[u8]> = page.data.concat().into();
            self.held_bytes += bytes.len() as u64;
            self.metadata.insert((page.block, page.page), bytes);
        }
    }

    pub(super) fn read(&self, (block, page): (u64, u32), offset: u32, data: &mut [u8], spare: &mut [u8]) {
        let headers = &self.blocks[block as usize];
        let stride = usize::from(headers.stride);
        let known = &headers.bytes[page as usize * stride..(page as usize + 1) * stride];
        let length = known.len().min(spare.len());
        spare[..length].copy_from_slice(&known[..length]);
        spare[length..].fill(0xFF);
        let Some(bytes) = self.metadata.get(&(block, page)) else {
            data.fill(0);
            return;
        };
        let from = bytes.get(offset as usize..).unwrap_or(&[]);
        let length = from.len().min(data.len());
        data[..length].copy_from_slice(&from[..length]);
        data[length..].fill(0xFF);
    }

    /// A page that holds nothing, and follows the others.
    pub(super) fn mark(&mut self, block: u64, page: u32) {
        let headers = &mut self.blocks[block as usize];
        headers.pages = headers.pages.max(page as u16 + 1);
        headers.bytes.resize(usize::from(headers.pages) * usize::from(headers.stride), 0xFF);
        self.held_bytes -= self.metadata.remove(&(block, page)).map_or(0, |bytes| bytes.len() as u64);
    }

    pub(super) fn forget(&mut self, block: u64, page: u32) -> Result<(), FileError> {
        let headers = &mut self.blocks[block as usize];
        headers.pages = headers.pages.min(page as u16);
        headers.bytes.truncate(usize::from(headers.pages) * usize::from(headers.stride));
        self.drop_metadata(block, page);
        Ok(())
    }

    pub(super) fn erase(&mut self, block: u64, _state: &Block) -> Result<(), FileError> {
        let headers = std::mem::take(&mut self.blocks[block as usize]);
        self.held_bytes -= headers.bytes.capacity() as u64;
        self.drop_metadata(block, 0);
        Ok(())
    }

    fn drop_metadata(&mut self, block: u64, from_page: u32) {
        while let Some((&key, _)) = self.metadata.range((block, from_page)..(block + 1, 0)).next() {
            let bytes = self.metadata.remove(&key).expect("it was found");
            self.held_bytes -= bytes.len() as u64;
        }
    }

    pub(super) fn held_bytes(&self) -> u64 {
        self.held_bytes + (self.blocks.len() * size_of::<BlockHeaders>()) as u64
    }
}
