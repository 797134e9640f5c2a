//! An endpoint without a transport: the device lives on a thread of this process, endpoints hand it requests and are woken
//! by its completions.
//!
//! What always holds:
//! - the device is made, run and dropped on its own thread; the machine's clock is read there and nowhere deeper;
//! - an idle device uses no processor time: its thread sleeps until a request, the store's news or the device's own wake-up;
//! - dropping the last handle shuts the device down cleanly, and waits for it.

use crate::hre::{
    BlockCommand, BoxFuture, Hre, HreError, KvCommand, KvReply, Namespace as HostNamespace, RpcCall, RpcReply,
    StoreCondition, Upcall,
};
use crate::nvme_tcp::NamespaceKind;
use base_io_host::Geometry;
use base_io_host::wire as base_io;
use key_value_host::{Call, Key as PairKey, KeyValueError, ListScan, ListStep, Placement, PutCondition};
use std::collections::HashMap;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use willow_device::{
    Arguments, CommandSet, Device, HostCompletion, HostRequest, HreId, JobDone, Namespace, OpenError, Rpc, RpcList,
    RpcOutcome,
};
use willow_wire::spec::kv::{KEY_BYTES_MAX, Key};

/// Most data of one request.
pub const TRANSFER_BYTES_MAX: u64 = 16 << 20;
/// Longest shutdown that is waited for.
const SHUTDOWN_MAX: Duration = Duration::from_secs(10);

enum Message {
    Open(Option<u32>, oneshot::Sender<Option<HreId>>),
    Close(HreId),
    Request(HreId, HostRequest, oneshot::Sender<HostCompletion>),
    Upcall(HreId, Instant, oneshot::Sender<Option<Upcall>>),
    Answer(HreId, u64, u32, u32, oneshot::Sender<bool>),
    Look(oneshot::Sender<View>),
    JobDone(JobDone),
    Wake,
    ShutDown,
}

/// What endpoints need to know of the device.
#[derive(Clone)]
struct View {
    namespaces: Arc<Vec<Namespace>>,
    base_io: Option<u16>,
    key_value: Option<u16>,
    spus: u16,
    stripe_bytes: u32,
}

/// A device on a thread of this process. Clones are the same one.
#[derive(Clone)]
pub struct InProcess {
    inner: Arc<Inner>,
}

struct Inner {
    messages: mpsc::Sender<Message>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        let _ = self.messages.send(Message::ShutDown);
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            // A panic of the device's thread has been reported by that thread.
            let _ = thread.join();
        }
    }
}

impl InProcess {
    /// Makes a device on a thread of its own: `make` runs there.
    pub fn start(make: impl FnOnce() -> Result<Device, OpenError> + Send + 'static) -> Result<Self, OpenError> {
        let (messages, receiver) = mpsc::channel();
        let (opened, open) = mpsc::channel();
        let sender = messages.clone();
        let thread = std::thread::Builder::new()
            .name("willow-device".to_owned())
            .spawn(move || match make() {
                Ok(device) => {
                    let _ = opened.send(Ok(()));
                    Driver::new(device, sender).run(&receiver);
                }
                Err(error) => {
                    let _ = opened.send(Err(error));
                }
            })
            .map_err(|error| OpenError(format!("no thread for the device: {error}")))?;
        open.recv().map_err(|_| OpenError("the device's thread ended while it was opened".to_owned()))??;
        Ok(InProcess { inner: Arc::new(Inner { messages, thread: Mutex::new(Some(thread)) }) })
    }

    /// A new endpoint: `None` for the host kernel's (trusted), else a user process' number.
    pub async fn endpoint(&self, process: Option<u32>) -> Result<InProcessHre, HreError> {
        let (sender, receiver) = oneshot::channel();
        self.send(Message::Open(process, sender))?;
        let id = receiver.await.map_err(|_| gone())?;
        let id = id.ok_or_else(|| HreError::Argument("the device has no room for another endpoint".to_owned()))?;
        Ok(InProcessHre { device: self.clone(), id })
    }

    fn send(&self, message: Message) -> Result<(), HreError> {
        self.inner.messages.send(message).map_err(|_| gone())
    }
}

fn gone() -> HreError {
    HreError::Answer("the device has ended".to_owned())
}

