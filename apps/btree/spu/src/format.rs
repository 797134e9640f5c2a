//! The bytes of a tree in NV memory, little-endian. FORMAT.md says why every interruption leaves them readable.
//!
//! What always holds: encoding and decoding are each other's inverse; what is decoded is sound in itself (lengths, levels, ranges), so that
//! nothing that lies in a bank leads past it or round in a circle.

use crate::wire::{KEY_BYTES, Key, NAME_BYTES_MAX};
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

/// Bytes of a node, and of what is given out to values by quarters.
pub const PAGE_BYTES: u64 = 4096;
/// Values take whole units.
pub const UNIT_BYTES: u32 = 1024;
/// Units of a page.
pub const UNITS: u32 = 4;
/// Pages before the first node: two superblocks, and what readers on other SPUs look at.
pub const FIRST_PAGE: u64 = 3;
/// Where the root that readers on other SPUs look at lies.
pub const PUBLISHED_OFFSET: u64 = 2 * PAGE_BYTES;
/// Most pages of a tree: their bitmap fits local memory.
pub const PAGES_MAX: u32 = 1 << 18;
/// Most levels of a tree.
pub const HEIGHT_MAX: usize = 8;
/// Entries of a node.
pub const ENTRIES: usize = 169;
/// No page.
pub const NONE: u32 = u32::MAX;

const MAGIC: u64 = u64::from_le_bytes(*b"WLWBTREE");
const VERSION: u32 = 1;
/// Bytes of a superblock: the media keep or lose them together.
pub const SUPERBLOCK_BYTES: usize = 512;
/// Bytes of what readers on other SPUs look at.
pub const PUBLISHED_BYTES: usize = 48;
const NODE_MAGIC: u32 = u32::from_le_bytes(*b"BTND");
const KEYS_OFFSET: usize = 32;
const POINTERS_OFFSET: usize = KEYS_OFFSET + ENTRIES * KEY_BYTES;
const _: () = assert!(POINTERS_OFFSET + ENTRIES * 8 <= PAGE_BYTES as usize);

/// Mixes words into a check.
fn check(bytes: &[u8]) -> u64 {
    let mix = |sum: u64, word: &[u8]| {
        let word = word.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte));
        (sum ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
    };
    bytes.chunks(8).fold(0x5851_f42d_4c95_7f2d, mix)
}

fn word(from: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([from[at], from[at + 1], from[at + 2], from[at + 3]])
}

fn long(from: &[u8], at: usize) -> u64 {
    u64::from(word(from, at)) | u64::from(word(from, at + 4)) << 32
}

/// Which tree it is at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Root {
    /// Changes that led to it.
    pub revision: u64,
    /// The root's page, or [`NONE`].
    pub page: u32,
    /// Levels; 0: it is empty.
    pub height: u32,
    /// Pairs.
    pub pairs: u64,
}

impl Root {
    fn put(&self, to: &mut [u8]) {
        to[0..8].copy_from_slice(&self.revision.to_le_bytes());
        to[8..16].copy_from_slice(&self.pairs.to_le_bytes());
        to[16..20].copy_from_slice(&self.page.to_le_bytes());
        to[20..24].copy_from_slice(&self.height.to_le_bytes());
    }

    fn get(from: &[u8], pages: u32) -> Option<Root> {
        let root = Root { revision: long(from, 0), pairs: long(from, 8), page: word(from, 16), height: word(from, 20) };
        let is_sound = if root.height == 0 { root.page == NONE } else { root.page < pages };
        (is_sound && root.height as usize <= HEIGHT_MAX).then_some(root)
    }
}

/// What a superblock says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// The tree's number.
    pub tree: u32,
    /// `wire::LAYOUT_*`.
    pub layout: u32,
    /// The SPU that it is of, and how many there are.
    pub spu: u32,
    /// See `spu`.
    pub spus: u32,
    /// Pages of the tree.
    pub pages: u32,
    /// The tree.
    pub root: Root,
    /// Bytes of its name.
    pub name_bytes: u32,
    /// Its name.
    pub name: [u8; NAME_BYTES_MAX],
}

