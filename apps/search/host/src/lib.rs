//! The app `search`'s library for hosts: patterns as grep has them, which RPC scans which part of a file, and lines joined at borders.
//!
//! ```text
//! posix    patterns of POSIX and GNU grep for the engine       pattern  what is searched for: a set for the SPUs, and the host's own judge
//! plan     a file's extents as scans of banks, in rounds       join     segments in the file's order, as lines
//! literals what each match has                                grep     what GNU grep prints of a file's lines
//! ```
//!
//! What always holds: drive and host decide by the same expression; a line that the drive cannot decide is the host's to decide; no input or
//! output, no knowledge of a transport.
//!
//! Who may call it: host programs; `willow-host`'s search is written over it.

pub mod grep;
pub mod join;
pub mod literals;
pub mod pattern;
pub mod plan;
pub mod posix;

pub use grep::{Found, Grep, GrepOptions};
pub use pattern::{Judge, Pattern, PatternOptions};
pub use posix::{PatternError, Syntax};
pub use search_spu::{segment, wire};

/// Name that the app is installed under.
pub const APP_NAME: &str = "search";
