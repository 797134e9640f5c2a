//! Power cuts: at every media write of small workloads, with every subset of the writes in question (or a choice where
//! there are too many), also in the midst of recovery; and at random moments of random workloads whose handlers interleave.
//! The last tests plant bugs: what cannot catch those tests nothing.

mod world;

use key_value_spu::bank::Planted;
use key_value_spu::table::Table;
use world::history::{History, Step, Workload};
use world::{Media, Random, World, flush, run_one};

const REGION_BYTES: usize = 512 << 10;

/// What a test does at each cut.
#[derive(Clone, Copy)]
struct Effort {
    /// All subsets are tried of at most so many pieces in question.
    exhaustive: usize,
    /// Else so many.
    samples: usize,
    /// Cuts of each recovery; 0: none.
    recovery_cuts: u64,
}

/// Recovers what survived and checks it; then checks that recovery left it durable.
fn check_survivor(
    media: Media,
    history: &History,
    spread: bool,
    planted: Option<Planted>,
    effort: Effort,
    random: &mut Random,
) -> Result<(History, Media), String> {
    let recover = |media: Media, writes_left: Option<u64>| {
        let world = World::new(media, 1);
        world.planted.set(planted);
        world.writes_left.set(writes_left);
        let table = Box::new(Table::new());
        let outcome = run_one(&world, flush(&world, &table));
        (world, table, outcome)
    };
    let (world, table, outcome) = recover(media.clone(), None);
    match outcome {
        Some(Ok(())) => {}
        other => return Err(format!("recovery: {other:?}")),
    }
    let writes = world.writes.get();
    let mut found = history.clone();
    found.verify(&world, &table, spread)?;
    // Cut again at once: nothing changes.
    let after = world.media.borrow().clone();
    let (again, table, _) = recover(after.survivor(|_| false), None);
    found.clone().verify(&again, &table, spread).map_err(|text| format!("a cut after recovery: {text}"))?;
    // Cuts in the midst of recovery: at every write where the effort allows it, else at random ones.
    for number in 1..=effort.recovery_cuts.min(writes) {
        let at = if effort.recovery_cuts >= writes { number } else { 1 + random.below(writes) };
        let (cut, _, _) = recover(media.clone(), Some(at));
        let media = cut.media.borrow().clone();
        for survivor in media.survivors(2, 3, random) {
            let (world, table, outcome) = recover(survivor, None);
            if outcome != Some(Ok(())) {
                return Err(format!("recovery after a cut recovery: {outcome:?}"));
            }
            history.clone().verify(&world, &table, spread).map_err(|text| format!("a cut in recovery: {text}"))?;
        }
    }
    Ok((found, after))
}

/// Runs a workload on that media, with the power cut at each write in turn.
fn cut_everywhere(
    start: &Media,
    before: &History,
    workload: &Workload,
    planted: Option<Planted>,
    effort: Effort,
    seed: u64,
) -> Result<u64, String> {
    let mut random = Random(seed);
    let mut cut_at = 1;
    loop {
        let world = World::new(start.clone(), seed);
        world.planted.set(planted);
        world.writes_left.set(Some(cut_at));
        let table = Box::new(Table::new());
        let mut history = before.clone();
        workload.run(&world, &table, &mut history)?;
        let media = world.media.borrow().clone();
        for survivor in media.survivors(effort.exhaustive, effort.samples, &mut random) {
            check_survivor(survivor, &history, workload.spread, planted, effort, &mut random)
                .map_err(|text| format!("seed {seed}, cut at write {cut_at}: {text}"))?;
        }
        if !world.dead.get() {
            return Ok(cut_at);
        }
        cut_at += 1;
    }
}

