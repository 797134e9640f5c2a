//! A request as its app sees it: the request record, `request_info`, the bytes of its body.
//!
//! Invariant: an app sees its own requests alone, and of them what docs/abi.md says.

use super::abi;
use super::meter::Fault;
use super::os::{Activity, Caller, LocalMemory, Machine, Origin};
use crate::interconnect::Key;

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

    /// What `request_info` writes: zeroes where the caller has no such request.
    pub fn request_info(&mut self, caller: Caller, token: u32) -> [u8; 32] {
        let mut info = [0; 32];
        if self.activity(caller, token).is_none() {
            return info;
        }
        let Some(activity) = self.activity_at(caller.at(token)) else { return info };
        for (into, word) in info.as_chunks_mut().0.iter_mut().zip(self.info_words(activity)) {
            *into = word.to_le_bytes();
        }
        info
    }

    /// `receive_bytes`: the next bytes of the body.
    pub fn receive_bytes<M: LocalMemory>(
        &mut self,
        caller: Caller,
        memory: &mut M,
        token: u32,
        into: (u64, u32),
    ) -> Result<i32, Fault> {
        let Some(activity) = self.activity(caller, token) else { return Ok(abi::ERROR_ARGUMENT) };
        let cursor = activity.cursor;
        let received = self.receive_bytes_at(caller, memory, token, cursor, into)?;
        if let Some(activity) = self.activity_at_mut(caller.at(token)) {
            activity.cursor += received.max(0) as u32;
        }
        Ok(received)
    }

    /// `receive_bytes_at`: bytes of the body from `offset` on, as many as there are.
    #[inline]
    pub fn receive_bytes_at<M: LocalMemory>(
        &mut self,
        caller: Caller,
        memory: &mut M,
        token: u32,
        offset: u32,
        (pointer, bytes): (u64, u32),
    ) -> Result<i32, Fault> {
        let Some(activity) = self.activity(caller, token) else { return Ok(abi::ERROR_ARGUMENT) };
        let begin = offset as usize;
        if let Some(range) = activity.arguments.as_slice().get(begin..begin + bytes as usize) {
            // The common case: all of it lies in the arguments, which are short.
            memory.slice_mut(pointer, range.len())?.copy_from_slice(range);
            return Ok(bytes as i32);
        }
        let Some(activity) = self.activity_at(caller.at(token)) else { return Ok(abi::ERROR_ARGUMENT) };
        let left = self.body_bytes(activity).saturating_sub(offset.into());
        let count = u64::from(bytes).min(left) as usize;
        self.meter.charge_bytes(count as u64)?;
        let into = memory.slice_mut(pointer, count)?;
        if self.copy_body(caller.at(token), offset.into(), into).is_none() {
            return Ok(abi::ERROR_RANGE);
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
