//! A key-value namespace: keys of 1 to 16 bytes, values of what one command moves.

use crate::hre::many::RETRIEVE_TRIES_MAX;
use crate::hre::{Hre, HreError, KvCommand, Namespace};
use crate::nvme_tcp::NamespaceKind;
use std::sync::Arc;
use willow_wire::spec::kv::{KEY_BYTES_MAX, Key, read_list};

mod items;

pub use crate::hre::{Each, Item, ItemCondition, ScanCursor, ScanPage, StoreCondition, StoreMany};
pub use items::{StoreOptions, system_time_s};

/// First try for a value of unknown length.
const RETRIEVE_BYTES: usize = 64 << 10;
/// Buffer for a page of keys.
const LIST_BYTES: usize = 64 << 10;

/// A key-value namespace.
#[derive(Clone)]
pub struct KvClient {
    hre: Arc<dyn Hre>,
    nsid: u32,
    value_bytes_max: u64,
    /// The hosts' clock, in seconds.
    now_s: fn() -> u32,
}

fn key(bytes: &[u8]) -> Result<Key, HreError> {
    match Key::new(bytes) {
        Some(key) if !bytes.is_empty() => Ok(key),
        _ => Err(HreError::KeySize),
    }
}

impl KvClient {
    /// Opens a namespace.
    pub async fn open(hre: Arc<dyn Hre>, nsid: u32) -> Result<Self, HreError> {
        let namespaces = hre.namespaces().await?;
        match namespaces.iter().find(|namespace| namespace.nsid == nsid) {
            Some(Namespace { kind: NamespaceKind::Kv { value_bytes_max, .. }, .. }) => {
                let limit = if *value_bytes_max == 0 { u64::MAX } else { u64::from(*value_bytes_max) };
                let value_bytes_max = hre.transfer_bytes_max().min(limit);
                Ok(KvClient { hre, nsid, value_bytes_max, now_s: system_time_s })
            }
            Some(_) => Err(HreError::Namespace { nsid, problem: "no key-value namespace" }),
            None => Err(HreError::Namespace { nsid, problem: "not there" }),
        }
    }

    /// Opens the only key-value namespace, or says which there are.
    pub async fn open_only(hre: Arc<dyn Hre>) -> Result<Self, HreError> {
        let namespaces = hre.namespaces().await?;
        let nsids: Vec<u32> = namespaces
            .iter()
            .filter(|namespace| matches!(namespace.kind, NamespaceKind::Kv { .. }))
            .map(|namespace| namespace.nsid)
            .collect();
        match nsids[..] {
            [nsid] => Self::open(hre, nsid).await,
            [] => Err(HreError::Argument("the device has no key-value namespace; create one".to_owned())),
            _ => Err(HreError::Argument(format!("there are several key-value namespaces, choose one of {nsids:?}"))),
        }
    }

    /// NSID.
    pub fn nsid(&self) -> u32 {
        self.nsid
    }
    /// Longest value that one command moves here.
    pub fn value_bytes_max(&self) -> u64 {
        self.value_bytes_max
    }

    /// Stores a pair. The value's buffer is used up.
    pub async fn store(&self, name: &[u8], value: Vec<u8>, condition: StoreCondition) -> Result<(), HreError> {
        let name = key(name)?;
        if value.len() as u64 > self.value_bytes_max {
            return Err(HreError::ValueSize { bytes: value.len() as u64, bytes_max: self.value_bytes_max });
        }
        self.hre.kv(self.nsid, KvCommand::Store(name, condition), value).await.map(|_| ())
    }

    /// The value of a key, `None` where there is no such pair.
    pub async fn retrieve(&self, name: &[u8]) -> Result<Option<Vec<u8>>, HreError> {
        self.retrieve_with(name, RETRIEVE_BYTES).await
    }

    /// The same, with a first guess at the value's length: one command where it is not longer.
    pub async fn retrieve_with(&self, name: &[u8], guess_bytes: usize) -> Result<Option<Vec<u8>>, HreError> {
        let name = key(name)?;
        let mut room = (guess_bytes as u64).clamp(1, self.value_bytes_max) as usize;
        for _ in 0..RETRIEVE_TRIES_MAX {
            let reply = match self.hre.kv(self.nsid, KvCommand::Retrieve(name), vec![0; room]).await {
                Ok(reply) => reply,
                Err(HreError::KeyNotFound) => return Ok(None),
                Err(error) => return Err(error),
            };
            let bytes = u64::from(reply.result);
            if bytes <= room as u64 {
                let mut data = reply.data;
                if (data.len() as u64) < bytes {
                    return Err(HreError::Answer(format!("a value of {bytes} bytes brought {}", data.len())));
                }
                data.truncate(bytes as usize);
                return Ok(Some(data));
            }
            if bytes > self.value_bytes_max {
                return Err(HreError::ValueSize { bytes, bytes_max: self.value_bytes_max });
            }
            room = bytes as usize;
        }
        Err(HreError::Answer("the value changes its length each time that it is read".to_owned()))
    }

    /// Removes a pair; false where there was none.
    pub async fn delete(&self, name: &[u8]) -> Result<bool, HreError> {
        self.found(KvCommand::Delete(key(name)?)).await
    }

    /// True where there is such a pair.
    pub async fn exists(&self, name: &[u8]) -> Result<bool, HreError> {
        self.found(KvCommand::Exist(key(name)?)).await
    }

    async fn found(&self, command: KvCommand) -> Result<bool, HreError> {
        match self.hre.kv(self.nsid, command, Vec::new()).await {
            Ok(_) => Ok(true),
            Err(HreError::KeyNotFound) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Keys behind `after` (or from the first one on), a page of them; an empty page is the end. The order is the device's.
    pub async fn list_page(&self, after: Option<&[u8]>) -> Result<Vec<Vec<u8>>, HreError> {
        let from = match after {
            Some(after) => key(after)?,
            None => Key::EMPTY,
        };
        let room = (LIST_BYTES as u64).min(self.hre.transfer_bytes_max()) as usize;
        let reply = self.hre.kv(self.nsid, KvCommand::List(from), vec![0; room]).await?;
        let mut keys = read_list(&reply.data).map_err(|error| HreError::Answer(error.to_string()))?;
        if keys.iter().any(|name| name.is_empty() || name.len() > KEY_BYTES_MAX) {
            return Err(HreError::Answer("a list with keys of impossible length".to_owned()));
        }
        // A list begins with the key itself where that exists (KV Command Set, List).
        if after.is_some() && keys.first().map(Vec::as_slice) == after {
            keys.remove(0);
        }
        Ok(keys)
    }

    /// Calls `each` with all keys, until it says false.
    pub async fn list(&self, mut each: impl FnMut(&[u8]) -> bool) -> Result<(), HreError> {
        let mut last: Option<Vec<u8>> = None;
        loop {
            let keys = self.list_page(last.as_deref()).await?;
            for name in &keys {
                if !each(name) {
                    return Ok(());
                }
            }
            match keys.into_iter().next_back() {
                Some(name) => last = Some(name),
                None => return Ok(()),
            }
        }
    }

    /// Makes all that was stored and deleted durable.
    pub async fn flush(&self) -> Result<(), HreError> {
        self.hre.kv(self.nsid, KvCommand::Flush, Vec::new()).await.map(|_| ())
    }
}
