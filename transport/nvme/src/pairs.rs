//! Commands of key-value namespaces: those of the Key Value Command Set, and vendor commands for items, that is pairs with their version and
//! expiry (docs/key-value.md).

use key_value_host::wire::ItemHead;
use key_value_host::{Call, ItemCall, ItemCondition, ItemPut, KeyValueError, ListScan, ListStep, Placement};
use willow_device::{HostCompletion, Rpc, RpcList, RpcOutcome};
use willow_wire::spec::kv::StoreHead;
use willow_wire::spec::{Status, opcode::nvm};

use crate::backend::Backend;
use crate::buffer::HEADROOM_BYTES;
use crate::command::{Durable, Operation};
use crate::io::{NOT_READY, arguments, block_status};
use crate::subsystem::{Payload, Subsystem};
use crate::work::Work;

/// A version in a reply.
const VERSION_BYTES: u32 = 8;

fn call_rpc<const BYTES: usize>(app: u16, call: Call<BYTES>) -> Rpc {
    Rpc { app, handler: call.handler, spu: call.spu, arguments: arguments(&call.arguments) }
}

impl<B: Backend> Subsystem<B> {
    /// Does a command of a key-value namespace whose data are all there.
    #[inline]
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn pair_command(
        &mut self,
        index: u16,
        place: u16,
        (placement, found): (Placement, usize),
        nsid: u32,
        operation: Operation,
        buffer: Vec<u8>,
        bytes: u32,
    ) {
        let Some(app) = self.app_of(found) else { return self.give_up(index, place, NOT_READY, buffer) };
        let one = |call| RpcList::One(call_rpc(app, call));
        let item = |call| RpcList::One(call_rpc(app, call));
        let at = HEADROOM_BYTES as u32;
        let spus = placement.spus();
        match operation {
            Operation::Flush => {
                let many = (0..spus).map(|spu| call_rpc(app, Call::flush(nsid, spu))).collect();
                self.submit(index, place, RpcList::Many(many), buffer, 0, 0, Work::Pair);
            }
            Operation::Store { key, bytes, condition } => {
                match Call::put(&placement, nsid, &key, bytes, condition, false) {
                    Ok(call) => self.submit(index, place, one(call), buffer, bytes, 0, Work::Pair),
                    Err(error) => self.give_up(index, place, kv_status(error), buffer),
                }
            }
            Operation::Retrieve(key) => {
                let call = Call::get_at(&placement, nsid, &key, at);
                self.submit(index, place, one(call), buffer, 0, at + bytes, Work::Retrieve);
            }
            Operation::Delete(key) => {
                let call = Call::delete(&placement, nsid, &key, false);
                self.submit(index, place, one(call), buffer, 0, 0, Work::Pair);
            }
            Operation::Exist(key) => {
                let call = Call::exists(&placement, nsid, &key);
                self.submit(index, place, one(call), buffer, 0, 0, Work::Pair);
            }
            Operation::List(from) => {
                let mut buffer = buffer;
                buffer[..bytes as usize].fill(0);
                let (scan, step) = ListScan::start(placement, nsid, from.as_ref(), false, bytes as usize);
                self.list_step(index, place, scan, step, buffer, bytes);
            }
            Operation::StoreItem { key, bytes, condition, durable: Durable(durable) } => {
                let Some(head) = StoreHead::decode(&buffer) else {
                    return self.give_up(index, place, kv_status(KeyValueError::ValueSize), buffer);
                };
                let condition = match condition {
                    ItemCondition::IfVersion(_) => ItemCondition::IfVersion(head.version),
                    other => other,
                };
                let (offset, expiry, now_s) = (StoreHead::BYTES as u32, head.expiry, head.now_s);
                let put = ItemPut { value_bytes: bytes - offset, offset, condition, expiry, now_s, durable };
                match ItemCall::put_item(&placement, nsid, &key, &put) {
                    Ok(call) => {
                        self.submit(index, place, item(call), buffer, bytes, VERSION_BYTES, Work::StoreItem);
                    }
                    Err(error) => self.give_up(index, place, kv_status(error), buffer),
                }
            }
            Operation::RetrieveItem { key, now_s } => {
                let call = ItemCall::get_item(&placement, nsid, &key, now_s, 0, at + ItemHead::BYTES as u32);
                self.submit(index, place, item(call), buffer, 0, at + bytes, Work::RetrieveItem);
            }
            Operation::DeleteItem { key, version, now_s, durable } => {
                let call = ItemCall::delete_item(&placement, nsid, &key, version, now_s, durable.0);
                self.submit(index, place, item(call), buffer, 0, 0, Work::Item);
            }
            Operation::Touch { key, expiry, now_s, durable } => {
                let call = ItemCall::touch(&placement, nsid, &key, expiry, now_s, durable.0);
                self.submit(index, place, item(call), buffer, 0, 0, Work::Item);
            }
            Operation::Sweep { spu, .. } if spu >= spus => {
                self.give_up(index, place, Status::INVALID_FIELD.with_do_not_retry(), buffer);
            }
            Operation::Sweep { spu, from, now_s } => {
                self.submit(index, place, item(ItemCall::sweep(nsid, spu, from, now_s)), buffer, 0, 0, Work::Item);
            }
            Operation::Clear => {
                let many = (0..spus).map(|spu| call_rpc(app, ItemCall::clear(nsid, spu))).collect();
                self.submit(index, place, RpcList::Many(many), buffer, 0, 0, Work::Pair);
            }
            _ => unreachable!("parsed for other namespaces, or handled before"),
        }
    }