impl Superblock {
    /// Its bytes.
    pub fn encode(&self) -> [u8; SUPERBLOCK_BYTES] {
        let mut out = [0; SUPERBLOCK_BYTES];
        out[0..8].copy_from_slice(&MAGIC.to_le_bytes());
        for (at, value) in
            [(8, VERSION), (12, self.tree), (16, self.layout), (20, self.spu), (24, self.spus), (28, self.pages)]
        {
            out[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        self.root.put(&mut out[32..56]);
        out[56..60].copy_from_slice(&self.name_bytes.to_le_bytes());
        out[64..64 + NAME_BYTES_MAX].copy_from_slice(&self.name);
        let sum = check(&out[..SUPERBLOCK_BYTES - 8]);
        out[SUPERBLOCK_BYTES - 8..].copy_from_slice(&sum.to_le_bytes());
        out
    }

    /// From its bytes; `None` where there is none.
    pub fn decode(from: &[u8; SUPERBLOCK_BYTES]) -> Option<Superblock> {
        let is_whole = long(from, SUPERBLOCK_BYTES - 8) == check(&from[..SUPERBLOCK_BYTES - 8]);
        if !is_whole || long(from, 0) != MAGIC || word(from, 8) != VERSION {
            return None;
        }
        let mut name = [0; NAME_BYTES_MAX];
        name.copy_from_slice(&from[64..64 + NAME_BYTES_MAX]);
        let pages = word(from, 28);
        let block = Superblock {
            tree: word(from, 12),
            layout: word(from, 16),
            spu: word(from, 20),
            spus: word(from, 24),
            pages,
            root: Root::get(&from[32..56], pages)?,
            name_bytes: word(from, 56),
            name,
        };
        (block.name_bytes as usize <= NAME_BYTES_MAX && pages <= PAGES_MAX).then_some(block)
    }

    /// The name.
    pub fn name(&self) -> &[u8] {
        &self.name[..self.name_bytes as usize]
    }
}

/// What readers on other SPUs look at: the root of a tree.
pub fn encode_published(tree: u32, root: &Root) -> [u8; PUBLISHED_BYTES] {
    let mut out = [0; PUBLISHED_BYTES];
    out[0..4].copy_from_slice(&tree.to_le_bytes());
    root.put(&mut out[8..32]);
    let sum = check(&out[..PUBLISHED_BYTES - 8]);
    out[PUBLISHED_BYTES - 8..].copy_from_slice(&sum.to_le_bytes());
    out
}

/// See [`encode_published`]; `None` where it is no root of that tree.
pub fn decode_published(from: &[u8; PUBLISHED_BYTES], tree: u32, pages: u32) -> Option<Root> {
    let is_whole = long(from, PUBLISHED_BYTES - 8) == check(&from[..PUBLISHED_BYTES - 8]);
    (is_whole && word(from, 0) == tree).then(|| Root::get(&from[8..32], pages)).flatten()
}

/// Where a value lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value {
    /// First unit; of a value without bytes any.
    pub unit: u32,
    /// Bytes.
    pub bytes: u32,
}

impl Value {
    /// As a leaf has it.
    pub fn encode(self) -> u64 {
        u64::from(self.unit) | u64::from(self.bytes) << 32
    }

    /// See [`Value::encode`]; `None` where it is none.
    pub fn decode(pointer: u64, pages: u32) -> Option<Value> {
        let value = Value { unit: pointer as u32, bytes: (pointer >> 32) as u32 };
        let fits = value.unit % UNITS + value.units() <= UNITS && value.unit / UNITS < pages;
        (value.bytes == 0 || fits && value.bytes <= crate::wire::VALUE_BYTES_MAX).then_some(value)
    }

    /// Units that it takes.
    pub fn units(self) -> u32 {
        self.bytes.div_ceil(UNIT_BYTES)
    }
}

/// A node in local memory: entries in the order of their keys. In a leaf the pointer is a [`Value`], above it a page; the first key above the
/// leaves counts as less than all.
pub struct Node {
    bytes: Box<[u8]>,
}

impl Default for Node {
    fn default() -> Self {
        Node { bytes: vec![0; PAGE_BYTES as usize].into_boxed_slice() }
    }
}

impl Node {
    /// Makes it an empty node.
    pub fn clear(&mut self, level: u32) {
        self.bytes[0..4].copy_from_slice(&NODE_MAGIC.to_le_bytes());
        self.bytes[4..6].copy_from_slice(&(level as u16).to_le_bytes());
        self.bytes[16..KEYS_OFFSET].fill(0);
        self.set_count(0);
    }

    /// All of it.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// All of it, to be read into.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// Whether it is the node of that page and level.
    pub fn is_sound(&self, page: u32, level: u32) -> bool {
        let head = &self.bytes;
        word(head, 0) == NODE_MAGIC
            && u32::from(u16::from_le_bytes([head[4], head[5]])) == level
            && word(head, 16) == page
            && (1..=ENTRIES).contains(&self.count())
    }

    /// The change that wrote it.
    pub fn revision(&self) -> u64 {
        long(&self.bytes, 8)
    }

    /// It is written by that change, to that page.
    pub fn stamp(&mut self, revision: u64, page: u32) {
        self.bytes[8..16].copy_from_slice(&revision.to_le_bytes());
        self.bytes[16..20].copy_from_slice(&page.to_le_bytes());
    }

    /// Entries.
    pub fn count(&self) -> usize {
        usize::from(u16::from_le_bytes([self.bytes[6], self.bytes[7]]))
    }

