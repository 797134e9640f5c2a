//! The state of flash as a stream of bytes, to go on with another time (docs/media-format.md, section 10).
//!
//! What always holds:
//! - What is loaded is what was saved: pages with their spare areas, states of blocks, erase counts, reads and ages. Only counts of operations begin
//!   anew, as when a flash file is opened.
//! - No byte that is loaded is believed: what cannot be a state of this flash is refused with what is wrong, and takes no memory that the geometry
//!   does not give it. Flash that was refused is of no use any more; its owner drops it.
//!
//! Who may call it: whoever keeps snapshots of a device, while none of its flash is at work.

mod frames;

pub use frames::{FRAME_BYTES_MAX, FrameReader, FrameWriter};

use crate::array::Array;
use crate::contents::{Block, Contents, FileError, PageState, PageWrite};
use std::io::{self, Read, Write};

/// Why flash cannot be saved or loaded.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The stream, or what is under it.
    #[error("{0}")]
    Stream(#[from] io::Error),
    /// What was read is no state of this flash.
    #[error("it is damaged: {0}")]
    Damaged(String),
    /// What was read is of another kind of flash.
    #[error("{0}")]
    Unfit(String),
    /// What keeps the contents.
    #[error(transparent)]
    Contents(#[from] FileError),
}

fn damaged<T>(what: String) -> Result<T, SnapshotError> {
    Err(SnapshotError::Damaged(what))
}

/// Its programming failed or was interrupted.
const UNREADABLE: u8 = 0;
/// Its programming was interrupted, and it looks erased.
const LOOKS_ERASED: u8 = 1;
/// Its payload is zeroes, or is not kept.
const PLAIN: u8 = 2;
/// Its payload follows.
const WHOLE: u8 = 3;
/// The same, and it is the FTL's own.
const OWN: u8 = 4;

/// All flags that a block can have.
const FLAGS: u8 = Block::FACTORY_BAD | Block::WORN | Block::UNDEFINED;

fn read_u16(from: &mut dyn Read) -> io::Result<u16> {
    let mut bytes = [0; 2];
    from.read_exact(&mut bytes)?;
    Ok(u16::from_le_bytes(bytes))
}

fn read_u32(from: &mut dyn Read) -> io::Result<u32> {
    let mut bytes = [0; 4];
    from.read_exact(&mut bytes)?;
    Ok(u32::from_le_bytes(bytes))
}

fn read_u8(from: &mut dyn Read) -> io::Result<u8> {
    let mut byte = [0];
    from.read_exact(&mut byte)?;
    Ok(byte[0])
}

/// Writes what a spare area differs in from that of the page before: neighbours differ in a few bytes.
fn write_spare(spare: &[u8], before: &[u8], into: &mut dyn Write) -> io::Result<()> {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for at in (0..spare.len()).filter(|at| spare[*at] != before[*at]) {
        match runs.last_mut() {
            Some((_, end)) if *end == at => *end = at + 1,
            _ => runs.push((at, at + 1)),
        }
    }
    into.write_all(&(runs.len() as u16).to_le_bytes())?;
    for (begin, end) in runs {
        into.write_all(&(begin as u16).to_le_bytes())?;
        into.write_all(&((end - begin) as u16).to_le_bytes())?;
        into.write_all(&spare[begin..end])?;
    }
    Ok(())
}

/// Makes the spare area of a page out of that of the page before.
fn read_spare(spare: &mut [u8], from: &mut dyn Read) -> Result<(), SnapshotError> {
    for _ in 0..read_u16(from)? {
        let (begin, length) = (usize::from(read_u16(from)?), usize::from(read_u16(from)?));
        let Some(run) = spare.get_mut(begin..begin + length) else {
            return damaged(format!("{length} bytes from byte {begin} of a spare area on"));
        };
        from.read_exact(run)?;
    }
    Ok(())
}

impl Array {
    /// Writes its state.
    ///
    /// # Errors
    /// [`SnapshotError::Unfit`]: pages wait in latches for the rest of their word line, which the next power-up would lose.
    pub fn save(&mut self, into: &mut dyn Write) -> Result<(), SnapshotError> {
        if self.latches.iter().any(Option::is_some) {
            return Err(SnapshotError::Unfit("some pages wait in latches".into()));
        }
        into.write_all(&self.time_s().to_le_bytes())?;
        let (page_bytes, spare_bytes) = (self.geometry.page_bytes as usize, self.geometry.spare_bytes as usize);
        let (mut data, mut spare, mut before) = (vec![0; page_bytes], vec![0; spare_bytes], vec![0; spare_bytes]);
        for number in 0..self.geometry.blocks() {
            let block = self.blocks[number as usize];
            into.write_all(&block.erase_count.to_le_bytes())?;
            into.write_all(&block.reads.to_le_bytes())?;
            into.write_all(&block.programmed_s.to_le_bytes())?;
            into.write_all(&block.next_page.to_le_bytes())?;
            into.write_all(&[block.flags])?;
            before.fill(0xFF);
            for page in 0..u32::from(block.next_page) {
                let kind = match self.exceptions.get(&(number, page)) {
                    Some(PageState::Unreadable) => UNREADABLE,
                    Some(PageState::LooksErased) => LOOKS_ERASED,
                    Some(PageState::Programmed) | None => self.kind_of(number, page),
                };
                if kind < PLAIN {
                    into.write_all(&[kind])?;
                    continue;
                }
                let payload = if kind == PLAIN { &mut [][..] } else { &mut data[..] };
                // A page that its file holds no longer is as unreadable as the next start would find it.
                if !self.contents.read((number, page), 0, payload, &mut spare)? {
                    into.write_all(&[UNREADABLE])?;
                    continue;
                }
                let has_bytes = kind == OWN || payload.iter().any(|byte| *byte != 0);
                into.write_all(&[if has_bytes { kind } else { PLAIN }])?;
                write_spare(&spare, &before, into)?;
                if has_bytes {
                    into.write_all(&data)?;
                }
                before.copy_from_slice(&spare);
            }
        }
        Ok(())
    }

    /// What is kept of a page that can be read.
    fn kind_of(&self, number: u64, page: u32) -> u8 {
        match &self.contents {
            Contents::Headers(headers) if headers.keeps((number, page)) => OWN,
            Contents::Headers(_) => PLAIN,
            Contents::Ram(_) | Contents::File(_) => WHOLE,
        }
    }

    /// Takes over a state of flash of the same geometry that [`Array::save`] wrote; this flash is new. Without contents it takes one that was saved without
    /// contents; with contents either, and what was not kept is zeroes.
    pub fn load(&mut self, from: &mut dyn Read) -> Result<(), SnapshotError> {
        debug_assert!(self.blocks.iter().all(|block| block.next_page == 0 && block.erase_count == 0), "it is new");
        self.set_time_s(read_u32(from)?);
        let (page_bytes, spare_bytes) = (self.geometry.page_bytes as usize, self.geometry.spare_bytes as usize);
        let (mut data, zeroes, mut spare) = (vec![0; page_bytes], vec![0; page_bytes], vec![0; spare_bytes]);
        for number in 0..self.geometry.blocks() {
            let (erase_count, reads, programmed_s) = (read_u32(from)?, read_u32(from)?, read_u32(from)?);
            let (next_page, flags) = (read_u16(from)?, read_u8(from)?);
            let block = Block { erase_count, reads, programmed_s, next_page, flags };
            if u32::from(next_page) > self.geometry.pages_per_block || flags & !FLAGS != 0 {
                return damaged(format!("block {number} cannot be like this: {block:?}"));
            }
            if matches!(self.contents, Contents::File(_)) && block.is(Block::UNDEFINED) {
                let what =
                    format!("an erase of block {number} was interrupted, which flash files are not restored with");
                return Err(SnapshotError::Unfit(what));
            }
            spare.fill(0xFF);
            for page in 0..u32::from(next_page) {
                let kind = read_u8(from)?;
                let state = match kind {
                    UNREADABLE => Some(PageState::Unreadable),
                    LOOKS_ERASED => Some(PageState::LooksErased),
                    PLAIN | WHOLE | OWN => None,
                    _ => return damaged(format!("page {page} of block {number} is of kind {kind}")),
                };
                if let Some(state) = state {
                    self.contents.mark(number, page, erase_count, state)?;
                    self.exceptions.insert((number, page), state);
                    continue;
                }
                read_spare(&mut spare, from)?;
                if kind != PLAIN {
                    from.read_exact(&mut data)?;
                }
                if kind == WHOLE && matches!(self.contents, Contents::Headers(_)) {
                    return Err(SnapshotError::Unfit(
                        "it was saved with contents, which this flash does not keep".into(),
                    ));
                }
                // What was never written of a spare area is ones.
                let length = spare.iter().rposition(|byte| *byte != 0xFF).map_or(0, |last| last + 1);
                self.contents.write(&PageWrite {
                    block: number,
                    page,
                    erase_count,
                    data: &[if kind == PLAIN { &zeroes } else { &data }],
                    spare: &spare[..length],
                    metadata: kind == OWN,
                    time_s: programmed_s,
                })?;
            }
            self.contents.save_block(number, &block)?;
            self.blocks[number as usize] = block;
        }
        self.contents.sync()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
