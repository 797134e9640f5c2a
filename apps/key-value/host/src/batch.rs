//! Several pairs in one request: one batch for each SPU that holds some of them.
//!
//! What always holds: a batch has 1 to [`BATCH_MAX`] pairs, all of one SPU; parts of it begin at multiples of 8 bytes.

use crate::{Call, ItemCondition, Key, KeyValueError, Placement};
use key_value_spu::wire::{
    BATCH_ALIGNMENT, BATCH_MAX, BatchArguments, FLAG_FUA, GetEntry, ItemHead, ManyHead, PutEntry, VALUE_BYTES_MAX,
    handler,
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
    /// Sorts a pair into the batches of its SPU: into the last one where it fits into that (`bytes_max` of payload), else into a new one.
    /// Returns which batch it is; its place there is its turn.
    pub fn add(
        batches: &mut Vec<PutBatch>,
        placement: &Placement,
        key: &Key,
        value: &[u8],
        (condition, expiry): (ItemCondition, u32),
        bytes_max: usize,
    ) -> Result<usize, KeyValueError> {
        let bytes = PutEntry::BYTES + value.len();
        let value_bytes = u32::try_from(value.len()).unwrap_or(u32::MAX);
        if value_bytes > VALUE_BYTES_MAX || bytes > bytes_max {
            return Err(KeyValueError::ValueSize);
        }
        let (spu, pair) = entry(placement, key);
        let fits = |batch: &PutBatch| {
            batch.spu == spu && batch.count < BATCH_MAX && align(batch.payload.len()) + bytes <= bytes_max
        };
        // Of the batches of one SPU only the last one may take more, so that pairs are stored in their order.
        let last = batches.iter().rposition(|batch| batch.spu == spu).filter(|at| fits(&batches[*at]));
        let at = last.unwrap_or_else(|| {
            batches.push(PutBatch { spu, count: 0, payload: Vec::new() });
            batches.len() - 1
        });
        let batch = &mut batches[at];
        let (flags, version) = condition.encode();
        batch.payload.resize(align(batch.payload.len()), 0);
        batch.payload.extend_from_slice(&PutEntry { pair, flags, value_bytes, version, expiry }.encode());
        batch.payload.extend_from_slice(value);
        batch.count += 1;
        Ok(at)
    }

    /// Pairs in it.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The request; its result is how many were stored, in order, and its status why the next one was not.
    pub fn call(&self, nsid: u32, now_s: u32, durable: bool) -> Call<{ BatchArguments::BYTES }> {
        let flags = if durable { FLAG_FUA } else { 0 };
        let arguments = BatchArguments { nsid, flags, now_s, count: self.count, reply_offset: 0 }.encode();
        Call { handler: handler::PUT_MANY, spu: self.spu, arguments }
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
    fn pairs_keep_their_order_within_an_spu() {
        let placement = Placement::new([1; 16], 3);
        let mut batches = Vec::new();
        let mut places = Vec::new();
        for number in 0..200_u32 {
            let key = Key::new(&number.to_le_bytes()).unwrap();
            let value = vec![number as u8; number as usize % 40];
            let at = PutBatch::add(&mut batches, &placement, &key, &value, (ItemCondition::Always, 0), 1000).unwrap();
            places.push((placement.spu(placement.hash(&key)), at));
        }
        assert_eq!(batches.iter().map(|batch| batch.count).sum::<u32>(), 200);
        assert!(batches.iter().all(|batch| batch.payload.len() <= 1000));
        for spu in 0..3 {
            let of: Vec<usize> = places.iter().filter(|place| place.0 == spu).map(|place| place.1).collect();
            assert!(of.is_sorted(), "a later pair in an earlier batch");
        }
        let key = Key::new(b"long").unwrap();
        let long = PutBatch::add(&mut batches, &placement, &key, &[0; 1000], (ItemCondition::Always, 0), 1000);
        assert_eq!(long, Err(KeyValueError::ValueSize));
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
