//! Records of CSV (RFC 4180): fields between delimiters, in quotes where they have delimiters, line ends or quotes, and a quote in them twice.
//!
//! What always holds: a quote is where RFC 4180 lets it be, or the run ends; so every quote begins or ends a quoted part, and whether a byte lies in
//! one is told by the number of quotes before it.

use alloc::vec::Vec;

use crate::engine::{Input, Port, Stop};
use crate::value::{Kind, Values, reserved};
use crate::wire::*;

const QUOTE: u8 = b'"';
/// A record that is longer makes way for others between its fields.
const LONG_BYTES: usize = 4 << 10;
/// Instructions for a byte that is looked at, with what becomes of it.
const LOOK_WORK: usize = 24;

/// How many quotes there are from one byte of the file to another.
pub async fn count_quotes<P: Port>(port: &P, begin: u64, end: u64) -> Result<u64, Stop> {
    let mut input = Input::new(begin.min(end), end);
    let mut count = 0;
    while input.left() > 0 {
        input.fill(port, 1).await?;
        let here = input.available();
        count += here.iter().filter(|byte| **byte == QUOTE).count() as u64;
        let bytes = here.len();
        port.worked(bytes * 2).await?;
        input.take(bytes);
    }
    Ok(count)
}

/// Where a record ends: the offset of its line feed.
fn end_of(bytes: &[u8], from: usize, quoted: &mut bool) -> Option<usize> {
    for (offset, byte) in bytes[from..].iter().enumerate() {
        if *byte == QUOTE {
            *quoted = !*quoted;
        } else if *byte == b'\n' && !*quoted {
            return Some(from + offset);
        }
    }
    None
}

/// Records under way.
pub struct Csv {
    input: Input,
    /// Records begin before this.
    end: u64,
    delimiter: u8,
    /// Where the records of the batch begin.
    places: Vec<u64>,
    /// What is in quotes, without them.
    text: Vec<u8>,
    /// Columns by the number of their field.
    order: Vec<u8>,
}

impl Csv {
    /// At the first record of a range.
    pub async fn new<P: Port>(port: &P, plan: &Plan, run: &Run, delimiter: u8) -> Result<Csv, Stop> {
        let mut order = reserved(plan.columns.len())?;
        order.extend(0..plan.columns.len() as u8);
        order.sort_unstable_by_key(|column| plan.columns[usize::from(*column)].place);
        let mut csv = Csv {
            input: Input::new(run.begin.min(plan.file_bytes), plan.file_bytes),
            end: run.end.min(plan.file_bytes),
            delimiter,
            places: reserved(plan.batch_rows as usize)?,
            text: Vec::new(),
            order,
        };
        if run.flags & RUN_SKIP_FIRST != 0 {
            let mut quoted = run.flags & RUN_QUOTED != 0;
            // What begins behind the range is another's, however long this record is.
            while csv.input.left() > 0 && csv.input.at() < csv.end {
                csv.input.fill(port, 1).await?;
                let here = csv.input.available();
                let found = end_of(here, 0, &mut quoted);
                let bytes = found.map_or(here.len(), |end| end + 1);
                port.worked(bytes * 6).await?;
                csv.input.take(bytes);
                if found.is_some() {
                    break;
                }
            }
        }
        Ok(csv)
    }

    /// Where a record of the batch begins.
    pub fn place(&self, row: usize) -> u64 {
        self.places[row]
    }

    /// The next records.
    pub async fn next<P: Port>(
        &mut self,
        port: &P,
        columns: &[Column],
        most: usize,
        into: &mut [Values],
    ) -> Result<usize, Stop> {
        self.places.clear();
        let mut worked = 0;
        while self.places.len() < most && self.input.at() < self.end {
            let (bytes, with_end) = self.record(port).await?;
            let record = &self.input.available()[..bytes];
            let record = record.strip_suffix(b"\r").unwrap_or(record);
            // An empty line is no record.
            if !record.is_empty() {
                let mut rest = Fields { record: Some(record), delimiter: self.delimiter, number: 0 };
                for column in &self.order {
                    let number = *column;
                    let column = &columns[usize::from(number)];
                    if bytes > LONG_BYTES {
                        port.worked(bytes * LOOK_WORK).await?;
                    }
                    rest.field(column.place, &mut self.text, number, |field, is_quoted| {
                        push(&mut into[usize::from(number)], column.width, field, is_quoted)
                    })?;
                }
                rest.rest(&mut self.text)?;
                self.places.push(self.input.at());
            }
            self.input.take(with_end);
            worked += with_end * LOOK_WORK + 200 * (columns.len() + 1);
            if worked > 500_000 {
                port.worked(worked).await?;
                worked = 0;
            }
        }
        port.worked(worked).await?;
        Ok(self.places.len())
    }

