//! The handlers: from a request's bytes to what they ask for.

use crate::coordinator::{self, SPUS_MAX};
use crate::log::{self, Held, Write};
use crate::participant;
use crate::recovery::{self, progress};
use crate::state::{Log, Place, State};
use crate::table::Stage;
use crate::wire::{
    self, CommitArguments, CommitMessage, FORGET_MAX, RecordArguments, Statistics, VECTOR_WRITES_MAX, VectorWrite,
    WriteArguments,
};
use willow_sdk::{DeviceEvent, Local, Reply, Request, Response, SOURCE_HOST};

/// Requests that are handled on an SPU at a time: those that coordinate a commit, which wait for others, and as many that others can
/// ask meanwhile.
const THREADS: usize = 2 * coordinator::COORDINATING_MAX as usize;

/// What the app counts (`willow stat`).
mod counter {
    pub const LOG_WRITES: u32 = 0;
    pub const COMMITS: u32 = 1;
    pub const COMMITS_REFUSED: u32 = 2;
    pub const ABORTS: u32 = 3;
    pub const PARTS_APPLIED: u32 = 4;
}

willow_sdk::app! {
    name: "atomic-write",
    version: env!("CARGO_PKG_VERSION"),
    state: State = State::new(),
    threads: THREADS,
    handlers: {
        wire::handler::LOG_WRITE => log_write,
        wire::handler::VECTOR_LOG_WRITE => vector_log_write,
        wire::handler::LOG_EDIT => log_edit,
        wire::handler::LOG_READ => log_read,
        wire::handler::COMMIT => commit,
        wire::handler::LOG_WRITE_COMMIT => log_write_commit,
        wire::handler::ABORT => abort,
        wire::handler::STAT => stat,
        wire::handler::PREPARE => prepare,
        wire::handler::APPLY => apply,
        wire::handler::CANCEL => cancel,
        wire::handler::FORGET => forget,
        wire::handler::RESOLVE => resolve,
        wire::handler::PROGRESS => tell_progress,
        wire::handler::CARETAKER => caretaker,
    },
    public: "1,2,3,4,5,6,7,8",
    events: on_event,
}

/// A refusal as a response.
struct Refusal(u32);

impl From<u32> for Refusal {
    fn from(status: u32) -> Refusal {
        Refusal(status)
    }
}

impl From<Refusal> for Response {
    fn from(refusal: Refusal) -> Response {
        Response::failure(refusal.0)
    }
}

const MALFORMED: Refusal = Refusal(wire::STATUS_MALFORMED);

fn arguments<const BYTES: usize>(request: &Request) -> Result<[u8; BYTES], Refusal> {
    request.receive_array().map_err(|_| MALFORMED)
}

/// Whose request it is: a process, or 0 for all endpoints of the host's kernel.
fn owner(request: &Request) -> u32 {
    let process = request.info().originating_hre >> 12;
    if process >> 19 == 0 { 0 } else { process }
}

/// What instances tell each other comes from no host.
fn from_instance(request: &Request) -> Result<(), Refusal> {
    if request.info().source == SOURCE_HOST { Err(MALFORMED) } else { Ok(()) }
}

/// The transaction that a write is for.
async fn transaction<'a>(state: &'a State, request: &Request, arguments: &WriteArguments) -> Result<Held<'a>, u32> {
    let owner = owner(request);
    if arguments.flags & wire::FLAG_FIRST != 0 {
        Held::begin(state, owner, arguments.transaction).await
    } else {
        Held::find(state, owner, arguments.transaction).await
    }
}

/// One write's data are behind the arguments.
fn single(request: &Request, arguments: &WriteArguments) -> Result<Write, Refusal> {
    let body = WriteArguments::BYTES as u32;
    if arguments.bytes > wire::WRITE_BYTES_MAX || request.info().body_bytes < body + arguments.bytes {
        return Err(MALFORMED);
    }
    Ok(Write { address: arguments.nv_address, bytes: arguments.bytes, body })
}

/// Adds writes; where the transaction is new and they cannot be added, there is none.
async fn append(
    request: &Request,
    state: &State,
    arguments: &WriteArguments,
    writes: &[Write],
) -> Result<u32, Refusal> {
    willow_sdk::count(counter::LOG_WRITES, writes.len() as i64);
    let place = state.open(request).await?;
    let held = transaction(state, request, arguments).await?;
    let number = held.part().entries.get();
    if let Err(refusal) = log::append(request, place, &held, writes).await {
        if arguments.flags & wire::FLAG_FIRST != 0 {
            held.end();
        }
        return Err(refusal.into());
    }
    Ok(number)
}

async fn log_write(request: Request, state: &State) -> Result<u32, Refusal> {
    let arguments = WriteArguments::decode(&arguments(&request)?);
    let write = single(&request, &arguments)?;
    append(&request, state, &arguments, &[write]).await
}

