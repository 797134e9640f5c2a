//! The greedy victim policy at bounded cost: erase blocks in lists by the number of their valid pages.
//!
//! What always holds: a block is in at most one list; inserting, removing and moving by one page cost a fixed number of steps, choosing at
//! most one for each page of a block. Among blocks with as few valid pages the one that got there first is chosen, so that equal
//! runs are equal.

use alloc::vec;
use alloc::vec::Vec;

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Links {
    previous: u32,
    next: u32,
}

/// Lists of erase blocks, one for each number of valid pages.
pub struct VictimBuckets {
    heads: Vec<(u32, u32)>,
    links: Vec<Links>,
    /// Of each block; [`NONE`]: in no list.
    valid: Vec<u32>,
    /// No list below holds a block.
    lowest: u32,
}

impl VictimBuckets {
    /// No block in any list.
    pub fn new(blocks: u32, pages_per_block: u32) -> VictimBuckets {
        VictimBuckets {
            heads: vec![(NONE, NONE); pages_per_block as usize + 1],
            links: vec![Links { previous: NONE, next: NONE }; blocks as usize],
            valid: vec![NONE; blocks as usize],
            lowest: pages_per_block + 1,
        }
    }

    /// Puts a block in the list of that number.
    pub fn insert(&mut self, block: u32, valid: u32) {
        let counted = core::mem::replace(&mut self.valid[block as usize], valid);
        assert!(counted == NONE, "the block is in no list");
        let (head, tail) = &mut self.heads[valid as usize];
        self.links[block as usize] = Links { previous: *tail, next: NONE };
        if *tail == NONE {
            *head = block;
        } else {
            self.links[*tail as usize].next = block;
        }
        *tail = block;
        self.lowest = self.lowest.min(valid);
    }

    /// Takes a block out of its list.
    pub fn remove(&mut self, block: u32) {
        let Links { previous, next } = self.links[block as usize];
        let valid = core::mem::replace(&mut self.valid[block as usize], NONE);
        assert!(valid != NONE, "the block is in a list");
        match previous {
            NONE => self.heads[valid as usize].0 = next,
            _ => self.links[previous as usize].next = next,
        }
        match next {
            NONE => self.heads[valid as usize].1 = previous,
            _ => self.links[next as usize].previous = previous,
        }
    }

    /// A page of the block is not valid any more.
    pub fn decrement(&mut self, block: u32) {
        let valid = self.valid[block as usize];
        self.remove(block);
        self.insert(block, valid - 1);
    }

    /// Whether the block is in a list.
    pub fn contains(&self, block: u32) -> bool {
        self.valid[block as usize] != NONE
    }

    /// Valid pages of each block, [`u32::MAX`] for those in no list: what a search for the least looks at.
    pub fn counts(&self) -> &[u32] {
        &self.valid
    }

    /// The block with the fewest valid pages, and their number.
    pub fn fewest(&mut self) -> Option<(u32, u32)> {
        while (self.lowest as usize) < self.heads.len() {
            let head = self.heads[self.lowest as usize].0;
            if head != NONE {
                return Some((head, self.lowest));
            }
            self.lowest += 1;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_as_a_search_through_all() {
        let (blocks, pages) = (23, 8);
        let mut buckets = VictimBuckets::new(blocks, pages);
        let mut model = vec![None; blocks as usize];
        let mut random = 12345u64;
        for _ in 0..20_000 {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let block = (random >> 33) as u32 % blocks;
            match model[block as usize] {
                None => {
                    let valid = (random >> 20) as u32 % (pages + 1);
                    buckets.insert(block, valid);
                    model[block as usize] = Some(valid);
                }
                Some(valid) if valid > 0 && random >> 60 != 0 => {
                    buckets.decrement(block);
                    model[block as usize] = Some(valid - 1);
                }
                Some(_) => {
                    buckets.remove(block);
                    model[block as usize] = None;
                }
            }
            assert_eq!(buckets.contains(block), model[block as usize].is_some());
            assert_eq!(buckets.fewest().map(|victim| victim.1), model.iter().flatten().min().copied());
            if let Some((victim, valid)) = buckets.fewest() {
                assert_eq!(model[victim as usize], Some(valid));
            }
            let counts: Vec<u32> = model.iter().map(|valid| valid.unwrap_or(u32::MAX)).collect();
            assert_eq!(buckets.counts(), counts);
        }
    }
}
