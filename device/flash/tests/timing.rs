//! Dies and buses under time: exact times of small sequences, and what always holds of random ones.

mod common;

use common::Random;
use std::collections::BTreeMap;
use willow_flash_media::timing::{
    Completion, Lane, OPERATIONS_PER_DIE_MAX, PageTimes, Refused, Span, Submission, Timing, TimingParameters, Work,
};
use willow_flash_media::{Cell, Geometry, PageKind};

const READ: Work = Work::Read { page: PageKind::Lower, retries: 0 };
const PROGRAM: Work = Work::Program { page: PageKind::Lower };

fn geometry(channels: u32, dies_per_channel: u32) -> Geometry {
    Geometry { channels, packages_per_channel: dies_per_channel, ..common::small(Cell::Mlc) }
}

/// 1 byte a nanosecond; a command 100, tR 50,000, tPROG 500,000 or 900,000, tBERS 3,000,000.
fn plain() -> TimingParameters {
    TimingParameters {
        bus_bytes_per_s: 1_000_000_000,
        command_ns: 100,
        read: PageTimes { lower_ns: 50_000, middle_ns: 0, upper_ns: 70_000 },
        retry_ns: 60_000,
        program: PageTimes { lower_ns: 500_000, middle_ns: 0, upper_ns: 900_000 },
        erase_ns: 3_000_000,
        cache_operations: false,
        cache_busy_ns: 0,
        read_priority: true,
        overtaking_reads_max: 16,
        suspend_program: false,
        suspend_erase: false,
        suspend_ns: 20_000,
        resume_ns: 5_000,
        suspend_left_min_ns: 50_000,
        suspensions_max: 4,
        suspended_max_ns: 1_000_000,
        read_pj: 10,
        program_pj: 100,
        erase_pj: 1000,
        bus_pj_per_byte: 1,
    }
}

struct Bench {
    timing: Timing,
    next_token: u64,
}

impl Bench {
    fn new(geometry: &Geometry, parameters: &TimingParameters) -> Bench {
        parameters.validate().unwrap();
        let mut timing = Timing::new(geometry, parameters);
        timing.set_trace(true);
        Bench { timing, next_token: 0 }
    }

    fn submit(&mut self, at_ns: u64, die: u32, work: Work, blocks: &[u32], bytes: u32) -> u64 {
        let token = self.next_token;
        self.next_token += 1;
        self.timing.submit(at_ns, &Submission { token, die, work, blocks, bytes }).unwrap();
        token
    }

    fn all(&mut self) -> BTreeMap<u64, u64> {
        let mut completions = Vec::new();
        while let Some(at_ns) = self.timing.next_event_ns() {
            self.timing.advance(at_ns, &mut completions);
        }
        assert!(completions.is_sorted_by_key(|completion| completion.at_ns));
        assert_eq!(self.timing.under_way(), 0);
        completions.iter().map(|completion| (completion.token, completion.at_ns)).collect()
    }
}

#[test]
fn single_operations_take_command_array_and_bus() {
    let mut bench = Bench::new(&geometry(1, 1), &plain());
    let read = bench.submit(0, 0, READ, &[1], 4096);
    assert_eq!(bench.all()[&read], 100 + 50_000 + 4096);
    let upper = Work::Read { page: PageKind::Upper, retries: 2 };
    let read = bench.submit(100_000, 0, upper, &[1], 512);
    assert_eq!(bench.all()[&read], 100_000 + 100 + 70_000 + 2 * 60_000 + 512);
    // Two planes: two commands, twice the bytes, one time in the array.
    let program = bench.submit(1_000_000, 0, PROGRAM, &[2, 3], 8192);
    assert_eq!(bench.all()[&program], 1_000_000 + 200 + 8192 + 500_000);
    let erase = bench.submit(2_000_000, 0, Work::Erase, &[2, 3], 0);
    assert_eq!(bench.all()[&erase], 2_000_000 + 200 + 3_000_000);
    let copy = Work::Copyback { from: PageKind::Upper, to: PageKind::Lower };
    let copied = bench.submit(6_000_000, 0, copy, &[2, 4], 0);
    assert_eq!(bench.all()[&copied], 6_000_000 + 200 + 70_000 + 500_000);
    let energy = (10 + 4096) + (30 + 512) + (200 + 8192) + 2000 + 110;
    assert_eq!(bench.timing.energy_pj(), energy);
    let used = bench.timing.dies()[0];
    assert_eq!(used.operations, [2, 1, 1, 1]);
    assert_eq!(used.busy_ns, 50_000 + 190_000 + 500_000 + 3_000_000 + 570_000);
    assert_eq!(bench.timing.buses()[0].bytes, 4096 + 512 + 8192);
}

