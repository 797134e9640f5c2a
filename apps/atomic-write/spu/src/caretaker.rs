//! What is done in the background: forgetting commits that all have applied, and applying what a process may not write any more.
//!
//! What always holds: it is there while the log is; it sleeps only while there is something to do soon.

use crate::coordinator;
use crate::participant;
use crate::state::{Log, State};
use crate::table::Stage;
use crate::wire::{FORGET_MAX, handler};
use willow_sdk::{App, Destination, Request};

/// How long finished commits wait for company: each message is for several.
const COMPANY_NS: u64 = 500_000;
/// When it tries again what could not be applied.
const STUCK_NS: u64 = 1_000_000_000;
/// Bytes of a message that commits may be forgotten.
const FORGET_BYTES: usize = 8 + 8 * FORGET_MAX;
/// Most SPUs that are told at the same time.
const TOLD_MAX: usize = 12;

/// Works as long as this version of the app is there.
pub async fn work(state: &State, request: &Request) {
    loop {
        let Log::Ready(place) = state.log.get() else {
            state.changed.wait().await;
            continue;
        };
        for (index, part) in state.table.taken() {
            if part.stage.get() == Stage::Handed {
                participant::apply_as_device(state, request, place, index).await;
            }
        }
        let finished = state.table.taken().filter(|(_, part)| part.stage.get() == Stage::Finished).count();
        if finished > 0 {
            if !state.urgent.replace(false) && finished < FORGET_MAX {
                let _ = willow_sdk::sleep_ns(COMPANY_NS).await;
            }
            forget(state, request).await;
            continue;
        }
        if state.table.taken().any(|(_, part)| matches!(part.stage.get(), Stage::Stuck | Stage::Unfinished)) {
            let _ = willow_sdk::sleep_ns(STUCK_NS).await;
            for (index, part) in state.table.taken() {
                if part.stage.get() == Stage::Stuck {
                    participant::apply_as_device(state, request, place, index).await;
                }
                if part.stage.get() == Stage::Unfinished && coordinator::apply_again(state, request, index).await {
                    state.set_stage(part, Stage::Finished);
                }
            }
            continue;
        }
        if !state.urgent.replace(false) {
            state.work.wait().await;
        }
    }
}

/// Tells all that took part in finished commits that they may forget them, and forgets them here.
pub async fn forget(state: &State, request: &Request) {
    let Log::Ready(place) = state.log.get() else { return };
    let spu = willow_sdk::spu_id();
    let mut body = [0; FORGET_BYTES];
    let (mut commits, mut participants) = (0, 0);
    let mut indices = [0; FORGET_MAX];
    for (index, part) in state.table.taken().filter(|(_, part)| part.stage.get() == Stage::Finished).take(FORGET_MAX) {
        body[8 + 8 * commits..][..8].copy_from_slice(&part.number.get().to_le_bytes());
        indices[commits] = index;
        participants |= part.participants.get();
        commits += 1;
    }
    body[..4].copy_from_slice(&spu.to_le_bytes());
    body[4..8].copy_from_slice(&(commits as u32).to_le_bytes());
    let mut left = participants & !(1 << spu);
    while left != 0 {
        let mut told = request.rpc_batch();
        for _ in 0..TOLD_MAX {
            if left != 0 {
                let other = left.trailing_zeros();
                left &= left - 1;
                told.send(
                    request.rpc(Destination::Spu(other), App::Own, handler::FORGET).append(&body[..8 + 8 * commits]),
                );
            }
        }
        if told.await.is_err() {
            // One has not heard of it: all are told again later.
            return;
        }
    }
    for index in &indices[..commits] {
        participant::forget(state, request, place, *index).await;
    }
}
