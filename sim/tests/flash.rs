//! Flash in simulated time, behind the FTL `page` in the sandbox: the bytes are those that were written, a run is the same each time, and dies and
//! buses do what their parameters say.

mod flash_support;

use flash_support::{MIB, check, options, pattern, small};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use willow_device::media::flash::FlashParameters;
use willow_device::model::parameters::MediaParameters;
use willow_sim::flash::FlashChoice;
use willow_sim::{
    BlockWorkload, Cut, GeneratorOptions, Next, Operation, Path, Preset, Report, Simulation, SimulationError,
    SimulationOptions, Source, Trace, TracedSpan,
};

/// A random mix on the small flash, four times as many bytes as it has.
fn mixed(options: &SimulationOptions) -> Result<(Report, u64), SimulationError> {
    let mut simulation = Simulation::new(options)?;
    let workload = BlockWorkload {
        name: "mix".to_owned(),
        path: Path::Raw,
        threads: 2,
        queue_depth: 8,
        bytes: 8192,
        read_percent: 40,
        range_bytes: 10 * MIB,
        operations: Some(10_000),
        ..BlockWorkload::default()
    };
    let (generator, source) = workload.generator().expect("a good workload");
    simulation.generator(generator, source)?;
    let report = simulation.run()?;
    Ok((report, simulation.now_ns()))
}

/// Same seed, same trace, whether contents are kept or not; another seed, another one. Dies and buses have lanes, whose spans do not overlap.
#[test]
fn same_seed_same_trace_of_dies_and_buses() {
    let run = |seed, contents| {
        let trace = Trace::new();
        let options =
            SimulationOptions { seed, contents, trace: Some(trace.clone()), ..options(small(|_| ()), 10 * MIB) };
        let (report, end_ns) = mixed(&options).expect("it runs");
        let mut bytes = Vec::new();
        trace.write(&mut bytes).expect("in memory");
        (report, end_ns, trace.spans(0), bytes)
    };
    let (report, end_ns, spans, bytes) = run(1, true);
    for again in [run(1, true), run(1, false)] {
        assert_eq!((&again.0, again.1), (&report, end_ns));
        assert!(again.3 == bytes, "the trace is the same, byte for byte");
    }
    assert!(run(2, true).3 != bytes);
    let flash = report.flash.as_ref().expect("flash");
    assert!(flash.erases > 0 && flash.by_collection > 0.0, "collection had to work: {flash:?}");
    let parts = flash.by_merging + flash.by_collection + flash.by_leveling + flash.by_metadata + flash.by_fillers;
    assert!((flash.write_amplification - 1.0 - parts).abs() < 1e-9, "{flash:?}");
    for spu in 0..2 {
        for lane in
            [format!("SPU {spu} flash channel 0"), format!("SPU {spu} flash die 0"), format!("SPU {spu} flash die 1")]
        {
            let of_lane: Vec<&TracedSpan> = spans.iter().filter(|span| span.lane == lane).collect();
            let names = |name: &str| of_lane.iter().filter(|span| span.name == name).count();
            assert!(names("read") > 100 && names("program") > 100 && names("erase") > 1, "{lane}");
            let mut free_ns = 0;
            for span in &of_lane {
                assert!(span.begin_ns >= free_ns && span.end_ns >= span.begin_ns, "{lane}: {span:?}");
                free_ns = span.end_ns;
            }
            let resource = report.resource(&lane).expect("a line of its own");
            assert!(
                resource.utilization > 0.0 && resource.utilization <= 1.0 && resource.operations > 0,
                "{resource:?}"
            );
        }
    }
    assert!(report.energy.iter().any(|part| part.name == "flash" && part.joules > 0.0));
}

/// Writes of a unit each, from the beginning on, half a unit late.
struct Late {
    unit: u64,
    late: bool,
    next: u64,
}

