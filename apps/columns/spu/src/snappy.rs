//! Snappy's raw format, decompressed piece by piece by what the port has for it: the accelerator of an SPU, or the same on a host.
//!
//! What always holds: as many bytes come out as was said, or an error; of what came out as much is kept as later bytes may refer to.

use alloc::vec::Vec;

use crate::engine::{Port, Stop};
use crate::packed::PackedError;
use willow_sdk::{DECOMPRESS_ROOM_BYTES_MAX, Decompression};

/// Compressors compress so much at a time, and refer to nothing before it.
const FRAGMENT_BYTES: usize = 64 << 10;
/// What is decompressed ahead of that: memory is scarce, and four compressed columns at once are to have room.
const AHEAD_BYTES: usize = 32 << 10;
/// What a call costs the processor.
const WORK_OF_A_CALL: usize = 400;

/// A decompression under way.
pub struct Snappy {
    /// What is kept of what came out, as far as `state` says; behind it there is room.
    out: Vec<u8>,
    state: Decompression,
    /// What was taken of it.
    begin: usize,
    /// Bytes of the whole block.
    bytes: usize,
    /// Some of what came out is no longer kept.
    has_dropped: bool,
}

impl Snappy {
    /// Nothing yet, with room to work in.
    pub fn new() -> Result<Snappy, Stop> {
        let mut out = crate::value::reserved(FRAGMENT_BYTES + AHEAD_BYTES)?;
        out.resize(FRAGMENT_BYTES + AHEAD_BYTES, 0);
        Ok(Snappy { out, state: Decompression::new(Some(0)), begin: 0, bytes: 0, has_dropped: false })
    }

    /// Begins anew: `bytes` come out.
    pub fn start(&mut self, bytes: u32) {
        (self.state, self.begin, self.has_dropped) = (Decompression::new(Some(bytes)), 0, false);
        self.bytes = bytes as usize;
    }

    /// Bytes that came out and were not taken.
    pub fn available(&self) -> &[u8] {
        &self.out[self.begin..self.state.kept()]
    }

    /// Takes bytes.
    pub fn take(&mut self, bytes: usize) {
        self.begin += bytes;
    }

    /// True where all has come out.
    pub fn is_over(&self) -> bool {
        self.state.is_over()
    }

    /// Makes room for at least `wanted` bytes that were not taken; where all is kept, any valid reference is within reach.
    pub fn make_room(&mut self, wanted: usize, keep_all: bool) -> Result<(), PackedError> {
        let kept = self.state.kept();
        let unread = kept - self.begin;
        let more = wanted.saturating_sub(unread).max(1);
        // More the accelerator does not look at.
        let limit = if keep_all { usize::MAX } else { DECOMPRESS_ROOM_BYTES_MAX };
        let room = |out: &Vec<u8>, kept| out.len().min(limit).saturating_sub(kept);
        if room(&self.out, kept) >= more {
            return Ok(());
        }
        if !keep_all {
            let came = self.bytes.saturating_sub(usize::try_from(self.state.left()).unwrap_or(usize::MAX));
            let gone = kept - unread.max(came % FRAGMENT_BYTES).min(kept);
            self.out.copy_within(gone..kept, 0);
            self.state.dropped(gone);
            self.begin -= gone;
            self.has_dropped |= gone > 0;
        }
        let kept = self.state.kept();
        if limit.saturating_sub(kept) < more {
            return Err(PackedError::NoMemory);
        }
        if room(&self.out, kept) < more {
            self.out.try_reserve(kept + more - self.out.len()).map_err(|_| PackedError::NoMemory)?;
            // All that was had for it, so that this is rare.
            self.out.resize(self.out.capacity(), 0);
        }
        Ok(())
    }

    /// Decompresses some; the bytes of the input that were used. None are where more of it is needed.
    pub async fn step<P: Port>(&mut self, port: &P, input: &[u8]) -> Result<usize, PackedError> {
        let before = self.state.kept();
        port.decompress(input, &mut self.out, &mut self.state).await.map_err(PackedError::Port)?;
        if self.state.is_malformed() || self.state.is_too_far() && !self.has_dropped {
            return Err(PackedError::Malformed);
        }
        if self.state.is_too_far() {
            return Err(PackedError::NoMemory);
        }
        let came = self.state.kept() - before;
        port.worked(WORK_OF_A_CALL + came / 8).await.map_err(PackedError::Port)?;
        Ok(self.state.used())
    }
}
