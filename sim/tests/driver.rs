//! The driver: time, processors, locks, deadlocks, endpoints, generators, against what can be computed by hand.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use willow_host::hre::{BlockCommand, Hre};
use willow_host::{BlockClient, KvClient, RpcCall, StoreCondition};
use willow_sim::{
    BlockWorkload, GeneratorOptions, HostParameters, KvWorkload, Next, Operation, Path, Preset, Simulation,
    SimulationError, SimulationOptions, Trace,
};

/// A device that takes no time, on a host of so many processors whose software costs nothing.
fn options(processors: u32) -> SimulationOptions {
    let mut preset = Preset::load("fast").unwrap();
    preset.host = Some(HostParameters { processors, ..HostParameters::free() });
    let small = SimulationOptions::new(preset);
    SimulationOptions { namespace_bytes: 1 << 20, kv_namespace_bytes: 1 << 20, native: true, ..small }
}

fn simulation(processors: u32) -> Simulation {
    Simulation::new(&options(processors)).unwrap()
}

#[test]
fn sleeping_takes_no_processor_and_computing_takes_one() {
    let mut sim = simulation(2);
    let ends: Vec<_> = (0..4)
        .map(|number| {
            let body = |thread: willow_sim::HostThread| async move {
                thread.compute(1000, "work").await;
                let computed = thread.now_ns();
                thread.sleep(500).await;
                (computed, thread.now_ns())
            };
            sim.host_thread(&format!("thread {number}"), body).unwrap()
        })
        .collect();
    let began = sim.now_ns();
    let report = sim.run().unwrap();
    let ends: Vec<_> = ends.iter().map(|end| end.take().unwrap()).map(|(a, b)| (a - began, b - began)).collect();
    assert_eq!(ends, [(1000, 1500), (1000, 1500), (2000, 2500), (2000, 2500)]);
    assert_eq!(report.elapsed_ns, 2500);
    let host = report.resource("host processors").unwrap();
    assert!((host.utilization - 4000.0 / 5000.0).abs() < 1e-9, "{}", host.utilization);
}

#[test]
fn locks_are_held_one_after_the_other_and_semaphores_by_as_many_as_they_admit() {
    for (permits, expected) in [(1, [1000, 2000, 3000, 4000]), (3, [1000, 1000, 1000, 2000])] {
        let mut sim = simulation(8);
        let lock = sim.host_lock("table", permits);
        let mut ends = Vec::new();
        for number in 0..4 {
            let lock = lock.clone();
            let body = move |thread: willow_sim::HostThread| async move {
                let _held = lock.hold(&thread).await;
                thread.compute(1000, "inside").await;
                thread.now_ns()
            };
            ends.push(sim.host_thread(&format!("thread {number}"), body).unwrap());
        }
        let began = sim.now_ns();
        sim.run().unwrap();
        assert_eq!(ends.iter().map(|end| end.take().unwrap() - began).collect::<Vec<_>>(), expected);
    }
}

#[test]
fn a_deadlock_ends_with_who_waits_for_what() {
    let mut sim = simulation(4);
    let locks = Rc::new([sim.host_lock("left", 1), sim.host_lock("right", 1)]);
    for (name, first) in [("alice", 0), ("bob", 1)] {
        let locks = locks.clone();
        let body = move |thread: willow_sim::HostThread| async move {
            let _one = locks[first].hold(&thread).await;
            thread.sleep(10).await;
            let _other = locks[1 - first].hold(&thread).await;
        };
        sim.host_thread(name, body).unwrap();
    }
    sim.host_thread("carol", |_| std::future::pending::<()>()).unwrap();
    let error = sim.run().unwrap_err();
    let SimulationError::Deadlock { waiting, .. } = &error else { panic!("{error}") };
    assert_eq!(
        waiting,
        &[
            "alice waits for lock \"right\", held by bob",
            "bob waits for lock \"left\", held by alice",
            "carol waits for something outside of the simulation"
        ]
    );
}

#[test]
fn a_task_that_never_waits_is_told() {
    struct Spin;
    impl Future for Spin {
        type Output = ();
        fn poll(self: std::pin::Pin<&mut Self>, context: &mut std::task::Context<'_>) -> std::task::Poll<()> {
            context.waker().wake_by_ref();
            std::task::Poll::Pending
        }
    }
    let mut sim = simulation(1);
    sim.host_thread("spinner", |_| Spin).unwrap();
    assert!(matches!(sim.run(), Err(SimulationError::Livelock { who, .. }) if who == "spinner"));
}

