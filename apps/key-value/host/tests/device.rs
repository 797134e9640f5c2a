//! The app in a whole device: this library's requests through bridge, SPU-OS and media, which take their time, interleave,
//! and lose power.

mod rig;

use key_value_host::wire::{self, PairArguments};
use key_value_host::wire::{ItemArguments, ItemHead};
use key_value_host::{
    Call, GetBatch, Gotten, ItemCall, ItemCondition, ItemPut, Key, KeyScan, KeyValueError, PutBatch, PutCondition,
    ScanStep,
};
use rig::{Namespace, Rig, outcome};
use std::collections::BTreeMap;
use willow_device::media::fault::{Choices, FaultMedia, FaultOptions};
use willow_device::media::ram::RamStore;
use willow_on_flash::{Medium, on_each_medium};

const SPUS: u16 = 3;

on_each_medium!(
    pairs_of_all_sizes,
    conditions_and_offsets,
    senseless_requests_are_refused,
    lists_run_over_all_spus,
    namespaces_come_and_go,
    items,
    senseless_items_are_refused,
    batches_and_scans
);

fn fresh(medium: Medium) -> (Rig, Namespace) {
    let (store, apps) = medium.banks(SPUS, 1 << 30);
    let mut rig = Rig::with_apps(SPUS, store, apps);
    let namespace = rig.create(96 << 20);
    (rig, namespace)
}

fn value(seed: u64, bytes: usize) -> Vec<u8> {
    (0..bytes as u64).map(|at| (seed.wrapping_mul(0x9e37_79b9) >> (at % 24)) as u8 ^ at as u8).collect()
}

fn pairs_of_all_sizes(medium: Medium) {
    let (mut rig, namespace) = fresh(medium);
    let sizes = [0, 1, 100, 1024, 4096, 65_000, 65_536, 1 << 20, (4 << 20) + 17];
    for (number, bytes) in sizes.into_iter().enumerate() {
        let key = [b'k', number as u8];
        namespace.put(&mut rig, &key, &value(number as u64, bytes)).unwrap();
        assert!(namespace.get(&mut rig, &key, bytes).unwrap() == value(number as u64, bytes), "{bytes}");
        assert_eq!(namespace.get(&mut rig, &key, bytes / 2).unwrap().len(), bytes / 2);
    }
    let statistics = namespace.statistics(&mut rig).unwrap();
    assert_eq!(statistics.pairs, sizes.len() as u64);
    assert_eq!(statistics.value_bytes, sizes.iter().sum::<usize>() as u64);
    for number in 0..sizes.len() {
        namespace.delete(&mut rig, &[b'k', number as u8]).unwrap();
        assert_eq!(namespace.get(&mut rig, &[b'k', number as u8], 10), Err(KeyValueError::NotFound));
    }
    assert_eq!(namespace.delete(&mut rig, b"k"), Err(KeyValueError::NotFound));
}

fn conditions_and_offsets(medium: Medium) {
    let (mut rig, namespace) = fresh(medium);
    let put = |rig: &mut Rig, condition| namespace.put_if(rig, b"key", b"0123456789", condition, true);
    assert_eq!(put(&mut rig, PutCondition::IfExists), Err(KeyValueError::NotFound));
    assert_eq!(put(&mut rig, PutCondition::IfAbsent), Ok(()));
    assert_eq!(put(&mut rig, PutCondition::IfAbsent), Err(KeyValueError::Exists));
    assert_eq!(put(&mut rig, PutCondition::IfExists), Ok(()));
    let key = Key::new(b"key").unwrap();
    let done = rig.call(Call::get(&namespace.placement, namespace.nsid, &key, 4), &[], 3).unwrap();
    assert_eq!((done.result, &done.buffer[..]), (10, &b"456"[..]));
    let done = rig.call(Call::get(&namespace.placement, namespace.nsid, &key, 11), &[], 3).unwrap();
    assert_eq!((done.result, done.reply_bytes), (10, 0));
    let done = rig.call(Call::exists(&namespace.placement, namespace.nsid, &key), &[], 0).unwrap();
    assert_eq!(done.result, 10);
}

