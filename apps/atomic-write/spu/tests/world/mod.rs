//! A whole device with the app on media that lose power; clients that commit, abort and write beside each other; and the model that says
//! what may be there afterwards.
//!
//! Blocks are 512 bytes, which media write whole or not at all. Each write has a value of its own, so that a block tells which write
//! it has. A client's blocks are its own: isolation is the clients' affair (Willow, section 4.3).
#![allow(dead_code)]

mod drive;

use atomic_write_spu::wire::{self, CommitArguments, Statistics, VectorWrite, WriteArguments, handler};
use base_io_spu::wire as base_io;
use drive::STEPS_MAX;
pub use drive::{Drive, status};
use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use willow_device::media::fault::{FaultMedia, FaultOptions, Random};
use willow_device::{BuiltInApp, CommandSet, DeviceConfig, RpcOutcome, Store};
use willow_on_flash::Medium;

pub const SPUS: u16 = 3;
pub const BLOCK: usize = 512;
/// A device with the app.
pub struct Rig {
    drive: Drive,
    pub atomic_write: u16,
    pub base_io: u16,
    pub base: u64,
}

impl Deref for Rig {
    type Target = Drive;
    fn deref(&self) -> &Drive {
        &self.drive
    }
}

impl DerefMut for Rig {
    fn deref_mut(&mut self) -> &mut Drive {
        &mut self.drive
    }
}

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

impl Rig {
    pub fn open(store: Box<dyn Store>) -> Result<Rig, String> {
        Rig::open_with(store, vec![])
    }

    /// On fresh media that do not fail.
    pub fn on(medium: Medium) -> Rig {
        let (store, apps) = medium.banks(SPUS, 1 << 30);
        Rig::open_with(store, apps).expect("a fresh device opens")
    }

    fn open_with(store: Box<dyn Store>, mut apps: Vec<BuiltInApp>) -> Result<Rig, String> {
        apps.extend([BuiltInApp::Native(base_io_spu::native()), BuiltInApp::Native(atomic_write_spu::native())]);
        let drive = Drive::open(config(), store, apps)?;
        let device = &drive.device;
        let namespace = device.namespaces().first().cloned().ok_or("no namespace")?;
        assert_eq!(namespace.csi, CommandSet::Nvm);
        let (atomic_write, base_io) =
            (device.app_number("atomic-write").unwrap(), device.app_number("base-io").unwrap());
        Ok(Rig { drive, atomic_write, base_io, base: namespace.base })
    }

    /// A request to the app: its status and result.
    pub fn ask(&mut self, spu: u16, number: u8, arguments: &[u8], payload: &[u8]) -> (u32, u32) {
        let to = (self.atomic_write, spu, number);
        let done = self.call(to, arguments, payload, 0);
        (status(&done), done.result)
    }

    pub fn address(&self, block: usize) -> (u16, u64) {
        ((block % SPUS as usize) as u16, self.base + (block / SPUS as usize * BLOCK) as u64)
    }

    fn range(&self, address: u64, flags: u32) -> [u8; base_io::RangeArguments::BYTES] {
        base_io::RangeArguments {
            nv_address: address,
            bytes: BLOCK as u32,
            buffer_offset: 0,
            first_bytes: BLOCK as u32,
            stripe_bytes: 8192,
            stride: 8192,
            flags,
        }
        .encode()
    }

    pub fn read_block(&mut self, block: usize) -> Vec<u8> {
        let (spu, address) = self.address(block);
        let arguments = self.range(address, 0);
        let to = (self.base_io, spu, base_io::handler::READ);
        let done = self.call(to, &arguments, &[], BLOCK);
        assert_eq!(done.outcome, RpcOutcome::Answered { status: 0 }, "block {block} cannot be read");
        done.buffer[..BLOCK].to_vec()
    }

    pub fn begin_write_block(&mut self, block: usize, value: u32, fua: bool) -> u64 {
        let (spu, address) = self.address(block);
        let arguments = self.range(address, if fua { base_io::FLAG_FUA } else { 0 });
        let to = (self.base_io, spu, base_io::handler::WRITE);
        self.submit(to, &arguments, &content(value), 0)
    }

