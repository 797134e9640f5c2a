//! Requests of the app `compute`, as hosts send them: all in the payload, little-endian.
//!
//! Invariant: what a request asks for is bounded by [`BODY_BYTES_MAX`] and [`BATCH_BYTES_MAX`], and a reply is its status alone.

/// Name that the app is installed under.
pub const APP_NAME: &str = "compute";

/// Handlers.
pub mod handler {
    /// y = alpha * x + y of pieces of vectors, written somewhere else.
    pub const SAXPY: u8 = 1;
    /// Rows of a matrix transformed, or parts of it transposed.
    pub const ROWS: u8 = 2;
}

/// Most bytes of a request.
pub const BODY_BYTES_MAX: usize = 32 << 10;
/// Most bytes of a vector's piece that is worked on at once.
pub const CHUNK_BYTES_MAX: u32 = 16 << 10;
/// Most bytes of rows that are worked on at once.
pub const BATCH_BYTES_MAX: u32 = 512 << 10;
/// As an SPU's number: no NV memory, but zeroes (a hole of a file).
pub const HOLE: u32 = u32::MAX;

/// The request makes no sense.
pub const STATUS_MALFORMED: u32 = 1;
/// Something lies outside of the bank.
pub const STATUS_RANGE: u32 = 2;
/// The process may not read, or write, what it names (or has to ask for the permission anew).
pub const STATUS_PERMISSION: u32 = 3;
/// The media failed.
pub const STATUS_MEDIA_ERROR: u32 = 4;
/// The SPU has no memory for it now.
pub const STATUS_NO_MEMORY: u32 = 5;
/// The SPU has no place for it now.
pub const STATUS_BUSY: u32 = 6;

fn word(from: &[u8], at: usize) -> u32 {
    let bytes: [u8; 4] = core::array::from_fn(|byte| from[at + byte]);
    u32::from_le_bytes(bytes)
}

fn long(from: &[u8], at: usize) -> u64 {
    u64::from(word(from, at)) | u64::from(word(from, at + 4)) << 32
}

/// How [`handler::SAXPY`] begins; pieces follow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Saxpy {
    /// The factor; of numbers of 4 bytes the nearest of these is taken.
    pub alpha: f64,
    /// Bytes of a number: 4 or 8.
    pub number_bytes: u32,
    /// Bytes that are worked on at once, a multiple of 8.
    pub chunk_bytes: u32,
    /// Pieces.
    pub pieces: u32,
}

impl Saxpy {
    /// Encoded length.
    pub const BYTES: usize = 24;

    /// Its bytes.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[..8].copy_from_slice(&self.alpha.to_le_bytes());
        for (at, value) in [(8, self.number_bytes), (12, self.chunk_bytes), (16, self.pieces)] {
            out[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        out
    }

    /// From its bytes; `None` where there can be no such request.
    pub fn decode(from: &[u8; Self::BYTES]) -> Option<Saxpy> {
        let alpha = f64::from_bits(long(from, 0));
        let saxpy = Saxpy { alpha, number_bytes: word(from, 8), chunk_bytes: word(from, 12), pieces: word(from, 16) };
        let fits = matches!(saxpy.number_bytes, 4 | 8)
            && (8..=CHUNK_BYTES_MAX).contains(&saxpy.chunk_bytes)
            && saxpy.chunk_bytes.is_multiple_of(8)
            && saxpy.pieces as usize <= BODY_BYTES_MAX / Piece::BYTES;
        fits.then_some(saxpy)
    }
}

/// Where bytes are: an address of an SPU's bank, or zeroes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The SPU, or [`HOLE`].
    pub spu: u32,
    /// Byte in its bank.
    pub address: u64,
}

impl Place {
    /// The same place some bytes further.
    pub fn after(self, bytes: u32) -> Place {
        Place { address: self.address.wrapping_add(bytes.into()), ..self }
    }
}

/// A piece of [`handler::SAXPY`]: each of the three ranges is contiguous in its bank. The result goes to the bank of the SPU that is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Where the result goes.
    pub to: u64,
    /// What is multiplied.
    pub x: Place,
    /// What is added.
    pub y: Place,
    /// Bytes of each, whole numbers.
    pub bytes: u32,
}

impl Piece {
    /// Encoded length.
    pub const BYTES: usize = 40;

