//! Arrow IPC: a stream, or a file, of record batches, as pyarrow, polars and DuckDB read them (Arrow columnar format 1.4, metadata version 5).
//!
//! ```text
//! message    FFFFFFFFh, u32 bytes of the metadata with padding, the metadata (a FlatBuffer), the body: buffers, each padded to 8 bytes
//! stream     schema message, record batch messages, FFFFFFFFh, 0
//! file       "ARROW1", 2 zeroes, the stream, a footer (a FlatBuffer), u32 its bytes, "ARROW1"
//! ```
//!
//! What always holds: offsets of variable values fit 32 bits: a batch ends before they would not.

use std::io::{self, Write};

use columns_spu::value::Scalar;

use crate::outcome::Row;
use crate::schema::{DataType, Field, TimeUnit};

/// Rows of a batch.
const BATCH_ROWS: usize = 64 << 10;
/// Bytes of a batch's variable values.
const BATCH_BYTES: usize = 64 << 20;
/// Metadata version 5.
const VERSION: i16 = 4;
const MAGIC: &[u8] = b"ARROW1";

/// A value in a FlatBuffer's table.
enum Flat {
    Byte(u8),
    Short(i16),
    Int(i32),
    Long(i64),
    Table(Vec<Option<Flat>>),
    Text(String),
    Tables(Vec<Flat>),
    /// Structs of eight-byte alignment: their bytes, and how many there are.
    Structs(Vec<u8>, u32),
}

impl Flat {
    fn inline_bytes(&self) -> usize {
        match self {
            Flat::Byte(_) => 1,
            Flat::Short(_) => 2,
            Flat::Long(_) => 8,
            _ => 4,
        }
    }

    /// Appends it at a place of its own; the place that offsets refer to.
    fn write(&self, out: &mut Vec<u8>) -> usize {
        let pad = |out: &mut Vec<u8>, to: usize, before: usize| {
            while !(out.len() + before).is_multiple_of(to) {
                out.push(0);
            }
        };
        match self {
            Flat::Table(fields) => {
                // Places of the fields behind the four bytes that lead to the table of places.
                let (mut at, mut places) = (4usize, Vec::new());
                for field in fields {
                    places.push(field.as_ref().map(|field| {
                        at = at.next_multiple_of(field.inline_bytes());
                        at += field.inline_bytes();
                        at - field.inline_bytes()
                    }));
                }
                let leading = 4 + 2 * fields.len();
                pad(out, 8, leading);
                let first = out.len();
                out.extend_from_slice(&(leading as u16).to_le_bytes());
                out.extend_from_slice(&(at as u16).to_le_bytes());
                for place in &places {
                    out.extend_from_slice(&(place.unwrap_or(0) as u16).to_le_bytes());
                }
                let table = out.len();
                out.extend_from_slice(&((table - first) as i32).to_le_bytes());
                out.resize(table + at, 0);
                for (field, place) in fields.iter().zip(places) {
                    let (Some(field), Some(place)) = (field, place) else { continue };
                    let place = table + place;
                    match field {
                        Flat::Byte(value) => out[place] = *value,
                        Flat::Short(value) => out[place..place + 2].copy_from_slice(&value.to_le_bytes()),
                        Flat::Int(value) => out[place..place + 4].copy_from_slice(&value.to_le_bytes()),
                        Flat::Long(value) => out[place..place + 8].copy_from_slice(&value.to_le_bytes()),
                        other => {
                            let target = other.write(out);
                            out[place..place + 4].copy_from_slice(&((target - place) as u32).to_le_bytes());
                        }
                    }
                }
                table
            }
            Flat::Text(text) => {
                pad(out, 4, 0);
                let place = out.len();
                out.extend_from_slice(&(text.len() as u32).to_le_bytes());
                out.extend_from_slice(text.as_bytes());
                out.push(0);
                place
            }
            Flat::Tables(tables) => {
                pad(out, 4, 0);
                let place = out.len();
                out.extend_from_slice(&(tables.len() as u32).to_le_bytes());
                out.resize(out.len() + 4 * tables.len(), 0);
                for (number, table) in tables.iter().enumerate() {
                    let target = table.write(out);
                    let entry = place + 4 + 4 * number;
                    out[entry..entry + 4].copy_from_slice(&((target - entry) as u32).to_le_bytes());
                }
                place
            }
            Flat::Structs(bytes, count) => {
                pad(out, 8, 4);
                let place = out.len();
                out.extend_from_slice(&count.to_le_bytes());
                out.extend_from_slice(bytes);
                place
            }
            _ => out.len(),
        }
    }