/// An endpoint of a device in this process.
pub struct InProcessHre {
    device: InProcess,
    id: HreId,
}

impl Drop for InProcessHre {
    fn drop(&mut self) {
        let _ = self.device.send(Message::Close(self.id));
    }
}

impl InProcessHre {
    async fn look(&self) -> Result<View, HreError> {
        let (sender, receiver) = oneshot::channel();
        self.device.send(Message::Look(sender))?;
        receiver.await.map_err(|_| gone())
    }

    async fn request(&self, request: HostRequest) -> Result<HostCompletion, HreError> {
        let (sender, receiver) = oneshot::channel();
        self.device.send(Message::Request(self.id, request, sender))?;
        receiver.await.map_err(|_| HreError::Refused)
    }

    /// One or more RPCs over one buffer; the buffer comes back with (status, result, bytes written).
    async fn send(
        &self,
        target: (u16, u8, Option<u16>),
        mut rpcs: Vec<Rpc>,
        buffer: Vec<u8>,
        out: bool,
    ) -> Result<(u32, u32, Vec<u8>, u32), HreError> {
        let bytes = u32::try_from(buffer.len())
            .ok()
            .filter(|bytes| u64::from(*bytes) <= TRANSFER_BYTES_MAX)
            .ok_or_else(|| HreError::Argument(format!("{} bytes are more than {TRANSFER_BYTES_MAX}", buffer.len())))?;
        let rpcs = match rpcs.len() {
            0 => return Ok((0, 0, buffer, 0)),
            1 => RpcList::One(rpcs.remove(0)),
            _ => RpcList::Many(rpcs),
        };
        let (payload_bytes, reply_bytes) = if out { (bytes, 0) } else { (0, bytes) };
        let done = self.request(HostRequest { tag: 0, rpcs, buffer, payload_bytes, reply_bytes }).await?;
        let (app, handler, spu) = target;
        match done.outcome {
            RpcOutcome::Answered { status } => Ok((status, done.result, done.buffer, done.reply_bytes)),
            RpcOutcome::NoApp => Err(HreError::NoApp(app)),
            RpcOutcome::NoHandler => Err(HreError::NoHandler { app, handler }),
            RpcOutcome::NoSpu => Err(HreError::NoSpu(spu)),
            RpcOutcome::Refused => Err(HreError::Refused),
            RpcOutcome::AppEnded => Err(HreError::AppEnded),
            RpcOutcome::NotPermitted => Err(HreError::NotPermitted),
            RpcOutcome::Aborted => Err(HreError::Aborted),
        }
    }

    async fn kv_call(&self, app: u16, call: Call, buffer: Vec<u8>, out: bool) -> Result<KvAnswer, HreError> {
        let rpc = Rpc { app, handler: call.handler, spu: call.spu, arguments: arguments(&call.arguments)? };
        let (status, result, data, written) =
            self.send((app, call.handler, Some(call.spu)), vec![rpc], buffer, out).await?;
        KeyValueError::from_status(status).map_err(kv_error)?;
        Ok(KvAnswer { result, data, written })
    }
}

struct KvAnswer {
    result: u32,
    data: Vec<u8>,
    written: u32,
}

