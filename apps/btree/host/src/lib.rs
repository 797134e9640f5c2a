//! The host library of the SSD App `btree`: keys, which SPU a request goes to, what it is, and what is answered.
//!
//! What always holds: no input or output, no knowledge of a transport.
//!
//! Who may call it: the typed client in `willow-host`, experiments, tests.

#![forbid(unsafe_code)]

mod range;

pub use btree_spu::wire;
pub use range::{Merge, Page, Pair};

use wire::{Create, KEY_BYTES, Key, LAYOUT_PARTITIONED, LAYOUT_STRIPED, Look, Statistics, handler};

/// Name that the app is installed under.
pub const APP_NAME: &str = "btree";

/// How a tree lies in the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Each SPU has a tree of its own; a key's hash says which.
    Partitioned,
    /// One tree, whose nodes and values lie in all banks in turn.
    Striped,
}

impl Layout {
    /// On the wire.
    pub fn encode(self) -> u32 {
        match self {
            Layout::Partitioned => LAYOUT_PARTITIONED,
            Layout::Striped => LAYOUT_STRIPED,
        }
    }

    /// From the wire.
    pub fn decode(from: u32) -> Option<Layout> {
        match from {
            LAYOUT_PARTITIONED => Some(Layout::Partitioned),
            LAYOUT_STRIPED => Some(Layout::Striped),
            _ => None,
        }
    }
}

/// A key of up to 16 bytes, filled up with zeroes; `None` where it is longer, or empty.
pub fn key(bytes: &[u8]) -> Option<Key> {
    if bytes.is_empty() || bytes.len() > KEY_BYTES {
        return None;
    }
    let mut key = [0; KEY_BYTES];
    key[..bytes.len()].copy_from_slice(bytes);
    Some(key)
}

/// FNV-1a.
fn hash(bytes: &[u8]) -> u64 {
    let mix = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    let sum = bytes.iter().fold(0xcbf2_9ce4_8422_2325, mix);
    sum ^ sum >> 32
}

/// The number of a tree of that name.
pub fn number(name: &str) -> u32 {
    (hash(name.as_bytes()) as u32).max(1)
}

/// A request: which SPU it goes to, and its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// SPU.
    pub spu: u16,
    /// Handler.
    pub handler: u8,
    /// Body.
    pub body: Vec<u8>,
}

/// A tree as requests are made for it.
#[derive(Clone, Copy, Debug)]
pub struct Tree {
    /// Its number.
    pub number: u32,
    /// How it lies.
    pub layout: Layout,
    /// SPUs of the device.
    pub spus: u16,
}

impl Tree {
    /// The SPU that changes a striped tree, and knows of any.
    pub fn owner(&self) -> u16 {
        (self.number % u32::from(self.spus.max(1))) as u16
    }

    /// The SPU that a key's changes go to.
    pub fn spu_of(&self, key: &Key) -> u16 {
        match self.layout {
            Layout::Partitioned => self.searched_at(key),
            Layout::Striped => self.owner(),
        }
    }

    /// The SPU that a key is looked for at: of a striped tree any.
    pub fn searched_at(&self, key: &Key) -> u16 {
        (hash(key) % u64::from(self.spus.max(1))) as u16
    }

    /// The SPUs that have parts of it, the owner first.
    pub fn parts(&self) -> Vec<u16> {
        match self.layout {
            Layout::Striped => vec![self.owner()],
            Layout::Partitioned => (0..self.spus).map(|step| (self.owner() + step) % self.spus).collect(),
        }
    }

    /// Makes the part that an SPU has.
    pub fn create(&self, spu: u16, name: &str, bank_bytes: u64) -> Call {
        let create =
            Create { tree: self.number, layout: self.layout.encode(), bank_bytes, name_bytes: name.len() as u32 };
        Call { spu, handler: handler::CREATE, body: [&create.encode()[..], name.as_bytes()].concat() }
    }

    fn look(&self, key: &Key, flags: u32) -> Vec<u8> {
        Look { tree: self.number, flags, key: *key }.encode().to_vec()
    }

    /// Gets a value; it is the reply.
    pub fn get(&self, key: &Key) -> Call {
        Call { spu: self.searched_at(key), handler: handler::GET, body: self.look(key, 0) }
    }

    /// Pairs of a part in the order of their keys, from a key on. `flags`: `wire::RANGE_*` and the most pairs.
    pub fn range(&self, spu: u16, key: &Key, flags: u32) -> Call {
        Call { spu, handler: handler::RANGE, body: self.look(key, flags) }
    }

    /// What there is of it on an SPU.
    pub fn stat(&self, spu: u16) -> Call {
        Call { spu, handler: handler::STAT, body: self.number.to_le_bytes().to_vec() }
    }

    /// Stores pairs, which are of one SPU.
    pub fn put(&self, spu: u16, pairs: &[(Key, &[u8])]) -> Call {
        let mut body = wire::encode_change(self.number, pairs.len() as u32).to_vec();
        pairs.iter().for_each(|(key, value)| body.extend(wire::encode_pair(key, value.len() as u32)));
        pairs.iter().for_each(|(_, value)| body.extend_from_slice(value));
        Call { spu, handler: handler::PUT, body }
    }

    /// Removes it.
    pub fn remove(&self, name: &str) -> Call {
        let body = [&wire::encode_change(self.number, name.len() as u32)[..], name.as_bytes()].concat();
        Call { spu: self.owner(), handler: handler::REMOVE, body }
    }

    /// Deletes keys, which are of one SPU.
    pub fn delete(&self, spu: u16, keys: &[Key]) -> Call {
        let mut body = wire::encode_change(self.number, keys.len() as u32).to_vec();
        keys.iter().for_each(|key| body.extend_from_slice(key));
        Call { spu, handler: handler::DELETE, body }
    }
}

/// What is said of a tree's part, if it is a sound answer.
pub fn statistics(reply: &[u8]) -> Option<Statistics> {
    reply.first_chunk().map(Statistics::decode).filter(|found| found.name_bytes as usize <= found.name.len())
}