    /// A FlatBuffer with this table as its root, padded to eight bytes.
    fn finish(&self) -> Vec<u8> {
        let mut out = vec![0; 4];
        let root = self.write(&mut out);
        out[..4].copy_from_slice(&(root as u32).to_le_bytes());
        out.resize(out.len().next_multiple_of(8), 0);
        out
    }
}

fn table(fields: impl IntoIterator<Item = Flat>) -> Flat {
    Flat::Table(fields.into_iter().map(Some).collect())
}

fn field(of: &Field) -> Flat {
    let data_type = of.of.clone().unwrap_or(DataType::Binary);
    let integer = |bits: u32, is_signed: bool| (2, table([Flat::Int(bits as i32), Flat::Byte(is_signed.into())]));
    let (number, detail) = match data_type {
        DataType::Bool => (6, table([])),
        DataType::Int(bits) => integer(bits, true),
        DataType::Unsigned(bits) => integer(bits, false),
        DataType::Float(bits) => (3, table([Flat::Short(if bits == 32 { 1 } else { 2 })])),
        DataType::Utf8 => (5, table([])),
        DataType::Binary => (4, table([])),
        DataType::Fixed(bytes) => (15, table([Flat::Int(bytes as i32)])),
        DataType::Date => (8, table([Flat::Short(0)])),
        DataType::Timestamp(unit, is_utc) => {
            let unit = Flat::Short(match unit {
                TimeUnit::Milli => 1,
                TimeUnit::Micro => 2,
                TimeUnit::Nano => 3,
            });
            (10, if is_utc { table([unit, Flat::Text("UTC".to_owned())]) } else { table([unit]) })
        }
    };
    Flat::Table(vec![
        Some(Flat::Text(of.name.clone())),
        Some(Flat::Byte(of.is_optional.into())),
        Some(Flat::Byte(number)),
        Some(detail),
        None,
        Some(Flat::Tables(Vec::new())),
    ])
}

fn schema(fields: &[Field]) -> Flat {
    table([Flat::Short(0), Flat::Tables(fields.iter().map(field).collect())])
}

/// Values of a column of the batch at hand.
#[derive(Default)]
struct Column {
    valid: Vec<u8>,
    nulls: u64,
    /// Offsets of variable values, u32 each.
    offsets: Vec<u8>,
    data: Vec<u8>,
}

fn set_bit(bits: &mut Vec<u8>, place: usize, value: bool) {
    bits.resize((place / 8 + 1).max(bits.len()), 0);
    bits[place / 8] |= u8::from(value) << (place % 8);
}

impl Column {
    fn push(&mut self, of: DataType, row: usize, value: Option<&Scalar>) {
        set_bit(&mut self.valid, row, value.is_some());
        self.nulls += u64::from(value.is_none());
        let bytes = match of {
            DataType::Bool => 0,
            DataType::Fixed(bytes) => bytes as usize,
            DataType::Utf8 | DataType::Binary => 0,
            other => other.bits() as usize / 8,
        };
        if of == DataType::Bool {
            set_bit(&mut self.data, row, value == Some(&Scalar::Bool(true)));
            return;
        }
        match value {
            None => self.data.resize(self.data.len() + bytes, 0),
            Some(Scalar::Bool(_)) => {}
            Some(Scalar::Int(value)) => self.data.extend_from_slice(&value.to_le_bytes()[..bytes.min(8)]),
            Some(Scalar::Unsigned(value)) => self.data.extend_from_slice(&value.to_le_bytes()[..bytes.min(8)]),
            Some(Scalar::Float(value)) if bytes == 4 => self.data.extend_from_slice(&(*value as f32).to_le_bytes()),
            Some(Scalar::Float(value)) => self.data.extend_from_slice(&value.to_le_bytes()),
            Some(Scalar::Bytes(value)) => self.data.extend_from_slice(value),
        }
        if matches!(of, DataType::Utf8 | DataType::Binary) {
            self.offsets.extend_from_slice(&(self.data.len() as u32).to_le_bytes());
        }
    }
}

/// Writes a stream or a file.
pub struct ArrowWriter<W: Write> {
    out: W,
    fields: Vec<Field>,
    is_file: bool,
    columns: Vec<Column>,
    rows: usize,
    written: u64,
    /// Offset, bytes of metadata with their head, and of the body, of each batch.
    blocks: Vec<(u64, u32, u64)>,
}

