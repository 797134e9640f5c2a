//! The engine beside a `BTreeMap`: random operations, clean and unclean reopening, all value sizes.

mod world;

use key_value_spu::bank::Failure;
use key_value_spu::store::{Condition, ListFrom, Put};
use key_value_spu::table::Table;
use std::collections::BTreeMap;
use world::{
    Media, NSID, Random, World, delete, flush, get, get_part, id, list, list_all, put, run_one, statistics, value,
};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn random_key(random: &mut Random, keys: u64) -> Vec<u8> {
    let number = random.below(keys);
    let length = 1 + (number as usize * 7) % 16;
    let mut key = vec![b'k'; length];
    key[0] = number as u8;
    if length > 1 {
        key[1] = (number >> 8) as u8;
    }
    key
}

fn random_size(random: &mut Random, largest: u64) -> usize {
    let size = match random.below(8) {
        0 => 0,
        1 => random.below(64),
        2 | 3 => random.below(1100),
        4 => random.below(4200),
        5 => random.below(20_000),
        6 => 65_400 + random.below(200),
        _ => random.below(largest),
    };
    size.min(largest) as usize
}

async fn check(world: &std::rc::Rc<World>, table: &Table, model: &Model, spread: bool) {
    let mut keys: Vec<&Vec<u8>> = model.keys().collect();
    keys.sort_by(|a, b| id(a, spread).order(&id(b, spread)));
    let listed = list_all(world, table, spread, 300).await.unwrap();
    assert_eq!(listed.iter().collect::<Vec<_>>(), keys);
    for (key, value) in model {
        assert!(get(world, table, &id(key, spread)).await.unwrap() == *value, "{key:?}");
    }
    let statistics = statistics(world, table).await.unwrap();
    assert_eq!(statistics.pairs, model.len() as u64);
    assert_eq!(statistics.value_bytes, model.values().map(|value| value.len() as u64).sum::<u64>());
}

fn against_the_model(seed: u64, media_bytes: usize, largest: u64, operations: u64, spread: bool) {
    let mut random = Random(seed);
    let world = World::new(Media::new(media_bytes), seed);
    let mut table = Box::new(Table::new());
    let mut model = Model::new();
    let mut full = 0;
    for step in 0..operations {
        let key = random_key(&mut random, 60);
        let pair = id(&key, spread);
        match random.below(20) {
            0..=7 => {
                let new = value(&key, step, random_size(&mut random, largest));
                let condition = match random.below(6) {
                    0 => Condition::IfExists,
                    1 => Condition::IfAbsent,
                    _ => Condition::Always,
                };
                let expected = match (condition, model.contains_key(&key)) {
                    (Condition::IfExists, false) => Err(Failure::NotFound),
                    (Condition::IfAbsent, true) => Err(Failure::Exists),
                    _ => Ok(()),
                };
                let outcome = run_one(&world, put(&world, &table, &pair, &new, condition)).unwrap();
                if outcome == Err(Failure::Capacity) && expected.is_ok() {
                    full += 1;
                } else {
                    assert_eq!(outcome, expected);
                    if outcome.is_ok() {
                        model.insert(key, new);
                    }
                }
            }
            8..=11 => {
                let outcome = run_one(&world, delete(&world, &table, &pair)).unwrap();
                assert_eq!(outcome, model.remove(&key).map(drop).ok_or(Failure::NotFound));
            }
            12..=15 => {
                let outcome = run_one(&world, get(&world, &table, &pair)).unwrap();
                assert!(outcome == model.get(&key).cloned().ok_or(Failure::NotFound));
            }
            16 => {
                let (offset, room) = (random.below(largest) as u32, random.below(70_000) as u32);
                let outcome = run_one(&world, get_part(&world, &table, &pair, offset, room)).unwrap();
                let expected = model.get(&key).map(|value| {
                    let from = value.len().min(offset as usize);
                    let to = value.len().min(from + room as usize);
                    (value[from..to].to_vec(), value.len() as u32)
                });
                assert!(outcome == expected.ok_or(Failure::NotFound));
            }
            17 => run_one(&world, flush(&world, &table)).unwrap().unwrap(),
            18 if random.one_in(4) => {
                let clean = random.one_in(2);
                if clean {
                    run_one(&world, table.close_all(&world.request(&[], 0))).unwrap();
                }
                *table = Table::new();
                let writes = world.writes.get();
                run_one(&world, check(&world, &table, &model, spread)).unwrap();
                assert!(!clean || world.writes.get() == writes, "a clean opening writes nothing");
            }
            _ if random.one_in(8) => run_one(&world, check(&world, &table, &model, spread)).unwrap(),
            _ => {}
        }
    }
    run_one(&world, check(&world, &table, &model, spread)).unwrap();
    // All space comes back.
    for key in model.keys() {
        run_one(&world, delete(&world, &table, &id(key, spread))).unwrap().unwrap();
    }
    for _ in 0..6 {
        run_one(&world, flush(&world, &table)).unwrap().unwrap();
    }
    let left = run_one(&world, statistics(&world, &table)).unwrap().unwrap();
    assert_eq!((left.pairs, left.value_bytes, left.used_bytes, left.limbo_slots), (0, 0, 0, 0));
    assert!(full < operations / 3, "{full} of {operations} found it full");
}

