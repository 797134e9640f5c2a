//! Simulated host threads as asynchronous tasks: what a workload's code is written with.
//!
//! What always holds: a wait ends at a simulated time, and nothing else passes time; handles may be sent anywhere, so that they serve
//! the same [`willow_host::Hre`] trait as every other transport, but only the simulation's own thread ever moves them on.

use crate::host::{HostParameters, Path};
use crate::world::{Brought, Mail, Then, What, World};
use base_io_host::Geometry;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use willow_device::{AppNumber, HostCompletion, HostRequest, HreId};
use willow_host::device_queue::{DeviceQueue, QueueHre, View};
use willow_host::{HreError, Upcall};

/// The world, shared with the tasks. One thread uses it at a time; the lock is there because the trait's futures can be sent.
#[derive(Clone)]
pub(crate) struct Shared(pub Arc<Mutex<World>>);

impl Shared {
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A wait: over when the world says so. Dropping it gives it up; what it asked for still happens.
pub(crate) struct Waiting {
    world: Shared,
    key: u32,
    over: bool,
}

impl Waiting {
    /// Begins one; `ask` is told its number.
    pub fn begin(world: &Shared, what: What, ask: impl FnOnce(&mut World, u32)) -> Self {
        let mut inside = world.lock();
        let key = inside.begin_wait(what);
        ask(&mut inside, key);
        drop(inside);
        Waiting { world: world.clone(), key, over: false }
    }
}

impl Future for Waiting {
    type Output = Brought;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Brought> {
        let brought = self.world.lock().poll_wait(self.key, context.waker());
        match brought {
            Some(brought) => {
                self.over = true;
                Poll::Ready(brought)
            }
            None => Poll::Pending,
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if !self.over {
            self.world.lock().abandon_wait(self.key);
        }
    }
}

/// What a host thread knows of the block namespace and the app that serves it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockTarget {
    pub geometry: Geometry,
    pub base_io: AppNumber,
    pub bytes: u64,
    pub block_bytes: u32,
    /// Direct-IO, which user processes reach it by.
    pub direct_io: Option<AppNumber>,
}

/// A simulated thread of the host.
#[derive(Clone)]
pub struct HostThread {
    pub(crate) world: Shared,
    pub(crate) thread: u32,
    pub(crate) parameters: Arc<HostParameters>,
    pub(crate) block: Option<BlockTarget>,
    pub(crate) endpoint: Arc<SimulatedHre>,
    /// The user process' own.
    pub(crate) direct: Arc<SimulatedHre>,
    pub(crate) file_lock: u32,
}

impl HostThread {
    /// The simulated time, nanoseconds since the simulation began.
    pub fn now_ns(&self) -> u64 {
        self.world.lock().now_ns
    }

    /// Sleeps for `ns` nanoseconds, without a processor.
    pub async fn sleep(&self, ns: u64) {
        let until = self.now_ns().saturating_add(ns);
        Waiting::begin(&self.world, What::Time(until), |world, key| world.at(until, Then::Wait(key))).await;
    }

    /// Computes for `ns` nanoseconds on one of the host's processors; waits for one first where all are busy. `what` is the name in
    /// the trace.
    pub async fn compute(&self, ns: u64, what: &'static str) {
        let thread = self.thread;
        Waiting::begin(&self.world, What::Processor(what), |world, key| world.work(thread, ns, what, Then::Wait(key)))
            .await;
    }

    /// The thread's endpoint at the device, without host costs: for RPCs and key-value commands through [`willow_host::Hre`] and
    /// the clients over it.
    pub fn endpoint(&self) -> &Arc<SimulatedHre> {
        &self.endpoint
    }

    /// Bytes of the block namespace.
    pub fn block_bytes(&self) -> u64 {
        self.block.map_or(0, |block| block.bytes)
    }

    /// Reads `bytes` bytes of the block namespace from `offset` on, by a path through the host's software.
    pub async fn read(&self, path: Path, offset: u64, bytes: u32) -> Result<Vec<u8>, HreError> {
        self.transfer(path, offset, vec![0; bytes as usize], false).await
    }

    /// Writes `data` to the block namespace at `offset`, by a path through the host's software; the buffer comes back.
    pub async fn write(&self, path: Path, offset: u64, data: Vec<u8>) -> Result<Vec<u8>, HreError> {
        self.transfer(path, offset, data, true).await
    }

