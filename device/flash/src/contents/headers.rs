//! No contents but what an FTL recovers from: spare areas, and pages that it marked as its own. For simulations of large devices; any other
//! page reads as zeroes.
//!
//! What always holds:
//! - What is read is what was written, with ones at its end where it was shorter than what is asked for.
//! - A block takes memory from its first page to its erase. Its headers are kept packed ([`super::pack`]), so that one of 44 bytes takes some 5 to 9.
//! - What an FTL wrote of its own to several planes at once is kept once.
//! - Blocks of a die that are written together with headers that differ by a mask share one row of packed headers. A row is appended to or let go,
//!   and changed otherwise by its only block alone.

use super::kept::Kept;
use super::pack::{Mask, Window};
use super::{Block, FileError, PageWrite, entries};
use crate::geometry::Geometry;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Pages from one that is packed by itself to the next: the longest way to any page.
const KEY_PAGES: u32 = 32;
/// No row of headers.
const NO_ROW: u32 = u32::MAX;

/// Headers of one block.
#[derive(Clone, Copy, Debug)]
struct BlockHeaders {
    /// Its row; [`NO_ROW`]: none of its pages is written.
    row: u32,
    /// What its headers differ from those of the row by.
    mask: Mask,
    pages: u16,
    /// Some page of it is, or was, the FTL's own.
    has_metadata: bool,
}

const EMPTY: BlockHeaders = BlockHeaders { row: NO_ROW, mask: Mask::NOTHING, pages: 0, has_metadata: false };

/// Headers of pages that follow one another, packed.
#[derive(Debug, Default)]
struct Row {
    bytes: Vec<u8>,
    /// Where those of pages 0, [`KEY_PAGES`] and so on begin.
    keys: Vec<u32>,
    /// The last page's, until the row is full.
    tail: Option<Box<Window>>,
    pages: u16,
    /// How many blocks have it.
    blocks: u8,
}

impl Row {
    fn held_bytes(&self) -> u64 {
        let tail = self.tail.as_ref().map_or(0, |tail| tail.held_bytes());
        self.bytes.capacity() as u64 + 4 * self.keys.capacity() as u64 + tail
    }

    fn append(&mut self, header: &[u8], pages_per_block: u16) {
        let tail = self.tail.get_or_insert_default();
        if u32::from(self.pages).is_multiple_of(KEY_PAGES) {
            self.keys.push(self.bytes.len() as u32);
            tail.clear();
        }
        tail.pack(header, &mut self.bytes);
        self.pages += 1;
        if self.pages == pages_per_block {
            self.bytes.shrink_to_fit();
            self.keys.shrink_to_fit();
        }
    }
}

/// A place in a row: the header that was looked at last, since the next one is often a later page's of the same block.
#[derive(Debug, Default)]
struct Cursor {
    /// Row and page; `None`: none.
    at: Option<(u32, u32)>,
    window: Window,
    /// Where the next page's begins.
    end: usize,
}

impl Cursor {
    /// Goes to a page of a row.
    fn seek(&mut self, number: u32, row: &Row, page: u32) {
        let key = page / KEY_PAGES;
        let mut next = match self.at {
            Some((held, held_page)) if held == number && held_page == page => return,
            Some((held, held_page)) if held == number && held_page < page && held_page / KEY_PAGES == key => {
                held_page + 1
            }
            _ => {
                self.window.clear();
                self.end = row.keys[key as usize] as usize;
                key * KEY_PAGES
            }
        };
        while next <= page {
            self.end += self.window.unpack(&row.bytes[self.end..]);
            next += 1;
        }
        self.at = Some((number, page));
    }
}

/// Headers alone.
#[derive(Debug)]
pub struct HeaderContents {
    pages_per_block: u16,
    blocks_per_die: u64,
    blocks: Vec<BlockHeaders>,
    rows: Vec<Row>,
    free_rows: Vec<u32>,
    /// The row that was begun last: other planes' blocks of the same program join it.
    begun: Option<(u64, u32)>,
    /// One a die, which works on a block at a time.
    cursors: Vec<Cursor>,
    /// The FTL's own pages.
    metadata: BTreeMap<(u64, u32), Arc<Kept>>,
    /// Which of them was written last.
    last_metadata: (u64, u32),
    /// Of rows and the FTL's own pages.
    held_bytes: u64,
}

/// Memory of one of the FTL's own pages: that of others that are the same is counted with the last of them.
fn kept_bytes(kept: &Arc<Kept>) -> u64 {
    let own = if Arc::strong_count(kept) == 1 { kept.held_bytes() + size_of::<Kept>() as u64 } else { 0 };
    own + size_of::<((u64, u32), Arc<Kept>)>() as u64
}

