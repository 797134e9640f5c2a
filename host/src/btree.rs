//! B+trees in the drive: the typed client of the SSD App `btree` (XSSD, section 4.5), over any endpoint.
//!
//! What always holds: a put or a delete that was answered is durable; a search is one request, whatever the tree's height; what the device has no
//! place for is tried again for [`BUSY_MAX`].
//!
//! Who may call it: the user who installed the app, and the host's kernel.

use crate::atomic_write::{BUSY_MAX, BUSY_WAIT};
use crate::control::ControlClient;
use crate::hre::{Hre, HreError, RpcCall, RpcReply};
use btree_host::wire::{
    self, Key, PAIRS_MAX, PUT_BYTES_MAX, RANGE_AFTER, RANGE_KEYS_ONLY, Statistics, VALUE_BYTES_MAX,
};
use btree_host::{Call, Merge, Page, Tree};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;
use tokio::task::JoinSet;

pub use btree_host::{Layout, Pair, key};

/// Bytes of a reply to a range, and the most pairs in it.
const RANGE_BYTES: u32 = 64 << 10;
const RANGE_PAIRS: u32 = 512;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum BtreeError {
    /// There is none of that name.
    #[error("there is no tree {0}: make one with willow btree create")]
    NoTree(String),
    /// There is one of that name.
    #[error("there is a tree {0} already")]
    Exists(String),
    /// Another tree has the number that this name leads to.
    #[error("the name {0} leads to the number of another tree: choose another name")]
    OtherName(String),
    /// What it is made of makes no sense.
    #[error("a tree has a name of 1 to 64 bytes and, in each bank, 256 KiB to 1 GiB (a striped one 1 GiB in all)")]
    Shape,
    /// No room.
    #[error(
        "there is no room: the tree is full (a tree does not grow: make a larger one, load it with what range --hex prints, and remove this one), or the \
         device has no region for it (of a user's app see user_region_bytes_max)"
    )]
    Full,
    /// A value that is too long.
    #[error("the value has {0} bytes, must have at most {VALUE_BYTES_MAX}")]
    ValueSize(usize),
    /// The device had no place for it for too long.
    #[error("the device had no place for it for 10 s: try again")]
    Busy,
    /// What lies in a bank is no tree.
    #[error("what lies in the bank is no sound tree, or one of another number of processors")]
    Damaged,
    /// The media failed. A change may have been done or not, as a whole.
    #[error("the media failed; a change may have been done or not")]
    Media,
    /// Another status.
    #[error("the app answered with status {0}")]
    Status(u32),
    /// The way to the device. What was under way may have been done or not.
    #[error(transparent)]
    Hre(#[from] HreError),
}

/// The app on a device.
#[derive(Clone)]
pub struct BtreeClient {
    hre: Arc<dyn Hre>,
    app: u16,
    spus: u16,
}

impl BtreeClient {
    /// Finds the app.
    pub async fn find(hre: Arc<dyn Hre>) -> Result<Self, HreError> {
        let app = ControlClient::new(hre.clone()).find_app(btree_host::APP_NAME).await?;
        // The control service tells users nothing of that.
        let call = RpcCall { app, handler: wire::handler::SPUS, spu: Some(0), ..RpcCall::default() };
        let reply = hre.rpc(call).await?;
        match u16::try_from(reply.result) {
            Ok(spus) if reply.status == 0 && spus > 0 => Ok(BtreeClient { hre, app, spus }),
            _ => Err(HreError::Answer(format!("btree answered with status {}", reply.status))),
        }
    }

    /// The app by its number, on a device with so many SPUs.
    pub fn new(hre: Arc<dyn Hre>, app: u16, spus: u16) -> Self {
        BtreeClient { hre, app, spus }
    }

    fn tree(&self, name: &str, layout: Layout) -> BtreeTree {
        let tree = Tree { number: btree_host::number(name), layout, spus: self.spus };
        BtreeTree { client: self.clone(), name: name.to_owned(), tree }
    }

    /// Makes a tree of so many bytes, nodes and values together.
    pub async fn create(&self, name: &str, layout: Layout, bytes: u64) -> Result<BtreeTree, BtreeError> {
        let made = self.tree(name, layout);
        let bank_bytes = bytes.div_ceil(u64::from(self.spus.max(1)));
        let mut is_new = false;
        for spu in made.tree.parts() {
            let reply = self.send(&made.tree.create(spu, name, bank_bytes), 0).await?;
            match reply.status {
                0 => is_new = true,
                // A create that was broken off is gone on with.
                wire::STATUS_EXISTS if reply.result == layout.encode() => {}
                status => return Err(error(status, name)),
            }
        }
        if is_new { Ok(made) } else { Err(BtreeError::Exists(name.to_owned())) }
    }

