//! The record: the envelope that every file of a data folder begins with (docs/media-format.md, section 2).
//!
//! What always holds:
//! - A record is accepted only as a whole: magic, version, length and CRC-32C must all fit. Nothing of a record that was
//!   refused is used.
//! - The magic and the version are looked at before the checksum, so that foreign and newer files are named as such even
//!   if their layout is another one.
//!
//! The modules of the file store call it.

/// Length of the envelope before the payload.
pub const HEADER_BYTES: usize = 64;
/// The format that this code writes, and the newest that it reads.
pub const VERSION: u32 = 1;

/// Identity of a data folder; every file in it carries it.
pub type Uuid = [u8; 16];

/// What a record is for; the first eight bytes of its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The store's own description.
    Superblock,
    /// The device's metadata.
    Metadata,
    /// The head of a bank file.
    Bank,
    /// A named blob.
    Blob,
}

impl Kind {
    const ALL: [Kind; 4] = [Kind::Superblock, Kind::Metadata, Kind::Bank, Kind::Blob];

    fn magic(self) -> &'static [u8; 8] {
        match self {
            Kind::Superblock => b"WILLOWsb",
            Kind::Metadata => b"WILLOWmd",
            Kind::Bank => b"WILLOWbk",
            Kind::Blob => b"WILLOWbl",
        }
    }

    /// As it is called in messages.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Superblock => "a superblock",
            Kind::Metadata => "device metadata",
            Kind::Bank => "a bank",
            Kind::Blob => "a blob",
        }
    }
}

/// A record that was accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The data folder that it belongs to.
    pub uuid: Uuid,
    /// Superblock and metadata: generation. Bank: its number. Blob: zero.
    pub number: u64,
    /// What it carries.
    pub payload: Vec<u8>,
}

/// Why a record was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// It does not begin with a magic of this format.
    #[error("it is not a file of a Willow data folder (wrong magic)")]
    Foreign,
    /// It is of this format, but another kind of file.
    #[error("it holds {}, not {}: files were mixed up; put each back under its own name", .found.name(), .wanted.name())]
    WrongKind {
        /// What it is.
        found: Kind,
        /// What it should be.
        wanted: Kind,
    },
    /// A later format.
    #[error("it has format version {found}, and this program reads up to version {VERSION}: use a newer Willow")]
    Newer {
        /// Its version.
        found: u32,
    },
    /// The file ends before the record does.
    #[error("it is truncated: {found} bytes of {wanted}; restore it from a copy")]
    Truncated {
        /// Length found.
        found: u64,
        /// Length needed.
        wanted: u64,
    },
    /// The checksum or a field that it covers is wrong.
    #[error("it is damaged ({0}); restore it from a copy")]
    Damaged(&'static str),
}

impl Record {
    /// The bytes of the record.
    pub fn encode(&self, kind: Kind) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_BYTES + self.payload.len()];
        bytes[0..8].copy_from_slice(kind.magic());
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.uuid);
        bytes[32..40].copy_from_slice(&self.number.to_le_bytes());
        bytes[40..48].copy_from_slice(&(self.payload.len() as u64).to_le_bytes());
        bytes[HEADER_BYTES..].copy_from_slice(&self.payload);
        let checksum = checksum(&bytes);
        bytes[12..16].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Reads the record at the start of `bytes`; what follows it is ignored.
    pub fn decode(kind: Kind, bytes: &[u8]) -> Result<Record, RecordError> {
        if bytes.len() < 8 {
            return Err(RecordError::Truncated { found: bytes.len() as u64, wanted: HEADER_BYTES as u64 });
        }
        if &bytes[0..8] != kind.magic() {
            return Err(match Kind::ALL.into_iter().find(|other| &bytes[0..8] == other.magic()) {
                Some(found) => RecordError::WrongKind { found, wanted: kind },
                None => RecordError::Foreign,
            });
        }
        if bytes.len() < HEADER_BYTES {
            return Err(RecordError::Truncated { found: bytes.len() as u64, wanted: HEADER_BYTES as u64 });
        }
        let version = u32::from_le_bytes(field(bytes, 8));
        if version > VERSION {
            return Err(RecordError::Newer { found: version });
        }
        if version == 0 {
            return Err(RecordError::Damaged("version 0"));
        }
        let payload_bytes = u64::from_le_bytes(field(bytes, 40));
        let end = (HEADER_BYTES as u64).checked_add(payload_bytes).ok_or(RecordError::Damaged("length"))?;
        if end > bytes.len() as u64 {
            return Err(RecordError::Truncated { found: bytes.len() as u64, wanted: end });
        }
        let bytes = &bytes[..end as usize];
        if checksum(bytes) != u32::from_le_bytes(field(bytes, 12)) {
            return Err(RecordError::Damaged("checksum"));
        }
        if bytes[48..HEADER_BYTES].iter().any(|byte| *byte != 0) {
            return Err(RecordError::Damaged("reserved bytes"));
        }
        Ok(Record {
            uuid: field(bytes, 16),
            number: u64::from_le_bytes(field(bytes, 32)),
            payload: bytes[HEADER_BYTES..].to_vec(),
        })
    }
}

/// CRC-32C of a record without the checksum field itself.
fn checksum(bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&bytes[..12]), &bytes[16..])
}

/// A field of fixed size; the caller has checked that it is there.
pub fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("the slice has N bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Record {
        Record { uuid: [7; 16], number: 42, payload: b"payload".to_vec() }
    }

    #[test]
    fn round_trip_with_trailing_bytes() {
        let mut bytes = sample().encode(Kind::Bank);
        bytes.extend_from_slice(&[0xAA; 100]);
        assert_eq!(Record::decode(Kind::Bank, &bytes).unwrap(), sample());
    }

    #[test]
    fn every_flipped_bit_and_every_truncation_is_refused() {
        let good = sample().encode(Kind::Metadata);
        for bit in 0..good.len() * 8 {
            let mut bytes = good.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Record::decode(Kind::Metadata, &bytes).is_err(), "bit {bit}");
        }
        for length in 0..good.len() {
            assert!(Record::decode(Kind::Metadata, &good[..length]).is_err(), "length {length}");
        }
    }

    #[test]
    fn newer_foreign_and_mixed_up_records_are_told_apart() {
        let mut bytes = sample().encode(Kind::Bank);
        assert!(matches!(Record::decode(Kind::Blob, &bytes), Err(RecordError::WrongKind { found: Kind::Bank, .. })));
        bytes[8] = 9;
        assert_eq!(Record::decode(Kind::Bank, &bytes), Err(RecordError::Newer { found: 9 }));
        bytes[0] = b'X';
        assert_eq!(Record::decode(Kind::Bank, &bytes), Err(RecordError::Foreign));
    }
}
