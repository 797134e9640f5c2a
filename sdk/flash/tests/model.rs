//! Lanes against a model: random interleavings of several writers, readers, trims, flushes and collection, on all shapes of flash.

use willow_flash::testing::Faults;
use willow_flash::testing::world::{MIXED, SHAPES, Workload, World};

#[test]
fn the_same_as_the_model_under_random_interleavings() {
    let mut collected = 0;
    for shape in SHAPES {
        for seed in 0..12 {
            let (world, lane) = World::new(shape, Faults::default(), seed);
            let workload = Workload { clients: 4, steps: 400, ended: 40, ..MIXED };
            let done = world.run(&lane, workload, seed).unwrap_or_else(|text| panic!("{shape:?} seed {seed}: {text}"));
            assert!(done);
            collected += lane.counters().collected_pages;
            world.verify(&lane, seed).unwrap_or_else(|text| panic!("{shape:?} seed {seed}: {text}"));
        }
    }
    assert!(collected > 1000, "collection ran: {collected}");
}
