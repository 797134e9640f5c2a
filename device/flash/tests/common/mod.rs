//! What the tests of the medium share: geometries, a generator of random numbers, scratch folders, and an oracle of the rules of flash.

#![allow(dead_code, reason = "each test uses a part")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use willow_flash_media::{
    Array, Cell, CutOutcome, FaultParameters, FileError, Geometry, Head, Misuse, PageAddress, ProgramPage, Read,
    Status, Uuid,
};

pub const UUID: Uuid = [7; 16];

/// A small geometry: every place is reached soon.
pub fn small(cell: Cell) -> Geometry {
    Geometry {
        channels: 2,
        packages_per_channel: 1,
        dies_per_package: 1,
        planes_per_die: 2,
        blocks_per_plane: 3,
        pages_per_block: if cell == Cell::Tlc { 9 } else { 8 },
        page_bytes: 1024,
        spare_bytes: 16,
        cell,
        paired_distance: if cell == Cell::Mlc { 2 } else { 0 },
        spare_accessible: true,
    }
}

pub fn head(geometry: &Geometry, seed: u64) -> Head {
    Head { uuid: UUID, bank: 3, geometry: *geometry, seed }
}

/// SplitMix64: same seed, same numbers.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, bound: u32) -> u32 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u32
    }
}

/// A folder that goes with its owner.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new() -> Scratch {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        loop {
            let name = format!("willow-flash-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
            let path = std::env::temp_dir().join(name);
            match std::fs::create_dir(&path) {
                // Of a process with the same number, in another namespace or of a run that was killed.
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                made => return made.map(|()| Scratch(path)).expect("a new folder"),
            }
        }
    }

    pub fn file(&self) -> PathBuf {
        self.0.join("flash-003")
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What a page of the oracle holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Held {
    Page { data: Vec<u8>, spare: Vec<u8>, metadata: bool },
    Unreadable,
    LooksErased,
}

/// The rules of flash once more, as simply as can be: what was programmed, by address.
#[derive(Clone)]
pub struct Oracle {
    geometry: Geometry,
    /// Whether the pages of a word line are done one by one.
    pub word_line_buffer: bool,
    pub pages: BTreeMap<(u32, u32, u32), Held>,
    pub next: BTreeMap<(u32, u32), u32>,
    pub erases: BTreeMap<(u32, u32), u32>,
    /// Blocks whose erasing was interrupted, with what they held.
    pub undefined: BTreeMap<(u32, u32), BTreeMap<u32, Held>>,
    latched: BTreeMap<u32, (Vec<u32>, u32)>,
}

/// One page to be programmed.
#[derive(Clone, Debug)]
pub struct Page {
    pub block: u32,
    pub page: u32,
    pub data: Vec<u8>,
    pub spare: Vec<u8>,
    pub metadata: bool,
}

impl Oracle {
    pub fn new(geometry: &Geometry) -> Oracle {
        Oracle {
            geometry: *geometry,
            word_line_buffer: false,
            pages: BTreeMap::new(),
            next: BTreeMap::new(),
            erases: BTreeMap::new(),
            undefined: BTreeMap::new(),
            latched: BTreeMap::new(),
        }
    }

    pub fn next(&self, die: u32, block: u32) -> u32 {
        self.next.get(&(die, block)).copied().unwrap_or(0)
    }

    fn together(&self) -> u32 {
        if self.geometry.cell == Cell::Tlc && !self.word_line_buffer { 3 } else { 1 }
    }

    /// Whether the rules allow it; which of the broken rules is named is the medium's choice.
    pub fn allows(&self, die: u32, pages: &[Page]) -> bool {
        let g = &self.geometry;
        let planes: BTreeSet<u32> = pages.iter().map(|page| page.block % g.planes_per_die).collect();
        let blocks: Vec<u32> = pages.iter().map(|page| page.block).collect();
        !pages.is_empty()
            && die < g.dies()
            && planes.len() == pages.len()
            && self.latched.get(&die).is_none_or(|(latched, _)| *latched == blocks)
            && pages.iter().all(|page| {
                page.block < g.blocks_per_die()
                    && page.page < g.pages_per_block
                    && page.page == pages[0].page
                    && page.data.len() <= g.page_bytes as usize
                    && page.spare.len() <= g.spare_bytes as usize
                    && page.page == self.next(die, page.block)
                    && !self.undefined.contains_key(&(die, page.block))
            })
    }

    pub fn program(&mut self, die: u32, pages: &[Page]) -> Status {
        for page in pages {
            let mut data = page.data.clone();
            data.resize(self.geometry.page_bytes as usize, 0xFF);
            let mut spare = page.spare.clone();
            spare.resize(self.geometry.spare_bytes as usize, 0xFF);
            let held = Held::Page { data, spare, metadata: page.metadata };
            self.pages.insert((die, page.block, page.page), held);
            self.next.insert((die, page.block), page.page + 1);
        }
        if (pages[0].page + 1).is_multiple_of(self.together()) {
            self.latched.remove(&die);
            return Status::DONE;
        }
        let blocks = pages.iter().map(|page| page.block).collect();
        let first = pages[0].page - pages[0].page % self.together();
        self.latched.insert(die, (blocks, first));
        Status::Latched
    }

    pub fn allows_erase(&self, die: u32, blocks: &[u32]) -> bool {
        let g = &self.geometry;
        let planes: BTreeSet<u32> = blocks.iter().map(|block| block % g.planes_per_die).collect();
        let latched = self.latched.get(&die).map_or(&[][..], |(blocks, _)| blocks);
        !blocks.is_empty()
            && die < g.dies()
            && planes.len() == blocks.len()
            && blocks.iter().all(|block| *block < g.blocks_per_die() && !latched.contains(block))
    }

    pub fn erase(&mut self, die: u32, block: u32) {
        self.pages.retain(|(of, held, _), _| (*of, *held) != (die, block));
        self.next.insert((die, block), 0);
        self.undefined.remove(&(die, block));
        *self.erases.entry((die, block)).or_default() += 1;
    }

    /// Power goes while this block is being erased.
    pub fn interrupt_erase(&mut self, die: u32, block: u32) {
        let mut old = BTreeMap::new();
        if !self.undefined.contains_key(&(die, block)) {
            let pages = self.pages.range((die, block, 0)..(die, block + 1, 0));
            old.extend(pages.map(|((_, _, page), held)| (*page, held.clone())));
        }
        self.erase(die, block);
        self.undefined.insert((die, block), old);
    }

    /// Whether a page of such a block may show this, from an offset on.
    pub fn may_show(&self, die: u32, at: PageAddress, status: Status, offset: usize, data: &[u8]) -> bool {
        match status {
            Status::Erased => data.iter().all(|byte| *byte == 0xFF),
            Status::Uncorrectable { .. } => true,
            Status::Done { .. } => match self.undefined[&(die, at.block)].get(&at.page) {
                Some(Held::Page { data: held, .. }) => data == &held[offset..offset + data.len()],
                _ => false,
            },
            _ => false,
        }
    }

    /// Power goes while these pages are being programmed.
    pub fn cut_program(&mut self, die: u32, pages: &[Page], outcomes: &[CutOutcome], paired: bool) {
        let page = pages[0].page;
        if (page + 1).is_multiple_of(self.together()) {
            for (page, outcome) in pages.iter().zip(outcomes) {
                let held = match outcome {
                    CutOutcome::NotBegun => continue,
                    CutOutcome::Complete => {
                        let latched = self.latched.get(&die).cloned();
                        self.program(die, std::slice::from_ref(page));
                        if let Some(latched) = latched {
                            self.latched.insert(die, latched);
                        }
                        continue;
                    }
                    CutOutcome::Interrupted => Held::Unreadable,
                    CutOutcome::LooksErased => Held::LooksErased,
                };
                for lost in page.page + 1 - self.together()..=page.page {
                    self.pages.insert((die, page.block, lost), held.clone());
                }
                self.next.insert((die, page.block), page.page + 1);
                if let (true, Some(lower)) = (paired, self.geometry.paired_lower(page.page)) {
                    self.pages.insert((die, page.block, lower), Held::Unreadable);
                }
            }
        }
    }

    /// Power is back.
    pub fn power_up(&mut self) {
        for (die, (blocks, first)) in std::mem::take(&mut self.latched) {
            for block in blocks {
                if self.next(die, block) < first + self.together() {
                    self.pages.retain(|(of, held, page), _| (*of, *held) != (die, block) || *page < first);
                    self.next.insert((die, block), first);
                }
            }
        }
    }

    /// Whether a misuse is one that this page's state explains.
    pub fn is_misuse(status: Status) -> bool {
        matches!(status, Status::Misuse(misuse) if misuse != Misuse::BufferLength)
    }
}

pub fn open(path: &Path, geometry: &Geometry) -> Result<Array, FileError> {
    Array::open(path, &UUID, 3, geometry, &FaultParameters::NONE)
}

pub fn create(path: &Path, geometry: &Geometry) -> Array {
    Array::create(path, &head(geometry, 1), &FaultParameters::NONE).unwrap()
}

/// A page's bytes follow from its place and the erase count of its block.
pub fn page_bytes(die: u32, block: u32, page: u32, erases: u32) -> Vec<u8> {
    let mut random = Random(u64::from(die) << 48 | u64::from(block) << 32 | u64::from(page) << 16 | u64::from(erases));
    (0..1040).map(|_| random.next() as u8).collect()
}

pub fn program(array: &mut Array, die: u32, block: u32, page: u32) -> Status {
    let bytes = page_bytes(die, block, page, array.erase_count(die, block).unwrap());
    let page = ProgramPage {
        at: PageAddress { block, page },
        data: &[&bytes[..500], &bytes[500..1024]],
        spare: &bytes[1024..],
        metadata: false,
    };
    array.program(die, &[page]).unwrap()
}

pub fn read(array: &mut Array, die: u32, block: u32, page: u32) -> (Status, Vec<u8>) {
    let mut data = vec![0; 1024];
    let mut spare = vec![0; 16];
    let read = Read { at: PageAddress { block, page }, offset_bytes: 0, length_bytes: 1024, spare: true };
    let status = array.read(die, &read, &mut data, &mut spare).unwrap();
    data.append(&mut spare);
    (status, data)
}
