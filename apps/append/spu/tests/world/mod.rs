//! A device with the app and Base-IO on media that lose power; clients that append beside each other; and the model that says what may be in a file
//! afterwards. Each record says which it is, and has bytes that no other has.
#![allow(dead_code)]

#[path = "../../../../atomic-write/spu/tests/world/drive.rs"]
pub mod drive;

use append_spu::wire::{
    AppendArguments, Delegation, Entry, Extent, STATUS_INSUFFICIENT, STATUS_NOT_FOUND, STATUS_SUSPENDED, handler,
};
use base_io_spu::wire as base_io;
pub use drive::{Drive, STEPS_MAX, status};
use std::collections::BTreeMap;
use willow_device::media::fault::{FaultMedia, FaultOptions};
use willow_device::{BuiltInApp, DeviceConfig, HreId, RpcOutcome, Store};
use willow_on_flash::Medium;

pub const SPUS: u16 = 3;
/// Short, so that most records lie on several SPUs.
pub const STRIPE: u32 = 1024;
/// Files of the workloads: of one coordinator, and of another.
pub const FILES: [u64; 3] = [3, 6, 10];
/// Where the tail of a file begins, in the namespace, and where its second extent does.
pub const TAIL_BYTES: u64 = 48 << 10;
/// Bytes that a file has when it is delegated: they are the kernel's affair.
pub const FIRST: u64 = 5000;

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

/// The extents of a file: two, in the wrong order, of lengths that are no multiple of anything.
pub fn extents(file: u64) -> [Extent; 2] {
    let start = file * TAIL_BYTES;
    [Extent { start: start + 30_000, bytes: 10_007 }, Extent { start, bytes: 29_999 }]
}

pub struct Rig {
    pub drive: Drive,
    pub append: u16,
    pub base_io: u16,
    pub base: u64,
}

impl Rig {
    pub fn open(media: &FaultMedia) -> Result<Rig, String> {
        Rig::open_with(Box::new(media.store()), vec![])
    }

    /// On fresh media that do not fail, with files that are delegated.
    pub fn on(medium: Medium) -> Rig {
        let (store, apps) = medium.banks(SPUS, 8 << 20);
        let mut rig = Rig::open_with(store, apps).expect("a fresh device opens");
        FILES.into_iter().for_each(|file| rig.delegate(file));
        rig
    }

    fn open_with(store: Box<dyn Store>, mut apps: Vec<BuiltInApp>) -> Result<Rig, String> {
        apps.extend([base_io_spu::native(), append_spu::native()].map(BuiltInApp::Native));
        let drive = Drive::open(config(), store, apps)?;
        let (append, base_io) = (drive.device.app_number("append"), drive.device.app_number("base-io"));
        let base = drive.device.namespaces().first().ok_or("no namespace")?.base;
        Ok(Rig { append: append.ok_or("no app")?, base_io: base_io.ok_or("no app")?, base, drive })
    }

    pub fn to(&self, file: u64, number: u8) -> (u16, u16, u8) {
        (self.append, (file % u64::from(SPUS)) as u16, number)
    }

    pub fn ask(&mut self, file: u64, number: u8, body: &[u8]) -> u32 {
        let to = self.to(file, number);
        status(&self.drive.call(to, &[], body, 0))
    }

    pub fn delegation(&self, file: u64, length: u64, count: u32) -> Delegation {
        Delegation { file, length, first: FIRST, base: self.base, stripe_bytes: STRIPE, extents: count }
    }

    /// The body of a delegation with the first extents of the file.
    pub fn delegation_body(&self, file: u64, length: u64, count: u32) -> Vec<u8> {
        let mut body = self.delegation(file, length, count).encode().to_vec();
        extents(file).iter().take(count as usize).for_each(|extent| body.extend(extent.encode()));
        body
    }

    pub fn delegate(&mut self, file: u64) {
        let body = self.delegation_body(file, FIRST, 2);
        assert_eq!(self.ask(file, handler::DELEGATE, &body), 0);
    }

    pub fn begin_append(&mut self, hre: HreId, file: u64, record: &[u8]) -> u64 {
        let arguments = AppendArguments { file, bytes: record.len() as u32 }.encode();
        let to = self.to(file, handler::APPEND);
        self.drive.submit_on(hre, to, &arguments, record, 0)
    }