/// Direct-IO's own app, by a user process: the data are those of the block namespace, in as many requests as there are stripes.
#[test]
fn direct_io_is_the_app_itself_and_moves_the_same_data() {
    for native in [true, false] {
        let trace = Trace::new();
        let mut sim = Simulation::new(&SimulationOptions {
            namespace_bytes: 1 << 24,
            native,
            trace: Some(trace.clone()),
            ..SimulationOptions::new(Preset::load("bee3").unwrap())
        })
        .unwrap();
        let done = sim
            .host_thread("direct", |thread| async move {
                let data: Vec<u8> = (0..70 * 512).map(|at| (at / 5) as u8).collect();
                thread.write(Path::User, 8192 - 1024, data.clone()).await.expect("writes");
                assert_eq!(thread.read(Path::Bare, 8192 - 1024, 70 * 512).await.expect("reads"), data);
                assert_eq!(thread.read(Path::User, 8192 - 512, 66 * 512).await.expect("reads"), data[512..67 * 512]);
            })
            .unwrap();
        sim.run().unwrap();
        assert!(done.take().is_some());
        let began_ns = sim.now_ns();
        let workload = BlockWorkload {
            path: Path::User,
            threads: 2,
            queue_depth: 3,
            bytes: 131_072,
            read_percent: 50,
            range_bytes: 1 << 23,
            operations: Some(100),
            ..BlockWorkload::default()
        };
        let (generator, source) = workload.generator().unwrap();
        sim.generator(generator, source).unwrap();
        let report = sim.run().unwrap();
        assert_eq!(report.workloads.iter().map(|row| row.operations).sum::<u64>(), 100);
        let requests = trace.spans(began_ns).iter().filter(|span| span.name == "start").count();
        assert_eq!(requests, 100 * 16, "one a stripe, where Base-IO takes one an SPU");
    }
}

#[test]
fn the_clients_of_every_transport_work_in_simulated_time() {
    let mut sim = Simulation::new(&SimulationOptions {
        namespace_bytes: 1 << 24,
        kv_namespace_bytes: 1 << 24,
        native: true,
        ..SimulationOptions::new(Preset::load("bee3").unwrap())
    })
    .unwrap();
    let done = sim
        .host_thread("client", |thread| async move {
            let hre: Arc<dyn Hre> = thread.endpoint().clone();
            let block = BlockClient::open(hre.clone(), 1).await.expect("a namespace");
            let data: Vec<u8> = (0..100 * 512).map(|at| (at / 7) as u8).collect();
            block.write(8192 - 512, data.clone(), true).await.expect("writes");
            assert_eq!(block.read(8192 - 512, data.len()).await.expect("reads"), data);
            assert_eq!(thread.read(Path::File, 8192, 512).await.expect("reads"), data[512..1024]);
            thread.write(Path::User, 0, vec![7; 1024]).await.expect("writes");
            assert_eq!(block.read(512, 512).await.expect("reads"), vec![7; 512]);
            assert!(
                thread.read(Path::File, 1 << 24, 512).await.is_err() && thread.read(Path::File, 3, 512).await.is_err()
            );
            let kv = KvClient::open_only(hre.clone()).await.expect("a namespace");
            kv.store(b"key", vec![3; 1000], StoreCondition::Always).await.expect("stores");
            assert_eq!(kv.retrieve(b"key").await.expect("retrieves"), Some(vec![3; 1000]));
            let past = BlockCommand::Read { lba: 1 << 20 };
            assert!(hre.block(1, 512, past, vec![0; 512]).await.is_err());
            assert!(hre.rpc(RpcCall { app: 77, handler: 1, ..RpcCall::default() }).await.is_err());
            let before = thread.now_ns();
            assert!(hre.receive_upcall(Duration::from_micros(5)).await.expect("waits").is_none());
            thread.now_ns() - before
        })
        .unwrap();
    let report = sim.run().unwrap();
    assert_eq!(done.take(), Some(5000));
    assert!(report.elapsed_ns > 10_000, "modelled hardware takes time");
}

#[test]
fn closed_loops_obey_littles_law_and_count_every_operation_once() {
    let mut sim = Simulation::new(&SimulationOptions {
        namespace_bytes: 1 << 24,
        native: true,
        ..SimulationOptions::new(Preset::load("bee3").unwrap())
    })
    .unwrap();
    let workload = BlockWorkload {
        threads: 3,
        queue_depth: 4,
        range_bytes: 1 << 24,
        read_percent: 70,
        operations: Some(2001),
        path: Path::Raw,
        ..BlockWorkload::default()
    };
    let (generator, source) = workload.generator().unwrap();
    sim.generator(generator, source).unwrap();
    let report = sim.run().unwrap();
    assert_eq!(report.workloads.iter().map(|row| row.operations).sum::<u64>(), 2001);
    let under_way: f64 = report.workloads.iter().map(|row| row.iops * row.latency.mean_ns / 1e9).sum();
    assert!((under_way - 12.0).abs() < 0.3, "Little: 12 are under way, found {under_way}");
    let reads = report.workload("block", "read").unwrap().operations as f64 / 2001.0;
    assert!((0.65..0.75).contains(&reads), "{reads}");
}

