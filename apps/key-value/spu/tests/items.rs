//! Versions, expiry, sweeps, clears and scans beside models, and regions of version 1 of the format.

mod world;

use key_value_spu::bank::{Failure, Planted};
use key_value_spu::format::{Geometry, Nonce, SUPERBLOCK_BYTES};
use key_value_spu::store::{Condition, KeyRange, Put};
use key_value_spu::table::Table;
use key_value_spu::wire::KEY_BYTES_MAX;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use world::{
    Media, NSID, Random, World, clear, delete, flush, get, get_item, id, list_all, put, put_until, run, run_one, scan,
    statistics, sweep, tell, touch, value,
};

type Task<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

fn fresh(bytes: usize, seed: u64) -> (Rc<World>, Box<Table>) {
    (World::new(Media::new(bytes), seed), Box::new(Table::new()))
}

async fn delete_version(world: &Rc<World>, table: &Table, key: &[u8], version: u64) -> Result<(), Failure> {
    let request = world.request(&[], 0);
    table.enter(&request, NSID).await?.delete(&request, &id(key, true), Some(version)).await
}

/// (value, version, expiry) by key.
type Model = BTreeMap<Vec<u8>, (Vec<u8>, u64, u32)>;

fn same(world: &Rc<World>, table: &Table, model: &Model, now_s: u32) {
    let there = |expiry: u32| expiry == 0 || expiry > now_s;
    for number in 0..8_u8 {
        let key = vec![b'k', number];
        let found = run_one(world, get_item(world, table, &id(&key, true))).unwrap();
        let expected = model.get(&key).filter(|(_, _, expiry)| there(*expiry)).cloned();
        let found = found.map(|(value, found)| (value, found.version, found.expiry));
        assert!(found == expected.ok_or(Failure::NotFound), "{key:?}");
    }
    let listed = run_one(world, list_all(world, table, true, 4096)).unwrap().unwrap();
    assert_eq!(listed.len(), model.values().filter(|(_, _, expiry)| there(*expiry)).count());
}

/// One client: what it finds has the version and the expiry that it was given, also after reopening; no version comes twice.
#[test]
fn versions_and_expiry_are_as_in_the_model() {
    for seed in 0..40 {
        let mut random = Random(seed);
        let (world, mut table) = fresh(2 << 20, seed);
        let mut model = Model::new();
        let mut seen = BTreeSet::new();
        let mut now_s = 1;
        run_one(&world, tell(&world, &table, now_s)).unwrap().unwrap();
        for step in 0..300_u64 {
            let key = vec![b'k', random.below(8) as u8];
            let pair = id(&key, true);
            let there =
                |model: &Model| model.get(&key).filter(|(_, _, expiry)| *expiry == 0 || *expiry > now_s).cloned();
            let expiry = if random.one_in(2) { 0 } else { now_s + random.below(12) as u32 };
            match random.below(12) {
                0..=4 => {
                    let version = there(&model).map_or(17, |(_, version, _)| version);
                    let (condition, expected) = match (random.below(5), there(&model)) {
                        (0, Some(_)) => (Condition::IfVersion(version), Ok(())),
                        (1, Some(_)) => (Condition::IfVersion(version - 1), Err(Failure::Changed)),
                        (0 | 1, None) => (Condition::IfVersion(version), Err(Failure::NotFound)),
                        (2, here) => (Condition::IfAbsent, if here.is_some() { Err(Failure::Exists) } else { Ok(()) }),
                        (3, here) => {
                            (Condition::IfExists, if here.is_some() { Ok(()) } else { Err(Failure::NotFound) })
                        }
                        _ => (Condition::Always, Ok(())),
                    };
                    let largest = if random.one_in(8) { 70_000 } else { 300 };
                    let bytes = random.below(largest) as usize;
                    let new = value(&key, step, bytes);
                    let outcome = run_one(&world, put_until(&world, &table, &pair, &new, condition, expiry)).unwrap();
                    assert_eq!(outcome.map(drop), expected, "seed {seed}, {condition:?}");
                    if let Ok(version) = outcome {
                        assert!(seen.insert(version), "a version comes twice");
                        model.insert(key, (new, version, expiry));
                    }
                }
                5 | 6 => {
                    let outcome = run_one(&world, touch(&world, &table, &pair, expiry)).unwrap();
                    let known = there(&model);
                    assert_eq!(outcome.map(|found| found.version), known.map(|known| known.1).ok_or(Failure::NotFound));
                    if outcome.is_ok() {
                        model.get_mut(&key).expect("it is there").2 = expiry;
                    }
                }
                7 => {
                    let known = there(&model);
                    let wrong = random.one_in(2);
                    let version = known.as_ref().map_or(5, |known| known.1 + u64::from(wrong));
                    let outcome = run_one(&world, delete_version(&world, &table, &key, version)).unwrap();
                    let expected = if wrong { Err(Failure::Changed) } else { Ok(()) };
                    assert_eq!(outcome, known.map_or(Err(Failure::NotFound), |_| expected));
                    if outcome.is_ok() {
                        model.remove(&key);
                    }
                }
                8 => {
                    now_s += random.below(6) as u32;
                    run_one(&world, tell(&world, &table, now_s)).unwrap().unwrap();
                }
                9 => {
                    run_one(&world, sweep(&world, &table)).unwrap().unwrap();
                    model.retain(|_, (_, _, expiry)| *expiry == 0 || *expiry > now_s);
                    let left = run_one(&world, statistics(&world, &table)).unwrap().unwrap();
                    assert_eq!(left.pairs, model.len() as u64);
                    assert_eq!(left.value_bytes, model.values().map(|(value, _, _)| value.len() as u64).sum::<u64>());
                }
                10 if random.one_in(4) => {
                    run_one(&world, clear(&world, &table)).unwrap().unwrap();
                    model.clear();
                    assert_eq!(run_one(&world, statistics(&world, &table)).unwrap().unwrap().pairs, 0);
                }
                11 if random.one_in(3) => {
                    if random.one_in(2) {
                        run_one(&world, table.close_all(&world.request(&[], 0))).unwrap();
                    }
                    *table = Table::new();
                    run_one(&world, tell(&world, &table, now_s)).unwrap().unwrap();
                }
                _ => same(&world, &table, &model, now_s),
            }
        }
        same(&world, &table, &model, now_s);
    }
}

