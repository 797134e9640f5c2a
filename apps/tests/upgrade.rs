//! Key-Value is replaced by itself, again and again, while hosts put and get: no request fails, and every pair is there, also after a
//! power cut.

use key_value_host::{Call, Key, KeyValueError, Placement, PutCondition};
use std::collections::BTreeMap;
use willow_apps::BUNDLED_APPS;
use willow_device::media::fault::{Choices, FaultMedia, FaultOptions};
use willow_device::{
    Arguments, BuiltInApp, CommandSet, Device, DeviceConfig, HostRequest, HreId, Rpc, RpcList, RpcOutcome, control,
};

const SPUS: u16 = 2;
/// Requests in flight.
const WINDOW: usize = 12;
/// Requests between two upgrades.
const BETWEEN: u64 = 60;
const UPGRADES: u64 = 3;
const KEYS: u64 = 40;
const VALUE_BYTES: usize = 700;

fn module() -> &'static [u8] {
    BUNDLED_APPS.iter().find(|app| app.name == key_value_host::APP_NAME).expect("it is there").wasm
}

fn value(seed: u64) -> Vec<u8> {
    (0..VALUE_BYTES as u64).map(|at| (seed.wrapping_mul(0x9e37_79b9) >> (at % 24)) as u8 ^ at as u8).collect()
}

struct Drive {
    device: Device,
    hre: HreId,
    tag: u64,
}

impl Drive {
    fn open(media: &FaultMedia) -> Drive {
        let config =
            DeviceConfig { spus: SPUS, namespace_bytes: 0, kv_namespace_bytes: 16 << 20, ..Default::default() };
        let app = BuiltInApp::Wasm(module());
        let mut device = Device::open(config, Box::new(media.store()), None, vec![app]).expect("the device opens");
        let hre = device.open_hre(None).expect("an endpoint");
        Drive { device, hre, tag: 0 }
    }

    fn placement(&self) -> (u32, Placement) {
        let namespaces = self.device.namespaces();
        let namespace = namespaces.iter().find(|it| it.csi == CommandSet::Kv).expect("the namespace");
        (namespace.nsid, Placement::new(namespace.nguid, SPUS))
    }

    fn submit(&mut self, rpc: Rpc, payload: &[u8], reply_bytes: usize) -> u64 {
        self.tag += 1;
        let mut buffer = payload.to_vec();
        buffer.resize(payload.len().max(reply_bytes), 0);
        let (payload_bytes, reply_bytes) = (payload.len() as u32, reply_bytes as u32);
        let request = HostRequest { tag: self.tag, rpcs: RpcList::One(rpc), buffer, payload_bytes, reply_bytes };
        self.device.submit(self.hre, request).expect("the queue has room");
        self.tag
    }

    fn pair(&mut self, call: Call, payload: &[u8], reply_bytes: usize) -> u64 {
        let app = self.device.app_number(key_value_host::APP_NAME).expect("the app");
        let arguments = Arguments::new(&call.arguments).expect("they fit");
        self.submit(Rpc { app, handler: call.handler, spu: call.spu, arguments }, payload, reply_bytes)
    }

    fn turn(&mut self) {
        self.device.run(0);
        while let Some(job) = self.device.job() {
            let done = job.run();
            self.device.job_done(done);
        }
    }
}

#[test]
fn key_value_is_replaced_under_puts_and_gets() {
    let options = FaultOptions { delayed_percent: 50, seed: 11, ..FaultOptions::new(usize::from(SPUS), 1 << 26) };
    let media = FaultMedia::new(options);
    let mut drive = Drive::open(&media);
    let (nsid, placement) = drive.placement();
    // What is in flight: the key, and the seed of the value of a put.
    let mut in_flight: BTreeMap<u64, (u64, Option<u64>)> = BTreeMap::new();
    let mut busy: BTreeMap<u64, u64> = BTreeMap::new();
    let mut pairs: BTreeMap<u64, u64> = BTreeMap::new();
    let (mut number, mut upgrades, mut install, mut served_meanwhile) = (0u64, 0, None, 0u64);
    while upgrades < UPGRADES || !in_flight.is_empty() {
        while in_flight.len() < WINDOW && upgrades < UPGRADES {
            number += 1;
            let key_number = number.wrapping_mul(7) % KEYS;
            if busy.contains_key(&key_number) {
                break;
            }
            let key = Key::new(&key_number.to_le_bytes()).unwrap();
            let puts = number % 3 != 0;
            let tag = if puts {
                let data = value(number);
                let durable = number % 2 == 0;
                let length = data.len() as u32;
                let call = Call::put(&placement, nsid, &key, length, PutCondition::Always, durable).unwrap();
                drive.pair(call, &data, 0)
            } else {
                drive.pair(Call::get(&placement, nsid, &key, 0), &[], VALUE_BYTES)
            };
            in_flight.insert(tag, (key_number, puts.then_some(number)));
            busy.insert(key_number, tag);
        }
        if install.is_none() && number > (upgrades + 1) * BETWEEN && upgrades < UPGRADES {
            let arguments = Arguments::EMPTY;
            let rpc = Rpc { app: control::CONTROL_APP, handler: control::INSTALL, spu: 0, arguments };
            install = Some(drive.submit(rpc, module(), 0));
        }
        drive.turn();
        while let Some(done) = drive.device.completion() {
            let RpcOutcome::Answered { status } = done.outcome else { panic!("{:?}", done.outcome) };
            if install == Some(done.tag) {
                assert_eq!(status, 0);
                (install, upgrades) = (None, upgrades + 1);
                continue;
            }
            served_meanwhile += u64::from(install.is_some());
            let (key, put) = in_flight.remove(&done.tag).expect("it was asked for");
            busy.remove(&key);
            match (put, pairs.get(&key)) {
                (Some(seed), _) => {
                    assert_eq!(KeyValueError::from_status(status), Ok(()));
                    pairs.insert(key, seed);
                }
                (None, Some(seed)) => assert!(status == 0 && done.buffer == value(*seed), "key {key}"),
                (None, None) => assert_eq!(KeyValueError::from_status(status), Err(KeyValueError::NotFound)),
            }
        }
    }
    assert!(served_meanwhile > UPGRADES, "nothing was served while it was replaced");
    assert_eq!(pairs.len() as u64, KEYS);
    // All is made durable, the power goes, and the version that was installed last finds it.
    for spu in 0..SPUS {
        let tag = drive.pair(Call::flush(nsid, spu), &[], 0);
        while drive.device.completion().is_none_or(|done| done.tag != tag) {
            drive.turn();
        }
    }
    let mut drive = Drive::open(&media.power_cut(&mut Choices::seeded(5)));
    for (key, seed) in pairs {
        let key = Key::new(&key.to_le_bytes()).unwrap();
        drive.pair(Call::get(&placement, nsid, &key, 0), &[], VALUE_BYTES);
        let done = loop {
            drive.turn();
            if let Some(done) = drive.device.completion() {
                break done;
            }
        };
        assert!(done.outcome == RpcOutcome::Answered { status: 0 } && done.buffer == value(seed));
    }
}
