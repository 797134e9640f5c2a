//! Bytes of the file as blocks of the namespace.
//!
//! What always holds: a range is cut at the end of the file when it is read, and refused beyond it when it is written; a part of
//! a block is written by reading the block, changing it and writing it, while no other write is under way; where the device goes, and
//! there is a way to reach it again, requests wait for it, for a bounded time each, and are done anew: all of them may be done twice.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::RwLock;
use tokio::time::Instant;
use willow_host::hre::BoxFuture;
use willow_host::{BlockClient, HreError};

/// Time between two attempts to reach the device again.
const ATTEMPT_EVERY: Duration = Duration::from_millis(200);

/// Reaches the device again: the same namespace over another endpoint, or an error; [`HreError::is_gone`]: not yet.
pub type Reach = Box<dyn Fn() -> BoxFuture<'static, Result<BlockClient, HreError>> + Send + Sync>;

/// A block namespace as a range of bytes.
pub struct Disk {
    /// Over the endpoint of now, and how often it was another.
    blocks: Mutex<(BlockClient, u64)>,
    bytes: u64,
    block_bytes: u32,
    reach: Option<(Reach, Duration)>,
    /// Held by who reaches the device again.
    reaching: tokio::sync::Mutex<()>,
    /// Held for writing while a part of a block is changed, for reading by writes of whole blocks.
    parts: RwLock<()>,
}

impl Disk {
    /// Of a block namespace.
    pub fn new(blocks: BlockClient) -> Self {
        Disk {
            bytes: blocks.bytes(),
            block_bytes: blocks.block_bytes(),
            blocks: Mutex::new((blocks, 0)),
            reach: None,
            reaching: tokio::sync::Mutex::new(()),
            parts: RwLock::new(()),
        }
    }

    /// Requests wait for a device that has gone, for at most `wait` each, and go on when `reach` has found it again.
    pub fn reaching_again(mut self, reach: Reach, wait: Duration) -> Self {
        self.reach = Some((reach, wait));
        self
    }

    fn blocks(&self) -> (BlockClient, u64) {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Does something over the endpoint of now, and over the next one where that goes.
    async fn with<T, F: Future<Output = Result<T, HreError>>>(
        &self,
        what: impl Fn(BlockClient) -> F,
    ) -> Result<T, HreError> {
        let mut until = None;
        loop {
            let (blocks, turn) = self.blocks();
            match (what(blocks).await, &self.reach) {
                (Err(error), Some((reach, wait))) if error.is_gone() => {
                    let until = *until.get_or_insert_with(|| Instant::now() + *wait);
                    self.reach_again(turn, reach, until).await?;
                }
                (done, _) => return done,
            }
        }
    }

    /// Reaches the device again, unless somebody has since the endpoint of this turn ended.
    async fn reach_again(&self, turn: u64, reach: &Reach, until: Instant) -> Result<(), HreError> {
        let late = || HreError::Gone("the device is gone, and did not come back in time".to_owned());
        let Ok(_one) = tokio::time::timeout_at(until, self.reaching.lock()).await else { return Err(late()) };
        while self.blocks().1 == turn {
            match reach().await {
                Ok(found) if found.bytes() == self.bytes && found.block_bytes() == self.block_bytes => {
                    tracing::info!("the device is there again");
                    *self.blocks.lock().unwrap_or_else(PoisonError::into_inner) = (found, turn + 1);
                }
                Ok(found) => {
                    return Err(HreError::Namespace { nsid: found.nsid(), problem: "of another shape than it was" });
                }
                Err(error) if !error.is_gone() => return Err(error),
                Err(_) if Instant::now() + ATTEMPT_EVERY > until => return Err(late()),
                Err(_) => tokio::time::sleep(ATTEMPT_EVERY).await,
            }
        }
        Ok(())
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of a block.
    pub fn block_bytes(&self) -> u32 {
        self.block_bytes
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

    /// Reads whole blocks.
    async fn get(&self, offset: u64, bytes: usize) -> Result<Vec<u8>, HreError> {
        self.with(|blocks| async move { blocks.read(offset, bytes).await }).await
    }

    /// Writes whole blocks.
    async fn put(&self, offset: u64, data: &[u8], durable: bool) -> Result<(), HreError> {
        // The endpoint takes its own copy each time.
        self.with(|blocks| async move { blocks.write(offset, data.to_vec(), durable).await.map(|_| ()) }).await
    }

    /// Reads; shorter at the end of the file.
    pub async fn read(&self, offset: u64, bytes: usize) -> Result<Vec<u8>, HreError> {
        let bytes = (bytes as u64).min(self.bytes().saturating_sub(offset));
        if bytes == 0 {
            return Ok(Vec::new());
        }
        if self.is_whole(offset, bytes) {
            return self.get(offset, bytes as usize).await;
        }
        let (start, length) = self.around(offset, bytes);
        let mut whole = self.get(start, length as usize).await?;
        whole.drain(..(offset - start) as usize);
        whole.truncate(bytes as usize);
        Ok(whole)
    }

    /// Writes; `durable`: it survives a power cut when this returns.
    pub async fn write(&self, offset: u64, data: &[u8], durable: bool) -> Result<(), HreError> {
        let bytes = data.len() as u64;
        if offset.checked_add(bytes).is_none_or(|end| end > self.bytes()) {
            return Err(HreError::OutOfRange);
        }
        if self.is_whole(offset, bytes) {
            let _whole = self.parts.read().await;
            return self.put(offset, data, durable).await;
        }
        let _alone = self.parts.write().await;
        let (start, length) = self.around(offset, bytes);
        let mut whole = self.get(start, length as usize).await?;
        let at = (offset - start) as usize;
        whole[at..at + data.len()].copy_from_slice(data);
        self.put(start, &whole, durable).await
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
            return self.write(offset, &vec![0; (end - offset) as usize], false).await;
        }
        if offset < first {
            self.write(offset, &vec![0; (first - offset) as usize], false).await?;
        }
        {
            let _whole = self.parts.read().await;
            let zero = |blocks: BlockClient| async move { blocks.write_zeroes(first, last - first, deallocate).await };
            self.with(zero).await?;
        }
        if last < end {
            self.write(last, &vec![0; (end - last) as usize], false).await?;
        }
        Ok(())
    }

    /// Makes all that was written durable.
    pub async fn flush(&self) -> Result<(), HreError> {
        self.with(|blocks| async move { blocks.flush().await }).await
    }
}
