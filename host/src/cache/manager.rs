//! A cache's manager (Willow, 4.4: the kernel's cache manager): fetches what is missed from the backing file, has the device choose what makes way, and
//! writes dirty chunks back.
//!
//! What always holds:
//! - one manager has a cache: the device refuses what another says ([`CachingClient`]'s epoch);
//! - a chunk counts as clean when the backing file has it durably, and not before. What cannot be written back stays in the cache, dirty; who needed the
//!   room is told, and it is tried again;
//! - clean chunks outlast a manager only where the backing file is as it was when they were the same as it ([`Backing::stamp`]); dirty ones always do;
//! - what is fetched, written through or dropped of one chunk is done one after another;
//! - a manager that another has followed meanwhile writes nothing back, and looks at the stamp anew when it gets the cache again.
//!
//! Who may call it: who has an endpoint of the host's kernel: an agent, for processes, and `willow cache mount`.

use super::CacheError;
use super::backing::Backing;
use super::listed::{Listed, known, list, remove, remove_own};
use crate::caching::{CachingClient, CachingError};
use caching_host::wire::{CACHES_MAX, Counts, Descriptor, PATH_BYTES_MAX, Stamp, handler, home};
use caching_host::{Refusal, Shape};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

/// How long a cache's manager is waited for that was killed: the device takes it for gone after [`caching_host::wire::CLAIM_NS`].
pub(crate) const CLAIM_PATIENCE: Duration = Duration::from_secs(7);
/// Wait between two attempts.
pub(crate) const AGAIN: Duration = Duration::from_millis(100);
/// How often room is made for one chunk.
const ROOM_ATTEMPTS: u32 = 16;
/// Chunks of which the turns are told apart.
const TURNS: usize = 64;

/// When a write is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// When the backing file has it.
    WriteThrough,
    /// When the cache has it.
    WriteBack,
}

impl std::str::FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Mode, String> {
        match text {
            "write-through" => Ok(Mode::WriteThrough),
            "write-back" => Ok(Mode::WriteBack),
            other => Err(format!("{other:?} is no mode of a cache: write-through or write-back")),
        }
    }
}

/// What a cache is to be like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CacheOptions {
    /// `None`: as the one that there is, or write-through.
    pub mode: Option<Mode>,
    /// Its bytes; `None`: as the one that there is, or [`BYTES_DEFAULT`].
    pub bytes: Option<u64>,
    /// Bytes of a chunk; `None`: as the one that there is, or the smallest that there is room for.
    pub chunk_bytes: Option<u32>,
}

/// Bytes of a cache where nothing is said.
pub const BYTES_DEFAULT: u64 = 64 << 20;

/// A cache that is open.
pub struct Manager {
    client: CachingClient,
    shape: Shape,
    mode: Mode,
    backing: RwLock<Arc<Backing>>,
    /// The device has a stamp of the backing file: nothing of that was written since.
    is_stamped: AtomicBool,
    /// The cache may have a clean chunk that is not the same as the backing file: the stamp of this manager vouches for nothing.
    is_doubtful: AtomicBool,
    /// The cache was another's, or the device began anew: clean chunks are looked at before one is permitted.
    is_back: AtomicBool,
    /// One is told at a time that this manager is there.
    holding: tokio::sync::Mutex<()>,
    turns: [tokio::sync::Mutex<()>; TURNS],
    writing_back: tokio::sync::Mutex<()>,
    /// Bytes that were written back.
    written_back: AtomicU64,
}

pub(super) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

impl Manager {
    /// Opens the cache of a file: the one that there is, or a new one. A manager that has it is waited for, for as long as one that was killed takes.
    pub async fn open(client: &CachingClient, backing: Backing, options: &CacheOptions) -> Result<Manager, CacheError> {
        Self::open_within(client, backing, options, CLAIM_PATIENCE).await
    }

