//! Requests for items: pairs with their version and expiry.

use crate::{Call, Key, KeyValueError, Placement, PutCondition};
use key_value_spu::wire::{
    FLAG_FUA, FLAG_IF_VERSION, FLAG_ONLY_IF_ABSENT, FLAG_ONLY_IF_EXISTS, ItemArguments, ItemHead, PairArguments,
    VALUE_BYTES_MAX, handler,
};

/// An RPC for an item.
pub type ItemCall = Call<{ ItemArguments::BYTES }>;

/// When an item is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ItemCondition {
    /// In any case.
    #[default]
    Always,
    /// Only over a pair that exists.
    IfExists,
    /// Only where there is none.
    IfAbsent,
    /// Only over the pair of this version.
    IfVersion(u64),
}

impl From<PutCondition> for ItemCondition {
    fn from(condition: PutCondition) -> Self {
        match condition {
            PutCondition::Always => ItemCondition::Always,
            PutCondition::IfExists => ItemCondition::IfExists,
            PutCondition::IfAbsent => ItemCondition::IfAbsent,
        }
    }
}

impl ItemCondition {
    /// (flags, version) on the wire.
    #[inline]
    pub(crate) fn encode(self) -> (u32, u64) {
        match self {
            ItemCondition::Always => (0, 0),
            ItemCondition::IfExists => (FLAG_ONLY_IF_EXISTS, 0),
            ItemCondition::IfAbsent => (FLAG_ONLY_IF_ABSENT, 0),
            ItemCondition::IfVersion(version) => (FLAG_IF_VERSION, version),
        }
    }
}

/// How an item is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ItemPut {
    /// Length of the value.
    pub value_bytes: u32,
    /// Where it begins in the payload.
    pub offset: u32,
    /// When it is stored.
    pub condition: ItemCondition,
    /// When the pair ends to exist, in seconds of the hosts' clock; 0: never.
    pub expiry: u32,
    /// The hosts' clock now, in seconds; 0: not told.
    pub now_s: u32,
    /// It is flushed before the answer.
    pub durable: bool,
}

impl ItemCall {
    #[inline]
    fn item(
        handler: u8,
        placement: &Placement,
        nsid: u32,
        key: &Key,
        change: impl FnOnce(&mut ItemArguments),
    ) -> ItemCall {
        let hash = placement.hash(key);
        let pair =
            PairArguments { nsid, hash, key: key.bytes, key_bytes: u32::from(key.length), ..PairArguments::default() };
        let mut arguments = ItemArguments { pair, ..ItemArguments::default() };
        change(&mut arguments);
        Call { handler, spu: placement.spu(hash), arguments: arguments.encode() }
    }

    /// Stores a value. Reply, where there is room for 8 bytes: the pair's new version.
    pub fn put_item(placement: &Placement, nsid: u32, key: &Key, put: &ItemPut) -> Result<ItemCall, KeyValueError> {
        if put.value_bytes > VALUE_BYTES_MAX {
            return Err(KeyValueError::ValueSize);
        }
        let (flags, version) = put.condition.encode();
        Ok(Self::item(handler::PUT_ITEM, placement, nsid, key, |arguments| {
            arguments.pair.flags = flags | durable(put.durable);
            arguments.pair.word = put.value_bytes;
            arguments.pair.reply_offset = put.offset;
            arguments.version = version;
            arguments.now_s = put.now_s;
            arguments.expiry = put.expiry;
        }))
    }

    /// The value, from its byte `from` on, at byte `offset` of the reply, which is at least [`ItemHead::BYTES`]: that goes in front. The
    /// result is the value's full length.
    pub fn get_item(placement: &Placement, nsid: u32, key: &Key, now_s: u32, from: u32, offset: u32) -> ItemCall {
        debug_assert!(offset as usize >= ItemHead::BYTES, "room for the head");
        Self::item(handler::GET_ITEM, placement, nsid, key, |arguments| {
            arguments.pair.word = from;
            arguments.pair.reply_offset = offset;
            arguments.now_s = now_s;
        })
    }

    /// Removes the pair, where a version is given only that one.
    pub fn delete_item(
        placement: &Placement,
        nsid: u32,
        key: &Key,
        version: Option<u64>,
        now_s: u32,
        flushed: bool,
    ) -> ItemCall {
        Self::item(handler::DELETE_ITEM, placement, nsid, key, |arguments| {
            arguments.pair.flags = durable(flushed) | if version.is_some() { FLAG_IF_VERSION } else { 0 };
            arguments.version = version.unwrap_or(0);
            arguments.now_s = now_s;
        })
    }

    /// Gives the pair another expiry. Reply, where there is room for it: its [`ItemHead`]. The result is the value's length.
    pub fn touch(placement: &Placement, nsid: u32, key: &Key, expiry: u32, now_s: u32, flushed: bool) -> ItemCall {
        Self::item(handler::TOUCH, placement, nsid, key, |arguments| {
            arguments.pair.flags = durable(flushed);
            arguments.expiry = expiry;
            arguments.now_s = now_s;
        })
    }

    /// Removes what has expired from some buckets of an SPU, from number `from` on; the result is where to go on, 0 at the end.
    pub fn sweep(nsid: u32, spu: u16, from: u32, now_s: u32) -> ItemCall {
        let pair = PairArguments { nsid, word: from, ..PairArguments::default() };
        let arguments = ItemArguments { pair, now_s, ..ItemArguments::default() }.encode();
        Call { handler: handler::SWEEP, spu, arguments }
    }

    /// Removes all pairs of an SPU, durably. A namespace is cleared by one call for each SPU.
    pub fn clear(nsid: u32, spu: u16) -> ItemCall {
        let pair = PairArguments { nsid, ..PairArguments::default() };
        let arguments = ItemArguments { pair, ..ItemArguments::default() }.encode();
        Call { handler: handler::CLEAR, spu, arguments }
    }
}

fn durable(durable: bool) -> u32 {
    if durable { FLAG_FUA } else { 0 }
}