#[test]
fn small_values() {
    for seed in 0..6 {
        against_the_model(seed, 4 << 20, 4000, 2000, seed % 2 == 0);
    }
}

#[test]
fn large_values() {
    for seed in 10..13 {
        against_the_model(seed, 160 << 20, 4 << 20, 250, true);
    }
}

#[test]
fn a_region_that_is_nearly_full() {
    for seed in 20..26 {
        against_the_model(seed, 1 << 20, 66_000, 1500, seed % 2 == 0);
    }
}

/// Sizes at which a layout changes.
#[test]
fn edges_of_layouts() {
    let world = World::new(Media::new(64 << 20), 1);
    let table = Box::new(Table::new());
    let edges = [
        0,
        1,
        63,
        64,
        65,
        128,
        65_471,
        65_472,
        65_473,
        65_535,
        65_536,
        65_537,
        131_072,
        131_008,
        4 << 20,
        (4 << 20) + 1,
        16 << 20,
    ];
    for (version, bytes) in edges.into_iter().enumerate() {
        let key = (bytes as u32).to_le_bytes();
        let new = value(&key, version as u64, bytes);
        run_one(&world, put(&world, &table, &id(&key, true), &new, Condition::Always)).unwrap().unwrap();
        let request = world.request(&[], bytes);
        let length = run_one(&world, async {
            table.enter(&request, NSID).await?.get(&request, &id(&key, true), 0, bytes as u32).await
        });
        assert_eq!(length, Some(Ok(bytes as u32)));
        assert!(*request.reply.borrow() == new, "{bytes}");
    }
}

/// Fill, delete all, fill with another size: again and again the same space.
#[test]
fn space_is_reclaimed_for_other_sizes() {
    let world = World::new(Media::new(2 << 20), 5);
    let table = Box::new(Table::new());
    let mut least = usize::MAX;
    for (round, bytes) in [100, 4096, 1000, 64, 65_000, 200_000, 0, 20_000, 100].into_iter().enumerate() {
        let mut stored = 0;
        let outcome = loop {
            let key = (stored as u32).to_le_bytes();
            let new = value(&key, round as u64, bytes);
            match run_one(&world, put(&world, &table, &id(&key, true), &new, Condition::Always)).unwrap() {
                Ok(()) => stored += 1,
                Err(failure) => break failure,
            }
        };
        assert_eq!(outcome, Failure::Capacity);
        least = least.min((bytes + 64) * stored);
        for number in 0..stored {
            let key = (number as u32).to_le_bytes();
            let found = run_one(&world, get(&world, &table, &id(&key, true))).unwrap().unwrap();
            assert!(found == value(&key, round as u64, bytes));
        }
        for number in 0..stored {
            let key = (number as u32).to_le_bytes();
            run_one(&world, delete(&world, &table, &id(&key, true))).unwrap().unwrap();
        }
    }
    assert!(least > 800 << 10, "a round stored only {least} bytes");
}

/// Full, then overwritten in place for ever: limbo gives the space back.
#[test]
fn overwriting_when_full() {
    let world = World::new(Media::new(1 << 20), 5);
    let table = Box::new(Table::new());
    let mut stored = 0_u32;
    while run_one(&world, put(&world, &table, &id(&stored.to_le_bytes(), true), &[1; 1000], Condition::Always))
        .unwrap()
        .is_ok()
    {
        stored += 1;
    }
    run_one(&world, delete(&world, &table, &id(&0_u32.to_le_bytes(), true))).unwrap().unwrap();
    for round in 0..3 {
        for number in 1..stored {
            let key = number.to_le_bytes();
            let new = value(&key, round, 1000);
            run_one(&world, put(&world, &table, &id(&key, true), &new, Condition::Always)).unwrap().unwrap();
        }
    }
}

