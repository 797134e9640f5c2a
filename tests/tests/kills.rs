//! SIGKILL of the real command at random moments under a workload that verifies, some hundred times on the same media, and nothing shows that was
//! never written. On NV memory nothing that was acknowledged is lost, though nothing was flushed. On flash, whose FTL has a volatile write cache, nothing
//! is lost that a flush or FUA had made durable.
//!
//! `WILLOW_KILL_ROUNDS` sets the number of rounds, `WILLOW_SEED` the seed.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use willow_host::{BlockClient, Controller, Hre, KvClient, NvmeHre, Options, StoreCondition};
use willow_on_flash::{Medium, on_each_medium};
use willow_tests::daemon::Daemon;

/// Rounds, where the environment names no number.
const ROUNDS: u32 = 200;
/// The same on flash, whose recovery takes longer.
const FLASH_ROUNDS: u32 = 15;
/// Writers at the same time, each with slots of its own.
const WRITERS: usize = 8;
/// Blocks, and as many keys, of each writer.
const SLOTS: usize = 24;
const BLOCK_BYTES: usize = 4096;
/// Longest wait for as many operations as there were rounds.
const WORKED_MAX: Duration = Duration::from_secs(120);

/// Versions of a block or pair: 0 is what a fresh device has.
#[derive(Clone, Copy, Default)]
struct Slot {
    /// The oldest that may be found after a kill.
    durable: u64,
    acknowledged: u64,
    attempted: u64,
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

fn content(slot: usize, version: u64, bytes: usize) -> Vec<u8> {
    let word = (slot as u64) << 40 ^ version;
    let filler = if version == 0 { 0 } else { word.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1 };
    filler.to_le_bytes().iter().copied().cycle().take(bytes).collect()
}

/// The pair of a version: every fifth version is none (deleted), as version 0 is.
fn pair(slot: usize, version: u64) -> Option<Vec<u8>> {
    (!version.is_multiple_of(5)).then(|| content(slot, version, (version as usize * 397 + slot * 13) % 3000))
}

async fn attach(daemon: &Daemon) -> (Arc<dyn Hre>, Controller) {
    let mut options = Options::new(daemon.address(), daemon.nqn());
    options.reconnect_for = Duration::ZERO;
    let controller = Controller::connect(options).await.expect("the device takes a host");
    let hre = NvmeHre::new(controller.clone(), 1).await.expect("an endpoint");
    (Arc::new(hre), controller)
}

/// The device's clients, and what they know.
#[derive(Clone)]
struct Clients {
    medium: Medium,
    block: Rc<BlockClient>,
    kv: Rc<KvClient>,
    model: Rc<RefCell<Vec<[Slot; 2]>>>,
}

impl Clients {
    /// A version was acknowledged; with a word, or on a medium, that makes it durable.
    fn acknowledged(&self, slot: usize, kind: usize, version: u64, is_durable: bool) {
        let entry = &mut self.model.borrow_mut()[slot][kind];
        entry.acknowledged = version;
        if is_durable || self.medium == Medium::NvMemory {
            entry.durable = version;
        }
    }

    /// What is acknowledged now is durable when this succeeds.
    async fn flush(&self, kind: usize) -> bool {
        let before: Vec<u64> = self.model.borrow().iter().map(|slot| slot[kind].acknowledged).collect();
        let flushed = match kind {
            0 => self.block.flush().await,
            _ => self.kv.flush().await,
        };
        if flushed.is_ok() {
            for (slot, acknowledged) in self.model.borrow_mut().iter_mut().zip(before) {
                slot[kind].durable = slot[kind].durable.max(acknowledged);
            }
        }
        flushed.is_ok()
    }

