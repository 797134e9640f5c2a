//! Pairs in the order of their keys, from the parts of a tree that have some each.
//!
//! What always holds: a page is checked before it is used; pairs come in rising order, each once.

use crate::wire::{KEY_BYTES, Key, PAIR_HEAD_BYTES, RANGE_HEAD_BYTES, RangeHead, decode_pair};
use std::collections::VecDeque;

/// A pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// Key, filled up.
    pub key: Key,
    /// Its value; empty where keys alone were asked for.
    pub value: Vec<u8>,
    /// The value's length.
    pub value_bytes: u32,
}

/// What a part has answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// Pairs, their keys rising.
    pub pairs: VecDeque<Pair>,
    /// There are more behind them.
    pub more: bool,
}

impl Page {
    /// From a reply; `None` where it makes no sense.
    pub fn decode(reply: &[u8], keys_only: bool) -> Option<Page> {
        let head = RangeHead::decode(reply.first_chunk()?);
        let mut at = RANGE_HEAD_BYTES;
        let mut page = Page { pairs: VecDeque::new(), more: head.more };
        for _ in 0..head.pairs {
            let (key, value_bytes) = decode_pair(reply.get(at..)?.first_chunk()?);
            let begin = at + PAIR_HEAD_BYTES;
            let end = begin.checked_add(if keys_only { 0 } else { value_bytes as usize })?;
            if page.pairs.back().is_some_and(|before: &Pair| before.key >= key) {
                return None;
            }
            page.pairs.push_back(Pair { key, value: reply.get(begin..end)?.to_vec(), value_bytes });
            at = end.next_multiple_of(8);
        }
        // Nothing and more of it would be asked for for ever.
        let goes_on = !page.pairs.is_empty() || !page.more;
        (goes_on && at == (head.used as usize).max(RANGE_HEAD_BYTES)).then_some(page)
    }
}

/// The parts' pages, merged.
pub struct Merge {
    parts: Vec<Part>,
}

struct Part {
    spu: u16,
    page: Page,
    /// Where the next page begins, and that it is behind that key, not at it.
    next: (Key, bool),
    is_asked: bool,
}

impl Merge {
    /// From a key on.
    pub fn new(parts: &[u16], from: Key) -> Merge {
        let part = |spu: &u16| Part { spu: *spu, page: Page::default(), next: (from, false), is_asked: false };
        Merge { parts: parts.iter().map(part).collect() }
    }

    /// The parts whose next page is needed before the next pair is known: SPU, where that begins, and whether behind that key.
    pub fn wanted(&self) -> Vec<(u16, Key, bool)> {
        let lacks = |part: &&Part| part.page.pairs.is_empty() && (part.page.more || !part.is_asked);
        self.parts.iter().filter(lacks).map(|part| (part.spu, part.next.0, part.next.1)).collect()
    }

    /// A part's next page.
    pub fn give(&mut self, spu: u16, page: Page) {
        let Some(part) = self.parts.iter_mut().find(|part| part.spu == spu) else { return };
        if let Some(last) = page.pairs.back() {
            part.next = (last.key, true);
        }
        (part.page, part.is_asked) = (page, true);
    }

    /// The next pair, once nothing is wanted; `None` at the end.
    pub fn next_pair(&mut self) -> Option<Pair> {
        let lowest = |part: &&mut Part| part.page.pairs.front().map_or([u8::MAX; KEY_BYTES], |pair| pair.key);
        let part = self.parts.iter_mut().filter(|part| !part.page.pairs.is_empty()).min_by_key(lowest)?;
        part.page.pairs.pop_front()
    }
}
