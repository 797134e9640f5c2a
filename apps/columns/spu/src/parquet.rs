//! One column chunk of Parquet, read from its first page on: flat columns, required or optional, with plain values or those of a dictionary.
//!
//! What always holds: pages are taken as their headers say, and every length and index in them is checked before it is used; what is not supported
//! ends the run with its number.

use alloc::vec::Vec;

use crate::engine::{Input, Port, Stop, push_number};
use crate::hybrid::Hybrid;
use crate::packed::{Packed, PackedError};
use crate::page::{HEADER_BYTES_MAX, Header, Page, encoding};
use crate::thrift::ThriftError;
use crate::value::{Kind, Values, reserved};
use crate::wire::{Column, Reason, Storage};

/// Least bytes that are decompressed ahead of what is wanted.
const AHEAD_BYTES: usize = 16 << 10;
/// What a page's header costs.
const WORK_OF_A_HEADER: usize = 4000;

/// How the values of the page at hand are encoded.
#[derive(Clone, Copy)]
enum Decoder {
    Plain,
    /// Booleans, one bit each; bits of the first byte that were given.
    Bits(u32),
    /// Booleans in runs.
    Runs(Hybrid),
    Dictionary(Hybrid),
}

/// A column chunk under way.
pub struct Cursor {
    column: Column,
    number: u8,
    input: Input,
    packed: Option<Packed>,
    /// The page at hand is compressed.
    is_compressed: bool,
    /// Bytes of the page that were not taken from the input.
    page_bytes: u64,
    decoder: Decoder,
    /// Definition levels of the page, and what was decoded of them.
    levels: Vec<u8>,
    levels_at: usize,
    level_decoder: Hybrid,
    /// Rows left of the page.
    rows: u32,
    /// Values of the dictionary; byte strings lie in what the batch keeps.
    dictionary: Option<Values>,
    /// Decoded and not used yet: levels, or numbers of values.
    numbers: Vec<u32>,
    flags: Vec<u32>,
}

impl Cursor {
    /// At the first row of a column, the plan's of that number.
    pub fn new(column: &Column, number: u8, batch_rows: usize) -> Result<Cursor, Stop> {
        Ok(Cursor {
            column: *column,
            number,
            input: Input::new(column.chunk_offset, column.chunk_offset + column.chunk_bytes),
            packed: Packed::new(column.codec)?,
            is_compressed: false,
            page_bytes: 0,
            decoder: Decoder::Plain,
            levels: Vec::new(),
            levels_at: 0,
            level_decoder: Hybrid::new(1),
            rows: 0,
            dictionary: None,
            numbers: reserved(batch_rows)?,
            flags: reserved(batch_rows)?,
        })
    }

    fn fault(&self, reason: Reason) -> Stop {
        Stop::fault(reason, self.number, 0)
    }

    fn encoding(&self, encoding: i32) -> Stop {
        Stop::fault(Reason::Encoding, self.number, encoding.clamp(0, u16::MAX.into()) as u16)
    }

    /// Bytes of the page that are here.
    fn here(&self) -> &[u8] {
        match &self.packed {
            Some(packed) if self.is_compressed => packed.available(),
            _ => {
                let here = self.input.available();
                &here[..here.len().min(usize::try_from(self.page_bytes).unwrap_or(usize::MAX))]
            }
        }
    }

    fn take(&mut self, bytes: usize) {
        match &mut self.packed {
            Some(packed) if self.is_compressed => packed.take(bytes),
            _ => {
                self.input.take(bytes);
                self.page_bytes -= bytes as u64;
            }
        }
    }

