//! The flash library of the SDK on this medium: what its lanes acknowledged as durable is there after power cuts, in memory and in files, with blocks
//! that are bad from the factory. Shows that medium and FTLs mean the same by the same words.

mod common;

use common::{Random, Scratch, UUID, head};
use std::cell::RefCell;
use std::future::pending;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use willow_flash::{FlashPort, Lane, LaneConfig, Layout, Peer, Segment, Sink, Source, Update};
use willow_flash_media::{Array, Cell, CutOutcome, FaultParameters, Geometry, PageAddress, ProgramPage, Read, Status};

const UNIT_BYTES: u32 = 2048;
const UNITS: u32 = 40;
/// Polls after which tasks that wait for one another are called stuck.
const POLLS_MAX: u32 = 1_000_000;

struct Inner {
    array: Array,
    peers: Vec<Vec<u8>>,
    random: Random,
    /// Changes of the flash until the power goes.
    changes_left: u32,
    is_cut: bool,
    misuses: Vec<String>,
}

/// The flash port over an array; clones are the same.
#[derive(Clone)]
struct Port(Rc<RefCell<Inner>>);

fn told(status: Status) -> willow_flash::Status {
    use willow_flash::Status as Told;
    match status {
        Status::Done { corrected_bits, .. } => Told::Done { corrected_bits: corrected_bits.into() },
        Status::Erased => Told::Erased,
        Status::Uncorrectable { .. } => Told::Uncorrectable,
        Status::ProgramFailed(pages) => Told::ProgramFailed { pages: pages.0.into() },
        Status::EraseFailed(blocks) => Told::EraseFailed { blocks: blocks.0.into() },
        Status::Latched => Told::Misuse("no word lines here"),
        Status::Misuse(_) => Told::Misuse("a rule of flash"),
    }
}

impl Inner {
    /// True where the power goes during this change.
    fn is_last(&mut self) -> bool {
        self.is_cut = self.changes_left == 0;
        self.changes_left = self.changes_left.saturating_sub(1);
        self.is_cut
    }

    fn note(&mut self, status: Status) -> willow_flash::Status {
        if let Status::Misuse(misuse) = status {
            self.misuses.push(misuse.to_string());
        }
        told(status)
    }