#[test]
fn lists_begin_anywhere() {
    for spread in [true, false] {
        let world = World::new(Media::new(2 << 20), 5);
        let table = Box::new(Table::new());
        let mut keys: Vec<Vec<u8>> = (0..200_u32).map(|number| number.to_le_bytes().to_vec()).collect();
        for key in keys.iter().step_by(2) {
            run_one(&world, put(&world, &table, &id(key, spread), b"", Condition::Always)).unwrap().unwrap();
        }
        keys.sort_by(|a, b| id(a, spread).order(&id(b, spread)));
        let stored = |key: &&Vec<u8>| u32::from_le_bytes([key[0], key[1], key[2], key[3]]).is_multiple_of(2);
        for (index, key) in keys.iter().enumerate() {
            let at: Vec<&Vec<u8>> = keys[index..].iter().filter(stored).collect();
            let after: Vec<&Vec<u8>> = keys[index + 1..].iter().filter(stored).collect();
            let pair = id(key, spread);
            let (found, more) = run_one(&world, list(&world, &table, ListFrom::At(pair), 8000)).unwrap().unwrap();
            assert!(!more && found.iter().collect::<Vec<_>>() == at);
            let (found, _) = run_one(&world, list(&world, &table, ListFrom::After(pair), 8000)).unwrap().unwrap();
            assert_eq!(found.iter().collect::<Vec<_>>(), after);
            let (found, more) = run_one(&world, list(&world, &table, ListFrom::At(pair), 17)).unwrap().unwrap();
            assert_eq!((found.len(), more), (at.len().min(2), at.len() > 2));
        }
    }
}

/// More namespaces than can be open at a time, each with its own pairs.
#[test]
fn many_namespaces() {
    let world = World::new(Media::new(20 << 20), 5);
    let bytes = 1 << 20;
    let namespaces: Vec<u32> = (1..=20).collect();
    *world.regions.borrow_mut() = namespaces
        .iter()
        .map(|nsid| (*nsid, key_value_spu::bank::Region { base: u64::from(nsid - 1) * bytes, bytes }))
        .collect();
    let table = Box::new(Table::new());
    for round in 0..3_u64 {
        for nsid in &namespaces {
            let new = value(b"key", round * 100 + u64::from(*nsid), 500);
            let request = world.request(&new, 500);
            run_one(&world, async {
                let store = table.enter(&request, *nsid).await?;
                assert_eq!(store.statistics().pairs, round);
                store.put::<_, true>(&request, &id(&[round as u8 + 1], true), Put::new(500, Condition::Always)).await?;
                assert_eq!(store.get::<_, u32>(&request, &id(&[round as u8 + 1], true), 0, 500).await?, 500);
                Ok::<(), Failure>(())
            })
            .unwrap()
            .unwrap();
            assert_eq!(*request.reply.borrow(), new);
        }
    }
    world.regions.borrow_mut().remove(&3);
    run_one(&world, table.forget(3)).unwrap();
    let request = world.request(&[], 0);
    assert_eq!(run_one(&world, async { table.enter(&request, 3).await.err() }).unwrap(), Some(Failure::NoNamespace));
    assert_eq!(run_one(&world, async { table.enter(&request, 0).await.err() }).unwrap(), Some(Failure::NoNamespace));
}

#[test]
fn foreign_and_small_regions_are_refused() {
    let mut media = Media::new(1 << 20);
    media.visible[17] = 1;
    let world = World::new(media, 1);
    let table = Box::new(Table::new());
    assert_eq!(run_one(&world, flush(&world, &table)).unwrap(), Err(Failure::Format));
    assert_eq!(world.writes.get(), 0);
    let world = World::new(Media::new(64 << 10), 1);
    assert_eq!(run_one(&world, flush(&world, &Table::new())).unwrap(), Err(Failure::TooSmall));
}

/// Operations of a store's first request.
fn operations_of(world: &std::rc::Rc<World>, table: &Table, request: impl Fn(&Table)) -> u64 {
    let before = world.operations.get();
    request(table);
    world.operations.get() - before
}

