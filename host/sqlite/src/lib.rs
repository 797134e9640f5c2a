//! SQLite on Atomic-Write: a loadable extension with a virtual file system, `willow`, by which an unmodified SQLite keeps its bases on files of
//! a Willow device without a journal (docs/sqlite.md).
//!
//! ```text
//! extension   what SQLite calls when it loads the library: registers the file system
//! vfs         the table of the file system: what is a base, a journal, and what is the system's own
//! methods     the tables of open files: bases and journals
//! base        a base: what a transaction writes is kept until its commit, and then written as a whole
//! journal     a rollback journal that is kept in memory, and put on the disk where a transaction is too large for the device's log
//! ranges      bytes that are written and not committed
//! locks       SQLite's locks, on a file beside the base: locks on a file that is direct would be lost
//! session     this process' way to device and agent
//! sqlite      what of SQLite's interface is used
//! under       the file system that SQLite had before: journals on the disk, temporary files
//! ```
//!
//! What always holds:
//! - a commit that SQLite was told of is durable; before that nothing of it is on the device, unless a whole journal is on the disk;
//! - a base whose file is not direct, or a transaction that is too large, goes SQLite's own way: journal, sync, pages, sync, deletion.

mod base;
mod extension;
mod journal;
mod locks;
mod methods;
mod ranges;
mod session;
mod sqlite;
mod under;
mod vfs;

pub use extension::{sqlite3_extension_init, sqlite3_willowsqlite_init};
