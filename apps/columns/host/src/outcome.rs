//! Results of parts, put together.
//!
//! What always holds: parts come in the file's order, and so do rows; what a device replies is checked before it is used.

use columns_spu::sink::{Aggregate, Bins, Kept, keep};
use columns_spu::value::{Kind, Scalar};
use columns_spu::wire::{ReplyHead, Sink, Taker};

use crate::query::Query;
use crate::table::Table;

/// A reply makes no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the device's reply makes no sense")]
pub struct ReplyError;

/// What has come so far.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// Of each column.
    Aggregate(Vec<Aggregate>),
    /// Rows have been handed on.
    Rows,
    /// The rows, in order.
    Top(Vec<Kept>),
    /// Counts.
    Histogram(Bins),
}

/// Rows that were looked at and that were selected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Looked at.
    pub rows: u64,
    /// Selected.
    pub selected: u64,
}

/// The values of a row, `None` where null.
pub type Row = Vec<Option<Scalar>>;

/// Takes a row of columns of those kinds.
pub fn take_row(from: &mut Taker<'_>, kinds: &[Kind]) -> Result<Row, ReplyError> {
    let mut row = Vec::with_capacity(kinds.len());
    for kind in kinds {
        let value = match from.u8().ok_or(ReplyError)? {
            0 => None,
            _ => Some(match kind {
                Kind::Bool => Scalar::Bool(from.u8().ok_or(ReplyError)? != 0),
                Kind::Int => Scalar::Int(from.u64().ok_or(ReplyError)? as i64),
                Kind::Unsigned => Scalar::Unsigned(from.u64().ok_or(ReplyError)?),
                Kind::Float => Scalar::Float(f64::from_bits(from.u64().ok_or(ReplyError)?)),
                Kind::Bytes => Scalar::Bytes(from.text().ok_or(ReplyError)?.to_vec()),
            }),
        };
        row.push(value);
    }
    Ok(row)
}

/// Head and rest of a reply.
pub fn open(reply: &[u8]) -> Result<(ReplyHead, &[u8]), ReplyError> {
    let mut from = Taker(reply);
    let head = ReplyHead::take(&mut from).ok_or(ReplyError)?;
    Ok((head, from.bytes(head.bytes as usize).ok_or(ReplyError)?))
}

impl Outcome {
    /// Of nothing.
    pub fn new(query: &Query, table: &Table) -> Outcome {
        match query.sink() {
            Sink::Aggregate(columns) => {
                let aggregate = |column: &u8| Aggregate::new(query.kind(table, *column)).ok();
                Outcome::Aggregate(columns.iter().filter_map(aggregate).collect())
            }
            Sink::Rows(_) => Outcome::Rows,
            Sink::Top { .. } => Outcome::Top(Vec::new()),
            Sink::Histogram { edges, .. } => {
                Outcome::Histogram(Bins { counts: vec![0; edges.len() - 1], ..Bins::default() })
            }
        }
    }

    /// Adds what a reply has behind its head; rows go to `each`.
    pub fn add<E: From<ReplyError>>(
        &mut self,
        query: &Query,
        kinds: &[Kind],
        body: &[u8],
        mut each: impl FnMut(Row) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut from = Taker(body);
        match self {
            Outcome::Aggregate(aggregates) => {
                for aggregate in aggregates {
                    let more = Aggregate::decode(&mut from, aggregate.kind).ok_or(ReplyError)?;
                    aggregate.merge(&more);
                }
            }
            Outcome::Rows => {
                while !from.0.is_empty() {
                    each(take_row(&mut from, kinds)?)?;
                }
            }
            Outcome::Top(kept) => {
                let Sink::Top { count, least, .. } = query.sink() else { return Err(ReplyError.into()) };
                while !from.0.is_empty() {
                    let more = Kept::decode(&mut from).ok_or(ReplyError)?;
                    keep(kept, *count as usize, *least, more);
                }
            }
            Outcome::Histogram(bins) => {
                let more = Bins::decode(&mut from, bins.counts.len()).ok_or(ReplyError)?;
                bins.merge(&more);
            }
        }
        if from.0.is_empty() { Ok(()) } else { Err(ReplyError.into()) }
    }

    /// Hands on the rows of a top-k, at the end.
    pub fn rows<E: From<ReplyError>>(
        &self,
        kinds: &[Kind],
        mut each: impl FnMut(Row) -> Result<(), E>,
    ) -> Result<(), E> {
        let Outcome::Top(kept) = self else { return Ok(()) };
        for kept in kept {
            let mut from = Taker(&kept.row);
            each(take_row(&mut from, kinds)?)?;
            if !from.0.is_empty() {
                return Err(ReplyError.into());
            }
        }
        Ok(())
    }
}
