//! Tests of the fault-injecting media, and of the protocols for small records on them.

use super::*;
use crate::media::file::copies::{CopiesError, TwoCopies, remove, replace};
use crate::media::file::folder::Folder;
use crate::media::file::record::Kind;
use crate::media::model::{Checked, check_contract, wait_for};
use crate::media::store::MEDIA_FAILED;
use std::collections::BTreeSet;

fn delayed(seed: u64) -> FaultMedia {
    FaultMedia::new(FaultOptions { seed, delayed_percent: 50, ..FaultOptions::new(2, 1 << 18) })
}

fn read(media: &FaultMedia, address: u64, bytes: usize) -> Vec<u8> {
    let mut into = vec![0; bytes];
    assert_eq!(media.store().read(0, address, &mut into), Ok(Progress::Done));
    into
}

#[test]
fn contract() {
    check_contract(&mut FaultMedia::new(FaultOptions::new(2, 1 << 16)).store());
    check_contract(&mut delayed(1).store());
}

#[test]
fn same_as_the_model_with_and_without_delays() {
    for seed in 0..6 {
        let mut checked = Checked::fresh(delayed(seed).store());
        checked.run(&mut Random::new(seed), 800);
        assert!(checked.blocked > 100);
        let mut checked = Checked::fresh(FaultMedia::new(FaultOptions::new(2, 1 << 18)).store());
        checked.run(&mut Random::new(seed), 800);
        assert_eq!(checked.blocked, 0);
    }
}

#[test]
fn same_seed_same_order_of_completions() {
    let order = |seed| {
        let media = delayed(seed);
        let mut store = media.store();
        for ticket in 0..50 {
            store.begin_write(ticket, 0, ticket * 512, vec![1; 512]);
        }
        let mut tickets = Vec::new();
        while tickets.len() < 50 {
            tickets.extend(store.completed().map(|completion| completion.ticket));
        }
        tickets
    };
    assert_eq!(order(1), order(1));
    assert_ne!(order(1), order(2));
}

#[test]
fn any_subset_of_unflushed_units_survives() {
    let media = FaultMedia::new(FaultOptions::new(1, 1 << 16));
    let mut store = media.store();
    store.write(0, 0, &[1; 1024]).unwrap();
    assert_eq!(store.flush(0, None), Ok(Progress::Done));
    assert_eq!(media.outcomes(), 1);
    // Two units; the second is written twice, the second time in part.
    store.write(0, 0, &[2; 1024]).unwrap();
    store.write(0, 512, &[3; 10]).unwrap();
    assert_eq!(media.outcomes(), 6);
    let mut seen = BTreeSet::new();
    let mut choices = Choices::exhaustive();
    loop {
        let bytes = read(&media.power_cut(&mut choices), 0, 1024);
        seen.insert((bytes[0], bytes[511], bytes[512], bytes[522], bytes[1023]));
        if !choices.advance() {
            break;
        }
    }
    let first = [(1, 1), (2, 2)];
    let second = [(1, 1, 1), (2, 2, 2), (3, 2, 2)];
    let all = first.iter().flat_map(|(a, b)| second.iter().map(|(c, d, e)| (*a, *b, *c, *d, *e)));
    assert_eq!(seen, all.collect());
}

#[test]
fn writes_under_way_may_survive_and_a_flush_does_not_cover_them() {
    let media = FaultMedia::new(FaultOptions::new(1, 1 << 16));
    let mut store = media.store();
    store.write(0, 0, &[1; 512]).unwrap();
    store.begin_write(9, 0, 512, vec![2; 512]);
    assert_eq!(store.flush(1, None), Ok(Progress::Done));
    let mut seen = BTreeSet::new();
    let mut choices = Choices::exhaustive();
    loop {
        let after = media.power_cut(&mut choices);
        assert_eq!(read(&after, 0, 512), [1; 512]);
        seen.insert(read(&after, 512, 1));
        if !choices.advance() {
            break;
        }
    }
    assert_eq!(seen.len(), 2);
}