/// Clients that count in the same pairs by compare-and-swap: no step is lost.
fn count_together(seed: u64, planted: Option<Planted>) -> bool {
    let (world, table) = fresh(1 << 20, seed);
    world.planted.set(planted);
    world.slow.set(true);
    let steps = Cell::new(0_u64);
    let client = |number: u64| {
        let (world, table, steps) = (&world, &table, &steps);
        async move {
            let mut random = Random(seed ^ number << 40);
            for _ in 0..12 {
                let pair = id(&[b'c', random.below(2) as u8], false);
                loop {
                    let (old, condition) = match get_item(world, table, &pair).await {
                        Ok((value, found)) => {
                            (u64::from_le_bytes(value[..8].try_into().unwrap()), Condition::IfVersion(found.version))
                        }
                        Err(_) => (0, Condition::IfAbsent),
                    };
                    let new = (old + 1).to_le_bytes();
                    match put_until(world, table, &pair, &new, condition, 0).await {
                        Ok(_) => break,
                        Err(Failure::Changed | Failure::Exists | Failure::NotFound) => {}
                        Err(other) => panic!("{other:?}"),
                    }
                }
                steps.set(steps.get() + 1);
            }
        }
    };
    run(&world, (0..6).map(|number| Box::pin(client(number)) as Task).collect());
    world.slow.set(false);
    let counted = (0..2_u8).map(|number| {
        let found = run_one(&world, get(&world, &table, &id(&[b'c', number], false))).unwrap();
        found.map_or(0, |value| u64::from_le_bytes(value[..8].try_into().unwrap()))
    });
    counted.sum::<u64>() == steps.get()
}

#[test]
fn counting_together_loses_nothing() {
    assert!((0..40).all(|seed| count_together(seed, None)));
}

#[test]
fn planted_unchecked_version_is_caught() {
    assert!((0..40).any(|seed| !count_together(seed, Some(Planted::VersionUnchecked))));
}

/// Sweeps beside clients that store what has ended and then, under the same key, what stays.
fn sweep_beside(seed: u64, planted: Option<Planted>) -> Result<(), String> {
    let (world, table) = fresh(1 << 20, seed);
    world.planted.set(planted);
    run_one(&world, tell(&world, &table, 10)).unwrap().unwrap();
    world.slow.set(true);
    let broken = RefCell::new(None);
    let working = Cell::new(4);
    let client = |number: u8| {
        let (world, table, broken, working) = (&world, &table, &broken, &working);
        async move {
            for step in 0..40_u8 {
                let pair = id(&[b'a' + number, step % 3], false);
                put_until(world, table, &pair, &[step; 30], Condition::Always, 5).await.unwrap();
                if get(world, table, &pair).await.is_ok() {
                    broken.borrow_mut().get_or_insert("what has ended is found".to_owned());
                }
                put(world, table, &pair, &[step; 50], Condition::Always).await.unwrap();
                if get(world, table, &pair).await != Ok(vec![step; 50]) {
                    broken.borrow_mut().get_or_insert("what stays was swept away".to_owned());
                }
            }
            working.set(working.get() - 1);
        }
    };
    let sweeper = async {
        while working.get() > 0 {
            sweep(&world, &table).await.unwrap();
        }
    };
    let mut tasks: Vec<Task> = (0..4).map(|number| Box::pin(client(number)) as Task).collect();
    tasks.push(Box::pin(sweeper));
    run(&world, tasks);
    world.slow.set(false);
    let pairs = run_one(&world, statistics(&world, &table)).unwrap().unwrap().pairs;
    if pairs != 12 {
        return Err(format!("{pairs} pairs"));
    }
    broken.into_inner().map_or(Ok(()), Err)
}

