//! What a power cut may leave: for each key, the versions since the latest that is known to be durable.

use super::{
    Random, World, clear, delete, flush, get_item, id, list_all, put_until, rest, run, run_one, statistics, sweep,
    tell, touch, value,
};
use key_value_spu::bank::Failure;
use key_value_spu::store::Condition;
use key_value_spu::table::Table;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

/// A value and when it ends.
type Version = Option<(Vec<u8>, u32)>;

#[derive(Clone, Debug)]
struct Past {
    /// From the latest that is known to be durable on: all that were begun.
    versions: VecDeque<Version>,
    /// Number of the first of them.
    first: usize,
    /// Number of the latest that was answered.
    answered: usize,
}

/// One step of a workload. Each client's keys are its own.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    Put(u8, usize),
    Delete(u8),
    Flush,
    Get(u8),
    /// With an expiry.
    PutUntil(u8, usize, u32),
    Touch(u8, u32),
    /// The hosts' time. This and the next two are for one client alone.
    Tell(u32),
    Sweep,
    Clear,
    /// Nobody changes anything for a while.
    Rest,
}

/// Versions by key.
#[derive(Clone, Debug)]
pub struct History(BTreeMap<Vec<u8>, Past>);

impl History {
    pub fn new() -> Self {
        History(BTreeMap::new())
    }

    fn past(&mut self, key: &[u8]) -> &mut Past {
        let new = || Past { versions: VecDeque::from([None]), first: 0, answered: 0 };
        self.0.entry(key.to_vec()).or_insert_with(new)
    }

    fn begin(&mut self, key: &[u8], version: Version) {
        self.past(key).versions.push_back(version);
    }

    /// The version that was begun last is answered.
    fn answer(&mut self, key: &[u8]) {
        let past = self.past(key);
        past.answered = past.first + past.versions.len() - 1;
    }

    /// The version that was begun last was refused for want of room: it never was stored.
    fn refuse(&mut self, key: &[u8]) {
        self.past(key).versions.pop_back();
    }

    fn current(&mut self, key: &[u8]) -> Version {
        let past = self.past(key);
        past.versions[past.answered - past.first].clone()
    }

    /// Versions that end those which are there now and of which `ends` says so; their keys.
    fn end_all(&mut self, ends: impl Fn(u32) -> bool) -> Vec<Vec<u8>> {
        let keys: Vec<Vec<u8>> = self.0.keys().cloned().collect();
        let gone = |key: &Vec<u8>| self.current(key).is_some_and(|(_, expiry)| ends(expiry));
        let gone: Vec<Vec<u8>> = keys.into_iter().filter(gone).collect();
        gone.iter().for_each(|key| self.begin(key, None));
        gone
    }

    /// Keys that have a value now.
    fn present(&self) -> u64 {
        self.0.values().filter(|past| past.versions[past.answered - past.first].is_some()).count() as u64
    }

    fn answered(&self) -> Vec<(Vec<u8>, usize)> {
        self.0.iter().map(|(key, past)| (key.clone(), past.answered)).collect()
    }

    /// These versions, or later ones, are durable.
    fn durable(&mut self, answered: Vec<(Vec<u8>, usize)>) {
        for (key, number) in answered {
            let past = self.past(&key);
            while past.first < number {
                past.versions.pop_front();
                past.first += 1;
            }
        }
    }

