//! The app's requests on the wire, little-endian, and what a scan replies. Shared by the handlers and the host library.
//!
//! ```text
//! prepare   u32 version, u32 options, u32 literals' bytes, u32 automaton bytes; the literals, each a u32 length and its bytes; zeroes up to a
//!           multiple of 4; the automaton
//! scan      u32 set, u32 bytes, u64 bank address, u32 stripe bytes (0: none), u32 bytes before the first stripe border
//! reply     u32 bytes scanned, u32 bytes of the reply; segments
//! segment   u32 x 8 as in `SegmentHead`; head, tail where they are inline; records
//! record    u32 offset in the segment, u32 bytes and flags, u32 line feeds before it in the segment; the line where it is inline
//! ```

/// Handler numbers.
pub mod handler {
    /// Makes a set of what to search for; the result is its number, for the same process on the same SPU.
    pub const PREPARE: u8 = 1;
    /// Scans a range of the bank; the reply has what was found.
    pub const SCAN: u8 = 2;
    /// Gives a set up.
    pub const RELEASE: u8 = 3;
}

/// Version of what is prepared.
pub const VERSION: u32 = 1;

/// Status: the media failed.
pub const STATUS_MEDIA_ERROR: u32 = 2;
/// Status: an address past the bank.
pub const STATUS_RANGE: u32 = 4;
/// Status: the process has no permission there, and none was installed.
pub const STATUS_PERMISSION: u32 = 5;
/// Status: arguments that make no sense.
pub const STATUS_MALFORMED: u32 = 6;
/// Status: there is no such set of this process (any more): prepare it again.
pub const STATUS_NO_SET: u32 = 7;
/// Status: what is to be searched for is too large for the SPU's memory, or all of it is in use: the result is the bytes that one set may have.
pub const STATUS_NO_MEMORY: u32 = 8;
/// Status: SPU-OS has no place for what this process has asked for: try again.
pub const STATUS_BUSY: u32 = 9;

/// Option: a zero byte ends a line as a line feed does.
pub const OPTION_NUL_ENDS: u32 = 1;
/// Option: lines without a match are selected.
pub const OPTION_INVERT: u32 = 2;
/// Option: line feeds are counted.
pub const OPTION_NUMBER: u32 = 4;
/// Option: selected lines are wanted, not only their number.
pub const OPTION_TEXT: u32 = 8;
/// Option: the scan may end at the first selected line.
pub const OPTION_FIRST: u32 = 16;
/// Option: the first zero byte of each segment is looked for.
pub const OPTION_FIND_NUL: u32 = 32;
/// Option: a line with any of the literals matches; else the automaton decides on it.
pub const OPTION_LITERALS_DECIDE: u32 = 64;
/// Option: the literals' ASCII letters match in either case.
pub const OPTION_IGNORE_CASE: u32 = 128;
/// All options.
pub const OPTIONS: u32 = 255;

/// Most literals of a set.
pub const LITERALS_MAX: usize = 1024;
/// Most bytes of a literal.
pub const LITERAL_BYTES_MAX: usize = 1024;
/// Most bytes of a set's literals with their lengths: loading them into the accelerator stays far from a run's budget.
pub const LITERALS_BYTES_MAX: usize = 4 << 10;

/// Longest part of a line before the first line end of a segment, or behind the last, that a reply carries.
pub const BORDER_BYTES_MAX: usize = 1024;
/// Most bytes of a set: literals and automaton.
pub const SET_BYTES_MAX: usize = 192 << 10;
/// Least bytes of a scan's reply: some segments' heads with their borders fit.
pub const REPLY_BYTES_MIN: usize = 8 << 10;
/// Most bytes of a scan's reply that are used.
pub const REPLY_BYTES_MAX: usize = 32 << 10;
/// Most bytes that one scan covers.
pub const SCAN_BYTES_MAX: u32 = 4 << 20;
/// Nowhere.
pub const NONE: u32 = u32::MAX;

fn word(from: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([from[at], from[at + 1], from[at + 2], from[at + 3]])
}

/// The head of what is prepared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prepare {
    /// `OPTION_*`.
    pub options: u32,
    /// Bytes of the literals; 0: none.
    pub literals_bytes: u32,
    /// Bytes of the automaton; 0: none.
    pub automaton_bytes: u32,
}

impl Prepare {
    /// Encoded length.
    pub const BYTES: usize = 16;

    /// Little-endian bytes.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        for (place, word) in
            out.chunks_exact_mut(4).zip([VERSION, self.options, self.literals_bytes, self.automaton_bytes])
        {
            place.copy_from_slice(&word.to_le_bytes());
        }
        out
    }

    /// From [`Self::BYTES`] bytes; `None` where it is another version's, has unknown options, or nothing to search for.
    pub fn decode(from: &[u8; Self::BYTES]) -> Option<Self> {
        let (options, literals_bytes, automaton_bytes) = (word(from, 4), word(from, 8), word(from, 12));
        let decides = if options & OPTION_LITERALS_DECIDE != 0 { literals_bytes } else { automaton_bytes };
        let is_known = word(from, 0) == VERSION && options & !OPTIONS == 0;
        (is_known && decides > 0).then_some(Prepare { options, literals_bytes, automaton_bytes })
    }

    /// Where the automaton begins behind this head.
    pub fn automaton_offset(&self) -> usize {
        (self.literals_bytes as usize).next_multiple_of(4)
    }
}

