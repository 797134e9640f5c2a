//! What dies can do beside plain reads, programs and erases, each shown in a whole device under the virtual clock, with the FTL in the sandbox: what is gained by it, that its limits
//! hold, and what reports and traces say of it. Each is a parameter of the preset, off and on here, with all else the same.

mod flash_support;

use flash_support::{MIB, check, options, small};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use willow_device::media::flash::FlashParameters;
use willow_sim::{BlockWorkload, Path, Preset, Report, Simulation, Trace};

/// One workload on small flash that has been filled, and how it is traced.
fn run_on(preset: Preset, workload: &BlockWorkload, filled_bytes: u64) -> (Report, Trace) {
    let trace = Trace::new();
    let mut options = options(preset, 10 * MIB);
    options.trace = Some(trace.clone());
    let mut simulation = Simulation::new(&options).expect("a device");
    simulation.fill(filled_bytes).expect("it is written");
    let (generator, source) = workload.generator().expect("a good workload");
    simulation.generator(generator, source).expect("a good workload");
    (simulation.run().expect("it runs"), trace)
}

fn random(bytes: u32, read_percent: u8, operations: u64) -> BlockWorkload {
    BlockWorkload {
        path: Path::Bare,
        queue_depth: 8,
        bytes,
        read_percent,
        range_bytes: 10 * MIB,
        operations: Some(operations),
        ..BlockWorkload::default()
    }
}

fn spans(trace: &Trace, name: &str) -> usize {
    trace.spans(0).iter().filter(|span| span.lane.contains("flash die") && span.name == name).count()
}

/// Bytes that the buses carried.
fn bus_bytes(report: &Report) -> u64 {
    report.resources.iter().filter(|of| of.name.contains("flash channel")).map(|of| of.bytes).sum()
}

fn latency(report: &Report, kind: &str) -> (f64, u64) {
    let of = report.workloads.iter().find(|of| of.kind == kind).expect("there were some");
    (of.latency.mean_ns, of.latency.p99_ns)
}

/// Reads of a block disturb its pages soon; of a page's bits so many are corrected without a step of the ladder.
fn disturbed(flash: &mut FlashParameters, correctable_bits: u16) {
    let faults = &mut flash.faults;
    (faults.fresh, faults.worn, faults.retention) = (0.0, 0.0, 0.0);
    (faults.disturb, faults.unworn_share) = (0.5, 1.0);
    (faults.codeword_bytes, faults.correctable_bits) = (flash.geometry.page_bytes, correctable_bits);
    (faults.retry_steps, faults.retry_gain) = (3, 1000.0);
}

/// By copyback, collection leaves the bus to the hosts: as many pages are collected, and none of them is on it.
#[test]
fn copyback_spares_the_bus() {
    let run = |copyback| {
        let preset = small(|flash| flash.controller.copyback = copyback);
        run_on(preset, &random(8192, 0, 6_000), 10 * MIB)
    };
    let ((by_bus, trace_by_bus), (within, trace_within)) = (run(false), run(true));
    let (before, after) = (by_bus.flash.as_ref().expect("flash"), within.flash.as_ref().expect("flash"));
    assert_eq!((before.copybacks, spans(&trace_by_bus, "copyback")), (0, 0));
    assert!(before.by_collection > 0.1 && after.by_collection > 0.1, "{before:?}\n{after:?}");
    // All that was collected moved so: a copyback moves both planes' pages.
    let collected = (after.by_collection * after.host_bytes as f64 / 4096.0).round() as u64;
    assert_eq!(after.copybacks, collected, "{after:?}");
    let traced = spans(&trace_within, "copyback") as u64;
    assert!(traced >= collected / 2 && after.uncorrectable_copybacks == 0, "{traced} copybacks of {collected} pages");
    let (bytes_before, bytes_after) = (bus_bytes(&by_bus), bus_bytes(&within));
    let moved = 2 * 4096 * collected;
    assert!(
        bytes_after < bytes_before - moved * 8 / 10,
        "{bytes_before} bytes on the buses, {bytes_after} with copyback"
    );
    assert!(within.elapsed_ns < by_bus.elapsed_ns * 9 / 10, "{} ns, {} ns", by_bus.elapsed_ns, within.elapsed_ns);
}

/// What is read is what was written, while pages move by copyback beside writes, reads and suspensions; where bits have to be corrected by steps of the ladder too, which
/// chips do not have.
#[test]
fn what_moves_by_copyback_is_what_was_written() {
    for (change, needs_ladder) in [((|_| ()) as fn(&mut FlashParameters), false), (|flash| disturbed(flash, 0), true)] {
        let preset = small(|flash| {
            flash.controller.copyback = true;
            (flash.timing.suspend_program, flash.timing.suspend_erase) = (true, true);
            (flash.timing.suspensions_max, flash.timing.suspended_max_ns) = (4, 1_000_000);
            change(flash);
        });
        let mut simulation = Simulation::new(&options(preset, 14 * MIB)).expect("it is made");
        let reads = Arc::new(AtomicU64::new(0));
        let outputs: Vec<_> = (0..3)
            .map(|number| {
                let (reads, name) = (reads.clone(), format!("thread {number}"));
                simulation.host_thread(&name, move |thread| check(thread, number, reads)).expect("a thread")
            })
            .collect();
        let report = simulation.run().expect("it runs");
        for output in outputs {
            assert_eq!(output.take().expect("it has ended"), Ok(()));
        }
        assert!(reads.load(Ordering::Relaxed) > 1000);
        let flash = report.flash.expect("flash");
        assert!(flash.copybacks > 200 && flash.suspensions > 0, "{flash:?}");
        assert_eq!(flash.uncorrectable_copybacks > 0, needs_ladder, "{flash:?}");
        assert_eq!(flash.retries > 0, needs_ladder, "{flash:?}");
        assert_eq!(flash.uncorrectable_reads, 0, "{flash:?}");
    }
}