impl<W: Write> ArrowWriter<W> {
    /// Of columns with supported types; begins with their schema.
    pub fn new(out: W, fields: &[&Field], is_file: bool) -> io::Result<Self> {
        let fields: Vec<Field> = fields.iter().map(|field| (*field).clone()).collect();
        let mut writer =
            ArrowWriter { out, fields, is_file, columns: Vec::new(), rows: 0, written: 0, blocks: Vec::new() };
        if is_file {
            writer.write(MAGIC)?;
            writer.write(&[0; 2])?;
        }
        let schema = schema(&writer.fields);
        writer.message(1, schema, &[])?;
        writer.start();
        Ok(writer)
    }

    fn start(&mut self) {
        let column = |field: &Field| {
            let mut column = Column::default();
            if matches!(field.of, Ok(DataType::Utf8 | DataType::Binary)) {
                column.offsets.extend_from_slice(&[0; 4]);
            }
            column
        };
        self.columns = self.fields.iter().map(column).collect();
        self.rows = 0;
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.written += bytes.len() as u64;
        self.out.write_all(bytes)
    }

    fn message(&mut self, kind: u8, header: Flat, body: &[u8]) -> io::Result<u32> {
        let message = table([Flat::Short(VERSION), Flat::Byte(kind), header, Flat::Long(body.len() as i64)]).finish();
        self.write(&[0xff; 4])?;
        self.write(&(message.len() as u32).to_le_bytes())?;
        self.write(&message)?;
        self.write(body)?;
        Ok(message.len() as u32 + 8)
    }

    /// Appends a row.
    pub fn row(&mut self, row: &Row) -> io::Result<()> {
        for ((column, field), value) in self.columns.iter_mut().zip(&self.fields).zip(row) {
            column.push(field.of.clone().unwrap_or(DataType::Binary), self.rows, value.as_ref());
        }
        self.rows += 1;
        let is_full = self.columns.iter().any(|column| column.data.len() >= BATCH_BYTES);
        if self.rows >= BATCH_ROWS || is_full { self.batch() } else { Ok(()) }
    }

    fn batch(&mut self) -> io::Result<()> {
        let (mut body, mut nodes, mut buffers) = (Vec::new(), Vec::new(), Vec::new());
        let mut count = 0;
        let mut buffer = |bytes: &[u8], body: &mut Vec<u8>| {
            buffers.extend_from_slice(&(body.len() as i64).to_le_bytes());
            buffers.extend_from_slice(&(bytes.len() as i64).to_le_bytes());
            body.extend_from_slice(bytes);
            body.resize(body.len().next_multiple_of(8), 0);
            count += 1;
        };
        for (column, field) in self.columns.iter().zip(&self.fields) {
            nodes.extend_from_slice(&(self.rows as i64).to_le_bytes());
            nodes.extend_from_slice(&(column.nulls as i64).to_le_bytes());
            buffer(if column.nulls > 0 { &column.valid } else { &[] }, &mut body);
            if matches!(field.of, Ok(DataType::Utf8 | DataType::Binary)) {
                buffer(&column.offsets, &mut body);
            }
            buffer(&column.data, &mut body);
        }
        let columns = self.fields.len() as u32;
        let header =
            table([Flat::Long(self.rows as i64), Flat::Structs(nodes, columns), Flat::Structs(buffers, count)]);
        let offset = self.written;
        let metadata = self.message(3, header, &body)?;
        self.blocks.push((offset, metadata, body.len() as u64));
        self.start();
        Ok(())
    }

    /// Ends it; hands back what it was written to.
    pub fn finish(mut self) -> io::Result<W> {
        if self.rows > 0 {
            self.batch()?;
        }
        self.write(&[0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0])?;
        if self.is_file {
            let mut blocks = Vec::new();
            for (offset, metadata, body) in &self.blocks {
                blocks.extend_from_slice(&offset.to_le_bytes());
                blocks.extend_from_slice(&metadata.to_le_bytes());
                blocks.extend_from_slice(&[0; 4]);
                blocks.extend_from_slice(&body.to_le_bytes());
            }
            let count = self.blocks.len() as u32;
            let footer = table([
                Flat::Short(VERSION),
                schema(&self.fields),
                Flat::Structs(Vec::new(), 0),
                Flat::Structs(blocks, count),
            ])
            .finish();
            self.write(&footer)?;
            self.write(&(footer.len() as u32).to_le_bytes())?;
            self.write(MAGIC)?;
        }
        self.out.flush()?;
        Ok(self.out)
    }
}
