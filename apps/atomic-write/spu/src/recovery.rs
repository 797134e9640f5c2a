//! The start: what the media have of commits is carried to its end before any request of a host is served.
//!
//! What always holds:
//! - a commit is applied if all its participants have a head of it whose data are there, else by none;
//! - its coordinator asks and tells; a part whose coordinator does not know of it is not committed, or applied by all;
//! - a cut in the midst leaves the facts as they were: it can begin again.

use crate::format::{
    ENTRY_BYTES, Entry, HEAD_ENTRIES, HEADER_BYTES, HEADS, Header, Mark, NONE, REGION, UNIT_BYTES, chunks, head_offset,
};
use crate::log::Entries;
use crate::participant;
use crate::planted::{Planted, planted, trap_if_planted};
use crate::state::{Log, Place, State, status};
use crate::table::{Part, Stage, link};
use crate::wire::{self, CommitMessage, handler};
use willow_sdk::{App, Destination, Error, Local, Nv, Request, Response, Strides};

/// Heads that are read at the same time.
const HEADS_A_READ: usize = 16;
/// How long it may take.
const RECOVERY_NS_MAX: u64 = 8_000_000_000;
/// How long it waits before it asks again who has not read its log yet.
const ASK_WAIT_NS: u64 = 200_000;

/// What an instance says of its part of a commit.
pub mod progress {
    /// It has none.
    pub const NONE: u32 = 0;
    /// It is prepared.
    pub const PREPARED: u32 = 1;
    /// It has applied it.
    pub const APPLIED: u32 = 2;
}

/// Reads the log, settles what it has, and opens it.
pub async fn recover(state: &State, request: &Request) {
    let recovered = async {
        let base = match willow_sdk::region(REGION, 0).await {
            Ok(base) => base,
            Err(Error::NotFound) => return Ok(Log::Absent),
            Err(error) => return Err(status(error)),
        };
        let bytes = willow_sdk::region_bytes(REGION).map_err(status)?;
        let place = Place { base, chunks: chunks(bytes) };
        trap_if_planted(Planted::TrapsRecovering);
        let before = state.superblock(request, base).await?;
        if before.is_some() {
            read_heads(state, request, place).await?;
        }
        state.log.set(Log::Settling(place));
        state.changed.notify_all();
        let deadline_ns = willow_sdk::time_ns() + RECOVERY_NS_MAX;
        settle(state, request, place, deadline_ns).await?;
        state.table.restored();
        state.begin(request, place, before).await?;
        Ok(Log::Ready(place))
    };
    let log = recovered.await.unwrap_or_else(|status| {
        willow_sdk::print!("the log cannot be recovered: status {status}");
        Log::Failed(status)
    });
    state.log.set(log);
    state.changed.notify_all();
}

/// Finds all heads whose entries and data are there.
async fn read_heads(state: &State, request: &Request, place: Place) -> Result<(), u32> {
    let spu = willow_sdk::spu_id();
    let mut headers = [0; HEADS_A_READ * HEADER_BYTES];
    for first in (0..HEADS).step_by(HEADS_A_READ) {
        let strides = Strides {
            segment_bytes: HEADER_BYTES as u32,
            segments: HEADS_A_READ as u32,
            source_stride: UNIT_BYTES as i64,
            destination_stride: HEADER_BYTES as i64,
        };
        let from = Nv(place.base + head_offset(first));
        request.dma_strided(from, Local(&mut headers), strides).await.map_err(status)?;
        for (index, bytes) in (first..).zip(headers.chunks_exact(HEADER_BYTES)) {
            let Some(header) = Header::decode(bytes, spu, index) else { continue };
            if !restore(state, request, place, index, &header).await? && !planted(Planted::KeepsTornHeads) {
                // The power went before it was prepared, or its room was used again after it was applied. What is written there next could
                // make it whole.
                participant::wipe(request, place, index).await.map_err(status)?;
            }
        }
    }
    Ok(())
}

/// Takes over what a head says; false where that is nothing.
async fn restore(state: &State, request: &Request, place: Place, index: usize, header: &Header) -> Result<bool, u32> {
    let spus = willow_sdk::spu_count();
    let (own, coordinator) = (1u64 << willow_sdk::spu_id(), header.coordinator);
    let known = if spus < 64 { (1u64 << spus) - 1 } else { u64::MAX };
    if header.participants & own == 0 || header.participants & !known != 0 || u32::from(coordinator) >= spus {
        return Ok(false);
    }
    state.table.restore(index, header.transaction, coordinator, header.number);
    let part = state.table.part(index);
    part.participants.set(header.participants);
    part.entries.set(header.entries);
    part.sum.set(header.sum);
    part.first_page.set(if header.first_page == NONE { 0 } else { link(header.first_page) });
    if header.mark == Mark::Applied && !planted(Planted::AppliesTwice) {
        part.stage.set(Stage::Applied);
        return Ok(true);
    }
    part.stage.set(Stage::Prepared);
    let mut bytes = [0; ENTRY_BYTES * HEAD_ENTRIES];
    let from = place.base + head_offset(index) + HEADER_BYTES as u64;
    request.read(from, &mut bytes).await.map_err(status)?;
    for (entry, bytes) in part.head.iter().zip(bytes.chunks_exact(ENTRY_BYTES)) {
        entry.set(Entry::decode(bytes));
    }
    if !planted(Planted::TornData) && !is_whole(request, place, part, header).await? {
        state.table.free(index);
        return Ok(false);
    }
    Ok(true)
}