fn arguments(bytes: &[u8]) -> Result<Arguments, HreError> {
    Arguments::new(bytes).ok_or_else(|| HreError::Argument(format!("{} bytes of arguments, at most 64", bytes.len())))
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

fn block_error(status: u32) -> HreError {
    match status {
        base_io::STATUS_COMPARE_FAILED => HreError::CompareFailed,
        base_io::STATUS_MEDIA_ERROR => HreError::Media,
        base_io::STATUS_FULL => HreError::Full,
        base_io::STATUS_RANGE => HreError::OutOfRange,
        base_io::STATUS_PERMISSION => HreError::NotPermitted,
        other => HreError::Answer(format!("Base-IO answered with status {other}")),
    }
}

fn pair_key(key: Key) -> Result<PairKey, HreError> {
    PairKey::new(key.as_slice()).map_err(kv_error)
}

impl Hre for InProcessHre {
    fn rpc(&self, call: RpcCall) -> BoxFuture<'_, Result<RpcReply, HreError>> {
        Box::pin(async move {
            if call.reply_bytes_max > 0 && !call.payload.is_empty() {
                return Err(HreError::Argument("an RPC has a payload or a reply, not both".to_owned()));
            }
            // Inline arguments are at most 64 bytes; the body is theirs and the payload's, so that more may go there.
            let inline = call.arguments.len() <= willow_device::INLINE_ARGUMENT_BYTES_MAX;
            let (inline, payload) = match (inline, call.reply_bytes_max) {
                (true, _) => (arguments(&call.arguments)?, call.payload),
                (false, 0) => (arguments(&[])?, [call.arguments, call.payload].concat()),
                (false, _) => {
                    return Err(HreError::Argument("more than 64 bytes of arguments beside a reply".to_owned()));
                }
            };
            let rpc = Rpc { app: call.app, handler: call.handler, spu: call.spu.unwrap_or(0), arguments: inline };
            let out = call.reply_bytes_max == 0;
            let buffer = if out { payload } else { vec![0; call.reply_bytes_max as usize] };
            let target = (call.app, call.handler, call.spu);
            let (status, result, mut data, written) = self.send(target, vec![rpc], buffer, out).await?;
            data.truncate(if out { 0 } else { written as usize });
            Ok(RpcReply { status, result, data })
        })
    }

    fn receive_upcall(&self, wait: Duration) -> BoxFuture<'_, Result<Option<Upcall>, HreError>> {
        Box::pin(async move {
            let (sender, receiver) = oneshot::channel();
            self.device.send(Message::Upcall(self.id, Instant::now() + wait, sender))?;
            receiver.await.map_err(|_| gone())
        })
    }

    fn answer_upcall(&self, id: u64, status: u32, result: u32) -> BoxFuture<'_, Result<(), HreError>> {
        Box::pin(async move {
            let (sender, receiver) = oneshot::channel();
            self.device.send(Message::Answer(self.id, id, status, result, sender))?;
            if receiver.await.map_err(|_| gone())? {
                return Ok(());
            }
            Err(HreError::Control { status: 3, text: format!("no upcall {id} waits for an answer here") })
        })
    }

    fn namespaces(&self) -> BoxFuture<'_, Result<Vec<HostNamespace>, HreError>> {
        Box::pin(async move {
            let view = self.look().await?;
            let kind = |namespace: &Namespace| match namespace.csi {
                CommandSet::Nvm => NamespaceKind::Block {
                    block_bytes: namespace.block_bytes,
                    blocks: namespace.size_bytes / u64::from(namespace.block_bytes.max(1)),
                },
                CommandSet::Kv => NamespaceKind::Kv {
                    bytes: namespace.size_bytes,
                    key_bytes_max: KEY_BYTES_MAX as u16,
                    value_bytes_max: key_value_host::wire::VALUE_BYTES_MAX,
                },
            };
            let of = |namespace: &Namespace| HostNamespace { nsid: namespace.nsid, kind: kind(namespace) };
            Ok(view.namespaces.iter().map(of).collect())
        })
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
        Box::pin(async move {
            let view = self.look().await?;
            let namespace = find(&view, nsid, CommandSet::Nvm, "no block namespace")?;
            let app = view.base_io.ok_or_else(|| HreError::Argument("app base-io is not installed".to_owned()))?;
            let geometry = Geometry { spus: view.spus, stripe_bytes: view.stripe_bytes, base: namespace.base };
            let block = u64::from(namespace.block_bytes);
            let data = (buffer.len() as u64).div_ceil(block);
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
                if let Some(arguments) = Arguments::new(&request.arguments.encode()) {
                    rpcs.push(Rpc { app, handler: request.handler, spu: request.spu, arguments });
                }
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
            let (status, _, buffer, _) = self.send((app, handler, None), rpcs, buffer, out).await?;
            if status == 0 { Ok(buffer) } else { Err(block_error(status)) }
        })
    }

    fn kv(&self, nsid: u32, command: KvCommand, buffer: Vec<u8>) -> BoxFuture<'_, Result<KvReply, HreError>> {
        Box::pin(async move {
            let view = self.look().await?;
            let namespace = find(&view, nsid, CommandSet::Kv, "no key-value namespace")?;
            let app = view.key_value.ok_or_else(|| HreError::Argument("app key-value is not installed".to_owned()))?;
            let placement = Placement::new(namespace.nguid, view.spus);
            let bytes = buffer.len();
            let reply = |answer: KvAnswer| KvReply { result: answer.result, data: Vec::new() };
            match command {
                KvCommand::Store(key, condition) => {
                    let condition = match condition {
                        StoreCondition::Always => PutCondition::Always,
                        StoreCondition::MustExist => PutCondition::IfExists,
                        StoreCondition::MustNotExist => PutCondition::IfAbsent,
                    };
                    let call =
                        Call::put(&placement, nsid, &pair_key(key)?, bytes as u32, condition, false).map_err(|_| {
                            HreError::ValueSize {
                                bytes: bytes as u64,
                                bytes_max: u64::from(key_value_host::wire::VALUE_BYTES_MAX),
                            }
                        })?;
                    self.kv_call(app, call, buffer, true).await.map(reply)
                }
                KvCommand::Retrieve(key) => {
                    let call = Call::get(&placement, nsid, &pair_key(key)?, 0);
                    let answer = self.kv_call(app, call, buffer, false).await?;
                    let mut data = answer.data;
                    data.truncate((answer.result as usize).min(answer.written as usize));
                    Ok(KvReply { result: answer.result, data })
                }
                KvCommand::Delete(key) => {
                    let call = Call::delete(&placement, nsid, &pair_key(key)?, false);
                    self.kv_call(app, call, buffer, true).await.map(reply)
                }
                KvCommand::Exist(key) => {
                    let call = Call::exists(&placement, nsid, &pair_key(key)?);
                    self.kv_call(app, call, buffer, true).await.map(reply)
                }
                KvCommand::List(key) => {
                    let from = if key == Key::EMPTY { None } else { Some(pair_key(key)?) };
                    let (mut scan, mut step) = ListScan::start(placement, nsid, from.as_ref(), false, bytes);
                    let mut data = buffer;
                    while let ListStep::Call(call) = step {
                        let answer = self.kv_call(app, call, data, false).await?;
                        data = answer.data;
                        step = scan.answered(answer.result);
                    }
                    let written = scan.finish(&mut data);
                    data.truncate(written);
                    Ok(KvReply { result: 0, data })
                }
                KvCommand::Flush => {
                    let mut rpcs = Vec::new();
                    for spu in 0..view.spus {
                        let call = Call::flush(nsid, spu);
                        let arguments = arguments(&call.arguments)?;
                        rpcs.push(Rpc { app, handler: call.handler, spu, arguments });
                    }
                    let handler = key_value_host::wire::handler::FLUSH;
                    let (status, result, ..) = self.send((app, handler, None), rpcs, Vec::new(), true).await?;
                    KeyValueError::from_status(status).map_err(kv_error)?;
                    Ok(KvReply { result, data: Vec::new() })
                }
            }
        })
    }
}