    /// The bytes of a page; else why not.
    fn gather(&mut self, segments: &[Segment<'_>]) -> Result<Vec<u8>, willow_flash::Status> {
        let mut bytes = Vec::new();
        for segment in segments {
            let length = segment.bytes as usize;
            match segment.source {
                Source::Peer { peer, offset } => {
                    bytes.extend_from_slice(&self.peers[peer.0 as usize][offset as usize..offset as usize + length]);
                }
                Source::Local(local) => bytes.extend_from_slice(&local[..length]),
                Source::Zeroes => bytes.resize(bytes.len() + length, 0),
                // Its firmware does not ask for copybacks.
                Source::Copyback { .. } => return Err(willow_flash::Status::Misuse("no copybacks here")),
                Source::Flash { die, block, page, offset } => {
                    let read = Read {
                        at: PageAddress { block, page },
                        offset_bytes: offset,
                        length_bytes: segment.bytes,
                        spare: false,
                    };
                    let mut data = vec![0; length];
                    let status = self.array.read(die, &read, &mut data, &mut []).expect("the file works");
                    if !matches!(status, Status::Done { .. }) {
                        return Err(willow_flash::Status::Uncorrectable);
                    }
                    bytes.extend(data);
                }
            }
        }
        Ok(bytes)
    }

    fn program(&mut self, die: u32, pages: &[willow_flash::ProgramPage<'_>]) -> Option<willow_flash::Status> {
        let mut gathered = Vec::new();
        for page in pages {
            match self.gather(page.data) {
                Ok(bytes) => gathered.push(bytes),
                Err(status) => return Some(status),
            }
        }
        let data: Vec<[&[u8]; 1]> = gathered.iter().map(|bytes| [bytes.as_slice()]).collect();
        let pages: Vec<ProgramPage<'_>> = pages
            .iter()
            .zip(&data)
            .map(|(page, data)| {
                let at = PageAddress { block: page.block, page: page.page };
                ProgramPage { at, data, spare: page.spare, metadata: false }
            })
            .collect();
        if self.is_last() {
            let outcomes: Vec<CutOutcome> = pages.iter().map(|_| self.outcome()).collect();
            let status = self.array.cut_program(die, &pages, &outcomes).expect("the file works");
            self.note(status);
            return None;
        }
        let status = self.array.program(die, &pages).expect("the file works");
        Some(self.note(status))
    }

    fn erase(&mut self, die: u32, blocks: &[u32]) -> Option<willow_flash::Status> {
        if self.is_last() {
            for block in blocks {
                let outcome = self.outcome();
                self.array.cut_erase(die, *block, outcome).expect("the file works");
            }
            return None;
        }
        let status = self.array.erase(die, blocks).expect("the file works");
        Some(self.note(status))
    }

    fn outcome(&mut self) -> CutOutcome {
        CutOutcome::ALL[self.random.below(4) as usize]
    }
}

impl Port {
    fn peer(&self, bytes: Vec<u8>) -> Peer {
        let mut inner = self.0.borrow_mut();
        inner.peers.push(bytes);
        Peer(inner.peers.len() as u32 - 1)
    }
}

impl FlashPort for Port {
    fn geometry(&self) -> willow_flash::Geometry {
        willow_flash::Geometry::of_words(&self.0.borrow().array.words())
    }

    fn factory_bad_blocks(&self, die: u32) -> Vec<u32> {
        self.0.borrow().array.factory_bad_blocks(die).collect()
    }

    async fn read(&self, die: u32, read: willow_flash::Read<'_>) -> willow_flash::Status {
        if self.0.borrow().is_cut {
            pending::<()>().await;
        }
        let mut inner = self.0.borrow_mut();
        let inner = &mut *inner;
        let mut data = vec![0; read.length_bytes as usize];
        let wanted = Read {
            at: PageAddress { block: read.block, page: read.page },
            offset_bytes: read.offset_bytes,
            length_bytes: read.length_bytes,
            spare: !read.spare.is_empty(),
        };
        let status = inner.array.read(die, &wanted, &mut data, read.spare).expect("the file works");
        match read.sink {
            Sink::Peer { peer, offset } => {
                inner.peers[peer.0 as usize][offset as usize..offset as usize + data.len()].copy_from_slice(&data);
            }
            Sink::Local(local) => local[..data.len()].copy_from_slice(&data),
        }
        inner.note(status)
    }

    async fn program(&self, die: u32, pages: &[willow_flash::ProgramPage<'_>]) -> willow_flash::Status {
        let answer = if self.0.borrow().is_cut { None } else { self.0.borrow_mut().program(die, pages) };
        match answer {
            Some(status) => status,
            None => pending().await,
        }
    }

    async fn erase(&self, die: u32, blocks: &[u32]) -> willow_flash::Status {
        let answer = if self.0.borrow().is_cut { None } else { self.0.borrow_mut().erase(die, blocks) };
        match answer {
            Some(status) => status,
            None => pending().await,
        }
    }

    async fn zero_peer(&self, peer: Peer, offset: u32, bytes: u32) -> willow_flash::Status {
        let part = offset as usize..(offset + bytes) as usize;
        self.0.borrow_mut().peers[peer.0 as usize][part].fill(0);
        willow_flash::Status::Done { corrected_bits: 0 }
    }

    async fn pause(&self) {}
}

fn config() -> LaneConfig {
    LaneConfig {
        units: UNITS,
        replacement_blocks: 6,
        collect_below: 4,
        collect_batch: 2,
        log_pages_max: 3,
        blocks_between_checkpoints: 4,
        wear_spread_max: 6,
        endurance: 1000,
        anchors: 3,
        remembered_bytes_max: 1 << 20,
    }
}

/// Runs a future beside another that never ends; `None`: the power went first.
fn run<T>(port: &Port, future: impl Future<Output = T>, beside: impl Future) -> Option<T> {
    let (mut future, mut beside) = (pin!(future), pin!(beside));
    let mut context = Context::from_waker(Waker::noop());
    let mut beside_ended = false;
    for _ in 0..POLLS_MAX {
        if let Poll::Ready(result) = future.as_mut().poll(&mut context) {
            return Some(result);
        }
        if port.0.borrow().is_cut {
            return None;
        }
        beside_ended = beside_ended || beside.as_mut().poll(&mut context).is_ready();
    }
    panic!("nothing moves any more");
}

/// What a client knows of its units: the versions that may be there, the first of them durable.
struct Known(Vec<Vec<u64>>);

impl Known {
    fn settle(&mut self) {
        self.0.iter_mut().for_each(|versions| drop(versions.drain(..versions.len() - 1)));
    }
}

async fn client(lane: &Lane<Port>, port: &Port, known: &RefCell<Known>, steps: u32, seed: u64) {
    let mut random = Random(seed);
    for step in 0..steps {
        let unit = random.below(UNITS);
        match random.below(12) {
            0 => {
                lane.flush().await.expect("the flash is well");
                known.borrow_mut().settle();
            }
            1 => {
                known.borrow_mut().0[unit as usize].push(0);
                lane.trim(unit, 1).await.expect("the flash is well");
            }
            2 => {
                let expected = *known.borrow().0[unit as usize].last().expect("one");
                assert_eq!(read_unit(lane, port, unit).await, expected, "unit {unit}");
            }
            _ => {
                let tag = (seed << 20 | u64::from(step)) + 1;
                known.borrow_mut().0[unit as usize].push(tag);
                let bytes: Vec<u8> = tag.to_le_bytes().into_iter().cycle().take(UNIT_BYTES as usize).collect();
                let peer = Some((port.peer(bytes), 0));
                lane.write(Update { unit, start: 0, end: UNIT_BYTES, peer }).await.expect("the flash is well");
                if lane.is_durable_at_once() {
                    let versions = &mut known.borrow_mut().0[unit as usize];
                    versions.drain(..versions.len() - 1);
                }
            }
        }
    }
}

async fn read_unit(lane: &Lane<Port>, port: &Port, unit: u32) -> u64 {
    let peer = port.peer(vec![0xAA; UNIT_BYTES as usize]);
    lane.read(unit, 0, UNIT_BYTES, peer, 0).await.expect("the flash is well");
    let mut inner = port.0.borrow_mut();
    let bytes = std::mem::take(&mut inner.peers[peer.0 as usize]);
    let tag = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
    assert!(bytes.chunks(8).all(|chunk| chunk == tag.to_le_bytes()), "a unit is one version as a whole");
    tag
}

#[test]
fn lanes_of_the_sdk_lose_nothing_durable_on_this_medium() {
    let mut cuts = 0;
    for (planes, dies_per_unit, spare_accessible, paired_distance) in
        [(1, 1, true, 0), (2, 2, true, 0), (2, 1, false, 0), (1, 1, true, 2), (1, 2, false, 2)]
    {
        let geometry = Geometry {
            channels: 1,
            packages_per_channel: 1,
            dies_per_package: dies_per_unit,
            planes_per_die: planes,
            blocks_per_plane: if paired_distance > 0 { 50 } else { 32 },
            pages_per_block: 8,
            page_bytes: UNIT_BYTES / planes / dies_per_unit,
            spare_bytes: 44,
            cell: if paired_distance > 0 { Cell::Mlc } else { Cell::Slc },
            paired_distance,
            spare_accessible,
        };
        geometry.validate().unwrap();
        let layout =
            Layout { geometry: willow_flash::Geometry::of_words(&geometry.words(true)), dies_per_unit, lane: 0 };
        let faults = FaultParameters { factory_bad_per_million: 30_000, codeword_bytes: 512, ..FaultParameters::NONE };
        for seed in 0..8u64 {
            let in_file = seed % 4 == 0;
            let scratch = Scratch::new();
            let mut array = if in_file {
                Array::create(&scratch.file(), &head(&geometry, seed), &faults).unwrap()
            } else {
                Array::in_memory(&geometry, &faults, seed)
            };
            let known = RefCell::new(Known(vec![vec![0]; UNITS as usize]));
            for round in 0..6u64 {
                let random = Random(seed << 8 | round);
                let port = Port(Rc::new(RefCell::new(Inner {
                    array,
                    peers: Vec::new(),
                    random,
                    changes_left: u32::MAX,
                    is_cut: false,
                    misuses: Vec::new(),
                })));
                let lane = if round == 0 {
                    run(&port, Lane::format(port.clone(), layout, config()), pending::<()>())
                } else {
                    run(&port, Lane::mount(port.clone(), layout, config()), pending::<()>())
                };
                let lane = lane.expect("no cut").unwrap_or_else(|error| panic!("{geometry:?}, seed {seed}: {error:?}"));
                for unit in 0..UNITS {
                    let found = run(&port, read_unit(&lane, &port, unit), lane.maintain()).expect("no cut");
                    let versions = &mut known.borrow_mut().0[unit as usize];
                    assert!(
                        versions.contains(&found),
                        "{geometry:?}, seed {seed}, unit {unit}: {found} of {versions:?}"
                    );
                    // What is there after a cut is all that there is.
                    *versions = vec![found];
                }
                let cut_after = 20 + port.0.borrow_mut().random.below(300);
                port.0.borrow_mut().changes_left = cut_after;
                let ended = run(&port, client(&lane, &port, &known, 150, seed << 8 | round), lane.maintain());
                cuts += u32::from(ended.is_none());
                assert_eq!(port.0.borrow().misuses, Vec::<String>::new(), "{geometry:?}, seed {seed}");
                lane.stop();
                drop(lane);
                let Some(inner) = Rc::into_inner(port.0) else { panic!("the lane is gone") };
                array = inner.into_inner().array;
                if in_file {
                    drop(array);
                    array = Array::open(&scratch.file(), &UUID, 3, &geometry, &faults).unwrap();
                } else {
                    array.power_up().unwrap();
                }
            }
        }
    }
    assert!(cuts > 100, "the power went: {cuts}");
}