/// What to scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scan {
    /// The set's number.
    pub set: u32,
    /// Bytes.
    pub bytes: u32,
    /// First byte in the bank.
    pub nv_address: u64,
    /// Bytes after which what follows in the bank does not follow in the file; 0: all follows.
    pub stripe_bytes: u32,
    /// Bytes up to the first such border.
    pub first_bytes: u32,
}

impl Scan {
    /// Encoded length: as much as a call over NVMe has room for beside a reply.
    pub const BYTES: usize = 24;

    /// Little-endian bytes.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[0..4].copy_from_slice(&self.set.to_le_bytes());
        out[4..8].copy_from_slice(&self.bytes.to_le_bytes());
        out[8..16].copy_from_slice(&self.nv_address.to_le_bytes());
        out[16..20].copy_from_slice(&self.stripe_bytes.to_le_bytes());
        out[20..24].copy_from_slice(&self.first_bytes.to_le_bytes());
        out
    }

    /// From [`Self::BYTES`] bytes.
    pub fn decode(from: &[u8; Self::BYTES]) -> Self {
        Scan {
            set: word(from, 0),
            bytes: word(from, 4),
            nv_address: u64::from(word(from, 8)) | u64::from(word(from, 12)) << 32,
            stripe_bytes: word(from, 16),
            first_bytes: word(from, 20),
        }
    }
}

/// The head of a scan's reply.
pub const REPLY_HEAD_BYTES: usize = 8;

/// Flag of a segment: there is no line end in it; all of it is its head.
pub const SEGMENT_NO_END: u32 = 1;
/// Flag of a segment: the head's bytes follow.
pub const SEGMENT_HEAD: u32 = 2;
/// Flag of a segment: the tail's bytes follow.
pub const SEGMENT_TAIL: u32 = 4;
/// Flag of a segment: a line was selected, and no more was looked for.
pub const SEGMENT_STOPPED: u32 = 8;

/// What is told of a segment, bytes that follow one another in the file and in the bank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentHead {
    /// Its length.
    pub bytes: u32,
    /// Line feeds in it, where they are counted.
    pub newlines: u32,
    /// Lines that are whole in it and selected for certain.
    pub selected: u32,
    /// Records.
    pub records: u32,
    /// Bytes before the first line end.
    pub head_bytes: u32,
    /// Bytes behind the last line end.
    pub tail_bytes: u32,
    /// Offset of the first zero byte, or [`NONE`], where it was looked for.
    pub nul: u32,
    /// `SEGMENT_*`.
    pub flags: u32,
}

impl SegmentHead {
    /// Encoded length.
    pub const BYTES: usize = 32;

    /// Little-endian bytes.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let words = [
            self.bytes,
            self.newlines,
            self.selected,
            self.records,
            self.head_bytes,
            self.tail_bytes,
            self.nul,
            self.flags,
        ];
        let mut out = [0; Self::BYTES];
        for (place, word) in out.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        out
    }

    /// From [`Self::BYTES`] bytes.
    pub fn decode(from: &[u8; Self::BYTES]) -> Self {
        SegmentHead {
            bytes: word(from, 0),
            newlines: word(from, 4),
            selected: word(from, 8),
            records: word(from, 12),
            head_bytes: word(from, 16),
            tail_bytes: word(from, 20),
            nul: word(from, 24),
            flags: word(from, 28),
        }
    }
}

/// Flag of a record, in its bytes: the automaton could not decide on the line.
pub const RECORD_UNDECIDED: u32 = 1 << 31;
/// Flag of a record, in its bytes: the line does not follow.
pub const RECORD_WITHOUT_TEXT: u32 = 1 << 30;
/// Longest line that a record can name.
pub const RECORD_BYTES_MAX: u32 = RECORD_WITHOUT_TEXT - 1;

/// A line that is whole in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Where it begins in the segment.
    pub offset: u32,
    /// Its length, without its end, and `RECORD_*`.
    pub bytes_and_flags: u32,
    /// Line feeds before it in the segment, where they are counted.
    pub newlines: u32,
}

impl Record {
    /// Encoded length.
    pub const BYTES: usize = 12;

    /// Little-endian bytes.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        for (place, word) in out.chunks_exact_mut(4).zip([self.offset, self.bytes_and_flags, self.newlines]) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        out
    }

    /// From [`Self::BYTES`] bytes.
    pub fn decode(from: &[u8; Self::BYTES]) -> Self {
        Record { offset: word(from, 0), bytes_and_flags: word(from, 4), newlines: word(from, 8) }
    }

    /// Its length, without its end.
    pub fn bytes(&self) -> u32 {
        self.bytes_and_flags & RECORD_BYTES_MAX
    }
}
