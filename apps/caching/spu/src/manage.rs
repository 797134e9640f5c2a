//! What a cache's manager asks for: the host's kernel alone.
//!
//! What always holds: a slot is emptied durably before another chunk's bytes are put into it, these are durable before the map names them, and only a
//! chunk that the backing file has makes way.

use crate::format::{region, region_bytes};
use crate::planted::{Planted, planted};
use crate::state::{BUSY, Cache, Crowded, DIRTY, DIRTY_DURABLE, KEPT, LINKED, NAMED, State, add};
use crate::wire::{
    self, CACHES_MAX, ChunkArguments, Counts, DIRTY_MAX, Descriptor, DirtyChunk, RIGHT_READ, RIGHT_WRITE, Stamp,
};
use crate::{MISS, arguments, check_kernel, map};
use base_io_ranges::{Failure, MALFORMED};
use willow_sdk::{Body, Error, Local, Nv, Reply, Request, Zeroes};

/// Slots that are emptied with one flush.
const DROPPED_AT_ONCE: usize = 64;

/// Arguments of a request of the host's kernel, once the map has been read.
async fn asked(request: &Request, state: &State) -> Result<ChunkArguments, Failure> {
    check_kernel(request)?;
    let asked = arguments(request)?;
    state.open().await?;
    if let Ok(cache) = state.managed(asked.cache, asked.epoch) {
        cache.seen_ns.set(willow_sdk::time_ns());
    }
    Ok(asked)
}

fn received<const BYTES: usize>(request: &Request) -> Result<[u8; BYTES], Failure> {
    request.receive_array().map_err(|_| MALFORMED)
}

pub async fn create(request: Request, state: &State) -> Result<(), Failure> {
    let _place = state.place_control()?;
    let asked = asked(&request, state).await?;
    let descriptor = Descriptor::decode(&received::<{ Descriptor::BYTES }>(&request)?);
    let number = asked.cache as usize;
    if number >= CACHES_MAX || !descriptor.is_sound() {
        return Err(MALFORMED);
    }
    let _alone = state.control.lock().await;
    if state.caches[number].is_known.get() {
        return Err(Failure(wire::STATUS_EXISTS));
    }
    let first = state.free_slots(descriptor.slots).ok_or(Failure(wire::STATUS_FULL))?;
    let shape = (descriptor.chunk_bytes, descriptor.slots);
    let base = willow_sdk::region(region(number), region_bytes(shape)).await?;
    if willow_sdk::region_bytes(region(number))? < region_bytes(shape) {
        // Of one that was given up half way: it is to be freed.
        return Err(Failure(wire::STATUS_EXISTS));
    }
    // What was in the region before names nothing.
    request.dma(Zeroes, Nv(base), crate::format::map_bytes(descriptor.slots) as u32).await?;
    map::flush().await?;
    map::write_head(&request, base, number, &descriptor).await?;
    state.make(number, &descriptor, base, first);
    Ok(())
}

pub async fn remove(request: Request, state: &State) -> Result<(), Failure> {
    let _place = state.place_control()?;
    let asked = asked(&request, state).await?;
    let _alone = state.control.lock().await;
    let cache = state.known(asked.cache)?;
    if !State::may_claim(cache, asked.epoch, willow_sdk::time_ns()) {
        return Err(Failure(wire::STATUS_CLAIMED));
    }
    if asked.first != 1 && state.counts(cache).dirty > 0 {
        return Err(Failure(wire::STATUS_DIRTY));
    }
    cache.is_closing.set(true);
    let slots = state.slots_of(cache);
    let _installing = cache.installing.lock().await;
    state.quiet(0, slots.clone()).await;
    while slots.clone().any(|slot| state.slots[slot].has(BUSY)) {
        state.changed.wait().await;
    }
    let gone = async {
        request.dma(Zeroes, Nv(cache.base.get()), crate::format::HEAD_BYTES as u32).await?;
        map::flush().await
    };
    let gone = gone.await;
    if gone.is_ok() {
        slots.clone().for_each(|slot| state.unlink(slot));
        cache.is_known.set(false);
    }
    cache.is_closing.set(false);
    gone
}

