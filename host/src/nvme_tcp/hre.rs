//! An endpoint over NVMe/TCP: one I/O queue of a [`Controller`]. RPCs go through the tunnel (opcodes 81h, 82h, 86h), block and
//! key-value commands as themselves. The tunnel needs no namespace, so that a device without any can be managed.

use super::identity::TRANSFER_BYTES_MAX;
use super::queue::{Completed, Transfer};
use super::{Controller, NvmeError, Via};
use crate::hre::{
    BlockCommand, BoxFuture, Hre, HreError, ItemCondition, ItemStore, ItemTerms, KvCommand, KvReply, Namespace,
    RpcCall, RpcReply, StoreCondition, Upcall,
};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use willow_wire::bytes::{put_u32, put_u64};
use willow_wire::control;
use willow_wire::spec::identify::NSID_ALL;
use willow_wire::spec::opcode::{kv as kv_opcode, nvm};
use willow_wire::spec::{Status, SubmissionEntry, kv, tunnel};

/// Room for an upcall's head and body.
const UPCALL_BYTES_MAX: usize = 64 << 10;
/// Most ranges of one Dataset Management command.
const RANGES_MAX: usize = 256;

/// An endpoint on one I/O queue.
#[derive(Debug)]
pub struct NvmeHre {
    controller: Controller,
    queue: usize,
    transfer_bytes_max: AtomicU64,
}

impl NvmeHre {
    /// The endpoint of I/O queue `queue` (modulo how many there are).
    pub async fn new(controller: Controller, queue: usize) -> Result<Self, HreError> {
        let ready = controller.ready().await?;
        Ok(NvmeHre { controller, queue, transfer_bytes_max: AtomicU64::new(ready.identity.transfer_bytes_max) })
    }

    /// The controller.
    pub fn controller(&self) -> &Controller {
        &self.controller
    }

    fn via(&self) -> Via {
        Via::Queue(self.queue)
    }

    async fn tunnel(
        &self,
        what: &'static str,
        entry: SubmissionEntry,
        transfer: Transfer,
        limit: Duration,
    ) -> Result<Completed, NvmeError> {
        self.controller.execute_within(self.via(), what, entry, transfer, false, limit).await
    }

    fn check_bytes(&self, bytes: usize) -> Result<(), HreError> {
        let bytes_max = self.transfer_bytes_max();
        if bytes as u64 > bytes_max {
            return Err(HreError::Argument(format!("{bytes} bytes are more than the {bytes_max} of one command")));
        }
        Ok(())
    }
}

pub(crate) fn rpc_error(call: (u16, u8, Option<u16>), error: NvmeError) -> HreError {
    let (app, handler, spu) = call;
    use tunnel::status as at;
    match error.status() {
        Some(status) if status.is(at::NO_APP) => HreError::NoApp(app),
        Some(status) if status.is(at::NO_HANDLER) => HreError::NoHandler { app, handler },
        Some(status) if status.is(at::NO_SPU) => HreError::NoSpu(spu),
        Some(status) if status.is(at::REFUSED) => HreError::Refused,
        Some(status) if status.is(at::APP_ENDED) => HreError::AppEnded,
        Some(status) if status.is(at::NOT_PERMITTED) => HreError::NotPermitted,
        Some(status) if status.is(Status::ABORT_REQUESTED) => HreError::Aborted,
        _ => error.into(),
    }
}

