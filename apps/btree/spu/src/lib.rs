//! The SSD App `btree`: B+trees in NV memory (XSSD, section 4.5), with 4 kB nodes and 16-byte keys. A search is one request whatever the height of
//! the tree; the SPU goes from node to node by DMA, and the key accelerator finds the place in each. FORMAT.md has the bytes.
//!
//! The way of a request: the handlers here -> [`table`] (which tree, which root) -> [`search`] or [`change`] -> [`ports`] (banks). [`space`] knows
//! what is free.
//!
//! What always holds:
//! - a put or a delete that was answered is durable; one that was not is done as a whole or not at all;
//! - an operation is of one moment: it sees each change as a whole or not at all;
//! - memory is bounded: trees by [`table::TREES_MAX`], what is free in each by [`format::PAGES_MAX`], requests by [`REQUESTS_MAX`].
//!
//! Who may call it: the user who installed it, and the host's kernel, through the exports that `app!` makes.
#![cfg_attr(target_arch = "wasm32", no_std)]

extern crate alloc;

mod change;
pub mod format;
pub mod planted;
mod ports;
mod search;
pub mod space;
mod table;
pub mod wire;

use ports::Failure;
use table::State;
use willow_sdk::{Local, Reply, Request, Response, SOURCE_HOST, yield_now};
use wire::{CREATE_BYTES, Create, KEY_BYTES, Look, NAME_BYTES_MAX, Statistics};

#[cfg(target_arch = "wasm32")]
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

/// Requests of hosts on an SPU at a time.
pub const REQUESTS_MAX: u32 = 24;
/// Trees that other SPUs have this one open at a time.
const OPENS_MAX: u32 = 4;
/// Banks that other SPUs have made durable at a time. It waits for the media alone, and there is always a place for it: changes on two SPUs that
/// wait for each other's bank go on.
const SYNCS: u32 = 4;
/// Pairs that a change works on before it makes way for others: what they cost stays far from a run's budget.
const PAIRS_AT_ONCE: u32 = 4;

willow_sdk::app! {
    name: "btree",
    version: env!("CARGO_PKG_VERSION"),
    state: State = State::new(),
    threads: (REQUESTS_MAX + OPENS_MAX + SYNCS) as usize,
    handlers: {
        wire::handler::CREATE => create,
        wire::handler::GET => get,
        wire::handler::PUT => put,
        wire::handler::DELETE => delete,
        wire::handler::RANGE => range,
        wire::handler::STAT => stat,
        wire::handler::OPEN => open,
        wire::handler::SYNC => sync,
        wire::handler::SPUS => spus,
        wire::handler::REMOVE => remove,
        wire::handler::CLOSE => close,
    },
}

/// What the app counts (`willow stat`).
mod counter {
    pub const GETS: u32 = 0;
    pub const PUTS: u32 = 1;
    pub const DELETES: u32 = 2;
    pub const RANGES: u32 = 3;
}

const MALFORMED: Failure = Failure(wire::STATUS_MALFORMED);

fn arguments<const BYTES: usize>(request: &Request) -> Result<[u8; BYTES], Failure> {
    request.receive_array().map_err(|_| MALFORMED)
}

async fn create(request: Request, state: &State) -> Result<(), Response> {
    let _place = state.place(0, REQUESTS_MAX)?;
    let create = Create::decode(&arguments::<CREATE_BYTES>(&request)?);
    let mut name = [0; NAME_BYTES_MAX];
    let name = name.get_mut(..create.name_bytes as usize).ok_or(MALFORMED)?;
    if request.receive(name) != name.len() {
        return Err(MALFORMED.into());
    }
    state.create(&request, &create, name).await
}

async fn get(request: Request, state: &State) -> Result<u32, Failure> {
    let _place = state.place(0, REQUESTS_MAX)?;
    willow_sdk::count(counter::GETS, 1);
    let look = Look::decode(&arguments(&request)?);
    let tree = state.enter(&request, look.tree).await?;
    let mut node = state.spare.take();
    let found = tree.search(async |root| search::get(&tree.ports, root, &look.key, &mut node).await).await;
    state.spare.give(node);
    found?.ok_or(Failure(wire::STATUS_NOT_FOUND))
}

async fn range(request: Request, state: &State) -> Result<u32, Failure> {
    let _place = state.place(0, REQUESTS_MAX)?;
    willow_sdk::count(counter::RANGES, 1);
    let look = Look::decode(&arguments(&request)?);
    if request.info().reply_bytes < wire::RANGE_REPLY_BYTES_MIN || look.flags & wire::RANGE_PAIRS_MASK == 0 {
        return Err(MALFORMED);
    }
    let tree = state.enter(&request, look.tree).await?;
    let mut node = state.spare.take();
    let begin = (&look.key, look.flags);
    let found = tree.search(async |root| search::range(&tree.ports, root, begin, &mut node).await).await;
    state.spare.give(node);
    Ok(found?.pairs)
}

