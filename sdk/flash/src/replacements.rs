//! Bad blocks: which physical block stands for each part of an erase block of a lane.
//!
//! Of each plane the last rows are kept as replacements. An erase block's part lies in the plane's block of the same row, unless that one was bad
//! from the start or went bad: then in a replacement. An erase block for which none is left is retired.
//!
//! What always holds: replacements are handed out in ascending order of their rows and never come back; no two parts share a block.

use crate::geometry::Layout;
use alloc::collections::BTreeMap;
use alloc::collections::BTreeSet;
use alloc::vec;
use alloc::vec::Vec;

/// Which part of an erase block lies elsewhere, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replacement {
    /// Erase block of the lane.
    pub block: u32,
    /// Part of it.
    pub part: u32,
    /// Row of the plane.
    pub row: u32,
}

/// The replacements of a lane.
pub struct Replacements {
    layout: Layout,
    /// Erase blocks of the lane: rows that are no replacements.
    blocks: u32,
    replaced: BTreeMap<(u32, u32), u32>,
    /// By erase block: 1 where one of its parts lies elsewhere.
    moved: Vec<u8>,
    /// For each part the first row that was not handed out.
    next_row: Vec<u32>,
    factory_bad: BTreeSet<(u32, u32)>,
}

impl Replacements {
    /// Without any replacement yet. `factory_bad` gives the bad blocks of each of the lane's dies.
    pub fn new(layout: Layout, replacement_blocks: u32, factory_bad: &[Vec<u32>]) -> Replacements {
        let planes = layout.geometry.planes_per_die;
        let blocks = layout.geometry.blocks_per_plane - replacement_blocks;
        let parts = (0..layout.parts()).flat_map(|part| {
            let of_die = &factory_bad[(part / planes) as usize];
            of_die.iter().filter(move |block| *block % planes == part % planes).map(move |block| (part, block / planes))
        });
        Replacements {
            layout,
            blocks,
            replaced: BTreeMap::new(),
            moved: vec![0; blocks as usize],
            next_row: vec![blocks; layout.parts() as usize],
            factory_bad: parts.collect(),
        }
    }

    /// Erase blocks of the lane, the retired ones included.
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Whether all parts of the erase block lie in rows that were good from the start, without replacement.
    pub fn is_plain(&self, block: u32) -> bool {
        (0..self.layout.parts()).all(|part| self.is_good(part, block) && !self.replaced.contains_key(&(block, part)))
    }

    /// Whether the row of the part's plane was good from the start.
    pub fn is_good(&self, part: u32, row: u32) -> bool {
        !self.factory_bad.contains(&(part, row))
    }

    /// The block within its die in which a part lies.
    pub fn physical(&self, block: u32, part: u32) -> u32 {
        let row = if self.replaced.is_empty() { block } else { self.row(block, part) };
        self.layout.physical_block(part, row)
    }

    fn row(&self, block: u32, part: u32) -> u32 {
        self.replaced.get(&(block, part)).copied().unwrap_or(block)
    }

    fn insert(&mut self, (block, part): (u32, u32), row: u32) {
        self.replaced.insert((block, part), row);
        self.moved[block as usize] = 1;
    }

    /// By erase block: 0 where all of its parts lie in its own row. It stays at its place in memory.
    pub fn moved(&self) -> &[u8] {
        &self.moved
    }

    /// Puts a replacement in the place of a part; `None`: none is left.
    pub fn replace(&mut self, block: u32, part: u32) -> Option<Replacement> {
        loop {
            let row = self.next_row[part as usize];
            if row == self.layout.geometry.blocks_per_plane {
                return None;
            }
            self.next_row[part as usize] = row + 1;
            if self.is_good(part, row) {
                self.insert((block, part), row);
                return Some(Replacement { block, part, row });
            }
        }
    }

    /// Takes over a replacement that was made before. False: it cannot be.
    pub fn restore(&mut self, made: Replacement) -> bool {
        let possible = made.block < self.blocks
            && made.part < self.layout.parts()
            && (self.blocks..self.layout.geometry.blocks_per_plane).contains(&made.row);
        if possible {
            self.insert((made.block, made.part), made.row);
            let next = &mut self.next_row[made.part as usize];
            *next = (*next).max(made.row + 1);
        }
        possible
    }

    /// All that are in use.
    pub fn iter(&self) -> impl Iterator<Item = Replacement> + '_ {
        self.replaced.iter().map(|(&(block, part), &row)| Replacement { block, part, row })
    }

    /// For each part the rows that were handed out; [`Replacements::restore_used`] takes it.
    pub fn used(&self) -> &[u32] {
        &self.next_row
    }

    /// Rows below these were handed out.
    pub fn restore_used(&mut self, used: &[u32]) {
        for (next, used) in self.next_row.iter_mut().zip(used) {
            *next = (*next).max((*used).min(self.layout.geometry.blocks_per_plane));
        }
    }

    /// Erase blocks that no replacement was left for, and replacements that were left, when the flash was new.
    pub fn when_new(&self) -> (u32, u32) {
        let mut new = Replacements {
            layout: self.layout,
            blocks: self.blocks,
            replaced: BTreeMap::new(),
            moved: vec![0; self.blocks as usize],
            next_row: vec![self.blocks; self.layout.parts() as usize],
            factory_bad: self.factory_bad.clone(),
        };
        let bad = self.factory_bad.iter().filter(|(_, row)| *row < self.blocks);
        let retired: BTreeSet<u32> =
            bad.filter(|(part, row)| new.replace(*row, *part).is_none()).map(|(_, row)| *row).collect();
        (retired.len() as u32, new.left())
    }

    /// Replacements that are left, of the part that has the fewest.
    pub fn left(&self) -> u32 {
        let rows = self.layout.geometry.blocks_per_plane;
        let left =
            |part: u32| (self.next_row[part as usize]..rows).filter(|row| self.is_good(part, *row)).count() as u32;
        (0..self.layout.parts()).map(left).min().unwrap_or(0)
    }
}
