//! The flash port: what an FTL asks of the flash, and what it hears of it.
//!
//! What always holds:
//! - operations of one die are done one after another, in the order in which they were begun; those of different dies are not ordered;
//! - an operation that breaks the rules ([`Status::Misuse`]) changes nothing, and so does a program one of whose sources cannot be read;
//! - payload need not pass through the FTL's memory: a page is gathered from peers (the other end of a host's operation), from local
//!   memory and from other flash pages, and read to peers; or it is moved within its plane, and passes through nothing.

use crate::geometry::Geometry;

/// A handle of SPU-OS for the other end of an operation: the host's buffer, or an app's bytes. Valid until the operation is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer(pub u32);

/// Where bytes of a page come from.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// From a peer.
    Peer {
        /// Whose.
        peer: Peer,
        /// First byte.
        offset: u32,
    },
    /// From the FTL's memory.
    Local(&'a [u8]),
    /// From another page, corrected by the ECC.
    Flash {
        /// On which die.
        die: u32,
        /// In which block.
        block: u32,
        /// Which page.
        page: u32,
        /// First byte.
        offset: u32,
    },
    /// The whole of a page of the same plane, by copyback: it takes neither the bus nor the ECC. All pages of a program come so, from pages of one
    /// number, or none does. Only where [`FlashPort::copies_back`].
    Copyback {
        /// In which block.
        block: u32,
        /// Which page.
        page: u32,
    },
    /// Zeroes.
    Zeroes,
}

/// Bytes of a page that come from one source.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    /// Where they come from.
    pub source: Source<'a>,
    /// How many.
    pub bytes: u32,
}

/// Where bytes of a page go.
#[derive(Debug)]
pub enum Sink<'a> {
    /// To a peer.
    Peer {
        /// Whose.
        peer: Peer,
        /// First byte.
        offset: u32,
    },
    /// To the FTL's memory.
    Local(&'a mut [u8]),
}

/// A read of part of a page, of its spare area, or of both.
#[derive(Debug)]
pub struct Read<'a> {
    /// Block of the die.
    pub block: u32,
    /// Page of the block.
    pub page: u32,
    /// First byte of the payload.
    pub offset_bytes: u32,
    /// Bytes of the payload.
    pub length_bytes: u32,
    /// Where the payload goes.
    pub sink: Sink<'a>,
    /// Where the spare area's first bytes go.
    pub spare: &'a mut [u8],
}

/// A page that is programmed.
#[derive(Clone, Copy, Debug)]
pub struct ProgramPage<'a> {
    /// Block of the die.
    pub block: u32,
    /// Page of the block.
    pub page: u32,
    /// Its payload: as many bytes as a page has.
    pub data: &'a [Segment<'a>],
    /// The first bytes of its spare area; empty where firmware does not reach it.
    pub spare: &'a [u8],
}

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Done.
    Done {
        /// Bits that the ECC put right.
        corrected_bits: u32,
    },
    /// The page was never programmed since its block was erased: all ones.
    Erased,
    /// The page, or one that a program was to copy from, cannot be read.
    Uncorrectable,
    /// The program failed: a bit for each of the operation's pages that is not there.
    ProgramFailed {
        /// In the operation's order.
        pages: u32,
    },
    /// The erase failed: a bit for each of the operation's blocks that must not be used any more.
    EraseFailed {
        /// In the operation's order.
        blocks: u32,
    },
    /// A peer's owner has ended.
    PeerEnded,
    /// The operation breaks a rule of the flash.
    Misuse(&'static str),
}

impl Status {
    /// Whether it is [`Status::Done`].
    pub const fn is_done(self) -> bool {
        matches!(self, Status::Done { .. })
    }
}

/// The flash that an FTL works on.
#[allow(async_fn_in_trait)]
pub trait FlashPort {
    /// Its shape.
    fn geometry(&self) -> Geometry;
    /// Blocks of a die that were bad from the start.
    fn factory_bad_blocks(&self, die: u32) -> alloc::vec::Vec<u32>;
    /// Reads.
    async fn read(&self, die: u32, read: Read<'_>) -> Status;
    /// Programs pages of the same number on distinct planes.
    async fn program(&self, die: u32, pages: &[ProgramPage<'_>]) -> Status;
    /// Erases blocks of distinct planes.
    async fn erase(&self, die: u32, blocks: &[u32]) -> Status;
    /// Fills part of a peer with zeroes.
    async fn zero_peer(&self, peer: Peer, offset: u32, bytes: u32) -> Status;
    /// Called once in each turn of a loop whose length has no small bound; may let others work.
    async fn pause(&self);
    /// Whether pages are moved by copyback. A program by copyback that ends as [`Status::Uncorrectable`] may go well from [`Source::Flash`], which the
    /// controller's ECC corrects.
    fn copies_back(&self) -> bool {
        false
    }
    /// The place of the first of the least of some numbers, where hardware finds it; `None`: it does not, and lists are kept instead.
    fn minimum(&self, numbers: &[u32]) -> Option<usize> {
        let _ = numbers;
        None
    }
}