    /// Opens a tree.
    pub async fn open(&self, name: &str) -> Result<BtreeTree, BtreeError> {
        let unknown = self.tree(name, Layout::Partitioned);
        let found = unknown.part(unknown.tree.owner()).await?;
        if found.name.get(..found.name_bytes as usize) != Some(name.as_bytes()) {
            return Err(BtreeError::OtherName(name.to_owned()));
        }
        let layout = Layout::decode(found.layout).ok_or(BtreeError::Damaged)?;
        Ok(self.tree(name, layout))
    }

    /// Removes a tree and all its pairs from all banks, and gives its room back; or nothing. What lies there and is no sound tree goes as well.
    pub async fn remove(&self, name: &str) -> Result<(), BtreeError> {
        let reply = self.send(&self.tree(name, Layout::Partitioned).tree.remove(name), 0).await?;
        if reply.status == 0 { Ok(()) } else { Err(error(reply.status, name)) }
    }

    async fn send(&self, call: &Call, reply_bytes_max: u32) -> Result<RpcReply, BtreeError> {
        let begun = Instant::now();
        loop {
            let (app, spu, body) = (self.app, Some(call.spu), call.body.clone());
            let (arguments, payload) = if reply_bytes_max > 0 { (body, Vec::new()) } else { (Vec::new(), body) };
            let rpc = RpcCall { app, handler: call.handler, spu, arguments, payload, reply_bytes_max };
            let is_busy = match self.hre.rpc(rpc).await {
                Ok(reply) if reply.status != wire::STATUS_BUSY => return Ok(reply),
                Ok(_) => true,
                Err(error) if error.is_busy() => true,
                Err(error) => return Err(error.into()),
            };
            if is_busy && begun.elapsed() >= BUSY_MAX {
                return Err(BtreeError::Busy);
            }
            tokio::time::sleep(BUSY_WAIT).await;
        }
    }
}

fn error(status: u32, name: &str) -> BtreeError {
    match status {
        wire::STATUS_NO_TREE => BtreeError::NoTree(name.to_owned()),
        wire::STATUS_EXISTS => BtreeError::Exists(name.to_owned()),
        wire::STATUS_OTHER_NAME => BtreeError::OtherName(name.to_owned()),
        wire::STATUS_MALFORMED => BtreeError::Shape,
        wire::STATUS_FULL => BtreeError::Full,
        wire::STATUS_DAMAGED => BtreeError::Damaged,
        wire::STATUS_MEDIA => BtreeError::Media,
        status => BtreeError::Status(status),
    }
}

/// A tree.
#[derive(Clone)]
pub struct BtreeTree {
    client: BtreeClient,
    name: String,
    tree: Tree,
}

/// What there is of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BtreeStatistics {
    /// How it lies.
    pub layout: Layout,
    /// Pairs.
    pub pairs: u64,
    /// Levels of the highest part.
    pub height: u32,
    /// Pages of 4 kB that nodes and values may use.
    pub pages: u64,
    /// Changes that were made.
    pub changes: u64,
}

impl BtreeTree {
    /// How it lies.
    pub fn layout(&self) -> Layout {
        self.tree.layout
    }

    async fn send(&self, call: &Call, reply_bytes: u32) -> Result<RpcReply, BtreeError> {
        let reply = self.client.send(call, reply_bytes).await?;
        if reply.status == 0 { Ok(reply) } else { Err(error(reply.status, &self.name)) }
    }

    /// The value of a key: one request.
    pub async fn get(&self, key: &Key) -> Result<Option<Vec<u8>>, BtreeError> {
        let mut reply = self.client.send(&self.tree.get(key), VALUE_BYTES_MAX).await?;
        match reply.status {
            0 if reply.result as usize <= reply.data.len() => {
                reply.data.truncate(reply.result as usize);
                Ok(Some(reply.data))
            }
            0 => Err(HreError::Answer("a value that is longer than its reply".to_owned()).into()),
            wire::STATUS_NOT_FOUND => Ok(None),
            status => Err(error(status, &self.name)),
        }
    }

