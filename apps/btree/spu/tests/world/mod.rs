//! A device with the app on media that lose power; clients that put, delete and look beside each other, each with keys of its own; and the model
//! that says what may be there afterwards. Each value says which it is, and has bytes that no other has.
#![allow(dead_code)]

#[path = "../../../../atomic-write/spu/tests/world/drive.rs"]
pub mod drive;

use btree_host::wire::{self, Key, LOOK_BYTES, RANGE_AFTER, Statistics};
use btree_host::{Call, Layout, Merge, Page, Pair, Tree};
pub use drive::{Drive, STEPS_MAX, status};
use std::collections::BTreeMap;
use willow_device::media::fault::{FaultMedia, FaultOptions, Random};
use willow_device::{BuiltInApp, DeviceConfig, Store};

pub const SPUS: u16 = 3;
pub const NAME: &str = "a tree";
pub const BANK_BYTES: u64 = 4096 * 80;
/// Whose pairs are there from the begin, and stay.
pub const OTHERS: u32 = 9;

pub fn config() -> DeviceConfig {
    DeviceConfig { spus: SPUS, namespace_bytes: 1 << 20, kv_namespace_bytes: 0, ..DeviceConfig::default() }
}

pub fn options(seed: u64) -> FaultOptions {
    let delayed_percent = (seed % 3 * 25) as u8;
    FaultOptions { seed, delayed_percent, ..FaultOptions::new(SPUS as usize, 1 << 30) }
}

/// Some operations take very long, beside which others go on.
pub fn options_with_stragglers(seed: u64) -> FaultOptions {
    FaultOptions { seed, delayed_percent: 1, delay_polls_max: 2000, ..FaultOptions::new(SPUS as usize, 1 << 30) }
}

/// A key of a client.
pub fn key(client: u32, number: u32) -> Key {
    let mut key = [0; 16];
    key[0..4].copy_from_slice(&client.to_be_bytes());
    key[12..16].copy_from_slice(&number.to_be_bytes());
    key
}

/// A value: no other has these bytes.
pub fn value(key: &Key, version: u32, bytes: u32) -> Vec<u8> {
    let sum = key.iter().fold(version.wrapping_mul(0x9e37_79b9), |sum, byte| sum.wrapping_mul(31) ^ u32::from(*byte));
    (0..bytes).map(|at| (sum.wrapping_add(at.wrapping_mul(0x85eb_ca6b)) >> 9) as u8 | 1).collect()
}

pub type Pairs = BTreeMap<Key, Vec<u8>>;

/// What a client does.
#[derive(Clone, Debug)]
pub enum Step {
    /// Pairs of such numbers, as far as they are of the first one's SPU, with values of about so many bytes.
    Put(Vec<u32>, u32),
    Delete(Vec<u32>),
    Get(u32),
    Range(u32),
}

pub struct Rig {
    pub drive: Drive,
    pub app: u16,
    pub tree: Tree,
}

impl Rig {
    pub fn open(store: Box<dyn Store>, layout: Layout) -> Result<Rig, String> {
        let apps = [base_io_spu::native(), btree_spu::native()].map(BuiltInApp::Native).into();
        let drive = Drive::open(config(), store, apps)?;
        let app = drive.device.app_number("btree").ok_or("no app")?;
        Ok(Rig { drive, app, tree: Tree { number: btree_host::number(NAME), layout, spus: SPUS } })
    }

    pub fn submit(&mut self, call: &Call, reply_bytes: usize) -> u64 {
        let to = (self.app, call.spu, call.handler);
        let (arguments, payload) = if reply_bytes > 0 { (&call.body[..], &[][..]) } else { (&[][..], &call.body[..]) };
        self.drive.submit(to, arguments, payload, reply_bytes)
    }

    /// Status, result and reply.
    pub fn call(&mut self, call: &Call, reply_bytes: usize) -> (u32, u32, Vec<u8>) {
        let tag = self.submit(call, reply_bytes);
        let done = self.drive.wait(tag);
        (status(&done), done.result, done.buffer)
    }

