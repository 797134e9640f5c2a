//! A device inside this process, driven without any transport: what the device itself costs.
//!
//! Invariants: the device's time is this machine's monotonic clock; jobs are done in place, between requests.

use crate::bench::engine::{Driver, Ended, Operation};
use crate::failure::{Context, Failure, Outcome, fail};
use base_io_host::Geometry;
use base_io_host::wire::handler;
use key_value_host::wire::STATUS_NOT_FOUND;
use key_value_host::{Call, Placement, PutCondition};
use std::time::Instant;
use willow_device::{
    AppNumber, Arguments, BuiltInApp, CommandSet, Device, DeviceConfig, HostCompletion, HostRequest, HreId, Rpc,
    RpcList, RpcOutcome, Store,
};
use willow_sim::operation::key_of;

/// Fills buffers that are written: no run of zeroes, nothing that compresses away.
pub fn fill(buffer: &mut [u8], seed: u64) {
    let mut random = super::engine::Random(seed);
    for chunk in buffer.chunks_mut(8) {
        let word = random.next_u64().to_le_bytes();
        chunk.copy_from_slice(&word[..chunk.len()]);
    }
}

/// The device and one endpoint on it.
pub struct InProcess {
    device: Device,
    hre: HreId,
    origin: Instant,
    geometry: Geometry,
    block_bytes: u32,
    base_io: AppNumber,
    key_value: AppNumber,
    kv_nsid: u32,
    placement: Placement,
    buffers: Vec<Option<Vec<u8>>>,
    operations: Vec<Operation>,
}

impl InProcess {
    /// A fresh device in memory; `built_in` are its apps; each of `slots` slots has a buffer of `buffer_bytes`.
    pub fn new(
        config: DeviceConfig,
        store: Box<dyn Store>,
        built_in: Vec<BuiltInApp>,
        slots: usize,
        buffer_bytes: usize,
    ) -> Outcome<Self> {
        let device = Device::open(config, store, None, built_in).context(|| "cannot open a device".to_owned())?;
        let mut made = InProcess {
            hre: HreId::DEVICE,
            origin: Instant::now(),
            geometry: Geometry { spus: device.spus(), stripe_bytes: device.stripe_bytes(), base: 0 },
            block_bytes: 0,
            base_io: 0,
            key_value: 0,
            kv_nsid: 0,
            placement: Placement::new([0; 16], device.spus()),
            buffers: (0..slots)
                .map(|slot| {
                    let mut buffer = vec![0; buffer_bytes];
                    fill(&mut buffer, slot as u64 + 1);
                    Some(buffer)
                })
                .collect(),
            operations: vec![Operation::Delete { key: 0 }; slots],
            device,
        };
        made.settle();
        made.hre = made.device.open_hre(None).ok_or_else(|| Failure::new("the device has no endpoint free"))?;
        for namespace in made.device.namespaces().iter() {
            match namespace.csi {
                CommandSet::Nvm => {
                    made.geometry.base = namespace.base;
                    made.block_bytes = namespace.block_bytes;
                }
                CommandSet::Kv => {
                    made.kv_nsid = namespace.nsid;
                    made.placement = Placement::new(namespace.nguid, made.device.spus());
                }
            }
        }
        let app = |name: &str| {
            made.device.app_number(name).ok_or_else(|| Failure::new(format_args!("app {name} is not installed")))
        };
        (made.base_io, made.key_value) = (app(base_io_host::APP_NAME)?, app(key_value_host::APP_NAME)?);
        Ok(made)
    }

    fn now_ns(&self) -> u64 {
        self.origin.elapsed().as_nanos() as u64
    }

    /// Lets the device do all that it has to do by itself (its apps' first events).
    fn settle(&mut self) {
        loop {
            let wake = self.device.run(self.now_ns());
            let mut worked = false;
            while let Some(job) = self.device.job() {
                let done = job.run();
                self.device.job_done(done);
                worked = true;
            }
            if !worked && wake.is_none_or(|at| at > self.now_ns()) {
                break;
            }
        }
    }

