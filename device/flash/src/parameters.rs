//! All parameters of one flash medium, as a preset's table says them.

use crate::check::{Absurd, within};
use crate::faults::FaultParameters;
use crate::geometry::{Cell, Geometry};
use crate::timing::TimingParameters;
use serde::{Deserialize, Serialize};

/// What a preset says of flash.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlashParameters {
    /// How it is arranged.
    pub geometry: Geometry,
    /// How long it takes.
    pub timing: TimingParameters,
    /// What goes wrong.
    pub faults: FaultParameters,
    /// What the controller beside it has.
    pub controller: ControllerParameters,
}

/// Hardware of a controller that firmware uses beside the flash itself.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ControllerParameters {
    /// DRAM for maps and buffers, bytes.
    pub dram_bytes: u64,
    /// Blocks of each die that are left to an FTL's user at most, in parts of 10,000; the rest is over-provisioning.
    pub user_blocks_per_ten_thousand: u32,
    /// Whether an FTL finds the block to collect by the accelerator for minima.
    pub victim_search: bool,
    /// Whether an FTL moves pages by copyback, where they stay in their plane.
    pub copyback: bool,
    /// Free blocks of a lane below which an FTL begins to collect; 0: as it thinks best.
    pub collect_below_blocks: u32,
}

impl FlashParameters {
    /// Checks all values; the error names the field, its value and what was expected.
    pub fn validate(&self) -> Result<(), Absurd> {
        self.geometry.validate()?;
        self.timing.validate()?;
        self.faults.validate(self.geometry.page_bytes)?;
        if self.faults.paired_page_loss && self.geometry.cell != Cell::Mlc {
            return Err(Absurd::new(
                "paired_page_loss",
                true,
                "false, since pages of MLC alone are programmed in pairs",
            ));
        }
        if self.faults.word_line_buffer && self.geometry.cell != Cell::Tlc {
            return Err(Absurd::new("word_line_buffer", true, "false, since word lines of TLC alone are gathered"));
        }
        let kinds = match self.geometry.cell {
            Cell::Slc => [true, false, false],
            Cell::Mlc => [true, false, true],
            Cell::Tlc => [true, true, true],
        };
        let times = |times: crate::timing::PageTimes| [times.lower_ns, times.middle_ns, times.upper_ns];
        for (is_there, (read_ns, program_ns)) in
            kinds.into_iter().zip(times(self.timing.read).into_iter().zip(times(self.timing.program)))
        {
            if !is_there && read_ns + program_ns != 0 {
                return Err(Absurd::new(
                    "read or program",
                    read_ns.max(program_ns),
                    "0 ns for kinds of pages that the cell does not have",
                ));
            }
        }
        let c = &self.controller;
        within("dram_bytes", c.dram_bytes, 0..=1 << 50, "bytes")?;
        within("user_blocks_per_ten_thousand", c.user_blocks_per_ten_thousand, 1..=9_999, "of 10,000")?;
        let blocks = u64::from(self.geometry.blocks_per_plane);
        within(
            "collect_below_blocks",
            c.collect_below_blocks.into(),
            0..=blocks,
            "blocks, of which a plane has so many",
        )
    }
}
