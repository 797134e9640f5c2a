//! What items promise, whatever way the endpoint goes. It panics where that is broken.

use crate::hre::{Hre, HreError, ItemCondition, StoreMany};
use crate::kv::StoreOptions;
use crate::{KvClient, StoreCondition};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;

thread_local! {
    static NOW_S: Cell<u32> = const { Cell::new(1) };
}

fn now_s() -> u32 {
    NOW_S.get()
}

fn pattern(bytes: usize, seed: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 11) as u8).collect()
}

/// Checks a namespace, and clears it.
pub async fn items_are_kept(hre: Arc<dyn Hre>, nsid: u32, spus: u16) {
    NOW_S.set(1);
    let kv = KvClient::open(hre, nsid).await.expect("the namespace").with_clock(now_s);
    for bytes in [0_usize, 1, 1000, 16 << 10, (16 << 10) + 1, 70_000, 1 << 20] {
        let name = format!("item {bytes}");
        let options = StoreOptions { expiry: 100, durable: bytes < 5000, ..StoreOptions::default() };
        let version = kv.store_item(name.as_bytes(), &pattern(bytes, 3), options).await.expect("stores");
        let item = kv.retrieve_item(name.as_bytes()).await.expect("reads").expect("is there");
        assert!(item.value == pattern(bytes, 3), "{bytes} bytes");
        assert_eq!((item.version, item.expiry), (version, 100));
    }
    compare_and_swap(&kv).await;
    expire(&kv, spus).await;
    together(&kv).await;
    the_later_one_stays(&kv).await;
    kv.clear().await.expect("clears");
    assert_eq!(kv.list_page(None).await.expect("lists"), Vec::<Vec<u8>>::new());
    assert_eq!(kv.retrieve_item(b"item 1").await.expect("reads"), None);
    let long = kv.item_bytes_max() as usize + 1;
    let refused = kv.store_item(b"long", &vec![0; long], StoreOptions::default()).await;
    assert!(matches!(refused, Err(HreError::ValueSize { .. })), "{refused:?}");
    assert!(matches!(kv.store_item(b"", b"", StoreOptions::default()).await, Err(HreError::KeySize)));
}

async fn compare_and_swap(kv: &KvClient) {
    let on = |condition| StoreOptions { condition, durable: true, ..StoreOptions::default() };
    let first = kv.store_item(b"swap", b"one", on(ItemCondition::IfAbsent)).await.expect("there is none");
    assert!(matches!(kv.store_item(b"swap", b"x", on(ItemCondition::IfAbsent)).await, Err(HreError::KeyExists)));
    assert!(matches!(kv.store_item(b"none", b"x", on(ItemCondition::IfExists)).await, Err(HreError::KeyNotFound)));
    let none = kv.store_item(b"none", b"x", on(ItemCondition::IfVersion(first))).await;
    assert!(matches!(none, Err(HreError::KeyNotFound)), "{none:?}");
    let second = kv.store_item(b"swap", b"two", on(ItemCondition::IfVersion(first))).await.expect("is the one");
    assert_ne!(first, second);
    let late = kv.store_item(b"swap", b"late", on(ItemCondition::IfVersion(first))).await;
    assert!(matches!(late, Err(HreError::Changed)), "{late:?}");
    assert!(matches!(kv.delete_item(b"swap", Some(first), false).await, Err(HreError::Changed)));
    // What knows of no versions makes one all the same.
    kv.store(b"swap", b"three".to_vec(), StoreCondition::Always).await.expect("stores");
    assert!(matches!(kv.delete_item(b"swap", Some(second), false).await, Err(HreError::Changed)));
    let third = kv.retrieve_item(b"swap").await.expect("reads").expect("is there");
    assert_eq!(third.value, b"three");
    assert!(kv.delete_item(b"swap", Some(third.version), true).await.expect("is the one"));
    assert!(!kv.delete_item(b"swap", None, true).await.expect("is gone"));
}

