//! Searches: the way from a root to a key, pairs in order, and a survey of all that a tree uses.
//!
//! What always holds: a search follows at most as many nodes as the tree has levels for each leaf, whatever lies in the bank.

use crate::format::{HEIGHT_MAX, Node, Root, Value};
use crate::ports::{DAMAGED, Failure, Ports};
use crate::space::{Piece, Space};
use crate::wire::{
    KEY_BYTES, Key, PAIR_HEAD_BYTES, RANGE_AFTER, RANGE_HEAD_BYTES, RANGE_KEYS_ONLY, RANGE_PAIRS_MASK, RANGE_PAIRS_MAX,
    RangeHead, encode_pair,
};
use alloc::vec::Vec;
use willow_sdk::{KeyPlace, Keys, Local, Reply, Request, join, yield_now};

/// Nodes that a survey reads before it makes way for others, and pairs that a range sends.
const NODES_AT_ONCE: u32 = 16;
const PAIRS_AT_ONCE: u32 = 32;

/// The place of a key in a node, by the accelerator.
pub async fn place(request: &Request, node: &Node, key: &Key) -> Result<KeyPlace, Failure> {
    let keys = Keys { stride_bytes: KEY_BYTES as u32, count: node.count() as u32, ascending: true };
    Ok(request.find_key(Local(node.keys()), keys, key).await?)
}

/// Where a search has come to: the leaf is in the node.
struct Leaf {
    /// Where the key is or belongs.
    place: KeyPlace,
    /// The first key past the leaf.
    end: Option<Key>,
}

async fn leaf(ports: &Ports<'_>, root: &Root, key: &Key, node: &mut Node) -> Result<Option<Leaf>, Failure> {
    let (mut page, mut level, mut end) = (root.page, root.height, None);
    while level > 0 {
        level -= 1;
        ports.node(page, level, node).await?;
        let place = place(ports.request, node, key).await?;
        if level == 0 {
            return Ok(Some(Leaf { place, end }));
        }
        let index = (place.index as usize + usize::from(place.equal)).saturating_sub(1);
        if index + 1 < node.count() {
            end = Some(node.key(index + 1));
        }
        page = u32::try_from(node.pointer(index)).map_err(|_| DAMAGED)?;
    }
    Ok(None)
}

/// The value of a key, to the reply; its length.
pub async fn get(ports: &Ports<'_>, root: &Root, key: &Key, node: &mut Node) -> Result<Option<u32>, Failure> {
    let Some(Leaf { place: KeyPlace { index, equal: true }, .. }) = leaf(ports, root, key, node).await? else {
        return Ok(None);
    };
    let value = Value::decode(node.pointer(index as usize), ports.geometry.pages).ok_or(DAMAGED)?;
    let bytes = value.bytes.min(ports.request.info().reply_bytes);
    if bytes > 0 {
        ports.send(ports.geometry.unit(value.unit), 0, bytes).await?;
    }
    Ok(Some(value.bytes))
}

/// Pairs from a key on, to the reply.
pub async fn range(
    ports: &Ports<'_>,
    root: &Root,
    (key, flags): (&Key, u32),
    node: &mut Node,
) -> Result<RangeHead, Failure> {
    let most = (flags & RANGE_PAIRS_MASK).min(RANGE_PAIRS_MAX);
    let room = ports.request.info().reply_bytes;
    let mut head = RangeHead { pairs: 0, used: RANGE_HEAD_BYTES as u32, more: false };
    let (mut from, mut is_after) = (*key, flags & RANGE_AFTER != 0);
    'leaves: while let Some(Leaf { place, end }) = leaf(ports, root, &from, node).await? {
        let first = place.index as usize + usize::from(place.equal && is_after);
        for index in first..node.count() {
            let value = Value::decode(node.pointer(index), ports.geometry.pages).ok_or(DAMAGED)?;
            let sent = if flags & RANGE_KEYS_ONLY == 0 { value.bytes } else { 0 };
            let behind = (head.used + PAIR_HEAD_BYTES as u32 + sent).next_multiple_of(8);
            if head.pairs == most || behind > room {
                head.more = true;
                break 'leaves;
            }
            let pair = encode_pair(&node.key(index), value.bytes);
            let told = ports.request.dma(Local(&pair), Reply(head.used), PAIR_HEAD_BYTES as u32);
            let at = ports.geometry.unit(value.unit);
            let (told, moved) = join(told, ports.send(at, head.used + PAIR_HEAD_BYTES as u32, sent)).await;
            told?;
            moved?;
            head.used = behind;
            head.pairs += 1;
            if head.pairs.is_multiple_of(PAIRS_AT_ONCE) {
                yield_now().await?;
            }
        }
        // The next leaf's keys are greater: else it is no tree, and would be searched for ever.
        match end {
            Some(end) if end > from => (from, is_after) = (end, false),
            Some(_) => return Err(DAMAGED),
            None => break,
        }
    }
    ports.request.dma(Local(&head.encode()), Reply(0), RANGE_HEAD_BYTES as u32).await?;
    Ok(head)
}

/// What a tree uses, found by looking at all its nodes.
pub async fn survey(ports: &Ports<'_>, root: &Root) -> Result<Space, Failure> {
    let pages = ports.geometry.pages;
    let mut space = Space::new(pages);
    let (mut nodes, mut next, mut pairs, mut read) = (Vec::new(), [0; HEIGHT_MAX], 0, 0u32);
    let height = root.height as usize;
    nodes.resize_with(height, Node::default);
    let (mut level, mut page) = (height, root.page);
    if height == 0 {
        return if root.pairs == 0 { Ok(space) } else { Err(DAMAGED) };
    }
    loop {
        // Down to a node.
        level -= 1;
        ports.node(page, level as u32, &mut nodes[level]).await?;
        if !space.take(Piece::page(page)) {
            return Err(DAMAGED);
        }
        next[level] = 0;
        read += 1;
        if read.is_multiple_of(NODES_AT_ONCE) {
            yield_now().await?;
        }
        if level == 0 {
            let leaf = &nodes[0];
            for index in 0..leaf.count() {
                let value = Value::decode(leaf.pointer(index), pages).ok_or(DAMAGED)?;
                if value.units() > 0 && !space.take(Piece { unit: value.unit, units: value.units() }) {
                    return Err(DAMAGED);
                }
            }
            pairs += leaf.count() as u64;
            // Up to a node that leads on.
            level = 1;
            while level < height && next[level] == nodes[level].count() {
                level += 1;
            }
            if level == height {
                break;
            }
        }
        page = u32::try_from(nodes[level].pointer(next[level])).map_err(|_| DAMAGED)?;
        next[level] += 1;
    }
    if pairs == root.pairs { Ok(space) } else { Err(DAMAGED) }
}
