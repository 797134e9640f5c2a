//! The flash port, for an app that serves the banks of a device with flash (docs/abi.md, "The flash port").
//!
//! What always holds: an operation that would be one more than a handler can wait for is begun when another one has ended; what an operation reads is copied before the operation begins; what it writes to stays borrowed until it has ended.
//!
//! Who may call it: the FTL of the device. Any other app gets [`Error::Permission`].

use crate::executor::{Issued, Operation, Wait, free_wait};
use crate::{Error, imports, sys};

/// Handler of an FTL: bring a range of the bank to the peer.
pub const NV_READ: u8 = 250;
/// Handler of an FTL: make a range of the bank what the peer has.
pub const NV_WRITE: u8 = 251;
/// Handler of an FTL: make a range of the bank read as zeroes.
pub const NV_ZERO: u8 = 252;
/// Handler of an FTL: make durable what was answered before.
pub const NV_FLUSH: u8 = 253;
/// Status of an answer: the flash cannot be read, or written.
pub const NV_FAILED: u32 = 1;
/// Status of an answer: too much of the flash has worn out.
pub const NV_FULL: u32 = 2;

/// The arguments of an FTL's handlers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NvArguments {
    /// The other end of the operation.
    pub peer: u32,
    /// First byte in the bank.
    pub address: u64,
    /// Bytes.
    pub bytes: u64,
}

impl NvArguments {
    /// From the 24 bytes that SPU-OS sends.
    pub fn decode(bytes: &[u8; 24]) -> NvArguments {
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        };
        NvArguments { peer: word(0) as u32, address: word(8), bytes: word(16) }
    }
}

/// Words that say how the flash is arranged (docs/abi.md, `flash_geometry`).
pub const GEOMETRY_WORDS: usize = 12;

/// The flash of this SPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlashShape {
    /// How it is arranged: `Geometry::of_words` of the flash library reads them.
    pub geometry: [u32; GEOMETRY_WORDS],
    /// Bytes of the bank that the FTL is to offer.
    pub bank_bytes: u64,
    /// Free blocks of a lane below which it is to collect; 0: as it thinks best.
    pub collect_below_blocks: u32,
    /// Whether it is to find the block to collect by [`minimum`].
    pub victim_search: bool,
    /// Whether it is to move pages by [`PagePart::Copyback`].
    pub copyback: bool,
}

impl FlashShape {
    /// Bytes of the unit that the FTL is to map as one.
    pub const fn unit_bytes(&self) -> u32 {
        self.geometry[10]
    }
}

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlashStatus {
    /// Done, with so many bits corrected.
    Done(u32),
    /// All ones: never programmed since the erase.
    Erased,
    /// Cannot be read.
    Uncorrectable,
    /// A bit for each page that is not there.
    ProgramFailed(u32),
    /// A bit for each block that must not be used any more.
    EraseFailed(u32),
    /// It is programmed with the last page of its word line.
    Latched,
    /// It breaks a rule of the flash; nothing changed.
    Misuse,
}

impl FlashStatus {
    fn of(result: i64) -> Result<FlashStatus, Error> {
        let bits = (result >> 8) as u32;
        match result {
            ..0 => Err(Error::from_code(result)),
            _ => Ok(match result & 0xff {
                0 => FlashStatus::Done(bits),
                2 => FlashStatus::Erased,
                3 => FlashStatus::Uncorrectable,
                4 => FlashStatus::ProgramFailed(bits),
                5 => FlashStatus::EraseFailed(bits),
                6 => FlashStatus::Latched,
                _ => FlashStatus::Misuse,
            }),
        }
    }
}

/// Where a part of a page comes from.
#[derive(Clone, Copy, Debug)]
pub enum PagePart<'a> {
    /// The app's memory.
    Local(&'a [u8]),
    /// A peer, from an offset on.
    Peer {
        /// Which.
        peer: u32,
        /// First byte.
        offset: u64,
        /// Bytes.
        bytes: u32,
    },
    /// Another page.
    Flash {
        /// On which die.
        die: u32,
        /// In which block.
        block: u32,
        /// Which page.
        page: u32,
        /// First byte.
        offset: u32,
        /// Bytes.
        bytes: u32,
    },
    /// The whole of a page of the same plane of the same die, by copyback, as all pages of that program.
    Copyback {
        /// In which block.
        block: u32,
        /// Which page.
        page: u32,
        /// Bytes of a page.
        bytes: u32,
    },
    /// Zeroes, so many bytes.
    Zeroes(u32),
}

