//! What a file's bytes are read from, and the table that they are.

use super::ColumnsError;
use crate::direct_io::DirectFile;
use columns_host::Query;
use columns_host::footer::{TAIL_BYTES, metadata_bytes};
use columns_host::schema::Field;
use columns_host::table::{FileFormat, HEAD_BYTES, Table};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A file.
pub enum Place {
    /// One that this process has directly.
    Direct(DirectFile),
    /// One as this host has it, of so many bytes when it was opened.
    Host(File, u64),
}

/// How CSV is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CsvOptions {
    /// Between fields.
    pub delimiter: u8,
    /// The first record has the columns' names.
    pub has_header: bool,
}

/// Counts the bytes that are read.
pub(super) struct Counting<'a> {
    pub place: &'a Place,
    pub bytes: &'a AtomicU64,
}

impl Place {
    /// Its length.
    pub fn bytes(&self) -> u64 {
        match self {
            Place::Direct(file) => file.bytes(),
            Place::Host(_, bytes) => *bytes,
        }
    }

    /// All of the buffer.
    pub async fn read(&self, into: &mut [u8], offset: u64) -> Result<(), ColumnsError> {
        match self {
            Place::Direct(file) => match file.read_at(into, offset).await? {
                count if count == into.len() => Ok(()),
                _ => Err(ColumnsError::Shorter),
            },
            Place::Host(file, _) => match file.read_exact_at(into, offset) {
                Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Err(ColumnsError::Shorter),
                done => done.map_err(ColumnsError::Read),
            },
        }
    }
}

impl Place {
    /// The table with what its page index says of the columns that a query compares.
    pub(super) async fn with_page_index(&self, table: Arc<Table>, query: &Query) -> Result<Arc<Table>, ColumnsError> {
        let indexes = query.indexes(&table);
        if indexes.is_empty() {
            return Ok(table);
        }
        let mut table = Arc::unwrap_or_clone(table);
        for (group, column, index) in indexes {
            let mut bytes = [Vec::new(), Vec::new()];
            for (bytes, range) in bytes.iter_mut().zip([&index.values, &index.places]) {
                // Its length was bounded when it was named.
                bytes.resize((range.end - range.start) as usize, 0);
                self.read(bytes, range.start).await?;
            }
            let [values, places] = &bytes;
            table.learn_pages((group, column), values, places).map_err(columns_host::TableError::from)?;
        }
        Ok(Arc::new(table))
    }
}

impl Counting<'_> {
    pub async fn read(&self, into: &mut [u8], offset: u64) -> Result<(), ColumnsError> {
        self.bytes.fetch_add(into.len() as u64, Ordering::Relaxed);
        self.place.read(into, offset).await
    }
}

/// The table that a file is.
pub async fn read_table(
    place: &Place,
    format: FileFormat,
    csv: CsvOptions,
    schema: Option<Vec<Field>>,
) -> Result<Table, ColumnsError> {
    let file_bytes = place.bytes();
    Ok(match format {
        FileFormat::Binary => Table::binary(schema.unwrap_or_default(), file_bytes)?,
        FileFormat::Csv => {
            let mut head = vec![0; HEAD_BYTES.min(usize::try_from(file_bytes).unwrap_or(usize::MAX))];
            place.read(&mut head, 0).await?;
            Table::csv(&head, file_bytes, (csv.delimiter, csv.has_header), schema)?
        }
        FileFormat::Parquet => {
            let mut tail = [0; TAIL_BYTES];
            if file_bytes >= TAIL_BYTES as u64 {
                place.read(&mut tail, file_bytes - TAIL_BYTES as u64).await?;
            }
            let bytes = metadata_bytes(&tail, file_bytes).map_err(columns_host::TableError::from)?;
            let mut metadata = vec![0; bytes];
            place.read(&mut metadata, file_bytes - (TAIL_BYTES + bytes) as u64).await?;
            Table::parquet(&metadata, file_bytes)?
        }
    })
}
