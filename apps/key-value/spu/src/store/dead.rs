//! Pairs that do not exist any more though their records are there: those whose time is over, and those that were there when the
//! namespace was cleared. They are found by nobody, and take space until they are replaced, deleted or swept away.
//!
//! What always holds:
//! - Whether a pair exists is asked by [`Store::value_of`] alone (or [`Store::exists_now`], which is the same of a decoded header).
//! - The device has no calendar: time is what the hosts told last. Without a time nothing expires.
//! - A record is buried under its bucket's stripe, after another look at it.

use super::{DRAIN_PER_MUTATION, HEADS_AT_ONCE, Store};
use crate::bank::{Bank, Failure, Planted, planted};
use crate::format::{HEADER_BYTES, Header, HeaderView, Kind, PairId};

/// Buckets that one sweep looks at, at most.
pub const SWEEP_BUCKETS: u32 = 16 << 10;
/// Pairs that one sweep removes, at most.
const SWEEP_PAIRS: u32 = 256;

/// Which record of a key is buried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Which {
    /// That of a pair that exists, whatever its version.
    Any,
    /// That of a pair that exists and has this version.
    Version(u64),
    /// That of a pair that does not exist any more.
    Dead,
}

impl Store {
    /// Takes the hosts' time in seconds; 0: not told.
    #[inline]
    pub fn tell_time(&self, now_s: u32) {
        if now_s != 0 {
            self.now_s.set(now_s);
        }
    }

    /// Length of the value, and number of its chunks, of a pair that exists.
    #[inline]
    pub(crate) fn value_of(&self, header: &HeaderView<'_>) -> Option<(u32, u16)> {
        if header.sequence() <= self.horizon.get() {
            return None;
        }
        header.value_at(self.now_s.get())
    }

    /// Whether it is a pair that exists.
    pub(crate) fn exists_now(&self, header: &Header) -> bool {
        header.is_pair()
            && header.sequence > self.horizon.get()
            && (header.expiry == 0 || header.expiry > self.now_s.get())
    }

    /// Removes a pair, where a version is given only that one: its record becomes a tombstone, in place, and leaves the chain.
    pub async fn delete<B: Bank>(&self, bank: &B, id: &PairId, version: Option<u64>) -> Result<(), Failure> {
        self.bury(bank, id, version.map_or(Which::Any, Which::Version)).await
    }

    fn check_which(&self, bytes: &[u8; HEADER_BYTES as usize], which: Which) -> Result<(), Failure> {
        let header = HeaderView(bytes);
        let exists = self.value_of(&header).is_some();
        match which {
            Which::Any | Which::Version(_) if !exists => Err(Failure::NotFound),
            Which::Version(version) if version != header.sequence() => Err(Failure::Changed),
            Which::Dead if exists => Err(Failure::NotFound),
            _ => Ok(()),
        }
    }

    async fn bury<B: Bank>(&self, bank: &B, id: &PairId, which: Which) -> Result<(), Failure> {
        let bucket = self.bucket(id);
        let mut bytes = [0; HEADER_BYTES as usize];
        {
            let share = self.stripes.read(bucket, &self.waiters).await;
            // Looks first, so that to delete what is not there writes nothing.
            if !self.find(bank, bucket, id, &mut bytes).await?.found {
                return Err(Failure::NotFound);
            }
            self.check_which(&bytes, which)?;
            drop(share);
        }
        self.begin_mutation(bank).await?;
        {
            let _alone = self.stripes.write(bucket, &self.waiters).await;
            let position = self.find(bank, bucket, id, &mut bytes).await?;
            if !position.found {
                return Err(Failure::NotFound);
            }
            if which != Which::Dead || !planted(bank, Planted::SweepBlind) {
                self.check_which(&bytes, which)?;
            }
            let old = self.decoded(&bytes)?;
            let generation = self.generation_of(bank, position.pointer).await?;
            let tombstone = Header { sequence: self.next_sequence(), kind: Kind::Tombstone, expiry: 0, ..old };
            tombstone.encode(&self.nonce.get(), Self::offset(position.pointer), generation, &mut bytes);
            let buried = bank.write(self.geometry.get().address(position.pointer), &bytes).await;
            self.sound(buried)?;
            let unlinked = bank.write(position.link, &old.next.to_le_bytes()).await;
            self.sound(unlinked)?;
            self.count((old.sequence, old.value_bytes), (0, 0));
            self.push_tombstone(bank, position.pointer).await?;
        }
        self.drain(bank, DRAIN_PER_MUTATION).await
    }

