//! Atomic-IO on media that lose power: at every operation of the media of small workloads, with every outcome or a choice of them, and at
//! random moments of random ones. After each a write is there as a whole or not at all, and what was answered is there. The last tests plant
//! bugs: what cannot catch those tests nothing.

#[path = "../../../atomic-write/spu/tests/world/drive.rs"]
mod drive;

use atomic_io_spu::planted::{Planted, plant};
use atomic_io_spu::wire::{FLAG_FUA, RangeArguments, STATUS_MEDIA_ERROR, handler};
use drive::{Drive, STEPS_MAX, each_cut, each_outcome, status};
use std::collections::BTreeMap;
use willow_device::control::{self, NamespaceRequest};
use willow_device::media::fault::{Choices, FaultMedia, FaultOptions, Random};
use willow_device::{BuiltInApp, CommandSet, DeviceConfig, Store};
use willow_on_flash::{Medium, on_each_medium};

on_each_medium!(a_full_log_is_emptied_and_writes_go_on);

const SPUS: u16 = 2;
const STRIPE: u32 = 65536;
const UNIT: u64 = 512;
/// All writes of a workload lie within so many bytes of each bank: the first of the namespace's share, or the last.
const BYTES: u64 = 16384;
/// What a namespace has of each bank.
const SHARE: u64 = (1 << 20) / SPUS as u64;

fn config() -> DeviceConfig {
    DeviceConfig { spus: SPUS, namespace_bytes: 0, kv_namespace_bytes: 0, ..DeviceConfig::default() }
}

fn options(seed: u64) -> FaultOptions {
    FaultOptions { seed, delayed_percent: (seed % 3 * 25) as u8, ..FaultOptions::new(SPUS as usize, 1 << 30) }
}

/// A device with a namespace of the app.
struct Rig {
    drive: Drive,
    app: u16,
    base: u64,
    /// Where the workload lies in the namespace's share.
    window: u64,
    nsid: u32,
}

impl Rig {
    fn open(media: &FaultMedia, window: u64) -> Result<Rig, String> {
        Rig::open_with(Box::new(media.store()), vec![], window)
    }

    fn open_with(store: Box<dyn Store>, mut apps: Vec<BuiltInApp>, window: u64) -> Result<Rig, String> {
        apps.push(BuiltInApp::Native(atomic_io_spu::native()));
        let drive = Drive::open(config(), store, apps)?;
        let app = drive.device.app_number("atomic-io").ok_or("no app")?;
        let found = drive.device.namespaces().first().map(|namespace| (namespace.base, namespace.nsid));
        let (base, nsid) = found.unwrap_or_default();
        Ok(Rig { drive, app, base, window, nsid })
    }

    fn try_control(&mut self, number: u8, payload: &[u8]) -> u32 {
        status(&self.drive.call((control::CONTROL_APP, 0, number), &[], payload, 0))
    }

    fn control(&mut self, number: u8, payload: &[u8]) {
        assert_eq!(self.try_control(number, payload), 0);
    }

    /// Makes a namespace and turns to it.
    fn create(&mut self) {
        let before = self.drive.device.namespaces();
        let request = NamespaceRequest {
            app: Some("atomic-io".to_owned()),
            stripe_bytes: Some(STRIPE),
            block_bytes: Some(512),
            ..NamespaceRequest::new(CommandSet::Nvm, SHARE * u64::from(SPUS))
        };
        self.control(control::CREATE_NAMESPACE, &serde_json::to_vec(&request).expect("JSON"));
        let after = self.drive.device.namespaces();
        let is_new = |nsid| before.iter().all(|old| old.nsid != nsid);
        let namespace = after.iter().find(|namespace| is_new(namespace.nsid)).expect("it is there");
        (self.base, self.nsid) = (namespace.base, namespace.nsid);
    }

    fn begin(&mut self, number: u8, step: &Step, payload: &[u8], reply_bytes: usize) -> u64 {
        let arguments = RangeArguments {
            nv_address: self.base + self.window + step.start,
            bytes: step.bytes,
            buffer_offset: 0,
            first_bytes: step.bytes,
            stripe_bytes: STRIPE,
            stride: STRIPE * u32::from(SPUS),
            flags: if step.fua { FLAG_FUA } else { 0 },
        };
        self.drive.submit((self.app, step.spu, number), &arguments.encode(), payload, reply_bytes)
    }

