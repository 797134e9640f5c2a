//! The head of a flash file: who it belongs to, and how its flash is arranged (docs/media-format.md, section 9).
//!
//! What always holds: a head is accepted as a whole or not at all; magic and version are looked at before the checksum, so that foreign and
//! newer files are named as such.

use super::file::FileError;
use crate::geometry::{Cell, Geometry};

/// Bytes of the head, filled up with zeroes.
pub const HEAD_BYTES: usize = 4096;
/// The format that this code writes, and the newest that it reads.
pub const VERSION: u32 = 1;
/// First bytes of the file.
pub const MAGIC: &[u8; 8] = b"WILLOWfl";
/// Length of the envelope before the payload.
const ENVELOPE_BYTES: usize = 64;
const PAYLOAD_BYTES: usize = 48;

/// Identity of a data folder; every file in it carries it.
pub type Uuid = [u8; 16];

/// What the head says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// The data folder's.
    pub uuid: Uuid,
    /// Number of the bank.
    pub bank: u64,
    /// How the flash is arranged.
    pub geometry: Geometry,
    /// What all that goes wrong follows from.
    pub seed: u64,
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn checksum(bytes: &[u8]) -> u32 {
    let before = crc32c::crc32c(&bytes[..12]);
    crc32c::crc32c_append(before, &bytes[16..ENVELOPE_BYTES + PAYLOAD_BYTES])
}

fn cell_number(cell: Cell) -> u8 {
    match cell {
        Cell::Slc => 1,
        Cell::Mlc => 2,
        Cell::Tlc => 3,
    }
}

impl Head {
    /// Its bytes.
    pub fn encode(&self) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        put(&mut bytes, 0, MAGIC);
        put(&mut bytes, 8, &VERSION.to_le_bytes());
        put(&mut bytes, 16, &self.uuid);
        put(&mut bytes, 32, &self.bank.to_le_bytes());
        put(&mut bytes, 40, &(PAYLOAD_BYTES as u64).to_le_bytes());
        let g = &self.geometry;
        let numbers = [
            g.channels,
            g.packages_per_channel,
            g.dies_per_package,
            g.planes_per_die,
            g.blocks_per_plane,
            g.pages_per_block,
            g.page_bytes,
            g.spare_bytes,
        ];
        for (place, number) in numbers.into_iter().enumerate() {
            put(&mut bytes, ENVELOPE_BYTES + place * 4, &number.to_le_bytes());
        }
        bytes[ENVELOPE_BYTES + 32] = cell_number(g.cell);
        bytes[ENVELOPE_BYTES + 33] = u8::from(g.spare_accessible);
        put(&mut bytes, ENVELOPE_BYTES + 36, &g.paired_distance.to_le_bytes());
        put(&mut bytes, ENVELOPE_BYTES + 40, &self.seed.to_le_bytes());
        let sum = checksum(&bytes);
        put(&mut bytes, 12, &sum.to_le_bytes());
        bytes
    }

    /// What the bytes of a head say; the error says what is wrong.
    pub fn decode(bytes: &[u8]) -> Result<Head, FileError> {
        let refuse = |what: &str| Err(FileError::Refused(what.into()));
        if bytes.len() < MAGIC.len() || bytes[..8] != *MAGIC {
            return refuse("it is not a flash file (it does not begin with WILLOWfl)");
        }
        if bytes.len() < HEAD_BYTES {
            return refuse("it is truncated within its head");
        }
        let version = u32_at(bytes, 8);
        if version > VERSION {
            return Err(FileError::Refused(format!(
                "its format has version {version}, this program knows versions up to {VERSION}: use a newer one"
            )));
        }
        if u64_at(bytes, 40) != PAYLOAD_BYTES as u64 || checksum(bytes) != u32_at(bytes, 12) {
            return refuse("its head is damaged (checksum)");
        }
        let zeroes = |range: std::ops::Range<usize>| bytes[range].iter().all(|byte| *byte == 0);
        let payload = &bytes[ENVELOPE_BYTES..ENVELOPE_BYTES + PAYLOAD_BYTES];
        if !zeroes(48..64) || !zeroes(ENVELOPE_BYTES + 34..ENVELOPE_BYTES + 36) || !zeroes(112..HEAD_BYTES) {
            return refuse("its head is damaged (bytes that have to be zero are not)");
        }
        let cell = match payload[32] {
            1 => Cell::Slc,
            2 => Cell::Mlc,
            3 => Cell::Tlc,
            _ => return refuse("its head names a kind of cell that there is not"),
        };
        let number = |place: usize| u32_at(payload, place * 4);
        let geometry = Geometry {
            channels: number(0),
            packages_per_channel: number(1),
            dies_per_package: number(2),
            planes_per_die: number(3),
            blocks_per_plane: number(4),
            pages_per_block: number(5),
            page_bytes: number(6),
            spare_bytes: number(7),
            cell,
            paired_distance: u32_at(payload, 36),
            spare_accessible: payload[33] != 0,
        };
        // A head with a good checksum that was not written by this code.
        geometry.validate().map_err(|absurd| FileError::Refused(format!("its head is absurd: {absurd}")))?;
        let uuid = bytes[16..32].try_into().expect("sixteen bytes");
        Ok(Head { uuid, bank: u64_at(bytes, 32), geometry, seed: u64_at(payload, 40) })
    }
}