    /// The same, where a manager is waited for at most so long.
    pub(crate) async fn open_within(
        client: &CachingClient,
        backing: Backing,
        options: &CacheOptions,
        patience: Duration,
    ) -> Result<Manager, CacheError> {
        let backing = Arc::new(backing);
        let listed = list(client).await?;
        let own = listed.iter().find(|it| it.descriptor.identity == backing.identity);
        let mut wanted = *options;
        if let Some(own) = own {
            let there = Self::take(client, own, &backing, patience).await?;
            if let Some(there) = there {
                let spus = client.numbers().1;
                let mode = options.mode.unwrap_or(there.mode);
                let shape = match options.bytes {
                    None if options.chunk_bytes.is_none() => there.shape,
                    bytes => {
                        let bytes = bytes.unwrap_or_else(|| there.bytes());
                        Shape::of(bytes, backing.bytes, spus, options.chunk_bytes).map_err(CacheError::Said)?
                    }
                };
                let is_as_long = own.descriptor.bytes == backing.bytes;
                if !is_as_long && own.counts.dirty > 0 {
                    there.release().await?;
                    return Err(CacheError::Said(format!(
                        "the file has {} bytes, and the cache has changed bytes of it as it was with {}: make it that long again",
                        backing.bytes, own.descriptor.bytes
                    )));
                }
                if is_as_long && shape == there.shape && mode == there.mode {
                    return there.begin().await;
                }
                there.close().await?;
                remove(client, own.cache, false).await?;
                wanted = CacheOptions {
                    mode: Some(mode),
                    bytes: Some(options.bytes.unwrap_or_else(|| there.bytes())),
                    ..wanted
                };
            }
        }
        Self::make(client, backing, &wanted).await
    }

    /// Becomes the manager of a cache that is there; `None`: it was left half made, and has nothing. Where an SPU cannot tell of its part and others have
    /// dirty chunks, it stays as it is.
    async fn take(
        client: &CachingClient,
        own: &Listed,
        backing: &Arc<Backing>,
        patience: Duration,
    ) -> Result<Option<Manager>, CacheError> {
        let client = client.of(own.cache, random() as u32 | 1);
        let begun = Instant::now();
        let Descriptor { chunk_bytes, slots, writes_through, stamp, .. } = own.descriptor;
        loop {
            match client.claim().await {
                Ok(()) => break,
                Err(CachingError::Refused(Refusal::Absent)) if !own.is_whole => {
                    if own.counts.dirty > 0 {
                        for spu in (0..client.numbers().1).rev() {
                            // Those that were taken; others refuse that.
                            let _ = client.on(spu, handler::RELEASE, 0).await;
                        }
                        return Err(CacheError::Said(format!(
                            "a processor of the device has no part of cache {}, and {} changed chunks of others would be lost: nothing of it is touched",
                            own.cache, own.counts.dirty
                        )));
                    }
                    remove_own(&client).await?;
                    return Ok(None);
                }
                Err(CachingError::Refused(Refusal::Claimed)) if begun.elapsed() < patience => {
                    tokio::time::sleep(AGAIN).await;
                }
                Err(error) => {
                    for spu in (0..client.numbers().1).rev() {
                        // Those that were taken, which would be in the way of the next attempt; others refuse that.
                        let _ = client.on(spu, handler::RELEASE, 0).await;
                    }
                    return Err(error.into());
                }
            }
        }
        let mode = if writes_through { Mode::WriteThrough } else { Mode::WriteBack };
        let manager = Self::with(client, backing.clone(), Shape { chunk_bytes, slots }, mode);
        manager.compare(&stamp).await?;
        Ok(Some(manager))
    }

    /// Forgets what is clean unless the backing file is as the stamp says.
    async fn compare(&self, stamp: &Stamp) -> Result<(), CacheError> {
        let is_known = *stamp != Stamp::default();
        // Until it is seen what there is.
        self.is_stamped.store(true, Ordering::Release);
        if !is_known || *stamp != self.backing().stamp()? {
            // Somebody may have written the file since.
            self.client.on_all(handler::DROP_CLEAN, 0).await?;
        }
        self.is_stamped.store(is_known, Ordering::Release);
        Ok(())
    }

