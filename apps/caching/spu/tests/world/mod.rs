//! A device with the app on media that lose power; a backing file in the test's memory; a manager and clients that work beside each other; and the model
//! that says what may be read afterwards. A sector has bytes that say which write they are of.
#![allow(dead_code)]

#[path = "../../../../atomic-write/spu/tests/world/drive.rs"]
pub mod drive;

use caching_spu::wire::{
    ChunkArguments, Counts, Descriptor, DirtyChunk, PATH_BYTES_MAX, STATUS_BUSY, STATUS_CHANGED, STATUS_DIRTY,
    STATUS_MISS, handler, home,
};
pub use drive::{Drive, STEPS_MAX, status};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use willow_device::media::fault::{FaultMedia, FaultOptions};
use willow_device::{BuiltInApp, DeviceConfig, HostCompletion, HreId, Store};
use willow_on_flash::Medium;

pub const SPUS: u16 = 3;
pub const CHUNK_BYTES: u32 = 4096;
pub const SECTOR_BYTES: u32 = 512;
pub const SECTORS: u32 = CHUNK_BYTES / SECTOR_BYTES;
/// Chunks of the backing file.
pub const CHUNKS: u64 = 15;
pub const EPOCH: u32 = 7;

pub fn config() -> DeviceConfig {
    DeviceConfig {
        spus: SPUS,
        namespace_bytes: 1 << 20,
        block_bytes: 512,
        kv_namespace_bytes: 0,
        ..DeviceConfig::default()
    }
}

pub fn options(seed: u64) -> FaultOptions {
    FaultOptions { seed, delayed_percent: (seed % 3 * 25) as u8, ..FaultOptions::new(SPUS as usize, 1 << 30) }
}

pub fn descriptor(slots: u32) -> Descriptor {
    Descriptor {
        chunk_bytes: CHUNK_BYTES,
        slots,
        writes_through: false,
        bytes: CHUNKS * u64::from(CHUNK_BYTES),
        identity: [3; 24],
        stamp: [0; 24],
        generation: 1,
        path_bytes: 0,
        path: [0; PATH_BYTES_MAX],
    }
}

/// Bytes of a sector: which write they are of; 0 is what the file began with.
pub fn sector(chunk: u64, sector: u32, write: u32) -> Vec<u8> {
    let which = [chunk as u32, sector, write, !write];
    which.iter().flat_map(|word| word.to_le_bytes()).cycle().take(SECTOR_BYTES as usize).collect()
}

/// The write that bytes of a sector are of.
pub fn write_of(chunk: u64, number: u32, bytes: &[u8]) -> Result<u32, String> {
    let write = u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]);
    if bytes == sector(chunk, number, write) {
        Ok(write)
    } else {
        Err(format!("sector {number} of chunk {chunk} has other bytes: {:?}", &bytes[..16]))
    }
}

pub fn fresh_chunk(chunk: u64) -> Vec<u8> {
    (0..SECTORS).flat_map(|number| sector(chunk, number, 0)).collect()
}

pub struct Rig {
    pub drive: Drive,
    pub app: u16,
}

impl Rig {
    pub fn open(media: &FaultMedia) -> Result<Rig, String> {
        Rig::open_with(Box::new(media.store()), vec![])
    }

    /// On fresh media that do not fail, with a cache of so many slots an SPU.
    pub fn on(medium: Medium, slots: u32) -> Rig {
        let (store, apps) = medium.banks(SPUS, 8 << 20);
        let mut rig = Rig::open_with(store, apps).expect("a fresh device opens");
        rig.create(&descriptor(slots));
        rig
    }

    fn open_with(store: Box<dyn Store>, mut apps: Vec<BuiltInApp>) -> Result<Rig, String> {
        apps.extend([base_io_spu::native(), caching_spu::native()].map(BuiltInApp::Native));
        let drive = Drive::open(config(), store, apps)?;
        let app = drive.device.app_number("caching").ok_or("no app")?;
        Ok(Rig { drive, app })
    }

    /// Makes cache 0, and becomes its manager.
    pub fn create(&mut self, descriptor: &Descriptor) {
        for spu in 0..SPUS {
            let body = [&ChunkArguments::default().encode()[..], &descriptor.encode()].concat();
            let done = self.drive.call((self.app, spu, handler::CREATE), &[], &body, 0);
            assert_eq!(status(&done), 0, "a cache is made");
        }
        assert_eq!(self.everywhere(handler::CLAIM, 0), [0; SPUS as usize]);
    }