    fn set_count(&mut self, count: usize) {
        self.bytes[6..8].copy_from_slice(&(count as u16).to_le_bytes());
    }

    /// The keys, one behind the other.
    pub fn keys(&self) -> &[u8] {
        &self.bytes[KEYS_OFFSET..KEYS_OFFSET + self.count().min(ENTRIES) * KEY_BYTES]
    }

    /// A key.
    pub fn key(&self, index: usize) -> Key {
        let mut key = [0; KEY_BYTES];
        key.copy_from_slice(&self.bytes[KEYS_OFFSET + index * KEY_BYTES..][..KEY_BYTES]);
        key
    }

    /// What it leads to.
    pub fn pointer(&self, index: usize) -> u64 {
        long(&self.bytes, POINTERS_OFFSET + index * 8)
    }

    /// Has an entry lead elsewhere.
    pub fn set_pointer(&mut self, index: usize, pointer: u64) {
        self.bytes[POINTERS_OFFSET + index * 8..][..8].copy_from_slice(&pointer.to_le_bytes());
    }

    /// Puts an entry in, where there is room.
    pub fn insert(&mut self, index: usize, key: &Key, pointer: u64) {
        let count = self.count();
        let (keys, pointers) = (KEYS_OFFSET + index * KEY_BYTES, POINTERS_OFFSET + index * 8);
        self.bytes.copy_within(keys..KEYS_OFFSET + count * KEY_BYTES, keys + KEY_BYTES);
        self.bytes.copy_within(pointers..POINTERS_OFFSET + count * 8, pointers + 8);
        self.bytes[keys..keys + KEY_BYTES].copy_from_slice(key);
        self.set_count(count + 1);
        self.set_pointer(index, pointer);
    }

    /// Takes an entry out.
    pub fn remove(&mut self, index: usize) {
        let count = self.count();
        let (keys, pointers) = (KEYS_OFFSET + index * KEY_BYTES, POINTERS_OFFSET + index * 8);
        self.bytes.copy_within(keys + KEY_BYTES..KEYS_OFFSET + count * KEY_BYTES, keys);
        self.bytes.copy_within(pointers + 8..POINTERS_OFFSET + count * 8, pointers);
        self.set_count(count - 1);
    }

    /// Puts an entry into a full node, whose upper part goes to `right`: half of it, or the new entry alone where that comes last, so that
    /// rising keys leave full nodes behind.
    pub fn split(&mut self, right: &mut Node, index: usize, key: &Key, pointer: u64) {
        let count = self.count();
        let level = u32::from(u16::from_le_bytes([self.bytes[4], self.bytes[5]]));
        let kept = if index == count { count } else { count / 2 };
        right.clear(level);
        let moved = count - kept;
        let range = |offset: usize, bytes: usize| offset + kept * bytes..offset + count * bytes;
        right.bytes[KEYS_OFFSET..KEYS_OFFSET + moved * KEY_BYTES]
            .copy_from_slice(&self.bytes[range(KEYS_OFFSET, KEY_BYTES)]);
        right.bytes[POINTERS_OFFSET..POINTERS_OFFSET + moved * 8]
            .copy_from_slice(&self.bytes[range(POINTERS_OFFSET, 8)]);
        right.set_count(moved);
        self.set_count(kept);
        if index > kept || moved == 0 {
            right.insert(index - kept, key, pointer);
        } else {
            self.insert(index, key, pointer);
        }
    }

    /// Puts the entries of the node behind this one at its end, where there is room. Above the leaves the first of them gets that key, which its parent knows: its own
    /// counts as less than all.
    pub fn append(&mut self, behind: &Node, first: Option<&Key>) {
        let (count, more) = (self.count(), behind.count());
        let (keys, pointers) = (KEYS_OFFSET + count * KEY_BYTES, POINTERS_OFFSET + count * 8);
        self.bytes[keys..keys + more * KEY_BYTES].copy_from_slice(&behind.bytes[KEYS_OFFSET..][..more * KEY_BYTES]);
        self.bytes[pointers..pointers + more * 8].copy_from_slice(&behind.bytes[POINTERS_OFFSET..][..more * 8]);
        if let Some(first) = first {
            self.bytes[keys..keys + KEY_BYTES].copy_from_slice(first);
        }
        self.set_count(count + more);
    }

    /// True where no entry fits any more.
    pub fn is_full(&self) -> bool {
        self.count() == ENTRIES
    }
}

/// Nodes that are not used just now.
pub struct Spare(core::cell::RefCell<Vec<Node>>);

/// Most that are kept.
const SPARE_MAX: usize = 16;

impl Spare {
    /// None.
    pub const fn new() -> Spare {
        Spare(core::cell::RefCell::new(Vec::new()))
    }

