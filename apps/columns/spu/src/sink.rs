//! What becomes of the selected rows: they are counted and summed, sent as they are, kept as the greatest, or counted by bins.
//!
//! ```text
//! aggregate  for each column u64 values, u64 nulls, a sum (i128, or an exact one where the kind is float), least, greatest
//! rows, top  rows: of each column u8 1 and the value, or u8 0; top has u32 length and its key before each row
//! histogram  u64 below, above, null, no number; u64 of each bin
//! ```
//!
//! What always holds: a row is in the reply whole or not at all; what is kept between batches is bounded by what the plan asks for.

use alloc::vec::Vec;
use core::cmp::Ordering;
use core::ops::Range;

use crate::engine::{Port, Stop};
use crate::exact::ExactSum;
use crate::predicate::{FALSE, TRUE, UNKNOWN, order};
use crate::value::{Kind, Scalar, Values, reserved};
use crate::wire::{Plan, ReplyHead, Sink, Taker};

/// Bytes of a reply that are put together before they are sent.
const STAGED_BYTES: usize = 16 << 10;

/// Count, sum, least and greatest.
#[derive(Clone, Debug)]
pub struct Aggregate {
    /// Its column's kind.
    pub kind: Kind,
    /// Values that are not null.
    pub values: u64,
    /// Those that are.
    pub nulls: u64,
    /// Sum of integers; how many are true.
    pub sum: i128,
    /// Sum of floats: a list of one, or none where the kind is another.
    pub exact: Vec<ExactSum>,
    /// The least; no float that is no number.
    pub least: Option<Scalar>,
    /// The greatest.
    pub greatest: Option<Scalar>,
}

impl Aggregate {
    /// Of nothing.
    pub fn new(kind: Kind) -> Result<Aggregate, Stop> {
        let mut exact = Vec::new();
        if kind == Kind::Float {
            exact = reserved(1)?;
            exact.push(ExactSum::default());
        }
        Ok(Aggregate { kind, values: 0, nulls: 0, sum: 0, exact, least: None, greatest: None })
    }

    fn extremes(&mut self, least: Scalar, greatest: Scalar) {
        if self.least.as_ref().is_none_or(|known| least.is_less(known)) {
            self.least = Some(least);
        }
        if self.greatest.as_ref().is_none_or(|known| known.is_less(&greatest)) {
            self.greatest = Some(greatest);
        }
    }

    /// Adds another's.
    pub fn merge(&mut self, other: &Aggregate) {
        self.values += other.values;
        self.nulls += other.nulls;
        self.sum += other.sum;
        if let (Some(own), Some(more)) = (self.exact.first_mut(), other.exact.first()) {
            own.merge(more);
        }
        if let (Some(least), Some(greatest)) = (&other.least, &other.greatest) {
            self.extremes(least.clone(), greatest.clone());
        }
    }