    /// What each SPU says to a request without a chunk.
    pub fn everywhere(&mut self, number: u8, first: u32) -> Vec<u32> {
        (0..SPUS)
            .map(|spu| {
                let asked = ChunkArguments { epoch: EPOCH, first, ..ChunkArguments::default() };
                status(&self.drive.call((self.app, spu, number), &asked.encode(), &[], 0))
            })
            .collect()
    }

    pub fn begin(&mut self, hre: HreId, number: u8, asked: &ChunkArguments, payload: &[u8], reply: usize) -> u64 {
        let to = (self.app, home(asked.chunk, SPUS), number);
        self.drive.submit_on(hre, to, &asked.encode(), payload, reply)
    }

    pub fn ask(
        &mut self,
        hre: HreId,
        number: u8,
        asked: &ChunkArguments,
        payload: &[u8],
        reply: usize,
    ) -> HostCompletion {
        let tag = self.begin(hre, number, asked, payload, reply);
        self.drive.wait(tag)
    }

    pub fn install(&mut self, chunk: u64, bytes: &[u8], (process, rights): (u32, u32)) -> u32 {
        let asked = ChunkArguments { chunk, epoch: EPOCH, first: process, second: rights, ..ChunkArguments::default() };
        let hre = self.drive.hre;
        status(&self.ask(hre, handler::INSTALL, &asked, bytes, 0))
    }

    pub fn counts(&mut self, spu: u16) -> (Descriptor, Counts) {
        let asked = ChunkArguments { epoch: EPOCH, ..ChunkArguments::default() };
        let reply = Descriptor::BYTES + Counts::BYTES;
        let done = self.drive.call((self.app, spu, handler::DESCRIBE), &asked.encode(), &[], reply);
        assert_eq!(status(&done), 0);
        let (head, counts) = done.buffer.split_at(Descriptor::BYTES);
        (Descriptor::decode(head.try_into().unwrap()), Counts::decode(counts))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A sector of a chunk.
    Write(u64, u32),
    Read(u64),
    Sync,
    /// All dirty chunks, as the manager does in the background.
    WriteBack,
    /// A chunk has to go, if it is clean.
    Drop(u64),
}

/// What was written, answered and synced.
#[derive(Clone, Debug, Default)]
pub struct Model {
    /// By chunk and sector: the writes that were begun, in their order.
    pub begun: BTreeMap<(u64, u32), Vec<u32>>,
    /// The last one that was answered.
    pub answered: BTreeMap<(u64, u32), u32>,
    /// The last one that has to be there after a cut.
    pub durable: BTreeMap<(u64, u32), u32>,
    pub next: u32,
    /// The backing file: chunks that are not as they were at first. It is durable.
    pub backing: BTreeMap<u64, Vec<u8>>,
}

impl Model {
    pub fn backing(&self, chunk: u64) -> Vec<u8> {
        self.backing.get(&chunk).cloned().unwrap_or_else(|| fresh_chunk(chunk))
    }

    /// Holds a chunk as it was read against what was written; `least`: what has to be there.
    pub fn check(&self, chunk: u64, bytes: &[u8], least: &BTreeMap<(u64, u32), u32>) -> Result<(), String> {
        for (number, found) in (0..).zip(bytes.chunks(SECTOR_BYTES as usize)) {
            let write = write_of(chunk, number, found)?;
            let key = (chunk, number);
            let begun = self.begun.get(&key).map_or(&[][..], Vec::as_slice);
            if write != 0 && !begun.contains(&write) {
                return Err(format!("sector {number} of chunk {chunk} has write {write}, which nobody made there"));
            }
            // Numbers of writes rise.
            let must = least.get(&key).copied().unwrap_or(0);
            if write < must {
                return Err(format!("sector {number} of chunk {chunk} lost write {must}, has {write}"));
            }
        }
        Ok(())
    }
}

/// What clients share.
pub struct World {
    pub rig: RefCell<Rig>,
    pub model: RefCell<Model>,
    /// Chunks that the manager works on.
    busy: RefCell<BTreeSet<u64>>,
}

/// Lets others go first.
async fn pause() {
    let mut first = true;
    std::future::poll_fn(|_| if std::mem::take(&mut first) { Poll::Pending } else { Poll::Ready(()) }).await;
}

impl World {
    pub fn new(rig: Rig, model: Model) -> World {
        World { rig: RefCell::new(rig), model: RefCell::new(model), busy: RefCell::default() }
    }

