//! A cut of the power in modelled time.
//!
//! Invariants:
//! - what the model says was done by then has taken effect, and what no array had begun has not; what an array was changing ends as the caller says;
//!   nothing else of the flash changes;
//! - afterwards the machine is of no use: only its store is.
//!
//! [`crate::Device::cut_power`] calls it.

use super::flash_job::{MadePage, Task};
use super::os::Machine;
use willow_flash_media::{CopybackPage, CutOutcome, FileError};

/// What a power cut found in the arrays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PowerCut {
    /// Pages that were being programmed.
    pub pages: u64,
    /// Blocks that were being erased.
    pub blocks: u64,
}

impl Machine {
    /// The power goes. `outcome` says what becomes of each page and each block that an array was changing.
    pub fn cut_power(&mut self, now_ns: u64, outcome: &mut dyn FnMut() -> CutOutcome) -> Result<PowerCut, FileError> {
        while self.flash_next_ns() <= now_ns {
            self.flash_due();
        }
        let mut cut = PowerCut::default();
        for token in self.flash_under_way_at_cut(now_ns) {
            let Some(job) = self.flash.take(token as u32) else { continue };
            let (die, task) = (job.die, job.task);
            // The device ends, and has closed its flash.
            let Some(array) = self.array_of(job.bank) else { continue };
            match task {
                Task::Program { pages, .. } => {
                    cut.pages += pages.len() as u64;
                    let outcomes: Vec<CutOutcome> = pages.iter().map(|_| outcome()).collect();
                    MadePage::with_all(&pages, |pages| array.cut_program(die, pages, &outcomes))?;
                }
                Task::Copyback { pages } => {
                    cut.pages += pages.len() as u64;
                    for page in &pages {
                        let copied = CopybackPage { from: page.from, to: page.to, spare: Some(&page.spare) };
                        array.cut_copyback(die, &copied, outcome())?;
                    }
                }
                Task::Erase { blocks } => {
                    cut.blocks += blocks.len() as u64;
                    for block in blocks {
                        array.cut_erase(die, block, outcome())?;
                    }
                }
                // A read changes nothing.
                Task::Read { .. } | Task::Source { .. } => {}
            }
        }
        for bank in 0..self.config.spus {
            if let Some(array) = self.array_of(bank) {
                array.power_up()?;
            }
        }
        if let Some(store) = self.media.store.delegating() {
            store.power_cut();
        }
        Ok(cut)
    }
}
