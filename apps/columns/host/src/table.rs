//! A file as a table: which columns it has, and how they are stored.
//!
//! What always holds: nothing is guessed but the types of a CSV file's columns, from its first records, and a value that is none of them later is an
//! error, not another type.

use columns_spu::wire::RECORD_BYTES_MAX;

use crate::footer::{Footer, FooterError, RowGroup, Stored};
use crate::schema::{DataType, Field};

/// Bytes at a CSV file's start that are looked at for its header and types.
pub const HEAD_BYTES: usize = 256 << 10;

/// Formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileFormat {
    /// Fixed-width records.
    Binary,
    /// Text of RFC 4180.
    Csv,
    /// Parquet.
    Parquet,
}

/// Why a file is no table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// Its Parquet metadata.
    #[error(transparent)]
    Footer(#[from] FooterError),
    /// Its schema.
    #[error("{0}")]
    Schema(String),
    /// Its length.
    #[error("the file has {file_bytes} bytes, which is no multiple of its records' {record_bytes}")]
    Length {
        /// Of the file.
        file_bytes: u64,
        /// Of a record.
        record_bytes: u32,
    },
    /// Its first record.
    #[error("the first {HEAD_BYTES} bytes of the CSV file have no whole record")]
    NoRecord,
    /// A quote in its first records.
    #[error("the CSV file's first records have a quote where RFC 4180 lets none be, at byte {0}")]
    Quote(usize),
}

/// Where its rows are.
#[derive(Clone, Debug, PartialEq)]
pub enum Rows {
    /// Records of so many bytes; where each column lies in them.
    Binary {
        /// Bytes of a record.
        record_bytes: u32,
        /// By column.
        places: Vec<u32>,
    },
    /// Records of text, from a byte on.
    Csv {
        /// Between fields.
        delimiter: u8,
        /// First byte of the first record.
        begin: u64,
        /// Number of its field, by column.
        places: Vec<u32>,
    },
    /// Row groups.
    Parquet {
        /// How columns are stored.
        stored: Vec<Stored>,
        /// The row groups.
        row_groups: Vec<RowGroup>,
    },
}

/// A table.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// Columns.
    pub fields: Vec<Field>,
    /// Rows.
    pub rows: Rows,
    /// Bytes of the file.
    pub file_bytes: u64,
}

impl Table {
    /// Of fixed-width records.
    pub fn binary(fields: Vec<Field>, file_bytes: u64) -> Result<Table, TableError> {
        let (mut at, mut named, mut places) = (0u32, Vec::new(), Vec::new());
        for field in fields {
            let width = match &field.of {
                Ok(DataType::Utf8 | DataType::Binary) => {
                    let name = field.name;
                    return Err(TableError::Schema(format!(
                        "column {name:?} of a binary file has no fixed width: say bytes[N]"
                    )));
                }
                Ok(of) => of.storage().1,
                Err(why) => return Err(TableError::Schema(why.clone())),
            };
            if field.name != "_" {
                places.push(at);
                named.push(field);
            }
            at = at.saturating_add(width);
        }
        if at > RECORD_BYTES_MAX {
            return Err(TableError::Schema(format!(
                "the records have {at} bytes, at most {RECORD_BYTES_MAX} are supported"
            )));
        }
        if !file_bytes.is_multiple_of(at.into()) {
            return Err(TableError::Length { file_bytes, record_bytes: at });
        }
        Ok(Table { fields: named, rows: Rows::Binary { record_bytes: at, places }, file_bytes })
    }

    /// Of Parquet's metadata.
    pub fn parquet(metadata: &[u8], file_bytes: u64) -> Result<Table, TableError> {
        let footer = Footer::decode(metadata, file_bytes)?;
        let rows = Rows::Parquet { stored: footer.stored, row_groups: footer.row_groups };
        Ok(Table { fields: footer.fields, rows, file_bytes })
    }

