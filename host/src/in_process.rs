//! An endpoint without a transport: the device lives on a thread of this process, endpoints hand it requests and are woken
//! by its completions.
//!
//! What always holds:
//! - the device is made, run and dropped on its own thread; the machine's clock is read there and nowhere deeper;
//! - an idle device uses no processor time: its thread sleeps until a request, the store's news or the device's own wake-up;
//! - dropping the last handle shuts the device down cleanly, and waits for it.

use crate::direct::{self, Direct, Sent};
use crate::hre::{
    BlockCommand, BoxFuture, Hre, HreError, KvCommand, KvReply, Namespace as HostNamespace, RpcCall, RpcReply, Upcall,
};
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
use willow_shm::layout::Call;
use willow_shm::message::{NamespaceView, View};

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
    async fn request(&self, request: HostRequest) -> Result<HostCompletion, HreError> {
        let (sender, receiver) = oneshot::channel();
        self.device.send(Message::Request(self.id, request, sender))?;
        receiver.await.map_err(|_| HreError::Refused)
    }
}

impl Direct for InProcessHre {
    async fn view(&self) -> Result<Arc<View>, HreError> {
        let (sender, receiver) = oneshot::channel();
        self.device.send(Message::Look(sender))?;
        receiver.await.map(Arc::new).map_err(|_| gone())
    }

    async fn send(
        &self,
        target: (u16, u8, Option<u16>),
        calls: Vec<Call>,
        buffer: Vec<u8>,
        out: bool,
    ) -> Result<Sent, HreError> {
        let bytes = u32::try_from(buffer.len())
            .ok()
            .filter(|bytes| u64::from(*bytes) <= TRANSFER_BYTES_MAX)
            .ok_or_else(|| HreError::Argument(format!("{} bytes are more than {TRANSFER_BYTES_MAX}", buffer.len())))?;
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
        let (payload_bytes, reply_bytes) = if out { (bytes, 0) } else { (0, bytes) };
        let done = self.request(HostRequest { tag: 0, rpcs, buffer, payload_bytes, reply_bytes }).await?;
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

impl Hre for InProcessHre {
    fn rpc(&self, call: RpcCall) -> BoxFuture<'_, Result<RpcReply, HreError>> {
        Box::pin(direct::rpc(self, call))
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
}

/// What endpoints need to know of the device.
fn view_of(device: &Device) -> View {
    let namespace = |namespace: &Namespace| NamespaceView {
        nsid: namespace.nsid,
        key_value: namespace.csi == CommandSet::Kv,
        size_bytes: namespace.size_bytes,
        block_bytes: namespace.block_bytes,
        base: namespace.base,
        nguid: namespace.nguid,
    };
    View {
        spus: device.spus(),
        stripe_bytes: device.stripe_bytes(),
        base_io: device.app_number(base_io_host::APP_NAME),
        key_value: device.app_number(key_value_host::APP_NAME),
        namespaces: device.namespaces().iter().map(namespace).collect(),
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
                let _ = reply.send(view_of(&self.device));
            }
            Message::JobDone(done) => self.device.job_done(done),
            Message::Wake | Message::ShutDown => {}
        }
    }
}