    /// Has at least so many bytes of the page here.
    async fn need<P: Port>(&mut self, port: &P, wanted: usize) -> Result<(), Stop> {
        if self.here().len() >= wanted {
            return Ok(());
        }
        if !self.is_compressed {
            if wanted as u64 > self.page_bytes || !self.input.fill(port, wanted).await? {
                return Err(self.fault(Reason::Malformed));
            }
            return Ok(());
        }
        if wanted > port.value_bytes_max() {
            return Err(Stop::NoMemory);
        }
        let (malformed, compressed) = (self.fault(Reason::Malformed), self.fault(Reason::Compressed));
        let of = |error| match error {
            PackedError::NoMemory => Stop::NoMemory,
            PackedError::Malformed => compressed,
            PackedError::Port(stop) => stop,
        };
        let Some(packed) = &mut self.packed else { return Err(malformed) };
        // A host keeps all that a reference may reach.
        let keep_all = port.value_bytes_max() == crate::engine::VALUE_BYTES_MAX;
        let mut wants_more = false;
        while packed.available().len() < wanted {
            if packed.is_over() {
                return Err(malformed);
            }
            packed.make_room(wanted.max(AHEAD_BYTES), keep_all).map_err(of)?;
            let before = (packed.available().len(), self.input.available().len());
            // A block of a codec may be much longer than what is here.
            let least = if wants_more { (2 * before.1).min(port.value_bytes_max()).max(before.1 + 1) } else { 1 };
            if self.page_bytes > 0 {
                let least = least.min(usize::try_from(self.page_bytes).unwrap_or(usize::MAX));
                if !self.input.fill(port, least).await? {
                    return Err(malformed);
                }
            }
            let here = self.input.available();
            let here = &here[..here.len().min(usize::try_from(self.page_bytes).unwrap_or(usize::MAX))];
            let is_all = here.len() as u64 == self.page_bytes;
            let used = packed.step(port, here).await.map_err(of)?;
            self.input.take(used);
            self.page_bytes -= used as u64;
            let came = packed.available().len() - before.0;
            // An element's head may lie at the border of what is here.
            wants_more = used == 0 && came == 0;
            if wants_more && is_all {
                return Err(compressed);
            }
        }
        Ok(())
    }

    /// Takes the header of the next page: a data page's values come next, or its rows are skipped where there are no more than `skipped`.
    async fn page<P: Port>(&mut self, port: &P, into: Option<&mut Values>, skipped: u64) -> Result<u64, Stop> {
        // What the page before has left: padding, or what nobody needed.
        if !self.input.skip(self.page_bytes) {
            return Err(self.fault(Reason::Malformed));
        }
        self.page_bytes = 0;
        let header = self.header(port).await?;
        port.worked(WORK_OF_A_HEADER).await?;
        if u64::from(header.bytes) > self.input.left() {
            return Err(self.fault(Reason::Malformed));
        }
        self.page_bytes = header.bytes.into();
        self.is_compressed = self.packed.is_some();
        match header.page {
            Page::Dictionary { values, encoding } => {
                if !matches!(encoding, encoding::PLAIN | encoding::PLAIN_DICTIONARY) {
                    return Err(self.encoding(encoding));
                }
                if self.dictionary.is_some() || self.column.storage == Storage::Bool {
                    return Err(self.fault(Reason::Malformed));
                }
                self.begin(header.plain_bytes);
                self.read_dictionary(port, values, header.plain_bytes, into).await?;
                Ok(0)
            }
            Page::Data { values, .. } | Page::DataV2 { values, .. } if u64::from(values) <= skipped => {
                Ok(values.into())
            }
            Page::Data { values, encoding, level_encoding } => {
                self.begin(header.plain_bytes);
                self.rows = values;
                if self.column.is_optional {
                    if level_encoding != encoding::RLE {
                        return Err(self.encoding(level_encoding));
                    }
                    self.need(port, 4).await?;
                    let bytes = self.word() as usize;
                    self.read_levels(port, bytes).await?;
                }
                self.start_values(port, encoding).await?;
                Ok(0)
            }
            Page::DataV2 { values, encoding, definition_bytes, repetition_bytes, is_compressed } => {
                let levels = u64::from(definition_bytes) + u64::from(repetition_bytes);
                let plain_bytes = u64::from(header.plain_bytes).checked_sub(levels);
                let plain_bytes = plain_bytes.ok_or_else(|| self.fault(Reason::Malformed))?;
                if repetition_bytes > 0 || levels > self.page_bytes {
                    return Err(self.fault(Reason::Malformed));
                }
                self.is_compressed = false;
                self.rows = values;
                if self.column.is_optional {
                    self.read_levels(port, definition_bytes as usize).await?;
                } else if definition_bytes > 0 {
                    return Err(self.fault(Reason::Malformed));
                }
                self.is_compressed = is_compressed && self.packed.is_some();
                self.begin(plain_bytes as u32);
                if self.page_bytes > 0 {
                    self.start_values(port, encoding).await?;
                } else {
                    // All are null, or the first value is found missing.
                    let is_bool = self.column.storage == Storage::Bool;
                    self.decoder = if is_bool { Decoder::Bits(0) } else { Decoder::Plain };
                }
                Ok(0)
            }
            Page::Other => Err(self.fault(Reason::Page)),
        }
    }

