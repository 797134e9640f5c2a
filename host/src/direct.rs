//! Commands of namespaces as RPCs to the apps that serve them: what an endpoint does by itself when no NVMe subsystem stands
//! between it and the device. Endpoints of this kind differ in how they send RPCs ([`Direct`]) and in nothing else.
//!
//! What always holds: ranges are checked against the namespace before anything is sent; where a namespace lies is asked of the
//! device for each command, so that one that was deleted is not written to.

mod pairs;

pub(crate) use pairs::{kv, kv_retrieve_many, kv_scan, kv_store_many};

use crate::hre::{BlockCommand, HreError, Namespace as HostNamespace, RpcCall, RpcReply};
use crate::nvme_tcp::NamespaceKind;
use base_io_host::Geometry;
use base_io_host::wire as base_io;
use std::future::Future;
use std::sync::Arc;
use willow_shm::layout::{ARGUMENT_BYTES_MAX, Call};
use willow_shm::message::{NamespaceView, View};
use willow_wire::spec::kv::KEY_BYTES_MAX;

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

/// What of a buffer is whose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Way {
    /// Its first bytes are payload.
    pub payload_bytes: usize,
    /// Its first bytes may be written; the buffer becomes as long as that.
    pub reply_bytes: usize,
}

impl Way {
    /// All of it is payload.
    pub fn out(buffer: &[u8]) -> Self {
        Way { payload_bytes: buffer.len(), reply_bytes: 0 }
    }

    /// All of it is the reply.
    pub fn back(buffer: &[u8]) -> Self {
        Way { payload_bytes: 0, reply_bytes: buffer.len() }
    }
}

/// An endpoint that sends RPCs straight to the device.
pub(crate) trait Direct: Send + Sync {
    /// What the device is like now.
    fn view(&self) -> impl Future<Output = Result<Arc<View>, HreError>> + Send;
    /// Sends RPCs over one buffer, as payload or to be filled, or both; no RPC is done at once. An outcome other than an answer
    /// is an error; `target` (app, handler, SPU) is for its sentence.
    fn send(
        &self,
        target: (u16, u8, Option<u16>),
        rpcs: Vec<Call>,
        buffer: Vec<u8>,
        way: Way,
    ) -> impl Future<Output = Result<Sent, HreError>> + Send;
}

fn part(app: u16, handler: u8, spu: u16, arguments: &[u8]) -> Result<Call, HreError> {
    Call::new(app, handler, spu, arguments).ok_or_else(|| {
        HreError::Argument(format!("{} bytes of arguments, at most {ARGUMENT_BYTES_MAX}", arguments.len()))
    })
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
    let way = if out { Way::out(&buffer) } else { Way::back(&buffer) };
    let mut sent = device.send((call.app, call.handler, call.spu), vec![rpc], buffer, way).await?;
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
    Geometry { spus: view.spus.max(1), stripe_bytes: namespace.stripe_bytes, base: namespace.base }
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
    let app = namespace.serving_app().map_err(HreError::Argument)?;
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
    let way = if matches!(command, BlockCommand::Read { .. }) { Way::back(&buffer) } else { Way::out(&buffer) };
    let sent = device.send((app, handler, None), rpcs, buffer, way).await?;
    if sent.status == 0 { Ok(sent.buffer) } else { Err(block_error(sent.status)) }
}

fn find(view: &View, nsid: u32, key_value: bool, problem: &'static str) -> Result<NamespaceView, HreError> {
    match view.namespaces.iter().find(|namespace| namespace.nsid == nsid) {
        Some(namespace) if namespace.key_value == key_value => Ok(namespace.clone()),
        Some(_) => Err(HreError::Namespace { nsid, problem }),
        None => Err(HreError::Namespace { nsid, problem: "not there" }),
    }
}
