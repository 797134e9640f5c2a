//! What an SPU does for its part of a commit: prepare, apply, cancel, forget.
//!
//! What always holds:
//! - *prepared* is answered when head, entries and data are durable, and the process may write all targets;
//! - a part is applied only when all participants are prepared; once it is, what it wrote is durable before the head says so;
//! - each of the coordinator's messages may come twice: the second one changes nothing;
//! - a part at the stages Preparing, Applying and Handed is one handler's, and nobody else frees it; one that is Stuck may be given up, and
//!   its place another's, at each wait: it is found again by its commit.

use crate::format::{ENTRY_BYTES, Entry, HEADER_BYTES, Header, Mark, NONE, UNIT_BYTES, head_offset, page_offset};
use crate::log::{Entries, Held, tail_bytes};
use crate::planted::{Planted, planted, trap_if_planted};
use crate::state::{Log, Place, State, status};
use crate::table::{Part, Stage, named};
use crate::wire::{self, CommitMessage};
use willow_sdk::{Error, Nv, Request, join};

/// Copies from the log to their targets that are under way at the same time.
const COPIES_MAX: usize = 12;
/// How often a part is tried to apply where the media fail or are full before the host is told, and the time between two tries, which
/// doubles.
pub const APPLY_TRIES_MAX: u32 = 20;
/// See above.
const APPLY_WAIT_NS_MIN: u64 = 1_000_000;
/// See above.
const APPLY_WAIT_NS_MAX: u64 = 100_000_000;

/// A head that is none.
pub const NO_HEADER: [u8; HEADER_BYTES] = [0; HEADER_BYTES];

fn header(part: &Part, mark: Mark) -> Header {
    Header {
        mark,
        coordinator: part.coordinator.get(),
        number: part.number.get(),
        participants: part.participants.get(),
        entries: part.entries.get(),
        first_page: part.first_page_number(),
        sum: part.sum.get(),
        transaction: part.transaction.get(),
    }
}

/// Prepares a part. A refusal forgets it.
pub async fn prepare(
    state: &State,
    request: &Request,
    place: Place,
    message: &CommitMessage,
    writes: u32,
) -> Result<(), u32> {
    if let Some(index) = state.table.find_commit(message.coordinator, message.number) {
        // Asked again.
        let is_prepared = state.table.part(index).stage.get() == Stage::Prepared;
        return if is_prepared { Ok(()) } else { Err(wire::STATUS_BUSY) };
    }
    let held = Held::find(state, message.owner, message.transaction).await?;
    let (index, part) = (held.index, held.part());
    state.table.enter_commit(index, message.coordinator, message.number, message.participants);
    part.stage.set(Stage::Preparing);
    if part.entries.get() != writes && !planted(Planted::CountsNothing) {
        held.end();
        return Err(wire::STATUS_INCOMPLETE);
    }
    if let Err(refusal) = may_apply(request, place, part).await {
        held.end();
        return Err(refusal);
    }
    match make_durable(request, place, index, part).await {
        Ok(()) => {
            trap_if_planted(Planted::Traps);
            drop(held);
            state.set_stage(part, Stage::Prepared);
            Ok(())
        }
        Err(_) => {
            // The head may be there, and may even be durable.
            let gone = wipe(request, place, index).await.is_ok() && willow_sdk::flush().await.is_ok();
            held.end();
            Err(if gone { wire::STATUS_MEDIA_ERROR } else { wire::STATUS_UNCERTAIN })
        }
    }
}

/// Whether the process may write all that the part would write, at this moment.
async fn may_apply(request: &Request, place: Place, part: &Part) -> Result<(), u32> {
    if planted(Planted::TrustsOldRights) {
        return Ok(());
    }
    let mut entries = Entries::new(part);
    while let Some((_, entry)) = entries.next(request, place).await? {
        request.may_write(Nv(entry.address), entry.bytes).await.map_err(status)?;
    }
    Ok(())
}

