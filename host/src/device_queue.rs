//! A host RPC endpoint over a queue of a device core in this process. Who drives the device, and in which time, is the queue's affair
//! ([`DeviceQueue`]): a thread of the machine's ([`crate::in_process`]) or a simulation.
//!
//! What always holds: no clock, thread or lock here; each command is one request, but for a listing, which is several.

use crate::direct::{self, Direct, Sent, Way};
use crate::hre::{
    BlockCommand, BoxFuture, Each, Hre, HreError, Item, ItemTerms, KeyRange, KvCommand, KvReply, Namespace, RpcCall,
    RpcReply, ScanCursor, ScanPage, StoreMany, Upcall,
};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use willow_device::{
    Arguments, CommandSet, Device, HostCompletion, HostRequest, Namespace as DeviceNamespace, Rpc, RpcList, RpcOutcome,
};
use willow_shm::layout::Call;
use willow_shm::message::NamespaceView;
use willow_wire::spec::kv::Key;

pub use willow_shm::message::View;

/// Most data of one request.
pub const TRANSFER_BYTES_MAX: u64 = 16 << 20;

/// One endpoint's queue at a device core.
pub trait DeviceQueue: Send + Sync {
    /// Looks at the device.
    fn look(&self) -> impl Future<Output = Result<Arc<View>, HreError>> + Send;
    /// Sends a request (its tag is the queue's to choose) and waits for its completion; [`HreError::Refused`] where the
    /// device does not take it.
    fn request(&self, request: HostRequest) -> impl Future<Output = Result<HostCompletion, HreError>> + Send;
    /// Waits for an upcall for at most this long.
    fn upcall(&self, wait: Duration) -> impl Future<Output = Result<Option<Upcall>, HreError>> + Send;
    /// Answers an upcall; false where there is none of that id for this endpoint.
    fn answer(&self, id: u64, status: u32, result: u32) -> impl Future<Output = Result<bool, HreError>> + Send;
}

/// An upcall as the device hands it out.
pub fn upcall_of(upcall: willow_device::Upcall) -> Upcall {
    let willow_device::Upcall { id, app, handler, spu, body } = upcall;
    Upcall { id, app, handler, spu, body }
}

/// An endpoint over such a queue.
pub struct QueueHre<Q> {
    queue: Q,
}

impl<Q> QueueHre<Q> {
    /// Over this queue.
    pub fn new(queue: Q) -> Self {
        QueueHre { queue }
    }

    /// The queue.
    pub fn queue(&self) -> &Q {
        &self.queue
    }
}

impl<Q: DeviceQueue> Direct for QueueHre<Q> {
    async fn view(&self) -> Result<Arc<View>, HreError> {
        self.queue.look().await
    }

    async fn send(
        &self,
        target: (u16, u8, Option<u16>),
        calls: Vec<Call>,
        mut buffer: Vec<u8>,
        way: Way,
    ) -> Result<Sent, HreError> {
        let checked = |bytes: usize| {
            let fits = u32::try_from(bytes).ok().filter(|bytes| u64::from(*bytes) <= TRANSFER_BYTES_MAX);
            fits.ok_or_else(|| HreError::Argument(format!("{bytes} bytes are more than {TRANSFER_BYTES_MAX}")))
        };
        let (payload_bytes, reply_bytes) = (checked(way.payload_bytes)?, checked(way.reply_bytes)?);
        buffer.resize(buffer.len().max(way.reply_bytes), 0);
        let rpc = |call: &Call| {
            // A call's arguments are no longer than the device's.
            let arguments = Arguments::new(call.arguments()).unwrap_or(Arguments::EMPTY);
            Rpc { app: call.app, handler: call.handler, spu: call.spu, arguments }
        };
        let rpcs = match &calls[..] {
            [] => return Ok(Sent { status: 0, result: 0, buffer, written: 0 }),
            [call] => RpcList::One(rpc(call)),
            calls => RpcList::Many(calls.iter().map(rpc).collect()),
        };
        let done = self.queue.request(HostRequest { tag: 0, rpcs, buffer, payload_bytes, reply_bytes }).await?;
        let (app, handler, spu) = target;
        match done.outcome {
            RpcOutcome::Answered { status } => {
                Ok(Sent { status, result: done.result, buffer: done.buffer, written: done.reply_bytes })
            }
            RpcOutcome::NoApp => Err(HreError::NoApp(app)),
            RpcOutcome::NoHandler => Err(HreError::NoHandler { app, handler }),
            RpcOutcome::NoSpu => Err(HreError::NoSpu(spu)),
            RpcOutcome::Refused => Err(HreError::Refused),
            RpcOutcome::AppEnded => Err(HreError::AppEnded),
            RpcOutcome::NotPermitted => Err(HreError::NotPermitted),
            RpcOutcome::Aborted => Err(HreError::Aborted),
        }
    }
}

