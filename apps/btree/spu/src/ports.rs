//! What a tree needs of SPU-OS for one request: its pages in the banks, its own and others', and what makes them durable.
//!
//! What always holds: a page has one place; what [`Ports::sync`] has answered is durable.

use crate::format::{FIRST_PAGE, Node, PAGE_BYTES, UNIT_BYTES, UNITS};
use crate::planted::{Planted, planted};
use crate::wire;
use willow_sdk::{App, Body, Destination, Error, Local, Nv, Reply, Request, Response, SpuNv, join};

/// A failure as a status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure(pub u32);

impl From<Error> for Failure {
    #[inline(never)]
    fn from(error: Error) -> Failure {
        Failure(match error {
            Error::Full => wire::STATUS_FULL,
            Error::Permission => wire::STATUS_PERMISSION,
            Error::Argument | Error::Range => wire::STATUS_MALFORMED,
            Error::Refused => wire::STATUS_BUSY,
            Error::NotFound => wire::STATUS_NO_TREE,
            _ => wire::STATUS_MEDIA,
        })
    }
}

impl From<Failure> for Response {
    fn from(Failure(status): Failure) -> Response {
        Response::failure(status)
    }
}

/// What lies in the bank is no sound tree.
pub const DAMAGED: Failure = Failure(wire::STATUS_DAMAGED);
/// Try again.
pub const BUSY: Failure = Failure(wire::STATUS_BUSY);
/// No room.
pub const FULL: Failure = Failure(wire::STATUS_FULL);

/// Where a tree's pages lie.
#[derive(Clone, Copy, Debug)]
pub struct Geometry {
    /// First byte of the region, the same in every bank.
    pub base: u64,
    /// The tree's number.
    pub tree: u32,
    /// Its pages lie in all banks in turn.
    pub is_striped: bool,
    /// SPUs.
    pub spus: u32,
    /// The SPU that changes it.
    pub owner: u32,
    /// How many pages there are.
    pub pages: u32,
}

impl Geometry {
    /// Where a page lies.
    pub fn page(&self, page: u32) -> SpuNv {
        let (spu, row) = if self.is_striped { (page % self.spus, page / self.spus) } else { (self.owner, page) };
        SpuNv { spu, address: self.base + (FIRST_PAGE + u64::from(row)) * PAGE_BYTES }
    }

    /// Where a unit lies.
    pub fn unit(&self, unit: u32) -> SpuNv {
        let SpuNv { spu, address } = self.page(unit / UNITS);
        SpuNv { spu, address: address + u64::from(unit % UNITS * UNIT_BYTES) }
    }
}

/// A request's view of a tree.
pub struct Ports<'a> {
    /// The request.
    pub request: &'a Request,
    /// The tree.
    pub geometry: Geometry,
}

fn is_here(at: SpuNv) -> bool {
    at.spu == willow_sdk::spu_id()
}

impl Ports<'_> {
    /// Reads bytes.
    pub async fn read(&self, at: SpuNv, to: &mut [u8]) -> Result<(), Failure> {
        let bytes = to.len() as u32;
        let read = match is_here(at) {
            true => self.request.read(at.address, to).await,
            false => self.request.read_spu(at, Local(to), bytes).await,
        };
        Ok(read?)
    }

    /// Writes bytes.
    pub async fn write(&self, from: &[u8], at: SpuNv) -> Result<(), Failure> {
        let written = match is_here(at) {
            true => self.request.write(at.address, from).await,
            false => self.request.write_spu(Local(from), at, from.len() as u32).await,
        };
        Ok(written?)
    }

    /// Reads a node, which must be that of the page and level.
    pub async fn node(&self, page: u32, level: u32, node: &mut Node) -> Result<(), Failure> {
        if page >= self.geometry.pages {
            return Err(DAMAGED);
        }
        self.read(self.geometry.page(page), node.bytes_mut()).await?;
        if node.is_sound(page, level) { Ok(()) } else { Err(DAMAGED) }
    }

    /// Moves a value from the request's body to its place.
    pub async fn receive(&self, offset: u32, at: SpuNv, bytes: u32) -> Result<(), Failure> {
        let moved = match is_here(at) {
            true => self.request.dma(Body(offset), Nv(at.address), bytes).await,
            false => self.request.write_spu(Body(offset), at, bytes).await,
        };
        Ok(moved?)
    }

    /// Moves a value from its place to the reply.
    pub async fn send(&self, at: SpuNv, offset: u32, bytes: u32) -> Result<(), Failure> {
        if bytes == 0 {
            return Ok(());
        }
        let moved = match is_here(at) {
            true => self.request.dma(Nv(at.address), Reply(offset), bytes).await,
            false => self.request.read_spu(at, Reply(offset), bytes).await,
        };
        Ok(moved?)
    }

    /// Makes durable what was written to those SPUs' banks, a bit each.
    pub async fn sync(&self, spus: u64) -> Result<(), Failure> {
        let own = 1u64 << willow_sdk::spu_id();
        let flush = async { if spus & own != 0 { willow_sdk::flush().await } else { Ok(()) } };
        let others = async {
            let mut left = if planted(Planted::ForgetsOthers) { 0 } else { spus & !own };
            while left != 0 {
                let mut asked = self.request.rpc_batch();
                for _ in 0..left.count_ones().min(ASKED_MAX) {
                    let spu = Destination::Spu(left.trailing_zeros());
                    asked.send(self.request.rpc(spu, App::Own, wire::handler::SYNC));
                    left &= left - 1;
                }
                match asked.await? {
                    Response { status: 0, .. } => {}
                    Response { status, .. } => return Ok(Err(Failure(status))),
                }
            }
            Ok::<_, Error>(Ok(()))
        };
        let (flush, others) = join(flush, others).await;
        flush?;
        others?
    }
}

/// SPUs that are asked at the same time.
const ASKED_MAX: u32 = 8;