    pub fn append(&mut self, hre: HreId, file: u64, record: &[u8]) -> (u32, u32) {
        let tag = self.begin_append(hre, file, record);
        let done = self.drive.wait(tag);
        (status(&done), done.result)
    }

    pub fn begin_entry(&mut self, file: u64, number: u8) -> u64 {
        let to = self.to(file, number);
        self.drive.submit(to, &file.to_le_bytes(), &[], Entry::BYTES)
    }

    /// What `LENGTH` or `SUSPEND` says.
    pub fn entry(&mut self, file: u64, number: u8) -> Result<Entry, u32> {
        let tag = self.begin_entry(file, number);
        let done = self.drive.wait(tag);
        match status(&done) {
            0 => Ok(Entry::decode(&done.buffer)),
            status => Err(status),
        }
    }

    /// All that are delegated, on all SPUs.
    pub fn list(&mut self) -> Result<BTreeMap<u64, Entry>, String> {
        let mut found = BTreeMap::new();
        for spu in 0..SPUS {
            let mut from = 0u64;
            loop {
                let to = (self.append, spu, handler::LIST);
                let done = self.drive.call(to, &from.to_le_bytes(), &[], Entry::BYTES);
                match status(&done) {
                    0 => {}
                    STATUS_NOT_FOUND => break,
                    status => return Err(format!("a list ends with status {status}")),
                }
                let entry = Entry::decode(&done.buffer);
                from = u64::from(entry.slot) + 1;
                if found.insert(entry.file, entry).is_some() {
                    return Err(format!("file {} is listed twice", entry.file));
                }
            }
        }
        Ok(found)
    }

    /// Bytes of the namespace that lie in one stripe, by Base-IO.
    pub fn read_piece(&mut self, byte: u64, bytes: u64) -> Vec<u8> {
        let (row, within) = (byte / u64::from(STRIPE), byte % u64::from(STRIPE));
        let arguments = base_io::RangeArguments {
            nv_address: self.base + row / u64::from(SPUS) * u64::from(STRIPE) + within,
            bytes: bytes as u32,
            buffer_offset: 0,
            first_bytes: bytes as u32,
            stripe_bytes: STRIPE,
            stride: STRIPE,
            flags: 0,
        };
        let to = (self.base_io, (row % u64::from(SPUS)) as u16, base_io::handler::READ);
        let done = self.drive.call(to, &arguments.encode(), &[], bytes as usize);
        assert_eq!(done.outcome, RpcOutcome::Answered { status: 0 });
        done.buffer[..bytes as usize].to_vec()
    }

    /// What a file has from where it was delegated up to a length.
    pub fn read(&mut self, file: u64, length: u64) -> Vec<u8> {
        let mut left = length - FIRST;
        let mut found = Vec::new();
        for extent in extents(file) {
            let (mut byte, end) = (extent.start, extent.start + extent.bytes.min(left));
            left -= end - byte;
            while byte < end {
                let next = (byte / u64::from(STRIPE) + 1) * u64::from(STRIPE);
                found.extend(self.read_piece(byte, next.min(end) - byte));
                byte = next;
            }
        }
        assert_eq!(left, 0, "a length beyond what the file has");
        found
    }
}

/// Bytes of a record: its number, its length, and bytes that no other has there.
pub fn record(number: u32, bytes: u32) -> Vec<u8> {
    let head = [number.to_le_bytes(), bytes.to_le_bytes()].concat();
    let body = (8..bytes).map(|at| (number.wrapping_mul(197).wrapping_add(at * 31) >> 2) as u8 | 1);
    head.into_iter().chain(body).collect()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Append(u64, u32),
    Length(u64),
    Suspend(u64),
}

impl Step {
    pub fn file(self) -> u64 {
        match self {
            Step::Append(file, _) | Step::Length(file) | Step::Suspend(file) => file,
        }
    }
}

/// What was asked for and answered.
#[derive(Clone, Debug, Default)]
pub struct Model {
    /// File, bytes, and where it is said to lie.
    pub records: Vec<(u64, u32, Option<u32>)>,
    /// Least lengths of files: what was told.
    pub told: BTreeMap<u64, u64>,
    /// Last lengths of files.
    pub last: BTreeMap<u64, u64>,
}

impl Model {
    pub fn tell(&mut self, file: u64, length: u64) {
        let least = self.told.entry(file).or_default();
        *least = length.max(*least);
    }

