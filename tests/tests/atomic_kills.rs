//! Namespaces whose writes are whole (`willow ns create --atomic`, NAWUPF), killed at random moments under writers that write the same places over and over. Each place has
//! after each kill what one write made it, the last that was durable or a later one, and never parts of two; on NV memory and on flash, where such a write lies on several
//! pages of the FTL and in several of its dies.
//!
//! `WILLOW_KILL_ROUNDS` sets the number of rounds, `WILLOW_SEED` the seed.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use willow_host::{BlockClient, Controller, NvmeHre, Options};
use willow_on_flash::{Medium, on_each_medium};
use willow_tests::daemon::Daemon;

const ROUNDS: u64 = 10;
const WRITERS: u64 = 6;
/// Places of each writer.
const PLACES: u64 = 8;
/// Bytes of a place, within which writes are whole.
const PLACE_BYTES: usize = 65_536;
const BLOCK_BYTES: usize = 4096;
/// Most answers before a kill, and the longest wait for them.
const ANSWERS_MAX: u64 = 40;
const ANSWERS_WAIT_MAX: Duration = Duration::from_secs(120);

/// Versions of a place; 0 is what a fresh namespace has.
#[derive(Clone, Copy, Default)]
struct Place {
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

/// What a version of a place is made of, the same in each of its words.
fn word(place: u64, version: u64) -> u64 {
    if version == 0 { 0 } else { (place << 40 ^ version).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1 }
}

/// The one word that all of a place is made of.
fn only_word(bytes: &[u8]) -> Option<u64> {
    let (words, _) = bytes.as_chunks::<8>();
    words.iter().all(|word| *word == words[0]).then(|| u64::from_le_bytes(words[0]))
}

type Places = Rc<RefCell<Vec<Place>>>;

async fn write(block: Rc<BlockClient>, places: Places, writer: u64, seed: u64) {
    let mut random = Random(seed);
    loop {
        if random.below(16) == 0 {
            let before: Vec<u64> = places.borrow().iter().map(|place| place.acknowledged).collect();
            if block.flush().await.is_err() {
                return;
            }
            for (place, acknowledged) in places.borrow_mut().iter_mut().zip(before) {
                place.durable = place.durable.max(acknowledged);
            }
        }
        let place = writer * PLACES + random.below(PLACES);
        let version = {
            let place = &mut places.borrow_mut()[place as usize];
            place.attempted += 1;
            place.attempted
        };
        let data = word(place, version).to_le_bytes().repeat(PLACE_BYTES / 8);
        let is_durable = random.below(8) == 0;
        if block.write(place * PLACE_BYTES as u64, data, is_durable).await.is_err() {
            return;
        }
        let place = &mut places.borrow_mut()[place as usize];
        place.acknowledged = version;
        if is_durable {
            place.durable = version;
        }
    }
}

/// Every place is whole, of a version that it may have; that one stays.
async fn verify(round: u64, block: &BlockClient, places: &mut [Place]) {
    for (number, place) in (0..).zip(places) {
        let found = block.read(number * PLACE_BYTES as u64, PLACE_BYTES).await.expect("it reads");
        let Some(held) = only_word(&found) else {
            let parts: Vec<Option<u64>> = found.chunks(BLOCK_BYTES).map(only_word).collect();
            panic!("round {round}: place {number} is torn: {parts:x?}");
        };
        let version = (place.durable..=place.attempted).find(|version| word(number, *version) == held);
        let version =
            version.unwrap_or_else(|| panic!("round {round}: place {number}: {held:x}, not of {}", place.durable));
        *place = Place { durable: version, acknowledged: version, attempted: place.attempted };
    }
}

on_each_medium!(a_write_is_whole_after_kills_at_random_moments);

fn a_write_is_whole_after_kills_at_random_moments(medium: Medium) {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let banks: &[&str] = match medium {
        Medium::NvMemory => &["--spus", "4"],
        Medium::Flash => &["--preset", "jasmine", "--ftl", "page"],
    };
    let mut daemon = Daemon::start(&[&["--size", "16M", "--kv-size", "16M"], banks].concat());
    let made = daemon.command(&["ns", "create", "--csi", "nvm", "--size", "16M", "--atomic", "64K", "--json"]);
    let (_, told) = made.split_once("\"nsid\":").expect("its number is told");
    let digits: String = told.trim_start().chars().take_while(char::is_ascii_digit).collect();
    let nsid: u32 = digits.parse().expect("a number");
    let mut random = Random(number("WILLOW_SEED").unwrap_or(1));
    let places: Places = Rc::new(RefCell::new(vec![Place::default(); (WRITERS * PLACES) as usize]));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let local = tokio::task::LocalSet::new();
    let mut acknowledged = 0;
    let rounds = number("WILLOW_KILL_ROUNDS").unwrap_or(ROUNDS);
    for round in 1..=rounds + 1 {
        local.block_on(&runtime, async {
            let mut options = Options::new(daemon.address(), daemon.nqn());
            options.reconnect_for = Duration::ZERO;
            let controller = Controller::connect(options).await.expect("the device takes a host");
            let hre = Arc::new(NvmeHre::new(controller, 1).await.expect("an endpoint"));
            let block = Rc::new(BlockClient::open(hre, nsid).await.expect("the namespace"));
            let mut checked = places.take();
            verify(round, &block, &mut checked).await;
            places.replace(checked);
            if round > rounds {
                return;
            }
            let before: u64 = places.borrow().iter().map(|place| place.acknowledged).sum();
            let writers: Vec<_> = (0..WRITERS)
                .map(|writer| {
                    let seed = random.below(u64::from(u32::MAX)) << 8 | writer;
                    tokio::task::spawn_local(write(block.clone(), places.clone(), writer, seed))
                })
                .collect();
            // In the midst of what follows so many answers; a device that answers nothing is killed as well.
            let (wanted, begun) = (before + 1 + random.below(ANSWERS_MAX), Instant::now());
            let answered = || places.borrow().iter().map(|place| place.acknowledged).sum::<u64>();
            while answered() < wanted && begun.elapsed() < ANSWERS_WAIT_MAX {
                tokio::time::sleep(Duration::from_micros(200)).await;
            }
            tokio::time::sleep(Duration::from_micros(random.below(3_000))).await;
            daemon.kill();
            for writer in writers {
                writer.await.expect("a writer ends with its device");
            }
            acknowledged += places.borrow().iter().map(|place| place.acknowledged).sum::<u64>() - before;
        });
        if round <= rounds {
            daemon.restart();
        }
    }
    assert!(acknowledged > rounds, "only {acknowledged} writes in {rounds} rounds: hardly anything was under way");
}