    pub fn begin_log(&mut self, transaction: u64, spu: u16, writes: &[(usize, u32)], first: bool) -> u64 {
        let flags = if first { wire::FLAG_FIRST } else { 0 };
        let app = self.atomic_write;
        let to = |number| (app, spu, number);
        if let [(block, value)] = writes {
            let (_, nv_address) = self.address(*block);
            let arguments = WriteArguments { transaction, nv_address, bytes: BLOCK as u32, flags }.encode();
            return self.submit(to(handler::LOG_WRITE), &arguments, &content(*value), 0);
        }
        let arguments = WriteArguments { transaction, nv_address: 0, bytes: writes.len() as u32, flags }.encode();
        let mut payload = Vec::new();
        for (block, _) in writes {
            payload.extend(VectorWrite { nv_address: self.address(*block).1, bytes: BLOCK as u32 }.encode());
        }
        writes.iter().for_each(|(_, value)| payload.extend(content(*value)));
        self.submit(to(handler::VECTOR_LOG_WRITE), &arguments, &payload, 0)
    }

    /// `counts`: writes by SPU.
    pub fn begin_commit(&mut self, transaction: u64, coordinator: u16, counts: &BTreeMap<u16, u16>) -> u64 {
        let participants = counts.keys().fold(0, |bits, spu| bits | 1 << spu);
        let mut arguments = CommitArguments { transaction, participants }.encode().to_vec();
        counts.values().for_each(|count| arguments.extend(count.to_le_bytes()));
        let to = (self.atomic_write, coordinator, handler::COMMIT);
        self.submit(to, &arguments, &[], 0)
    }

    pub fn statistics(&mut self, spu: u16) -> Statistics {
        let to = (self.atomic_write, spu, handler::STAT);
        let done = self.call(to, &[], &[], Statistics::BYTES);
        assert_eq!(status(&done), 0);
        Statistics::decode(done.buffer[..Statistics::BYTES].try_into().unwrap())
    }
}

/// A block with that value: 0 is one that was never written.
pub fn content(value: u32) -> Vec<u8> {
    value.to_le_bytes().repeat(BLOCK / 4)
}

/// The value of a block; none where it is torn.
pub fn value_of(bytes: &[u8]) -> Option<u32> {
    let value = u32::from_le_bytes(bytes[..4].try_into().unwrap());
    (bytes == content(value)).then_some(value)
}

/// What a client does next.
#[derive(Clone, Debug)]
pub enum Operation {
    /// Commits a transaction that writes these blocks, some of them twice.
    Commit { blocks: Vec<usize>, in_parts: bool },
    /// The same with one block, in one request.
    Single { block: usize },
    /// Logs writes and gives them up.
    Abort { blocks: Vec<usize> },
    /// Commits writes of which one has not come: nothing is done. At least two SPUs have some.
    Incomplete { blocks: Vec<usize> },
    /// Writes a block by Base-IO, durably or not.
    Direct { block: usize, fua: bool },
}

impl Operation {
    fn blocks(&self) -> Vec<usize> {
        match self {
            Operation::Commit { blocks, .. } => blocks.clone(),
            Operation::Single { block } | Operation::Direct { block, .. } => vec![*block],
            Operation::Abort { .. } | Operation::Incomplete { .. } => vec![],
        }
    }
}

/// A client: what it does, how far it is.
#[derive(Clone, Debug)]
pub struct Client {
    script: Vec<Operation>,
    next: usize,
    /// Steps of the operation that are done.
    steps: u32,
    waiting: Vec<u64>,
    transaction: u64,
    value: u32,
    random: u64,
}

/// What may be on the media: values of each block, and what is under way.
#[derive(Clone, Debug, Default)]
pub struct Model {
    pub blocks: BTreeMap<usize, Vec<u32>>,
    /// Blocks and their new value: all of them or none.
    pub under_way: Vec<(Vec<usize>, u32, bool)>,
    /// Commits that were answered.
    pub committed: u64,
}

impl Model {
    fn values(&mut self, block: usize) -> &mut Vec<u32> {
        self.blocks.entry(block).or_insert_with(|| vec![0])
    }

