//! Caching on media that lose power: at every operation of the media of small workloads, with every outcome or a choice of them, and at random moments
//! of random ones. After each the cache together with the backing file has what was synced, and no bytes that nobody wrote there; a chunk that is said
//! to be clean is the backing file's. The last tests plant bugs: what cannot catch those tests nothing.

mod world;

use caching_spu::planted::{Planted, plant};
use caching_spu::wire::handler;
use willow_device::media::fault::{FaultMedia, Random};
use world::drive::{each_cut, each_outcome};
use world::{CHUNKS, Model, Rig, SECTORS, SPUS, Step, World, start};

/// Opens what a cut has left, and goes on from there.
fn check(media: &FaultMedia, model: &Model, what: &str) -> Result<(), String> {
    let said = |why: String| format!("{what}: {why}");
    let mut rig = Rig::open(media).map_err(said)?;
    if rig.everywhere(handler::CLAIM, 0) != [0; SPUS as usize] {
        return Err(said("the cache is not there any more".to_owned()));
    }
    // What was answered and not synced may have gone.
    let world = World::new(rig, Model { answered: model.durable.clone(), ..model.clone() });
    let mut found = Vec::new();
    for chunk in 0..CHUNKS {
        let bytes = world.look(chunk).map_err(said)?;
        model.check(chunk, &bytes, &model.durable).map_err(said)?;
        found.push(bytes);
    }
    // What readers find stays when all is written back and the rest forgotten.
    for spu in 0..SPUS {
        world.finish(world.write_back(spu)).map_err(said)?;
    }
    if world.rig.borrow_mut().everywhere(handler::DROP_CLEAN, 0) != [0; SPUS as usize] {
        return Err(said("clean chunks are not forgotten".to_owned()));
    }
    for spu in 0..SPUS {
        let (_, counts) = world.rig.borrow_mut().counts(spu);
        if (counts.used, counts.dirty) != (0, 0) {
            return Err(said(format!("SPU {spu} still has {} chunks, {} of them dirty", counts.used, counts.dirty)));
        }
    }
    for (chunk, found) in (0..).zip(&found) {
        if world.model.borrow().backing(chunk) != *found {
            return Err(said(format!("chunk {chunk} was read otherwise than it was written back")));
        }
    }
    // And it goes on.
    world
        .run(None, &[vec![Step::Write(4, 1), Step::Read(4), Step::Read(7), Step::Read(10), Step::Read(4)]])
        .map_err(said)
}

fn check_outcomes(media: &FaultMedia, model: &Model, most: usize, seed: u64, what: &str) -> Result<u64, String> {
    each_outcome(media, most, seed, |left, number| check(left, model, &format!("{what}, outcome {number}")))
}

/// The power goes at each operation of the media in turn.
fn cut_everywhere(clients: &[Vec<Step>], seed: u64, most: usize) -> Result<u64, String> {
    each_cut(|cut| {
        let what = format!("seed {seed}, cut {cut}");
        let (media, rig) = start(seed);
        media.cut_after(media.operations() + cut);
        let world = World::new(rig, Model::default());
        world.run(Some(&media), clients).map_err(|why| format!("{what}: {why}"))?;
        let model = world.model.into_inner();
        Ok((check_outcomes(&media, &model, most, seed ^ cut, &what)?, media.is_cut()))
    })
}

fn small_workloads() -> Vec<Vec<Vec<Step>>> {
    use Step::{Drop, Read, Sync, Write, WriteBack};
    vec![
        vec![vec![Read(3), Write(3, 0), Sync, Write(3, 1)]],
        // One SPU has two slots: what comes makes others go, dirty ones by the manager.
        vec![vec![Write(0, 0), Read(3), Read(6), Read(9)]],
        vec![vec![Write(0, 0), Write(3, 0), Sync, Read(6), Read(0)]],
        // Written while it is written back, and afterwards.
        vec![vec![Write(0, 0), Write(0, 0), Sync, Write(0, 0)], vec![WriteBack, Read(3), WriteBack, Drop(0)]],
    ]
}

fn cut_small_workloads(seeds: std::ops::Range<u64>, most: usize) -> Result<u64, String> {
    let workloads = small_workloads();
    let of_seed = |seed| workloads.iter().try_fold(0, |sum, clients| Ok(sum + cut_everywhere(clients, seed, most)?));
    seeds.map(of_seed).sum::<Result<u64, String>>()
}