    /// Of CSV text whose first bytes are `head`; with the types of `schema` for columns that it names.
    pub fn csv(
        head: &[u8],
        file_bytes: u64,
        (delimiter, has_header): (u8, bool),
        schema: Option<Vec<Field>>,
    ) -> Result<Table, TableError> {
        let is_whole = head.len() as u64 == file_bytes;
        // A byte order mark is none of the first name.
        let mark = if head.starts_with(b"\xef\xbb\xbf") { 3 } else { 0 };
        let mut records = Vec::new();
        let mut at = mark;
        while at < head.len() && records.len() < 1000 {
            let Some((record, next)) = record(head, at, delimiter, is_whole)? else { break };
            if record.iter().any(|field| !field.is_empty()) || record.len() > 1 {
                records.push((record, next));
            }
            at = next;
        }
        let no_rows = TableError::NoRecord;
        let (names, begin) = match (has_header, records.first()) {
            (_, None) if head.is_empty() && !has_header => (Vec::new(), 0),
            (_, None) => return Err(no_rows),
            (true, Some((first, next))) => {
                (first.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect(), *next)
            }
            (false, Some((first, _))) => {
                ((0..first.len()).map(|number| format!("c{}", number + 1)).collect::<Vec<_>>(), mark)
            }
        };
        let rows = &records[usize::from(has_header).min(records.len())..];
        let mut fields = Vec::new();
        for (number, name) in names.iter().enumerate() {
            let values = || rows.iter().filter_map(|(record, _)| record.get(number)).filter(|value| !value.is_empty());
            let known = schema.iter().flatten().find(|field| field.name == *name);
            let of = match known.map(|field| field.of.clone()) {
                Some(Ok(DataType::Fixed(_) | DataType::Date | DataType::Timestamp(..))) => {
                    return Err(TableError::Schema(format!(
                        "column {name:?}: CSV has bool, int8 to int64, uint8 to uint64, float32, float64 and string (dates are text)"
                    )));
                }
                Some(of) => of,
                None => Ok(guess(values())),
            };
            fields.push(Field { name: name.clone(), of, big_endian: false, is_optional: true });
        }
        if let Some(unknown) = schema.iter().flatten().find(|field| !names.contains(&field.name)) {
            let known = names.join(", ");
            return Err(TableError::Schema(format!("the file has no column {:?}; there are: {known}", unknown.name)));
        }
        let places = (0..fields.len() as u32).collect();
        Ok(Table { fields, rows: Rows::Csv { delimiter, begin: begin as u64, places }, file_bytes })
    }

    /// Its format.
    pub fn format(&self) -> FileFormat {
        match self.rows {
            Rows::Binary { .. } => FileFormat::Binary,
            Rows::Csv { .. } => FileFormat::Csv,
            Rows::Parquet { .. } => FileFormat::Parquet,
        }
    }
}

/// What values are: the first type that all of them have.
fn guess<'a>(values: impl Iterator<Item = &'a Vec<u8>> + Clone) -> DataType {
    let all = |is: &dyn Fn(&str) -> bool| values.clone().all(|value| std::str::from_utf8(value).is_ok_and(is));
    if values.clone().next().is_none() {
        DataType::Utf8
    } else if all(&|value| value.parse::<i64>().is_ok()) {
        DataType::Int(64)
    } else if all(&|value| value.parse::<f64>().is_ok()) {
        DataType::Float(64)
    } else if all(&|value| matches!(value, "true" | "false" | "True" | "False" | "TRUE" | "FALSE")) {
        DataType::Bool
    } else {
        DataType::Utf8
    }
}

type Record = (Vec<Vec<u8>>, usize);

/// The record at a byte, and where the next one begins; `None` where it is not whole.
fn record(text: &[u8], mut at: usize, delimiter: u8, is_whole: bool) -> Result<Option<Record>, TableError> {
    let mut fields = vec![Vec::new()];
    let mut quoted = false;
    // Whether the field at hand began with a quote, and has ended with one.
    let (mut opened, mut closed) = (false, false);
    while let Some(byte) = text.get(at) {
        let Some(field) = fields.last_mut() else { break };
        match *byte {
            b'"' if quoted && text.get(at + 1) == Some(&b'"') => {
                field.push(b'"');
                at += 1;
            }
            b'"' if quoted => (quoted, closed) = (false, true),
            b'"' if field.is_empty() && !opened => (quoted, opened) = (true, true),
            b'"' => return Err(TableError::Quote(at)),
            byte if quoted => field.push(byte),
            b'\n' => {
                if field.last() == Some(&b'\r') && !closed {
                    field.pop();
                }
                return Ok(Some((fields, at + 1)));
            }
            byte if byte == delimiter => {
                fields.push(Vec::new());
                (opened, closed) = (false, false);
            }
            b'\r' if text.get(at + 1) == Some(&b'\n') => {}
            _ if closed => return Err(TableError::Quote(at)),
            byte => field.push(byte),
        }
        at += 1;
    }
    if is_whole && quoted {
        return Err(TableError::Quote(at));
    }
    Ok(is_whole.then_some((fields, at)))
}
