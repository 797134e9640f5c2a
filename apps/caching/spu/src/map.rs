//! The map on the media: what it says of a slot, and what it said at the start.
//!
//! What always holds: who changes what the media say of a slot holds it. Where a change fails the media may have either; the slot is then taken for
//! named, and emptied durably before anything else is put into it.

use crate::format::{
    ENTRY_BYTES, Entry, HEAD_BYTES, SUM_BYTES, UNIT_BYTES, data_offset, decode_head, encode_head, entry_offset, region,
};
use crate::planted::{Planted, planted};
use crate::state::{Cache, DIRTY, DIRTY_DURABLE, NAMED, Start, State};
use crate::wire::{CACHES_MAX, Descriptor};
use base_io_ranges::Failure;
use willow_sdk::{Error, Local, Nv, Request, Strides, Zeroes};

/// Entries that are read at once.
const ENTRIES: usize = 32;

/// Puts the checksum of all before it at the end.
async fn seal(request: &Request, bytes: &mut [u8]) -> Result<(), Error> {
    let checked = bytes.len() - SUM_BYTES;
    let sum = request.checksum(Local(&bytes[..checked]), checked as u32, 0).await?;
    bytes[checked..].copy_from_slice(&u64::from(sum).to_le_bytes());
    Ok(())
}

/// Whether the checksum at the end is that of all before it.
async fn is_sealed(request: &Request, bytes: &[u8]) -> Result<bool, Error> {
    let checked = bytes.len() - SUM_BYTES;
    let sum = request.checksum(Local(&bytes[..checked]), checked as u32, 0).await?;
    Ok(bytes[checked..] == u64::from(sum).to_le_bytes())
}

/// Where the entry and the bytes of a slot lie in the bank.
pub fn entry_address(cache: &Cache, slot: usize) -> u64 {
    cache.base.get() + entry_offset(slot as u64 - u64::from(cache.first.get()))
}

/// Where its bytes do.
pub fn data_address(cache: &Cache, slot: usize) -> u64 {
    let shape = (cache.chunk_bytes.get(), cache.slots.get());
    cache.base.get() + data_offset(shape, slot as u64 - u64::from(cache.first.get()))
}

/// Has the map say that a slot has its chunk, clean or dirty. It is not durable yet.
pub async fn name(
    request: &Request,
    state: &State,
    cache: &Cache,
    slot: usize,
    (chunk, is_dirty): (u64, bool),
) -> Result<(), Failure> {
    let entry = Entry { generation: cache.generation.get(), chunk, is_dirty };
    let mut bytes = entry.encode(willow_sdk::spu_id(), slot - cache.first.get() as usize);
    seal(request, &mut bytes).await?;
    state.slots[slot].set(NAMED);
    Ok(request.write(entry_address(cache, slot), &bytes).await?)
}

/// Has the map say that a slot has no chunk. Not durable before the next flush; it stays named until [`unnamed`] says that it was.
pub async fn erase(request: &Request, cache: &Cache, slot: usize) -> Result<(), Failure> {
    Ok(request.dma(Zeroes, Nv(entry_address(cache, slot)), ENTRY_BYTES as u32).await?)
}

/// What was erased was made durable.
pub fn unnamed(state: &State, slot: usize) {
    state.slots[slot].clear(NAMED);
}

/// Makes this bank durable.
pub async fn flush() -> Result<(), Failure> {
    Ok(willow_sdk::flush().await?)
}

/// Writes a cache's head, durably.
pub async fn write_head(request: &Request, base: u64, number: usize, descriptor: &Descriptor) -> Result<(), Failure> {
    let mut bytes = [0; HEAD_BYTES];
    encode_head(&mut bytes, (willow_sdk::spu_id(), number), descriptor);
    seal(request, &mut bytes).await?;
    request.write(base, &bytes).await?;
    flush().await
}

/// Reads it; `None`: there is none.
pub async fn read_head(request: &Request, base: u64, number: usize) -> Result<Option<Descriptor>, Failure> {
    let mut bytes = [0; HEAD_BYTES];
    request.read(base, &mut bytes).await?;
    let sealed = is_sealed(request, &bytes).await?;
    Ok(sealed.then(|| decode_head(&bytes, (willow_sdk::spu_id(), number))).flatten())
}

/// The start: finds the caches and what they have, before any request is served.
pub async fn recover(state: &State, request: &Request) {
    let start = match read(state, request).await {
        Ok(()) => Start::Ready,
        Err(Failure(status)) => {
            willow_sdk::print!("the caches cannot be read: status {status}");
            Start::Failed
        }
    };
    state.begin(start);
}

async fn read(state: &State, request: &Request) -> Result<(), Failure> {
    for number in 0..CACHES_MAX {
        let base = match willow_sdk::region(region(number), 0).await {
            Ok(base) => base,
            Err(Error::NotFound) => continue,
            Err(error) => return Err(error.into()),
        };
        let Some(descriptor) = read_head(request, base, number).await? else { continue };
        let Some(first) = state.free_slots(descriptor.slots) else {
            willow_sdk::print!("cache {number} has no room: it is left as it is");
            continue;
        };
        state.make(number, &descriptor, base, first);
        read_entries(state, request, number).await?;
    }
    Ok(())
}

async fn read_entries(state: &State, request: &Request, number: usize) -> Result<(), Failure> {
    let cache = &state.caches[number];
    let slots = state.slots_of(cache);
    let mut entries = [[0; ENTRY_BYTES]; ENTRIES];
    for from in slots.clone().step_by(ENTRIES) {
        let count = ENTRIES.min(slots.end - from);
        let strides = Strides {
            segment_bytes: ENTRY_BYTES as u32,
            segments: count as u32,
            source_stride: UNIT_BYTES as i64,
            destination_stride: ENTRY_BYTES as i64,
        };
        let into = entries.as_flattened_mut();
        request.dma_strided(Nv(entry_address(cache, from)), Local(into), strides).await?;
        for (slot, bytes) in (from..).zip(&entries[..count]) {
            if *bytes == [0; ENTRY_BYTES] {
                continue;
            }
            // Whatever it is, it goes before another chunk is put there.
            state.slots[slot].set(NAMED);
            if !is_sealed(request, bytes).await? {
                continue;
            }
            let found = Entry::decode(bytes, willow_sdk::spu_id(), slot - slots.start);
            let Some(entry) = found.filter(|it| it.generation == cache.generation.get()) else { continue };
            let is_home = entry.chunk % u64::from(willow_sdk::spu_count()) == u64::from(willow_sdk::spu_id());
            if entry.chunk >= cache.chunks.get() || !is_home || state.find(number as u32, entry.chunk).is_some() {
                continue;
            }
            state.link(slot, number as u32, entry.chunk);
            if entry.is_dirty && !planted(Planted::RecoversAsClean) {
                state.slots[slot].set(DIRTY | DIRTY_DURABLE);
            }
        }
    }
    Ok(())
}
