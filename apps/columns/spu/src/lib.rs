//! The SSD App `columns`: sums, histograms and filters over columns of files where they lie (XSSD, chapter 3.3: scans and reductions beside the
//! media). Hosts prepare a plan, what to do with which bytes of a file, and have it run over ranges; SPU-OS says who may read what, by the permissions
//! that the host's agent installed for the process.
//!
//! ```text
//! wire       plans, requests and replies     engine    a plan run over a range, for handlers and hosts alike
//! predicate  which rows                      sink      what becomes of them        exact  sums of floats, rounded once
//! csv        records of text                 parquet   a column chunk, of pages (page, thrift, hybrid, packed: snappy, zstd)
//! value      rows of a column                plans     what is prepared
//! ```
//!
//! What always holds:
//! - a reply has what was computed of bytes that the process may read alone: all DMAs are done on its behalf;
//! - memory is bounded: plans by [`plans`], runs by [`RUNS_MAX`], and allocations that fail end the run that asked, not the app;
//! - no run goes on for long without making way for others.
//!
//! Who may call it: any user's process, through the exports that `app!` makes; hosts use [`engine`] and [`wire`].
#![cfg_attr(target_arch = "wasm32", no_std)]

extern crate alloc;

pub mod csv;
pub mod engine;
pub mod exact;
pub mod hybrid;
pub mod packed;
pub mod page;
pub mod parquet;
pub mod plans;
pub mod predicate;
pub mod sink;
pub mod snappy;
pub mod thrift;
pub mod value;
pub mod wire;
#[cfg(not(target_arch = "wasm32"))]
pub mod zstd;

use alloc::vec::Vec;
use core::cell::Cell;

use engine::{Decompression, Port, Stop};
use plans::Plans;
use willow_sdk::sync::Event;
use willow_sdk::{Error, Local, Nv, Reply, Request, Response, SpuNv, spu_id, yield_now};
use wire::{Plan, Run};

#[cfg(target_arch = "wasm32")]
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

/// The bits of an endpoint's id that say which process' it is.
const PROCESS_SHIFT: u32 = 12;
/// Most runs at once: they share the memory.
pub const RUNS_MAX: usize = 2;
/// Bytes that a run reads at once, for each column.
const INPUT_BYTES: usize = 32 << 10;
/// Longest value or record here.
const SPU_VALUE_BYTES_MAX: usize = 256 << 10;
/// Longest byte string here of which the order is asked.
const COMPARED_BYTES_MAX: usize = 4 << 10;
/// What a run does before it makes way for others, in instructions as they are estimated here: far from a run's budget.
const WORK_MAX: usize = 1_000_000;
/// What a run does in all, in the same: others wait for its place. Past it the host does the part.
const RUN_WORK_MAX: u64 = 1 << 32;

/// What there is on each SPU.
pub struct State {
    plans: Plans,
    runs: Cell<usize>,
    ended: Event,
}

willow_sdk::app! {
    name: "columns",
    version: "0.1.0",
    state: State = State { plans: Plans::new(), runs: Cell::new(0), ended: Event::new() },
    threads: 64,
    handlers: {
        wire::handler::PREPARE => prepare,
        wire::handler::RUN => run,
        wire::handler::RELEASE => release,
        wire::handler::TOUCH => touch,
    },
    public: "*",
}

/// A failure as a status and a result.
struct Failure(u32, u32);

fn status(error: Error) -> u32 {
    match error {
        Error::Range => wire::STATUS_RANGE,
        Error::Permission => wire::STATUS_PERMISSION,
        Error::Argument => wire::STATUS_MALFORMED,
        Error::Full => wire::STATUS_NO_MEMORY,
        Error::Refused => wire::STATUS_BUSY,
        _ => wire::STATUS_MEDIA_ERROR,
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure(status(error), 0)
    }
}

impl From<Stop> for Failure {
    fn from(stop: Stop) -> Failure {
        match stop {
            Stop::Port(status) => Failure(status, 0),
            Stop::NoMemory => Failure(wire::STATUS_NO_MEMORY, 0),
            Stop::Fault(fault) => Failure(wire::STATUS_FAULT, fault.encode()),
        }
    }
}

impl From<Failure> for Response {
    fn from(Failure(status, result): Failure) -> Response {
        Response { status, result }
    }
}

const MALFORMED: Failure = Failure(wire::STATUS_MALFORMED, 0);
const NO_MEMORY: Failure = Failure(wire::STATUS_NO_MEMORY, 0);

fn process(request: &Request) -> u32 {
    request.info().originating_hre >> PROCESS_SHIFT
}

/// A place among the runs; given back when it is dropped.
struct Place<'a>(&'a State);

