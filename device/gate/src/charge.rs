//! What operations cost: what SPU-OS is about to do for an app is charged to its run before it is done ([`crate::meter`]).
//!
//! Invariants: no operation begins that was not charged ([`Charged`]), and one that is past the budget has done nothing; what depends on what
//! an operation finds in the app's memory is charged piece by piece, before each ([`Meter::charge_piece`]).

use crate::meter::{
    DMA_SLICE_BYTES, ENTRY_WORK, Fault, MESSAGE_WORK, MOVED_BYTES_A_WORK, Meter, OverBudget, PRINTED_BYTE_WORK,
    SEGMENT_WORK, STORE_WORK,
};
use crate::{
    Checksum, Compare, FlashOperation, LiteralSearch, LocalMemory, Operation, Receive, SpuOs, Table, literals,
};

/// Bytes of a body that an import copies for what any import costs: as many as inline arguments are at most.
pub const FREE_BYTES_MAX: u32 = 64;

/// That an operation has been charged: what begins one asks for this.
#[derive(Debug)]
pub struct Charged(());

/// Charges an operation; `None` where it is refused, since the run may not move, or the app wait for, that much.
#[inline(always)]
pub(crate) fn charge<Os: SpuOs, M: LocalMemory>(
    os: &mut Os,
    caller: Os::Caller,
    memory: &M,
    operation: &Operation,
) -> Result<Option<Charged>, Fault> {
    match operation {
        Operation::Dma(dma) => {
            if !charge_moved(os, caller, dma.bytes())? {
                return Ok(None);
            }
            // One that moves nothing is looked at as well.
            os.meter(caller).charge(u64::from(dma.segments.max(1)) * SEGMENT_WORK)?;
            if !os.may_begin(caller) {
                return Ok(None);
            }
        }
        Operation::RemoteDma(remote) => {
            if !charge_moved(os, caller, remote.dma.bytes())? {
                return Ok(None);
            }
            os.meter(caller).charge(SEGMENT_WORK + MESSAGE_WORK)?;
            if !os.may_begin(caller) {
                return Ok(None);
            }
        }
        Operation::Compare(Compare { bytes, .. }) | Operation::Checksum(Checksum { bytes, .. }) => {
            if !charge_moved(os, caller, (*bytes).into())? {
                return Ok(None);
            }
            os.meter(caller).charge_piece((*bytes).into())?;
        }
        Operation::FindLiterals(LiteralSearch { bytes, .. }) => {
            if !charge_moved(os, caller, (*bytes).into())? {
                return Ok(None);
            }
            os.meter(caller).charge(SEGMENT_WORK)?;
        }
        Operation::FindKey(search) => {
            if !charge_moved(os, caller, search.layout.span_bytes.into())? {
                return Ok(None);
            }
            os.meter(caller).charge(search.work())?;
        }
        Operation::MultiplyAdd(asked) => {
            // Both are read, and one is written.
            if !charge_moved(os, caller, 3 * asked.row_bytes())? {
                return Ok(None);
            }
            os.meter(caller).charge(SEGMENT_WORK)?;
            if !os.may_begin(caller) {
                return Ok(None);
            }
        }
        Operation::Transform(transform) => {
            if !charge_moved(os, caller, 2 * transform.bytes().unwrap_or(u64::MAX / 4))? {
                return Ok(None);
            }
            os.meter(caller).charge(transform.work())?;
            if !os.may_begin(caller) {
                return Ok(None);
            }
        }
        Operation::Decompress(asked) => {
            if !charge_moved(os, caller, asked.bytes.into())? {
                return Ok(None);
            }
            os.meter(caller).charge(asked.work())?;
            if !os.may_begin(caller) {
                return Ok(None);
            }
        }
        Operation::LoadLiterals { bytes, .. } => {
            os.meter(caller).charge(literals::LOAD_WORK + u64::from(*bytes) * literals::LOAD_BYTE_WORK)?;
        }
        Operation::DmaNow(_) => os.meter(caller).charge(SEGMENT_WORK)?,
        Operation::Receive(receive) => {
            let bytes = copied_bytes(os, caller, receive);
            os.meter(caller).charge_bytes(bytes)?;
        }
        Operation::Draft(draft) => {
            let meter = os.meter(caller);
            meter.charge(MESSAGE_WORK)?;
            meter.charge_bytes(u64::from(draft.body_bytes) + u64::from(draft.reply_bytes))?;
        }
        Operation::Append(append) => os.meter(caller).charge_piece(append.bytes.into())?,
        Operation::Post { .. } | Operation::Sleep { .. } | Operation::Background { .. } => {
            os.meter(caller).charge(MESSAGE_WORK)?;
        }
        Operation::Cancel { token, .. } => {
            os.meter(caller).charge(MESSAGE_WORK)?;
            charge_entries(os, caller, Table::Waits { token: *token })?;
        }
        Operation::Subscribers { .. } => charge_entries(os, caller, Table::Subscriptions)?,
        Operation::AppNumber { bytes, .. } => {
            os.meter(caller).charge_bytes((*bytes).into())?;
            charge_entries(os, caller, Table::Apps)?;
        }
        Operation::Namespace { .. } => charge_entries(os, caller, Table::Namespaces)?,
        Operation::Region { .. } | Operation::RegionBytes { .. } | Operation::FreeRegion { .. } => {
            charge_entries(os, caller, Table::Regions)?;
        }
        Operation::Flush { .. } => os.meter(caller).charge(STORE_WORK)?,
        Operation::Print { text, bytes } => {
            let text = memory.slice(*text, *bytes as usize)?;
            os.meter(caller).charge(text.len() as u64 * PRINTED_BYTE_WORK)?;
            let lines = text.split(|byte| *byte == b'\n').count() as u64;
            os.meter(caller).charge(lines * crate::meter::LINE_WORK)?;
        }
        Operation::Flash(operation) => match operation {
            FlashOperation::BadBlocks { .. } | FlashOperation::Erase { .. } | FlashOperation::Health { .. } => {
                os.meter(caller).charge(STORE_WORK)?
            }
            FlashOperation::Read(read) => {
                os.meter(caller).charge_piece(u64::from(read.bytes) + u64::from(read.spare_bytes))?;
            }
            FlashOperation::Minimum { count, .. } => os.meter(caller).charge_bytes(u64::from(*count) * 4)?,
            FlashOperation::ReadMap { count, .. } => os.meter(caller).charge_bytes(u64::from(*count) * 32)?,
            FlashOperation::ZeroPeer { bytes, .. } => os.meter(caller).charge_bytes((*bytes).into())?,
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
fn charge_moved<Os: SpuOs>(os: &mut Os, caller: Os::Caller, bytes: u64) -> Result<bool, OverBudget> {
    let before = os.meter(caller).moved_bytes();
    let moved = before + bytes;
    if moved > DMA_SLICE_BYTES {
        if moved > os.dma_budget_bytes(caller) {
            return Ok(false);
        }
        if before >= DMA_SLICE_BYTES {
            // It was told to make way for others, by a completion that it did not wait for.
            os.meter(caller).charge(bytes / MOVED_BYTES_A_WORK)?;
        }
    }
    os.meter(caller).moves(bytes);
    Ok(true)
}

/// How many bytes a `receive` copies.
#[inline(always)]
fn copied_bytes<Os: SpuOs>(os: &Os, caller: Os::Caller, receive: &Receive) -> u64 {
    if receive.bytes <= FREE_BYTES_MAX { 0 } else { u64::from(receive.bytes).min(os.body_left(caller, receive)) }
}

fn charge_entries<Os: SpuOs>(os: &mut Os, caller: Os::Caller, table: Table) -> Result<(), OverBudget> {
    let entries = os.entries(caller, table);
    os.meter(caller).charge(entries * ENTRY_WORK)
}

/// What is charged in the midst of an operation.
impl Meter {
    /// A piece of an operation: looking at it, and the bytes that it copies.
    ///
    /// # Errors
    /// The run may not do that as well.
    pub fn charge_piece(&mut self, bytes: u64) -> Result<(), OverBudget> {
        self.charge(SEGMENT_WORK)?;
        self.charge_bytes(bytes)
    }

    /// A copy that an operation turns out to need.
    ///
    /// # Errors
    /// The run may not do that as well.
    pub fn charge_copy(&mut self, bytes: u64) -> Result<(), OverBudget> {
        self.charge_bytes(bytes)
    }

    /// What an operation has found, within what was left.
    ///
    /// # Errors
    /// The run may not do that as well.
    pub fn charge_found(&mut self, work: u64) -> Result<(), OverBudget> {
        self.charge(work)
    }

    /// A change of the region table.
    ///
    /// # Errors
    /// The run may not do that as well.
    pub fn charge_change(&mut self) -> Result<(), OverBudget> {
        self.charge(STORE_WORK)
    }
}