    /// One, with whatever is in it.
    pub fn take(&self) -> Node {
        self.0.borrow_mut().pop().unwrap_or_default()
    }

    /// Gives it back.
    pub fn give(&self, node: Node) {
        let mut kept = self.0.borrow_mut();
        if kept.len() < SPARE_MAX {
            kept.push(node);
        }
    }
}

impl Default for Spare {
    fn default() -> Self {
        Spare::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: usize) -> Key {
        let mut key = [0; KEY_BYTES];
        key[..8].copy_from_slice(&(number as u64).to_be_bytes());
        key
    }

    #[test]
    fn nodes_keep_their_entries_in_order() {
        let (mut node, mut right, mut state) = (Node::default(), Node::default(), 1usize);
        for round in 0..40 {
            node.clear(round % 3);
            let mut all = std::collections::BTreeMap::new();
            while !node.is_full() {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let number = state >> 33;
                let index = all.range(..number).count();
                if all.insert(number, number as u64 + 1).is_none() {
                    node.insert(index, &key(number), number as u64 + 1);
                }
                if number.is_multiple_of(5) {
                    let index = all.range(..number).count();
                    node.remove(index);
                    all.remove(&number);
                }
            }
            let number = if round.is_multiple_of(4) { usize::MAX >> 1 } else { state >> 34 };
            let index = all.range(..number).count();
            if all.insert(number, 7).is_some() {
                continue;
            }
            node.split(&mut right, index, &key(number), 7);
            let entries =
                |node: &Node| (0..node.count()).map(|at| (node.key(at), node.pointer(at))).collect::<Vec<_>>();
            let found = [entries(&node), entries(&right)].concat();
            assert_eq!(found, all.iter().map(|(number, value)| (key(*number), *value)).collect::<Vec<_>>());
            assert!(node.count() > 0 && right.count() > 0);
            assert_eq!(round.is_multiple_of(4), right.count() == 1);
        }
    }

    #[test]
    fn nodes_that_were_split_are_one_again() {
        let (mut node, mut right) = (Node::default(), Node::default());
        for level in [0, 1] {
            node.clear(level);
            (0..ENTRIES).for_each(|at| node.insert(at, &key(2 * at + 2), at as u64));
            let before: Vec<_> = (0..ENTRIES).map(|at| (node.key(at), node.pointer(at))).collect();
            node.split(&mut right, 3, &key(7), 999);
            node.remove(3);
            // Above the leaves a first key may be any.
            let first = right.key(0);
            right.bytes[KEYS_OFFSET..KEYS_OFFSET + KEY_BYTES].fill(if level > 0 { 0 } else { first[0] });
            if level == 0 {
                right.bytes[KEYS_OFFSET..KEYS_OFFSET + KEY_BYTES].copy_from_slice(&first);
            }
            node.append(&right, (level > 0).then_some(&first));
            assert_eq!((0..node.count()).map(|at| (node.key(at), node.pointer(at))).collect::<Vec<_>>(), before);
        }
    }

    #[test]
    fn superblocks_are_whole_or_none() {
        let root = Root { revision: 7, page: 3, height: 2, pairs: 900 };
        let mut name = [0; NAME_BYTES_MAX];
        name[..4].copy_from_slice(b"name");
        let block = Superblock { tree: 5, layout: 1, spu: 2, spus: 8, pages: 40, root, name_bytes: 4, name };
        let bytes = block.encode();
        assert_eq!((Superblock::decode(&bytes), block.name()), (Some(block), &b"name"[..]));
        let flips = (0..SUPERBLOCK_BYTES * 8).filter(|bit| {
            let mut other = bytes;
            other[bit / 8] ^= 1 << (bit % 8);
            Superblock::decode(&other).is_some()
        });
        assert_eq!(flips.count(), 0);
        assert_eq!(Superblock::decode(&[0; SUPERBLOCK_BYTES]), None);
        let past = Superblock { root: Root { page: 40, ..root }, ..block };
        assert_eq!(Superblock::decode(&past.encode()), None);
        let published = encode_published(5, &root);
        assert_eq!(decode_published(&published, 5, 40), Some(root));
        assert_eq!((decode_published(&published, 6, 40), decode_published(&published, 5, 3)), (None, None));
        assert_eq!(decode_published(&[0; PUBLISHED_BYTES], 0, 40), None);
    }

    #[test]
    fn values_lie_within_a_page() {
        for (unit, bytes, is_one) in
            [(0, 4096, true), (1, 4096, false), (3, 1024, true), (3, 1025, false), (160, 1, false), (NONE, 0, true)]
        {
            assert_eq!(Value::decode(Value { unit, bytes }.encode(), 40).is_some(), is_one, "{unit} {bytes}");
        }
        assert_eq!(Value::decode(Value { unit: 0, bytes: 5000 }.encode(), 40), None);
    }
}