    /// The header of the next page.
    async fn header<P: Port>(&mut self, port: &P) -> Result<Header, Stop> {
        let mut wanted = 1;
        loop {
            if !self.input.fill(port, wanted).await? {
                return Err(self.fault(Reason::Malformed));
            }
            let here = self.input.available();
            let here = &here[..here.len().min(HEADER_BYTES_MAX)];
            match Header::decode(here) {
                Ok((header, bytes)) => {
                    self.input.take(bytes);
                    return Ok(header);
                }
                Err(ThriftError::Incomplete) if here.len() < HEADER_BYTES_MAX => wanted = here.len() + 1,
                Err(_) => return Err(self.fault(Reason::Malformed)),
            }
            // A header is read from its start each time: ask for much more, as far as there is more.
            wanted = (wanted * 2)
                .min(HEADER_BYTES_MAX)
                .min(usize::try_from(self.input.left()).unwrap_or(usize::MAX))
                .max(wanted);
            port.worked(wanted).await?;
        }
    }

    fn begin(&mut self, plain_bytes: u32) {
        if let Some(packed) = self.packed.as_mut().filter(|_| self.is_compressed) {
            packed.start(plain_bytes);
        }
    }

    /// Four bytes that are here, taken.
    fn word(&mut self) -> u32 {
        let word = self.here().first_chunk().map_or(0, |word| u32::from_le_bytes(*word));
        self.take(4);
        word
    }

    async fn read_levels<P: Port>(&mut self, port: &P, bytes: usize) -> Result<(), Stop> {
        self.levels.clear();
        self.levels_at = 0;
        self.level_decoder = Hybrid::new(1);
        while self.levels.len() < bytes {
            self.need(port, 1).await?;
            let count = self.here().len().min(bytes - self.levels.len());
            self.levels.try_reserve(count).map_err(|_| Stop::NoMemory)?;
            // Not by `here`, which borrows all of this.
            let here = match &self.packed {
                Some(packed) if self.is_compressed => packed.available(),
                _ => self.input.available(),
            };
            self.levels.extend_from_slice(&here[..count]);
            self.take(count);
        }
        Ok(())
    }

    async fn start_values<P: Port>(&mut self, port: &P, encoding: i32) -> Result<(), Stop> {
        self.decoder = match (encoding, self.column.storage) {
            (encoding::PLAIN, Storage::Bool) => Decoder::Bits(0),
            (encoding::PLAIN, _) => Decoder::Plain,
            (encoding::RLE, Storage::Bool) => {
                self.need(port, 4).await?;
                self.word();
                Decoder::Runs(Hybrid::new(1))
            }
            (encoding::RLE_DICTIONARY | encoding::PLAIN_DICTIONARY, _) => {
                if self.dictionary.is_none() {
                    return Err(self.fault(Reason::Malformed));
                }
                // A page of nulls alone may have nothing here.
                let is_empty = !self.is_compressed && self.page_bytes == 0;
                let bits = if is_empty {
                    0
                } else {
                    self.need(port, 1).await?;
                    let bits = self.here()[0];
                    self.take(1);
                    bits
                };
                if bits > 32 {
                    return Err(self.fault(Reason::Malformed));
                }
                Decoder::Dictionary(Hybrid::new(bits.into()))
            }
            _ => return Err(self.encoding(encoding)),
        };
        Ok(())
    }

    async fn read_dictionary<P: Port>(
        &mut self,
        port: &P,
        values: u32,
        plain_bytes: u32,
        into: Option<&mut Values>,
    ) -> Result<(), Stop> {
        let (width, kind) = (self.column.width as usize, self.column.kind);
        // Each has so many bytes at least: a count that is none takes no memory.
        let least = if self.column.storage == Storage::Variable { 4 } else { width as u64 };
        if u64::from(values) * least > plain_bytes.into() {
            return Err(self.fault(Reason::Malformed));
        }
        let mut dictionary = Values::new(kind, values as usize)?;
        while dictionary.rows() < values as usize {
            let count = (values as usize - dictionary.rows()).min(1024);
            self.plain(port, count, &mut dictionary).await?;
            let rows = dictionary.rows() + count;
            dictionary.valid.resize(rows, 1);
            port.worked(count * 20).await?;
        }
        if let Some(into) = into.filter(|_| kind == Kind::Bytes) {
            if into.rows() > 0 {
                // A dictionary comes first in its chunk.
                return Err(self.fault(Reason::Malformed));
            }
            into.bytes = core::mem::take(&mut dictionary.bytes);
            into.kept_bytes = into.bytes.len();
        }
        self.dictionary = Some(dictionary);
        Ok(())
    }