impl Source for Late {
    fn next(&mut self, _: u64, _: usize) -> Next {
        self.next += 1;
        let offset = self.next * self.unit + if self.late { self.unit / 2 } else { 0 };
        match self.next <= 256 {
            true => Next::Now(Operation::Write { offset, bytes: self.unit as u32 }),
            false => Next::End,
        }
    }
}

/// Neighbouring writes that share a unit wait for each other there alone. As a chain, each for all before it, they would keep two dies busy at most.
#[test]
fn writes_that_are_not_aligned_keep_all_dies_busy() {
    let run = |late| {
        let mut preset = small(|_| ());
        preset.device.spus = 1;
        let unit = FlashChoice::of_preset(&preset, None).expect("a preset").expect("flash").unit_bytes;
        let mut simulation = Simulation::new(&options(preset, 12 * MIB)).expect("a device");
        let generator = GeneratorOptions {
            name: "late".to_owned(),
            path: Path::Bare,
            threads: 1,
            queue_depth: 64,
            warm_up_ns: 0,
            duration_ns: None,
            file_a_thread: false,
        };
        simulation.generator(generator, Box::new(Late { unit, late, next: 0 })).expect("a good workload");
        let report = simulation.run().expect("it runs");
        let busy = |die: u32| report.resource(&format!("SPU 0 flash die {die}")).expect("a die").utilization;
        (0..4).map(busy).sum::<f64>()
    };
    let (aligned, late) = (run(false), run(true));
    assert!(late > 0.7 * aligned, "dies that work at a time: {aligned} aligned, {late} not");
}

/// The collection threshold is a parameter, and so is whether the victim is searched for by the accelerator, which then takes its time.
#[test]
fn when_and_by_what_the_ftl_collects_are_parameters() {
    let run = |collect_below_blocks, victim_search| {
        let preset = small(|flash| {
            flash.controller.collect_below_blocks = collect_below_blocks;
            flash.controller.victim_search = victim_search;
        });
        let (report, _) = mixed(&options(preset, 10 * MIB)).expect("it runs");
        let searches =
            (0..2).map(|spu| report.resource(&format!("SPU {spu} accelerators")).map_or(0, |of| of.operations));
        (report.flash.clone().expect("flash"), searches.sum::<u64>())
    };
    let (lists, none) = run(0, false);
    let (searched, searches) = run(0, true);
    assert!(none == 0 && searches > 0, "{none} and {searches} searches");
    assert!(lists.by_collection > 0.0 && searched.by_collection > 0.0, "{lists:?}\n{searched:?}");
    let (early, _) = run(12, false);
    assert!(early.by_collection > 1.1 * lists.by_collection, "{lists:?}\n{early:?}");
}

/// Bytes that the medium takes without contents, once so much of it is full and partly written over at random.
fn held_bytes(preset: &Preset, unit_bytes: u64, namespace_bytes: u64) -> u64 {
    let options = SimulationOptions { contents: false, ..options(preset.clone(), namespace_bytes) };
    let mut simulation = Simulation::new(&options).expect("a device");
    simulation.fill(namespace_bytes).expect("it is written");
    let workload = BlockWorkload {
        path: Path::Bare,
        queue_depth: 16,
        bytes: unit_bytes as u32,
        read_percent: 0,
        range_bytes: namespace_bytes,
        operations: Some(namespace_bytes / unit_bytes / 8),
        ..BlockWorkload::default()
    };
    let (generator, source) = workload.generator().expect("a good workload");
    simulation.generator(generator, source).expect("a good workload");
    simulation.run().expect("it runs");
    simulation.flash_held_bytes().expect("flash")
}

