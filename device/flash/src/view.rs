//! The medium as somebody sees it who looks at it from outside: statistics, maps, SMART.
//!
//! What always holds: looking changes nothing, and takes no read of a page.

use crate::array::Array;
use crate::contents::Block;

/// What a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockState {
    /// Erased.
    Erased,
    /// Some of its pages are programmed.
    Open,
    /// All of its pages are programmed.
    Full,
    /// Its erasing was interrupted by a power cut.
    Undefined,
    /// A program or an erase failed.
    Worn,
    /// Bad from the factory.
    FactoryBad,
}

/// A block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockView {
    /// What it is.
    pub state: BlockState,
    /// Erases so far.
    pub erase_count: u32,
    /// Pages programmed since the last one, those that failed included.
    pub programmed_pages: u32,
    /// Reads since the last one.
    pub reads: u32,
}

/// How the blocks are worn, those that are bad from the factory apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wear {
    /// Blocks.
    pub blocks: u64,
    /// Blocks of which a program or an erase failed.
    pub worn_blocks: u64,
    /// Erases of all.
    pub erases: u64,
    /// Of the block with the fewest.
    pub erases_min: u32,
    /// Of the block with the most.
    pub erases_max: u32,
}

impl Array {
    /// A block of a die; `None` where there is none.
    pub fn block(&self, die: u32, block: u32) -> Option<BlockView> {
        let block = &self.blocks[self.check_block(die, block).ok()? as usize];
        let programmed_pages = u32::from(block.next_page);
        let state = if block.is(Block::FACTORY_BAD) {
            BlockState::FactoryBad
        } else if block.is(Block::WORN) {
            BlockState::Worn
        } else if block.is(Block::UNDEFINED) {
            BlockState::Undefined
        } else if programmed_pages == 0 {
            BlockState::Erased
        } else if programmed_pages < self.geometry.pages_per_block {
            BlockState::Open
        } else {
            BlockState::Full
        };
        Some(BlockView { state, erase_count: block.erase_count, programmed_pages, reads: block.reads })
    }

    /// How the blocks are worn.
    pub fn wear(&self) -> Wear {
        let mut wear = Wear { erases_min: u32::MAX, ..Wear::default() };
        for block in self.blocks.iter().filter(|block| !block.is(Block::FACTORY_BAD)) {
            wear.blocks += 1;
            wear.worn_blocks += u64::from(block.is(Block::WORN));
            wear.erases += u64::from(block.erase_count);
            wear.erases_min = wear.erases_min.min(block.erase_count);
            wear.erases_max = wear.erases_max.max(block.erase_count);
        }
        if wear.blocks == 0 {
            wear.erases_min = 0;
        }
        wear
    }
}
