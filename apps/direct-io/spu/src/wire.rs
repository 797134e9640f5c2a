//! Direct-IO's requests on the wire: inline arguments, little-endian. Shared by the handlers and the host library.

/// Handler numbers.
pub mod handler {
    /// NV memory to the reply.
    pub const READ: u8 = 1;
    /// Body, after the arguments, to NV memory.
    pub const WRITE: u8 = 2;
    /// Makes all that was written to this SPU's bank durable.
    pub const FLUSH: u8 = 3;
}

/// Status: the media failed.
pub const STATUS_MEDIA_ERROR: u32 = 2;
/// Status: no room in the media.
pub const STATUS_FULL: u32 = 3;
/// Status: an address past the bank, or more bytes than the request's buffer has.
pub const STATUS_RANGE: u32 = 4;
/// Status: the process has no permission there, and none was installed.
pub const STATUS_PERMISSION: u32 = 5;
/// Status: arguments that make no sense.
pub const STATUS_MALFORMED: u32 = 6;
/// Status: the device has no place for more at the moment, to be sent again.
pub const STATUS_BUSY: u32 = 7;

/// Flag of a write: durable before it is answered.
pub const FLAG_DURABLE: u32 = 1;

/// A contiguous range of one SPU's bank; in the request's buffer it begins at the first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arguments {
    /// Byte address in the bank.
    pub nv_address: u64,
    /// Bytes.
    pub bytes: u32,
    /// `FLAG_*`.
    pub flags: u32,
}

impl Arguments {
    /// Encoded length.
    pub const BYTES: usize = 16;

    /// Little-endian bytes.
    #[inline]
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[0..8].copy_from_slice(&self.nv_address.to_le_bytes());
        out[8..12].copy_from_slice(&self.bytes.to_le_bytes());
        out[12..16].copy_from_slice(&self.flags.to_le_bytes());
        out
    }

    /// From [`Self::BYTES`] bytes.
    #[inline]
    pub fn decode(from: &[u8; Self::BYTES]) -> Self {
        let word = |at: usize| u32::from_le_bytes([from[at], from[at + 1], from[at + 2], from[at + 3]]);
        Arguments { nv_address: u64::from(word(0)) | u64::from(word(4)) << 32, bytes: word(8), flags: word(12) }
    }
}