    /// Appends plain values, without their rows.
    async fn plain<P: Port>(&mut self, port: &P, count: usize, into: &mut Values) -> Result<(), Stop> {
        let (width, kind) = (self.column.width as usize, self.column.kind);
        let mut left = count;
        while left > 0 {
            if self.column.storage == Storage::Variable {
                self.need(port, 4).await?;
                let bytes = self.here().first_chunk().map_or(0, |word| u32::from_le_bytes(*word)) as usize;
                let all = bytes.checked_add(4).ok_or_else(|| self.fault(Reason::Malformed))?;
                self.need(port, all).await?;
                let span = into.add_bytes(&self.here()[4..all])?;
                into.spans.push(span);
                self.take(all);
                left -= 1;
                continue;
            }
            self.need(port, width).await?;
            let here = self.here();
            let now = left.min(here.len() / width);
            let here = &here[..now * width];
            let fields = here.chunks_exact(width);
            let (fours, eights) = (here.as_chunks().0.iter(), here.as_chunks().0.iter());
            // The usual widths by loops of their own, which the compiler makes vectors of.
            match (self.column.storage, kind, width) {
                (Storage::Fixed, ..) => {
                    for field in fields {
                        let span = into.add_bytes(field)?;
                        into.spans.push(span);
                    }
                }
                (_, Kind::Float, 8) => into.floats.extend(eights.map(|field| f64::from_le_bytes(*field))),
                (_, Kind::Int | Kind::Unsigned, 8) => into.ints.extend(eights.map(|field| i64::from_le_bytes(*field))),
                (_, Kind::Float, 4) => into.floats.extend(fours.map(|field| f64::from(f32::from_le_bytes(*field)))),
                (_, Kind::Int, 4) => into.ints.extend(fours.map(|field| i64::from(i32::from_le_bytes(*field)))),
                (_, Kind::Unsigned, 4) => into.ints.extend(fours.map(|field| i64::from(u32::from_le_bytes(*field)))),
                _ => fields.for_each(|field| push_number(into, kind, bits(field), width)),
            }
            self.take(now * width);
            left -= now;
        }
        Ok(())
    }

    /// Decodes numbers of runs and groups.
    async fn hybrid<P: Port>(&mut self, port: &P, mut decoder: Hybrid, count: usize) -> Result<Hybrid, Stop> {
        self.numbers.clear();
        loop {
            let mut numbers = core::mem::take(&mut self.numbers);
            let used = decoder.decode(self.here(), count, &mut numbers);
            self.numbers = numbers;
            self.take(used.map_err(|_| self.fault(Reason::Malformed))?);
            if self.numbers.len() >= count {
                return Ok(decoder);
            }
            self.need(port, self.here().len() + 1).await?;
        }
    }

    /// Appends values, without their rows.
    async fn values<P: Port>(&mut self, port: &P, count: usize, into: &mut Values) -> Result<(), Stop> {
        if count == 0 {
            return Ok(());
        }
        match self.decoder {
            Decoder::Plain => self.plain(port, count, into).await,
            Decoder::Bits(mut bit) => {
                for _ in 0..count {
                    self.need(port, 1).await?;
                    into.ints.push(i64::from(self.here()[0] >> bit & 1));
                    bit += 1;
                    if bit == 8 {
                        self.take(1);
                        bit = 0;
                    }
                }
                self.decoder = Decoder::Bits(bit);
                Ok(())
            }
            Decoder::Runs(decoder) => {
                self.decoder = Decoder::Runs(self.hybrid(port, decoder, count).await?);
                into.ints.extend(self.numbers.iter().map(|number| i64::from(*number)));
                Ok(())
            }
            Decoder::Dictionary(decoder) => {
                self.decoder = Decoder::Dictionary(self.hybrid(port, decoder, count).await?);
                let malformed = self.fault(Reason::Malformed);
                let Some(dictionary) = &self.dictionary else { return Err(malformed) };
                let is_known = match into.kind {
                    Kind::Bool | Kind::Int | Kind::Unsigned => gather(&dictionary.ints, &self.numbers, &mut into.ints),
                    Kind::Float => gather(&dictionary.floats, &self.numbers, &mut into.floats),
                    Kind::Bytes => gather(&dictionary.spans, &self.numbers, &mut into.spans),
                };
                if is_known { Ok(()) } else { Err(malformed) }
            }
        }
    }