    async fn ask(&self, number: u8, asked: ChunkArguments, payload: &[u8], reply: usize) -> HostCompletion {
        let asked = ChunkArguments { epoch: EPOCH, ..asked };
        let tag = {
            let mut rig = self.rig.borrow_mut();
            let hre = rig.drive.hre;
            rig.begin(hre, number, &asked, payload, reply)
        };
        self.done(tag).await
    }

    async fn done(&self, tag: u64) -> HostCompletion {
        loop {
            if let Some(done) = self.rig.borrow_mut().drive.done.remove(&tag) {
                return done;
            }
            pause().await;
        }
    }

    async fn own(&self, chunk: u64) {
        while !self.busy.borrow_mut().insert(chunk) {
            pause().await;
        }
    }

    /// Puts a chunk in, where it is not by now.
    async fn fetch(&self, chunk: u64) -> Result<(), String> {
        for _ in 0..1000 {
            self.own(chunk).await;
            let bytes = self.model.borrow().backing(chunk);
            let done = self.ask(handler::INSTALL, ChunkArguments { chunk, ..Default::default() }, &bytes, 0).await;
            self.busy.borrow_mut().remove(&chunk);
            match status(&done) {
                0 => return Ok(()),
                STATUS_DIRTY => self.write_back(home(chunk, SPUS)).await?,
                // All of its places are just used.
                STATUS_BUSY => pause().await,
                status => return Err(format!("chunk {chunk} cannot be put in: status {status}")),
            }
        }
        Err(format!("chunk {chunk} finds no room"))
    }

    /// Writes the dirty chunks of an SPU back.
    pub async fn write_back(&self, spu: u16) -> Result<(), String> {
        let asked = ChunkArguments { epoch: EPOCH, ..Default::default() };
        let tag = {
            let mut rig = self.rig.borrow_mut();
            let to = (rig.app, spu, handler::DIRTY);
            rig.drive.submit(to, &asked.encode(), &[], 32 * DirtyChunk::BYTES)
        };
        let done = self.done(tag).await;
        let listed = done.buffer.chunks(DirtyChunk::BYTES).take(done.result as usize).map(DirtyChunk::decode);
        for DirtyChunk { chunk, .. } in listed.collect::<Vec<_>>() {
            self.own(chunk).await;
            let all = ChunkArguments { chunk, second: CHUNK_BYTES, ..Default::default() };
            let read = self.ask(handler::COPY, all, &[], CHUNK_BYTES as usize).await;
            if status(&read) == 0 {
                self.model.borrow_mut().backing.insert(chunk, read.buffer);
                let clean = ChunkArguments { chunk, first: read.result, ..Default::default() };
                let cleaned = self.ask(handler::CLEAN, clean, &[], 0).await;
                if ![0, STATUS_CHANGED, STATUS_MISS].contains(&status(&cleaned)) {
                    return Err(format!("chunk {chunk} is not clean: status {}", status(&cleaned)));
                }
            } else if status(&read) != STATUS_MISS {
                return Err(format!("chunk {chunk} cannot be read: status {}", status(&read)));
            }
            self.busy.borrow_mut().remove(&chunk);
        }
        Ok(())
    }

    /// Asks for a chunk, and puts it in as often as it is missed.
    async fn with(
        &self,
        number: u8,
        asked: ChunkArguments,
        payload: &[u8],
        reply: usize,
    ) -> Result<HostCompletion, String> {
        for _ in 0..1000 {
            let done = self.ask(number, asked, payload, reply).await;
            match status(&done) {
                0 => return Ok(done),
                STATUS_MISS => self.fetch(asked.chunk).await?,
                status => return Err(format!("{asked:?} ends with status {status}")),
            }
        }
        Err(format!("{asked:?} is missed all the time"))
    }

