//! Commands of namespaces as RPCs to the apps that serve them: what an endpoint does by itself when no NVMe subsystem stands
//! between it and the device. Endpoints of this kind differ in how they send RPCs ([`Direct`]) and in nothing else.
//!
//! What always holds: ranges are checked against the namespace before anything is sent; where a namespace lies is asked of the
//! device for each command, so that one that was deleted is not written to.

use crate::hre::{
    BlockCommand, HreError, KvCommand, KvReply, Namespace as HostNamespace, RpcCall, RpcReply, StoreCondition,
};
use crate::nvme_tcp::NamespaceKind;
use base_io_host::Geometry;
use base_io_host::wire as base_io;
use key_value_host::{Call as PairCall, Key as PairKey, KeyValueError, ListScan, ListStep, Placement, PutCondition};
use std::future::Future;
use std::sync::Arc;
use willow_shm::layout::{ARGUMENT_BYTES_MAX, Call};
use willow_shm::message::{NamespaceView, View};
use willow_wire::spec::kv::{KEY_BYTES_MAX, Key};

/// What came of RPCs.
pub(crate) struct Sent {
    /// First status that is no success, or 0.
    pub status: u32,
    /// Results, or-ed.
    pub result: u32,
    /// The buffer.
    pub buffer: Vec<u8>,
    /// One past the last byte of the reply.
    pub written: u32,
}

/// An endpoint that sends RPCs straight to the device.
pub(crate) trait Direct: Send + Sync {
    /// What the device is like now.
    fn view(&self) -> impl Future<Output = Result<Arc<View>, HreError>> + Send;
    /// Sends RPCs over one buffer, as payload (`out`) or to be filled; no RPC is done at once. An outcome other than an answer
    /// is an error; `target` (app, handler, SPU) is for its sentence.
    fn send(
        &self,
        target: (u16, u8, Option<u16>),
        rpcs: Vec<Call>,
        buffer: Vec<u8>,
        out: bool,
    ) -> impl Future<Output = Result<Sent, HreError>> + Send;
}

fn part(app: u16, handler: u8, spu: u16, arguments: &[u8]) -> Result<Call, HreError> {
    Call::new(app, handler, spu, arguments).ok_or_else(|| {
        HreError::Argument(format!("{} bytes of arguments, at most {ARGUMENT_BYTES_MAX}", arguments.len()))
    })
}

fn kv_error(error: KeyValueError) -> HreError {
    match error {
        KeyValueError::NotFound => HreError::KeyNotFound,
        KeyValueError::Exists => HreError::KeyExists,
        KeyValueError::Capacity => HreError::Full,
        KeyValueError::Media => HreError::Media,
        KeyValueError::KeySize => HreError::KeySize,
        KeyValueError::Permission => HreError::NotPermitted,
        other => HreError::Answer(other.to_string()),
    }
}

pub(crate) fn block_error(status: u32) -> HreError {
    match status {
        base_io::STATUS_COMPARE_FAILED => HreError::CompareFailed,
        base_io::STATUS_MEDIA_ERROR => HreError::Media,
        base_io::STATUS_FULL => HreError::Full,
        base_io::STATUS_RANGE => HreError::OutOfRange,
        base_io::STATUS_PERMISSION => HreError::NotPermitted,
        base_io::STATUS_BUSY => HreError::Refused,
        other => HreError::Answer(format!("Base-IO answered with status {other}")),
    }
}

fn pair_key(key: Key) -> Result<PairKey, HreError> {
    PairKey::new(key.as_slice()).map_err(kv_error)
}

async fn kv_call(device: &impl Direct, app: u16, call: PairCall, buffer: Vec<u8>, out: bool) -> Result<Sent, HreError> {
    let rpc = part(app, call.handler, call.spu, &call.arguments)?;
    let sent = device.send((app, call.handler, Some(call.spu)), vec![rpc], buffer, out).await?;
    KeyValueError::from_status(sent.status).map_err(kv_error)?;
    Ok(sent)
}