/// Without contents, what a drive takes of memory for each mapping unit has a bound: headers of its pages and checkpoints on the medium, counted as what twice
/// as many units take more, and the FTL's tables.
#[test]
fn drives_without_contents_take_few_bytes_a_unit() {
    for (planes_per_die, page_bytes, units, bytes_max) in [(2, 16384, 8192, 28), (1, 4096, 8192, 28)] {
        let preset = small(|flash| {
            flash.geometry.planes_per_die = planes_per_die;
            flash.geometry.page_bytes = page_bytes;
            flash.geometry.pages_per_block = 256;
        });
        let choice = FlashChoice::of_preset(&preset, None).expect("a preset").expect("flash");
        let unit_bytes = choice.unit_bytes;
        assert_eq!(unit_bytes, u64::from(planes_per_die) * u64::from(page_bytes));
        let half = held_bytes(&preset, unit_bytes, units * unit_bytes);
        let all = held_bytes(&preset, unit_bytes, 2 * units * unit_bytes);
        let of_medium = (all - half) / units;
        let library = willow_flash::Geometry::of_words(&choice.parameters.geometry.words(false));
        let mut config = page_ftl::FtlConfig::new(&library, 1, 25).expect("it is enough");
        // A large drive remembers no headers: they take more than the FTL has for them.
        config.lane.remembered_bytes_max = 0;
        let of_ftl = config.dram_bytes(&library) * u64::from(choice.banks) * unit_bytes
            / (choice.bank_bytes * u64::from(choice.banks));
        assert!(of_medium >= 2, "headers are kept: {half} bytes for {units} units, {all} for twice as many");
        assert!(
            of_medium + of_ftl <= bytes_max,
            "a unit of {unit_bytes} bytes: {of_medium} bytes of the medium, {of_ftl} of the FTL ({half}, {all})"
        );
    }
}

/// What is read is what was written last, while pages are merged, collected, and under way in dies and on buses.
#[test]
fn what_is_read_is_what_was_written() {
    for (preset, free) in [
        // Data come and pages go while dies work; reads go first.
        (
            small(|flash| {
                flash.timing.suspend_program = true;
                flash.timing.suspend_erase = true;
                flash.timing.suspensions_max = 4;
                flash.timing.suspended_max_ns = 1_000_000;
            }),
            false,
        ),
        (small(|flash| flash.timing.cache_operations = false), false),
        // Neither flash nor host takes time.
        (Preset { host: None, ..small(|_| ()) }, true),
    ] {
        let options = SimulationOptions { free, ..options(preset, 14 * MIB) };
        let mut simulation = Simulation::new(&options).expect("it is made");
        let reads = Arc::new(AtomicU64::new(0));
        let outputs: Vec<_> = (0..3)
            .map(|number| {
                let reads = reads.clone();
                let name = format!("thread {number}");
                simulation.host_thread(&name, move |thread| check(thread, number, reads)).expect("a thread")
            })
            .collect();
        let report = simulation.run().expect("it runs");
        for output in outputs {
            assert_eq!(output.take().expect("it has ended"), Ok(()));
        }
        assert!(reads.load(Ordering::Relaxed) > 1000);
        let flash = report.flash.expect("flash");
        assert!(flash.by_merging > 0.0 && flash.by_collection > 0.0 && flash.erases > 50, "{flash:?}");
    }
}

/// Flash of preset `tlc`, of one of its SPUs, with a quarter of its dies on a bus that is a quarter as fast, and with fewer and shorter blocks: each lane
/// writes as many pages between two checkpoints as on the whole drive. Also the flash of the whole SPU, and the bytes that the smaller one offers.
fn part_of_tlc() -> (Preset, FlashParameters, u64) {
    let mut preset = Preset::load("tlc").expect("a preset");
    preset.device.spus = 1;
    let Some(MediaParameters::Flash(flash)) = preset.model.as_mut().map(|model| &mut model.media) else {
        panic!("tlc has flash");
    };
    flash.geometry.channels = 1;
    let whole = **flash;
    flash.geometry.packages_per_channel /= 4;
    flash.timing.bus_bytes_per_s /= 4;
    flash.timing.command_ns *= 4;
    flash.geometry.pages_per_block = 384;
    flash.geometry.blocks_per_plane = 40;
    let choice = FlashChoice::of_preset(&preset, None).expect("a preset").expect("flash");
    (preset, whole, choice.namespace_bytes())
}

