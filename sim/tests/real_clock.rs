//! The real clock against the virtual one: the same device with the same requests does the same modelled work to the nanosecond, and
//! under the real clock no host has an answer before the modelled hardware would have given it. That answers are not late, is
//! measured and reported (`willow stat`), and no test's affair: it is the machine's.

use std::time::{Duration, Instant};
use willow_device::clock::Timing;
use willow_device::media::ram::RamStore;
use willow_device::model::statistics::ResourceStatistics;
use willow_device::model::{HardwareModel, ModelStatistics};
use willow_device::{
    Arguments, BuiltInApp, Device, DeviceConfig, HostRequest, OpenError, Rpc, RpcList, RpcOutcome, Statistics,
};
use willow_host::hre::BlockCommand;
use willow_host::{ControlClient, Hre, InProcess};
use willow_sim::Preset;
use willow_sim::random::Random;

const BLOCK_BYTES: u64 = 4096;
const NAMESPACE_BYTES: u64 = 16 << 20;

/// One request, made up by a seed.
#[derive(Clone, Copy)]
struct Request {
    write: bool,
    lba: u64,
    blocks: u64,
}

fn requests(seed: u64) -> Vec<Request> {
    let mut random = Random(seed);
    let mut draw = || {
        let blocks = 1 << random.below(4);
        Request { write: random.below(2) == 0, lba: random.below(NAMESPACE_BYTES / BLOCK_BYTES - blocks), blocks }
    };
    (0..60).map(|_| draw()).collect()
}

fn device() -> Result<Device, OpenError> {
    let preset = Preset::load("bee3").map_err(|error| OpenError(error.to_string()))?;
    let mut hardware = preset.model.clone().expect("the preset models hardware");
    // Where the token is when a request comes is the one thing that depends on when it comes.
    hardware.ring.round_trip_ns = 0;
    let config = preset.apply(DeviceConfig {
        namespace_bytes: NAMESPACE_BYTES,
        kv_namespace_bytes: 0,
        ..DeviceConfig::default()
    });
    let bank_bytes = 64 << 20;
    let store = RamStore::new(config.spus.into(), bank_bytes).expect("a store in memory");
    let model = HardwareModel::new(&hardware, config.spus, bank_bytes).map_err(OpenError)?;
    let base_io = willow_apps::BUNDLED_APPS.iter().find(|app| app.name == "base-io").expect("a bundled app");
    let timing: Box<dyn Timing> = Box::new(model);
    Device::open(config, Box::new(store), Some(timing), vec![BuiltInApp::Native((base_io.native)())])
}

/// Modelled latencies of the requests, one after the other, and what the hardware did.
fn virtually(requests: &[Request]) -> (Vec<u64>, ModelStatistics) {
    let mut device = device().unwrap();
    let hre = device.open_hre(None).unwrap();
    let app = device.app_number("base-io").unwrap();
    let base = device.namespaces()[0].base;
    let geometry = base_io_host::Geometry { spus: device.spus(), stripe_bytes: device.stripe_bytes(), base };
    let mut now_ns = 10_000_000;
    device.run(now_ns);
    let mut latencies = Vec::new();
    for request in requests {
        let handler = base_io_host::wire::handler::READ;
        let handler = if request.write { base_io_host::wire::handler::WRITE } else { handler };
        let bytes = request.blocks * BLOCK_BYTES;
        let mut rpcs = Vec::new();
        geometry.range(handler, request.lba * BLOCK_BYTES, bytes, 0, 0, &mut |one: base_io_host::SpuRequest| {
            let arguments = Arguments::new(&one.arguments.encode()).unwrap();
            rpcs.push(Rpc { app, handler: one.handler, spu: one.spu, arguments });
        });
        let rpcs = if rpcs.len() == 1 { RpcList::One(rpcs[0]) } else { RpcList::Many(rpcs) };
        let (payload_bytes, reply_bytes) = if request.write { (bytes as u32, 0) } else { (0, bytes as u32) };
        device.set_time(now_ns);
        let host_request = HostRequest { tag: 1, rpcs, buffer: vec![5; bytes as usize], payload_bytes, reply_bytes };
        device.submit(hre, host_request).unwrap();
        let done = loop {
            device.run_to_completion(u64::MAX);
            if let Some(done) = device.completion() {
                break done;
            }
        };
        assert_eq!(done.outcome, RpcOutcome::Answered { status: 0 });
        latencies.push(done.at_ns - now_ns);
        now_ns = done.at_ns + 100_000;
    }
    device.run(now_ns);
    (latencies, device.model_statistics(now_ns).unwrap())
}

/// What SPUs and media did; link and ring also carry the request for the statistics.
fn of_spus(statistics: &ModelStatistics) -> Vec<&ResourceStatistics> {
    statistics.resources.iter().filter(|resource| resource.name.starts_with("SPU")).collect()
}

#[test]
fn the_real_clock_does_what_the_virtual_one_does_and_answers_never_early() {
    let requests = requests(7);
    let (latencies, modelled) = virtually(&requests);
    assert!(latencies.iter().all(|latency_ns| *latency_ns > 3_000));
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let statistics = runtime.block_on(async {
        let shared = InProcess::start(device).unwrap();
        let hre = std::sync::Arc::new(shared.endpoint(None).await.unwrap());
        for (request, latency_ns) in requests.iter().zip(&latencies) {
            let buffer = vec![5; (request.blocks * BLOCK_BYTES) as usize];
            let command = match request.write {
                true => BlockCommand::Write { lba: request.lba, fua: false },
                false => BlockCommand::Read { lba: request.lba },
            };
            let begun = Instant::now();
            hre.block(1, BLOCK_BYTES as u32, command, buffer).await.unwrap();
            let elapsed = begun.elapsed();
            assert!(elapsed >= Duration::from_nanos(*latency_ns), "{elapsed:?} is before the modelled {latency_ns} ns");
        }
        let document = ControlClient::new(hre).statistics().await.unwrap();
        serde_json::from_value::<Statistics>(document).unwrap()
    });
    let real = statistics.model.expect("a device with a model");
    assert_eq!(of_spus(&real), of_spus(&modelled));
    assert_eq!(real.media, modelled.media);
    let clock = statistics.clock.expect("the driver told of completions");
    assert!(clock.lateness.count >= requests.len() as u64 && !clock.statement.is_empty());
}
