//! Secrets in their text form (NVMe Base 8.13.5.8.2): `DHHC-1:hh:base64:`, where hh says which hash transforms the secret into the key of
//! one NQN (00: none), and the base64 holds 32, 48 or 64 bytes and their CRC-32, little-endian.

use crate::text::{self, Parsed, TextError};
use crate::{Entropy, Hash, NoEntropy};
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
        text::write(PREFIX, self.transform, &self.bytes)
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
        let check = |_, length| match length {
            32 | 48 | 64 => Ok(()),
            _ => Err(TextError::Length(length)),
        };
        let Parsed { transform, bytes } = text::parse(text, PREFIX, SECRET_TEXT_BYTES_MAX, check)?;
        Ok(Secret { transform, bytes })
    }
}

impl From<TextError> for SecretError {
    fn from(error: TextError) -> Self {
        match error {
            TextError::Form => SecretError::Form,
            TextError::Hash => SecretError::Hash,
            TextError::Base64 => SecretError::Base64,
            TextError::Length(bytes) => SecretError::Length(bytes),
            TextError::Checksum => SecretError::Checksum,
        }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({} bytes)", self.bytes.len())
    }
}
