//! Power cuts under the whole device: Base-IO's namespace, the region table and the apps recover from a cut at every operation that
//! changes the media, exhaustively for a small workload and by seed for random ones. What was flushed is there; every other
//! 512 bytes are old or new, never anything else.

use base_io_host::{Geometry, wire};
use std::collections::BTreeMap;
use willow_device::media::fault::{Choices, FaultMedia, FaultOptions, Random};
use willow_device::{
    Arguments, BuiltInApp, CommandSet, Device, DeviceConfig, HostRequest, HreId, Rpc, RpcList, RpcOutcome, control,
};

const SPUS: u16 = 2;
const UNIT: usize = 512;
/// Bytes of the namespace that the workloads touch: across stripes and SPUs.
const SPAN: usize = 40 * 1024;

struct Drive {
    device: Device,
    hre: HreId,
    app: u16,
    geometry: Geometry,
}

impl Drive {
    fn open(media: &FaultMedia) -> Result<Drive, String> {
        let config = DeviceConfig {
            spus: SPUS,
            namespace_bytes: 1 << 20,
            block_bytes: 512,
            kv_namespace_bytes: 0,
            ..DeviceConfig::default()
        };
        let base_io = BuiltInApp::Native(base_io_spu::native());
        let mut device =
            Device::open(config, Box::new(media.store()), None, vec![base_io]).map_err(|error| error.to_string())?;
        let hre = device.open_hre(None).ok_or("no endpoint")?;
        let namespace = device.namespaces().first().cloned().ok_or("no namespace")?;
        assert_eq!(namespace.csi, CommandSet::Nvm);
        let app = device.app_number("base-io").ok_or("no Base-IO")?;
        let geometry = Geometry { spus: SPUS, stripe_bytes: device.stripe_bytes(), base: namespace.base };
        Ok(Drive { device, hre, app, geometry })
    }

    /// Sends a request and waits for it, however long the store takes.
    fn send(&mut self, rpcs: Vec<Rpc>, buffer: Vec<u8>, payload_bytes: u32, reply_bytes: u32) -> (bool, Vec<u8>) {
        let request = HostRequest { tag: 1, rpcs: RpcList::Many(rpcs), buffer, payload_bytes, reply_bytes };
        self.device.submit(self.hre, request).expect("room");
        for _ in 0..10_000 {
            self.device.run(0);
            if let Some(done) = self.device.completion() {
                return (done.outcome == RpcOutcome::Answered { status: 0 }, done.buffer);
            }
        }
        panic!("a request hangs");
    }

    fn range(&mut self, handler: u8, start: usize, bytes: usize, flags: u32, buffer: Vec<u8>) -> (bool, Vec<u8>) {
        let mut rpcs = Vec::new();
        let app = self.app;
        self.geometry.range(handler, start as u64, bytes as u64, 0, flags, |request| {
            let arguments = Arguments::new(&request.arguments.encode()).unwrap();
            rpcs.push(Rpc { app, handler: request.handler, spu: request.spu, arguments });
        });
        let length = buffer.len() as u32;
        let (payload, reply) = if handler == wire::handler::READ { (0, length) } else { (length, 0) };
        self.send(rpcs, buffer, payload, reply)
    }

    fn flush(&mut self) -> bool {
        let mut rpcs = Vec::new();
        let app = self.app;
        self.geometry.flush(|request| {
            let arguments = Arguments::new(&request.arguments.encode()).unwrap();
            rpcs.push(Rpc { app, handler: request.handler, spu: request.spu, arguments });
        });
        self.send(rpcs, vec![], 0, 0).0
    }

    fn control(&mut self, handler: u8, payload: &[u8]) -> bool {
        let rpc = Rpc { app: control::CONTROL_APP, handler, spu: 0, arguments: Arguments::EMPTY };
        self.send(vec![rpc], payload.to_vec(), payload.len() as u32, 0).0
    }
}

/// What each 512-byte unit may hold: the flushed version first, then all that was written since.
#[derive(Clone)]
struct Model(BTreeMap<usize, Vec<[u8; UNIT]>>);