pub async fn free(request: Request, state: &State) -> Result<(), Failure> {
    let _place = state.place_control()?;
    let asked = asked(&request, state).await?;
    let number = asked.cache as usize;
    let _alone = state.control.lock().await;
    if number >= CACHES_MAX || state.caches[number].is_known.get() {
        return Err(Failure(wire::STATUS_EXISTS));
    }
    match willow_sdk::region_free(region(number)).await {
        Ok(()) | Err(Error::NotFound) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

pub async fn claim(request: Request, state: &State) -> Result<(), Failure> {
    let _place = state.place_control()?;
    let asked = asked(&request, state).await?;
    let cache = state.known(asked.cache)?;
    let now_ns = willow_sdk::time_ns();
    if asked.epoch == 0 {
        return Err(MALFORMED);
    }
    if !State::may_claim(cache, asked.epoch, now_ns) {
        return Err(Failure(wire::STATUS_CLAIMED));
    }
    cache.seen_ns.set(now_ns);
    if cache.epoch.replace(asked.epoch) != asked.epoch {
        let slots = state.slots_of(cache);
        // What began under the manager before has ended when this one begins, and what it permitted last is permitted no more.
        let _installing = cache.installing.lock().await;
        state.slots[slots.clone()].iter().flat_map(|slot| &slot.rights).for_each(|rights| rights.set(0));
        state.quiet(0, slots).await;
    }
    Ok(())
}

pub async fn release(request: Request, state: &State) -> Result<(), Failure> {
    let _place = state.place_control()?;
    let asked = asked(&request, state).await?;
    let cache = state.managed(asked.cache, asked.epoch)?;
    cache.epoch.set(0);
    let slots = state.slots_of(cache);
    state.slots[slots.clone()].iter().flat_map(|slot| &slot.rights).for_each(|rights| rights.set(0));
    state.quiet(0, slots).await;
    Ok(())
}

/// Lets a process use a chunk; none: the kernel.
fn allow(state: &State, slot: usize, asked: &ChunkArguments) -> Result<(), Failure> {
    let (process, rights) = (asked.first, asked.second);
    if process == 0 {
        return Ok(());
    }
    let bit = state.bit(process, true).ok_or(Failure(wire::STATUS_PROCESSES))?;
    for (index, right) in [RIGHT_READ, RIGHT_WRITE].into_iter().enumerate() {
        if rights & right != 0 {
            let those = &state.slots[slot].rights[index];
            those.set(those.get() | bit);
        }
    }
    Ok(())
}

/// Empties slots durably, whose chunks nobody finds any more.
async fn empty(request: &Request, state: &State, cache: &Cache, slots: &[usize]) -> Result<(), Failure> {
    for slot in slots {
        map::erase(request, cache, *slot).await?;
    }
    if !planted(Planted::EvictsInMemoryOnly) {
        map::flush().await?;
    }
    slots.iter().for_each(|slot| map::unnamed(state, *slot));
    Ok(())
}

/// Empties the slots of which the media may say what is not so.
async fn settle(request: &Request, state: &State, cache: &Cache) -> Result<(), Failure> {
    while cache.doubtful.get() > 0 {
        let is_doubtful = |slot: &usize| {
            let it = &state.slots[*slot];
            it.has(NAMED) && !it.has(LINKED | BUSY)
        };
        let Some(slot) = state.slots_of(cache).find(is_doubtful) else { break };
        let held = state.hold(slot);
        empty(request, state, cache, &[held.1]).await?;
        drop(held);
    }
    cache.doubtful.set(0);
    Ok(())
}

pub async fn install(request: Request, state: &State) -> Result<u32, Failure> {
    let _place = state.place_control()?;
    let asked = asked(&request, state).await?;
    let cache = state.managed(asked.cache, asked.epoch)?;
    let chunk_bytes = cache.chunk_bytes.get();
    let is_home = asked.chunk % u64::from(willow_sdk::spu_count()) == u64::from(willow_sdk::spu_id());
    let has_bytes = request.info().body_bytes as usize >= ChunkArguments::BYTES + chunk_bytes as usize;
    if !is_home || !has_bytes || asked.chunk >= cache.chunks.get() {
        return Err(MALFORMED);
    }
    let _alone = cache.installing.lock().await;
    // Its manager may be another by now.
    let cache = state.managed(asked.cache, asked.epoch)?;
    if let Some(slot) = state.find(asked.cache, asked.chunk) {
        allow(state, slot, &asked)?;
        return Ok(1);
    }
    if asked.first != 0 && state.bit(asked.first, true).is_none() {
        return Err(Failure(wire::STATUS_PROCESSES));
    }
    settle(&request, state, cache).await?;
    let slot = match state.empty(cache) {
        Some(slot) => slot,
        None => {
            let oldest = state.oldest(cache, planted(Planted::DirtyDropped), willow_sdk::time_ns());
            let slot = oldest.map_err(|crowded| match crowded {
                Crowded::Dirty => Failure(wire::STATUS_DIRTY),
                Crowded::Used => Failure(wire::STATUS_BUSY),
            })?;
            state.unlink(slot);
            add(&cache.evictions);
            slot
        }
    };
    let held = state.hold(slot);
    if state.slots[slot].has(NAMED) {
        empty(&request, state, cache, &[slot]).await.inspect_err(|_| cache.doubtful.set(cache.doubtful.get() + 1))?;
    }
    let early = planted(Planted::MapBeforeData);
    let named = async {
        if early {
            map::name(&request, state, cache, slot, (asked.chunk, false)).await?;
            map::flush().await?;
        }
        let to = Nv(map::data_address(cache, slot));
        request.dma(Body(ChunkArguments::BYTES as u32), to, chunk_bytes).await?;
        map::flush().await?;
        if early { Ok(()) } else { map::name(&request, state, cache, slot, (asked.chunk, false)).await }
    };
    if let Err(failure) = named.await {
        if state.slots[slot].has(NAMED) {
            cache.doubtful.set(cache.doubtful.get() + 1);
        }
        return Err(failure);
    }
    state.link(slot, asked.cache, asked.chunk);
    if asked.second & wire::KEEP != 0 {
        state.slots[slot].put_in_ns.set(willow_sdk::time_ns());
        state.slots[slot].set(KEPT);
    }
    drop(held);
    add(&cache.installs);
    // Its manager may be another by now.
    state.managed(asked.cache, asked.epoch)?;
    allow(state, slot, &asked)?;
    Ok(0)
}

pub async fn permit(request: Request, state: &State) -> Result<(), Failure> {
    let asked = asked(&request, state).await?;
    state.managed(asked.cache, asked.epoch)?;
    let slot = state.find(asked.cache, asked.chunk).ok_or(MISS)?;
    allow(state, slot, &asked)
}

pub async fn revoke(request: Request, state: &State) -> Result<(), Failure> {
    let _place = state.place_control()?;
    let asked = asked(&request, state).await?;
    let cache = state.managed(asked.cache, asked.epoch)?;
    if asked.first == 0 {
        return Err(MALFORMED);
    }
    let slots = state.slots_of(cache);
    // One chunk may just be put in for it.
    let installing = cache.installing.lock().await;
    state.forbid(asked.first, slots.clone());
    drop(installing);
    if !planted(Planted::RevokesAtOnce) {
        state.quiet(asked.first, slots).await;
    }
    Ok(())
}

/// Holds the slot of a chunk, as soon as nobody does.
async fn held<'a>(state: &'a State, asked: &ChunkArguments) -> Result<(&'a Cache, crate::state::Busy<'a>), Failure> {
    loop {
        let cache = state.managed(asked.cache, asked.epoch)?;
        let slot = state.find(asked.cache, asked.chunk).ok_or(MISS)?;
        if !state.slots[slot].has(BUSY) {
            return Ok((cache, state.hold(slot)));
        }
        state.changed.wait().await;
    }
}

pub async fn clean(request: Request, state: &State) -> Result<(), Failure> {
    let _place = state.place_control()?;
    let asked = asked(&request, state).await?;
    let (cache, held) = held(state, &asked).await?;
    let slot = &state.slots[held.1];
    if (slot.written.get() != asked.first || slot.writers.get() > 0) && !planted(Planted::CleansWhatChanged) {
        return Err(Failure(wire::STATUS_CHANGED));
    }
    if !slot.has(DIRTY) {
        return Ok(());
    }
    // What was read for the backing file may not be durable here: the map would say that it is clean, and the slot have older bytes.
    if !planted(Planted::CleanBeforeData) {
        map::flush().await?;
    }
    // Where this fails the media may say that it is clean.
    slot.clear(DIRTY_DURABLE);
    map::name(&request, state, cache, held.1, (asked.chunk, false)).await?;
    slot.clear(DIRTY);
    Ok(())
}

pub async fn drop_chunk(request: Request, state: &State) -> Result<(), Failure> {
    let _place = state.place_control()?;
    let asked = asked(&request, state).await?;
    // Until the media have forgotten it, it is put into no other slot.
    let _alone = state.managed(asked.cache, asked.epoch)?.installing.lock().await;
    let (cache, held) = held(state, &asked).await?;
    let slot = &state.slots[held.1];
    if slot.has(DIRTY) && asked.first != 1 {
        return Err(Failure(wire::STATUS_DIRTY));
    }
    while slot.users.get() > 0 {
        state.changed.wait().await;
    }
    state.unlink(held.1);
    add(&cache.evictions);
    empty(&request, state, cache, &[held.1]).await.inspect_err(|_| cache.doubtful.set(cache.doubtful.get() + 1))
}

pub async fn drop_clean(request: Request, state: &State) -> Result<(), Failure> {
    let _place = state.place_control()?;
    let asked = asked(&request, state).await?;
    let cache = state.managed(asked.cache, asked.epoch)?;
    let _installing = cache.installing.lock().await;
    settle(&request, state, cache).await?;
    let is_clean = |slot: &usize| {
        let it = &state.slots[*slot];
        it.has(LINKED) && !it.has(BUSY | DIRTY) && it.users.get() == 0
    };
    let mut next = state.slots_of(cache).start;
    loop {
        let mut those = [0; DROPPED_AT_ONCE];
        let mut count = 0;
        while next < state.slots_of(cache).end && count < DROPPED_AT_ONCE {
            if is_clean(&next) {
                those[count] = next;
                count += 1;
            }
            next += 1;
        }
        if count == 0 {
            return Ok(());
        }
        let those = &those[..count];
        those.iter().for_each(|slot| {
            state.unlink(*slot);
            state.slots[*slot].set(BUSY);
        });
        let done = empty(&request, state, cache, those).await;
        those.iter().for_each(|slot| state.slots[*slot].clear(BUSY));
        state.changed.notify_all();
        if done.is_err() {
            cache.doubtful.set(cache.doubtful.get() + count as u32);
        }
        done?;
    }
}

pub async fn dirty(request: Request, state: &State) -> Result<u32, Failure> {
    let _place = state.place_control()?;
    let asked = asked(&request, state).await?;
    let cache = state.managed(asked.cache, asked.epoch)?;
    let mut bytes = [[0; DirtyChunk::BYTES]; DIRTY_MAX];
    let (slots, mut count) = (state.slots_of(cache), 0);
    let from = slots.start + usize::try_from(asked.chunk).unwrap_or(usize::MAX).min(slots.len());
    for slot in from..slots.end {
        let it = &state.slots[slot];
        if it.has(DIRTY) && count < DIRTY_MAX {
            let told =
                DirtyChunk { chunk: it.chunk.get(), slot: (slot - slots.start) as u32, version: it.written.get() };
            bytes[count] = told.encode();
            count += 1;
        }
    }
    let told = bytes.as_flattened();
    if count > 0 {
        request.dma(Local(told), Reply(0), (count * DirtyChunk::BYTES) as u32).await?;
    }
    Ok(count as u32)
}

pub async fn stamp(request: Request, state: &State) -> Result<(), Failure> {
    let _place = state.place_control()?;
    let asked = asked(&request, state).await?;
    let stamp: Stamp = received(&request)?;
    let _alone = state.control.lock().await;
    let cache = state.managed(asked.cache, asked.epoch)?;
    let number = asked.cache as usize;
    let base = cache.base.get();
    let head = map::read_head(&request, base, number).await?.ok_or(Failure(wire::STATUS_MEDIA_ERROR))?;
    map::write_head(&request, base, number, &Descriptor { stamp, ..head }).await
}

pub async fn describe(request: Request, state: &State) -> Result<(), Failure> {
    let _place = state.place_control()?;
    let asked = asked(&request, state).await?;
    let cache = state.known(asked.cache)?;
    let head = map::read_head(&request, cache.base.get(), asked.cache as usize).await?;
    let head = head.ok_or(Failure(wire::STATUS_MEDIA_ERROR))?;
    let mut bytes = [0; Descriptor::BYTES + Counts::BYTES];
    bytes[..Descriptor::BYTES].copy_from_slice(&head.encode());
    bytes[Descriptor::BYTES..].copy_from_slice(&state.counts(cache).encode());
    Ok(request.dma(Local(&bytes), Reply(0), bytes.len() as u32).await?)
}
