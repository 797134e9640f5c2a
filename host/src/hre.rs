//! A host RPC endpoint (Willow, section 2.3) as one asynchronous trait: RPCs to SPUs, upcalls from them, and the block and
//! key-value commands that namespaces answer. Transports implement it ([`crate::nvme_tcp::NvmeHre`], and `InProcessHre` with
//! the feature `in-process`); the typed clients beside it are written over it.
//!
//! What always holds:
//! - an endpoint is one queue: upcalls come back on the endpoint whose RPC caused them, and the control service's last error
//!   text is the endpoint's own;
//! - dropping a future does not take its command back;
//! - a reply's data are as long as what came, never longer than what was asked for.

pub(crate) mod many;

use crate::nvme_tcp::NvmeError;
use key_value_host::{KeyScan, ScanCall};
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;
use willow_wire::spec::Status;
use willow_wire::spec::kv::Key;

pub use key_value_host::ItemCondition;

/// A boxed future, so that transports can be chosen at run time (`dyn Hre`).
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// An RPC.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RpcCall {
    /// Number of the receiving app.
    pub app: u16,
    /// Handler in it, 1 to 255.
    pub handler: u8,
    /// Receiving SPU; `None`: the app decides.
    pub spu: Option<u16>,
    /// Start of the body. Beside a reply, over NVMe, at most 24 bytes, and the handler sees 24, zeroes behind these.
    pub arguments: Vec<u8>,
    /// Rest of the body. Over NVMe not together with a reply: a command moves data one way only.
    pub payload: Vec<u8>,
    /// Bytes of reply that are wanted; 0 for none.
    pub reply_bytes_max: u32,
}

/// What an RPC's handler answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RpcReply {
    /// Status, 0 is success; else the app's own meaning.
    pub status: u32,
    /// Result.
    pub result: u32,
    /// Reply data. Over NVMe it may be followed by zeroes, up to what was asked for: the handler's result tells.
    pub data: Vec<u8>,
}

/// An RPC from an SPU to this endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upcall {
    /// To answer it.
    pub id: u64,
    /// Sending app.
    pub app: u16,
    /// Handler number at the host, the sender's choice.
    pub handler: u8,
    /// Sending SPU.
    pub spu: u16,
    /// Body.
    pub body: Vec<u8>,
}

/// A namespace and its shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// NSID.
    pub nsid: u32,
    /// Kind and shape.
    pub kind: crate::nvme_tcp::NamespaceKind,
}

/// A command of a block namespace. Data go in and out with it in a buffer, whole blocks of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BlockCommand {
    /// Fills the buffer from this block on.
    Read {
        /// First block.
        lba: u64,
    },
    /// Writes the buffer from this block on.
    Write {
        /// First block.
        lba: u64,
        /// Durable before it is answered.
        fua: bool,
    },
    /// Fails where the buffer differs from what is stored.
    Compare {
        /// First block.
        lba: u64,
    },
    /// Makes all that was written durable.
    Flush,
    /// Makes blocks read as zeroes.
    WriteZeroes {
        /// First block.
        lba: u64,
        /// How many, 1 to 65536.
        blocks: u32,
        /// Their space may be given back.
        deallocate: bool,
    },
    /// Reads blocks without transferring them.
    Verify {
        /// First block.
        lba: u64,
        /// How many, 1 to 65536.
        blocks: u32,
    },
    /// Tells that ranges (first block, blocks) are of no use any more, at most 256 of them.
    Deallocate(Vec<(u64, u32)>),
}

/// A command of a key-value namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvCommand {
    /// Stores the buffer under a key.
    Store(Key, StoreCondition),
    /// Fills the buffer from the value; the result is the value's whole length.
    Retrieve(Key),
    /// Removes a pair.
    Delete(Key),
    /// Fails with "not found" where there is no such pair.
    Exist(Key),
    /// Fills the buffer with keys at or behind this one (NVMe KV List data).
    List(Key),
    /// Makes all that was stored durable.
    Flush,
    /// Stores the buffer but for its first [`ITEM_HEAD_BYTES`], which the transport uses.
    StoreItem(Key, ItemStore),
    /// Fills the buffer from the value, which comes without a head; the result is the value's whole length. The host's time in seconds.
    RetrieveItem(Key, u32),
    /// Removes a pair, where a version is given only that one.
    DeleteItem(Key, Option<u64>, ItemTerms),
    /// Gives a pair the expiry of the terms; the result is the value's length.
    Touch(Key, ItemTerms),
    /// Removes what has expired from some buckets; the result is where to go on, 0 at the end.
    Sweep {
        /// SPU.
        spu: u16,
        /// First bucket.
        from: u32,
        /// The host's time in seconds.
        now_s: u32,
    },
    /// Removes all pairs, durably.
    Clear,
}