    fn submit(&mut self, slot: usize, rpcs: RpcList, payload: u32, reply: u32) -> Outcome<()> {
        let Some(buffer) = self.buffers[slot].take() else { fail!("slot {slot} is in use: please report this") };
        let request = HostRequest { tag: slot as u64, rpcs, buffer, payload_bytes: payload, reply_bytes: reply };
        match self.device.submit(self.hre, request) {
            Ok(()) => Ok(()),
            Err(_) => fail!("the device takes no more requests at this depth: use a smaller one"),
        }
    }

    fn range(&mut self, slot: usize, handler: u8, offset: u64, bytes: u32, payload: u32, reply: u32) -> Outcome<()> {
        let app = self.base_io;
        let mut first = None;
        let mut many = Vec::new();
        self.geometry.range(handler, offset, u64::from(bytes), 0, 0, |request| {
            // 32 bytes of arguments fit.
            let arguments = Arguments::new(&request.arguments.encode()).unwrap_or(Arguments::EMPTY);
            let rpc = Rpc { app, handler: request.handler, spu: request.spu, arguments };
            match first {
                None => first = Some(rpc),
                Some(_) => many.push(rpc),
            }
        });
        let Some(first) = first else { fail!("an operation of 0 bytes") };
        let rpcs = if many.is_empty() {
            RpcList::One(first)
        } else {
            many.push(first);
            RpcList::Many(many)
        };
        self.submit(slot, rpcs, payload, reply)
    }

    fn call(&mut self, slot: usize, call: Call, payload: u32, reply: u32) -> Outcome<()> {
        let arguments = Arguments::new(&call.arguments).unwrap_or(Arguments::EMPTY);
        let rpc = Rpc { app: self.key_value, handler: call.handler, spu: call.spu, arguments };
        self.submit(slot, RpcList::One(rpc), payload, reply)
    }

    fn ended(&mut self, completion: HostCompletion) -> Outcome<Ended> {
        let slot = completion.tag as usize;
        let operation = self.operations[slot];
        self.buffers[slot] = Some(completion.buffer);
        let of_a_pair = matches!(operation, Operation::Get { .. } | Operation::Put { .. } | Operation::Delete { .. });
        match completion.outcome {
            RpcOutcome::Answered { status: 0 } => Ok(Ended { slot, result: Some(completion.result) }),
            RpcOutcome::Answered { status: STATUS_NOT_FOUND } if of_a_pair => Ok(Ended { slot, result: None }),
            other => fail!("{operation:?} failed: {other:?}"),
        }
    }
}

impl Driver for InProcess {
    fn buffer(&mut self, slot: usize) -> &mut [u8] {
        self.buffers[slot].as_deref_mut().unwrap_or_default()
    }

    #[inline]
    fn begin(&mut self, slot: usize, operation: Operation) -> Outcome<()> {
        self.operations[slot] = operation;
        match operation {
            Operation::Read { offset, bytes } => self.range(slot, handler::READ, offset, bytes, 0, bytes),
            Operation::Write { offset, bytes } => self.range(slot, handler::WRITE, offset, bytes, bytes, 0),
            Operation::Get { key, bytes } => {
                let call = Call::get(&self.placement, self.kv_nsid, &key_of(key), 0);
                self.call(slot, call, 0, bytes)
            }
            Operation::Put { key, bytes } => {
                let key = key_of(key);
                let call = Call::put(&self.placement, self.kv_nsid, &key, bytes, PutCondition::Always, false)
                    .map_err(Failure::new)?;
                self.call(slot, call, bytes, 0)
            }
            Operation::Delete { key } => {
                let call = Call::delete(&self.placement, self.kv_nsid, &key_of(key), false);
                self.call(slot, call, 0, 0)
            }
        }
    }

    #[inline]
    fn poll(&mut self, ended: &mut Vec<Ended>) -> Outcome<()> {
        let now_ns = self.now_ns();
        self.device.run(now_ns);
        while let Some(job) = self.device.job() {
            let done = job.run();
            self.device.job_done(done);
        }
        while let Some(completion) = self.device.completion() {
            let end = self.ended(completion)?;
            ended.push(end);
        }
        Ok(())
    }
}