/// Rounds of a random workload, each ended by a cut at a random write, on what the round before left.
fn cut_at_random(seed: u64, planted: Option<Planted>, rounds: u64, largest: u64, rests: bool) -> Result<(), String> {
    let mut random = Random(seed);
    let mut media = Media::new(REGION_BYTES);
    let mut history = History::new();
    let spread = random.one_in(2);
    for round in 0..rounds {
        let clients = 1 + random.below(6) as usize;
        let mut workload = Workload { spread, ..Workload::random(&mut random, clients, 20, largest) };
        if rests {
            for steps in &mut workload.clients {
                for _ in 0..2 {
                    steps.insert(random.below(steps.len() as u64 + 1) as usize, Step::Rest);
                }
            }
        }
        let world = World::new(media.clone(), random.next());
        world.planted.set(planted);
        world.writes_left.set(Some(1 + random.below(150 * clients as u64)));
        let mut table = Box::new(Table::new());
        workload.run(&world, &table, &mut history).map_err(|text| format!("seed {seed}, round {round}: {text}"))?;
        if !world.dead.get() && random.one_in(2) {
            // Killed, not cut: all that was written is there, and is not durable. Recovered, and cut in the midst of more.
            world.writes_left.set(Some(1 + random.below(300)));
            table = Box::new(Table::new());
            let more = Workload { spread, ..Workload::random(&mut random, 2, 10, largest) };
            more.run(&world, &table, &mut history).map_err(|text| format!("seed {seed}, round {round}: {text}"))?;
        } else if !world.dead.get() && random.one_in(2) {
            world.writes_left.set(Some(1 + random.below(60)));
            run_one(&world, table.close_all(&world.request(&[], 0)));
        }
        drop(table);
        let cut = world.media.borrow().clone();
        let effort = Effort { exhaustive: 3, samples: 6, recovery_cuts: 2 };
        let survivors = cut.survivors(effort.exhaustive, effort.samples, &mut random);
        let chosen = random.below(survivors.len() as u64) as usize;
        let mut next = None;
        for (index, survivor) in survivors.into_iter().enumerate() {
            let checked = check_survivor(survivor, &history, spread, planted, effort, &mut random)
                .map_err(|text| format!("seed {seed}, round {round}: {text}"))?;
            if index == chosen {
                next = Some(checked);
            }
        }
        let (found, left) = next.expect("one was chosen");
        history = found;
        media = left.survivor(|_| true);
    }
    Ok(())
}

fn script(steps: &[Step], spread: bool) -> Workload {
    Workload { clients: vec![steps.to_vec()], spread, slow: false, round: 0 }
}

const THOROUGH: Effort = Effort { exhaustive: 7, samples: 24, recovery_cuts: 1 };

/// The small workloads: each is a way that one write depends on another.
fn small_workloads() -> Vec<Workload> {
    use Step::{Clear, Delete, Flush, Put, PutUntil, Sweep, Tell, Touch};
    let steps: &[&[Step]] = &[
        // New, replaced, replaced again, nothing flushed; then flushed.
        &[Put(0, 100), Put(0, 700), Put(0, 90), Flush, Put(0, 1200), Flush, Flush],
        // Deleted while older versions are in limbo.
        &[Put(0, 100), Flush, Put(0, 110), Delete(0), Flush, Flush, Flush, Flush, Put(0, 50), Flush],
        // Deleted and stored again.
        &[Put(0, 10), Flush, Delete(0), Put(0, 20), Delete(0), Flush, Put(0, 30), Flush, Flush, Put(1, 10)],
        // Slots are used again by other keys.
        &[
            Put(0, 100),
            Put(1, 100),
            Flush,
            Put(0, 100),
            Delete(1),
            Flush,
            Flush,
            Flush,
            Put(2, 100),
            Put(3, 100),
            Flush,
        ],
        // Chunks.
        &[
            Put(0, 70_000),
            Flush,
            Put(0, 131_100),
            Flush,
            Flush,
            Put(1, 66_000),
            Delete(0),
            Flush,
            Flush,
            Flush,
            Put(2, 65_600),
        ],
        // No value at all.
        &[Put(0, 0), Put(0, 0), Flush, Delete(0), Flush, Put(0, 1)],
        // Another time to end, before and after it is durable; what does not end gets an end, and the other way round.
        &[
            PutUntil(0, 100, 5),
            Touch(0, 9),
            Flush,
            Touch(0, 0),
            Touch(0, 7),
            Flush,
            Put(1, 20),
            Touch(1, 3),
            Flush,
            Put(0, 9),
        ],
        // What has ended is swept away, stored anew, and its slot used by others.
        &[
            PutUntil(0, 100, 5),
            Put(1, 100),
            Flush,
            Tell(6),
            Sweep,
            PutUntil(0, 100, 9),
            Flush,
            Flush,
            Flush,
            Put(2, 100),
            Tell(10),
            Sweep,
            Flush,
        ],
        // All is removed at once; what comes afterwards stays, and what was there before never comes back.
        &[
            Put(0, 100),
            Put(1, 70_000),
            Flush,
            Put(2, 9),
            Clear,
            Put(0, 30),
            Flush,
            Delete(0),
            Flush,
            Sweep,
            Flush,
            Put(1, 5),
        ],
    ];
    steps.iter().enumerate().map(|(index, steps)| script(steps, index % 2 == 0)).collect()
}

fn cut_small_workloads(planted: Option<Planted>, effort: Effort) -> Result<u64, String> {
    let mut cuts = 0;
    for workload in small_workloads() {
        cuts += cut_everywhere(&Media::new(REGION_BYTES), &History::new(), &workload, planted, effort, 1)?;
    }
    Ok(cuts)
}

#[test]
fn every_cut_of_small_workloads() {
    let cuts = cut_small_workloads(None, THOROUGH).unwrap();
    assert!(cuts > 140, "only {cuts} cuts");
}