/// Clients of which each writes sectors of its own, so that the order of writes of a sector is known.
fn random_clients(random: &mut Random) -> Vec<Vec<Step>> {
    let count = 1 + random.below(4) as u32;
    let step = |random: &mut Random, client: u32| {
        // All of one SPU, most of the time.
        let chunk = if random.below(4) > 0 { random.below(CHUNKS / 3) * 3 } else { random.below(CHUNKS) };
        let sector = random.below(u64::from(SECTORS / count)) as u32 * count + client;
        match random.below(20) {
            0 => Step::Sync,
            1 => Step::WriteBack,
            2 => Step::Drop(chunk),
            3..9 => Step::Read(chunk),
            _ => Step::Write(chunk, sector),
        }
    };
    (0..count).map(|client| (0..6 + random.below(20)).map(|_| step(random, client)).collect()).collect()
}

fn cut_at_random(seed: u64, most: usize) -> Result<u64, String> {
    let mut random = Random::new(seed);
    let (media, rig) = start(seed);
    media.cut_after(media.operations() + 1 + random.below(300));
    let world = World::new(rig, Model::default());
    let what = format!("seed {seed}");
    world.run(Some(&media), &random_clients(&mut random)).map_err(|why| format!("{what}: {why}"))?;
    let model = world.model.into_inner();
    check_outcomes(&media, &model, most, seed, &what)
}

#[test]
fn what_was_synced_is_there_after_every_cut_of_small_workloads() {
    let looked_at = cut_small_workloads(0..2, 3).unwrap();
    assert!(looked_at > 200, "only {looked_at} outcomes");
}

#[test]
fn what_many_clients_synced_is_there_after_cuts() {
    // More on request.
    let seeds = std::env::var("WILLOW_CACHING_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(120);
    let looked_at: u64 = (0..seeds).map(|seed| cut_at_random(seed, 2).unwrap()).sum();
    assert!(looked_at > 100, "only {looked_at} outcomes");
}

/// A cache is made with a cut at each operation: it is there as a whole on an SPU, without chunks, or not at all.
#[test]
fn a_cache_is_made_or_not_after_every_cut() {
    let looked_at = each_cut(|cut| {
        let media = FaultMedia::new(world::options(1));
        let mut rig = Rig::open(&media)?;
        rig.drive.settle();
        media.cut_after(media.operations() + cut);
        let body =
            [&caching_spu::wire::ChunkArguments::default().encode()[..], &world::descriptor(2).encode()].concat();
        let to = (rig.app, 0, handler::CREATE);
        rig.drive.submit(to, &[], &body, 0);
        rig.drive.settle_or_cut(&media);
        let looked_at = each_outcome(&media, 16, cut, |left, number| {
            let mut rig = Rig::open(left)?;
            let claimed = rig.everywhere(handler::CLAIM, 0)[0];
            match claimed {
                0 if rig.counts(0).1.used == 0 => Ok(()),
                caching_spu::wire::STATUS_ABSENT => Ok(()),
                other => Err(format!("cut {cut}, outcome {number}: status {other}")),
            }
        })?;
        Ok((looked_at, media.is_cut()))
    });
    assert!(looked_at.unwrap() > 5);
}

/// What the tests say where that bug is planted.
fn said(bug: Planted, run: impl Fn() -> Result<u64, String>) -> Option<String> {
    plant(Some(bug));
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
    plant(None);
    outcome.expect("no panic: what is wrong is said").err()
}

/// The bug is caught, and for its own reason.
fn is_caught_anywhere(bug: Planted, why: &str) {
    let at_random = || (0..100).map(|seed| cut_at_random(seed, 4)).sum::<Result<u64, String>>();
    let said = said(bug, || cut_small_workloads(0..3, 8)).or_else(|| said(bug, at_random));
    let said = said.expect("it is caught");
    assert!(said.contains(why), "{said}");
}

#[test]
fn planted_dirty_chunk_that_is_dropped_is_caught() {
    is_caught_anywhere(Planted::DirtyDropped, "lost write");
}

#[test]
fn planted_map_before_data_is_caught() {
    is_caught_anywhere(Planted::MapBeforeData, "has other bytes");
}

#[test]
fn planted_data_before_the_dirty_bit_is_caught() {
    is_caught_anywhere(Planted::DataBeforeDirty, "was read otherwise");
}

#[test]
fn planted_eviction_in_memory_only_is_caught() {
    is_caught_anywhere(Planted::EvictsInMemoryOnly, "has other bytes");
}

#[test]
fn planted_clean_bit_of_what_changed_is_caught() {
    is_caught_anywhere(Planted::CleansWhatChanged, "was read otherwise");
}

#[test]
fn planted_clean_bit_before_the_bytes_is_caught() {
    is_caught_anywhere(Planted::CleanBeforeData, "was read otherwise");
}

#[test]
fn planted_sync_of_nothing_is_caught() {
    is_caught_anywhere(Planted::SyncsNothing, "lost write");
}

#[test]
fn planted_start_that_takes_dirty_for_clean_is_caught() {
    is_caught_anywhere(Planted::RecoversAsClean, "was read otherwise");
}
