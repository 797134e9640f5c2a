//! A Parquet file's page index: which rows each page of a column chunk has, and what lies between its least and greatest value. Rows of pages that the expression
//! excludes are not read.
//!
//! What always holds: an index that is there is sound or the file is refused; one that is too long is not read, and then all rows of its row group are.
//!
//! Who may call it: [`crate::Query`], and who reads a file's index for a [`Table`].

use crate::expression::may_select;
use crate::footer::{FooterError, extremes};
use crate::schema::DataType;
use crate::table::{Rows, Table};
use columns_spu::predicate::{FALSE, Node};
use columns_spu::thrift::{Thrift, ThriftError, kind};
use columns_spu::value::Scalar;
use std::ops::Range;

/// Longest index of a chunk that is read, of either kind.
pub const INDEX_BYTES_MAX: u64 = 4 << 20;
/// What is read of a file's indexes in all.
pub const INDEXES_BYTES_MAX: u64 = 64 << 20;
/// Rows between two ranges that are read with them: a range costs more than these.
const GAP_ROWS: u64 = 16 << 10;

/// Where in the file a chunk's indexes lie: values, and places.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IndexPlace {
    /// Bytes of the file with the least and greatest values of its pages.
    pub values: Range<u64>,
    /// Bytes of the file that say where its pages are.
    pub places: Range<u64>,
}

impl IndexPlace {
    /// True where both are there, and not too long to be read.
    pub fn is_readable(&self) -> bool {
        let is_fine = |range: &Range<u64>| (1..=INDEX_BYTES_MAX).contains(&(range.end - range.start));
        is_fine(&self.values) && is_fine(&self.places)
    }

    /// Bytes of both.
    pub fn bytes(&self) -> u64 {
        (self.values.end - self.values.start) + (self.places.end - self.places.start)
    }
}

/// A page, as the index has it.
#[derive(Clone, Debug, PartialEq)]
pub struct PageRows {
    /// Its first row in the row group.
    pub first: u64,
    /// Least and greatest value.
    pub extremes: Option<(Scalar, Scalar)>,
    /// How many are null.
    pub nulls: Option<u64>,
    /// All of them are.
    pub is_null: bool,
}

