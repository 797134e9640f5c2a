//! Runs a plan over a range of a file: batches of rows are read, selected from, and handed to the sink. The same code runs in handlers and on hosts.
//!
//! What always holds:
//! - memory is what allocations that may fail have brought: where one fails the run ends with [`Stop::NoMemory`];
//! - each loop over the file's bytes tells the port what it did, so that others have their turn;
//! - a range's rows are those that begin in it, whatever range comes before.

use alloc::vec::Vec;
use core::future::Future;

use crate::csv::Csv;
use crate::parquet::Cursor;
use crate::predicate::Scratch;
use crate::sink::Sinks;
use crate::value::{Values, reserved};
use crate::wire::*;
pub use willow_sdk::Decompression;

/// Why a run ends before its range does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The port's failure, as a status of a response.
    Port(u32),
    /// There is not enough memory here.
    NoMemory,
    /// The file.
    Fault(Fault),
}

impl Stop {
    /// The file is at fault, in a column of the plan.
    pub fn fault(reason: Reason, column: u8, detail: u16) -> Stop {
        Stop::Fault(Fault { reason, column, detail })
    }
}

/// Longest value, record or page header that a host holds; an SPU holds less ([`Port::value_bytes_max`]).
pub const VALUE_BYTES_MAX: usize = 64 << 20;

/// Rows that a sink takes at once.
const SINK_ROWS: usize = 128;

/// What a run reads from and replies to.
pub trait Port {
    /// Reads bytes of the file.
    fn read(&self, offset: u64, to: &mut [u8]) -> impl Future<Output = Result<(), Stop>>;
    /// Writes bytes of the reply.
    fn reply(&self, offset: u32, from: &[u8]) -> impl Future<Output = Result<(), Stop>>;
    /// Goes on with a block of Snappy's: see [`Decompression`].
    fn decompress(
        &self,
        from: &[u8],
        to: &mut [u8],
        state: &mut Decompression,
    ) -> impl Future<Output = Result<(), Stop>>;
    /// Notes what was done, in instructions as they are estimated here, and makes way for others where that was much.
    fn worked(&self, instructions: usize) -> impl Future<Output = Result<(), Stop>>;
    /// Bytes that are read at once.
    fn input_bytes(&self) -> usize;
    /// Longest value or record.
    fn value_bytes_max(&self) -> usize;
    /// Longest byte string of which the order is asked, or that is in a row of a top-k.
    fn compared_bytes_max(&self) -> usize;
}

/// A range of the file, read in its order.
pub struct Input {
    /// Where in the file the first byte that was not taken lies.
    at: u64,
    /// Where the range ends.
    end: u64,
    buffer: Vec<u8>,
    begin: usize,
}

impl Input {
    /// From one byte of the file to another.
    pub fn new(begin: u64, end: u64) -> Input {
        Input { at: begin, end, buffer: Vec::new(), begin: 0 }
    }

    /// Where in the file the first byte that was not taken lies.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// Bytes that are here.
    pub fn available(&self) -> &[u8] {
        &self.buffer[self.begin..]
    }

    /// Bytes of the range that were not taken.
    pub fn left(&self) -> u64 {
        self.end - self.at
    }

    /// Takes bytes that are here.
    pub fn take(&mut self, bytes: usize) {
        self.begin += bytes;
        self.at += bytes as u64;
    }

    /// Goes on behind bytes that need not be here; false where the range ends before.
    pub fn skip(&mut self, bytes: u64) -> bool {
        if bytes > self.left() {
            return false;
        }
        self.at += bytes;
        self.begin = self.buffer.len().min(self.begin.saturating_add(usize::try_from(bytes).unwrap_or(usize::MAX)));
        true
    }

    /// Has at least so many bytes here; false where the range has fewer.
    pub async fn fill<P: Port>(&mut self, port: &P, wanted: usize) -> Result<bool, Stop> {
        let here = self.buffer.len() - self.begin;
        if here >= wanted {
            return Ok(true);
        }
        if wanted as u64 > self.left() {
            return Ok(false);
        }
        if wanted > port.value_bytes_max() {
            return Err(Stop::NoMemory);
        }
        self.buffer.copy_within(self.begin.., 0);
        self.buffer.truncate(here);
        self.begin = 0;
        let capacity = wanted.max(port.input_bytes());
        if self.buffer.capacity() < capacity {
            self.buffer.try_reserve_exact(capacity - here).map_err(|_| Stop::NoMemory)?;
        }
        let more = (capacity - here).min(usize::try_from(self.left() - here as u64).unwrap_or(usize::MAX));
        self.buffer.resize(here + more, 0);
        let read = port.read(self.at + here as u64, &mut self.buffer[here..]).await;
        if read.is_err() {
            self.buffer.truncate(here);
        }
        read?;
        port.worked(more / 4).await?;
        Ok(true)
    }
}

/// Fixed-width records.
struct Binary {
    input: Input,
    record_bytes: usize,
}