    /// The app that serves the namespace of a slot's command.
    fn app_of_slot(&mut self, index: u16, place: u16) -> Option<u16> {
        let nsid = self.queues[usize::from(index)].as_ref()?.slots[usize::from(place)].nsid;
        let found = self.find(nsid)?;
        self.app_of(found)
    }

    fn list_step(&mut self, index: u16, place: u16, scan: ListScan, step: ListStep, mut buffer: Vec<u8>, bytes: u32) {
        match step {
            ListStep::Call(call) => match self.app_of_slot(index, place) {
                Some(app) => {
                    let rpcs = RpcList::One(call_rpc(app, call));
                    self.submit(index, place, rpcs, buffer, 0, bytes, Work::List(Box::new(scan)));
                }
                None => self.give_up(index, place, NOT_READY, buffer),
            },
            ListStep::Done { .. } => {
                let listed = scan.finish(&mut buffer[..bytes as usize]);
                self.complete(index, place, Status::SUCCESS, 0, Some(Payload { buffer, start: 0, bytes: listed }));
            }
        }
    }

    /// Takes the app's answer to such a command.
    #[inline]
    pub(crate) fn pair_answered(&mut self, index: u16, place: u16, work: Work, completion: HostCompletion, bytes: u32) {
        let status = pair_status(completion.outcome);
        if !status.is_success() {
            return self.give_up(index, place, status, completion.buffer);
        }
        let result = u64::from(completion.result);
        match work {
            Work::Retrieve => {
                let written = completion.reply_bytes.saturating_sub(HEADROOM_BYTES as u32);
                let sent = completion.result.min(bytes).min(written);
                self.value_to_host(index, place, completion.buffer, sent, result);
            }
            Work::RetrieveItem => {
                let written = completion.reply_bytes.saturating_sub(HEADROOM_BYTES as u32);
                let whole = completion.result.saturating_add(ItemHead::BYTES as u32);
                // The head is written last, in front of what came before.
                if written < ItemHead::BYTES as u32 {
                    tracing::error!(written, "key-value answered without a head");
                    return self.give_up(index, place, Status::INTERNAL_ERROR, completion.buffer);
                }
                self.value_to_host(index, place, completion.buffer, whole.min(bytes).min(written), result);
            }
            Work::StoreItem => {
                let version = completion.buffer.first_chunk::<8>().map_or(0, |bytes| u64::from_le_bytes(*bytes));
                let version = if completion.reply_bytes >= VERSION_BYTES { version } else { 0 };
                self.give(index, completion.buffer);
                self.complete(index, place, Status::SUCCESS, version, None);
            }
            Work::Item => {
                self.give(index, completion.buffer);
                self.complete(index, place, Status::SUCCESS, result, None);
            }
            Work::List(mut scan) => {
                let step = scan.answered(completion.result);
                self.list_step(index, place, *scan, step, completion.buffer, bytes);
            }
            _ => self.give_up(index, place, status, completion.buffer),
        }
    }

    fn value_to_host(&mut self, index: u16, place: u16, buffer: Vec<u8>, sent: u32, result: u64) {
        if let Some(slot) = self.slot_mut(index, place) {
            slot.bytes = sent;
        }
        let payload = Payload { buffer, start: HEADROOM_BYTES, bytes: sent as usize };
        let payload = self.or_nothing(index, payload);
        self.complete(index, place, Status::SUCCESS, result, payload);
    }
}

/// Status of a key-value command.
pub(crate) fn pair_status(outcome: RpcOutcome) -> Status {
    match outcome {
        RpcOutcome::Answered { status } => match KeyValueError::from_status(status) {
            Ok(()) => Status::SUCCESS,
            Err(error) => kv_status(error),
        },
        // What SPU-OS itself says means the same as for blocks.
        other => block_status(other, nvm::READ),
    }
}

/// What Key-Value's errors are to a host (KV 3.1).
fn kv_status(error: KeyValueError) -> Status {
    let status = match error {
        KeyValueError::NotFound => Status::KV_KEY_NOT_FOUND,
        KeyValueError::Exists => Status::KV_KEY_EXISTS,
        KeyValueError::Capacity | KeyValueError::TooSmall => Status::CAPACITY_EXCEEDED,
        KeyValueError::Media => Status::KV_UNRECOVERED_ERROR,
        KeyValueError::KeySize => Status::KV_INVALID_KEY_SIZE,
        KeyValueError::ValueSize => Status::KV_INVALID_VALUE_SIZE,
        KeyValueError::NoNamespace => Status::INVALID_NAMESPACE,
        KeyValueError::Permission => Status::ACCESS_DENIED,
        KeyValueError::Changed => Status::COMPARE_FAILURE,
        // Without "do not retry": a host sends it again.
        KeyValueError::Busy => return Status::COMMAND_INTERRUPTED,
        KeyValueError::Malformed | KeyValueError::Format | KeyValueError::Room | KeyValueError::Unknown(_) => {
            Status::INTERNAL_ERROR
        }
    };
    status.with_do_not_retry()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_without_a_place_has_the_host_send_a_pair_again() {
        let busy = kv_status(KeyValueError::Busy);
        assert!(busy.is(Status::COMMAND_INTERRUPTED) && !busy.do_not_retry());
        assert!(kv_status(KeyValueError::Media).do_not_retry());
    }
}
