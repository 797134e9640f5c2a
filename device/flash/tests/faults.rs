//! What goes wrong in flash, met through the medium: failures of programs and erases, bits that flip, and that all of it follows from the seed.

mod common;

use common::{Random, Scratch, UUID, head, small};
use willow_flash_media::{
    Array, ArrayStatistics, BlockState, Cell, FaultParameters, PageAddress, PlaneSet, ProgramPage, Read, Status,
};

fn wearing() -> FaultParameters {
    FaultParameters {
        endurance_cycles: 100,
        factory_bad_per_million: 100_000,
        program_fail_per_billion: 3_000_000,
        erase_fail_per_billion: 10_000_000,
        fresh: 1e-6,
        worn: 1e-3,
        wear_exponent: 3,
        retention: 8e-3,
        retention_hours: 8760,
        disturb: 1e-2,
        unworn_share: 0.1,
        codeword_bytes: 512,
        correctable_bits: 24,
        retry_steps: 5,
        retry_gain: 1.5,
        paired_page_loss: true,
        word_line_buffer: false,
    }
}

fn program(array: &mut Array, die: u32, block: u32, page: u32, byte: u8) -> Status {
    let bytes = [byte; 1024];
    let at = PageAddress { block, page };
    array.program(die, &[ProgramPage { at, data: &[&bytes], spare: &[byte; 4], metadata: false }]).unwrap()
}

fn read(array: &mut Array, die: u32, block: u32, page: u32) -> (Status, Vec<u8>) {
    let mut data = vec![0; 1024];
    let read = Read { at: PageAddress { block, page }, offset_bytes: 0, length_bytes: 1024, spare: false };
    let status = array.read(die, &read, &mut data, &mut []).unwrap();
    (status, data)
}

/// Die, block and how it failed.
type Events = Vec<(u32, u32, Status)>;

/// Wears a medium out, checking what a failure leaves; what happened as one list.
fn wear_out(array: &mut Array, cell: Cell, word_line_buffer: bool) -> Events {
    let together = if cell == Cell::Tlc && !word_line_buffer { 3 } else { 1 };
    let geometry = *array.geometry();
    let mut events = Vec::new();
    for round in 0..300 {
        for die in 0..geometry.dies() {
            for block in 0..geometry.blocks_per_die() {
                let bad = array.factory_bad_blocks(die).any(|bad| bad == block);
                let mut failed = events.iter().any(|(of, held, _)| (*of, *held) == (die, block));
                for page in 0..geometry.pages_per_block {
                    if failed || bad {
                        break;
                    }
                    match program(array, die, block, page, page as u8) {
                        Status::Done { .. } | Status::Latched => {}
                        Status::ProgramFailed(failures) => {
                            assert_eq!(failures, PlaneSet(1));
                            events.push((die, block, Status::ProgramFailed(failures)));
                            failed = true;
                            assert!(
                                !word_line_buffer || page % 3 == 0,
                                "a buffered word line fails with its first page"
                            );
                            // The pages before it can be read, those of its word line cannot.
                            for before in 0..=page {
                                let (status, data) = read(array, die, block, before);
                                if before / together == page / together {
                                    assert!(matches!(status, Status::Uncorrectable { .. }), "{status:?}");
                                } else {
                                    assert!(
                                        matches!(status, Status::Done { .. }),
                                        "{status:?} of page {before} before {page}"
                                    );
                                    assert!(data.iter().all(|byte| *byte == before as u8));
                                }
                            }
                            assert!(matches!(program(array, die, block, 0, 0), Status::ProgramFailed(_)));
                        }
                        status => panic!("{status:?} in round {round}"),
                    }
                }
                match array.erase(die, &[block]).unwrap() {
                    Status::EraseFailed(failures) => {
                        assert_eq!(failures, PlaneSet(1));
                        if !failed && !bad {
                            events.push((die, block, Status::EraseFailed(failures)));
                            let (status, _) = read(array, die, block, 0);
                            assert!(matches!(status, Status::Done { .. } | Status::Uncorrectable { .. }), "{status:?}");
                        }
                    }
                    status => assert!(status == Status::DONE && !failed && !bad, "{status:?}"),
                }
            }
        }
    }
    events
}