    pub fn create(&mut self, bank_bytes: u64) -> Vec<(u32, u32)> {
        let calls = self.tree.parts().into_iter().map(|spu| self.tree.create(spu, NAME, bank_bytes));
        calls
            .collect::<Vec<_>>()
            .iter()
            .map(|call| self.call(call, 0))
            .map(|(status, result, _)| (status, result))
            .collect()
    }

    pub fn put_pairs(&mut self, pairs: &[(Key, Vec<u8>)]) -> Vec<u32> {
        let mut by_spu = BTreeMap::<u16, Vec<(Key, &[u8])>>::new();
        for (key, value) in pairs {
            by_spu.entry(self.tree.spu_of(key)).or_default().push((*key, value));
        }
        let tree = self.tree;
        let parts = by_spu.iter().flat_map(|(spu, pairs)| pairs.chunks(14).map(move |some| tree.put(*spu, some)));
        let calls: Vec<Call> = parts.collect();
        calls.iter().map(|call| self.call(call, 0).0).collect()
    }

    pub fn get(&mut self, key: &Key) -> (u32, Vec<u8>) {
        let (status, result, mut reply) = self.call(&self.tree.get(key), wire::VALUE_BYTES_MAX as usize);
        reply.truncate(if status == 0 { result as usize } else { 0 });
        (status, reply)
    }

    pub fn statistics(&mut self, spu: u16) -> Result<Statistics, u32> {
        match self.call(&self.tree.stat(spu), Statistics::BYTES) {
            (0, _, reply) => Ok(btree_host::statistics(&reply).expect("a sound answer")),
            (status, ..) => Err(status),
        }
    }

    /// All pairs from a key on, in order.
    pub fn pairs(&mut self, from: Key, reply_bytes: usize) -> Result<Vec<Pair>, u32> {
        let mut merge = Merge::new(&self.tree.parts(), from);
        let mut found = Vec::new();
        loop {
            for (spu, from, is_after) in merge.wanted() {
                let call = self.tree.range(spu, &from, 900 | if is_after { RANGE_AFTER } else { 0 });
                assert_eq!(call.body.len(), LOOK_BYTES);
                match self.call(&call, reply_bytes) {
                    (0, _, reply) => merge.give(spu, Page::decode(&reply, false).expect("a sound page")),
                    (status, ..) => return Err(status),
                }
            }
            match merge.next_pair() {
                Some(pair) => found.push(pair),
                None => return Ok(found),
            }
        }
    }
}

/// A client, and what it knows.
#[derive(Clone, Debug, Default)]
pub struct Client {
    /// What was answered.
    pub pairs: Pairs,
    /// What there is where the request under way was done.
    pub or: Option<Pairs>,
    pub version: u32,
}

/// All that is known of a tree.
#[derive(Clone, Debug, Default)]
pub struct Model {
    pub clients: BTreeMap<u32, Client>,
}

impl Model {
    /// Holds a tree against it: its pairs in order, each value, and that it says how many there are.
    pub fn check(&self, rig: &mut Rig) -> Result<(), String> {
        let found = rig.pairs([0; 16], 40_000).map_err(|status| format!("a range ends with status {status}"))?;
        if !found.is_sorted_by(|one, other| one.key < other.key) {
            return Err("a range is in no order".to_owned());
        }
        let mut all: Pairs = found.into_iter().map(|pair| (pair.key, pair.value)).collect();
        let counted: u64 = rig.tree.parts().into_iter().try_fold(0, |sum, spu| {
            let found = rig.statistics(spu).map_err(|status| format!("stat ends with status {status}"))?;
            Ok::<_, String>(sum + found.pairs)
        })?;
        if counted != all.len() as u64 {
            return Err(format!("there are {} pairs, and it says {counted}", all.len()));
        }
        for (key, value) in &all.clone() {
            let (status, got) = rig.get(key);
            if status != 0 || got != *value {
                return Err(format!("a get ends with status {status}, where a range has the pair"));
            }
        }
        for (number, client) in &self.clients {
            let rest = all.split_off(&key(*number, 0));
            let after = all.len();
            let mut own = rest;
            let mut behind = own.split_off(&key(*number + 1, 0));
            all.append(&mut behind);
            if own != client.pairs && Some(&own) != client.or.as_ref() {
                let lost = client.pairs.iter().filter(|(key, value)| own.get(*key) != Some(value)).count();
                return Err(format!(
                    "client {number} has {} pairs, {lost} of {} are not as they were answered, {after} before",
                    own.len(),
                    client.pairs.len()
                ));
            }
        }
        if all.is_empty() { Ok(()) } else { Err(format!("{} pairs are nobody's", all.len())) }
    }
}

