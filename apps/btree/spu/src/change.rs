//! A change of a tree: puts and deletes that become visible together, by copying each node on the way to the root (copy on write).
//!
//! What always holds: until the change is committed, no unit that the tree before it uses is written to; what the change gives up is free once
//! the next root is durable, and published, not before.

use crate::format::{ENTRIES, HEIGHT_MAX, NONE, Node, Root, Value};
use crate::planted::{Planted, planted};
use crate::ports::{DAMAGED, FULL, Failure, Ports};
use crate::search::place;
use crate::space::{Piece, Space};
use crate::wire::{KEY_BYTES, Key};
use alloc::vec::Vec;

/// Whole pages that puts leave to deletes, which need some to make room.
pub const RESERVE_PAGES: u32 = 2 * HEIGHT_MAX as u32;

/// A change under way.
pub struct Change<'a> {
    ports: &'a Ports<'a>,
    space: &'a mut Space,
    /// What the tree will be.
    pub root: Root,
    taken: Vec<Piece>,
    given_up: Vec<Piece>,
    /// SPUs whose banks were written to.
    pub touched: u64,
    node: Node,
    right: Node,
}

/// A node with so few entries, or fewer, is merged with one beside it where both have no more than [`MERGED_MAX`]: room is left, so that what comes and goes
/// does not split and merge them in turn.
const FEW: usize = ENTRIES / 4;
const MERGED_MAX: usize = ENTRIES * 3 / 4;

/// Two nodes that have become one: the page that it was read from, and which entry of their parent is the other's.
struct Merged {
    from: u32,
    gone: usize,
}

/// The way to a leaf: a page for each level, and the entry that was followed; in the leaf, where the key is or belongs.
type Way = [(u32, usize); HEIGHT_MAX];

impl<'a> Change<'a> {
    /// From a tree on; the nodes are room to work in.
    pub fn new(ports: &'a Ports<'a>, space: &'a mut Space, root: Root, [node, right]: [Node; 2]) -> Self {
        let root = Root { revision: root.revision + 1, ..root };
        Change { ports, space, root, taken: Vec::new(), given_up: Vec::new(), touched: 0, node, right }
    }

    /// True where nothing is different.
    pub fn is_empty(&self) -> bool {
        self.taken.is_empty() && self.given_up.is_empty() && self.touched == 0
    }

    /// It is committed: what it gave up is free. The nodes come back.
    pub fn committed(self) -> [Node; 2] {
        self.given_up.iter().for_each(|piece| self.space.give_back(*piece));
        [self.node, self.right]
    }

    /// It is given up: what it took is free.
    pub fn aborted(self) -> [Node; 2] {
        self.taken.iter().for_each(|piece| self.space.give_back(*piece));
        [self.node, self.right]
    }

    fn give_up(&mut self, piece: Piece) {
        if piece.units == 0 {
            return;
        }
        if planted(Planted::ReusesAtOnce) {
            return self.space.give_back(piece);
        }
        self.given_up.push(piece);
    }

    fn give_up_value(&mut self, pointer: u64) -> Result<(), Failure> {
        let value = Value::decode(pointer, self.ports.geometry.pages).ok_or(DAMAGED)?;
        self.give_up(Piece { unit: value.unit, units: value.units() });
        Ok(())
    }

    fn note(&mut self, spu: u32) {
        self.touched |= 1 << spu;
    }

    /// Writes `self.node`, or `self.right`, in place of the page that it was read from; where it is then.
    async fn store(&mut self, is_right: bool, from: u32, reserve: u32) -> Result<u32, Failure> {
        let node = if is_right { &mut self.right } else { &mut self.node };
        // What this change wrote itself nobody else uses.
        let stays = from != NONE && (node.revision() == self.root.revision || planted(Planted::ChangesInPlace));
        let page = if stays { from } else { self.space.take_page(reserve).ok_or(FULL)? };
        node.stamp(self.root.revision, page);
        if !stays {
            self.taken.push(Piece::page(page));
            if from != NONE {
                self.give_up(Piece::page(from));
            }
        }
        let at = self.ports.geometry.page(page);
        self.note(at.spu);
        let node = if is_right { &self.right } else { &self.node };
        self.ports.write(node.bytes(), at).await?;
        Ok(page)
    }

