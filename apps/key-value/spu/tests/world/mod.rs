//! The world that the engine is tested in: media that lose power, handlers that interleave by seed, and a model.
//!
//! The fault model of the media: a write is visible as soon as it is done, and durable when a flush is done that began
//! after it. At a power cut any subset of the writes that are not durable survives; each is torn at 512-byte boundaries, and
//! each of its pieces survives or not by itself. A killed process loses nothing.

#![allow(dead_code)]

mod calls;
pub mod history;

pub use calls::*;

use key_value_spu::bank::{Bank, Failure, Fault, Planted, Record, Region, WORDS_MAX, Word};
use key_value_spu::format::{HEADER_BYTES, PairId};
use key_value_spu::store::{Condition, Found, KeyRange, ListFrom, Put};
use key_value_spu::table::Table;
use key_value_spu::wire::{self, KEY_BYTES_MAX};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use willow_sdk::join;

pub const SECTOR: usize = 512;

/// SplitMix64: replayed from its seed.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
    pub fn one_in(&mut self, bound: u64) -> bool {
        self.below(bound) == 0
    }
}

/// A piece of a write that is not durable: within one sector.
#[derive(Clone, Debug)]
pub struct Piece {
    pub at: usize,
    pub bytes: Vec<u8>,
}

#[derive(Clone, Default)]
pub struct Media {
    pub visible: Vec<u8>,
    pub durable: Vec<u8>,
    pub unflushed: Vec<Piece>,
}

impl Media {
    pub fn new(bytes: usize) -> Self {
        Media { visible: vec![0; bytes], durable: vec![0; bytes], unflushed: Vec::new() }
    }

    fn write(&mut self, mut at: usize, mut from: &[u8]) {
        self.visible[at..at + from.len()].copy_from_slice(from);
        while !from.is_empty() {
            let room = (SECTOR - at % SECTOR).min(from.len());
            self.unflushed.push(Piece { at, bytes: from[..room].to_vec() });
            at += room;
            from = &from[room..];
        }
    }

    fn flushed(&mut self, pieces: usize) {
        for piece in self.unflushed.drain(..pieces) {
            self.durable[piece.at..piece.at + piece.bytes.len()].copy_from_slice(&piece.bytes);
        }
    }

    /// What is there after a power cut where exactly the chosen pieces survive.
    pub fn survivor(&self, survives: impl Fn(usize) -> bool) -> Media {
        let mut image = self.durable.clone();
        for (index, piece) in self.unflushed.iter().enumerate() {
            if survives(index) {
                image[piece.at..piece.at + piece.bytes.len()].copy_from_slice(&piece.bytes);
            }
        }
        Media { visible: image.clone(), durable: image, unflushed: Vec::new() }
    }

    /// Survivors of a power cut: all of them where at most `exhaustive` pieces are in question, else a choice.
    pub fn survivors(&self, exhaustive: usize, samples: usize, random: &mut Random) -> Vec<Media> {
        let count = self.unflushed.len();
        if count <= exhaustive {
            return (0..1_u64 << count).map(|set| self.survivor(|index| set >> index & 1 != 0)).collect();
        }
        let mut images = vec![self.survivor(|_| false), self.survivor(|_| true)];
        for _ in 0..samples {
            let index_chosen = random.below(count as u64) as usize;
            images.push(match random.below(4) {
                0 => self.survivor(|index| index != index_chosen),
                1 => self.survivor(|index| index == index_chosen),
                2 => self.survivor(|index| index < index_chosen),
                _ => {
                    let seed = random.next();
                    self.survivor(|index| Random(seed ^ index as u64).one_in(2))
                }
            });
        }
        images
    }
}

/// One SPU with its bank.
pub struct World {
    pub media: RefCell<Media>,
    pub random: RefCell<Random>,
    /// Operations take their time: others run meanwhile.
    pub slow: Cell<bool>,
    /// Turns that a piece of a value takes on its way to a reader, at most: long ones let much happen meanwhile.
    pub reader_turns: Cell<u64>,
    /// Writes until the power fails.
    pub writes_left: Cell<Option<u64>>,
    pub writes: Cell<u64>,
    pub dead: Cell<bool>,
    /// (writes until one fails, how, how many fail from there on).
    pub fault: Cell<Option<(u64, Fault, u64)>>,
    pub planted: Cell<Option<Planted>>,
    pub flushes: Cell<u64>,
    pub operations: Cell<u64>,
    /// nsid -> region
    pub regions: RefCell<BTreeMap<u32, Region>>,
}

pub const NSID: u32 = 7;

impl World {
    pub fn new(media: Media, seed: u64) -> Rc<Self> {
        let bytes = media.visible.len() as u64;
        Rc::new(World {
            media: RefCell::new(media),
            random: RefCell::new(Random(seed)),
            slow: Cell::new(false),
            reader_turns: Cell::new(1),
            writes_left: Cell::new(None),
            writes: Cell::new(0),
            dead: Cell::new(false),
            fault: Cell::new(None),
            planted: Cell::new(None),
            flushes: Cell::new(0),
            operations: Cell::new(0),
            regions: RefCell::new(BTreeMap::from([(NSID, Region { base: 0, bytes })])),
        })
    }

