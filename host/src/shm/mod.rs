//! An endpoint in memory shared with a device on this machine. Commands are submitted by whoever asks; a thread of the
//! endpoint takes completions, and sleeps while there are none.
//!
//! What always holds:
//! - data go through extents of the shared area that belong to one command each, until its completion has come, whether or
//!   not anybody still waits for it;
//! - when the device goes, or breaks the rules, all that is under way ends with an error, and so does all that comes later;
//! - the endpoint ends with the last handle: its thread is joined, its socket closed.

pub mod extents;

use crate::direct::{self, Direct, Sent, Way};
use crate::hre::{
    BlockCommand, BoxFuture, Each, Hre, HreError, Item, ItemTerms, KeyRange, KvCommand, KvReply, Namespace, RpcCall,
    RpcReply, ScanCursor, ScanPage, StoreMany, Upcall,
};
use extents::{Extent, Extents};
use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::{Notify, oneshot};
use willow_shm::layout::{Call, Command, Completion, Operation, Outcome};
use willow_shm::memory::Mapping;
use willow_shm::message::{Kind, View};
use willow_shm::ring::{DATA_BYTES_DEFAULT, ENTRIES_DEFAULT, Endpoint, EndpointError};
use willow_shm::socket::Channel;
use willow_wire::spec::kv::Key;

/// How long the endpoint's thread looks for the next completion before it sleeps.
const SPIN: Duration = Duration::from_micros(20);
/// Longest sleep of the thread between two looks.
const SLEEP_MAX: Duration = Duration::from_secs(60);
/// Room for an upcall: its head and the longest body.
const UPCALL_BYTES: u32 = 16 + (64 << 10);
/// Room for the view of the device at first; it is asked again where that is too little.
const VIEW_BYTES: u32 = 64 << 10;
/// Most RPCs in one command of ours: a quarter of the smallest ring that is asked for.
const RPCS_MAX: usize = 64;

/// What an endpoint is made with.
#[derive(Clone, Copy, Debug)]
pub struct ShmOptions {
    /// Whose endpoint.
    pub kind: Kind,
    /// Entries of each ring.
    pub entries: u32,
    /// Bytes of the data area.
    pub data_bytes: u64,
}

impl Default for ShmOptions {
    fn default() -> Self {
        ShmOptions { kind: Kind::Any, entries: ENTRIES_DEFAULT, data_bytes: DATA_BYTES_DEFAULT }
    }
}

struct Flight {
    answer: oneshot::Sender<(Completion, Lease)>,
    extent: Extent,
}

struct State {
    endpoint: Endpoint,
    extents: Extents,
    next_tag: u32,
    flights: HashMap<u32, Flight>,
    /// Why nothing goes any more.
    ended: Option<String>,
    view: Option<(u32, Arc<View>)>,
}

struct Inner {
    state: Mutex<State>,
    /// Some command has ended: there may be room for another.
    room: Notify,
    memory: Arc<Mapping>,
    data: usize,
    transfer_bytes_max: u32,
    channel: Arc<Channel>,
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends everything.
    fn end(&self, why: &str) {
        let mut state = self.state();
        state.ended.get_or_insert_with(|| why.to_owned());
        // Dropping the senders tells those that wait.
        state.flights.clear();
        drop(state);
        self.room.notify_waiters();
    }
}

/// An extent that goes back when it is dropped.
struct Lease {
    inner: Arc<Inner>,
    extent: Extent,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.inner.state().extents.give(self.extent);
        self.inner.room.notify_waiters();
    }
}

impl Lease {
    /// Copies out what is at its start.
    fn read(&self, into: &mut [u8]) {
        let inside = self.inner.memory.read(self.inner.data + self.extent.offset as usize, into);
        debug_assert!(inside, "extents are inside of the data area");
    }
}

/// An endpoint.
pub struct ShmHre {
    inner: Arc<Inner>,
    reaper: Option<JoinHandle<()>>,
    id: u32,
}

impl ShmHre {
    fn end(&self) {
        self.inner.end("the endpoint was closed");
        let _ = rustix::net::shutdown(&*self.inner.channel, rustix::net::Shutdown::Both);
    }
}