#[test]
fn sweeps_beside_puts_take_only_what_has_ended() {
    for seed in 0..60 {
        sweep_beside(seed, None).unwrap();
    }
}

#[test]
fn planted_blind_sweep_is_caught() {
    assert!((0..200).any(|seed| sweep_beside(seed, Some(Planted::SweepBlind)).is_err()));
}

/// What has ended makes room for what is to be stored.
#[test]
fn a_full_region_gives_the_room_of_what_has_ended() {
    let (world, table) = fresh(1 << 20, 3);
    let mut stored = 0_u32;
    let store = |number: u32, expiry: u32| {
        run_one(
            &world,
            put_until(&world, &table, &id(&number.to_le_bytes(), true), &[7; 900], Condition::Always, expiry),
        )
        .unwrap()
    };
    while store(stored, if stored.is_multiple_of(2) { 50 } else { 0 }).is_ok() {
        stored += 1;
    }
    assert_eq!(store(stored, 0).map(drop), Err(Failure::Capacity));
    let request = world.request(&[7; 900], 0);
    let put_again = async |now_s: u32| {
        let store = table.enter(&request, NSID).await?;
        store.tell_time(now_s);
        let put = Put::new(900, Condition::Always);
        let mut sweeps = 0;
        if !store.finds_room(&request, &mut sweeps).await? {
            return Err(Failure::Capacity);
        }
        store.put::<_, true>(&request, &id(&stored.to_le_bytes(), true), put).await.map(drop)
    };
    let make_room = async || table.enter(&request, NSID).await?.make_room(&request).await;
    assert_eq!(run_one(&world, put_again(0)), Some(Err(Failure::Capacity)), "no time was told");
    assert_eq!(run_one(&world, make_room()), Some(Ok(None)));
    assert_eq!(run_one(&world, put_again(49)), Some(Err(Failure::Capacity)), "nothing has ended");
    // All buckets were looked at: the next one that finds no room does not look again, until the time is another.
    assert_eq!(run_one(&world, make_room()), Some(Ok(None)));
    assert_eq!(run_one(&world, put_again(49)), Some(Err(Failure::Capacity)));
    assert_eq!(run_one(&world, put_again(50)), Some(Ok(())));
    for number in (1..stored).step_by(2) {
        assert_eq!(run_one(&world, get(&world, &table, &id(&number.to_le_bytes(), true))), Some(Ok(vec![7; 900])));
    }
}

fn bound(key: &[u8]) -> ([u8; KEY_BYTES_MAX], u8) {
    let mut bytes = [0; KEY_BYTES_MAX];
    bytes[..key.len()].copy_from_slice(key);
    (bytes, key.len() as u8)
}

#[test]
fn scans_find_what_is_in_the_range() {
    for seed in 0..30 {
        let mut random = Random(seed);
        let (world, table) = fresh(4 << 20, seed);
        let spread = seed % 2 == 0;
        let mut keys = BTreeSet::new();
        let random_key = |random: &mut Random| -> Vec<u8> {
            let length = 1 + random.below(4) as usize;
            (0..length).map(|_| [0, b'a', b'b', 0xff][random.below(4) as usize]).collect()
        };
        for _ in 0..120 {
            let key = random_key(&mut random);
            let expiry = if random.one_in(5) { 3 } else { 0 };
            run_one(&world, put_until(&world, &table, &id(&key, spread), b"v", Condition::Always, expiry))
                .unwrap()
                .unwrap();
            if expiry == 0 {
                keys.insert(key)
            } else {
                keys.remove(&key)
            };
        }
        run_one(&world, tell(&world, &table, 3)).unwrap().unwrap();
        for _ in 0..30 {
            let (from, to) = (random_key(&mut random), random_key(&mut random));
            let from = if random.one_in(4) { Vec::new() } else { from };
            let to = if random.one_in(4) { Vec::new() } else { to };
            let range = KeyRange { from: bound(&from), to: bound(&to) };
            let room = 24 + random.below(200) as usize;
            let (found, _) = run_one(&world, scan(&world, &table, &range, room)).unwrap().unwrap();
            let expected: Vec<&Vec<u8>> =
                keys.iter().filter(|key| **key >= from && (to.is_empty() || **key < to)).collect();
            let sorted: BTreeSet<&Vec<u8>> = found.iter().collect();
            assert_eq!(found.len(), sorted.len(), "found twice");
            assert_eq!(sorted.into_iter().collect::<Vec<_>>(), expected, "seed {seed}, {from:?} to {to:?}");
        }
    }
}