    /// What is in each unit of the workload's range.
    fn read(&mut self, spu: u16) -> Result<Vec<Vec<u8>>, String> {
        let step = Step { spu, start: 0, bytes: BYTES as u32, kind: Kind::Write, fua: false };
        let tag = self.begin(handler::READ, &step, &[], BYTES as usize);
        let done = self.drive.wait(tag);
        match status(&done) {
            0 => Ok(done.buffer[..BYTES as usize].chunks(UNIT as usize).map(<[u8]>::to_vec).collect()),
            status => Err(format!("a read ends with status {status}")),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Write,
    Zero,
    Flush,
}

/// What a client does: one request, whose range is within a stripe.
#[derive(Clone, Copy, Debug)]
struct Step {
    spu: u16,
    start: u64,
    bytes: u32,
    kind: Kind,
    fua: bool,
}

fn write(start: u64, bytes: u32) -> Step {
    Step { spu: 0, start, bytes, kind: Kind::Write, fua: false }
}

fn fua(start: u64, bytes: u32) -> Step {
    Step { fua: true, ..write(start, bytes) }
}

fn zero(start: u64, bytes: u32) -> Step {
    Step { kind: Kind::Zero, fua: true, ..write(start, bytes) }
}

const FLUSH: Step = Step { spu: 0, start: 0, bytes: 0, kind: Kind::Flush, fua: false };

impl Step {
    fn units(&self) -> std::ops::Range<u64> {
        self.start / UNIT..(self.start + u64::from(self.bytes)).div_ceil(UNIT)
    }
}

/// A unit of a write with that value; 0: zeroes.
fn content(value: u32) -> Vec<u8> {
    value.to_le_bytes().repeat(UNIT as usize / 4)
}

/// A step, its value, when it began, when it was answered, when it was durable.
type Asked = (Step, u32, u64, Option<u64>, Option<u64>);

/// What was asked for, in the order in which it was; and how far it is.
#[derive(Clone, Debug, Default)]
struct Model {
    steps: Vec<Asked>,
    time: u64,
    /// Where the workload lies in the namespace's share.
    window: u64,
}

impl Model {
    fn of(rig: &Rig) -> Model {
        Model { window: rig.window, ..Model::default() }
    }

    fn begin(&mut self, step: Step, value: u32) -> usize {
        self.time += 1;
        self.steps.push((step, value, self.time, None, None));
        self.steps.len() - 1
    }

    fn end(&mut self, number: usize) {
        self.time += 1;
        let (now, begun) = (self.time, self.steps[number].2);
        self.steps[number].3 = Some(now);
        let step = self.steps[number].0;
        match step.kind {
            Kind::Flush => {
                // What was answered before the flush began is durable.
                for (of, _, _, answered, durable) in &mut self.steps {
                    if of.spu == step.spu && answered.is_some_and(|at| at < begun) {
                        durable.get_or_insert(now);
                    }
                }
            }
            // Writes of more than a unit are durable when they are answered.
            Kind::Write if step.fua || u64::from(step.bytes) > UNIT => self.steps[number].4 = Some(now),
            Kind::Zero if step.fua => self.steps[number].4 = Some(now),
            _ => {}
        }
    }

    /// Holds what a bank has against what may be. Zeroes need not be whole.
    fn check(&self, spu: u16, found: &[Vec<u8>]) -> Result<(), String> {
        let touches = |step: &Step, unit| step.kind != Kind::Flush && step.spu == spu && step.units().contains(&unit);
        let mut seen = BTreeMap::new();
        for (unit, bytes) in (0..).zip(found) {
            let value = u32::from_le_bytes(bytes[..4].try_into().unwrap());
            if *bytes != content(value) {
                return Err(format!("unit {unit} of SPU {spu} is torn"));
            }
            seen.insert(unit, value);
            let of_unit = self.steps.iter().filter(|(step, ..)| touches(step, unit));
            // Something durable that began after the other had been answered hides it.
            let hidden = |answered: Option<u64>| {
                self.steps.iter().any(|(step, _, begun, _, durable)| {
                    touches(step, unit) && durable.is_some() && answered.is_some_and(|at| at < *begun)
                })
            };
            let any_durable = self.steps.iter().any(|(step, .., durable)| touches(step, unit) && durable.is_some());
            let mut may: Vec<u32> = of_unit.filter(|(.., at, _)| !hidden(*at)).map(|(_, value, ..)| *value).collect();
            if !any_durable {
                may.push(0);
            }
            if !may.contains(&value) {
                return Err(format!("unit {unit} of SPU {spu} has {value}, none of {may:?}: {:?}", self.steps));
            }
        }
        // A write of which one unit is there is there as a whole, but for what others have written over it.
        for (step, value, begun, _, _) in self.steps.iter().filter(|(step, ..)| step.spu == spu) {
            if step.kind != Kind::Write || !step.units().any(|unit| seen.get(&unit) == Some(value)) {
                continue;
            }
            for unit in step.units() {
                let over = |(of, other, _, answered, _): &(Step, u32, u64, Option<u64>, Option<u64>)| {
                    touches(of, unit) && seen[&unit] == *other && answered.is_none_or(|at| at > *begun)
                };
                if !self.steps.iter().any(over) {
                    return Err(format!("of {step:?} with {value} unit {unit} has {}: {:?}", seen[&unit], self.steps));
                }
            }
        }
        Ok(())
    }
}

/// Runs clients beside each other, each a step after the other, until all are through or the power has gone.
fn run(rig: &mut Rig, media: &FaultMedia, clients: &[Vec<Step>], model: &mut Model) -> Result<(), String> {
    let mut at: Vec<(usize, Option<(u64, usize)>)> = vec![(0, None); clients.len()];
    for _ in 0..STEPS_MAX {
        for ((next, waiting), steps) in at.iter_mut().zip(clients) {
            if let (None, Some(step)) = (&waiting, steps.get(*next)) {
                let value = if step.kind == Kind::Write { model.steps.len() as u32 + 1 } else { 0 };
                let number = model.begin(*step, value);
                let payload = match step.kind {
                    Kind::Write => content(value).repeat(step.units().count())[..step.bytes as usize].to_vec(),
                    Kind::Zero | Kind::Flush => vec![],
                };
                let of_kind = match step.kind {
                    Kind::Write => handler::WRITE,
                    Kind::Zero => handler::ZERO,
                    Kind::Flush => handler::FLUSH,
                };
                *waiting = Some((rig.begin(of_kind, step, &payload, 0), number));
            }
        }
        if at.iter().all(|(_, waiting)| waiting.is_none()) {
            return Ok(());
        }
        rig.drive.step();
        if media.is_cut() {
            return Ok(());
        }
        for (next, waiting) in &mut at {
            let Some((tag, number)) = *waiting else { continue };
            let Some(done) = rig.drive.done.remove(&tag) else { continue };
            if status(&done) != 0 {
                return Err(format!("{:?} ends with status {}", model.steps[number].0, status(&done)));
            }
            model.end(number);
            (*next, *waiting) = (*next + 1, None);
        }
    }
    panic!("the clients do not come to an end");
}

/// First byte of the log's region.
fn log_base(media: &FaultMedia) -> u64 {
    let metadata: serde_json::Value =
        serde_json::from_slice(&media.metadata().expect("they are saved")).expect("they are JSON");
    let regions = metadata["regions"].as_array().expect("there are some");
    let log = regions.iter().find(|region| region["id"] == u64::from(atomic_io_spu::format::REGION));
    log.and_then(|region| region["base"].as_u64()).expect("there is one")
}

/// Odd seeds write the end of the namespace's share, which the log adjoins.
fn start(seed: u64) -> (FaultMedia, Rig) {
    let media = FaultMedia::new(options(seed));
    let window = if seed % 2 == 1 { SHARE - BYTES } else { 0 };
    let mut rig = Rig::open(&media, window).expect("a fresh device opens");
    rig.drive.settle();
    rig.create();
    rig.drive.settle();
    assert_eq!(log_base(&media), rig.base + SHARE, "the log adjoins, or the last bytes are as any others");
    (media, rig)
}

/// Opens what a cut has left. Nobody waits for the app: the first request is a read.
fn check(media: &FaultMedia, model: &Model, what: &str) -> Result<(), String> {
    let mut rig = Rig::open(media, model.window).map_err(|why| format!("{what}: {why}"))?;
    for spu in 0..SPUS {
        let found = rig.read(spu).map_err(|why| format!("{what}: {why}"))?;
        model.check(spu, &found).map_err(|why| format!("{what}: {why}"))?;
    }
    Ok(())
}

fn check_outcomes(media: &FaultMedia, model: &Model, most: usize, seed: u64, what: &str) -> Result<u64, String> {
    each_outcome(media, most, seed, |left, number| {
        check(left, model, &format!("{what}, outcome {number}"))?;
        // Recovery that is cut itself begins again.
        let twice = left.power_cut(&mut Choices::seeded(seed ^ number));
        twice.cut_after(twice.operations() + 1 + seed.wrapping_add(number) % 12);
        if let Ok(mut rig) = Rig::open(&twice, model.window) {
            rig.drive.settle_or_cut(&twice);
        }
        check(&twice.power_cut(&mut Choices::seeded(seed)), model, &format!("{what}, recovery cut, {number}"))
    })
}

/// The power goes at each operation of the media in turn.
fn cut_everywhere(clients: &[Vec<Step>], seed: u64, most: usize) -> Result<u64, String> {
    each_cut(|cut| {
        let what = format!("seed {seed}, cut {cut}");
        let (media, mut rig) = start(seed);
        media.cut_after(media.operations() + cut);
        let mut model = Model::of(&rig);
        run(&mut rig, &media, clients, &mut model).map_err(|why| format!("{what}: {why}"))?;
        Ok((check_outcomes(&media, &model, most, seed ^ cut, &what)?, media.is_cut()))
    })
}

/// Small workloads: each is a way that one write depends on another.
fn small_workloads() -> Vec<Vec<Vec<Step>>> {
    let many = |count: u64| (0..count).map(|at| write(at % 4 * 2048, 2048)).collect::<Vec<_>>();
    vec![
        vec![vec![write(0, 4096)]],
        vec![vec![write(0, 2048), write(1024, 2048)]],
        // Within a unit, after what the log has of it; and after that.
        vec![vec![write(0, 2048), fua(512, 512), write(0, 1024)]],
        vec![vec![write(0, 1024), zero(512, 1024), write(1024, 1024)]],
        vec![vec![write(0, 1536), write(512, 512), FLUSH]],
        // Beside each other.
        vec![vec![write(0, 2048)], vec![write(1024, 2048)]],
        vec![vec![write(0, 2048), write(0, 512)], vec![fua(512, 512), zero(1024, 512)]],
        // Slots are used again.
        vec![many(36)],
    ]
}

fn cut_small_workloads(seeds: std::ops::Range<u64>, most: usize) -> Result<u64, String> {
    let workloads = small_workloads();
    let of_seed = |seed| workloads.iter().try_fold(0, |sum, clients| Ok(sum + cut_everywhere(clients, seed, most)?));
    seeds.map(of_seed).sum::<Result<u64, String>>()
}

fn random_clients(random: &mut Random) -> Vec<Vec<Step>> {
    let step = |random: &mut Random| {
        let start = random.below(BYTES / UNIT - 1) * UNIT;
        let units = if random.chance(1, 3) { 1 } else { 1 + random.below((BYTES - start) / UNIT) };
        let kind = match random.below(12) {
            0 => Kind::Zero,
            1 => Kind::Flush,
            _ => Kind::Write,
        };
        let spu = random.below(SPUS.into()) as u16;
        Step { spu, start, bytes: (units * UNIT) as u32, kind, fua: random.chance(1, 3) }
    };
    let count = 1 + random.below(4);
    (0..count).map(|_| (0..4 + random.below(30)).map(|_| step(random)).collect()).collect()
}

fn cut_at_random(seed: u64, most: usize) -> Result<u64, String> {
    let mut random = Random::new(seed);
    let (media, mut rig) = start(seed);
    media.cut_after(media.operations() + 1 + random.below(400));
    let mut model = Model::of(&rig);
    let what = format!("seed {seed}");
    run(&mut rig, &media, &random_clients(&mut random), &mut model).map_err(|why| format!("{what}: {why}"))?;
    check_outcomes(&media, &model, most, seed, &what)
}

#[test]
fn a_write_is_whole_or_not_there_after_every_cut_of_small_workloads() {
    let looked_at = cut_small_workloads(0..2, 3).unwrap();
    assert!(looked_at > 1000, "only {looked_at} outcomes");
}

#[test]
fn random_writes_beside_each_other_are_whole_after_cuts() {
    let looked_at: u64 = (0..60).map(|seed| cut_at_random(seed, 3).unwrap()).sum();
    assert!(looked_at > 100, "only {looked_at} outcomes");
}

/// Clients write the same places beside each other, durably; what is read when all have been answered is there after a cut.
fn read_stays(seed: u64) -> Result<(), String> {
    let mut random = Random::new(seed);
    let (media, mut rig) = start(seed);
    let write = |random: &mut Random| fua(random.below(4) * UNIT, (1 + random.below(8)) as u32 * UNIT as u32);
    let clients: Vec<Vec<Step>> = (0..4).map(|_| (0..6).map(|_| write(&mut random)).collect()).collect();
    run(&mut rig, &media, &clients, &mut Model::default())?;
    let before = rig.read(0)?;
    for outcome in 0..3 {
        let left = media.power_cut(&mut Choices::seeded(seed ^ outcome));
        if Rig::open(&left, rig.window)?.read(0)? != before {
            return Err(format!("seed {seed}: what was read has changed"));
        }
    }
    Ok(())
}

#[test]
fn what_was_read_after_writes_beside_each_other_stays_after_a_cut() {
    (0..40).for_each(|seed| read_stays(seed).unwrap());
}

#[test]
fn a_namespace_that_is_deleted_leaves_nothing_in_the_log() {
    assert_eq!(deleted_leaves_nothing(0), Ok(()));
}

#[test]
fn a_namespace_that_is_deleted_while_the_media_fail_leaves_nothing_in_the_log() {
    assert_eq!(deleted_leaves_nothing(1), Ok(()));
    assert_eq!(deleted_leaves_nothing(20), Ok(()));
}

/// A namespace is written and deleted, another takes its place, and the power goes: it is of zeroes. Meanwhile so many flushes fail.
fn deleted_leaves_nothing(failing_flushes: u64) -> Result<(), String> {
    for seed in 0..4 {
        let (media, mut rig) = start(seed);
        let before = rig.base;
        run(&mut rig, &media, &[vec![write(0, 4096)], vec![Step { spu: 1, ..write(0, 4096) }]], &mut Model::default())?;
        let nsid = rig.nsid;
        media.fail_flushes(failing_flushes);
        rig.control(control::DELETE_NAMESPACE, &nsid.to_le_bytes());
        rig.drive.settle();
        media.heal();
        rig.create();
        assert_eq!(rig.base, before, "the same range again, or this tests nothing");
        rig.drive.settle();
        check_outcomes(&media, &Model::of(&rig), 4, seed, "deleted")?;
    }
    Ok(())
}

/// A namespace is deleted whose writes the log cannot forget: `given_up` is where it was. Nobody gets that range until the log has nothing of it.
fn is_given_away_clean(media: &FaultMedia, rig: &mut Rig, given_up: u64) {
    let nsid = rig.nsid;
    assert_ne!(rig.try_control(control::DELETE_NAMESPACE, &nsid.to_le_bytes()), 0, "who deletes it is told");
    assert!(rig.drive.device.namespaces().iter().all(|namespace| namespace.nsid != nsid), "and it is gone");
    rig.create();
    assert_ne!(rig.base, given_up, "the log still has something of that range");
    media.heal();
    let left = media.power_cut(&mut Choices::seeded(1));
    let mut rig = Rig::open(&left, 0).expect("what was left opens");
    rig.drive.settle();
    rig.create();
    assert_eq!(rig.base, given_up, "the range is free again");
    let found = rig.read(0).expect("it can be read");
    assert!(found.iter().all(|unit| *unit == content(0)), "the next namespace is of zeroes");
    let left = left.power_cut(&mut Choices::seeded(2));
    let base = rig.base;
    let mut rig = Rig::open(&left, 0).expect("what was left opens");
    rig.base = base;
    assert_eq!(rig.read(0), Ok(found), "and stays so");
}

#[test]
fn a_range_is_kept_from_others_while_a_failed_write_keeps_it_in_the_log() {
    let (media, mut rig) = start(0);
    media.fail_writes(0, rig.base..rig.base + 4096);
    let tag = rig.begin(handler::WRITE, &write(0, 4096), &content(9).repeat(8), 0);
    let done = rig.drive.wait(tag);
    assert_eq!(status(&done), STATUS_MEDIA_ERROR);
    rig.create();
    let model = &mut Model::of(&rig);
    run(&mut rig, &media, &[vec![write(0, 4096)]], model).unwrap();
    let given_up = rig.base;
    is_given_away_clean(&media, &mut rig, given_up);
}

#[test]
fn a_range_is_kept_from_others_while_the_log_cannot_be_read() {
    let (media, mut rig) = start(0);
    let model = &mut Model::of(&rig);
    run(&mut rig, &media, &[vec![write(0, 4096)]], model).unwrap();
    let (given_up, log) = (rig.base, log_base(&media));
    let left = media.power_cut(&mut Choices::seeded(1));
    left.fail_reads(0, log..log + 4096);
    let mut rig = Rig::open(&left, 0).expect("what was left opens");
    rig.drive.settle();
    is_given_away_clean(&left, &mut rig, given_up);
}

fn a_full_log_is_emptied_and_writes_go_on(medium: Medium) {
    let (store, apps) = medium.banks(SPUS, 8 << 20);
    let mut rig = Rig::open_with(store, apps, 0).unwrap();
    rig.create();
    // Its power does not go.
    let media = FaultMedia::new(options(0));
    let clients: Vec<Vec<Step>> =
        (0..8).map(|client| (0..40).map(|at| write((client + at) % 8 * 2048, 2048)).collect()).collect();
    let mut model = Model::of(&rig);
    run(&mut rig, &media, &clients, &mut model).unwrap();
    assert_eq!(model.steps.len(), 320);
    let found = rig.read(0).unwrap();
    model.check(0, &found).unwrap();
}

#[test]
fn users_cannot_call_it() {
    let (_, mut rig) = start(0);
    let process = rig.drive.device.open_process(1000, 1).unwrap();
    let hre = rig.drive.device.open_hre(Some(process)).unwrap();
    let app = rig.app;
    let tag = rig.drive.submit_on(hre, (app, 0, handler::FLUSH), &[0; 32], &[], 0);
    let done = rig.drive.wait(tag);
    assert_eq!(done.outcome, willow_device::RpcOutcome::NotPermitted);
}

#[test]
fn what_media_do_not_take_is_told_and_put_there_later() {
    let (media, mut rig) = start(0);
    run(&mut rig, &media, &[vec![write(0, 4096)]], &mut Model::default()).unwrap();
    // The place fails, the log does not.
    media.fail_writes(0, rig.base..rig.base + 4096);
    let step = write(0, 4096);
    let tag = rig.begin(handler::WRITE, &step, &content(9).repeat(8), 0);
    let done = rig.drive.wait(tag);
    assert_eq!(status(&done), STATUS_MEDIA_ERROR);
    assert!(rig.read(0).is_err(), "nobody sees what may be a part of it");
    media.heal();
    let found = rig.read(0).unwrap();
    assert!(found[..8].iter().all(|unit| *unit == content(9)), "the log had it");
}

fn is_caught(bug: Planted, run: impl Fn() -> Result<u64, String>) -> bool {
    plant(Some(bug));
    // A device that fails in the midst of a test is seen as well.
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
    plant(None);
    outcome.map_or(true, |outcome| outcome.is_err())
}

fn is_caught_anywhere(bug: Planted) -> bool {
    let at_random = || (0..400).map(|seed| cut_at_random(seed, 4)).sum::<Result<u64, String>>();
    is_caught(bug, || cut_small_workloads(0..3, 8)) || is_caught(bug, at_random)
}

#[test]
fn planted_writes_past_the_log_are_caught() {
    assert!(is_caught_anywhere(Planted::NoLog));
}

#[test]
fn planted_place_before_the_log_is_caught() {
    assert!(is_caught_anywhere(Planted::PutsBeforeFlush));
}

#[test]
fn planted_belief_in_torn_data_is_caught() {
    assert!(is_caught_anywhere(Planted::TornData));
}

#[test]
fn planted_units_past_the_log_are_caught() {
    assert!(is_caught_anywhere(Planted::UnitsPassBy));
}

#[test]
fn planted_zeroes_past_the_log_are_caught() {
    assert!(is_caught_anywhere(Planted::ZeroesPassBy));
}

#[test]
fn planted_slots_that_are_free_too_early_are_caught() {
    assert!(is_caught_anywhere(Planted::RetiresBeforeFlush));
}

#[test]
fn planted_writes_without_claims_are_caught() {
    assert!((0..400).any(|seed| is_caught(Planted::ClaimsNothing, || read_stays(seed).map(|()| 0))));
}

#[test]
fn planted_recovery_of_the_later_first_is_caught() {
    assert!(is_caught_anywhere(Planted::LaterFirst));
}

#[test]
fn planted_log_of_deleted_namespaces_is_caught() {
    assert!(is_caught(Planted::KeepsDeleted, || deleted_leaves_nothing(0).map(|()| 0)));
}