    async fn step(&self, step: Step) -> Result<(), String> {
        match step {
            Step::Write(chunk, number) => {
                let key = (chunk, number);
                let write = {
                    let mut model = self.model.borrow_mut();
                    model.next += 1;
                    let write = model.next;
                    model.begun.entry(key).or_default().push(write);
                    write
                };
                let (first, second) = (number * SECTOR_BYTES, SECTOR_BYTES);
                let asked = ChunkArguments { chunk, first, second, ..Default::default() };
                self.with(handler::WRITE, asked, &sector(chunk, number, write), 0).await?;
                self.model.borrow_mut().answered.insert(key, write);
            }
            Step::Read(chunk) => {
                let least = self.model.borrow().answered.clone();
                let asked = ChunkArguments { chunk, second: CHUNK_BYTES, ..Default::default() };
                let read = self.with(handler::READ, asked, &[], CHUNK_BYTES as usize).await?;
                // A write that is under way may be there in part.
                let model = self.model.borrow();
                let under_way = |number: u32| {
                    let begun = model.begun.get(&(chunk, number)).and_then(|begun| begun.last());
                    begun.is_some_and(|last| model.answered.get(&(chunk, number)) != Some(last))
                };
                if !(0..SECTORS).any(under_way) {
                    model.check(chunk, &read.buffer, &least).map_err(|why| format!("a read: {why}"))?;
                }
            }
            Step::Sync => {
                let answered = self.model.borrow().answered.clone();
                for chunk in 0..u64::from(SPUS) {
                    let done = self.ask(handler::SYNC, ChunkArguments { chunk, ..Default::default() }, &[], 0).await;
                    if status(&done) != 0 {
                        return Err(format!("a sync ends with status {}", status(&done)));
                    }
                }
                let mut model = self.model.borrow_mut();
                for (key, write) in answered {
                    let least = model.durable.entry(key).or_default();
                    *least = write.max(*least);
                }
            }
            Step::WriteBack => {
                for spu in 0..SPUS {
                    self.write_back(spu).await?;
                }
            }
            Step::Drop(chunk) => {
                self.own(chunk).await;
                let done = self.ask(handler::DROP, ChunkArguments { chunk, ..Default::default() }, &[], 0).await;
                self.busy.borrow_mut().remove(&chunk);
                if ![0, STATUS_DIRTY, STATUS_MISS].contains(&status(&done)) {
                    return Err(format!("chunk {chunk} does not go: status {}", status(&done)));
                }
            }
        }
        Ok(())
    }

    async fn client(&self, steps: &[Step]) -> Result<(), String> {
        for step in steps {
            self.step(*step).await.map_err(|why| format!("{step:?}: {why}"))?;
        }
        Ok(())
    }

    /// Runs clients beside each other until all are through or the power has gone.
    pub fn run(&self, media: Option<&FaultMedia>, clients: &[Vec<Step>]) -> Result<(), String> {
        type Client<'a> = Pin<Box<dyn Future<Output = Result<(), String>> + 'a>>;
        let mut running: Vec<Client<'_>> = clients.iter().map(|steps| Box::pin(self.client(steps)) as _).collect();
        let mut context = Context::from_waker(Waker::noop());
        for _ in 0..STEPS_MAX {
            let mut left = Vec::new();
            for mut client in running {
                match client.as_mut().poll(&mut context) {
                    // What fails is the power's doing, where that has gone.
                    Poll::Ready(Err(_)) if media.is_some_and(FaultMedia::is_cut) => return Ok(()),
                    Poll::Ready(done) => done?,
                    Poll::Pending => left.push(client),
                }
            }
            running = left;
            if running.is_empty() || media.is_some_and(FaultMedia::is_cut) {
                return Ok(());
            }
            self.rig.borrow_mut().drive.step();
        }
        panic!("the clients do not come to an end");
    }

    /// Has one thing done to its end.
    pub fn finish<T>(&self, what: impl Future<Output = T>) -> T {
        let mut what = pin!(what);
        let mut context = Context::from_waker(Waker::noop());
        for _ in 0..STEPS_MAX {
            if let Poll::Ready(done) = what.as_mut().poll(&mut context) {
                return done;
            }
            self.rig.borrow_mut().drive.step();
        }
        panic!("it does not come to an end");
    }

    /// A chunk as a reader finds it: in the cache, or else in the backing file.
    pub fn look(&self, chunk: u64) -> Result<Vec<u8>, String> {
        let asked = ChunkArguments { chunk, second: CHUNK_BYTES, ..Default::default() };
        let read = self.finish(self.ask(handler::COPY, asked, &[], CHUNK_BYTES as usize));
        match status(&read) {
            0 => Ok(read.buffer),
            STATUS_MISS => Ok(self.model.borrow().backing(chunk)),
            status => Err(format!("chunk {chunk} cannot be read: status {status}")),
        }
    }
}

/// A device with a cache of two slots an SPU.
pub fn start(seed: u64) -> (FaultMedia, Rig) {
    let media = FaultMedia::new(options(seed));
    let mut rig = Rig::open(&media).expect("a fresh device opens");
    rig.drive.settle();
    rig.create(&descriptor(2));
    rig.drive.settle();
    (media, rig)
}
