//! The app `btree` in a device, in the sandbox and with the budget of a user's app: a tree of several levels does what the model does, on each medium; a
//! full tree still deletes; nonsense is refused; what lies damaged in a bank is told.

#[path = "support/world.rs"]
mod world;

use btree_host::wire::{self, KEY_BYTES, Key, PAIRS_MAX, RANGE_AFTER, RANGE_KEYS_ONLY, Statistics, handler};
use btree_host::{Call, Layout, Merge, Page, Tree};
use std::collections::BTreeMap;
use willow_device::{BuiltInApp, DeviceConfig, RpcOutcome};
use willow_on_flash::{Medium, on_each_medium};
use world::World;

const SPUS: u16 = 2;
/// Whose it is, and its name then.
const USER: u32 = 1000;
const APP: &str = "u1000-btree";
/// What a run of a user's app has.
const BUDGET: u64 = 400_000;

struct Device {
    world: World,
    tree: Tree,
}

impl Device {
    fn new(medium: Medium, layout: Layout, name: &str, bank_bytes: u64) -> Device {
        let config = DeviceConfig {
            spus: SPUS,
            namespace_bytes: 0,
            kv_namespace_bytes: 0,
            user_instruction_budget: BUDGET,
            ..DeviceConfig::default()
        };
        let (store, mut apps) = medium.banks(SPUS, 64 << 20);
        apps.push(BuiltInApp::Wasm(willow_apps::BASE_IO_WASM));
        let mut world = World::open(config, store, apps);
        world.install_for(USER, willow_apps::BTREE_WASM);
        let mut device = Device { world, tree: Tree { number: btree_host::number(name), layout, spus: SPUS } };
        for spu in device.tree.parts() {
            let call = device.tree.create(spu, name, bank_bytes);
            assert_eq!(device.call(&call, 0).0, 0);
        }
        device
    }

    /// Status, result and reply.
    fn call(&mut self, call: &Call, reply_bytes: usize) -> (u32, u32, Vec<u8>) {
        let (arguments, payload) = if reply_bytes > 0 { (&call.body[..], &[][..]) } else { (&[][..], &call.body[..]) };
        let done = self.world.call((APP, call.handler, call.spu), arguments, payload, reply_bytes);
        let RpcOutcome::Answered { status } = done.outcome else { panic!("{:?}", done.outcome) };
        (status, done.result, done.buffer)
    }

    fn put(&mut self, pairs: &[(Key, Vec<u8>)]) -> u32 {
        let tree = self.tree;
        for spu in 0..SPUS {
            let own: Vec<(Key, &[u8])> = pairs
                .iter()
                .filter(|(key, _)| tree.spu_of(key) == spu)
                .map(|(key, value)| (*key, &value[..]))
                .collect();
            for some in own.chunks(PAIRS_MAX as usize / 4) {
                let status = self.call(&tree.put(spu, some), 0).0;
                if status != 0 {
                    return status;
                }
            }
        }
        0
    }

    fn delete(&mut self, key: &Key) -> (u32, u32) {
        let call = self.tree.delete(self.tree.spu_of(key), &[*key]);
        let (status, deleted, _) = self.call(&call, 0);
        (status, deleted)
    }

    fn get(&mut self, key: &Key) -> Option<Vec<u8>> {
        match self.call(&self.tree.get(key), wire::VALUE_BYTES_MAX as usize) {
            (0, bytes, reply) => Some(reply[..bytes as usize].to_vec()),
            (wire::STATUS_NOT_FOUND, ..) => None,
            (status, ..) => panic!("status {status}"),
        }
    }

    fn range(&mut self, from: Key, keys_only: bool, reply_bytes: usize) -> Vec<(Key, Vec<u8>)> {
        let mut merge = Merge::new(&self.tree.parts(), from);
        let mut found = Vec::new();
        let kind = if keys_only { RANGE_KEYS_ONLY } else { 0 };
        loop {
            for (spu, from, is_after) in merge.wanted() {
                let flags = 1000 | kind | if is_after { RANGE_AFTER } else { 0 };
                let (status, pairs, reply) = self.call(&self.tree.range(spu, &from, flags), reply_bytes);
                assert_eq!(status, 0);
                let page = Page::decode(&reply, keys_only).expect("a sound page");
                assert_eq!(page.pairs.len(), pairs as usize);
                merge.give(spu, page);
            }
            match merge.next_pair() {
                Some(pair) => found.push((pair.key, pair.value)),
                None => return found,
            }
        }
    }

    fn height(&mut self) -> u32 {
        let parts = self.tree.parts();
        let of = |spu| self.call(&self.tree.stat(spu), Statistics::BYTES).2;
        parts.into_iter().map(of).map(|reply| btree_host::statistics(&reply).expect("sound").height).max().unwrap_or(0)
    }
}

fn key(number: u64) -> Key {
    let mut key = [0; KEY_BYTES];
    // Neighbours are apart, and the order is that of the numbers.
    key[..8].copy_from_slice(&number.to_be_bytes());
    key
}

fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

