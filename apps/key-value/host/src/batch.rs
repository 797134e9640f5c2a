//! Several pairs in one request: one batch for each SPU that holds some of them.
//!
//! What always holds: a batch has 1 to [`BATCH_MAX`] pairs, all of one SPU; parts of it begin at multiples of 8 bytes.

use crate::{Call, ItemCondition, Key, KeyValueError, Placement};
use key_value_spu::wire::{
    BATCH_ALIGNMENT, BATCH_MAX, BatchArguments, FLAG_FUA, FLAG_PAST_UNMET, GetEntry, ItemHead, ManyHead, Progress,
    PutEntry, Unmet, VALUE_BYTES_MAX, handler,
};

fn entry(placement: &Placement, key: &Key) -> (u16, GetEntry) {
    let hash = placement.hash(key);
    (placement.spu(hash), GetEntry { hash, key: key.bytes, key_bytes: u32::from(key.length) })
}

fn align(bytes: usize) -> usize {
    bytes.next_multiple_of(BATCH_ALIGNMENT as usize)
}

/// Pairs to be stored by one request.
#[derive(Clone, Debug)]
pub struct PutBatch {
    spu: u16,
    count: u32,
    /// The request's payload.
    pub payload: Vec<u8>,
}

impl PutBatch {
    /// For pairs of that SPU.
    pub fn new(spu: u16) -> Self {
        PutBatch { spu, count: 0, payload: Vec::new() }
    }

    /// Adds a pair of its SPU; false where there is no room for it any more (`bytes_max` of payload). Its place there is its turn.
    pub fn add(
        &mut self,
        placement: &Placement,
        key: &Key,
        value: &[u8],
        (condition, expiry): (ItemCondition, u32),
        bytes_max: usize,
    ) -> Result<bool, KeyValueError> {
        let bytes = PutEntry::BYTES + value.len();
        let value_bytes = u32::try_from(value.len()).unwrap_or(u32::MAX);
        if value_bytes > VALUE_BYTES_MAX || bytes > bytes_max {
            return Err(KeyValueError::ValueSize);
        }
        let (spu, pair) = entry(placement, key);
        debug_assert_eq!(spu, self.spu, "a pair of another SPU");
        let at = align(self.payload.len());
        if self.count == BATCH_MAX || at + bytes > bytes_max {
            return Ok(false);
        }
        let (flags, version) = condition.encode();
        self.payload.resize(at, 0);
        self.payload.extend_from_slice(&PutEntry { pair, flags, value_bytes, version, expiry }.encode());
        self.payload.extend_from_slice(value);
        self.count += 1;
        Ok(true)
    }

    /// Pairs in it.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The request; its result is how many were stored, in order, and its status why the next one was not.
    pub fn call(&self, nsid: u32, now_s: u32, durable: bool) -> Call<{ BatchArguments::BYTES }> {
        let flags = if durable { FLAG_FUA } else { 0 };
        self.call_with(BatchArguments { nsid, flags, now_s, count: self.count, reply_offset: 0 })
    }

    /// The same, and it goes on past pairs whose condition is not met: they are told in the reply, from `reply_offset` on
    /// ([`Self::unmet`]), as far as there is room ([`Self::unmet_bytes`] is enough).
    pub fn call_past_unmet(
        &self,
        nsid: u32,
        now_s: u32,
        durable: bool,
        reply_offset: u32,
    ) -> Call<{ BatchArguments::BYTES }> {
        let flags = FLAG_PAST_UNMET | if durable { FLAG_FUA } else { 0 };
        self.call_with(BatchArguments { nsid, flags, now_s, count: self.count, reply_offset })
    }

    fn call_with(&self, arguments: BatchArguments) -> Call<{ BatchArguments::BYTES }> {
        Call { handler: handler::PUT_MANY, spu: self.spu, arguments: arguments.encode() }
    }

    /// Room in the reply for all pairs of the batch to be told.
    pub fn unmet_bytes(&self) -> usize {
        self.count as usize * Unmet::BYTES
    }

    /// What the result of [`Self::call_past_unmet`] and its reply, from `reply_offset` on, say: how many pairs were worked off, and of
    /// these the ones that were not stored. `None` where it makes no sense.
    pub fn unmet(&self, reply: &[u8], result: u32) -> Option<(usize, Vec<(usize, KeyValueError)>)> {
        let progress = Progress::decode(result);
        let told = reply.get(..progress.unmet as usize * Unmet::BYTES)?;
        let mut all = Vec::with_capacity(progress.unmet as usize);
        for bytes in told.as_chunks::<{ Unmet::BYTES }>().0 {
            let Unmet { index, status } = Unmet::decode(bytes);
            if index >= progress.done {
                return None;
            }
            all.push((index as usize, KeyValueError::from_status(status).err()?));
        }
        (progress.done <= self.count).then_some((progress.done as usize, all))
    }
}

/// Pairs to be read by one request.
#[derive(Clone, Debug)]
pub struct GetBatch {
    spu: u16,
    /// Which of the keys that were asked for, in their order.
    pub members: Vec<usize>,
    /// The request's payload.
    pub payload: Vec<u8>,
}

/// What a request says of one pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gotten {
    /// What is known of it, and its value.
    Found(ItemHead, Vec<u8>),
    /// It is there, and alone longer than the reply.
    TooLong(ItemHead),
    /// It cannot be read.
    Failed(KeyValueError),
}

