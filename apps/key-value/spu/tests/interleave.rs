//! Handlers that interleave at every wait, by seed: readers beside writers of the same keys, listings beside both, and media
//! that fail. Planted bugs are caught here that only show between handlers.

mod world;

use key_value_spu::bank::{Failure, Fault, Planted};
use key_value_spu::store::{Condition, ListFrom};
use key_value_spu::table::Table;
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use world::history::{History, Workload};
use world::{Media, Random, World, delete, flush, get, id, list, list_all, put, run, run_one, statistics, value};

type Task<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// All clients write, read and delete the same few keys: each value that is read is one that was written, whole.
fn shared_keys(seed: u64, planted: Option<Planted>) -> Result<(), String> {
    let world = World::new(Media::new(512 << 10), seed);
    world.planted.set(planted);
    world.reader_turns.set(if seed.is_multiple_of(4) { 200 } else { 1 });
    let table = Box::new(Table::new());
    let broken = RefCell::new(None);
    let reads = Cell::new(0_u32);
    world.slow.set(true);
    let client = |number: u64| {
        let (world, table, broken, reads) = (&world, &table, &broken, &reads);
        async move {
            let mut random = Random(seed ^ number << 40);
            for step in 0..60 {
                let key = [b'k', random.below(3) as u8];
                let pair = id(&key, seed.is_multiple_of(2));
                match random.below(8) {
                    0..=3 => {
                        // The first bytes of a value tell what all of it must be.
                        let version = number << 32 | step;
                        let bound = if random.one_in(6) { 70_000 } else { 9_000 };
                        let bytes = 16 + random.below(bound) as usize;
                        let mut new = value(&key, version, bytes);
                        new[..8].copy_from_slice(&version.to_le_bytes());
                        match put(world, table, &pair, &new, Condition::Always).await {
                            Ok(()) | Err(Failure::Capacity) => {}
                            Err(failure) => *broken.borrow_mut() = Some(format!("put: {failure:?}")),
                        }
                    }
                    4 => match delete(world, table, &pair).await {
                        Ok(()) | Err(Failure::NotFound) => {}
                        Err(failure) => *broken.borrow_mut() = Some(format!("delete: {failure:?}")),
                    },
                    5 => {
                        if let Err(failure) = flush(world, table).await {
                            *broken.borrow_mut() = Some(format!("flush: {failure:?}"));
                        }
                    }
                    _ => match get(world, table, &pair).await {
                        Err(Failure::NotFound) => {}
                        Err(failure) => *broken.borrow_mut() = Some(format!("get: {failure:?}")),
                        Ok(found) => {
                            reads.set(reads.get() + 1);
                            let version = u64::from_le_bytes(found[..8].try_into().unwrap());
                            let mut whole = value(&key, version, found.len());
                            whole[..8].copy_from_slice(&version.to_le_bytes());
                            if found != whole {
                                *broken.borrow_mut() = Some("a get mixed two values".into());
                            }
                        }
                    },
                }
            }
        }
    };
    run(&world, (0..8).map(|number| Box::pin(client(number)) as Task).collect());
    if let Some(text) = broken.into_inner() {
        return Err(format!("seed {seed}: {text}"));
    }
    // At rest all agrees, before and after a rebuild.
    world.slow.set(false);
    let listed = run_one(&world, list_all(&world, &table, seed.is_multiple_of(2), 4096)).unwrap().unwrap();
    let counted = run_one(&world, statistics(&world, &table)).unwrap().unwrap();
    let rebuilt = Box::new(Table::new());
    let again = run_one(&world, statistics(&world, &rebuilt)).unwrap().map_err(|failure| format!("{failure:?}"))?;
    if counted.pairs != listed.len() as u64 || (again.pairs, again.value_bytes) != (counted.pairs, counted.value_bytes)
    {
        return Err(format!("seed {seed}: {} listed, counted {counted:?}, rebuilt {again:?}", listed.len()));
    }
    assert!(reads.get() > 0);
    Ok(())
}

#[test]
fn readers_beside_writers() {
    for seed in 0..60 {
        shared_keys(seed, None).unwrap();
    }
}

#[test]
fn planted_unprotected_reader_is_caught() {
    let caught = |seed| {
        let run = || shared_keys(seed, Some(Planted::ReaderUnprotected));
        std::panic::catch_unwind(run).map_or(true, |outcome| outcome.is_err())
    };
    assert!((0..500).any(caught));
}

