//! The dies of one medium: contents, and the rules of flash. Knows no time but that which bits age by.
//!
//! What always holds:
//! - A page is programmed at most once after each erase of its block, in the order of pages. What breaks a rule is [`Status::Misuse`] and
//!   changes nothing; so does an operation that ends in an error of the file.
//! - What was answered with [`Status::Done`] reads back byte for byte until its block is erased, wears out of the ECC's reach, or its paired
//!   upper page meets a power cut.
//! - Erase counts are those of the erases that were begun.
//!
//! A bank's owner calls it: at once under the free clock, at the moments that [`crate::timing`] tells under the others.

use crate::contents::{
    Block, Contents, FileContents, FileError, HeaderContents, PageState, PageWrite, RamContents, Sync,
};
use crate::faults::{BitErrors, FaultParameters, Faults, PageHistory, Undefined};
use crate::geometry::{GEOMETRY_WORDS, Geometry, PageAddress, PageKind, PlaneSet};
use crate::operation::{Misuse, ProgramPage, Read, Status};
use crate::statistics::ArrayStatistics;
use std::collections::BTreeMap;

/// A word line that waits in a die's latches for its last page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Latches {
    pub(crate) blocks: Vec<u32>,
    pub(crate) first_page: u32,
    pub(crate) pages: u32,
}

/// The dies of one medium.
#[derive(Debug)]
pub struct Array {
    pub(crate) geometry: Geometry,
    pub(crate) faults: Faults,
    pub(crate) blocks: Vec<Block>,
    /// Pages in another state than their place says: failed and interrupted ones, few.
    pub(crate) exceptions: BTreeMap<(u64, u32), PageState>,
    pub(crate) latches: Vec<Option<Latches>>,
    pub(crate) contents: Contents,
    time_s: u32,
    /// What is being erased destroys nothing whose copies are not on the disk.
    covered: bool,
    pub(crate) counters: ArrayStatistics,
}

impl Array {
    /// Flash whose contents are in memory; geometry and parameters are validated.
    pub fn in_memory(geometry: &Geometry, faults: &FaultParameters, seed: u64) -> Array {
        Array::fresh(geometry, faults, seed, Contents::Ram(RamContents::new(geometry)))
    }

    /// Flash that keeps headers alone: spare areas and the FTL's own pages.
    pub fn headers_only(geometry: &Geometry, faults: &FaultParameters, seed: u64) -> Array {
        Array::fresh(geometry, faults, seed, Contents::Headers(HeaderContents::new(geometry)))
    }

    /// Blocks as they leave the factory.
    pub(crate) fn factory_blocks(geometry: &Geometry, faults: &FaultParameters, seed: u64) -> Vec<Block> {
        let faults = Faults::new(faults, seed);
        let bad = |block| if faults.factory_bad(block) { Block::FACTORY_BAD } else { 0 };
        (0..geometry.blocks()).map(|block| Block { flags: bad(block), ..Block::default() }).collect()
    }

    fn fresh(geometry: &Geometry, faults: &FaultParameters, seed: u64, contents: Contents) -> Array {
        Array::over(geometry, faults, seed, contents, Array::factory_blocks(geometry, faults, seed))
    }

    fn over(geometry: &Geometry, faults: &FaultParameters, seed: u64, contents: Contents, blocks: Vec<Block>) -> Array {
        Array {
            geometry: *geometry,
            faults: Faults::new(faults, seed),
            blocks,
            exceptions: BTreeMap::new(),
            latches: vec![None; geometry.dies() as usize],
            contents,
            time_s: 0,
            covered: false,
            counters: ArrayStatistics::default(),
        }
    }

    /// Makes a flash file and flash in it.
    pub fn create(path: &std::path::Path, head: &crate::Head, faults: &FaultParameters) -> Result<Array, FileError> {
        let blocks = Array::factory_blocks(&head.geometry, faults, head.seed);
        let contents = FileContents::create(path, head, &blocks)?;
        Ok(Array::over(&head.geometry, faults, head.seed, Contents::File(Box::new(contents)), blocks))
    }

    /// Opens a flash file; it is as after a power cut with nothing in the arrays: word lines that waited in latches are lost.
    pub fn open(
        path: &std::path::Path,
        uuid: &crate::Uuid,
        bank: u64,
        geometry: &Geometry,
        faults: &FaultParameters,
    ) -> Result<Array, FileError> {
        let (contents, found) = FileContents::open(path, uuid, bank, geometry)?;
        let contents = Contents::File(Box::new(contents));
        let mut array = Array::over(geometry, faults, found.head.seed, contents, found.blocks);
        array.exceptions.extend(found.exceptions.into_iter().map(|(block, page, state)| ((block, page), state)));
        array.time_s = array.blocks.iter().map(|block| block.programmed_s).max().unwrap_or(0);
        array.drop_unfinished_word_lines()?;
        Ok(array)
    }

