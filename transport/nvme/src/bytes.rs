//! Little-endian fields in data structures that are arrays of bytes.

/// Writes a field.
pub(crate) trait Put {
    fn put16(&mut self, at: usize, value: u16);
    fn put32(&mut self, at: usize, value: u32);
    fn put64(&mut self, at: usize, value: u64);
    fn put128(&mut self, at: usize, value: u128);
    /// Text, padded with spaces up to `width` (NVMe Base 1.8: ASCII data fields).
    fn put_text(&mut self, at: usize, width: usize, text: &str);
}

impl Put for [u8] {
    fn put16(&mut self, at: usize, value: u16) {
        self[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }
    fn put32(&mut self, at: usize, value: u32) {
        self[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }
    fn put64(&mut self, at: usize, value: u64) {
        self[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }
    fn put128(&mut self, at: usize, value: u128) {
        self[at..at + 16].copy_from_slice(&value.to_le_bytes());
    }
    fn put_text(&mut self, at: usize, width: usize, text: &str) {
        let bytes = &text.as_bytes()[..text.len().min(width)];
        self[at..at + width].fill(b' ');
        self[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

/// Reads a field; the caller has checked the length.
pub(crate) fn get16(from: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([from[at], from[at + 1]])
}
/// Reads a field.
pub(crate) fn get32(from: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([from[at], from[at + 1], from[at + 2], from[at + 3]])
}
/// Reads a field.
pub(crate) fn get64(from: &[u8], at: usize) -> u64 {
    u64::from(get32(from, at)) | u64::from(get32(from, at + 4)) << 32
}
