//! A commit over several SPUs: two phases, this SPU coordinates and takes part itself.
//!
//! What always holds:
//! - a transaction is committed once all participants are prepared, durably: their heads together are the decision;
//! - nothing is applied before that, and nobody forgets its head before all have applied theirs;
//! - where it is not committed, at least one participant durably has no head when the host is answered.

use crate::participant;
use crate::planted::{Planted, planted};
use crate::state::{Place, State};
use crate::table::Stage;
use crate::wire::{self, CommitMessage, handler};
use core::cell::Cell;
use willow_sdk::{App, Destination, Error, Request, Response, join};

/// Most commits that an SPU coordinates at the same time: the other threads are for what others ask.
pub const COORDINATING_MAX: u32 = 24;
/// Most participants that are asked at the same time.
const ASKED_MAX: usize = 12;
/// How often a participant is asked that has no room for the message, and the time between.
const ASK_TRIES_MAX: u32 = 2000;
/// See above.
const ASK_WAIT_NS: u64 = 500_000;
/// Most SPUs.
pub const SPUS_MAX: usize = 64;

/// A commit that is being coordinated; until dropped.
pub struct Permit<'a>(&'a Cell<u32>);

impl<'a> Permit<'a> {
    /// Where there are not too many.
    pub fn take(state: &'a State) -> Result<Self, u32> {
        let at_work = state.coordinating.get();
        if at_work >= COORDINATING_MAX {
            return Err(wire::STATUS_BUSY);
        }
        state.coordinating.set(at_work + 1);
        Ok(Permit(&state.coordinating))
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// The SPUs of a bitmap, in rising order.
fn spus(mut bits: u64) -> impl Iterator<Item = u32> {
    core::iter::from_fn(move || {
        let spu = (bits != 0).then(|| bits.trailing_zeros())?;
        bits &= bits - 1;
        Some(spu)
    })
}

/// Asks SPUs the same, each with its own number of writes; the status of one that has not answered with success.
async fn ask(
    request: &Request,
    which: u64,
    number: u8,
    message: &CommitMessage,
    writes: &[u16; SPUS_MAX],
) -> Result<Response, Error> {
    let mut refusal = Response::default();
    let mut left = which;
    while left != 0 {
        let mut bodies = [[0; CommitMessage::BYTES]; ASKED_MAX];
        let mut asked = request.rpc_batch();
        for (spu, body) in spus(left).zip(&mut bodies) {
            *body = CommitMessage { writes: writes[spu as usize].into(), ..*message }.encode();
            left &= !(1 << spu);
            asked.send(request.rpc(Destination::Spu(spu), App::Own, number).append(body));
        }
        let answer = asked.await?;
        if answer != Response::default() {
            refusal = answer;
        }
    }
    Ok(refusal)
}

/// The same, again and again where there is no room for a message; the status.
async fn insist(
    request: &Request,
    which: u64,
    number: u8,
    message: &CommitMessage,
    writes: &[u16; SPUS_MAX],
) -> Result<(), u32> {
    for _ in 0..ASK_TRIES_MAX {
        match ask(request, which, number, message, writes).await {
            Ok(Response { status: 0, .. }) => return Ok(()),
            Ok(Response { status: wire::STATUS_BUSY, .. }) | Err(Error::Refused) => {}
            Ok(Response { status, .. }) => return Err(status),
            // The app has ended, and with it this handler.
            Err(_) => return Err(wire::STATUS_UNFINISHED),
        }
        if willow_sdk::sleep_ns(ASK_WAIT_NS).await.is_err() {
            break;
        }
    }
    Err(wire::STATUS_UNFINISHED)
}

/// Commits a transaction whose part here is found by `owner` and `transaction`. `writes`: of each SPU.
pub async fn commit(
    state: &State,
    request: &Request,
    place: Place,
    (owner, transaction, participants): (u32, u64, u64),
    writes: &[u16; SPUS_MAX],
) -> Result<(), u32> {
    let spu = willow_sdk::spu_id();
    let others = participants & !(1 << spu);
    let own_writes = u32::from(writes[spu as usize]);
    let _permit = Permit::take(state)?;
    let number = state.next_number();
    let message = CommitMessage { coordinator: spu, writes: 0, number, transaction, participants, owner };
    if others == 0 {
        participant::prepare(state, request, place, &message, own_writes).await.map_err(told)?;
        let index = state.table.find_commit(spu, number).ok_or(wire::STATUS_UNFINISHED)?;
        participant::apply(state, request, place, index).await?;
        // What is applied stays in its place until it is freed here.
        state.free(index);
        return Ok(());
    }
    let ask_others = async {
        match ask(request, others, handler::PREPARE, &message, writes).await {
            // One had no room for the message: all are asked again, which changes nothing for those that are prepared.
            Err(Error::Refused) => insist(request, others, handler::PREPARE, &message, writes).await,
            Ok(Response { status: 0, .. }) => Ok(()),
            Ok(Response { status, .. }) => Err(status),
            Err(_) => Err(wire::STATUS_UNFINISHED),
        }
    };
    let (own, theirs) = join(participant::prepare(state, request, place, &message, own_writes), ask_others).await;
    let theirs = if planted(Planted::AppliesBeforeAll) { Ok(()) } else { theirs };
    let prepared = state.table.find_commit(spu, number);
    if let Some(refusal) = own.err().or(theirs.err()) {
        // Those that refused for sure have no head; else this SPU's own is gone before the host is told.
        let is_sure = [own, theirs].into_iter().filter_map(Result::err).any(is_definite);
        if let Some(index) = prepared {
            participant::cancel(state, request, place, index, !is_sure).await?;
        }
        let _ = insist(request, others, handler::CANCEL, &message, writes).await;
        return Err(told(refusal));
    }
    let index = prepared.ok_or(wire::STATUS_UNFINISHED)?;
    if planted(Planted::CoordinatorForgets) {
        participant::forget(state, request, place, index).await;
        let _ = willow_sdk::flush().await;
        return insist(request, others, handler::APPLY, &message, writes).await;
    }
    let (own, theirs) = join(
        participant::apply(state, request, place, index),
        insist(request, others, handler::APPLY, &message, writes),
    )
    .await;
    let outcome = own.and(theirs);
    // A part that could not be applied here may be gone: the rights to it were taken back while others were asked.
    let Some(index) = state.table.find_commit(spu, number) else { return Err(wire::STATUS_UNFINISHED) };
    let part = state.table.part(index);
    if part.stage.get() == Stage::Applied {
        // The caretaker tells all that they may forget it, or once more to apply it.
        state.set_stage(part, if outcome.is_ok() { Stage::Finished } else { Stage::Unfinished });
        state.work.notify_all();
    }
    // One that does not know it any more has given its part up.
    outcome.map_err(|_| wire::STATUS_UNFINISHED)
}

/// Tells the others once more to apply a commit whose part here is applied; true where all have.
pub async fn apply_again(state: &State, request: &Request, index: usize) -> bool {
    let part = state.table.part(index);
    let coordinator = willow_sdk::spu_id();
    let participants = part.participants.get();
    let (number, transaction) = (part.number.get(), part.transaction.get());
    let message = CommitMessage { coordinator, writes: 0, number, transaction, participants, owner: 0 };
    for other in spus(participants & !(1 << coordinator)) {
        match ask(request, 1 << other, handler::APPLY, &message, &[0; SPUS_MAX]).await {
            // Not there any more: its process has lost the right to it.
            Ok(Response { status: 0 | wire::STATUS_NOT_FOUND, .. }) => {}
            _ => return false,
        }
    }
    true
}

/// Whether a refusal to prepare says for sure that the media have no head of that part.
fn is_definite(status: u32) -> bool {
    !matches!(status, wire::STATUS_UNCERTAIN | wire::STATUS_UNFINISHED | wire::STATUS_BUSY)
}

/// What the host is told.
fn told(refusal: u32) -> u32 {
    match refusal {
        wire::STATUS_UNCERTAIN => wire::STATUS_MEDIA_ERROR,
        wire::STATUS_BUSY | wire::STATUS_UNFINISHED => wire::STATUS_ABORTED,
        status => status,
    }
}
