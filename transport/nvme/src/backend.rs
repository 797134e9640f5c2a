//! The seam between the subsystem and what serves it: the calls of [`willow_device::Device`] that commands need, no more.
//! The subsystem is generic over it, so that what serves it can be wrapped: to observe it, or to make it fail in a test.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use willow_device::media::delegate::FlashHealth;
use willow_device::metadata::HostTables;
use willow_device::shared::SharedWindow;
use willow_device::{
    AppNumber, Device, FlashState, HostCompletion, HostRequest, HreId, Job, JobDone, Namespace, Upcall,
};

/// What serves the subsystem. Each function is the one of the same name in [`Device`].
#[allow(missing_docs)]
pub trait Backend {
    fn open_hre(&mut self, process: Option<u32>) -> Option<HreId>;
    fn close_hre(&mut self, hre: HreId);
    /// Says whose a process is that has endpoints, from the host's kernel.
    fn vouch(&mut self, process: u32, user: u32, identity: (u64, u64));
    fn submit(&mut self, hre: HreId, request: HostRequest) -> Result<(), HostRequest>;
    fn submit_to(&mut self, hre: HreId, request: HostRequest, window: Option<SharedWindow>) -> Result<(), HostRequest>;
    fn is_open(&mut self, hre: HreId) -> bool;
    fn keep_drained(&mut self);
    fn drained(&mut self) -> Option<HostCompletion>;
    fn abort(&mut self, hre: HreId, tag: u64) -> bool;
    fn run(&mut self, now_ns: u64) -> Option<u64>;
    fn set_clock(&mut self, clock: Box<dyn Fn() -> u64 + Send>);
    fn is_timed(&self) -> bool;
    fn set_time(&mut self, now_ns: u64);
    fn delivered(&mut self, now_ns: u64, at_ns: u64);
    fn completion(&mut self) -> Option<HostCompletion>;
    fn upcall(&mut self, hre: HreId) -> Option<Upcall>;
    fn answer_upcall(&mut self, hre: HreId, id: u64, status: u32, result: u32) -> bool;
    fn namespaces(&self) -> Arc<Vec<Namespace>>;
    fn host_tables(&self) -> Arc<HostTables>;
    fn tables_are(&self, namespaces: &Arc<Vec<Namespace>>, host_tables: &Arc<HostTables>) -> bool;
    fn app_number(&self, name: &str) -> Option<AppNumber>;
    fn spus(&self) -> u16;
    fn volatile_write_cache(&self) -> bool;
    fn flash_state(&self) -> FlashState;
    fn flash_health(&self) -> Option<FlashHealth>;
    fn capacity(&self) -> (u64, Option<u64>);
    /// Temperature of the machine; 0: it tells none.
    fn temperature_kelvin(&self) -> u16 {
        0
    }
    fn job(&mut self) -> Option<Job>;
    fn job_done(&mut self, done: JobDone);
    fn set_waker(&mut self, waker: Arc<dyn Fn() + Send + Sync>);
    fn shutdown(&mut self);
    fn is_shut_down(&self) -> bool;
    fn set_front_statistics(&mut self, front: Box<dyn Fn() -> serde_json::Value>);

    // What another front of the same device, beside NVMe, needs of the loop that drives both. A device by itself has none.

    /// Readable when the other front has to look around.
    fn front_descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    /// The descriptor was readable, at this time.
    fn look_around(&mut self, _now_ns: u64) {}
    /// Whether the other front did something since the last call.
    fn front_was_active(&mut self) -> bool {
        false
    }
    /// Whether it polls: something may come at any moment.
    fn front_is_hot(&self) -> bool {
        false
    }
    /// True once where the other front is about to ask the device for statistics: they tell of NVMe's hosts, too.
    fn wants_statistics(&mut self) -> bool {
        false
    }
    /// Called before the loop sleeps; false where it must not, since something has come.
    fn prepare_sleep(&mut self) -> bool {
        true
    }
}

