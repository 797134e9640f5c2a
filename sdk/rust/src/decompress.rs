//! The decompress accelerator: blocks of Snappy's raw format, piece by piece within local memory.

use core::future::Future;

use crate::executor::{Issued, Operation, Wait};
use crate::request::{Request, completed, issued};
use crate::{Error, sys};

/// Most bytes of one call's input.
pub const INPUT_BYTES_MAX: usize = 64 << 10;
/// Most bytes of the memory that one call decompresses into, with those that are kept.
pub const ROOM_BYTES_MAX: usize = 512 << 10;
/// The codec's number: Snappy.
const SNAPPY: u32 = 1;
const ELEMENTS: u32 = 1;
const MALFORMED: u32 = 2;
const TOO_FAR: u32 = 3;

/// Where the decompression of a block is. What came lies at the beginning of the memory that all calls for the block are given; of it, the app keeps as much as the
/// block may refer back to (compressors refer no further than 64 KiB).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Decompression {
    kept: u32,
    left: u32,
    phase: u32,
    offset: u32,
    count: u32,
    used: u32,
    zeroes: [u32; 2],
}

const _: () = assert!(size_of::<Decompression>() == 32);

impl Decompression {
    /// The beginning of a block of which `bytes` bytes are to come, or, with `None`, as many as it says itself. Nothing is kept.
    pub const fn new(bytes: Option<u32>) -> Decompression {
        let left = match bytes {
            Some(bytes) => bytes,
            None => u32::MAX,
        };
        Decompression { kept: 0, left, phase: 0, offset: 0, count: 0, used: 0, zeroes: [0; 2] }
    }

    /// Bytes at the beginning of the memory that are there.
    pub fn kept(&self) -> usize {
        self.kept as usize
    }

    /// Bytes of the last call's input that were used: the next one's begins behind them.
    pub fn used(&self) -> usize {
        self.used as usize
    }

    /// Bytes that are still to come, once the block's head has been read.
    pub fn left(&self) -> u64 {
        u64::from(self.left) + u64::from(self.count)
    }

    /// The app has given up the first bytes of what is kept, and moved the others to the beginning.
    pub fn dropped(&mut self, bytes: usize) {
        self.kept = self.kept.saturating_sub(bytes as u32);
    }

    /// True where all of the block has come.
    pub fn is_over(&self) -> bool {
        self.phase == ELEMENTS && self.left == 0 && self.count == 0
    }

    /// True where it is no block of Snappy's, or not as long as was said.
    pub fn is_malformed(&self) -> bool {
        self.phase == MALFORMED
    }

    /// True where it refers further back than what is kept.
    pub fn is_too_far(&self) -> bool {
        self.phase == TOO_FAR
    }

    /// Goes on with a block on the machine that this runs on, by what the accelerator does.
    #[cfg(not(target_arch = "wasm32"))]
    pub fn step(&mut self, from: &[u8], to: &mut [u8]) {
        use willow_gate::decompress::State;
        let Decompression { kept, left, phase, offset, count, .. } = *self;
        let mut state = State { kept, left, phase, offset, count, used: 0 };
        state.decompress(from, to, u64::MAX);
        let State { kept, left, phase, offset, count, used } = state;
        *self = Decompression { kept, left, phase, offset, count, used, zeroes: [0; 2] };
    }
}

impl Request {
    /// Goes on with a block of Snappy's by the accelerator: `from` are its next bytes, `to` is the memory that [`Decompression`] speaks of. It ends where the input,
    /// the room in `to`, or what one call may do does; nothing used and nothing come says that more input is needed. The processor is free meanwhile.
    pub fn decompress<'a>(
        &'a self,
        from: &'a [u8],
        to: &'a mut [u8],
        state: &'a mut Decompression,
    ) -> impl Future<Output = Result<(), Error>> + use<'a> {
        let from = &from[..from.len().min(INPUT_BYTES_MAX)];
        let ends = (from.len() as u32, to.len().min(ROOM_BYTES_MAX) as u32);
        let state: *mut Decompression = state;
        Wait::new(Decompress {
            token: self.token(),
            from: from.as_ptr(),
            to: to.as_mut_ptr(),
            ends,
            state: state.cast(),
        })
    }
}

struct Decompress {
    token: u32,
    from: *const u8,
    to: *mut u8,
    /// Bytes of both.
    ends: (u32, u32),
    state: *mut u8,
}

impl Operation for Decompress {
    type Output = Result<(), Error>;
    const LOCAL: bool = true;

    fn issue(&mut self, wait: u32) -> Issued<Self::Output> {
        let Decompress { token, from, to, ends: (bytes, to_bytes), state } = *self;
        // SAFETY: both buffers are at least as long as is said, the record has its 32 bytes, and all are borrowed by the pending operation.
        issued(unsafe { sys::decompress(token, SNAPPY, from, bytes, to, to_bytes, state, wait) })
    }

    fn completed(&mut self, result: i64) -> Self::Output {
        completed(result)
    }
}