    /// Its bytes.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        for (at, value) in [(0, self.to), (8, self.x.address), (16, self.y.address)] {
            out[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        for (at, value) in [(24, self.bytes), (28, self.x.spu), (32, self.y.spu)] {
            out[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        out
    }

    /// From its bytes.
    pub fn decode(from: &[u8; Self::BYTES]) -> Piece {
        let place = |spu: usize, address: usize| Place { spu: word(from, spu), address: long(from, address) };
        Piece { to: long(from, 0), x: place(28, 8), y: place(32, 16), bytes: word(from, 24) }
    }
}

/// What [`handler::ROWS`] does with each batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Each row is transformed.
    Forward,
    /// Each row is transformed back, and divided by its length.
    Inverse,
    /// The batch is transposed.
    Transpose,
}

/// How [`handler::ROWS`] begins; batches follow, each with its segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows {
    /// What is done.
    pub work: Work,
    /// The source has real numbers; the result is complex.
    pub real: bool,
    /// Bytes of a real number: 4 or 8.
    pub number_bytes: u32,
    /// Numbers of a row.
    pub count: u32,
    /// Bytes of the largest batch, as complex numbers.
    pub batch_bytes: u32,
    /// Batches.
    pub batches: u32,
}

impl Rows {
    /// Encoded length.
    pub const BYTES: usize = 24;

    /// Its bytes.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let work = match self.work {
            Work::Forward => 0,
            Work::Inverse => 1,
            Work::Transpose => 2,
        };
        let words = [work, self.real.into(), self.number_bytes, self.count, self.batch_bytes, self.batches];
        let mut out = [0; Self::BYTES];
        for (to, word) in out.chunks_exact_mut(4).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        out
    }

    /// From its bytes; `None` where there can be no such request.
    pub fn decode(from: &[u8; Self::BYTES]) -> Option<Rows> {
        let work = match word(from, 0) {
            0 => Work::Forward,
            1 => Work::Inverse,
            2 => Work::Transpose,
            _ => return None,
        };
        let (real, number_bytes, count) = (word(from, 4), word(from, 8), word(from, 12));
        let rows =
            Rows { work, real: real == 1, number_bytes, count, batch_bytes: word(from, 16), batches: word(from, 20) };
        let fits = real <= 1
            && matches!(number_bytes, 4 | 8)
            && count >= 1
            && rows.batch_bytes <= BATCH_BYTES_MAX
            && rows.row_bytes() <= u64::from(rows.batch_bytes)
            && rows.batches as usize <= BODY_BYTES_MAX / Batch::BYTES
            && !(rows.real && work == Work::Transpose);
        fits.then_some(rows)
    }

    /// Bytes of a row of complex numbers.
    pub fn row_bytes(&self) -> u64 {
        u64::from(self.count) * 2 * u64::from(self.number_bytes)
    }
}

/// A batch: its rows lie one behind the other, in the order of the source's segments; the destination's segments follow these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Rows.
    pub rows: u32,
    /// Segments of the source.
    pub sources: u16,
    /// Segments of the destination.
    pub destinations: u16,
}

impl Batch {
    /// Encoded length.
    pub const BYTES: usize = 8;

    /// Its bytes.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[..4].copy_from_slice(&self.rows.to_le_bytes());
        out[4..6].copy_from_slice(&self.sources.to_le_bytes());
        out[6..].copy_from_slice(&self.destinations.to_le_bytes());
        out
    }

    /// From its bytes.
    pub fn decode(from: &[u8; Self::BYTES]) -> Batch {
        let counts = word(from, 4);
        Batch { rows: word(from, 0), sources: counts as u16, destinations: (counts >> 16) as u16 }
    }
}

/// A range of a bank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Where it begins.
    pub at: Place,
    /// Bytes.
    pub bytes: u32,
}

impl Segment {
    /// Encoded length.
    pub const BYTES: usize = 16;

    /// Its bytes.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[..8].copy_from_slice(&self.at.address.to_le_bytes());
        out[8..12].copy_from_slice(&self.bytes.to_le_bytes());
        out[12..].copy_from_slice(&self.at.spu.to_le_bytes());
        out
    }

    /// From its bytes.
    pub fn decode(from: &[u8; Self::BYTES]) -> Segment {
        Segment { at: Place { spu: word(from, 12), address: long(from, 0) }, bytes: word(from, 8) }
    }
}