/// Most pages of one program.
pub const PROGRAM_PAGES_MAX: usize = 8;
/// Most parts of all pages of one program.
pub const PROGRAM_PARTS_MAX: usize = 128;
const PAGE_BYTES: usize = 32;
const PART_BYTES: usize = 24;

/// The pages of a program, at most so many of at most so many parts, described as the import has them.
pub struct Program<const PARTS: usize = PROGRAM_PARTS_MAX, const PAGES: usize = PROGRAM_PAGES_MAX> {
    pages: [[u8; PAGE_BYTES]; PAGES],
    parts: [[u8; PART_BYTES]; PARTS],
    page_count: usize,
    part_count: usize,
}

impl<const PARTS: usize, const PAGES: usize> Default for Program<PARTS, PAGES> {
    fn default() -> Self {
        Program { pages: [[0; PAGE_BYTES]; PAGES], parts: [[0; PART_BYTES]; PARTS], page_count: 0, part_count: 0 }
    }
}

fn put32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

fn put64(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

fn status(code: i32) -> Issued<Result<FlashStatus, Error>> {
    match code {
        sys::PENDING => Issued::Pending,
        code => Issued::Done(FlashStatus::of(code.into())),
    }
}

struct ProgramWait<'a, const PARTS: usize, const PAGES: usize> {
    die: u32,
    program: &'a Program<PARTS, PAGES>,
}

impl<const PARTS: usize, const PAGES: usize> Operation for ProgramWait<'_, PARTS, PAGES> {
    type Output = Result<FlashStatus, Error>;
    const LOCAL: bool = false;

    fn issue(&mut self, wait: u32) -> Issued<Self::Output> {
        let Program { pages, page_count, .. } = self.program;
        // SAFETY: the import reads what the descriptions name before it returns: parts in `program`, and what those borrow (`program` of the
        // function of that name).
        status(unsafe { imports::flash_program(self.die, pages.as_ptr().cast(), *page_count as u32, wait) })
    }

    fn completed(&mut self, result: i64) -> Self::Output {
        FlashStatus::of(result)
    }
}

/// A page to be programmed.
#[derive(Clone, Copy, Debug)]
pub struct PageProgram<'a, I> {
    /// Block of the die.
    pub block: u32,
    /// Page of the block.
    pub page: u32,
    /// Its bytes, in parts.
    pub parts: I,
    /// The first bytes of its spare area.
    pub spare: &'a [u8],
}

/// Programs pages of the same number on distinct planes of a die. `descriptions` is memory for it.
///
/// # Errors
/// [`Error::Argument`]: more pages or parts than there may be.
pub async fn program<'a, I: Iterator<Item = PagePart<'a>>, const PARTS: usize, const PAGES: usize>(
    die: u32,
    descriptions: &mut Program<PARTS, PAGES>,
    pages: impl Iterator<Item = PageProgram<'a, I>>,
) -> Result<FlashStatus, Error> {
    (descriptions.page_count, descriptions.part_count) = (0, 0);
    for PageProgram { block, page, parts, spare } in pages {
        let first = descriptions.part_count;
        for part in parts {
            let place = descriptions.parts.get_mut(descriptions.part_count).ok_or(Error::Argument)?;
            *place = [0; PART_BYTES];
            let (kind, bytes) = match part {
                PagePart::Local(local) => {
                    put64(place, 8, sys::address(local.as_ptr()));
                    (0, local.len() as u32)
                }
                PagePart::Peer { peer, offset, bytes } => {
                    put32(place, 8, peer);
                    put64(place, 16, offset);
                    (1, bytes)
                }
                PagePart::Flash { die, block, page, offset, bytes } => {
                    for (word, value) in [die, block, page, offset].into_iter().enumerate() {
                        put32(place, 8 + 4 * word, value);
                    }
                    (2, bytes)
                }
                PagePart::Zeroes(bytes) => (3, bytes),
                PagePart::Copyback { block, page, bytes } => {
                    for (word, value) in [die, block, page, 0].into_iter().enumerate() {
                        put32(place, 8 + 4 * word, value);
                    }
                    (4, bytes)
                }
            };
            put32(place, 0, kind);
            put32(place, 4, bytes);
            descriptions.part_count += 1;
        }
        let parts = descriptions.parts[first..descriptions.part_count].as_ptr();
        let place = descriptions.pages.get_mut(descriptions.page_count).ok_or(Error::Argument)?;
        put32(place, 0, block);
        put32(place, 4, page);
        put64(place, 8, sys::address(parts.cast()));
        put32(place, 16, (descriptions.part_count - first) as u32);
        put32(place, 20, spare.len() as u32);
        put64(place, 24, sys::address(spare.as_ptr()));
        descriptions.page_count += 1;
    }
    free_wait().await;
    Wait::new(ProgramWait { die, program: descriptions }).await
}

