//! What clients ask for, whatever protocol they speak.
//!
//! What always holds: a request that a parser makes is within the limits of [`Limits`]; what is not is a [`Parse::Bad`].

use crate::item::Name;
use crate::meta::MetaStyle;

/// Bounds of what is taken from a client.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Longest data of an item.
    pub data_bytes_max: usize,
}

/// Longest line of a command with one key.
pub const LINE_BYTES_MAX: usize = 2048;
/// Longest line of a command with many keys.
pub const KEYS_LINE_BYTES_MAX: usize = 64 << 10;

/// How the data of an item go in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// In any case.
    Set,
    /// Only where there is none.
    Add,
    /// Only where there is one.
    Replace,
    /// Behind those that are there.
    Append,
    /// In front of those that are there.
    Prepend,
}

/// What is done with one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Reads; with `Some`, gives another expiry first.
    Get {
        /// The new expiry.
        touch: Option<u32>,
    },
    /// Stores.
    Store {
        /// How.
        mode: Mode,
        /// The client's flags.
        flags: u32,
        /// When it ends; 0: never.
        expiry: u32,
        /// Only over this version; 0: any.
        version: u64,
    },
    /// Adds to a number, or subtracts.
    Count {
        /// By how much.
        delta: u64,
        /// Subtract.
        down: bool,
        /// What it begins with where there is none, and that one's expiry.
        initial: Option<(u64, u32)>,
        /// A new expiry.
        touch: Option<u32>,
        /// Only over this version; 0: any.
        version: u64,
    },
    /// Removes.
    Delete {
        /// Only this version; 0: any.
        version: u64,
    },
    /// Another expiry.
    Touch {
        /// The new one.
        expiry: u32,
    },
    /// Removes all. It has no key.
    Clear,
    /// Counts what there is. It has no key.
    Census,
}

impl Verb {
    /// Whether it may change something.
    pub fn writes(&self) -> bool {
        !matches!(self, Verb::Get { touch: None } | Verb::Census)
    }
}

/// How an answer looks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Style {
    /// The classic text protocol.
    Text {
        /// Says nothing.
        quiet: bool,
        /// Values come with their version.
        versions: bool,
    },
    /// Meta commands.
    Meta(Box<MetaStyle>),
    /// The binary protocol.
    Binary {
        /// Opcode of the request.
        opcode: u8,
        /// The client's number for it.
        opaque: u32,
    },
}

/// One request.
#[derive(Debug)]
pub enum Request<'a> {
    /// Something with one key.
    One {
        /// Key.
        name: Box<Name>,
        /// What.
        verb: Verb,
        /// How the answer looks.
        style: Style,
        /// Data that are stored.
        data: &'a [u8],
    },
    /// Reads several keys: `keys` are words.
    Many {
        /// The keys, with spaces between.
        keys: &'a [u8],
        /// Gives each another expiry.
        touch: Option<u32>,
        /// With versions.
        versions: bool,
    },
    /// Removes all.
    FlushAll {
        /// Seconds from now, or a second since 1970.
        delay: i64,
        /// How the answer looks.
        style: Style,
    },
    /// Statistics of that kind.
    Statistics {
        /// Which.
        what: &'a [u8],
        /// How the answer looks.
        style: Style,
    },
    /// An answer that needs nothing.
    Say(Vec<u8>),
    /// Nothing is answered.
    Nothing,
    /// Says this, and ends the connection.
    Quit(Vec<u8>),
}

/// What the start of a connection's input is.
#[derive(Debug)]
pub enum Parse<'a> {
    /// More is needed: so many bytes in all, at least.
    Incomplete(usize),
    /// A request, and its length.
    Request(Request<'a>, usize),
    /// No request: the answer, the bytes that are there of it, and how many that are yet to come belong to it.
    Bad {
        /// What is said; empty: nothing.
        answer: Vec<u8>,
        /// Bytes to be taken.
        bytes: usize,
        /// Bytes to be taken that may not have come.
        skip: u64,
        /// The connection cannot go on.
        fatal: bool,
    },
}

impl Parse<'_> {
    /// A line that is refused.
    pub fn bad(answer: &[u8], bytes: usize) -> Self {
        Parse::Bad { answer: answer.to_vec(), bytes, skip: 0, fatal: false }
    }

    /// What cannot be gone on with.
    pub fn fatal(answer: &[u8]) -> Self {
        Parse::Bad { answer: answer.to_vec(), bytes: 0, skip: 0, fatal: true }
    }
}
