//! Replay of block traces: fio's iolog, blkparse's text, and the CSV of the MSR Cambridge traces. Lines are read as they are needed, so
//! that a trace may be longer than memory.
//!
//! What always holds: a line that cannot be understood, or an address that the namespace does not have, ends the replay with the line's
//! number, the field, and what was expected; times never go back (a record that is earlier than the one before it is due with that one).

mod blktrace;
mod fio;
mod msr;
#[cfg(feature = "testing")]
pub mod testing;

use crate::generator::{Next, Source};
use crate::operation::Operation;
use std::io::BufRead;

/// Most bytes of a line.
pub const LINE_BYTES_MAX: usize = 4096;
/// Most bytes of a request of a trace.
pub const REQUEST_BYTES_MAX: u64 = 16 << 20;

/// What a line is wrong about: field, then what was expected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, {field}: {problem}")]
pub struct TraceError {
    /// Number of the line, from 1.
    pub line: u64,
    /// Field.
    pub field: &'static str,
    /// What is there, and what was expected.
    pub problem: String,
}

/// What a record asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Read a range.
    Read,
    /// Write a range.
    Write,
    /// Tell that a range is of no use any more.
    Deallocate,
    /// Make all that was written durable; it has no range.
    Flush,
}

/// One request of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Line that it stands in.
    pub line: u64,
    /// When it was issued, nanoseconds from the first one.
    pub at_ns: u64,
    /// What.
    pub action: Action,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Formats of traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// fio's iolog, version 2 or 3.
    Fio,
    /// Text of blkparse, in its default format.
    Blktrace,
    /// CSV of the MSR Cambridge traces.
    Msr,
}

impl std::str::FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "fio" => Ok(Format::Fio),
            "blktrace" => Ok(Format::Blktrace),
            "msr" => Ok(Format::Msr),
            _ => Err(format!("\"{text}\" is no format of traces: use fio, blktrace or msr")),
        }
    }
}

/// What a line meant.
enum Meaning {
    /// A request: time, action, first byte, bytes.
    Request(u64, Action, u64, u64),
    /// Nothing that is replayed.
    Nothing,
    /// The rest of the file is no trace.
    End,
}

/// A field that is wrong.
struct Wrong(&'static str, String);

/// Understands lines of one format.
trait LineParser {
    fn line(&mut self, line: &str) -> Result<Meaning, Wrong>;
    /// Called at the end of the file.
    fn end(&self) -> Result<(), Wrong> {
        Ok(())
    }
}

/// A number in a field.
fn number(field: &'static str, text: Option<&str>, unit: &str) -> Result<u64, Wrong> {
    let Some(text) = text.filter(|text| !text.is_empty()) else {
        return Err(Wrong(field, format!("it is missing, expected {unit}")));
    };
    text.parse().map_err(|_| Wrong(field, format!("\"{}\" found, expected {unit}", short(text))))
}

/// A text for an error, not longer than a line.
fn short(text: &str) -> String {
    text.chars().take(40).flat_map(char::escape_debug).collect()
}

/// The requests of a trace, one after the other.
pub struct Records<R> {
    input: R,
    parser: Box<dyn LineParser>,
    line: u64,
    buffer: Vec<u8>,
    last_ns: u64,
    over: bool,
}

impl<R: BufRead> Records<R> {
    /// Of a file in that format.
    pub fn new(input: R, format: Format) -> Self {
        let parser: Box<dyn LineParser> = match format {
            Format::Fio => Box::new(fio::Fio::default()),
            Format::Blktrace => Box::new(blktrace::Blktrace::default()),
            Format::Msr => Box::new(msr::Msr::default()),
        };
        Records { input, parser, line: 0, buffer: Vec::new(), last_ns: 0, over: false }
    }

    /// Reads a line without its end; false at the file's end.
    fn read_line(&mut self) -> Result<bool, TraceError> {
        self.buffer.clear();
        self.line += 1;
        let wrong = |line: u64, problem: String| TraceError { line, field: "line", problem };
        loop {
            let line = self.line;
            let chunk = self.input.fill_buf().map_err(|error| wrong(line, format!("it cannot be read: {error}")))?;
            if chunk.is_empty() {
                return Ok(!self.buffer.is_empty());
            }
            let end = chunk.iter().position(|byte| *byte == b'\n');
            let take = end.unwrap_or(chunk.len());
            if self.buffer.len() + take > LINE_BYTES_MAX {
                return Err(wrong(line, format!("it is longer than {LINE_BYTES_MAX} bytes: expected a trace in text")));
            }
            self.buffer.extend_from_slice(&chunk[..take]);
            self.input.consume(take + usize::from(end.is_some()));
            if end.is_some() {
                return Ok(true);
            }
        }
    }

    fn step(&mut self) -> Result<Option<Record>, TraceError> {
        loop {
            let there = self.read_line()?;
            let line = self.line;
            let placed = |Wrong(field, problem)| TraceError { line, field, problem };
            if !there {
                self.parser.end().map_err(placed)?;
                return Ok(None);
            }
            let Ok(text) = std::str::from_utf8(&self.buffer) else {
                return Err(placed(Wrong("line", "it is no UTF-8: expected a trace in text".to_owned())));
            };
            match self.parser.line(text.trim()).map_err(placed)? {
                Meaning::Nothing => {}
                Meaning::End => return Ok(None),
                Meaning::Request(at_ns, action, offset, bytes) => {
                    self.last_ns = self.last_ns.max(at_ns);
                    return Ok(Some(Record { line, at_ns: self.last_ns, action, offset, bytes }));
                }
            }
        }
    }
}

impl<R: BufRead> Iterator for Records<R> {
    type Item = Result<Record, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.over {
            return None;
        }
        let step = self.step().transpose();
        self.over = !matches!(step, Some(Ok(_)));
        step
    }
}

