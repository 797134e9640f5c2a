//! The hash functions of DH-HMAC-CHAP (NVMe Base 8.13.5.3, HashID).

use zeroize::Zeroizing;

/// A hash function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hash {
    /// 01h.
    Sha256,
    /// 02h.
    Sha384,
    /// 03h.
    Sha512,
}

impl Hash {
    /// All of them.
    pub const ALL: [Hash; 3] = [Hash::Sha256, Hash::Sha384, Hash::Sha512];

    /// By its identifier.
    pub fn from_id(id: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|hash| hash.id() == id)
    }
    /// Its identifier.
    pub const fn id(self) -> u8 {
        match self {
            Hash::Sha256 => 1,
            Hash::Sha384 => 2,
            Hash::Sha512 => 3,
        }
    }
    /// Its name, as people write it.
    pub const fn name(self) -> &'static str {
        match self {
            Hash::Sha256 => "sha256",
            Hash::Sha384 => "sha384",
            Hash::Sha512 => "sha512",
        }
    }
    /// Bytes of a digest.
    pub const fn bytes(self) -> usize {
        match self {
            Hash::Sha256 => 32,
            Hash::Sha384 => 48,
            Hash::Sha512 => 64,
        }
    }
    /// Digest of `data`.
    pub fn digest(self, data: &[u8]) -> Zeroizing<Vec<u8>> {
        Zeroizing::new(match self {
            Hash::Sha256 => hmac_sha256::Hash::hash(data).to_vec(),
            Hash::Sha384 => hmac_sha512::sha384::Hash::hash(data).to_vec(),
            Hash::Sha512 => hmac_sha512::Hash::hash(data).to_vec(),
        })
    }
    /// HMAC of the parts, one after the other.
    pub fn hmac(self, key: &[u8], parts: &[&[u8]]) -> Zeroizing<Vec<u8>> {
        let data = Zeroizing::new(parts.concat());
        Zeroizing::new(match self {
            Hash::Sha256 => hmac_sha256::HMAC::mac(data.as_slice(), key).to_vec(),
            Hash::Sha384 => hmac_sha512::sha384::HMAC::mac(data.as_slice(), key).to_vec(),
            Hash::Sha512 => hmac_sha512::HMAC::mac(data.as_slice(), key).to_vec(),
        })
    }
}
