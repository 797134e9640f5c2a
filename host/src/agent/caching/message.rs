//! What a process says to Caching's part of the agent, and what it is told.
//!
//! ```text
//! process                                             agent
//! Open, with a descriptor of the backing file     ->  judges it, opens the cache
//!                                                 <-  Opened
//! reads and writes by the device; when that misses:
//! Fetch                                           ->  puts the chunk in, and permits it as far as the descriptor went
//! writes the file itself, where it is written through; then, also where that failed:
//! Wrote                                           ->  reads anew what the cache has of that
//! Close                                           ->  revokes, and writes back when nobody has it open any more
//! ```

use crate::cache::{CacheOptions, Mode};
use serde::{Deserialize, Serialize};

/// Most bytes of one [`Ask::Wrote`].
pub const WROTE_BYTES_MAX: u64 = 16 << 20;

/// What a process asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Ask {
    /// The cache of the file whose descriptor comes with the message.
    Open {
        /// What it is to be like, where there is none.
        options: CacheOptions,
    },
    /// A chunk that was missed.
    Fetch {
        /// As in [`Told::Opened`].
        cache: u32,
        /// Its number.
        chunk: u64,
    },
    /// The file was written.
    Wrote {
        /// As in [`Told::Opened`].
        cache: u32,
        /// From there on.
        offset: u64,
        /// So many bytes, at most [`WROTE_BYTES_MAX`].
        bytes: u64,
    },
    /// The process uses the cache no more.
    Close {
        /// As in [`Told::Opened`].
        cache: u32,
    },
}

/// What it is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Told {
    /// The cache is open.
    Opened {
        /// Its number, and the epoch of its manager.
        cache: u32,
        /// See there.
        epoch: u32,
        /// Number of the app, and SPUs.
        app: u16,
        /// See there.
        spus: u16,
        /// Bytes of a chunk.
        chunk_bytes: u32,
        /// Bytes of the file.
        bytes: u64,
        /// When writes are acknowledged.
        mode: Mode,
    },
    /// It is done.
    Done,
    /// The backing file failed: the error's number.
    Failed {
        /// See there.
        errno: i32,
    },
}
