//! What the demo knows about the data that it wrote: for each block and each key the version that was acknowledged last, and
//! what was under way. Contents follow from place and version, so that all of it can be compared without being kept.
//!
//! Invariants: one write at a time for each block or key; a version is acknowledged only when the device has answered; after
//! a crash, what was under way may be there or not, anything else must be as acknowledged.

use crate::bench::engine::{Operation, Random};
use crate::failure::{Outcome, fail};
use std::collections::BTreeMap;

/// Bytes of a block of the demo.
pub const BLOCK_BYTES: usize = 4096;
/// Unit that a crash may not tear.
const SECTOR_BYTES: usize = 512;
/// Longest value of the demo.
pub const VALUE_BYTES_MAX: usize = 1024;
/// In a hundred operations on pairs this many are deletes.
const DELETE_PERCENT: u64 = 10;

/// The contents of version `version` of place `place`; version 0 is zeroes.
pub fn contents(place: u64, version: u32, buffer: &mut [u8]) {
    if version == 0 {
        return buffer.fill(0);
    }
    let mut random = Random(place << 32 ^ u64::from(version));
    for chunk in buffer.chunks_mut(8) {
        let word = random.next_u64().to_le_bytes();
        chunk.copy_from_slice(&word[..chunk.len()]);
    }
}

/// Blocks of the namespace.
pub struct Blocks {
    acknowledged: Vec<u32>,
    under_way: BTreeMap<u64, u32>,
    random: Random,
}

impl Blocks {
    /// `count` blocks, all zeroes.
    pub fn new(count: u64, seed: u64) -> Self {
        Blocks { acknowledged: vec![0; count as usize], under_way: BTreeMap::new(), random: Random(seed) }
    }

    /// Number of blocks.
    pub fn count(&self) -> u64 {
        self.acknowledged.len() as u64
    }

    /// Writes under way.
    pub fn under_way(&self) -> usize {
        self.under_way.len()
    }

    /// The next write, at a random block that none is under way for; puts its contents into `buffer`.
    pub fn next_write(&mut self, buffer: &mut [u8]) -> (u64, Operation) {
        let block = loop {
            let block = self.random.below(self.acknowledged.len() as u64);
            if !self.under_way.contains_key(&block) {
                break block;
            }
        };
        let version = self.acknowledged[block as usize] + 1;
        self.under_way.insert(block, version);
        contents(block, version, &mut buffer[..BLOCK_BYTES]);
        (block, Operation::Write { offset: block * BLOCK_BYTES as u64, bytes: BLOCK_BYTES as u32 })
    }

    /// The write of a block was answered.
    pub fn acknowledge(&mut self, block: u64) {
        if let Some(version) = self.under_way.remove(&block) {
            self.acknowledged[block as usize] = version;
        }
    }

    /// Compares what was read.
    pub fn verify(&self, block: u64, found: &[u8]) -> Outcome<()> {
        let version = self.acknowledged[block as usize];
        let mut expected = [0; BLOCK_BYTES];
        contents(block, version, &mut expected);
        if found == expected {
            return Ok(());
        }
        if let Some(newer) = self.under_way.get(&block) {
            let mut new = [0; BLOCK_BYTES];
            contents(block, *newer, &mut new);
            let sectors = expected.chunks(SECTOR_BYTES).zip(new.chunks(SECTOR_BYTES)).zip(found.chunks(SECTOR_BYTES));
            if found.len() == BLOCK_BYTES && sectors.into_iter().all(|((old, new), found)| found == old || found == new)
            {
                return Ok(());
            }
        }
        fail!("block {block} does not hold what was acknowledged (version {version})")
    }
}

/// Pairs of the namespace: keys by number, each with a version, or deleted.
pub struct Pairs {
    /// Version, and whether the pair exists.
    acknowledged: Vec<(u32, bool)>,
    under_way: BTreeMap<u64, (u32, bool)>,
    random: Random,
}

/// Length of the value of a version.
fn value_bytes(key: u64, version: u32) -> usize {
    Random(key << 32 | u64::from(version)).below(VALUE_BYTES_MAX as u64 + 1) as usize
}

impl Pairs {
    /// `count` keys, none stored.
    pub fn new(count: u64, seed: u64) -> Self {
        Pairs { acknowledged: vec![(0, false); count as usize], under_way: BTreeMap::new(), random: Random(seed) }
    }

    /// Number of keys.
    pub fn count(&self) -> u64 {
        self.acknowledged.len() as u64
    }

    /// Operations under way.
    pub fn under_way(&self) -> usize {
        self.under_way.len()
    }

