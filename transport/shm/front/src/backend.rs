//! The device with the front beside it, as the NVMe subsystem and the server's loop see it.
//!
//! Invariant: what does not come from the front's rings passes through unchanged.

use crate::front::{Front, document};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use willow_device::media::delegate::FlashHealth;
use willow_device::metadata::HostTables;
use willow_device::shared::SharedWindow;
use willow_device::{AppNumber, FlashState, HostCompletion, HostRequest, HreId, Job, JobDone, Namespace, Upcall};
use willow_nvme::Backend;

/// A device, with or without endpoints in shared memory.
pub struct Fronted<B: Backend> {
    device: B,
    front: Option<Front>,
    now_ns: u64,
    is_timed: bool,
}

impl<B: Backend> Fronted<B> {
    /// Puts a front beside what else is in front of a device.
    pub fn new(device: B, front: Option<Front>) -> Self {
        Fronted { is_timed: device.is_timed(), device, front, now_ns: 0 }
    }

    /// The device.
    pub fn device_mut(&mut self) -> &mut B {
        &mut self.device
    }

    /// The front.
    pub fn front(&self) -> Option<&Front> {
        self.front.as_ref()
    }
}

impl<B: Backend> Backend for Fronted<B> {
    fn open_hre(&mut self, process: Option<u32>) -> Option<HreId> {
        self.device.open_hre(process)
    }
    fn close_hre(&mut self, hre: HreId) {
        self.device.close_hre(hre)
    }
    fn vouch(&mut self, process: u32, user: u32, identity: (u64, u64)) {
        self.device.vouch(process, user, identity)
    }
    #[inline]
    fn submit(&mut self, hre: HreId, request: HostRequest) -> Result<(), HostRequest> {
        self.device.submit(hre, request)
    }
    #[inline]
    fn submit_to(&mut self, hre: HreId, request: HostRequest, window: Option<SharedWindow>) -> Result<(), HostRequest> {
        self.device.submit_to(hre, request, window)
    }
    fn is_open(&mut self, hre: HreId) -> bool {
        self.device.is_open(hre)
    }
    fn keep_drained(&mut self) {
        self.device.keep_drained()
    }
    fn drained(&mut self) -> Option<HostCompletion> {
        self.device.drained()
    }
    fn abort(&mut self, hre: HreId, tag: u64) -> bool {
        self.device.abort(hre, tag)
    }
    #[inline]
    fn run(&mut self, now_ns: u64) -> Option<u64> {
        self.now_ns = now_ns;
        let Some(front) = &mut self.front else { return self.device.run(now_ns) };
        let limit_ns = front.turn(&mut self.device, now_ns);
        let wake_ns = self.device.run(now_ns);
        front.look_at_namespaces(&self.device);
        front.look_at_flash(&mut self.device);
        [limit_ns, wake_ns].into_iter().flatten().min()
    }
    #[inline]
    fn completion(&mut self) -> Option<HostCompletion> {
        let Some(front) = &mut self.front else { return self.device.completion() };
        while let Some(completion) = self.device.completion() {
            if front.is_mine(&completion) && self.is_timed {
                self.device.delivered(self.now_ns, completion.at_ns);
            }
            if let Some(completion) = front.completed(completion) {
                return Some(completion);
            }
        }
        front.tell_hosts();
        None
    }
    fn set_clock(&mut self, clock: Box<dyn Fn() -> u64 + Send>) {
        self.device.set_clock(clock)
    }
    fn is_timed(&self) -> bool {
        self.device.is_timed()
    }
    #[inline]
    fn set_time(&mut self, now_ns: u64) {
        self.device.set_time(now_ns)
    }
    #[inline]
    fn delivered(&mut self, now_ns: u64, at_ns: u64) {
        self.device.delivered(now_ns, at_ns)
    }
    fn upcall(&mut self, hre: HreId) -> Option<Upcall> {
        self.device.upcall(hre)
    }
    fn answer_upcall(&mut self, hre: HreId, id: u64, status: u32, result: u32) -> bool {
        self.device.answer_upcall(hre, id, status, result)
    }
    fn namespaces(&self) -> Arc<Vec<Namespace>> {
        self.device.namespaces()
    }
    fn host_tables(&self) -> Arc<HostTables> {
        self.device.host_tables()
    }
    #[inline]
    fn tables_are(&self, namespaces: &Arc<Vec<Namespace>>, host_tables: &Arc<HostTables>) -> bool {
        self.device.tables_are(namespaces, host_tables)
    }
    fn app_number(&self, name: &str) -> Option<AppNumber> {
        self.device.app_number(name)
    }
    fn spus(&self) -> u16 {
        self.device.spus()
    }
    fn volatile_write_cache(&self) -> bool {
        self.device.volatile_write_cache()
    }
    #[inline]
    fn flash_state(&self) -> FlashState {
        self.device.flash_state()
    }
    fn flash_health(&self) -> Option<FlashHealth> {
        self.device.flash_health()
    }
    fn capacity(&self) -> (u64, Option<u64>) {
        self.device.capacity()
    }
    fn temperature_kelvin(&self) -> u16 {
        self.device.temperature_kelvin()
    }
    fn job(&mut self) -> Option<Job> {
        self.device.job()
    }
    fn job_done(&mut self, done: JobDone) {
        self.device.job_done(done)
    }
    fn set_waker(&mut self, waker: Arc<dyn Fn() + Send + Sync>) {
        self.device.set_waker(waker)
    }
    fn shutdown(&mut self) {
        if let Some(front) = &mut self.front {
            front.shut_down(&mut self.device);
        }
        self.device.shutdown()
    }
    fn is_shut_down(&self) -> bool {
        self.device.is_shut_down()
    }
    fn set_front_statistics(&mut self, front: Box<dyn Fn() -> serde_json::Value>) {
        let Some(counters) = self.front.as_ref().map(Front::counters) else {
            return self.device.set_front_statistics(front);
        };
        self.device.set_front_statistics(Box::new(move || {
            let mut all = front();
            if let Some(object) = all.as_object_mut() {
                object.insert("shared_memory".to_owned(), document(&counters));
            }
            all
        }))
    }
    fn front_descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.front.as_ref().map(Front::descriptor)
    }
    fn look_around(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
        if let Some(front) = &mut self.front {
            front.look_around(&mut self.device, now_ns);
        }
    }
    #[inline]
    fn front_was_active(&mut self) -> bool {
        self.front.as_mut().is_some_and(Front::was_active)
    }
    #[inline]
    fn front_is_hot(&self) -> bool {
        self.front.as_ref().is_some_and(Front::is_hot)
    }
    #[inline]
    fn wants_statistics(&mut self) -> bool {
        self.front.as_mut().is_some_and(Front::wants_statistics)
    }
    fn prepare_sleep(&mut self) -> bool {
        self.front.as_mut().is_none_or(Front::prepare_sleep)
    }
}