/// See [`crate::Hre::rpc`].
pub(crate) async fn rpc(device: &impl Direct, call: RpcCall) -> Result<RpcReply, HreError> {
    if call.reply_bytes_max > 0 && !call.payload.is_empty() {
        return Err(HreError::Argument("an RPC has a payload or a reply, not both".to_owned()));
    }
    // Inline arguments are at most 64 bytes; the body is theirs and the payload's, so that more may go there.
    let inline = call.arguments.len() <= ARGUMENT_BYTES_MAX;
    let (inline, payload) = match (inline, call.reply_bytes_max) {
        (true, _) => (call.arguments, call.payload),
        (false, 0) => (Vec::new(), [call.arguments, call.payload].concat()),
        (false, _) => return Err(HreError::Argument("more than 64 bytes of arguments beside a reply".to_owned())),
    };
    let rpc = part(call.app, call.handler, call.spu.unwrap_or(0), &inline)?;
    let out = call.reply_bytes_max == 0;
    let buffer = if out { payload } else { vec![0; call.reply_bytes_max as usize] };
    let mut sent = device.send((call.app, call.handler, call.spu), vec![rpc], buffer, out).await?;
    sent.buffer.truncate(if out { 0 } else { sent.written as usize });
    Ok(RpcReply { status: sent.status, result: sent.result, data: sent.buffer })
}

/// See [`crate::Hre::namespaces`].
pub(crate) async fn namespaces(device: &impl Direct) -> Result<Vec<HostNamespace>, HreError> {
    let view = device.view().await?;
    let kind = |namespace: &NamespaceView| match namespace.key_value {
        false => NamespaceKind::Block {
            block_bytes: namespace.block_bytes,
            blocks: namespace.size_bytes / u64::from(namespace.block_bytes.max(1)),
        },
        true => NamespaceKind::Kv {
            bytes: namespace.size_bytes,
            key_bytes_max: KEY_BYTES_MAX as u16,
            value_bytes_max: key_value_host::wire::VALUE_BYTES_MAX,
        },
    };
    let of = |namespace: &NamespaceView| HostNamespace { nsid: namespace.nsid, kind: kind(namespace) };
    Ok(view.namespaces.iter().map(of).collect())
}

/// Where a block namespace lies, for [`Geometry::range`].
pub(crate) fn geometry(view: &View, namespace: &NamespaceView) -> Geometry {
    Geometry { spus: view.spus.max(1), stripe_bytes: view.stripe_bytes, base: namespace.base }
}

/// See [`crate::Hre::block`].
pub(crate) async fn block(
    device: &impl Direct,
    nsid: u32,
    command: BlockCommand,
    buffer: Vec<u8>,
) -> Result<Vec<u8>, HreError> {
    let view = device.view().await?;
    let namespace = find(&view, nsid, false, "no block namespace")?;
    let app = view.base_io.ok_or_else(|| HreError::Argument("app base-io is not installed".to_owned()))?;
    let geometry = geometry(&view, &namespace);
    let block = u64::from(namespace.block_bytes);
    let data = (buffer.len() as u64).div_ceil(block.max(1));
    if !matches!(command, BlockCommand::Flush) && data * block != buffer.len() as u64 {
        return Err(HreError::Argument(format!("{} bytes are no whole blocks", buffer.len())));
    }
    use base_io::handler;
    let deallocate = base_io::FLAG_DEALLOCATE;
    let (handler, flags, ranges) = match &command {
        BlockCommand::Read { lba } => (handler::READ, 0, vec![(*lba, data)]),
        BlockCommand::Write { lba, fua } => {
            (handler::WRITE, if *fua { base_io::FLAG_FUA } else { 0 }, vec![(*lba, data)])
        }
        BlockCommand::Compare { lba } => (handler::COMPARE, 0, vec![(*lba, data)]),
        BlockCommand::Flush => (handler::FLUSH, 0, vec![]),
        BlockCommand::WriteZeroes { lba, blocks, deallocate: give_back } => {
            (handler::ZERO, if *give_back { deallocate } else { 0 }, vec![(*lba, u64::from(*blocks))])
        }
        BlockCommand::Verify { lba, blocks } => (handler::VERIFY, 0, vec![(*lba, u64::from(*blocks))]),
        BlockCommand::Deallocate(ranges) => {
            let ranges = ranges.iter().map(|(lba, blocks)| (*lba, u64::from(*blocks))).collect();
            (handler::ZERO, deallocate, ranges)
        }
    };
    let mut rpcs = Vec::new();
    let mut add = |request: base_io_host::SpuRequest| {
        rpcs.extend(Call::new(app, request.handler, request.spu, &request.arguments.encode()));
    };
    if handler == handler::FLUSH {
        geometry.flush(&mut add);
    }
    for (lba, blocks) in ranges {
        let in_range = lba.checked_add(blocks).is_some_and(|end| end <= namespace.size_bytes / block);
        if !in_range {
            return Err(HreError::OutOfRange);
        }
        geometry.range(handler, lba * block, blocks * block, 0, flags, &mut add);
    }
    let out = !matches!(command, BlockCommand::Read { .. });
    let sent = device.send((app, handler, None), rpcs, buffer, out).await?;
    if sent.status == 0 { Ok(sent.buffer) } else { Err(block_error(sent.status)) }
}

