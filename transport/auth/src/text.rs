//! The text form that NVMe gives keys (Base 8.13.5.8.2; NVMe/TCP 3.6.1.5): a prefix, `hh:` for the hash that transforms them (00: none),
//! base64 of the bytes and their CRC-32, little-endian, and a colon.
//!
//! What always holds: what a text said is wiped when dropped; errors never repeat it.

use crate::Hash;
use base64ct::{Base64, Encoding};
use zeroize::Zeroizing;

/// What a text says.
pub(crate) struct Parsed {
    pub transform: Option<Hash>,
    pub bytes: Zeroizing<Vec<u8>>,
}

/// What is wrong with a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TextError {
    Form,
    Hash,
    Base64,
    Length(usize),
    Checksum,
}

/// Reads a text of at most `text_bytes_max`; `check` says whether its kind of key has such a hash and, with it, such a length.
pub(crate) fn parse(
    text: &str,
    prefix: &str,
    text_bytes_max: usize,
    check: impl FnOnce(Option<Hash>, usize) -> Result<(), TextError>,
) -> Result<Parsed, TextError> {
    let rest = text.strip_prefix(prefix).ok_or(TextError::Form)?;
    let (transform, rest) = rest.split_once(':').ok_or(TextError::Form)?;
    let encoded = rest.strip_suffix(':').ok_or(TextError::Form)?;
    let transform = match transform {
        "00" => None,
        "01" => Some(Hash::Sha256),
        "02" => Some(Hash::Sha384),
        "03" => Some(Hash::Sha512),
        _ => return Err(TextError::Hash),
    };
    if text.len() > text_bytes_max {
        return Err(TextError::Form);
    }
    let mut bytes = Zeroizing::new(Base64::decode_vec(encoded).map_err(|_| TextError::Base64)?);
    let length = bytes.len().saturating_sub(4);
    check(transform, length)?;
    let checksum: [u8; 4] = bytes[length..].try_into().map_err(|_| TextError::Form)?;
    bytes.truncate(length);
    if crc32fast::hash(&bytes) != u32::from_le_bytes(checksum) {
        return Err(TextError::Checksum);
    }
    Ok(Parsed { transform, bytes })
}

/// Writes it.
pub(crate) fn write(prefix: &str, transform: Option<Hash>, bytes: &[u8]) -> Zeroizing<String> {
    let mut checked = Zeroizing::new(Vec::with_capacity(bytes.len() + 4));
    checked.extend_from_slice(bytes);
    checked.extend_from_slice(&crc32fast::hash(bytes).to_le_bytes());
    let encoded = Zeroizing::new(Base64::encode_string(&checked));
    Zeroizing::new(format!("{prefix}{:02x}:{}:", transform.map_or(0, Hash::id), *encoded))
}
