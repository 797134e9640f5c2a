//! The power goes in the midst of simulated time: what hosts were told was durable is there afterwards, whatever dies were doing, and a drive that had much to
//! collect is ready soon.
//!
//! What always holds: the moments and what becomes of pages come from seeds, so that each failure is repeated.

mod flash_support;

use flash_support::{MIB, options, pattern, small};
use std::cell::RefCell;
use std::rc::Rc;
use willow_device::media::flash::CutOutcome;
use willow_host::BlockClient;
use willow_sim::random::Random;
use willow_sim::{Cut, CutReport, Path, Preset, Simulation, SimulationOptions};

const WRITERS: u64 = 4;
/// Blocks of a writer, so few that pages are written over and collected.
const BLOCKS: u64 = 300;

/// What a host knows of a block: the newest version that was durable, and the newest that it has begun to write.
#[derive(Clone, Copy, Default)]
struct Known {
    durable: u64,
    begun: u64,
}

/// Versions of all blocks, as a host knows them when the power goes.
type Blocks = Rc<RefCell<Vec<Known>>>;

/// Writers that write over their blocks for ever, and flush now and then. What is answered is durable where `at_once`.
fn write(simulation: &mut Simulation, blocks: &Blocks, (seed, at_once): (u64, bool)) {
    for writer in 0..WRITERS {
        let blocks = blocks.clone();
        let task = simulation.host_thread("writer", move |thread| async move {
            let disk = BlockClient::open(thread.endpoint().clone(), 1).await.expect("a namespace");
            let mut random = Random(seed).part(writer);
            let mut answered: Vec<(usize, u64)> = Vec::new();
            loop {
                let block = writer * BLOCKS + random.below(BLOCKS);
                let version = {
                    let known = &mut blocks.borrow_mut()[block as usize];
                    known.begun += 1;
                    known.begun
                };
                thread.write(Path::Bare, block * 4096, pattern(block, version)).await.expect("room");
                answered.push((block as usize, version));
                if at_once || random.below(40) == 0 {
                    if !at_once {
                        disk.flush().await.expect("it flushes");
                    }
                    let mut blocks = blocks.borrow_mut();
                    for (block, version) in answered.drain(..) {
                        blocks[block].durable = blocks[block].durable.max(version);
                    }
                }
            }
        });
        task.expect("a thread");
    }
}

/// Reads all blocks: each has a version that was durable or was written after that one. What is found is what is there from now on.
fn check(simulation: &mut Simulation, blocks: &Blocks, what: &str) {
    let known = blocks.clone();
    let output = simulation.host_thread("reader", move |thread| async move {
        for block in 0..WRITERS * BLOCKS {
            let found =
                thread.read(Path::Bare, block * 4096, 4096).await.map_err(|error| format!("{block}: {error}"))?;
            let Known { durable, begun } = known.borrow()[block as usize];
            let is_version = |version: &u64| match *version {
                0 => found.iter().all(|byte| *byte == 0),
                version => found == pattern(block, version),
            };
            let Some(version) = (durable..=begun).find(is_version) else {
                return Err(format!("block {block} has none of the versions {durable} to {begun}"));
            };
            known.borrow_mut()[block as usize] = Known { durable: version, begun };
        }
        Ok::<(), String>(())
    });
    let output = output.expect("a thread");
    simulation.run().expect("it runs");
    output.take().expect("it has ended").unwrap_or_else(|error| panic!("{what}: {error}"));
}

/// Several cuts after one another, at random moments; how many pages and blocks were in the arrays, all together.
fn cut_again_and_again(make: &dyn Fn() -> SimulationOptions, (seed, cuts, at_once): (u64, u64, bool)) -> (u64, u64) {
    let blocks: Blocks = Rc::new(RefCell::new(vec![Known::default(); (WRITERS * BLOCKS) as usize]));
    let mut simulation = Simulation::new(&make()).expect("it is made");
    let mut random = Random(seed);
    let mut found = (0, 0);
    for number in 0..cuts {
        write(&mut simulation, &blocks, (seed ^ number << 32, at_once));
        simulation.run_for(2_000_000 + random.below(120_000_000)).expect("it runs");
        let cut = match number % 4 {
            0 => Cut::All(CutOutcome::Interrupted),
            1 => Cut::All(CutOutcome::LooksErased),
            _ => Cut::Random(seed + number),
        };
        let (after, report) = simulation.cut_power(cut).expect("it comes up");
        simulation = after;
        found = (found.0 + report.programming_pages, found.1 + report.erasing_blocks);
        check(&mut simulation, &blocks, &format!("seed {seed}, cut {number}"));
    }
    found
}

/// Apps as native code: each cut opens a device, which would compile them.
fn native(preset: Preset) -> SimulationOptions {
    SimulationOptions { native: true, ..options(preset, 10 * MIB) }
}

/// Pages and blocks are in the arrays when the power goes, and nothing durable is lost: where a write is durable when it is answered, and where a flush makes it so.
/// `WILLOW_POWER_CUTS` asks for more than one seed.
#[test]
fn nothing_durable_is_lost_when_the_power_goes_in_modelled_time() {
    let slc = || native(small(|_| ()));
    let hidden = || native(small(|flash| flash.geometry.spare_accessible = false));
    let mut found = (0, 0);
    let seeds = std::env::var("WILLOW_POWER_CUTS").ok().and_then(|count| count.parse().ok()).unwrap_or(1);
    for seed in 1..=seeds {
        for (make, at_once) in [(&slc as &dyn Fn() -> SimulationOptions, true), (&hidden, false)] {
            let (pages, blocks) = cut_again_and_again(make, (seed, 6, at_once));
            found = (found.0 + pages, found.1 + blocks);
        }
    }
    assert!(found.0 > 10 && found.1 > 0, "pages and blocks were in the middle: {found:?}");
}

/// The check is one: a host that takes what was only answered for durable finds that it was not.
#[test]
fn a_host_that_does_not_flush_loses_what_it_took_for_durable() {
    let hidden = || native(small(|flash| flash.geometry.spare_accessible = false));
    let lost =
        std::panic::catch_unwind(|| (1..=8).map(|seed| cut_again_and_again(&hidden, (seed, 4, true)).0).sum::<u64>());
    assert!(lost.is_err(), "what was not flushed is lost at some cut");
}

/// Same seed, same moment: the same cut and the same time until the drive is ready. Without flash there is nothing to cut.
#[test]
fn a_power_cut_is_the_same_from_run_to_run() {
    let run = || -> CutReport {
        let mut simulation = Simulation::new(&options(small(|_| ()), 10 * MIB)).expect("it is made");
        let blocks: Blocks = Rc::new(RefCell::new(vec![Known::default(); (WRITERS * BLOCKS) as usize]));
        write(&mut simulation, &blocks, (3, true));
        simulation.run_for(23_456_789).expect("it runs");
        simulation.cut_power(Cut::Random(3)).expect("it comes up").1
    };
    let report = run();
    assert_eq!(report, run());
    assert_eq!(report.at_ns, 23_456_789, "it stops when it is told to");
    assert!(report.ready_ns > 100_000, "it has read flash: {report:?}");
    let pcm =
        SimulationOptions { namespace_bytes: MIB, ..SimulationOptions::new(Preset::load("bee3").expect("a preset")) };
    let refused = Simulation::new(&pcm).expect("it is made").cut_power(Cut::Random(1)).map(drop);
    assert!(refused.expect_err("no flash").to_string().contains("choose a preset with flash"));
}