#[test]
fn dies_work_at_the_same_time_and_the_bus_takes_one_after_the_other() {
    let mut bench = Bench::new(&geometry(1, 2), &plain());
    let tokens = [bench.submit(0, 0, READ, &[1], 10_000), bench.submit(0, 1, READ, &[1], 10_000)];
    let ends = bench.all();
    // The second command waits for the first; the second page for the first page.
    assert_eq!(ends[&tokens[0]], 100 + 50_000 + 10_000);
    assert_eq!(ends[&tokens[1]], 100 + 50_000 + 10_000 + 10_000);
    let mut two = Bench::new(&geometry(2, 1), &plain());
    let tokens = [two.submit(0, 0, READ, &[1], 10_000), two.submit(0, 1, READ, &[1], 10_000)];
    assert_eq!(two.all()[&tokens[1]], 60_100, "a channel each");
}

#[test]
fn a_cache_register_overlaps_array_and_bus() {
    let reads = |cache_operations| {
        let mut bench =
            Bench::new(&geometry(1, 1), &TimingParameters { cache_operations, cache_busy_ns: 1_000, ..plain() });
        let last = (0..10).map(|block| bench.submit(0, 0, READ, &[block % 4], 30_000)).last().unwrap();
        bench.all()[&last]
    };
    assert_eq!(reads(false), 10 * (100 + 50_000 + 30_000));
    // The array is the bottleneck; commands go over the bus beside the data, or wait for them.
    let cached = reads(true);
    assert!((10 * 51_000 + 30_000..10 * 51_000 + 30_000 + 10 * 100 + 30_000).contains(&cached), "{cached}");
    let programs = |cache_operations| {
        let mut bench = Bench::new(&geometry(1, 1), &TimingParameters { cache_operations, ..plain() });
        let last = (0..10).map(|_| bench.submit(0, 0, PROGRAM, &[1], 100_000)).last().unwrap();
        bench.all()[&last]
    };
    assert_eq!(programs(false), 10 * (100 + 100_000 + 500_000));
    assert_eq!(programs(true), 100 + 100_000 + 10 * 500_000);
}

#[test]
fn a_read_suspends_an_erase_and_the_erase_takes_longer_by_that() {
    let parameters = TimingParameters { suspend_erase: true, ..plain() };
    let mut bench = Bench::new(&geometry(1, 1), &parameters);
    let erase = bench.submit(0, 0, Work::Erase, &[1], 0);
    let read = bench.submit(1_000_000, 0, READ, &[2], 4096);
    let same_block = bench.submit(1_000_000, 0, READ, &[1], 4096);
    let ends = bench.all();
    let read_ends = 1_000_000 + 20_000 + 100 + 50_000 + 4096;
    assert_eq!(ends[&read], read_ends);
    assert_eq!(ends[&erase], read_ends + 5_000 + (3_000_100 - 1_000_000));
    assert!(ends[&same_block] > ends[&erase], "a read of the block waits for its erase");
    assert_eq!(bench.timing.dies()[0].suspensions, 1);
    // Not near its end, not a program where that is not allowed, and not more often than allowed.
    let mut bench = Bench::new(&geometry(1, 1), &parameters);
    let erase = bench.submit(0, 0, Work::Erase, &[1], 0);
    let read = bench.submit(2_960_000, 0, READ, &[2], 4096);
    let ends = bench.all();
    assert_eq!((ends[&erase], ends[&read]), (3_000_100, 3_000_100 + 54_196));
    let mut bench = Bench::new(&geometry(1, 1), &parameters);
    let program = bench.submit(0, 0, PROGRAM, &[1], 1000);
    let read = bench.submit(100_000, 0, READ, &[2], 4096);
    let ends = bench.all();
    assert_eq!((ends[&program], ends[&read]), (501_100, 501_100 + 54_196));
    let mut bench = Bench::new(&geometry(1, 1), &parameters);
    bench.submit(0, 0, Work::Erase, &[1], 0);
    let reads: Vec<u64> = (1..8).map(|turn| bench.submit(turn * 200_000, 0, READ, &[2], 4096)).collect();
    let ends = bench.all();
    assert_eq!(bench.timing.dies()[0].suspensions, 4);
    assert!(reads[..4].iter().zip(1..).all(|(read, turn)| ends[read] == turn * 200_000 + 74_196));
    assert!(reads[4..].iter().all(|read| ends[read] > 3_000_000));
}