fn senseless_requests_are_refused(medium: Medium) {
    let (mut rig, namespace) = fresh(medium);
    let key = Key::new(b"key").unwrap();
    let put = Call::put(&namespace.placement, namespace.nsid, &key, 100, PutCondition::Always, false).unwrap();
    let changed = |change: &dyn Fn(&mut PairArguments)| {
        let mut arguments = PairArguments::decode(&put.arguments);
        change(&mut arguments);
        Call { arguments: arguments.encode(), ..put }
    };
    let hundred = [0; 100];
    let mut refused = |call: Call, payload: &[u8]| rig.call(call, payload, 0).unwrap_err();
    assert_eq!(refused(put, &hundred[..99]), KeyValueError::Malformed);
    assert_eq!(refused(changed(&|arguments| arguments.key_bytes = 0), &hundred), KeyValueError::KeySize);
    assert_eq!(refused(changed(&|arguments| arguments.key_bytes = 17), &hundred), KeyValueError::KeySize);
    assert_eq!(refused(changed(&|arguments| arguments.word = u32::MAX), &hundred), KeyValueError::ValueSize);
    assert_eq!(refused(changed(&|arguments| arguments.flags = 3), &hundred), KeyValueError::Malformed);
    assert_eq!(refused(changed(&|arguments| arguments.nsid = 999), &hundred), KeyValueError::NoNamespace);
    assert_eq!(refused(changed(&|arguments| arguments.nsid = 0), &hundred), KeyValueError::NoNamespace);
    assert_eq!(refused(Call { handler: wire::handler::STAT, ..put }, &[]), KeyValueError::Malformed);
    // It is the app's own.
    assert_eq!(refused(Call { handler: wire::handler::CARETAKER, ..put }, &[]), KeyValueError::Malformed);
    // Nothing came of any of them.
    assert_eq!(namespace.list_all(&mut rig, 4096).unwrap(), []);
}

fn lists_run_over_all_spus(medium: Medium) {
    let (mut rig, namespace) = fresh(medium);
    let mut keys: Vec<Key> = (0..500_u32).map(|number| Key::new(&number.to_le_bytes()).unwrap()).collect();
    for key in &keys {
        namespace.put(&mut rig, key.as_bytes(), b"v").unwrap();
    }
    let listed = namespace.list_all(&mut rig, 200).unwrap();
    keys.sort_by_key(|key| (namespace.placement.hash(key), *key));
    assert_eq!(listed, keys);
    let (from_there, more) = namespace.list(&mut rig, Some(&keys[123]), false, 100).unwrap();
    assert!(more && keys[123..].starts_with(&from_there) && !from_there.is_empty());
}

fn namespaces_come_and_go(medium: Medium) {
    let (mut rig, first) = fresh(medium);
    first.put(&mut rig, b"key", b"first").unwrap();
    for _ in 0..12 {
        let second = rig.create(3 << 20);
        assert_eq!(second.get(&mut rig, b"key", 10), Err(KeyValueError::NotFound));
        second.put(&mut rig, b"key", b"second").unwrap();
        let third = rig.create(3 << 20);
        third.put(&mut rig, b"key", b"third").unwrap();
        assert_eq!(second.get(&mut rig, b"key", 10).unwrap(), b"second");
        rig.delete_namespace(second.nsid);
        assert_eq!(second.get(&mut rig, b"key", 10), Err(KeyValueError::NoNamespace));
        assert_eq!(third.get(&mut rig, b"key", 10).unwrap(), b"third");
    }
    assert_eq!(first.get(&mut rig, b"key", 10).unwrap(), b"first");
}

/// Long work (a listing of an empty table, recovery, limbo) stays within a handler's budget.
#[test]
fn many_pairs_and_a_restart() {
    let media = FaultMedia::new(FaultOptions::new(1, 1 << 30));
    let mut rig = Rig::new(1, Box::new(media.store()));
    let namespace = rig.create(512 << 20);
    assert_eq!(namespace.list_all(&mut rig, 4096).unwrap(), []);
    for number in 0..20_000_u32 {
        namespace.put(&mut rig, &number.to_le_bytes(), &number.to_le_bytes()).unwrap();
    }
    for number in 0..10_000_u32 {
        namespace.put(&mut rig, &number.to_le_bytes(), b"new").unwrap();
    }
    namespace.flush(&mut rig).unwrap();
    for clean in [false, true] {
        if clean {
            rig.shutdown();
        }
        drop(rig);
        rig = Rig::new(1, Box::new(media.store()));
        let writes = media.statistics().writes;
        assert_eq!(namespace.get(&mut rig, &5_u32.to_le_bytes(), 10).unwrap(), b"new");
        assert!(!clean || media.statistics().writes == writes, "recovered after a clean end");
        assert_eq!(namespace.statistics(&mut rig).unwrap().pairs, 20_000);
        assert_eq!(namespace.list_all(&mut rig, 65_536).unwrap().len(), 20_000);
        assert_eq!(namespace.get(&mut rig, &15_000_u32.to_le_bytes(), 10).unwrap(), 15_000_u32.to_le_bytes());
    }
}

