//! Several pairs, and ranges, by commands for one pair each: for transports whose commands move data one way only.

use super::{
    BoxFuture, Each, Hre, HreError, ITEM_HEAD_BYTES, Item, ItemStore, ItemTerms, KeyRange, KvCommand, ScanCursor,
    ScanPage, ScanPlace, StoreMany,
};
use std::future::poll_fn;
use std::task::Poll;
use willow_wire::spec::kv::{Key, read_list};

/// Commands that are under way at the same time.
const TOGETHER_MAX: usize = 32;
/// First guess at a value's length.
const ROOM_BYTES: usize = 16 << 10;
/// How often a value that grows while it is read is read anew.
pub(crate) const RETRIEVE_TRIES_MAX: u32 = 8;
/// Buffer for a page of keys.
const PAGE_BYTES: usize = 64 << 10;

/// Waits for all of them.
pub(crate) async fn together<T>(mut futures: Vec<BoxFuture<'_, T>>) -> Vec<T> {
    let mut done: Vec<Option<T>> = futures.iter().map(|_| None).collect();
    poll_fn(|context| {
        let mut waiting = false;
        for (future, done) in futures.iter_mut().zip(&mut done).filter(|(_, done)| done.is_none()) {
            match future.as_mut().poll(context) {
                Poll::Ready(value) => *done = Some(value),
                Poll::Pending => waiting = true,
            }
        }
        if waiting { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    done.into_iter().flatten().collect()
}

/// A failure that is the way's, not the pair's: it ends the whole.
pub(crate) fn of_the_way(error: &HreError) -> bool {
    !matches!(
        error,
        HreError::KeyNotFound
            | HreError::KeyExists
            | HreError::Changed
            | HreError::KeySize
            | HreError::ValueSize { .. }
            | HreError::Full
            | HreError::Media
    )
}

/// See [`Hre::kv_store_many`].
pub async fn store<H: Hre + ?Sized>(
    hre: &H,
    nsid: u32,
    items: Vec<StoreMany>,
    terms: ItemTerms,
) -> Result<Each<()>, HreError> {
    let mut outcomes: Each<()> = Vec::with_capacity(items.len());
    let mut waiting = items.into_iter().peekable();
    while waiting.peek().is_some() {
        let (mut futures, mut keys) = (Vec::new(), Vec::new());
        // The second of one key waits for the first.
        while let Some(item) = waiting.next_if(|item| futures.len() < TOGETHER_MAX && !keys.contains(&item.key)) {
            keys.push(item.key);
            let mut buffer = Vec::with_capacity(ITEM_HEAD_BYTES + item.value.len());
            buffer.resize(ITEM_HEAD_BYTES, 0);
            buffer.extend_from_slice(&item.value);
            let terms = ItemTerms { expiry: item.expiry, durable: false, ..terms };
            let store = ItemStore { condition: item.condition, terms };
            futures.push(hre.kv(nsid, KvCommand::StoreItem(item.key, store), buffer));
        }
        for outcome in together(futures).await {
            match outcome {
                Err(error) if of_the_way(&error) => return Err(error),
                outcome => outcomes.push(outcome.map(drop)),
            }
        }
    }
    if terms.durable && outcomes.iter().any(Result::is_ok) {
        hre.kv(nsid, KvCommand::Flush, Vec::new()).await?;
    }
    Ok(outcomes)
}

/// One pair, with a first guess at its length.
pub(crate) async fn retrieve_one<H: Hre + ?Sized>(
    hre: &H,
    nsid: u32,
    key: Key,
    now_s: u32,
    guess_bytes: usize,
) -> Result<Option<Item>, HreError> {
    let bytes_max = hre.transfer_bytes_max() - ITEM_HEAD_BYTES as u64;
    let mut room = (guess_bytes as u64).clamp(1, bytes_max) as usize;
    for _ in 0..RETRIEVE_TRIES_MAX {
        let buffer = vec![0; room + ITEM_HEAD_BYTES];
        let reply = match hre.kv(nsid, KvCommand::RetrieveItem(key, now_s), buffer).await {
            Ok(reply) => reply,
            Err(HreError::KeyNotFound) => return Ok(None),
            Err(error) => return Err(error),
        };
        let bytes = reply.result as usize;
        if bytes <= room {
            if reply.data.len() != bytes {
                return Err(HreError::Answer(format!("a value of {bytes} bytes brought {}", reply.data.len())));
            }
            return Ok(Some(Item { value: reply.data, version: reply.version, expiry: reply.expiry }));
        }
        if bytes as u64 > bytes_max {
            return Err(HreError::ValueSize { bytes: bytes as u64, bytes_max });
        }
        room = bytes;
    }
    Err(HreError::Answer("the value changes its length each time that it is read".to_owned()))
}

/// See [`Hre::kv_retrieve_many`].
pub async fn retrieve<H: Hre + ?Sized>(
    hre: &H,
    nsid: u32,
    keys: Vec<Key>,
    now_s: u32,
) -> Result<Each<Option<Item>>, HreError> {
    let mut outcomes = Vec::with_capacity(keys.len());
    for some in keys.chunks(TOGETHER_MAX) {
        let one = |key: &Key| -> BoxFuture<'_, _> { Box::pin(retrieve_one(hre, nsid, *key, now_s, ROOM_BYTES)) };
        for outcome in together(some.iter().map(one).collect()).await {
            match outcome {
                Err(error) if of_the_way(&error) => return Err(error),
                outcome => outcomes.push(outcome),
            }
        }
    }
    Ok(outcomes)
}

/// See [`Hre::kv_scan`]: lists, and keeps what is in the range.
pub async fn scan<H: Hre + ?Sized>(
    hre: &H,
    nsid: u32,
    range: KeyRange,
    at: Option<ScanCursor>,
) -> Result<ScanPage, HreError> {
    let from = match at {
        None => Key::EMPTY,
        Some(ScanCursor(ScanPlace::Listed(key))) => key,
        Some(ScanCursor(ScanPlace::InApp(_))) => {
            return Err(HreError::Argument("a scan goes on at the endpoint where it began".to_owned()));
        }
    };
    let room = (PAGE_BYTES as u64).min(hre.transfer_bytes_max()) as usize;
    let reply = hre.kv(nsid, KvCommand::List(from), vec![0; room]).await?;
    let mut keys = read_list(&reply.data).map_err(|error| HreError::Answer(error.to_string()))?;
    // A list begins with the key itself where that exists (KV Command Set, List).
    if from != Key::EMPTY && keys.first().map(Vec::as_slice) == Some(from.as_slice()) {
        keys.remove(0);
    }
    let last = keys.last().map(|key| Key::new(key).filter(|_| !key.is_empty()));
    let next = match last {
        None => None,
        Some(None) => return Err(HreError::Answer("a list with keys of impossible length".to_owned())),
        Some(Some(key)) => Some(ScanCursor(ScanPlace::Listed(key))),
    };
    keys.retain(|key| range.holds(key));
    Ok(ScanPage { keys, next })
}