/// How a trace is replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplayOptions {
    /// Bytes of the namespace.
    pub namespace_bytes: u64,
    /// Its block size.
    pub block_bytes: u32,
    /// Addresses past the end go on from the beginning, and ranges are made whole blocks; else they are errors.
    pub wrap: bool,
    /// At the times of the trace; else as fast as the queue takes them (closed loop).
    pub timed: bool,
}

/// A trace as a generator's source.
pub struct Replay<R> {
    records: Records<R>,
    options: ReplayOptions,
}

impl<R: BufRead> Replay<R> {
    /// Of these records.
    pub fn new(records: Records<R>, options: ReplayOptions) -> Self {
        Replay { records, options }
    }

    fn fit(&self, record: &Record) -> Result<Operation, TraceError> {
        let Record { line, action, mut offset, mut bytes, .. } = *record;
        let wrong = |field, problem| TraceError { line, field, problem };
        if action == Action::Flush {
            return Ok(Operation::Flush);
        }
        let (size, block) = (self.options.namespace_bytes, u64::from(self.options.block_bytes));
        if bytes == 0 || bytes > REQUEST_BYTES_MAX {
            return Err(wrong("size", format!("{bytes} bytes found, expected 1 to {REQUEST_BYTES_MAX}")));
        }
        if self.options.wrap {
            let (begin, end) = (offset / block * block, offset.saturating_add(bytes));
            bytes = (end - begin).next_multiple_of(block).min(REQUEST_BYTES_MAX).min(size / block * block);
            // As many whole requests of this length as there is room for.
            let room = (size - bytes) / block + 1;
            offset = begin / block % room * block;
        }
        if !offset.is_multiple_of(block) {
            return Err(wrong("offset", format!("{offset} found, expected a multiple of the block size, {block}")));
        }
        if !bytes.is_multiple_of(block) {
            return Err(wrong("size", format!("{bytes} found, expected a multiple of the block size, {block}")));
        }
        if offset.checked_add(bytes).is_none_or(|end| end > size) {
            let problem = format!(
                "{bytes} bytes at {offset} found, expected a range that ends within the {size} bytes of the namespace"
            );
            return Err(wrong("offset", problem));
        }
        // Both bounds were checked.
        let bytes = bytes as u32;
        Ok(match action {
            Action::Read => Operation::Read { offset, bytes },
            Action::Write => Operation::Write { offset, bytes },
            Action::Deallocate | Action::Flush => Operation::Deallocate { offset, bytes },
        })
    }
}

impl<R: BufRead + 'static> Source for Replay<R> {
    fn next(&mut self, _now_ns: u64, _thread: usize) -> Next {
        let record = match self.records.next() {
            None => return Next::End,
            Some(Err(error)) => return Next::Broken(error.to_string()),
            Some(Ok(record)) => record,
        };
        match self.fit(&record) {
            Err(error) => Next::Broken(error.to_string()),
            Ok(operation) if self.options.timed => Next::At(record.at_ns, operation),
            Ok(operation) => Next::Now(operation),
        }
    }
}

#[cfg(test)]
mod tests;