impl Drop for ShmHre {
    fn drop(&mut self) {
        self.end();
        match self.reaper.take() {
            // Programs that know nothing of it have such endpoints too, by libwillow-preload: they go on where it is shipped.
            Some(reaper) if !cfg!(debug_assertions) => drop(reaper.join()),
            reaper => reaper.into_iter().for_each(crate::threads::ended),
        }
    }
}

fn broken(error: &EndpointError) -> HreError {
    HreError::Answer(error.to_string())
}

impl ShmHre {
    /// Opens an endpoint at a device's socket.
    pub fn open(path: &Path, options: ShmOptions) -> Result<ShmHre, HreError> {
        let endpoint = Endpoint::open(path, options.kind, options.entries, options.data_bytes)
            .map_err(|error| HreError::Argument(error.to_string()))?;
        Self::with(endpoint)
    }

    /// Around an endpoint that is there, with nothing under way.
    pub fn with(endpoint: Endpoint) -> Result<ShmHre, HreError> {
        let id = endpoint.opened.hre;
        let inner = Arc::new(Inner {
            room: Notify::new(),
            memory: endpoint.memory().clone(),
            data: endpoint.layout().data(),
            transfer_bytes_max: endpoint.opened.transfer_bytes_max.min(endpoint.opened.data_bytes as u32 / 2),
            channel: endpoint.channel().clone(),
            state: Mutex::new(State {
                extents: Extents::new(endpoint.opened.data_bytes),
                endpoint,
                next_tag: 0,
                flights: HashMap::new(),
                ended: None,
                view: None,
            }),
        });
        let reaped = inner.clone();
        let reaper = std::thread::Builder::new()
            .name("willow-hre".to_owned())
            .spawn(move || reap(&reaped))
            .map_err(|error| HreError::Argument(format!("no thread for the endpoint: {error}")))?;
        Ok(ShmHre { inner, reaper: Some(reaper), id })
    }

    /// Its id: a zero in the highest bit means that it is the host kernel's.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Which namespace a number stands for: the same after the device was started again, another on another device.
    pub async fn identity(&self, nsid: u32) -> Result<[u8; 16], HreError> {
        let view = self.view().await?;
        let found = view.namespaces.iter().find(|namespace| namespace.nsid == nsid);
        found.map(|namespace| namespace.nguid).ok_or(HreError::Namespace { nsid, problem: "not there" })
    }

    /// True where the device trusts it as the host kernel's.
    pub fn is_kernel(&self) -> bool {
        self.id >> 31 == 0
    }

    /// One command: its extent holds `from` at first, and has room for the reply. Returns the completion, and the extent with
    /// what came.
    async fn command(
        &self,
        operation: Operation,
        call: Call,
        more: &[Call],
        from: &[u8],
        reply_bytes: u32,
    ) -> Result<(Completion, Lease), HreError> {
        let bytes = (from.len() as u32).max(reply_bytes);
        let receiver = loop {
            // Before the look, so that room made after it is not missed.
            let room = self.inner.room.notified();
            if let Some(receiver) = self.submit(operation, call, more, from, reply_bytes, bytes)? {
                break receiver;
            }
            room.await;
        };
        receiver.await.map_err(|_| {
            let why = self.inner.state().ended.clone();
            HreError::Gone(why.unwrap_or_else(|| "the device is gone".to_owned()))
        })
    }

    #[allow(clippy::type_complexity)]
    fn submit(
        &self,
        operation: Operation,
        call: Call,
        more: &[Call],
        from: &[u8],
        reply_bytes: u32,
        bytes: u32,
    ) -> Result<Option<oneshot::Receiver<(Completion, Lease)>>, HreError> {
        let mut guard = self.inner.state();
        let state = &mut *guard;
        if let Some(why) = &state.ended {
            return Err(HreError::Gone(why.clone()));
        }
        let slots = call.slots() + more.iter().map(Call::slots).sum::<u32>();
        if !state.endpoint.has_room(slots) {
            return Ok(None);
        }
        let Some(extent) = state.extents.take(bytes) else { return Ok(None) };
        if !from.is_empty() && !self.inner.memory.write(self.inner.data + extent.offset as usize, from) {
            state.extents.give(extent);
            return Err(HreError::Argument("data outside of the shared area".to_owned()));
        }
        // Tags of commands under way differ: there are far fewer than 2^32.
        while state.flights.contains_key(&state.next_tag) {
            state.next_tag = state.next_tag.wrapping_add(1);
        }
        let tag = state.next_tag;
        state.next_tag = tag.wrapping_add(1);
        let (answer, receiver) = oneshot::channel();
        let command = Command {
            tag,
            operation,
            more: more.len() as u8,
            payload_offset: extent.offset,
            payload_bytes: from.len() as u32,
            reply_offset: extent.offset,
            reply_bytes,
            call,
        };
        let submitted = state.endpoint.submit(&command, more);
        debug_assert!(submitted, "room was seen under the same lock");
        state.flights.insert(tag, Flight { answer, extent });
        state.endpoint.ring();
        Ok(Some(receiver))
    }