    /// Generation of the slab that a record lies in.
    pub(crate) async fn generation_of<B: Bank>(&self, bank: &B, pointer: u32) -> Result<u64, Failure> {
        let Some((slab, _)) = self.geometry.get().slab_of(pointer) else {
            return self.sound(Err(Failure::Media));
        };
        Ok(self.read_entry(bank, slab).await?.generation)
    }

    /// Removes pairs that do not exist any more from at most [`SWEEP_BUCKETS`] buckets, from that one on. Returns the bucket where the
    /// next sweep begins; 0 where that was the end.
    pub async fn sweep<B: Bank>(&self, bank: &B, from: u32) -> Result<u32, Failure> {
        let buckets = self.geometry.get().buckets;
        let end = from.saturating_add(SWEEP_BUCKETS).min(buckets);
        let mut bucket = from;
        let mut removed = 0;
        while bucket < end {
            let mut heads = [0; 4 * HEADS_AT_ONCE as usize];
            let count = (HEADS_AT_ONCE - bucket % HEADS_AT_ONCE).min(end - bucket);
            bank.read(self.geometry.get().bucket_address(bucket), &mut heads[..4 * count as usize]).await?;
            for (index, head) in (bucket..bucket + count).zip(heads.chunks_exact(4)) {
                if head == [0; 4] {
                    continue;
                }
                while let Some(dead) = self.dead_in(bank, index).await? {
                    match self.bury(bank, &dead, Which::Dead).await {
                        Ok(()) => removed += 1,
                        // Replaced or deleted meanwhile.
                        Err(Failure::NotFound) => {}
                        Err(failure) => return Err(failure),
                    }
                    if removed == SWEEP_PAIRS {
                        return Ok(index);
                    }
                    bank.pause().await;
                }
            }
            bucket += count;
            bank.pause().await;
        }
        Ok(if end == buckets { 0 } else { end })
    }

    /// The first pair of a chain that does not exist any more.
    async fn dead_in<B: Bank>(&self, bank: &B, bucket: u32) -> Result<Option<PairId>, Failure> {
        let _share = self.stripes.read(bucket, &self.waiters).await;
        let mut pointer = self.read_word(bank, self.geometry.get().bucket_address(bucket)).await?;
        let mut before: Option<PairId> = None;
        while pointer != 0 {
            let header = self.read_header(bank, pointer).await?;
            if before.is_some_and(|before| before.order(&header.id) != core::cmp::Ordering::Less) {
                return self.sound(Err(Failure::Media));
            }
            if header.is_pair() && !self.exists_now(&header) {
                return Ok(Some(header.id));
            }
            before = Some(header.id);
            pointer = header.next;
            bank.pause().await;
        }
        Ok(None)
    }

    /// Makes room where a put found none: sweeps on from where the last such put stopped. False where nothing can have expired.
    pub async fn make_room<B: Bank>(&self, bank: &B) -> Result<bool, Failure> {
        if self.now_s.get() == 0 && self.horizon.get() == 0 {
            return Ok(false);
        }
        let next = self.sweep(bank, self.sweep_at.get()).await?;
        self.sweep_at.set(next);
        Ok(true)
    }

    /// Removes all pairs that are there when it is called, in a time that does not depend on how many these are. They are gone, durably, when
    /// it returns; what is being stored meanwhile may go with them.
    pub async fn clear<B: Bank>(&self, bank: &B) -> Result<(), Failure> {
        self.begin_mutation(bank).await?;
        let _held = self.opening.hold(&self.waiters).await;
        let horizon = self.sequence.get();
        self.counted_from.set(horizon);
        self.pairs.set(0);
        self.value_bytes.set(0);
        let written = self.write_superblock_with(bank, false, horizon).await;
        self.sound(written)?;
        if !planted(bank, Planted::ClearTooEarly) {
            let flushed = bank.flush().await;
            self.sound(flushed)?;
        }
        self.horizon.set(horizon);
        Ok(())
    }
}