/// A second after the last change a namespace is as if it had been closed: killed then, it opens with nothing to recover, and so it is each time.
#[test]
fn a_crash_at_rest_leaves_nothing_to_recover() {
    let media = FaultMedia::new(FaultOptions::new(usize::from(SPUS), 1 << 30));
    let mut rig = Rig::new(SPUS, Box::new(media.store()));
    let namespace = rig.create(64 << 20);
    for round in 0..3_u32 {
        for number in 0..500_u32 {
            namespace.put(&mut rig, &number.to_le_bytes(), &(number + round).to_le_bytes()).unwrap();
        }
        namespace.delete(&mut rig, &(round + 100).to_le_bytes()).unwrap();
        // Nothing is left to do: the caretaker has ended.
        assert!(rig.run(1_000_000));
        drop(rig);
        rig = Rig::new(SPUS, Box::new(media.store()));
        let writes = media.statistics().writes;
        for number in [0, 7, 499_u32] {
            let found = namespace.get(&mut rig, &number.to_le_bytes(), 10).unwrap();
            assert_eq!(found, (number + round).to_le_bytes());
        }
        assert_eq!(namespace.get(&mut rig, &(round + 100).to_le_bytes(), 10), Err(KeyValueError::NotFound));
        assert_eq!(namespace.statistics(&mut rig).unwrap().pairs, 499);
        assert_eq!(media.statistics().writes, writes, "recovered");
    }
    // Killed with a change that is not at rest: it is recovered, and there.
    namespace.put(&mut rig, b"late", b"late").unwrap();
    drop(rig);
    rig = Rig::new(SPUS, Box::new(media.store()));
    assert_eq!(namespace.get(&mut rig, b"late", 10).unwrap(), b"late");
    assert_eq!(namespace.statistics(&mut rig).unwrap().pairs, 500);
}

/// Slow media, many requests at once, power cuts and kills: each key has its last flushed value or a later one.
#[test]
fn interleaved_requests_and_power_cuts() {
    for seed in 0..6_u64 {
        let mut random = willow_device::media::fault::Random::new(seed);
        let mut options = FaultOptions::new(usize::from(SPUS), 64 << 20);
        options.seed = seed;
        options.delayed_percent = 40;
        let mut media = FaultMedia::new(options);
        let mut rig = Rig::new(SPUS, Box::new(media.store()));
        let namespace = rig.create(6 << 20);
        let mut versions: BTreeMap<u32, Vec<Option<Vec<u8>>>> = (0..40).map(|key| (key, vec![None])).collect();
        for round in 0..6_u64 {
            // For each key, requests one after the other; all keys at once.
            let mut waiting: Vec<(u32, u64, Option<Vec<u8>>)> = Vec::new();
            for step in 0..6_u64 {
                for key in 0..40_u32 {
                    let name = Key::new(&key.to_le_bytes()).unwrap();
                    let (call, new) = if random.below(4) > 0 {
                        let bytes = random.below(6000) as usize;
                        let new = value(round << 32 | step << 16 | u64::from(key), bytes);
                        let call = Call::put(
                            &namespace.placement,
                            namespace.nsid,
                            &name,
                            bytes as u32,
                            PutCondition::Always,
                            false,
                        );
                        (call.unwrap(), Some(new))
                    } else {
                        (Call::delete(&namespace.placement, namespace.nsid, &name, false), None)
                    };
                    let tag = rig.submit(call, new.as_deref().unwrap_or(&[]), 0);
                    waiting.push((key, tag, new.clone()));
                    versions.get_mut(&key).unwrap().push(new);
                }
                if random.below(8) == 0 {
                    break;
                }
                for (key, tag, _) in waiting.drain(..) {
                    let done = rig.wait(tag);
                    match outcome(&done) {
                        Ok(()) | Err(KeyValueError::NotFound) => {}
                        other => panic!("seed {seed}, key {key}: {other:?}"),
                    }
                }
                if random.below(3) == 0 {
                    namespace.flush(&mut rig).unwrap();
                    for past in versions.values_mut() {
                        past.drain(..past.len() - 1);
                    }
                }
            }
            rig.run(random.below(30) as u32);
            let cut = random.below(3) > 0;
            if cut {
                media = media.power_cut(&mut Choices::seeded(random.below(1 << 40)));
            }
            drop(rig);
            rig = Rig::new(SPUS, Box::new(media.store()));
            for (key, past) in &mut versions {
                let found = match namespace.get(&mut rig, &key.to_le_bytes(), 8000) {
                    Ok(value) => Some(value),
                    Err(KeyValueError::NotFound) => None,
                    Err(other) => panic!("seed {seed}: {other:?}"),
                };
                let lengths = |past: &[Option<Vec<u8>>]| -> Vec<Option<usize>> {
                    past.iter().map(|version| version.as_ref().map(Vec::len)).collect()
                };
                assert!(
                    past.contains(&found),
                    "seed {seed}, round {round}, key {key}, cut {cut}: {:?} is none of {:?}",
                    found.as_ref().map(Vec::len),
                    lengths(past)
                );
                *past = vec![found];
            }
            let pairs = versions.values().filter(|past| past[0].is_some()).count();
            assert_eq!(namespace.list_all(&mut rig, 4096).unwrap().len(), pairs);
            assert_eq!(namespace.statistics(&mut rig).unwrap().pairs, pairs as u64);
        }
    }
}

