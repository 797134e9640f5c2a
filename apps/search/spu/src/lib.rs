//! The SSD App `search`: finds lines of files where they lie, so that only matches leave the drive (XSSD, chapters 3.3 and 4.1: fgrep). Hosts
//! prepare a set, a literal and an automaton, and have ranges of a bank scanned; SPU-OS says who may read what, by the permissions that the
//! host's agent installed for the process.
//!
//! What always holds:
//! - a reply has bytes that the process may read alone: all of a scan's DMAs are done on its behalf;
//! - memory is bounded: sets by [`sets`], scans under way by the buffers of [`buffers`], for which they wait in line;
//! - an automaton is checked before anything runs on it.
//!
//! Who may call it: any user's process, through the exports that `app!` makes; hosts use [`segment`] and [`wire`], tests [`sets`].
#![cfg_attr(target_arch = "wasm32", no_std)]

extern crate alloc;

mod buffers;
mod fast;
mod scan;
pub mod segment;
pub mod sets;
pub mod wire;

use buffers::Buffers;
use sets::{Kept, Sets};
use willow_sdk::{Error, Request, Response, yield_now};
use wire::Prepare;

#[cfg(target_arch = "wasm32")]
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

/// The bits of an endpoint's id that say which process' it is.
const PROCESS_SHIFT: u32 = 12;

/// What there is on each SPU.
pub struct State {
    sets: Sets,
    buffers: Buffers,
}

willow_sdk::app! {
    name: "search",
    version: "0.1.0",
    state: State = State { sets: Sets::new(), buffers: Buffers::new() },
    threads: 64,
    handlers: {
        wire::handler::PREPARE => prepare,
        wire::handler::SCAN => scan,
        wire::handler::RELEASE => release,
    },
    public: "*",
}

/// A failure as a status.
struct Failure(u32, u32);

impl From<Error> for Failure {
    #[inline(never)]
    fn from(error: Error) -> Failure {
        let status = match error {
            Error::Range => wire::STATUS_RANGE,
            Error::Permission => wire::STATUS_PERMISSION,
            Error::Argument => wire::STATUS_MALFORMED,
            Error::Full => wire::STATUS_NO_MEMORY,
            Error::Refused => wire::STATUS_BUSY,
            _ => wire::STATUS_MEDIA_ERROR,
        };
        Failure(status, 0)
    }
}

impl From<Failure> for Response {
    fn from(Failure(status, result): Failure) -> Response {
        Response { status, result }
    }
}

const MALFORMED: Failure = Failure(wire::STATUS_MALFORMED, 0);
const NO_MEMORY: Failure = Failure(wire::STATUS_NO_MEMORY, wire::SET_BYTES_MAX as u32);

fn process(request: &Request) -> u32 {
    request.info().originating_hre >> PROCESS_SHIFT
}

/// Receives a set and keeps it.
async fn prepare(request: Request, state: &State) -> Result<Response, Failure> {
    let head = request.receive_array().ok().and_then(|bytes| Prepare::decode(&bytes)).ok_or(MALFORMED)?;
    let body_bytes = request.info().body_bytes as usize;
    let (literals, automaton) = (head.literals_bytes as usize, head.automaton_bytes as usize);
    if literals > wire::LITERALS_BYTES_MAX || head.automaton_offset() + automaton > wire::SET_BYTES_MAX {
        return Err(NO_MEMORY);
    }
    if body_bytes != Prepare::BYTES + head.automaton_offset() + automaton {
        return Err(MALFORMED);
    }
    let process = process(&request);
    if !state.sets.reserve(process, &head) {
        return Err(NO_MEMORY);
    }
    let kept = receive(&request, head, process, state).await;
    state.sets.received(&head);
    Ok(Response::success(state.sets.keep(process, kept?)))
}

async fn receive(request: &Request, head: Prepare, process: u32, state: &State) -> Result<Kept, Failure> {
    let mut words = Kept::room(&head).ok_or(NO_MEMORY)?;
    let bytes = head.automaton_offset() + head.automaton_bytes as usize;
    if request.receive(&mut sets::bytes_mut(&mut words)[..bytes]) != bytes {
        return Err(MALFORMED);
    }
    let mut kept = Kept::new(head, words).ok_or(MALFORMED)?;
    // What both cost together would be much for one run.
    yield_now().await?;
    if state.sets.accelerate(process, &mut kept) { Ok(kept) } else { Err(NO_MEMORY) }
}

async fn scan(request: Request, state: &State) -> Result<Response, Failure> {
    scan::scan(&request, state).await
}

async fn release(request: Request, state: &State) -> Result<(), Failure> {
    let set = request.receive_array().map_err(|_| MALFORMED)?;
    state.sets.release(process(&request), u32::from_le_bytes(set));
    Ok(())
}
