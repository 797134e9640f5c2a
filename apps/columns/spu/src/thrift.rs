//! Thrift's compact protocol, as much as Parquet's metadata need: structs are read field by field, and what is not known is skipped.
//!
//! What always holds: nothing is read past the bytes; nesting, and with it the stack, is bounded; a length is never believed before the bytes are there.

/// Why bytes cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThriftError {
    /// They end too early.
    Incomplete,
    /// They are none of the protocol.
    Malformed,
}

/// Deepest nesting.
const DEPTH_MAX: u32 = 16;

/// Types of the protocol.
pub mod kind {
    /// A boolean that is true.
    pub const TRUE: u8 = 1;
    /// A boolean that is false.
    pub const FALSE: u8 = 2;
    /// A byte.
    pub const BYTE: u8 = 3;
    /// 16 bits.
    pub const I16: u8 = 4;
    /// 32 bits.
    pub const I32: u8 = 5;
    /// 64 bits.
    pub const I64: u8 = 6;
    /// Eight bytes.
    pub const DOUBLE: u8 = 7;
    /// A length and bytes.
    pub const BINARY: u8 = 8;
    /// A list.
    pub const LIST: u8 = 9;
    /// A set.
    pub const SET: u8 = 10;
    /// A map.
    pub const MAP: u8 = 11;
    /// A struct.
    pub const STRUCT: u8 = 12;
}

/// Reads bytes.
#[derive(Clone, Copy, Debug)]
pub struct Thrift<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Thrift<'a> {
    /// From the first byte on.
    pub fn new(bytes: &'a [u8]) -> Self {
        Thrift { bytes, at: 0 }
    }

    /// Bytes that were read.
    pub fn at(&self) -> usize {
        self.at
    }

    fn byte(&mut self) -> Result<u8, ThriftError> {
        let byte = *self.bytes.get(self.at).ok_or(ThriftError::Incomplete)?;
        self.at += 1;
        Ok(byte)
    }

    /// An integer of eight bits.
    pub fn raw_byte(&mut self) -> Result<u8, ThriftError> {
        self.byte()
    }

    fn varint(&mut self) -> Result<u64, ThriftError> {
        let mut value = 0;
        for shift in (0..70).step_by(7) {
            let byte = self.byte()?;
            if shift == 63 && byte > 1 {
                return Err(ThriftError::Malformed);
            }
            value |= u64::from(byte & 127) << shift;
            if byte < 128 {
                return Ok(value);
            }
        }
        Err(ThriftError::Malformed)
    }

    /// An integer of 16 to 64 bits.
    pub fn integer(&mut self) -> Result<i64, ThriftError> {
        let value = self.varint()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    /// The same where it must fit 32 bits.
    pub fn i32(&mut self) -> Result<i32, ThriftError> {
        i32::try_from(self.integer()?).map_err(|_| ThriftError::Malformed)
    }

    fn taken(&mut self, count: u64) -> Result<&'a [u8], ThriftError> {
        let count = usize::try_from(count).map_err(|_| ThriftError::Malformed)?;
        let end = self.at.checked_add(count).ok_or(ThriftError::Malformed)?;
        let bytes = self.bytes.get(self.at..end).ok_or(ThriftError::Incomplete)?;
        self.at = end;
        Ok(bytes)
    }

    /// A length and bytes.
    pub fn binary(&mut self) -> Result<&'a [u8], ThriftError> {
        let count = self.varint()?;
        self.taken(count)
    }

    /// The head of a list: what its elements are, and how many.
    pub fn list(&mut self) -> Result<(u8, usize), ThriftError> {
        let head = self.byte()?;
        let count = if head >> 4 == 15 { self.varint()? } else { u64::from(head >> 4) };
        // Each element has a byte at least.
        let count = usize::try_from(count).map_err(|_| ThriftError::Malformed)?;
        if count > self.bytes.len() - self.at { Err(ThriftError::Incomplete) } else { Ok((head & 15, count)) }
    }

    /// A list of structs, each read by `each`.
    pub fn structs(&mut self, mut each: impl FnMut(&mut Self) -> Result<(), ThriftError>) -> Result<(), ThriftError> {
        let (of, count) = self.list()?;
        if of != kind::STRUCT && count > 0 {
            return Err(ThriftError::Malformed);
        }
        (0..count).try_for_each(|_| each(self))
    }

    /// A struct: `each` gets number and type of each field, and says whether it has read it; what it has not is skipped.
    pub fn fields(
        &mut self,
        mut each: impl FnMut(&mut Self, i16, u8) -> Result<bool, ThriftError>,
    ) -> Result<(), ThriftError> {
        let mut last = 0i16;
        loop {
            let head = self.byte()?;
            if head == 0 {
                return Ok(());
            }
            let of = head & 15;
            last = match head >> 4 {
                0 => i16::try_from(self.integer()?).map_err(|_| ThriftError::Malformed)?,
                delta => last.checked_add(delta.into()).ok_or(ThriftError::Malformed)?,
            };
            if !each(self, last, of)? {
                self.skip(of, 0)?;
            }
        }
    }

    /// Skips a field's value of that type.
    pub fn skip(&mut self, of: u8, depth: u32) -> Result<(), ThriftError> {
        if depth > DEPTH_MAX {
            return Err(ThriftError::Malformed);
        }
        match of {
            kind::TRUE | kind::FALSE => Ok(()),
            kind::BYTE => self.byte().map(drop),
            kind::I16 | kind::I32 | kind::I64 => self.varint().map(drop),
            kind::DOUBLE => self.taken(8).map(drop),
            kind::BINARY => self.binary().map(drop),
            kind::LIST | kind::SET => {
                let (of, count) = self.list()?;
                (0..count).try_for_each(|_| self.skip_element(of, depth + 1))
            }
            kind::MAP => {
                let count = self.varint()?;
                if count == 0 {
                    return Ok(());
                }
                let kinds = self.byte()?;
                for _ in 0..count {
                    self.skip_element(kinds >> 4, depth + 1)?;
                    self.skip_element(kinds & 15, depth + 1)?;
                }
                Ok(())
            }
            kind::STRUCT => loop {
                let head = self.byte()?;
                if head == 0 {
                    return Ok(());
                }
                if head >> 4 == 0 {
                    self.integer()?;
                }
                self.skip(head & 15, depth + 1)?;
            },
            _ => Err(ThriftError::Malformed),
        }
    }

    /// Elements have booleans as bytes.
    fn skip_element(&mut self, of: u8, depth: u32) -> Result<(), ThriftError> {
        if of == kind::TRUE || of == kind::FALSE { self.byte().map(drop) } else { self.skip(of, depth) }
    }
}