    /// Appends so many rows.
    pub async fn next<P: Port>(&mut self, port: &P, rows: usize, into: &mut Values) -> Result<(), Stop> {
        let wanted = into.rows() + rows;
        while into.rows() < wanted {
            if self.rows == 0 {
                self.page(port, Some(&mut *into), 0).await?;
                continue;
            }
            let count = (wanted - into.rows()).min(self.rows as usize);
            let before = into.rows();
            let mut has_all = !self.column.is_optional;
            if !has_all {
                // Mostly there are no nulls.
                let run = self.level_decoder.take_run(&self.levels[self.levels_at..], count, 1);
                let (is_run, used) = run.map_err(|_| self.fault(Reason::Malformed))?;
                self.levels_at += used;
                has_all = is_run;
            }
            if !has_all {
                self.flags.clear();
                let mut flags = core::mem::take(&mut self.flags);
                let used = self.level_decoder.decode(&self.levels[self.levels_at..], count, &mut flags);
                self.flags = flags;
                self.levels_at += used.map_err(|_| self.fault(Reason::Malformed))?;
                if self.flags.len() < count {
                    return Err(self.fault(Reason::Malformed));
                }
                let here = self.flags.iter().filter(|flag| **flag == 1).count();
                self.values(port, here, into).await?;
                into.valid.extend(self.flags.iter().map(|flag| *flag as u8));
                if here < count {
                    match into.kind {
                        Kind::Bool | Kind::Int | Kind::Unsigned => spread(&mut into.ints, before, &self.flags),
                        Kind::Float => spread(&mut into.floats, before, &self.flags),
                        Kind::Bytes => spread(&mut into.spans, before, &self.flags),
                    }
                }
            } else {
                self.values(port, count, into).await?;
                into.valid.resize(before + count, 1);
            }
            self.rows -= count as u32;
        }
        Ok(())
    }

    /// Goes on behind so many rows from the first on.
    pub async fn skip<P: Port>(&mut self, port: &P, rows: u64) -> Result<(), Stop> {
        let mut left = rows;
        // Nobody looks at them, but for a dictionary's byte strings: see `kept`.
        let mut nobody = Values::new(self.column.kind, self.numbers.capacity())?;
        while left > 0 {
            if self.rows == 0 {
                left -= self.page(port, Some(&mut nobody), left).await?;
                continue;
            }
            let count = left.min(self.rows.into()).min(self.numbers.capacity() as u64) as usize;
            nobody.clear();
            self.next(port, count, &mut nobody).await?;
            port.worked(count * 20).await?;
            left -= count as u64;
        }
        if let Some(dictionary) = self.dictionary.as_mut().filter(|_| nobody.kept_bytes > 0) {
            nobody.clear();
            dictionary.bytes = nobody.bytes;
        }
        Ok(())
    }

    /// What a batch keeps of the dictionary that was read by [`Cursor::skip`].
    pub fn kept(&mut self, into: &mut Values) {
        if let Some(dictionary) = self.dictionary.as_mut().filter(|dictionary| !dictionary.bytes.is_empty()) {
            into.bytes = core::mem::take(&mut dictionary.bytes);
            into.kept_bytes = into.bytes.len();
        }
    }
}

/// Appends the values of a dictionary that are named by number; false where one is not in it.
fn gather<T: Copy>(dictionary: &[T], numbers: &[u32], into: &mut Vec<T>) -> bool {
    let most = numbers.iter().copied().max();
    if most.is_some_and(|most| most as usize >= dictionary.len()) {
        return false;
    }
    into.extend(numbers.iter().map(|number| dictionary[*number as usize]));
    true
}

/// A number's bytes.
fn bits(field: &[u8]) -> u64 {
    match field.try_into() {
        Ok(bytes) => u64::from_le_bytes(bytes),
        Err(_) => field.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)),
    }
}

/// Moves values from `before` on to the rows that have one; the others get nothing.
fn spread<T: Copy + Default>(values: &mut Vec<T>, before: usize, flags: &[u32]) {
    let mut from = values.len();
    values.resize(before + flags.len(), T::default());
    for (row, flag) in flags.iter().enumerate().rev() {
        values[before + row] = if *flag == 1 {
            from -= 1;
            values[from]
        } else {
            T::default()
        };
    }
}
