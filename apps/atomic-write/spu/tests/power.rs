//! Power cuts: at every operation of the media of small workloads, with every outcome (or a choice where there are too many), and again
//! in the midst of recovery; and at random moments of random workloads. The last tests plant bugs: what cannot catch those tests nothing.

mod world;

use atomic_write_spu::planted::{Planted, plant};
use willow_device::media::fault::{Choices, FaultMedia, Random};
use world::{Client, Model, Operation, Rig, SPUS, options, recover, run};

/// What a test does at each cut.
#[derive(Clone, Copy)]
struct Effort {
    /// Outcomes of each cut that are looked at, in turn where there are no more than these.
    outcomes: usize,
    /// Of each recovery one in so many operations is cut as well; 0: none.
    recovery_cuts: u64,
}

/// Looks at what a cut may have left.
fn check(media: &FaultMedia, model: &Model, effort: Effort, seed: u64, what: &str) -> Result<u64, String> {
    let exhaustive = media.outcomes() <= effort.outcomes as u128;
    let mut choices = if exhaustive { Choices::exhaustive() } else { Choices::seeded(seed) };
    let mut looked_at = 0;
    loop {
        let outcome = choices.clone();
        let left = media.power_cut(&mut choices);
        looked_at += 1;
        let text = |why| format!("{what}, outcome {looked_at}: {why}");
        let before = left.operations();
        let (mut rig, after) = recover(&left, model).map_err(text)?;
        rig.settle();
        let operations = left.operations() - before;
        for spu in 0..SPUS {
            let statistics = rig.statistics(spu);
            if statistics.open + statistics.committed > 0 || statistics.free_chunks != statistics.chunks {
                return Err(text(format!("something is left in the log: {statistics:?}")));
            }
        }
        // What recovery did is durable: cut again, at once.
        drop(rig);
        let again = left.power_cut(&mut Choices::seeded(seed));
        recover(&again, &after).map_err(|why| text(format!("after recovery: {why}")))?;
        // Cut in the midst of recovery.
        let mut at = 1 + seed % effort.recovery_cuts.max(1);
        while effort.recovery_cuts > 0 && at <= operations {
            let cut = media.power_cut(&mut outcome.clone());
            cut.cut_after(cut.operations() + at);
            if let Ok(mut rig) = Rig::open(Box::new(cut.store())) {
                for _ in 0..100_000 {
                    if cut.is_cut() || !rig.step() {
                        break;
                    }
                }
            }
            let twice = cut.power_cut(&mut Choices::seeded(seed ^ at));
            recover(&twice, model).map_err(|why| text(format!("recovery cut at {at} of {operations}: {why}")))?;
            at += effort.recovery_cuts;
        }
        if looked_at as usize >= effort.outcomes || !choices.advance() {
            return Ok(looked_at);
        }
    }
}

/// A device on fresh media, its log there.
fn start(options: willow_device::media::fault::FaultOptions) -> (FaultMedia, Rig) {
    let media = FaultMedia::new(options);
    let mut rig = Rig::open(Box::new(media.store())).expect("a fresh device opens");
    rig.settle();
    (media, rig)
}

/// Runs clients, with the power cut at each operation of the media in turn; how many outcomes were looked at.
fn cut_everywhere(scripts: &[Vec<Operation>], seed: u64, effort: Effort) -> Result<u64, String> {
    let clients = || -> Vec<Client> {
        (1..).zip(scripts).map(|(number, script)| Client::new(number, seed, script.clone())).collect()
    };
    let mut looked_at = 0;
    for cut in 0.. {
        let (media, mut rig) = start(options(seed));
        media.cut_after(media.operations() + cut);
        let mut model = Model::default();
        run(&mut rig, &media, &mut clients(), &mut model).map_err(|why| format!("seed {seed}, cut {cut}: {why}"))?;
        let what = format!("seed {seed}, cut {cut}");
        if !media.is_cut() {
            // What goes on in the background is cut as well.
            rig.settle();
        }
        looked_at += check(&media, &model, effort, seed ^ cut, &what)?;
        if !media.is_cut() {
            return Ok(looked_at);
        }
    }
    unreachable!()
}

