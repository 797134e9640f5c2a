//! A device, one endpoint of the host's kernel, and requests to any app. Tests of apps on media that lose power share it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use willow_device::media::fault::{Choices, FaultMedia};
use willow_device::{
    Arguments, BuiltInApp, Device, DeviceConfig, HostCompletion, HostRequest, HreId, Rpc, RpcList, RpcOutcome, Store,
};

/// Calls of the device until a request must have ended.
pub const STEPS_MAX: u32 = 1_000_000;

pub struct Drive {
    pub device: Device,
    pub hre: HreId,
    pub now_ns: u64,
    tag: u64,
    pub done: BTreeMap<u64, HostCompletion>,
    /// The store has news, or will have some.
    woken: Arc<AtomicBool>,
}

impl Drive {
    pub fn open(config: DeviceConfig, store: Box<dyn Store>, apps: Vec<BuiltInApp>) -> Result<Drive, String> {
        let mut device = Device::open(config, store, None, apps).map_err(|error| error.to_string())?;
        let hre = device.open_hre(None).ok_or("no endpoint")?;
        let woken = Arc::new(AtomicBool::new(true));
        let waker = Arc::clone(&woken);
        device.set_waker(Arc::new(move || waker.store(true, Ordering::Relaxed)));
        Ok(Drive { device, hre, now_ns: 1, tag: 0, done: BTreeMap::new(), woken })
    }

    /// Runs the device once. True where something may still come of itself.
    pub fn step(&mut self) -> bool {
        self.woken.store(false, Ordering::Relaxed);
        let wake = self.device.run(self.now_ns);
        while let Some(job) = self.device.job() {
            let done = job.run();
            self.device.job_done(done);
        }
        while let Some(done) = self.device.completion() {
            self.done.insert(done.tag, done);
        }
        // The media are faster than any deadline.
        let is_woken = self.woken.load(Ordering::Relaxed);
        if let Some(at_ns) = wake.filter(|_| !is_woken) {
            self.now_ns = self.now_ns.max(at_ns);
        }
        wake.is_some() || is_woken
    }

    /// Runs it until nothing happens by itself any more.
    pub fn settle(&mut self) {
        for _ in 0..STEPS_MAX {
            if !self.step() {
                return;
            }
        }
        panic!("the device does not come to rest");
    }

    /// The same, or until the power has gone.
    pub fn settle_or_cut(&mut self, media: &FaultMedia) {
        for _ in 0..STEPS_MAX {
            if media.is_cut() || !self.step() {
                return;
            }
        }
        panic!("the device does not come to rest");
    }

    pub fn submit_on(
        &mut self,
        hre: HreId,
        (app, spu, handler): (u16, u16, u8),
        arguments: &[u8],
        payload: &[u8],
        reply_bytes: usize,
    ) -> u64 {
        self.tag += 1;
        let mut buffer = payload.to_vec();
        buffer.resize(payload.len().max(reply_bytes), 0);
        let rpc = Rpc { app, handler, spu, arguments: Arguments::new(arguments).expect("they fit") };
        let request = HostRequest {
            tag: self.tag,
            rpcs: RpcList::One(rpc),
            buffer,
            payload_bytes: payload.len() as u32,
            reply_bytes: reply_bytes as u32,
        };
        self.device.submit(hre, request).map_err(drop).expect("the endpoint has room");
        self.tag
    }

    pub fn submit(&mut self, to: (u16, u16, u8), arguments: &[u8], payload: &[u8], reply_bytes: usize) -> u64 {
        self.submit_on(self.hre, to, arguments, payload, reply_bytes)
    }

    pub fn wait(&mut self, tag: u64) -> HostCompletion {
        for _ in 0..STEPS_MAX {
            if let Some(done) = self.done.remove(&tag) {
                return done;
            }
            self.step();
        }
        panic!("request {tag} does not end");
    }

    pub fn call(&mut self, to: (u16, u16, u8), arguments: &[u8], payload: &[u8], reply_bytes: usize) -> HostCompletion {
        let tag = self.submit(to, arguments, payload, reply_bytes);
        self.wait(tag)
    }
}

pub fn status(done: &HostCompletion) -> u32 {
    match done.outcome {
        RpcOutcome::Answered { status } => status,
        other => panic!("{other:?}"),
    }
}

/// Looks at what a cut may have left: at every outcome where there are no more than `most`, else at that many, drawn. Counts them from 1; how many
/// they were.
pub fn each_outcome(
    media: &FaultMedia,
    most: usize,
    seed: u64,
    mut look: impl FnMut(&FaultMedia, u64) -> Result<(), String>,
) -> Result<u64, String> {
    let exhaustive = media.outcomes() <= most as u128;
    let mut choices = if exhaustive { Choices::exhaustive() } else { Choices::seeded(seed) };
    for number in 1.. {
        look(&media.power_cut(&mut choices), number)?;
        if number as usize >= most || !choices.advance() {
            return Ok(number);
        }
    }
    unreachable!()
}

/// Has the power go at each operation of the media in turn, until it no longer does before all is done; how many outcomes were looked at.
pub fn each_cut(mut at: impl FnMut(u64) -> Result<(u64, bool), String>) -> Result<u64, String> {
    let mut looked_at = 0;
    for cut in 0.. {
        let (outcomes, is_cut) = at(cut)?;
        looked_at += outcomes;
        if !is_cut {
            return Ok(looked_at);
        }
    }
    unreachable!()
}
