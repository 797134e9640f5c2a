//! Secrets in their text form (NVMe Base 8.13.5.8.2): `DHHC-1:hh:base64:`, where hh says which hash transforms the secret into the key of
//! one NQN (00: none), and the base64 holds 32, 48 or 64 bytes and their CRC-32, little-endian.

use crate::{Entropy, Hash, NoEntropy};
use base64ct::{Base64, Encoding};
use std::fmt;
use std::str::FromStr;
use zeroize::Zeroizing;

/// Longest text of a secret: 68 bytes are 92 characters in base64.
pub const SECRET_TEXT_BYTES_MAX: usize = 103;
const PREFIX: &str = "DHHC-1:";

/// Why a text is no secret. It never repeats the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    /// It has another form.
    #[error("it does not have the form DHHC-1:hh:base64:")]
    Form,
    /// It names an unknown hash.
    #[error("its hash is none of 00, 01, 02 and 03")]
    Hash,
    /// Its base64 is damaged.
    #[error("its base64 is damaged")]
    Base64,
    /// It has another length.
    #[error("it has {0} bytes, a secret has 32, 48 or 64")]
    Length(usize),
    /// Its CRC-32 does not match: it was mistyped.
    #[error("its checksum does not match: it was damaged or mistyped")]
    Checksum,
}

/// A secret. It is wiped when dropped, and never printed but by [`Secret::to_text`].
#[derive(Clone)]
pub struct Secret {
    transform: Option<Hash>,
    bytes: Zeroizing<Vec<u8>>,
}

impl Secret {
    /// A fresh one, as long as the digests of the hash that transforms it (32 bytes where none does).
    pub fn generate(transform: Option<Hash>, entropy: &Entropy) -> Result<Self, NoEntropy> {
        let mut bytes = Zeroizing::new(vec![0; transform.map_or(32, Hash::bytes)]);
        entropy.fill(&mut bytes)?;
        Ok(Secret { transform, bytes })
    }

    /// Its text form.
    pub fn to_text(&self) -> Zeroizing<String> {
        let mut checked = Zeroizing::new(Vec::with_capacity(self.bytes.len() + 4));
        checked.extend_from_slice(&self.bytes);
        checked.extend_from_slice(&crc32fast::hash(&self.bytes).to_le_bytes());
        let encoded = Zeroizing::new(Base64::encode_string(&checked));
        Zeroizing::new(format!("{PREFIX}{:02x}:{}:", self.transform.map_or(0, Hash::id), *encoded))
    }

    /// The key for one NQN (8.13.5.7): the secret itself, or its HMAC over the NQN and `NVMe-over-Fabrics`.
    pub(crate) fn key(&self, nqn: &str) -> Zeroizing<Vec<u8>> {
        match self.transform {
            None => self.bytes.clone(),
            Some(hash) => hash.hmac(&self.bytes, &[nqn.as_bytes(), b"NVMe-over-Fabrics"]),
        }
    }
}

impl FromStr for Secret {
    type Err = SecretError;

    fn from_str(text: &str) -> Result<Self, SecretError> {
        let rest = text.strip_prefix(PREFIX).ok_or(SecretError::Form)?;
        let (transform, rest) = rest.split_once(':').ok_or(SecretError::Form)?;
        let encoded = rest.strip_suffix(':').ok_or(SecretError::Form)?;
        let transform = match transform {
            "00" => None,
            "01" => Some(Hash::Sha256),
            "02" => Some(Hash::Sha384),
            "03" => Some(Hash::Sha512),
            _ => return Err(SecretError::Hash),
        };
        if text.len() > SECRET_TEXT_BYTES_MAX {
            return Err(SecretError::Form);
        }
        let mut bytes = Zeroizing::new(Base64::decode_vec(encoded).map_err(|_| SecretError::Base64)?);
        let length = bytes.len().saturating_sub(4);
        if !matches!(length, 32 | 48 | 64) {
            return Err(SecretError::Length(length));
        }
        let checksum: [u8; 4] = bytes[length..].try_into().map_err(|_| SecretError::Form)?;
        bytes.truncate(length);
        if crc32fast::hash(&bytes) != u32::from_le_bytes(checksum) {
            return Err(SecretError::Checksum);
        }
        Ok(Secret { transform, bytes })
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({} bytes)", self.bytes.len())
    }
}
