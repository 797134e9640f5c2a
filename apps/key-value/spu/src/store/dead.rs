//! Pairs that do not exist any more though their records are there: those whose time is over, and those that were there when the
//! namespace was cleared. They are found by nobody, and take space until they are replaced, deleted or swept away.
//!
//! What always holds:
//! - Whether a pair exists is asked by [`Store::value_of`] (or [`Store::exists_now`], which is the same of a decoded header);
//!   [`Store::get_now`] looks at the horizon by itself, and leaves pairs with an expiry to the way that asks.
//! - The device has no calendar: time is what the hosts told last. Without a time nothing expires.
//! - A record is buried under its bucket's stripe, after another look at it.

use super::{DRAIN_PER_MUTATION, HEADS_AT_ONCE, Store};
use crate::bank::{Bank, Failure, Planted, planted};
use crate::format::{HEADER_BYTES, Header, HeaderView, Kind, PairId};

/// Buckets that one sweep looks at, at most.
pub const SWEEP_BUCKETS: u32 = 16 << 10;
/// Pairs that one sweep removes, at most.
const SWEEP_PAIRS: u32 = 256;
/// Sweeps that a put without room makes, at most.
const ROOM_SWEEPS_MAX: u32 = 4;

/// What puts without room have looked at in vain: so many buckets, one after the other, as pairs ended by that time and that horizon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Vain {
    now_s: u32,
    horizon: u64,
    buckets: u32,
}

impl Vain {
    pub const NONE: Vain = Vain { now_s: 0, horizon: 0, buckets: 0 };
}

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
        let (next, _) = self.sweep_from(bank, from).await?;
        Ok(next)
    }

    /// The same, and how many pairs were removed.
    async fn sweep_from<B: Bank>(&self, bank: &B, from: u32) -> Result<(u32, u32), Failure> {
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
                        // Or replaced or deleted meanwhile, which makes room as well.
                        Ok(()) | Err(Failure::NotFound) => removed += 1,
                        Err(failure) => return Err(failure),
                    }
                    if removed == SWEEP_PAIRS {
                        return Ok((index, removed));
                    }
                    bank.pause().await;
                }
            }
            bucket += count;
            bank.pause().await;
        }
        Ok((if end == buckets { 0 } else { end }, removed))
    }

    /// The first pair of a chain that does not exist any more.
    async fn dead_in<B: Bank>(&self, bank: &B, bucket: u32) -> Result<Option<PairId>, Failure> {
        let _share = self.stripes.read(bucket, &self.waiters).await;
        let mut chain = self.chain(bank, bucket).await?;
        while let Some(header) = self.next_of(bank, &mut chain).await? {
            if header.is_pair() && !self.exists_now(&header) {
                return Ok(Some(header.id));
            }
        }
        Ok(None)
    }

    /// After a put that found no room: true where a sweep has removed something, so that the put is worth another try. `sweeps` counts those
    /// of one put.
    pub async fn finds_room<B: Bank>(&self, bank: &B, sweeps: &mut u32) -> Result<bool, Failure> {
        while *sweeps < ROOM_SWEEPS_MAX {
            *sweeps += 1;
            match self.make_room(bank).await? {
                None => return Ok(false),
                Some(0) => {}
                Some(_) => return Ok(true),
            }
        }
        Ok(false)
    }

    /// Makes room where a put found none: sweeps on from where the last such put stopped. Returns how many pairs were removed; `None` where
    /// all buckets were looked at in vain since the time was told or the namespace was cleared: a full namespace does not pay for a sweep
    /// with each put.
    pub async fn make_room<B: Bank>(&self, bank: &B) -> Result<Option<u32>, Failure> {
        let (now_s, horizon) = (self.now_s.get(), self.horizon.get());
        if now_s == 0 && horizon == 0 {
            return Ok(None);
        }
        let vain = self.vain.get();
        if (vain.now_s, vain.horizon) != (now_s, horizon) {
            self.vain.set(Vain { now_s, horizon, buckets: 0 });
        } else if vain.buckets >= self.geometry.get().buckets {
            return Ok(None);
        }
        let from = self.sweep_at.get();
        let (next, removed) = self.sweep_from(bank, from).await?;
        // Others may have swept the same buckets meanwhile; they count once.
        if self.sweep_at.get() == from {
            self.sweep_at.set(next);
            let looked = if next == 0 { self.geometry.get().buckets } else { next } - from;
            let mut vain = self.vain.get();
            vain.buckets = if removed > 0 { 0 } else { vain.buckets.saturating_add(looked) };
            self.vain.set(vain);
        }
        Ok(Some(removed))
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