#[test]
fn blocks_fail_with_wear_as_the_seed_says_and_keep_what_they_hold() {
    for (cell, word_line_buffer) in [(Cell::Slc, false), (Cell::Tlc, false), (Cell::Tlc, true)] {
        let geometry = small(cell);
        let run = |seed: u64| {
            // Failures alone: what bits do is the next test's.
            let parameters =
                FaultParameters { fresh: 0.0, worn: 0.0, retention: 0.0, disturb: 0.0, word_line_buffer, ..wearing() };
            let mut array = Array::in_memory(&geometry, &parameters, seed);
            let events = wear_out(&mut array, cell, word_line_buffer);
            (events, array.statistics())
        };
        let mut kinds: Vec<Status> = Vec::new();
        let mut all: Vec<(Events, ArrayStatistics)> = Vec::new();
        for seed in 0..6 {
            let (events, statistics) = run(seed);
            assert_eq!((events.clone(), statistics), run(seed), "same seed, same failures");
            kinds.extend(events.iter().map(|(.., status)| *status));
            all.push((events, statistics));
        }
        assert!(
            kinds.contains(&Status::ProgramFailed(PlaneSet(1))) && kinds.contains(&Status::EraseFailed(PlaneSet(1)))
        );
        assert!(all.windows(2).any(|two| two[0] != two[1]), "another seed, other failures");
    }
}

#[test]
fn data_age_and_are_disturbed_and_the_ladder_is_known_before() {
    let mut array = Array::in_memory(&small(Cell::Mlc), &wearing(), 3);
    let good = (0..6).find(|block| array.factory_bad_blocks(0).all(|bad| bad != *block)).unwrap();
    for _ in 0..60 {
        if let Status::EraseFailed(_) = array.erase(0, &[good]).unwrap() {
            panic!("this seed's block lasts as long");
        }
    }
    for page in 0..8 {
        assert_eq!(program(&mut array, 0, good, page, 9), Status::DONE);
    }
    let mut last = 0;
    let mut seen = Vec::new();
    for hours in [0, 1, 24, 720, 8760, 87_600, 1_000_000] {
        array.set_time_s(hours * 3600);
        let all = Read { at: PageAddress { block: good, page: 2 }, offset_bytes: 0, length_bytes: 1024, spare: false };
        let expected = array.retries_of(0, &all);
        let (status, data) = read(&mut array, 0, good, 2);
        match status {
            Status::Done { retries, .. } => {
                assert_eq!(retries, expected, "what the read takes was known before");
                assert!(retries >= last && data.iter().all(|byte| *byte == 9));
                last = retries;
            }
            Status::Uncorrectable { retries } => {
                assert_eq!((retries, expected), (5, 5));
                assert!(data.iter().all(|byte| *byte == 0), "nothing is delivered");
            }
            status => panic!("{status:?}"),
        }
        seen.push(status);
    }
    assert!(last > 0, "the ladder was climbed: {seen:?}");
    // Reads of one page disturb the others of its block, until it is erased.
    array.set_time_s(0);
    let mut fresh = Array::in_memory(&small(Cell::Mlc), &wearing(), 3);
    for _ in 0..60 {
        fresh.erase(0, &[good]).unwrap();
    }
    for page in 0..8 {
        program(&mut fresh, 0, good, page, 9);
    }
    let before = read(&mut fresh, 0, good, 5).0;
    for _ in 0..1_000_000 {
        read(&mut fresh, 0, good, 1);
    }
    let after = read(&mut fresh, 0, good, 5).0;
    let bits = |status| match status {
        Status::Done { corrected_bits, retries } => u32::from(corrected_bits) + 1000 * u32::from(retries),
        Status::Uncorrectable { .. } => u32::MAX,
        status => panic!("{status:?}"),
    };
    assert!(bits(after) > bits(before), "{before:?}, then {after:?}");
    fresh.erase(0, &[good]).unwrap();
    program(&mut fresh, 0, good, 0, 9);
    assert!(bits(read(&mut fresh, 0, good, 0).0) < bits(after), "an erase begins anew");
}