/// However little a scan finds, a call of it ends.
#[test]
fn a_call_of_a_scan_is_bounded() {
    let (world, table) = fresh(64 << 20, 1);
    for number in 0..2000_u32 {
        let key = number.to_le_bytes();
        run_one(&world, put(&world, &table, &id(&key, true), b"", Condition::Always)).unwrap().unwrap();
    }
    let range = KeyRange { from: bound(b"nothing"), to: bound(b"nothing at all") };
    let buckets = Geometry::new(0, 64 << 20).unwrap().buckets;
    let (found, calls) = run_one(&world, scan(&world, &table, &range, 100)).unwrap().unwrap();
    assert!(found.is_empty());
    assert_eq!(calls, buckets.div_ceil(key_value_spu::store::SCAN_BUCKETS));
}

/// Makes a superblock one of version 1 of the format.
fn age(sector: &mut [u8]) {
    sector[8..12].copy_from_slice(&1_u32.to_le_bytes());
    let word = |at: usize, sector: &[u8]| u64::from_le_bytes(sector[at..at + 8].try_into().unwrap());
    let words: Vec<u64> = (0..SUPERBLOCK_BYTES / 8 - 1).map(|index| word(8 * index, sector)).collect();
    let magic = word(0, sector);
    let check = Nonce([magic, !magic]).check(0, 0, &words);
    sector[SUPERBLOCK_BYTES - 8..SUPERBLOCK_BYTES].copy_from_slice(&check.to_le_bytes());
}

/// A region of version 1, closed in order or not: all is there, and it is of this version once it is written to.
#[test]
fn regions_of_version_1_are_read_and_grow_up() {
    for clean in [true, false] {
        let (world, table) = fresh(1 << 20, 4);
        for number in 0..50_u8 {
            run_one(&world, put(&world, &table, &id(&[number], true), &[number; 200], Condition::Always))
                .unwrap()
                .unwrap();
        }
        run_one(&world, delete(&world, &table, &id(&[3], true))).unwrap().unwrap();
        run_one(&world, flush(&world, &table)).unwrap().unwrap();
        if clean {
            run_one(&world, table.close_all(&world.request(&[], 0))).unwrap();
        }
        let mut media = world.media.borrow().survivor(|_| true);
        for at in Geometry::SUPERBLOCKS {
            let sector = &mut media.visible[at as usize..at as usize + SUPERBLOCK_BYTES];
            if sector.iter().any(|byte| *byte != 0) {
                age(sector);
            }
        }
        media.durable = media.visible.clone();
        let old = World::new(media, 5);
        let table = Box::new(Table::new());
        let check = |world: &Rc<World>, table: &Table| {
            for number in (0..50_u8).filter(|number| *number != 3) {
                let found = run_one(world, get_item(world, table, &id(&[number], true))).unwrap().unwrap();
                assert_eq!((found.0, found.1.expiry), (vec![number; 200], 0));
            }
            assert_eq!(run_one(world, get(world, table, &id(&[3], true))), Some(Err(Failure::NotFound)));
        };
        check(&old, &table);
        assert!(!clean || old.writes.get() == 0, "who only reads leaves it as it was");
        run_one(&old, put_until(&old, &table, &id(b"new", true), b"x", Condition::Always, 9)).unwrap().unwrap();
        run_one(&old, flush(&old, &table)).unwrap().unwrap();
        let again = World::new(old.media.borrow().survivor(|_| false), 6);
        let versions = |world: &Rc<World>| {
            let media = world.media.borrow();
            Geometry::SUPERBLOCKS.map(|at| media.visible[at as usize + 8])
        };
        assert!(versions(&again).contains(&2));
        let table = Box::new(Table::new());
        check(&again, &table);
        let found = run_one(&again, get_item(&again, &table, &id(b"new", true))).unwrap().unwrap();
        assert_eq!(found.1.expiry, 9);
    }
}