/// The pages of a chunk of so many rows, of its two indexes.
pub fn pages(of: (DataType, u32), rows: u64, values: &[u8], places: &[u8]) -> Result<Vec<PageRows>, FooterError> {
    let mut firsts = Vec::new();
    Thrift::new(places).fields(|from, field, kind_of| {
        if (field, kind_of) != (1, kind::LIST) {
            return Ok(false);
        }
        from.structs(|from| {
            let mut first = None;
            from.fields(|from, field, kind_of| {
                if (field, kind_of) != (3, kind::I64) {
                    return Ok(false);
                }
                first = Some(u64::try_from(from.integer()?).map_err(|_| ThriftError::Malformed)?);
                Ok(true)
            })?;
            firsts.push(first.ok_or(ThriftError::Malformed)?);
            Ok(())
        })?;
        Ok(true)
    })?;
    let (mut empty, mut least, mut greatest, mut nulls) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    Thrift::new(values).fields(|from, field, kind_of| {
        if kind_of != kind::LIST {
            return Ok(false);
        }
        match field {
            1 => list(from, &[kind::TRUE, kind::FALSE], |from| {
                empty.push(from.raw_byte()? == kind::TRUE);
                Ok(())
            })?,
            2 | 3 => list(from, &[kind::BINARY], |from| {
                let values = if field == 2 { &mut least } else { &mut greatest };
                values.push(from.binary()?);
                Ok(())
            })?,
            5 => list(from, &[kind::I64], |from| {
                nulls.push(u64::try_from(from.integer()?).ok());
                Ok(())
            })?,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    let count = firsts.len();
    let is_sound = firsts.first() == Some(&0)
        && firsts.is_sorted_by(|a, b| a < b)
        && firsts.last().is_some_and(|last| *last < rows)
        && [empty.len(), least.len(), greatest.len()] == [count; 3]
        && (nulls.is_empty() || nulls.len() == count);
    if !is_sound {
        return Err(FooterError::Malformed);
    }
    let page = |number: usize| PageRows {
        first: firsts[number],
        // A page of nulls alone has bytes that mean nothing.
        extremes: if empty[number] { None } else { extremes(of, least[number], greatest[number]) },
        nulls: nulls.get(number).copied().flatten(),
        is_null: empty[number],
    };
    Ok((0..count).map(page).collect())
}

fn list<'a>(
    from: &mut Thrift<'a>,
    kinds: &[u8],
    mut each: impl FnMut(&mut Thrift<'a>) -> Result<(), ThriftError>,
) -> Result<(), ThriftError> {
    let (of, count) = from.list()?;
    if count > 0 && !kinds.contains(&of) {
        return Err(ThriftError::Malformed);
    }
    (0..count).try_for_each(|_| each(from))
}

/// The columns that an expression compares, by the plan's numbers.
pub fn compared(nodes: &[Node]) -> Vec<u8> {
    let of = |node: &Node| match node {
        Node::Compare { column, .. } | Node::IsNull(column) => Some(*column),
        _ => None,
    };
    let mut columns: Vec<u8> = nodes.iter().filter_map(of).collect();
    columns.sort_unstable();
    columns.dedup();
    columns
}

/// Rows of a row group that may be selected, in order; what lies close together is one range. `pages` has those of a column of the plan, where they are known,
/// and `whole` what is known of the whole chunk.
pub fn ranges<'a>(
    nodes: &[Node],
    rows: u64,
    pages: impl Fn(u8) -> Option<&'a [PageRows]>,
    whole: impl Fn(u8) -> (Option<(Scalar, Scalar)>, Option<u64>),
) -> Vec<Range<u64>> {
    let known: Vec<(u8, &[PageRows])> =
        compared(nodes).into_iter().filter_map(|column| Some((column, pages(column)?))).collect();
    let mut borders: Vec<u64> = known.iter().flat_map(|(_, pages)| pages.iter().map(|page| page.first)).collect();
    borders.push(0);
    borders.push(rows);
    borders.sort_unstable();
    borders.dedup();
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for border in borders.windows(2) {
        let (begin, end) = (border[0], border[1]);
        let page = |column: u8| {
            let (_, pages) = known.iter().find(|(known, _)| *known == column)?;
            pages.get(pages.partition_point(|page| page.first <= begin).checked_sub(1)?)
        };
        let of = |column: u8| match page(column) {
            Some(page) => (page.extremes.clone(), page.nulls),
            None => whole(column),
        };
        // Null compares with nothing.
        let is_null = |column: u8| page(column).is_some_and(|page| page.is_null);
        let here = |node: &Node| match node {
            Node::Compare { column, .. } if is_null(*column) => Node::Constant(FALSE),
            node => node.clone(),
        };
        if !may_select(&nodes.iter().map(here).collect::<Vec<Node>>(), of) {
            continue;
        }
        match ranges.last_mut() {
            Some(last) if begin - last.end <= GAP_ROWS => last.end = end,
            _ => ranges.push(begin..end),
        }
    }
    ranges
}

impl Table {
    /// Takes in the index of a chunk that [`crate::Query::indexes`] has named: its bytes of values and of places.
    pub fn learn_pages(
        &mut self,
        (group, column): (usize, usize),
        values: &[u8],
        places: &[u8],
    ) -> Result<(), FooterError> {
        let of = self.fields.get(column).and_then(|field| field.of.clone().ok());
        let Rows::Parquet { stored, row_groups } = &mut self.rows else { return Ok(()) };
        let (Some(of), Some(stored), Some(group)) = (of, stored.get(column), row_groups.get_mut(group)) else {
            return Ok(());
        };
        let rows = group.rows;
        let Some(chunk) = group.chunks.get_mut(column) else { return Ok(()) };
        chunk.pages = pages((of, stored.width), rows, values, places)?;
        Ok(())
    }
}
