//! The device: what is inside the SSD. Bridge, interconnect, SPUs with SPU-OS and the app runtime, media controller.
//!
//! What always holds:
//! - It is handed messages and time and hands back messages and wake-up times: no sockets, threads or clocks of its own.
//!   Work that takes machine time (compiling a module) is handed out as a [`Job`].
//! - It knows nothing of transports, hosts or experiments.
//! - Same requests in the same order at the same times: same completions, same order.
//!
//! Who may call it: transports and drivers of a clock, from one thread.

pub mod control;
pub mod hre;
pub mod media;
pub mod namespace;
pub mod request;

pub use hre::HreId;
pub use media::store::{Progress, Store, StoreCompletion, StoreError, Ticket};
pub use namespace::{CommandSet, Namespace};
pub use request::{
    AppNumber, Arguments, HostCompletion, HostRequest, INLINE_ARGUMENT_BYTES_MAX, Rpc, RpcList, RpcOutcome, Upcall,
};

use std::sync::Arc;

/// Work that the driver of the device does outside of it: on a thread of its own, or in place.
pub struct Job(Box<dyn FnOnce() -> JobDone + Send>);
/// What came of a [`Job`]; hand it to [`Device::job_done`].
pub struct JobDone(pub(crate) Box<dyn std::any::Any + Send>);

impl Job {
    /// Does it; may take tens of milliseconds.
    pub fn run(self) -> JobDone {
        (self.0)()
    }
}

/// The device.
pub struct Device {}

impl Device {
    /// A new queue at the bridge. `process`: `None` for the host kernel (trusted), else a user process' number.
    pub fn open_hre(&mut self, _process: Option<u32>) -> Option<HreId> {
        todo!()
    }
    /// Ends a queue: what it has in flight is drained and its completions are dropped.
    pub fn close_hre(&mut self, _hre: HreId) {
        todo!()
    }
    /// Takes a request from a queue; the request comes back where the queue's limit is reached.
    pub fn submit(&mut self, _hre: HreId, _request: HostRequest) -> Result<(), HostRequest> {
        todo!()
    }
    /// Tries to take a request back: true where it is found and not yet answered. Its completion still comes, with
    /// [`RpcOutcome::Aborted`] where it was caught in time.
    pub fn abort(&mut self, _hre: HreId, _tag: u64) -> bool {
        todo!()
    }
    /// Does all that can be done at `now_ns`; returns when it wants to be called again, if it knows.
    pub fn run(&mut self, _now_ns: u64) -> Option<u64> {
        todo!()
    }
    /// The next completion.
    pub fn completion(&mut self) -> Option<HostCompletion> {
        todo!()
    }
    /// The next upcall for an endpoint.
    pub fn upcall(&mut self, _hre: HreId) -> Option<Upcall> {
        todo!()
    }
    /// Answers an upcall. False where there is no such upcall waiting for this endpoint.
    pub fn answer_upcall(&mut self, _hre: HreId, _id: u64, _status: u32, _result: u32) -> bool {
        todo!()
    }
    /// The namespaces, in order of NSID; a new `Arc` each time the table changes.
    pub fn namespaces(&self) -> Arc<Vec<Namespace>> {
        todo!()
    }
    /// Number of an installed app.
    pub fn app_number(&self, _name: &str) -> Option<AppNumber> {
        todo!()
    }
    /// Number of SPUs.
    pub fn spus(&self) -> u16 {
        todo!()
    }
    /// Stripe of block namespaces over SPUs.
    pub fn stripe_bytes(&self) -> u32 {
        8192
    }
    /// True where a power cut can lose completed writes that were not flushed (NVMe: VWC).
    pub fn volatile_write_cache(&self) -> bool {
        todo!()
    }
    /// (used, total) bytes of the media; total is `None` where only the disk bounds it.
    pub fn capacity(&self) -> (u64, Option<u64>) {
        todo!()
    }
    /// The next job to run outside.
    pub fn job(&mut self) -> Option<Job> {
        todo!()
    }
    /// Takes back what came of a job.
    pub fn job_done(&mut self, _done: JobDone) {
        todo!()
    }
    /// Called from other threads' context when the store has news: see [`Store::set_waker`].
    pub fn set_waker(&mut self, _waker: Arc<dyn Fn() + Send + Sync>) {
        todo!()
    }
    /// Begins a clean end: apps leave their state clean, all is flushed. Done when [`Device::is_shut_down`].
    pub fn shutdown(&mut self) {
        todo!()
    }
    /// True after [`Device::shutdown`] has run its course.
    pub fn is_shut_down(&self) -> bool {
        todo!()
    }
}