impl HeaderContents {
    /// Nothing written.
    pub fn new(geometry: &Geometry) -> HeaderContents {
        let mut cursors = Vec::new();
        cursors.resize_with(geometry.dies() as usize, Cursor::default);
        HeaderContents {
            // At most 65,535: validated.
            pages_per_block: geometry.pages_per_block as u16,
            blocks_per_die: geometry.blocks_per_die().into(),
            blocks: vec![EMPTY; entries(geometry)],
            rows: Vec::new(),
            free_rows: Vec::new(),
            begun: None,
            cursors,
            metadata: BTreeMap::new(),
            last_metadata: (0, 0),
            held_bytes: 0,
        }
    }

    fn die(&self, block: u64) -> usize {
        (block / self.blocks_per_die) as usize
    }

    pub(super) fn write(&mut self, page: &PageWrite<'_>) {
        assert_eq!(u32::from(self.blocks[page.block as usize].pages), page.page, "pages are written in order");
        self.append(page.block, page.spare);
        if page.metadata {
            let kept = Kept::new(page.data);
            let last = self.metadata.get(&self.last_metadata).filter(|last| ***last == kept);
            let kept = last.cloned().unwrap_or_else(|| Arc::new(kept));
            self.held_bytes += kept_bytes(&kept);
            self.blocks[page.block as usize].has_metadata = true;
            self.last_metadata = (page.block, page.page);
            self.metadata.insert(self.last_metadata, kept);
        }
    }

    fn append(&mut self, block: u64, spare: &[u8]) {
        let BlockHeaders { mut row, pages, mask, .. } = self.blocks[block as usize];
        if row == NO_ROW {
            row = self.begin(block, spare);
        } else {
            let held = &self.rows[row as usize];
            let is_next = held.pages == pages;
            if is_next && mask.is_empty() {
                self.change(row, |row, pages_per_block| row.append(spare, pages_per_block));
            } else if is_next || !self.is_page(block, row, pages.into(), spare, &mask) {
                row = self.leave(block);
                self.change(row, |row, pages_per_block| row.append(spare, pages_per_block));
            }
        }
        let headers = &mut self.blocks[block as usize];
        headers.pages += 1;
        if headers.pages == self.pages_per_block {
            // The row is full as well, and nothing is appended any more.
            self.change(row, |row, _| row.tail = None);
        }
    }

    /// Whether a page of a row is these bytes under a mask.
    fn is_page(&mut self, block: u64, row: u32, page: u32, spare: &[u8], mask: &Mask) -> bool {
        let held = &self.rows[row as usize];
        if page + 1 == held.pages.into()
            && let Some(tail) = &held.tail
        {
            return tail.is(spare, mask);
        }
        let die = self.die(block);
        let cursor = &mut self.cursors[die];
        cursor.seek(row, held, page);
        cursor.window.is(spare, mask)
    }

    /// The first page of a block: it joins the row that another plane's block has just begun, or begins one.
    fn begin(&mut self, block: u64, spare: &[u8]) -> u32 {
        let joined = self.begun.and_then(|(beginner, row)| {
            let held = &self.rows[row as usize];
            let is_fresh = held.pages == 1 && held.blocks > 0 && held.blocks < u8::MAX;
            if !is_fresh || beginner == block || self.die(beginner) != self.die(block) {
                return None;
            }
            Some((row, held.tail.as_ref()?.mask(spare)?))
        });
        let (row, mask) = match joined {
            Some(joined) => joined,
            None => {
                let row = self.new_row();
                self.begun = Some((block, row));
                self.change(row, |row, pages_per_block| row.append(spare, pages_per_block));
                (row, Mask::NOTHING)
            }
        };
        self.rows[row as usize].blocks += 1;
        let headers = &mut self.blocks[block as usize];
        (headers.row, headers.mask) = (row, mask);
        row
    }

    fn new_row(&mut self) -> u32 {
        self.free_rows.pop().unwrap_or_else(|| {
            self.rows.push(Row::default());
            (self.rows.len() - 1) as u32
        })
    }

    /// Changes a row, and counts its memory.
    fn change(&mut self, row: u32, change: impl FnOnce(&mut Row, u16)) {
        let row = &mut self.rows[row as usize];
        let before = row.held_bytes();
        change(row, self.pages_per_block);
        self.held_bytes = self.held_bytes + row.held_bytes() - before;
    }