    async fn transfer(&self, path: Path, offset: u64, data: Vec<u8>, write: bool) -> Result<Vec<u8>, HreError> {
        let block = self.block.ok_or_else(|| HreError::Argument("the device has no block namespace".to_owned()))?;
        let bytes = data.len() as u64;
        let unit = u64::from(block.block_bytes);
        if !offset.is_multiple_of(unit) || !bytes.is_multiple_of(unit) || bytes == 0 {
            return Err(HreError::Argument(format!("{bytes} bytes at {offset} are no whole blocks of {unit} bytes")));
        }
        if offset.checked_add(bytes).is_none_or(|end| end > block.bytes) {
            return Err(HreError::OutOfRange);
        }
        let host = self.parameters.clone();
        let _lock = match host.is_exclusive(path, write, offset, bytes) {
            true => Some(self.hold(self.file_lock).await),
            false => None,
        };
        self.compute(host.submit_ns(path, write, bytes), if write { "submit write" } else { "submit read" }).await;
        let begun_ns = self.now_ns();
        let done = match path {
            Path::User => self.transfer_direct(&block, write, offset, data).await,
            _ => {
                let request = crate::operation::block_request(&block, write, (offset, data.len() as u32), data);
                crate::operation::block_result(self.endpoint.queue().request(request).await?)
            }
        };
        self.account_polling(path, begun_ns);
        let interrupt_ns = host.interrupt_ns(path);
        if interrupt_ns > 0 {
            self.interrupt(interrupt_ns).await;
        }
        self.compute(host.complete_ns(path, write, bytes), if write { "complete write" } else { "complete read" })
            .await;
        done
    }

    /// Does `call` between the costs of an RPC from user space: submission, polling, and copying `in_bytes` out of the queue's memory.
    pub async fn rpc<T>(&self, out_bytes: u64, in_bytes: u64, call: impl Future<Output = T>) -> T {
        let host = &self.parameters;
        self.compute(host.submit_ns(Path::Rpc, true, out_bytes), "submit RPC").await;
        let begun_ns = self.now_ns();
        let answer = call.await;
        self.account_polling(Path::Rpc, begun_ns);
        self.compute(host.complete_ns(Path::Rpc, false, in_bytes), "complete RPC").await;
        answer
    }

    fn account_polling(&self, path: Path, since_ns: u64) {
        if self.parameters.polls(path) {
            let mut world = self.world.lock();
            world.polled_ns += world.now_ns - since_ns;
        }
    }

    async fn interrupt(&self, ns: u64) {
        Waiting::begin(&self.world, What::Processor("interrupt"), |world, key| {
            let thread = world.interrupt_thread();
            world.work(thread, ns, "interrupt", Then::Wait(key));
        })
        .await;
    }

    async fn hold(&self, lock: u32) -> Held {
        let thread = self.thread;
        Waiting::begin(&self.world, What::Lock(lock), |world, key| world.acquire(lock, thread, Then::Wait(key))).await;
        Held { world: self.world.clone(), lock, thread }
    }
}

/// A lock of the host, or a semaphore: `permits` threads hold it at once, in the order in which they asked.
#[derive(Clone)]
pub struct HostLock {
    pub(crate) lock: u32,
}

impl HostLock {
    /// Takes it for a thread; dropping what comes back gives it up. Taking a lock that the thread holds already waits for ever, as it
    /// does on a host.
    pub async fn hold(&self, thread: &HostThread) -> Held {
        thread.hold(self.lock).await
    }
}

/// A lock that is held.
pub struct Held {
    world: Shared,
    lock: u32,
    thread: u32,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.world.lock().release(self.lock, self.thread);
    }
}

/// An endpoint of a simulated device, as the trait that all transports serve.
pub type SimulatedHre = QueueHre<SimulatedQueue>;

/// Its queue.
pub struct SimulatedQueue {
    pub(crate) world: Shared,
    pub(crate) hre: HreId,
}

impl Drop for SimulatedQueue {
    fn drop(&mut self) {
        self.world.lock().mail.push_back(Mail::Close(self.hre));
    }
}

impl SimulatedQueue {
    async fn wait(&self, what: What, mail: impl FnOnce(u32) -> Mail) -> Brought {
        Waiting::begin(&self.world, what, |world, key| world.mail.push_back(mail(key))).await
    }
}

fn senseless() -> HreError {
    HreError::Answer("the simulation has ended".to_owned())
}

impl DeviceQueue for SimulatedQueue {
    async fn look(&self) -> Result<Arc<View>, HreError> {
        match self.wait(What::Device, Mail::Look).await {
            Brought::View(view) => Ok(view),
            _ => Err(senseless()),
        }
    }

    async fn request(&self, request: HostRequest) -> Result<HostCompletion, HreError> {
        let what = What::Request { hre: self.hre, what: crate::operation::name(&request) };
        match self.wait(what, |key| Mail::Request(self.hre, request, key)).await {
            Brought::Completion(done) => Ok(*done),
            Brought::Refused => Err(HreError::Refused),
            _ => Err(senseless()),
        }
    }

    async fn upcall(&self, wait: Duration) -> Result<Option<Upcall>, HreError> {
        let ns = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
        match self.wait(What::Upcall(self.hre), |key| Mail::Upcall(self.hre, ns, key)).await {
            Brought::Upcall(upcall) => Ok(upcall),
            _ => Err(senseless()),
        }
    }

    async fn answer(&self, id: u64, status: u32, result: u32) -> Result<bool, HreError> {
        match self.wait(What::Device, |key| Mail::Answer(self.hre, id, status, result, key)).await {
            Brought::Flag(answered) => Ok(answered),
            _ => Err(senseless()),
        }
    }
}
