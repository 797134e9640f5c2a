//! Ranges of blocks that come in a command's data: checked when these are there, before anything is begun.

use willow_wire::bytes::{u16_at, u32_at, u64_at};
use willow_wire::spec::Status;
use willow_wire::spec::opcode::nvm;

use crate::command::{Blocks, NamespaceView};
use crate::config::COPY_BYTES_MAX;
use crate::status::Failure;

/// The ranges of a Dataset Management command's data (NVM 3.2.3), checked; ranges of no blocks are left out.
pub fn dataset_ranges(data: &[u8], ranges: u16, view: &NamespaceView) -> Result<Vec<Blocks>, Failure> {
    let mut out = Vec::with_capacity(usize::from(ranges));
    for range in data.chunks_exact(nvm::DSM_RANGE_BYTES).take(usize::from(ranges)) {
        let (count, lba) = (u64::from(u32_at(range, 4)), u64_at(range, 8));
        if lba.checked_add(count).is_none_or(|end| end > view.blocks) {
            return Err(Failure::of(Status::LBA_OUT_OF_RANGE));
        }
        if count > 0 {
            out.push(Blocks { lba, start: lba << view.block_shift, bytes: count << view.block_shift });
        }
    }
    Ok(out)
}

/// What a Copy is to do: its source ranges (NVM 3.2.2, format 0), checked, and where they go.
pub fn copy_ranges(data: &[u8], to_lba: u64, view: &NamespaceView) -> Result<(Vec<Blocks>, Blocks), Failure> {
    let limit_blocks = u64::from(COPY_BYTES_MAX) >> view.block_shift;
    let within = |lba: u64, count: u64| match lba.checked_add(count).is_none_or(|end| end > view.blocks) {
        true => Err(Failure::of(Status::LBA_OUT_OF_RANGE)),
        false => Ok(Blocks { lba, start: lba << view.block_shift, bytes: count << view.block_shift }),
    };
    let (mut from, mut total) = (Vec::new(), 0);
    for range in data.chunks_exact(nvm::COPY_RANGE_BYTES) {
        let (lba, count) = (u64_at(range, 8), u64::from(u16_at(range, 16)) + 1);
        total += count;
        if total > limit_blocks {
            return Err(Failure::of(Status::COMMAND_SIZE_LIMIT_EXCEEDED));
        }
        from.push(within(lba, count)?);
    }
    Ok((from, within(to_lba, total)?))
}