/// The disk under the media is full: an error, nothing lost, and it goes on when there is room.
#[test]
fn full_media() {
    let mut options = FaultOptions::new(1, 64 << 20);
    options.capacity_bytes = Some(300 << 10);
    let media = FaultMedia::new(options);
    let mut rig = Rig::new(1, Box::new(media.store()));
    let namespace = rig.create(16 << 20);
    let mut stored = 0_u32;
    let mut refused = 0;
    for number in 0..400_u32 {
        match namespace.put(&mut rig, &number.to_le_bytes(), &value(u64::from(number), 2000)) {
            Ok(()) => {
                assert_eq!(refused, 0, "small things may fit behind a large one, equal ones do not");
                stored += 1;
            }
            Err(KeyValueError::Capacity) => refused += 1,
            Err(other) => panic!("{other:?}"),
        }
    }
    assert!(stored > 50 && refused > 50, "{stored} {refused}");
    for number in 0..stored {
        let found = namespace.get(&mut rig, &number.to_le_bytes(), 4000).unwrap();
        assert!(found == value(u64::from(number), 2000));
    }
    media.set_capacity_bytes(None);
    for number in stored..400 {
        namespace.put(&mut rig, &number.to_le_bytes(), &value(u64::from(number), 2000)).unwrap();
    }
    assert_eq!(namespace.list_all(&mut rig, 4096).unwrap().len(), 400);
    for number in 0..400_u32 {
        let found = namespace.get(&mut rig, &number.to_le_bytes(), 4000).unwrap();
        assert!(found == value(u64::from(number), 2000), "{number}");
    }
}

fn reply(rig: &mut Rig, call: ItemCall, payload: &[u8], room: usize) -> Result<(u32, Vec<u8>), KeyValueError> {
    rig.call(call, payload, room).map(|done| (done.result, done.buffer))
}

