//! A Parquet file's metadata, as its last bytes have them: columns, row groups, where their chunks lie and what their statistics say.
//!
//! What always holds: lengths and offsets lie in the file; a column that is not supported keeps its name and the reason, and is refused where it is
//! asked for.

use columns_spu::thrift::{Thrift, ThriftError, kind};
use columns_spu::value::{Kind, Scalar};
use columns_spu::wire::Storage;

use crate::pages::{IndexPlace, PageRows};
use crate::schema::{DataType, Field, TimeUnit};

/// Bytes at a file's end that say how long the metadata before them are.
pub const TAIL_BYTES: usize = 8;
/// Longest metadata.
pub const METADATA_BYTES_MAX: u64 = 64 << 20;
/// Most rows of a file: each part of them takes memory.
const ROWS_MAX: u64 = 1 << 36;
/// Most elements of a schema, and bytes of the path to a column.
const ELEMENTS_MAX: usize = 64 << 10;
const PATH_BYTES_MAX: usize = 4 << 10;
/// What a file ends with.
const MAGIC: &[u8] = b"PAR1";

/// Why metadata cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FooterError {
    /// It is no such file.
    #[error("it is no Parquet file: it does not end with PAR1 and the length of its metadata (is it cut off?)")]
    NoParquet,
    /// It is encrypted.
    #[error("the Parquet file is encrypted, which is not supported")]
    Encrypted,
    /// The metadata are too long.
    #[error("the Parquet file's metadata have {0} bytes, at most {METADATA_BYTES_MAX} are read")]
    TooLong(u64),
    /// The metadata are malformed.
    #[error("the Parquet file's metadata are malformed")]
    Malformed,
}

impl From<ThriftError> for FooterError {
    fn from(_: ThriftError) -> Self {
        FooterError::Malformed
    }
}

/// A column chunk.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Chunk {
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
    /// Number of the codec.
    pub codec: i32,
    /// Values, nulls included.
    pub values: u64,
    /// Least and greatest value.
    pub extremes: Option<(Scalar, Scalar)>,
    /// How many are null.
    pub nulls: Option<u64>,
    /// Where its page index lies; empty where it has none.
    pub index: IndexPlace,
    /// Its pages as the index has them, where that was read ([`crate::Table::learn_pages`]).
    pub pages: Vec<PageRows>,
}

/// A row group.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RowGroup {
    /// Rows.
    pub rows: u64,
    /// A chunk for each column.
    pub chunks: Vec<Chunk>,
}

/// How a column is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    /// How.
    pub storage: Storage,
    /// Bytes of a value.
    pub width: u32,
}

/// What the metadata say.
#[derive(Clone, Debug, PartialEq)]
pub struct Footer {
    /// Columns: leaves of the schema, in order.
    pub fields: Vec<Field>,
    /// How they are stored.
    pub stored: Vec<Stored>,
    /// Row groups.
    pub row_groups: Vec<RowGroup>,
}

/// Bytes of the metadata before the tail, of a file of so many bytes.
pub fn metadata_bytes(tail: &[u8; TAIL_BYTES], file_bytes: u64) -> Result<usize, FooterError> {
    if &tail[4..] == b"PARE" {
        return Err(FooterError::Encrypted);
    }
    let bytes = u64::from(u32::from_le_bytes([tail[0], tail[1], tail[2], tail[3]]));
    if &tail[4..] != MAGIC || bytes + TAIL_BYTES as u64 + 4 > file_bytes {
        return Err(FooterError::NoParquet);
    }
    if bytes > METADATA_BYTES_MAX { Err(FooterError::TooLong(bytes)) } else { Ok(bytes as usize) }
}

/// A schema element.
#[derive(Default)]
struct Element {
    physical: Option<i32>,
    length: i32,
    repetition: i32,
    name: String,
    children: i32,
    converted: Option<i32>,
    logical: Option<Logical>,
}

#[derive(Clone, Copy)]
enum Logical {
    Text,
    Date,
    Timestamp(TimeUnit, bool),
    Integer(u32, bool),
    /// Its field in the union.
    Other(i16),
}

