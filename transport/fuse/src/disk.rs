//! Bytes of the file as blocks of the namespace.
//!
//! What always holds: a range is cut at the end of the file when it is read, and refused beyond it when it is written; a part of
//! a block is written by reading the block, changing it and writing it, while no other write is under way.

use tokio::sync::RwLock;
use willow_host::{BlockClient, HreError};

/// A block namespace as a range of bytes.
pub struct Disk {
    blocks: BlockClient,
    /// Held for writing while a part of a block is changed, for reading by writes of whole blocks.
    parts: RwLock<()>,
}

impl Disk {
    /// Of a block namespace.
    pub fn new(blocks: BlockClient) -> Self {
        Disk { blocks, parts: RwLock::new(()) }
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.blocks.bytes()
    }

    /// Bytes of a block.
    pub fn block_bytes(&self) -> u32 {
        self.blocks.block_bytes()
    }

    fn is_whole(&self, offset: u64, bytes: u64) -> bool {
        let block = u64::from(self.block_bytes());
        offset.is_multiple_of(block) && bytes.is_multiple_of(block)
    }

    /// The whole blocks that hold a range: first byte, bytes.
    fn around(&self, offset: u64, bytes: u64) -> (u64, u64) {
        let block = u64::from(self.block_bytes());
        let start = offset / block * block;
        (start, (offset + bytes).next_multiple_of(block) - start)
    }

    /// Reads; shorter at the end of the file.
    pub async fn read(&self, offset: u64, bytes: usize) -> Result<Vec<u8>, HreError> {
        let bytes = (bytes as u64).min(self.bytes().saturating_sub(offset));
        if bytes == 0 {
            return Ok(Vec::new());
        }
        if self.is_whole(offset, bytes) {
            return self.blocks.read(offset, bytes as usize).await;
        }
        let (start, length) = self.around(offset, bytes);
        let mut whole = self.blocks.read(start, length as usize).await?;
        whole.drain(..(offset - start) as usize);
        whole.truncate(bytes as usize);
        Ok(whole)
    }

    /// Writes; `durable`: it survives a power cut when this returns.
    pub async fn write(&self, offset: u64, data: Vec<u8>, durable: bool) -> Result<(), HreError> {
        let bytes = data.len() as u64;
        if offset.checked_add(bytes).is_none_or(|end| end > self.bytes()) {
            return Err(HreError::OutOfRange);
        }
        if self.is_whole(offset, bytes) {
            let _whole = self.parts.read().await;
            return self.blocks.write(offset, data, durable).await.map(|_| ());
        }
        let _alone = self.parts.write().await;
        let (start, length) = self.around(offset, bytes);
        let mut whole = self.blocks.read(start, length as usize).await?;
        let at = (offset - start) as usize;
        whole[at..at + data.len()].copy_from_slice(&data);
        self.blocks.write(start, whole, durable).await.map(|_| ())
    }

    /// Makes a range read as zeroes; the space of its whole blocks may be given back where `deallocate` says so.
    pub async fn zero(&self, offset: u64, bytes: u64, deallocate: bool) -> Result<(), HreError> {
        let end = offset.checked_add(bytes).ok_or(HreError::OutOfRange)?.min(self.bytes());
        if offset >= end {
            return Ok(());
        }
        let block = u64::from(self.block_bytes());
        let (first, last) = (offset.next_multiple_of(block), end / block * block);
        if first >= last {
            // Within a block, or over the edge between two.
            return self.write(offset, vec![0; (end - offset) as usize], false).await;
        }
        if offset < first {
            self.write(offset, vec![0; (first - offset) as usize], false).await?;
        }
        {
            let _whole = self.parts.read().await;
            self.blocks.write_zeroes(first, last - first, deallocate).await?;
        }
        if last < end {
            self.write(last, vec![0; (end - last) as usize], false).await?;
        }
        Ok(())
    }

    /// Makes all that was written durable.
    pub async fn flush(&self) -> Result<(), HreError> {
        self.blocks.flush().await
    }
}
