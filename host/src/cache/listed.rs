//! The caches of a device, and their removal (Willow, 4.4).
//!
//! What always holds: a cache that is removed goes as a whole or not at all, and one with dirty chunks only where that was asked for.
//!
//! Who may call it: who has an endpoint of the host's kernel.

use super::manager::random;
use crate::caching::{CachingClient, CachingError};
use caching_host::Refusal;
use caching_host::wire::{CACHES_MAX, Counts, Descriptor, handler};

/// `Ok(None)` where there is none.
pub(super) fn known<T>(answer: Result<T, CachingError>) -> Result<Option<T>, CachingError> {
    match answer {
        Err(CachingError::Refused(Refusal::Absent)) => Ok(None),
        answer => answer.map(Some),
    }
}

/// A cache as the first SPU tells of it.
#[derive(Clone, Copy, Debug)]
pub struct Listed {
    /// Its number.
    pub cache: u32,
    /// What it is.
    pub descriptor: Descriptor,
    /// The sum of what all SPUs have of it.
    pub counts: Counts,
    /// All SPUs have it.
    pub is_whole: bool,
}

/// The caches of a device.
pub async fn list(client: &CachingClient) -> Result<Vec<Listed>, CachingError> {
    let mut all = Vec::new();
    for cache in 0..CACHES_MAX as u32 {
        let client = client.of(cache, 0);
        let Some((descriptor, mut counts)) = known(client.describe(0).await)? else { continue };
        let mut is_whole = true;
        for spu in 1..client.numbers().1 {
            match known(client.describe(spu).await)? {
                Some((other, more)) if other.generation == descriptor.generation => {
                    counts.used += more.used;
                    counts.dirty += more.dirty;
                    counts.hits += more.hits;
                    counts.misses += more.misses;
                    counts.writes += more.writes;
                    counts.installs += more.installs;
                    counts.evictions += more.evictions;
                }
                _ => is_whole = false,
            }
        }
        all.push(Listed { cache, descriptor, counts, is_whole });
    }
    Ok(all)
}

/// Has the device forget a cache that nobody manages; with dirty chunks only where `discards`. It goes as a whole or not at all.
pub async fn remove(client: &CachingClient, cache: u32, discards: bool) -> Result<(), CachingError> {
    let client = client.of(cache, random() as u32 | 1);
    let (mut is_there, mut refused) = (false, None);
    // Nobody writes to what this one manages.
    for spu in 0..client.numbers().1 {
        match known(client.on(spu, handler::CLAIM, 0).await) {
            Ok(None) => continue,
            Ok(Some(())) => is_there = true,
            Err(error) => refused = Some(error),
        }
        match client.describe(spu).await {
            Ok((_, counts)) if counts.dirty > 0 && !discards => refused = Some(Refusal::Dirty.into()),
            _ => {}
        }
        if refused.is_some() {
            break;
        }
    }
    if let Some(error) = refused {
        // Those that were taken; others refuse that.
        for spu in (0..client.numbers().1).rev() {
            let _ = client.on(spu, handler::RELEASE, 0).await;
        }
        return Err(error);
    }
    if is_there { remove_own(&client).await } else { Err(Refusal::Absent.into()) }
}

/// The same of one that this client manages, wherever it is.
pub(super) async fn remove_own(client: &CachingClient) -> Result<(), CachingError> {
    for spu in (0..client.numbers().1).rev() {
        known(client.on(spu, handler::REMOVE, 1).await)?;
    }
    client.on(0, handler::FREE, 0).await
}
