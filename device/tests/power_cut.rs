//! Power cuts under the whole device: Base-IO's namespace, the region table and the apps recover from a cut at every operation that
//! changes the media, exhaustively for a small workload and by seed for random ones. What was flushed is there, whichever SPU wrote
//! it; every other 512 bytes are old or new, never anything else.

use base_io_host::{Geometry, wire};
use std::collections::{BTreeMap, BTreeSet};
use willow_device::media::fault::{Choices, FaultMedia, FaultOptions, Random};
use willow_device::{
    Arguments, BuiltInApp, CommandSet, Device, DeviceConfig, HostRequest, HreId, Rpc, RpcList, RpcOutcome, control,
};
use willow_sdk::{Body, Error, Request, SpuNv};

/// Writes the body's rest to another SPU's NV memory: inline arguments u64 address, u32 SPU.
async fn write_there(request: Request, _: &()) -> Result<(), Error> {
    let arguments: [u8; THERE_BYTES as usize] = request.receive_array()?;
    let [address @ .., a, b, c, d] = arguments;
    let there = SpuNv { spu: u32::from_le_bytes([a, b, c, d]), address: u64::from_le_bytes(address) };
    request.write_spu(Body(THERE_BYTES), there, request.info().body_bytes - THERE_BYTES).await
}

const THERE_BYTES: u32 = 12;

willow_sdk::app! {
    name: "there",
    version: "0.1.0",
    state: () = (),
    threads: 1,
    handlers: { 1 => write_there }
}

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
        let apps = vec![BuiltInApp::Native(base_io_spu::native()), BuiltInApp::Native(native())];
        let mut device =
            Device::open(config, Box::new(media.store()), None, apps).map_err(|error| error.to_string())?;
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

    /// Writes as the other SPU: each stripe's part by a handler where it does not lie.
    fn write_from_elsewhere(&mut self, start: usize, data: &[u8]) -> bool {
        let app = self.device.app_number("there").expect("it is built in");
        let (mut at, mut written) = (start as u64, true);
        let mut left = data;
        while !left.is_empty() {
            let stripe_bytes = u64::from(self.geometry.stripe_bytes);
            let (stripe, within) = (at / stripe_bytes, at % stripe_bytes);
            let (piece, rest) = left.split_at(left.len().min((stripe_bytes - within) as usize));
            let address = self.geometry.base + stripe / u64::from(SPUS) * stripe_bytes + within;
            let (spu, here) = (stripe % u64::from(SPUS), (stripe + 1) % u64::from(SPUS));
            let arguments = [&address.to_le_bytes()[..], &(spu as u32).to_le_bytes()].concat();
            let arguments = Arguments::new(&arguments).unwrap();
            let rpc = Rpc { app, handler: 1, spu: here as u16, arguments };
            written &= self.send(vec![rpc], piece.to_vec(), piece.len() as u32, 0).0;
            (at, left) = (at + piece.len() as u64, rest);
        }
        written
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

    fn namespaces(&self) -> BTreeSet<u32> {
        self.device.namespaces().iter().map(|namespace| namespace.nsid).collect()
    }

    fn control(&mut self, handler: u8, payload: &[u8]) -> bool {
        let rpc = Rpc { app: control::CONTROL_APP, handler, spu: 0, arguments: Arguments::EMPTY };
        self.send(vec![rpc], payload.to_vec(), payload.len() as u32, 0).0
    }
}

/// What may be on the media.
#[derive(Clone)]
struct Model {
    /// What each 512-byte unit may hold: the flushed version first, then all that was written since.
    units: BTreeMap<usize, Vec<[u8; UNIT]>>,
    /// Namespaces that were answered for; none before the device has opened.
    namespaces: Option<BTreeSet<u32>>,
    /// The one that is being deleted.
    leaving: Option<u32>,
    /// True where one is being made.
    is_coming: bool,
}

