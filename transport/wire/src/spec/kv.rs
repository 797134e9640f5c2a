//! Key placement and data of the key value command set (KV Command Set 3): the key is in CDW2-3 (bytes 0 to 7) and
//! CDW14-15 (bytes 8 to 15), its length in CDW11 bits 7:0, options in bits 15:8, the buffer's length in CDW10.

use super::SubmissionEntry;

/// Longest key.
pub const KEY_BYTES_MAX: usize = 16;
/// Store option (CDW11 bit 8): only where the key exists already.
pub const STORE_MUST_EXIST: u32 = 1 << 8;
/// Store option (CDW11 bit 9): only where the key does not exist.
pub const STORE_MUST_NOT_EXIST: u32 = 1 << 9;
/// Store option (CDW11 bit 10): do not compress.
pub const STORE_NO_COMPRESSION: u32 = 1 << 10;
/// Retrieve option (CDW11 bit 8): do not decompress.
pub const RETRIEVE_RAW: u32 = 1 << 8;

/// Vendor option of Store Item and Delete Item (CDW11 bit 11): only where the pair has this version.
pub const IF_VERSION: u32 = 1 << 11;
/// Vendor option of Store Item, Delete Item and Touch (CDW11 bit 12): durable before the completion.
pub const DURABLE: u32 = 1 << 12;

/// In front of the value of a Store Item.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreHead {
    /// With [`IF_VERSION`].
    pub version: u64,
    /// When the pair ends to exist, in seconds of the hosts' clock; 0: never.
    pub expiry: u32,
    /// The hosts' clock now; 0: not told.
    pub now_s: u32,
}

impl StoreHead {
    /// Encoded length.
    pub const BYTES: usize = 16;

    /// Little-endian bytes.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        words(self.version, self.expiry, self.now_s)
    }

    /// From its bytes; `None` where there are fewer.
    pub fn decode(from: &[u8]) -> Option<Self> {
        let (version, expiry, now_s) = of_words(from)?;
        Some(StoreHead { version, expiry, now_s })
    }
}

/// In front of the value that a Retrieve Item brings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ItemHead {
    /// Differs from that of whatever was stored under this key before, or will be.
    pub version: u64,
    /// When the pair ends to exist; 0: never.
    pub expiry: u32,
    /// Length of the whole value.
    pub value_bytes: u32,
}

impl ItemHead {
    /// Encoded length.
    pub const BYTES: usize = 16;

    /// Little-endian bytes.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        words(self.version, self.expiry, self.value_bytes)
    }

    /// From its bytes; `None` where there are fewer.
    pub fn decode(from: &[u8]) -> Option<Self> {
        let (version, expiry, value_bytes) = of_words(from)?;
        Some(ItemHead { version, expiry, value_bytes })
    }
}

fn words(long: u64, first: u32, second: u32) -> [u8; 16] {
    let mut out = [0; 16];
    crate::bytes::put_u64(&mut out, 0, long);
    crate::bytes::put_u32(&mut out, 8, first);
    crate::bytes::put_u32(&mut out, 12, second);
    out
}

fn of_words(from: &[u8]) -> Option<(u64, u32, u32)> {
    let from = from.get(..16)?;
    Some((crate::bytes::u64_at(from, 0), crate::bytes::u32_at(from, 8), crate::bytes::u32_at(from, 12)))
}

/// A key of a command.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Key {
    bytes: [u8; KEY_BYTES_MAX],
    length: u8,
}

impl Key {
    /// The empty key, where a List begins.
    pub const EMPTY: Key = Key { bytes: [0; KEY_BYTES_MAX], length: 0 };

    /// From bytes; `None` where there are more than [`KEY_BYTES_MAX`].
    #[inline]
    pub fn new(from: &[u8]) -> Option<Self> {
        if from.len() > KEY_BYTES_MAX {
            return None;
        }
        let mut bytes = [0; KEY_BYTES_MAX];
        bytes[..from.len()].copy_from_slice(from);
        Some(Key { bytes, length: from.len() as u8 })
    }
    /// From a command; `None` where its length field is more than [`KEY_BYTES_MAX`]. Bytes past the length are dropped.
    #[inline]
    pub fn from_entry(entry: &SubmissionEntry) -> Option<Self> {
        let length = entry.cdw11() as u8;
        if length as usize > KEY_BYTES_MAX {
            return None;
        }
        let mut bytes = [0; KEY_BYTES_MAX];
        bytes[..8].copy_from_slice(&entry.0[8..16]);
        bytes[8..].copy_from_slice(&entry.0[56..64]);
        bytes[length as usize..].fill(0);
        Some(Key { bytes, length })
    }
    /// Puts it into a command; the options in CDW11 stay.
    #[inline]
    pub fn put(&self, entry: &mut SubmissionEntry) {
        entry.0[8..16].copy_from_slice(&self.bytes[..8]);
        entry.0[56..64].copy_from_slice(&self.bytes[8..]);
        let options = entry.cdw11() & !0xff;
        entry.set_cdw(11, options | u32::from(self.length));
    }
    /// The bytes.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.length as usize]
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "key {:02x?}", self.as_slice())
    }
}

/// Writes List data: u32 number of keys, then a key each as u16 length and its bytes, padded to 4 (KV 3.1.4).
pub struct ListWriter<'a> {
    buffer: &'a mut [u8],
    at: usize,
    keys: u32,
}

impl<'a> ListWriter<'a> {
    /// Into a buffer; `None` where it has no room for the number of keys.
    pub fn new(buffer: &'a mut [u8]) -> Option<Self> {
        (buffer.len() >= 4).then(|| {
            buffer[..4].fill(0);
            ListWriter { buffer, at: 4, keys: 0 }
        })
    }
    /// Adds a key; false where it has no room.
    pub fn push(&mut self, key: &[u8]) -> bool {
        let bytes = (2 + key.len()).next_multiple_of(4);
        let Some(entry) = self.buffer.get_mut(self.at..self.at + bytes) else { return false };
        entry.fill(0);
        crate::bytes::put_u16(entry, 0, key.len() as u16);
        entry[2..2 + key.len()].copy_from_slice(key);
        self.at += bytes;
        self.keys += 1;
        crate::bytes::put_u32(self.buffer, 0, self.keys);
        true
    }
    /// Bytes written.
    pub fn bytes(&self) -> usize {
        self.at
    }
    /// Keys written.
    pub fn keys(&self) -> u32 {
        self.keys
    }
}

/// Why List data make no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("list data: entry {entry} at byte {offset} goes past the {bytes} bytes there are")]
pub struct ListError {
    /// Which key.
    pub entry: u32,
    /// Where it starts.
    pub offset: usize,
    /// Size of the buffer.
    pub bytes: usize,
}

/// Reads List data.
pub fn read_list(data: &[u8]) -> Result<Vec<Vec<u8>>, ListError> {
    if data.len() < 4 {
        return Err(ListError { entry: 0, offset: 0, bytes: data.len() });
    }
    let count = crate::bytes::u32_at(data, 0);
    let mut keys = Vec::new();
    let mut at = 4usize;
    for entry in 0..count {
        let error = ListError { entry, offset: at, bytes: data.len() };
        let length = data.get(at..at + 2).map(|field| crate::bytes::u16_at(field, 0) as usize).ok_or(error)?;
        keys.push(data.get(at + 2..at + 2 + length).ok_or(error)?.to_vec());
        at += (2 + length).next_multiple_of(4);
    }
    Ok(keys)
}