    /// Stores a pair, durably.
    pub async fn put(&self, key: &Key, value: &[u8]) -> Result<(), BtreeError> {
        check(value)?;
        self.send(&self.tree.put(self.tree.spu_of(key), &[(*key, value)]), 0).await.map(drop)
    }

    /// Stores many pairs: as few changes as they fit, each of them durable and done as a whole or not at all, those of different SPUs at the same
    /// time. Rising keys leave full nodes behind. After an error some may be stored.
    pub async fn put_many(&self, pairs: Vec<(Key, Vec<u8>)>) -> Result<(), BtreeError> {
        let mut by_spu = BTreeMap::<u16, Vec<(Key, Vec<u8>)>>::new();
        for (key, value) in pairs {
            check(&value)?;
            by_spu.entry(self.tree.spu_of(&key)).or_default().push((key, value));
        }
        let mut running = JoinSet::new();
        for (spu, pairs) in by_spu {
            let tree = self.clone();
            running.spawn(async move { tree.put_at(spu, &pairs).await });
        }
        let mut failed = Ok(());
        while let Some(done) = running.join_next().await {
            let done = done.map_err(|_| HreError::Gone("a task ended".to_owned()))?;
            failed = failed.and(done);
        }
        failed
    }

    async fn put_at(&self, spu: u16, mut pairs: &[(Key, Vec<u8>)]) -> Result<(), BtreeError> {
        while !pairs.is_empty() {
            let mut bytes = 0;
            let fits = |(_, value): &&(Key, Vec<u8>)| {
                bytes += value.len();
                bytes <= PUT_BYTES_MAX as usize
            };
            let count = pairs.iter().take(PAIRS_MAX as usize).take_while(fits).count().max(1);
            let (some, rest) = pairs.split_at(count);
            let some: Vec<(Key, &[u8])> = some.iter().map(|(key, value)| (*key, value.as_slice())).collect();
            self.send(&self.tree.put(spu, &some), 0).await?;
            pairs = rest;
        }
        Ok(())
    }

    /// Deletes a key, durably; false where it was not there.
    pub async fn delete(&self, key: &Key) -> Result<bool, BtreeError> {
        Ok(self.send(&self.tree.delete(self.tree.spu_of(key), &[*key]), 0).await?.result > 0)
    }

    /// Pairs in the order of their keys, from a key on, until `each` says false. What changes meanwhile may be seen or not.
    pub async fn range<E: From<BtreeError>>(
        &self,
        from: Key,
        keys_only: bool,
        mut each: impl FnMut(Pair) -> Result<bool, E>,
    ) -> Result<(), E> {
        let mut merge = Merge::new(&self.tree.parts(), from);
        loop {
            for (spu, key, is_after) in merge.wanted() {
                let flag = |is_set: bool, flag: u32| if is_set { flag } else { 0 };
                let flags = RANGE_PAIRS | flag(is_after, RANGE_AFTER) | flag(keys_only, RANGE_KEYS_ONLY);
                let reply = self.send(&self.tree.range(spu, &key, flags), RANGE_BYTES).await?;
                let page = Page::decode(&reply.data, keys_only);
                let page = page.ok_or_else(|| HreError::Answer("a senseless page of a range".to_owned()));
                merge.give(spu, page.map_err(BtreeError::from)?);
            }
            let Some(pair) = merge.next_pair() else { return Ok(()) };
            if !each(pair)? {
                return Ok(());
            }
        }
    }

    async fn part(&self, spu: u16) -> Result<Statistics, BtreeError> {
        let reply = self.send(&self.tree.stat(spu), Statistics::BYTES as u32).await?;
        btree_host::statistics(&reply.data).ok_or(BtreeError::Damaged)
    }

    /// What there is of it.
    pub async fn statistics(&self) -> Result<BtreeStatistics, BtreeError> {
        let layout = self.tree.layout;
        let mut sum = BtreeStatistics { layout, pairs: 0, height: 0, pages: 0, changes: 0 };
        for spu in self.tree.parts() {
            let part = self.part(spu).await?;
            sum.pairs += part.pairs;
            sum.height = sum.height.max(part.height);
            sum.pages += part.pages;
            sum.changes += part.revision;
        }
        Ok(sum)
    }
}

fn check(value: &[u8]) -> Result<(), BtreeError> {
    if value.len() > VALUE_BYTES_MAX as usize { Err(BtreeError::ValueSize(value.len())) } else { Ok(()) }
}