async fn expire(kv: &KvClient, spus: u16) {
    NOW_S.set(99);
    assert!(kv.retrieve_item(b"item 1000").await.expect("reads").is_some());
    assert!(kv.touch(b"item 1000", 300, true).await.expect("touches"));
    NOW_S.set(100);
    assert_eq!(kv.retrieve_item(b"item 1").await.expect("reads"), None);
    assert!(!kv.touch(b"item 1", 300, false).await.expect("has ended"));
    assert_eq!(
        kv.retrieve(b"item 1").await.expect("reads"),
        None,
        "a command without a time goes by what was told last"
    );
    assert_eq!(kv.retrieve_item(b"item 1000").await.expect("reads").map(|item| item.expiry), Some(300));
    for spu in 0..spus {
        let mut from = 0;
        while let Some(next) = kv.sweep(spu, from).await.expect("sweeps") {
            from = next;
        }
    }
    // They are gone, whatever the time.
    NOW_S.set(1);
    assert_eq!(kv.retrieve_item(b"item 1").await.expect("reads"), None);
    assert!(kv.sweep(spus, 0).await.is_err());
}

async fn together(kv: &KvClient) {
    let mut model = BTreeMap::new();
    let mut items = Vec::new();
    for number in 0..400_usize {
        let name = format!("many {}", number % 350);
        let value = pattern(if number % 90 == 0 { 300_000 } else { number * 7 % 2000 }, number);
        items.push(StoreMany::new(name.as_bytes(), value.clone()).expect("a key"));
        model.insert(name.into_bytes(), value);
    }
    let mut absent = StoreMany::new(b"many 5", b"never".to_vec()).expect("a key");
    absent.condition = ItemCondition::IfAbsent;
    items.insert(200, absent);
    let outcomes = kv.store_many(items, true).await.expect("the way is good");
    assert_eq!(outcomes.len(), 401);
    for (index, outcome) in outcomes.iter().enumerate() {
        match (index, outcome) {
            (200, Err(HreError::KeyExists)) => {}
            (200, other) => panic!("{other:?}"),
            (_, outcome) => assert!(outcome.is_ok(), "{index}: {outcome:?}"),
        }
    }
    let names: Vec<&[u8]> = model.keys().map(|name| &name[..]).chain([&b"many none"[..]]).collect();
    let found = kv.retrieve_many(&names).await.expect("the way is good");
    assert_eq!(found.len(), names.len());
    for (name, found) in names.iter().zip(found) {
        let value = found.expect("is read").map(|item| item.value);
        assert!(value.as_ref() == model.get(*name), "{:?}", String::from_utf8_lossy(name));
    }
    let expected: Vec<Vec<u8>> =
        model.keys().filter(|name| name[..] >= b"many 2"[..] && name[..] < b"many 3"[..]).cloned().collect();
    assert_eq!(kv.range(b"many 2", b"many 3", 1000).await.expect("scans"), expected);
    assert_eq!(kv.range(b"many 2", b"many 3", 7).await.expect("scans"), expected[..7]);
    assert_eq!(kv.range(b"many 2", b"", 3).await.expect("scans"), expected[..3]);
    assert_eq!(kv.range(b"zzz", b"", 3).await.expect("scans"), Vec::<Vec<u8>>::new());
    assert!(kv.store_many(Vec::new(), true).await.expect("nothing to do").is_empty());
    assert!(kv.retrieve_many(&[]).await.expect("nothing to do").is_empty());
}

/// More of each processor than one request takes, keys several times, and some fail in between: of each key the last one that may be stored
/// stays.
async fn the_later_one_stays(kv: &KvClient) {
    const KEYS: usize = 100;
    let mut items = Vec::new();
    for number in 0..5 * KEYS {
        let name = format!("again {}", number % KEYS);
        items.push(StoreMany::new(name.as_bytes(), pattern(16 << 10, number)).expect("a key"));
    }
    let refused: Vec<usize> = (KEYS..2 * KEYS).step_by(3).collect();
    for index in &refused {
        items[*index].condition = ItemCondition::IfAbsent;
    }
    let outcomes = kv.store_many(items, false).await.expect("the way is good");
    for (index, outcome) in outcomes.iter().enumerate() {
        match outcome {
            Err(HreError::KeyExists) => assert!(refused.contains(&index), "{index} is refused"),
            outcome => assert!(outcome.is_ok() && !refused.contains(&index), "{index}: {outcome:?}"),
        }
    }
    let names: Vec<String> = (0..KEYS).map(|number| format!("again {number}")).collect();
    let names: Vec<&[u8]> = names.iter().map(String::as_bytes).collect();
    for (number, found) in kv.retrieve_many(&names).await.expect("the way is good").into_iter().enumerate() {
        let value = found.expect("is read").map(|item| item.value);
        assert!(value == Some(pattern(16 << 10, 4 * KEYS + number)), "again {number} is not what came last");
    }
}
