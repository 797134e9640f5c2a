//! Caching's handlers (Willow, section 4.4): NV memory as a cache of a larger, slower file. Each SPU has the chunks whose number modulo the SPUs is
//! its own: a map that finds them, which of them are dirty, how lately each was used, and which process may use which. A manager on the host, who is
//! the kernel's, puts chunks in, and writes dirty ones back.
//!
//! What always holds:
//! - a process reads and writes a chunk only while the manager has permitted that chunk to it;
//! - what was written and synced, or read by the manager to be written back, is there after a power cut, until the manager says that the backing
//!   file has it durably. The map never names a chunk whose bytes are not there, and never says that a changed chunk is clean;
//! - only who has the cache's epoch changes anything: a manager that was replaced is refused, and so is whoever learnt of the cache by it.
//!
//! Who may call it: any user's process [`wire::handler::READ`], [`wire::handler::WRITE`] and [`wire::handler::SYNC`]; the host's kernel the rest.
#![cfg_attr(target_arch = "wasm32", no_std)]

pub mod format;
mod manage;
mod map;
pub mod planted;
mod state;
pub mod wire;

use base_io_ranges::{Failure, MALFORMED};
use manage::{
    claim, clean, create, describe, dirty, drop_chunk, drop_clean, free, install, permit, release, remove, revoke,
    stamp,
};
use planted::{Planted, planted};
use state::{BUSY, CONTROLS_MAX, DIRTY, DIRTY_DURABLE, Place, State, USES_MAX, Use, add};
use willow_sdk::{Body, DeviceEvent, Nv, Reply, Request, Response, SOURCE_HOST};
use wire::{ChunkArguments, RIGHT_READ, RIGHT_WRITE};

/// Requests that are handled on an SPU at a time, with room for events of SPU-OS and for refusals.
const THREADS: usize = USES_MAX + CONTROLS_MAX + 4;

willow_sdk::app! {
    name: "caching",
    version: env!("CARGO_PKG_VERSION"),
    state: State = State::new(),
    threads: THREADS,
    handlers: {
        wire::handler::READ => read,
        wire::handler::WRITE => write,
        wire::handler::SYNC => sync,
        wire::handler::CREATE => create,
        wire::handler::REMOVE => remove,
        wire::handler::FREE => free,
        wire::handler::CLAIM => claim,
        wire::handler::RELEASE => release,
        wire::handler::INSTALL => install,
        wire::handler::PERMIT => permit,
        wire::handler::REVOKE => revoke,
        wire::handler::CLEAN => clean,
        wire::handler::DROP => drop_chunk,
        wire::handler::DROP_CLEAN => drop_clean,
        wire::handler::DIRTY => dirty,
        wire::handler::UPDATE => update,
        wire::handler::STAMP => stamp,
        wire::handler::DESCRIBE => describe,
        wire::handler::COPY => copy,
    },
    public: "1,2,3",
    settles: true,
    events: on_event,
}

const MISS: Failure = Failure(wire::STATUS_MISS);

fn arguments(request: &Request) -> Result<ChunkArguments, Failure> {
    let bytes = request.receive_array().map_err(|_| MALFORMED)?;
    Ok(ChunkArguments::decode(&bytes))
}

/// Whose request it is: a process, or 0 for all endpoints of the host's kernel.
fn owner(request: &Request) -> u32 {
    let endpoint = request.info().originating_hre;
    if endpoint >> 31 == 0 { 0 } else { endpoint >> 12 }
}

/// Requests of the host's kernel come from there, and from no process or app.
fn check_kernel(request: &Request) -> Result<(), Failure> {
    let is_kernel = request.info().source == SOURCE_HOST && owner(request) == 0;
    if is_kernel { Ok(()) } else { Err(Failure(wire::STATUS_PERMISSION)) }
}

/// A slot that has a chunk, that nobody holds, and that this process may use.
async fn found(state: &State, process: u32, asked: &ChunkArguments, right: u32) -> Result<usize, Failure> {
    loop {
        let cache = state.managed(asked.cache, asked.epoch)?;
        let Some(slot) = state.find(asked.cache, asked.chunk) else {
            add(&cache.misses);
            return Err(MISS);
        };
        let it = &state.slots[slot];
        if it.has(BUSY) {
            state.changed.wait().await;
            continue;
        }
        let rights = &it.rights[usize::from(right == RIGHT_WRITE)];
        let is_permitted = process == 0 || state.bit(process, false).is_some_and(|bit| rights.get() & bit != 0);
        return if is_permitted { Ok(slot) } else { Err(Failure(wire::STATUS_PERMISSION)) };
    }
}

/// Checks that a range lies in a chunk.
fn check_range(state: &State, asked: &ChunkArguments) -> Result<(), Failure> {
    let chunk_bytes = state.managed(asked.cache, asked.epoch)?.chunk_bytes.get();
    let fits = asked.first.checked_add(asked.second).is_some_and(|end| end <= chunk_bytes);
    if fits && asked.second > 0 { Ok(()) } else { Err(Failure(wire::STATUS_RANGE)) }
}