    /// Goes to the leaf of a key, which is in `self.node` then; whether the key is there.
    async fn descend(&mut self, key: &Key, way: &mut Way) -> Result<bool, Failure> {
        let (mut page, mut level) = (self.root.page, self.root.height as usize);
        loop {
            level -= 1;
            self.ports.node(page, level as u32, &mut self.node).await?;
            let found = place(self.ports.request, &self.node, key).await?;
            let index = found.index as usize;
            if level == 0 {
                way[0] = (page, index);
                return Ok(found.equal);
            }
            let index = (index + usize::from(found.equal)).saturating_sub(1);
            way[level] = (page, index);
            page = u32::try_from(self.node.pointer(index)).map_err(|_| DAMAGED)?;
        }
    }

    /// Reads the node of a level on the way again; what entry was followed there.
    async fn up(&mut self, way: &Way, level: usize) -> Result<usize, Failure> {
        let (page, index) = way[level];
        self.ports.node(page, level as u32, &mut self.node).await?;
        if index < self.node.count() { Ok(index) } else { Err(DAMAGED) }
    }

    /// Stores a value, which lies in the request's body.
    pub async fn put(&mut self, key: &Key, offset: u32, bytes: u32) -> Result<(), Failure> {
        let mut value = Value { unit: 0, bytes };
        if value.units() > 0 {
            value.unit = self.space.take_units(value.units(), RESERVE_PAGES).ok_or(FULL)?;
            self.taken.push(Piece { unit: value.unit, units: value.units() });
            let at = self.ports.geometry.unit(value.unit);
            self.note(at.spu);
            self.ports.receive(offset, at, bytes).await?;
        }
        let pointer = value.encode();
        if self.root.height == 0 {
            self.node.clear(0);
            self.node.insert(0, key, pointer);
            let page = self.store(false, NONE, RESERVE_PAGES).await?;
            self.root = Root { page, height: 1, pairs: 1, ..self.root };
            return Ok(());
        }
        let mut way = [(0, 0); HEIGHT_MAX];
        let is_there = self.descend(key, &mut way).await?;
        let mut is_split = false;
        let index = way[0].1;
        if is_there {
            self.give_up_value(self.node.pointer(index))?;
            self.node.set_pointer(index, pointer);
        } else {
            self.root.pairs += 1;
            is_split = self.insert(index, key, pointer);
        }
        let mut level = 0;
        loop {
            let from = way[level].0;
            let page = self.store(false, from, RESERVE_PAGES).await?;
            let mut other = None;
            if is_split {
                let key = self.right.key(0);
                other = Some((key, self.store(true, NONE, RESERVE_PAGES).await?));
            }
            level += 1;
            if level == self.root.height as usize {
                return self.grow(page, other).await;
            }
            if page == from && other.is_none() {
                return Ok(());
            }
            let index = self.up(&way, level).await?;
            self.node.set_pointer(index, page.into());
            is_split = match other {
                Some((key, page)) => self.insert(index + 1, &key, page.into()),
                None => false,
            };
        }
    }