/// Where a read goes.
#[derive(Debug)]
pub enum ReadTo<'a> {
    /// The app's memory: as many bytes as it has.
    Local(&'a mut [u8]),
    /// A peer.
    Peer {
        /// Which.
        peer: u32,
        /// First byte.
        offset: u64,
        /// Bytes.
        bytes: u32,
    },
}

struct ReadWait<'a> {
    die: u32,
    block: u32,
    page: u32,
    offset: u32,
    to: ReadTo<'a>,
    spare: &'a mut [u8],
}

impl Operation for ReadWait<'_> {
    type Output = Result<FlashStatus, Error>;
    const LOCAL: bool = true;

    fn issue(&mut self, wait: u32) -> Issued<Self::Output> {
        let (bytes, peer, to) = match &mut self.to {
            ReadTo::Local(into) => (into.len() as u32, 0, sys::address(into.as_mut_ptr())),
            ReadTo::Peer { peer, offset, bytes } => (*bytes, *peer, *offset),
        };
        let (spare, spare_bytes) = (self.spare.as_mut_ptr(), self.spare.len() as u32);
        let &mut ReadWait { die, block, page, offset, .. } = self;
        // SAFETY: both slices are borrowed until this has ended, and are as long as is said.
        status(unsafe { imports::flash_read(die, block, page, offset, bytes, peer, to, spare, spare_bytes, wait) })
    }

    fn completed(&mut self, result: i64) -> Self::Output {
        FlashStatus::of(result)
    }
}

/// Reads part of a page, and the first bytes of its spare area.
pub async fn read(
    die: u32,
    (block, page, offset): (u32, u32, u32),
    to: ReadTo<'_>,
    spare: &mut [u8],
) -> Result<FlashStatus, Error> {
    free_wait().await;
    Wait::new(ReadWait { die, block, page, offset, to, spare }).await
}

struct EraseWait<'a> {
    die: u32,
    blocks: &'a [u32],
}

impl Operation for EraseWait<'_> {
    type Output = Result<FlashStatus, Error>;
    const LOCAL: bool = false;

    fn issue(&mut self, wait: u32) -> Issued<Self::Output> {
        // SAFETY: the import reads the blocks before it returns.
        status(unsafe { imports::flash_erase(self.die, self.blocks.as_ptr().cast(), self.blocks.len() as u32, wait) })
    }

    fn completed(&mut self, result: i64) -> Self::Output {
        FlashStatus::of(result)
    }
}

/// Erases blocks of distinct planes of a die.
pub async fn erase(die: u32, blocks: &[u32]) -> Result<FlashStatus, Error> {
    free_wait().await;
    Wait::new(EraseWait { die, blocks }).await
}

struct PauseWait;

impl Operation for PauseWait {
    type Output = Result<FlashStatus, Error>;
    const LOCAL: bool = false;

    fn issue(&mut self, wait: u32) -> Issued<Self::Output> {
        status(imports::flash_pause(wait))
    }

    fn completed(&mut self, result: i64) -> Self::Output {
        FlashStatus::of(result)
    }
}