#[test]
fn power_goes_after_the_kth_operation() {
    let work = |store: &mut FaultStore| -> Result<(), StoreError> {
        store.write(0, 0, &[1; 512])?;
        store.flush(0, None)?;
        store.zero(0, 0, 512)?;
        store.save_metadata(0, vec![4])?;
        store.flush(0, None)?;
        Ok(())
    };
    let media = FaultMedia::new(FaultOptions::new(1, 4096));
    work(&mut media.store()).unwrap();
    assert_eq!(media.operations(), 5);
    for cut in 0..5 {
        let media = FaultMedia::new(FaultOptions::new(1, 4096));
        media.cut_after(cut);
        assert_eq!(work(&mut media.store()), Err(StoreError::Failed(CUT_ERROR)));
        assert!(media.is_cut());
        assert_eq!(media.outcomes(), [1, 2, 1, 2, 2][cut as usize], "cut after {cut}");
        let after = media.power_cut(&mut Choices::seeded(cut));
        assert_eq!(after.store().load_metadata().unwrap(), (cut >= 4).then(|| vec![4]));
    }
}

#[test]
fn without_a_volatile_cache_only_the_last_operation_can_be_torn() {
    let media = FaultMedia::new(FaultOptions { volatile_write_cache: false, ..FaultOptions::new(1, 4096) });
    let mut store = media.store();
    assert!(!store.volatile_write_cache());
    store.write(0, 0, &[1; 1024]).unwrap();
    store.write(0, 1024, &[1; 1024]).unwrap();
    assert_eq!(media.outcomes(), 4);
    assert_eq!(read(&media.power_cut(&mut Choices::seeded(0)), 0, 1024), [1; 1024]);
}

#[test]
fn full_bad_sectors_and_failing_flushes() {
    let media = FaultMedia::new(FaultOptions { capacity_bytes: Some(1024), ..FaultOptions::new(1, 1 << 16) });
    let mut store = media.store();
    store.write(0, 0, &[1; 1024]).unwrap();
    assert_eq!(store.write(0, 4096, &[1; 1]), Err(StoreError::Full));
    store.write(0, 0, &[2; 1024]).unwrap();
    store.zero(0, 0, 512).unwrap();
    assert_eq!(media.used_bytes(), 512);
    store.write(0, 4096, &[1; 1]).unwrap();
    media.set_capacity_bytes(None);
    store.write(0, 8192, &[5; 4096]).unwrap();

    let bad = Err(MEDIA_FAILED);
    media.fail_reads(0, 600..601);
    media.fail_writes(0, 8192..12288);
    assert_eq!(store.read(0, 512, &mut [0; 512]), bad);
    assert_eq!(store.write(0, 8000, &[6; 5000]), bad);
    media.heal();
    let bytes = read(&media, 8192, 4096);
    assert!(bytes.chunks(512).all(|unit| unit == [5; 512] || unit == [6; 512]));
    let mut store = media.store();
    media.fail_flushes(1);
    assert_eq!(store.flush(0, None), bad);
    assert!(media.outcomes() > 1);
    assert_eq!(store.flush(0, None), Ok(Progress::Done));
    assert_eq!(media.outcomes(), 1);
}

#[test]
fn a_restart_loses_nothing_that_completed() {
    for seed in 0..20 {
        let media = delayed(seed);
        let mut store = media.store();
        store.begin_write(0, 0, 0, vec![7; 512]);
        while store.completed().is_none() {}
        store.begin_write(1, 0, 512, vec![8; 1024]);
        let _ = store.save_metadata(2, vec![1]);
        let mut store = media.store();
        let mut checked = [0; 1536];
        while store.read(0, 0, &mut checked).unwrap() == Progress::WouldBlock {}
        assert_eq!(checked[..512], [7; 512]);
        assert!(checked[512..].chunks(512).all(|unit| unit == [0; 512] || unit == [8; 512]));
        assert!(store.completed().is_none());
    }
}

