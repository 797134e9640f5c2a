//! What a die can be asked for, and what it answers.

use crate::geometry::{PageAddress, PlaneSet};

/// A read of a part of one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// Where.
    pub at: PageAddress,
    /// First byte of the page.
    pub offset_bytes: u32,
    /// Bytes of the page; 0 where only the spare area is asked for.
    pub length_bytes: u32,
    /// Whether the spare area is read, too (its first bytes).
    pub spare: bool,
}

/// One page of a program operation.
#[derive(Clone, Copy, Debug)]
pub struct ProgramPage<'a> {
    /// Where.
    pub at: PageAddress,
    /// The page's bytes in pieces, which are gathered; what is missing at the end stays ones.
    pub data: &'a [&'a [u8]],
    /// The spare area's first bytes; what is missing stays ones.
    pub spare: &'a [u8],
    /// The FTL's own data (a log, a checkpoint), which are kept even where contents are not.
    pub metadata: bool,
}

/// A page that is copied within its plane.
#[derive(Clone, Copy, Debug)]
pub struct CopybackPage<'a> {
    /// Where it is. The pages of one copyback have one number.
    pub from: PageAddress,
    /// Where it goes. These pages have one number, too.
    pub to: PageAddress,
    /// The first bytes of its new spare area; `None`: as it was.
    pub spare: Option<&'a [u8]>,
}

/// What became of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It is done; a read had to correct so many bits in its worst codeword, after so many steps of the ladder of read retries.
    Done {
        /// Bits of the worst codeword.
        corrected_bits: u16,
        /// Steps of the ladder.
        retries: u8,
    },
    /// The page is in the die's latches: it is programmed together with the last page of its word line, and lost with the power until then.
    Latched,
    /// The page was not programmed since its block was erased: all ones.
    Erased,
    /// The ladder ended without a codeword that the ECC corrects.
    Uncorrectable {
        /// Steps of the ladder.
        retries: u8,
    },
    /// These pages of the operation (by their place in it) could not be programmed, and cannot be read; the others are.
    ProgramFailed(PlaneSet),
    /// These blocks of the operation (by their place in it) could not be erased; the others are.
    EraseFailed(PlaneSet),
    /// The operation breaks a rule; nothing changed.
    Misuse(Misuse),
}

impl Status {
    /// Done without a bit to correct.
    pub const DONE: Status = Status::Done { corrected_bits: 0, retries: 0 };
}

/// Which rule an operation broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misuse {
    /// There is no such die.
    #[error("there is no die {0}")]
    NoSuchDie(u32),
    /// There is no such block.
    #[error("the die has no block {0}")]
    NoSuchBlock(u32),
    /// There is no such page.
    #[error("the block has no page {0}")]
    NoSuchPage(u32),
    /// No page at all, or more than planes.
    #[error("the operation names {0} pages or blocks, of which a die takes 1 to as many as it has planes")]
    Count(u32),
    /// Two of one plane.
    #[error("plane {0} is named twice")]
    SamePlane(u32),
    /// Pages of different numbers.
    #[error("the operation's pages have different numbers")]
    DifferentPages,
    /// A page that is programmed already, or a block whose erasing was interrupted.
    #[error("page {0} is not erased")]
    NotErased(u32),
    /// A page before its turn.
    #[error("page {page} is out of order, the next one is {next}")]
    OutOfOrder {
        /// The one that was named.
        page: u32,
        /// The one whose turn it is.
        next: u32,
    },
    /// Another word line is in the die's latches.
    #[error("the die's latches hold the beginning of a word line of block {0}, which comes first")]
    LatchesTaken(u32),
    /// Bytes beyond the page.
    #[error("the operation names bytes beyond the page or its spare area")]
    TooLong,
    /// Buffers of another length than what is read.
    #[error("the buffers are not as long as what is read")]
    BufferLength,
    /// The spare area cannot be reached.
    #[error("the spare area is the ECC's alone")]
    SpareInaccessible,
    /// A copy between planes.
    #[error("a copyback stays in its plane")]
    OtherPlane,
}

/// What the power cut found of an operation that was in the array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CutOutcome {
    /// It had not begun: all is as before.
    NotBegun,
    /// It was in the middle. A page cannot be read, a block is undefined.
    Interrupted,
    /// It was in the middle, and what it leaves looks erased, but is not.
    LooksErased,
    /// It had just ended.
    Complete,
}

impl CutOutcome {
    /// All of them, for tests that go through all.
    pub const ALL: [CutOutcome; 4] =
        [CutOutcome::NotBegun, CutOutcome::Interrupted, CutOutcome::LooksErased, CutOutcome::Complete];
}