/// An FTL that starts again reads the newest checkpoint and the headers of what was written since, which is bounded; so a terabyte that was filled in order, of which each of
/// eight SPUs recovers its part, is ready within two seconds of modelled time. The drive here has less to map; reading the rest of the map is counted apart. So it is after a
/// power cut while it collects: what is left to collect is not waited for.
#[test]
fn a_filled_terabyte_is_ready_within_two_seconds() {
    const READY_MAX_NS: u64 = 2_000_000_000;
    const UNIT_RECORD_BYTES: u64 = 8;
    let (preset, whole, bytes) = part_of_tlc();
    let unit_bytes = FlashChoice::of_preset(&preset, None).expect("a preset").expect("flash").unit_bytes;
    let of_map_ns =
        whole.geometry.bytes() / unit_bytes * UNIT_RECORD_BYTES * 1_000_000_000 / whole.timing.bus_bytes_per_s;
    let options = SimulationOptions { contents: false, ..options(preset, bytes) };
    let mut simulation = Simulation::new(&options).expect("a device");
    simulation.fill(bytes).expect("it is written");
    let overwrite = |simulation: &mut Simulation, operations: Option<u64>, seed: u64| {
        let workload = BlockWorkload {
            path: Path::Bare,
            queue_depth: 64,
            bytes: unit_bytes as u32,
            read_percent: 0,
            range_bytes: bytes,
            operations,
            duration_ns: operations.is_none().then_some(3_600_000_000_000),
            seed,
            ..BlockWorkload::default()
        };
        let (generator, source) = workload.generator().expect("a good workload");
        simulation.generator(generator, source).expect("a good workload");
    };
    let mut ready_ns = Vec::new();
    // Fresh from the fill; then soon after a checkpoint, of which recovery has just made one.
    for units in [0, 3_000] {
        if units > 0 {
            overwrite(&mut simulation, Some(units), 1);
            simulation.run().expect("it runs");
        }
        ready_ns.push(simulation.restart_ftl("page").expect("it starts again"));
    }
    assert!(ready_ns[1] < ready_ns[0], "there was less to recover: {ready_ns:?}");
    let longest_ns = ready_ns.iter().max().expect("some") + of_map_ns;
    assert!(longest_ns < READY_MAX_NS, "{ready_ns:?}, and {of_map_ns} ns for the map");

    // Written over at random until it collects; then the power goes in the midst of more.
    let mut seeds = 2..20;
    loop {
        overwrite(&mut simulation, Some(3_000), seeds.next().expect("it collects at some time"));
        let flash = simulation.run().expect("it runs").flash.expect("it has flash");
        if flash.by_collection > 0.1 {
            break;
        }
    }
    overwrite(&mut simulation, None, 20);
    simulation.run_for(30_000_000).expect("it runs");
    let (mut simulation, cut) = simulation.cut_power(Cut::Random(1)).expect("it comes up");
    assert!(cut.programming_pages > 0, "{cut:?}");
    assert!(cut.ready_ns + of_map_ns < READY_MAX_NS, "{cut:?}, and {of_map_ns} ns for the map");
    // It goes on: hosts write, and it collects.
    overwrite(&mut simulation, Some(1_000), 21);
    simulation.run().expect("it runs");
}

/// What was acknowledged is there after the FTL has started again.
#[test]
fn what_was_written_is_there_when_the_ftl_starts_again() {
    let mut simulation = Simulation::new(&options(small(|_| ()), 10 * MIB)).expect("it is made");
    let write = |simulation: &mut Simulation, version: u64| {
        let written = simulation.host_thread("writer", move |thread| async move {
            for block in 0..400 {
                thread.write(Path::Bare, block * 4096, pattern(block, version)).await.expect("room");
            }
        });
        written.expect("a thread");
        simulation.run().expect("it runs");
    };
    for version in [1, 2] {
        write(&mut simulation, version);
        let ready_ns = simulation.restart_ftl("page").expect("it starts again");
        assert!(ready_ns > 100_000, "it has read flash: {ready_ns}");
        let read = simulation.host_thread("reader", move |thread| async move {
            for block in 0..400 {
                let found = thread.read(Path::Bare, block * 4096, 4096).await.expect("it can be read");
                assert!(found == pattern(block, version), "block {block}");
            }
        });
        simulation.run().expect("it runs");
        assert!(read.expect("a thread").take().is_some());
    }
    assert!(simulation.restart_ftl("none").is_err(), "there is none of that name");
}

