//! Power cuts: at every change of the flash in small workloads, with every outcome of what was under way; at random changes of random workloads, with
//! failing programs, erases and reads at the same time; and in the midst of recovery. The last tests plant bugs: what cannot catch those tests
//! nothing.

mod world;

use willow_flash::Planted;
use willow_flash::testing::{Choices, Faults, Random};
use world::{MIXED, SHAPES, Shape, UNITS, Workload, World, check_survivor};

/// Combinations of outcomes that are tried of one cut, at most.
const OUTCOMES_MAX: usize = 27;

const FAILING: Faults = Faults { programs: 400, erases: 200, reads: 0, factory: 30 };
const ROTTING: Faults = Faults { programs: 0, erases: 0, reads: 3000, factory: 0 };

/// Writes until collection has run for a while; then the power is on, and nothing is under way.
fn used(shape: Shape, planted: Option<Planted>, seed: u64) -> World {
    let (mut world, lane) = World::new(shape, Faults::default(), seed);
    let workload = Workload { clients: 3, steps: 150, ..MIXED };
    assert_eq!(world.run(&lane, workload, seed), Ok(true));
    drop(lane);
    world.planted = planted;
    world
}

/// Runs a workload on used flash, with the power cut at each change in turn. Returns how many cuts there were.
fn cut_everywhere(start: &World, workload: Workload, seed: u64) -> Result<u64, String> {
    let mut outcomes = 0;
    for cut in 0.. {
        let world = start.on(start.medium.survivor(&mut Choices::first()));
        let lane = match world.mount(seed) {
            Some(Ok(lane)) => lane,
            other => return Err(format!("mount: {:?}", other.map(Result::err))),
        };
        world.verify(&lane, seed)?;
        world.medium.cut_after(cut);
        if world.run(&lane, workload, seed)? {
            return Ok(outcomes);
        }
        drop(lane);
        let mut choices = Choices::first();
        for _ in 0..OUTCOMES_MAX {
            check_survivor(&world, &mut choices, 0, seed).map_err(|text| format!("cut {cut}: {text}"))?;
            outcomes += 1;
            if !choices.advance() {
                break;
            }
        }
    }
    unreachable!("the workload ends")
}

/// Rounds of a random workload, each ended by a cut.
fn cut_at_random(shape: Shape, faults: Faults, planted: Option<Planted>, rounds: u64, seed: u64) -> Result<(), String> {
    let mut random = Random(seed);
    let (mut world, mut lane) = World::new(shape, faults, seed);
    world.planted = planted;
    for round in 0..rounds {
        // Early rounds are long, so that collection runs.
        let steps = if round == 0 { 150 } else { 20 + random.below(60) };
        let workload = Workload {
            clients: 1 + random.below(4) as usize,
            steps,
            units: [4, 16, UNITS][random.below(3) as usize],
            trims: [0, 4, 10][random.below(3) as usize],
            flushes: [3, 8, 30][random.below(3) as usize],
            ended: [0, 10][random.below(2) as usize],
            ..MIXED
        };
        world.medium.cut_after(random.below(5 * steps * workload.clients as u64));
        let text = |text: String| format!("{shape:?} seed {seed} round {round}: {text}");
        world.run(&lane, workload, random.next()).map_err(text)?;
        if world.read_only.get() {
            // Read to the end: that is what is left.
            return Ok(());
        }
        let mut choices = Choices::Drawn(random.clone());
        drop(lane);
        (world, lane) = match check_survivor(&world, &mut choices, 2, random.next()) {
            Ok(next) => next,
            // With media that rot the log itself may be hit; that is told, and never taken for something else.
            Err(error) if faults.reads > 0 && error.contains("Damaged") => return Ok(()),
            Err(error) if faults.programs > 0 && (error.contains("TooManyBad") || error.contains("ReadOnly")) => {
                return Ok(());
            }
            Err(error) => return Err(text(error)),
        };
    }
    Ok(())
}

const SMALL: [Workload; 4] = [
    // A few writes and flushes.
    Workload { clients: 1, steps: 12, units: 4, trims: 0, flushes: 4, partial: 4, reads: 0, ended: 0 },
    // Trims that are made durable.
    Workload { clients: 1, steps: 12, units: 3, trims: 3, flushes: 3, partial: 0, reads: 0, ended: 0 },
    // Overwriting, so that blocks are collected, and a checkpoint is written.
    Workload { clients: 2, steps: 24, units: UNITS, trims: 10, flushes: 10, partial: 5, reads: 0, ended: 0 },
    // Few units: blocks die as a whole.
    Workload { clients: 2, steps: 24, units: 2, trims: 0, flushes: 6, partial: 0, reads: 0, ended: 0 },
];