    /// Reads all: each key must have one of its versions, and nothing else may be there. What is found is what is durable
    /// from now on.
    pub fn verify(&mut self, world: &Rc<World>, table: &Table, spread: bool) -> Result<(), String> {
        let mut pairs = 0;
        for (key, past) in &mut self.0 {
            let found = match run_one(world, get_item(world, table, &id(key, spread))) {
                Some(Ok((value, found))) => Some((value, found.expiry)),
                Some(Err(Failure::NotFound)) => None,
                other => return Err(format!("get after recovery: {other:?}")),
            };
            pairs += u64::from(found.is_some());
            if !past.versions.contains(&found) {
                let lengths: Vec<_> = past
                    .versions
                    .iter()
                    .map(|version| version.as_ref().map(|(value, expiry)| (value.len(), *expiry)))
                    .collect();
                let length = found.map(|(value, expiry)| (value.len(), expiry));
                return Err(format!("{key:?} has {length:?} (bytes, expiry), none of the versions {lengths:?}"));
            }
            *past = Past { versions: VecDeque::from([found]), first: 0, answered: 0 };
        }
        let listed = run_one(world, list_all(world, table, spread, 4096))
            .expect("power")
            .map_err(|failure| format!("list after recovery: {failure:?}"))?;
        let counted =
            run_one(world, statistics(world, table)).expect("power").map_err(|failure| format!("{failure:?}"))?;
        if listed.len() as u64 != pairs || counted.pairs != pairs {
            return Err(format!("{pairs} pairs, {} listed, {} counted", listed.len(), counted.pairs));
        }
        Ok(())
    }
}

/// A workload of one or more clients.
#[derive(Clone, Debug)]
pub struct Workload {
    pub clients: Vec<Vec<Step>>,
    pub spread: bool,
    /// The operations take time and interleave.
    pub slow: bool,
    /// Numbers the versions; differs from round to round.
    pub round: u64,
}

fn key_of(client: usize, number: u8) -> Vec<u8> {
    vec![b'a' + client as u8, number]
}

impl Workload {
    pub fn random(random: &mut Random, clients: usize, steps: usize, largest: u64) -> Self {
        let step = |random: &mut Random| {
            let key = random.below(4) as u8;
            match random.below(10) {
                0..=4 => {
                    let bound = if random.one_in(3) { largest } else { 600 };
                    let bytes = random.below(bound) as usize;
                    if random.one_in(3) {
                        Step::PutUntil(key, bytes, 1 + random.below(9) as u32)
                    } else {
                        Step::Put(key, bytes)
                    }
                }
                5..=7 => Step::Delete(key),
                8 => Step::Flush,
                _ if random.one_in(2) => Step::Touch(key, random.below(9) as u32),
                _ => Step::Get(key),
            }
        };
        Workload {
            clients: (0..clients).map(|_| (0..steps).map(|_| step(random)).collect()).collect(),
            spread: random.one_in(2),
            slow: clients > 1,
            round: random.next(),
        }
    }