/// Makes way for what others have to do.
pub async fn pause() -> Result<FlashStatus, Error> {
    free_wait().await;
    Wait::new(PauseWait).await
}

/// The place of the first of the least of some numbers, by the accelerator; `None` where there are none, or too many.
pub fn minimum(numbers: &[u32]) -> Option<usize> {
    // SAFETY: the import reads as many numbers as the slice has.
    let place = unsafe { imports::flash_minimum(numbers.as_ptr().cast(), numbers.len() as u32) };
    usize::try_from(place).ok()
}

/// Where the units of a lane of the bank lie, for SPU-OS to read them without asking (docs/abi.md, "The read map").
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct LaneMap([u8; 32]);

impl LaneMap {
    /// An entry for each unit of the lane, and for each row of blocks a byte, which is 0 where its blocks lie in that row. SPU-OS looks at both whenever
    /// none of this app's handlers runs, from when they are published ([`publish`]) for as long as this instance is there or until others are: they stay
    /// at their places.
    pub fn new(entries: &[u32], moved: &[u8]) -> LaneMap {
        let mut lane = [0; 32];
        put64(&mut lane, 0, sys::address(entries.as_ptr().cast()));
        put64(&mut lane, 8, sys::address(moved.as_ptr()));
        put32(&mut lane, 16, entries.len() as u32);
        put32(&mut lane, 20, moved.len() as u32);
        LaneMap(lane)
    }
}

/// Publishes where the units of all lanes lie; without lanes, it ends what was published. Reads that correct more bits than that are asked for.
pub fn publish(lanes: &[LaneMap], corrected_bits_max: u32) -> Result<(), Error> {
    // SAFETY: the import reads 32 bytes for each lane before it returns. Natively SPU-OS looks at no map.
    match unsafe { imports::flash_read_map(lanes.as_ptr().cast(), lanes.len() as u32, corrected_bits_max) } {
        0 => Ok(()),
        error => Err(Error::from_code(error.into())),
    }
}

/// Tells hosts how the bank does: what is left of its spare blocks in percent of those of a new one, pages that the media lost and reads that
/// failed over its life, and whether nothing is written any more.
pub fn tell_health(spare_percent: u32, media_errors: u64, is_read_only: bool) -> Result<(), Error> {
    match imports::flash_health(spare_percent, media_errors, is_read_only.into()) {
        0 => Ok(()),
        code => Err(Error::from_code(code.into())),
    }
}

/// Makes part of the peer of a read zeroes.
pub fn zero_peer(peer: u32, offset: u64, bytes: u32) -> Result<(), Error> {
    match imports::flash_zero_peer(peer, offset, bytes) {
        0 => Ok(()),
        error => Err(Error::from_code(error.into())),
    }
}

/// The flash of this SPU, and what its FTL is to offer.
pub fn shape() -> Result<FlashShape, Error> {
    let mut words = [0_u32; 16];
    // SAFETY: the import writes 64 bytes, which `words` has.
    match unsafe { imports::flash_geometry(words.as_mut_ptr().cast()) } {
        0 => {
            let (geometry, rest) = words.split_at(GEOMETRY_WORDS);
            let geometry = core::array::from_fn(|word| geometry[word]);
            let bank_bytes = u64::from(rest[0]) | u64::from(rest[1]) << 32;
            let (collect_below_blocks, victim_search, copyback) = (rest[2], rest[3] & 1 != 0, rest[3] & 2 != 0);
            Ok(FlashShape { geometry, bank_bytes, collect_below_blocks, victim_search, copyback })
        }
        error => Err(Error::from_code(error.into())),
    }
}

/// Writes the first blocks of a die that are bad from the factory, as many as there is room for; returns how many there are.
pub fn factory_bad_blocks(die: u32, into: &mut [u32]) -> Result<usize, Error> {
    // SAFETY: the import writes at most as many words as `into` has.
    let count = unsafe { imports::flash_bad_blocks(die, into.as_mut_ptr().cast(), into.len() as u32) };
    usize::try_from(count).map_err(|_| Error::from_code(count.into()))
}