/// Whether entries and data are what the head says.
async fn is_whole(request: &Request, place: Place, part: &Part, header: &Header) -> Result<bool, u32> {
    let end = crate::format::data_offset(place.chunks, place.chunks);
    let (mut entries, mut sum) = (Entries::new(part), 0u64);
    loop {
        let (number, entry) = match entries.next(request, place).await {
            Ok(Some(next)) => next,
            Ok(None) => return Ok(sum == header.sum),
            // A page that names none, or one that cannot be read.
            Err(_) => return Ok(false),
        };
        let fits = entry.bytes <= wire::WRITE_BYTES_MAX
            && entry.data.checked_add(entry.bytes.into()).is_some_and(|until| until <= end);
        if !fits {
            return Ok(false);
        }
        sum = sum.wrapping_add(entry.check(number));
        if request.checksum(Nv(place.base + entry.data), entry.bytes, 0).await.map_err(status)? != entry.sum {
            return Ok(false);
        }
    }
}

/// Carries all commits to their ends.
async fn settle(state: &State, request: &Request, place: Place, deadline_ns: u64) -> Result<(), u32> {
    let spu = willow_sdk::spu_id();
    let is_own = |part: &Part| u32::from(part.coordinator.get()) == spu;
    for (index, part) in state.table.taken() {
        if is_own(part) {
            decide(state, request, place, index, deadline_ns).await?;
        }
    }
    loop {
        let Some((index, part)) = state.table.taken().next() else { return Ok(()) };
        let answer = tell(request, part, part.coordinator.get().into(), handler::RESOLVE).await?;
        match answer {
            // It is not committed, or applied by all.
            Response { status: 0, result: 0 } => participant::forget(state, request, place, index).await,
            // The coordinator tells what becomes of it, or has not read its log yet.
            _ if willow_sdk::time_ns() > deadline_ns => return Err(wire::STATUS_UNFINISHED),
            _ => willow_sdk::sleep_ns(ASK_WAIT_NS).await.map_err(status)?,
        }
    }
}

/// A message about a commit.
async fn tell(request: &Request, part: &Part, spu: u32, number: u8) -> Result<Response, u32> {
    let message = CommitMessage {
        coordinator: part.coordinator.get().into(),
        writes: 0,
        number: part.number.get(),
        transaction: part.transaction.get(),
        participants: part.participants.get(),
        owner: 0,
    };
    let body = message.encode();
    loop {
        match request.rpc(Destination::Spu(spu), App::Own, number).append(&body).send().await {
            Err(Error::Refused) => willow_sdk::sleep_ns(ASK_WAIT_NS).await.map_err(status)?,
            answer => return answer.map_err(status),
        }
    }
}

/// The coordinator's own part: asks all others, and tells them what to do.
async fn decide(state: &State, request: &Request, place: Place, index: usize, deadline_ns: u64) -> Result<(), u32> {
    let spu = willow_sdk::spu_id();
    let part = state.table.part(index);
    let participants = part.participants.get();
    let others = |bits: u64| (0..64).filter(move |other| bits >> other & 1 != 0 && *other != spu);
    let (mut prepared, mut applied) = (0u64, 0u64);
    for other in others(participants) {
        loop {
            match tell(request, part, other, handler::PROGRESS).await? {
                Response { status: 0, result: progress::PREPARED } => prepared |= 1 << other,
                Response { status: 0, result: progress::APPLIED } => applied |= 1 << other,
                Response { status: 0, .. } => {}
                Response { status: wire::STATUS_NOT_YET, .. } if willow_sdk::time_ns() <= deadline_ns => {
                    willow_sdk::sleep_ns(ASK_WAIT_NS).await.map_err(status)?;
                    continue;
                }
                Response { status, .. } => return Err(status),
            }
            break;
        }
    }
    let is_committed = others(participants).all(|other| (prepared | applied) >> other & 1 != 0);
    if is_committed {
        for other in others(prepared) {
            match tell(request, part, other, handler::APPLY).await? {
                Response { status: 0, .. } => {}
                Response { status, .. } => return Err(status),
            }
        }
        if part.stage.get() == Stage::Prepared {
            participant::apply(state, request, place, index).await?;
        }
    }
    let after = if is_committed { handler::FORGET } else { handler::CANCEL };
    for other in others(prepared | applied) {
        let told = if after == handler::FORGET {
            let mut body = [0; 16];
            body[..4].copy_from_slice(&spu.to_le_bytes());
            body[4..8].copy_from_slice(&1u32.to_le_bytes());
            body[8..].copy_from_slice(&part.number.get().to_le_bytes());
            request.rpc(Destination::Spu(other), App::Own, after).append(&body).send().await.map_err(status)?
        } else {
            tell(request, part, other, after).await?
        };
        if told.status != 0 {
            return Err(told.status);
        }
    }
    participant::forget(state, request, place, index).await;
    Ok(())
}