    fn take(&mut self, chosen: &[u32], values: &Values, compared: usize) -> Result<usize, Stop> {
        let mut work = chosen.len() * 60;
        let chosen = chosen.iter().map(|row| *row as usize);
        self.nulls += chosen.clone().filter(|row| values.valid[*row] == 0).count() as u64;
        let selected = chosen.filter(|row| values.valid[*row] == 1);
        match self.kind {
            Kind::Bool | Kind::Int => {
                let (mut count, mut sum, mut least, mut greatest) = (0, 0i128, i64::MAX, i64::MIN);
                for row in selected {
                    let value = values.ints[row];
                    count += 1;
                    sum += i128::from(value);
                    least = least.min(value);
                    greatest = greatest.max(value);
                }
                self.values += count;
                self.sum += sum;
                if count > 0 && self.kind == Kind::Int {
                    self.extremes(Scalar::Int(least), Scalar::Int(greatest));
                } else if count > 0 {
                    self.extremes(Scalar::Bool(least != 0), Scalar::Bool(greatest != 0));
                }
            }
            Kind::Unsigned => {
                let (mut count, mut sum, mut least, mut greatest) = (0, 0i128, u64::MAX, u64::MIN);
                for row in selected {
                    let value = values.ints[row] as u64;
                    count += 1;
                    sum += i128::from(value);
                    least = least.min(value);
                    greatest = greatest.max(value);
                }
                self.values += count;
                self.sum += sum;
                if count > 0 {
                    self.extremes(Scalar::Unsigned(least), Scalar::Unsigned(greatest));
                }
            }
            Kind::Float => {
                let (mut least, mut greatest) = (f64::INFINITY, f64::NEG_INFINITY);
                let mut has_number = false;
                for row in selected {
                    let value = values.floats[row];
                    self.values += 1;
                    work += 60;
                    if let Some(sum) = self.exact.first_mut() {
                        sum.add(value);
                    }
                    if !value.is_nan() {
                        has_number = true;
                        least = if value < least { value } else { least };
                        greatest = if value > greatest { value } else { greatest };
                    }
                }
                if has_number {
                    self.extremes(Scalar::Float(least), Scalar::Float(greatest));
                }
            }
            Kind::Bytes => {
                for row in selected {
                    self.values += 1;
                    let value = values.text(row);
                    if value.len() > compared {
                        return Err(Stop::NoMemory);
                    }
                    work += value.len() * 8 + 100;
                    let is = |known: &Option<Scalar>, wanted: Ordering| match known {
                        Some(Scalar::Bytes(known)) => value.cmp(&known[..]) == wanted,
                        _ => true,
                    };
                    if is(&self.least, Ordering::Less) {
                        self.least = Some(values.scalar(row).ok_or(Stop::NoMemory)?);
                    }
                    if is(&self.greatest, Ordering::Greater) {
                        self.greatest = Some(values.scalar(row).ok_or(Stop::NoMemory)?);
                    }
                }
            }
        }
        Ok(work)
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.values.to_le_bytes());
        out.extend_from_slice(&self.nulls.to_le_bytes());
        match self.exact.first() {
            Some(exact) => exact.encode(|bytes| out.extend_from_slice(bytes)),
            None => out.extend_from_slice(&self.sum.to_le_bytes()),
        }
        for extreme in [&self.least, &self.greatest] {
            out.push(u8::from(extreme.is_some()));
            if let Some(value) = extreme {
                value.encode(out);
            }
        }
    }

    /// Takes one of that kind; `None` where there is none.
    pub fn decode(from: &mut Taker<'_>, kind: Kind) -> Option<Aggregate> {
        let mut aggregate = Aggregate::new(kind).ok()?;
        (aggregate.values, aggregate.nulls) = (from.u64()?, from.u64()?);
        match aggregate.exact.first_mut() {
            Some(exact) => *exact = ExactSum::decode(from.bytes(ExactSum::BYTES)?.try_into().ok()?),
            None => aggregate.sum = from.i128()?,
        }
        for extreme in [&mut aggregate.least, &mut aggregate.greatest] {
            if from.u8()? == 1 {
                *extreme = Some(long_scalar(from)?);
            }
        }
        Some(aggregate)
    }
}

/// A value that a reply has: byte strings of any length that is there.
fn long_scalar(from: &mut Taker<'_>) -> Option<Scalar> {
    if from.0.first() == Some(&(Kind::Bytes as u8)) {
        from.u8()?;
        return Some(Scalar::Bytes(from.text()?.to_vec()));
    }
    Scalar::decode(from)
}

/// Appends a row, of some columns.
fn put_row(out: &mut Vec<u8>, select: &[u8], columns: &[Values], row: usize) -> Result<(), Stop> {
    for column in select {
        let values = &columns[usize::from(*column)];
        let is_valid = values.valid[row];
        let text = if values.kind == Kind::Bytes { values.text(row) } else { &[] };
        out.try_reserve(text.len() + 16).map_err(|_| Stop::NoMemory)?;
        out.push(is_valid);
        if is_valid == 0 {
            continue;
        }
        match values.kind {
            Kind::Bool => out.push(values.ints[row] as u8),
            Kind::Int | Kind::Unsigned => out.extend_from_slice(&values.ints[row].to_le_bytes()),
            Kind::Float => out.extend_from_slice(&values.floats[row].to_le_bytes()),
            Kind::Bytes => {
                out.extend_from_slice(&(text.len() as u32).to_le_bytes());
                out.extend_from_slice(text);
            }
        }
    }
    Ok(())
}

/// A row of a top-k.
#[derive(Clone, Debug)]
pub struct Kept {
    /// What it is kept by.
    pub key: Scalar,
    /// The row.
    pub row: Vec<u8>,
}

/// Puts a row in its place among the first of an order, behind those with the same key; false where it is none of them.
pub fn keep(kept: &mut Vec<Kept>, count: usize, least: bool, new: Kept) -> bool {
    let place = place_of(kept, least, &new.key);
    if place >= count {
        return false;
    }
    kept.truncate(count - 1);
    kept.insert(place, new);
    true
}

/// Before the first known one that it beats.
fn place_of(kept: &[Kept], least: bool, key: &Scalar) -> usize {
    let beats = if least { Ordering::Less } else { Ordering::Greater };
    kept.partition_point(|known| order(key, &known.key) != Some(beats))
}

/// Counts by bins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bins {
    /// Values below the first edge, above the last, nulls, and floats that are no numbers.
    pub outside: [u64; 4],
    /// Values in each bin: from its edge up to the next; the last edge is in the last bin.
    pub counts: Vec<u64>,
}