    /// How it is arranged.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Erases that a block is rated for.
    pub fn endurance_cycles(&self) -> u32 {
        self.faults.parameters().endurance_cycles
    }

    /// How it is arranged, as the flash port tells it.
    pub fn words(&self) -> [u32; GEOMETRY_WORDS] {
        self.geometry.words(self.faults.parameters().paired_page_loss)
    }

    /// What it has done and met.
    pub fn statistics(&self) -> ArrayStatistics {
        self.counters
    }

    /// Bytes of memory that it holds for contents and blocks.
    pub fn held_bytes(&self) -> u64 {
        self.contents.held_bytes() + (self.blocks.len() * size_of::<Block>()) as u64
    }

    /// The medium's time, which data age by, in seconds; it never goes back.
    pub fn set_time_s(&mut self, time_s: u32) {
        self.time_s = self.time_s.max(time_s);
    }

    /// The medium's time in seconds.
    pub fn time_s(&self) -> u32 {
        self.time_s
    }

    /// Blocks of a die that are bad from the factory.
    pub fn factory_bad_blocks(&self, die: u32) -> impl Iterator<Item = u32> + '_ {
        let per_die = self.geometry.blocks_per_die();
        let first = self.block_number(die, 0) as usize;
        let blocks = self.blocks.get(first..first + per_die as usize).unwrap_or(&[]);
        let bad = blocks.iter().enumerate().filter(|(_, block)| block.is(Block::FACTORY_BAD));
        bad.map(|(number, _)| number as u32)
    }

    /// Erases of a block so far, which is the medium's own count.
    pub fn erase_count(&self, die: u32, block: u32) -> Option<u32> {
        self.block(die, block).map(|block| block.erase_count)
    }

    /// All that was programmed survives a power cut of the machine when this returns.
    pub fn sync(&mut self) -> Result<(), FileError> {
        self.contents.sync()
    }

    /// Whether something that was programmed may not survive a power cut of the machine.
    pub fn must_sync(&self) -> bool {
        self.contents.must_sync()
    }

    /// Whether an erase of these blocks waits for the disk, unless a sync beside covers it ([`Array::erase_covered`]): it destroys what may have
    /// been copied, and the copies may not be on the disk.
    pub fn must_sync_before_erase(&self, die: u32, blocks: &[u32]) -> bool {
        self.contents.must_sync() && blocks.iter().any(|block| !self.holds_nothing(self.block_number(die, *block)))
    }

    /// Whether nothing was programmed in a block since its last erase, which was not interrupted.
    fn holds_nothing(&self, number: u64) -> bool {
        let is_fresh = |block: &Block| block.next_page == 0 && !block.is(Block::UNDEFINED);
        self.blocks.get(number as usize).is_none_or(is_fresh)
            && self.exceptions.range((number, 0)..(number + 1, 0)).next().is_none()
    }

    /// Begins a sync for another thread to run, whose end is to be told by [`Array::end_sync`]; `None` where there is nothing to sync. One at a time.
    pub fn begin_sync(&mut self) -> Result<Option<Sync>, FileError> {
        self.contents.begin_sync()
    }

    /// A sync has ended on its thread: what was programmed before it was begun is safe.
    pub fn end_sync(&mut self, result: std::io::Result<()>) -> Result<(), FileError> {
        self.contents.end_sync(result)
    }

    /// Has this done before each sync of its file.
    #[cfg(feature = "testing")]
    pub fn set_sync_hook(&mut self, hook: crate::SyncHook) {
        if let Contents::File(file) = &mut self.contents {
            file.set_hook(hook);
        }
    }

    /// Syncs of its file so far: those that were asked for, and those before erases.
    pub fn syncs(&self) -> u64 {
        self.contents.syncs()
    }

    /// Ends the use of the medium: what is kept in memory (counts of reads) goes to the file.
    pub fn close(mut self) -> Result<(), FileError> {
        for (number, block) in self.blocks.iter().enumerate().filter(|(_, block)| block.reads > 0) {
            self.contents.save_block(number as u64, block)?;
        }
        self.contents.sync()
    }

    /// Pages that wait for one another before any of them is done.
    #[inline]
    pub(crate) fn together(&self) -> u32 {
        if self.faults.parameters().word_line_buffer { 1 } else { self.geometry.pages_per_program() }
    }

    #[inline]
    pub(crate) fn block_number(&self, die: u32, block: u32) -> u64 {
        u64::from(die) * u64::from(self.geometry.blocks_per_die()) + u64::from(block)
    }

    pub(crate) fn misuse(&mut self, misuse: Misuse) -> Status {
        self.counters.misuses += 1;
        Status::Misuse(misuse)
    }

    /// Reads a part of a page. `data` is as long as the part; `spare` takes the spare area's first bytes, and is empty where it is not asked for. Erased
    /// pages are ones; of uncorrectable ones nothing is delivered, the buffers become zeroes.
    #[inline]
    pub fn read(&mut self, die: u32, read: &Read, data: &mut [u8], spare: &mut [u8]) -> Result<Status, FileError> {
        self.read_to(die, read, Some(data), spare)
    }

    /// The same where nobody looks at the payload: how it ends.
    #[inline]
    pub fn read_unseen(&mut self, die: u32, read: &Read, spare: &mut [u8]) -> Result<Status, FileError> {
        self.read_to(die, read, None, spare)
    }

    #[inline]
    fn read_to(
        &mut self,
        die: u32,
        read: &Read,
        data: Option<&mut [u8]>,
        spare: &mut [u8],
    ) -> Result<Status, FileError> {
        let length = data.as_ref().map_or(read.length_bytes as usize, |data| data.len());
        let number = match self.check_read(die, read, length, spare.len()) {
            Ok(number) => number,
            Err(misuse) => return Ok(self.misuse(misuse)),
        };
        self.counters.reads += 1;
        let data = data.unwrap_or(&mut []);
        let status = match self.sense(number, read) {
            Sensed::Erased => {
                data.fill(0xFF);
                spare.fill(0xFF);
                Status::Erased
            }
            Sensed::Unreadable(retries) => self.unreadable(retries, data, spare),
            Sensed::Page(errors) if !errors.correctable => self.unreadable(errors.retries, data, spare),
            Sensed::Page(errors) => {
                if !self.contents.read((number, read.at.page), read.offset_bytes, data, spare)? {
                    let status = self.unreadable(self.faults.parameters().retry_steps, data, spare);
                    self.disturb(number);
                    return Ok(status);
                }
                self.counters.corrected_reads += u64::from(errors.worst_bits > 0);
                self.counters.retries += u64::from(errors.retries);
                Status::Done { corrected_bits: errors.worst_bits, retries: errors.retries }
            }
        };
        self.disturb(number);
        Ok(status)
    }

    /// Whether the payload of pages is kept: else of those alone that the FTL marked as its own.
    #[inline]
    pub fn keeps_payload(&self) -> bool {
        !matches!(self.contents, Contents::Headers(_))
    }

    /// Whether the payload of a page is kept.
    #[inline]
    pub fn keeps(&self, die: u32, at: PageAddress) -> bool {
        match &self.contents {
            Contents::Ram(_) | Contents::File(_) => true,
            Contents::Headers(headers) => self.check_page(die, at).is_ok_and(|number| headers.keeps((number, at.page))),
        }
    }

    #[inline]
    fn disturb(&mut self, number: u64) {
        let block = &mut self.blocks[number as usize];
        block.reads = block.reads.saturating_add(1);
    }

    fn unreadable(&mut self, retries: u8, data: &mut [u8], spare: &mut [u8]) -> Status {
        data.fill(0);
        spare.fill(0);
        self.counters.uncorrectable_reads += 1;
        self.counters.retries += u64::from(retries);
        Status::Uncorrectable { retries }
    }

    /// Steps of the ladder that a read would take now: what it takes in time is known before it begins.
    #[inline]
    pub fn retries_of(&self, die: u32, read: &Read) -> u8 {
        if self.faults.parameters().retry_steps == 0 {
            return 0;
        }
        let Ok(number) = self.check_page(die, read.at) else { return 0 };
        match self.sense(number, read) {
            Sensed::Erased => 0,
            Sensed::Unreadable(retries) => retries,
            Sensed::Page(errors) => errors.retries,
        }
    }

    #[inline]
    fn sense(&self, number: u64, read: &Read) -> Sensed {
        let block = &self.blocks[number as usize];
        let steps = self.faults.parameters().retry_steps;
        if block.is(Block::FACTORY_BAD) {
            return Sensed::Unreadable(steps);
        }
        if block.is(Block::UNDEFINED) {
            match self.faults.undefined(number, read.at.page, block.erase_count) {
                Undefined::LooksErased => return Sensed::Erased,
                Undefined::Unreadable => return Sensed::Unreadable(steps),
                Undefined::AsBefore => {}
            }
        }
        if !self.exceptions.is_empty() {
            match self.exceptions.get(&(number, read.at.page)) {
                Some(PageState::Unreadable) => return Sensed::Unreadable(steps),
                Some(PageState::LooksErased) => return Sensed::Erased,
                Some(PageState::Programmed) | None => {}
            }
        }
        if read.at.page >= u32::from(block.next_page) {
            return Sensed::Erased;
        }
        let history = PageHistory {
            block: number,
            page: read.at.page,
            erase_count: block.erase_count,
            reads: block.reads,
            age_s: self.time_s.saturating_sub(block.programmed_s),
        };
        let codeword = self.faults.parameters().codeword_bytes;
        let first = read.offset_bytes / codeword;
        let end = (read.offset_bytes + read.length_bytes).div_ceil(codeword);
        Sensed::Page(self.faults.bit_errors(&history, (first, end.max(first + 1))))
    }

    /// Programs pages of several planes at once.
    pub fn program(&mut self, die: u32, pages: &[ProgramPage<'_>]) -> Result<Status, FileError> {
        if let Err(misuse) = self.check_program(die, pages) {
            return Ok(self.misuse(misuse));
        }
        let page = pages[0].at.page;
        let last_of_word_line = (page + 1).is_multiple_of(self.together());
        // Where a buffer answers for each page by itself, a word line fails with its first page: nothing that was answered is lost.
        let may_fail = last_of_word_line && page.is_multiple_of(self.geometry.pages_per_program() / self.together());
        let mut failed = PlaneSet::default();
        for (place, page) in pages.iter().enumerate() {
            let number = self.block_number(die, page.at.block);
            let block = &self.blocks[number as usize];
            let fails = block.flags & (Block::FACTORY_BAD | Block::WORN) != 0
                || (may_fail && self.faults.program_fails(number, page.at.page, block.erase_count));
            if fails {
                failed.insert(place as u32);
                continue;
            }
            if let Err(error) = self.write_contents(number, page) {
                self.unwrite(die, &pages[..place], failed);
                return Err(error);
            }
        }
        for (place, page) in pages.iter().enumerate() {
            let number = self.block_number(die, page.at.block);
            if failed.contains(place as u32) {
                self.wear_out(number, page.at.page)?;
                continue;
            }
            self.count_page(number, page.at.page);
        }
        if last_of_word_line || (0..pages.len() as u32).any(|place| !failed.contains(place)) {
            self.latch(die, pages, last_of_word_line);
        }
        if !failed.is_empty() {
            return Ok(Status::ProgramFailed(failed));
        }
        Ok(if last_of_word_line { Status::DONE } else { Status::Latched })
    }

    fn write_contents(&mut self, number: u64, page: &ProgramPage<'_>) -> Result<(), FileError> {
        self.contents.write(&PageWrite {
            block: number,
            page: page.at.page,
            erase_count: self.blocks[number as usize].erase_count,
            data: page.data,
            spare: page.spare,
            metadata: page.metadata,
            time_s: self.time_s,
        })
    }

    #[inline]
    fn count_page(&mut self, number: u64, page: u32) {
        let block = &mut self.blocks[number as usize];
        if page == 0 {
            block.programmed_s = self.time_s;
        }
        block.next_page += 1;
        self.counters.programs += 1;
    }

    /// A page whose programming had just ended when the power went.
    pub(crate) fn write_page(&mut self, number: u64, page: &ProgramPage<'_>) -> Result<(), FileError> {
        self.write_contents(number, page)?;
        self.count_page(number, page.at.page);
        Ok(())
    }

    /// A page holds nothing any more.
    pub(crate) fn lose_page(&mut self, number: u64, page: u32, state: PageState) -> Result<(), FileError> {
        self.contents.mark(number, page, self.blocks[number as usize].erase_count, state)?;
        self.exceptions.insert((number, page), state);
        Ok(())
    }

    /// Takes back pages that were written when the file failed under a later one.
    fn unwrite(&mut self, die: u32, pages: &[ProgramPage<'_>], failed: PlaneSet) {
        for (place, page) in pages.iter().enumerate() {
            if !failed.contains(place as u32) {
                let number = self.block_number(die, page.at.block);
                // The file failed just now: where it does so again, the page's record stays, and opening finds a page that nobody was
                // told of, as after a power cut at the end of its programming.
                let _ = self.contents.forget(number, page.at.page);
            }
        }
    }

    /// A program failed: the pages that were to be programmed at once cannot be read, and the block takes no more.
    fn wear_out(&mut self, number: u64, page: u32) -> Result<(), FileError> {
        self.counters.program_failures += 1;
        let together = self.together();
        let block = &mut self.blocks[number as usize];
        if block.flags & (Block::FACTORY_BAD | Block::WORN) != 0 {
            return Ok(());
        }
        block.flags |= Block::WORN;
        block.next_page = (page + 1) as u16;
        let state = *block;
        for page in page + 1 - together..=page {
            self.lose_page(number, page, PageState::Unreadable)?;
        }
        self.contents.save_block(number, &state)
    }

    fn latch(&mut self, die: u32, pages: &[ProgramPage<'_>], last_of_word_line: bool) {
        let latches = &mut self.latches[die as usize];
        match latches {
            _ if last_of_word_line => *latches = None,
            Some(latched) => latched.pages += 1,
            None => {
                let blocks = pages.iter().map(|page| page.at.block).collect();
                *latches = Some(Latches { blocks, first_page: pages[0].at.page, pages: 1 });
            }
        }
    }

    /// Erases blocks of several planes at once.
    pub fn erase(&mut self, die: u32, blocks: &[u32]) -> Result<Status, FileError> {
        let checked = blocks
            .iter()
            .try_for_each(|block| self.check_block(die, *block).map(|_| ()))
            .and_then(|()| self.check_planes(blocks.iter().copied()))
            .and_then(|()| self.check_unlatched(die, blocks));
        if let Err(misuse) = checked {
            return Ok(self.misuse(misuse));
        }
        let mut failed = PlaneSet::default();
        for (place, block) in blocks.iter().enumerate() {
            let number = self.block_number(die, *block);
            let state = &self.blocks[number as usize];
            if state.flags & (Block::FACTORY_BAD | Block::WORN) != 0 {
                failed.insert(place as u32);
                self.counters.erase_failures += 1;
            } else if self.faults.erase_fails(number, state.erase_count) {
                failed.insert(place as u32);
                self.counters.erase_failures += 1;
                let worn = Block { flags: state.flags | Block::WORN, ..*state };
                self.contents.save_block(number, &worn)?;
                self.blocks[number as usize] = worn;
            } else {
                self.set_erased(number)?;
                self.counters.erases += 1;
            }
        }
        Ok(if failed.is_empty() { Status::DONE } else { Status::EraseFailed(failed) })
    }

    /// Erases blocks of several planes at once, where a sync has ended well that was begun after all was programmed that the erase may rest on.
    pub fn erase_covered(&mut self, die: u32, blocks: &[u32]) -> Result<Status, FileError> {
        self.covered = true;
        let status = self.erase(die, blocks);
        self.covered = false;
        status
    }

    /// A block is erased.
    pub(crate) fn set_erased(&mut self, number: u64) -> Result<(), FileError> {
        let erase_count = self.blocks[number as usize].erase_count.saturating_add(1);
        let erased = Block { erase_count, ..Block::default() };
        let covered = self.covered || self.holds_nothing(number);
        self.contents.erase(number, &erased, covered)?;
        self.blocks[number as usize] = erased;
        self.forget_exceptions(number, 0);
        Ok(())
    }

    /// An erase of a block was interrupted: some of its pages are as before. An interrupted one after that leaves none.
    pub(crate) fn set_undefined(&mut self, number: u64) -> Result<(), FileError> {
        let before = self.blocks[number as usize];
        if before.is(Block::UNDEFINED) {
            self.set_erased(number)?;
            self.blocks[number as usize].flags = Block::UNDEFINED;
            return self.contents.save_block(number, &self.blocks[number as usize]);
        }
        let undefined = Block { erase_count: before.erase_count.saturating_add(1), flags: Block::UNDEFINED, ..before };
        self.contents.erase(number, &undefined, self.covered)?;
        self.blocks[number as usize] = undefined;
        Ok(())
    }

    pub(crate) fn forget_exceptions(&mut self, number: u64, from_page: u32) {
        while let Some((&key, _)) = self.exceptions.range((number, from_page)..(number + 1, 0)).next() {
            self.exceptions.remove(&key);
        }
    }

    /// What kind of page it is, for its times.
    #[inline]
    pub fn page_kind(&self, page: u32) -> PageKind {
        self.geometry.page_kind(page)
    }
}

/// What sensing a page gives.
enum Sensed {
    Erased,
    Unreadable(u8),
    Page(BitErrors),
}
