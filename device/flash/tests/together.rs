//! Contents and time together, as a bank uses them: operations are submitted, carried out when they are reported as done, and cut short when
//! the power goes.

mod common;

use common::{Held, Oracle, Page, Random, small};
use std::collections::BTreeMap;
use willow_flash_media::timing::{Completion, Submission, Timing, Work};
use willow_flash_media::{
    Array, Cell, CopybackPage, CutOutcome, FaultParameters, FlashParameters, Geometry, PageAddress, ProgramPage, Read,
    Status, presets,
};

#[derive(Clone, Debug)]
enum Operation {
    Read(PageAddress),
    Program(Vec<Page>),
    Erase(Vec<u32>),
    Copyback(PageAddress, PageAddress),
}

/// A bank that keeps what is under way.
struct Bank {
    geometry: Geometry,
    array: Array,
    timing: Timing,
    under_way: BTreeMap<u64, (u32, Operation)>,
    next_token: u64,
    /// What the flash holds, and what it will hold when all that was submitted is done.
    actual: Oracle,
    planned: Oracle,
}

impl Bank {
    fn new(geometry: Geometry, parameters: &FlashParameters) -> Bank {
        Bank {
            array: Array::in_memory(&geometry, &FaultParameters::NONE, 1),
            timing: Timing::new(&geometry, &parameters.timing),
            under_way: BTreeMap::new(),
            next_token: 0,
            actual: Oracle::new(&geometry),
            planned: Oracle::new(&geometry),
            geometry,
        }
    }

    fn submit(&mut self, at_ns: u64, die: u32, operation: Operation) {
        let (work, blocks, bytes) = match &operation {
            Operation::Read(at) => {
                (Work::Read { page: self.geometry.page_kind(at.page), retries: 0 }, vec![at.block], 1024)
            }
            Operation::Program(pages) => {
                self.planned.program(die, pages);
                let blocks = pages.iter().map(|page| page.block).collect();
                (Work::Program { page: self.geometry.page_kind(pages[0].page) }, blocks, 1024 * pages.len() as u32)
            }
            Operation::Erase(blocks) => {
                blocks.iter().for_each(|block| self.planned.erase(die, *block));
                (Work::Erase, blocks.clone(), 0)
            }
            Operation::Copyback(from, to) => {
                let page = Page { block: to.block, page: to.page, data: vec![], spare: vec![], metadata: false };
                self.planned.program(die, &[page]);
                let kinds = (self.geometry.page_kind(from.page), self.geometry.page_kind(to.page));
                (Work::Copyback { from: kinds.0, to: kinds.1 }, vec![from.block, to.block], 0)
            }
        };
        let token = self.next_token;
        self.next_token += 1;
        self.timing.submit(at_ns, &Submission { token, die, work, blocks: &blocks, bytes }).unwrap();
        self.under_way.insert(token, (die, operation));
    }

