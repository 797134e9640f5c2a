//! What operations cost: what SPU-OS is about to do for an app is charged to its run before it is done ([`crate::spu::meter`]).
//!
//! Invariants: nothing else in SPU-OS charges the meter; no operation begins that was not charged ([`Charged`]), and one that is past the
//! budget has done nothing; what depends on what an operation finds in the app's memory is charged piece by piece, before each.

use super::{FlashOperation, Operation};
use crate::config::DMA_SLICE_BYTES;
use crate::spu::accelerator::checksum::Checksum;
use crate::spu::accelerator::compare::Compare;
use crate::spu::accelerator::literals::{LOAD_BYTE_WORK, LOAD_WORK, LiteralSearch};
use crate::spu::activity::Caller;
use crate::spu::meter::{
    ENTRY_WORK, Fault, IMPORT_WORK, LINE_WORK, MESSAGE_WORK, OverBudget, PRINTED_BYTE_WORK, SEGMENT_WORK, STORE_WORK,
};
use crate::spu::os::{LocalMemory, Machine, planted};

/// That an operation has been charged: what begins one asks for this.
pub(crate) struct Charged(());

impl Machine {
    /// An import is called, by a run that may execute so many instructions more.
    #[inline]
    pub fn enter(&mut self, instructions_left: u64) -> Result<(), OverBudget> {
        self.meter.allow(if planted!(self, SkipsMeter) { u64::MAX } else { instructions_left });
        self.meter.charge(IMPORT_WORK)
    }

    /// A run begins whose instructions nobody counts.
    #[inline]
    pub fn enter_unmetered(&mut self) {
        self.meter.allow(u64::MAX);
    }

    /// Charged since the run began.
    #[inline]
    pub fn charged(&self) -> u64 {
        self.meter.done()
    }