    fn check_length(&self, bytes: usize) -> Result<u32, HreError> {
        let most = self.inner.transfer_bytes_max;
        u32::try_from(bytes)
            .ok()
            .filter(|bytes| *bytes <= most)
            .ok_or_else(|| HreError::Argument(format!("{bytes} bytes are more than the {most} of one command")))
    }
}

fn call_with(arguments: &[u8]) -> Call {
    // The operations' own arguments are 16 bytes at most.
    Call::new(0, 0, 0, arguments).unwrap_or_else(|| unreachable!("more than 64 bytes of arguments"))
}

fn no_call() -> Call {
    call_with(&[])
}

/// Takes completions until the endpoint ends.
fn reap(inner: &Arc<Inner>) {
    let layout = inner.state().endpoint.layout();
    let mut since = Instant::now();
    loop {
        let mut guard = inner.state();
        if guard.ended.is_some() {
            return;
        }
        let mut ended = Vec::new();
        let failure = loop {
            match guard.endpoint.completion() {
                Ok(None) => break None,
                Ok(Some(completion)) => {
                    ended.extend(guard.flights.remove(&completion.tag).map(|flight| (completion, flight)));
                }
                Err(error) => break Some(error),
            }
        };
        let (position, under_way) = (guard.endpoint.position(), guard.endpoint.under_way());
        drop(guard);
        if let Some(error) = failure {
            return inner.end(&error.to_string());
        }
        if !ended.is_empty() {
            since = Instant::now();
        }
        for (completion, Flight { answer, extent }) in ended {
            // Where nobody waits any more, the extent goes back at once.
            let _ = answer.send((completion, Lease { inner: inner.clone(), extent }));
        }
        inner.room.notify_waiters();
        let is_ready =
            || inner.memory.word(layout.completion(position)).load(Ordering::Acquire) as u32 == layout.turn(position);
        while under_way > 0 && since.elapsed() < SPIN && !is_ready() {
            std::hint::spin_loop();
        }
        if is_ready() {
            continue;
        }
        inner.state().endpoint.ask_for_doorbell();
        if !is_ready() && inner.channel.wait(SLEEP_MAX) {
            let drained = inner.state().endpoint.drain();
            if let Err(error) = drained {
                return inner.end(&error.to_string());
            }
        }
        since = Instant::now();
    }
}

impl Direct for ShmHre {
    async fn view(&self) -> Result<Arc<View>, HreError> {
        let version = {
            let state = self.inner.state();
            let version = state.endpoint.view_version();
            match &state.view {
                Some((of, view)) if *of == version => return Ok(view.clone()),
                _ => version,
            }
        };
        let mut bytes = VIEW_BYTES.min(self.inner.transfer_bytes_max);
        loop {
            let (completion, lease) = self.command(Operation::View, no_call(), &[], &[], bytes).await?;
            let mut document = vec![0; completion.reply_bytes.min(bytes) as usize];
            lease.read(&mut document);
            drop(lease);
            if completion.result > bytes && bytes < self.inner.transfer_bytes_max {
                bytes = completion.result.min(self.inner.transfer_bytes_max);
                continue;
            }
            let view: View = willow_shm::message::decode(&document)
                .map_err(|error| HreError::Answer(format!("the device's view cannot be read: {error}")))?;
            let view = Arc::new(view);
            self.inner.state().view = Some((version, view.clone()));
            return Ok(view);
        }
    }