/// Bytes in front of an item's value, in the buffer of a command.
pub const ITEM_HEAD_BYTES: usize = 16;

/// What goes with a command for an item.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ItemTerms {
    /// When the pair ends to exist, in seconds of the hosts' clock; 0: never.
    pub expiry: u32,
    /// The hosts' clock now; 0: not told.
    pub now_s: u32,
    /// Durable before it is answered.
    pub durable: bool,
}

/// How an item is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ItemStore {
    /// When.
    pub condition: ItemCondition,
    /// The rest.
    pub terms: ItemTerms,
}

/// One pair of several that are stored together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreMany {
    /// Key.
    pub key: Key,
    /// Value.
    pub value: Vec<u8>,
    /// When it is stored.
    pub condition: ItemCondition,
    /// When the pair ends to exist; 0: never.
    pub expiry: u32,
}

/// A pair with what is known of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Item {
    /// Its value.
    pub value: Vec<u8>,
    /// Differs from that of whatever was stored under this key before, or will be.
    pub version: u64,
    /// When it ends to exist; 0: never.
    pub expiry: u32,
}

/// What became of one pair of several.
pub type Each<T> = Vec<Result<T, HreError>>;

/// Keys from the first one up to the second one, without that; an empty one is no bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyRange {
    /// First key.
    pub from: Key,
    /// Behind the last key.
    pub to: Key,
}

impl KeyRange {
    /// Whether a key is in it.
    pub fn holds(&self, key: &[u8]) -> bool {
        key >= self.from.as_slice() && (self.to == Key::EMPTY || key < self.to.as_slice())
    }
}

/// Some keys of a range, and where the rest begins.
#[derive(Clone, Debug, Default)]
pub struct ScanPage {
    /// Keys, in the device's order.
    pub keys: Vec<Vec<u8>>,
    /// `None`: that was all.
    pub next: Option<ScanCursor>,
}

/// Where a scan goes on.
#[derive(Clone, Debug)]
pub struct ScanCursor(pub(crate) ScanPlace);

#[derive(Clone, Debug)]
pub(crate) enum ScanPlace {
    /// The app looks for the keys.
    InApp(Box<(KeyScan, ScanCall)>),
    /// Keys are listed, and the host looks for those that are wanted.
    Listed(Key),
}

/// When a pair is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StoreCondition {
    /// In any case.
    #[default]
    Always,
    /// Only over a pair that exists.
    MustExist,
    /// Only where there is none.
    MustNotExist,
}

/// What a key-value command answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KvReply {
    /// Result (DW0).
    pub result: u32,
    /// The buffer, cut to what came.
    pub data: Vec<u8>,
    /// Of an item that was stored or retrieved: its version
    pub version: u64,
    /// and expiry.
    pub expiry: u32,
}