    pub fn request(self: &Rc<Self>, payload: &[u8], reply_bytes: usize) -> Request {
        Request { world: self.clone(), payload: payload.to_vec(), reply: RefCell::new(vec![0xee; reply_bytes]) }
    }
}

pub struct Request {
    pub world: Rc<World>,
    pub payload: Vec<u8>,
    pub reply: RefCell<Vec<u8>>,
}

async fn yield_once() {
    let mut yielded = false;
    poll_fn(|context| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await
}

async fn join3<T>(
    first: impl Future<Output = T>,
    second: impl Future<Output = T>,
    third: impl Future<Output = T>,
) -> [T; 3] {
    let (first, (second, third)) = join(first, join(second, third)).await;
    [first, second, third]
}

impl Request {
    async fn delay(&self) {
        self.world.operations.set(self.world.operations.get() + 1);
        if self.world.slow.get() {
            let turns = self.world.random.borrow_mut().below(4);
            for _ in 0..turns {
                yield_once().await;
            }
        }
        if self.world.dead.get() {
            std::future::pending::<()>().await;
        }
    }

    /// True where this write shall fail.
    async fn before_write(&self) -> Result<(), Fault> {
        self.delay().await;
        if let Some((left, fault, count)) = self.world.fault.get() {
            if left > 0 {
                self.world.fault.set(Some((left - 1, fault, count)));
            } else {
                self.world.fault.set((count > 1).then_some((0, fault, count - 1)));
                return Err(fault);
            }
        }
        Ok(())
    }

    /// After each write: the power may fail.
    async fn after_write(&self) {
        self.world.writes.set(self.world.writes.get() + 1);
        if let Some(left) = self.world.writes_left.get() {
            if left <= 1 {
                self.world.dead.set(true);
                std::future::pending::<()>().await;
            }
            self.world.writes_left.set(Some(left - 1));
        }
        self.late().await;
    }

    /// Whether a read that may not wait is done this time.
    fn is_now(&self) -> bool {
        !self.world.slow.get() || self.world.random.borrow_mut().one_in(2)
    }

    /// Time between the effect of an operation and its completion.
    async fn late(&self) {
        if self.world.slow.get() && self.world.random.borrow_mut().one_in(2) {
            yield_once().await;
            if self.world.dead.get() {
                std::future::pending::<()>().await;
            }
        }
    }
}

impl Bank for Request {
    async fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Fault> {
        self.delay().await;
        let at = address as usize;
        into.copy_from_slice(&self.world.media.borrow().visible[at..at + into.len()]);
        self.late().await;
        Ok(())
    }

    fn read_now(&self, address: u64, into: &mut [u8]) -> Option<Result<(), Fault>> {
        self.is_now().then(|| {
            let at = address as usize;
            into.copy_from_slice(&self.world.media.borrow().visible[at..at + into.len()]);
            Ok(())
        })
    }

    fn send_now(&self, address: u64, offset: u32, bytes: u32) -> Option<Result<(), Fault>> {
        self.is_now().then(|| {
            let (from, to, bytes) = (address as usize, offset as usize, bytes as usize);
            self.reply.borrow_mut()[to..to + bytes]
                .copy_from_slice(&self.world.media.borrow().visible[from..from + bytes]);
            Ok(())
        })
    }

    async fn read_headers(&self, address: u64, stride: u64, into: &mut [u8]) -> Result<(), Fault> {
        for (place, piece) in (0..).zip(into.chunks_mut(HEADER_BYTES as usize)) {
            self.read(address + place * stride, piece).await?;
        }
        Ok(())
    }

    async fn zero(&self, address: u64, bytes: u32) -> Result<(), Fault> {
        self.write(address, &vec![0; bytes as usize]).await
    }

    async fn write(&self, address: u64, from: &[u8]) -> Result<(), Fault> {
        self.before_write().await?;
        self.world.media.borrow_mut().write(address as usize, from);
        self.after_write().await;
        Ok(())
    }

    async fn receive(&self, offset: u32, address: u64, bytes: u32) -> Result<(), Fault> {
        self.before_write().await?;
        let from = &self.payload[offset as usize..(offset + bytes) as usize];
        self.world.media.borrow_mut().write(address as usize, from);
        self.after_write().await;
        Ok(())
    }

    async fn store<'a>(&'a self, record: Record<'a>) -> Result<(), Fault> {
        let rest = async {
            match record.rest_bytes {
                0 => Ok(()),
                bytes => self.receive(record.rest_offset, record.rest_address, bytes).await,
            }
        };
        let header = self.write(record.address, record.header);
        let link = self.write(record.link.address, &record.link.bytes);
        // Also where nothing waits any of them may be the first.
        let order = self.world.random.borrow_mut().below(3);
        let outcomes: [Result<(), Fault>; 3] = match order {
            0 => join3(rest, header, link).await,
            1 => join3(header, link, rest).await,
            _ => join3(link, rest, header).await,
        };
        outcomes.into_iter().collect()
    }

    async fn write_words<'a>(&'a self, words: &'a [Word]) -> Result<(), Fault> {
        assert!(words.len() <= WORDS_MAX);
        let mut first = Ok(());
        for word in words {
            first = first.and(self.write(word.address, &word.bytes).await);
        }
        first
    }

    async fn send(&self, address: u64, offset: u32, bytes: u32) -> Result<(), Fault> {
        // In pieces, as a DMA engine does it: what it reads may change under it.
        for at in (0..bytes).step_by(4096) {
            self.delay().await;
            let turns = self.world.random.borrow_mut().below(self.world.reader_turns.get());
            for _ in 0..turns {
                yield_once().await;
            }
            let some = (bytes - at).min(4096) as usize;
            let from = (address + u64::from(at)) as usize;
            let to = (offset + at) as usize;
            self.reply.borrow_mut()[to..to + some]
                .copy_from_slice(&self.world.media.borrow().visible[from..from + some]);
        }
        Ok(())
    }

    async fn reply(&self, from: &[u8], offset: u32) -> Result<(), Fault> {
        self.delay().await;
        let at = offset as usize;
        self.reply.borrow_mut()[at..at + from.len()].copy_from_slice(from);
        Ok(())
    }

    async fn checksum(&self, address: u64, bytes: u32, seed: u32) -> Result<u32, Fault> {
        self.delay().await;
        let at = address as usize;
        Ok(crc32c::crc32c_append(seed, &self.world.media.borrow().visible[at..at + bytes as usize]))
    }

    async fn checksum_payload(&self, bytes: u32) -> Result<u32, Fault> {
        self.delay().await;
        Ok(crc32c::crc32c(&self.payload[..bytes as usize]))
    }

    async fn flush(&self) -> Result<(), Fault> {
        let pieces = self.world.media.borrow().unflushed.len();
        let before = self.world.flushes.get();
        self.delay().await;
        self.delay().await;
        // Another flush may have been done meanwhile: then fewer are left.
        if self.world.flushes.get() == before {
            self.world.media.borrow_mut().flushed(pieces);
        }
        self.world.flushes.set(self.world.flushes.get() + 1);
        self.late().await;
        Ok(())
    }

    async fn pause(&self) {
        if self.world.slow.get() && self.world.random.borrow_mut().one_in(8) {
            yield_once().await;
        }
    }

    async fn region(&self, nsid: u32) -> Result<Region, Failure> {
        self.delay().await;
        self.world.regions.borrow().get(&nsid).copied().ok_or(Failure::NoNamespace)
    }

    fn entropy(&self) -> u64 {
        0x1234_5678
    }

    fn place(&self) -> (u16, u16) {
        (0, 1)
    }

    fn planted(&self) -> Option<Planted> {
        self.world.planted.get()
    }
}

struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs handlers: which of those that can go on goes on next is the seed's choice. Ends when all are done, or the power is
/// off; all waiting for each other is a failure.
pub fn run(world: &Rc<World>, tasks: Vec<Pin<Box<dyn Future<Output = ()> + '_>>>) {
    let mut tasks: Vec<_> = tasks.into_iter().map(|task| Some((task, Arc::new(Flag(AtomicBool::new(true)))))).collect();
    let mut seed = Random(world.random.borrow_mut().next());
    loop {
        if world.dead.get() || tasks.iter().all(Option::is_none) {
            return;
        }
        let ready: Vec<usize> = (0..tasks.len())
            .filter(|index| tasks[*index].as_ref().is_some_and(|task| task.1.0.load(Ordering::Relaxed)))
            .collect();
        assert!(!ready.is_empty(), "all handlers wait for each other");
        let index = ready[seed.below(ready.len() as u64) as usize];
        let (task, flag) = tasks[index].as_mut().expect("ready");
        flag.0.store(false, Ordering::Relaxed);
        let waker = Waker::from(flag.clone());
        if task.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
            tasks[index] = None;
        }
    }
}

/// Runs one handler; `None` where the power failed.
pub fn run_one<T>(world: &Rc<World>, task: impl Future<Output = T>) -> Option<T> {
    let out = Cell::new(None);
    run(world, vec![Box::pin(async { out.set(Some(task.await)) })]);
    out.into_inner()
}

/// Identity of a key. `spread` 0: all keys of a namespace fall on 4 hashes, so that chains are long and hashes equal.
pub fn id(key: &[u8], spread: bool) -> PairId {
    let mut hash = key
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3));
    hash = Random(hash).next();
    if !spread {
        hash &= 0xc000_0000_0000_0000;
    }
    let mut bytes = [0; KEY_BYTES_MAX];
    bytes[..key.len()].copy_from_slice(key);
    PairId { hash, key: bytes, key_bytes: key.len() as u8 }
}

/// A value that tells its length, key and version from any part of it.
pub fn value(key: &[u8], version: u64, bytes: usize) -> Vec<u8> {
    let mut random = Random(version ^ id(key, true).hash);
    let mut out = vec![0; bytes];
    for place in out.chunks_mut(8) {
        let word = random.next().to_le_bytes();
        place.copy_from_slice(&word[..place.len()]);
    }
    out
}
