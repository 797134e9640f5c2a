//! The world that lanes are tested in: a shape of flash, clients that read, write, trim and flush, and what they may find after a cut.
//!
//! What always holds: same seeds, same calls: same results. What a client was answered is what the model knows; a result that the model does not allow is
//! an error's text, never a panic.

use super::{Choices, Executor, Faults, Medium, Random, Stop};
use crate::{Cell, Failure, Geometry, Lane, LaneConfig, Layout, MountError, Planted, Update};
use std::cell::{Cell as Slot, RefCell};
use std::rc::Rc;
use std::string::String;
use std::vec::Vec;
use std::{format, vec};

/// A shape of flash, small.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Planes of a die.
    pub planes: u32,
    /// Dies of a virtual page.
    pub dies_per_unit: u32,
    /// Whether firmware reaches the spare area.
    pub spare: bool,
    /// From a lower page to its upper one; 0: no page endangers another.
    pub paired_distance: u32,
}

/// One and several planes and dies, with and without spare areas, with and without paired pages.
pub const SHAPES: [Shape; 5] = [
    Shape { planes: 1, dies_per_unit: 1, spare: true, paired_distance: 0 },
    Shape { planes: 2, dies_per_unit: 2, spare: true, paired_distance: 0 },
    Shape { planes: 2, dies_per_unit: 1, spare: false, paired_distance: 0 },
    Shape { planes: 1, dies_per_unit: 1, spare: true, paired_distance: 2 },
    Shape { planes: 1, dies_per_unit: 2, spare: false, paired_distance: 2 },
];

/// Logical pages of a lane.
pub const UNITS: u32 = 40;
/// Bytes of one.
pub const UNIT_BYTES: usize = 1024;

impl Shape {
    /// Its flash.
    pub fn geometry(&self) -> Geometry {
        Geometry {
            channels: 1,
            packages_per_channel: 1,
            dies_per_package: self.dies_per_unit,
            planes_per_die: self.planes,
            blocks_per_plane: self.config().replacement_blocks + if self.paired_distance > 0 { 44 } else { 26 },
            pages_per_block: 8,
            page_bytes: UNIT_BYTES as u32 / self.planes / self.dies_per_unit,
            spare_bytes: 44,
            cell: Cell::Mlc,
            spare_accessible: self.spare,
            paired_distance: self.paired_distance,
        }
    }

    /// Its lane.
    pub fn layout(&self) -> Layout {
        Layout { geometry: self.geometry(), dies_per_unit: self.dies_per_unit, lane: 0 }
    }

    /// What the lane is made for: little, so that all happens soon.
    pub fn config(&self) -> LaneConfig {
        LaneConfig {
            units: UNITS,
            replacement_blocks: 6,
            collect_below: 4,
            collect_batch: 2,
            log_pages_max: 3,
            blocks_between_checkpoints: 4,
            wear_spread_max: 6,
            endurance: 1000,
            anchors: 3,
            remembered_bytes_max: 1 << 20,
        }
    }
}

/// A logical page as clients know it.
#[derive(Clone, Debug)]
struct Known {
    /// What it has held since the durable version, that included; the last may not have been acknowledged.
    versions: Vec<Vec<u8>>,
    /// How many of them were acknowledged.
    acknowledged: usize,
    /// How many were ever dropped from the front, for flushes that are under way.
    dropped: usize,
    busy: bool,
    /// The media may have lost it: errors are right, other bytes are not.
    may_be_lost: bool,
}

/// What clients know.
#[derive(Clone)]
pub struct Model {
    units: Vec<Known>,
    next_tag: u64,
}

impl Default for Model {
    fn default() -> Model {
        Model::new()
    }
}

impl Model {
    /// Nothing was written.
    pub fn new() -> Model {
        let known =
            Known { versions: vec![vec![0; UNIT_BYTES]], acknowledged: 1, dropped: 0, busy: false, may_be_lost: false };
        Model { units: vec![known; UNITS as usize], next_tag: 1 }
    }

    fn begin(&mut self, unit: u32, change: impl FnOnce(&mut Vec<u8>)) {
        let known = &mut self.units[unit as usize];
        assert!(!known.busy);
        known.busy = true;
        let mut next = known.versions.last().expect("one").clone();
        change(&mut next);
        known.versions.push(next);
    }