/// A drive with so many dies that its start takes the machine a while has the flash's times all the same: the simulated time of host and device is one.
#[test]
fn drives_of_many_dies_take_the_time_of_their_flash() {
    for (name, read_ns, program_ns) in [("tlc", 40_000, 1_000_000), ("mqsim", 75_000, 750_000)] {
        let options = SimulationOptions { contents: false, ..options(Preset::load(name).expect("a preset"), 16 * MIB) };
        let mut simulation = Simulation::new(&options).expect("a device");
        let mut latency = |read_percent, bytes| {
            let workload = BlockWorkload {
                path: Path::Bare,
                bytes,
                read_percent,
                range_bytes: 16 * MIB,
                operations: Some(300),
                ..BlockWorkload::default()
            };
            let (generator, source) = workload.generator().expect("a good workload");
            simulation.generator(generator, source).expect("a good workload");
            let report = simulation.run().expect("it runs");
            assert!(report.elapsed_ns > 0 && report.joules() > 0.0, "{name}: {} ns", report.elapsed_ns);
            report.workloads[0].latency.clone()
        };
        let write = latency(0, 64 << 10);
        assert!(write.max_ns > program_ns, "{name}: {write:?}");
        let read = latency(100, 4096);
        assert!(read.p99_ns > read_ns, "{name}: {read:?}");
    }
}

/// How long a read takes at a time, with or without a write that comes after it.
fn read_ns(write_after_ns: Option<u64>) -> u64 {
    let mut simulation = Simulation::new(&options(small(|_| ()), 10 * MIB)).expect("it is made");
    let filled = simulation
        .host_thread("fill", |thread| async move { thread.write(Path::Bare, 0, vec![7; 8192]).await.map(drop) })
        .expect("a thread");
    simulation.run().expect("it runs");
    assert!(matches!(filled.take(), Some(Ok(()))));
    let begin_ns = simulation.now_ns() + 10_000_000;
    let output = simulation
        .host_thread("reader", move |thread| async move {
            thread.sleep(begin_ns - thread.now_ns()).await;
            thread.read(Path::Bare, 0, 4096).await.expect("what was written");
            thread.now_ns() - begin_ns
        })
        .expect("a thread");
    if let Some(after_ns) = write_after_ns {
        simulation
            .host_thread("writer", move |thread| async move {
                thread.sleep(begin_ns + after_ns - thread.now_ns()).await;
                // Another mapping unit of the same die: two SPUs, two dies each.
                thread.write(Path::Bare, 4 * 8192, vec![8; 8192]).await.map(drop)
            })
            .expect("a thread");
    }
    simulation.run().expect("it runs");
    output.take().expect("it has ended")
}

/// A read waits for what came before it, and for nothing that comes later.
#[test]
fn a_read_never_waits_for_a_write_that_comes_after_it() {
    let alone_ns = read_ns(None);
    // Bytes on the bus (100 us), the array (25 us), and some of all else.
    assert!((125_000..140_000).contains(&alone_ns), "{alone_ns}");
    // While the page is sensed, and while it is on the bus: the write's data come after.
    for after_ns in [15_000, 30_000, 60_000] {
        let beside_ns = read_ns(Some(after_ns));
        // The processor may be at work for the write when the read ends; its program would take 200 us, its data on the bus as much.
        assert!(beside_ns.abs_diff(alone_ns) < 2_000, "a write {after_ns} ns later: {beside_ns}, alone {alone_ns}");
    }
}