async fn vector_log_write(request: Request, state: &State) -> Result<u32, Refusal> {
    let arguments = WriteArguments::decode(&arguments(&request)?);
    let count = arguments.bytes as usize;
    let mut vector = [0; VECTOR_WRITES_MAX * VectorWrite::BYTES];
    let bytes = count.checked_mul(VectorWrite::BYTES).and_then(|bytes| vector.get_mut(..bytes)).ok_or(MALFORMED)?;
    if count == 0 || request.receive(bytes) != bytes.len() {
        return Err(MALFORMED);
    }
    let mut writes = [Write::default(); VECTOR_WRITES_MAX];
    let mut body = (WriteArguments::BYTES + bytes.len()) as u32;
    for (write, bytes) in writes.iter_mut().zip(bytes.chunks_exact(VectorWrite::BYTES)) {
        let part = VectorWrite::decode(bytes);
        if part.bytes > wire::WRITE_BYTES_MAX {
            return Err(MALFORMED);
        }
        *write = Write { address: part.nv_address, bytes: part.bytes, body };
        body += part.bytes;
    }
    if request.info().body_bytes < body {
        return Err(MALFORMED);
    }
    append(&request, state, &arguments, &writes[..count]).await
}

async fn log_edit(request: Request, state: &State) -> Result<(), Refusal> {
    let arguments = RecordArguments::decode(&arguments(&request)?);
    let place = state.open(&request).await?;
    let held = Held::find(state, owner(&request), arguments.transaction).await?;
    let range = (arguments.record, arguments.offset, arguments.bytes);
    Ok(log::edit(&request, place, held, range, RecordArguments::BYTES as u32).await?)
}

async fn log_read(request: Request, state: &State) -> Result<u32, Refusal> {
    let arguments = RecordArguments::decode(&arguments(&request)?);
    let place = state.open(&request).await?;
    let held = Held::find(state, owner(&request), arguments.transaction).await?;
    Ok(log::read(&request, place, &held, (arguments.record, arguments.offset, arguments.bytes)).await?)
}

/// A commit has ended.
fn committed(outcome: Result<(), u32>) -> Result<(), Refusal> {
    willow_sdk::count(if outcome.is_ok() { counter::COMMITS } else { counter::COMMITS_REFUSED }, 1);
    Ok(outcome?)
}

async fn commit(request: Request, state: &State) -> Result<(), Refusal> {
    let arguments = CommitArguments::decode(&arguments(&request)?);
    let (participants, spus) = (arguments.participants, willow_sdk::spu_count());
    let known = if spus < 64 { (1u64 << spus) - 1 } else { u64::MAX };
    if participants >> willow_sdk::spu_id() & 1 == 0 || participants & !known != 0 {
        return Err(MALFORMED);
    }
    let count = participants.count_ones() as usize;
    let mut counts = [0; 2 * SPUS_MAX];
    if request.receive(&mut counts[..2 * count]) != 2 * count {
        return Err(MALFORMED);
    }
    let mut writes = [0; SPUS_MAX];
    let which = (0..SPUS_MAX).filter(|spu| participants >> spu & 1 != 0);
    for (spu, bytes) in which.zip(counts.chunks_exact(2)) {
        writes[spu] = u16::from_le_bytes([bytes[0], bytes[1]]);
    }
    let place = state.open(&request).await?;
    let owner = owner(&request);
    if state.table.find(owner, arguments.transaction).is_none() {
        return Err(Refusal(wire::STATUS_NOT_FOUND));
    }
    let transaction = (owner, arguments.transaction, participants);
    committed(coordinator::commit(state, &request, place, transaction, &writes).await)
}

async fn log_write_commit(request: Request, state: &State) -> Result<(), Refusal> {
    let mut arguments = WriteArguments::decode(&arguments(&request)?);
    arguments.flags |= wire::FLAG_FIRST;
    let write = single(&request, &arguments)?;
    append(&request, state, &arguments, &[write]).await?;
    let place = state.open(&request).await?;
    let (owner, spu) = (owner(&request), willow_sdk::spu_id());
    let mut writes = [0; SPUS_MAX];
    writes[spu as usize] = 1;
    let outcome = coordinator::commit(state, &request, place, (owner, arguments.transaction, 1 << spu), &writes).await;
    if let (Err(wire::STATUS_BUSY), Some(index)) = (outcome, state.table.find(owner, arguments.transaction)) {
        // Nothing was done.
        state.free(index);
    }
    committed(outcome)
}

async fn abort(request: Request, state: &State) -> Result<(), Refusal> {
    let transaction = u64::from_le_bytes(arguments(&request)?);
    let held = Held::find(state, owner(&request), transaction).await?;
    willow_sdk::count(counter::ABORTS, 1);
    held.end();
    Ok(())
}

