//! The app's requests on the wire, little-endian. Shared by the handlers and the host library.
//!
//! ```text
//! prepare   a plan, as `Plan::encode` writes it; the result is its number
//! run       u32 plan, u32 flags, u64 begin, u64 end: bytes of the file, or rows of the row group
//! reply     u64 where to go on, u64 rows looked at, u64 rows selected, u32 bytes behind this head, u32 1 where the range is done; the sink's part
//! touch     u64 bank address: waits until the process may read there
//! release   u32 plan
//! ```
//!
//! What always holds: a plan that decodes is within its bounds; nothing behind `Plan::decode` checks them again.

use alloc::vec::Vec;

use crate::predicate::Node;
use crate::value::{Kind, Scalar};

/// Handler numbers.
pub mod handler {
    /// Keeps a plan; the result is its number, for the same process on the same SPU.
    pub const PREPARE: u8 = 1;
    /// Runs a plan over a range of the file.
    pub const RUN: u8 = 2;
    /// Gives a plan up.
    pub const RELEASE: u8 = 3;
    /// Has the agent asked for a permission that is missing on this SPU.
    pub const TOUCH: u8 = 4;
}

/// Version of plans.
const VERSION: u32 = 1;

/// Status: the media failed.
pub const STATUS_MEDIA_ERROR: u32 = 2;
/// Status: an address past the bank.
pub const STATUS_RANGE: u32 = 4;
/// Status: the process has no permission there (now: ask by [`handler::TOUCH`]).
pub const STATUS_PERMISSION: u32 = 5;
/// Status: arguments that make no sense.
pub const STATUS_MALFORMED: u32 = 6;
/// Status: there is no such plan of this process (any more): prepare it again.
pub const STATUS_NO_PLAN: u32 = 7;
/// Status: the SPU's memory does not hold what this plan needs.
pub const STATUS_NO_MEMORY: u32 = 8;
/// Status: SPU-OS has no place for what this process has asked for: try again.
pub const STATUS_BUSY: u32 = 9;
/// Status: the file breaks its format, or has something that is not supported; the result says what: [`Fault`].
pub const STATUS_FAULT: u32 = 16;

/// Most bytes of a plan.
pub const PLAN_BYTES_MAX: usize = 32 << 10;
/// Most extents of a plan.
pub const EXTENTS_MAX: usize = 1024;
/// Most columns of a plan.
pub const COLUMNS_MAX: usize = 32;
/// Most nodes of an expression.
pub const NODES_MAX: usize = 64;
/// Most edges of a histogram's bins.
pub const EDGES_MAX: usize = 257;
/// Most rows of a top-k.
pub const TOP_MAX: usize = 1024;
/// Most rows of a batch.
pub const BATCH_ROWS_MAX: usize = 1024;
/// Least bytes of a run's reply.
pub const REPLY_BYTES_MIN: usize = 16 << 10;
/// Most bytes of a run's reply.
pub const REPLY_BYTES_MAX: usize = 512 << 10;
/// Most bytes of a fixed-width record.
pub const RECORD_BYTES_MAX: u32 = 16 << 10;

/// Flag of a run: the range begins within a quoted field (CSV).
pub const RUN_QUOTED: u32 = 1;
/// Flag of a run: the range begins somewhere in a record, which is another range's (CSV).
pub const RUN_SKIP_FIRST: u32 = 2;
/// Flag of a run: only quotes are counted; the result of the reply's `selected` is how many there are (CSV).
pub const RUN_COUNT_QUOTES: u32 = 4;

/// What is wrong with a file, and in which column of the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What.
    pub reason: Reason,
    /// Number of the column in the plan.
    pub column: u8,
    /// More: the number of an encoding or a codec, or 0.
    pub detail: u16,
}

