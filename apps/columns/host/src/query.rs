//! What is asked of a table, as plans: one for each part of the file, to be run over a range.
//!
//! What always holds: parts follow one another in the file, and each row is in one; row groups that statistics exclude are left out, and rows of pages that their index excludes.

use base_io_host::Geometry;
use columns_spu::packed::codec::{is_for_spus, is_known};
use columns_spu::predicate::Node;
use columns_spu::value::{Kind, Scalar};
use columns_spu::wire::{
    BATCH_ROWS_MAX, Banks, COLUMNS_MAX, Column, EDGES_MAX, EXTENTS_MAX, Extent, Format, Plan, RUN_SKIP_FIRST, Sink,
    TOP_MAX,
};
use direct_io_host::FileExtent;

use crate::expression::{self, ExpressionError, edge, find, place};
use crate::pages::{self, IndexPlace};
use crate::schema::{DataType, Field};
use crate::table::{Rows, Table};

/// Bytes of a binary or CSV file in a part.
pub const PART_BYTES: u64 = 2 << 20;
/// Rows of a row group in a part.
pub const PART_ROWS: u64 = 256 << 10;
/// What a record may reach into the next part.
const BEHIND_BYTES: u64 = 1 << 20;

/// Why a query cannot be.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum QueryError {
    /// An expression, or a column.
    #[error(transparent)]
    Expression(#[from] ExpressionError),
    /// A column's codec.
    #[error("column {name:?}: its codec {codec} is not supported: uncompressed, snappy and zstd are")]
    Codec {
        /// The column.
        name: String,
        /// The codec.
        codec: &'static str,
    },
    /// The number of rows.
    #[error("--top takes 1 to {TOP_MAX} rows")]
    Top,
    /// Bins.
    #[error("column {name:?}: {why}")]
    Bins {
        /// The column.
        name: String,
        /// Why.
        why: String,
    },
    /// Too many columns.
    #[error("at most {COLUMNS_MAX} columns are supported at once")]
    Columns,
}

/// What is wanted of the selected rows.
#[derive(Clone, Debug, PartialEq)]
pub enum Wanted {
    /// Count, sum, least and greatest of columns.
    Aggregate(Vec<String>),
    /// Columns of them; none: all that are supported.
    Rows(Vec<String>),
    /// Columns of those with the greatest or least values.
    Top {
        /// How many.
        count: u32,
        /// By this column.
        by: String,
        /// The least.
        least: bool,
        /// Columns; none: all that are supported.
        select: Vec<String>,
    },
    /// A column's values by bins with these edges.
    Histogram {
        /// The column.
        column: String,
        /// Edges.
        edges: Vec<Scalar>,
    },
}

/// A query of a table.
#[derive(Clone, Debug, PartialEq)]
pub struct Query {
    /// Columns of the table that are used, by their number in plans.
    columns: Vec<usize>,
    nodes: Vec<Node>,
    sink: Sink,
}

/// A part of the file, and what to run over it.
#[derive(Clone, Debug, PartialEq)]
pub struct Unit {
    /// Columns.
    pub columns: Vec<Column>,
    /// `RUN_*`.
    pub flags: u32,
    /// First byte or row.
    pub begin: u64,
    /// One past the last at which a row may begin.
    pub end: u64,
}

impl Unit {
    /// True where SPUs decompress all that it reads.
    pub fn is_for_spus(&self) -> bool {
        self.columns.iter().all(|column| is_for_spus(column.codec))
    }
}

fn numbers(fields: &[Field], names: &[String], columns: &mut Vec<usize>) -> Result<Vec<u8>, QueryError> {
    let of = |name: &String| Ok(place(columns, find(fields, name)?)?);
    names.iter().map(of).collect()
}

