//! The FTL `page` natively: ranges over several lanes against a model of bytes, power cuts and mounts between, the end of its life, wear, and
//! bounds of its write amplification.

use page_ftl::{FtlConfig, PageFtl};
use std::cell::RefCell;
use willow_flash::testing::{Choices, Executor, Faults, Medium, Random, Stop};
use willow_flash::{Cell, Failure, Geometry, LaneConfig, MountError, Peer};

const GEOMETRY: Geometry = Geometry {
    channels: 2,
    packages_per_channel: 2,
    dies_per_package: 1,
    planes_per_die: 2,
    blocks_per_plane: 40,
    pages_per_block: 8,
    page_bytes: 512,
    spare_bytes: 64,
    cell: Cell::Mlc,
    spare_accessible: true,
    paired_distance: 0,
};

fn config() -> FtlConfig {
    let lane = LaneConfig {
        replacement_blocks: 6,
        collect_below: 4,
        log_pages_max: 4,
        blocks_between_checkpoints: 6,
        wear_spread_max: 5,
        endurance: 100,
        ..LaneConfig::new(60)
    };
    FtlConfig { dies_per_unit: 2, lane }
}

fn run<T>(medium: &Medium, future: impl Future<Output = T>) -> T {
    run_beside(medium, None, future)
}

/// Runs a future, beside the maintainers where an FTL is given.
fn run_beside<T>(medium: &Medium, ftl: Option<&PageFtl<Medium>>, future: impl Future<Output = T>) -> T {
    let result = RefCell::new(None);
    let mut executor = Executor::new(3);
    if let Some(ftl) = ftl {
        for lane in 0..ftl.lanes() {
            executor.spawn_background(async move {
                let _ = ftl.maintain(lane).await;
            });
        }
    }
    executor.spawn(async { *result.borrow_mut() = Some(future.await) });
    assert_eq!(executor.run(medium), Stop::Done);
    // What maintainers have begun they end.
    executor.settle(medium);
    drop(executor);
    assert!(medium.misuses().is_empty(), "{:?}", medium.misuses());
    result.into_inner().expect("it has ended")
}

async fn read(ftl: &PageFtl<Medium>, medium: &Medium, address: u64, bytes: u32) -> Result<Vec<u8>, Failure> {
    let peer = medium.peer(vec![0xaa; bytes as usize + 3]);
    ftl.read(address, bytes, peer, 3).await?;
    Ok(medium.peer_bytes(peer)[3..].to_vec())
}

#[test]
fn ranges_over_lanes_are_as_in_the_model_also_after_a_mount() {
    let mut collected = 0;
    for (spare_accessible, paired_distance) in [(true, 0), (false, 0), (false, 2)] {
        let lane = LaneConfig { replacement_blocks: 2, ..config().lane };
        let config = FtlConfig { lane: LaneConfig { units: 40, ..lane }, ..config() };
        let geometry = Geometry {
            spare_accessible,
            paired_distance,
            blocks_per_plane: if paired_distance > 0 { 50 } else { 28 },
            ..GEOMETRY
        };
        let medium = Medium::new(geometry, Faults::default(), 1);
        let mut ftl = run(&medium, PageFtl::format(medium.clone(), config)).expect("formatted");
        let capacity = ftl.capacity_bytes();
        assert_eq!((ftl.nv_unit(), ftl.lanes(), capacity), (2048, 2, 2 * 40 * 2048));
        let mut model = vec![0u8; capacity as usize];
        let mut random = Random(5);
        for round in 0..4 {
            run_beside(&medium, Some(&ftl), async {
                for step in 0..250 {
                    let address = random.below(capacity);
                    let bytes = random.below((capacity - address).min(9000)) as u32 + 1;
                    let range = address as usize..address as usize + bytes as usize;
                    match random.below(5) {
                        0 => {
                            ftl.zero(address, bytes.into(), random.one_in(3)).await.expect("zeroed");
                            model[range].fill(0);
                        }
                        1 => {
                            assert_eq!(read(&ftl, &medium, address, bytes).await.expect("read"), model[range], "{step}")
                        }
                        _ => {
                            let data: Vec<u8> = (0..bytes).map(|_| random.next() as u8).collect();
                            let peer = medium.peer(data.clone());
                            ftl.write(address, bytes, peer, 0, random.one_in(4)).await.expect("written");
                            model[range].copy_from_slice(&data);
                        }
                    }
                }
                ftl.flush().await.expect("flushed");
            });
            let again = medium.survivor(&mut Choices::first());
            let mounted = run(&again, PageFtl::mount(again.clone(), config)).expect("mounted");
            let found = run(&again, read(&mounted, &again, 0, capacity as u32)).expect("read");
            assert!(found == model, "round {round}: what was flushed is there");
            drop(mounted);
            // Go on with this life in some rounds, with the next in others.
            if round == 1 {
                ftl = run(&medium, PageFtl::mount(medium.clone(), config)).expect("mounted");
            }
        }
        collected += ftl.counters().collected_pages;
        assert!(ftl.counters().merged_bytes > 0);
    }
    assert!(collected > 0, "collection ran");
}

