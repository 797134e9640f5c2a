//! Caches of files in NV memory (Willow, section 4.4).
//!
//! ```text
//! backing  the file or block device behind it        manager  fetches, makes room, writes back
//! disk     a cache as a block namespace, for mounts          listed   the caches of a device, and their removal
//! ```
//!
//! What always holds: what is in the cache is read and written there, by one request to the device each and by nobody's operating system; what is not
//! is asked of a [`Keeper`], once for a chunk.

pub mod backing;
pub mod disk;
pub mod listed;
pub mod manager;

use crate::caching::{CachingClient, CachingError};
use crate::hre::{BoxFuture, HreError};
use caching_host::Refusal;

pub use backing::Backing;
pub use disk::CachedDisk;
pub use listed::{Listed, list, remove};
pub use manager::{BYTES_DEFAULT, CacheOptions, Manager, Mode};

/// How often one chunk is asked for: others may make it go before it is used.
const ATTEMPTS_MAX: u32 = 64;

/// Why something was not done with a cache.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// The device.
    #[error("{0}")]
    Device(#[from] CachingError),
    /// The backing file.
    #[error("the backing file: {0}")]
    Backing(#[from] std::io::Error),
    /// One sentence.
    #[error("{0}")]
    Said(String),
}

impl From<HreError> for CacheError {
    fn from(error: HreError) -> Self {
        CacheError::Device(error.into())
    }
}

impl CacheError {
    /// What POSIX calls it.
    pub fn errno(&self) -> i32 {
        match self {
            CacheError::Backing(error) => error.raw_os_error().unwrap_or(libc::EIO),
            CacheError::Device(error) if error.is(Refusal::Permission) => libc::EACCES,
            CacheError::Device(error) if error.is(Refusal::Busy) => libc::EAGAIN,
            CacheError::Device(error) if error.is(Refusal::Processes) => libc::EBUSY,
            CacheError::Device(_) | CacheError::Said(_) => libc::EIO,
        }
    }
}

/// Who puts chunks into a cache.
pub(crate) trait Keeper: Sync {
    /// Sees to it that a chunk is there, and that this process may use it.
    fn fetch(&self, chunk: u64) -> BoxFuture<'_, Result<(), CacheError>>;
}

impl Keeper for Manager {
    fn fetch(&self, chunk: u64) -> BoxFuture<'_, Result<(), CacheError>> {
        Box::pin(self.fetch(chunk, 0, 0))
    }
}

/// The parts of a range that lie in one chunk each: chunk, offset in it, offset in the range, bytes.
fn parts(chunk_bytes: u32, offset: u64, bytes: usize) -> impl Iterator<Item = (u64, u32, usize, usize)> {
    let chunk_bytes = u64::from(chunk_bytes);
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset + done as u64;
        let within = at % chunk_bytes;
        let count = (chunk_bytes - within).min((bytes - done) as u64) as usize;
        let part = (at / chunk_bytes, within as u32, done, count);
        done += count;
        (count > 0).then_some(part)
    })
}

/// True where the keeper is to be asked for a chunk; what else went wrong is an error.
fn is_missed(error: CachingError) -> Result<(), CacheError> {
    if error.is(Refusal::Miss) || error.is(Refusal::Permission) { Ok(()) } else { Err(error.into()) }
}

/// Reads a range of the file.
pub(crate) async fn read(
    client: &CachingClient,
    keeper: &dyn Keeper,
    chunk_bytes: u32,
    offset: u64,
    into: &mut [u8],
) -> Result<(), CacheError> {
    for (chunk, within, done, count) in parts(chunk_bytes, offset, into.len()) {
        let mut attempts = 0;
        let bytes = loop {
            match client.read(chunk, within, count as u32).await {
                Ok((bytes, _)) => break bytes,
                Err(error) => is_missed(error)?,
            }
            if attempts >= ATTEMPTS_MAX {
                return Err(CachingError::from(Refusal::Busy).into());
            }
            keeper.fetch(chunk).await?;
            attempts += 1;
        };
        into[done..done + count].copy_from_slice(&bytes);
    }
    Ok(())
}

/// Writes a range of a file that is written back.
pub(crate) async fn write(
    client: &CachingClient,
    keeper: &dyn Keeper,
    chunk_bytes: u32,
    offset: u64,
    from: &[u8],
) -> Result<(), CacheError> {
    for (chunk, within, done, count) in parts(chunk_bytes, offset, from.len()) {
        let mut attempts = 0;
        while let Err(error) = client.write(chunk, within, &from[done..done + count]).await {
            is_missed(error)?;
            if attempts >= ATTEMPTS_MAX {
                return Err(CachingError::from(Refusal::Busy).into());
            }
            keeper.fetch(chunk).await?;
            attempts += 1;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::parts;

    #[test]
    fn ranges_are_cut_at_chunks() {
        let all = |offset, bytes| parts(4096, offset, bytes).collect::<Vec<_>>();
        assert_eq!(all(0, 0), []);
        assert_eq!(all(4095, 2), [(0, 4095, 0, 1), (1, 0, 1, 1)]);
        assert_eq!(all(8192, 8192), [(2, 0, 0, 4096), (3, 0, 4096, 4096)]);
        assert_eq!(all(8191, 4098), [(1, 4095, 0, 1), (2, 0, 1, 4096), (3, 0, 4097, 1)]);
    }
}
