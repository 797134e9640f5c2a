//! Items: pairs with their version and expiry, several at once, and ranges of keys.

use super::{KvClient, key};
use crate::hre::many::retrieve_one;
use crate::hre::{
    Each, HreError, ITEM_HEAD_BYTES, Item, ItemCondition, ItemStore, ItemTerms, KeyRange, KvCommand, ScanCursor,
    ScanPage, StoreMany,
};
use std::collections::BinaryHeap;
use std::time::{SystemTime, UNIX_EPOCH};
use willow_wire::spec::kv::Key;

/// How an item is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreOptions {
    /// When.
    pub condition: ItemCondition,
    /// When the pair ends to exist, in seconds since 1970; 0: never.
    pub expiry: u32,
    /// Durable before it is answered.
    pub durable: bool,
}

/// Seconds since 1970, by this machine's clock.
pub fn system_time_s() -> u32 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u32::try_from(since.as_secs()).unwrap_or(u32::MAX)
}

fn bound(bytes: &[u8]) -> Result<Key, HreError> {
    Key::new(bytes).ok_or(HreError::KeySize)
}

impl StoreMany {
    /// A pair that is stored in any case, and stays.
    pub fn new(name: &[u8], value: Vec<u8>) -> Result<Self, HreError> {
        Ok(StoreMany { key: key(name)?, value, condition: ItemCondition::Always, expiry: 0 })
    }
}

impl KvClient {
    /// The same with another clock, which tells seconds: what has expired is judged by it.
    #[must_use]
    pub fn with_clock(mut self, now_s: fn() -> u32) -> Self {
        self.now_s = now_s;
        self
    }

    fn terms(&self, expiry: u32, durable: bool) -> ItemTerms {
        ItemTerms { expiry, now_s: (self.now_s)(), durable }
    }

    /// Longest value of an item that one command moves here.
    pub fn item_bytes_max(&self) -> u64 {
        self.value_bytes_max.min(self.hre.transfer_bytes_max() - ITEM_HEAD_BYTES as u64)
    }

    /// Stores a pair; returns its version.
    pub async fn store_item(&self, name: &[u8], value: &[u8], options: StoreOptions) -> Result<u64, HreError> {
        let name = key(name)?;
        let bytes_max = self.item_bytes_max();
        if value.len() as u64 > bytes_max {
            return Err(HreError::ValueSize { bytes: value.len() as u64, bytes_max });
        }
        let mut buffer = Vec::with_capacity(ITEM_HEAD_BYTES + value.len());
        buffer.resize(ITEM_HEAD_BYTES, 0);
        buffer.extend_from_slice(value);
        let store = ItemStore { condition: options.condition, terms: self.terms(options.expiry, options.durable) };
        Ok(self.hre.kv(self.nsid, KvCommand::StoreItem(name, store), buffer).await?.version)
    }

    /// A pair with its version and expiry; `None` where there is none, or it has expired.
    pub async fn retrieve_item(&self, name: &[u8]) -> Result<Option<Item>, HreError> {
        retrieve_one(&*self.hre, self.nsid, key(name)?, (self.now_s)(), super::RETRIEVE_BYTES).await
    }

    /// Removes a pair, where a version is given only that one ([`HreError::Changed`] where it is another); false where there is none.
    pub async fn delete_item(&self, name: &[u8], version: Option<u64>, durable: bool) -> Result<bool, HreError> {
        self.found(KvCommand::DeleteItem(key(name)?, version, self.terms(0, durable))).await
    }

    /// Gives a pair another expiry (0: it stays); its value and version stay. False where there is none.
    pub async fn touch(&self, name: &[u8], expiry: u32, durable: bool) -> Result<bool, HreError> {
        self.found(KvCommand::Touch(key(name)?, self.terms(expiry, durable))).await
    }

    /// Stores several pairs, each with an outcome of its own; of pairs with one key the later one stays. With `durable` all that were stored
    /// are durable when it ends. It is no transaction: after a power cut in its midst some of it may be there.
    pub async fn store_many(&self, items: Vec<StoreMany>, durable: bool) -> Result<Each<()>, HreError> {
        self.hre.kv_store_many(self.nsid, items, self.terms(0, durable)).await
    }

    /// Reads several pairs at once.
    pub async fn retrieve_many(&self, names: &[&[u8]]) -> Result<Each<Option<Item>>, HreError> {
        let keys = names.iter().map(|name| key(name)).collect::<Result<Vec<Key>, _>>()?;
        self.hre.kv_retrieve_many(self.nsid, keys, (self.now_s)()).await
    }

    /// Calls `each` with the keys from `from` on up to `to` without it (empty: no bound), in the device's order, which is not theirs, until it
    /// says false. The device looks at every pair for it, whatever the range.
    pub async fn scan(&self, from: &[u8], to: &[u8], mut each: impl FnMut(&[u8]) -> bool) -> Result<(), HreError> {
        let mut at = None;
        loop {
            let page = self.scan_page(from, to, at).await?;
            if !page.keys.iter().all(|key| each(key)) || page.next.is_none() {
                return Ok(());
            }
            at = page.next;
        }
    }

    /// Some keys of a range, from its beginning or where a page before ended; it may have none and not be the last. See [`KvClient::scan`].
    pub async fn scan_page(&self, from: &[u8], to: &[u8], at: Option<ScanCursor>) -> Result<ScanPage, HreError> {
        self.hre.kv_scan(self.nsid, KeyRange { from: bound(from)?, to: bound(to)? }, at).await
    }

    /// The lowest keys of a range, at most so many, in their order.
    pub async fn range(&self, from: &[u8], to: &[u8], most: usize) -> Result<Vec<Vec<u8>>, HreError> {
        let mut lowest: BinaryHeap<Vec<u8>> = BinaryHeap::new();
        if most > 0 {
            self.scan(from, to, |key| {
                if lowest.len() < most {
                    lowest.push(key.to_vec());
                } else if lowest.peek().is_some_and(|highest| key < &highest[..]) {
                    lowest.pop();
                    lowest.push(key.to_vec());
                }
                true
            })
            .await?;
        }
        Ok(lowest.into_sorted_vec())
    }

    /// Removes what has expired from the next buckets of an SPU, from number `from` on; returns where to go on, `None` at the end. It takes
    /// space until then, or until a put finds none.
    pub async fn sweep(&self, spu: u16, from: u32) -> Result<Option<u32>, HreError> {
        let command = KvCommand::Sweep { spu, from, now_s: (self.now_s)() };
        let next = self.hre.kv(self.nsid, command, Vec::new()).await?.result;
        Ok(Some(next).filter(|next| *next != 0))
    }

    /// Removes all pairs, durably, in a time that does not depend on how many there are.
    pub async fn clear(&self) -> Result<(), HreError> {
        self.hre.kv(self.nsid, KvCommand::Clear, Vec::new()).await.map(drop)
    }
}