    async fn client(
        &self,
        world: &Rc<World>,
        table: &Table,
        history: &RefCell<History>,
        client: usize,
        broken: &RefCell<Option<String>>,
    ) {
        let now_s = Cell::new(0);
        let exists = |expiry: u32| expiry == 0 || now_s.get() == 0 || expiry > now_s.get();
        for (number, step) in self.clients[client].iter().enumerate() {
            let version = self.round ^ (client as u64) << 32 ^ number as u64;
            match *step {
                Step::Put(..) | Step::PutUntil(..) => {
                    let (key, bytes, expiry) = match *step {
                        Step::Put(key, bytes) => (key_of(client, key), bytes, 0),
                        Step::PutUntil(key, bytes, expiry) => (key_of(client, key), bytes, expiry),
                        _ => unreachable!(),
                    };
                    let new = value(&key, version, bytes);
                    history.borrow_mut().begin(&key, Some((new.clone(), expiry)));
                    match put_until(world, table, &id(&key, self.spread), &new, Condition::Always, expiry).await {
                        Ok(_) => history.borrow_mut().answer(&key),
                        Err(Failure::Capacity) => history.borrow_mut().refuse(&key),
                        Err(failure) => {
                            broken.borrow_mut().get_or_insert(format!("put failed: {failure:?}"));
                        }
                    }
                }
                Step::Touch(key, expiry) => {
                    let key = key_of(client, key);
                    let before = history.borrow_mut().current(&key).filter(|(_, expiry)| exists(*expiry));
                    if let Some((value, _)) = &before {
                        history.borrow_mut().begin(&key, Some((value.clone(), expiry)));
                    }
                    let outcome = touch(world, table, &id(&key, self.spread), expiry).await.map(drop);
                    if outcome != if before.is_some() { Ok(()) } else { Err(Failure::NotFound) } {
                        broken.borrow_mut().get_or_insert(format!("touch: {outcome:?}"));
                    }
                    history.borrow_mut().answer(&key);
                }
                Step::Tell(now) => {
                    now_s.set(now);
                    if let Err(failure) = tell(world, table, now).await {
                        broken.borrow_mut().get_or_insert(format!("tell failed: {failure:?}"));
                    }
                }
                Step::Sweep => {
                    let gone = history.borrow_mut().end_all(|expiry| !exists(expiry));
                    if let Err(failure) = sweep(world, table).await {
                        broken.borrow_mut().get_or_insert(format!("sweep failed: {failure:?}"));
                    }
                    gone.iter().for_each(|key| history.borrow_mut().answer(key));
                    let left = statistics(world, table).await.map(|statistics| statistics.pairs);
                    if left != Ok(history.borrow().present()) {
                        broken.borrow_mut().get_or_insert(format!("a sweep left {left:?} pairs"));
                    }
                }
                Step::Clear => {
                    let gone = history.borrow_mut().end_all(|_| true);
                    if let Err(failure) = clear(world, table).await {
                        broken.borrow_mut().get_or_insert(format!("clear failed: {failure:?}"));
                    }
                    let mut history = history.borrow_mut();
                    gone.iter().for_each(|key| history.answer(key));
                    let cleared = history.answered().into_iter().filter(|(key, _)| gone.contains(key)).collect();
                    history.durable(cleared);
                }
                Step::Delete(key) => {
                    let key = key_of(client, key);
                    let present = history.borrow_mut().current(&key).is_some_and(|(_, expiry)| exists(expiry));
                    if present {
                        history.borrow_mut().begin(&key, None);
                    }
                    let outcome = delete(world, table, &id(&key, self.spread)).await;
                    if outcome != if present { Ok(()) } else { Err(Failure::NotFound) } {
                        broken.borrow_mut().get_or_insert(format!("delete: {outcome:?}"));
                    }
                    history.borrow_mut().answer(&key);
                }
                Step::Flush => {
                    let before = history.borrow().answered();
                    if let Err(failure) = flush(world, table).await {
                        broken.borrow_mut().get_or_insert(format!("flush failed: {failure:?}"));
                    }
                    history.borrow_mut().durable(before);
                }
                Step::Rest => {
                    let before = history.borrow().answered();
                    match rest(world, table).await {
                        Ok(true) => history.borrow_mut().durable(before),
                        Ok(false) if self.clients.len() > 1 => {}
                        other => {
                            broken.borrow_mut().get_or_insert(format!("a rest was not one: {other:?}"));
                        }
                    }
                }
                Step::Get(key) => {
                    let key = key_of(client, key);
                    let expected = history.borrow_mut().current(&key).filter(|(_, expiry)| exists(*expiry));
                    let found = get_item(world, table, &id(&key, self.spread)).await.ok();
                    let found = found.map(|(value, found)| (value, found.expiry));
                    if found != expected {
                        broken.borrow_mut().get_or_insert(format!("get of {key:?} gave another value"));
                    }
                }
            }
        }
    }

    /// Runs it until it ends or the power fails.
    pub fn run(&self, world: &Rc<World>, table: &Table, history: &mut History) -> Result<(), String> {
        world.slow.set(self.slow);
        let shared = RefCell::new(std::mem::replace(history, History::new()));
        let broken = RefCell::new(None);
        let tasks = (0..self.clients.len())
            .map(|client| {
                Box::pin(self.client(world, table, &shared, client, &broken)) as Pin<Box<dyn Future<Output = ()> + '_>>
            })
            .collect();
        run(world, tasks);
        world.slow.set(false);
        *history = shared.into_inner();
        broken.into_inner().map_or(Ok(()), Err)
    }
}