    async fn send(
        &self,
        (app, handler, spu): (u16, u8, Option<u16>),
        rpcs: Vec<Call>,
        mut buffer: Vec<u8>,
        way: Way,
    ) -> Result<Sent, HreError> {
        self.check_length(way.payload_bytes)?;
        let reply_bytes = self.check_length(way.reply_bytes)?;
        let mut sent = Sent { status: 0, result: 0, buffer: Vec::new(), written: 0 };
        // Long lists (many ranges to be given back) go as several commands.
        for part in rpcs.chunks(RPCS_MAX) {
            let from = &buffer[..way.payload_bytes];
            let (completion, lease) = self.command(Operation::Rpc, part[0], &part[1..], from, reply_bytes).await?;
            let written = completion.reply_bytes.min(reply_bytes);
            if written > 0 {
                buffer.resize(buffer.len().max(way.reply_bytes), 0);
                lease.read(&mut buffer[..written as usize]);
            }
            drop(lease);
            match completion.outcome {
                Outcome::Answered => {}
                Outcome::NoApp => {
                    // Apps may have other numbers by now.
                    self.inner.state().view = None;
                    return Err(HreError::NoApp(app));
                }
                Outcome::NoHandler => return Err(HreError::NoHandler { app, handler }),
                Outcome::NoSpu => return Err(HreError::NoSpu(spu)),
                Outcome::Refused => return Err(HreError::Refused),
                Outcome::AppEnded => return Err(HreError::AppEnded),
                Outcome::NotPermitted => return Err(HreError::NotPermitted),
                Outcome::Aborted => return Err(HreError::Aborted),
                Outcome::Invalid | Outcome::Nothing => {
                    return Err(HreError::Answer("the device finds the command senseless".to_owned()));
                }
            }
            if sent.status == 0 {
                sent.status = completion.status;
            }
            sent.result |= completion.result;
            sent.written = sent.written.max(written);
        }
        sent.buffer = buffer;
        Ok(sent)
    }
}

impl Hre for ShmHre {
    fn close(&self) {
        self.end();
    }

    fn rpc(&self, call: RpcCall) -> BoxFuture<'_, Result<RpcReply, HreError>> {
        Box::pin(direct::rpc(self, call))
    }

    fn receive_upcall(&self, wait: Duration) -> BoxFuture<'_, Result<Option<Upcall>, HreError>> {
        Box::pin(async move {
            let wait_ms = u32::try_from(wait.as_millis()).unwrap_or(u32::MAX);
            let bytes = UPCALL_BYTES.min(self.inner.transfer_bytes_max);
            let call = call_with(&wait_ms.to_le_bytes());
            let (completion, lease) = self.command(Operation::Receive, call, &[], &[], bytes).await?;
            let mut data = vec![0; completion.reply_bytes.min(bytes) as usize];
            lease.read(&mut data);
            drop(lease);
            if completion.outcome == Outcome::Nothing {
                return Ok(None);
            }
            let Some((head, body)) = data.split_first_chunk::<16>() else {
                return Err(HreError::Answer("an upcall without its head".to_owned()));
            };
            let half = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
            let mut id = [0; 8];
            id.copy_from_slice(&head[..8]);
            let id = u64::from_le_bytes(id);
            Ok(Some(Upcall { id, app: half(8), handler: head[10], spu: half(12), body: body.to_vec() }))
        })
    }

    fn answer_upcall(&self, id: u64, status: u32, result: u32) -> BoxFuture<'_, Result<(), HreError>> {
        Box::pin(async move {
            let mut arguments = [0; 16];
            arguments[..8].copy_from_slice(&id.to_le_bytes());
            arguments[8..12].copy_from_slice(&status.to_le_bytes());
            arguments[12..].copy_from_slice(&result.to_le_bytes());
            let (completion, _) = self.command(Operation::Answer, call_with(&arguments), &[], &[], 0).await?;
            match completion.outcome {
                Outcome::Answered => Ok(()),
                _ => Err(HreError::Control { status: 3, text: format!("no upcall {id} waits for an answer here") }),
            }
        })
    }

    fn namespaces(&self) -> BoxFuture<'_, Result<Vec<Namespace>, HreError>> {
        Box::pin(direct::namespaces(self))
    }

    fn transfer_bytes_max(&self) -> u64 {
        u64::from(self.inner.transfer_bytes_max)
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

impl From<EndpointError> for HreError {
    fn from(error: EndpointError) -> Self {
        broken(&error)
    }
}