    /// Holds what was found against what may be. Returns a model of what is there now.
    pub fn check(&self, found: &BTreeMap<usize, Option<u32>>) -> Result<Model, String> {
        let mut left = self.clone();
        for (blocks, value, atomic) in &self.under_way {
            let new: Vec<bool> = blocks.iter().map(|block| found[block] == Some(*value)).collect();
            if *atomic && new.iter().any(|it| *it) && !new.iter().all(|it| *it) {
                return Err(format!("of a transaction's blocks {blocks:?} those are new: {new:?}, found {found:?}"));
            }
            for block in blocks {
                left.values(*block).push(*value);
            }
        }
        for (block, found) in found {
            let values = left.values(*block);
            match found {
                None => return Err(format!("block {block} is torn")),
                Some(value) if !values.contains(value) => {
                    return Err(format!("block {block} holds {value}, none of {values:?}"));
                }
                Some(value) => *values = vec![*value],
            }
        }
        left.under_way.clear();
        Ok(left)
    }
}

impl Client {
    pub fn new(number: u32, seed: u64, script: Vec<Operation>) -> Client {
        Client {
            script,
            next: 0,
            steps: 0,
            waiting: vec![],
            transaction: u64::from(number) << 32,
            value: number << 24,
            random: seed,
        }
    }

    fn by_spu(blocks: &[usize]) -> BTreeMap<u16, Vec<usize>> {
        let mut spus: BTreeMap<u16, Vec<usize>> = BTreeMap::new();
        blocks.iter().for_each(|block| spus.entry((block % SPUS as usize) as u16).or_default().push(*block));
        spus
    }

    /// Begins what comes next; false where there is nothing.
    fn begin(&mut self, rig: &mut Rig, model: &mut Model) -> bool {
        let Some(operation) = self.script.get(self.next).cloned() else { return false };
        match (&operation, self.steps) {
            (Operation::Direct { block, fua }, 0) => {
                self.value += 1;
                model.under_way.push((vec![*block], self.value, false));
                self.waiting.push(rig.begin_write_block(*block, self.value, *fua));
            }
            (Operation::Single { block }, 0) => {
                self.value += 1;
                self.transaction += 1;
                model.under_way.push((vec![*block], self.value, true));
                let (spu, nv_address) = rig.address(*block);
                let arguments =
                    WriteArguments { transaction: self.transaction, nv_address, bytes: BLOCK as u32, flags: 0 };
                let to = (rig.atomic_write, spu, handler::LOG_WRITE_COMMIT);
                self.waiting.push(rig.submit(to, &arguments.encode(), &content(self.value), 0));
            }
            (Operation::Commit { blocks, in_parts }, 0) => {
                self.value += 1;
                self.transaction += 1;
                for (spu, blocks) in Self::by_spu(blocks) {
                    let writes: Vec<(usize, u32)> = blocks.iter().map(|block| (*block, self.value)).collect();
                    if *in_parts {
                        // The first block is written twice: what was logged last counts.
                        let first = rig.begin_log(self.transaction, spu, &[(blocks[0], u32::MAX)], true);
                        self.waiting.push(first);
                    } else {
                        self.waiting.push(rig.begin_log(self.transaction, spu, &writes, true));
                    }
                }
            }
            (Operation::Commit { blocks, in_parts: true }, 1) => {
                for (spu, blocks) in Self::by_spu(blocks) {
                    let writes: Vec<(usize, u32)> = blocks.iter().map(|block| (*block, self.value)).collect();
                    self.waiting.push(rig.begin_log(self.transaction, spu, &writes, false));
                }
            }
            (Operation::Commit { blocks, in_parts }, _) => {
                model.under_way.push((blocks.clone(), self.value, true));
                let more = u16::from(*in_parts);
                let counts: BTreeMap<u16, u16> =
                    Self::by_spu(blocks).into_iter().map(|(spu, blocks)| (spu, blocks.len() as u16 + more)).collect();
                let mut random = Random::new(self.random ^ self.transaction);
                let coordinator = *counts.keys().nth(random.below(counts.len() as u64) as usize).unwrap();
                self.waiting.push(rig.begin_commit(self.transaction, coordinator, &counts));
            }
            (Operation::Abort { blocks } | Operation::Incomplete { blocks }, 0) => {
                self.transaction += 1;
                for (spu, blocks) in Self::by_spu(blocks) {
                    let writes: Vec<(usize, u32)> = blocks.iter().map(|block| (*block, u32::MAX)).collect();
                    self.waiting.push(rig.begin_log(self.transaction, spu, &writes, true));
                }
            }
            (Operation::Incomplete { blocks }, 1) => {
                let spus = Self::by_spu(blocks);
                let mut counts: BTreeMap<u16, u16> =
                    spus.iter().map(|(spu, blocks)| (*spu, blocks.len() as u16)).collect();
                *counts.values_mut().last().unwrap() += 1;
                self.waiting.push(rig.begin_commit(self.transaction, *spus.keys().next().unwrap(), &counts));
            }
            (Operation::Abort { blocks }, _) => {
                for spu in Self::by_spu(blocks).into_keys() {
                    let to = (rig.atomic_write, spu, handler::ABORT);
                    self.waiting.push(rig.submit(to, &self.transaction.to_le_bytes(), &[], 0));
                }
            }
            (operation, step) => panic!("{operation:?} has no step {step}"),
        }
        true
    }

