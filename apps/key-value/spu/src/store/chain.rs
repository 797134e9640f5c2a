//! The walk through a whole chain, record after record, for those that look at many: lists, scans, sweeps.
//!
//! What always holds: who walks shares the bucket's stripe; a chain that does not ascend is told as one that is broken, so that a damaged one
//! ends; between two records others have their turn.

use super::Store;
use crate::bank::{Bank, Failure};
use crate::format::{Header, PairId};
use crate::wire::{KEY_BYTES_MAX, LIST_ENTRY_BYTES_MAX, LIST_ENTRY_HEADER_BYTES, list_entry_bytes};
use core::cmp::Ordering;

/// How far a walk is.
pub(super) struct Chain {
    pointer: u32,
    before: Option<PairId>,
}

impl Store {
    /// Begins at a bucket's first record.
    pub(super) async fn chain<B: Bank>(&self, bank: &B, bucket: u32) -> Result<Chain, Failure> {
        let pointer = self.read_word(bank, self.geometry.get().bucket_address(bucket)).await?;
        Ok(Chain { pointer, before: None })
    }

    /// The next record.
    pub(super) async fn next_of<B: Bank>(&self, bank: &B, chain: &mut Chain) -> Result<Option<Header>, Failure> {
        if chain.pointer == 0 {
            return Ok(None);
        }
        if chain.before.is_some() {
            bank.pause().await;
        }
        let header = self.read_header(bank, chain.pointer).await?;
        if chain.before.is_some_and(|before| before.order(&header.id) != Ordering::Less) {
            return self.sound(Err(Failure::Media));
        }
        (chain.before, chain.pointer) = (Some(header.id), header.next);
        Ok(Some(header))
    }

    /// Writes a pair's entry of a list to the reply, at `at` and what is `written` already; false where it has no room.
    pub(super) async fn reply_entry<B: Bank>(
        &self,
        bank: &B,
        id: &PairId,
        (at, capacity): (u32, u32),
        written: &mut u32,
    ) -> Result<bool, Failure> {
        let length = usize::from(id.key_bytes);
        let bytes = list_entry_bytes(length);
        let place = u64::from(at) + u64::from(*written);
        if place + bytes as u64 > u64::from(capacity) {
            return Ok(false);
        }
        let mut entry = [0; LIST_ENTRY_BYTES_MAX];
        entry[..LIST_ENTRY_HEADER_BYTES].copy_from_slice(&(length as u16).to_le_bytes());
        entry[LIST_ENTRY_HEADER_BYTES..LIST_ENTRY_HEADER_BYTES + KEY_BYTES_MAX].copy_from_slice(&id.key);
        bank.reply(&entry[..bytes], place as u32).await?;
        *written += bytes as u32;
        Ok(true)
    }
}