#[test]
fn an_empty_namespace_is_listed_at_once_whatever_its_size_and_past() {
    let world = World::new(Media::new(64 << 20), 1);
    let table = Box::new(Table::new());
    let listed = |table: &Table| {
        assert!(run_one(&world, list_all(&world, table, true, 4096)).unwrap().unwrap().is_empty());
    };
    // Two superblocks, and the region.
    assert!(operations_of(&world, &table, listed) <= 4);
    for number in 0..200_u8 {
        run_one(&world, put(&world, &table, &id(&[number], true), &[number; 100], Condition::Always)).unwrap().unwrap();
    }
    let all = run_one(&world, list_all(&world, &table, true, 4096)).unwrap().unwrap();
    assert_eq!(all.len(), 200);
    for number in 1..200_u8 {
        run_one(&world, delete(&world, &table, &id(&[number], true))).unwrap().unwrap();
    }
    let all = run_one(&world, list_all(&world, &table, true, 4096)).unwrap().unwrap();
    assert_eq!(all, [vec![0]], "one is left");
    run_one(&world, delete(&world, &table, &id(&[0], true))).unwrap().unwrap();
    assert!(operations_of(&world, &table, listed) <= 1);
    // Also one that was not closed in order, when that is known.
    let table = Box::new(Table::new());
    run_one(&world, flush(&world, &table)).unwrap().unwrap();
    assert!(operations_of(&world, &table, listed) <= 1);
}

#[test]
fn recovery_looks_at_what_was_used_and_not_at_the_region() {
    let mut recoveries = Vec::new();
    for bytes in [2 << 20, 64 << 20] {
        let world = World::new(Media::new(bytes), 1);
        let table = Box::new(Table::new());
        for number in 0..200_u8 {
            let pair = id(&[number], true);
            run_one(&world, put(&world, &table, &pair, &[number; 1000], Condition::Always)).unwrap().unwrap();
        }
        // Killed: all that was written is there.
        let table = Box::new(Table::new());
        let first = |table: &Table| {
            let found = run_one(&world, get(&world, table, &id(&[7], true))).unwrap().unwrap();
            assert_eq!(found, [7; 1000]);
        };
        recoveries.push(operations_of(&world, &table, first));
        let all = run_one(&world, list_all(&world, &table, true, 4096)).unwrap().unwrap();
        assert_eq!(all.len(), 200);
    }
    // But for the hash table, which is emptied by the quarter of a megabyte.
    assert!(recoveries[1] < recoveries[0] + 8, "{recoveries:?}");
    // Of each pair: its header, its value, which nobody has said to be durable, its bucket's head, and that again to link it. No header
    // twice, since nothing was deleted; and four slabs have 40 slots more.
    assert!(recoveries[0] < 200 * 4 + 40 + 100, "{recoveries:?}");
}

#[test]
fn a_crash_at_rest_leaves_nothing_to_recover_however_much_is_stored() {
    let mut firsts = Vec::new();
    for pairs in [10_u8, 200] {
        let world = World::new(Media::new(4 << 20), 1);
        let table = Box::new(Table::new());
        let store = |table: &Table, number: u8, byte: u8| {
            let pair = id(&[number], true);
            run_one(&world, put(&world, table, &pair, &[byte; 1000], Condition::Always)).unwrap().unwrap();
        };
        let first = |table: &Table| {
            assert_eq!(run_one(&world, get(&world, table, &id(&[7], true))).unwrap().unwrap(), [7; 1000]);
        };
        for number in 0..pairs {
            store(&table, number, 0);
            store(&table, number, number);
        }
        run_one(&world, delete(&world, &table, &id(&[3], true))).unwrap().unwrap();
        let request = world.request(&[], 0);
        assert!(run_one(&world, table.rest(&request)).unwrap(), "it was changed since it was looked at last");
        assert!(!run_one(&world, table.rest(&request)).unwrap(), "it is at rest");
        // Killed.
        let table = Box::new(Table::new());
        firsts.push(operations_of(&world, &table, first));
        assert_eq!(run_one(&world, statistics(&world, &table)).unwrap().unwrap().pairs, u64::from(pairs) - 1);
        // Open and closed in order it is the same for requests; what is changed then is recovered.
        assert!(!run_one(&world, table.rest(&request)).unwrap(), "nothing was changed");
        store(&table, 3, 9);
        run_one(&world, delete(&world, &table, &id(&[5], true))).unwrap().unwrap();
        let table = Box::new(Table::new());
        assert_eq!(run_one(&world, get(&world, &table, &id(&[3], true))).unwrap().unwrap(), [9; 1000]);
        assert_eq!(run_one(&world, get(&world, &table, &id(&[5], true))).unwrap(), Err(Failure::NotFound));
        assert_eq!(run_one(&world, statistics(&world, &table)).unwrap().unwrap().pairs, u64::from(pairs) - 1);
    }
    assert!(firsts[0] == firsts[1] && firsts[0] <= 8, "{firsts:?}");
}
