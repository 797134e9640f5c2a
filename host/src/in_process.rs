//! An endpoint without a transport: the device lives on a thread of this process, endpoints hand it requests and are woken
//! by its completions.
//!
//! What always holds:
//! - the device is made, run and dropped on its own thread; the machine's clock is read there and nowhere deeper;
//! - an idle device uses no processor time: its thread sleeps until a request, the store's news or the device's own wake-up;
//! - dropping the last handle shuts the device down cleanly, and waits for it.

use crate::device_queue::{DeviceQueue, QueueHre, upcall_of, view_of};
use crate::hre::{HreError, Upcall};
use std::collections::HashMap;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use willow_device::{Device, HostCompletion, HostRequest, HreId, Job, JobDone, OpenError};
use willow_shm::message::View;

pub use crate::device_queue::TRANSFER_BYTES_MAX;
/// Under a model of time: how long before the device's wake-up its thread stops sleeping and polls, since timers come late.
const WAKE_EARLY: Duration = Duration::from_micros(150);
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
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        thread.into_iter().for_each(crate::threads::ended);
    }
}

impl InProcess {
    /// Makes a device on a thread of its own: `make` runs there.
    pub fn start(make: impl FnOnce() -> Result<Device, OpenError> + Send + 'static) -> Result<Self, OpenError> {
        let (messages, receiver) = mpsc::channel();
        let (opened, open) = mpsc::channel();
        let jobs = worker(messages.clone())?;
        let sender = messages.clone();
        let thread = std::thread::Builder::new()
            .name("willow-device".to_owned())
            .spawn(move || match make() {
                Ok(device) => {
                    let _ = opened.send(Ok(()));
                    Driver::new(device, sender, jobs).run(&receiver);
                }
                Err(error) => {
                    let _ = opened.send(Err(error));
                }
            })
            .map_err(no_thread)?;
        open.recv().map_err(|_| OpenError("the device's thread ended while it was opened".to_owned()))??;
        Ok(InProcess { inner: Arc::new(Inner { messages, thread: Mutex::new(Some(thread)) }) })
    }

    /// A new endpoint: `None` for the host kernel's (trusted), else a user process' number.
    pub async fn endpoint(&self, process: Option<u32>) -> Result<InProcessHre, HreError> {
        let (sender, receiver) = oneshot::channel();
        self.send(Message::Open(process, sender))?;
        let id = receiver.await.map_err(|_| gone())?;
        let id = id.ok_or_else(|| HreError::Argument("the device has no room for another endpoint".to_owned()))?;
        Ok(QueueHre::new(InProcessQueue { device: self.clone(), id }))
    }

    fn send(&self, message: Message) -> Result<(), HreError> {
        self.inner.messages.send(message).map_err(|_| gone())
    }
}

fn no_thread(error: std::io::Error) -> OpenError {
    OpenError(format!("no thread for the device: {error}"))
}

/// The thread that does the device's jobs, one after the other; it ends once nobody hands it any more.
fn worker(messages: mpsc::Sender<Message>) -> Result<mpsc::Sender<Job>, OpenError> {
    let (jobs, todo) = mpsc::channel::<Job>();
    let work = move || {
        let mut done = todo.iter().map(|job| Message::JobDone(job.run()));
        while done.next().is_some_and(|done| messages.send(done).is_ok()) {}
    };
    std::thread::Builder::new().name("willow-jobs".to_owned()).spawn(work).map_err(no_thread)?;
    Ok(jobs)
}

fn gone() -> HreError {
    HreError::Answer("the device has ended".to_owned())
}

/// An endpoint of a device in this process.
pub type InProcessHre = QueueHre<InProcessQueue>;

/// Its queue.
pub struct InProcessQueue {
    device: InProcess,
    id: HreId,
}

impl Drop for InProcessQueue {
    fn drop(&mut self) {
        let _ = self.device.send(Message::Close(self.id));
    }
}

impl DeviceQueue for InProcessQueue {
    async fn look(&self) -> Result<Arc<View>, HreError> {
        let (sender, receiver) = oneshot::channel();
        self.device.send(Message::Look(sender))?;
        receiver.await.map(Arc::new).map_err(|_| gone())
    }

    async fn request(&self, request: HostRequest) -> Result<HostCompletion, HreError> {
        let (sender, receiver) = oneshot::channel();
        self.device.send(Message::Request(self.id, request, sender))?;
        receiver.await.map_err(|_| HreError::Refused)
    }

    async fn upcall(&self, wait: Duration) -> Result<Option<Upcall>, HreError> {
        let (sender, receiver) = oneshot::channel();
        self.device.send(Message::Upcall(self.id, Instant::now() + wait, sender))?;
        receiver.await.map_err(|_| gone())
    }

    async fn answer(&self, id: u64, status: u32, result: u32) -> Result<bool, HreError> {
        let (sender, receiver) = oneshot::channel();
        self.device.send(Message::Answer(self.id, id, status, result, sender))?;
        receiver.await.map_err(|_| gone())
    }
}

/// Drives the device on its thread.
struct Driver {
    device: Device,
    jobs: mpsc::Sender<Job>,
    started: Instant,
    next_tag: u64,
    /// By tag: tags are unique over all endpoints.
    waiting: HashMap<u64, oneshot::Sender<HostCompletion>>,
    upcalls: Vec<(HreId, Instant, oneshot::Sender<Option<Upcall>>)>,
}

impl Driver {
    fn new(mut device: Device, waker: mpsc::Sender<Message>, jobs: mpsc::Sender<Job>) -> Self {
        device.set_waker(Arc::new(move || {
            let _ = waker.send(Message::Wake);
        }));
        let started = Instant::now();
        device.set_clock(Box::new(move || started.elapsed().as_nanos() as u64));
        Driver { device, jobs, started, next_tag: 0, waiting: HashMap::new(), upcalls: Vec::new() }
    }

    fn run(mut self, messages: &mpsc::Receiver<Message>) {
        let mut over: Option<Instant> = None;
        let timed = self.device.is_timed();
        let early_ns = if timed { WAKE_EARLY.as_nanos() as u64 } else { 0 };
        loop {
            let wake_ns = self.device.run(self.now_ns());
            let mut progress = self.start_jobs();
            while let Some(completion) = self.device.completion() {
                progress = true;
                if timed {
                    self.device.delivered(self.now_ns(), completion.at_ns);
                }
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
                Err(_) if wake_ns.is_some_and(|at_ns| at_ns <= self.now_ns() + early_ns) => {
                    std::hint::spin_loop();
                    continue;
                }
                Err(_) => match self.sleep(messages, wake_ns.map(|at_ns| at_ns - early_ns), over) {
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
                if timed {
                    self.device.set_time(self.now_ns());
                }
                self.take(message);
                next = messages.try_recv().ok();
            }
        }
    }

    fn now_ns(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
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
            // The worker is there for as long as this end of its queue.
            started |= self.jobs.send(job).is_ok();
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
                let _ = waiter.send(Some(upcall_of(upcall)));
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