fn data_error(nsid: u32, bytes: usize, bytes_max: u64, error: NvmeError) -> HreError {
    match error.status() {
        Some(status) if status.is(Status::COMPARE_FAILURE) => HreError::CompareFailed,
        Some(status) if status.is(Status::LBA_OUT_OF_RANGE) => HreError::OutOfRange,
        Some(status) if status.is(Status::CAPACITY_EXCEEDED) => HreError::Full,
        Some(status) if status.is(Status::INVALID_NAMESPACE) => {
            HreError::Namespace { nsid, problem: "not there, or of another kind" }
        }
        Some(status) if status.is(Status::WRITE_FAULT) || status.is(Status::UNRECOVERED_READ_ERROR) => HreError::Media,
        Some(status) if status.is(Status::KV_KEY_NOT_FOUND) => HreError::KeyNotFound,
        Some(status) if status.is(Status::KV_KEY_EXISTS) => HreError::KeyExists,
        Some(status) if status.is(Status::KV_INVALID_KEY_SIZE) => HreError::KeySize,
        Some(status) if status.is(Status::KV_UNRECOVERED_ERROR) => HreError::Media,
        Some(status) if status.is(Status::KV_INVALID_VALUE_SIZE) => {
            HreError::ValueSize { bytes: bytes as u64, bytes_max }
        }
        _ => error.into(),
    }
}

