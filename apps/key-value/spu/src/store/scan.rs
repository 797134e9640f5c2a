//! Scan: the keys of a range, found where they are. The table is ordered by hash, so a scan looks at every pair, whatever the range;
//! what it spares is moving those that do not match. Each call is bounded by what it looks at, and says where the next one begins.
//!
//! What always holds: keys are compared as bytes, a prefix before what it begins; entries are in the order of listings; a pair that is
//! there all the time is found exactly once.

use super::{HEADS_AT_ONCE, Store};
use crate::bank::{Bank, Failure};
use crate::format::PairId;
use crate::wire::{self, KEY_BYTES_MAX};
use core::cmp::Ordering;

/// Buckets that one call looks at, at most.
pub const SCAN_BUCKETS: u32 = 16 << 10;
/// Pairs that one call looks at, at most, before it ends at the next bucket.
const SCAN_PAIRS: u32 = 16 << 10;

/// Which keys are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyRange {
    /// The first key; empty: no bound.
    pub from: ([u8; KEY_BYTES_MAX], u8),
    /// Behind the last key; empty: no bound.
    pub to: ([u8; KEY_BYTES_MAX], u8),
}

impl KeyRange {
    fn holds(&self, id: &PairId) -> bool {
        let rank = |key: &[u8; KEY_BYTES_MAX], bytes: u8| (u128::from_be_bytes(*key), bytes);
        let key = rank(&id.key, id.key_bytes);
        key >= rank(&self.from.0, self.from.1) && (self.to.1 == 0 || key < rank(&self.to.0, self.to.1))
    }
}

/// What a scan brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scanned {
    /// Bytes of entries.
    pub bytes: u32,
    /// Where the next call begins; `None`: that was all.
    pub next: Option<PairId>,
}

impl Store {
    /// Writes entries of pairs in the range into the reply from byte `at` on, as far as `capacity` goes, beginning at or behind `from`.
    pub async fn scan<B: Bank>(
        &self,
        bank: &B,
        range: &KeyRange,
        from: PairId,
        at: u32,
        capacity: u32,
    ) -> Result<Scanned, Failure> {
        let geometry = self.geometry.get();
        if self.has_no_pairs() {
            return Ok(Scanned { bytes: 0, next: None });
        }
        let mut bucket = self.bucket(&from);
        let end = bucket.saturating_add(SCAN_BUCKETS).min(geometry.buckets);
        let (mut bytes, mut looked) = (0, 0);
        while bucket < end && looked < SCAN_PAIRS {
            let mut heads = [0; 4 * HEADS_AT_ONCE as usize];
            let count = (HEADS_AT_ONCE - bucket % HEADS_AT_ONCE).min(end - bucket);
            bank.read(geometry.bucket_address(bucket), &mut heads[..4 * count as usize]).await?;
            for (index, head) in (bucket..bucket + count).zip(heads.chunks_exact(4)) {
                if head == [0; 4] {
                    continue;
                }
                let stopped =
                    self.scan_bucket(bank, index, range, &from, at, capacity, &mut bytes, &mut looked).await?;
                if stopped.is_some() {
                    return Ok(Scanned { bytes, next: stopped });
                }
            }
            bucket += count;
            bank.pause().await;
        }
        let next = (bucket < geometry.buckets).then(|| self.first_of(bucket));
        Ok(Scanned { bytes, next })
    }

    /// Looks at one chain; the pair that found no room.
    #[allow(clippy::too_many_arguments)]
    async fn scan_bucket<B: Bank>(
        &self,
        bank: &B,
        bucket: u32,
        range: &KeyRange,
        from: &PairId,
        at: u32,
        capacity: u32,
        bytes: &mut u32,
        looked: &mut u32,
    ) -> Result<Option<PairId>, Failure> {
        let _share = self.stripes.read(bucket, &self.waiters).await;
        let mut chain = self.chain(bank, bucket).await?;
        while let Some(header) = self.next_of(bank, &mut chain).await? {
            *looked += 1;
            let wanted = header.id.order(from) != Ordering::Less && range.holds(&header.id);
            if wanted && self.exists_now(&header) && !self.reply_entry(bank, &header.id, (at, capacity), bytes).await? {
                return Ok(Some(header.id));
            }
        }
        Ok(None)
    }

    /// Comes before whatever a bucket can hold, and behind all of the buckets before it.
    fn first_of(&self, bucket: u32) -> PairId {
        let (spu, spus) = self.place.get();
        PairId {
            hash: first_hash(bucket, self.geometry.get().buckets, spu, spus),
            key: [0; KEY_BYTES_MAX],
            key_bytes: 0,
        }
    }
}

/// The lowest hash of a bucket: the inverse of [`wire::spu_of`], [`wire::place_on_spu`] and [`crate::format::Geometry::bucket`].
fn first_hash(bucket: u32, buckets: u32, spu: u16, spus: u16) -> u64 {
    let place = (u128::from(bucket) << 64).div_ceil(u128::from(buckets));
    let whole = (u128::from(spu) << 64) + place;
    let hash = whole.div_ceil(u128::from(spus)) as u64;
    debug_assert_eq!(wire::spu_of(hash, spus), spu);
    hash
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Geometry;

    #[test]
    fn the_first_hash_of_a_bucket_is_in_it_and_the_one_before_is_not() {
        for (bytes, spus) in [(1_u64 << 20, 1), (1 << 30, 3), (96 << 20, 8), (200 << 30, 7), (256 << 30, 64)] {
            let geometry = Geometry::new(0, bytes).unwrap();
            let last = geometry.buckets - 1;
            for bucket in [1, 2, 3, 1000, last / 3, last - 1, last] {
                for spu in [0, spus - 1] {
                    let first = first_hash(bucket, geometry.buckets, spu, spus);
                    let of = |hash| (wire::spu_of(hash, spus), geometry.bucket(wire::place_on_spu(hash, spus)));
                    assert_eq!(of(first), (spu, bucket));
                    assert_eq!(of(first - 1), (spu, bucket - 1), "{bytes} {spus} {bucket} {spu}");
                }
            }
        }
    }
}
