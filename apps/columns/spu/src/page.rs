//! Headers of Parquet's pages.
//!
//! What always holds: lengths are not negative, and a header that decodes is one of a page that can be read, or says which it is.

use crate::thrift::{Thrift, ThriftError, kind};

/// Longest header, with its statistics.
pub const HEADER_BYTES_MAX: usize = 16 << 10;

/// Encodings, by their numbers in the format.
pub mod encoding {
    /// Values one after the other.
    pub const PLAIN: i32 = 0;
    /// Numbers of a dictionary's values, as older writers call it.
    pub const PLAIN_DICTIONARY: i32 = 2;
    /// Runs and bit-packed groups.
    pub const RLE: i32 = 3;
    /// Numbers of a dictionary's values.
    pub const RLE_DICTIONARY: i32 = 8;
}

/// What a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Page {
    /// Values that others refer to.
    Dictionary {
        /// How many.
        values: u32,
        /// How they are encoded.
        encoding: i32,
    },
    /// Values of rows.
    Data {
        /// How many, nulls included.
        values: u32,
        /// How they are encoded.
        encoding: i32,
        /// How definition levels are encoded.
        level_encoding: i32,
    },
    /// Values of rows, of which the levels are never compressed.
    DataV2 {
        /// How many, nulls included.
        values: u32,
        /// How they are encoded.
        encoding: i32,
        /// Bytes of definition levels.
        definition_bytes: u32,
        /// Bytes of repetition levels.
        repetition_bytes: u32,
        /// True where values are compressed by the column's codec.
        is_compressed: bool,
    },
    /// An index, or what is not known.
    Other,
}

/// The header of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What it is.
    pub page: Page,
    /// Bytes that follow the header.
    pub bytes: u32,
    /// Bytes of the page when it is decompressed.
    pub plain_bytes: u32,
}

fn length(from: &mut Thrift<'_>) -> Result<u32, ThriftError> {
    u32::try_from(from.i32()?).map_err(|_| ThriftError::Malformed)
}

impl Header {
    /// Of bytes; with it how many it has.
    pub fn decode(bytes: &[u8]) -> Result<(Header, usize), ThriftError> {
        let mut from = Thrift::new(bytes);
        let (mut of, mut packed, mut plain) = (None, None, None);
        let (mut data, mut dictionary, mut second) = (None, None, None);
        from.fields(|from, field, of_type| {
            match (field, of_type) {
                (1, kind::I32) => of = Some(from.i32()?),
                (2, kind::I32) => plain = Some(length(from)?),
                (3, kind::I32) => packed = Some(length(from)?),
                (5, kind::STRUCT) => data = Some(data_page(from)?),
                (7, kind::STRUCT) => dictionary = Some(dictionary_page(from)?),
                (8, kind::STRUCT) => second = Some(data_page_v2(from)?),
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        let (Some(of), Some(bytes), Some(plain_bytes)) = (of, packed, plain) else {
            return Err(ThriftError::Malformed);
        };
        let page = match of {
            0 => data.ok_or(ThriftError::Malformed)?,
            2 => dictionary.ok_or(ThriftError::Malformed)?,
            3 => second.ok_or(ThriftError::Malformed)?,
            _ => Page::Other,
        };
        Ok((Header { page, bytes, plain_bytes }, from.at()))
    }
}

fn data_page(from: &mut Thrift<'_>) -> Result<Page, ThriftError> {
    let (mut values, mut encoding, mut level_encoding) = (None, None, encoding::RLE);
    from.fields(|from, field, of_type| {
        match (field, of_type) {
            (1, kind::I32) => values = Some(length(from)?),
            (2, kind::I32) => encoding = Some(from.i32()?),
            (3, kind::I32) => level_encoding = from.i32()?,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    let (Some(values), Some(encoding)) = (values, encoding) else { return Err(ThriftError::Malformed) };
    Ok(Page::Data { values, encoding, level_encoding })
}

fn dictionary_page(from: &mut Thrift<'_>) -> Result<Page, ThriftError> {
    let (mut values, mut encoding) = (None, None);
    from.fields(|from, field, of_type| {
        match (field, of_type) {
            (1, kind::I32) => values = Some(length(from)?),
            (2, kind::I32) => encoding = Some(from.i32()?),
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    let (Some(values), Some(encoding)) = (values, encoding) else { return Err(ThriftError::Malformed) };
    Ok(Page::Dictionary { values, encoding })
}

fn data_page_v2(from: &mut Thrift<'_>) -> Result<Page, ThriftError> {
    let (mut values, mut encoding, mut is_compressed) = (None, None, true);
    let (mut definition_bytes, mut repetition_bytes) = (None, None);
    from.fields(|from, field, of_type| {
        match (field, of_type) {
            (1, kind::I32) => values = Some(length(from)?),
            (4, kind::I32) => encoding = Some(from.i32()?),
            (5, kind::I32) => definition_bytes = Some(length(from)?),
            (6, kind::I32) => repetition_bytes = Some(length(from)?),
            (7, kind::TRUE) => is_compressed = true,
            (7, kind::FALSE) => is_compressed = false,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    match (values, encoding, definition_bytes, repetition_bytes) {
        (Some(values), Some(encoding), Some(definition_bytes), Some(repetition_bytes)) => {
            Ok(Page::DataV2 { values, encoding, definition_bytes, repetition_bytes, is_compressed })
        }
        _ => Err(ThriftError::Malformed),
    }
}
