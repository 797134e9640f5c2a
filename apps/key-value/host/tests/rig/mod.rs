//! A device with the app in it, and the requests of this library sent to it.
#![allow(dead_code)]

use key_value_host::wire::{self, Statistics};
use key_value_host::{Call, Key, KeyValueError, ListKeys, ListScan, ListStep, Placement, PutCondition};
use std::collections::{BTreeMap, VecDeque};
use willow_device::control::{self, NamespaceRequest};
use willow_device::{
    Arguments, BuiltInApp, CommandSet, Device, DeviceConfig, HostCompletion, HostRequest, HreId, Rpc, RpcList,
    RpcOutcome, Store,
};

pub struct Rig {
    pub device: Device,
    pub hre: HreId,
    pub app: u16,
    now_ns: u64,
    tag: u64,
    done: BTreeMap<u64, HostCompletion>,
}

/// The app: natively, or the module in the file that `WILLOW_KEY_VALUE_MODULE` names.
pub fn app() -> BuiltInApp {
    match std::env::var_os("WILLOW_KEY_VALUE_MODULE") {
        Some(path) => BuiltInApp::Wasm(Box::leak(std::fs::read(path).expect("the module").into_boxed_slice())),
        None => BuiltInApp::Native(key_value_spu::native()),
    }
}

pub fn config(spus: u16) -> DeviceConfig {
    DeviceConfig { spus, namespace_bytes: 0, kv_namespace_bytes: 0, ..Default::default() }
}

impl Rig {
    pub fn new(spus: u16, store: Box<dyn Store>) -> Rig {
        Rig::with_apps(spus, store, vec![])
    }

    /// The same with apps that come before it.
    pub fn with_apps(spus: u16, store: Box<dyn Store>, mut apps: Vec<BuiltInApp>) -> Rig {
        apps.push(app());
        let mut device = Device::open(config(spus), store, None, apps).expect("the device opens");
        let hre = device.open_hre(None).expect("an endpoint");
        let app = device.app_number(key_value_host::APP_NAME).expect("the app is built in");
        Rig { device, hre, app, now_ns: 0, tag: 0, done: BTreeMap::new() }
    }

    /// Runs the device until nothing is left to do, or for that many rounds.
    pub fn run(&mut self, rounds: u32) -> bool {
        for _ in 0..rounds {
            let wake = self.device.run(self.now_ns);
            let mut worked = false;
            while let Some(job) = self.device.job() {
                let done = job.run();
                self.device.job_done(done);
                worked = true;
            }
            let mut ended = false;
            while let Some(done) = self.device.completion() {
                self.done.insert(done.tag, done);
                ended = true;
            }
            match wake {
                Some(at_ns) => self.now_ns = self.now_ns.max(at_ns),
                None if !worked && !ended => return true,
                None => {}
            }
        }
        false
    }

    pub fn submit<const BYTES: usize>(&mut self, call: Call<BYTES>, payload: &[u8], reply_bytes: usize) -> u64 {
        let rpc = Rpc {
            app: self.app,
            handler: call.handler,
            spu: call.spu,
            arguments: Arguments::new(&call.arguments).expect("they fit"),
        };
        self.send(rpc, payload, reply_bytes)
    }

    fn send(&mut self, rpc: Rpc, payload: &[u8], reply_bytes: usize) -> u64 {
        self.tag += 1;
        let mut buffer = payload.to_vec();
        buffer.resize(payload.len().max(reply_bytes), 0);
        let request = HostRequest {
            tag: self.tag,
            rpcs: RpcList::One(rpc),
            buffer,
            payload_bytes: payload.len() as u32,
            reply_bytes: reply_bytes as u32,
        };
        self.device.submit(self.hre, request).expect("the queue has room");
        self.tag
    }

    /// The end of a request.
    pub fn take(&mut self, tag: u64) -> Option<HostCompletion> {
        self.done.remove(&tag)
    }

    pub fn wait(&mut self, tag: u64) -> HostCompletion {
        for _ in 0..100_000 {
            self.run(1);
            if let Some(done) = self.take(tag) {
                return done;
            }
        }
        panic!("request {tag} does not end");
    }

    pub fn call<const BYTES: usize>(
        &mut self,
        call: Call<BYTES>,
        payload: &[u8],
        reply_bytes: usize,
    ) -> Result<HostCompletion, KeyValueError> {
        let tag = self.submit(call, payload, reply_bytes);
        let done = self.wait(tag);
        outcome(&done).map(|()| done)
    }

    fn control(&mut self, handler: u8, payload: &[u8]) -> u32 {
        let arguments = Arguments::new(&[]).expect("none");
        let tag = self.send(Rpc { app: control::CONTROL_APP, handler, spu: 0, arguments }, payload, 0);
        let done = self.wait(tag);
        assert_eq!(done.outcome, RpcOutcome::Answered { status: 0 });
        done.result
    }

