//! The medium against an oracle of the rules of flash: random operations, allowed and not, power cuts and restarts, over all contents and
//! kinds of cells.

mod common;

use common::{Held, Oracle, Page, Random, Scratch, UUID, head, small};
use willow_flash_media::snapshot::{FrameReader, FrameWriter, SnapshotError};
use willow_flash_media::{
    Array, Cell, CopybackPage, CutOutcome, FaultParameters, Geometry, PageAddress, ProgramPage, Read, Status,
};

const CELLS: [Cell; 3] = [Cell::Slc, Cell::Mlc, Cell::Tlc];

#[derive(Clone, Copy, PartialEq, Debug)]
enum Kind {
    Ram,
    File,
    Headers,
}

struct Run {
    kind: Kind,
    geometry: Geometry,
    array: Option<Array>,
    oracle: Oracle,
    random: Random,
    scratch: Scratch,
    faults: FaultParameters,
    seed: u64,
    refused: u32,
    as_before: u32,
    snapshots: u32,
}

impl Run {
    fn new(kind: Kind, cell: Cell, seed: u64) -> Run {
        let geometry = small(cell);
        geometry.validate().unwrap();
        let scratch = Scratch::new();
        let word_line_buffer = cell == Cell::Tlc && seed % 2 == 1;
        let faults = FaultParameters { word_line_buffer, ..FaultParameters::NONE };
        let array = match kind {
            Kind::Ram => Array::in_memory(&geometry, &faults, seed),
            Kind::Headers => Array::headers_only(&geometry, &faults, seed),
            Kind::File => Array::create(&scratch.file(), &head(&geometry, seed), &faults).unwrap(),
        };
        let (mut oracle, random) = (Oracle::new(&geometry), Random(seed));
        oracle.word_line_buffer = word_line_buffer;
        let (refused, as_before, snapshots) = (0, 0, 0);
        Run { kind, geometry, array: Some(array), oracle, random, scratch, faults, seed, refused, as_before, snapshots }
    }

    fn array(&mut self) -> &mut Array {
        self.array.as_mut().expect("open")
    }

    fn bytes(&mut self, most: u32) -> Vec<u8> {
        let length = match self.random.below(3) {
            0 => 0,
            1 => most,
            _ => self.random.below(most + 1),
        };
        (0..length).map(|_| self.random.next() as u8).collect()
    }

    /// Pages for a program: mostly as the rules want them.
    fn pages(&mut self, die: u32) -> Vec<Page> {
        let count = 1 + self.random.below(2);
        let first = self.random.below(self.geometry.blocks_per_die());
        let absurd = self.random.below(12) == 0;
        (0..count)
            .map(|place| {
                let block =
                    if absurd { self.random.below(self.geometry.blocks_per_die() + 1) } else { (first + place) % 6 };
                let next = self.oracle.next(die, block);
                let page = if absurd { self.random.below(self.geometry.pages_per_block + 1) } else { next };
                let over = u32::from(absurd && self.random.below(4) == 0);
                let data = self.bytes(1024 + over);
                let spare = self.bytes(16);
                Page { block, page, data, spare, metadata: self.random.below(4) == 0 }
            })
            .collect()
    }