impl Binary {
    async fn next<P: Port>(
        &mut self,
        port: &P,
        columns: &[Column],
        most: usize,
        into: &mut [Values],
    ) -> Result<usize, Stop> {
        if self.input.left() == 0 {
            return Ok(0);
        }
        if !self.input.fill(port, self.record_bytes).await? {
            return Err(Stop::fault(Reason::Truncated, 0, 0));
        }
        let rows = most.min(self.input.available().len() / self.record_bytes);
        for (column, values) in columns.iter().zip(into.iter_mut()) {
            let records = self.input.available().chunks_exact(self.record_bytes).take(rows);
            let (at, width) = (column.place as usize, column.width as usize);
            for record in records {
                let field = &record[at..at + width];
                match column.storage {
                    Storage::Number => {
                        let mut bytes = [0; 8];
                        bytes[..width].copy_from_slice(field);
                        if column.big_endian {
                            bytes[..width].reverse();
                        }
                        push_number(values, column.kind, u64::from_le_bytes(bytes), width);
                    }
                    Storage::Bool => values.ints.push(i64::from(field[0] != 0)),
                    Storage::Fixed | Storage::Variable => {
                        let span = values.add_bytes(field)?;
                        values.spans.push(span);
                    }
                }
                values.valid.push(1);
            }
        }
        self.input.take(rows * self.record_bytes);
        Ok(rows)
    }
}

/// Appends a number, given by its bytes as they are stored.
pub fn push_number(values: &mut Values, kind: crate::value::Kind, bits: u64, width: usize) {
    use crate::value::Kind;
    let shift = 64 - 8 * width as u32;
    match kind {
        Kind::Int => values.ints.push((bits << shift) as i64 >> shift),
        Kind::Float if width == 4 => values.floats.push(f32::from_bits(bits as u32).into()),
        Kind::Float => values.floats.push(f64::from_bits(bits)),
        Kind::Unsigned | Kind::Bool | Kind::Bytes => values.ints.push((bits << shift >> shift) as i64),
    }
}

enum Reader {
    Binary(Binary),
    Csv(Csv),
    Parquet { cursors: Vec<Cursor>, row: u64, end: u64 },
}

impl Reader {
    /// The next rows, none at the end; `into` is empty before.
    async fn next<P: Port>(&mut self, port: &P, plan: &Plan, into: &mut [Values]) -> Result<usize, Stop> {
        let most = plan.batch_rows as usize;
        match self {
            Reader::Binary(binary) => binary.next(port, &plan.columns, most, into).await,
            Reader::Csv(csv) => csv.next(port, &plan.columns, most, into).await,
            Reader::Parquet { cursors, row, end } => {
                let rows = usize::try_from(*end - *row).unwrap_or(usize::MAX).min(most);
                for (cursor, values) in cursors.iter_mut().zip(into.iter_mut()) {
                    cursor.next(port, rows, values).await?;
                }
                *row += rows as u64;
                Ok(rows)
            }
        }
    }

    /// Where in the file, or in the row group, a row of the batch of `rows` rows that came last begins.
    fn place(&self, row: usize, rows: usize) -> u64 {
        match self {
            Reader::Binary(binary) => binary.input.at() - ((rows - row) * binary.record_bytes) as u64,
            Reader::Csv(csv) => csv.place(row),
            Reader::Parquet { row: next, .. } => next - (rows - row) as u64,
        }
    }
}

/// Runs a plan over a range; the reply has at most `reply_bytes`. The head, which has been written too.
pub async fn run<P: Port>(port: &P, plan: &Plan, run: &Run, reply_bytes: usize) -> Result<ReplyHead, Stop> {
    let mut head = ReplyHead { next: run.end, is_done: true, ..ReplyHead::default() };
    if run.flags & RUN_COUNT_QUOTES != 0 {
        head.selected = crate::csv::count_quotes(port, run.begin, run.end.min(plan.file_bytes)).await?;
        port.reply(0, &head.encode()).await?;
        return Ok(head);
    }
    let mut columns = reserved(plan.columns.len())?;
    for column in &plan.columns {
        columns.push(Values::new(column.kind, plan.batch_rows as usize)?);
    }
    let mut reader = match plan.format {
        Format::Binary { record_bytes } => Reader::Binary(Binary {
            input: Input::new(run.begin.min(plan.file_bytes), run.end.min(plan.file_bytes)),
            record_bytes: record_bytes as usize,
        }),
        Format::Csv { delimiter } => Reader::Csv(Csv::new(port, plan, run, delimiter).await?),
        Format::Parquet => {
            let mut cursors = reserved(plan.columns.len())?;
            for (number, column) in plan.columns.iter().enumerate() {
                let mut cursor = Cursor::new(column, number as u8, plan.batch_rows as usize)?;
                cursor.skip(port, run.begin).await?;
                cursor.kept(&mut columns[number]);
                cursors.push(cursor);
            }
            Reader::Parquet { cursors, row: run.begin, end: run.end }
        }
    };
    let mut scratch = Scratch::default();
    let mut sinks = Sinks::new(plan, reply_bytes, port.compared_bytes_max())?;
    loop {
        columns.iter_mut().for_each(Values::clear);
        let rows = reader.next(port, plan, &mut columns).await?;
        if rows == 0 {
            break;
        }
        let flags = scratch.evaluate(port, &plan.nodes, &columns, rows).await?;
        let mut at = 0;
        while at < rows {
            // What is long costs much: others have their turn in between.
            let end = rows.min(at + SINK_ROWS);
            let taken = sinks.take(flags, &columns, at..end)?;
            head.rows += taken.rows as u64;
            head.selected += taken.selected as u64;
            at += taken.rows;
            if at < end {
                if head.rows == 0 {
                    // Not even one row fits: the host has more room.
                    return Err(Stop::NoMemory);
                }
                (head.next, head.is_done) = (reader.place(at, rows), false);
                break;
            }
            sinks.flush(port).await?;
            port.worked(taken.work).await?;
        }
        if !head.is_done {
            break;
        }
        port.worked(rows * (8 + 8 * plan.nodes.len() + 20 * columns.len())).await?;
    }
    head.bytes = sinks.finish(port).await?;
    port.reply(0, &head.encode()).await?;
    Ok(head)
}