#[test]
fn a_read_that_comes_with_the_command_suspends_once_the_erase_has_begun() {
    let mut bench = Bench::new(&geometry(1, 1), &TimingParameters { suspend_erase: true, ..plain() });
    bench.submit(0, 0, Work::Erase, &[1], 0);
    let read = bench.submit(50, 0, READ, &[2], 4096);
    assert_eq!(bench.all()[&read], 100 + 20_000 + 100 + 50_000 + 4096);
}

#[test]
fn a_write_waits_for_a_bounded_number_of_reads() {
    for parameters in [
        plain(),
        TimingParameters { cache_operations: true, ..plain() },
        TimingParameters { suspend_erase: true, suspend_program: true, ..plain() },
    ] {
        for work in [PROGRAM, Work::Erase] {
            let mut bench = Bench::new(&geometry(1, 1), &parameters);
            bench.submit(0, 0, READ, &[2], 4096);
            let write = bench.submit(10, 0, work, &[1], 4096);
            let mut completions = Vec::new();
            let mut at_ns = 20;
            // Reads without end: one more as soon as one is done, twenty at any time.
            for _ in 0..20 {
                bench.submit(at_ns, 0, READ, &[3], 4096);
            }
            while !completions.iter().any(|done: &Completion| done.token == write) {
                completions.clear();
                at_ns = bench.timing.next_event_ns().expect("there is always a read");
                bench.timing.advance(at_ns, &mut completions);
                for _ in 0..completions.len() {
                    bench.submit(at_ns, 0, READ, &[3], 4096);
                }
                assert!(at_ns < 20_000_000, "{work:?} starves under {parameters:?}");
            }
        }
    }
}

#[test]
fn too_much_is_refused_and_absent_dies_too() {
    let mut bench = Bench::new(&geometry(1, 2), &plain());
    let submission = |die, blocks| Submission { token: 0, die, work: READ, blocks, bytes: 1 };
    let mut taken = 0;
    while bench.timing.submit(0, &submission(1, &[1])).is_ok() {
        taken += 1;
    }
    assert!((OPERATIONS_PER_DIE_MAX..OPERATIONS_PER_DIE_MAX + 4).contains(&taken), "{taken}");
    assert_eq!(bench.timing.submit(0, &submission(1, &[1])), Err(Refused::Full(1)));
    assert_eq!(bench.timing.submit(0, &submission(0, &[1])), Ok(()), "others are not held up");
    assert_eq!(bench.timing.submit(0, &submission(2, &[1])), Err(Refused::NoSuch { die: 2, blocks: 1 }));
    assert!(
        bench.timing.submit(0, &submission(0, &[])).is_err()
            && bench.timing.submit(0, &submission(0, &[1; 17])).is_err()
    );
}

/// A random workload: when, die, work, blocks, bytes.
type Load = Vec<(u64, u32, Work, Vec<u32>, u32)>;

fn random_load(random: &mut Random, geometry: &Geometry, operations: u32) -> Load {
    let mut at_ns = 0;
    let spread = [1, 10_000, 200_000][random.below(3) as usize];
    (0..operations)
        .map(|_| {
            at_ns += u64::from(random.below(spread));
            let page = [PageKind::Lower, PageKind::Upper][random.below(2) as usize];
            let block = random.below(5);
            let (work, blocks) = match random.below(20) {
                0..10 => (Work::Read { page, retries: (random.below(8) / 7) as u8 }, vec![block]),
                10..16 => (Work::Program { page }, vec![block, block + 1][..1 + random.below(2) as usize].to_vec()),
                16..18 => (Work::Copyback { from: page, to: PageKind::Lower }, vec![block, (block + 2) % 6]),
                _ => (Work::Erase, vec![block]),
            };
            let bytes = if matches!(work, Work::Read { .. } | Work::Program { .. }) { random.below(20_000) } else { 0 };
            (at_ns, random.below(geometry.dies()), work, blocks, bytes)
        })
        .collect()
}