#[test]
fn delayed_saves_caught_by_the_cut_happened_in_order_or_not() {
    let media = FaultMedia::new(FaultOptions { delayed_percent: 100, ..FaultOptions::new(1, 4096) });
    let mut store = media.store();
    assert_eq!(store.save_metadata(1, vec![1]), Ok(Progress::WouldBlock));
    assert_eq!(store.save_blob(2, "a", vec![2]), Ok(Progress::WouldBlock));
    assert_eq!(media.outcomes(), 3);
    media.cut_after(0);
    let mut ended = 0;
    while ended < 2 {
        if let Some(completion) = store.completed() {
            assert_eq!(completion.result, Err(StoreError::Failed(CUT_ERROR)));
            ended += 1;
        }
    }
    let mut choices = Choices::exhaustive();
    let mut seen = BTreeSet::new();
    loop {
        let mut store = media.power_cut(&mut choices).store();
        seen.insert((store.load_metadata().unwrap(), store.load_blob("a").unwrap()));
        if !choices.advance() {
            break;
        }
    }
    let wanted = [(None, None), (Some(vec![1]), None), (Some(vec![1]), Some(vec![2]))];
    assert_eq!(seen, wanted.into());
    let media = FaultMedia::new(FaultOptions { delayed_percent: 100, ..FaultOptions::new(1, 4096) });
    wait_for(&mut media.store(), |store| store.save_metadata(1, vec![1])).unwrap();
    assert_eq!(media.store().load_metadata(), Ok(Some(vec![1])));
}

// ---- The protocols of the data folder, cut at every operation, with every outcome of each cut ----

const UUID: [u8; 16] = [9; 16];
const PAYLOAD_BYTES_MAX: usize = 4096;

fn open(folder: &mut FaultFolder) -> Result<(TwoCopies, Vec<u8>), CopiesError> {
    TwoCopies::open(folder, Kind::Metadata, "metadata", Some(UUID), PAYLOAD_BYTES_MAX)
        .map(|(copies, record, _)| (copies, record.payload))
}

/// Payloads of growing, shrinking and unit-crossing lengths.
fn payload(number: usize) -> Vec<u8> {
    vec![number as u8; [0, 10, 2100, 3000, 3, 600][number % 6]]
}

/// Calls with each outcome of a power cut; returns how many there were.
fn each_outcome(folder: &FaultFolder, mut visit: impl FnMut(FaultFolder)) -> u64 {
    let mut choices = Choices::exhaustive();
    let mut outcomes = 0;
    loop {
        visit(folder.power_cut(&mut choices));
        outcomes += 1;
        if !choices.advance() {
            return outcomes;
        }
    }
}

fn fresh_copies() -> FaultFolder {
    let mut folder = FaultFolder::new();
    TwoCopies::create(&mut folder, Kind::Metadata, "metadata", UUID, &payload(0)).unwrap();
    folder.sync_folder().unwrap();
    folder
}

/// Saves payloads until the power goes; returns the last that was acknowledged and the last that was tried.
fn save_all(folder: &mut FaultFolder, numbers: std::ops::Range<usize>) -> Result<usize, (usize, usize)> {
    let mut acknowledged = numbers.start - 1;
    let (mut copies, found) = open(folder).map_err(|_| (acknowledged, acknowledged))?;
    assert_eq!(found, payload(acknowledged));
    for number in numbers {
        copies.save(folder, &payload(number)).map_err(|_| (acknowledged, number))?;
        acknowledged = number;
    }
    Ok(acknowledged)
}

#[test]
fn two_copies_survive_every_cut() {
    let mut outcomes = 0;
    let mut folder = fresh_copies();
    let start = folder.operations();
    save_all(&mut folder, 1..8).unwrap();
    let end = folder.operations();
    for cut in start..end {
        let mut folder = fresh_copies();
        folder.cut_after(cut);
        let (acknowledged, tried) = save_all(&mut folder, 1..8).unwrap_err();
        outcomes += each_outcome(&folder, |mut after| {
            let (_, found) = open(&mut after).expect("a copy is intact");
            let allowed = [payload(acknowledged), payload(tried)];
            assert!(allowed.contains(&found), "cut {cut}: acknowledged {acknowledged}, found {found:?}");
        });
    }
    assert!(outcomes > 100, "{outcomes}");
}