impl<Q: DeviceQueue> Hre for QueueHre<Q> {
    fn rpc(&self, call: RpcCall) -> BoxFuture<'_, Result<RpcReply, HreError>> {
        Box::pin(direct::rpc(self, call))
    }

    fn receive_upcall(&self, wait: Duration) -> BoxFuture<'_, Result<Option<Upcall>, HreError>> {
        Box::pin(self.queue.upcall(wait))
    }

    fn answer_upcall(&self, id: u64, status: u32, result: u32) -> BoxFuture<'_, Result<(), HreError>> {
        Box::pin(async move {
            if self.queue.answer(id, status, result).await? {
                return Ok(());
            }
            Err(HreError::Control { status: 3, text: format!("no upcall {id} waits for an answer here") })
        })
    }

    fn namespaces(&self) -> BoxFuture<'_, Result<Vec<Namespace>, HreError>> {
        Box::pin(direct::namespaces(self))
    }

    fn transfer_bytes_max(&self) -> u64 {
        TRANSFER_BYTES_MAX
    }

    fn block(
        &self,
        nsid: u32,
        _block_bytes: u32,
        command: BlockCommand,
        buffer: Vec<u8>,
    ) -> BoxFuture<'_, Result<Vec<u8>, HreError>> {
        Box::pin(direct::block(self, nsid, command, buffer))
    }

    fn kv(&self, nsid: u32, command: KvCommand, buffer: Vec<u8>) -> BoxFuture<'_, Result<KvReply, HreError>> {
        Box::pin(direct::kv(self, nsid, command, buffer))
    }

    fn kv_store_many(
        &self,
        nsid: u32,
        items: Vec<StoreMany>,
        terms: ItemTerms,
    ) -> BoxFuture<'_, Result<Each<()>, HreError>> {
        Box::pin(direct::kv_store_many(self, self.transfer_bytes_max(), nsid, items, terms))
    }

    fn kv_retrieve_many(
        &self,
        nsid: u32,
        keys: Vec<Key>,
        now_s: u32,
    ) -> BoxFuture<'_, Result<Each<Option<Item>>, HreError>> {
        Box::pin(direct::kv_retrieve_many(self, self.transfer_bytes_max(), nsid, keys, now_s))
    }

    fn kv_scan(&self, nsid: u32, range: KeyRange, at: Option<ScanCursor>) -> BoxFuture<'_, Result<ScanPage, HreError>> {
        Box::pin(direct::kv_scan(self, nsid, range, at))
    }
}

/// What endpoints need to know of the device.
pub fn view_of(device: &Device) -> View {
    let namespace = |namespace: &DeviceNamespace| NamespaceView {
        nsid: namespace.nsid,
        key_value: namespace.csi == CommandSet::Kv,
        size_bytes: namespace.size_bytes,
        block_bytes: namespace.block_bytes,
        base: namespace.base,
        nguid: namespace.nguid,
        stripe_bytes: namespace.stripe_bytes,
        app: namespace.app.clone(),
        app_number: device.app_number(&namespace.app),
    };
    View { spus: device.spus(), namespaces: device.namespaces().iter().map(namespace).collect() }
}
