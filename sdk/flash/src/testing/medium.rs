//! Flash that insists on its rules and fails on request.
//!
//! # What it does to who trusts it too much
//! - **Rules.** Programs in order within an erased block, on distinct planes, of the same page; all else is a misuse, changes nothing, and is remembered.
//! - **Time.** An operation is done some steps after it was begun; those of one die in order, those of several dies in any.
//! - **Power cuts.** When operation `cut_after` + 1 of those that change something would be done, the power goes. Of each die the oldest operation was under
//!   way: each page of a program is untouched, torn (unreadable, and its lower page too), or there; a block of an erase is untouched, erased, or undefined: each
//!   page as it was, erased, or unreadable. [`Choices`] decide.
//! - **Failures.** By seed: programs (the page is unreadable, the block fails from then on), erases, pages that become unreadable when they are
//!   read. The last two pages of a block that were programmed stay readable: after a cut nobody could tell them from torn
//!   ones. Nor does a page become unreadable beside another: then nobody would know what it was.

use super::{Choices, Random};
use crate::geometry::Geometry;
use crate::port::{FlashPort, Peer, ProgramPage, Read, Sink, Source, Status};
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::rc::Rc;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::cell::{RefCell, RefMut};
use core::future::poll_fn;
use core::task::{Poll, Waker};

/// Which operations fail, by seed: one in so many; 0: none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Of programs.
    pub programs: u64,
    /// Of erases.
    pub erases: u64,
    /// Of programmed pages that become unreadable.
    pub reads: u64,
    /// Of blocks that are bad from the start.
    pub factory: u64,
}

#[derive(Clone)]
enum Page {
    Erased,
    Data(Rc<(Vec<u8>, Vec<u8>)>),
    Unreadable,
}

#[derive(Clone)]
struct Block {
    pages: Vec<Page>,
    next_page: u32,
    /// Neither erased nor programmed: an erase was cut.
    is_undefined: bool,
    is_bad: bool,
    erases: u32,
}

enum Piece {
    Bytes(Vec<u8>),
    Flash { die: u32, block: u32, page: u32, offset: u32, bytes: u32 },
}

struct Programming {
    block: u32,
    page: u32,
    pieces: Vec<Piece>,
    spare: Vec<u8>,
}

enum Operation {
    Read { block: u32, page: u32, offset: u32, bytes: u32, spare: u32 },
    Program(Vec<Programming>),
    Erase(Vec<u32>),
}

struct Answer {
    status: Status,
    bytes: Vec<u8>,
    spare: Vec<u8>,
}

struct Inner {
    geometry: Geometry,
    dies: Vec<Vec<Block>>,
    queues: Vec<VecDeque<(u64, Operation)>>,
    answers: BTreeMap<u64, Answer>,
    wakers: BTreeMap<u64, Waker>,
    next_operation: u64,
    peers: Vec<Vec<u8>>,
    ended: BTreeSet<u32>,
    random: Random,
    faults: Faults,
    factory_bad: Vec<Vec<u32>>,
    changes: u64,
    cut_after: Option<u64>,
    is_cut: bool,
    immediate: bool,
    misuses: Vec<String>,
    reads: u64,
}

/// The medium; clones are the same medium.
#[derive(Clone)]
pub struct Medium(Rc<RefCell<Inner>>);

impl Medium {
    /// Fresh flash. `seed` decides what fails.
    pub fn new(geometry: Geometry, faults: Faults, seed: u64) -> Medium {
        let mut random = Random(seed);
        let block = Block {
            pages: vec![Page::Erased; geometry.pages_per_block as usize],
            next_page: 0,
            is_undefined: true,
            is_bad: false,
            erases: 0,
        };
        let blocks = geometry.blocks_per_die();
        let bad = |_| (0..blocks).filter(|_| random.one_in(faults.factory)).collect::<Vec<u32>>();
        let factory_bad: Vec<_> = (0..geometry.dies()).map(bad).collect();
        let mut dies = vec![vec![block; blocks as usize]; geometry.dies() as usize];
        for (die, bad) in dies.iter_mut().zip(&factory_bad) {
            bad.iter().for_each(|block| die[*block as usize].is_bad = true);
        }
        Medium(Rc::new(RefCell::new(Inner {
            geometry,
            queues: dies.iter().map(|_| VecDeque::new()).collect(),
            dies,
            answers: BTreeMap::new(),
            wakers: BTreeMap::new(),
            next_operation: 0,
            peers: Vec::new(),
            ended: BTreeSet::new(),
            random,
            faults,
            factory_bad,
            changes: 0,
            cut_after: None,
            is_cut: false,
            immediate: false,
            misuses: Vec::new(),
            reads: 0,
        })))
    }

