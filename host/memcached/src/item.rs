//! How an item of memcached lies in a pair of the device: the device's keys have at most 16 bytes, memcached's 250, so that the pair's key is
//! a hash of the item's, and its value begins with the item's flags and whole key.
//!
//! ```text
//! 0 u8 format = 1   1 u8 key bytes   2 u16 0   4 u32 flags   8 key   then the data
//! ```
//!
//! What always holds: an item is handed out under the very key that it was stored under; should two keys ever have one hash, the later one
//! replaces the earlier.

use siphasher::sip128::{Hasher128, SipHasher24};
use std::hash::Hasher;
use willow_wire::spec::kv::Key;

/// Longest key (memcached's protocol).
pub const KEY_BYTES_MAX: usize = 250;
/// In front of key and data.
pub const HEAD_BYTES: usize = 8;
/// Version of this layout.
const FORMAT: u8 = 1;
/// Hash keys: the same in every namespace, so that a namespace's items can be copied to another one.
const SEED: [u64; 2] = [u64::from_le_bytes(*b"willow m"), u64::from_le_bytes(*b"emcached")];

/// A key as it came, with the key of its pair.
#[derive(Clone, Copy)]
pub struct Name {
    bytes: [u8; KEY_BYTES_MAX],
    length: u8,
    pair: Key,
}

impl Name {
    /// Of 1 to [`KEY_BYTES_MAX`] bytes; `None` for any other length.
    pub fn new(from: &[u8]) -> Option<Self> {
        if from.is_empty() || from.len() > KEY_BYTES_MAX {
            return None;
        }
        let mut hasher = SipHasher24::new_with_keys(SEED[0], SEED[1]);
        hasher.write(from);
        let pair = Key::new(&hasher.finish128().as_bytes())?;
        let mut bytes = [0; KEY_BYTES_MAX];
        bytes[..from.len()].copy_from_slice(from);
        Some(Name { bytes, length: from.len() as u8, pair })
    }

    /// The key as it came.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }

    /// The key of its pair.
    pub fn pair(&self) -> Key {
        self.pair
    }

    /// What goes in front of an item's data.
    pub fn head(&self, flags: u32) -> [u8; HEAD_BYTES] {
        let mut head = [0; HEAD_BYTES];
        head[0] = FORMAT;
        head[1] = self.length;
        head[4..].copy_from_slice(&flags.to_le_bytes());
        head
    }

    /// Bytes in front of the data.
    pub fn overhead_bytes(&self) -> usize {
        HEAD_BYTES + usize::from(self.length)
    }

    /// The flags of an item, of whose value these are the first bytes; `None` where it is another key's, or no item.
    pub fn flags_of(&self, value: &[u8]) -> Option<u32> {
        let (head, rest) = value.split_first_chunk::<HEAD_BYTES>()?;
        let is_it = head[0] == FORMAT && head[1] == self.length && head[2..4] == [0, 0];
        let key = rest.get(..usize::from(self.length))?;
        (is_it && key == self.as_bytes()).then(|| u32::from_le_bytes([head[4], head[5], head[6], head[7]]))
    }
}

impl std::fmt::Debug for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "\"{}\"", self.as_bytes().escape_ascii())
    }
}

/// Seconds that a time of a client may be relative.
const RELATIVE_S_MAX: i64 = 60 * 60 * 24 * 30;

/// The expiry that a client's time means: 0 never; up to 30 days from now; a second since 1970; below 0 at once.
pub fn expiry(time: i64, now_s: u32) -> u32 {
    match time {
        0 => 0,
        // Any second that is over.
        ..0 => 1,
        1..=RELATIVE_S_MAX => now_s.saturating_add(time as u32),
        _ => u32::try_from(time).unwrap_or(u32::MAX),
    }
}

/// Seconds that are left, -1 for ever.
pub fn seconds_left(expiry: u32, now_s: u32) -> i64 {
    if expiry == 0 { -1 } else { i64::from(expiry) - i64::from(now_s) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_is_found_by_its_own_key_alone() {
        let name = Name::new(b"key").unwrap();
        let mut value = name.head(77).to_vec();
        value.extend_from_slice(b"keydata");
        assert_eq!(name.flags_of(&value), Some(77));
        assert_eq!(Name::new(b"kez").unwrap().flags_of(&value), None);
        assert_eq!(Name::new(b"ke").unwrap().flags_of(&value), None);
        assert_eq!(Name::new(b"keyd").unwrap().flags_of(&value), None);
        for cut in 0..name.overhead_bytes() {
            assert_eq!(name.flags_of(&value[..cut]), None);
        }
        value[0] = 2;
        assert_eq!(name.flags_of(&value), None);
        assert!(Name::new(b"").is_none() && Name::new(&[b'x'; 251]).is_none());
        assert_ne!(Name::new(&[b'x'; 250]).unwrap().pair(), Name::new(&[b'x'; 249]).unwrap().pair());
    }

    #[test]
    fn times_are_relative_up_to_30_days() {
        assert_eq!(expiry(0, 5000), 0);
        assert_eq!(expiry(-1, 5000), 1);
        assert_eq!(expiry(60, 5000), 5060);
        assert_eq!(expiry(RELATIVE_S_MAX, 5000), 2_597_000);
        assert_eq!(expiry(RELATIVE_S_MAX + 1, 5000), 2_592_001);
        assert_eq!(expiry(i64::MAX, 5000), u32::MAX);
        assert_eq!(expiry(10, u32::MAX), u32::MAX);
        assert_eq!((seconds_left(0, 10), seconds_left(15, 10)), (-1, 5));
    }
}