impl Query {
    /// Of what is wanted, and which rows.
    pub fn new(table: &Table, condition: Option<&str>, wanted: &Wanted) -> Result<Query, QueryError> {
        let fields = &table.fields;
        let mut columns = Vec::new();
        let nodes = match condition {
            Some(text) => expression::parse(text, fields, &mut columns)?,
            None => Vec::new(),
        };
        let all = |select: &[String]| match select {
            [] => fields.iter().filter(|field| field.of.is_ok()).map(|field| field.name.clone()).collect(),
            some => some.to_vec(),
        };
        let sink = match wanted {
            Wanted::Aggregate(names) => Sink::Aggregate(numbers(fields, names, &mut columns)?),
            Wanted::Rows(select) => Sink::Rows(numbers(fields, &all(select), &mut columns)?),
            Wanted::Top { count, by, least, select } => {
                if !(1..=TOP_MAX as u32).contains(count) {
                    return Err(QueryError::Top);
                }
                let by = place(&mut columns, find(fields, by)?)?;
                Sink::Top { count: *count, by, least: *least, select: numbers(fields, &all(select), &mut columns)? }
            }
            Wanted::Histogram { column: name, edges } => {
                let number = find(fields, name)?;
                let of = fields[number].of.clone().map_err(|why| QueryError::Bins { name: name.clone(), why })?;
                let ascends = edges.windows(2).all(|pair| pair[0].is_less(&pair[1]));
                if !(2..=EDGES_MAX).contains(&edges.len())
                    || !ascends
                    || edges.iter().any(|edge| edge.kind() != of.kind())
                {
                    let why = format!(
                        "bins need 2 to {EDGES_MAX} edges that ascend, and a column of numbers, dates or timestamps"
                    );
                    return Err(QueryError::Bins { name: name.clone(), why });
                }
                Sink::Histogram { column: place(&mut columns, number)?, edges: edges.clone() }
            }
        };
        if let Rows::Parquet { row_groups, .. } = &table.rows {
            for column in &columns {
                let codecs = row_groups.iter().map(|group| group.chunks[*column].codec);
                if let Some(codec) = codecs.into_iter().find(|codec| !u8::try_from(*codec).is_ok_and(is_known)) {
                    let codec = match codec {
                        2 => "gzip",
                        3 => "lzo",
                        4 => "brotli",
                        5 => "lz4",
                        7 => "lz4_raw",
                        _ => "of an unknown number",
                    };
                    return Err(QueryError::Codec { name: fields[*column].name.clone(), codec });
                }
            }
        }
        Ok(Query { columns, nodes, sink })
    }

    /// Equal bins from the least to the greatest value of a column, as many as are wanted.
    pub fn equal_bins(of: DataType, (least, greatest): (&Scalar, &Scalar), bins: usize) -> Result<Vec<Scalar>, String> {
        let bins = bins.clamp(1, EDGES_MAX - 1);
        let edges: Vec<Scalar> = match (least, greatest) {
            (Scalar::Float(least), Scalar::Float(greatest)) => {
                if !least.is_finite() || !greatest.is_finite() {
                    return Err("its values are not finite: name --edges".to_owned());
                }
                let greatest = if least == greatest { least + 1.0 } else { *greatest };
                let at = |number: usize| {
                    let part = number as f64 / bins as f64;
                    if number == bins { greatest } else { least * (1.0 - part) + greatest * part }
                };
                (0..=bins).map(|number| Scalar::Float(at(number))).collect()
            }
            (Scalar::Int(least), Scalar::Int(greatest)) => {
                let (least, width) = (i128::from(*least), i128::from(*greatest) - i128::from(*least));
                // Fewer where there are fewer integers.
                let bins = (bins as i128).min(width.max(1));
                let at = |number: i128| least + width.max(1) * number / bins;
                (0..=bins)
                    .map(|number| i64::try_from(at(number)).map(Scalar::Int))
                    .collect::<Result<_, _>>()
                    .unwrap_or_default()
            }
            (Scalar::Unsigned(least), Scalar::Unsigned(greatest)) => {
                let (least, width) = (i128::from(*least), i128::from(*greatest) - i128::from(*least));
                let bins = (bins as i128).min(width.max(1));
                let at = |number: i128| least + width.max(1) * number / bins;
                (0..=bins)
                    .map(|number| u64::try_from(at(number)).map(Scalar::Unsigned))
                    .collect::<Result<_, _>>()
                    .unwrap_or_default()
            }
            _ => return Err(format!("{of} has no bins")),
        };
        let ascends = edges.len() >= 2 && edges.windows(2).all(|pair| pair[0].is_less(&pair[1]));
        if ascends { Ok(edges) } else { Err("its values are too close together for so many bins".to_owned()) }
    }