    /// Has a record here; its length without its end, and with it.
    async fn record<P: Port>(&mut self, port: &P) -> Result<(usize, usize), Stop> {
        let (mut quoted, mut looked_at) = (false, 0);
        loop {
            let here = self.input.available();
            let end = end_of(here, looked_at, &mut quoted);
            let looked = end.unwrap_or(here.len()) - looked_at;
            if let Some(end) = end {
                if looked > LONG_BYTES {
                    port.worked(looked * LOOK_WORK).await?;
                }
                return Ok((end, end + 1));
            }
            looked_at = here.len();
            if looked_at as u64 == self.input.left() {
                let unended = Stop::fault(Reason::Quote, 0, 0);
                return if quoted { Err(unended) } else { Ok((looked_at, looked_at)) };
            }
            // More than one byte, so that a long record is not moved for each.
            let wanted = (looked_at * 2).max(1).min(usize::try_from(self.input.left()).unwrap_or(usize::MAX));
            let wanted = wanted.min(port.value_bytes_max()).max(looked_at + 1);
            port.worked(looked * LOOK_WORK).await?;
            self.input.fill(port, wanted).await?;
        }
    }
}

/// The fields of a record, in order.
struct Fields<'a> {
    /// What is left; `None` behind the last field.
    record: Option<&'a [u8]>,
    delimiter: u8,
    number: u32,
}

impl<'a> Fields<'a> {
    /// The field of that number, at or behind where this is: several columns may be of one field, so that it stays.
    fn field(
        &mut self,
        number: u32,
        text: &mut Vec<u8>,
        column: u8,
        take: impl FnOnce(&[u8], bool) -> Result<(), Stop>,
    ) -> Result<(), Stop> {
        while self.number < number {
            self.skip(text)?;
        }
        let Some(record) = self.record else { return Err(Stop::fault(Reason::Fields, column, 0)) };
        let (end, is_quoted) = end_of_field(record, self.delimiter, text)?;
        let field = if is_quoted { &text[..] } else { &record[..end] };
        take(field, is_quoted).map_err(|stop| match stop {
            Stop::Fault(fault) => Stop::Fault(Fault { column, ..fault }),
            other => other,
        })
    }

    fn skip(&mut self, text: &mut Vec<u8>) -> Result<(), Stop> {
        self.number += 1;
        if let Some(record) = self.record {
            let (end, _) = end_of_field(record, self.delimiter, text)?;
            self.record = record.get(end + 1..).filter(|_| end < record.len());
        }
        Ok(())
    }

    /// Looks at what nobody wants: its quotes must be in order as well.
    fn rest(&mut self, text: &mut Vec<u8>) -> Result<(), Stop> {
        if self.record.is_some_and(|record| !record.contains(&QUOTE)) {
            return Ok(());
        }
        while self.record.is_some() {
            self.skip(text)?;
        }
        Ok(())
    }
}

/// Where the first field ends; true where it was in quotes, and `text` has it then.
fn end_of_field(record: &[u8], delimiter: u8, text: &mut Vec<u8>) -> Result<(usize, bool), Stop> {
    let misplaced = Stop::fault(Reason::Quote, 0, 0);
    if record.first() != Some(&QUOTE) {
        let end = record.iter().position(|byte| *byte == delimiter || *byte == QUOTE).unwrap_or(record.len());
        return if record.get(end) == Some(&QUOTE) { Err(misplaced) } else { Ok((end, false)) };
    }
    text.clear();
    let mut at = 1;
    loop {
        let part = &record[at..];
        let quote = part.iter().position(|byte| *byte == QUOTE).ok_or(misplaced)?;
        text.try_reserve(quote + 1).map_err(|_| Stop::NoMemory)?;
        text.extend_from_slice(&part[..quote]);
        at += quote + 1;
        match record.get(at) {
            Some(&QUOTE) => {
                text.push(QUOTE);
                at += 1;
            }
            None => return Ok((at, true)),
            Some(byte) if *byte == delimiter => return Ok((at, true)),
            Some(_) => return Err(misplaced),
        }
    }
}

/// Appends a field's value. One that is empty and not in quotes is null, but where byte strings are wanted.
fn push(values: &mut Values, width: u32, field: &[u8], is_quoted: bool) -> Result<(), Stop> {
    if values.kind == Kind::Bytes {
        let span = values.add_bytes(field)?;
        values.spans.push(span);
        values.valid.push(1);
        return Ok(());
    }
    if field.is_empty() && !is_quoted {
        values.push_null();
        return Ok(());
    }
    let wrong = Stop::fault(Reason::Value, 0, 0);
    let text = core::str::from_utf8(field).map_err(|_| wrong)?;
    match values.kind {
        Kind::Bool => values.ints.push(match text {
            "true" | "True" | "TRUE" | "1" => 1,
            "false" | "False" | "FALSE" | "0" => 0,
            _ => return Err(wrong),
        }),
        Kind::Int => {
            let value: i64 = text.parse().map_err(|_| wrong)?;
            let unused = 64 - 8 * width;
            if value << unused >> unused != value {
                return Err(wrong);
            }
            values.ints.push(value);
        }
        Kind::Unsigned => {
            let value: u64 = text.parse().map_err(|_| wrong)?;
            let unused = 64 - 8 * width;
            if value << unused >> unused != value {
                return Err(wrong);
            }
            values.ints.push(value as i64);
        }
        Kind::Float if width == 4 => values.floats.push(text.parse::<f32>().map_err(|_| wrong)?.into()),
        Kind::Float => values.floats.push(text.parse().map_err(|_| wrong)?),
        Kind::Bytes => {}
    }
    values.valid.push(1);
    Ok(())
}