    fn end(&mut self, unit: u32, result: Result<(), Failure>, durable: bool) {
        let known = &mut self.units[unit as usize];
        known.busy = false;
        match result {
            Ok(()) => {
                known.acknowledged = known.versions.len();
                if durable {
                    let all = known.dropped + known.versions.len();
                    self.durable(unit, all);
                }
            }
            // Not written, as far as anybody can see before a cut; after one it may be there.
            Err(_) => {
                let failed = known.versions.pop().expect("it was begun");
                let at = known.versions.len() - 1;
                known.versions.insert(at, failed);
                known.acknowledged = known.versions.len();
            }
        }
    }

    /// Versions before that one are gone for good.
    fn durable(&mut self, unit: u32, count: usize) {
        let known = &mut self.units[unit as usize];
        while known.dropped + 1 < count {
            known.versions.remove(0);
            known.acknowledged -= 1;
            known.dropped += 1;
        }
    }

    fn acknowledged(&self) -> Vec<usize> {
        self.units.iter().map(|known| known.dropped + known.acknowledged).collect()
    }

    /// What is there after a cut is durable, and all that there is.
    fn settle(&mut self, unit: u32, found: Vec<u8>) {
        let known = &mut self.units[unit as usize];
        *known =
            Known { versions: vec![found], acknowledged: 1, dropped: 0, busy: false, may_be_lost: known.may_be_lost };
    }
}

/// What clients do, by weight.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    /// Clients at the same time.
    pub clients: usize,
    /// Operations of each.
    pub steps: u64,
    /// Units that are used.
    pub units: u32,
    /// Of operations, one in so many is a trim.
    pub trims: u64,
    /// A flush.
    pub flushes: u64,
    /// A write of part of a page.
    pub partial: u64,
    /// A read.
    pub reads: u64,
    /// Peers end at random, once in so many.
    pub ended: u64,
}

/// Some of everything.
pub const MIXED: Workload =
    Workload { clients: 3, steps: 30, units: UNITS, trims: 8, flushes: 8, partial: 5, reads: 6, ended: 0 };

/// A lane under test.
pub struct World {
    /// Of its flash.
    pub shape: Shape,
    /// The flash.
    pub medium: Medium,
    /// What clients know.
    pub model: Rc<RefCell<Model>>,
    /// What fails.
    pub faults: Faults,
    /// The bug that is planted when it is mounted.
    pub planted: Option<Planted>,
    /// What clients met that must not be.
    pub wrong: Rc<RefCell<Vec<String>>>,
    /// The lane takes nothing any more.
    pub read_only: Rc<Slot<bool>>,
}

/// A lane on the test medium.
pub type TestLane = Lane<Medium>;

/// Runs one future to its end; `None`: the power went first.
pub fn run_one<T>(medium: &Medium, seed: u64, future: impl Future<Output = T>) -> Option<T> {
    let result = RefCell::new(None);
    let stop = {
        let mut executor = Executor::new(seed);
        executor.spawn(async { *result.borrow_mut() = Some(future.await) });
        executor.run(medium)
    };
    assert_ne!(stop, Stop::Stuck, "the future waits for nothing");
    result.into_inner()
}