    /// Edges as they are written.
    pub fn edges(table: &Table, name: &str, text: &str) -> Result<Vec<Scalar>, QueryError> {
        let number = find(&table.fields, name)?;
        let bins = |why: String| QueryError::Bins { name: name.to_owned(), why };
        let of = table.fields[number].of.clone().map_err(bins)?;
        let one = |text: &str| edge(of, text.trim()).ok_or_else(|| bins(format!("the edge {text:?} is no {of}")));
        text.split(',').map(one).collect()
    }

    /// What becomes of the rows.
    pub fn sink(&self) -> &Sink {
        &self.sink
    }

    /// How many columns plans have.
    pub fn columns(&self) -> usize {
        self.columns.len()
    }

    /// A column of a plan, as the table has it.
    pub fn field<'a>(&self, table: &'a Table, column: u8) -> &'a Field {
        &table.fields[self.columns[usize::from(column)]]
    }

    /// Kind of a plan's column.
    pub fn kind(&self, table: &Table, column: u8) -> Kind {
        self.field(table, column).of.as_ref().map_or(Kind::Bytes, |of| of.kind())
    }

    /// The columns of rows that are sent.
    pub fn selected<'a>(&self, table: &'a Table) -> Vec<&'a Field> {
        let (Sink::Rows(select) | Sink::Top { select, .. }) = &self.sink else { return Vec::new() };
        select.iter().map(|column| self.field(table, *column)).collect()
    }

    /// Page indexes that tell which rows an expression excludes: row group, the table's column, and where they lie. Of row groups that statistics exclude, and of
    /// columns that are not compared, there are none.
    pub fn indexes(&self, table: &Table) -> Vec<(usize, usize, IndexPlace)> {
        let Rows::Parquet { row_groups, .. } = &table.rows else { return Vec::new() };
        let (mut indexes, mut bytes) = (Vec::new(), 0);
        for (number, group) in row_groups.iter().enumerate() {
            let chunk = |column: u8| &group.chunks[self.columns[usize::from(column)]];
            let known = |column: u8| (chunk(column).extremes.clone(), chunk(column).nulls);
            if !expression::may_select(&self.nodes, known) {
                continue;
            }
            for column in pages::compared(&self.nodes) {
                let index = &chunk(column).index;
                bytes += index.bytes();
                if bytes > pages::INDEXES_BYTES_MAX {
                    return indexes;
                }
                if index.is_readable() {
                    indexes.push((number, self.columns[usize::from(column)], index.clone()));
                }
            }
        }
        indexes
    }

    /// The parts of the file.
    pub fn units(&self, table: &Table) -> Vec<Unit> {
        let fields = self.columns.iter().map(|column| (*column, &table.fields[*column]));
        let column = |number: usize, field: &Field, places: &[u32]| {
            let of = field.of.clone().unwrap_or(DataType::Binary);
            let (storage, width) = of.storage();
            Column {
                kind: of.kind(),
                storage,
                width,
                big_endian: field.big_endian,
                is_optional: false,
                codec: 0,
                place: places[number],
                chunk_offset: 0,
                chunk_bytes: 0,
            }
        };
        let mut units = Vec::new();
        match &table.rows {
            Rows::Binary { record_bytes, places } => {
                let columns: Vec<Column> = fields.map(|(number, field)| column(number, field, places)).collect();
                let record = u64::from(*record_bytes);
                let bytes = (PART_BYTES / record).max(1) * record;
                for begin in (0..table.file_bytes).step_by(bytes as usize) {
                    let end = (begin + bytes).min(table.file_bytes);
                    units.push(Unit { columns: columns.clone(), flags: 0, begin, end });
                }
            }
            Rows::Csv { begin: first, places, .. } => {
                let columns: Vec<Column> = fields.map(|(number, field)| column(number, field, places)).collect();
                let mut begin = *first;
                while begin < table.file_bytes {
                    let end = (begin + PART_BYTES).min(table.file_bytes);
                    // The byte before says whether a record begins here.
                    let (begin_at, flags) = if begin == *first { (begin, 0) } else { (begin - 1, RUN_SKIP_FIRST) };
                    units.push(Unit { columns: columns.clone(), flags, begin: begin_at, end });
                    begin = end;
                }
            }
            Rows::Parquet { stored, row_groups } => {
                for group in row_groups {
                    let known = |column: u8| {
                        let chunk = &group.chunks[self.columns[usize::from(column)]];
                        (chunk.extremes.clone(), chunk.nulls)
                    };
                    if !expression::may_select(&self.nodes, known) {
                        continue;
                    }
                    let pages = |column: u8| {
                        let pages = &group.chunks[self.columns[usize::from(column)]].pages;
                        (!pages.is_empty()).then_some(&pages[..])
                    };
                    let columns: Vec<Column> = fields
                        .clone()
                        .map(|(number, field)| {
                            let (stored, chunk) = (&stored[number], &group.chunks[number]);
                            Column {
                                kind: field.of.as_ref().map_or(Kind::Bytes, |of| of.kind()),
                                storage: stored.storage,
                                width: stored.width,
                                big_endian: false,
                                is_optional: field.is_optional,
                                codec: chunk.codec as u8,
                                place: 0,
                                chunk_offset: chunk.offset,
                                chunk_bytes: chunk.bytes,
                            }
                        })
                        .collect();
                    for range in pages::ranges(&self.nodes, group.rows, pages, known) {
                        let mut begin = range.start;
                        while begin < range.end {
                            let end = (begin + PART_ROWS).min(range.end);
                            units.push(Unit { columns: columns.clone(), flags: 0, begin, end });
                            begin = end;
                        }
                    }
                }
            }
        }
        units
    }

    /// The plan of a part; `None` where the file lies in too many pieces for one.
    pub fn plan(&self, table: &Table, unit: &Unit, geometry: Geometry, extents: &[FileExtent]) -> Option<Plan> {
        let format = match &table.rows {
            Rows::Binary { record_bytes, .. } => Format::Binary { record_bytes: *record_bytes },
            Rows::Csv { delimiter, .. } => Format::Csv { delimiter: *delimiter },
            Rows::Parquet { .. } => Format::Parquet,
        };
        let mut ranges: Vec<(u64, u64)> = match &table.rows {
            Rows::Parquet { .. } => {
                unit.columns.iter().map(|it| (it.chunk_offset, it.chunk_offset + it.chunk_bytes)).collect()
            }
            _ => vec![(unit.begin, unit.end.saturating_add(BEHIND_BYTES))],
        };
        ranges.sort_unstable();
        let mut cut: Vec<Extent> = Vec::new();
        for (begin, end) in ranges {
            let first = extents.partition_point(|extent| extent.file_end() <= begin);
            for extent in extents[first..].iter().take_while(|extent| extent.file_offset < end) {
                // Chunks may overlap in a file that lies: what is there twice is one.
                let known = cut.last().map_or(0, |last| last.file_offset + last.bytes);
                let from = extent.file_offset.max(begin).max(known);
                let until = extent.file_end().min(end);
                if from >= until {
                    continue;
                }
                let namespace_offset = extent.namespace_offset + (from - extent.file_offset);
                cut.push(Extent { file_offset: from, namespace_offset, bytes: until - from });
            }
        }
        let banks = Banks { spus: geometry.spus.into(), stripe_bytes: geometry.stripe_bytes, base: geometry.base };
        (cut.len() <= EXTENTS_MAX).then(|| Plan {
            format,
            batch_rows: BATCH_ROWS_MAX as u32,
            file_bytes: table.file_bytes,
            banks,
            extents: cut,
            columns: unit.columns.clone(),
            nodes: self.nodes.clone(),
            sink: self.sink.clone(),
        })
    }
}