/// Versions, expiry, touches, sweeps and clears through the handlers.
fn items(medium: Medium) {
    let (mut rig, namespace) = fresh(medium);
    let (placement, nsid) = (namespace.placement, namespace.nsid);
    let key = Key::new(b"item").unwrap();
    let put = |rig: &mut Rig, value: &[u8], put: ItemPut| -> Result<u64, KeyValueError> {
        // The value behind five bytes that are not its.
        let payload = [b"other", value].concat();
        let put = ItemPut { value_bytes: value.len() as u32, offset: 5, ..put };
        let call = ItemCall::put_item(&placement, nsid, &key, &put)?;
        let (_, version) = reply(rig, call, &payload, 8)?;
        Ok(u64::from_le_bytes(version[..8].try_into().unwrap()))
    };
    let get = |rig: &mut Rig, now_s: u32| -> Result<(ItemHead, Vec<u8>), KeyValueError> {
        let (length, bytes) = reply(rig, ItemCall::get_item(&placement, nsid, &key, now_s, 0, 20), &[], 120)?;
        let head = ItemHead::decode(bytes[4..20].try_into().unwrap());
        assert_eq!(head.value_bytes, length);
        Ok((head, bytes[20..20 + length as usize].to_vec()))
    };
    let first = put(&mut rig, b"one", ItemPut { durable: true, ..ItemPut::default() }).unwrap();
    assert_eq!(get(&mut rig, 0), Ok((ItemHead { version: first, expiry: 0, value_bytes: 3 }, b"one".to_vec())));
    let condition = ItemCondition::IfVersion(first + 1);
    assert_eq!(put(&mut rig, b"two", ItemPut { condition, ..ItemPut::default() }), Err(KeyValueError::Changed));
    let condition = ItemCondition::IfVersion(first);
    let second = put(&mut rig, b"two", ItemPut { condition, expiry: 100, ..ItemPut::default() }).unwrap();
    assert_ne!(first, second);
    assert_eq!(get(&mut rig, 99).unwrap().0, ItemHead { version: second, expiry: 100, value_bytes: 3 });
    assert_eq!(get(&mut rig, 100), Err(KeyValueError::NotFound));
    // Commands that tell no time go by what was told last.
    assert_eq!(namespace.get(&mut rig, b"item", 10), Err(KeyValueError::NotFound));
    let condition = ItemCondition::IfExists;
    assert_eq!(put(&mut rig, b"x", ItemPut { condition, ..ItemPut::default() }), Err(KeyValueError::NotFound));
    assert_eq!(get(&mut rig, 99).unwrap().1, b"two");
    let (length, head) = reply(&mut rig, ItemCall::touch(&placement, nsid, &key, 200, 99, true), &[], 16).unwrap();
    assert_eq!(length, 3);
    assert_eq!(
        ItemHead::decode(head[..16].try_into().unwrap()),
        ItemHead { version: second, expiry: 200, value_bytes: 3 }
    );
    assert_eq!(get(&mut rig, 199).unwrap().1, b"two");
    let wrong = ItemCall::delete_item(&placement, nsid, &key, Some(first), 199, false);
    assert_eq!(reply(&mut rig, wrong, &[], 0), Err(KeyValueError::Changed));
    let spu = placement.spu(placement.hash(&key));
    let sweep_all = |rig: &mut Rig, now_s: u32| {
        let mut from = 0;
        loop {
            from = reply(rig, ItemCall::sweep(nsid, spu, from, now_s), &[], 0).unwrap().0;
            if from == 0 {
                return;
            }
        }
    };
    sweep_all(&mut rig, 199);
    assert_eq!(namespace.statistics(&mut rig).unwrap().pairs, 1);
    sweep_all(&mut rig, 200);
    assert_eq!(namespace.statistics(&mut rig).unwrap().pairs, 0);
    for number in 0..60 {
        namespace.put(&mut rig, &[number], b"gone").unwrap();
    }
    for spu in 0..SPUS {
        reply(&mut rig, ItemCall::clear(nsid, spu), &[], 0).unwrap();
    }
    assert_eq!(namespace.list_all(&mut rig, 4096), Ok(vec![]));
    assert_eq!(namespace.statistics(&mut rig).unwrap().pairs, 0);
    put(&mut rig, b"after", ItemPut::default()).unwrap();
    assert_eq!(namespace.list_all(&mut rig, 4096), Ok(vec![key]));
}

fn senseless_items_are_refused(medium: Medium) {
    let (mut rig, namespace) = fresh(medium);
    let (placement, nsid) = (namespace.placement, namespace.nsid);
    let key = Key::new(b"item").unwrap();
    let put = |change: &dyn Fn(&mut ItemArguments)| {
        let put = ItemPut { value_bytes: 10, ..ItemPut::default() };
        let call = ItemCall::put_item(&placement, nsid, &key, &put).unwrap();
        let mut arguments = ItemArguments::decode(&call.arguments);
        change(&mut arguments);
        Call { arguments: arguments.encode(), ..call }
    };
    let mut refused = |call: ItemCall, room: usize| rig.call(call, &[0; 10], room).unwrap_err();
    assert_eq!(refused(put(&|arguments| arguments.pair.reply_offset = 1), 0), KeyValueError::Malformed);
    assert_eq!(refused(put(&|arguments| arguments.pair.reply_offset = u32::MAX), 0), KeyValueError::Malformed);
    assert_eq!(refused(put(&|arguments| arguments.pair.word = u32::MAX), 0), KeyValueError::ValueSize);
    assert_eq!(refused(put(&|arguments| arguments.pair.flags = 33), 0), KeyValueError::Malformed);
    assert_eq!(refused(put(&|arguments| arguments.pair.key_bytes = 0), 0), KeyValueError::KeySize);
    let get = ItemCall::get_item(&placement, nsid, &key, 0, 0, 16);
    assert_eq!(refused(get, 15), KeyValueError::Malformed);
    let mut arguments = ItemArguments::decode(&get.arguments);
    arguments.pair.reply_offset = 15;
    assert_eq!(refused(Call { arguments: arguments.encode(), ..get }, 100), KeyValueError::Malformed);
    let sweep = ItemCall::sweep(nsid, 0, u32::MAX, 1);
    assert_eq!(rig.call(sweep, &[], 0).map(|done| done.result), Ok(0), "behind the last bucket there is nothing");
}