    /// All requests of a step were answered with success.
    fn ended(&mut self, model: &mut Model) {
        let operation = &self.script[self.next];
        let last = match operation {
            Operation::Direct { .. } | Operation::Single { .. } => 0,
            Operation::Commit { in_parts, .. } => 1 + u32::from(*in_parts),
            Operation::Abort { .. } | Operation::Incomplete { .. } => 1,
        };
        if self.steps < last {
            self.steps += 1;
            return;
        }
        let value = self.value;
        model.under_way.retain(|(_, other, _)| *other != value);
        for block in operation.blocks() {
            let durable = !matches!(operation, Operation::Direct { fua: false, .. });
            let values = model.values(block);
            if durable {
                values.clear();
            }
            values.push(value);
        }
        model.committed += u64::from(matches!(operation, Operation::Commit { .. } | Operation::Single { .. }));
        (self.next, self.steps) = (self.next + 1, 0);
    }
}

/// Runs clients beside each other until all are through or the power has gone. The model says what may be there then.
pub fn run(rig: &mut Rig, media: &FaultMedia, clients: &mut [Client], model: &mut Model) -> Result<(), String> {
    for _ in 0..STEPS_MAX {
        let mut at_work = false;
        for client in clients.iter_mut() {
            if client.waiting.is_empty() {
                at_work |= client.begin(rig, model);
            } else {
                at_work = true;
            }
        }
        if !at_work {
            return Ok(());
        }
        rig.step();
        if media.is_cut() {
            return Ok(());
        }
        for client in clients.iter_mut().filter(|client| !client.waiting.is_empty()) {
            let ended: Vec<u64> = client.waiting.iter().copied().filter(|tag| rig.done.contains_key(tag)).collect();
            for tag in ended {
                let done = rig.done.remove(&tag).unwrap();
                client.waiting.retain(|other| *other != tag);
                let operation = &client.script[client.next];
                let refused = matches!(operation, Operation::Incomplete { .. }) && client.steps == 1;
                let expected = if refused { wire::STATUS_INCOMPLETE } else { 0 };
                if done.outcome != (RpcOutcome::Answered { status: expected }) {
                    return Err(format!("{operation:?}, step {}: {:?}", client.steps, done.outcome));
                }
            }
            if client.waiting.is_empty() {
                client.ended(model);
            }
        }
    }
    panic!("the clients do not come to an end");
}

/// Opens what a cut has left, and holds it against the model. Returns the device, settled, and the model of what is there.
pub fn recover(media: &FaultMedia, model: &Model) -> Result<(Rig, Model), String> {
    // Nobody waits for the app: the first request comes when all that was committed is there.
    let mut rig = Rig::open(Box::new(media.store()))?;
    let found: BTreeMap<usize, Option<u32>> =
        model.touched().into_iter().map(|block| (block, value_of(&rig.read_block(block)))).collect();
    let left = model.check(&found)?;
    Ok((rig, left))
}

impl Model {
    /// All blocks that it knows of.
    pub fn touched(&self) -> Vec<usize> {
        let under_way = self.under_way.iter().flat_map(|(blocks, _, _)| blocks.iter().copied());
        let mut touched: Vec<usize> = self.blocks.keys().copied().chain(under_way).collect();
        touched.sort_unstable();
        touched.dedup();
        touched
    }
}