impl Model {
    fn new() -> Model {
        Model((0..SPAN / UNIT).map(|unit| (unit, vec![[0; UNIT]])).collect())
    }
    fn write(&mut self, start: usize, data: &[u8]) {
        for (index, bytes) in data.chunks_exact(UNIT).enumerate() {
            if let Some(versions) = self.0.get_mut(&(start / UNIT + index)) {
                versions.push(bytes.try_into().unwrap());
            }
        }
    }
    fn flushed(&mut self) {
        for versions in self.0.values_mut() {
            *versions = versions.split_off(versions.len() - 1);
        }
    }
    fn check(&self, data: &[u8], what: &str) {
        for (unit, versions) in &self.0 {
            let found = &data[unit * UNIT..][..UNIT];
            assert!(
                versions.iter().any(|version| version == found),
                "{what}: unit {unit} holds {:?}..., none of its {} versions",
                &found[..4],
                versions.len()
            );
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Write { start: usize, units: usize, fua: bool },
    Zero { start: usize, units: usize },
    Flush,
    CreateNamespace,
    DeleteNamespace,
}

fn random_step(random: &mut Random) -> Step {
    let start = random.below((SPAN / UNIT) as u64) as usize;
    let units = 1 + random.below((SPAN / UNIT - start).min(24) as u64) as usize;
    match random.below(10) {
        0..=5 => Step::Write { start: start * UNIT, units, fua: random.chance(1, 8) },
        6 => Step::Zero { start: start * UNIT, units },
        7 | 8 => Step::Flush,
        _ if random.chance(1, 2) => Step::CreateNamespace,
        _ => Step::DeleteNamespace,
    }
}

/// Runs the steps until the power goes; returns what may be on the media.
fn run(media: &FaultMedia, steps: &[Step]) -> Model {
    let mut model = Model::new();
    let Ok(mut drive) = Drive::open(media) else { return model };
    for (number, step) in steps.iter().enumerate() {
        let done = match step {
            Step::Write { start, units, fua } => {
                let data: Vec<u8> =
                    (0..units * UNIT).map(|at| (number * 31 + at / UNIT * 7 + at % 13) as u8 | 1).collect();
                model.write(*start, &data);
                let flags = if *fua { wire::FLAG_FUA } else { 0 };
                let done = drive.range(wire::handler::WRITE, *start, data.len(), flags, data.clone()).0;
                if done && *fua {
                    // What FUA covers is durable: the older versions of those units are gone.
                    for unit in *start / UNIT..*start / UNIT + units {
                        let versions = model.0.get_mut(&unit).unwrap();
                        *versions = versions.split_off(versions.len() - 1);
                    }
                }
                done
            }
            Step::Zero { start, units } => {
                model.write(*start, &vec![0; units * UNIT]);
                drive.range(wire::handler::ZERO, *start, units * UNIT, wire::FLAG_DEALLOCATE, vec![]).0
            }
            Step::Flush => {
                let done = drive.flush();
                if done {
                    model.flushed();
                }
                done
            }
            Step::CreateNamespace => {
                drive.control(control::CREATE_NAMESPACE, br#"{"csi":"nvm","size_bytes":1048576,"block_bytes":512}"#)
            }
            Step::DeleteNamespace => {
                let last = drive.device.namespaces().last().map_or(0, |namespace| namespace.nsid);
                last < 2 || drive.control(control::DELETE_NAMESPACE, &last.to_le_bytes())
            }
        };
        if media.is_cut() {
            break;
        }
        assert!(done, "step {number} {step:?} fails though the power is on");
    }
    model
}

/// Opens what a cut has left and checks it; then uses it.
fn recover(media: &FaultMedia, model: &Model, what: &str) {
    let mut drive = Drive::open(media).unwrap_or_else(|error| panic!("{what}: {error}"));
    let (read, data) = drive.range(wire::handler::READ, 0, SPAN, 0, vec![0xee; SPAN]);
    assert!(read, "{what}");
    model.check(&data, what);
    assert!(drive.range(wire::handler::WRITE, 0, SPAN, 0, vec![0x77; SPAN]).0 && drive.flush(), "{what}");
    let (_, data) = drive.range(wire::handler::READ, 0, SPAN, 0, vec![0; SPAN]);
    assert_eq!(data, vec![0x77; SPAN], "{what}");
    // A namespace made now is all zeroes, whatever was where it lies.
    if drive.control(control::CREATE_NAMESPACE, br#"{"csi":"nvm","size_bytes":1048576,"block_bytes":512}"#) {
        let namespace = drive.device.namespaces().last().cloned().unwrap();
        drive.geometry.base = namespace.base;
        let (read, data) = drive.range(wire::handler::READ, 0, SPAN, 0, vec![0xee; SPAN]);
        assert!(read && data == vec![0; SPAN], "{what}: a new namespace shows old bytes");
    }
}

fn options(seed: u64) -> FaultOptions {
    FaultOptions { seed, delayed_percent: (seed % 3 * 30) as u8, ..FaultOptions::new(SPUS as usize, 1 << 30) }
}

fn cut_everywhere(steps: &[Step], seed: u64, outcomes_each: usize) -> u64 {
    let whole = FaultMedia::new(options(seed));
    let model = run(&whole, steps);
    recover(&whole, &model, "no cut");
    let operations = {
        let dry = FaultMedia::new(options(seed));
        run(&dry, steps);
        dry.operations()
    };
    for cut in 0..=operations {
        let media = FaultMedia::new(options(seed));
        media.cut_after(cut);
        let model = run(&media, steps);
        for outcome in 0..outcomes_each {
            let mut choices = Choices::seeded(seed ^ cut << 20 ^ (outcome as u64) << 40);
            let what = format!("seed {seed}, cut after {cut} of {operations}, outcome {outcome}");
            recover(&media.power_cut(&mut choices), &model, &what);
        }
    }
    operations
}

#[test]
fn every_cut_point_of_a_small_workload_with_every_outcome() {
    let steps = [
        Step::Write { start: 0, units: 2, fua: false },
        Step::Flush,
        Step::Write { start: 512, units: 2, fua: false },
        Step::Write { start: 8192 - 512, units: 2, fua: true },
        Step::Zero { start: 0, units: 1 },
        Step::CreateNamespace,
        Step::Flush,
        Step::DeleteNamespace,
    ];
    let dry = FaultMedia::new(options(0));
    run(&dry, &steps);
    let mut looked_at = 0u64;
    for cut in 0..=dry.operations() {
        let media = FaultMedia::new(options(0));
        media.cut_after(cut);
        let model = run(&media, &steps);
        let mut choices = Choices::exhaustive();
        for _ in 0..200 {
            recover(&media.power_cut(&mut choices), &model, &format!("cut after {cut}"));
            looked_at += 1;
            if !choices.advance() {
                break;
            }
        }
    }
    assert!(looked_at > dry.operations() * 2, "only {looked_at} outcomes were looked at");
}

#[test]
fn random_workloads_by_seed() {
    let mut operations = 0;
    for seed in 1..=24u64 {
        let mut random = Random::new(seed);
        let steps: Vec<Step> = (0..14).map(|_| random_step(&mut random)).collect();
        operations += cut_everywhere(&steps, seed, 2);
    }
    assert!(operations > 24 * 10);
}

#[test]
fn errors_and_full_media_are_reported_and_pass() {
    let media = FaultMedia::new(options(3));
    let mut drive = Drive::open(&media).unwrap();
    assert!(drive.range(wire::handler::WRITE, 0, 8192, 0, vec![5; 8192]).0);
    media.fail_reads(0, 0..1 << 20);
    assert!(!drive.range(wire::handler::READ, 0, 4096, 0, vec![0; 4096]).0);
    media.heal();
    assert_eq!(drive.range(wire::handler::READ, 0, 4096, 0, vec![0; 4096]), (true, vec![5; 4096]));
    media.set_capacity_bytes(Some(media.used_bytes()));
    assert!(!drive.range(wire::handler::WRITE, 65536, 8192, 0, vec![6; 8192]).0, "the media are full");
    assert_eq!(drive.range(wire::handler::READ, 0, 8192, 0, vec![0; 8192]), (true, vec![5; 8192]));
    media.set_capacity_bytes(None);
    assert!(drive.range(wire::handler::WRITE, 65536, 8192, 0, vec![6; 8192]).0, "there is room again");
    media.fail_flushes(1);
    assert!(!drive.flush(), "a failed flush is told");
    media.heal();
}