#[test]
fn bad_and_worn_blocks_and_erase_counts_are_the_same_after_a_restart() {
    let geometry = small(Cell::Slc);
    let scratch = Scratch::new();
    // A seed with blocks that are bad from the factory.
    let has_bad = |seed: &u64| Array::in_memory(&geometry, &wearing(), *seed).factory_bad_blocks(1).next().is_some();
    let seed = (0..100).find(has_bad).expect("one block of ten is bad");
    let mut array = Array::create(&scratch.file(), &head(&geometry, seed), &wearing()).unwrap();
    let mut random = Random(1);
    let mut erases = [[0u32; 6]; 2];
    let mut worn = [[false; 6]; 2];
    for round in 0..2000 {
        let (die, block) = (random.below(2), random.below(6));
        match array.erase(die, &[block]).unwrap() {
            Status::EraseFailed(_) => worn[die as usize][block as usize] = true,
            status => {
                assert_eq!(status, Status::DONE);
                assert!(!worn[die as usize][block as usize], "what has failed fails");
                erases[die as usize][block as usize] += 1;
            }
        }
        if round % 400 == 0 {
            let bad: Vec<u32> = array.factory_bad_blocks(1).collect();
            drop(array);
            array = Array::open(&scratch.file(), &UUID, 3, &geometry, &wearing()).unwrap();
            assert_eq!(array.factory_bad_blocks(1).collect::<Vec<u32>>(), bad);
            for die in 0..2 {
                for block in 0..6 {
                    let count = array.erase_count(die, block);
                    assert_eq!(count, Some(erases[die as usize][block as usize]), "die {die}, block {block}");
                }
            }
        }
    }
    let worn_blocks = worn.as_flattened().iter().filter(|worn| **worn).count();
    assert!(worn_blocks > 1);
    // What an onlooker sees.
    let wear = array.wear();
    let bad = (0..2).flat_map(|die| array.factory_bad_blocks(die)).count() as u64;
    assert!(bad > 0, "this seed has bad blocks");
    assert_eq!((wear.blocks, wear.worn_blocks), (12 - bad, worn_blocks as u64 - bad));
    assert_eq!(wear.erases, erases.as_flattened().iter().map(|count| u64::from(*count)).sum::<u64>());
    assert_eq!(wear.erases_max, *erases.as_flattened().iter().max().unwrap());
    assert!(wear.erases_min > 0);
    for (die, block) in (0..2).flat_map(|die| (0..6).map(move |block| (die, block))) {
        let seen = array.block(die, block).unwrap();
        let expected = match (array.factory_bad_blocks(die).any(|bad| bad == block), worn[die as usize][block as usize])
        {
            (true, _) => BlockState::FactoryBad,
            (false, true) => BlockState::Worn,
            (false, false) => BlockState::Erased,
        };
        assert_eq!((seen.state, seen.programmed_pages), (expected, 0));
        if expected == BlockState::Erased {
            let states: Vec<BlockState> = (0..8)
                .map(|page| {
                    assert_eq!(program(&mut array, die, block, page, 1), Status::DONE);
                    array.block(die, block).unwrap().state
                })
                .collect();
            assert!(states[..7].iter().all(|state| *state == BlockState::Open) && states[7] == BlockState::Full);
        }
    }
    assert_eq!((array.block(2, 0), array.block(0, 6)), (None, None));
}