    fn with_pages<T>(pages: &[Page], then: impl FnOnce(&[ProgramPage<'_>]) -> T) -> T {
        // Each page in two pieces, so that gathering is seen.
        let pieces: Vec<[&[u8]; 2]> = pages
            .iter()
            .map(|page| {
                let (one, two) = page.data.split_at(page.data.len() / 3);
                [one, two]
            })
            .collect();
        let pages: Vec<ProgramPage<'_>> = pages
            .iter()
            .zip(&pieces)
            .map(|(page, data)| ProgramPage {
                at: PageAddress { block: page.block, page: page.page },
                data,
                spare: &page.spare,
                metadata: page.metadata,
            })
            .collect();
        then(&pages)
    }

    fn step(&mut self) {
        let die = self.random.below(self.geometry.dies() + u32::from(self.random.0.is_multiple_of(50)));
        match self.random.below(100) {
            0..60 => {
                let pages = self.pages(die);
                let status = Run::with_pages(&pages, |pages| self.array().program(die, pages)).unwrap();
                if self.oracle.allows(die, &pages) {
                    assert_eq!(status, self.oracle.program(die, &pages), "{pages:?}");
                } else {
                    assert!(Oracle::is_misuse(status), "{status:?} for {pages:?}");
                    self.refused += 1;
                }
            }
            60..75 => {
                let first = self.random.below(self.geometry.blocks_per_die() + 1);
                let blocks: Vec<u32> = (0..1 + self.random.below(3)).map(|place| first + place).collect();
                let status = self.array().erase(die, &blocks).unwrap();
                if self.oracle.allows_erase(die, &blocks) {
                    assert_eq!(status, Status::DONE);
                    blocks.iter().for_each(|block| self.oracle.erase(die, *block));
                } else {
                    assert!(Oracle::is_misuse(status), "{status:?}");
                    self.refused += 1;
                }
            }
            75..85 => self.copyback(die),
            85..90 => self.cut(die),
            _ => self.compare_one(),
        }
    }

    fn copyback(&mut self, die: u32) {
        let from = PageAddress { block: self.random.below(6), page: self.random.below(self.geometry.pages_per_block) };
        let block = self.random.below(6);
        let to = PageAddress { block, page: self.oracle.next(die, block) };
        let spare = (self.random.below(2) == 0).then(|| self.bytes(16));
        let status = self.array().copyback(die, &[CopybackPage { from, to, spare: spare.as_deref() }]).unwrap();
        let page = |data, spare, metadata| Page { block: to.block, page: to.page, data, spare, metadata };
        let allowed = die < 2
            && from.block % 2 == to.block % 2
            && self.oracle.allows(die, &[page(vec![], spare.clone().unwrap_or_default(), false)]);
        if !allowed {
            assert!(Oracle::is_misuse(status), "{status:?} for {from:?} to {to:?}");
            return;
        }
        let undefined = self.oracle.undefined.get(&(die, from.block));
        let copied = matches!(status, Status::Done { .. } | Status::Latched);
        if undefined.is_some() && !copied {
            assert!(matches!(status, Status::Uncorrectable { .. } | Status::Erased), "{status:?}");
            return;
        }
        let source = match undefined {
            Some(old) => old.get(&from.page).cloned(),
            None => self.oracle.pages.get(&(die, from.block, from.page)).cloned(),
        };
        match source {
            None | Some(Held::LooksErased) => assert_eq!(status, Status::Erased),
            Some(Held::Unreadable) => assert!(matches!(status, Status::Uncorrectable { .. })),
            Some(Held::Page { data, spare: old, metadata }) => {
                let copied = page(data, spare.unwrap_or(old), metadata);
                assert_eq!(status, self.oracle.program(die, &[copied]));
            }
        }
    }

    fn outcome(&mut self) -> CutOutcome {
        CutOutcome::ALL[self.random.below(4) as usize]
    }

    /// Power goes while a die is programming or erasing; the others are at rest.
    fn cut(&mut self, die: u32) {
        let die = die % self.geometry.dies();
        if self.random.below(2) == 0 {
            let pages = self.pages(die);
            if self.oracle.allows(die, &pages) {
                let outcomes: Vec<CutOutcome> = pages.iter().map(|_| self.outcome()).collect();
                Run::with_pages(&pages, |pages| self.array().cut_program(die, pages, &outcomes)).unwrap();
                self.oracle.cut_program(die, &pages, &outcomes, true);
            }
        } else {
            let (block, outcome) = (self.random.below(6), self.outcome());
            if self.oracle.allows_erase(die, &[block]) {
                assert_eq!(self.array().cut_erase(die, block, outcome).unwrap(), Status::DONE);
                match outcome {
                    CutOutcome::NotBegun => {}
                    CutOutcome::Complete => self.oracle.erase(die, block),
                    CutOutcome::Interrupted | CutOutcome::LooksErased => self.oracle.interrupt_erase(die, block),
                }
            }
        }
        self.oracle.power_up();
        match self.kind {
            // Opening is a power-up of its own.
            Kind::File => {
                self.array = None;
                let reopened = Array::open(&self.scratch.file(), &UUID, 3, &self.geometry, &self.faults);
                self.array = Some(reopened.unwrap());
            }
            Kind::Ram | Kind::Headers => self.array().power_up().unwrap(),
        }
        if self.random.below(3) == 0 {
            self.go_on_from_a_snapshot();
        }
    }

    /// Other flash goes on in the place of this one, from what this one has saved.
    fn go_on_from_a_snapshot(&mut self) {
        let mut saved = FrameWriter::new(Vec::new());
        self.array().save(&mut saved).expect("nothing is in latches");
        let saved = saved.finish().unwrap();
        let folder = Scratch::new();
        let mut other = match self.kind {
            Kind::Ram => Array::in_memory(&self.geometry, &self.faults, self.seed),
            Kind::Headers => Array::headers_only(&self.geometry, &self.faults, self.seed),
            Kind::File => Array::create(&folder.file(), &head(&self.geometry, self.seed), &self.faults).unwrap(),
        };
        let mut from = FrameReader::new(&saved[..]);
        let loaded = other.load(&mut from);
        if self.kind == Kind::File && !self.oracle.undefined.is_empty() {
            assert!(matches!(loaded, Err(SnapshotError::Unfit(_))), "{loaded:?}");
            return;
        }
        loaded.unwrap();
        from.finish().unwrap();
        self.array = Some(other);
        if self.kind == Kind::File {
            self.scratch = folder;
        }
        self.snapshots += 1;
    }

    fn compare_one(&mut self) {
        let die = self.random.below(2);
        let at = PageAddress { block: self.random.below(6), page: self.random.below(self.geometry.pages_per_block) };
        self.compare(die, at);
    }

    fn compare(&mut self, die: u32, at: PageAddress) {
        let offset = self.random.below(1024);
        let length = self.random.below(1025 - offset);
        let read = Read { at, offset_bytes: offset, length_bytes: length, spare: true };
        let (mut data, mut spare) = (vec![1; length as usize], vec![1; 16]);
        let status = self.array().read(die, &read, &mut data, &mut spare).unwrap();
        if self.oracle.undefined.contains_key(&(die, at.block)) {
            // Where contents are not kept, a page that is as before is zeroes.
            let shown = if self.kind == Kind::Headers && status == Status::DONE { &[][..] } else { &data };
            assert!(self.oracle.may_show(die, at, status, offset as usize, shown), "{status:?} of {at:?}");
            self.as_before += u32::from(status == Status::DONE);
            return;
        }
        let range = offset as usize..(offset + length) as usize;
        match self.oracle.pages.get(&(die, at.block, at.page)) {
            Some(Held::Page { data: held, spare: held_spare, metadata }) => {
                assert_eq!(status, Status::DONE, "die {die}, {at:?}");
                assert_eq!(&spare, held_spare);
                if self.kind != Kind::Headers || *metadata {
                    assert_eq!(data, held[range]);
                } else {
                    assert!(data.iter().all(|byte| *byte == 0));
                }
            }
            Some(Held::Unreadable) => assert!(matches!(status, Status::Uncorrectable { .. }), "{status:?}, {at:?}"),
            Some(Held::LooksErased) | None => {
                assert_eq!(status, Status::Erased, "die {die}, {at:?}");
                assert!(data.iter().chain(&spare).all(|byte| *byte == 0xFF));
            }
        }
    }

    fn compare_all(&mut self) {
        for die in 0..2 {
            for block in 0..6 {
                let count = self.oracle.erases.get(&(die, block)).copied().unwrap_or(0);
                assert_eq!(self.array().erase_count(die, block), Some(count), "erases are the medium's own");
                for page in 0..self.geometry.pages_per_block {
                    self.compare(die, PageAddress { block, page });
                }
            }
        }
    }
}

fn same_as_the_oracle(kind: Kind, seeds: u64, steps: u32) {
    for cell in CELLS {
        let (mut refused, mut as_before, mut snapshots) = (0, 0, 0);
        for seed in 0..seeds {
            let mut run = Run::new(kind, cell, seed * 1001 + cell as u64);
            for _ in 0..steps {
                run.step();
            }
            run.compare_all();
            refused += run.refused;
            as_before += run.as_before;
            snapshots += run.snapshots;
        }
        assert!(refused > 10, "misuse was tried");
        assert!(as_before > 5, "old pages were seen in undefined blocks");
        assert!(snapshots > 5, "other flash went on from snapshots");
    }
}

#[test]
fn flash_in_memory_is_as_the_oracle_says() {
    same_as_the_oracle(Kind::Ram, 40, 400);
}

#[test]
fn flash_without_contents_is_as_the_oracle_says() {
    same_as_the_oracle(Kind::Headers, 40, 400);
}

#[test]
fn flash_in_files_is_as_the_oracle_says_also_after_reopening() {
    same_as_the_oracle(Kind::File, 10, 400);
}

#[test]
fn every_cut_of_small_sequences_leaves_what_the_oracle_says() {
    for kind in [Kind::Ram, Kind::Headers, Kind::File] {
        for cell in CELLS {
            let pages_of_a_block = small(cell).pages_per_block;
            // Cut at each page of a block, both planes, every pair of outcomes; and at the erase that follows.
            for page in 0..pages_of_a_block {
                for outcomes in CutOutcome::ALL.iter().flat_map(|one| CutOutcome::ALL.map(|two| [*one, two])) {
                    let mut run = Run::new(kind, cell, u64::from(page));
                    run.fill(page);
                    let pages = run.two_pages(page);
                    Run::with_pages(&pages, |pages| run.array().cut_program(1, pages, &outcomes)).unwrap();
                    run.oracle.cut_program(1, &pages, &outcomes, true);
                    run.oracle.power_up();
                    run.power_up();
                    run.compare_all();
                }
            }
            for outcome in CutOutcome::ALL {
                let mut run = Run::new(kind, cell, 77);
                run.fill(pages_of_a_block);
                run.array().cut_erase(1, 2, outcome).unwrap();
                match outcome {
                    CutOutcome::NotBegun => {}
                    CutOutcome::Complete => run.oracle.erase(1, 2),
                    CutOutcome::Interrupted | CutOutcome::LooksErased => run.oracle.interrupt_erase(1, 2),
                }
                run.power_up();
                run.compare_all();
                let page = Page { block: 2, page: 0, data: vec![1], spare: vec![], metadata: false };
                let status = Run::with_pages(&[page], |pages| run.array().program(1, pages)).unwrap();
                assert_eq!(
                    matches!(status, Status::Misuse(_)),
                    outcome != CutOutcome::Complete,
                    "{outcome:?}: {status:?}"
                );
            }
        }
    }
}

impl Run {
    fn two_pages(&mut self, page: u32) -> Vec<Page> {
        [2, 3].map(|block| Page { block, page, data: self.bytes(1024), spare: self.bytes(16), metadata: true }).to_vec()
    }

    fn fill(&mut self, to: u32) {
        for page in 0..to {
            let pages = self.two_pages(page);
            let status = Run::with_pages(&pages, |pages| self.array().program(1, pages)).unwrap();
            assert_eq!(status, self.oracle.program(1, &pages));
        }
    }

    fn power_up(&mut self) {
        if self.kind == Kind::File {
            self.array = None;
            let opened = Array::open(&self.scratch.file(), &UUID, 3, &self.geometry, &self.faults);
            self.array = Some(opened.unwrap());
        } else {
            self.array().power_up().unwrap();
        }
    }
}