fn trees_of_several_levels_do_what_the_model_does(medium: Medium) {
    for layout in [Layout::Partitioned, Layout::Striped] {
        let mut device = Device::new(medium, layout, "levels", 16 << 20);
        let mut model = BTreeMap::new();
        let mut state = 3u64;
        let value = |state: &mut u64| vec![random(state) as u8; (random(state) % 60) as usize];
        // Rising keys, then keys in no order: enough for three levels of a striped tree.
        let rising: Vec<_> = (0..7000).map(|at| (key(at * 1000), value(&mut state))).collect();
        let drawn: Vec<_> = (0..1500).map(|_| (key(random(&mut state) % 7_000_000), value(&mut state))).collect();
        for pairs in [rising, drawn] {
            assert_eq!(device.put(&pairs), 0);
            model.extend(pairs);
        }
        assert_eq!(device.height(), 2);
        let all: Vec<_> = model.clone().into_iter().collect();
        assert_eq!(device.range([0; KEY_BYTES], false, 60_000), all);
        for (key, value) in all.iter().step_by(97) {
            assert_eq!(device.get(key).as_ref(), Some(value));
            let keys: Vec<_> = model.range(*key..).take(5).map(|(key, _)| *key).collect();
            let found = device.range(*key, true, 20_000);
            assert_eq!(found.iter().take(5).map(|(key, _)| *key).collect::<Vec<_>>(), keys);
        }
        assert_eq!(device.get(&key(1)), model.get(&key(1)).cloned());
        // Most go, in no order; the rest stays as it was.
        let mut keys: Vec<Key> = model.keys().copied().collect();
        for _ in 0..1500 {
            let gone = keys.swap_remove(random(&mut state) as usize % keys.len());
            assert_eq!((device.delete(&gone), device.delete(&gone)), ((0, 1), (0, 0)));
            model.remove(&gone);
        }
        assert_eq!(device.range([0; KEY_BYTES], false, 60_000), model.clone().into_iter().collect::<Vec<_>>());
    }
}

fn a_full_tree_refuses_puts_and_deletes(medium: Medium) {
    for layout in [Layout::Partitioned, Layout::Striped] {
        let mut device = Device::new(medium, layout, "full", 1 << 20);
        let mut stored = Vec::new();
        let mut number = 0;
        let status = loop {
            let pair = (key(number), vec![number as u8; 3000]);
            number += 1;
            match device.put(std::slice::from_ref(&pair)) {
                0 => stored.push(pair),
                status => break status,
            }
        };
        assert_eq!(status, wire::STATUS_FULL);
        assert!(stored.len() > 200, "only {} pairs", stored.len());
        assert_eq!(device.range([0; KEY_BYTES], false, 60_000), stored, "what was refused has changed nothing");
        // Each deletion finds room, and makes some: a value as long fits again.
        for (key, _) in &stored {
            assert_eq!(device.delete(key), (0, 1));
        }
        assert_eq!((device.range([0; KEY_BYTES], false, 60_000), device.height()), (vec![], 0));
        for pair in &stored {
            assert_eq!(device.put(std::slice::from_ref(pair)), 0, "all that it had fits again");
        }
    }
}

on_each_medium!(trees_of_several_levels_do_what_the_model_does, a_full_tree_refuses_puts_and_deletes);

#[test]
fn nonsense_is_refused_and_changes_nothing() {
    let mut device = Device::new(Medium::NvMemory, Layout::Partitioned, "sense", 1 << 20);
    let tree = device.tree;
    let first = key(1);
    let spu = tree.spu_of(&first);
    assert_eq!(device.put(&[(first, b"value".to_vec())]), 0);
    let put = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut call = tree.put(spu, &[(key(1), b"other"), (key(3), b"more")]);
        change(&mut call.body);
        call
    };
    let malformed = [
        put(&|body| body.truncate(7)),
        put(&|body| body.truncate(body.len() - 1)),
        put(&|body| body.push(0)),
        put(&|body| body[4] = 0),
        put(&|body| body[4..8].copy_from_slice(&u32::MAX.to_le_bytes())),
        put(&|body| body[4] = 65),
        // The second value is longer than there may be, or than there is.
        put(&|body| body[8 + 24 + 16..][..4].copy_from_slice(&5000u32.to_le_bytes())),
        put(&|body| body[8 + 24 + 16..][..4].copy_from_slice(&u32::MAX.to_le_bytes())),
        Call { spu, handler: handler::DELETE, body: tree.delete(spu, &[first]).body[..23].to_vec() },
        Call { spu, handler: handler::CREATE, body: vec![1; 30] },
        Call { spu, handler: handler::OPEN, body: tree.number.to_le_bytes().to_vec() },
        Call { spu, handler: handler::SYNC, body: vec![] },
        tree.create(spu, "sense", 4096),
        tree.create(spu, "sense", 1 << 60),
        tree.create(spu, "", 1 << 20),
    ];
    for call in &malformed {
        assert_eq!(device.call(call, 0).0, wire::STATUS_MALFORMED, "{call:?}");
    }
    // A range whose reply has no room for a pair, or that wants none.
    assert_eq!(device.call(&tree.range(spu, &first, 10), 4000).0, wire::STATUS_MALFORMED);
    assert_eq!(device.call(&tree.range(spu, &first, 0), 9000).0, wire::STATUS_MALFORMED);
    let other = Tree { number: 77, ..tree };
    assert_eq!(device.call(&other.get(&first), 10).0, wire::STATUS_NO_TREE);
    assert_eq!(device.call(&other.delete(spu, &[first]), 0).0, wire::STATUS_NO_TREE);
    let again = tree.create(spu, "sense", 1 << 20);
    assert_eq!(device.call(&again, 0).0, wire::STATUS_EXISTS);
    let same_number = tree.create(spu, "other", 1 << 20);
    assert_eq!(device.call(&same_number, 0).0, wire::STATUS_OTHER_NAME);
    let elsewhere = Tree { layout: Layout::Striped, number: 5, ..tree };
    assert_eq!(device.call(&elsewhere.create(0, "elsewhere", 1 << 20), 0).0, wire::STATUS_ELSEWHERE);
    // A short buffer gets what fits, and the length.
    assert_eq!(device.call(&tree.get(&first), 3), (0, 5, b"val".to_vec()));
    assert_eq!(device.range([0; KEY_BYTES], false, 9000), [(first, b"value".to_vec())]);
}