    /// Charges an operation; `None` where it is refused, since the run may not move, or the app wait for, that much.
    #[inline(always)]
    pub(super) fn charge<M: LocalMemory>(
        &mut self,
        caller: Caller,
        memory: &M,
        operation: &Operation,
    ) -> Result<Option<Charged>, Fault> {
        match operation {
            Operation::Dma(dma) => {
                if !self.charge_moved(caller, dma.bytes())? {
                    return Ok(None);
                }
                self.meter.charge(u64::from(dma.segments) * SEGMENT_WORK)?;
                if !self.may_begin(caller) {
                    return Ok(None);
                }
            }
            Operation::Compare(Compare { bytes, .. })
            | Operation::Checksum(Checksum { bytes, .. })
            | Operation::FindLiterals(LiteralSearch { bytes, .. }) => {
                if !self.charge_moved(caller, (*bytes).into())? {
                    return Ok(None);
                }
                self.meter.charge(SEGMENT_WORK)?;
            }
            Operation::FindKey(search) => {
                if !self.charge_moved(caller, search.layout.span_bytes.into())? {
                    return Ok(None);
                }
                self.meter.charge(search.work())?;
            }
            Operation::LoadLiterals { bytes, .. } => {
                self.meter.charge(LOAD_WORK + u64::from(*bytes) * LOAD_BYTE_WORK)?;
            }
            Operation::DmaNow(_) => self.meter.charge(SEGMENT_WORK)?,
            Operation::Receive(receive) => {
                let bytes = self.copied_bytes(caller, receive);
                self.meter.charge_bytes(bytes)?;
            }
            Operation::Draft(draft) => {
                self.meter.charge(MESSAGE_WORK)?;
                self.meter.charge_bytes(u64::from(draft.body_bytes) + u64::from(draft.reply_bytes))?;
            }
            Operation::Append(append) => self.charge_piece(append.bytes.into())?,
            Operation::Post { .. } | Operation::Sleep { .. } | Operation::Background { .. } => {
                self.meter.charge(MESSAGE_WORK)?;
            }
            Operation::Cancel { token, .. } => {
                self.meter.charge(MESSAGE_WORK)?;
                let entries = self.cancel_entries(caller, *token);
                self.meter.charge(entries as u64 * ENTRY_WORK)?;
            }
            Operation::Subscribers { .. } => {
                let entries = self.subscriptions.of_app(caller.app);
                self.meter.charge(entries as u64 * ENTRY_WORK)?;
            }
            Operation::AppNumber { bytes, .. } => {
                self.meter.charge_bytes((*bytes).into())?;
                self.meter.charge(self.apps.len() as u64 * ENTRY_WORK)?;
            }
            Operation::Namespace { .. } => {
                self.meter.charge(self.published.namespaces.len() as u64 * ENTRY_WORK)?;
            }
            Operation::Region { .. } | Operation::RegionBytes { .. } | Operation::FreeRegion { .. } => {
                self.meter.charge(self.published.regions.all().len() as u64 * ENTRY_WORK)?;
            }
            Operation::Flush { .. } => self.meter.charge(STORE_WORK)?,
            Operation::Print { text, bytes } => {
                let text = memory.slice(*text, *bytes as usize)?;
                self.meter.charge(text.len() as u64 * PRINTED_BYTE_WORK)?;
                let lines = text.split(|byte| *byte == b'\n').count() as u64;
                self.meter.charge(lines * LINE_WORK)?;
            }
            Operation::Flash(operation) => match operation {
                FlashOperation::BadBlocks { .. } | FlashOperation::Erase { .. } => self.meter.charge(STORE_WORK)?,
                FlashOperation::Read(read) => {
                    self.charge_piece(u64::from(read.bytes) + u64::from(read.spare_bytes))?;
                }
                FlashOperation::Minimum { count, .. } => self.meter.charge_bytes(u64::from(*count) * 4)?,
                FlashOperation::ZeroPeer { bytes, .. } => self.meter.charge_bytes((*bytes).into())?,
                // A program is charged for each part of each page when that is found.
                FlashOperation::Geometry { .. } | FlashOperation::Program { .. } | FlashOperation::Pause { .. } => {}
            },
            Operation::Info { .. }
            | Operation::Respond { .. }
            | Operation::Count { .. }
            | Operation::FreeLiterals { .. } => {}
        }
        Ok(Some(Charged(())))
    }

    /// Counts bytes that a run is to move; false where they are more than it may. What it moves on top of its slice without having made way is
    /// work as well.
    #[inline]
    fn charge_moved(&mut self, caller: Caller, bytes: u64) -> Result<bool, OverBudget> {
        let before = self.run_dma_bytes;
        let moved = before + bytes;
        if moved > DMA_SLICE_BYTES {
            if moved > self.dma_budget_bytes(caller.app) {
                return Ok(false);
            }
            if before >= DMA_SLICE_BYTES {
                // It was told to make way for others, by a completion that it did not wait for.
                self.meter.charge_bytes(bytes)?;
            }
        }
        self.run_dma_bytes = moved;
        Ok(true)
    }

    /// Charges a piece of an operation: looking at it, and the bytes that it copies.
    pub fn charge_piece(&mut self, bytes: u64) -> Result<(), OverBudget> {
        self.meter.charge(SEGMENT_WORK)?;
        self.meter.charge_bytes(bytes)
    }

    /// Charges a copy that an operation turns out to need.
    pub fn charge_copy(&mut self, bytes: u64) -> Result<(), OverBudget> {
        self.meter.charge_bytes(bytes)
    }

    /// What the run may still have charged: how much may be found.
    pub fn charge_left(&self) -> u64 {
        self.meter.left()
    }

    /// Charges what an operation has found, within what was left.
    pub fn charge_found(&mut self, work: u64) -> Result<(), OverBudget> {
        self.meter.charge(work)
    }

    /// Charges a change of the region table.
    pub fn charge_change(&mut self) -> Result<(), OverBudget> {
        self.meter.charge(STORE_WORK)
    }
}