/// A device with a tree and pairs of [`OTHERS`].
pub fn start(seed: u64, layout: Layout, others: u32) -> (FaultMedia, Rig, Model) {
    start_on(options(seed), layout, others, BANK_BYTES)
}

/// The same on other media and with so many bytes in each bank.
pub fn start_on(options: FaultOptions, layout: Layout, others: u32, bank_bytes: u64) -> (FaultMedia, Rig, Model) {
    let media = FaultMedia::new(options);
    let mut rig = Rig::open(Box::new(media.store()), layout).expect("a fresh device opens");
    rig.drive.settle();
    assert!(rig.create(bank_bytes).iter().all(|done| *done == (0, 0)));
    let pairs: Vec<_> = (0..others).map(|number| key(OTHERS, number)).map(|key| (key, value(&key, 0, 5))).collect();
    assert!(rig.put_pairs(&pairs).iter().all(|status| *status == 0));
    let mut model = Model::default();
    model.clients.insert(OTHERS, Client { pairs: pairs.into_iter().collect(), ..Client::default() });
    rig.drive.settle();
    (media, rig, model)
}

struct Waiting {
    tag: u64,
    /// What a change leads to; a search changes nothing.
    after: Option<Pairs>,
}

/// Begins a step.
fn begin(rig: &mut Rig, number: u32, client: &mut Client, step: &Step) -> Waiting {
    let tree = rig.tree;
    let of_one_spu = |numbers: &[u32]| {
        let keys: Vec<Key> = numbers.iter().map(|at| key(number, *at)).collect();
        let spu = tree.spu_of(&keys[0]);
        (spu, keys.into_iter().filter(|key| tree.spu_of(key) == spu).collect::<Vec<_>>())
    };
    let mut after = client.pairs.clone();
    match step {
        Step::Put(numbers, bytes) => {
            let (spu, keys) = of_one_spu(numbers);
            client.version += 1;
            let version = client.version;
            let pairs: Vec<(Key, Vec<u8>)> =
                (0..).zip(keys).map(|(at, key)| (key, value(&key, version, (bytes + at * 37) % 4097))).collect();
            let call = tree.put(spu, &pairs.iter().map(|(key, value)| (*key, &value[..])).collect::<Vec<_>>());
            after.extend(pairs);
            Waiting { tag: rig.submit(&call, 0), after: Some(after) }
        }
        Step::Delete(numbers) => {
            let (spu, keys) = of_one_spu(numbers);
            keys.iter().for_each(|key| drop(after.remove(key)));
            Waiting { tag: rig.submit(&tree.delete(spu, &keys), 0), after: Some(after) }
        }
        Step::Get(at) => {
            Waiting { tag: rig.submit(&tree.get(&key(number, *at)), wire::VALUE_BYTES_MAX as usize), after: None }
        }
        Step::Range(at) => {
            let from = key(number, *at);
            Waiting { tag: rig.submit(&tree.range(tree.searched_at(&from), &from, 40), 40_000), after: None }
        }
    }
}

