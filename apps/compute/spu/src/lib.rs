//! The SSD App `compute`: the thesis' numeric kernels on files where they lie (XSSD, 4.2 and 4.3). Vectors are multiplied and added by the multiply-add
//! accelerator, rows of matrices transformed by the FFT accelerator, while DMA brings what comes next; only the word that it is done leaves the drive.
//!
//! What always holds:
//! - all DMAs are done on behalf of the process that asks: it reads and writes what it may, by the permissions that the host's agent installed;
//! - a request that fails may have written some of its results, and says that it failed: who wants all or nothing has them written to a file that
//!   nobody else sees yet, as `willow saxpy` and `willow fft` do;
//! - memory is bounded: by [`REQUESTS_MAX`], and of large batches by one request at a time;
//! - it waits for the media and its accelerators alone, never for the host.
//!
//! Who may call it: any user's process; hosts use [`wire`].
#![cfg_attr(target_arch = "wasm32", no_std)]

extern crate alloc;

mod rows;
mod saxpy;
pub mod wire;

use alloc::vec::Vec;
use willow_sdk::sync::Mutex;
use willow_sdk::{Error, Local, Request, Response, SpuNv};
use wire::{HOLE, Place};

#[cfg(target_arch = "wasm32")]
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

/// Requests on an SPU at a time.
pub const REQUESTS_MAX: usize = 4;

/// What there is on each SPU.
pub struct State {
    /// Held by the one request that works on large batches.
    large: Mutex<()>,
}

willow_sdk::app! {
    name: "compute",
    version: env!("CARGO_PKG_VERSION"),
    state: State = State { large: Mutex::new(()) },
    threads: REQUESTS_MAX,
    handlers: {
        wire::handler::SAXPY => saxpy,
        wire::handler::ROWS => rows,
    },
    public: "*",
}

/// A failure as a status.
pub(crate) struct Failure(u32);

impl From<Error> for Failure {
    #[inline(never)]
    fn from(error: Error) -> Failure {
        Failure(match error {
            Error::Range => wire::STATUS_RANGE,
            Error::Permission => wire::STATUS_PERMISSION,
            Error::Argument => wire::STATUS_MALFORMED,
            Error::Full => wire::STATUS_NO_MEMORY,
            Error::Refused => wire::STATUS_BUSY,
            _ => wire::STATUS_MEDIA_ERROR,
        })
    }
}

impl From<Failure> for Response {
    fn from(failure: Failure) -> Response {
        Response::failure(failure.0)
    }
}

/// A buffer; an error where there is no memory for it.
pub(crate) fn buffer(bytes: usize) -> Result<Vec<u8>, Error> {
    let mut buffer = Vec::new();
    buffer.try_reserve_exact(bytes).map_err(|_| Error::Full)?;
    buffer.resize(bytes, 0);
    Ok(buffer)
}

/// Reads what is at a place.
pub(crate) async fn read(request: &Request, from: Place, to: &mut [u8]) -> Result<(), Error> {
    if from.spu == HOLE {
        to.fill(0);
        return Ok(());
    }
    let bytes = to.len() as u32;
    request.read_spu(SpuNv { spu: from.spu, address: from.address }, Local(to), bytes).await
}

/// Writes to a place.
pub(crate) async fn write(request: &Request, from: &[u8], to: Place) -> Result<(), Error> {
    let bytes = from.len() as u32;
    request.write_spu(Local(from), SpuNv { spu: to.spu, address: to.address }, bytes).await
}

async fn saxpy(request: Request, _: &State) -> Result<(), Failure> {
    Ok(saxpy::run(&request).await?)
}

async fn rows(request: Request, state: &State) -> Result<(), Failure> {
    Ok(rows::run(&request, state).await?)
}