fn find(view: &View, nsid: u32, csi: CommandSet, problem: &'static str) -> Result<Namespace, HreError> {
    match view.namespaces.iter().find(|namespace| namespace.nsid == nsid) {
        Some(namespace) if namespace.csi == csi => Ok(namespace.clone()),
        Some(_) => Err(HreError::Namespace { nsid, problem }),
        None => Err(HreError::Namespace { nsid, problem: "not there" }),
    }
}

/// Drives the device on its thread.
struct Driver {
    device: Device,
    messages: mpsc::Sender<Message>,
    started: Instant,
    next_tag: u64,
    /// By tag: tags are unique over all endpoints.
    waiting: HashMap<u64, oneshot::Sender<HostCompletion>>,
    upcalls: Vec<(HreId, Instant, oneshot::Sender<Option<Upcall>>)>,
}

impl Driver {
    fn new(mut device: Device, messages: mpsc::Sender<Message>) -> Self {
        let waker = messages.clone();
        device.set_waker(Arc::new(move || {
            let _ = waker.send(Message::Wake);
        }));
        Driver { device, messages, started: Instant::now(), next_tag: 0, waiting: HashMap::new(), upcalls: Vec::new() }
    }

    fn run(mut self, messages: &mpsc::Receiver<Message>) {
        let mut over: Option<Instant> = None;
        loop {
            let wake_ns = self.device.run(self.started.elapsed().as_nanos() as u64);
            let mut progress = self.start_jobs();
            while let Some(completion) = self.device.completion() {
                progress = true;
                if let Some(waiter) = self.waiting.remove(&completion.tag) {
                    // Nobody may wait any more: the future was dropped.
                    let _ = waiter.send(completion);
                }
            }
            self.serve_upcalls();
            if let Some(until) = over
                && (self.device.is_shut_down() || Instant::now() >= until)
            {
                return;
            }
            let mut next = match messages.try_recv() {
                Ok(message) => Some(message),
                Err(_) if progress => continue,
                Err(_) => match self.sleep(messages, wake_ns, over) {
                    Ok(message) => message,
                    Err(()) => return,
                },
            };
            // All that has come meanwhile is taken at once.
            while let Some(message) = next {
                if matches!(message, Message::ShutDown) && over.is_none() {
                    self.device.shutdown();
                    over = Some(Instant::now() + SHUTDOWN_MAX);
                }
                self.take(message);
                next = messages.try_recv().ok();
            }
        }
    }