/// Pairs that stay are listed exactly once, in order, whatever comes and goes beside them.
#[test]
fn lists_beside_mutations() {
    for seed in 0..12u64 {
        let spread = seed.is_multiple_of(2);
        let world = World::new(Media::new(1 << 20), seed);
        let table = Box::new(Table::new());
        let mut staying: Vec<Vec<u8>> = (0..60_u8).map(|number| vec![b's', number]).collect();
        for key in &staying {
            run_one(&world, put(&world, &table, &id(key, spread), b"stays", Condition::Always)).unwrap().unwrap();
        }
        staying.sort_by(|a, b| id(a, spread).order(&id(b, spread)));
        world.slow.set(true);
        let lister = async {
            for _ in 0..6 {
                let mut from = ListFrom::Start;
                let mut all: Vec<Vec<u8>> = Vec::new();
                loop {
                    let (keys, more) = list(&world, &table, from, 60).await.unwrap();
                    all.extend(keys);
                    match all.last() {
                        Some(last) if more => from = ListFrom::After(id(last, spread)),
                        _ => break,
                    }
                }
                let in_order = |pair: &[Vec<u8>]| id(&pair[0], spread).order(&id(&pair[1], spread)).is_lt();
                assert!(all.windows(2).all(in_order), "seed {seed}");
                all.retain(|key| key[0] == b's');
                assert_eq!(all, staying, "seed {seed}");
            }
        };
        let mutator = |number: u64| {
            let (world, table) = (&world, &table);
            async move {
                let mut random = Random(seed ^ number << 32);
                for _ in 0..150 {
                    let key = [b'g', random.below(40) as u8];
                    if random.one_in(2) {
                        put(world, table, &id(&key, spread), &[1; 200], Condition::Always).await.unwrap();
                    } else {
                        let _ = delete(world, table, &id(&key, spread)).await;
                    }
                    // What stays is overwritten, too.
                    let key = [b's', random.below(60) as u8];
                    put(world, table, &id(&key, spread), &[2; 100], Condition::IfExists).await.unwrap();
                }
            }
        };
        run(&world, vec![Box::pin(lister) as Task, Box::pin(mutator(1)), Box::pin(mutator(2))]);
    }
}

/// A write fails, once or from then on, at each point of a workload in turn: the request gets an error, and when the media
/// work again each key has its last answered value or that of a request that failed.
#[test]
fn failing_writes() {
    let world_of = |seed| World::new(Media::new(512 << 10), seed);
    for (fault, count) in [(Fault::Full, 1), (Fault::Media, 1), (Fault::Full, 40), (Fault::Media, 3)] {
        let mut at = 0;
        loop {
            let world: Rc<World> = world_of(1);
            let table = Box::new(Table::new());
            world.fault.set(Some((at, fault, count)));
            let mut possible: Vec<Vec<Option<Vec<u8>>>> = vec![vec![None]; 4];
            let mut random = Random(7);
            for step in 0..40 {
                let number = random.below(4) as usize;
                let key = [b'k', number as u8];
                let pair = id(&key, false);
                if random.below(4) > 0 {
                    let bytes = random.below(if step % 9 == 0 { 70_000 } else { 900 }) as usize;
                    let new = value(&key, step, bytes);
                    match run_one(&world, put(&world, &table, &pair, &new, Condition::Always)).unwrap() {
                        Ok(()) => possible[number] = vec![Some(new)],
                        Err(Failure::Capacity | Failure::Media) => possible[number].push(Some(new)),
                        Err(other) => panic!("{other:?}"),
                    }
                } else {
                    match run_one(&world, delete(&world, &table, &pair)).unwrap() {
                        Ok(()) | Err(Failure::NotFound) => possible[number] = vec![None],
                        Err(Failure::Capacity | Failure::Media) => possible[number].push(None),
                        Err(other) => panic!("{other:?}"),
                    }
                }
            }
            let reached = world.fault.get().is_none_or(|(left, _, _)| left == 0);
            world.fault.set(None);
            for rebuilt in [false, true] {
                let fresh = Box::new(Table::new());
                let table = if rebuilt { &fresh } else { &table };
                for (number, versions) in possible.iter_mut().enumerate() {
                    let found = run_one(&world, get(&world, table, &id(&[b'k', number as u8], false))).unwrap();
                    let found = match found {
                        Ok(value) => Some(value),
                        Err(Failure::NotFound) => None,
                        Err(other) => panic!("write {at} failed ({fault:?}): {other:?}"),
                    };
                    assert!(
                        versions.contains(&found),
                        "write {at} failed ({fault:?}), key {number}, rebuilt {rebuilt}"
                    );
                    *versions = vec![found];
                }
            }
            if !reached {
                break;
            }
            at += 1;
        }
        assert!(at > 100);
    }
}

/// Interleaved clients on their own keys, at full length: nothing is lost without a fault.
#[test]
fn interleaved_workloads() {
    for seed in 0..20 {
        let mut random = Random(seed);
        let workload = Workload::random(&mut random, 8, 60, 70_000);
        let world = World::new(Media::new(4 << 20), seed);
        let table = Box::new(Table::new());
        let mut history = History::new();
        workload.run(&world, &table, &mut history).unwrap();
        history.verify(&world, &table, workload.spread).unwrap();
        let rebuilt = Box::new(Table::new());
        history.verify(&world, &rebuilt, workload.spread).unwrap();
    }
}