impl GetBatch {
    /// Sorts keys into one batch for each SPU, or more where there are many.
    pub fn sort(placement: &Placement, keys: &[Key], wanted: impl IntoIterator<Item = usize>) -> Vec<GetBatch> {
        let mut batches: Vec<GetBatch> = Vec::new();
        for index in wanted {
            let (spu, entry) = entry(placement, &keys[index]);
            let open = |batch: &GetBatch| batch.spu == spu && batch.members.len() < BATCH_MAX as usize;
            let at = batches.iter().rposition(open).unwrap_or_else(|| {
                batches.push(GetBatch { spu, members: Vec::new(), payload: Vec::new() });
                batches.len() - 1
            });
            batches[at].members.push(index);
            batches[at].payload.extend_from_slice(&entry.encode());
        }
        batches
    }

    /// The request; what it says begins at byte `reply_offset` of the reply.
    pub fn call(&self, nsid: u32, now_s: u32, reply_offset: u32) -> Call<{ BatchArguments::BYTES }> {
        let count = self.members.len() as u32;
        let arguments = BatchArguments { nsid, flags: 0, now_s, count, reply_offset }.encode();
        Call { handler: handler::GET_MANY, spu: self.spu, arguments }
    }

    /// What a reply, from its `reply_offset` on, says of the first `count` members (the result); `None` where it makes no sense.
    pub fn answers(&self, reply: &[u8], count: u32) -> Option<Vec<(usize, Gotten)>> {
        let members = self.members.get(..count as usize)?;
        let mut at = 0_usize;
        let mut all = Vec::with_capacity(members.len());
        for member in members {
            let bytes: &[u8; ManyHead::BYTES] = reply.get(at..at.checked_add(ManyHead::BYTES)?)?.try_into().ok()?;
            let ManyHead { status, head } = ManyHead::decode(bytes);
            at += ManyHead::BYTES;
            let gotten = match KeyValueError::from_status(status) {
                Ok(()) => {
                    let end = at.checked_add(head.value_bytes as usize)?;
                    let value = reply.get(at..end)?.to_vec();
                    at = align(end);
                    Gotten::Found(head, value)
                }
                Err(KeyValueError::Room) => Gotten::TooLong(head),
                Err(error) => Gotten::Failed(error),
            };
            all.push((*member, gotten));
        }
        Some(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_full_by_bytes_or_by_pairs() {
        let placement = Placement::new([1; 16], 1);
        let always = (ItemCondition::Always, 0);
        let key = Key::new(b"key").unwrap();
        for (value_bytes, bytes_max) in [(0, 1 << 20), (39, 1000), (1000 - PutEntry::BYTES, 1000), (100, 100_000)] {
            let mut batch = PutBatch::new(0);
            let value = vec![7; value_bytes];
            while batch.add(&placement, &key, &value, always, bytes_max).unwrap() {}
            let one_more = align(batch.payload.len()) + PutEntry::BYTES + value_bytes;
            assert!(batch.payload.len() <= bytes_max && (batch.count == BATCH_MAX || one_more > bytes_max));
            assert_eq!(batch.count == BATCH_MAX, value_bytes == 0);
        }
        let long = PutBatch::new(0).add(&placement, &key, &[0; 1000], always, 1000);
        assert_eq!(long, Err(KeyValueError::ValueSize));
    }

    #[test]
    fn senseless_progress_is_none() {
        let placement = Placement::new([1; 16], 1);
        let mut batch = PutBatch::new(0);
        for name in [b"a", b"b"] {
            batch.add(&placement, &Key::new(name).unwrap(), b"", (ItemCondition::Always, 0), 1000).unwrap();
        }
        let told = |index, status| Unmet { index, status }.encode();
        assert_eq!(batch.unmet(&[], 2), Some((2, vec![])));
        assert_eq!(batch.unmet(&[], 3), None);
        assert_eq!(batch.unmet(&[0; 7], 1 << 16 | 2), None);
        assert_eq!(batch.unmet(&told(2, 1), 1 << 16 | 2), None);
        assert_eq!(batch.unmet(&told(1, 0), 1 << 16 | 2), None);
        let changed = key_value_spu::wire::STATUS_CHANGED;
        assert_eq!(batch.unmet(&told(1, changed), 1 << 16 | 2), Some((2, vec![(1, KeyValueError::Changed)])));
    }

    #[test]
    fn senseless_answers_are_none() {
        let placement = Placement::new([1; 16], 1);
        let keys = [b"a", b"b"].map(|key| Key::new(key).unwrap());
        let batches = GetBatch::sort(&placement, &keys, 0..2);
        let [batch] = &batches[..] else { panic!("one SPU") };
        assert_eq!(batch.answers(&[], 0), Some(vec![]));
        assert_eq!(batch.answers(&[0; 23], 1), None);
        assert_eq!(batch.answers(&[0; 64], 3), None);
        let head = ItemHead { version: 1, expiry: 2, value_bytes: 9 };
        let mut reply = ManyHead { status: 0, head }.encode().to_vec();
        reply.extend([7; 8]);
        assert_eq!(batch.answers(&reply, 1), None);
        reply.push(7);
        assert_eq!(batch.answers(&reply, 1), Some(vec![(0, Gotten::Found(head, vec![7; 9]))]));
        let mut wild = head;
        wild.value_bytes = u32::MAX;
        assert_eq!(batch.answers(&ManyHead { status: 0, head: wild }.encode(), 1), None);
    }
}