impl Hre for NvmeHre {
    fn rpc(&self, call: RpcCall) -> BoxFuture<'_, Result<RpcReply, HreError>> {
        Box::pin(async move {
            let target = (call.app, call.handler, call.spu);
            let reply_bytes = call.reply_bytes_max as usize;
            let opcode = if reply_bytes > 0 { tunnel::CALL } else { tunnel::SEND };
            let mut entry = SubmissionEntry::new(opcode)
                .with_nsid(NSID_ALL)
                .with_cdw(10, tunnel::target(call.app, call.handler))
                .with_cdw(11, call.spu.map_or(tunnel::SPU_ANY, u32::from));
            let transfer = if reply_bytes > 0 {
                if !call.payload.is_empty() {
                    return Err(HreError::Argument(
                        "an RPC over NVMe has a payload or a reply, not both: one command moves data one way"
                            .to_owned(),
                    ));
                }
                tunnel::put_call_arguments(&mut entry, &call.arguments).ok_or_else(|| {
                    let bytes = call.arguments.len();
                    HreError::Argument(format!("{bytes} bytes of arguments beside a reply, at most 24 go over NVMe"))
                })?;
                self.check_bytes(reply_bytes)?;
                Transfer::FromController(vec![0; reply_bytes])
            } else {
                let mut body = call.arguments;
                if body.is_empty() {
                    body = call.payload;
                } else {
                    body.extend_from_slice(&call.payload);
                }
                self.check_bytes(body.len())?;
                if body.is_empty() { Transfer::None } else { Transfer::ToController(body) }
            };
            let limit = self.controller.options().command_timeout;
            let done = self.tunnel("RPC", entry, transfer, limit).await;
            let done =
                done.and_then(|done| super::bringup::check("RPC", done)).map_err(|error| rpc_error(target, error))?;
            let (status, result) = tunnel::split_result(done.entry.result);
            let mut data = if reply_bytes > 0 { done.buffer } else { Vec::new() };
            data.truncate(done.received_bytes as usize);
            Ok(RpcReply { status, result, data })
        })
    }

    fn receive_upcall(&self, wait: Duration) -> BoxFuture<'_, Result<Option<Upcall>, HreError>> {
        Box::pin(async move {
            let wait_ms = wait.as_millis().min(u128::from(tunnel::RECEIVE_WAIT_MS_MAX)) as u32;
            let entry = SubmissionEntry::new(tunnel::RECEIVE).with_nsid(NSID_ALL).with_cdw(12, wait_ms);
            let limit = Duration::from_millis(u64::from(wait_ms)) + self.controller.options().command_timeout;
            let transfer = Transfer::FromController(vec![0; UPCALL_BYTES_MAX]);
            let done = self.tunnel("Receive", entry, transfer, limit).await?;
            let done = super::bringup::check("Receive", done)?;
            let bytes = done.entry.result as usize;
            if bytes == 0 {
                return Ok(None);
            }
            let senseless = || HreError::Answer(format!("an upcall of {bytes} bytes"));
            let data = done.buffer.get(..bytes.min(done.received_bytes as usize)).ok_or_else(senseless)?;
            let head = tunnel::UpcallHead::from_bytes(data).ok_or_else(senseless)?;
            let body = data
                .get(tunnel::UPCALL_HEAD_BYTES..)
                .and_then(|body| body.get(..head.body_bytes as usize))
                .ok_or_else(senseless)?;
            Ok(Some(Upcall { id: head.id, app: head.app, handler: head.handler, spu: head.spu, body: body.to_vec() }))
        })
    }

    fn answer_upcall(&self, id: u64, status: u32, result: u32) -> BoxFuture<'_, Result<(), HreError>> {
        Box::pin(async move {
            let mut payload = vec![0; 16];
            put_u64(&mut payload, 0, id);
            put_u32(&mut payload, 8, status);
            put_u32(&mut payload, 12, result);
            let call =
                RpcCall { app: control::CONTROL_APP, handler: control::ANSWER_UPCALL, payload, ..RpcCall::default() };
            match self.rpc(call).await?.status {
                0 => Ok(()),
                status => Err(HreError::Control { status, text: format!("no upcall {id} waits for an answer here") }),
            }
        })
    }

    fn namespaces(&self) -> BoxFuture<'_, Result<Vec<Namespace>, HreError>> {
        Box::pin(async move {
            let found = self.controller.namespaces().await?;
            Ok(found.into_iter().map(|found| Namespace { nsid: found.nsid, kind: found.kind }).collect())
        })
    }

    fn transfer_bytes_max(&self) -> u64 {
        self.transfer_bytes_max.load(Ordering::Relaxed).min(TRANSFER_BYTES_MAX)
    }

    fn block(
        &self,
        nsid: u32,
        block_bytes: u32,
        command: BlockCommand,
        mut buffer: Vec<u8>,
    ) -> BoxFuture<'_, Result<Vec<u8>, HreError>> {
        Box::pin(async move {
            self.check_bytes(buffer.len())?;
            let bytes = buffer.len();
            let (what, entry, out) = block_entry(nsid, block_bytes, &command, &mut buffer)?;
            let transfer = match out {
                _ if buffer.is_empty() => Transfer::None,
                true => Transfer::ToController(buffer),
                false => Transfer::FromController(buffer),
            };
            let done = self.controller.command(self.via(), what, entry, transfer, true).await;
            let done = done.map_err(|error| data_error(nsid, bytes, self.transfer_bytes_max(), error))?;
            if matches!(command, BlockCommand::Read { .. }) && done.received_bytes as usize != bytes {
                return Err(HreError::Answer(format!("a read of {bytes} bytes brought {}", done.received_bytes)));
            }
            Ok(done.buffer)
        })
    }

    fn kv(&self, nsid: u32, command: KvCommand, mut buffer: Vec<u8>) -> BoxFuture<'_, Result<KvReply, HreError>> {
        Box::pin(async move {
            let bytes = buffer.len();
            let bytes_max = self.transfer_bytes_max();
            if bytes as u64 > bytes_max {
                return Err(HreError::ValueSize { bytes: bytes as u64, bytes_max });
            }
            let (what, entry, out) = kv_entry(nsid, &command, &mut buffer);
            let transfer = match out {
                _ if buffer.is_empty() => Transfer::None,
                true => Transfer::ToController(buffer),
                false => Transfer::FromController(buffer),
            };
            // A conditional store or a delete that is done twice fails the second time.
            let idempotent = match &command {
                KvCommand::Store(_, condition) => *condition == StoreCondition::Always,
                KvCommand::StoreItem(_, store) => store.condition == ItemCondition::Always,
                KvCommand::Delete(_) | KvCommand::DeleteItem(..) => false,
                _ => true,
            };
            let done = self.controller.command(self.via(), what, entry, transfer, idempotent).await;
            let done = done.map_err(|error| match data_error(nsid, bytes, bytes_max, error) {
                HreError::CompareFailed => HreError::Changed,
                error => error,
            })?;
            let mut data = done.buffer;
            data.truncate(done.received_bytes as usize);
            let mut reply = KvReply { result: done.entry.result as u32, ..KvReply::default() };
            match command {
                KvCommand::StoreItem(..) => reply.version = done.entry.result,
                KvCommand::RetrieveItem(..) => {
                    let head = kv::ItemHead::decode(&data);
                    let head = head.ok_or_else(|| HreError::Answer("an item without a head".to_owned()))?;
                    data.drain(..kv::ItemHead::BYTES);
                    (reply.data, reply.version, reply.expiry) = (data, head.version, head.expiry);
                }
                _ => reply.data = data,
            }
            Ok(reply)
        })
    }
}