/// As many handlers as an SPU has store over their own pairs at once. Half of the room is replaced versions at most: none is ever told that
/// there is no room, however often others are quicker to take what a flush gives back.
#[test]
fn replacing_always_finds_room() {
    for seed in 0..ROOM_SEEDS {
        let world = World::new(Media::new(512 << 10), seed);
        let table = Box::new(Table::new());
        let failed = RefCell::new(None);
        let puts = Cell::new(0_u32);
        // What fits in half of it.
        let bytes = 3000 + 500 * (seed % 5) as usize;
        let pair = |number: u64| id(&[b'r', number as u8], seed.is_multiple_of(2));
        world.slow.set(true);
        let client = |number: u64| {
            let (world, table, failed, puts) = (&world, &table, &failed, &puts);
            async move {
                let mut random = Random(seed ^ number << 40);
                for version in 0..40 {
                    let own = if number % 4 == 3 && random.one_in(2) { number - 1 } else { number };
                    if number % 8 == 7 && random.one_in(4) {
                        match delete(world, table, &pair(own)).await {
                            Ok(()) | Err(Failure::NotFound) => {}
                            Err(failure) => *failed.borrow_mut() = Some((failure, version)),
                        }
                        continue;
                    }
                    match put(world, table, &pair(own), &value(&[7], version, bytes), Condition::Always).await {
                        Ok(()) => puts.set(puts.get() + 1),
                        Err(failure) => *failed.borrow_mut() = Some((failure, version)),
                    }
                }
            }
        };
        run(&world, (0..ROOM_CLIENTS).map(|number| Box::pin(client(number)) as Task).collect());
        assert_eq!(failed.into_inner(), None, "seed {seed}, after {} puts", puts.get());
    }
}

/// Somebody closes the namespace in order wherever nobody changes it for a moment, while others store, read and delete: none of them notices.
#[test]
fn rests_beside_requests() {
    let rests = Cell::new(0_u32);
    for seed in 0..20_u64 {
        let mut random = Random(seed);
        let world = World::new(Media::new(1 << 20), seed);
        let table = Box::new(Table::new());
        let spread = random.one_in(2);
        let left = Cell::new(4_u32);
        let ended = RefCell::new(vec![None; 4]);
        world.slow.set(true);
        let client = |number: usize| {
            let (world, table, left, ended) = (&world, &table, &left, &ended);
            async move {
                let mut random = Random(seed ^ (number as u64) << 40);
                let pair = id(&[b'r', number as u8], spread);
                let mut held: Option<Vec<u8>> = None;
                for step in 0..60 {
                    match random.below(8) {
                        0..=2 => {
                            let new = value(&[7], step, random.below(3000) as usize);
                            put(world, table, &pair, &new, Condition::Always).await.unwrap();
                            held = Some(new);
                        }
                        3 => {
                            let deleted = delete(world, table, &pair).await;
                            assert_eq!(deleted.is_ok(), held.take().is_some(), "seed {seed}");
                        }
                        _ => assert_eq!(get(world, table, &pair).await.ok(), held, "seed {seed}"),
                    }
                }
                ended.borrow_mut()[number] = held;
                left.set(left.get() - 1);
            }
        };
        let rester = async {
            let request = world.request(&[], 0);
            let mut was_unclean = false;
            while left.get() > 0 {
                // Between two of these somebody may have changed something, or not.
                let is_unclean = table.rest(&request).await;
                if was_unclean && !is_unclean {
                    rests.set(rests.get() + 1);
                }
                was_unclean = is_unclean;
                run_on().await;
            }
        };
        let mut tasks: Vec<Task> = (0..4).map(|number| Box::pin(client(number)) as Task).collect();
        tasks.push(Box::pin(rester));
        run(&world, tasks);
        world.slow.set(false);
        for table in [table, Box::new(Table::new())] {
            for (number, held) in ended.borrow().iter().enumerate() {
                let found = run_one(&world, get(&world, &table, &id(&[b'r', number as u8], spread))).unwrap();
                assert_eq!(&found.ok(), held, "seed {seed}");
            }
        }
    }
    assert!(rests.get() > 0);
}

/// Lets the others have their turn.
async fn run_on() {
    let mut yielded = false;
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut yielded, true) {
            return std::task::Poll::Ready(());
        }
        context.waker().wake_by_ref();
        std::task::Poll::Pending
    })
    .await
}

/// Seeds of the test of room.
const ROOM_SEEDS: u64 = 40;
/// The handlers of an SPU.
const ROOM_CLIENTS: u64 = 32;