fn commit(blocks: &[usize]) -> Operation {
    Operation::Commit { blocks: blocks.to_vec(), in_parts: false }
}

/// Small workloads: each is a way that one write depends on another.
fn small_workloads() -> Vec<Vec<Vec<Operation>>> {
    use Operation::{Abort, Commit, Direct, Incomplete, Single};
    vec![
        // Over three SPUs, over one, over two.
        vec![vec![commit(&[0, 1, 2])]],
        vec![vec![commit(&[0, 3]), commit(&[0, 3])]],
        vec![vec![commit(&[0, 1]), commit(&[1, 0])]],
        // One request.
        vec![vec![Single { block: 0 }, Single { block: 0 }]],
        // What comes after a commit is not undone by its log.
        vec![vec![commit(&[0, 1]), Direct { block: 0, fua: true }, Direct { block: 1, fua: false }]],
        vec![vec![Single { block: 2 }, Direct { block: 2, fua: true }, commit(&[2, 0])]],
        // What was given up has no effect.
        vec![vec![Abort { blocks: vec![0, 1] }, commit(&[1, 2])]],
        // What is refused has no effect.
        vec![vec![commit(&[0, 1]), Incomplete { blocks: vec![0, 1] }, commit(&[0])]],
        // The same block twice in a transaction.
        vec![vec![Commit { blocks: vec![0, 1], in_parts: true }]],
    ]
}

fn cut_small_workloads(seeds: std::ops::Range<u64>, effort: Effort) -> Result<u64, String> {
    let of_seed = |seed| {
        small_workloads()
            .iter()
            .try_fold(0, |sum, scripts| Ok::<u64, String>(sum + cut_everywhere(scripts, seed, effort)?))
    };
    seeds.map(of_seed).sum()
}

#[test]
fn every_cut_of_small_workloads_with_every_outcome() {
    // Without delays, and with a quarter and a half of the operations delayed: more is under way then.
    let looked_at = cut_small_workloads(0..3, Effort { outcomes: 40, recovery_cuts: 0 }).unwrap();
    assert!(looked_at > 1500, "only {looked_at} outcomes");
}

#[test]
fn recovery_that_is_cut_begins_again() {
    let scripts = [vec![commit(&[0, 1, 2]), Operation::Direct { block: 1, fua: true }]];
    for seed in 1..3 {
        cut_everywhere(&scripts, seed, Effort { outcomes: 4, recovery_cuts: 3 }).unwrap();
    }
}

/// Clients with blocks of their own.
fn random_scripts(random: &mut Random, clients: usize, length: usize) -> Vec<Vec<Operation>> {
    let script = |client: usize, random: &mut Random| {
        let own: Vec<usize> = (0..7).map(|block| client * 7 + block).collect();
        let some = |random: &mut Random| {
            let mut blocks: Vec<usize> = own.iter().copied().filter(|_| random.chance(1, 2)).collect();
            if blocks.is_empty() {
                blocks.push(own[0]);
            }
            blocks
        };
        let operation = |random: &mut Random| match random.below(10) {
            0..=4 => Operation::Commit { blocks: some(random), in_parts: random.chance(1, 3) },
            5 => Operation::Single { block: own[random.below(7) as usize] },
            6 => Operation::Abort { blocks: some(random) },
            7 => Operation::Incomplete { blocks: own[..2 + random.below(3) as usize].to_vec() },
            _ => Operation::Direct { block: own[random.below(7) as usize], fua: random.chance(1, 2) },
        };
        (0..length).map(|_| operation(random)).collect()
    };
    (0..clients).map(|client| script(client, random)).collect()
}