    /// Fewest and most pairs that there can be.
    pub fn stored(&self) -> (u64, u64) {
        let sure = self.acknowledged.iter().filter(|(_, exists)| *exists).count() as u64;
        let mut bounds = (sure, sure);
        for (key, (_, will_exist)) in &self.under_way {
            match (self.acknowledged[*key as usize].1, will_exist) {
                (true, false) => bounds.0 -= 1,
                (false, true) => bounds.1 += 1,
                _ => {}
            }
        }
        bounds
    }

    /// A put of `key`; puts the value into `buffer`.
    pub fn put(&mut self, key: u64, buffer: &mut [u8]) -> Operation {
        let version = self.acknowledged[key as usize].0 + 1;
        self.under_way.insert(key, (version, true));
        let bytes = value_bytes(key, version);
        contents(key, version, &mut buffer[..bytes]);
        Operation::Put { key, bytes: bytes as u32 }
    }

    /// The next put or delete, of a random key that nothing is under way for.
    pub fn next(&mut self, buffer: &mut [u8]) -> (u64, Operation) {
        let key = loop {
            let key = self.random.below(self.acknowledged.len() as u64);
            if !self.under_way.contains_key(&key) {
                break key;
            }
        };
        let (version, exists) = self.acknowledged[key as usize];
        if exists && self.random.below(100) < DELETE_PERCENT {
            self.under_way.insert(key, (version, false));
            return (key, Operation::Delete { key });
        }
        (key, self.put(key, buffer))
    }

    /// The operation on a key was answered.
    pub fn acknowledge(&mut self, key: u64) {
        if let Some(state) = self.under_way.remove(&key) {
            self.acknowledged[key as usize] = state;
        }
    }

    /// Compares what was got; `None`: no such key.
    pub fn verify(&self, key: u64, found: Option<&[u8]>) -> Outcome<()> {
        let matches = |(version, exists): (u32, bool)| match found {
            None => !exists,
            Some(found) => {
                let mut expected = [0; VALUE_BYTES_MAX];
                let expected = &mut expected[..value_bytes(key, version)];
                contents(key, version, expected);
                exists && found == expected
            }
        };
        let acknowledged = self.acknowledged[key as usize];
        if matches(acknowledged) || self.under_way.get(&key).copied().is_some_and(matches) {
            return Ok(());
        }
        let (version, exists) = acknowledged;
        let found =
            found.map_or("it is not there".to_owned(), |found| format!("{} other bytes are there", found.len()));
        fail!(
            "key {key} (version {version}, {}) was acknowledged, but {found}",
            if exists { "stored" } else { "deleted" }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_accept_old_or_new_while_under_way_and_nothing_else() {
        let mut blocks = Blocks::new(1, 1);
        let mut buffer = [0; BLOCK_BYTES];
        let (block, _) = blocks.next_write(&mut buffer);
        let first = buffer;
        assert!(blocks.verify(block, &[0; BLOCK_BYTES]).is_ok());
        assert!(blocks.verify(block, &first).is_ok());
        let mut torn = first;
        torn[..512].fill(0);
        assert!(blocks.verify(block, &torn).is_ok(), "whole sectors of old and new");
        torn[512..600].fill(0);
        assert!(blocks.verify(block, &torn).is_err(), "half a sector");
        blocks.acknowledge(block);
        assert!(blocks.verify(block, &first).is_ok());
        assert!(blocks.verify(block, &[0; BLOCK_BYTES]).is_err(), "the acknowledged write is lost");
        assert_eq!(blocks.under_way(), 0);
    }

    #[test]
    fn pairs_notice_what_is_missing_wrong_or_undead() {
        let mut pairs = Pairs::new(1, 1);
        let mut buffer = [0; VALUE_BYTES_MAX];
        let Operation::Put { bytes, .. } = pairs.put(0, &mut buffer) else { panic!() };
        let value = buffer[..bytes as usize].to_vec();
        assert!(pairs.verify(0, None).is_ok() && pairs.verify(0, Some(&value)).is_ok());
        assert_eq!(pairs.stored(), (0, 1));
        pairs.acknowledge(0);
        assert_eq!(pairs.stored(), (1, 1));
        assert!(pairs.verify(0, None).is_err() && pairs.verify(0, Some(&value)).is_ok());
        assert!(pairs.verify(0, Some(&[&value[..], b"x"].concat())).is_err());
        loop {
            let (key, operation) = pairs.next(&mut buffer);
            if matches!(operation, Operation::Delete { .. }) {
                assert_eq!(pairs.stored(), (0, 1));
                pairs.acknowledge(key);
                break;
            }
            pairs.acknowledge(key);
        }
        assert!(pairs.verify(0, None).is_ok());
        assert!(pairs.verify(0, Some(&value)).is_err(), "a deleted pair is back");
    }
}
