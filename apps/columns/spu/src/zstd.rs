//! Zstandard's frames (RFC 8878), decompressed block by block on hosts: the decoder is ruzstd, which allocates without asking, and a page of a megabyte needs all
//! of itself for references. An SPU's memory is no place for either.
//!
//! What always holds: as many bytes come out as the page's header says, or an error; a window is not larger than [`WINDOW_BYTES_MAX`], and a block not larger
//! than the format allows; a frame's checksum, where it has one, is that of its content.

use alloc::vec::Vec;

use crate::packed::PackedError;
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

/// Largest window that a frame may ask for.
const WINDOW_BYTES_MAX: u64 = 64 << 20;
/// Bytes of a block's header, and most of its content.
const BLOCK_HEADER_BYTES: usize = 3;
const BLOCK_BYTES_MAX: usize = 128 << 10;
/// Most bytes of a frame's header.
const FRAME_HEADER_BYTES_MAX: usize = 18;
const CHECKSUM_BYTES: usize = 4;
/// Where a frame's header says whether there is a checksum (RFC 8878, 3.1.1.1.1), behind the magic number.
const DESCRIPTOR_AT: usize = 4;
const CHECKSUM_FLAG: u8 = 4;
/// What comes out at once, at least where there is as much.
const PIECE_BYTES: usize = 64 << 10;

/// A decompression under way.
pub struct Zstd {
    decoder: FrameDecoder,
    is_in_frame: bool,
    has_checksum: bool,
    out: Vec<u8>,
    /// What was taken of it.
    begin: usize,
    /// Bytes that are still to come.
    left: usize,
}

impl Zstd {
    /// Nothing yet.
    pub fn new() -> Zstd {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(WINDOW_BYTES_MAX);
        Zstd { decoder, is_in_frame: false, has_checksum: false, out: Vec::new(), begin: 0, left: 0 }
    }

    /// Begins anew: `bytes` come out.
    pub fn start(&mut self, bytes: usize) {
        self.out.clear();
        (self.begin, self.left, self.is_in_frame) = (0, bytes, false);
    }

    /// Bytes that came out and were not taken.
    pub fn available(&self) -> &[u8] {
        &self.out[self.begin..]
    }

    /// Takes bytes.
    pub fn take(&mut self, bytes: usize) {
        self.begin += bytes;
    }

    /// True where all has come out.
    pub fn is_over(&self) -> bool {
        self.left == 0 && !self.is_in_frame
    }

    /// Decompresses a block, or begins a frame; the bytes of the input that were used. None are where more of it is needed.
    pub fn step(&mut self, input: &[u8]) -> Result<usize, PackedError> {
        if !self.is_in_frame {
            let mut from = input;
            return match self.decoder.reset(&mut from) {
                Ok(()) => {
                    self.is_in_frame = true;
                    self.has_checksum =
                        input.get(DESCRIPTOR_AT).is_some_and(|descriptor| descriptor & CHECKSUM_FLAG != 0);
                    Ok(input.len() - from.len())
                }
                Err(_) if input.len() < FRAME_HEADER_BYTES_MAX => Ok(0),
                Err(_) => Err(PackedError::Malformed),
            };
        }
        let Some(header) = input.first_chunk::<BLOCK_HEADER_BYTES>() else { return Ok(0) };
        let header = u32::from_le_bytes([header[0], header[1], header[2], 0]);
        let (is_last, is_run, length) = (header & 1 == 1, header >> 1 & 3 == 1, (header >> 3) as usize);
        if length > BLOCK_BYTES_MAX {
            return Err(PackedError::Malformed);
        }
        let checksum = if is_last && self.has_checksum { CHECKSUM_BYTES } else { 0 };
        let whole = BLOCK_HEADER_BYTES + if is_run { 1 } else { length } + checksum;
        if input.len() < whole {
            return Ok(0);
        }
        let mut from = input;
        let decoded = self.decoder.decode_blocks(&mut from, BlockDecodingStrategy::UptoBlocks(1));
        decoded.map_err(|_| PackedError::Malformed)?;
        self.drain()?;
        if self.decoder.is_finished() {
            let (told, is) = (self.decoder.get_checksum_from_data(), self.decoder.get_calculated_checksum());
            if told.is_some() && told != is {
                return Err(PackedError::Malformed);
            }
            self.is_in_frame = false;
        }
        Ok(input.len() - from.len())
    }

    /// Takes from the decoder what it gives out: what later blocks may refer to it keeps.
    fn drain(&mut self) -> Result<(), PackedError> {
        self.out.drain(..self.begin);
        self.begin = 0;
        loop {
            let here = self.decoder.can_collect();
            if here > self.left {
                return Err(PackedError::Malformed);
            }
            if here == 0 {
                return Ok(());
            }
            let before = self.out.len();
            let more = here.min(PIECE_BYTES);
            self.out.try_reserve(more).map_err(|_| PackedError::NoMemory)?;
            self.out.resize(before + more, 0);
            let read = read(&mut self.decoder, &mut self.out[before..])?;
            self.out.truncate(before + read);
            self.left -= read;
        }
    }
}

impl Default for Zstd {
    fn default() -> Self {
        Zstd::new()
    }
}

fn read(decoder: &mut FrameDecoder, into: &mut [u8]) -> Result<usize, PackedError> {
    use std::io::Read;
    match decoder.read(into) {
        Ok(0) | Err(_) => Err(PackedError::Malformed),
        Ok(read) => Ok(read),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    /// All that comes out of a page, of which so many bytes are there at a time.
    fn whole(page: &[u8], bytes: usize, piece: usize) -> Result<Vec<u8>, PackedError> {
        let (mut zstd, mut out) = (Zstd::new(), Vec::new());
        zstd.start(bytes);
        let (mut from, mut end) = (0, 0);
        while !zstd.is_over() {
            let used = zstd.step(&page[from..end])?;
            from += used;
            if used == 0 {
                if end == page.len() {
                    return Err(PackedError::Malformed);
                }
                end = page.len().min(end + piece);
            }
            out.extend_from_slice(zstd.available());
            zstd.take(zstd.available().len());
        }
        Ok(out)
    }

    #[test]
    fn pages_of_many_blocks_and_frames_come_out_whole_in_whatever_pieces_they_come() {
        let mut state = 7u32;
        let mut next = move || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state >> 24
        };
        // Text that repeats, runs of one byte, and what does not compress.
        let content: Vec<u8> = (0..500_000usize)
            .map(|at| match at / 150_000 {
                0 => b"willow "[at % 7] ^ u8::from(at % 1000 == 0),
                1 => 9,
                _ => next() as u8,
            })
            .collect();
        let mut page = compress_to_vec(&content[..], CompressionLevel::Fastest);
        for piece in [17, 5000, 1 << 20] {
            assert!(whole(&page, content.len(), piece) == Ok(content.clone()), "{piece}");
        }
        // More than the header says, less, and a checksum that is wrong.
        for bytes in [content.len() - 1, content.len() + 1, 0] {
            let came = whole(&page, bytes, 5000);
            assert!(came.is_err() || bytes == 0 && came == Ok(Vec::new()), "{bytes}");
        }
        let frames = [&page[..], &page].concat();
        assert!(whole(&frames, 2 * content.len(), 5000) == Ok([&content[..], &content].concat()));
        let last = page.len() - 1;
        page[last] ^= 1;
        assert_eq!(whole(&page, content.len(), 5000), Err(PackedError::Malformed));
        assert_eq!(whole(&page[..1000], content.len(), 5000), Err(PackedError::Malformed));
    }
}