/// What is wrong with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Reason {
    /// A page's header or content ends too early, or contradicts itself.
    Malformed = 1,
    /// An encoding that is not supported; the detail is its number in Parquet.
    Encoding = 2,
    /// A page of a kind that is not supported.
    Page = 3,
    /// Compressed bytes that are none.
    Compressed = 4,
    /// A field that is no value of the column's type (CSV).
    Value = 5,
    /// A record with fewer fields than columns are wanted (CSV).
    Fields = 6,
    /// A quote where none may be (CSV).
    Quote = 7,
    /// The file ends within a record.
    Truncated = 8,
}

impl Reason {
    const ALL: [Reason; 8] = [
        Reason::Malformed,
        Reason::Encoding,
        Reason::Page,
        Reason::Compressed,
        Reason::Value,
        Reason::Fields,
        Reason::Quote,
        Reason::Truncated,
    ];
}

impl Fault {
    /// As a response's result.
    pub fn encode(&self) -> u32 {
        self.reason as u32 | u32::from(self.column) << 8 | u32::from(self.detail) << 16
    }

    /// Of a response's result.
    pub fn decode(from: u32) -> Option<Fault> {
        let reason = *Reason::ALL.iter().find(|reason| **reason as u32 == from & 255)?;
        Some(Fault { reason, column: (from >> 8) as u8, detail: (from >> 16) as u16 })
    }
}

/// How the bytes of a column are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Storage {
    /// One bit (Parquet) or one byte.
    Bool = 0,
    /// Signed or unsigned integers of 1, 2, 4 or 8 bytes, or floating point numbers of 4 or 8.
    Number = 1,
    /// So many bytes.
    Fixed = 2,
    /// A length and bytes (Parquet), or a field (CSV).
    Variable = 3,
}

/// A column of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// What its values are.
    pub kind: Kind,
    /// How they are stored.
    pub storage: Storage,
    /// Bytes of a stored value; 0 where they vary.
    pub width: u32,
    /// Binary: little-endian numbers are the rule, this says otherwise.
    pub big_endian: bool,
    /// Parquet: values may be missing.
    pub is_optional: bool,
    /// Parquet: number of the codec ([`crate::packed::codec`]).
    pub codec: u8,
    /// Binary: offset in the record; CSV: number of the field.
    pub place: u32,
    /// Parquet: first byte of the column chunk.
    pub chunk_offset: u64,
    /// Parquet: its bytes.
    pub chunk_bytes: u64,
}

/// Some bytes of the file, and where in the namespace they lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First byte in the file.
    pub file_offset: u64,
    /// First byte in the namespace.
    pub namespace_offset: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Where namespaces lie in banks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Banks {
    /// SPUs.
    pub spus: u32,
    /// Bytes of a stripe.
    pub stripe_bytes: u32,
    /// First byte of the namespace in each bank.
    pub base: u64,
}

/// The file's format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Records of a fixed number of bytes.
    Binary {
        /// Bytes.
        record_bytes: u32,
    },
    /// Text of RFC 4180.
    Csv {
        /// Between fields.
        delimiter: u8,
    },
    /// A row group of Parquet.
    Parquet,
}

/// What becomes of the rows that are selected.
#[derive(Clone, Debug, PartialEq)]
pub enum Sink {
    /// Count, sum, least and greatest of these columns.
    Aggregate(Vec<u8>),
    /// The rows themselves, of these columns.
    Rows(Vec<u8>),
    /// The rows with the greatest, or least, values of a column.
    Top {
        /// How many.
        count: u32,
        /// The column.
        by: u8,
        /// Those with the least values.
        least: bool,
        /// Columns of the rows.
        select: Vec<u8>,
    },
    /// How many values of a column lie in each bin.
    Histogram {
        /// The column.
        column: u8,
        /// Edges of the bins, ascending.
        edges: Vec<Scalar>,
    },
}