impl Backend for Device {
    fn open_hre(&mut self, process: Option<u32>) -> Option<HreId> {
        Device::open_hre(self, process)
    }
    fn close_hre(&mut self, hre: HreId) {
        Device::close_hre(self, hre)
    }
    fn vouch(&mut self, process: u32, user: u32, identity: (u64, u64)) {
        Device::vouch(self, process, user, identity)
    }
    #[inline]
    fn submit(&mut self, hre: HreId, request: HostRequest) -> Result<(), HostRequest> {
        Device::submit(self, hre, request)
    }
    #[inline]
    fn submit_to(&mut self, hre: HreId, request: HostRequest, window: Option<SharedWindow>) -> Result<(), HostRequest> {
        Device::submit_to(self, hre, request, window)
    }
    fn is_open(&mut self, hre: HreId) -> bool {
        Device::is_open(self, hre)
    }
    fn keep_drained(&mut self) {
        Device::keep_drained(self)
    }
    fn drained(&mut self) -> Option<HostCompletion> {
        Device::drained(self)
    }
    fn abort(&mut self, hre: HreId, tag: u64) -> bool {
        Device::abort(self, hre, tag)
    }
    #[inline]
    fn run(&mut self, now_ns: u64) -> Option<u64> {
        Device::run(self, now_ns)
    }
    fn set_clock(&mut self, clock: Box<dyn Fn() -> u64 + Send>) {
        Device::set_clock(self, clock)
    }
    fn is_timed(&self) -> bool {
        Device::is_timed(self)
    }
    #[inline]
    fn set_time(&mut self, now_ns: u64) {
        Device::set_time(self, now_ns)
    }
    #[inline]
    fn delivered(&mut self, now_ns: u64, at_ns: u64) {
        Device::delivered(self, now_ns, at_ns)
    }
    #[inline]
    fn completion(&mut self) -> Option<HostCompletion> {
        Device::completion(self)
    }
    fn upcall(&mut self, hre: HreId) -> Option<Upcall> {
        Device::upcall(self, hre)
    }
    fn answer_upcall(&mut self, hre: HreId, id: u64, status: u32, result: u32) -> bool {
        Device::answer_upcall(self, hre, id, status, result)
    }
    fn namespaces(&self) -> Arc<Vec<Namespace>> {
        Device::namespaces(self)
    }
    fn host_tables(&self) -> Arc<HostTables> {
        Device::host_tables(self)
    }
    #[inline]
    fn tables_are(&self, namespaces: &Arc<Vec<Namespace>>, host_tables: &Arc<HostTables>) -> bool {
        Device::tables_are(self, namespaces, host_tables)
    }
    fn app_number(&self, name: &str) -> Option<AppNumber> {
        Device::app_number(self, name)
    }
    fn spus(&self) -> u16 {
        Device::spus(self)
    }
    fn volatile_write_cache(&self) -> bool {
        Device::volatile_write_cache(self)
    }
    #[inline]
    fn flash_state(&self) -> FlashState {
        Device::flash_state(self)
    }
    fn flash_health(&self) -> Option<FlashHealth> {
        Device::flash_health(self)
    }
    fn capacity(&self) -> (u64, Option<u64>) {
        Device::capacity(self)
    }
    fn job(&mut self) -> Option<Job> {
        Device::job(self)
    }
    fn job_done(&mut self, done: JobDone) {
        Device::job_done(self, done)
    }
    fn set_waker(&mut self, waker: Arc<dyn Fn() + Send + Sync>) {
        Device::set_waker(self, waker)
    }
    fn shutdown(&mut self) {
        Device::shutdown(self)
    }
    fn is_shut_down(&self) -> bool {
        Device::is_shut_down(self)
    }
    fn set_front_statistics(&mut self, front: Box<dyn Fn() -> serde_json::Value>) {
        Device::set_front_statistics(self, front)
    }
}