async fn client(lane: &TestLane, world: &World, workload: Workload, seed: u64) {
    let mut random = Random(seed);
    let durable = lane.is_durable_at_once();
    for _ in 0..workload.steps {
        let unit = random.below(workload.units.into()) as u32;
        let kind = random.next();
        let one_in = |salt: u64, bound: u64| Random(kind ^ salt).one_in(bound);
        if one_in(1, workload.flushes) {
            let before = world.model.borrow().acknowledged();
            match lane.flush().await {
                Ok(()) => {
                    let mut model = world.model.borrow_mut();
                    (0..).zip(before).for_each(|(unit, count)| model.durable(unit, count));
                }
                Err(failure) => failed(world, failure),
            }
            continue;
        }
        if world.model.borrow().units[unit as usize].busy {
            // The gate keeps such operations apart.
            lane_pause().await;
            continue;
        }
        if one_in(2, workload.reads) {
            world.model.borrow_mut().units[unit as usize].busy = true;
            let read = read_unit(lane, world, unit).await;
            let mut model = world.model.borrow_mut();
            let known = &mut model.units[unit as usize];
            known.busy = false;
            match read {
                Ok(bytes) if bytes != known.versions[known.acknowledged - 1] => {
                    world.wrong.borrow_mut().push(format!("unit {unit} reads as something else"));
                }
                Ok(_) => {}
                Err(Failure::Media) if world.faults.reads > 0 => known.may_be_lost = true,
                Err(failure) => world.wrong.borrow_mut().push(format!("unit {unit}: {failure:?}")),
            }
            continue;
        }
        if one_in(3, workload.trims) {
            world.model.borrow_mut().begin(unit, |bytes| bytes.fill(0));
            let result = lane.trim(unit, 1).await;
            world.model.borrow_mut().end(unit, result, false);
            result.unwrap_or_else(|failure| failed(world, failure));
            continue;
        }
        let tag = {
            let mut model = world.model.borrow_mut();
            model.next_tag += 1;
            model.next_tag
        };
        let (mut start, mut end) = (0, UNIT_BYTES);
        if one_in(4, workload.partial) {
            start = random.below(UNIT_BYTES as u64 - 1) as usize;
            end = start + 1 + random.below((UNIT_BYTES - start) as u64) as usize;
        }
        let bytes: Vec<u8> = tag.to_le_bytes().into_iter().cycle().take(end - start).collect();
        let peer = world.medium.peer(bytes.clone());
        world.model.borrow_mut().begin(unit, |unit| unit[start..end].copy_from_slice(&bytes));
        if random.one_in(workload.ended) {
            world.medium.end_peer(peer);
        }
        let update = Update { unit, start: start as u32, end: end as u32, peer: Some((peer, 0)) };
        let result = lane.write(update).await;
        world.model.borrow_mut().end(unit, result, durable);
        match result {
            Ok(()) => {}
            Err(Failure::PeerEnded) if workload.ended > 0 => {}
            Err(Failure::Media) if world.faults.reads > 0 && end - start < UNIT_BYTES => {
                world.model.borrow_mut().units[unit as usize].may_be_lost = true;
            }
            Err(failure) => failed(world, failure),
        }
    }
}

fn failed(world: &World, failure: Failure) {
    if failure == Failure::ReadOnly && (world.faults.programs > 0 || world.faults.erases > 0) {
        world.read_only.set(true);
        return;
    }
    world.wrong.borrow_mut().push(format!("an operation failed: {failure:?}"));
}

async fn lane_pause() {
    let mut paused = false;
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut paused, true) {
            return std::task::Poll::Ready(());
        }
        context.waker().wake_by_ref();
        std::task::Poll::Pending
    })
    .await;
}

async fn read_unit(lane: &TestLane, world: &World, unit: u32) -> Result<Vec<u8>, Failure> {
    let peer = world.medium.peer(vec![0xaa; UNIT_BYTES]);
    lane.read(unit, 0, UNIT_BYTES as u32, peer, 0).await?;
    Ok(world.medium.peer_bytes(peer))
}

impl World {
    /// Formatted flash.
    pub fn new(shape: Shape, faults: Faults, seed: u64) -> (World, TestLane) {
        let medium = Medium::new(shape.geometry(), Faults { factory: faults.factory, ..Faults::default() }, seed);
        let lane = run_one(&medium, seed, Lane::format(medium.clone(), shape.layout(), shape.config()))
            .expect("no cut")
            .expect("the flash can be formatted");
        medium.set_faults(faults);
        let world = World {
            shape,
            medium,
            model: Rc::new(RefCell::new(Model::new())),
            faults,
            planted: None,
            wrong: Rc::default(),
            read_only: Rc::default(),
        };
        (world, lane)
    }

    /// The same flash and knowledge, on another medium.
    pub fn on(&self, medium: Medium) -> World {
        World {
            shape: self.shape,
            medium,
            model: Rc::new(RefCell::new(self.model.borrow().clone())),
            faults: self.faults,
            planted: self.planted,
            wrong: Rc::default(),
            read_only: Rc::default(),
        }
    }

    /// Recovers the lane; `None`: the power went.
    pub fn mount(&self, seed: u64) -> Option<Result<TestLane, MountError>> {
        let (layout, config) = (self.shape.layout(), self.shape.config());
        run_one(&self.medium, seed, Lane::mount_planted(self.medium.clone(), layout, config, self.planted))
    }