fn random_parameters(random: &mut Random) -> TimingParameters {
    let mut flag = || random.next() & 1 == 0;
    let parameters = TimingParameters {
        cache_operations: flag(),
        read_priority: flag(),
        suspend_program: flag(),
        suspend_erase: flag(),
        ..plain()
    };
    TimingParameters {
        cache_busy_ns: random.below(2).into(),
        command_ns: [0, 100, 3000][random.below(3) as usize],
        suspend_ns: [0, 20_000][random.below(2) as usize],
        suspended_max_ns: [0, 100_000, 10_000_000][random.below(3) as usize],
        overtaking_reads_max: [1, 5, 1000][random.below(3) as usize],
        ..parameters
    }
}

/// Runs a load; completions and spans by token, and the number of times that the machine was asked.
fn run(
    geometry: &Geometry,
    parameters: &TimingParameters,
    load: &Load,
    by_event: bool,
) -> (Vec<Completion>, Vec<Span>) {
    let mut timing = Timing::new(geometry, parameters);
    timing.set_trace(true);
    let mut completions = Vec::new();
    for (token, (at_ns, die, work, blocks, bytes)) in load.iter().enumerate() {
        while by_event && timing.next_event_ns().is_some_and(|next| next <= *at_ns) {
            timing.advance(timing.next_event_ns().unwrap(), &mut completions);
        }
        let submission = Submission { token: token as u64, die: *die, work: *work, blocks, bytes: *bytes };
        timing.submit(*at_ns, &submission).unwrap();
    }
    if by_event {
        while let Some(at_ns) = timing.next_event_ns() {
            timing.advance(at_ns, &mut completions);
        }
    } else {
        timing.advance(u64::MAX - 1, &mut completions);
    }
    assert_eq!(timing.under_way(), 0, "everything ends");
    (completions, timing.take_spans())
}

fn assert_disjoint(spans: &[Span]) {
    let mut by_lane: BTreeMap<(bool, u32), Vec<(u64, u64)>> = BTreeMap::new();
    for span in spans {
        let lane = match span.lane {
            Lane::Die(die) => (true, die),
            Lane::Bus(bus) => (false, bus),
        };
        by_lane.entry(lane).or_default().push((span.begin_ns, span.end_ns));
    }
    for (lane, mut spans) in by_lane {
        spans.retain(|(begin, end)| end > begin);
        spans.sort_unstable();
        assert!(spans.windows(2).all(|two| two[0].1 <= two[1].0), "two at once in lane {lane:?}");
    }
}

