//! A request as its app sees it: the request record, `request_info`, the bytes of its body.
//!
//! Invariant: an app sees its own requests alone, and of them what docs/abi.md says.

use super::abi;
use super::gate::Charged;
use super::os::{Activity, Caller, LocalMemory, Machine, Origin, WildPointer};
use crate::interconnect::Key;
use crate::request::INLINE_ARGUMENT_BYTES_MAX;
use willow_gate::Receive;
use willow_gate::charge::FREE_BYTES_MAX;

// What any import costs covers the bytes of inline arguments.
const _: () = assert!(FREE_BYTES_MAX as usize == INLINE_ARGUMENT_BYTES_MAX);

/// Bytes of the request record (docs/abi.md): info, room for the response, inline arguments.
pub(crate) const RECORD_BYTES: usize = 96;
/// Where the response is in it: status, then result.
const RECORD_RESPONSE: usize = 24;
/// Where the inline arguments are in it.
const RECORD_ARGUMENTS: usize = 32;

/// Words of `request_info`.
const INFO_WORDS: usize = 6;

impl Machine {
    #[inline]
    fn info_words(&self, activity: &Activity) -> [u32; INFO_WORDS] {
        let arguments = activity.arguments.as_slice().len() as u32;
        let (source, payload, reply) = match &activity.origin {
            Origin::Host { transfer } => match self.bridge.transfers.get(*transfer) {
                Some(transfer) => (u32::MAX, transfer.payload_bytes, transfer.reply_bytes),
                None => (u32::MAX, 0, 0),
            },
            Origin::Spu(origin) => (u32::from(origin.sender.spu), origin.body.len() as u32, origin.reply.len() as u32),
            Origin::Event { .. } | Origin::Bank { .. } => (u32::MAX, 0, 0),
            Origin::Background => (activity.spu.into(), 0, 0),
        };
        [activity.originating.0, source, arguments + payload, reply, activity.handler.into(), arguments]
    }

    /// Fills the record of a request that is about to be offered to its app.
    #[inline]
    pub fn request_record(&self, token: Key, record: &mut [u8; RECORD_BYTES]) {
        let Some(activity) = self.activity_at(token) else { return };
        let info = self.info_words(activity);
        let (words, arguments) = record.split_at_mut(RECORD_ARGUMENTS);
        for (into, word) in words.as_chunks_mut().0.iter_mut().zip(info) {
            *into = word.to_le_bytes();
        }
        arguments.copy_from_slice(activity.arguments.padded());
    }

    /// `request_info`: zeroes where the caller has no such request.
    pub fn request_info<M: LocalMemory>(
        &mut self,
        caller: Caller,
        memory: &mut M,
        token: u32,
        to: u64,
    ) -> Result<i64, WildPointer> {
        let mut info = [0; 32];
        if self.activity(caller, token).is_some()
            && let Some(activity) = self.activity_at(caller.at(token))
        {
            for (into, word) in info.as_chunks_mut().0.iter_mut().zip(self.info_words(activity)) {
                *into = word.to_le_bytes();
            }
        }
        memory.slice_mut(to, info.len())?.copy_from_slice(&info);
        Ok(0)
    }

    /// `receive_bytes`, `receive_bytes_at`: bytes of the body, as many as there are.
    #[inline]
    pub fn receive<M: LocalMemory>(
        &mut self,
        caller: Caller,
        memory: &mut M,
        receive: &Receive,
        _: Charged,
    ) -> Result<i32, WildPointer> {
        let &Receive { token, offset, to, bytes } = receive;
        let key = caller.at(token);
        let Some(activity) = self.activity_at(key) else { return Ok(abi::ERROR_ARGUMENT) };
        let begin = offset.unwrap_or(activity.cursor);
        let arguments = activity.arguments.as_slice();
        let count = match arguments.get(begin as usize..begin as usize + bytes as usize) {
            Some(range) => {
                // The common case: all of it lies in the arguments.
                memory.slice_mut(to, range.len())?.copy_from_slice(range);
                bytes
            }
            None => {
                let count = u64::from(bytes).min(self.body_bytes(activity).saturating_sub(begin.into()));
                let into = memory.slice_mut(to, count as usize)?;
                // Past the end there are none.
                if count > 0 && self.copy_body(key, begin.into(), into).is_none() {
                    return Ok(abi::ERROR_RANGE);
                }
                count as u32
            }
        };
        if offset.is_none()
            && let Some(activity) = self.activity_at_mut(key)
        {
            activity.cursor += count;
        }
        Ok(count as i32)
    }
}

fn record_word(record: &[u8; RECORD_BYTES], at: usize) -> u32 {
    u32::from_le_bytes([record[at], record[at + 1], record[at + 2], record[at + 3]])
}

/// The response that an app left in its record: status, result.
#[inline]
pub(crate) fn record_response(record: &[u8; RECORD_BYTES]) -> (u32, u32) {
    (record_word(record, RECORD_RESPONSE), record_word(record, RECORD_RESPONSE + 4))
}

/// The token of the request that an app answered in its record when its `complete` returned.
#[inline]
pub(crate) fn record_answered(record: &[u8; RECORD_BYTES]) -> u32 {
    record_word(record, 0)
}