/// Flash takes a host's bytes when they have come, and hosts get a page's when flash has brought it; a part of a mapping unit is programmed when the
/// rest of it has been read.
#[test]
fn data_move_when_they_are_there() {
    let mut preset = small(|_| ());
    preset.set_parameter("dma.bytes_per_s", 10_000_000.0).expect("it is one");
    let trace = Trace::new();
    let options = SimulationOptions { trace: Some(trace.clone()), ..options(preset, 10 * MIB) };
    let mut simulation = Simulation::new(&options).expect("it is made");
    let mut run = |write: bool, bytes: usize| {
        let begin_ns = simulation.now_ns() + 50_000_000;
        let output = simulation
            .host_thread("host", move |thread| async move {
                thread.sleep(begin_ns - thread.now_ns()).await;
                match write {
                    true => thread.write(Path::Bare, 0, vec![1; bytes]).await.map(drop),
                    false => thread.read(Path::Bare, 0, bytes as u32).await.map(drop),
                }
            })
            .expect("a thread");
        simulation.run().expect("it runs");
        assert!(matches!(output.take(), Some(Ok(()))));
        trace.spans(begin_ns)
    };
    let first = |spans: &[TracedSpan], lane: &str, name: &str| {
        spans.iter().find(|span| span.lane.starts_with(lane) && span.name == name).cloned().expect("it happened")
    };
    // What comes before are pages of the FTL's log.
    let last = |spans: &[TracedSpan], lane: &str, name: &str| {
        spans.iter().rfind(|span| span.lane.starts_with(lane) && span.name == name).cloned().expect("it happened")
    };
    let (dma, bus, die) = ("SPU 0 DMA", "SPU 0 flash channel", "SPU 0 flash die");
    let whole = run(true, 8192);
    let moved = first(&whole, dma, "write");
    assert!(moved.end_ns - moved.begin_ns > 800_000);
    assert!(last(&whole, bus, "program").begin_ns >= moved.end_ns, "its data have come");
    let part = run(true, 4096);
    let read_ns = part.iter().filter(|span| span.lane.starts_with(bus) && span.name == "read").map(|span| span.end_ns);
    let (read_ns, program) = (read_ns.max().expect("the rest is read"), last(&part, bus, "program"));
    assert!(program.begin_ns >= read_ns && program.begin_ns >= first(&part, dma, "write").end_ns);
    let read = run(false, 8192);
    let sensed = read.iter().filter(|span| span.lane.starts_with(die) && span.name == "read").count();
    assert_eq!(sensed, 1, "both planes are sensed at once");
    let brought_ns = read.iter().filter(|span| span.lane.starts_with(bus)).map(|span| span.end_ns).max();
    assert!(Some(first(&read, dma, "read").begin_ns) >= brought_ns, "flash has brought it");
}

/// Nobody loses anything where the FTL, or what it stands on, cannot be.
#[test]
fn what_cannot_be_is_refused_with_what_is_wrong() {
    let refused = |preset: Preset, ftl: Option<&str>, bytes| {
        let options = SimulationOptions { ftl: ftl.map(str::to_owned), ..options(preset, bytes) };
        match Simulation::new(&options) {
            Err(error) => error.to_string(),
            Ok(_) => panic!("it was made"),
        }
    };
    let mut three = small(|_| ());
    three.device.spus = 3;
    assert!(refused(three, None, MIB).contains("expected a multiple of spus"));
    assert!(refused(small(|_| ()), Some("none"), MIB).contains("there is no FTL none"));
    assert!(refused(Preset::load("bee3").expect("a preset"), Some("page"), MIB).contains("has no flash"));
    assert!(refused(small(|_| ()), None, 1 << 40).contains("choose smaller ones"));
    assert!(refused(small(|flash| flash.geometry.blocks_per_plane = 4), None, MIB).contains("cannot serve this flash"));
}