/// A namespace that was full when it was cleared takes as much again, by plain puts alone.
#[test]
fn plain_puts_take_the_room_of_what_was_cleared() {
    let mut rig = Rig::new(SPUS, Box::new(RamStore::new(usize::from(SPUS), 1 << 30).unwrap()));
    let namespace = rig.create(6 << 20);
    let data = value(1, 20_000);
    let fill = |rig: &mut Rig, name: &str| {
        (0..u32::MAX)
            .take_while(|number| namespace.put(rig, format!("{name}{number}").as_bytes(), &data).is_ok())
            .count()
    };
    let stored = fill(&mut rig, "before");
    assert!(stored > 50, "{stored}");
    assert_eq!(namespace.put(&mut rig, b"more", &data), Err(KeyValueError::Capacity));
    for spu in 0..SPUS {
        rig.call(ItemCall::clear(namespace.nsid, spu), &[], 0).unwrap();
    }
    // As many, but for where the keys of the one or the other make an SPU full first.
    let again = fill(&mut rig, "after");
    assert!(again * 2 > stored, "{again} after {stored}");
}

/// Batches and scans through the handlers, against a model; a batch that fails in the middle says where.
fn batches_and_scans(medium: Medium) {
    let (mut rig, namespace) = fresh(medium);
    let (placement, nsid) = (namespace.placement, namespace.nsid);
    let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    let mut batches: Vec<PutBatch> = (0..SPUS).map(PutBatch::new).collect();
    let mut full = Vec::new();
    for number in 0..300_u32 {
        let name = format!("key{number}").into_bytes();
        let key = Key::new(&name).unwrap();
        let value = value(number.into(), number as usize * 37 % 900);
        let spu = placement.spu(placement.hash(&key));
        let batch = &mut batches[usize::from(spu)];
        let how = (ItemCondition::Always, 0);
        if !batch.add(&placement, &key, &value, how, 16 << 10).unwrap() {
            full.push(std::mem::replace(batch, PutBatch::new(spu)));
            assert!(batch.add(&placement, &key, &value, how, 16 << 10).unwrap());
        }
        model.insert(name, value);
    }
    batches.extend(full);
    assert!(batches.len() > usize::from(SPUS));
    for batch in &batches {
        let done = rig.call(batch.call(nsid, 0, true), &batch.payload, 0).unwrap();
        assert_eq!(done.result, batch.count());
    }
    let keys: Vec<Key> = model.keys().map(|key| Key::new(key).unwrap()).chain([Key::new(b"none").unwrap()]).collect();
    for room in [200, 1500, 9000, 200_000] {
        let mut found = BTreeMap::new();
        let mut wanted: Vec<usize> = (0..keys.len()).collect();
        while !wanted.is_empty() {
            let batches = GetBatch::sort(&placement, &keys, wanted.drain(..));
            for batch in &batches {
                // Payload and reply in one buffer, one behind the other.
                let at = batch.payload.len();
                let done = rig.call(batch.call(nsid, 0, at as u32), &batch.payload, at + room).unwrap();
                assert!(done.result > 0, "no progress");
                for (member, gotten) in batch.answers(&done.buffer[at..], done.result).unwrap() {
                    match gotten {
                        Gotten::Found(head, value) => {
                            assert_eq!(head.value_bytes as usize, value.len());
                            found.insert(keys[member].as_bytes().to_vec(), value);
                        }
                        Gotten::TooLong(head) => {
                            assert!(head.value_bytes as usize + 24 > room);
                            let key = keys[member].as_bytes();
                            found.insert(key.to_vec(), namespace.get(&mut rig, key, 1000).unwrap());
                        }
                        Gotten::Failed(error) => assert_eq!((error, member), (KeyValueError::NotFound, 300)),
                    }
                }
                wanted.extend(&batch.members[done.result as usize..]);
            }
        }
        assert!(found == model, "room {room}");
    }
    for (from, to) in [("", ""), ("key1", "key2"), ("key25", ""), ("", "key10"), ("l", "m")] {
        let bound = |text: &str| Key::new(text.as_bytes()).ok();
        let (mut scan, mut step) = KeyScan::start(placement, nsid, bound(from).as_ref(), bound(to).as_ref());
        let mut found = Vec::new();
        while let ScanStep::Call(call) = step {
            let done = rig.call(call, &[], 200).unwrap();
            let (keys, next) = scan.answered(&done.buffer[..done.result as usize]).unwrap();
            found.extend(keys.iter().map(|key| key.as_bytes().to_vec()));
            step = next;
        }
        found.sort();
        let (from, to) = (from.as_bytes(), to.as_bytes());
        let inside = |key: &&Vec<u8>| key[..] >= *from && (to.is_empty() || key[..] < *to);
        assert_eq!(found.iter().collect::<Vec<_>>(), model.keys().filter(inside).collect::<Vec<_>>());
    }
    // The third of a batch fails: two are stored, the fourth is not.
    let of_one: Vec<Key> = (0..100_u32)
        .map(|number| Key::new(format!("b{number}").as_bytes()).unwrap())
        .filter(|key| placement.spu(placement.hash(key)) == 1)
        .take(4)
        .collect();
    let mut batch = PutBatch::new(1);
    for (index, key) in of_one.iter().enumerate() {
        let condition = if index == 2 { ItemCondition::IfExists } else { ItemCondition::IfAbsent };
        assert!(batch.add(&placement, key, b"v", (condition, 0), 1000).unwrap());
    }
    let tag = rig.submit(batch.call(nsid, 0, true), &batch.payload, 0);
    let done = rig.wait(tag);
    assert_eq!((outcome(&done), done.result), (Err(KeyValueError::NotFound), 2));
    let there: Vec<bool> = of_one.iter().map(|key| namespace.get(&mut rig, key.as_bytes(), 10).is_ok()).collect();
    assert_eq!(there, [true, true, false, false]);
    // The same again, past conditions that are not met: as far as the reply has room to tell of them.
    let at = batch.payload.len();
    let call = batch.call_past_unmet(nsid, 0, true, at as u32);
    let tag = rig.submit(call, &batch.payload, at + 8);
    let done = rig.wait(tag);
    assert_eq!(outcome(&done), Err(KeyValueError::Exists));
    assert_eq!(batch.unmet(&done.buffer[at..], done.result), Some((1, vec![(0, KeyValueError::Exists)])));
    let done = rig.call(call, &batch.payload, at + batch.unmet_bytes()).unwrap();
    let unmet = [(0, KeyValueError::Exists), (1, KeyValueError::Exists), (2, KeyValueError::NotFound)];
    assert_eq!(batch.unmet(&done.buffer[at..], done.result), Some((4, unmet.to_vec())));
    assert_eq!(namespace.get(&mut rig, of_one[3].as_bytes(), 10).unwrap(), b"v");
    assert!(namespace.get(&mut rig, of_one[2].as_bytes(), 10).is_err());
    let wild = batch.call_past_unmet(nsid, 0, true, u32::MAX);
    assert_eq!(rig.call(wild, &batch.payload, 1000).unwrap_err(), KeyValueError::Exists);
    // Batches whose parts go past what came.
    let mut short = batch.clone();
    short.payload.truncate(60);
    assert_eq!(rig.call(short.call(nsid, 0, false), &short.payload, 0).unwrap_err(), KeyValueError::Exists);
    short.payload.truncate(50);
    assert_eq!(rig.call(short.call(nsid, 0, false), &short.payload, 0).unwrap_err(), KeyValueError::Malformed);
    let gets = GetBatch::sort(&placement, &of_one, 0..4);
    assert_eq!(rig.call(gets[0].call(nsid, 0, 0), &gets[0].payload[..127], 0).unwrap_err(), KeyValueError::Malformed);
    assert_eq!(rig.call(gets[0].call(nsid, 0, u32::MAX), &gets[0].payload, 0).unwrap().result, 0);
}