/// Writes the head and the last page, and makes them durable with the data.
async fn make_durable(request: &Request, place: Place, index: usize, part: &Part) -> Result<(), Error> {
    let mut head = [0; UNIT_BYTES as usize];
    head[..HEADER_BYTES].copy_from_slice(&header(part, Mark::Prepared).encode(willow_sdk::spu_id(), index));
    let entries = part.head.iter().take(part.entries.get() as usize);
    let mut bytes = HEADER_BYTES;
    for (entry, place) in entries.zip(head[HEADER_BYTES..].chunks_exact_mut(ENTRY_BYTES)) {
        entry.get().encode(place);
        bytes += ENTRY_BYTES;
    }
    match named(part.last_page.get()) {
        None => request.write(place.base + head_offset(index), &head[..bytes]).await?,
        Some(page) => {
            let tail = tail_bytes(part, NONE);
            let writes = (
                request.write(place.base + head_offset(index), &head[..bytes]),
                request.write(place.base + page_offset(page), &tail),
            );
            let (head, tail) = join(writes.0, writes.1).await;
            head.and(tail)?;
        }
    }
    if planted(Planted::AnswersBeforeFlush) {
        return Ok(());
    }
    willow_sdk::flush().await
}

/// Makes a head none, as soon as the media get to it.
pub async fn wipe(request: &Request, place: Place, index: usize) -> Result<(), Error> {
    request.write(place.base + head_offset(index), &NO_HEADER).await
}

/// Applies a part that all participants have prepared. It is done when the answer is `Ok`, and the media say so.
pub async fn apply(state: &State, request: &Request, place: Place, index: usize) -> Result<(), u32> {
    let part = state.table.part(index);
    match part.stage.get() {
        Stage::Prepared => state.set_stage(part, Stage::Applying),
        Stage::Applied => return Ok(()),
        Stage::Stuck => return Err(wire::STATUS_UNFINISHED),
        _ => return Err(wire::STATUS_BUSY),
    }
    let mut wait_ns = APPLY_WAIT_NS_MIN;
    for _ in 0..APPLY_TRIES_MAX {
        match carry_out(request, place, index, part).await {
            Ok(()) => {
                state.set_stage(part, Stage::Applied);
                return Ok(());
            }
            Err(Error::Permission) => {
                // Taken back between the look-up and now. All have promised to apply it: the device itself does.
                state.set_stage(part, Stage::Handed);
                state.wake_caretaker();
                return applied_by_caretaker(state, part.coordinator.get().into(), part.number.get()).await;
            }
            Err(_) => {}
        }
        if willow_sdk::sleep_ns(wait_ns).await.is_err() {
            break;
        }
        wait_ns = (wait_ns * 2).min(APPLY_WAIT_NS_MAX);
    }
    state.set_stage(part, Stage::Stuck);
    state.work.notify_all();
    Err(wire::STATUS_UNFINISHED)
}

/// Waits until the caretaker has applied a part that was handed to it, or could not. The revocation that had it handed over waits as well,
/// and may have given it up by the time this is awake.
async fn applied_by_caretaker(state: &State, coordinator: u32, number: u64) -> Result<(), u32> {
    loop {
        let found = state.table.find_commit(coordinator, number);
        match found.map(|index| state.table.part(index).stage.get()) {
            Some(Stage::Handed) => state.changed.wait().await,
            Some(Stage::Applied) => return Ok(()),
            _ => return Err(wire::STATUS_UNFINISHED),
        }
    }
}

/// The caretaker applies, with the device's own rights, what its process may not write any more, or what could not be applied before.
pub async fn apply_as_device(state: &State, request: &Request, place: Place, index: usize) {
    let part = state.table.part(index);
    let was_told = part.stage.get() == Stage::Stuck && is_own(part);
    // A revocation waits meanwhile: what is being applied is not given up.
    part.stage.set(Stage::Handed);
    let applied = planted(Planted::LeavesOut) || carry_out(request, place, index, part).await.is_ok();
    state.set_stage(
        part,
        match (applied, was_told) {
            (false, _) => Stage::Stuck,
            (true, false) => Stage::Applied,
            // The commit's handler has ended: who else has not applied it is for the caretaker to see.
            (true, true) => Stage::Unfinished,
        },
    );
}

/// Copies what the log has to its targets, makes that durable, and marks the head.
async fn carry_out(request: &Request, place: Place, index: usize, part: &Part) -> Result<(), Error> {
    copy(request, place, part).await?;
    trap_if_planted(Planted::Traps);
    if !planted(Planted::MarksBeforeFlush) {
        willow_sdk::flush().await?;
    }
    if planted(Planted::NeverMarks) {
        return Ok(());
    }
    // Nobody asks for the part of a transaction that no other SPU takes part in.
    if part.participants.get() == 1 << willow_sdk::spu_id() {
        return wipe(request, place, index).await;
    }
    let marked = header(part, Mark::Applied).encode(willow_sdk::spu_id(), index);
    request.write(place.base + head_offset(index), &marked).await
}

