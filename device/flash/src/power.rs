//! The power goes: what becomes of operations that were in the array, and of what was in the latches.
//!
//! What always holds: nothing but the pages and blocks of those operations changes, and the lower pages in the same cells, where the
//! parameters say so. An FTL therefore never goes on in a block that was being programmed before it has looked at it.

use crate::array::Array;
use crate::contents::{Block, FileError, PageState};
use crate::operation::{CopybackPage, CutOutcome, ProgramPage, Status};

impl Array {
    /// Pages that were being programmed when the power went, each with what became of it. The operation is as [`Array::program`] would take
    /// it, and a misuse where that would refuse it. Data are used by [`CutOutcome::Complete`] alone.
    pub fn cut_program(
        &mut self,
        die: u32,
        pages: &[ProgramPage<'_>],
        outcomes: &[CutOutcome],
    ) -> Result<Status, FileError> {
        assert_eq!(pages.len(), outcomes.len(), "an outcome for each page");
        if let Err(misuse) = self.check_program(die, pages) {
            return Ok(Status::Misuse(misuse));
        }
        let together = self.together();
        // What was on its way into the latches is lost with them.
        if !(pages[0].at.page + 1).is_multiple_of(together) {
            return Ok(Status::Latched);
        }
        for (page, outcome) in pages.iter().zip(outcomes) {
            let number = self.block_number(die, page.at.block);
            let block = self.blocks[number as usize];
            if block.flags & (Block::FACTORY_BAD | Block::WORN) != 0 {
                continue;
            }
            let may_fail = page.at.page.is_multiple_of(self.geometry.pages_per_program() / together);
            let fails = may_fail && self.faults.program_fails(number, page.at.page, block.erase_count);
            match outcome {
                CutOutcome::NotBegun => {}
                CutOutcome::Complete if !fails => self.write_page(number, page)?,
                CutOutcome::Complete | CutOutcome::Interrupted => {
                    self.interrupt(number, page.at.page, PageState::Unreadable)?;
                }
                CutOutcome::LooksErased => self.interrupt(number, page.at.page, PageState::LooksErased)?,
            }
        }
        Ok(Status::DONE)
    }

    /// The pages that were to be programmed at once, up to this one, hold nothing, and neither does a lower page in the same cells.
    fn interrupt(&mut self, number: u64, page: u32, state: PageState) -> Result<(), FileError> {
        let first = page + 1 - self.together();
        for lost in first..=page {
            self.lose_page(number, lost, state)?;
        }
        self.blocks[number as usize].next_page = (page + 1) as u16;
        match self.geometry.paired_lower(page) {
            Some(lower) if self.faults.parameters().paired_page_loss => {
                self.lose_page(number, lower, PageState::Unreadable)
            }
            _ => Ok(()),
        }
    }

    /// A copyback whose target was being programmed when the power went.
    pub fn cut_copyback(
        &mut self,
        die: u32,
        copied: &CopybackPage<'_>,
        outcome: CutOutcome,
    ) -> Result<Status, FileError> {
        if outcome == CutOutcome::Complete {
            return self.copyback(die, &[*copied]);
        }
        let page = ProgramPage { at: copied.to, data: &[], spare: &[], metadata: false };
        self.cut_program(die, &[page], &[outcome])
    }

    /// A block that was being erased when the power went.
    pub fn cut_erase(&mut self, die: u32, block: u32, outcome: CutOutcome) -> Result<Status, FileError> {
        let number = match self.check_block(die, block) {
            Ok(number) => number,
            Err(misuse) => return Ok(Status::Misuse(misuse)),
        };
        let worn = self.blocks[number as usize].flags & (Block::FACTORY_BAD | Block::WORN) != 0;
        match outcome {
            CutOutcome::NotBegun => Ok(Status::DONE),
            CutOutcome::Complete => self.erase(die, &[block]),
            _ if worn => Ok(Status::DONE),
            CutOutcome::Interrupted | CutOutcome::LooksErased => {
                self.set_undefined(number)?;
                Ok(Status::DONE)
            }
        }
    }

    /// The power is back, after the cuts of what was in the arrays: latches are empty.
    pub fn power_up(&mut self) -> Result<(), FileError> {
        for die in 0..self.geometry.dies() {
            let Some(latches) = self.latches[die as usize].take() else { continue };
            for block in latches.blocks {
                let number = self.block_number(die, block);
                self.lose_word_line(number)?;
            }
        }
        Ok(())
    }

    /// Word lines that were not finished when the process ended.
    pub(crate) fn drop_unfinished_word_lines(&mut self) -> Result<(), FileError> {
        if self.together() > 1 {
            for number in 0..self.geometry.blocks() {
                self.lose_word_line(number)?;
            }
        }
        Ok(())
    }

    fn lose_word_line(&mut self, number: u64) -> Result<(), FileError> {
        let block = self.blocks[number as usize];
        let next = u32::from(block.next_page);
        let first = next - next % self.together();
        for page in first..next {
            self.contents.forget(number, page)?;
        }
        self.blocks[number as usize].next_page = first as u16;
        self.forget_exceptions(number, first);
        Ok(())
    }
}
