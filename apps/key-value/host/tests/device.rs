//! The app in a whole device: this library's requests through bridge, SPU-OS and media, which take their time, interleave,
//! and lose power.

mod rig;

use key_value_host::wire::{self, PairArguments};
use key_value_host::{Call, Key, KeyValueError, PutCondition};
use rig::{Namespace, Rig, outcome};
use std::collections::BTreeMap;
use willow_device::media::fault::{Choices, FaultMedia, FaultOptions};
use willow_device::media::ram::RamStore;

const SPUS: u16 = 3;

fn fresh() -> (Rig, Namespace) {
    let mut rig = Rig::new(SPUS, Box::new(RamStore::new(usize::from(SPUS), 1 << 30).unwrap()));
    let namespace = rig.create(96 << 20);
    (rig, namespace)
}

fn value(seed: u64, bytes: usize) -> Vec<u8> {
    (0..bytes as u64).map(|at| (seed.wrapping_mul(0x9e37_79b9) >> (at % 24)) as u8 ^ at as u8).collect()
}

#[test]
fn pairs_of_all_sizes() {
    let (mut rig, namespace) = fresh();
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

#[test]
fn conditions_and_offsets() {
    let (mut rig, namespace) = fresh();
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

#[test]
fn senseless_requests_are_refused() {
    let (mut rig, namespace) = fresh();
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
    // Nothing came of any of them.
    assert_eq!(namespace.list_all(&mut rig, 4096).unwrap(), []);
}

#[test]
fn lists_run_over_all_spus() {
    let (mut rig, namespace) = fresh();
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

#[test]
fn namespaces_come_and_go() {
    let (mut rig, first) = fresh();
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
}
