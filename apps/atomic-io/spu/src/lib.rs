//! Atomic-IO's handlers: a block namespace whose writes are whole or not there at all after a power cut, within a stripe and up to
//! [`format::DATA_BYTES`]. Requests are Base-IO's ([`wire`]); writes of more than one unit of the media go through a redo log in this SPU's
//! bank ([`log`]).
//!
//! What always holds:
//! - a write that is answered with success is durable, but for one that fits into one unit of the media and says no FUA;
//! - handlers are for endpoints of the host's kernel alone: files on such a namespace are not given out for direct access, since what is written
//!   past this app its log could undo.
//!
//! Who may call it: SPU-OS, through the exports that `app!` makes.
#![cfg_attr(target_arch = "wasm32", no_std)]

pub mod format;
pub mod log;
pub mod planted;
mod recovery;

pub use base_io_ranges::wire;

use base_io_ranges::{
    Failure, MALFORMED, PAYLOAD, arguments, compare_range, flush, read_range, verify, write_range, zero_range,
};
use log::State;
use willow_sdk::{DeviceEvent, Request, Response};

/// Requests that are handled on an SPU at a time.
pub const THREADS: usize = 64;

willow_sdk::app! {
    name: "atomic-io",
    version: env!("CARGO_PKG_VERSION"),
    state: State = State::new(),
    threads: THREADS,
    handlers: {
        wire::handler::READ => read,
        wire::handler::WRITE => write,
        wire::handler::FLUSH => flush,
        wire::handler::ZERO => zero,
        wire::handler::COMPARE => compare,
        wire::handler::VERIFY => verify,
    },
    settles: true,
    events: on_event,
}

async fn read(request: Request, state: &State) -> Result<(), Failure> {
    let range = arguments(&request)?;
    if state.has_failed() {
        state.put_failed(&request, range.nv_address, range.bytes).await?;
    }
    read_range(request, range).await
}

async fn compare(request: Request, state: &State) -> Result<(), Failure> {
    let range = arguments(&request)?;
    if state.has_failed() {
        state.put_failed(&request, range.nv_address, range.bytes).await?;
    }
    compare_range(request, range).await
}

async fn write(request: Request, state: &State) -> Result<(), Failure> {
    let range = arguments(&request)?;
    if range.bytes == 0 {
        return write_range(request, range).await;
    }
    let body = range.buffer_offset.checked_add(PAYLOAD).ok_or(MALFORMED)?;
    let _claim = state.claim(range.nv_address, range.bytes).await;
    state.put_failed(&request, range.nv_address, range.bytes).await?;
    let is_of_one_stripe = range.bytes <= range.first_bytes;
    if is_of_one_stripe && range.bytes <= format::DATA_BYTES {
        let is_of_one_unit = format::is_of_one_unit(range.nv_address, range.bytes);
        if !is_of_one_unit || state.overlaps_live(range.nv_address, range.bytes) {
            return state.write(&request, (range.nv_address, range.bytes), body).await;
        }
    } else {
        state.retire_overlapping(&request, range.nv_address, range.bytes).await?;
    }
    write_range(request, range).await
}

async fn zero(request: Request, state: &State) -> Result<(), Failure> {
    let range = arguments(&request)?;
    let _claim = state.claim(range.nv_address, range.bytes).await;
    state.put_failed(&request, range.nv_address, range.bytes).await?;
    state.retire_overlapping(&request, range.nv_address, range.bytes).await?;
    zero_range(request, range).await
}

/// How often the log is tried to be emptied while the media fail, and the time between: as long as the device waits for it.
const RETIRE_TRIES_MAX: u32 = 500;
/// See above.
const RETIRE_WAIT_NS: u64 = 10_000_000;

/// Empties the log, again and again where the media fail: what it keeps would come over what is there next.
async fn retire_for_sure(request: &Request, state: &State) -> Result<(), Failure> {
    for _ in 1..RETIRE_TRIES_MAX {
        if state.retire_all(request).await.is_ok() || willow_sdk::sleep_ns(RETIRE_WAIT_NS).await.is_err() {
            break;
        }
    }
    state.retire_all(request).await
}

async fn on_event(request: Request, event: DeviceEvent, state: &State) -> Response {
    let done = match event {
        DeviceEvent::Started => {
            recovery::recover(state, &request).await;
            Ok(())
        }
        // Room for the log is looked for while there is some; a write looks again. What could not be retired when a namespace went is, before this
        // one is used for long.
        DeviceEvent::NamespaceCreated(_) => match state.open(&request).await {
            Ok(_) => state.retire_all(&request).await,
            Err(failure) => Err(failure),
        },
        // What the log has of ranges that are no namespace's any more must not come back over what is there next: the device waits for the answer
        // before it gives them away. So also where one was resized.
        DeviceEvent::NamespaceDeleted(_) | DeviceEvent::NamespaceResized(_) => retire_for_sure(&request, state).await,
        DeviceEvent::Shutdown => state.retire_all(&request).await,
        DeviceEvent::Revoked { .. } | DeviceEvent::Other(_) => Ok(()),
    };
    match done {
        Ok(()) => Response::default(),
        Err(failure) => failure.into(),
    }
}
