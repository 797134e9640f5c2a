//! Copyback: pages that move within their planes, through the die's own registers. Neither their payload nor the controller's ECC has part in it.
//!
//! What always holds: a copyback that is not [`Status::Done`] or failed in wear changes nothing. A page whose bits it takes a step of the ladder of
//! read retries to correct, or that cannot be corrected at all, is [`Status::Uncorrectable`] here: a chip has no ladder, and the controller, which has, is
//! to read the page and program it. What bits the chip could correct by itself do not add up over several copies (docs/model.md, "not modelled").

use crate::array::Array;
use crate::contents::FileError;
use crate::geometry::PageAddress;
use crate::operation::{CopybackPage, Misuse, ProgramPage, Read, Status};

impl Array {
    /// Copies pages, at most one of each plane, all at once.
    pub fn copyback(&mut self, die: u32, pages: &[CopybackPage<'_>]) -> Result<Status, FileError> {
        if let Err(misuse) = self.check_copyback(die, pages) {
            return Ok(self.misuse(misuse));
        }
        let (page_bytes, spare_bytes) = (self.geometry.page_bytes as usize, self.whole_page_spare_bytes());
        // The chip has no ladder: what needs a step of it goes by the controller.
        let needs_ladder = |of: &CopybackPage<'_>| self.retries_of(die, &self.whole_page(of.from)) > 0;
        if pages.iter().any(needs_ladder) {
            self.counters.uncorrectable_copybacks += 1;
            return Ok(Status::Uncorrectable { retries: 0 });
        }
        let mut buffer = vec![0; pages.len() * page_bytes];
        let mut old_spares = vec![0; pages.len() * spare_bytes];
        let mut worst_bits = 0;
        for (place, of) in pages.iter().enumerate() {
            let into = &mut buffer[place * page_bytes..][..page_bytes];
            let old_spare = &mut old_spares[place * spare_bytes..][..spare_bytes];
            match self.read(die, &self.whole_page(of.from), into, old_spare)? {
                Status::Done { corrected_bits, .. } => worst_bits = corrected_bits.max(worst_bits),
                other => return Ok(other),
            }
        }
        let data: Vec<[&[u8]; 1]> = buffer.chunks_exact(page_bytes).map(|page| [page]).collect();
        let targets = pages.iter().zip(&data).enumerate().map(|(place, (of, data))| ProgramPage {
            at: of.to,
            data,
            spare: of.spare.unwrap_or(&old_spares[place * spare_bytes..][..spare_bytes]),
            metadata: !self.keeps_payload() && self.keeps(die, of.from),
        });
        let targets: Vec<ProgramPage<'_>> = targets.collect();
        let status = self.program(die, &targets)?;
        self.counters.copybacks += pages.len() as u64;
        Ok(match status {
            Status::Done { .. } => Status::Done { corrected_bits: worst_bits, retries: 0 },
            other => other,
        })
    }

    fn whole_page(&self, at: PageAddress) -> Read {
        Read { at, offset_bytes: 0, length_bytes: self.geometry.page_bytes, spare: self.geometry.spare_accessible }
    }

    fn whole_page_spare_bytes(&self) -> usize {
        if self.geometry.spare_accessible { self.geometry.spare_bytes as usize } else { 0 }
    }

    fn check_copyback(&self, die: u32, pages: &[CopybackPage<'_>]) -> Result<(), Misuse> {
        for of in pages {
            self.check_page(die, of.from)?;
            if of.from.page != pages[0].from.page {
                return Err(Misuse::DifferentPages);
            }
        }
        let targets = pages.iter().map(|of| ProgramPage {
            spare: of.spare.unwrap_or(&[]),
            at: of.to,
            data: &[],
            metadata: false,
        });
        let targets: Vec<ProgramPage<'_>> = targets.collect();
        self.check_program(die, &targets)?;
        let leaves =
            |of: &CopybackPage<'_>| self.geometry.plane_of(of.from.block) != self.geometry.plane_of(of.to.block);
        if pages.iter().any(leaves) { Err(Misuse::OtherPlane) } else { Ok(()) }
    }
}
