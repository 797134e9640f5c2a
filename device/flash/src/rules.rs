//! The rules of flash: what an operation must keep to before anything is changed.
//!
//! What always holds: checks change nothing. An operation that passed them is refused by nothing but the flash itself (wear) or the file.

use crate::array::Array;
use crate::contents::Block;
use crate::geometry::{PageAddress, PlaneSet};
use crate::operation::{Misuse, ProgramPage, Read};

impl Array {
    #[inline]
    pub(crate) fn check_block(&self, die: u32, block: u32) -> Result<u64, Misuse> {
        if die >= self.geometry.dies() {
            return Err(Misuse::NoSuchDie(die));
        }
        if block >= self.geometry.blocks_per_die() {
            return Err(Misuse::NoSuchBlock(block));
        }
        Ok(self.block_number(die, block))
    }

    #[inline]
    pub(crate) fn check_page(&self, die: u32, at: PageAddress) -> Result<u64, Misuse> {
        let number = self.check_block(die, at.block)?;
        if at.page >= self.geometry.pages_per_block {
            return Err(Misuse::NoSuchPage(at.page));
        }
        Ok(number)
    }

    #[inline]
    pub(crate) fn check_read(&self, die: u32, read: &Read, data: usize, spare: usize) -> Result<u64, Misuse> {
        let number = self.check_page(die, read.at)?;
        let end = u64::from(read.offset_bytes) + u64::from(read.length_bytes);
        if end > u64::from(self.geometry.page_bytes) {
            return Err(Misuse::TooLong);
        }
        if read.spare && !self.geometry.spare_accessible {
            return Err(Misuse::SpareInaccessible);
        }
        let spare_most = if read.spare { self.geometry.spare_bytes as usize } else { 0 };
        if data != read.length_bytes as usize || spare > spare_most {
            return Err(Misuse::BufferLength);
        }
        Ok(number)
    }

    pub(crate) fn check_planes(&self, blocks: impl ExactSizeIterator<Item = u32>) -> Result<(), Misuse> {
        let count = blocks.len();
        if count == 0 || count > self.geometry.planes_per_die as usize {
            return Err(Misuse::Count(count as u32));
        }
        let mut planes = PlaneSet::default();
        for block in blocks {
            let plane = self.geometry.plane_of(block);
            if !planes.insert(plane) {
                return Err(Misuse::SamePlane(plane));
            }
        }
        Ok(())
    }

    /// The latches are free for these blocks.
    pub(crate) fn check_latches(&self, die: u32, blocks: impl Iterator<Item = u32> + Clone) -> Result<(), Misuse> {
        match &self.latches[die as usize] {
            Some(latches) if !latches.blocks.iter().copied().eq(blocks) => Err(Misuse::LatchesTaken(latches.blocks[0])),
            _ => Ok(()),
        }
    }

    pub(crate) fn check_program(&self, die: u32, pages: &[ProgramPage<'_>]) -> Result<(), Misuse> {
        if pages.is_empty() || pages.len() > self.geometry.planes_per_die as usize {
            return Err(Misuse::Count(pages.len() as u32));
        }
        for page in pages {
            let number = self.check_page(die, page.at)?;
            if page.at.page != pages[0].at.page {
                return Err(Misuse::DifferentPages);
            }
            let length: usize = page.data.iter().map(|piece| piece.len()).sum();
            if length > self.geometry.page_bytes as usize || page.spare.len() > self.geometry.spare_bytes as usize {
                return Err(Misuse::TooLong);
            }
            if !page.spare.is_empty() && !self.geometry.spare_accessible {
                return Err(Misuse::SpareInaccessible);
            }
            self.check_turn(number, page.at.page)?;
        }
        self.check_planes(pages.iter().map(|page| page.at.block))?;
        self.check_latches(die, pages.iter().map(|page| page.at.block))
    }

    #[inline]
    pub(crate) fn check_turn(&self, number: u64, page: u32) -> Result<(), Misuse> {
        let block = &self.blocks[number as usize];
        let next = u32::from(block.next_page);
        if block.flags & (Block::FACTORY_BAD | Block::WORN) != 0 {
            // It fails, whatever page it is.
            return Ok(());
        }
        if block.is(Block::UNDEFINED) || page < next {
            return Err(Misuse::NotErased(page));
        }
        if page > next {
            return Err(Misuse::OutOfOrder { page, next });
        }
        Ok(())
    }

    pub(crate) fn check_unlatched(&self, die: u32, blocks: &[u32]) -> Result<(), Misuse> {
        match &self.latches[die as usize] {
            Some(latches) if blocks.iter().any(|block| latches.blocks.contains(block)) => {
                Err(Misuse::LatchesTaken(latches.blocks[0]))
            }
            _ => Ok(()),
        }
    }
}
