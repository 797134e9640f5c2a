//! Frames: pages of memory that is ready, for places in a bank whose own memory is not.
//!
//! What always holds:
//! - a frame belongs to one page at a time, from [`Frames::take`] to [`Frames::give_back`]; its number says which piece it is in;
//! - a taken frame reads as zeroes where [`Frames::take`] says so; what it held before is visible otherwise, and the taker overwrites it;
//! - pieces without a taken frame go back to the operating system, but for [`PIECES_KEPT_MAX`].
//!
//! Stores in memory call it; nobody else does.

use super::maker::{Maker, PIECE_BYTES};
use super::memory::{Mapping, Pages};
use std::ptr::NonNull;

/// Bytes of a frame.
pub(super) const FRAME_BYTES: usize = 4096;
/// Frames of a piece.
const PIECE_FRAMES: u32 = (PIECE_BYTES / FRAME_BYTES) as u32;
/// Pieces that lie ready at first, and so what a device costs before it is used: 32 MiB.
pub(super) const PIECES_READY_MIN: usize = 16;
/// Most pieces that lie ready: 256 MiB. The number doubles each time that there are none left.
const PIECES_READY_MAX: usize = 128;
/// Most pieces without a taken frame that are kept for the next ones.
const PIECES_KEPT_MAX: usize = 16;

/// A frame's number.
pub(super) type Frame = u32;

struct Piece {
    memory: Mapping,
    /// Frames from here on were never taken.
    fresh: u32,
    /// Frames that were given back.
    free: Vec<u16>,
    taken: u32,
}

impl Piece {
    fn has_room(&self) -> bool {
        self.fresh < PIECE_FRAMES || !self.free.is_empty()
    }
}

/// The frames of a store.
pub(super) struct Frames {
    pieces: Vec<Option<Piece>>,
    /// Numbers of pieces that have room; the last is used next.
    with_room: Vec<usize>,
    /// Places in `pieces` that are empty.
    vacant: Vec<usize>,
    ready_target: usize,
    /// Pieces that had to be taken before they were ready.
    pub unready_pieces: u64,
}

impl Frames {
    pub fn new() -> Frames {
        Frames {
            pieces: Vec::new(),
            with_room: Vec::new(),
            vacant: Vec::new(),
            ready_target: PIECES_READY_MIN,
            unready_pieces: 0,
        }
    }

    /// A frame, and whether it is all zero. `None` where the machine has no address space left.
    pub fn take(&mut self, maker: &Maker) -> Option<(Frame, bool)> {
        let number = match self.with_room.last() {
            Some(number) => *number,
            None => self.add_piece(maker)?,
        };
        let piece = self.pieces[number].as_mut().expect("a piece with room is there");
        let (index, zero) = match piece.free.pop() {
            Some(index) => (u32::from(index), false),
            None => {
                piece.fresh += 1;
                (piece.fresh - 1, true)
            }
        };
        piece.taken += 1;
        if !piece.has_room() {
            self.with_room.pop();
        }
        Some((number as u32 * PIECE_FRAMES + index, zero))
    }

    /// Where a frame is.
    #[inline]
    pub fn place(&self, frame: Frame) -> NonNull<u8> {
        let piece = self.pieces[(frame / PIECE_FRAMES) as usize].as_ref().expect("a taken frame's piece is there");
        // SAFETY: the frame lies in its piece.
        unsafe { piece.memory.base().add((frame % PIECE_FRAMES) as usize * FRAME_BYTES) }
    }

    pub fn give_back(&mut self, frame: Frame, maker: &Maker) {
        let number = (frame / PIECE_FRAMES) as usize;
        let piece = self.pieces[number].as_mut().expect("a taken frame's piece is there");
        if !piece.has_room() {
            self.with_room.push(number);
        }
        piece.free.push((frame % PIECE_FRAMES) as u16);
        piece.taken -= 1;
        if piece.taken == 0 && self.with_room.len() > PIECES_KEPT_MAX {
            self.with_room.retain(|with_room| *with_room != number);
            self.vacant.push(number);
            let piece = self.pieces[number].take();
            piece.into_iter().for_each(|piece| maker.give_back(piece.memory));
        }
    }

    /// Pieces that are held.
    #[cfg(test)]
    pub fn pieces(&self) -> usize {
        self.pieces.iter().flatten().count()
    }

    /// A piece that is ready; else one whose pages are made as they are touched, which takes some microseconds each.
    #[cold]
    fn add_piece(&mut self, maker: &Maker) -> Option<usize> {
        let memory = match maker.take() {
            Some(memory) => memory,
            None => {
                self.unready_pieces += 1;
                self.ready_target = (self.ready_target * 2).min(PIECES_READY_MAX);
                maker.set_target(self.ready_target);
                Mapping::new(PIECE_BYTES, Pages::Small).ok()?
            }
        };
        let piece = Some(Piece { memory, fresh: 0, free: Vec::new(), taken: 0 });
        let number = self.vacant.pop().unwrap_or_else(|| {
            self.pieces.push(None);
            self.pieces.len() - 1
        });
        self.pieces[number] = piece;
        self.with_room.push(number);
        Some(number)
    }
}
