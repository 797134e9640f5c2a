//! Several writes that are done as a whole or not at all: the typed client of Atomic-Write (Willow, section 4.3), over any endpoint.
//!
//! What always holds:
//! - a transaction that is dropped without a commit is nobody's: its log makes way for others (abort it, where that can be waited for);
//! - a commit that was answered is durable, all of it; one that failed has changed nothing, but for
//!   [`AtomicWriteError::is_unknown`];
//! - what the device has no place for is tried again for [`BUSY_MAX`].

use crate::control::ControlClient;
use crate::direct_io::all;
use crate::hre::{BoxFuture, Hre, HreError, RpcCall, RpcReply};
use atomic_write_host::wire::{Statistics, VECTOR_WRITES_MAX, VectorWrite, handler};
use atomic_write_host::{Call, Refusal, Transaction, TransactionError, pieces};
use base_io_host::Geometry;
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long a request is tried again for which the device has no place.
pub const BUSY_MAX: Duration = Duration::from_secs(10);
/// Time between two tries.
pub(crate) const BUSY_WAIT: Duration = Duration::from_millis(1);

/// Why a transaction failed.
#[derive(Debug, thiserror::Error)]
pub enum AtomicWriteError {
    /// The app refused it.
    #[error("{0}")]
    Refused(Refusal),
    /// The request cannot be made.
    #[error("{0}")]
    Request(TransactionError),
    /// The way to the device.
    #[error(transparent)]
    Hre(#[from] HreError),
}

impl From<Refusal> for AtomicWriteError {
    fn from(refusal: Refusal) -> Self {
        AtomicWriteError::Refused(refusal)
    }
}

impl From<TransactionError> for AtomicWriteError {
    fn from(error: TransactionError) -> Self {
        AtomicWriteError::Request(error)
    }
}

impl AtomicWriteError {
    /// Of a commit: true where nobody knows whether it was done: its answer did not come, or a part is still to be applied.
    pub fn is_unknown(&self) -> bool {
        match self {
            AtomicWriteError::Refused(refusal) => matches!(refusal, Refusal::Unfinished | Refusal::Unknown(_)),
            AtomicWriteError::Request(_) => false,
            AtomicWriteError::Hre(error) => !matches!(
                error,
                HreError::NoApp(_) | HreError::NoHandler { .. } | HreError::Refused | HreError::NotPermitted
            ),
        }
    }
}

/// A write on one SPU, within a stripe, of at most [`atomic_write_host::wire::WRITE_BYTES_MAX`] bytes.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// Whose bank.
    pub spu: u16,
    /// Where in it, and how many bytes.
    pub write: VectorWrite,
    /// The bytes.
    pub data: &'a [u8],
}

