//! What the engine needs of SPU-OS while it works for one request: DMA between this SPU's bank of NV memory, local memory
//! and the request's body and reply; flush; the checksum accelerator. The handlers implement it over the SDK, the tests over
//! memory that loses power.
//!
//! What always holds: an operation takes effect at some moment between its call and its completion; operations that are
//! in flight at the same time may take effect in any order. Addresses are bytes in the bank.

use crate::format::HEADER_BYTES;
use crate::wire;

/// Why an operation of SPU-OS failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The media failed, or an address is not the region's.
    Media,
    /// No room on the media.
    Full,
    /// Not permitted.
    Permission,
    /// SPU-OS has no place for it now.
    Busy,
}

/// Why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// No such pair.
    NotFound,
    /// The pair is there already.
    Exists,
    /// The pair has another version.
    Changed,
    /// No room.
    Capacity,
    /// The media failed.
    Media,
    /// Not permitted.
    Permission,
    /// The device has no place for it now.
    Busy,
    /// No such namespace.
    NoNamespace,
    /// The region holds something else.
    Format,
    /// The region is too small.
    TooSmall,
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Media => Failure::Media,
            Fault::Full => Failure::Capacity,
            Fault::Permission => Failure::Permission,
            Fault::Busy => Failure::Busy,
        }
    }
}

impl Failure {
    /// The response's status.
    pub fn status(self) -> u32 {
        match self {
            Failure::NotFound => wire::STATUS_NOT_FOUND,
            Failure::Exists => wire::STATUS_EXISTS,
            Failure::Changed => wire::STATUS_CHANGED,
            Failure::Capacity => wire::STATUS_CAPACITY,
            Failure::Media => wire::STATUS_MEDIA_ERROR,
            Failure::Permission => wire::STATUS_PERMISSION,
            Failure::Busy => wire::STATUS_BUSY,
            Failure::NoNamespace => wire::STATUS_NO_NAMESPACE,
            Failure::Format => wire::STATUS_FORMAT,
            Failure::TooSmall => wire::STATUS_TOO_SMALL,
        }
    }
}

/// Where a namespace's region lies in the bank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// First byte.
    pub base: u64,
    /// Length.
    pub bytes: u64,
}

/// A word in NV memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Word {
    /// Where.
    pub address: u64,
    /// What.
    pub bytes: [u8; 4],
}

/// Words that are written at the same time, at most.
pub const WORDS_MAX: usize = 16;

/// The writes of a pair that is stored.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// Where the header goes.
    pub address: u64,
    /// The header.
    pub header: &'a [u8; HEADER_BYTES as usize],
    /// Where that part of the payload goes that lies in the record.
    pub rest_address: u64,
    /// Where it begins in the payload.
    pub rest_offset: u32,
    /// Its length.
    pub rest_bytes: u32,
    /// The pointer that leads to the record.
    pub link: &'a Word,
}

/// SPU-OS, as one request sees it.
#[allow(async_fn_in_trait)]
pub trait Bank {
    /// NV memory to local memory.
    async fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Fault>;
    /// The same, compiled where it is called: for what most requests go through.
    async fn read_in_place(&self, address: u64, into: &mut [u8]) -> Result<(), Fault> {
        self.read(address, into).await
    }
    /// The same where it can be done at once; `None`: nothing was read, it would have to wait.
    #[inline]
    fn read_now(&self, _address: u64, _into: &mut [u8]) -> Option<Result<(), Fault>> {
        None
    }
    /// [`Self::send`] where it can be done at once; `None`: nothing was sent, it would have to wait.
    #[inline]
    fn send_now(&self, _address: u64, _offset: u32, _bytes: u32) -> Option<Result<(), Fault>> {
        None
    }
    /// Pieces of NV memory to local memory, one behind the other: `into` holds a whole number of [`HEADER_BYTES`], and each piece begins
    /// `stride` bytes behind the one before.
    async fn read_headers(&self, address: u64, stride: u64, into: &mut [u8]) -> Result<(), Fault>;
    /// Zeroes to NV memory, whole pages of which take no room on the media then.
    async fn zero(&self, address: u64, bytes: u32) -> Result<(), Fault>;
    /// Local memory to NV memory.
    async fn write(&self, address: u64, from: &[u8]) -> Result<(), Fault>;
    /// The request's payload, from byte `offset` on, to NV memory.
    async fn receive(&self, offset: u32, address: u64, bytes: u32) -> Result<(), Fault>;
    /// A record's writes, which take effect in any order; where one failed, any of the others may have been done.
    async fn store<'a>(&'a self, record: Record<'a>) -> Result<(), Fault>;
    /// Words to NV memory, at most [`WORDS_MAX`], in any order; where one failed, any of the others may have been done.
    async fn write_words<'a>(&'a self, words: &'a [Word]) -> Result<(), Fault>;
    /// NV memory to the reply.
    async fn send(&self, address: u64, offset: u32, bytes: u32) -> Result<(), Fault>;
    /// Local memory to the reply.
    async fn reply(&self, from: &[u8], offset: u32) -> Result<(), Fault>;
    /// CRC-32C of NV memory, continued from `seed`.
    async fn checksum(&self, address: u64, bytes: u32, seed: u32) -> Result<u32, Fault>;
    /// CRC-32C of the payload's first bytes.
    async fn checksum_payload(&self, bytes: u32) -> Result<u32, Fault>;
    /// All writes that had completed when it was called are durable when it completes.
    async fn flush(&self) -> Result<(), Fault>;
    /// Called once in each turn of a loop whose length has no small bound; may let SPU-OS do other work.
    async fn pause(&self);
    /// The region of a namespace, where there is one.
    async fn region(&self, nsid: u32) -> Result<Region, Failure>;
    /// Something that differs from one call to another of a device's life: for nonces.
    fn entropy(&self) -> u64;
    /// (number of this SPU, number of SPUs).
    fn place(&self) -> (u16, u16);
    /// A namespace on this SPU is not closed in order any more: somebody is to look whether it can be again
    /// ([`crate::table::Table::rest`]).
    fn unclean(&self) {}
    /// A bug to have, for the tests of the tests.
    #[inline]
    fn planted(&self) -> Option<Planted> {
        None
    }
}

/// Bugs that the tests plant, to see that they are caught. No handler ever does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    /// A replaced record's slot is used again at once, without limbo.
    ReuseTooEarly,
    /// A tombstone is wiped together with the older records that it holds back.
    TombstoneTooShort,
    /// Recovery believes each header, without a look at the value.
    TornValues,
    /// A reader lets go of its bucket before it reads the value.
    ReaderUnprotected,
    /// The durability mark does not wait for records that are being written.
    MarkTooHigh,
    /// A put on condition of a version stores over any.
    VersionUnchecked,
    /// The check of a header leaves its expiry out... of what a touch writes: it is given a tag as if it never expired.
    ExpiryUnchecked,
    /// A sweep buries a pair that was stored anew after it had been looked at.
    SweepBlind,
    /// A clear is answered before it is durable.
    ClearTooEarly,
    /// A slab is used before the superblock says, durably, that recovery has to look so far.
    CeilingTooLate,
    /// Recovery counts a pair on, and keeps its slot, though it has found a newer one.
    OlderStillCounted,
    /// The superblock says that a region is clean before what it vouches for is durable.
    CleanTooEarly,
    /// A region that is changed after it was closed in order is still told as clean.
    CleanTooLong,
}

/// True where that bug is planted.
#[inline]
pub(crate) fn planted<B: Bank>(bank: &B, bug: Planted) -> bool {
    cfg!(feature = "planted") && bank.planted() == Some(bug)
}
