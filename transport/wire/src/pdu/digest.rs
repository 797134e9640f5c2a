//! Header and data digests: CRC-32C (NVMe/TCP 3.3.1), in hardware where the processor has it.

/// CRC-32C of bytes, as a digest field holds it (little endian).
#[inline]
pub fn digest(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}

/// A digest over data that comes in pieces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digest(u32);

impl Digest {
    /// Of nothing yet.
    #[inline]
    pub const fn new() -> Self {
        Digest(0)
    }
    /// Adds the next piece.
    #[inline]
    pub fn update(&mut self, bytes: &[u8]) {
        self.0 = crc32c::crc32c_append(self.0, bytes);
    }
    /// The digest of all pieces.
    #[inline]
    pub const fn value(self) -> u32 {
        self.0
    }
}