    /// Makes a key-value namespace.
    pub fn create(&mut self, size_bytes: u64) -> Namespace {
        let request = NamespaceRequest::new(CommandSet::Kv, size_bytes);
        let nsid = self.control(control::CREATE_NAMESPACE, &serde_json::to_vec(&request).expect("JSON"));
        self.namespace(nsid)
    }

    pub fn delete_namespace(&mut self, nsid: u32) {
        self.control(control::DELETE_NAMESPACE, &nsid.to_le_bytes());
    }

    pub fn namespace(&self, nsid: u32) -> Namespace {
        let namespaces = self.device.namespaces();
        let found = namespaces.iter().find(|namespace| namespace.nsid == nsid).expect("the namespace");
        Namespace { nsid, placement: Placement::new(found.nguid, self.device.spus()) }
    }

    pub fn shutdown(&mut self) {
        self.device.shutdown();
        for _ in 0..100_000 {
            self.run(1);
            if self.device.is_shut_down() {
                return;
            }
        }
        panic!("the device does not go down");
    }
}

pub fn outcome(done: &HostCompletion) -> Result<(), KeyValueError> {
    match done.outcome {
        RpcOutcome::Answered { status } => KeyValueError::from_status(status),
        other => panic!("{other:?}"),
    }
}

#[derive(Clone, Copy)]
pub struct Namespace {
    pub nsid: u32,
    pub placement: Placement,
}

impl Namespace {
    pub fn put(&self, rig: &mut Rig, key: &[u8], value: &[u8]) -> Result<(), KeyValueError> {
        self.put_if(rig, key, value, PutCondition::Always, false)
    }

    pub fn put_if(
        &self,
        rig: &mut Rig,
        key: &[u8],
        value: &[u8],
        condition: PutCondition,
        durable: bool,
    ) -> Result<(), KeyValueError> {
        let key = Key::new(key)?;
        let call = Call::put(&self.placement, self.nsid, &key, value.len() as u32, condition, durable)?;
        rig.call(call, value, 0).map(drop)
    }

    pub fn get(&self, rig: &mut Rig, key: &[u8], room: usize) -> Result<Vec<u8>, KeyValueError> {
        let done = rig.call(Call::get(&self.placement, self.nsid, &Key::new(key)?, 0), &[], room)?;
        let length = (done.result as usize).min(room);
        let mut value = done.buffer;
        value.truncate(length);
        Ok(value)
    }

    pub fn delete(&self, rig: &mut Rig, key: &[u8]) -> Result<(), KeyValueError> {
        rig.call(Call::delete(&self.placement, self.nsid, &Key::new(key)?, false), &[], 0).map(drop)
    }

    pub fn flush(&self, rig: &mut Rig) -> Result<(), KeyValueError> {
        (0..self.placement.spus()).try_for_each(|spu| rig.call(Call::flush(self.nsid, spu), &[], 0).map(drop))
    }

    pub fn list(
        &self,
        rig: &mut Rig,
        from: Option<&Key>,
        after: bool,
        room: usize,
    ) -> Result<(Vec<Key>, bool), KeyValueError> {
        let mut buffer = vec![0; room];
        let (mut scan, mut step) = ListScan::start(self.placement, self.nsid, from, after, room);
        loop {
            match step {
                ListStep::Done { more } => {
                    let bytes = scan.finish(&mut buffer);
                    return Ok((ListKeys::new(&buffer[..bytes]).collect(), more));
                }
                ListStep::Call(call) => {
                    let done = rig.call(call, &buffer, room)?;
                    buffer = done.buffer;
                    step = scan.answered(done.result);
                }
            }
        }
    }

    pub fn list_all(&self, rig: &mut Rig, room: usize) -> Result<Vec<Key>, KeyValueError> {
        let mut all: Vec<Key> = Vec::new();
        loop {
            let last = all.last().copied();
            let (keys, more) = self.list(rig, last.as_ref(), last.is_some(), room)?;
            all.extend(keys);
            if !more {
                return Ok(all);
            }
        }
    }

    pub fn statistics(&self, rig: &mut Rig) -> Result<Statistics, KeyValueError> {
        let mut sum = Statistics::default();
        for spu in 0..self.placement.spus() {
            let done = rig.call(Call::statistics(self.nsid, spu), &[], Statistics::BYTES)?;
            let of_spu = Statistics::decode(done.buffer[..].try_into().expect("its size"));
            sum.pairs += of_spu.pairs;
            sum.value_bytes += of_spu.value_bytes;
            sum.used_bytes += of_spu.used_bytes;
            sum.heap_bytes += of_spu.heap_bytes;
            sum.limbo_slots += of_spu.limbo_slots;
        }
        Ok(sum)
    }
}

/// Many requests at once, in order of their submission for each key.
pub type Queue = VecDeque<u64>;

pub const LIST_MORE: u32 = wire::LIST_MORE;