impl Model {
    fn new() -> Model {
        let units = (0..SPAN / UNIT).map(|unit| (unit, vec![[0; UNIT]])).collect();
        Model { units, namespaces: None, leaving: None, is_coming: false }
    }
    /// What was asked for is answered: these are there.
    fn has(&mut self, namespaces: BTreeSet<u32>) {
        (self.namespaces, self.leaving, self.is_coming) = (Some(namespaces), None, false);
    }
    fn check_namespaces(&self, found: &BTreeSet<u32>, what: &str) {
        let Some(answered) = &self.namespaces else { return };
        let gone: Vec<_> = answered.difference(found).copied().collect();
        assert!(gone.is_empty() || gone == Vec::from_iter(self.leaving), "{what}: namespaces {gone:?} are gone");
        let come = found.difference(answered).count();
        assert!(come <= usize::from(self.is_coming), "{what}: namespaces {found:?}, not {answered:?}");
    }
    fn write(&mut self, start: usize, data: &[u8]) {
        for (index, bytes) in data.chunks_exact(UNIT).enumerate() {
            if let Some(versions) = self.units.get_mut(&(start / UNIT + index)) {
                versions.push(bytes.try_into().unwrap());
            }
        }
    }
    fn flushed(&mut self) {
        for versions in self.units.values_mut() {
            *versions = versions.split_off(versions.len() - 1);
        }
    }
    fn check(&self, data: &[u8], what: &str) {
        for (unit, versions) in &self.units {
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
    WriteFromElsewhere { start: usize, units: usize },
    Zero { start: usize, units: usize },
    Flush,
    CreateNamespace,
    DeleteNamespace,
}

fn random_step(random: &mut Random) -> Step {
    let start = random.below((SPAN / UNIT) as u64) as usize;
    let units = 1 + random.below((SPAN / UNIT - start).min(24) as u64) as usize;
    match random.below(10) {
        0..=3 => Step::Write { start: start * UNIT, units, fua: random.chance(1, 8) },
        4 | 5 => Step::WriteFromElsewhere { start: start * UNIT, units },
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
    model.has(drive.namespaces());
    for (number, step) in steps.iter().enumerate() {
        let data = |units: usize| -> Vec<u8> {
            (0..units * UNIT).map(|at| (number * 31 + at / UNIT * 7 + at % 13) as u8 | 1).collect()
        };
        let done = match step {
            Step::Write { start, units, fua } => {
                let data = data(*units);
                model.write(*start, &data);
                let flags = if *fua { wire::FLAG_FUA } else { 0 };
                let done = drive.range(wire::handler::WRITE, *start, data.len(), flags, data.clone()).0;
                if done && *fua {
                    // What FUA covers is durable: the older versions of those units are gone.
                    for unit in *start / UNIT..*start / UNIT + units {
                        let versions = model.units.get_mut(&unit).unwrap();
                        *versions = versions.split_off(versions.len() - 1);
                    }
                }
                done
            }
            Step::WriteFromElsewhere { start, units } => {
                let data = data(*units);
                model.write(*start, &data);
                drive.write_from_elsewhere(*start, &data)
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
                model.is_coming = true;
                drive.control(control::CREATE_NAMESPACE, br#"{"csi":"nvm","size_bytes":1048576,"block_bytes":512}"#)
            }
            Step::DeleteNamespace => {
                let last = drive.device.namespaces().last().map_or(0, |namespace| namespace.nsid);
                model.leaving = Some(last);
                last < 2 || drive.control(control::DELETE_NAMESPACE, &last.to_le_bytes())
            }
        };
        if media.is_cut() {
            break;
        }
        assert!(done, "step {number} {step:?} fails though the power is on");
        model.has(drive.namespaces());
    }
    model
}

/// Opens what a cut has left and checks it; then uses it.
fn recover(media: &FaultMedia, model: &Model, what: &str) {
    let mut drive = Drive::open(media).unwrap_or_else(|error| panic!("{what}: {error}"));
    model.check_namespaces(&drive.namespaces(), what);
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
        Step::WriteFromElsewhere { start: 8192 - 512, units: 2 },
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
        loop {
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
    assert!(drive.flush());
    media.set_capacity_bytes(Some(media.used_bytes()));
    assert!(!drive.range(wire::handler::WRITE, 65536, 8192, 0, vec![6; 8192]).0, "the media are full");
    // What was there is; what was refused is in part there, or not: also for who opens the device then.
    let whole = |drive: &mut Drive| drive.range(wire::handler::READ, 0, 1 << 20, 0, vec![0xee; 1 << 20]).1;
    let is_whole = |found: &[u8]| {
        assert!(found[..8192] == [5; 8192] && found[8192..65536].iter().all(|byte| *byte == 0));
        assert!(found[65536..73728].chunks(UNIT).all(|unit| unit == [6; UNIT] || unit == [0; UNIT]));
        assert!(found[73728..].iter().all(|byte| *byte == 0));
    };
    is_whole(&whole(&mut drive));
    drop(drive);
    let mut drive = Drive::open(&media).expect("it opens while the media are full");
    is_whole(&whole(&mut drive));
    media.set_capacity_bytes(None);
    assert!(drive.range(wire::handler::WRITE, 65536, 8192, 0, vec![6; 8192]).0, "there is room again");
    media.fail_flushes(1);
    assert!(!drive.flush(), "a failed flush is told");
    media.heal();
}