/// The same from a region that is full, so that slabs get other classes and limbo is pressed for space.
#[test]
fn every_cut_when_space_is_short() {
    use Step::{Delete, Flush, Put};
    let world = World::new(Media::new(REGION_BYTES), 3);
    let table = Box::new(Table::new());
    let mut history = History::new();
    let fill: Vec<Step> = (0..30).map(|key| Put(key, 12_500)).chain([Flush]).collect();
    script(&fill, true).run(&world, &table, &mut history).unwrap();
    let steady: Vec<Step> =
        (0..30).map(Delete).chain([Flush, Flush, Flush, Put(0, 40_000), Put(1, 10), Flush]).collect();
    run_one(&world, flush(&world, &table)).unwrap().unwrap();
    let start = world.media.borrow().clone();
    let effort = Effort { exhaustive: 3, samples: 6, recovery_cuts: 0 };
    cut_everywhere(&start, &history, &script(&steady, true), None, effort, 9).unwrap();
}

#[test]
fn random_cuts_of_interleaved_workloads() {
    for seed in 0..24 {
        cut_at_random(seed, None, 6, 5000, false).unwrap();
    }
    for seed in 100..106 {
        cut_at_random(seed, None, 6, 90_000, false).unwrap();
    }
}

/// Workloads that are quiet in between: what is told as clean then is, until the next change, and no longer.
fn workloads_with_rests() -> Vec<Workload> {
    use Step::{Clear, Delete, Flush, Put, PutUntil, Rest, Touch};
    let steps: &[&[Step]] = &[
        &[Put(0, 100), Rest, Put(0, 700), Put(1, 90), Rest, Delete(0), Flush, Put(1, 50), Rest, Put(2, 10)],
        &[Put(0, 70_000), Put(1, 10), Delete(1), Rest, Put(0, 20), Flush, Rest, Put(2, 100), Put(3, 100)],
        &[PutUntil(0, 100, 5), Rest, Touch(0, 9), Clear, Rest, Put(0, 3), Rest, Rest, Delete(0), Rest],
    ];
    steps.iter().map(|steps| script(steps, true)).collect()
}

fn cut_around_rests(planted: Option<Planted>, effort: Effort) -> Result<u64, String> {
    let mut cuts = 0;
    for workload in workloads_with_rests() {
        cuts += cut_everywhere(&Media::new(REGION_BYTES), &History::new(), &workload, planted, effort, 2)?;
    }
    Ok(cuts)
}

#[test]
fn every_cut_around_rests() {
    let cuts = cut_around_rests(None, THOROUGH).unwrap();
    assert!(cuts > 60, "only {cuts} cuts");
}

#[test]
fn random_cuts_around_rests() {
    for seed in 200..212 {
        cut_at_random(seed, None, 6, 5000, true).unwrap();
    }
}

const LIGHT: Effort = Effort { exhaustive: 8, samples: 40, recovery_cuts: 0 };

fn violated(run: &dyn Fn() -> Result<(), String>) -> bool {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).map_or(true, |outcome| outcome.is_err())
}

fn caught(planted: Planted) -> bool {
    violated(&|| cut_small_workloads(Some(planted), LIGHT).map(drop))
        || (0..400).any(|seed| violated(&|| cut_at_random(seed, Some(planted), 6, 5000, false)))
}

fn caught_around_rests(planted: Planted) -> bool {
    violated(&|| cut_around_rests(Some(planted), LIGHT).map(drop))
}

#[test]
fn planted_clean_before_it_is_durable_is_caught() {
    assert!(caught_around_rests(Planted::CleanTooEarly));
}

#[test]
fn planted_clean_after_a_change_is_caught() {
    assert!(caught_around_rests(Planted::CleanTooLong));
}

#[test]
fn planted_reuse_too_early_is_caught() {
    assert!(caught(Planted::ReuseTooEarly));
}

#[test]
fn planted_short_tombstone_is_caught() {
    assert!(caught(Planted::TombstoneTooShort));
}

#[test]
fn planted_torn_values_are_caught() {
    assert!(caught(Planted::TornValues));
}

#[test]
fn planted_touch_outside_the_check_is_caught() {
    assert!(caught(Planted::ExpiryUnchecked));
}

#[test]
fn planted_clear_before_it_is_durable_is_caught() {
    assert!(caught(Planted::ClearTooEarly));
}

#[test]
fn planted_mark_that_does_not_wait_is_caught() {
    assert!(caught(Planted::MarkTooHigh));
}

#[test]
fn planted_slab_above_the_ceiling_is_caught() {
    assert!(caught(Planted::CeilingTooLate));
}

#[test]
fn planted_count_of_older_pairs_is_caught() {
    assert!(caught(Planted::OlderStillCounted));
}