/// A read suspends a program or an erase where the preset says so: it waits less, and what it suspends waits more. Neither happens past the limits.
#[test]
fn reads_suspend_programs_and_erases_within_their_limits() {
    let run = |program: bool, erase: bool, suspensions_max: u32, left_min_ns: u64| {
        let preset = small(|flash| {
            let timing = &mut flash.timing;
            (timing.program.lower_ns, timing.erase_ns) = (2_000_000, 10_000_000);
            (timing.suspend_program, timing.suspend_erase) = (program, erase);
            (timing.suspend_ns, timing.resume_ns) = (20_000, 10_000);
            (timing.suspend_left_min_ns, timing.suspensions_max) = (left_min_ns, suspensions_max);
            timing.suspended_max_ns = 1_000_000;
        });
        let (report, trace) = run_on(preset, &random(4096, 70, 3_000), 10 * MIB);
        let suspensions = report.flash.as_ref().expect("flash").suspensions;
        (latency(&report, "read"), latency(&report, "write"), suspensions, trace)
    };
    let (reads, writes, none, whole) = run(false, false, 8, 0);
    let (reads_before, writes_before, suspensions, split) = run(true, true, 8, 0);
    assert_eq!(none, 0);
    assert!(suspensions > 500, "{suspensions}");
    assert!(reads_before.0 < 0.7 * reads.0, "reads take {reads:?}, with suspensions {reads_before:?}");
    assert!(writes_before.0 > writes.0, "writes take {writes:?}, with suspensions {writes_before:?}");
    // A change that is suspended has a span for each of its parts.
    let parts = |trace: &Trace| spans(trace, "program") + spans(trace, "erase");
    assert!(parts(&split) >= parts(&whole) * 8 / 10 + suspensions as usize, "{} {}", parts(&split), parts(&whole));
    // Each by itself, and the limits: none, one for each operation, and none of what is nearly done.
    let count = |program, erase, suspensions_max, left_min_ns| run(program, erase, suspensions_max, left_min_ns).2;
    let (of_programs, of_erases) = (count(true, false, 8, 0), count(false, true, 8, 0));
    assert!(of_programs > 0 && of_erases > 0 && of_erases < suspensions, "{of_programs} and {of_erases}");
    assert_eq!(count(true, true, 0, 0), 0);
    let once = count(true, true, 1, 0);
    assert!(once > 0 && once < suspensions, "{once} of {suspensions}");
    assert_eq!(count(true, true, 8, 20_000_000), 0);
}

/// With a cache register a die senses the next page while the bus takes the one before. (The FTL has one program of a stream under way, so that a die takes the next page while it programs only
/// where hosts' writes and collection meet: writes are no slower, and hardly faster.)
#[test]
fn cache_operations_keep_arrays_and_buses_busy_at_the_same_time() {
    let run = |cache_operations, read_percent| {
        // The bus takes as long as the array does.
        let preset = small(|flash| {
            flash.geometry.dies_per_package = 1;
            flash.geometry.blocks_per_plane = 160;
            (flash.timing.cache_operations, flash.timing.cache_busy_ns) = (cache_operations, 1_000);
            (flash.timing.read.lower_ns, flash.timing.program.lower_ns) = (90_000, 90_000);
            flash.timing.bus_bytes_per_s = 80_000_000;
        });
        run_on(preset, &random(8192, read_percent, 500), 10 * MIB).0.elapsed_ns
    };
    let (plain_ns, cached_ns) = (run(false, 100), run(true, 100));
    assert!(cached_ns < plain_ns * 8 / 10, "reads: {plain_ns} ns, with a cache register {cached_ns}");
    let (plain_ns, cached_ns) = (run(false, 0), run(true, 0));
    assert!(cached_ns <= plain_ns, "writes: {plain_ns} ns, with a cache register {cached_ns}");
}

/// Reads of pages that others' reads have disturbed take steps of the ladder, each of which takes its time; the report tells how many.
#[test]
fn steps_of_the_ladder_take_their_time() {
    let run = |is_disturbed, retry_ns| {
        let preset = small(|flash| {
            if is_disturbed {
                disturbed(flash, 1);
            }
            flash.timing.retry_ns = retry_ns;
        });
        let workload = BlockWorkload { queue_depth: 1, range_bytes: 2 * MIB, ..random(4096, 100, 4_000) };
        let (report, _) = run_on(preset, &workload, 10 * MIB);
        let flash = report.flash.clone().expect("flash");
        assert_eq!(flash.uncorrectable_reads, 0);
        (latency(&report, "read").0, flash.retries, flash.corrected_reads, flash.reads)
    };
    let (plain_ns, none, ..) = run(false, 50_000);
    let (disturbed_ns, steps, corrected, reads) = run(true, 50_000);
    let (slow_ns, as_many, ..) = run(true, 150_000);
    assert_eq!((none, as_many), (0, steps));
    assert!(steps > 500 && corrected > 500 && corrected <= reads, "{steps} steps, {corrected} of {reads} corrected");
    let step_ns = (slow_ns - disturbed_ns) * 4_000.0 / steps as f64;
    assert!((90_000.0..=100_500.0).contains(&step_ns), "100 us more for each step, {step_ns} ns measured");
    assert!(disturbed_ns > plain_ns, "{plain_ns} {disturbed_ns}");
}