    /// A block goes on in a row of its own, since its headers are no longer those of the others.
    fn leave(&mut self, block: u64) -> u32 {
        let BlockHeaders { row: old, mask, pages, .. } = self.blocks[block as usize];
        let (row, die) = (self.new_row(), self.die(block));
        let mut header = Vec::new();
        for page in 0..pages {
            self.cursors[die].seek(old, &self.rows[old as usize], page.into());
            self.cursors[die].window.header(&mask, &mut header);
            self.change(row, |row, pages_per_block| row.append(&header, pages_per_block));
        }
        self.let_go(old, die);
        self.rows[row as usize].blocks = 1;
        let headers = &mut self.blocks[block as usize];
        (headers.row, headers.mask) = (row, Mask::NOTHING);
        row
    }

    /// A block of a die has a row no longer.
    fn let_go(&mut self, row: u32, die: usize) {
        let held = &mut self.rows[row as usize];
        held.blocks -= 1;
        if held.blocks > 0 {
            return;
        }
        self.held_bytes -= held.held_bytes();
        *held = Row::default();
        self.free_rows.push(row);
        self.forget_cursor(row, die);
        if self.begun.is_some_and(|(_, begun)| begun == row) {
            self.begun = None;
        }
    }

    fn forget_cursor(&mut self, row: u32, die: usize) {
        let cursor = &mut self.cursors[die];
        if cursor.at.is_some_and(|(held, _)| held == row) {
            cursor.at = None;
        }
    }

    pub(super) fn read(&mut self, (block, page): (u64, u32), offset: u32, data: &mut [u8], spare: &mut [u8]) {
        let BlockHeaders { row, mask, has_metadata, .. } = self.blocks[block as usize];
        if !spare.is_empty() {
            let die = self.die(block);
            let cursor = &mut self.cursors[die];
            cursor.seek(row, &self.rows[row as usize], page);
            cursor.window.copy_to(&mask, spare);
        }
        if data.is_empty() {
            return;
        }
        match has_metadata.then(|| self.metadata.get(&(block, page))).flatten() {
            Some(kept) => kept.read(offset, data),
            None => data.fill(0),
        }
    }

    /// Whether a page is the FTL's own.
    #[inline]
    pub fn keeps(&self, (block, page): (u64, u32)) -> bool {
        self.blocks[block as usize].has_metadata && self.metadata.contains_key(&(block, page))
    }

    /// A page that holds nothing, and follows the others.
    pub(super) fn mark(&mut self, block: u64, page: u32) {
        while u32::from(self.blocks[block as usize].pages) <= page {
            self.append(block, &[]);
        }
        self.held_bytes -= self.metadata.remove(&(block, page)).map_or(0, |kept| kept_bytes(&kept));
    }

    pub(super) fn forget(&mut self, block: u64, page: u32) -> Result<(), FileError> {
        let BlockHeaders { row, pages, .. } = self.blocks[block as usize];
        if page < u32::from(pages) {
            self.blocks[block as usize].pages = page as u16;
            if page == 0 {
                self.blocks[block as usize].row = NO_ROW;
                self.let_go(row, self.die(block));
            }
        }
        self.drop_metadata(block, page);
        Ok(())
    }

    pub(super) fn erase(&mut self, block: u64, state: &Block) {
        if state.is(Block::UNDEFINED) {
            return;
        }
        let headers = std::mem::replace(&mut self.blocks[block as usize], EMPTY);
        if headers.row != NO_ROW {
            self.let_go(headers.row, self.die(block));
        }
        if headers.has_metadata {
            self.drop_metadata(block, 0);
        }
    }

    fn drop_metadata(&mut self, block: u64, from_page: u32) {
        while let Some((&key, _)) = self.metadata.range((block, from_page)..(block + 1, 0)).next() {
            let kept = self.metadata.remove(&key).expect("it was found");
            self.held_bytes -= kept_bytes(&kept);
        }
    }