    fn sleep(
        &self,
        messages: &mpsc::Receiver<Message>,
        wake_ns: Option<u64>,
        over: Option<Instant>,
    ) -> Result<Option<Message>, ()> {
        let device = wake_ns.map(|wake_ns| self.started + Duration::from_nanos(wake_ns));
        let upcall = self.upcalls.iter().map(|(_, until, _)| *until).min();
        match [device, upcall, over].into_iter().flatten().min() {
            None => messages.recv().map(Some).map_err(|_| ()),
            Some(until) => match messages.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(message) => Ok(Some(message)),
                Err(RecvTimeoutError::Timeout) => Ok(None),
                Err(RecvTimeoutError::Disconnected) => Err(()),
            },
        }
    }

    fn start_jobs(&mut self) -> bool {
        let mut started = false;
        while let Some(job) = self.device.job() {
            started = true;
            let messages = self.messages.clone();
            std::thread::spawn(move || {
                let _ = messages.send(Message::JobDone(job.run()));
            });
        }
        started
    }

    fn serve_upcalls(&mut self) {
        let now = Instant::now();
        let mut index = 0;
        while index < self.upcalls.len() {
            let (hre, until, _) = &self.upcalls[index];
            let (hre, until) = (*hre, *until);
            if self.upcalls[index].2.is_closed() {
                self.upcalls.swap_remove(index);
            } else if let Some(upcall) = self.device.upcall(hre) {
                let (.., waiter) = self.upcalls.swap_remove(index);
                let _ = waiter.send(Some(Upcall {
                    id: upcall.id,
                    app: upcall.app,
                    handler: upcall.handler,
                    spu: upcall.spu,
                    body: upcall.body,
                }));
            } else if now >= until {
                let (.., waiter) = self.upcalls.swap_remove(index);
                let _ = waiter.send(None);
            } else {
                index += 1;
            }
        }
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Open(process, reply) => {
                let _ = reply.send(self.device.open_hre(process));
            }
            Message::Close(hre) => {
                self.device.close_hre(hre);
                // Completions of what it had in flight do not come any more.
                self.waiting.retain(|_, waiter| !waiter.is_closed());
            }
            Message::Request(hre, mut request, reply) => {
                self.next_tag += 1;
                request.tag = self.next_tag;
                // A request that is refused drops its sender: the endpoint sees that.
                if self.device.submit(hre, request).is_ok() {
                    self.waiting.insert(self.next_tag, reply);
                }
            }
            Message::Upcall(hre, until, reply) => self.upcalls.push((hre, until, reply)),
            Message::Answer(hre, id, status, result, reply) => {
                let _ = reply.send(self.device.answer_upcall(hre, id, status, result));
            }
            Message::Look(reply) => {
                let _ = reply.send(View {
                    namespaces: self.device.namespaces(),
                    base_io: self.device.app_number(base_io_host::APP_NAME),
                    key_value: self.device.app_number(key_value_host::APP_NAME),
                    spus: self.device.spus(),
                    stripe_bytes: self.device.stripe_bytes(),
                });
            }
            Message::JobDone(done) => self.device.job_done(done),
            Message::Wake | Message::ShutDown => {}
        }
    }
}