/// Rounds of a random workload, each ended by a cut or a kill, on what the round before left.
fn cut_at_random(seed: u64, rounds: u64) -> Result<u64, String> {
    let mut random = Random::new(seed);
    let (mut media, rig) = start(options(seed));
    drop(rig);
    let (mut model, mut committed) = (Model::default(), 0);
    for round in 0..rounds {
        let what = format!("seed {seed}, round {round}");
        let mut rig = Rig::open(Box::new(media.store())).map_err(|why| format!("{what}: {why}"))?;
        rig.settle();
        media.cut_after(media.operations() + 1 + random.below(120));
        let scripts = random_scripts(&mut random, 1 + (seed % 5) as usize, 6);
        let number = |client: u32| (round as u32) << 3 | client;
        let mut clients: Vec<Client> =
            (1..).zip(scripts).map(|(at, script)| Client::new(number(at), seed, script)).collect();
        run(&mut rig, &media, &mut clients, &mut model).map_err(|why| format!("{what}: {why}"))?;
        committed += std::mem::take(&mut model.committed);
        drop(rig);
        let is_killed = random.chance(1, 4) && !media.is_cut();
        if is_killed {
            // Nothing is lost but what was under way.
            let (rig, left) = recover(&media, &model).map_err(|why| format!("{what}, killed: {why}"))?;
            drop(rig);
            // What was read is not durable for that; another cut may follow.
            model.under_way.clear();
            for (block, values) in left.blocks {
                model.blocks.get_mut(&block).map_or_else(Vec::new, std::mem::take);
                model.blocks.insert(block, values);
            }
        }
        check(&media, &model, Effort { outcomes: 3, recovery_cuts: 0 }, random.next_u64(), &what)?;
        let chosen = media.power_cut(&mut Choices::seeded(random.next_u64()));
        let (rig, left) = recover(&chosen, &model).map_err(|why| format!("{what}: {why}"))?;
        drop(rig);
        (media, model) = (chosen, left);
    }
    Ok(committed)
}

#[test]
fn random_workloads_by_seed() {
    let committed: u64 = (1..=30).map(|seed| cut_at_random(seed, 5).unwrap()).sum();
    assert!(committed > 300, "only {committed} commits");
}

/// Whether a planted bug is seen.
fn is_caught(bug: Planted) -> bool {
    is_caught_by(bug, || cut_small_workloads(0..3, Effort { outcomes: 24, recovery_cuts: 0 }))
}

/// The same by random workloads: it takes several transactions.
fn is_caught_at_random(bug: Planted) -> bool {
    (0..400).any(|seed| is_caught_by(bug, || cut_at_random(seed, 5)))
}

fn is_caught_by(bug: Planted, run: impl Fn() -> Result<u64, String>) -> bool {
    plant(Some(bug));
    // A device that fails in the midst of a test is seen as well.
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
    plant(None);
    outcome.map_or(true, |outcome| outcome.is_err())
}

#[test]
fn planted_log_that_is_applied_twice_is_caught() {
    assert!(is_caught(Planted::AppliesTwice));
}

#[test]
fn planted_part_that_is_never_marked_as_applied_is_caught() {
    assert!(is_caught(Planted::NeverMarks));
}

#[test]
fn planted_coordinator_that_forgets_is_caught() {
    assert!(is_caught(Planted::CoordinatorForgets));
}

#[test]
fn planted_coordinator_that_does_not_wait_for_all_is_caught() {
    assert!(is_caught(Planted::AppliesBeforeAll));
}

#[test]
fn planted_answer_before_the_flush_is_caught() {
    assert!(is_caught(Planted::AnswersBeforeFlush));
}

#[test]
fn planted_mark_before_the_flush_is_caught() {
    assert!(is_caught(Planted::MarksBeforeFlush));
}

#[test]
fn planted_belief_in_torn_data_is_caught() {
    assert!(is_caught(Planted::TornData));
}

#[test]
fn planted_torn_heads_that_stay_are_caught() {
    assert!(is_caught_at_random(Planted::KeepsTornHeads));
}

#[test]
fn planted_commit_that_does_not_count_is_caught() {
    assert!(is_caught(Planted::CountsNothing));
}