/// What to do with a file, or a part of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Format.
    pub format: Format,
    /// Rows that are looked at at once.
    pub batch_rows: u32,
    /// Length of the file.
    pub file_bytes: u64,
    /// Where the namespace lies.
    pub banks: Banks,
    /// Where the part lies, sorted and disjoint; what lies between is zeroes.
    pub extents: Vec<Extent>,
    /// Columns.
    pub columns: Vec<Column>,
    /// Which rows are selected: nodes in the order in which they are computed; none: all.
    pub nodes: Vec<Node>,
    /// What becomes of them.
    pub sink: Sink,
}

/// Takes numbers off bytes.
pub struct Taker<'a>(pub &'a [u8]);

impl<'a> Taker<'a> {
    /// So many bytes; `None` where there are fewer.
    pub fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    /// A byte.
    pub fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    /// Four bytes.
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    /// Eight bytes.
    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// Sixteen bytes.
    pub fn i128(&mut self) -> Option<i128> {
        self.array().map(i128::from_le_bytes)
    }

    /// A length and as many bytes.
    pub fn text(&mut self) -> Option<&'a [u8]> {
        let count = self.u32()? as usize;
        self.bytes(count)
    }
}

fn put_u32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_le_bytes());
}

fn put_u64(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_le_bytes());
}

fn put_list(out: &mut Vec<u8>, list: &[u8]) {
    out.push(list.len() as u8);
    out.extend_from_slice(list);
}

/// Room for as many: never more than what a plan may have.
fn room<T>(count: usize, most: usize) -> Option<Vec<T>> {
    let mut list = Vec::new();
    (count <= most && list.try_reserve_exact(count).is_ok()).then_some(list)
}

/// Numbers of columns.
fn take_list(from: &mut Taker<'_>, columns: usize) -> Option<Vec<u8>> {
    let count = usize::from(from.u8()?);
    let bytes = from.bytes(count)?;
    let mut list = room(count, COLUMNS_MAX)?;
    list.extend_from_slice(bytes);
    list.iter().all(|column| usize::from(*column) < columns).then_some(list)
}

impl Column {
    fn encode(&self, out: &mut Vec<u8>) {
        let flags = u8::from(self.is_optional) | u8::from(self.big_endian) << 1;
        out.extend_from_slice(&[self.kind as u8, self.storage as u8, flags, self.codec]);
        put_u32(out, self.width);
        put_u32(out, self.place);
        put_u64(out, self.chunk_offset);
        put_u64(out, self.chunk_bytes);
    }

    fn decode(from: &mut Taker<'_>, format: Format) -> Option<Column> {
        let kind = Kind::decode(from.u8()?)?;
        let storage = match from.u8()? {
            0 => Storage::Bool,
            1 => Storage::Number,
            2 => Storage::Fixed,
            3 => Storage::Variable,
            _ => return None,
        };
        let (flags, codec) = (from.u8()?, from.u8()?);
        let (width, place) = (from.u32()?, from.u32()?);
        let (chunk_offset, chunk_bytes) = (from.u64()?, from.u64()?);
        chunk_offset.checked_add(chunk_bytes)?;
        let is_possible = match (storage, kind) {
            (Storage::Bool, Kind::Bool) => width <= 1,
            (Storage::Number, Kind::Int | Kind::Unsigned) => matches!(width, 1 | 2 | 4 | 8),
            (Storage::Number, Kind::Float) => matches!(width, 4 | 8),
            (Storage::Fixed, Kind::Bytes) => (1..=RECORD_BYTES_MAX).contains(&width),
            (Storage::Variable, Kind::Bytes) => width == 0,
            _ => false,
        };
        let is_placed = match format {
            Format::Binary { record_bytes } => {
                storage != Storage::Variable
                    && width > 0
                    && place.checked_add(width).is_some_and(|end| end <= record_bytes)
            }
            Format::Csv { .. } => storage != Storage::Fixed,
            Format::Parquet => storage != Storage::Number || width >= 4,
        };
        let is_known = flags <= 3 && crate::packed::codec::is_known(codec) && is_possible && is_placed;
        let (is_optional, big_endian) = (flags & 1 != 0, flags & 2 != 0);
        is_known.then_some(Column {
            kind,
            storage,
            width,
            big_endian,
            is_optional,
            codec,
            place,
            chunk_offset,
            chunk_bytes,
        })
    }
}

