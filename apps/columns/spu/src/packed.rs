//! Compressed pages: what they decompress to, piece by piece, whichever codec it is.
//!
//! What always holds: as many bytes come out as the page's header says, or an error. Which codecs an SPU has room for is said here alone: one that it has none
//! for ends the run with [`Stop::NoMemory`], so that the host does the part.
//!
//! Who may call it: [`crate::parquet`].

use crate::engine::{Port, Stop};
use crate::snappy::Snappy;
#[cfg(not(target_arch = "wasm32"))]
use crate::zstd::Zstd;
#[cfg(not(target_arch = "wasm32"))]
use alloc::boxed::Box;

/// Codecs, by their numbers in the format.
pub mod codec {
    /// None.
    pub const NONE: u8 = 0;
    /// Snappy.
    pub const SNAPPY: u8 = 1;
    /// Zstandard: for hosts alone, since a page refers to all of itself, a megabyte as most writers have it.
    pub const ZSTD: u8 = 6;

    /// True for those that this engine knows.
    pub fn is_known(codec: u8) -> bool {
        matches!(codec, NONE | SNAPPY | ZSTD)
    }

    /// True for those that an SPU decompresses.
    pub fn is_for_spus(codec: u8) -> bool {
        matches!(codec, NONE | SNAPPY)
    }
}

/// What ends a decompression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PackedError {
    /// The bytes are none of the codec's.
    Malformed,
    /// There is no memory, or a reference goes back further than what is kept.
    NoMemory,
    /// The port.
    Port(Stop),
}

/// A decompression under way.
pub enum Packed {
    /// By Snappy.
    Snappy(Snappy),
    /// By Zstandard.
    #[cfg(not(target_arch = "wasm32"))]
    Zstd(Box<Zstd>),
}

macro_rules! each {
    ($packed:expr, $one:ident => $done:expr) => {
        match $packed {
            Packed::Snappy($one) => $done,
            #[cfg(not(target_arch = "wasm32"))]
            Packed::Zstd($one) => $done,
        }
    };
}

impl Packed {
    /// For pages of a codec; `None` where they are not compressed.
    pub fn new(number: u8) -> Result<Option<Packed>, Stop> {
        match number {
            codec::NONE => Ok(None),
            codec::SNAPPY => Ok(Some(Packed::Snappy(Snappy::new()?))),
            #[cfg(not(target_arch = "wasm32"))]
            codec::ZSTD => Ok(Some(Packed::Zstd(Box::default()))),
            _ => Err(Stop::NoMemory),
        }
    }

    /// Begins anew with a page of so many bytes when it is decompressed.
    pub fn start(&mut self, bytes: u32) {
        match self {
            Packed::Snappy(snappy) => snappy.start(bytes),
            #[cfg(not(target_arch = "wasm32"))]
            Packed::Zstd(zstd) => zstd.start(bytes as usize),
        }
    }

    /// Bytes that came out and were not taken.
    pub fn available(&self) -> &[u8] {
        each!(self, it => it.available())
    }

    /// Takes bytes.
    pub fn take(&mut self, bytes: usize) {
        each!(self, it => it.take(bytes));
    }

    /// True where all has come out.
    pub fn is_over(&self) -> bool {
        each!(self, it => it.is_over())
    }

    /// Makes room for at least `wanted` bytes that were not taken; where all is kept, any valid reference is within reach.
    pub fn make_room(&mut self, wanted: usize, keep_all: bool) -> Result<(), PackedError> {
        match self {
            Packed::Snappy(snappy) => snappy.make_room(wanted, keep_all),
            #[cfg(not(target_arch = "wasm32"))]
            Packed::Zstd(_) => Ok(()),
        }
    }

    /// Decompresses some; the bytes of the input that were used. None are where more of it is needed.
    pub async fn step<P: Port>(&mut self, port: &P, input: &[u8]) -> Result<usize, PackedError> {
        match self {
            Packed::Snappy(snappy) => snappy.step(port, input).await,
            #[cfg(not(target_arch = "wasm32"))]
            Packed::Zstd(zstd) => zstd.step(input),
        }
    }
}