fn element(from: &mut Thrift<'_>) -> Result<Element, ThriftError> {
    let mut element = Element::default();
    from.fields(|from, field, of| {
        match (field, of) {
            (1, kind::I32) => element.physical = Some(from.i32()?),
            (2, kind::I32) => element.length = from.i32()?,
            (3, kind::I32) => element.repetition = from.i32()?,
            (4, kind::BINARY) => element.name = String::from_utf8_lossy(from.binary()?).into_owned(),
            (5, kind::I32) => element.children = from.i32()?,
            (6, kind::I32) => element.converted = Some(from.i32()?),
            (10, kind::STRUCT) => element.logical = logical(from)?,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    Ok(element)
}

fn logical(from: &mut Thrift<'_>) -> Result<Option<Logical>, ThriftError> {
    let mut found = None;
    from.fields(|from, field, of| {
        if of != kind::STRUCT {
            return Ok(false);
        }
        match field {
            1 | 4 | 12 => found = Some(Logical::Text),
            6 => found = Some(Logical::Date),
            8 => {
                let (mut is_utc, mut unit) = (false, TimeUnit::Milli);
                from.fields(|from, field, of| {
                    match (field, of) {
                        (1, of) => is_utc = of == kind::TRUE,
                        (2, kind::STRUCT) => from.fields(|_, field, _| {
                            unit = match field {
                                1 => TimeUnit::Milli,
                                2 => TimeUnit::Micro,
                                _ => TimeUnit::Nano,
                            };
                            Ok(false)
                        })?,
                        _ => return Ok(false),
                    }
                    Ok(true)
                })?;
                found = Some(Logical::Timestamp(unit, is_utc));
                return Ok(true);
            }
            10 => {
                let (mut bits, mut is_signed) = (0, false);
                from.fields(|from, field, of| {
                    match (field, of) {
                        (1, kind::BYTE) => bits = from.raw_byte()?,
                        (2, of) => is_signed = of == kind::TRUE,
                        _ => return Ok(false),
                    }
                    Ok(true)
                })?;
                found = Some(Logical::Integer(bits.into(), is_signed));
                return Ok(true);
            }
            other => found = Some(Logical::Other(other)),
        }
        Ok(false)
    })?;
    Ok(found)
}

/// Type and storage of a leaf, or why it is not supported.
fn type_of(leaf: &Element) -> (Result<DataType, String>, Stored) {
    let stored = |storage, width| Stored { storage, width };
    let number = |bytes| stored(Storage::Number, bytes);
    let is_text = matches!(leaf.logical, Some(Logical::Text)) || matches!(leaf.converted, Some(0 | 4 | 19));
    let integer = |bytes: u32| {
        let of = match (leaf.logical, leaf.converted) {
            (Some(Logical::Integer(bits @ (8 | 16 | 32 | 64), true)), _) => Ok(DataType::Int(bits)),
            (Some(Logical::Integer(bits @ (8 | 16 | 32 | 64), false)), _) => Ok(DataType::Unsigned(bits)),
            (Some(Logical::Date), _) | (None, Some(6)) if bytes == 4 => Ok(DataType::Date),
            (Some(Logical::Timestamp(unit, is_utc)), _) if bytes == 8 => Ok(DataType::Timestamp(unit, is_utc)),
            (None, Some(9)) if bytes == 8 => Ok(DataType::Timestamp(TimeUnit::Milli, true)),
            (None, Some(10)) if bytes == 8 => Ok(DataType::Timestamp(TimeUnit::Micro, true)),
            (None, Some(converted @ 11..=14)) => Ok(DataType::Unsigned(8 << (converted - 11))),
            (None, Some(converted @ 15..=18)) => Ok(DataType::Int(8 << (converted - 15))),
            (None, None) => Ok(DataType::Int(bytes * 8)),
            (Some(Logical::Other(5)), _) | (None, Some(5)) => Err("decimals are not supported".to_owned()),
            _ => Err("its logical type is not supported (times of day, for one)".to_owned()),
        };
        (of, number(bytes))
    };
    match leaf.physical {
        Some(0) => (Ok(DataType::Bool), stored(Storage::Bool, 0)),
        Some(1) => integer(4),
        Some(2) => integer(8),
        Some(3) => (Err("the old timestamps of 96 bits are not supported".to_owned()), number(8)),
        Some(4) => (Ok(DataType::Float(32)), number(4)),
        Some(5) => (Ok(DataType::Float(64)), number(8)),
        Some(6) if is_text => (Ok(DataType::Utf8), stored(Storage::Variable, 0)),
        Some(6 | 7) if leaf.converted == Some(5) || matches!(leaf.logical, Some(Logical::Other(5))) => {
            (Err("decimals are not supported".to_owned()), stored(Storage::Variable, 0))
        }
        Some(6) => (Ok(DataType::Binary), stored(Storage::Variable, 0)),
        Some(7) if matches!(leaf.logical, Some(Logical::Other(15))) => {
            (Err("floating point numbers of 16 bits are not supported".to_owned()), stored(Storage::Variable, 0))
        }
        Some(7) if (1..=columns_spu::wire::RECORD_BYTES_MAX as i32).contains(&leaf.length) => {
            let width = leaf.length as u32;
            (Ok(DataType::Fixed(width)), stored(Storage::Fixed, width))
        }
        _ => (Err("its physical type is not supported".to_owned()), stored(Storage::Variable, 0)),
    }
}

/// Values of statistics.
fn scalar(of: DataType, width: u32, bytes: &[u8]) -> Option<Scalar> {
    let number = |bytes: &[u8]| match bytes.len() {
        4 => Some(i64::from(i32::from_le_bytes(bytes.try_into().ok()?))),
        8 => Some(i64::from_le_bytes(bytes.try_into().ok()?)),
        _ => None,
    };
    if of.kind() != Kind::Bytes && of.kind() != Kind::Bool && bytes.len() != width as usize {
        return None;
    }
    match of.kind() {
        Kind::Bool => Some(Scalar::Bool(*bytes.first()? != 0)),
        Kind::Int => number(bytes).map(Scalar::Int),
        Kind::Unsigned => {
            let bits = number(bytes)? as u64;
            Some(Scalar::Unsigned(if width == 4 { bits & 0xffff_ffff } else { bits }))
        }
        Kind::Float => {
            let value = match width {
                4 => f32::from_le_bytes(bytes.try_into().ok()?).into(),
                _ => f64::from_le_bytes(bytes.try_into().ok()?),
            };
            (!value.is_nan()).then_some(Scalar::Float(value))
        }
        Kind::Bytes => Some(Scalar::Bytes(bytes.to_vec())),
    }
}

fn chunk(from: &mut Thrift<'_>, of: Option<(DataType, u32)>, file_bytes: u64) -> Result<Chunk, ThriftError> {
    let (mut chunk, mut found, mut is_elsewhere) = (Chunk::default(), false, false);
    let (mut data, mut dictionary) = (None, None);
    // First byte and length of the page index: places, then values.
    let mut index = [0u64; 4];
    from.fields(|from, field, kind_of| {
        match (field, kind_of) {
            (1, kind::BINARY) => is_elsewhere = !from.binary()?.is_empty(),
            (3, kind::STRUCT) => {
                found = true;
                from.fields(|from, field, kind_of| {
                    let length = |value: i64| u64::try_from(value).map_err(|_| ThriftError::Malformed);
                    match (field, kind_of) {
                        (4, kind::I32) => chunk.codec = from.i32()?,
                        (5, kind::I64) => chunk.values = length(from.integer()?)?,
                        (7, kind::I64) => chunk.bytes = length(from.integer()?)?,
                        (9, kind::I64) => data = Some(length(from.integer()?)?),
                        (11, kind::I64) => dictionary = Some(length(from.integer()?)?),
                        (12, kind::STRUCT) => statistics(from, of, &mut chunk)?,
                        _ => return Ok(false),
                    }
                    Ok(true)
                })?;
            }
            (4..=7, kind::I64 | kind::I32) => {
                index[field as usize - 4] = u64::try_from(from.integer()?).map_err(|_| ThriftError::Malformed)?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    let range = |begin: u64, bytes: u64| match begin.checked_add(bytes) {
        Some(end) if end <= file_bytes => Ok(begin..end),
        _ => Err(ThriftError::Malformed),
    };
    chunk.index = IndexPlace { places: range(index[0], index[1])?, values: range(index[2], index[3])? };
    let data = data.ok_or(ThriftError::Malformed)?;
    chunk.offset = dictionary.filter(|offset| *offset > 0).map_or(data, |dictionary| dictionary.min(data));
    let is_inside = chunk.offset.checked_add(chunk.bytes).is_some_and(|end| end <= file_bytes);
    if found && !is_elsewhere && is_inside { Ok(chunk) } else { Err(ThriftError::Malformed) }
}

fn statistics(from: &mut Thrift<'_>, of: Option<(DataType, u32)>, chunk: &mut Chunk) -> Result<(), ThriftError> {
    let (mut least, mut greatest) = (None, None);
    from.fields(|from, field, kind_of| {
        match (field, kind_of) {
            (3, kind::I64) => chunk.nulls = u64::try_from(from.integer()?).ok(),
            (5, kind::BINARY) => greatest = Some(from.binary()?),
            (6, kind::BINARY) => least = Some(from.binary()?),
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    if let (Some(of), Some(least), Some(greatest)) = (of, least, greatest) {
        chunk.extremes = extremes(of, least, greatest);
    }
    Ok(())
}

/// Least and greatest value of a column of that type and width, as their bytes say.
pub(crate) fn extremes((of, width): (DataType, u32), least: &[u8], greatest: &[u8]) -> Option<(Scalar, Scalar)> {
    let pair = scalar(of, width, least).zip(scalar(of, width, greatest));
    // Zero may stand for either of them; a pair that is out of order says nothing.
    pair.filter(|(least, greatest)| !greatest.is_less(least))
}

impl Footer {
    /// Of the bytes before the tail, in a file of so many bytes.
    pub fn decode(bytes: &[u8], file_bytes: u64) -> Result<Footer, FooterError> {
        let mut elements = Vec::new();
        // Row groups come behind the schema, which says what their statistics are.
        Thrift::new(bytes).fields(|from, field, of| {
            if (field, of) != (2, kind::LIST) {
                return Ok(false);
            }
            from.structs(|from| {
                if elements.len() == ELEMENTS_MAX {
                    return Err(ThriftError::Malformed);
                }
                elements.push(element(from)?);
                Ok(())
            })?;
            Ok(true)
        })?;
        let (fields, stored) = leaves(&elements)?;
        let types: Vec<Option<(DataType, u32)>> = fields
            .iter()
            .zip(&stored)
            .map(|(field, stored)| field.of.clone().ok().map(|of| (of, stored.width)))
            .collect();
        let mut row_groups = Vec::new();
        Thrift::new(bytes).fields(|from, field, of| {
            if (field, of) != (4, kind::LIST) {
                return Ok(false);
            }
            from.structs(|from| {
                let mut group = RowGroup::default();
                from.fields(|from, field, of| {
                    match (field, of) {
                        (1, kind::LIST) => {
                            from.structs(|from| {
                                let of = types.get(group.chunks.len()).ok_or(ThriftError::Malformed)?;
                                group.chunks.push(chunk(from, *of, file_bytes)?);
                                Ok(())
                            })?;
                        }
                        (3, kind::I64) => {
                            group.rows = u64::try_from(from.integer()?).map_err(|_| ThriftError::Malformed)?;
                        }
                        _ => return Ok(false),
                    }
                    Ok(true)
                })?;
                row_groups.push(group);
                Ok(())
            })?;
            Ok(true)
        })?;
        let rows = row_groups.iter().try_fold(0u64, |rows, group| rows.checked_add(group.rows));
        let is_bounded = rows.is_some_and(|rows| rows <= ROWS_MAX);
        let is_whole = is_bounded
            && row_groups.iter().all(|group| {
                let is_flat = |(field, chunk): (&Field, &Chunk)| field.of.is_err() || chunk.values == group.rows;
                group.chunks.len() == fields.len() && fields.iter().zip(&group.chunks).all(is_flat)
            });
        if is_whole { Ok(Footer { fields, stored, row_groups }) } else { Err(FooterError::Malformed) }
    }
}

/// The leaves of a schema, which is a tree written from its root on.
fn leaves(elements: &[Element]) -> Result<(Vec<Field>, Vec<Stored>), FooterError> {
    let (root, rest) = elements.split_first().ok_or(FooterError::Malformed)?;
    let (mut fields, mut stored) = (Vec::new(), Vec::new());
    // Groups that are open: children left, and the name up to there.
    let mut open = vec![(root.children, String::new())];
    for element in rest {
        while open.last().is_some_and(|(left, _)| *left <= 0) {
            open.pop();
        }
        let (left, path) = open.last_mut().ok_or(FooterError::Malformed)?;
        *left -= 1;
        let name = if path.is_empty() { element.name.clone() } else { format!("{path}.{}", element.name) };
        if element.physical.is_none() {
            if element.children <= 0 || open.len() > 64 || name.len() > PATH_BYTES_MAX {
                return Err(FooterError::Malformed);
            }
            open.push((element.children, name));
            continue;
        }
        let (mut of, how) = type_of(element);
        if open.len() > 1 {
            of = Err("nested columns are not supported".to_owned());
        } else if element.repetition == 2 {
            of = Err("repeated columns are not supported".to_owned());
        }
        fields.push(Field { name, of, big_endian: false, is_optional: element.repetition == 1 });
        stored.push(how);
    }
    if open.iter().any(|(left, _)| *left > 0) { Err(FooterError::Malformed) } else { Ok((fields, stored)) }
}