impl Sink {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Sink::Aggregate(columns) => {
                out.push(0);
                put_list(out, columns);
            }
            Sink::Rows(columns) => {
                out.push(1);
                put_list(out, columns);
            }
            Sink::Top { count, by, least, select } => {
                out.extend_from_slice(&[2, *by, u8::from(*least)]);
                put_u32(out, *count);
                put_list(out, select);
            }
            Sink::Histogram { column, edges } => {
                out.extend_from_slice(&[3, *column]);
                put_u32(out, edges.len() as u32);
                edges.iter().for_each(|edge| edge.encode(out));
            }
        }
    }

    fn decode(from: &mut Taker<'_>, columns: &[Column]) -> Option<Sink> {
        match from.u8()? {
            0 => Some(Sink::Aggregate(take_list(from, columns.len())?)),
            1 => Some(Sink::Rows(take_list(from, columns.len())?)),
            2 => {
                let (by, least, count) = (from.u8()?, from.u8()? == 1, from.u32()?);
                columns.get(usize::from(by))?;
                let select = take_list(from, columns.len())?;
                (1..=TOP_MAX as u32).contains(&count).then_some(Sink::Top { count, by, least, select })
            }
            3 => {
                let column = from.u8()?;
                let kind = columns.get(usize::from(column))?.kind;
                let count = from.u32()? as usize;
                let mut edges = room(count, EDGES_MAX)?;
                for _ in 0..count {
                    let edge = Scalar::decode(from)?;
                    let ascends = edges.last().is_none_or(|last: &Scalar| last.is_less(&edge));
                    if edge.kind() != kind || kind == Kind::Bytes || kind == Kind::Bool || !ascends {
                        return None;
                    }
                    edges.push(edge);
                }
                (count >= 2).then_some(Sink::Histogram { column, edges })
            }
            _ => None,
        }
    }
}

impl Plan {
    /// Little-endian bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let (format, detail) = match self.format {
            Format::Binary { record_bytes } => (0, record_bytes),
            Format::Csv { delimiter } => (1, delimiter.into()),
            Format::Parquet => (2, 0),
        };
        for word in [VERSION, format, detail, self.batch_rows, self.banks.spus, self.banks.stripe_bytes] {
            put_u32(&mut out, word);
        }
        put_u64(&mut out, self.file_bytes);
        put_u64(&mut out, self.banks.base);
        for count in [self.extents.len(), self.columns.len(), self.nodes.len()] {
            put_u32(&mut out, count as u32);
        }
        for extent in &self.extents {
            put_u64(&mut out, extent.file_offset);
            put_u64(&mut out, extent.namespace_offset);
            put_u64(&mut out, extent.bytes);
        }
        self.columns.iter().for_each(|column| column.encode(&mut out));
        self.nodes.iter().for_each(|node| node.encode(&mut out));
        self.sink.encode(&mut out);
        out
    }

    /// Of bytes; `None` where they are no plan, or one past the bounds.
    pub fn decode(from: &[u8]) -> Option<Plan> {
        let from = &mut Taker(from);
        if from.u32()? != VERSION {
            return None;
        }
        let format = match (from.u32()?, from.u32()?) {
            (0, record_bytes @ 1..=RECORD_BYTES_MAX) => Format::Binary { record_bytes },
            (1, delimiter @ 1..=255) if !matches!(delimiter as u8, b'"' | b'\n' | b'\r') => {
                Format::Csv { delimiter: delimiter as u8 }
            }
            (2, 0) => Format::Parquet,
            _ => return None,
        };
        let batch_rows = from.u32()?;
        let (spus, stripe_bytes) = (from.u32()?, from.u32()?);
        let (file_bytes, base) = (from.u64()?, from.u64()?);
        let counts = [from.u32()? as usize, from.u32()? as usize, from.u32()? as usize];
        if spus == 0 || stripe_bytes == 0 || !(1..=BATCH_ROWS_MAX as u32).contains(&batch_rows) {
            return None;
        }
        let mut extents: Vec<Extent> = room(counts[0], EXTENTS_MAX)?;
        for _ in 0..counts[0] {
            let extent = Extent { file_offset: from.u64()?, namespace_offset: from.u64()?, bytes: from.u64()? };
            let end = extent.file_offset.checked_add(extent.bytes);
            extent.namespace_offset.checked_add(extent.bytes)?;
            let follows = extents.last().is_none_or(|last| last.file_offset + last.bytes <= extent.file_offset);
            if end.is_none() || !follows || extent.bytes == 0 {
                return None;
            }
            extents.push(extent);
        }
        let mut columns = room(counts[1], COLUMNS_MAX)?;
        for _ in 0..counts[1] {
            columns.push(Column::decode(from, format)?);
        }
        let mut nodes = room(counts[2], NODES_MAX)?;
        for _ in 0..counts[2] {
            nodes.push(Node::decode(from)?);
        }
        if !crate::predicate::is_sound(&nodes, &columns) {
            return None;
        }
        let sink = Sink::decode(from, &columns)?;
        let banks = Banks { spus, stripe_bytes, base };
        let plan = Plan { format, batch_rows, file_bytes, banks, extents, columns, nodes, sink };
        from.0.is_empty().then_some(plan)
    }
}