    /// Holds a file against what was asked for.
    pub fn check(&self, file: u64, length: u64, found: &[u8]) -> Result<(), String> {
        let told = self.told.get(&file).copied().unwrap_or(FIRST);
        if length < told {
            return Err(format!("file {file} has {length} bytes, and was said to have {told}"));
        }
        if self.last.get(&file).is_some_and(|last| *last != length) {
            return Err(format!("file {file} has {length} bytes, and ended with {:?}", self.last.get(&file)));
        }
        let (mut at, mut seen) = (0, BTreeMap::new());
        while at < found.len() {
            let word = |from: usize| found.get(from..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes));
            let number = word(at).unwrap_or(u32::MAX);
            let Some((of, bytes, _)) = self.records.get(number as usize) else {
                return Err(format!("file {file} has no record at {at}, of {} bytes", found.len()));
            };
            if *of != file || found.get(at..at + *bytes as usize) != Some(&record(number, *bytes)[..]) {
                return Err(format!("record {number} of file {file} at {at} is torn"));
            }
            if seen.insert(number, FIRST as u32 + at as u32).is_some() {
                return Err(format!("record {number} of file {file} is there twice"));
            }
            at += *bytes as usize;
        }
        for (number, (of, _, answered)) in (0..).zip(&self.records) {
            if *of == file && answered.is_some() && seen.get(&number) != answered.as_ref() {
                return Err(format!("record {number} of file {file} was at {answered:?}, is {:?}", seen.get(&number)));
            }
        }
        Ok(())
    }
}

/// Runs clients beside each other, each a step after the other, until all are through or the power has gone.
pub fn run(rig: &mut Rig, media: &FaultMedia, clients: &[Vec<Step>], model: &mut Model) -> Result<(), String> {
    let mut at: Vec<(usize, Option<(u64, usize)>)> = vec![(0, None); clients.len()];
    for _ in 0..STEPS_MAX {
        for ((next, waiting), steps) in at.iter_mut().zip(clients) {
            let (None, Some(step)) = (&waiting, steps.get(*next)) else { continue };
            let number = model.records.len();
            let tag = match *step {
                Step::Append(file, bytes) => {
                    model.records.push((file, bytes, None));
                    rig.begin_append(rig.drive.hre, file, &record(number as u32, bytes))
                }
                Step::Length(file) => rig.begin_entry(file, handler::LENGTH),
                Step::Suspend(file) => rig.begin_entry(file, handler::SUSPEND),
            };
            *waiting = Some((tag, number));
        }
        if at.iter().all(|(_, waiting)| waiting.is_none()) {
            return Ok(());
        }
        rig.drive.step();
        if media.is_cut() {
            return Ok(());
        }
        for ((next, waiting), steps) in at.iter_mut().zip(clients) {
            let Some((tag, number)) = *waiting else { continue };
            let Some(done) = rig.drive.done.remove(&tag) else { continue };
            let (step, status) = (steps[*next], status(&done));
            (*next, *waiting) = (*next + 1, None);
            let file = step.file();
            match (step, status) {
                (Step::Append(_, bytes), 0) => {
                    model.records[number].2 = Some(done.result);
                    model.tell(file, u64::from(done.result) + u64::from(bytes));
                }
                (Step::Append(..), STATUS_INSUFFICIENT) => {}
                (Step::Append(..), STATUS_SUSPENDED) => {}
                (Step::Length(_), 0) => model.tell(file, Entry::decode(&done.buffer).length),
                (Step::Suspend(_), 0) => {
                    let length = Entry::decode(&done.buffer).length;
                    model.tell(file, length);
                    if model.last.insert(file, length).is_some_and(|before| before != length) {
                        return Err(format!("file {file} ended twice"));
                    }
                }
                (step, status) => return Err(format!("{step:?} ends with status {status}")),
            }
        }
    }
    panic!("the clients do not come to an end");
}

/// A device whose files are delegated.
pub fn start(seed: u64) -> (FaultMedia, Rig) {
    let media = FaultMedia::new(options(seed));
    let mut rig = Rig::open(&media).expect("a fresh device opens");
    rig.drive.settle();
    FILES.into_iter().for_each(|file| rig.delegate(file));
    rig.drive.settle();
    (media, rig)
}
