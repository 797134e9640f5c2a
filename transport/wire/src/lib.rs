//! What goes over the wire between a host and the device: NVMe structures, the PDUs of NVMe/TCP, and the names that
//! the control service's callers use. Both ends are built on it.
//!
//! What always holds:
//! - No I/O, no clock, no state beyond what a decoder was configured with.
//! - Decoding never panics and never reads past the bytes it was given; encoding allocates nothing where the
//!   destination has room.
//! - Multi-byte fields are little endian (NVMe Base 1.4.2).
//!
//! Who may call it: transports, initiators, fuzz targets.

pub mod control;
pub mod pdu;
pub mod spec;
#[cfg(feature = "testing")]
pub mod testing;

/// Reads and writes of little-endian fields at fixed offsets. They panic where the offset is past the buffer, as an
/// index would: offsets are constants of this crate, buffers are sized structures.
pub mod bytes {
    /// u16 at `at`.
    #[inline]
    pub fn u16_at(from: &[u8], at: usize) -> u16 {
        u16::from_le_bytes([from[at], from[at + 1]])
    }
    /// u32 at `at`.
    #[inline]
    pub fn u32_at(from: &[u8], at: usize) -> u32 {
        let mut field = [0; 4];
        field.copy_from_slice(&from[at..at + 4]);
        u32::from_le_bytes(field)
    }
    /// u64 at `at`.
    #[inline]
    pub fn u64_at(from: &[u8], at: usize) -> u64 {
        let mut field = [0; 8];
        field.copy_from_slice(&from[at..at + 8]);
        u64::from_le_bytes(field)
    }
    /// Sets a u16.
    #[inline]
    pub fn put_u16(to: &mut [u8], at: usize, value: u16) {
        to[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }
    /// Sets a u32.
    #[inline]
    pub fn put_u32(to: &mut [u8], at: usize, value: u32) {
        to[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }
    /// Sets a u64.
    #[inline]
    pub fn put_u64(to: &mut [u8], at: usize, value: u64) {
        to[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }
    /// Sets a u128 (SMART counters).
    #[inline]
    pub fn put_u128(to: &mut [u8], at: usize, value: u128) {
        to[at..at + 16].copy_from_slice(&value.to_le_bytes());
    }
    /// Sets an ASCII field of `width` bytes, padded with spaces, cut where it is too long (NVMe Base 1.4.2).
    pub fn put_ascii(to: &mut [u8], at: usize, width: usize, text: &str) {
        let field = &mut to[at..at + width];
        field.fill(b' ');
        let length = text.len().min(width);
        field[..length].copy_from_slice(&text.as_bytes()[..length]);
    }
    /// Sets a NUL-terminated field (an NQN), cut where it is too long for its terminator.
    pub fn put_c_string(to: &mut [u8], at: usize, width: usize, text: &str) {
        let field = &mut to[at..at + width];
        field.fill(0);
        let length = text.len().min(width - 1);
        field[..length].copy_from_slice(&text.as_bytes()[..length]);
    }
    /// The text before the first NUL; `None` where it is no UTF-8 or has no terminator.
    pub fn c_string(field: &[u8]) -> Option<&str> {
        let end = field.iter().position(|byte| *byte == 0)?;
        std::str::from_utf8(&field[..end]).ok()
    }
    /// A space-padded ASCII field without its padding; bytes that are no UTF-8 become replacement characters.
    pub fn ascii(field: &[u8]) -> String {
        String::from_utf8_lossy(field).trim_matches([' ', '\0']).to_owned()
    }
}
