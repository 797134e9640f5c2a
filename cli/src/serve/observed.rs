//! The device as the server drives it, with two additions: its thread publishes the device's statistics when a scrape has
//! asked for them, and the statistics that hosts read name this process.
//!
//! Invariant: the device's thread never waits here; the lock is held only to exchange a value.

use crate::serve::disk::Disk;
use crate::serve::temperature::Temperature;
use crate::statistics::Statistics;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;
use willow_device::media::delegate::FlashHealth;
use willow_device::metadata::HostTables;
use willow_device::shared::SharedWindow;
use willow_device::{
    AppNumber, Device, FlashState, HostCompletion, HostRequest, HreId, Job, JobDone, Namespace, Upcall,
};
use willow_nvme::Backend;
use willow_tcp::ServerHandle;

/// Longest wait of a scrape for the device's thread.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(2);

#[derive(Default)]
struct Mailbox {
    wanted: AtomicBool,
    latest: Mutex<Option<willow_device::statistics::Statistics>>,
    arrived: Condvar,
}

/// The device.
pub struct Observed {
    device: Device,
    mailbox: Arc<Mailbox>,
    disk: Option<Disk>,
    temperature: Temperature,
}

/// What its thread published, for another thread.
pub struct Published(Arc<Mailbox>);

impl Observed {
    /// Around a device whose contents are in this folder.
    pub fn new(device: Device, media: Option<&Path>, temperature: Temperature) -> (Self, Published) {
        let mailbox = Arc::new(Mailbox::default());
        let disk = media.map(Disk::of);
        (Observed { device, mailbox: mailbox.clone(), disk, temperature }, Published(mailbox))
    }

    #[cold]
    fn publish(&self) {
        let mut latest = self.mailbox.latest.lock().unwrap_or_else(PoisonError::into_inner);
        *latest = Some(self.device.statistics());
        self.mailbox.arrived.notify_all();
    }
}

impl Published {
    /// Asks the device's thread for statistics; `None` where it does not answer in time.
    pub fn ask(&self, handle: &ServerHandle) -> Option<Statistics> {
        self.0.latest.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.0.wanted.store(true, Ordering::Release);
        // Wakes the thread, too.
        let front = handle.statistics(ANSWER_TIME_MAX)?;
        let latest = self.0.latest.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.0.arrived.wait_timeout_while(latest, ANSWER_TIME_MAX, |latest| latest.is_none());
        let device = waited.unwrap_or_else(PoisonError::into_inner).0.take()?;
        let mut document = serde_json::to_value(device).ok()?;
        document.as_object_mut()?.insert("transport".to_owned(), serde_json::to_value(front).ok()?);
        serde_json::from_value(document).ok()
    }
}

impl Backend for Observed {
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
        let wake_ns = self.device.run(now_ns);
        if self.mailbox.wanted.load(Ordering::Relaxed) && self.mailbox.wanted.swap(false, Ordering::Acquire) {
            self.publish();
        }
        wake_ns
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
    #[inline]
    fn completion(&mut self) -> Option<HostCompletion> {
        self.device.completion()
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
        let (used_bytes, total_bytes) = self.device.capacity();
        let disk_bytes = self.disk.as_ref().and_then(Disk::room_bytes);
        (used_bytes, total_bytes.into_iter().chain(disk_bytes).min())
    }
    fn temperature_kelvin(&self) -> u16 {
        self.temperature.kelvin()
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
        self.device.shutdown()
    }
    fn is_shut_down(&self) -> bool {
        self.device.is_shut_down()
    }
    fn set_front_statistics(&mut self, front: Box<dyn Fn() -> serde_json::Value>) {
        self.device.set_front_statistics(Box::new(move || {
            let mut document = front();
            if let Some(object) = document.as_object_mut() {
                object.insert("pid".to_owned(), std::process::id().into());
            }
            document
        }))
    }
}
