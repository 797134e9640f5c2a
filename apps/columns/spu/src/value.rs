//! Values: of one column, some rows of them, and alone.
//!
//! What always holds: a batch has as many validity flags as rows, and where its kind says so as many numbers or spans; each span lies in the bytes.

use alloc::vec::Vec;

use crate::engine::Stop;
use crate::wire::Taker;

/// What the values of a column are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// True and false.
    Bool = 0,
    /// Signed integers.
    Int = 1,
    /// Unsigned integers.
    Unsigned = 2,
    /// Floating point numbers.
    Float = 3,
    /// Byte strings.
    Bytes = 4,
}

impl Kind {
    /// Of its number.
    pub fn decode(from: u8) -> Option<Kind> {
        [Kind::Bool, Kind::Int, Kind::Unsigned, Kind::Float, Kind::Bytes].get(usize::from(from)).copied()
    }
}

/// Longest byte string of an expression.
pub const SCALAR_BYTES_MAX: usize = 1024;

/// A value alone.
#[derive(Clone, Debug, PartialEq)]
pub enum Scalar {
    /// True or false.
    Bool(bool),
    /// A signed integer.
    Int(i64),
    /// An unsigned integer.
    Unsigned(u64),
    /// A floating point number.
    Float(f64),
    /// Bytes.
    Bytes(Vec<u8>),
}

impl Scalar {
    /// Its kind.
    pub fn kind(&self) -> Kind {
        match self {
            Scalar::Bool(_) => Kind::Bool,
            Scalar::Int(_) => Kind::Int,
            Scalar::Unsigned(_) => Kind::Unsigned,
            Scalar::Float(_) => Kind::Float,
            Scalar::Bytes(_) => Kind::Bytes,
        }
    }

    /// True where both are of one kind and this is less; a float that is no number is never.
    pub fn is_less(&self, other: &Scalar) -> bool {
        match (self, other) {
            (Scalar::Bool(a), Scalar::Bool(b)) => a < b,
            (Scalar::Int(a), Scalar::Int(b)) => a < b,
            (Scalar::Unsigned(a), Scalar::Unsigned(b)) => a < b,
            (Scalar::Float(a), Scalar::Float(b)) => a < b,
            (Scalar::Bytes(a), Scalar::Bytes(b)) => a < b,
            _ => false,
        }
    }

    /// Appends its kind and bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.kind() as u8);
        match self {
            Scalar::Bool(value) => out.push(u8::from(*value)),
            Scalar::Int(value) => out.extend_from_slice(&value.to_le_bytes()),
            Scalar::Unsigned(value) => out.extend_from_slice(&value.to_le_bytes()),
            Scalar::Float(value) => out.extend_from_slice(&value.to_le_bytes()),
            Scalar::Bytes(value) => {
                out.extend_from_slice(&(value.len() as u32).to_le_bytes());
                out.extend_from_slice(value);
            }
        }
    }

    /// Takes one; `None` where there is none, or a byte string that is too long.
    pub fn decode(from: &mut Taker<'_>) -> Option<Scalar> {
        Some(match Kind::decode(from.u8()?)? {
            Kind::Bool => Scalar::Bool(from.u8()? == 1),
            Kind::Int => Scalar::Int(from.u64()? as i64),
            Kind::Unsigned => Scalar::Unsigned(from.u64()?),
            Kind::Float => Scalar::Float(f64::from_bits(from.u64()?)),
            Kind::Bytes => {
                let bytes = from.text()?;
                let mut value = Vec::new();
                if bytes.len() > SCALAR_BYTES_MAX || value.try_reserve_exact(bytes.len()).is_err() {
                    return None;
                }
                value.extend_from_slice(bytes);
                Scalar::Bytes(value)
            }
        })
    }
}

