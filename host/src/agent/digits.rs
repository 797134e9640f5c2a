//! Bytes in hexadecimal digits, as the journal has them.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serializer};
use std::fmt::Write;

/// As digits, two for each byte.
pub fn of_bytes(bytes: &[u8]) -> String {
    let mut digits = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        let _ = write!(digits, "{byte:02x}");
    }
    digits
}

/// The bytes again; `None` where they are none.
pub fn to_bytes(digits: &str) -> Option<Vec<u8>> {
    let byte = |at: usize| digits.get(at..at + 2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
    (0..digits.len()).step_by(2).map(byte).collect()
}

/// For a field of a line.
pub fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&of_bytes(bytes))
}

/// For a field of a line.
pub fn deserialize<'a, D: Deserializer<'a>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    let digits = String::deserialize(deserializer)?;
    to_bytes(&digits).ok_or_else(|| D::Error::custom("hexadecimal digits expected"))
}
