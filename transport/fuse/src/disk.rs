//! Bytes of the file as blocks of the namespace.
//!
//! What always holds: a range is cut at the end of the file when it is read, and refused beyond it when it is written; a part of
//! a block is written by reading the block, changing it and writing it, while no other write is under way; where the device goes, and
//! there is a way to reach it again, requests wait for it, for a bounded time each, and are done anew: all of them may be done twice;
//! what the device has no place for is sent again, for a bounded time. Of a device that loses with its process what it has answered and not flushed
//! ([`Disk::forgotten_with_the_device`]) nothing is done after such a loss: who wrote believes that it is there.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::RwLock;
use tokio::time::Instant;
use willow_host::hre::BoxFuture;
use willow_host::{BlockClient, HreError};

/// Time between two attempts to reach the device again.
const ATTEMPT_EVERY: Duration = Duration::from_millis(200);
/// Longest time that a request is sent again to a device that has no place for it, and between two times.
const BUSY_MAX: Duration = Duration::from_secs(30);
const BUSY_EVERY: Duration = Duration::from_millis(1);

fn lost() -> HreError {
    HreError::Gone(
        "the device has begun anew, and what it had answered and not flushed may be lost: unmount what uses the disk, end this mount, and mount \
         both again"
            .to_owned(),
    )
}

/// Reaches the device again: the same namespace over another endpoint, or an error; [`HreError::is_gone`]: not yet.
pub type Reach = Box<dyn Fn() -> BoxFuture<'static, Result<BlockClient, HreError>> + Send + Sync>;

/// What the disk is over.
struct Now {
    /// Over the endpoint of now.
    blocks: BlockClient,
    /// How often it was another.
    turn: u64,
    /// Changes that were answered, but for durable ones.
    changes: u64,
    /// As many of them as have been flushed.
    flushed: u64,
    /// Changes that were answered have been lost.
    is_lost: bool,
}

/// A block namespace as a range of bytes.
pub struct Disk {
    now: Mutex<Now>,
    bytes: u64,
    block_bytes: u32,
    reach: Option<(Reach, Duration)>,
    /// The device loses what was not flushed where its process ends.
    forgets: bool,
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
            now: Mutex::new(Now { blocks, turn: 0, changes: 0, flushed: 0, is_lost: false }),
            reach: None,
            forgets: false,
            reaching: tokio::sync::Mutex::new(()),
            parts: RwLock::new(()),
        }
    }

    /// Requests wait for a device that has gone, for at most `wait` each, and go on when `reach` has found it again.
    pub fn reaching_again(mut self, reach: Reach, wait: Duration) -> Self {
        self.reach = Some((reach, wait));
        self
    }

    /// The device loses with its process what it has answered and not flushed, as one with an FTL does that keeps its map in memory. Where it has
    /// gone with such changes, and come back, all requests fail from then on.
    pub fn forgotten_with_the_device(mut self, forgets: bool) -> Self {
        self.forgets = forgets;
        self
    }

    fn now(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn blocks(&self) -> Result<(BlockClient, u64), HreError> {
        let now = self.now();
        if now.is_lost { Err(lost()) } else { Ok((now.blocks.clone(), now.turn)) }
    }

    /// Makes a change that is durable with the next flush.
    async fn change<T, F: Future<Output = Result<T, HreError>>>(
        &self,
        what: impl Fn(BlockClient) -> F,
    ) -> Result<T, HreError> {
        loop {
            let turn = self.now().turn;
            let done = self.with(&what).await?;
            let mut now = self.now();
            // What a device answered that has gone since is made again: nobody was told that it is done.
            if now.turn == turn || !self.forgets {
                now.changes += 1;
                return Ok(done);
            }
        }
    }

    /// Does something over the endpoint of now, and over the next one where that goes.
    async fn with<T, F: Future<Output = Result<T, HreError>>>(
        &self,
        what: impl Fn(BlockClient) -> F,
    ) -> Result<T, HreError> {
        let (begun, mut until) = (Instant::now(), None);
        loop {
            let (blocks, turn) = self.blocks()?;
            match (what(blocks).await, &self.reach) {
                // What others have filled is no error of this one's.
                (Err(error), _) if error.is_busy() && begun.elapsed() < BUSY_MAX => {
                    tokio::time::sleep(BUSY_EVERY).await;
                }
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
        while self.blocks()?.1 == turn {
            match reach().await {
                Ok(found) if found.bytes() == self.bytes && found.block_bytes() == self.block_bytes => {
                    let mut now = self.now();
                    (now.blocks, now.turn) = (found, turn + 1);
                    if self.forgets && now.changes > now.flushed {
                        now.is_lost = true;
                        tracing::error!("{}", lost());
                        return Err(lost());
                    }
                    tracing::info!("the device is there again");
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
        let write = |blocks: BlockClient| async move { blocks.write(offset, data.to_vec(), durable).await.map(|_| ()) };
        if durable { self.with(write).await } else { self.change(write).await }
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
            self.change(zero).await?;
        }
        if last < end {
            self.write(last, &vec![0; (end - last) as usize], false).await?;
        }
        Ok(())
    }

    /// Makes all that was written durable.
    pub async fn flush(&self) -> Result<(), HreError> {
        let (turn, changes) = {
            let now = self.now();
            (now.turn, now.changes)
        };
        self.with(|blocks| async move { blocks.flush().await }).await?;
        let mut now = self.now();
        if now.turn == turn {
            now.flushed = now.flushed.max(changes);
        }
        Ok(())
    }
}