async fn stat(request: Request, state: &State) -> Result<u32, Refusal> {
    let (chunks, free_chunks) = state.table.chunks();
    let (mut open, mut committed) = (0, 0);
    for (_, part) in state.table.taken() {
        *if part.stage.get() == Stage::Open { &mut open } else { &mut committed } += 1;
    }
    let bytes = Statistics { open, committed, chunks, free_chunks }.encode();
    if request.info().reply_bytes < Statistics::BYTES as u32 {
        return Err(MALFORMED);
    }
    let moved = request.dma(Local(&bytes), Reply(0), Statistics::BYTES as u32).await;
    moved.map_err(crate::state::status)?;
    Ok(Statistics::BYTES as u32)
}

/// The log, for a message of an instance: it is there, or is being recovered.
fn place(state: &State) -> Result<Place, Refusal> {
    match state.log.get() {
        Log::Ready(place) => Ok(place),
        Log::Failed(status) => Err(Refusal(status)),
        _ => Err(Refusal(wire::STATUS_NOT_YET)),
    }
}

/// The same for messages that recovery sends: the log has been read.
fn place_read(state: &State) -> Result<Option<Place>, Refusal> {
    match state.log.get() {
        Log::Ready(place) | Log::Settling(place) => Ok(Some(place)),
        Log::Absent | Log::Opening => Ok(None),
        Log::Failed(status) => Err(Refusal(status)),
        Log::Unread => Err(Refusal(wire::STATUS_NOT_YET)),
    }
}

async fn prepare(request: Request, state: &State) -> Result<(), Refusal> {
    from_instance(&request)?;
    let message = CommitMessage::decode(&arguments(&request)?);
    if message.owner != owner(&request) {
        return Err(MALFORMED);
    }
    let place = place(state)?;
    Ok(participant::prepare(state, &request, place, &message, message.writes).await?)
}

async fn apply(request: Request, state: &State) -> Result<(), Refusal> {
    from_instance(&request)?;
    let message = CommitMessage::decode(&arguments(&request)?);
    let Some(place) = place_read(state)? else { return Err(Refusal(wire::STATUS_NOT_FOUND)) };
    let index = state.table.find_commit(message.coordinator, message.number).ok_or(wire::STATUS_NOT_FOUND)?;
    willow_sdk::count(counter::PARTS_APPLIED, 1);
    Ok(participant::apply(state, &request, place, index).await?)
}

async fn cancel(request: Request, state: &State) -> Result<(), Refusal> {
    from_instance(&request)?;
    let message = CommitMessage::decode(&arguments(&request)?);
    let Some(place) = place_read(state)? else { return Ok(()) };
    let Some(index) = state.table.find_commit(message.coordinator, message.number) else { return Ok(()) };
    if state.table.part(index).stage.get() == Stage::Preparing {
        return Err(Refusal(wire::STATUS_BUSY));
    }
    // Of what is not committed the media may have a head for a while: another one has none.
    let _ = participant::cancel(state, &request, place, index, false).await;
    Ok(())
}

async fn forget(request: Request, state: &State) -> Result<(), Refusal> {
    from_instance(&request)?;
    let [a, b, c, d, e, f, g, h] = arguments::<8>(&request)?;
    let (coordinator, count) = (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]) as usize);
    let mut numbers = [0; 8 * FORGET_MAX];
    let bytes = count.checked_mul(8).and_then(|bytes| numbers.get_mut(..bytes)).ok_or(MALFORMED)?;
    if request.receive(bytes) != bytes.len() {
        return Err(MALFORMED);
    }
    let Some(place) = place_read(state)? else { return Ok(()) };
    for number in bytes.as_chunks::<8>().0 {
        if let Some(index) = state.table.find_commit(coordinator, u64::from_le_bytes(*number)) {
            participant::forget(state, &request, place, index).await;
        }
    }
    Ok(())
}

async fn resolve(request: Request, state: &State) -> Result<u32, Refusal> {
    from_instance(&request)?;
    let message = CommitMessage::decode(&arguments(&request)?);
    place_read(state)?;
    Ok(state.table.find_commit(message.coordinator, message.number).is_some().into())
}

async fn tell_progress(request: Request, state: &State) -> Result<u32, Refusal> {
    from_instance(&request)?;
    let message = CommitMessage::decode(&arguments(&request)?);
    place_read(state)?;
    let Some(index) = state.table.find_commit(message.coordinator, message.number) else { return Ok(progress::NONE) };
    Ok(match state.table.part(index).stage.get() {
        Stage::Applied => progress::APPLIED,
        _ => progress::PREPARED,
    })
}

async fn caretaker(request: Request, state: &State) -> Result<(), Refusal> {
    from_instance(&request)?;
    crate::caretaker::work(state, &request).await;
    Ok(())
}

async fn on_event(request: Request, event: DeviceEvent, state: &State) -> Response {
    match event {
        DeviceEvent::Started => recovery::recover(state, &request).await,
        // What all have applied need not be read at the next start.
        DeviceEvent::Shutdown => crate::caretaker::forget(state, &request).await,
        _ => {}
    }
    Response::default()
}