    fn inner(&self) -> RefMut<'_, Inner> {
        self.0.borrow_mut()
    }

    /// From now on operations are done when they are begun.
    pub fn set_immediate(&self) {
        self.inner().immediate = true;
    }

    /// Has the power go after that many changes from now on.
    pub fn cut_after(&self, changes: u64) {
        let mut inner = self.inner();
        inner.cut_after = Some(inner.changes + changes);
    }

    /// Whether the power has gone.
    pub fn is_cut(&self) -> bool {
        self.inner().is_cut
    }

    /// Programs and erases that were done.
    pub fn changes(&self) -> u64 {
        self.inner().changes
    }

    /// Reads that were done.
    pub fn reads(&self) -> u64 {
        self.inner().reads
    }

    /// Changes what fails.
    pub fn set_faults(&self, faults: Faults) {
        self.inner().faults = faults;
    }

    /// Rules that were broken.
    pub fn misuses(&self) -> Vec<String> {
        self.inner().misuses.clone()
    }

    /// Most and fewest erases of a block of a die that was erased at all.
    pub fn erases(&self, die: u32) -> Vec<u32> {
        self.inner().dies[die as usize].iter().map(|block| block.erases).collect()
    }

    /// Makes a page unreadable, or one of its parts: as bits that rot.
    pub fn spoil(&self, die: u32, block: u32, page: u32) {
        self.inner().dies[die as usize][block as usize].pages[page as usize] = Page::Unreadable;
    }

    /// Pages that hold data.
    pub fn programmed(&self) -> Vec<(u32, u32, u32)> {
        let inner = self.inner();
        let mut found = Vec::new();
        for (die, blocks) in (0..).zip(&inner.dies) {
            for (block, content) in (0..).zip(blocks) {
                let pages = (0..).zip(&content.pages).filter(|(_, page)| matches!(page, Page::Data(_)));
                found.extend(pages.map(|(page, _)| (die, block, page)));
            }
        }
        found
    }

    /// A buffer at the other end of an operation.
    pub fn peer(&self, bytes: Vec<u8>) -> Peer {
        let mut inner = self.inner();
        inner.peers.push(bytes);
        Peer(inner.peers.len() as u32 - 1)
    }

    /// What is in a buffer.
    pub fn peer_bytes(&self, peer: Peer) -> Vec<u8> {
        self.inner().peers[peer.0 as usize].clone()
    }

    /// Its owner has ended: every use fails from now on.
    pub fn end_peer(&self, peer: Peer) {
        self.inner().ended.insert(peer.0);
    }

    /// The flash as the power cut has left it, without anything under way.
    pub fn survivor(&self, choices: &mut Choices) -> Medium {
        let inner = self.inner();
        let mut after = Inner {
            geometry: inner.geometry,
            dies: inner.dies.clone(),
            queues: inner.queues.iter().map(|_| VecDeque::new()).collect(),
            answers: BTreeMap::new(),
            wakers: BTreeMap::new(),
            next_operation: 0,
            peers: Vec::new(),
            ended: BTreeSet::new(),
            random: inner.random.clone(),
            faults: inner.faults,
            factory_bad: inner.factory_bad.clone(),
            changes: 0,
            cut_after: None,
            is_cut: false,
            immediate: false,
            misuses: inner.misuses.clone(),
            reads: 0,
        };
        for (die, queue) in inner.queues.iter().enumerate() {
            match queue.front() {
                Some((_, Operation::Program(pages))) if after.program_refused(die as u32, pages).is_none() => {
                    for page in pages {
                        after.cut_program(die, page, choices);
                    }
                }
                Some((_, Operation::Erase(blocks))) => {
                    for block in blocks {
                        after.cut_erase(die, *block, choices);
                    }
                }
                _ => {}
            }
        }
        Medium(Rc::new(RefCell::new(after)))
    }

    /// Whether anything is under way.
    pub fn has_work(&self) -> bool {
        self.inner().queues.iter().any(|queue| !queue.is_empty())
    }

    /// Has some die end its oldest operation.
    pub fn step(&self, random: &mut Random) {
        let mut inner = self.inner();
        let busy: Vec<usize> = (0..inner.queues.len()).filter(|die| !inner.queues[*die].is_empty()).collect();
        let die = busy[random.below(busy.len() as u64) as usize];
        let is_change = !matches!(inner.queues[die].front(), Some((_, Operation::Read { .. })));
        if is_change && inner.cut_after == Some(inner.changes) {
            inner.is_cut = true;
            return;
        }
        let (number, operation) = inner.queues[die].pop_front().expect("the die is busy");
        let answer = inner.perform(die as u32, operation);
        inner.answers.insert(number, answer);
        if let Some(waker) = inner.wakers.remove(&number) {
            drop(inner);
            waker.wake();
        }
    }

    async fn submit(&self, die: u32, operation: Operation) -> Answer {
        let number = {
            let mut inner = self.inner();
            if inner.immediate {
                return inner.perform(die, operation);
            }
            inner.next_operation += 1;
            let number = inner.next_operation;
            inner.queues[die as usize].push_back((number, operation));
            number
        };
        poll_fn(|context| {
            let mut inner = self.inner();
            match inner.answers.remove(&number) {
                Some(answer) => Poll::Ready(answer),
                None => {
                    inner.wakers.insert(number, context.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }
}

impl Inner {
    fn answer(status: Status) -> Answer {
        Answer { status, bytes: Vec::new(), spare: Vec::new() }
    }

    fn misuse(&mut self, reason: &'static str) -> Answer {
        self.misuses.push(reason.into());
        Inner::answer(Status::Misuse(reason))
    }

    fn perform(&mut self, die: u32, operation: Operation) -> Answer {
        match operation {
            Operation::Read { block, page, offset, bytes, spare } => {
                self.reads += 1;
                if block >= self.geometry.blocks_per_die()
                    || page >= self.geometry.pages_per_block
                    || offset + bytes > self.geometry.page_bytes
                    || spare > self.geometry.spare_bytes
                    || spare > 0 && !self.geometry.spare_accessible
                {
                    return self.misuse("read of what is not there");
                }
                let block = &mut self.dies[die as usize][block as usize];
                let is_last = block.next_page <= page + 2;
                let around = page.saturating_sub(2)..(page + 3).min(self.geometry.pages_per_block);
                let is_spared =
                    is_last || around.into_iter().any(|near| matches!(block.pages[near as usize], Page::Unreadable));
                let content = &mut block.pages[page as usize];
                if !is_spared && matches!(content, Page::Data(_)) && self.random.one_in(self.faults.reads) {
                    *content = Page::Unreadable;
                }
                match content {
                    Page::Erased => Inner::answer(Status::Erased),
                    Page::Unreadable => Inner::answer(Status::Uncorrectable),
                    Page::Data(data) => {
                        let bytes = data.0[offset as usize..(offset + bytes) as usize].to_vec();
                        let spare = data.1[..spare as usize].to_vec();
                        Answer { status: Status::Done { corrected_bits: 0 }, bytes, spare }
                    }
                }
            }
            Operation::Program(pages) => self.program(die, pages),
            Operation::Erase(blocks) => {
                let planes = self.geometry.planes_per_die;
                let distinct: BTreeSet<u32> = blocks.iter().map(|block| block % planes).collect();
                if distinct.len() != blocks.len() || blocks.iter().any(|block| *block >= self.geometry.blocks_per_die())
                {
                    return self.misuse("erase of blocks that are not on distinct planes");
                }
                self.changes += 1;
                let mut failed = 0;
                for (index, block) in blocks.iter().enumerate() {
                    let fails = self.random.one_in(self.faults.erases);
                    let block = &mut self.dies[die as usize][*block as usize];
                    block.is_bad |= fails;
                    if block.is_bad {
                        failed |= 1 << index;
                        block.is_undefined = true;
                    } else {
                        block.erase();
                    }
                }
                Inner::answer(if failed == 0 {
                    Status::Done { corrected_bits: 0 }
                } else {
                    Status::EraseFailed { blocks: failed }
                })
            }
        }
    }

    /// Why a program is against the rules.
    fn program_refused(&self, die: u32, pages: &[Programming]) -> Option<&'static str> {
        let planes = self.geometry.planes_per_die;
        let distinct: BTreeSet<u32> = pages.iter().map(|page| page.block % planes).collect();
        if distinct.len() != pages.len() || pages.iter().any(|page| page.page != pages[0].page) {
            return Some("program of pages that are not on distinct planes, or not of one number");
        }
        for page in pages {
            let Some(block) = self.dies[die as usize].get(page.block as usize) else {
                return Some("program of a block that is not there");
            };
            if block.is_undefined {
                return Some("program of a block that was not erased");
            }
            if block.next_page != page.page || page.page >= self.geometry.pages_per_block {
                return Some("program out of order");
            }
        }
        None
    }

    fn gather(&self, page: &Programming) -> Result<Vec<u8>, Status> {
        let mut data = Vec::new();
        for piece in &page.pieces {
            match piece {
                Piece::Bytes(bytes) => data.extend_from_slice(bytes),
                Piece::Flash { die, block, page, offset, bytes } => {
                    match &self.dies[*die as usize][*block as usize].pages[*page as usize] {
                        Page::Data(content) => {
                            data.extend_from_slice(&content.0[*offset as usize..(offset + bytes) as usize]);
                        }
                        Page::Erased => return Err(Status::Misuse("copy of a page that is erased")),
                        Page::Unreadable => return Err(Status::Uncorrectable),
                    }
                }
            }
        }
        if data.len() as u32 != self.geometry.page_bytes {
            return Err(Status::Misuse("program of fewer or more bytes than a page has"));
        }
        Ok(data)
    }

    fn program(&mut self, die: u32, pages: Vec<Programming>) -> Answer {
        if let Some(reason) = self.program_refused(die, &pages) {
            return self.misuse(reason);
        }
        let mut gathered = Vec::new();
        for page in &pages {
            match self.gather(page) {
                Ok(data) => gathered.push(data),
                Err(Status::Misuse(reason)) => return self.misuse(reason),
                Err(status) => return Inner::answer(status),
            }
        }
        self.changes += 1;
        let mut failed = 0;
        for (index, (page, data)) in pages.into_iter().zip(gathered).enumerate() {
            let fails = self.random.one_in(self.faults.programs);
            let block = &mut self.dies[die as usize][page.block as usize];
            block.next_page += 1;
            block.is_bad |= fails;
            block.pages[page.page as usize] = if block.is_bad {
                failed |= 1 << index;
                Page::Unreadable
            } else {
                Page::Data(Rc::new((data, page.spare)))
            };
        }
        Inner::answer(if failed == 0 {
            Status::Done { corrected_bits: 0 }
        } else {
            Status::ProgramFailed { pages: failed }
        })
    }

    fn cut_program(&mut self, die: usize, page: &Programming, choices: &mut Choices) {
        let lower = self.geometry.lower_page(page.page);
        let data = self.gather(page);
        let block = &mut self.dies[die][page.block as usize];
        match (choices.choose(3), data) {
            (1, Ok(data)) if !block.is_bad => {
                block.pages[page.page as usize] = Page::Data(Rc::new((data, page.spare.clone())));
                block.next_page += 1;
            }
            (2, Ok(_)) => {
                block.pages[page.page as usize] = Page::Unreadable;
                if let Some(lower) = lower {
                    block.pages[lower as usize] = Page::Unreadable;
                }
                block.next_page += 1;
            }
            _ => {}
        }
    }

    fn cut_erase(&mut self, die: usize, number: u32, choices: &mut Choices) {
        let mut random = Random(self.random.0 ^ u64::from(number));
        let block = &mut self.dies[die][number as usize];
        match choices.choose(3) {
            1 if !block.is_bad => block.erase(),
            2 => {
                block.is_undefined = true;
                for page in &mut block.pages {
                    match random.below(3) {
                        0 => *page = Page::Erased,
                        1 => *page = Page::Unreadable,
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
}

impl Block {
    fn erase(&mut self) {
        self.pages.fill(Page::Erased);
        self.next_page = 0;
        self.is_undefined = false;
        self.erases += 1;
    }
}

impl FlashPort for Medium {
    fn geometry(&self) -> Geometry {
        self.inner().geometry
    }

    fn factory_bad_blocks(&self, die: u32) -> Vec<u32> {
        self.inner().factory_bad[die as usize].clone()
    }

    async fn read(&self, die: u32, read: Read<'_>) -> Status {
        let operation = Operation::Read {
            block: read.block,
            page: read.page,
            offset: read.offset_bytes,
            bytes: read.length_bytes,
            spare: read.spare.len() as u32,
        };
        let answer = self.submit(die, operation).await;
        if answer.status.is_done() {
            read.spare.copy_from_slice(&answer.spare);
            match read.sink {
                Sink::Local(into) => into.copy_from_slice(&answer.bytes),
                Sink::Peer { peer, offset } => {
                    let mut inner = self.inner();
                    if inner.ended.contains(&peer.0) {
                        return Status::PeerEnded;
                    }
                    let into = &mut inner.peers[peer.0 as usize][offset as usize..];
                    into[..answer.bytes.len()].copy_from_slice(&answer.bytes);
                }
            }
        }
        answer.status
    }

    async fn program(&self, die: u32, pages: &[ProgramPage<'_>]) -> Status {
        let mut programming = Vec::new();
        for page in pages {
            let mut pieces = Vec::new();
            for segment in page.data {
                pieces.push(match segment.source {
                    Source::Zeroes => Piece::Bytes(vec![0; segment.bytes as usize]),
                    Source::Local(bytes) => Piece::Bytes(bytes[..segment.bytes as usize].to_vec()),
                    Source::Peer { peer, offset } => {
                        let inner = self.inner();
                        if inner.ended.contains(&peer.0) {
                            return Status::PeerEnded;
                        }
                        let bytes = &inner.peers[peer.0 as usize][offset as usize..][..segment.bytes as usize];
                        Piece::Bytes(bytes.to_vec())
                    }
                    Source::Flash { die, block, page, offset } => {
                        Piece::Flash { die, block, page, offset, bytes: segment.bytes }
                    }
                    Source::Copyback { block, page: from } => {
                        assert!(block.abs_diff(page.block).is_multiple_of(self.geometry().planes_per_die));
                        Piece::Flash { die, block, page: from, offset: 0, bytes: segment.bytes }
                    }
                });
            }
            programming.push(Programming { block: page.block, page: page.page, pieces, spare: page.spare.to_vec() });
        }
        self.submit(die, Operation::Program(programming)).await.status
    }

    async fn erase(&self, die: u32, blocks: &[u32]) -> Status {
        self.submit(die, Operation::Erase(blocks.to_vec())).await.status
    }

    fn copies_back(&self) -> bool {
        !self.inner().geometry.spare_accessible
    }

    async fn zero_peer(&self, peer: Peer, offset: u32, bytes: u32) -> Status {
        let mut inner = self.inner();
        if inner.ended.contains(&peer.0) {
            return Status::PeerEnded;
        }
        inner.peers[peer.0 as usize][offset as usize..][..bytes as usize].fill(0);
        Status::Done { corrected_bits: 0 }
    }

    async fn pause(&self) {
        let mut paused = false;
        poll_fn(|context| {
            if core::mem::replace(&mut paused, true) {
                return Poll::Ready(());
            }
            context.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }
}