    /// Merges `self.node`, the node of a level on the way, with the one before or behind it under the same parent, where that is worth it. The other's page is given up.
    async fn merge(&mut self, way: &Way, level: usize) -> Result<Option<Merged>, Failure> {
        let (own, count) = (way[level].0, self.node.count());
        if count > FEW || level + 1 == self.root.height as usize || planted(Planted::NeverMerges) {
            return Ok(None);
        }
        let (parent, index) = way[level + 1];
        for other in [index + 1, index.wrapping_sub(1)] {
            self.ports.node(parent, level as u32 + 1, &mut self.right).await?;
            if other >= self.right.count() {
                continue;
            }
            let page = u32::try_from(self.right.pointer(other)).map_err(|_| DAMAGED)?;
            // What keys of the later one begin with.
            let border = self.right.key(index.max(other));
            let first = (level > 0).then_some(&border);
            self.ports.node(page, level as u32, &mut self.right).await?;
            if count + self.right.count() > MERGED_MAX {
                continue;
            }
            if other > index {
                self.node.append(&self.right, first);
                self.give_up(Piece::page(page));
                return Ok(Some(Merged { from: own, gone: other }));
            }
            self.right.append(&self.node, first);
            core::mem::swap(&mut self.node, &mut self.right);
            self.give_up(Piece::page(own));
            return Ok(Some(Merged { from: page, gone: index }));
        }
        Ok(None)
    }

    /// Puts an entry into `self.node`; true where its upper part is in `self.right` then.
    fn insert(&mut self, index: usize, key: &Key, pointer: u64) -> bool {
        let is_full = self.node.is_full();
        match is_full {
            true => self.node.split(&mut self.right, index, key, pointer),
            false => self.node.insert(index, key, pointer),
        }
        is_full
    }

    /// The root is at that page; where it was split there is one above.
    async fn grow(&mut self, page: u32, other: Option<(Key, u32)>) -> Result<(), Failure> {
        let Some((key, right)) = other else {
            self.root.page = page;
            return Ok(());
        };
        if self.root.height as usize == HEIGHT_MAX {
            return Err(FULL);
        }
        self.node.clear(self.root.height);
        self.node.insert(0, &[0; KEY_BYTES], page.into());
        self.node.insert(1, &key, right.into());
        self.root.page = self.store(false, NONE, RESERVE_PAGES).await?;
        self.root.height += 1;
        Ok(())
    }

    /// Deletes a key; false where it was not there.
    pub async fn delete(&mut self, key: &Key) -> Result<bool, Failure> {
        if self.root.height == 0 {
            return Ok(false);
        }
        let mut way = [(0, 0); HEIGHT_MAX];
        if !self.descend(key, &mut way).await? {
            return Ok(false);
        }
        self.give_up_value(self.node.pointer(way[0].1))?;
        self.node.remove(way[0].1);
        self.root.pairs -= 1;
        let mut level = 0;
        loop {
            let mut from = way[level].0;
            let (mut page, mut gone) = (None, None);
            if self.node.count() == 0 {
                // There was nothing beside it that it could be merged with.
                self.give_up(Piece::page(from));
            } else {
                if let Some(merged) = self.merge(&way, level).await? {
                    (from, gone) = (merged.from, Some(merged.gone));
                }
                page = Some(self.store(false, from, 0).await?);
            }
            level += 1;
            if level == self.root.height as usize {
                let Some(page) = page else {
                    self.root = Root { page: NONE, height: 0, ..self.root };
                    return Ok(true);
                };
                self.root.page = page;
                break;
            }
            if page == Some(from) && gone.is_none() {
                break;
            }
            let index = self.up(&way, level).await?;
            match (page, gone) {
                (None, _) => self.node.remove(index),
                (Some(page), None) => self.node.set_pointer(index, page.into()),
                (Some(page), Some(gone)) => {
                    // The earlier one of both stays, with the keys of both.
                    if gone >= self.node.count() || gone == 0 {
                        return Err(DAMAGED);
                    }
                    self.node.set_pointer(gone - 1, page.into());
                    self.node.remove(gone);
                }
            }
        }
        self.shrink().await?;
        Ok(true)
    }

    /// A root that leads to one node alone goes.
    async fn shrink(&mut self) -> Result<(), Failure> {
        while self.root.height > 1 {
            self.ports.node(self.root.page, self.root.height - 1, &mut self.node).await?;
            if self.node.count() > 1 {
                break;
            }
            let page = u32::try_from(self.node.pointer(0)).map_err(|_| DAMAGED)?;
            self.give_up(Piece::page(self.root.page));
            self.root.page = page;
            self.root.height -= 1;
        }
        Ok(())
    }
}