/// (name, entry, data go to the controller) of a block command; ranges to deallocate are put into the buffer.
pub fn block_entry(
    nsid: u32,
    block_bytes: u32,
    command: &BlockCommand,
    buffer: &mut Vec<u8>,
) -> Result<(&'static str, SubmissionEntry, bool), HreError> {
    let bytes = buffer.len();
    let of_buffer = || -> Result<u32, HreError> {
        if bytes == 0 || !bytes.is_multiple_of(block_bytes as usize) || bytes / block_bytes as usize > 65536 {
            return Err(HreError::Argument(format!(
                "{bytes} bytes are not 1 to 65536 whole blocks of {block_bytes} bytes"
            )));
        }
        Ok((bytes / block_bytes as usize - 1) as u32)
    };
    let count = |blocks: u32| -> Result<u32, HreError> {
        if blocks == 0 || blocks > 65536 {
            return Err(HreError::Argument(format!("{blocks} blocks, must be 1 to 65536")));
        }
        Ok(blocks - 1)
    };
    let entry = |opcode| SubmissionEntry::new(opcode).with_nsid(nsid);
    Ok(match command {
        BlockCommand::Read { lba } => ("Read", entry(nvm::READ).with_lba(*lba).with_cdw(12, of_buffer()?), false),
        BlockCommand::Write { lba, fua } => {
            let fua = if *fua { nvm::CDW12_FUA } else { 0 };
            ("Write", entry(nvm::WRITE).with_lba(*lba).with_cdw(12, of_buffer()? | fua), true)
        }
        BlockCommand::Compare { lba } => {
            ("Compare", entry(nvm::COMPARE).with_lba(*lba).with_cdw(12, of_buffer()?), true)
        }
        BlockCommand::Flush => {
            buffer.clear();
            ("Flush", entry(nvm::FLUSH), false)
        }
        BlockCommand::WriteZeroes { lba, blocks, deallocate } => {
            buffer.clear();
            let deallocate = if *deallocate { nvm::CDW12_DEALLOCATE } else { 0 };
            let entry = entry(nvm::WRITE_ZEROES).with_lba(*lba).with_cdw(12, count(*blocks)? | deallocate);
            ("Write Zeroes", entry, false)
        }
        BlockCommand::Verify { lba, blocks } => {
            buffer.clear();
            ("Verify", entry(nvm::VERIFY).with_lba(*lba).with_cdw(12, count(*blocks)?), false)
        }
        BlockCommand::Deallocate(ranges) => {
            if ranges.is_empty() || ranges.len() > RANGES_MAX {
                return Err(HreError::Argument(format!("{} ranges, must be 1 to {RANGES_MAX}", ranges.len())));
            }
            buffer.clear();
            buffer.resize(ranges.len() * nvm::DSM_RANGE_BYTES, 0);
            for (place, (lba, blocks)) in buffer.chunks_exact_mut(nvm::DSM_RANGE_BYTES).zip(ranges) {
                put_u32(place, 4, *blocks);
                put_u64(place, 8, *lba);
            }
            let entry =
                entry(nvm::DATASET_MANAGEMENT).with_cdw(10, ranges.len() as u32 - 1).with_cdw(11, nvm::DSM_DEALLOCATE);
            ("Dataset Management", entry, true)
        }
    })
}