    fn with_pages<T>(pages: &[Page], then: impl FnOnce(&[ProgramPage<'_>]) -> T) -> T {
        let data: Vec<[&[u8]; 1]> = pages.iter().map(|page| [page.data.as_slice()]).collect();
        let pages: Vec<ProgramPage<'_>> = pages
            .iter()
            .zip(&data)
            .map(|(page, data)| {
                let at = PageAddress { block: page.block, page: page.page };
                ProgramPage { at, data, spare: &page.spare, metadata: false }
            })
            .collect();
        then(&pages)
    }

    /// Time goes on; what is done by then is carried out.
    fn advance(&mut self, at_ns: u64) {
        let mut completions: Vec<Completion> = Vec::new();
        self.timing.advance(at_ns, &mut completions);
        for completion in completions {
            let (die, operation) = self.under_way.remove(&completion.token).expect("done once");
            self.carry_out(die, operation);
        }
    }

    fn carry_out(&mut self, die: u32, operation: Operation) {
        match operation {
            Operation::Read(at) => self.compare(die, at),
            Operation::Program(pages) => {
                let status = Bank::with_pages(&pages, |pages| self.array.program(die, pages)).unwrap();
                assert_eq!(status, self.actual.program(die, &pages));
            }
            Operation::Erase(blocks) => {
                assert_eq!(self.array.erase(die, &blocks).unwrap(), Status::DONE);
                blocks.iter().for_each(|block| self.actual.erase(die, *block));
            }
            Operation::Copyback(from, to) => {
                let status = self.array.copyback(die, &[CopybackPage { from, to, spare: None }]).unwrap();
                let Some(Held::Page { data, spare, .. }) =
                    self.actual.pages.get(&(die, from.block, from.page)).cloned()
                else {
                    panic!("only pages that are there are copied: {status:?}");
                };
                let page = Page { block: to.block, page: to.page, data, spare, metadata: false };
                assert_eq!(status, self.actual.program(die, &[page]));
            }
        }
    }

    fn compare(&mut self, die: u32, at: PageAddress) {
        let (mut data, mut spare) = (vec![0; 1024], vec![0; 16]);
        let read = Read { at, offset_bytes: 0, length_bytes: 1024, spare: true };
        let status = self.array.read(die, &read, &mut data, &mut spare).unwrap();
        if self.actual.undefined.contains_key(&(die, at.block)) {
            assert!(self.actual.may_show(die, at, status, 0, &data), "{status:?}");
            return;
        }
        match self.actual.pages.get(&(die, at.block, at.page)) {
            Some(Held::Page { data: held, spare: held_spare, .. }) => {
                assert_eq!(status, Status::DONE, "die {die}, {at:?}");
                assert!(data == *held && spare == *held_spare);
            }
            Some(Held::Unreadable) => assert!(matches!(status, Status::Uncorrectable { .. })),
            Some(Held::LooksErased) | None => assert_eq!(status, Status::Erased),
        }
    }

    /// The power goes: what was in an array has one of the outcomes, what was not is as if it had never been asked for.
    fn cut(&mut self, at_ns: u64, random: &mut Random) -> usize {
        self.advance(at_ns);
        let in_arrays = self.timing.cut(at_ns);
        for (die, token) in &in_arrays {
            let (of, operation) = self.under_way.remove(token).expect("it was under way");
            assert_eq!(of, *die);
            let mut outcome = || CutOutcome::ALL[random.below(4) as usize];
            match operation {
                Operation::Program(pages) => {
                    let outcomes: Vec<CutOutcome> = pages.iter().map(|_| outcome()).collect();
                    Bank::with_pages(&pages, |pages| self.array.cut_program(of, pages, &outcomes)).unwrap();
                    self.actual.cut_program(of, &pages, &outcomes, true);
                }
                Operation::Erase(blocks) => {
                    for block in blocks {
                        let outcome = outcome();
                        self.array.cut_erase(of, block, outcome).unwrap();
                        match outcome {
                            CutOutcome::NotBegun => {}
                            CutOutcome::Complete => self.actual.erase(of, block),
                            CutOutcome::Interrupted | CutOutcome::LooksErased => self.actual.interrupt_erase(of, block),
                        }
                    }
                }
                Operation::Copyback(from, to) => {
                    let outcome = outcome();
                    let Some(Held::Page { data, spare, .. }) =
                        self.actual.pages.get(&(of, from.block, from.page)).cloned()
                    else {
                        panic!("only pages that are there are copied");
                    };
                    self.array.cut_copyback(of, &CopybackPage { from, to, spare: None }, outcome).unwrap();
                    let page = Page { block: to.block, page: to.page, data, spare, metadata: false };
                    self.actual.cut_program(of, &[page], &[outcome], true);
                }
                Operation::Read(_) => panic!("reads change nothing"),
            }
        }
        self.under_way.clear();
        self.array.power_up().unwrap();
        self.actual.power_up();
        self.planned = self.actual.clone();
        for die in 0..self.geometry.dies() {
            for block in 0..self.geometry.blocks_per_die() {
                for page in 0..self.geometry.pages_per_block {
                    self.compare(die, PageAddress { block, page });
                }
            }
        }
        in_arrays.len()
    }
}

/// One operation that the rules allow once all before it are done.
fn operation(bank: &Bank, die: u32, random: &mut Random) -> Operation {
    let geometry = &bank.geometry;
    let block = random.below(geometry.blocks_per_die());
    let next = bank.planned.next(die, block);
    let ready = |block: u32, next: u32| {
        next < geometry.pages_per_block
            && bank.planned.next(die, block) == next
            && !bank.planned.undefined.contains_key(&(die, block))
    };
    if !ready(block, next) {
        return Operation::Erase(vec![block]);
    }
    match random.below(10) {
        0..4 => Operation::Read(PageAddress { block, page: random.below(geometry.pages_per_block) }),
        4 if random.below(4) == 0 => Operation::Erase(vec![block]),
        5 => {
            let from = PageAddress { block: (block + 2) % 6, page: 0 };
            let held = bank.planned.pages.get(&(die, from.block, from.page));
            // A page that a cut of its upper page can still lose is no source.
            let lasts = bank.planned.next(die, from.block) == geometry.pages_per_block;
            if matches!(held, Some(Held::Page { .. })) && lasts {
                return Operation::Copyback(from, PageAddress { block, page: next });
            }
            Operation::Read(from)
        }
        _ => {
            let second = (block + 1) % 6;
            let planes = if random.below(2) == 0 && ready(second, next) { vec![block, second] } else { vec![block] };
            let page = |block| {
                let data = (0..1024).map(|_| random.0 as u8 ^ block as u8).collect();
                Page { block, page: next, data, spare: random.0.to_le_bytes().to_vec(), metadata: false }
            };
            Operation::Program(planes.into_iter().map(page).collect())
        }
    }
}

#[test]
fn a_timed_bank_holds_what_it_reported_and_a_cut_touches_only_what_was_in_the_arrays() {
    let mut cuts = 0;
    for (name, text) in presets::TEXTS {
        let parameters: FlashParameters = toml::from_str(text).unwrap();
        for seed in 0..30 {
            let cell = if seed % 2 == 0 { Cell::Slc } else { Cell::Mlc };
            let geometry = Geometry { dies_per_package: 2, ..small(cell) };
            let mut random = Random(seed);
            let mut bank = Bank::new(geometry, &parameters);
            let mut at_ns = 0;
            for _ in 0..6 {
                for _ in 0..60 {
                    at_ns += u64::from(random.below(300_000));
                    let die = random.below(geometry.dies());
                    let operation = operation(&bank, die, &mut random);
                    bank.submit(at_ns, die, operation);
                    if random.below(3) == 0 {
                        bank.advance(at_ns);
                    }
                }
                at_ns += u64::from(random.below(400_000));
                cuts += bank.cut(at_ns, &mut random);
            }
            assert!(bank.array.statistics().misuses == 0, "{name}: what was planned in order is done in order");
        }
    }
    assert!(cuts > 500, "operations were cut: {cuts}");
}