    /// Writes until the device is gone.
    async fn write(self, writer: usize, seed: u64) {
        let mut random = Random(seed);
        loop {
            let slot = writer * SLOTS + random.below(SLOTS as u64) as usize;
            let kind = random.below(2) as usize;
            if random.below(20) == 0 && !self.flush(kind).await {
                return;
            }
            let version = {
                let entry = &mut self.model.borrow_mut()[slot][kind];
                entry.attempted += 1;
                entry.attempted
            };
            let fua = kind == 0 && random.below(20) == 0;
            let ended = if kind == 0 {
                let data = content(slot, version, BLOCK_BYTES);
                self.block.write((slot * BLOCK_BYTES) as u64, data, fua).await.map(drop)
            } else {
                let key = (slot as u32).to_be_bytes();
                match pair(slot, version) {
                    Some(value) => self.kv.store(&key, value, StoreCondition::Always).await,
                    None => self.kv.delete(&key).await.map(drop),
                }
            };
            match ended {
                Ok(()) => self.acknowledged(slot, kind, version, fua),
                Err(_) => return,
            }
        }
    }
}

/// Reads everything; each block and pair is the durable version, or one that came later.
async fn verify(round: u32, block: &BlockClient, kv: &KvClient, model: &mut [[Slot; 2]]) {
    for (slot, entry) in model.iter_mut().enumerate() {
        let found = block.read((slot * BLOCK_BYTES) as u64, BLOCK_BYTES).await.expect("the block reads");
        let matches = |version: &u64| content(slot, *version, BLOCK_BYTES) == found;
        let version = (entry[0].durable..=entry[0].attempted).find(matches);
        let version = version.unwrap_or_else(|| {
            panic!("round {round}: block {slot} holds {:?}..., not version {} or later", &found[..8], entry[0].durable)
        });
        // What was found is on the media, and stays.
        entry[0] = Slot { durable: version, acknowledged: version, attempted: entry[0].attempted };
        let found = kv.retrieve(&(slot as u32).to_be_bytes()).await.expect("the pair reads");
        let version = (entry[1].durable..=entry[1].attempted).find(|version| pair(slot, *version) == found);
        let version = version.unwrap_or_else(|| {
            let bytes = found.map(|value| value.len());
            panic!("round {round}: pair {slot} has {bytes:?} bytes, not version {} or later", entry[1].durable)
        });
        // An attempt that did not happen is made again with a version of its own.
        entry[1] = Slot { durable: version, acknowledged: version, attempted: entry[1].attempted };
    }
}

on_each_medium!(nothing_durable_is_lost_by_kills_at_random_moments);

fn nothing_durable_is_lost_by_kills_at_random_moments(medium: Medium) {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let (few, banks): (u32, &[&str]) = match medium {
        Medium::NvMemory => (ROUNDS, &["--spus", "4"]),
        Medium::Flash => (FLASH_ROUNDS, &["--preset", "jasmine", "--ftl", "page"]),
    };
    let rounds = number("WILLOW_KILL_ROUNDS").map_or(few, |rounds| rounds as u32);
    let mut random = Random(number("WILLOW_SEED").unwrap_or(1));
    let mut daemon = Daemon::start(&[&["--size", "16M", "--kv-size", "16M"], banks].concat());
    let model = Rc::new(RefCell::new(vec![[Slot::default(); 2]; WRITERS * SLOTS]));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let local = tokio::task::LocalSet::new();
    let mut acknowledged = 0;
    for round in 1..=rounds {
        local.block_on(&runtime, async {
            let (hre, controller) = attach(&daemon).await;
            let block = Rc::new(BlockClient::open(hre.clone(), 1).await.expect("namespace 1"));
            let kv = Rc::new(KvClient::open_only(hre).await.expect("the KV namespace"));
            // Nobody else has the model meanwhile.
            let mut checked = model.take();
            verify(round, &block, &kv, &mut checked).await;
            model.replace(checked);
            let before: u64 = model.borrow().iter().flatten().map(|slot| slot.acknowledged).sum();
            let clients = Clients { medium, block, kv, model: model.clone() };
            let writers: Vec<_> = (0..WRITERS)
                .map(|writer| {
                    let seed = random.below(u64::from(u32::MAX)) << 8 | writer as u64;
                    tokio::task::spawn_local(clients.clone().write(writer, seed))
                })
                .collect();
            tokio::time::sleep(Duration::from_micros(random.below(40_000))).await;
            // On a machine that is slow, where hardly anything was acknowledged until now, it goes on until more is.
            let all = || model.borrow().iter().flatten().map(|slot| slot.acknowledged).sum::<u64>();
            let begun = Instant::now();
            while acknowledged + (all() - before) <= u64::from(round) && begun.elapsed() < WORKED_MAX {
                tokio::time::sleep(Duration::from_micros(200)).await;
            }
            daemon.kill();
            for writer in writers {
                writer.await.expect("a writer ends with its device");
            }
            acknowledged += all() - before;
            assert!(acknowledged > u64::from(round), "only {acknowledged} operations in {round} rounds");
            drop(controller);
        });
        daemon.restart();
    }
    assert!(
        acknowledged > u64::from(rounds),
        "only {acknowledged} operations in {rounds} rounds: the workload hardly ran"
    );
}