/// (name, entry, data go to the controller) of a key-value command with its buffer; that of an item that is stored gets its head.
pub fn kv_entry(nsid: u32, command: &KvCommand, buffer: &mut [u8]) -> (&'static str, SubmissionEntry, bool) {
    let bytes = buffer.len();
    let durable = |terms: &ItemTerms| if terms.durable { kv::DURABLE } else { 0 };
    let entry = |opcode, key: &kv::Key, options: u32| {
        let mut entry = SubmissionEntry::new(opcode).with_nsid(nsid).with_cdw(10, bytes as u32).with_cdw(11, options);
        key.put(&mut entry);
        entry
    };
    match command {
        KvCommand::Store(key, condition) => {
            let options = match condition {
                StoreCondition::Always => 0,
                StoreCondition::MustExist => kv::STORE_MUST_EXIST,
                StoreCondition::MustNotExist => kv::STORE_MUST_NOT_EXIST,
            };
            ("Store", entry(kv_opcode::STORE, key, options), true)
        }
        KvCommand::Retrieve(key) => ("Retrieve", entry(kv_opcode::RETRIEVE, key, 0), false),
        KvCommand::Delete(key) => ("Delete", entry(kv_opcode::DELETE, key, 0), false),
        KvCommand::Exist(key) => ("Exist", entry(kv_opcode::EXIST, key, 0), false),
        KvCommand::List(key) => ("List", entry(kv_opcode::LIST, key, 0), false),
        KvCommand::Flush => ("Flush", SubmissionEntry::new(kv_opcode::FLUSH).with_nsid(nsid), false),
        KvCommand::StoreItem(key, ItemStore { condition, terms }) => {
            let (condition, version) = match condition {
                ItemCondition::Always => (0, 0),
                ItemCondition::IfExists => (kv::STORE_MUST_EXIST, 0),
                ItemCondition::IfAbsent => (kv::STORE_MUST_NOT_EXIST, 0),
                ItemCondition::IfVersion(version) => (kv::IF_VERSION, *version),
            };
            let head = kv::StoreHead { version, expiry: terms.expiry, now_s: terms.now_s };
            debug_assert!(bytes >= kv::StoreHead::BYTES, "room for the head");
            if let Some(place) = buffer.first_chunk_mut::<{ kv::StoreHead::BYTES }>() {
                *place = head.encode();
            }
            ("Store Item", entry(kv_opcode::STORE_ITEM, key, condition | durable(terms)), true)
        }
        KvCommand::RetrieveItem(key, now_s) => {
            ("Retrieve Item", entry(kv_opcode::RETRIEVE_ITEM, key, 0).with_cdw(12, *now_s), false)
        }
        KvCommand::DeleteItem(key, version, terms) => {
            let condition = if version.is_some() { kv::IF_VERSION } else { 0 };
            let version = version.unwrap_or(0);
            let entry = entry(kv_opcode::DELETE_ITEM, key, condition | durable(terms))
                .with_cdw(10, version as u32)
                .with_cdw(12, terms.now_s)
                .with_cdw(13, (version >> 32) as u32);
            ("Delete Item", entry, false)
        }
        KvCommand::Touch(key, terms) => {
            let entry =
                entry(kv_opcode::TOUCH, key, durable(terms)).with_cdw(12, terms.now_s).with_cdw(13, terms.expiry);
            ("Touch", entry, false)
        }
        KvCommand::Sweep { spu, from, now_s } => {
            let entry = SubmissionEntry::new(kv_opcode::SWEEP).with_nsid(nsid).with_cdw(10, *from);
            ("Sweep", entry.with_cdw(12, *now_s).with_cdw(13, u32::from(*spu)), false)
        }
        KvCommand::Clear => ("Clear", SubmissionEntry::new(kv_opcode::CLEAR).with_nsid(nsid), false),
    }
}