#[test]
fn what_is_out_of_range_or_of_another_format_is_refused() {
    let medium = Medium::new(GEOMETRY, Faults::default(), 1);
    let unformatted = run(&medium, PageFtl::mount(medium.clone(), config())).err();
    assert_eq!(unformatted, Some(MountError::NotFormatted));
    let ftl = run(&medium, PageFtl::format(medium.clone(), config())).expect("formatted");
    let peer = medium.peer(vec![0; 4096]);
    let capacity = ftl.capacity_bytes();
    for address in [capacity, capacity - 1, u64::MAX - 1] {
        assert_eq!(run(&medium, ftl.read(address, 2, peer, 0)), Err(Failure::Range));
        assert_eq!(run(&medium, ftl.write(address, 2, peer, 0, false)), Err(Failure::Range));
        assert_eq!(run(&medium, ftl.zero(address, 2, false)), Err(Failure::Range));
    }
    drop(ftl);
    let mut other = config();
    other.lane.units += 1;
    let refused = run(&medium, PageFtl::mount(medium.clone(), other)).err();
    assert_eq!(refused, Some(MountError::OtherParameter { index: 0, formatted: 60, asked: 61 }));
    // Absurd configurations are told apart from bad flash.
    for absurd in [
        FtlConfig { dies_per_unit: 0, ..config() },
        FtlConfig { dies_per_unit: 3, ..config() },
        FtlConfig { lane: LaneConfig { units: 1000, ..config().lane }, ..config() },
        FtlConfig { lane: LaneConfig { units: u32::MAX, ..config().lane }, ..config() },
        FtlConfig { lane: LaneConfig { replacement_blocks: 40, ..config().lane }, ..config() },
    ] {
        let refused = run(&medium, PageFtl::format(medium.clone(), absurd)).err();
        assert!(matches!(refused, Some(MountError::Config(_))), "{refused:?}");
    }
    assert!(FtlConfig::new(&Geometry { blocks_per_plane: 8, ..GEOMETRY }, 2, 7).is_err());
}

async fn write_unit(ftl: &PageFtl<Medium>, medium: &Medium, peer: Peer, unit: u64) -> Result<(), Failure> {
    let _ = medium;
    ftl.write(unit * u64::from(ftl.nv_unit()), ftl.nv_unit(), peer, 0, false).await
}

#[test]
fn at_the_end_of_its_life_it_is_read_only_and_all_is_there() {
    // Where the last failures were not in the log any more, the next mounts try again; where they were, nothing is written from the start.
    let refused: Vec<u32> = [1, 7].into_iter().map(mounts_that_refuse).collect();
    assert!(refused.contains(&3), "{refused:?}");
}