/// Operations at given times.
struct Times(Vec<u64>, Operation);

impl willow_sim::Source for Times {
    fn next(&mut self, _now_ns: u64, _thread: usize) -> Next {
        if self.0.is_empty() { Next::End } else { Next::At(self.0.remove(0), self.1) }
    }
}

#[test]
fn timed_operations_wait_for_their_time_and_count_from_it() {
    let mut options = options(1);
    let host = options.preset.host.as_mut().unwrap();
    (host.user_submit_ns, host.user_complete_ns) = (100, 200);
    let mut sim = Simulation::new(&options).unwrap();
    let read = Operation::Read { offset: 0, bytes: 512 };
    let generator = GeneratorOptions {
        name: "timed".to_owned(),
        path: Path::User,
        threads: 1,
        queue_depth: 1,
        warm_up_ns: 0,
        duration_ns: None,
        file_a_thread: false,
    };
    sim.generator(generator, Box::new(Times(vec![0, 100, 5000], read))).unwrap();
    let report = sim.run().unwrap();
    let row = report.only().unwrap();
    // The second is due at 100, begins at 300 and ends at 600; the third begins when it is due.
    assert_eq!((row.operations, row.latency.min_ns, row.latency.max_ns), (3, 300, 500));
    assert_eq!(report.elapsed_ns, 5300);
}

#[test]
fn writes_of_parts_of_blocks_hold_their_file_alone() {
    let run = |bytes: u32, file_a_thread| {
        let mut options = options(16);
        let host = options.preset.host.as_mut().unwrap();
        (host.file_system_write_ns, host.file_system_block_bytes) = (1000, 4096);
        let mut sim = Simulation::new(&options).unwrap();
        let workload = BlockWorkload {
            threads: 4,
            bytes,
            read_percent: 0,
            range_bytes: 1 << 20,
            operations: Some(40),
            file_a_thread,
            ..BlockWorkload::default()
        };
        let (generator, source) = workload.generator().unwrap();
        sim.generator(generator, source).unwrap();
        sim.run().unwrap().elapsed_ns
    };
    assert_eq!(run(4096, false), 10_000);
    assert_eq!(run(512, false), 40_000);
    assert_eq!(run(512, true), 10_000);
}

#[test]
fn pairs_are_loaded_and_found() {
    let mut sim = simulation(4);
    let load = KvWorkload { name: "load".to_owned(), keys: 100, threads: 3, load: true, ..KvWorkload::default() };
    let (generator, source) = load.generator().unwrap();
    sim.generator(generator, source).unwrap();
    assert_eq!(sim.run().unwrap().workload("load", "put").unwrap().operations, 100);
    let get = KvWorkload { name: "get".to_owned(), keys: 100, operations: 50, ..KvWorkload::default() };
    let (generator, source) = get.generator().unwrap();
    sim.generator(generator, source).unwrap();
    let report = sim.run().unwrap();
    assert_eq!(report.only().unwrap().operations, 50);
}

#[test]
fn broken_workloads_end_with_the_reason() {
    let run = |operation| {
        let mut sim = simulation(1);
        let generator = GeneratorOptions {
            name: "broken".to_owned(),
            path: Path::Bare,
            threads: 1,
            queue_depth: 1,
            warm_up_ns: 0,
            duration_ns: None,
            file_a_thread: false,
        };
        sim.generator(generator, Box::new(Times(vec![0], operation))).unwrap();
        sim.run().unwrap_err().to_string()
    };
    let error = run(Operation::Read { offset: 1 << 20, bytes: 512 });
    assert!(error.contains("workload broken") && error.contains("past the end"), "{error}");
    assert!(run(Operation::Write { offset: 5, bytes: 512 }).contains("whole blocks of 512 bytes"));
    let mut options = options(1);
    options.kv_namespace_bytes = 0;
    let mut sim = Simulation::new(&options).unwrap();
    let (generator, source) = KvWorkload::default().generator().unwrap();
    sim.generator(generator, source).unwrap();
    assert!(sim.run().unwrap_err().to_string().contains("no key-value namespace"));
    for bad in [
        BlockWorkload { bytes: 0, ..BlockWorkload::default() },
        BlockWorkload { read_percent: 101, ..BlockWorkload::default() },
        BlockWorkload { operations: None, ..BlockWorkload::default() },
        BlockWorkload { range_bytes: 100, ..BlockWorkload::default() },
        BlockWorkload { threads: 0, ..BlockWorkload::default() },
    ] {
        assert!(bad.generator().is_err());
    }
}
