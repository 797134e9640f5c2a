//! A cache as an endpoint with one block namespace: what works over namespaces, such as a mount, works over a cache.
//!
//! What always holds: a write that asks for it, and a flush, is durable when it is answered; blocks that are deallocated or zeroed read as zeroes; what
//! the backing file says (EIO, ENOSPC) goes to who asked.
//!
//! Who may call it: who manages the cache.

use super::{CacheError, Manager, Mode, read, write};
use crate::caching::CachingError;
use crate::hre::{BlockCommand, BoxFuture, Hre, HreError, KvCommand, KvReply, Namespace, RpcCall, RpcReply, Upcall};
use crate::nvme_tcp::NamespaceKind;
use caching_host::Refusal;
use std::sync::Arc;
use std::time::Duration;

/// Number of the namespace.
pub const NSID: u32 = 1;
/// Bytes of a block.
pub const BLOCK_BYTES: u32 = 512;
/// Most bytes of a command.
const TRANSFER_BYTES_MAX: u64 = 1 << 20;
/// Zeroes that are written at once.
static ZEROES: [u8; 65536] = [0; 65536];

/// A cache as a block namespace.
pub struct CachedDisk {
    manager: Arc<Manager>,
    is_read_only: bool,
}

fn told(error: CacheError) -> HreError {
    match error {
        CacheError::Device(CachingError::Hre(error)) => error,
        CacheError::Backing(error) if error.raw_os_error() == Some(libc::ENOSPC) => HreError::Full,
        CacheError::Device(CachingError::Refused(Refusal::Busy)) => HreError::Refused,
        other => {
            tracing::warn!("{other}");
            HreError::Media
        }
    }
}

fn not_here<T>() -> BoxFuture<'static, Result<T, HreError>> {
    Box::pin(async { Err(HreError::Argument("a cache has one block namespace, and nothing else".to_owned())) })
}

impl CachedDisk {
    /// Of a cache whose file has whole blocks. The error is a sentence.
    pub fn new(manager: Arc<Manager>) -> Result<CachedDisk, String> {
        let backing = manager.backing();
        if !backing.bytes.is_multiple_of(BLOCK_BYTES.into()) {
            return Err(format!(
                "{} has {} bytes, which are no whole blocks of {BLOCK_BYTES}",
                backing.path.display(),
                backing.bytes
            ));
        }
        Ok(CachedDisk { manager, is_read_only: !backing.is_writable })
    }

    async fn put(&self, offset: u64, from: &[u8]) -> Result<(), CacheError> {
        let manager = &*self.manager;
        match manager.mode() {
            Mode::WriteThrough => manager.write_through(offset, from).await,
            Mode::WriteBack => write(manager.client(), manager, manager.shape().chunk_bytes, offset, from).await,
        }
    }

    async fn zero(&self, lba: u64, blocks: u64) -> Result<(), CacheError> {
        let (mut at, end) = (lba * u64::from(BLOCK_BYTES), (lba + blocks) * u64::from(BLOCK_BYTES));
        while at < end {
            let count = (end - at).min(ZEROES.len() as u64);
            self.put(at, &ZEROES[..count as usize]).await?;
            at += count;
        }
        Ok(())
    }

    async fn perform(&self, command: BlockCommand, buffer: &mut [u8]) -> Result<(), HreError> {
        let manager = &*self.manager;
        let blocks = manager.backing().bytes / u64::from(BLOCK_BYTES);
        let own = buffer.len() as u64 / u64::from(BLOCK_BYTES);
        let range = match &command {
            BlockCommand::Read { lba } | BlockCommand::Write { lba, .. } => Some((*lba, own)),
            BlockCommand::WriteZeroes { lba, blocks, .. } => Some((*lba, (*blocks).into())),
            _ => None,
        };
        if range.is_some_and(|(lba, count)| lba.checked_add(count).is_none_or(|end| end > blocks)) {
            return Err(HreError::OutOfRange);
        }
        let writes = !matches!(command, BlockCommand::Read { .. } | BlockCommand::Flush);
        if writes && self.is_read_only {
            return Err(HreError::NotPermitted);
        }
        match command {
            BlockCommand::Read { lba } => {
                let offset = lba * u64::from(BLOCK_BYTES);
                read(manager.client(), manager, manager.shape().chunk_bytes, offset, buffer).await.map_err(told)
            }
            BlockCommand::Write { lba, fua } => {
                self.put(lba * u64::from(BLOCK_BYTES), buffer).await.map_err(told)?;
                if fua { manager.sync().await.map_err(told) } else { Ok(()) }
            }
            BlockCommand::WriteZeroes { lba, blocks, .. } => self.zero(lba, blocks.into()).await.map_err(told),
            BlockCommand::Flush => manager.sync().await.map_err(told),
            // Of use to nobody here: the file keeps its blocks.
            BlockCommand::Deallocate(_) => Ok(()),
            BlockCommand::Compare { .. } | BlockCommand::Verify { .. } => {
                Err(HreError::Argument("a cache reads, writes and flushes".to_owned()))
            }
        }
    }
}

impl Hre for CachedDisk {
    fn rpc(&self, _call: RpcCall) -> BoxFuture<'_, Result<RpcReply, HreError>> {
        not_here()
    }

    fn receive_upcall(&self, _wait: Duration) -> BoxFuture<'_, Result<Option<Upcall>, HreError>> {
        not_here()
    }

    fn answer_upcall(&self, _id: u64, _status: u32, _result: u32) -> BoxFuture<'_, Result<(), HreError>> {
        not_here()
    }

    fn namespaces(&self) -> BoxFuture<'_, Result<Vec<Namespace>, HreError>> {
        let blocks = self.manager.backing().bytes / u64::from(BLOCK_BYTES);
        let kind = NamespaceKind::Block { block_bytes: BLOCK_BYTES, blocks };
        Box::pin(async move { Ok(vec![Namespace { nsid: NSID, kind }]) })
    }

    fn transfer_bytes_max(&self) -> u64 {
        TRANSFER_BYTES_MAX
    }

    fn block(
        &self,
        _nsid: u32,
        _block_bytes: u32,
        command: BlockCommand,
        mut buffer: Vec<u8>,
    ) -> BoxFuture<'_, Result<Vec<u8>, HreError>> {
        Box::pin(async move {
            self.perform(command, &mut buffer).await?;
            Ok(buffer)
        })
    }

    fn kv(&self, _nsid: u32, _command: KvCommand, _buffer: Vec<u8>) -> BoxFuture<'_, Result<KvReply, HreError>> {
        not_here()
    }
}