impl<'a> Place<'a> {
    async fn take(state: &'a State) -> Place<'a> {
        while state.runs.get() >= RUNS_MAX {
            state.ended.wait().await;
        }
        state.runs.set(state.runs.get() + 1);
        Place(state)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.runs.set(self.0.runs.get() - 1);
        self.0.ended.notify_all();
    }
}

/// Receives a plan and keeps it.
async fn prepare(request: Request, state: &State) -> Result<Response, Failure> {
    let bytes = request.info().body_bytes as usize;
    if bytes > wire::PLAN_BYTES_MAX {
        return Err(MALFORMED);
    }
    let mut body = Vec::new();
    body.try_reserve_exact(bytes).map_err(|_| NO_MEMORY)?;
    body.resize(bytes, 0);
    if request.receive(&mut body) != bytes {
        return Err(MALFORMED);
    }
    let plan = Plan::decode(&body).ok_or(MALFORMED)?;
    let number = state.plans.keep(process(&request), plan, bytes).ok_or(NO_MEMORY)?;
    Ok(Response::success(number))
}

/// What a request may read and reply to.
struct Drive<'a> {
    request: &'a Request,
    plan: &'a Plan,
    own: u32,
    worked: Cell<usize>,
    all: Cell<u64>,
}

impl Port for Drive<'_> {
    async fn read(&self, mut offset: u64, to: &mut [u8]) -> Result<(), Stop> {
        let Plan { extents, banks, .. } = self.plan;
        let mut index = extents.partition_point(|extent| extent.file_offset + extent.bytes <= offset);
        let mut done = 0;
        while done < to.len() {
            let left = to.len() - done;
            let extent = extents.get(index).filter(|extent| extent.file_offset < offset + left as u64);
            let Some(extent) = extent.filter(|extent| extent.file_offset <= offset) else {
                // A hole.
                let bytes = extent.map_or(left, |extent| (extent.file_offset - offset) as usize);
                to[done..done + bytes].fill(0);
                (done, offset) = (done + bytes, offset + bytes as u64);
                continue;
            };
            let within = offset - extent.file_offset;
            let namespace_offset = extent.namespace_offset + within;
            let (stripe, spus) = (u64::from(banks.stripe_bytes), u64::from(banks.spus));
            let number = namespace_offset / stripe;
            let bytes = (stripe - namespace_offset % stripe).min(extent.bytes - within).min(left as u64) as usize;
            let address = (number / spus * stripe).wrapping_add(banks.base).wrapping_add(namespace_offset % stripe);
            let (spu, place) = ((number % spus) as u32, &mut to[done..done + bytes]);
            let read = if spu == self.own {
                self.request.read(address, place).await
            } else {
                self.request.read_spu(SpuNv { spu, address }, Local(place), bytes as u32).await
            };
            read.map_err(|error| Stop::Port(status(error)))?;
            (done, offset) = (done + bytes, offset + bytes as u64);
            if within + bytes as u64 == extent.bytes {
                index += 1;
            }
        }
        Ok(())
    }

    async fn reply(&self, offset: u32, from: &[u8]) -> Result<(), Stop> {
        let sent = self.request.dma(Local(from), Reply(offset), from.len() as u32).await;
        sent.map_err(|error| Stop::Port(status(error)))
    }

    async fn decompress(&self, from: &[u8], to: &mut [u8], state: &mut Decompression) -> Result<(), Stop> {
        self.request.decompress(from, to, state).await.map_err(|error| Stop::Port(status(error)))
    }

    async fn worked(&self, instructions: usize) -> Result<(), Stop> {
        self.worked.set(self.worked.get().saturating_add(instructions));
        self.all.set(self.all.get().saturating_add(instructions as u64));
        if self.all.get() > RUN_WORK_MAX {
            return Err(Stop::NoMemory);
        }
        if self.worked.get() < WORK_MAX {
            return Ok(());
        }
        self.worked.set(0);
        yield_now().await.map_err(|error| Stop::Port(status(error)))
    }

    fn input_bytes(&self) -> usize {
        INPUT_BYTES
    }

    fn value_bytes_max(&self) -> usize {
        SPU_VALUE_BYTES_MAX
    }

    fn compared_bytes_max(&self) -> usize {
        COMPARED_BYTES_MAX
    }
}

async fn run(request: Request, state: &State) -> Result<Response, Failure> {
    let arguments = request.receive_array().ok().and_then(|bytes| Run::decode(&bytes)).ok_or(MALFORMED)?;
    let reply_bytes = (request.info().reply_bytes as usize).min(wire::REPLY_BYTES_MAX);
    if reply_bytes < wire::REPLY_BYTES_MIN {
        return Err(MALFORMED);
    }
    let plan = state.plans.get(process(&request), arguments.plan).ok_or(Failure(wire::STATUS_NO_PLAN, 0))?;
    let place = Place::take(state).await;
    let drive = Drive { request: &request, plan: &plan, own: spu_id(), worked: Cell::new(0), all: Cell::new(0) };
    let head = engine::run(&drive, &plan, &arguments, reply_bytes).await;
    drop(place);
    Ok(Response::success(head?.bytes + wire::ReplyHead::BYTES as u32))
}

async fn release(request: Request, state: &State) -> Result<(), Failure> {
    let plan = request.receive_array().map_err(|_| MALFORMED)?;
    state.plans.release(process(&request), u32::from_le_bytes(plan));
    Ok(())
}

async fn touch(request: Request, _: &State) -> Result<(), Failure> {
    let address = u64::from_le_bytes(request.receive_array().map_err(|_| MALFORMED)?);
    // It goes nowhere: the handler's memory is not replied.
    let mut byte = [0; 1];
    request.dma(Nv(address).parked(), Local(&mut byte), 1).await?;
    Ok(())
}
