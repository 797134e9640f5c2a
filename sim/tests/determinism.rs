//! Same preset, workload and seed: same trace, byte for byte, however often and beside how many other simulations it runs.

use std::sync::atomic::{AtomicU64, Ordering};
use willow_sim::random::Random;
use willow_sim::{BlockWorkload, Path, Preset, Simulation, SimulationOptions, Trace};

const SEEDS: u64 = 1000;

/// The trace and the report of a small workload that a seed makes up: reads and writes by some threads and depths and a task that
/// computes, sleeps and takes locks beside them.
fn run(seed: u64, native: bool) -> Vec<u8> {
    let mut random = Random(seed);
    let trace = Trace::new();
    let mut sim = Simulation::new(&SimulationOptions {
        namespace_bytes: 1 << 20,
        native,
        trace: Some(trace.clone()),
        seed,
        ..SimulationOptions::new(Preset::load("bee3").unwrap())
    })
    .unwrap();
    let paths = [Path::File, Path::Raw, Path::User, Path::Bare];
    let workload = BlockWorkload {
        threads: 1 + random.below(3) as usize,
        queue_depth: 1 + random.below(4) as usize,
        bytes: 512 << random.below(6),
        read_percent: random.below(101) as u8,
        range_bytes: 1 << 20,
        operations: Some(30),
        path: paths[random.below(4) as usize],
        seed,
        ..BlockWorkload::default()
    };
    let (generator, source) = workload.generator().unwrap();
    sim.generator(generator, source).unwrap();
    let lock = sim.host_lock("shared", 1);
    for number in 0..2 {
        let (lock, mut random) = (lock.clone(), random.part(number));
        let body = move |thread: willow_sim::HostThread| async move {
            for _ in 0..3 {
                let held = lock.hold(&thread).await;
                thread.compute(random.below(3000), "inside").await;
                let offset = random.below(200) * 4096;
                thread.read(Path::User, offset, 4096).await.unwrap();
                drop(held);
                thread.sleep(random.below(2000)).await;
            }
        };
        sim.host_thread(&format!("task {number}"), body).unwrap();
    }
    let report = sim.run().unwrap();
    let mut bytes = Vec::new();
    trace.write(&mut bytes).unwrap();
    bytes.extend_from_slice(serde_json::to_string(&report).unwrap().as_bytes());
    bytes
}

/// A number for each seed's bytes; collisions would hide differences in one of 2^64 cases.
fn digest(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

fn all(threads: u64) -> Vec<u64> {
    let next = AtomicU64::new(0);
    let mut found: Vec<(u64, u64)> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|_| {
                scope.spawn(|| {
                    let mut mine = Vec::new();
                    loop {
                        let seed = next.fetch_add(1, Ordering::Relaxed);
                        if seed >= SEEDS {
                            return mine;
                        }
                        mine.push((seed, digest(&run(seed, true))));
                    }
                })
            })
            .collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    found.sort_unstable();
    found.into_iter().map(|(_, digest)| digest).collect()
}

#[test]
fn a_thousand_seeds_give_the_same_traces_on_any_number_of_threads() {
    let one = all(1);
    assert_eq!(one, all(2), "again, on two threads");
    assert_eq!(one, all(5), "again, on five threads");
    let different: std::collections::BTreeSet<_> = one.iter().collect();
    assert_eq!(different.len(), SEEDS as usize, "seeds matter");
}

#[test]
fn the_sandbox_is_as_deterministic() {
    for seed in [1, 2, 3] {
        let first = run(seed, false);
        assert!(first.len() > 5000);
        assert!(first == run(seed, false), "seed {seed}");
    }
}