/// Wears a drive out, and mounts it three times more; how many of these took no writes.
fn mounts_that_refuse(seed: u64) -> u32 {
    let medium = Medium::new(GEOMETRY, Faults::default(), seed);
    let ftl = run(&medium, PageFtl::format(medium.clone(), config())).expect("formatted");
    let fresh = ftl.health();
    assert_eq!((fresh.read_only, fresh.used_percent, fresh.spare_percent), (false, 0, 100));
    medium.set_faults(Faults { programs: 150, erases: 60, ..Faults::default() });
    let units = ftl.capacity_bytes() / u64::from(ftl.nv_unit());
    let mut model = vec![0u8; units as usize];
    let mut random = Random(1);
    let mut spare_before = fresh.spare_percent;
    let refused = run_beside(&medium, Some(&ftl), async {
        for number in 0..200_000u64 {
            let unit = random.below(units);
            let peer = medium.peer(vec![number as u8; ftl.nv_unit() as usize]);
            match write_unit(&ftl, &medium, peer, unit).await {
                Ok(()) => model[unit as usize] = number as u8,
                Err(failure) => return Some(failure),
            }
            let spare = ftl.health().spare_percent;
            assert!(spare <= spare_before, "spare blocks never come back");
            spare_before = spare;
        }
        None
    });
    assert_eq!(refused, Some(Failure::ReadOnly));
    let worn = ftl.health();
    assert!(worn.read_only && worn.spare_percent == 0 && worn.used_percent > 0, "{worn:?}");
    assert!(ftl.counters().program_failures > 0 && ftl.counters().erase_failures > 0);
    let all_is_there = |ftl: &PageFtl<Medium>| {
        for unit in 0..units {
            let bytes = run(&medium, read(ftl, &medium, unit * 2048, 2048)).expect("still readable");
            assert!(bytes.iter().all(|byte| *byte == model[unit as usize]), "unit {unit}");
        }
    };
    all_is_there(&ftl);
    drop(ftl);
    // It comes up again, as often as one likes.
    let mut refused = 0;
    for _ in 0..3 {
        let ftl = run(&medium, PageFtl::mount(medium.clone(), config())).expect("mounted");
        all_is_there(&ftl);
        if !ftl.health().read_only {
            continue;
        }
        refused += 1;
        assert_eq!(ftl.health().spare_percent, 0, "{:?}", ftl.health());
        let peer = medium.peer(vec![1; ftl.nv_unit() as usize]);
        assert_eq!(run(&medium, write_unit(&ftl, &medium, peer, 0)), Err(Failure::ReadOnly));
        assert_eq!(run(&medium, ftl.zero(0, ftl.nv_unit().into(), true)), Err(Failure::ReadOnly));
        assert_eq!(run(&medium, ftl.flush()), Ok(()));
    }
    refused
}

#[test]
fn wear_is_level_though_most_data_are_cold() {
    let spread = |wear_spread_max: u32| {
        let medium = Medium::new(GEOMETRY, Faults::default(), 1);
        let config = FtlConfig { lane: LaneConfig { wear_spread_max, ..config().lane }, ..config() };
        let ftl = run(&medium, PageFtl::format(medium.clone(), config)).expect("formatted");
        let units = ftl.capacity_bytes() / u64::from(ftl.nv_unit());
        let peer = medium.peer(vec![1; 2048]);
        run_beside(&medium, Some(&ftl), async {
            for unit in 0..units {
                write_unit(&ftl, &medium, peer, unit).await.expect("written");
            }
            let mut random = Random(1);
            for _ in 0..12_000 {
                write_unit(&ftl, &medium, peer, random.below(10)).await.expect("written");
            }
        });
        let health = ftl.health();
        (health.erases_max - health.erases_min, ftl.counters().leveled_pages)
    };
    let ((level, moved), (left_alone, none)) = (spread(5), spread(0));
    assert!(moved > 0 && none == 0);
    // The threshold, and what is erased until the coldest block is reached.
    assert!(level <= 5 + 8, "spread {level}");
    assert!(left_alone > 2 * level, "without leveling {left_alone}, with it {level}");
}

#[test]
fn write_amplification_is_within_its_bounds() {
    let medium = Medium::new(GEOMETRY, Faults::default(), 1);
    let ftl = run(&medium, PageFtl::format(medium.clone(), config())).expect("formatted");
    let units = ftl.capacity_bytes() / u64::from(ftl.nv_unit());
    let peer = medium.peer(vec![1; 2048]);
    let mut random = Random(1);
    run_beside(&medium, Some(&ftl), async {
        for _ in 0..20 * units {
            write_unit(&ftl, &medium, peer, random.below(units)).await.expect("written");
        }
    });
    let counters = ftl.counters();
    assert_eq!(counters.host_pages, 20 * units);
    assert_eq!(counters.host_bytes, 20 * units * 2048);
    // All that was programmed has a cause; two dies are programmed for each virtual page.
    let programs = medium.changes() - counters.erases * 2 - 2 * 2 * u64::from(config().lane.anchors);
    assert!(programs.abs_diff(2 * counters.programmed_pages()) <= 64, "{programs} programs, {counters:?}");
    // 120 logical pages in 2 x 18 blocks of 8 pages that hold data: a page that is collected is valid with less than this share.
    let collected = counters.collected_pages as f64 / counters.host_pages as f64;
    assert!(collected > 0.05 && collected < 2.0, "{collected}");
}