/// Copies what the log has to its targets, in order where they overlap. What the device itself may not write lies in a namespace that is
/// gone, and is left out.
async fn copy(request: &Request, place: Place, part: &Part) -> Result<(), Error> {
    let as_device = request.info().originating_hre == 0;
    let most = if as_device { 1 } else { COPIES_MAX };
    let mut entries = Entries::new(part);
    let mut under_way = [Entry::EMPTY; COPIES_MAX];
    let mut count = 0;
    let mut copies = request.batch();
    loop {
        let next = entries.next(request, place).await;
        let waits = match &next {
            Ok(Some((_, entry))) => count == most || under_way[..count].iter().any(|it| it.overlaps(entry)),
            _ => true,
        };
        if waits {
            match copies.await {
                Err(Error::Permission) if as_device => {}
                outcome => outcome?,
            }
            (copies, count) = (request.batch(), 0);
        }
        let Some((_, entry)) = next.map_err(|_| Error::Media)? else { return Ok(()) };
        copies.dma(Nv(place.base + entry.data), Nv(entry.address), entry.bytes);
        under_way[count] = entry;
        count += 1;
    }
}

/// A participant is not prepared: the part is forgotten. `durably`: the coordinator answers only when the media have forgotten it too.
pub async fn cancel(state: &State, request: &Request, place: Place, index: usize, durably: bool) -> Result<(), u32> {
    let part = state.table.part(index);
    if part.stage.get() != Stage::Prepared {
        return Ok(());
    }
    // Not prepared any more, while the media forget it.
    part.stage.set(Stage::Preparing);
    let mut gone = wipe(request, place, index).await;
    if durably && gone.is_ok() {
        gone = willow_sdk::flush().await;
    }
    state.free(index);
    gone.map_err(|_| wire::STATUS_MEDIA_ERROR)
}

/// All have applied it: the part is forgotten.
pub async fn forget(state: &State, request: &Request, place: Place, index: usize) {
    // A head that stays names what is durable: it is read at the next start, and comes to nothing.
    let _ = wipe(request, place, index).await;
    state.free(index);
}

/// The media do not let a part be applied, and must not later: what it would write may be another's then.
async fn give_up(state: &State, request: &Request, place: Place, index: usize) -> Result<(), Error> {
    let part = state.table.part(index);
    // Nobody applies it, or gives it up as well, while the media forget it.
    part.stage.set(Stage::Preparing);
    let mut gone = wipe(request, place, index).await;
    if gone.is_ok() {
        gone = willow_sdk::flush().await;
    }
    match gone {
        Err(_) => state.set_stage(part, Stage::Stuck),
        // The others that take part wait to hear that they may forget theirs.
        Ok(()) if is_own(part) => {
            state.set_stage(part, Stage::Unfinished);
            state.work.notify_all();
        }
        Ok(()) => state.free(index),
    }
    gone
}

/// Whether this SPU coordinates the commit.
fn is_own(part: &Part) -> bool {
    u32::from(part.coordinator.get()) == willow_sdk::spu_id()
}

/// Rights of a process, or of all (0), were taken back: ends when nothing is written any more that they allowed. What is not prepared looks
/// them up again. Where the process has ended, what it had open is forgotten.
pub async fn settle(state: &State, request: &Request, process: u32, has_ended: bool) -> Result<(), u32> {
    let place = match state.log.get() {
        Log::Ready(place) | Log::Settling(place) => place,
        // What it has cannot be read, and may have to be written at the next start.
        Log::Failed(status) => return Err(status),
        Log::Unread => return Err(wire::STATUS_NOT_YET),
        Log::Absent | Log::Opening => return Ok(()),
    };
    let is_of_it = |part: &Part| process == 0 && part.owner.get() != 0 || part.owner.get() == process;
    loop {
        let mut waits = false;
        for (index, part) in state.table.taken().filter(|(_, part)| is_of_it(part)) {
            match part.stage.get() {
                Stage::Preparing | Stage::Prepared | Stage::Applying | Stage::Handed => waits = true,
                Stage::Stuck => give_up(state, request, place, index).await.map_err(status)?,
                Stage::Open if has_ended && part.busy.get() => waits = true,
                Stage::Open if has_ended => state.free(index),
                Stage::Open | Stage::Free | Stage::Applied | Stage::Unfinished | Stage::Finished => {}
            }
        }
        if !waits || planted(Planted::SettlesNothing) {
            return Ok(());
        }
        state.changed.wait().await;
    }
}