/// A number for a transaction that no other of this process has, and hardly one of a process that had this one's number before.
pub fn transaction_number() -> u64 {
    static FIRST: OnceLock<u64> = OnceLock::new();
    static NEXT: AtomicU64 = AtomicU64::new(0);
    // The standard library's hash keys are random for each process.
    let first = *FIRST.get_or_init(|| RandomState::new().hash_one(std::process::id()));
    first.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Atomic-Write on a device.
#[derive(Clone)]
pub struct AtomicWriteClient {
    hre: Arc<dyn Hre>,
    app: u16,
}

impl AtomicWriteClient {
    /// Finds the app.
    pub async fn find(hre: Arc<dyn Hre>) -> Result<Self, HreError> {
        let app = ControlClient::new(hre.clone()).find_app(atomic_write_host::APP_NAME).await?;
        Ok(AtomicWriteClient { hre, app })
    }

    /// The app by its number.
    pub fn new(hre: Arc<dyn Hre>, app: u16) -> Self {
        AtomicWriteClient { hre, app }
    }

    /// Begins a transaction.
    pub fn begin(&self) -> AtomicTransaction {
        AtomicTransaction { client: self.clone(), transaction: Transaction::new(transaction_number()) }
    }

    /// One write of at most a stripe, as a transaction of its own: one round trip.
    pub async fn write(&self, spu: u16, nv_address: u64, data: &[u8]) -> Result<(), AtomicWriteError> {
        let write = VectorWrite { nv_address, bytes: data.len() as u32 };
        self.send(&atomic_write_host::write_and_commit(transaction_number(), spu, write), data).await.map(drop)
    }

    /// Several writes as a transaction of their own: those of an SPU go in as few requests as they fit into, those of different SPUs at the same
    /// time.
    pub async fn write_all(&self, parts: &[Part<'_>]) -> Result<(), AtomicWriteError> {
        if let [Part { spu, write, data }] = *parts {
            return self.write(spu, write.nv_address, data).await;
        }
        let mut transaction = self.begin();
        match transaction.write_parts(parts).await {
            Ok(()) => transaction.commit().await,
            Err(error) => {
                let _ = transaction.abort().await;
                Err(error)
            }
        }
    }

    /// How full the log of an SPU is.
    pub async fn statistics(&self, spu: u16) -> Result<Statistics, AtomicWriteError> {
        let reply_bytes_max = Statistics::BYTES as u32;
        let call =
            RpcCall { app: self.app, handler: handler::STAT, spu: Some(spu), reply_bytes_max, ..RpcCall::default() };
        let reply = self.hre.rpc(call).await?;
        Refusal::from_status(reply.status)?;
        let bytes = reply.data.first_chunk().ok_or_else(|| HreError::Answer("short statistics".to_owned()))?;
        Ok(Statistics::decode(bytes))
    }

    /// Sends a call with data behind its arguments.
    async fn send(&self, call: &Call, data: &[u8]) -> Result<RpcReply, AtomicWriteError> {
        let mut since = None;
        loop {
            let mut payload = call.arguments.clone();
            payload.extend_from_slice(data);
            let rpc =
                RpcCall { app: self.app, handler: call.handler, spu: Some(call.spu), payload, ..RpcCall::default() };
            let reply = self.hre.rpc(rpc).await?;
            match Refusal::from_status(reply.status) {
                Ok(()) => return Ok(reply),
                Err(Refusal::Busy) if since.get_or_insert_with(Instant::now).elapsed() < BUSY_MAX => {
                    tokio::time::sleep(BUSY_WAIT).await;
                }
                Err(refusal) => return Err(refusal.into()),
            }
        }
    }
}

/// A transaction.
pub struct AtomicTransaction {
    client: AtomicWriteClient,
    transaction: Transaction,
}

impl AtomicTransaction {
    /// Adds a write on one SPU, within a stripe. Its number there, for [`AtomicTransaction::edit`].
    pub async fn write(&mut self, spu: u16, nv_address: u64, data: &[u8]) -> Result<u32, AtomicWriteError> {
        let write = VectorWrite { nv_address, bytes: data.len() as u32 };
        let call = self.transaction.write(spu, &[write])?;
        Ok(self.client.send(&call, data).await?.result)
    }

    /// Adds writes, in this order on each SPU. Where it fails the transaction is to be aborted.
    pub async fn write_parts(&mut self, parts: &[Part<'_>]) -> Result<(), AtomicWriteError> {
        let mut by_spu = BTreeMap::<u16, Vec<Part<'_>>>::new();
        for part in parts {
            by_spu.entry(part.spu).or_default().push(*part);
        }
        let mut calls = Vec::new();
        for (spu, parts) in by_spu {
            let mut of_spu = Vec::new();
            for some in parts.chunks(VECTOR_WRITES_MAX) {
                let writes: Vec<VectorWrite> = some.iter().map(|part| part.write).collect();
                let data: Vec<u8> = some.iter().flat_map(|part| part.data).copied().collect();
                of_spu.push((self.transaction.write(spu, &writes)?, data));
            }
            let client = &self.client;
            let sent: BoxFuture<'_, Result<(), AtomicWriteError>> = Box::pin(async move {
                // The first one begins the transaction there.
                for (call, data) in &of_spu {
                    client.send(call, data).await?;
                }
                Ok(())
            });
            calls.push(sent);
        }
        all(calls).await.into_iter().collect()
    }

    /// Adds a write of a range of a namespace, whatever stripes it lies on. What it overlaps is written in the order of the calls.
    pub async fn write_range(&mut self, geometry: &Geometry, start: u64, data: &[u8]) -> Result<(), AtomicWriteError> {
        for piece in pieces(geometry, start, data.len()) {
            let data = &data[piece.buffer_offset..][..piece.write.bytes as usize];
            self.write(piece.spu, piece.write.nv_address, data).await?;
        }
        Ok(())
    }

    /// Changes bytes of a write that was added. Where it fails the transaction is no more.
    pub async fn edit(&mut self, spu: u16, record: u32, offset: u32, data: &[u8]) -> Result<(), AtomicWriteError> {
        let call = self.transaction.edit(spu, record, offset, data.len() as u32);
        self.client.send(&call, data).await.map(drop)
    }

    /// Reads bytes of a write that was added.
    pub async fn read(&self, spu: u16, record: u32, offset: u32, bytes: u32) -> Result<Vec<u8>, AtomicWriteError> {
        let Call { spu, handler, arguments } = self.transaction.read(spu, record, offset, bytes);
        let call = RpcCall {
            app: self.client.app,
            handler,
            spu: Some(spu),
            arguments,
            reply_bytes_max: bytes,
            ..RpcCall::default()
        };
        let reply = self.client.hre.rpc(call).await?;
        Refusal::from_status(reply.status)?;
        let mut data = reply.data;
        data.truncate(reply.result as usize);
        Ok(data)
    }

    /// Commits it: all of it is durable when this returns. Without writes it is nothing.
    pub async fn commit(self) -> Result<(), AtomicWriteError> {
        let Some(call) = self.transaction.commit() else { return Ok(()) };
        match self.client.send(&call, &[]).await {
            Ok(_) => Ok(()),
            Err(error) => {
                // Those that the coordinator did not get to have something left.
                if !error.is_unknown() {
                    let _ = self.abort().await;
                }
                Err(error)
            }
        }
    }

    /// Gives it up.
    pub async fn abort(self) -> Result<(), AtomicWriteError> {
        for call in self.transaction.abort() {
            match self.client.send(&call, &[]).await {
                Ok(_) | Err(AtomicWriteError::Refused(Refusal::NotFound)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