/// Why a request failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum HreError {
    /// Transport or command.
    #[error(transparent)]
    Nvme(#[from] NvmeError),
    /// No app of that number.
    #[error("there is no app number {0}")]
    NoApp(u16),
    /// The app has no such handler.
    #[error("app {app} has no handler {handler}")]
    NoHandler {
        /// App.
        app: u16,
        /// Handler.
        handler: u8,
    },
    /// No such SPU.
    #[error("there is no SPU {0:?}")]
    NoSpu(Option<u16>),
    /// The receiver had no room.
    #[error("the receiver had no room for the RPC; try again")]
    Refused,
    /// The app ended.
    #[error("the app ended before it answered (it trapped, went past its budget, or was removed)")]
    AppEnded,
    /// For kernel endpoints only.
    #[error("this RPC is not permitted on this endpoint")]
    NotPermitted,
    /// Taken back.
    #[error("the request was aborted")]
    Aborted,
    /// The request cannot be sent this way.
    #[error("{0}")]
    Argument(String),
    /// No such namespace, or one of another kind.
    #[error("namespace {nsid} is {problem}")]
    Namespace {
        /// NSID.
        nsid: u32,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// No such pair.
    #[error("there is no such key")]
    KeyNotFound,
    /// There is such a pair.
    #[error("the key exists already")]
    KeyExists,
    /// The pair has another version.
    #[error("the pair has another version")]
    Changed,
    /// A key of a size that the namespace does not take.
    #[error("a key must have 1 to 16 bytes")]
    KeySize,
    /// A value longer than the namespace or a command takes.
    #[error("the value of {bytes} bytes is longer than the {bytes_max} that one command can move here")]
    ValueSize {
        /// Its length.
        bytes: u64,
        /// The limit.
        bytes_max: u64,
    },
    /// Compare found a difference.
    #[error("the data differ from what is stored")]
    CompareFailed,
    /// Past the end.
    #[error("the range goes past the end of the namespace")]
    OutOfRange,
    /// No room.
    #[error("the media is full")]
    Full,
    /// The media failed.
    #[error("the media failed")]
    Media,
    /// The control service refused a request; its sentence says why.
    #[error("{text}")]
    Control {
        /// Its status.
        status: u32,
        /// Its sentence.
        text: String,
    },
    /// The endpoint has ended, with the device or by a fault: another may be opened.
    #[error("the endpoint has ended: {0}")]
    Gone(String),
    /// An answer that makes no sense.
    #[error("the device answered senselessly: {0}")]
    Answer(String),
}

impl HreError {
    /// True where the way to the device is gone, not the request wrong: the same may go well over another endpoint.
    pub fn is_gone(&self) -> bool {
        matches!(self, HreError::Gone(_))
    }

    /// True where the device had no place for it just then, whoever says so: it was not begun, and is to be asked again.
    pub fn is_busy(&self) -> bool {
        match self {
            HreError::Refused => true,
            HreError::Nvme(error) => error.status().is_some_and(|status| status.is(Status::COMMAND_INTERRUPTED)),
            _ => false,
        }
    }
}

/// A host RPC endpoint.
pub trait Hre: Send + Sync {
    /// Sends an RPC and waits for its response.
    fn rpc(&self, call: RpcCall) -> BoxFuture<'_, Result<RpcReply, HreError>>;
    /// Ends it for all that have it, where it is reached by a socket of its own: what is under way ends with an error, and so does all that
    /// comes later.
    fn close(&self) {}
    /// Waits for an upcall for at most this long.
    fn receive_upcall(&self, wait: Duration) -> BoxFuture<'_, Result<Option<Upcall>, HreError>>;
    /// Answers an upcall.
    fn answer_upcall(&self, id: u64, status: u32, result: u32) -> BoxFuture<'_, Result<(), HreError>>;
    /// The namespaces as they are now.
    fn namespaces(&self) -> BoxFuture<'_, Result<Vec<Namespace>, HreError>>;
    /// Most bytes of data that one command or RPC moves.
    fn transfer_bytes_max(&self) -> u64;
    /// Does a block command with its buffer; the buffer comes back. `block_bytes` is the namespace's.
    fn block(
        &self,
        nsid: u32,
        block_bytes: u32,
        command: BlockCommand,
        buffer: Vec<u8>,
    ) -> BoxFuture<'_, Result<Vec<u8>, HreError>>;
    /// Does a key-value command with its buffer.
    fn kv(&self, nsid: u32, command: KvCommand, buffer: Vec<u8>) -> BoxFuture<'_, Result<KvReply, HreError>>;
    /// Stores several pairs, each with an outcome of its own; of pairs with one key the later one stays. Where the terms say so, all that
    /// were stored are durable when it ends, by one flush.
    fn kv_store_many(
        &self,
        nsid: u32,
        items: Vec<StoreMany>,
        terms: ItemTerms,
    ) -> BoxFuture<'_, Result<Each<()>, HreError>> {
        Box::pin(many::store(self, nsid, items, terms))
    }
    /// Reads several pairs; `None`: there is none.
    fn kv_retrieve_many(
        &self,
        nsid: u32,
        keys: Vec<Key>,
        now_s: u32,
    ) -> BoxFuture<'_, Result<Each<Option<Item>>, HreError>> {
        Box::pin(many::retrieve(self, nsid, keys, now_s))
    }
    /// Some keys of a range, from there on.
    fn kv_scan(&self, nsid: u32, range: KeyRange, at: Option<ScanCursor>) -> BoxFuture<'_, Result<ScanPage, HreError>> {
        Box::pin(many::scan(self, nsid, range, at))
    }
}