/// See [`crate::Hre::kv`].
pub(crate) async fn kv(
    device: &impl Direct,
    nsid: u32,
    command: KvCommand,
    buffer: Vec<u8>,
) -> Result<KvReply, HreError> {
    let view = device.view().await?;
    let namespace = find(&view, nsid, true, "no key-value namespace")?;
    let app = view.key_value.ok_or_else(|| HreError::Argument("app key-value is not installed".to_owned()))?;
    let placement = Placement::new(namespace.nguid, view.spus);
    let bytes = buffer.len();
    let reply = |answer: Sent| KvReply { result: answer.result, data: Vec::new() };
    match command {
        KvCommand::Store(key, condition) => {
            let condition = match condition {
                StoreCondition::Always => PutCondition::Always,
                StoreCondition::MustExist => PutCondition::IfExists,
                StoreCondition::MustNotExist => PutCondition::IfAbsent,
            };
            let call =
                PairCall::put(&placement, nsid, &pair_key(key)?, bytes as u32, condition, false).map_err(|_| {
                    HreError::ValueSize {
                        bytes: bytes as u64,
                        bytes_max: u64::from(key_value_host::wire::VALUE_BYTES_MAX),
                    }
                })?;
            kv_call(device, app, call, buffer, true).await.map(reply)
        }
        KvCommand::Retrieve(key) => {
            let call = PairCall::get(&placement, nsid, &pair_key(key)?, 0);
            let answer = kv_call(device, app, call, buffer, false).await?;
            let mut data = answer.buffer;
            data.truncate((answer.result as usize).min(answer.written as usize));
            Ok(KvReply { result: answer.result, data })
        }
        KvCommand::Delete(key) => {
            let call = PairCall::delete(&placement, nsid, &pair_key(key)?, false);
            kv_call(device, app, call, buffer, true).await.map(reply)
        }
        KvCommand::Exist(key) => {
            let call = PairCall::exists(&placement, nsid, &pair_key(key)?);
            kv_call(device, app, call, buffer, true).await.map(reply)
        }
        KvCommand::List(key) => {
            let from = if key == Key::EMPTY { None } else { Some(pair_key(key)?) };
            let (mut scan, mut step) = ListScan::start(placement, nsid, from.as_ref(), false, bytes);
            let mut data = buffer;
            while let ListStep::Call(call) = step {
                let answer = kv_call(device, app, call, data, false).await?;
                data = answer.buffer;
                step = scan.answered(answer.result);
            }
            let written = scan.finish(&mut data);
            data.truncate(written);
            Ok(KvReply { result: 0, data })
        }
        KvCommand::Flush => {
            let mut rpcs = Vec::new();
            for spu in 0..view.spus {
                let call = PairCall::flush(nsid, spu);
                rpcs.push(part(app, call.handler, spu, &call.arguments)?);
            }
            let handler = key_value_host::wire::handler::FLUSH;
            let sent = device.send((app, handler, None), rpcs, Vec::new(), true).await?;
            KeyValueError::from_status(sent.status).map_err(kv_error)?;
            Ok(KvReply { result: sent.result, data: Vec::new() })
        }
    }
}

fn find(view: &View, nsid: u32, key_value: bool, problem: &'static str) -> Result<NamespaceView, HreError> {
    match view.namespaces.iter().find(|namespace| namespace.nsid == nsid) {
        Some(namespace) if namespace.key_value == key_value => Ok(namespace.clone()),
        Some(_) => Err(HreError::Namespace { nsid, problem }),
        None => Err(HreError::Namespace { nsid, problem: "not there" }),
    }
}
