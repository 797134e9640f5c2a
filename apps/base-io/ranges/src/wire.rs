//! Base-IO's requests on the wire: inline arguments, little-endian. Shared by the handlers and the host library.

/// Handler numbers.
pub mod handler {
    /// Read: NV memory to the reply.
    pub const READ: u8 = 1;
    /// Write: body (after the arguments) to NV memory. Flag bit 0: FUA.
    pub const WRITE: u8 = 2;
    /// Make all that was written to this SPU's bank durable.
    pub const FLUSH: u8 = 3;
    /// Zero the range; flag bit 1: deallocate (it reads as zeroes either way).
    pub const ZERO: u8 = 4;
    /// Compare the body with NV memory: status 0 equal, [`super::STATUS_COMPARE_FAILED`] if not.
    pub const COMPARE: u8 = 5;
    /// Read the range and throw it away: status 0 where the media gives it.
    pub const VERIFY: u8 = 6;
}

/// Status: the comparison found a difference.
pub const STATUS_COMPARE_FAILED: u32 = 1;
/// Status: the media failed.
pub const STATUS_MEDIA_ERROR: u32 = 2;
/// Status: no room in the media (disk full).
pub const STATUS_FULL: u32 = 3;
/// Status: the range is not this namespace's.
pub const STATUS_RANGE: u32 = 4;
/// Status: the originating HRE may not.
pub const STATUS_PERMISSION: u32 = 5;
/// Status: arguments that make no sense.
pub const STATUS_MALFORMED: u32 = 6;
/// Status: too much is under way, nothing was done, and it works when some of that has ended.
pub const STATUS_BUSY: u32 = 7;

/// Flag: force unit access.
pub const FLAG_FUA: u32 = 1;
/// Flag: deallocate.
pub const FLAG_DEALLOCATE: u32 = 2;

/// A range of one SPU's bank and where its pieces lie in the host's buffer. The range is contiguous in the bank; in the
/// buffer its first piece is `first_bytes` long at `buffer_offset`, and each further piece (of a stripe's size, the last
/// maybe less) begins `stride` after the start of the *stripe* before: piece k >= 1 lies at
/// `buffer_offset + first_bytes - stripe + k * stride` where `stride` = stripe bytes x SPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeArguments {
    /// Byte address in the bank.
    pub nv_address: u64,
    /// Bytes in all.
    pub bytes: u32,
    /// Where in the payload or reply the first piece lies.
    pub buffer_offset: u32,
    /// Length of the first piece.
    pub first_bytes: u32,
    /// Stripe size.
    pub stripe_bytes: u32,
    /// Distance between pieces in the buffer.
    pub stride: u32,
    /// `FLAG_*`.
    pub flags: u32,
}

impl RangeArguments {
    /// Encoded length.
    pub const BYTES: usize = 32;

    /// Little-endian bytes.
    #[inline]
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[0..8].copy_from_slice(&self.nv_address.to_le_bytes());
        out[8..12].copy_from_slice(&self.bytes.to_le_bytes());
        out[12..16].copy_from_slice(&self.buffer_offset.to_le_bytes());
        out[16..20].copy_from_slice(&self.first_bytes.to_le_bytes());
        out[20..24].copy_from_slice(&self.stripe_bytes.to_le_bytes());
        out[24..28].copy_from_slice(&self.stride.to_le_bytes());
        out[28..32].copy_from_slice(&self.flags.to_le_bytes());
        out
    }

    /// From [`Self::BYTES`] bytes.
    #[inline]
    pub fn decode(from: &[u8; Self::BYTES]) -> Self {
        let word = |at: usize| u32::from_le_bytes([from[at], from[at + 1], from[at + 2], from[at + 3]]);
        RangeArguments {
            nv_address: u64::from(word(0)) | u64::from(word(4)) << 32,
            bytes: word(8),
            buffer_offset: word(12),
            first_bytes: word(16),
            stripe_bytes: word(20),
            stride: word(24),
            flags: word(28),
        }
    }
}