/// The tree that a put or a delete is for, and how many pairs or keys follow.
fn change_of(request: &Request, entry_bytes: usize) -> Result<(u32, u32), Failure> {
    let (tree, count) = wire::decode_change(&arguments(request)?);
    let has_entries = request.info().body_bytes as usize >= wire::CHANGE_BYTES + count as usize * entry_bytes;
    if !(1..=wire::PAIRS_MAX).contains(&count) || !has_entries {
        return Err(MALFORMED);
    }
    Ok((tree, count))
}

async fn put(request: Request, state: &State) -> Result<u32, Failure> {
    let _place = state.place(0, REQUESTS_MAX)?;
    willow_sdk::count(counter::PUTS, 1);
    let (number, count) = change_of(&request, wire::PAIR_HEAD_BYTES)?;
    let body_bytes = request.info().body_bytes;
    let tree = state.enter(&request, number).await?;
    let put = async |change: &mut change::Change<'_>| {
        let mut offset = wire::CHANGE_BYTES as u32 + count * wire::PAIR_HEAD_BYTES as u32;
        for done in 1..=count {
            let (key, bytes) = wire::decode_pair(&arguments(&request)?);
            if bytes > wire::VALUE_BYTES_MAX || bytes > body_bytes - offset {
                return Err(MALFORMED);
            }
            change.put(&key, offset, bytes).await?;
            offset += bytes;
            if done.is_multiple_of(PAIRS_AT_ONCE) {
                yield_now().await?;
            }
        }
        if offset == body_bytes { Ok(count) } else { Err(MALFORMED) }
    };
    tree.change(state, put).await
}

async fn delete(request: Request, state: &State) -> Result<u32, Failure> {
    let _place = state.place(0, REQUESTS_MAX)?;
    willow_sdk::count(counter::DELETES, 1);
    let (number, count) = change_of(&request, KEY_BYTES)?;
    let tree = state.enter(&request, number).await?;
    let delete = async |change: &mut change::Change<'_>| {
        let mut deleted = 0;
        for done in 1..=count {
            let key = arguments::<KEY_BYTES>(&request)?;
            deleted += u32::from(change.delete(&key).await?);
            if done.is_multiple_of(PAIRS_AT_ONCE) {
                yield_now().await?;
            }
        }
        Ok(deleted)
    };
    tree.change(state, delete).await
}

async fn stat(request: Request, state: &State) -> Result<(), Failure> {
    let _place = state.place(0, REQUESTS_MAX)?;
    let number = u32::from_le_bytes(arguments(&request)?);
    if (request.info().reply_bytes as usize) < Statistics::BYTES {
        return Err(MALFORMED);
    }
    let tree = state.enter(&request, number).await?;
    let found = tree.search(async |root| Ok(*root)).await?;
    let superblock = tree.superblock();
    let statistics = Statistics {
        layout: superblock.layout,
        height: found.height,
        revision: found.revision,
        pairs: found.pairs,
        pages: superblock.pages.into(),
        name_bytes: superblock.name_bytes,
        name: superblock.name,
    };
    request.dma(Local(&statistics.encode()), Reply(0), Statistics::BYTES as u32).await?;
    Ok(())
}

/// Requests of other SPUs come from them.
fn from_spu(request: &Request) -> Result<(), Failure> {
    if request.info().source == SOURCE_HOST { Err(MALFORMED) } else { Ok(()) }
}

async fn open(request: Request, state: &State) -> Result<(), Failure> {
    from_spu(&request)?;
    let _place = state.place(1, OPENS_MAX)?;
    let number = u32::from_le_bytes(arguments(&request)?);
    let tree = state.enter(&request, number).await?;
    let bytes = tree.superblock().encode();
    request.dma(Local(&bytes), Reply(0), bytes.len() as u32).await?;
    Ok(())
}

async fn remove(request: Request, state: &State) -> Result<(), Failure> {
    let _place = state.place(0, REQUESTS_MAX)?;
    let (tree, name_bytes) = wire::decode_change(&arguments(&request)?);
    let mut name = [0; NAME_BYTES_MAX];
    let name = name.get_mut(..name_bytes as usize).ok_or(MALFORMED)?;
    if request.receive(name) != name.len() {
        return Err(MALFORMED);
    }
    state.remove(&request, tree, name).await
}

async fn close(request: Request, state: &State) -> Result<(), Failure> {
    from_spu(&request)?;
    let (tree, is_closed) = wire::decode_change(&arguments(&request)?);
    if is_closed == 0 {
        state.reopen(tree);
        return Ok(());
    }
    let _place = state.place(1, OPENS_MAX)?;
    state.close(tree).await
}

async fn spus(_: Request, _: &State) -> u32 {
    willow_sdk::spu_count()
}

async fn sync(request: Request, _: &State) -> Result<(), Failure> {
    from_spu(&request)?;
    Ok(willow_sdk::flush().await?)
}