    /// Runs clients beside the maintainer. `Ok(false)`: the power went.
    pub fn run(&self, lane: &TestLane, workload: Workload, seed: u64) -> Result<bool, String> {
        let mut executor = Executor::new(seed);
        executor.spawn_background(async {
            if let Err(failure) = lane.maintain().await
                && !matches!(failure, Failure::ReadOnly)
            {
                self.wrong.borrow_mut().push(format!("the maintainer: {failure:?}"));
            }
        });
        for number in 0..workload.clients {
            executor.spawn(client(lane, self, workload, seed ^ (number as u64 + 1) << 32));
        }
        let mut stop = executor.run(&self.medium);
        if stop == Stop::Done && executor.settle(&self.medium) == Stop::Cut {
            stop = Stop::Cut;
        }
        drop(executor);
        self.sound()?;
        if stop == Stop::Stuck && !self.read_only.get() {
            return Err("all wait, and nothing will wake them".into());
        }
        if !self.read_only.get() && !lane.is_read_only() {
            lane.check(stop == Stop::Done)?;
        }
        Ok(stop == Stop::Done)
    }

    fn sound(&self) -> Result<(), String> {
        if let Some(wrong) = self.wrong.borrow().first() {
            return Err(wrong.clone());
        }
        match self.medium.misuses().first() {
            Some(misuse) => Err(format!("misuse: {misuse}")),
            None => Ok(()),
        }
    }

    /// Reads everything after a cut: each unit must hold one of the versions that it may hold, which is durable from then on.
    pub fn verify(&self, lane: &TestLane, seed: u64) -> Result<(), String> {
        lane.check(true)?;
        for unit in 0..UNITS {
            let read = run_one(&self.medium, seed, read_unit(lane, self, unit)).ok_or("cut while reading")?;
            let mut model = self.model.borrow_mut();
            let known = &model.units[unit as usize];
            match read {
                Ok(bytes) => {
                    if !known.versions.contains(&bytes) {
                        let count = known.versions.len();
                        let tag = u64::from_le_bytes(bytes[..8].try_into().expect("8"));
                        return Err(format!(
                            "unit {unit} holds {tag}, none of its {count} versions {:?}",
                            known
                                .versions
                                .iter()
                                .map(|v| u64::from_le_bytes(v[..8].try_into().expect("8")))
                                .collect::<Vec<_>>()
                        ));
                    }
                    model.settle(unit, bytes);
                }
                Err(Failure::Media) if self.faults.reads > 0 || known.may_be_lost => {
                    model.units[unit as usize].may_be_lost = true;
                    model.units[unit as usize].busy = false;
                    // Until it is written again nothing is known but that it fails.
                    let last = model.units[unit as usize].versions.clone();
                    let known = &mut model.units[unit as usize];
                    known.acknowledged = last.len();
                }
                Err(failure) => return Err(format!("unit {unit}: {failure:?}")),
            }
        }
        self.sound()
    }
}

/// What a cut leaves, mounted and verified, and cut again in recovery `recovery_cuts` times.
pub fn check_survivor(
    world: &World,
    choices: &mut Choices,
    recovery_cuts: u64,
    seed: u64,
) -> Result<(World, TestLane), String> {
    let survivor = world.medium.survivor(choices);
    let mounted = |medium: Medium| -> Result<Option<(World, TestLane)>, String> {
        let after = world.on(medium);
        match after.mount(seed) {
            None => Ok(None),
            Some(Ok(lane)) => {
                after.verify(&lane, seed)?;
                Ok(Some((after, lane)))
            }
            Some(Err(error)) => Err(format!("mount: {error:?}")),
        }
    };
    let mut random = Random(seed);
    let drawn = &mut Choices::Drawn(random.clone());
    if recovery_cuts > 0 {
        // How many changes recovery makes, and a cut after some of them.
        let probe = survivor.survivor(drawn);
        mounted(probe.clone())?;
        let changes = probe.changes();
        for number in 0..recovery_cuts.min(changes) {
            let cut = survivor.survivor(drawn);
            cut.cut_after(if recovery_cuts >= changes { number } else { random.below(changes) });
            if mounted(cut.clone())?.is_none() {
                mounted(cut.survivor(drawn)).map_err(|text| format!("a cut in recovery: {text}"))?;
            }
        }
    }
    mounted(survivor)?.ok_or_else(|| "no power".into())
}