/// A step was answered.
fn end(
    tree: &Tree,
    number: u32,
    client: &mut Client,
    step: &Step,
    (after, done): (Option<Pairs>, &willow_device::HostCompletion),
) -> Result<(), String> {
    client.or = None;
    let status = status(done);
    match (step, status) {
        (Step::Put(..) | Step::Delete(_), 0) => client.pairs = after.expect("of a change"),
        (Step::Put(..), wire::STATUS_FULL) | (_, wire::STATUS_BUSY) => {}
        (Step::Get(at), status) => {
            let expected = client.pairs.get(&key(number, *at));
            let got = (status == 0).then(|| done.buffer[..done.result as usize].to_vec());
            let is_right = got.as_ref() == expected && (status == 0 || status == wire::STATUS_NOT_FOUND);
            if !is_right {
                return Err(format!("client {number} gets what it did not put, with status {status}"));
            }
        }
        (Step::Range(at), 0) => {
            let page = Page::decode(&done.buffer, false).ok_or("a senseless page")?;
            let (from, spu) = (key(number, *at), tree.searched_at(&key(number, *at)));
            let is_here = |key: &Key| tree.layout == Layout::Striped || tree.searched_at(key) == spu;
            let own = |key: &Key| key[0..4] == number.to_be_bytes();
            let found: Vec<_> = page.pairs.into_iter().filter(|it| own(&it.key)).map(|it| (it.key, it.value)).collect();
            let mut expected = client.pairs.range(from..).filter(|(key, _)| is_here(key));
            if !found.iter().all(|(key, value)| expected.next() == Some((key, value))) {
                return Err(format!("client {number} sees in a range what it did not put"));
            }
        }
        (step, status) => return Err(format!("{step:?} ends with status {status}")),
    }
    Ok(())
}

/// Runs clients beside each other, each a step after the other, until all are through or the power has gone.
pub fn run(rig: &mut Rig, media: &FaultMedia, clients: &[Vec<Step>], model: &mut Model) -> Result<(), String> {
    let mut at: Vec<(usize, Option<Waiting>)> = clients.iter().map(|_| (0, None)).collect();
    for _ in 0..STEPS_MAX {
        for ((number, (next, waiting)), steps) in (0..).zip(&mut at).zip(clients) {
            let (None, Some(step)) = (&waiting, steps.get(*next)) else { continue };
            let client = model.clients.entry(number).or_default();
            let begun = begin(rig, number, client, step);
            client.or.clone_from(&begun.after);
            *waiting = Some(begun);
        }
        if at.iter().all(|(_, waiting)| waiting.is_none()) {
            return Ok(());
        }
        rig.drive.step();
        if media.is_cut() {
            return Ok(());
        }
        for ((number, (next, waiting)), steps) in (0..).zip(&mut at).zip(clients) {
            let Some(Waiting { tag, .. }) = waiting else { continue };
            let Some(done) = rig.drive.done.remove(tag) else { continue };
            let after = waiting.take().and_then(|waiting| waiting.after);
            let client = model.clients.entry(number).or_default();
            end(&rig.tree, number, client, &steps[*next], (after, &done))?;
            *next += 1;
        }
    }
    panic!("the clients do not come to an end");
}

pub fn random_clients(random: &mut Random) -> Vec<Vec<Step>> {
    let bytes = [20, 1024, 3000][random.below(3) as usize];
    let step = |random: &mut Random| {
        let number = random.below(40) as u32;
        let numbers = |random: &mut Random| (0..1 + random.below(6)).map(|_| random.below(40) as u32).collect();
        match random.below(10) {
            0..2 => Step::Delete(numbers(random)),
            2..5 => Step::Get(number),
            5 => Step::Range(number),
            _ => Step::Put(numbers(random), random.below(bytes) as u32),
        }
    };
    let count = 1 + random.below(4);
    (0..count).map(|_| (0..4 + random.below(16)).map(|_| step(random)).collect()).collect()
}