async fn get(request: &Request, state: &State, counts: bool) -> Result<u32, Failure> {
    let asked = arguments(request)?;
    let process = owner(request);
    state.open().await?;
    check_range(state, &asked)?;
    let place = state.place(process)?;
    let slot = found(state, process, &asked, RIGHT_READ).await?;
    let cache = state.managed(asked.cache, asked.epoch)?;
    let version = state.slots[slot].written.get();
    let _used = state.enter(&place, slot, false);
    if counts {
        add(&cache.hits);
        state.touch(slot);
    }
    let from = Nv(map::data_address(cache, slot) + u64::from(asked.first));
    match request.dma_now(from, Reply(0), asked.second) {
        Some(done) => done?,
        None => request.dma(from, Reply(0), asked.second).await?,
    }
    Ok(version)
}

async fn read(request: Request, state: &State) -> Result<u32, Failure> {
    get(&request, state, true).await
}

async fn copy(request: Request, state: &State) -> Result<u32, Failure> {
    check_kernel(&request)?;
    get(&request, state, false).await
}

/// A request that brings bytes for a chunk.
async fn asked_to_write(request: &Request, state: &State) -> Result<ChunkArguments, Failure> {
    let asked = arguments(request)?;
    state.open().await?;
    check_range(state, &asked)?;
    let has_bytes = request.info().body_bytes as usize >= ChunkArguments::BYTES + asked.second as usize;
    if has_bytes { Ok(asked) } else { Err(MALFORMED) }
}

/// Has the map say durably that a chunk is dirty.
async fn make_dirty(request: &Request, state: &State, asked: &ChunkArguments, slot: usize) -> Result<(), Failure> {
    let cache = state.managed(asked.cache, asked.epoch)?;
    let held = state.hold(slot);
    map::name(request, state, cache, slot, (asked.chunk, true)).await?;
    map::flush().await?;
    state.slots[held.1].set(DIRTY | DIRTY_DURABLE);
    Ok(())
}

/// Writes the bytes behind the arguments into a slot.
async fn put(request: &Request, state: &State, asked: &ChunkArguments, used: &Use<'_>) -> Result<(), Failure> {
    let cache = state.managed(asked.cache, asked.epoch)?;
    let to = Nv(map::data_address(cache, used.slot) + u64::from(asked.first));
    Ok(request.dma(Body(ChunkArguments::BYTES as u32), to, asked.second).await?)
}

async fn write(request: Request, state: &State) -> Result<(), Failure> {
    let asked = asked_to_write(&request, state).await?;
    if state.managed(asked.cache, asked.epoch)?.writes_through.get() {
        return Err(Failure(wire::STATUS_THROUGH));
    }
    let process = owner(&request);
    let place: Place<'_> = state.place(process)?;
    loop {
        let slot = found(state, process, &asked, RIGHT_WRITE).await?;
        let late = planted(Planted::DataBeforeDirty);
        if !state.slots[slot].has(DIRTY_DURABLE) && !late {
            make_dirty(&request, state, &asked, slot).await?;
            // Rights may have gone meanwhile.
            continue;
        }
        let cache = state.managed(asked.cache, asked.epoch)?;
        add(&cache.hits);
        add(&cache.writes);
        state.touch(slot);
        let used = state.enter(&place, slot, true);
        put(&request, state, &asked, &used).await?;
        drop(used);
        if late && !state.slots[slot].has(DIRTY_DURABLE) {
            make_dirty(&request, state, &asked, slot).await?;
        }
        return Ok(());
    }
}

async fn update(request: Request, state: &State) -> Result<(), Failure> {
    check_kernel(&request)?;
    let asked = asked_to_write(&request, state).await?;
    let place = state.place(0)?;
    let slot = found(state, 0, &asked, RIGHT_WRITE).await?;
    if state.slots[slot].has(DIRTY) {
        return Err(Failure(wire::STATUS_DIRTY));
    }
    let used = state.enter(&place, slot, true);
    put(&request, state, &asked, &used).await
}

async fn sync(request: Request, state: &State) -> Result<(), Failure> {
    let asked = arguments(&request)?;
    state.open().await?;
    state.managed(asked.cache, asked.epoch)?;
    let _place = state.place(owner(&request))?;
    if planted(Planted::SyncsNothing) {
        return Ok(());
    }
    map::flush().await
}

async fn on_event(request: Request, event: DeviceEvent, state: &State) -> Response {
    match event {
        DeviceEvent::Started => map::recover(state, &request).await,
        // Another process may have its number later.
        DeviceEvent::Revoked { process, has_ended: true } if process != 0 => {
            let all = 0..wire::SLOTS_MAX;
            state.forbid(process, all.clone());
            state.quiet(process, all).await;
        }
        _ => {}
    }
    Response::default()
}
