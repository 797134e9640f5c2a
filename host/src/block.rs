//! A block namespace, by byte ranges of whole blocks: long ranges are split at what one command moves.

use crate::hre::{BlockCommand, Hre, HreError};
use crate::nvme_tcp::NamespaceKind;
use std::sync::Arc;

/// Most blocks of one command (NLB has 16 bits).
const BLOCKS_PER_COMMAND_MAX: u64 = 65536;
/// Most blocks of one range of Dataset Management.
const BLOCKS_PER_RANGE_MAX: u64 = u32::MAX as u64;
/// Ranges of one Dataset Management command.
const RANGES_MAX: usize = 256;

/// A block namespace.
#[derive(Clone)]
pub struct BlockClient {
    hre: Arc<dyn Hre>,
    nsid: u32,
    block_bytes: u32,
    blocks: u64,
}

impl BlockClient {
    /// Opens a namespace: its geometry is asked for once.
    pub async fn open(hre: Arc<dyn Hre>, nsid: u32) -> Result<Self, HreError> {
        let namespaces = hre.namespaces().await?;
        let found = namespaces.iter().find(|namespace| namespace.nsid == nsid);
        match found.map(|namespace| namespace.kind) {
            Some(NamespaceKind::Block { block_bytes, blocks }) => Ok(BlockClient { hre, nsid, block_bytes, blocks }),
            Some(_) => Err(HreError::Namespace { nsid, problem: "no block namespace" }),
            None => Err(HreError::Namespace { nsid, problem: "not there" }),
        }
    }

    /// NSID.
    pub fn nsid(&self) -> u32 {
        self.nsid
    }
    /// Bytes of a block.
    pub fn block_bytes(&self) -> u32 {
        self.block_bytes
    }
    /// Blocks.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }
    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.blocks * u64::from(self.block_bytes)
    }
    /// Most bytes that one command moves.
    pub fn command_bytes_max(&self) -> usize {
        let block = u64::from(self.block_bytes);
        let limit = self.hre.transfer_bytes_max().min(BLOCKS_PER_COMMAND_MAX * block);
        (limit / block * block).max(block) as usize
    }

    fn lba(&self, offset: u64, bytes: u64) -> Result<u64, HreError> {
        let block = u64::from(self.block_bytes);
        if !offset.is_multiple_of(block) || !bytes.is_multiple_of(block) {
            return Err(HreError::Argument(format!("{bytes} bytes at {offset} are no whole blocks of {block} bytes")));
        }
        if offset.checked_add(bytes).is_none_or(|end| end > self.bytes()) {
            return Err(HreError::OutOfRange);
        }
        Ok(offset / block)
    }

    /// Reads into a buffer, which comes back filled.
    pub async fn read_into(&self, offset: u64, mut buffer: Vec<u8>) -> Result<Vec<u8>, HreError> {
        let lba = self.lba(offset, buffer.len() as u64)?;
        let step = self.command_bytes_max();
        if buffer.is_empty() {
            return Ok(buffer);
        }
        if buffer.len() <= step {
            return self.hre.block(self.nsid, self.block_bytes, BlockCommand::Read { lba }, buffer).await;
        }
        let mut piece = Vec::new();
        let mut at = 0;
        while at < buffer.len() {
            let bytes = step.min(buffer.len() - at);
            piece.resize(bytes, 0);
            let lba = lba + (at / self.block_bytes as usize) as u64;
            piece = self.hre.block(self.nsid, self.block_bytes, BlockCommand::Read { lba }, piece).await?;
            buffer[at..at + bytes].copy_from_slice(&piece);
            at += bytes;
        }
        Ok(buffer)
    }

    /// Reads.
    pub async fn read(&self, offset: u64, bytes: usize) -> Result<Vec<u8>, HreError> {
        self.lba(offset, bytes as u64)?;
        self.read_into(offset, vec![0; bytes]).await
    }

    /// Writes a buffer, which comes back. `fua`: it is durable when this returns.
    pub async fn write(&self, offset: u64, buffer: Vec<u8>, fua: bool) -> Result<Vec<u8>, HreError> {
        self.moved_out(offset, buffer, |lba| BlockCommand::Write { lba, fua }).await
    }

    /// Fails with [`HreError::CompareFailed`] where a buffer differs from what is stored.
    pub async fn compare(&self, offset: u64, buffer: Vec<u8>) -> Result<Vec<u8>, HreError> {
        self.moved_out(offset, buffer, |lba| BlockCommand::Compare { lba }).await
    }

    async fn moved_out(
        &self,
        offset: u64,
        buffer: Vec<u8>,
        command: impl Fn(u64) -> BlockCommand,
    ) -> Result<Vec<u8>, HreError> {
        let lba = self.lba(offset, buffer.len() as u64)?;
        let step = self.command_bytes_max();
        if buffer.is_empty() {
            return Ok(buffer);
        }
        if buffer.len() <= step {
            return self.hre.block(self.nsid, self.block_bytes, command(lba), buffer).await;
        }
        for (index, piece) in buffer.chunks(step).enumerate() {
            let lba = lba + (index * step / self.block_bytes as usize) as u64;
            self.hre.block(self.nsid, self.block_bytes, command(lba), piece.to_vec()).await?;
        }
        Ok(buffer)
    }

    /// Makes all that was written durable.
    pub async fn flush(&self) -> Result<(), HreError> {
        self.hre.block(self.nsid, self.block_bytes, BlockCommand::Flush, Vec::new()).await.map(|_| ())
    }

    /// Makes a range read as zeroes; `deallocate`: its space may be given back.
    pub async fn write_zeroes(&self, offset: u64, bytes: u64, deallocate: bool) -> Result<(), HreError> {
        self.over(offset, bytes, |lba, blocks| BlockCommand::WriteZeroes { lba, blocks, deallocate }).await
    }

    /// Reads a range in the device without transferring it: fails where the media does.
    pub async fn verify(&self, offset: u64, bytes: u64) -> Result<(), HreError> {
        self.over(offset, bytes, |lba, blocks| BlockCommand::Verify { lba, blocks }).await
    }

    async fn over(&self, offset: u64, bytes: u64, command: impl Fn(u64, u32) -> BlockCommand) -> Result<(), HreError> {
        let mut lba = self.lba(offset, bytes)?;
        let mut left = bytes / u64::from(self.block_bytes);
        // Size limits of these commands (CNS 06h: VSL, WZSL) are not asked for; what any data command may move always fits.
        let step = self.command_bytes_max() as u64 / u64::from(self.block_bytes);
        while left > 0 {
            let blocks = left.min(step);
            self.hre.block(self.nsid, self.block_bytes, command(lba, blocks as u32), Vec::new()).await?;
            lba += blocks;
            left -= blocks;
        }
        Ok(())
    }

    /// Tells that ranges (offset, bytes) are of no use any more.
    pub async fn deallocate(&self, ranges: &[(u64, u64)]) -> Result<(), HreError> {
        let mut blocks = Vec::new();
        for (offset, bytes) in ranges {
            let mut lba = self.lba(*offset, *bytes)?;
            let mut left = bytes / u64::from(self.block_bytes);
            while left > 0 {
                let step = left.min(BLOCKS_PER_RANGE_MAX);
                blocks.push((lba, step as u32));
                lba += step;
                left -= step;
            }
        }
        for some in blocks.chunks(RANGES_MAX) {
            let command = BlockCommand::Deallocate(some.to_vec());
            self.hre.block(self.nsid, self.block_bytes, command, Vec::new()).await?;
        }
        Ok(())
    }
}
