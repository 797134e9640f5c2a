//! NV memory beyond one request: the app's persistent regions, namespaces, durability; and what an app knows of its SPU.

use core::future::Future;

use crate::Error;
use crate::executor::{Issued, Operation, Wait};
use crate::request::{completed, issued};
use crate::sys;

/// Regions are rounded up to multiples of this (docs/abi.md).
pub const REGION_ALIGNMENT_BYTES: u64 = 65536;

/// A namespace, as SPU-OS describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// First byte in every bank.
    pub base: u64,
    /// Bytes in every bank.
    pub bank_bytes: u64,
    /// Command set identifier: 0 block, 1 key-value.
    pub command_set: u32,
    /// Bytes of a logical block.
    pub block_bytes: u32,
    /// Logical blocks in all banks together.
    pub blocks: u64,
}

/// Describes a namespace; [`Error::NotFound`] where there is none of that number.
pub fn namespace(nsid: u32) -> Result<Namespace, Error> {
    sys::namespace(nsid)
}

/// The base address, the same in every bank, of the app's persistent region `id`. Where it is new it is created with `bytes`
/// bytes in every bank, rounded up to [`REGION_ALIGNMENT_BYTES`] and zeroed; 0 only opens it.
pub fn region(id: u32, bytes: u64) -> impl Future<Output = Result<u64, Error>> {
    Wait::new(Region { id, bytes })
}

/// The size of the app's region `id` in every bank.
pub fn region_bytes(id: u32) -> Result<u64, Error> {
    u64::try_from(sys::region_bytes(id)).map_err(|_| Error::from_code(sys::region_bytes(id)))
}

/// Deletes the app's region `id`.
pub fn region_free(id: u32) -> impl Future<Output = Result<(), Error>> {
    Wait::new(RegionFree { id })
}

/// Makes durable all that was written to this SPU's bank before.
pub fn flush() -> impl Future<Output = Result<(), Error>> {
    Wait::new(Flush)
}

/// Number of the SPU that this instance runs on.
#[inline]
pub fn spu_id() -> u32 {
    sys::spu_id()
}

/// Number of SPUs of the device.
#[inline]
pub fn spu_count() -> u32 {
    sys::spu_count()
}

/// The device's clock in nanoseconds.
#[inline]
pub fn time_ns() -> u64 {
    sys::time_ns()
}

/// Most counters of an app.
pub const COUNTERS_MAX: u32 = 16;

/// Adds to one of the app's counters, 0 to 15, which `willow stat` shows.
#[inline]
pub fn count(counter: u32, delta: i64) {
    sys::count(counter, delta);
}

struct Region {
    id: u32,
    bytes: u64,
}

impl Operation for Region {
    type Output = Result<u64, Error>;
    const LOCAL: bool = false;

    fn issue(&mut self, wait: u32) -> Issued<Self::Output> {
        match sys::region(self.id, self.bytes, wait) {
            sys::REGION_PENDING => Issued::Pending,
            result => Issued::Done(self.completed(result)),
        }
    }

    fn completed(&mut self, result: i64) -> Self::Output {
        u64::try_from(result).map_err(|_| Error::from_code(result))
    }
}

struct RegionFree {
    id: u32,
}

impl Operation for RegionFree {
    type Output = Result<(), Error>;
    const LOCAL: bool = false;

    fn issue(&mut self, wait: u32) -> Issued<Self::Output> {
        issued(sys::region_free(self.id, wait))
    }

    fn completed(&mut self, result: i64) -> Self::Output {
        completed(result)
    }
}

struct Flush;

impl Operation for Flush {
    type Output = Result<(), Error>;
    const LOCAL: bool = false;

    #[inline]
    fn issue(&mut self, wait: u32) -> Issued<Self::Output> {
        issued(sys::flush(wait))
    }

    #[inline]
    fn completed(&mut self, result: i64) -> Self::Output {
        completed(result)
    }
}
