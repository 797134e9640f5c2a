//! The typed client of Caching (Willow, section 4.4), over any endpoint: chunks of a cache that a manager has opened.
//!
//! What always holds: what the device has no place for is tried again for [`BUSY_MAX`]; what a reply says is as long as was asked for, or an error.
//!
//! Who may call it: a process reads, writes and syncs what its cache's manager has permitted ([`crate::direct_io::CachedFile`] does it with files); all
//! else is for the host's kernel, that is for a manager ([`crate::cache::Manager`]).

use crate::atomic_write::{BUSY_MAX, BUSY_WAIT};
use crate::control::ControlClient;
use crate::hre::{Hre, HreError, RpcCall, RpcReply};
use caching_host::wire::{ChunkArguments, Counts, Descriptor, DirtyChunk, KEEP, Stamp, handler, home};
use caching_host::{APP_NAME, Refusal};
use std::sync::Arc;
use std::time::Instant;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum CachingError {
    /// The app refused it.
    #[error("{0}")]
    Refused(Refusal),
    /// The way to the device. What was under way may have been done or not.
    #[error(transparent)]
    Hre(#[from] HreError),
}

impl From<Refusal> for CachingError {
    fn from(refusal: Refusal) -> Self {
        CachingError::Refused(refusal)
    }
}

impl CachingError {
    /// True where the app refused it for this reason.
    pub fn is(&self, refusal: Refusal) -> bool {
        matches!(self, CachingError::Refused(it) if *it == refusal)
    }
}

/// One cache of a device, as its manager opened it.
#[derive(Clone)]
pub struct CachingClient {
    hre: Arc<dyn Hre>,
    app: u16,
    spus: u16,
    cache: u32,
    epoch: u32,
}

impl CachingClient {
    /// Finds the app; by an endpoint of the host's kernel. It is of no cache yet.
    pub async fn find(hre: Arc<dyn Hre>) -> Result<Self, HreError> {
        let control = ControlClient::new(hre.clone());
        let (app, (spus, _)) = (control.find_app(APP_NAME).await?, control.stripes().await?);
        Ok(Self::new(hre, (app, spus), (0, 0)))
    }

    /// The app by its number, on a device with so many SPUs; a cache, and the epoch of its manager.
    pub fn new(hre: Arc<dyn Hre>, (app, spus): (u16, u16), (cache, epoch): (u32, u32)) -> Self {
        CachingClient { hre, app, spus, cache, epoch }
    }

    /// The same app for another cache.
    pub fn of(&self, cache: u32, epoch: u32) -> Self {
        CachingClient { cache, epoch, ..self.clone() }
    }

    /// Number of the app, and SPUs.
    pub fn numbers(&self) -> (u16, u16) {
        (self.app, self.spus)
    }

    /// Number of the cache, and its manager's epoch.
    pub fn cache(&self) -> (u32, u32) {
        (self.cache, self.epoch)
    }

    fn asked(&self, chunk: u64, first: u32, second: u32) -> ChunkArguments {
        ChunkArguments { chunk, cache: self.cache, epoch: self.epoch, first, second }
    }

    /// Reads bytes of a chunk; with its version.
    pub async fn read(&self, chunk: u64, offset: u32, bytes: u32) -> Result<(Vec<u8>, u32), CachingError> {
        self.get(handler::READ, self.asked(chunk, offset, bytes)).await
    }

    /// The same without counting as an access.
    pub async fn copy(&self, chunk: u64, bytes: u32) -> Result<(Vec<u8>, u32), CachingError> {
        self.get(handler::COPY, self.asked(chunk, 0, bytes)).await
    }

    async fn get(&self, number: u8, asked: ChunkArguments) -> Result<(Vec<u8>, u32), CachingError> {
        let mut reply = self.send(number, home(asked.chunk, self.spus), &asked, &[], asked.second).await?;
        if reply.data.len() < asked.second as usize {
            return Err(HreError::Answer("fewer bytes of a chunk than were asked for".to_owned()).into());
        }
        reply.data.truncate(asked.second as usize);
        Ok((reply.data, reply.result))
    }

    /// Writes bytes of a chunk.
    pub async fn write(&self, chunk: u64, offset: u32, bytes: &[u8]) -> Result<(), CachingError> {
        self.put(handler::WRITE, self.asked(chunk, offset, bytes.len() as u32), bytes).await.map(drop)
    }

    /// Writes bytes of a chunk which the backing file has already.
    pub async fn update(&self, chunk: u64, offset: u32, bytes: &[u8]) -> Result<(), CachingError> {
        self.put(handler::UPDATE, self.asked(chunk, offset, bytes.len() as u32), bytes).await.map(drop)
    }

    /// Makes durable what was written to the chunks of an SPU.
    pub async fn sync(&self, spu: u16) -> Result<(), CachingError> {
        self.on(spu, handler::SYNC, 0).await
    }

    /// Puts a chunk in, and permits it to a process (0: to none). It stays until it was used once, for a short time.
    pub async fn install(&self, chunk: u64, process: u32, rights: u32, bytes: &[u8]) -> Result<(), CachingError> {
        self.put(handler::INSTALL, self.asked(chunk, process, rights | KEEP), bytes).await.map(drop)
    }

    /// Permits a cached chunk to a process.
    pub async fn permit(&self, chunk: u64, process: u32, rights: u32) -> Result<(), CachingError> {
        self.put(handler::PERMIT, self.asked(chunk, process, rights), &[]).await.map(drop)
    }

    /// The backing file has this version of a chunk, durably.
    pub async fn clean(&self, chunk: u64, version: u32) -> Result<(), CachingError> {
        self.put(handler::CLEAN, self.asked(chunk, version, 0), &[]).await.map(drop)
    }

    /// Has the cache forget a chunk, if it is clean.
    pub async fn forget(&self, chunk: u64) -> Result<(), CachingError> {
        self.put(handler::DROP, self.asked(chunk, 0, 0), &[]).await.map(drop)
    }

    /// Asks one SPU for what is no chunk's: [`handler::RELEASE`], [`handler::REVOKE`], [`handler::DROP_CLEAN`], [`handler::REMOVE`]
    /// or [`handler::FREE`].
    pub async fn on(&self, spu: u16, number: u8, first: u32) -> Result<(), CachingError> {
        self.send(number, spu, &self.asked(0, first, 0), &[], 0).await.map(drop)
    }

    /// The same of all SPUs, the first one last.
    pub async fn on_all(&self, number: u8, first: u32) -> Result<(), CachingError> {
        for spu in (0..self.spus).rev() {
            self.on(spu, number, first).await?;
        }
        Ok(())
    }

    /// Becomes the cache's manager, or stays it. Whoever is first at the first SPU is so at all.
    pub async fn claim(&self) -> Result<(), CachingError> {
        for spu in 0..self.spus {
            self.on(spu, handler::CLAIM, 0).await?;
        }
        Ok(())
    }

    /// Has an SPU make the cache.
    pub async fn create(&self, spu: u16, descriptor: &Descriptor) -> Result<(), CachingError> {
        self.send(handler::CREATE, spu, &self.asked(0, 0, 0), &descriptor.encode(), 0).await.map(drop)
    }

    /// Notes what the backing file is like.
    pub async fn stamp(&self, stamp: &Stamp) -> Result<(), CachingError> {
        self.send(handler::STAMP, 0, &self.asked(0, 0, 0), stamp, 0).await.map(drop)
    }

    /// What an SPU has of the cache.
    pub async fn describe(&self, spu: u16) -> Result<(Descriptor, Counts), CachingError> {
        let wanted = (Descriptor::BYTES + Counts::BYTES) as u32;
        let data = self.send(handler::DESCRIBE, spu, &self.asked(0, 0, 0), &[], wanted).await?.data;
        let Some((head, counts)) = data.split_first_chunk().filter(|(_, counts)| counts.len() >= Counts::BYTES) else {
            return Err(HreError::Answer("a short answer about a cache".to_owned()).into());
        };
        Ok((Descriptor::decode(head), Counts::decode(counts)))
    }

    /// Dirty chunks of an SPU from a slot on.
    pub async fn dirty(&self, spu: u16, from: u32) -> Result<Vec<DirtyChunk>, CachingError> {
        let wanted = (caching_host::wire::DIRTY_MAX * DirtyChunk::BYTES) as u32;
        let asked = self.asked(from.into(), 0, 0);
        let reply = self.send(handler::DIRTY, spu, &asked, &[], wanted).await?;
        let told = reply.data.chunks_exact(DirtyChunk::BYTES).take(reply.result as usize);
        Ok(told.map(DirtyChunk::decode).collect())
    }

    async fn put(&self, number: u8, asked: ChunkArguments, bytes: &[u8]) -> Result<RpcReply, CachingError> {
        self.send(number, home(asked.chunk, self.spus), &asked, bytes, 0).await
    }

    /// Sends a request, with bytes or for a reply.
    async fn send(
        &self,
        number: u8,
        spu: u16,
        asked: &ChunkArguments,
        bytes: &[u8],
        reply_bytes_max: u32,
    ) -> Result<RpcReply, CachingError> {
        let mut since = None;
        loop {
            let head = asked.encode();
            let (arguments, payload) = match reply_bytes_max {
                0 => (Vec::new(), [&head, bytes].concat()),
                _ => (head.to_vec(), Vec::new()),
            };
            let (app, spu) = (self.app, Some(spu));
            let reply = self.hre.rpc(RpcCall { app, handler: number, spu, arguments, payload, reply_bytes_max }).await;
            let refusal = match reply {
                Ok(reply) => match Refusal::from_status(reply.status) {
                    Ok(()) => return Ok(reply),
                    Err(refusal) => CachingError::Refused(refusal),
                },
                Err(error) => CachingError::Hre(error),
            };
            let is_busy = match &refusal {
                CachingError::Refused(refusal) => *refusal == Refusal::Busy,
                CachingError::Hre(error) => error.is_busy(),
            };
            if !is_busy || since.get_or_insert_with(Instant::now).elapsed() >= BUSY_MAX {
                return Err(refusal);
            }
            tokio::time::sleep(BUSY_WAIT).await;
        }
    }
}
