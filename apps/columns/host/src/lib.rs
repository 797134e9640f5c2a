//! The app `columns`' library for hosts: tables as files have them, expressions, plans for the SPUs, and results.
//!
//! ```text
//! schema      columns and their types               footer   a Parquet file's metadata      expression  the language of --where
//! table       a file as a table                     query    what is asked, as plans for its parts
//! pages       a Parquet file's page index
//! outcome     results of parts put together         arrow    Arrow IPC                      print       CSV and JSON
//! ```
//!
//! What always holds: drive and host compute by the same code (`columns_spu::engine`); parts are put together in the file's order; no input or
//! output, no knowledge of a transport.
//!
//! Who may call it: host programs; `willow-host`'s columns are written over it.

pub mod arrow;
pub mod expression;
pub mod footer;
pub mod outcome;
pub mod pages;
pub mod print;
pub mod query;
pub mod schema;
pub mod table;
#[cfg(feature = "testing")]
pub mod testing;

pub use columns_spu::{engine, predicate, sink, value, wire};
pub use query::{Query, QueryError, Unit, Wanted};
pub use schema::{DataType, Field};
pub use table::{Table, TableError};

/// Name that the app is installed under.
pub const APP_NAME: &str = "columns";