impl Bins {
    fn take(&mut self, edges: &[Scalar], values: &Values, row: usize) {
        let Some(value) = values.scalar(row) else {
            self.outside[2] += 1;
            return;
        };
        if matches!(value, Scalar::Float(value) if value.is_nan()) {
            self.outside[3] += 1;
            return;
        }
        let place = edges.partition_point(|edge| !value.is_less(edge));
        match place {
            0 => self.outside[0] += 1,
            place if place < edges.len() => self.counts[place - 1] += 1,
            place if edges[place - 1] == value => self.counts[place - 2] += 1,
            _ => self.outside[1] += 1,
        }
    }

    /// Adds another's, of the same edges.
    pub fn merge(&mut self, other: &Bins) {
        self.outside.iter_mut().zip(other.outside).for_each(|(own, more)| *own += more);
        self.counts.iter_mut().zip(&other.counts).for_each(|(own, more)| *own += more);
    }

    /// Takes those of so many bins.
    pub fn decode(from: &mut Taker<'_>, bins: usize) -> Option<Bins> {
        let mut read = Bins::default();
        for place in &mut read.outside {
            *place = from.u64()?;
        }
        for _ in 0..bins {
            read.counts.push(from.u64()?);
        }
        Some(read)
    }
}

/// What a sink has taken.
#[derive(Clone, Copy, Debug)]
pub struct Taken {
    /// Rows.
    pub rows: usize,
    /// Those of them that were selected.
    pub selected: usize,
    /// What that cost, in instructions as they are estimated.
    pub work: usize,
}

/// Lists the rows of a range that are true.
fn choose(flags: &[u8], rows: Range<usize>, chosen: &mut Vec<u32>) -> Result<(), Stop> {
    const EIGHT_TRUE: u64 = u64::from_ne_bytes([TRUE; 8]);
    chosen.clear();
    chosen.try_reserve(rows.len()).map_err(|_| Stop::NoMemory)?;
    let begin = rows.start;
    let (eights, rest) = flags[rows].as_chunks::<8>();
    for (index, eight) in eights.iter().enumerate() {
        // Mostly none of them is: unknown is another bit.
        if u64::from_ne_bytes(*eight) & EIGHT_TRUE != 0 {
            let first = begin + index * 8;
            chosen.extend((first..).zip(eight).filter(|(_, flag)| **flag == TRUE).map(|(row, _)| row as u32));
        }
    }
    let first = begin + eights.len() * 8;
    chosen.extend((first..).zip(rest).filter(|(_, flag)| **flag == TRUE).map(|(row, _)| row as u32));
    Ok(())
}

const _: () = assert!(UNKNOWN & TRUE == 0 && FALSE == 0);

/// The sink of a run.
pub struct Sinks<'a> {
    sink: &'a Sink,
    aggregates: Vec<Aggregate>,
    kept: Vec<Kept>,
    bins: Bins,
    /// The rows at hand that are selected.
    chosen: Vec<u32>,
    /// Bytes of the reply that are put together, and where in the reply they go.
    staged: Vec<u8>,
    at: usize,
    reply_bytes: usize,
    compared: usize,
}