/// What to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The plan's number.
    pub plan: u32,
    /// `RUN_*`.
    pub flags: u32,
    /// First byte of the file, or row of the row group.
    pub begin: u64,
    /// One past the last at which a record may begin.
    pub end: u64,
}

impl Run {
    /// Encoded length: as much as a call over NVMe has room for beside a reply.
    pub const BYTES: usize = 24;

    /// Little-endian bytes.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[0..4].copy_from_slice(&self.plan.to_le_bytes());
        out[4..8].copy_from_slice(&self.flags.to_le_bytes());
        out[8..16].copy_from_slice(&self.begin.to_le_bytes());
        out[16..24].copy_from_slice(&self.end.to_le_bytes());
        out
    }

    /// From [`Self::BYTES`] bytes; `None` where the range or the flags are none.
    pub fn decode(from: &[u8; Self::BYTES]) -> Option<Run> {
        let mut from = Taker(from);
        let run = Run { plan: from.u32()?, flags: from.u32()?, begin: from.u64()?, end: from.u64()? };
        (run.flags <= 7 && run.begin <= run.end).then_some(run)
    }
}

/// The head of a run's reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplyHead {
    /// Where to go on.
    pub next: u64,
    /// Rows that were looked at.
    pub rows: u64,
    /// Rows that were selected.
    pub selected: u64,
    /// Bytes behind this head.
    pub bytes: u32,
    /// True where the range is at its end.
    pub is_done: bool,
}

impl ReplyHead {
    /// Encoded length.
    pub const BYTES: usize = 32;

    /// Little-endian bytes.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[0..8].copy_from_slice(&self.next.to_le_bytes());
        out[8..16].copy_from_slice(&self.rows.to_le_bytes());
        out[16..24].copy_from_slice(&self.selected.to_le_bytes());
        out[24..28].copy_from_slice(&self.bytes.to_le_bytes());
        out[28..32].copy_from_slice(&u32::from(self.is_done).to_le_bytes());
        out
    }

    /// Of a reply; `None` where it is none.
    pub fn take(from: &mut Taker<'_>) -> Option<ReplyHead> {
        let (next, rows, selected) = (from.u64()?, from.u64()?, from.u64()?);
        let (bytes, is_done) = (from.u32()?, from.u32()?);
        (is_done <= 1).then_some(ReplyHead { next, rows, selected, bytes, is_done: is_done == 1 })
    }
}
