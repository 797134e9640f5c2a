//! Contents in memory, taken as pages are programmed.
//!
//! What always holds: a block's pages are there from its first to the last that was written, unreadable ones as empty boxes; pages of erased blocks are used again, so that
//! programming touches warm memory and a medium in its steady state allocates nothing.

use super::{Block, FileError, PageWrite, entries, gather};
use crate::geometry::Geometry;

/// Most pages that wait to be used again; more go back to the system.
const SPARE_PAGES_MAX: usize = 4096;

/// Contents in memory.
#[derive(Debug)]
pub struct RamContents {
    page_bytes: usize,
    spare_bytes: usize,
    blocks: Vec<Vec<Box<[u8]>>>,
    /// Pages of erased blocks.
    free: Vec<Box<[u8]>>,
    held_pages: u64,
}

impl RamContents {
    /// Nothing written.
    pub fn new(geometry: &Geometry) -> RamContents {
        RamContents {
            page_bytes: geometry.page_bytes as usize,
            spare_bytes: geometry.spare_bytes as usize,
            blocks: vec![Vec::new(); entries(geometry)],
            free: Vec::new(),
            held_pages: 0,
        }
    }

    pub(super) fn write(&mut self, page: &PageWrite<'_>) {
        let mut buffer = self.free.pop().unwrap_or_else(|| {
            self.held_pages += 1;
            vec![0; self.page_bytes + self.spare_bytes].into_boxed_slice()
        });
        gather(page.data, &mut buffer[..self.page_bytes]);
        gather(&[page.spare], &mut buffer[self.page_bytes..]);
        let pages = &mut self.blocks[page.block as usize];
        assert_eq!(pages.len(), page.page as usize, "pages are written in order");
        pages.push(buffer);
    }

    #[inline]
    pub(super) fn read(&self, (block, page): (u64, u32), offset: u32, data: &mut [u8], spare: &mut [u8]) {
        let buffer = &self.blocks[block as usize][page as usize];
        let offset = offset as usize;
        data.copy_from_slice(&buffer[offset..offset + data.len()]);
        spare.copy_from_slice(&buffer[self.page_bytes..self.page_bytes + spare.len()]);
    }

    /// A page that holds nothing, and follows the others.
    pub(super) fn mark(&mut self, block: u64, page: u32) {
        let pages = &mut self.blocks[block as usize];
        let length = pages.len().max(page as usize + 1);
        pages.resize_with(length, Box::default);
        let buffer = std::mem::take(&mut pages[page as usize]);
        self.free.extend((!buffer.is_empty()).then_some(buffer));
        self.give_back();
    }

    pub(super) fn forget(&mut self, block: u64, page: u32) -> Result<(), FileError> {
        let pages = &mut self.blocks[block as usize];
        let from = (page as usize).min(pages.len());
        self.free.extend(pages.drain(from..).filter(|buffer| !buffer.is_empty()));
        self.give_back();
        Ok(())
    }

    pub(super) fn erase(&mut self, block: u64, state: &Block) {
        if state.is(Block::UNDEFINED) {
            return;
        }
        self.free.extend(self.blocks[block as usize].drain(..).filter(|buffer| !buffer.is_empty()));
        self.give_back();
    }

    fn give_back(&mut self) {
        if self.free.len() > SPARE_PAGES_MAX {
            self.held_pages -= (self.free.len() - SPARE_PAGES_MAX) as u64;
            self.free.truncate(SPARE_PAGES_MAX);
        }
    }

    pub(super) fn held_bytes(&self) -> u64 {
        self.held_pages * (self.page_bytes + self.spare_bytes) as u64
    }
}