impl<'a> Sinks<'a> {
    /// Of a plan.
    pub fn new(plan: &'a Plan, reply_bytes: usize, compared: usize) -> Result<Sinks<'a>, Stop> {
        let mut sinks = Sinks {
            sink: &plan.sink,
            aggregates: Vec::new(),
            kept: Vec::new(),
            bins: Bins::default(),
            chosen: Vec::new(),
            staged: reserved(STAGED_BYTES)?,
            at: ReplyHead::BYTES,
            reply_bytes,
            compared,
        };
        match &plan.sink {
            Sink::Aggregate(columns) => {
                sinks.aggregates = reserved(columns.len())?;
                for column in columns {
                    sinks.aggregates.push(Aggregate::new(plan.columns[usize::from(*column)].kind)?);
                }
            }
            Sink::Top { count, .. } => sinks.kept = reserved(*count as usize)?,
            Sink::Histogram { edges, .. } => {
                sinks.bins.counts = reserved(edges.len() - 1)?;
                sinks.bins.counts.resize(edges.len() - 1, 0);
            }
            Sink::Rows(_) => {}
        }
        Ok(sinks)
    }

    /// Takes rows; how many, fewer where the next does not fit the reply, how many of them were selected, and what that cost.
    pub fn take(&mut self, flags: &[u8], columns: &[Values], rows: Range<usize>) -> Result<Taken, Stop> {
        choose(flags, rows.clone(), &mut self.chosen)?;
        let chosen = core::mem::take(&mut self.chosen);
        let taken = self.take_chosen(&chosen, columns, rows);
        self.chosen = chosen;
        taken
    }

    fn take_chosen(&mut self, chosen: &[u32], columns: &[Values], rows: Range<usize>) -> Result<Taken, Stop> {
        let mut work = rows.len() * 4;
        match self.sink {
            Sink::Aggregate(of) => {
                for (aggregate, column) in self.aggregates.iter_mut().zip(of) {
                    work += aggregate.take(chosen, &columns[usize::from(*column)], self.compared)?;
                }
            }
            Sink::Rows(select) => {
                for (index, row) in chosen.iter().map(|row| *row as usize).enumerate() {
                    let before = self.staged.len();
                    put_row(&mut self.staged, select, columns, row)?;
                    work += self.staged.len() - before + 20;
                    if self.at + self.staged.len() > self.reply_bytes {
                        self.staged.truncate(before);
                        return Ok(Taken { rows: row - rows.start, selected: index, work });
                    }
                }
            }
            Sink::Top { count, by, least, select } => {
                let keys = &columns[usize::from(*by)];
                for row in chosen.iter().map(|row| *row as usize).filter(|row| keys.valid[*row] == 1) {
                    if keys.kind == Kind::Bytes && keys.text(row).len() > self.compared {
                        return Err(Stop::NoMemory);
                    }
                    let key = keys.scalar(row).ok_or(Stop::NoMemory)?;
                    work += 200;
                    if matches!(key, Scalar::Float(key) if key.is_nan()) {
                        continue;
                    }
                    if place_of(&self.kept, *least, &key) >= *count as usize {
                        continue;
                    }
                    let mut bytes = Vec::new();
                    put_row(&mut bytes, select, columns, row)?;
                    if bytes.len() > self.compared {
                        return Err(Stop::NoMemory);
                    }
                    work += bytes.len() + self.kept.len() * 8;
                    keep(&mut self.kept, *count as usize, *least, Kept { key, row: bytes });
                }
            }
            Sink::Histogram { column, edges } => {
                let values = &columns[usize::from(*column)];
                for row in chosen {
                    self.bins.take(edges, values, *row as usize);
                    work += 150;
                }
            }
        }
        Ok(Taken { rows: rows.len(), selected: chosen.len(), work })
    }

    /// Sends what was put together, where it is much.
    pub async fn flush<P: Port>(&mut self, port: &P) -> Result<(), Stop> {
        if self.staged.len() >= STAGED_BYTES { self.send(port).await } else { Ok(()) }
    }

    async fn send<P: Port>(&mut self, port: &P) -> Result<(), Stop> {
        if self.at + self.staged.len() > self.reply_bytes {
            return Err(Stop::NoMemory);
        }
        port.reply(self.at as u32, &self.staged).await?;
        self.at += self.staged.len();
        self.staged.clear();
        Ok(())
    }

    /// Sends the rest; the bytes behind the reply's head.
    pub async fn finish<P: Port>(&mut self, port: &P) -> Result<u32, Stop> {
        for aggregate in &self.aggregates {
            // Two extremes and the exact sum: far less than this beside them.
            let extremes = [&aggregate.least, &aggregate.greatest].map(|extreme| match extreme {
                Some(Scalar::Bytes(bytes)) => bytes.len(),
                _ => 0,
            });
            self.staged.try_reserve(extremes[0] + extremes[1] + 1024).map_err(|_| Stop::NoMemory)?;
            aggregate.encode(&mut self.staged);
        }
        for kept in core::mem::take(&mut self.kept) {
            let key_bytes = if let Scalar::Bytes(key) = &kept.key { key.len() } else { 0 };
            self.staged.try_reserve(kept.row.len() + key_bytes + 32).map_err(|_| Stop::NoMemory)?;
            self.staged.extend_from_slice(&(kept.row.len() as u32).to_le_bytes());
            kept.key.encode(&mut self.staged);
            self.staged.extend_from_slice(&kept.row);
            self.flush(port).await?;
        }
        if let Sink::Histogram { .. } = self.sink {
            self.staged.try_reserve((self.bins.counts.len() + 4) * 8).map_err(|_| Stop::NoMemory)?;
            for count in self.bins.outside.iter().chain(&self.bins.counts) {
                self.staged.extend_from_slice(&count.to_le_bytes());
            }
        }
        self.send(port).await?;
        Ok((self.at - ReplyHead::BYTES) as u32)
    }
}

impl Kept {
    /// Takes one of a reply.
    pub fn decode(from: &mut Taker<'_>) -> Option<Kept> {
        let bytes = from.u32()? as usize;
        let key = long_scalar(from)?;
        Some(Kept { key, row: from.bytes(bytes)?.to_vec() })
    }
}