#[test]
fn every_cut_of_small_workloads_with_every_outcome() {
    let mut outcomes = 0;
    for shape in SHAPES {
        let start = used(shape, None, 1);
        for (number, workload) in SMALL.into_iter().enumerate() {
            outcomes += cut_everywhere(&start, workload, 7)
                .unwrap_or_else(|text| panic!("{shape:?} workload {number}: {text}"));
        }
    }
    assert!(outcomes > 2000, "{outcomes} outcomes");
}

#[test]
fn random_cuts_of_interleaved_workloads() {
    for shape in SHAPES {
        for seed in 0..seeds(25) {
            cut_at_random(shape, Faults::default(), None, 8, seed).unwrap_or_else(|text| panic!("{text}"));
        }
    }
}

#[test]
fn random_cuts_with_failing_programs_and_erases() {
    for shape in SHAPES {
        for seed in 0..seeds(20) {
            cut_at_random(shape, FAILING, None, 8, seed).unwrap_or_else(|text| panic!("{text}"));
        }
    }
}

#[test]
fn random_cuts_with_pages_that_become_unreadable() {
    for shape in SHAPES {
        for seed in 0..seeds(20) {
            cut_at_random(shape, ROTTING, None, 6, seed).unwrap_or_else(|text| panic!("{text}"));
        }
    }
}

/// Seeds of each shape: more on request.
fn seeds(few: u64) -> u64 {
    let asked = std::env::var("WILLOW_POWER_CUT_SEEDS").ok();
    asked.map_or(few, |text| text.parse().expect("WILLOW_POWER_CUT_SEEDS is a number"))
}

/// Some seed catches the bug.
fn caught(planted: Planted, shapes: &[Shape]) {
    for shape in shapes {
        for seed in 0..60 {
            let outcome = std::panic::catch_unwind(|| cut_at_random(*shape, Faults::default(), Some(planted), 8, seed));
            match outcome {
                Ok(Ok(())) => {}
                Ok(Err(text)) => return println!("{planted:?}: {text}"),
                Err(_) => return println!("{planted:?}: an assertion of the lane's own"),
            }
        }
    }
    panic!("{planted:?} was not caught");
}

#[test]
fn planted_bugs_are_caught() {
    let all = &SHAPES[..];
    caught(Planted::HeaderUnchecked, all);
    caught(Planted::RootBeforeData, all);
    caught(Planted::EraseBeforeDurable, all);
    caught(Planted::WrongSequence, all);
    caught(Planted::TrimForgotten, all);
    caught(Planted::CopyUnconditional, all);
    caught(Planted::RecoveryReleasesEarly, all);
    caught(Planted::UnsettledFlush, &SHAPES[3..]);
    caught(Planted::BlockLeaked, all);
}

/// A page of the log that says that a block was erased is lost, so that the checkpoint's map leads to a page that is erased; its copy is there.
#[test]
fn seeds_that_found_something_once() {
    cut_at_random(SHAPES[3], ROTTING, None, 6, 2381).unwrap_or_else(|text| panic!("{text}"));
}

/// Replays what a test has found, on request: `WILLOW_POWER_CUT_REPLAY=shape,seed,kind[,end]`, kind 0 without failures, 1 with failing programs and erases,
/// 2 with pages that become unreadable; with `end` all seeds from the first to that one, on which nothing may be found either.
#[test]
fn replays_on_request() {
    let asked = std::env::var("WILLOW_POWER_CUT_REPLAY").unwrap_or("0,1,0".into());
    let numbers: Vec<u64> = asked.split(',').map(|number| number.parse().expect("numbers")).collect();
    let &[shape, seed, kind, ..] = &numbers[..] else { panic!("shape, seed and kind") };
    let (faults, rounds) = match kind {
        0 => (Faults::default(), 8),
        1 => (FAILING, 8),
        _ => (ROTTING, 6),
    };
    let mut found = 0;
    for seed in seed..numbers.get(3).copied().unwrap_or(seed + 1) {
        if let Err(text) = cut_at_random(SHAPES[shape as usize], faults, None, rounds, seed) {
            println!("{text}");
            found += 1;
        }
    }
    assert_eq!(found, 0);
}