    fn with(client: CachingClient, backing: Arc<Backing>, shape: Shape, mode: Mode) -> Manager {
        Manager {
            client,
            shape,
            mode,
            backing: RwLock::new(backing),
            is_stamped: AtomicBool::new(false),
            is_doubtful: AtomicBool::new(false),
            is_back: AtomicBool::new(false),
            holding: tokio::sync::Mutex::default(),
            turns: std::array::from_fn(|_| tokio::sync::Mutex::default()),
            writing_back: tokio::sync::Mutex::default(),
            written_back: AtomicU64::new(0),
        }
    }

    async fn make(
        client: &CachingClient,
        backing: Arc<Backing>,
        options: &CacheOptions,
    ) -> Result<Manager, CacheError> {
        let spus = client.numbers().1;
        let bytes = options.bytes.unwrap_or(BYTES_DEFAULT);
        let shape = Shape::of(bytes, backing.bytes, spus, options.chunk_bytes).map_err(CacheError::Said)?;
        let mode = options.mode.unwrap_or(Mode::WriteThrough);
        let path = backing.path.as_os_str().as_bytes();
        let descriptor = Descriptor {
            chunk_bytes: shape.chunk_bytes,
            slots: shape.slots,
            writes_through: mode == Mode::WriteThrough,
            bytes: backing.bytes,
            identity: backing.identity,
            stamp: Stamp::default(),
            generation: random() | 1,
            path_bytes: path.len() as u32,
            path: std::array::from_fn::<u8, PATH_BYTES_MAX, _>(|at| path.get(at).copied().unwrap_or(0)),
        };
        // Numbers of which an SPU still has dirty chunks, though the first one tells of no such cache.
        let mut kept = Vec::new();
        // Caches of others that are idle make way, the first one of a try each.
        for _ in 0..=CACHES_MAX {
            let listed = list(client).await?;
            let is_free = |cache: &u32| listed.iter().all(|it| it.cache != *cache) && !kept.contains(cache);
            let free = (0..CACHES_MAX as u32).find(is_free);
            let made = match free {
                Some(cache) => Self::make_at(client, cache, &descriptor).await,
                None => Err(Refusal::Full.into()),
            };
            match made {
                Ok(client) => return Self::with(client, backing, shape, mode).begin().await,
                // Another was faster.
                Err(error) if error.is(Refusal::Exists) => {}
                Err(error) if error.is(Refusal::Dirty) => kept.extend(free),
                Err(error) if error.is(Refusal::Full) => {
                    let idle = listed.iter().find(|it| it.counts.epoch == 0 && it.counts.dirty == 0);
                    let Some(idle) = idle else { return Err(error.into()) };
                    // Somebody may have opened it by now: then another makes way.
                    if let Err(error) = remove(client, idle.cache, false).await {
                        tracing::debug!("cache {} does not make way: {error}", idle.cache);
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(CachingError::from(Refusal::Full).into())
    }

    async fn make_at(
        client: &CachingClient,
        cache: u32,
        descriptor: &Descriptor,
    ) -> Result<CachingClient, CachingError> {
        let client = client.of(cache, random() as u32 | 1);
        for spu in 1..client.numbers().1 {
            match known(client.describe(spu).await) {
                Ok(Some((_, counts))) if counts.dirty > 0 => return Err(Refusal::Dirty.into()),
                Ok(_) => {}
                // It has a part, and cannot tell of it.
                Err(CachingError::Refused(_)) => return Err(Refusal::Dirty.into()),
                Err(error) => return Err(error),
            }
        }
        // Who makes it at the first SPU makes it.
        if let Err(error) = client.create(0, descriptor).await {
            if !error.is(Refusal::Exists) {
                return Err(error);
            }
            // What was given up half way.
            client.on(0, handler::FREE, 0).await?;
            client.create(0, descriptor).await?;
        }
        client.on(0, handler::CLAIM, 0).await?;
        for spu in 1..client.numbers().1 {
            if let Err(error) = client.create(spu, descriptor).await {
                let again = async {
                    known(client.on(spu, handler::REMOVE, 1).await)?;
                    client.create(spu, descriptor).await
                };
                let again = if error.is(Refusal::Exists) { again.await } else { Err(error) };
                if let Err(error) = again {
                    let _ = remove_own(&client).await;
                    return Err(error);
                }
            }
            client.on(spu, handler::CLAIM, 0).await?;
        }
        Ok(client)
    }

    /// What is clean is the same as the backing file now: a write-back cache says so at once, one that writes through when it is closed.
    async fn begin(self) -> Result<Manager, CacheError> {
        if self.mode == Mode::WriteBack {
            let backing = self.backing();
            self.restamp(&backing).await?;
        }
        Ok(self)
    }

    /// The client of this cache.
    pub fn client(&self) -> &CachingClient {
        &self.client
    }

    /// Bytes of a chunk, and chunks an SPU.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// When writes are acknowledged.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Bytes that the cache can have.
    pub fn bytes(&self) -> u64 {
        u64::from(self.shape.slots) * u64::from(self.shape.chunk_bytes) * u64::from(self.client.numbers().1)
    }

    /// Bytes that were written back.
    pub fn written_back(&self) -> u64 {
        self.written_back.load(Ordering::Relaxed)
    }

    /// The backing file.
    pub fn backing(&self) -> Arc<Backing> {
        self.backing.read().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    /// The same file by a descriptor that writes, where the one so far does not.
    pub fn reopen(&self, backing: Backing) {
        let mut own = self.backing.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        if backing.is_writable && !own.is_writable && backing.identity == own.identity {
            *own = Arc::new(backing);
        }
    }

    fn turn(&self, chunk: u64) -> &tokio::sync::Mutex<()> {
        &self.turns[chunk as usize % TURNS]
    }

    /// What the sum of all SPUs is.
    pub async fn counts(&self) -> Result<Counts, CachingError> {
        let own = self.client.cache().0;
        let listed = list(&self.client).await?;
        Ok(listed.iter().find(|it| it.cache == own).map(|it| it.counts).unwrap_or_default())
    }

    /// Sees to it that a chunk is in the cache, and that a process (0: none) may use it.
    pub async fn fetch(&self, chunk: u64, process: u32, rights: u32) -> Result<(), CacheError> {
        let _turn = self.turn(chunk).lock().await;
        if self.is_back.load(Ordering::Acquire) {
            let _looked = self.holding.lock().await;
            if self.is_back.load(Ordering::Acquire) {
                return Err(CachingError::from(Refusal::Stale).into());
            }
        }
        // Another may have put it in, and changed it, since it was missed: what the backing file has may be older.
        match self.client.permit(chunk, process, rights).await {
            Err(error) if error.is(Refusal::Miss) => {}
            done => return Ok(done?),
        }
        let chunk_bytes = self.shape.chunk_bytes;
        let bytes = self.backing().read(chunk * u64::from(chunk_bytes), chunk_bytes as usize)?;
        let mut failed = None;
        for _ in 0..ROOM_ATTEMPTS {
            match (self.client.install(chunk, process, rights, &bytes).await, failed.take()) {
                (Err(error), Some(why)) if error.is(Refusal::Dirty) => return Err(why),
                // Where one of them cannot be written back there may be room by the others.
                (Err(error), None) if error.is(Refusal::Dirty) => {
                    failed = self.write_back(Some(home(chunk, self.client.numbers().1))).await.err();
                }
                (done, _) => return Ok(done?),
            }
        }
        Err(CachingError::from(Refusal::Busy).into())
    }

    /// The backing file has been written in a range, or that was tried: what the cache has of that is read anew.
    pub async fn wrote(&self, offset: u64, bytes: u64) -> Result<(), CacheError> {
        let chunk_bytes = u64::from(self.shape.chunk_bytes);
        let end = offset.saturating_add(bytes).min(self.backing().bytes);
        let (mut at, mut first) = (offset, Ok(()));
        while at < end {
            let (chunk, within) = (at / chunk_bytes, at % chunk_bytes);
            let count = (chunk_bytes - within).min(end - at);
            let _turn = self.turn(chunk).lock().await;
            let updated = match self.backing().read(at, count as usize) {
                Ok(now) => self.client.update(chunk, within as u32, &now).await.map_err(CacheError::from),
                Err(error) => Err(error.into()),
            };
            match updated {
                Ok(()) => {}
                Err(CacheError::Device(error)) if error.is(Refusal::Miss) => {}
                Err(error) => match self.client.forget(chunk).await {
                    // It is fetched anew when somebody wants it.
                    Ok(()) => {}
                    Err(other) if other.is(Refusal::Miss) => {}
                    Err(_) => {
                        self.is_doubtful.store(true, Ordering::Release);
                        first = first.and(Err(error));
                    }
                },
            }
            at += count;
        }
        first
    }

    /// Somebody may have written the backing file and not said so: what is clean is forgotten, and this manager vouches for nothing when it ends.
    pub async fn distrust(&self) -> Result<(), CacheError> {
        self.is_doubtful.store(true, Ordering::Release);
        Ok(self.client.on_all(handler::DROP_CLEAN, 0).await?)
    }

    /// Writes through: the backing file first, then the cache.
    pub async fn write_through(&self, offset: u64, bytes: &[u8]) -> Result<(), CacheError> {
        self.unstamp().await?;
        let written = self.backing().write(offset, bytes);
        // Also where a part alone is in the file.
        let told = self.wrote(offset, bytes.len() as u64).await;
        written?;
        told
    }

    /// The backing file is about to be written: should this manager end now, nothing clean is to be trusted.
    pub async fn unstamp(&self) -> Result<(), CacheError> {
        if self.is_stamped.load(Ordering::Acquire) {
            self.client.stamp(&Stamp::default()).await?;
            self.is_stamped.store(false, Ordering::Release);
        }
        Ok(())
    }

    /// Writes dirty chunks back, of one SPU or of all; how many. One that cannot be written stays, the others are written, and the first reason is told.
    pub async fn write_back(&self, of: Option<u16>) -> Result<u64, CacheError> {
        let _alone = self.writing_back.lock().await;
        let backing = self.backing();
        let (mut count, mut first) = (0, Ok(()));
        for spu in 0..self.client.numbers().1 {
            if of.is_some_and(|of| of != spu) {
                continue;
            }
            let mut from = 0;
            loop {
                let mut listed = self.client.dirty(spu, from).await?;
                let Some(last) = listed.last() else { break };
                from = last.slot + 1;
                if !backing.is_writable {
                    return Err(CacheError::Said("the backing file was not opened for writing".to_owned()));
                }
                self.unstamp().await?;
                listed.sort_unstable_by_key(|it| it.chunk);
                let mut copied = Vec::new();
                for dirty in &listed {
                    match self.client.copy(dirty.chunk, self.shape.chunk_bytes).await {
                        Ok((bytes, version)) => copied.push((dirty.chunk, version, bytes)),
                        Err(error) if error.is(Refusal::Miss) => {}
                        Err(error) if error.is(Refusal::Media) => first = first.and(Err(error.into())),
                        Err(error) => return Err(error.into()),
                    }
                }
                // Who has followed this one may have written newer bytes there.
                if self.hold_or_follow().await? {
                    return Err(CachingError::from(Refusal::Stale).into());
                }
                let mut written = Vec::new();
                for (chunk, version, bytes) in copied {
                    match backing.write(chunk * u64::from(self.shape.chunk_bytes), &bytes) {
                        Ok(()) => {
                            written.push((chunk, version));
                            self.written_back.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                        }
                        Err(error) => first = first.and(Err(error.into())),
                    }
                }
                if let Err(error) = backing.sync() {
                    first = first.and(Err(error.into()));
                    continue;
                }
                for (chunk, version) in written {
                    match self.client.clean(chunk, version).await {
                        Ok(()) => count += 1,
                        Err(error) if error.is(Refusal::Changed) || error.is(Refusal::Miss) => {}
                        Err(error) if error.is(Refusal::Media) => first = first.and(Err(error.into())),
                        Err(error) => return Err(error.into()),
                    }
                }
            }
        }
        if self.mode == Mode::WriteBack && count > 0 {
            self.restamp(&backing).await?;
        }
        first.map(|()| count)
    }

    /// The backing file is durable, and the same as all that is clean.
    async fn restamp(&self, backing: &Backing) -> Result<(), CacheError> {
        if self.mode == Mode::WriteThrough {
            // What was written through to clean chunks is not durable there yet: after a cut the stamp would vouch for older bytes.
            for spu in 0..self.client.numbers().1 {
                self.client.sync(spu).await?;
            }
        }
        let is_doubtful = self.is_doubtful.load(Ordering::Acquire);
        let stamp = if is_doubtful { Stamp::default() } else { backing.stamp()? };
        self.client.stamp(&stamp).await?;
        self.is_stamped.store(stamp != Stamp::default(), Ordering::Release);
        Ok(())
    }

    /// Makes what was written durable: in the cache, or in the backing file where that is written through.
    pub async fn sync(&self) -> Result<(), CacheError> {
        if self.mode == Mode::WriteThrough {
            return Ok(self.backing().sync()?);
        }
        for spu in 0..self.client.numbers().1 {
            self.client.sync(spu).await?;
        }
        Ok(())
    }

    /// Tells the device that this manager is still there. An error: another has the cache.
    pub async fn hold(&self) -> Result<(), CacheError> {
        self.hold_or_follow().await.map(drop)
    }

    /// The same; true where it had been given up, was another's meanwhile, or the device began anew: then what is clean is there no more unless the
    /// backing file is as the stamp says.
    async fn hold_or_follow(&self) -> Result<bool, CacheError> {
        let _one = self.holding.lock().await;
        let (_, counts) = self.client.describe(0).await?;
        let is_other = counts.epoch != u64::from(self.client.cache().1);
        if is_other {
            self.is_back.store(true, Ordering::Release);
        }
        self.client.claim().await?;
        if self.is_back.load(Ordering::Acquire) {
            let (descriptor, _) = self.client.describe(0).await?;
            self.compare(&descriptor.stamp).await?;
            self.is_back.store(false, Ordering::Release);
        }
        Ok(is_other)
    }

    /// A process uses the cache no more; when this returns nothing of it is under way.
    pub async fn revoke(&self, process: u32) -> Result<(), CacheError> {
        Ok(self.client.on_all(handler::REVOKE, process).await?)
    }

    async fn release(&self) -> Result<(), CacheError> {
        Ok(self.client.on_all(handler::RELEASE, 0).await?)
    }

    /// Writes all back and gives the cache up, whose clean chunks stay for the next manager. Where it cannot be written back the cache stays as it is,
    /// for the next manager too, and the error says why.
    pub async fn close(&self) -> Result<(), CacheError> {
        let flushed = async {
            let backing = self.backing();
            self.write_back(None).await?;
            if backing.is_writable {
                backing.sync()?;
            }
            self.restamp(&backing).await
        };
        let flushed = flushed.await;
        self.release().await?;
        flushed
    }
}