    pub(super) fn held_bytes(&self) -> u64 {
        let cursors: u64 = self.cursors.iter().map(|cursor| cursor.window.held_bytes()).sum();
        let tables = self.blocks.capacity() * size_of::<BlockHeaders>() + self.rows.capacity() * size_of::<Row>();
        self.held_bytes + cursors + (tables + self.free_rows.capacity() * 4) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::Cell;
    use proptest::prelude::*;

    const PLANES: u64 = 4;
    const PAGES: u32 = 80;

    fn contents() -> HeaderContents {
        HeaderContents::new(&Geometry {
            channels: 1,
            packages_per_channel: 1,
            dies_per_package: 2,
            planes_per_die: PLANES as u32,
            blocks_per_plane: 2,
            pages_per_block: PAGES,
            page_bytes: 1024,
            spare_bytes: 64,
            cell: Cell::Slc,
            paired_distance: 0,
            spare_accessible: true,
        })
    }

    fn write(contents: &mut HeaderContents, (block, page): (u64, u32), spare: &[u8]) {
        contents.write(&PageWrite { block, page, erase_count: 0, data: &[], spare, metadata: false, time_s: 0 });
    }

    /// A header of a part of a page, as FTLs write them.
    fn header(seed: u32, part: u64) -> Vec<u8> {
        let logical = seed.wrapping_mul(2_654_435_761) >> 8;
        let words = [1 | (part as u32) << 16, logical, seed, 0, 7];
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let sum = crc32fast::hash(&bytes);
        bytes.extend(sum.to_le_bytes());
        bytes
    }

    #[derive(Clone, Debug)]
    enum Step {
        /// Programs a page of some planes, of which each header may be of its own.
        Program {
            first: u64,
            planes: u64,
            seed: u32,
            odd: Option<u64>,
        },
        Erase(u64),
        Forget(u64, u32),
        Mark(u64),
        Read(u64, u32),
    }

    fn step() -> impl Strategy<Value = Step> {
        let block = 0..PLANES * 4;
        prop_oneof![
            20 => (block.clone(), 1..=PLANES, 0..1u32 << 20, proptest::option::weighted(0.05, 0..PLANES))
                .prop_map(|(first, planes, seed, odd)| Step::Program { first, planes, seed, odd }),
            2 => block.clone().prop_map(Step::Erase),
            1 => (block.clone(), 0..PAGES).prop_map(|(block, page)| Step::Forget(block, page)),
            1 => block.clone().prop_map(Step::Mark),
            10 => (block, 0..PAGES).prop_map(|(block, page)| Step::Read(block, page)),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Whatever blocks share a row, and leave it: each reads back its own headers.
        #[test]
        fn each_block_has_its_own_headers(steps in proptest::collection::vec(step(), 1..400)) {
            let mut contents = contents();
            let mut model: Vec<Vec<Vec<u8>>> = vec![Vec::new(); PLANES as usize * 4];
            let check = |contents: &mut HeaderContents, block: u64, page: u32, expected: &[u8]| {
                let mut found = vec![1; 64];
                contents.read((block, page), 0, &mut [], &mut found);
                let (front, rest) = found.split_at(expected.len());
                front == expected && rest.iter().all(|byte| *byte == 0xFF)
            };
            for step in steps {
                match step {
                    Step::Program { first, planes, seed, odd } => {
                        let many = 1 + seed % 9;
                        for page in 0..many {
                            for part in 0..planes {
                                let block = (first / PLANES * PLANES) + (first + part) % PLANES;
                                let held = &mut model[block as usize];
                                if held.len() == PAGES as usize {
                                    continue;
                                }
                                let own = u32::from(odd == Some(part) && page + 1 == many);
                                let header = header(seed + page + 1000 * own, part);
                                write(&mut contents, (block, held.len() as u32), &header);
                                held.push(header);
                            }
                        }
                    }
                    Step::Erase(block) => {
                        contents.erase(block, &Block::default());
                        model[block as usize].clear();
                    }
                    Step::Forget(block, page) => {
                        contents.forget(block, page).expect("in memory");
                        model[block as usize].truncate(page as usize);
                    }
                    Step::Mark(block) => {
                        let page = model[block as usize].len() as u32;
                        if page < PAGES {
                            contents.mark(block, page);
                            model[block as usize].push(Vec::new());
                        }
                    }
                    Step::Read(block, page) => {
                        if let Some(expected) = model[block as usize].get(page as usize) {
                            prop_assert!(check(&mut contents, block, page, expected));
                        }
                    }
                }
            }
            for (held, block) in model.iter().zip(0..) {
                for (expected, page) in held.iter().zip(0..) {
                    prop_assert!(check(&mut contents, block, page, expected), "block {block}, page {page}");
                }
            }
            (0..model.len() as u64).for_each(|block| contents.erase(block, &Block::default()));
            prop_assert_eq!(contents.held_bytes, 0, "erased blocks hold nothing");
            prop_assert_eq!(contents.free_rows.len(), contents.rows.len());
        }
    }

    /// What one plane's header takes, all planes' take.
    #[test]
    fn planes_that_are_written_together_are_kept_as_one() {
        let mut contents = contents();
        for page in 0..PAGES {
            (0..PLANES).for_each(|part| write(&mut contents, (part, page), &header(page, part)));
        }
        assert_eq!((contents.rows.len(), contents.rows[0].blocks), (1, PLANES as u8));
        let held = contents.held_bytes;
        (0..PLANES - 1).for_each(|part| contents.erase(part, &Block::default()));
        assert_eq!(contents.held_bytes, held, "the last one has them still");
    }
}