/// Some rows of a column.
#[derive(Debug)]
pub struct Values {
    /// Their kind.
    pub kind: Kind,
    /// 1: there is a value; 0: null, and the number is 0 or the span empty.
    pub valid: Vec<u8>,
    /// Booleans (0 and 1), integers, and unsigned ones by their bits.
    pub ints: Vec<i64>,
    /// Floating point numbers.
    pub floats: Vec<f64>,
    /// Where byte strings lie: offset and length; offsets below `kept_bytes` are the dictionary's.
    pub spans: Vec<(u32, u32)>,
    /// Byte strings: first those of a dictionary, which stay, then those of the batch.
    pub bytes: Vec<u8>,
    /// Bytes that stay.
    pub kept_bytes: usize,
}

impl Values {
    /// None yet, with room for so many rows.
    pub fn new(kind: Kind, rows: usize) -> Result<Values, Stop> {
        let mut values = Values {
            kind,
            valid: reserved(rows)?,
            ints: Vec::new(),
            floats: Vec::new(),
            spans: Vec::new(),
            bytes: Vec::new(),
            kept_bytes: 0,
        };
        match kind {
            Kind::Bool | Kind::Int | Kind::Unsigned => values.ints = reserved(rows)?,
            Kind::Float => values.floats = reserved(rows)?,
            Kind::Bytes => values.spans = reserved(rows)?,
        }
        Ok(values)
    }

    /// Forgets the rows, not the dictionary.
    pub fn clear(&mut self) {
        self.valid.clear();
        self.ints.clear();
        self.floats.clear();
        self.spans.clear();
        self.bytes.truncate(self.kept_bytes);
    }

    /// Rows.
    pub fn rows(&self) -> usize {
        self.valid.len()
    }

    /// The byte string of a row.
    pub fn text(&self, row: usize) -> &[u8] {
        let (offset, length) = self.spans[row];
        &self.bytes[offset as usize..][..length as usize]
    }

    /// Appends a row without a value.
    pub fn push_null(&mut self) {
        self.valid.push(0);
        match self.kind {
            Kind::Bool | Kind::Int | Kind::Unsigned => self.ints.push(0),
            Kind::Float => self.floats.push(0.0),
            Kind::Bytes => self.spans.push((0, 0)),
        }
    }

    /// Appends a byte string, without its row; its span.
    pub fn add_bytes(&mut self, bytes: &[u8]) -> Result<(u32, u32), Stop> {
        let offset = self.bytes.len();
        if bytes.len() > self.bytes.capacity() - offset {
            let more = bytes.len().max(self.bytes.capacity() / 2);
            // Where there is no room for half as much again, what is needed may still fit.
            if self.bytes.try_reserve_exact(more).is_err() {
                self.bytes.try_reserve_exact(bytes.len()).map_err(|_| Stop::NoMemory)?;
            }
        }
        if offset + bytes.len() > u32::MAX as usize {
            return Err(Stop::NoMemory);
        }
        self.bytes.extend_from_slice(bytes);
        Ok((offset as u32, bytes.len() as u32))
    }

    /// The value of a row, `None` where it is null or there is no memory for its bytes.
    pub fn scalar(&self, row: usize) -> Option<Scalar> {
        if self.valid[row] == 0 {
            return None;
        }
        Some(match self.kind {
            Kind::Bool => Scalar::Bool(self.ints[row] != 0),
            Kind::Int => Scalar::Int(self.ints[row]),
            Kind::Unsigned => Scalar::Unsigned(self.ints[row] as u64),
            Kind::Float => Scalar::Float(self.floats[row]),
            Kind::Bytes => {
                let mut value = Vec::new();
                value.try_reserve_exact(self.text(row).len()).ok()?;
                value.extend_from_slice(self.text(row));
                Scalar::Bytes(value)
            }
        })
    }
}

/// A list with room, or the reason why not.
pub fn reserved<T>(count: usize) -> Result<Vec<T>, Stop> {
    let mut list = Vec::new();
    list.try_reserve_exact(count).map_err(|_| Stop::NoMemory)?;
    Ok(list)
}
