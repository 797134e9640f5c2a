//! The start: writes that the log has durably are put in their places before any request of a host is served.
//!
//! What always holds: they are put in the order of their numbers, and a cut in the midst leaves the log as it was: it can begin again.

use crate::format::{Header, REGION, SLOTS_MAX, Superblock, data_offset, header_offset, slots};
use crate::log::{Log, Place, Stage, State, read_sealed};
use crate::planted::{Planted, planted};
use base_io_ranges::Failure;
use willow_sdk::{Error, Nv, Request};

/// Reads the log, empties it, and opens it.
pub async fn recover(state: &State, request: &Request) {
    let log = match read(state, request).await {
        Ok(log) => log,
        Err(Failure(status)) => {
            willow_sdk::print!("the log cannot be read: status {status}");
            Log::Failed
        }
    };
    state.log.set(log);
    state.changed.notify_all();
}

async fn read(state: &State, request: &Request) -> Result<Log, Failure> {
    let base = match willow_sdk::region(REGION, 0).await {
        Ok(base) => base,
        Err(Error::NotFound) => return Ok(Log::Absent),
        Err(error) => return Err(error.into()),
    };
    let place = Place { base, slots: slots(willow_sdk::region_bytes(REGION)?) };
    let (spu, spus) = (willow_sdk::spu_id(), willow_sdk::spu_count());
    let superblock = read_sealed(request, base).await?.and_then(|bytes| Superblock::decode(&bytes, spu, spus));
    // A log whose making was interrupted has no superblock, and no headers.
    let low = superblock.map_or(1, |superblock| superblock.low);
    let mut next = low;
    for index in 0..place.slots {
        let found = read_sealed(request, base + header_offset(index)).await?;
        let Some(header) = found.and_then(|bytes| Header::decode(&bytes, spu, index)) else { continue };
        // Also what does not count: data that are written there later could make it whole.
        next = next.max(header.sequence + 1);
        let own = place.base..place.base + data_offset(place.slots);
        let end = header.address.saturating_add(header.bytes.into());
        let is_foreign = header.address < own.end && end > own.start;
        if header.sequence < low || is_foreign || !is_whole(request, place, index, &header).await? {
            continue;
        }
        let slot = &state.slots[index];
        slot.sequence.set(header.sequence);
        slot.range.set((header.address, header.bytes));
        state.set_stage(slot, Stage::Failed);
    }
    state.next.set(next);
    loop {
        let failed = |index: &usize| state.slots[*index].stage.get() == Stage::Failed;
        let order = |index: &usize| {
            let sequence = state.slots[*index].sequence.get();
            if planted(Planted::LaterFirst) { u64::MAX - sequence } else { sequence }
        };
        let Some(first) = (0..SLOTS_MAX).filter(failed).min_by_key(order) else { break };
        if state.put_again(request, place, first).await.is_err() && state.slots[first].stage.get() == Stage::Failed {
            // The media fail there: what is there is tried again before anybody reads or writes it.
            willow_sdk::print!("a write of the log could not be put in its place");
            return Ok(Log::Ready(place));
        }
    }
    willow_sdk::flush().await?;
    state.mark(request, place, next).await?;
    state.slots.iter().for_each(|slot| slot.stage.set(Stage::Free));
    Ok(Log::Ready(place))
}

async fn is_whole(request: &Request, place: Place, index: usize, header: &Header) -> Result<bool, Failure> {
    if planted(Planted::TornData) {
        return Ok(true);
    }
    let data = Nv(place.base + data_offset(index));
    Ok(request.checksum(data, header.bytes, 0).await? == header.sum)
}