#[test]
fn more_trees_than_are_open_at_a_time_take_turns() {
    let mut device = Device::new(Medium::NvMemory, Layout::Partitioned, "tree 0", 1 << 20);
    let names: Vec<String> = (0..20).map(|number| format!("tree {number}")).collect();
    let trees: Vec<Tree> = names.iter().map(|name| Tree { number: btree_host::number(name), ..device.tree }).collect();
    for (tree, name) in trees.iter().zip(&names).skip(1) {
        device.tree = *tree;
        for spu in 0..SPUS {
            assert_eq!(device.call(&tree.create(spu, name, 1 << 20), 0).0, 0);
        }
    }
    for round in 0..3u8 {
        for (tree, name) in trees.iter().zip(&names) {
            device.tree = *tree;
            let before = (round > 0).then(|| [name.as_bytes(), &[round - 1]].concat());
            assert_eq!(device.get(&key(9)), before);
            assert_eq!(device.put(&[(key(9), [name.as_bytes(), &[round]].concat())]), 0);
        }
    }
}

#[test]
fn a_tree_that_is_removed_is_gone_everywhere_and_its_room_is_anothers() {
    const BANK_BYTES: u64 = 40 << 20;
    for layout in [Layout::Partitioned, Layout::Striped] {
        let mut device = Device::new(Medium::NvMemory, layout, "orders", BANK_BYTES);
        let pairs: Vec<_> = (0..60).map(|number| (key(number), vec![number as u8; 700])).collect();
        assert_eq!(device.put(&pairs), 0);
        assert!(pairs.iter().all(|(key, value)| device.get(key).as_ref() == Some(value)));
        // There is no room for another one.
        let (orders, other) = (device.tree, Tree { number: btree_host::number("other"), ..device.tree });
        assert_eq!(device.call(&other.create(other.parts()[0], "other", BANK_BYTES), 0).0, wire::STATUS_FULL);
        // What cannot be removed so stays.
        let named =
            Call { body: [&orders.number.to_le_bytes()[..], &[5, 0, 0, 0], b"odors"].concat(), ..orders.remove("") };
        let long =
            Call { body: [&orders.number.to_le_bytes()[..], &[200, 0, 0, 0], b"orders"].concat(), ..orders.remove("") };
        let elsewhere = Call { spu: 1 - orders.owner(), ..orders.remove("orders") };
        for (call, status) in [
            (named, wire::STATUS_OTHER_NAME),
            (long, wire::STATUS_MALFORMED),
            (elsewhere, wire::STATUS_ELSEWHERE),
            (other.remove("other"), wire::STATUS_NO_TREE),
        ] {
            assert_eq!(device.call(&call, 0).0, status);
        }
        // No host closes a tree.
        let close = Call { handler: handler::CLOSE, ..orders.remove("") };
        assert_eq!(device.call(&close, 0).0, wire::STATUS_MALFORMED);
        assert_eq!(device.range([0; KEY_BYTES], false, 40_000), pairs);
        assert_eq!(device.call(&orders.remove("orders"), 0).0, 0);
        for spu in 0..SPUS {
            assert_eq!(device.call(&orders.stat(spu), Statistics::BYTES).0, wire::STATUS_NO_TREE, "{spu}");
        }
        // The other one has its room, and nothing of what was there.
        for spu in other.parts() {
            assert_eq!(device.call(&other.create(spu, "other", BANK_BYTES), 0).0, 0);
        }
        device.tree = other;
        assert_eq!(device.range([0; KEY_BYTES], false, 40_000), []);
        assert_eq!(device.put(&pairs[..7]), 0);
        assert_eq!(device.range([0; KEY_BYTES], false, 40_000), pairs[..7]);
        assert_eq!(device.call(&orders.get(&pairs[3].0), wire::VALUE_BYTES_MAX as usize).0, wire::STATUS_NO_TREE);
    }
}