#[test]
fn random_loads_keep_what_always_holds() {
    let mut suspended = 0;
    for seed in 0..300 {
        let mut random = Random(seed);
        let geometry = geometry(1 + random.below(3), 1 + random.below(3));
        let parameters = random_parameters(&mut random);
        let load = random_load(&mut random, &geometry, 120);
        let (completions, spans) = run(&geometry, &parameters, &load, true);
        assert_eq!(completions.len(), load.len(), "each once");
        let ends: BTreeMap<u64, u64> = completions.iter().map(|done| (done.token, done.at_ns)).collect();
        assert_eq!(ends.len(), load.len());
        assert_disjoint(&spans);
        // The same, asked once at the end: who drives the machine does not matter.
        let (once, _) = run(&geometry, &parameters, &load, false);
        assert_eq!(completions, once, "seed {seed}");
        let mut array: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        for span in spans.iter().filter(|span| matches!(span.lane, Lane::Die(_))) {
            suspended += usize::from(array.contains_key(&span.token));
            let known = array.entry(span.token).or_insert((span.begin_ns, span.end_ns));
            *known = (known.0.min(span.begin_ns), known.1.max(span.end_ns));
        }
        for (one, (_, die, work, blocks, _)) in load.iter().enumerate() {
            for (other, (_, other_die, other_work, other_blocks, _)) in load.iter().enumerate().skip(one + 1) {
                let ordered = !(work.is_read() && other_work.is_read());
                if die == other_die && ordered && blocks.iter().any(|block| other_blocks.contains(block)) {
                    let (one, other) = (one as u64, other as u64);
                    assert!(ends[&one] <= array[&other].0, "seed {seed}: {one} and {other} share a block");
                    assert!(ends[&one] < ends[&other], "seed {seed}: reported in order");
                }
            }
        }
        // Time in the array is what the parameters say, suspensions apart.
        for (token, (_, _, work, ..)) in load.iter().enumerate() {
            let (begin_ns, end_ns) = array[&(token as u64)];
            let cache_ns = if parameters.cache_operations { parameters.cache_busy_ns } else { 0 };
            let least_ns = match work {
                Work::Read { page, retries } => {
                    parameters.read.of(*page) + u64::from(*retries) * parameters.retry_ns + cache_ns
                }
                Work::Program { page } => parameters.program.of(*page) + cache_ns,
                Work::Erase => parameters.erase_ns,
                Work::Copyback { from, to } => parameters.read.of(*from) + parameters.program.of(*to),
            };
            assert!(end_ns - begin_ns >= least_ns, "seed {seed}: {token} was too fast");
            if work.is_read() {
                assert_eq!(end_ns - begin_ns, least_ns, "seed {seed}: nothing interrupts a read");
            }
        }
    }
    assert!(suspended > 500, "suspensions were met: {suspended}");
}

#[test]
fn a_read_waits_for_no_write_that_comes_after_it_but_for_the_bus() {
    for seed in 0..300 {
        let mut random = Random(seed ^ 0xABCD);
        let geometry = geometry(1 + random.below(2), 1 + random.below(3));
        // Reads may overtake without end here: when a write's turn comes does not depend on what else there is.
        let parameters = TimingParameters { overtaking_reads_max: 1_000_000, ..random_parameters(&mut random) };
        let mut load = random_load(&mut random, &geometry, 30);
        let (before_ns, ..) = load[29];
        let at_ns = before_ns + u64::from(random.below(500_000));
        let die = random.below(geometry.dies());
        load.push((at_ns, die, READ, vec![5], 4096));
        let read = 30;
        let end = |load: &Load| {
            let (completions, _) = run(&geometry, &parameters, load, true);
            completions.iter().find(|done| done.token == read).unwrap().at_ns
        };
        let alone_ns = end(&load);
        for _ in 0..20 {
            let work = [PROGRAM, Work::Erase][random.below(2) as usize];
            load.push((at_ns + u64::from(random.below(100_000)), random.below(geometry.dies()), work, vec![4], 4096));
        }
        load[31..].sort_by_key(|(at_ns, ..)| *at_ns);
        let with_ns = end(&load);
        // A transfer that is on the bus is not broken off: for each read that is waited for, its command and its page.
        let transfer_ns = 3 * 4096 + 2 * parameters.command_ns;
        let reads = load[..30].iter().filter(|(.., work, _, _)| work.is_read()).count() as u64 + 1;
        assert!(with_ns <= alone_ns + 2 * reads * transfer_ns, "seed {seed}: {alone_ns}, with later writes {with_ns}");
    }
}

#[test]
fn a_cut_finds_what_was_in_the_arrays_and_leaves_all_at_rest() {
    let parameters = TimingParameters { suspend_erase: true, ..plain() };
    let mut bench = Bench::new(&geometry(1, 3), &parameters);
    let erase = bench.submit(0, 0, Work::Erase, &[1], 0);
    let program = bench.submit(0, 1, PROGRAM, &[1], 4096);
    bench.submit(0, 2, PROGRAM, &[1], 900_000);
    bench.submit(0, 0, PROGRAM, &[2], 4096);
    bench.submit(100_000, 0, READ, &[3], 4096);
    // The erase is suspended, the program in the array, the other one on the bus, the last one waits.
    assert_eq!(bench.timing.cut(150_000), [(0, erase), (1, program)]);
    assert_eq!((bench.timing.under_way(), bench.timing.next_event_ns()), (0, None));
    let read = bench.submit(200_000, 0, READ, &[1], 4096);
    assert_eq!(bench.all()[&read], 200_000 + 54_196);
}