#[test]
fn two_copies_survive_a_kill_and_then_every_cut() {
    // The process dies at any point, a new one opens and saves, and in that the power goes.
    let mut folder = fresh_copies();
    let start = folder.operations();
    save_all(&mut folder, 1..3).unwrap();
    let end = folder.operations();
    for kill in start..end {
        let mut folder = fresh_copies();
        folder.cut_after(kill);
        let _ = save_all(&mut folder, 1..3).unwrap_err();
        for more in 0..8 {
            let mut folder = folder.clone();
            folder.cut_after(kill + more);
            let Ok((mut copies, found)) = open(&mut folder) else { continue };
            let saved = copies.save(&mut folder, &payload(5));
            each_outcome(&folder, |mut after| {
                let (_, survived) = open(&mut after).expect("a copy is intact");
                assert!(survived == payload(5) || (saved.is_err() && survived == found), "kill {kill}, cut {more}");
            });
        }
    }
}

#[test]
fn two_copies_survive_failing_syncs() {
    for failing in 0..4 {
        let mut folder = fresh_copies();
        let (mut copies, first) = open(&mut folder).unwrap();
        // The last that was acknowledged, and what was tried in vain since: a save that failed may have happened.
        let mut allowed = vec![first];
        for number in 1..6 {
            if number == 2 {
                folder.fail_syncs(failing);
            }
            if copies.save(&mut folder, &payload(number)).is_ok() {
                allowed.clear();
            }
            allowed.push(payload(number));
            each_outcome(&folder, |mut after| {
                let (_, found) = open(&mut after).expect("a copy is intact");
                assert!(allowed.contains(&found));
            });
            // A process that is killed and started again at this point must not trust what may not be durable.
            let mut restarted = folder.clone();
            restarted.fail_syncs(0);
            let (mut copies, found) = open(&mut restarted).unwrap();
            let cut = restarted.operations() + 1;
            restarted.cut_after(cut);
            copies.save(&mut restarted, &payload(number + 1)).unwrap_err();
            each_outcome(&restarted, |mut after| {
                let (_, survived) = open(&mut after).expect("a copy is intact");
                assert!(survived == found || survived == payload(number + 1));
            });
        }
    }
}

#[test]
fn replacing_and_removing_survive_every_cut() {
    let contents = |number: u8| vec![number; 700 + usize::from(number)];
    // None: removed. What each step leaves.
    let steps = [Some(1), Some(2), None, Some(3), Some(4)];
    let run = |folder: &mut FaultFolder| -> Result<(), usize> {
        for (index, step) in steps.iter().enumerate() {
            let done = match step {
                Some(number) => replace(folder, "app", &contents(*number)),
                None => remove(folder, "app"),
            };
            done.map_err(|_| index)?;
        }
        Ok(())
    };
    let mut folder = FaultFolder::new();
    run(&mut folder).unwrap();
    for cut in 0..folder.operations() {
        let mut folder = FaultFolder::new();
        folder.cut_after(cut);
        let step = run(&mut folder).unwrap_err();
        let before = if step == 0 { None } else { steps[step - 1] };
        let mut seen = BTreeSet::new();
        each_outcome(&folder, |mut after| {
            let found = after.read("app", 1 << 20).unwrap();
            assert!(
                found == before.map(contents) || found == steps[step].map(contents),
                "cut {cut}: {:?}",
                found.map(|bytes| bytes.len())
            );
            seen.insert(found);
        });
        assert!(!seen.is_empty());
    }
}

/// The harness itself: a protocol that forgets a sync must be caught.
#[test]
fn a_protocol_without_a_sync_is_caught() {
    let mut folder = FaultFolder::new();
    folder.create("app", &[1; 600]).unwrap();
    folder.sync("app").unwrap();
    folder.sync_folder().unwrap();
    folder.create("app.new", &[2; 600]).unwrap();
    folder.rename("app.new", "app").unwrap();
    let mut torn = 0;
    each_outcome(&folder, |mut after| {
        let found = after.read("app", 1 << 20).unwrap();
        torn += u64::from(found != Some(vec![1; 600]) && found != Some(vec![2; 600]));
    });
    assert!(torn > 0);
}
